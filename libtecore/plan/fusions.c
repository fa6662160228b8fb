/*
 * fusions.c - the fusions that come with the library.
 *
 * Casts: the producer's kernel does what the recipe's te__quantize_begin() asks: it writes the
 * FP8 copies itself, or only folds the amax. In the latter case te__quantize_end() writes them from
 * the producer's full-precision result, which is kept in scratch if nothing else keeps it. Kernels
 * round to the compute dtype before they cast, so the bits are those of the separate steps.
 *
 * Sums: the GEMM adds bias and residual before its one rounding, and so does the norm's
 * backward. The separate steps round in between, so the results differ by at
 * most those roundings; the tests derive the bounds.
 */
#define TE_LOG_CATEGORY "core/plan"
#include "config.h"

#include "libtecore/ops/common.h"
#include "libtecore/plan/plan.h"

/* ---- casts ---- */

/* is the value that the producer gives the one that is cast? both NULL: it is internal */
static int casts(const struct te_tensor *given, const struct te_op_call *quantize)
{
	return quantize->y.q && quantize->y.quant && given == quantize->x.hp;
}

/* no block scaling */
static int has_one_scale(const struct te_op_call *quantize)
{
	return te_tensor_scaling(quantize->y.q) == TE_SCALING_TENSOR;
}

/* scratch for the full-precision result, if it has no memory and the cast reads it */
static size_t kept_nbytes(const struct te_tensor *given, const struct te_op_call *quantize,
			  enum te_dtype dtype)
{
	if (given || !te__quantize_keeps_x(quantize->y.quant))
		return 0;
	return te__ops_round_up((size_t)te_tensor_nelems(quantize->y.q) * te_dtype_nbytes(dtype));
}

/* where the producer writes that result: there, in the scratch, or nowhere */
static void *result(void *given, const struct te_op_call *quantize, void *scratch, size_t offset)
{
	if (given || !te__quantize_keeps_x(quantize->y.quant))
		return given;
	return (char *)scratch + offset;
}

/* norm or activation, quantize */
static int forward_cast_applies(const struct te_fused *f)
{
	return casts(f->part[0]->y.hp, f->part[1]);
}

static size_t forward_cast_ws(const struct te_fused *f)
{
	return kept_nbytes(f->part[0]->y.hp, f->part[1], te_tensor_dtype(f->part[0]->x.hp));
}

static int norm_quantize(const struct te_fused *f)
{
	const struct te__quantize z = te__plan_quantize(f->part[1]);
	const struct te_op_call *c = f->part[0];
	struct te_k_norm_fwd k;

	te__ops_norm_fwd(c, &k);
	k.y = result(k.y, f->part[1], f->ws, 0);
	return te__norm_fwd(c->stream, &k, &z);
}

static int act_quantize(const struct te_fused *f)
{
	const struct te__quantize z = te__plan_quantize(f->part[1]);
	const struct te_op_call *c = f->part[0];
	struct te_k_act_fwd k;

	te__ops_act_fwd(c, &k);
	k.y = result(k.y, f->part[1], f->ws, 0);
	return te__act_fwd(c->stream, &k, &z);
}

/* its kernel computes tiles of one head, not blocks of 128 columns, and on a GPU casts BF16 only */
static int attention_cast_applies(const struct te_fused *f)
{
	return forward_cast_applies(f) && has_one_scale(f->part[1]) &&
	       te_tensor_dtype(f->part[0]->x.hp) == TE_DTYPE_BF16;
}

static int attention_quantize(const struct te_fused *f)
{
	const struct te__quantize z = te__plan_quantize(f->part[1]);
	const struct te_op_call *c = f->part[0];
	struct te_k_attn_fwd k;

	te__ops_attention_fwd(c, &k);
	k.out = result(k.out, f->part[1], f->ws, 0);
	return te__attention_fwd(c->stream, &k, &z);
}

/* activation, quantize: backward */
static int dact_cast_applies(const struct te_fused *f)
{
	return casts(f->part[0]->dx.hp, f->part[1]);
}

static size_t dact_cast_ws(const struct te_fused *f)
{
	return kept_nbytes(f->part[0]->dx.hp, f->part[1], te_tensor_dtype(f->part[0]->x.hp));
}

/* activation, bias.dw, quantize: the bias is the op before, its gradient the activation's dx */
static int dact_dbias_cast_applies(const struct te_fused *f)
{
	return casts(f->part[0]->dx.hp, f->part[2]) && f->part[1]->dy.hp == f->part[0]->dx.hp;
}

static size_t dbias_part_nbytes(const struct te_op_call *act)
{
	return te__part_nbytes(te_tensor_rows(act->x.hp), te_tensor_cols(act->x.hp));
}

static size_t dact_dbias_cast_ws(const struct te_fused *f)
{
	return dbias_part_nbytes(f->part[0]) +
	       kept_nbytes(f->part[0]->dx.hp, f->part[2], te_tensor_dtype(f->part[0]->x.hp));
}

/* dbias: the call of bias.dw, or NULL; its partial sums lie at the start of the scratch */
static int run_dact(const struct te_fused *f, const struct te_op_call *dbias,
		    const struct te_op_call *quantize)
{
	const struct te__quantize z = te__plan_quantize(quantize);
	const struct te_op_call *c = f->part[0];
	size_t part_nbytes = dbias ? dbias_part_nbytes(c) : 0;
	struct te_k_act_bwd k;

	te__ops_act_bwd(c, &k);
	if (dbias)
		k.part = f->ws;
	k.dx = result(k.dx, quantize, f->ws, part_nbytes);
	return te__act_bwd(c->stream, &k, dbias ? dbias->grad[0] : NULL, &z);
}

static int dact_quantize(const struct te_fused *f)
{
	return run_dact(f, NULL, f->part[1]);
}

static int dact_dbias_quantize(const struct te_fused *f)
{
	return run_dact(f, f->part[1], f->part[2]);
}

/* rope, quantize: backward. The saved input has no memory: shapes are those of dy */
static int drope_cast_applies(const struct te_fused *f)
{
	return casts(f->part[0]->dx.hp, f->part[1]) && has_one_scale(f->part[1]);
}

static size_t drope_cast_ws(const struct te_fused *f)
{
	return kept_nbytes(f->part[0]->dx.hp, f->part[1], te_tensor_dtype(f->part[0]->dy.hp));
}

static int drope_quantize(const struct te_fused *f)
{
	const struct te__quantize z = te__plan_quantize(f->part[1]);
	const struct te_op_call *c = f->part[0];
	struct te_k_rope k;

	te__ops_rope_bwd(c, &k);
	k.y = result(k.y, f->part[1], f->ws, 0);
	return te__rope(c->stream, &k, &z);
}

/* ---- sums in a GEMM ---- */

/* linear, bias, add: what lies between has no other reader, and the residual is another value */
static int linear_sum_applies(const struct te_fused *f)
{
	const struct te_op_call *last = f->part[f->nparts - 1];

	for (int i = 0; i < f->nparts - 1; i++)
		if (f->part[i]->y.hp)
			return 0;
	return !strcmp(last->op->ops.name, "bias") || last->ex[0].hp;
}

static int linear_bias(const struct te_fused *f)
{
	return te__ops_linear_fwd(f->part[0], 1.0f, f->part[1]->y.hp, te__ops_weight(f->part[1], 0),
				  NULL);
}

static int linear_add(const struct te_fused *f)
{
	return te__ops_linear_fwd(f->part[0], 1.0f, f->part[1]->y.hp, NULL, f->part[1]->ex[0].hp);
}

static int linear_bias_add(const struct te_fused *f)
{
	return te__ops_linear_fwd(f->part[0], 1.0f, f->part[2]->y.hp, te__ops_weight(f->part[1], 0),
				  f->part[2]->ex[0].hp);
}

static int linear_scale_add(const struct te_fused *f)
{
	return te__ops_linear_fwd(f->part[0], te__ops_factor(f->part[1]), f->part[2]->y.hp, NULL,
				  f->part[2]->ex[0].hp);
}

/* ---- a constant factor, backward: the GEMMs multiply by it ---- */

static int dscale_applies(const struct te_fused *f)
{
	return !f->part[0]->dx.hp; /* the scaled gradient has no other reader */
}

static int dscale_gemms(const struct te_fused *f)
{
	const float factor = te__ops_factor(f->part[0]);
	int r = 0;

	for (int i = 1; i < f->nparts && !r; i++) {
		struct te_op_call c = *f->part[i];

		c.dy = f->part[0]->dy;
		r = c.dx.hp ? te__ops_linear_bwd(&c, factor, c.dx.hp, NULL) :
			      te__ops_linear_dw(&c, factor);
	}
	return r;
}

/* ---- sums at a fork, backward: the gradient of the branch meets that of the residual ---- */

static int fork_sum_applies(const struct te_fused *f)
{
	const struct te_op_call *fork = f->part[f->nparts - 1];

	return !f->part[0]->dx.hp && fork->dey[0].hp && fork->dx.hp;
}

/* norm, then any of norm.dw, fork and quantize, in this order; those that are absent are NULL */
struct norm_bwd {
	const struct te_op_call *dw, *fork, *quantize;
	struct te_tensor *dx; /* what is stored or cast, or NULL: it has no memory */
	size_t dw_nbytes;     /* of scratch, and then dx if it has no memory: the cast reads it */
};

static struct norm_bwd norm_bwd_of(const struct te_fused *f)
{
	struct norm_bwd n = { NULL, NULL, NULL, f->part[0]->dx.hp, 0 };

	for (int i = 1; i < f->nparts; i++) {
		if (f->part[i]->op == f->part[0]->op)
			n.dw = f->part[i];
		else if (f->part[i]->y.q)
			n.quantize = f->part[i];
		else
			n.fork = f->part[i];
	}
	if (n.fork)
		n.dx = n.fork->dx.hp;
	if (n.dw)
		n.dw_nbytes = te__ops_norm_dw_ws(n.dw);
	return n;
}

static int norm_bwd_applies(const struct te_fused *f)
{
	const struct norm_bwd n = norm_bwd_of(f);

	if (n.fork && (f->part[0]->dx.hp || !n.fork->dey[0].hp))
		return 0;
	return n.quantize ? casts(n.dx, n.quantize) && has_one_scale(n.quantize) : n.dx != NULL;
}

static size_t norm_bwd_ws(const struct te_fused *f)
{
	const struct norm_bwd n = norm_bwd_of(f);
	const struct te_tensor *x = f->part[0]->x.hp;

	return n.dw_nbytes + (n.dx ? 0 : te__ops_round_up((size_t)te_tensor_nelems(x) *
							 te_dtype_nbytes(te_tensor_dtype(x))));
}

static int norm_bwd(const struct te_fused *f)
{
	const struct norm_bwd n = norm_bwd_of(f);
	void *dx = n.dx ? te_tensor_data(n.dx) : (char *)f->ws + n.dw_nbytes;
	struct te__quantize z = { .quant = NULL };
	int r;

	if (n.quantize)
		z = te__plan_quantize(n.quantize);
	r = te__ops_norm_bwd(f->part[0], n.fork ? n.fork->dey[0].hp : NULL, dx,
			     n.quantize ? &z : NULL);
	return r < 0 || !n.dw ? r : te__ops_norm_dw(n.dw, f->ws);
}

static int dgrad_add(const struct te_fused *f)
{
	return te__ops_linear_bwd(f->part[0], 1.0f, f->part[1]->dx.hp, f->part[1]->dey[0].hp);
}

static int dgrad_wgrad_add(const struct te_fused *f)
{
	int r = te__ops_linear_bwd(f->part[0], 1.0f, f->part[2]->dx.hp, f->part[2]->dey[0].hp);

	return r < 0 ? r : te__ops_linear_dw(f->part[1], 1.0f);
}

/* the longer of two that begin alike comes first */
const struct te_fusion te__fusions[] = {
	{
		.size = sizeof(struct te_fusion),
		.name = "norm+quantize",
		.pass = TE_PASS_FORWARD,
		.pattern = "layernorm|rmsnorm quantize",
		.applies = forward_cast_applies,
		.ws_nbytes = forward_cast_ws,
		.run = norm_quantize,
		.test = "t/plan/fusion: norm_casts_to_the_same_bits",
		.flags = TE_FUSION_REPEATS,
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "act+quantize",
		.pass = TE_PASS_FORWARD,
		.pattern = "activation quantize",
		.applies = forward_cast_applies,
		.ws_nbytes = forward_cast_ws,
		.run = act_quantize,
		.test = "t/plan/fusion: activation_casts_to_the_same_bits",
		.flags = TE_FUSION_REPEATS,
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "attention+quantize",
		.pass = TE_PASS_FORWARD,
		.pattern = "attention quantize",
		.applies = attention_cast_applies,
		.ws_nbytes = forward_cast_ws,
		.run = attention_quantize,
		.test = "t/plan/fusion: heads_cast_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "linear+bias+add",
		.pass = TE_PASS_FORWARD,
		.pattern = "linear bias add",
		.applies = linear_sum_applies,
		.run = linear_bias_add,
		.test = "t/plan/fusion: gemm_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "linear+bias",
		.pass = TE_PASS_FORWARD,
		.pattern = "linear bias",
		.applies = linear_sum_applies,
		.run = linear_bias,
		.test = "t/plan/fusion: gemm_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "linear+add",
		.pass = TE_PASS_FORWARD,
		.pattern = "linear add",
		.applies = linear_sum_applies,
		.run = linear_add,
		.test = "t/plan/fusion: gemm_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "linear+scale+add",
		.pass = TE_PASS_FORWARD,
		.pattern = "linear scale add",
		.applies = linear_sum_applies,
		.run = linear_scale_add,
		.test = "t/plan/fusion: gemm_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dscale+dgrad+wgrad",
		.pass = TE_PASS_BACKWARD,
		.pattern = "scale linear linear.dw",
		.applies = dscale_applies,
		.run = dscale_gemms,
		.test = "t/plan/fusion: factors_are_exact_in_gemms",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dscale+wgrad",
		.pass = TE_PASS_BACKWARD,
		.pattern = "scale linear.dw",
		.applies = dscale_applies,
		.run = dscale_gemms,
		.test = "t/plan/fusion: factors_are_exact_in_gemms",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dact+dbias+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = "activation bias.dw quantize",
		.applies = dact_dbias_cast_applies,
		.ws_nbytes = dact_dbias_cast_ws,
		.run = dact_dbias_quantize,
		.test = "t/plan/fusion: activation_gradient_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dact+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = "activation quantize",
		.applies = dact_cast_applies,
		.ws_nbytes = dact_cast_ws,
		.run = dact_quantize,
		.test = "t/plan/fusion: activation_gradient_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "drope+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = "rope quantize",
		.applies = drope_cast_applies,
		.ws_nbytes = drope_cast_ws,
		.run = drope_quantize,
		.test = "t/plan/fusion: heads_cast_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "norm.bwd+dw+add+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = "layernorm|rmsnorm layernorm.dw|rmsnorm.dw fork quantize",
		.applies = norm_bwd_applies,
		.ws_nbytes = norm_bwd_ws,
		.run = norm_bwd,
		.test = "t/plan/fusion: norm_gradient_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "norm.bwd+dw+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = "layernorm|rmsnorm layernorm.dw|rmsnorm.dw quantize",
		.applies = norm_bwd_applies,
		.ws_nbytes = norm_bwd_ws,
		.run = norm_bwd,
		.test = "t/plan/fusion: norm_gradient_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "norm.bwd+add+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = "layernorm|rmsnorm fork quantize",
		.applies = norm_bwd_applies,
		.ws_nbytes = norm_bwd_ws,
		.run = norm_bwd,
		.test = "t/plan/fusion: norm_gradient_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "norm.bwd+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = "layernorm|rmsnorm quantize",
		.applies = norm_bwd_applies,
		.ws_nbytes = norm_bwd_ws,
		.run = norm_bwd,
		.test = "t/plan/fusion: norm_gradient_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "norm.bwd+dw+add",
		.pass = TE_PASS_BACKWARD,
		.pattern = "layernorm|rmsnorm layernorm.dw|rmsnorm.dw fork",
		.applies = norm_bwd_applies,
		.ws_nbytes = norm_bwd_ws,
		.run = norm_bwd,
		.test = "t/plan/fusion: norm_gradient_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "norm.bwd+add",
		.pass = TE_PASS_BACKWARD,
		.pattern = "layernorm|rmsnorm fork",
		.applies = norm_bwd_applies,
		.ws_nbytes = norm_bwd_ws,
		.run = norm_bwd,
		.test = "t/plan/fusion: norm_gradient_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dgrad+wgrad+add",
		.pass = TE_PASS_BACKWARD,
		.pattern = "linear linear.dw fork",
		.applies = fork_sum_applies,
		.run = dgrad_wgrad_add,
		.test = "t/plan/fusion: gemm_gradient_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dgrad+add",
		.pass = TE_PASS_BACKWARD,
		.pattern = "linear fork",
		.applies = fork_sum_applies,
		.run = dgrad_add,
		.test = "t/plan/fusion: gemm_gradient_adds_within_the_bound",
	},
};
const int te__nfusions = sizeof(te__fusions) / sizeof(te__fusions[0]);
