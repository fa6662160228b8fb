/*
 * t/backend/topology.c - the cores that threads of the host backend use: TE_HOST_THREADS,
 * TE_HOST_BIND and masks, on this machine and on others as hwloc describes them; TE_HOST_POISON.
 */
#include "config.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "kernels/team.h"
#include "libtecore/backend/host/host.h"

#include "tt_ctx.h"
#include "tt_gate.h"

#define MAX_MS 20000

/* processors 0 to 63 as bits */
static cpu_set_t set_of(uint64_t bits)
{
	cpu_set_t s;

	CPU_ZERO(&s);
	for (int i = 0; i < 64; i++)
		if (bits >> i & 1)
			CPU_SET(i, &s);
	return s;
}

#define MOST 8

static const struct {
	const char *machine; /* see "Synthetic topologies" in hwloc's manual */
	uint64_t mask;
	uint32_t ncores; /* with hwloc */
	uint64_t core[MOST];
} machines[] = {
	{ "pack:1 core:4 pu:1", 0xf, 4, { 1, 2, 4, 8 } },
	{ "pack:1 core:4 pu:1", 0x6, 2, { 2, 4 } },
	{ "pack:2 core:2 pu:2", 0xff, 4, { 0x3, 0xc, 0x30, 0xc0 } },
	{ "pack:2 core:2 pu:2", 0x3c, 2, { 0xc, 0x30 } },
	{ "pack:2 core:2 pu:2", 0x2, 1, { 0x2 } },
	/* one hardware thread of each core; parts of two cores */
	{ "pack:2 core:2 pu:2", 0x55, 4, { 0x1, 0x4, 0x10, 0x40 } },
	{ "pack:2 core:2 pu:2", 0x1e, 3, { 0x2, 0xc, 0x10 } },
	/* numbered as Linux does: the second hardware threads follow all first ones */
	{ "core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", 0xff, 4, { 0x11, 0x22, 0x44, 0x88 } },
	{ "core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", 0x0f, 4, { 0x1, 0x2, 0x4, 0x8 } },
	/* no cores are described, or none of them has a processor in the mask */
	{ "pack:1 pu:4", 0x5, 2, { 0x1, 0x4 } },
	{ "core:2 pu:2", 0x300, 2, { 0x100, 0x200 } },
};

CASE(cores, "host");

TEST_EACH(cores, cores_are_those_in_the_mask, TT_LEN(machines))
{
	const cpu_set_t mask = set_of(machines[_i].mask);
	uint32_t want = machines[_i].ncores, n;
	cpu_set_t core[HOST_THREADS_MAX];
	uint64_t left = machines[_i].mask;

	setenv("HWLOC_SYNTHETIC", machines[_i].machine, 1);
#ifndef HAVE_HWLOC
	want = (uint32_t)CPU_COUNT(&mask);
#endif
	n = te__host_cores(&mask, core);
	ck_assert_uint_eq(n, want);
	ck_assert_uint_eq(te__host_cores(&mask, NULL), want);
	for (uint32_t i = 0; i < n; i++) {
#ifdef HAVE_HWLOC
		const uint64_t bits = machines[_i].core[i];
#else
		const uint64_t bits = left & -left;
#endif
		const cpu_set_t s = set_of(bits);

		ck_assert_msg(CPU_EQUAL(&core[i], &s), "core %u", i);
		left &= ~bits;
	}
	ck_assert_uint_eq(left, 0);
}

TEST(cores, more_cores_than_threads_are_left_out)
{
	cpu_set_t mask, core[HOST_THREADS_MAX];

	setenv("HWLOC_SYNTHETIC", "core:96 pu:2", 1);
	CPU_ZERO(&mask);
	for (int i = 0; i < 192; i++)
		CPU_SET(i, &mask);
	ck_assert_uint_eq(te__host_cores(&mask, core), HOST_THREADS_MAX);
	/* but counted */
#ifdef HAVE_HWLOC
	ck_assert_uint_eq(te__host_cores(&mask, NULL), 96);
#else
	ck_assert_uint_eq(te__host_cores(&mask, NULL), 192);
#endif
}

#ifdef HAVE_HWLOC
static void *cores(void *mask)
{
	cpu_set_t core[HOST_THREADS_MAX];

	return (void *)(uintptr_t)te__host_cores(mask, core);
}

/* by whichever thread is first */
TEST(cores, the_topology_is_read_once)
{
	cpu_set_t mask = set_of(0xff);
	pthread_t thread[8];
	void *n;

	setenv("HWLOC_SYNTHETIC", "core:4 pu:2", 1);
	for (size_t i = 0; i < TT_LEN(thread); i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL, cores, &mask), 0);
	for (size_t i = 0; i < TT_LEN(thread); i++) {
		ck_assert_int_eq(pthread_join(thread[i], &n), 0);
		ck_assert_uint_eq((uintptr_t)n, 4);
	}
	setenv("HWLOC_SYNTHETIC", "core:2 pu:4", 1);
	ck_assert_uint_eq(te__host_cores(&mask, NULL), 4);
}
#endif

/* the number of threads of a new context */
static uint32_t nthreads(void)
{
	struct host_dev *dev;
	uint32_t n;

	DO(host_open(&(struct te__open){ .device = 0 }, (void **)&dev));
	n = dev->nthreads;
	host_close(dev);
	return n;
}

static int32_t nprocs(void)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	DO(te_device_info("host", 0, &d));
	return d.nprocs;
}

/* processors that this process may use */
static cpu_set_t usable(void)
{
	cpu_set_t s;

	ck_assert_int_eq(sched_getaffinity(0, sizeof(s), &s), 0);
	return s;
}

/* narrows the mask to n of its processors, as taskset(1) does, or skips the test: 0 */
static int narrow(int n)
{
	cpu_set_t s = usable();

	for (int i = CPU_SETSIZE; i-- > 0 && CPU_COUNT(&s) > n;)
		CPU_CLR(i, &s);
	if (CPU_COUNT(&s) < n)
		return 0;
	ck_assert_int_eq(sched_setaffinity(0, sizeof(s), &s), 0);
	return 1;
}

CASE(threads, "host");

TEST(threads, a_mask_of_one_processor_gives_one_thread)
{
	narrow(1);
	ck_assert_uint_eq(nthreads(), 1);
}

TEST(threads, a_core_gives_one_thread)
{
#ifdef HAVE_HWLOC
	/* all of this machine's processors are hardware threads of a core */
	setenv("HWLOC_SYNTHETIC", "core:1 pu:1024", 1);
	ck_assert_uint_eq(nthreads(), 1);
	ck_assert_int_eq(nprocs(), 1);
#endif
}

TEST(threads, the_device_has_the_cores_in_the_mask)
{
	setenv("HWLOC_SYNTHETIC", "pu:1024", 1);
	for (int n = 2; n > 0; n--)
		if (narrow(n)) {
			/* fewer by a quota */
			ck_assert_int_le(nprocs(), n);
			ck_assert_uint_eq((uint32_t)nprocs(), nthreads());
		}
	ck_assert_int_eq(nprocs(), 1);
}

TEST(threads, te_host_threads_is_the_number)
{
	narrow(1);
	setenv("TE_HOST_THREADS", "3", 1);
	ck_assert_uint_eq(nthreads(), 3);
}

TEST_EACH(threads, te_host_threads_has_a_range, 3)
{
	static const char *const wrong[] = { "65", "-1", "4294967297" };
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_ctx *c = NULL;
	char text[128];

	setenv("TE_HOST_THREADS", wrong[_i], 1);
	snprintf(text, sizeof(text), "TE_HOST_THREADS=%s in the environment: expected 0 to 64",
		 wrong[_i]);
	o.backend = "host";
	fails(te_ctx_create(&o, &c), -EINVAL, text);
	ck_assert_ptr_null(c);
}

TEST(threads, te_host_poison_fills_new_memory)
{
	unsigned char *bytes;
	void *p;

	setenv("TE_HOST_POISON", "on", 1);
	tt_setup();
	DO(te_mem_alloc(st, 1000, &p));
	bytes = tt_bytes(p, 1000);
	for (int i = 0; i < 1000; i++)
		ck_assert_uint_eq(bytes[i], 0xff);
	free(bytes);
	DO(te_mem_free(st, p));
	tt_teardown();
}

TEST(threads, te_host_threads_has_a_maximum)
{
	setenv("TE_HOST_THREADS", "64", 1);
	ck_assert_uint_eq(nthreads(), 64);
}

static atomic_int arrived;
static cpu_set_t masks[MOST];

/* the mask of each of the threads, all of which are in a part at the same time */
static void look(void *arg, int64_t begin, int64_t end)
{
	const int n = *(const int *)arg;

	ck_assert_int_eq(sched_getaffinity(0, sizeof(masks[0]), &masks[begin]), 0);
	atomic_fetch_add(&arrived, 1);
	for (int ms = 0; ms < MAX_MS && atomic_load(&arrived) < n; ms++)
		tt_sleep_ms(1);
}

static void look_at_all(void *arg)
{
	te__k_for(*(const int *)arg, 1, look, arg);
}

/* of 2 processors; returns how many of the 2 threads have the mask of the process */
static int nunbound(const char *bind)
{
	const cpu_set_t before = usable();
	const int n = 2;
	cpu_set_t after;
	int nfree = 0;

	setenv("HWLOC_SYNTHETIC", "pu:1024", 1); /* each processor is a core */
	setenv("TE_HOST_THREADS", "2", 1);
	setenv("TE_HOST_BIND", bind, 1);
	tt_setup();
	atomic_store(&arrived, 0);
	DO(te_host_call(st, look_at_all, &n, sizeof(n)));
	DO(te_stream_sync(st));
	ck_assert_int_eq(atomic_load(&arrived), n);
	for (int i = 0; i < n; i++) {
		cpu_set_t both;

		CPU_AND(&both, &before, &masks[i]);
		ck_assert_msg(CPU_EQUAL(&both, &masks[i]), "thread %d left the mask", i);
		if (CPU_EQUAL(&before, &masks[i]))
			nfree++;
		else
			ck_assert_int_eq(CPU_COUNT(&masks[i]), 1);
	}
	tt_teardown();
	after = usable();
	ck_assert_msg(CPU_EQUAL(&before, &after), "the program's thread was bound");
	return nfree;
}

TEST(threads, core_binds_helpers_only)
{
	if (narrow(2))
		ck_assert_int_eq(nunbound("core"), 1);
}

TEST(threads, none_binds_nothing)
{
	if (narrow(2))
		ck_assert_int_eq(nunbound("none"), 2);
}

TEST(threads, threads_beyond_the_cores_are_not_bound)
{
	narrow(1);
	ck_assert_int_eq(nunbound("core"), 2);
}

TT_MAIN("backend/topology", TT_NEED_NOTHING)
