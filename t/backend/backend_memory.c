/* t/backend/backend_memory.c - devices and their memory. */
#include "config.h"

#include <limits.h>

#include <te/ctx.h>
#include <te/errno.h>

#include "backend_lib.h"
#include "tt_ctx.h"

/* ---- devices ---- */

BK_CASE(device);

TEST(device, describes_its_device)
{
	struct te_backend_info i = TE_BACKEND_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	uint64_t left = 0;

	DO(ops->probe(&i));
	ck_assert_int_ge(i.ndevices, 1);
	ck_assert_str_eq(i.reason, "");
	DO(ops->device_info(0, &d));
	ck_assert_str_ne(d.name, "");
	ck_assert_int_eq(d.usable, 1);
	ck_assert_str_eq(d.reason, "");
	/* a CPU has no compute capability */
	ck_assert_int_eq(d.cc_major, is_host ? 0 : 9);
	ck_assert_int_eq(d.cc_minor, 0);
	ck_assert_int_ge(d.nprocs, 1);
	ck_assert_uint_gt(d.mem_total_nbytes, 0);
	DO(ops->free_nbytes(0, &left));
	ck_assert_uint_gt(left, 0);
	ck_assert_uint_le(left, d.mem_total_nbytes);
	/* rates are known of Hopper GPUs only */
	ck_assert_int_eq(d.peak_fp8_flops > 0, !is_host);
	ck_assert_int_eq(d.peak_bandwidth > 0, !is_host);
}

TEST(device, refuses_a_device_that_is_not_there)
{
	struct te_backend_info i = TE_BACKEND_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	int bad[3] = { -1, 0, INT_MAX };
	uint64_t left = 7;
	void *p = &i;
	char text[16];

	DO(ops->probe(&i));
	bad[1] = i.ndevices;
	for (size_t k = 0; k < TT_LEN(bad); k++) {
		snprintf(text, sizeof(text), "device %d", bad[k]);
		ck_assert_int_eq(ops->device_info(bad[k], &d), -EINVAL);
		tt_said(text);
		te_error_clear();
		ck_assert_int_eq(ops->free_nbytes(bad[k], &left), -EINVAL);
		tt_said(text);
		te_error_clear();
		ck_assert_int_eq(ops->open(&(struct te__open){ .device = bad[k] }, &p), -ENODEV);
		tt_said(text);
		te_error_clear();
	}
	ck_assert_ptr_eq(p, &i);
	ck_assert_uint_eq(left, 7);
	ck_assert_str_eq(d.name, "");
}

TEST(device, opens_a_device_twice)
{
	void *d, *s, *p;

	DO(ops->open(&(struct te__open){ 0 }, &d));
	DO(ops->stream_create(d, &s));
	DO(ops->mem_alloc(s, 1000, &p));
	DO(ops->fill8(s, p, 0x3c, 1000));
	DO(ops->stream_sync(s));
	bk_check_filled(p, 0x3c, 1000, "memory of the other handle");
	DO(ops->mem_free(s, p, 1000));
	ops->stream_destroy(s);
	ops->close(d);
	/* the first one stays as it was */
	p = bk_get(DEVICE, 100);
	DO(ops->fill8(a, p, 1, 100));
	bk_check_filled(p, 1, 100, "memory of the first handle");
}

TEST(device, counts_its_memory)
{
	const size_t n = (8 << 20) + 13;
	struct te__mem_held h;
	uint64_t before, left, total;
	void *p;

	DO(ops->mem_alloc(a, n, &p));
	DO(ops->mem_free(a, p, n));
	before = bk_held().used_nbytes;
	DO(ops->mem_alloc(a, n, &p));
	h = bk_held();
	ck_assert_uint_ge(h.used_nbytes, before + n);
	ck_assert_uint_lt(h.used_nbytes, before + n + (2 << 20));
	/* other users of a GPU may come and go: what is free is not compared */
	DO(ops->dev_mem(dev, &left, &total));
	ck_assert_uint_gt(left, 0);
	ck_assert_uint_le(left + n, total);
	DO(ops->mem_free(a, p, n));
	bk_check_held(before, "alloc and free");
	ck_assert_uint_ge(bk_held().peak_nbytes, h.used_nbytes);
}

/* the host has no native stream */
TEST(device, shows_native_streams)
{
	if (is_host) {
		ck_assert_ptr_null(ops->stream_native(a));
		return;
	}
	ck_assert_ptr_nonnull(ops->stream_native(a));
	ck_assert_ptr_ne(ops->stream_native(a), ops->stream_native(b));
}

/* ---- memory ---- */

#define NBLOCKS 24

BK_CASE(memory);

TEST(memory, allocations_are_aligned_and_apart)
{
	unsigned char *p[NBLOCKS];
	size_t n[NBLOCKS];

	for (int i = 0; i < NBLOCKS; i++) {
		n[i] = (size_t)tt_rand_int(1, i % 2 ? 300 : 100000);
		p[i] = bk_get(DEVICE, n[i]);
		ck_assert_uint_eq((uintptr_t)p[i] % 256, 0);
		DO(ops->fill8(a, p[i], (uint8_t)(i + 1), n[i]));
	}
	for (int i = 0; i < NBLOCKS; i++)
		bk_check_filled(p[i], i + 1, n[i], "a block");
}

/* more than there is in all: what is queued to be freed counts as free */
TEST(memory, memory_comes_and_goes_in_stream_order)
{
	const size_t n = (5 << 20) + 3;
	unsigned char *out = bk_get(PINNED, 40);
	void *p;

	for (int i = 0; i < 40; i++) {
		DO(ops->mem_alloc(a, n, &p));
		DO(ops->fill8(a, p, (uint8_t)i, n));
		DO(ops->copy(a, out + i, (char *)p + n - 1, 1));
		DO(ops->mem_free(a, p, n));
	}
	DO(ops->stream_sync(a));
	for (int i = 0; i < 40; i++)
		ck_assert_int_eq(out[i], i);
}

TEST(memory, too_much_is_refused_with_the_sizes)
{
	uint64_t left, total, before = bk_held().used_nbytes;
	void *p = &total;
	char text[32];
	size_t n[2];

	DO(ops->dev_mem(dev, &left, &total));
	n[0] = (size_t)total + 1;
	n[1] = (size_t)(total + total / 2);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(ops->mem_alloc(a, n[i], &p), -ENOMEM);
		snprintf(text, sizeof(text), "%zu bytes", n[i]);
		tt_said(text);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)total);
		tt_said(text);
		ck_assert_ptr_eq(p, &total);
		te_error_clear();
	}
	bk_check_held(before, "a refused allocation");
	/* the stream is none the worse for it */
	p = bk_get(DEVICE, 1001);
	DO(ops->fill8(a, p, 0x77, 1001));
	bk_check_filled(p, 0x77, 1001, "memory after a refusal");
}

TEST(memory, pinned_memory_is_the_cpus)
{
	const size_t n = 12345;
	unsigned char *p = bk_get(PINNED, n), *q = bk_get(PINNED, 1), *d = bk_get(DEVICE, n);
	unsigned char *want = bk_get(PAGEABLE, n);

	tt_fill_bytes(want, n);
	memcpy(p, want, n);
	*q = 9;
	DO(ops->copy(a, d, p, n));
	DO(ops->stream_sync(a));
	memset(p, 0, n);
	DO(ops->copy(a, p, d, n));
	DO(ops->stream_sync(a));
	ck_assert_int_eq(memcmp(p, want, n), 0);
	ck_assert_int_eq(*q, 9);
}

/*
 * More than an address space holds. The driver may call such a size invalid rather than too
 * much: both promise an error with a message.
 */
TEST(memory, too_much_pinned_memory_is_refused)
{
	void *p = &p;
	int r = ops->pinned_alloc(dev, (size_t)PTRDIFF_MAX - 4096, &p);

	ck_assert_msg(r == -ENOMEM || (!is_host && r == -TE_ECUDA), "%d", r);
	ck_assert_str_ne(te_error_detail(), "");
	ck_assert_ptr_eq(p, &p);
	p = bk_get(PINNED, 3);
	memset(p, 1, 3);
}
