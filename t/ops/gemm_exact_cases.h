/* t/ops/gemm_exact_cases.h - GEMMs that have one right result, on either backend. */
#ifndef GEMM_EXACT_CASES_H
#define GEMM_EXACT_CASES_H

#include <te/ctx.h>
#include <te/gemm.h>
#include "tt.h"

/* one GEMM: shapes, types, and what is added */
struct gemm_case {
	enum te_dtype a, b, d;
	uint32_t flags;
	int bias;
	int c; /* 0: beta is 0; 1: a tensor of its own; 2: D itself */
	int64_t m, n, k;
};

/* the GEMM in host memory and on the device */
struct gemm_run {
	struct gemm_case c;
	float alpha, beta, sa, sb;
	float *va, *vb, *vc, *vbias;	   /* values: A [m, k], B [n, k], C [m, n], bias [n] */
	struct te_tensor *a, *b, *d, *tc, *bias;
	float *got;			   /* D, after gemm_run_read() */
};

/* values at @fill's, rounded to their types; D is NaN or, for c 2, C */
void gemm_run_make(struct gemm_run *r, struct te_ctx *ctx, const struct gemm_case *c,
		   float (*fill)(void));
int gemm_run_queue(struct gemm_run *r, struct te_stream *stream);
void gemm_run_read(struct gemm_run *r);
void gemm_run_free(struct gemm_run *r);

#endif
