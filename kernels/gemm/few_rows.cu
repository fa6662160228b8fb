/*
 * few_rows.cu - products of at most 8 rows by weights, which are bound by reading the weights once.
 * FP8 from compute capability 8.9 on.
 *
 *  kernel              a            b            d                blocks  threads  shared
 *  gemm_few_rows_bf16  BF16 [m, k]  BF16 [n, k]  BF16 [m, n]      an SM   256      98 KiB or more
 *  few_rows_bf16       BF16 [m, k]  BF16 [n, k]  BF16 [m, n]
 *  few_rows_glu_bf16   BF16 [m, k]  BF16 [n, k]  BF16 [m, n / 2]
 *  few_rows_e4m3       BF16 [m, k]  E4M3 [n, k]  BF16 [m, n]
 *  few_rows_glu_e4m3   BF16 [m, k]  E4M3 [n, k]  BF16 [m, n / 2]
 *
 * few_rows has the steps of struct te_k_few_rows before and after the product: each block computes
 * all of a, which is small, in shared memory.
 *
 * A block has tiles of 8 columns of d, which are 8 rows of b, or twice 8 with _glu; the tiles of a
 * block are the grid apart. Warp w of 8 has FEW_ROWS_CHUNKS chunks of k in every 8 times as many: a
 * step. A lane copies the 16 bytes of a chunk that it multiplies from memory to its own bytes of
 * shared memory, up to 6 steps ahead and across tiles. Threads wait for each other when they add
 * the sums of the warps, in their order, of FEW_ROWS_BATCH tiles. Rows have the same bits whatever
 * m is.
 *
 * g.fixed: no kernel that may still run writes b, or gamma. Then the first steps are loaded before
 * the preceding kernels are complete, so that memory is read while kernels wait for each other. Of
 * the instructions, which each launch reads from memory, there are few: loops are not unrolled.
 *
 * b's rows are the columns of mma.sync, and a's rows the first 8 of its rows. The order of a sum
 * over k is free, and so is the assignment of elements to lanes: see gemm.cu.
 */
#include "kernels/block.cuh"
#include "kernels/gemm/finish.cuh"
#include "kernels/gemm/geometry.h"
#include "kernels/mma.cuh"
#include "kernels/norm/rows.cuh"

#define WARPS FEW_ROWS_WARPS
#define THREADS (32 * WARPS)
#define TILE FEW_ROWS_TILE
#define CHUNKS FEW_ROWS_CHUNKS
#define KBLOCKS (FEW_ROWS_STEP / TE_K_BLOCK) /* blocks of a scale in a warp's step, FP8 */
/* bytes of k of the step of all warps */
#define STRIDE (WARPS * FEW_ROWS_STEP)

DEV unsigned dynamic_smem(void)
{
	unsigned n;

	asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(n));
	return n;
}

struct few_shared {
	float sb[FEW_ROWS_STAGES(90)][WARPS][KBLOCKS];
	float part[WARPS]; /* sums of a norm */
};

/* --- b ------------------------------------------------------------------- */

/* the step that a lane copies next */
struct few_next {
	int index, count;    /* tile, and number of tiles */
	int half, k, stage;  /* half: of b's rows, with _glu; k: byte of the warp's first chunk */
	const char *from;    /* the lane's row of the tile */
	const float *scales; /* FP8 */
	int stages;	     /* the ring's */
};

/* for the step that is multiplied next */
DEV void few_wait(int stages)
{
	if (stages > 4)
		cp_async_wait<FEW_ROWS_STAGES(90) - 1>();
	else if (stages > 2)
		cp_async_wait<3>();
	else
		cp_async_wait<1>();
}

template <bool FP8>
DEV void few_begin_rows(const struct te_k_gemm &g, struct few_next &at, int nbytes, int half_rows)
{
	const int64_t row = at.half * half_rows + at.index * TILE;

	at.from = (const char *)g.b + (row + threadIdx.x % 32 / 4) * nbytes + threadIdx.x % 4 * 16;
	if (FP8)
		at.scales = g.sb + row / TE_K_BLOCK * te_k_scale_ld(TE_K_SCALING_128X128, 0, g.k);
}

template <bool FP8, int NB>
DEV void few_advance(const struct te_k_gemm &g, struct few_next &at, int nbytes, int half_rows)
{
	const int first = threadIdx.x / 32 * FEW_ROWS_STEP;

	at.stage = at.stage + 1 == at.stages ? 0 : at.stage + 1;
	at.k += STRIDE;
	if (at.k - first < nbytes)
		return;
	at.k = first;
	if (++at.half == NB) {
		at.half = 0;
		at.index += gridDim.x;
	}
	few_begin_rows<FP8>(g, at, nbytes, half_rows);
}

template <bool FP8, int NB>
DEV void few_load(const struct te_k_gemm &g, struct few_next &at, uint4 *ring, few_shared &s,
		  int nbytes, int half_rows)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	if (at.index < at.count) {
		const uint32_t to = smem_addr(ring + at.stage * CHUNKS * THREADS);

#pragma unroll
		for (int i = 0; i < CHUNKS; i++)
			if (at.k + i * GEMM_CHUNK < nbytes)
				cp_async16_line(to + i * 512, at.from + at.k + i * GEMM_CHUNK);
		if (FP8 && lane < KBLOCKS && at.k + lane * TE_K_BLOCK < nbytes)
			cp_async4(smem_addr(&s.sb[at.stage][warp][lane]),
				  at.scales + at.k / TE_K_BLOCK + lane, 4);
		few_advance<FP8, NB>(g, at, nbytes, half_rows);
	}
	cp_async_commit();
}

/* --- a ------------------------------------------------------------------- */

/*
 * Rows of a in shared memory, a distance apart at which two rows have no bank in common; FP8: then
 * their codes, as far apart, and scales.
 */
struct few_rows {
	char *p, *codes;
	float *sa;
	int nblocks;
};

/* eight elements of row r from column c on; FP8: called by whole half-warps, which have a block */
template <bool FP8>
DEV void few_put(const struct te_k_few_rows &f, const struct few_rows &to, int r, int c,
		 const float x[TE_V])
{
	const int k = (int)f.g.k;

	if constexpr (FP8) {
		const struct te_k_q q = {
			.epsilon = f.epsilon, .dtype = TE_D_E4M3, .pow2 = f.pow2
		};
		float amax = 0.0f, scale;

#pragma unroll
		for (int e = 0; e < TE_V; e++)
			amax = amax_of(amax, x[e]);
#pragma unroll
		for (int w = 8; w; w /= 2)
			amax = fmaxf(amax, __shfl_xor_sync(0xffffu << (threadIdx.x & 16), amax, w));
		scale = block_scale(q, amax);
		*(uint2 *)(to.codes + r * (k + FEW_ROWS_PAD) + c) = fp8x8(TE_D_E4M3, x, scale);
		if (threadIdx.x % 16 == 0)
			to.sa[r * to.nblocks + c / TE_K_BLOCK] = __fdiv_rn(1.0f, scale);
	} else {
		store_raw((bf16 *)(to.p + r * (2 * k + FEW_ROWS_PAD)) + c, pack<bf16>(x));
	}
}

/* the threads of a row, whole warps */
DEV int few_team(int m)
{
	return m > 4 ? THREADS / 8 : m > 2 ? THREADS / 4 : m > 1 ? THREADS / 2 : THREADS;
}

DEV void few_gain(const struct te_k_few_rows &f, int c, float gain[TE_V])
{
	if (c >= f.g.k)
		return;
	unpack(load_raw(f.gamma + c), gain);
	if (f.zero_centered)
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			gain[e] = add(1.0f, gain[e]);
}

/* rows of a to shared memory; with f.gamma their norm, and FP8 their codes. gain: of column c */
template <bool FP8>
DEV void few_fetch(const struct te_k_few_rows &f, const struct te_k_gemm &g, bool fused,
		   const struct few_rows &to, float *part, float gain[TE_V])
{
	const int k = (int)g.k, team = few_team((int)g.m);
	const int r = threadIdx.x / team, first = threadIdx.x % team * TE_V, step = team * TE_V;
	bf16 *row = (bf16 *)(to.p + r * (2 * k + FEW_ROWS_PAD));
	const bf16 *from = (const bf16 *)g.a + (int64_t)r * k;
	const int end = r < g.m ? k : 0;
	const float n = (float)k;
	float sum = 0.0f, rstd;

#pragma unroll 1
	for (int c = first; c < end; c += 4 * step) {
		raw<bf16> v[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			if (c + i * step < end)
				v[i] = load_raw(from + c + i * step);
#pragma unroll 1
		for (int at = c; at < min(end, c + 4 * step); at += step) {
			if (FP8 && !f.gamma) {
				float x[TE_V];

				unpack(v[0], x);
				few_put<FP8>(f, to, r, at, x);
			} else {
				store_raw(row + at, v[0]);
			}
			v[0] = v[1];
			v[1] = v[2];
			v[2] = v[3];
		}
	}
	if (!fused || !f.gamma)
		return;
#pragma unroll 1
	for (int c = first; c < end; c += step) {
		float v[TE_V];

		unpack(load_raw(row + c), v);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[e] = mul(v[e], v[e]);
		sum = add(sum, sum8(v));
	}
	sum = warp_sum(sum);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = sum;
	__syncthreads();
	sum = 0.0f;
#pragma unroll 1
	for (int i = 0; i < team / 32; i++)
		sum = add(sum, part[r * (team / 32) + i]);
	rstd = reciprocal_root(add(plain_quotient(sum, n, plain_reciprocal(n)), f.eps));
#pragma unroll 1
	for (int c = first; c < end; c += step) {
		float v[TE_V];

		unpack(load_raw(row + c), v);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[e] = round_to<bf16>(normed(v[e], 0.0f, rstd, gain[e]));
		few_gain(f, c + step, gain);
		few_put<FP8>(f, to, r, c, v);
	}
}

/* --- the product --------------------------------------------------------- */

/* an activation with the bits of act.cu */
DEV float few_act(int act, float x)
{
	const num v = x;
	num u = v;

	if (act == TE_K_FEW_ROWS_GELU)
		u = num(1.5957691f) * (v + num(0.044715f) * v * v * v);
	u = __frcp_rn(add(1.0f, expf(-u.v)));
	return u.v == 0.0f ? -0.0f : mul(x, u.v);
}

/* acc = the warp's part of the next tile, or half of a tile; x: this lane's bytes of its row */
template <bool FP8, int NB>
DEV void few_multiply(const struct te_k_gemm &g, struct few_next &next, uint4 *ring, few_shared &s,
		      int nbytes, int half_rows, const char *x, const float *sa, int &stage,
		      float acc[2][4])
{
	const int warp = threadIdx.x / 32;

#pragma unroll 1
	for (int k = warp * FEW_ROWS_STEP, left = nbytes; left > 0; k += STRIDE, left -= STRIDE) {
		const uint4 *mine = ring + stage * CHUNKS * THREADS;
		float two[2][4] = {};

		few_wait(next.stages);
		if (FP8)
			__syncwarp(); /* scales of other lanes */
#pragma unroll
		for (int i = 0; i < CHUNKS; i++) {
			float *d = FP8 ? two[i / 2] : acc[i % 2];
			uint4 u, v;

			if (k + i * GEMM_CHUNK >= nbytes)
				break;
			v = mine[i * 32];
			u = *(const uint4 *)(x + k + i * GEMM_CHUNK);
			if constexpr (FP8) {
#if __CUDA_ARCH__ >= 890
				e4m3_e4m3::mma(d, u.x, 0, u.y, 0, v.x, v.y);
				e4m3_e4m3::mma(d, u.z, 0, u.w, 0, v.z, v.w);
#endif
			} else {
				bf16_bf16::mma(d, u.x, 0, u.y, 0, v.x, v.y);
				bf16_bf16::mma(d, u.z, 0, u.w, 0, v.z, v.w);
			}
		}
		if constexpr (FP8) {
#pragma unroll
			for (int i = 0; i < KBLOCKS; i++) {
				float by;

				if (k + i * TE_K_BLOCK >= nbytes)
					break;
				by = mul(sa[k / TE_K_BLOCK + i], s.sb[stage][warp][i]);
				acc[0][0] = add(acc[0][0], mul(two[i][0], by));
				acc[0][1] = add(acc[0][1], mul(two[i][1], by));
			}
			__syncwarp();
		}
		stage = stage + 1 == next.stages ? 0 : stage + 1;
		few_load<FP8, NB>(g, next, ring, s, nbytes, half_rows);
	}
}

/* x: rows of a, stride bytes apart; sums: [2][FEW_ROWS_BATCH][WARPS][m][TILE] floats */
template <bool FP8, int NB, bool FUSED>
DEV void few_product(const struct te_k_gemm &g, const struct te_k_few_rows &f,
		     struct few_next &next, uint4 *ring, few_shared &s, int nbytes, const char *x,
		     int stride, const float *sa, int nblocks, float *sums)
{
	const int BATCH = FEW_ROWS_BATCH / NB; /* tiles whose sums are added at once */
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	const int group = lane / 4, in_group = lane % 4, m = (int)g.m, width = (int)g.n / NB;
	const int r = min(group, m - 1);
	/* the element that the thread stores, of a batch */
	const int b = threadIdx.x / (TILE * TILE), row = threadIdx.x / TILE % TILE;
	const int col = threadIdx.x % TILE;
	int stage = 0, parity = 0;

	x += r * stride + in_group * 16;
	sa += r * nblocks;
#pragma unroll 1
	for (int t = blockIdx.x; t < next.count; t += BATCH * gridDim.x, parity ^= 1) {
		const int mine = t + b * gridDim.x;
		const int64_t at = (int64_t)row * width + mine * TILE + col;
		const bool writes = b < BATCH && row < m && mine < next.count;
		const float c = writes && g.beta != 0.0f ? to_float(((const bf16 *)g.c)[at]) : 0.0f;
		float *to = sums + parity * (FEW_ROWS_BATCH * WARPS * TILE) * m;
		float y[NB];

#pragma unroll 1
		for (int i = 0; i < FEW_ROWS_BATCH; i++) {
			float acc[2][4] = {};

			if (t + i / NB * (int)gridDim.x >= next.count)
				break;
			few_multiply<FP8, NB>(g, next, ring, s, nbytes, width, x, sa, stage, acc);
			if (group < m)
				*(float2 *)&to[((i * WARPS + warp) * m + group) * TILE +
					       2 * in_group] =
					make_float2(add(acc[0][0], acc[1][0]),
						    add(acc[0][1], acc[1][1]));
		}
		/* sums of the batch after the next are written when these have been read */
		__syncthreads();
		if (!writes)
			continue;
#pragma unroll
		for (int half = 0; half < NB; half++) {
			const float *from = to + ((b * NB + half) * WARPS * m + row) * TILE + col;
			float sum = 0.0f;

#pragma unroll
			for (int w = 0; w < WARPS; w++)
				sum = add(sum, from[w * m * TILE]);
			y[half] = finish(g, sum, g.alpha, c,
					 g.bias ? to_float(((const bf16 *)g.bias)[half * width +
										  mine * TILE +
										  col]) :
						  0.0f);
		}
		if (FUSED && f.act != TE_K_FEW_ROWS_LINEAR) {
			y[0] = few_act(f.act, round_to<bf16>(y[0]));
			if (NB == 2)
				y[0] = mul(y[0], round_to<bf16>(y[NB - 1]));
		}
		((bf16 *)g.d)[at] = from_float<bf16>(y[0]);
	}
}

/* FUSED: f is used */
template <bool FP8, int NB, bool FUSED>
DEV void few_rows_body(const struct te_k_gemm &g, const struct te_k_few_rows &f)
{
	te_begin_launch();

	extern __shared__ uint4 memory[];
	__shared__ few_shared s;
	const int warp = threadIdx.x / 32, m = (int)g.m;
	const int nbytes = (int)g.k * (FP8 ? 1 : 2), width = (int)g.n / NB;
	const int xbytes = FEW_ROWS_XBYTES(m, (int)g.k, FP8, FUSED && f.gamma);
	const int left = (int)dynamic_smem() - m * FEW_ROWS_SUMS;
	const bool shared = FUSED || left >= 2 * FEW_ROWS_STAGE + xbytes;
	const int stages = min((left - (shared ? xbytes : 0)) / FEW_ROWS_STAGE,
			       FEW_ROWS_STAGES(90)) & ~1;
	uint4 *ring = memory + warp * CHUNKS * 32 + threadIdx.x % 32;
	float *sums = (float *)((char *)memory + stages * FEW_ROWS_STAGE);
	struct few_next next = { (int)blockIdx.x, width / TILE, 0, warp * FEW_ROWS_STEP, 0,
				 NULL, NULL, stages };
	struct few_rows a = { (char *)(sums + 2 * FEW_ROWS_BATCH * WARPS * TILE * m) };
	float gain[TE_V];

	if (!g.fixed)
		te_begin_wait();
	few_begin_rows<FP8>(g, next, nbytes, width);
#pragma unroll 1
	for (int i = 0; i < stages; i++)
		few_load<FP8, NB>(g, next, ring, s, nbytes, width);
	if (FUSED && f.gamma)
		few_gain(f, threadIdx.x % few_team(m) * TE_V, gain);
	te_begin_wait();
	a.codes = a.p + (FP8 && f.gamma ? m * (2 * (int)g.k + FEW_ROWS_PAD) : 0);
	a.sa = (float *)(a.codes + m * (nbytes + FEW_ROWS_PAD));
	a.nblocks = (int)(g.k / TE_K_BLOCK);
	if (shared) {
		few_fetch<FP8>(f, g, FUSED, a, s.part, gain);
		__syncthreads();
	}
	few_product<FP8, NB, FUSED>(g, f, next, ring, s, nbytes,
				    shared ? a.codes : (const char *)g.a,
				    nbytes + (shared ? FEW_ROWS_PAD : 0), a.sa, a.nblocks, sums);
}

#define BOUNDS __launch_bounds__(THREADS, 2)
extern "C" __global__ void BOUNDS
te_k_gemm_few_rows_bf16(const __grid_constant__ struct te_k_gemm a)
{
	const struct te_k_few_rows none = {};

	few_rows_body<false, 1, false>(a, none);
}

#define FEW_ROWS(NAME, FP8, NB)                                                         \
	extern "C" __global__ void BOUNDS te_k_few_rows_##NAME(                         \
		const __grid_constant__ struct te_k_few_rows a)                         \
	{                                                                               \
		few_rows_body<FP8, NB, true>(a.g, a);                                   \
	}
FEW_ROWS(bf16, false, 1)
FEW_ROWS(glu_bf16, false, 2)
#if __CUDA_ARCH__ >= 890
FEW_ROWS(e4m3, true, 1)
FEW_ROWS(glu_e4m3, true, 2)
#endif
#undef FEW_ROWS
