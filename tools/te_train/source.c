/* source.c - the bytes of a data file: read in place, or piped or decompressed into memory. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "inflate.h"
#include "source.h"
#include "tools/lib/say.h"

#define CHUNK_NBYTES (1u << 20) /* bytes of a read in a scan or into memory */
#define NPIECES 16
#define PIECE_NBYTES 4096
#define TICK_S 0.05		/* time stamps of files are not finer than that */

struct source {
	char *name;	/* the path, or "standard input" */
	size_t nsuffix; /* characters at its end that name the compression */
	int fd;		/* file that is read in place, or -1 */
	struct stat st; /* status when the contents were last known to equal the scan */
	int recent;	/* written to so late before st that a later write may not change it */
	uint8_t *heap;
	int64_t nbytes;
	int64_t from; /* begin of the scan */
	int sampled;  /* the digest is of pieces */
	char digest[DIGEST_NBYTES];
};

/* read the rest of a file from its descriptor */
struct inflow {
	const struct source *s;
	int fd;
	uint8_t *buf;
	size_t at, n; /* unread bytes */
	int ended;
};

/* read on, after what is unread, which moves to the front */
static int inflow_fill(struct inflow *in)
{
	ssize_t k;

	if (in->at)
		memmove(in->buf, in->buf + in->at, in->n);
	in->at = 0;
	do {
		k = read(in->fd, in->buf + in->n, CHUNK_NBYTES - in->n);
	} while (k < 0 && errno == EINTR);
	if (k < 0)
		return say_bad("%s: %s", in->s->name, strerror(errno));
	in->n += (size_t)k;
	in->ended = !k;
	return STATUS_OK;
}

/* at least 16 bytes, unless the file is shorter */
static int inflow_begin(struct inflow *in)
{
	int r = STATUS_OK;

	in->buf = malloc(CHUNK_NBYTES);
	if (!in->buf)
		return say_failed("out of memory");
	while (in->n < 16 && !in->ended && !r)
		r = inflow_fill(in);
	return r;
}

/* room for at least as many bytes at the end of s->heap */
static int grow(struct source *s, size_t *room, size_t nbytes)
{
	size_t need = (size_t)s->nbytes + nbytes;
	uint8_t *p;

	if (need <= *room)
		return STATUS_OK;
	*room = need > 2 * *room ? need : 2 * *room;
	p = realloc(s->heap, *room);
	if (!p)
		return say_failed("%s: out of memory", s->name);
	s->heap = p;
	return STATUS_OK;
}

static int keep_plain(struct source *s, struct inflow *in, size_t *room)
{
	int r = STATUS_OK;

	while (!r && (in->n || !in->ended)) {
		r = grow(s, room, in->n);
		if (r)
			break;
		memcpy(s->heap + s->nbytes, in->buf + in->at, in->n);
		s->nbytes += (int64_t)in->n;
		in->at = in->n = 0;
		r = inflow_fill(in);
	}
	return r;
}

/* a file may have several members */
static int keep_inflated(struct source *s, struct inflow *in, const struct inflate *format,
			 size_t *room)
{
	void *state = NULL;
	int r = STATUS_OK, step = INFLATE_MORE;

	while (!r) {
		struct inflate_io io;
		size_t nfree;

		if (!in->n && !in->ended)
			r = inflow_fill(in);
		if (step == INFLATE_END && !in->n && in->ended)
			break;
		if (!r && !state && format->begin(&state))
			r = say_failed("%s: out of memory", s->name);
		if (!r)
			r = grow(s, room, CHUNK_NBYTES);
		if (r)
			break;
		nfree = *room - (size_t)s->nbytes;
		io = (struct inflate_io){ in->buf + in->at, in->n, s->heap + s->nbytes, nfree };
		step = format->step(state, &io);
		/* nothing more to read, and nothing written: the end is missing */
		if (step == INFLATE_MORE && in->ended && !io.nin && io.nout == nfree)
			step = INFLATE_BAD;
		if (step == INFLATE_BAD)
			r = say_bad("%s: the %s data is damaged or cut short", s->name,
				    format->name);
		in->at += in->n - io.nin;
		in->n = io.nin;
		s->nbytes += (int64_t)(nfree - io.nout);
		if (step == INFLATE_END) {
			format->end(state);
			state = NULL;
		}
	}
	if (state)
		format->end(state);
	return r;
}

static int keep(struct source *s, struct inflow *in, const struct inflate *format)
{
	size_t room = 0;
	int r = format ? keep_inflated(s, in, format, &room) : keep_plain(s, in, &room);
	uint8_t *p;

	/* the unused end is not in use either if this fails */
	p = r || !s->nbytes ? NULL : realloc(s->heap, (size_t)s->nbytes);
	if (p)
		s->heap = p;
	return r;
}

static void keep_stat(struct source *s, const struct stat *st)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	s->st = *st;
	s->recent = (double)(now.tv_sec - st->st_ctim.tv_sec) +
			    1e-9 * (double)(now.tv_nsec - st->st_ctim.tv_nsec) <
		    TICK_S;
}

static int load(struct source *s, int fd, int is_stdin)
{
	struct inflow in = { .s = s, .fd = fd };
	const struct inflate *format;
	struct stat st;
	int r;

	if (fstat(fd, &st))
		return say_bad("%s: %s", s->name, strerror(errno));
	keep_stat(s, &st);
	if (S_ISDIR(s->st.st_mode))
		return say_bad("%s: is a folder", s->name);
	if (!is_stdin && !S_ISREG(s->st.st_mode) && !S_ISFIFO(s->st.st_mode))
		return say_bad("%s: is neither a regular file nor a pipe", s->name);
	r = inflow_begin(&in);
	format = r ? NULL : inflate_find(in.buf, in.n);
	if (format && !format->begin) {
		r = say_bad("%s: is %s data, and this te_train was built without %s: install %s "
			    "and build it again, or: %s -dc FILE | te_train ... -",
			    s->name, format->name, format->library, format->package,
			    format->program);
	} else if (!r && !format && !is_stdin && S_ISREG(s->st.st_mode)) {
		s->fd = fd;
		s->nbytes = s->st.st_size;
	} else if (!r) {
		r = keep(s, &in, format);
		if (format && source_ends_with(s, format->suffix))
			s->nsuffix = strlen(format->suffix);
	}
	free(in.buf);
	if (!r && !s->nbytes)
		r = say_bad("%s: the file is empty", s->name);
	return r;
}

int source_open(const char *path, struct source **ret_s)
{
	struct source *s = calloc(1, sizeof(*s));
	int is_stdin = !strcmp(path, "-"), fd, r;

	if (s)
		s->name = strdup(is_stdin ? "standard input" : path);
	if (!s || !s->name) {
		free(s);
		return say_failed("out of memory");
	}
	s->fd = -1;
	fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	r = fd < 0 ? say_bad("%s: %s", path, strerror(errno)) : load(s, fd, is_stdin);
	if (fd >= 0 && fd != s->fd && !is_stdin)
		close(fd);
	if (r) {
		source_close(s);
		return r;
	}
	*ret_s = s;
	return STATUS_OK;
}

void source_close(struct source *s)
{
	if (!s)
		return;
	if (s->fd >= 0)
		close(s->fd);
	free(s->heap);
	free(s->name);
	free(s);
}

const char *source_name(const struct source *s)
{
	return s->name;
}

int64_t source_nbytes(const struct source *s)
{
	return s->nbytes;
}

int source_ends_with(const struct source *s, const char *end)
{
	size_t n = strlen(s->name) - s->nsuffix, m = strlen(end);

	return n >= m && !strncmp(s->name + n - m, end, m);
}

int source_is(const struct source *s, const struct stat *st)
{
	return s->st.st_dev == st->st_dev && s->st.st_ino == st->st_ino;
}

/* from the file, also if its contents have changed */
static int read_raw(const struct source *s, int64_t at, void *dst, size_t n)
{
	for (size_t have = 0; have < n;) {
		ssize_t k = pread(s->fd, (char *)dst + have, n - have, at + (int64_t)have);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return say_bad("%s: %s", s->name, strerror(errno));
		if (!k)
			return say_bad("%s: the file became shorter while it was in use", s->name);
		have += (size_t)k;
	}
	return STATUS_OK;
}

static int scan(struct source *s, int64_t from, source_fn fn, void *arg,
		char ret_digest[DIGEST_NBYTES])
{
	uint8_t *buf = s->fd < 0 ? NULL : malloc(CHUNK_NBYTES);
	struct digest d = { 0 };
	int r = STATUS_OK;

	if (s->fd >= 0 && !buf)
		return say_failed("out of memory");
	for (int64_t at = from; at < s->nbytes && !r;) {
		size_t n = s->nbytes - at < CHUNK_NBYTES ? (size_t)(s->nbytes - at) : CHUNK_NBYTES;
		const uint8_t *p = buf ? buf : s->heap + at;

		if (buf)
			r = read_raw(s, at, buf, n);
		if (!r)
			digest_add(&d, p, n);
		if (!r && fn)
			fn(arg, p, n, at - from);
		at += (int64_t)n;
	}
	free(buf);
	digest_end(&d, ret_digest);
	return r;
}

static int scan_pieces(struct source *s, int64_t from, source_fn fn, void *arg,
		       char ret_digest[DIGEST_NBYTES])
{
	const int64_t last = s->nbytes - from > PIECE_NBYTES ? s->nbytes - from - PIECE_NBYTES : 0;
	uint8_t buf[PIECE_NBYTES + 8];
	struct digest d = { 0 };
	int r = STATUS_OK;

	digest_add(&d, &s->nbytes, sizeof(s->nbytes));
	for (int64_t i = 0; i < NPIECES && !r; i++) {
		/* chunks begin at multiples of 8 */
		const int64_t at = from + last * i / (NPIECES - 1) / 8 * 8;
		const int64_t left = s->nbytes - at;
		const size_t n = left < (int64_t)sizeof(buf) ? (size_t)left : sizeof(buf);

		r = read_raw(s, at, buf, n);
		if (!r)
			digest_add(&d, buf, n);
		if (!r && fn)
			fn(arg, buf, n, at - from);
	}
	digest_end(&d, ret_digest);
	return r;
}

static int same_mtime(const struct stat *a, const struct stat *b)
{
	return a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int same_stat(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && same_mtime(a, b) &&
	       a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* a file that was touched, renamed or removed has other time stamps and the same contents */
static int check_unchanged(struct source *s)
{
	char digest[DIGEST_NBYTES];
	struct stat st;
	int changed, r = STATUS_OK;

	if (fstat(s->fd, &st))
		return say_bad("%s: %s", s->name, strerror(errno));
	if (same_stat(&st, &s->st) && !s->recent)
		return STATUS_OK;
	changed = st.st_size != s->nbytes || (s->sampled && !same_mtime(&st, &s->st));
	if (!changed)
		r = s->sampled ? scan_pieces(s, s->from, NULL, NULL, digest) :
				 scan(s, s->from, NULL, NULL, digest);
	if (r)
		return r;
	if (changed || strcmp(digest, s->digest))
		return say_bad("%s: the file changed while it was in use", s->name);
	keep_stat(s, &st);
	return STATUS_OK;
}

int source_read(struct source *s, int64_t at, void *dst, size_t n)
{
	int r;

	if (at < 0 || at + (int64_t)n > s->nbytes)
		return say_failed("%s: read past its end", s->name);
	if (s->fd < 0) {
		memcpy(dst, s->heap + at, n);
		return STATUS_OK;
	}
	r = read_raw(s, at, dst, n);
	return r || !*s->digest ? r : check_unchanged(s);
}

static int begin_checks(struct source *s, int64_t from, int sampled, source_fn fn, void *arg)
{
	char digest[DIGEST_NBYTES];
	int r = sampled ? scan_pieces(s, from, fn, arg, digest) : scan(s, from, fn, arg, digest);

	if (r)
		return r;
	s->from = from;
	s->sampled = sampled;
	memcpy(s->digest, digest, sizeof(digest));
	/* written to during the scan */
	return s->fd < 0 ? STATUS_OK : check_unchanged(s);
}

int source_scan(struct source *s, int64_t from, source_fn fn, void *arg)
{
	return begin_checks(s, from, 0, fn, arg);
}

int source_sample(struct source *s, int64_t from, source_fn fn, void *arg)
{
	return begin_checks(s, from, s->fd >= 0, fn, arg);
}

const char *source_digest(const struct source *s)
{
	return s->digest;
}
