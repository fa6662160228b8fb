/* common.h - shapes, weights and kernel arguments shared by built-in ops and fusions. */
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
#include "libtecore/base/private.h"
#include <te/quant.h>

#include "libtecore/tensor/ctx.h"
#include "libtecore/ops/kernel.h"
#include "libtecore/ops/op.h"
#include "libtecore/quant/quant.h"

#define TE__OPS_ALIGN 256 /* alignment of each part of a workspace, in bytes */

static inline size_t te__ops_round_up(size_t nbytes)
{
	return (nbytes + TE__OPS_ALIGN - 1) / TE__OPS_ALIGN * TE__OPS_ALIGN;
}

/* the product of all extents but the last */
int64_t te__ops_rows(const struct te_spec *s);
int64_t te__ops_cols(const struct te_spec *s);

/* 0 if the main input has the compute dtype, ndim extents or more and, if cols > 0, cols columns */
int te__ops_check_x(const struct te_op_infer *inf, int ndim, int64_t cols);
/* te__ops_check_x(), and give output 0 the dtype and shape of the main input */
int te__ops_same(struct te_op_infer *inf, int ndim, int64_t cols);
int te__ops_check_flag(const char *kind, const char *name, const char *attr, int32_t value);
/* extra input 0 has a number for each token, which backward reads, too; what: its name */
int te__ops_infer_tokens(struct te_op_infer *inf, const char *what);
#define TE__OPS_DOCUMENTS "first tokens of documents"
/* extra input 0 if flag is 1, else NULL */
const struct te_tensor *te__ops_tokens(const struct te_op_call *c, int32_t flag);

/* the first weight in the compute dtype, else its FP32 master; NULL: the op has no weights */
const struct te_tensor *te__ops_weight(const struct te_op_call *c);

/* kernel arguments of an op, for the op itself and for fusions that extend them */
void te__ops_norm_fwd(const struct te_op_call *c, struct te_k_norm_fwd *ret);
/* residual: added to dx; or NULL. z: also cast dx, or NULL */
int te__ops_norm_bwd(const struct te_op_call *c, const struct te_tensor *residual, void *dx,
		     const struct te__quantize *z);
size_t te__ops_norm_dw_ws(const struct te_op_call *c);
int te__ops_norm_dw(const struct te_op_call *c, void *ws);
/* both; bwd, dw: the calls of one op. dbias: bias.dw of dx, or NULL; z: also cast dx, or NULL */
int te__ops_norm_grads(const struct te_op_call *bwd, const struct te_op_call *dw,
		       const struct te_op_call *dbias, const struct te_tensor *residual, void *dx,
		       const struct te__quantize *z, void *ws);
void te__ops_act_fwd(const struct te_op_call *c, struct te_k_act_fwd *ret);
void te__ops_act_bwd(const struct te_op_call *c, struct te_k_act_bwd *ret);
void te__ops_rope_fwd(const struct te_op_call *c, struct te_k_rope *ret);
void te__ops_rope_bwd(const struct te_op_call *c, struct te_k_rope *ret);
void te__ops_attention_fwd(const struct te_op_call *c, struct te_k_attn_fwd *ret);
/* without x, as in a call of a head with its loss: logits NULL, cols and dtype 0 */
struct te__ce te__ops_cross_entropy(const struct te_op_call *c);
/* the loss and, to dx, the gradient of the logits; ws: (3 * rows + 1) floats */
int te__ops_loss_both(const struct te_op_call *c, void *dx, float *ws);
/* te_op_call.flags in a plan of a decoder; and that no pass writes the weights */
#define TE__CALL_DECODES (1u << 31)
#define TE__CALL_FIXED_WEIGHTS (1u << 30)
/* te_gemm(); fixed: as in struct te_k_gemm */
int te__gemm_fixed(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
		   struct te_tensor *d, const struct te_gemm_opts *opts, int fixed);
/* the three GEMMs of a linear op: y = alpha x w^T, dx = alpha dy w, dw += alpha dy^T x */
int te__ops_linear_fwd(const struct te_op_call *c, float alpha, struct te_tensor *y,
		       const struct te_tensor *bias, const struct te_tensor *add);
int te__ops_linear_bwd(const struct te_op_call *c, float alpha, struct te_tensor *dx,
		       const struct te_tensor *add);
int te__ops_linear_dw(const struct te_op_call *c, float alpha);
/* logits = x w^T and their loss, chunk rows at a time, without memory for y of the linear op; not
 * FP8. part: calls of linear and cross_entropy, or of linear, scale, tanh, scale and cross_entropy.
 * dx: memory of the gradient of x, which may be x, and the gradient of w is added to; or NULL.
 * ws: te__ops_head_ws() bytes */
int te__ops_head_loss(const struct te_op_call *const *part, int nparts, void *dx, int64_t chunk,
		      void *ws);
size_t te__ops_head_ws(const struct te_op_call *linear, int capped, int64_t chunk);
float te__ops_factor(const struct te_op_call *c); /* factor of a scale op */

static inline void *te__ops_ptr(const struct te_tensor *t)
{
	return t ? te_tensor_data(t) : NULL;
}

/* p * 65536, rounded; 65536 if p rounds to 1 or more, or is NaN */
static inline uint32_t te__ops_threshold(float p)
{
	return p < 1.0f ? (uint32_t)lrintf(p * 65536.0f) : 65536u;
}

#endif
