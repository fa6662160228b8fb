/*
 * t/offload/spill.c - the file tier: what is written comes back, by every engine; words, states,
 * forwarding, checksums; nothing is allocated after the start.
 */
#include "config.h"

#include <dirent.h>
#include <pthread.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "libtecore/base/private.h"
#include "spill_lib.h"

/* every engine x depth x block size: groups of sizes with all kinds of tails, all at once */

static const struct {
	uint32_t depth;
	size_t block;
} shapes[] = {
	{ 1, 4 * KIB }, { 8, 4 * KIB }, { 64, 4 * KIB }, { 1, 64 * KIB }, { 8, 64 * KIB },
	{ 64, 64 * KIB }, { 1, MIB }, { 8, MIB }, { 256, MIB }, { 2, 4 * MIB }, { 8, 16 * MIB },
};

CASE(data, "host", .setup = spill_setup, .teardown = spill_teardown);
CASE(disk, "host", .setup = spill_setup_disk, .teardown = spill_teardown);

TEST_EACH(data, what_is_written_comes_back, NENGINES * (int)TT_LEN(shapes), .parts = 3)
{
	const struct engine *e = &engines[_i % NENGINES];
	const size_t block = shapes[_i / NENGINES].block;
	const size_t most = block < MIB ? 24 * block : 2 * block;
	const size_t nbytes[] = { 1, block + 1, 4097, block, block - 1, most, most + 4095,
				  (size_t)tt_rand_int(1, (int64_t)most) };
	const uint32_t n = block < 4 * MIB ? TT_LEN(nbytes) : 3;
	size_t at[TT_LEN(nbytes) + 1] = { 0 }, all;
	uint8_t *want;

	if (lacks_uring(e))
		return;
	for (size_t g = 0; g < n; g++)
		at[g + 1] = at[g] + (nbytes[g] + 4095) / 4096 * 4096;
	all = at[n];
	arena_new(all);
	want = malloc(all);
	spill_opts.quota_nbytes = all;
	spill_opts.depth = shapes[_i / NENGINES].depth;
	spill_opts.block_nbytes = block;
	use_engine(e, 0);
	spill_new();
	for (uint32_t g = 0; g < n; g++)
		DO(te__spill_reserve(spill, g, nbytes[g]));
	/* the second time, extents are used again */
	for (int step = 0; step < 2; step++) {
		tt_fill_bytes(slot_at(0), all);
		memcpy(want, slot_at(0), all);
		for (uint32_t g = 0; g < n; g++)
			DO(te__spill_write(spill, g, slot_at(at[g]), nbytes[g], NULL, 0));
		for (uint32_t g = 0; g < n; g++)
			DO(te__spill_wait(spill, TE__SPILL_WRITE, g, -1));
		tt_poison(slot_at(0), all);
		for (uint32_t g = n; g-- > 0;)
			DO(te__spill_read(spill, g, slot_at(at[g]), nbytes[g], NULL, 0));
		for (uint32_t g = 0; g < n; g++)
			DO(te__spill_wait(spill, TE__SPILL_READ, g, -1));
		for (size_t g = 0; g < n; g++)
			ck_assert_msg(!memcmp(slot_at(at[g]), want + at[g], nbytes[g]),
				      "%s: group %zu of %zu bytes", e->name, g, nbytes[g]);
	}
	ck_assert_uint_eq(stats().nbytes[TE__SPILL_WRITE], stats().nbytes[TE__SPILL_READ]);
	ck_assert_uint_eq(stats().nforwarded, 0);
	ck_assert_uint_eq(stats().used_nbytes, all);
	if (e->plain)
		ck_assert_int_eq(stats().fixed, 0);
	free(want);
}

/* the 5th shape; what_is_written_comes_back has it on tmpfs */
TEST_ALSO(disk, what_is_written_comes_back, 5 * NENGINES - 1, .from = 4 * NENGINES);

/* words */

/* until the word has the value; the test fails by its own time limit */
static void await(_Atomic uint32_t *word, uint32_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) != value)
		usleep(20);
}

TEST_EACH(data, completion_writes_a_word, NENGINES)
{
	const struct engine *e = &engines[_i];
	_Atomic uint32_t *done = te__pinned_word(arena, 3);
	uint8_t want[5000];

	if (!spill_begin(e, 0, 1, sizeof(want)))
		return;
	for (uint32_t step = 1; step <= 20; step++) {
		tt_fill_bytes(want, sizeof(want));
		memcpy(slot_at(0), want, sizeof(want));
		DO(te__spill_write(spill, 0, slot_at(0), sizeof(want), done, 2 * step));
		await(done, 2 * step);
		DO(te__spill_wait(spill, TE__SPILL_WRITE, 0, 0));
		tt_poison(slot_at(MIB), sizeof(want));
		DO(te__spill_read(spill, 0, slot_at(MIB), sizeof(want), done, 2 * step + 1));
		await(done, 2 * step + 1);
		ck_assert(!memcmp(slot_at(MIB), want, sizeof(want)));
	}
}

/* this thread sets words as streams do, in several replays, and resets them as a graph does */
TEST_EACH(data, bound_requests_run_when_their_word_is_set, NENGINES)
{
	enum { N = 4, STEPS = TT_FEWER(40) };
	const struct engine *e = &engines[_i];
	const size_t nbytes = 100001;
	uint8_t *want = malloc(N * nbytes);
	_Atomic uint32_t *word[N][4];

	if (lacks_uring(e))
		return;
	use_engine(e, 0);
	spill_new();
	for (uint32_t g = 0; g < N; g++) {
		for (uint32_t i = 0; i < 4; i++)
			word[g][i] = te__pinned_word(arena, 4 * g + i);
		DO(te__spill_reserve(spill, g, nbytes));
		DO(te__spill_bind(spill, TE__SPILL_WRITE, g, slot_at(g * 128 * KIB), nbytes,
				  word[g][0], word[g][1]));
		DO(te__spill_bind(spill, TE__SPILL_READ, g, slot_at((N + g) * 128 * KIB), nbytes,
				  word[g][2], word[g][3]));
	}
	te__spill_arm(spill, 1);
	for (int step = 0; step < STEPS; step++) {
		tt_fill_bytes(want, N * nbytes);
		for (size_t g = 0; g < N; g++) {
			memcpy(slot_at(g * 128 * KIB), want + g * nbytes, nbytes);
			atomic_store_explicit(word[g][0], 1, memory_order_release);
		}
		for (size_t g = N; g-- > 0;) {
			uint8_t *to = slot_at((N + g) * 128 * KIB);

			/* some reads before their write has ended: forwarded */
			if (tt_rand_u64() & 1 && step) {
				await(word[g][0], 0);
			} else {
				await(word[g][1], 1);
			}
			tt_poison(to, nbytes);
			atomic_store_explicit(word[g][2], 1, memory_order_release);
			await(word[g][3], 1);
			ck_assert_uint_eq(atomic_load(word[g][2]), 0);
			ck_assert(!memcmp(to, want + g * nbytes, nbytes));
			await(word[g][1], 1);
			atomic_store(word[g][1], 0);
			atomic_store(word[g][3], 0);
		}
	}
	DO(te__spill_error(spill, NULL));
	/* not armed: nothing happens; and no more after a binding was removed */
	te__spill_arm(spill, 0);
	DO(te__spill_bind(spill, TE__SPILL_WRITE, 0, NULL, 0, NULL, NULL));
	te__spill_arm(spill, 1);
	atomic_store(word[0][0], 1);
	atomic_store(word[1][0], 1);
	await(word[1][1], 1);
	ck_assert_uint_eq(atomic_load(word[0][0]), 1);
	free(want);
}

TEST(data, bound_requests_that_fail_are_released)
{
	const size_t nbytes = 10000;
	_Atomic uint32_t *start = te__pinned_word(arena, 0), *done = te__pinned_word(arena, 1);
	struct te__spill_error err;

	use_engine(&engines[3], 0);
	spill_new();
	DO(te__spill_reserve(spill, 5, nbytes));
	DO(te__spill_bind(spill, TE__SPILL_READ, 5, slot_at(0), nbytes, start, done));
	te__spill_arm(spill, 1);
	tt_poison(slot_at(0), nbytes + 1);
	atomic_store(start, 1);
	await(done, 1);
	ck_assert_int_eq(te__spill_error(spill, &err), -TE_ESTATE);
	ck_assert_uint_eq(err.group, 5);
	ck_assert_int_eq(err.dir, TE__SPILL_READ);
	for (size_t i = 0; i < nbytes; i++)
		ck_assert_uint_eq(*slot_at(i), 0xff);
	ck_assert(tt_is_poison(slot_at(nbytes), 1));
	fails(te__spill_wait(spill, TE__SPILL_READ, 5, 0), -TE_ESTATE, "read of group 5");
}

/* states */

TEST(data, requests_that_the_state_forbids_are_refused)
{
	const size_t n = 70000;
	_Atomic uint32_t word = 7;

	use_engine(&engines[3], 1);
	spill_new();
	fails(te__spill_write(spill, 0, slot_at(0), n, &word, 1), -EINVAL, "group 0: 70000 bytes");
	fails(te__spill_reserve(spill, 8, n), -EINVAL, "there is no group 8, only 0 to 7");
	fails(te__spill_reserve(spill, 0, 0), -EINVAL, "group 0: 0 bytes");
	fails(te__spill_reserve(spill, 0, 8 * MIB + 1), -ENOSPC, "8388609 bytes, but 8388608 of");
	DO(te__spill_reserve(spill, 0, n));
	DO(te__spill_reserve(spill, 1, n));
	fails(te__spill_reserve(spill, 0, n), -TE_ESTATE, "group 0 has 70000 bytes already");
	fails(te__spill_reserve(spill, 2, 8 * MIB), -ENOSPC, "group 2");
	fails(te__spill_read(spill, 0, slot_at(0), n, &word, 1), -TE_ESTATE,
	      "group 0 has not been written");
	fails(te__spill_write(spill, 0, slot_at(0), n + 1, &word, 1), -EINVAL,
	      "70000 are reserved");
	fails(te__spill_write(spill, 0, slot_at(0), 0, &word, 1), -EINVAL, "0 bytes");
	fails(te__spill_write(spill, 0, slot_at(512), n, &word, 1), -EINVAL, "aligned");
	fails(te__spill_write(spill, 0, slot_at(8 * MIB), n, &word, 1), -EINVAL, "the arena");
	fails(te__spill_write(spill, 0, slot_at(0) - 4096, n, &word, 1), -EINVAL, "the arena");
	fails(te__spill_bind(spill, TE__SPILL_READ, 0, slot_at(0), n + 1, &word, &word), -EINVAL,
	      "70000 are reserved");
	DO(te__spill_wait(spill, TE__SPILL_WRITE, 0, 0));

	/* while a write is held: no second one; a read is served; other groups go on */
	atomic_store(&shim.gate, 1);
	tt_fill_bytes(slot_at(0), n);
	DO(te__spill_write(spill, 0, slot_at(0), n, NULL, 0));
	fails(te__spill_write(spill, 0, slot_at(0), n, &word, 1), -EBUSY,
	      "its latest write is not complete");
	fails(te__spill_wait(spill, TE__SPILL_WRITE, 0, 0), -ETIMEDOUT, "write of group 0");
	fails(te__spill_read(spill, 0, slot_at(MIB), n - 1, &word, 1), -EINVAL,
	      "69999 bytes, but 70000 were written");
	ck_assert_int_eq(get(0, slot_at(MIB), n), 0);
	ck_assert(!memcmp(slot_at(0), slot_at(MIB), n));
	ck_assert_uint_eq(stats().nforwarded, 1);
	/* into the same slot: no copy */
	DO(te__spill_read(spill, 0, slot_at(0), n, NULL, 0));
	DO(te__spill_wait(spill, TE__SPILL_READ, 0, -1));
	ck_assert(!memcmp(slot_at(0), slot_at(MIB), n));
	ck_assert_uint_eq(stats().nforwarded, 2);
	atomic_store(&shim.gate, 0);
	te__spill_kick(spill);
	DO(te__spill_wait(spill, TE__SPILL_WRITE, 0, -1));

	/* while a read is held: no write of the group, no second read */
	atomic_store(&shim.gate, 1);
	DO(te__spill_read(spill, 0, slot_at(2 * MIB), n, NULL, 0));
	fails(te__spill_read(spill, 0, slot_at(2 * MIB), n, &word, 1), -EBUSY, "its latest read");
	fails(te__spill_write(spill, 0, slot_at(0), n, &word, 1), -EBUSY, "group 0 is being read");
	atomic_store(&shim.gate, 0);
	te__spill_kick(spill);
	DO(te__spill_wait(spill, TE__SPILL_READ, 0, -1));
	ck_assert(!memcmp(slot_at(2 * MIB), slot_at(MIB), n));
	ck_assert_uint_eq(stats().nforwarded, 2);
	ck_assert_uint_eq(atomic_load(&word), 7);
	DO(te__spill_error(spill, NULL));
}

/* random requests from two threads, each with groups of its own, against a copy */

struct stress {
	pthread_t thread;
	uint32_t first;
	uint64_t seed;
	int bad;
};

#define STRESS_NBYTES 90000

static void *stress_thread(void *arg)
{
	enum { STEPS = TT_FEWER(320) };
	struct stress *t = arg;
	uint32_t stamp[4] = { 0 };
	uint64_t x = t->seed;

	for (uint32_t step = 1; step <= STEPS; step++) {
		uint32_t i, g, *slot;

		x = x * 6364136223846793005u + 1442695040888963407u;
		i = x >> 60 & 3;
		g = t->first + i;
		slot = (uint32_t *)slot_at(g * 256 * KIB);
		if (!stamp[i] || x >> 50 & 1) {
			stamp[i] = step * 8 + g;
			for (size_t k = 0; k < STRESS_NBYTES / 4; k++)
				slot[k] = stamp[i] + (uint32_t)k;
			t->bad |= te__spill_write(spill, g, slot, STRESS_NBYTES, NULL, 0);
			if (x >> 40 & 1)
				t->bad |= te__spill_wait(spill, TE__SPILL_WRITE, g, -1);
		}
		slot += 32 * KIB;
		slot[0] = slot[STRESS_NBYTES / 4 - 1] = 0;
		t->bad |= te__spill_read(spill, g, slot, STRESS_NBYTES, NULL, 0);
		t->bad |= te__spill_wait(spill, TE__SPILL_READ, g, -1);
		t->bad |= te__spill_wait(spill, TE__SPILL_WRITE, g, -1);
		for (size_t k = 0; k < STRESS_NBYTES / 4; k += 97)
			t->bad |= slot[k] != stamp[i] + (uint32_t)k;
		if (t->bad)
			break;
	}
	return NULL;
}

TEST_EACH(data, two_threads_make_requests_at_random, NENGINES)
{
	const struct engine *e = &engines[_i];
	struct stress t[2];

	spill_opts.depth = 3;
	spill_opts.block_nbytes = 16 * KIB;
	if (!spill_begin(e, 0, 8, STRESS_NBYTES))
		return;
	for (uint32_t i = 0; i < 2; i++) {
		t[i] = (struct stress){ .first = 4 * i, .seed = tt_rand_u64() };
		ck_assert_int_eq(pthread_create(&t[i].thread, NULL, stress_thread, &t[i]), 0);
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i].thread, NULL);
		ck_assert_int_eq(t[i].bad, 0);
	}
	DO(te__spill_error(spill, NULL));
}

TEST_ALSO(disk, two_threads_make_requests_at_random, 1);

/* checksums: the shim changes what a read found */

static void flip_bit(struct shim *h, struct te__blk_done *d, uint64_t n)
{
	if (n == h->k)
		slot_at(0)[tt_rand_int(0, 99999)] ^= (uint8_t)(1 << tt_rand_int(0, 7));
}

static const struct {
	enum te__spill_verify verify;
	int want;
} verify_rows[] = {
	{ TE__SPILL_VERIFY_OFF, 0 },
	{ TE__SPILL_VERIFY_ALL, -TE_ECORRUPT },
};

CASE(checksums, "host", .setup = spill_setup, .teardown = spill_teardown);

TEST_EACH(checksums, flipped_bit_is_found, TT_LEN(verify_rows))
{
	const size_t n = 100000;
	struct te__spill_error err;

	use_engine(&engines[2], 1);
	spill_opts.block_nbytes = 128 * KIB;
	spill_opts.verify = verify_rows[_i].verify;
	spill_new();
	DO(te__spill_reserve(spill, 3, n));
	tt_fill_bytes(slot_at(0), n);
	DO(put(3, slot_at(0), n));
	shim.on_done = flip_bit;
	shim.k = 1; /* the read */
	ck_assert_int_eq(get(3, slot_at(0), n), verify_rows[_i].want);
	ck_assert_int_eq(te__spill_error(spill, &err), verify_rows[_i].want);
	if (!verify_rows[_i].want)
		return;
	tt_said("read of group 3, 100000 bytes: block 0");
	tt_said(spill_dir);
	ck_assert_uint_eq(err.group, 3);
	/* no old or wrong byte is left */
	for (size_t i = 0; i < n; i++)
		ck_assert_uint_eq(*slot_at(i), 0xff);
	/* the file is whole: the next read succeeds; the first error stays until it is cleared */
	DO(get(3, slot_at(0), n));
	ck_assert_int_eq(te__spill_error(spill, NULL), -TE_ECORRUPT);
	te__spill_clear(spill);
	DO(te__spill_error(spill, NULL));
}

/* a drive that confuses blocks: two reads of one group get each other's data */
static int32_t swap_blocks(struct shim *h, struct te__blk *b, uint64_t n)
{
	if (n == h->k)
		b->offset += 64 * KIB;
	if (n == h->k + 1)
		b->offset -= 64 * KIB;
	return SHIM_PASS;
}

/* a drive that loses a write: the block of the step before is read */
static int32_t lose_write(struct shim *h, struct te__blk *b, uint64_t n)
{
	return n == h->k ? (int32_t)b->nbytes : SHIM_PASS;
}

TEST_EACH(checksums, swapped_and_stale_blocks_are_found, TT_LEN(verify_rows))
{
	const size_t n = 4 * 64 * KIB;
	struct te__spill_error err;

	spill_opts.verify = verify_rows[_i].verify;
	spill_begin(&engines[2], 1, 1, n);
	tt_fill_bytes(slot_at(0), n);
	DO(put(0, slot_at(0), n));
	shim.on_submit = swap_blocks;
	shim.k = 4 + 2; /* after four writes, the second read */
	shim.nsubmits = 4;
	ck_assert_int_eq(get(0, slot_at(MIB), n), verify_rows[_i].want);
	ck_assert_int_eq(te__spill_error(spill, &err), verify_rows[_i].want);
	if (verify_rows[_i].want)
		ck_assert(err.block == 1 || err.block == 2);
	te__spill_clear(spill);
	shim.on_submit = lose_write;
	shim.k = shim.nsubmits + 4;
	tt_fill_bytes(slot_at(0), n);
	DO(put(0, slot_at(0), n));
	ck_assert_int_eq(get(0, slot_at(MIB), n), verify_rows[_i].want);
	ck_assert_int_eq(te__spill_error(spill, &err), verify_rows[_i].want);
	if (verify_rows[_i].want)
		ck_assert_uint_eq(err.block, 3);
}

/* in as many steps as there are positions of the sample, each block is compared */
TEST(checksums, sample_takes_every_block_in_turn)
{
	const size_t n = 40 * 4 * KIB;

	spill_opts.block_nbytes = 4 * KIB;
	spill_opts.verify = TE__SPILL_VERIFY_SAMPLE;
	spill_begin(&engines[3], 0, 1, n);
	for (int step = 0; step < 16; step++) {
		tt_fill_bytes(slot_at(0), n);
		DO(put(0, slot_at(0), n));
		DO(get(0, slot_at(MIB), n));
		ck_assert(!memcmp(slot_at(0), slot_at(MIB), n));
	}
	ck_assert_uint_eq(stats().nverified, 40);
}

/* nothing is allocated after the start */

static int count_dir(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* sanitizers map and allocate on their own */
static int count_maps(void)
{
	int n = 0;
#ifndef SANITIZED
	FILE *f = fopen("/proc/self/maps", "r");
	int c;

	while (f && (c = getc(f)) != EOF)
		n += c == '\n';
	if (f)
		fclose(f);
#endif
	return n;
}

static size_t heap_nbytes(void)
{
#if defined(__GLIBC__) && !defined(SANITIZED)
	return mallinfo2().uordblks;
#else
	return 0;
#endif
}

TEST_EACH(data, nothing_is_allocated_after_the_start, NENGINES)
{
	const struct engine *e = &engines[_i];
	const int nsteps = e->engine == TE__SPILL_MEMORY ? TT_FEWER(10000) : TT_FEWER(1200);
	const size_t n = 3 * 4096 + 5;
	size_t heap = 0;
	int fds = 0, maps = 0;

	spill_opts.block_nbytes = 4 * KIB;
	if (!spill_begin(e, 0, 1, n))
		return;
	tt_fill_bytes(slot_at(0), n);
	for (int step = 0; step < nsteps; step++) {
		if (step == nsteps / 8) {
			fds = count_dir("/proc/self/fd");
			maps = count_maps();
			heap = heap_nbytes();
			/* the next allocation, mapping or open of the library would fail */
			te__fault_set(1);
		}
		DO(te__spill_write(spill, 0, slot_at(0), n, NULL, 0));
		DO(te__spill_read(spill, 0, slot_at(MIB), n, NULL, 0));
		DO(te__spill_wait(spill, TE__SPILL_READ, 0, -1));
		DO(te__spill_wait(spill, TE__SPILL_WRITE, 0, -1));
	}
	ck_assert_int_eq(te__fault_fired(), 0);
	te__fault_set(0);
	ck_assert_uint_eq(heap_nbytes(), heap);
	ck_assert_int_eq(count_dir("/proc/self/fd"), fds);
	ck_assert_int_eq(count_maps(), maps);
	ck_assert(!memcmp(slot_at(0), slot_at(MIB), n));
}

TEST(data, latencies_and_rates_are_counted)
{
	const size_t n = 64 * KIB * 3;
	struct te__spill_stats s;
	uint64_t blocks = 0;

	spill_begin(&engines[2], 0, 1, n);
	tt_fill_bytes(slot_at(0), n);
	DO(put(0, slot_at(0), n));
	DO(get(0, slot_at(MIB), n));
	DO(get(0, slot_at(MIB), n));
	s = stats();
	ck_assert_str_eq(s.engine, "threads");
	ck_assert_uint_eq(s.file_nbytes, 8 * MIB);
	ck_assert_uint_eq(s.nbytes[TE__SPILL_WRITE], n);
	ck_assert_uint_eq(s.nbytes[TE__SPILL_READ], 2 * n);
	ck_assert_uint_eq(s.nrequests[TE__SPILL_READ], 2);
	for (int dir = 0; dir < 2; dir++) {
		ck_assert_uint_gt(s.busy_ns[dir], 0);
		ck_assert_uint_ge(s.busy_ns[dir], s.latency_max_ns[dir]);
		for (int i = 0; i < TE__SPILL_BINS; i++)
			blocks += s.latency_bin[dir][i];
	}
	ck_assert_uint_eq(blocks, 9);
	ck_assert_uint_eq(s.nverified, 6);
}

TT_MAIN("offload/spill", TT_NEED_NOTHING)
