/*
 * t/comm/ops.c - the ops of te/comm_op.h in plans: outputs and gradients are those of a loop over
 * the ranks, bit by bit, eagerly and recorded.
 */
#include "config.h"

#include <te/capture.h>
#include <te/comm_op.h>
#include <te/errno.h>
#include <te/plan.h>

#include "threads.h"
#include "tt_num.h"

enum kind { ALLREDUCE, COPY, REDUCE_SCATTER, ALL_GATHER, KINDS };

static int (*const create[KINDS])(struct te_comm *comm, const struct te_comm_op_opts *opts,
				  const char *name, struct te_op **ret_op) = {
	te_comm_op_allreduce,
	te_comm_op_copy,
	te_comm_op_reduce_scatter,
	te_comm_op_all_gather,
};

/* shapes that all ranks know: before is the product of the extents before the axis, and a part has
 * the rest */
static struct {
	enum kind kind;
	enum te_dtype dtype;
	enum te_comm_algorithm algorithm;
	int32_t axis;
	int64_t small[3]; /* the value; of parts, that of one rank */
	int64_t before, part;
	uint64_t seed;
	int symmetric;
} g;

static int grows(void)
{
	return g.kind == REDUCE_SCATTER || g.kind == ALL_GATHER;
}

static void set(enum kind kind, int i, int n)
{
	memset(&g, 0, sizeof(g));
	g.kind = kind;
	g.seed = tt_rand_u64();
	g.dtype = i % 2 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	g.axis = grows() ? (int32_t)tt_rand_int(0, 2) : 0;
	g.algorithm = i % 3 ? TE_COMM_AUTO : TE_COMM_STAGED;
	g.symmetric = i % 4 == 3;
	for (int d = 0; d < 3; d++)
		g.small[d] = tt_rand_int(1, 12) + (d == 2) * (int64_t)tt_rand_int(0, n * 40);
	g.before = g.part = 1;
	for (int d = 0; d < 3; d++)
		*(d < g.axis ? &g.before : &g.part) *= g.small[d];
}

/* ---- values: what rank k is given, for round r of forward (what 0) or backward (1) ---- */

static float value(int k, int r, int what, int64_t i)
{
	const uint64_t x = threads_hash(g.seed + (uint64_t)(k * 64 + r * 2 + what), i);

	return tt_round(g.dtype,
			((float)(x >> 40) / (float)(1 << 23) - 1) * (float)(1 << (x & 7)));
}

/* the sum over the ranks */
static float summed(int r, int what, int64_t i)
{
	float s = value(0, r, what, i);

	for (int k = 1; k < threads_n; k++)
		s += value(k, r, what, i);
	return tt_round(g.dtype, s);
}

/* element i of what rank k gets from values, by what kind does in forward */
static float result(enum kind kind, int k, int r, int what, int64_t i)
{
	const int64_t n = threads_n, at = i % g.part, all = i % (n * g.part);

	switch (kind) {
	case ALLREDUCE:
		return summed(r, what, i);
	case COPY:
		return value(k, r, what, i);
	case REDUCE_SCATTER:
		return summed(r, what, (i / g.part * n + k) * g.part + at);
	default:
		return value((int)(all / g.part), r, what, i / (n * g.part) * g.part + at);
	}
}

static enum kind reverse(enum kind kind)
{
	static const enum kind of[] = { COPY, ALLREDUCE, ALL_GATHER, REDUCE_SCATTER };

	return of[kind];
}

/* ---- a plan ---- */

static int put_scale(struct te_seq *seq, float factor, const char *name)
{
	struct te_scale_attrs a = TE_ATTRS(scale, factor);
	struct te_op *op;

	STEP(te_op_scale(&a, name, &op));
	STEP(te_seq_append(seq, op));
	te_op_unref(op);
	return 0;
}

/* the op between two that do not round, so that its values are in the arena */
static int make_seq(struct thread_rank *r, struct te_seq **ret)
{
	struct te_comm_op_opts o = TE_COMM_OP_OPTS_INIT;
	struct te_op *op;

	o.axis = g.axis;
	o.algorithm = g.algorithm;
	STEP(te_seq_create(r->ctx, ret));
	STEP(put_scale(*ret, 0.5f, "half"));
	STEP(create[g.kind](r->comm, &o, "op", &op));
	STEP(te_seq_append(*ret, op));
	te_op_unref(op);
	STEP(put_scale(*ret, 2.0f, "twice"));
	return te_seq_init(*ret, 1);
}

static struct te_plan_opts opts_of(struct te_recipe *recipe)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	*recipe = (struct te_recipe)TE_RECIPE_INIT;
	recipe->compute = g.dtype;
	o.recipe = recipe;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD | TE_PLAN_EXTERNAL;
	o.x = (struct te_spec){ g.dtype, 3, { g.small[0], g.small[1], g.small[2] } };
	if (g.kind == REDUCE_SCATTER)
		o.x.shape[g.axis] *= threads_n;
	return o;
}

/* memory of a plan, poisoned; symmetric where zero-copy may use it */
struct bound {
	void *arena;
	struct te_tensor *t[4];
};

static int bind(struct thread_rank *r, struct te_plan *plan, struct bound *b)
{
	static const char *const names[] = { "x", "out", "out_grad", "in_grad" };
	struct te_plan_binding bind = TE_PLAN_BINDING_INIT;
	struct te_plan_memory m = TE_PLAN_MEMORY_INIT;
	const char *x = "x";
	struct te_spec spec;

	STEP(te_plan_memory(plan, &m));
	if (g.symmetric)
		STEP(te_comm_alloc(r->comm, m.arena_nbytes, &b->arena));
	else
		STEP(te_mem_alloc(te_ctx_stream(r->ctx), m.arena_nbytes, &b->arena));
	STEP(te_fill(te_ctx_stream(r->ctx), b->arena, 0xff, m.arena_nbytes));
	for (int k = 0; k < 4; k++) {
		STEP(te_plan_spec(plan, names[k], &spec));
		if (g.symmetric)
			STEP(te_comm_tensor_create(r->comm, spec.dtype, spec.ndim, spec.shape,
						   &b->t[k]));
		else
			STEP(te_tensor_create(r->ctx, spec.dtype, spec.ndim, spec.shape, NULL,
					      &b->t[k]));
	}
	bind.arena = b->arena;
	bind.nin = 1;
	bind.in_name = &x;
	bind.in = &b->t[0];
	bind.out = b->t[1];
	bind.out_grad = b->t[2];
	bind.in_grad = b->t[3];
	return te_plan_bind(plan, &bind);
}

static int unbind(struct thread_rank *r, struct bound *b)
{
	for (int k = 0; k < 4; k++)
		te_tensor_unref(b->t[k]);
	return g.symmetric ? te_comm_free(r->comm, b->arena) :
			     te_mem_free(te_ctx_stream(r->ctx), b->arena);
}

static int put_values(struct te_tensor *t, int rank, int round, int what)
{
	const int64_t n = te_tensor_nelems(t);
	char *bytes = malloc(te_tensor_nbytes(t));
	int err;

	for (int64_t i = 0; i < n; i++)
		tt_set(g.dtype, bytes, i, value(rank, round, what, i));
	err = te_tensor_write(t, bytes, te_tensor_nbytes(t));
	free(bytes);
	return err;
}

static int check(const struct te_tensor *t, enum kind kind, int rank, int round, int what)
{
	const size_t nbytes = te_tensor_nbytes(t), es = te_dtype_nbytes(g.dtype);
	char *bytes = malloc(nbytes);
	int64_t wrong = -1;

	STEP(te_tensor_read(t, bytes, nbytes));
	for (int64_t i = 0; i < te_tensor_nelems(t) && wrong < 0; i++) {
		float want;

		tt_set(g.dtype, &want, 0, result(kind, rank, round, what, i));
		if (memcmp(bytes + (size_t)i * es, &want, es))
			wrong = i;
	}
	free(bytes);
	return wrong < 0 ? 0 :
			   te_fail(-EPROTO, "kind %d, round %d: %s %lld of %lld differs", g.kind,
				   round, what ? "gradient" : "element", (long long)wrong,
				   (long long)te_tensor_nelems(t));
}

#define ROUNDS 3

static int run(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te_recording *rec;
	struct te_recipe recipe;
	struct te_plan_opts o;
	struct te_plan *plan;
	struct te_seq *seq;
	struct bound b;

	STEP(make_seq(r, &seq));
	o = opts_of(&recipe);
	STEP(te_plan_create(seq, &o, &plan));
	STEP(bind(r, plan, &b));
	STEP(te_capture_begin(s));
	STEP(threads_queue(plan, s));
	STEP(te_capture_end(s, &rec));
	for (int round = 0; round < ROUNDS; round++) {
		STEP(put_values(b.t[0], r->rank, round, 0));
		STEP(put_values(b.t[2], r->rank, round, 1));
		/* some ranks replay where others call */
		STEP((round + r->rank) % 2 ? te_recording_launch(rec, s) : threads_queue(plan, s));
		STEP(te_stream_sync(s));
		STEP(te_comm_error(r->comm));
		STEP(check(b.t[1], g.kind, r->rank, round, 0));
		STEP(check(b.t[3], reverse(g.kind), r->rank, round, 1));
		/* zero-copy: other ranks read and write here */
		STEP(te_comm_barrier(r->comm, s));
		STEP(te_stream_sync(s));
	}
	te_recording_unref(rec);
	tt_drop(plan, seq);
	return unbind(r, &b);
}

CASE(ops, "comm", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(ops, values_and_gradients_are_those_of_a_loop, TT_FEWER(5 * KINDS))
{
	const int n = threads_apart(1 + (_i * 3 + 1) % 5);

	set((enum kind)(_i % KINDS), _i / KINDS, n);
	threads_run(n, run, 0, NULL);
}

/* one rank: no step and no memory */
static int alone(struct thread_rank *r)
{
	struct te_plan_memory m = TE_PLAN_MEMORY_INIT;
	struct te_recipe recipe;
	struct te_plan_opts o = opts_of(&recipe);
	struct te_plan *plan;
	struct te_seq *seq;
	char *text;

	STEP(make_seq(r, &seq));
	STEP(te_plan_create(seq, &o, &plan));
	STEP(te_plan_print(plan, TE_PLAN_TEXT, &text));
	HOLDS(!strstr(text, te_op_table(te_seq_op(seq, 1))->name));
	free(text);
	STEP(te_plan_memory(plan, &m));
	tt_drop(plan, seq);
	return 0;
}

TEST_EACH(ops, one_rank_runs_nothing, KINDS)
{
	set((enum kind)_i, 1, 1);
	threads_run(1, alone, 0, NULL);
}

/* ---- what is wrong ---- */

static int plan_fails(struct thread_rank *r, int code, const char *text)
{
	struct te_plan *plan = NULL;
	struct te_recipe recipe;
	struct te_plan_opts o = opts_of(&recipe);
	struct te_seq *seq;

	STEP(make_seq(r, &seq));
	if (g.kind == REDUCE_SCATTER)
		o.x.shape[g.axis]--; /* one less than a multiple of n */
	HOLDS(te_plan_create(seq, &o, &plan) == code && !plan);
	HOLDS(strstr(te_error_detail(), text));
	te_seq_unref(seq);
	return 0;
}

static int not_divisible(struct thread_rank *r)
{
	return plan_fails(r, -TE_ESHAPE, "not divisible by 3 ranks");
}

static int no_axis(struct thread_rank *r)
{
	return plan_fails(r, -TE_ESHAPE, "axis 3 of an input with 3 extents");
}

TEST(ops, extents_are_checked)
{
	set(REDUCE_SCATTER, 0, 3);
	g.small[g.axis] = 2;
	threads_run(3, not_divisible, 0, NULL);
	set(ALL_GATHER, 0, 2);
	g.axis = 3;
	threads_run(2, no_axis, 0, NULL);
}

static int wrong_type(struct thread_rank *r)
{
	struct te_plan *plan;
	struct te_recipe recipe;
	struct te_plan_opts o = opts_of(&recipe);
	struct te_seq *seq;
	struct te_op *op;

	STEP(te_seq_create(r->ctx, &seq));
	STEP(create[g.kind](r->comm, NULL, "op", &op));
	STEP(te_seq_append(seq, op));
	te_op_unref(op);
	STEP(te_seq_init(seq, 1));
	o.x.dtype = TE_DTYPE_FP16;
	HOLDS(te_plan_create(seq, &o, &plan) == -TE_EDTYPE);
	HOLDS(strstr(te_error_detail(), "op: its input is fp16, the recipe computes in"));
	te_seq_unref(seq);
	return 0;
}

static int bad(struct thread_rank *r)
{
	struct te_comm_op_opts o = TE_COMM_OP_OPTS_INIT;
	struct te_op *op = NULL;

	for (int k = 0; k < KINDS; k++) {
		o = (struct te_comm_op_opts)TE_COMM_OP_OPTS_INIT;
		HOLDS(create[k](NULL, &o, "op", &op) == -EINVAL);
		HOLDS(strstr(te_error_detail(), "comm is NULL"));
		HOLDS(create[k](r->comm, &o, NULL, &op) == -EINVAL);
		HOLDS(create[k](r->comm, &o, "op", NULL) == -EINVAL);
		o.algorithm = (enum te_comm_algorithm)99;
		HOLDS(create[k](r->comm, &o, "op", &op) == -EINVAL);
		HOLDS(strstr(te_error_detail(), "algorithm 99 is unknown"));
		o.algorithm = TE_COMM_AUTO;
		o.max_blocks = -1;
		HOLDS(create[k](r->comm, &o, "op", &op) == -EINVAL);
		HOLDS(strstr(te_error_detail(), "max_blocks is -1"));
		o.max_blocks = 0;
		o.axis = TE_MAX_DIMS;
		HOLDS(create[k](r->comm, &o, "op", &op) == -EINVAL);
		HOLDS(strstr(te_error_detail(), "axis is 8, not 0 to 7"));
	}
	HOLDS(!op);
	return wrong_type(r);
}

TEST_EACH(ops, arguments_are_checked, KINDS)
{
	set((enum kind)_i, 0, 2);
	threads_run(threads_apart(2), bad, 0, NULL);
}

/* ranks whose models differ: the pass fails, and says what differs */
static int differ(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te_recipe recipe;
	struct te_plan_opts o;
	struct te_plan *plan;
	struct te_seq *seq;

	STEP(make_seq(r, &seq));
	o = opts_of(&recipe);
	o.x.shape[2] += r->rank;
	o.flags &= ~(uint32_t)TE_PLAN_EXTERNAL;
	STEP(te_plan_create(seq, &o, &plan));
	STEP(te_plan_forward(plan, s, 0));
	STEP(te_stream_sync(s));
	HOLDS(te_comm_error(r->comm) == -TE_EMISMATCH);
	te_error_clear();
	HOLDS(te_plan_forward(plan, s, 0) == -TE_EMISMATCH);
	tt_drop(plan, seq);
	return -TE_EMISMATCH;
}

TEST(ops, ranks_with_different_shapes_are_told)
{
	if (threads_apart(2) < 2)
		return;
	set(ALLREDUCE, 1, 2);
	threads_run(2, differ, -TE_EMISMATCH, "is a sum of");
}

TT_PAIR_SUITE("comm/ops")
{
	threads_pool_nbytes = (uint64_t)4 << 20;
}
