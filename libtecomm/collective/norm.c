/*
 * norm.c - te_comm_allreduce_norm(3) and its backward call: checks and choice. A
 * call that is not one kernel is queued and explained by norm_apart.c.
 */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/collective/collective.h"
#include "libtecomm/collective/norm.h"

_Static_assert(TE_COMM_SCALING_TOKEN == (int)TE_K_COMM_SCALING_TOKEN &&
		       TE_COMM_SCALING_BLOCK == (int)TE_K_COMM_SCALING_BLOCK,
	       "scalings have the kernel's numbers");

/* ---- arguments ---- */

#define IS_NEEDED 1u
#define IS_OUTPUT 2u
#define IN_PLACE 4u /* may have the memory of in; IN_RESIDUAL: of residual */
#define IN_RESIDUAL 8u
#define OF_PACKETS 16u /* te_k_comm_norm accesses it in packets */
#define SHARDED 32u /* with a sharded residual, only the own rows are accessed */

struct array {
	const char *name;
	const void *p;
	int64_t nbytes;
	size_t align;
	uint32_t flags;
};

#define NARRAYS 15

/* the part of an array that is accessed */
static uintptr_t range_of(const struct te__comm_norm *a, const struct array *x, int64_t *ret_nbytes)
{
	const int32_t rank = te__boot_rank(a->comm->boot);
	const int64_t row_nbytes = x->nbytes / a->k.rows;
	int64_t first;

	*ret_nbytes = x->nbytes;
	if (!(x->flags & SHARDED) || !te__comm_norm_is_sharded(a))
		return (uintptr_t)x->p;
	first = te__comm_norm_first(a, rank);
	*ret_nbytes = (te__comm_norm_first(a, rank + 1) - first) * row_nbytes;
	return (uintptr_t)x->p + (uintptr_t)(first * row_nbytes);
}

/* list the arrays: in is the first, residual the second; returns their number */
static int arrays_of(const struct te__comm_norm *a, struct array *ret)
{
	const struct te_k_comm_norm *k = &a->k;
	const int64_t t = te__comm_norm_nbytes(a), row = 4 * k->rows;
	const size_t es = te_dtype_nbytes((enum te_dtype)k->comm.dtype);
	const int back = te__comm_norm_is_backward(a);
	const int tensor = k->codes && k->scaling == TE_K_COMM_SCALING_TENSOR;
	const uint32_t result = IS_OUTPUT | IN_PLACE | IN_RESIDUAL | OF_PACKETS;
	const struct array all[NARRAYS] = {
		{ "in", k->comm.in, t, es, IS_NEEDED | OF_PACKETS },
		{ "residual", k->residual, t, es, OF_PACKETS | SHARDED },
		{ "gamma", k->gamma, 4 * k->cols, 4, IS_NEEDED | OF_PACKETS },
		{ "x", k->x, t, es, OF_PACKETS | SHARDED },
		{ "rstd", k->x_rstd, row, 4, (back ? IS_NEEDED : 0) | SHARDED },
		{ "scale", k->scale, 4, 4, tensor ? IS_NEEDED : 0 },
		{ "sum", k->comm.out, t, es,
		  IS_OUTPUT | IN_PLACE | OF_PACKETS | (back ? SHARDED : 0) },
		{ "residual_out", k->residual_out, t, es, result | SHARDED },
		{ back ? "dx" : "y", k->y, t, es, result },
		{ "rstd", k->rstd, row, 4, IS_OUTPUT },
		{ "codes", k->codes, k->comm.count, 1, IS_OUTPUT | OF_PACKETS },
		{ "scale_inv", k->scale_inv, 4 * te_k_comm_norm_scale_inv_nfloats(k), 4,
		  IS_OUTPUT | (k->codes ? IS_NEEDED : 0) },
		{ "amax", k->amax, 4, 4, IS_OUTPUT },
		{ "ws", a->ws, (int64_t)a->ws_nbytes, TE__COMM_NORM_ALIGN, IS_OUTPUT },
	};
	int n = 0;

	while (all[n].name) {
		ret[n] = all[n];
		n++;
	}
	return n;
}

static int check_overlap(const struct te__comm_norm *a, const struct array *all, int i, int j)
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

static int check_arrays(const struct te__comm_norm *a)
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
			/* messages name the later one of two outputs first */
			if (j < i || !(all[j].flags & IS_OUTPUT))
				r = check_overlap(a, all, i, j);
	return r;
}

static int check_codes(const struct te__comm_norm *a)
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

static int check_float(const struct te__comm_norm *a, const char *name, float x)
{
	return x >= 0.0f && isfinite(x) ?
		       0 : te__fail(-EINVAL, "%s: %s is %g", a->fn, name, (double)x);
}

/* rows may be 0; then arrays are not checked */
static int check(const struct te__comm_norm *a)
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
				"and at most 2^40 elements",
				a->fn, (long long)k->rows, (long long)k->cols);
	if (a->unknown)
		return te__fail(-EINVAL, "%s: unknown flags 0x%x", a->fn, a->unknown);
	if (a->call.max_blocks < 0)
		return te__fail(-EINVAL, "%s: max_blocks is %d", a->fn, a->call.max_blocks);
	if (!te_comm_algorithm_name(a->call.algorithm))
		return te__fail(-EINVAL, "%s: algorithm %d is unknown", a->fn,
				(int)a->call.algorithm);
	if (te__comm_norm_is_backward(a) && k->residual_out &&
	    !(k->flags & TE_K_COMM_RESIDUAL_SHARDED))
		return te__fail(-EINVAL, "%s: residual_out is not NULL, but the residual is not "
				"sharded", a->fn);
	r = check_float(a, "eps", k->eps);
	if (!r)
		r = check_float(a, "amax_epsilon", k->epsilon);
	if (!r)
		r = check_codes(a);
	return r || !k->rows ? r : check_arrays(a);
}

/* ---- choice ---- */

/* 1: te_k_comm_norm supports the rows; 0: it does not, with the reason */
static int is_packets(const struct te__comm_norm *a, char *why, size_t n)
{
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)a->k.comm.dtype);
	struct array all[NARRAYS];
	const int narrays = arrays_of(a, all);
	const uint64_t smem = a->comm->coll.terms.block_smem_nbytes;

	if (a->k.cols * es % TE_K_COMM_PACKET)
		snprintf(why, n, "rows of %lld bytes are not whole packets of %d",
			 (long long)(a->k.cols * es), TE_K_COMM_PACKET);
	else if (a->k.cols > TE_K_COMM_NORM_COLS)
		snprintf(why, n, "more than %d columns", TE_K_COMM_NORM_COLS);
	else if (a->k.rows >> 24)
		snprintf(why, n, "2^24 rows or more");
	else if (smem && te__comm_norm_smem(&a->k) > smem)
		snprintf(why, n, "a row takes %u bytes of shared memory, and a block has %llu",
			 te__comm_norm_smem(&a->k), (unsigned long long)smem);
	else
		for (int i = 0; i < narrays && !why[0]; i++)
			if (all[i].flags & OF_PACKETS && (uintptr_t)all[i].p % TE_K_COMM_PACKET)
				snprintf(why, n, "%s is not aligned to %d bytes", all[i].name,
					 TE_K_COMM_PACKET);
	return !why[0];
}

/* arguments of the kernel for an algorithm; 0: they do not fit, with the reason */
static int fits(const struct te__comm_norm *a, int32_t algorithm, struct te_k_comm_norm *ret,
		char *why, size_t n)
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
	need = te_k_comm_norm_buffer_nbytes(ret);
	if (need <= c->buffer_nbytes)
		return 1;
	snprintf(why, n, "the rows need %lld bytes of packet memory, which has %lld",
		 (long long)need, (long long)c->buffer_nbytes);
	return 0;
}

/* errors of arguments that need the fused kernel */
static int check_apart(const struct te__comm_norm *a, const struct te__comm_norm_how *how,
		       const char *why)
{
	if (a->k.comm.dtype == TE_DTYPE_FP16 && how->packets && te__comm_norm_is_sharded(a) &&
	    te__comm_norm_is_block(a))
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

/* the algorithm of a call; the fused kernel has TE_COMM_ONE_SHOT and TE_COMM_TWO_SHOT only */
static enum te_comm_algorithm fused_algorithm(const struct te__comm_norm *a)
{
	const enum te_comm_algorithm k =
		a->call.algorithm ? a->call.algorithm :
				    te__coll_latency(&a->comm->coll, te__comm_norm_nbytes(a));

	return k == TE_COMM_ONE_SHOT && te__comm_norm_is_sharded(a) && !a->call.algorithm ?
		       TE_COMM_TWO_SHOT :
		       k;
}

static int choose(const struct te__comm_norm *a, struct te__comm_norm_how *how)
{
	enum te_comm_algorithm algorithm = TE_COMM_AUTO;
	char why[120] = "";
	int one;

	memset(how, 0, sizeof(*how));
	how->packets = is_packets(a, why, sizeof(why));
	if (te__comm_norm_nranks(a) == 1 && how->packets) {
		how->k = te__comm_norm_alone(a, a->k.comm.in, a->k.comm.out);
		how->fused = 1;
		snprintf(how->reason, sizeof(how->reason), "there is one rank");
		return 0;
	}
	if (te__comm_norm_nranks(a) > 1)
		algorithm = fused_algorithm(a);
	one = algorithm == TE_COMM_ONE_SHOT;
	if (a->comm->coll.nodes) {
		snprintf(why, sizeof(why), "the ranks are on several nodes");
	} else if (!one && algorithm != TE_COMM_TWO_SHOT) {
		if (!why[0])
			snprintf(why, sizeof(why), "%s",
				 algorithm ? "another algorithm is asked for" :
					     "latency does not count");
	} else if (one && te__comm_norm_is_sharded(a)) {
		snprintf(why, sizeof(why), "oneshot needs all rows of the residual");
	} else if (how->packets) {
		how->fused = fits(a, one ? TE_K_COMM_ONE_SHOT : TE_K_COMM_TWO_SHOT, &how->k, why,
				  sizeof(why));
		/* unless the call asks for it */
		if (!how->fused && one && !a->call.algorithm)
			how->fused = fits(a, TE_K_COMM_TWO_SHOT, &how->k, why, sizeof(why));
	}
	snprintf(how->reason, sizeof(how->reason), "%s",
		 !how->fused	   ? why :
		 a->call.algorithm ? "asked for by the call" :
				     "latency counts");
	return how->fused ? 0 : check_apart(a, how, why);
}

/* ---- launches ---- */

/* is ws needed for s or for more? */
static int needs_ws(const struct te__comm_norm *a, const struct te__comm_norm_how *how)
{
	return !how->fused && (!how->packets || !a->k.comm.out || te__comm_norm_is_sharded(a));
}

static int run(const struct te__comm_norm *a, struct te_stream *stream)
{
	struct te__comm_norm_how how;
	int r = check(a);

	if (r || !a->k.rows)
		return r;
	r = te__stream_check(a->fn, stream, a->comm->ctx);
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
	return how.fused ? te__comm_norm_launch(a, &how.k, stream) :
			   te__comm_norm_apart(a, &how, stream, NULL);
}

/* ---- calls ---- */

static struct te__comm_norm norm_of(const char *fn, struct te_comm *comm, const void *in,
				    int64_t rows, int64_t cols, enum te_dtype dtype)
{
	int64_t count;

	if (__builtin_mul_overflow(rows, cols, &count))
		count = 0; /* check() refuses it */
	return (struct te__comm_norm){
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

/* flags of the kernel for flags of the call; *ret_unknown: unknown flags */
static uint32_t flags_of(uint32_t flags, uint32_t known, uint32_t *ret_unknown)
{
	*ret_unknown = flags & ~known;
	return (flags & TE_COMM_NORM_ZERO_CENTERED ? TE_K_COMM_ZERO_CENTERED : 0) |
	       (flags & TE_COMM_NORM_SHARDED ? TE_K_COMM_RESIDUAL_SHARDED : 0) |
	       (flags & TE_COMM_NORM_POW2 ? TE_K_COMM_POW2 : 0);
}

static int forward_of(struct te__comm_norm *a, const struct te_comm_norm_opts *opts)
{
	struct te_comm_norm_opts o = TE_COMM_NORM_OPTS_INIT;
	int r = te__sized_in(a->fn, te_comm_norm_opts, opts, &o);

	if (r)
		return r;
	a->k.flags |=
		flags_of(o.flags,
			 TE_COMM_NORM_ZERO_CENTERED | TE_COMM_NORM_SHARDED | TE_COMM_NORM_POW2,
			 &a->unknown);
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

static int backward_of(struct te__comm_norm *a, const struct te_comm_norm_backward_opts *opts)
{
	struct te_comm_norm_backward_opts o = TE_COMM_NORM_BACKWARD_OPTS_INIT;
	int r = te__sized_in(a->fn, te_comm_norm_backward_opts, opts, &o);

	if (r)
		return r;
	if (!o.x)
		return te__fail(-EINVAL, "%s: x is NULL", a->fn);
	a->k.flags |= flags_of(o.flags, TE_COMM_NORM_ZERO_CENTERED | TE_COMM_NORM_SHARDED,
			       &a->unknown);
	a->call.algorithm = o.algorithm;
	a->call.max_blocks = o.max_blocks;
	a->k.x = o.x;
	a->k.x_rstd = o.rstd;
	a->k.gamma = o.gamma;
	a->k.residual = o.residual;
	a->k.comm.out = o.sum;
	a->k.y = o.dx;
	a->k.residual_out = o.residual_out;
	a->ws = o.ws;
	a->ws_nbytes = o.ws_nbytes;
	return 0;
}

int te_comm_allreduce_norm(struct te_comm *comm, struct te_stream *stream, const void *in,
			   int64_t rows, int64_t cols, enum te_dtype dtype,
			   const struct te_comm_norm_opts *opts)
{
	struct te__comm_norm a = norm_of("te_comm_allreduce_norm", comm, in, rows, cols, dtype);
	int r = forward_of(&a, opts);

	return r ? r : run(&a, stream);
}

int te_comm_allreduce_norm_backward(struct te_comm *comm, struct te_stream *stream, const void *in,
				    int64_t rows, int64_t cols, enum te_dtype dtype,
				    const struct te_comm_norm_backward_opts *opts)
{
	struct te__comm_norm a =
		norm_of("te_comm_allreduce_norm_backward", comm, in, rows, cols, dtype);
	int r = backward_of(&a, opts);

	return r ? r : run(&a, stream);
}

size_t te_comm_norm_ws_nbytes(int64_t rows, int64_t cols, enum te_dtype dtype)
{
	const size_t es = te_dtype_nbytes(dtype);

	if (!es || rows < 0 || cols < 1 || rows > ((int64_t)1 << 40) / cols)
		return 0;
	return te__comm_norm_round_up((uint64_t)(rows * cols) * es) +
	       te__comm_norm_round_up((uint64_t)rows * 4);
}

/* ---- te_comm_explain ---- */

/* bytes that a rank sends to others, without headers */
static uint64_t fused_nsent(const struct te_k_comm_norm *k)
{
	const int64_t in = te_k_comm_norm_in_packets(k), out = te_k_comm_norm_out_packets(k);
	const int64_t own =
		te_k_comm_norm_first(k, k->comm.rank + 1) - te_k_comm_norm_first(k, k->comm.rank);
	const int64_t others = k->comm.nranks - 1;

	return TE_K_COMM_PACKET * (uint64_t)(k->comm.algorithm == TE_K_COMM_ONE_SHOT ?
						     others * k->rows * in :
						     (k->rows - own) * in + others * own * out);
}

static int explain_fused(const struct te__comm_norm *a, const struct te__comm_norm_how *how,
			 struct te_comm_choice *c)
{
	struct te__geometry g;
	int r = te__geometry(te__comm_norm_is_backward(a) ? TE_K_COMM_NORM_BWD : TE_K_COMM_NORM,
			     &how->k, &g);

	if (r)
		return r;
	c->algorithm = how->k.comm.algorithm == TE_K_COMM_ONE_SHOT ? TE_COMM_ONE_SHOT :
								     TE_COMM_TWO_SHOT;
	c->nblocks = (int32_t)g.grid[0];
	c->nlaunches = 1;
	c->nsent = fused_nsent(&how->k);
	c->fused = 1;
	snprintf(c->reason, sizeof(c->reason), "fused: %s", how->reason);
	snprintf(c->name, sizeof(c->name), "%s", te_comm_algorithm_name(c->algorithm));
	return 0;
}

int te__comm_norm_explain(struct te_comm *comm, const struct te_comm_call *c,
			  struct te_comm_choice *ret)
{
	struct te__comm_norm a =
		norm_of("te_comm_explain", comm, c->in, c->rows, c->cols, c->dtype);
	struct te__comm_norm_how how;
	int r = c->function == TE_COMM_CALL_ALLREDUCE_NORM ? forward_of(&a, c->opts) :
							backward_of(&a, c->opts);

	if (!r)
		r = check(&a);
	if (!r && !a.k.rows)
		snprintf(ret->reason, sizeof(ret->reason), "no rows: nothing is done");
	if (r || !a.k.rows)
		return r;
	r = choose(&a, &how);
	if (r)
		return r;
	return how.fused ? explain_fused(&a, &how, ret) :
			   te__comm_norm_apart(&a, &how, NULL, ret);
}
