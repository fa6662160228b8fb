/*
 * messages.cu - messages between ranks. sm_90a. messages.h has the protocol.
 *
 *  kernel           blocks                                             threads
 *  messages         lanes, for each message that the rank sends,       544; 64 and more if all
 *                   receives or copies to itself                       messages are small
 *  messages_reduce  lanes                                              512
 *  group            at most lanes, for each chain                      544
 *
 * A block has a lane of one message and waits for its chunks only, so that messages do not wait for
 * each other; in a group it has lanes of one chain. All blocks of all ranks must be resident.
 *
 * Headers are packets with flags: the chunk's number modulo 2^31 in the upper word of each half.
 *
 * A small message costs no fence on the way of its data. A receiver marks chunks as taken without
 * waiting for a fence either: a kernel has it before it waits for the kernel before it, and then
 * marks the chunks that kernels before that one have received (te_begin() of that one has waited
 * for these).
 */
#include "kernels/comm/comm.cuh"

#define AT_ONCE 2 /* packets of a thread that it loads before it stores the first of them */
/* a receiver loads as many: all of a slot */
#define ALL_OF_SLOT (TE_K_COMM_SLOT_MOST / COMM_THREADS / TE_K_COMM_PACKET)
#define PART (AT_ONCE * COMM_THREADS * TE_K_COMM_PACKET) /* bytes, of a chunk, of all threads */
#define WAIT_THREAD 0 /* waits for headers and free slots of chunks */
/* has fences, and headers of small messages; in a warp without data unless these are large */
#define FENCE_THREAD (blockDim.x - 32)

/* a lane of a message of this rank and another one */
struct lane {
	const struct te_k_comm_messages &a;
	struct op &o; /* its epoch is the number of the message */
	uint8_t *data;
	int64_t nbytes;
	int64_t each; /* bytes of a chunk */
	int64_t nchunks;
	int peer, index, nlanes;
	uint64_t *counters;
	uint64_t first;	 /* number of its first chunk */
	uint64_t signature;
};

DEV uint64_t *word_at(const struct te_k_comm_messages &a, int rank, int64_t offset)
{
	return (uint64_t *)(region(a.comm, rank) + offset);
}

/* the last of rank's chunks that the peer has taken */
DEV uint64_t *taken(const struct te_k_comm_messages &a, int rank, int peer, int lane)
{
	return word_at(a, rank, te_k_comm_lane(&a, peer, lane));
}

/* header of a chunk from the peer to rank, before its data */
DEV uint4 *slot(const struct te_k_comm_messages &a, int rank, int peer, int lane, uint64_t chunk)
{
	return (uint4 *)word_at(a, rank, te_k_comm_slot(&a, peer, lane, chunk));
}

#define SLOT_DATA 8 /* packets of the line of a header */

DEV uint32_t tag_of(uint64_t chunk)
{
	return (uint32_t)chunk & 0x7fffffff;
}

DEV uint4 flagged(uint32_t a, uint32_t b, uint32_t tag)
{
	return make_uint4(a, tag, b, tag);
}

DEV bool has_flags(const uint4 &v, uint32_t tag)
{
	return v.y == tag && v.w == tag;
}

DEV void store_relaxed(uint64_t *p, uint64_t x)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}

/* packet at p, of which the array has n bytes or more */
DEV uint4 read_at(const uint8_t *p, int64_t n)
{
	return n >= TE_K_COMM_PACKET && aligned(p) ?
		       *(const uint4 *)p :
		       read_bytes(p, clamp_int(n, 0, TE_K_COMM_PACKET));
}

DEV void write_at(uint8_t *p, int64_t n, uint4 v)
{
	if (n >= TE_K_COMM_PACKET && aligned(p))
		*(uint4 *)p = v;
	else
		write_bytes(p, clamp_int(n, 0, TE_K_COMM_PACKET), v);
}

/* --- waits --- */

/* until the slot of the chunk is free */
DEV bool wait_free(const struct lane &l, uint64_t chunk)
{
	const uint64_t *word = taken(l.a, l.a.comm.rank, l.peer, l.index);
	uint64_t x;

	/* modulo 2^64, as -1 is before 0 */
	while (x = load_acquire(word), chunk - x > TE_K_COMM_SLOTS)
		if (!again(l.a.comm, l.o, TE_K_COMM_SEND, 1u << l.peer, chunk, x))
			return false;
	return true;
}

/* lane 0 finds out if the header is of another message; other lanes wait until it has */
DEV bool wait_header(const struct te_k_comm_messages &a, struct op &o, int peer, int lane,
		     uint64_t chunk, uint64_t signature)
{
	const uint4 *p = slot(a, a.comm.rank, peer, lane, chunk);
	/* these do not fail before lane 0, which knows the number of the message */
	const uint32_t phase = lane ? TE_K_COMM_RECEIVE_REST : TE_K_COMM_RECEIVE;
	uint64_t got = 0;

	do {
		const uint4 v = load_packet_acquire(p);

		if (!has_flags(v, tag_of(chunk)))
			continue;
		got = (uint64_t)v.z << 32 | v.x;
		if (got == signature)
			return true;
		if (lane)
			continue;
		fail(a.comm, o.epoch, TE_K_COMM_MISMATCH, TE_K_COMM_RECEIVE, 1u << peer, signature,
		     got);
		return false;
	} while (again(a.comm, o, phase, 1u << peer, chunk, got));
	return false;
}

/* --- small messages --- */

DEV uint8_t *small_packets(const struct lane &l, int rank, int peer)
{
	return (uint8_t *)word_at(l.a, rank, te_k_comm_small(&l.a, peer, l.first));
}

/* ok: as in messages(), where it is loaded; looked at after all other loads have begun */
DEV bool send_small(const struct lane &l, bool ok)
{
	const uint32_t tag = tag_of(l.first);
	const int me = l.a.comm.rank;
	int64_t b = threadIdx.x * TE_K_COMM_PACKET;
	uint4 v;

	if (b < l.nbytes) /* while the word of taken chunks is loaded */
		v = read_at(l.data + b, l.nbytes - b);
	if (!wait_free(l, l.first) || !ok)
		return false;
	if (threadIdx.x == FENCE_THREAD)
		store_packet(slot(l.a, l.peer, me, 0, l.first),
			     flagged((uint32_t)l.signature, (uint32_t)(l.signature >> 32), tag));
	while (b < l.nbytes) {
		uint8_t *p = small_packets(l, l.peer, me) + 2 * b;

		store_packet(p, flagged(v.x, v.y, tag));
		store_packet(p + TE_K_COMM_PACKET, flagged(v.z, v.w, tag));
		b += blockDim.x * TE_K_COMM_PACKET;
		if (b < l.nbytes)
			v = read_at(l.data + b, l.nbytes - b);
	}
	return true;
}

DEV bool receive_small(const struct lane &l)
{
	const uint32_t tag = tag_of(l.first);

	if (threadIdx.x == FENCE_THREAD &&
	    !wait_header(l.a, l.o, l.peer, 0, l.first, l.signature))
		return false;
	for (int64_t b = threadIdx.x * TE_K_COMM_PACKET; b < l.nbytes;
	     b += blockDim.x * TE_K_COMM_PACKET) {
		uint8_t *p = small_packets(l, l.a.comm.rank, l.peer) + 2 * b;
		uint4 v, w;

		while (v = load_packet(p), w = load_packet(p + TE_K_COMM_PACKET),
		       !has_flags(v, tag) || !has_flags(w, tag))
			if (!again(l.a.comm, l.o, TE_K_COMM_RECEIVE, 1u << l.peer, l.first, v.y))
				return false;
		store_packet(p, empty());
		store_packet(p + TE_K_COMM_PACKET, empty());
		write_at(l.data + b, l.nbytes - b, make_uint4(v.x, v.z, w.x, w.z));
	}
	return true;
}

/* --- chunks --- */

/* v[u]: packet threadIdx.x + u * COMM_THREADS of n bytes at p, in an array or in a slot */
#define EACH_OF_PART(u, b, n)                                                              \
	_Pragma("unroll") for (int u = 0; u < M; u++)                                      \
		if (const int b = ((int)threadIdx.x + u * COMM_THREADS) * TE_K_COMM_PACKET; \
		    b < (n))

template <int M> DEV void load_part(uint4 (&v)[M], const uint8_t *p, int n)
{
	EACH_OF_PART(u, b, n)
		v[u] = read_at(p + b, n - b);
}

template <int M> DEV void store_part(const uint4 (&v)[M], uint8_t *p, int n)
{
	EACH_OF_PART(u, b, n)
		write_at(p + b, n - b, v[u]);
}

/* memory of a slot is aligned, and has whole packets */
template <int M> DEV void load_slot(uint4 (&v)[M], const uint8_t *p, int n)
{
	EACH_OF_PART(u, b, n)
		v[u] = *(const uint4 *)(p + b);
}

template <int M> DEV void store_slot(const uint4 (&v)[M], uint8_t *p, int n)
{
	EACH_OF_PART(u, b, n)
		*(uint4 *)(p + b) = v[u];
}

/* bytes of chunk k of the lane, which begin at byte at */
DEV int chunk_at(const struct lane &l, int64_t k, int64_t &at)
{
	const int64_t left = l.nbytes - (at = (l.index + k * l.nlanes) * l.each);

	return (int)(left < l.each ? left : l.each);
}

/*
 * Chunks are sent and received by COMM_THREADS threads, the *data warps*, which go on with the next
 * chunk while the warp after them, which has fences, has the fence of this one. They are at most
 * TE_K_COMM_SLOTS chunks ahead of it, because the other rank waits for what it stores; so there is
 * a barrier for each slot.
 */
#define CHUNK_THREADS (COMM_THREADS + COMM_HEADER_THREADS)

/* a barrier of the data warps: ok of all of them */
DEV bool data_sync(bool ok)
{
	int all;

	__syncwarp();
	asm volatile("{\n\t.reg .pred p, q;\n\t"
		     "setp.ne.s32 p, %1, 0;\n\t"
		     "bar.red.and.pred q, 1, %2, p;\n\t"
		     "selp.s32 %0, 1, 0, q;\n\t}"
		     : "=r"(all)
		     : "r"((int)ok), "n"(COMM_THREADS)
		     : "memory");
	return all;
}

/* data warps: the accesses of the chunk are before what the other warp does after chunk_sync() */
DEV void chunk_arrive(uint64_t chunk)
{
	__syncwarp();
	asm volatile("bar.arrive %0, %1;" ::"r"(2 + (int)(chunk % TE_K_COMM_SLOTS)),
		     "n"(CHUNK_THREADS)
		     : "memory");
}

DEV void chunk_sync(uint64_t chunk)
{
	__syncwarp();
	asm volatile("bar.sync %0, %1;" ::"r"(2 + (int)(chunk % TE_K_COMM_SLOTS)),
		     "n"(CHUNK_THREADS)
		     : "memory");
}

/*
 * The other warp, after each chunk up to one for which a wait has failed; *bad: that chunk's k. A
 * receiver marks chunks without a fence, which would wait for its stores to the output: its loads
 * of the slot have returned before the barrier, since their values have been stored. The first mark
 * has a fence, for a small message before it.
 */
DEV void mark_chunks(const struct lane &l, bool sends, const volatile int64_t *bad)
{
	for (int64_t k = 0; k < l.nchunks; k++) {
		const uint64_t chunk = l.first + k;

		chunk_sync(chunk);
		if (k == *bad)
			return;
		if (threadIdx.x != FENCE_THREAD)
			continue;
		if (sends) {
			fence();
			store_packet(slot(l.a, l.peer, l.a.comm.rank, l.index, chunk),
				     flagged((uint32_t)l.signature, (uint32_t)(l.signature >> 32),
					     tag_of(chunk)));
		} else if (k + 1 < l.nchunks) {
			if (k == 0)
				fence();
			store_relaxed(taken(l.a, l.peer, l.a.comm.rank, l.index), chunk);
		}
	}
}

/* ok: as in messages(). This and receive_chunks() have the same result for all threads */
DEV bool send_chunks(const struct lane &l, bool ok, volatile int64_t *bad)
{
	uint4 v[AT_ONCE];
	int64_t at;
	int n = chunk_at(l, 0, at);

	load_part(v, l.data + at, n);
	for (int64_t k = 0; k < l.nchunks; k++) {
		const uint64_t chunk = l.first + k;
		uint4 *s = slot(l.a, l.peer, l.a.comm.rank, l.index, chunk);

		l.o.since = 0;
		if (threadIdx.x == WAIT_THREAD && !(ok && wait_free(l, chunk))) {
			ok = false;
			*bad = k;
		}
		ok = data_sync(ok);
		for (int b = 0; ok && b < n; b += PART) {
			store_slot(v, (uint8_t *)(s + SLOT_DATA) + b, n - b);
			if (b + PART < n)
				load_part(v, l.data + at + b + PART, n - b - PART);
		}
		chunk_arrive(chunk);
		if (!ok)
			return false;
		if (k + 1 < l.nchunks) {
			n = chunk_at(l, k + 1, at);
			load_part(v, l.data + at, n);
		}
	}
	return true;
}

/* M: packets of a thread at once; more shorten the time from the last header to the end */
template <int M>
DEV bool receive_chunks(const struct lane &l, bool ok, volatile int64_t *bad)
{
	uint4 v[M];

	for (int64_t k = 0; k < l.nchunks; k++) {
		const uint64_t chunk = l.first + k;
		const uint4 *s = slot(l.a, l.a.comm.rank, l.peer, l.index, chunk);
		int64_t at;
		const int n = chunk_at(l, k, at);

		l.o.since = 0;
		if (threadIdx.x == WAIT_THREAD &&
		    !(ok && wait_header(l.a, l.o, l.peer, l.index, chunk, l.signature))) {
			ok = false;
			*bad = k;
		}
		ok = data_sync(ok);
		for (int b = 0; ok && b < n; b += M * PART / AT_ONCE) {
			load_slot(v, (const uint8_t *)(s + SLOT_DATA) + b, n - b);
			store_part(v, l.data + at + b, n - b);
		}
		chunk_arrive(chunk);
		if (!ok)
			return false;
	}
	return true;
}

/* the message of a rank to itself */
DEV void copy_chunks(const struct lane &l, const uint8_t *src)
{
	for (int64_t k = 0; k < l.nchunks; k++) {
		int64_t at;
		const int n = chunk_at(l, k, at);

#pragma unroll 2
		for (int b = (int)threadIdx.x * TE_K_COMM_PACKET; b < n;
		     b += (int)blockDim.x * TE_K_COMM_PACKET)
			write_at(l.data + at + b, n - b, read_at(src + at + b, n - b));
	}
}

/* --- counters --- */

/* lane 0 may have ended already: then the number, which is for errors, is one too high */
DEV void begin_lane(struct lane &l, bool sends)
{
	const uint64_t *zero = word_at(l.a, l.a.comm.rank, te_k_comm_counters(&l.a, l.peer, 0));

	l.counters = word_at(l.a, l.a.comm.rank, te_k_comm_counters(&l.a, l.peer, l.index));
	l.first = l.counters[sends ? TE_K_COMM_SENT : TE_K_COMM_RECEIVED] + 1;
	l.o.epoch = zero[sends ? TE_K_COMM_SENT_MESSAGES : TE_K_COMM_RECEIVED_MESSAGES] + 1;
}

/* marks what kernels before the previous one have received: by a thread that has had a fence */
DEV void mark_taken(const struct lane &l)
{
	store_relaxed(taken(l.a, l.peer, l.a.comm.rank, l.index), l.counters[TE_K_COMM_TAKEN]);
}

/* by one thread, after all have begun */
DEV void end_lane(const struct lane &l, bool sends)
{
	const uint64_t last = l.first + l.nchunks - 1;

	l.counters[sends ? TE_K_COMM_SENT : TE_K_COMM_RECEIVED] = last;
	l.counters[sends ? TE_K_COMM_SENT_MESSAGES : TE_K_COMM_RECEIVED_MESSAGES] = l.o.epoch;
	if (!sends)
		l.counters[TE_K_COMM_TAKEN] = last - 1;
}

DEV void lane_of(struct lane &l, int index, int64_t nbytes, uint64_t signature)
{
	l.index = index;
	l.nbytes = nbytes;
	l.each = te_k_comm_chunk_nbytes(&l.a, nbytes);
	l.nlanes = te_k_comm_lanes(&l.a, nbytes);
	l.nchunks = (te_k_comm_nchunks(&l.a, nbytes) - index + l.nlanes - 1) / l.nlanes;
	l.signature = signature;
}

DEV void lane_of(struct lane &l, int index, int64_t count)
{
	lane_of(l, index, count * element_nbytes(l.a.comm.dtype), te_k_comm_message(&l.a, count));
}

/* a thread that finds that an earlier operation failed does not wait, send or receive */
DEV bool may_begin(const struct te_k_comm_messages &a)
{
	return !load_relaxed(&a.comm.ctl->failed);
}

/* --- kernels --- */

/* by all threads of a block. ok: as in messages(); bad: shared; M: of receive_chunks() */
template <int M>
DEV bool transfer(const struct lane &l, bool sends, bool ok, volatile int64_t *bad)
{
	if (te_k_comm_is_small(&l.a, l.nbytes))
		return sends ? send_small(l, ok) : ok && receive_small(l);
	if (threadIdx.x == 0)
		*bad = -1;
	/* threads may differ in what they have read of ctl->failed */
	ok = __syncthreads_and(ok);
	if (threadIdx.x >= COMM_THREADS)
		mark_chunks(l, sends, bad);
	else
		ok = sends ? send_chunks(l, ok, bad) : receive_chunks<M>(l, ok, bad);
	return ok;
}

/* the lane of this block; true: of a message that this rank sends to another one */
DEV bool lane_of_block(struct lane &l)
{
	const struct te_k_comm_messages &a = l.a;
	const uint32_t own = 1u << a.comm.rank;
	const int nsends = __popc(a.sends & ~own), nreceives = __popc(a.receives & ~own);
	const int nlanes = (int)gridDim.x / (nsends + nreceives + ((a.receives & own) != 0));
	const bool sends = (int)blockIdx.x < nsends * nlanes;
	int which = (int)blockIdx.x / nlanes - (sends ? 0 : nsends);

	l.peer = a.comm.rank; /* if it is none of the others */
	for (int i = 1; i < a.comm.nranks; i++) {
		const int r = after(a.comm, i);

		if (((sends ? a.sends : a.receives) >> r & 1) && which-- == 0) {
			l.peer = r;
			break;
		}
	}
	lane_of(l, (int)blockIdx.x % nlanes, (sends ? a.in_count : a.out_count)[l.peer]);
	l.data = sends ? (uint8_t *)a.comm.in + a.in_at[l.peer] :
			 (uint8_t *)a.comm.out + a.out_at[l.peer];
	return sends;
}

extern "C" __global__ void __launch_bounds__(CHUNK_THREADS)
te_k_comm_messages(const __grid_constant__ struct te_k_comm_messages a)
{
	__shared__ int64_t bad;
	struct op o = {};
	struct lane l = { a, o };
	const bool sends = lane_of_block(l);
	bool ok;

	if (threadIdx.x == FENCE_THREAD && !sends)
		fence();
	te_begin();
	if (l.index >= l.nlanes)
		return;
	begin_lane(l, sends);
	ok = may_begin(a);
	if (l.peer == a.comm.rank) {
		if (ok)
			copy_chunks(l, (const uint8_t *)a.comm.in + a.in_at[l.peer]);
		return;
	}
	if (threadIdx.x == FENCE_THREAD && !sends)
		mark_taken(l);
	ok = transfer<ALL_OF_SLOT>(l, sends, ok, &bad);
	if (__syncthreads_and(ok) && threadIdx.x == 0)
		end_lane(l, sends);
}

/* packet b of this rank's array and of the slots of the others to the output */
template <int N>
DEV void reduce_chunk(const struct lane &l, const uint64_t first[N], int64_t k)
{
	const struct te_k_comm_messages &a = l.a;
	const int me = a.comm.rank;
	const uint8_t *in = (const uint8_t *)a.comm.in + a.in_at[me];
	int64_t at;
	const int n = chunk_at(l, k, at);

	for (int64_t b = threadIdx.x * TE_K_COMM_PACKET; b < n;
	     b += COMM_THREADS * TE_K_COMM_PACKET) {
		uint4 v[N];

#pragma unroll
		for (int r = 0; r < N; r++)
			if (r < a.comm.nranks)
				v[r] = r == me ? read_at(in + at + b, n - b) :
						 slot(a, me, r, l.index, first[r] + k)
							 [SLOT_DATA + b / TE_K_COMM_PACKET];
		write_at(l.data + at + b, n - b, reduce<N>(a.comm, v));
	}
}

extern "C" __global__ void __launch_bounds__(COMM_THREADS)
te_k_comm_messages_reduce(const __grid_constant__ struct te_k_comm_messages a)
{
	__shared__ uint64_t first[TE_K_COMM_RANKS];
	const int me = a.comm.rank;
	struct op o = {};
	struct lane l = { a, o };
	bool ok;

	if (is_peer(a.comm))
		fence();
	lane_of(l, (int)blockIdx.x, a.out_count[me]);
	l.peer = is_peer(a.comm) ? (int)threadIdx.x : me;
	te_begin();
	l.data = (uint8_t *)a.comm.out + a.out_at[me];
	begin_lane(l, false);
	ok = may_begin(a);
	if (is_peer(a.comm)) {
		first[l.peer] = l.first;
		mark_taken(l);
	}
	for (int64_t k = 0; k < l.nchunks; k++) {
		o.since = 0;
		if (is_peer(a.comm))
			ok = ok && wait_header(a, o, l.peer, l.index, l.first + k, l.signature);
		ok = __syncthreads_and(ok);
		if (!ok)
			break;
		if (a.comm.nranks == 2)
			reduce_chunk<2>(l, first, k);
		else if (a.comm.nranks == 4)
			reduce_chunk<4>(l, first, k);
		else
			reduce_chunk<8>(l, first, k);
		__syncthreads();
		if (is_peer(a.comm) && k + 1 < l.nchunks)
			store_release(taken(a, l.peer, me, l.index), l.first + k);
	}
	if (ok && is_peer(a.comm))
		end_lane(l, false);
}

/* --- groups --- */

/* the first end of the chain with this number, or n; ret_n: chains */
DEV int first_of_chain(const struct te_k_comm_group &g, int which, int *ret_n)
{
	uint32_t seen[2] = { 0, 0 };
	int first = g.n;

	*ret_n = 0;
	for (int i = 0; i < g.n; i++) {
		const struct te_k_comm_end &e = g.ends[i];

		if (seen[e.sends != 0] >> e.peer & 1)
			continue;
		seen[e.sends != 0] |= 1u << e.peer;
		if ((*ret_n)++ == which)
			first = i;
	}
	return first;
}

/* marks all chunks of a lane, of which transfer() leaves the last one to a later launch */
DEV void mark_lane(const struct lane &l)
{
	const uint64_t last = l.first + l.nchunks - 1;

	if (threadIdx.x != FENCE_THREAD)
		return;
	fence();
	store_relaxed(taken(l.a, l.peer, l.a.comm.rank, l.index), last);
	l.counters[TE_K_COMM_TAKEN] = last;
}

extern "C" __global__ void __launch_bounds__(CHUNK_THREADS)
te_k_comm_group(const __grid_constant__ struct te_k_comm_group g)
{
	__shared__ struct te_k_comm_messages m;
	__shared__ struct te_k_comm_end e;
	__shared__ int64_t bad;
	__shared__ int nblocks; /* blocks of a chain */
	struct op o = {};
	struct lane l = { m, o };
	int nchains;

	te_begin();
	if (threadIdx.x == 0) {
		m.comm = g.comm;
		m.nlanes = g.nlanes;
		(void)first_of_chain(g, 0, &nchains);
		nblocks = (int)gridDim.x / nchains;
		e.next = first_of_chain(g, (int)blockIdx.x / nblocks, &nchains);
	}
	const bool ok = !load_relaxed(&g.comm.ctl->failed);

	while (__syncthreads(), e.next >= 0) {
		__syncthreads();
		if (threadIdx.x == 0) {
			e = g.ends[e.next];
			te_k_comm_set_message(&m, e.signature);
		}
		__syncthreads();
		l.index = (int)blockIdx.x % nblocks;
		for (; l.index < te_k_comm_lanes(&m, e.nbytes); l.index += nblocks) {
			l.peer = e.peer;
			l.data = e.data;
			lane_of(l, l.index, e.nbytes, e.signature);
			begin_lane(l, e.sends);
			if (!__syncthreads_and(transfer<AT_ONCE>(l, e.sends, ok, &bad)))
				return;
			if (threadIdx.x == 0)
				end_lane(l, e.sends);
			__syncthreads();
			if (!e.sends)
				mark_lane(l);
			__syncthreads();
		}
	}
}
