/* common.c - shapes and weights that several built-in ops need. */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

int64_t te__ops_rows(const struct te_spec *s)
{
	int64_t n = 1;

	for (int i = 0; i < s->ndim - 1; i++)
		n *= s->shape[i];
	return n;
}

int64_t te__ops_cols(const struct te_spec *s)
{
	return s->shape[s->ndim - 1];
}

int te__ops_check_x(const struct te_op_infer *inf, int ndim, int64_t cols)
{
	const struct te_spec *x = &inf->in[0];
	const char *name = inf->op->name, *what = inf->op->ops.name;

	if (x->dtype != inf->recipe->compute)
		return te__fail(-TE_EDTYPE, "%s %s: its input is %s, the recipe computes in %s",
				what, name, te_dtype_name(x->dtype),
				te_dtype_name(inf->recipe->compute));
	if (x->ndim < ndim)
		return te__fail(-TE_ESHAPE, "%s %s: its input has %d extents, it needs %d", what,
				name, x->ndim, ndim);
	if (cols > 0 && te__ops_cols(x) != cols)
		return te__fail(-TE_ESHAPE, "%s %s: its input is %lld wide, it takes %lld", what,
				name, (long long)te__ops_cols(x), (long long)cols);
	return 0;
}

int te__ops_same(struct te_op_infer *inf, int ndim, int64_t cols)
{
	inf->out[0] = inf->in[0];
	return te__ops_check_x(inf, ndim, cols);
}

int te__ops_check_flag(const char *kind, const char *name, const char *attr, int32_t value)
{
	if (value < 0 || value > 1)
		return te__fail(-EINVAL, "%s%s: %s is %d, not 0 or 1", kind, name, attr, value);
	return 0;
}

int te__ops_infer_tokens(struct te_op_infer *inf, const char *what)
{
	const char *name = inf->op->name, *kind = inf->op->ops.name;
	const struct te_spec *in = &inf->in[1];

	if (in->dtype != TE_DTYPE_INT32)
		return te__fail(-TE_EDTYPE, "%s %s: %s are %s, not int32", kind, name, what,
				te_dtype_name(in->dtype));
	if (te__spec_nelems(in) != te__ops_rows(&inf->in[0]))
		return te__fail(-TE_ESHAPE, "%s %s: %lld %s, for %lld rows", kind, name,
				(long long)te__spec_nelems(in), what,
				(long long)te__ops_rows(&inf->in[0]));
	inf->save_ex[0] = 1;
	return 0;
}

const struct te_tensor *te__ops_tokens(const struct te_op_call *c, int32_t flag)
{
	return flag ? c->ex[0].hp : NULL;
}

const struct te_tensor *te__ops_weight(const struct te_op_call *c)
{
	if (!c->op->nweights)
		return NULL;
	return c->weight[0].hp ? c->weight[0].hp : c->master[0];
}
