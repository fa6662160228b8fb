/* t/backend/backend_work.c - copies, fills, kernels and host calls. */
#include "config.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include <te/dtype.h>
#include <te/errno.h>

#include "backend_lib.h"
#include "tt_ctx.h"
#include "tt_gate.h"

BK_CASE(work);

TEST_EACH(work, copies_between_all_kinds_of_memory, NPLACES * NPLACES)
{
	const enum place to = _i / NPLACES, from = _i % NPLACES;
	const size_t max = 5000;
	unsigned char *dst = bk_get(to, max), *src = bk_get(from, max);
	unsigned char *want = bk_get(PAGEABLE, max), *data = bk_get(PAGEABLE, max);

	tt_fill_bytes(data, max);
	bk_move(src, data, max);
	for (int i = 0; i < 25; i++) {
		size_t n = i ? (size_t)tt_rand_int(1, i % 3 ? 70 : 4000) : 1;
		size_t x = (size_t)tt_rand_int(0, (int64_t)(max - n));
		size_t y = (size_t)tt_rand_int(0, (int64_t)(max - n));

		bk_poison(dst, max);
		tt_poison(want, max);
		memcpy(want + y, data + x, n);
		DO(ops->copy(a, dst + y, src + x, n));
		bk_check(dst, want, max, "a copy");
	}
	bk_check(src, data, max, "the source");
}

TEST(work, copies_megabytes)
{
	const size_t n = (3 << 20) + 7;
	unsigned char *p = bk_get(DEVICE, n), *q = bk_get(DEVICE, n), *data = bk_get(PAGEABLE, n);

	tt_fill_bytes(data, n);
	bk_move(p, data, n);
	DO(ops->copy(a, q + 1, p + 3, n - 3));
	bk_check(q + 1, data + 3, n - 3, "a copy");
}

/* that none is not even a node: see counts_nodes_of_every_kind */
TEST(work, no_bytes_are_no_work)
{
	unsigned char *d = bk_get(DEVICE, 8);

	bk_poison(d, 8);
	DO(ops->copy(a, d, d + 1, 0));
	DO(ops->fill8(a, d, 1, 0));
	DO(ops->fill32(a, d, 1, 0));
	DO(ops->copy(a, NULL, NULL, 0));
	DO(ops->fill8(a, NULL, 1, 0));
	DO(ops->stream_sync(a));
	bk_check_filled(d, 0xa5, 8, "untouched memory"); /* what tt_poison() writes */
}

TEST(work, fills_bytes_and_no_more)
{
	const size_t max = 3 * PAD + 70000;
	unsigned char *d = bk_get(DEVICE, max), *want = bk_get(PAGEABLE, max);

	for (int i = 0; i < 40; i++) {
		size_t n = (size_t)(i < 20 ? i + 1 : tt_rand_int(1, 70000));
		size_t at = PAD + (size_t)tt_rand_int(0, 17);
		uint8_t v = (uint8_t)tt_rand_u64();

		bk_poison(d, max);
		tt_poison(want, max);
		memset(want + at, v, n);
		DO(ops->fill8(a, d + at, v, n));
		bk_check(d, want, max, "fill8");
	}
}

TEST(work, fills_words_and_no_more)
{
	const size_t max = 3 * PAD + 4 * 20000;
	unsigned char *d = bk_get(DEVICE, max), *want = bk_get(PAGEABLE, max);

	for (int i = 0; i < 40; i++) {
		size_t n = (size_t)(i < 20 ? i + 1 : tt_rand_int(1, 20000));
		size_t at = PAD + 4 * (size_t)tt_rand_int(0, 7);
		uint32_t v = (uint32_t)tt_rand_u64();

		bk_poison(d, max);
		tt_poison(want, max);
		for (size_t k = 0; k < n; k++)
			memcpy(want + at + 4 * k, &v, 4);
		DO(ops->fill32(a, d + at, v, n));
		bk_check(d, want, max, "fill32");
	}
}

TEST(work, a_host_call_gets_a_copy)
{
	int got[3] = { 0 };

	bk_hold_up(a);
	for (int i = 0; i < 3; i++)
		DO(bk_note(a, &got[i], 70 + i)); /* its own copy is gone */
	tt_gate_open();
	DO(ops->stream_sync(a));
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(got[i], 70 + i);
}

TEST(work, a_host_call_without_bytes_gets_the_pointer)
{
	int count = 5;

	for (int i = 0; i < 4; i++)
		DO(ops->host_call(a, bk_increment, &count, 0));
	DO(ops->stream_sync(a));
	ck_assert_int_eq(count, 9);
}

/* a page of words that the device reaches at seen[0] */
static _Atomic uint32_t *words_get(uint32_t **ret_seen)
{
	const size_t n = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *seen;

	ck_assert_ptr_ne(page, MAP_FAILED);
	DO(ops->page_register(dev, page, n, &seen));
	*ret_seen = seen;
	return page;
}

static void words_put(_Atomic uint32_t *page)
{
	ops->page_unregister(dev, (void *)page);
	munmap((void *)page, (size_t)sysconf(_SC_PAGESIZE));
}

/* until the word has the value; a test that hangs is ended by its time limit */
static void await_word(_Atomic uint32_t *word, uint32_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) != value)
		sched_yield();
}

/*
 * The stream hands bytes to the CPU and the CPU hands them back changed, by two words, eagerly or
 * as a graph that is launched several times.
 */
static void queue_exchange(void *dst, void *src, void *pinned, size_t n, uint32_t *seen)
{
	DO(ops->copy(a, pinned, src, n));
	DO(ops->word_set(a, seen, 1));
	DO(ops->word_take(a, seen + 16));
	DO(ops->copy(a, dst, pinned, n));
}

TEST_EACH(work, words_hand_memory_over, 2)
{
	const size_t n = 1000;
	unsigned char *src = bk_get(DEVICE, n), *dst = bk_get(DEVICE, n);
	unsigned char *pinned = bk_get(PINNED, n), *want = bk_get(PAGEABLE, n);
	void *graph = NULL, *exec = NULL;
	_Atomic uint32_t *word;
	uint32_t *seen;

	word = words_get(&seen);
	if (_i) {
		DO(ops->capture_begin(a));
		queue_exchange(dst, src, pinned, n, seen);
		DO(ops->capture_end(a, &graph));
		DO(ops->graph_instantiate(graph, &exec));
	}
	for (int k = 0; k < 3; k++) {
		tt_fill_bytes(want, n);
		bk_move(src, want, n);
		bk_poison(dst, n);
		if (_i)
			DO(ops->graph_launch(exec, a));
		else
			queue_exchange(dst, src, pinned, n, seen);
		await_word(word, 1);
		atomic_store(word, 0);
		ck_assert_int_eq(ops->stream_query(a), 0);
		ck_assert_mem_eq(pinned, want, n);
		for (size_t i = 0; i < n; i++)
			pinned[i] = want[i] ^= 0x5a;
		atomic_store_explicit(word + 16, 2, memory_order_release);
		DO(ops->stream_sync(a));
		ck_assert_uint_eq(word[16], 0);
		bk_check(dst, want, n, "what the CPU handed over");
	}
	if (exec)
		ops->exec_destroy(exec);
	words_put(word);
}

TEST(work, a_launch_runs_the_kernel)
{
	const int64_t n = tt_rand_int(1000, 5000);
	float *x = bk_get(DEVICE, (size_t)n * 4), *h = bk_get(PINNED, (size_t)n * 4);
	uint16_t *y = bk_get(DEVICE, (size_t)n * 2 + PAD),
		 *want = bk_get(PAGEABLE, (size_t)n * 2 + PAD);

	tt_fill_normal(h, (size_t)n, 3.0f);
	bk_poison(y, (size_t)n * 2 + PAD);
	tt_poison(want, (size_t)n * 2 + PAD);
	for (int64_t i = 0; i < n; i++)
		want[i] = te_bf16_encode(h[i]);
	bk_hold_up(a);
	DO(ops->copy(a, x, h, (size_t)n * 4));
	DO(bk_cast(a, x, y, n));
	tt_gate_open();
	bk_check(y, want, (size_t)n * 2 + PAD, "the cast");
}

struct look {
	const uint16_t *at;
	int *ret;
	uint16_t want;
};

static void look(void *arg)
{
	const struct look *l = arg;

	*l->ret = *l->at == l->want;
}

/* kernel, copy, host call, kernel, copy, host call: each sees what was before it */
TEST(work, host_calls_run_between_kernels)
{
	float *x = bk_get(DEVICE, 4), *h = bk_get(PINNED, 8);
	uint16_t *y = bk_get(DEVICE, 2), *out = bk_get(PINNED, 2);
	int seen[2] = { -1, -1 };

	h[0] = 1.5f;
	h[1] = -2.25f;
	for (int i = 0; i < 2; i++) {
		struct look l = { out, &seen[i], te_bf16_encode(h[i]) };

		DO(ops->copy(a, x, &h[i], 4));
		DO(bk_cast(a, x, y, 1));
		DO(ops->copy(a, out, y, 2));
		DO(ops->host_call(a, look, &l, sizeof(l)));
	}
	DO(ops->stream_sync(a));
	ck_assert_int_eq(seen[0], 1);
	ck_assert_int_eq(seen[1], 1);
}

TEST(work, a_kernel_that_is_not_there_is_refused)
{
	struct te_k_clear k = { 0 };
	struct te__launch l = { TE_K_COUNT, &k, sizeof(k) };

	fails(ops->launch(a, &l), -TE_EKERNEL, "");
	l.id = (enum te_k_id)(TE_K_COUNT + 1000);
	fails(ops->launch(a, &l), -TE_EKERNEL, "");
	DO(ops->stream_sync(a));
}

/*
 * te__k_fail() sets the error of the host worker that runs the call. On CUDA the driver runs
 * the call on its own thread and offers no way to fail a stream from it, so there the
 * call has no effect, as its comment in backend.h states, and later work runs.
 */
TEST(work, a_host_call_can_fail_its_stream)
{
	unsigned char *d = bk_get(DEVICE, 2);
	void *before, *after, *p = &before;

	DO(ops->fill8(a, d, 7, 2));
	DO(ops->event_create(dev, &before));
	DO(ops->event_create(dev, &after));
	DO(ops->event_record(before, a));
	bk_hold_up(a);
	DO(ops->host_call(a, bk_fail_full, NULL, 0));
	DO(ops->fill8(a, d, 8, 1));
	DO(ops->event_record(after, a));
	DO(ops->event_wait(after, b));
	tt_gate_open();
	if (!is_host) {
		DO(ops->stream_sync(a));
		DO(ops->stream_sync(b));
		bk_check_filled(d, 8, 1, "work after the call");
		goto done;
	}
	ck_assert_int_eq(ops->stream_sync(a), -ENOSPC);
	tt_said("the disk of rank 3 is full");
	tt_said("stream");
	/* for good, at every call that queues or asks; not the destructors */
	fails(ops->stream_query(a), -ENOSPC, "");
	fails(ops->fill8(a, d, 9, 1), -ENOSPC, "");
	fails(ops->copy(a, d, d + 1, 1), -ENOSPC, "");
	fails(ops->host_call(a, bk_increment, NULL, 0), -ENOSPC, "");
	fails(ops->event_record(before, a), -ENOSPC, "");
	fails(ops->capture_begin(a), -ENOSPC, "");
	fails(ops->mem_alloc(a, 1, &p), -ENOSPC, "");
	ck_assert_ptr_eq(p, &before);
	/* events know on which side of the failure they are */
	DO(ops->event_sync(before));
	ck_assert_int_eq(ops->event_query(before), 1);
	fails(ops->event_sync(after), -ENOSPC, "");
	fails(ops->event_query(after), -ENOSPC, "");
	/* a stream that waited for the failed one fails too, with the same message */
	ck_assert_int_eq(ops->stream_sync(b), -ENOSPC);
	tt_said("the disk of rank 3 is full");
	/* work queued after the call did not run, work before it did */
	ck_assert_int_eq(d[0], 7);
done:
	ops->event_destroy(before);
	ops->event_destroy(after);
}
