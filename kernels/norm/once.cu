/*
 * once.cu - gradients of LayerNorm and RMSNorm of BF16 in one pass: dx, its FP8 codes, and partial
 * sums.
 *
 *  kernel         shapes           blocks   threads   shared                     B/element
 *  norm_onceR     dy, x, dres T    64 rows  32..1024  S R rows of each           6, with dres 8
 *  norm_castR     the same, and q  64 rows  32..512   the same, codes of 32 rows the same, FP8 2
 *
 * A thread has 8 columns of all rows, R of them at a time, and adds the terms of a column in the
 * order of the rows, so that the sums have the bits of norm_dw. S groups of R rows are copied to
 * shared memory ahead, where the 16 bytes of adjacent threads are adjacent; only the thread that
 * copied an element reads it. With the bytes of a thread adjacent instead, backward took 1.5 times
 * as long. Column-wise codes are collected in shared memory and stored in runs of 32 bytes: a
 * sector that is written by halves is written to memory twice, since rows of other blocks push it
 * out of L2 between both.
 *
 * Sums of a row do not depend on R: over the columns of a thread in order, over the lanes of a warp
 * 16, 8, 4, 2 and 1 apart, then over the warps, of which 4 lanes each add every fourth.
 */
#include "kernels/norm/geometry.h"
#include "kernels/norm/rows.cuh"

DEV void unpack4(const uint4 &q, float v[TE_V])
{
	raw<bf16> r;

	r.q[0] = q;
	unpack(r, v);
}

/*
 * HOLD: a thread keeps the terms of dx in registers over the barrier; otherwise it reads dy and x
 * again. CAST: FP8 codes and sums of dx.
 */
template <int R, int S, bool HOLD, bool CAST>
DEV void norm_once_body(const struct te_k_norm_both &a)
{
	constexpr int N = 2 * R, EACH = 32 / N;
	extern __shared__ uint4 ring[];
	__shared__ float2 stats[TE_K_PART_ROWS];
	__shared__ float part[2][N][32];
	const int tid = threadIdx.x, nwarps = blockDim.x / 32, warp = tid / 32, lane = tid % 32;
	const int64_t r0 = (int64_t)blockIdx.x * TE_K_PART_ROWS;
	const int cols = (int)a.cols, c = tid * TE_V;
	const int nrows = clamp_int(a.rows - r0, 0, TE_K_PART_ROWS);
	const bool in = c < cols;
	const int stage = (a.dres ? 3 : 2) * R; /* units of 16 bytes */
	const int step = blockDim.x; /* a unit of each thread */
	uint4 *const mine = ring + tid;
	const float n = (float)cols, per = plain_reciprocal(n);
	const float centre = a.mean ? 1.0f : 0.0f;
	const int64_t first = r0 * a.cols + c;
	const bf16 *dy = (const bf16 *)a.dy + first, *x = (const bf16 *)a.x + first;
	const bf16 *dres = (const bf16 *)a.dres + first;
	bf16 *dx = (bf16 *)a.dx + first;
	uint8_t *row = (uint8_t *)a.q.row + first;
	uint32_t *const codes = (uint32_t *)(ring + blockDim.x * stage * S);
	const int pitch = cols + NORM_ONCE_PAD;
	float gain[TE_V], gamma[TE_V], beta[TE_V], bias[TE_V], scale = 1.0f, m = 0.0f;
	uint2 quad[4] = {}; /* codes of 4 rows */
	int left = in ? nrows : 0; /* rows to fetch */
	uint4 *to = mine;

	if (CAST && noop_set(a.q.noop))
		return;
	auto fetch = [&]() {
		if (left >= R) {
#pragma unroll
			for (int r = 0; r < R; r++) {
				copy_ahead(to + r * step, dy, 0);
				copy_ahead(to + (R + r) * step, x, 0);
				dy += cols;
				x += cols;
			}
			if (a.dres)
#pragma unroll
				for (int r = 0; r < R; r++) {
					copy_ahead(to + (2 * R + r) * step, dres, 0);
					dres += cols;
				}
		} else if (left > 0) {
			for (int r = 0; r < R; r++) {
				if (r >= left) {
					to[r * step] = to[(R + r) * step] =
						make_uint4(0, 0, 0, 0);
					continue;
				}
				copy_ahead(to + r * step, dy + r * cols, 0);
				copy_ahead(to + (R + r) * step, x + r * cols, 0);
				if (a.dres)
					copy_ahead(to + (2 * R + r) * step, dres + r * cols, 0);
			}
		}
		asm volatile("cp.async.commit_group;" ::: "memory");
		left -= R;
		to = to == mine + (S - 1) * stage * step ? mine : to + stage * step;
	};

#pragma unroll
	for (int g = 0; g < S - 1; g++)
		fetch();
	for (int r = tid; r < TE_K_PART_ROWS; r += blockDim.x)
		stats[r] = r < nrows ? make_float2(a.mean ? a.mean[r0 + r] : 0.0f, a.rstd[r0 + r]) :
				       make_float2(0.0f, 0.0f);
	if (CAST) {
		scale = q_scale(&a.q);
		q_scale_inv(&a.q, scale);
	}
	if (in)
		load_vec(a.gamma + c, gain);
#pragma unroll
	for (int e = 0; e < TE_V; e++) {
		gain[e] = a.zero_centered ? add(1.0f, gain[e]) : gain[e];
		gamma[e] = beta[e] = bias[e] = 0.0f;
	}
	__syncthreads();
	uint4 *slot = mine;
#pragma unroll 1
	for (int g = 0; g * R < nrows; g++) {
		float xhat[HOLD ? R : 1][TE_V], gg[HOLD ? R : 1][TE_V], sums[N], mean = 0.0f;

		fetch();
		asm volatile("cp.async.wait_group %0;" ::"n"(S - 1) : "memory");
#pragma unroll
		for (int i = 0; i < N; i++)
			sums[i] = 0.0f;
		if (in)
#pragma unroll
			for (int r = 0; r < R; r++) {
				const float2 s = stats[g * R + r];
				float d[TE_V], v[TE_V];

				unpack4(slot[r * step], d);
				unpack4(slot[(R + r) * step], v);
#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					const float h = mul(sub(v[e], s.x), s.y);

					gamma[e] = add(gamma[e], mul(d[e], h));
					beta[e] = add(beta[e], d[e]);
					d[e] = mul(d[e], gain[e]);
					sums[2 * r] = add(sums[2 * r], d[e]);
					sums[2 * r + 1] = __fmaf_rn(d[e], h, sums[2 * r + 1]);
					if (HOLD) {
						gg[HOLD ? r : 0][e] = d[e];
						xhat[HOLD ? r : 0][e] = h;
					}
				}
			}
		sums[0] = warp_sums<N>(sums);
		if (lane % EACH == 0)
			part[g & 1][lane / EACH][warp] = sums[0];
		__syncthreads();
		if (lane % EACH < 4)
#pragma unroll 2
			for (int w = lane % EACH; w < nwarps; w += 4)
				mean = add(mean, part[g & 1][lane / EACH][w]);
		mean = add(mean, __shfl_xor_sync(0xffffffffu, mean, 2));
		mean = add(mean, __shfl_xor_sync(0xffffffffu, mean, 1));
		mean = plain_quotient(mean, n, per);
#pragma unroll
		for (int r = 0; r < R; r++) {
			const float mean_g =
				mul(centre, __shfl_sync(0xffffffffu, mean, 2 * r * EACH));
			const float mean_gx = __shfl_sync(0xffffffffu, mean, (2 * r + 1) * EACH);
			const float2 s = stats[g * R + r];
			float d[TE_V], h[TE_V];
			raw<bf16> out;

			if (!in)
				continue;
			if (HOLD) {
#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					d[e] = gg[HOLD ? r : 0][e];
					h[e] = xhat[HOLD ? r : 0][e];
				}
			} else {
				unpack4(slot[r * step], d);
				unpack4(slot[(R + r) * step], h);
#pragma unroll
				for (int e = 0; e < TE_V; e++) {
					d[e] = mul(d[e], gain[e]);
					h[e] = mul(sub(h[e], s.x), s.y);
				}
			}
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				d[e] = mul(s.y, __fmaf_rn(-h[e], mean_gx, sub(d[e], mean_g)));
			if (a.dres) {
				unpack4(slot[(2 * R + r) * step], h);
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					d[e] = add(d[e], h[e]);
			}
			out = pack<bf16>(d);
			if (g * R + r < nrows)
				store_raw(dx, out);
			dx += cols;
			if (!CAST)
				continue;
			unpack(out, d);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				m = amax_of(m, d[e]);
				bias[e] = add(bias[e], d[e]);
			}
			if (R < 4)
				quad[r] = quad[(r + R) % 4];
			if (R == 1)
				quad[1] = quad[2], quad[2] = quad[3];
			quad[r + 4 - R] = fp8x8(a.q.dtype, d, scale);
			if (a.q.row && g * R + r < nrows)
				*(uint2 *)row = quad[r + 4 - R];
			row += cols;
		}
		slot = slot == mine + (S - 1) * stage * step ? mine : slot + stage * step;
		if (!CAST || !a.q.col)
			continue;
		if (in && (g + 1) * R % 4 == 0) {
			uint32_t *at = codes + g * R / 4 % 8 * pitch + c;

#pragma unroll
			for (int half = 0; half < 2; half++) {
				uint32_t rows[4], w[4];

#pragma unroll
				for (int r = 0; r < 4; r++)
					rows[r] = half ? quad[r].y : quad[r].x;
				transpose4(rows, w);
				*(uint4 *)(at + 4 * half) = make_uint4(w[0], w[1], w[2], w[3]);
			}
		}
		if ((g + 1) * R % 32 == 0 || (g + 1) * R >= nrows) {
			const int64_t q0 = r0 + g * R / 32 * 32 + lane % 2 * 16;
			const int at = warp * 256 + lane / 2;
			const uint32_t *w = codes + lane % 2 * 4 * pitch + at;
			uint8_t *col = (uint8_t *)a.q.col + at * a.rows + q0;

			__syncwarp();
			if (q0 < a.rows)
#pragma unroll 4
				for (int i = 0; i < 16 && at + i * 16 < cols; i++) {
					*(uint4 *)col = make_uint4(w[0], w[pitch], w[2 * pitch],
								   w[3 * pitch]);
					w += 16;
					col += 16 * a.rows;
				}
			__syncwarp();
		}
	}
	if (CAST && a.q.amax)
		block_amax(a.q.amax, m);
	if (!in)
		return;
	store_vec(a.part_gamma + blockIdx.x * a.cols + c, gamma);
	if (a.part_beta)
		store_vec(a.part_beta + blockIdx.x * a.cols + c, beta);
	if (CAST && a.part_dx)
		store_vec(a.part_dx + blockIdx.x * a.cols + c, bias);
}
#define FUNC(NAME, COLS, BLOCKS, R, S, HOLD, LIMITS)                                              \
	TE_KERNEL(norm_once_##NAME, norm_both, ((COLS) / TE_V, BLOCKS),                           \
		  norm_once_body<R, S, HOLD, false>(a))
NORM_ONCE(FUNC)
#undef FUNC
#define FUNC(NAME, COLS, BLOCKS, R, S, HOLD, LIMITS)                                              \
	TE_KERNEL(norm_once_cast_##NAME, norm_both, ((COLS) / TE_V, BLOCKS),                      \
		  norm_once_body<R, S, HOLD, true>(a))
NORM_ONCE_CAST(FUNC)
#undef FUNC
