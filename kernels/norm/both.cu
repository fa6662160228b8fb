/*
 * both.cu - gradients of LayerNorm and RMSNorm in one pass: dx and partial sums. once.cu has BF16
 * of whole vectors.
 *
 *  kernel          shapes         blocks   threads   shared          B/element (FP32)
 *  norm_bothR      dy, x, dres T  64 rows  32..512   2 R rows each   12, with dres 16
 *  norm_both_oddR  the same       64 rows  32..1024  0               the same
 *
 * A thread has the same few columns of all rows, R of them at a time, and adds the terms of a
 * column in the order of the rows, so that the sums have the bits of norm_dw. Rows are copied to
 * shared memory ahead; only the thread that copied an element reads it.
 *
 * Sums of a row: over the columns of a thread in pairs, over the lanes of a warp 16, 8, 4, 2 and 1
 * apart, then over the warps: of 16 / R lanes each adds every 16 / R-th warp, and these are added
 * as lanes before.
 */
#include "kernels/norm/geometry.h"
#include "kernels/norm/norm.cuh"
#include "kernels/tile.cuh"

/* V elements as stored in memory */
template <class T, int V> struct some {
	uint32_t w[V * sizeof(T) / 4];
};

template <int V> DEV void some_unpack(const some<float, V> &s, float v[V])
{
#pragma unroll
	for (int e = 0; e < V; e++)
		v[e] = __uint_as_float(s.w[e]);
}

template <int V> DEV void some_unpack(const some<bf16, V> &s, float v[V])
{
#pragma unroll
	for (int e = 0; e < V; e++)
		v[e] = __uint_as_float(e % 2 ? s.w[e / 2] & 0xffff0000u : s.w[e / 2] << 16);
}

template <int V> DEV void some_pack(const float v[V], some<float, V> &s)
{
#pragma unroll
	for (int e = 0; e < V; e++)
		s.w[e] = __float_as_uint(v[e]);
}

template <int V> DEV void some_pack(const float v[V], some<bf16, V> &s)
{
#pragma unroll
	for (int e = 0; e < V; e += 2)
		s.w[e / 2] = pack_bf16x2(v[e], v[e + 1]);
}

/* N words, of which units of 16 bytes are step units apart */
template <int N> DEV void words_get(const void *p, int step, uint32_t w[N])
{
	if constexpr (N == 1) {
		w[0] = *(const uint32_t *)p;
	} else if constexpr (N == 2) {
		const uint2 q = *(const uint2 *)p;

		w[0] = q.x;
		w[1] = q.y;
	} else {
#pragma unroll
		for (int i = 0; i < N / 4; i++) {
			const uint4 q = ((const uint4 *)p)[i * step];

			w[4 * i] = q.x;
			w[4 * i + 1] = q.y;
			w[4 * i + 2] = q.z;
			w[4 * i + 3] = q.w;
		}
	}
}

template <int N> DEV void words_put(void *p, const uint32_t w[N])
{
	if constexpr (N == 1) {
		*(uint32_t *)p = w[0];
	} else if constexpr (N == 2) {
		*(uint2 *)p = make_uint2(w[0], w[1]);
	} else {
#pragma unroll
		for (int i = 0; i < N / 4; i++)
			((uint4 *)p)[i] =
				make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
	}
}

/* queues the copy of NBYTES to shared memory, where units of 16 bytes are step units apart */
template <int NBYTES> DEV void copy_some(void *to, const void *from, int step)
{
	if constexpr (NBYTES == 8) {
		asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(
				     (uint32_t)__cvta_generic_to_shared(to)),
			     "l"(from)
			     : "memory");
	} else {
#pragma unroll
		for (int i = 0; i < NBYTES / 16; i++)
			copy_ahead((uint4 *)to + i * step, (const bf16 *)from + i * 8, 0);
	}
}

template <int V> DEV float sum_of(const float v[V])
{
	const float s = add(add(v[0], v[1]), add(v[2], v[3]));

	if constexpr (V == 4)
		return s;
	else
		return add(s, add(add(v[4], v[5]), add(v[6], v[7])));
}

/* what dx of R rows is computed from: dy * gain and xhat; res: the residual's gradient */
template <class T, int V, int R> struct norm_terms {
	float g[R][V], xhat[R][V];
	some<T, V> res[R];
};

/*
 * PIPE, for rows of few warps and few blocks: the sums of a group are computed before dx of the
 * previous group, which does not wait for the barrier between them.
 */
template <class T, int V, int R, bool VEC, bool PIPE>
DEV void norm_both_body(const struct te_k_norm_both &a)
{
	constexpr int W = V * (int)sizeof(T) / 4, NBYTES = 4 * W;
	constexpr int STAGES = NORM_BOTH_STAGES;
	constexpr bool AGAIN = R == 1 || !VEC; /* load dy and x again instead of holding terms */
	constexpr int N = 2 * R, EACH = 32 / N;
	extern __shared__ uint4 ahead[];
	__shared__ float2 stats[TE_K_PART_ROWS];
	__shared__ float part[2][N][32];
	const int tid = threadIdx.x, nthreads = blockDim.x, nwarps = nthreads / 32;
	const int warp = tid / 32, lane = tid % 32;
	const int64_t r0 = (int64_t)blockIdx.x * TE_K_PART_ROWS, c = (int64_t)tid * V;
	const int nrows = clamp_int(a.rows - r0, 0, TE_K_PART_ROWS);
	const int ngroups = (nrows + R - 1) / R;
	const int ncols = clamp_int(a.cols - c, 0, V);
	const int narrays = a.dres ? 3 : 2;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	const T *dy = (const T *)a.dy + r0 * a.cols + c, *x = (const T *)a.x + r0 * a.cols + c;
	const T *dres = (const T *)a.dres + r0 * a.cols + c;
	T *dx = (T *)a.dx + r0 * a.cols + c;
	float gain[V], gamma[V], beta[V];

	/* the memory of array i of row r of group g, for this thread */
	auto slot = [&](int g, int r, int i) {
		constexpr int UNIT = NBYTES < 16 ? NBYTES : 16;

		return (char *)ahead + (((g % STAGES) * R + r) * narrays + i) * NBYTES * nthreads +
		       tid * UNIT;
	};
	auto fetch = [&](int g) {
		if (VEC && g < ngroups)
#pragma unroll
			for (int r = 0; r < R; r++) {
				const int64_t at = (int64_t)(g * R + r) * a.cols;

				if (!ncols || g * R + r >= nrows)
					continue;
				copy_some<NBYTES>(slot(g, r, 0), dy + at, nthreads);
				copy_some<NBYTES>(slot(g, r, 1), x + at, nthreads);
				if (a.dres)
					copy_some<NBYTES>(slot(g, r, 2), dres + at, nthreads);
			}
		asm volatile("cp.async.commit_group;" ::: "memory");
	};
	/* this thread's elements of array i, which begins at p */
	auto get = [&](int g, int r, int i, const T *p, float v[V]) {
		some<T, V> s;

		if (VEC) {
			words_get<W>(slot(g, r, i), nthreads, s.w);
			some_unpack<V>(s, v);
		} else {
			p += (int64_t)(g * R + r) * a.cols;
#pragma unroll
			for (int e = 0; e < V; e++)
				v[e] = e < ncols ? to_float(p[e]) : 0.0f;
		}
	};
	auto get_gain = [&]() {
		some<float, V> s;

		if (VEC && ncols) {
			words_get<V>(a.gamma + c, 1, s.w);
			some_unpack<V>(s, gain);
		} else {
#pragma unroll
			for (int e = 0; e < V; e++)
				gain[e] = e < ncols ? a.gamma[c + e] : 0.0f;
		}
#pragma unroll
		for (int e = 0; e < V; e++)
			gain[e] = a.zero_centered ? add(1.0f, gain[e]) : gain[e];
	};
	auto put_sums = [&](float *sums, const float v[V]) {
		float *to = sums + blockIdx.x * a.cols + c;
		some<float, V> s;

		if (VEC && ncols) {
			some_pack<V>(v, s);
			words_put<V>(to, s.w);
			return;
		}
#pragma unroll
		for (int e = 0; e < V; e++)
			if (e < ncols)
				to[e] = v[e];
	};

#pragma unroll
	for (int g = 0; g < STAGES - !PIPE; g++)
		fetch(g);
	for (int r = tid; r < nrows; r += nthreads)
		stats[r] = make_float2(a.mean ? a.mean[r0 + r] : 0.0f, a.rstd[r0 + r]);
	if (VEC)
		get_gain();
#pragma unroll
	for (int e = 0; e < V; e++)
		gamma[e] = beta[e] = 0.0f;
	__syncthreads();
	/* the sums of group g, whose terms h receives */
	auto begin = [&](int g, struct norm_terms<T, V, R> &h) {
		float sums[N];

		asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
#pragma unroll
		for (int r = 0; r < R; r++) {
			const bool in = ncols && g * R + r < nrows;
			const float2 s = in ? stats[g * R + r] : make_float2(0.0f, 0.0f);
			float d[V], v[V];

			sums[2 * r] = sums[2 * r + 1] = 0.0f;
			if (!in)
				continue;
			get(g, r, 0, dy, d);
			get(g, r, 1, x, v);
			if (PIPE && a.dres)
				words_get<W>(slot(g, r, 2), nthreads, h.res[r].w);
			if (!VEC)
				get_gain();
#pragma unroll
			for (int e = 0; e < V; e++) {
				const float xhat = mul(sub(v[e], s.x), s.y);

				gamma[e] = add(gamma[e], mul(d[e], xhat));
				beta[e] = add(beta[e], d[e]);
				h.g[r][e] = d[e] = VEC || e < ncols ? mul(d[e], gain[e]) : 0.0f;
				h.xhat[r][e] = xhat;
				v[e] = VEC || e < ncols ? mul(d[e], xhat) : 0.0f;
			}
			if (a.mean)
				sums[2 * r] = sum_of<V>(d);
			sums[2 * r + 1] = sum_of<V>(v);
		}
		if (PIPE)
			fetch(g + STAGES);
		sums[0] = warp_sums<N>(sums);
		if (lane % EACH == 0)
			part[g & 1][lane / EACH][warp] = sums[0];
	};
	/* dx of group g, after a barrier */
	auto end = [&](int g, struct norm_terms<T, V, R> &h) {
		float mean = 0.0f;

		for (int w = lane % EACH; w < nwarps; w += EACH)
			mean = add(mean, part[g & 1][lane / EACH][w]);
#pragma unroll
		for (int d = EACH / 2; d; d /= 2)
			mean = add(mean, __shfl_xor_sync(0xffffffffu, mean, d));
		mean = plain_quotient(mean, n, per);
#pragma unroll
		for (int r = 0; r < R; r++) {
			const bool in = ncols && g * R + r < nrows;
			const int64_t at = (int64_t)(g * R + r) * a.cols;
			const float mean_g = __shfl_sync(0xffffffffu, mean, 2 * r * EACH);
			const float mean_gx = __shfl_sync(0xffffffffu, mean, (2 * r + 1) * EACH);
			float d[V], res[V];
			some<T, V> out;
			float2 s;

			if (!in)
				continue;
			s = stats[g * R + r];
			if (AGAIN) {
				float v[V];

				get(g, r, 0, dy, d);
				get(g, r, 1, x, v);
				if (!VEC)
					get_gain();
#pragma unroll
				for (int e = 0; e < V; e++) {
					h.g[r][e] = mul(d[e], gain[e]);
					h.xhat[r][e] = mul(sub(v[e], s.x), s.y);
				}
			}
			if (PIPE && a.dres)
				some_unpack<V>(h.res[r], res);
			else if (a.dres)
				get(g, r, 2, dres, res);
#pragma unroll
			for (int e = 0; e < V; e++) {
				d[e] = sub(h.g[r][e], mean_g);
				d[e] = mul(s.y, sub(d[e], mul(h.xhat[r][e], mean_gx)));
				if (a.dres)
					d[e] = add(d[e], res[e]);
			}
			if (!VEC) {
#pragma unroll
				for (int e = 0; e < V; e++)
					if (e < ncols)
						dx[at + e] = from_float<T>(d[e]);
				continue;
			}
			some_pack<V>(d, out);
			words_put<W>(dx + at, out.w);
		}
	};

	if constexpr (PIPE) {
		struct norm_terms<T, V, R> h[2];

		begin(0, h[0]);
		__syncthreads();
		for (int g = 0; g < ngroups; g += 2) {
			if (g + 1 < ngroups)
				begin(g + 1, h[1]);
			end(g, h[0]);
			__syncthreads();
			if (g + 1 >= ngroups)
				break;
			if (g + 2 < ngroups)
				begin(g + 2, h[0]);
			end(g + 1, h[1]);
			__syncthreads();
		}
	} else {
		struct norm_terms<T, V, R> h;

		for (int g = 0; g < ngroups; g++) {
			fetch(g + STAGES - 1);
			begin(g, h);
			__syncthreads();
			end(g, h);
		}
	}
	put_sums(a.part_gamma, gamma);
	if (a.part_beta)
		put_sums(a.part_beta, beta);
}

#define BOTH(NAME, R, ...)                                                                   \
	TE_KERNEL(norm_both##NAME, norm_both, (NORM_BOTH_THREADS##R, 1),                     \
		  norm_both_body<__VA_ARGS__>(a))
BOTH(_odd1_bf16, 1, bf16, 8, 1, false, false)
BOTH(_odd2_bf16, 2, bf16, 8, 2, false, false)
BOTH(_odd4_bf16, 4, bf16, 4, 4, false, false)
BOTH(_odd2_fp32, 2, float, 8, 2, false, false)
BOTH(_odd4_fp32, 4, float, 4, 4, false, false)
BOTH(2_fp32, 2, float, 8, 2, true, false)
BOTH(4_fp32, 4, float, 4, 4, true, true)
#undef BOTH
