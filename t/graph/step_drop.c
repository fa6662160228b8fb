/* t/graph/step_drop.c - dropout of te_step_*(3): by step, micro-batch and op, in any order. */
#include "config.h"

#include <te/step.h>

#include "kernels/philox.h"
#include "step_cases.h"
#include "tt_ctx.h"

#define DROP_OP 1 /* its index in the sequence */
#define SEED 77u

/* a loss whose output is its input, and whose gradient is 1 */
static int show_infer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	inf->bwd_dy = 0;
	return 0;
}

static int show_forward(const struct te_op_call *c)
{
	return te_copy(c->stream, te_tensor_data(c->y.hp), te_tensor_data(c->x.hp),
		       te_tensor_nbytes(c->x.hp));
}

static int show_backward(const struct te_op_call *c)
{
	uint32_t bits;

	memcpy(&bits, &c->grad_scale, sizeof(bits));
	return te_fill_u32(c->stream, te_tensor_data(c->dx.hp), bits,
			   te_tensor_nbytes(c->dx.hp));
}

struct te_seq *dropping(int with_loss)
{
	static struct te_op_ops show = TE_OP_OPS_INIT;
	const struct te_bias_attrs ba = TE_ATTRS(bias, WIDTH);
	const struct te_dropout_attrs da = TE_ATTRS(dropout, .p = 0.5f);
	struct te_seq *seq;
	struct te_op *op;

	show.name = "show";
	show.infer = show_infer;
	show.forward = show_forward;
	show.backward = show_backward;
	DO(te_seq_create(ctx, &seq));
	DO(te_op_bias(&ba, "bias", &op));
	tt_append(seq, op);
	DO(te_op_dropout(&da, "drop", &op));
	tt_append(seq, op);
	if (with_loss) {
		DO(te_op_create(&show, NULL, "show", &op));
		tt_append(seq, op);
	}
	DO(te_seq_init(seq, SEED));
	return seq;
}

const struct te_spec ones_spec = { TE_DTYPE_FP32, 2, { ROWS, WIDTH } };

void write_ones(struct te_tensor *t)
{
	DO(te_fill_u32(st, te_tensor_data(t), 0x3f800000, te_tensor_nbytes(t)));
}

/* what dropout makes of ones, by its definition */
static void mask_of(uint64_t offset, float want[ROWS * WIDTH])
{
	for (int i = 0; i < ROWS * WIDTH; i++) {
		const struct te_philox r =
			te_philox_flat(SEED, offset, DROP_OP, (uint64_t)i / 8);

		want[i] = te_philox_lane(&r, i % 8) >= 32768 ? 2.0f : 0.0f;
	}
}

void has_mask(struct te_tensor *t, uint64_t offset)
{
	float want[ROWS * WIDTH], *have = tt_bytes(te_tensor_data(t), te_tensor_nbytes(t));

	mask_of(offset, want);
	ck_assert_mem_eq(want, have, sizeof(want));
	free(have);
}

static struct te_step_opts dropping_opts(const struct te_recipe *fp32, int32_t nmicro)
{
	struct te_step_opts o = TE_STEP_OPTS_INIT;

	o.recipe = fp32;
	o.micro_batches = nmicro;
	o.x = ones_spec;
	return o;
}

#define NDROP 4 /* micro-batches: a power of two, so that the gradient is exact in any order */

/* the gradient of the bias: of the mean over NDROP micro-batches, the sum over the rows of n */
static void has_grad(struct te_seq *seq, uint64_t offset, int n)
{
	float *have = tt_bytes(te_tensor_data(te_seq_grads(seq)), WIDTH * sizeof(float));
	float mask[ROWS * WIDTH], want[WIDTH] = { 0 };

	for (int m = 0; m < n; m++) {
		mask_of(offset + (uint64_t)m, mask);
		for (int i = 0; i < ROWS * WIDTH; i++)
			want[i % WIDTH] += mask[i] / NDROP;
	}
	for (int j = 0; j < WIDTH; j++)
		ck_assert_float_eq(have[j], want[j]);
	free(have);
}

static const char *const orders[] = { NULL, "gpipe" };

CTX_CASE(dropout, "graph step");

TEST_EACH(dropout, a_step_drops_by_step_and_micro_batch, 6)
{
	const struct te_recipe fp32 = model_recipe("fp32");
	struct te_step_opts o = dropping_opts(&fp32, NDROP);
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_seq *seq = dropping(1);
	struct te_step *step;

	so.nmicro = NDROP;
	o.flags = modes[_i % 3];
	if (orders[_i / 3])
		DO(te_schedule_parse(orders[_i / 3], &so, &o.schedule));
	DO(te_step_create(seq, NULL, &o, &step));
	for (uint64_t k = 0; k < STEPS; k++) {
		for (int32_t m = 0; m < NDROP; m++)
			write_ones(te_step_input(step, 0, m, "x"));
		DO(te_step_run(step, 0, st));
		for (int32_t m = 0; m < NDROP; m++)
			has_mask(te_step_output(step, 0, m), NDROP * k + (uint64_t)m);
		has_grad(seq, NDROP * k, NDROP);
	}
	te_step_unref(step);
	te_schedule_unref(o.schedule);
	te_seq_unref(seq);
}

/* two steps that have the micro-batches of one between them, in another order */
TEST_EACH(dropout, parts_of_a_larger_step_drop_as_it_does, NMODES)
{
	const struct te_recipe fp32 = model_recipe("fp32");
	struct te_step_opts o = dropping_opts(&fp32, 1);

	o.flags = modes[_i];
	o.total_micro_batches = NDROP;
	for (int part = 1; part >= 0; part--) {
		struct te_seq *seq = dropping(1);
		struct te_step *step;
		uint64_t seed, offset;

		o.first_micro_batch = part ? 1 : 0;
		o.micro_batches = part ? NDROP - 1 : 1;
		DO(te_step_create(seq, NULL, &o, &step));
		for (uint64_t k = 0; k < STEPS; k++) {
			const uint64_t at = NDROP * k + (uint64_t)o.first_micro_batch;

			for (int32_t m = 0; m < o.micro_batches; m++)
				write_ones(te_step_input(step, 0, m, "x"));
			DO(te_step_run(step, 0, st));
			for (int32_t m = 0; m < o.micro_batches; m++)
				has_mask(te_step_output(step, 0, m), at + (uint64_t)m);
			has_grad(seq, at, o.micro_batches);
		}
		DO(te_seq_rng_get(seq, &seed, &offset));
		ck_assert_uint_eq(offset, NDROP * STEPS);
		te_step_unref(step);
		te_seq_unref(seq);
	}
}

/* one plan for each micro-batch, or one for all, run in reverse or any order */
TEST_EACH(dropout, passes_in_any_order_drop_the_same, 6)
{
	static const int order[][NDROP] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 } };
	const struct te_recipe fp32 = model_recipe("fp32");
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	const int *at = order[_i % 3], nplans = _i < 3 ? 1 : NDROP;
	struct te_seq *seq = dropping(1);
	struct te_plan *plan[NDROP];
	uint64_t seed, offset;

	o.recipe = &fp32;
	o.flags = TE_PLAN_TRAIN;
	o.x = ones_spec;
	o.grad_scale = 1.0 / NDROP;
	for (int i = 0; i < nplans; i++)
		DO(te_plan_create(seq, &o, &plan[i]));
	for (uint64_t k = 0; k < STEPS; k++) {
		DO(te_seq_zero_grads(seq, st));
		for (int i = 0; i < NDROP; i++) {
			struct te_plan *p = plan[at[i] % nplans];
			const uint64_t m = (uint64_t)at[i];

			write_ones(te_plan_input(p, "x"));
			DO(te_plan_set_rng(p, m, i + 1 < NDROP ? 0 : NDROP));
			DO(te_plan_forward(p, st, 0));
			has_mask(te_plan_output(p), NDROP * k + m);
			DO(te_plan_backward(p, st));
		}
		has_grad(seq, NDROP * k, NDROP);
	}
	DO(te_seq_rng_get(seq, &seed, &offset));
	ck_assert_uint_eq(offset, NDROP * STEPS);
	for (int i = 0; i < nplans; i++)
		te_plan_unref(plan[i]);
	te_seq_unref(seq);
}

/* a graph in which two plans of one micro-batch have the same ops: they drop differently */
TEST_EACH(dropout, repeated_ops_drop_differently, 2)
{
	const struct te_recipe fp32 = model_recipe("fp32");
	struct te_callable c[2] = { TE_CALLABLE_INIT, TE_CALLABLE_INIT };
	struct te_graph_opts go = TE_GRAPH_OPTS_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *seq = dropping(0);
	float mask[2][ROWS * WIDTH], *out;
	struct te_graph *g;
	uint64_t seed, offset;

	o.recipe = &fp32;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_EXTERNAL | TE_PLAN_INPUT_GRAD;
	o.x = ones_spec;
	for (int i = 0; i < 2; i++) {
		struct te_plan *plan;

		DO(te_plan_create(seq, &o, &plan));
		DO(te_callable_from_plan(plan, i ? "second" : "first", &c[i]));
		te_plan_unref(plan);
	}
	go.flags = TE_GRAPH_CHAIN | (_i ? TE_GRAPH_WHOLE : TE_GRAPH_EAGER);
	DO(te_graph_create(ctx, 2, c, &go, &g));
	for (uint64_t k = 0; k < STEPS; k++) {
		write_ones(te_graph_tensor(g, 0, "x"));
		DO(te_graph_run(g, st));
		has_mask(te_graph_tensor(g, 0, "out"), 2 * k);
		mask_of(2 * k, mask[0]);
		mask_of(2 * k + 1, mask[1]);
		out = tt_bytes(te_tensor_data(te_graph_tensor(g, 1, "out")), sizeof(mask[0]));
		for (int i = 0; i < ROWS * WIDTH; i++)
			ck_assert_float_eq(out[i], mask[0][i] * mask[1][i]);
		free(out);
	}
	DO(te_seq_rng_get(seq, &seed, &offset));
	ck_assert_uint_eq(offset, 2 * STEPS);
	te_graph_unref(g);
	te_seq_unref(seq);
}
