/* t/graph/step_cuts.c - where a division into plans keeps the bits of te_step_*(3). */
#include "config.h"

#include <te/step.h>

#include "step_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

enum { N = 32, NROWS = 16 };

static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };
/* only the last one is within a sum or a product that is rounded once */
static const char *const at[] = { "up", "act", "down", "head", "loss", "bias" };
#define NAT ((int)TT_LEN(at))

static struct te_seq *cut_seq(void)
{
	const struct te_embedding_attrs e = TE_ATTRS(embedding, N, N, .init_std = 1);
	const struct te_linear_attrs l = TE_ATTRS(linear, N, N, .init_std = 0.3f);
	const struct te_bias_attrs b = TE_ATTRS(bias, N);
	const struct te_act_attrs a = TE_ATTRS(act, TE_ACT_SILU);
	const struct te_cross_entropy_attrs c = TE_ATTRS(cross_entropy, N);
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	struct te_seq *seq;
	struct te_op *op[7];
	float bias[N];

	DO(te_seq_create(ctx, &seq));
	DO(te_op_embedding(&e, "e", &op[0]));
	DO(te_op_linear(&l, "up", &op[1]));
	DO(te_op_bias(&b, "bias", &op[2]));
	DO(te_op_activation(&a, "act", &op[3]));
	DO(te_op_linear(&l, "down", &op[4]));
	DO(te_op_linear(&l, "head", &op[5]));
	DO(te_op_cross_entropy(&c, "loss", &op[6]));
	DO(te_op_take(op[6], 0, "targets"));
	for (int i = 0; i < 7; i++)
		tt_append(seq, op[i]);
	DO(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
	DO(te_seq_init(seq, 5));
	for (int i = 0; i < N; i++)
		bias[i] = 0.01f * (float)(i * 7 % 13);
	for (int i = 0; i < te_seq_nweights(seq); i++) {
		DO(te_seq_weight(seq, i, &w));
		if (!strcmp(w.name, "bias.bias"))
			DO(te_tensor_write(w.master, bias, sizeof(bias)));
	}
	DO(te_seq_weights_changed(seq, st));
	return seq;
}

static float *gradients(const char *recipe, const char *cut, size_t *ret_nbytes)
{
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe rec = model_recipe(recipe);
	struct te_seq *seq = cut_seq();
	int32_t x[NROWS], y[NROWS];
	struct te_step *step;
	float *g;

	o.recipe = &rec;
	o.x = tokens(1, NROWS);
	o.ncuts = cut != NULL;
	o.cut = &cut;
	DO(te_step_create(seq, NULL, &o, &step));
	for (int i = 0; i < NROWS; i++) {
		x[i] = i * 5 % N;
		y[i] = i * 11 % N;
	}
	DO(te_tensor_write(te_step_input(step, 0, 0, "x"), x, sizeof(x)));
	DO(te_tensor_write(te_step_input(step, 0, 0, "targets"), y, sizeof(y)));
	DO(te_step_run(step, 0, st));
	DO(te_stream_sync(st));
	*ret_nbytes = te_tensor_nbytes(te_seq_grads(seq));
	g = tt_tensor_get(te_seq_grads(seq));
	te_step_unref(step);
	te_seq_unref(seq);
	return g;
}

CTX_CASE(cuts, "graph step numeric");

TEST_EACH(cuts, cuts_outside_fused_sums_keep_the_bits, NAT * (int)TT_LEN(recipes))
{
	const char *recipe = recipes[_i / NAT], *cut = at[_i % NAT];
	const int at_sum = !strcmp(cut, "bias"), fp32 = !strcmp(recipe, "fp32");
	size_t nbytes, same;
	float *a = gradients(recipe, NULL, &nbytes), *b = gradients(recipe, cut, &same);

	ck_assert_uint_eq(nbytes, same);
	if (!at_sum || (fp32 && !strcmp(backend, "host")))
		ck_assert_mem_eq(a, b, nbytes);
	else if (!fp32)
		ck_assert_mem_ne(a, b, nbytes);
	free(a);
	free(b);
}
