/*
 * collectives.cu - reduce-scatter, all-gather and broadcast. sm_90a. comm.h has the protocol and
 * the definition of results, algorithms.cuh the algorithms.
 *
 *  kernel           packets of a thread                 blocks of 512 threads, at most max_blocks
 *  ll, oneshot      1 of each 512 blocks                packets of count elements / 512
 *  zerocopy, staged the same; broadcast: of each chunk  the same; broadcast: / n
 *
 * No shared memory. Loops over ranks are unrolled for 2, 4 and 8 ranks where they reduce. Other
 * numbers, and the others, run the loop over 8 with conditions.
 */
#include "kernels/comm/algorithms.cuh"

/* BLOCKS: of a multiprocessor, as in all-reduce */
#define ONE_SHOT(N, BLOCKS)                                                                \
	COMM_KERNEL_ONE_SHOT_OF(BLOCKS, reduce_scatter_oneshot_##N,                        \
				TE_K_COLL_REDUCE_SCATTER, (one_shot<C, N, false>(a, o, first))) \
	COMM_KERNEL_ONE_SHOT_OF(BLOCKS, all_gather_oneshot_##N, TE_K_COLL_ALL_GATHER,      \
				(one_shot<C, N, false>(a, o, first)))

ONE_SHOT(2, 2)
ONE_SHOT(4, 1)
ONE_SHOT(8, 1)

COMM_KERNEL_ONE_SHOT(reduce_scatter_ll, TE_K_COLL_REDUCE_SCATTER,
		     (one_shot<C, 8, true>(a, o, first)))
COMM_KERNEL(reduce_scatter_zerocopy, TE_K_COLL_REDUCE_SCATTER, COMM_BY_RANKS(zero_copy))
COMM_KERNEL(reduce_scatter_staged, TE_K_COLL_REDUCE_SCATTER, COMM_BY_RANKS(staged))
COMM_KERNEL_ONE_SHOT(all_gather_ll, TE_K_COLL_ALL_GATHER, (one_shot<C, 8, true>(a, o, first)))
COMM_KERNEL(all_gather_zerocopy, TE_K_COLL_ALL_GATHER, (zero_copy<C, 8>(a, o)))
COMM_KERNEL(all_gather_staged, TE_K_COLL_ALL_GATHER, (staged<C, 8>(a, o)))
COMM_KERNEL_ONE_SHOT(broadcast_ll, TE_K_COLL_BROADCAST, (one_shot<C, 8, true>(a, o, first)))
COMM_KERNEL(broadcast_zerocopy, TE_K_COLL_BROADCAST, (zero_copy<C, 8>(a, o)))
COMM_KERNEL(broadcast_staged, TE_K_COLL_BROADCAST, (staged<C, 8>(a, o)))
