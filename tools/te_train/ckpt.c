/*
 * ckpt.c - checkpoints.
 *
 * Three files cannot be replaced atomically. All are first completed under ".new" names. Renaming
 * state.safetensors commits the checkpoint: it has the digest of the weights that belong to it. A
 * crash after that leaves model.safetensors.new, which the next use of the folder recognises by
 * the digest and renames.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/quant.h>
#include <te/seq.h>

#include "ckpt.h"
#include "safetensors.h"
#include "say.h"

#define FORMAT 1 /* of state.safetensors */

static char *path_in(const char *dir, const char *file)
{
	char *path;

	return asprintf(&path, "%s/%s", dir, file) < 0 ? NULL : path;
}

int ckpt_folder(const char *dir)
{
	char *path = strdup(dir);
	int r = STATUS_OK;

	if (!path)
		return say_failed("out of memory");
	for (char *p = path + 1; !r; p++) {
		char c = *p;

		if (c != '/' && c)
			continue;
		*p = '\0';
		if (mkdir(path, 0777) && errno != EEXIST)
			r = say_bad("%s: %s", path, strerror(errno));
		*p = c;
		if (!c)
			break;
	}
	free(path);
	if (!r && access(dir, W_OK | X_OK))
		r = say_bad("%s: %s", dir, strerror(errno));
	return r;
}

/* ---- weights ---- */

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

/* call fn for each tensor of the files, in the order of the sequence's weights */
static int each_slice(const struct model *m, slice_fn fn, void *arg)
{
	int r = STATUS_OK;

	for (int i = 0; i < te_seq_nweights(m->seq) && !r; i++) {
		struct te_weight_info w = { .size = sizeof(w) };
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
		return say_failed("out of memory");
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

static int write_model(const char *path, const struct model *m, char ret_digest[17])
{
	struct saving s = { 0 };
	float *flat = flat_read(te_seq_masters(m->seq));
	int r;

	if (!flat)
		return STATUS_FAILED;
	s.flat = flat;
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

static int write_config(const char *path, const struct model *m)
{
	json_t *obj = config_to_json(&m->cfg);
	char *text = json_dumps(obj, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	char file[4096];
	FILE *f;
	int ok;

	json_decref(obj);
	snprintf(file, sizeof(file), "%s.new", path);
	f = text ? fopen(file, "w") : NULL;
	ok = f && fprintf(f, "%s\n", text) > 0 && !fflush(f) && !fsync(fileno(f));
	if (f && fclose(f))
		ok = 0;
	free(text);
	if (ok)
		return STATUS_OK;
	unlink(file);
	return say_bad("%s: %s; nothing was replaced", file, strerror(errno));
}

/* rename path.new to path */
static int commit(const char *path)
{
	char file[4096];

	snprintf(file, sizeof(file), "%s.new", path);
	if (rename(file, path))
		return say_bad("%s: %s", path, strerror(errno));
	return STATUS_OK;
}

static int sync_folder(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int bad = fd < 0 || fsync(fd);
	int err = errno;

	if (fd >= 0)
		close(fd);
	return bad ? say_bad("%s: %s", dir, strerror(err)) : STATUS_OK;
}

static void drop(const char *path)
{
	char file[4096];

	snprintf(file, sizeof(file), "%s.new", path);
	unlink(file);
}

/* ---- state ---- */

struct blob {
	const char *name, *dtype;
	void *data;
	size_t nbytes;
};

static json_t *run_to_json(const struct model *m, json_t *options, const struct progress *p,
			   const char *digest, int *ret_r)
{
	uint64_t seed = 0, offset = 0;

	*ret_r = te_seq_rng_get(m->seq, &seed, &offset);
	return json_pack("{s:i,s:s,s:I,s:o,s:I,s:I,s:I,s:I,s:I,s:O}", "format", FORMAT,
			 "model_digest", digest, "step", (json_int_t)p->step, "best_val_nats",
			 isinf(p->best_val) ? json_null() : json_real(p->best_val), "best_step",
			 (json_int_t)p->best_step, "train_tokens", (json_int_t)p->ntrain,
			 "val_tokens", (json_int_t)p->nval, "rng_seed", (json_int_t)seed,
			 "rng_offset", (json_int_t)offset, "options", options);
}

static int write_blobs(const char *path, const struct blob *blob, int n)
{
	struct st_writer *w = NULL;
	char digest[17];
	int r = st_create(path, &w);

	for (int i = 0; i < n && !r; i++) {
		int64_t extent = (int64_t)(blob[i].nbytes / (*blob[i].dtype == 'F' ? 4 : 1));

		st_declare(w, blob[i].name, blob[i].dtype, 1, &extent, blob[i].nbytes);
	}
	if (!r)
		r = st_begin(w);
	for (int i = 0; i < n && !r; i++)
		r = st_write(w, blob[i].data, blob[i].nbytes);
	if (!r)
		r = st_end(w, digest);
	st_free(w);
	return r;
}

static int write_state(const char *path, const struct model *m, struct te_adamw *opt,
		       json_t *options, const struct progress *p, const char *digest)
{
	struct te_quant *q = te_seq_quant(m->seq);
	struct te_tensor *tm = te_adamw_m(opt), *tv = te_adamw_v(opt);
	struct blob blob[] = {
		{ "run", "U8", NULL, 0 },
		{ "adamw.state", "U8", NULL, te_adamw_state_nbytes() },
		{ "adamw.m", "F32", NULL, te_tensor_nbytes(tm) },
		{ "adamw.v", "F32", NULL, te_tensor_nbytes(tv) },
		{ "quant", "U8", NULL, q ? te_quant_nbytes(q) : 0 },
	};
	int n = q ? 5 : 4, r = STATUS_OK, te = 0;
	json_t *run = run_to_json(m, options, p, digest, &te);

	blob[0].data = json_dumps(run, JSON_COMPACT | JSON_REAL_PRECISION(17));
	blob[0].nbytes = blob[0].data ? strlen(blob[0].data) : 0;
	json_decref(run);
	for (int i = 1; i < n; i++)
		blob[i].data = malloc(blob[i].nbytes);
	for (int i = 0; i < n; i++) {
		if (!blob[i].data)
			r = say_failed("out of memory");
	}
	if (!r) {
		if (te >= 0)
			te = te_adamw_state_get(opt, blob[1].data, blob[1].nbytes);
		if (te >= 0)
			te = te_tensor_read(tm, blob[2].data, blob[2].nbytes);
		if (te >= 0)
			te = te_tensor_read(tv, blob[3].data, blob[3].nbytes);
		if (te >= 0 && q)
			te = te_quant_save(q, blob[4].data, blob[4].nbytes);
		if (te < 0)
			r = say_te(te, "reading the optimizer's state");
	}
	if (!r)
		r = write_blobs(path, blob, n);
	for (int i = 0; i < 5; i++)
		free(blob[i].data);
	return r;
}

/* opt NULL: no state */
static int save(const char *dir, const struct model *m, struct te_adamw *opt, json_t *options,
		const struct progress *p)
{
	char *config = path_in(dir, "config.json"), *model = path_in(dir, "model.safetensors");
	char *state = path_in(dir, "state.safetensors"), digest[17];
	int r = config && model && state ? ckpt_folder(dir) : say_failed("out of memory");

	if (!r)
		r = write_config(config, m);
	if (!r)
		r = write_model(model, m, digest);
	if (!r && opt)
		r = write_state(state, m, opt, options, p, digest);
	if (r && config && model && state) {
		drop(config);
		drop(model);
		drop(state);
	}
	if (!r)
		r = commit(config);
	if (!r && opt)
		r = commit(state);
	if (!r)
		r = commit(model);
	if (!r)
		r = sync_folder(dir);
	free(config);
	free(model);
	free(state);
	return r;
}

int ckpt_save(const char *dir, const struct model *m, struct te_adamw *opt, json_t *options,
	      const struct progress *p)
{
	return save(dir, m, opt, options, p);
}

int ckpt_save_weights(const char *dir, const struct model *m)
{
	return save(dir, m, NULL, NULL, NULL);
}

/* ---- loading ---- */

static int open_in(const char *dir, const char *name, struct st_file **ret_f)
{
	char *path = path_in(dir, name);
	int r = path ? st_open(path, ret_f) : say_failed("out of memory");

	free(path);
	if (r)
		return r;
	r = st_check_digest(*ret_f);
	if (r) {
		st_close(*ret_f);
		*ret_f = NULL;
	}
	return r;
}

static int open_state(const char *dir, struct st_file **ret_f, json_t **ret_run)
{
	struct st_file *f = NULL;
	struct st_tensor t;
	json_t *run = NULL;
	int r = open_in(dir, "state.safetensors", &f);

	if (r)
		return r;
	if (st_find(f, "run", &t))
		run = json_loadb((const char *)t.data, t.nbytes, 0, NULL);
	if (!json_is_object(run) || !json_is_object(json_object_get(run, "options")))
		r = say_bad("%s: not a te_train checkpoint", st_path(f));
	else if (json_integer_value(json_object_get(run, "format")) != FORMAT)
		r = say_bad("%s: a checkpoint with another format version", st_path(f));
	if (r) {
		json_decref(run);
		st_close(f);
		return r;
	}
	*ret_f = f;
	*ret_run = run;
	return STATUS_OK;
}

int ckpt_options(const char *dir, json_t **ret_options)
{
	struct st_file *f = NULL;
	json_t *run = NULL;
	int r = open_state(dir, &f, &run);

	if (r)
		return r;
	*ret_options = json_incref(json_object_get(run, "options"));
	json_decref(run);
	st_close(f);
	return STATUS_OK;
}

struct loading {
	const struct st_file *f;
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

/* in GPT-2 files of the hub, names lack the prefix "transformer." */
static int find(const struct st_file *f, const char *name, struct st_tensor *ret_t)
{
	static const char head[] = "transformer.";

	if (st_find(f, name, ret_t))
		return 1;
	return !strncmp(name, head, sizeof(head) - 1) && st_find(f, name + sizeof(head) - 1, ret_t);
}

static int read_slice(void *arg, const struct slice *s)
{
	struct loading *l = arg;
	struct st_tensor t;
	float *dst = l->flat + s->offset;

	if (!find(l->f, s->name, &t))
		return say_bad("%s: there is no tensor \"%s\"", st_path(l->f), s->name);
	if (strcmp(t.dtype, "F32") && strcmp(t.dtype, "BF16") && strcmp(t.dtype, "F16"))
		return say_bad("%s: tensor \"%s\" is %s; F32, BF16 and F16 are read", st_path(l->f),
			       s->name, t.dtype);
	if (t.ndim != s->ndim || t.shape[0] != s->shape[0] ||
	    (t.ndim == 2 && t.shape[1] != s->shape[1])) {
		return say_bad("%s: tensor \"%s\" is [%lld,%lld]; config.json makes it [%lld,%lld]",
			       st_path(l->f), s->name, (long long)t.shape[0],
			       (long long)(t.ndim == 2 ? t.shape[1] : 1), (long long)s->shape[0],
			       (long long)(s->ndim == 2 ? s->shape[1] : 1));
	}
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

static int load_weights(const struct st_file *f, const struct model *m)
{
	struct te_tensor *masters = te_seq_masters(m->seq);
	struct loading l = { .f = f, .tied = m->cfg.tied };
	const char *name;
	size_t nothers = 0, n = 0;
	int r, te;

	l.flat = flat_read(masters);
	if (!l.flat)
		return STATUS_FAILED;
	r = each_slice(m, read_slice, &l);
	for (; !r && (name = st_name(f, n)); n++)
		nothers += (size_t)is_harmless(&l, name);
	if (!r && n != l.nfound + nothers)
		r = say_bad("%s: has %zu tensors that are not in the model of config.json",
			    st_path(f), n - l.nfound - nothers);
	if (!r) {
		te = te_tensor_write(masters, l.flat, te_tensor_nbytes(masters));
		if (te >= 0)
			te = te_seq_weights_changed(m->seq, te_ctx_stream(te_seq_ctx(m->seq)));
		if (te < 0)
			r = say_te(te, "%s", st_path(f));
	}
	free(l.flat);
	return r;
}

int ckpt_load_weights(const char *dir, const struct model *m)
{
	struct st_file *f = NULL;
	int r = open_in(dir, "model.safetensors", &f);

	if (!r)
		r = load_weights(f, m);
	st_close(f);
	return r;
}

/* the weights that belong to the state; after a crash they may not have been renamed yet */
static int finish_rename(const char *dir, const char *digest)
{
	char *path = path_in(dir, "model.safetensors"),
	     *fresh = path_in(dir, "model.safetensors.new");
	struct st_file *f = NULL;
	const char *have;
	int r = STATUS_OK, fits = 0;

	if (!path || !fresh)
		r = say_failed("out of memory");
	say_hush(1); /* errors in files of an incomplete save do not matter */
	if (!r && !access(fresh, R_OK) && !st_open(fresh, &f)) {
		have = st_get_meta(f, "digest");
		fits = have && !strcmp(have, digest) && !st_check_digest(f);
	}
	say_hush(0);
	if (fits)
		r = commit(path);
	st_close(f);
	free(path);
	free(fresh);
	return r;
}

static int get_blob(const struct st_file *f, const char *name, const char *dtype, size_t nbytes,
		    struct st_tensor *ret_t)
{
	if (!st_find(f, name, ret_t) || strcmp(ret_t->dtype, dtype))
		return say_bad("%s: there is no \"%s\"", st_path(f), name);
	if (ret_t->nbytes != nbytes)
		return say_bad("%s: \"%s\" has %zu bytes; this model makes %zu", st_path(f), name,
			       ret_t->nbytes, nbytes);
	return STATUS_OK;
}

static int load_state(const struct st_file *f, const struct model *m, struct te_adamw *opt,
		      const char *recipe)
{
	struct te_quant *q = te_seq_quant(m->seq);
	struct te_tensor *tm = te_adamw_m(opt), *tv = te_adamw_v(opt);
	struct st_tensor s, vm, vv, vq;
	int te, r = get_blob(f, "adamw.state", "U8", te_adamw_state_nbytes(), &s);

	if (!r)
		r = get_blob(f, "adamw.m", "F32", te_tensor_nbytes(tm), &vm);
	if (!r)
		r = get_blob(f, "adamw.v", "F32", te_tensor_nbytes(tv), &vv);
	if (r)
		return r;
	te = te_adamw_state_set(opt, s.data, s.nbytes);
	if (te >= 0)
		te = te_tensor_write(tm, vm.data, vm.nbytes);
	if (te >= 0)
		te = te_tensor_write(tv, vv.data, vv.nbytes);
	/* with another recipe than the checkpoint's, start with new quantizers */
	if (te >= 0 && q && recipe && !strcmp(recipe, te_recipe_name(te_quant_recipe(q))) &&
	    st_find(f, "quant", &vq))
		te = te_quant_load(q, vq.data, vq.nbytes);
	return te < 0 ? say_te(te, "%s", st_path(f)) : STATUS_OK;
}

static int64_t get_int(const json_t *run, const char *key)
{
	return json_integer_value(json_object_get(run, key));
}

int ckpt_load(const char *dir, const struct model *m, struct te_adamw *opt, struct progress *ret_p)
{
	struct st_file *state = NULL, *weights = NULL;
	const char *digest, *have, *recipe;
	struct progress p = { 0 };
	const json_t *best;
	json_t *run = NULL;
	int te, r = open_state(dir, &state, &run);

	if (r)
		return r;
	digest = json_string_value(json_object_get(run, "model_digest"));
	digest = digest ? digest : "";
	recipe = json_string_value(json_object_get(json_object_get(run, "options"), "recipe"));
	r = finish_rename(dir, digest);
	if (!r)
		r = open_in(dir, "model.safetensors", &weights);
	if (!r) {
		have = st_get_meta(weights, "digest");
		if (!have || strcmp(have, digest))
			r = say_bad("%s: not the weights that %s belongs to", st_path(weights),
				    st_path(state));
	}
	if (!r)
		r = load_weights(weights, m);
	if (!r && opt)
		r = load_state(state, m, opt, recipe);
	if (!r) {
		te = te_seq_rng_set(m->seq, (uint64_t)get_int(run, "rng_seed"),
				    (uint64_t)get_int(run, "rng_offset"));
		if (te < 0)
			r = say_te(te, "%s", st_path(state));
	}
	best = json_object_get(run, "best_val_nats");
	p.step = get_int(run, "step");
	p.best_val = json_is_number(best) ? json_number_value(best) : INFINITY;
	p.best_step = get_int(run, "best_step");
	p.ntrain = get_int(run, "train_tokens");
	p.nval = get_int(run, "val_tokens");
	json_decref(run);
	st_close(weights);
	st_close(state);
	if (!r)
		*ret_p = p;
	return r;
}
