/*
 * t/graph/contract_replay.c - states in which a replay is refused, main gradients over several
 * steps, the order of replays on several streams, and work after the event `until`, also when the
 * graph is updated or released.
 */
#include "config.h"

#include <stdatomic.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/gemm.h>

#include "contract_lib.h"
#include "tt_gate.h"

/* ---- states ---- */

CTX_CASE(replay, "graph");

TEST(replay, other_ways_to_replay_are_refused)
{
	struct te_ctx *other = new_ctx();
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph_change change = TE_GRAPH_CHANGE_INIT;
	struct te_stream *side;
	struct pipeline p;

	DO(te_stream_create(ctx, &side));
	pipeline_create(&p, &pipes[0], TE_GRAPH_WHOLE, 1);
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	fails(te_graph_forward(p.g, 0, st, NULL), -TE_ESTATE,
	      "te_graph_forward: a whole graph is replayed by te_graph_run");
	fails(te_graph_backward(p.g, 1, st, NULL), -TE_ESTATE, "replayed by te_graph_run");
	fails(te_graph_backward_dw(p.g, 1, st, NULL), -TE_ESTATE, "replayed by te_graph_run");
	fails(te_graph_run(p.g, te_ctx_stream(other)), -EINVAL,
	      "the stream belongs to another context");
	fails(te_graph_run(NULL, st), -EINVAL, "graph is NULL");
	fails(te_graph_run(p.g, NULL), -EINVAL, "stream is NULL");
	fails(te_graph_rewind(NULL), -EINVAL, "graph is NULL");
	fails(te_graph_reset(NULL), -EINVAL, "graph is NULL");
	p.g = te_graph_unref(p.g);
	p.o.flags = TE_GRAPH_CHAIN;
	p.stage[0].released = p.stage[1].released = 0;
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	r.side = te_ctx_stream(other);
	r.npos = 1;
	r.pos = (struct te_tensor *[]){ te_graph_tensor(p.g, 0, "x") };
	fails(te_graph_forward(p.g, 0, st, &r), -EINVAL,
	      "the side stream belongs to another context");
	r.side = side;
	DO(te_graph_forward(p.g, 0, st, &r));
	/* the neighbour's output is the input */
	fails(te_graph_forward(p.g, 1, st, &r), -EINVAL, "1 arguments by position, b takes 0");
	r.npos = 0;
	r.nnamed = 1;
	r.named = &(struct te_named){ "x", te_graph_tensor(p.g, 0, "x") };
	fails(te_graph_forward(p.g, 1, st, &r), -EINVAL,
	      "the input x of b comes from its neighbour in the chain");
	DO(te_graph_forward(p.g, 1, st, NULL));
	/* a whole run begins anew, and ends where it began */
	DO(te_graph_run(p.g, st));
	fails(te_graph_backward(p.g, 1, st, NULL), -TE_ESTATE,
	      "forward of callable 0 (a, chunk 1, micro-batch 1) is due");
	DO(te_graph_reset(p.g));
	fails(te_graph_backward(p.g, 1, st, NULL), -TE_ESTATE, "te_graph_backward: the graph has");
	fails(te_graph_backward_dw(p.g, 1, st, NULL), -TE_ESTATE, "the graph has been reset");
	fails(te_graph_run(p.g, st), -TE_ESTATE, "te_graph_run: the graph has been reset");
	fails(te_graph_update(p.g, p.n, p.c, &change), -TE_ESTATE, "the graph has been reset");
	ck_assert_ptr_null(te_graph_recording(p.g, 0, TE_SCHED_F));
	ck_assert_ptr_null(te_graph_grad(p.g, 0, "x"));
	DO(te_graph_rewind(p.g));
	pipeline_destroy(&p);
	te_stream_unref(side);
	te_ctx_unref(other);
}

/* a stream that captures takes no replay: nothing of one gets into the capture */
TEST(replay, a_capturing_stream_is_left_alone)
{
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_recording *rec;
	struct te_stream *side;
	struct te_replay r = TE_REPLAY_INIT;
	struct some s;

	some_create(&s);
	DO(te_stream_create(ctx, &side));
	r.npos = 3;
	r.pos = s.in;
	for (int k = 0; k < 4; k++) {
		struct te_stream *own = k == 2 ? side : st;

		DO(te_capture_begin(st));
		r.side = k == 2 ? st : k == 1 ? side : NULL;
		fails(k < 3 ? te_graph_forward(s.g, 0, own, &r) : te_graph_run(s.g, own), -EBUSY,
		      "the stream is capturing");
		DO(te_capture_end(st, &rec));
		DO(te_recording_info(rec, &info));
		ck_assert_uint_eq(info.nnodes, 0);
		te_recording_unref(rec);
	}
	/* it has not failed, and its step is still due */
	r.side = NULL;
	DO(te_graph_forward(s.g, 0, st, &r));
	some_gave(&s, 10);
	some_destroy(&s);
	te_stream_unref(side);
}

/* a function that fails when it is replayed, as an eager graph does: later calls say so */
TEST(replay, a_failed_replay_is_remembered)
{
	struct pipeline p;

	pipeline_create(&p, &pipes[0], TE_GRAPH_EAGER, 1);
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	DO(te_graph_forward(p.g, 0, st, NULL));
	p.calls.n = 0;
	p.calls.fail_at = 1;
	fails(te_graph_forward(p.g, 1, st, NULL), -EIO,
	      "te_graph_forward: forward of b (chunk 2, micro-batch 1)");
	p.calls.fail_at = 0;
	fails(te_graph_forward(p.g, 1, st, NULL), -EIO,
	      "te_graph_forward: the graph failed before: ");
	fails(te_graph_run(p.g, st), -EIO, "forward of b (chunk 2, micro-batch 1)");
	fails(te_graph_update(p.g, p.n, p.c, NULL), -EIO, "the graph failed before");
	pipeline_destroy(&p);
	pipeline_create(&p, &pipes[0], TE_GRAPH_EAGER, 1);
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	p.calls.n = 0;
	p.calls.fail_at = 1;
	fails(te_graph_run(p.g, st), -EIO, "");
	p.calls.fail_at = 0;
	fails(te_graph_run(p.g, st), -EIO, "te_graph_run: the graph failed before");
	pipeline_destroy(&p);
}

/* ---- main gradients ---- */

/* all of 4 by 4 and filled with one number: y = x w, dw += dy x, dx = dy w sum 4 equal terms */
struct layer {
	struct te_tensor *w, *dw, *minus; /* minus: what a step takes from w for a dw of 1 */
	int zeroes;			  /* first sets dw to zero */
};

static const struct te_spec square = { TE_DTYPE_FP32, 2, { 4, 4 } };
static const struct te_arg layer_in[] = { { "x", { TE_DTYPE_FP32, 2, { 4, 4 } }, TE_ARG_GRAD } };
static const struct te_arg layer_out[] = { { "y", { TE_DTYPE_FP32, 2, { 4, 4 } }, TE_ARG_GRAD } };

static int layer_forward(void *self, const struct te_graph_call *c)
{
	const struct layer *l = self;

	return te_gemm(c->stream, c->in[0], l->w, c->out[0], NULL);
}

static int layer_backward(void *self, const struct te_graph_call *c)
{
	const struct layer *l = self;
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	int r = te_gemm(c->stream, c->out_grad[0], l->w, c->in_grad[0], &o);

	o.beta = 1;
	return r ? r : te_gemm(c->stream, c->out_grad[0], c->in[0], l->dw, &o);
}

static int visit(const struct te_tensor *t, te_region_fn fn, void *arg)
{
	const struct te_region r = { "layer", TE_REGION_DEVICE, te_tensor_data(t),
				     te_tensor_nbytes(t) };

	return fn(arg, &r);
}

static int layer_regions(void *self, te_region_fn fn, void *arg)
{
	return visit(((struct layer *)self)->dw, fn, arg);
}

static int layer_first(void *arg, struct te_stream *stream)
{
	const struct layer *l = arg;

	return l->zeroes ? te_fill(stream, te_tensor_data(l->dw), 0, te_tensor_nbytes(l->dw)) : 0;
}

/* the optimizer: w -= dw */
static int layer_last(void *arg, struct te_stream *stream)
{
	const struct layer *l = arg;
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;

	o.beta = 1;
	return te_gemm(stream, l->dw, l->minus, l->w, &o);
}

static int optimizer_regions(void *arg, te_region_fn fn, void *fn_arg)
{
	return visit(((struct layer *)arg)->w, fn, fn_arg);
}

static void set_all(struct te_tensor *t, float x)
{
	float v[16];

	for (int i = 0; i < 16; i++)
		v[i] = x;
	DO(te_tensor_write(t, v, sizeof(v)));
}

static void all_are(struct te_tensor *t, float x, const char *what, int step)
{
	float v[16];

	DO(te_stream_sync(st));
	DO(te_tensor_read(t, v, sizeof(v)));
	for (int i = 0; i < 16; i++)
		ck_assert_msg(v[i] == x, "step %d: %s is %g, not %g", step, what, (double)v[i],
			      (double)x);
}

static const uint32_t layer_ways[] = {
	TE_GRAPH_EAGER, 0, TE_GRAPH_REUSE, TE_GRAPH_WHOLE, TE_GRAPH_WHOLE | TE_GRAPH_REUSE,
};

/*
 * The trap: a capture puts another buffer in the place of the gradients, and the optimizer goes on
 * with that of the first step; or it clears what was there. With integers every value is
 * known: neither stale nor doubled, in the first step and in later ones.
 */
TEST_EACH(replay, main_gradients_add_up_where_the_optimizer_reads, 2 * TT_LEN(layer_ways))
{
	const int zeroes = _i % 2;
	struct layer l = { .zeroes = zeroes };
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_callable c[2];
	float w = 5, dw = 100; /* dw: from before the capture */
	struct te_graph *g;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, square.shape, NULL, &l.w));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, square.shape, NULL, &l.dw));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, square.shape, NULL, &l.minus));
	set_all(l.w, w);
	set_all(l.dw, dw);
	set_all(l.minus, -0.25f);
	for (int i = 0; i < 2; i++) {
		c[i] = (struct te_callable)TE_CALLABLE_INIT;
		c[i].name = "layer";
		c[i].self = &l;
		c[i].nin = c[i].nout = 1;
		c[i].in = layer_in;
		c[i].out = layer_out;
		c[i].forward = layer_forward;
		c[i].backward = layer_backward;
		c[i].regions = layer_regions;
	}
	so.nmicro = 2;
	DO(te_schedule_create(&so, &o.schedule));
	o.flags = TE_GRAPH_CHAIN | layer_ways[_i / 2];
	o.first = layer_first;
	o.last = layer_last;
	o.regions = optimizer_regions;
	o.arg = &l;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	te_schedule_unref(o.schedule);
	all_are(l.dw, dw, "the gradient", -1);
	all_are(l.w, w, "the weight", -1);
	for (int step = 0; step < 3; step++) {
		const float x[2] = { (float)(2 + step), 3 }, dy[2] = { -1, (float)(1 + step) };

		for (int i = 0; i < 2; i++) {
			set_all(te_graph_tensor(g, i, "x"), x[i]);
			set_all(te_graph_grad(g, i, "y"), dy[i]);
		}
		DO(te_graph_run(g, st));
		for (int i = 0; i < 2; i++) {
			all_are(te_graph_tensor(g, i, "y"), 4 * x[i] * w, "y", step);
			all_are(te_graph_grad(g, i, "x"), 4 * dy[i] * w, "dx", step);
		}
		dw = (zeroes ? 0 : dw) + 4 * dy[0] * x[0] + 4 * dy[1] * x[1];
		w -= dw;
		all_are(l.dw, dw, "the gradient", step);
		all_are(l.w, w, "the weight", step);
	}
	te_graph_unref(g);
	te_tensor_unref(l.w);
	te_tensor_unref(l.dw);
	te_tensor_unref(l.minus);
}

/* ---- work after the event, in any pass ---- */

struct gate {
	struct te_event *mid;
	struct te_stream *side;
	enum te_sched_kind at; /* the pass with the gate */
};

static int gate_pass(struct gate *gate, const struct te_graph_call *c, enum te_sched_kind kind)
{
	int r = te_fill_u32(c->stream, te_tensor_data(c->out[0]), 50u + (uint32_t)kind, 4);

	if (r || kind != gate->at)
		return r;
	r = te_event_record_external(gate->mid, c->stream);
	if (!r)
		r = te_host_call(c->stream, tt_gate_wait, NULL, 0);
	return r ? r : te_fill_u32(c->stream, te_tensor_data(c->out[0]), 50u + (uint32_t)kind, 4);
}

static int gate_forward(void *self, const struct te_graph_call *c)
{
	return gate_pass(self, c, TE_SCHED_F);
}

static int gate_backward(void *self, const struct te_graph_call *c)
{
	return gate_pass(self, c, TE_SCHED_B);
}

static int gate_dw(void *self, const struct te_graph_call *c)
{
	return gate_pass(self, c, TE_SCHED_W);
}

/* a callable with a forward function only */
static struct te_callable gate_create(struct gate *gate, enum te_sched_kind at)
{
	struct te_callable c = TE_CALLABLE_INIT;

	DO(te_event_create(ctx, &gate->mid));
	DO(te_stream_create(ctx, &gate->side));
	gate->at = at;
	c.name = "gate";
	c.self = gate;
	c.nout = 1;
	c.out = stage_out;
	c.forward = gate_forward;
	return c;
}

static void gate_destroy(struct gate *gate)
{
	te_event_unref(gate->mid);
	te_stream_unref(gate->side);
}

/* any pass may run aside, and its stream go on at the event or at the end */
TEST_EACH(replay, every_pass_may_trail, 3)
{
	static int (*const replay[])(struct te_graph *, int32_t, struct te_stream *,
				     const struct te_replay *) = { te_graph_forward,
								   te_graph_backward,
								   te_graph_backward_dw };
	struct gate gate;
	struct te_callable c = gate_create(&gate, (enum te_sched_kind)_i);
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph *g;

	c.backward = gate_backward;
	c.backward_dw = gate_dw;
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	r.side = gate.side;
	r.npos = 1;
	r.pos = (struct te_tensor *[]){ te_graph_grad(g, 0, "y") };
	for (int round = 0; round < 2; round++)
		for (int k = 0; k < 3; k++) {
			const int trails = k == _i && !round;

			r.npos = k == TE_SCHED_B;
			r.until = trails ? gate.mid : NULL;
			if (trails)
				tt_gate_close();
			DO(replay[k](g, 0, st, &r));
			DO(te_stream_sync(st));
			ck_assert_int_eq(te_stream_query(gate.side), !trails);
			ck_assert_uint_eq(value_of(te_graph_tensor(g, 0, "y")), 50u + (uint32_t)k);
			tt_gate_open();
		}
	DO(te_stream_sync(gate.side));
	ck_assert(!tt_gate_timed_out());
	te_graph_unref(g);
	gate_destroy(&gate);
}

static int replay_pass(struct te_graph *g, int kind, struct te_stream *stream,
		       const struct te_replay *r)
{
	return kind == TE_SCHED_F ? te_graph_forward(g, 0, stream, r) :
	       kind == TE_SCHED_B ? te_graph_backward(g, 0, stream, r) :
				    te_graph_backward_dw(g, 0, stream, r);
}

/*
 * A pass can be left at an event only if it records that event: another one, such as the event of
 * the pass before, or one of another context, is refused, also after an update. What is refused
 * queues nothing.
 */
TEST_EACH(replay, until_is_an_event_that_the_pass_records, 3)
{
	static const char *const said[] = {
		"te_graph_forward: until: forward of gate does not record this event",
		"te_graph_backward: until: backward of gate does not record this event",
		"te_graph_backward_dw: until: backward_dw of gate does not record this event",
	};
	struct te_ctx *other = new_ctx();
	struct te_replay r = TE_REPLAY_INIT;
	struct gate gate, next;
	struct te_event *foreign;
	struct te_callable c;
	struct te_graph *g;

	DO(te_event_create(other, &foreign));
	c = gate_create(&gate, (enum te_sched_kind)_i);
	c.backward = gate_backward;
	c.backward_dw = gate_dw;
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	r.side = gate.side;
	r.pos = (struct te_tensor *[]){ te_graph_grad(g, 0, "y") };
	for (int k = 0; k < 3; k++) {
		r.npos = k == TE_SCHED_B;
		if (k != _i) {
			r.until = gate.mid;
			fails(replay_pass(g, k, st, &r), -EINVAL, said[k]);
		}
		r.until = foreign;
		fails(replay_pass(g, k, st, &r), -EINVAL, said[k]);
		ck_assert_int_eq(te_stream_query(gate.side), 1);
		r.until = k == _i ? gate.mid : NULL;
		DO(replay_pass(g, k, st, &r));
		DO(te_stream_sync(gate.side));
	}
	/* the graph's recordings now record the other event */
	c = gate_create(&next, (enum te_sched_kind)_i);
	c.backward = gate_backward;
	c.backward_dw = gate_dw;
	DO(te_graph_update(g, 1, &c, NULL));
	r.pos = (struct te_tensor *[]){ te_graph_grad(g, 0, "y") };
	for (int k = 0; k < 3; k++) {
		r.npos = k == TE_SCHED_B;
		r.until = gate.mid;
		fails(replay_pass(g, k, st, &r), -EINVAL, said[k]);
		r.until = k == _i ? next.mid : NULL;
		DO(replay_pass(g, k, st, &r));
	}
	DO(te_stream_sync(gate.side));
	te_graph_unref(g);
	gate_destroy(&gate);
	gate_destroy(&next);
	te_event_unref(foreign);
	te_ctx_unref(other);
}

/* without a capture it is found after the functions have been called: the graph has failed */
TEST(replay, until_is_checked_in_eager_graphs)
{
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_replay r = TE_REPLAY_INIT;
	struct gate gate;
	struct te_callable c = gate_create(&gate, TE_SCHED_F);
	struct te_event *unused;
	struct te_graph *g;

	DO(te_event_create(ctx, &unused));
	o.flags = TE_GRAPH_EAGER;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	r.side = gate.side;
	r.until = gate.mid;
	for (int i = 0; i < 2; i++) {
		tt_gate_close();
		DO(te_graph_forward(g, 0, st, &r));
		DO(te_stream_sync(st));
		ck_assert_int_eq(te_stream_query(gate.side), 0);
		tt_gate_open();
		DO(te_stream_sync(gate.side));
	}
	r.until = unused;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL,
	      "until: forward of gate does not record this event");
	r.until = gate.mid;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "the graph failed before");
	DO(te_stream_sync(gate.side));
	ck_assert(!tt_gate_timed_out());
	te_graph_unref(g);
	te_event_unref(unused);
	gate_destroy(&gate);
}

static uint64_t held(void)
{
	struct te_mem_info mi = TE_MEM_INFO_INIT;

	DO(te_ctx_mem_info(ctx, &mi));
	return mi.measured_nbytes;
}

/* streams of the test, and side streams: what two replays, of which the first waits, are given */
enum { ON_ST, ON_OTHER, SIDE, OTHER_SIDE };

static const struct {
	int stream[2], side[2]; /* side: -1 for none */
	int trails;		/* the first replay's stream waits for its event only */
	int waits;		/* the second replay runs after all of the first */
} pairs[] = {
	{ { ON_OTHER, ON_ST }, { -1, -1 }, 0, 1 },
	{ { ON_ST, ON_ST }, { SIDE, -1 }, 0, 1 },
	{ { ON_ST, ON_OTHER }, { SIDE, -1 }, 0, 1 },
	{ { ON_ST, ON_ST }, { SIDE, SIDE }, 1, 1 },
	{ { ON_ST, ON_ST }, { SIDE, OTHER_SIDE }, 1, 1 },
	{ { ON_ST, ON_OTHER }, { SIDE, OTHER_SIDE }, 1, 1 },
	{ { ON_ST, ON_ST }, { SIDE, -1 }, 1, 0 },
	{ { ON_ST, ON_OTHER }, { SIDE, -1 }, 1, 0 },
};

/*
 * Replays of a graph run serially on whatever streams, except that only those with a side stream
 * wait for what a pass does after its event. The first replay waits for the gate, and then writes
 * the same word as the second.
 */
TEST_EACH(replay, replays_run_serially, TT_LEN(pairs))
{
	const int waits = pairs[_i].waits;
	struct gate gate;
	struct te_callable c = gate_create(&gate, TE_SCHED_F);
	struct te_replay r[2] = { TE_REPLAY_INIT, TE_REPLAY_INIT };
	struct te_stream *stream[4] = { st, NULL, gate.side, NULL }, *last;
	struct te_tensor *dy;
	struct te_graph *g;

	DO(te_stream_create(ctx, &stream[ON_OTHER]));
	DO(te_stream_create(ctx, &stream[OTHER_SIDE]));
	c.backward = gate_backward;
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	dy = te_graph_grad(g, 0, "y");
	for (int k = 0; k < 2; k++)
		r[k].side = pairs[_i].side[k] < 0 ? NULL : stream[pairs[_i].side[k]];
	r[0].until = pairs[_i].trails ? gate.mid : NULL;
	r[1].npos = 1;
	r[1].pos = &dy;
	last = r[1].side ? r[1].side : stream[pairs[_i].stream[1]];
	tt_gate_close();
	DO(te_graph_forward(g, 0, stream[pairs[_i].stream[0]], &r[0]));
	DO(te_graph_backward(g, 0, stream[pairs[_i].stream[1]], &r[1]));
	if (!waits)
		DO(te_stream_sync(last));
	tt_sleep_ms(20);
	ck_assert_int_eq(te_stream_query(last), !waits);
	tt_gate_open();
	DO(te_stream_sync(gate.side));
	DO(te_stream_sync(last));
	ck_assert(!tt_gate_timed_out());
	ck_assert_uint_eq(value_of(te_graph_tensor(g, 0, "y")),
			  50u + (waits ? TE_SCHED_B : TE_SCHED_F));
	te_graph_unref(g);
	te_stream_unref(stream[ON_OTHER]);
	te_stream_unref(stream[OTHER_SIDE]);
	gate_destroy(&gate);
}

/* a replay on a side stream runs after what its stream has queued */
TEST(replay, a_side_stream_runs_after_the_stream)
{
	struct gate gate;
	struct te_callable c = gate_create(&gate, TE_SCHED_W);
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph *g;

	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	r.side = gate.side;
	tt_gate_close();
	DO(te_host_call(st, tt_gate_wait, NULL, 0));
	DO(te_fill_u32(st, te_tensor_data(te_graph_tensor(g, 0, "y")), 7, 4));
	DO(te_graph_forward(g, 0, st, &r));
	tt_sleep_ms(20);
	ck_assert_int_eq(te_stream_query(gate.side), 0);
	tt_gate_open();
	ck_assert_uint_eq(value_of(te_graph_tensor(g, 0, "y")), 50u + TE_SCHED_F);
	te_graph_unref(g);
	gate_destroy(&gate);
}

/*
 * A graph is released while its latest replay runs on a stream or trails on a side stream, and
 * while no stream captures, that of the replay does, or the side stream: the pool is freed after
 * all has run, and nothing gets into the capture. That it is freed is checked by tt_teardown.
 */
TEST_EACH(replay, the_pool_is_freed_after_all_that_uses_it, 12)
{
	const int trails = _i < 6, resets = _i % 6 < 3;
	struct gate gate;
	struct te_callable c = gate_create(&gate, TE_SCHED_F);
	struct te_replay r = TE_REPLAY_INIT;
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_recording *rec = NULL;
	struct te_stream *captures;
	struct te_graph *g;
	uint64_t before, pool;
	uint32_t *word;

	DO(te_mem_alloc(st, 4, (void **)&word));
	DO(te_stream_sync(st));
	before = held();
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	pool = held() - before;
	r.side = gate.side;
	r.until = gate.mid;
	captures = _i % 3 == 1 ? st : _i % 3 == 2 ? gate.side : NULL;
	DO(te_graph_forward(g, 0, st, trails ? &r : NULL));
	DO(te_ctx_sync(ctx));
	tt_gate_close();
	DO(te_graph_forward(g, 0, st, trails ? &r : NULL));
	if (captures) {
		DO(te_capture_begin(captures));
		DO(te_fill(captures, word, 0, 4));
	}
	if (resets && !strcmp(backend, "host")) {
		DO(te_graph_reset(g));
		/* time for a free that waits for less than it must */
		tt_sleep_ms(20);
		ck_assert_uint_ge(held(), before + pool);
		tt_gate_open_later(30);
	} else {
		/* a stream of the host goes when it is idle, recorded host calls of a GPU too */
		tt_gate_open_later(30);
		if (resets)
			DO(te_graph_reset(g));
		else
			g = te_graph_unref(g);
	}
	if (captures) {
		DO(te_capture_end(captures, &rec));
		DO(te_recording_info(rec, &info));
		ck_assert_uint_eq(info.nnodes, 1);
	}
	DO(te_ctx_sync(ctx));
	ck_assert(!tt_gate_timed_out());
	if (!strcmp(backend, "host"))
		ck_assert_uint_eq(held(), before);
	te_recording_unref(rec);
	te_graph_unref(g);
	gate_destroy(&gate);
	DO(te_mem_free(st, word));
}

/* ---- release ---- */

struct released {
	struct te_event *mid;
	struct te_stream *side;
	atomic_int ran; /* replays that have run to their end */
	int ran_at_release;
};

static void count_run(void *arg)
{
	atomic_fetch_add(&(*(struct released **)arg)->ran, 1);
}

static int released_forward(void *self, const struct te_graph_call *c)
{
	struct released *s = self;
	int r = te_event_record_external(s->mid, c->stream);

	if (!r)
		r = te_host_call(c->stream, tt_gate_wait, NULL, 0);
	return r ? r : te_host_call(c->stream, count_run, &s, sizeof(s));
}

static void note_release(void *self)
{
	struct released *s = self;

	s->ran_at_release = atomic_load(&s->ran);
}

/* a graph with one replay, whose side stream may trail, and which the gate holds up for 30 ms */
static struct te_graph *replay_gated(struct released *s, int trails, struct te_stream *on)
{
	struct te_callable c = TE_CALLABLE_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph *g;

	DO(te_event_create(ctx, &s->mid));
	DO(te_stream_create(ctx, &s->side));
	c.name = "gate";
	c.self = s;
	c.forward = released_forward;
	c.release = note_release;
	o.nwarmup = 0;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	r.side = s->side;
	r.until = s->mid;
	tt_gate_close();
	DO(te_graph_forward(g, 0, on, trails ? &r : NULL));
	return g;
}

/*
 * release() may free what the replays use, so all of them have run by then: on whatever stream the
 * last one was queued, also one that no stream waits for, or that is capturing now. An update
 * releases the previous callables.
 */
TEST_EACH(replay, release_waits_for_queued_replays, 10)
{
	enum { UNREF, RESET, UPDATE };
	const int trails = _i % 2, captures = _i / 2 % 2, how = _i < 8 ? _i / 4 : UPDATE;
	struct released s = { .ran_at_release = -1 }, next = { .ran_at_release = -1 };
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_callable c = TE_CALLABLE_INIT;
	struct te_recording *rec;
	struct te_stream *other;
	struct te_graph *g;

	DO(te_stream_create(ctx, &other));
	g = replay_gated(&s, trails, other);
	if (captures)
		DO(te_capture_begin(trails ? s.side : other));
	tt_gate_open_later(30);
	next.mid = s.mid;
	c.name = "gate";
	c.self = &next;
	c.forward = released_forward;
	c.release = note_release;
	if (how == RESET)
		DO(te_graph_reset(g));
	if (how == UPDATE)
		DO(te_graph_update(g, 1, &c, NULL));
	else
		g = te_graph_unref(g);
	ck_assert_int_eq(s.ran_at_release, 1);
	ck_assert_int_eq(next.ran_at_release, -1);
	ck_assert(!tt_gate_timed_out());
	if (captures) {
		DO(te_capture_end(trails ? s.side : other, &rec));
		DO(te_recording_info(rec, &info));
		ck_assert_uint_eq(info.nnodes, 0);
		te_recording_unref(rec);
	}
	te_graph_unref(g);
	te_event_unref(s.mid);
	te_stream_unref(s.side);
	te_stream_unref(other);
}
