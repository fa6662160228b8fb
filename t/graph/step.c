/*
 * t/graph/step.c - te_step_*(3): a step has the bits of its passes called one by one, with
 * and without graphs and however it is divided; gradients are those of the mean; shapes share
 * memory.
 */
#include "config.h"

#include <math.h>

#include <te/step.h>

#include "step_cases.h"
#include "tt_ctx.h"
#include "tt_gate.h"

const struct model_shape small = { 48, 32, 2, 16, 4, 2, 2, 0.2f, 1 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };
const char *const cuts[NCUTS] = { "h.1.ln1", "norm" };
static const int32_t one_chunk[] = { 3 }, two_chunks[] = { 2, 1 }, three_chunks[] = { 1, 1, 1 };
const uint32_t modes[NMODES] = { 0, TE_STEP_GRAPH, TE_STEP_PASS_GRAPHS };
#define MICRO 3

/* how a step runs; order NULL: the default */
static const struct way {
	uint32_t flags;
	int32_t ncuts;
	const char *order;
	int32_t nchunks;
	const int32_t *nlayers;
} ways[] = {
	{ 0, 0, NULL, 0, NULL },
	{ TE_STEP_GRAPH, 0, NULL, 0, NULL },
	{ TE_STEP_PASS_GRAPHS, 0, NULL, 0, NULL },
	{ 0, NCUTS, NULL, 0, NULL },
	{ TE_STEP_PASS_GRAPHS, NCUTS, NULL, 0, NULL },
	{ TE_STEP_GRAPH, NCUTS, "gpipe", 1, one_chunk },
	{ TE_STEP_GRAPH, NCUTS, "1,2,1,2,-2,-1,1,2,-2,-1,-2,-1", 2, two_chunks },
	{ 0, NCUTS, "1f1b", 3, three_chunks },
	{ TE_STEP_PASS_GRAPHS, NCUTS, "zero-bubble", 2, two_chunks },
	{ TE_STEP_GRAPH, NCUTS, "zero-bubble", 3, three_chunks },
};
#define WAYS ((int)TT_LEN(ways))

struct te_spec tokens(int64_t B, int64_t T)
{
	return (struct te_spec){ TE_DTYPE_INT32, 2, { B, T } };
}

#define NTOKENS (2 * 16)

/* a sequence, its optimizer, and what trains it: a step, or a plan */
struct run {
	struct te_seq *seq;
	struct te_adamw *opt;
	struct te_step *step;
	struct te_plan *plan;
};

static struct run run_of(uint64_t seed)
{
	struct run r = { .step = NULL };

	r.seq = model_create(ctx, &small, seed);
	DO(te_adamw_create(r.seq, NULL, &r.opt));
	DO(te_adamw_set_lr(r.opt, st, 1e-2f));
	return r;
}

static struct run run_create(const struct way *w, const char *recipe)
{
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe rec = model_recipe(recipe);
	struct run r = run_of(3);

	so.nchunks = w->nchunks;
	so.nmicro = MICRO;
	so.nlayers = w->nlayers;
	if (w->order)
		DO(te_schedule_parse(w->order, &so, &o.schedule));
	o.recipe = &rec;
	o.flags = w->flags;
	o.micro_batches = MICRO;
	o.x = tokens(small.batch, small.seqlen);
	o.ncuts = w->ncuts;
	o.cut = cuts;
	DO(te_step_create(r.seq, r.opt, &o, &r.step));
	te_schedule_unref(o.schedule);
	return r;
}

/* the passes of one plan, called one by one */
static struct run run_plain(const char *recipe)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	const struct te_recipe rec = model_recipe(recipe);
	struct run r = run_of(3);

	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN;
	o.x = tokens(small.batch, small.seqlen);
	o.grad_scale = 1.0 / MICRO;
	DO(te_plan_create(r.seq, &o, &r.plan));
	return r;
}

/* the scales that a step would begin with: one of the same sequence sets them */
static void calibrate(const struct run *plain, const char *recipe, int32_t t[MICRO][2][NTOKENS])
{
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe rec = model_recipe(recipe);
	struct te_step *step;

	o.recipe = &rec;
	o.micro_batches = MICRO;
	o.x = tokens(small.batch, small.seqlen);
	DO(te_step_create(plain->seq, plain->opt, &o, &step));
	for (int m = 0; m < MICRO; m++) {
		DO(te_tensor_write(te_step_input(step, 0, m, "x"), t[m][0], sizeof(t[m][0])));
		DO(te_tensor_write(te_step_input(step, 0, m, "targets"), t[m][1],
				   sizeof(t[m][1])));
	}
	DO(te_step_calibrate(step, 0, st));
	te_step_unref(step);
}

static void run_destroy(struct run *r)
{
	te_step_unref(r->step);
	te_plan_unref(r->plan);
	te_adamw_unref(r->opt);
	te_seq_unref(r->seq);
}

/* of one step: tokens and targets of each micro-batch */
static void draw(int32_t t[MICRO][2][NTOKENS])
{
	for (int m = 0; m < MICRO; m++)
		for (int k = 0; k < 2 * NTOKENS; k++)
			t[m][k / NTOKENS][k % NTOKENS] = (int32_t)tt_rand_int(0, small.vocab - 1);
}

static void run_step(struct run *r, int32_t t[MICRO][2][NTOKENS], float loss[MICRO])
{
	static const char *const name[] = { "x", "targets" };
	double mean, sum = 0;

	if (r->plan)
		DO(te_seq_zero_grads(r->seq, st));
	for (int m = 0; m < MICRO; m++) {
		for (int k = 0; k < 2; k++)
			DO(te_tensor_write(r->plan ? te_plan_input(r->plan, name[k]) :
						     te_step_input(r->step, 0, m, name[k]),
					   t[m][k], sizeof(t[m][k])));
		if (!r->plan)
			continue;
		DO(te_plan_forward(r->plan, st, 0));
		DO(te_plan_backward(r->plan, st));
		loss[m] = model_loss(r->plan);
	}
	if (r->plan) {
		DO(te_adamw_step(r->opt, st));
		return;
	}
	DO(te_step_run(r->step, 0, st));
	DO(te_step_loss(r->step, &mean));
	for (int m = 0; m < MICRO; m++) {
		DO(te_tensor_read(te_step_output(r->step, 0, m), &loss[m], sizeof(float)));
		sum += (double)loss[m] / MICRO;
	}
	ck_assert_double_eq(mean, sum);
}

static void same_runs(const struct run *a, const struct run *b)
{
	uint64_t seed[2], offset[2];

	model_same(te_seq_grads(a->seq), te_seq_grads(b->seq), "gradients");
	model_same(te_seq_masters(a->seq), te_seq_masters(b->seq), "weights");
	model_same(te_adamw_v(a->opt), te_adamw_v(b->opt), "moments");
	model_same_scales(te_seq_quant(a->seq), te_seq_quant(b->seq));
	DO(te_seq_rng_get(a->seq, &seed[0], &offset[0]));
	DO(te_seq_rng_get(b->seq, &seed[1], &offset[1]));
	ck_assert_uint_eq(seed[0], seed[1]);
	ck_assert_uint_eq(offset[0], offset[1]);
}

CTX_CASE(bits, "graph step");

TEST_EACH(bits, a_step_has_the_bits_of_its_passes, WAYS * (int)TT_LEN(recipes), .parts = 3)
{
	const char *recipe = recipes[_i / WAYS];
	int32_t t[MICRO][2][NTOKENS];
	struct run plain = run_plain(recipe), run = run_create(&ways[_i % WAYS], recipe);
	float want[MICRO], have[MICRO];

	for (int k = 0; k < STEPS; k++) {
		draw(t);
		if (!k)
			calibrate(&plain, recipe, t);
		run_step(&plain, t, want);
		run_step(&run, t, have);
		ck_assert_mem_eq(want, have, sizeof(want));
		same_runs(&plain, &run);
	}
	run_destroy(&plain);
	run_destroy(&run);
}

/* ---- indices out of range ---- */

/* the step runs with these as first elements of micro-batch 1 */
static void run_with(struct te_step *step, int32_t token, int32_t target, double *loss)
{
	int32_t t[MICRO][2][NTOKENS];

	draw(t);
	t[1][0][0] = token;
	t[1][1][0] = target;
	t[1][1][NTOKENS - 1] = -100;
	for (int m = 0; m < MICRO; m++) {
		DO(te_tensor_write(te_step_input(step, 0, m, "x"), t[m][0], sizeof(t[m][0])));
		DO(te_tensor_write(te_step_input(step, 0, m, "targets"), t[m][1],
				   sizeof(t[m][1])));
	}
	*loss = -1.0;
	DO(te_step_run(step, 0, st));
}

TEST_EACH(bits, the_loss_tells_of_indices_out_of_range, 2 * NMODES)
{
	const struct te_recipe recipe = model_recipe(_i % 2 ? "fp8-delayed" : "fp32");
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_step *step;
	double loss;

	o.x = tokens(small.batch, small.seqlen);
	o.recipe = &recipe;
	o.micro_batches = MICRO;
	o.flags = modes[_i / 2];
	DO(te_step_create(seq, NULL, &o, &step));
	/* also in the passes that find first scales */
	run_with(step, INT32_MAX, -1, &loss);
	fails(te_step_loss(step, &loss), -ERANGE, "te_step_loss: targets of 1 rows");
	ck_assert(loss > 0.0);
	tt_said("; tokens are outside of the vocabulary, too");
	DO(te_step_loss(step, &loss));
	run_with(step, -100, 0, &loss);
	run_with(step, -100, 0, &loss);
	fails(te_step_loss(step, &loss), -ERANGE, "te_step_loss: 2 tokens, since the last call");
	ck_assert(loss > 0.0);
	run_with(step, 0, (int32_t)small.vocab, &loss);
	fails(te_step_loss(step, &loss), -ERANGE, "te_step_loss: targets of 1 rows");
	run_with(step, 0, (int32_t)small.vocab - 1, &loss);
	DO(te_step_loss(step, &loss));
	te_step_unref(step);
	te_seq_unref(seq);
}

/* ---- gradients ---- */

/* one micro-batch of four rows, or four of one: the same mean. Sums of FP32 in another order: the
 * largest element is below 1, and each is a sum of some thousand products */
TEST(bits, gradients_are_those_of_the_mean)
{
	static const struct model_shape still = { 48, 32, 4, 16, 4, 2, 1, 0, 1 };
	const struct te_recipe fp32 = model_recipe("fp32");
	float *grads[2];
	int32_t t[2][4 * 16];
	double loss[2];
	int64_t n = 0;

	for (int k = 0; k < 2 * 4 * 16; k++)
		t[k / 64][k % 64] = (int32_t)tt_rand_int(0, still.vocab - 1);
	for (int i = 0; i < 2; i++) {
		struct te_step_opts o = TE_STEP_OPTS_INIT;
		struct te_seq *seq = model_create(ctx, &still, 9);
		struct te_step *step;

		o.recipe = &fp32;
		o.flags = TE_STEP_GRAPH;
		o.micro_batches = i ? 4 : 1;
		o.x = tokens(i ? 1 : 4, 16);
		DO(te_step_create(seq, NULL, &o, &step));
		for (int32_t m = 0; m < o.micro_batches; m++) {
			struct te_tensor *x = te_step_input(step, 0, m, "x");
			struct te_tensor *y = te_step_input(step, 0, m, "targets");

			DO(te_tensor_write(x, &t[0][16 * m], te_tensor_nbytes(x)));
			DO(te_tensor_write(y, &t[1][16 * m], te_tensor_nbytes(y)));
		}
		DO(te_step_run(step, 0, st));
		DO(te_step_loss(step, &loss[i]));
		n = te_tensor_nelems(te_seq_grads(seq));
		grads[i] = tt_bytes(te_tensor_data(te_seq_grads(seq)),
				    (size_t)n * sizeof(float));
		te_step_unref(step);
		te_seq_unref(seq);
	}
	ck_assert_double_eq_tol(loss[0], loss[1], 1e-5);
	for (int64_t k = 0; k < n; k++)
		ck_assert_float_eq_tol(grads[0][k], grads[1][k], 1e-5f);
	free(grads[0]);
	free(grads[1]);
}

/* without an optimizer weights stay, and te_adamw_step then makes the step whole */
TEST(bits, gradients_alone_leave_the_weights)
{
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct run a = run_create(&ways[1], "bf16"), b = run_of(3);
	struct te_seq *before = model_create(ctx, &small, 3);
	int32_t t[MICRO][2][NTOKENS];
	float want[MICRO], have[MICRO];

	o.flags = TE_STEP_GRAPH;
	o.micro_batches = MICRO;
	o.x = tokens(small.batch, small.seqlen);
	DO(te_step_create(b.seq, NULL, &o, &b.step));
	draw(t);
	run_step(&b, t, have);
	model_same(te_seq_masters(b.seq), te_seq_masters(before), "weights");
	DO(te_adamw_step(b.opt, st));
	run_step(&a, t, want);
	ck_assert_mem_eq(want, have, sizeof(want));
	same_runs(&a, &b);
	run_destroy(&a);
	run_destroy(&b);
	te_seq_unref(before);
}

/* ---- shapes ---- */

static const int64_t shapes[][2] = { { 1, 7 }, { 2, 16 }, { 3, 5 } };
#define NSHAPES ((int32_t)TT_LEN(shapes))

static void feed_shape(struct te_step *s, int32_t shape, int32_t index)
{
	int32_t t[2 * 16];

	for (int32_t m = 0; m < 2; m++)
		for (int k = 0; k < 2; k++) {
			struct te_tensor *in = te_step_input(s, shape, m, k ? "targets" : "x");
			const int64_t n = shapes[index][0] * shapes[index][1];

			ck_assert_int_eq(te_tensor_nelems(in), n);
			for (int64_t i = 0; i < n; i++)
				t[i] = (int32_t)((13 * i + 7 * k + 3 * m + index) % small.vocab);
			DO(te_tensor_write(in, t, (size_t)n * sizeof(*t)));
		}
}

CTX_CASE(memory, "graph step memory");

/* steps of three shapes, on two streams in turn, have the bits of three steps with one each */
TEST_EACH(memory, shapes_share_one_memory, NMODES)
{
	static const int32_t order[] = { 0, 2, 1, 1, 0, 2, 1 };
	struct te_step_memory mem = TE_STEP_MEMORY_INIT, one = TE_STEP_MEMORY_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe rec = model_recipe("bf16");
	struct run a = run_of(3), b = run_of(3);
	struct te_spec spec[NSHAPES];
	struct te_step *single[NSHAPES];
	struct te_stream *other;
	uint64_t largest = 0;
	double want, have;

	o.recipe = &rec;
	o.flags = modes[_i];
	o.micro_batches = 2;
	for (int32_t i = 0; i < NSHAPES; i++) {
		o.x = spec[i] = tokens(shapes[i][0], shapes[i][1]);
		DO(te_step_create(b.seq, b.opt, &o, &single[i]));
		DO(te_step_memory(single[i], &one));
		if (one.pool_nbytes > largest)
			largest = one.pool_nbytes;
	}
	o.x = (struct te_spec){ .ndim = 0 };
	o.shapes = spec;
	o.nshapes = NSHAPES;
	DO(te_step_create(a.seq, a.opt, &o, &a.step));
	DO(te_step_memory(a.step, &mem));
	ck_assert_uint_eq(mem.pool_nbytes, largest);
	ck_assert_uint_eq(mem.workspace_nbytes, te_ctx_workspace_nbytes(ctx));
	DO(te_stream_create(ctx, &other));
	for (size_t k = 0; k < TT_LEN(order); k++) {
		feed_shape(a.step, order[k], order[k]);
		feed_shape(single[order[k]], 0, order[k]);
		DO(te_step_run(a.step, order[k], k % 2 ? other : st));
		DO(te_step_run(single[order[k]], 0, st));
		DO(te_step_loss(a.step, &have));
		DO(te_step_loss(single[order[k]], &want));
		ck_assert_double_eq(want, have);
		same_runs(&a, &b);
	}
	te_stream_unref(other);
	for (int32_t i = 0; i < NSHAPES; i++)
		te_step_unref(single[i]);
	run_destroy(&a);
	run_destroy(&b);
}

/* a step of one shape waits for that of another on another stream */
TEST_EACH(memory, steps_on_two_streams_run_serially, NMODES)
{
	const struct te_spec spec[] = { ones_spec, { TE_DTYPE_FP32, 2, { 200, WIDTH } } };
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe fp32 = model_recipe("fp32");
	struct te_seq *seq = dropping(1);
	struct te_stream *other;
	struct te_step *step;

	o.recipe = &fp32;
	o.flags = modes[_i];
	o.shapes = spec;
	o.nshapes = 2;
	DO(te_step_create(seq, NULL, &o, &step));
	DO(te_stream_create(ctx, &other));
	for (int32_t k = 0; k < 2; k++) /* kernels are loaded while nothing blocks */
		DO(te_step_run(step, k, k ? st : other));
	DO(te_ctx_sync(ctx));
	tt_gate_close();
	DO(te_host_call(st, tt_gate_wait, NULL, 0));
	write_ones(te_step_input(step, 1, 0, "x"));
	DO(te_step_run(step, 1, st));
	DO(te_step_run(step, 0, other)); /* on what the other shape left */
	tt_sleep_ms(20);
	ck_assert_int_eq(te_stream_query(other), 0);
	tt_gate_open();
	DO(te_stream_sync(other));
	write_ones(te_step_input(step, 0, 0, "x"));
	DO(te_step_run(step, 0, st));
	has_mask(te_step_output(step, 0, 0), 4);
	te_step_unref(step);
	te_stream_unref(other);
	te_seq_unref(seq);
}

/* other micro-batches have the memory of the first, unless the order has them in flight at once */
TEST(memory, plans_are_as_many_as_micro_batches_in_flight)
{
	static const struct {
		const char *order;
		int nplans[2]; /* of the first part and the second */
	} cases[] = {
		{ "1,2,-2,-1,1,2,-2,-1,1,2,-2,-1", { 1, 1 } },
		{ "1,1,2,-2,2,-2,-1,-1,1,2,-2,-1", { 2, 1 } },
		{ "1f1b", { 2, 2 } },
		{ "gpipe", { 3, 3 } },
		{ "1,2,-2,-1,1,2,-2,-1,-1.5,-2.5,-2.5,-1.5,1,2,-2,-1,-1.5,-2.5", { 2, 2 } },
	};
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_seq *seq = model_create(ctx, &small, 3);
	uint64_t own[2], want;

	o.x = tokens(small.batch, small.seqlen);
	o.ncuts = 1;
	o.cut = cuts;
	for (size_t i = 0; i <= TT_LEN(cases); i++) {
		struct te_step_memory mem = TE_STEP_MEMORY_INIT;
		struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
		struct te_step *step;

		so.nchunks = 2;
		so.nmicro = o.micro_batches = i ? MICRO : 1;
		if (i)
			DO(te_schedule_parse(cases[i - 1].order, &so, &o.schedule));
		DO(te_step_create(seq, NULL, &o, &step));
		for (int p = 0; p < 2 && !i; p++) {
			struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;

			DO(te_plan_memory(te_step_plan(step, 0, p), &pm));
			own[p] = pm.own_nbytes;
		}
		DO(te_step_memory(step, &mem));
		want = own[0] + own[1];
		if (i)
			want = (uint64_t)cases[i - 1].nplans[0] * own[0] +
			       (uint64_t)cases[i - 1].nplans[1] * own[1];
		ck_assert_uint_eq(mem.plans_nbytes, want);
		te_step_unref(step);
		te_schedule_unref(o.schedule);
	}
	te_seq_unref(seq);
}

TEST(memory, no_alloc_tells_the_same_memory)
{
	struct te_step_memory mem = TE_STEP_MEMORY_INIT, laid_out = TE_STEP_MEMORY_INIT;
	struct te_graph_report rep = TE_GRAPH_REPORT_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe rec = model_recipe("bf16");
	struct te_seq *seq = model_create_unbound(ctx, &small);
	const uint64_t used = tt_used();
	struct te_step *step;
	char *text;
	double loss;

	DO(te_seq_complete(seq));
	o.recipe = &rec;
	o.micro_batches = MICRO;
	o.x = tokens(small.batch, small.seqlen);
	o.ncuts = NCUTS;
	o.cut = cuts;
	o.flags = TE_STEP_NO_ALLOC | TE_STEP_GRAPH;
	DO(te_step_create(seq, NULL, &o, &step));
	DO(te_step_memory(step, &laid_out));
	ck_assert_uint_eq(tt_used(), used);
	for (int32_t p = 0; p <= NCUTS; p++) {
		DO(te_plan_print(te_step_plan(step, 0, p), TE_PLAN_TEXT, &text));
		free(text);
	}
	ck_assert_ptr_null(te_step_plan(step, 0, NCUTS + 1));
	ck_assert_ptr_null(te_step_plan(step, 0, -1));
	fails(te_step_run(step, 0, st), -TE_ESTATE, "te_step_run: the step was made without");
	fails(te_step_loss(step, &loss), -TE_ESTATE, "te_step_loss: no step has run");
	te_step_unref(step);
	DO(te_seq_init(seq, 1));
	o.flags = TE_STEP_GRAPH;
	DO(te_step_create(seq, NULL, &o, &step));
	DO(te_step_memory(step, &mem));
	ck_assert_mem_eq(&mem, &laid_out, sizeof(mem));
	DO(te_graph_report(te_step_graph(step, 0), &rep));
	ck_assert_uint_eq(mem.pool_nbytes, rep.peak_nbytes);
	ck_assert_uint_eq(rep.nrecordings, 1);
	te_step_unref(step);
	te_seq_unref(seq);
}

/* ---- the rest ---- */

CTX_CASE(tensors, "graph step");

TEST(tensors, tensors_are_of_a_micro_batch)
{
	struct run r = run_create(&ways[8], "fp32");

	for (int32_t m = 0; m < MICRO; m++) {
		ck_assert_ptr_nonnull(te_step_input(r.step, 0, m, "x"));
		ck_assert_ptr_nonnull(te_step_input(r.step, 0, m, "targets"));
		ck_assert_ptr_null(te_step_input(r.step, 0, m, "out"));
		ck_assert_ptr_null(te_step_input(r.step, 0, m, "y"));
		ck_assert_ptr_null(te_step_input(r.step, 1, m, "x"));
		ck_assert_int_eq(te_tensor_dtype(te_step_input(r.step, 0, m, "x")),
				 TE_DTYPE_INT32);
		ck_assert_int_eq(te_tensor_nelems(te_step_output(r.step, 0, m)), 1);
		for (int32_t k = 0; k < m; k++) {
			ck_assert_ptr_ne(te_step_input(r.step, 0, m, "x"),
					 te_step_input(r.step, 0, k, "x"));
			ck_assert_ptr_ne(te_step_output(r.step, 0, m),
					 te_step_output(r.step, 0, k));
		}
	}
	ck_assert_ptr_null(te_step_input(r.step, 0, MICRO, "x"));
	ck_assert_ptr_null(te_step_input(r.step, 0, -1, "x"));
	ck_assert_ptr_null(te_step_input(r.step, -1, 0, "x"));
	ck_assert_ptr_null(te_step_input(r.step, 0, 0, NULL));
	ck_assert_ptr_null(te_step_input(NULL, 0, 0, "x"));
	ck_assert_ptr_null(te_step_output(r.step, 0, MICRO));
	ck_assert_ptr_null(te_step_output(r.step, 1, 0));
	ck_assert_ptr_null(te_step_output(NULL, 0, 0));
	ck_assert_ptr_null(te_step_graph(r.step, 1));
	ck_assert_ptr_null(te_step_graph(NULL, 0));
	ck_assert_ptr_eq(te_step_unref(te_step_ref(r.step)), NULL);
	ck_assert_ptr_null(te_step_unref(NULL));
	run_destroy(&r);
}

/* what a hook saw: events by weight, and a copy of each gradient at its event, which it queues */
struct seen {
	struct te_seq *seq;
	struct te_tensor *copy;
	int *count;
};

static int copy_grad(void *arg, struct te_plan *plan, const struct te_plan_event *e)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	struct seen *s = arg;
	int r = te_seq_weight(s->seq, e->weight, &w);

	s->count[e->weight]++;
	return r ? r : te_copy(e->stream, (float *)te_tensor_data(s->copy) + w.offset_nelems,
			       te_tensor_data(w.grad), te_tensor_nbytes(w.grad));
}

/* a weight that two ops have, in two plans, and one that has no gradient until the step's end */
static const struct model_shape tied = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };

/* each weight's gradient is complete once a step, after all micro-batches and in all plans */
TEST_EACH(tensors, gradients_are_complete_once, 2 * WAYS)
{
	const struct model_shape *m = _i % 2 ? &tied : &small;
	const struct way *w = &ways[_i / 2];
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_seq *seq = model_create(ctx, m, 3);
	const int64_t nelems = te_tensor_nelems(te_seq_grads(seq));
	const int n = te_seq_nweights(seq);
	struct seen s = { .seq = seq, .count = calloc((size_t)n, sizeof(int)) };
	struct te_step *step;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, &nelems, NULL, &s.copy));
	so.nchunks = w->nchunks;
	so.nmicro = 2;
	so.nlayers = w->nlayers;
	if (w->order && strspn(w->order, "-,12") != strlen(w->order))
		DO(te_schedule_parse(w->order, &so, &o.schedule));
	o.flags = w->flags;
	o.micro_batches = 2;
	o.x = tokens(m->batch, m->seqlen);
	o.ncuts = w->ncuts;
	o.cut = cuts;
	o.hook = copy_grad;
	o.hook_arg = &s;
	o.hooks = 1u << TE_PLAN_EVENT_GRAD;
	DO(te_step_create(seq, NULL, &o, &step));
	te_schedule_unref(o.schedule);
	DO(te_fill(st, te_tensor_data(s.copy), 0, te_tensor_nbytes(s.copy)));
	for (int k = 0; k < 2; k++) {
		memset(s.count, 0, (size_t)n * sizeof(*s.count));
		feed_shape(step, 0, 1);
		DO(te_step_run(step, 0, st));
		DO(te_stream_sync(st));
		/* the hook is called while a pass is queued, so not by replays */
		for (int i = 0; i < n; i++)
			ck_assert_int_eq(s.count[i], w->flags ? 0 : 1);
		model_same(s.copy, te_seq_grads(seq), "gradients at their events");
	}
	te_step_unref(step);
	te_tensor_unref(s.copy);
	te_seq_unref(seq);
	free(s.count);
}

static int count_event(void *arg, struct te_plan *plan, const struct te_plan_event *event)
{
	(void)plan;
	(void)event;
	++*(int *)arg;
	return 0;
}

/* events of a step of two micro-batches that is created, and runs once */
static int count_events(uint32_t flags)
{
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_step *step;
	int n = 0;

	o.flags = flags;
	o.micro_batches = 2;
	o.x = tokens(small.batch, small.seqlen);
	o.hook = count_event;
	o.hook_arg = &n;
	o.hooks = 1u << TE_PLAN_EVENT_BEGIN;
	DO(te_step_create(seq, NULL, &o, &step));
	feed_shape(step, 0, 1);
	DO(te_step_run(step, 0, st));
	DO(te_stream_sync(st));
	te_step_unref(step);
	te_seq_unref(seq);
	return n;
}

/* micro-batches of one plan are alike: the first alone runs before the capture of both */
TEST(tensors, one_of_like_micro_batches_warms_up)
{
	const int n = count_events(0);

	ck_assert_int_gt(n, 0);
	ck_assert_int_eq(2 * count_events(TE_STEP_GRAPH), 3 * n);
	ck_assert_int_eq(2 * count_events(TE_STEP_PASS_GRAPHS), 3 * n);
}

TT_PAIR("graph/step", TT_ONE_PROCESS)
