/*
 * allreduce.cu - all-reduce. sm_90a. comm.h has the protocol and the definition of results,
 * algorithms.cuh the algorithms that other operations have, too.
 *
 *  kernel  packets of a thread           blocks of 512 threads, at most max_blocks  sends
 *  l1      1 of each 512 blocks          packets / 512                              2 (n - 1) S
 *  p1      1 of each 512 blocks          packets / 512                              (n - 1) S
 *  p2, s   1 of each 512 blocks of each  packets / n / 512                          2 (n - 1) / n S
 *          chunk
 *  r       1 of each 512 of the part of  packets / n / 512                          2 (n - 1) / n S
 *          a chunk that a block has in a
 *          step
 *
 * l1 and p1 have another warp, for headers. No shared memory. p1, s and r are compiled for 2, 4 and
 * 8 ranks, p2 for 4 and 8, where loops over ranks are unrolled; other numbers run the loop over 8
 * with conditions, as l1 does for all.
 */
#include "kernels/comm/algorithms.cuh"

/* EACH gives packet i of all chunks to the same thread, so that in may be out */
template <int N> DEV bool two_shot(const struct te_k_comm &a, struct op &o)
{
	const int64_t mine = chunk_begin(o, a.rank), nmine = chunk_begin(o, a.rank + 1) - mine;

	EACH(i, 0, o.chunk)
		for (int k = 1; k < a.nranks; k++) {
			const int r = after(a, k);
			const int64_t at = r * o.chunk + i;

			if (at < o.npackets)
				push<false>(a, o, r, a.rank * o.chunk + i,
					    read_packet(o, a.in, at));
		}
	if (!header_collect(a, o))
		return false;
	EACH(i, 0, nmine) {
		const uint4 own = read_packet(o, a.in, mine + i);
		uint4 v[N], s;

		if (!collect<N, false>(a, o, TE_K_COMM_DATA, o.others, i, o.chunk, v))
			return false;
#pragma unroll
		for (int r = 0; r < N; r++)
			v[r] = r == a.rank ? own : v[r];
		s = reduce<N>(a, v);
		for (int k = 1; k < a.nranks; k++)
			push<false>(a, o, after(a, k), (a.nranks + a.rank) * o.chunk + i, s);
		write_packet(o, a.out, mine + i, s);
	}
	EACH(i, 0, o.chunk) {
		uint32_t from = 0;
		uint4 v[N];

#pragma unroll
		for (int r = 0; r < N; r++)
			if (r < a.nranks && r != a.rank && r * o.chunk + i < o.npackets)
				from |= 1u << r;
		if (!collect<N, false>(a, o, TE_K_COMM_RESULT, from, a.nranks * o.chunk + i,
				       o.chunk, v))
			return false;
#pragma unroll
		for (int r = 0; r < N; r++)
			if (from >> r & 1)
				write_packet(o, a.out, r * o.chunk + i, v[r]);
	}
	return true;
}

COMM_KERNEL_ONE_SHOT(allreduce_l1, TE_K_COLL_ALLREDUCE, (one_shot<C, 8, true>(a, o, first)))
COMM_KERNEL_ONE_SHOT(allreduce_p1, TE_K_COLL_ALLREDUCE, ONE_SHOT_BY_RANKS(false))
COMM_KERNEL(allreduce_p2, TE_K_COLL_ALLREDUCE,
	    (a.nranks == 4 ? two_shot<4>(a, o) : two_shot<8>(a, o)))
COMM_KERNEL(allreduce_s, TE_K_COLL_ALLREDUCE, COMM_BY_RANKS(zero_copy))
COMM_KERNEL(allreduce_r, TE_K_COLL_ALLREDUCE, COMM_BY_RANKS(staged))
