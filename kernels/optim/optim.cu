/*
 * optim.cu - AdamW and the norm of gradients. sm_90a.
 *
 *  kernel       shapes             blocks         threads  shared  B/element
 *  sumsq        x FP32 [n]         1024           128      32      4
 *  adamw_begin  1024 partial sums  1              256      2048
 *  adamw        w, m, v, g [n]     1024 elements  256      0       28
 *
 * sumsq: one run per block, all blocks resident at once; each thread loads four vectors while it
 * adds up the previous four. adamw is bound by its 28 bytes per element, which hide its two square
 * roots and divisions, IEEE as on the host. Its loads and stores are evicted from L2 first, because
 * nothing reads them soon.
 */
#include "kernels/dev.cuh"
#include "kernels/optim/geometry.h"

DEV double square(float x)
{
	return __dmul_rn((double)x, (double)x);
}

#define SUMSQ_UNROLL 4 /* vectors of 4 per thread */
#define SUMSQ_STEP (SUMSQ_THREADS * SUMSQ_UNROLL * 4)

DEV bool sumsq_skips(const struct te_k_sumsq &a, int64_t i)
{
	return a.skip && a.skip[i / TE_K_ALIGN_WEIGHT];
}

/* 0 beyond hi and where elements are skipped; i is a multiple of 4 */
DEV void sumsq_load(const struct te_k_sumsq &a, int64_t i, int64_t hi, float4 ret_v[SUMSQ_UNROLL])
{
#pragma unroll
	for (int u = 0; u < SUMSQ_UNROLL; u++, i += SUMSQ_THREADS * 4)
		ret_v[u] = i < hi && !sumsq_skips(a, i) ? *(const float4 *)(a.x + i) :
							  make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

extern "C" __global__ void __launch_bounds__(SUMSQ_THREADS, 8)
	te_k_sumsq(const __grid_constant__ struct te_k_sumsq a)
{
	te_begin();
	__shared__ double part[SUMSQ_THREADS / 32];
	const int64_t run = (a.n + TE_K_SUMSQ_PARTS - 1) / TE_K_SUMSQ_PARTS;
	const int64_t begin = min((int64_t)blockIdx.x * run, a.n), end = min(begin + run, a.n);
	/* vectors of 4 in lo..hi, single elements before and after */
	const int64_t lo = aligned(a.x) ? min((begin + 3) / 4 * 4, end) : end;
	const int64_t hi = lo + (end - lo) / 4 * 4;
	double sum[4] = { 0.0, 0.0, 0.0, 0.0 };
	float4 v[SUMSQ_UNROLL], next[SUMSQ_UNROLL];
	int64_t i = lo + threadIdx.x * 4;

	sumsq_load(a, i, hi, next);
	for (int64_t k = begin + threadIdx.x; k < lo; k += SUMSQ_THREADS)
		sum[0] = __dadd_rn(sum[0], sumsq_skips(a, k) ? 0.0 : square(a.x[k]));
	for (int64_t k = hi + threadIdx.x; k < end; k += SUMSQ_THREADS)
		sum[1] = __dadd_rn(sum[1], sumsq_skips(a, k) ? 0.0 : square(a.x[k]));
	for (; i < hi; i += SUMSQ_STEP) {
#pragma unroll
		for (int u = 0; u < SUMSQ_UNROLL; u++)
			v[u] = next[u];
		sumsq_load(a, i + SUMSQ_STEP, hi, next);
#pragma unroll
		for (int u = 0; u < SUMSQ_UNROLL; u++) {
			sum[0] = __dadd_rn(sum[0], square(v[u].x));
			sum[1] = __dadd_rn(sum[1], square(v[u].y));
			sum[2] = __dadd_rn(sum[2], square(v[u].z));
			sum[3] = __dadd_rn(sum[3], square(v[u].w));
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

extern "C" __global__ void __launch_bounds__(ADAMW_THREADS)
	te_k_adamw(const __grid_constant__ struct te_k_adamw a)
{
	te_begin();
	const int64_t i = ((int64_t)blockIdx.x * ADAMW_THREADS + threadIdx.x) * ADAMW_NELEMS;
	const bool vec = i + 4 <= a.n && aligned(a.w) && aligned(a.m) && aligned(a.v) &&
			 aligned(a.g);
	const struct te_k_adamw_state *s = a.state;
	float4 w, m, v, g;
	bool decay;

	if (i >= a.n)
		return;
	if (vec) { /* issued before the state is loaded */
		w = __ldcs((const float4 *)(a.w + i));
		m = __ldcs((const float4 *)(a.m + i));
		v = __ldcs((const float4 *)(a.v + i));
		g = __ldcs((const float4 *)(a.g + i));
	}
	decay = !a.decay || a.decay[i / TE_K_ALIGN_WEIGHT];
	if (s->skip)
		return;
	const struct adamw_consts k = {
		s->clip, s->lr, a.beta1, a.beta2, sub(1.0f, a.beta1), sub(1.0f, a.beta2),
		(float)__dsub_rn(1.0, s->beta1_t), (float)__dsub_rn(1.0, s->beta2_t),
		a.eps, a.weight_decay,
	};
	if (!vec) {
		for (int64_t j = i; j < min(i + 4, a.n); j++)
			adamw_one(k, a.g[j], decay, a.w[j], a.m[j], a.v[j]);
		return;
	}
	adamw_one(k, g.x, decay, w.x, m.x, v.x);
	adamw_one(k, g.y, decay, w.y, m.y, v.y);
	adamw_one(k, g.z, decay, w.z, m.z, v.z);
	adamw_one(k, g.w, decay, w.w, m.w, v.w);
	__stcs((float4 *)(a.w + i), w);
	__stcs((float4 *)(a.m + i), m);
	__stcs((float4 *)(a.v + i), v);
}
