/* cross_entropy.c - te_comm_op_cross_entropy(3): losses of classes or tokens that ranks divide. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include <te/comm_op.h>
#include <te/kernel.h>
#include <te/op.h>
#include <te/tensor.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/ops/ops.h"

struct attrs {
	struct te_comm *comm;
	struct te_cross_entropy_attrs a;
	int tokens; /* 1: ranks divide the tokens; 0: the classes */
};

enum { SAVED_MAX_SUM, SAVED_COUNT, SAVED_PARTS };

static const struct attrs *attrs_of(const struct te_op *op)
{
	return te_op_attrs(op);
}

/* the op holds the communicator once it has succeeded */
static int ce_check(const struct te_op *op)
{
	const struct te_cross_entropy_attrs *a = &attrs_of(op)->a;
	const char *kind = te_op_table(op)->name, *name = te_op_name(op);

	if (a->nclasses < 1 || a->nclasses > INT32_MAX)
		return te__fail(-EINVAL, "%s %s: nclasses is %lld, not 1 to %d", kind, name,
				(long long)a->nclasses, INT32_MAX);
	if (a->chunk)
		return te__fail(-EINVAL, "%s %s: chunk is %lld, not 0", kind, name,
				(long long)a->chunk);
	if (!isfinite(a->grad_scale) || !a->grad_scale)
		return te__fail(-EINVAL, "%s %s: grad_scale is %g, not finite and other than 0",
				kind, name, (double)a->grad_scale);
	te_comm_ref(attrs_of(op)->comm);
	return 0;
}

static void ce_destroy(struct te_op *op)
{
	te_comm_unref(attrs_of(op)->comm);
}

/* n: ranks that divide the classes */
static int check_specs(const struct te_op_infer *inf, int64_t rows, int64_t cols, int32_t n)
{
	const struct attrs *a = attrs_of(inf->op);
	const struct te_spec *x = &inf->in[0], *t = &inf->in[1];
	const char *kind = te_op_table(inf->op)->name, *name = te_op_name(inf->op);

	if (x->dtype != TE_DTYPE_FP32 && x->dtype != TE_DTYPE_BF16)
		return te__fail(-TE_EDTYPE, "%s %s: logits are %s, not fp32 or bf16", kind, name,
				te_dtype_name(x->dtype));
	if (t->dtype != TE_DTYPE_INT32)
		return te__fail(-TE_EDTYPE, "%s %s: targets are %s, not int32", kind, name,
				te_dtype_name(t->dtype));
	if (te__spec_nelems(t) != rows)
		return te__fail(-TE_ESHAPE, "%s %s: %lld targets for %lld rows of logits", kind,
				name, (long long)te__spec_nelems(t), (long long)rows);
	if ((a->a.nclasses + n - 1) / n > cols)
		return te__fail(-TE_ESHAPE, "%s %s: logits are %lld wide on each of %d ranks, "
				"nclasses is %lld", kind, name, (long long)cols, n,
				(long long)a->a.nclasses);
	return 0;
}

static int ce_infer(struct te_op_infer *inf)
{
	const struct attrs *a = attrs_of(inf->op);
	const int32_t n = te_comm_nranks(a->comm);
	const struct te_spec *x = &inf->in[0];
	const int64_t cols = x->shape[x->ndim - 1], rows = te__spec_nelems(x) / cols;
	int r = check_specs(inf, rows, cols, a->tokens ? 1 : n);

	if (r < 0)
		return r;
	inf->out[0] = (struct te_spec){ TE_DTYPE_FP32, 1, { 1 } };
	inf->save_x = TE_FORM_HP;
	inf->save_ex[0] = 1;
	inf->bwd_dy = 0; /* the loss is the last op: its gradient is grad_scale */
	inf->inplace_bwd = 1;
	inf->fwd_ws_nbytes = te_kernel_cross_entropy_ws_nbytes(rows);
	if (a->tokens)
		inf->fwd_ws_nbytes *= (size_t)(1 + 2 * n);
	r = te_infer_save(inf, &(struct te_spec){ TE_DTYPE_FP32, 2, { 2, rows } });
	if (r >= 0)
		r = te_infer_save(inf, &inf->out[0]);
	if (r < 0 || a->tokens)
		return r;
	return te_infer_save(inf, &(struct te_spec){ TE_DTYPE_FP32, 3, { n, 3, rows } });
}

static struct te_kernel_cross_entropy_opts opts_of(const struct te_op_call *c)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	const struct attrs *a = attrs_of(c->op);

	o.nclasses = a->a.nclasses;
	o.ignore_index = a->a.ignore_index;
	if (!a->tokens) {
		o.nparts = te_comm_nranks(a->comm);
		o.part = te_comm_rank(a->comm);
	}
	return o;
}

static int ce_forward(const struct te_op_call *c)
{
	const struct te_kernel_cross_entropy_opts o = opts_of(c);
	const struct te_tensor *targets = c->ex[0].hp;
	struct te_tensor *parts = c->saved[SAVED_PARTS];
	const int64_t n = te_tensor_nelems(parts) / o.nparts;
	float *all = te_tensor_data(parts);
	int r = te_kernel_cross_entropy_part(c->stream, c->x.hp, targets, parts, &o);

	if (!r)
		r = te_comm_all_gather(attrs_of(c->op)->comm, c->stream, all + o.part * n, all, n,
				       TE_DTYPE_FP32, NULL);
	return r ? r :
		   te_kernel_cross_entropy_join(c->stream, parts, targets, c->y.hp,
						c->saved[SAVED_MAX_SUM], c->saved[SAVED_COUNT],
						c->ws, c->ws_nbytes, &o);
}

static int ce_backward(const struct te_op_call *c)
{
	struct te_kernel_cross_entropy_opts o = opts_of(c);

	o.grad_scale = attrs_of(c->op)->a.grad_scale * c->grad_scale;
	return te_kernel_cross_entropy_backward(c->stream, c->x.hp, c->ex[0].hp,
						c->saved[SAVED_MAX_SUM], c->saved[SAVED_COUNT],
						c->dx.hp, &o);
}

static int ce_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct attrs *a = attrs_of(op);

	return snprintf(dst, nbytes, "classes %lld, ignore %d, gradient scale %g, %d ranks of %s",
			(long long)a->a.nclasses, a->a.ignore_index, (double)a->a.grad_scale,
			te_comm_nranks(a->comm), a->comm->name);
}

/* ---- tokens that ranks divide ---- */

/*
 * All ranks have the losses and targets of all rows, in the order of one rank, for which
 * te__comm_parts() queues a call for each sequence. So the loss, the number of rows that count and
 * the gradients have the bits of one rank.
 */
static int tokens_forward(const struct te_op_call *c)
{
	const struct te_kernel_cross_entropy_opts o = opts_of(c);
	const struct te__comm_attrs ranks = { attrs_of(c->op)->comm, TE_COMM_OP_OPTS_INIT };
	const struct te_tensor *x = c->x.hp, *targets = c->ex[0].hp;
	const int64_t rows = te_tensor_nelems(targets), n = te_comm_nranks(ranks.comm);
	const int64_t T = te_tensor_ndim(x) > 1 ? te_tensor_extent(x, te_tensor_ndim(x) - 2) : 1;
	float *loss = c->ws, *all = loss + rows;
	int32_t *all_targets = (int32_t *)(void *)(all + n * rows);
	int r = te_kernel_cross_entropy_forward(c->stream, x, targets, c->y.hp,
						c->saved[SAVED_MAX_SUM], c->saved[SAVED_COUNT],
						loss, c->ws_nbytes, &o);

	if (!r)
		r = te__comm_parts(&ranks, c->stream, loss, all, rows, T, TE_DTYPE_FP32, 1);
	if (!r)
		r = te__comm_parts(&ranks, c->stream, te_tensor_data(targets), all_targets, rows, T,
				   TE_DTYPE_INT32, 1);
	return r ? r : TE__LAUNCH(c->stream, CE_REDUCE, (&(struct te_k_ce_reduce){
		.row_loss = all,
		.targets = all_targets,
		.loss = te_tensor_data(c->y.hp),
		.count = te_tensor_data(c->saved[SAVED_COUNT]),
		.rows = n * rows,
		.nclasses = o.nclasses,
		.ignore_index = o.ignore_index,
	}));
}

#define CE_OPS(name_, forward_)                       \
	{                                             \
		.size = sizeof(struct te_op_ops),     \
		.name = name_,                        \
		.attrs_nbytes = sizeof(struct attrs), \
		.nextra_in = 1,                       \
		.check = ce_check,                    \
		.infer = ce_infer,                    \
		.forward = forward_,                  \
		.backward = ce_backward,              \
		.describe = ce_describe,              \
		.destroy = ce_destroy,                \
	}
static const struct te_op_ops cross_entropy_ops = CE_OPS("comm_cross_entropy", ce_forward);
static const struct te_op_ops tokens_ops = CE_OPS("tokens_cross_entropy", tokens_forward);

static int create(const char *fn, const struct te_op_ops *ops, struct te_comm *comm,
		  const struct te_cross_entropy_attrs *attrs, const char *name,
		  struct te_op **ret_op)
{
	struct attrs a = { comm, TE_CROSS_ENTROPY_ATTRS_INIT, ops == &tokens_ops };
	int r = te__sized_in(fn, te_cross_entropy_attrs, attrs, &a.a);

	if (!r && !comm)
		return te__fail(-EINVAL, "%s: comm is NULL", fn);
	return r ? r : te__op_create(ops, &a, name, ret_op);
}

int te_comm_op_cross_entropy(struct te_comm *comm, const struct te_cross_entropy_attrs *attrs,
			     const char *name, struct te_op **ret_op)
{
	return create("te_comm_op_cross_entropy", &cross_entropy_ops, comm, attrs, name, ret_op);
}

int te_comm_op_cross_entropy_tokens(struct te_comm *comm,
				    const struct te_cross_entropy_attrs *attrs, const char *name,
				    struct te_op **ret_op)
{
	return create("te_comm_op_cross_entropy_tokens", &tokens_ops, comm, attrs, name, ret_op);
}
