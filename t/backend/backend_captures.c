/* t/backend/backend_captures.c - captures, their graphs and executables. */
#include "config.h"

#include <te/capture.h>
#include <te/dtype.h>
#include <te/errno.h>

#include "backend_lib.h"
#include "tt_ctx.h"
#include "tt_gate.h"

static struct te_recording_info info(void *graph)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;

	DO(ops->graph_info(graph, &i));
	ck_assert_uint_eq(i.size, sizeof(i));
	return i;
}

static void *exec_of(void *graph)
{
	void *exec;

	DO(ops->graph_instantiate(graph, &exec));
	return exec;
}

static void run(void *exec, void *stream)
{
	DO(ops->graph_launch(exec, stream));
	DO(ops->stream_sync(stream));
}

BK_CASE(captures);

TEST(captures, nothing_runs_while_capturing)
{
	unsigned char *d = bk_get(DEVICE, 4), *out = bk_get(PINNED, 4);
	void *graph, *exec;
	int got = 0;

	bk_poison(d, 4);
	tt_poison(out, 4);
	ck_assert_int_eq(ops->capture_active(a), 0);
	DO(ops->capture_begin(a));
	ck_assert_int_eq(ops->capture_active(a), 1);
	ck_assert_int_eq(ops->capture_active(b), 0);
	DO(ops->fill8(a, d, 3, 4));
	DO(ops->copy(a, out, d, 4));
	DO(bk_note(a, &got, 11));
	tt_sleep_ms(20);
	DO(ops->capture_end(a, &graph));
	ck_assert_int_eq(ops->capture_active(a), 0);
	exec = exec_of(graph);
	DO(ops->stream_sync(a));
	bk_check_filled(d, 0xa5, 4, "memory after a capture");
	ck_assert(tt_is_poison(out, 4));
	ck_assert_int_eq(got, 0);
	run(exec, a);
	ck_assert_int_eq(out[3], 3);
	ck_assert_int_eq(got, 11);
	ops->exec_destroy(exec);
}

TEST(captures, counts_nodes_of_every_kind)
{
	unsigned char *d = bk_get(DEVICE, 64);
	struct te_recording_info i;
	void *graph;
	int got;

	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 7));
	DO(ops->fill32(a, d + 8, 2, 3));
	DO(ops->copy(a, d + 32, d, 4));
	DO(ops->copy(a, d, d, 0)); /* no bytes: no node */
	DO(ops->fill8(a, d, 1, 0));
	DO(ops->fill32(a, d, 1, 0));
	DO(bk_cast(a, (float *)d, d + 48, 2));
	DO(bk_note(a, &got, 1));
	DO(ops->host_call(a, bk_increment, &got, 0));
	DO(ops->capture_end(a, &graph));
	i = info(graph);
	ck_assert_uint_eq(i.nnodes, 6);
	ck_assert_uint_eq(i.nedges, 5);
	ck_assert_uint_eq(i.nfills, 2);
	ck_assert_uint_eq(i.ncopies, 1);
	ck_assert_uint_eq(i.nkernels, 1);
	ck_assert_uint_eq(i.nhost, 2);
	ops->graph_destroy(graph);
}

TEST(captures, an_empty_capture_is_a_graph)
{
	struct te_recording_info i;
	void *graph, *exec;

	DO(ops->capture_begin(a));
	DO(ops->capture_end(a, &graph));
	i = info(graph);
	ck_assert_uint_eq(i.nnodes, 0);
	ck_assert_uint_eq(i.nedges, 0);
	ck_assert_uint_eq(i.nkernels + i.ncopies + i.nfills + i.nhost, 0);
	exec = exec_of(graph);
	run(exec, a);
	run(exec, b);
	ops->exec_destroy(exec);
}

#define STATE_NBYTES 300
#define STATE_NELEMS 77

/* what a step changes, so that n steps differ from n - 1 */
struct state {
	unsigned char *p, *q;
	float *x, *dx;
	uint16_t *y;
	int *count;
};

static struct state state_new(const unsigned char *bytes, const float *x, const float *dx,
			      int *count)
{
	struct state s = { .count = count };

	s.p = bk_get(DEVICE, STATE_NBYTES);
	s.q = bk_get(DEVICE, STATE_NBYTES);
	s.x = bk_get(DEVICE, STATE_NELEMS * 4);
	s.dx = bk_get(DEVICE, STATE_NELEMS * 4);
	s.y = bk_get(DEVICE, STATE_NELEMS * 2);
	bk_move(s.p, bytes, STATE_NBYTES);
	bk_move(s.x, x, STATE_NELEMS * 4);
	bk_move(s.dx, dx, STATE_NELEMS * 4);
	return s;
}

static void step(void *stream, const struct state *s)
{
	struct te_k_add add = {
		.a = s->x, .b = s->dx, .y = s->x, .n = STATE_NELEMS, .dtype = TE_DTYPE_FP32
	};
	struct te__launch l = { TE_K_ADD, &add, sizeof(add) };

	DO(ops->copy(stream, s->q, s->p + 3, STATE_NBYTES - 3));
	DO(ops->fill8(stream, s->q + STATE_NBYTES - 3, 0x5a, 3));
	DO(ops->copy(stream, s->p, s->q, STATE_NBYTES));
	DO(ops->fill32(stream, s->p + 20, 0x01020304, 2));
	DO(ops->launch(stream, &l));
	memset(&add, 0xff, sizeof(add));
	DO(bk_cast(stream, s->x, s->y, STATE_NELEMS));
	DO(ops->host_call(stream, bk_increment, s->count, 0));
}

TEST(captures, replay_gives_the_bits_of_eager_work)
{
	unsigned char *bytes = bk_get(PAGEABLE, STATE_NBYTES), *p = bk_get(PAGEABLE, STATE_NBYTES);
	float x[STATE_NELEMS], dx[STATE_NELEMS], sum[STATE_NELEMS];
	uint16_t y[STATE_NELEMS];
	int neager = 0, nreplay = 0;
	struct state eager, replay;
	void *graph, *exec;

	tt_fill_bytes(bytes, STATE_NBYTES);
	tt_fill_normal(x, STATE_NELEMS, 1.0f);
	tt_fill_normal(dx, STATE_NELEMS, 1.0f);
	eager = state_new(bytes, x, dx, &neager);
	replay = state_new(bytes, x, dx, &nreplay);
	DO(ops->capture_begin(a));
	step(a, &replay);
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	for (int i = 0; i < 7; i++) {
		step(a, &eager);
		DO(ops->graph_launch(exec, a));
	}
	DO(ops->stream_sync(a));
	ck_assert_int_eq(neager, 7);
	ck_assert_int_eq(nreplay, 7);
	bk_move(p, eager.p, STATE_NBYTES);
	bk_check(replay.p, p, STATE_NBYTES, "bytes");
	bk_move(sum, eager.x, sizeof(sum));
	bk_check(replay.x, sum, sizeof(sum), "sums");
	bk_move(y, eager.y, sizeof(y));
	bk_check(replay.y, y, sizeof(y), "casts");
	/* and eager work did what it should */
	ck_assert_int_eq(memcmp(p + 28, bytes + 28 + 21, STATE_NBYTES - 28 - 21), 0);
	for (int i = 0; i < STATE_NELEMS; i++) {
		for (int k = 0; k < 7; k++)
			x[i] += dx[i];
		ck_assert(x[i] == sum[i]);
		ck_assert_uint_eq(y[i], te_bf16_encode(x[i]));
	}
	ops->exec_destroy(exec);
}

TEST(captures, an_exec_runs_on_any_stream)
{
	unsigned char *d = bk_get(DEVICE, 100);
	void *graph, *exec, *s;
	int count = 0, got = 0;

	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 0x61, 99));
	DO(ops->host_call(a, bk_increment, &count, 0));
	DO(bk_note(a, &got, 33));
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	for (int i = 0; i < 2; i++) {
		bk_poison(d, 100);
		run(exec, i ? a : b);
		bk_check_filled(d, 0x61, 99, "what was recorded");
		bk_check_filled(d + 99, 0xa5, 1, "the byte after");
	}
	DO(ops->stream_create(dev, &s));
	got = 0;
	run(exec, s);
	run(exec, s);
	ops->stream_destroy(s);
	ck_assert_int_eq(count, 4);
	ck_assert_int_eq(got, 33);
	ops->exec_destroy(exec);
}

/* launched work keeps what it needs, gate or no gate */
TEST(captures, an_exec_that_runs_can_be_destroyed)
{
	unsigned char *d = bk_get(DEVICE, 10);
	int got = 0;
	void *graph, *exec;

	bk_poison(d, 10);
	DO(ops->capture_begin(a));
	DO(bk_note(a, &got, 5));
	DO(ops->fill8(a, d, 1, 10));
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	bk_hold_up(a);
	DO(ops->graph_launch(exec, a));
	tt_gate_open_later(60);
	/* on CUDA this waits for the launch, so another thread opens the gate */
	ops->exec_destroy(exec);
	DO(ops->stream_sync(a));
	ck_assert_int_eq(got, 5);
	bk_check_filled(d, 1, 10, "what was recorded");
}

TEST(captures, launches_keep_the_order_of_their_stream)
{
	unsigned char *d = bk_get(DEVICE, 1), *out = bk_get(PINNED, 20);
	void *graph, *exec;

	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 200, 1));
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	for (int i = 0; i < 20; i += 2) {
		DO(ops->fill8(b, d, (uint8_t)i, 1));
		DO(ops->copy(b, out + i, d, 1));
		DO(ops->graph_launch(exec, b));
		DO(ops->copy(b, out + i + 1, d, 1));
	}
	DO(ops->stream_sync(b));
	for (int i = 0; i < 20; i += 2) {
		ck_assert_int_eq(out[i], i);
		ck_assert_int_eq(out[i + 1], 200);
	}
	ops->exec_destroy(exec);
}

/*
 * fill x -> copy x to y (on b) -> copy y to z
 *        \-> fill w -----------/
 */
TEST(captures, streams_fork_and_join_by_events)
{
	unsigned char *x = bk_get(DEVICE, 16), *y = bk_get(DEVICE, 16), *z = bk_get(DEVICE, 16);
	unsigned char *w = bk_get(DEVICE, 16);
	struct te_recording_info i;
	void *graph, *exec, *fork, *join;

	DO(ops->event_create(dev, &fork));
	DO(ops->event_create(dev, &join));
	bk_poison(x, 16);
	bk_poison(y, 16);
	bk_poison(z, 16);
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, x, 0x21, 16));
	DO(ops->event_record(fork, a));
	ck_assert_int_eq(ops->capture_active(b), 0);
	DO(ops->event_wait(fork, b));
	ck_assert_int_eq(ops->capture_active(b), 1);
	DO(ops->copy(b, y, x, 16));
	DO(ops->event_record(join, b));
	DO(ops->fill8(a, w, 0x22, 16));
	DO(ops->event_wait(join, a));
	DO(ops->copy(a, z, y, 15));
	DO(ops->capture_end(a, &graph));
	/* the capture ended for both */
	ck_assert_int_eq(ops->capture_active(a), 0);
	ck_assert_int_eq(ops->capture_active(b), 0);
	i = info(graph);
	ck_assert_uint_eq(i.nnodes, 4);
	ck_assert_uint_eq(i.nedges, 4);
	ck_assert_uint_eq(i.ncopies, 2);
	ck_assert_uint_eq(i.nfills, 2);
	exec = exec_of(graph);
	bk_check_filled(x, 0xa5, 16, "memory after a capture");
	bk_check_filled(y, 0xa5, 16, "memory after a capture");
	for (int k = 0; k < 3; k++) {
		bk_poison(z, 16);
		run(exec, k % 2 ? b : a);
		bk_check_filled(z, 0x21, 15, "what was joined");
		bk_check_filled(w, 0x22, 16, "the other branch");
		bk_check_filled(z + 15, 0xa5, 1, "the byte after");
	}
	/* both streams run eager work again */
	DO(ops->fill8(b, y, 1, 16));
	DO(ops->stream_sync(b));
	bk_check_filled(y, 1, 16, "eager work after a capture");
	ops->exec_destroy(exec);
	ops->event_destroy(fork);
	ops->event_destroy(join);
}

/* both branches are done before what follows the graph, joined at its end */
TEST(captures, a_branch_may_be_joined_without_more_work)
{
	unsigned char *d = bk_get(DEVICE, 2), *out = bk_get(PINNED, 1);
	void *graph, *exec, *e;

	*out = 0;
	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	DO(ops->fill8(b, d + 1, 2, 1));
	DO(ops->copy(b, out, d + 1, 1));
	DO(ops->event_record(e, b));
	DO(ops->event_wait(e, a));
	DO(ops->capture_end(a, &graph));
	exec = exec_of(graph);
	run(exec, a);
	ck_assert_int_eq(*out, 2);
	ops->exec_destroy(exec);
	ops->event_destroy(e);
}

TEST(captures, a_capture_inside_a_capture_is_refused)
{
	unsigned char *d = bk_get(DEVICE, 1);
	void *graph, *e;

	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 1));
	fails(ops->capture_begin(a), -EBUSY, "");
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	/* a stream that joined is in it too */
	fails(ops->capture_begin(b), -EBUSY, "");
	fails(ops->capture_end(b, &graph), -TE_ESTATE, "");
	DO(ops->fill8(b, d, 2, 1));
	DO(ops->event_record(e, b));
	DO(ops->event_wait(e, a));
	/* and the capture is still valid */
	DO(ops->capture_end(a, &graph));
	ck_assert_uint_eq(info(graph).nnodes, 2);
	ops->graph_destroy(graph);
	ops->event_destroy(e);
}

TEST(captures, an_end_without_a_begin_is_refused)
{
	void *graph = &graph;

	fails(ops->capture_end(a, &graph), -TE_ESTATE, "");
	ck_assert_ptr_eq(graph, &graph);
	DO(ops->capture_begin(a));
	fails(ops->capture_end(b, &graph), -TE_ESTATE, "");
	DO(ops->capture_end(a, &graph));
	ops->graph_destroy(graph);
	graph = &graph;
	fails(ops->capture_end(a, &graph), -TE_ESTATE, "");
	ck_assert_ptr_eq(graph, &graph);
}

TEST(captures, what_cannot_be_captured_is_refused_and_spoils_nothing)
{
	unsigned char *d = bk_get(DEVICE, 3);
	void *p = &p, *graph, *exec;

	DO(ops->mem_alloc(a, 10, &p));
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 3));
	fails(ops->stream_sync(a), -EBUSY, "");
	fails(ops->stream_query(a), -EBUSY, "");
	fails(ops->mem_free(a, p, 10), -EBUSY, "");
	fails(ops->mem_alloc(a, 10, &graph), -EBUSY, "");
	/* the other stream works as usual meanwhile */
	DO(ops->fill8(b, p, 9, 10));
	DO(ops->stream_sync(b));
	ck_assert_int_eq(ops->stream_query(b), 1);
	DO(ops->copy(a, d, d + 2, 1));
	DO(ops->capture_end(a, &graph));
	ck_assert_uint_eq(info(graph).nnodes, 2);
	exec = exec_of(graph);
	run(exec, a);
	bk_check_filled(d, 1, 3, "what was recorded");
	bk_check_filled(p, 9, 10, "what the other stream did");
	DO(ops->mem_free(a, p, 10));
	ops->exec_destroy(exec);
}

/* a graph or none: on a GPU some rejected calls invalidate the capture */
static void end_either(void *stream)
{
	void *graph;
	int r = ops->capture_end(stream, &graph);

	if (!r)
		ops->graph_destroy(graph);
	else
		ck_assert_msg(r == -TE_ESTATE && !is_host, "%d: %s", r, te_error_detail());
	te_error_clear();
	ck_assert_int_eq(ops->capture_active(stream), 0);
}

static void check_usable(void)
{
	unsigned char *d = bk_get(DEVICE, 2);

	ck_assert_int_eq(ops->capture_active(a), 0);
	ck_assert_int_eq(ops->capture_active(b), 0);
	DO(ops->fill8(a, d, 4, 1));
	DO(ops->fill8(b, d + 1, 4, 1));
	DO(ops->stream_sync(b));
	bk_check_filled(d, 4, 2, "work after a capture");
}

/* on a GPU such a call also invalidates the capture and the event, so each gets its own */
TEST(captures, an_event_of_a_capture_is_no_moment)
{
	double ms = -1;
	void *e, *f;

	DO(ops->event_create(dev, &e));
	DO(ops->event_create(dev, &f));
	for (int i = 0; i < 4; i++) {
		DO(ops->event_record(e, a));
		DO(ops->event_record(f, a));
		DO(ops->stream_sync(a));
		DO(ops->capture_begin(a));
		DO(ops->event_record(e, a));
		fails(i == 0 ? ops->event_query(e) :
		      i == 1 ? ops->event_sync(e) :
		      i == 2 ? ops->event_elapsed_ms(f, e, &ms) :
			       ops->event_elapsed_ms(e, f, &ms),
		      -EBUSY, "");
		ck_assert(ms == -1);
		end_either(a);
	}
	/* recorded outside again it is */
	DO(ops->event_record(e, a));
	DO(ops->event_sync(e));
	ck_assert_int_eq(ops->event_query(e), 1);
	DO(ops->event_elapsed_ms(f, e, &ms));
	check_usable();
	ops->event_destroy(e);
	ops->event_destroy(f);
}

TEST(captures, a_branch_that_is_not_joined_fails_the_end)
{
	unsigned char *d = bk_get(DEVICE, 1);
	void *graph = &graph, *e;

	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->event_record(e, a));
	DO(ops->event_wait(e, b));
	DO(ops->fill8(b, d, 2, 1));
	fails(ops->capture_end(a, &graph), -TE_ESTATE, "");
	ck_assert_ptr_eq(graph, &graph);
	check_usable();
	ops->event_destroy(e);
}

TEST(captures, a_capture_does_not_wait_for_what_is_outside)
{
	unsigned char *d = bk_get(DEVICE, 1);
	void *e;

	DO(ops->event_create(dev, &e));
	DO(ops->fill8(b, d, 1, 1));
	DO(ops->event_record(e, b));
	DO(ops->capture_begin(a));
	fails(ops->event_wait(e, a), -TE_ESTATE, "");
	end_either(a);
	check_usable();
	ops->event_destroy(e);
}

TEST(captures, captures_do_not_merge)
{
	unsigned char *d = bk_get(DEVICE, 1);
	void *e;

	DO(ops->event_create(dev, &e));
	DO(ops->capture_begin(a));
	DO(ops->capture_begin(b));
	DO(ops->fill8(a, d, 1, 1));
	DO(ops->event_record(e, a));
	fails(ops->event_wait(e, b), -TE_ESTATE, "");
	end_either(b);
	end_either(a);
	check_usable();
	ops->event_destroy(e);
}

TEST(captures, a_stream_that_captures_can_be_destroyed)
{
	unsigned char *d = bk_get(DEVICE, 1);
	int got = 0;
	void *s;

	bk_poison(d, 1);
	DO(ops->stream_create(dev, &s));
	DO(ops->capture_begin(s));
	DO(ops->fill8(s, d, 1, 1));
	DO(bk_note(s, &got, 1));
	ops->stream_destroy(s);
	bk_check_filled(d, 0xa5, 1, "what a dropped capture would change");
	ck_assert_int_eq(got, 0);
	check_usable();
}

/* see a_host_call_can_fail_its_stream for why this is the host's alone */
TEST(captures, a_recorded_host_call_can_fail_its_stream)
{
	unsigned char *d = bk_get(DEVICE, 1);
	void *graph, *exec;
	int r;

	bk_poison(d, 1);
	DO(ops->capture_begin(b));
	DO(ops->host_call(b, bk_fail_full, NULL, 0));
	DO(ops->fill8(b, d, 1, 1));
	DO(ops->capture_end(b, &graph));
	exec = exec_of(graph);
	DO(ops->graph_launch(exec, b));
	r = ops->stream_sync(b);
	if (is_host) {
		ck_assert_int_eq(r, -ENOSPC);
		tt_said("the disk of rank 3 is full");
		fails(ops->graph_launch(exec, b), -ENOSPC, "");
		bk_check_filled(d, 0xa5, 1, "work queued after the call");
	} else {
		ck_assert_int_eq(r, 0);
		bk_check_filled(d, 1, 1, "work queued after the call");
	}
	/* the recording itself is whole: another stream fails by it as well */
	ops->exec_destroy(exec);
}
