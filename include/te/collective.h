/*
 * te/collective.h - all-reduce and other operations of all ranks of a communicator.
 *
 * Collective: all ranks call the same functions in the same order, with equal arguments except for
 * addresses. An operation is queued on a stream, which may be capturing; ranks may mix recordings
 * and calls as they like, as long as their operations have the same order.
 *
 * Results are x_0 + x_1 + ... in rank order in FP32 with one rounding to the type (FP8 saturates),
 * for every size, algorithm (except NCCL and NVLS) and alignment, on every rank: the bits of a loop
 * on one CPU. An average is divided before that rounding. NaN results have the bits 0x7f, 0x7fff or
 * 0x7fffffff, by the size of the type.
 * Minimum and maximum are NaN if an operand is, and -0 is below +0. Integers: sums wrap around; an
 * average is the exact sum divided, rounded towards 0.
 *
 * Failure: queued operations never wait longer than the communicator's time-out. The communicator
 * fails on all ranks if a rank has ended, calls another function or does not call in time. Results
 * are then undefined; te_comm_error(3) and the next call report the reason.
 *
 * Stream: operations of one communicator run serially, also on different streams. A recording that
 * has operations of a communicator must not run concurrently with other operations of that
 * communicator.
 * Thread: any; one communicator by one thread at a time.
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
 * Algorithms, and the bytes that each of n ranks sends for S bytes of data:
 *	LL		2 (n - 1) S	to all ranks, with a flag in every 8 bytes; any type
 *	ONE_SHOT	(n - 1) S	to all ranks; floating types
 *	TWO_SHOT	2 (n - 1) / n S	parts to ranks that reduce them, results to all; floating
 *	ZERO_COPY	2 (n - 1) / n S	the same in place: in and out are symmetric memory
 *	STAGED		2 (n - 1) / n S	the same through packet memory, step by step; any type
 * LL, ONE_SHOT and TWO_SHOT send to packet memory of the communicator, in several launches if an
 * array does not fit.
 * NVLS and NVLS_ONE_SHOT use multicast memory, where TE_COMM_NVLS=on, and have not run on hardware:
 *	NVLS		S + S / n	as ZERO_COPY, added by the switch: sums and averages of
 *					FP32, BF16 and FP16 in symmetric memory, aligned to 16
 *	NVLS_ONE_SHOT	S		as ONE_SHOT, one store for all ranks; floating types
 * With NVLS the switch determines the order of additions, and an average is rounded twice: results
 * have the same bits on all ranks, but other bits than with the other algorithms. NVLS_ONE_SHOT
 * adds in rank order.
 * The first call that asks for NCCL opens it, and cannot be captured. It determines the order of
 * additions, and its kernels wait without a time-out.
 * EXCHANGE and CHAIN are used when ranks are on several nodes, and send through host memory; all
 * others except NCCL need ranks on one node. Bytes that each of n nodes with l ranks each sends:
 *	EXCHANGE	(n - 1) l S	inputs to all nodes; any type
 *	CHAIN		S + S 4 / element size	FP32 sums from node to node, results back;
 *					floating types, nodes whose ranks are contiguous
 */
enum te_comm_algorithm {
	TE_COMM_AUTO, /* TE_COMM_ALGO if usable, else by size, type and number of ranks */
	TE_COMM_LL,
	TE_COMM_ONE_SHOT,
	TE_COMM_TWO_SHOT,
	TE_COMM_ZERO_COPY,
	TE_COMM_STAGED,
	TE_COMM_NCCL, /* this and the two NVLS algorithms are never chosen automatically */
	TE_COMM_NVLS,
	TE_COMM_NVLS_ONE_SHOT,
	TE_COMM_EXCHANGE,
	TE_COMM_CHAIN,
};
/* names of these, in their order, separated by bars; TE_COMM_ALGO takes them */
#define TE_COMM_ALGORITHM_NAMES \
	"auto|ll|oneshot|twoshot|zerocopy|staged|nccl|nvls|nvls-oneshot|exchange|chain"

struct te_comm_call_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_comm_algorithm algorithm;
	int32_t max_blocks; /* limit of blocks, each on a multiprocessor; 0: as many as useful */
};
#define TE_COMM_CALL_OPTS_INIT { sizeof(struct te_comm_call_opts), TE_COMM_AUTO, 0 }

/**
 * te_comm_allreduce - out = the sum of in over all ranks
 * @comm:     the ranks
 * @stream:   the operation is queued on it
 * @in, @out: device memory of count elements, aligned to the type's size; out may be in, but not
 *            overlap it otherwise. Either both are symmetric at equal offsets on every rank, or no
 *            rank passes two symmetric arrays
 * @count:    elements, 0 to 2^40 - 1; 0: no operation
 * @dtype:    any type; FP8: codes without a scale
 * @op:       TE_COMM_SUM, _AVG, _MIN or _MAX
 * @opts:     NULL: defaults
 *
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_EDTYPE, -EOPNOTSUPP (opts asks for an algorithm that cannot be used here),
 * -EBUSY, and the codes of te_comm_error().
 */
TE_EXPORT int te_comm_allreduce(struct te_comm *comm, struct te_stream *stream, const void *in,
				void *out, int64_t count, enum te_dtype dtype, enum te_comm_op op,
				const struct te_comm_call_opts *opts);

/**
 * te_comm_reduce_scatter, te_comm_all_gather - operations on an array with a part for each rank
 * @comm:              the ranks
 * @stream:            the operation is queued on it
 * @in, @out:          device memory. te_comm_all_gather: one part, and the parts of all ranks;
 *                     te_comm_reduce_scatter: the reverse
 * @count:             elements of a part, 0 to 2^37 - 1
 * @dtype, @op, @opts: as in te_comm_allreduce()
 *
 * te_comm_reduce_scatter: in has count elements for each rank, out gets the sum of this rank's part
 * over all ranks. te_comm_all_gather: out gets the bytes of every rank's in, in rank order;
 * ONE_SHOT may change NaN to other bits, the same on all ranks. te_comm_reduce_scatter() followed
 * by te_comm_all_gather() is bit-identical to te_comm_allreduce().
 * In place: this rank's part of the larger array may be the other array. Algorithms: LL, ONE_SHOT
 * (floating types), ZERO_COPY, STAGED. The rest is as in te_comm_allreduce().
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: as te_comm_allreduce().
 */
TE_EXPORT int te_comm_reduce_scatter(struct te_comm *comm, struct te_stream *stream,
				     const void *in, void *out, int64_t count,
				     enum te_dtype dtype, enum te_comm_op op,
				     const struct te_comm_call_opts *opts);
TE_EXPORT int te_comm_all_gather(struct te_comm *comm, struct te_stream *stream, const void *in,
				 void *out, int64_t count, enum te_dtype dtype,
				 const struct te_comm_call_opts *opts);
/* copy the bytes of rank root's data to all ranks; algorithms: LL, ZERO_COPY, STAGED */
TE_EXPORT int te_comm_broadcast(struct te_comm *comm, struct te_stream *stream, void *data,
				int64_t count, enum te_dtype dtype, int32_t root,
				const struct te_comm_call_opts *opts);

/* ---- messages between ranks ---- */

#define TE_COMM_NO_RANK -1 /* te_comm_sendrecv(): there is no message in this direction */

/**
 * te_comm_send, te_comm_recv, te_comm_sendrecv - messages from one rank to another
 * @comm:      the ranks; only the sender and the receiver of a message take part
 * @stream:    the messages are queued on it
 * @in:        device memory that is sent, aligned to the type's size
 * @out:       device memory that receives; does not overlap in
 * @count, @in_count, @out_count: elements, 0 to 2^37 - 1; 0: an empty message
 * @dtype:     any type
 * @to, @from: ranks that receive and send; this rank only if both are this rank; te_comm_sendrecv:
 *             or TE_COMM_NO_RANK
 * @opts:      NULL: defaults; the algorithm is TE_COMM_AUTO or TE_COMM_NCCL
 *
 * The messages of a rank to another one arrive in the order of the calls. Count and type of a
 * message must be equal at both ends; the receiver compares them. te_comm_sendrecv sends and
 * receives concurrently: neither waits for the other, so a ring or an exchange of these calls
 * cannot deadlock. te_comm_send may wait until the receiver has the message. Messages can be
 * captured. Their bytes do not change.
 * Failure: a wait lasts for the communicator's time-out at most, then the communicator fails. If a
 * rank releases the communicator (te_comm_unref()) before its last messages are received, their
 * receivers fail; te_comm_barrier() before the release prevents that.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_EDTYPE, -ENOMEM, -EOPNOTSUPP (GPUs of several nodes, or another algorithm),
 * and the codes of te_comm_error().
 */
TE_EXPORT int te_comm_send(struct te_comm *comm, struct te_stream *stream, const void *in,
			   int64_t count, enum te_dtype dtype, int32_t to,
			   const struct te_comm_call_opts *opts);
TE_EXPORT int te_comm_recv(struct te_comm *comm, struct te_stream *stream, void *out,
			   int64_t count, enum te_dtype dtype, int32_t from,
			   const struct te_comm_call_opts *opts);
TE_EXPORT int te_comm_sendrecv(struct te_comm *comm, struct te_stream *stream, const void *in,
			       int64_t in_count, int32_t to, void *out, int64_t out_count,
			       int32_t from, enum te_dtype dtype,
			       const struct te_comm_call_opts *opts);

/**
 * te_comm_group_begin, te_comm_group_end - messages that are in progress together
 * @comm: the ranks
 *
 * Calls of te_comm_send(), te_comm_recv(), te_comm_sendrecv(), te_comm_alltoall() and
 * te_comm_alltoallv() between the two only check their arguments; te_comm_group_end() queues their
 * messages on the stream that all of them name. Their order matters only between messages from one
 * rank to the same other rank: sends and receives match in the order of the calls, in a group or
 * not. No other message waits for them. Other operations of comm return -EBUSY meanwhile. Both ends
 * of a message to the rank itself must be in one group. No array that receives may overlap another
 * one.
 * If a call in the group fails, te_comm_group_end() returns its code and message, and queues
 * nothing. In any case it ends the group.
 * Stream: a group may be captured. Among at most 8 ranks of a node, one kernel executes at most 16
 *         sends and receives, and copies are added for messages of a rank to itself; other groups,
 *         which only backend host supports, are nodes with unknown memory accesses.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: as te_comm_send(); -EOPNOTSUPP (end: too many messages), -EBUSY (begin: a group is open),
 *         -EINVAL (end: no group is open).
 */
TE_EXPORT int te_comm_group_begin(struct te_comm *comm);
TE_EXPORT int te_comm_group_end(struct te_comm *comm);

/**
 * te_comm_alltoall, te_comm_alltoallv - every rank sends a part of its array to each rank
 * @comm:   the ranks
 * @stream: the operation is queued on it
 * @in:     device memory; the part for rank r, of in_counts[r] elements, begins at element
 *          in_offsets[r]; te_comm_alltoall: count elements at r * count
 * @out:    device memory; the part from rank r, likewise by out_counts and out_offsets; does not
 *          overlap in
 * @count:  0 to 2^37 - 1; 0: no operation
 * @in_counts, @out_counts: host memory, one number for each rank, read by the call; 0: an empty
 *          message
 * @in_offsets, @out_offsets: likewise; NULL: parts follow each other in rank order
 * @dtype, @opts: as in te_comm_send()
 *
 * Rank r's in_counts[s] must be rank s's out_counts[r]; the receiver compares them. Bytes do not
 * change. The rest is as in te_comm_sendrecv(): between two ranks, these parts and messages match
 * in the order of the calls.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: as te_comm_send().
 */
TE_EXPORT int te_comm_alltoall(struct te_comm *comm, struct te_stream *stream, const void *in,
			       void *out, int64_t count, enum te_dtype dtype,
			       const struct te_comm_call_opts *opts);
TE_EXPORT int te_comm_alltoallv(struct te_comm *comm, struct te_stream *stream, const void *in,
				const int64_t *in_counts, const int64_t *in_offsets, void *out,
				const int64_t *out_counts, const int64_t *out_offsets,
				enum te_dtype dtype, const struct te_comm_call_opts *opts);

/**
 * te_comm_gather, te_comm_scatter, te_comm_reduce - gather to, scatter from or reduce to one rank
 * @comm:   the ranks
 * @stream: the operation is queued on it
 * @in:     device memory of count elements; te_comm_scatter: count for each rank, on the root
 * @out:    device memory of count elements; te_comm_gather: count for each rank. Only the root of
 *          te_comm_gather() and te_comm_reduce() has it; other ranks may pass NULL
 * @count:  0 to 2^37 - 1; 0: no operation
 * @dtype:  any type
 * @op:     as in te_comm_allreduce(); te_comm_reduce() gives the root the same bits
 * @root:   the rank that receives from all, or sends to all
 * @opts:   as in te_comm_send()
 *
 * In place: the root's part of the larger array may be the smaller one; te_comm_reduce: out may be
 * in. Other overlaps are refused. The rest is as in te_comm_sendrecv(). Between several nodes the
 * operations work on any backend: they call te_comm_allreduce(), te_comm_all_gather() and
 * te_comm_broadcast().
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: as te_comm_send().
 */
TE_EXPORT int te_comm_gather(struct te_comm *comm, struct te_stream *stream, const void *in,
			     void *out, int64_t count, enum te_dtype dtype, int32_t root,
			     const struct te_comm_call_opts *opts);
TE_EXPORT int te_comm_scatter(struct te_comm *comm, struct te_stream *stream, const void *in,
			      void *out, int64_t count, enum te_dtype dtype, int32_t root,
			      const struct te_comm_call_opts *opts);
TE_EXPORT int te_comm_reduce(struct te_comm *comm, struct te_stream *stream, const void *in,
			     void *out, int64_t count, enum te_dtype dtype, enum te_comm_op op,
			     int32_t root, const struct te_comm_call_opts *opts);

/* ---- with residual, RMSNorm and FP8 ---- */

/* sets of codes that share a scale */
enum te_comm_scaling {
	TE_COMM_SCALING_TENSOR, /* all codes: the word *scale; *scale_inv = 1 / *scale */
	TE_COMM_SCALING_TOKEN,	/* codes of a row: scale_inv[row] */
	TE_COMM_SCALING_BLOCK,	/* 128 columns of a row, as TE_SCALING_1X128 of te/tensor.h */
};

#define TE_COMM_NORM_ZERO_CENTERED 1u /* the gain is 1 + gamma */
#define TE_COMM_NORM_SHARDED 2u	      /* each rank has only a part of the residual's rows */
#define TE_COMM_NORM_POW2 4u	      /* TOKEN, BLOCK: scales are rounded down to powers of two */

/*
 * Inputs and outputs of te_comm_allreduce_norm() in device memory; T is its dtype. An output may be
 * NULL if it is not wanted, on all ranks. residual_out and y may have the memory of in or residual,
 * and sum the memory of in; otherwise an output must not overlap another array.
 */
struct te_comm_norm_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_comm_algorithm algorithm; /* as in te_comm_call_opts */
	int32_t max_blocks;    /* as in te_comm_call_opts */
	uint32_t flags;	       /* TE_COMM_NORM_* */
	float eps;	       /* added to the mean square; 1e-5 by default */
	const float *gamma;    /* [cols] */
	const void *residual;  /* T [rows, cols], or NULL: 0 */
	void *sum;	       /* T [rows, cols]: s */
	void *residual_out;    /* T [rows, cols]: r */
	void *y;	       /* T [rows, cols] */
	float *rstd;	       /* [rows], for te_comm_allreduce_norm_backward() */
	void *codes;	       /* qdtype [rows, cols] */
	enum te_dtype qdtype;  /* E4M3 or E5M2 */
	enum te_comm_scaling scaling;
	const float *scale;    /* TENSOR: a word, equal on all ranks; needed with codes */
	float *scale_inv;      /* needed with codes */
	float *amax;	       /* word into which max |y| is folded, as te_quant_amax_ptr() */
	float amax_epsilon;    /* TOKEN, BLOCK: smaller amaxes are raised to this */
	void *ws;	       /* scratch; NULL: calls that need it fail */
	size_t ws_nbytes;
};
#define TE_COMM_NORM_OPTS_INIT                                                                   \
	{                                                                                        \
		sizeof(struct te_comm_norm_opts), TE_COMM_AUTO, 0, 0, 1e-5f, 0, 0, 0, 0, 0, 0, 0, \
			TE_DTYPE_E4M3, TE_COMM_SCALING_TENSOR, 0, 0, 0, 0.0f, 0, 0               \
	}

/**
 * te_comm_allreduce_norm - sum over the ranks, residual, RMSNorm and FP8 in one kernel
 * @comm:   the ranks
 * @stream: the operation is queued on it
 * @in:     T [rows, cols] of this rank
 * @rows:   0 or more; 0: no operation
 * @cols:   elements of a row
 * @dtype:  FP32, BF16 or FP16
 * @opts:   gamma and one output or more
 *
 *	s = T(in_0 + in_1 + ...)	r = T(s + residual)	y = T(r * rstd * gain)
 *
 * with rstd = 1/sqrt(mean over the row of r^2 + eps), and codes of y. Results are bit-identical to
 * te_comm_allreduce(), te_kernel_add(), te_kernel_norm_forward() and a cast, except for NaN; on a
 * GPU, if cols is not a multiple of 8, rstd may differ by rounding errors of FP32.
 *
 * ONE_SHOT computes all rows on every rank. TWO_SHOT divides the rows in rank order, rows / n to
 * each of the n ranks and one more to the first rows % n ranks: a rank owns these rows, computes
 * them and sends the results. Both need fewer than 2^24 rows, rows of a multiple of 16 bytes with
 * at most 16384 columns, arrays aligned to 16 bytes (on all ranks or on none), and room in packet
 * memory. Otherwise, with the other algorithms, and for arrays so large that latency does not
 * matter, separate kernels follow an all-reduce. This needs ws unless sum is given, and FP32 or
 * BF16 unless rows are a multiple of 16 bytes; TE_COMM_SCALING_TOKEN needs such rows.
 *
 * TE_COMM_NORM_SHARDED: residual is read, and residual_out and rstd are written, only in the rows
 * that this rank owns by TWO_SHOT; with one rank, in all rows. If the operation is not one kernel,
 * each rank computes its rows after the sum, and all ranks gather the results; this needs ws, amax
 * with the same value on all ranks, and for TE_COMM_SCALING_BLOCK FP32 or BF16.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: as te_comm_allreduce().
 */
TE_EXPORT int te_comm_allreduce_norm(struct te_comm *comm, struct te_stream *stream,
				     const void *in, int64_t rows, int64_t cols,
				     enum te_dtype dtype, const struct te_comm_norm_opts *opts);

/* Like te_comm_norm_opts. Outputs may have the memory of in, dx and residual_out also the memory of
 * residual. */
struct te_comm_norm_backward_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_comm_algorithm algorithm;
	int32_t max_blocks;
	uint32_t flags;	      /* TE_COMM_NORM_ZERO_CENTERED, TE_COMM_NORM_SHARDED */
	const void *x;	      /* T [rows, cols]: the r of the forward call */
	const float *rstd;    /* [rows], of the forward call */
	const float *gamma;   /* [cols] */
	const void *residual; /* T [rows, cols]: gradient added to dx, or NULL */
	void *sum;	      /* T [rows, cols]: s, for the gradient of gamma */
	void *dx;	      /* T [rows, cols] */
	void *residual_out;   /* T [rows, cols]: dx, for TE_COMM_NORM_SHARDED */
	void *ws;
	size_t ws_nbytes;
};
#define TE_COMM_NORM_BACKWARD_OPTS_INIT                                                       \
	{                                                                                     \
		sizeof(struct te_comm_norm_backward_opts), TE_COMM_AUTO, 0, 0, 0, 0, 0, 0, 0, \
			0, 0, 0, 0                                                            \
	}

/**
 * te_comm_allreduce_norm_backward - gradient of a norm whose output all ranks use
 * @comm:                the ranks
 * @stream:              the operation is queued on it
 * @in:                  T [rows, cols], this rank's summand of the gradient of y
 * @rows, @cols, @dtype: as in te_comm_allreduce_norm()
 * @opts:                x, rstd, gamma and one output or more
 *
 * s is the sum over the ranks, as above; dx is the result of te_kernel_norm_backward() for s, which
 * can also compute the gradient of gamma from sum.
 *
 * TE_COMM_NORM_SHARDED: x, rstd, residual, sum and residual_out are accessed only in the rows that
 * this rank owns, as in te_comm_allreduce_norm(). residual_out gets these rows of dx; every rank
 * gets all rows of dx.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 * Errors: as te_comm_allreduce().
 */
TE_EXPORT int te_comm_allreduce_norm_backward(struct te_comm *comm, struct te_stream *stream,
					      const void *in, int64_t rows, int64_t cols,
					      enum te_dtype dtype,
					      const struct te_comm_norm_backward_opts *opts);
/* bytes of ws, for both functions; ws is aligned to 256 bytes. 0: arguments out of range */
TE_EXPORT size_t te_comm_norm_ws_nbytes(int64_t rows, int64_t cols, enum te_dtype dtype);

/* work queued later on this stream runs after all ranks have reached their barrier */
TE_EXPORT int te_comm_barrier(struct te_comm *comm, struct te_stream *stream);

/**
 * te_comm_error - has the communicator failed?
 * @comm: the communicator
 *
 * Returns 0, or the code of the failure with its error message: -ETIMEDOUT, -TE_EMISMATCH (ranks
 * called different operations), -TE_EPEER (a rank has ended), -TE_EABORT. Results of queued
 * operations are valid if it returns 0 after the stream was synchronised.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_comm_error(struct te_comm *comm);

/* ---- algorithm of a call ---- */

enum te_comm_function {
	TE_COMM_CALL_ALLREDUCE,
	TE_COMM_CALL_ALLREDUCE_NORM,
	TE_COMM_CALL_REDUCE_SCATTER,
	TE_COMM_CALL_ALL_GATHER,
	TE_COMM_CALL_BROADCAST,
	TE_COMM_CALL_ALLREDUCE_NORM_BACKWARD,
};

/* Arguments of a function above, by their names; the other members keep their INIT values. */
struct te_comm_call {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_comm_function function;
	int32_t root;
	const void *in;
	void *out; /* or data of te_comm_broadcast() */
	int64_t count, rows, cols;
	enum te_dtype dtype;
	enum te_comm_op op;
	const void *opts; /* the struct that the function takes */
};
#define TE_COMM_CALL_INIT                                                                    \
	{                                                                                    \
		sizeof(struct te_comm_call), TE_COMM_CALL_ALLREDUCE, 0, 0, 0, 0, 0, 0,       \
			TE_DTYPE_FP32, TE_COMM_SUM, 0                                        \
	}

/* The algorithm and launches of a call. */
struct te_comm_choice {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_comm_algorithm algorithm;
	char name[16];	    /* name of the algorithm, as in TE_COMM_ALGO */
	int32_t nblocks;    /* blocks of a kernel */
	int32_t nlaunches;
	uint64_t nsent;	    /* bytes that this rank sends to others */
	char reason[160];   /* why the algorithm was chosen */
	int32_t fused;	    /* 1: the sum and the norm are one kernel */
};
#define TE_COMM_CHOICE_INIT \
	{ sizeof(struct te_comm_choice), TE_COMM_AUTO, { 0 }, 0, 0, 0, { 0 }, 0 }

/**
 * te_comm_explain - the algorithm that a call would use, and the reason
 * @comm:       the communicator
 * @call:       initialised by TE_COMM_CALL_INIT
 * @ret_choice: initialised by TE_COMM_CHOICE_INIT
 *
 * Not collective, and nothing is queued. ws of the options may be NULL.
 * Errors: the codes that the call would return.
 * Thread: one communicator by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_comm_explain(struct te_comm *comm, const struct te_comm_call *call,
			      struct te_comm_choice *ret_choice);

/* returns "oneshot" and so on; NULL if there is no such algorithm */
TE_EXPORT const char *te_comm_algorithm_name(enum te_comm_algorithm algorithm);

TE_END_DECLS

#endif
