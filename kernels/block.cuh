/*
 * block.cuh - a matrix result in tiles of 128 x 128, in one pass: stored, summed over rows, and
 * quantized with a scale for each block (te_k_q with block scaling).
 *
 * 256 threads compute a tile; 16 of them, a half-warp, compute 8 rows, and each thread 8 columns.
 * So a warp accesses runs of 256 bytes (BF16), and row-wise codes are stored in runs of 128 bytes.
 * The amax of a row is a reduction over a half-warp; the amax of a column is one over the warps,
 * through shared memory. Column-wise codes are transposed through 16 KiB of shared memory and
 * stored in runs of 128 bytes. Tiles are numbered in bands of 4 tile rows, column by column, so
 * that adjacent runs of a column are written close in time.
 *
 * Elements beyond the matrix are 0 in the tile, so that they do not change the amax of a block.
 */
#ifndef TE_BLOCK_CUH
#define TE_BLOCK_CUH

#include "kernels/dev.cuh"

#define BLOCK TE_K_BLOCK
#define BLOCK_BAND 4
#define BLOCK_WARPS (BLOCK_THREADS / 32)

struct block_tile {
	int64_t r0, c0; /* the tile */
	int64_t r, c;	/* this thread's first element */
	int64_t rows, cols;
};

DEV block_tile block_at(int64_t rows, int64_t cols, int64_t r0, int64_t c0)
{
	return { r0, c0, r0 + threadIdx.x / 16 * BLOCK_R, c0 + threadIdx.x % 16 * TE_V, rows,
		 cols };
}

/*
 * The tile of this thread block. half: 0, or the distance in tiles, to the right, at which a tile
 * has the same inputs: the two are computed consecutively.
 */
DEV block_tile block_of_grid(int64_t rows, int64_t cols, uint32_t half)
{
	const uint32_t nr = (uint32_t)((rows + BLOCK - 1) / BLOCK);
	const uint32_t nc = (uint32_t)((cols + BLOCK - 1) / BLOCK);
	const uint32_t band = blockIdx.x / (BLOCK_BAND * nc), in = blockIdx.x % (BLOCK_BAND * nc);
	const uint32_t height = min((uint32_t)BLOCK_BAND, nr - BLOCK_BAND * band);
	uint32_t c = in / height;

	if (half)
		c = c % 2 * half + c / 2;
	return block_at(rows, cols, (int64_t)(BLOCK_BAND * band + in % height) * BLOCK,
			(int64_t)c * BLOCK);
}

/* the part of it within an input that ends earlier: rows of that are cols elements wide */
DEV block_tile block_unpadded(block_tile t, int pad_rows, int pad_cols)
{
	t.rows -= pad_rows;
	t.cols -= pad_cols;
	return t;
}

/* number of existing elements among the TE_V of this thread in row i */
DEV int block_n(const block_tile &t, int i)
{
	return t.r + i < t.rows ? clamp_int(t.cols - t.c, 0, TE_V) : 0;
}

/* n elements at p; vec: p is aligned to vectors, and n is 0 or TE_V */
template <bool ONCE, class T> DEV raw<T> block_load(const T *p, int n, bool vec)
{
	float v[TE_V];

	if (vec)
		return n ? load_raw<ONCE>(p) : zero_raw<T>();
	load_some(p, n, v);
	return pack<T>(v);
}

/* the first n of v, rounded to T */
template <class T> DEV raw<T> block_round(int n, float v[TE_V])
{
	if (n < TE_V) {
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[e] = e < n ? v[e] : 0.0f;
	}
	return pack<T>(v);
}

/* shared memory of block_put; 32 KiB where T is summed over rows */
template <bool SUMS> struct block_shared {
	uint4 word[(SUMS ? 2 : 1) * BLOCK * BLOCK / 16];
	float amax[BLOCK_WARPS][BLOCK]; /* amaxes of columns, or of the tile */
	float scale[BLOCK];		/* scales of columns */
};

/* outputs of a [rows, cols] result; vec: rows of y and q.row start on vectors */
template <class T> struct block_out {
	T *y; /* or NULL */
	const struct te_k_q &q;
	float *part; /* [TE_K_NPARTS(rows), cols], or NULL */
	bool vec;
};

DEV float block_scale(const struct te_k_q &q, float amax)
{
	const float a = amax < q.epsilon ? q.epsilon : amax;
	float s = 1.0f;

	if (a != 0.0f && fabsf(a) < TE_INF) {
		s = __fdiv_rn(q.dtype == TE_D_E4M3 ? 448.0f : 57344.0f, a);
		s = s < TE_INF ? s : TE_FLT_MAX;
	}
	return q.pow2 ? __uint_as_float(__float_as_uint(s) & 0x7f800000u) : s;
}

struct op_max {
	static __device__ __forceinline__ float of(float a, float b)
	{
		return fmaxf(a, b);
	}
};
struct op_add {
	static __device__ __forceinline__ float of(float a, float b)
	{
		return add(a, b);
	}
};

/*
 * Reduce m[0..7] over the 16 lanes of a half-warp. Each step halves the rows that a lane keeps.
 * Lane l returns row l / 2 % 8, so lane 2 i has row i.
 */
template <class OP> DEV float half_warp_rows(float m[BLOCK_R])
{
	const int lane = threadIdx.x % 16;

#pragma unroll
	for (int n = BLOCK_R / 2; n; n /= 2) {
		const bool up = lane & 2 * n;

#pragma unroll
		for (int i = 0; i < n; i++) {
			const float give = up ? m[i] : m[i + n], keep = up ? m[i + n] : m[i];

			m[i] = OP::of(keep, __shfl_xor_sync(0xffffffffu, give, 2 * n));
		}
	}
	return OP::of(m[0], __shfl_xor_sync(0xffffffffu, m[0], 1));
}

/* the value of row i among the values that half_warp_rows() returned */
DEV float row_of(float x, int i)
{
	return __shfl_sync(0xffffffffu, x, (threadIdx.x & 16) + 2 * i);
}

/*
 * Column c of the tile's codes is 16 pairs of words in shared memory, a pair for each 8 rows.
 * Pair p is at p ^ (c / 8 % 16): the 16 lanes that write the same rows of 16 columns use all banks.
 */
DEV void block_codes_put(uint2 *pair, const uint2 code[BLOCK_R])
{
	const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		uint32_t a[BLOCK_R], lo[4], hi[4];

#pragma unroll
		for (int i = 0; i < BLOCK_R; i++)
			a[i] = half ? code[i].y : code[i].x;
		transpose4(a, lo);
		transpose4(a + 4, hi);
#pragma unroll
		for (int j = 0; j < 4; j++)
			pair[(tx * TE_V + half * 4 + j) * 16 + (ty ^ tx)] =
				make_uint2(lo[j], hi[j]);
	}
}

/* col [cols, rows]: a thread stores 16 rows of a column if columns start on 16 bytes */
DEV void block_codes_store(const uint4 *word, const block_tile &t, uint8_t *col)
{
	const int nc = clamp_int(t.cols - t.c0, 0, BLOCK), nr = clamp_int(t.rows - t.r0, 0, BLOCK);

	if (t.rows % 16 == 0 && aligned(col)) {
#pragma unroll
		for (int k = threadIdx.x; k < BLOCK * BLOCK / 16; k += BLOCK_THREADS) {
			const int c = k / 8, chunk = k % 8, tx = c / TE_V;
			uint4 v = word[c * 8 + (chunk ^ tx / 2)];

			if (tx % 2)
				v = make_uint4(v.z, v.w, v.x, v.y);
			if (c < nc && chunk * 16 < nr)
				*(uint4 *)(col + (t.c0 + c) * t.rows + t.r0 + chunk * 16) = v;
		}
		return;
	}
#pragma unroll 1
	for (int k = threadIdx.x; k < BLOCK * BLOCK; k += BLOCK_THREADS) {
		const int c = k / BLOCK, r = k % BLOCK, tx = c / TE_V;

		if (c < nc && r < nr)
			col[(t.c0 + c) * t.rows + t.r0 + r] =
				((const uint8_t *)word)[c * BLOCK + (r / 8 ^ tx) * 8 + r % 8];
	}
}

/* part: sums of 64 rows each, in ascending order */
template <class T>
DEV void block_sums(uint4 *word, const block_tile &t, const raw<T> v[BLOCK_R], float *part)
{
	constexpr int NPASSES = sizeof(T) / 2; /* 32 KiB each */
	const int ty = threadIdx.x / 16, c = threadIdx.x % BLOCK;

#pragma unroll
	for (int pass = 0; pass < NPASSES; pass++) {
		/* 64 rows that a thread sums: both halves at once, or one per pass */
		const int half = NPASSES == 1 ? threadIdx.x / BLOCK : pass;
		const T *value = (const T *)word + (NPASSES == 1 ? half * 64 * BLOCK : 0) + c;
		const int64_t r = t.r0 + half * 64;
		float sum = 0.0f;

		if (NPASSES == 1 || ty / 8 == pass)
#pragma unroll
			for (int i = 0; i < BLOCK_R; i++)
				((raw<T> *)word)[((ty * BLOCK_R + i) % (128 / NPASSES)) * 16 +
						 threadIdx.x % 16] = v[i];
		__syncthreads();
		if ((NPASSES == 1 || threadIdx.x < BLOCK) && t.c0 + c < t.cols && r < t.rows) {
			/* rows beyond the end add +0, which changes no sum that started at +0 */
#pragma unroll 32
			for (int i = 0; i < 64; i++)
				sum = add(sum, to_float(value[i * BLOCK]));
			part[r / 64 * t.cols + t.c0 + c] = sum;
		}
		__syncthreads();
	}
}

/* compute s->scale of column threadIdx.x % 128; m: this thread's amax of its columns */
template <bool SUMS>
DEV void block_col_scales(const struct te_k_q &q, const block_tile &t, float m[TE_V],
			  block_shared<SUMS> *s)
{
	const int64_t ld = te_k_scale_ld(TE_K_SCALING_1X128, t.cols, t.rows);
	const int64_t c = t.c0 + threadIdx.x;
	float amax = 0.0f, scale;

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		m[e] = fmaxf(m[e], __shfl_xor_sync(0xffffffffu, m[e], 16));
	if (threadIdx.x % 32 < 16)
#pragma unroll
		for (int e = 0; e < TE_V; e += 4)
			*(float4 *)&s->amax[threadIdx.x / 32][threadIdx.x % 16 * TE_V + e] =
				make_float4(m[e], m[e + 1], m[e + 2], m[e + 3]);
	__syncthreads();
	if (threadIdx.x < BLOCK) {
#pragma unroll
		for (int w = 0; w < BLOCK_WARPS; w++)
			amax = fmaxf(amax, s->amax[w][threadIdx.x]);
		scale = block_scale(q, amax);
		s->scale[threadIdx.x] = scale;
		if (c < ld)
			q.col_scale_inv[t.r0 / BLOCK * ld + c] =
				c < t.cols ? __fdiv_rn(1.0f, scale) : 0.0f;
	}
	__syncthreads();
}

/* the tile's scale; stores 1 / scale, and 0 in the padding after the last tile */
template <bool SUMS>
DEV float block_tile_scale(const struct te_k_q &q, const block_tile &t, float m,
			   block_shared<SUMS> *s)
{
	float scale;

	m = warp_amax(m);
	if (threadIdx.x % 32 == 0)
		s->amax[0][threadIdx.x / 32] = m;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < BLOCK_WARPS; w++)
		m = fmaxf(m, s->amax[0][w]);
	scale = block_scale(q, m);
	/* copies [rows, cols] and [cols, rows] */
	if (threadIdx.x < 2 && (threadIdx.x ? q.col : q.row)) {
		const bool col = threadIdx.x;
		const int64_t rows = col ? t.cols : t.rows, cols = col ? t.rows : t.cols;
		const int64_t ld = te_k_scale_ld(TE_K_SCALING_128X128, rows, cols);
		float *line = (col ? q.col_scale_inv : q.scale_inv) +
			      (col ? t.c0 : t.r0) / BLOCK * ld;
		int64_t k = (col ? t.r0 : t.c0) / BLOCK;

		line[k] = __fdiv_rn(1.0f, scale);
		if ((k + 1) * BLOCK >= cols)
			while (++k < ld)
				line[k] = 0.0f;
	}
	return scale;
}

/*
 * Store one tile of the result, rounded to T, with 0 beyond the matrix. Called by all threads of
 * the block; the caller needs a barrier before it reuses the shared memory.
 */
template <bool SUMS, class T>
DEV void block_put(const block_out<T> &o, int scaling, const block_tile &t,
		   const raw<T> x[BLOCK_R], block_shared<SUMS> *s)
{
	const struct te_k_q &q = o.q;
	const bool each = scaling == TE_K_SCALING_1X128;
	float row_amax[BLOCK_R], col_amax[TE_V], v[TE_V], scale;
	uint2 code[BLOCK_R];

#pragma unroll
	for (int i = 0; i < BLOCK_R; i++) {
		const int n = block_n(t, i);
		T *y = o.y + (t.r + i) * t.cols + t.c;

		row_amax[i] = 0.0f;
		unpack(x[i], v);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			row_amax[i] = amax_of(row_amax[i], v[e]);
			col_amax[e] = amax_of(i ? col_amax[e] : 0.0f, v[e]);
		}
		if (o.y && o.vec && n)
			store_raw(y, x[i]);
		else if (o.y && n)
			store_some(y, n, v);
	}
	if constexpr (SUMS)
		if (o.part)
			block_sums<T>(s->word, t, x, o.part);
	if (each) {
		scale = block_scale(q, half_warp_rows<op_max>(row_amax));
		if (q.row && threadIdx.x % 2 == 0) {
			const int64_t ld = te_k_scale_ld(TE_K_SCALING_1X128, t.rows, t.cols);
			const int64_t r = t.r + threadIdx.x / 2 % 8;

			if (r < ld)
				q.scale_inv[t.c0 / BLOCK * ld + r] =
					r < t.rows ? __fdiv_rn(1.0f, scale) : 0.0f;
		}
	} else {
		float m = 0.0f;

#pragma unroll
		for (int i = 0; i < BLOCK_R; i++)
			m = fmaxf(m, row_amax[i]);
		scale = block_tile_scale(q, t, m, s);
	}
	if (q.row || !each)
#pragma unroll
		for (int i = 0; i < BLOCK_R; i++) {
			const float by = each ? row_of(scale, i) : scale;
			const int n = block_n(t, i);
			uint8_t *row = (uint8_t *)q.row + (t.r + i) * t.cols + t.c;

			unpack(x[i], v);
			code[i] = fp8x8(q.dtype, v, by);
			if (q.row && o.vec && n)
				*(uint2 *)row = code[i];
			else if (q.row)
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					if (e < n)
						row[e] = (uint8_t)((e < 4 ? code[i].x :
									    code[i].y) >>
								   (e % 4 * 8));
		}
	if (!q.col)
		return;
	if (each) {
		float by[TE_V];

		block_col_scales(q, t, col_amax, s);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			by[e] = s->scale[threadIdx.x % 16 * TE_V + e];
#pragma unroll
		for (int i = 0; i < BLOCK_R; i++) {
			unpack(x[i], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[e] = mul(v[e], by[e]);
			code[i] = fp8x8(q.dtype, v);
		}
	}
	block_codes_put((uint2 *)s->word, code);
	__syncthreads();
	block_codes_store(s->word, t, (uint8_t *)q.col);
}

/* do rows of this width start on vectors in each of these arrays, of T or of codes? */
DEV bool block_vec(int64_t cols, const void *x, const void *y, const struct te_k_q &q)
{
	return cols % TE_V == 0 && aligned(x) && aligned(y) && aligned(q.row);
}

#endif
