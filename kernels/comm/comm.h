/*
 * comm.h - arguments of the collective kernels. Included by te_k.h, which has the common rules.
 *
 * Each rank launches the same kernels with the same sizes in the same order. A rank's *region* is
 * memory that all ranks map: the region of rank r is stride bytes after the region of rank r - 1,
 * in the addresses of every device. Ranks write into the regions of others, and read only their
 * own.
 *
 *	flags		[2 phases][TE_K_COMM_CTAS][16] words of 64 bits, one for each source rank:
 *			te_k_comm_flag() + step; word TE_K_COMM_ARRIVED is for nvls. The host, which
 *			has one block, continues in the words of the next one, and has its bell at
 *			TE_K_COMM_BELL_AT (comm.c)
 *	3 buffers	packet memory of the epochs with each remainder modulo 3
 *	channels	one for each rank, see messages.h
 *
 * A buffer holds one header for each source rank, then the packets of the operation. Both its parts
 * are laid out by the operation that uses it, because a packet that no operation uses is *empty*:
 * all its bits are set. The region is initialised to empty packets, flags included. Algorithm
 * staged uses the packets of a buffer as staging memory, which it leaves empty. Packets from rank s
 * are at source te_k_comm_source() in the layouts below, as a rank sends none to itself.
 *
 * A packet is 16 bytes, two halves of 8, of which each is full if its upper word differs from that
 * of an empty one. So memory accesses need to be atomic for 8 bytes only. Sender: data with
 * 0xffffffff there, which is NaN in each element of every floating type, is sent with 0x7fffffff,
 * which is too; no other value changes. Receiver: each packet is made empty as soon as it is read.
 *
 * Why three buffers are enough: a rank sends for epoch k + 1 after its kernel of epoch k has ended,
 * so after it has received header k of every rank. Every rank sent that after a fence, before which
 * its kernel k - 2 had ended, with the packets of epoch k - 2 empty again. This needs kernels of a
 * rank that do not overlap: te_begin() waits for the kernels before it. Two buffers would be enough
 * if the fence came after kernel k - 1, but it takes 1 to 2 us. So a kernel has it before it waits
 * for the kernel before it, while that one runs (t/comm/model.c).
 *
 * Headers: the operation (te_k_comm_signature()), the epoch and where arrays that others access are
 * (te_k_comm_head()). Ranks that differ in them find that out and fail instead of waiting.
 *
 * Failure: if nothing arrives before the deadline, or *abort is not 0, or a header differs, the
 * kernel sets ctl->failed, describes the reason in *status and ends, with undefined contents of
 * out. Later kernels with this ctl end at once. To continue, all ranks must have stopped, and
 * initialise their regions, ctl and status again.
 *
 * Results: x_0 + x_1 + ... in rank order in FP32, one rounding to the type, FP8 with saturation; an
 * average is divided by the number of ranks before that rounding. Minimum and maximum follow IEEE
 * 754-2019: NaN if an operand is NaN, and -0 below +0. NaN results are 0x7fffffff, 0x7fff or
 * 0x7f. Integers: the sum modulo 2^32 or 2^8, the average is the exact sum divided by the number
 * of ranks, rounded towards 0. So every algorithm but nvls gives the same bits, on every rank, and
 * reduce-scatter followed by all-gather gives the bits of all-reduce. With one rank the result is a
 * copy.
 * All-gather and broadcast do not change a bit, except NaN in an all-gather by oneshot: the upper
 * word of half a packet that has all bits set is 0x7fffffff in the outputs of all ranks.
 */
#ifndef TE_K_COMM_H
#define TE_K_COMM_H

#define TE_K_COMM_RANKS 8	/* GPUs; and nvls on the host */
#define TE_K_COMM_HOST_RANKS 32 /* the host; masks of ranks have 32 bits */
#define TE_K_COMM_CTAS 128
#define TE_K_COMM_PACKET 16
#define TE_K_COMM_EMPTY 0xffffffffu /* the upper word of half an empty packet */
#define TE_K_COMM_NAN 0x7fffffffu   /* sent instead */
#define TE_K_COMM_ARRIVED 8	    /* word of exit flags that all ranks have in common */

/* bits 60 to 62 of a signature */
enum te_k_comm_collective {
	TE_K_COLL_ALLREDUCE,
	TE_K_COLL_ALLREDUCE_NORM,
	TE_K_COLL_REDUCE_SCATTER,
	TE_K_COLL_ALL_GATHER,
	TE_K_COLL_BROADCAST,
	/* operations without kernels, for ranks on several nodes (libtecomm/collective/nodes) */
	TE_K_COLL_REDUCE,
	TE_K_COLL_GATHER,
	TE_K_COLL_SCATTER,
};

/*
 * Data sent by each algorithm, named as in te_comm_allreduce(3), and bytes that each of n ranks
 * sends in an all-reduce of B bytes:
 *	ll		2 (n - 1) B	all data to all ranks, half of each packet is a flag
 *	oneshot		(n - 1) B	all data to all ranks
 *	twoshot		2 (n - 1) / n B	a chunk to the rank that reduces it, its result to all
 *	zerocopy	2 (n - 1) / n B	nothing is copied: a rank reads its chunk of all inputs and
 *					writes the result to all outputs, in shared memory
 *	staged		2 (n - 1) / n B	as twoshot, in steps through staging memory, with flags
 *					after each step
 * oneshot and twoshot take floating types only, since integers have no value to spare for empty
 * packets. zerocopy reads in + (r - rank) * stride of rank r, and writes out likewise. staged takes
 * arrays of any size.
 *
 * Two algorithms of all-reduce use multicast memory (NVLS): instructions on it store to the memory
 * of all ranks, or reduce from it, in the switch. The address of memory at p in a rank's region, or
 * after it up to the stride, is multicast + (p - region).
 *	nvls		B + B / n	as zerocopy: a rank reduces its chunk by one load for all
 *					inputs, and stores the result to all outputs at once
 *	nvls-oneshot	B		as oneshot: one store for all ranks
 * nvls adds FP32, BF16 and FP16 in the order of the switch, so that its results may differ from
 * other algorithms' results; references add in rank order. An average is the sum, rounded to the
 * type, divided and rounded again. in and out are aligned to 16 bytes. The exit flags of nvls are
 * the low bits of one word, of which each rank clears its own in the words of all ranks.
 *
 * The other collectives have ll, zerocopy and staged; reduce-scatter and all-gather have oneshot,
 * too. Reduce-scatter is the first half of twoshot and all-gather the second, with a part of the
 * caller as chunk, which oneshot sends as packets. In a broadcast, ll sends all data
 * to all ranks; zerocopy and staged send the root's chunks in place of sums, so that the root sends
 * 2 (n - 1) / n B.
 */
enum te_k_comm_algorithm {
	TE_K_COMM_LL,
	TE_K_COMM_ONE_SHOT,
	TE_K_COMM_TWO_SHOT,
	TE_K_COMM_ZERO_COPY,
	TE_K_COMM_STAGED,
	TE_K_COMM_NVLS,
	TE_K_COMM_NVLS_ONE_SHOT,
	TE_K_COMM_ALGORITHMS
};

enum te_k_comm_op { TE_K_COMM_SUM, TE_K_COMM_AVG, TE_K_COMM_MIN, TE_K_COMM_MAX, TE_K_COMM_OPS };

/* phase of an operation that a message belongs to */
enum te_k_comm_phase {
	TE_K_COMM_HEADER,
	TE_K_COMM_DATA,	  /* ll, oneshot; twoshot: input of a chunk */
	TE_K_COMM_RESULT, /* twoshot */
	TE_K_COMM_ENTRY,  /* zerocopy: inputs may be read; staged: inputs have been sent */
	TE_K_COMM_EXIT,	  /* zerocopy: outputs are written; staged: inputs read, results sent */
	TE_K_COMM_SEND,	  /* a slot for a message is free */
	TE_K_COMM_RECEIVE, /* a message has arrived */
	TE_K_COMM_RECEIVE_REST, /* its chunks of other lanes than the first have */
};

enum te_k_comm_code {
	TE_K_COMM_OK,
	TE_K_COMM_TIMEOUT,  /* nothing arrived before the deadline */
	TE_K_COMM_ABORTED,  /* *abort is not 0 */
	TE_K_COMM_MISMATCH, /* another rank called another operation: signatures */
	TE_K_COMM_MISMATCH_AT, /* same operation, other offsets or epoch: te_k_comm_head() */
};

/* state of one rank, in its device memory, initially 0; used by one kernel at a time */
struct te_k_comm_ctl {
	uint64_t epoch;	 /* operations so far */
	uint32_t begun;	 /* blocks of the kernel that have read it, without block 0 */
	uint32_t failed; /* enum te_k_comm_code */
};

/* status of one rank, in memory that the host reads while a kernel runs */
struct te_k_comm_status {
	uint32_t complete; /* 1: the rest has been written */
	uint32_t code;	   /* enum te_k_comm_code */
	uint32_t phase;	   /* enum te_k_comm_phase */
	int32_t peer;	   /* the rank that did not answer, or answered otherwise; -1: none */
	uint32_t missing;  /* bit r: nothing had arrived from rank r either */
	uint32_t block;
	uint64_t epoch;
	uint64_t expected, got; /* signatures, heads, flags or packets' upper 8 bytes */
};

/* value of root for a barrier's maximum, which distinguishes it from a caller's operation */
#define TE_K_COMM_BARRIER 4

/*
 * count 0: not an operation, nothing to do. in and out are arrays of count elements; the input
 * of reduce-scatter and the output of all-gather have a part of count elements for each rank. In
 * place: out is in, or the larger one's part of this rank is the other one; no other overlap.
 */
struct te_k_comm {
	const void *in; /* broadcast: the root's; zerocopy: at this offset in its memory */
	void *out;
	uint8_t *slots; /* the region of rank 0, aligned to 128 */
	struct te_k_comm_ctl *ctl;
	const uint32_t *abort;
	struct te_k_comm_status *status;
	uint8_t *multicast; /* nvls, nvls-oneshot: the regions of all ranks at once; else unused */
	int64_t count; /* elements */
	int64_t stride, buffer_nbytes; /* multiples of 128 */
	uint64_t deadline_ns; /* time of all waits for packets, of each for flags; 0: none */
	int32_t nranks, rank;
	int32_t dtype, op, algorithm;
	int32_t max_blocks; /* 1 to TE_K_COMM_CTAS, the same on all ranks; all must be resident */
	int32_t root; /* broadcast, with op 0: the root; TE_K_COMM_BARRIER; otherwise 0 */
	uint32_t arrays; /* zerocopy, nvls: of offsets that others access, below 2^23; else 0 */
};

#define TE_K_COMM_BUFFERS 3
#define TE_K_COMM_FLAGS_NBYTES (2 * TE_K_COMM_CTAS * 128)
#define TE_K_COMM_BELL_AT (TE_K_COMM_FLAGS_NBYTES - 128)

/* bytes of the headers in a buffer */
TE_K_INLINE int64_t te_k_comm_headers_nbytes(int32_t nranks)
{
	return (nranks > TE_K_COMM_RANKS ? TE_K_COMM_HOST_RANKS : TE_K_COMM_RANKS) *
	       TE_K_COMM_PACKET;
}

/*
 * The time after which a wait fails. A rank's first message shows that it takes part. Later
 * messages may be missing because the rank waits for another one, which the error should name: so
 * waits for later phases last longer.
 */
TE_K_INLINE uint64_t te_k_comm_limit_ns(uint64_t deadline_ns, uint32_t phase)
{
	const int later = phase == TE_K_COMM_RESULT || phase == TE_K_COMM_EXIT ||
			  phase == TE_K_COMM_SEND || phase == TE_K_COMM_RECEIVE_REST;

	return deadline_ns + (later ? deadline_ns / 8 : 0);
}

/* a region without the channels of messages, which follow (kernels/comm/messages.h) */
TE_K_INLINE int64_t te_k_comm_region_nbytes(int64_t buffer_nbytes)
{
	return TE_K_COMM_FLAGS_NBYTES + TE_K_COMM_BUFFERS * buffer_nbytes;
}

/* offset of an epoch's buffer in a region */
TE_K_INLINE int64_t te_k_comm_buffer(const struct te_k_comm *a, uint64_t epoch)
{
	return TE_K_COMM_FLAGS_NBYTES + (int64_t)(epoch % TE_K_COMM_BUFFERS) * a->buffer_nbytes;
}

/* the number of a rank among the others that send to a rank */
TE_K_INLINE int32_t te_k_comm_source(int32_t to, int32_t from)
{
	return from - (from > to);
}

/* packets of nbytes; the elements of a packet do not depend on the array's address */
TE_K_INLINE int64_t te_k_comm_packets(int64_t nbytes)
{
	return (nbytes + TE_K_COMM_PACKET - 1) / TE_K_COMM_PACKET;
}

/* packets of the chunk of a rank, the last ones may have fewer: twoshot, zerocopy, staged */
TE_K_INLINE int64_t te_k_comm_chunk(int64_t npackets, int32_t nranks)
{
	return (npackets + nranks - 1) / nranks;
}

/*
 * Minimum of buffer_nbytes; nbytes: size of count elements. staged is faster with more, up to some
 * MiB, and needs this minimum so that each block has a packet in a step, and there are 2^22 steps
 * at most.
 */
TE_K_INLINE int64_t te_k_comm_buffer_nbytes(int32_t algorithm, int32_t nranks, int64_t nbytes)
{
	const int64_t n = te_k_comm_packets(nbytes);
	const int64_t packets =
		algorithm == TE_K_COMM_LL ? (nranks - 1) * n * 2 :
		algorithm == TE_K_COMM_ONE_SHOT ? (nranks - 1) * n :
		algorithm == TE_K_COMM_NVLS_ONE_SHOT ? nranks * n :
		algorithm == TE_K_COMM_TWO_SHOT ? 2 * (nranks - 1) * te_k_comm_chunk(n, nranks) :
		algorithm == TE_K_COMM_STAGED  ? 4 * nranks * (TE_K_COMM_CTAS + (n >> 20)) :
					    0;

	return (te_k_comm_headers_nbytes(nranks) + packets * TE_K_COMM_PACKET + 127) &
	       ~(int64_t)127;
}

/*
 * staged: packets of a chunk in a step of all blocks. Staging memory is [2][kinds][nranks] times
 * that: two buffers of inputs and, if kinds is 2, of results, from each rank.
 */
TE_K_INLINE int64_t te_k_comm_step(int64_t buffer_nbytes, int32_t nranks, int32_t kinds)
{
	return (buffer_nbytes - te_k_comm_headers_nbytes(nranks)) / TE_K_COMM_PACKET /
	       (2 * kinds * nranks);
}

/*
 * Signature of an operation, equal on all ranks: bits 0 to 39 count, 40 type, 44 op or root,
 * 48 algorithm, 52 max_blocks. Bits 60 to 62 are the collective, 0 here, and 63 is 0, so that a
 * header is not an empty packet. A broadcast, which has a count below 2^37, has the upper bits of
 * its root from bit 37 on.
 */
TE_K_INLINE uint64_t te_k_comm_signature(const struct te_k_comm *a)
{
	return (uint64_t)a->count | (uint64_t)(a->root >> 4) << 37 | (uint64_t)a->dtype << 40 |
	       (uint64_t)(a->op | (a->root & 15)) << 44 | (uint64_t)a->algorithm << 48 |
	       (uint64_t)a->max_blocks << 52;
}

/* the root in the signature of a broadcast */
TE_K_INLINE int32_t te_k_comm_root(uint64_t signature)
{
	return (int32_t)((signature >> 44 & 15) | (signature >> 37 & 7) << 4);
}

/* the other half of a header: bits 0 to 39 the epoch, from 40 on the arrays; bit 63 is 0 */
TE_K_INLINE uint64_t te_k_comm_head(const struct te_k_comm *a, uint64_t epoch)
{
	return epoch | (uint64_t)a->arrays << 40;
}

/*
 * The flag of step 0: of the epoch, the operation and the arrays, so that no block accesses arrays
 * of another operation, or at other offsets, before block 0 has compared the headers.
 */
TE_K_INLINE uint64_t te_k_comm_flag(const struct te_k_comm *a, uint64_t epoch, uint64_t signature)
{
	return (epoch << 24) ^ ((signature ^ a->arrays) * 0x9e3779b97f4a7c15u >> 48 << 48);
}

/*
 * A part of a reduction over ranks of several nodes: adds the inputs of nin ranks, in their order,
 * to the FP32 sums (or minima, or maxima) of lower ranks. No other rank takes part in a call. The
 * bits do not depend on the division of ranks among calls. The last call divides averages by nranks
 * and rounds. Floating types.
 */
struct te_k_comm_fold {
	const void *in;	   /* [n] input of the first of these ranks */
	const float *from; /* [n]; NULL: there are no lower ranks */
	float *sums;	   /* [n], also in place; not used by the last call */
	void *out;	   /* [n] output of the last call; else NULL */
	int64_t n;
	int64_t stride; /* bytes from the input of one rank to the next one's */
	int32_t nin, nranks;
	int32_t dtype, op;
};

#endif
