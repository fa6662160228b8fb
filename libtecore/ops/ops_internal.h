/* ops_internal.h - what the built-in ops and fusions share. */
#ifndef TE__OPS_INTERNAL_H
#define TE__OPS_INTERNAL_H

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <te/errno.h>
#include <te/gemm.h>
#include <te/op.h>
#include <te/plan.h>
#include <te/private.h>
#include <te/quant.h>

#include "libtecore/backend/backend.h"
#include "libtecore/op_internal.h"

#define TE__OPS_ALIGN 256 /* what te_k.h asks of pointers, also within a workspace */

static inline size_t te__ops_round_up(size_t nbytes)
{
	return (nbytes + TE__OPS_ALIGN - 1) / TE__OPS_ALIGN * TE__OPS_ALIGN;
}

/* extents but the last, folded */
int64_t te__ops_rows(const struct te_spec *s);
int64_t te__ops_cols(const struct te_spec *s);

/* main input: compute dtype, ndim or more extents, and cols columns where cols > 0 */
int te__ops_check_x(const struct te_op_infer *inf, int ndim, int64_t cols);
/* output 0 is like the main input */
void te__ops_same(struct te_op_infer *inf);

/* the compute copy, or the master where the master is the copy; NULL when the op has none */
const struct te_tensor *te__ops_weight(const struct te_op_call *c, int k);

/* partial sums of rows: [TE_K_NPARTS(rows), cols] FP32, rounded up to the alignment */
size_t te__ops_part_nbytes(int64_t rows, int64_t cols);
/* grad[k] += the partial sums */
int te__ops_part_sum(const struct te_op_call *c, int k, const float *part, int64_t rows,
		     int64_t cols);

/* the arguments of an op's one launch, for the op and for fusions that add to it */
void te__ops_norm_fwd(const struct te_op_call *c, struct te_k_norm_fwd *ret);
void te__ops_norm_bwd(const struct te_op_call *c, struct te_k_norm_bwd *ret);
int te__ops_norm_dw(const struct te_op_call *c, void *ws);
void te__ops_act_fwd(const struct te_op_call *c, struct te_k_act_fwd *ret);
void te__ops_act_bwd(const struct te_op_call *c, struct te_k_act_bwd *ret);
/* the three products of a linear: y = x w^T, dx = dy w, dw += dy^T x */
int te__ops_linear_fwd(const struct te_op_call *c, struct te_tensor *y,
		       const struct te_tensor *bias, const struct te_tensor *add);
int te__ops_linear_bwd(const struct te_op_call *c, struct te_tensor *dx,
		       const struct te_tensor *add);
int te__ops_linear_dw(const struct te_op_call *c);

static inline void *te__ops_ptr(const struct te_tensor *t)
{
	return t ? te_tensor_data(t) : NULL;
}

/* of 65536; 65536 for a p that rounds to 1 or lies above, NaN included */
static inline uint32_t te__ops_threshold(float p)
{
	return p < 1.0f ? (uint32_t)lrintf(p * 65536.0f) : 65536u;
}

#endif
