/*
 * sm90_bwd.cu - causal attention in BF16, backward, of all keys or a window, as sm90.cu: persistent
 * blocks, a warpgroup that loads and two that compute. sm_90a, head_dim 64 and 128. The default
 * (TE_ATTENTION); t/kernels/attn_bwd_sm90.cc emulates them on the host.
 *
 * One body for dkv and dq, as in attn/tile.cuh. An item is 128 rows, a strip of 64 for each
 * warpgroup, and iterates over tiles of 64 columns:
 *
 *             rows       columns    s = a0 b0^T   dp = a1 b1^T   acc0 += ds b0   acc1 += p b1
 *   dkv       keys       queries    k q^T         v dout^T       dk              dv
 *   dq        queries    keys       q k^T         dout v^T       dq
 *
 * The columns of dkv are the queries of all heads of the group, head by head; lse and delta
 * of a tile are loaded by the second warp. p and ds are operands of their wgmma in registers. s and
 * dp of the next tile are started before the products of this one are complete. No atomics: sums
 * are in the order of the columns.
 *
 * 384 threads, up to 226 KiB shared memory: a0 and a1 of two items, and three or four stages.
 */
#include "kernels/attn/sm90.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

#define BWD_ROWS ATTN_SM90_BWD_ROWS
#define GROUPS 2
#define COLS BOX

enum { BAR_GROUP = 1 }; /* the first named barrier of the warpgroups */

template <int D> struct layout {
	static const int STAGES = ATTN_SM90_BWD_STAGES(D), NBYTES = STRIP * D * 2;
	typedef struct ring<STAGES> ring;
	uint32_t base;

	__device__ __forceinline__ explicit layout(uint32_t at) : base(at)
	{
	}
	/* operand 0 or 1 of a strip, and then its result */
	__device__ __forceinline__ uint32_t a(int buffer, int group, int operand) const
	{
		return base + ((GROUPS * buffer + group) * 2 + operand) * NBYTES;
	}
	__device__ __forceinline__ uint32_t b(uint32_t stage, int operand) const
	{
		return a(2, 0, 0) + (2 * stage + operand) * NBYTES;
	}
	/* lse, times log2(e), and delta of the columns */
	__device__ __forceinline__ uint32_t stats(uint32_t stage, int which) const
	{
		return b(STAGES, 0) + (2 * stage + which) * COLS * 4;
	}
	/* complete when the copies are */
	__device__ __forceinline__ uint32_t b_full(uint32_t stage) const
	{
		return stats(STAGES, 0) + 8 * stage;
	}
	/* complete when all warps have read the stage */
	__device__ __forceinline__ uint32_t b_empty(uint32_t stage) const
	{
		return b_full(STAGES) + 8 * stage;
	}
	__device__ __forceinline__ uint32_t a_full(int buffer, int group) const
	{
		return b_empty(STAGES) + 8 * (GROUPS * buffer + group);
	}
	__device__ __forceinline__ uint32_t a_empty(int buffer, int group) const
	{
		return a_full(2, 0) + 8 * (GROUPS * buffer + group);
	}
};

/* --- items ------------------------------------------------------------------ */

struct item {
	int matrix; /* batch nkv + head of keys in dkv, otherwise batch nheads + head of queries */
	int row;
	int col; /* the first column */
};

template <bool DKV> DEV int batch_of(const struct te_attn_bwd_sm90 &a, const item &t)
{
	return t.matrix / (DKV ? a.nkv : a.nheads);
}

template <bool DKV> DEV int head_of(const struct te_attn_bwd_sm90 &a, const item &t)
{
	return t.matrix % (DKV ? a.nkv : a.nheads);
}

/* heads whose columns are read: in dkv the queries' of a group, otherwise one of keys */
template <bool DKV> DEV int ncol_heads(const struct te_attn_bwd_sm90 &a)
{
	return DKV ? a.nheads / a.nkv : 1;
}

template <bool DKV> DEV int col_head(const struct te_attn_bwd_sm90 &a, const item &t)
{
	const int group = a.nheads / a.nkv;

	return DKV ? head_of<DKV>(a, t) * group : head_of<DKV>(a, t) / group;
}

template <bool DKV, bool WINDOW>
DEV bool item_of(const struct te_attn_bwd_sm90 &a, int i, item &ret)
{
	int level;

	if (!deal(i, a.nmatrices, a.nblocks, a.at_once, &ret.matrix, &level))
		return false;
	ret.row = (DKV ? level : a.nblocks - 1 - level) * BWD_ROWS;
	ret.col = DKV ? ret.row : WINDOW ? max(ret.row + 1 - a.window, 0) / COLS * COLS : 0;
	return true;
}

/* is a column before the end of the item's? Compared with arguments, to need no register */
template <bool DKV, bool WINDOW>
DEV bool has_col(const struct te_attn_bwd_sm90 &a, const item &t, int col)
{
	if (WINDOW && DKV && col - t.col >= a.window + BWD_ROWS - 1)
		return false;
	return col < a.seqlen && (DKV || col < t.row + BWD_ROWS);
}

/* --- loads ------------------------------------------------------------------ */

template <int D>
DEV void load_strip(uint32_t to, const struct te_tensor_map *from, int col, int row, int batch,
		    uint32_t full)
{
	for (int c = 0; c < D / BOX; c++)
		tma_load(to + c * BOX_NBYTES, from, col + c * BOX, row, batch, full);
}

/* queries and dout from a row of a head on, or keys and values */
template <int D, bool QUERIES>
DEV void load_pair(const struct te_attn_bwd_sm90 &a, uint32_t first, uint32_t second, int head,
		   int row, int batch, uint32_t full)
{
	const int k = (a.nheads + head) * D;

	barrier_expect(full, 2 * layout<D>::NBYTES);
	load_strip<D>(first, &a.qkv, QUERIES ? head * D : k, row, batch, full);
	load_strip<D>(second, QUERIES ? &a.dout : &a.qkv, QUERIES ? head * D : k + a.nkv * D, row,
		      batch, full);
}

/* lse and delta of a tile in dkv; a query after the last has probabilities of 0 */
DEV void load_stats(const struct te_attn_bwd_sm90 &a, uint32_t to, uint32_t from, int left)
{
#pragma unroll 1
	for (int c = LANE; c < COLS; c += 32) {
		const float lse = c < left ? a.lse[from + c] * LOG2E : INFINITY;

		smem_store(to + 4 * c, __float_as_uint(lse));
		smem_store(to + 4 * (COLS + c),
			   __float_as_uint(c < left ? a.delta[from + c] : 0.0f));
	}
}

/* one thread */
template <int D, bool DKV, bool WINDOW>
DEV void load(const struct te_attn_bwd_sm90 &a, const layout<D> &at)
{
	typename layout<D>::ring r;
	item t;

	for (int i = 0; item_of<DKV, WINDOW>(a, i, t); i++) {
		const int batch = batch_of<DKV>(a, t), first = col_head<DKV>(a, t);

#pragma unroll 1
		for (int g = 0; g < GROUPS; g++) {
			barrier_wait(at.a_empty(i & 1, g), (i >> 1 & 1) ^ 1);
			load_pair<D, !DKV>(a, at.a(i & 1, g, 0), at.a(i & 1, g, 1),
					   head_of<DKV>(a, t), t.row + g * STRIP, batch,
					   at.a_full(i & 1, g));
		}
		for (int h = first; h < first + ncol_heads<DKV>(a); h++)
#pragma unroll 1
			for (int col = t.col; has_col<DKV, WINDOW>(a, t, col);
			     col += COLS, r.next()) {
				barrier_wait(at.b_empty(r.stage), r.parity ^ 1);
				load_pair<D, DKV>(a, at.b(r.stage, 0), at.b(r.stage, 1), h, col,
						  batch, at.b_full(r.stage));
			}
	}
}

/* one warp, in dkv; first: 0, which the compiler does not know, so that it shares no registers */
template <int D, bool WINDOW>
DEV void load_all_stats(const struct te_attn_bwd_sm90 &a, const layout<D> &at, int first)
{
	typename layout<D>::ring r;
	item t;

	for (int i = first; item_of<true, WINDOW>(a, i, t); i++)
		for (int h = 0; h < ncol_heads<true>(a); h++)
#pragma unroll 1
			for (int col = t.col; has_col<true, WINDOW>(a, t, col);
			     col += COLS, r.next()) {
				barrier_wait(at.b_empty(r.stage), r.parity ^ 1);
				load_stats(a, at.stats(r.stage, 0),
					   (uint32_t)((t.matrix * ncol_heads<true>(a) + h) *
							     a.seqlen + col),
					   a.seqlen - col);
				barrier_arrive(at.b_full(r.stage));
			}
}

/* --- a strip ---------------------------------------------------------------- */

/* starts s = a b^T of a strip and a tile */
template <int D> DEV void start_scores(uint32_t a_at, uint32_t b_at, float (&s)[COLS / 2])
{
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

/* lse and delta of the thread's two rows, in dq */
struct rows {
	float lse2[2], delta[2];
};

DEV rows rows_of(const struct te_attn_bwd_sm90 &a, const item &t, int row)
{
	const int64_t from = (int64_t)t.matrix * a.seqlen;
	rows r;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int at = row + threadIdx.x % 128 / 32 * 16 + LANE / 4 + 8 * i;

		r.lse2[i] = at < a.seqlen ? a.lse[from + at] * LOG2E : INFINITY;
		r.delta[i] = at < a.seqlen ? a.delta[from + at] : 0.0f;
	}
	return r;
}

/* scores of keys after the query, in a tile on the diagonal */
template <bool DKV> DEV void mask(float (&s)[COLS / 2])
{
	const int first = 2 * (LANE % 4) - threadIdx.x % 128 / 32 * 16 - LANE / 4;

#pragma unroll
	for (int j = 0; j < COLS / 8; j++)
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const int more = first + 8 * j + c % 2 - c / 2 * 8; /* column less row */

			if (DKV ? more < 0 : more > 0)
				s[4 * j + c] = -INFINITY;
		}
}

/* scores of keys before the window; ahead: the tile's first column less the strip's first row */
template <bool DKV> DEV void mask_before(int ahead, int window, float (&s)[COLS / 2])
{
	const int first = ahead + 2 * (LANE % 4) - threadIdx.x % 128 / 32 * 16 - LANE / 4;

#pragma unroll
	for (int j = 0; j < COLS / 8; j++)
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const int more = first + 8 * j + c % 2 - c / 2 * 8; /* column less row */

			if ((DKV ? more : -more) >= window)
				s[4 * j + c] = -INFINITY;
		}
}

/* scores become probabilities; lse2: of the columns, in dkv */
template <bool DKV>
DEV void soften(float scale2, const rows &r, uint32_t lse2, float (&s)[COLS / 2])
{
#pragma unroll
	for (int j = 0; j < COLS / 8; j++) {
		float2 l = make_float2(0.0f, 0.0f);

		if (DKV)
			l = smem_load2(lse2 + 4 * (8 * j + 2 * (LANE % 4)));
#pragma unroll
		for (int c = 0; c < 4; c++)
			s[4 * j + c] = exp2_approx(
				fmaf(s[4 * j + c], scale2,
				     -(!DKV ? r.lse2[c / 2] : c % 2 ? l.y : l.x)));
	}
}

/* dp becomes ds = p (dp - delta) */
template <bool DKV>
DEV void differentiate(const rows &r, uint32_t delta, const float (&p)[COLS / 2],
		       float (&dp)[COLS / 2])
{
#pragma unroll
	for (int j = 0; j < COLS / 8; j++) {
		float2 d = make_float2(0.0f, 0.0f);

		if (DKV)
			d = smem_load2(delta + 4 * (8 * j + 2 * (LANE % 4)));
#pragma unroll
		for (int c = 0; c < 4; c++)
			dp[4 * j + c] = p[4 * j + c] *
					(dp[4 * j + c] -
					 (!DKV ? r.delta[c / 2] : c % 2 ? d.y : d.x));
	}
}

template <int D, bool DKV>
DEV void store(const struct te_attn_bwd_sm90 &a, const item &t, uint32_t a0, uint32_t a1, int row,
	       int group, const float (&acc0)[D / 2], const float (&acc1)[DKV ? D / 2 : 1])
{
	const float f[2] = { a.scale, a.scale }, one[2] = { 1.0f, 1.0f };
	const int batch = batch_of<DKV>(a, t);
	const int col = ((DKV ? a.nheads : 0) + head_of<DKV>(a, t)) * D;

	group_sync(BAR_GROUP + group); /* all warps have read the operands */
	write_strip<D>(a0, f, acc0);
	if constexpr (DKV)
		write_strip<D>(a1, one, acc1);
	smem_publish();
	group_sync(BAR_GROUP + group);
	if (threadIdx.x % 128)
		return;
	store_strip<D>(&a.dqkv, col, row, batch, a0);
	if (DKV)
		store_strip<D>(&a.dqkv, col + a.nkv * D, row, batch, a1);
}

/* --- the main loop ------------------------------------------------------------ */

/*
 * Starts the sums of a tile, when the products of the tile before are complete. ahead: see
 * mask_before().
 */
template <int D, bool DKV, bool WINDOW>
DEV void multiply(const layout<D> &at, uint32_t stage, uint32_t before, uint32_t a0, uint32_t a1,
		  float scale2, int ahead, int window, const rows &stats, float (&acc0)[D / 2],
		  float (&acc1)[DKV ? D / 2 : 1], uint32_t (&p)[COLS / 4])
{
	const int any = before < layout<D>::STAGES;
	float s[COLS / 2], dp[COLS / 2];

	wgmma_begin();
	start_scores<D>(a0, at.b(stage, 0), s);
	start_scores<D>(a1, at.b(stage, 1), dp);
	wgmma_wait<1>(s);
	if (any)
		release(at.b_empty(before));
	if (ahead == 0)
		mask<DKV>(s);
	if (WINDOW && (DKV ? ahead : -ahead) + COLS > window)
		mask_before<DKV>(ahead, window, s);
	soften<DKV>(scale2, stats, at.stats(stage, 0), s);
	if constexpr (DKV) {
		round_all(s, p);
		wgmma_begin();
		start_sum<D>(p, at.b(stage, 1), any, acc1);
	}
	wgmma_wait<0>(dp);
	differentiate<DKV>(stats, at.stats(stage, 1), s, dp);
	round_all(dp, p);
	wgmma_begin();
	start_sum<D>(p, at.b(stage, 0), any, acc0);
}

template <int D, bool DKV, bool WINDOW>
DEV void compute(const struct te_attn_bwd_sm90 &a, const layout<D> &at, int group)
{
	const float scale2 = a.scale * LOG2E;
	typename layout<D>::ring r;
	item t;

	for (int i = 0; item_of<DKV, WINDOW>(a, i, t); i++) {
		const int row = t.row + group * STRIP;
		const uint32_t a0 = at.a(i & 1, group, 0), a1 = at.a(i & 1, group, 1);
		uint32_t p[COLS / 4], before = layout<D>::STAGES; /* before: none */
		float acc0[D / 2], acc1[DKV ? D / 2 : 1];
		rows stats = { { 0.0f, 0.0f }, { 0.0f, 0.0f } };

		if (DKV && WINDOW) /* the same, computed from row: one register less */
			t.row = t.col = row / BWD_ROWS * BWD_ROWS;
		if (!DKV)
			stats = rows_of(a, t, row);
		barrier_wait(at.a_full(i & 1, group), i >> 1 & 1);
		for (int h = 0; h < ncol_heads<DKV>(a); h++)
#pragma unroll 1
			for (int col = t.col; has_col<DKV, WINDOW>(a, t, col);
			     col += COLS, r.next()) {
				/* queries after keys */
				const int later = DKV ? col - row : row - col;

				barrier_wait(at.b_full(r.stage), r.parity);
				if (later < 0 || (WINDOW && later - STRIP + 1 >= a.window)) {
					release(at.b_empty(r.stage));
					continue;
				}
				multiply<D, DKV, WINDOW>(at, r.stage, before, a0, a1, scale2,
							 col - row, a.window, stats, acc0,
							 acc1, p);
				before = r.stage;
			}
		wgmma_wait<0>(acc0);
		if constexpr (DKV)
			wgmma_wait<0>(acc1);
		if (before < layout<D>::STAGES)
			release(at.b_empty(before));
		/* by now the store of the item before has read shared memory */
		if (i && threadIdx.x % 128 == 0) {
			tma_store_wait<0>();
			barrier_arrive(at.a_empty(i - 1 & 1, group));
		}
		store<D, DKV>(a, t, a0, a1, row, group, acc0, acc1);
	}
	tma_store_wait<0>();
}

/* --- kernels -------------------------------------------------------------------- */

template <int D, bool DKV, bool WINDOW> DEV void attn(const struct te_attn_bwd_sm90 &a)
{
	const int group = threadIdx.x / 128;
	const layout<D> at(smem_begin());

	if (threadIdx.x == 0) {
		for (int i = 0; i < 2 * GROUPS; i++) {
			barrier_init(at.a_full(i / GROUPS, i % GROUPS), 1);
			barrier_init(at.a_empty(i / GROUPS, i % GROUPS), 1);
		}
		for (int i = 0; i < layout<D>::STAGES; i++) {
			barrier_init(at.b_full(i), DKV ? 33 : 1);
			barrier_init(at.b_empty(i), 4 * GROUPS);
		}
		barrier_init_publish();
	}
	__syncthreads();
	if (group == 0) {
		registers_lower<24>();
		if (threadIdx.x == 0)
			load<D, DKV, WINDOW>(a, at);
		else if (DKV && threadIdx.x / 32 == 1)
			load_all_stats<D, WINDOW>(a, at, (int)blockIdx.y);
	} else {
		registers_raise<240>();
		compute<D, DKV, WINDOW>(a, at, group - 1);
	}
}

#define ATTN(NAME, ...)                                                                \
	extern "C" __global__ void __launch_bounds__(ATTN_SM90_BWD_THREADS, 1)         \
		te_k_attn_bwd_##NAME(const __grid_constant__ struct te_attn_bwd_sm90 a) \
	{                                                                              \
		te_begin();                                                            \
		attn<__VA_ARGS__>(a);                                                  \
	}
ATTN(dkv_sm90_d64, 64, true, false)
ATTN(dkv_sm90_d64_window, 64, true, true)
ATTN(dkv_sm90_d128, 128, true, false)
ATTN(dkv_sm90_d128_window, 128, true, true)
ATTN(dq_sm90_d64, 64, false, false)
ATTN(dq_sm90_d64_window, 64, false, true)
ATTN(dq_sm90_d128, 128, false, false)
ATTN(dq_sm90_d128_window, 128, false, true)
#undef ATTN

#endif
