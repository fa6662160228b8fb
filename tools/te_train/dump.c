/* dump.c - files that get a range of the tokens. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dump.h"
#include "tools/lib/say.h"

#define CHUNK_NTOKENS 1024 /* tokens of a copy */

static int span_write(const struct span *s, FILE *out, const char *path)
{
	const int width = data_width(s->data);
	int32_t token[CHUNK_NTOKENS];
	int r = STATUS_OK, ok = 1;

	for (int64_t at = 0; at < s->n && ok && !r; at += CHUNK_NTOKENS) {
		int64_t n = s->n - at < CHUNK_NTOKENS ? s->n - at : CHUNK_NTOKENS;

		r = span_read(s, at, n, token);
		for (int64_t i = 0; i < n && !r && ok; i++)
			ok = fwrite(&token[i], (size_t)width, 1, out) == 1;
	}
	if (!r && (!ok || fflush(out)))
		r = say_bad("%s: %s", path, strerror(errno));
	return r;
}

/* path: a device or pipe, or else a file that is removed after a failure */
static int dump(const struct span *s, int fd, const char *path)
{
	FILE *out = fd < 0 ? NULL : fdopen(fd, "wb");
	int r = out ? span_write(s, out, path) : say_bad("%s: %s", path, strerror(errno));

	if (out)
		fclose(out);
	else if (fd >= 0)
		close(fd);
	return r;
}

/* under a temporary name, then renamed; a link stays one, and the file that it names is replaced */
static int dump_file(const struct span *s, const char *path)
{
	const mode_t mask = umask(0);
	char *target = realpath(path, NULL), *fresh = NULL;
	int fd, r;

	umask(mask);
	if (asprintf(&fresh, "%s.XXXXXX", target ? target : path) < 0) {
		free(target);
		return say_failed("out of memory");
	}
	fd = mkostemp(fresh, O_CLOEXEC);
	if (fd >= 0)
		fchmod(fd, 0666 & ~mask);
	r = dump(s, fd, path);
	if (!r && rename(fresh, target ? target : path))
		r = say_bad("%s: %s", path, strerror(errno));
	if (r && fd >= 0)
		unlink(fresh);
	free(fresh);
	free(target);
	return r;
}

int span_dump(const struct span *s, const char *path)
{
	struct stat st;

	if (stat(path, &st) || S_ISREG(st.st_mode))
		return dump_file(s, path);
	return dump(s, open(path, O_WRONLY | O_CLOEXEC), path);
}
