/* comm.h - te_perftest comm: a row, its fused operation, a GEMM at the same time, the tuner. */
#ifndef COMM_H
#define COMM_H

#include <te/capture.h>
#include <te/collective.h>

#include "bench.h"

/* words of --fuse, in their order */
enum comm_fuse { COMM_FUSE_NONE, COMM_FUSE_NORM, COMM_FUSE_FP8, COMM_FUSES };

/* words of --call, in their order */
enum comm_call {
	COMM_ALLREDUCE,
	COMM_SENDRECV, /* from each rank to the next one */
	COMM_ALLTOALL,
	COMM_GATHER, /* root: rank 0 */
	COMM_SCATTER,
	COMM_REDUCE,
	COMM_SEND, /* from ranks 0, 2, ... to the next one */
	COMM_CALLS
};

struct comm_opts {
	struct option_list bytes;
	uint32_t algorithm; /* bit i: i of enum te_comm_algorithm */
	uint32_t types;	    /* bit 0: BF16, else FP32 */
	uint32_t fuse;	    /* bit i: i of enum comm_fuse */
	uint32_t call;	    /* bit i: i of enum comm_call */
	int64_t symmetric, cols, gemm, max_blocks, depth;
	char *tune;	 /* a file; or NULL */
	char *transport; /* NULL: from the environment */
};

struct comm {
	const struct comm_opts *o;
	struct bench *b;
	struct te_comm *comm;
	struct te_comm *alone; /* communicator of this rank alone; NULL: not needed */
	int rank, nranks;
	float *word; /* three words of device memory, for comm_exchange() */
	/* values of the row */
	enum te_dtype dtype;
	enum te_comm_algorithm algorithm;
	enum comm_call call;
	int symmetric, fuse;
	int apart; /* fuse: 1: an all-reduce, then the kernel of one rank */
	int64_t count, rows, cols; /* rows and cols: with fuse */
	int32_t max_blocks;
	size_t nbytes;
	void *in, *out;
	struct te_recording *rec;
	struct comm_arrays *arrays; /* arrays of a fused operation */
	/* after comm_measure() */
	double median_us; /* NAN: the row was left out */
	int32_t nblocks;
};

/* sets ret[i] to the maximum of x[i] over ranks; n: at most 3. Returns a code of the library */
int comm_exchange(struct comm *c, const float *x, int n, float *ret);
/* sets count, rows and cols for arrays of about nbytes */
void comm_size(struct comm *c, int64_t nbytes);
/* element i of a rank's input; comm_fill() writes all of it */
float comm_element(int rank, int64_t i);
void comm_fill(const struct comm *c, int rank, void *p);
/* computes this rank's result: of reductions the average or, with fuse, the sum */
void comm_expect(const struct comm *c, void *ret);
/* collective; called before each row */
int comm_agree_on_time(struct comm *c);
/* measures a row of the report; returns an exit status */
int comm_measure(struct comm *c, int rows_left);

/* comm_fuse.c: te_comm_allreduce_norm() */
const char *comm_fuse_name(int fuse);
/* returns a code of the library, like comm_fuse_explain() and comm_fuse_queue() */
int comm_fuse_open(struct comm *c);
void comm_fuse_close(struct comm *c);
int comm_fuse_explain(struct comm *c, struct te_comm_choice *ret);
int comm_fuse_queue(struct comm *c, const void *in, void *out); /* as c->apart says */
/* compares bytes with an all-reduce that other kernels follow; returns an exit status */
int comm_fuse_verify(struct comm *c);

/* comm_gemm.c: GEMMs on a stream of their own */
struct comm_gemm;
/*
 * Opens as many GEMMs as take about us; returns an exit status, like comm_gemm_alone(). *ret_g:
 * NULL, or closed by the caller in any case.
 */
int comm_gemm_open(struct bench *b, double us, struct comm_gemm **ret_g);
void comm_gemm_close(struct comm_gemm *g);
int comm_gemm_alone(struct comm_gemm *g, double *ret_us);
/* queues the GEMMs after the event; returns a code of the library */
int comm_gemm_queue(struct comm_gemm *g, struct te_event *after);
/* waits for the GEMMs; sets *ret_us: the time of one. Returns a code of the library */
int comm_gemm_us(struct comm_gemm *g, double *ret_us);

/* comm_tune.c: measures and writes the file of TE_COMM_TABLE; returns an exit status */
int comm_tune(struct comm *c);

#endif
