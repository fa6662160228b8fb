/* model_init.c - the weights of a model: which are trained, and what they begin with. */
#include "config.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/plan.h>

#include "model.h"
#include "say.h"
#include "shard.h"

/* padding rows of the vocabulary remain zero: they have no gradient */
static int clear_padding(const struct model *m, const char *name)
{
	int r = 0;

	for (int i = 0; i < te_seq_nweights(m->seq) && r >= 0; i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;
		const int64_t used = m->cfg.vocab * m->cfg.width;
		const int64_t n = m->vocab_padded * m->cfg.width - used;
		float *zeros;

		r = te_seq_weight(m->seq, i, &w);
		if (r < 0 || strcmp(w.name, name) || !n)
			continue;
		zeros = calloc((size_t)n, sizeof(*zeros));
		r = -ENOMEM;
		if (zeros)
			r = te_seq_masters_set(m->seq, w.offset_nelems + used, n, zeros);
		free(zeros);
	}
	return r;
}

/* the name here of a weight that files give the name hf, with or without ".weight"; or "" */
static void name_in_model(const struct model *m, const char *hf, char buf[96])
{
	char whole[128];

	*buf = '\0';
	for (int pass = 0; pass < 2; pass++) {
		snprintf(whole, sizeof(whole), "%s%s", hf, pass ? ".weight" : "");
		for (const struct weight_map *map = model_map(m->cfg.family); map->te; map++) {
			const int layer = weight_match(map->hf, whole);

			if (layer != -2)
				weight_name(map->te, layer, buf, 96);
		}
	}
}

/* a pattern that matches no weight may match an operation without one, or be a name in files */
static int no_weight(const struct model *m, const char *pattern)
{
	const char *name = NULL;
	char te[96];

	for (int i = 0; i < te_seq_nops(m->seq); i++)
		if (!fnmatch(pattern, te_op_name(te_seq_op(m->seq, i)), 0))
			name = te_op_name(te_seq_op(m->seq, i));
	name_in_model(m, pattern, te);
	if (m->cfg.tied && (!fnmatch(pattern, "head", 0) || !fnmatch(pattern, "head.weight", 0) ||
			    !strcmp(te, "head.weight")))
		return say_bad("--freeze: \"%s\": the model is tied: its head has the weight of "
			       "embed; \"embed.weight\" freezes both", pattern);
	if (name)
		return say_bad("--freeze: \"%s\": the operation \"%s\" has no weight", pattern,
			       name);
	if (*te)
		return say_bad("--freeze: \"%s\" is a name in files; here it is \"%s\"", pattern,
			       te);
	return say_bad("--freeze: the model has no weight or operation \"%s\"", pattern);
}

int model_freeze(struct model *m, const char *patterns)
{
	char *list, *rest;
	int r = 0;

	if (!patterns || !*patterns)
		return STATUS_OK;
	if (m->whole && model_freeze(m->whole, patterns))
		return STATUS_BAD;
	list = rest = strdup(patterns);
	if (!list)
		return say_failed("out of memory");
	for (char *p; r >= 0 && (p = strsep(&rest, ","));) {
		r = te_seq_freeze(m->seq, p, 1);
		if (r == -ENOENT && m->whole) /* in another shard */
			r = 0;
		else if (r == -ENOENT)
			no_weight(m, p);
		else if (r < 0)
			model_cannot(m, r);
	}
	free(list);
	if (r < 0)
		return STATUS_BAD;
	m->ntrained = m->whole ? m->whole->ntrained : model_count(m, TE_WEIGHT_FROZEN);
	m->frozen = patterns;
	return STATUS_OK;
}

/* this shard's part of the weights that te_seq_init() draws for the whole model */
static int take_drawn(const struct model *m, uint64_t seed)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct model whole;
	float *flat = NULL;
	int te, r = model_build(te_seq_ctx(m->seq), &m->cfg, &whole);

	if (r)
		return r;
	r = model_freeze(&whole, m->frozen);
	b.flags = TE_SEQ_NO_GRADS;
	te = r ? 0 : te_seq_bind(whole.seq, &b);
	if (te < 0)
		r = model_cannot(m, te);
	if (!r)
		r = model_init(&whole, seed);
	if (!r) {
		const int64_t n = te_seq_nelems(whole.seq);

		flat = malloc((size_t)n * sizeof(*flat));
		te = flat ? te_seq_masters_get(whole.seq, 0, n, flat) : -ENOMEM;
		r = te < 0 ? model_cannot(m, te) : STATUS_OK;
	}
	if (!r)
		r = shard_set(m, &whole, flat);
	free(flat);
	model_free(&whole);
	if (r)
		return r;
	te = te_seq_weights_changed(m->seq, te_ctx_stream(te_seq_ctx(m->seq)));
	return te < 0 ? model_cannot(m, te) : STATUS_OK;
}

/* the next of uniform random numbers in [-1, 1): splitmix64 */
static double draw(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	return (double)(x >> 11) * 0x1p-52 - 1;
}

/* A as PEFT draws it, uniform in +-1/sqrt(in); B is 0 */
static int draw_adapters(const struct model *m, uint64_t seed)
{
	uint64_t state = seed;
	int te = 0;

	for (int i = 0; i < te_seq_nweights(m->seq) && te >= 0; i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;
		int64_t n;
		double most;
		float *x;

		te = te_seq_weight(m->seq, i, &w);
		if (te < 0 || !strstr(w.name, ".lora_A."))
			continue;
		n = te_tensor_nelems(w.master);
		most = 1 / sqrt((double)te_tensor_extent(w.master, 1));
		x = malloc((size_t)n * sizeof(*x));
		for (int64_t k = 0; k < n && x; k++)
			x[k] = (float)(most * draw(&state));
		te = x ? te_seq_masters_set(m->seq, w.offset_nelems, n, x) : -ENOMEM;
		free(x);
	}
	return te;
}

int model_store_codes(struct model *m, const struct te_recipe *recipe, uint32_t flags, int64_t B,
		      int64_t T)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	int te;

	po.recipe = recipe;
	po.flags = flags;
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { B, T } };
	te = te_seq_store_codes(m->seq, &po);
	return te < 0 ? say_te(te, "the model cannot be planned") : STATUS_OK;
}

int model_init(struct model *m, uint64_t seed)
{
	int te = te_seq_init(m->seq, seed);

	if (te >= 0 && m->whole) {
		int r = take_drawn(m, seed);

		if (r)
			return r;
	} else if (te >= 0) {
		te = clear_padding(m, "embed.weight");
		if (te >= 0)
			te = clear_padding(m, "head.weight");
		if (te >= 0)
			te = draw_adapters(m, seed);
	}
	if (te >= 0)
		te = te_ctx_sync(te_seq_ctx(m->seq));
	return te < 0 ? model_cannot(m, te) : STATUS_OK;
}

int model_create(struct te_ctx *ctx, const struct config *cfg, uint64_t seed,
		 struct model *ret_model)
{
	struct model m;
	int r = model_build(ctx, cfg, &m);

	if (r)
		return r;
	r = model_init(&m, seed);
	if (r)
		model_free(&m);
	else
		*ret_model = m;
	return r;
}
