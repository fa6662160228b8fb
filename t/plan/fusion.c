/*
 * t/plan/fusion.c - every built-in fusion against the steps it replaces, for both backends.
 *
 * One small sequence is planned twice, with and without fusions, and run for three passes on the
 * same inputs, so that delayed scales change. Casts give the same bits. A fused sum rounds less:
 *
 *	steps	r1 = T(acc)  r2 = T(r1 + b)  r3 = T(r2 + c)	one rounding each
 *	fused	T(acc + c + b)					one rounding at the end
 *
 * With u the unit roundoff of T, 2^-8 in BF16 and 2^-24 in FP32, and y the result, the two
 * differ by at most u (|acc| + |r2| + |r3| + |y|), where |acc| <= |y| + |b| + |c| and
 * |r2| <= |y| + |c|: u (4 |y| + |b| + 2 |c|) to first order. FP32's own roundings of the fused sum
 * and second-order terms are within a fiftieth of that in BF16, and double it in FP32. On a GPU a
 * GEMM with a sum may also use another algorithm, which adds its K <= 64 terms in another
 * order: this adds 64 units of 2^-24 of the largest result.
 */
#include "config.h"

#include <math.h>

#include "fusion_side.h"

#define SUM_Y 1u  /* y is a fused sum */
#define SUM_DX 2u /* dx is a fused sum */
#define DX_CAST 4u /* gradients have sums of a norm's dx in BF16, which one side casts, too */
#define DX_NEXT 8u /* dx is that of a norm in BF16, which one side sums or casts, too */

struct fcase {
	const char *letters, *recipe;
	uint32_t flags; /* of the plan, in addition to training and input gradient; or below */
	const char *want[3]; /* groups of the fused plan */
	uint32_t sums;
};

/* |a - b| against u (4 |y| + |b| + 2 |c|), see above */
static void ck_sums(const char *what, const float *a, const float *b, size_t n, double u,
		    const float *bias, const float *c)
{
	double most = 0;

	for (size_t i = 0; i < n && strcmp(backend, "host"); i++)
		most = fmax(most, fabs((double)b[i]));
	for (size_t i = 0; i < n; i++) {
		double y = fmax(fabs((double)a[i]), fabs((double)b[i]));
		double bound = u * (4 * y + (bias ? fabs((double)bias[i % WIDTH]) : 0) +
				    (c ? 2 * fabs((double)c[i]) : 0)) +
			       ldexp(most, -18);

		ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= bound,
			      "%s[%zu]: fused %.9g, steps %.9g, bound %.3g", what, i, (double)a[i],
			      (double)b[i], bound);
	}
}

/*
 * A GPU adds the terms of a row in another order where it casts, so that an element of dx may be
 * rounded to the next BF16 number, 2^-8 of it. The largest of all gradients is larger than the
 * element.
 */
static void ck_dx_sums(const char *what, const float *a, const float *b, size_t n)
{
	double most = 0;

	for (size_t i = 0; i < n && strcmp(backend, "host"); i++)
		most = fmax(most, fabs((double)b[i]));
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= ldexp(most, -8),
			      "%s[%zu]: fused %.9g, steps %.9g", what, i, (double)a[i],
			      (double)b[i]);
}

/* where a GPU rounds to the next BF16 number */
static void ck_next(const char *what, const float *a, const float *b, size_t n)
{
	const int on_gpu = strcmp(backend, "host") != 0;

	for (size_t i = 0; i < n; i++)
		ck_assert_msg(fabsf(a[i] - b[i]) <= (on_gpu ? ldexpf(fabsf(b[i]), -7) : 0),
			      "%s[%zu]: fused %.9g, steps %.9g", what, i, (double)a[i],
			      (double)b[i]);
}

/* the bias that is added last: the only one of these sequences */
static float *bias_of(const struct te_seq *seq)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	const char *dot;

	for (int i = 0; i < te_seq_nweights(seq); i++) {
		DO(te_seq_weight(seq, i, &w));
		dot = strchr(w.name, '.');
		if (w.name[0] == 'b' && dot)
			return tt_tensor_get(w.master);
	}
	return NULL;
}

static void same_as_steps(const struct fcase *k)
{
	uint32_t flags = k->flags & EVAL  ? 0 :
			 k->flags & NO_DX ? TE_PLAN_TRAIN :
					    k->flags | TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	double u = !strcmp(k->recipe, "fp32") ? 2 * ldexp(1, -24) : 1.02 * ldexp(1, -8);
	float *x = malloc(NELEMS * sizeof(*x)), *dy = malloc(NELEMS * sizeof(*dy)), *w, *bias;
	struct side fused, steps;
	size_t n;

	side_open(&fused, k->letters, k->recipe, flags & ~UNCAST);
	side_open(&steps, k->letters, k->recipe, flags | (flags & UNCAST ? 0 : TE_PLAN_NO_FUSION));
	for (int i = 0; i < 3 && k->want[i]; i++) {
		ck_group(fused.p, k->want[i], 1);
		ck_group(steps.p, k->want[i], 0);
	}
	n = (size_t)te_tensor_nelems(te_seq_masters(fused.seq));
	w = malloc(n * sizeof(*w));
	tt_fill_normal(w, n, 0.3f);
	tt_tensor_set(te_seq_masters(fused.seq), w);
	tt_tensor_set(te_seq_masters(steps.seq), w);
	bias = bias_of(fused.seq);
	for (int pass = 0; pass < PASSES; pass++) {
		/* another magnitude in each pass: scales change */
		tt_fill_normal(x, NELEMS, 1.0f + 3.0f * (float)pass);
		tt_fill_normal(dy, NELEMS, 0.01f + (float)pass);
		/* rounded as in the tensors */
		for (int i = 0; i < NELEMS && strcmp(k->recipe, "fp32"); i++) {
			x[i] = tt_round(TE_DTYPE_BF16, x[i]);
			dy[i] = tt_round(TE_DTYPE_BF16, dy[i]);
		}
		side_run(&fused, x, dy);
		side_run(&steps, x, dy);
		n = (size_t)te_tensor_nelems(te_plan_output(fused.p));
		if (k->sums & SUM_Y)
			ck_sums("y", fused.y, steps.y, n, u, bias,
				strchr(k->letters, 'a') ? x : NULL);
		else
			ck_bits("y", fused.y, steps.y, n);
		if (!fused.grads)
			continue;
		if (!fused.dx)
			ck_assert_ptr_null(steps.dx);
		else if (k->sums & SUM_DX)
			ck_sums("dx", fused.dx, steps.dx, NELEMS, u, NULL, dy);
		else
			(k->sums & DX_NEXT ? ck_next : ck_bits)("dx", fused.dx, steps.dx, NELEMS);
		(k->sums & DX_CAST ? ck_dx_sums : ck_bits)(
			"gradient", fused.grads, steps.grads,
			(size_t)te_tensor_nelems(te_seq_grads(fused.seq)));
		ck_quant(fused.seq, steps.seq);
	}
	free(x);
	free(dy);
	free(w);
	free(bias);
	side_close(&fused);
	side_close(&steps);
}

static const struct fcase norm_casts[] = {
	{ "nl", "fp8-delayed", 0, { "norm+quantize" }, 0 },
	{ "nl", "fp8-current", 0, { "norm+quantize" }, 0 },
	{ "ml", "fp8-delayed", 0, { "norm+quantize" }, 0 },
	{ "ml", "fp8-current", 0, { "norm+quantize" }, 0 },
	{ "nl", "fp8-delayed", EVAL, { "norm+quantize" }, 0 },
	{ "nl", "fp8-current", EVAL, { "norm+quantize" }, 0 },
	/* the norm's unquantized result is needed, too */
	{ "nflga", "fp8-delayed", EVAL, { "norm+quantize" }, 0 },
	{ "nflga", "fp8-current", EVAL, { "norm+quantize" }, 0 },
};

TEST_EACH(equal, norm_casts_to_the_same_bits, TT_LEN(norm_casts))
{
	same_as_steps(&norm_casts[_i]);
}

static const struct fcase act_casts[] = {
	{ "gl", "fp8-delayed", 0, { "act+quantize" }, 0 },
	{ "gl", "fp8-current", 0, { "act+quantize" }, 0 },
	{ "wsl", "fp8-delayed", 0, { "act+quantize" }, 0 },
	{ "wsl", "fp8-current", 0, { "act+quantize" }, 0 },
	{ "wsl", "fp8-current", EVAL, { "act+quantize" }, 0 },
	{ "gflga", "fp8-delayed", EVAL, { "act+quantize" }, 0 },
	{ "gflga", "fp8-current", EVAL, { "act+quantize" }, 0 },
	{ "gl", "fp8-block", 0, { "act+quantize" }, 0 },
	{ "wsl", "fp8-block", 0, { "act+quantize" }, 0 },
	{ "wsl", "fp8-block", EVAL, { "act+quantize" }, 0 },
	{ "gflga", "fp8-block", EVAL, { "act+quantize" }, 0 },
};

TEST_EACH(equal, activation_casts_to_the_same_bits, TT_LEN(act_casts))
{
	same_as_steps(&act_casts[_i]);
}

static const struct fcase dact_casts[] = {
	{ "lg", "fp8-delayed", 0, { "dact+quantize" }, 0 },
	{ "lg", "fp8-current", 0, { "dact+quantize" }, 0 },
	{ "ws", "fp8-delayed", 0, { "dact+quantize" }, 0 },
	{ "ws", "fp8-current", 0, { "dact+quantize" }, 0 },
	{ "lg", "fp8-delayed", TE_PLAN_DELAY_DW, { "dact+quantize" }, 0 },
	{ "lbg", "fp8-delayed", APART, { "dact+dbias+quantize" }, 0 },
	{ "lbg", "fp8-current", APART, { "dact+dbias+quantize" }, 0 },
	{ "wBs", "fp8-delayed", APART, { "dact+dbias+quantize" }, 0 },
	{ "wBs", "fp8-current", APART, { "dact+dbias+quantize" }, 0 },
	{ "lbg", "fp8-current", APART | TE_PLAN_DELAY_DW, { "dact+quantize" }, 0 },
	{ "lg", "fp8-block", 0, { "dact+quantize" }, 0 },
	{ "ws", "fp8-block", 0, { "dact+quantize" }, 0 },
	{ "lbg", "fp8-block", APART, { "dact+dbias+quantize" }, 0 },
	{ "wBs", "fp8-block", APART, { "dact+dbias+quantize" }, 0 },
	{ "lbg", "fp8-block", APART | TE_PLAN_DELAY_DW, { "dact+quantize" }, 0 },
	{ "lbg", "bf16", APART, { "dact+dbias" }, 0 },
	{ "lbg", "fp32", APART, { "dact+dbias" }, 0 },
	{ "wBs", "bf16", APART, { "dact+dbias" }, 0 },
};

TEST_EACH(equal, activation_gradient_casts_to_the_same_bits, TT_LEN(dact_casts))
{
	same_as_steps(&dact_casts[_i]);
}

static const struct fcase head_casts[] = {
	{ "whl", "fp8-delayed", 0, { "attention+quantize" }, 0 },
	{ "wohl", "fp8-delayed", 0, { "attention+quantize", "drope+quantize" }, 0 },
	{ "wohl", "fp8-current", 0, { "attention+quantize", "drope+quantize" }, 0 },
	{ "wohl", "fp8-delayed", EVAL, { "attention+quantize" }, 0 },
	{ "wohl", "fp8-current", EVAL, { "attention+quantize" }, 0 },
	{ "wokl", "fp8-delayed", 0, { "attention+quantize", "drope+quantize" }, 0 },
	{ "wijl", "fp8-delayed", 0, { "attention+quantize", "drope+quantize" }, 0 },
	{ "wijl", "fp8-current", EVAL, { "attention+quantize" }, 0 },
	{ "flxl", "fp8-delayed", EVAL, { "attention+quantize" }, 0 },
	{ "flxl", "fp8-current", EVAL, { "attention+quantize" }, 0 },
	{ "wos", "fp8-delayed", 0, { "drope+quantize" }, 0 },
	{ "wohl", "fp8-delayed", TE_PLAN_DELAY_DW, { "drope+quantize" }, 0 },
};

TEST_EACH(equal, heads_cast_to_the_same_bits, TT_LEN(head_casts))
{
	same_as_steps(&head_casts[_i]);
}

/* as its kernel on a GPU. _i: FP32 */
TEST_EACH(equal, attention_casts_bf16_only, 2)
{
	struct te_seq *seq = seq_of("wohl");
	struct te_plan *p = plan_in(seq, "fp8-delayed", _i ? TE_DTYPE_FP32 : TE_DTYPE_BF16,
				    TE_PLAN_TRAIN);

	ck_group(p, "attention+quantize", !_i);
	ck_group(p, "drope+quantize", 1);
	tt_drop(p, seq);
}

static const struct fcase norm_gradient_casts[] = {
	{ "lml", "fp8-delayed", 0, { "norm.bwd+dw+quantize" }, 0 },
	{ "lnl", "fp8-current", 0, { "norm.bwd+dw+quantize" }, 0 },
	{ "lnl", "fp8-delayed", TE_PLAN_DELAY_DW, { "norm.bwd+quantize" }, 0 },
	{ "lfmla", "fp8-delayed", UNCAST, { "norm.bwd+dw+add+quantize" }, 0 },
	{ "lfnla", "fp8-delayed", UNCAST, { "norm.bwd+dw+add+quantize" }, 0 },
	{ "lfnla", "fp8-current", UNCAST, { "norm.bwd+dw+add+quantize" }, 0 },
	{ "lbnl", "fp8-delayed", APART, { "norm.bwd+dw+dbias+quantize" }, DX_CAST },
	{ "lbfnla", "fp8-delayed", UNCAST, { "norm.bwd+dw+add+dbias+quantize" }, DX_CAST },
	{ "lbfmla", "fp8-current", UNCAST, { "norm.bwd+dw+add+dbias+quantize" }, DX_CAST },
	{ "bfnla", "bf16", UNCAST, { "norm.bwd+dw+add+dbias" }, DX_CAST | DX_NEXT },
	{ "lfmla", "fp8-delayed", UNCAST | TE_PLAN_DELAY_DW, { "norm.bwd+add+quantize" }, 0 },
	/* the gradient is needed after the cast, too: that of the first fork's other branch */
	{ "qlefmla", "fp8-delayed", UNCAST, { "norm.bwd+dw+add+quantize" }, 0 },
	{ "qlefnla", "fp8-current", UNCAST, { "norm.bwd+dw+add+quantize" }, 0 },
};

TEST_EACH(equal, norm_gradient_casts_to_the_same_bits, TT_LEN(norm_gradient_casts))
{
	same_as_steps(&norm_gradient_casts[_i]);
}

static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };
#define NRECIPES ((int)TT_LEN(recipes))

static const struct fcase gemm_sums[] = {
	{ "lb", NULL, 0, { "linear+bias" }, SUM_Y },
	{ "fla", NULL, 0, { "linear+add" }, SUM_Y | SUM_DX },
	{ "flba", NULL, 0, { "linear+bias+add" }, SUM_Y | SUM_DX },
	{ "flbda", NULL, 0, { "linear+bias+add" }, SUM_Y | SUM_DX },
	{ "flba", NULL, EVAL, { "linear+bias+add" }, SUM_Y },
	{ "flta", NULL, EVAL, { "linear+scale+add" }, SUM_Y },
	{ "flca", NULL, 0, { "linear+scale+add" }, SUM_Y | SUM_DX },
};

TEST_EACH(equal, gemm_adds_within_the_bound, NRECIPES * TT_LEN(gemm_sums))
{
	struct fcase k = gemm_sums[_i / NRECIPES];

	k.recipe = recipes[_i % NRECIPES];
	same_as_steps(&k);
}

/* a power of two: no order of the multiplications changes a bit */
static const struct fcase factors[] = {
	{ "lc", "bf16", 0, { "dscale+dgrad+wgrad" }, 0 },
	{ "lc", "bf16", NO_DX, { "dscale+wgrad" }, 0 },
	{ "glcg", "bf16", NO_DX, { "dscale+wgrad" }, 0 },
	/* the weight gradient after that of L's input is that of l: nothing is fused */
	{ "lLc", "bf16", NO_DX, { NULL }, 0 },
	{ "lLc", "fp32", NO_DX, { NULL }, 0 },
};

TEST_EACH(equal, factors_are_exact_in_gemms, TT_LEN(factors))
{
	same_as_steps(&factors[_i]);
}

static const struct fcase norm_sums[] = {
	{ "fnla", NULL, 0, { "norm.bwd+dw+add" }, SUM_Y | SUM_DX },
	{ "fmla", NULL, 0, { "norm.bwd+dw+add" }, SUM_Y | SUM_DX },
	{ "fna", NULL, 0, { "norm.bwd+dw+add" }, SUM_DX },
	{ "fmla", NULL, TE_PLAN_DELAY_DW, { "norm.bwd+add" }, SUM_Y | SUM_DX },
};

TEST_EACH(equal, norm_gradient_adds_within_the_bound, NRECIPES * TT_LEN(norm_sums))
{
	struct fcase k = norm_sums[_i / NRECIPES];

	k.recipe = recipes[_i % NRECIPES];
	same_as_steps(&k);
}

static const struct fcase gemm_gradient_sums[] = {
	{ "flga", NULL, 0, { "dgrad+wgrad+add" }, SUM_DX },
	{ "flga", NULL, TE_PLAN_DELAY_DW, { "dgrad+add" }, SUM_DX },
};

TEST_EACH(equal, gemm_gradient_adds_within_the_bound, NRECIPES * TT_LEN(gemm_gradient_sums))
{
	struct fcase k = gemm_gradient_sums[_i / NRECIPES];

	k.recipe = recipes[_i % NRECIPES];
	same_as_steps(&k);
}

static const char *const tests[] = {
	"few_rows_have_the_same_bits",
	"norm_casts_to_the_same_bits",
	"activation_casts_to_the_same_bits",
	"activation_gradient_casts_to_the_same_bits",
	"heads_cast_to_the_same_bits",
	"norm_gradient_casts_to_the_same_bits",
	"gemm_adds_within_the_bound",
	"factors_are_exact_in_gemms",
	"norm_gradient_adds_within_the_bound",
	"loss_gradient_has_the_same_bits",
	"head_has_the_same_bits_by_chunks",
	"gemm_gradient_adds_within_the_bound",
};

/* the cases of the tests above */
static const struct {
	const struct fcase *k;
	size_t n;
} all[] = {
	{ NULL, 0 }, /* few_rows: other structs */
	{ norm_casts, TT_LEN(norm_casts) },	{ act_casts, TT_LEN(act_casts) },
	{ dact_casts, TT_LEN(dact_casts) },	{ head_casts, TT_LEN(head_casts) },
	{ norm_gradient_casts, TT_LEN(norm_gradient_casts) },
	{ gemm_sums, TT_LEN(gemm_sums) },	{ factors, TT_LEN(factors) },
	{ norm_sums, TT_LEN(norm_sums) },	{ NULL, 0 }, /* losses, which have one group */
	{ NULL, 0 }, /* chunks, too */
	{ gemm_gradient_sums, TT_LEN(gemm_gradient_sums) },
};

CTX_CASE(rows, "");

TEST_EACH(rows, each_row_names_a_test_that_applies_it, te__nfusions)
{
	const struct te_fusion *f = &te__fusions[_i];
	const char *prefix = "t/plan/fusion: ";
	int named = 0, taken = 0;

	ck_assert_uint_eq(f->size, sizeof(*f));
	ck_assert_ptr_nonnull(f->run);
	ck_assert_int_eq(strncmp(f->test, prefix, strlen(prefix)), 0);
	for (size_t i = 0; i < TT_LEN(tests); i++)
		if (!strcmp(f->test + strlen(prefix), tests[i])) {
			named = 1;
			taken |= all[i].k == NULL; /* its cases are other structs */
			for (size_t j = 0; j < all[i].n; j++)
				for (int w = 0; w < 3 && all[i].k[j].want[w]; w++)
					taken |= !strcmp(all[i].k[j].want[w], f->name);
		}
	ck_assert_msg(named && taken, "%s: %s", f->name, f->test);
}

TT_PAIR_SUITE("plan/fusion")
{
	setenv("TE_GRADIENTS", "once", 0);
}
