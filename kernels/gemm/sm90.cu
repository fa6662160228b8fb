/*
 * sm90.cu - large GEMMs: persistent blocks, warp specialization, wgmma on tiles that the copy
 * engine loads. sm_90a. Only TE_GEMM_PROVIDER=sm90 launches them (doc/perf-kernels.md has their
 * speed); t/kernels/sm90.cc emulates them on the host.
 *
 *  kernel                    a                  b                  sums
 *  gemm_sm90_bf16            BF16 [m, k]        BF16 [n, k]        FP32 accumulators
 *  gemm_sm90_bf16_bt         BF16 [m, k]        BF16 [k, n]        the same
 *  gemm_sm90_bf16_tt         BF16 [k, m]        BF16 [k, n]        the same
 *  gemm_sm90_e4m3_e4m3       E4M3 [m, k]        E4M3 [n, k]        the same
 *  gemm_sm90_e5m2_e4m3       E5M2 [m, k]        E4M3 [n, k]        FP32 every 128 of k
 *  gemm_sm90_e4m3_block      E4M3 [m, k]        E4M3 [n, k]        the same, block scaling
 *
 * d is BF16 or FP32 [m, n]. Rows of all operands are a multiple of 16 bytes and so are addresses;
 * otherwise extents are free: the copy engine loads zeros outside of an operand, and stores nothing
 * outside of d.
 *
 * Blocks: one a multiprocessor, 384 threads, up to 227 KiB shared memory, in clusters of two. The
 * tile of a cluster is 256 x 256: each block has 128 rows of it, loads its rows of a, and one half
 * of the columns of b, which goes to both. schedule.h tells a cluster its work units.
 *
 * Thread 0 loads: for each step of 128 bytes of k it waits until both blocks have released the
 * stage, and starts the copies that complete the stage's barrier. It tells of a unit in the stage
 * of its first step. Two warpgroups multiply, each the 64 rows of its own; every warp releases the
 * stage in both blocks.
 *
 * A tile goes to memory by boxes of 64 rows and 128 bytes, of which shared memory has two or four
 * for each warpgroup. Kernels whose d is mostly BF16 hold a tile in registers, rounded, and store a
 * box in each of the first steps of the next tile, while the tensor cores multiply. The others
 * store at once; c comes to the boxes by copies that begin in the first step.
 *
 * Tensor cores keep fewer bits of a sum of FP8 terms than FP32 has. e5m2_e4m3, for gradients, adds
 * sums of 128 terms in FP32 registers, for one half of the columns at a time: while a warpgroup
 * adds, the other multiplies.
 *
 * e4m3_block multiplies sums of 128 terms by the scales of both operands as it adds them. A thread
 * loads the scales of its two rows of a and, b having 128x128 blocks, of its columns from global
 * memory while the tensor cores work. Scales of 1x128 blocks of b are copied to the stage.
 */
#include "kernels/dev.cuh"
#include "kernels/gemm/sm90.h"
#include "kernels/sm90.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)

#define STEP_MMAS 4 /* multiplications of a step, 32 bytes of k each */

/* --- layout of shared memory ----------------------------------------------- */

template <class T> struct layout {
	uint32_t base;

	__device__ __forceinline__ explicit layout(uint32_t at) : base(at)
	{
	}
	__device__ __forceinline__ uint32_t a(uint32_t stage) const
	{
		return base + stage * SM90_STAGE;
	}
	__device__ __forceinline__ uint32_t b(uint32_t stage) const
	{
		return a(stage) + SM90_ROWS * SM90_STEP;
	}
	/* complete when the copies of a stage are */
	__device__ __forceinline__ uint32_t full(uint32_t stage) const
	{
		return a(T::STAGES) + 2 * T::STORES * SM90_STORE + 8 * stage;
	}
	/* complete when all warps of both blocks that multiply have released the stage */
	__device__ __forceinline__ uint32_t empty(uint32_t stage) const
	{
		return full(T::STAGES + stage);
	}
	/* boxes of a warpgroup, of c first and then of d */
	__device__ __forceinline__ uint32_t box(int group, int i) const
	{
		return a(T::STAGES) + (T::STORES * group + i % T::STORES) * SM90_STORE;
	}
	/* complete when the copy of a box of c is */
	__device__ __forceinline__ uint32_t filled(int group, int i) const
	{
		return full(2 * T::STAGES + T::STORES * group + i % T::STORES);
	}
	/* the bias of the tile's columns in FP32 */
	__device__ __forceinline__ uint32_t bias(int group) const
	{
		return full(2 * T::STAGES + 2 * T::STORES) + SM90_COLS * 4 * group;
	}
	/* words from the load thread about the unit whose first step is in the stage */
	__device__ __forceinline__ uint32_t unit(uint32_t stage) const
	{
		return bias(2) + 32 * stage;
	}
	/* words of a warpgroup for join(): a counter, the tile and the slot of the unit */
	__device__ __forceinline__ uint32_t words(int group) const
	{
		return unit(T::STAGES) + 32 * group;
	}
	/* 1x128 blocks: scales of the columns of b in a stage */
	__device__ __forceinline__ uint32_t scales(uint32_t stage) const
	{
		return words(2) + SM90_SCALES * stage;
	}
	/* the first row and column of the tile in registers, for its first thread */
	__device__ __forceinline__ uint32_t held(int group) const
	{
		return words(group) + 16;
	}
};

/* a stage, and the parity of the phase of its barriers; steps go through stages in order */
template <class T> struct ring {
	uint32_t stage = 0, parity = 0;

	__device__ __forceinline__ void next(void)
	{
		if (++stage < T::STAGES)
			return;
		stage = 0;
		parity ^= 1;
	}
};

/* --- operands --------------------------------------------------------------- */

/* M: multiplication of 64 rows; ES: bytes of an element; A_T, B_T: k is not innermost */
template <class M, enum te_sm90_kernel KERNEL, int ES, bool A_T_, bool B_T_> struct operands {
	typedef M mma;
	static const bool A_T = A_T_, B_T = B_T_, PROMOTED = KERNEL == TE_SM90_E5M2_E4M3;
	static const bool HOLDS = SM90_HOLDS(KERNEL), BLOCK = SM90_BLOCK(KERNEL);
	static const int STEP = SM90_STEP / ES; /* elements */
	static const int STAGES = SM90_STAGES(HOLDS), STORES = SM90_STORES(HOLDS);
	static const int AHEAD = HOLDS ? 8 : 16; /* vectors in flight in join() */
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
	const int half = SM90_COLS / 2;
	const uint32_t full = at.full(stage);

	if (T::BLOCK && !g.sb_square) {
		const int left = g.sb_ld - col;
		const uint32_t nbytes = 4 * (left < SM90_COLS ? left : SM90_COLS);

		barrier_expect(full, SM90_STAGE + nbytes);
		bulk_load(at.scales(stage), g.sb + ((int64_t)k * g.sb_ld + col), nbytes, full);
	} else {
		barrier_expect(full, SM90_STAGE);
	}
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
	*col *= SM90_COLS;
}

/* a block's part of a unit */
struct part {
	int row, col;	/* the first of d */
	int nsteps;	/* 0: there are no more units */
	int nparts;	/* units of the tile */
	int k;		/* BLOCK: the first step */
};

/* the divisions of a schedule are done by the thread that loads, which has time for them */
template <class T>
DEV void tell(const layout<T> &at, uint32_t stage, const part &o, int tile, int slot)
{
	smem_store4(at.unit(stage), o.row, o.col, o.nsteps, o.nparts);
	smem_store4(at.unit(stage) + 16, 0, tile, slot, o.k);
}

/* when the stage of the first step is full; tile and slot go to words() */
template <class T> DEV void hear(const layout<T> &at, uint32_t stage, int group, part &o)
{
	int tile, slot, zero;

	smem_load4(at.unit(stage), o.row, o.col, o.nsteps, o.nparts);
	if (T::BLOCK)
		smem_load4(at.unit(stage) + 16, zero, tile, slot, o.k);
	if (o.nparts == 1 || threadIdx.x % 128)
		return;
	smem_load4(at.unit(stage) + 16, zero, tile, slot, zero);
	smem_store4(at.words(group), 0, tile, slot, 0);
}

template <class T>
DEV void load(const struct te_gemm_sm90 &g, const layout<T> &at, int cluster, int rank)
{
	struct te_gemm_unit u;
	part o = part();
	ring<T> r;

	for (int l = 0; l < g.schedule.nlevels; l++)
		for (int i = 0; te_gemm_unit(&g.schedule.level[l], cluster, i, &u); i++) {
			tile_at<T>(g, u.tile, rank, &o.row, &o.col);
			o.nsteps = u.end - u.k;
			o.k = u.k;
			o.nparts = te_gemm_nparts(&g.schedule, u.tile);
#pragma unroll 1
			for (int k = u.k; k < u.end; k++, r.next()) {
				barrier_wait(at.empty(r.stage), r.parity ^ 1);
				if (k == u.k)
					tell<T>(at, r.stage, o, u.tile, u.slot);
				load_step<T>(g, at, r.stage, o.row, o.col, k, rank);
			}
		}
	barrier_wait(at.empty(r.stage), r.parity ^ 1);
	o.nsteps = 0;
	tell<T>(at, r.stage, o, 0, 0);
	barrier_expect(at.full(r.stage), 0);
}

/* --- c ------------------------------------------------------------------------ */

/* starts the copy of box i of c, from a tile's first row and column on */
template <class T>
DEV void load_box(const struct te_gemm_sm90 &g, const layout<T> &at, int group, int i, int row,
		  int col)
{
	const int width = SM90_STEP / (g.d_fp32 ? 4 : 2);

	barrier_expect(at.filled(group, i), SM90_STORE);
	tma_load(at.box(group, i), &g.c, col + i * width, row, at.filled(group, i));
}

/* the first boxes of c, when the stores of the tile before have read theirs; one thread */
template <class T>
DEV void load_boxes(const struct te_gemm_sm90 &g, const layout<T> &at, int group, int row, int col)
{
	tma_store_wait<0>();
	for (int i = 0; i < T::STORES; i++)
		load_box<T>(g, at, group, i, row, col);
}

/* while the tensor cores work on the first step: c and the bias go to shared memory */
template <class T>
DEV void begin_part(const struct te_gemm_sm90 &g, const layout<T> &at, const part &o, int group)
{
	const int t = threadIdx.x % 128, col = o.col + 2 * t;
	float2 bias = make_float2(0.0f, 0.0f);

	if (t == 0 && g.beta != 0.0f && o.nparts == 1)
		load_boxes<T>(g, at, group, o.row, o.col);
	if (!g.bias)
		return;
	if (col < g.n && g.d_fp32)
		bias = *(const float2 *)((const float *)g.bias + col);
	else if (col < g.n)
		bias = unpack_bf16x2(*(const uint32_t *)((const bf16 *)g.bias + col));
	smem_store2(at.bias(group) + 8 * t, bias.x, bias.y);
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

	__syncwarp();
	if (lane < SM90_CLUSTER)
		barrier_arrive(at.empty(stage), lane);
}

/* --- a tile in registers ------------------------------------------------------ */

#define HELD_BOXES (SM90_COLS * 2 / SM90_STEP) /* boxes of a BF16 tile */

/*
 * The warpgroup's part of a BF16 tile, which is stored while the tensor cores multiply for the
 * next: words 2 j and 2 j + 1 of a thread are two neighbours of its two rows in columns 8 j on.
 */
struct held {
	uint32_t w[SM90_COLS / 4];
	bool any;
};

/* box i, when the store of the box before the latest has read shared memory */
template <class T>
DEV void put_box(const struct te_gemm_sm90 &g, const layout<T> &at, const held &h, int group, int i)
{
	const int lane = threadIdx.x % 32, to = threadIdx.x % 128 / 32 * 16 + lane % 16;
	const uint32_t box = at.box(group, i), *w = h.w + 16 * i;
	const bool issues = threadIdx.x % 128 == 0;

	if (issues)
		tma_store_wait<T::STORES - 1>();
	group_sync(1 + group);
#pragma unroll
	for (int j = 0; j < 8; j += 2)
		smem_store_matrices(box + to * SM90_STEP + ((j + lane / 16) ^ to % 8) * 16,
				    w[2 * j], w[2 * j + 1], w[2 * j + 2], w[2 * j + 3]);
	smem_publish();
	group_sync(1 + group);
	if (issues) {
		int row, col, zero;

		smem_load4(at.held(group), row, col, zero, zero);
		tma_store(&g.d, col + i * (SM90_STEP / 2), row, box);
	}
}

template <class T>
DEV void put_all(const struct te_gemm_sm90 &g, const layout<T> &at, held &h, int group)
{
	if (!h.any)
		return;
#pragma unroll
	for (int i = 0; i < HELD_BOXES; i++)
		put_box<T>(g, at, h, group, i);
	h.any = false;
}

/* --- the main loop ------------------------------------------------------------ */

template <class T>
DEV void multiply_promoted(const struct te_gemm_sm90 &g, const layout<T> &at, ring<T> &r,
			   const part &o, int group, float (&acc)[SM90_COLS / 2])
{
	const int half = SM90_COLS / 4;

#pragma unroll
	for (int i = 0; i < 2 * half; i++)
		acc[i] = 0.0f;
#pragma unroll 1
	for (int k = 0; k < o.nsteps; k++, r.next()) {
		barrier_wait(at.full(r.stage), r.parity);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float sums[half];

			wgmma_begin();
			multiply_step<T>(at, r.stage, group, h * SM90_COLS / 2, 0, sums);
			wgmma_wait<0>(sums);
			if (h)
				release<T>(at, r.stage);
#pragma unroll
			for (int i = 0; i < half; i++)
				acc[h * half + i] = add(acc[h * half + i], sums[i]);
		}
		if (k == 0) /* not while sums takes registers, too */
			begin_part<T>(g, at, o, group);
	}
}

/* offset of the scale of a row, or column, and k step */
DEV int scale_at(int square, int ld, int row, int k)
{
	return square ? row / TE_K_BLOCK * ld + k : k * ld + row;
}

/* block scaling; rows and columns outside of d have scales of others */
template <class T>
DEV void multiply_scaled(const struct te_gemm_sm90 &g, const layout<T> &at, ring<T> &r,
			 const part &o, int group, float (&acc)[SM90_COLS / 2])
{
	const int half = SM90_COLS / 4, lane = threadIdx.x % 32;
	const int row = o.row + threadIdx.x % 128 / 32 * 16 + lane / 4;
	const bool square = g.sb_square;
	int a_at[2], b_at[2];

#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int y = row + 8 * i, x = o.col + i * SM90_COLS / 2;

		a_at[i] = scale_at(g.sa_square, g.sa_ld, y < g.m ? y : g.m - 1, o.k);
		b_at[i] = scale_at(1, g.sb_ld, x < g.n ? x : g.n - 1, o.k);
	}
#pragma unroll
	for (int i = 0; i < 2 * half; i++)
		acc[i] = 0.0f;
#pragma unroll 1
	for (int k = 0; k < o.nsteps; k++, r.next()) {
		const uint32_t scales = at.scales(r.stage) + 8 * (lane % 4);
		float sa[2], sb[2] = { 1.0f, 1.0f };

#pragma unroll
		for (int i = 0; i < 2; i++) {
			sa[i] = g.sa[a_at[i]];
			if (square)
				sb[i] = g.sb[b_at[i]++];
			a_at[i] += g.sa_square ? 1 : g.sa_ld;
		}
		barrier_wait(at.full(r.stage), r.parity);
#pragma unroll
		for (int h = 0; h < 2; h++) {
			float sums[half], *to = acc + h * half;

			wgmma_begin();
			multiply_step<T>(at, r.stage, group, h * SM90_COLS / 2, 0, sums);
			wgmma_wait<0>(sums);
			if (square) {
				const float s[2] = { mul(sa[0], sb[h]), mul(sa[1], sb[h]) };

				if (h)
					release<T>(at, r.stage);
#pragma unroll
				for (int i = 0; i < half; i++)
					to[i] = __fmaf_rn(sums[i], s[i / 2 % 2], to[i]);
				continue;
			}
#pragma unroll
			for (int i = 0; i < half; i += 4) {
				const float2 b =
					smem_load2(scales + 4 * (h * SM90_COLS / 2 + 2 * i));

				to[i] = __fmaf_rn(mul(sums[i], b.x), sa[0], to[i]);
				to[i + 1] = __fmaf_rn(mul(sums[i + 1], b.y), sa[0], to[i + 1]);
				to[i + 2] = __fmaf_rn(mul(sums[i + 2], b.x), sa[1], to[i + 2]);
				to[i + 3] = __fmaf_rn(mul(sums[i + 3], b.y), sa[1], to[i + 3]);
			}
			if (h)
				release<T>(at, r.stage);
		}
		if (k == 0) /* not while sums takes registers, too */
			begin_part<T>(g, at, o, group);
	}
}

template <class T, bool HOLD>
DEV void multiply(const struct te_gemm_sm90 &g, const layout<T> &at, ring<T> &r,
		  const part &o, int group, held &h, float (&acc)[SM90_COLS / 2])
{
	int k = 0;

	if (HOLD && h.any && o.nsteps < HELD_BOXES)
		put_all<T>(g, at, h, group);
	if (HOLD && h.any) {
#pragma unroll
		for (int i = 0; i < HELD_BOXES; i++, k++, r.next()) {
			barrier_wait(at.full(r.stage), r.parity);
			wgmma_begin();
			multiply_step<T>(at, r.stage, group, 0, i > 0, acc);
			put_box<T>(g, at, h, group, i);
			if (i == 0)
				begin_part<T>(g, at, o, group);
			wgmma_wait<0>(acc);
			release<T>(at, r.stage);
		}
		h.any = false;
	}
#pragma unroll 1
	for (; k < o.nsteps; k++, r.next()) {
		barrier_wait(at.full(r.stage), r.parity);
		wgmma_begin();
		multiply_step<T>(at, r.stage, group, 0, k > 0, acc);
		if (k == 0)
			begin_part<T>(g, at, o, group);
		wgmma_wait<0>(acc);
		release<T>(at, r.stage);
	}
}

/* --- sums of tiles that are cut ----------------------------------------------- */

/*
 * Store the sums of a unit. If the tile's other units are stored, add them all in the order of k
 * and return true. Four accumulators of a thread are one vector, vectors of threads adjacent.
 */
template <class T>
DEV bool join(const struct te_gemm_sm90 &g, const layout<T> &at, const part &o, int rank,
	      int group, float (&acc)[SM90_COLS / 2])
{
	const int nvecs = SM90_COLS / 8, consumer = 2 * rank + group, t = threadIdx.x % 128;
	int tile, own_slot, unused;
	float4 *sums = (float4 *)g.sums + consumer * nvecs * 128 + t;
	const int64_t slot_nvecs = (int64_t)4 * nvecs * 128;
	float4 *own;

	group_sync(1 + group);
	smem_load4(at.words(group), unused, tile, own_slot, unused);
	own = sums + own_slot * slot_nvecs;

#pragma unroll
	for (int i = 0; i < nvecs; i++)
		__stcg(own + i * 128,
		       make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
	__threadfence();
	group_sync(1 + group);
	if (t == 0)
		smem_store(at.words(group),
			   atomicAdd(g.ready + 4 * (tile - g.first_cut) + consumer, 1));
	group_sync(1 + group);
	if (smem_load(at.words(group)) != (uint32_t)o.nparts - 1)
		return false;
	__threadfence();
#pragma unroll
	for (int i = 0; i < 4 * nvecs; i++)
		acc[i] = 0.0f;
#pragma unroll 1
	for (int l = 0; l < g.schedule.nlevels; l++) {
		const struct te_gemm_level *level = &g.schedule.level[l];
		int slot, n = te_gemm_slices(level, tile, &slot);

#pragma unroll 1
		for (; n > 0; n--, slot += level->ntiles) {
			const float4 *from = sums + slot * slot_nvecs;

#pragma unroll
			for (int i = 0; i < nvecs; i += T::AHEAD) {
				float4 v[T::AHEAD];

#pragma unroll
				for (int j = 0; j < T::AHEAD; j++)
					v[j] = __ldcg(from + (i + j) * 128);
#pragma unroll
				for (int j = 0; j < T::AHEAD; j++) {
					float *to = acc + 4 * (i + j);

					to[0] = add(to[0], v[j].x);
					to[1] = add(to[1], v[j].y);
					to[2] = add(to[2], v[j].z);
					to[3] = add(to[3], v[j].w);
				}
				/* keeps ptxas from having more loads in flight than registers */
				__syncwarp();
			}
		}
	}
	return true;
}

/* --- d ------------------------------------------------------------------------- */

/* read for each tile: a register less in the main loop */
template <class T> DEV float scale_of(const struct te_gemm_sm90 &g)
{
	if (T::BLOCK)
		return g.alpha;

	const float sa = g.sa ? *g.sa : 1.0f, sb = g.sb ? *g.sb : 1.0f;

	return mul(mul(g.alpha, sa), sb);
}

/* scales two neighbours, adds beta c and the bias of their column of the tile */
template <bool PLAIN>
DEV float2 finish(const struct te_gemm_sm90 &g, float scale, const float *acc, float2 c,
		  float2 bias)
{
	float2 v = make_float2(mul(acc[0], scale), mul(acc[1], scale));

	if (PLAIN)
		return v;
	if (g.beta != 0.0f) {
		v.x = add(v.x, mul(g.beta, c.x));
		v.y = add(v.y, mul(g.beta, c.y));
	}
	if (g.bias) {
		v.x = add(v.x, bias.x);
		v.y = add(v.y, bias.y);
	}
	return v;
}

/* the tile stays in registers until the next unit */
template <class T>
DEV void hold(const struct te_gemm_sm90 &g, const layout<T> &at, float scale, int group,
	      const part &o, const float (&acc)[SM90_COLS / 2], held &h)
{
	const int lane = threadIdx.x % 32;

	if (g.bias)
		group_sync(1 + group);
#pragma unroll
	for (int j = 0; j < SM90_COLS / 8; j++) {
		float2 b = make_float2(0.0f, 0.0f);

		if (g.bias)
			b = smem_load2(at.bias(group) + 4 * (8 * j + 2 * (lane % 4)));
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float2 v = make_float2(mul(acc[4 * j + 2 * i], scale),
					       mul(acc[4 * j + 2 * i + 1], scale));

			if (g.bias)
				v = make_float2(add(v.x, b.x), add(v.y, b.y));
			h.w[2 * j + i] = pack_bf16x2(v.x, v.y);
		}
	}
	if (threadIdx.x % 128 == 0)
		smem_store4(at.held(group), o.row, o.col, 0, 0);
	h.any = true;
}

/*
 * A box in shared memory: rows of 128 bytes, whose 16-byte chunks are swizzled. bias: of the box's
 * first column.
 */
template <bool PLAIN>
DEV void write_box(const struct te_gemm_sm90 &g, uint32_t box, float scale, uint32_t bias,
		   const float *acc, bf16)
{
	const int lane = threadIdx.x % 32, to = threadIdx.x % 128 / 32 * 16 + lane % 16;

#pragma unroll
	for (int j = 0; j < 8; j += 2) {
		const uint32_t p = box + to * SM90_STEP + ((j + lane / 16) ^ to % 8) * 16;
		uint32_t w[4] = { 0, 0, 0, 0 }; /* blocks of 8 columns j, j, j + 1, j + 1 */

		if (!PLAIN && g.beta != 0.0f)
			smem_load_matrices(p, w);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float2 b = make_float2(0.0f, 0.0f);

			if (!PLAIN && g.bias)
				b = smem_load2(bias + 4 * (8 * (j + i / 2) + 2 * (lane % 4)));
			b = finish<PLAIN>(g, scale, acc + 4 * j + 2 * i, unpack_bf16x2(w[i]), b);
			w[i] = pack_bf16x2(b.x, b.y);
		}
		smem_store_matrices(p, w[0], w[1], w[2], w[3]);
	}
}

template <bool PLAIN>
DEV void write_box(const struct te_gemm_sm90 &g, uint32_t box, float scale, uint32_t bias,
		   const float *acc, float)
{
	const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;

#pragma unroll
	for (int j = 0; j < 4; j++) {
		float2 b = make_float2(0.0f, 0.0f);

		if (!PLAIN && g.bias)
			b = smem_load2(bias + 4 * (8 * j + 2 * (lane % 4)));
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t p = box + (row + 8 * i) * SM90_STEP +
					   ((2 * j + lane % 4 / 2) ^ row % 8) * 16 + lane % 2 * 8;
			float2 v = make_float2(0.0f, 0.0f);

			if (!PLAIN && g.beta != 0.0f)
				v = smem_load2(p);
			v = finish<PLAIN>(g, scale, acc + 4 * j + 2 * i, v, b);
			smem_store2(p, v.x, v.y);
		}
	}
}

/*
 * The warpgroup's part of a tile, with its first row and column. bias: for columns 2 t and 2 t + 1
 * of thread t. parity: the phase of the boxes of c.
 */
template <class D, bool PLAIN, class T>
DEV void store(const struct te_gemm_sm90 &g, const layout<T> &at, float scale, int group,
	       const part &o, uint32_t parity, const float (&acc)[SM90_COLS / 2])
{
	const int row = o.row, col = o.col;
	const int width = SM90_STEP / (int)sizeof(D), nboxes = SM90_COLS / width;
	const int t = threadIdx.x % 128;
	const bool adds = !PLAIN && g.beta != 0.0f;

	if (t == 0 && !adds)
		tma_store_wait<0>();
	group_sync(1 + group);
#pragma unroll
	for (int i = 0; i < nboxes; i++) {
		const uint32_t box = at.box(group, i);

		if (adds) {
			barrier_wait(at.filled(group, i), (parity + i / T::STORES) & 1);
		} else if (i >= T::STORES) {
			if (t == 0)
				tma_store_wait<T::STORES - 1>();
			group_sync(1 + group);
		}
		write_box<PLAIN>(g, box, scale, at.bias(group) + 4 * width * i,
				 acc + width / 2 * i, D());
		smem_publish();
		group_sync(1 + group);
		if (t == 0) {
			tma_store(&g.d, col + i * width, row, box);
			if (adds && i && i - 1 + T::STORES < nboxes) {
				tma_store_wait<1>();
				load_box<T>(g, at, group, i - 1 + T::STORES, row, col);
			}
		}
	}
}

/* HOLD: d is BF16 and no c is added */
template <class T, bool HOLD>
DEV void compute(const struct te_gemm_sm90 &g, const layout<T> &at, int rank, int group)
{
	const bool adds = g.beta != 0.0f, plain = !adds && !g.bias, issues = threadIdx.x % 128 == 0;
	uint32_t parity = 0;
	ring<T> r;
	held h = held();
	part o;

	for (;;) {
		float acc[SM90_COLS / 2], scale;

		barrier_wait(at.full(r.stage), r.parity);
		hear<T>(at, r.stage, group, o);
		if (!o.nsteps)
			break;
		o.row += group * SM90_BOX;
		if constexpr (T::BLOCK)
			multiply_scaled<T>(g, at, r, o, group, acc);
		else if constexpr (T::PROMOTED)
			multiply_promoted<T>(g, at, r, o, group, acc);
		else
			multiply<T, HOLD>(g, at, r, o, group, h, acc);
		h = held(); /* stored by now: registers for join() */
		if (o.nparts > 1) {
			if (!join<T>(g, at, o, rank, group, acc))
				continue;
			if (adds && issues)
				load_boxes<T>(g, at, group, o.row, o.col);
		}
		scale = scale_of<T>(g);
		if constexpr (HOLD) {
			hold<T>(g, at, scale, group, o, acc, h);
		} else if (g.d_fp32 && plain) {
			store<float, true, T>(g, at, scale, group, o, 0, acc);
		} else if (g.d_fp32) {
			store<float, false, T>(g, at, scale, group, o, 0, acc);
		} else if (plain) {
			store<bf16, true, T>(g, at, scale, group, o, 0, acc);
		} else {
			store<bf16, false, T>(g, at, scale, group, o, parity, acc);
			parity ^= HELD_BOXES / T::STORES & 1;
		}
	}
	if constexpr (HOLD)
		put_all<T>(g, at, h, group);
	tma_store_wait<0>();
}

/* --- kernels -------------------------------------------------------------------- */

template <class T> DEV void gemm(const struct te_gemm_sm90 &g)
{
	const int cluster = blockIdx.x / SM90_CLUSTER, group = threadIdx.x / 128;
	const int rank = (int)cluster_rank();
	const layout<T> at(smem_begin());

	if (threadIdx.x == 0) {
		for (int i = 0; i < T::STAGES; i++) {
			barrier_init(at.full(i), 1);
			barrier_init(at.empty(i), 8 * SM90_CLUSTER);
		}
		for (int i = 0; i < 2 * T::STORES; i++)
			barrier_init(at.filled(i / T::STORES, i), 1);
		barrier_init_publish();
	}
	cluster_sync();
	if (group == 0) {
		registers_lower<40>();
		if (threadIdx.x == 0)
			load<T>(g, at, cluster, rank);
	} else {
		registers_raise<232>();
		if (T::HOLDS && !g.d_fp32 && g.beta == 0.0f)
			compute<T, T::HOLDS>(g, at, rank, group - 1);
		else
			compute<T, false>(g, at, rank, group - 1);
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
GEMM(bf16, bf16_kk, TE_SM90_BF16, 2, false, false)
GEMM(bf16_bt, bf16_kt, TE_SM90_BF16_BT, 2, false, true)
GEMM(bf16_tt, bf16_tt, TE_SM90_BF16_TT, 2, true, true)
GEMM(e4m3_e4m3, e4m3_e4m3_256, TE_SM90_E4M3_E4M3, 1, false, false)
GEMM(e5m2_e4m3, e5m2_e4m3_128, TE_SM90_E5M2_E4M3, 1, false, false)
GEMM(e4m3_block, e4m3_e4m3_128, TE_SM90_E4M3_BLOCK, 1, false, false)
#undef GEMM

#endif
