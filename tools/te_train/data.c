/* data.c - text and token files, concatenated to one sequence of tokens, and batches of it. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

#include "libtecore/base/splitmix64.h"

#include "data.h"
#include "model.h"
#include "say.h"

#define LLMC_MAGIC 20240520 /* llm.c, dev/data/data_common.py: 256 words, then tokens */
#define LLMC_NBYTES 1024

struct file {
	char *path;
	const uint8_t *token; /* width bytes each */
	int64_t first, n;     /* index in the sequence of all tokens */
	void *map;
	size_t map_nbytes;
	uint8_t *heap;
};

struct data {
	struct file *file;
	int nfiles;
	int width; /* bytes of a token: 1 or 2 */
	int64_t ntokens;
};

static int ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

#ifdef HAVE_ZLIB
/* a .gz file may have several members */
static int inflate_all(struct file *f, const uint8_t *src, size_t nbytes)
{
	size_t room = 0, have = 0, at = 0;
	z_stream z = { 0 };
	int r = Z_OK;

	if (inflateInit2(&z, 15 + 16) != Z_OK)
		return say_failed("out of memory");
	while (at < nbytes || r != Z_STREAM_END) {
		size_t left = nbytes - at;

		if (have == room) {
			uint8_t *p = realloc(f->heap, room = room ? 2 * room : 1 << 20);

			if (!p) {
				inflateEnd(&z);
				return say_failed("%s: out of memory", f->path);
			}
			f->heap = p;
		}
		if (r == Z_STREAM_END && inflateReset(&z) != Z_OK)
			break;
		z.next_in = (Bytef *)(src + at);
		z.avail_in = left > 1 << 30 ? 1 << 30 : (uInt)left;
		z.next_out = f->heap + have;
		z.avail_out = room - have > 1 << 30 ? 1 << 30 : (uInt)(room - have);
		r = inflate(&z, Z_NO_FLUSH);
		at = (size_t)(z.next_in - src);
		have = (size_t)(z.next_out - f->heap);
		if (r != Z_OK && r != Z_STREAM_END)
			break;
	}
	inflateEnd(&z);
	if (r != Z_STREAM_END)
		return say_bad("%s: the gzip data is damaged or cut short", f->path);
	f->token = f->heap;
	f->n = (int64_t)have;
	return STATUS_OK;
}
#else
static int inflate_all(struct file *f, const uint8_t *src, size_t nbytes)
{
	(void)src, (void)nbytes;
	return say_bad("%s: is compressed, and this te_train was built without zlib", f->path);
}
#endif

static int take_tokens(struct file *f)
{
	const uint8_t *p = f->map;
	int32_t head[3] = { 0 };
	size_t skip = 0;

	if (f->map_nbytes >= LLMC_NBYTES)
		memcpy(head, p, sizeof(head));
	if (head[0] == LLMC_MAGIC) {
		skip = LLMC_NBYTES;
		if (head[1] != 1)
			return say_bad("%s: token file of version %d; 1 is known", f->path,
				       head[1]);
		if (f->map_nbytes != skip + 2 * (size_t)(uint32_t)head[2]) {
			return say_bad(
				"%s: cut short: its header promises %u tokens, but it has %zu",
				f->path, (unsigned)head[2], (f->map_nbytes - skip) / 2);
		}
	}
	if (f->map_nbytes % 2)
		return say_bad("%s: an odd number of bytes: not a file of 16-bit tokens", f->path);
	f->token = p + skip;
	f->n = (int64_t)(f->map_nbytes - skip) / 2;
	return STATUS_OK;
}

/* map a file, or read what cannot be mapped (a pipe) */
static int load(struct file *f)
{
	int fd = open(f->path, O_RDONLY | O_CLOEXEC), r = STATUS_OK;
	struct stat st;

	if (fd < 0 || fstat(fd, &st)) {
		r = say_bad("%s: %s", f->path, strerror(errno));
	} else if (!S_ISREG(st.st_mode)) {
		r = say_bad("%s: %s", f->path,
			    S_ISDIR(st.st_mode) ? "is a folder" : "is not a regular file");
	} else if (!st.st_size) {
		r = say_bad("%s: the file is empty", f->path);
	} else {
		f->map_nbytes = (size_t)st.st_size;
		f->map = mmap(NULL, f->map_nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
		if (f->map == MAP_FAILED) {
			f->map = NULL;
			r = say_bad("%s: %s", f->path, strerror(errno));
		}
	}
	if (fd >= 0)
		close(fd);
	return r;
}

static int open_one(struct file *f, const char *path)
{
	const uint8_t *p;
	int r;

	f->path = strdup(path);
	if (!f->path)
		return say_failed("out of memory");
	r = load(f);
	if (r)
		return r;
	p = f->map;
	if (ends_with(path, ".bin"))
		return take_tokens(f);
	if (f->map_nbytes > 2 && p[0] == 0x1f && p[1] == 0x8b)
		return inflate_all(f, p, f->map_nbytes);
	f->token = p;
	f->n = (int64_t)f->map_nbytes;
	return STATUS_OK;
}

int data_open(char *const *file, int nfiles, struct data **ret_data)
{
	struct data *d = calloc(1, sizeof(*d));
	int r = STATUS_OK;

	if (d)
		d->file = calloc((size_t)nfiles, sizeof(*d->file));
	if (!d || !d->file) {
		free(d);
		return say_failed("out of memory");
	}
	for (int i = 0; i < nfiles && !r; i++) {
		int width = ends_with(file[i], ".bin") ? 2 : 1;

		d->nfiles = i + 1;
		if (i && width != d->width)
			r = say_bad("%s: token files and text cannot be mixed", file[i]);
		else
			r = open_one(&d->file[i], file[i]);
		d->width = width;
		d->file[i].first = d->ntokens;
		d->ntokens += d->file[i].n;
	}
	if (r) {
		data_close(d);
		return r;
	}
	*ret_data = d;
	return STATUS_OK;
}

void data_close(struct data *d)
{
	if (!d)
		return;
	for (int i = 0; i < d->nfiles; i++) {
		if (d->file[i].map)
			munmap(d->file[i].map, d->file[i].map_nbytes);
		free(d->file[i].heap);
		free(d->file[i].path);
	}
	free(d->file);
	free(d);
}

int64_t data_ntokens(const struct data *d)
{
	return d->ntokens;
}

int data_is_bytes(const struct data *d)
{
	return d->width == 1;
}

static const struct file *file_at(const struct data *d, int64_t at)
{
	int lo = 0, hi = d->nfiles - 1;

	while (lo < hi) {
		int mid = (lo + hi + 1) / 2;

		if (d->file[mid].first <= at)
			lo = mid;
		else
			hi = mid - 1;
	}
	return &d->file[lo];
}

/* n tokens of the span, from index at */
static int copy(const struct span *s, int64_t at, int64_t n, int64_t vocab, int32_t *dst)
{
	const struct data *d = s->data;

	at += s->first;
	while (n > 0) {
		const struct file *f = file_at(d, at);
		int64_t k = at - f->first, m = f->n - k < n ? f->n - k : n;

		for (int64_t i = 0; i < m; i++, k++) {
			int32_t t = d->width == 1 ? f->token[k] :
						    f->token[2 * k] | f->token[2 * k + 1] << 8;

			if (t >= vocab) {
				return say_bad(
					"%s: token %d at index %lld is beyond the "
					"vocabulary of %lld",
					f->path, (int)t, (long long)k, (long long)vocab);
			}
			*dst++ = t;
		}
		at += m;
		n -= m;
	}
	return STATUS_OK;
}

int span_dump(const struct span *s, const char *path)
{
	FILE *out = fopen(path, "wb");
	int64_t at = s->first, left = s->n;
	int ok;

	if (!out)
		return say_bad("%s: %s", path, strerror(errno));
	ok = 1;
	while (left > 0 && ok) {
		const struct file *f = file_at(s->data, at);
		int64_t k = at - f->first, m = f->n - k < left ? f->n - k : left;
		size_t width = (size_t)s->data->width;

		ok = fwrite(f->token + (size_t)k * width, width, (size_t)m, out) == (size_t)m;
		at += m;
		left -= m;
	}
	if (fclose(out) || !ok)
		return say_failed("%s: %s", path, strerror(errno));
	return STATUS_OK;
}

uint64_t mix64(uint64_t a, uint64_t b)
{
	uint64_t state = a + TE__SPLITMIX64_STEP * b;

	return te__splitmix64(&state);
}

/* one window: T tokens and the T that follow each */
static int window(const struct span *s, int64_t at, int64_t n, int64_t vocab, int32_t *x,
		  int32_t *y)
{
	int r = copy(s, at, n, vocab, x);

	return r ? r : copy(s, at + 1, n, vocab, y);
}

int batch_draw(const struct span *s, uint64_t seed, int64_t step, int64_t nrows, int64_t T,
	       int64_t vocab, int32_t *x, int32_t *y)
{
	uint64_t choices = (uint64_t)(s->n - T); /* starts for which each token has a successor */
	int r = STATUS_OK;

	for (int64_t i = 0; i < nrows && !r; i++) {
		uint64_t u = mix64(mix64(seed, (uint64_t)step), (uint64_t)i);
		int64_t at = (int64_t)((unsigned __int128)u * choices >> 64);

		r = window(s, at, T, vocab, x + i * T, y + i * T);
	}
	return r;
}

static int64_t eval_nwindows(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches)
{
	int64_t all = (s->n - 1 + T - 1) / T;

	return max_batches && max_batches * nrows < all ? max_batches * nrows : all;
}

int64_t eval_nbatches(const struct span *s, int64_t nrows, int64_t T, int64_t max_batches)
{
	return (eval_nwindows(s, nrows, T, max_batches) + nrows - 1) / nrows;
}

int batch_eval(const struct span *s, int64_t k, int64_t max_batches, int64_t nrows, int64_t T,
	       int64_t vocab, int32_t *x, int32_t *y, int64_t *ret_count)
{
	int64_t all = (s->n - 1 + T - 1) / T;
	int64_t taken = eval_nwindows(s, nrows, T, max_batches);
	int64_t count = 0;
	int r = STATUS_OK;

	memset(x, 0, (size_t)(nrows * T) * sizeof(*x));
	for (int64_t i = 0; i < nrows * T; i++)
		y[i] = IGNORED_TARGET;
	for (int64_t i = 0; i < nrows && k * nrows + i < taken && !r; i++) {
		int64_t at = (k * nrows + i) * all / taken * T;
		int64_t n = s->n - 1 - at < T ? s->n - 1 - at : T;

		r = window(s, at, n, vocab, x + i * T, y + i * T);
		count += n;
	}
	*ret_count = count;
	return r;
}
