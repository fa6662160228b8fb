/* t/offload/pinned.c - the pinned arena: mapping, registration, slots, words, NUMA nodes. */
#include "config.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libtecore/backend/numa.h"
#include "libtecore/base/private.h"
#include "libtecore/offload/pinned.h"
#include "tt_ctx.h"

#define UNIT TE__PINNED_UNIT

static struct te__pinned *a;

static void new_arena(struct te_ctx *c, size_t nbytes)
{
	DO(te__pinned_create(c, nbytes, &a));
}

static void slot_teardown(void)
{
	a = te__pinned_destroy(a);
	ck_assert_int_eq(te__alloc_live(), 0);
}

CASE(slots, "host serial", .teardown = slot_teardown);

TEST(slots, size_is_rounded_and_memory_is_zero)
{
	uint8_t *p;

	new_arena(NULL, UNIT + 1);
	ck_assert_uint_eq(te__pinned_nbytes(a), 2 * UNIT);
	/* slots, and one unit of words */
	ck_assert_uint_eq(te__pinned_held_nbytes(a), 3 * UNIT);
	p = te__pinned_base(a);
	ck_assert_uint_eq((uintptr_t)p % UNIT, 0);
	for (size_t i = 0; i < te__pinned_held_nbytes(a); i++)
		ck_assert_uint_eq(p[i], 0);
	memset(p, 0x5a, te__pinned_held_nbytes(a));
}

/* counted page by page: statm is an estimate on machines with many processors */
static size_t resident_nbytes(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "r");
	unsigned long kib = 0;
	char line[256];

	ck_assert_ptr_nonnull(f);
	while (!kib && fgets(line, sizeof(line), f))
		sscanf(line, "Rss: %lu", &kib);
	fclose(f);
	return kib * 1024;
}

/* sanitizers take memory of their own; 2 MiB: the words, 1 MiB: anything else */
TEST(slots, memory_is_what_was_asked_for)
{
	const size_t nbytes = 16 * UNIT + 1, before = resident_nbytes();
	size_t grown;

	new_arena(NULL, nbytes);
	grown = resident_nbytes() - before;
	ck_assert_uint_ge(grown, 17 * UNIT);
#ifndef SANITIZED
	ck_assert_uint_le(grown, 18 * UNIT + (1 << 20));
#endif
	a = te__pinned_destroy(a);
	ck_assert_uint_lt(resident_nbytes(), before + UNIT);
}

TEST(slots, words_are_cache_lines_after_the_slots)
{
	new_arena(NULL, UNIT);
	ck_assert_ptr_eq(te__pinned_word(a, 0), (uint8_t *)te__pinned_base(a) + UNIT);
	for (uint32_t i = 0; i < TE__PINNED_NWORDS; i++) {
		ck_assert_uint_eq((uintptr_t)te__pinned_word(a, i) % 64, 0);
		atomic_store(te__pinned_word(a, i), i + 1);
	}
	for (uint32_t i = 0; i < TE__PINNED_NWORDS; i++)
		ck_assert_uint_eq(atomic_load(te__pinned_word(a, i)), i + 1);
}

/* random takes and gives, against a list */
TEST(slots, slots_do_not_overlap)
{
	enum { N = 24, STEPS = 4000 };
	uint8_t *slot[N] = { NULL }, owner[N];
	void *p;

	new_arena(NULL, N * UNIT);
	memset(owner, 0xff, sizeof(owner));
	for (int step = 0; step < STEPS; step++) {
		const int i = (int)tt_rand_int(0, N - 1);
		const size_t want = (size_t)tt_rand_int(1, 5);
		size_t first = 0, run = 0;
		int r;

		if (slot[i]) {
			te__pinned_give(a, slot[i]);
			for (int k = 0; k < N; k++)
				owner[k] = owner[k] == i ? 0xff : owner[k];
			slot[i] = NULL;
			continue;
		}
		while (first < N && run < want) {
			run = owner[first] == 0xff ? run + 1 : 0;
			first++;
		}
		r = te__pinned_take(a, want * UNIT - (size_t)tt_rand_int(0, UNIT - 1), &p);
		if (run < want) {
			ck_assert_int_eq(r, -ENOMEM);
			tt_said("no slot of");
			continue;
		}
		DO(r);
		slot[i] = p;
		ck_assert_ptr_eq(p, (uint8_t *)te__pinned_base(a) + (first - want) * UNIT);
		memset(owner + first - want, i, want);
	}
	for (int i = 0; i < N; i++)
		te__pinned_give(a, slot[i]);
	DO(te__pinned_take(a, N * UNIT, &p));
	fails(te__pinned_take(a, 1, &p), -ENOMEM, "no slot of 1 bytes in the arena: 0 of");
	te__pinned_give(a, p);
	te__pinned_give(a, NULL);
}

TEST(slots, absurd_sizes_are_refused)
{
	struct te__pinned *none = NULL;

	fails(te__pinned_create(NULL, 0, &none), -EINVAL, "an arena of 0 bytes");
	fails(te__pinned_create(NULL, SIZE_MAX, &none), -EINVAL, "an arena of");
	fails(te__pinned_create(NULL, (size_t)1 << 60, &none), -ENOMEM, "bytes");
	ck_assert_ptr_null(none);
}

/* a child that wrote to it would make the kernel copy pages that the device has pinned */
TEST(slots, a_forked_child_does_not_get_it)
{
	unsigned char state;
	int status;
	pid_t child;

	new_arena(NULL, UNIT);
	child = fork();
	if (!child) {
		const int gone = mincore(te__pinned_base(a), UNIT, &state) && errno == ENOMEM;

		te__pinned_destroy(a);
		_exit(gone ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	memset(te__pinned_base(a), 1, UNIT);
}

CTX_CASE(device, "host");

TEST(device, device_copies_from_and_to_it)
{
	void *dev, *slot;
	uint8_t *want = malloc(UNIT);

	new_arena(ctx, 2 * UNIT);
	DO(te__pinned_take(a, UNIT, &slot));
	tt_fill_bytes(slot, UNIT);
	memcpy(want, slot, UNIT);
	DO(te_mem_alloc(st, UNIT, &dev));
	DO(te_copy(st, dev, te__pinned_device_ptr(a, slot), UNIT));
	DO(te_stream_sync(st));
	tt_poison(slot, UNIT);
	DO(te_copy(st, te__pinned_device_ptr(a, slot), dev, UNIT));
	DO(te_stream_sync(st));
	ck_assert(!memcmp(slot, want, UNIT));
	DO(te_mem_free(st, dev));
	a = te__pinned_destroy(a);
	free(want);
}

static int create_and_destroy(void)
{
	struct te__pinned *x = NULL;
	int r = te__pinned_create(ctx, UNIT, &x);

	ck_assert_int_eq(!x, !!r);
	tt_fault_end();
	te__pinned_destroy(x);
	return r;
}

TEST(device, each_failure_of_creation_is_reported)
{
	/* the arena, two lists of units, the mapping, the registration, and what is asked of the
	 * device */
	ck_assert_int_ge(tt_fault_each(create_and_destroy), 5);
}

CASE(nodes, "host serial");

TEST(nodes, node_of_a_device_is_read_from_sysfs)
{
	static const struct {
		const char *text;
		int want;
	} row[] = { { "0\n", 0 }, { "3\n", 3 }, { "-1\n", -1 }, { "", -1 }, { "x\n", -1 } };
	char root[64], dir[80], path[112];

	snprintf(root, sizeof(root), "%s/te-numa.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(root));
	snprintf(dir, sizeof(dir), "%s/0000:1a:00.0", root);
	snprintf(path, sizeof(path), "%s/numa_node", dir);
	ck_assert_int_eq(mkdir(dir, 0700), 0);
	ck_assert_int_eq(te__pci_node(root, "0000:1A:00.0"), -1);
	for (size_t i = 0; i < TT_LEN(row); i++) {
		FILE *f = fopen(path, "w");

		ck_assert_ptr_nonnull(f);
		fputs(row[i].text, f);
		fclose(f);
		/* the driver writes upper case */
		ck_assert_int_eq(te__pci_node(root, "0000:1A:00.0"), row[i].want);
		ck_assert_int_eq(te__pci_node(root, "0000:1b:00.0"), -1);
		ck_assert_int_eq(te__pci_node(root, ""), -1);
	}
	remove(path);
	rmdir(dir);
	rmdir(root);
}

TEST(nodes, memory_is_bound_where_the_node_exists)
{
	const char *why = NULL;
	void *p = mmap(NULL, UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ck_assert(p != MAP_FAILED);
	ck_assert_int_eq(te__numa_bind(p, UNIT, 4095, &why), -1);
	ck_assert_ptr_nonnull(why);
	/* a container may not allow it, and then there is a reason */
	why = NULL;
	if (te__numa_bind(p, UNIT, 0, &why))
		ck_assert_ptr_nonnull(why);
	memset(p, 1, UNIT);
	munmap(p, UNIT);
}

TT_MAIN("offload/pinned", TT_NEED_NOTHING)
