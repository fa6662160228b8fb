/* comm.h - te_perftest comm: a row, its fused operation, a GEMM at the same time, the tuner. */
#ifndef COMM_H
#define COMM_H

#include <te/capture.h>
#include <te/collective.h>

#include "bench.h"

/* the choices of --fuse, in their order */
enum comm_fuse { COMM_FUSE_NONE, COMM_FUSE_NORM, COMM_FUSE_FP8, COMM_FUSES };

struct comm_opts {
	struct option_list bytes;
	uint32_t algorithm; /* bit i: i of enum te_comm_algorithm */
	uint32_t types;	    /* bit 0: BF16, else FP32 */
	uint32_t fuse;	    /* bit i: i of enum comm_fuse */
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
	int symmetric, fuse;
	int apart; /* fuse: an all-reduce, and the kernel of one rank after it */
	int64_t count, rows, cols; /* rows and cols: with fuse */
	int32_t max_blocks;
	size_t nbytes;
	void *in, *out;
	struct te_recording *rec;
	struct comm_arrays *arrays; /* arrays of a fused operation */
	/* after comm_measure() */
	double median_us; /* NAN: it was left out */
	int32_t nblocks;
};

/* ret[i]: the maximum over ranks of x[i], of n at most 3; a code of the library */
int comm_exchange(struct comm *c, const float *x, int n, float *ret);
/* count, and rows and cols, of arrays of about nbytes */
void comm_size(struct comm *c, int64_t nbytes);
/* element i of a rank's input, and the input */
float comm_element(int rank, int64_t i);
void comm_fill(const struct comm *c, int rank, void *p);
/* the average of all ranks' inputs or, with fuse, the sum */
void comm_add_up(const struct comm *c, void *ret);
/* collective, before each row */
int comm_agree_on_time(struct comm *c);
/* a row of the report; an exit status */
int comm_measure(struct comm *c, int rows_left);

/* comm_fuse.c: te_comm_allreduce_norm() */
const char *comm_fuse_name(int fuse);
int comm_fuse_open(struct comm *c); /* codes of the library, also below */
void comm_fuse_close(struct comm *c);
int comm_fuse_explain(struct comm *c, struct te_comm_choice *ret);
int comm_fuse_queue(struct comm *c, const void *in, void *out); /* by c->apart */
/* compared byte by byte with an all-reduce that other kernels follow; an exit status */
int comm_fuse_verify(struct comm *c);

/* comm_gemm.c: GEMMs on a stream of their own */
struct comm_gemm;
/* as many as take about us; exit statuses. *ret_g: to be closed in any case, or NULL */
int comm_gemm_open(struct bench *b, double us, struct comm_gemm **ret_g);
void comm_gemm_close(struct comm_gemm *g);
int comm_gemm_alone(struct comm_gemm *g, double *ret_us);
/* after the event; codes of the library */
int comm_gemm_queue(struct comm_gemm *g, struct te_event *after);
/* waits for them: time of one */
int comm_gemm_us(struct comm_gemm *g, double *ret_us);

/* comm_tune.c: measures, and writes the file of TE_COMM_TABLE; an exit status */
int comm_tune(struct comm *c);

#endif
