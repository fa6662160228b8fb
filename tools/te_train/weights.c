/*
 * weights.c - the weights of a model in safetensors files.
 *
 * A weight of the sequence is one tensor in the file, or several: Q, K and V are separate there.
 * Models of the hub may be divided into several files, which an index lists.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/quant.h>
#include <te/seq.h>

#include "record.h"
#include "say.h"
#include "shard.h"
#include "weights.h"

/* offset of a part of a weight in the flat buffer, and its shape in the file */
struct slice {
	char name[128];
	int64_t offset, rows, cols; /* in the sequence: elements, [rows, cols] */
	int transposed;
	int ndim;
	int64_t shape[2];
};

typedef int (*slice_fn)(void *arg, const struct slice *s);

static void slice_of(const struct config *cfg, const struct te_weight_info *w,
		     const struct weight_map *map, int layer, struct slice *ret_s)
{
	const char *hash = strchr(map->hf, '#');
	struct slice s = { .ndim = te_tensor_ndim(w->master), .transposed = map->transposed };
	int64_t first;

	if (hash)
		snprintf(s.name, sizeof(s.name), "%.*s%d%s", (int)(hash - map->hf), map->hf, layer,
			 hash + 1);
	else
		snprintf(s.name, sizeof(s.name), "%s", map->hf);
	s.cols = s.ndim == 2 ? te_tensor_extent(w->master, 1) : 1;
	model_part_rows(cfg, map->part, te_tensor_extent(w->master, 0), &first, &s.rows);
	s.offset = w->offset_nelems + first * s.cols;
	s.shape[0] = s.transposed ? s.cols : s.rows;
	s.shape[1] = s.transposed ? s.rows : s.cols;
	*ret_s = s;
}

/* that of files */
static const struct model *layout(const struct model *m)
{
	return m->whole ? m->whole : m;
}

/* call fn for each tensor of the files, in the order of the sequence's weights */
static int each_slice(const struct model *divided, slice_fn fn, void *arg)
{
	const struct model *m = layout(divided);
	int r = STATUS_OK;

	for (int i = 0; i < te_seq_nweights(m->seq) && !r; i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;
		int te = te_seq_weight(m->seq, i, &w), found = 0;

		if (te < 0)
			return say_te(te, "weight %d", i);
		for (const struct weight_map *map = model_map(m->cfg.family); map->te && !r;
		     map++) {
			int layer = model_match(map->te, w.name);
			struct slice s;

			if (layer == -2)
				continue;
			slice_of(&m->cfg, &w, map, layer, &s);
			r = fn(arg, &s);
			found = 1;
		}
		if (!found)
			return say_failed("the weight %s has no name in files", w.name);
	}
	return r;
}

/* dst [cols, rows] from src [rows, cols] */
static void transpose(float *dst, const float *src, int64_t rows, int64_t cols)
{
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < cols; j++)
			dst[j * rows + i] = src[i * cols + j];
	}
}

struct saving {
	struct st_writer *w;
	const float *flat;
};

static int declare_slice(void *arg, const struct slice *s)
{
	struct saving *saving = arg;

	st_declare(saving->w, s->name, "F32", s->ndim, s->shape,
		   (size_t)(s->rows * s->cols) * sizeof(float));
	return STATUS_OK;
}

static int write_slice(void *arg, const struct slice *s)
{
	struct saving *saving = arg;
	const float *src = saving->flat + s->offset;
	size_t nbytes = (size_t)(s->rows * s->cols) * sizeof(float);
	float *turned;
	int r;

	if (!s->transposed)
		return st_write(saving->w, src, nbytes);
	turned = malloc(nbytes);
	if (!turned)
		return say_failed("%s: out of memory", s->name);
	transpose(turned, src, s->rows, s->cols);
	r = st_write(saving->w, turned, nbytes);
	free(turned);
	return r;
}

static float *flat_read(const struct te_tensor *t)
{
	size_t nbytes = te_tensor_nbytes(t);
	float *flat = malloc(nbytes);
	int r;

	if (!flat) {
		say_failed("out of memory");
		return NULL;
	}
	r = te_tensor_read(t, flat, nbytes);
	if (r < 0) {
		say_te(r, "reading weights back");
		free(flat);
		return NULL;
	}
	return flat;
}

static float *flat_zeros(const struct model *m)
{
	float *flat = calloc((size_t)te_seq_nelems(m->seq), sizeof(*flat));

	if (!flat)
		say_failed("out of memory");
	return flat;
}

int weights_write(const char *path, const struct model *m, const float *whole, char ret_digest[17])
{
	struct saving s = { 0 };
	float *flat = whole ? NULL : flat_read(te_seq_masters(m->seq));
	int r;

	if (!flat && !whole)
		return STATUS_FAILED;
	s.flat = whole ? whole : flat;
	r = st_create(path, &s.w);
	if (!r)
		r = each_slice(m, declare_slice, &s);
	if (!r)
		r = st_begin(s.w);
	if (!r)
		r = each_slice(m, write_slice, &s);
	if (!r)
		r = st_end(s.w, ret_digest);
	st_free(s.w);
	free(flat);
	return r;
}

/* ---- reading ---- */

/* the files of a model: one, or those of an index */
struct files {
	const struct st_file **file;
	size_t n;
	const char *path; /* of the file, or of the index */
};

struct loading {
	const struct files *files;
	float *flat;
	size_t nfound;
	int tied;
};

static float widen(const struct st_tensor *t, int64_t i)
{
	uint16_t half;
	float x;

	if (!strcmp(t->dtype, "F32")) {
		memcpy(&x, t->data + 4 * i, 4);
		return x;
	}
	memcpy(&half, t->data + 2 * i, 2);
	return *t->dtype == 'B' ? te_bf16_decode(half) : te_fp16_decode(half);
}

/* the file that has the tensor, or NULL */
static const struct st_file *find_name(const struct files *fs, const char *name,
				       struct st_tensor *ret_t)
{
	for (size_t i = 0; i < fs->n; i++) {
		if (st_find(fs->file[i], name, ret_t))
			return fs->file[i];
	}
	return NULL;
}

/* in GPT-2 files of the hub, names lack the prefix "transformer." */
static const struct st_file *find(const struct files *fs, const char *name, struct st_tensor *ret_t)
{
	static const char head[] = "transformer.";
	const struct st_file *f = find_name(fs, name, ret_t);

	if (f || strncmp(name, head, sizeof(head) - 1))
		return f;
	return find_name(fs, name + sizeof(head) - 1, ret_t);
}

static int check_tensor(const struct st_file *f, const struct slice *s, const struct st_tensor *t)
{
	if (strcmp(t->dtype, "F32") && strcmp(t->dtype, "BF16") && strcmp(t->dtype, "F16"))
		return say_bad("%s: tensor \"%s\" is %s; F32, BF16 and F16 are read", st_path(f),
			       s->name, t->dtype);
	if (t->ndim != s->ndim || t->shape[0] != s->shape[0] ||
	    (t->ndim == 2 && t->shape[1] != s->shape[1])) {
		return say_bad("%s: tensor \"%s\" is [%lld,%lld]; config.json makes it [%lld,%lld]",
			       st_path(f), s->name, (long long)t->shape[0],
			       (long long)(t->ndim == 2 ? t->shape[1] : 1), (long long)s->shape[0],
			       (long long)(s->ndim == 2 ? s->shape[1] : 1));
	}
	return STATUS_OK;
}

static int read_slice(void *arg, const struct slice *s)
{
	struct loading *l = arg;
	float *dst = l->flat + s->offset;
	const struct st_file *f;
	struct st_tensor t;
	int r;

	f = find(l->files, s->name, &t);
	if (!f)
		return say_bad("%s: there is no tensor \"%s\"", l->files->path, s->name);
	r = check_tensor(f, s, &t);
	if (r)
		return r;
	l->nfound++;
	for (int64_t i = 0; i < s->rows; i++) {
		for (int64_t j = 0; j < s->cols; j++)
			dst[i * s->cols + j] =
				widen(&t, s->transposed ? j * s->rows + i : i * s->cols + j);
	}
	return STATUS_OK;
}

/* tensors that other programs write although they are not weights */
static int is_harmless(const struct loading *l, const char *name)
{
	size_t n = strlen(name);

	return (l->tied && !strcmp(name, "lm_head.weight")) ||
	       (n > 10 && !strcmp(name + n - 10, ".attn.bias")) ||
	       (n > 17 && !strcmp(name + n - 17, ".attn.masked_bias")) ||
	       (n > 20 && !strcmp(name + n - 20, ".rotary_emb.inv_freq"));
}

static void count_names(const struct loading *l, size_t *ret_all, size_t *ret_others)
{
	const struct files *fs = l->files;
	const char *name = NULL;

	*ret_all = *ret_others = 0;
	for (size_t k = 0; k < fs->n; k++) {
		while ((name = st_next(fs->file[k], name))) {
			++*ret_all;
			*ret_others += (size_t)is_harmless(l, name);
		}
	}
}

static int read_files(const struct files *files, const struct model *m)
{
	struct te_tensor *masters = te_seq_masters(m->seq);
	struct loading l = { .files = files, .tied = m->cfg.tied };
	size_t n, nothers;
	int r, te;

	l.flat = m->whole ? flat_zeros(m->whole) : flat_read(masters);
	if (!l.flat)
		return STATUS_FAILED;
	r = each_slice(m, read_slice, &l);
	count_names(&l, &n, &nothers);
	if (!r && n != l.nfound + nothers)
		r = say_bad("%s: has %zu tensors that are not in the model of config.json",
			    files->path, n - l.nfound - nothers);
	if (!r && m->whole)
		r = shard_take(m, m->whole, l.flat, 0, masters);
	if (!r) {
		te = m->whole ? 0 : te_tensor_write(masters, l.flat, te_tensor_nbytes(masters));
		if (te >= 0)
			te = te_seq_weights_changed(m->seq, te_ctx_stream(te_seq_ctx(m->seq)));
		if (te < 0)
			r = say_te(te, "%s", files->path);
	}
	free(l.flat);
	return r;
}

int weights_read(const struct st_file *f, const struct model *m)
{
	const struct files one = { &f, 1, st_path(f) };

	return read_files(&one, m);
}

/* ---- indexes ---- */

struct index {
	char *path;
	json_t *obj;
	const json_t *map; /* of obj: name to file */
	struct st_file **file;
	size_t n;
};

/* opens dir/name unless it is open; ret_f: the file */
static int index_file(struct index *x, const char *dir, const char *name, struct st_file **ret_f)
{
	char path[4096];
	int r;

	if (!name || !*name || strchr(name, '/'))
		return say_bad("%s: the name of a file is no name in its folder", x->path);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	for (size_t i = 0; i < x->n; i++) {
		*ret_f = x->file[i];
		if (!strcmp(st_path(x->file[i]), path))
			return STATUS_OK;
	}
	r = st_open(path, &x->file[x->n]);
	if (r)
		return r;
	*ret_f = x->file[x->n++];
	return st_check_digest(*ret_f);
}

/* each tensor is in the file that the index names, and the index names all of them */
static int index_open(struct index *x, const char *dir)
{
	size_t nnames = 0, nthere = 0;
	struct record_reader rd;
	const char *name;
	json_t *v;
	int r = record_load(x->path, &x->obj);

	rd = (struct record_reader){ x->obj, x->path, r };
	x->map = record_get_object(&rd, "weight_map");
	if (rd.status)
		return rd.status;
	x->file = calloc(json_object_size(x->map) + 1, sizeof(*x->file));
	if (!x->file)
		return say_failed("%s: out of memory", x->path);
	json_object_foreach((json_t *)(uintptr_t)x->map, name, v)
	{
		struct st_file *f = NULL;
		struct st_tensor t;

		r = index_file(x, dir, json_string_value(v), &f);
		if (r)
			return r;
		if (!st_find(f, name, &t))
			return say_bad("%s: there is no tensor \"%s\", which %s names", st_path(f),
				       name, x->path);
		nnames++;
	}
	for (size_t k = 0; k < x->n; k++)
		for (name = NULL; (name = st_next(x->file[k], name));)
			nthere++;
	if (nthere != nnames)
		return say_bad("%s: names %zu tensors, its files have %zu", x->path, nnames,
			       nthere);
	return STATUS_OK;
}

static int read_index(const char *dir, char *path, const struct model *m)
{
	struct index x = { .path = path };
	int r = index_open(&x, dir);
	const struct files files = { (const struct st_file **)x.file, x.n, path };

	if (!r)
		r = read_files(&files, m);
	for (size_t i = 0; i < x.n; i++)
		st_close(x.file[i]);
	free(x.file);
	json_decref(x.obj);
	return r;
}

static int read_single(const char *path, const struct model *m)
{
	struct st_file *f = NULL;
	int r = st_open(path, &f);

	if (!r)
		r = st_check_digest(f);
	if (!r)
		r = weights_read(f, m);
	st_close(f);
	return r;
}

int weights_read_folder(const char *dir, const struct model *m)
{
	char single[4096], index[4112];

	snprintf(single, sizeof(single), "%s/model.safetensors", dir);
	snprintf(index, sizeof(index), "%s.index.json", single);
	if (access(single, F_OK) && !access(index, F_OK))
		return read_index(dir, index, m);
	return read_single(single, m);
}
