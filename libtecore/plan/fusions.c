/*
 * fusions.c - the fusions that come with the library.
 *
 * Casts: the producer's kernel does what the recipe's te__quantize_begin() asks: it writes the
 * FP8 copies itself, or only folds the amax. In the latter case te__quantize_end() writes them from
 * the producer's full-precision result, which is kept in scratch if nothing else keeps it. Kernels
 * round to the compute dtype before they cast, so the bits do not differ from separate steps.
 *
 * Sums: the GEMM adds bias and residual before its one rounding, and so does the norm's
 * backward. The separate steps round in between, so the results differ by at
 * most those roundings; the tests derive the bounds.
 *
 * The loss: the kernel that reads the logits for the loss writes their gradient, in the memory of
 * the logits if nothing else reads them; the backward pass finds it there.
 *
 * The head: with chunks of rows, forward computes all gradients of the head as well, and backward
 * finds the gradient of its input, which may have the memory of that input.
 */
#define TE_LOG_CATEGORY "core/plan"
#include "config.h"

#include "libtecore/ops/common.h"
#include "libtecore/plan/plan.h"

/* ---- casts ---- */

/* is the producer's output the value that is cast? Both NULL: it is internal */
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

/* memory of the producer's result: its tensor, scratch, or none */
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

/* a scale for each block needs 128 rows together: the norm, then the cast, take less time */
static int norm_cast_applies(const struct te_fused *f)
{
	return forward_cast_applies(f) && has_one_scale(f->part[1]);
}

static int norm_quantize(const struct te_fused *f)
{
	const struct te__quantize z = te__plan_quantize(f->part[1]);
	const struct te_op_call *c = f->part[0];
	struct te_k_norm_fwd k;

	te__ops_norm_fwd(c, &k);
	k.y = result(k.y, f->part[1], f->ws, 0);
	return TE__LAUNCH_CAST(c->stream, NORM_FWD, &k, &z, k.y);
}

static int act_quantize(const struct te_fused *f)
{
	const struct te__quantize z = te__plan_quantize(f->part[1]);
	const struct te_op_call *c = f->part[0];
	struct te_k_act_fwd k;

	te__ops_act_fwd(c, &k);
	k.y = result(k.y, f->part[1], f->ws, 0);
	return TE__LAUNCH_CAST(c->stream, ACT_FWD, &k, &z, k.y);
}

/* the kernel computes tiles of one head, not blocks of 128 columns, and casts only BF16 on a GPU */
static int attention_cast_applies(const struct te_fused *f)
{
	return norm_cast_applies(f) && te_tensor_dtype(f->part[0]->x.hp) == TE_DTYPE_BF16;
}

static int attention_quantize(const struct te_fused *f)
{
	const struct te__quantize z = te__plan_quantize(f->part[1]);
	const struct te_op_call *c = f->part[0];
	struct te_k_attn_fwd k;

	te__ops_attention_fwd(c, &k);
	k.out = result(k.out, f->part[1], f->ws, 0);
	return TE__LAUNCH_CAST(c->stream, ATTN_FWD, &k, &z, k.out);
}

/*
 * activation, then bias.dw, quantize, or both: backward. The bias is the op before, whose gradient
 * is the activation's dx, and its partial sums are at the start of the scratch.
 */
struct dact {
	const struct te_op_call *dbias, *quantize; /* or NULL */
	size_t part_nbytes;
};

static struct dact dact_of(const struct te_fused *f)
{
	const struct te_op_call *last = f->part[f->nparts - 1];
	struct dact d = { .quantize = last->y.q ? last : NULL };
	const struct te_tensor *x = f->part[0]->x.hp;

	if (f->nparts == 2 && d.quantize)
		return d;
	d.dbias = f->part[1];
	d.part_nbytes = te__part_nbytes(te_tensor_rows(x), te_tensor_cols(x));
	return d;
}

static int dact_cast_applies(const struct te_fused *f)
{
	const struct dact d = dact_of(f);
	const struct te_tensor *dx = f->part[0]->dx.hp;

	if (d.dbias && d.dbias->dy.hp != dx)
		return 0;
	return d.quantize ? casts(dx, d.quantize) : dx != NULL;
}

static size_t dact_cast_ws(const struct te_fused *f)
{
	const struct dact d = dact_of(f);

	if (!d.quantize)
		return d.part_nbytes;
	return d.part_nbytes +
	       kept_nbytes(f->part[0]->dx.hp, d.quantize, te_tensor_dtype(f->part[0]->x.hp));
}

static int dact_quantize(const struct te_fused *f)
{
	const struct dact d = dact_of(f);
	const struct te_op_call *c = f->part[0];
	struct te__quantize z = { .quant = NULL };
	struct te_k_act_bwd k;

	te__ops_act_bwd(c, &k);
	if (d.dbias)
		k.part = f->ws;
	if (d.quantize) {
		z = te__plan_quantize(d.quantize);
		k.dx = result(k.dx, d.quantize, f->ws, d.part_nbytes);
	}
	return te__act_bwd(c->stream, &k, d.dbias ? d.dbias->grad[0] : NULL,
			   d.quantize ? &z : NULL);
}

/* rope, quantize: backward. The saved input has no memory: shapes are from dy */
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
	return TE__LAUNCH_CAST(c->stream, ROPE, &k, &z, k.y);
}

/* ---- sums in a GEMM ---- */

static int is(const struct te_op_call *c, const char *name)
{
	return !strcmp(c->op->ops.name, name);
}

/* linear, then bias or scale, add: values in between have no other reader */
static int linear_sum_applies(const struct te_fused *f)
{
	const struct te_op_call *last = f->part[f->nparts - 1];

	for (int i = 0; i < f->nparts - 1; i++)
		if (f->part[i]->y.hp)
			return 0;
	return is(last, "bias") || last->ex[0].hp; /* the residual is another value */
}

static int linear_sum(const struct te_fused *f)
{
	const struct te_op_call *last = f->part[f->nparts - 1], *mid = f->part[1];

	return te__ops_linear_fwd(f->part[0], is(mid, "scale") ? te__ops_factor(mid) : 1.0f,
				  last->y.hp, is(mid, "bias") ? te__ops_weight(mid) : NULL,
				  is(last, "add") ? last->ex[0].hp : NULL);
}

/* ---- a constant factor, backward: the GEMMs multiply their results by it ---- */

/* the scaled gradient has no other reader. In FP32, where separate steps round no more, the factor
 * times a sum would have other bits than the sum of scaled gradients */
static int dscale_applies(const struct te_fused *f)
{
	return !f->part[0]->dx.hp && te_tensor_dtype(f->part[0]->dy.hp) == TE_DTYPE_BF16;
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

/* ---- sums at a fork, backward: gradient of the branch + gradient of the residual ---- */

static int fork_sum_applies(const struct te_fused *f)
{
	const struct te_op_call *fork = f->part[f->nparts - 1];

	return !f->part[0]->dx.hp && fork->dey[0].hp && fork->dx.hp;
}

/* norm, then any of norm.dw, fork, bias.dw and quantize, in this order; absent ones are NULL. The
 * bias is the op before, whose gradient is dx */
struct norm_bwd {
	const struct te_op_call *dw, *fork, *dbias, *quantize;
	struct te_tensor *dx; /* tensor that is stored or cast; NULL: it has no memory */
	size_t dw_nbytes;     /* bytes of scratch; dx follows if it has no memory, for the cast */
};

static struct norm_bwd norm_bwd_of(const struct te_fused *f)
{
	struct norm_bwd n = { .dx = f->part[0]->dx.hp };

	for (int i = 1; i < f->nparts; i++) {
		if (f->part[i]->op == f->part[0]->op)
			n.dw = f->part[i];
		else if (f->part[i]->y.q)
			n.quantize = f->part[i];
		else if (is(f->part[i], "bias"))
			n.dbias = f->part[i];
		else
			n.fork = f->part[i];
	}
	if (n.fork)
		n.dx = n.fork->dx.hp;
	if (n.dw)
		n.dw_nbytes = te__ops_norm_dw_ws(n.dw);
	if (n.dbias)
		n.dw_nbytes += te__part_nbytes(te_tensor_rows(f->part[0]->x.hp),
					       te_tensor_cols(f->part[0]->x.hp));
	return n;
}

static int norm_bwd_applies(const struct te_fused *f)
{
	const struct norm_bwd n = norm_bwd_of(f);

	if (n.fork && (f->part[0]->dx.hp || !n.fork->dey[0].hp))
		return 0;
	if (n.dbias && n.dbias->dy.hp != n.dx)
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
	const struct te_tensor *residual = n.fork ? n.fork->dey[0].hp : NULL;
	struct te__quantize z = { .quant = NULL };

	if (n.quantize)
		z = te__plan_quantize(n.quantize);
	if (n.dw)
		return te__ops_norm_grads(f->part[0], n.dw, n.dbias, residual, dx,
					  n.quantize ? &z : NULL, f->ws);
	return te__ops_norm_bwd(f->part[0], residual, dx, n.quantize ? &z : NULL);
}

/* linear, fork; linear.dw may be between them */
static int dgrad_add(const struct te_fused *f)
{
	const struct te_op_call *fork = f->part[f->nparts - 1];
	int r = te__ops_linear_bwd(f->part[0], 1.0f, fork->dx.hp, fork->dey[0].hp);

	return r < 0 || f->nparts == 2 ? r : te__ops_linear_dw(f->part[1], 1.0f);
}

/* ---- a loss with the gradient of its logits, which forward saves in their place ---- */

static int loss_applies(const struct te_fused *f)
{
	const struct te_tensor *logits = f->part[0]->x.hp;

	return te__gradients_once(te_tensor_ctx(logits), te_tensor_nelems(logits));
}

static int loss_save(const struct te_fused *f, int32_t index, struct te_spec *ret_spec)
{
	if (index)
		return 0;
	*ret_spec = te__spec_of(f->part[0]->x.hp);
	return 1;
}

/* max and sum of the rows, their losses, the count */
static size_t loss_ws(const struct te_fused *f)
{
	return (3 * (size_t)te_tensor_rows(f->part[0]->x.hp) + 1) * sizeof(float);
}

static int loss_both(const struct te_fused *f)
{
	return te__ops_loss_both(f->part[0], te_tensor_data(f->saved[0]), f->ws);
}

/* the tensor that backward returns */
static struct te_tensor *loss_dx(const struct te_fused *f)
{
	struct te_tensor *dx = NULL;

	for (int i = 0; i < f->nparts && !dx; i++)
		dx = f->part[i]->dx.hp;
	return dx;
}

static int loss_gradient(const struct te_fused *f)
{
	struct te_tensor *dx = loss_dx(f);

	if (te_tensor_data(dx) == te_tensor_data(f->saved[0]))
		return 0;
	return te_copy(f->part[0]->stream, te_tensor_data(dx), te_tensor_data(f->saved[0]),
		       te_tensor_nbytes(dx));
}

static const struct te_fusion loss_backward = {
	.size = sizeof(struct te_fusion),
	.name = "cross_entropy+grad",
	.pass = TE_PASS_BACKWARD,
	.pattern = "cross_entropy",
	.run = loss_gradient,
	.drop = 1,
	.flags = TE__FUSION_IN_PLACE,
};

/* ---- a head and its loss, by chunks of rows, with or without a cap of the logits ---- */

static int64_t head_chunk(const struct te_fused *f)
{
	const struct te_cross_entropy_attrs *a = f->part[f->nparts - 1]->op->attrs;

	return a->chunk;
}

/* nothing else reads the logits, which are more than a chunk */
static int head_applies(const struct te_fused *f)
{
	const struct te_op_call *linear = f->part[0];

	for (int i = 0; i < f->nparts - 1; i++)
		if (f->part[i]->y.hp)
			return 0;
	return head_chunk(f) && !linear->x.q && te_tensor_rows(linear->x.hp) > head_chunk(f);
}

static int capped_head_applies(const struct te_fused *f)
{
	const struct te_act_attrs *a = f->part[2]->op->attrs;

	return a->act == TE_ACT_TANH && !a->gated && head_applies(f);
}

/* nothing else reads the gradient of the logits */
static int head_gradient_applies(const struct te_fused *f)
{
	for (int i = 0; strcmp(te_op_table(f->part[i]->op)->name, "linear"); i++)
		if (f->part[i]->dx.hp)
			return 0;
	return loss_dx(f) != NULL;
}

static size_t head_ws(const struct te_fused *f)
{
	return te__ops_head_ws(f->part[0], f->nparts > 2, head_chunk(f));
}

static int head_loss(const struct te_fused *f)
{
	return te__ops_head_loss(f->part, f->nparts,
				 f->nsaved ? te_tensor_data(f->saved[0]) : NULL, head_chunk(f),
				 f->ws);
}

#define HEAD_GRADIENT(name_, pattern_, drop_)                                         \
	{                                                                             \
		.size = sizeof(struct te_fusion), .name = name_,                      \
		.pass = TE_PASS_BACKWARD, .pattern = pattern_,                        \
		.applies = head_gradient_applies, .run = loss_gradient, .drop = drop_, \
		.flags = TE__FUSION_IN_PLACE | TE__FUSION_EARLY,                      \
	}

static const struct te_fusion head_backward =
	HEAD_GRADIENT("head+loss", "cross_entropy linear linear.dw", 7);
static const struct te_fusion frozen_head_backward =
	HEAD_GRADIENT("head+loss", "cross_entropy linear", 3);
static const struct te_fusion capped_head_backward =
	HEAD_GRADIENT("head+cap+loss",
		      "cross_entropy scale activation scale linear linear.dw", 63);
static const struct te_fusion frozen_capped_head_backward =
	HEAD_GRADIENT("head+cap+loss", "cross_entropy scale activation scale linear", 31);

/* test: of t/plan/fusion; then how it applies and runs */
#define FUSION(pass_, name_, pattern_, test_, ...)                                          \
	{                                                                                   \
		.size = sizeof(struct te_fusion), .name = name_, .pass = TE_PASS_##pass_,   \
		.pattern = pattern_, .test = "t/plan/fusion: " test_, __VA_ARGS__           \
	}
#define CASTS(op) .applies = op##_cast_applies, .ws_nbytes = op##_cast_ws
#define LINEAR_SUM .applies = linear_sum_applies, .run = linear_sum, .flags = TE_FUSION_REPEATS
#define DSCALE .applies = dscale_applies, .run = dscale_gemms
#define NORM_BWD .applies = norm_bwd_applies, .ws_nbytes = norm_bwd_ws, .run = norm_bwd
#define HEAD(head) .applies = head##_applies, .ws_nbytes = head_ws, .run = head_loss
#define HEAD_TRAINED(head)                                                             \
	HEAD(head), .save = loss_save, .flags = TE__FUSION_IN_PLACE | TE__FUSION_EARLY
#define DGRAD_ADD .applies = fork_sum_applies, .run = dgrad_add

#define FEW_ROWS(name_, pattern_)                                                           \
	FUSION(FORWARD, name_, pattern_, "few_rows_have_the_same_bits",                     \
	       .applies = te__few_rows_applies, .ws_nbytes = te__few_rows_ws,               \
	       .run = te__few_rows_run)

/* the longer of two that begin alike comes first */
const struct te_fusion te__fusions[] = {
	FEW_ROWS("norm+quantize+linear+act", "rmsnorm quantize|quantize.pad linear activation"),
	FEW_ROWS("norm+quantize+linear+bias", "rmsnorm quantize|quantize.pad linear bias"),
	FEW_ROWS("norm+quantize+linear", "rmsnorm quantize|quantize.pad linear"),
	FEW_ROWS("norm+linear+act", "rmsnorm linear activation"),
	FEW_ROWS("norm+linear+bias", "rmsnorm linear bias"),
	FEW_ROWS("norm+linear", "rmsnorm linear"),
	FEW_ROWS("quantize+linear+act", "quantize|quantize.pad linear activation"),
	FEW_ROWS("quantize+linear+bias", "quantize|quantize.pad linear bias"),
	FEW_ROWS("quantize+linear+add", "quantize|quantize.pad linear add"),
	FEW_ROWS("quantize+linear", "quantize|quantize.pad linear"),
	FEW_ROWS("linear+act", "linear activation"),

	FUSION(FORWARD, "norm+quantize", "layernorm|rmsnorm quantize",
	       "norm_casts_to_the_same_bits",
	       .applies = norm_cast_applies, .ws_nbytes = forward_cast_ws, .run = norm_quantize,
	       .flags = TE_FUSION_REPEATS),
	FUSION(FORWARD, "act+quantize", "activation quantize",
	       "activation_casts_to_the_same_bits",
	       CASTS(forward), .run = act_quantize, .flags = TE_FUSION_REPEATS),
	FUSION(FORWARD, "attention+quantize", "attention quantize", "heads_cast_to_the_same_bits",
	       .applies = attention_cast_applies, .ws_nbytes = forward_cast_ws,
	       .run = attention_quantize, .flags = TE_FUSION_REPEATS),

	FUSION(JOINT, "head+loss", "linear cross_entropy", "head_has_the_same_bits_by_chunks",
	       HEAD_TRAINED(head), .backward = &head_backward),
	FUSION(JOINT, "head+loss", "linear cross_entropy", "head_has_the_same_bits_by_chunks",
	       HEAD_TRAINED(head), .backward = &frozen_head_backward),
	FUSION(FORWARD, "head+loss", "linear cross_entropy", "head_has_the_same_bits_by_chunks",
	       HEAD(head)),
	FUSION(JOINT, "head+cap+loss", "linear scale activation scale cross_entropy",
	       "head_has_the_same_bits_by_chunks",
	       HEAD_TRAINED(capped_head), .backward = &capped_head_backward),
	FUSION(JOINT, "head+cap+loss", "linear scale activation scale cross_entropy",
	       "head_has_the_same_bits_by_chunks",
	       HEAD_TRAINED(capped_head), .backward = &frozen_capped_head_backward),
	FUSION(FORWARD, "head+cap+loss", "linear scale activation scale cross_entropy",
	       "head_has_the_same_bits_by_chunks", HEAD(capped_head)),

	FUSION(FORWARD, "linear+bias+add", "linear bias add", "gemm_adds_within_the_bound",
	       LINEAR_SUM),
	FUSION(FORWARD, "linear+bias", "linear bias", "gemm_adds_within_the_bound", LINEAR_SUM),
	FUSION(FORWARD, "linear+add", "linear add", "gemm_adds_within_the_bound", LINEAR_SUM),
	FUSION(FORWARD, "linear+scale+add", "linear scale add", "gemm_adds_within_the_bound",
	       LINEAR_SUM),

	FUSION(JOINT, "cross_entropy+grad", "cross_entropy", "loss_gradient_has_the_same_bits",
	       .applies = loss_applies, .ws_nbytes = loss_ws, .run = loss_both, .save = loss_save,
	       .backward = &loss_backward, .flags = TE__FUSION_IN_PLACE),

	FUSION(BACKWARD, "dscale+dgrad+wgrad", "scale linear linear.dw",
	       "factors_are_exact_in_gemms", DSCALE),
	FUSION(BACKWARD, "dscale+wgrad", "scale linear.dw", "factors_are_exact_in_gemms", DSCALE),

	FUSION(BACKWARD, "dact+dbias+quantize", "activation bias.dw quantize",
	       "activation_gradient_casts_to_the_same_bits", CASTS(dact), .run = dact_quantize),
	FUSION(BACKWARD, "dact+dbias", "activation bias.dw",
	       "activation_gradient_casts_to_the_same_bits", CASTS(dact), .run = dact_quantize),
	FUSION(BACKWARD, "dact+quantize", "activation quantize",
	       "activation_gradient_casts_to_the_same_bits", CASTS(dact), .run = dact_quantize),
	FUSION(BACKWARD, "drope+quantize", "rope quantize", "heads_cast_to_the_same_bits",
	       CASTS(drope), .run = drope_quantize),

	FUSION(BACKWARD, "norm.bwd+dw+add+dbias+quantize",
	       "layernorm|rmsnorm layernorm.dw|rmsnorm.dw fork bias.dw quantize",
	       "norm_gradient_casts_to_the_same_bits", NORM_BWD),
	FUSION(BACKWARD, "norm.bwd+dw+dbias+quantize",
	       "layernorm|rmsnorm layernorm.dw|rmsnorm.dw bias.dw quantize",
	       "norm_gradient_casts_to_the_same_bits", NORM_BWD),
	FUSION(BACKWARD, "norm.bwd+dw+add+quantize",
	       "layernorm|rmsnorm layernorm.dw|rmsnorm.dw fork quantize",
	       "norm_gradient_casts_to_the_same_bits", NORM_BWD),
	FUSION(BACKWARD, "norm.bwd+dw+quantize",
	       "layernorm|rmsnorm layernorm.dw|rmsnorm.dw quantize",
	       "norm_gradient_casts_to_the_same_bits", NORM_BWD),
	FUSION(BACKWARD, "norm.bwd+add+quantize", "layernorm|rmsnorm fork quantize",
	       "norm_gradient_casts_to_the_same_bits", NORM_BWD),
	FUSION(BACKWARD, "norm.bwd+quantize", "layernorm|rmsnorm quantize",
	       "norm_gradient_casts_to_the_same_bits", NORM_BWD),
	FUSION(BACKWARD, "norm.bwd+dw+add+dbias",
	       "layernorm|rmsnorm layernorm.dw|rmsnorm.dw fork bias.dw",
	       "norm_gradient_casts_to_the_same_bits", NORM_BWD),
	FUSION(BACKWARD, "norm.bwd+dw+add", "layernorm|rmsnorm layernorm.dw|rmsnorm.dw fork",
	       "norm_gradient_adds_within_the_bound", NORM_BWD),
	FUSION(BACKWARD, "norm.bwd+add", "layernorm|rmsnorm fork",
	       "norm_gradient_adds_within_the_bound", NORM_BWD),

	FUSION(BACKWARD, "dgrad+wgrad+add", "linear linear.dw fork",
	       "gemm_gradient_adds_within_the_bound", DGRAD_ADD),
	FUSION(BACKWARD, "dgrad+add", "linear fork", "gemm_gradient_adds_within_the_bound",
	       DGRAD_ADD),
};
const int te__nfusions = sizeof(te__fusions) / sizeof(te__fusions[0]);
