/* source.h - the bytes of a data file: read in place, or piped or decompressed into memory. */
#ifndef SOURCE_H
#define SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "tools/lib/digest.h"

struct source;
struct stat;

/*
 * "-" is the standard input. A regular file that is not compressed stays on disk; data from a pipe,
 * and .gz, .xz and .zst data, recognised by its first bytes, is read into memory.
 */
int source_open(const char *path, struct source **ret_s);
void source_close(struct source *s);

const char *source_name(const struct source *s); /* for messages */
int64_t source_nbytes(const struct source *s);
/* does the name, without the suffix of its compression, end so */
int source_ends_with(const struct source *s, const char *end);

/* is it the file that stat(2) described */
int source_is(const struct source *s, const struct stat *st);

/*
 * Copy n bytes from offset at. Fails, also in later calls, if the file has changed since
 * source_scan: then its time stamps and its digest differ.
 */
int source_read(struct source *s, int64_t at, void *dst, size_t n);

/* bytes of a scan; chunks begin at multiples of 8 from its start */
typedef void (*source_fn)(void *arg, const uint8_t *p, size_t n, int64_t at);

/* read all bytes from an offset and keep their digest, the contents that source_read ensures */
int source_scan(struct source *s, int64_t from, source_fn fn, void *arg);
/*
 * The same for pieces spread evenly over the bytes, including the first and the last. A file that
 * stays on disk counts as changed when its size or its time of modification does.
 */
int source_sample(struct source *s, int64_t from, source_fn fn, void *arg);
const char *source_digest(const struct source *s);

#endif
