/*
 * t/plan/weights_grads.c - TE_SEQ_BF16_GRADS: every addition to a gradient is rounded to nearest,
 * AdamW reads what is stored, memory is counted, and what would add FP32 is refused.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include <te/errno.h>
#include <te/optim.h>
#include <te/plan.h>

#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"
#include "weights_cases.h"

static const struct model_shape shapes[] = { { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 },
					     { 48, 32, 2, 16, 4, 2, 2, 0, 1 } };
static const char *const recipes[] = { "bf16", "fp8-delayed", "fp8-current", "fp8-block" };

static struct te_seq *make(const struct model_shape *m, uint32_t flags)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = model_create_unbound(ctx, m);

	b.flags = flags;
	DO(te_seq_complete(s));
	DO(te_seq_bind(s, &b));
	DO(te_seq_init(s, 5));
	return s;
}

static float largest(const float *v, int64_t n)
{
	float x = 0;

	for (int64_t k = 0; k < n; k++)
		x = fmaxf(x, fabsf(v[k]));
	return x;
}

/*
 * got = was + add in BF16, by the backend of the context. cuBLASLt rounds `add`, too (te/gemm.h):
 * on a GPU the error is at most 2^-8 |add| + 2^-8 |was + rounded add|. Its FP32 sums of 48 products
 * may have another order: `most`, the largest gradient, is for these.
 */
static int is_sum(float got, float was, float add, float most)
{
	const float sum = was + add;

	if (!strcmp(backend, "host"))
		return got == tt_round(TE_DTYPE_BF16, sum);
	return fabsf(got - sum) <=
	       0x1p-8f * (1.01f * fabsf(add) + fabsf(sum)) + 0x1p-20f * most;
}

/* s[0] has the gradient of one pass; s[1] had `was`, and the pass has added to it. tied: the
 * embedding's was added to twice */
static void check_grad(struct te_seq *const s[2], int i, const float *was, int tied)
{
	const struct te_weight_info w = weight(s[0], i);
	float *add = tt_tensor_get(w.grad), *got = tt_tensor_get(weight(s[1], i).grad);
	/* the embedding that is the head, too */
	const int twice = tied && !strcmp(w.name, "emb.weight");
	const float most = largest(add, te_tensor_nelems(w.grad));

	ck_assert_int_eq((int)te_tensor_dtype(weight(s[1], i).grad), TE_DTYPE_BF16);
	for (int64_t k = 0; k < te_tensor_nelems(w.grad); k++) {
		const float want = tt_round(TE_DTYPE_BF16, was[k] + add[k]);

		if (twice)
			ck_assert_float_le(fabsf(got[k] - want), 0x1p-6f * (fabsf(want) + 0.05f));
		else
			ck_assert_msg(is_sum(got[k], was[k], add[k], most),
				      "%s[%d]: %.9g, expected %.9g", w.name, (int)k,
				      (double)got[k], (double)want);
	}
	free(add);
	free(got);
}

CTX_CASE(grads, "plan numeric");

TEST_EACH(grads, rounds_each_addition, 2 * (int)TT_LEN(recipes))
{
	const struct model_shape *m = &shapes[_i & 1];
	struct te_seq *s[2] = { make(m, 0), make(m, TE_SEQ_BF16_GRADS) };
	struct te_plan *p[2];
	float *was[64];
	int n = te_seq_nweights(s[0]);

	ck_assert_int_le(n, (int)TT_LEN(was));
	for (int i = 0; i < 2; i++)
		p[i] = model_plan(s[i], m, recipes[_i / 2],
				  TE_PLAN_TRAIN | (_i & 2 ? TE_PLAN_NO_FUSION : 0));
	for (int pass = 0; pass < 3; pass++) {
		model_feed(p[0], m);
		for (int i = 0; i < 2; i++) {
			const char *name = i ? "targets" : "x";
			struct te_tensor *t = te_plan_input(p[0], name);

			DO(te_copy(st, te_tensor_data(te_plan_input(p[1], name)),
				   te_tensor_data(t), te_tensor_nbytes(t)));
		}
		DO(te_stream_sync(st));
		for (int i = 0; i < n; i++)
			was[i] = tt_tensor_get(weight(s[1], i).grad);
		DO(te_seq_zero_grads(s[0], st));
		for (int i = 0; i < 2; i++) {
			DO(te_plan_forward(p[i], st, 0));
			DO(te_plan_backward(p[i], st));
		}
		DO(te_stream_sync(st));
		model_same(te_plan_output(p[0]), te_plan_output(p[1]), "losses");
		for (int i = 0; i < n; i++) {
			check_grad(s, i, was[i], !m->llama);
			free(was[i]);
		}
	}
	tt_drop_both(p, s);
}

/* the same values in FP32 and in BF16; _i: moments */
TEST_EACH(grads, adamw_reads_bf16, 3)
{
	const uint32_t masters = TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS;
	struct te_seq *s[2] = { make(&shapes[0], masters),
				make(&shapes[0], masters | TE_SEQ_BF16_GRADS) };
	const size_t n = (size_t)te_tensor_nelems(te_seq_grads(s[0]));
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	float *g = malloc(n * sizeof(*g));
	struct te_adamw *opt[2];
	uint16_t *h = malloc(n * sizeof(*h));
	struct te_adamw_stats stats[2] = { TE_ADAMW_STATS_INIT, TE_ADAMW_STATS_INIT };

	o.moments = (enum te_moments)_i;
	for (int i = 0; i < 2; i++)
		DO(te_adamw_create(s[i], &o, &opt[i]));
	for (int step = 0; step < 2; step++) {
		tt_fill_normal(g, n, 1.0f);
		for (size_t k = 0; k < n; k++) {
			g[k] = tt_round(TE_DTYPE_BF16, g[k]);
			memcpy(&h[k], (const char *)&g[k] + 2, 2);
		}
		DO(te_tensor_write(te_seq_grads(s[0]), g, n * sizeof(*g)));
		DO(te_tensor_write(te_seq_grads(s[1]), h, n * sizeof(*h)));
		for (int i = 0; i < 2; i++)
			DO(te_adamw_step(opt[i], st));
	}
	DO(te_stream_sync(st));
	model_same(te_seq_masters(s[0]), te_seq_masters(s[1]), "masters");
	model_same(te_adamw_m(opt[0]), te_adamw_m(opt[1]), "first moments");
	model_same(te_adamw_v(opt[0]), te_adamw_v(opt[1]), "second moments");
	for (int i = 0; i < 2; i++) {
		DO(te_adamw_stats(opt[i], &stats[i]));
		te_adamw_unref(opt[i]);
		te_seq_unref(s[i]);
	}
	/* FP64 in another order */
	ck_assert_int_le(tt_ulps_f32(stats[0].grad_norm, stats[1].grad_norm), 1);
	ck_assert(stats[0].grad_norm > 0);
	free(g);
	free(h);
}

TEST(grads, takes_half_of_the_memory)
{
	struct te_seq *s[2] = { make(&shapes[1], 0), make(&shapes[1], TE_SEQ_BF16_GRADS) };
	const int64_t n = te_seq_grad_nelems(s[0]);
	uint64_t nbytes[2];

	ck_assert_int_eq(te_seq_grad_nelems(s[1]), n);
	for (int i = 0; i < 2; i++) {
		struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;
		struct te_plan *p = model_plan(s[i], &shapes[1], "bf16", TE_PLAN_TRAIN);

		DO(te_plan_memory(p, &pm));
		nbytes[i] = pm.weights_nbytes;
		ck_assert_uint_eq(te_tensor_nbytes(te_seq_grads(s[i])), (size_t)n * (i ? 2 : 4));
		tt_drop(p, s[i]);
	}
	ck_assert_uint_eq(nbytes[0] - nbytes[1], 2 * (uint64_t)n);
}

/* a user's op with a weight */
static int gain_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret)
{
	(void)op;
	ret->name = "gain";
	ret->ndim = 1;
	ret->shape[0] = 32;
	return index == 0;
}

static int gain_infer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	return 0;
}

static int gain_run(const struct te_op_call *c)
{
	(void)c;
	return 0;
}

TEST(grads, refuses_what_adds_fp32)
{
	static const struct te_op_ops gain = { .size = sizeof(gain), .name = "gain",
					       .weight = gain_weight, .infer = gain_infer,
					       .forward = gain_run, .backward = gain_run,
					       .backward_dw = gain_run };
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = make(&shapes[0], TE_SEQ_BF16_GRADS);
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_recipe fp32 = model_recipe("fp32");
	struct te_plan *p = (struct te_plan *)1;
	struct te_op *op;

	po.flags = TE_PLAN_TRAIN;
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 2, 16 } };
	po.recipe = &fp32;
	fails(te_plan_create(s, &po, &p), -TE_EDTYPE, "te_plan_create: the recipe computes in "
	      "fp32, and TE_SEQ_BF16_GRADS: expected bf16");
	po.flags = 0; /* inference adds nothing */
	DO(te_plan_create(s, &po, &p));
	tt_drop(p, s);

	DO(te_seq_create(ctx, &s));
	DO(te_op_create(&gain, NULL, "mine", &op));
	tt_append(s, op);
	DO(te_seq_complete(s));
	b.flags = TE_SEQ_BF16_GRADS | TE_SEQ_NO_GRADS;
	fails(te_seq_bind(s, &b), -EINVAL, "te_seq_bind: TE_SEQ_BF16_GRADS, and TE_SEQ_NO_GRADS");
	b.flags = TE_SEQ_BF16_GRADS;
	DO(te_seq_bind(s, &b));
	DO(te_seq_init(s, 1));
	po = (struct te_plan_opts)TE_PLAN_OPTS_INIT;
	po.flags = TE_PLAN_TRAIN;
	po.x = (struct te_spec){ TE_DTYPE_BF16, 2, { 2, 32 } };
	fails(te_plan_create(s, &po, &p), -EOPNOTSUPP, "te_plan_create: op mine is user-defined "
	      "and has a trained weight: its gradient would be FP32, and TE_SEQ_BF16_GRADS");
	te_seq_unref(s);
}
