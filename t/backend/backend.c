/* t/backend/backend.c - every row of struct te__backend_ops, and of a table with holes. */
#include "config.h"

#include <te/errno.h>

#include "backend_lib.h"
#include "libtecore/backend/backend.h"
#include "tt_ctx.h"

/* an empty table, filled: every entry refuses, naming itself, and touches nothing */

static void check_hole(const char *entry, int r)
{
	char want[80];

	snprintf(want, sizeof(want), "the backend has no %s", entry);
	ck_assert_msg(r == -EOPNOTSUPP, "%s returned %d", entry, r);
	ck_assert_str_eq(te_error_detail(), want);
	te_error_clear();
}
#define HOLE(ops, entry, ...) check_hole(#entry, (ops).entry(__VA_ARGS__))

CASE(table, "host fast");

TEST_IF(table, refuses_what_a_backend_lacks, ON_HOST)
{
	struct te__backend_ops o = { .name = "none" };
	void *p = &o, *q = &o;
	size_t nbytes = 7;
	int fd = 7;
	uint64_t n;
	double ms;

	te__backend_fill(&o);
	HOLE(o, probe, NULL);
	HOLE(o, device_info, 0, NULL);
	HOLE(o, free_nbytes, 0, &n);
	HOLE(o, open, NULL, &p);
	HOLE(o, dev_mem, NULL, &n, &n);
	HOLE(o, mem_alloc, NULL, 1, &p);
	HOLE(o, mem_free, NULL, NULL, 1);
	HOLE(o, pinned_alloc, NULL, 1, &p);
	HOLE(o, pinned_free, NULL, NULL, 1);
	HOLE(o, share_unit, NULL, &nbytes);
	HOLE(o, share_create, NULL, 1, &p);
	HOLE(o, share_export, NULL, &fd);
	HOLE(o, share_import, NULL, 0, 1, &p);
	HOLE(o, share_reserve, NULL, 1, &p);
	HOLE(o, share_map, NULL, NULL);
	HOLE(o, page_register, NULL, NULL, 1, &p);
	HOLE(o, fabric_probe, NULL, NULL);
	HOLE(o, fabric_create, NULL, 1, &p);
	HOLE(o, fabric_export, NULL, NULL);
	HOLE(o, fabric_import, NULL, NULL, 1, &p);
	HOLE(o, stream_create, NULL, &p);
	HOLE(o, stream_wrap, NULL, NULL, &p);
	HOLE(o, stream_sync, NULL);
	HOLE(o, stream_query, NULL);
	HOLE(o, event_create, NULL, &p);
	HOLE(o, event_record, NULL, NULL);
	HOLE(o, event_wait, NULL, NULL);
	HOLE(o, event_sync, NULL);
	HOLE(o, event_query, NULL);
	HOLE(o, event_elapsed_ms, NULL, NULL, &ms);
	HOLE(o, copy, NULL, NULL, NULL, 0);
	HOLE(o, fill8, NULL, NULL, 0, 0);
	HOLE(o, fill32, NULL, NULL, 0, 0);
	HOLE(o, host_call, NULL, NULL, NULL, 0);
	HOLE(o, word_set, NULL, NULL, 0);
	HOLE(o, word_take, NULL, NULL);
	HOLE(o, launch, NULL, NULL);
	HOLE(o, capture_begin, NULL);
	HOLE(o, capture_edges, NULL, 0);
	HOLE(o, capture_access, NULL, NULL);
	HOLE(o, capture_end, NULL, &p);
	HOLE(o, graph_info, NULL, NULL);
	HOLE(o, graph_instantiate, NULL, &p);
	HOLE(o, graph_launch, NULL, NULL);
	ck_assert_ptr_eq(p, q);
	ck_assert_uint_eq(nbytes, 7);
	ck_assert_int_eq(fd, 7);
	/* those without a code to return */
	o.close(NULL);
	o.share_release(NULL);
	o.share_unmap(NULL, NULL, 1);
	o.share_unreserve(NULL, NULL, 1);
	o.page_unregister(NULL, NULL);
	o.stream_destroy(NULL);
	o.event_destroy(NULL);
	o.graph_destroy(NULL);
	o.exec_destroy(NULL);
	ck_assert_ptr_null(o.stream_native(NULL));
	ck_assert_ptr_null(o.exec_graph(NULL));
	ck_assert_int_eq(o.capture_active(NULL), 0);
	ck_assert_int_eq(o.fp8_gemm(NULL, 0), 0);
	ck_assert_str_eq(te_error_detail(), "");
}

static int mine(struct te_backend_info *ret)
{
	ret->ndevices = 7;
	return 0;
}

TEST_IF(table, keeps_what_a_backend_has, ON_HOST)
{
	struct te__backend_ops o = { .name = "one", .probe = mine };
	struct te_backend_info b = TE_BACKEND_INFO_INIT;

	te__backend_fill(&o);
	ck_assert_int_eq(o.probe(&b), 0);
	ck_assert_int_eq(b.ndevices, 7);
	ck_assert_str_eq(o.name, "one");
}

TEST_IF(table, lists_cuda_then_host, ON_HOST)
{
	ck_assert_int_eq(te__backend_count(), 2);
	ck_assert_str_eq(te__backend_at(0)->name, "cuda");
	ck_assert_str_eq(te__backend_at(1)->name, "host");
	ck_assert_ptr_null(te__backend_at(2));
	ck_assert_ptr_null(te__backend_at(-1));
	ck_assert_ptr_eq(te__backend_by_name("host"), te__backend_at(1));
	ck_assert_ptr_eq(te__backend_by_name("cuda"), te__backend_at(0));
	ck_assert_ptr_null(te__backend_by_name("hos"));
	/* a hole of the host's table is filled */
	ck_assert_ptr_null(te__backend_host.stream_native);
	ck_assert_ptr_nonnull(te__backend_by_name("host")->stream_native);
}

/* of too much memory sanitizers make an end, unless told that the program copes */
TE_EXPORT const char *__asan_default_options(void);
TE_EXPORT const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}

TT_PAIR_SUITE("backend/backend")
{
	if (ON_HOST) {
		/* so that memory runs out before the machine's does, and is all accounted for */
		setenv("TE_DEVICE_MEM_LIMIT", "64M", 1);
		/* cases of branches wait for each other's nodes, also on a machine of one core */
		setenv("TE_HOST_THREADS", "4", 1);
	}
}
