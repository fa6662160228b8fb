/*
 * cgroup.c - memory and processors that the control groups of the process leave it.
 *
 * A group and all groups above it have limits, and counts of used memory (Linux,
 * Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst). Page
 * cache counts as used, but the kernel drops it when the limit is reached. Groups whose files are
 * not visible in a container are skipped.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/backend/host/host.h"

#define PATH_NBYTES 4096

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

/* the bytes that a group leaves, by the files of a version; UINT64_MAX: all */
struct resource {
	const char *controller; /* name in version 1 */
	uint64_t (*v1)(const char *dir), (*v2)(const char *dir);
};

/* without a limit version 2 writes "max" and version 1 a huge number */
static uint64_t memory_free(const char *dir, const char *limit_file, const char *use_file,
			    const char *const stat[2])
{
	uint64_t limit, use, cache, part;

	if (!read_number(dir, limit_file, "", &limit) || !read_number(dir, use_file, "", &use))
		return UINT64_MAX;
	cache = 0;
	for (int i = 0; i < 2; i++)
		if (read_number(dir, "memory.stat", stat[i], &part))
			cache += part;
	use -= cache < use ? cache : use;
	return limit > use ? limit - use : 0;
}

static uint64_t memory_v1(const char *dir)
{
	static const char *const stat[2] = { "total_inactive_file ", "total_active_file " };

	return memory_free(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", stat);
}

static uint64_t memory_v2(const char *dir)
{
	static const char *const stat[2] = { "inactive_file ", "active_file " };

	return memory_free(dir, "memory.max", "memory.current", stat);
}

/* time of processors in a period of time, rounded up to whole ones */
static uint64_t processors(uint64_t quota, uint64_t period)
{
	if (!quota || !period || quota > INT64_MAX)
		return UINT64_MAX;
	return (quota + period - 1) / period;
}

static uint64_t cpu_v1(const char *dir)
{
	uint64_t quota, period;

	/* without a limit the quota is -1, which is read as UINT64_MAX */
	if (!read_number(dir, "cpu.cfs_quota_us", "", &quota) ||
	    !read_number(dir, "cpu.cfs_period_us", "", &period))
		return UINT64_MAX;
	return processors(quota, period);
}

static uint64_t cpu_v2(const char *dir)
{
	uint64_t quota, period;
	char key[32];

	/* "max 100000", or "150000 100000" */
	if (!read_number(dir, "cpu.max", "", &quota))
		return UINT64_MAX;
	snprintf(key, sizeof(key), "%" PRIu64 " ", quota);
	return read_number(dir, "cpu.max", key, &period) ? processors(quota, period) : UINT64_MAX;
}

static const struct resource memory = { "memory", memory_v1, memory_v2 };
static const struct resource cpu = { "cpu", cpu_v1, cpu_v2 };

/* the least of a group and those above it; mount: of the version, or of the controller */
static uint64_t path_left(const char *mount, const char *path, uint64_t (*left)(const char *dir))
{
	char dir[PATH_NBYTES];
	uint64_t least = UINT64_MAX, n;

	if ((size_t)snprintf(dir, sizeof(dir), "%s%s", mount, path) >= sizeof(dir))
		return UINT64_MAX;
	for (;;) {
		n = left(dir);
		least = n < least ? n : least;
		if (strlen(dir) <= strlen(mount))
			return least;
		*strrchr(dir, '/') = '\0';
	}
}

/* 1: the list of controllers in a line of version 1 has this one */
static int has(const char *list, const char *controller)
{
	const size_t n = strlen(controller);

	for (const char *p = list;; p++) {
		if (!strncmp(p, controller, n) && (p[n] == ',' || !p[n]))
			return 1;
		p = strchr(p, ',');
		if (!p)
			return 0;
	}
}

static uint64_t groups_left(const char *root, const char *membership, const struct resource *r)
{
	char line[PATH_NBYTES], mount[PATH_NBYTES];
	uint64_t least = UINT64_MAX, left;
	FILE *f = fopen(membership, "re");

	/* hierarchy number, controllers, path, separated by colons */
	while (f && fgets(line, sizeof(line), f)) {
		char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
		const int v1 = list && list[1] != ':';

		if (!path || path[1] != '/')
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		if (!strcmp(path, "/"))
			*path = '\0';
		if (v1 && !has(list + 1, r->controller))
			continue;
		snprintf(mount, sizeof(mount), "%s%s%s", root, v1 ? "/" : "",
			 v1 ? r->controller : "");
		left = path_left(mount, path, v1 ? r->v1 : r->v2);
		least = left < least ? left : least;
	}
	if (f)
		fclose(f);
	return least;
}

uint64_t te__cgroup_free(const char *root, const char *membership)
{
	return groups_left(root, membership, &memory);
}

uint64_t te__cgroup_processors(const char *root, const char *membership)
{
	return groups_left(root, membership, &cpu);
}
