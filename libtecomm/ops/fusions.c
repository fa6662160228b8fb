/*
 * fusions.c - te_comm_add_fusions(3): an all-reduce and the norm next to it are one kernel, and
 * codes are gathered instead of values.
 *
 * Forward: the sum over the ranks, the residual, RMSNorm and a cast. A cast with one scale that is
 * known before (delayed scaling) or with a scale for each 128 columns is part of the kernel; the
 * column-wise copy of the former is the transpose of its codes. Other casts are separate steps.
 *
 * Backward: copy sums the gradient of the norm's output; the gradient of the residual branch is
 * added to the norm's dx. The sum has memory if the gradient of gamma is computed from it.
 *
 * If ranks have parts of the norm's input, reduce_scatter and all_gather take the place of the
 * all-reduce, which is called with a sharded residual. Backward, this is done only where latency
 * matters: otherwise the call would be separate steps, and the gradient of reduce_scatter may be
 * gathered as codes. A cast with one scale is applied to parts: in the call if the scale is known
 * before; if it comes from the tensor's present amax (current scaling), and the value is so large
 * that bytes matter, by steps for the rank's rows, after the ranks have combined their amaxes.
 * Codes with scales of blocks are not gathered: training needs codes of both copies, which differ,
 * and together they have the bytes of BF16.
 */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <string.h>

#include <te/kernel.h>
#include <te/plan.h>
#include <te/quant.h>
#include <te/tensor.h>

#include "libtecomm/collective/comm.h"
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

/* allreduce, add, rmsnorm, quantize; absent ones are NULL */
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

/* is x cast? */
static int casts(const struct te_tensor *given, const struct te_op_call *quantize)
{
	return quantize->x.hp == given && te_tensor_data(quantize->y.q);
}

/* can the kernel cast y so? */
static int casts_rows(const struct te_op_call *norm, const struct te_op_call *quantize)
{
	const struct te_tensor *q = quantize->y.q;

	return casts(norm->y.hp, quantize) && !te__quantize_keeps_x(quantize->y.quant) &&
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
	return !p.quantize || casts_rows(p.norm, p.quantize);
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
	if (p.fork) /* fork of the norm's x; there is no reader between the two */
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

/* the gradient of gamma, from the sum */
static int run_dw(const struct te_fused *f, const struct backward *p)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;

	o.flags = ((const struct te_norm_attrs *)te_op_attrs(p->norm->op))->flags;
	return te_kernel_norm_backward(p->dw->stream, p->sum->dx.hp, p->norm->x.hp,
				       p->norm->master[0], NULL, p->norm->saved[0], NULL,
				       p->dw->grad[0], NULL, f->ws, f->ws_nbytes, &o);
}

static int backward_run(const struct te_fused *f)
{
	struct te_comm_norm_backward_opts o = TE_COMM_NORM_BACKWARD_OPTS_INIT;
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
	return r || !p.dw ? r : run_dw(f, &p);
}

/* ---- values of which each rank has a part ---- */

static void *at(const struct te_tensor *t, int64_t nbytes)
{
	return t ? (void *)((uintptr_t)te_tensor_data(t) + (uintptr_t)nbytes) : NULL;
}

/* can codes of parts be gathered? */
static int casts_parts(const struct te_tensor *given, const struct te_op_call *quantize)
{
	return casts(given, quantize) && te_tensor_scaling(quantize->y.q) == TE_SCALING_TENSOR;
}

/* 1: the saved half of the bytes outweighs one more launch and the exchange of amaxes. nbytes: of
 * all ranks */
static int codes_are_faster(const struct te__comm_attrs *a, size_t nbytes)
{
	return a->o.algorithm ? a->o.algorithm != TE_COMM_LL :
				!te__coll_latency(&a->comm->coll, (int64_t)nbytes);
}

/* amaxes as integers: positive floats have that order, and NaN keeps its bits */
static int join(void *comm, struct te_stream *stream, float *amax)
{
	return te_comm_allreduce(comm, stream, amax, amax, 1, TE_DTYPE_INT32, TE_COMM_MAX, NULL);
}

/* casts this rank's part to codes, and gathers those. Under current scaling the amax of all parts
 * comes first. A call gathers call_nelems of a rank */
static int gather_codes(const struct te__comm_attrs *a, const struct te_op_call *quantize,
			struct te__quantize_part part, int64_t call_nelems)
{
	int r;

	part.join = join;
	part.arg = a->comm;
	r = te__plan_quantize_part(quantize, &part);
	if (!r)
		r = te__comm_parts(a, quantize->stream, part.codes, te_tensor_data(quantize->y.q),
				   part.rows * part.cols, call_nelems,
				   te_tensor_dtype(quantize->y.q), 1);
	return r ? r : transpose(quantize);
}

/* all_gather, or reduce_scatter backward, and quantize: a part of the value, and the whole value */
static const struct te_tensor *part_of(const struct te_op_call *gather)
{
	return te_op_table(gather->op) == &te__op_all_gather ? gather->x.hp : gather->dy.hp;
}

static const struct te_tensor *whole_of(const struct te_op_call *gather)
{
	return te_op_table(gather->op) == &te__op_all_gather ? gather->y.hp : gather->dx.hp;
}

static int gather_applies(const struct te_fused *f)
{
	const struct te_op_call *gather = f->part[0];
	const struct te__comm_attrs *a = te__comm_attrs(gather->op);
	const struct te_op_ops *ops = te_op_table(gather->op);

	return (ops == &te__op_all_gather || ops == &te__op_reduce_scatter) && !whole_of(gather) &&
	       casts_parts(NULL, f->part[1]) &&
	       codes_are_faster(a, te_tensor_nbytes(part_of(gather)) *
					   (size_t)te_comm_nranks(a->comm));
}

/* codes of the part */
static size_t gather_ws(const struct te_fused *f)
{
	return (size_t)te_tensor_nelems(part_of(f->part[0]));
}

static int gather_run(const struct te_fused *f)
{
	const struct te_tensor *x = part_of(f->part[0]);
	const struct te__comm_attrs *a = te__comm_attrs(f->part[0]->op);
	const struct te__quantize_part part = {
		.x = te_tensor_data(x),
		.rows = te_tensor_rows(x),
		.cols = te_tensor_cols(x),
		.dtype = te_tensor_dtype(x),
		.codes = f->ws,
	};

	return gather_codes(a, f->part[1], part, te__comm_part_nelems(a, x));
}

/* reduce_scatter, add, rmsnorm, all_gather, quantize; absent ones are NULL */
struct scattered {
	const struct te_op_call *sum, *add, *norm, *gather, *quantize;
};

static struct scattered scattered_of(const struct te_fused *f)
{
	const int cast = is_op(f->part[f->nparts - 2], "all_gather");
	const int end = f->nparts - cast;
	struct scattered p = { f->part[0], NULL, f->part[end - 2], f->part[end - 1], NULL };

	if (cast)
		p.quantize = f->part[end];
	if (p.norm != f->part[1])
		p.add = f->part[1];
	return p;
}

/* does the cast need the amax of all rows before it begins? */
static int needs_amax(const struct scattered *p)
{
	return p->quantize && te__quantize_keeps_x(p->quantize->y.quant);
}

/* do both have parts of the same whole rows? */
static int have_same_parts(const struct te__comm_attrs *a, const struct te__comm_attrs *b,
			   const struct te_tensor *whole)
{
	return a->comm == b->comm && a->o.axis == b->o.axis &&
	       a->o.axis + 1 < te_tensor_ndim(whole);
}

static int scattered_applies(const struct te_fused *f)
{
	const struct scattered p = scattered_of(f);
	const struct te__comm_attrs *a = te__comm_attrs(p.sum->op);
	const struct te_op_call *last = p.add ? p.add : p.sum;

	if (te_op_table(p.sum->op) != &te__op_reduce_scatter ||
	    te_op_table(p.gather->op) != &te__op_all_gather ||
	    !have_same_parts(a, te__comm_attrs(p.gather->op), p.sum->x.hp))
		return 0;
	if (p.norm->x.hp != last->y.hp || p.norm->y.hp || p.gather->x.hp)
		return 0;
	if (p.add && (p.sum->y.hp || p.add->x.hp || !p.add->ex[0].hp))
		return 0;
	if (!p.quantize)
		return 1;
	if (needs_amax(&p) &&
	    (p.gather->y.hp ||
	     !codes_are_faster(te__comm_attrs(p.gather->op), te_tensor_nbytes(p.sum->x.hp))))
		return 0;
	return casts_parts(p.gather->y.hp, p.quantize);
}

/* rows of a call, of which there is one for each index of the extents before the axis; sum is one
 * of reduce_scatter, or all_gather backward, and whole its input */
static int64_t scattered_rows(const struct te_op_call *sum, const struct te_tensor *whole)
{
	return te__comm_part_nelems(te__comm_attrs(sum->op), whole) / te_tensor_cols(whole);
}

/* rows of which this rank has the sum */
static int64_t own_rows(const struct te_op_call *sum)
{
	return te_tensor_rows(sum->x.hp) / te_comm_nranks(te__comm_attrs(sum->op)->comm);
}

static size_t scattered_call_ws(const struct te_op_call *sum, const struct te_tensor *whole)
{
	return te_comm_norm_ws_nbytes(scattered_rows(sum, whole), te_tensor_cols(whole),
				      te_tensor_dtype(whole));
}

/* y of the rank's rows, then their codes and rstd */
static size_t own_y_nbytes(const struct te_op_call *sum)
{
	return te_comm_norm_ws_nbytes(own_rows(sum), te_tensor_cols(sum->x.hp),
				      te_tensor_dtype(sum->x.hp));
}

static size_t own_ws(const struct te_op_call *sum)
{
	return own_y_nbytes(sum) + te_comm_norm_ws_nbytes(own_rows(sum), te_tensor_cols(sum->x.hp),
							  TE_DTYPE_E4M3);
}

/* workspace of a call, then rstd of its rows */
static size_t scattered_ws(const struct te_fused *f)
{
	const struct scattered p = scattered_of(f);

	if (needs_amax(&p))
		return own_ws(p.sum);
	return scattered_call_ws(p.sum, p.sum->x.hp) +
	       (size_t)scattered_rows(p.sum, p.sum->x.hp) * sizeof(float);
}

/* by steps, for the rank's rows, whose codes are gathered once all ranks have the amax */
static int own_rows_run(const struct te_fused *f, const struct scattered *p)
{
	const struct te__comm_attrs *a = te__comm_attrs(p->sum->op);
	const struct te_norm_attrs *norm = te_op_attrs(p->norm->op);
	const struct te_tensor *x = p->sum->x.hp, *r_of = (p->add ? p->add : p->sum)->y.hp;
	const enum te_dtype dtype = te_tensor_dtype(x);
	const int64_t nranks = te_comm_nranks(a->comm), nelems = te_tensor_nelems(x) / nranks;
	const int64_t call_nelems = te__comm_part_nelems(a, x) / nranks;
	char *y = f->ws, *codes = y + own_y_nbytes(p->sum), *rstd = ptr(p->norm->saved[0]);
	/* the sum must not overwrite the residual, which may have the memory of r */
	void *r_at = r_of ? te_tensor_data(r_of) : y, *s = p->add ? y : r_at;
	const struct te_k_add add = {
		.a = s,
		.b = p->add ? te_tensor_data(p->add->ex[0].hp) : NULL,
		.y = r_at,
		.n = nelems,
		.dtype = (int32_t)dtype,
	};
	const struct te_k_norm_fwd k = {
		.x = r_at,
		.gamma = te_tensor_data(p->norm->master[0]),
		.y = y,
		.rstd = (float *)(void *)(rstd ? rstd : codes + nelems),
		.rows = own_rows(p->sum),
		.cols = te_tensor_cols(x),
		.eps = norm->eps,
		.zero_centered = !!(norm->flags & TE_NORM_ZERO_CENTERED),
		.dtype = (int32_t)dtype,
	};
	const struct te__quantize_part part = {
		.x = y,
		.rows = k.rows,
		.cols = k.cols,
		.dtype = dtype,
		.codes = codes,
	};
	int r = te__comm_parts(a, p->sum->stream, te_tensor_data(x), s, nelems, call_nelems, dtype,
			       0);

	if (!r && p->add)
		r = TE__LAUNCH(p->sum->stream, ADD, &add);
	if (!r)
		r = TE__LAUNCH(p->sum->stream, NORM_FWD, &k);
	if (!r)
		r = gather_codes(te__comm_attrs(p->gather->op), p->quantize, part,
				 call_nelems);
	return r;
}

static int scattered_run(const struct te_fused *f)
{
	struct te_comm_norm_opts o = TE_COMM_NORM_OPTS_INIT;
	const struct scattered p = scattered_of(f);
	const struct te__comm_attrs *a = te__comm_attrs(p.sum->op);
	const struct te_norm_attrs *norm = te_op_attrs(p.norm->op);
	const struct te_tensor *x = p.sum->x.hp, *r_of = (p.add ? p.add : p.sum)->y.hp;
	const enum te_dtype dtype = te_tensor_dtype(x);
	const int64_t rows = scattered_rows(p.sum, x), cols = te_tensor_cols(x);
	const int64_t nbytes = rows * cols * (int64_t)te_dtype_nbytes(dtype);
	const int64_t nrows = rows / te_comm_nranks(a->comm), rank = te_comm_rank(a->comm);
	const int64_t part = nbytes / te_comm_nranks(a->comm);
	char *rstd = ptr(p.norm->saved[0]);
	int r = 0;

	if (needs_amax(&p))
		return own_rows_run(f, &p);
	o.algorithm = a->o.algorithm;
	o.max_blocks = a->o.max_blocks;
	o.flags = norm_flags(p.norm) | TE_COMM_NORM_SHARDED;
	o.eps = norm->eps;
	o.gamma = te_tensor_data(p.norm->master[0]);
	if (p.quantize)
		set_cast(&o, p.quantize);
	o.ws = f->ws;
	o.ws_nbytes = scattered_call_ws(p.sum, x);
	o.rstd = rstd ? (float *)(void *)((char *)f->ws + o.ws_nbytes) : NULL;
	for (int64_t i = 0; i < te_tensor_rows(x) / rows && !r; i++) {
		/* arrays of all rows; rows of this rank are at i * part */
		o.residual = p.add ? at(p.add->ex[0].hp, (i - rank) * part) : NULL;
		o.residual_out = at(r_of, (i - rank) * part);
		o.y = at(p.gather->y.hp, i * nbytes);
		o.codes = p.quantize ? at(p.quantize->y.q, i * rows * cols) : NULL;
		r = te_comm_allreduce_norm(a->comm, p.sum->stream, at(x, i * nbytes), rows, cols,
					   dtype, &o);
		if (!r && rstd)
			r = te_copy(p.sum->stream, rstd + 4 * i * nrows, o.rstd + rank * nrows,
				    (size_t)nrows * sizeof(float));
	}
	return r || !p.quantize ? r : transpose(p.quantize);
}

/* all_gather, rmsnorm, rmsnorm.dw, fork, reduce_scatter; absent ones in p are NULL */
struct gathered {
	struct backward p;
	const struct te_op_call *gather;
};

static struct gathered gathered_of(const struct te_fused *f)
{
	struct te_fused rest = *f;

	rest.nparts--;
	return (struct gathered){ backward_of(&rest), f->part[rest.nparts] };
}

/* the gradient that reduce_scatter gathers */
static const struct te_tensor *own_dx(const struct gathered *g)
{
	return (g->p.fork ? g->p.fork : g->p.norm)->dx.hp;
}

static int gathered_applies(const struct te_fused *f)
{
	const struct gathered g = gathered_of(f);
	const struct backward *p = &g.p;
	const struct te__comm_attrs *a = te__comm_attrs(p->sum->op);
	const struct te__comm_attrs *b = te__comm_attrs(g.gather->op);
	const struct te_tensor *dy = p->sum->dy.hp;
	enum te_comm_algorithm k;

	if (te_op_table(p->sum->op) != &te__op_all_gather ||
	    te_op_table(g.gather->op) != &te__op_reduce_scatter || !dy ||
	    !have_same_parts(a, b, dy) || a->o.algorithm || b->o.algorithm)
		return 0;
	if (p->norm->dy.hp != p->sum->dx.hp || !p->norm->x.hp || g.gather->dy.hp != own_dx(&g) ||
	    !g.gather->dx.hp || (p->fork && (p->norm->dx.hp || !p->fork->dey[0].hp)))
		return 0;
	k = te__coll_latency(&a->comm->coll, (int64_t)te_tensor_nbytes(dy));
	return k == TE_COMM_ONE_SHOT || k == TE_COMM_TWO_SHOT;
}

static size_t gathered_ws(const struct te_fused *f)
{
	const struct te_op_call *sum = f->part[0];
	const struct te_tensor *x = f->part[1]->x.hp;
	const size_t call = scattered_call_ws(sum, sum->dy.hp);
	const size_t dw = te_kernel_norm_ws_nbytes(te_tensor_rows(x), te_tensor_cols(x), 1);

	return call > dw ? call : dw;
}

static int gathered_run(const struct te_fused *f)
{
	struct te_comm_norm_backward_opts o = TE_COMM_NORM_BACKWARD_OPTS_INIT;
	const struct gathered g = gathered_of(f);
	const struct backward *p = &g.p;
	const struct te__comm_attrs *a = te__comm_attrs(p->sum->op);
	const struct te_tensor *dy = p->sum->dy.hp;
	const enum te_dtype dtype = te_tensor_dtype(dy);
	const int64_t rows = scattered_rows(p->sum, dy), cols = te_tensor_cols(dy);
	const int64_t nbytes = rows * cols * (int64_t)te_dtype_nbytes(dtype);
	const int64_t nranks = te_comm_nranks(a->comm), rank = te_comm_rank(a->comm);
	int r = 0;

	o.max_blocks = a->o.max_blocks;
	o.flags = norm_flags(p->norm) | TE_COMM_NORM_SHARDED;
	o.gamma = te_tensor_data(p->norm->master[0]);
	o.ws = f->ws;
	o.ws_nbytes = f->ws_nbytes;
	for (int64_t i = 0; i < te_tensor_rows(dy) / rows && !r; i++) {
		/* arrays of all rows; rows of this rank are at i * part */
		const int64_t part = (i - rank) * (nbytes / nranks);

		o.x = at(p->norm->x.hp, part);
		o.rstd = at(p->norm->saved[0], (i - rank) * (rows / nranks) * 4);
		o.residual = p->fork ? at(p->fork->dey[0].hp, part) : NULL;
		o.sum = at(p->sum->dx.hp, part);
		o.dx = at(g.gather->dx.hp, i * nbytes);
		o.residual_out = at(own_dx(&g), part);
		r = te_comm_allreduce_norm_backward(a->comm, p->sum->stream, at(dy, i * nbytes),
						    rows, cols, dtype, &o);
	}
	return r || !p->dw ? r : run_dw(f, p);
}

/* ---- the table ---- */

#define TEST "t/comm/fusion: plans_have_the_same_bits"
#define FUSION(name_, pass_, pattern_, fn, keep_)                                               \
	{                                                                                    \
		.size = sizeof(struct te_fusion), .name = name_, .pass = pass_,              \
		.pattern = pattern_, .applies = fn##_applies, .ws_nbytes = fn##_ws,          \
		.run = fn##_run, .test = TEST, .keep = keep_                                 \
	}
#define FORWARD(name_, pattern_) FUSION(name_, TE_PASS_FORWARD, pattern_, forward, 0)
/* keep: copy's result has memory, because rmsnorm.dw reads it */
#define BACKWARD(name_, pattern_, keep_) \
	FUSION(name_, TE_PASS_BACKWARD, pattern_, backward, keep_)
#define SCATTERED(name_, pattern_) FUSION(name_, TE_PASS_FORWARD, pattern_, scattered, 0)
#define GATHERED(name_, pattern_, keep_) \
	FUSION(name_, TE_PASS_BACKWARD, pattern_, gathered, keep_)

/* the longer of two that begin alike comes first */
static const struct te_fusion fusions[] = {
	FORWARD("allreduce+add+norm+quantize", "allreduce add rmsnorm quantize"),
	FORWARD("allreduce+add+norm", "allreduce add rmsnorm"),
	FORWARD("allreduce+norm+quantize", "allreduce rmsnorm quantize"),
	FORWARD("allreduce+norm", "allreduce rmsnorm"),
	SCATTERED("scatter+add+norm+gather+quantize",
		  "reduce_scatter add rmsnorm all_gather quantize"),
	SCATTERED("scatter+add+norm+gather", "reduce_scatter add rmsnorm all_gather"),
	SCATTERED("scatter+norm+gather+quantize",
		  "reduce_scatter rmsnorm all_gather quantize"),
	SCATTERED("scatter+norm+gather", "reduce_scatter rmsnorm all_gather"),
	FUSION("gather+quantize", TE_PASS_FORWARD, "all_gather quantize", gather, 0),
	FUSION("gather.bwd+quantize", TE_PASS_BACKWARD, "reduce_scatter quantize", gather,
	       0),
	BACKWARD("allreduce+norm.bwd+dw+add", "copy rmsnorm rmsnorm.dw fork", 1),
	BACKWARD("allreduce+norm.bwd+dw", "copy rmsnorm rmsnorm.dw", 1),
	BACKWARD("allreduce+norm.bwd+add", "copy rmsnorm fork", 0),
	BACKWARD("allreduce+norm.bwd", "copy rmsnorm", 0),
	GATHERED("scatter+norm.bwd+dw+add+gather",
		 "all_gather rmsnorm rmsnorm.dw fork reduce_scatter", 1),
	GATHERED("scatter+norm.bwd+dw+gather", "all_gather rmsnorm rmsnorm.dw reduce_scatter", 1),
	GATHERED("scatter+norm.bwd+add+gather", "all_gather rmsnorm fork reduce_scatter", 0),
	GATHERED("scatter+norm.bwd+gather", "all_gather rmsnorm reduce_scatter", 0),
};

int te_comm_add_fusions(struct te_seq *seq)
{
	int r = 0;

	for (size_t i = 0; i < sizeof(fusions) / sizeof(fusions[0]) && !r; i++)
		r = te__seq_add_fusion(seq, &fusions[i]);
	return r;
}
