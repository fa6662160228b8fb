/*
 * optim.cu - AdamW and the norm of gradients. sm_90a.
 *
 *  kernel       shapes             blocks         threads  shared  B/element
 *  sumsq        x T [n]            1024           128      32      4; BF16: 2
 *  adamw_begin  1024 partial sums  1              256      2048
 *  adamw        w, m, v, g [n]     1024 elements  256      0       28
 *    _bf16      the same           2048 elements  256      0       20
 *    _fp8       the same           2048 elements  256      0       16
 *    _w16       w BF16             2048 elements  256      0       24
 *    _split     w BF16 + 16 bits   2048 elements  256      0       28
 *
 * sumsq: one run per block, all blocks resident at once; each thread loads four vectors while it
 * adds up the previous four. adamw is bound by its 28 bytes per element, which hide its two square
 * roots and divisions, IEEE as on the host. Its loads and stores are evicted from L2 first, because
 * nothing reads them soon. Gradients in BF16 take 2 bytes less.
 * With moments in BF16 or FP8 a thread has the 8 elements of a draw of random numbers, and the 8
 * threads of an FP8 block exchange its largest magnitude by shuffles. FP8 is bound by instructions,
 * above all by those for integers, of which a multiprocessor has half the rate.
 */
#include "kernels/dev.cuh"
#include "kernels/optim/geometry.h"
#include "kernels/optim/round.h"

DEV double square(float x)
{
	return __dmul_rn((double)x, (double)x);
}

#define SUMSQ_UNROLL 4 /* vectors of 16 bytes per thread */

/* elements of a vector */
template <class T> DEV constexpr int sumsq_nelems()
{
	return 16 / (int)sizeof(T);
}

DEV bool sumsq_skips(const struct te_k_sumsq &a, int64_t i)
{
	return a.skip && a.skip[i / TE_K_ALIGN_WEIGHT];
}

/* 0 beyond hi and where elements are skipped; i is the first element of a vector */
template <class T>
DEV void sumsq_load(const struct te_k_sumsq &a, int64_t i, int64_t hi, uint4 ret_v[SUMSQ_UNROLL])
{
#pragma unroll
	for (int u = 0; u < SUMSQ_UNROLL; u++, i += SUMSQ_THREADS * sumsq_nelems<T>())
		ret_v[u] = i < hi && !sumsq_skips(a, i) ? *(const uint4 *)((const T *)a.x + i) :
							  make_uint4(0, 0, 0, 0);
}

/* element e of the words of a vector */
DEV float sumsq_element(const uint32_t *w, int e, float)
{
	return __uint_as_float(w[e]);
}
DEV float sumsq_element(const uint32_t *w, int e, bf16)
{
	return __uint_as_float(e % 2 ? w[e / 2] & 0xffff0000u : w[e / 2] << 16);
}

template <class T> DEV double sumsq_one(const struct te_k_sumsq &a, int64_t i)
{
	return sumsq_skips(a, i) ? 0.0 : square(to_float(((const T *)a.x)[i]));
}

template <class T> DEV void sumsq_body(const struct te_k_sumsq &a)
{
	constexpr int N = sumsq_nelems<T>(), STEP = SUMSQ_THREADS * SUMSQ_UNROLL * N;
	__shared__ double part[SUMSQ_THREADS / 32];
	const int64_t run = (a.n + TE_K_SUMSQ_PARTS - 1) / TE_K_SUMSQ_PARTS;
	const int64_t begin = min((int64_t)blockIdx.x * run, a.n), end = min(begin + run, a.n);
	/* vectors in lo..hi, single elements before and after */
	const int64_t lo = aligned(a.x) ? min((begin + N - 1) / N * N, end) : end;
	const int64_t hi = lo + (end - lo) / N * N;
	double sum[4] = { 0.0, 0.0, 0.0, 0.0 };
	uint4 v[SUMSQ_UNROLL], next[SUMSQ_UNROLL];
	int64_t i = lo + threadIdx.x * N;

	sumsq_load<T>(a, i, hi, next);
	for (int64_t k = begin + threadIdx.x; k < lo; k += SUMSQ_THREADS)
		sum[0] = __dadd_rn(sum[0], sumsq_one<T>(a, k));
	for (int64_t k = hi + threadIdx.x; k < end; k += SUMSQ_THREADS)
		sum[1] = __dadd_rn(sum[1], sumsq_one<T>(a, k));
	for (; i < hi; i += STEP) {
#pragma unroll
		for (int u = 0; u < SUMSQ_UNROLL; u++)
			v[u] = next[u];
		sumsq_load<T>(a, i + STEP, hi, next);
#pragma unroll
		for (int u = 0; u < SUMSQ_UNROLL; u++) {
			const uint32_t w[4] = { v[u].x, v[u].y, v[u].z, v[u].w };

#pragma unroll
			for (int e = 0; e < N; e++)
				sum[e % 4] = __dadd_rn(sum[e % 4],
						       square(sumsq_element(w, e, T())));
		}
	}
	sum[0] = warp_sum(__dadd_rn(__dadd_rn(sum[0], sum[1]), __dadd_rn(sum[2], sum[3])));
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = sum[0];
	__syncthreads();
	if (threadIdx.x)
		return;
#pragma unroll
	for (int w = 1; w < SUMSQ_THREADS / 32; w++)
		sum[0] = __dadd_rn(sum[0], part[w]);
	a.part[blockIdx.x] = sum[0];
}

TE_KERNEL(sumsq_fp32, sumsq, (SUMSQ_THREADS, 8), sumsq_body<float>(a))
TE_KERNEL(sumsq_bf16, sumsq, (SUMSQ_THREADS, 8), sumsq_body<bf16>(a))

extern "C" __global__ void __launch_bounds__(ADAMW_BEGIN_THREADS)
	te_k_adamw_begin(const __grid_constant__ struct te_k_adamw_begin a)
{
	te_begin();
	constexpr int N = ADAMW_BEGIN_THREADS;
	__shared__ double part[N];
	struct te_k_adamw_state *s = a.state;
	const struct te_k_adamw_state was = *s; /* concurrently with the parts */
	double q[N / 32], norm;

	static_assert(TE_K_SUMSQ_PARTS == 4 * N && N == 256, "the tree of additions below");

#pragma unroll
	for (int k = 0; k < 4; k++)
		q[k] = a.part[threadIdx.x + N * k];
	for (int m = 1; m <= a.nmore; m++)
#pragma unroll
		for (int k = 0; k < 4; k++)
			q[k] = __dadd_rn(q[k], a.part[m * TE_K_SUMSQ_PARTS + threadIdx.x + N * k]);
	part[threadIdx.x] = __dadd_rn(__dadd_rn(q[0], q[2]), __dadd_rn(q[1], q[3]));
	__syncthreads();
	if (threadIdx.x >= 32)
		return;
#pragma unroll
	for (int k = 0; k < 8; k++)
		q[k] = part[threadIdx.x + 32 * k];
#pragma unroll
	for (int n = 4; n; n /= 2)
#pragma unroll
		for (int k = 0; k < n; k++)
			q[k] = __dadd_rn(q[k], q[k + n]);
	norm = __dsqrt_rn(warp_sum(q[0]));
	if (threadIdx.x)
		return;
	s->grad_norm = (float)norm;
	s->clip = 1.0f;
	s->skip = !(fabsf((float)norm) < TE_INF);
	if (!(fabsf((float)norm) < TE_INF)) {
		s->nskipped = was.nskipped + 1;
		return;
	}
	if (a.max_norm > 0.0f && norm > (double)a.max_norm)
		s->clip = (float)__ddiv_rn((double)a.max_norm, norm);
	s->nsteps = was.nsteps + 1;
	++*a.version;
	s->beta1_t = __dmul_rn(was.beta1_t, (double)a.beta1);
	s->beta2_t = __dmul_rn(was.beta2_t, (double)a.beta2);
}

struct adamw_consts {
	float clip, lr, b1, b2, one_b1, one_b2, c1, c2, eps, weight_decay;
};

DEV void adamw_one(const struct adamw_consts &k, float grad, bool decay, float &w, float &m,
		   float &v)
{
	const num g = num(grad) * k.clip;
	num u(0.0f);

	m = (num(k.b1) * m + num(k.one_b1) * g).v;
	v = (num(k.b2) * v + num(k.one_b2) * g * g).v;
	u = num(m) / k.c1 / (num(__fsqrt_rn((num(v) / k.c2).v)) + k.eps);
	if (decay)
		u = u + num(k.weight_decay) * w;
	w = (num(w) - num(k.lr) * u).v;
}

/* x / y, with r = plain_reciprocal(y); x is 0 or its exponent far from the limits */
DEV float plain_division(float x, float y, float r)
{
	float q = mul(x, r);

#pragma unroll
	for (int i = 0; i < 2; i++)
		q = __fmaf_rn(__fmaf_rn(-q, y, x), r, q);
	return q;
}

/* the square root of x, for the same x */
DEV float plain_root(float x)
{
	float r, root;

	asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	root = mul(x, r);
	root = __fmaf_rn(__fmaf_rn(-root, root, x), mul(0.5f, r), root);
	return x == 0.0f ? 0.0f : root;
}

/*
 * adamw_one() of TE_V elements. If all their moments are 0 or of usual magnitude, divisions and
 * square roots do without the branch, at which each would wait for the previous one.
 */
DEV void adamw_some(const struct adamw_consts &k, const float grad[TE_V], bool decay,
		    float w[TE_V], float m[TE_V], float v[TE_V])
{
	const float r1 = plain_reciprocal(k.c1), r2 = plain_reciprocal(k.c2);
	/* 2 * bits - 2, or bits - 1, of the least that is not 0 */
	uint32_t least_m = ~0u, least_v = ~0u, most_v = 0;
	float m2[TE_V], v2[TE_V], sum_m = 0.0f;

#pragma unroll
	for (int e = 0; e < TE_V; e++) {
		const num g = num(grad[e]) * k.clip;

		m2[e] = (num(k.b1) * m[e] + num(k.one_b1) * g).v;
		v2[e] = (num(k.b2) * v[e] + num(k.one_b2) * g * g).v;
		least_m = min(least_m, 2 * __float_as_uint(m2[e]) - 2);
		least_v = min(least_v, __float_as_uint(v2[e]) - 1);
		most_v = max(most_v, __float_as_uint(v2[e]));
		sum_m = add(sum_m, fabsf(m2[e]));
	}
	if (least_m < 2 * __float_as_uint(0x1p-70f) || least_v < __float_as_uint(0x1p-100f) ||
	    most_v > __float_as_uint(0x1p60f) || !(sum_m < 0x1p60f) || !(k.eps >= 0x1p-40f) ||
	    !(k.eps <= 1.0f) || !(k.c1 >= 0x1p-24f) || !(k.c2 >= 0x1p-24f)) {
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			adamw_one(k, grad[e], decay, w[e], m[e], v[e]);
		return;
	}
#pragma unroll
	for (int e = 0; e < TE_V; e++) {
		const float d = add(plain_root(plain_division(v2[e], k.c2, r2)), k.eps);
		num u = plain_division(plain_division(m2[e], k.c1, r1), d, plain_reciprocal(d));

		if (decay)
			u = u + num(k.weight_decay) * w[e];
		w[e] = (num(w[e]) - num(k.lr) * u).v;
		m[e] = m2[e];
		v[e] = v2[e];
	}
}

DEV struct adamw_consts adamw_consts_of(const struct te_k_adamw &a)
{
	const struct te_k_adamw_state *s = a.state;

	return {
		s->clip, s->lr, a.beta1, a.beta2, sub(1.0f, a.beta1), sub(1.0f, a.beta2),
		(float)__dsub_rn(1.0, s->beta1_t), (float)__dsub_rn(1.0, s->beta2_t),
		a.eps, a.weight_decay,
	};
}

DEV float grad_load(const struct te_k_adamw &a, int64_t i)
{
	return a.bf16_grads ? to_float(((const bf16 *)a.g)[i]) : ((const float *)a.g)[i];
}

/* i is a multiple of 4 */
DEV float4 grads_load4(const struct te_k_adamw &a, int64_t i)
{
	uint2 w;

	if (!a.bf16_grads)
		return __ldcs((const float4 *)((const float *)a.g + i));
	w = __ldcs((const uint2 *)((const bf16 *)a.g + i));
	return make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u),
			   __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u));
}

extern "C" __global__ void __launch_bounds__(ADAMW_THREADS)
	te_k_adamw(const __grid_constant__ struct te_k_adamw a)
{
	te_begin();
	const int64_t i = ((int64_t)blockIdx.x * ADAMW_THREADS + threadIdx.x) * ADAMW_NELEMS;
	const bool vec = i + 4 <= a.n && aligned(a.w) && aligned(a.m) && aligned(a.v) &&
			 aligned(a.g);
	const struct te_k_adamw_state *s = a.state;
	float *const ws = (float *)a.w, *const ms = (float *)a.m, *const vs = (float *)a.v;
	float4 w, m, v, g;
	bool decay;

	if (i >= a.n)
		return;
	if (vec) { /* issued before the state is loaded */
		w = __ldcs((const float4 *)(ws + i));
		m = __ldcs((const float4 *)(ms + i));
		v = __ldcs((const float4 *)(vs + i));
		g = grads_load4(a, i);
	}
	decay = !a.decay || a.decay[i / TE_K_ALIGN_WEIGHT];
	if (s->skip)
		return;
	const struct adamw_consts k = adamw_consts_of(a);
	if (!vec) {
		for (int64_t j = i; j < min(i + 4, a.n); j++)
			adamw_one(k, grad_load(a, j), decay, ws[j], ms[j], vs[j]);
		return;
	}
	adamw_one(k, g.x, decay, w.x, m.x, v.x);
	adamw_one(k, g.y, decay, w.y, m.y, v.y);
	adamw_one(k, g.z, decay, w.z, m.z, v.z);
	adamw_one(k, g.w, decay, w.w, m.w, v.w);
	__stcs((float4 *)(ws + i), w);
	__stcs((float4 *)(ms + i), m);
	__stcs((float4 *)(vs + i), v);
}

/* --- states in BF16 and FP8 ------------------------------------------------ */

/* NW words, loaded as a vector, or the first nbytes of them; the other bytes are 0 */
template <int NW> DEV void words_load(const void *p, bool vec, int nbytes, uint32_t w[NW])
{
#pragma unroll
	for (int i = 0; i < NW; i++)
		w[i] = 0;
	if (!vec) {
#pragma unroll
		for (int b = 0; b < 4 * NW; b++)
			if (b < nbytes)
				w[b / 4] |= (uint32_t)((const uint8_t *)p)[b] << 8 * (b % 4);
	} else if constexpr (NW >= 4) {
#pragma unroll
		for (int i = 0; i < NW; i += 4) {
			const uint4 q = __ldcs((const uint4 *)p + i / 4);

			w[i] = q.x, w[i + 1] = q.y, w[i + 2] = q.z, w[i + 3] = q.w;
		}
	} else {
		const uint2 q = __ldcs((const uint2 *)p);

		w[0] = q.x, w[1] = q.y;
	}
}

template <int NW> DEV void words_store(void *p, bool vec, int nbytes, const uint32_t w[NW])
{
	if (!vec) {
#pragma unroll
		for (int b = 0; b < 4 * NW; b++)
			if (b < nbytes)
				((uint8_t *)p)[b] = (uint8_t)(w[b / 4] >> 8 * (b % 4));
	} else if constexpr (NW >= 4) {
#pragma unroll
		for (int i = 0; i < NW; i += 4)
			__stcs((uint4 *)p + i / 4, make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]));
	} else {
		__stcs((uint2 *)p, make_uint2(w[0], w[1]));
	}
}

/* WHICH: TE_K_ROUNDED_M or _V; s: exponent of the block */
template <int WHICH, int MOMENTS> DEV void moment_get(const uint32_t *w, uint32_t s, float x[TE_V])
{
#pragma unroll
	for (int i = 0; i < TE_V; i++) {
		const uint32_t code = w[i / 4 % 2] >> 8 * (i % 4) & 0xff;

		if constexpr (MOMENTS == TE_K_MOMENTS_FP32)
			x[i] = __uint_as_float(w[i]);
		else if constexpr (MOMENTS == TE_K_MOMENTS_BF16)
			x[i] = __uint_as_float(i % 2 ? w[i / 2] & 0xffff0000u : w[i / 2] << 16);
		else if constexpr (WHICH == TE_K_ROUNDED_M)
			x[i] = te_round_first_value(code, s);
		else
			x[i] = te_round_second_value(code, s);
	}
}

/* returns the exponent of an FP8 block, whose 8 threads call this together */
template <int WHICH, int MOMENTS>
DEV uint32_t moment_put(const float x[TE_V], uint64_t step, int64_t group, uint32_t *w)
{
	constexpr bool FP8 = MOMENTS == TE_K_MOMENTS_FP8;
	uint32_t s = 0;

	if constexpr (MOMENTS == TE_K_MOMENTS_FP32) {
#pragma unroll
		for (int i = 0; i < TE_V; i++)
			w[i] = __float_as_uint(x[i]);
		return 0;
	}
	const struct te_philox r = te_round_draw(step, WHICH, group);

	if constexpr (FP8) {
#pragma unroll
		for (int i = 0; i < TE_V; i++)
			s = max(s, te_round_magnitude(x[i]));
#pragma unroll
		for (int d = 1; d < TE_K_ALIGN_WEIGHT / TE_V; d *= 2)
			s = max(s, __shfl_xor_sync(0xffffffffu, s, d));
		s = te_round_exponent(te_round_format(WHICH), s);
	}
	if constexpr (FP8) {
		uint32_t c[TE_V];

#pragma unroll
		for (int i = 0; i < TE_V; i++) {
			const uint32_t lane = te_philox_lane(&r, i);

			c[i] = WHICH == TE_K_ROUNDED_M ? te_round_first(x[i], s, lane) :
							 te_round_second(x[i], s, lane);
		}
#pragma unroll
		for (int i = 0; i < 2; i++)
			w[i] = __byte_perm(__byte_perm(c[4 * i], c[4 * i + 1], 0x0040),
					   __byte_perm(c[4 * i + 2], c[4 * i + 3], 0x0040),
					   0x5410);
	} else {
#pragma unroll
		for (int i = 0; i < TE_V; i += 2)
			w[i / 2] = te_round_bf16(x[i], te_philox_lane(&r, i)) |
				   te_round_bf16(x[i + 1], te_philox_lane(&r, i + 1)) << 16;
	}
	return s;
}

/* the words of a weight: FP32 or BF16, and with SPLIT its other 16 bits */
template <int MASTERS>
DEV void master_get(const uint32_t *w, const uint32_t *rest, float x[TE_V])
{
#pragma unroll
	for (int i = 0; i < TE_V; i++) {
		if constexpr (MASTERS == TE_K_MASTERS_FP32)
			x[i] = __uint_as_float(w[i]);
		else if constexpr (MASTERS == TE_K_MASTERS_BF16)
			x[i] = __uint_as_float(i % 2 ? w[i / 2] & 0xffff0000u : w[i / 2] << 16);
		else
			x[i] = te_round_join(w[i / 2] >> 16 * (i % 2) & 0xffffu,
					     rest[i / 2] >> 16 * (i % 2) & 0xffffu);
	}
}

template <int MASTERS>
DEV void master_put(const float x[TE_V], uint64_t step, int64_t group, uint32_t *w, uint32_t *rest)
{
	if constexpr (MASTERS != TE_K_MASTERS_SPLIT) { /* stored as a moment of this type is */
		moment_put<TE_K_ROUNDED_W, MASTERS == TE_K_MASTERS_BF16 ? TE_K_MOMENTS_BF16 :
									  TE_K_MOMENTS_FP32>(
			x, step, group, w);
	} else {
#pragma unroll
		for (int i = 0; i < TE_V; i += 2) {
			w[i / 2] = te_round_upper(x[i]) | te_round_upper(x[i + 1]) << 16;
			rest[i / 2] = te_round_lower(x[i]) | te_round_lower(x[i + 1]) << 16;
		}
	}
}

template <int MOMENTS, int MASTERS> DEV void adamw_small(const struct te_k_adamw &a)
{
	constexpr bool FP8 = MOMENTS == TE_K_MOMENTS_FP8, SPLIT = MASTERS == TE_K_MASTERS_SPLIT;
	/* bytes of an element, and words of TE_V elements */
	constexpr int SIZE = FP8 ? 1 : MOMENTS == TE_K_MOMENTS_BF16 ? 2 : 4, NW = 2 * SIZE;
	constexpr int WSIZE = MASTERS == TE_K_MASTERS_FP32 ? 4 : 2, WNW = 2 * WSIZE;
	const int64_t group = (int64_t)blockIdx.x * ADAMW_THREADS + threadIdx.x;
	const int64_t i = group * TE_V, run = i / TE_K_ALIGN_WEIGHT;
	const int n = clamp_int(a.n - i, 0, TE_V);
	const bool vec = n == TE_V && aligned(a.w) && aligned(a.m) && aligned(a.v) &&
			 aligned(a.g) && (!SPLIT || aligned(a.rest));
	uint8_t *const pm = (uint8_t *)a.m + i * SIZE, *const pv = (uint8_t *)a.v + i * SIZE;
	uint8_t *const pw = (uint8_t *)a.w + i * WSIZE;
	uint32_t wm[NW], wv[NW], ww[WNW], rest[4], gw[TE_V], sm = 0, sv = 0;
	float w[TE_V], m[TE_V], v[TE_V], g[TE_V];
	bool decay;

	static_assert(TE_V == ADAMW_SMALL_NELEMS && TE_V == TE_ROUND_GROUP, "a draw a thread");
	/* issued before the state is loaded */
	words_load<NW>(pm, vec, n * SIZE, wm);
	words_load<NW>(pv, vec, n * SIZE, wv);
	words_load<WNW>(pw, vec, n * WSIZE, ww);
	if (a.bf16_grads)
		words_load<TE_V / 2>((const bf16 *)a.g + i, vec, n * 2, gw);
	else
		words_load<TE_V>((const float *)a.g + i, vec, n * 4, gw);
	if (SPLIT)
		words_load<4>(a.rest + i, vec, n * 2, rest);
	if (FP8 && n) {
		sm = a.m_exp[run];
		sv = a.v_exp[run];
	}
	decay = n && (!a.decay || a.decay[run]);
	if (a.state->skip)
		return;
	const struct adamw_consts k = adamw_consts_of(a);
	const uint64_t step = a.state->nsteps;
	const int64_t drawn = group + a.first / TE_V;

	moment_get<TE_K_ROUNDED_M, MOMENTS>(wm, sm, m);
	moment_get<TE_K_ROUNDED_V, MOMENTS>(wv, sv, v);
	master_get<MASTERS>(ww, rest, w);
	if (a.bf16_grads)
		moment_get<TE_K_ROUNDED_M, TE_K_MOMENTS_BF16>(gw, 0, g);
	else
		moment_get<TE_K_ROUNDED_M, TE_K_MOMENTS_FP32>(gw, 0, g);
	adamw_some(k, g, decay, w, m, v);
	sm = moment_put<TE_K_ROUNDED_M, MOMENTS>(m, step, drawn, wm);
	sv = moment_put<TE_K_ROUNDED_V, MOMENTS>(v, step, drawn, wv);
	master_put<MASTERS>(w, step, drawn, ww, rest);
	words_store<NW>(pm, vec, n * SIZE, wm);
	words_store<NW>(pv, vec, n * SIZE, wv);
	words_store<WNW>(pw, vec, n * WSIZE, ww);
	if (SPLIT)
		words_store<4>(a.rest + i, vec, n * 2, rest);
	if (FP8 && n && i % TE_K_ALIGN_WEIGHT == 0) {
		a.m_exp[run] = (uint8_t)sm;
		a.v_exp[run] = (uint8_t)sv;
	}
}

#define TE_NAME(MOMENTS, MASTERS, name)                 \
	TE_KERNEL(adamw##name, adamw, (ADAMW_THREADS),  \
		  adamw_small<TE_K_MOMENTS_##MOMENTS, TE_K_MASTERS_##MASTERS>(a))
TE_NAME(FP32, BF16, _w16)
TE_NAME(FP32, SPLIT, _split)
TE_NAME(BF16, FP32, _bf16)
TE_NAME(BF16, BF16, _bf16_w16)
TE_NAME(BF16, SPLIT, _bf16_split)
TE_NAME(FP8, FP32, _fp8)
TE_NAME(FP8, BF16, _fp8_w16)
TE_NAME(FP8, SPLIT, _fp8_split)
#undef TE_NAME
