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
 * A block has tiles of 8 columns of d, which are 8 rows of b; they are the grid apart. It
 * multiplies two at a time, with _glu the two halves of one: their rows are the 16 rows of the
 * first operand of mma.sync, and a's rows the columns of the second. Warp w of 8 has
 * FEW_ROWS_CHUNKS chunks of k in every 8 times as many: a step. A lane copies the 16 bytes of a
 * chunk that it multiplies from memory to its own bytes of shared memory, up to 6 steps ahead and
 * across tiles. Threads wait for each other when they add the sums of the warps, in their order,
 * of FEW_ROWS_BATCH tiles. Rows have the same bits whatever m is. The order of a sum over k is
 * free, and so is the assignment of elements to lanes: see gemm.cu.
 *
 * g.fixed: no kernel that may still run writes b, or gamma. Then the first steps are loaded before
 * the preceding kernels are complete, so that memory is read while kernels wait for each other. Of
 * the instructions, which each launch reads from memory, there are few: loops are not unrolled.
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
/* bytes of k of the step of all warps */
#define STRIDE (WARPS * FEW_ROWS_STEP)

DEV unsigned dynamic_smem(void)
{
	unsigned n;

	asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(n));
	return n;
}

struct few_shared {
	float sb[FEW_ROWS_STAGES(90)][WARPS][2];
	float part[WARPS]; /* sums of a norm */
};

/* --- b ------------------------------------------------------------------- */

/*
 * The step that a lane copies next: FEW_ROWS_STEP bytes of k of a pair of tiles. The last pair may
 * be one tile.
 */
struct few_next {
	const char *from;  /* the lane's bytes of the first tile */
	int64_t pair;	   /* bytes to the second tile's */
	int64_t next;	   /* bytes from the end of a pair to the next pair */
	int index, ntiles; /* the first tile, and the number of all blocks' */
	int left, steps;   /* steps of the pair: still to copy, and all */
	int count;	   /* steps of all pairs of the block */
	int stage, stages; /* the next part of the ring, and their number */
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

template <int NB> DEV void few_begin(const struct te_k_gemm &g, struct few_next &at, int nbytes)
{
	const int grid = gridDim.x, row = blockIdx.x * TILE + threadIdx.x % 32 / 4;

	at.index = blockIdx.x;
	at.ntiles = (int)g.n / (NB * TILE);
	at.steps = (nbytes + STRIDE - 1) / STRIDE;
	at.left = at.steps;
	at.count = at.steps * ((at.ntiles - 1 - at.index) / (grid * (3 - NB)) + 1);
	at.from = (const char *)g.b + (int64_t)row * nbytes + threadIdx.x / 32 * FEW_ROWS_STEP +
		  threadIdx.x % 4 * 16;
	at.pair = (int64_t)(NB > 1 ? at.ntiles : grid) * TILE * nbytes;
	at.next = (int64_t)grid * (3 - NB) * TILE * nbytes - at.steps * STRIDE;
	at.stage = 0;
}

template <bool FP8, int NB>
DEV void few_load(const struct te_k_gemm &g, struct few_next &at, uint4 *ring, few_shared &s,
		  int nbytes, bool loads)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

	if (loads) {
		const int k = warp * FEW_ROWS_STEP + (at.steps - at.left) * STRIDE;
		const int tiles = NB > 1 || at.index + (int)gridDim.x < at.ntiles ? 2 : 1;
		const uint32_t to = smem_addr(ring + at.stage * (2 * CHUNKS) * THREADS);

#pragma unroll
		for (int i = 0; i < 2 * CHUNKS; i++)
			if (k < nbytes && i / CHUNKS < tiles)
				cp_async16_line(to + i * 512, at.from + i / CHUNKS * at.pair +
								      i % CHUNKS * GEMM_CHUNK);
		if (FP8 && lane < tiles && k < nbytes) {
			const int row = at.index + lane * (NB > 1 ? at.ntiles : (int)gridDim.x);

			cp_async4(smem_addr(&s.sb[at.stage][warp][lane]),
				  g.sb + (int64_t)(row / (TE_K_BLOCK / TILE)) *
						 te_k_scale_ld(TE_K_SCALING_128X128, 0, g.k) +
					  k / TE_K_BLOCK, 4);
		}
		at.from += STRIDE;
		if (!--at.left) {
			at.left = at.steps;
			at.from += at.next;
			at.index += gridDim.x * (3 - NB);
		}
		at.stage = at.stage + 1 == at.stages ? 0 : at.stage + 1;
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
#pragma unroll
	for (int i = 0; i < WARPS; i++)
		if (i < team / 32)
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

/* acc += the warp's part of a step of two tiles; x: this lane's bytes; sa: scales of two rows */
template <bool FP8>
DEV void few_multiply(const uint4 *mine, const few_shared &s, int nbytes, int k, const char *x,
		      const float *const sa[2], int stage, float acc[4])
{
	float two[4] = {};
	float *const d = FP8 ? two : acc;

#pragma unroll
	for (int i = 0; i < CHUNKS; i++) {
		uint4 u = {}, v = {}, w = {};

		if (k < nbytes) {
			u = *(const uint4 *)(x + k + i * GEMM_CHUNK);
			v = mine[i * 32];
			w = mine[(CHUNKS + i) * 32];
		}
		if constexpr (FP8) {
#if __CUDA_ARCH__ >= 890
			e4m3_e4m3::mma(d, v.x, w.x, v.y, w.y, u.x, u.y);
			e4m3_e4m3::mma(d, v.z, w.z, v.w, w.w, u.z, u.w);
#endif
		} else {
			bf16_bf16::mma(d, v.x, w.x, v.y, w.y, u.x, u.y);
			bf16_bf16::mma(d, v.z, w.z, v.w, w.w, u.z, u.w);
		}
	}
	if (FP8 && k < nbytes) {
		const float *sb = s.sb[stage][threadIdx.x / 32];

#pragma unroll
		for (int i = 0; i < 4; i++)
			acc[i] = add(acc[i],
				     mul(two[i], mul(sa[i % 2][k / TE_K_BLOCK], sb[i / 2])));
	}
}

/* the element of d that the thread stores, of a batch of tiles */
template <int NB> struct few_out {
	int64_t at;
	bool writes;
	float c, bias[NB];
};

/* finds it for the batch from tile t on */
template <int NB>
DEV void few_expect(const struct te_k_gemm &g, struct few_out<NB> &o, int t)
{
	const int b = threadIdx.x / (TILE * TILE), row = threadIdx.x / TILE % TILE;
	const int width = (int)g.n / NB, mine = t + b * gridDim.x;
	const int at = mine * TILE + threadIdx.x % TILE;

	o.writes = b < FEW_ROWS_BATCH / NB && row < (int)g.m && mine < width / TILE;
	o.at = (int64_t)row * width + at;
	o.c = o.writes && g.beta != 0.0f ? to_float(((const bf16 *)g.c)[o.at]) : 0.0f;
#pragma unroll
	for (int half = 0; half < NB; half++)
		o.bias[half] = o.writes && g.bias ?
				       to_float(((const bf16 *)g.bias)[half * width + at]) : 0.0f;
}

/* the warp's sums of two tiles, n and the next, to sums [FEW_ROWS_BATCH][WARPS][m][TILE] */
DEV void few_sum(float *sums, int n, int m, float acc[4])
{
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const int r = threadIdx.x % 4 * 2 + e % 2;
		const int at = (n + e / 2) * WARPS + threadIdx.x / 32;

		if (r < m)
			sums[(at * m + r) * TILE + threadIdx.x % 32 / 4] = acc[e];
		acc[e] = 0.0f;
	}
}

/* stores it; to: sums of the batch */
template <int NB, bool FUSED>
DEV void few_store(const struct te_k_gemm &g, const struct te_k_few_rows &f,
		   const struct few_out<NB> &o, const float *to)
{
	const int b = threadIdx.x / (TILE * TILE), row = threadIdx.x / TILE % TILE, m = (int)g.m;
	float y[NB];

#pragma unroll
	for (int half = 0; half < NB; half++) {
		const float *from = to + ((b * NB + half) * WARPS * m + row) * TILE +
				    threadIdx.x % TILE;
		float sum = 0.0f;

#pragma unroll
		for (int w = 0; w < WARPS; w++)
			sum = add(sum, from[w * m * TILE]);
		y[half] = finish(g, sum, g.alpha, o.c, o.bias[half]);
	}
	if (FUSED && f.act != TE_K_FEW_ROWS_LINEAR) {
		y[0] = few_act(f.act, round_to<bf16>(y[0]));
		if (NB == 2)
			y[0] = mul(y[0], round_to<bf16>(y[NB - 1]));
	}
	((bf16 *)g.d)[o.at] = from_float<bf16>(y[0]);
}

/* FUSED: f is used */
template <bool FP8, int NB, bool FUSED>
DEV void few_rows_body(const struct te_k_gemm &g, const struct te_k_few_rows &f)
{
	te_begin_launch();

	extern __shared__ uint4 memory[];
	__shared__ few_shared s;
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m = (int)g.m;
	const int nbytes = (int)g.k * (FP8 ? 1 : 2);
	const int xbytes = FEW_ROWS_XBYTES(m, (int)g.k, FP8, FUSED && f.gamma);
	const int left = (int)dynamic_smem() - m * FEW_ROWS_SUMS;
	const bool shared = FUSED || left >= 2 * FEW_ROWS_STAGE + xbytes;
	const int stages = min((left - (shared ? xbytes : 0)) / FEW_ROWS_STAGE,
			       FEW_ROWS_STAGES(90)) & ~1;
	uint4 *ring = memory + warp * (2 * CHUNKS) * 32 + lane;
	float *sums = (float *)((char *)memory + stages * FEW_ROWS_STAGE);
	struct few_rows a = { (char *)(sums + 2 * FEW_ROWS_BATCH * WARPS * TILE * m) };
	const int first = warp * FEW_ROWS_STEP;
	const char *x;
	const float *sa[2];
	float gain[TE_V], acc[4] = {};
	struct few_next next;
	struct few_out<NB> out;
	int k = first, stage = 0, n = 0, t = blockIdx.x, parity = 0;

	if (!g.fixed)
		te_begin_wait();
	next.stages = stages;
	few_begin<NB>(g, next, nbytes);
	if (FUSED && f.gamma)
		few_gain(f, threadIdx.x % few_team(m) * TE_V, gain);
	a.codes = a.p + (FP8 && f.gamma ? m * (2 * (int)g.k + FEW_ROWS_PAD) : 0);
	a.sa = (float *)(a.codes + m * (nbytes + FEW_ROWS_PAD));
	a.nblocks = (int)(g.k / TE_K_BLOCK);
	x = (shared ? a.codes : (const char *)g.a) +
	    min(lane / 4, m - 1) * (nbytes + (shared ? FEW_ROWS_PAD : 0)) + lane % 4 * 16;
#pragma unroll
	for (int i = 0; i < 2; i++)
		sa[i] = a.sa + min(lane % 4 * 2 + i, m - 1) * a.nblocks;

#pragma unroll 1
	for (int i = 0; i < stages; i++)
		few_load<FP8, NB>(g, next, ring, s, nbytes, i < next.count);
	te_begin_wait();
	few_expect<NB>(g, out, t);
	if (shared) {
		few_fetch<FP8>(f, g, FUSED, a, s.part, gain);
		__syncthreads();
	}
#pragma unroll 1
	for (int i = 0; i < next.count;) {
		few_wait(stages);
		if (FP8)
			__syncwarp(); /* scales of other lanes */
		few_multiply<FP8>(ring + stage * (2 * CHUNKS) * THREADS, s, nbytes, k, x, sa, stage,
				  acc);
		if (FP8)
			__syncwarp();
		few_load<FP8, NB>(g, next, ring, s, nbytes, i + stages < next.count);
		i++;
		k += STRIDE;
		stage = stage + 1 == stages ? 0 : stage + 1;
		if (k - first < nbytes)
			continue;
		k = first;
		few_sum(sums + parity * (FEW_ROWS_BATCH * WARPS * TILE) * m, n, m, acc);
		n += 2;
		if (n < FEW_ROWS_BATCH && i < next.count)
			continue;
		n = 0;
		/* sums of the batch after the next are written when these have been read */
		__syncthreads();
		if (out.writes)
			few_store<NB, FUSED>(g, f, out,
					     sums + parity * (FEW_ROWS_BATCH * WARPS * TILE) * m);
		parity ^= 1;
		t += FEW_ROWS_BATCH / NB * gridDim.x;
		few_expect<NB>(g, out, t);
	}
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
