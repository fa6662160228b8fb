/* comm_data.c - inputs of te_perftest comm, and their sums. */
#include "config.h"

#include "comm.h"

/* element i of a rank: sums of these numbers have to be rounded */
float comm_element(int rank, int64_t i)
{
	uint64_t z = ((uint64_t)i * 64 + (uint64_t)rank + 1) * 0x9e3779b97f4a7c15u;

	z ^= z >> 29;
	z *= 0xbf58476d1ce4e5b9u;
	return (float)(int32_t)(z >> 32) * 0x1p-31f;
}

void comm_fill(const struct comm *c, int rank, void *p)
{
	for (int64_t i = 0; i < c->count; i++) {
		const float x = comm_element(rank, i);

		if (te_dtype_nbytes(c->dtype) == sizeof(x))
			((float *)p)[i] = x;
		else
			((uint16_t *)p)[i] = te_bf16_encode(x);
	}
}

void comm_add_up(const struct comm *c, void *ret)
{
	for (int64_t i = 0; i < c->count; i++) {
		float sum = 0, x;

		for (int r = 0; r < c->nranks; r++) {
			x = comm_element(r, i);
			if (c->dtype != TE_DTYPE_FP32)
				x = te_bf16_decode(te_bf16_encode(x));
			sum = r ? sum + x : x;
		}
		if (!c->fuse)
			sum /= (float)c->nranks;
		if (c->dtype == TE_DTYPE_FP32)
			((float *)ret)[i] = sum;
		else
			((uint16_t *)ret)[i] = te_bf16_encode(sum);
	}
}
