/*
 * last.cuh - the last block of a launch, or of a part of it, adds up what the others have stored,
 * instead of a second launch. The order of the additions does not depend on which block that is.
 */
#ifndef TE_LAST_CUH
#define TE_LAST_CUH

#include "kernels/dev.cuh"

/*
 * Is this block the last of n to call this with the ticket? Then all that they stored before is
 * visible to it, to loads from L2, and the ticket is 0 again. Called by all threads of a block.
 */
DEV bool last_of(uint32_t *ticket, uint32_t n)
{
	__shared__ bool last;

	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		last = atomicInc(ticket, n - 1) == n - 1;
		__threadfence();
	}
	__syncthreads();
	return last;
}

/*
 * Partial sums of columns: nparts blocks for each of ngroups groups of columns. Is this block, of
 * one group, the last to have stored its sums? It then adds up those of the groups *ret_first,
 * *ret_first + TE_TICKETS, and so on, which share a ticket.
 */
DEV bool last_of_group(uint32_t *tickets, uint32_t group, uint32_t ngroups, uint32_t nparts,
		       uint32_t *ret_first)
{
	const uint32_t first = group % TE_TICKETS;

	*ret_first = first;
	return last_of(tickets + first, nparts * ((ngroups - first + TE_TICKETS - 1) / TE_TICKETS));
}

/*
 * out[c] += part[0][c] + part[1][c] + ... for the NC columns from c0, as te_k_part_sum. NT threads;
 * rows is shared memory for STEP rows of NC numbers. All threads load the next rows from L2 while
 * one thread of each column adds the present ones in order.
 */
template <int NC, int NT, int STEP>
DEV void add_parts(const float *part, float *out, int64_t nparts, int64_t cols, int64_t c0,
		   float *rows)
{
	constexpr int EACH = NT / NC, N = STEP / EACH;
	const int col = threadIdx.x % NC, first = threadIdx.x / NC;
	const int64_t c = c0 + col;
	const bool in = c < cols, adds = in && first == 0;
	const float was = adds ? out[c] : 0.0f;
	float v[N], sum = 0.0f;

	static_assert(NT % NC == 0 && STEP % EACH == 0, "each thread loads N numbers of a column");
#pragma unroll
	for (int i = 0; i < N; i++) {
		const int p = first + i * EACH;

		v[i] = in && p < nparts ? __ldcg(part + p * cols + c) : 0.0f;
	}
	for (int64_t p0 = 0; p0 < nparts; p0 += STEP) {
		const int n = clamp_int(nparts - p0, 0, STEP);

#pragma unroll
		for (int i = 0; i < N; i++)
			rows[(first + i * EACH) * NC + col] = v[i];
		__syncthreads();
#pragma unroll
		for (int i = 0; i < N; i++) {
			const int64_t p = p0 + STEP + first + i * EACH;

			v[i] = in && p < nparts ? __ldcg(part + p * cols + c) : 0.0f;
		}
		if (adds)
#pragma unroll 16
			for (int p = 0; p < n; p++)
				sum = add(sum, rows[p * NC + col]);
		__syncthreads();
	}
	if (adds)
		out[c] = add(was, sum);
}

#endif
