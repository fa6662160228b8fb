/*
 * norm.cu - all-reduce with a residual, RMSNorm and FP8. sm_90a. norm.h has the definition, comm.h
 * the protocol.
 *
 *  kernel   rows of a block                  blocks, at most max_blocks  threads
 *  oneshot  1 of each number of blocks       rows                        32..512
 *  twoshot  the same of each rank's rows     rows / n                    32..512
 *  bwd_     the same
 *
 * Shared memory: 8880 bytes, and a row of gamma and of the residual: 4 + sizeof(T) bytes a column;
 * bwd: of gamma, dy and x, 4 + 2 sizeof(T).
 *
 * A thread has the same vectors of 8 elements of each row, up to 4, from packets to results. Its
 * part of gamma and of the residual is copied to shared memory before it waits for packets; r and
 * then y replace the residual there. No other thread accesses that. A row is pushed before its
 * results are written, which may replace it: one-shot some rows ahead, two-shot all of the block.
 *
 * The squares of a row are added in the order of te_k_norm_fwd, and the products that a gradient
 * needs in the order of te_k_norm_bwd, where a thread has vectors j * threads + t: here a row has
 * more threads, so that the sums of vectors are added from shared memory.
 *
 * Compiled for 2, 4 and 8 ranks, as allreduce.cu.
 */
#include "kernels/comm/comm.cuh"
#include "kernels/comm/geometry.h"
#include "kernels/norm/geometry.h"
#include "kernels/norm/norm.cuh"

#define VECTORS (COMM_NORM_NV * COMM_NORM_THREADS)
#define WARPS (COMM_NORM_THREADS / 32)
#define MAX_WORDS (2 + TE_K_COMM_NORM_COLS / TE_K_BLOCK)

template <class T> struct type_of;
template <> struct type_of<float> {
	static constexpr int D = TE_D_FP32;
};
template <> struct type_of<bf16> {
	static constexpr int D = TE_D_BF16;
};
template <> struct type_of<fp16> {
	static constexpr int D = TE_D_FP16;
};

/* values derived from the arguments; in shared memory, since registers are few */
struct fused {
	int32_t nvec, npackets; /* vectors and packets of a row of T */
	int32_t nout;		/* packets of a row's results */
	int32_t nwords, scales; /* among them, and the first one that is a scale */
	int32_t each, more;	/* rows of each rank, and how many have one more */
	int32_t most;		/* rows of rank 0 */
};

struct norm_shared {
	struct fused f;
	float vector[VECTORS]; /* sums over vectors of the row */
	float sum[WARPS];
	float amax[WARPS];
	__align__(16) float word[MAX_WORDS + 2]; /* whole packets */
};
static_assert(sizeof(struct norm_shared) <= COMM_NORM_SHARED, "shared memory besides rows");

/* a barrier */
DEV void fused_begin(const struct te_k_comm_norm &a, struct fused &f)
{
	if (threadIdx.x == 0) {
		f.nvec = (int32_t)(a.cols + TE_V - 1) / TE_V;
		f.npackets = te_k_comm_norm_in_packets(&a);
		f.nout = te_k_comm_norm_out_packets(&a);
		f.nwords = te_k_comm_norm_nwords(&a);
		f.scales = (a.rstd ? 1 : 0) + (a.amax ? 1 : 0);
		f.each = (int32_t)a.rows / a.comm.nranks;
		f.more = (int32_t)a.rows % a.comm.nranks;
		f.most = f.each + (f.more ? 1 : 0);
	}
	__syncthreads();
}

/* te_k_comm_norm_first(), which divides */
DEV int32_t first_row(const struct fused &f, int rank)
{
	return rank * f.each + min(rank, f.more);
}

DEV int32_t nrows(const struct fused &f, int rank)
{
	return f.each + (rank < f.more ? 1 : 0);
}

/* --- copies that do not wait, of 16 bytes --- */

DEV void copy_begin(void *shared, const void *p)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
			     (uint32_t)__cvta_generic_to_shared(shared)),
		     "l"(p)
		     : "memory");
}

DEV void copies_wait(void)
{
	asm volatile("cp.async.wait_all;" ::: "memory");
}

/* the vectors of this thread of a row of floats or of T */
template <class T>
DEV void row_copy(const struct te_k_comm_norm &a, const struct fused &f, uint4 *shared, const T *p)
{
	constexpr int PV = sizeof(T) / 2; /* packets of a vector */
	const int n = (int)(a.cols * (int)sizeof(T) / TE_K_COMM_PACKET);

	for (int v = threadIdx.x; v < f.nvec; v += blockDim.x)
#pragma unroll
		for (int k = 0; k < PV; k++)
			if (v * PV + k < n)
				copy_begin(shared + v * PV + k, (const uint4 *)p + v * PV + k);
}

/* vector v of a row of n packets, 0 beyond its end; and the reverse */
template <class T> DEV raw<T> row_get(const uint4 *shared, int v, int n)
{
	constexpr int PV = sizeof(T) / 2;
	raw<T> r;

#pragma unroll
	for (int k = 0; k < PV; k++)
		r.q[k] = v * PV + k < n ? shared[v * PV + k] : make_uint4(0, 0, 0, 0);
	return r;
}

template <class T> DEV void row_set(uint4 *shared, int v, int n, const raw<T> &r)
{
	constexpr int PV = sizeof(T) / 2;

#pragma unroll
	for (int k = 0; k < PV; k++)
		if (v * PV + k < n)
			shared[v * PV + k] = r.q[k];
}

/* --- a row --- */

/* the NaN of comm.h */
DEV float same_nan(float x)
{
	return x != x ? __uint_as_float(TE_K_COMM_NAN) : x;
}

/* s of the elements of a packet of all ranks; their number is n */
template <int N, class T> DEV void packet_sum(const uint4 v[N], int n, float *s)
{
	typedef word_of<type_of<T>::D> W;

#pragma unroll
	for (int k = 0; k < 4; k++) {
		float *at = s + k * W::L, x[W::L];

		W::unpack(word(v[0], k), at);
#pragma unroll
		for (int r = 1; r < N; r++) {
			if (r >= n)
				continue;
			W::unpack(word(v[r], k), x);
#pragma unroll
			for (int l = 0; l < W::L; l++)
				at[l] = add(at[l], x[l]);
		}
	}
}

/*
 * s of vector v of a row, 0 beyond its end; packet p of a source is at index + source * each + p.
 * false after a failure.
 */
template <int N, class T>
DEV bool vector_sum(const struct te_k_comm_norm &a, const struct fused &f, struct op &o,
		    int64_t row, int64_t index, int64_t each, int v, float s[TE_V])
{
	constexpr int PV = sizeof(T) / 2, L = TE_V / PV;
	const struct te_k_comm &c = a.comm;
	const int n = N == TE_K_COMM_RANKS ? c.nranks : N;

#pragma unroll
	for (int k = 0; k < PV; k++) {
		const int p = v * PV + k;
		uint4 own, w[N];

#pragma unroll
		for (int e = 0; e < L; e++)
			s[k * L + e] = 0.0f;
		if (p >= f.npackets)
			continue;
		own = ((const uint4 *)c.in)[row * f.npackets + p];
		if (!collect_all<N>(c, o, index + p, each, own, empty(), w))
			return false;
		packet_sum<N, T>(w, n, s + k * L);
#pragma unroll
		for (int e = 0; e < L; e++)
			s[k * L + e] = same_nan(s[k * L + e]);
	}
	return true;
}

/* a packet of results to all other ranks; index: of source 0 */
DEV void push_others(const struct te_k_comm &c, const struct fused &f, const struct op &o,
		     int64_t index, uint4 v)
{
#pragma unroll 1
	for (int k = 1; k < c.nranks; k++) {
		const int r = after(c, k);

		push<false>(c, o, r, packet_of(index, r, c.rank, (int64_t)f.most * f.nout), v);
	}
}

/* vector v of a row of results to the array, TWO: and to packets of the others; index -1: not */
template <bool TWO, class T>
DEV void vector_put(const struct te_k_comm_norm &a, const struct fused &f, const struct op &o,
		    void *array, int64_t row, int64_t index, int v, const raw<T> &x)
{
	constexpr int PV = sizeof(T) / 2;

#pragma unroll
	for (int k = 0; k < PV; k++) {
		const int p = v * PV + k;

		if (p >= f.npackets)
			continue;
		((uint4 *)array)[row * f.npackets + p] = x.q[k];
		if (TWO && index >= 0)
			push_others(a.comm, f, o, index + p, x.q[k]);
	}
}

/* the sum over a row, of which the sums over vectors are in shared memory; a barrier */
DEV float vectors_sum(const struct te_k_comm_norm &a, const struct fused &f, struct norm_shared &m)
{
	const int nwarps = a.x ? norm_bwd_warps((int)a.cols) :
				 norm_row_warps((int)a.cols, a.comm.dtype == TE_D_BF16);
	const int warp = threadIdx.x / 32;
	float s = 0.0f;

	if (warp < nwarps) {
#pragma unroll
		for (int j = 0; j < NORM_ROW_NV; j++) {
			const int v = j * nwarps * 32 + threadIdx.x;

			if (v < f.nvec)
				s = add(s, m.vector[v]);
		}
		s = warp_sum(s);
		if (threadIdx.x % 32 == 0)
			m.sum[warp] = s;
	}
	__syncthreads();
	s = 0.0f;
	for (int i = 0; i < nwarps; i++)
		s = add(s, m.sum[i]);
	return s;
}

/* the largest x of the block; a barrier */
DEV float block_max(struct norm_shared &m, float x)
{
	x = warp_amax(x);
	if (threadIdx.x % 32 == 0)
		m.amax[threadIdx.x / 32] = x;
	__syncthreads();
	x = 0.0f;
	for (int i = 0; i < (int)blockDim.x / 32; i++)
		x = fmaxf(x, m.amax[i]);
	return x;
}

/* the scale of elements of this amax, as block_scale() of block.cuh */
DEV float scale_of(const struct te_k_comm_norm &a, float amax)
{
	const float x = amax < a.epsilon ? a.epsilon : amax;
	float s = 1.0f;

	if (x != 0.0f && fabsf(x) < TE_INF) {
		s = __fdiv_rn(a.qdtype == TE_D_E4M3 ? 448.0f : 57344.0f, x);
		s = s < TE_INF ? s : TE_FLT_MAX;
	}
	return a.flags & TE_K_COMM_POW2 ? __uint_as_float(__float_as_uint(s) & 0x7f800000u) : s;
}

/* word k of a row to its array */
__device__ __noinline__ void word_store(const struct te_k_comm_norm &a, int64_t row, int k, float x)
{
	const int amax = a.rstd ? 1 : 0, scale = amax + (a.amax ? 1 : 0);

	if (k < amax)
		a.rstd[row] = x;
	else if (k < scale)
		atomic_amax(a.amax, x);
	else
		a.scale_inv[(k - scale) * te_k_scale_ld(TE_K_SCALING_1X128, a.rows, a.cols) + row] =
			x;
}

/* 4 codes of a row, of which there are whole groups, as T has whole packets */
DEV void codes_store(const struct te_k_comm_norm &a, int64_t row, int64_t c, uint32_t code)
{
	if (c < a.cols)
		*(uint32_t *)((uint8_t *)a.codes + row * a.cols + c) = code;
}

/* codes of vector v; called by whole warps; TWO: pairs of threads push packets of 16 */
template <bool TWO>
DEV void codes_put(const struct te_k_comm_norm &a, const struct fused &f, const struct op &o,
		   int64_t row, int64_t index, int v, uint2 code)
{
	if (v < f.nvec && a.cols % TE_V == 0) {
		*(uint2 *)((uint8_t *)a.codes + row * a.cols + (int64_t)v * TE_V) = code;
	} else {
		codes_store(a, row, (int64_t)v * TE_V, code.x);
		codes_store(a, row, (int64_t)v * TE_V + 4, code.y);
	}
	if (!TWO)
		return;
	const uint4 both = make_uint4(code.x, code.y, __shfl_down_sync(0xffffffffu, code.x, 1),
				      __shfl_down_sync(0xffffffffu, code.y, 1));

	if (v < f.nvec && v % 2 == 0)
		push_others(a.comm, f, o, index + v / 2, both);
}

/* the vectors of this thread */
#define EACH_VECTOR(v) \
	_Pragma("unroll 1") for (int v = threadIdx.x; v < f.nvec; v += blockDim.x)

DEV void gain_get(const struct te_k_comm_norm &a, const uint4 *gamma, int v, float gain[TE_V])
{
	unpack(row_get<float>(gamma, v, (int)(a.cols / 4)), gain);
	if (a.flags & TE_K_COMM_ZERO_CENTERED)
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			gain[e] = add(1.0f, gain[e]);
}

/*
 * s and r of a row; of each vector of it the sum of the squares of r or, BWD, of g * xhat; out: as
 * row_compute(). BWD: the row of x is copied to after held. false after a failure.
 */
template <int N, bool TWO, bool BWD, class T>
DEV bool row_reduce(const struct te_k_comm_norm &a, const struct fused &f, struct op &o,
		    struct norm_shared &m, const uint4 *gamma, uint4 *held, int64_t row,
		    int64_t index, int64_t each, int64_t out)
{
	uint4 *x_held = held + f.npackets;
	const int64_t out_s = te_k_comm_norm_sends_s(&a) ? out : -1;
	const int64_t out_r =
		te_k_comm_norm_sends_r(&a) ? out + (out_s < 0 ? 0 : f.npackets) : -1;

	if (BWD)
		row_copy(a, f, x_held, (const T *)a.x + row * a.cols);
	else if (a.residual)
		row_copy(a, f, held, (const T *)a.residual + row * a.cols);
	EACH_VECTOR(v) {
		float s[TE_V], x[TE_V];
		raw<T> r;

		if (!vector_sum<N, T>(a, f, o, row, index, each, v, s))
			return false;
		r = pack<T>(s);
		if (BWD || (a.flags & TE_K_COMM_ROUND_SUM))
			unpack(r, s);
		copies_wait();
		if (!BWD && a.residual) {
			unpack(row_get<T>(held, v, f.npackets), x);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				s[e] = same_nan(add(s[e], x[e]));
		}
		if (a.comm.out)
			vector_put<TWO>(a, f, o, a.comm.out, row, out_s, v, r);
		if (BWD) {
			const float rstd = a.x_rstd[row];
			float gain[TE_V];

			row_set(held, v, f.npackets, r);
			unpack(row_get<T>(x_held, v, f.npackets), x);
			gain_get(a, gamma, v, gain);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				x[e] = mul(mul(s[e], gain[e]), mul(x[e], rstd));
			m.vector[v] = sum8(x);
			continue;
		}
		r = pack<T>(s);
		if (a.residual_out)
			vector_put<TWO>(a, f, o, a.residual_out, row, out_r, v, r);
		row_set(held, v, f.npackets, r);
		unpack(r, x);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			x[e] = mul(x[e], x[e]);
		m.vector[v] = sum8(x);
	}
	return true;
}

/* y of a row, in place of r; returns its amax among this thread's vectors */
template <bool TWO, class T>
DEV float row_normalize(const struct te_k_comm_norm &a, const struct fused &f, const struct op &o,
			const uint4 *gamma, uint4 *held, float rstd, int64_t row, int64_t out)
{
	float amax = 0.0f;

	EACH_VECTOR(v) {
		float x[TE_V], gain[TE_V];
		raw<T> y;

		unpack(row_get<T>(held, v, f.npackets), x);
		gain_get(a, gamma, v, gain);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			x[e] = same_nan(normed(x[e], 0.0f, rstd, gain[e]));
		y = pack<T>(x);
		if (a.y)
			vector_put<TWO>(a, f, o, a.y, row, out, v, y);
		row_set(held, v, f.npackets, y);
		unpack(y, x);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			amax = amax_of(amax, x[e]);
	}
	return amax;
}

/* dx, which is y and residual_out, of a row of dy; mean: over g * xhat */
template <bool TWO, class T>
DEV void row_dx(const struct te_k_comm_norm &a, const struct fused &f, const struct op &o,
		const uint4 *gamma, const uint4 *held, float mean, int64_t row, int64_t out)
{
	const float rstd = a.x_rstd[row];
	const uint4 *dres = (const uint4 *)a.residual + row * f.npackets;

	EACH_VECTOR(v) {
		float g[TE_V], x[TE_V], gain[TE_V], res[TE_V];
		raw<T> dx;

		if (!a.y && !a.residual_out)
			break;
		if (a.residual)
			unpack(row_get<T>(dres, v, f.npackets), res);
		unpack(row_get<T>(held, v, f.npackets), g);
		unpack(row_get<T>(held + f.npackets, v, f.npackets), x);
		gain_get(a, gamma, v, gain);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			g[e] = sub(mul(g[e], gain[e]), mul(mul(x[e], rstd), mean));
			g[e] = mul(rstd, g[e]);
			g[e] = same_nan(a.residual ? add(g[e], res[e]) : g[e]);
		}
		dx = pack<T>(g);
		if (a.y)
			vector_put<TWO>(a, f, o, a.y, row, out, v, dx);
		if (a.residual_out)
			vector_put<TWO>(a, f, o, a.residual_out, row, -1, v, dx);
	}
}

/* word k of a row, TWO: which all threads push later */
template <bool TWO>
DEV void word_put(const struct te_k_comm_norm &a, struct norm_shared &m, int64_t row, int k,
		  float x)
{
	if (TWO)
		m.word[k] = x;
	word_store(a, row, k, x);
}

/* codes of y; scale: of the row, unless blocks have their own */
template <bool TWO, class T>
DEV void row_encode(const struct te_k_comm_norm &a, const struct fused &f, const struct op &o,
		    struct norm_shared &m, const uint4 *held, float scale, int64_t row,
		    int64_t out)
{
	const bool block = a.scaling == TE_K_COMM_SCALING_BLOCK;

	/* whole warps, whose lanes have consecutive vectors */
#pragma unroll 1
	for (int v = threadIdx.x; v < (f.nvec + 31) / 32 * 32; v += blockDim.x) {
		float x[TE_V];

		unpack(v < f.nvec ? row_get<T>(held, v, f.npackets) : zero_raw<T>(), x);
		if (block) {
			float amax = 0.0f;

#pragma unroll
			for (int e = 0; e < TE_V; e++)
				amax = amax_of(amax, x[e]);
#pragma unroll
			for (int d = 8; d; d >>= 1)
				amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
			scale = scale_of(a, amax);
			if (v < f.nvec && v % 16 == 0)
				word_put<TWO>(a, m, row, f.scales + v / 16,
					      __fdiv_rn(1.0f, scale));
		}
		codes_put<TWO>(a, f, o, row, out, v, fp8x8(a.qdtype, x, scale));
	}
}

/*
 * All results of a row, TWO: also to packets of the other ranks from index out. ok: this thread has
 * not failed so far; false if a thread of the block has.
 */
template <int N, bool TWO, bool BWD, class T>
DEV bool row_compute(const struct te_k_comm_norm &a, const struct fused &f, struct op &o,
		     struct norm_shared &m, uint4 *gamma, uint4 *held, bool ok, int64_t row,
		     int64_t index, int64_t each, int64_t out)
{
	const bool token = a.codes && a.scaling == TE_K_COMM_SCALING_TOKEN;
	const float n = (float)a.cols;
	float mean, rstd, amax, scale = 1.0f;

	ok = ok && row_reduce<N, TWO, BWD, T>(a, f, o, m, gamma, held, row, index, each, out);
	if (!__syncthreads_and(ok))
		return false;
	out += (te_k_comm_norm_sends_s(&a) + te_k_comm_norm_sends_r(&a)) * f.npackets;
	mean = plain_quotient(vectors_sum(a, f, m), n, plain_reciprocal(n));
	if (BWD) {
		row_dx<TWO, T>(a, f, o, gamma, held, mean, row, out);
		return true;
	}
	rstd = reciprocal_root(add(mean, a.eps));
	if (threadIdx.x == 0 && a.rstd)
		word_put<TWO>(a, m, row, 0, same_nan(rstd));
	amax = row_normalize<TWO, T>(a, f, o, gamma, held, rstd, row, out);
	out += a.y ? f.npackets : 0;
	if (a.amax || token) {
		amax = block_max(m, amax);
		scale = token ? scale_of(a, amax) : 1.0f;
		if (threadIdx.x == 0 && a.amax)
			word_put<TWO>(a, m, row, a.rstd ? 1 : 0, amax);
		if (threadIdx.x == 0 && token)
			word_put<TWO>(a, m, row, f.scales, __fdiv_rn(1.0f, scale));
	}
	if (a.codes) {
		if (a.scaling == TE_K_COMM_SCALING_TENSOR)
			scale = *a.scale;
		row_encode<TWO, T>(a, f, o, m, held, scale, row, out);
		out += te_k_comm_packets(a.cols);
	}
	if (TWO) {
		__syncthreads();
		for (int p = threadIdx.x; 4 * p < f.nwords; p += blockDim.x)
			push_others(a.comm, f, o, out + p, ((const uint4 *)m.word)[p]);
	}
	return true;
}

/* --- results of other ranks --- */

/* packet g of a row's results is at p + row * row_nbytes, or in part: codes or words */
struct result {
	uint8_t *p;
	int64_t row_nbytes;
	int32_t part; /* -1: store the packet unchanged; else the first code or word */
	bool codes;
};

DEV struct result result_of(const struct te_k_comm_norm &a, const struct fused &f, int g)
{
	const int64_t row_nbytes = (int64_t)f.npackets * TE_K_COMM_PACKET;
	uint8_t *const array[3] = {
		te_k_comm_norm_sends_s(&a) ? (uint8_t *)a.comm.out : NULL,
		te_k_comm_norm_sends_r(&a) ? (uint8_t *)a.residual_out : NULL,
		(uint8_t *)a.y,
	};
	const int ncodes = a.codes ? (int)te_k_comm_packets(a.cols) : 0;

#pragma unroll
	for (int k = 0; k < 3; k++) {
		if (!array[k])
			continue;
		if (g < f.npackets)
			return { array[k] + g * TE_K_COMM_PACKET, row_nbytes, -1, false };
		g -= f.npackets;
	}
	if (g < ncodes)
		return { (uint8_t *)a.codes + g * TE_K_COMM_PACKET, a.cols,
			 a.cols % TE_K_COMM_PACKET ? g * TE_K_COMM_PACKET : -1, true };
	return { NULL, 0, (g - ncodes) * 4, false };
}

/* the packets of the ranks of from, each to row i of that rank; struct fused stays in registers */
__device__ __noinline__ void parts_store(const struct te_k_comm_norm &a, int each, int more,
					 int nwords, uint32_t from, int64_t i, int part,
					 bool codes, const uint4 *v)
{
#pragma unroll 1
	for (int r = 0; r < a.comm.nranks; r++) {
		const int64_t row = r * each + min(r, more) + i;

#pragma unroll 1
		for (int k = 0; k < 4 && from >> r & 1; k++) {
			const uint32_t w = ((const uint32_t *)&v[r])[k];

			if (codes)
				codes_store(a, row, part + 4 * k, w);
			else if (part + k < nwords)
				word_store(a, row, part + k, __uint_as_float(w));
		}
	}
}

/* row i of each other rank's rows; false after a failure */
template <int N>
DEV bool rows_receive(const struct te_k_comm_norm &a, const struct fused &f, struct op &o,
		      int64_t i)
{
	const struct te_k_comm &c = a.comm;
	const int64_t each = (int64_t)f.most * f.nout;
	const int64_t first = (int64_t)(c.nranks - 1) * f.most * f.npackets + i * f.nout;
	uint32_t from = 0;

#pragma unroll
	for (int r = 0; r < N; r++)
		if (r < c.nranks && r != c.rank && i < nrows(f, r))
			from |= 1u << r;
#pragma unroll 1
	for (int g = threadIdx.x; g < f.nout; g += blockDim.x) {
		struct result to;
		uint4 v[N];

		if (!collect<N, false>(c, o, TE_K_COMM_RESULT, from, first + g, each, v))
			return false;
		to = result_of(a, f, g);
		if (to.part >= 0) {
			uint4 copy[N]; /* so that v stays in registers */

#pragma unroll
			for (int r = 0; r < N; r++)
				copy[r] = v[r];
			parts_store(a, f.each, f.more, f.nwords, from, i, to.part, to.codes, copy);
			continue;
		}
		to.p += i * to.row_nbytes;
#pragma unroll
		for (int r = 0; r < N; r++) {
			if (from >> r & 1)
				*(uint4 *)to.p = v[r];
			to.p += nrows(f, r) * to.row_nbytes;
		}
	}
	return true;
}

/* --- algorithms; for all threads of a block, false after a failure of one of them --- */

/* the packet of x that a thread sends first: loaded while the epoch is */
template <int TWO> DEV uint4 read_first(const struct te_k_comm_norm &a, const struct fused &f)
{
	if (TWO || (int)threadIdx.x >= f.npackets || blockIdx.x >= a.rows)
		return empty();
	return ((const uint4 *)a.comm.in)[(int64_t)blockIdx.x * f.npackets + threadIdx.x];
}

/* row of x to packets at index of a rank */
DEV void row_push(const struct te_k_comm_norm &a, const struct fused &f, const struct op &o, int to,
		  int64_t row, int64_t index)
{
	for (int p = threadIdx.x; p < f.npackets; p += blockDim.x)
		push<false>(a.comm, o, to, index + p,
			    ((const uint4 *)a.comm.in)[row * f.npackets + p]);
}

/* rows of a block that have been sent when it begins to wait for the first one */
#define AHEAD 4

/* a row to all other ranks; first: of the first one */
DEV void row_push_all(const struct te_k_comm_norm &a, const struct fused &f, const struct op &o,
		      int64_t row, const uint4 *first)
{
	const struct te_k_comm &c = a.comm;

	for (int p = threadIdx.x; p < f.npackets; p += blockDim.x) {
		const int64_t i = row * f.npackets + p;
		const uint4 v = first && p == (int)threadIdx.x ? *first :
								 ((const uint4 *)c.in)[i];

		for (int k = 1; k < c.nranks; k++) {
			const int r = after(c, k);

			push<false>(c, o, r, packet_of(i, r, c.rank, a.rows * f.npackets), v);
		}
	}
}

template <int N, bool BWD, class T>
DEV bool one_shot(const struct te_k_comm_norm &a, const struct fused &f, struct op &o,
		  struct norm_shared &m, uint4 *gamma, uint4 *held, uint4 first)
{
	int64_t next = blockIdx.x; /* to send; there is a row for each block */
	bool ok;

	for (int k = 0; k < AHEAD && next < a.rows; k++, next += gridDim.x)
		row_push_all(a, f, o, next, k ? NULL : &first);
	ok = header_collect(a.comm, o);
	for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, next += gridDim.x) {
		if (next < a.rows)
			row_push_all(a, f, o, next, NULL);
		if (!row_compute<N, false, BWD, T>(a, f, o, m, gamma, held, ok, row,
						   row * f.npackets, a.rows * f.npackets, 0))
			return false;
	}
	return true;
}

template <int N, bool BWD, class T>
DEV bool two_shot(const struct te_k_comm_norm &a, const struct fused &f, struct op &o,
		  struct norm_shared &m, uint4 *gamma, uint4 *held, uint4)
{
	const struct te_k_comm &c = a.comm;
	const int64_t mine = first_row(f, c.rank);
	const int64_t each = (int64_t)f.most * f.npackets;
	bool ok;

	for (int64_t i = blockIdx.x; i < f.most; i += gridDim.x)
		for (int k = 1; k < c.nranks; k++) {
			const int r = after(c, k);

			if (i < nrows(f, r))
				row_push(a, f, o, r, first_row(f, r) + i,
					 packet_of(i * f.npackets, r, c.rank, each));
		}
	ok = header_collect(c, o);
	for (int64_t i = blockIdx.x; i < nrows(f, c.rank); i += gridDim.x)
		if (!row_compute<N, true, BWD, T>(
			    a, f, o, m, gamma, held, ok, mine + i, i * f.npackets, each,
			    (c.nranks - 1) * each + i * f.nout))
			return false;
	if (!__syncthreads_and(ok)) /* all rows of the block have been pushed */
		return false;
	for (int64_t i = blockIdx.x; ok && i < f.most; i += gridDim.x)
		ok = rows_receive<N>(a, f, o, i);
	return __syncthreads_and(ok);
}

/* write values common to all rows: the scale-inverse of TENSOR, the padding of BLOCK */
DEV void scale_words(const struct te_k_comm_norm &a)
{
	const int64_t ld = te_k_scale_ld(TE_K_SCALING_1X128, a.rows, a.cols);

	if (blockIdx.x || !a.codes)
		return;
	if (a.scaling == TE_K_COMM_SCALING_TENSOR && threadIdx.x == 0)
		*a.scale_inv = __fdiv_rn(1.0f, *a.scale);
	if (a.scaling == TE_K_COMM_SCALING_BLOCK)
		for (int k = threadIdx.x; k < te_k_comm_norm_nscales(&a); k += blockDim.x)
			for (int64_t row = a.rows; row < ld; row++)
				a.scale_inv[k * ld + row] = 0.0f;
}

/* --- kernels --- */

#define KERNEL(NAME, T, N, TWO, BWD, ALGORITHM)						\
	extern "C" __global__ void							\
	__launch_bounds__(COMM_NORM_THREADS, N == 2 && !TWO && !BWD ? 2 : 1)		\
		te_k_comm_norm_##NAME##_##N(const __grid_constant__			\
					    struct te_k_comm_norm a)			\
	{										\
		extern __shared__ uint4 rows[];						\
		__shared__ struct norm_shared m;					\
		uint4 *gain = rows, *held = rows + a.cols / 4, first;			\
		struct fused &f = m.f;							\
		struct op o;								\
		bool ok;								\
											\
		fused_begin(a, f);							\
		comm_begin(a.comm);							\
		first = read_first<TWO>(a, f);						\
		row_copy(a, f, gain, a.gamma);						\
		if (!begin(a.comm, o, te_k_comm_norm_signature(&a)))			\
			return;								\
		ok = ALGORITHM<N, BWD, T>(a, f, o, m, gain, held, first);		\
		if (ok)									\
			scale_words(a);							\
		end(a.comm, o, ok);							\
	}
#define KERNELS(T, t, N)								\
	KERNEL(oneshot_##t, T, N, 0, false, one_shot)					\
	KERNEL(twoshot_##t, T, N, 1, false, two_shot)					\
	KERNEL(bwd_oneshot_##t, T, N, 0, true, one_shot)					\
	KERNEL(bwd_twoshot_##t, T, N, 1, true, two_shot)
#define BY_RANKS(T, t) KERNELS(T, t, 2) KERNELS(T, t, 4) KERNELS(T, t, 8)

BY_RANKS(float, fp32)
BY_RANKS(bf16, bf16)
BY_RANKS(fp16, fp16)
