/*
 * t/kernels/comm_lib.h - the ranks of a communicator as streams of one context.
 *
 * Each rank has a region (kernels/comm/comm.h) and a heap in memory that all ranks share, a stream,
 * and inputs and outputs in its heap. A *call* is one operation of all ranks. Inputs, expected
 * outputs and what was read back are in host memory.
 */
#ifndef COMM_LIB_H
#define COMM_LIB_H

#include <te/dtype.h>
#include "kernels/kernels.h"
#include "tt.h"
#include "tt_ctx.h"

#define CL_MAX_CALLS 64
#define CL_ALGORITHMS ((int)TE_K_COMM_NVLS) /* those that need no multicast memory */

struct cl_call {
	int32_t algorithm, op, dtype;
	int32_t max_blocks;
	int64_t count;
	int64_t in, out; /* offsets in the heap, aligned to the element only; equal: in place */
	const struct cl_call *of; /* not NULL: the input is the output of this call */
	int32_t collective, root;
};

/* n ranks, with room for heap_nbytes of arrays and for packets of any algorithm for each call */
void cl_open(int n, int64_t heap_nbytes);
/* the same with so much packet memory */
void cl_open_buffer(int n, int64_t heap_nbytes, int64_t buffer_nbytes);
void cl_close(void);
/* as after cl_open() */
void cl_reset(void);
extern int cl_n;
extern struct te_stream *cl_stream[TE_K_COMM_RANKS];
extern uint64_t cl_deadline_ns;

/* of each rank, readable while kernels run */
const struct te_k_comm_status *cl_status(int rank);
/* all ranks' */
void cl_epoch_set(uint64_t epoch);
uint64_t cl_epoch(int rank);
/* may be called by any thread */
void cl_abort(void);

/*
 * A call with arrays of their own, until cl_clear(). algorithm -1: a random one that fits. The root
 * of a broadcast is random, and op is that of sums only.
 */
struct cl_call cl_call_of(int collective, int algorithm, int op, int dtype, int64_t count);
/* an all-reduce */
struct cl_call cl_call_new(int algorithm, int op, int dtype, int64_t count);
/* a call whose input is the output of another one, of as many elements */
struct cl_call cl_call_after(const struct cl_call *first, int collective);
/* can an algorithm do this call? */
int cl_takes(const struct cl_call *c, int algorithm);
void cl_clear(void);
/* random data in the inputs of all ranks: bits of all kinds, or numbers */
void cl_fill(const struct cl_call *c);
/* the input of a rank, in host memory, and its output after cl_check() */
void *cl_input(const struct cl_call *c, int rank);
const void *cl_output(const struct cl_call *c, int rank);
int64_t cl_input_nbytes(const struct cl_call *c);

/* inputs to the devices, and poisoned outputs */
void cl_upload(void);
/* queue the call on the stream of the rank */
void cl_launch(const struct cl_call *c, int rank);
void cl_launch_all(const struct cl_call *c);
/* waits, reads the heaps back, and compares all outputs of the calls; nothing else has changed */
void cl_check(const struct cl_call *c, int ncalls);
void cl_sync(void);
/* no rank has failed */
void cl_all_well(void);
/* element i of the result of a rank, as bits */
uint32_t cl_expected(const struct cl_call *c, int rank, int64_t i);

/* ---- for tests of other operations ---- */

/* nbytes of the heaps until cl_clear(), at a random multiple of align; returns the offset */
int64_t cl_room(int64_t nbytes, int64_t align);
/* the heap of a rank: on the device, before the operations, and as read back by cl_read() */
uint8_t *cl_heap(int rank);
uint8_t *cl_before(int rank);
const uint8_t *cl_got(int rank);
/* waits, and reads the heaps back */
void cl_read(void);
int64_t cl_heap_nbytes(void);
/* the arguments that all operations have; the others are 0 */
struct te_k_comm cl_comm(int rank);

#endif
