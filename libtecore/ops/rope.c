/* rope.c - rotary position embedding of packed heads (Su et al., arXiv:2104.09864). */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int rope_check(const struct te_op *op)
{
	struct te_rope_attrs *a = op->attrs; /* the op's */
	float *copy;
	int r = te__rope_check("rope ", op->name, a);

	if (!r)
		r = te__ops_check_flag("rope ", op->name, "documents", a->documents);
	if (!r)
		r = te__ops_check_flag("rope ", op->name, "positions", a->positions);
	if (!r && a->documents && a->positions)
		r = te__fail(-EINVAL, "rope %s: has documents and positions; positions count in "
			     "documents, too", op->name);
	if (r < 0 || !a->inv_freq)
		return r;
	copy = te__malloc((size_t)a->head_dim / 2 * sizeof(*copy));
	if (!copy)
		return te__fail(-ENOMEM, "rope %s: no memory", op->name);
	memcpy(copy, a->inv_freq, (size_t)a->head_dim / 2 * sizeof(*copy));
	a->inv_freq = copy;
	return 0;
}

static int64_t packed_width(const struct te_rope_attrs *a)
{
	return ((int64_t)a->nheads + 2 * (int64_t)a->nkv) * a->head_dim;
}

static int rope_infer(struct te_op_infer *inf)
{
	const struct te_rope_attrs *a = inf->op->attrs;
	int r = te__ops_same(inf, 2, packed_width(a));

	if (r >= 0)
		r = a->documents ? te__ops_infer_tokens(inf, TE__OPS_DOCUMENTS) :
		    a->positions ? te__ops_infer_tokens(inf, "positions") : 0;
	if (r < 0)
		return r;
	inf->inplace_fwd = 1;
	inf->inplace_bwd = 1;
	return 0;
}

static void rope_args(const struct te_op_call *c, const struct te_tensor *x, struct te_tensor *y,
		      int inverse, struct te_k_rope *ret)
{
	struct te_rope_attrs a = *(const struct te_rope_attrs *)c->op->attrs;

	if (c->flags & TE__CALL_DECODES)
		a.dynamic_positions = 0; /* rows are of sequences that are not longer */
	te__rope_args(x, y, &a, inverse, ret);
	ret->first = te__ops_ptr(te__ops_tokens(c, a.documents));
	ret->position = te__ops_ptr(te__ops_tokens(c, a.positions));
}

void te__ops_rope_fwd(const struct te_op_call *c, struct te_k_rope *ret)
{
	rope_args(c, c->x.hp, c->y.hp, 0, ret);
}

void te__ops_rope_bwd(const struct te_op_call *c, struct te_k_rope *ret)
{
	rope_args(c, c->dy.hp, c->dx.hp, 1, ret);
}

static int rope_forward(const struct te_op_call *c)
{
	const struct te__decode *d = c->state;
	struct te_k_rope k;

	if (d && d->one_each && *d->one_each)
		return 0; /* the attention after it does it */
	te__ops_rope_fwd(c, &k);
	if (d)
		k.position = te_tensor_data(d->cache.position);
	return TE__LAUNCH(c->stream, ROPE, &k);
}

static int rope_backward(const struct te_op_call *c)
{
	struct te_k_rope k;

	te__ops_rope_bwd(c, &k);
	return TE__LAUNCH(c->stream, ROPE, &k);
}

static int rope_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_rope_attrs *a = op->attrs;
	const char *tokens = a->documents ? ", documents" : a->positions ? ", positions" : "";
	const char *pairs = a->interleaved ? ", interleaved" : "";
	char dynamic[64] = "";

	if (a->dynamic_positions)
		snprintf(dynamic, sizeof(dynamic), ", dynamic by %g above %lld",
			 (double)a->dynamic_factor, (long long)a->dynamic_positions);

	if (a->inv_freq)
		return snprintf(dst, nbytes,
				"heads %d, kv heads %d, head_dim %d, inv_freq given%s%s%s",
				a->nheads, a->nkv, a->head_dim, tokens, pairs, dynamic);
	return snprintf(dst, nbytes, "heads %d, kv heads %d, head_dim %d, theta %g%s%s%s",
			a->nheads, a->nkv, a->head_dim, (double)a->theta, tokens, pairs, dynamic);
}

static void rope_destroy(struct te_op *op)
{
	const struct te_rope_attrs *a = op->attrs;

	te__free((void *)(uintptr_t)a->inv_freq);
}

#define ROPE_OPS(extra)                                       \
	{                                                     \
		.size = sizeof(struct te_op_ops),             \
		.name = "rope",                               \
		.attrs_nbytes = sizeof(struct te_rope_attrs), \
		.nextra_in = extra,                           \
		.check = rope_check,                          \
		.infer = rope_infer,                          \
		.forward = rope_forward,                      \
		.backward = rope_backward,                    \
		.describe = rope_describe,                    \
		.destroy = rope_destroy,                      \
		.flags = TE_OP_REPEATS_COSTLY,                \
	}
static const struct te_op_ops rope_ops = ROPE_OPS(0), tokens_ops = ROPE_OPS(1);
#undef ROPE_OPS

int te_op_rope(const struct te_rope_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_rope_attrs attrs = TE_ROPE_ATTRS_INIT;
	int r = te__sized_in("te_op_rope", te_rope_attrs, a, &attrs);

	return r ? r : te__op_create(attrs.documents || attrs.positions ? &tokens_ops : &rope_ops,
				     &attrs, name, ret_op);
}
