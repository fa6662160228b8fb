/*
 * weights.c - the tensors of a model in safetensors files, and how they are written.
 *
 * A weight of the sequence is one tensor in the file, or several: Q, K and V are separate there.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/quant.h>
#include <te/seq.h>

#include "lora.h"
#include "say.h"
#include "weights.h"
#include "weights_slice.h"

#define PEFT_PREFIX "base_model.model." /* before names that transformers gives */

static void slice_of(const struct config *cfg, const struct te_weight_info *w,
		     const struct weight_map *map, int layer, struct slice *ret_s)
{
	const struct te_tensor *t = w->value ? w->value : w->master;
	const char *bias = strstr(map->te, ".bias");
	struct slice s = { .ndim = te_tensor_ndim(t),
			   .ncodes = w->value ? te_tensor_nelems(t) : 0,
			   .cfg = cfg,
			   .part = map->part,
			   .head = !strcmp(map->te, "head.weight"),
			   .transposed = map->transposed };
	int64_t first;

	weight_name(map->hf, layer, s.name, sizeof(s.name));
	s.gain = s.ndim == 1 && !bias && !cfg->layernorm;
	s.tied = cfg->tied && !strcmp(map->te, "embed.weight");
	s.cols = s.ndim == 2 ? te_tensor_extent(t, 1) : 1;
	model_part_rows(cfg, map->part, te_tensor_extent(t, 0), &first, &s.rows);
	s.offset = (w->value ? 0 : w->offset_nelems) + first * s.cols;
	s.shape[0] = s.transposed ? s.cols : s.rows;
	s.shape[1] = s.transposed ? s.rows : s.cols;
	*ret_s = s;
}

/* name of the layout in files */
static const struct model *layout(const struct model *m)
{
	return m->whole ? m->whole : m;
}

void slice_name_factor(struct slice *s, char which)
{
	char module[sizeof(s->name)];

	snprintf(module, sizeof(module), "%.*s", (int)(strlen(s->name) - strlen(".weight")),
		 s->name);
	snprintf(s->name, sizeof(s->name), PEFT_PREFIX "%.90s.lora_%c.weight", module, which);
}

/*
 * A or B of the adapter of a weight, which s describes. Projections that are one matrix here have
 * one A, which PEFT's files have for each.
 */
static void adapt_slice(const struct te_weight_info *w, char which, int again, struct slice *s)
{
	slice_name_factor(s, which);
	if (which == 'A') {
		s->part = PART_ALL;
		s->rows = te_tensor_extent(w->master, 0);
		s->offset = w->offset_nelems;
		s->again = again;
	}
	s->adapter = 1;
	s->transposed = s->tied = 0;
	s->shape[0] = s->rows;
	s->shape[1] = s->cols;
}

int slices_each(const struct model *divided, int adapters, slice_fn fn, void *arg)
{
	const struct model *m = layout(divided);
	int r = STATUS_OK;

	for (int i = 0; i < te_seq_nweights(m->seq) && !r; i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;
		int te = te_seq_weight(m->seq, i, &w), found = 0;
		const char *mark;
		char name[96];

		if (te < 0)
			return say_te(te, "weight %d", i);
		mark = strstr(w.name, ".lora_");
		if ((mark != NULL) != adapters)
			continue;
		snprintf(name, sizeof(name), "%.*s%s", (int)(mark ? mark - w.name : 90), w.name,
			 mark ? ".weight" : "");
		for (const struct weight_map *map = model_map(m->cfg.family); map->te && !r;
		     map++) {
			int layer = weight_match(map->te, name);
			struct slice s;

			if (layer == -2)
				continue;
			slice_of(&m->cfg, &w, map, layer, &s);
			s.weight = i;
			if (mark)
				adapt_slice(&w, mark[strlen(".lora_")], found, &s);
			r = fn(arg, &s);
			found = 1;
		}
		if (!found)
			return say_failed("the weight %s has no name in files", w.name);
	}
	return r;
}

/* dst as in the file from src as in the sequence */
static void arrange(float *dst, const float *src, const struct slice *s)
{
	for (int64_t i = 0; i < s->rows; i++) {
		const int64_t row = model_file_row(s->cfg, s->part, i);

		for (int64_t j = 0; j < s->cols; j++)
			dst[s->transposed ? j * s->rows + row : row * s->cols + j] =
				src[i * s->cols + j];
	}
}

/* 1 if the file has the rows and columns of the sequence's weight */
static int is_as_here(const struct slice *s)
{
	for (int64_t i = 0; i < s->rows; i++)
		if (model_file_row(s->cfg, s->part, i) != i)
			return 0;
	return !s->transposed;
}

struct saving {
	struct st_writer *w;
	const float *flat;
	int64_t first, n; /* elements of the sequence that flat has: a number of slices */
};

static int has_slice(const struct saving *saving, const struct slice *s)
{
	return s->offset >= saving->first && s->offset - saving->first < saving->n;
}

static int declare_slice(void *arg, const struct slice *s)
{
	struct saving *saving = arg;
	const int bf16 = s->cfg->saved == TE_DTYPE_BF16;

	if (!has_slice(saving, s))
		return STATUS_OK;
	st_declare(saving->w, s->name, bf16 ? "BF16" : "F32", s->ndim, s->shape,
		   (size_t)(s->rows * s->cols) * (bf16 ? 2 : 4));
	return STATUS_OK;
}

static int write_bf16(struct st_writer *w, const float *src, int64_t nelems)
{
	uint16_t buf[2048];
	int r = STATUS_OK;

	for (int64_t i = 0; i < nelems && !r;) {
		size_t n = 0;

		while (n < sizeof(buf) / sizeof(buf[0]) && i < nelems)
			buf[n++] = te_bf16_encode(src[i++]);
		r = st_write(w, buf, n * sizeof(buf[0]));
	}
	return r;
}

int weights_put(struct st_writer *w, enum te_dtype dtype, const float *src, int64_t nelems)
{
	return dtype == TE_DTYPE_BF16 ? write_bf16(w, src, nelems) :
					st_write(w, src, (size_t)nelems * sizeof(*src));
}

static int write_slice(void *arg, const struct slice *s)
{
	struct saving *saving = arg;
	const int64_t nelems = s->rows * s->cols;
	float *arranged = NULL;
	const float *src;
	int r;

	if (!has_slice(saving, s))
		return STATUS_OK;
	src = saving->flat + (s->offset - saving->first);
	if (!is_as_here(s)) {
		arranged = malloc((size_t)nelems * sizeof(*arranged));
		if (!arranged)
			return say_failed("%s: out of memory", s->name);
		arrange(arranged, src, s);
		src = arranged;
	}
	r = weights_put(saving->w, s->cfg->saved, src, nelems);
	free(arranged);
	return r;
}

int64_t weights_nelems(const struct model *m)
{
	return m->cfg.lora.rank ? te_seq_grad_nelems(m->seq) : te_seq_nelems(layout(m)->seq);
}

static float *flat_read(const struct model *m)
{
	const int64_t n = weights_nelems(m);
	float *flat = malloc((size_t)n * sizeof(*flat));
	int r;

	if (!flat) {
		say_failed("out of memory");
		return NULL;
	}
	r = te_seq_masters_get(m->seq, 0, n, flat);
	if (r < 0) {
		say_te(r, "reading weights back");
		free(flat);
		return NULL;
	}
	return flat;
}

struct bound {
	int64_t least, at;
};

static int lower_bound(void *arg, const struct slice *s)
{
	struct bound *b = arg;

	if (s->offset >= b->least && s->offset < b->at)
		b->at = s->offset;
	return STATUS_OK;
}

int weights_part(const struct model *m, int32_t part, int32_t nparts, int64_t *ret_first,
		 int64_t *ret_n)
{
	const int64_t n = weights_nelems(m);
	int r = STATUS_OK;
	struct bound b[2];

	for (int i = 0; i < 2 && !r; i++) {
		b[i] = (struct bound){ n / nparts * (part + i), n };
		if (part + i < nparts)
			r = slices_each(m, 0, lower_bound, &b[i]);
	}
	if (!r) {
		*ret_first = b[0].at;
		*ret_n = b[1].at - b[0].at;
	}
	return r;
}

int weights_write_part(const struct folder *dir, const char *name, const struct model *m,
		       const float *flat, int64_t first, int64_t n, char ret_digest[17])
{
	const int adapters = m->cfg.lora.rank > 0;
	struct saving s = { .flat = flat, .first = first, .n = n };
	int r = st_create(dir, name, &s.w);

	if (!r && adapters && m->cfg.lora.digest)
		st_set_meta(s.w, BASE_DIGEST, m->cfg.lora.digest);
	if (!r)
		r = slices_each(m, adapters, declare_slice, &s);
	if (!r)
		r = st_begin(s.w);
	if (!r)
		r = slices_each(m, adapters, write_slice, &s);
	if (!r)
		r = st_end(s.w, ret_digest);
	st_free(s.w);
	return r;
}

int weights_write(const struct folder *dir, const char *name, const struct model *m,
		  const float *whole, char ret_digest[17])
{
	float *flat = whole ? NULL : flat_read(m);
	int r = STATUS_FAILED;

	if (flat || whole)
		r = weights_write_part(dir, name, m, whole ? whole : flat, 0, weights_nelems(m),
				       ret_digest);
	free(flat);
	return r;
}

const char *weights_file(const struct model *m)
{
	return m->cfg.lora.rank ? ADAPTER_ST : "model.safetensors";
}

/* the module of B, by its whole name; or if all layers have it, once, by the end of its name */
static int add_module(void *arg, const struct slice *s)
{
	const char *module = s->name + strlen(PEFT_PREFIX), *mark = strstr(module, ".lora_B.");
	const char *end = strstr(module, ".0.");
	json_t *list = arg;

	if (!mark || (!s->cfg->lora.targets && !end))
		return STATUS_OK;
	if (!s->cfg->lora.targets)
		module = end + strlen(".0.");
	return json_array_append_new(list, json_stringn(module, (size_t)(mark - module))) ?
		       say_failed("out of memory") :
		       STATUS_OK;
}

json_t *weights_adapter(const struct model *m)
{
	json_t *list = json_array(), *obj = NULL;

	if (!list)
		say_failed("out of memory");
	else if (!slices_each(m, 1, add_module, list))
		obj = lora_to_json(&m->cfg.lora, list);
	json_decref(list);
	return obj;
}
