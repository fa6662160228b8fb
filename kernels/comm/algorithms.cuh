/*
 * algorithms.cuh - the algorithms of comm.h that several collective operations have. They return
 * false after a failure.
 *
 * Rank r reduces, or sends to all ranks, *chunk* r: packets of the array in all-reduce and
 * broadcast, and otherwise the part of rank r. A thread waits for its packets of all ranks at once.
 */
#ifndef TE_COMM_ALGORITHMS_CUH
#define TE_COMM_ALGORITHMS_CUH

#include "kernels/comm/comm.cuh"

/* C: enum te_k_comm_collective. Are arrays cut into chunks, or do they consist of parts? */
DEV constexpr bool is_cut(int C)
{
	return C == TE_K_COLL_ALLREDUCE || C == TE_K_COLL_BROADCAST;
}

/* do the ranks contribute to each packet, or only one of them? */
DEV constexpr bool reduces(int C)
{
	return C == TE_K_COLL_ALLREDUCE || C == TE_K_COLL_REDUCE_SCATTER;
}

DEV bool sends(const struct te_k_comm &a, int C)
{
	return C != TE_K_COLL_BROADCAST || a.rank == a.root;
}

/* the packets of a chunk; of rank r's chunk, which may have fewer */
template <int C> DEV int64_t chunk_of(const struct op &o)
{
	return is_cut(C) ? o.chunk : o.npackets;
}

template <int C> DEV int64_t chunk_of(const struct op &o, int r)
{
	return is_cut(C) ? chunk_begin(o, r + 1) - chunk_begin(o, r) : o.npackets;
}

/* the array with chunk r of the input or output, in memory shift bytes further */
template <int C>
DEV const uint8_t *array_in(const struct te_k_comm &a, const struct op &o, int r, int64_t shift)
{
	return (const uint8_t *)a.in + shift + (C == TE_K_COLL_REDUCE_SCATTER ? r * o.nbytes : 0);
}

template <int C>
DEV uint8_t *array_out(const struct te_k_comm &a, const struct op &o, int r, int64_t shift)
{
	return (uint8_t *)a.out + shift + (C == TE_K_COLL_ALL_GATHER ? r * o.nbytes : 0);
}

/* packet i of chunk r in that array */
template <int C> DEV int64_t in_array(const struct op &o, int r, int64_t i)
{
	return is_cut(C) ? r * o.chunk + i : i;
}

template <int C>
DEV uint4 read_chunk(const struct te_k_comm &a, const struct op &o, int r, int64_t i,
		     int64_t shift = 0)
{
	return read_packet(o, array_in<C>(a, o, r, shift), in_array<C>(o, r, i));
}

template <int C>
DEV void write_chunk(const struct te_k_comm &a, const struct op &o, int r, int64_t i, uint4 v,
		     int64_t shift = 0)
{
	write_packet(o, array_out<C>(a, o, r, shift), in_array<C>(o, r, i), v);
}

/* packet i of this rank's chunk, from the packets of all ranks */
template <int C, int N> DEV uint4 combine(const struct te_k_comm &a, const uint4 v[N])
{
	if constexpr (reduces(C)) {
		return reduce<N>(a, v);
	} else {
		uint4 s = v[0];

#pragma unroll
		for (int r = 1; r < N; r++)
			s = r == a.root ? v[r] : s;
		return s;
	}
}

/* the first packet of this rank's chunk that the thread sends: loaded while the epoch is */
template <int C> DEV uint4 read_first(const struct te_k_comm &a, struct op &o)
{
	const int64_t i = (int64_t)blockIdx.x * COMM_THREADS + threadIdx.x;

	extents(a, o);
	o.chunk = 0; /* chunks of all ranks begin where the array does */
	return sends(a, C) && threadIdx.x < COMM_THREADS && i < o.npackets ?
		       read_chunk<C>(a, o, a.rank, i) :
		       empty();
}

/* packet i to send to all ranks; in reduce-scatter each rank gets a different one */
template <int C> DEV uint4 read_common(const struct te_k_comm &a, const struct op &o, int64_t i)
{
	return C == TE_K_COLL_REDUCE_SCATTER ? empty() : read_chunk<C>(a, o, a.rank, i);
}

/* rounds of packets that a thread sends before it waits for packets of the first round */
#define AHEAD 3

/* send packet i of each chunk to the other ranks; v: the packet of this rank's chunk or, with one
 * chunk, the packet for all */
template <int C, int N, bool FLAGS>
DEV void one_shot_send(const struct te_k_comm &a, const struct op &o, int64_t i, uint4 v)
{
#pragma unroll
	for (int k = 1; k < (N < TE_K_COMM_RANKS ? N : a.nranks); k++) {
		const int r = after(a, k);

		if (C == TE_K_COLL_REDUCE_SCATTER)
			v = read_chunk<C>(a, o, r, i);
		push<FLAGS>(a, o, r, packet_of(i, r, a.rank, o.npackets), v);
	}
}

/* packet i from all ranks, of which own is this rank's, to the output; loaded: collect_all() */
template <int C, int N, bool FLAGS>
DEV bool one_shot_receive(const struct te_k_comm &a, struct op &o, int64_t i, uint4 own,
			  uint4 loaded)
{
	uint4 v[N];

	if constexpr (!FLAGS) {
		/* all ranks gather the same bits */
		if (C == TE_K_COLL_ALL_GATHER && a.nranks > 1)
			own = full(own);
		if (!collect_all<N>(a, o, i, o.npackets, own, loaded, v))
			return false;
	} else {
		const uint32_t from = C != TE_K_COLL_BROADCAST ? o.others : o.others & 1u << a.root;

		if (!collect<N, FLAGS>(a, o, TE_K_COMM_DATA, from, i, o.npackets, v))
			return false;
#pragma unroll
		for (int r = 0; r < N; r++)
			v[r] = r == a.rank ? own : v[r];
	}
	if (C != TE_K_COLL_ALL_GATHER)
		write_chunk<C>(a, o, a.rank, i, combine<C, N>(a, v));
#pragma unroll
	for (int r = 0; r < N && C == TE_K_COLL_ALL_GATHER; r++)
		if (r < a.nranks)
			write_chunk<C>(a, o, r, i, v[r]);
	return true;
}

/* ll and oneshot: the array is the only chunk, or parts are the chunks */
template <int C, int N, bool FLAGS>
DEV bool one_shot(const struct te_k_comm &a, struct op &o, uint4 first)
{
	const int64_t step = (int64_t)gridDim.x * COMM_THREADS;
	const int64_t i0 = (int64_t)blockIdx.x * COMM_THREADS + threadIdx.x;
	const int64_t end = threadIdx.x < COMM_THREADS ? o.npackets : 0;
	const int64_t send_end = sends(a, C) ? end : 0;
	int64_t next = i0; /* to send */

	o.chunk = 0;
#pragma unroll 1
	for (int k = 0; k < AHEAD && next < send_end; k++, next += step)
		one_shot_send<C, N, FLAGS>(a, o, next, k ? read_common<C>(a, o, next) : first);
	if (!header_collect(a, o))
		return false;
#pragma unroll 1
	for (int64_t i = i0; i < end; i += step, next += step) {
		uint4 own = first, v = empty(), loaded = empty();

		/* all loads before the thread waits for the first of them */
		if (next < send_end)
			v = read_common<C>(a, o, next);
		if (i != i0 && sends(a, C))
			own = read_chunk<C>(a, o, a.rank, i);
		if (N == 2 && !FLAGS)
			loaded = load_packet(packet(a, o, a.rank, i));
		if (next < send_end)
			one_shot_send<C, N, FLAGS>(a, o, next, v);
		if (!one_shot_receive<C, N, FLAGS>(a, o, i, own, loaded))
			return false;
	}
	return true;
}

/* zerocopy: packets of each of M inputs that a thread loads before it waits for them */
template <int M> constexpr int AT_ONCE = M == 1 ? 4 : 8 / M;

/* this rank's chunk of arrays that are aligned, without a packet that is not whole */
struct whole {
	const uint4 *in; /* memory of the first rank that is read */
	uint4 *out;	 /* memory of the first rank that is written */
	int nout;	 /* 1, or all ranks, from rank 0 on */
	int64_t end;	 /* packets */
};

template <int C>
DEV struct whole whole_of(const struct te_k_comm &a, const struct op &o, int64_t end)
{
	const int from = reduces(C) ? 0 : C == TE_K_COLL_BROADCAST ? a.root : a.rank;
	const int to = C == TE_K_COLL_REDUCE_SCATTER ? a.rank : 0;
	const int64_t at = in_array<C>(o, a.rank, 0);

	return {
		(const uint4 *)array_in<C>(a, o, a.rank, (from - a.rank) * a.stride) + at,
		(uint4 *)array_out<C>(a, o, a.rank, (to - a.rank) * a.stride) + at,
		C == TE_K_COLL_REDUCE_SCATTER ? 1 : a.nranks,
		end,
	};
}

/* packets i, i + step, ... of all inputs */
template <int M>
DEV void whole_read(const struct te_k_comm &a, const struct whole &w, int64_t i, int64_t step,
		    uint4 v[][M])
{
#pragma unroll
	for (int u = 0; u < AT_ONCE<M>; u++, i += step)
#pragma unroll
		for (int m = 0; m < M; m++)
			if (i < w.end && (M == 1 || m < a.nranks))
				v[u][m] = *(const uint4 *)((const uint8_t *)(w.in + i) +
							   m * a.stride);
}

/* write the results to all outputs */
template <int C, int M>
DEV void whole_write(const struct te_k_comm &a, const struct whole &w, int64_t i, int64_t step,
		     const uint4 v[][M])
{
#pragma unroll
	for (int u = 0; u < AT_ONCE<M>; u++, i += step) {
		if (i >= w.end)
			return;
		const uint4 s = reduces(C) ? reduce<M>(a, v[u]) : v[u][0];

		for (int k = 0; k < w.nout; k++)
			*(uint4 *)((uint8_t *)(w.out + i) +
				   (w.nout == 1 ? 0 : after(a, k)) * a.stride) = s;
	}
}

/*
 * The next inputs are loaded before the results of the last ones are stored: so 12 blocks have 97 %
 * of the bandwidth of 128 (doc/perf-comm.md).
 */
template <int C, int M>
DEV void zero_copy_whole(const struct te_k_comm &a, const struct whole &w)
{
	const int64_t step = (int64_t)gridDim.x * COMM_THREADS;
	int64_t i = (int64_t)blockIdx.x * COMM_THREADS + threadIdx.x;
	uint4 v[AT_ONCE<M>][M], next[AT_ONCE<M>][M];

	whole_read<M>(a, w, i, step, v);
	for (; i < w.end; i += AT_ONCE<M> * step) {
		whole_read<M>(a, w, i + AT_ONCE<M> * step, step, next);
		whole_write<C, M>(a, w, i, step, v);
#pragma unroll
		for (int u = 0; u < AT_ONCE<M>; u++)
#pragma unroll
			for (int m = 0; m < M; m++)
				v[u][m] = next[u][m];
	}
}

template <int C, int N> DEV bool zero_copy(const struct te_k_comm &a, struct op &o)
{
	constexpr int M = reduces(C) ? N : 1; /* inputs */
	const int one = C == TE_K_COLL_BROADCAST ? a.root : a.rank;
	const int64_t end = chunk_of<C>(o, a.rank), step = (int64_t)gridDim.x * COMM_THREADS;
	int64_t i = 0;

	flags_store(a, o, TE_K_COMM_ENTRY);
	if (!__syncthreads_and(header_collect(a, o)) || !flags_wait(a, o, TE_K_COMM_ENTRY))
		return false;
	if (aligned(a.in) && aligned(a.out) && (is_cut(C) || o.whole == o.npackets)) {
		i = is_cut(C) ? max(min(o.whole - chunk_begin(o, a.rank), end), (int64_t)0) : end;
		zero_copy_whole<C, M>(a, whole_of<C>(a, o, i));
	}
	for (i += (int64_t)blockIdx.x * COMM_THREADS + threadIdx.x; i < end; i += step) {
		uint4 v[M], s;

#pragma unroll
		for (int m = 0; m < M; m++) {
			const int r = reduces(C) ? m : one;

			if (r < a.nranks)
				v[m] = read_chunk<C>(a, o, a.rank, i, (r - a.rank) * a.stride);
		}
		s = reduces(C) ? reduce<M>(a, v) : v[0];
		for (int k = 0; k < (C == TE_K_COLL_REDUCE_SCATTER ? 1 : a.nranks); k++)
			write_chunk<C>(a, o, a.rank, i, s, (after(a, k) - a.rank) * a.stride);
	}
	flags_store(a, o, TE_K_COMM_EXIT);
	return flags_wait(a, o, TE_K_COMM_EXIT);
}

/* staged: the staging memory of a step of a block */
struct stage {
	uint8_t *buffer; /* in the region of this rank */
	int64_t first;	 /* packets of each chunk before this step and block */
	int npackets;	 /* packets of each chunk */
};

template <int C> DEV struct stage stage_at(const struct te_k_comm &a, const struct op &o, int64_t t)
{
	const int kinds = is_cut(C) ? 2 : 1;
	struct stage s;

	s.npackets = (int)(te_k_comm_step(a.buffer_nbytes, a.nranks, kinds) / gridDim.x);
	s.first = (t * gridDim.x + blockIdx.x) * s.npackets;
	s.buffer = packet(a, o, a.rank, ((t & 1) * gridDim.x + blockIdx.x) * kinds * a.nranks *
						s.npackets);
	return s;
}

/* packet i of a rank: an input (kind 0) or a result (kind 1) from a source */
DEV uint4 *staged_packet(const struct te_k_comm &a, const struct stage &s, int rank, int kind,
			 int source, int i)
{
	return (uint4 *)(s.buffer + (rank - a.rank) * a.stride) +
	       ((kind * a.nranks + source) * s.npackets + i);
}

#define EACH_STAGED(i, s, end)                                                             \
	for (int i = threadIdx.x; i < (s).npackets && (s).first + i < (end); i += COMM_THREADS)

#define SOME 4 /* packets of a thread in flight */

/* the inputs of all other ranks' chunks to these ranks */
template <int C>
DEV void stage_inputs(const struct te_k_comm &a, const struct op &o, int64_t t)
{
	const struct stage s = stage_at<C>(a, o, t);

	EACH_STAGED(i, s, sends(a, C) ? chunk_of<C>(o) : 0)
#pragma unroll 1
		for (int k = 1; k < a.nranks; k += SOME) {
			uint4 v[SOME];
			bool is[SOME];

#pragma unroll
			for (int m = 0; m < SOME; m++) {
				const int r = after(a, k + m);

				is[m] = k + m < a.nranks && s.first + i < chunk_of<C>(o, r);
				if (is[m])
					v[m] = read_chunk<C>(a, o, r, s.first + i);
			}
#pragma unroll
			for (int m = 0; m < SOME; m++)
				if (is[m])
					*staged_packet(a, s, after(a, k + m), 0, a.rank, i) = v[m];
		}
}

/* v[m] = the packet from rank r + m, which is empty afterwards */
template <int N>
DEV void unstage(const struct te_k_comm &a, const struct stage &s, int kind, uint32_t from, int r,
		 int i, uint4 v[N])
{
#pragma unroll
	for (int m = 0; m < N; m++)
		if (from >> (r + m) & 1)
			v[m] = *staged_packet(a, s, a.rank, kind, r + m, i);
#pragma unroll
	for (int m = 0; m < N; m++)
		if (from >> (r + m) & 1)
			*staged_packet(a, s, a.rank, kind, r + m, i) = empty();
}

/* the inputs of this rank's chunk to its output, and to the other ranks */
template <int C, int N>
DEV void stage_results(const struct te_k_comm &a, const struct op &o, int64_t t)
{
	const struct stage s = stage_at<C>(a, o, t);
	const uint32_t from = C != TE_K_COLL_BROADCAST ? o.others : o.others & 1u << a.root;

	EACH_STAGED(i, s, chunk_of<C>(o, a.rank)) {
		uint4 v[N], own = empty();

		if (sends(a, C))
			own = read_chunk<C>(a, o, a.rank, s.first + i);
		unstage<N>(a, s, 0, from, 0, i, v);
#pragma unroll
		for (int r = 0; r < N; r++) {
			v[r] = r == a.rank ? own : v[r];
			if (C == TE_K_COLL_ALL_GATHER && r < a.nranks)
				write_chunk<C>(a, o, r, s.first + i, v[r]);
		}
		if (C == TE_K_COLL_ALL_GATHER)
			continue;
		own = combine<C, N>(a, v);
		write_chunk<C>(a, o, a.rank, s.first + i, own);
		for (int k = 1; k < a.nranks && is_cut(C); k++)
			*staged_packet(a, s, after(a, k), 1, a.rank, i) = own;
	}
}

/* the results of the other chunks to the output */
template <int C>
DEV void unstage_results(const struct te_k_comm &a, const struct op &o, int64_t t)
{
	const struct stage s = stage_at<C>(a, o, t);

	EACH_STAGED(i, s, chunk_of<C>(o)) {
		uint32_t from = 0;

		for (int r = 0; r < a.nranks; r++)
			if (o.others >> r & 1 && s.first + i < chunk_of<C>(o, r))
				from |= 1u << r;
#pragma unroll 1
		for (int r = 0; r < a.nranks; r += SOME) {
			uint4 v[SOME];

			unstage<SOME>(a, s, 1, from, r, i, v);
#pragma unroll
			for (int m = 0; m < SOME; m++)
				if (from >> (r + m) & 1)
					write_chunk<C>(a, o, r + m, s.first + i, v[m]);
		}
	}
}

/*
 * staged. Block b of each rank has the same packets, so that it exchanges flags with block b of the
 * others only. In step t it sends inputs (entry flags), and results when it has theirs (exit flags,
 * which tell that it has read the inputs, too). The inputs of step t + 1 are sent before the
 * results of step t are awaited.
 *
 * Why two buffers of each kind are enough: inputs of step t + 1 replace inputs of step t - 1. The
 * receiver had read these before it set exit flag t - 1, which was awaited in step t - 1. Results
 * of step t replace results of step t - 2. The receiver had read these before it set entry flag t,
 * which was awaited before. One buffer is not enough: inputs of step t + 1 are sent while the
 * receiver may still read inputs of step t, and results of step t while it may still read results
 * of step t - 1 (t/comm/model.c).
 */
template <int C, int N> DEV bool staged(const struct te_k_comm &a, struct op &o)
{
	const int64_t each = (int64_t)stage_at<C>(a, o, 0).npackets * gridDim.x;

	stage_inputs<C>(a, o, 0);
	flags_store(a, o, TE_K_COMM_ENTRY, 0);
	if (!__syncthreads_and(header_collect(a, o)))
		return false;
	for (int64_t t = 0; t * each < chunk_of<C>(o); t++) {
		if (!flags_wait(a, o, TE_K_COMM_ENTRY, t))
			return false;
		stage_results<C, N>(a, o, t);
		flags_store(a, o, TE_K_COMM_EXIT, t);
		if ((t + 1) * each < chunk_of<C>(o)) {
			stage_inputs<C>(a, o, t + 1);
			flags_store(a, o, TE_K_COMM_ENTRY, t + 1);
		}
		if (!flags_wait(a, o, TE_K_COMM_EXIT, t))
			return false;
		if (is_cut(C))
			unstage_results<C>(a, o, t);
	}
	return true;
}

#endif
