/*
 * sm90_bwd.cu - causal attention in BF16, backward, of all keys, a window or documents: persistent
 * blocks. sm_90a, head_dim 64 and 128. The default (TE_ATTENTION); t/kernels/attn_bwd_sm90.cc
 * emulates it on the host.
 *
 * An item is 128 keys of a head, which stay in shared memory, and iterates over tiles of 64 queries
 * of all heads of the group, head by head, from the last to the first. As in FlashAttention-3 (Shah
 * et al., arXiv 2407.08608), scores are k q^T, so that probabilities and ds are operands of dv and
 * dk in registers, and ds goes through shared memory for dq:
 *
 *             operands of 64 keys                       sums
 *   dk, dv    s = k q^T, dp = v dout^T                  dv += p dout, dk += ds q
 *   dq        ds^T of 128 keys, k                       64 queries x 64 columns: a piece
 *
 * The first warpgroup loads (a thread: keys, queries, dout; a warp: lse and delta) and writes dq
 * (two warps). Two warpgroups sum dk and dv. With head_dim 64, one more computes dq; with 128, for
 * which registers are too few, each of the two computes a piece of the tile before.
 *
 * dq is summed in FP32 in memory, over items from the first keys to the last: a piece is added when
 * a counter says that all items before have added theirs. The item on the diagonal is the last: it
 * adds what is in memory to what it has in registers, and the result is written. So bits do not
 * depend on the order in which blocks run, and there are no atomics on values.
 *
 * Blocks take items by a counter, level by level. An item waits only for items of lower levels,
 * which were taken before: there is always one that does not wait.
 *
 * 512 or 384 threads, up to 227 KiB shared memory.
 */
#include "kernels/attn/sm90.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

#define ROWS ATTN_SM90_BWD_ROWS
#define GROUPS 2
#define COLS BOX
#define PIECES ATTN_SM90_BWD_PIECES
#define WRITERS ATTN_SM90_BWD_WRITERS
#define PIECE_NBYTES (COLS * BOX * 4)

enum { BAR_GROUP = 1, BAR_DQ = BAR_GROUP + GROUPS }; /* named barriers */
enum { STATS_WARP = 1, WRITER_WARP = 2 };

template <int D> struct layout {
	static const int BUFFERS = ATTN_SM90_BWD_BUFFERS(D), STAGES = ATTN_SM90_BWD_STAGES(D);
	static const int DS = ATTN_SM90_BWD_DS(D), NBYTES = STRIP * D * 2, HALVES = D / BOX;
	static const bool APART = ATTN_SM90_BWD_APART(D); /* a warpgroup for dq */
	uint32_t base;

	__device__ __forceinline__ explicit layout(uint32_t at) : base(at)
	{
	}
	/* keys or values of a strip, and then dk or dv */
	__device__ __forceinline__ uint32_t a(int buffer, int group, int operand) const
	{
		return base + ((GROUPS * buffer + group) * 2 + operand) * NBYTES;
	}
	/* queries or dout of a tile */
	__device__ __forceinline__ uint32_t b(uint32_t stage, int operand) const
	{
		return a(BUFFERS, 0, 0) + (2 * stage + operand) * NBYTES;
	}
	/* keys of a strip x queries */
	__device__ __forceinline__ uint32_t ds(uint32_t stage, int group) const
	{
		return b(STAGES, 0) + (GROUPS * stage + group) * BOX_NBYTES;
	}
	/* 64 columns of dq: in FP32, a thread's 32 accumulators by four, or a box in BF16 */
	__device__ __forceinline__ uint32_t piece(uint32_t stage) const
	{
		return ds(DS, 0) + stage * PIECE_NBYTES;
	}
	/* the memory of a piece that a writer takes; with two pieces a tile it takes both */
	__device__ __forceinline__ uint32_t slot(uint32_t writer, uint32_t half) const
	{
		return HALVES == 1 ? writer : half;
	}
	/* lse, times log2(e), and delta of the queries */
	__device__ __forceinline__ uint32_t stats(uint32_t stage, int which) const
	{
		return piece(PIECES) + (2 * stage + which) * COLS * 4;
	}
	/* the first keys of the queries; see load_firsts() */
	__device__ __forceinline__ uint32_t firsts(uint32_t stage) const
	{
		return stats(STAGES, 0) + ATTN_SM90_BWD_FIRSTS * stage;
	}
	__device__ __forceinline__ uint32_t item(int buffer) const
	{
		return firsts(STAGES) + 16 * buffer;
	}
	/* barriers: full when written, empty when all that read it have */
	__device__ __forceinline__ uint32_t item_full(int buffer) const
	{
		return item(2) + 8 * buffer;
	}
	__device__ __forceinline__ uint32_t item_empty(int buffer) const
	{
		return item_full(2) + 8 * buffer;
	}
	__device__ __forceinline__ uint32_t a_full(int buffer, int group) const
	{
		return item_empty(2) + 8 * (GROUPS * buffer + group);
	}
	__device__ __forceinline__ uint32_t a_empty(int buffer, int group) const
	{
		return a_full(BUFFERS, 0) + 8 * (GROUPS * buffer + group);
	}
	/* complete when warpgroup 1 has read the keys of an item */
	__device__ __forceinline__ uint32_t keys_read(void) const
	{
		return a_empty(BUFFERS, 0);
	}
	__device__ __forceinline__ uint32_t b_full(uint32_t stage) const
	{
		return keys_read() + 8 + 8 * stage;
	}
	__device__ __forceinline__ uint32_t b_empty(uint32_t stage) const
	{
		return b_full(STAGES) + 8 * stage;
	}
	__device__ __forceinline__ uint32_t ds_full(uint32_t stage) const
	{
		return b_empty(STAGES) + 8 * stage;
	}
	__device__ __forceinline__ uint32_t ds_empty(uint32_t stage) const
	{
		return ds_full(DS) + 8 * stage;
	}
	__device__ __forceinline__ uint32_t piece_full(uint32_t writer, uint32_t half) const
	{
		return ds_empty(DS) + 8 * (HALVES * writer + half);
	}
	__device__ __forceinline__ uint32_t piece_empty(uint32_t slot) const
	{
		return piece_full(WRITERS, 0) + 8 * slot;
	}
};

/* --- items ------------------------------------------------------------------ */

struct item {
	int batch, head; /* head: among the heads of keys */
	int row;	 /* the first key */
	int ntiles;	 /* tiles of a head from row on; 0: there are no more items */
};

/* tiles of queries, from a block of keys on, with a query that attends to one of these keys */
template <int MASK> DEV int ntiles_of(const struct te_attn_bwd_sm90 &a, int batch, int row)
{
	const int from = row / COLS;
	int end = a.seqlen;

	if (MASK == ATTN_SM90_DOCUMENTS)
		return (int)te_k_attn_above(a.starts + batch * a.ntiles, from, a.ntiles,
					    row + ROWS - 1) - from;
	if (MASK == ATTN_SM90_WINDOW)
		end = min(end, row + ROWS - 1 + a.window);
	return (end - row + COLS - 1) / COLS;
}

template <int MASK> DEV item item_of(const struct te_attn_bwd_sm90 &a, int k)
{
	const int per = a.at_once * a.nblocks, first = k / per * a.at_once;
	const int count = min(a.at_once, a.nmatrices - first), matrix = first + k % per % count;
	const int row = k % per / count * ROWS;

	return { matrix / a.nkv, matrix % a.nkv, row, ntiles_of<MASK>(a, matrix / a.nkv, row) };
}

/* takes the i-th item of this block; one thread */
template <int D, int MASK>
DEV item take(const struct te_attn_bwd_sm90 &a, const layout<D> &at, int i)
{
	item t = { 0, 0, 0, 0 };
	int k;

	barrier_wait(at.item_empty(i & 1), (i >> 1 & 1) ^ 1);
	k = (int)atomicAdd(a.next, 1u);
	if (k < a.nmatrices * a.nblocks)
		t = item_of<MASK>(a, k);
	smem_store4(at.item(i & 1), t.batch, t.head, t.row, t.ntiles);
	barrier_arrive(at.item_full(i & 1));
	return t;
}

/* one warp, of the others */
template <int D> DEV bool next_item(const layout<D> &at, int i, item &t)
{
	barrier_wait(at.item_full(i & 1), i >> 1 & 1);
	smem_load4(at.item(i & 1), t.batch, t.head, t.row, t.ntiles);
	release(at.item_empty(i & 1));
	return t.ntiles > 0;
}

/* head h of the item's, among all heads of queries */
DEV int matrix_of(const struct te_attn_bwd_sm90 &a, const item &t, int h)
{
	return t.batch * a.nheads + t.head * a.group + h;
}

/* the column of a head's queries in qkv, dqkv and dout */
template <int D> DEV int query_col(const struct te_attn_bwd_sm90 &a, const item &t, int h)
{
	return (t.head * a.group + h) * D;
}

/* the column of the item's keys in qkv and dqkv; values are nkv D after it */
template <int D> DEV int key_col(const struct te_attn_bwd_sm90 &a, const item &t)
{
	return (a.nheads + t.head) * D;
}

/* blocks of keys before the item's that add to dq of a tile */
template <int MASK> DEV int turn_of(const struct te_attn_bwd_sm90 &a, const item &t, int col)
{
	int first = 0;

	if (MASK == ATTN_SM90_WINDOW)
		first = max(col + 1 - a.window, 0);
	if (MASK == ATTN_SM90_DOCUMENTS)
		first = a.starts[t.batch * a.ntiles + col / COLS];
	return t.row / ROWS - first / ROWS;
}

/* is the item's block of keys the last that adds to a tile? */
DEV bool is_last(int n)
{
	return n < ROWS / COLS;
}

/* number of 64 columns of a tile of dq */
template <int D>
DEV int piece_of(const struct te_attn_bwd_sm90 &a, const item &t, int h, int col, int half)
{
	return (matrix_of(a, t, h) * a.ntiles + col / COLS) * layout<D>::HALVES + half;
}

DEV float *sums_of(const struct te_attn_bwd_sm90 &a, int piece)
{
	return a.sums + (int64_t)piece * (COLS * BOX);
}

/* --- loads, and stores of dq ---------------------------------------------------- */

template <int D>
DEV void load_strip(uint32_t to, const struct te_tensor_map *from, int col, int row, int batch,
		    uint32_t full)
{
	for (int c = 0; c < D / BOX; c++)
		tma_load(to + c * BOX_NBYTES, from, col + c * BOX, row, batch, full);
}

template <int D>
DEV void load_keys(const struct te_attn_bwd_sm90 &a, const layout<D> &at, const item &t, int i)
{
	const int buffer = i % layout<D>::BUFFERS, round = i / layout<D>::BUFFERS;
	const int batch = t.batch, col = key_col<D>(a, t);

#pragma unroll 1
	for (int g = 0; g < GROUPS; g++) {
		const uint32_t full = at.a_full(buffer, g);

		barrier_wait(at.a_empty(buffer, g), (round & 1) ^ 1);
		barrier_expect(full, 2 * layout<D>::NBYTES);
		load_strip<D>(at.a(buffer, g, 0), &a.qkv, col, t.row + g * STRIP, batch, full);
		load_strip<D>(at.a(buffer, g, 1), &a.qkv, col + a.nkv * D, t.row + g * STRIP,
			      batch, full);
	}
}

/*
 * One thread. With one buffer of keys, the first queries of an item are loaded before its keys,
 * which wait for dk and dv of the item before.
 */
template <int D, int MASK>
DEV void load(const struct te_attn_bwd_sm90 &a, const layout<D> &at)
{
	ring<layout<D>::STAGES> r;

	for (int i = 0;; i++) {
		int left = layout<D>::BUFFERS == 1 ? layout<D>::STAGES : 0;
		const item t = take<D, MASK>(a, at, i);

		if (!t.ntiles)
			return;
		for (int h = 0; h < a.group; h++)
#pragma unroll 1
			for (int n = t.ntiles - 1; n >= 0; n--, r.next()) {
				const int col = t.row + n * COLS, head = query_col<D>(a, t, h);
				const uint32_t full = at.b_full(r.stage);

				if (left-- == 0)
					load_keys<D>(a, at, t, i);
				barrier_wait(at.b_empty(r.stage), r.parity ^ 1);
				barrier_expect(full, 2 * layout<D>::NBYTES);
				load_strip<D>(at.b(r.stage, 0), &a.qkv, head, col, t.batch,
					      full);
				load_strip<D>(at.b(r.stage, 1), &a.dout, head, col, t.batch,
					      full);
			}
		if (left >= 0)
			load_keys<D>(a, at, t, i);
	}
}

/* lse and delta of a tile; a query after the last has probabilities of 0 */
DEV void load_stats(const struct te_attn_bwd_sm90 &a, uint32_t to, int64_t from, int left)
{
#pragma unroll 1
	for (int c = LANE; c < COLS; c += 32) {
		const float lse = c < left ? a.lse[from + c] * LOG2E : INFINITY;

		smem_store(to + 4 * c, __float_as_uint(lse));
		smem_store(to + 4 * (COLS + c),
			   __float_as_uint(c < left ? a.delta[from + c] : 0.0f));
	}
}

/*
 * Writes the first keys of the queries of a tile, less the item's first key, from 0 to ROWS: a byte
 * each, the 16 bytes of a lane's queries together, and then the largest.
 */
DEV void load_firsts(const struct te_attn_bwd_sm90 &a, uint32_t to, const item &t, int col)
{
	const int32_t *first = a.first + (int64_t)t.batch * a.seqlen;
	const int from = col + LANE % 4 * 16 + LANE / 4 % 4 * 2;
	int bytes = 0, most = 0;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int q = from + i / 2 * 8 + i % 2;
		int key = q < a.seqlen ? (int)te_k_attn_first(q, a.window, first[q]) : 0;

		key = min(max(key - t.row, 0), ROWS);
		bytes |= key << 8 * i;
		most = max(most, key);
	}
	most = __reduce_max_sync(~0u, most);
	smem_store(to + 4 * (LANE % 16), (uint32_t)bytes);
	smem_store(to + COLS, (uint32_t)most);
}

/* one warp */
template <int D, int MASK>
DEV void load_all_stats(const struct te_attn_bwd_sm90 &a, const layout<D> &at)
{
	ring<layout<D>::STAGES> r;
	item t;

	for (int i = 0; next_item<D>(at, i, t); i++)
		for (int h = 0; h < a.group; h++)
#pragma unroll 1
			for (int n = t.ntiles - 1; n >= 0; n--, r.next()) {
				const int col = t.row + n * COLS;

				barrier_wait(at.b_empty(r.stage), r.parity ^ 1);
				load_stats(a, at.stats(r.stage, 0),
					   (int64_t)matrix_of(a, t, h) * a.seqlen + col,
					   a.seqlen - col);
				if (MASK == ATTN_SM90_DOCUMENTS)
					load_firsts(a, at.firsts(r.stage), t, col);
				barrier_arrive(at.b_full(r.stage));
			}
}

/*
 * Adds a tile of dq when those before have added theirs, and tells of it when the sums are in
 * memory; one thread.
 */
template <int D, int MASK>
DEV void write_tile(const struct te_attn_bwd_sm90 &a, const layout<D> &at, const item &t, int h,
		    int n, uint32_t writer, uint32_t parity)
{
	const int col = t.row + n * COLS, piece = piece_of<D>(a, t, h, col, 0);
	const int turn = is_last(n) ? 0 : turn_of<MASK>(a, t, col);
	float *to = sums_of(a, piece);

	if (turn)
		count_wait(a.ready + piece, (uint32_t)turn);
#pragma unroll
	for (int half = 0; half < layout<D>::HALVES; half++, to += COLS * BOX) {
		const uint32_t from = at.piece(at.slot(writer, half));

		barrier_wait(at.piece_full(writer, half), parity);
		if (is_last(n))
			tma_store(&a.dqkv, query_col<D>(a, t, h) + half * BOX, col, t.batch, from);
		else if (turn)
			bulk_add(to, from, PIECE_NBYTES);
		else
			bulk_store(to, from, PIECE_NBYTES);
	}
	tma_store_wait<0>();
#pragma unroll
	for (int half = 0; half < layout<D>::HALVES; half++)
		barrier_arrive(at.piece_empty(at.slot(writer, half)));
	if (is_last(n))
		return;
	bulk_wait<0>();
	count_set(a.ready + piece, (uint32_t)turn + 1);
}

/*
 * A warp, of every second tile: to wait for others' sums, to add, and to tell of it takes longer
 * than a tile.
 */
template <int D, int MASK>
DEV void write_queries(const struct te_attn_bwd_sm90 &a, const layout<D> &at, uint32_t writer)
{
	uint32_t count = 0;
	item t;

	for (int i = 0; next_item<D>(at, i, t); i++)
		for (int h = 0; h < a.group; h++)
#pragma unroll 1
			for (int n = t.ntiles - 1; n >= 0; n--, count++)
				if (count % WRITERS == writer && LANE == 0)
					write_tile<D, MASK>(a, at, t, h, n, writer,
							    count / WRITERS & 1);
	bulk_wait<0>();
}

/* --- dq ------------------------------------------------------------------------ */

/* computes 64 columns of dq of a tile */
template <int D>
DEV void sum_piece(const layout<D> &at, const ring<layout<D>::DS> &r, int buffer, int half,
		   float (&o)[COLS / 2])
{
	uint32_t ds = at.ds(r.stage, 0), keys = at.a(buffer, 0, 0) + half * BOX_NBYTES;

	asm volatile("" : "+r"(ds), "+r"(keys)); /* computed where it is used, as in sm90.cu */
	const uint64_t x = wgmma_tile(ds, BOX_NBYTES), y = wgmma_tile(keys, BOX_NBYTES);
	barrier_wait(at.ds_full(r.stage), r.parity);
	wgmma_begin();
#pragma unroll
	for (int k = 0; k < ROWS / 16; k++) {
		const int skip = k % 4 * 16 * ROW_NBYTES;

		mma_bf16_tt(o, wgmma_after(x, k / 4 * BOX_NBYTES + skip),
			    wgmma_after(y, k / 4 * 2 * layout<D>::NBYTES + skip), k > 0);
	}
	wgmma_commit();
	wgmma_wait<0>(o);
	release(at.ds_empty(r.stage));
}

/* hands a piece to its writer, to be added; parity: of the barrier of its memory */
template <int D>
DEV void hand_sums(const layout<D> &at, uint32_t writer, int half, uint32_t parity,
		   const float (&o)[COLS / 2])
{
	const uint32_t slot = at.slot(writer, half);

	barrier_wait(at.piece_empty(slot), parity);
#pragma unroll
	for (int i = 0; i < COLS / 8; i++)
		smem_store4(at.piece(slot) + (128 * i + threadIdx.x % 128) * 16,
			    (int)__float_as_uint(o[4 * i]), (int)__float_as_uint(o[4 * i + 1]),
			    (int)__float_as_uint(o[4 * i + 2]), (int)__float_as_uint(o[4 * i + 3]));
	smem_publish();
	release(at.piece_full(writer, half));
}

/* hands the last of its items' pieces to its writer, with what these have added */
template <int D, int MASK>
DEV void hand_result(const struct te_attn_bwd_sm90 &a, const layout<D> &at, const item &t, int h,
		     int n, uint32_t writer, int half, uint32_t parity, int bar,
		     float (&o)[COLS / 2])
{
	const int col = t.row + n * COLS, turn = turn_of<MASK>(a, t, col);
	const uint32_t slot = at.slot(writer, half);
	const float f[2] = { a.scale, a.scale };

	if (turn) {
		const int piece = piece_of<D>(a, t, h, col, 0);
		const float4 *sums = (const float4 *)sums_of(a, piece + half) + threadIdx.x % 128;

		if (threadIdx.x % 128 == 0)
			count_wait(a.ready + piece, (uint32_t)turn);
		group_sync(bar);
#pragma unroll
		for (int i = 0; i < COLS / 8; i++) {
			const float4 v = __ldcg(sums + 128 * i);

			o[4 * i] += v.x;
			o[4 * i + 1] += v.y;
			o[4 * i + 2] += v.z;
			o[4 * i + 3] += v.w;
		}
	}
	barrier_wait(at.piece_empty(slot), parity);
	write_strip<BOX>(at.piece(slot), f, o);
	smem_publish();
	release(at.piece_full(writer, half));
}

/* a warpgroup, with head_dim 64 */
template <int D, int MASK>
DEV void sum_queries(const struct te_attn_bwd_sm90 &a, const layout<D> &at)
{
	ring<layout<D>::DS> r;
	ring<PIECES> to;
	item t;

	for (int i = 0; next_item<D>(at, i, t); i++) {
		const int buffer = i % layout<D>::BUFFERS, round = i / layout<D>::BUFFERS;

		for (int g = 0; g < GROUPS; g++)
			barrier_wait(at.a_full(buffer, g), round & 1);
		for (int h = 0; h < a.group; h++)
#pragma unroll 1
			for (int n = t.ntiles - 1; n >= 0; n--, r.next(), to.next()) {
				float o[COLS / 2];

				sum_piece<D>(at, r, buffer, 0, o);
				if (is_last(n))
					hand_result<D, MASK>(a, at, t, h, n, to.stage, 0,
							     to.parity ^ 1, BAR_DQ, o);
				else
					hand_sums<D>(at, to.stage, 0, to.parity ^ 1, o);
			}
		release(at.keys_read());
	}
}

/* --- dk and dv ------------------------------------------------------------------ */

/* starts s = a b^T of a strip and a tile */
template <int D> DEV void start_scores(uint32_t a_at, uint32_t b_at, float (&s)[COLS / 2])
{
	asm volatile("" : "+r"(a_at));
	const uint64_t a = wgmma_tile(a_at, 0), b = wgmma_tile(b_at, 0);

#pragma unroll
	for (int i = 0; i < D / 16; i++)
		mma_bf16(s, wgmma_after(a, i / 4 * BOX_NBYTES + i % 4 * 32),
			 wgmma_after(b, i / 4 * BOX_NBYTES + i % 4 * 32), i > 0);
	wgmma_commit();
}

/* starts acc += p b */
template <int D>
DEV void start_sum(const uint32_t (&p)[COLS / 4], uint32_t b_at, int add, float (&acc)[D / 2])
{
	const uint64_t b = wgmma_tile(b_at, BOX_NBYTES);

#pragma unroll
	for (int i = 0; i < COLS / 16; i++)
		mma_bf16_bt(acc, p + 4 * i, wgmma_after(b, i * 16 * ROW_NBYTES), i ? 1 : add);
	wgmma_commit();
}

/* scores of keys after the query; later: as below */
DEV void mask(int later, float (&s)[COLS / 2])
{
	const int first = later + 2 * (LANE % 4) - threadIdx.x % 128 / 32 * 16 - LANE / 4;

#pragma unroll
	for (int j = 0; j < COLS / 8; j++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (first + 8 * j + c % 2 - c / 2 * 8 < 0)
				s[4 * j + c] = -INFINITY;
}

/* scores of keys before the window; later: the tile's first query less the strip's first key */
DEV void mask_before(int later, int window, float (&s)[COLS / 2])
{
	const int first = later + 2 * (LANE % 4) - threadIdx.x % 128 / 32 * 16 - LANE / 4;

#pragma unroll
	for (int j = 0; j < COLS / 8; j++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (first + 8 * j + c % 2 - c / 2 * 8 >= window)
				s[4 * j + c] = -INFINITY;
}

/* scores of keys before the first key of a query; see load_firsts() */
template <int D>
DEV void mask_documents(const layout<D> &at, int group, uint32_t stage, float (&s)[COLS / 2])
{
	int thread = threadIdx.x % 128;

	/* computed where they are used, as in sm90.cu */
	asm volatile("" : "+r"(thread), "+r"(stage), "+r"(group));
	const uint32_t firsts = at.firsts(stage);
	const int key = group * STRIP + thread / 32 * 16 + thread % 32 / 4;

	if ((int)smem_load(firsts + COLS) <= group * STRIP)
		return;
#pragma unroll
	for (int j = 0; j < COLS / 8; j++) {
		const int bytes = smem_load_half(firsts + thread % 4 * 16 + 2 * j);

#pragma unroll
		for (int c = 0; c < 4; c++)
			if (key + c / 2 * 8 < (c % 2 ? bytes >> 8 : bytes & 255))
				s[4 * j + c] = -INFINITY;
	}
}

/* scores of 8 queries from 8 j on become probabilities */
DEV void soften(int j, float scale2, uint32_t lse2, float (&s)[COLS / 2])
{
	const float2 l = smem_load2(lse2 + 4 * (8 * j + 2 * (LANE % 4)));

#pragma unroll
	for (int c = 0; c < 4; c++)
		s[4 * j + c] = exp2_approx(fmaf(s[4 * j + c], scale2, -(c % 2 ? l.y : l.x)));
}

/* and dp becomes ds = p (dp - delta) */
DEV void differentiate(int j, uint32_t delta, const float (&p)[COLS / 2], float (&dp)[COLS / 2])
{
	const float2 d = smem_load2(delta + 4 * (8 * j + 2 * (LANE % 4)));

#pragma unroll
	for (int c = 0; c < 4; c++)
		dp[4 * j + c] = p[4 * j + c] * (dp[4 * j + c] - (c % 2 ? d.y : d.x));
}

/* the words of 8 queries from 8 j on; see round_all() */
DEV void round_some(int j, const float (&s)[COLS / 2], uint32_t (&p)[COLS / 4])
{
#pragma unroll
	for (int i = 2 * j; i < 2 * j + 2; i++)
		p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

/* ds of a strip and a tile, for warpgroup 1 */
DEV void write_ds(uint32_t to, const uint32_t (&w)[COLS / 4])
{
	const int lane = LANE, row = threadIdx.x % 128 / 32 * 16 + lane % 16;

#pragma unroll
	for (int j = 0; j < COLS / 8; j += 2)
		smem_store_matrices(to + row * ROW_NBYTES + ((j + lane / 16) ^ row % 8) * 16,
				    w[2 * j], w[2 * j + 1], w[2 * j + 2], w[2 * j + 3]);
}

/* Starts the sums of a tile; sums of the tile before run until the scores are complete. */
template <int D, int MASK>
DEV void multiply(const struct te_attn_bwd_sm90 &a, const layout<D> &at, int group, uint32_t stage,
		  uint32_t before, int any, uint32_t k, uint32_t v, float scale2, int later,
		  float (&dk)[D / 2], float (&dv)[D / 2], uint32_t (&p)[COLS / 4],
		  uint32_t (&ds)[COLS / 4])
{
	const uint32_t lse2 = at.stats(stage, 0), delta = at.stats(stage, 1);
	float s[COLS / 2], dp[COLS / 2];

	wgmma_begin();
	start_scores<D>(k, at.b(stage, 0), s);
	start_scores<D>(v, at.b(stage, 1), dp);
	wgmma_wait<1>(s);
	if (any)
		release(at.b_empty(before));
	if (later == 0)
		mask(0, s);
	if (MASK == ATTN_SM90_WINDOW && later + COLS > a.window)
		mask_before(later, a.window, s);
	if (MASK == ATTN_SM90_DOCUMENTS)
		mask_documents<D>(at, group, stage, s);
#pragma unroll
	for (int j = 0; j < COLS / 8; j++)
		soften(j, scale2, lse2, s);
	round_all(s, p);
	wgmma_begin();
	start_sum<D>(p, at.b(stage, 1), any, dv);
	wgmma_wait<1>(dp);
#pragma unroll
	for (int j = 0; j < COLS / 8; j++)
		differentiate(j, delta, s, dp);
	round_all(dp, ds);
	wgmma_begin();
	start_sum<D>(ds, at.b(stage, 0), any, dk);
}

/* the operands of the sums of a tile, with few registers */
template <int D, int MASK>
DEV void score(const struct te_attn_bwd_sm90 &a, const layout<D> &at, int group, uint32_t stage,
	       uint32_t k, int later, uint32_t (&p)[COLS / 4], uint32_t (&ds)[COLS / 4])
{
	const uint32_t lse2 = at.stats(stage, 0), delta = at.stats(stage, 1);
	float s[COLS / 2], dp[COLS / 2];

	wgmma_begin();
	start_scores<D>(k, at.b(stage, 0), s);
	start_scores<D>(k + layout<D>::NBYTES, at.b(stage, 1), dp);
	wgmma_wait<0>(s);
	wgmma_wait<0>(dp);
	if (later <= 0)
		mask(later, s);
	if (MASK == ATTN_SM90_WINDOW && later + COLS > a.window)
		mask_before(later, a.window, s);
	if (MASK == ATTN_SM90_DOCUMENTS)
		mask_documents<D>(at, group, stage, s);
#pragma unroll
	for (int j = 0; j < COLS / 8; j++) {
		soften(j, a.scale * LOG2E, lse2, s);
		differentiate(j, delta, s, dp);
		round_some(j, s, p);
		round_some(j, dp, ds);
	}
}

/* dk and dv, to the memory of the values and of the keys */
template <int D>
DEV void store(const struct te_attn_bwd_sm90 &a, const layout<D> &at, const item &t, int i,
	       int group, const float (&dk)[D / 2], const float (&dv)[D / 2])
{
	const float f[2] = { a.scale, a.scale }, one[2] = { 1.0f, 1.0f };
	const int buffer = i % layout<D>::BUFFERS, row = t.row + group * STRIP;
	const uint32_t k = at.a(buffer, group, 0), v = at.a(buffer, group, 1);
	const int batch = t.batch, col = key_col<D>(a, t);
	const bool issues = threadIdx.x % 128 == 0;

	group_sync(BAR_GROUP + group); /* all warps have read the values */
	write_strip<D>(v, one, dv);
	smem_publish();
	group_sync(BAR_GROUP + group);
	if (issues)
		store_strip<D>(&a.dqkv, col + a.nkv * D, row, batch, v);
	barrier_wait(at.keys_read(), i & 1);
	write_strip<D>(k, f, dk);
	smem_publish();
	group_sync(BAR_GROUP + group);
	if (issues)
		store_strip<D>(&a.dqkv, col, row, batch, k);
}

/* a warpgroup, with head_dim 64 */
template <int D, int MASK>
DEV void sum_keys(const struct te_attn_bwd_sm90 &a, const layout<D> &at, int group)
{
	const float scale2 = a.scale * LOG2E;
	const bool issues = threadIdx.x % 128 == 0;
	ring<layout<D>::STAGES> r;
	ring<layout<D>::DS> to;
	item t;

	for (int i = 0; next_item<D>(at, i, t); i++) {
		const int buffer = i % layout<D>::BUFFERS, round = i / layout<D>::BUFFERS;
		const uint32_t k = at.a(buffer, group, 0), v = at.a(buffer, group, 1);
		uint32_t before = 0;
		int any = 0; /* tile before */
		bool stored = i > 0; /* dk and dv of the item before */
		uint32_t p[COLS / 4], ds[COLS / 4];
		float dk[D / 2], dv[D / 2];

		barrier_wait(at.a_full(buffer, group), round & 1);
		for (int h = 0; h < a.group; h++)
#pragma unroll 1
			for (int n = t.ntiles - 1; n >= 0; n--, r.next(), to.next()) {
				/* queries after keys */
				const int later = n * COLS - group * STRIP;

				barrier_wait(at.b_full(r.stage), r.parity);
				if (later < 0 || (MASK == ATTN_SM90_WINDOW &&
						  later - STRIP + 1 >= a.window)) {
					const uint32_t zero[COLS / 4] = { 0 };

					release(at.b_empty(r.stage));
					barrier_wait(at.ds_empty(to.stage), to.parity ^ 1);
					write_ds(at.ds(to.stage, group), zero);
				} else {
					multiply<D, MASK>(a, at, group, r.stage, before, any, k, v,
							  scale2, later, dk, dv, p, ds);
					before = r.stage;
					any = 1;
					barrier_wait(at.ds_empty(to.stage), to.parity ^ 1);
					write_ds(at.ds(to.stage, group), ds);
				}
				smem_publish();
				release(at.ds_full(to.stage));
				if (stored && issues) {
					tma_store_wait<0>();
					barrier_arrive(at.a_empty(buffer ^ 1, group));
				}
				stored = false;
			}
		wgmma_wait<0>(dk);
		wgmma_wait<0>(dv);
		if (any)
			release(at.b_empty(before));
		store<D>(a, at, t, i, group, dk, dv);
	}
	tma_store_wait<0>();
}

/* a warpgroup, with head_dim 128: dk, dv, and a piece of the tile before */
template <int D, int MASK>
DEV void sum_all(const struct te_attn_bwd_sm90 &a, const layout<D> &at, int group)
{
	const int half = layout<D>::HALVES - 1 - group;
	ring<layout<D>::STAGES> r;
	ring<layout<D>::DS> to;
	uint32_t writer = 0; /* the piece's; its memory's barrier has the other parity */
	item t;

	for (int i = 0; next_item<D>(at, i, t); i++) {
		float dk[D / 2], dv[D / 2];
		int any = 0; /* tile before */

		for (int g = 0; g < GROUPS; g++)
			barrier_wait(at.a_full(0, g), i & 1);
		for (int h = 0; h < a.group; h++)
#pragma unroll 1
			for (int n = t.ntiles - 1; n >= 0; n--, r.next(), to.next()) {
				/* the tile before */
				const int last_n = n + 1 < t.ntiles ? n + 1 : 0;
				uint32_t p[COLS / 4], ds[COLS / 4];
				float o[COLS / 2];

				barrier_wait(at.b_full(r.stage), r.parity);
				score<D, MASK>(a, at, group, r.stage, at.a(0, group, 0),
					       n * COLS - group * STRIP, p, ds);
				barrier_wait(at.ds_empty(to.stage), to.parity ^ 1);
				write_ds(at.ds(to.stage, group), ds);
				smem_publish();
				release(at.ds_full(to.stage));
				if (any) {
					sum_piece<D>(at, to.before(), 0, half, o);
				} else {
#pragma unroll
					for (int j = 0; j < COLS / 2; j++)
						o[j] = 0.0f;
				}
				wgmma_begin();
				start_sum<D>(p, at.b(r.stage, 1), any, dv);
				start_sum<D>(ds, at.b(r.stage, 0), any, dk);
				if (any && !is_last(last_n))
					hand_sums<D>(at, writer, half, writer ^ 1, o);
				wgmma_wait<0>(dv);
				wgmma_wait<0>(dk);
				release(at.b_empty(r.stage));
				if (any && is_last(last_n))
					hand_result<D, MASK>(a, at, t, h - !last_n, last_n,
							     writer, half, writer ^ 1,
							     BAR_GROUP + group, o);
				writer ^= any;
				any = 1;
			}
		float o[COLS / 2];

		sum_piece<D>(at, to.before(), 0, half, o);
		release(at.keys_read());
		hand_result<D, MASK>(a, at, t, a.group - 1, 0, writer, half, writer ^ 1,
				     BAR_GROUP + group, o);
		writer ^= 1;
		store<D>(a, at, t, i, group, dk, dv);
		if (threadIdx.x % 128 == 0) {
			tma_store_wait<0>();
			barrier_arrive(at.a_empty(0, group));
		}
	}
	tma_store_wait<0>();
}

/* --- kernels -------------------------------------------------------------------- */

template <int D, int MASK, int LOAD_REGISTERS, int DQ_REGISTERS, int REGISTERS>
DEV void attn(const struct te_attn_bwd_sm90 &a)
{
	const int group = threadIdx.x / 128, warp = threadIdx.x / 32;
	const layout<D> at(smem_begin());

	if (threadIdx.x == 0) {
		for (int i = 0; i < 2; i++) {
			barrier_init(at.item_full(i), 1);
			/* warps but the one that loads */
			barrier_init(at.item_empty(i), ATTN_SM90_BWD_THREADS(D) / 32 - 1);
		}
		for (int i = 0; i < layout<D>::BUFFERS; i++)
			for (int g = 0; g < GROUPS; g++) {
				barrier_init(at.a_full(i, g), 1);
				barrier_init(at.a_empty(i, g), 1);
			}
		barrier_init(at.keys_read(), layout<D>::APART ? 4 : 4 * GROUPS);
		for (int i = 0; i < layout<D>::STAGES; i++) {
			barrier_init(at.b_full(i), 33);
			barrier_init(at.b_empty(i), 4 * GROUPS);
		}
		for (int i = 0; i < layout<D>::DS; i++) {
			barrier_init(at.ds_full(i), 4 * GROUPS);
			barrier_init(at.ds_empty(i), layout<D>::APART ? 4 : 4 * GROUPS);
		}
		for (int i = 0; i < WRITERS * layout<D>::HALVES; i++)
			barrier_init(at.piece_full(0, i), 4);
		for (int i = 0; i < PIECES; i++)
			barrier_init(at.piece_empty(i), 1);
		barrier_init_publish();
	}
	__syncthreads();
	if (group == 0) {
		registers_lower<LOAD_REGISTERS>();
		if (threadIdx.x == 0)
			load<D, MASK>(a, at);
		else if (warp == STATS_WARP)
			load_all_stats<D, MASK>(a, at);
		else if (warp >= WRITER_WARP)
			write_queries<D, MASK>(a, at, warp - WRITER_WARP);
	} else if constexpr (!layout<D>::APART) {
		registers_raise<REGISTERS>();
		sum_all<D, MASK>(a, at, group - 1);
	} else if (group == 1) {
		registers_lower<DQ_REGISTERS>();
		sum_queries<D, MASK>(a, at);
	} else {
		registers_raise<REGISTERS>();
		sum_keys<D, MASK>(a, at, group - 2);
	}
}

#define ATTN(NAME, D, ...)                                                              \
	extern "C" __global__ void __launch_bounds__(ATTN_SM90_BWD_THREADS(D), 1)      \
		te_k_attn_bwd_##NAME(const __grid_constant__ struct te_attn_bwd_sm90 a) \
	{                                                                               \
		te_begin();                                                             \
		attn<D, __VA_ARGS__>(a);                                                \
	}
ATTN(sm90_d64, 64, ATTN_SM90_ALL, 32, 88, 192)
ATTN(sm90_d64_window, 64, ATTN_SM90_WINDOW, 32, 88, 192)
ATTN(sm90_d64_documents, 64, ATTN_SM90_DOCUMENTS, 32, 88, 192)
ATTN(sm90_d128, 128, ATTN_SM90_ALL, 32, 0, 232)
ATTN(sm90_d128_window, 128, ATTN_SM90_WINDOW, 32, 0, 232)
ATTN(sm90_d128_documents, 128, ATTN_SM90_DOCUMENTS, 32, 0, 232)
#undef ATTN

#endif
