/*
 * t/kernels/attn_run.h - one case of attention: operands of random values, the reference function
 * and the backend's kernel on them, and the comparison with the model.
 */
#ifndef ATTN_RUN_H
#define ATTN_RUN_H

#include "attn_model.h"

/* what a case has more than packed causal attention */
enum {
	WINDOW = 1,
	CAP = 2,
	DOCUMENTS = 4,
	FULL = 8,
	RIGHT = 16,
	BOTTOM = 32,
	BIAS = 64,
	ALIBI = 128,
	SINKS = 256,
	SEPARATE = 512, /* q, k, v at any strides, of other lengths and widths */
	OFFSETS = 1024, /* with SEPARATE */
	ALL = 2047,
};

struct run {
	struct model m;
	struct te_k_attn_fwd f;
	struct te_k_attn_bwd b;
	int64_t nqkv, nk, nv, nout, nlse; /* nqkv: separate: elements of q */
	float *dsinks;
};

/* elements of a token of packed q, k and v */
int64_t run_row(const struct shape *s);
/* more, as the backend's kernels have it, without what excludes each other */
int run_supported(int more);
/* first keys of documents of 1 to most tokens; bad: some are out of range */
const int32_t *run_documents(const struct shape *s, int64_t most, int bad);
/* operands and arguments of both passes; model_free() of its model, and kc_reset() free them */
struct run run_with(const struct shape *shape, int32_t dtype, uint32_t threshold, float amplitude,
		    int more);
struct run run_of(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude);
void run_forward(const struct run *r);
/* delta of backward; clears the counters of a device, which the reference does not use */
void run_launch_pre(struct run *r);
/* dk and dv of backward; returns 1 if dq is written, too */
int run_launch_dkv(struct run *r);
/* a run of both passes against the model */
void run_check(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude, int more);
/* a copy, which free(3) releases */
void *run_copy(const void *p, size_t nbytes);

#endif
