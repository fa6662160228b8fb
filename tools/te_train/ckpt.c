/* ckpt.c - checkpoints: the state of a run to and from files. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include <te/errno.h>
#include <te/quant.h>
#include <te/seq.h>

#include "ckpt_files.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/shard.h"
#include "tools/lib/weights.h"

/* ---- models that ranks divide ---- */

/* part: the moment of this rank's weights, or NULL: the optimizer has it */
static int gather_moment(const struct model *m, struct te_adamw *opt, int second, const void *part,
			 float **ret_flat)
{
	const int64_t n = te_seq_grad_nelems(m->seq);
	struct te_tensor *t = NULL;
	int te, r;

	if (!part)
		return shard_gather(m, second ? te_adamw_v(opt) : te_adamw_m(opt), 1, ret_flat);
	te = te_tensor_create(te_seq_ctx(m->seq), TE_DTYPE_FP32, 1, &n, NULL, &t);
	if (te >= 0)
		te = te_tensor_write(t, part, (size_t)n * sizeof(float));
	r = te < 0 ? say_te(te, "the moments of a rank") : shard_gather(m, t, 1, ret_flat);
	te_tensor_unref(t);
	return r;
}

int ckpt_gather(const struct model *m, struct te_adamw *opt, struct ckpt_flat *flat)
{
	float *tm = NULL, *tv = NULL;
	int r = shard_gather(m, te_seq_masters(m->seq), 0, &flat->weights);

	if (!r && opt)
		r = gather_moment(m, opt, 0, flat->m, &tm);
	if (!r && opt)
		r = gather_moment(m, opt, 1, flat->v, &tv);
	free(flat->m);
	free(flat->v);
	flat->m = tm;
	flat->v = tv;
	if (r)
		ckpt_flat_free(flat);
	return r;
}

void ckpt_flat_free(struct ckpt_flat *flat)
{
	void *const at[] = { flat->weights, flat->m, flat->v };

	for (int i = 0; i < 3; i++) {
		if (flat->device)
			te_mem_free(te_ctx_stream(flat->device), at[i]);
		else
			free(at[i]);
	}
	memset(flat, 0, sizeof(*flat));
}

/* the quantizers of the whole model: a new reference, or NULL if there are none */
static int quant_of(const struct model *m, struct te_quant **ret_q)
{
	struct te_quant *q = te_seq_quant(m->seq);

	*ret_q = NULL;
	if (q && m->whole)
		return shard_quant_whole(m, q, ret_q);
	*ret_q = te_quant_ref(q);
	return STATUS_OK;
}

/* bytes of all weights that are saved in FP32, with padding */
static size_t weights_nbytes(const struct model *m)
{
	return (size_t)weights_nelems(m) * sizeof(float);
}

/* elements of a moment of all weights */
static int64_t moment_nelems(const struct model *m)
{
	const struct model *whole = m->whole ? m->whole : m;

	return te_seq_grad_nelems(whole->seq);
}

int ckpt_gather_moments(const struct model *m, struct te_adamw *opt, int keep,
			struct ckpt_flat *ret_flat)
{
	const int64_t n = te_seq_grad_nelems(m->seq);
	const size_t nbytes = te_moments_nbytes(te_adamw_moments(opt), n) + 1;
	void *moment[2] = { NULL, NULL };
	int te = 0;

	/* without memory, this rank takes part too: the others wait for it */
	for (int i = 0; i < 2; i++)
		moment[i] = keep ? malloc(nbytes) : NULL;
	for (int i = 0; i < 2 && te >= 0; i++)
		te = te_adamw_moments_get(opt, i, moment[i]);
	if (te >= 0 && keep && (!moment[0] || !moment[1]))
		te = -ENOMEM;
	ret_flat->m = moment[0];
	ret_flat->v = moment[1];
	return te < 0 ? say_te(te, "reading the moments") : STATUS_OK;
}

/* ---- state ---- */

struct blob {
	const char *name, *dtype;
	const void *data;
	size_t nbytes;
	int is_flat; /* a buffer of the copy's flat */
};

/* all of a checkpoint */
struct ckpt_copy {
	struct ckpt_flat flat;
	enum te_moments moments;
	void *adamw, *quant;
	size_t nquant; /* bytes */
	uint64_t seed, offset;
	struct progress p;
	json_t *options, *config;
};

/* digests: digests of the files of parts, or NULL */
static json_t *run_to_json(const struct ckpt_copy *c, const char *digest, json_t *digests)
{
	const struct progress *p = &c->p;
	struct record rec;

	record_begin(&rec);
	record_int(&rec, "format", CKPT_FORMAT);
	record_text(&rec, "model_digest", digest);
	record_int(&rec, "step", p->step);
	record_real(&rec, "best_val_nats", p->best_val);
	record_int(&rec, "best_step", p->best_step);
	record_int(&rec, "eval_step", p->eval_step);
	record_text(&rec, "data_digest", p->data_digest);
	record_int(&rec, "train_tokens", p->ntrain);
	record_int(&rec, "val_tokens", p->nval);
	record_int(&rec, "drawn_windows", p->drawn);
	record_int(&rec, "window_tokens", p->window);
	if (p->chunked) {
		record_int(&rec, "chunks_epoch", p->chunks.epoch);
		record_int(&rec, "chunks_group", p->chunks.group);
		record_int(&rec, "chunks_first_window", p->chunks.first);
	}
	record_int(&rec, "rng_seed", (int64_t)c->seed);
	record_int(&rec, "rng_offset", (int64_t)c->offset);
	if (digests) {
		record_int(&rec, "parts", c->flat.part.n);
		record_int(&rec, "part_digits", c->flat.part.digits);
		record_put(&rec, "part_digests", json_incref(digests));
	}
	record_put(&rec, "options", json_incref(c->options));
	record_put(&rec, "config", json_incref(c->config));
	return record_end(&rec, STATE_ST);
}

/* a copy of device memory in host memory, in the thread that saves; NULL, after a message */
static void *to_host(struct te_ctx *ctx, const void *src, size_t nbytes)
{
	enum { PIECE = 8 << 20 };
	struct te_stream *stream = NULL;
	char *dst = malloc(nbytes);
	void *piece = NULL;
	int r = dst ? te_stream_create(ctx, &stream) : -ENOMEM;

	if (r >= 0)
		r = te_pinned_alloc(ctx, PIECE, &piece);
	for (size_t at = 0; at < nbytes && r >= 0; at += PIECE) {
		const size_t n = nbytes - at < PIECE ? nbytes - at : PIECE;

		r = te_copy(stream, piece, (const char *)src + at, n);
		if (r >= 0)
			r = te_stream_sync(stream);
		if (r >= 0)
			memcpy(dst + at, piece, n);
	}
	te_pinned_free(ctx, piece);
	te_stream_unref(stream);
	if (r >= 0)
		return dst;
	say_te(r, "copying the checkpoint from the device");
	free(dst);
	return NULL;
}

/* a buffer of flat, or its copy in host memory, which the caller frees by release() */
static const void *borrow(const struct ckpt_flat *flat, const void *at, size_t nbytes)
{
	return flat && flat->device && at ? to_host(flat->device, at, nbytes) : at;
}

static void release(const struct ckpt_flat *flat, const void *at)
{
	if (flat && flat->device)
		free((void *)(uintptr_t)at);
}

static int write_blob(struct st_writer *w, const struct blob *b, const struct ckpt_flat *flat)
{
	const void *data;
	int r;

	if (!b->is_flat || !b->nbytes)
		return st_write(w, b->data, b->nbytes);
	data = borrow(flat, b->data, b->nbytes);
	r = data ? st_write(w, data, b->nbytes) : STATUS_FAILED;
	release(flat, data);
	return r;
}

/* blobs without bytes are left out */
static int write_blobs(const struct folder *dir, const char *name, const struct ckpt_flat *flat,
		       const struct blob *blob, int n)
{
	struct st_writer *w = NULL;
	char digest[17];
	int r = st_create(dir, name, &w);

	for (int i = 0; i < n && !r; i++) {
		const size_t size = *blob[i].dtype == 'F' ? 4 : *blob[i].dtype == 'B' ? 2 : 1;
		const int64_t extent = (int64_t)(blob[i].nbytes / size);

		if (extent)
			st_declare(w, blob[i].name, blob[i].dtype, 1, &extent, blob[i].nbytes);
	}
	if (!r)
		r = st_begin(w);
	for (int i = 0; i < n && !r; i++)
		r = write_blob(w, &blob[i], flat);
	if (!r)
		r = st_end(w, digest);
	st_free(w);
	return r;
}

/* names: weights, if model files have rounded ones, and moments; the last blobs of a file */
static void set_flat_blobs(const struct model *m, const struct ckpt_copy *c, struct blob blob[3])
{
	const struct ckpt_flat *f = &c->flat;
	const char *type = ckpt_moments_types[c->moments];
	const size_t nmoment = te_moments_nbytes(c->moments,
						 f->part.n ? f->nmoment : moment_nelems(m));
	const size_t nweights = f->part.n ? (size_t)f->n * sizeof(float) : weights_nbytes(m);
	const size_t rounded = m->cfg.saved == TE_DTYPE_FP32 ? 0 : nweights;

	blob[0] = (struct blob){ "adamw.m", type, f->m, nmoment, 1 };
	blob[1] = (struct blob){ "adamw.v", type, f->v, nmoment, 1 };
	blob[2] = (struct blob){ "weights", "F32", f->weights, rounded, 1 };
}

static int write_state(const struct folder *dir, const struct model *m, const struct ckpt_copy *c,
		       json_t *run)
{
	char *text = record_to_text(run, JSON_COMPACT | JSON_REAL_PRECISION(17), STATE_ST);
	struct blob blob[6] = {
		{ "run", "U8", text, text ? strlen(text) : 0, 0 },
		{ "adamw.state", "U8", c->adamw, te_adamw_state_nbytes(), 0 },
		{ "quant", "U8", c->quant, c->nquant, 0 },
	};
	int r = STATUS_FAILED;

	set_flat_blobs(m, c, blob + 3);
	if (text)
		r = write_blobs(dir, STATE_ST, &c->flat, blob, c->flat.part.n ? 3 : 6);
	free(text);
	return r;
}

/* all files as .new; c NULL: no state, and weights from flat or the model */
static int write_fresh(const struct folder *dir, const struct model *m,
		       const struct ckpt_flat *flat, const struct ckpt_copy *c)
{
	json_t *config = c ? json_incref(c->config) : config_to_json(&m->cfg), *run = NULL;
	json_t *digests = NULL; /* digests of the files of parts */
	json_t *adapter = m->cfg.lora.rank ? weights_adapter(m) : NULL;
	int r = config && !adapter == !m->cfg.lora.rank ? STATUS_OK : STATUS_FAILED;
	char name[64], digest[17];
	const float *weights = NULL;

	if (!r)
		r = record_save(dir, ckpt_fresh_name(CONFIG_JSON, name), config);
	if (!r && adapter)
		r = record_save(dir, ckpt_fresh_name(ADAPTER_JSON, name), adapter);
	if (!r && c && c->flat.part.n)
		r = ckpt_write_index(dir, &c->flat.part, &digests, digest);
	if (!r && c && !digests) {
		weights = borrow(&c->flat, c->flat.weights, weights_nbytes(m));
		r = weights ? STATUS_OK : STATUS_FAILED;
	}
	if (!r && !digests)
		r = weights_write(dir, weights_file(m), m, c ? weights : flat->weights, digest);
	if (c)
		release(&c->flat, weights);
	if (!r && c) {
		run = run_to_json(c, digest, digests);
		r = run ? write_state(dir, m, c, run) : STATUS_FAILED;
	}
	json_decref(run);
	json_decref(digests);
	json_decref(adapter);
	json_decref(config);
	return r;
}

/* ---- copies ---- */

int ckpt_gather_weights(const struct model *m, int keep, struct ckpt_flat *flat)
{
	const int64_t n = weights_nelems(m);
	int te;

	/* without memory, this rank takes part too: the others wait for it */
	flat->weights = keep ? malloc((size_t)n * sizeof(float) + 1) : NULL;
	te = te_seq_masters_get(m->seq, 0, n, flat->weights);
	if (te >= 0 && keep && !flat->weights)
		te = -ENOMEM;
	return te < 0 ? say_te(te, "reading weights") : STATUS_OK;
}

/*
 * Copies within a device take milliseconds. Not 0, and flat is empty, if there is no memory for
 * them, or if weights and moments are stored otherwise or in a file.
 */
static int copy_on_device(const struct model *m, struct te_adamw *opt, struct ckpt_flat *flat)
{
	const size_t nmoment = te_moments_nbytes(te_adamw_moments(opt), moment_nelems(m));
	struct te_tensor *const from[] = { te_seq_masters(m->seq), te_adamw_m(opt),
					   te_adamw_v(opt) };
	const size_t nbytes[] = { weights_nbytes(m), nmoment, nmoment };
	struct te_stream *stream = te_ctx_stream(te_seq_ctx(m->seq));
	void *at[3] = { NULL, NULL, NULL };
	int r = 0;

	if (!strcmp(te_ctx_backend(te_seq_ctx(m->seq)), "host") || m->whole || !from[1] ||
	    te_tensor_dtype(from[0]) != TE_DTYPE_FP32)
		return -EOPNOTSUPP;
	for (int i = 0; i < 3 && r >= 0; i++) {
		r = te_tensor_nbytes(from[i]) == nbytes[i] ? 0 : -EOPNOTSUPP;
		if (r >= 0)
			r = te_mem_alloc(stream, nbytes[i], &at[i]);
		if (r >= 0)
			r = te_copy(stream, at[i], te_tensor_data(from[i]), nbytes[i]);
	}
	if (r >= 0)
		r = te_stream_sync(stream);
	*flat = (struct ckpt_flat){ .weights = at[0], .m = at[1], .v = at[2],
				     .device = te_seq_ctx(m->seq) };
	if (r < 0)
		ckpt_flat_free(flat);
	return r;
}

static int read_states(const struct model *m, struct te_adamw *opt, struct ckpt_copy *c)
{
	struct te_quant *q;
	int te, r = quant_of(m, &q);

	if (r)
		return r;
	c->nquant = q ? te_quant_nbytes(q) : 0;
	c->quant = malloc(c->nquant + 1);
	c->adamw = malloc(te_adamw_state_nbytes());
	te = c->quant && c->adamw ? te_adamw_state_get(opt, c->adamw, te_adamw_state_nbytes()) :
				    -ENOMEM;
	if (te >= 0 && q)
		te = te_quant_save(q, c->quant, c->nquant);
	if (te >= 0)
		te = te_seq_rng_get(m->seq, &c->seed, &c->offset);
	te_quant_unref(q);
	return te < 0 ? say_te(te, "reading the optimizer's state") : STATUS_OK;
}

int ckpt_take(const struct model *m, struct te_adamw *opt, struct ckpt_flat *flat,
	      const json_t *options, const struct progress *p, struct ckpt_copy **ret_copy)
{
	const int has_weights = flat->weights != NULL, has_moments = flat->m != NULL;
	struct ckpt_copy *c = calloc(1, sizeof(*c));
	json_t *config = config_to_json(&m->cfg);
	int r = c && config && options ? STATUS_OK : STATUS_FAILED, copied;

	if (!c)
		say_failed("out of memory");
	if (c) {
		c->flat = *flat;
		memset(flat, 0, sizeof(*flat));
		c->moments = te_adamw_moments(opt);
		c->p = *p;
		/* nothing of them is shared with other threads */
		c->options = json_deep_copy(options);
		c->config = json_deep_copy(config);
		if (!r && (!c->options || !c->config))
			r = say_failed("out of memory");
	}
	json_decref(config);
	copied = !r && !has_weights && !has_moments && !copy_on_device(m, opt, &c->flat);
	if (!r && !has_weights && !copied)
		r = ckpt_gather_weights(m, 1, &c->flat);
	if (!r && !has_moments && !copied)
		r = ckpt_gather_moments(m, opt, 1, &c->flat);
	if (!r)
		r = read_states(m, opt, c);
	if (r)
		ckpt_copy_free(c);
	else
		*ret_copy = c;
	return r;
}

void ckpt_copy_free(struct ckpt_copy *c)
{
	if (!c)
		return;
	ckpt_flat_free(&c->flat);
	free(c->adamw);
	free(c->quant);
	json_decref(c->options);
	json_decref(c->config);
	free(c);
}

int64_t ckpt_copy_step(const struct ckpt_copy *c)
{
	return c ? c->p.step : -1;
}

int ckpt_copy_send(struct ckpt_copy *c, const struct model *m, int root,
		   int (*send)(void *arg, void *p, size_t nbytes), void *arg)
{
	const size_t nmoment = te_moments_nbytes(c->moments, moment_nelems(m));
	const size_t nquant = c->nquant;
	int r = send(arg, &c->nquant, sizeof(c->nquant));

	if (!r && !root && c->nquant != nquant) {
		free(c->quant);
		c->quant = malloc(c->nquant + 1);
		r = c->quant ? STATUS_OK : say_failed("out of memory");
	}
	if (!r)
		r = send(arg, c->quant, c->nquant);
	if (!r)
		r = send(arg, c->adamw, te_adamw_state_nbytes());
	if (!r)
		r = send(arg, &c->seed, sizeof(c->seed));
	if (!r)
		r = send(arg, &c->offset, sizeof(c->offset));
	if (!r)
		r = send(arg, &c->p, sizeof(c->p));
	if (!r)
		r = send(arg, c->flat.weights, weights_nbytes(m));
	if (!r)
		r = send(arg, c->flat.m, nmoment);
	return r ? r : send(arg, c->flat.v, nmoment);
}

int ckpt_copy_load(const struct ckpt_copy *c, const struct model *m, struct te_adamw *opt,
		   struct progress *ret_p)
{
	struct te_quant *q = te_seq_quant(m->seq);
	int te = te_seq_masters_set(m->seq, 0, weights_nelems(m), c->flat.weights);

	if (te >= 0)
		te = te_adamw_state_set(opt, c->adamw, te_adamw_state_nbytes());
	if (te >= 0)
		te = te_adamw_moments_set(opt, 0, c->flat.m);
	if (te >= 0)
		te = te_adamw_moments_set(opt, 1, c->flat.v);
	if (te >= 0 && q)
		te = te_quant_load(q, c->quant, c->nquant);
	if (te >= 0)
		te = te_seq_rng_set(m->seq, c->seed, c->offset);
	if (te < 0)
		return say_te(te, "the copy of step %lld", (long long)c->p.step);
	*ret_p = c->p;
	return STATUS_OK;
}

int ckpt_check_room(const char *path, const struct model *m, enum te_moments moments)
{
	/* without quantizers and the text of headers */
	const uint64_t n = (uint64_t)(m->cfg.lora.rank ? m->ntrained : m->nparams);
	const uint64_t saved = m->cfg.saved == TE_DTYPE_FP32 ? 4 * n : 2 * n + weights_nbytes(m);
	const uint64_t need = 2 * te_moments_nbytes(moments, moment_nelems(m)) + saved;
	struct folder dir;
	struct statvfs st;
	uint64_t room;
	int r = folder_open(path, &dir);

	if (r)
		return r;
	/* some file systems do not know their size */
	room = fstatvfs(dir.fd, &st) || !st.f_blocks ? UINT64_MAX :
						       (uint64_t)st.f_bavail * st.f_frsize;
	if (room < need)
		r = say_bad("%s: %.2f MiB are free, a checkpoint needs %.2f MiB", path,
			    (double)room / (1 << 20), (double)need / (1 << 20));
	folder_close(&dir);
	return r;
}

/* ---- saving ---- */

static int save(const struct folder *dir, const struct model *m, const struct ckpt_flat *flat,
		const struct ckpt_copy *c)
{
	const struct ckpt_part *part = c && c->flat.part.n ? &c->flat.part : NULL;
	int r = ckpt_complete(dir); /* a save that failed after its commit has left files */

	if (r)
		return r;
	r = write_fresh(dir, m, flat, c);
	if (!r)
		r = folder_sync(dir);
	if (r) {
		for (int i = 0; i < CKPT_NFILES; i++)
			ckpt_drop(dir, ckpt_file[i]);
		return r;
	}
	if (c) {
		r = ckpt_commit(dir, STATE_ST, 0);
		if (!r)
			r = folder_sync(dir);
	}
	if (!r && !part)
		r = ckpt_commit(dir, weights_file(m), 0);
	if (!r && m->cfg.lora.rank)
		r = ckpt_commit(dir, ADAPTER_JSON, 0);
	if (!r)
		r = ckpt_commit(dir, CONFIG_JSON, 0);
	if (!r)
		ckpt_drop_kind(dir, part || !m->cfg.lora.rank);
	if (!r && part) {
		ckpt_drop_kind(dir, 0); /* Python would read it instead of the index */
		r = ckpt_commit(dir, INDEX_JSON, 0);
	}
	if (!r)
		r = folder_sync(dir);
	return r ? r : ckpt_drop_parts(dir, part);
}

int ckpt_write(const char *path, const struct model *m, const struct ckpt_copy *copy)
{
	struct folder dir;
	int r = ckpt_make_folder(path);

	if (!r)
		r = folder_open(path, &dir);
	if (r)
		return r;
	r = save(&dir, m, NULL, copy);
	folder_close(&dir);
	return r;
}

/* no checkpoint has these names: see ckpt_parts.c */
int ckpt_write_part(const char *path, const struct model *m, const struct ckpt_copy *c)
{
	const struct ckpt_flat *f = &c->flat;
	char model[64], state[64], digest[17];
	struct blob blob[3];
	struct folder dir;
	int r = ckpt_make_folder(path);

	if (!r)
		r = folder_open(path, &dir);
	if (r)
		return r;
	ckpt_part_name(&f->part, CKPT_MODEL, f->part.k, model);
	ckpt_part_name(&f->part, CKPT_STATE, f->part.k, state);
	set_flat_blobs(m, c, blob);
	r = write_blobs(&dir, state, f, blob, 3);
	if (!r)
		r = ckpt_commit(&dir, state, 0);
	if (!r)
		r = weights_write_part(&dir, model, m, f->weights, f->first, f->n, digest);
	if (!r)
		r = ckpt_commit(&dir, model, 0);
	if (!r)
		r = folder_sync(&dir);
	folder_close(&dir);
	return r;
}

int ckpt_save_best(const char *path, const struct model *m, const struct ckpt_flat *flat)
{
	struct folder dir, best;
	int r = ckpt_make_folder(path);

	if (!r)
		r = folder_open(path, &dir);
	if (r)
		return r;
	r = folder_open_in(&dir, BEST_DIR, &best);
	if (!r) {
		r = save(&best, m, flat, NULL);
		folder_close(&best);
	}
	folder_close(&dir);
	return r;
}

/* ---- loading ---- */

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

/* 1: the option of the run that saved options, or its default, is now; either may be NULL */
static int has_option(const json_t *options, const char *name, const char *by_default,
		      const char *now)
{
	const char *then = json_string_value(json_object_get(options, name));

	then = then ? then : by_default;
	return then && now ? !strcmp(then, now) : then == now;
}

/* with another recipe than the checkpoint's, start with new quantizers */
static int load_quant(const struct st_file *f, const struct model *m, const struct opts *o,
		      const json_t *options)
{
	const struct te_quant *own = te_seq_quant(m->seq);
	struct te_quant *q = NULL;
	struct st_tensor t;
	int te, r;

	if (!own || !has_option(options, "recipe", "bf16", o->recipe) ||
	    !has_option(options, "head-recipe", "bf16", o->head_recipe) ||
	    !has_option(options, "layer-recipe", NULL, o->layer_recipe) || !st_find(f, "quant", &t))
		return STATUS_OK;
	r = quant_of(m, &q);
	if (r)
		return r;
	te = te_quant_load(q, t.data, t.nbytes);
	r = te < 0 ? say_te(te, "%s", st_path(f)) : STATUS_OK;
	if (!r && m->whole)
		r = shard_quant_take(m, q);
	te_quant_unref(q);
	return r;
}

/* a copy, because tensors of files need not be aligned */
static void *copy_data(const struct st_tensor *t)
{
	void *copy = malloc(t->nbytes + 1);

	if (copy)
		memcpy(copy, t->data, t->nbytes);
	else
		say_failed("out of memory");
	return copy;
}

/* set a moment that is stored in one way from n elements that are in another, of this optimizer's
 * part or of all; data is aligned, unless both are one way and all */
static int set_moment(const char *path, const struct model *m, struct te_adamw *opt, int second,
		      enum te_moments from, int64_t n, const void *data, int is_part)
{
	const enum te_moments moments = te_adamw_moments(opt);
	struct te_tensor *own = second ? te_adamw_v(opt) : te_adamw_m(opt);
	const size_t nbytes = te_moments_nbytes(moments, n);
	float *values = NULL;
	void *stored = NULL;
	int te = 0, r = STATUS_OK;

	if (from != moments || m->whole) {
		values = malloc((size_t)n * sizeof(*values) + 1);
		stored = malloc(nbytes + 1);
		if (!values || !stored)
			r = say_failed("out of memory");
		te = r ? 0 : te_moments_to_fp32(from, second, n, data, values);
		if (!r && te >= 0 && m->whole)
			shard_take(m, m->whole, values, 1, stored);
		else if (!r && te >= 0)
			te = te_moments_from_fp32(moments, second, n, values, stored);
		data = stored;
	}
	if (!r && te >= 0)
		te = is_part ? te_tensor_write(own, data, nbytes) :
			       te_adamw_moments_set(opt, second, data);
	free(values);
	free(stored);
	return te < 0 ? say_te(te, "%s", path) : r;
}

static int load_moment(const struct st_file *f, const struct model *m, struct te_adamw *opt,
		       int second)
{
	const int64_t n = moment_nelems(m);
	enum te_moments from;
	struct st_tensor t;
	void *data = NULL;
	int r = ckpt_find_moment(f, second, n, &from, &t);

	if (r)
		return r;
	if (from != te_adamw_moments(opt) || m->whole) {
		data = copy_data(&t);
		r = data ? STATUS_OK : STATUS_FAILED;
	}
	if (!r)
		r = set_moment(st_path(f), m, opt, second, from, n, data ? data : t.data, 0);
	free(data);
	return r;
}

/* all elements, if moments are in a file or ranks divide the model; else the elements of own */
static int load_moment_parts(struct ckpt_states *s, const struct model *m, struct te_adamw *opt,
			     const struct ckpt_part *own, int second)
{
	const struct ckpt_part all = { .n = 0 };
	const int is_part = own->n && te_adamw_m(opt) && !m->whole;
	enum te_moments from;
	void *data = NULL;
	int64_t n;
	int r = ckpt_read_moment(s, second, moment_nelems(m), is_part ? own : &all, &from, &n,
				 &data);

	if (!r)
		r = set_moment(s->dir->path, m, opt, second, from, n, data, is_part);
	free(data);
	return r;
}

static int set_weights(const char *path, const struct model *m, int64_t first, int64_t n,
		       const float *x)
{
	const int te = te_seq_masters_set(m->seq, first, n, x);

	return te < 0 ? say_te(te, "%s", path) : STATUS_OK;
}

static int set_divided(const char *path, const struct model *m, const float *flat)
{
	int r = shard_set(m, m->whole, flat), te = 0;

	if (!r)
		te = te_seq_weights_changed(m->seq, te_ctx_stream(te_seq_ctx(m->seq)));
	return te < 0 ? say_te(te, "%s", path) : r;
}

/* the FP32 weights whose rounded values are in model.safetensors */
static int load_weights(const struct st_file *f, const struct model *m)
{
	struct st_tensor t;
	float *flat;
	int r;

	if (!st_find(f, "weights", &t))
		return STATUS_OK;
	r = get_blob(f, "weights", "F32", weights_nbytes(m), &t);
	if (r)
		return r;
	flat = copy_data(&t);
	r = !flat    ? STATUS_FAILED :
	    m->whole ? set_divided(st_path(f), m, flat) :
		       set_weights(st_path(f), m, 0, weights_nelems(m), flat);
	free(flat);
	return r;
}

static int load_weight_parts(struct ckpt_states *s, const struct model *m)
{
	float *whole = m->whole ? malloc(weights_nbytes(m)) : NULL;
	int r = m->whole && !whole ? say_failed("out of memory") : STATUS_OK, found = 0;

	for (int32_t k = 0; k < s->run->part.n && !r; k++) {
		const struct st_file *f;
		int64_t first, n;
		struct st_tensor t;
		float *x;

		r = weights_part(m, k, s->run->part.n, &first, &n);
		if (!r && n)
			r = ckpt_state_part(s, k, &f);
		if (r || !n || !st_find(f, "weights", &t))
			continue;
		r = get_blob(f, "weights", "F32", (size_t)n * sizeof(*x), &t);
		found = 1;
		if (!r && whole) {
			memcpy(whole + first, t.data, t.nbytes);
			continue;
		}
		x = r ? NULL : copy_data(&t);
		if (!r)
			r = x ? set_weights(st_path(f), m, first, n, x) : STATUS_FAILED;
		free(x);
	}
	if (!r && whole && found)
		r = set_divided(s->dir->path, m, whole);
	free(whole);
	return r;
}

static int load_state(const struct st_file *f, struct ckpt_states *parts, const struct model *m,
		      struct te_adamw *opt, const struct ckpt_part *own, const struct opts *o)
{
	struct st_tensor s;
	int te, r = get_blob(f, "adamw.state", "U8", te_adamw_state_nbytes(), &s);

	if (r)
		return r;
	te = te_adamw_state_set(opt, s.data, s.nbytes);
	if (te < 0)
		return say_te(te, "%s", st_path(f));
	for (int second = 0; second < 2 && !r; second++)
		r = parts->run->part.n ? load_moment_parts(parts, m, opt, own, second) :
					 load_moment(f, m, opt, second);
	return r ? r : load_quant(f, m, o, parts->run->options);
}

static int open_model(const struct folder *dir, const struct model *m, const struct ckpt_run *run,
		      const struct st_file *state, struct st_file **ret_f)
{
	struct st_file *f = NULL;
	const char *have, *base;
	int r = ckpt_open(dir, weights_file(m), &f);

	if (r)
		return r;
	have = st_get_meta(f, "digest");
	if (!have || strcmp(have, run->digest))
		r = say_bad("%s: not the weights that %s belongs to", st_path(f), st_path(state));
	base = m->cfg.lora.digest ? st_get_meta(f, BASE_DIGEST) : NULL;
	if (!r && base && strcmp(base, m->cfg.lora.digest))
		r = say_bad("%s: was trained with other weights than %s has now: to train an "
			    "adapter of these, begin with --init", st_path(f), m->cfg.lora.base);
	*ret_f = f;
	return r;
}

static int load_model(const struct folder *dir, const struct model *m, const struct ckpt_run *run,
		      const struct st_file *state)
{
	struct st_file *f[CKPT_MOST_PARTS] = { NULL };
	const int32_t n = run->part.n ? run->part.n : 1;
	int r = run->part.n ? STATUS_OK : open_model(dir, m, run, state, &f[0]);

	for (int32_t k = 0; k < run->part.n && !r; k++)
		r = ckpt_open_part(dir, run, CKPT_MODEL, k, &f[k]);
	if (!r)
		r = weights_read(f, (size_t)n, m);
	for (int32_t k = 0; k < n; k++)
		st_close(f[k]);
	return r;
}

/* moments belong to trained weights, in their order: a resumed run must train the same weights */
static int check_same(const struct st_file *state, const struct ckpt_run *run, const char *option,
		      const char *now)
{
	const char *then = json_string_value(json_object_get(run->options, option));

	then = then ? then : "";
	now = now ? now : "";
	if (!strcmp(then, now))
		return STATUS_OK;
	return say_bad("%s: was saved by a run with --%s \"%s\", not \"%s\": to train other "
		       "weights, begin with --init", st_path(state), option, then, now);
}

/* does the run of the options draw windows in another order */
static int is_reordered(const json_t *options, const struct opts *o)
{
	const char *order = json_string_value(json_object_get(options, "order"));
	const char *documents = json_string_value(json_object_get(options, "documents"));

	if (!order || strcmp(order, o->order) ||
	    json_integer_value(json_object_get(options, "seed")) != o->seed)
		return 1;
	return !strcmp(order, "documents") &&
	       (documents && *documents == 'b') != (*o->documents == 'b');
}

int ckpt_load(const char *path, const struct model *m, const struct opts *o, struct te_adamw *opt,
	      const struct ckpt_part *own, struct progress *ret_p)
{
	struct ckpt_states parts = { .dir = NULL };
	struct st_file *state = NULL;
	struct folder dir;
	struct ckpt_run run;
	int te, r = folder_open(path, &dir);

	if (r)
		return r;
	r = ckpt_open_state(&dir, &state, &run);
	if (r) {
		folder_close(&dir);
		return r;
	}
	r = opt ? check_same(state, &run, "freeze", m->frozen) : STATUS_OK;
	if (!r)
		r = check_same(state, &run, "lora", o->lora);
	if (!r)
		r = load_model(&dir, m, &run, state);
	parts.dir = &dir;
	parts.run = &run;
	if (!r)
		r = run.part.n ? load_weight_parts(&parts, m) : load_weights(state, m);
	if (!r && opt)
		r = load_state(state, &parts, m, opt, own, o);
	if (!r) {
		te = te_seq_rng_set(m->seq, run.seed, run.offset);
		if (te < 0)
			r = say_te(te, "%s", st_path(state));
	}
	if (!r) {
		*ret_p = run.p;
		ret_p->reordered = is_reordered(run.options, o);
	}
	json_decref(run.obj);
	ckpt_states_close(&parts);
	st_close(state);
	folder_close(&dir);
	return r;
}
