/*
 * t/comm/reducer.c - te_comm_reducer_create(3): ranks that share a step have the weights, the
 * moments and the scales of each other, and those of one rank with all micro-batches. So have ranks
 * that keep a part of the moments.
 */
#include "config.h"

#include <te/collective.h>
#include <te/errno.h>
#include <te/reducer.h>
#include <te/step.h>

#include "libtecomm/collective/comm.h"
#include "libtecore/tensor/ctx.h"
#include "t/plan/plan_model.h"
#include "threads.h"

#define STEPS 3
#define ALL_HOOKS TE_COMM_REDUCER_HOOKS
#define TOKENS (2 * 16)

/* odd sizes; the second one has a weight of two ops */
static const struct model_shape models[] = {
	{ 49, 32, 2, 16, 4, 2, 2, 0.2f, 1 },
	{ 49, 32, 2, 16, 4, 4, 2, 0.2f, 0 },
};
static const char *const cuts[] = { "h.1.ln1", "norm" };
static const uint32_t modes[] = { 0, TE_STEP_GRAPH, TE_STEP_PASS_GRAPHS };

/* how the ranks train, and what they came to */
static struct {
	const struct model_shape *m;
	const char *recipe;
	uint32_t flags, hooks;
	int32_t ncuts, nmicro; /* of each rank */
	uint64_t bucket_nbytes;
	int symmetric;
	int parts; /* each rank keeps a part of the moments */
	enum te_moments moments;
	uint32_t masters; /* TE_SEQ_* */
	uint64_t seed; /* of the tokens */
	size_t nbytes, quant_nbytes;
	/* weights in FP32, then both moments of all elements */
	char *weights[THREADS_MOST], *quant[THREADS_MOST];
} g;

static void draw_tokens(int step, int micro, int k, int32_t *t)
{
	uint64_t x = g.seed + (uint64_t)(step * 1000 + micro * 10 + k);

	for (int i = 0; i < TOKENS; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		t[i] = (int32_t)((x >> 33) % (uint64_t)g.m->vocab);
	}
}

static int feed(struct te_step *s, int step, int first)
{
	int32_t t[TOKENS];

	for (int32_t m = 0; m < g.nmicro; m++)
		for (int k = 0; k < 2; k++) {
			draw_tokens(step, first + m, k, t);
			STEP(te_tensor_write(te_step_input(s, 0, m, k ? "targets" : "x"), t,
					     sizeof(t)));
		}
	return 0;
}

/* what a rank has after its steps, in memory of the test */
static int keep(int rank, struct te_seq *seq, struct te_adamw *opt)
{
	struct te_quant *q = te_seq_quant(seq);
	const size_t values = (size_t)te_seq_nelems(seq) * sizeof(float);
	const size_t moment = te_moments_nbytes(g.moments, te_seq_grad_nelems(seq));
	const size_t nbytes = values + 2 * moment, quant_nbytes = q ? te_quant_nbytes(q) : 0;

	if (!rank) { /* as of all ranks */
		g.nbytes = nbytes;
		g.quant_nbytes = quant_nbytes;
	}
	g.weights[rank] = malloc(nbytes);
	STEP(te_seq_masters_get(seq, 0, te_seq_nelems(seq), (float *)(void *)g.weights[rank]));
	for (size_t k = 0; k < 2; k++)
		STEP(te_adamw_moments_get(opt, (int)k, g.weights[rank] + values + k * moment));
	g.quant[rank] = malloc(quant_nbytes + 1);
	return q ? te_quant_save(q, g.quant[rank], quant_nbytes) : 0;
}

/* options of a rank with a part of the moments; all: the exchange of te_adamw_opts */
static int gather(void *arg, struct te_stream *stream, void *all, size_t nbytes)
{
	struct te_comm *comm = arg;

	return te_comm_all_gather(comm, stream, (char *)all + (size_t)te_comm_rank(comm) * nbytes,
				  all, (int64_t)nbytes, TE_DTYPE_UINT8, NULL);
}

static int make_optimizer(struct te_seq *seq, struct te_comm *comm, int rank, int n,
			  struct te_adamw **ret)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT, whole;
	const int64_t nelems = te_seq_grad_nelems(seq);

	o.moments = g.moments;
	whole = o;
	if (g.parts) {
		o.nparts = n;
		o.part = rank;
		o.gather = gather;
		o.gather_arg = comm;
	}
	STEP(te_adamw_create(seq, &o, ret));
	if (!g.parts)
		return 0;
	/* a part, and less than a block of each rank */
	HOLDS(te_tensor_nbytes(te_adamw_m(*ret)) <
	      te_moments_nbytes(g.moments, nelems / n + (int64_t)64 * n));
	HOLDS(te_adamw_nbytes(seq, &whole) - te_adamw_nbytes(seq, &o) ==
	      2 * (te_moments_nbytes(g.moments, nelems) - te_tensor_nbytes(te_adamw_v(*ret))));
	return 0;
}

static int train(struct te_ctx *c, struct te_comm *comm, int rank, int n)
{
	struct te_comm_reducer_opts ro = TE_COMM_REDUCER_OPTS_INIT;
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_comm_reducer *reducer = NULL;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_stream *on = te_ctx_stream(c);
	struct te_seq *seq = model_create_unbound(c, g.m);
	struct te_adamw *opt;
	struct te_step *step;
	void *grads = NULL;

	STEP(te_seq_complete(seq));
	if (comm && g.symmetric) {
		STEP(te_comm_alloc(comm, (size_t)te_seq_grad_nelems(seq) * sizeof(float), &grads));
		b.grads = grads;
	}
	b.flags = g.masters;
	STEP(te_seq_bind(seq, &b));
	STEP(te_seq_init(seq, 5));
	STEP(make_optimizer(seq, comm, rank, n, &opt));
	STEP(te_adamw_set_lr(opt, on, 1e-2f));
	STEP(te_recipe_from_name(g.recipe, &rec));
	o.recipe = &rec;
	o.flags = g.flags;
	o.micro_batches = g.nmicro;
	o.first_micro_batch = rank * g.nmicro;
	o.total_micro_batches = n * g.nmicro;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { g.m->batch, g.m->seqlen } };
	o.ncuts = g.ncuts;
	o.cut = cuts;
	ro.bucket_nbytes = g.bucket_nbytes;
	if (comm) {
		STEP(te_comm_reducer_create(comm, seq, &ro, &reducer));
		o.hook = te_comm_reducer_hook;
		o.hook_arg = reducer;
		o.hooks = g.hooks;
	}
	STEP(te_step_create(seq, opt, &o, &step));
	for (int k = 0; k < STEPS; k++) {
		STEP(feed(step, k, rank * g.nmicro));
		STEP(te_step_run(step, 0, on));
		STEP(te_stream_sync(on));
	}
	STEP(keep(rank, seq, opt));
	if (comm)
		STEP(te_comm_error(comm));
	te_step_unref(step);
	te_comm_reducer_unref(reducer);
	te_adamw_unref(opt);
	te_seq_unref(seq);
	return comm ? te_comm_free(comm, grads) : 0;
}

static int train_rank(struct thread_rank *r)
{
	return train(r->ctx, r->comm, r->rank, threads_n);
}

static void drop(int rank)
{
	free(g.weights[rank]);
	free(g.quant[rank]);
	g.weights[rank] = g.quant[rank] = NULL;
}

/* bytes of the weights, and of the scales, by which a rank differs from rank 0 */
static size_t differ(int rank, int scales)
{
	const char *a = scales ? g.quant[0] : g.weights[0];
	const char *b = scales ? g.quant[rank] : g.weights[rank];
	size_t n = 0;

	for (size_t i = 0; i < (scales ? g.quant_nbytes : g.nbytes); i++)
		n += a[i] != b[i];
	return n;
}

static void set(const struct model_shape *m, const char *recipe, int i)
{
	memset(&g, 0, sizeof(g));
	g.m = m;
	g.recipe = recipe;
	g.flags = modes[i % 3];
	g.hooks = ALL_HOOKS;
	g.nmicro = 1;
	g.ncuts = i / 3 % 2 ? (int32_t)TT_LEN(cuts) : 0;
	g.bucket_nbytes = i % 2 ? 1 : 9000; /* each weight alone; some of them at once */
	g.symmetric = i % 4 != 3;
	g.seed = tt_seed();
}

CASE(reducer, "comm", .setup = tt_setup, .teardown = tt_teardown);

/* sums in rank order are sums in the order of micro-batches, if no weight has two ops */
TEST_EACH(reducer, ranks_have_the_bits_of_one, 6, .parts = 2)
{
	const int n = threads_apart(2 + _i % 2);

	set(&models[0], "fp32", _i);
	threads_run(n, train_rank, 0, NULL);
	for (int r = 1; r < n; r++) {
		ck_assert_uint_eq(differ(r, 0), 0);
		drop(r);
	}
	/* one rank that has the micro-batches of all */
	g.weights[1] = g.weights[0];
	g.quant[1] = g.quant[0];
	g.nmicro = n;
	ck_assert_int_eq(train(ctx, NULL, 0, 1), 0);
	ck_assert_uint_eq(differ(1, 0), 0);
	drop(0);
	drop(1);
}

static const char *const recipes[] = { "bf16", "fp8-delayed", "fp8-current", "fp8-block" };

TEST_EACH(reducer, ranks_have_equal_weights_and_scales, 12, .parts = 3)
{
	const int n = threads_apart(2 + _i / 4 % 2);
	const char *recipe = recipes[_i % 4];

	set(&models[_i / 4 % 2], recipe, _i / 4);
	g.nmicro = 1 + _i % 2;
	threads_run(n, train_rank, 0, NULL);
	for (int r = 1; r < n; r++) {
		ck_assert_uint_eq(differ(r, 0), 0);
		/* current: of the rank's own latest tensor, and of no later effect */
		if (strcmp(recipe, "fp8-current"))
			ck_assert_uint_eq(differ(r, 1), 0);
		drop(r);
	}
	drop(0);
}

/* current scaling: equal scales only if the caller asks for them, which changes results */
TEST_EACH(reducer, current_scales_are_reduced_on_request, 3)
{
	const int n = threads_apart(2);
	char *own;

	if (n < 2)
		return;
	set(&models[0], "fp8-current", _i);
	threads_run(n, train_rank, 0, NULL);
	ck_assert_uint_gt(differ(1, 1), 0);
	own = g.weights[0];
	g.weights[0] = NULL;
	drop(0);
	drop(1);
	g.hooks |= 1u << TE_PLAN_EVENT_AMAX;
	threads_run(n, train_rank, 0, NULL);
	ck_assert_uint_eq(differ(1, 0), 0);
	ck_assert_uint_eq(differ(1, 1), 0);
	ck_assert(memcmp(own, g.weights[0], g.nbytes) != 0);
	free(own);
	drop(0);
	drop(1);
}

/* a graph of each pass: what warm-up has counted does not count in the capture */
TEST_EACH(reducer, gradients_of_parts_are_complete_once, 2)
{
	const int n = threads_apart(2);

	set(&models[1], "fp32", 5);
	ck_assert(g.ncuts && g.flags == TE_STEP_PASS_GRAPHS);
	g.nmicro = 1 + _i;
	threads_run(n, train_rank, 0, NULL);
	for (int r = 1; r < n; r++) {
		ck_assert_uint_eq(differ(r, 0), 0);
		drop(r);
	}
	drop(0);
}

/* plain data-parallel training, then with a part of the moments on each rank */
TEST_EACH(reducer, parts_have_the_bits_of_all_moments, 9, .parts = 3)
{
	static const uint32_t masters[] = { 0, TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS,
					    TE_SEQ_BF16_MASTERS };
	const int n = threads_apart(2 + _i % 3);
	char *plain;

	set(&models[_i / 2 % 2], recipes[_i % 4], _i);
	g.moments = (enum te_moments)(_i % 3);
	g.masters = masters[_i / 3 % 3];
	g.nmicro = 1 + _i % 2;
	threads_run(n, train_rank, 0, NULL);
	plain = g.weights[0];
	g.weights[0] = NULL;
	for (int r = 0; r < n; r++)
		drop(r);
	g.parts = 1;
	threads_run(n, train_rank, 0, NULL);
	for (int r = n - 1; r >= 0; r--) {
		ck_assert_mem_eq(g.weights[r], plain, g.nbytes);
		drop(r);
	}
	free(plain);
}

/* what ranks_have_equal_weights_and_scales would not see if the model hid it */
TEST_EACH(reducer, without_the_hook_ranks_differ, 2)
{
	if (threads_apart(2) < 2)
		return;
	set(&models[0], "fp8-delayed", 1);
	g.hooks = _i ? 1u << TE_PLAN_EVENT_GRAD : 1u << TE_PLAN_EVENT_SCALES;
	threads_run(2, train_rank, 0, NULL);
	ck_assert_uint_gt(differ(1, _i), 0);
	drop(0);
	drop(1);
}

/* ---- what is queued ---- */

#define FEW 16 /* blocks, while backward runs */

static _Thread_local struct {
	const struct te__backend_ops *real;
	int n;
	struct te_k_comm last;
} seen;

static int launch_seen(void *stream, const struct te__launch *l)
{
	if (l->id == TE_K_COMM_ALLREDUCE) {
		seen.n++;
		seen.last = *(const struct te_k_comm *)l->args;
	}
	return seen.real->launch(stream, l);
}

/* the latest kernels are of so many blocks and this algorithm; -1: of any */
static int was(const struct thread_rank *r, int few, int algorithm)
{
	const int32_t most = r->comm->coll.terms.max_blocks;

	return seen.n && seen.last.max_blocks == (few && most > FEW ? FEW : most) &&
	       (algorithm < 0 || seen.last.algorithm == algorithm);
}

/* gradients from the last weight to the first, then amaxes */
static int queue_all(struct thread_rank *r, struct te_seq *seq)
{
	struct te_comm_reducer_opts o = TE_COMM_REDUCER_OPTS_INIT;
	const struct te_recipe rec = model_recipe("fp8-delayed");
	struct te_plan_opts p = TE_PLAN_OPTS_INIT;
	struct te_plan_event e = { .size = sizeof(e), .kind = TE_PLAN_EVENT_GRAD,
				   .stream = te_ctx_stream(r->ctx) };
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	/* by the table, as no pass runs concurrently any more */
	const int alone = r->comm->coll.terms.host ? TE_K_COMM_ZERO_COPY : TE_K_COMM_ONE_SHOT;
	struct te_comm_reducer *reducer;
	struct te_plan *plan;
	uint64_t wait = 0, left = 0;
	int nkept = 0;

	/* a level without FP8 GEMMs refuses it */
	p.recipe = &rec;
	p.flags = TE_PLAN_TRAIN;
	p.x = (struct te_spec){ TE_DTYPE_INT32, 2, { models[0].batch, models[0].seqlen } };
	STEP(te_plan_create(seq, &p, &plan));

	for (int i = 0; i < te_seq_nweights(seq); i++) {
		STEP(te_seq_weight(seq, i, &w));
		left += te_tensor_nbytes(w.grad);
	}
	o.bucket_nbytes = left / 3;
	STEP(te_comm_reducer_create(r->comm, seq, &o, &reducer));
	for (e.weight = te_seq_nweights(seq) - 1; e.weight >= 0; e.weight--) {
		STEP(te_seq_weight(seq, e.weight, &w));
		wait += te_tensor_nbytes(w.grad);
		left -= te_tensor_nbytes(w.grad);
		seen.n = 0;
		STEP(te_comm_reducer_hook(reducer, plan, &e));
		if (wait < o.bucket_nbytes || (left < o.bucket_nbytes && e.weight)) {
			HOLDS(!seen.n);
			nkept += wait >= o.bucket_nbytes;
			continue;
		}
		HOLDS(e.weight ? was(r, 1, TE_K_COMM_ZERO_COPY) : was(r, 0, alone));
		wait = 0;
	}
	HOLDS(nkept);
	seen.n = 0;
	e.kind = TE_PLAN_EVENT_SCALES;
	e.nslots = te_quant_nslots(te_seq_quant(seq));
	STEP(te_comm_reducer_hook(reducer, plan, &e));
	HOLDS(was(r, 1, -1));
	te_comm_reducer_unref(reducer);
	te_plan_unref(plan);
	return te_stream_sync(te_ctx_stream(r->ctx));
}

static int queue_rank(struct thread_rank *r)
{
	struct te_seq *seq = model_create_unbound(r->ctx, &models[0]);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te__backend_ops ops = *r->ctx->ops;
	void *grads;
	int e;

	STEP(te_seq_complete(seq));
	STEP(te_comm_alloc(r->comm, (size_t)te_seq_grad_nelems(seq) * sizeof(float), &grads));
	b.grads = grads;
	STEP(te_seq_bind(seq, &b));
	STEP(te_seq_init(seq, 5));
	seen.real = r->ctx->ops;
	ops.launch = launch_seen;
	r->ctx->ops = &ops;
	e = queue_all(r, seq);
	r->ctx->ops = seen.real;
	te_seq_unref(seq);
	return e ? e : te_comm_free(r->comm, grads);
}

TEST(reducer, backward_keeps_its_multiprocessors)
{
	threads_run(2, queue_rank, 0, NULL);
}

/* ---- what is wrong ---- */

static int no_sum(void *arg, struct te_stream *stream, void *x, void *sum, int64_t nelems,
		  enum te_dtype dtype, int32_t to)
{
	(void)arg;
	(void)stream;
	(void)x;
	(void)sum;
	(void)nelems;
	(void)dtype;
	(void)to;
	return 0;
}

/* a sequence with a part of its gradients: a reducer has its amaxes only */
static int bad_parts(struct thread_rank *r)
{
	struct te_plan_event e = { .size = sizeof(e), .kind = TE_PLAN_EVENT_GRAD };
	struct te_seq *seq = model_create_unbound(r->ctx, &models[0]);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_comm_reducer *reducer;
	struct te_plan *plan;

	b.nparts = 2;
	b.reduce = no_sum;
	STEP(te_seq_complete(seq));
	STEP(te_seq_bind(seq, &b));
	STEP(te_seq_init(seq, 1));
	plan = model_plan(seq, &models[0], "fp32", TE_PLAN_TRAIN);
	STEP(te_comm_reducer_create(r->comm, seq, NULL, &reducer));
	e.stream = te_ctx_stream(r->ctx);
	HOLDS(te_comm_reducer_hook(reducer, plan, &e) == -TE_ESTATE);
	HOLDS(strstr(te_error_detail(), "has no gradient here"));
	te_comm_reducer_unref(reducer);
	tt_drop(plan, seq);
	return 0;
}

static int bad(struct thread_rank *r)
{
	struct te_seq *raw = model_create_unbound(r->ctx, &models[0]), *seq;
	struct te_plan_event e = { .size = sizeof(e), .kind = TE_PLAN_EVENT_GRAD };
	struct te_comm_reducer *reducer = (void *)&e;
	struct te_plan *plan;
	struct te_ctx *other;

	HOLDS(te_comm_reducer_create(r->comm, raw, NULL, &reducer) == -TE_ESTATE);
	HOLDS(strstr(te_error_detail(), "te_seq_init"));
	HOLDS(te_comm_reducer_create(NULL, raw, NULL, &reducer) == -EINVAL);
	HOLDS(te_comm_reducer_create(r->comm, NULL, NULL, &reducer) == -EINVAL);
	HOLDS(te_comm_reducer_create(r->comm, raw, NULL, NULL) == -EINVAL);
	HOLDS((void *)reducer == (void *)&e);
	te_seq_unref(raw);
	STEP(te_ctx_create(&(struct te_ctx_opts){ .size = sizeof(struct te_ctx_opts),
						  .backend = backend }, &other));
	raw = model_create(other, &models[0], 1);
	HOLDS(te_comm_reducer_create(r->comm, raw, NULL, &reducer) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "another context"));
	te_seq_unref(raw);
	te_ctx_unref(other);

	seq = model_create(r->ctx, &models[0], 1);
	plan = model_plan(seq, &models[0], "fp32", TE_PLAN_TRAIN);
	STEP(te_comm_reducer_create(r->comm, seq, NULL, &reducer));
	HOLDS(te_comm_reducer_hook(NULL, plan, &e) == -EINVAL);
	HOLDS(te_comm_reducer_hook(reducer, NULL, &e) == -EINVAL);
	HOLDS(te_comm_reducer_hook(reducer, plan, NULL) == -EINVAL);
	/* nothing is queued before the first bucket is full */
	e.stream = te_ctx_stream(r->ctx);
	e.weight = 2;
	STEP(te_comm_reducer_hook(reducer, plan, &e));
	HOLDS(te_comm_reducer_hook(reducer, plan, &e) == -TE_ESTATE);
	HOLDS(strstr(te_error_detail(), "for the second time, and the gradient of emb."));
	e.weight = 1000;
	HOLDS(te_comm_reducer_hook(reducer, plan, &e) < 0);
	HOLDS(!te_comm_reducer_unref(te_comm_reducer_ref(reducer)));
	HOLDS(!te_comm_reducer_unref(reducer));
	HOLDS(!te_comm_reducer_unref(NULL) && !te_comm_reducer_ref(NULL));
	tt_drop(plan, seq);
	return bad_parts(r);
}

TEST(reducer, arguments_are_checked)
{
	threads_run(2, bad, 0, NULL);
}

TT_PAIR_SUITE("comm/reducer")
{
	threads_pool_nbytes = (uint64_t)8 << 20;
}
