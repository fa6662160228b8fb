/* t/graph/step_use.c - te_step_*(3): options and arguments that do not fit, and failures. */
#include "config.h"

#include <te/offload.h>
#include <te/step.h>

#include "libtecore/base/private.h"
#include "step_cases.h"
#include "tt_ctx.h"

static int create(struct te_seq *seq, const struct te_step_opts *o)
{
	struct te_step *step = (void *)&step, *before = step;
	int r = te_step_create(seq, NULL, o, &step);

	ck_assert_ptr_eq(step, before);
	return r;
}

CTX_CASE(use, "graph step");

TEST(use, options_must_fit)
{
	static const char *const unknown[] = { "h.9.ln1" }, *const none[] = { NULL };
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT, good;
	struct te_seq *seq = model_create(ctx, &small, 3), *lossless = dropping(0), *raw;
	const struct te_recipe fp32 = model_recipe("fp32");
	struct te_spec x = tokens(small.batch, small.seqlen);
	struct te_step *step;
	struct te_adamw *opt;

	o.x = x;
	good = o;
#define WRONG(code, text, ...)                  \
	do {                                    \
		o = good;                       \
		__VA_ARGS__                     \
		fails(create(seq, &o), code, text); \
	} while (0)
	WRONG(-EINVAL, "te_step_create: unknown flags 0x80", o.flags = 128;);
	WRONG(-EINVAL, "exclude each other", o.flags = TE_STEP_GRAPH | TE_STEP_PASS_GRAPHS;);
	WRONG(-EINVAL, "te_step_create: 0 micro-batches", o.micro_batches = 0;);
	WRONG(-EINVAL, "1 micro-batches from number 4 on, of a total of 4",
	      o.first_micro_batch = o.total_micro_batches = 4;);
	WRONG(-EINVAL, "from number 1 on", o.first_micro_batch = 1;);
	WRONG(-EINVAL, "from number -1 on", o.first_micro_batch = -1; o.total_micro_batches = 4;);
	WRONG(-EINVAL, "of a total of -1", o.total_micro_batches = -1;);
	WRONG(-EINVAL, "x and shapes exclude each other", o.shapes = &x; o.nshapes = 1;);
	WRONG(-EINVAL, "1 shapes, and no list", o.nshapes = 1;);
	WRONG(-EINVAL, "-1 shapes", o.nshapes = -1;);
	WRONG(-EINVAL, "-1 cuts", o.ncuts = -1;);
	WRONG(-EINVAL, "1 cuts, and no list", o.ncuts = 1;);
	WRONG(-EINVAL, "cut 0 has no name", o.ncuts = 1; o.cut = none;);
	WRONG(-EINVAL, "h.9.ln1", o.ncuts = 1; o.cut = unknown;);
	WRONG(-TE_ESHAPE, "te_plan_create", o.x.ndim = 0;);
	WRONG(-EINVAL, "hook", o.hooks = 1;);
	so.nmicro = 2;
	DO(te_schedule_parse("gpipe", &so, &good.schedule));
	WRONG(-EINVAL, "1 micro-batches, the schedule has 2", (void)0;);
	WRONG(-EINVAL, "3 plans, the schedule has 1 layers", o.micro_batches = 2; o.ncuts = NCUTS;
	      o.cut = cuts;);
	te_schedule_unref(good.schedule);
	so.flags = TE_SCHED_FORWARD_ONLY;
	DO(te_schedule_create(&so, &good.schedule));
	WRONG(-EINVAL, "the schedule has no backward passes", o.micro_batches = 2;);
	te_schedule_unref(good.schedule);
	good.schedule = NULL;
	o = good;
	o.recipe = &fp32;
	o.x = ones_spec;
	fails(create(lossless, &o), -EINVAL, "te_step_create: op drop is the last and no loss");
	fails(create(seq, NULL), -EINVAL, "te_step_create: no struct te_step_opts");
	fails(create(NULL, &good), -EINVAL, "te_step_create: seq is NULL");
	fails(te_step_create(seq, NULL, &good, NULL), -EINVAL, "te_step_create: ret_step is NULL");
	DO(te_adamw_create(lossless, NULL, &opt));
	fails(te_step_create(seq, opt, &good, &step), -EINVAL, "adamw is of another sequence");
	te_adamw_unref(opt);
	raw = model_create_unbound(ctx, &small);
	fails(create(raw, &good), -TE_ESTATE, "te_seq_init has not run");
	te_seq_unref(raw);
	DO(te_step_create(seq, NULL, &good, &step));
	fails(te_step_run(step, 1, st), -EINVAL, "te_step_run: shape 1 of 1");
	fails(te_step_run(step, 0, NULL), -EINVAL, "te_step_run: stream is NULL");
	fails(te_step_run(NULL, 0, st), -EINVAL, "te_step_run: step is NULL");
	fails(te_step_loss(step, NULL), -EINVAL, "te_step_loss: ret_loss is NULL");
	fails(te_step_memory(step, NULL), -EINVAL, "te_step_memory: no struct te_step_memory");
	te_step_unref(step);
	te_seq_unref(seq);
	te_seq_unref(lossless);
}

/* two plans that read one channel would each want its own copy of it */
/* each part has some of the values, and all parts together those that patterns name */
TEST(use, patterns_name_values_of_some_part)
{
	static const char *const again[] = { "h.0.*", "h.1.*", "h.2.ln1.y" };
	static const char *const move[] = { "h.1.*", "*.up.z" };
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_offload_opts oo = TE_OFFLOAD_OPTS_INIT;

	o.x = tokens(small.batch, small.seqlen);
	o.cut = cuts;
	o.recompute = again;
	oo.move = move;
	for (o.ncuts = 0; o.ncuts <= NCUTS; o.ncuts += NCUTS) {
		struct te_step *step;

		oo.nmove = 1;
		o.nrecompute = 2;
		DO(te_offload_create(ctx, &oo, &o.offload));
		DO(te_step_create(seq, NULL, &o, &step));
		te_step_unref(step);
		o.nrecompute = 3;
		fails(create(seq, &o), -EINVAL,
		      "recompute[2] \"h.2.ln1.y\" matches no value, expected names");
		o.nrecompute = 2;
		te_offload_unref(o.offload);
		oo.nmove = 2;
		DO(te_offload_create(ctx, &oo, &o.offload));
		fails(create(seq, &o), -EINVAL, "move[1] \"*.up.z\" matches no value");
		o.offload = te_offload_unref(o.offload);
		oo.keep = move;
		oo.nkeep = 2;
		oo.nmove = 0;
		DO(te_offload_create(ctx, &oo, &o.offload));
		fails(create(seq, &o), -EINVAL, "keep[1] \"*.up.z\" matches no value");
		o.offload = te_offload_unref(o.offload);
		oo.nkeep = 0;
	}
	te_seq_unref(seq);
}

TEST(use, a_channel_is_of_one_plan)
{
	static const char *const cut[] = { "second" };
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe fp32 = model_recipe("fp32");
	const int64_t width = WIDTH;
	struct te_seq *two;
	struct te_op *op;

	DO(te_seq_create(ctx, &two));
	DO(te_seq_input(two, "more", TE_DTYPE_FP32, 1, &width));
	for (int i = 0; i < 2; i++) {
		DO(te_op_add(i ? "second" : "first", &op));
		DO(te_op_take(op, 0, "more"));
		tt_append(two, op);
	}
	DO(te_op_bias(&(struct te_bias_attrs)TE_ATTRS(bias, WIDTH), "bias", &op));
	tt_append(two, op);
	DO(te_seq_input(two, "targets", TE_DTYPE_INT32, 0, NULL));
	DO(te_op_cross_entropy(&(struct te_cross_entropy_attrs)TE_ATTRS(
				       cross_entropy, .nclasses = WIDTH, .grad_scale = 1),
			       "loss", &op));
	DO(te_op_take(op, 0, "targets"));
	tt_append(two, op);
	DO(te_seq_init(two, 1));
	o.recipe = &fp32;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 3, { 2, 4, WIDTH } };
	o.ncuts = 1;
	o.cut = cut;
	fails(create(two, &o), -EINVAL,
	      "te_step_create: channel more is read by plans 0 and 1, expected by one only");
	te_seq_unref(two);
}

/* a graph in the caller's memory: too little of it, or at a wrong address */
TEST(use, a_pool_must_be_large_enough)
{
	const struct te_recipe fp32 = model_recipe("fp32");
	struct te_graph_report rep = TE_GRAPH_REPORT_INIT;
	struct te_graph_opts go = TE_GRAPH_OPTS_INIT;
	struct te_callable c = TE_CALLABLE_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *seq = dropping(1);
	struct te_plan *plan;
	struct te_graph *g;
	uint64_t used;
	void *pool;

	o.recipe = &fp32;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_EXTERNAL;
	o.x = ones_spec;
	DO(te_plan_create(seq, &o, &plan));
	DO(te_mem_alloc(st, 1 << 20, &pool));
	DO(te_callable_from_plan(plan, "c", &c));
	go.pool = pool;
	go.pool_nbytes = 255;
	fails(te_graph_create(ctx, 1, &c, &go, &g), -EINVAL,
	      "te_graph_create: pool has 255 bytes, ");
	go.pool = (char *)pool + 16;
	fails(te_graph_create(ctx, 1, &c, &go, &g), -EINVAL, "not aligned to 256");
	if (te_ctx_workspace_nbytes(ctx)) { /* with room for it */
		DO(te_mem_free(st, pool));
		DO(te_mem_alloc(st, te_ctx_workspace_nbytes(ctx) + (1 << 20), &pool));
	}
	go.pool = pool;
	go.pool_nbytes = te_ctx_workspace_nbytes(ctx) + (1 << 20);
	used = tt_used();
	DO(te_graph_create(ctx, 1, &c, &go, &g));
	DO(te_graph_report(g, &rep));
	ck_assert_uint_le(rep.peak_nbytes, 1 << 20);
	ck_assert_uint_eq(tt_used(), used);
	ck_assert_uint_lt((uintptr_t)te_tensor_data(te_graph_tensor(g, 0, "x")) - (uintptr_t)pool,
			  rep.peak_nbytes);
	write_ones(te_graph_tensor(g, 0, "x"));
	DO(te_graph_run(g, st));
	has_mask(te_graph_tensor(g, 0, "out"), 0);
	te_graph_unref(g);
	DO(te_mem_free(st, pool));
	tt_drop(plan, seq);
}

static int create_and_run(struct te_seq *seq, uint32_t flags)
{
	const struct te_spec spec[] = { tokens(1, 8), tokens(2, 8) };
	static const char *const cut[] = { "norm" };
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_adamw *opt = NULL;
	struct te_step *step = NULL;
	double loss;
	int r;

	o.flags = flags;
	o.micro_batches = 2;
	o.shapes = spec;
	o.nshapes = 2;
	o.ncuts = 1;
	o.cut = cut;
	r = te_adamw_create(seq, NULL, &opt);
	if (!r)
		r = te_step_create(seq, opt, &o, &step);
	for (int k = 1; k >= 0 && !r; k--)
		r = te_step_run(step, k, st);
	if (!r)
		r = te_step_loss(step, &loss);
	if (r == -ERANGE) /* nothing wrote the inputs */
		r = 0;
	tt_fault_end();
	te_step_unref(step);
	te_adamw_unref(opt);
	DO(te_ctx_sync(ctx)); /* memory is freed in stream order */
	return r;
}

TEST_EACH(use, a_failure_leaves_nothing, 2)
{
	static const struct model_shape tiny = { 16, 16, 1, 8, 2, 1, 1, 0.1f, 1 };
	struct te_seq *seq = model_create(ctx, &tiny, 3);
	int fired = 1, nfailed = 0;

	/* what plans of a sequence share stays with it */
	DO(create_and_run(seq, modes[_i]));
	for (int n = 1; fired; n = tt_fault_next(n)) {
		const int64_t live = te__alloc_live();
		int r;

		te_error_clear();
		te__fault_set((uint64_t)n);
		r = create_and_run(seq, modes[_i]);
		fired = te__fault_fired();
		te__fault_set(0);
		ck_assert_int_eq(te__alloc_live(), live);
		ck_assert(r < 0 ? fired && te_error_detail()[0] : 1);
		nfailed += r < 0;
	}
	ck_assert_int_gt(nfailed, TT_FEWER(300));
	DO(create_and_run(seq, modes[_i]));
	te_seq_unref(seq);
}

/* Warm-up leaves out the optimizer, and gradients and copies of weights are not saved: the peak is
 * below what either would add. */
TEST_EACH(use, capture_copies_no_weights, 2)
{
	static const struct model_shape wide = { 256, 64, 1, 8, 2, 2, 1, 0, 1 };
	struct te_mem_info was = TE_MEM_INFO_INIT, is = TE_MEM_INFO_INIT;
	const struct te_spec spec = tokens(1, 8);
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_adamw *opt = NULL;
	struct te_step *step = NULL;
	struct te_ctx *own = NULL;
	struct te_seq *seq;
	size_t nbytes;
	float *before, *after;

	DO(tt_ctx_new(&own));
	seq = model_create(own, &wide, 3);
	nbytes = te_tensor_nbytes(te_seq_masters(seq));
	before = malloc(nbytes);
	after = malloc(nbytes);
	DO(te_adamw_create(seq, NULL, &opt));
	DO(te_tensor_read(te_seq_masters(seq), before, nbytes));
	o.flags = modes[_i];
	o.shapes = &spec;
	o.nshapes = 1;
	DO(te_ctx_mem_info(own, &was));
	DO(te_step_create(seq, opt, &o, &step));
	DO(te_ctx_mem_info(own, &is));
	ck_assert_uint_lt(is.peak_nbytes, is.used_nbytes + nbytes / 4);
	ck_assert_uint_ge(is.used_nbytes, was.used_nbytes);
	DO(te_tensor_read(te_seq_masters(seq), after, nbytes));
	ck_assert_mem_eq(before, after, nbytes);
	free(before);
	free(after);
	te_step_unref(step);
	te_adamw_unref(opt);
	te_seq_unref(seq);
	te_ctx_unref(own);
}
