/*
 * t/graph/faults.c - graphs that are created, bound, updated, replayed and told of, with the first,
 * second, ... of the allocations and driver calls failing: a code and a sentence; what was there
 * before is as it was; the next try succeeds; nothing is left. And streams that capture.
 */
#include "config.h"

#include <te/capture.h>
#include <te/graph.h>
#include <te/plan.h>
#include "libtecore/base/private.h"

#include "caster.h"
#include "libtecore/tensor/ctx.h"
#include "tt_ctx.h"
#include "t/plan/plan_model.h"

#define N 24 /* elements of each argument */

static int edge(void *arg, struct te_stream *stream)
{
	return te_fill_u32(stream, *(uint32_t **)arg, 0x55555555, 4);
}

/*
 * The functions count what they did in memory of the device and of the host, which warm-up and
 * capture have to leave as they were.
 */
static struct te_callable cast_of(struct caster *a, uint32_t *words)
{
	struct te_callable c = caster(a, TE_DTYPE_FP32, N, 0);

	a->words = words;
	a->count = 5;
	c.regions = caster_regions;
	return c;
}

/* ---- what a step works on, and finds unchanged ---- */

static const uint32_t ways[] = { TE_GRAPH_CHAIN, TE_GRAPH_CHAIN | TE_GRAPH_REUSE,
				 TE_GRAPH_WHOLE, TE_GRAPH_WHOLE | TE_GRAPH_CHAIN,
				 TE_GRAPH_EAGER | TE_GRAPH_CHAIN };

static struct scene {
	uint32_t flags;
	uint32_t *words;
	struct caster a[2], b[2]; /* captured, and to take their place */
	struct te_callable c[2], d[2];
	struct te_tensor *x[3], *y[2]; /* x[2] is aligned otherwise: it is copied */
	struct te_graph *g;
} s;

static struct te_tensor *constant(float v)
{
	const int64_t n = N;
	struct te_tensor *t;
	float x[N];

	for (int i = 0; i < N; i++)
		x[i] = v;
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, &n, NULL, &t));
	DO(te_tensor_write(t, x, sizeof(x)));
	return t;
}

/* one whose data begins an element after that of an allocation */
static struct te_tensor *unaligned(float v)
{
	const int64_t n = N, more = N + 1;
	struct te_tensor *from = constant(v), *base, *t;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, &more, NULL, &base));
	DO(te_tensor_view(base, 1, 1, &n, &t));
	DO(te_copy(st, te_tensor_data(t), te_tensor_data(from), 4 * N));
	DO(te_stream_sync(st));
	te_tensor_unref(from);
	te_tensor_unref(base);
	return t;
}

static void is_constant(struct te_tensor *t, float v, const char *what)
{
	float x[N];

	ck_assert_int_eq((int)te_tensor_nbytes(t), (int)sizeof(x));
	DO(te_ctx_sync(ctx));
	DO(te_tensor_read(t, x, sizeof(x)));
	for (int i = 0; i < N; i++)
		ck_assert_msg(x[i] == v, "%s: element %d is %g, not %g", what, i, (double)x[i],
			      (double)v);
}

static void state_is(uint32_t want)
{
	uint32_t got[CASTER_WORDS];

	DO(te_copy(st, got, s.words, sizeof(got)));
	DO(te_stream_sync(st));
	for (int i = 0; i < CASTER_WORDS; i++)
		ck_assert_msg(got[i] == want, "word %d of the state is 0x%x, not 0x%x", i, got[i],
			      want);
}

static void state_reset(void)
{
	DO(te_fill_u32(st, s.words, 0x33333333, 4 * CASTER_WORDS));
	DO(te_stream_sync(st));
	for (int i = 0; i < 2; i++)
		s.a[i].count = s.b[i].count = 5;
}

/* passes have run in warm-up and in capture, without a visible effect */
static void state_is_as_before(void)
{
	state_is(0x33333333);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(s.a[i].count, 5);
		ck_assert_int_eq(s.b[i].count, 5);
	}
}

static int create(void)
{
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;

	o.flags = s.flags;
	o.nwarmup = 1;
	o.hook = no_hook;
	o.first = o.last = edge;
	o.arg = &s.words;
	return te_graph_create(ctx, 2, s.c, &o, &s.g);
}

static void scene_open(uint32_t flags)
{
	void *words;

	memset(&s, 0, sizeof(s));
	s.flags = flags;
	DO(te_mem_alloc(st, 4 * CASTER_WORDS, &words));
	s.words = words;
	for (int i = 0; i < 2; i++) {
		s.c[i] = cast_of(&s.a[i], s.words);
		s.d[i] = cast_of(&s.b[i], s.words);
		s.b[i].more = i; /* an executable that is updated, and one made anew */
		s.x[i] = constant((float)(10 * (i + 1)));
		s.y[i] = constant(0);
	}
	s.x[2] = unaligned(30);
	state_reset();
}

static void scene_close(void)
{
	s.g = te_graph_unref(s.g);
	for (int i = 0; i < 3; i++)
		te_tensor_unref(s.x[i]);
	for (int i = 0; i < 2; i++)
		te_tensor_unref(s.y[i]);
	DO(te_mem_free(st, s.words));
	ck_assert_uint_eq(tt_used(), 0);
}

/* faults that a call survives: state is saved in host memory if device memory cannot be allocated,
 * and memory that cannot be freed in stream order (two fault points) is freed synchronously */
#define SPARE 3

/* 1: a fault was met */
static int faulted(int nth, int (*step)(void), int *ret_r)
{
	int fired;

	te_error_clear();
	te__fault_set((uint64_t)nth);
	*ret_r = step();
	fired = te__fault_fired();
	te__fault_set(0);
	if (!fired)
		ck_assert_msg(!*ret_r, "without a fault: %s", te_error_detail());
	if (*ret_r)
		ck_assert_msg(te_error_detail()[0], "fault %d: %d and no sentence", nth, *ret_r);
	return fired;
}

/* an input and an output of the ends, which no chain shares */
#define LAST (s.flags & TE_GRAPH_CHAIN ? 1 : 0)

static void run_gives(float v, struct te_tensor *y)
{
	DO(te_graph_run(s.g, st));
	is_constant(y, v, "y");
}

/* ---- creating ---- */

CTX_CASE(faults, "fault");

TEST_EACH(faults, creating_fails_cleanly, TT_LEN(ways))
{
	const int64_t live = te__alloc_live();
	int n = 0, fired = 1, hidden = 0, r;

	while (fired) {
		scene_open(ways[_i]);
		fired = faulted(++n, create, &r);
		hidden += fired && !r;
		ck_assert_int_eq(s.g == NULL, r < 0);
		state_is_as_before();
		if (r) {
			ck_assert_int_eq(s.a[0].released + s.a[1].released, 0);
			DO(create());
		}
		state_is_as_before();
		DO(te_graph_bind(s.g, 0, "x", 0, s.x[0], NULL));
		run_gives(10, te_graph_tensor(s.g, LAST, "y"));
		s.g = te_graph_unref(s.g);
		ck_assert_int_eq(s.a[0].released, 1);
		ck_assert_int_eq(s.a[1].released, 1);
		scene_close();
		ck_assert_int_eq(te__alloc_live(), live);
	}
	ck_assert_int_gt(n, 60);
	ck_assert_int_eq(hidden, SPARE);
}

/* ---- binding ---- */

static int bind_x(void)
{
	return te_graph_bind(s.g, 0, "x", 0, s.x[1], NULL);
}

static int bind_unaligned_x(void)
{
	return te_graph_bind(s.g, 0, "x", 0, s.x[2], NULL);
}

static int bind_y(void)
{
	return te_graph_bind(s.g, LAST, "y", 0, s.y[1], NULL);
}

static int unbind_x(void)
{
	return te_graph_bind(s.g, 0, "x", 0, NULL, NULL);
}

static int unbind_y(void)
{
	return te_graph_bind(s.g, LAST, "y", 0, NULL, NULL);
}

/* what y holds after a run, wherever the arguments are bound */
static void binding(int x, int y)
{
	struct te_tensor *own = te_tensor_ref(te_graph_tensor(s.g, LAST, "y"));

	for (int i = 0; i < 2; i++)
		DO(te_fill(st, te_tensor_data(s.y[i]), 0, 4 * N));
	if (x < 0) {
		struct te_tensor *t = te_graph_tensor(s.g, 0, "x");

		DO(te_copy(st, te_tensor_data(t), te_tensor_data(s.x[0]), 4 * N));
		x = 0;
	}
	DO(te_graph_run(s.g, st));
	for (int i = 0; i < 3; i++)
		is_constant(s.x[i], (float)(10 * (i + 1)), "the caller's x");
	if (y < 0) {
		is_constant(own, (float)(10 * (x + 1)), "the graph's own y");
		is_constant(s.y[0], 0, "y");
		is_constant(s.y[1], 0, "y");
	} else {
		is_constant(s.y[y], (float)(10 * (x + 1)), "the bound y");
		is_constant(s.y[!y], 0, "the other y");
	}
	te_tensor_unref(own);
}

/* before: whether both are bound to other memory */
static const struct {
	int (*step)(void);
	int before;
	int x[2], y[2]; /* to what each is bound before and after; -1: the graph's own */
} binds[] = {
	{ bind_x, 0, { -1, 1 }, { -1, -1 } },	     { bind_y, 0, { -1, -1 }, { -1, 1 } },
	{ bind_x, 1, { 0, 1 }, { 0, 0 } },	     { bind_y, 1, { 0, 0 }, { 0, 1 } },
	{ unbind_x, 1, { 0, -1 }, { 0, 0 } },	     { unbind_y, 1, { 0, 0 }, { 0, -1 } },
	{ unbind_x, 0, { -1, -1 }, { -1, -1 } },     { bind_unaligned_x, 0, { -1, 2 }, { -1, -1 } },
	{ bind_unaligned_x, 1, { 0, 2 }, { 0, 0 } },
};

TEST_EACH(faults, binding_fails_cleanly, (int)TT_LEN(ways) * (int)TT_LEN(binds))
{
	const uint32_t flags = ways[(size_t)_i % TT_LEN(ways)];
	const size_t k = (size_t)_i / TT_LEN(ways);
	const int64_t live = te__alloc_live();
	int n = 0, fired = 1, r;

	while (fired) {
		scene_open(flags);
		DO(create());
		if (binds[k].before) {
			DO(te_graph_bind(s.g, 0, "x", 0, s.x[0], NULL));
			DO(te_graph_bind(s.g, LAST, "y", 0, s.y[0], NULL));
		}
		fired = faulted(++n, binds[k].step, &r);
		binding(binds[k].x[!r], binds[k].y[!r]);
		if (r)
			DO(binds[k].step());
		binding(binds[k].x[1], binds[k].y[1]);
		scene_close();
		ck_assert_int_eq(te__alloc_live(), live);
	}
	/* the first binding at least looks for slots */
	ck_assert_int_ge(n, flags & TE_GRAPH_EAGER || binds[k].before || k > 5 ? 1 : 5);
}

/* ---- updating ---- */

static int update(void)
{
	return te_graph_update(s.g, 2, s.d, NULL);
}

/* bound to the caller's memory and, where nothing is chained, both to the same */
static void bind_all(void)
{
	DO(te_graph_bind(s.g, 0, "x", 0, s.x[0], NULL));
	if (!(s.flags & TE_GRAPH_CHAIN))
		DO(te_graph_bind(s.g, 1, "x", 0, s.x[0], NULL));
	DO(te_graph_bind(s.g, LAST, "y", 0, s.y[0], NULL));
}

TEST_EACH(faults, updating_fails_cleanly, TT_LEN(ways))
{
	const int64_t live = te__alloc_live();
	int n = 0, fired = 1, hidden = 0, r;

	while (fired) {
		uint64_t used;

		scene_open(ways[_i]);
		DO(create());
		bind_all();
		DO(te_graph_run(s.g, st));
		used = tt_used();
		state_reset();
		fired = faulted(++n, update, &r);
		hidden += fired && !r;
		state_is_as_before();
		ck_assert_int_eq(s.a[0].released + s.a[1].released, r ? 0 : 2);
		if (r) {
			ck_assert_uint_eq(tt_used(), used);
			run_gives(10, s.y[0]);
			/* bindings have stayed, and move one by one */
			DO(te_graph_bind(s.g, 0, "x", 0, s.x[1], NULL));
			run_gives(20, s.y[0]);
			if (!LAST)
				is_constant(te_graph_tensor(s.g, 1, "y"), 10, "the other y");
			state_reset();
			DO(update());
			state_is_as_before();
		}
		ck_assert_int_eq(s.a[0].released + s.a[1].released, 2);
		bind_all();
		DO(te_graph_bind(s.g, LAST, "y", 0, s.y[1], NULL));
		run_gives(10, s.y[1]);
		s.g = te_graph_unref(s.g);
		ck_assert_int_eq(s.b[0].released + s.b[1].released, 2);
		scene_close();
		ck_assert_int_eq(te__alloc_live(), live);
	}
	ck_assert_int_gt(n, 60);
	ck_assert_int_eq(hidden, SPARE);
}

/* ---- replaying ---- */

static int replay(void)
{
	struct te_replay rep = TE_REPLAY_INIT;
	struct te_tensor *kept = s.y[1];
	struct te_stream *side = NULL;
	int r = te_stream_create(ctx, &side);

	rep.npos = 1;
	rep.pos = &s.x[1];
	if (!r)
		r = te_graph_forward(s.g, 0, st, &rep);
	rep.npos = 0;
	rep.side = side;
	if (!r)
		r = te_graph_forward(s.g, 1, st, &rep);
	rep.side = NULL;
	rep.npos = 1;
	rep.pos = &s.x[0];
	if (!r)
		r = te_graph_backward(s.g, 1, side, &rep);
	rep.npos = 0;
	rep.side = side;
	rep.nkept = 1;
	rep.kept = &(struct te_named){ "x", kept };
	if (!r)
		r = te_graph_backward(s.g, 0, st, &rep);
	if (!r)
		r = te_graph_run(s.g, side);
	te_stream_unref(side);
	return r;
}

/* a replay that failed has said so, and the graph does at each later call */
/* a whole graph has no passes of its own */
TEST_EACH(faults, replaying_fails_for_good, 2)
{
	const int64_t live = te__alloc_live();
	int n = 0, fired = 1, r;

	while (fired) {
		scene_open(ways[_i]);
		DO(create());
		fired = faulted(++n, replay, &r);
		ck_assert_msg(!fired || r < 0, "fault %d is not reported", n);
		DO(te_ctx_sync(ctx));
		/* the first is that of the stream */
		if (r && te_graph_run(s.g, st)) {
			fails(te_graph_run(s.g, st), r, "the graph failed before");
			fails(te_graph_bind(s.g, 0, "x", 0, NULL, NULL), r, "failed before");
			fails(te_graph_update(s.g, 2, s.d, NULL), r, "failed before");
			s.g = te_graph_unref(s.g);
			s.c[0].release = s.c[1].release = NULL;
			state_reset();
			DO(create());
		}
		DO(replay());
		is_constant(te_graph_tensor(s.g, 1, "y"), 20, "y");
		is_constant(s.y[1], 10, "the gradient that was kept");
		scene_close();
		ck_assert_int_eq(te__alloc_live(), live);
	}
	ck_assert_int_gt(n, 5);
}

TEST_ALSO(faults, replaying_fails_for_good, TT_LEN(ways), .from = (int)TT_LEN(ways) - 1);

/* ---- a plan ---- */

static struct te_plan *plan;

static int from_plan(void)
{
	struct te_callable c = TE_CALLABLE_INIT;
	int r = te_callable_from_plan(plan, "model", &c);

	if (!r)
		r = te_graph_create(ctx, 1, &c, NULL, &s.g);
	if (r && c.release)
		c.release(c.self);
	return r;
}

TEST(faults, a_plan_fails_cleanly)
{
	const struct model_shape m = { 48, 32, 1, 16, 4, 4, 2, 0, 0 };
	struct te_seq *seq = model_create(ctx, &m, 1);
	int n = 0, fired = 1, hidden = 0, r;
	int64_t live = 0;

	memset(&s, 0, sizeof(s));
	for (; fired; n = tt_fault_next(n)) {
		plan = model_plan(seq, &m, "bf16", TE_PLAN_TRAIN | TE_PLAN_EXTERNAL);
		/* 0: none, so that what the context keeps is there */
		fired = !n || faulted(n, from_plan, &r);
		hidden += n && fired && !r;
		if (!s.g) {
			/* a plan that failed while it ran cannot be used again */
			te_plan_unref(plan);
			plan = model_plan(seq, &m, "bf16", TE_PLAN_TRAIN | TE_PLAN_EXTERNAL);
			DO(from_plan());
		}
		DO(te_graph_run(s.g, st));
		s.g = te_graph_unref(s.g);
		plan = te_plan_unref(plan);
		/* the pool is freed after queued work */
		DO(te_ctx_sync(ctx));
		live = n ? live : te__alloc_live();
		ck_assert_int_eq(te__alloc_live(), live);
	}
	ck_assert_int_gt(n, 50);
	ck_assert_msg(TT_FEWER(8) < 8 ? hidden <= SPARE : hidden == SPARE, "%d are hidden", hidden);
	te_seq_unref(seq);
}

/* ---- memory that a device cannot free ---- */

static int no_free(void *stream, void *ptr, size_t nbytes)
{
	return te__fail(-TE_ECUDA, "cuMemFreeAsync: the device is lost");
}

static void log_said(void *arg, enum te_log_level level, const char *category, const char *text)
{
	if (level == TE_LOG_WARN)
		snprintf(arg, 200, "%s", text);
}

/* a reset cannot fail: it says so, all else goes on, and nothing is lost in the end */
TEST_EACH(faults, a_pool_that_cannot_be_freed_stays, TT_LEN(ways))
{
	const struct te__backend_ops *ops;
	struct te__backend_ops broken;
	char said[200] = "";
	int64_t live;
	uint64_t pool;

	te_ctx_unref(ctx);
	live = te__alloc_live();
	DO(tt_ctx_new(&ctx));
	st = te_ctx_stream(ctx);
	ops = ctx->ops;
	broken = *ops;
	broken.mem_free = no_free;
	scene_open(ways[_i]);
	pool = tt_used();
	DO(create());
	DO(te_graph_run(s.g, st));
	pool = tt_used() - pool;
	te_log_set(log_said, said);
	DO(te_log_filter("warn"));
	ctx->ops = &broken;
	if (_i % 2)
		DO(te_graph_reset(s.g));
	else
		s.g = te_graph_unref(s.g);
	ctx->ops = ops;
	DO(te_log_filter("off"));
	te_log_set(NULL, NULL);
	ck_assert_str_eq(said, "the pool of a graph is not freed before its context: "
			       "cuMemFreeAsync: the device is lost");
	if (s.g)
		fails(te_graph_run(s.g, st), -TE_ESTATE, "has been reset");
	s.g = te_graph_unref(s.g);
	DO(create());
	run_gives(0, te_graph_tensor(s.g, 1, "y"));
	s.g = te_graph_unref(s.g);
	for (int i = 0; i < 3; i++)
		te_tensor_unref(s.x[i]);
	for (int i = 0; i < 2; i++)
		te_tensor_unref(s.y[i]);
	DO(te_mem_free(st, s.words));
	ck_assert_uint_eq(tt_used(), pool);
	ctx = te_ctx_unref(ctx);
	ck_assert_int_eq(te__alloc_live(), live);
	tt_setup(); /* for the teardown */
}

/* ---- streams that capture ---- */

CTX_CASE(captures, "graph");

/* nothing of a replay that is refused gets into a capture, and no other stream joins it */
TEST_EACH(captures, captures_are_left_alone, TT_LEN(ways))
{
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_replay rep = TE_REPLAY_INIT;
	struct te_recording *rec;
	struct te_stream *other;

	scene_open(ways[_i]);
	DO(create());
	DO(te_stream_create(ctx, &other));
	if (LAST)
		DO(te_graph_bind(s.g, 1, "y", 0, s.y[0], NULL));
	rep.npos = 1;
	rep.pos = &s.x[0];
	for (int round = 0; round < 2; round++) {
		DO(te_capture_begin(st));
		DO(te_fill(st, s.words, 0, 4));
		/* in the second round st is the stream of the latest replay */
		for (int k = 0; k <= round; k++) {
			struct te_stream *on = k ? other : st;

			fails(te_graph_run(s.g, on), -EBUSY, "te_graph_run: the stream is");
			if (!(s.flags & TE_GRAPH_WHOLE))
				fails(te_graph_forward(s.g, 0, on, &rep), -EBUSY,
				      "te_graph_forward: the stream is capturing");
		}
		if (!(s.flags & TE_GRAPH_WHOLE)) {
			rep.side = st;
			fails(te_graph_forward(s.g, 0, other, &rep), -EBUSY, "is capturing");
			rep.side = NULL;
		}
		if (round)
			fails(te_graph_update(s.g, 2, s.d, NULL), -EBUSY, "is capturing");
		ck_assert_int_ge(te_stream_query(other), 0);
		DO(te_capture_end(st, &rec));
		DO(te_recording_info(rec, &info));
		ck_assert_uint_eq(info.nnodes, 1);
		te_recording_unref(rec);
		/* the graph still runs */
		if (!(s.flags & TE_GRAPH_WHOLE)) {
			DO(te_graph_forward(s.g, 0, other, &rep));
			rep.npos = 0;
			DO(te_graph_forward(s.g, 1, other, &rep));
			rep.npos = 1;
			is_constant(LAST ? s.y[0] : te_graph_tensor(s.g, 1, "y"), 10, "y");
			DO(te_graph_rewind(s.g));
		}
		DO(te_graph_run(s.g, st));
	}
	te_stream_unref(other);
	scene_close();
}

TT_MAIN("graph/faults", TT_ONE_PROCESS)
