/*
 * te_optim.cu - gradient norm and AdamW over flat FP32 buffers of n elements.
 *
 * sumsq: TE_K_SUMSQ_PARTS blocks of 256 threads, each one run; 4 bytes an element, FP64 sums.
 * adamw_begin: one thread adds the parts in ascending order, as the reference does.
 * adamw: 256 threads, 4 elements a thread in 16-byte vectors; 28 bytes an element
 *   (w, m, v read and written, g read). Every operation is rounded by itself, as the
 *   reference does.
 * sm_90a; no shared memory but 64 bytes in sumsq.
 */
#include "te_dev.cuh"

extern "C" __global__ void __launch_bounds__(256)
	te_k_sumsq(const __grid_constant__ struct te_k_sumsq a)
{
	__shared__ double part[8];
	const int64_t run = (a.n + TE_K_SUMSQ_PARTS - 1) / TE_K_SUMSQ_PARTS;
	const int64_t begin = blockIdx.x * run;
	const int64_t end = begin + run < a.n ? begin + run : a.n;
	double s = 0.0;

	for (int64_t i0 = begin; i0 < end; i0 += 4 * 256) {
		float v[4];

#pragma unroll
		for (int k = 0; k < 4; k++) {
			const int64_t i = i0 + k * 256 + threadIdx.x;

			v[k] = i < end ? a.x[i] : 0.0f;
		}
#pragma unroll
		for (int k = 0; k < 4; k++)
			s += (double)v[k] * (double)v[k];
	}
	s = warp_sum(s);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = s;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int w = 1; w < 8; w++)
			s += part[w];
		a.part[blockIdx.x] = s;
	}
}

extern "C" __global__ void __launch_bounds__(256)
	te_k_adamw_begin(const __grid_constant__ struct te_k_adamw_begin a)
{
	__shared__ double part[TE_K_SUMSQ_PARTS];
	struct te_k_adamw_state *s = a.state;
	double sum = 0.0, norm;

	for (int i = threadIdx.x; i < TE_K_SUMSQ_PARTS; i += 256)
		part[i] = a.part[i];
	__syncthreads();
	if (threadIdx.x)
		return;
	for (int i = 0; i < TE_K_SUMSQ_PARTS; i++)
		sum = __dadd_rn(sum, part[i]);
	norm = __dsqrt_rn(sum);
	s->grad_norm = (float)norm;
	s->clip = 1.0f;
	s->skip = !(fabsf(s->grad_norm) < TE_INF);
	if (s->skip) {
		s->nskipped++;
		return;
	}
	if (a.max_norm > 0.0f && norm > (double)a.max_norm)
		s->clip = (float)__ddiv_rn((double)a.max_norm, norm);
	s->nsteps++;
	s->beta1_t = __dmul_rn(s->beta1_t, (double)a.beta1);
	s->beta2_t = __dmul_rn(s->beta2_t, (double)a.beta2);
}

struct rates {
	float b1, b2, one_b1, one_b2, c1, c2, clip, lr, eps, decay;
};

DEV void update(const struct rates &r, bool decays, float grad, float *w, float *m, float *v)
{
	const float g = mul(grad, r.clip);
	float u;

	*m = add(mul(r.b1, *m), mul(r.one_b1, g));
	*v = add(mul(r.b2, *v), mul(mul(r.one_b2, g), g));
	u = __fdiv_rn(__fdiv_rn(*m, r.c1), add(__fsqrt_rn(__fdiv_rn(*v, r.c2)), r.eps));
	if (decays)
		u = add(u, mul(r.decay, *w));
	*w = sub(*w, mul(r.lr, u));
}

extern "C" __global__ void __launch_bounds__(256)
	te_k_adamw(const __grid_constant__ struct te_k_adamw a)
{
	const int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4;
	const struct te_k_adamw_state *s = a.state;
	struct rates r;
	bool decays;

	if (i >= a.n || s->skip)
		return;
	r.b1 = a.beta1;
	r.b2 = a.beta2;
	r.one_b1 = sub(1.0f, a.beta1);
	r.one_b2 = sub(1.0f, a.beta2);
	r.c1 = (float)__dsub_rn(1.0, s->beta1_t);
	r.c2 = (float)__dsub_rn(1.0, s->beta2_t);
	r.clip = s->clip;
	r.lr = s->lr;
	r.eps = a.eps;
	r.decay = a.weight_decay;
	decays = a.decay[i / TE_K_ALIGN_WEIGHT];
	if (i + 4 <= a.n) {
		const float4 g = *(const float4 *)(a.g + i);
		float4 w = *(float4 *)(a.w + i), m = *(float4 *)(a.m + i), v = *(float4 *)(a.v + i);

		update(r, decays, g.x, &w.x, &m.x, &v.x);
		update(r, decays, g.y, &w.y, &m.y, &v.y);
		update(r, decays, g.z, &w.z, &m.z, &v.z);
		update(r, decays, g.w, &w.w, &m.w, &v.w);
		*(float4 *)(a.w + i) = w;
		*(float4 *)(a.m + i) = m;
		*(float4 *)(a.v + i) = v;
		return;
	}
	for (int64_t k = i; k < a.n; k++)
		update(r, decays, a.g[k], a.w + k, a.m + k, a.v + k);
}
