/*
 * safetensors.c - reading and writing safetensors files.
 *
 * Format: https://github.com/huggingface/safetensors, "Format". The header is padded
 * with spaces so that data begins at a multiple of 8. Files written here have a digest of
 * their data in the metadata, to detect damage.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "digest.h"
#include "record.h"
#include "safetensors.h"
#include "say.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

#define HEADER_MAX (100u << 20) /* the limit of the safetensors library */
#define NO_DIGEST "0000000000000000"

struct st_writer {
	const struct folder *dir;
	char *path, *name; /* with ".new"; name: the end of path */
	int fd;
	struct record header;
	const char *key, *value; /* entry of st_set_meta(), or NULL */
	json_t *obj; /* the header, from st_begin() on */
	size_t data_nbytes; /* declared */
	size_t written_nbytes;
	struct digest digest;
	uint8_t *buf;
	size_t fill;
};
#define BUF_NBYTES (4u << 20)

static int write_error(const struct st_writer *w)
{
	return say_bad("%s: %s; nothing was replaced", w->path, strerror(errno));
}

static int write_fully(struct st_writer *w, const void *src, size_t nbytes)
{
	const uint8_t *p = src;

	while (nbytes) {
		ssize_t n = write(w->fd, p, nbytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return write_error(w);
		p += n;
		nbytes -= (size_t)n;
	}
	return STATUS_OK;
}

int st_create(const struct folder *dir, const char *name, struct st_writer **ret_w)
{
	struct st_writer *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return say_failed("%s/%s: out of memory", dir->path, name);
	w->dir = dir;
	w->fd = -1;
	record_begin(&w->header);
	record_open(&w->header, "__metadata__");
	record_text(&w->header, "format", "pt");
	record_text(&w->header, "digest", NO_DIGEST);
	record_close(&w->header);
	w->buf = malloc(BUF_NBYTES);
	if (asprintf(&w->path, "%s/%s.new", dir->path, name) < 0)
		w->path = NULL;
	if (!w->buf || !w->path) {
		st_free(w);
		return say_failed("%s/%s: out of memory", dir->path, name);
	}
	w->name = w->path + strlen(dir->path) + 1;
	r = folder_create(dir, w->name, &w->fd);
	if (r) {
		st_free(w);
		return r;
	}
	*ret_w = w;
	return STATUS_OK;
}

void st_declare(struct st_writer *w, const char *name, const char *dtype, int ndim,
		const int64_t *shape, size_t nbytes)
{
	struct record *h = &w->header;

	record_open(h, name);
	record_text(h, "dtype", dtype);
	record_open_list(h, "shape");
	for (int i = 0; i < ndim; i++)
		record_int(h, NULL, shape[i]);
	record_close(h);
	record_open_list(h, "data_offsets");
	record_int(h, NULL, (int64_t)w->data_nbytes);
	w->data_nbytes += nbytes;
	record_int(h, NULL, (int64_t)w->data_nbytes);
	record_close(h);
	record_close(h);
}

static int write_header(struct st_writer *w)
{
	char *text = record_to_text(w->obj, JSON_COMPACT, w->path);
	size_t len = text ? strlen(text) : 0, padded = (len + 7) / 8 * 8;
	uint64_t n = padded;
	int r;

	if (!text)
		return STATUS_FAILED;
	r = write_fully(w, &n, 8);
	if (!r)
		r = write_fully(w, text, len);
	if (!r)
		r = write_fully(w, "        ", padded - len);
	free(text);
	return r;
}

static int set_meta(struct st_writer *w, const char *key, const char *value)
{
	json_t *meta = json_object_get(w->obj, "__metadata__"), *v = json_string(value);

	if (!v || json_object_set_new(meta, key, v))
		return say_failed("%s: out of memory", w->path);
	return STATUS_OK;
}

void st_set_meta(struct st_writer *w, const char *key, const char *value)
{
	w->key = key;
	w->value = value;
}

int st_begin(struct st_writer *w)
{
	int r;

	w->obj = record_end(&w->header, w->path);
	r = w->obj ? STATUS_OK : STATUS_FAILED;
	if (!r && w->key)
		r = set_meta(w, w->key, w->value);
	return r ? r : write_header(w);
}

static int flush(struct st_writer *w)
{
	int r = write_fully(w, w->buf, w->fill);

	w->written_nbytes += w->fill;
	digest_add(&w->digest, w->buf, w->fill);
	w->fill = 0;
	return r;
}

int st_write(struct st_writer *w, const void *src, size_t nbytes)
{
	const uint8_t *p = src;

	while (nbytes) {
		size_t n = BUF_NBYTES - w->fill < nbytes ? BUF_NBYTES - w->fill : nbytes;

		memcpy(w->buf + w->fill, p, n);
		w->fill += n;
		p += n;
		nbytes -= n;
		if (w->fill == BUF_NBYTES) {
			int r = flush(w);

			if (r)
				return r;
		}
	}
	return STATUS_OK;
}

static int map_file(int fd, const char *path, struct st_file **ret_f);

/* the file has the header and the digest that were written */
static int read_back(const struct st_writer *w)
{
	struct st_file *f = NULL;
	int r = map_file(w->fd, w->path, &f);

	if (!r && !json_equal(st_header(f), w->obj))
		r = say_failed("%s: its header is not what was written", w->path);
	if (!r)
		r = st_check_digest(f);
	st_close(f);
	return r;
}

int st_end(struct st_writer *w, char ret_digest[17])
{
	int r = flush(w), bad;

	if (r)
		return r;
	if (w->written_nbytes != w->data_nbytes)
		return say_failed("%s: %zu bytes of data, %zu were declared", w->path,
				  w->written_nbytes, w->data_nbytes);
	digest_end(&w->digest, ret_digest);
	r = set_meta(w, "digest", ret_digest); /* as long as the placeholder */
	if (r)
		return r;
	if (lseek(w->fd, 0, SEEK_SET) < 0)
		return write_error(w);
	r = write_header(w);
	if (r)
		return r;
	bad = fsync(w->fd);
	if (bad)
		return write_error(w);
	r = read_back(w);
	if (r)
		return r;
	bad = close(w->fd);
	w->fd = -1;
	return bad ? write_error(w) : STATUS_OK;
}

void st_free(struct st_writer *w)
{
	if (!w)
		return;
	if (w->fd >= 0) {
		/* not ended: remove the incomplete file */
		close(w->fd);
		unlinkat(w->dir->fd, w->name, 0);
	}
	if (w->obj)
		json_decref(w->obj);
	else
		json_decref(w->header.at[0]);
	free(w->buf);
	free(w->path);
	free(w);
}

struct st_file {
	char *path;
	uint8_t *map;
	size_t nbytes;
	size_t data_at;
	json_t *header;
	int gaps; /* bytes between tensors are allowed */
};

static const struct {
	const char *name;
	int nbits;
} dtypes[] = {
	{ "F64", 64 },	  { "F32", 32 },     { "F16", 16 },	    { "BF16", 16 },
	{ "C64", 64 },	  { "I64", 64 },     { "I32", 32 },	    { "I16", 16 },
	{ "I8", 8 },	  { "U64", 64 },     { "U32", 32 },	    { "U16", 16 },
	{ "U8", 8 },	  { "BOOL", 8 },     { "F8_E4M3", 8 },	    { "F8_E5M2", 8 },
	{ "F8_E8M0", 8 }, { "F6_E2M3", 6 },  { "F6_E3M2", 6 },	    { "F4", 4 },
	{ "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 },
};

/* parses one entry of the header; returns NULL, or a description of the error */
static const char *read_entry(const struct st_file *f, const json_t *entry, struct st_tensor *t)
{
	const json_t *shape = json_object_get(entry, "shape");
	const json_t *place = json_object_get(entry, "data_offsets");
	json_int_t from = json_integer_value(json_array_get(place, 0));
	json_int_t to = json_integer_value(json_array_get(place, 1));
	int64_t n = 1, nbits;
	int width = 0; /* bits; 0: a type that is not known here, whose extents prove nothing */

	memset(t, 0, sizeof(*t));
	t->dtype = json_string_value(json_object_get(entry, "dtype"));
	for (size_t i = 0; t->dtype && i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		if (!strcmp(dtypes[i].name, t->dtype))
			width = dtypes[i].nbits;
	}
	if (!t->dtype)
		return "its dtype is no text";
	if (!json_is_array(shape) || json_array_size(shape) > 8)
		return "its shape is not a list of up to 8 extents";
	t->ndim = (int)json_array_size(shape);
	for (int i = 0; i < t->ndim; i++) {
		const json_t *extent = json_array_get(shape, (size_t)i);

		t->shape[i] = json_integer_value(extent);
		if (!json_is_integer(extent) || t->shape[i] < 0 ||
		    __builtin_mul_overflow(n, t->shape[i], &n))
			return "its shape has an extent that is no integer from 0, or is too large";
	}
	if (json_array_size(place) != 2 || !json_is_integer(json_array_get(place, 0)) ||
	    !json_is_integer(json_array_get(place, 1)) || from < 0 || to < from)
		return "its data_offsets are not two ascending offsets";
	if ((uint64_t)to > f->nbytes - f->data_at)
		return "its data ends beyond the end: the file is cut short";
	if (width && (__builtin_mul_overflow(n, width, &nbits) || nbits % 8 ||
		      nbits / 8 != to - from))
		return "its data_offsets do not fit its shape";
	t->data = f->map + f->data_at + from;
	t->nbytes = (size_t)(to - from);
	return NULL;
}

struct range {
	size_t from, to;
	const char *name;
};

static int by_offset(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return (x->to > y->to) - (x->to < y->to);
}

/* The tensors cover the data without gaps and overlaps: then the size shows missing data. */
static int check_ranges(const struct st_file *f, struct range *v, size_t n)
{
	size_t end = 0;

	qsort(v, n, sizeof(*v), by_offset);
	for (size_t i = 0; i < n; end = v[i++].to) {
		if (v[i].from < end)
			return say_bad("%s: tensors \"%s\" and \"%s\" overlap", f->path,
				       v[i - 1].name, v[i].name);
		if (v[i].from > end && !f->gaps)
			return say_bad("%s: %zu bytes before tensor \"%s\" are in no tensor",
				       f->path, v[i].from - end, v[i].name);
	}
	if (end != f->nbytes - f->data_at && !f->gaps) {
		return say_bad("%s: has %zu bytes of data, its header describes %zu", f->path,
			       f->nbytes - f->data_at, end);
	}
	return STATUS_OK;
}

static int check_entries(struct st_file *f)
{
	struct range *range = calloc(json_object_size(f->header) + 1, sizeof(*range));
	const char *name;
	json_t *entry;
	size_t n = 0;
	int r = range ? STATUS_OK : say_failed("%s: out of memory", f->path);

	json_object_foreach(f->header, name, entry)
	{
		const char *wrong;
		struct st_tensor t;

		if (r || !strcmp(name, "__metadata__"))
			continue;
		wrong = read_entry(f, entry, &t);
		if (wrong) {
			r = say_bad("%s: tensor \"%s\": %s", f->path, name, wrong);
			break;
		}
		range[n].from = (size_t)(t.data - f->map) - f->data_at;
		range[n].to = range[n].from + t.nbytes;
		range[n++].name = name;
	}
	if (!r)
		r = check_ranges(f, range, n);
	free(range);
	return r;
}

/* files that are found under the names of weights */
static const char *what_is(const struct st_file *f)
{
	static const struct {
		const char *head, *text;
	} known[] = {
		{ "version https://git-lfs", ", but a pointer of Git LFS: git lfs pull gets it" },
		{ "PK\3\4", ", but one of PyTorch: convert it, do not rename it" },
		{ "\x80\x02", ", but one of PyTorch: convert it, do not rename it" },
		{ "GGUF", ", but one of llama.cpp (GGUF)" },
		{ "<", ", but HTML or XML: the download failed" },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		const size_t n = strlen(known[i].head);

		if (f->nbytes >= n && !memcmp(f->map, known[i].head, n))
			return known[i].text;
	}
	return "";
}

/* the file stays open */
static int map_file(int fd, const char *path, struct st_file **ret_f)
{
	struct st_file *f = calloc(1, sizeof(*f));
	int r = STATUS_OK;
	uint64_t n = 0;
	struct stat st;

	if (!f || !(f->path = strdup(path))) {
		free(f);
		return say_failed("out of memory");
	}
	if (fstat(fd, &st)) {
		r = say_bad("%s: %s", path, strerror(errno));
	} else if (st.st_size < 8) {
		r = say_bad("%s: not a safetensors file, or cut short: no header", path);
	} else {
		f->nbytes = (size_t)st.st_size;
		f->map = mmap(NULL, f->nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
		if (f->map == MAP_FAILED) {
			f->map = NULL;
			r = say_bad("%s: %s", path, strerror(errno));
		}
	}
	if (!r) {
		memcpy(&n, f->map, 8);
		if (n > HEADER_MAX || (f->nbytes > 8 && f->map[8] != '{'))
			r = say_bad("%s: not a safetensors file%s", path, what_is(f));
		else if (n > f->nbytes - 8)
			r = say_bad("%s: cut short within its header", path);
	}
	if (!r) {
		f->data_at = 8 + (size_t)n;
		while (n && !f->map[8 + n - 1]) /* some writers pad with NUL */
			n--;
		r = record_parse((const char *)f->map + 8, (size_t)n, path, &f->header);
	}
	if (!r)
		r = check_entries(f);
	if (r) {
		st_close(f);
		return r;
	}
	*ret_f = f;
	return STATUS_OK;
}

int st_adopt(const char *path, uint8_t *map, size_t nbytes, size_t data_at, json_t *header,
	     struct st_file **ret_f)
{
	struct st_file *f = calloc(1, sizeof(*f));
	int r;

	if (!f) {
		munmap(map, nbytes);
		json_decref(header);
		return say_failed("out of memory");
	}
	f->map = map;
	f->nbytes = nbytes;
	f->data_at = data_at;
	f->header = header;
	f->gaps = 1;
	f->path = strdup(path);
	r = f->path ? check_entries(f) : say_failed("out of memory");
	if (r)
		st_close(f);
	else
		*ret_f = f;
	return r;
}

int st_open(const char *path, struct st_file **ret_f)
{
	int fd, r = file_open(path, &fd);

	if (r)
		return r;
	r = map_file(fd, path, ret_f);
	close(fd);
	return r;
}

void st_close(struct st_file *f)
{
	if (!f)
		return;
	if (f->map)
		munmap(f->map, f->nbytes);
	json_decref(f->header);
	free(f->path);
	free(f);
}

const char *st_path(const struct st_file *f)
{
	return f->path;
}

const json_t *st_header(const struct st_file *f)
{
	return f->header;
}

const char *st_get_meta(const struct st_file *f, const char *key)
{
	return json_string_value(json_object_get(json_object_get(f->header, "__metadata__"), key));
}

int st_find(const struct st_file *f, const char *name, struct st_tensor *ret_t)
{
	const json_t *entry = json_object_get(f->header, name);

	return entry && !read_entry(f, entry, ret_t);
}

const char *st_next(const struct st_file *f, const char *name)
{
	void *it = name ? json_object_iter_at(f->header, name) : json_object_iter(f->header);

	if (it && name)
		it = json_object_iter_next(f->header, it);
	if (it && !strcmp(json_object_iter_key(it), "__metadata__"))
		it = json_object_iter_next(f->header, it);
	return it ? json_object_iter_key(it) : NULL;
}

int st_check_digest(const struct st_file *f)
{
	const char *want = st_get_meta(f, "digest");
	struct digest d = { 0 };
	char have[17];

	if (!want)
		return STATUS_OK;
	digest_add(&d, f->map + f->data_at, f->nbytes - f->data_at);
	digest_end(&d, have);
	if (strcmp(have, want))
		return say_bad("%s: damaged: its data does not match its digest", f->path);
	return STATUS_OK;
}
