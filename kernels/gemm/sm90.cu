/*
 * sm90.cu - large GEMMs: persistent blocks, warp specialization, wgmma on tiles that the copy
 * engine loads. sm_90a. Compiled, and emulated on the host (t/kernels/sm90.cc); they have not run
 * on a GPU yet, so that only TE_GEMM_PROVIDER=sm90 launches them.
 *
 *  kernel                    a                  b                  tile       sums
 *  gemm_sm90_bf16            BF16 [m, k]        BF16 [n, k]        128 x 256  FP32 accumulators
 *  gemm_sm90_bf16_bt         BF16 [m, k]        BF16 [k, n]        the same
 *  gemm_sm90_bf16_tt         BF16 [k, m]        BF16 [k, n]        the same
 *  gemm_sm90_e4m3_e4m3       E4M3 [m, k]        E4M3 [n, k]        the same
 *  gemm_sm90_e5m2_e4m3       E5M2 [m, k]        E4M3 [n, k]        128 x 192  FP32 every 128 of k
 *
 * d is BF16 or FP32 [m, n]. Rows of all operands are a multiple of 16 bytes and so are addresses;
 * otherwise extents are free: the copy engine loads zeros outside of an operand, and stores nothing
 * outside of d.
 *
 * Blocks: one a multiprocessor, 384 threads, up to 227 KiB shared memory, in clusters of two. The
 * tile of a cluster has 256 rows: each block has 128 of them, loads its rows of a, and one half of
 * the columns of b, which goes to both. schedule.h tells a cluster its work units.
 *
 * Thread 0 loads: for each step of 128 bytes of k it waits until both blocks have released the
 * stage, and starts the copies that complete the stage's barrier. Two warpgroups multiply, each the
 * 64 rows of its own; every warp releases the stage in both blocks. A tile goes to memory by boxes
 * of 64 rows and 128 bytes, two of which are in shared memory for each warpgroup, so that one is
 * written while the other is stored.
 *
 * Tensor cores keep fewer bits of a sum of FP8 terms than FP32 has. e5m2_e4m3, for gradients, adds
 * sums of 128 terms in FP32 registers: one half of the columns is added while the tensor cores
 * compute the other half.
 */
#include "kernels/gemm/sm90.cuh"

#define STEP_MMAS 4 /* multiplications of a step, 32 bytes of k each */

/* --- layout of shared memory ----------------------------------------------- */

template <class T> struct layout {
	uint32_t base;

	__device__ __forceinline__ explicit layout(uint32_t at) : base(at)
	{
	}
	__device__ __forceinline__ uint32_t a(uint32_t stage) const
	{
		return base + stage * SM90_STAGE(T::COLS);
	}
	__device__ __forceinline__ uint32_t b(uint32_t stage) const
	{
		return a(stage) + SM90_ROWS * SM90_STEP;
	}
	__device__ __forceinline__ uint32_t store(int group, int i) const
	{
		return a(SM90_STAGES) + (2 * group + i % 2) * SM90_STORE;
	}
	/* complete when the copies of a stage are */
	__device__ __forceinline__ uint32_t full(uint32_t stage) const
	{
		return a(SM90_STAGES) + 4 * SM90_STORE + 8 * stage;
	}
	/* complete when all warps of both blocks that multiply have released the stage */
	__device__ __forceinline__ uint32_t empty(uint32_t stage) const
	{
		return full(SM90_STAGES + stage);
	}
	__device__ __forceinline__ uint32_t word(int group) const
	{
		return full(2 * SM90_STAGES) + 4 * group;
	}
};

/* a stage, and the parity of the phase of its barriers; steps go through stages in order */
struct ring {
	uint32_t stage = 0, parity = 0;

	__device__ __forceinline__ void next(void)
	{
		if (++stage < SM90_STAGES)
			return;
		stage = 0;
		parity ^= 1;
	}
};

/* --- operands --------------------------------------------------------------- */

/* M: multiplication of 64 rows; ES: bytes of an element; A_T, B_T: k is not innermost */
template <class M, int ES, bool A_T_, bool B_T_, int COLS_> struct operands {
	typedef M mma;
	static const bool A_T = A_T_, B_T = B_T_;
	static const int COLS = COLS_, STEP = SM90_STEP / ES; /* elements */
	static const bool PROMOTED = COLS == SM90_COLS_PROMOTED;
};

/*
 * A tile in a stage: with k innermost a row of 128 bytes for each row of the operand; otherwise,
 * for each 64 rows of the operand (BF16), 64 rows of k.
 */
#define T_ROWS 64
#define T_NBYTES (T_ROWS * SM90_STEP)

/* the part of k of the i-th multiplication of a step, from row row of the operand's tile on */
template <bool TRANSPOSED> DEV uint64_t tile_part(uint32_t at, int row, int i)
{
	if (TRANSPOSED)
		return wgmma_tile(at + row / T_ROWS * T_NBYTES + i * 16 * SM90_STEP, T_NBYTES);
	return wgmma_tile(at + row * SM90_STEP + i * (SM90_STEP / STEP_MMAS), 0);
}

template <class T>
DEV void load_step(const struct te_gemm_sm90 &g, const layout<T> &at, uint32_t stage, int row,
		   int col, int k, int rank)
{
	const int half = T::COLS / 2;
	const uint32_t full = at.full(stage);

	barrier_expect(full, SM90_STAGE(T::COLS));
	if (T::A_T) {
		for (int i = 0; i < SM90_ROWS / T_ROWS; i++)
			tma_load(at.a(stage) + i * T_NBYTES, &g.a, row + i * T_ROWS, k * T::STEP,
				 full);
	} else {
		tma_load(at.a(stage), &g.a, k * T::STEP, row, full);
	}
	if (T::B_T) {
		for (int i = rank * half / T_ROWS; i < (rank + 1) * half / T_ROWS; i++)
			tma_load_both(at.b(stage) + i * T_NBYTES, &g.b, col + i * T_ROWS,
				      k * T::STEP, full);
	} else {
		tma_load_both(at.b(stage) + rank * half * SM90_STEP, &g.b, k * T::STEP,
			      col + rank * half, full);
	}
}

/* the first row and column of a block's tile */
template <class T>
DEV void tile_at(const struct te_gemm_sm90 &g, int tile, int rank, int *row, int *col)
{
	te_gemm_tile(tile, g.nrows, g.ncols, row, col);
	*row = (*row * SM90_CLUSTER + rank) * SM90_ROWS;
	*col *= T::COLS;
}

template <class T>
DEV void load(const struct te_gemm_sm90 &g, const layout<T> &at, int cluster, int rank)
{
	struct te_gemm_unit u;
	ring r;

	for (int l = 0; l < g.schedule.nlevels; l++)
		for (int i = 0; te_gemm_unit(&g.schedule.level[l], cluster, i, &u); i++) {
			int row, col;

			tile_at<T>(g, u.tile, rank, &row, &col);
#pragma unroll 1
			for (int k = u.k; k < u.end; k++, r.next()) {
				barrier_wait(at.empty(r.stage), r.parity ^ 1);
				load_step<T>(g, at, r.stage, row, col, k, rank);
			}
		}
}

/* --- multiplication ---------------------------------------------------------- */

template <class T, int N>
DEV void multiply_step(const layout<T> &at, uint32_t stage, int group, int col, int add_to_d,
		       float (&d)[N])
{
#pragma unroll
	for (int i = 0; i < STEP_MMAS; i++)
		T::mma::mma(d, tile_part<T::A_T>(at.a(stage), group * SM90_BOX, i),
			    tile_part<T::B_T>(at.b(stage), col, i), i ? 1 : add_to_d);
	wgmma_commit();
}

/* lanes 0 and 1 of a warp tell both blocks that the warp has read the stage */
template <class T> DEV void release(const layout<T> &at, uint32_t stage)
{
	const int lane = threadIdx.x % 32;

	if (lane < SM90_CLUSTER)
		barrier_arrive(at.empty(stage), lane);
}

template <class T>
DEV void multiply(const layout<T> &at, ring &r, const struct te_gemm_unit &u, int group,
		  float (&acc)[T::COLS / 2])
{
	if constexpr (T::PROMOTED) {
		const int half = T::COLS / 4;
		float lo[half], hi[half];

#pragma unroll
		for (int i = 0; i < 2 * half; i++)
			acc[i] = 0.0f;
#pragma unroll 1
		for (int k = u.k; k < u.end; k++, r.next()) {
			barrier_wait(at.full(r.stage), r.parity);
			wgmma_begin();
			multiply_step<T>(at, r.stage, group, 0, 0, lo);
			multiply_step<T>(at, r.stage, group, T::COLS / 2, 0, hi);
			wgmma_wait<1>(lo);
#pragma unroll
			for (int i = 0; i < half; i++)
				acc[i] = add(acc[i], lo[i]);
			wgmma_wait<0>(hi);
			release<T>(at, r.stage);
#pragma unroll
			for (int i = 0; i < half; i++)
				acc[half + i] = add(acc[half + i], hi[i]);
		}
	} else {
#pragma unroll 1
		for (int k = u.k; k < u.end; k++, r.next()) {
			barrier_wait(at.full(r.stage), r.parity);
			wgmma_begin();
			multiply_step<T>(at, r.stage, group, 0, k > u.k, acc);
			wgmma_wait<0>(acc);
			release<T>(at, r.stage);
		}
	}
}

/* --- sums of tiles that are cut ----------------------------------------------- */

/*
 * Store the sums of a unit. If the tile's other units are stored, add them all in the order of k
 * and return true. Four accumulators of a thread are one vector, vectors of threads adjacent.
 */
template <class T>
DEV bool join(const struct te_gemm_sm90 &g, const layout<T> &at, const struct te_gemm_unit &u,
	      int rank, int group, int nparts, float (&acc)[T::COLS / 2])
{
	const int nvecs = T::COLS / 8, consumer = 2 * rank + group, t = threadIdx.x % 128;
	float4 *sums = (float4 *)g.sums + consumer * nvecs * 128 + t;
	const int64_t slot_nvecs = (int64_t)4 * nvecs * 128;
	float4 *own = sums + u.slot * slot_nvecs;

#pragma unroll
	for (int i = 0; i < nvecs; i++)
		__stcg(own + i * 128,
		       make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
	__threadfence();
	group_sync(1 + group);
	if (t == 0)
		smem_store(at.word(group),
			   atomicAdd(g.ready + 4 * (u.tile - g.first_cut) + consumer, 1));
	group_sync(1 + group);
	if (smem_load(at.word(group)) != (uint32_t)nparts - 1)
		return false;
	__threadfence();
#pragma unroll
	for (int i = 0; i < 4 * nvecs; i++)
		acc[i] = 0.0f;
#pragma unroll 1
	for (int l = 0; l < g.schedule.nlevels; l++) {
		const struct te_gemm_level *level = &g.schedule.level[l];
		int slot, n = te_gemm_slices(level, u.tile, &slot);

#pragma unroll 1
		for (; n > 0; n--, slot += level->ntiles) {
			const float4 *part = sums + slot * slot_nvecs;

#pragma unroll
			for (int i = 0; i < nvecs; i++) {
				const float4 v = __ldcg(part + i * 128);

				acc[4 * i] = add(acc[4 * i], v.x);
				acc[4 * i + 1] = add(acc[4 * i + 1], v.y);
				acc[4 * i + 2] = add(acc[4 * i + 2], v.z);
				acc[4 * i + 3] = add(acc[4 * i + 3], v.w);
				/* keeps ptxas from having more loads in flight than registers */
				if (i % 4 == 3)
					__syncwarp();
			}
		}
	}
	return true;
}

/* --- d ------------------------------------------------------------------------- */

DEV float2 load_pair(const float *p)
{
	return *(const float2 *)p;
}

DEV float2 load_pair(const bf16 *p)
{
	return unpack2(load2<true>(p, 2));
}

/* two neighbours of row row, from column col on, of sums x and y */
template <class D>
DEV float2 finish(const struct te_gemm_sm90 &g, float scale, int row, int col, float x, float y)
{
	x = mul(x, scale);
	y = mul(y, scale);
	if (g.beta != 0.0f && row < g.m && col < g.n) {
		const float2 c = load_pair((const D *)g.c + (int64_t)row * g.n + col);

		x = add(x, mul(g.beta, c.x));
		y = add(y, mul(g.beta, c.y));
	}
	if (g.bias && col < g.n) {
		const float2 b = load_pair((const D *)g.bias + col);

		x = add(x, b.x);
		y = add(y, b.y);
	}
	return make_float2(x, y);
}

/* to a box: rows of 128 bytes, whose 16-byte chunks are swizzled; NB: blocks of 8 columns */
template <class D, int NB>
DEV void write_box(const struct te_gemm_sm90 &g, uint32_t box, float scale, int row0, int col0,
		   const float *acc)
{
	const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
	const int row = 16 * warp + lane / 4, col = 2 * (lane % 4);

#pragma unroll
	for (int j = 0; j < NB; j += 2) {
		float2 v[2][2]; /* [block][8 rows] */

#pragma unroll
		for (int e = 0; e < 4; e++)
			v[e / 2][e % 2] = finish<D>(g, scale, row0 + row + 8 * (e % 2),
						    col0 + col + 8 * (j + e / 2),
						    acc[4 * j + 2 * e], acc[4 * j + 2 * e + 1]);
		if constexpr (sizeof(D) == 2) {
			const int to = 16 * warp + lane % 16, chunk = j + lane / 16;

			smem_store_matrices(box + to * SM90_STEP + (chunk ^ to % 8) * 16,
					    pack_bf16x2(v[0][0].x, v[0][0].y),
					    pack_bf16x2(v[0][1].x, v[0][1].y),
					    pack_bf16x2(v[1][0].x, v[1][0].y),
					    pack_bf16x2(v[1][1].x, v[1][1].y));
		} else {
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const int to = row + 8 * (e % 2);
				const int chunk = 2 * (j + e / 2) + lane % 4 / 2;

				smem_store2(box + to * SM90_STEP + (chunk ^ to % 8) * 16 +
						    lane % 2 * 8,
					    v[e / 2][e % 2].x, v[e / 2][e % 2].y);
			}
		}
	}
}

template <class D, class T>
DEV void store(const struct te_gemm_sm90 &g, const layout<T> &at, float scale, int row, int col,
	       int group, const float (&acc)[T::COLS / 2])
{
	const int width = SM90_STEP / (int)sizeof(D), NB = width / 8; /* columns of a box */
	const int nboxes = T::COLS / width;
	const bool issues = threadIdx.x % 128 == 0;

#pragma unroll
	for (int i = 0; i < nboxes; i++) {
		const uint32_t box = at.store(group, i);

		/* the latest box may still be read: the other one, unless their number is odd */
		if (issues && (i || nboxes % 2 == 0))
			tma_store_wait<1>();
		else if (issues)
			tma_store_wait<0>();
		group_sync(1 + group);
		write_box<D, NB>(g, box, scale, row, col + i * width, acc + 4 * NB * i);
		smem_publish();
		group_sync(1 + group);
		if (issues)
			tma_store(&g.d, col + i * width, row, box);
	}
}

template <class T>
DEV void compute(const struct te_gemm_sm90 &g, const layout<T> &at, int cluster, int rank,
		 int group)
{
	const float sa = g.sa ? *g.sa : 1.0f, sb = g.sb ? *g.sb : 1.0f;
	const float scale = mul(mul(g.alpha, sa), sb);
	struct te_gemm_unit u;
	ring r;

	for (int l = 0; l < g.schedule.nlevels; l++)
		for (int i = 0; te_gemm_unit(&g.schedule.level[l], cluster, i, &u); i++) {
			const int nparts = te_gemm_nparts(&g.schedule, u.tile);
			float acc[T::COLS / 2];
			int row, col;

			multiply<T>(at, r, u, group, acc);
			if (nparts > 1 && !join<T>(g, at, u, rank, group, nparts, acc))
				continue;
			tile_at<T>(g, u.tile, rank, &row, &col);
			row += group * SM90_BOX;
			if (g.d_fp32)
				store<float, T>(g, at, scale, row, col, group, acc);
			else
				store<bf16, T>(g, at, scale, row, col, group, acc);
		}
	tma_store_wait<0>();
}

/* --- kernels -------------------------------------------------------------------- */

template <class T> DEV void gemm(const struct te_gemm_sm90 &g)
{
	const int cluster = blockIdx.x / SM90_CLUSTER, group = threadIdx.x / 128;
	const int rank = (int)cluster_rank();
	const layout<T> at(smem_begin());

	if (threadIdx.x == 0) {
		for (int i = 0; i < SM90_STAGES; i++) {
			barrier_init(at.full(i), 1);
			barrier_init(at.empty(i), 8 * SM90_CLUSTER);
		}
		barrier_init_publish();
	}
	cluster_sync();
	if (group == 0) {
		registers_lower<40>();
		if (threadIdx.x == 0)
			load<T>(g, at, cluster, rank);
	} else {
		registers_raise<232>();
		compute<T>(g, at, cluster, rank, group - 1);
	}
	/* copies to and arrivals at a block's memory need the block */
	__syncwarp();
	cluster_sync();
}

#define GEMM(NAME, ...)                                                                      \
	extern "C" __global__ void __cluster_dims__(SM90_CLUSTER, 1, 1)                      \
		__launch_bounds__(SM90_THREADS, 1)                                           \
			te_k_gemm_sm90_##NAME(const __grid_constant__ struct te_gemm_sm90 g) \
	{                                                                                    \
		te_begin();                                                                  \
		gemm<operands<__VA_ARGS__>>(g);                                              \
	}
typedef bf16_256<false, false> bf16_kk;
typedef bf16_256<false, true> bf16_kt;
typedef bf16_256<true, true> bf16_tt;
GEMM(bf16, bf16_kk, 2, false, false, SM90_COLS)
GEMM(bf16_bt, bf16_kt, 2, false, true, SM90_COLS)
GEMM(bf16_tt, bf16_tt, 2, true, true, SM90_COLS)
GEMM(e4m3_e4m3, e4m3_e4m3_256, 1, false, false, SM90_COLS)
GEMM(e5m2_e4m3, e5m2_e4m3_96, 1, false, false, SM90_COLS_PROMOTED)
#undef GEMM
