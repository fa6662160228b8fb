/*
 * allreduce.cu - all-reduce. sm_90a. comm.h has the protocol and the definition of results,
 * algorithms.cuh the algorithms that other operations have, too.
 *
 *  kernel             packets of a thread           blocks of 512 threads, at most max_blocks
 *  ll, oneshot        1 of each 512 blocks          packets / 512
 *  twoshot, zerocopy  1 of each 512 blocks of each  packets / n / 512
 *                     chunk
 *  staged             1 of each 512 of the part of  packets / n / 512
 *                     a chunk that a block has in
 *                     a step
 *
 * ll and oneshot have another warp, for headers. No shared memory. All but ll are compiled for 2, 4
 * and 8 ranks, where loops over ranks are unrolled; other numbers run the loop over 8 with
 * conditions, as ll does for all.
 */
#include "kernels/comm/algorithms.cuh"

/* packets of a thread by which its results follow its inputs */
#define LAG 2

/* packet i of their chunks to the other ranks */
DEV void inputs_send(const struct te_k_comm &a, const struct op &o, int64_t i)
{
	for (int k = 1; k < a.nranks; k++) {
		const int r = after(a, k);
		const int64_t at = r * o.chunk + i;

		if (at < o.npackets)
			push<false>(a, o, r, packet_of(i, r, a.rank, o.chunk),
				    read_packet(o, a.in, at));
	}
}

/* packet i of this rank's chunk to the other ranks and the output; false after a failure */
template <int N> DEV bool result_send(const struct te_k_comm &a, struct op &o, int64_t i)
{
	const int64_t at = chunk_begin(o, a.rank) + i, inputs = (a.nranks - 1) * o.chunk;
	uint4 v[N], s;

	if (!collect_all<N>(a, o, i, o.chunk, read_packet(o, a.in, at), empty(), v))
		return false;
	s = reduce<N>(a, v);
	for (int k = 1; k < a.nranks; k++) {
		const int r = after(a, k);

		push<false>(a, o, r, inputs + packet_of(i, r, a.rank, o.chunk), s);
	}
	write_packet(o, a.out, at, s);
	return true;
}

/* packet i of the others' chunks to the output; false after a failure */
template <int N> DEV bool results_collect(const struct te_k_comm &a, struct op &o, int64_t i)
{
	uint32_t from = 0;
	uint4 v[N];

#pragma unroll
	for (int r = 0; r < N; r++)
		if (r < a.nranks && r != a.rank && r * o.chunk + i < o.npackets)
			from |= 1u << r;
	if (!collect<N, false>(a, o, TE_K_COMM_RESULT, from, (a.nranks - 1) * o.chunk + i,
			       o.chunk, v))
		return false;
#pragma unroll
	for (int r = 0; r < N; r++)
		if (from >> r & 1)
			write_packet(o, a.out, r * o.chunk + i, v[r]);
	return true;
}

/*
 * A thread has packet i of all chunks, so that in may be out. It sends inputs AHEAD packets before
 * it waits for them, and waits for results LAG packets later. There is no deadlock: the thread with
 * the least progress waits for inputs, or for earlier results, that all others have sent.
 */
template <int N> DEV bool two_shot(const struct te_k_comm &a, struct op &o)
{
	const int64_t step = (int64_t)gridDim.x * COMM_THREADS;
	const int64_t i0 = (int64_t)blockIdx.x * COMM_THREADS + threadIdx.x;
	const int64_t nmine = chunk_begin(o, a.rank + 1) - chunk_begin(o, a.rank);
	int64_t next = i0; /* to send */

#pragma unroll 1
	for (int k = 0; k < AHEAD && next < o.chunk; k++, next += step)
		inputs_send(a, o, next);
	if (!header_collect(a, o))
		return false;
#pragma unroll 1
	for (int64_t i = i0; i < o.chunk + LAG * step; i += step, next += step) {
		const int64_t result = i - LAG * step;

		if (next < o.chunk)
			inputs_send(a, o, next);
		if (i < nmine && !result_send<N>(a, o, i))
			return false;
		if (result >= i0 && result < o.chunk && !results_collect<N>(a, o, result))
			return false;
	}
	return true;
}

COMM_KERNEL_ONE_SHOT(allreduce_ll, TE_K_COLL_ALLREDUCE, (one_shot<C, 8, true>(a, o, first)))
#define ONE_SHOT(N, BLOCKS)                                                                \
	COMM_KERNEL_ONE_SHOT_OF(BLOCKS, allreduce_oneshot_##N, TE_K_COLL_ALLREDUCE,               \
				(one_shot<C, N, false>(a, o, first)))
#define TWO_SHOT(N) COMM_KERNEL(allreduce_twoshot_##N, TE_K_COLL_ALLREDUCE, two_shot<N>(a, o))

ONE_SHOT(2, 2)
ONE_SHOT(4, 1)
ONE_SHOT(8, 1)
TWO_SHOT(2)
TWO_SHOT(4)
TWO_SHOT(8)
COMM_KERNEL(allreduce_zerocopy, TE_K_COLL_ALLREDUCE, COMM_BY_RANKS(zero_copy))
COMM_KERNEL(allreduce_staged, TE_K_COLL_ALLREDUCE, COMM_BY_RANKS(staged))
