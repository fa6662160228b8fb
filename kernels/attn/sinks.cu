/*
 * sinks.cu - gradients of attention sinks: dsinks[h] -= sum of exp(sinks[h] - lse) delta over the
 * queries of head h. A block of 256 threads a head; each thread sums every 256th query, then the
 * threads' sums are added by a tree, so that results are reproducible.
 */
#include "kernels/attn/geometry.h"
#include "kernels/begin.cuh"
#include "kernels/te_k.h"

extern "C" __global__ void __launch_bounds__(ATTN_SINKS_THREADS)
	te_k_attn_bwd_sinks(struct te_k_attn_sinks a)
{
	__shared__ float sums[ATTN_SINKS_THREADS];
	float sink, sum = 0.0f;

	te_begin();
	sink = a.sinks[blockIdx.x];
	for (int64_t i = threadIdx.x; i < a.batch * a.seqlen; i += ATTN_SINKS_THREADS) {
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
		a.dsinks[blockIdx.x] -= sums[0];
}
