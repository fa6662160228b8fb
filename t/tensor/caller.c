/* t/tensor/caller.c - what a program brings along, on the host backend. */
#include "config.h"

#include <stddef.h>

#include <te/ctx.h>
#include <te/errno.h>

#include "caller_cases.h"
#include "tt_ctx.h"

/* TE_DEVICE_MEM_LIMIT is read when a context is created: each test is a process of its own */

static void check_total(uint64_t option, uint64_t want)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_mem_info m = TE_MEM_INFO_INIT;
	struct te_ctx *c;

	o.backend = "host";
	o.mem_limit_nbytes = option;
	DO(te_ctx_create(&o, &c));
	DO(te_ctx_mem_info(c, &m));
	ck_assert_uint_eq(m.device_total_nbytes, want);
	te_ctx_unref(c);
}

CASE(environment, "host fast");

TEST(environment, the_lower_limit_holds)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	setenv("TE_DEVICE_MEM_LIMIT", "3M", 1);
	check_total(0, 3 << 20);
	check_total(5 << 20, 3 << 20);
	check_total(1 << 20, 1 << 20);
	/* the machine has more */
	DO(te_device_info("host", 0, &d));
	ck_assert_uint_gt(d.mem_total_nbytes, 16 << 20);
	check_total(d.mem_total_nbytes + 1, 3 << 20);
}

TEST(environment, a_limit_above_the_memory_is_none)
{
	struct te_device_info d = TE_DEVICE_INFO_INIT;

	DO(te_device_info("host", 0, &d));
	check_total(0, d.mem_total_nbytes);
	check_total(UINT64_MAX, d.mem_total_nbytes);
}

CASE(options, "host fast");

TEST(options, the_host_has_no_cucontext)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_ctx *c = NULL;

	o.backend = "host";
	o.native = &o;
	fails(te_ctx_create(&o, &c), -EOPNOTSUPP, "no CUcontext");
	ck_assert_ptr_null(c);
}

/* a program that was compiled before there were limits and allocators */
TEST(options, options_of_an_older_header_are_accepted)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_ctx *c;

	o.size = offsetof(struct te_ctx_opts, mem_limit_nbytes);
	o.backend = "host";
	o.mem_limit_nbytes = 1;
	memset(&o.alloc, 0xff, sizeof(o.alloc));
	DO(te_ctx_create(&o, &c));
	te_ctx_unref(c);
}

static void *no_native(void)
{
	return NULL;
}

TT_SUITE("tensor/caller", TT_NEED_NOTHING)
{
	caller_native = no_native;
}
