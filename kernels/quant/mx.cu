/*
 * mx.cu - casts to the formats of recipes mxfp8 and nvfp4, on every GPU. sm_80.
 *
 *  kernel              shapes                     blocks            threads           shared
 *  quantize_1x32       x T [rows, cols] to codes  a 128 x 128 tile  256               21504
 *  nvfp4_begin         words of the scales        1                 32                0
 *  nvfp4_amax          x T [rows, cols]           a 128 x 128 tile  128; FP32: 256    96
 *  quantize_1x16       x T [rows, cols] to codes  a 128 x 128 tile  128; FP32: 256    10240
 *  quantize_16x16      the same                   a 128 x 128 tile  128; FP32: 256    10240
 *  dequantize_mx       codes [n] to T             4096 elements     256               0
 *  weights_cast_...    a set of weights           264 at most       256               as the casts
 *
 * MXFP8 is cast in one pass, as the 1x128 variant of block.cuh: a thread has 8 rows and 8 columns
 * of the tile, a row's block is in 4 threads and a column's in 4 half-warps. Scales of NVFP4 depend
 * on the amax of a copy: x is read twice, first by nvfp4_amax. There a thread has 16 rows, the
 * columns of 16 bytes of x, and so whole column-wise blocks and their transforms. Codes of
 * columns are stored in runs of 128 and of 64 bytes, after a transposition in shared memory, and
 * the scales of a tile as the squares of 512 bytes that they are.
 *
 * E2M1 and the scales of NVFP4 are converted by the functions of the host, dtype_inline.h, and so
 * is what is dequantized: no GPU below 10.0 has instructions for E2M1.
 */
#include "kernels/block.cuh"
#include "kernels/philox.h"
#include "kernels/quant/geometry.h"
#include "kernels/quant/mx.cuh"
#include "kernels/split.cuh"
#include "kernels/weights/weights.cuh"

/* --- elements of x ------------------------------------------------------------------------ */

/* W elements of T, 16 bytes of BF16 or FP32, as stored */
template <class T> struct piece {
	static constexpr int W = 16 / (int)sizeof(T);

	uint4 q;
};

DEV float elem(const piece<float> &p, int e)
{
	const uint32_t w[4] = { p.q.x, p.q.y, p.q.z, p.q.w };

	return __uint_as_float(w[e]);
}

DEV float elem(const piece<bf16> &p, int e)
{
	const uint32_t w[4] = { p.q.x, p.q.y, p.q.z, p.q.w };

	return __uint_as_float(e % 2 ? w[e / 2] & 0xffff0000u : w[e / 2] << 16);
}

DEV uint32_t bits_at(const float *p)
{
	return __float_as_uint(*p);
}

DEV uint32_t bits_at(const bf16 *p)
{
	return p->bits;
}

/* the first n of W elements at p, and zeros; vec: n is 0 or W, and p is aligned */
template <class T> DEV piece<T> piece_load(const T *p, int n, bool vec)
{
	constexpr int BITS = 8 * (int)sizeof(T);
	uint32_t w[4] = { 0, 0, 0, 0 };

	/* FP32: master weights, which are read once */
	if (vec && n)
		return { sizeof(T) == 4 ? __ldcs((const uint4 *)p) : *(const uint4 *)p };
#pragma unroll
	for (int e = 0; e < piece<T>::W; e++)
		if (e < n)
			w[e * BITS / 32] |= bits_at(p + e) << (e * BITS % 32);
	return { make_uint4(w[0], w[1], w[2], w[3]) };
}

/* x of a cast, without the padding of the copies */
template <class T> struct input {
	const T *x;
	int64_t rows, cols;
	bool vec;
};

template <class T> DEV input<T> input_of(const struct te_k_quantize &a)
{
	input<T> in = { (const T *)a.x, a.rows - a.pad_rows, a.cols - a.pad_cols, false };

	in.vec = in.cols % piece<T>::W == 0 && aligned(a.x);
	return in;
}

/* a split master: BF16 numbers, and the rest of FP32 or NULL */
struct split_input {
	const uint16_t *upper, *rest;
	int64_t rows, cols;
};

DEV piece<float> input_load(const split_input &in, int64_t r, int64_t c)
{
	uint32_t w[4] = { 0, 0, 0, 0 };
	const int64_t at = r * in.cols + c;

#pragma unroll
	for (int e = 0; e < 4; e++)
		if (r < in.rows && c + e < in.cols)
			w[e] = __float_as_uint(te_round_join(in.upper[at + e],
							     in.rest ? in.rest[at + e] : 0));
	return { make_uint4(w[0], w[1], w[2], w[3]) };
}

template <class T> DEV piece<T> input_load(const input<T> &in, int64_t r, int64_t c)
{
	const int n = r < in.rows ? clamp_int(in.cols - c, 0, piece<T>::W) : 0;

	return piece_load(in.x + r * in.cols + c, n, in.vec);
}

/* the tile of a block, numbered as in block.cuh */
DEV block_tile mx_tile(const struct te_k_quantize &a)
{
	return block_of_grid(a.rows, a.cols, 0);
}

/* --- MXFP8 -------------------------------------------------------------------------------- */

#define MX TE_K_BLOCK_MX

struct mx_shared {
	uint4 word[BLOCK * BLOCK / 16];
	float amax[BLOCK_WARPS][BLOCK];
	uint32_t scale[2][TE_K_MX_TILE / 4]; /* squares of the row-wise and column-wise copy */
};

/* a byte's place in its square: row r of the copy, and block */
DEV int square_at(int r, int block)
{
	return r % 32 * 16 + r / 32 * 4 + block;
}

/* n squares from number at on */
DEV void squares_store(uint8_t *scales, int64_t at, int n, const uint32_t *word)
{
	for (int k = threadIdx.x; k < n * (TE_K_MX_TILE / 4); k += blockDim.x)
		((uint32_t *)(scales + at * TE_K_MX_TILE))[k] = word[k];
}

template <class T, class In>
DEV void quantize_1x32_body(const struct te_k_q &q, const block_tile &t, const In &in)
{
	constexpr int W = piece<T>::W;
	__shared__ mx_shared s;
	const bool vec = block_vec(t.cols, NULL, NULL, q);
	const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, warp = threadIdx.x / 32;
	float col_amax[TE_V];
	piece<T> x[BLOCK_R][TE_V / W];
	uint2 code[BLOCK_R];

	if (noop_set(q.noop))
		return;
#pragma unroll
	for (int i = 0; i < BLOCK_R; i++)
#pragma unroll
		for (int p = 0; p < TE_V / W; p++)
			x[i][p] = input_load(in, t.r + i, t.c + p * W);
#pragma unroll
	for (int i = 0; i < BLOCK_R; i++) {
		const int n = block_n(t, i);
		uint8_t *row = (uint8_t *)q.row + (t.r + i) * t.cols + t.c;
		float v[TE_V], m = 0.0f;
		uint32_t byte;

#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			v[e] = elem(x[i][e / W], e % W);
			m = amax_of(m, v[e]);
			col_amax[e] = amax_of(i ? col_amax[e] : 0.0f, v[e]);
		}
		if (!q.row)
			continue;
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
		byte = mx_byte(q.dtype, m);
		if (tx % 4 == 0)
			((uint8_t *)s.scale[0])[square_at(ty * BLOCK_R + i, tx / 4)] =
				(uint8_t)byte;
		code[i] = fp8x8(q.dtype, v, mx_scale(byte));
		if (vec && n) {
			*(uint2 *)row = code[i];
			continue;
		}
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			if (e < n)
				row[e] = (uint8_t)((e < 4 ? code[i].x : code[i].y) >> (e % 4 * 8));
	}
	if (q.col) {
		float by[TE_V];

#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const float m = col_amax[e];

			col_amax[e] = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 16));
			if (threadIdx.x % 32 < 16)
				s.amax[warp][tx * TE_V + e] = col_amax[e];
		}
		__syncthreads();
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const float m = fmaxf(col_amax[e], s.amax[warp ^ 1][tx * TE_V + e]);
			const uint32_t byte = mx_byte(q.dtype, m);

			by[e] = mx_scale(byte);
			if (ty % (MX / BLOCK_R) == 0)
				((uint8_t *)s.scale[1])[square_at(tx * TE_V + e,
								  ty / (MX / BLOCK_R))] =
					(uint8_t)byte;
		}
#pragma unroll
		for (int i = 0; i < BLOCK_R; i++) {
			float v[TE_V];

#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[e] = mul(elem(x[i][e / W], e % W), by[e]);
			code[i] = fp8x8(q.dtype, v);
		}
		block_codes_put((uint2 *)s.word, code);
	}
	__syncthreads();
	if (q.row)
		squares_store((uint8_t *)q.scale_inv,
			      t.r0 / BLOCK * te_k_scale_tiles(TE_K_SCALING_1X32, t.cols) +
				      t.c0 / BLOCK, 1, s.scale[0]);
	if (!q.col)
		return;
	squares_store((uint8_t *)q.col_scale_inv,
		      t.c0 / BLOCK * te_k_scale_tiles(TE_K_SCALING_1X32, t.rows) + t.r0 / BLOCK,
		      1, s.scale[1]);
	block_codes_store(s.word, t, (uint8_t *)q.col);
}

TE_KERNEL(quantize_1x32_fp32, quantize, (BLOCK_THREADS, 2),
	  quantize_1x32_body<float>(a.q, mx_tile(a), input_of<float>(a)))
TE_KERNEL(quantize_1x32_bf16, quantize, (BLOCK_THREADS, 2),
	  quantize_1x32_body<bf16>(a.q, mx_tile(a), input_of<bf16>(a)))

/* --- NVFP4 -------------------------------------------------------------------------------- */

#define NV TE_K_BLOCK_NV
#define NV_BANDS (BLOCK / NV) /* bands of 16 rows in a tile */

/* threads of a tile: 16 rows and 16 bytes each */
template <class T> struct nv_threads {
	static constexpr int W = piece<T>::W;
	static constexpr int TX = BLOCK / W;
	static constexpr int THREADS = NVFP4_THREADS * (int)sizeof(T) / 2;

	static_assert(THREADS == TX * NV_BANDS, "a tile");
};

/* 16 rows of x from the first of this thread on */
template <class T, class In> DEV void nv_load(const In &in, const block_tile &t, piece<T> x[NV])
{
	const int64_t r = t.r0 + threadIdx.x / nv_threads<T>::TX * NV;
	const int64_t c = t.c0 + threadIdx.x % nv_threads<T>::TX * nv_threads<T>::W;

#pragma unroll
	for (int i = 0; i < NV; i++)
		x[i] = input_load(in, r + i, c);
}

/* the transform of a column, in the order of te__h_quantize() */
DEV void nv_transform(float v[NV])
{
#pragma unroll
	for (int i = 0; i < NV; i++)
		v[i] = TE_K_RHT_SIGNS >> i & 1 ? -v[i] : v[i];
#pragma unroll
	for (int d = 1; d < NV; d *= 2)
#pragma unroll
		for (int i = 0; i < NV; i++)
			if (!(i & d)) {
				const float lo = v[i], hi = v[i + d];

				v[i] = add(lo, hi);
				v[i + d] = sub(lo, hi);
			}
#pragma unroll
	for (int i = 0; i < NV; i++)
		v[i] = mul(v[i], 0.25f);
}

/* the words before the scales of a copy; NULL if it is not written */
DEV uint32_t *nv_head(const void *copy, float *scales)
{
	return copy ? (uint32_t *)scales : NULL;
}

extern "C" __global__ void __launch_bounds__(NVFP4_BEGIN_THREADS)
	te_k_nvfp4_begin(const __grid_constant__ struct te_k_quantize a)
{
	te_begin();
	uint32_t *row = nv_head(a.q.row, a.q.scale_inv), *col = nv_head(a.q.col, a.q.col_scale_inv);

	if (noop_set(a.q.noop) || threadIdx.x < TE_K_NV_AMAX || threadIdx.x > TE_K_NV_SUM)
		return;
	if (row)
		row[threadIdx.x] = 0;
	if (col)
		col[threadIdx.x] = 0;
}

DEV uint32_t abs_bits(float x)
{
	return __float_as_uint(x) & 0x7fffffffu;
}

template <class T> DEV void nvfp4_amax_body(const struct te_k_quantize &a)
{
	constexpr int W = piece<T>::W, WARPS = nv_threads<T>::THREADS / 32;
	__shared__ uint32_t part[3][WARPS];
	const bool turns = a.q.col && a.q.scaling == TE_K_SCALING_1X16;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	float row = 0.0f, col = 0.0f;
	uint32_t sum = 0;
	piece<T> x[NV];

	if (noop_set(a.q.noop))
		return;
	nv_load(input_of<T>(a), mx_tile(a), x);
#pragma unroll
	for (int e = 0; e < W; e++) {
		float v[NV];

#pragma unroll
		for (int i = 0; i < NV; i++) {
			v[i] = elem(x[i], e);
			row = amax_of(row, v[i]);
			sum += __float_as_uint(v[i]);
		}
		if (!turns)
			continue;
		nv_transform(v);
#pragma unroll
		for (int i = 0; i < NV; i++)
			col = amax_of(col, v[i]);
	}
	row = warp_amax(row);
	col = turns ? warp_amax(col) : row;
	sum = a.stochastic ? __reduce_add_sync(0xffffffffu, sum) : 0;
	if (lane == 0) {
		part[0][warp] = __float_as_uint(row);
		part[1][warp] = __float_as_uint(col);
		part[2][warp] = sum;
	}
	__syncthreads();
	if (threadIdx.x > 1)
		return;
	/* thread 0: the row-wise copy, 1: the column-wise one */
	uint32_t *head = threadIdx.x ? nv_head(a.q.col, a.q.col_scale_inv) :
				       nv_head(a.q.row, a.q.scale_inv);
	uint32_t most = 0, of_x = 0;

	if (!head)
		return;
	sum = 0;
#pragma unroll
	for (int w = 0; w < WARPS; w++) {
		of_x = max(of_x, part[0][w]);
		most = max(most, part[threadIdx.x][w]);
		sum += part[2][w];
	}
	atomicMax(head + TE_K_NV_AMAX, most);
	atomicMax(head + TE_K_NV_AMAX_X, of_x);
	if (sum)
		atomicAdd(head + TE_K_NV_SUM, sum);
}

TE_KERNEL(nvfp4_amax_fp32, quantize, (nv_threads<float>::THREADS), nvfp4_amax_body<float>(a))
TE_KERNEL(nvfp4_amax_bf16, quantize, (nv_threads<bf16>::THREADS), nvfp4_amax_body<bf16>(a))

struct nv_level {
	float scale, inv;
};

/* the scale of a copy: te__h_scale() of 448 * 6 */
DEV nv_level nv_level_of(const struct te_k_q &q, const uint32_t *head)
{
	const float amax = __uint_as_float(head[TE_K_NV_AMAX]);
	const float m = amax < q.epsilon ? q.epsilon : amax;
	float s = 1.0f;

	if (m != 0.0f && fabsf(m) < TE_INF) {
		s = __fdiv_rn(2688.0f, m);
		s = s < TE_INF ? s : TE_FLT_MAX;
	}
	return { s, __fdiv_rn(1.0f, s) };
}

/* the byte of a block whose largest element has these bits, and the factor of its elements */
DEV uint32_t nv_byte(const nv_level &level, uint32_t most, float *by)
{
	uint32_t e = 0x7f;
	float f;

	*by = 0.0f;
	if (most > 0x7f800000u)
		return e;
	e = te__e4m3_encode(mul(__fdiv_rn(__uint_as_float(most), 6.0f), level.scale));
	if (e == 0)
		return e;
	f = __fdiv_rn(1.0f, mul(te__e4m3_decode((uint8_t)e), level.inv));
	*by = f < TE_FLT_MAX ? f : TE_FLT_MAX;
	return e;
}

/* E2M1 of z, rounded by 16 random bits: encode_random() of nvfp4.c */
DEV uint32_t nv_encode_random(float z, uint32_t random)
{
	const uint32_t u = __float_as_uint(z), bits = u & 0x7fffffffu;
	const float m = __uint_as_float(min(bits, 0x40c00000u));
	const float steps = m < 2.0f ? 2.0f : m < 4.0f ? 1.0f : 0.5f;
	const uint32_t first = m < 2.0f ? 0 : m < 4.0f ? 2 : 4;
	const uint32_t fixed = (uint32_t)(int)mul(mul(m, steps), 0x1p16f);

	return bits > 0x7f800000u ? 0 : (first + ((fixed + random) >> 16)) | (u >> 28 & 8);
}

template <bool STOCHASTIC> DEV uint32_t nv_encode(float z, const struct te_philox &p, int lane)
{
	return STOCHASTIC ? nv_encode_random(z, te_philox_lane(&p, lane)) : te__e2m1_encode(z);
}

template <bool STOCHASTIC>
DEV struct te_philox nv_draw(const uint32_t *head, uint64_t at, uint32_t col)
{
	struct te_philox p = { { 0, 0, 0, 0 } };

	if (STOCHASTIC)
		p = te_philox(head[TE_K_NV_AMAX_X] | (uint64_t)head[TE_K_NV_SUM] << 32,
			      (uint32_t)(at / 8), (uint32_t)(at / 8 >> 32), col, 0);
	return p;
}

struct nv_shared {
	uint2 col[BLOCK][NV_BANDS];	     /* codes of a column and band */
	uint32_t scale[2][2 * TE_K_MX_TILE / 4]; /* two squares of each copy */
};

/* codes of W elements of a row, the first in the lowest bits */
template <int W> DEV void nv_store_row(uint8_t *p, uint32_t codes)
{
	if (((uint64_t)p & (W / 2 - 1)) == 0) {
		if (W == 8)
			*(uint32_t *)p = codes;
		else
			*(unsigned short *)p = (unsigned short)codes;
		return;
	}
#pragma unroll
	for (int i = 0; i < W / 2; i++)
		p[i] = (uint8_t)(codes >> (8 * i));
}

/* the band of a column is at band ^ (c / 8 % 8), so that threads use all banks */
DEV uint2 *nv_slot(nv_shared *s, int c, int band)
{
	return &s->col[c][band ^ (c / 8 % 8)];
}

/* col [cols, rows], rows a multiple of 16: 8 bytes of a band */
DEV void nv_store_cols(nv_shared *s, const block_tile &t, uint8_t *col)
{
	const int nc = clamp_int(t.cols - t.c0, 0, BLOCK), nr = clamp_int(t.rows - t.r0, 0, BLOCK);
	const bool vec = ((uint64_t)col & 7) == 0;

#pragma unroll 4
	for (int k = threadIdx.x; k < BLOCK * NV_BANDS; k += blockDim.x) {
		const int c = k / NV_BANDS, band = k % NV_BANDS;
		const uint2 v = *nv_slot(s, c, band);
		uint8_t *p = col + ((t.c0 + c) * t.rows + t.r0) / 2 + band * (NV / 2);

		if (c >= nc || band * NV >= nr)
			continue;
		if (vec)
			*(uint2 *)p = v;
		else
			for (int i = 0; i < 8; i++)
				p[i] = (uint8_t)((i < 4 ? v.x : v.y) >> (i % 4 * 8));
	}
}

/* the largest bits of the threads that share 16 columns */
template <class T> DEV uint32_t nv_most(uint32_t m)
{
#pragma unroll
	for (int d = 1; d < NV / nv_threads<T>::W; d *= 2)
		m = max(m, __shfl_xor_sync(0xffffffffu, m, d));
	return m;
}

DEV void nv_put_byte(uint32_t *squares, int r, int block, uint32_t byte)
{
	((uint8_t *)squares)[block / 4 * TE_K_MX_TILE + square_at(r, block % 4)] = (uint8_t)byte;
}

/* the two squares of the tile at (r0, c0) of a copy with cols columns; the second may not exist */
DEV void nv_store_squares(float *scales, int64_t cols, int64_t r0, int64_t c0, const uint32_t *word)
{
	const int64_t tiles = te_k_scale_tiles(TE_K_SCALING_1X16, cols), at = c0 / (4 * NV);

	squares_store((uint8_t *)scales + TE_K_NV_HEAD, r0 / BLOCK * tiles + at,
		      tiles - at < 2 ? 1 : 2, word);
}

/* SQUARES: 16X16 */
template <class T, bool SQUARES, bool STOCHASTIC, class In>
DEV void quantize_nvfp4_body(const struct te_k_q &q, const block_tile &t, const In &in)
{
	constexpr int W = nv_threads<T>::W;
	__shared__ nv_shared s;
	const bool is_first = t.r0 == 0 && t.c0 == 0 && threadIdx.x == 0;
	const int tx = threadIdx.x % nv_threads<T>::TX, band = threadIdx.x / nv_threads<T>::TX;
	const int64_t r = t.r0 + band * NV, c = t.c0 + tx * W;
	const bool first = tx % (NV / W) == 0; /* thread of a block of a row */
	const uint32_t *head = nv_head(q.row, q.scale_inv);
	const uint32_t *col_head = nv_head(q.col, q.col_scale_inv);
	piece<T> x[NV];
	float by = 0.0f;

	if (noop_set(q.noop))
		return;
	nv_load(in, t, x);
	if (SQUARES) {
		const nv_level level = nv_level_of(q, head ? head : col_head);
		uint32_t most = 0, byte;

#pragma unroll
		for (int i = 0; i < NV; i++)
#pragma unroll
			for (int e = 0; e < W; e++)
				most = max(most, abs_bits(elem(x[i], e)));
		byte = nv_byte(level, nv_most<T>(most), &by);
#pragma unroll
		for (int i = 0; i < NV; i++)
			if (first)
				nv_put_byte(s.scale[0], band * NV + i, tx * W / NV,
					    r + i < t.rows ? byte : 0);
#pragma unroll
		for (int e = 0; e < W; e++)
			nv_put_byte(s.scale[1], tx * W + e, band, byte);
		if (is_first) {
			if (head)
				q.scale_inv[0] = level.inv;
			if (col_head)
				q.col_scale_inv[0] = level.inv;
		}
	}
	if (head) {
		const nv_level level = nv_level_of(q, head);

		if (!SQUARES && is_first)
			q.scale_inv[0] = level.inv;
#pragma unroll
		for (int i = 0; i < NV; i++) {
			const int64_t at = (r + i) * t.cols + c;
			struct te_philox p = nv_draw<STOCHASTIC>(head, (uint64_t)at, 0);
			uint32_t codes = 0;

			/* FP32: half of a group of 8 */
			if (W == 4 && tx % 2) {
				p.w[0] = p.w[2];
				p.w[1] = p.w[3];
			}

			if (!SQUARES) {
				uint32_t most = 0, byte;

#pragma unroll
				for (int e = 0; e < W; e++)
					most = max(most, abs_bits(elem(x[i], e)));
				byte = nv_byte(level, nv_most<T>(most), &by);
				if (first)
					nv_put_byte(s.scale[0], band * NV + i, tx * W / NV, byte);
			}
#pragma unroll
			for (int e = 0; e < W; e++)
				codes |= nv_encode<STOCHASTIC>(mul(elem(x[i], e), by), p, e)
					 << (4 * e);
			if (r + i < t.rows && c < t.cols)
				nv_store_row<W>((uint8_t *)q.row + at / 2, codes);
		}
	}
	if (col_head) {
		const nv_level level = nv_level_of(q, col_head);

		if (!SQUARES && is_first)
			q.col_scale_inv[0] = level.inv;
#pragma unroll
		for (int e = 0; e < W; e++) {
			uint32_t w[2] = { 0, 0 };
			float v[NV];

#pragma unroll
			for (int i = 0; i < NV; i++)
				v[i] = elem(x[i], e);
			if (!SQUARES) {
				uint32_t most = 0;

				nv_transform(v);
#pragma unroll
				for (int i = 0; i < NV; i++)
					most = max(most, abs_bits(v[i]));
				nv_put_byte(s.scale[1], tx * W + e, band,
					    nv_byte(level, most, &by));
			}
#pragma unroll
			for (int i = 0; i < NV; i += 8) {
				const struct te_philox p = nv_draw<STOCHASTIC>(
					col_head, (uint64_t)((c + e) * t.rows + r + i), 1);

#pragma unroll
				for (int k = 0; k < 8; k++)
					w[i / 8] |= nv_encode<STOCHASTIC>(mul(v[i + k], by), p, k)
						    << (4 * k);
			}
			*nv_slot(&s, tx * W + e, band) = make_uint2(w[0], w[1]);
		}
	}
	__syncthreads();
	if (head)
		nv_store_squares(q.scale_inv, t.cols, t.r0, t.c0, s.scale[0]);
	if (col_head) {
		nv_store_squares(q.col_scale_inv, t.rows, t.c0, t.r0, s.scale[1]);
		nv_store_cols(&s, t, (uint8_t *)q.col);
	}
}

#define FUNC(T, SQUARES, STOCHASTIC, name)                              \
	TE_KERNEL(quantize_##name, quantize, (nv_threads<T>::THREADS),  \
		  quantize_nvfp4_body<T, SQUARES, STOCHASTIC>(a.q, mx_tile(a), input_of<T>(a)))
#define TE_NAME(T, t)                                \
	FUNC(T, false, false, 1x16_##t)              \
	FUNC(T, false, true, 1x16_random_##t)        \
	FUNC(T, true, false, 16x16_##t)
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
#undef FUNC

/* --- weights ------------------------------------------------------------------------------ */

/* the values of a tile; copies of split masters are FP32 */
template <bool SPLIT>
DEV void weights_values(const struct te_k_weights &a, const struct te_k_weight &w, int64_t tile)
{
	const int64_t n = w.rows * w.cols, end = min(n, (tile + 1) * TE_K_WEIGHT_TILE);

	for (int64_t at = tile * TE_K_WEIGHT_TILE + threadIdx.x; at < end; at += BLOCK_THREADS) {
		const int64_t from = w.master + at;

		if constexpr (SPLIT)
			((float *)((char *)a.copies + w.hp))[at] =
				te_round_join(((const uint16_t *)a.masters)[from],
					      a.rest ? a.rest[from] : 0);
		else
			((bf16 *)((char *)a.copies + w.hp))[at] =
				from_float<bf16>(((const float *)a.masters)[from]);
	}
}

/* the rows and columns of a master that has no padding */
template <bool SPLIT>
DEV auto master_of(const struct te_k_weights &a, const struct te_k_weight &w)
{
	const int64_t rows = w.rows - w.pad_rows, cols = w.cols - w.pad_cols;

	if constexpr (SPLIT) {
		return split_input{ (const uint16_t *)a.masters + w.master,
				    a.rest ? a.rest + w.master : NULL, rows, cols };
	} else {
		const float *x = (const float *)a.masters + w.master;

		return input<float>{ x, rows, cols,
				     cols % piece<float>::W == 0 && aligned(x) };
	}
}

/* te_k_weights_cast by 1X32 or 16X16: blocks take tiles in turn, as in weights.cu */
template <bool FP4, bool SPLIT> DEV void weights_body(const struct te_k_weights &a)
{
	const uint64_t version = *a.version;

	if (te_k_weights_current(&a))
		return;
	for (int64_t k = blockIdx.x; k < a.ntiles; k += gridDim.x) {
		const struct te_k_weight w = a.table[entry_of(a, k)];
		const int64_t tile = k - w.tile, nc = (w.cols + BLOCK - 1) / BLOCK;
		const block_tile t =
			block_at(w.rows, w.cols, tile / nc * BLOCK, tile % nc * BLOCK);
		const struct te_k_q q = te_k_weight_q(&a, &w);

		__syncthreads(); /* the codes of the tile before have been stored */
		if (w.hp >= 0)
			weights_values<SPLIT>(a, w, tile);
		else if constexpr (FP4)
			quantize_nvfp4_body<float, true, false>(q, t, master_of<SPLIT>(a, w));
		else
			quantize_1x32_body<float>(q, t, master_of<SPLIT>(a, w));
	}
	if (is_last_block(a.done) && threadIdx.x == 0)
		a.done->copies = version;
}

#define TE_NAME(FP4, SPLIT, name)                                               \
	TE_KERNEL(weights_cast_##name, weights, (BLOCK_THREADS, FP4 ? 2 : 1),   \
		  weights_body<FP4, SPLIT>(a))
TE_NAME(false, false, mxfp8)
TE_NAME(false, true, mxfp8_split)
TE_NAME(true, false, nvfp4)
TE_NAME(true, true, nvfp4_split)
#undef TE_NAME

/* --- back --------------------------------------------------------------------------------- */

/* the scale of a block, from 1X32 on: te__h_scale_get() */
DEV float mx_scale_inv(const struct te_k_dequantize &a, int64_t r, int64_t c)
{
	const int64_t at = te_k_scale_index(a.scaling, a.rows, a.cols, r, c);
	const uint32_t e = ((const uint8_t *)a.scale_inv)[at];

	if (a.scaling != TE_K_SCALING_1X32)
		return mul(te__e4m3_decode((uint8_t)e), *a.scale_inv);
	return mx_inverse(e);
}

/* one of D's codes; E2M1: half a byte */
template <int D> DEV float mx_decode(const uint8_t *x, int64_t at)
{
	if (D == TE_D_E2M1)
		return te__e2m1_decode((uint32_t)x[at / 2] >> (at % 2 * 4));
	return D == TE_D_E4M3 ? te__e4m3_decode(x[at]) : te__e5m2_decode(x[at]);
}

/* blocks are 16 elements or more, so that a vector has one scale if rows are whole vectors */
template <int D, class T> DEV void dequantize_mx_body(const struct te_k_dequantize &a)
{
	const int64_t width = a.cols - a.pad_cols, n = (a.rows - a.pad_rows) * width;
	const bool vec = aligned(a.y), whole = width % TE_V == 0;

#pragma unroll 1
	for (int u = 0; u < TE_FLAT_UNROLL; u++) {
		const int64_t at = flat_at(u);
		int64_t r = at / width, c = at % width;
		float v[TE_V], scale_inv = 0.0f;

#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			v[e] = 0.0f;
			if (at + e >= n)
				continue;
			if (e == 0 || !whole)
				scale_inv = mx_scale_inv(a, r, c);
			v[e] = mul(mx_decode<D>((const uint8_t *)a.x, r * a.cols + c), scale_inv);
			if (++c == width) {
				c = 0;
				r++;
			}
		}
		flat_put((T *)a.y, n, vec, u, v);
	}
}

#define TE_NAME(D, T, name)                                             \
	TE_KERNEL(dequantize_mx_##name, dequantize, (TE_FLAT_THREADS),  \
		  dequantize_mx_body<D, T>(a))
TE_NAME(TE_D_E4M3, float, e4m3_fp32)
TE_NAME(TE_D_E4M3, bf16, e4m3_bf16)
TE_NAME(TE_D_E5M2, float, e5m2_fp32)
TE_NAME(TE_D_E5M2, bf16, e5m2_bf16)
TE_NAME(TE_D_E2M1, float, e2m1_fp32)
TE_NAME(TE_D_E2M1, bf16, e2m1_bf16)
#undef TE_NAME
