/* attn/quantize.cuh - FP8 codes and amax of the result of attention, from shared memory. */
#ifndef TE_ATTN_QUANTIZE_CUH
#define TE_ATTN_QUANTIZE_CUH

#include "kernels/attn/dev.cuh"
#include "kernels/fp8.cuh"

DEV bool quantizes(const struct te_k_q &q)
{
	return q.row || q.col || q.amax;
}

/* once per launch */
DEV void out_scale_inv(const struct te_k_q &q)
{
	if ((q.row || q.col) && !(threadIdx.x | blockIdx.x | blockIdx.y | blockIdx.z))
		*q.scale_inv = __fdiv_rn(1.0f, *q.scale);
}

/* the codes of two numbers times scale */
DEV uint32_t codes2(int dtype, uint16_t lo, uint16_t hi, float scale)
{
	return fp8x2(dtype, __fmul_rn(bf16_to_float(lo), scale),
		     __fmul_rn(bf16_to_float(hi), scale));
}

/*
 * The element of row r and column c of a tile whose rows are LD elements apart. Without padding,
 * rows of LD = 128 are swizzled: the 16 bytes in column 8 i are where those in column 8 (i ^ r % 8)
 * would be, so that eight rows have them in different banks. Tiles begin at a multiple of 8 rows.
 */
template <int LD> DEV int tile_index(int r, int c)
{
	return r * LD + (LD == 128 ? c ^ (r & 7) * 8 : c);
}

/* a part of the result in BF16, LD elements per row */
template <int LD> struct rows_at {
	const uint16_t *p;

	__device__ __forceinline__ uint16_t one(int y, int x) const
	{
		return p[tile_index<LD>(y, x)];
	}
	/* elements of row y, from column x on, a multiple of 8 */
	__device__ __forceinline__ uint4 eight(int y, int x) const
	{
		return *(const uint4 *)(p + tile_index<LD>(y, x));
	}
};

/*
 * A warp quantizes nrows of ROWS rows from row r on, and ncols columns, at most COLS, from column c
 * on, of a result [rows, cols]. s: this part, as rows_at has it, which this warp may read.
 * Column-wise codes are stored in runs of 16 rows, in which codes of a column are adjacent.
 */
template <int ROWS, int COLS, class Part>
DEV void quantize_rows(const struct te_k_q &q, int64_t rows, int64_t cols, int64_t r, int64_t c,
		       int nrows, int ncols, const Part &s)
{
	constexpr int RUNS = ROWS / 16;
	const float scale = q.row || q.col ? *q.scale : 1.0f;
	const bool vec = (cols | c | ncols | (int64_t)q.row) % 8 == 0;
	uint8_t *row = (uint8_t *)q.row + r * cols + c, *col = (uint8_t *)q.col + c * rows + r;
	float m = 0.0f;

	for (int i = LANE; i < ROWS * COLS / 8; i += 32) {
		const int y = i / (COLS / 8), x = i % (COLS / 8) * 8;
		const int n = y < nrows ? min(ncols - x, 8) : 0;
		union {
			uint4 v;
			uint16_t e[8];
		} in = { s.eight(y, x) };
		uint32_t code[4];

#pragma unroll
		for (int k = 0; k < 8; k++)
			if (k < n)
				m = amax_of(m, bf16_to_float(in.e[k]));
		if (!q.row || n <= 0)
			continue;
#pragma unroll
		for (int k = 0; k < 4; k++)
			code[k] = codes2(q.dtype, in.e[2 * k], in.e[2 * k + 1], scale);
		if (vec) {
			*(uint2 *)(row + y * cols + x) =
				make_uint2(code[0] | code[1] << 16, code[2] | code[3] << 16);
			continue;
		}
#pragma unroll
		for (int k = 0; k < 8; k++)
			if (k < n)
				row[y * cols + x + k] = (uint8_t)(code[k / 2] >> (k % 2 * 8));
	}
	for (int i = LANE; q.col && i < COLS * RUNS; i += 32) {
		const int x = i / RUNS, y = i % RUNS * 16, n = min(nrows - y, 16);
		uint8_t *to = col + x * rows + y;
		uint32_t code[4];

		if (x >= ncols || n <= 0)
			continue;
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int at = y + 4 * k;

			code[k] = codes2(q.dtype, s.one(at, x), s.one(at + 1, x), scale) |
				  codes2(q.dtype, s.one(at + 2, x), s.one(at + 3, x), scale) << 16;
		}
		if (n == 16 && (rows | r | (int64_t)q.col) % 16 == 0) {
			*(uint4 *)to = make_uint4(code[0], code[1], code[2], code[3]);
			continue;
		}
#pragma unroll
		for (int k = 0; k < 16; k++)
			if (k < n)
				to[k] = (uint8_t)(code[k / 4] >> (k % 4 * 8));
	}
	if (!q.amax)
		return;
	m = warp_amax(m);
	if (LANE == 0)
		atomic_amax(q.amax, m);
}

#endif
