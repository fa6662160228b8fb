/*
 * allreduce.cu - all-reduce. sm_90a. comm.h has the protocol and the definition of results.
 *
 *  kernel  packets of a thread           blocks of 512 threads, at most max_blocks  sends
 *  l1      1 of each 512 blocks          packets / 512                              2 (n - 1) S
 *  p1      1 of each 512 blocks          packets / 512                              (n - 1) S
 *  p2, s   1 of each 512 blocks of each  packets / n / 512                          2 (n - 1) / n S
 *          chunk
 *
 * No shared memory. Packets are pushed before any is awaited, and awaited from all ranks at once.
 *
 * p1 and s are compiled for 2, 4 and 8 ranks, p2 for 4 and 8, where loops over ranks are unrolled;
 * other numbers run the loop over 8 with conditions, as l1 does for all.
 */
#include "kernels/comm/comm.cuh"

/* --- algorithms; false after a failure --- */

template <int N, bool FLAGS> DEV bool one_shot(const struct te_k_comm &a, struct op &o)
{
	EACH(i, 0, o.npackets) {
		const uint4 v = read_packet(o, a.in, i);

		for (int k = 1; k < a.nranks; k++)
			push<FLAGS>(a, o, after(a, k), a.rank * o.npackets + i, v);
	}
	if (!header_collect(a, o))
		return false;
	EACH(i, 0, o.npackets) {
		const uint4 own = read_packet(o, a.in, i);
		uint4 v[N];

		if (!collect<N, FLAGS>(a, o, TE_K_COMM_DATA, o.others, i, o.npackets, v))
			return false;
#pragma unroll
		for (int r = 0; r < N; r++)
			v[r] = r == a.rank ? own : v[r];
		write_packet(o, a.out, i, reduce<N>(a, v));
	}
	return true;
}

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

template <int N> DEV bool zero_copy(const struct te_k_comm &a, struct op &o)
{
	constexpr int AT_ONCE = N == 2 ? 4 : N == 4 ? 2 : 1; /* packets of each rank in flight */
	const int64_t begin = chunk_begin(o, a.rank), end = chunk_begin(o, a.rank + 1);
	const int64_t step = (int64_t)gridDim.x * COMM_THREADS;

	flags_store(a, o, TE_K_COMM_ENTRY);
	if (!__syncthreads_and(header_collect(a, o) && flags_wait(a, o, TE_K_COMM_ENTRY)))
		return false;
	for (int64_t i = begin + (int64_t)blockIdx.x * COMM_THREADS + threadIdx.x; i < end;
	     i += AT_ONCE * step) {
		uint4 v[AT_ONCE][N];

#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
			for (int r = 0; r < N; r++)
				if (r < a.nranks && i + u * step < end)
					v[u][r] = read_packet(
						o,
						(const uint8_t *)a.in + (r - a.rank) * a.stride,
						i + u * step);
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			if (i + u * step < end) {
				const uint4 s = reduce<N>(a, v[u]);

				for (int k = 0; k < a.nranks; k++)
					write_packet(o,
						     (uint8_t *)a.out +
							     (after(a, k) - a.rank) * a.stride,
						     i + u * step, s);
			}
	}
	__syncthreads();
	flags_store(a, o, TE_K_COMM_EXIT);
	return flags_wait(a, o, TE_K_COMM_EXIT);
}

/* --- kernels --- */

/* run ALGORITHM, an expression with template argument N, for the number of ranks */
#define COMM_BY_RANKS(ALGORITHM2, ALGORITHM4, ALGORITHM8)                                  \
	(a.nranks == 2 ? ALGORITHM2 : a.nranks == 4 ? ALGORITHM4 : ALGORITHM8)

#define COMM_KERNEL(NAME, ...)                                                             \
	extern "C" __global__ void __launch_bounds__(COMM_THREADS)                         \
		te_k_comm_allreduce_##NAME(const __grid_constant__ struct te_k_comm a)     \
	{                                                                                  \
		struct op o;                                                               \
											   \
		te_begin();                                                                \
		if (!begin(a, o, te_k_comm_signature(&a)))                                 \
			return;                                                            \
		__VA_ARGS__;                                                               \
		end(a, o);                                                                 \
	}
COMM_KERNEL(l1, (one_shot<8, true>(a, o)))
COMM_KERNEL(p1, COMM_BY_RANKS((one_shot<2, false>(a, o)), (one_shot<4, false>(a, o)),
			      (one_shot<8, false>(a, o))))
COMM_KERNEL(p2, COMM_BY_RANKS(two_shot<8>(a, o), two_shot<4>(a, o), two_shot<8>(a, o)))
COMM_KERNEL(s, COMM_BY_RANKS(zero_copy<2>(a, o), zero_copy<4>(a, o), zero_copy<8>(a, o)))
