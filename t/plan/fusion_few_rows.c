/* t/plan/fusion_few_rows.c - a linear op of a decoder with its neighbours, in one kernel. */
#include "config.h"

#include <math.h>

#include "fusion_side.h"

#define DEEP 256
#define FEW 3
#define MANY 9 /* rows, one more than the kernel takes */

/*
 * Letters of a sequence: l linear 256 to 256, w to 512, b bias, m rmsnorm, s gated silu, g gelu, f
 * and a fork and add
 */
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
TEST_EACH(equal, few_rows_have_the_same_bits, TT_LEN(few_rows))
{
	const struct few_rows *k = &few_rows[_i];
	const struct te_recipe recipe = tt_recipe(k->recipe);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *few, *many, *plain;
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
	o.x.shape[1] = MANY;
	DO(te__plan_create(seq, &o, 1, &many));
	ck_group(many, k->want, 0);
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
	te_plan_unref(many);
	tt_drop(plain, seq);
}
