/*
 * sm90.cu - causal attention in BF16, forward, of all keys, a window or documents: persistent
 * blocks, warp specialization, wgmma on tiles that the copy engine loads. sm_90a, head_dim 64 and
 * 128. The default (TE_ATTENTION) unless sequences are few and short; t/kernels/attn_sm90.cc
 * emulates them on the host.
 *
 * Blocks: one a multiprocessor, 512 threads for head_dim 64 and 384 for 128, up to 193 KiB shared
 * memory. A block computes one item after the other: 192 or 128 rows of a head, as strips of 64
 * for each of three or two warpgroups. The strips of a head end with its last row, so that the item
 * that is not full is the shortest. Items with the most keys come first, among heads whose keys and
 * values fit the L2 cache together.
 *
 * Thread 0 loads: the queries of the next item into the buffer that is free, and tiles of 128 keys
 * and their values, from the diagonal to the first of the window, into stages of a ring. A strip
 * leaves out tiles after its diagonal and before its own window. As in FlashAttention-3 (Shah et
 * al., arXiv 2407.08608), a warpgroup starts the scores of the next tile before it multiplies
 * probabilities with values, so that the tensor cores work while it computes exponentials; and
 * warpgroups take turns to start multiplications, so that one computes exponentials while the
 * others multiply. Probabilities are the operand of their wgmma in registers. The result goes to
 * memory through the buffer of the queries, from which warps read it to quantize it.
 */
#include "kernels/attn/quantize.cuh"
#include "kernels/attn/sm90.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

#define KEYS ATTN_SM90_KEYS
#define TILE_COLUMNS (KEYS * ROW_NBYTES) /* bytes of 64 columns of a tile */
#define WORDS (KEYS / 4)		/* probabilities of a thread */

enum { BAR_GROUP = 1, BAR_TURN = 4 }; /* the first named barrier of the warpgroups */

/* --- layout of shared memory ----------------------------------------------- */

template <int D> struct layout {
	static const int GROUPS = ATTN_SM90_GROUPS(D), STAGES = ATTN_SM90_STAGES(D);
	static const int STRIP_NBYTES = STRIP * D * 2, TILE_NBYTES = KEYS * D * 2;
	typedef struct ring<STAGES> ring;
	uint32_t base;

	__device__ __forceinline__ explicit layout(uint32_t at) : base(at)
	{
	}
	/* queries of a strip, and then its result; 64 columns after each other */
	__device__ __forceinline__ uint32_t q(int buffer, int group) const
	{
		return base + (GROUPS * buffer + group) * STRIP_NBYTES;
	}
	__device__ __forceinline__ uint32_t k(uint32_t stage) const
	{
		return q(2, 0) + stage * TILE_NBYTES;
	}
	__device__ __forceinline__ uint32_t v(uint32_t stage) const
	{
		return k(STAGES) + stage * TILE_NBYTES;
	}
	/* complete when the copies are */
	__device__ __forceinline__ uint32_t q_full(int buffer, int group) const
	{
		return v(STAGES) + 8 * (GROUPS * buffer + group);
	}
	__device__ __forceinline__ uint32_t k_full(uint32_t stage) const
	{
		return q_full(2, 0) + 8 * stage;
	}
	__device__ __forceinline__ uint32_t v_full(uint32_t stage) const
	{
		return k_full(STAGES) + 8 * stage;
	}
	/* complete when the warpgroup has stored its result, or all warps have read the tile */
	__device__ __forceinline__ uint32_t q_empty(int buffer, int group) const
	{
		return v_full(STAGES) + 8 * (GROUPS * buffer + group);
	}
	__device__ __forceinline__ uint32_t k_empty(uint32_t stage) const
	{
		return q_empty(2, 0) + 8 * stage;
	}
	__device__ __forceinline__ uint32_t v_empty(uint32_t stage) const
	{
		return k_empty(STAGES) + 8 * stage;
	}
	/* first keys of the rows of a strip */
	__device__ __forceinline__ uint32_t firsts(int group) const
	{
		return v_empty(STAGES) + 4 * STRIP * group;
	}
};

/* --- items ------------------------------------------------------------------ */

struct item {
	int matrix; /* batch nheads + head */
	int row;    /* the first, may be less than 0 */
	int ntiles;
};

DEV int batch_of(const struct te_attn_sm90 &a, const item &t)
{
	return t.matrix / a.nheads;
}

DEV int head_of(const struct te_attn_sm90 &a, const item &t)
{
	return t.matrix % a.nheads;
}

/* the first key of a query, with documents */
DEV int first_key(const struct te_attn_sm90 &a, int batch, int q)
{
	return (int)te_k_attn_first(q, a.window, a.first[(int64_t)batch * a.seqlen + q]);
}

/* the first tile of which one of n rows has a key: what tile_of() takes; for whole warps */
template <int MASK> DEV int start_of(const struct te_attn_sm90 &a, const item &t, int row, int n)
{
	if (MASK == ATTN_SM90_DOCUMENTS) {
		const int end = min(row + n, a.seqlen);
		int least = INT32_MAX;

#pragma unroll 1
		for (int q = max(row, 0) + LANE; q < end; q += 32)
			least = min(least, first_key(a, batch_of(a, t), q));
		row = __reduce_min_sync(~0u, least) / KEYS;
	}
	return row;
}

template <int MASK> DEV int tile_of(const struct te_attn_sm90 &a, int start)
{
	if (MASK == ATTN_SM90_ALL)
		return 0;
	if (MASK == ATTN_SM90_DOCUMENTS)
		return start;
	asm volatile("" : "+r"(start)); /* computed where it is used, to need no register */
	return max(start + 1 - a.window, 0) / KEYS;
}

/* the i-th item of this block */
template <int D> DEV bool item_of(const struct te_attn_sm90 &a, int i, item &ret)
{
	int level, end;

	if (!deal(i, a.nmatrices, a.nblocks, a.at_once, &ret.matrix, &level))
		return false;
	end = a.nrows - level * ATTN_SM90_ROWS(D);
	ret.row = end - ATTN_SM90_ROWS(D);
	ret.ntiles = (end + KEYS - 1) / KEYS;
	return true;
}

/* --- loads ------------------------------------------------------------------ */

template <int D>
DEV void load_tile(const struct te_attn_sm90 &a, uint32_t to, int col, int row, int batch,
		   uint32_t full)
{
	barrier_expect(full, layout<D>::TILE_NBYTES);
	for (int c = 0; c < D / BOX; c++)
		for (int r = 0; r < KEYS / BOX; r++)
			tma_load(to + (c * KEYS / BOX + r) * BOX_NBYTES, &a.qkv, col + c * BOX,
				 row + r * BOX, batch, full);
}

template <int D>
DEV void load_queries(const struct te_attn_sm90 &a, const layout<D> &at, const item &t, int i)
{
	for (int g = 0; g < layout<D>::GROUPS; g++) {
		const uint32_t full = at.q_full(i & 1, g);

		barrier_wait(at.q_empty(i & 1, g), (i >> 1 & 1) ^ 1);
		barrier_expect(full, layout<D>::STRIP_NBYTES);
		for (int c = 0; c < D / BOX; c++)
			tma_load(at.q(i & 1, g) + c * BOX_NBYTES, &a.qkv,
				 head_of(a, t) * D + c * BOX, t.row + g * STRIP, batch_of(a, t),
				 full);
	}
}

/* one thread, but with documents a warp, whose other lanes help to find the first tile */
template <int D, int MASK> DEV void load(const struct te_attn_sm90 &a, const layout<D> &at)
{
	typename layout<D>::ring rk, rv;
	item t;

	for (int i = 0; item_of<D>(a, i, t); i++) {
		const int first = tile_of<MASK>(a, start_of<MASK>(a, t, t.row, ATTN_SM90_ROWS(D)));
		const int k = (a.nheads + head_of(a, t) / (a.nheads / a.nkv)) * D;
		const int v = k + a.nkv * D, batch = batch_of(a, t);

		if (MASK == ATTN_SM90_DOCUMENTS && LANE)
			continue;
		load_queries<D>(a, at, t, i);
		/* in the order in which they are needed */
#pragma unroll 1
		for (int n = t.ntiles; n >= first; n--) {
			if (n > first) {
				barrier_wait(at.k_empty(rk.stage), rk.parity ^ 1);
				load_tile<D>(a, at.k(rk.stage), k, (n - 1) * KEYS, batch,
					     at.k_full(rk.stage));
				rk.next();
			}
			if (n < t.ntiles) {
				barrier_wait(at.v_empty(rv.stage), rv.parity ^ 1);
				load_tile<D>(a, at.v(rv.stage), v, n * KEYS, batch,
					     at.v_full(rv.stage));
				rv.next();
			}
		}
	}
}

/* --- turns ------------------------------------------------------------------ */

DEV void turn_wait(int group)
{
	threads_sync<256>(BAR_TURN + group);
}

template <int GROUPS> DEV void turn_pass(int group)
{
	threads_arrive<256>(BAR_TURN + (group + 1 < GROUPS ? group + 1 : 0));
}

/* a tile that is not for this strip; turn: it has one */
template <int D>
DEV void pass(const layout<D> &at, typename layout<D>::ring &rk, typename layout<D>::ring &rv,
	      int group, bool turn)
{
	barrier_wait(at.k_full(rk.stage), rk.parity);
	release(at.k_empty(rk.stage));
	rk.next();
	if (turn) {
		turn_wait(group);
		turn_pass<layout<D>::GROUPS>(group);
	}
	barrier_wait(at.v_full(rv.stage), rv.parity);
	release(at.v_empty(rv.stage));
	rv.next();
}

/* --- a strip ---------------------------------------------------------------- */

/* rows 16 warp + lane / 4 and the eighth after it */
struct rows {
	float max[2], sum[2]; /* sum: of this thread's columns */
};

/* starts s = q k^T */
template <int D> DEV void start_scores(uint32_t q_at, uint32_t k_at, float (&s)[KEYS / 2])
{
	const uint64_t q = wgmma_tile(q_at, 0), k = wgmma_tile(k_at, 0);

#pragma unroll
	for (int i = 0; i < D / 16; i++)
		mma_bf16(s, wgmma_after(q, i / 4 * BOX_NBYTES + i % 4 * 32),
			 wgmma_after(k, i / 4 * TILE_COLUMNS + i % 4 * 32), i > 0);
	wgmma_commit();
}

/* starts o = p v, or o += p v */
template <int D>
DEV void start_values(const uint32_t (&p)[WORDS], uint32_t v_at, int add, float (&o)[D / 2])
{
	const uint64_t v = wgmma_tile(v_at, TILE_COLUMNS);

#pragma unroll
	for (int i = 0; i < KEYS / 16; i++)
		mma_bf16_bt(o, p + 4 * i, wgmma_after(v, i * 16 * ROW_NBYTES), i ? 1 : add);
	wgmma_commit();
}

/* scores of keys after the query; row: the strip's first, from the first key on */
DEV void mask(int row, float (&s)[KEYS / 2])
{
	const int lane = threadIdx.x % 32, last = row + threadIdx.x % 128 / 32 * 16 + lane / 4 -
						  2 * (lane % 4);

#pragma unroll
	for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (8 * j + c % 2 > last + c / 2 * 8)
				s[4 * j + c] = -INFINITY;
}

/* scores of keys before the first key of the thread's I-th row, a number of keys from the tile's */
template <int I> DEV void mask_before(int first, float (&s)[KEYS / 2])
{
	first -= 2 * (threadIdx.x % 4);
#pragma unroll
	for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
		for (int c = 0; c < 2; c++)
			if (8 * j + c < first)
				s[4 * j + 2 * I + c] = -INFINITY;
}

/* keeps the first keys of a warp's rows of a strip, and returns the largest; with documents */
DEV int keep_firsts(const struct te_attn_sm90 &a, const item &t, int row, uint32_t firsts)
{
	const int r = threadIdx.x % 128 / 32 * 16 + LANE % 16;
	const int key = row + r < a.seqlen ? first_key(a, batch_of(a, t), row + r) : 0;

	smem_store(firsts + 4 * r, (uint32_t)key);
	__syncwarp();
	return __reduce_max_sync(~0u, key);
}

/* scores of keys before the first key of their row; from: of the tile, last: of keep_firsts() */
template <int D, int MASK>
DEV void mask_tile(const struct te_attn_sm90 &a, const layout<D> &at, int group, int row, int from,
		   int last, float (&s)[KEYS / 2])
{
	int thread = threadIdx.x % 128;

	asm volatile("" : "+r"(thread), "+r"(group)); /* as in tile_of() */
	const int r = thread / 32 * 16 + thread % 32 / 4;
	const uint32_t firsts = at.firsts(group) + 4 * r;

	if (MASK == ATTN_SM90_WINDOW && row - from + STRIP > a.window) {
		const int first = row - from + r + 1 - a.window;

		mask_before<0>(first, s);
		mask_before<1>(first + 8, s);
	}
	if (MASK == ATTN_SM90_DOCUMENTS && from < last) {
		mask_before<0>((int)smem_load(firsts) - from, s);
		mask_before<1>((int)smem_load(firsts + 4 * 8) - from, s);
	}
}

/* scores become probabilities, not divided by their sum; shrink: of former ones */
DEV void soften(float scale2, rows &r, float (&s)[KEYS / 2], float (&shrink)[2])
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float top[2] = { r.max[i], s[2 * i] }, sum[2] = { 0.0f, 0.0f }, base;

#pragma unroll
		for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++)
				top[c] = fmaxf(top[c], s[4 * j + 2 * i + c]);
		top[0] = fmaxf(top[0], top[1]);
		top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], 1));
		top[0] = fmaxf(top[0], __shfl_xor_sync(~0u, top[0], 2));
		shrink[i] = exp2_approx((r.max[i] - top[0]) * scale2);
		r.max[i] = top[0];
		base = top[0] * scale2;
#pragma unroll
		for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float &x = s[4 * j + 2 * i + c];

				x = exp2_approx(fmaf(x, scale2, -base));
				sum[c] += x;
			}
		r.sum[i] = fmaf(r.sum[i], shrink[i], sum[0] + sum[1]);
	}
}

/* a warp: 32 rows and half of the columns, so that column-wise codes are whole sectors */
template <int D>
DEV void quantize_strip(const struct te_attn_sm90 &a, uint32_t from, const item &t, int row)
{
	const int warp = threadIdx.x % 128 / 32, r = warp / 2 * 32, c = warp % 2 * (D / 2);

	quantize_rows<32, D / 2>(a.q, (int64_t)(a.nmatrices / a.nheads) * a.seqlen, a.nheads * D,
				 (int64_t)batch_of(a, t) * a.seqlen + row + r,
				 head_of(a, t) * D + c, a.seqlen - row - r, D / 2,
				 strip_part{ from, r, c });
}

/* divides by the sums, stores the result and lse */
template <int D>
DEV void store(const struct te_attn_sm90 &a, uint32_t to, const item &t, int row, int group,
	       const rows &r, const float (&o)[D / 2])
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
	float f[2];

#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int at = row + warp * 16 + lane / 4 + 8 * i;
		float sum = r.sum[i];

		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		if (at < a.seqlen && lane % 4 == 0)
			a.lse[(int64_t)t.matrix * a.seqlen + at] = r.max[i] * a.scale + logf(sum);
		f[i] = 1.0f / sum;
	}
	group_sync(BAR_GROUP + group); /* all warps have read the queries */
	write_strip<D>(to, f, o);
	smem_publish();
	group_sync(BAR_GROUP + group);
	if (threadIdx.x % 128 == 0 && a.has_out)
		store_strip<D>(&a.out, head_of(a, t) * D, row, batch_of(a, t), to);
	if (quantizes(a.q)) {
		quantize_strip<D>(a, to, t, row);
		group_sync(BAR_GROUP + group); /* before its first thread frees the buffer */
	}
}

/* --- the main loop ------------------------------------------------------------ */

template <int D, int MASK>
DEV void attend(const struct te_attn_sm90 &a, const layout<D> &at, int group)
{
	const float scale2 = a.scale * LOG2E;
	const bool issues = threadIdx.x % 128 == 0;
	/* to zeros at first, so that ntiles needs no register */
	const bool adds = MASK == ATTN_SM90_DOCUMENTS;
	typename layout<D>::ring rk, rv;
	item t;

	if (group == layout<D>::GROUPS - 1)
		turn_pass<layout<D>::GROUPS>(group);
	for (int i = 0; item_of<D>(a, i, t); i++) {
		const int row = t.row + group * STRIP, ntiles = (row + STRIP + KEYS - 1) / KEYS;
		const uint32_t q = at.q(i & 1, group);
		float o[D / 2], s[KEYS / 2], shrink[2];
		uint32_t p[WORDS];
		rows r = { { -INFINITY, -INFINITY }, { 0.0f, 0.0f } };
		const int item_start = start_of<MASK>(a, t, t.row, ATTN_SM90_ROWS(D));
		const int start = start_of<MASK>(a, t, row, STRIP);
		const int last = MASK == ATTN_SM90_DOCUMENTS && ntiles > 0 ?
					 keep_firsts(a, t, row, at.firsts(group)) : 0;

#pragma unroll
		for (int j = 0; j < D / 2; j++)
			if (adds)
				o[j] = 0.0f;
#pragma unroll 1
		for (int n = t.ntiles; n > max(ntiles, 0); n--)
			pass<D>(at, rk, rv, group, n > tile_of<MASK>(a, item_start) + 1);
		barrier_wait(at.q_full(i & 1, group), i >> 1 & 1);
		if (ntiles > 0) {
			barrier_wait(at.k_full(rk.stage), rk.parity);
			wgmma_begin();
			start_scores<D>(q, at.k(rk.stage), s);
			wgmma_wait<0>(s);
			release(at.k_empty(rk.stage));
			rk.next();
			mask(row % KEYS, s);
			mask_tile<D, MASK>(a, at, group, row, (ntiles - 1) * KEYS, last, s);
			soften(scale2, r, s, shrink);
			round_all(s, p);
		}
		/* by now the store of the item before has read shared memory */
		if (i && issues) {
			tma_store_wait<0>();
			barrier_arrive(at.q_empty(i - 1 & 1, group));
		}
		if (ntiles <= 0)
			continue;
#pragma unroll 1
		for (int n = ntiles - 1; n > tile_of<MASK>(a, start); n--) {
			barrier_wait(at.k_full(rk.stage), rk.parity);
			turn_wait(group);
			wgmma_begin();
			start_scores<D>(q, at.k(rk.stage), s);
			barrier_wait(at.v_full(rv.stage), rv.parity);
			wgmma_begin();
			start_values<D>(p, at.v(rv.stage), adds || n < ntiles - 1, o);
			turn_pass<layout<D>::GROUPS>(group);
			wgmma_wait<1>(s);
			release(at.k_empty(rk.stage));
			rk.next();
			mask_tile<D, MASK>(a, at, group, row, (n - 1) * KEYS, last, s);
			soften(scale2, r, s, shrink);
			wgmma_wait<0>(o);
			release(at.v_empty(rv.stage));
			rv.next();
#pragma unroll
			for (int j = 0; j < D / 2; j++)
				o[j] *= shrink[j / 2 % 2];
			round_all(s, p);
		}
		barrier_wait(at.v_full(rv.stage), rv.parity);
		wgmma_begin();
		start_values<D>(p, at.v(rv.stage), adds || ntiles > tile_of<MASK>(a, start) + 1,
				o);
		wgmma_wait<0>(o);
		release(at.v_empty(rv.stage));
		rv.next();
#pragma unroll 1
		for (int n = tile_of<MASK>(a, start); n > tile_of<MASK>(a, item_start); n--)
			pass<D>(at, rk, rv, group, true); /* tiles of the strips before */
		store<D>(a, q, t, row, group, r, o);
	}
	tma_store_wait<0>();
	if (group == 0)
		turn_wait(group);
}

/* --- kernels -------------------------------------------------------------------- */

template <int D, int MASK, int LOAD_REGISTERS, int REGISTERS>
DEV void attn(const struct te_attn_sm90 &a)
{
	const int group = threadIdx.x / 128;
	const layout<D> at(smem_begin());

	if (noop_set(a.q.noop))
		return;
	out_scale_inv(a.q);
	if (threadIdx.x == 0) {
		for (int b = 0; b < 2; b++)
			for (int g = 0; g < layout<D>::GROUPS; g++) {
				barrier_init(at.q_full(b, g), 1);
				barrier_init(at.q_empty(b, g), 1);
			}
		for (int i = 0; i < layout<D>::STAGES; i++) {
			barrier_init(at.k_full(i), 1);
			barrier_init(at.v_full(i), 1);
			barrier_init(at.k_empty(i), 4 * layout<D>::GROUPS);
			barrier_init(at.v_empty(i), 4 * layout<D>::GROUPS);
		}
		barrier_init_publish();
	}
	__syncthreads();
	if (group == 0) {
		registers_lower<LOAD_REGISTERS>();
		if (threadIdx.x < (MASK == ATTN_SM90_DOCUMENTS ? 32 : 1))
			load<D, MASK>(a, at);
	} else {
		registers_raise<REGISTERS>();
		attend<D, MASK>(a, at, group - 1);
	}
}

#define ATTN(NAME, D, ...)                                                             \
	extern "C" __global__ void __launch_bounds__(ATTN_SM90_THREADS(D), 1)          \
		te_k_attn_fwd_sm90_##NAME(const __grid_constant__ struct te_attn_sm90 a) \
	{                                                                              \
		te_begin();                                                            \
		attn<D, __VA_ARGS__>(a);                                               \
	}
ATTN(d64, 64, ATTN_SM90_ALL, 32, 160)
ATTN(d64_window, 64, ATTN_SM90_WINDOW, 32, 160)
ATTN(d64_documents, 64, ATTN_SM90_DOCUMENTS, 32, 160)
ATTN(d128, 128, ATTN_SM90_ALL, 40, 232)
ATTN(d128_window, 128, ATTN_SM90_WINDOW, 40, 232)
ATTN(d128_documents, 128, ATTN_SM90_DOCUMENTS, 40, 232)
#undef ATTN

#endif
