/*
 * norm_apart.c - te_comm_allreduce_norm(3) as several kernels.
 *
 * An all-reduce precedes te_k_comm_norm, which runs as the kernel of one rank, so that the bits are
 * the same. If it does not support the rows, kernels of libtecore compute the results. If the
 * residual is sharded, a rank does this for its own rows, and the ranks gather the results, except
 * arrays of which each rank keeps only its own rows.
 */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <stdio.h>

#include "libtecomm/collective/collective.h"
#include "libtecomm/collective/norm.h"

/* ---- the kernel ---- */

struct te_k_comm_norm te__comm_norm_alone(const struct te__comm_norm *a, const void *in, void *out)
{
	struct te_k_comm_norm k = a->k;

	k.comm = te__coll_args_alone(&a->comm->coll);
	k.comm.in = in;
	k.comm.out = out;
	k.comm.count = a->k.comm.count;
	k.comm.dtype = a->k.comm.dtype;
	k.comm.op = TE_K_COMM_SUM;
	k.comm.algorithm = TE_K_COMM_ONE_SHOT;
	k.comm.buffer_nbytes = te_k_comm_norm_buffer_nbytes(&k);
	k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
	return k;
}

int te__comm_norm_launch(const struct te__comm_norm *a, const struct te_k_comm_norm *k,
			 struct te_stream *stream)
{
	return te__comm_norm_is_backward(a) ? TE__LAUNCH(stream, COMM_NORM_BWD, k) :
					      TE__LAUNCH(stream, COMM_NORM, k);
}

/* ---- kernels of libtecore ---- */

/* are there outputs other than s? */
static int more_outputs(const struct te_k_comm_norm *k)
{
	return k->residual_out || k->y || k->rstd || k->codes || k->amax;
}

/* is the norm computed? */
static int has_norm(const struct te_k_comm_norm *k)
{
	return k->y || k->rstd || k->codes || k->amax;
}

/* dx of s; residual_out may replace the residual, after its last use */
static int norm_backward(const struct te__comm_norm *a, const void *s, struct te_stream *stream)
{
	const struct te_k_comm_norm *k = &a->k;
	void *dx = k->y ? k->y : k->residual_out;
	const struct te_k_norm_bwd norm = {
		.dy = s,
		.x = k->x,
		.gamma = k->gamma,
		.rstd = k->x_rstd,
		.dres = k->residual,
		.dx = dx,
		.rows = k->rows,
		.cols = k->cols,
		.zero_centered = !!(k->flags & TE_K_COMM_ZERO_CENTERED),
		.dtype = k->comm.dtype,
	};
	int r = TE__LAUNCH(stream, NORM_BWD, &norm);

	if (r || !k->residual_out || dx == k->residual_out)
		return r;
	return te_copy(stream, k->residual_out, dx, (size_t)te__comm_norm_nbytes(a));
}

/* r, from s */
static int add_residual(const struct te__comm_norm *a, const void *s, void *r,
			struct te_stream *stream)
{
	const struct te_k_comm_norm *k = &a->k;
	const struct te_k_add add = {
		.a = s,
		.b = k->residual,
		.y = r,
		.n = k->comm.count,
		.dtype = k->comm.dtype,
	};

	if (k->residual)
		return TE__LAUNCH(stream, ADD, &add);
	return r == s ? 0 : te_copy(stream, r, s, (size_t)te__comm_norm_nbytes(a));
}

/* codes and amax of y */
static int cast(const struct te__comm_norm *a, const void *y, struct te_stream *stream)
{
	const struct te_k_comm_norm *k = &a->k;
	const int block = k->scaling == TE_K_COMM_SCALING_BLOCK;
	const struct te_k_quantize quantize = {
		.x = y,
		.rows = k->rows,
		.cols = k->cols,
		.q = {
			.row = k->codes,
			.scale = k->scale,
			.scale_inv = k->scale_inv,
			.epsilon = k->epsilon,
			.dtype = k->qdtype,
			.scaling = block ? TE_K_SCALING_1X128 : TE_K_SCALING_TENSOR,
			.pow2 = !!(k->flags & TE_K_COMM_POW2),
		},
		.dtype = k->comm.dtype,
	};
	const struct te_k_amax amax = {
		.x = y,
		.n = k->comm.count,
		.amax = k->amax,
		.dtype = k->comm.dtype,
	};
	int r = k->amax ? TE__LAUNCH(stream, AMAX, &amax) : 0;

	return r || !k->codes ? r : TE__LAUNCH(stream, QUANTIZE, &quantize);
}

/* rows that te_k_comm_norm does not support; ws: T [rows, cols], then a float for each row */
static int by_kernels(const struct te__comm_norm *a, const void *s, struct te_stream *stream)
{
	const struct te_k_comm_norm *k = &a->k;
	void *ws_rstd = (char *)a->ws + te__comm_norm_round_up((uint64_t)te__comm_norm_nbytes(a));
	/* s is kept if it is an output; r may replace it in ws, and y replace r there */
	void *r = k->residual_out ? k->residual_out : a->ws;
	const struct te_k_norm_fwd norm = {
		.x = r,
		.gamma = k->gamma,
		.y = k->y		 ? k->y :
		     k->codes || k->amax ? a->ws :
					   NULL,
		.rstd = k->rstd ? k->rstd : ws_rstd,
		.rows = k->rows,
		.cols = k->cols,
		.eps = k->eps,
		.zero_centered = !!(k->flags & TE_K_COMM_ZERO_CENTERED),
		.dtype = k->comm.dtype,
	};
	int err = add_residual(a, s, r, stream);

	if (!err && has_norm(k))
		err = TE__LAUNCH(stream, NORM_FWD, &norm);
	return err || !(k->codes || k->amax) ? err : cast(a, norm.y, stream);
}

/* ---- not fused ---- */

/* a call that is queued on the stream, or, with a choice, one whose cost is added to that */
struct steps {
	const struct te__comm_norm *a;
	const struct te__comm_norm_how *how;
	struct te_stream *stream;
	struct te_comm_choice *choice;
};

/* queues or explains one operation of the call; the first one, the sum, describes the choice */
static int collective(const struct steps *t, enum te_k_comm_collective what, const void *in,
		      void *out, int64_t count, enum te_dtype dtype, enum te_comm_op op,
		      int32_t root, enum te_comm_algorithm algorithm)
{
	const struct te__call call = {
		t->a->fn, t->a->comm, in, out, count, dtype, op, what, root
	};
	struct te_comm_call_opts o = t->a->call;
	struct te_comm_choice c;
	int r;

	o.algorithm = algorithm;
	if (!t->choice)
		return te__comm_queue(&call, &o, t->stream);
	r = te__comm_explain(&call, &o, &c);
	if (r)
		return r;
	if (t->choice->nlaunches) {
		t->choice->nlaunches += c.nlaunches;
		t->choice->nsent += c.nsent;
	} else {
		*t->choice = c;
	}
	return 0;
}

/* has each rank as many rows as the others? */
static int is_even(const struct te__comm_norm *a)
{
	return a->k.rows % te__comm_norm_nranks(a) == 0;
}

/* rows of n elements that each rank has computed in part; p may be NULL */
static int gather(const struct steps *t, void *p, int64_t n, enum te_dtype dtype)
{
	const int64_t row_nbytes = n * (int64_t)te_dtype_nbytes(dtype);
	const int32_t nranks = te__comm_norm_nranks(t->a);
	int r = 0;

	if (p && is_even(t->a))
		return collective(
			t, TE_K_COLL_ALL_GATHER,
			(char *)p + te__comm_norm_first(t->a, te__boot_rank(t->a->comm->boot)) *
					    row_nbytes,
			p, t->a->k.rows / nranks * n, dtype, TE_COMM_SUM, 0, TE_COMM_AUTO);
	for (int32_t k = 0; k < nranks && p && !r; k++) {
		const int64_t first = te__comm_norm_first(t->a, k),
			      nrows = te__comm_norm_first(t->a, k + 1) - first;
		char *at = (char *)p + first * row_nbytes;

		if (nrows)
			r = collective(t, TE_K_COLL_BROADCAST, at, at, nrows * n, dtype,
				       TE_COMM_SUM, k, TE_COMM_AUTO);
	}
	return r;
}

/* is sum written in this rank's rows only? */
static int has_own_sum(const struct te__comm_norm *a)
{
	return te__comm_norm_is_backward(a) && te__comm_norm_is_sharded(a);
}

/* is s computed in this rank's rows only, because the others are not needed and can be omitted? */
static int scatters(const struct te__comm_norm *a)
{
	const enum te_comm_algorithm k = a->call.algorithm;

	return te__comm_norm_is_sharded(a) && (!a->k.comm.out || has_own_sum(a)) && is_even(a) &&
	       /* the algorithms of te_comm_reduce_scatter() that take any size */
	       (k == TE_COMM_AUTO || k == TE_COMM_ZERO_COPY || k == TE_COMM_STAGED ||
		k == TE_COMM_EXCHANGE || k == TE_COMM_CHAIN);
}

/* compute s of all rows, or of this rank's rows, to out */
static int sum(const struct steps *t, char *out)
{
	const struct te__comm_norm *a = t->a;
	const enum te_comm_algorithm k = a->call.algorithm;
	const enum te_dtype dtype = (enum te_dtype)a->k.comm.dtype;

	if (!scatters(a))
		return collective(t, TE_K_COLL_ALLREDUCE, a->k.comm.in, out, a->k.comm.count, dtype,
				  TE_COMM_SUM, 0, k);
	return collective(t, TE_K_COLL_REDUCE_SCATTER, a->k.comm.in,
			  out + te__comm_norm_nbytes(a) / te__comm_norm_nranks(a) *
					  te__boot_rank(a->comm->boot),
			  a->k.comm.count / te__comm_norm_nranks(a), dtype, TE_COMM_SUM, 0, k);
}

/* kernels that compute the other outputs from s */
static int kernels(const struct steps *t, const struct te__comm_norm *a, const void *s)
{
	const struct te_k_comm_norm *k = &a->k;
	struct te_k_comm_norm one;

	if (!more_outputs(k) || !k->rows)
		return 0;
	if (t->choice) {
		t->choice->nlaunches +=
			t->how->packets ? 1 :
			te__comm_norm_is_backward(a) ? 1 + (k->y && k->residual_out) :
						(k->residual || k->residual_out || k->comm.out) +
							has_norm(k) + !!k->amax + !!k->codes;
		return 0;
	}
	if (t->how->packets) {
		one = te__comm_norm_alone(a, s, NULL);
		return te__comm_norm_launch(a, &one, t->stream);
	}
	return te__comm_norm_is_backward(a) ? norm_backward(a, s, t->stream) :
					      by_kernels(a, s, t->stream);
}

static void *at(void *p, int64_t nbytes)
{
	return p ? (char *)p + nbytes : NULL;
}

/* the call for the rows of this rank; in ws are s or y, then words of rows */
static struct te__comm_norm own_rows(const struct te__comm_norm *a, void *ws)
{
	const int32_t rank = te__boot_rank(a->comm->boot);
	const int64_t first = te__comm_norm_first(a, rank),
		      nrows = te__comm_norm_first(a, rank + 1) - first;
	const int64_t row_nbytes = te__comm_norm_nbytes(a) / a->k.rows;
	float *words = (float *)(void *)((char *)ws +
					 te__comm_norm_round_up((uint64_t)te__comm_norm_nbytes(a)));
	const int block = te__comm_norm_is_block(a);
	struct te__comm_norm own = *a;
	struct te_k_comm_norm *k = &own.k;

	own.ws = at(ws, first * row_nbytes);
	k->rows = nrows;
	k->comm.count = nrows * k->cols;
	k->residual = k->residual ? (const char *)k->residual + first * row_nbytes : NULL;
	k->residual_out = at(k->residual_out, first * row_nbytes);
	k->x = k->x ? (const char *)k->x + first * row_nbytes : NULL;
	k->x_rstd = k->x ? k->x_rstd + first : NULL;
	k->rstd = k->rstd ? k->rstd + first : has_norm(k) && !k->x ? words : NULL;
	/* scales of blocks are not in the order of rows: these codes are made of y of all rows */
	k->y = at(k->y || !block ? k->y : ws, first * row_nbytes);
	k->codes = block ? NULL : at(k->codes, first * k->cols);
	if (k->codes && k->scaling == TE_K_COMM_SCALING_TOKEN)
		k->scale_inv += first;
	return own;
}

/* each rank computes its rows, and sends results in their final form */
static int sharded(const struct steps *t, char *ws, char *s)
{
	const struct te__comm_norm *a = t->a;
	const struct te_k_comm_norm *k = &a->k;
	const struct te__comm_norm own = own_rows(a, ws);
	struct te__comm_norm codes = *a; /* arguments for the codes of all rows */
	int r = kernels(t, &own, s + ((char *)own.ws - ws));

	codes.k.amax = NULL;
	if (!r && own.k.y)
		r = gather(t, k->y ? k->y : ws, k->cols, (enum te_dtype)k->comm.dtype);
	if (!r && own.k.codes)
		r = gather(t, k->codes, k->cols, (enum te_dtype)k->qdtype);
	if (!r && own.k.codes && k->scaling == TE_K_COMM_SCALING_TOKEN)
		r = gather(t, k->scale_inv, 1, TE_DTYPE_FP32);
	else if (!r && own.k.codes && k->rows < te__comm_norm_nranks(a)) /* ranks without rows */
		r = collective(t, TE_K_COLL_BROADCAST, k->scale_inv, k->scale_inv, 1, TE_DTYPE_FP32,
			       TE_COMM_SUM, 0, TE_COMM_AUTO);
	/* as integers: positive floats have that order, and NaN keeps its bits */
	if (!r && k->amax)
		r = collective(t, TE_K_COLL_ALLREDUCE, k->amax, k->amax, 1, TE_DTYPE_INT32,
			       TE_COMM_MAX, 0, TE_COMM_AUTO);
	if (r || !k->codes || own.k.codes)
		return r;
	if (t->choice)
		t->choice->nlaunches++;
	return t->choice ? 0 : cast(&codes, k->y ? k->y : ws, t->stream);
}

/* this rank's rows of s, which is in ws if sum has only these rows */
static int keep_sum(const struct steps *t, char *ws)
{
	const struct te__comm_norm *a = t->a, own = own_rows(a, ws);

	if (!own.k.rows)
		return 0;
	if (t->choice)
		t->choice->nlaunches++;
	return t->choice ? 0 : te_copy(t->stream,
				       (char *)a->k.comm.out + ((char *)own.ws - ws), own.ws,
				       (size_t)te__comm_norm_nbytes(&own));
}

int te__comm_norm_apart(const struct te__comm_norm *a, const struct te__comm_norm_how *how,
			struct te_stream *stream, struct te_comm_choice *choice)
{
	const struct steps t = { a, how, stream, choice };
	/* if not given, explain it as an address outside of symmetric memory */
	char *ws = a->ws ? a->ws : (char *)(uintptr_t)TE__COMM_NORM_ALIGN;
	char *s = a->k.comm.out && (!has_own_sum(a) || scatters(a)) ? a->k.comm.out : ws;
	int r = sum(&t, s);

	if (!r && a->k.comm.out && s == ws)
		r = keep_sum(&t, ws);
	if (!r)
		r = te__comm_norm_is_sharded(a) && more_outputs(&a->k) ? sharded(&t, ws, s) :
									 kernels(&t, a, s);
	if (!r && choice)
		snprintf(choice->reason, sizeof(choice->reason), "not fused: %s", how->reason);
	return r;
}
