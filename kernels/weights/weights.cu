/*
 * weights.cu - the compute copies of all weights of a set in one launch. sm_90a.
 *
 *  kernel           shapes                          blocks           threads  shared  B/element
 *  weights_changed  1 word                          1                1        0
 *  weights_amax     FP32 masters                    528 at most      256      40      4
 *  weights_cast     FP32 masters to codes and BF16  264 at most      256      8384    5 to 6
 *    _blocks        the same, scaled by blocks      264 at most      256      29100
 *  weight_transpose codes [rows, cols]              528 at most      256      4353    2
 *
 * Blocks take tiles of the set in turn: 64 x 128 of a weight with one scale (tile.cuh), 128 x 128
 * of one that is scaled by blocks (block.cuh), 8192 elements of one that is cast to BF16. A tile's
 * weight is found by binary search in the table, in weights_cast the next ones from there on.
 * weights_cast loads a tile before it stores the previous one, so that each multiprocessor has
 * 64 KiB in flight: 3.4 TB/s of an H200 with both copies in FP8, 3.9 with BF16.
 * The last block to finish writes what all blocks have read before: the versions in a.done, and in
 * weights_amax the scales, from the largest value of each tile.
 * weight_transpose takes tiles of 64 x 64 codes of one weight: a thread loads 16 codes of a row and
 * stores 16 of a column.
 */
#include "kernels/block.cuh"
#include "kernels/tile.cuh"
#include "kernels/weights/geometry.h"

extern "C" __global__ void
te_k_weights_changed(const __grid_constant__ struct te_k_weights_changed a)
{
	te_begin();
	++*a.version;
}

/* the entry that a tile belongs to: the last one that begins at or before it */
DEV int entry_of(const struct te_k_weights &a, int64_t tile)
{
	int lo = 0, hi = a.n - 1;

	while (lo < hi) {
		const int mid = (lo + hi + 1) / 2;

		if (a.table[mid].tile <= tile)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

/* all threads of a block call it once, after their last access: true in the last block */
DEV bool is_last_block(struct te_k_weights_done *done)
{
	__shared__ bool last;

	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		last = atomicAdd((unsigned long long *)&done->nblocks, 1ull) == gridDim.x - 1;
		if (last)
			done->nblocks = 0;
		__threadfence();
	}
	__syncthreads();
	return last;
}

/* --- amaxes and scales --------------------------------------------------- */

/* the block's largest, of amax_of, in thread 0 */
DEV float block_max(float m)
{
	__shared__ float part[TILE_THREADS / 32];

	m = warp_amax(m);
	__syncthreads(); /* the tile before has been read */
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = m;
	__syncthreads();
	if (threadIdx.x == 0)
#pragma unroll
		for (int w = 0; w < TILE_THREADS / 32; w++)
			m = fmaxf(m, part[w]);
	return m;
}

/* as te_k_scale_current */
DEV float scale_of(const struct te_k_weights &a, int dtype, float amax)
{
	float s;

	amax = amax < a.epsilon ? a.epsilon : amax;
	if (amax == 0.0f || !(fabsf(amax) < TE_INF)) {
		s = 1.0f;
	} else {
		s = __fdiv_rn(a.fmt_max[dtype == TE_D_E5M2], amax);
		s = fabsf(s) == TE_INF ? TE_FLT_MAX : s;
	}
	return a.pow2 ? __uint_as_float(__float_as_uint(s) & 0x7f800000u) : s;
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4)
	te_k_weights_amax(const __grid_constant__ struct te_k_weights a)
{
	te_begin();
	if (te_k_weights_current(&a))
		return;
	for (int64_t k = blockIdx.x; k < a.ntiles; k += gridDim.x) {
		const struct te_k_weight w = a.table[entry_of(a, k)];
		const float *x = a.masters + w.master;
		const tile<TILE_R> t = tile_number<TILE_R>(w.rows, w.cols, (uint32_t)(k - w.tile));
		float v[TE_V], m = 0.0f;

		if (w.hp >= 0)
			continue; /* the same for all threads of the block */
		const tile_raw<float, TILE_R> raw =
			tile_load<float>(&t, x, w.cols, t.c, w.cols % TE_V == 0 && aligned(x));
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			unpack(raw.row[i], v);
			const int n = tile_n(&t, i);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				m = e < n ? amax_of(m, v[e]) : m;
		}
		m = block_max(m);
		if (threadIdx.x == 0)
			a.part[k] = m;
	}
	if (!is_last_block(a.done))
		return;
	/* a warp for each entry */
	for (int i = threadIdx.x / 32; i < a.n; i += TILE_THREADS / 32) {
		const struct te_k_weight w = a.table[i];
		const int64_t end = w.tile + te_k_weight_ntiles(&w);
		float m = 0.0f;

		if (w.hp >= 0)
			continue;
		for (int64_t k = w.tile + threadIdx.x % 32; k < end; k += 32)
			m = fmaxf(m, __ldcg(a.part + k));
		m = warp_amax(m);
		if (threadIdx.x % 32 == 0) {
			a.amax[(int64_t)w.slot * a.window] = m;
			a.scale[w.slot] = scale_of(a, w.dtype, m);
		}
	}
}

/* --- copies -------------------------------------------------------------- */

#define CAST_UNROLL (TE_K_WEIGHT_TILE / (TILE_THREADS * TE_V))
static_assert(CAST_UNROLL == TILE_R, "both kinds of tiles are held in the same registers");

/* a tile of the set, and this thread's elements of it unless its entry is scaled by blocks */
struct piece {
	int entry; /* -1: there is no tile */
	tile_raw<float, TILE_R> x;
};

/* this thread's first element of vector u of a BF16 entry's tile */
DEV int64_t cast_at(int64_t tile, int u)
{
	return tile * TE_K_WEIGHT_TILE + (u * TILE_THREADS + threadIdx.x) * TE_V;
}

/* entry: of a tile before it */
DEV piece piece_load(const struct te_k_weights &a, int64_t k, int entry)
{
	piece p;

	p.entry = k < a.ntiles ? entry : -1;
	if (k >= a.ntiles)
		return p;
	while (p.entry + 1 < a.n && a.table[p.entry + 1].tile <= k)
		p.entry++;

	const struct te_k_weight &w = a.table[p.entry];
	const float *x = a.masters + w.master;

	if (w.hp < 0) {
		if (w.scaling != TE_K_SCALING_TENSOR)
			return p;
		const auto t = tile_number<TILE_R>(w.rows, w.cols, (uint32_t)(k - w.tile));

		p.x = tile_load<float, true>(&t, x, w.cols, t.c, w.cols % TE_V == 0 && aligned(x));
		return p;
	}

	const int64_t n = w.rows * w.cols;
	const bool vec = aligned(x);
	float v[TE_V];

#pragma unroll
	for (int u = 0; u < CAST_UNROLL; u++) {
		const int64_t at = cast_at(k - w.tile, u);

		if (vec && at + TE_V <= n) {
			p.x.row[u] = load_raw<true>(x + at);
		} else {
			load_some(x + at, clamp_int(n - at, 0, TE_V), v);
			p.x.row[u] = pack<float>(v);
		}
	}
	return p;
}

DEV void cast_tile(const struct te_k_weights &a, const struct te_k_weight &w, int64_t tile,
		   const piece &p)
{
	bf16 *y = (bf16 *)((char *)a.copies + w.hp);
	const int64_t n = w.rows * w.cols;
	const bool vec = aligned(y);
	float v[TE_V];

#pragma unroll
	for (int u = 0; u < CAST_UNROLL; u++) {
		const int64_t at = cast_at(tile, u);

		unpack(p.x.row[u], v);
		if (vec && at + TE_V <= n)
			store_vec(y + at, v);
		else
			store_some(y + at, clamp_int(n - at, 0, TE_V), v);
	}
}

/* returns the maximum of m and the tile's values */
DEV float quantize_tile(const struct te_k_weights &a, const struct te_k_weight &w, int64_t tile,
			const piece &p, tile_codes<TILE_R> *codes, float m)
{
	const auto t = tile_number<TILE_R>(w.rows, w.cols, (uint32_t)tile);
	struct tile_out<float> o = { NULL, te_k_weight_q(&a, &w), NULL, 0, 1.0f, false };
	float v[TILE_R][TE_V];

	o.vec = w.cols % TE_V == 0 && aligned(o.q.row);
	o.scale = q_scale(&o.q);
	if (tile == 0 && threadIdx.x == 0)
		*o.q.scale_inv = __fdiv_rn(1.0f, o.scale);
#pragma unroll
	for (int i = 0; i < TILE_R; i++)
		unpack(p.x.row[i], v[i]);
	return tile_put<float, TILE_R>(&o, &t, v, codes, NULL, m);
}

DEV void quantize_blocks(const struct te_k_weights &a, const struct te_k_weight &w, int64_t tile,
			 block_shared<false> *shared)
{
	const int64_t nc = (w.cols + BLOCK - 1) / BLOCK;
	const block_tile t = block_at(w.rows, w.cols, tile / nc * BLOCK, tile % nc * BLOCK);
	const struct te_k_q q = te_k_weight_q(&a, &w);
	const float *x = a.masters + w.master;
	const block_out<float> o = { NULL, q, NULL, block_vec(w.cols, x, NULL, q) };
	raw<float> v[BLOCK_R];

	x += t.r * w.cols + t.c;
#pragma unroll
	for (int i = 0; i < BLOCK_R; i++)
		v[i] = block_load<true>(x + i * w.cols, block_n(t, i), o.vec);
	block_put(o, TE_K_SCALING_128X128, t, v, shared);
}

template <bool BLOCKS> struct cast_shared {
	tile_codes<TILE_R> codes;
};
template <> struct cast_shared<true> {
	block_shared<false> blocks;
	tile_codes<TILE_R> codes;
};

/*
 * The next tile is loaded before this one is stored, but not where blocks are scaled, which needs
 * the registers. The amaxes of consecutive tiles of an entry are folded into its slot together.
 */
template <bool BLOCKS>
DEV void cast_body(const struct te_k_weights &a, cast_shared<BLOCKS> *shared)
{
	float m = 0.0f;

	if (te_k_weights_current(&a))
		return;

	int entry = entry_of(a, blockIdx.x);
	piece next = BLOCKS ? piece() : piece_load(a, blockIdx.x, entry);

	for (int64_t k = blockIdx.x; k < a.ntiles; k += gridDim.x) {
		const piece p = BLOCKS ? piece_load(a, k, entry) : next;
		const struct te_k_weight &w = a.table[p.entry];

		entry = p.entry;
		if (!BLOCKS)
			next = piece_load(a, k + gridDim.x, entry);
		if (w.hp >= 0) {
			cast_tile(a, w, k - w.tile, p);
			continue;
		}
		__syncthreads(); /* the tile before has left shared memory */
		if constexpr (BLOCKS) {
			if (w.scaling != TE_K_SCALING_TENSOR) {
				quantize_blocks(a, w, k - w.tile, &shared->blocks);
				continue;
			}
		}
		m = quantize_tile(a, w, k - w.tile, p, &shared->codes, m);
		if (a.record && (BLOCKS || next.entry != entry)) {
			block_amax(te_k_weight_q(&a, &w).amax, m);
			m = 0.0f;
		}
	}
	const uint64_t version = *a.version;

	if (!is_last_block(a.done) || threadIdx.x)
		return;
	a.done->copies = version;
	if (a.record)
		a.done->amax = version;
}

#define TE_NAME(BLOCKS, MIN_BLOCKS, name)                                                     \
	extern "C" __global__ void __launch_bounds__(TILE_THREADS, MIN_BLOCKS)                \
		te_k_weights_cast##name(const __grid_constant__ struct te_k_weights a)        \
	{                                                                                     \
		te_begin();                                                                   \
		__shared__ cast_shared<BLOCKS> shared;                                        \
		cast_body<BLOCKS>(a, &shared);                                                \
	}
TE_NAME(false, 2, )
TE_NAME(true, 2, _blocks)
#undef TE_NAME

/* --- codes that have no master -------------------------------------------- */

#define TURN_CODES 16 /* of a thread */

/* n codes, n at most TURN_CODES; the others are 0 */
DEV void turn_load(const uint8_t *p, int n, uint8_t ret[TURN_CODES])
{
	if (n == TURN_CODES && aligned(p)) {
		*(uint4 *)ret = *(const uint4 *)p;
		return;
	}
#pragma unroll
	for (int i = 0; i < TURN_CODES; i++)
		ret[i] = i < n ? p[i] : 0;
}

DEV void turn_store(uint8_t *p, int n, const uint8_t code[TURN_CODES])
{
	if (n == TURN_CODES && aligned(p)) {
		*(uint4 *)p = *(const uint4 *)code;
		return;
	}
#pragma unroll
	for (int i = 0; i < TURN_CODES; i++)
		if (i < n)
			p[i] = code[i];
}

/* the matrix of scales of col, whose padding is 0; all blocks */
DEV void turn_scales(const struct te_k_weight_transpose &a)
{
	const int64_t n = te_k_scale_nfloats(a.scaling, a.cols, a.rows);
	const int64_t ld = te_k_scale_ld(a.scaling, a.cols, a.rows);

	for (int64_t i = (int64_t)blockIdx.x * TILE_THREADS + threadIdx.x; i < n;
	     i += (int64_t)gridDim.x * TILE_THREADS) {
		const int64_t c = i / ld * BLOCK, r = i % ld * BLOCK;

		a.col_scale_inv[i] =
			r < a.rows ?
				a.scale_inv[te_k_scale_index(a.scaling, a.rows, a.cols, r, c)] :
				0.0f;
	}
}

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
	te_k_weight_transpose(const __grid_constant__ struct te_k_weight_transpose a)
{
	te_begin();
	__shared__ uint8_t tile[TURN][TURN + 4];
	const int64_t nc = (a.cols + TURN - 1) / TURN;
	const int64_t ntiles = (a.rows + TURN - 1) / TURN * nc;
	const int line = threadIdx.x / (TURN / TURN_CODES);
	const int at = threadIdx.x % (TURN / TURN_CODES) * TURN_CODES;
	__align__(16) uint8_t code[TURN_CODES];
	const uint64_t version = *a.version;

	static_assert(TILE_THREADS * TURN_CODES == TURN * TURN, "16 codes of each thread");
	if (a.done->copies == version)
		return;
	if (a.scaling != TE_K_SCALING_TENSOR)
		turn_scales(a);
	for (int64_t k = blockIdx.x; k < ntiles; k += gridDim.x) {
		const int64_t r0 = k / nc * TURN, c0 = k % nc * TURN;

		if (r0 + line < a.rows) {
			turn_load((const uint8_t *)a.row + (r0 + line) * a.cols + c0 + at,
				  clamp_int(a.cols - c0 - at, 0, TURN_CODES), code);
#pragma unroll
			for (int i = 0; i < TURN_CODES; i++)
				tile[line][at + i] = code[i];
		}
		__syncthreads();
		if (c0 + line < a.cols) {
#pragma unroll
			for (int i = 0; i < TURN_CODES; i++)
				code[i] = tile[at + i][line];
			turn_store((uint8_t *)a.col + (c0 + line) * a.rows + r0 + at,
				   clamp_int(a.rows - r0 - at, 0, TURN_CODES), code);
		}
		__syncthreads(); /* the tile has been read */
	}
	if (is_last_block(a.done) && threadIdx.x == 0)
		a.done->copies = version;
}
