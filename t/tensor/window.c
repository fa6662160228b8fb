/* t/tensor/window.c - windows of shared memory, on whichever backend. */
#include "config.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/capture.h>
#include <te/tensor.h>

#include "libtecore/base/private.h"
#include "tt_ctx.h"

#define NSLOTS 3

static size_t unit;

static void setup(void)
{
	tt_setup();
	DO(te__window_unit(ctx, &unit));
}

static void check_bytes(const void *p, const void *want, size_t n)
{
	unsigned char *got = tt_bytes(p, n);

	ck_assert_int_eq(memcmp(got, want, n), 0);
	free(got);
}

CASE(window, "window", .setup = setup, .teardown = tt_teardown);

/* two contexts of one process map each other's memory, as two ranks do */
TEST(window, two_contexts_share_memory)
{
	struct te__window *w[2];
	struct te_ctx *c[2] = { ctx, NULL };
	unsigned char *data = malloc(unit);
	uint64_t used = tt_used();
	struct te_mem_info info = TE_MEM_INFO_INIT;
	int fd;

	DO(tt_ctx_new(&c[1]));
	for (int i = 0; i < 2; i++)
		DO(te__window_create(c[i], NSLOTS, i, unit, &w[i]));
	ck_assert_uint_eq(tt_used(), used + unit);
	for (int i = 0; i < 2; i++) {
		DO(te__window_export(w[1 - i], &fd));
		DO(te__window_import(w[i], 1 - i, fd));
		close(fd);
	}
	ck_assert_uint_eq(tt_used(), used + unit);
	for (int i = 0; i < NSLOTS; i++)
		ck_assert_ptr_eq(te__window_slot(w[0], i),
				 (char *)te__window_slot(w[0], 0) + (size_t)i * unit);
	/* each writes both slots, the other reads them */
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 2; k++) {
			tt_fill_bytes(data, unit);
			DO(te_copy(te_ctx_stream(c[i]), te__window_slot(w[i], k), data, unit));
			DO(te_stream_sync(te_ctx_stream(c[i])));
			check_bytes(te__window_slot(w[0], k), data, unit);
		}
	/* memory outlives its creator while it is mapped */
	te__window_destroy(w[1]);
	te_ctx_unref(c[1]);
	check_bytes(te__window_slot(w[0], 1), data, unit);
	te__window_destroy(w[0]);
	ck_assert_uint_eq(tt_used(), used);
	DO(te_ctx_mem_info(ctx, &info));
	ck_assert_uint_eq(info.measured_nbytes, info.workspace_nbytes);
	free(data);
}

/* queued work that uses the memory runs before it is unmapped */
TEST(window, destruction_waits_for_queued_work)
{
	struct te__window *w;
	unsigned char *got = malloc(unit), *want = malloc(unit);

	DO(te__window_create(ctx, 1, 0, unit, &w));
	memset(want, 0x6b, unit);
	for (int i = 0; i < 50; i++)
		DO(te_fill(st, te__window_slot(w, 0), i == 49 ? 0x6b : i, unit));
	DO(te_copy(st, got, te__window_slot(w, 0), unit));
	te__window_destroy(w);
	ck_assert_int_eq(memcmp(got, want, unit), 0);
	free(got);
	free(want);
}

TEST(window, wrong_sizes_are_refused)
{
	struct te__window *w = NULL, *small;
	const uint64_t used = tt_used();
	int fd;

	fails(te__window_create(ctx, NSLOTS, 0, SIZE_MAX / 2, &w), -ENOMEM, "overflow");
	ck_assert_int_lt(te__window_create(ctx, NSLOTS, 0, unit + 1, &w), 0);
	ck_assert_ptr_null(w);
	ck_assert_uint_eq(tt_used(), used);
	/* a smaller memory does not fill a slot */
	DO(te__window_create(ctx, 2, 0, unit, &small));
	DO(te__window_create(ctx, 2, 0, 2 * unit, &w));
	DO(te__window_export(small, &fd));
	te_error_clear();
	ck_assert_int_lt(te__window_import(w, 1, fd), 0);
	ck_assert_str_ne(te_error_detail(), "");
	close(fd);
	te__window_destroy(w);
	te__window_destroy(small);
	ck_assert_ptr_null(te__window_destroy(NULL));
}

/* a tensor on memory that somebody else owns */

static int nreleased;

static void release(void *arg)
{
	ck_assert_ptr_eq(arg, &nreleased);
	nreleased++;
}

TEST(window, a_tensor_releases_its_memory_once)
{
	const int64_t shape[] = { 3, 5 };
	struct te_tensor *t = NULL, *v;
	void *p;

	nreleased = 0;
	DO(te_mem_alloc(st, 60, &p));
	fails(te__tensor_wrap_owned(ctx, TE_DTYPE_FP32, 0, shape, p, release, &nreleased, &t),
	      -EINVAL, "extents");
	ck_assert_ptr_null(t);
	DO(te__tensor_wrap_owned(ctx, TE_DTYPE_FP32, 2, shape, p, release, &nreleased, &t));
	DO(te_tensor_view(t, 5, 1, shape + 1, &v));
	te_tensor_unref(t);
	ck_assert_int_eq(nreleased, 0);
	te_tensor_unref(v);
	ck_assert_int_eq(nreleased, 1);
	DO(te_mem_free(st, p));
}

static int window_once(void)
{
	static _Alignas(65536) unsigned char page[65536];
	struct te__window *w = NULL;
	void *seen;
	int fd = -1, r;

	r = te__window_create(ctx, 2, 1, unit, &w);
	if (!r)
		r = te__window_export(w, &fd);
	if (!r)
		r = te__window_import(w, 0, fd);
	if (fd >= 0)
		close(fd);
	if (!r)
		r = te__page_register(ctx, page, sizeof(page), &seen);
	if (!r)
		te__page_unregister(ctx, page);
	tt_fault_end();
	te__window_destroy(w);
	return r;
}

TEST(window, each_failing_call_leaves_nothing)
{
	const uint64_t used = tt_used();

	DO(window_once());
	ck_assert_int_ge(tt_fault_each(window_once), 8);
	ck_assert_uint_eq(tt_used(), used);
}

/* a child has the addresses, but not the device */
TEST_IF(window, a_forked_child_leaves_the_parents_memory, ON_HOST)
{
	struct te__window *w, *n = NULL;
	unsigned char *want = malloc(unit);
	int status, r;
	pid_t pid;

	DO(te__window_create(ctx, 1, 0, unit, &w));
	memset(want, 0x11, unit);
	DO(te_fill(st, te__window_slot(w, 0), 0x11, unit));
	DO(te_stream_sync(st));
	pid = fork();
	if (!pid) {
		r = te__window_create(ctx, 1, 0, unit, &n);
		te__window_destroy(w);
		_exit(r == -TE_ESTATE && !n ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	check_bytes(te__window_slot(w, 0), want, unit);
	te__window_destroy(w);
	free(want);
}

TEST(window, fabric_handles_are_probed)
{
	struct te__fabric_domain domain;
	int r = te__fabric_probe(ctx, &domain);

	ck_assert(!r || r == -EOPNOTSUPP);
	if (r)
		tt_said("no fabric handles");
}

TT_PAIR("tensor/window", TT_ONE_PROCESS)
