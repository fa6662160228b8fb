/*
 * any.cu - GEMMs of BF16 and of FP8 with one scale in any layout, on every GPU: where there is no
 * cuBLASLt, and with TE_GEMM_PROVIDER=mma. sm_80. t/kernels/block.cc emulates it on the host.
 *
 *  kernel     a                  b                  d                   blocks   threads  shared
 *  gemm_any   BF16, FP8 [m, k]   BF16, FP8 [n, k]   BF16, FP32 [m, n]   128x128  256      64 KiB
 *             or BF16 [k, m]     or BF16 [k, n]
 *
 * Extents and alignment are any. BF16 holds the value of each FP8 code, so that products are exact
 * in FP32, as on the host. Sums over k are FP32, and d is rounded once.
 *
 * A step is 64 elements of k, of which a thread has 32 of a row of a and of b.
 */
#include "kernels/gemm/decode.cuh"

#define WORDS 4		       /* 16-byte words of a thread in a step, 8 elements each */
#define THREADS_ROW (STEP / (8 * WORDS))

/* the row of an operand that this thread loads */
struct any_row {
	typedef uint4 elements[WORDS];
	const char *p;
	int64_t rows, row, k;
	int dtype;
	bool t;	      /* [k, rows], else [rows, k] */
	bool aligned; /* to 8 elements, for any of them */
};

DEV any_row any_row_of(const void *p, int64_t rows, int64_t k, int row0, int dtype, bool t)
{
	const int nbytes = dtype == TE_D_BF16 ? 16 : 8;

	return { (const char *)p, rows, row0 + (int)threadIdx.x / THREADS_ROW, k, dtype, t,
		 !t && k % 8 == 0 && (uintptr_t)p % nbytes == 0 };
}

/* two codes as two elements of BF16 */
DEV uint32_t fp8_pair(uint32_t codes, int dtype)
{
	const float2 v = fp8x2_values(codes, dtype == TE_D_E5M2);

	return __byte_perm(__float_as_uint(v.x), __float_as_uint(v.y), 0x7632);
}

/* an element, or 0 where the operand has none */
DEV uint32_t any_element(const any_row &o, int64_t k)
{
	const int64_t at = o.t ? k * o.rows + o.row : o.row * o.k + k;

	if (o.row >= o.rows || k >= o.k)
		return 0;
	if (o.dtype == TE_D_BF16)
		return ((const unsigned short *)o.p)[at];
	return fp8_pair(((const uint8_t *)o.p)[at], o.dtype) & 0xffff;
}

/* elements k to k + 7 */
DEV uint4 any_word(const any_row &o, int64_t k)
{
	uint32_t w[4];

	if (o.aligned && o.row < o.rows && k < o.k) {
		const int64_t at = o.row * o.k + k;

		if (o.dtype == TE_D_BF16)
			return ((const uint4 *)o.p)[at / 8];

		const uint2 c = ((const uint2 *)o.p)[at / 8];

		return make_uint4(fp8_pair(c.x, o.dtype), fp8_pair(c.x >> 16, o.dtype),
				  fp8_pair(c.y, o.dtype), fp8_pair(c.y >> 16, o.dtype));
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] = any_element(o, k + 2 * i) | any_element(o, k + 2 * i + 1) << 16;
	return make_uint4(w[0], w[1], w[2], w[3]);
}

DEV void load_step(const any_row &o, int step, uint4 x[WORDS])
{
	const int first = (int)threadIdx.x % THREADS_ROW * WORDS;

#pragma unroll
	for (int i = 0; i < WORDS; i++)
		x[i] = any_word(o, (int64_t)step * STEP + 8 * (first + i));
}

DEV void store_step(const any_row &, uint4 *to, const uint4 x[WORDS])
{
	const int row = threadIdx.x / THREADS_ROW, first = threadIdx.x % THREADS_ROW * WORDS;

#pragma unroll
	for (int i = 0; i < WORDS; i++)
		to[word_at(0, row, first + i) / sizeof(*to)] = x[i];
}

DEV void any_body(const struct te_k_gemm &a)
{
	const gemm_tile t = gemm_tile_of_grid(a);
	const any_row x = any_row_of(a.a, te_k_gemm_a_rows(&a), a.k, t.m0, a.adtype, a.a_t);
	const any_row y = any_row_of(a.b, te_k_gemm_b_rows(&a), a.k, t.n0, a.bdtype, a.b_t);
	float scale = a.alpha;
	gemm_sums sum = {};

	if (a.sa)
		scale = mul(scale, *a.sa);
	if (a.sb)
		scale = mul(scale, *a.sb);
	multiply_decoded(x, y, t, sum);
	gemm_tile_store(a, t, scale, sum);
}

extern "C" __global__ void __launch_bounds__(BLOCK_GEMM_THREADS)
te_k_gemm_any(const __grid_constant__ struct te_k_gemm a)
{
	te_begin();
	any_body(a);
}
