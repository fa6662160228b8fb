/*
 * context.c - te_comm_op_to_heads(3) and its relatives: sequences whose tokens ranks divide.
 *
 * Attention needs all tokens of a head, and other operations all columns of a token. So an
 * all-to-all before attention gives each rank all tokens of some heads, and another one after it
 * returns to some tokens with all columns (Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509).
 * Compared with a ring of keys and values or with gathering these, kernels of attention are those
 * of one rank, with its bits, windows, documents and dropout; causal masks give all ranks equal
 * work without a permutation of the tokens; a rank keeps the values of T / n tokens; and for h
 * query heads and k key/value heads it sends (2 h + 2 k) (n - 1) / n^2 columns of T tokens instead
 * of 2 k (n - 1) / n, fewer if n is above 1 + h / k. n must divide the number of query heads.
 *
 * The all-to-all sends parts, [B, n, T / n, columns of a rank's heads], by a call for each sequence
 * of the batch, whose result is [T, columns] without another copy.
 */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <te/comm_op.h>
#include <te/dtype.h>
#include <te/op.h>
#include <te/tensor.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/ops/ops.h"

struct heads {
	struct te_comm *comm;
	struct te_comm_heads_attrs a;
};

/* ---- passes ---- */

static const struct heads *heads_of(const struct te_op *op)
{
	return te_op_attrs(op);
}

static int is_before(const struct te_op *op)
{
	return !strcmp(te_op_table(op)->name, "to_heads");
}

/* tokens: the value or gradient with some tokens and all heads; parts: what ranks exchange */
static struct te_k_heads args_of(const struct te_op_call *c, const struct te_tensor *tokens)
{
	const struct heads *h = heads_of(c->op);
	const int32_t n = te_comm_nranks(h->comm), nkv = is_before(c->op) ? h->a.nkv : 0;
	const int64_t T = te_tensor_extent(tokens, te_tensor_ndim(tokens) - 2);

	return (struct te_k_heads){
		.tokens = te_tensor_data(tokens),
		.parts = c->ws,
		.nseqs = te_tensor_rows(tokens) / T,
		.ntokens = T,
		.nranks = n,
		.nheads = h->a.nheads,
		.nkv = nkv,
		.kv = nkv > n ? nkv / n : nkv > 0,
		.head_dim = h->a.head_dim,
		.dtype = (int32_t)te_tensor_dtype(tokens),
	};
}

static int exchange(const struct te_op_call *c, const struct te_k_heads *k, const void *in,
		    void *out)
{
	const int64_t n = te_k_heads_part(k);
	const int64_t seq = k->nranks * n * (int64_t)te_dtype_nbytes((enum te_dtype)k->dtype);
	int r = 0;

	for (int64_t i = 0; i < k->nseqs && !r; i++)
		r = te_comm_alltoall(heads_of(c->op)->comm, c->stream, (const char *)in + i * seq,
				     (char *)out + i * seq, n, (enum te_dtype)k->dtype, NULL);
	return r;
}

static int tokens_to_heads(const struct te_op_call *c, const struct te_tensor *tokens,
			   struct te_tensor *heads)
{
	const struct te_k_heads k = args_of(c, tokens);
	int r = TE__LAUNCH(c->stream, HEADS_SPLIT, &k);

	return r ? r : exchange(c, &k, c->ws, te_tensor_data(heads));
}

/*
 * The gradient of a head that ranks share is a sum of terms that have been rounded to the type. So
 * with unit roundoff u it differs from one rank's by at most u times the sum of their magnitudes,
 * and by two roundings of the result.
 */
static int heads_to_tokens(const struct te_op_call *c, const struct te_tensor *heads,
			   struct te_tensor *tokens)
{
	const struct te_k_heads k = args_of(c, tokens);
	int r = exchange(c, &k, te_tensor_data(heads), c->ws);

	return r ? r : TE__LAUNCH(c->stream, HEADS_JOIN, &k);
}

static int heads_forward(const struct te_op_call *c)
{
	return (is_before(c->op) ? tokens_to_heads : heads_to_tokens)(c, c->x.hp, c->y.hp);
}

static int heads_backward(const struct te_op_call *c)
{
	return (is_before(c->op) ? heads_to_tokens : tokens_to_heads)(c, c->dy.hp, c->dx.hp);
}

/* ---- checks ---- */

/* the op holds the communicator once it has succeeded */
static int heads_check(const struct te_op *op)
{
	const char *kind = te_op_table(op)->name, *name = te_op_name(op);
	const struct te_comm_heads_attrs *a = &heads_of(op)->a;
	struct te_comm *comm = heads_of(op)->comm;
	const int n = te_comm_nranks(comm);

	if (a->nheads < 1 || a->nkv < 1 || a->nheads % a->nkv)
		return te__fail(-EINVAL, "%s %s: %d query heads, %d key/value heads", kind, name,
				a->nheads, a->nkv);
	if (a->head_dim < 1 || a->head_dim > INT32_MAX / a->nheads / 3)
		return te__fail(-EINVAL, "%s %s: head_dim is %d", kind, name, a->head_dim);
	if (a->nheads % n)
		return te__fail(-EINVAL, "%s %s: %d ranks cannot divide %d heads", kind, name, n,
				a->nheads);
	if (a->nkv % n && n % a->nkv)
		return te__fail(-EINVAL, "%s %s: %d ranks can neither divide nor share %d "
				"key/value heads", kind, name, n, a->nkv);
	te_comm_ref(comm);
	return 0;
}

static void heads_destroy(struct te_op *op)
{
	te_comm_unref(heads_of(op)->comm);
}

static int heads_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct heads *h = heads_of(op);

	return snprintf(dst, nbytes, "heads %d, kv heads %d, head_dim %d, %d ranks of %s",
			h->a.nheads, h->a.nkv, h->a.head_dim, te_comm_nranks(h->comm),
			h->comm->name);
}

static int heads_infer(struct te_op_infer *inf)
{
	const struct heads *h = heads_of(inf->op);
	const char *kind = te_op_table(inf->op)->name, *name = te_op_name(inf->op);
	const int before = is_before(inf->op);
	const int64_t n = te_comm_nranks(h->comm), kv = h->a.nkv > n ? h->a.nkv / n : 1;
	const int64_t all = (h->a.nheads + (before ? 2 * h->a.nkv : 0)) * (int64_t)h->a.head_dim;
	const int64_t own = (h->a.nheads / n + (before ? 2 * kv : 0)) * h->a.head_dim;
	const struct te_spec *x = &inf->in[0];
	struct te_spec *y = &inf->out[0];

	if (x->dtype != TE_DTYPE_FP32 && x->dtype != TE_DTYPE_BF16)
		return te__fail(-TE_EDTYPE, "%s %s: its input is %s, not fp32 or bf16", kind, name,
				te_dtype_name(x->dtype));
	if (x->ndim < 2 || x->shape[x->ndim - 1] != (before ? all : own))
		return te__fail(-TE_ESHAPE, "%s %s: its input has %lld columns, not %lld", kind,
				name, (long long)x->shape[x->ndim - 1],
				(long long)(before ? all : own));
	if (!before && x->shape[x->ndim - 2] % n)
		return te__fail(-TE_ESHAPE, "%s %s: %lld ranks cannot divide %lld tokens", kind,
				name, (long long)n, (long long)x->shape[x->ndim - 2]);
	*y = *x;
	if (n == 1) {
		inf->out_alias[0] = 0;
		inf->dx_alias = 0;
		return 0;
	}
	y->shape[x->ndim - 1] = before ? own : all;
	if (!before)
		y->shape[x->ndim - 2] /= n;
	else if (__builtin_mul_overflow(x->shape[x->ndim - 2], n, &y->shape[x->ndim - 2]))
		return te__fail(-TE_ESHAPE, "%s %s: %lld tokens, too many for %lld ranks", kind,
				name, (long long)x->shape[x->ndim - 2], (long long)n);
	/* with heads that ranks share, all ranks have more columns than tokens have */
	inf->fwd_ws_nbytes = inf->bwd_ws_nbytes = te__spec_nbytes(before ? y : x);
	return 0;
}

#define HEADS_OPS(name_)                              \
	{                                             \
		.size = sizeof(struct te_op_ops),     \
		.name = name_,                        \
		.attrs_nbytes = sizeof(struct heads), \
		.check = heads_check,                 \
		.infer = heads_infer,                 \
		.forward = heads_forward,             \
		.backward = heads_backward,           \
		.describe = heads_describe,           \
		.destroy = heads_destroy,             \
	}
static const struct te_op_ops to_heads_ops = HEADS_OPS("to_heads");
static const struct te_op_ops to_tokens_ops = HEADS_OPS("to_tokens");

static int create(const char *fn, const struct te_op_ops *ops, struct te_comm *comm,
		  const struct te_comm_heads_attrs *attrs, const char *name, struct te_op **ret_op)
{
	struct heads h = { comm, TE_COMM_HEADS_ATTRS_INIT };
	int r = te__sized_in(fn, te_comm_heads_attrs, attrs, &h.a);

	if (!r && !comm)
		return te__fail(-EINVAL, "%s: comm is NULL", fn);
	return r ? r : te__op_create(ops, &h, name, ret_op);
}

int te_comm_op_to_heads(struct te_comm *comm, const struct te_comm_heads_attrs *attrs,
			const char *name, struct te_op **ret_op)
{
	return create("te_comm_op_to_heads", &to_heads_ops, comm, attrs, name, ret_op);
}

int te_comm_op_to_tokens(struct te_comm *comm, const struct te_comm_heads_attrs *attrs,
			 const char *name, struct te_op **ret_op)
{
	return create("te_comm_op_to_tokens", &to_tokens_ops, comm, attrs, name, ret_op);
}
