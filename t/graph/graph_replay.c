/*
 * t/graph/graph_replay.c - replays check their order and their arguments, with and without backward
 * passes, concurrently with other streams and other threads.
 */
#include "config.h"

#include <pthread.h>

#include <te/errno.h>

#include "graph_lib.h"
#include "tt_gate.h"

CTX_CASE(replay, "graph");

TEST(replay, replays_only_in_order)
{
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
	struct te_graph *g;

	DO(te_graph_create(ctx, 2, c, NULL, &g));
	for (int i = 0; i < 2; i++) {
		fails(te_graph_forward(g, 1, st, NULL), -TE_ESTATE,
		      "forward of callable 0 (low, chunk 1, micro-batch 1) is due, not forward of "
		      "callable 1 (high)");
		fails(te_graph_backward(g, 0, st, NULL), -TE_ESTATE,
		      "is due, not backward of callable 0 (low)");
		DO(te_graph_forward(g, 0, st, NULL));
		fails(te_graph_forward(g, 0, st, NULL), -TE_ESTATE, "forward of callable 1 (high");
		DO(te_graph_forward(g, 1, st, NULL));
		DO(te_graph_backward(g, 1, st, NULL));
		fails(te_graph_backward_dw(g, 1, st, NULL), -TE_ESTATE,
		      "backward of callable 0 (low, chunk 1, micro-batch 1) is due, not "
		      "backward_dw of callable 1 (high)");
		if (i) {
			DO(te_graph_rewind(g));
			DO(te_graph_forward(g, 0, st, NULL));
		} else {
			DO(te_graph_backward(g, 0, st, NULL));
		}
	}
	fails(te_graph_forward(g, 2, st, NULL), -EINVAL, "callable 2 of 2");
	fails(te_graph_forward(g, -1, st, NULL), -EINVAL, "callable -1 of 2");
	fails(te_graph_forward(NULL, 0, st, NULL), -EINVAL, "graph is NULL");
	fails(te_graph_forward(g, 0, NULL, NULL), -EINVAL, "stream is NULL");
	fails(te_graph_run(g, st), -TE_ESTATE, "several callables need TE_GRAPH_CHAIN");
	DO(te_graph_reset(g));
	DO(te_graph_reset(g));
	fails(te_graph_forward(g, 0, st, NULL), -TE_ESTATE, "has been reset");
	te_error_clear();
	ck_assert_ptr_null(te_graph_tensor(g, 0, "x"));
	ck_assert_str_eq(te_error_detail(), "te_graph_tensor: x: the graph has been reset");
	ck_assert_int_eq(a[0].released + a[1].released, 0);
	te_graph_unref(g);
	ck_assert_int_eq(a[0].released, 1);
	ck_assert_int_eq(a[1].released, 1);
}

TEST(replay, arguments_are_refused_by_name)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "only");
	struct te_tensor *x = filled(1), *dy = filled(100), *wrong, *typed, *pos[2] = { x, x };
	const int64_t shape[] = { 5, 3 };
	struct te_named named[2] = { { "x", x }, { "x", x } };
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph *g;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, NULL, &wrong));
	DO(te_tensor_create(ctx, TE_DTYPE_INT32, 2, axpy_in[0].spec.shape, NULL, &typed));
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	fails(te_graph_forward(g, 0, st, &r), -EINVAL,
	      "the input x of only was captured and is not given");
	r.npos = 2;
	r.pos = pos;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "2 arguments by position, only takes 1");
	r.npos = 1;
	r.nnamed = 1;
	r.named = named;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL,
	      "x of only is given by position and by name");
	r.npos = 0;
	r.nnamed = 2;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "x of only is given twice");
	named[1].name = "mask";
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "only has no input mask");
	named[1].name = NULL;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "named argument 1 has no name");
	r.nnamed = 1;
	named[0].tensor = wrong;
	fails(te_graph_forward(g, 0, st, &r), -TE_ESHAPE,
	      "x of only is [5,3] fp32, captured was [3,5] fp32");
	named[0].tensor = typed;
	fails(te_graph_forward(g, 0, st, &r), -TE_EDTYPE,
	      "x of only is [3,5] int32, captured was [3,5] fp32");
	named[0].tensor = NULL;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "x of only was captured and is not given");
	named[0].tensor = x;
	r.nkept = 1;
	r.kept = named;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "only backward has gradients to keep");
	r.nkept = 0;
	r.size = 0;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "TE_REPLAY_INIT");
	r.size = sizeof(r);
	/* nothing of all this has used up a step */
	DO(te_graph_forward(g, 0, st, &r));
	fails(te_graph_backward(g, 0, st, &r), -EINVAL, "only has no output gradient x");
	named[0] = (struct te_named){ "y", dy };
	DO(te_graph_backward(g, 0, st, &r));
	ck_assert(first_of(te_graph_tensor(g, 0, "y")) == 1);
	ck_assert(first_of(te_graph_grad(g, 0, "x")) == 1);
	ck_assert(first_of(te_graph_grad(g, 0, "y")) == 100);
	te_graph_unref(g);
	te_tensor_unref(x);
	te_tensor_unref(dy);
	te_tensor_unref(wrong);
	te_tensor_unref(typed);
}

/* what replay n gave stays as it is when replay n + 1 has run, if it was asked to be kept */
TEST(replay, kept_gradients_are_the_callers)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "only");
	struct te_tensor *kept = filled(0), *alias, *x[2] = { filled(7), filled(9) };
	struct te_named keep = { "x", kept };
	struct te_graph *g;

	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	alias = te_graph_grad(g, 0, "x");
	for (int i = 0; i < 2; i++) {
		struct te_replay f = TE_REPLAY_INIT, b = TE_REPLAY_INIT;

		f.npos = b.npos = 1;
		f.pos = b.pos = &x[i];
		b.nkept = !i;
		b.kept = &keep;
		DO(te_graph_forward(g, 0, st, &f));
		DO(te_graph_backward(g, 0, st, &b));
	}
	ck_assert(first_of(kept) == 7);
	ck_assert(first_of(alias) == 9);
	te_graph_unref(g);
	te_tensor_unref(kept);
	te_tensor_unref(x[0]);
	te_tensor_unref(x[1]);
}

/* ---- without and with more backward passes ---- */

/* y = x */
static int copy_forward(void *self, const struct te_graph_call *c)
{
	return te_copy(c->stream, te_tensor_data(c->out[0]), te_tensor_data(c->in[0]),
		       te_tensor_nbytes(c->in[0]));
}

TEST(replay, inference_needs_no_backward)
{
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = filled(4);
	struct te_graph *g;

	c[0].backward = c[1].backward = NULL;
	o.flags = TE_GRAPH_CHAIN | TE_GRAPH_REUSE;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	ck_assert_ptr_null(te_graph_grad(g, 0, "x"));
	ck_assert_ptr_eq(te_tensor_data(te_graph_tensor(g, 0, "y")),
			 te_tensor_data(te_graph_tensor(g, 1, "x")));
	DO(te_copy(st, te_tensor_data(te_graph_tensor(g, 0, "x")), te_tensor_data(x),
		   te_tensor_nbytes(x)));
	DO(te_graph_run(g, st));
	ck_assert(first_of(te_graph_tensor(g, 1, "y")) == 4);
	fails(te_graph_backward(g, 1, st, NULL), -TE_ESTATE, "forward of callable 0");
	te_graph_unref(g);
	te_tensor_unref(x);
}

/* what the next callable has read is no longer there: two outputs of eight at a time */
TEST(replay, a_chain_of_inference_takes_two_buffers)
{
	struct te_graph_report rep = TE_GRAPH_REPORT_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct axpy a[8] = { { .w = NULL } };
	struct te_tensor *x = filled(4);
	struct te_callable c[8];
	struct te_graph *g;

	for (int i = 0; i < 8; i++) {
		c[i] = axpy(&a[i], "layer");
		c[i].backward = NULL;
		c[i].saved_nbytes = 1; /* unused; of 256 bytes in the pool */
		c[i].forward = copy_forward;
	}
	for (int i = 0; i < 4; i++) {
		o.flags = TE_GRAPH_CHAIN | (i & 1 ? TE_GRAPH_WHOLE : 0) |
			  (i & 2 ? TE_GRAPH_REUSE : 0);
		DO(te_graph_create(ctx, 8, c, &o, &g));
		DO(te_graph_report(g, &rep));
		ck_assert_uint_eq(rep.peak_nbytes, (uint64_t)256 * (i & 2 ? 3 : 9 + 8));
		DO(te_copy(st, te_tensor_data(te_graph_tensor(g, 0, "x")), te_tensor_data(x),
			   te_tensor_nbytes(x)));
		DO(te_graph_run(g, st));
		ck_assert(first_of(te_graph_tensor(g, 7, "y")) == 4);
		te_graph_unref(g);
	}
	te_tensor_unref(x);
}

TEST(replay, retained_backward_may_run_again)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "only");
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = filled(8);
	struct te_replay rep = TE_REPLAY_INIT;
	struct te_graph *g;

	c.flags = TE_CALLABLE_RETAINS;
	o.flags = TE_GRAPH_RETAIN;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	fails(te_graph_backward(g, 0, st, NULL), -TE_ESTATE, "forward of callable 0");
	rep.npos = 1;
	rep.pos = &x;
	DO(te_graph_forward(g, 0, st, &rep));
	for (int i = 0; i < 3; i++) {
		struct te_tensor *dx = te_graph_grad(g, 0, "x");

		DO(te_fill(st, te_tensor_data(dx), 0xff, te_tensor_nbytes(dx)));
		DO(te_graph_backward(g, 0, st, NULL));
		ck_assert(first_of(dx) == 8);
	}
	DO(te_graph_forward(g, 0, st, &rep));
	fails(te_graph_forward(g, 0, st, &rep), -TE_ESTATE, "backward of callable 0");
	te_graph_unref(g);
	te_tensor_unref(x);
}

/* ---- streams and threads ---- */

/* y = x, then the event, then work that ends only when the gate opens */
static int gate_forward(void *self, const struct te_graph_call *c)
{
	struct te_event *mid = self;
	int r = copy_forward(self, c);

	if (!r)
		r = te_event_record_external(mid, c->stream);
	return r ? r : te_host_call(c->stream, tt_gate_wait, NULL, 0);
}

TEST(replay, trailing_work_outlives_the_wait)
{
	struct te_event *mid;
	struct axpy unused = { .w = NULL };
	struct te_callable c = axpy(&unused, "gate");
	struct te_tensor *x = filled(6);
	struct te_replay rep = TE_REPLAY_INIT;
	struct te_stream *side;
	struct te_graph *g;

	DO(te_event_create(ctx, &mid));
	DO(te_stream_create(ctx, &side));
	c.self = mid;
	c.forward = gate_forward;
	c.backward = NULL;
	c.regions = NULL;
	c.release = NULL;
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	rep.npos = 1;
	rep.pos = &x;
	rep.side = side;
	rep.until = mid;
	for (int i = 0; i < 2; i++) {
		tt_gate_close();
		DO(te_graph_forward(g, 0, st, &rep));
		/* the stream goes on though the replay has not ended */
		DO(te_stream_sync(st));
		ck_assert_int_eq(te_stream_query(side), 0);
		ck_assert(first_of(te_graph_tensor(g, 0, "y")) == 6);
		tt_gate_open();
		DO(te_stream_sync(side));
		ck_assert(!tt_gate_timed_out());
	}
	/* without the event the stream waits for all of it */
	rep.until = NULL;
	DO(te_graph_forward(g, 0, st, &rep));
	DO(te_stream_sync(st));
	ck_assert_int_eq(te_stream_query(side), 1);
	rep.side = NULL;
	rep.until = mid;
	fails(te_graph_forward(g, 0, st, &rep), -EINVAL, "until without a side stream");
	/* a graph whose last replay trails can go: its memory does not before that has ended */
	rep.side = side;
	tt_gate_close();
	DO(te_graph_forward(g, 0, st, &rep));
	tt_gate_open();
	te_graph_unref(g);
	DO(te_ctx_sync(ctx));
	te_event_unref(mid);
	te_stream_unref(side);
	te_tensor_unref(x);
}

struct worker {
	pthread_t thread;
	float base;
	int r; /* the first code that was not 0 */
	int wrong;
};

/* creates, replays and destroys a graph while other threads do the same */
static void *work(void *arg)
{
	struct worker *w = arg;
	const int64_t shape[] = { 3, 5 };
	struct te_stream *stream = NULL;
	struct te_tensor *x = NULL;

	w->r = te_stream_create(ctx, &stream);
	if (!w->r)
		w->r = te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, NULL, &x);
	for (int i = 0; i < 5 && !w->r; i++) {
		struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
		struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
		struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
		struct te_graph *g = NULL;
		float v[15], got[15];

		o.flags = TE_GRAPH_CHAIN | (i % 2 ? TE_GRAPH_WHOLE : 0);
		w->r = te_graph_create(ctx, 2, c, &o, &g);
		for (int k = 0; k < 20 && !w->r; k++) {
			for (int j = 0; j < 15; j++)
				v[j] = w->base + (float)(j + k);
			w->r = te_copy(stream, te_tensor_data(te_graph_tensor(g, 0, "x")), v,
				       sizeof(v));
			if (!w->r)
				w->r = te_graph_run(g, stream);
			if (!w->r)
				w->r = te_copy(stream, got,
					       te_tensor_data(te_graph_tensor(g, 1, "y")),
					       sizeof(got));
			if (!w->r)
				w->r = te_stream_sync(stream);
			w->wrong += !w->r && memcmp(v, got, sizeof(v)) != 0;
		}
		te_graph_unref(g);
	}
	te_tensor_unref(x);
	te_stream_unref(stream);
	return NULL;
}

TEST(replay, threads_have_graphs_of_their_own)
{
	struct worker w[4];

	for (int i = 0; i < 4; i++) {
		w[i] = (struct worker){ .base = (float)(1000 * i) };
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(w[i].thread, NULL);
		ck_assert_int_eq(w[i].r, 0);
		ck_assert_int_eq(w[i].wrong, 0);
	}
}
