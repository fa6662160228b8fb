/*
 * t/ops/gemm.c - te_gemm(3) on either backend, and which GEMMs the cuda backend computes by kernels
 * of its own.
 */
#include "config.h"

#include <te/dtype.h>
#include <te/errno.h>

#include "tt_ctx.h"
#include "kernels/te_k.h"
#include "kernels/launch.h"

/* operands at multiples of 16 bytes; D and a BF16 bias @at bytes after one */
static struct te_k_gemm gemm(int64_t m, int64_t n, int64_t k, int a_t, int b_t, enum te_dtype ab,
				enum te_dtype d, uintptr_t at)
{
	return (struct te_k_gemm){
		.a = (const void *)4096,
		.b = (const void *)8192,
		.d = (void *)(16384 + at),
		.bias = d == TE_DTYPE_BF16 ? (const void *)(4096 + at) : NULL,
		.m = m,
		.n = n,
		.k = k,
		.a_t = a_t,
		.b_t = b_t,
		.alpha = 1.0f,
		.adtype = (int32_t)ab,
		.bdtype = (int32_t)ab,
		.cdtype = (int32_t)d,
		.ddtype = (int32_t)d,
	};
}

/* the function and "blocks x blocks x threads", or "cuBLASLt" */
static const char *cuda_runs(struct te_k_gemm g)
{
	static char text[128];
	struct te__geometry k;

	if (!te__gemm_has_kernel(&g))
		return "cuBLASLt";
	ck_assert_int_eq(te__geometry(TE_K_GEMM, &g, &k),
			 0);
	ck_assert_uint_le(k.smem, 192 << 10);
	snprintf(text, sizeof(text), "%s %ux%ux%u", k.func, k.grid[0], k.grid[1], k.block[0]);
	return text;
}

CASE(geometry, "cuda");

TEST_IF(geometry, cuda_computes_small_gemms_itself, ON_HOST)
{
	const enum te_dtype bf16 = TE_DTYPE_BF16, fp32 = TE_DTYPE_FP32, e4m3 = TE_DTYPE_E4M3;

#define RUNS(text, ...) ck_assert_str_eq(cuda_runs(gemm(__VA_ARGS__)), text)
	RUNS("te_k_gemm_small_m_bf16_bf16 64x4x128", 64, 1024, 256, 0, 0, bf16, bf16, 0);
	RUNS("te_k_gemm_small_m_bf16_bf16_unaligned 64x4x128", 64, 1024, 256, 0, 0, bf16, bf16, 2);
	RUNS("te_k_gemm_small_m_bf16_bf16 64x4x128", 64, 1024, 256, 0, 0, bf16, bf16, 4);
	RUNS("te_k_gemm_few_rows_bf16 128x1x256", 8, 1024, 256, 0, 0, bf16, bf16, 0);
	RUNS("te_k_gemm_few_rows_bf16 132x1x256", 1, 128256, 2048, 0, 0, bf16, bf16, 0);
	RUNS("te_k_gemm_small_m_bf16_bf16_unaligned 64x1x128", 8, 1024, 256, 0, 0, bf16, bf16, 2);
	RUNS("te_k_gemm_small_m_bf16_bf16 64x1x128", 9, 1024, 256, 0, 0, bf16, bf16, 0);
	RUNS("cuBLASLt", 9, 128256, 2048, 0, 0, bf16, bf16, 0);
	RUNS("cuBLASLt", 8, 1 << 20, 1024, 0, 0, bf16, bf16, 0); /* offsets above 2^31 */
	RUNS("te_k_gemm_small_m_bf16_bt 16x4x512", 64, 256, 1024, 0, 1, bf16, bf16, 0);
	RUNS("te_k_gemm_small_m_bf16_bt 1x1x128", 1, 8, 64, 0, 1, bf16, bf16, 0);
	RUNS("te_k_gemm_small_m_e4m3_e4m3 64x4x128", 64, 1024, 512, 0, 0, e4m3, bf16, 0);
	RUNS("cuBLASLt", 65, 1024, 256, 0, 0, bf16, bf16, 0);
	RUNS("cuBLASLt", 64, 1032, 256, 0, 0, bf16, bf16, 0); /* 512 KiB of weights and more */
	RUNS("cuBLASLt", 64, 1024, 224, 0, 0, bf16, bf16, 0);
	RUNS("cuBLASLt", 64, 1020, 256, 0, 0, bf16, bf16, 0);
	RUNS("cuBLASLt", 64, 1024, 256, 1, 0, bf16, bf16, 0);
	RUNS("cuBLASLt", 64, 1024, 64, 0, 0, e4m3, bf16, 0);
	RUNS("cuBLASLt", 64, 256, 256, 0, 0, fp32, fp32, 0);
	RUNS("te_k_gemm_short_k_bf16_tt 4x32x128", 1024, 256, 64, 1, 1, bf16, fp32, 0);
	RUNS("te_k_gemm_short_k_bf16_tt 1x1x128", 8, 8, 1, 1, 1, bf16, fp32, 0);
	RUNS("te_k_gemm_short_k_bf16_tt_unaligned 4x32x128", 1024, 256, 64, 1, 1, bf16, fp32, 4);
	RUNS("te_k_gemm_short_k_e4m3_e4m3 16x32x128", 1024, 1024, 128, 0, 0, e4m3, fp32, 0);
	RUNS("te_k_gemm_short_k_e4m3_e4m3_unaligned 4x32x128", 1024, 256, 64, 0, 0, e4m3, fp32, 8);
	RUNS("cuBLASLt", 1024, 256, 129, 1, 1, bf16, fp32, 0);
	RUNS("cuBLASLt", 1024, 256, 64, 0, 0, bf16, fp32, 0);
	RUNS("cuBLASLt", 1024, 1032, 64, 1, 1, bf16, fp32, 0);
	RUNS("cuBLASLt", 1020, 256, 64, 1, 1, bf16, fp32, 0);
	RUNS("cuBLASLt", 1024, 256, 80, 0, 0, e4m3, fp32, 0);
#undef RUNS
}

/* any.cu takes a large GEMM of BF16; none takes FP32 */
TEST_IF(geometry, cuda_has_no_kernel_for_a_gemm_of_fp32, ON_HOST)
{
	struct te_k_gemm g = gemm(65, 1024, 256, 0, 0, TE_DTYPE_BF16, TE_DTYPE_BF16, 0);
	struct te__geometry k;

	ck_assert_int_eq(te__geometry(TE_K_GEMM, &g, &k), 0);
	ck_assert_str_eq(k.func, "te_k_gemm_any");
	ck_assert_uint_eq(k.grid[0], 8);
	g.adtype = g.bdtype = g.cdtype = g.ddtype = TE_DTYPE_FP32;
	ck_assert_int_eq(te__geometry(TE_K_GEMM, &g, &k), -TE_EKERNEL);
	tt_said("a GEMM of m 65, n 1024, k 256, fp32 by fp32 to fp32");
}

/* every GPU has one kernel for each recipe of scales in bytes, and never cuBLASLt */
TEST_IF(geometry, cuda_computes_mxfp8_and_nvfp4_itself, ON_HOST)
{
	struct te_k_gemm g = gemm(130, 1024, 48, 0, 0, TE_DTYPE_E4M3, TE_DTYPE_BF16, 2);
	struct te__geometry k;
	struct te__target t;

	g.asc = g.bsc = TE_K_SCALING_1X32;
	for (int arch = 80; arch <= 90; arch += 10) {
		t = te__target_of(arch);
		g.adtype = g.bdtype = TE_DTYPE_E4M3;
		g.asc = g.bsc = TE_K_SCALING_1X32;
		ck_assert_int_eq(te__geometry_for(&t, TE_K_GEMM, &g, &k), 0);
		ck_assert_str_eq(k.func, "te_k_gemm_mxfp8");
		ck_assert(k.grid[0] == 16 && k.block[0] == 256 && k.smem == 64 << 10);
		g.adtype = g.bdtype = TE_DTYPE_E2M1;
		g.asc = TE_K_SCALING_16X16;
		g.bsc = TE_K_SCALING_1X16;
		ck_assert_int_eq(te__geometry_for(&t, TE_K_GEMM, &g, &k), 0);
		ck_assert_str_eq(k.func, "te_k_gemm_nvfp4");
	}
	g.b_rows = (int64_t)1 << 31;
	ck_assert(!te__gemm_is_mx(&g));
	ck_assert_int_eq(te__geometry(TE_K_GEMM, &g, &k), -TE_EKERNEL);
	tt_said("a GEMM of m 130, n 1024, k 48, e2m1 by e2m1 to bf16");
}

TT_PAIR("ops/gemm", TT_ONE_PROCESS)
