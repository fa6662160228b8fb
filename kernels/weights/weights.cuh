/* weights.cuh - shared by weights.cu and quant/mx.cu: tiles of a set of weights, and its end. */
#ifndef TE_WEIGHTS_CUH
#define TE_WEIGHTS_CUH

#include "kernels/dev.cuh"

/* the entry that a tile belongs to: the last one that begins at or before it */
DEV int entry_of(const struct te_k_weights &a, int64_t tile)
{
	int lo = 0, hi = a.n - 1;

	while (lo < hi) {
		const int mid = (lo + hi + 1) / 2;

		if (a.table[mid].tile <= tile)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

/* all threads of a block call it once, after their last access: true in the last block */
DEV bool is_last_block(struct te_k_weights_done *done)
{
	__shared__ bool last;

	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		last = atomicAdd((unsigned long long *)&done->nblocks, 1ull) == gridDim.x - 1;
		if (last)
			done->nblocks = 0;
		__threadfence();
	}
	__syncthreads();
	return last;
}

#endif
