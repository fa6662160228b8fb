/* comm_data.c - inputs of te_perftest comm, and results. */
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

static float decode(const struct comm *c, float x)
{
	return c->dtype == TE_DTYPE_FP32 ? x : te_bf16_decode(te_bf16_encode(x));
}

static float sum_of(const struct comm *c, int64_t i)
{
	float sum = decode(c, comm_element(0, i));

	for (int r = 1; r < c->nranks; r++)
		sum += decode(c, comm_element(r, i));
	return c->fuse ? sum : sum / (float)c->nranks;
}

void comm_expect(const struct comm *c, void *ret)
{
	const int64_t part = c->count / c->nranks, first = c->rank * part;
	const int before = (c->rank + c->nranks - 1) % c->nranks;
	const int roots = c->call == COMM_GATHER || c->call == COMM_REDUCE;
	const int sends = c->call == COMM_SEND && c->rank % 2 == 0;
	const int64_t n = sends || (roots && c->rank) ? 0 :
			  c->call == COMM_SCATTER     ? part :
							c->count;

	for (int64_t i = 0; i < n; i++) {
		const float x =
			c->call == COMM_SENDRECV || c->call == COMM_SEND ?
				comm_element(before, i) :
			c->call == COMM_ALLTOALL ? comm_element((int)(i / part), first + i % part) :
			c->call == COMM_GATHER	 ? comm_element((int)(i / part), i % part) :
			c->call == COMM_SCATTER	 ? comm_element(0, first + i) :
						   sum_of(c, i);

		if (c->dtype == TE_DTYPE_FP32)
			((float *)ret)[i] = x;
		else
			((uint16_t *)ret)[i] = te_bf16_encode(x);
	}
}
