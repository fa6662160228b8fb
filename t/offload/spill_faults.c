/*
 * t/offload/spill_faults.c - faults of the file tier: I/O that fails or is short, at every block;
 * time-outs.
 */
#include "config.h"

#include <unistd.h>

#include "libtecore/base/private.h"
#include "spill_lib.h"

/* every completion in turn is what a system may return without anything being wrong */

static void change_res(struct shim *h, struct te__blk_done *d, uint64_t n)
{
	if (n == h->k)
		d->res = h->code;
}

static const int32_t harmless[] = { -EAGAIN, -EINTR, -ECANCELED };

CASE(blocks, "host", .setup = fault_setup, .teardown = fault_teardown);

TEST_EACH(blocks, completion_that_may_be_repeated_is, NENGINES * TT_LEN(harmless))
{
	const struct engine *e = &engines[_i % NENGINES];
	const int32_t code = harmless[_i / NENGINES];

	if (!spill_begin(e, 1, 1, NBYTES))
		return;
	shim.on_done = change_res;
	shim.code = code;
	for (uint64_t k = 1; k <= 2 * NBLOCKS; k++) {
		shim.ndones = 0;
		shim.k = k;
		works();
		ck_assert_uint_eq(stats().nretries, k);
		ck_assert_uint_eq(shim.ndones, 2 * NBLOCKS + 1);
	}
	DO(te__spill_error(spill, NULL));
}

/* two thirds of all */
static void storm(struct shim *h, struct te__blk_done *d, uint64_t n)
{
	if (tt_rand_u64() % 3)
		d->res = h->code;
}

TEST_EACH(blocks, storm_is_survived, TT_LEN(harmless))
{
	spill_begin(&engines[2], 1, 1, NBYTES);
	shim.on_done = storm;
	shim.code = harmless[_i];
	for (int i = 0; i < 10; i++)
		works();
}

static void always(struct shim *h, struct te__blk_done *d, uint64_t n)
{
	d->res = h->code;
}

TEST_EACH(blocks, endless_refusal_is_an_error, TT_LEN(harmless))
{
	spill_begin(&engines[3], 1, 1, 100);
	DO(put(0, slot_at(0), 100));
	shim.on_done = always;
	shim.code = harmless[_i];
	ck_assert_int_eq(get(0, slot_at(0), 100), harmless[_i]);
	tt_said("read of group 0, 100 bytes: block 0");
	ck_assert_uint_ge(stats().nretries, 100);
	ck_assert_uint_le(stats().nretries, 110);
	/* and a transfer of 0 bytes again and again */
	shim.code = 0;
	ck_assert_int_eq(put(0, slot_at(0), 100), -EIO);
}

/* short transfers: the engine moves a part, of any length */

static int32_t shorten(struct shim *h, struct te__blk *b, uint64_t n)
{
	if (b->nbytes > h->k && tt_rand_u64() & 1)
		b->nbytes = (size_t)tt_rand_int(1, (int64_t)(b->nbytes / h->k)) * h->k;
	return SHIM_PASS;
}

TEST_EACH(blocks, short_transfers_are_continued, NENGINES)
{
	const struct engine *e = &engines[_i];

	spill_opts.depth = 3;
	if (!spill_begin(e, 1, 1, NBYTES))
		return;
	shim.on_submit = shorten;
	/* what direct I/O can transfer; memory: any number, which only that engine continues at */
	shim.k = e->engine == TE__SPILL_MEMORY ? 1 : 4096;
	for (int i = 0; i < 20; i++)
		works();
	ck_assert_uint_gt(stats().nshort, 0);
	DO(te__spill_error(spill, NULL));
}

/* a count that is not a multiple of the alignment: the partial unit is transferred again */
static void odd_count(struct shim *h, struct te__blk_done *d, uint64_t n)
{
	if (n == h->k && d->res > 5000)
		d->res = 4096 + (int32_t)tt_rand_int(1, 100);
}

/* tmpfs would take any offset */
static int32_t check_alignment(struct shim *h, struct te__blk *b, uint64_t n)
{
	h->bad |= (b->offset | b->nbytes | (uintptr_t)b->mem) % h->align != 0;
	return SHIM_PASS;
}

TEST_EACH(blocks, short_transfers_are_continued_at_an_aligned_byte, NENGINES - 1)
{
	if (!spill_begin(&engines[_i], 1, 1, NBYTES))
		return;
	shim.on_done = odd_count;
	shim.on_submit = check_alignment;
	shim.align = stats().align;
	for (uint64_t k = 1; k <= 2 * NBLOCKS; k++) {
		shim.ndones = 0;
		shim.k = k;
		works();
	}
	/* the tails of 777 bytes are too short */
	ck_assert_uint_gt(stats().nshort, 0);
	ck_assert_int_eq(shim.bad, 0);
	DO(te__spill_error(spill, NULL));
}

TEST(blocks, end_of_file_is_an_error_of_the_read)
{
	spill_begin(&engines[2], 1, 1, NBYTES);
	fresh();
	DO(put(0, slot_at(0), NBYTES));
	shim.on_done = change_res;
	shim.code = 0;
	shim.k = 3;
	ck_assert_int_eq(get(0, slot_at(0), NBYTES), -EIO);
	for (size_t i = 0; i < NBYTES; i++)
		ck_assert_uint_eq(*slot_at(i), 0xff);
}

/* errors at every block: the code, the group and the block are named, all waits end, and the next
 * request works */

static int32_t fail_kth(struct shim *h, struct te__blk *b, uint64_t n)
{
	return n == h->k && b->dir == h->dir ? h->code : SHIM_PASS;
}

static const struct {
	enum te__spill_dir dir;
	int32_t code;
} hard[] = {
	{ TE__SPILL_WRITE, -ENOSPC }, { TE__SPILL_WRITE, -EDQUOT }, { TE__SPILL_WRITE, -EFBIG },
	{ TE__SPILL_WRITE, -EIO },    { TE__SPILL_READ, -EIO },	    { TE__SPILL_READ, -EINVAL },
};

TEST_EACH(blocks, error_of_each_block_is_named, TT_LEN(hard))
{
	const enum te__spill_dir dir = hard[_i].dir;
	const int32_t code = hard[_i].code;
	_Atomic uint32_t *done = te__pinned_word(arena, 0);
	struct te__spill_error err;
	char text[64];

	use_engine(&engines[2], 1);
	/* no room to move a block to */
	spill_opts.quota_nbytes = 2 * ((NBYTES + 4095) / 4096 * 4096);
	spill_opts.depth = 2;
	spill_new();
	DO(te__spill_reserve(spill, 0, NBYTES));
	DO(te__spill_reserve(spill, 7, NBYTES));
	shim.on_submit = fail_kth;
	shim.code = code;
	shim.dir = dir;
	for (uint64_t k = 1; k <= NBLOCKS; k++) {
		int r;

		fresh();
		shim.k = dir == TE__SPILL_WRITE ? k : NBLOCKS + k;
		shim.nsubmits = 0;
		DO(te__spill_write(spill, 7, slot_at(0), NBYTES, done, (uint32_t)k));
		r = te__spill_wait(spill, TE__SPILL_WRITE, 7, -1);
		ck_assert_uint_eq(atomic_load(done), k);
		if (dir == TE__SPILL_WRITE) {
			ck_assert_int_eq(r, code);
			snprintf(text, sizeof(text), "group 7, %zu bytes: block %d", NBYTES,
				 (int)k - 1);
			tt_said(text);
			/* the group is lost, which its reads say; others are not affected */
			fails(te__spill_read(spill, 7, slot_at(MIB), NBYTES, NULL, 0), code, text);
			works();
			te__spill_clear(spill);
			fails(te__spill_read(spill, 7, slot_at(MIB), NBYTES, NULL, 0), -TE_ESTATE,
			      "group 7 has not been written");
			continue;
		}
		ck_assert_int_eq(r, 0);
		ck_assert_int_eq(get(7, slot_at(MIB), NBYTES), code);
		for (size_t i = 0; i < NBYTES; i++)
			ck_assert_uint_eq(*slot_at(MIB + i), 0xff);
		ck_assert_int_eq(te__spill_error(spill, &err), code);
		ck_assert_uint_eq(err.group, 7);
		ck_assert_uint_eq(err.block, k - 1);
		ck_assert_uint_eq(err.offset, (NBYTES + 4095) / 4096 * 4096 + (k - 1) * 64 * KIB);
		te__spill_clear(spill);
		DO(get(7, slot_at(MIB), NBYTES));
		ck_assert(!memcmp(slot_at(0), slot_at(MIB), NBYTES));
	}
	ck_assert_uint_eq(stats().nerrors, NBLOCKS);
}

TEST_EACH(blocks, block_that_cannot_be_written_moves, NENGINES)
{
	const struct engine *e = &engines[_i];

	if (!spill_begin(e, 1, 1, NBYTES))
		return;
	shim.on_submit = fail_kth;
	shim.code = -EIO;
	for (uint64_t k = 1; k <= NBLOCKS; k++) {
		shim.nsubmits = 0;
		shim.k = k;
		works();
		ck_assert_uint_eq(stats().nmoved, k);
		ck_assert_uint_eq(shim.nsubmits, 2 * NBLOCKS + 1);
	}
	DO(te__spill_error(spill, NULL));
	/* twice in a row it is an error */
	shim.on_submit = NULL;
	shim.on_done = always;
	ck_assert_int_eq(put(0, slot_at(0), NBYTES), -EIO);
}

/*
 * a read that is asked for while its write is in flight, and which the I/O thread looks at after
 * that has failed: at the completion of the block, a hook of the thread asks for it
 */
static void fail_then_read(struct shim *h, struct te__blk_done *d, uint64_t n)
{
	if (n != h->k)
		return;
	d->res = h->code;
	h->bad = te__spill_read(spill, 0, slot_at(MIB), NBYTES, te__pinned_word(arena, 9), 5);
}

TEST(blocks, read_of_a_write_that_fails_fails_too)
{
	_Atomic uint32_t *done = te__pinned_word(arena, 9);
	struct te__spill_error err;

	spill_opts.depth = 1; /* the last block fails: nothing of the group is in flight then */
	spill_begin(&engines[2], 1, 1, NBYTES);
	/* what the file has of the step before is not given in its place */
	works();
	ck_assert(!memcmp(slot_at(0), slot_at(MIB), NBYTES));
	fresh();
	shim.on_done = fail_then_read;
	shim.code = -ENOSPC;
	shim.k = NBLOCKS;
	DO(te__spill_write(spill, 0, slot_at(0), NBYTES, NULL, 0));
	ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_WRITE, 0, -1), -ENOSPC);
	ck_assert_int_eq(shim.bad, 0);
	ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_READ, 0, -1), -ENOSPC);
	ck_assert_uint_eq(atomic_load(done), 5);
	for (size_t i = 0; i < NBYTES; i++)
		ck_assert_uint_eq(*slot_at(MIB + i), 0xff);
	ck_assert_int_eq(te__spill_error(spill, &err), -ENOSPC);
	ck_assert_int_eq(err.dir, TE__SPILL_WRITE);
	ck_assert_uint_eq(stats().nerrors, 2);
	/* and so does one after it, until the group is written again */
	fails(te__spill_read(spill, 0, slot_at(MIB), NBYTES, NULL, 0), -ENOSPC, "group 0");
	shim.on_done = NULL;
	works();
}

/* time-outs: a block that never completes */

static int32_t drop_kth(struct shim *h, struct te__blk *b, uint64_t n)
{
	return n == h->k ? SHIM_DROP : SHIM_PASS;
}

TEST_EACH(blocks, block_that_never_completes_times_out, 2)
{
	_Atomic uint32_t *done = te__pinned_word(arena, 0);

	use_engine(&engines[2], 1);
	if (_i)
		setenv("TE_OFFLOAD_TIMEOUT_MS", "1000", 1);
	else
		spill_opts.timeout_ms = TT_SLOWER(250);
	spill_new();
	DO(te__spill_reserve(spill, 0, NBYTES));
	DO(te__spill_reserve(spill, 1, NBYTES));
	fresh();
	DO(put(0, slot_at(0), NBYTES));
	shim.on_submit = drop_kth;
	shim.nsubmits = 0;
	shim.k = 2;
	tt_poison(slot_at(MIB), NBYTES);
	DO(te__spill_read(spill, 0, slot_at(MIB), NBYTES, done, 3));
	ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_READ, 0, -1), -ETIMEDOUT);
	tt_said("read of group 0");
	tt_said("block 1");
	ck_assert_uint_eq(atomic_load(done), 3);
	for (size_t i = 0; i < NBYTES; i++)
		ck_assert_uint_eq(*slot_at(MIB + i), 0xff);
	/* its block may still arrive: the group cannot be used, the others can */
	fails(te__spill_write(spill, 0, slot_at(0), NBYTES, NULL, 0), -EBUSY,
	      "1 blocks that timed out are still in flight");
	DO(put(1, slot_at(0), NBYTES));
	DO(get(1, slot_at(2 * MIB), NBYTES));
	ck_assert(!memcmp(slot_at(0), slot_at(2 * MIB), NBYTES));
}

static int32_t drop_all(struct shim *h, struct te__blk *b, uint64_t n)
{
	return SHIM_DROP;
}

/* requests that wait for a place among the blocks in flight are released too */
TEST_EACH(blocks, dead_drive_releases_every_request, NENGINES)
{
	_Atomic uint32_t *done = te__pinned_word(arena, 0);

	spill_opts.timeout_ms = TT_SLOWER(250);
	spill_opts.depth = 2;
	if (!spill_begin(&engines[_i], 1, 8, NBYTES))
		return;
	shim.on_submit = drop_all;
	for (uint32_t g = 0; g < 8; g++)
		DO(te__spill_write(spill, g, slot_at(0), NBYTES, te__pinned_word(arena, g), 1));
	for (uint32_t g = 0; g < 8; g++) {
		ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_WRITE, g, -1), -ETIMEDOUT);
		ck_assert_uint_eq(atomic_load(te__pinned_word(arena, g)), 1);
	}
	ck_assert_uint_eq(atomic_load(done), 1);
	ck_assert_int_eq(te__spill_error(spill, NULL), -ETIMEDOUT);
}

/* later requests do not wait for the drive too, until it goes on */
TEST_EACH(blocks, stopped_drive_fails_at_once_until_it_goes_on, NENGINES)
{
	const int64_t limit = (int64_t)te__now_ns() + 60 * INT64_C(1000000000);
	uint64_t n;
	int r;

	spill_opts.timeout_ms = TT_SLOWER(250);
	spill_opts.depth = NBLOCKS + 2; /* there is a place for a second request */
	if (!spill_begin(&engines[_i], 1, 8, NBYTES))
		return;
	works();
	atomic_store(&shim.gate, 1);
	ck_assert_int_eq(put(1, slot_at(0), NBYTES), -ETIMEDOUT);
	n = stats().nblocks[TE__SPILL_WRITE];
	for (uint32_t g = 2; g < 8; g++) {
		DO(te__spill_write(spill, g, slot_at(0), NBYTES, te__pinned_word(arena, g), 1));
		ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_WRITE, g, -1), -ETIMEDOUT);
		tt_said("block 0, at byte");
		ck_assert_uint_eq(atomic_load(te__pinned_word(arena, g)), 1);
	}
	ck_assert_uint_eq(stats().nblocks[TE__SPILL_WRITE], n);
	fresh();
	atomic_store(&shim.gate, 0);
	do
		r = put(2, slot_at(0), NBYTES);
	while (r == -ETIMEDOUT && (int64_t)te__now_ns() < limit);
	ck_assert_int_eq(r, 0);
	DO(get(2, slot_at(MIB), NBYTES));
	ck_assert(!memcmp(slot_at(MIB), slot_at(0), NBYTES));
}

/* reads go on while writes have stopped */
static int32_t drop_writes(struct shim *h, struct te__blk *b, uint64_t n)
{
	return b->dir == TE__SPILL_WRITE ? SHIM_DROP : SHIM_PASS;
}

TEST(blocks, stopped_writes_do_not_stop_reads)
{
	uint8_t *want;

	spill_opts.timeout_ms = TT_SLOWER(250);
	spill_begin(&engines[3], 1, 2, NBYTES);
	want = fresh();
	DO(put(0, slot_at(0), NBYTES));
	shim.on_submit = drop_writes;
	ck_assert_int_eq(put(1, slot_at(0), NBYTES), -ETIMEDOUT);
	DO(get(0, slot_at(MIB), NBYTES));
	ck_assert(!memcmp(slot_at(MIB), want, NBYTES));
}

/* an engine that ends its work: later requests fail at once, words are released */
static int32_t corrupt_tag(struct shim *h, struct te__blk *b, uint64_t n)
{
	b->tag = 999;
	h->ready[h->nready++] = (struct te__blk_done){ 999, 0 };
	return SHIM_DROP;
}

TEST(blocks, broken_engine_releases_every_request)
{
	_Atomic uint32_t *start = te__pinned_word(arena, 0), *done = te__pinned_word(arena, 1);

	spill_begin(&engines[3], 1, 2, NBYTES);
	DO(te__spill_bind(spill, TE__SPILL_WRITE, 1, slot_at(0), NBYTES, start, done));
	te__spill_arm(spill, 1);
	shim.on_submit = corrupt_tag;
	ck_assert_int_eq(put(0, slot_at(0), NBYTES), -EIO);
	fails(te__spill_write(spill, 0, slot_at(0), NBYTES, NULL, 0), -EIO,
	      "the I/O thread has ended its work");
	atomic_store(start, 1);
	while (!atomic_load(done))
		usleep(100);
	ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_WRITE, 1, 0), -EIO);
}

static void await_word(_Atomic uint32_t *word)
{
	while (!atomic_load_explicit(word, memory_order_acquire))
		usleep(100);
}

/* memory is poisoned while a transfer may still write to it, after all waits have ended */
CASE(hanging, "host overlap", .setup = fault_setup, .teardown = fault_teardown);

TEST_EACH(hanging, io_thread_that_hangs_releases_every_request, 2)
{
	const int64_t live = te__alloc_live();
	_Atomic uint32_t *word[4];

	use_engine(&engines[2 + _i], 1);
	spill_opts.timeout_ms = TT_SLOWER(250);
	spill_new();
	for (uint32_t i = 0; i < 4; i++)
		word[i] = te__pinned_word(arena, i);
	for (uint32_t g = 0; g < 3; g++)
		DO(te__spill_reserve(spill, g, NBYTES));
	DO(te__spill_bind(spill, TE__SPILL_READ, 1, slot_at(MIB), NBYTES, word[0], word[1]));
	te__spill_arm(spill, 1);
	DO(put(0, slot_at(0), NBYTES));
	DO(put(1, slot_at(0), NBYTES));
	atomic_store(&shim.stuck, 1);
	DO(te__spill_write(spill, 0, slot_at(0), NBYTES, word[2], 7));
	DO(te__spill_read(spill, 1, slot_at(2 * MIB), NBYTES, word[3], 8));
	await_word(word[2]);
	await_word(word[3]);
	ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_WRITE, 0, -1), -ETIMEDOUT);
	ck_assert_int_eq(te__spill_wait(spill, TE__SPILL_READ, 1, -1), -ETIMEDOUT);
	for (size_t i = 0; i < NBYTES; i++)
		ck_assert_uint_eq(slot_at(2 * MIB)[i], 0xff);
	/* and words go on being answered */
	atomic_store(word[0], 1);
	await_word(word[1]);
	ck_assert_uint_eq(slot_at(MIB)[NBYTES - 1], 0xff);
	fails(te__spill_write(spill, 2, slot_at(0), NBYTES, NULL, 0), -ETIMEDOUT, "has ended");
	fails(te__spill_error(spill, NULL), -ETIMEDOUT, "of group");
	if (_i) { /* destroyed before the thread is back */
		spill = te__spill_destroy(spill);
		ck_assert_int_gt(te__alloc_live(), live);
	}
	atomic_store(&shim.stuck, 0);
	while (_i && te__alloc_live() != live)
		usleep(100);
}

TEST_EACH(blocks, words_wait_for_calls_and_refuse_what_was_not_awaited, NENGINES)
{
	_Atomic uint32_t *start = te__pinned_word(arena, 0), *done = te__pinned_word(arena, 1);

	if (!spill_begin(&engines[_i], 1, 1, NBYTES))
		return;
	DO(te__spill_bind(spill, TE__SPILL_WRITE, 0, slot_at(MIB), NBYTES, start, done));
	te__spill_arm(spill, 1);
	tt_fill_bytes(slot_at(MIB), NBYTES);
	/* the call runs: the word is not looked at before its end */
	atomic_store(&shim.gate, 1);
	DO(te__spill_write(spill, 0, slot_at(0), NBYTES, NULL, 0));
	atomic_store_explicit(start, 1, memory_order_release);
	for (int i = 0; i < 3; i++) {
		te__spill_kick(spill);
		usleep(500);
		ck_assert_uint_eq(atomic_load(start), 1);
	}
	atomic_store(&shim.gate, 0);
	te__spill_kick(spill);
	await_word(done);
	DO(te__spill_error(spill, NULL));
	DO(get(0, slot_at(2 * MIB), NBYTES));
	ck_assert_mem_eq(slot_at(2 * MIB), slot_at(MIB), NBYTES);
	/* its end was not taken: what is in the file is not what was asked for */
	atomic_store_explicit(start, 1, memory_order_release);
	while (atomic_load(start) || !te__spill_error(spill, NULL))
		usleep(100);
	fails(te__spill_read(spill, 0, slot_at(2 * MIB), NBYTES, NULL, 0), -TE_ESTATE,
	      "write of group 0");
	te__spill_clear(spill);
	te__spill_refuse(spill, TE__SPILL_WRITE, 0, -EBUSY);
	fails(te__spill_read(spill, 0, slot_at(0), NBYTES, NULL, 0), -EBUSY, "write of group 0");
	ck_assert_int_eq(te__spill_error(spill, NULL), -EBUSY);
}

TEST_EACH(blocks, destruction_releases_what_is_not_complete, NENGINES)
{
	const struct engine *e = &engines[_i];
	int ncanceled = 0;

	if (lacks_uring(e))
		return;
	use_engine(e, 0);
	spill_opts.depth = 1;
	spill_new();
	for (uint32_t g = 0; g < 8; g++) {
		DO(te__spill_reserve(spill, g, NBYTES));
		atomic_store(te__pinned_word(arena, g), 0);
	}
	for (uint32_t g = 0; g < 8; g++)
		DO(te__spill_write(spill, g, slot_at(0), NBYTES, te__pinned_word(arena, g), 1));
	spill = te__spill_destroy(spill);
	for (uint32_t g = 0; g < 8; g++)
		ncanceled += atomic_load(te__pinned_word(arena, g)) != 1;
	ck_assert_int_eq(ncanceled, 0);
}

TT_MAIN("offload/spill_faults", TT_NEED_NOTHING)
