/* t/plan/plan_model.c - builds the small transformer of plan_model.h. */
#include "config.h"

#include <te/errno.h>

#include "libtecore/plan/plan.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"

static struct te_op *put(struct te_seq *seq, struct te_op *op)
{
	tt_append(seq, op);
	return op;
}

static char *nm(int layer, const char *what)
{
	static _Thread_local char buf[64];

	snprintf(buf, sizeof(buf), "h.%d.%s", layer, what);
	return buf;
}

static void branch(struct te_seq *seq, int l, const char *name, const struct model_shape *m)
{
	struct te_norm_attrs na = TE_ATTRS(norm, m->width, 1e-5f, 0);
	struct te_op *op;

	DO(te_op_fork(nm(l, name), &op));
	DO(te_op_give(put(seq, op), 0, nm(l, name)));
	if (m->llama)
		DO(te_op_rmsnorm(&na, strcat(nm(l, name), ".norm"), &op));
	else
		DO(te_op_layernorm(&na, strcat(nm(l, name), ".norm"), &op));
	put(seq, op);
}

static void linear(struct te_seq *seq, int l, const char *name, int64_t in, int64_t out,
		   const struct model_shape *m)
{
	struct te_linear_attrs la = TE_ATTRS(linear, in, out, 0.08f, 0, NULL);
	struct te_bias_attrs ba = TE_ATTRS(bias, out);
	struct te_op *op;

	DO(te_op_linear(&la, nm(l, name), &op));
	put(seq, op);
	if (m->llama)
		return;
	DO(te_op_bias(&ba, strcat(nm(l, name), ".b"), &op));
	put(seq, op);
}

static void join(struct te_seq *seq, int l, const char *name, const char *from,
		 const struct model_shape *m)
{
	struct te_dropout_attrs da = TE_ATTRS(dropout, .p = m->dropout);
	struct te_op *op;

	if (m->dropout > 0) {
		DO(te_op_dropout(&da, strcat(nm(l, name), ".drop"), &op));
		put(seq, op);
	}
	DO(te_op_add(nm(l, name), &op));
	DO(te_op_take(put(seq, op), 0, nm(l, from)));
}

static void layer(struct te_seq *seq, int l, const struct model_shape *m)
{
	int hd = (int)m->width / m->nheads;
	struct te_rope_attrs ra = TE_ATTRS(rope, m->nheads, m->nkv, hd, 10000.0f);
	struct te_attention_attrs aa = TE_ATTRS(attention, m->nheads, m->nkv, hd, 0, m->dropout,
						0, 0, 0);
	struct te_act_attrs act = TE_ATTRS(act, m->llama ? TE_ACT_SILU : TE_ACT_GELU, m->llama);
	int64_t f = 2 * m->width;
	struct te_op *op;

	branch(seq, l, "ln1", m);
	linear(seq, l, "qkv", m->width, (int64_t)(m->nheads + 2 * m->nkv) * hd, m);
	if (m->llama) {
		DO(te_op_rope(&ra, nm(l, "rope"), &op));
		put(seq, op);
	}
	DO(te_op_attention(&aa, nm(l, "attn"), &op));
	put(seq, op);
	linear(seq, l, "proj", m->width, m->width, m);
	join(seq, l, "add1", "ln1", m);
	branch(seq, l, "ln2", m);
	linear(seq, l, "up", m->width, m->llama ? 2 * f : f, m);
	DO(te_op_activation(&act, nm(l, "act"), &op));
	put(seq, op);
	linear(seq, l, "down", f, m->width, m);
	join(seq, l, "add2", "ln2", m);
}

struct te_seq *model_create_unbound(struct te_ctx *ctx, const struct model_shape *m)
{
	struct te_embedding_attrs ea = TE_ATTRS(embedding, m->vocab, m->width,
						m->llama ? 0 : m->seqlen, 0.3f, 0);
	struct te_norm_attrs na = TE_ATTRS(norm, m->width, 1e-5f, 0);
	struct te_linear_attrs ha = TE_ATTRS(linear, m->width, m->vocab, 0.08f, 1, NULL);
	struct te_cross_entropy_attrs ca = TE_ATTRS(cross_entropy, m->vocab, -100, 1.0f);
	struct te_seq *seq;
	struct te_op *op, *emb;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_embedding(&ea, "emb", &emb));
	put(seq, emb);
	for (int l = 0; l < m->nlayers; l++)
		layer(seq, l, m);
	if (m->llama) {
		DO(te_op_rmsnorm(&na, "norm", &op));
	} else {
		DO(te_op_layernorm(&na, "norm", &op));
		ha.tied_op = emb;
	}
	put(seq, op);
	DO(te_op_linear(&ha, "head", &op));
	put(seq, op);
	DO(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
	DO(te_op_cross_entropy(&ca, "loss", &op));
	DO(te_op_take(put(seq, op), 0, "targets"));
	return seq;
}

struct te_seq *model_create(struct te_ctx *ctx, const struct model_shape *m, uint64_t seed)
{
	struct te_seq *seq = model_create_unbound(ctx, m);

	DO(te_seq_init(seq, seed));
	return seq;
}

struct te_recipe model_recipe(const char *name)
{
	struct te_recipe rec = tt_recipe(name);

	if (rec.kind == TE_RECIPE_DELAYED)
		rec.history_len = 16;
	return rec;
}

struct te_plan *model_plan(struct te_seq *seq, const struct model_shape *m, const char *recipe,
			   uint32_t flags)
{
	const struct te_recipe rec = model_recipe(recipe);

	return tt_plan(seq, &rec, flags,
		       (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } });
}

void model_feed(struct te_plan *plan, const struct model_shape *m)
{
	size_t n = (size_t)(m->batch * m->seqlen);
	int32_t *t = malloc(n * sizeof(*t));

	for (int k = 0; k < 2; k++) {
		struct te_tensor *in = te_plan_input(plan, k ? "targets" : "x");

		for (size_t i = 0; i < n; i++)
			t[i] = (int32_t)tt_rand_int(0, m->vocab - 1);
		if (in)
			DO(te_tensor_write(in, t, n * sizeof(*t)));
	}
	free(t);
}

float model_loss(struct te_plan *plan)
{
	float loss = -1;

	DO(te_tensor_read(te_plan_output(plan), &loss, sizeof(loss)));
	return loss;
}

void plan_feed(struct te_plan *p, const float *x, const float *dy)
{
	tt_tensor_set(te_plan_input(p, "x"), x);
	DO(te_fill(st, p->arena, 0xff, p->arena_nbytes));
	tt_tensor_set(te_plan_output_grad(p), dy);
}

void plan_passes(struct te_plan *p)
{
	DO(te_seq_zero_grads(p->seq, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
}

void model_same(const struct te_tensor *a, const struct te_tensor *b, const char *what)
{
	const size_t n = te_tensor_nbytes(a);
	unsigned char *x = tt_bytes(te_tensor_data(a), n), *y = tt_bytes(te_tensor_data(b), n);
	size_t first = 0, count = 0;

	for (size_t i = n; i-- > 0;)
		if (x[i] != y[i]) {
			first = i;
			count++;
		}
	ck_assert_msg(!count, "%s differ in %zu of %zu bytes, from %zu on", what, count, n, first);
	free(x);
	free(y);
}

void model_same_scales(struct te_quant *a, struct te_quant *b)
{
	const size_t n = a ? te_quant_nbytes(a) : 0;
	uint8_t *x = malloc(n + 1), *y = malloc(n + 1);

	ck_assert(x && y);
	if (a) {
		ck_assert_ptr_nonnull(b);
		ck_assert_uint_eq(te_quant_nbytes(b), n);
		DO(te_quant_save(a, x, n));
		DO(te_quant_save(b, y, n));
		ck_assert_msg(!memcmp(x, y, n), "states of quantizers differ");
	}
	free(x);
	free(y);
}

struct te_seq *linear_seq(int nops, int64_t in, int64_t out, int keep_hp)
{
	const struct te_linear_attrs a = TE_ATTRS(linear, in, out, 0.1f, keep_hp);
	char name[] = "l0";
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; i < nops; i++) {
		name[1] = nops > 1 ? (char)('0' + i) : 0;
		DO(te_op_linear(&a, name, &op));
		tt_append(seq, op);
	}
	DO(te_seq_init(seq, 1));
	return seq;
}

int linear_plan_create(const char *recipe, int64_t rows, int64_t in, int64_t out,
		       struct linear_plan *ret)
{
	struct te_linear_attrs a = TE_ATTRS(linear, in, out, 0.1f, 0, NULL);
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_op *op = NULL;
	int r;

	*ret = (struct linear_plan){ .ctx = NULL };
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { rows, in } };
	o.recipe = &rec;
	r = te_recipe_from_name(recipe, &rec);
	if (!r)
		r = tt_ctx_new(&ret->ctx);
	if (!r)
		r = te_seq_create(ret->ctx, &ret->seq);
	if (!r)
		r = te_op_linear(&a, "l", &op);
	if (!r)
		r = te_seq_append(ret->seq, op);
	te_op_unref(op);
	if (!r)
		r = te_seq_init(ret->seq, 1);
	return r ? r : te_plan_create(ret->seq, &o, &ret->plan);
}

void linear_plan_free(struct linear_plan *p)
{
	tt_drop(p->plan, p->seq);
	te_ctx_unref(p->ctx);
}
