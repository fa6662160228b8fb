/*
 * norm.c - te_comm_allreduce_norm(3) and its backward call: checks, choice and launches.
 *
 * Where kernels/comm/norm.h cannot exchange the rows itself, or is not to, an all-reduce precedes
 * it, and it runs as the kernel of one rank, so that the bits are the same. Where it does not take
 * the rows either, kernels of libtecore compute the results. If the residual is sharded, a rank
 * does this for its own rows, and the ranks gather the results.
 */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/launch.h"
#include "libtecomm/collective/collective.h"
#include "libtecomm/comm_internal.h"

#define ALIGN 256 /* bytes, of ws and its parts */

_Static_assert(TE_COMM_SCALING_TOKEN == (int)TE_K_COMM_SCALING_TOKEN &&
		       TE_COMM_SCALING_BLOCK == (int)TE_K_COMM_SCALING_BLOCK,
	       "scalings are those of the kernel");

/* the arguments of a call; of k.comm: in, out (s), count, dtype and op */
struct norm {
	const char *fn;
	struct te_comm *comm;
	struct te_k_comm_norm k; /* k.x: backward */
	struct te_comm_call_opts call;
	void *ws;
	size_t ws_nbytes;
	uint32_t unknown; /* flags */
};

static int is_backward(const struct norm *a)
{
	return a->k.x != NULL;
}

static int nranks_of(const struct norm *a)
{
	return te__boot_nranks(a->comm->boot);
}

/* has each rank its own rows of the residual only? */
static int is_sharded(const struct norm *a)
{
	return a->k.flags & TE_K_COMM_RESIDUAL_SHARDED && nranks_of(a) > 1;
}

/* have the codes of 128 columns a scale? */
static int is_block(const struct norm *a)
{
	return a->k.codes && a->k.scaling == TE_K_COMM_SCALING_BLOCK;
}

static int64_t nbytes_of(const struct norm *a)
{
	return a->k.comm.count * (int64_t)te_dtype_nbytes((enum te_dtype)a->k.comm.dtype);
}

static int64_t first_of(const struct norm *a, int32_t rank)
{
	const struct te_k_comm_norm k = { .rows = a->k.rows, .comm = { .nranks = nranks_of(a) } };

	return te_k_comm_norm_first(&k, rank);
}

/* ---- arguments ---- */

#define IS_NEEDED 1u
#define IS_OUTPUT 2u
#define IN_PLACE 4u /* it may be the memory of in, and IN_RESIDUAL: of residual */
#define IN_RESIDUAL 8u
#define OF_PACKETS 16u /* te_k_comm_norm accesses it in packets */
#define SHARDED 32u /* only the own rows of a sharded residual are accessed */

struct array {
	const char *name;
	const void *p;
	int64_t nbytes;
	size_t align;
	uint32_t flags;
};

#define NARRAYS 15

/* the part of an array that is accessed */
static uintptr_t range_of(const struct norm *a, const struct array *x, int64_t *ret_nbytes)
{
	const int32_t rank = te__boot_rank(a->comm->boot);
	const int64_t row_nbytes = x->nbytes / a->k.rows;
	int64_t first;

	*ret_nbytes = x->nbytes;
	if (!(x->flags & SHARDED) || !is_sharded(a))
		return (uintptr_t)x->p;
	first = first_of(a, rank);
	*ret_nbytes = (first_of(a, rank + 1) - first) * row_nbytes;
	return (uintptr_t)x->p + (uintptr_t)(first * row_nbytes);
}

/* in is the first, residual the second; returns how many there are */
static int arrays_of(const struct norm *a, struct array *ret)
{
	const struct te_k_comm_norm *k = &a->k;
	const int64_t t = nbytes_of(a), row = 4 * k->rows;
	const size_t es = te_dtype_nbytes((enum te_dtype)k->comm.dtype);
	const int back = is_backward(a);
	const int tensor = k->codes && k->scaling == TE_K_COMM_SCALING_TENSOR;
	const uint32_t result = IS_OUTPUT | IN_PLACE | IN_RESIDUAL | OF_PACKETS;
	const struct array all[NARRAYS] = {
		{ "in", k->comm.in, t, es, IS_NEEDED | OF_PACKETS },
		{ "residual", k->residual, t, es, OF_PACKETS | SHARDED },
		{ "gamma", k->gamma, 4 * k->cols, 4, IS_NEEDED | OF_PACKETS },
		{ "x", k->x, t, es, OF_PACKETS },
		{ "rstd", k->x_rstd, row, 4, back ? IS_NEEDED : 0 },
		{ "scale", k->scale, 4, 4, tensor ? IS_NEEDED : 0 },
		{ "sum", k->comm.out, t, es, IS_OUTPUT | IN_PLACE | OF_PACKETS },
		{ "residual_out", k->residual_out, t, es, result | SHARDED },
		{ back ? "dx" : "y", k->y, t, es, result },
		{ "rstd", k->rstd, row, 4, IS_OUTPUT },
		{ "codes", k->codes, k->comm.count, 1, IS_OUTPUT | OF_PACKETS },
		{ "scale_inv", k->scale_inv, 4 * te_k_comm_norm_scale_inv_nfloats(k), 4,
		  IS_OUTPUT | (k->codes ? IS_NEEDED : 0) },
		{ "amax", k->amax, 4, 4, IS_OUTPUT },
		{ "ws", a->ws, (int64_t)a->ws_nbytes, ALIGN, IS_OUTPUT },
	};
	int n = 0;

	while (all[n].name) {
		ret[n] = all[n];
		n++;
	}
	return n;
}

static int check_overlap(const struct norm *a, const struct array *all, int i, int j)
{
	const struct array *x = &all[i], *y = &all[j];
	int64_t np, nq;
	const uintptr_t p = range_of(a, x, &np), q = range_of(a, y, &nq);

	if (!x->p || !y->p || !np || !nq || p >= q + (uintptr_t)nq || q >= p + (uintptr_t)np ||
	    (x->p == y->p && j < 2 && x->flags & (j ? IN_RESIDUAL : IN_PLACE)))
		return 0;
	return te__fail(-EINVAL, "%s: %s %s %s", a->fn, x->name,
			x->p == y->p ? "is the memory of" : "overlaps", y->name);
}

static int check_arrays(const struct norm *a)
{
	struct array all[NARRAYS];
	const int n = arrays_of(a, all);
	int noutputs = 0, r = 0;

	for (int i = 0; i < n && !r; i++) {
		const struct array *x = &all[i];

		if (!x->p && x->flags & IS_NEEDED)
			r = te__fail(-EINVAL, "%s: %s is NULL", a->fn, x->name);
		else if ((uintptr_t)x->p % x->align)
			r = te__fail(-EINVAL, "%s: %s is %p, not aligned to %zu bytes", a->fn,
				     x->name, x->p, x->align);
		noutputs += x->p && x->p != a->ws && x->flags & IS_OUTPUT;
	}
	if (!r && !noutputs)
		r = te__fail(-EINVAL, "%s: all outputs are NULL", a->fn);
	for (int i = 0; i < n && !r; i++)
		for (int j = 0; j < n && !r && all[i].flags & IS_OUTPUT; j++)
			/* of two outputs, the later one is named first */
			if (j < i || !(all[j].flags & IS_OUTPUT))
				r = check_overlap(a, all, i, j);
	return r;
}

static int check_codes(const struct norm *a)
{
	const int32_t q = a->k.qdtype;

	if (!a->k.codes)
		return 0;
	if (q != TE_DTYPE_E4M3 && q != TE_DTYPE_E5M2)
		return te__fail(-TE_EDTYPE, "%s: qdtype is %s, not e4m3 or e5m2", a->fn,
				te_dtype_name((enum te_dtype)q));
	if ((unsigned)a->k.scaling >= TE_K_COMM_SCALINGS)
		return te__fail(-EINVAL, "%s: scaling %d is unknown", a->fn, a->k.scaling);
	return 0;
}

static int check_float(const struct norm *a, const char *name, float x)
{
	return x >= 0.0f && isfinite(x) ?
		       0 : te__fail(-EINVAL, "%s: %s is %g", a->fn, name, (double)x);
}

/* rows may be 0; then arrays are not checked */
static int check(const struct norm *a)
{
	const struct te_k_comm_norm *k = &a->k;
	const int32_t dtype = k->comm.dtype;
	int r = te__comm_check(a->fn, a->comm);

	if (r)
		return r;
	if (dtype != TE_DTYPE_FP32 && dtype != TE_DTYPE_BF16 && dtype != TE_DTYPE_FP16)
		return te__fail(-TE_EDTYPE, "%s: dtype is %s, not fp32, bf16 or fp16", a->fn,
				te_dtype_name((enum te_dtype)dtype));
	if (k->rows < 0 || k->cols < 1 || k->rows > ((int64_t)1 << 40) / k->cols)
		return te__fail(-EINVAL, "%s: [%lld, %lld] elements: expected at least a column, "
				"and at most 2^40 elements", a->fn, (long long)k->rows,
				(long long)k->cols);
	if (a->unknown)
		return te__fail(-EINVAL, "%s: unknown flags 0x%x", a->fn, a->unknown);
	if (a->call.max_blocks < 0)
		return te__fail(-EINVAL, "%s: max_blocks is %d", a->fn, a->call.max_blocks);
	if (!te_comm_algorithm_name(a->call.algorithm))
		return te__fail(-EINVAL, "%s: algorithm %d is unknown", a->fn,
				(int)a->call.algorithm);
	r = check_float(a, "eps", k->eps);
	if (!r)
		r = check_float(a, "amax_epsilon", k->epsilon);
	if (!r)
		r = check_codes(a);
	return r || !k->rows ? r : check_arrays(a);
}

/* ---- choice ---- */

struct how {
	int packets; /* 1: rows are such that te_k_comm_norm takes them */
	int fused;   /* 1: it exchanges them, too */
	struct te_k_comm_norm k; /* its arguments then, or as the kernel of one rank */
	char reason[120];
};

/* 1: te_k_comm_norm takes the rows; 0: not, and why */
static int is_packets(const struct norm *a, char *why, size_t n)
{
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)a->k.comm.dtype);
	struct array all[NARRAYS];
	const int narrays = arrays_of(a, all);

	if (a->k.cols * es % TE_K_COMM_PACKET)
		snprintf(why, n, "rows of %lld bytes are not whole packets of %d",
			 (long long)(a->k.cols * es), TE_K_COMM_PACKET);
	else if (a->k.cols > TE_K_COMM_NORM_COLS)
		snprintf(why, n, "more than %d columns", TE_K_COMM_NORM_COLS);
	else if (a->k.rows >> 24)
		snprintf(why, n, "2^24 rows or more");
	else
		for (int i = 0; i < narrays && !why[0]; i++)
			if (all[i].flags & OF_PACKETS && (uintptr_t)all[i].p % TE_K_COMM_PACKET)
				snprintf(why, n, "%s is not aligned to %d bytes", all[i].name,
					 TE_K_COMM_PACKET);
	return !why[0];
}

/* arguments of the kernel among the ranks by an algorithm; 0: they do not fit, and why */
static int fits(const struct norm *a, int32_t algorithm, struct te_k_comm_norm *ret, char *why,
		size_t n)
{
	const struct te_k_comm own = a->k.comm;
	struct te_k_comm *c = &ret->comm;
	int64_t need;

	*ret = a->k;
	*c = te__coll_args(&a->comm->coll);
	c->in = own.in;
	c->out = own.out;
	c->count = own.count;
	c->dtype = own.dtype;
	c->op = TE_K_COMM_SUM;
	c->algorithm = algorithm;
	if (a->call.max_blocks && a->call.max_blocks < c->max_blocks)
		c->max_blocks = a->call.max_blocks;
	need = te_k_comm_norm_half_nbytes(ret);
	if (need <= c->half_nbytes)
		return 1;
	snprintf(why, n, "the rows need %lld bytes of packet memory, which has %lld",
		 (long long)need, (long long)c->half_nbytes);
	return 0;
}

/* the kernel of one rank, of what in has; s is no output */
static struct te_k_comm_norm alone(const struct norm *a, const void *in, void *out)
{
	struct te_k_comm_norm k = a->k;

	k.comm = te__coll_args_alone(&a->comm->coll);
	k.comm.in = in;
	k.comm.out = out;
	k.comm.count = a->k.comm.count;
	k.comm.dtype = a->k.comm.dtype;
	k.comm.op = TE_K_COMM_SUM;
	k.comm.algorithm = TE_K_COMM_P1;
	k.comm.half_nbytes = te_k_comm_norm_half_nbytes(&k);
	k.flags &= ~(uint32_t)TE_K_COMM_RESIDUAL_SHARDED;
	return k;
}

/* what cannot be done without the fused kernel */
static int check_apart(const struct norm *a, const struct how *how, const char *why)
{
	if (a->k.comm.dtype == TE_DTYPE_FP16 && how->packets && is_sharded(a) && is_block(a))
		return te__fail(-EOPNOTSUPP, "%s: dtype is fp16, and codes of blocks are cast from "
				"y: %s", a->fn, why);
	if (how->packets)
		return 0;
	if (a->k.comm.dtype == TE_DTYPE_FP16)
		return te__fail(-EOPNOTSUPP, "%s: dtype is fp16, but %s", a->fn, why);
	if (a->k.codes && a->k.scaling == TE_K_COMM_SCALING_TOKEN)
		return te__fail(-EOPNOTSUPP, "%s: codes have a scale for each row, but %s", a->fn,
				why);
	return 0;
}

/* which algorithm the fused kernel would have: TE_COMM_ONE_SHOT, TE_COMM_TWO_SHOT or another one,
 * which it has not */
static enum te_comm_algorithm fused_algorithm(const struct norm *a)
{
	const enum te_comm_algorithm k =
		a->call.algorithm ? a->call.algorithm :
				    te__coll_latency(&a->comm->coll, nbytes_of(a));

	return k == TE_COMM_ONE_SHOT && is_sharded(a) && !a->call.algorithm ? TE_COMM_TWO_SHOT : k;
}

static int choose(const struct norm *a, struct how *how)
{
	enum te_comm_algorithm algorithm = TE_COMM_AUTO;
	char why[120] = "";
	int one;

	memset(how, 0, sizeof(*how));
	how->packets = is_packets(a, why, sizeof(why));
	if (nranks_of(a) == 1 && how->packets) {
		how->k = alone(a, a->k.comm.in, a->k.comm.out);
		how->fused = 1;
		snprintf(how->reason, sizeof(how->reason), "there is one rank");
		return 0;
	}
	if (nranks_of(a) > 1)
		algorithm = fused_algorithm(a);
	one = algorithm == TE_COMM_ONE_SHOT;
	if (a->comm->coll.nodes) {
		snprintf(why, sizeof(why), "the ranks are on several nodes");
	} else if (!one && algorithm != TE_COMM_TWO_SHOT) {
		if (!why[0])
			snprintf(why, sizeof(why), "%s",
				 algorithm ? "another algorithm is asked for" :
					     "latency does not count");
	} else if (one && is_sharded(a)) {
		snprintf(why, sizeof(why), "oneshot needs all rows of the residual");
	} else if (how->packets) {
		how->fused = fits(a, one ? TE_K_COMM_P1 : TE_K_COMM_P2, &how->k, why, sizeof(why));
		/* unless it was asked for */
		if (!how->fused && one && !a->call.algorithm)
			how->fused = fits(a, TE_K_COMM_P2, &how->k, why, sizeof(why));
	}
	snprintf(how->reason, sizeof(how->reason), "%s",
		 !how->fused	   ? why :
		 a->call.algorithm ? "asked for by the call" : "latency counts");
	return how->fused ? 0 : check_apart(a, how, why);
}

/* ---- launches ---- */

static int launch(const struct norm *a, const struct te_k_comm_norm *k, struct te_stream *stream)
{
	return is_backward(a) ? TE__LAUNCH(stream, COMM_NORM_BWD, k) :
				TE__LAUNCH(stream, COMM_NORM, k);
}

static uint64_t round_up(uint64_t n)
{
	return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* is ws needed for s or for more? */
static int needs_ws(const struct norm *a, const struct how *how)
{
	return !how->fused && (!how->packets || !a->k.comm.out || is_sharded(a));
}

/* are there outputs but s? */
static int more_outputs(const struct te_k_comm_norm *k)
{
	return k->residual_out || k->y || k->rstd || k->codes || k->amax;
}

/* is the norm computed? */
static int has_norm(const struct te_k_comm_norm *k)
{
	return k->y || k->rstd || k->codes || k->amax;
}

/* dx of s */
static int norm_backward(const struct norm *a, const void *s, struct te_stream *stream)
{
	const struct te_k_comm_norm *k = &a->k;
	const struct te_k_norm_bwd norm = {
		.dy = s,
		.x = k->x,
		.gamma = k->gamma,
		.rstd = k->x_rstd,
		.dres = k->residual,
		.dx = k->y,
		.rows = k->rows,
		.cols = k->cols,
		.zero_centered = !!(k->flags & TE_K_COMM_ZERO_CENTERED),
		.dtype = k->comm.dtype,
	};

	return k->y ? TE__LAUNCH(stream, NORM_BWD, &norm) : 0;
}

/* r, from s */
static int add_residual(const struct norm *a, const void *s, void *r, struct te_stream *stream)
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
	return r == s ? 0 : te_copy(stream, r, s, (size_t)nbytes_of(a));
}

/* codes and amax of y */
static int cast(const struct norm *a, const void *y, struct te_stream *stream)
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

/* rows that te_k_comm_norm does not take; ws: T [rows, cols], then a float for each row */
static int by_kernels(const struct norm *a, const void *s, struct te_stream *stream)
{
	const struct te_k_comm_norm *k = &a->k;
	void *ws_rstd = (char *)a->ws + round_up((uint64_t)nbytes_of(a));
	/* s is kept if it is an output; r may replace it in ws, and y replace r there */
	void *r = k->residual_out ? k->residual_out : a->ws;
	const struct te_k_norm_fwd norm = {
		.x = r,
		.gamma = k->gamma,
		.y = k->y ? k->y : k->codes || k->amax ? a->ws : NULL,
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
	const struct norm *a;
	const struct how *how;
	struct te_stream *stream;
	struct te_comm_choice *choice;
};

/* a part of it; the first one, which is the sum, describes the choice */
static int collective(const struct steps *t, enum te_k_comm_collective what, const void *in,
		      void *out, int64_t count, enum te_dtype dtype, enum te_comm_op op,
		      int32_t root, enum te_comm_algorithm algorithm)
{
	const struct te__call call = { t->a->fn, t->a->comm, in, out, count,
				       dtype, op, what, root };
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
static int is_even(const struct norm *a)
{
	return a->k.rows % nranks_of(a) == 0;
}

/* rows of n elements that each rank has computed in part; p may be NULL */
static int gather(const struct steps *t, void *p, int64_t n, enum te_dtype dtype)
{
	const int64_t row_nbytes = n * (int64_t)te_dtype_nbytes(dtype);
	const int32_t nranks = nranks_of(t->a);
	int r = 0;

	if (p && is_even(t->a))
		return collective(t, TE_K_COLL_ALL_GATHER,
				  (char *)p + first_of(t->a, te__boot_rank(t->a->comm->boot)) *
						      row_nbytes,
				  p, t->a->k.rows / nranks * n, dtype, TE_COMM_SUM, 0,
				  TE_COMM_AUTO);
	for (int32_t k = 0; k < nranks && p && !r; k++) {
		const int64_t first = first_of(t->a, k), nrows = first_of(t->a, k + 1) - first;
		char *at = (char *)p + first * row_nbytes;

		if (nrows)
			r = collective(t, TE_K_COLL_BROADCAST, at, at, nrows * n, dtype,
				       TE_COMM_SUM, k, TE_COMM_AUTO);
	}
	return r;
}

/* s of all rows to out; or, where others are not needed and can be left out, of the own ones */
static int sum(const struct steps *t, char *out)
{
	const struct norm *a = t->a;
	const enum te_comm_algorithm k = a->call.algorithm;
	const enum te_dtype dtype = (enum te_dtype)a->k.comm.dtype;
	/* the algorithms of te_comm_reduce_scatter() that take any size */
	const int scatters = k == TE_COMM_AUTO || k == TE_COMM_ZERO_COPY || k == TE_COMM_STAGED ||
			     k == TE_COMM_EXCHANGE || k == TE_COMM_CHAIN;

	if (!is_sharded(a) || a->k.comm.out || !is_even(a) || !scatters)
		return collective(t, TE_K_COLL_ALLREDUCE, a->k.comm.in, out, a->k.comm.count, dtype,
				  TE_COMM_SUM, 0, k);
	return collective(t, TE_K_COLL_REDUCE_SCATTER, a->k.comm.in,
			  out + nbytes_of(a) / nranks_of(a) * te__boot_rank(a->comm->boot),
			  a->k.comm.count / nranks_of(a), dtype, TE_COMM_SUM, 0, k);
}

/* kernels that compute the other outputs from s */
static int kernels(const struct steps *t, const struct norm *a, const void *s)
{
	const struct te_k_comm_norm *k = &a->k;
	struct te_k_comm_norm one;

	if (!more_outputs(k) || !k->rows)
		return 0;
	if (t->choice) {
		t->choice->nlaunches +=
			t->how->packets || is_backward(a) ?
				1 : (k->residual || k->residual_out || k->comm.out) + has_norm(k) +
					    !!k->amax + !!k->codes;
		return 0;
	}
	if (t->how->packets) {
		one = alone(a, s, NULL);
		return launch(a, &one, t->stream);
	}
	return is_backward(a) ? norm_backward(a, s, t->stream) : by_kernels(a, s, t->stream);
}

static void *at(void *p, int64_t nbytes)
{
	return p ? (char *)p + nbytes : NULL;
}

/* the call for the rows of this rank; in ws are s or y, then words of rows */
static struct norm own_rows(const struct norm *a, void *ws)
{
	const int32_t rank = te__boot_rank(a->comm->boot);
	const int64_t first = first_of(a, rank), nrows = first_of(a, rank + 1) - first;
	const int64_t row_nbytes = nbytes_of(a) / a->k.rows;
	float *words = (float *)(void *)((char *)ws + round_up((uint64_t)nbytes_of(a)));
	const int block = is_block(a);
	struct norm own = *a;
	struct te_k_comm_norm *k = &own.k;

	own.ws = at(ws, first * row_nbytes);
	k->rows = nrows;
	k->comm.count = nrows * k->cols;
	k->residual = k->residual ? (const char *)k->residual + first * row_nbytes : NULL;
	k->residual_out = at(k->residual_out, first * row_nbytes);
	k->rstd = k->rstd ? k->rstd + first : has_norm(k) ? words : NULL;
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
	const struct norm *a = t->a;
	const struct te_k_comm_norm *k = &a->k;
	const struct norm own = own_rows(a, ws);
	struct norm codes = *a; /* of y of all rows */
	int r = kernels(t, &own, s + ((char *)own.ws - ws));

	codes.k.amax = NULL;
	if (!r && own.k.y)
		r = gather(t, k->y ? k->y : ws, k->cols, (enum te_dtype)k->comm.dtype);
	if (!r && own.k.codes)
		r = gather(t, k->codes, k->cols, TE_DTYPE_UINT8);
	if (!r && own.k.codes && k->scaling == TE_K_COMM_SCALING_TOKEN)
		r = gather(t, k->scale_inv, 1, TE_DTYPE_FP32);
	else if (!r && own.k.codes && k->rows < nranks_of(a)) /* ranks without rows */
		r = collective(t, TE_K_COLL_BROADCAST, k->scale_inv, k->scale_inv, 1,
			       TE_DTYPE_FP32, TE_COMM_SUM, 0, TE_COMM_AUTO);
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

static int apart(const struct norm *a, const struct how *how, struct te_stream *stream,
		 struct te_comm_choice *choice)
{
	const struct steps t = { a, how, stream, choice };
	/* not given, it is explained as an address in no symmetric memory */
	char *ws = a->ws ? a->ws : (char *)(uintptr_t)ALIGN;
	char *s = a->k.comm.out ? a->k.comm.out : ws;
	int r = sum(&t, s);

	if (!r)
		r = is_sharded(a) && more_outputs(&a->k) ? sharded(&t, ws, s) : kernels(&t, a, s);
	if (!r && choice)
		snprintf(choice->reason, sizeof(choice->reason), "not fused: %s", how->reason);
	return r;
}
static int run(const struct norm *a, struct te_stream *stream)
{
	struct how how;
	int r = check(a);

	if (r || !a->k.rows)
		return r;
	r = te__comm_check_stream(a->fn, a->comm, stream);
	if (!r)
		r = choose(a, &how);
	if (r)
		return r;
	if (needs_ws(a, &how)) {
		const size_t need = te_comm_norm_ws_nbytes(a->k.rows, a->k.cols,
							   (enum te_dtype)a->k.comm.dtype);

		if (!a->ws || a->ws_nbytes < need)
			return te__fail(-EINVAL, "%s: ws has %zu bytes, but %zu are needed: %s",
					a->fn, a->ws ? a->ws_nbytes : 0, need, how.reason);
	}
	r = te__coll_begin(&a->comm->coll, a->fn, stream);
	if (r)
		return r;
	return how.fused ? launch(a, &how.k, stream) : apart(a, &how, stream, NULL);
}

/* ---- calls ---- */

static struct norm norm_of(const char *fn, struct te_comm *comm, const void *in, int64_t rows,
			   int64_t cols, enum te_dtype dtype)
{
	int64_t count;

	if (__builtin_mul_overflow(rows, cols, &count))
		count = 0; /* check() refuses it */
	return (struct norm){
		.fn = fn,
		.comm = comm,
		.k = {
			.comm = { .in = in, .count = count, .dtype = (int32_t)dtype },
			.rows = rows,
			.cols = cols,
			.flags = TE_K_COMM_ROUND_SUM,
		},
		.call = TE_COMM_CALL_OPTS_INIT,
	};
}

/* flags of the kernel for those of the call; *ret_unknown: the others */
static uint32_t flags_of(uint32_t flags, uint32_t known, uint32_t *ret_unknown)
{
	*ret_unknown = flags & ~known;
	return (flags & TE_COMM_NORM_ZERO_CENTERED ? TE_K_COMM_ZERO_CENTERED : 0) |
	       (flags & TE_COMM_NORM_SHARDED ? TE_K_COMM_RESIDUAL_SHARDED : 0) |
	       (flags & TE_COMM_NORM_POW2 ? TE_K_COMM_POW2 : 0);
}

static int forward_of(struct norm *a, const struct te_comm_norm_opts *opts)
{
	struct te_comm_norm_opts o = TE_COMM_NORM_OPTS_INIT;
	int r = te__sized_in(a->fn, te_comm_norm_opts, opts, &o);

	if (r)
		return r;
	a->k.flags |= flags_of(o.flags, TE_COMM_NORM_ZERO_CENTERED | TE_COMM_NORM_SHARDED |
					TE_COMM_NORM_POW2, &a->unknown);
	a->call.algorithm = o.algorithm;
	a->call.max_blocks = o.max_blocks;
	a->k.eps = o.eps;
	a->k.gamma = o.gamma;
	a->k.residual = o.residual;
	a->k.comm.out = o.sum;
	a->k.residual_out = o.residual_out;
	a->k.y = o.y;
	a->k.rstd = o.rstd;
	a->k.codes = o.codes;
	a->k.qdtype = (int32_t)o.qdtype;
	a->k.scaling = o.codes ? (int32_t)o.scaling : TE_K_COMM_SCALING_TENSOR;
	a->k.scale = o.codes ? o.scale : NULL;
	a->k.scale_inv = o.codes ? o.scale_inv : NULL;
	a->k.amax = o.amax;
	a->k.epsilon = o.amax_epsilon;
	a->ws = o.ws;
	a->ws_nbytes = o.ws_nbytes;
	return 0;
}

static int backward_of(struct norm *a, const struct te_comm_norm_backward_opts *opts)
{
	struct te_comm_norm_backward_opts o = TE_COMM_NORM_BACKWARD_OPTS_INIT;
	int r = te__sized_in(a->fn, te_comm_norm_backward_opts, opts, &o);

	if (r)
		return r;
	if (!o.x)
		return te__fail(-EINVAL, "%s: x is NULL", a->fn);
	a->k.flags |= flags_of(o.flags, TE_COMM_NORM_ZERO_CENTERED, &a->unknown);
	a->call.algorithm = o.algorithm;
	a->call.max_blocks = o.max_blocks;
	a->k.x = o.x;
	a->k.x_rstd = o.rstd;
	a->k.gamma = o.gamma;
	a->k.residual = o.residual;
	a->k.comm.out = o.sum;
	a->k.y = o.dx;
	a->ws = o.ws;
	a->ws_nbytes = o.ws_nbytes;
	return 0;
}

int te_comm_allreduce_norm(struct te_comm *comm, struct te_stream *stream, const void *in,
			   int64_t rows, int64_t cols, enum te_dtype dtype,
			   const struct te_comm_norm_opts *opts)
{
	struct norm a = norm_of("te_comm_allreduce_norm", comm, in, rows, cols, dtype);
	int r = forward_of(&a, opts);

	return r ? r : run(&a, stream);
}

int te_comm_allreduce_norm_backward(struct te_comm *comm, struct te_stream *stream, const void *in,
				    int64_t rows, int64_t cols, enum te_dtype dtype,
				    const struct te_comm_norm_backward_opts *opts)
{
	struct norm a = norm_of("te_comm_allreduce_norm_backward", comm, in, rows, cols, dtype);
	int r = backward_of(&a, opts);

	return r ? r : run(&a, stream);
}

size_t te_comm_norm_ws_nbytes(int64_t rows, int64_t cols, enum te_dtype dtype)
{
	const size_t es = te_dtype_nbytes(dtype);

	if (!es || rows < 0 || cols < 1 || rows > ((int64_t)1 << 40) / cols)
		return 0;
	return round_up((uint64_t)(rows * cols) * es) + round_up((uint64_t)rows * 4);
}

/* ---- te_comm_explain_norm ---- */

/* bytes that a rank sends to others, without headers */
static uint64_t fused_nsent(const struct te_k_comm_norm *k)
{
	const int64_t in = te_k_comm_norm_in_packets(k), out = te_k_comm_norm_out_packets(k);
	const int64_t own = te_k_comm_norm_first(k, k->comm.rank + 1) -
			    te_k_comm_norm_first(k, k->comm.rank);
	const int64_t others = k->comm.nranks - 1;

	return TE_K_COMM_PACKET *
	       (uint64_t)(k->comm.algorithm == TE_K_COMM_P1 ?
				  others * k->rows * in :
				  (k->rows - own) * in + others * own * out);
}
static int explain_fused(const struct norm *a, const struct how *how, struct te_comm_choice *c)
{
	struct te__geometry g;
	int r = te__geometry(is_backward(a) ? TE_K_COMM_NORM_BWD : TE_K_COMM_NORM, &how->k, &g);

	if (r)
		return r;
	c->algorithm = how->k.comm.algorithm == TE_K_COMM_P1 ? TE_COMM_ONE_SHOT : TE_COMM_TWO_SHOT;
	c->nblocks = (int32_t)g.grid[0];
	c->nlaunches = 1;
	c->nsent = fused_nsent(&how->k);
	c->fused = 1;
	snprintf(c->reason, sizeof(c->reason), "fused: %s", how->reason);
	snprintf(c->name, sizeof(c->name), "%s", te_comm_algorithm_name(c->algorithm));
	return 0;
}

static int explain(const struct norm *a, struct te_comm_choice *ret_choice)
{
	struct te_comm_choice c = TE_COMM_CHOICE_INIT;
	struct how how;
	int r = te__sized_check(a->fn, te_comm_choice, ret_choice);

	if (!r)
		r = check(a);
	if (!r && !a->k.rows)
		snprintf(c.reason, sizeof(c.reason), "no rows: nothing is done");
	else if (!r)
		r = choose(a, &how);
	if (!r && a->k.rows)
		r = how.fused ? explain_fused(a, &how, &c) : apart(a, &how, NULL, &c);
	if (!r)
		te__sized_out(te_comm_choice, &c, ret_choice);
	return r;
}

int te_comm_explain_norm(struct te_comm *comm, const void *in, int64_t rows, int64_t cols,
			 enum te_dtype dtype, const struct te_comm_norm_opts *opts,
			 struct te_comm_choice *ret_choice)
{
	struct norm a = norm_of("te_comm_explain_norm", comm, in, rows, cols, dtype);
	int r = forward_of(&a, opts);

	return r ? r : explain(&a, ret_choice);
}

int te_comm_explain_norm_backward(struct te_comm *comm, const void *in, int64_t rows, int64_t cols,
				  enum te_dtype dtype,
				  const struct te_comm_norm_backward_opts *opts,
				  struct te_comm_choice *ret_choice)
{
	struct norm a = norm_of("te_comm_explain_norm_backward", comm, in, rows, cols, dtype);
	int r = backward_of(&a, opts);

	return r ? r : explain(&a, ret_choice);
}
