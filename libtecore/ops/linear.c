/*
 * linear.c - y = x w^T and its two gradients. Operands of the three GEMMs:
 *
 *		y = x w^T	dx = dy w	dw += dy^T x
 * FP8		x row, w row	dy row, w col	dy col, x col
 * BF16		x, w copy	dy, w copy	dy, x
 * FP32		x, master	dy, master	dy, x
 */
#define TE_LOG_CATEGORY "core/op"
#include "libtecore/ops/common.h"

static int is_embedding(const struct te_op *op)
{
	return op->is_library && !strcmp(op->ops.name, "embedding");
}

/* the table of tied_op is a weight of this op */
static int check_tied(const struct te_op *op, const struct te_linear_attrs *a)
{
	const struct te_embedding_attrs *e;

	if (!is_embedding(a->tied_op))
		return te__fail(-EINVAL, "linear %s: tied_op %s is no embedding but a %s%s",
				op->name, a->tied_op->name,
				a->tied_op->is_library ? "" : "user-defined ",
				a->tied_op->ops.name);
	e = a->tied_op->attrs;
	if (e->vocab != a->out || e->width != a->in)
		return te__fail(-EINVAL,
				"linear %s: tied_op %s has a table of [%lld,%lld], not [%lld,%lld]",
				op->name, a->tied_op->name, (long long)e->vocab,
				(long long)e->width, (long long)a->out, (long long)a->in);
	return 0;
}

/* *ret_recipe is a copy of the attributes' recipe with all members of this version, or NULL */
static int take_recipe(const struct te_op *op, const struct te_linear_attrs *a,
		       struct te_recipe **ret_recipe)
{
	struct te_recipe recipe = TE_RECIPE_INIT;
	int r;

	*ret_recipe = NULL;
	if (!a->recipe)
		return 0;
	r = te__sized_in("te_op_linear", te_recipe, a->recipe, &recipe);
	if (!r)
		r = te__recipe_check("te_op_linear", &recipe);
	if (r)
		return r;
	if (a->keep_hp && te__recipe_casts(&recipe))
		return te__fail(-EINVAL, "linear %s: keep_hp is 1, but its recipe is %s", op->name,
				te_recipe_name(&recipe));
	*ret_recipe = te__malloc(sizeof(recipe));
	if (!*ret_recipe)
		return te__fail(-ENOMEM, "linear %s: no memory for its recipe", op->name);
	**ret_recipe = recipe;
	return 0;
}

static int linear_check(const struct te_op *op)
{
	struct te_linear_attrs *a = op->attrs;
	struct te_recipe *recipe;
	int r;

	if (a->in < 1)
		return te__fail(-EINVAL, "linear %s: in is %lld", op->name, (long long)a->in);
	if (a->out < 1)
		return te__fail(-EINVAL, "linear %s: out is %lld", op->name, (long long)a->out);
	if (!(a->init_std >= 0.0f) || !isfinite(a->init_std))
		return te__fail(-EINVAL, "linear %s: init_std is %g", op->name,
				(double)a->init_std);
	if (a->keep_hp != 0 && a->keep_hp != 1)
		return te__fail(-EINVAL, "linear %s: keep_hp is %d, not 0 or 1", op->name,
				a->keep_hp);
	r = a->tied_op ? check_tied(op, a) : 0;
	if (!r)
		r = take_recipe(op, a, &recipe);
	if (r)
		return r;
	/* the copied attributes have a reference and a recipe of their own */
	te_op_ref(a->tied_op);
	a->recipe = recipe;
	return 0;
}

static void linear_destroy(struct te_op *op)
{
	struct te_linear_attrs *a = op->attrs;

	te_op_unref(a->tied_op);
	te__free((void *)(uintptr_t)a->recipe);
}

static int linear_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret)
{
	const struct te_linear_attrs *a = op->attrs;

	if (index)
		return 0;
	ret->name = "weight";
	ret->ndim = 2;
	ret->shape[0] = a->out;
	ret->shape[1] = a->in;
	ret->init = TE_INIT_NORMAL;
	ret->init_std = a->init_std;
	ret->flags = TE_WEIGHT_GEMM | TE_WEIGHT_COMPUTE | TE_WEIGHT_DECAY;
	ret->tied_op = a->tied_op;
	return 1;
}

static int linear_infer(struct te_op_infer *inf)
{
	const struct te_linear_attrs *a = inf->op->attrs;
	const int64_t rows = te__ops_rows(&inf->in[0]);
	int r = te__ops_same(inf, 1, a->in);

	if (r < 0)
		return r;
	inf->out[0].shape[inf->out[0].ndim - 1] = a->out;
	inf->fwd_flops = 2.0 * (double)rows * (double)a->in * (double)a->out;
	inf->bwd_flops = inf->dw_flops = inf->fwd_flops;
	if (!te__recipe_casts(inf->recipe) || a->keep_hp) {
		inf->weight_forms[0] = inf->recipe->compute == TE_DTYPE_FP32 ? 0 : TE_FORM_HP;
		inf->dw_x = inf->dw_dy = TE_FORM_HP;
		return 0;
	}
	inf->fwd_x = TE_FORM_ROW;
	inf->weight_forms[0] = TE_FORM_ROW | TE_FORM_COL;
	inf->dw_x = TE_FORM_COL;
	inf->bwd_dy = TE_FORM_ROW;
	inf->dw_dy = TE_FORM_COL;
	return 0;
}

static const struct te_tensor *operand(const struct te_op_value *v)
{
	return v->q ? v->q : v->hp;
}

static const struct te_tensor *weight(const struct te_op_call *c)
{
	return c->weight[0].q ? c->weight[0].q : te__ops_weight(c);
}

int te__ops_linear_fwd(const struct te_op_call *c, float alpha, struct te_tensor *y,
		       const struct te_tensor *bias, const struct te_tensor *add)
{
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;

	o.alpha = alpha;
	o.bias = bias;
	o.c = add;
	o.beta = add ? 1.0f : 0.0f;
	return te__gemm_fixed(c->stream, operand(&c->x), weight(c), y, &o,
			      !!(c->flags & TE__CALL_FIXED_WEIGHTS));
}

int te__ops_linear_bwd(const struct te_op_call *c, float alpha, struct te_tensor *dx,
		       const struct te_tensor *add)
{
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;

	o.flags = TE_GEMM_B_T;
	o.alpha = alpha;
	o.c = add;
	o.beta = add ? 1.0f : 0.0f;
	return te_gemm(c->stream, operand(&c->dy), weight(c), dx, &o);
}

int te__ops_linear_dw(const struct te_op_call *c, float alpha)
{
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;

	o.flags = TE_GEMM_A_T | TE_GEMM_B_T;
	o.alpha = alpha;
	o.beta = 1.0f;
	return te_gemm(c->stream, operand(&c->dy), operand(&c->x), c->grad[0], &o);
}

static int linear_forward(const struct te_op_call *c)
{
	return te__ops_linear_fwd(c, 1.0f, c->y.hp, NULL, NULL);
}

static int linear_backward(const struct te_op_call *c)
{
	return te__ops_linear_bwd(c, 1.0f, c->dx.hp, NULL);
}

static int linear_dw(const struct te_op_call *c)
{
	return te__ops_linear_dw(c, 1.0f);
}

static int linear_describe(const struct te_op *op, char *dst, size_t nbytes)
{
	const struct te_linear_attrs *a = op->attrs;
	const int never = a->keep_hp || (a->recipe && !te__recipe_casts(a->recipe));

	return snprintf(dst, nbytes, "in %lld, out %lld%s%s%s%s", (long long)a->in,
			(long long)a->out, never ? ", never FP8" : a->recipe ? ", recipe " : "",
			never || !a->recipe ? "" : te_recipe_name(a->recipe),
			a->tied_op ? ", tied to " : "", a->tied_op ? a->tied_op->name : "");
}

static const struct te_op_ops linear_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "linear",
	.attrs_nbytes = sizeof(struct te_linear_attrs),
	.check = linear_check,
	.weight = linear_weight,
	.infer = linear_infer,
	.forward = linear_forward,
	.backward = linear_backward,
	.backward_dw = linear_dw,
	.describe = linear_describe,
	.destroy = linear_destroy,
	.flags = TE_OP_REPEATS_COSTLY,
};

int te_op_linear(const struct te_linear_attrs *a, const char *name, struct te_op **ret_op)
{
	struct te_linear_attrs attrs = TE_LINEAR_ATTRS_INIT;
	int r = te__sized_in("te_op_linear", te_linear_attrs, a, &attrs);

	if (!r)
		r = te__op_create(&linear_ops, &attrs, name, ret_op);
	if (!r)
		(*ret_op)->recipe = ((const struct te_linear_attrs *)(*ret_op)->attrs)->recipe;
	return r;
}
