/*
 * te/collective.h - all-reduce and other operations of all ranks of a communicator.
 *
 * Collective: all ranks call the same function with equal arguments, but for addresses, in the
 * same order. An operation is queued on a stream, which may be capturing; ranks may mix recordings
 * and calls as they like, as long as their operations have the same order.
 *
 * Results are x_0 + x_1 + ... in rank order in FP32 with one rounding to the type (FP8 saturates),
 * for every size, algorithm and alignment, on every rank: the same bits as of a loop on one CPU. An
 * average is divided before that rounding. NaN results are the type's 0x7f, 0x7fff or 0x7fffffff.
 * Minimum and maximum are NaN if an operand is, and -0 is below +0. Integers: sums wrap around,
 * averages are those of the exact sum, rounded towards 0.
 *
 * Failure: what has been queued never waits longer than the communicator's time-out. A rank that
 * has ended, one that calls something else and one that does not call end the communicator on all
 * ranks. Results are then undefined; te_comm_error(3) and the next call say why.
 *
 * Stream: operations of one communicator run one after the other. A call on another stream than the
 * one before waits for it. A recording that has operations of a communicator must not run
 * concurrently with other operations of that communicator.
 * Thread: one at a time for each communicator.
 */
#ifndef TE_COLLECTIVE_H
#define TE_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include <te/comm.h>
#include <te/dtype.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_stream; /* te/stream.h */

enum te_comm_op { TE_COMM_SUM, TE_COMM_AVG, TE_COMM_MIN, TE_COMM_MAX };

/*
 * How data is exchanged, of S bytes among n ranks. What each rank sends:
 *	LL		2 (n - 1) S	to all ranks, with a flag in every 8 bytes; any type
 *	ONE_SHOT	(n - 1) S	to all ranks; floating types
 *	TWO_SHOT	2 (n - 1) / n S	parts to ranks that reduce them, results to all; floating
 *	ZERO_COPY	2 (n - 1) / n S	the same in place: in and out are symmetric memory
 *	STAGED		2 (n - 1) / n S	the same through packet memory, step by step; any type
 * The first three send to packet memory of the communicator, in several launches if an array does
 * not fit.
 * NCCL is opened by the first call that asks for it, outside of captures. It adds in its own order,
 * and waits without a time-out.
 */
enum te_comm_algorithm {
	TE_COMM_AUTO, /* TE_COMM_ALGO, or by size, type and number of ranks */
	TE_COMM_LL,
	TE_COMM_ONE_SHOT,
	TE_COMM_TWO_SHOT,
	TE_COMM_ZERO_COPY,
	TE_COMM_STAGED,
	TE_COMM_NCCL, /* never chosen by the library */
};

struct te_comm_call_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_comm_algorithm algorithm;
	int32_t max_blocks; /* of the kernel, each on a multiprocessor; 0: as many as useful */
};
#define TE_COMM_CALL_OPTS_INIT { sizeof(struct te_comm_call_opts), TE_COMM_AUTO, 0 }

/**
 * te_comm_allreduce - out = the sum of in of all ranks
 * @in, @out: device memory of count elements, aligned to the type's size; out may be in, but not
 *            overlap it otherwise. Either both are symmetric memory at the same offsets on all
 *            ranks, or on no rank both
 * @count:    0 or more, below 2^40; 0: nothing is done
 * @dtype:    any; FP8 are codes without a scale
 * @opts:     NULL: defaults
 *
 * Errors: -EINVAL, -TE_EDTYPE, -EOPNOTSUPP (the algorithm that was asked for cannot be used here;
 * ranks on several nodes), -EBUSY, and the codes of te_comm_error().
 */
TE_EXPORT int te_comm_allreduce(struct te_comm *comm, struct te_stream *stream, const void *in,
				void *out, int64_t count, enum te_dtype dtype, enum te_comm_op op,
				const struct te_comm_call_opts *opts);

/**
 * te_comm_reduce_scatter, te_comm_all_gather - with a part of an array for each rank
 * @count: elements of a part; 0 to 2^37 - 1
 *
 * te_comm_reduce_scatter: in has count elements for each rank, out gets the sum of this rank's part
 * over all ranks. te_comm_all_gather: out gets the in of all ranks, in rank order, byte by byte.
 * The first followed by the second has the bits of te_comm_allreduce().
 * In place: the larger array's part of this rank is the other array. Algorithms: LL, ZERO_COPY,
 * STAGED. All else as te_comm_allreduce().
 */
TE_EXPORT int te_comm_reduce_scatter(struct te_comm *comm, struct te_stream *stream,
				     const void *in, void *out, int64_t count,
				     enum te_dtype dtype, enum te_comm_op op,
				     const struct te_comm_call_opts *opts);
TE_EXPORT int te_comm_all_gather(struct te_comm *comm, struct te_stream *stream, const void *in,
				 void *out, int64_t count, enum te_dtype dtype,
				 const struct te_comm_call_opts *opts);
/* data of all ranks becomes that of the root, byte by byte; algorithms as above */
TE_EXPORT int te_comm_broadcast(struct te_comm *comm, struct te_stream *stream, void *data,
				int64_t count, enum te_dtype dtype, int32_t root,
				const struct te_comm_call_opts *opts);

/* work queued later on this stream runs after all ranks have reached their barrier */
TE_EXPORT int te_comm_barrier(struct te_comm *comm, struct te_stream *stream);

/**
 * te_comm_error - whether the communicator has failed
 *
 * 0, or the code of the failure with its error message: -ETIMEDOUT, -TE_EMISMATCH (ranks called
 * different operations), -TE_EPEER (a rank has ended), -TE_EABORT. Results of queued operations are
 * valid if it returns 0 after the stream was synchronised.
 */
TE_EXPORT int te_comm_error(struct te_comm *comm);

/* What te_comm_allreduce() does with arguments. */
struct te_comm_choice {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_comm_algorithm algorithm;
	char name[16];	    /* of the algorithm, as in TE_COMM_ALGO */
	int32_t nblocks;    /* of a kernel */
	int32_t nlaunches;
	uint64_t nsent;	    /* bytes that this rank sends to others */
	char reason[160];   /* why the algorithm was chosen */
};
#define TE_COMM_CHOICE_INIT { sizeof(struct te_comm_choice), TE_COMM_AUTO, { 0 }, 0, 0, 0, { 0 } }

/* the arguments are those of te_comm_allreduce(), whose errors it returns; nothing is queued and
 * no other rank is asked. ret_choice initialised by TE_COMM_CHOICE_INIT */
TE_EXPORT int te_comm_explain(struct te_comm *comm, const void *in, void *out, int64_t count,
			      enum te_dtype dtype, enum te_comm_op op,
			      const struct te_comm_call_opts *opts,
			      struct te_comm_choice *ret_choice);

/* "oneshot" and so on; NULL: there is no such algorithm */
TE_EXPORT const char *te_comm_algorithm_name(enum te_comm_algorithm algorithm);

TE_END_DECLS

#endif
