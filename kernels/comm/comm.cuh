/*
 * comm.cuh - device side of the protocol of comm.h: packets, headers, flags, waits and failures.
 *
 * A kernel calls comm_begin(), begin(), pushes its data, calls header_collect(), collects, and
 * calls end(), also after a wait has failed. Blocks wait for data of the other ranks, so that all
 * blocks of all ranks must be resident: max_blocks is at most the number of multiprocessors, or
 * what each of n ranks on one GPU gets of them. te_begin() starts dependent kernels, but not before
 * all blocks are resident.
 *
 * Packets are loaded and stored as 16 bytes, relaxed, at system scope. The threads that exchange
 * headers have a fence before they push, and their loads acquire: with the boundaries of kernels
 * this orders emptying the packets of an epoch, by any thread, before these are filled again by any
 * thread of another rank, three epochs later. A load that acquires costs no more than another one.
 * Flags are stored with release and loaded with acquire semantics by one thread for each rank, and
 * bar.sync makes these cover the accesses of the block.
 */
#ifndef TE_COMM_CUH
#define TE_COMM_CUH

#include "kernels/comm/geometry.h"
#include "kernels/comm/reduce.cuh"
#include "kernels/dev.cuh"

#define PATIENCE 256 /* attempts between reads of the clock */

/* --- accesses of memory that other devices access --- */

DEV uint4 load_packet(const void *p)
{
	uint64_t lo, hi;

	asm volatile("{\n\t.reg .b128 x;\n\t"
		     "ld.relaxed.sys.global.b128 x, [%2];\n\t"
		     "mov.b128 {%0, %1}, x;\n\t}"
		     : "=l"(lo), "=l"(hi)
		     : "l"(p)
		     : "memory");
	return make_uint4((uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32));
}

DEV uint4 load_packet_acquire(const void *p)
{
	uint64_t lo, hi;

	asm volatile("{\n\t.reg .b128 x;\n\t"
		     "ld.acquire.sys.global.b128 x, [%2];\n\t"
		     "mov.b128 {%0, %1}, x;\n\t}"
		     : "=l"(lo), "=l"(hi)
		     : "l"(p)
		     : "memory");
	return make_uint4((uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32));
}

DEV void store_packet(void *p, uint4 v)
{
	asm volatile("{\n\t.reg .b128 x;\n\t"
		     "mov.b128 x, {%1, %2};\n\t"
		     "st.relaxed.sys.global.b128 [%0], x;\n\t}" ::"l"(p),
		     "l"((uint64_t)v.y << 32 | v.x), "l"((uint64_t)v.w << 32 | v.z)
		     : "memory");
}

DEV uint64_t load_acquire(const uint64_t *p)
{
	uint64_t x;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
	return x;
}

DEV void store_release(uint64_t *p, uint64_t x)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}

DEV uint32_t load_relaxed(const uint32_t *p)
{
	uint32_t x;

	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
	return x;
}

DEV void fence(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

DEV uint64_t now_ns(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* --- an operation --- */

struct op {
	uint64_t epoch, signature;
	uint64_t since;	   /* ns; 0: no wait of this thread took long yet */
	uint32_t attempts; /* attempts of this thread */
	uint32_t tag;	   /* ll: the upper words of full packets */
	int64_t buffer;	   /* offset of the epoch's buffer in a region */
	int64_t nbytes, npackets;
	int64_t whole; /* packets without the last one if that has fewer bytes */
	int64_t chunk; /* packets */
	uint32_t others; /* bit r: another rank */
};

DEV int element_nbytes(int32_t dtype)
{
	return dtype == TE_D_FP32 || dtype == TE_D_INT32 ? 4 :
	       dtype == TE_D_BF16 || dtype == TE_D_FP16	 ? 2 :
							   1;
}

DEV uint8_t *region(const struct te_k_comm &a, int rank)
{
	return a.slots + rank * a.stride;
}

DEV uint8_t *header(const struct te_k_comm &a, const struct op &o, int rank, int source)
{
	return region(a, rank) + o.buffer + source * TE_K_COMM_PACKET;
}

DEV uint8_t *packet(const struct te_k_comm &a, const struct op &o, int rank, int64_t index)
{
	return header(a, o, rank, TE_K_COMM_RANKS) + index * TE_K_COMM_PACKET;
}

DEV uint64_t *flag(const struct te_k_comm &a, int rank, int phase, int source)
{
	return (uint64_t *)(region(a, rank) +
			    ((phase - TE_K_COMM_ENTRY) * TE_K_COMM_CTAS + (int)blockIdx.x) * 128) +
	       source;
}

/* the i-th rank after this one: ranks do not all send to the same one first */
DEV int after(const struct te_k_comm &a, int i)
{
	const int r = a.rank + i;

	return r < a.nranks ? r : r - a.nranks;
}

/* describe the failure, unless another thread of the rank has done so */
__device__ __noinline__ void fail(const struct te_k_comm &a, uint64_t epoch, uint32_t code,
				  uint32_t phase, uint32_t missing, uint64_t expected, uint64_t got)
{
	struct te_k_comm_status *s = a.status;

	if (atomicCAS(&a.ctl->failed, 0u, code))
		return;
	s->code = code;
	s->phase = phase;
	s->peer = __ffs((int)missing) - 1;
	s->missing = code >= TE_K_COMM_MISMATCH ? 0 : missing;
	s->block = blockIdx.x;
	s->epoch = epoch;
	s->expected = expected;
	s->got = got;
	fence();
	*(volatile uint32_t *)&s->complete = 1;
}

/*
 * After PATIENCE attempts without success: 0 to give up, or the value of op.since. struct op is not
 * passed by reference, so that it stays in registers.
 */
__device__ __noinline__ uint64_t give_up(const struct te_k_comm &a, uint64_t epoch, uint64_t since,
					 uint32_t phase, uint32_t missing, uint64_t expected,
					 uint64_t got)
{
	const uint64_t now = now_ns();
	uint32_t code = TE_K_COMM_OK;

	if (load_relaxed(&a.ctl->failed))
		return 0;
	if (!since)
		since = now;
	if (load_relaxed(a.abort))
		code = TE_K_COMM_ABORTED;
	else if (a.deadline_ns && now - since > te_k_comm_limit_ns(a.deadline_ns, phase))
		code = TE_K_COMM_TIMEOUT;
	if (!code)
		return since;
	fail(a, epoch, code, phase, missing, expected, got);
	return 0;
}

/* counts an attempt that failed; returns true if the caller tries again */
DEV bool again(const struct te_k_comm &a, struct op &o, uint32_t phase, uint32_t missing,
	       uint64_t expected, uint64_t got)
{
	if (++o.attempts % PATIENCE)
		return true;
	o.since = give_up(a, o.epoch, o.since, phase, missing, expected, got);
	return o.since != 0;
}

/* --- packets --- */

DEV uint4 empty(void)
{
	return make_uint4(TE_K_COMM_EMPTY, TE_K_COMM_EMPTY, TE_K_COMM_EMPTY, TE_K_COMM_EMPTY);
}

template <bool FLAGS> DEV bool is_full(const struct op &o, uint4 v)
{
	return FLAGS ? v.y == o.tag && v.w == o.tag :
		       v.y != TE_K_COMM_EMPTY && v.w != TE_K_COMM_EMPTY;
}

/* without flags, a packet that is not empty: NaN in place of its upper words */
DEV uint4 full(uint4 v)
{
	v.y = v.y == TE_K_COMM_EMPTY ? TE_K_COMM_NAN : v.y;
	v.w = v.w == TE_K_COMM_EMPTY ? TE_K_COMM_NAN : v.w;
	return v;
}

/* FLAGS: two packets, each with half of the data */
template <bool FLAGS>
DEV void push(const struct te_k_comm &a, const struct op &o, int to, int64_t index, uint4 v)
{
	if (FLAGS) {
		uint8_t *p = packet(a, o, to, 2 * index);

		store_packet(p, make_uint4(v.x, o.tag, v.y, o.tag));
		store_packet(p + TE_K_COMM_PACKET, make_uint4(v.z, o.tag, v.w, o.tag));
		return;
	}
	store_packet(packet(a, o, to, index), full(v));
}

/* the packet at a rank that is index + each * its number of the source */
DEV int64_t packet_of(int64_t index, int to, int from, int64_t each)
{
	return index + te_k_comm_source(to, from) * each;
}

/* v[r] = packet index + source * each, emptied, of the ranks of missing; false after a failure */
template <int N, bool FLAGS>
DEV bool collect(const struct te_k_comm &a, struct op &o, uint32_t phase, uint32_t missing,
		 int64_t index, int64_t each, uint4 v[N])
{
	while (missing) {
		uint4 w[FLAGS ? N : 1];

#pragma unroll
		for (int r = 0; r < N; r++) {
			const uint8_t *p = packet(a, o, a.rank, (FLAGS ? 2 : 1) *
							packet_of(index, a.rank, r, each));

			if (!(missing >> r & 1))
				continue;
			v[r] = load_packet(p);
			if (FLAGS)
				w[r] = load_packet(p + TE_K_COMM_PACKET);
		}
		uint4 last = empty();
#pragma unroll
		for (int r = 0; r < N; r++) {
			uint8_t *p = packet(a, o, a.rank, (FLAGS ? 2 : 1) *
						  packet_of(index, a.rank, r, each));

			if (!(missing >> r & 1))
				continue;
			if (!is_full<FLAGS>(o, v[r]) || (FLAGS && !is_full<FLAGS>(o, w[r]))) {
				last = v[r];
				continue;
			}
			store_packet(p, empty());
			if (FLAGS) {
				store_packet(p + TE_K_COMM_PACKET, empty());
				v[r] = make_uint4(v[r].x, v[r].z, w[r].x, w[r].z);
			}
			missing &= ~(1u << r);
		}
		if (missing && !again(a, o, phase, missing, FLAGS ? (uint64_t)o.tag << 32 : 0,
				      (uint64_t)last.w << 32 | last.z))
			return false;
	}
	return true;
}

/* read and empty packet index of one rank, without flags; v: the part already loaded, or empty */
DEV bool collect_one(const struct te_k_comm &a, struct op &o, uint32_t phase, uint32_t from,
		     int64_t index, uint4 &v)
{
	uint8_t *p = packet(a, o, a.rank, index);

	while (!is_full<false>(o, v)) {
		v = load_packet(p);
		if (!is_full<false>(o, v) &&
		    !again(a, o, phase, from, 0, (uint64_t)v.w << 32 | v.z))
			return false;
	}
	store_packet(p, empty());
	return true;
}

/*
 * Collects packet index + source * each of all other ranks, and this rank's packet: v[r] is rank
 * r's. loaded: with two ranks, the part of the other packet that was loaded, or empty.
 */
template <int N>
DEV bool collect_all(const struct te_k_comm &a, struct op &o, int64_t index, int64_t each,
		     uint4 own, uint4 loaded, uint4 v[N])
{
	if constexpr (N == 2) {
		if (!collect_one(a, o, TE_K_COMM_DATA, o.others, index, loaded))
			return false;
		v[0] = a.rank ? loaded : own;
		v[1] = a.rank ? own : loaded;
		return true;
	} else {
		if (!collect<N, false>(a, o, TE_K_COMM_DATA, o.others, index, each, v))
			return false;
#pragma unroll
		for (int r = 0; r < N; r++)
			v[r] = r == a.rank ? own : v[r];
		return true;
	}
}

/* --- the arrays of the caller --- */

/* the first n bytes at p, by words if p is aligned to them; the others are 0 */
__device__ __noinline__ uint4 read_bytes(const uint8_t *p, int n)
{
	uint32_t w[4] = { 0, 0, 0, 0 };

	if (n == TE_K_COMM_PACKET && ((uint64_t)p & 3) == 0) {
#pragma unroll
		for (int k = 0; k < 4; k++)
			w[k] = ((const uint32_t *)p)[k];
	} else {
#pragma unroll
		for (int k = 0; k < TE_K_COMM_PACKET; k++)
			if (k < n)
				w[k / 4] |= (uint32_t)p[k] << k % 4 * 8;
	}
	return make_uint4(w[0], w[1], w[2], w[3]);
}

__device__ __noinline__ void write_bytes(uint8_t *p, int n, uint4 v)
{
	const uint32_t w[4] = { v.x, v.y, v.z, v.w };

	if (n == TE_K_COMM_PACKET && ((uint64_t)p & 3) == 0) {
#pragma unroll
		for (int k = 0; k < 4; k++)
			((uint32_t *)p)[k] = w[k];
	} else {
#pragma unroll
		for (int k = 0; k < TE_K_COMM_PACKET; k++)
			if (k < n)
				p[k] = (uint8_t)(w[k / 4] >> k % 4 * 8);
	}
}

/* packet i of an array; bytes beyond its end are 0 */
DEV uint4 read_packet(const struct op &o, const void *array, int64_t i)
{
	const uint8_t *p = (const uint8_t *)array + i * TE_K_COMM_PACKET;

	if (i < o.whole && aligned(array))
		return *(const uint4 *)p;
	return read_bytes(p, clamp_int(o.nbytes - i * TE_K_COMM_PACKET, 0, TE_K_COMM_PACKET));
}

DEV void write_packet(const struct op &o, void *array, int64_t i, uint4 v)
{
	uint8_t *p = (uint8_t *)array + i * TE_K_COMM_PACKET;

	if (i < o.whole && aligned(array))
		*(uint4 *)p = v;
	else
		write_bytes(p, clamp_int(o.nbytes - i * TE_K_COMM_PACKET, 0, TE_K_COMM_PACKET), v);
}

/* --- begin and end --- */

/* thread r sends to rank r and waits for it; all send first, so that no rank waits */
DEV bool is_peer(const struct te_k_comm &a)
{
	return (int)threadIdx.x < a.nranks && (int)threadIdx.x != a.rank;
}

/* the last warp of block 0 exchanges headers, thread r with rank r; -1: another thread */
DEV int header_peer(const struct te_k_comm &a)
{
	const int r = (int)threadIdx.x - ((int)blockDim.x - 32);

	return blockIdx.x == 0 && r >= 0 && r < a.nranks && r != a.rank ? r : -1;
}

/* the thread of that warp that has no peer begins the next epoch */
DEV bool keeps_epoch(const struct te_k_comm &a)
{
	return blockIdx.x == 0 && threadIdx.x == blockDim.x - 32 + a.rank;
}

/*
 * Where a kernel begins. The fence is for headers: the kernel before the previous one has ended,
 * because the previous one has called te_begin().
 */
DEV void comm_begin(const struct te_k_comm &a)
{
	if (header_peer(a) >= 0)
		fence();
	te_begin();
}

DEV void header_push(const struct te_k_comm &a, const struct op &o)
{
	const uint64_t s = o.signature, head = te_k_comm_head(&a, o.epoch);
	const int r = header_peer(a);

	if (r >= 0)
		store_packet(header(a, o, r, a.rank),
			     make_uint4((uint32_t)head, (uint32_t)(head >> 32), (uint32_t)s,
					(uint32_t)(s >> 32)));
}

/* waits until all other blocks have read the epoch, which they do without waiting for anything */
DEV bool blocks_wait(const struct te_k_comm &a, struct op &o)
{
	uint32_t n;

	while ((n = load_relaxed(&a.ctl->begun)) != gridDim.x - 1)
		if (!again(a, o, TE_K_COMM_HEADER, 0, gridDim.x - 1, n))
			return false;
	a.ctl->begun = 0;
	return true;
}

/* and waits for the other blocks of this rank */
DEV bool header_collect(const struct te_k_comm &a, struct op &o)
{
	const uint64_t s = o.signature, head = te_k_comm_head(&a, o.epoch);
	const int r = header_peer(a);
	uint8_t *p = header(a, o, a.rank, r);
	uint4 v;

	if (keeps_epoch(a))
		return blocks_wait(a, o);
	if (r < 0)
		return true;
	do {
		v = load_packet_acquire(p);
		if (is_full<false>(o, v)) {
			const uint64_t at = (uint64_t)v.y << 32 | v.x;
			const uint64_t got = (uint64_t)v.w << 32 | v.z;

			store_packet(p, empty());
			if (got == s && at == head)
				return true;
			fail(a, o.epoch,
			     got == s ? TE_K_COMM_MISMATCH_AT : TE_K_COMM_MISMATCH,
			     TE_K_COMM_HEADER, 1u << r, got == s ? head : s, got == s ? at : got);
			return false;
		}
	} while (again(a, o, TE_K_COMM_HEADER, 1u << r, s, 0));
	return false;
}

/* values that do not depend on the epoch */
DEV void extents(const struct te_k_comm &a, struct op &o)
{
	o.nbytes = a.count * element_nbytes(a.dtype);
	o.npackets = te_k_comm_packets(o.nbytes);
	o.whole = o.nbytes / TE_K_COMM_PACKET;
	o.chunk = te_k_comm_chunk(o.npackets, a.nranks);
	o.others = ((1u << a.nranks) - 1) & ~(1u << a.rank);
}

/*
 * Sends headers with this signature. Blocks tell block 0 when all their threads have read the
 * epoch, so that it can begin the next one without a message at the end, which would take as long
 * as a load. false: an earlier operation failed.
 */
DEV bool begin(const struct te_k_comm &a, struct op &o, uint64_t signature)
{
	const volatile struct te_k_comm_ctl *c = a.ctl;
	const uint64_t epoch = c->epoch;
	bool failed = c->failed;

	o.epoch = epoch;
	o.buffer = te_k_comm_buffer(&a, epoch);
	o.signature = signature;
	o.since = 0;
	o.attempts = 0;
	o.tag = (uint32_t)epoch & 0x7fffffff;
	extents(a, o);
	if (blockIdx.x) {
		/* an epoch never has all bits set: so the barrier comes after both loads */
		failed = __syncthreads_or(failed || epoch == ~0ull);
		if (threadIdx.x == 0)
			atomicAdd(&a.ctl->begun, 1);
	}
	if (failed)
		return false;
	header_push(a, o);
	return true;
}

/* begins the next epoch, unless block 0 has failed. ok: no thread of this block has */
DEV void end(const struct te_k_comm &a, const struct op &o, bool ok)
{
	if (ok && keeps_epoch(a))
		a.ctl->epoch = o.epoch + 1;
}

/* the threads of COMM_THREADS */
#define EACH(i, begin, end)                                                                \
	for (int64_t i = (begin) + (int64_t)blockIdx.x * COMM_THREADS + threadIdx.x;       \
	     threadIdx.x < COMM_THREADS && i < (end); i += (int64_t)gridDim.x * COMM_THREADS)

DEV int64_t chunk_begin(const struct op &o, int rank)
{
	return rank * o.chunk < o.npackets ? rank * o.chunk : o.npackets;
}

/* --- flags --- */

/* all accesses of the block are before the flags, which thread r sends to block i of rank r */
DEV void flags_store(const struct te_k_comm &a, const struct op &o, int phase, int64_t step = 0)
{
	__syncthreads();
	if (is_peer(a))
		store_release(flag(a, threadIdx.x, phase, a.rank),
			      te_k_comm_flag(&a, o.epoch, o.signature) + step);
}

/*
 * For all threads of the block, for the flags of this step of all ranks. staged: a rank may be one
 * step further, but no more, because it waits for flags of this one.
 */
DEV bool flags_wait(const struct te_k_comm &a, struct op &o, int phase, int64_t step = 0)
{
	const uint64_t want = te_k_comm_flag(&a, o.epoch, o.signature) + step;
	const uint64_t *p = flag(a, a.rank, phase, threadIdx.x);
	bool ok = true;
	uint64_t x;

	o.since = 0;
	while (is_peer(a) && ok && (x = load_acquire(p)) - want > 1)
		ok = again(a, o, phase, 1u << threadIdx.x, want, x);
	return __syncthreads_and(ok);
}

/* --- kernels --- */

/* ALGORITHM<C, N, ...>, compiled for the number of ranks */
#define COMM_BY_RANKS(ALGORITHM, ...)                                                      \
	(a.nranks == 2 ? ALGORITHM<C, 2, ##__VA_ARGS__>(a, o) :                            \
	 a.nranks == 4 ? ALGORITHM<C, 4, ##__VA_ARGS__>(a, o) :                            \
			 ALGORITHM<C, 8, ##__VA_ARGS__>(a, o))
/* FIRST: statements before the epoch is loaded */
#define COMM_KERNEL(...) COMM_KERNEL_OF(COMM_THREADS, 1, , __VA_ARGS__)
#define COMM_KERNEL_ONE_SHOT(...) COMM_KERNEL_ONE_SHOT_OF(1, __VA_ARGS__)
/* BLOCKS: blocks of a multiprocessor. Two leave room for the next kernel while this one ends. */
#define COMM_KERNEL_ONE_SHOT_OF(BLOCKS, ...)                                               \
	COMM_KERNEL_OF(COMM_THREADS + COMM_HEADER_THREADS, BLOCKS,                         \
		       const uint4 first = read_first<C>(a, o), __VA_ARGS__)
#define COMM_KERNEL_OF(THREADS, BLOCKS, FIRST, NAME, COLLECTIVE, ...)                      \
	extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                      \
		te_k_comm_##NAME(const __grid_constant__ struct te_k_comm a)               \
	{                                                                                  \
		constexpr int C = COLLECTIVE;                                              \
		struct op o;                                                               \
											   \
		comm_begin(a);                                                             \
		FIRST;                                                                     \
		if (!begin(a, o, te_k_comm_signature(&a) | (uint64_t)C << 60))             \
			return;                                                            \
		end(a, o, __syncthreads_and(__VA_ARGS__));                                 \
	}

#endif
