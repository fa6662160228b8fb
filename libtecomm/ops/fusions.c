/*
 * fusions.c - te_comm_add_fusions(3): an all-reduce and the norm next to it are one kernel.
 *
 * Forward: the sum over the ranks, the residual, RMSNorm and a cast. A cast with one scale that is
 * known before (delayed scaling) or with a scale for each 128 columns is part of the kernel; the
 * column-wise copy of the former is the transpose of its codes. Others are steps of their own.
 *
 * Backward: copy sums the gradient of the norm's output, whose dx then gets that of the residual
 * branch. The sum has memory where the gradient of gamma is computed from it.
 */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <string.h>

#include <te/kernel.h>
#include <te/plan.h>
#include <te/quant.h>
#include <te/tensor.h>

#include "libtecomm/comm_internal.h"
#include "libtecomm/ops/ops.h"

static void *ptr(const struct te_tensor *t)
{
	return t ? te_tensor_data(t) : NULL;
}

static int is_op(const struct te_op_call *c, const char *name)
{
	return !strcmp(te_op_table(c->op)->name, name);
}

static uint32_t norm_flags(const struct te_op_call *norm)
{
	const struct te_norm_attrs *a = te_op_attrs(norm->op);

	return a->flags & TE_NORM_ZERO_CENTERED ? TE_COMM_NORM_ZERO_CENTERED : 0;
}

/* ---- forward ---- */

/* allreduce, add, rmsnorm, quantize; those that are absent are NULL */
struct forward {
	const struct te_op_call *sum, *add, *norm, *quantize;
};

static struct forward forward_of(const struct te_fused *f)
{
	const int cast = f->part[f->nparts - 1]->y.q != NULL;
	struct forward p = { f->part[0], NULL, f->part[f->nparts - 1 - cast], NULL };

	if (cast)
		p.quantize = f->part[f->nparts - 1];
	if (p.norm != f->part[1])
		p.add = f->part[1];
	return p;
}

/* can the kernel cast y so? */
static int casts(const struct te_op_call *norm, const struct te_op_call *quantize)
{
	const struct te_tensor *q = quantize->y.q;

	return quantize->x.hp == norm->y.hp && te_tensor_data(q) &&
	       !te__quantize_keeps_x(quantize->y.quant) &&
	       (te_tensor_scaling(q) == TE_SCALING_TENSOR ||
		(te_tensor_scaling(q) == TE_SCALING_1X128 && !te_tensor_coldata(q)));
}

static int forward_applies(const struct te_fused *f)
{
	const struct forward p = forward_of(f);
	const struct te_op_call *last = p.add ? p.add : p.sum;

	if (te_op_table(p.sum->op) != &te__op_allreduce || p.norm->x.hp != last->y.hp)
		return 0;
	if (p.add && (p.add->x.hp != p.sum->y.hp || !p.add->ex[0].hp ||
		      p.add->ex[0].hp == p.sum->y.hp))
		return 0;
	return !p.quantize || casts(p.norm, p.quantize);
}

static size_t ws_nbytes(const struct te_tensor *x)
{
	return te_comm_norm_ws_nbytes(te_tensor_rows(x), te_tensor_cols(x), te_tensor_dtype(x));
}

static size_t forward_ws(const struct te_fused *f)
{
	return ws_nbytes(f->part[0]->x.hp);
}

static void set_cast(struct te_comm_norm_opts *o, const struct te_op_call *quantize)
{
	const struct te_op_value *y = &quantize->y;
	const struct te_recipe *recipe = te_quant_recipe(y->quant);

	o->codes = te_tensor_data(y->q);
	o->qdtype = te_tensor_dtype(y->q);
	o->scale_inv = te_tensor_scale_inv(y->q);
	if (te_tensor_scaling(y->q) == TE_SCALING_1X128) {
		o->scaling = TE_COMM_SCALING_BLOCK;
		o->amax_epsilon = recipe->amax_epsilon;
		o->flags |= recipe->flags & TE_RECIPE_FP32_SCALES ? 0 : TE_COMM_NORM_POW2;
		return;
	}
	o->scale = te_quant_scale_ptr(y->quant, y->slot);
	if (!(quantize->flags & TE_CALL_NO_AMAX))
		o->amax = te_quant_amax_ptr(y->quant, y->slot);
}

/* the column-wise copy of codes with one scale */
static int transpose(const struct te_op_call *quantize)
{
	const struct te_tensor *q = quantize->y.q;
	const struct te_k_transpose k = {
		.x = te_tensor_data(q),
		.y = te_tensor_coldata(q),
		.rows = te_tensor_rows(q),
		.cols = te_tensor_cols(q),
		.elem = 1,
	};

	return k.y ? TE__LAUNCH(quantize->stream, TRANSPOSE, &k) : 0;
}

static int forward_run(const struct te_fused *f)
{
	struct te_comm_norm_opts o = TE_COMM_NORM_OPTS_INIT;
	const struct forward p = forward_of(f);
	const struct te__comm_attrs *a = te__comm_attrs(p.sum->op);
	const struct te_norm_attrs *norm = te_op_attrs(p.norm->op);
	const struct te_tensor *x = p.sum->x.hp;
	int r;

	o.algorithm = a->o.algorithm;
	o.max_blocks = a->o.max_blocks;
	o.flags = norm_flags(p.norm);
	o.eps = norm->eps;
	o.gamma = te_tensor_data(p.norm->master[0]);
	o.sum = ptr(p.sum->y.hp);
	if (p.add) {
		o.residual = te_tensor_data(p.add->ex[0].hp);
		o.residual_out = ptr(p.add->y.hp);
	}
	o.y = ptr(p.norm->y.hp);
	o.rstd = ptr(p.norm->saved[0]);
	if (p.quantize)
		set_cast(&o, p.quantize);
	o.ws = f->ws;
	o.ws_nbytes = f->ws_nbytes;
	r = te_comm_allreduce_norm(a->comm, p.sum->stream, te_tensor_data(x), te_tensor_rows(x),
				   te_tensor_cols(x), te_tensor_dtype(x), &o);
	return r || !p.quantize ? r : transpose(p.quantize);
}

/* ---- backward ---- */

/* copy, rmsnorm, rmsnorm.dw, fork; the last two may be absent: NULL */
struct backward {
	const struct te_op_call *sum, *norm, *dw, *fork;
};

static struct backward backward_of(const struct te_fused *f)
{
	struct backward p = { f->part[0], f->part[1], NULL, NULL };

	for (int i = 2; i < f->nparts; i++)
		*(is_op(f->part[i], "fork") ? &p.fork : &p.dw) = f->part[i];
	return p;
}

static int backward_applies(const struct te_fused *f)
{
	const struct backward p = backward_of(f);

	if (te_op_table(p.sum->op) != &te__op_copy || p.norm->dy.hp != p.sum->dx.hp ||
	    !p.norm->x.hp)
		return 0;
	if (p.fork) /* of the norm's x; without a reader of its own in between */
		return !p.norm->dx.hp && p.fork->dey[0].hp && p.fork->dx.hp;
	return p.norm->dx.hp != NULL;
}

static size_t backward_ws(const struct te_fused *f)
{
	const struct te_tensor *x = f->part[1]->x.hp;
	const size_t sum = ws_nbytes(x);
	const size_t dw = te_kernel_norm_ws_nbytes(te_tensor_rows(x), te_tensor_cols(x), 1);

	return sum > dw ? sum : dw;
}

static int backward_run(const struct te_fused *f)
{
	struct te_comm_norm_backward_opts o = TE_COMM_NORM_BACKWARD_OPTS_INIT;
	struct te_kernel_norm_opts dw = TE_KERNEL_NORM_OPTS_INIT;
	const struct backward p = backward_of(f);
	const struct te__comm_attrs *a = te__comm_attrs(p.sum->op);
	const struct te_tensor *dy = p.sum->dy.hp;
	int r;

	o.algorithm = a->o.algorithm;
	o.max_blocks = a->o.max_blocks;
	o.flags = norm_flags(p.norm);
	o.x = te_tensor_data(p.norm->x.hp);
	o.rstd = te_tensor_data(p.norm->saved[0]);
	o.gamma = te_tensor_data(p.norm->master[0]);
	o.residual = p.fork ? te_tensor_data(p.fork->dey[0].hp) : NULL;
	o.sum = ptr(p.sum->dx.hp);
	o.dx = te_tensor_data(p.fork ? p.fork->dx.hp : p.norm->dx.hp);
	o.ws = f->ws;
	o.ws_nbytes = f->ws_nbytes;
	r = te_comm_allreduce_norm_backward(a->comm, p.sum->stream, te_tensor_data(dy),
					    te_tensor_rows(dy), te_tensor_cols(dy),
					    te_tensor_dtype(dy), &o);
	if (r || !p.dw)
		return r;
	dw.flags = ((const struct te_norm_attrs *)te_op_attrs(p.norm->op))->flags;
	return te_kernel_norm_backward(p.dw->stream, p.sum->dx.hp, p.norm->x.hp, p.norm->master[0],
				       NULL, p.norm->saved[0], NULL, p.dw->grad[0], NULL, f->ws,
				       f->ws_nbytes, &dw);
}

/* ---- the table ---- */

#define TEST "t/comm/fusion: plans_have_the_same_bits"
#define FORWARD(name_, pattern_)                                                             \
	{                                                                                    \
		.size = sizeof(struct te_fusion), .name = name_, .pass = TE_PASS_FORWARD,    \
		.pattern = pattern_, .applies = forward_applies, .ws_nbytes = forward_ws,    \
		.run = forward_run, .test = TEST                                             \
	}
/* keep: copy's result has memory, because rmsnorm.dw reads it */
#define BACKWARD(name_, pattern_, keep_)                                                     \
	{                                                                                    \
		.size = sizeof(struct te_fusion), .name = name_, .pass = TE_PASS_BACKWARD,   \
		.pattern = pattern_, .applies = backward_applies, .ws_nbytes = backward_ws,  \
		.run = backward_run, .test = TEST, .keep = keep_                             \
	}

/* the longer of two that begin alike comes first */
static const struct te_fusion fusions[] = {
	FORWARD("allreduce+add+norm+quantize", "allreduce add rmsnorm quantize"),
	FORWARD("allreduce+add+norm", "allreduce add rmsnorm"),
	FORWARD("allreduce+norm+quantize", "allreduce rmsnorm quantize"),
	FORWARD("allreduce+norm", "allreduce rmsnorm"),
	BACKWARD("allreduce+norm.bwd+dw+add", "copy rmsnorm rmsnorm.dw fork", 1),
	BACKWARD("allreduce+norm.bwd+dw", "copy rmsnorm rmsnorm.dw", 1),
	BACKWARD("allreduce+norm.bwd+add", "copy rmsnorm fork", 0),
	BACKWARD("allreduce+norm.bwd", "copy rmsnorm", 0),
};

int te_comm_add_fusions(struct te_seq *seq)
{
	int r = 0;

	for (size_t i = 0; i < sizeof(fusions) / sizeof(fusions[0]) && !r; i++)
		r = te_seq_add_fusion(seq, &fusions[i]);
	return r;
}
