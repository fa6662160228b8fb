/* t/capture/recording_bindings.c - te_recording_binding(3) and te_recording_rebind(3). */
#include "config.h"

#include <time.h>

#include <te/capture.h>
#include <te/ctx.h>
#include <te/errno.h>
#include <te/plan.h>
#include "libtecore/base/private.h"
#include <te/tensor.h>

#include "libtecore/backend/backend.h"
#include "libtecore/backend/cuda/driver.h"
#include "t/plan/plan_model.h"
#include "recording_lib.h"
#include "tt_gate.h"

REC_CASE(bindings);

TEST(bindings, rebinds_uses_of_every_kind)
{
	const size_t n = (size_t)tt_rand_int(17, 900), nbytes = n * sizeof(float);
	float *x = rec_floats(n), *z = rec_floats(n), *y = (float *)rec_device(nbytes);
	float *x2 = rec_floats(n), *y2 = (float *)rec_device(nbytes);
	float *y3 = (float *)rec_device(nbytes);
	unsigned char *d = rec_device(nbytes), *d2 = rec_device(nbytes);
	unsigned char *c = rec_device(nbytes), *c2 = rec_device(nbytes);
	struct te_recording *rec;
	int32_t s[4];
	void *p[4];

	DO(te_capture_begin(a));
	DO(rec_add(a, x, z, y, n));
	DO(te_copy(a, c, y, nbytes));
	DO(te_fill(a, d, 0x3c, nbytes - 5));
	DO(te_fill_u32(a, d, 0x11111111, 8));
	DO(te_capture_end(a, &rec));
	s[0] = rec_binding(rec, x, nbytes, 1, 1);
	s[1] = rec_binding(rec, y, nbytes, 2, 1);
	s[2] = rec_binding(rec, d, nbytes, 2, 1);
	s[3] = rec_binding(rec, c, nbytes, 1, 1);
	for (int k = 0; k < 4; k++)
		ck_assert_int_eq(s[k], k);
	p[0] = x2;
	p[1] = y2;
	p[2] = d2;
	p[3] = c2;
	DO(te_recording_rebind(rec, 4, s, p));
	rec_launch(rec);
	rec_check_untouched(y, nbytes, "the result's old memory");
	rec_check_untouched(c, nbytes, "the copy's old memory");
	rec_check_untouched(d, nbytes, "the fill's old memory");
	rec_check_sum(y2, x2, z, n, "the result");
	rec_check_sum((float *)c2, x2, z, n, "the copy");
	rec_check_part(d2, 0x11, 8, "the words");
	rec_check_part(d2 + 8, 0x3c, nbytes - 13, "the fill");
	rec_check_part(d2 - PAD, POISON, PAD, "before the fill");
	rec_check_part(d2 + nbytes - 5, POISON, 5 + PAD, "after the fill");
	ck_assert_int_eq(te_recording_binding(rec, y2, nbytes, NULL), s[1]);
	/* one binding alone, then two back to the captured memory */
	DO(rec_rebind(rec, s[1], y3));
	rec_launch(rec);
	rec_check_sum(y3, x2, z, n, "the result, rebound alone");
	rec_check_sum((float *)c2, x2, z, n, "the copy of it");
	p[0] = x;
	p[1] = y;
	DO(te_recording_rebind(rec, 2, s, p));
	rec_launch(rec);
	rec_check_sum(y, x, z, n, "the result, restored");
	te_recording_unref(rec);
}

/*
 * Copies to random addresses, and adjacent bindings that are created in random order, some of them
 * rebound at once: each has the uses that remain in its memory, and is patchable if all of these
 * are within it.
 */
static void search(unsigned char *to, unsigned char *from, unsigned char *other, size_t size)
{
	enum { NCOPIES = 30 };
	const int64_t most = tt_rand_int(1, 100), moves = tt_rand_int(0, 1);
	size_t begin[NCOPIES], end[NCOPIES], at[100] = { 0 };
	int turn[100], nbindings = 0, nfound = 0;
	struct te_recording *rec;

	DO(te_capture_begin(a));
	for (int k = 0; k < NCOPIES; k++) {
		begin[k] = (size_t)tt_rand_int(0, (int64_t)size - 1);
		end[k] = begin[k] + (size_t)tt_rand_int(1, most);
		if (end[k] > size)
			end[k] = size;
		DO(te_copy(a, to + begin[k], from + begin[k], end[k] - begin[k]));
	}
	DO(te_capture_end(a, &rec));
	for (at[0] = 0; at[nbindings] < size; nbindings++) {
		at[nbindings + 1] = at[nbindings] + (size_t)tt_rand_int(20, 300);
		if (at[nbindings + 1] > size - 20)
			at[nbindings + 1] = size;
		turn[nbindings] = nbindings;
	}
	for (int k = 0; k < nbindings; k++) {
		const int other_k = (int)tt_rand_int(k, nbindings - 1), t = turn[other_k];
		const size_t first = at[t], next = at[t + 1];
		int32_t nuses = 0, within = 0, number;

		turn[other_k] = turn[k];
		for (int c = 0; c < NCOPIES; c++) {
			nuses += begin[c] < next && end[c] > first;
			within += begin[c] >= first && end[c] <= next;
		}
		number = rec_binding(rec, to + first, next - first, nuses, nuses == within);
		ck_assert_int_eq(number, nfound++);
		ck_assert_int_eq(rec_binding(rec, to + first, next - first, nuses, nuses == within),
				 number);
		fails(te_recording_binding(rec, to + first + 1, size, NULL), -EINVAL,
		      "overlap binding");
		fails(te_recording_binding(rec, to + next - 1, 1, NULL), -EINVAL,
		      "overlap binding");
		if (!moves || nuses != within || tt_rand_int(0, 1))
			continue;
		DO(rec_rebind(rec, number, other + first));
		rec_binding(rec, to + first, next - first, 0, 1);
		nfound++;
		for (int c = 0; c < NCOPIES; c++)
			if (begin[c] >= first && end[c] <= next)
				begin[c] = end[c] = size + 1;
	}
	te_recording_unref(rec);
}

TEST(bindings, uses_equal_those_of_a_linear_scan)
{
	const size_t size = 1024;
	unsigned char *to = rec_device(size), *from = rec_device(size), *other = rec_device(size);

	for (int k = 0; k < 100; k++)
		search(to, from, other, size);
}

/* pointers into a binding keep their offsets from its beginning */
TEST(bindings, offsets_within_a_binding_are_kept)
{
	unsigned char *d = rec_device(1024), *d2 = rec_device(1024);
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 100));
	DO(te_fill(a, d + 100, 2, 200));
	DO(te_fill(a, d + 1000, 3, 24));
	DO(te_capture_end(a, &rec));
	DO(rec_rebind(rec, rec_binding(rec, d, 1024, 3, 1), d2));
	rec_launch(rec);
	rec_check_untouched(d, 1024, "the old memory");
	rec_check_part(d2 - PAD, POISON, PAD, "before the memory");
	rec_check_part(d2, 1, 100, "the first fill");
	rec_check_part(d2 + 100, 2, 200, "the second fill");
	rec_check_part(d2 + 300, POISON, 700, "between the fills");
	rec_check_part(d2 + 1000, 3, 24, "the third fill");
	rec_check_part(d2 + 1024, POISON, PAD, "after the memory");
	te_recording_unref(rec);
}

/* a queued launch keeps its memory, the next launch uses the new memory */
TEST(bindings, a_rebind_does_not_change_queued_launches)
{
	const size_t n = 300;
	float *x = rec_floats(n), *x2 = rec_floats(n), *z = rec_floats(n);
	float *y = (float *)rec_device(4 * n), *y2 = (float *)rec_device(4 * n);
	unsigned char big[600] = { 0 };
	struct te_recording *rec;
	int32_t s[2];

	DO(te_capture_begin(a));
	DO(te_host_call(a, rec_nothing, big, sizeof(big)));
	DO(rec_add(a, x, z, y, n));
	DO(te_capture_end(a, &rec));
	s[0] = rec_binding(rec, x, 4 * n, 1, 1);
	s[1] = rec_binding(rec, y, 4 * n, 1, 1);
	tt_gate_close();
	DO(te_host_call(a, tt_gate_wait, NULL, 0));
	DO(te_recording_launch(rec, a));
	DO(te_recording_rebind(rec, 2, s, (void *[]){ x2, y2 }));
	DO(te_recording_launch(rec, a));
	ck_assert_int_eq(te_stream_query(a), 0);
	tt_gate_open();
	DO(te_stream_sync(a));
	rec_check_sum(y, x, z, n, "the launch from before");
	rec_check_sum(y2, x2, z, n, "the launch from after");
	te_recording_unref(rec);
}

TEST(bindings, rebinding_to_the_present_memory_does_nothing)
{
	unsigned char *d = rec_device(64);
	struct te_recording *rec = rec_filler(d, 1, 64);
	int32_t s = rec_binding(rec, d, 64, 1, 1);

	te__fault_set(1);
	ck_assert_int_eq(rec_rebind(rec, s, d), 0);
	ck_assert_int_eq(te_recording_rebind(rec, 0, NULL, NULL), 0);
	ck_assert_int_eq(te__fault_fired(), 0);
	te__fault_set(0);
	/* the same memory is the same binding */
	ck_assert_int_eq(rec_binding(rec, d, 64, 1, 1), s);
	te_recording_unref(rec);
}

TEST(bindings, a_rebind_is_all_or_nothing)
{
	unsigned char *d = rec_device(256), *d2 = rec_device(256), *e = rec_device(256),
		      *e2 = rec_device(256);
	struct te_recording *rec;
	int32_t s[2];

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 256));
	DO(te_fill(a, e, 2, 200));
	DO(te_capture_end(a, &rec));
	s[0] = rec_binding(rec, d, 256, 1, 1);
	/* the fill extends beyond the end */
	s[1] = rec_binding(rec, e, 100, 1, 0);
	ck_assert_int_eq(te_recording_rebind(rec, 2, s, (void *[]){ d2, e2 }), -EOPNOTSUPP);
	tt_said("binding 1: node 1 (fill of 200 bytes)");
	te_error_clear();
	rec_launch(rec);
	rec_check_filled(d, 1, 256, "the memory from before");
	rec_check_untouched(d2, 256, "the memory that was refused");
	rec_check_untouched(e2, 256, "the memory that was refused");
	/* e is the present memory: nothing to refuse */
	DO(te_recording_rebind(rec, 2, s, (void *[]){ d2, e }));
	rec_launch(rec);
	rec_check_filled(d2, 1, 256, "the memory from after");
	te_recording_unref(rec);
}

/* if the driver fails at a later node, the patches of earlier ones are undone */
TEST(bindings, a_fault_changes_nothing)
{
	unsigned char *d = rec_device(256), *d2 = rec_device(256), *h = rec_pinned(256);
	float *x = rec_floats(64), *x2 = rec_floats(64), *y = (float *)rec_device(256);
	struct te_recording *rec;
	int32_t s[2];
	uint64_t nth;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 256));
	DO(te_copy(a, h, d, 256));
	DO(rec_add(a, x, x, y, 64));
	DO(te_capture_end(a, &rec));
	s[0] = rec_binding(rec, d, 256, 2, 1);
	s[1] = rec_binding(rec, x, 256, 2, 1);
	/* with a launch queued, so that the host backend has to copy the graph, too */
	for (nth = 1;; nth++) {
		int fired, r;

		tt_gate_close();
		DO(te_host_call(a, tt_gate_wait, NULL, 0));
		DO(te_recording_launch(rec, a));
		te__fault_set(nth);
		r = te_recording_rebind(rec, 2, s, (void *[]){ d2, x2 });
		fired = te__fault_fired();
		te__fault_set(0);
		tt_gate_open();
		DO(te_stream_sync(a));
		if (!fired) {
			DO(r);
			break;
		}
		ck_assert_int_lt(r, 0);
		te_error_clear();
		memset(h, 0, 256);
		DO(te_fill(a, y, 0, 256));
		rec_launch(rec);
		rec_check_sum(y, x, x, 64, "the sum after a fault");
		rec_check_untouched(d2, 256, "the memory that was not bound");
		ck_assert_int_eq(h[255], 1);
	}
	ck_assert_uint_ge(nth, 3);
	rec_launch(rec);
	rec_check_sum(y, x2, x2, 64, "the sum without a fault");
	rec_check_filled(d2, 1, 256, "the fill without a fault");
	te_recording_unref(rec);
}

TEST(bindings, refuses_invalid_arguments)
{
	unsigned char *d = rec_device(256), *d2 = rec_device(256);
	struct te_recording *rec = rec_filler(d, 1, 256), *r2;
	struct te_node_info n = TE_NODE_INFO_INIT;
	struct te_binding_info si = TE_BINDING_INFO_INIT;
	int32_t s = rec_binding(rec, d, 256, 1, 1), twice[] = { s, s }, bad[] = { s, 1 };
	void *p[] = { d2, d2 };
	struct te_event *e;
	uint64_t dep;
	char *text;

	DO(te_event_create(ctx, &e));
	REFUSED(-EINVAL, te_recording_node, NULL, 0, &n);
	REFUSED(-EINVAL, te_recording_node, rec, 1, &n);
	REFUSED(-EINVAL, te_recording_node, rec, 0, NULL);
	n.size = 0;
	REFUSED(-EINVAL, te_recording_node, rec, 0, &n);
	REFUSED(-EINVAL, te_recording_deps, NULL, 0, 1, &dep);
	REFUSED(-EINVAL, te_recording_deps, rec, 1, 1, &dep);
	REFUSED(-EINVAL, te_recording_deps, rec, 0, -1, &dep);
	REFUSED(-EINVAL, te_recording_deps, rec, 0, 1, NULL);
	REFUSED(-EINVAL, te_recording_dot, NULL, "", &text);
	REFUSED(-EINVAL, te_recording_dot, rec, "", NULL);
	REFUSED(-EINVAL, te_recording_binding, NULL, d, 1, NULL);
	REFUSED(-EINVAL, te_recording_binding, rec, NULL, 1, NULL);
	REFUSED(-EINVAL, te_recording_binding, rec, d, 0, NULL);
	REFUSED(-EINVAL, te_recording_binding, rec, d, SIZE_MAX, NULL);
	REFUSED(-EINVAL, te_recording_binding, rec, d + 16, 10, NULL);
	si.size = 0;
	REFUSED(-EINVAL, te_recording_binding, rec, d2, 10, &si);
	REFUSED(-EINVAL, te_recording_rebind, NULL, 1, &s, p);
	REFUSED(-EINVAL, te_recording_rebind, rec, -1, &s, p);
	REFUSED(-EINVAL, te_recording_rebind, rec, 1, NULL, p);
	REFUSED(-EINVAL, te_recording_rebind, rec, 1, &s, NULL);
	REFUSED(-EINVAL, te_recording_rebind, rec, 2, twice, p);
	REFUSED(-EINVAL, te_recording_rebind, rec, 2, bad, p);
	bad[1] = -1;
	REFUSED(-EINVAL, te_recording_rebind, rec, 2, bad, p);
	REFUSED(-EINVAL, rec_rebind, rec, s, NULL);
	REFUSED(-EINVAL, rec_rebind, rec, s, d2 + 8); /* not aligned alike */
	REFUSED(-EINVAL, te_event_record_external, NULL, a);
	REFUSED(-EINVAL, te_event_record_external, e, NULL);
	REFUSED(-EINVAL, te_capture_update, NULL, rec, NULL);
	REFUSED(-EINVAL, te_capture_update, a, NULL, NULL);
	REFUSED(-TE_ESTATE, te_capture_update, a, rec, NULL);
	/* a refused update does not affect the capture */
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 7, 256));
	REFUSED(-EINVAL, te_capture_update, a, NULL, NULL);
	DO(te_capture_end(a, &r2));
	rec_launch(r2);
	rec_check_filled(d, 7, 256, "the capture that continued");
	rec_launch(rec);
	rec_check_filled(d, 1, 256, "the recording that was not updated");
	te_recording_unref(r2);
	te_recording_unref(rec);
	te_event_unref(e);
}

TEST(bindings, recordings_of_another_context_are_refused)
{
	unsigned char *d = rec_device(64);
	struct te_recording *rec = rec_filler(d, 1, 64);
	struct te_stream *s;
	struct te_event *e;
	struct te_ctx *other;

	DO(tt_ctx_new(&other));
	s = te_ctx_stream(other);
	DO(te_event_create(other, &e));
	REFUSED(-EINVAL, te_event_record_external, e, a);
	DO(te_capture_begin(s));
	REFUSED(-EINVAL, te_capture_update, s, rec, NULL);
	te_recording_unref(rec);
	DO(te_capture_end(s, &rec));
	te_recording_unref(rec);
	te_event_unref(e);
	te_ctx_unref(other);
}

/* after updates in place and not, bindings are those of the new nodes, numbered from 0 */
TEST(bindings, an_update_removes_all_bindings)
{
	unsigned char *d = rec_device(256), *d2 = rec_device(256), *e = rec_device(256);
	struct te_recording *rec = rec_filler(d, 1, 256);
	enum te_update how;

	for (int k = 0; k < 1000; k++) {
		int more = k % 3 == 2;

		/* the update captured d again; the old rebind to d2 has no effect on it */
		ck_assert_int_eq(rec_binding(rec, e, 256, k && (k - 1) % 3 == 2, 1), 0);
		ck_assert_int_eq(rec_binding(rec, d, 256, 1, 1), 1);
		DO(rec_rebind(rec, 1, d2));
		DO(te_capture_begin(a));
		DO(te_fill(a, d, 3, 256));
		if (more)
			DO(te_fill(a, e, 5, 256));
		DO(te_capture_update(a, rec, &how));
		ck_assert_int_eq(how, k % 3 == 1 || k == 0 ? TE_UPDATE_IN_PLACE :
							     TE_UPDATE_INSTANTIATED);
		ck_assert_int_eq(rec_rebind(rec, 0, d2), -EINVAL);
		tt_said("no binding 0: the recording has 0 bindings");
		if (k > 5)
			continue;
		DO(te_fill(a, d, 0, 256));
		DO(te_fill(a, e, 0, 256));
		rec_launch(rec);
		rec_check_filled(d, 3, 256, "the fill where it was captured");
		rec_check_filled(e, more ? 5 : 0, 256, "the other fill");
		rec_check_untouched(d2, 256, "the memory that was bound before the update");
	}
	te_recording_unref(rec);
}

/* two bindings of one memory remain separate and do not prevent an update */
TEST(bindings, an_update_separates_two_bindings_of_one_memory)
{
	unsigned char *d = rec_device(64), *e = rec_device(64);
	struct te_recording *rec;
	int32_t s[2];

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	DO(te_fill(a, e, 2, 64));
	DO(te_capture_end(a, &rec));
	s[0] = rec_binding(rec, d, 64, 1, 1);
	s[1] = rec_binding(rec, e, 64, 1, 1);
	DO(rec_rebind(rec, s[1], d)); /* two inputs, the same tensor */
	rec_launch(rec);
	rec_check_filled(d, 2, 64, "the second fill");
	DO(rec_rebind(rec, s[1], e));
	rec_launch(rec);
	rec_check_filled(d, 1, 64, "the first fill");
	DO(rec_rebind(rec, s[1], d));
	DO(te_capture_begin(a));
	DO(te_fill(a, d, 3, 64));
	DO(te_fill(a, e, 4, 64));
	DO(te_capture_update(a, rec, NULL));
	rec_launch(rec);
	rec_check_filled(d, 3, 64, "the first fill, updated");
	rec_check_filled(e, 4, 64, "the second fill, updated");
	ck_assert_int_eq(rec_binding(rec, e, 64, 1, 1), 0);
	te_recording_unref(rec);
}

/* queued on the stream through the driver API */
static void fill_natively(void *d, int value, size_t n)
{
	rec_enter();
	ck_assert_int_eq(te__cu.cuMemsetD8Async((uintptr_t)d, (unsigned char)value, n,
						te_stream_native(a)),
			 0);
	rec_leave();
}

/* a node that was not queued through this library: which memory it uses is unknown */
TEST(bindings, an_opaque_node_prevents_every_rebind)
{
	unsigned char *d = rec_device(64), *d2 = rec_device(64);
	struct te_recording *rec;

	DO(te_capture_begin(a));
	DO(te_fill(a, d, 1, 64));
	if (!is_host)
		fill_natively(d, 2, 32);
	DO(te_fill(a, d + 32, 3, 32));
	DO(te_capture_end(a, &rec));
	if (is_host) {
		DO(rec_rebind(rec, rec_binding(rec, d, 64, 2, 1), d2));
	} else {
		rec_binding(rec, d, 64, 2, 0);
		ck_assert_int_eq(rec_rebind(rec, 0, d2), -EOPNOTSUPP);
		tt_said("node 1 (fill) was not queued through this library");
		te_error_clear();
		DO(rec_rebind(rec, 0, d));
		rec_launch(rec);
		rec_check_untouched(d2, 64, "the memory that was refused");
	}
	te_recording_unref(rec);
}

static void feed(struct te_tensor *t, void *into, int64_t vocab)
{
	size_t n = te_tensor_nbytes(t) / sizeof(int32_t);
	int32_t *tok = malloc(n * sizeof(*tok));

	for (size_t i = 0; i < n; i++)
		tok[i] = (int32_t)tt_rand_int(0, vocab - 1);
	rec_put(into, tok, n * sizeof(*tok));
	free(tok);
}

/* the forward pass of a model, recorded once, with tokens in other memory */
TEST_EACH(bindings, rebinds_the_input_of_a_plan, 2)
{
	static const struct model_shape m = { 48, 32, 2, 16, 4, 4, 2, 0, 0 };
	struct te_seq *seq = model_create(ctx, &m, tt_rand_u64());
	struct te_plan *p = model_plan(seq, &m, _i ? "fp8-current" : "fp32", 0);
	struct te_tensor *x = te_plan_input(p, "x");
	const size_t n = te_tensor_nbytes(x);
	void *tok = rec_device(n);
	float eager[2], replayed[2];
	struct te_binding_info i = TE_BINDING_INFO_INIT;
	struct te_recording *rec;
	int32_t s;

	DO(te_ctx_sync(ctx));
	model_feed(p, &m);
	DO(te_plan_forward(p, a, 0));
	DO(te_stream_sync(a));
	eager[0] = model_loss(p);
	DO(te_capture_begin(a));
	DO(te_plan_forward(p, a, 0));
	DO(te_capture_end(a, &rec));
	s = te_recording_binding(rec, te_tensor_data(x), n, &i);
	ck_assert_int_eq(s, 0);
	ck_assert_int_ge(i.nuses, 1);
	ck_assert_int_eq(i.patchable, 1);
	feed(x, tok, m.vocab);
	DO(rec_rebind(rec, s, tok));
	rec_launch(rec);
	replayed[1] = model_loss(p);
	DO(rec_rebind(rec, s, te_tensor_data(x)));
	rec_launch(rec);
	replayed[0] = model_loss(p);
	/* eagerly, from the plan's own input */
	rec_put(te_tensor_data(x), tok, n);
	DO(te_plan_forward(p, a, 0));
	DO(te_stream_sync(a));
	eager[1] = model_loss(p);
	ck_assert_int_eq(tt_ulps_f32(eager[0], replayed[0]), 0);
	ck_assert_int_eq(tt_ulps_f32(eager[1], replayed[1]), 0);
	ck_assert(eager[0] != eager[1]);
	te_recording_unref(rec);
	tt_drop(p, seq);
}

/* no dependency orders them: memory of a binding that another node or binding uses, one writing */
TEST_EACH(bindings, concurrent_bindings_must_not_overlap_written_memory, 2)
{
	float *x = rec_floats(64), *z = rec_floats(64), *y = rec_floats(64), *sum = rec_floats(64);
	float *other = rec_floats(128), *far = rec_floats(64);
	struct te_recording *rec;
	int32_t sx, sz, sy, all[3];

	DO(te_capture_begin(a));
	DO(te_capture_edges(a, _i ? TE_CAPTURE_CONCURRENT : 0));
	DO(rec_add(a, x, x, y, 64));
	DO(rec_add(a, z, other, sum, 64));
	DO(te_capture_end(a, &rec));
	sx = rec_binding(rec, x, 256, 2, 1);
	sz = rec_binding(rec, z, 256, 1, 1);
	sy = rec_binding(rec, y, 256, 1, 1);
	if (!_i) { /* serial: every memory is accepted */
		DO(rec_rebind(rec, sx, sum));
		DO(rec_rebind(rec, sy, z));
		DO(rec_rebind(rec, sz, y));
		te_recording_unref(rec);
		return;
	}
	/* memory that no node writes may be read by all */
	DO(rec_rebind(rec, sx, other));
	DO(rec_rebind(rec, sz, other + 32));
	rec_launch(rec);
	rec_check_sum(y, other, other, 64, "the sum of what another node reads");
	rec_check_sum(sum, other + 32, other, 64, "the sum of what both read");
	/* memory of a node outside every binding */
	REFUSED(-EINVAL, rec_rebind, rec, sx, sum);
	ck_assert_int_eq(rec_rebind(rec, sx, sum + 32), -EINVAL);
	tt_said("binding 0: 256 bytes at 0x");
	tt_said("(add) uses, and at least one of the two writes it");
	REFUSED(-EINVAL, rec_rebind, rec, sy, other);
	REFUSED(-EINVAL, rec_rebind, rec, sy, other + 60);
	REFUSED(-EINVAL, rec_rebind, rec, sy, other - 60);
	/* another binding, at its present memory */
	ck_assert_int_eq(rec_rebind(rec, sy, other + 92), -EINVAL);
	tt_said("binding 2: 256 bytes at 0x");
	tt_said("overlap binding 1, which node ");
	DO(rec_rebind(rec, sz, z));
	DO(rec_rebind(rec, sy, other + 64));
	REFUSED(-EINVAL, rec_rebind, rec, sz, other + 124);
	/* a binding that was moved no longer uses its captured memory */
	DO(rec_rebind(rec, sz, y));
	REFUSED(-EINVAL, rec_rebind, rec, sy, y);
	rec_launch(rec);
	rec_check_sum(sum, y, other, 64, "the sum of what is free by now");
	/* all at once: the new memory of each counts */
	all[0] = sz;
	all[1] = sy;
	REFUSED(-EINVAL, te_recording_rebind, rec, 2, all, ((void *[]){ far, far + 60 }));
	DO(te_recording_rebind(rec, 2, all, ((void *[]){ far, y })));
	rec_launch(rec);
	rec_check_sum(sum, far, other, 64, "the sum of what is far");
	rec_check_sum(y, other, other, 64, "the sum in captured memory");
	/* and all back to the captured memory */
	all[2] = sx;
	DO(te_recording_rebind(rec, 3, all, ((void *[]){ z, y, x })));
	rec_launch(rec);
	rec_check_sum(y, x, x, 64, "the sum of what was captured");
	rec_check_sum(sum, z, other, 64, "the other sum of what was captured");
	te_recording_unref(rec);
}

/* captured dependencies order accesses to captured memory: returning to it is accepted */
TEST(bindings, concurrent_bindings_may_return_to_captured_memory)
{
	float *x = rec_floats(128), *y = rec_floats(128), *other = rec_floats(64);
	struct te_recording *rec;
	int32_t s, head;

	DO(te_capture_begin(a));
	DO(te_capture_edges(a, TE_CAPTURE_CONCURRENT));
	DO(rec_add(a, other, other, x + 64, 64)); /* a part of what the next one reads */
	DO(rec_add(a, x, x, y, 128));
	DO(te_capture_end(a, &rec));
	s = rec_binding(rec, x + 64, 256, 1, 1);
	DO(rec_rebind(rec, s, rec_floats(64)));
	rec_launch(rec);
	rec_check_sum(y, x, x, 128, "the sum of memory that no node writes");
	DO(rec_rebind(rec, s, x + 64));
	rec_launch(rec);
	rec_check_sum(y, x, x, 128, "the sum of what is written before");
	/* the binding's node also reads memory of the other binding */
	head = rec_binding(rec, x, 256, 2, 1);
	DO(rec_rebind(rec, head, rec_floats(128)));
	DO(rec_rebind(rec, head, x));
	rec_launch(rec);
	rec_check_sum(y, x, x, 128, "the sum of two bindings");
	/* 16 bytes below the captured memory */
	REFUSED(-EINVAL, rec_rebind, rec, s, x + 60);
	/* after an update the edges and bindings of the new capture count: serial here */
	DO(te_capture_begin(a));
	DO(rec_add(a, other, other, x + 64, 64));
	DO(rec_add(a, x, x, y, 128));
	DO(te_capture_update(a, rec, NULL));
	s = rec_binding(rec, x + 64, 256, 1, 1);
	DO(rec_rebind(rec, s, x + 60));
	te_recording_unref(rec);
}

/* random rebinds: those that are accepted give the results of the same nodes in serial order */
TEST(bindings, accepted_rebinds_keep_the_results_of_serial_order)
{
	const size_t n = 256, room = 4 * n, nbytes = room * sizeof(float);
	float *d = rec_floats(room), *was = malloc(nbytes), *want = malloc(nbytes);
	int taken = 0;

	rec_put(was, d, nbytes);
	for (int trial = 0; trial < 60; trial++) {
		struct te_recording *rec[2];
		struct work w[12];

		for (int k = 0; k < (int)TT_LEN(w); k++)
			w[k] = rec_some_work(d, n);
		for (int k = 0; k < 2; k++) {
			DO(te_capture_begin(a));
			DO(te_capture_edges(a, k ? TE_CAPTURE_CONCURRENT : 0));
			rec_queue_work(w, (int)TT_LEN(w));
			DO(te_capture_end(a, &rec[k]));
		}
		for (int k = 0; k < 8; k++) {
			float *from = d + 4 * tt_rand_int(0, (int64_t)n / 4 - 1);
			float *to = d + 4 * tt_rand_int(0, (int64_t)(room - n) / 4);
			const int32_t s = te_recording_binding(rec[1], from, 64, NULL);

			if (s < 0)
				continue;
			ck_assert_int_eq(te_recording_binding(rec[0], from, 64, NULL), s);
			if (rec_rebind(rec[1], s, to))
				continue;
			DO(rec_rebind(rec[0], s, to));
			taken++;
		}
		te_error_clear();
		for (int k = 0; k < 2; k++) {
			rec_put(d, was, nbytes);
			rec_launch(rec[k]);
			if (k)
				rec_check(d, want, nbytes, "what was rebound");
			rec_put(want, d, nbytes);
			te_recording_unref(rec[k]);
		}
	}
	ck_assert_int_gt(taken, 20);
	free(was);
	free(want);
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* eight bindings of a chain of kernels; the goal is 10 us, which shared CPUs may miss */
TEST(bindings, a_rebind_is_cheap)
{
	enum { NBINDINGS = 8 };
	const size_t n = 256;
	float *x[NBINDINGS], *y[NBINDINGS], *out = rec_floats(n);
	struct te_recording *rec;
	double best = 1;
	int32_t s[NBINDINGS];
	void *p[2][NBINDINGS];

	for (int k = 0; k < NBINDINGS; k++) {
		x[k] = rec_floats(n);
		y[k] = rec_floats(n);
		p[0][k] = x[k];
		p[1][k] = y[k];
	}
	DO(te_capture_begin(a));
	for (int k = 0; k < NBINDINGS; k++)
		DO(rec_add(a, x[k], x[k], out, n));
	DO(te_capture_end(a, &rec));
	for (int k = 0; k < NBINDINGS; k++)
		s[k] = rec_binding(rec, x[k], 4 * n, 2, 1);
	for (int k = 0; k < 200; k++) {
		double t = now_s();

		DO(te_recording_rebind(rec, NBINDINGS, s, p[!(k & 1)]));
		t = now_s() - t;
		best = t < best ? t : best;
	}
	ck_assert_msg(is_host || best < 10e-6, "%.1f us", 1e6 * best);
	rec_launch(rec);
	rec_check_sum(out, x[NBINDINGS - 1], x[NBINDINGS - 1], n, "after an even number");
	te_recording_unref(rec);
}
