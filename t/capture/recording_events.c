/* t/capture/recording_events.c - external events. */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>
#include "libtecore/base/private.h"

#include "libtecore/backend/backend.h"
#include "libtecore/backend/cuda/driver.h"
#include "libtecore/tensor/ctx.h"
#include "recording_lib.h"
#include "tt_gate.h"

REC_CASE(external_events, .name = "external events");

/* a waiter continues while a later node of the same launch has not ended */
TEST(external_events, waiters_pass_before_the_trailing_node)
{
	unsigned char *d = rec_device(64), *c = rec_device(64), *h = rec_pinned(64);
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	DO(te_event_record_external(e, a));
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_fill(a, c, 2, 64));
	DO(te_capture_end(a, &rec));
	ck_assert_uint_eq(rec_info(rec).nnodes, 4);
	ck_assert_uint_eq(rec_info(rec).nkernels, 0);
	ck_assert_int_eq(rec_node(rec, 1).kind, TE_NODE_EVENT);
	ck_assert_str_eq(rec_node(rec, 1).name, "");
	ck_assert_int_eq(rec_node(rec, 2).ndeps, 1);
	/* no launch yet: nothing to wait for */
	DO(te_event_sync(e));
	ck_assert_int_eq(te_event_query(e), 1);
	for (int k = 0; k < 3; k++) {
		DO(te_fill(a, d, 0, 64));
		DO(te_fill(a, c, 0, 64));
		DO(te_stream_sync(a));
		memset(h, 0, 64);
		tt_gate_close();
		DO(te_recording_launch(rec, a));
		if (k == 1)
			DO(te_event_sync(e)); /* the CPU, too */
		DO(te_event_wait(e, b));
		DO(te_copy(b, h, d, 64));
		DO(te_stream_sync(b));
		ck_assert_int_eq(h[63], 1);
		ck_assert_int_eq(te_event_query(e), 1);
		ck_assert_int_eq(te_stream_query(a), 0);
		ck_assert(!tt_gate_timed_out());
		tt_gate_open();
		DO(te_stream_sync(a));
		rec_check_filled(c, 2, 64, "the trailing node");
	}
	te_recording_unref(rec);
	te_event_unref(e);
}

/* ... but not before the nodes that precede the record, in the newest launch */
TEST(external_events, a_wait_is_for_the_latest_launch)
{
	unsigned char *d = rec_device(64), *h = rec_pinned(64);
	struct te_recording *rec;
	struct te_event *e, *f;
	double ms = -1;

	DO(te_event_create(ctx, &e));
	DO(te_event_create(ctx, &f));
	DO(te_capture_begin(a));
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_fill(a, d, 1, 64));
	DO(te_event_record_external(e, a));
	DO(te_capture_end(a, &rec));
	rec_launch(rec);
	ck_assert_int_eq(te_event_query(e), 1);
	DO(te_fill(a, d, 0, 64));
	memset(h, 0, 64);
	tt_gate_close();
	DO(te_event_record(f, a));
	DO(te_event_sync(f)); /* so that the sleep below is after it */
	DO(te_recording_launch(rec, a));
	ck_assert_int_eq(te_event_query(e), 0);
	DO(te_event_wait(e, b));
	DO(te_copy(b, h, d, 64));
	ck_assert_int_eq(te_event_query(e), 0);
	tt_sleep_ms(20);
	ck_assert_int_eq(te_event_query(e), 0);
	ck_assert_int_eq(te_stream_query(b), 0);
	tt_gate_open();
	DO(te_event_sync(e));
	DO(te_stream_sync(b));
	ck_assert_int_eq(h[0], 1);
	DO(te_event_elapsed_ms(f, e, &ms));
	ck_assert_double_ge(ms, 19);
	te_recording_unref(rec);
	te_event_unref(e);
	te_event_unref(f);
}

TEST(external_events, outside_of_captures_it_is_a_record)
{
	unsigned char *d = rec_device(64), *h = rec_pinned(64);
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	tt_gate_close();
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_fill(a, d, 5, 64));
	DO(te_event_record_external(e, a));
	ck_assert_int_eq(te_event_query(e), 0);
	DO(te_event_wait(e, b));
	DO(te_copy(b, h, d, 64));
	tt_gate_open();
	DO(te_stream_sync(b));
	ck_assert_int_eq(h[63], 5);
	te_event_unref(e);
}

TEST(external_events, an_external_event_joins_no_stream)
{
	unsigned char *d = rec_device(64);
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	DO(te_event_record_external(e, a));
	DO(te_event_wait(e, b));
	/* b does not capture: it runs at once */
	DO(te_fill(b, d, 2, 64));
	DO(te_stream_sync(b));
	REFUSED(-TE_ESTATE, te_event_wait, e, a);
	/* a failed call makes the capture invalid */
	REFUSED(-TE_ESTATE, te_capture_end, a, &rec);
	rec_check_filled(d, 2, 64, "what ran outside");
	/* and the event can be used again */
	DO(te_event_record(e, a));
	DO(te_event_sync(e));
	te_event_unref(e);
}

TEST(external_events, a_recording_holds_a_reference_to_its_event)
{
	unsigned char *d = rec_device(64);
	struct te_recording *rec;
	struct te_event *e, *f;

	DO(te_event_create(ctx, &e));
	DO(te_event_create(ctx, &f));
	DO(te_capture_begin(a));
	DO(te_event_record_external(e, a));
	DO(te_fill(a, d, 1, 64));
	DO(te_capture_end(a, &rec));
	te_event_unref(e);
	rec_launch(rec);
	rec_check_filled(d, 1, 64, "a launch whose event is gone");
	/* an update with another event, while a launch is queued */
	tt_gate_close();
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_recording_launch(rec, a));
	DO(te_capture_begin(b));
	DO(te_event_record_external(f, b));
	DO(te_fill(b, d, 2, 64));
	DO(te_capture_update(b, rec, NULL));
	DO(te_recording_launch(rec, a));
	ck_assert_int_eq(te_event_query(f), 0);
	tt_gate_open();
	DO(te_event_sync(f));
	DO(te_stream_sync(a));
	rec_check_filled(d, 2, 64, "the update");
	DO(te_recording_launch(rec, a));
	te_recording_unref(rec);
	DO(te_event_sync(f));
	te_event_unref(f);
}

static void fail_full(void *arg)
{
	te__fail(-ENOSPC, "the disk of rank 3 is full");
	te__k_fail(-ENOSPC);
}

/* a launch that fails before its record; a CUDA stream cannot be made to fail in this way */
TEST(external_events, waiters_get_the_error_of_a_failed_launch)
{
	struct te_recording *rec;
	struct te_stream *s;
	struct te_event *e, *f;

	DO(te_event_create(ctx, &e));
	DO(te_event_create(ctx, &f));
	DO(te_stream_create(ctx, &s));
	DO(te_capture_begin(s));
	DO(te_event_record_external(f, s));
	DO(te_host_call(s, fail_full, NULL, 0));
	DO(te_event_record_external(e, s));
	DO(te_capture_end(s, &rec));
	DO(te_recording_launch(rec, s));
	DO(te_event_sync(f));
	if (is_host) {
		ck_assert_int_eq(te_event_sync(e), -ENOSPC);
		tt_said("the disk of rank 3 is full");
		ck_assert_int_eq(te_event_query(e), -ENOSPC);
		te_error_clear();
		/* reached before the failure */
		ck_assert_int_eq(te_event_query(f), 1);
	} else {
		DO(te_event_sync(e));
	}
	te_recording_unref(rec);
	te_event_unref(e);
	te_event_unref(f);
	te_stream_unref(s);
}

/* ---- captures begun through the driver API ---- */

static void *native; /* the backend's stream that takes part in such a capture */

static int capture_active(void *stream)
{
	return stream == native;
}

static int no_event(void *event, void *stream)
{
	ck_assert_ptr_ne(stream, native);
	return 0;
}

static int nfrees;

static int count_free(void *stream, void *ptr, size_t nbytes)
{
	ck_assert_ptr_ne(stream, native);
	nfrees++;
	return te__backend_host.mem_free(stream, ptr, nbytes);
}

static void begin_natively(struct te_stream *s, const struct te__backend_ops **inout_ops,
			   struct te__backend_ops *spare)
{
	native = s->impl;
	if (!is_host) {
		rec_enter();
		ck_assert_int_eq(te__cu.cuStreamBeginCapture(te_stream_native(s),
							     TE__CU_CAPTURE_MODE_RELAXED),
				 0);
		rec_leave();
		return;
	}
	/* the host backend has no other API: a table of functions plays its part */
	*spare = **inout_ops;
	spare->capture_active = capture_active;
	spare->event_record = no_event;
	spare->event_wait = no_event;
	spare->mem_free = count_free;
	*inout_ops = spare;
}

/* the capture has no node */
static void end_natively(struct te_stream *s)
{
	void *graph = NULL;
	size_t n = 1;

	native = NULL;
	if (is_host)
		return;
	rec_enter();
	ck_assert_int_eq(te__cu.cuStreamEndCapture(te_stream_native(s), &graph), 0);
	ck_assert_int_eq(te__cu.cuGraphGetNodes(graph, NULL, &n), 0);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(te__cu.cuGraphDestroy(graph), 0);
	rec_leave();
}

/* no node of the library gets into them */
TEST(external_events, captures_begun_by_the_driver_api_are_unchanged)
{
	const struct te__backend_ops *ops = ctx->ops;
	struct te__backend_ops spare;
	struct te_event *fork;
	struct te_recording *rec;

	DO(te_event_create(ctx, &fork));
	begin_natively(a, &ctx->ops, &spare);
	fails(te_capture_begin(a), -EBUSY, "te_capture_begin: the stream is capturing, which");
	fails(te__stream_follow(b, a), -EBUSY, "which began without");
	fails(te__stream_follow(a, b), -EBUSY, "which began without");
	ctx->ops = ops;
	DO(te_capture_begin(b));
	DO(te_event_record(fork, b));
	if (is_host)
		ctx->ops = &spare;
	fails(te_event_wait(fork, a), -EBUSY, "te_event_wait: the stream is capturing, which");
	ctx->ops = ops;
	/* the capture lacks the work of the stream that could not join: it is invalid */
	fails(te_capture_end(b, &rec), -EBUSY, "te_event_wait");
	end_natively(a);
	DO(te__stream_follow(b, a));
	te_event_unref(fork);
}

/* memory of a tensor is freed on the context's stream, once that is possible */
TEST(external_events, captures_begun_by_the_driver_api_defer_frees)
{
	const struct te__backend_ops *ops = ctx->ops;
	struct te__backend_ops spare;
	const int64_t n = 1000;
	struct te_tensor *t;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, &n, NULL, &t));
	nfrees = 0;
	begin_natively(st, &ctx->ops, &spare);
	te_tensor_unref(t);
	te__mem_flush(ctx);
	ck_assert_ptr_nonnull(ctx->deferred);
	ck_assert_int_eq(nfrees, 0);
	end_natively(st);
	te__mem_flush(ctx);
	ck_assert_ptr_null(ctx->deferred);
	ck_assert_int_eq(nfrees, is_host);
	ctx->ops = ops;
}
