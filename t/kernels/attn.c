/*
 * t/kernels/attn.c - attention on either backend; the host defines the results; and the launch
 * geometry of the cuda backend.
 */
#include "config.h"

#include <te/dtype.h>
#include <te/errno.h>

#include "tt_ctx.h"
#include "kernels/te_k.h"
#include "kernels/launch.h"

/* an address, aligned to 16 bytes for element 0 */
static void *element(int at, int32_t dtype)
{
	return (void *)(uintptr_t)(4096 + at * (dtype == TE_DTYPE_BF16 ? 2 : 4));
}

/* the fields that both passes share */
#define SHAPE_OF(dim, type)                                                    \
	.seqlen = 64, .nheads = 4, .nkv = 4, .head_dim = (dim), .scale = 1.0f, \
	.dtype = (type)

static int geometry_of(enum te_k_id id, const void *args)
{
	struct te__geometry k;

	return te__geometry(id, args, &k);
}

static int fwd_of(int head_dim, int32_t dtype, int qkv, int out)
{
	const struct te_k_attn_fwd a = {
		.qkv = element(qkv, dtype),
		.out = element(out, dtype),
		SHAPE_OF(head_dim, dtype), .batch = 1,
	};

	return geometry_of(TE_K_ATTN_FWD, &a);
}

static int bwd_of(enum te_k_id id, int head_dim, int at)
{
	const struct te_k_attn_bwd a = {
		.qkv = element(at == 0, TE_DTYPE_BF16),
		.out = element(at == 1, TE_DTYPE_BF16),
		.dout = element(at == 2, TE_DTYPE_BF16),
		.dqkv = element(at == 3, TE_DTYPE_BF16),
		SHAPE_OF(head_dim, TE_DTYPE_BF16), .batch = 1,
	};

	return geometry_of(id, &a);
}

CASE(geometry, "cuda");

/* the device kernels load 16 bytes at a time if a head is a multiple of 16 bytes */
TEST_IF(geometry, cuda_refuses_unaligned_heads, ON_HOST)
{
	static const enum te_k_id bwd[] = { TE_K_ATTN_BWD_PRE, TE_K_ATTN_BWD_DKV,
					    TE_K_ATTN_BWD_DQ, TE_K_ATTN_BWD_BIAS };

	ck_assert_int_eq(fwd_of(64, TE_DTYPE_BF16, 0, 0), 0);
	ck_assert_int_eq(fwd_of(64, TE_DTYPE_BF16, 8, 16), 0);
	ck_assert_int_eq(fwd_of(64, TE_DTYPE_BF16, 1, 0), -EINVAL);
	ck_assert_msg(strstr(te_error_detail(), "aligned to 16 bytes") != NULL, "%s",
		      te_error_detail());
	ck_assert_int_eq(fwd_of(64, TE_DTYPE_BF16, 0, 7), -EINVAL);
	ck_assert_int_eq(fwd_of(60, TE_DTYPE_BF16, 1, 7), 0);
	ck_assert_int_eq(fwd_of(60, TE_DTYPE_FP32, 1, 0), -EINVAL);
	ck_assert_int_eq(fwd_of(61, TE_DTYPE_FP32, 1, 2), 0);
	for (size_t i = 0; i < TT_LEN(bwd); i++)
		for (int at = 0; at < 5; at++) {
			ck_assert_int_eq(bwd_of(bwd[i], 64, at), at < 4 ? -EINVAL : 0);
			ck_assert_int_eq(bwd_of(bwd[i], 60, at), 0);
		}
}

/* the tables of device functions and the shared arrays of cached.cu end at 256 channels, and FP32
 * at 128 */
TEST_IF(geometry, cuda_refuses_wide_heads, ON_HOST)
{
	static const enum te_k_id bwd[] = { TE_K_ATTN_BWD_PRE, TE_K_ATTN_BWD_DKV,
					    TE_K_ATTN_BWD_DQ, TE_K_ATTN_BWD_BIAS };
	static const enum te_k_id cached[] = { TE_K_ATTN_APPEND, TE_K_ATTN_CACHED };

	for (int d = 127; d < 258; d += d == 129 ? 126 : 1) {
		const int want = d > 256 ? -EOPNOTSUPP : 0;
		const struct te_k_attn_cached c = {
			.rows = 1, .nheads = 2, .nkv = 1, .head_dim = d, .scale = 1.0f,
			.dtype = TE_DTYPE_BF16, .cache_dtype = TE_DTYPE_FP32,
		};

		ck_assert_int_eq(fwd_of(d, TE_DTYPE_FP32, 0, 0), d > 128 ? -EOPNOTSUPP : 0);
		if (d > 128)
			ck_assert_msg(strstr(te_error_detail(), "of 1 to 128 in fp32, not") != NULL,
				      "%s", te_error_detail());
		ck_assert_int_eq(fwd_of(d, TE_DTYPE_BF16, 0, 0), want);
		for (size_t i = 0; i < TT_LEN(bwd); i++)
			ck_assert_int_eq(bwd_of(bwd[i], d, 4), want);
		for (size_t i = 0; i < TT_LEN(cached); i++)
			ck_assert_int_eq(geometry_of(cached[i], &c), want);
		if (want)
			ck_assert_msg(strstr(te_error_detail(), "of 1 to 256 in ") != NULL, "%s",
				      te_error_detail());
	}
}

/* every level has the shared memory that blocks take */
TEST_IF(geometry, cuda_blocks_fit, ON_HOST)
{
	static const int levels[] = { 80, 86, 89, 90 };

	for (size_t l = 0; l < TT_LEN(levels); l++)
		for (int n = 0; n < 8 * 256; n++) {
			const struct te__target target = te__target_of(levels[l]);
			const int64_t batch = n & 4 ? 100 : 1;
			const struct te_k_attn_fwd f = {
				.threshold = n & 1, .full = n >> 1 & 1,
				SHAPE_OF(1 + n / 8, TE_DTYPE_BF16), .batch = batch,
			};
			const struct te_k_attn_bwd b = {
				.threshold = n & 1, .full = n >> 1 & 1,
				SHAPE_OF(1 + n / 8, TE_DTYPE_BF16), .batch = batch,
			};
			struct te__geometry k;

			ck_assert_int_eq(te__geometry_for(&target, TE_K_ATTN_FWD, &f, &k), 0);
			ck_assert_uint_le(k.smem, target.smem_max);
			ck_assert_int_eq(te__geometry_for(&target, TE_K_ATTN_BWD_DKV, &b, &k), 0);
			ck_assert_uint_le(k.smem, target.smem_max);
			ck_assert_int_eq(te__geometry_for(&target, TE_K_ATTN_BWD_DQ, &b, &k), 0);
			ck_assert_uint_le(k.smem, target.smem_max);
		}
}

TT_PAIR("kernels/attn", TT_ONE_PROCESS)
