/*
 * fusions.c - the fusions that come with the library.
 *
 * Casts: the producer's kernel writes the FP8 copies itself. Under the delayed recipe the
 * scale is known beforehand and nothing else runs. Under the current recipe the producer
 * folds the amax, which saves reading the value once; its full-precision result is
 * kept, in scratch where nobody else wants it, until the scale is there. Kernels
 * round to the compute dtype before they cast, so the bits are those of the
 * separate steps.
 *
 * Sums: the product adds bias and residual before its one rounding, and so does the norm's
 * backward. The separate steps round in between, so the results differ by at
 * most those roundings; the tests derive the bounds.
 */
#define TE_LOG_CATEGORY "core/plan"
#include "config.h"

#include "libtecore/ops/ops_internal.h"
#include "libtecore/plan_internal.h"

/* ---- casts ---- */

static int is_current(const struct te_op_call *quantize)
{
	return te_quant_recipe(quantize->y.quant)->kind == TE_RECIPE_CURRENT;
}

/* is the value that the producer gives the one that is cast? both NULL: it is internal */
static int casts(const struct te_tensor *given, const struct te_op_call *quantize)
{
	return quantize->y.q && quantize->y.quant && given == quantize->x.hp;
}

/* scratch for the full-precision result, where nobody keeps it and the cast needs it */
static size_t kept_nbytes(const struct te_tensor *given, const struct te_op_call *quantize,
			  enum te_dtype dtype)
{
	if (given || !is_current(quantize))
		return 0;
	return te__ops_round_up((size_t)te_tensor_nelems(quantize->y.q) * te_dtype_nbytes(dtype));
}

/* *ret: what the producer writes beside its result */
static int cast_begin(const struct te_op_call *c, struct te_k_q *ret)
{
	float *amax = te_quant_amax_ptr(c->y.quant, c->y.slot);
	const struct te_k_clear clear = { .word = amax };

	if (is_current(c)) {
		*ret = (struct te_k_q){ .amax = amax };
		return TE__LAUNCH(c->stream, CLEAR, &clear);
	}
	*ret = (struct te_k_q){
		.row = te_tensor_data(c->y.q),
		.col = te_tensor_coldata(c->y.q),
		.scale = te_quant_scale_ptr(c->y.quant, c->y.slot),
		.scale_inv = te_tensor_scale_inv(c->y.q),
		.amax = c->flags & TE_CALL_NO_AMAX ? NULL : amax,
		.dtype = te_tensor_dtype(c->y.q),
	};
	return 0;
}

/* current: hp and its amax are there, now scale and codes */
static int cast_end(const struct te_op_call *c, const void *hp, enum te_dtype dtype)
{
	const struct te_recipe *recipe = te_quant_recipe(c->y.quant);
	const struct te_k_scale_current scale = {
		.amax = te_quant_amax_ptr(c->y.quant, c->y.slot),
		.scale = te_quant_scale_ptr(c->y.quant, c->y.slot),
		.fmt_max = te_dtype_max(te_tensor_dtype(c->y.q)),
		.epsilon = recipe->amax_epsilon,
		.pow2 = !!(recipe->flags & TE_RECIPE_POW2),
	};
	const struct te_k_quantize quantize = {
		.x = hp,
		.rows = te_tensor_rows(c->y.q),
		.cols = te_tensor_cols(c->y.q),
		.q = {
			.row = te_tensor_data(c->y.q),
			.col = te_tensor_coldata(c->y.q),
			.scale = scale.scale,
			.scale_inv = te_tensor_scale_inv(c->y.q),
			.dtype = te_tensor_dtype(c->y.q),
		},
		.dtype = dtype,
	};
	int r;

	if (!is_current(c))
		return 0;
	r = TE__LAUNCH(c->stream, SCALE_CURRENT, &scale);
	return r < 0 ? r : TE__LAUNCH(c->stream, QUANTIZE, &quantize);
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
	const struct te_op_call *c = f->part[0];
	struct te_k_norm_fwd k;
	int r;

	te__ops_norm_fwd(c, &k);
	if (!k.y && is_current(f->part[1]))
		k.y = f->ws;
	r = cast_begin(f->part[1], &k.q);
	if (r >= 0)
		r = TE__LAUNCH(c->stream, NORM_FWD, &k);
	return r < 0 ? r : cast_end(f->part[1], k.y, k.dtype);
}

static int act_quantize(const struct te_fused *f)
{
	const struct te_op_call *c = f->part[0];
	struct te_k_act_fwd k;
	int r;

	te__ops_act_fwd(c, &k);
	if (!k.y && is_current(f->part[1]))
		k.y = f->ws;
	r = cast_begin(f->part[1], &k.q);
	if (r >= 0)
		r = TE__LAUNCH(c->stream, ACT_FWD, &k);
	return r < 0 ? r : cast_end(f->part[1], k.y, k.dtype);
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
	return te__ops_part_nbytes(te_tensor_rows(act->x.hp), te_tensor_cols(act->x.hp));
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
	const struct te_op_call *c = f->part[0];
	size_t part_nbytes = dbias ? dbias_part_nbytes(c) : 0;
	struct te_k_act_bwd k;
	int r;

	te__ops_act_bwd(c, &k);
	if (dbias)
		k.part = f->ws;
	if (!k.dx && is_current(quantize))
		k.dx = (char *)f->ws + part_nbytes;
	r = cast_begin(quantize, &k.q);
	if (r >= 0)
		r = TE__LAUNCH(c->stream, ACT_BWD, &k);
	if (r >= 0 && dbias)
		r = te__ops_part_sum(dbias, 0, k.part, k.rows, te_tensor_cols(c->x.hp));
	return r < 0 ? r : cast_end(quantize, k.dx, k.dtype);
}

static int dact_quantize(const struct te_fused *f)
{
	return run_dact(f, NULL, f->part[1]);
}

static int dact_dbias_quantize(const struct te_fused *f)
{
	return run_dact(f, f->part[1], f->part[2]);
}

/* ---- sums in a product ---- */

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
	return te__ops_linear_fwd(f->part[0], f->part[1]->y.hp, te__ops_weight(f->part[1], 0),
				  NULL);
}

static int linear_add(const struct te_fused *f)
{
	return te__ops_linear_fwd(f->part[0], f->part[1]->y.hp, NULL, f->part[1]->ex[0].hp);
}

static int linear_bias_add(const struct te_fused *f)
{
	return te__ops_linear_fwd(f->part[0], f->part[2]->y.hp, te__ops_weight(f->part[1], 0),
				  f->part[2]->ex[0].hp);
}

/* ---- sums at a fork, backward: the gradient of the branch meets that of the residual ---- */

static int fork_sum_applies(const struct te_fused *f)
{
	const struct te_op_call *fork = f->part[f->nparts - 1];

	return !f->part[0]->dx.hp && fork->dey[0].hp && fork->dx.hp;
}

static int run_norm_bwd_add(const struct te_fused *f, const struct te_op_call *fork)
{
	struct te_k_norm_bwd k;

	te__ops_norm_bwd(f->part[0], &k);
	k.dres = te_tensor_data(fork->dey[0].hp);
	k.dx = te_tensor_data(fork->dx.hp);
	return TE__LAUNCH(f->part[0]->stream, NORM_BWD, &k);
}

static int norm_bwd_add(const struct te_fused *f)
{
	return run_norm_bwd_add(f, f->part[1]);
}

static int norm_bwd_dw_add(const struct te_fused *f)
{
	int r = run_norm_bwd_add(f, f->part[2]);

	return r < 0 ? r : te__ops_norm_dw(f->part[1], f->ws);
}

static int dgrad_add(const struct te_fused *f)
{
	return te__ops_linear_bwd(f->part[0], f->part[1]->dx.hp, f->part[1]->dey[0].hp);
}

static int dgrad_wgrad_add(const struct te_fused *f)
{
	int r = te__ops_linear_bwd(f->part[0], f->part[2]->dx.hp, f->part[2]->dey[0].hp);

	return r < 0 ? r : te__ops_linear_dw(f->part[1]);
}

/* the longer of two that begin alike comes first */
const struct te_fusion te__fusions[] = {
	{
		.size = sizeof(struct te_fusion),
		.name = "norm+quantize",
		.pass = TE_PASS_FORWARD,
		.pattern = { "layernorm|rmsnorm", "quantize" },
		.applies = forward_cast_applies,
		.ws_nbytes = forward_cast_ws,
		.run = norm_quantize,
		.test = "t/core/fusion: norm_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "act+quantize",
		.pass = TE_PASS_FORWARD,
		.pattern = { "activation", "quantize" },
		.applies = forward_cast_applies,
		.ws_nbytes = forward_cast_ws,
		.run = act_quantize,
		.test = "t/core/fusion: activation_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "linear+bias+add",
		.pass = TE_PASS_FORWARD,
		.pattern = { "linear", "bias", "add" },
		.applies = linear_sum_applies,
		.run = linear_bias_add,
		.test = "t/core/fusion: product_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "linear+bias",
		.pass = TE_PASS_FORWARD,
		.pattern = { "linear", "bias" },
		.applies = linear_sum_applies,
		.run = linear_bias,
		.test = "t/core/fusion: product_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "linear+add",
		.pass = TE_PASS_FORWARD,
		.pattern = { "linear", "add" },
		.applies = linear_sum_applies,
		.run = linear_add,
		.test = "t/core/fusion: product_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dact+dbias+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = { "activation", "bias.dw", "quantize" },
		.applies = dact_dbias_cast_applies,
		.ws_nbytes = dact_dbias_cast_ws,
		.run = dact_dbias_quantize,
		.test = "t/core/fusion: activation_gradient_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dact+quantize",
		.pass = TE_PASS_BACKWARD,
		.pattern = { "activation", "quantize" },
		.applies = dact_cast_applies,
		.ws_nbytes = dact_cast_ws,
		.run = dact_quantize,
		.test = "t/core/fusion: activation_gradient_casts_to_the_same_bits",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "norm.bwd+dw+add",
		.pass = TE_PASS_BACKWARD,
		.pattern = { "layernorm|rmsnorm", "layernorm.dw|rmsnorm.dw", "fork" },
		.applies = fork_sum_applies,
		.run = norm_bwd_dw_add,
		.test = "t/core/fusion: norm_gradient_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "norm.bwd+add",
		.pass = TE_PASS_BACKWARD,
		.pattern = { "layernorm|rmsnorm", "fork" },
		.applies = fork_sum_applies,
		.run = norm_bwd_add,
		.test = "t/core/fusion: norm_gradient_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dgrad+wgrad+add",
		.pass = TE_PASS_BACKWARD,
		.pattern = { "linear", "linear.dw", "fork" },
		.applies = fork_sum_applies,
		.run = dgrad_wgrad_add,
		.test = "t/core/fusion: product_gradient_adds_within_the_bound",
	},
	{
		.size = sizeof(struct te_fusion),
		.name = "dgrad+add",
		.pass = TE_PASS_BACKWARD,
		.pattern = { "linear", "fork" },
		.applies = fork_sum_applies,
		.run = dgrad_add,
		.test = "t/core/fusion: product_gradient_adds_within_the_bound",
	},
};
const int te__nfusions = sizeof(te__fusions) / sizeof(te__fusions[0]);
