/*
 * sinks.cu - gradients of attention sinks: dsinks[h] -= sum of exp(sinks[h] - lse) delta over the
 * queries of head h. A block of 256 threads a head; each thread sums every 256th query, then the
 * threads' sums are added by a tree, so that results are reproducible.
 */
#include "kernels/attn/geometry.h"
#include "kernels/dev.cuh"

template <class T> DEV void sinks_body(const struct te_k_attn_sinks &a)
{
	__shared__ float sums[ATTN_SINKS_THREADS];
	const float sink = a.sinks[blockIdx.x];
	/* without a sink and a key, lse is -inf, too */
	const int64_t n = sink == -TE_INF ? 0 : a.batch * a.seqlen;
	T *const to = (T *)a.dsinks + blockIdx.x;
	float sum = 0.0f;

	for (int64_t i = threadIdx.x; i < n; i += ATTN_SINKS_THREADS) {
		const int64_t at = (i / a.seqlen * a.nheads + blockIdx.x) * a.seqlen + i % a.seqlen;

		sum = fmaf(expf(sink - a.lse[at]), a.delta[at], sum);
	}
	sums[threadIdx.x] = sum;
	for (int n = ATTN_SINKS_THREADS / 2; n; n /= 2) {
		__syncthreads();
		if (threadIdx.x < n)
			sums[threadIdx.x] += sums[threadIdx.x + n];
	}
	if (threadIdx.x == 0)
		*to = from_float<T>(to_float(*to) - sums[0]);
}

#define TE_NAME(T, t)                                                           \
	extern "C" __global__ void __launch_bounds__(ATTN_SINKS_THREADS)        \
		te_k_attn_bwd_sinks_##t(const __grid_constant__ struct te_k_attn_sinks a) \
	{                                                                       \
		te_begin();                                                     \
		sinks_body<T>(a);                                               \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
