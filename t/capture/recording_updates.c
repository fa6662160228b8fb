/* t/capture/recording_updates.c - te_capture_update(3). */
#include "config.h"

#include <stdatomic.h>

#include <te/capture.h>
#include <te/errno.h>
#include "libtecore/base/private.h"

#include "libtecore/backend/backend.h"
#include "recording_lib.h"
#include "tt_gate.h"

REC_CASE(updates);

TEST(updates, updates_same_nodes_in_place)
{
	unsigned char *d = rec_device(256);
	float *x = rec_floats(70), *z = rec_floats(70), *y = rec_floats(70);
	enum te_update how = (enum te_update)0;
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 256));
	DO(rec_add(a, x, x, y, 70));
	DO(te_capture_end(a, &rec));
	rec_launch(rec);
	rec_check_filled(d, 1, 256, "first");
	for (int k = 2; k < 5; k++) {
		DO(te_capture_begin(b));
		DO(te_fill(b, d, (uint8_t)k, 256));
		DO(rec_add(b, x, z, y, 70));
		DO(te_capture_update(b, rec, &how));
		ck_assert_int_eq(how, TE_UPDATE_IN_PLACE);
		ck_assert_uint_eq(rec_info(rec).nupdated, k - 1);
		ck_assert_uint_eq(rec_info(rec).ninstantiated, 1);
		rec_launch(rec);
		rec_check_filled(d, k, 256, "updated");
		rec_check_sum(y, x, z, 70, "updated");
	}
	te_recording_unref(rec);
}

TEST(updates, instantiates_other_nodes)
{
	unsigned char *d = rec_device(256), *c = rec_device(256), *h = rec_pinned(256);
	enum te_update how = (enum te_update)0;
	struct te_recording *rec = rec_filler(d, 1, 256);

	/* another node */
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 2, 256));
	DO(te_copy(a, c, d, 256));
	DO(te_capture_update(a, rec, &how));
	ck_assert_int_eq(how, TE_UPDATE_INSTANTIATED);
	ck_assert_uint_eq(rec_info(rec).ninstantiated, 2);
	ck_assert_uint_eq(rec_info(rec).nupdated, 0);
	ck_assert_uint_eq(rec_info(rec).nnodes, 2);
	ck_assert_uint_eq(rec_info(rec).ncopies, 1);
	rec_launch(rec);
	rec_check_filled(c, 2, 256, "a longer graph");
	/* nodes of the same kinds in another order */
	DO(te_capture_begin(a));
	DO(te_copy(a, d, c, 256));
	DO(te_fill(a, c, 3, 256));
	DO(te_capture_update(a, rec, NULL));
	ck_assert_uint_eq(rec_info(rec).ninstantiated, 3);
	rec_launch(rec);
	rec_check_filled(c, 3, 256, "another order");
	/* and in place again */
	DO(te_capture_begin(a));
	DO(te_copy(a, d, c, 256));
	DO(te_fill(a, c, 4, 256));
	DO(te_capture_update(a, rec, &how));
	ck_assert_int_eq(how, TE_UPDATE_IN_PLACE);
	ck_assert_uint_eq(rec_info(rec).ninstantiated, 3);
	ck_assert_uint_eq(rec_info(rec).nupdated, 1);
	/* an update that a backend may not be able to do in place */
	DO(te_capture_begin(a));
	DO(te_copy(a, h, c, 256));
	DO(te_fill(a, c, 5, 100));
	DO(te_capture_update(a, rec, NULL));
	ck_assert_uint_eq(rec_node(rec, 1).nbytes, 100);
	ck_assert_uint_eq(rec_info(rec).ninstantiated + rec_info(rec).nupdated, 5);
	rec_launch(rec);
	ck_assert_int_eq(h[0], 3);
	rec_check_part(c, 5, 100, "a smaller fill");
	rec_check_part(c + 100, 3, 156, "what it leaves");
	te_recording_unref(rec);
}

/* the same nodes with other edges */
TEST(updates, instantiates_other_edges)
{
	unsigned char *d = rec_device(64), *c = rec_device(64);
	enum te_update how = (enum te_update)0;
	struct te_recording *rec;
	struct te_event *e;

	DO(te_event_create(ctx, &e));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	DO(te_fill(a, c, 1, 64));
	DO(te_fill(a, d, 2, 64));
	DO(te_capture_end(a, &rec));
	DO(te_capture_begin(a));
	DO(te_event_record(e, a));
	DO(te_event_wait(e, b));
	DO(te_fill(a, d, 3, 64));
	DO(te_fill(b, c, 3, 64));
	DO(te_event_record(e, b));
	DO(te_event_wait(e, a));
	DO(te_fill(a, d, 4, 64));
	DO(te_capture_update(a, rec, &how));
	ck_assert_int_eq(how, TE_UPDATE_INSTANTIATED);
	ck_assert_int_eq(rec_node(rec, 2).ndeps, 2);
	rec_launch(rec);
	rec_check_filled(c, 3, 64, "the branch");
	rec_check_filled(d, 4, 64, "the join");
	te_event_unref(e);
	te_recording_unref(rec);
}

/* 1: no fault happened */
static int update_fails_at(uint64_t nth, struct te_recording *rec, unsigned char *d, int longer)
{
	struct te_recording_info before = rec_info(rec), after;
	int fired, r;

	DO(te_capture_begin(a));
	te__fault_set(nth);
	r = te_fill(a, d, 9, 256);
	if (!r && longer)
		r = te_fill(a, d, 9, 200);
	r = te_capture_update(a, rec, NULL);
	fired = te__fault_fired();
	te__fault_set(0);
	if (!fired) {
		DO(r);
		return 1;
	}
	ck_assert_msg(r < 0, "fault %d is not reported", (int)nth);
	te_error_clear();
	after = rec_info(rec);
	ck_assert_int_eq(memcmp(&before, &after, sizeof(before)), 0);
	ck_assert_uint_eq(rec_node(rec, 0).nbytes, 256);
	DO(te_fill(a, d, 0, 256));
	rec_launch(rec);
	rec_check_filled(d, 1, 256, "after a failed update");
	ck_assert_int_eq(te_recording_binding(rec, d, 256, NULL), 0);
	return 0;
}

TEST_EACH(updates, a_failed_update_changes_nothing, 2)
{
	unsigned char *d = rec_device(256);
	struct te_recording *rec = rec_filler(d, 1, 256);
	uint64_t nth = 1;

	rec_binding(rec, d, 256, 1, 1);
	while (!update_fails_at(nth, rec, d, _i))
		nth++;
	ck_assert_uint_ge(nth, 5);
	rec_launch(rec);
	rec_check_filled(d, 9, 256, "after an update");
	te_recording_unref(rec);
}

TEST(updates, an_invalid_capture_updates_nothing)
{
	unsigned char *d = rec_device(256);
	struct te_recording *rec = rec_filler(d, 1, 256);

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 2, 256));
	ck_assert_int_eq(te_copy(a, NULL, d, 5), -EINVAL);
	REFUSED(-EINVAL, te_capture_update, a, rec, NULL);
	rec_launch(rec);
	rec_check_filled(d, 1, 256, "after an invalid capture");
	ck_assert_uint_eq(rec_info(rec).nupdated, 0);
	te_recording_unref(rec);
}

/* queued launches keep what they were queued with, also the arguments of host calls */
static atomic_int last;

static void take(void *arg)
{
	atomic_store(&last, *(int *)arg);
}

TEST_EACH(updates, an_update_does_not_change_queued_launches, 2)
{
	unsigned char *d = rec_device(256), *c = rec_device(256), *h = rec_pinned(256);
	int one[100] = { 1 }, two[100] = { 2 }; /* more than a small argument */
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 256));
	DO(te_host_call(a, take, one, sizeof(one)));
	DO(te_capture_end(a, &rec));
	atomic_store(&last, 0);
	tt_gate_close();
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_recording_launch(rec, a));
	DO(te_copy(a, h, d, 256));
	/* instantiation may make the driver wait for the device */
	tt_gate_open_later(200);
	DO(te_capture_begin(b));
	DO(te_fill(b, _i ? c : d, 2, 256));
	DO(te_host_call(b, take, two, sizeof(two)));
	if (_i)
		DO(te_fill(b, d, 3, 256));
	DO(te_capture_update(b, rec, NULL));
	ck_assert_uint_eq(rec_info(rec).nupdated, !_i);
	DO(te_stream_sync(a));
	ck_assert_int_eq(h[0], 1);
	ck_assert_int_eq(h[255], 1);
	ck_assert_int_eq(atomic_load(&last), 1);
	rec_launch(rec);
	ck_assert_int_eq(atomic_load(&last), 2);
	rec_check_filled(d, _i ? 3 : 2, 256, "the next launch");
	te_recording_unref(rec);
}
