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

#include <te/errno.h>
#include <te/gemm.h>
#include <te/plan.h>

#include "libtecore/plan/plan.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define WIDTH 32
#define NROWS (5 * 16) /* more than one run of partial sums */
#define NELEMS (NROWS * WIDTH)
#define PASSES 3

/*
 * A sequence in letters: l linear 32 to 32, L the same and frozen, w linear 32 to 64, b bias of 32,
 * B of 64, n layernorm, m rmsnorm, g gelu, s gated silu 64 to 32, d dropout of rate 0, f and q
 * forks to the channels r and q, a and e adds of them; o RoPE and h attention 64 to 32 of 2 heads
 * of 16, i and j of 8 heads of 4, k attention as h with dropout; c scale by 0.5, t by 0.7; y tanh.
 */
static struct te_op *op_of(char letter, int at)
{
	struct te_linear_attrs la = TE_ATTRS(linear, WIDTH, letter == 'w' ? 2 * WIDTH : WIDTH, 0.2f,
					     0, NULL);
	struct te_bias_attrs ba = TE_ATTRS(bias, letter == 'B' ? 2 * WIDTH : WIDTH);
	struct te_act_attrs aa = TE_ATTRS(act, letter == 's' ? TE_ACT_SILU :
					       letter == 'y' ? TE_ACT_TANH : TE_ACT_GELU,
					  letter == 's');
	struct te_norm_attrs na = TE_ATTRS(norm, WIDTH, 1e-5f, 0);
	struct te_dropout_attrs da = TE_ATTRS(dropout, .p = 0);
	const int small = letter == 'i' || letter == 'j';
	struct te_rope_attrs ra = TE_ATTRS(rope, small ? 8 : 2, small ? 4 : 1, small ? 4 : 16,
					   10000.0f);
	struct te_attention_attrs ta = TE_ATTRS(attention, small ? 8 : 2, small ? 4 : 1,
						small ? 4 : 16, 0, letter == 'k' ? 0.25f : 0,
						0, 0, 0);
	struct te_scale_attrs ca = TE_ATTRS(scale, letter == 'c' ? 0.5f : 0.7f);
	struct te_op *op = NULL;
	char name[16];

	snprintf(name, sizeof(name), "%c%d", letter, at);
	switch (letter) {
	case 'l':
	case 'L':
	case 'w':
		DO(te_op_linear(&la, name, &op));
		break;
	case 'b':
	case 'B':
		DO(te_op_bias(&ba, name, &op));
		break;
	case 'n':
		DO(te_op_layernorm(&na, name, &op));
		break;
	case 'm':
		DO(te_op_rmsnorm(&na, name, &op));
		break;
	case 'g':
	case 's':
	case 'y':
		DO(te_op_activation(&aa, name, &op));
		break;
	case 'd':
		DO(te_op_dropout(&da, name, &op));
		break;
	case 'c':
	case 't':
		DO(te_op_scale(&ca, name, &op));
		break;
	case 'o':
	case 'i':
		DO(te_op_rope(&ra, name, &op));
		break;
	case 'h':
	case 'j':
	case 'k':
		DO(te_op_attention(&ta, name, &op));
		break;
	case 'f':
	case 'q':
		DO(te_op_fork(name, &op));
		DO(te_op_give(op, 0, letter == 'f' ? "r" : "q"));
		break;
	default:
		DO(te_op_add(name, &op));
		DO(te_op_take(op, 0, letter == 'a' ? "r" : "q"));
	}
	return op;
}

static struct te_seq *seq_of(const char *letters)
{
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; letters[i]; i++) {
		struct te_op *op = op_of(letters[i], i);

		tt_append(seq, op);
	}
	DO(te_seq_complete(seq));
	if (strchr(letters, 'L'))
		ck_assert_int_gt(te_seq_freeze(seq, "L*", 1), 0);
	DO(te_seq_init(seq, 1));
	return seq;
}

static struct te_plan *plan_in(struct te_seq *seq, const char *recipe, enum te_dtype compute,
			       uint32_t flags)
{
	struct te_recipe rec = tt_recipe(recipe);

	rec.compute = compute;
	rec.history_len = 2;
	return tt_plan(seq, &rec, flags, (struct te_spec){ compute, 3, { 5, 16, WIDTH } });
}

static struct te_plan *plan_of(struct te_seq *seq, const char *recipe, uint32_t flags)
{
	return plan_in(seq, recipe, tt_recipe(recipe).compute, flags);
}

/* 1: the plan has a group of that name */
static int has_group(const struct te_plan *p, const char *name)
{
	char *text, want[64];
	int has;

	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	snprintf(want, sizeof(want), "  %s ", name);
	has = strstr(text, want) != NULL;
	free(text);
	return has;
}

static void ck_group(const struct te_plan *p, const char *name, int want)
{
	char *text;

	if (has_group(p, name) == want)
		return;
	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	ck_abort_msg("%s %s:\n%s", want ? "no" : "unwanted", name, text);
}

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
#define EVAL 0x80000000u  /* neither training nor input gradient */
/* the steps are fused, too, but for casts and sums of norms' gradients */
#define UNCAST 0x10000000u
#define NO_DX 0x20000000u /* no input gradient */
#define APART 0x40000000u /* forward has the roundings of linear and bias */

/* one of the two sequences that are compared */
struct side {
	struct te_seq *seq;
	struct te_plan *p;
	float *y, *dx, *grads;
};

/* a user's fusion, tried before the built-in ones: the same two launches */
static int apart_run(const struct te_fused *f)
{
	struct te_op_call linear = *f->part[0], bias = *f->part[1];
	int r;

	linear.y = bias.x = bias.y;
	r = te_op_table(linear.op)->forward(&linear);
	return r < 0 ? r : te_op_table(bias.op)->forward(&bias);
}

static const struct te_fusion apart = {
	.size = sizeof(apart),
	.name = "linear-then-bias",
	.pass = TE_PASS_FORWARD,
	.pattern = "linear bias",
	.run = apart_run,
};

static void side_open(struct side *s, const char *letters, const char *recipe, uint32_t flags)
{
	s->seq = seq_of(letters);
	if (flags & APART)
		DO(te_seq_add_fusion(s->seq, &apart));
	/* rows of a user go first: before the longer ones that cast */
	for (int i = 0; flags & UNCAST && i < te__nfusions; i++)
		if (!strncmp(te__fusions[i].name, "norm.bwd", 8) &&
		    !strstr(te__fusions[i].name, "quantize") &&
		    !strstr(te__fusions[i].name, "dbias"))
			DO(te_seq_add_fusion(s->seq, &te__fusions[i]));
	s->p = plan_of(s->seq, recipe, flags & ~(APART | UNCAST));
	s->y = s->dx = s->grads = NULL;
}

static void side_drop(struct side *s)
{
	free(s->y);
	free(s->dx);
	free(s->grads);
	s->y = s->dx = s->grads = NULL;
}

static void side_close(struct side *s)
{
	side_drop(s);
	te_plan_unref(s->p);
	te_seq_unref(s->seq);
}

static void side_run(struct side *s, const float *x, const float *dy)
{
	side_drop(s);
	tt_tensor_set(te_plan_input(s->p, "x"), x);
	/* previous contents must not matter */
	DO(te_fill(st, s->p->arena, 0xff, s->p->arena_nbytes));
	DO(te_seq_zero_grads(s->seq, st));
	DO(te_plan_forward(s->p, st, 0));
	DO(te_stream_sync(st));
	s->y = tt_tensor_get(te_plan_output(s->p));
	if (!(s->p->flags & TE_PLAN_TRAIN))
		return;
	if (dy)
		tt_tensor_set(te_plan_output_grad(s->p), dy);
	DO(te_plan_backward(s->p, st));
	if (s->p->flags & TE_PLAN_DELAY_DW)
		DO(te_plan_backward_dw(s->p, st));
	DO(te_stream_sync(st));
	if (te_plan_input_grad(s->p))
		s->dx = tt_tensor_get(te_plan_input_grad(s->p));
	s->grads = tt_tensor_get(te_seq_grads(s->seq));
}

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

static void ck_bits(const char *what, const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(!memcmp(&a[i], &b[i], sizeof(*a)), "%s[%zu]: fused %.9g, steps %.9g",
			      what, i, (double)a[i], (double)b[i]);
}

/* scales and amax histories */
static void ck_quant(const struct te_seq *a, const struct te_seq *b)
{
	struct te_quant *qa = te_seq_quant(a), *qb = te_seq_quant(b);
	size_t n;
	char *p, *q;

	if (!qa)
		return;
	n = te_quant_nbytes(qa);
	p = malloc(n);
	q = malloc(n);
	DO(te_quant_save(qa, p, n));
	DO(te_quant_save(qb, q, n));
	ck_assert_mem_eq(p, q, n);
	free(p);
	free(q);
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
	{ "nl", "fp8-block", 0, { "norm+quantize" }, 0 },
	{ "ml", "fp8-block", 0, { "norm+quantize" }, 0 },
	{ "nl", "fp8-block", EVAL, { "norm+quantize" }, 0 },
	{ "nflga", "fp8-block", EVAL, { "norm+quantize" }, 0 },
};

START_TEST(norm_casts_to_the_same_bits)
{
	same_as_steps(&norm_casts[_i]);
}
END_TEST

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

START_TEST(activation_casts_to_the_same_bits)
{
	same_as_steps(&act_casts[_i]);
}
END_TEST

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
};

START_TEST(activation_gradient_casts_to_the_same_bits)
{
	same_as_steps(&dact_casts[_i]);
}
END_TEST

static const struct fcase head_casts[] = {
	{ "whl", "fp8-delayed", 0, { "attention+quantize" }, 0 },
	{ "wohl", "fp8-delayed", 0, { "attention+quantize", "drope+quantize" }, 0 },
	{ "wohl", "fp8-current", 0, { "attention+quantize", "drope+quantize" }, 0 },
	{ "wohl", "fp8-delayed", EVAL, { "attention+quantize" }, 0 },
	{ "wohl", "fp8-current", EVAL, { "attention+quantize" }, 0 },
	{ "wokl", "fp8-delayed", 0, { "attention+quantize", "drope+quantize" }, 0 },
	{ "wijl", "fp8-delayed", 0, { "attention+quantize", "drope+quantize" }, 0 },
	{ "wijl", "fp8-current", EVAL, { "attention+quantize" }, 0 },
	{ "wos", "fp8-delayed", 0, { "drope+quantize" }, 0 },
	{ "wohl", "fp8-delayed", TE_PLAN_DELAY_DW, { "drope+quantize" }, 0 },
};

START_TEST(heads_cast_to_the_same_bits)
{
	same_as_steps(&head_casts[_i]);
}
END_TEST

/* as its kernel on a GPU. _i: FP32 */
START_TEST(attention_casts_bf16_only)
{
	struct te_seq *seq = seq_of("wohl");
	struct te_plan *p = plan_in(seq, "fp8-delayed", _i ? TE_DTYPE_FP32 : TE_DTYPE_BF16,
				    TE_PLAN_TRAIN);

	ck_group(p, "attention+quantize", !_i);
	ck_group(p, "drope+quantize", 1);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

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

START_TEST(norm_gradient_casts_to_the_same_bits)
{
	same_as_steps(&norm_gradient_casts[_i]);
}
END_TEST

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

START_TEST(gemm_adds_within_the_bound)
{
	struct fcase k = gemm_sums[_i / NRECIPES];

	k.recipe = recipes[_i % NRECIPES];
	same_as_steps(&k);
}
END_TEST

/* a power of two: no order of the multiplications changes a bit */
static const struct fcase factors[] = {
	{ "lc", "bf16", 0, { "dscale+dgrad+wgrad" }, 0 },
	{ "lc", "bf16", NO_DX, { "dscale+wgrad" }, 0 },
	{ "glcg", "bf16", NO_DX, { "dscale+wgrad" }, 0 },
	/* the weight gradient after that of L's input is that of l: nothing is fused */
	{ "lLc", "bf16", NO_DX, { NULL }, 0 },
	{ "lLc", "fp32", NO_DX, { NULL }, 0 },
};

START_TEST(factors_are_exact_in_gemms)
{
	same_as_steps(&factors[_i]);
}
END_TEST

static const struct fcase norm_sums[] = {
	{ "fnla", NULL, 0, { "norm.bwd+dw+add" }, SUM_Y | SUM_DX },
	{ "fmla", NULL, 0, { "norm.bwd+dw+add" }, SUM_Y | SUM_DX },
	{ "fna", NULL, 0, { "norm.bwd+dw+add" }, SUM_DX },
	{ "fmla", NULL, TE_PLAN_DELAY_DW, { "norm.bwd+add" }, SUM_Y | SUM_DX },
};

START_TEST(norm_gradient_adds_within_the_bound)
{
	struct fcase k = norm_sums[_i / NRECIPES];

	k.recipe = recipes[_i % NRECIPES];
	same_as_steps(&k);
}
END_TEST

static const struct fcase gemm_gradient_sums[] = {
	{ "flga", NULL, 0, { "dgrad+wgrad+add" }, SUM_DX },
	{ "flga", NULL, TE_PLAN_DELAY_DW, { "dgrad+add" }, SUM_DX },
};

START_TEST(gemm_gradient_adds_within_the_bound)
{
	struct fcase k = gemm_gradient_sums[_i / NRECIPES];

	k.recipe = recipes[_i % NRECIPES];
	same_as_steps(&k);
}
END_TEST

/* ---- what prevents a fusion ---- */

static const struct {
	const char *letters, *recipe;
	uint32_t flags;
	const char *not; /* the fusion that must not be applied */
	const char *why;
} blocked[] = {
	{ "lfba", "bf16", 0, "linear+bias", "the GEMM result is needed without bias" },
	{ "lfba", "bf16", 0, "linear+bias+add", "the GEMM result is needed without bias" },
	{ "flbqgae", "bf16", 0, "linear+bias+add", "an activation is between them" },
	{ "lfa", "bf16", 0, "linear+add", "the residual is the GEMM result itself" },
	{ "lfa", "fp8-current", 0, "linear+add", "the residual is the GEMM result itself" },
	{ "lbfa", "bf16", 0, "linear+bias+add", "the residual is the biased GEMM result itself" },
	{ "qlfemla", "bf16", 0, "norm.bwd+dw+add", "q receives the norm's gradient, too" },
	{ "qlfemla", "bf16", TE_PLAN_DELAY_DW, "norm.bwd+add", "as above" },
	{ "qmfella", "bf16", 0, "dgrad+wgrad+add", "q receives the GEMM's gradient, too" },
	{ "lbg", "fp8-current", TE_PLAN_DELAY_DW, "dact+dbias+quantize", "bias.dw is delayed" },
	{ "lbg", "bf16", 0, "dact+dbias+quantize", "nothing is quantized" },
	{ "ml", "bf16", 0, "norm+quantize", "nothing is quantized" },
	{ "gl", "fp32", 0, "act+quantize", "nothing is quantized" },
	{ "lg", "fp8-delayed", EVAL, "dact+quantize", "there is no backward" },
	{ "lc", "fp8-current", 0, "dscale+dgrad+wgrad", "the scaled gradient is cast" },
	{ "lc", "bf16", TE_PLAN_DELAY_DW, "dscale+dgrad+wgrad", "linear.dw is delayed" },
	{ "lc", "fp32", 0, "dscale+dgrad+wgrad", "FP32 has the bits of separate steps" },
	{ "lcfa", "bf16", 0, "linear+scale+add", "the residual is the scaled result itself" },
	{ "lml", "fp8-block", 0, "norm.bwd+dw+quantize", "its kernel casts with one scale" },
	{ "whl", "fp8-block", 0, "attention+quantize", "blocks of 128 are not of one head" },
	{ "wos", "fp8-block", 0, "drope+quantize", "its kernel casts with one scale" },
};

/* without it the plan equals the unfused steps, within the bound of its other fusions */
START_TEST(does_not_fuse_where_it_must_not)
{
	uint32_t flags = blocked[_i].flags & EVAL ?
				 0 :
				 blocked[_i].flags | TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	float *x = malloc(NELEMS * sizeof(*x)), *dy = malloc(NELEMS * sizeof(*dy));
	struct side fused, steps;
	double diff = 0, most = 0;

	side_open(&fused, blocked[_i].letters, blocked[_i].recipe, flags);
	side_open(&steps, blocked[_i].letters, blocked[_i].recipe, flags | TE_PLAN_NO_FUSION);
	ck_assert_msg(!has_group(fused.p, blocked[_i].not), "%s: %s", blocked[_i].not,
		      blocked[_i].why);
	tt_fill_normal(x, NELEMS, 1);
	tt_fill_normal(dy, NELEMS, 1);
	side_run(&fused, x, dy);
	side_run(&steps, x, dy);
	for (int i = 0; i < NELEMS && fused.dx; i++) {
		diff = fmax(diff, fabs((double)fused.dx[i] - (double)steps.dx[i]));
		most = fmax(most, fabs((double)steps.dx[i]));
	}
	/* a few BF16 roundings; a lost or doubled term differs far more */
	ck_assert_msg(diff <= most / 32, "dx differs by %g of %g", diff, most);
	free(x);
	free(dy);
	side_close(&fused);
	side_close(&steps);
}
END_TEST

static int copy_infer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	return 0;
}

static int ncopies;

static int copy_forward(const struct te_op_call *c)
{
	ncopies++;
	return te_copy(c->stream, te_tensor_data(c->y.hp), te_tensor_data(c->x.hp),
		       te_tensor_nbytes(c->x.hp));
}

static const struct {
	const char *letters; /* an x is an op of the type, without attributes, that copies */
	const char *type;
} namesakes[] = {
	{ "lx", "bias" },      { "flxa", "scale" },   { "lx", "add" },    { "xl", "layernorm" },
	{ "xl", "rmsnorm" },   { "xl", "activation" }, { "xb", "linear" }, { "xl", "attention" },
};

/* a user-defined op is run, whatever its name */
START_TEST(does_not_take_a_namesake)
{
	const struct te_op_ops ops = {
		.size = sizeof(ops),
		.name = namesakes[_i].type,
		.infer = copy_infer,
		.forward = copy_forward,
	};
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; namesakes[_i].letters[i]; i++) {
		if (namesakes[_i].letters[i] == 'x')
			DO(te_op_create(&ops, NULL, "mine", &op));
		else
			op = op_of(namesakes[_i].letters[i], i);
		tt_append(seq, op);
	}
	DO(te_seq_init(seq, 1));
	p = plan_of(seq, "fp8-delayed", 0);
	ncopies = 0;
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	ck_assert_int_eq(ncopies, 1);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

/* both operands of the add are one value: 2 l(x), whatever is fused */
START_TEST(adds_a_gemm_result_to_itself)
{
	float *x = malloc(NELEMS * sizeof(*x)), *once;
	struct side twice, one;

	side_open(&twice, "lfa", "fp32", 0);
	side_open(&one, "l", "fp32", 0);
	tt_fill_normal(x, NELEMS, 1);
	side_run(&twice, x, NULL);
	side_run(&one, x, NULL);
	once = one.y;
	for (int i = 0; i < NELEMS; i++)
		ck_assert_float_eq(twice.y[i], 2 * once[i]);
	free(x);
	side_close(&twice);
	side_close(&one);
}
END_TEST

/* ---- the tables ---- */

static int asked;

static int declines(const struct te_fused *f)
{
	ck_assert_int_eq(f->nparts, 2);
	ck_assert_str_eq(te_op_table(f->part[0]->op)->name, "linear");
	/* specs are known, and a value used only between the two parts has no memory */
	ck_assert_ptr_null(f->part[0]->y.hp);
	ck_assert_int_eq(te_tensor_cols(f->part[1]->y.hp), WIDTH);
	asked++;
	return 0;
}

static int breaks(const struct te_fused *f)
{
	return -TE_EPLAN;
}

static int refuses(const struct te_fused *f)
{
	return 0;
}

static void fails_to_plan(struct te_seq *seq)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;

	o.x = (struct te_spec){ TE_DTYPE_BF16, 3, { 5, 16, WIDTH } };
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_EPLAN);
}

START_TEST(tries_user_fusions_first)
{
	struct te_fusion mine = apart;
	struct te_seq *seq = seq_of("lb");
	struct te_plan *p;

	mine.applies = declines;
	DO(te_seq_add_fusion(seq, &mine));
	asked = 0;
	p = plan_of(seq, "bf16", 0);
	ck_assert_int_eq(asked, 1);
	ck_group(p, "linear-then-bias", 0);
	ck_group(p, "linear+bias", 1); /* the next one that applies */
	te_plan_unref(p);
	te_seq_unref(seq);

	seq = seq_of("lb");
	DO(te_seq_add_fusion(seq, &apart));
	p = plan_of(seq, "bf16", 0);
	ck_group(p, "linear-then-bias", 1);
	ck_group(p, "linear+bias", 0);
	te_plan_unref(p);
	te_seq_unref(seq);

	seq = seq_of("lb");
	mine.applies = breaks;
	DO(te_seq_add_fusion(seq, &mine));
	fails_to_plan(seq);
	te_seq_unref(seq);
}
END_TEST

/* of a bias and an activation, which a built-in fusion of the linear before could take */
static const struct te_fusion later = {
	.size = sizeof(later),
	.name = "bias-then-act",
	.pass = TE_PASS_FORWARD,
	.pattern = "bias activation",
	.run = apart_run,
};

START_TEST(built_in_fusions_leave_user_fusions_their_steps)
{
	struct te_fusion mine = later;
	struct te_seq *seq = seq_of("lbg");
	struct te_plan *p;

	DO(te_seq_add_fusion(seq, &mine));
	p = plan_of(seq, "bf16", 0);
	ck_group(p, "bias-then-act", 1);
	ck_group(p, "linear+bias", 0);
	te_plan_unref(p);
	te_seq_unref(seq);

	/* one that does not apply leaves them to the built-in ones */
	seq = seq_of("lbg");
	mine.applies = refuses;
	DO(te_seq_add_fusion(seq, &mine));
	p = plan_of(seq, "bf16", 0);
	ck_group(p, "bias-then-act", 0);
	ck_group(p, "linear+bias", 1);
	te_plan_unref(p);
	te_seq_unref(seq);

	/* a failure ends planning */
	seq = seq_of("lbg");
	mine.applies = breaks;
	DO(te_seq_add_fusion(seq, &mine));
	fails_to_plan(seq);
	te_seq_unref(seq);
}
END_TEST

/* ---- the loss ---- */

/* letters, then a loss of WIDTH classes with the targets t, by chunks of rows */
static struct te_seq *loss_seq(const char *letters, int64_t chunk)
{
	struct te_cross_entropy_attrs a = TE_CROSS_ENTROPY_ATTRS_INIT;
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; letters[i]; i++) {
		op = op_of(letters[i], i);
		tt_append(seq, op);
	}
	DO(te_seq_input(seq, "t", TE_DTYPE_INT32, 0, NULL));
	a.nclasses = WIDTH - 3;
	a.chunk = chunk;
	DO(te_op_cross_entropy(&a, "loss", &op));
	DO(te_op_take(op, 0, "t"));
	tt_append(seq, op);
	DO(te_seq_complete(seq));
	if (strchr(letters, 'L'))
		ck_assert_int_gt(te_seq_freeze(seq, "L*", 1), 0);
	DO(te_seq_init(seq, 1));
	return seq;
}

static const struct loss_case {
	const char *letters, *recipe;
	uint32_t flags;
	int in_place; /* the gradient is in the memory of the logits */
} losses[] = {
	{ "l", "bf16", 0, 1 },
	{ "l", "fp32", 0, 1 },
	{ "lbg", "fp8-delayed", 0, 1 },
	{ "l", "bf16", TE_PLAN_DELAY_DW, 1 },
	{ "", "bf16", 0, 0 }, /* the logits are the caller's */
	{ "fga", "bf16", 0, 1 },
};

static const struct te__group *loss_group(const struct te_plan *p, const char *name, int backward)
{
	for (int t = backward ? p->fwd_groups : 0; t < p->ngroups; t++)
		if (p->group[t].fusion && !strcmp(p->group[t].fusion->name, name))
			return &p->group[t];
	ck_abort_msg("no group of a loss");
}

static void targets_of_rows(float *target)
{
	for (int i = 0; i < NROWS; i++)
		target[i] = (float)(i % 7 ? tt_rand_int(0, WIDTH - 2) : -100);
}

START_TEST(loss_gradient_has_the_same_bits)
{
	const struct loss_case *k = &losses[_i];
	const uint32_t flags = k->flags | TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	float *x = malloc(NELEMS * sizeof(*x)), target[NROWS];
	struct side s[2];
	const struct te__group *g;

	for (int i = 0; i < 2; i++) {
		s[i] = (struct side){ .seq = loss_seq(k->letters, 0) };
		s[i].p = plan_of(s[i].seq, k->recipe, flags | (i ? TE_PLAN_NO_FUSION : 0));
		ck_group(s[i].p, "cross_entropy+grad", !i);
	}
	g = loss_group(s[0].p, "cross_entropy+grad", 1);
	ck_assert_int_eq(k->in_place,
			 te_tensor_data(g->fused.saved[0]) ==
			 te_tensor_data(loss_group(s[0].p, "cross_entropy+grad", 0)
						->fused.part[0]->x.hp));
	ck_assert_ptr_eq(te_tensor_data(g->fused.saved[0]),
			 te_tensor_data(g->fused.part[0]->dx.hp));
	for (int pass = 0; pass < PASSES; pass++) {
		tt_fill_normal(x, NELEMS, 1.0f + 3.0f * (float)pass);
		targets_of_rows(target);
		for (int i = 0; i < 2; i++) {
			tt_tensor_set(te_plan_input(s[i].p, "t"), target);
			side_run(&s[i], x, NULL);
		}
		ck_bits("loss", s[0].y, s[1].y, 1);
		ck_bits("dx", s[0].dx, s[1].dx, NELEMS);
		if (te_seq_nweights(s[0].seq))
			ck_bits("gradient", s[0].grads, s[1].grads,
				(size_t)te_tensor_nelems(te_seq_grads(s[0].seq)));
		ck_quant(s[0].seq, s[1].seq);
	}
	side_close(&s[0]);
	side_close(&s[1]);
	free(x);
}
END_TEST

static const struct chunk_case {
	const char *letters, *recipe;
	uint32_t flags; /* as in struct fcase */
	int64_t chunk;
	int has; /* 1: chunks are possible */
	int in_place; /* dx of the head is in the memory of its input */
} chunks[] = {
	{ "l", "bf16", 0, 16, 1, 0 }, /* x is the plan's */
	{ "nl", "bf16", 0, 16, 1, 1 },
	{ "nl", "bf16", 0, 32, 1, 1 }, /* the last chunk has 16 of 80 rows */
	{ "lgl", "fp32", 0, 48, 1, 1 },
	{ "fgal", "bf16", 0, 64, 1, 1 },
	{ "ngL", "bf16", 0, 32, 1, 1 },
	{ "nltyt", "bf16", 0, 32, 1, 1 },
	{ "lgltyt", "fp32", 0, 48, 1, 1 },
	{ "ngLtyt", "bf16", 0, 32, 1, 1 },
	{ "nltyt", "bf16", EVAL, 32, 1, 0 },
	{ "nltgt", "bf16", 0, 32, 0, 0 }, /* not a tanh */
	{ "nltyt", "fp8-delayed", 0, 32, 0, 0 },
	{ "nlty", "bf16", 0, 32, 0, 0 },
	{ "nl", "bf16", EVAL, 32, 1, 0 },
	{ "nl", "fp8-delayed", EVAL, 32, 0, 0 },
	{ "nl", "fp8-delayed", 0, 32, 0, 0 },
	{ "nl", "bf16", TE_PLAN_DELAY_DW, 32, 0, 0 },
	{ "nl", "bf16", 0, 80, 0, 0 },
	{ "nlb", "bf16", 0, 32, 0, 0 },
};

/* a user's fusion for the head of a plan without chunks: adds to the gradient of w by chunks */
static int by_chunks_run(const struct te_fused *f)
{
	const struct te_op_call *bwd = f->part[0], *dw = f->part[1];
	const struct chunk_case *k = f->fusion->user;
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	int r = te_op_table(bwd->op)->backward(bwd);

	o.flags = TE_GEMM_A_T | TE_GEMM_B_T;
	o.beta = 1.0f;
	for (int64_t n, at = 0; at < NROWS && r >= 0; at += n) {
		struct te_tensor *x, *dy;

		n = NROWS - at < k->chunk ? NROWS - at : k->chunk;
		DO(te_tensor_view(dw->x.hp, at * WIDTH, 2, (int64_t[]){ n, WIDTH }, &x));
		DO(te_tensor_view(dw->dy.hp, at * WIDTH, 2, (int64_t[]){ n, WIDTH }, &dy));
		r = te_gemm(dw->stream, dy, x, dw->grad[0], &o);
		te_tensor_unref(x);
		te_tensor_unref(dy);
	}
	return r;
}

/* index of the last linear op */
static int head_at(const char *letters)
{
	const char *l = strrchr(letters, 'l'), *frozen = strrchr(letters, 'L');

	return (int)((l > frozen ? l : frozen) - letters);
}

static int by_chunks_applies(const struct te_fused *f)
{
	const struct chunk_case *k = f->fusion->user;

	return k->has && te_op_name(f->part[0]->op)[1] == (char)('0' + head_at(k->letters));
}

/* On a GPU the GEMM of a chunk may use another algorithm than that of all rows: results of one BF16
 * rounding more or less, which later operations spread. */
static void ck_chunks(const char *what, const float *a, const float *b, size_t n)
{
	double most = 0;

	if (!strcmp(backend, "host")) {
		ck_bits(what, a, b, n);
		return;
	}
	for (size_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)b[i]));
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= ldexp(most, -5),
			      "%s[%zu]: chunks %.9g, whole %.9g", what, i, (double)a[i],
			      (double)b[i]);
}

START_TEST(head_has_the_same_bits_by_chunks)
{
	struct chunk_case k = chunks[_i];
	const int trains = !(k.flags & EVAL);
	const uint32_t flags = trains ? k.flags | TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD : 0;
	const int capped = strstr(k.letters, "tyt") != NULL;
	const char *name = capped ? "head+cap+loss" : "head+loss";
	struct te_fusion by_chunks = TE_FUSION_INIT;
	float *x = malloc(NELEMS * sizeof(*x)), target[NROWS];
	struct side s[2];
	const struct te__group *g;

	by_chunks.name = "by-chunks";
	by_chunks.pass = TE_PASS_BACKWARD;
	by_chunks.pattern = "linear linear.dw";
	by_chunks.run = by_chunks_run;
	by_chunks.applies = by_chunks_applies;
	by_chunks.user = &k;
	for (int i = 0; i < 2; i++) {
		s[i] = (struct side){ .seq = loss_seq(k.letters, i ? 0 : k.chunk) };
		if (i)
			DO(te_seq_add_fusion(s[i].seq, &by_chunks));
		s[i].p = plan_of(s[i].seq, k.recipe, flags);
		ck_group(s[i].p, name, !i && k.has);
	}
	ck_group(s[1].p, "by-chunks", k.has && trains && !strchr(k.letters, 'L'));
	if (k.has && trains) {
		g = loss_group(s[0].p, name, 1);
		ck_assert_ptr_eq(te_tensor_data(g->fused.saved[0]),
				 te_tensor_data(g->fused.part[capped ? 4 : 1]->dx.hp));
		g = loss_group(s[0].p, name, 0);
		ck_assert_int_eq(k.in_place, te_tensor_data(g->fused.saved[0]) ==
					     te_tensor_data(g->fused.part[0]->x.hp));
		ck_assert_uint_lt(s[0].p->arena_nbytes, s[1].p->arena_nbytes);
	}
	for (int pass = 0; pass < PASSES; pass++) {
		tt_fill_normal(x, NELEMS, 1.0f + 3.0f * (float)pass);
		targets_of_rows(target);
		for (int i = 0; i < 2; i++) {
			tt_tensor_set(te_plan_input(s[i].p, "t"), target);
			side_run(&s[i], x, NULL);
		}
		ck_chunks("loss", s[0].y, s[1].y, 1);
		if (!trains)
			continue;
		ck_chunks("dx", s[0].dx, s[1].dx, NELEMS);
		ck_chunks("gradient", s[0].grads, s[1].grads,
			  (size_t)te_tensor_nelems(te_seq_grads(s[0].seq)));
	}
	side_close(&s[0]);
	side_close(&s[1]);
	free(x);
}
END_TEST

/* ---- a linear op of a decoder with its neighbours ---- */

#define DEEP 256
#define FEW 3

/* letters as above: l linear 256 to 256, w to 512, b bias, m rmsnorm, s gated silu, g gelu, f and a
 * fork and add */
static const struct few_rows {
	const char *letters, *recipe, *want;
} few_rows[] = {
	{ "ml", "bf16", "norm+linear" },
	{ "mws", "bf16", "norm+linear+act" },
	{ "mlb", "bf16", "norm+linear+bias" },
	{ "lg", "bf16", "linear+act" },
	{ "ml", "fp8-block", "norm+quantize+linear" },
	{ "mws", "fp8-block", "norm+quantize+linear+act" },
	{ "mlb", "fp8-block", "norm+quantize+linear+bias" },
	{ "l", "fp8-block", "quantize+linear" },
	{ "lb", "fp8-block", "quantize+linear+bias" },
	{ "lg", "fp8-block", "quantize+linear+act" },
	{ "ws", "fp8-block", "quantize+linear+act" },
	{ "fla", "fp8-block", "quantize+linear+add" },
};

static struct te_op *deep_op(char letter, int at)
{
	struct te_linear_attrs la = TE_ATTRS(linear, DEEP, letter == 'w' ? 2 * DEEP : DEEP, 0.1f,
					     0, NULL);
	struct te_bias_attrs ba = TE_ATTRS(bias, DEEP);
	struct te_act_attrs aa = TE_ATTRS(act, letter == 's' ? TE_ACT_SILU : TE_ACT_GELU,
					  letter == 's');
	struct te_norm_attrs na = TE_ATTRS(norm, DEEP, 1e-5f, at & 1 ? TE_NORM_ZERO_CENTERED : 0);
	struct te_op *op = NULL;
	char name[16];

	snprintf(name, sizeof(name), "%c%d", letter, at);
	switch (letter) {
	case 'l':
	case 'w':
		DO(te_op_linear(&la, name, &op));
		return op;
	case 'b':
		DO(te_op_bias(&ba, name, &op));
		return op;
	case 'm':
		DO(te_op_rmsnorm(&na, name, &op));
		return op;
	case 's':
	case 'g':
		DO(te_op_activation(&aa, name, &op));
		return op;
	default:
		return op_of(letter, at);
	}
}

static float *run_deep(struct te_plan *p, const float *x)
{
	tt_tensor_set(te_plan_input(p, "x"), x);
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	return tt_tensor_get(te_plan_output(p));
}

/* the bits of the plan that is not a decoder's; on a GPU sums over k have another order */
START_TEST(few_rows_have_the_same_bits)
{
	const struct few_rows *k = &few_rows[_i];
	const struct te_recipe recipe = tt_recipe(k->recipe);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *few, *plain;
	float x[FEW * DEEP], *y, *z, most = 0.0f, *w;
	struct te_seq *seq;
	size_t n;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; k->letters[i]; i++) {
		struct te_op *op = deep_op(k->letters[i], i);

		tt_append(seq, op);
	}
	DO(te_seq_complete(seq));
	DO(te_seq_init(seq, 1));
	n = (size_t)te_tensor_nelems(te_seq_masters(seq));
	w = malloc(n * sizeof(*w));
	tt_fill_normal(w, n, 0.1f);
	tt_tensor_set(te_seq_masters(seq), w);
	o.recipe = &recipe;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 3, { 1, FEW, DEEP } };
	DO(te__plan_create(seq, &o, 1, &few));
	DO(te_plan_create(seq, &o, &plain));
	ck_group(few, k->want, 1);
	ck_group(plain, k->want, 0);
	tt_fill_normal(x, TT_LEN(x), 1.0f);
	y = run_deep(few, x);
	z = run_deep(plain, x);
	n = (size_t)te_tensor_nelems(te_plan_output(few));
	for (size_t i = 0; i < n; i++)
		most = fmaxf(most, fabsf(z[i]));
	for (size_t i = 0; i < n && strcmp(backend, "host"); i++)
		/* a separate bias is added to a product that is rounded */
		ck_assert_msg(fabsf(y[i] - z[i]) <= 0x1p-7f * fabsf(z[i]) + 0x1p-8f * most,
			      "y[%zu]: %g and %g", i, (double)y[i], (double)z[i]);
	if (!strcmp(backend, "host"))
		ck_bits("y", y, z, n);
	free(w);
	free(y);
	free(z);
	te_plan_unref(few);
	te_plan_unref(plain);
	te_seq_unref(seq);
}
END_TEST

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

START_TEST(each_row_names_a_test_that_applies_it)
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
END_TEST

TT_PAIR_SUITE("plan/fusion")
{
	TCase *c = tt_ctx_case(s, "equal", "numeric");

	setenv("TE_GRADIENTS", "once", 0);
	tcase_add_loop_test(c, norm_casts_to_the_same_bits, 0, TT_LEN(norm_casts));
	tcase_add_loop_test(c, activation_casts_to_the_same_bits, 0, TT_LEN(act_casts));
	tcase_add_loop_test(c, activation_gradient_casts_to_the_same_bits, 0, TT_LEN(dact_casts));
	tcase_add_loop_test(c, heads_cast_to_the_same_bits, 0, TT_LEN(head_casts));
	tcase_add_loop_test(c, attention_casts_bf16_only, 0, 2);
	tcase_add_loop_test(c, norm_gradient_casts_to_the_same_bits, 0,
			    TT_LEN(norm_gradient_casts));
	tcase_add_loop_test(c, gemm_adds_within_the_bound, 0, NRECIPES * TT_LEN(gemm_sums));
	tcase_add_loop_test(c, factors_are_exact_in_gemms, 0, TT_LEN(factors));
	tcase_add_loop_test(c, norm_gradient_adds_within_the_bound, 0,
			    NRECIPES * TT_LEN(norm_sums));
	tcase_add_loop_test(c, gemm_gradient_adds_within_the_bound, 0,
			    NRECIPES * TT_LEN(gemm_gradient_sums));
	tcase_add_loop_test(c, loss_gradient_has_the_same_bits, 0, TT_LEN(losses));
	tcase_add_loop_test(c, head_has_the_same_bits_by_chunks, 0, TT_LEN(chunks));
	tcase_add_loop_test(c, few_rows_have_the_same_bits, 0, TT_LEN(few_rows));
	c = tt_ctx_case(s, "apart", "");
	tcase_add_loop_test(c, does_not_fuse_where_it_must_not, 0, TT_LEN(blocked));
	tcase_add_loop_test(c, does_not_take_a_namesake, 0, TT_LEN(namesakes));
	tcase_add_test(c, adds_a_gemm_result_to_itself);
	c = tt_ctx_case(s, "tables", "");
	tcase_add_test(c, tries_user_fusions_first);
	tcase_add_test(c, built_in_fusions_leave_user_fusions_their_steps);
	tcase_add_loop_test(c, each_row_names_a_test_that_applies_it, 0, te__nfusions);
}
