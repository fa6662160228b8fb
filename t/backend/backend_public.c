/* t/backend/backend_public.c - what the public functions promise on every backend. */
#include "config.h"

#include <te/ctx.h>
#include <te/dtype.h>
#include <te/errno.h>
#include "libtecore/base/private.h"
#include <te/capture.h>
#include <te/stream.h>
#include <te/tensor.h>

#include "backend_lib.h"
#include "libtecore/tensor/ctx.h"
#include "tt_ctx.h"

static struct te_stream *su;

static void setup_ctx(void)
{
	is_host = !strcmp(backend, "host");
	te_error_clear();
	tt_setup();
	DO(te_stream_create(ctx, &su));
}

static void teardown_ctx(void)
{
	su = te_stream_unref(su);
	tt_teardown();
}

/* rejected, with a message that names the function */
#define REFUSED(code, fn, ...) fails(fn(__VA_ARGS__), (code), #fn)

static void check_words(const void *d, uint32_t want, size_t n)
{
	uint32_t got[8];

	ck_assert_uint_le(n, TT_LEN(got));
	DO(te_copy(st, got, d, 4 * n));
	DO(te_stream_sync(st));
	for (size_t i = 0; i < n; i++)
		ck_assert_uint_eq(got[i], want);
}

static void *words(uint32_t value, size_t n)
{
	void *d;

	DO(te_mem_alloc(st, 4 * n, &d));
	DO(te_fill_u32(st, d, value, 4 * n));
	DO(te_stream_sync(st));
	return d;
}

CASE(public, "backend", .setup = setup_ctx, .teardown = teardown_ctx);

TEST(public, a_capture_refuses_what_needs_a_result_now)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	struct te_recording *rec, *other;
	const int64_t shape[1] = { 4 };
	uint32_t *d = words(1, 8);
	struct te_tensor *t, *u;
	struct te_event *e;
	double ms;
	void *p;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, shape, NULL, &t));
	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(st));
	DO(te_capture_end(st, &other));
	DO(te_capture_begin(st));
	DO(te_fill_u32(st, d, 2, 16));
	REFUSED(-EBUSY, te_stream_sync, st);
	REFUSED(-EBUSY, te_stream_query, st);
	REFUSED(-EBUSY, te_ctx_sync, ctx);
	REFUSED(-EBUSY, te_mem_alloc, st, 4, &p);
	REFUSED(-EBUSY, te_mem_free, st, d);
	REFUSED(-EBUSY, te_capture_begin, st);
	REFUSED(-EBUSY, te_recording_launch, other, st);
	REFUSED(-EBUSY, te_tensor_write, t, d, 16);
	REFUSED(-EBUSY, te_tensor_read, t, &ms, 16);
	ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_FP32, 1, shape, NULL, &u), -EBUSY);
	DO(te_event_record(e, st));
	REFUSED(-EBUSY, te_event_query, e);
	REFUSED(-EBUSY, te_event_sync, e);
	REFUSED(-EBUSY, te_event_elapsed_ms, e, e, &ms);
	/* the other stream is free */
	DO(te_fill_u32(su, d + 4, 3, 16));
	DO(te_stream_sync(su));
	ck_assert_int_eq(te_stream_query(su), 1);
	/* and the capture is as it was */
	DO(te_fill_u32(st, d, 4, 16));
	DO(te_capture_end(st, &rec));
	DO(te_recording_info(rec, &i));
	ck_assert_uint_eq(i.nnodes, 2);
	ck_assert_uint_eq(i.nfills, 2);
	check_words(d, 1, 4);
	check_words(d + 4, 3, 4);
	DO(te_recording_launch(rec, su));
	DO(te_stream_sync(su));
	check_words(d, 4, 4);
	/* a capture that has ended cannot be waited for */
	REFUSED(-TE_ESTATE, te_event_query, e);
	REFUSED(-TE_ESTATE, te_event_sync, e);
	REFUSED(-TE_ESTATE, te_event_elapsed_ms, e, e, &ms);
	REFUSED(-TE_ESTATE, te_event_wait, e, su);
	te_event_unref(e);
	te_tensor_unref(t);
	te_recording_unref(rec);
	te_recording_unref(other);
	DO(te_mem_free(st, d));
}

/* on the stream itself, or on one that joined */
TEST_EACH(public, a_failed_call_spoils_a_capture, 2)
{
	struct te_recording *rec = NULL;
	uint32_t *d = words(1, 4);
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(st));
	DO(te_fill_u32(st, d, 2, 4));
	DO(te_event_record(e, st));
	DO(te_event_wait(e, su));
	ck_assert_int_eq(te_fill_u32(_i ? su : st, (char *)d + 1, 2, 4), -EINVAL);
	DO(te_event_record(e, su));
	DO(te_event_wait(e, st));
	/* the first failure is what is told, not a later one */
	ck_assert_int_eq(te_host_call(st, NULL, NULL, 0), -EINVAL);
	te_error_clear();
	ck_assert_int_eq(te_capture_end(st, &rec), -EINVAL);
	tt_said("te_fill_u32: 4 bytes at");
	ck_assert_ptr_null(rec);
	te_error_clear();
	DO(te_fill_u32(st, d, 3, 8));
	DO(te_fill_u32(su, d + 2, 3, 8));
	DO(te_stream_sync(su));
	check_words(d, 3, 4);
	DO(te_capture_begin(st));
	DO(te_capture_end(st, &rec));
	te_recording_unref(rec);
	te_event_unref(e);
	DO(te_mem_free(st, d));
}

TEST(public, a_stream_destroyed_in_a_capture_spoils_it)
{
	struct te_recording *rec = NULL;
	struct te_stream *s;
	struct te_event *e;

	DO(te_stream_create(ctx, &s));
	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(st));
	DO(te_event_record(e, st));
	DO(te_event_wait(e, s));
	te_stream_unref(s);
	ck_assert_int_eq(te_capture_end(st, &rec), -TE_ESTATE);
	tt_said("a stream was destroyed inside a capture");
	ck_assert_ptr_null(rec);
	/* the origin itself ends it */
	DO(te_stream_create(ctx, &s));
	DO(te_capture_begin(s));
	DO(te_event_record(e, s));
	DO(te_event_wait(e, su));
	te_stream_unref(s);
	DO(te_stream_sync(su));
	DO(te_ctx_sync(ctx));
	te_event_unref(e);
}

TEST(public, an_event_never_recorded_joins_no_stream)
{
	struct te_recording *rec;
	uint32_t *d = words(1, 1);
	struct te_event *e;
	double ms;

	DO(te_event_create(ctx, &e));
	ck_assert_int_eq(te_event_query(e), 1);
	DO(te_event_sync(e));
	REFUSED(-EBUSY, te_event_elapsed_ms, e, e, &ms);
	DO(te_capture_begin(st));
	DO(te_event_wait(e, st));
	DO(te_event_wait(e, su));
	DO(te_fill_u32(su, d, 2, 4));
	DO(te_stream_sync(su));
	DO(te_capture_end(st, &rec));
	check_words(d, 2, 1);
	te_recording_unref(rec);
	te_event_unref(e);
	DO(te_mem_free(st, d));
}

TEST(public, memory_is_checked_before_the_backend_sees_it)
{
	uint32_t *d = words(1, 2), host = 5;
	void *p = &p;

	REFUSED(-EINVAL, te_mem_alloc, st, 0, &p);
	REFUSED(-EINVAL, te_mem_alloc, NULL, 1, &p);
	REFUSED(-EINVAL, te_mem_alloc, st, 1, NULL);
	REFUSED(-EINVAL, te_pinned_alloc, ctx, 0, &p);
	REFUSED(-EINVAL, te_pinned_alloc, NULL, 1, &p);
	REFUSED(-EINVAL, te_pinned_alloc, ctx, 1, NULL);
	ck_assert_ptr_eq(p, &p);
	REFUSED(-EINVAL, te_mem_free, st, &host);
	REFUSED(-EINVAL, te_mem_free, st, d + 1);
	REFUSED(-EINVAL, te_mem_free, NULL, d);
	REFUSED(-EINVAL, te_pinned_free, ctx, d); /* device memory is no pinned memory */
	REFUSED(-EINVAL, te_pinned_free, NULL, d);
	DO(te_mem_free(st, NULL));
	DO(te_pinned_free(ctx, NULL));
	REFUSED(-EINVAL, te_copy, st, NULL, d, 4);
	REFUSED(-EINVAL, te_copy, st, d, NULL, 4);
	REFUSED(-EINVAL, te_copy, NULL, d, d, 4);
	REFUSED(-EINVAL, te_fill, st, NULL, 1, 4);
	REFUSED(-EINVAL, te_fill, NULL, d, 1, 4);
	REFUSED(-EINVAL, te_fill_u32, st, d, 1, 6);
	REFUSED(-EINVAL, te_fill_u32, st, (char *)d + 2, 1, 4);
	REFUSED(-EINVAL, te_host_call, st, NULL, &host, 4);
	REFUSED(-EINVAL, te_host_call, st, bk_increment, NULL, 4);
	REFUSED(-EINVAL, te_host_call, NULL, bk_increment, &host, 4);
	DO(te_copy(st, NULL, NULL, 0));
	DO(te_fill(st, NULL, 1, 0));
	DO(te_fill_u32(st, NULL, 1, 0));
	check_words(d, 1, 2);
	DO(te_mem_free(st, d));
	REFUSED(-EINVAL, te_mem_free, st, d); /* twice */
}

TEST(public, launches_are_checked_before_the_backend_sees_them)
{
	struct te_k_clear k = { 0 };
	char want[80];

	snprintf(want, sizeof(want), "(clear): %zu bytes of arguments, not %zu", sizeof(k) - 1,
		 sizeof(k));
	fails(te__launch_k(NULL, TE_K_CLEAR, &k, sizeof(k)), -EINVAL, "");
	fails(te__launch_k(st, TE_K_CLEAR, NULL, sizeof(k)), -EINVAL, "");
	fails(te__launch_k(st, TE_K_COUNT, &k, sizeof(k)), -EINVAL, "");
	fails(te__launch_k(st, (enum te_k_id)9999, &k, 0), -EINVAL, "");
	ck_assert_int_eq(te__launch_k(st, TE_K_CLEAR, &k, sizeof(k) - 1), -EINVAL);
	tt_said(want);
	te_error_clear();
	DO(te_stream_sync(st));
}

TEST(public, workspaces_are_given_whole)
{
	struct te_stream *s = te_ctx_stream(ctx);
	size_t n = te_ctx_workspace_nbytes(ctx);
	struct te_recording *rec;
	void *p;

	ck_assert_int_eq(n > 0, !is_host);
	ck_assert_int_eq(te_mem_alloc(s, n + 512, &p), 0);
	ck_assert_int_eq(te_stream_workspace(s, p, n), 0);
	ck_assert_int_eq(te_stream_workspace(s, (char *)p + 1, n), -EINVAL);
	tt_said("aligned to 256");
	if (n) {
		ck_assert_int_eq(te_stream_workspace(s, p, n - 1), -EINVAL);
		tt_said("are needed");
	}
	ck_assert_int_eq(te_stream_workspace(NULL, p, n), -EINVAL);
	ck_assert_int_eq(te_capture_begin(s), 0);
	ck_assert_int_eq(te_stream_workspace(s, NULL, 0), -EBUSY);
	ck_assert_int_eq(te_capture_end(s, &rec), 0);
	te_recording_unref(rec);
	ck_assert_int_eq(te_stream_workspace(s, NULL, 0), 0);
	ck_assert_int_eq(te_mem_free(s, p), 0);
}

TEST(public, contexts_do_not_mix)
{
	struct te_recording *rec;
	struct te_event *e, *f;
	struct te_ctx *other;
	double ms;

	DO(tt_ctx_new(&other));
	DO(te_event_create(other, &e));
	DO(te_event_create(ctx, &f));
	DO(te_event_record(e, te_ctx_stream(other)));
	DO(te_event_record(f, st));
	DO(te_ctx_sync(other));
	DO(te_ctx_sync(ctx));
	REFUSED(-EINVAL, te_event_record, e, st);
	REFUSED(-EINVAL, te_event_wait, e, st);
	REFUSED(-EINVAL, te_event_elapsed_ms, e, f, &ms);
	DO(te_capture_begin(st));
	DO(te_capture_end(st, &rec));
	REFUSED(-EINVAL, te_recording_launch, rec, te_ctx_stream(other));
	te_recording_unref(rec);
	te_event_unref(e);
	te_event_unref(f);
	te_ctx_unref(other);
}

TEST(public, nulls_are_refused)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	struct te_recording *rec;
	struct te_event *e;
	double ms;

	DO(te_event_create(ctx, &e));
	REFUSED(-EINVAL, te_stream_create, NULL, &su);
	REFUSED(-EINVAL, te_stream_create, ctx, NULL);
	REFUSED(-EINVAL, te_stream_sync, NULL);
	REFUSED(-EINVAL, te_stream_query, NULL);
	REFUSED(-EINVAL, te_event_create, NULL, &e);
	REFUSED(-EINVAL, te_event_create, ctx, NULL);
	REFUSED(-EINVAL, te_event_record, NULL, st);
	REFUSED(-EINVAL, te_event_record, e, NULL);
	REFUSED(-EINVAL, te_event_wait, NULL, st);
	REFUSED(-EINVAL, te_event_wait, e, NULL);
	REFUSED(-EINVAL, te_event_sync, NULL);
	REFUSED(-EINVAL, te_event_query, NULL);
	REFUSED(-EINVAL, te_event_elapsed_ms, NULL, e, &ms);
	REFUSED(-EINVAL, te_event_elapsed_ms, e, NULL, &ms);
	REFUSED(-EINVAL, te_capture_begin, NULL);
	REFUSED(-EINVAL, te_capture_end, NULL, &rec);
	REFUSED(-EINVAL, te_capture_end, st, NULL);
	REFUSED(-TE_ESTATE, te_capture_end, st, &rec);
	REFUSED(-EINVAL, te_recording_launch, NULL, st);
	REFUSED(-EINVAL, te_recording_info, NULL, &i);
	DO(te_capture_begin(st));
	DO(te_capture_end(st, &rec));
	REFUSED(-EINVAL, te_recording_launch, rec, NULL);
	REFUSED(-EINVAL, te_recording_info, rec, NULL);
	i.size = 0;
	REFUSED(-EINVAL, te_recording_info, rec, &i);
	te_recording_unref(rec);
	te_event_unref(e);
	ck_assert_ptr_null(te_stream_ref(NULL));
	ck_assert_ptr_null(te_stream_unref(NULL));
	ck_assert_ptr_null(te_event_ref(NULL));
	ck_assert_ptr_null(te_event_unref(NULL));
	ck_assert_ptr_null(te_recording_ref(NULL));
	ck_assert_ptr_null(te_recording_unref(NULL));
	ck_assert_ptr_null(te_ctx_ref(NULL));
	ck_assert_ptr_null(te_ctx_unref(NULL));
}

TEST(public, memory_is_accounted_for)
{
	struct te_mem_info m0 = TE_MEM_INFO_INIT, m1 = TE_MEM_INFO_INIT;
	void *d, *e, *p;

	DO(te_ctx_mem_info(ctx, &m0));
	DO(te_mem_alloc(st, 1001, &d));
	DO(te_mem_alloc(su, 3, &e));
	DO(te_pinned_alloc(ctx, 77, &p));
	DO(te_ctx_mem_info(ctx, &m1));
	ck_assert_uint_eq(m1.used_nbytes, m0.used_nbytes + 1004);
	ck_assert_uint_eq(m1.pinned_nbytes, m0.pinned_nbytes + 77);
	ck_assert_uint_eq(m1.nallocs, m0.nallocs + 3);
	ck_assert_uint_ge(m1.peak_nbytes, m1.used_nbytes);
	ck_assert_uint_gt(m1.device_total_nbytes, 0);
	ck_assert_uint_le(m1.device_free_nbytes, m1.device_total_nbytes);
	DO(te_mem_free(su, e));
	DO(te_mem_free(st, d));
	DO(te_pinned_free(ctx, p));
	m0.peak_nbytes = m1.peak_nbytes;
	DO(te_ctx_mem_info(ctx, &m1));
	ck_assert_uint_eq(m1.used_nbytes, m0.used_nbytes);
	ck_assert_uint_eq(m1.pinned_nbytes, m0.pinned_nbytes);
	ck_assert_uint_eq(m1.peak_nbytes, m0.peak_nbytes);
	m1.size = 0;
	REFUSED(-EINVAL, te_ctx_mem_info, ctx, &m1);
	REFUSED(-EINVAL, te_ctx_mem_info, ctx, NULL);
}

/* what is on a context keeps it; what was forgotten goes with it */
TEST(public, a_context_lives_as_long_as_what_is_on_it)
{
	int64_t live = te__alloc_live();
	struct te_recording *rec;
	struct te_stream *s;
	struct te_event *e;
	struct te_ctx *c;
	void *d, *p;

	DO(tt_ctx_new(&c));
	DO(te_mem_alloc(te_ctx_stream(c), 100, &d));
	DO(te_pinned_alloc(c, 100, &p));
	DO(te_stream_create(c, &s));
	DO(te_event_create(c, &e));
	DO(te_capture_begin(s));
	DO(te_fill(s, d, 7, 100));
	DO(te_capture_end(s, &rec));
	te_ctx_unref(c);
	ck_assert_ptr_eq(te_stream_ctx(s), c);
	DO(te_recording_launch(rec, s));
	DO(te_event_record(e, s));
	te_stream_unref(s);
	DO(te_event_sync(e));
	te_event_unref(e);
	ck_assert_str_eq(te_ctx_backend(c), backend);
	ck_assert_int_gt(te__alloc_live(), live);
	te_recording_unref(rec); /* the last */
	ck_assert_int_eq(te__alloc_live(), live);
}

/* see a_host_call_can_fail_its_stream: a CUDA stream cannot be made to fail like this */
TEST(public, ctx_sync_tells_the_first_failure)
{
	DO(te_ctx_sync(ctx));
	DO(te_host_call(su, bk_fail_full, NULL, 0));
	if (!is_host) {
		DO(te_ctx_sync(ctx));
		return;
	}
	ck_assert_int_eq(te_ctx_sync(ctx), -ENOSPC);
	tt_said("the disk of rank 3 is full");
	ck_assert_int_eq(te_stream_sync(su), -ENOSPC);
	DO(te_stream_sync(st));
}

static const struct te__backend_ops *asked_of;
static int nasked;

static int ask(int index, struct te_device_info *ret)
{
	/* the first question fails, and is no answer */
	return nasked++ ? asked_of->device_info(index, ret) : te__fail(-EIO, "no answer");
}

TEST(public, a_context_asks_for_its_device_once)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT, want = TE_DEVICE_INFO_INIT;
	struct te__backend_ops ops;
	struct te_ctx *c;

	DO(tt_ctx_new(&c));
	DO(te_device_info(te_ctx_backend(c), c->device, &want));
	asked_of = c->ops;
	ops = *c->ops;
	ops.device_info = ask;
	c->ops = &ops;
	nasked = 0;
	ck_assert_int_eq(te_ctx_device_info(c, &d), -EIO);
	for (int i = 0; i < 3; i++) {
		DO(te_ctx_device_info(c, &d));
		ck_assert_str_eq(d.name, want.name);
		ck_assert_uint_eq(d.mem_total_nbytes, want.mem_total_nbytes);
		ck_assert_uint_gt(d.mem_free_nbytes, 0);
		ck_assert_uint_eq(te__ctx_block_smem(c), want.block_smem_nbytes);
	}
	ck_assert_int_eq(nasked, 2);
	c->ops = asked_of;
	te_ctx_unref(c);
}
