/*
 * cgroup.c - memory that the control groups of the process leave it.
 *
 * A group and all groups above it have a limit and a use (Linux,
 * Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst). Page cache counts as used, but
 * the kernel drops it when the limit is reached. Groups whose files are not visible in a container
 * are skipped.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/backend/host/host.h"

#define PATH_NBYTES 4096

struct version {
	const char *subdir, *limit, *use, *stat[2];
};

static const struct version v1 = { "/memory",
				   "memory.limit_in_bytes",
				   "memory.usage_in_bytes",
				   { "total_inactive_file", "total_active_file" } };
static const struct version v2 = { "", "memory.max", "memory.current",
				   { "inactive_file", "active_file" } };

/* the number in a file, or after a key in it: 1 if there is one */
static int read_number(const char *dir, const char *file, const char *key, uint64_t *ret)
{
	char path[PATH_NBYTES + 64], line[256], fmt[64];
	int found = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	snprintf(fmt, sizeof(fmt), "%s%%" SCNu64, key);
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, fmt, ret) == 1;
	if (f)
		fclose(f);
	return found;
}

/* UINT64_MAX without a limit, which version 2 writes as "max" and version 1 as a huge number */
static uint64_t group_free(const char *dir, const struct version *v)
{
	uint64_t limit, use, cache, part;
	char key[64];

	if (!read_number(dir, v->limit, "", &limit) || !read_number(dir, v->use, "", &use))
		return UINT64_MAX;
	cache = 0;
	for (int i = 0; i < 2; i++) {
		snprintf(key, sizeof(key), "%s ", v->stat[i]);
		if (read_number(dir, "memory.stat", key, &part))
			cache += part;
	}
	use -= cache < use ? cache : use;
	return limit > use ? limit - use : 0;
}

/* the least of a group and those above it; root: where version v is mounted */
static uint64_t path_free(const char *root, const char *path, const struct version *v)
{
	char dir[PATH_NBYTES];
	const size_t top = strlen(root) + strlen(v->subdir);
	uint64_t least = UINT64_MAX, left;

	if ((size_t)snprintf(dir, sizeof(dir), "%s%s%s", root, v->subdir, path) >= sizeof(dir))
		return UINT64_MAX;
	for (;;) {
		left = group_free(dir, v);
		least = left < least ? left : least;
		if (strlen(dir) <= top)
			return least;
		*strrchr(dir, '/') = '\0';
	}
}

/* whether the list of controllers of a line of version 1 has memory */
static int has_memory(const char *list)
{
	static const char word[] = "memory";
	const size_t n = sizeof(word) - 1;

	for (const char *p = list;; p++) {
		if (!strncmp(p, word, n) && (p[n] == ',' || !p[n]))
			return 1;
		p = strchr(p, ',');
		if (!p)
			return 0;
	}
}

uint64_t te__cgroup_free(const char *root, const char *membership)
{
	char line[PATH_NBYTES];
	uint64_t least = UINT64_MAX, left;
	FILE *f = fopen(membership, "re");

	/* hierarchy number, controllers, path, separated by colons */
	while (f && fgets(line, sizeof(line), f)) {
		char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

		if (!path || path[1] != '/')
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		if (!strcmp(path, "/"))
			*path = '\0';
		if (list[1] && !has_memory(list + 1))
			continue;
		left = path_free(root, path, list[1] ? &v1 : &v2);
		least = left < least ? left : least;
	}
	if (f)
		fclose(f);
	return least;
}
