/*
 * t/plan/custom_block.c - a Llama block with a user's operation and a user's fusions in it, against
 * the same block of built-in operations and fusions.
 *
 * The operation is SwiGLU. Its fusions write FP8 output in both passes. A joint fusion replaces
 * RMSNorm, its cast and the fork before it, and saves the reciprocal deviations itself. All of them
 * call te/kernel.h, as the built-in ones do inside, so all bits are equal.
 */
#include "config.h"

#include <te/capture.h>
#include <te/kernel.h>
#include <te/plan.h>

#include "libtecore/plan/plan.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define BATCH 2
#define SEQLEN 24
#define WIDTH 64
#define NHEADS 4
#define NKV 2
#define HEAD_DIM 16
#define FFN 80
#define NELEMS ((size_t)BATCH * SEQLEN * WIDTH)
#define LAYERS 2

/* ---- SwiGLU, by a user ---- */

struct swiglu {
	int nbinds, nunbinds, nruns[2];
};

struct bound {
	struct swiglu *user;
	enum te_op_fn fn;
	struct te_kernel_act_opts o;
};

static int swiglu_infer(struct te_op_infer *inf)
{
	const int last = inf->in[0].ndim - 1;

	inf->out[0] = inf->in[0];
	inf->out[0].shape[last] /= 2;
	inf->save_x = TE_FORM_HP;
	return 0;
}

static int bound_new(struct swiglu *user, enum te_op_fn fn, const struct te_op_call *quantize,
		     void **ret_state)
{
	struct bound *b = malloc(sizeof(*b));

	if (!b)
		return te_fail(-12, "no memory");
	*b = (struct bound){ user, fn, TE_KERNEL_ACT_OPTS_INIT };
	b->o.act = TE_ACT_SILU;
	b->o.gated = 1;
	if (quantize) {
		b->o.quant = quantize->y.quant;
		b->o.q = quantize->y.q;
		b->o.slot = quantize->y.slot;
		b->o.quant_flags = quantize->flags & TE_CALL_NO_AMAX ? TE_QUANTIZE_NO_AMAX : 0;
	}
	user->nbinds++;
	*ret_state = b;
	return 0;
}

static void bound_free(struct bound *b)
{
	b->user->nunbinds++;
	free(b);
}

static int swiglu_bind(const struct te_op_call *c, enum te_op_fn fn, void **ret_state)
{
	return bound_new(te_op_table(c->op)->user, fn, NULL, ret_state);
}

static void swiglu_unbind(const struct te_op *op, enum te_op_fn fn, void *state)
{
	struct bound *b = state;

	ck_assert_ptr_eq(b->user, te_op_table(op)->user);
	ck_assert_int_eq(b->fn, fn);
	bound_free(b);
}

static int swiglu_forward(const struct te_op_call *c)
{
	const struct bound *b = c->state;

	b->user->nruns[0]++;
	return te_kernel_act_forward(c->stream, c->x.hp, c->y.hp, &b->o);
}

static int swiglu_backward(const struct te_op_call *c)
{
	const struct bound *b = c->state;

	b->user->nruns[1]++;
	return te_kernel_act_backward(c->stream, c->dy.hp, c->x.hp, c->dx.hp, NULL, NULL, 0, &b->o);
}

/* ---- with FP8 output: a fusion of each pass ---- */

static int keeps(const struct te_fused *f)
{
	return te_quant_recipe(f->part[1]->y.quant)->kind == TE_RECIPE_CURRENT;
}

/* fp8-current reads the result again; keep would give it memory in all recipes */
static int cast_applies(const struct te_fused *f)
{
	return !keeps(f);
}

static int swiglu_cast_bind(const struct te_fused *f, void **ret_state)
{
	return bound_new(f->fusion->user,
			 f->fusion->pass == TE_PASS_FORWARD ? TE_OP_FORWARD : TE_OP_BACKWARD,
			 f->part[1], ret_state);
}

static void swiglu_cast_unbind(const struct te_fused *f, void *state)
{
	ck_assert_ptr_eq(((struct bound *)state)->user, f->fusion->user);
	bound_free(state);
}

static int swiglu_cast_forward(const struct te_fused *f)
{
	const struct te_op_call *c = f->part[0];
	const struct bound *b = f->state;

	b->user->nruns[0]++;
	return te_kernel_act_forward(c->stream, c->x.hp, c->y.hp, &b->o);
}

static int swiglu_cast_backward(const struct te_fused *f)
{
	const struct te_op_call *c = f->part[0];
	const struct bound *b = f->state;

	b->user->nruns[1]++;
	return te_kernel_act_backward(c->stream, c->dy.hp, c->x.hp, c->dx.hp, NULL, NULL, 0, &b->o);
}

/* ---- RMSNorm, its cast and the fork: joint ---- */

static struct te_kernel_norm_opts norm_opts(const struct te_op_call *c)
{
	const struct te_norm_attrs *a = te_op_attrs(c->op);
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;

	o.eps = a->eps;
	o.flags = a->flags;
	return o;
}

static int norm_save(const struct te_fused *f, int32_t index, struct te_spec *ret)
{
	*ret = (struct te_spec){ TE_DTYPE_FP32, 1, { te_tensor_rows(f->part[0]->x.hp) } };
	return !index;
}

static int norm_forward(const struct te_fused *f)
{
	const struct te_op_call *c = f->part[0], *quantize = f->nparts > 1 ? f->part[1] : NULL;
	struct te_kernel_norm_opts o = norm_opts(c);

	ck_assert_ptr_null(c->saved[0]); /* only the replaced steps know it */
	if (quantize) {
		o.quant = quantize->y.quant;
		o.q = quantize->y.q;
		o.slot = quantize->y.slot;
	}
	return te_kernel_norm_forward(c->stream, c->x.hp, c->master[0], NULL, c->y.hp, NULL,
				      f->saved[0], &o);
}

static size_t norm_ws(const struct te_fused *f)
{
	const struct te_tensor *x = f->part[0]->x.hp;

	return te_kernel_norm_ws_nbytes(te_tensor_rows(x), te_tensor_cols(x), 1);
}

static int norm_backward(const struct te_fused *f)
{
	const struct te_op_call *c = f->part[0], *dw = f->part[1], *fork = f->part[2];
	struct te_kernel_norm_opts o = norm_opts(c);

	ck_assert_ptr_null(c->dx.hp);
	o.residual = fork->dey[0].hp;
	return te_kernel_norm_backward(c->stream, c->dy.hp, c->x.hp, c->master[0], NULL,
				       f->saved[0], fork->dx.hp, dw->grad[0], NULL, f->ws,
				       f->ws_nbytes, &o);
}

static int norm_applies(const struct te_fused *f)
{
	return f->nparts < 2 || !keeps(f);
}

/* ---- the block ---- */

static void put(struct te_seq *seq, struct te_op *op)
{
	tt_append(seq, op);
}

static char *nm(int layer, const char *what)
{
	static char buf[32];

	snprintf(buf, sizeof(buf), "h.%d.%s", layer, what);
	return buf;
}

static void branch(struct te_seq *seq, int l, const char *name)
{
	struct te_norm_attrs na = TE_ATTRS(norm, WIDTH, 1e-5f, 0);
	struct te_op *op;

	DO(te_op_fork(nm(l, name), &op));
	DO(te_op_give(op, 0, nm(l, name)));
	put(seq, op);
	DO(te_op_rmsnorm(&na, strcat(nm(l, name), ".norm"), &op));
	put(seq, op);
}

static void linear(struct te_seq *seq, int l, const char *name, int64_t in, int64_t out)
{
	struct te_linear_attrs la = TE_ATTRS(linear, in, out, 0.15f, 0, NULL);
	struct te_op *op;

	DO(te_op_linear(&la, nm(l, name), &op));
	put(seq, op);
}

static void join(struct te_seq *seq, int l, const char *name, const char *channel)
{
	struct te_op *op;

	DO(te_op_add(nm(l, name), &op));
	DO(te_op_take(op, 0, nm(l, channel)));
	put(seq, op);
}

/* ops: the user's table; NULL: the built-in activation */
static void block(struct te_seq *seq, int l, const struct te_op_ops *ops)
{
	struct te_rope_attrs ra = TE_ATTRS(rope, NHEADS, NKV, HEAD_DIM, 10000.0f);
	struct te_attention_attrs aa = TE_ATTRS(attention, NHEADS, NKV, HEAD_DIM, 0, 0, 0, 0, 0);
	struct te_act_attrs act = TE_ATTRS(act, TE_ACT_SILU, 1);
	struct te_op *op;

	branch(seq, l, "ln1");
	linear(seq, l, "qkv", WIDTH, (NHEADS + 2 * NKV) * HEAD_DIM);
	DO(te_op_rope(&ra, nm(l, "rope"), &op));
	put(seq, op);
	DO(te_op_attention(&aa, nm(l, "attn"), &op));
	put(seq, op);
	linear(seq, l, "proj", NHEADS * HEAD_DIM, WIDTH);
	join(seq, l, "add1", "ln1");
	branch(seq, l, "ln2");
	linear(seq, l, "up", WIDTH, 2 * FFN);
	if (ops)
		DO(te_op_create(ops, NULL, nm(l, "act"), &op));
	else
		DO(te_op_activation(&act, nm(l, "act"), &op));
	put(seq, op);
	linear(seq, l, "down", FFN, WIDTH);
	join(seq, l, "add2", "ln2");
}

static void add_fusions(struct te_seq *seq, struct swiglu *user)
{
	struct te_fusion f = TE_FUSION_INIT, b = TE_FUSION_INIT;

	f.name = "swiglu+quantize";
	f.pattern = "swiglu quantize";
	f.applies = cast_applies;
	f.run = swiglu_cast_forward;
	f.user = user;
	f.bind = swiglu_cast_bind;
	f.unbind = swiglu_cast_unbind;
	DO(te_seq_add_fusion(seq, &f));
	f.name = "dswiglu+quantize";
	f.pass = TE_PASS_BACKWARD;
	f.run = swiglu_cast_backward;
	DO(te_seq_add_fusion(seq, &f));

	b.name = "user.norm.bwd";
	b.pass = TE_PASS_BACKWARD;
	b.pattern = "rmsnorm rmsnorm.dw fork";
	b.ws_nbytes = norm_ws;
	b.run = norm_backward;
	f = (struct te_fusion)TE_FUSION_INIT;
	f.name = "user.norm+quantize";
	f.pass = TE_PASS_JOINT;
	f.pattern = "rmsnorm quantize";
	f.applies = norm_applies;
	f.run = norm_forward;
	f.save = norm_save;
	f.backward = &b;
	DO(te_seq_add_fusion(seq, &f));
	f.name = "user.norm"; /* nothing is cast, or by its own step */
	f.pattern = "rmsnorm";
	DO(te_seq_add_fusion(seq, &f));
}

static struct te_seq *blocks(const struct te_op_ops *ops)
{
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	for (int l = 0; l < LAYERS; l++)
		block(seq, l, ops);
	if (ops)
		add_fusions(seq, ops->user);
	DO(te_seq_init(seq, 11));
	return seq;
}

static struct te_plan *plan_of(struct te_seq *seq, const char *recipe, uint32_t flags)
{
	struct te_recipe rec = tt_recipe(recipe);

	if (rec.kind == TE_RECIPE_DELAYED)
		rec.history_len = 2;
	return tt_plan(seq, &rec, flags,
		       (struct te_spec){ rec.compute, 3, { BATCH, SEQLEN, WIDTH } });
}

static int count(const struct te_plan *p, const char *group)
{
	char *text, want[64];
	int n = 0;

	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	snprintf(want, sizeof(want), "  %s ", group);
	for (const char *s = text; (s = strstr(s, want)); s++)
		n++;
	free(text);
	return n;
}

static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };

CTX_CASE(block, "numeric");

TEST_EACH(block, a_block_with_a_users_parts_has_the_same_bits, 2 * TT_LEN(recipes))
{
	const char *recipe = recipes[_i % TT_LEN(recipes)];
	const int replay = (size_t)_i >= TT_LEN(recipes), casts = !strncmp(recipe, "fp8", 3);
	const int fuses = casts && strcmp(recipe, "fp8-current");
	const uint32_t flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	float *x = malloc(NELEMS * sizeof(*x)), *dy = malloc(NELEMS * sizeof(*dy));
	struct swiglu user = { .nbinds = 0 };
	struct te_op_ops ops = TE_OP_OPS_INIT;
	struct te_recording *rec = NULL;
	struct te_seq *mine, *built_in;
	struct te_plan *p, *q;

	ops.name = "swiglu";
	ops.infer = swiglu_infer;
	ops.forward = swiglu_forward;
	ops.backward = swiglu_backward;
	ops.user = &user;
	ops.bind = swiglu_bind;
	ops.unbind = swiglu_unbind;
	mine = blocks(&ops);
	built_in = blocks(NULL);
	p = plan_of(mine, recipe, flags);
	q = plan_of(built_in, recipe, flags);
	ck_assert_int_eq(count(p, "swiglu+quantize"), fuses ? LAYERS : 0);
	ck_assert_int_eq(count(p, "dswiglu+quantize"), fuses ? LAYERS : 0);
	ck_assert_int_eq(count(p, "user.norm+quantize"), fuses ? 2 * LAYERS : 0);
	ck_assert_int_eq(count(p, "user.norm"), fuses ? 0 : 2 * LAYERS);
	ck_assert_int_eq(count(p, "user.norm.bwd"), 2 * LAYERS);
	ck_assert_int_eq(user.nbinds, 2 * LAYERS); /* of ops or of fusions */
	for (int step = 0; step < 4; step++) {
		/* another magnitude: scales change */
		tt_fill_normal(x, NELEMS, 1.0f + (float)step);
		tt_fill_normal(dy, NELEMS, 0.1f * (float)(step + 1));
		plan_feed(p, x, dy);
		plan_feed(q, x, dy);
		if (replay && step == 1) {
			DO(te_capture_begin(st));
			plan_passes(p);
			DO(te_capture_end(st, &rec));
		}
		if (rec)
			DO(te_recording_launch(rec, st));
		else
			plan_passes(p);
		plan_passes(q);
		model_same(te_plan_output(p), te_plan_output(q), "outputs");
		model_same(te_plan_input_grad(p), te_plan_input_grad(q), "gradients of x");
		model_same(te_seq_grads(mine), te_seq_grads(built_in), "gradients");
		model_same_scales(te_seq_quant(mine), te_seq_quant(built_in));
	}
	ck_assert_int_eq(user.nruns[0], LAYERS * (replay ? 2 : 4));
	ck_assert_int_eq(user.nruns[1], user.nruns[0]);
	ck_assert_int_eq(user.nunbinds, 0);
	te_recording_unref(rec);
	te_plan_unref(p);
	te_plan_unref(q);
	ck_assert_int_eq(user.nunbinds, user.nbinds);
	te_seq_unref(mine);
	te_seq_unref(built_in);
	free(x);
	free(dy);
}

/* no cast of a Llama model is a step of its own, in training and in evaluation */
TEST_EACH(block, a_llama_model_casts_in_its_kernels, 6)
{
	static const struct model_shape m = { 48, 32, 2, 16, 4, 2, 2, 0, 1 };
	static const uint32_t flags[] = { TE_PLAN_TRAIN, TE_PLAN_TRAIN | TE_PLAN_DELAY_DW, 0 };
	const char *recipe = _i & 1 ? "fp8-current" : "fp8-delayed";
	struct te_seq *seq = model_create(ctx, &m, 5);
	struct te_plan *p = model_plan(seq, &m, recipe, flags[_i / 2]);

	ck_assert_int_gt(count(p, "attention+quantize"), 0);
	ck_assert_int_eq(count(p, "quantize"), 0);
	tt_drop(p, seq);
}
