/*
 * t/kernels/comm_norm_lib.h - operations of te_k_comm_norm and te_k_comm_norm_bwd on the ranks of
 * comm_lib.h, and what is expected of them.
 */
#ifndef COMM_NORM_LIB_H
#define COMM_NORM_LIB_H

#include "comm_lib.h"

#define CN_NONE (-1)
#define CN_HEAP (1 << 20)
#define CN_NTYPES 3

extern const int32_t cn_type[CN_NTYPES];

/* an operation of all ranks: sizes and flags, and offsets of arrays in the heaps or CN_NONE */
struct cn_op {
	struct te_k_comm_norm k; /* without pointers */
	int64_t in, residual, gamma, out, residual_out, y, rstd, codes, scale, scale_inv, amax;
	int64_t x, x_rstd; /* of te_k_comm_norm_bwd; CN_NONE: te_k_comm_norm */
};

/* what all ranks get; of T but for the last ones. Of te_k_comm_norm_bwd, r is residual, and x and
 * rstd are arguments, too: rows of all ranks */
struct cn_expected {
	uint8_t *sum, *r, *y, *x;
	float *rstd;
	uint8_t *codes;
	float *scale_inv;
	float amax;
};

int64_t cn_es(const struct cn_op *f);
int64_t cn_count(const struct cn_op *f);
/* the rank that computes a row; -1: all */
int cn_owner(const struct cn_op *f, int64_t row);

/* arrays in the heaps, with their inputs; which ones there are, flags and scaling are random */
struct cn_op cn_new(int algorithm, int32_t dtype, int64_t rows, int64_t cols);
struct cn_op cn_bwd_new(int algorithm, int32_t dtype, int64_t rows, int64_t cols);
int cn_any_algorithm(void);
int32_t cn_any_type(void);
int64_t cn_any_rows(void);
struct cn_op cn_any(int64_t most_cols);
/* inputs of all ranks; of a residual, all ranks have the same rows, or each its own ones */
void cn_fill(const struct cn_op *f);

void *cn_at(int rank, int64_t offset);
struct te_k_comm_norm cn_args(const struct cn_op *f, int rank);
void cn_launch(const struct cn_op *f, int rank);
void cn_launch_all(const struct cn_op *f);

void cn_expect_open(const struct cn_op *f, struct cn_expected *e);
void cn_expect_close(struct cn_expected *e);
/* all outputs of these operations and of these calls; nothing else has changed */
void cn_check(const struct cn_op *f, int n, const struct cl_call *c, int ncalls);
void cn_run(const struct cn_op *f);

#endif
