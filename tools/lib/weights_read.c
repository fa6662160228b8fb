/* weights_read.c - the weights of a model, read from safetensors and GGUF files. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>
#include <te/quant.h>
#include <te/seq.h>

#include "digest.h"
#include "gguf_arch.h"
#include "lora.h"
#include "say.h"
#include "shard.h"
#include "tensors.h"
#include "weights.h"
#include "weights_slice.h"

#define CHUNK (1 << 20) /* elements that are converted at a time, unless a row has more */

struct loading {
	const struct tensors *tensors;
	const struct adapter *adapter; /* merged, or NULL */
	const struct tensor *a;	/* the latest A of an adapter, if adapters are loaded */
	struct te_seq *seq; /* has the masters that are loaded */
	float *flat;	    /* weights of the whole model instead, if ranks divide them */
	float *part;	    /* values of a weight of codes, or NULL; and its number */
	int weight;
	struct digest *digest; /* digest of all values without the adapter, or NULL */
	/* the first element that is not finite, if there is one */
	const struct tensor *odd;
	int64_t odd_at;
	float odd_x;
};

/*
 * Element i of a tensor whose blocks of 32 elements have a scale, Q4_1 also a minimum, and then
 * numbers of 8 or 4 bits, 4 bits of element k with 4 bits of element k + 16.
 */
static float dequantized(const struct st_tensor *t, int64_t i)
{
	const int bits4 = t->dtype[1] == '4', minimum = t->dtype[3] == '1';
	const int64_t size = !bits4 ? 34 : minimum ? 20 : 18, k = i % 32;
	const uint8_t *block = t->data + i / 32 * size, *q = block + (minimum ? 4 : 2);
	uint16_t half[2];
	float scale;

	memcpy(half, block, sizeof(half));
	scale = te_fp16_decode(half[0]);
	if (!bits4)
		return scale * (float)(int8_t)q[k];
	if (minimum)
		return scale * (float)(q[k % 16] >> k / 16 * 4 & 15) + te_fp16_decode(half[1]);
	return scale * (float)((q[k % 16] >> k / 16 * 4 & 15) - 8);
}

float weights_element(const struct st_tensor *t, int64_t i)
{
	uint16_t half;
	float x;

	if (*t->dtype == 'Q')
		return dequantized(t, i);
	if (t->dtype[0] == 'F' && t->dtype[1] == '3') {
		memcpy(&x, t->data + 4 * i, 4);
		return x;
	}
	memcpy(&half, t->data + 2 * i, 2);
	return *t->dtype == 'B' ? te_bf16_decode(half) : te_fp16_decode(half);
}

/* matrices of GGUF files are [out,in] in all models */
static int is_transposed(const struct tensor *t, const struct slice *s)
{
	return s->transposed && !t->arch;
}

/* gains of GGUF files are what values are multiplied by */
static float element(const struct tensor *t, const struct slice *s, int64_t i)
{
	const float x = weights_element(&t->st, i);

	return t->arch && s->gain && s->cfg->zero_centered ? x - 1 : x;
}

static int check_tensor(const struct tensor *t, const struct slice *s)
{
	static const char *const read[] = { "F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_1" };
	char have[SHAPE_TEXT], need[SHAPE_TEXT];
	const char *dtype = t->st.dtype;
	const int64_t here[2] = { s->rows, s->cols };
	const int64_t *shape = t->arch ? here : s->shape;
	size_t i;

	for (i = 0; i < sizeof(read) / sizeof(read[0]) && strcmp(read[i], dtype); i++)
		;
	if (i == sizeof(read) / sizeof(read[0]))
		return say_bad("%s: tensor \"%s\" is %s; F32, BF16 and F16 are read, and Q8_0, "
			       "Q4_0 and Q4_1 of GGUF files", st_path(t->file), t->name, dtype);
	if (t->st.ndim == s->ndim &&
	    !memcmp(t->st.shape, shape, (size_t)s->ndim * sizeof(*shape)))
		return STATUS_OK;
	return say_bad("%s: tensor \"%s\" is %s; %s makes it %s", st_path(t->file), t->name,
		       shape_text(t->st.ndim, t->st.shape, have),
		       s->adapter ? ADAPTER_JSON : "config.json",
		       shape_text(s->ndim, shape, need));
}

static int missing(const struct loading *l, const struct slice *s)
{
	const size_t n = strlen(s->name);
	const struct tensors *ts = l->tensors;

	if (s->head)
		return say_bad("%s: there is no tensor \"%s\"; if the head has the weight of the "
			       "embedding, set \"tie_word_embeddings\": true in config.json",
			       ts->path, s->name);
	/* with a prefix that is not known */
	for (size_t i = 0; i < ts->n; i++) {
		const char *name = ts->at[i].name;
		const size_t len = strlen(name);

		if (len > n && name[len - n - 1] == '.' && !strcmp(name + len - n, s->name))
			return say_bad("%s: there is no tensor \"%s\", but \"%s\": expected the "
				       "names that transformers saves", ts->path, s->name, name);
	}
	return say_bad("%s: there is no tensor \"%s\"", ts->path, s->name);
}

/* the file of a tied model may have its weight twice, but not two weights: neither is ignored */
static int check_head(struct tensor *head, const struct tensor *embed, const struct slice *s)
{
	int r = check_tensor(head, s);

	for (int64_t i = 0; i < s->rows * s->cols && !r; i++) {
		const float x = weights_element(&embed->st, i), y = weights_element(&head->st, i);

		if (x != y && !(isnan(x) && isnan(y)))
			r = say_bad("%s: tensors \"%s\" and \"%s\" differ, but the model is tied, "
				    "with one weight for both: to use both, set "
				    "\"tie_word_embeddings\": false in config.json",
				    st_path(head->file), head->name, embed->name);
	}
	head->used = 1;
	return r;
}

/* the name of the head's weight in files */
static const char *head_name(const struct config *cfg)
{
	const struct weight_map *map = model_map(cfg->family);

	while (strcmp(map->te, "head.weight"))
		map++;
	return map->hf;
}

static int64_t row_in_file(const struct tensor *t, const struct slice *s, int64_t i)
{
	const int64_t row = model_file_row(s->cfg, s->part, i);

	return t->arch ? gguf_row(t->arch, s->cfg, s->part, row) : row;
}

/* find and check the tensor of a slice */
static int take_tensor(const struct loading *l, const struct slice *s, struct tensor **ret_t)
{
	struct tensor *t = tensors_find(l->tensors, s->name);
	struct tensor *head = s->tied ? tensors_find(l->tensors, head_name(s->cfg)) : NULL;
	int r;

	if (!t)
		t = head;
	if (!t)
		return missing(l, s);
	r = check_tensor(t, s);
	if (!r && head && head != t)
		r = check_head(head, t, s);
	t->used = 1;
	*ret_t = t;
	return r;
}

/* ---- adapters that are merged ---- */

/* addend of an adapter to a weight [out, in]: scale B A; rank 0: none */
struct delta {
	int64_t rank;
	float *a, *b; /* [rank, in], [out, rank] times scale */
};

/* A or B of the weight of slice s, or NULL with *ret_t NULL: the adapter has none */
static int read_factor(const struct adapter *ad, const struct slice *s, char which, double scale,
		       float **ret_x)
{
	struct slice want = { .cfg = s->cfg, .rows = s->rows, .cols = s->cols, .adapter = 1 };
	const size_t n = strlen(s->name), suffix = strlen(".weight");
	struct tensor *t = NULL;
	int r;

	*ret_x = NULL;
	want.ndim = 2;
	if (s->ndim != 2 || n < suffix || strcmp(s->name + n - suffix, ".weight"))
		return STATUS_OK;
	snprintf(want.name, sizeof(want.name), "%s", s->name);
	slice_name_factor(&want, which);
	t = tensors_find(&ad->tensors, want.name);
	if (!t)
		return STATUS_OK;
	*(which == 'A' ? &want.rows : &want.cols) = ad->rank;
	want.shape[0] = want.rows;
	want.shape[1] = want.cols;
	r = check_tensor(t, &want);
	if (r)
		return r;
	t->used = 1;
	*ret_x = malloc((size_t)(want.rows * want.cols) * sizeof(**ret_x));
	if (!*ret_x)
		return say_failed("%s: out of memory", want.name);
	for (int64_t i = 0; i < want.rows * want.cols; i++)
		(*ret_x)[i] = (float)(scale * (double)weights_element(&t->st, i));
	return STATUS_OK;
}

static void delta_free(struct delta *d)
{
	free(d->a);
	free(d->b);
	*d = (struct delta){ 0 };
}

static int read_delta(const struct adapter *ad, const struct slice *s, struct delta *d)
{
	int r = STATUS_OK;

	*d = (struct delta){ 0 };
	if (!ad)
		return STATUS_OK;
	r = read_factor(ad, s, 'A', 1, &d->a);
	if (!r)
		r = read_factor(ad, s, 'B', ad->scale, &d->b);
	if (!r && !d->a != !d->b)
		r = say_bad("%s: %s has %c and not %c", ad->tensors.path, s->name,
			    d->a ? 'A' : 'B', d->a ? 'B' : 'A');
	d->rank = d->a ? ad->rank : 0;
	if (r)
		delta_free(d);
	return r;
}

/* n rows of a slice, from row first on */
static void read_rows(struct loading *l, const struct slice *s, const struct tensor *t,
		      const struct delta *d, int64_t first, int64_t n, float *dst)
{
	for (int64_t i = 0; i < n; i++) {
		const int64_t row = row_in_file(t, s, first + i);

		for (int64_t j = 0; j < s->cols; j++) {
			const int64_t at = is_transposed(t, s) ? j * s->rows + row :
								 row * s->cols + j;
			const float x = element(t, s, at);

			dst[i * s->cols + j] = x;
			if (!isfinite(x) && !l->odd) {
				l->odd = t;
				l->odd_at = at;
				l->odd_x = x;
			}
		}
	}
	if (l->digest)
		digest_add(l->digest, dst, (size_t)(n * s->cols) * sizeof(*dst));
	for (int64_t i = 0; i < n && d->rank; i++) {
		const int64_t out = model_file_row(s->cfg, s->part, first + i);

		for (int64_t k = 0; k < d->rank; k++)
			for (int64_t j = 0; j < s->cols; j++)
				dst[i * s->cols + j] +=
					d->b[out * d->rank + k] * d->a[k * s->cols + j];
	}
}

/* all tensors of an A are equal, or they would need one each here */
static int check_again(const struct loading *l, const struct tensor *t)
{
	if (!strcmp(t->st.dtype, l->a->st.dtype) && t->st.nbytes == l->a->st.nbytes &&
	    !memcmp(t->st.data, l->a->st.data, t->st.nbytes))
		return STATUS_OK;
	return say_bad("%s: tensors \"%s\" and \"%s\" differ: only adapters whose projections "
		       "of one input have one A are trained on; others can be merged",
		       st_path(t->file), l->a->name, t->name);
}

/* casts a weight of codes after its last slice */
static int write_codes(struct loading *l)
{
	const int te = l->part ? te_seq_weight_set(l->seq, l->weight, l->part) : 0;

	free(l->part);
	l->part = NULL;
	return te < 0 ? say_te(te, "weight %d", l->weight) : STATUS_OK;
}

/* room for the weight of a slice of codes */
static int begin_codes(struct loading *l, const struct slice *s)
{
	const int r = l->part && l->weight != s->weight ? write_codes(l) : STATUS_OK;

	if (r || !s->ncodes || l->part)
		return r;
	l->weight = s->weight;
	l->part = calloc((size_t)s->ncodes, sizeof(*l->part));
	return l->part ? STATUS_OK : say_failed("%s: out of memory", s->name);
}

static int read_slice(void *arg, const struct slice *s)
{
	struct loading *l = arg;
	const int64_t most = s->cols < CHUNK ? CHUNK / s->cols : 1;
	const int64_t each = s->rows < most ? s->rows : most;
	struct tensor *t;
	struct delta d;
	float *rows;
	int te = 0, r = take_tensor(l, s, &t);

	if (!r)
		r = begin_codes(l, s);
	if (!r && s->again)
		return check_again(l, t);
	l->a = t;
	if (!r)
		r = read_delta(l->adapter, s, &d);
	if (r)
		return r;
	if (l->flat || s->ncodes) {
		read_rows(l, s, t, &d, 0, s->rows, (s->ncodes ? l->part : l->flat) + s->offset);
		delta_free(&d);
		return STATUS_OK;
	}
	rows = malloc((size_t)(each * s->cols) * sizeof(*rows));
	if (!rows) {
		delta_free(&d);
		return say_failed("%s: out of memory", s->name);
	}
	for (int64_t i = 0, n; i < s->rows && te >= 0; i += n) {
		n = s->rows - i < each ? s->rows - i : each;
		read_rows(l, s, t, &d, i, n, rows);
		te = te_seq_masters_set(l->seq, s->offset + i * s->cols, n * s->cols, rows);
	}
	free(rows);
	delta_free(&d);
	return te < 0 ? say_te(te, "%s", s->name) : STATUS_OK;
}

static int check_unused(const struct tensors *ts)
{
	size_t n;
	const struct tensor *t = tensors_unused(ts, &n);
	char shape[SHAPE_TEXT];

	if (!t)
		return STATUS_OK;
	return say_bad("%s: has %zu tensor%s not in the model of config.json%s \"%s\" (%s, %s)",
		       ts->path, n, n > 1 ? "s that are" : " that is", n > 1 ? ", such as" : ":",
		       t->name, t->st.dtype, shape_text(t->st.ndim, t->st.shape, shape));
}

static float *flat_zeros(const struct model *m)
{
	float *flat = calloc((size_t)te_seq_nelems(m->seq), sizeof(*flat));

	if (!flat)
		say_failed("out of memory");
	return flat;
}

/* adapters: 1: the adapters of the model, 0: its other weights; adapter: merged, or NULL */
static int read_tensors(const struct tensors *ts, const struct model *m, int adapters,
			const struct adapter *adapter)
{
	struct loading l = { .tensors = ts, .adapter = adapter, .seq = m->seq };
	char *digest = adapters ? NULL : m->cfg.lora.digest;
	struct digest d = { 0 };
	char text[DIGEST_NBYTES];
	int r = STATUS_OK, te;

	if (digest || (adapter && adapter->base_digest))
		l.digest = &d;
	if (m->whole) {
		l.flat = flat_zeros(m->whole);
		r = l.flat ? STATUS_OK : STATUS_FAILED;
	}
	if (!r)
		r = slices_each(m, adapters, read_slice, &l);
	if (!r)
		r = write_codes(&l);
	if (!r)
		r = check_unused(ts);
	if (!r && adapter)
		r = check_unused(&adapter->tensors);
	digest_end(&d, text);
	if (!r && digest)
		memcpy(digest, text, sizeof(text));
	if (!r && adapter)
		adapter_check(adapter, ts->path, text);
	if (!r && m->whole)
		r = shard_set(m, m->whole, l.flat);
	/* no loss may show it: it can be in the row of a token that no data have */
	if (!r && l.odd)
		say_note("%s: warning: %s: element %lld of tensor \"%s\" is %g", say_program(),
			 ts->path, (long long)l.odd_at, l.odd->name, (double)l.odd_x);
	if (!r && m->whole) {
		te = te_seq_weights_changed(m->seq, te_ctx_stream(te_seq_ctx(m->seq)));
		r = te < 0 ? say_te(te, "%s", ts->path) : r;
	}
	free(l.flat);
	free(l.part);
	return r;
}

struct visit {
	struct loading l;
	weights_fn fn;
	void *arg;
};

/* F32 [out,in], rows in the order of the file; for free(3) */
static int merge(struct loading *l, const struct slice *s, const struct tensor *t,
		 const struct delta *d, struct st_tensor *ret_t)
{
	float *x = malloc((size_t)(s->rows * s->cols) * sizeof(*x));

	if (!x)
		return say_failed("%s: out of memory", s->name);
	for (int64_t i = 0; i < s->rows; i++)
		read_rows(l, s, t, d, i, 1, x + row_in_file(t, s, i) * s->cols);
	*ret_t = t->st;
	ret_t->dtype = "F32";
	ret_t->data = (const uint8_t *)x;
	ret_t->nbytes = (size_t)(s->rows * s->cols) * sizeof(*x);
	return STATUS_OK;
}

/* values that no adapter changes: only their digest is wanted */
static int add_to_digest(struct loading *l, const struct slice *s, const struct tensor *t)
{
	const struct delta none = { .rank = 0 };
	float *row = malloc((size_t)s->cols * sizeof(*row));

	if (!row)
		return say_failed("%s: out of memory", s->name);
	for (int64_t i = 0; i < s->rows; i++)
		read_rows(l, s, t, &none, i, 1, row);
	free(row);
	return STATUS_OK;
}

static int visit_slice(void *arg, const struct slice *s)
{
	struct visit *v = arg;
	struct st_tensor merged = { .data = NULL };
	struct weights_tensor w = { .name = s->name, .ndim = s->ndim };
	struct tensor *t;
	struct delta d = { 0 };
	int r = take_tensor(&v->l, s, &t);

	if (!r)
		r = read_delta(v->l.adapter, s, &d);
	if (!r && d.rank)
		r = merge(&v->l, s, t, &d, &merged);
	else if (!r && v->l.digest)
		r = add_to_digest(&v->l, s, t);
	delta_free(&d);
	if (r)
		return r;
	w.st = merged.data ? &merged : &t->st;
	w.shape[0] = s->rows;
	w.shape[1] = s->cols;
	w.part = s->part;
	w.transposed = is_transposed(t, s) && !merged.data;
	w.in_out = s->transposed;
	w.gain = s->gain;
	w.arch = t->arch;
	r = v->fn(v->arg, &w);
	free((void *)(uintptr_t)merged.data);
	return r;
}

int weights_each(struct tensors *ts, const struct model *m, const struct adapter *adapter,
		 int checks, weights_fn fn, void *arg)
{
	struct visit v = { .l = { .tensors = ts, .adapter = adapter }, .fn = fn, .arg = arg };
	struct digest d = { 0 };
	char text[DIGEST_NBYTES];
	int r;

	checks = checks && adapter && adapter->base_digest;
	if (checks)
		v.l.digest = &d;
	r = slices_each(m, 0, visit_slice, &v);
	digest_end(&d, text);
	if (!r && checks)
		adapter_check(adapter, ts->path, text);
	if (!r && adapter)
		r = check_unused(&adapter->tensors);
	return r ? r : check_unused(ts);
}

int weights_read(struct st_file *const *f, size_t nfiles, const struct model *m)
{
	struct tensors ts = { 0 };
	int r = tensors_of_files(f, nfiles, &ts);

	if (!r)
		r = read_tensors(&ts, m, m->cfg.lora.rank > 0, NULL);
	tensors_free(&ts);
	return r;
}

int weights_read_folder(const char *dir, const char *adapter, const struct model *m)
{
	struct tensors ts = { 0 };
	struct adapter a = { .rank = 0 };
	int r = adapter ? adapter_open(adapter, &a) : STATUS_OK;

	if (!r)
		r = tensors_of_folder(dir, &ts);
	if (!r)
		r = read_tensors(&ts, m, 0, adapter ? &a : NULL);
	tensors_free(&ts);
	adapter_close(&a);
	return r;
}
