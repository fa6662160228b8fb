/*
 * mx.cu - GEMMs of recipes mxfp8 and nvfp4 on every GPU: codes are decoded to BF16. sm_80.
 * t/kernels/block.cc emulates them on the host.
 *
 *  kernel       a                 b             d                   blocks   threads  shared
 *  gemm_mxfp8   FP8 [m, k], 1X32  FP8 [n, k]    BF16, FP32 [m, n]   128x128  256      64 KiB
 *  gemm_nvfp4   E2M1 [m, k]       E2M1 [n, k]   the same
 *
 * k is a multiple of 16, rows of FP8 are aligned to 16 bytes and of E2M1 to 8; d and bias have any
 * alignment.
 *
 * BF16 holds the product of a code and the scale of its block: it has 4 significant bits in mxfp8,
 * 6 in nvfp4, and the exponents of FP32. So does the upper half of its FP32 word, which is stored;
 * below 2^-126 that is the next multiple of 2^-133 towards zero. Products are exact in FP32, as on
 * the host, and sums are FP32. The words for whole copies of nvfp4, which the host multiplies
 * scales with, are multiplied with the sums.
 *
 * A step is 64 elements of k, of which a thread has 32 of a row of a and of b.
 */
#include "kernels/gemm/decode.cuh"

#define PIECE 16	       /* elements that a thread decodes at once */
#define PIECES 2	       /* pieces of a thread in a step */

/* 16 codes, and their scale */
struct mx_piece {
	uint4 code;
	uint32_t scale;
};

/* the row of an operand [rows, k] that this thread decodes */
template <bool FP4> struct mx_row {
	typedef mx_piece elements[PIECES];
	const uint8_t *p;
	const uint8_t *scale; /* the operand's */
	int64_t rows, row, k;
	bool e5m2;
};

template <bool FP4>
DEV mx_row<FP4> mx_row_of(const void *p, const float *scale, int64_t rows, int64_t k, int row0,
			  int dtype)
{
	return { (const uint8_t *)p, (const uint8_t *)scale, rows,
		 row0 + (int)threadIdx.x / PIECES, k, dtype == TE_D_E5M2 };
}

/* zeros where the operand has no elements */
template <bool FP4>
DEV void load_step(const mx_row<FP4> &o, int step, mx_piece x[PIECES])
{
	const int scaling = FP4 ? TE_K_SCALING_1X16 : TE_K_SCALING_1X32;

#pragma unroll
	for (int i = 0; i < PIECES; i++) {
		const int64_t k = (int64_t)step * STEP +
				  ((int)threadIdx.x % PIECES * PIECES + i) * PIECE;
		const uint8_t *p = o.p + (o.row * o.k + k) / (FP4 ? 2 : 1);

		x[i] = { make_uint4(0, 0, 0, 0), 0 };
		if (o.row >= o.rows || k >= o.k)
			continue;
		if (FP4) {
			const uint2 half = *(const uint2 *)p;

			x[i].code = make_uint4(half.x, half.y, 0, 0);
		} else {
			x[i].code = *(const uint4 *)p;
		}
		x[i].scale = o.scale[te_k_scale_index(scaling, o.rows, o.k, o.row, k)];
	}
}

/* times the first factor, a code whose bits have the places of FP32's is its value */
DEV float e2m1_value(uint32_t c)
{
	return mul(__uint_as_float((c & 8) << 28 | (c & 7) << 22), 0x1p126f);
}

/* te__h_scale_get(), without the word of nvfp4 */
template <bool FP4> DEV float mx_scale(uint32_t byte)
{
	if (FP4)
		return te__e4m3_decode((uint8_t)byte);
	return __uint_as_float(byte == 255 ? TE__F32_NAN : byte ? byte << 23 : 0x00400000u);
}

/* elements e and e + 1 of a piece in BF16 */
template <bool FP4> DEV uint32_t mx_pair(const mx_piece &x, int e, float scale, bool e5m2)
{
	const uint32_t w[4] = { x.code.x, x.code.y, x.code.z, x.code.w };
	const uint32_t c = FP4 ? w[e / 8] >> e % 8 * 4 : w[e / 4] >> e % 4 * 8;
	const float2 v = FP4 ? make_float2(e2m1_value(c), e2m1_value(c >> 4)) :
			       fp8x2_values(c, e5m2);

	return __byte_perm(__float_as_uint(mul(v.x, scale)), __float_as_uint(mul(v.y, scale)),
			   0x7632);
}

/* the pieces of this thread in BF16, two words of 16 bytes each */
template <bool FP4>
DEV void store_step(const mx_row<FP4> &o, uint4 *to, const mx_piece x[PIECES])
{
	const int row = threadIdx.x / PIECES, first = threadIdx.x % PIECES * PIECES * 2;

#pragma unroll
	for (int i = 0; i < PIECES; i++) {
		const float scale = mx_scale<FP4>(x[i].scale);

#pragma unroll
		for (int half = 0; half < 2; half++) {
			uint32_t w[4];

#pragma unroll
			for (int j = 0; j < 4; j++)
				w[j] = mx_pair<FP4>(x[i], 8 * half + 2 * j, scale, o.e5m2);
			to[word_at(0, row, first + 2 * i + half) / sizeof(*to)] =
				make_uint4(w[0], w[1], w[2], w[3]);
		}
	}
}

template <bool FP4> DEV void mx_body(const struct te_k_gemm &a)
{
	const gemm_tile t = gemm_tile_of_grid(a);
	const mx_row<FP4> x = mx_row_of<FP4>(a.a, a.sa, te_k_gemm_a_rows(&a), a.k, t.m0, a.adtype);
	const mx_row<FP4> y = mx_row_of<FP4>(a.b, a.sb, te_k_gemm_b_rows(&a), a.k, t.n0, a.bdtype);
	gemm_sums sum = {};

	multiply_decoded(x, y, t, sum);
	gemm_tile_store(a, t, FP4 ? mul(mul(a.alpha, *a.sa), *a.sb) : a.alpha, sum);
}

#define MX_GEMM(NAME, FP4)                                                      \
	extern "C" __global__ void __launch_bounds__(BLOCK_GEMM_THREADS, 2)     \
	te_k_gemm_##NAME(const __grid_constant__ struct te_k_gemm a)            \
	{                                                                       \
		te_begin();                                                     \
		mx_body<FP4>(a);                                                \
	}
MX_GEMM(mxfp8, false)
MX_GEMM(nvfp4, true)
