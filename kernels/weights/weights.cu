/*
 * weights.cu - the compute copies of all weights of a set in one launch. sm_90a.
 *
 *  kernel           shapes                          blocks           threads  shared  B/element
 *  weights_changed  1 word                          1                1        0
 *  weights_amax     FP32 masters                    528 at most      256      40      4
 *  weights_cast     FP32 masters to codes and BF16  264 at most      256      17153   5 to 6
 *    _blocks        the same, scaled by blocks      264 at most      256      38145
 *    _split         split masters, copies in FP32   the same, as _amax_split and _blocks_split
 *  weight_transpose codes [rows, cols]              528 at most      256      4353    2
 *
 * Blocks take tiles of the set in turn: 64 x 128 of a weight with one scale (tile.cuh), 128 x 128
 * of one that is scaled by blocks (block.cuh), 8192 elements of one that is cast to BF16. A tile's
 * weight is found by binary search in the table, in weights_cast the next ones from there on, by
 * one thread for all, two tiles ahead. Two blocks a multiprocessor and stores that are evicted
 * first give 3.7 TB/s of an H200 with both copies in FP8; three blocks give 2.8.
 * The last block to finish writes what all blocks have read before: the versions in a.done, and in
 * weights_amax the scales, from the largest value of each tile.
 * weight_transpose takes tiles of 64 x 64 codes of one weight: a thread loads 16 codes of a row and
 * stores 16 of a column.
 */
#include "kernels/block.cuh"
#include "kernels/split.cuh"
#include "kernels/tile.cuh"
#include "kernels/weights/geometry.h"
#include "kernels/weights/weights.cuh"

extern "C" __global__ void
te_k_weights_changed(const __grid_constant__ struct te_k_weights_changed a)
{
	te_begin();
	++*a.version;
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

/* a tile of FP32 values of a split master, as by tile_load() */
DEV tile_raw<float, TILE_R> tile_load_split(const tile<TILE_R> *t, const uint16_t *upper,
					    const uint16_t *rest, bool vec)
{
	const int64_t at = t->r * t->end + t->c;
	tile_raw<float, TILE_R> x;
	float v[TE_V];

	upper += at;
	rest = rest ? rest + at : NULL;
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		split_load<true>(upper, rest, tile_n(t, i), vec, v);
		x.row[i] = pack<float>(v);
		upper += t->end;
		rest = rest ? rest + t->end : NULL;
	}
	return x;
}

/* the largest of m and of a tile, which is of an entry with its padding */
template <bool SPLIT>
DEV float amax_of_tile(const struct te_k_weights &a, const struct te_k_weight &w,
		       const tile<TILE_R> &padded, float m)
{
	const tile<TILE_R> t = tile_unpadded(padded, w.pad_rows, w.pad_cols);
	tile_raw<float, TILE_R> raw;
	float v[TE_V];

	if constexpr (SPLIT) {
		const uint16_t *x = (const uint16_t *)a.masters + w.master;
		const uint16_t *rest = a.rest ? a.rest + w.master : NULL;

		raw = tile_load_split(&t, x, rest, t.end % TE_V == 0 && aligned(x) &&
							   aligned(rest));
	} else {
		const float *x = (const float *)a.masters + w.master;

		raw = tile_load<float>(&t, x, t.end, t.c, t.end % TE_V == 0 && aligned(x));
	}
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		const int n = tile_n(&t, i);

		unpack(raw.row[i], v);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			m = e < n ? amax_of(m, v[e]) : m;
	}
	return m;
}

DEV bool is_nvfp4(const struct te_k_weight &w)
{
	return w.hp < 0 && w.scaling >= TE_K_SCALING_1X16;
}

/* what nvfp4_amax leaves in the head of each copy's scales */
DEV void put_heads(const struct te_k_weights &a, const struct te_k_weight &w, float m)
{
	for (int i = 0; i < 2; i++) {
		uint32_t *head = (uint32_t *)((char *)a.copies +
					      (i ? w.col_scale_inv : w.scale_inv));

		if ((i ? w.col : w.row) < 0)
			continue;
		head[TE_K_NV_AMAX] = head[TE_K_NV_AMAX_X] = __float_as_uint(m);
		head[TE_K_NV_SUM] = 0;
	}
}

template <bool SPLIT> DEV void amax_body(const struct te_k_weights &a)
{
	if (te_k_weights_current(&a))
		return;
	for (int64_t k = blockIdx.x; k < a.ntiles; k += gridDim.x) {
		const struct te_k_weight w = a.table[entry_of(a, k)];
		float m = 0.0f;

		if (w.hp >= 0)
			continue; /* the same for all threads of the block */
		if (is_nvfp4(w)) {
			const int64_t nc = (w.cols + BLOCK - 1) / BLOCK, tile = k - w.tile;

			for (int half = 0; half < 2; half++)
				m = amax_of_tile<SPLIT>(
					a, w,
					tile_at<TILE_R>(w.rows, w.cols,
							tile / nc * BLOCK + half * TILE_ROWS,
							tile % nc * BLOCK), m);
		} else {
			m = amax_of_tile<SPLIT>(
				a, w, tile_number<TILE_R>(w.rows, w.cols, (uint32_t)(k - w.tile)),
				m);
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
		if (threadIdx.x % 32 == 0 && is_nvfp4(w)) {
			put_heads(a, w, m);
		} else if (threadIdx.x % 32 == 0) {
			a.amax[(int64_t)w.slot * a.window] = m;
			a.scale[w.slot] = scale_of(a, w.dtype, m);
		}
	}
}

#define TE_NAME(SPLIT, name)    \
	TE_KERNEL(weights_amax##name, weights, (TILE_THREADS, 4), amax_body<SPLIT>(a))
TE_NAME(false, )
TE_NAME(true, _split)
#undef TE_NAME

/* --- copies -------------------------------------------------------------- */

#define CAST_UNROLL (TE_K_WEIGHT_TILE / (TILE_THREADS * TE_V))
#define FINDER (TILE_THREADS - 32) /* the thread that finds tiles */

/* a tile of the set */
struct place {
	int entry; /* -1: there is no tile */
	int scaling;
	int64_t rows, cols;
	int64_t r0, c0; /* the tile of an entry with codes */
	int64_t first;	/* its first element, of an entry with values */
	const void *x;	/* the entry's master: float, or uint16_t if it is split */
	const uint16_t *rest; /* its other halves, or NULL */
	void *hp;	/* copy of values, or NULL: codes, q */
	struct te_k_q q;
	float scale;
	int pad_rows, pad_cols;
	bool vec; /* rows of the copies start on vectors */
	bool x_vec;
};

/* tile k of the set; entry: of a tile before it */
template <bool SPLIT>
DEV void find(const struct te_k_weights &a, int64_t k, int entry, struct place *p)
{
	p->entry = -1;
	if (k >= a.ntiles)
		return;
	while (entry + 1 < a.n && a.table[entry + 1].tile <= k)
		entry++;

	const struct te_k_weight w = a.table[entry];
	const int64_t tile = k - w.tile;

	p->entry = entry;
	p->rows = w.rows;
	p->cols = w.cols;
	p->x = (const char *)a.masters + w.master * (SPLIT ? 2 : 4);
	p->rest = SPLIT && a.rest ? a.rest + w.master : NULL;
	p->hp = w.hp < 0 ? NULL : (char *)a.copies + w.hp;
	if (p->hp) {
		p->first = tile * TE_K_WEIGHT_TILE;
		p->vec = aligned(p->x) && aligned(p->rest) && aligned(p->hp);
		return;
	}
	p->q = te_k_weight_q(&a, &w);
	p->scaling = w.scaling;
	p->pad_rows = w.pad_rows;
	p->pad_cols = w.pad_cols;
	p->vec = w.cols % TE_V == 0 && aligned(p->q.row);
	p->x_vec = (w.cols - w.pad_cols) % TE_V == 0 && aligned(p->x) && aligned(p->rest);
	if (w.scaling != TE_K_SCALING_TENSOR) {
		const int64_t nc = (w.cols + BLOCK - 1) / BLOCK;

		p->r0 = tile / nc * BLOCK;
		p->c0 = tile % nc * BLOCK;
		return;
	}
	const auto t = tile_number<TILE_R>(w.rows, w.cols, (uint32_t)tile);

	p->r0 = t.r0;
	p->c0 = t.c0;
	p->scale = q_scale(&p->q);
	if (tile == 0)
		*p->q.scale_inv = __fdiv_rn(1.0f, p->scale);
}

template <bool SPLIT> DEV void cast_tile(const struct place &p)
{
	const float *x = (const float *)p.x;
	bf16 *hp = (bf16 *)p.hp;
	const int64_t n = p.rows * p.cols;
	float v[TE_V];

#pragma unroll
	for (int u = 0; u < CAST_UNROLL; u++) {
		const int64_t at = p.first + (u * TILE_THREADS + threadIdx.x) * TE_V;

		const bool vec = p.vec && at + TE_V <= n;
		const int some = clamp_int(n - at, 0, TE_V);

		if constexpr (SPLIT) {
			split_load<true>((const uint16_t *)p.x + at, p.rest ? p.rest + at : NULL,
					 some, vec, v);
			if (vec)
				store_raw<true>((float *)p.hp + at, pack<float>(v));
			else
				store_some((float *)p.hp + at, some, v);
		} else if (vec) {
			unpack(load_raw<true>(x + at), v);
			store_raw<true>(hp + at, pack<bf16>(v));
		} else {
			load_some(x + at, some, v);
			store_some(hp + at, some, v);
		}
	}
}

/* returns the maximum of m and the tile's values */
template <bool SPLIT>
DEV float quantize_tile(const struct place &p, tile_codes<TILE_R> *codes, float m)
{
	const auto t = tile_at<TILE_R>(p.rows, p.cols, p.r0, p.c0);
	const struct tile_out<float> o = { NULL, p.q, NULL, 0, p.scale, p.vec };
	const auto in = tile_unpadded(t, p.pad_rows, p.pad_cols);
	tile_raw<float, TILE_R> x;
	float v[TILE_R][TE_V];

	if constexpr (SPLIT)
		x = tile_load_split(&in, (const uint16_t *)p.x, p.rest, p.x_vec);
	else
		x = tile_load<float, true>(&in, (const float *)p.x, in.end, t.c, p.x_vec);

#pragma unroll
	for (int i = 0; i < TILE_R; i++)
		unpack(x.row[i], v[i]);
	return tile_put<float, TILE_R, false, true>(&o, &t, v, codes, NULL, m);
}

template <bool SPLIT>
DEV void quantize_blocks(const struct place &p, block_shared<false> *shared)
{
	const block_tile t = block_at(p.rows, p.cols, p.r0, p.c0);
	const block_tile in = block_unpadded(t, p.pad_rows, p.pad_cols);
	const block_out<float> o = { NULL, p.q, NULL, p.vec };
	raw<float> v[BLOCK_R];

#pragma unroll
	for (int i = 0; i < BLOCK_R; i++) {
		const int64_t at = (t.r + i) * in.cols + t.c;

		if constexpr (SPLIT) {
			float some[TE_V];

			split_load<true>((const uint16_t *)p.x + at, p.rest ? p.rest + at : NULL,
					 block_n(in, i), p.x_vec, some);
			v[i] = pack<float>(some);
		} else {
			v[i] = block_load<true>((const float *)p.x + at, block_n(in, i), p.x_vec);
		}
	}
	block_put(o, TE_K_SCALING_128X128, t, v, shared);
}

template <bool BLOCKS> struct cast_shared {
	tile_codes<TILE_R> codes[2];
	struct place place[4];
};
template <> struct cast_shared<true> {
	block_shared<false> blocks;
	tile_codes<TILE_R> codes[2];
	struct place place[4];
};

/*
 * A tile has one barrier, within tile_put() or after it. Of the threads of a block some can be
 * one tile ahead, so codes alternate between two places in shared memory; and as a place is
 * written two tiles ahead, there are four. The amaxes of consecutive tiles of an entry are folded
 * into its slot together.
 */
template <bool BLOCKS, bool SPLIT>
DEV void cast_body(const struct te_k_weights &a, cast_shared<BLOCKS> *shared)
{
	float m = 0.0f;
	int64_t k = blockIdx.x;

	if (te_k_weights_current(&a))
		return;
	if (threadIdx.x == FINDER) {
		find<SPLIT>(a, k, entry_of(a, k), &shared->place[0]);
		find<SPLIT>(a, k + gridDim.x, shared->place[0].entry, &shared->place[1]);
	}
	__syncthreads();
	for (int j = 0; shared->place[j % 4].entry >= 0; j++, k += gridDim.x) {
		const struct place &p = shared->place[j % 4], &next = shared->place[(j + 1) % 4];

		if (threadIdx.x == FINDER)
			find<SPLIT>(a, k + 2 * gridDim.x, next.entry, &shared->place[(j + 2) % 4]);
		if (p.hp) {
			cast_tile<SPLIT>(p);
			__syncthreads();
			continue;
		}
		if constexpr (BLOCKS) {
			if (p.scaling != TE_K_SCALING_TENSOR) {
				quantize_blocks<SPLIT>(p, &shared->blocks);
				__syncthreads();
				continue;
			}
		}
		m = quantize_tile<SPLIT>(p, &shared->codes[j % 2], m);
		if (!p.q.col)
			__syncthreads();
		if (a.record && next.entry != p.entry) {
			block_amax(p.q.amax, m);
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

#define TE_NAME(BLOCKS, SPLIT, name)                                                          \
	extern "C" __global__ void __launch_bounds__(TILE_THREADS, 2)                         \
		te_k_weights_cast##name(const __grid_constant__ struct te_k_weights a)        \
	{                                                                                     \
		te_begin();                                                                   \
		__shared__ cast_shared<BLOCKS> shared;                                        \
		cast_body<BLOCKS, SPLIT>(a, &shared);                                         \
	}
TE_NAME(false, false, )
TE_NAME(true, false, _blocks)
TE_NAME(false, true, _split)
TE_NAME(true, true, _blocks_split)
#undef TE_NAME

/* --- codes that have no master -------------------------------------------- */

#define TURN_CODES 16 /* codes of a thread */

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
