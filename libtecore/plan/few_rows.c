/*
 * few_rows.c - the fusion of a linear op of a decoder with the norm and the cast before it and with
 * the bias, the activation or the residual after it, in one kernel (te_k_few_rows). A pass of few
 * rows has as many launches as it has steps, and each costs more than what it computes.
 */
#define TE_LOG_CATEGORY "core/plan"
#include "config.h"

#include "kernels/launch.h"
#include "libtecore/ops/common.h"
#include "libtecore/plan/plan.h"

struct parts {
	const struct te_op_call *norm, *quantize, *linear, *bias, *act, *add; /* or NULL */
};

static struct parts parts_of(const struct te_fused *f)
{
	struct parts p = { 0 };

	for (int i = 0; i < f->nparts; i++) {
		const struct te_op_call *c = f->part[i];
		const char *name = te_op_table(c->op)->name;

		if (!p.linear && c->y.q)
			p.quantize = c;
		else if (!strcmp(name, "rmsnorm"))
			p.norm = c;
		else if (!strcmp(name, "linear"))
			p.linear = c;
		else if (!strcmp(name, "bias"))
			p.bias = c;
		else if (!strcmp(name, "activation"))
			p.act = c;
		else
			p.add = c;
	}
	return p;
}

static const struct te_act_attrs *act_of(const struct te_op_call *act)
{
	return act->op->attrs;
}

static const struct te_tensor *weight_of(const struct parts *p)
{
	return p->quantize ? p->linear->weight[0].q : te__ops_weight(p->linear);
}

/* number of steps that read the codes */
static int readers(const struct te_op_call *quantize)
{
	char *const at = (char *)(uintptr_t)quantize - offsetof(struct te__step, call);
	const struct te__step *step = (const struct te__step *)(const void *)at;
	const struct te_plan *p = step->plan;
	int n = 0;

	for (int s = 0; s < p->nsteps; s++)
		for (int k = 0; k < p->step[s].nrefs; k++) {
			const struct te__ref *ref = &p->step[s].ref[k];

			n += ref->value == step->role.y && !ref->write &&
			     (ref->forms & (TE_FORM_ROW | TE_FORM_COL));
		}
	return n;
}

static struct te_k_few_rows args_of(const struct te_fused *f)
{
	const struct parts p = parts_of(f);
	const struct te_op_call *last = f->part[f->nparts - 1];
	const struct te_tensor *x = f->part[0]->x.hp, *w = weight_of(&p);
	const struct te_linear_attrs *l = p.linear->op->attrs;
	struct te_k_few_rows k;
	struct te_k_norm_fwd norm;

	memset(&k, 0, sizeof(k));
	k.g.a = te__ops_ptr(x);
	k.g.b = te__ops_ptr(w);
	k.g.c = p.add ? te__ops_ptr(p.add->ex[0].hp) : NULL;
	k.g.d = te__ops_ptr(last->y.hp);
	k.g.bias = p.bias ? te__ops_ptr(te__ops_weight(p.bias)) : NULL;
	k.g.m = te_tensor_rows(x);
	k.g.n = l->out;
	k.g.k = l->in;
	k.g.alpha = 1.0f;
	k.g.beta = p.add ? 1.0f : 0.0f;
	k.g.adtype = k.g.bdtype = te_tensor_dtype(w);
	k.g.cdtype = k.g.ddtype = TE_DTYPE_BF16;
	k.g.b_rows = te_tensor_rows(w);
	k.g.fixed = !!(p.linear->flags & TE__CALL_FIXED_WEIGHTS);
	k.ws = f->ws;
	if (p.norm) {
		te__ops_norm_fwd(p.norm, &norm);
		k.gamma = norm.gamma;
		k.eps = norm.eps;
		k.zero_centered = norm.zero_centered;
	}
	if (p.quantize) {
		const struct te_recipe *recipe = te_quant_recipe(p.quantize->y.quant);

		k.g.sb = te_tensor_scale_inv(w);
		k.g.bsc = (int32_t)te_tensor_scaling(w);
		k.epsilon = recipe->amax_epsilon;
		k.pow2 = te__recipe_pow2(recipe);
	}
	if (p.act) {
		k.act = act_of(p.act)->act == TE_ACT_GELU ? TE_K_FEW_ROWS_GELU :
							    TE_K_FEW_ROWS_SILU;
		k.gated = act_of(p.act)->gated;
	}
	return k;
}

/* the cast is by blocks, and nothing else reads it */
static int casts_alike(const struct te_op_call *quantize)
{
	return quantize->y.quant && te_tensor_dtype(quantize->y.q) == TE_DTYPE_E4M3 &&
	       te_tensor_scaling(quantize->y.q) == TE_SCALING_1X128 && readers(quantize) == 1;
}

int te__few_rows_applies(const struct te_fused *f)
{
	const struct parts p = parts_of(f);
	const struct te_tensor *x = f->part[0]->x.hp;
	struct te_k_few_rows k;

	if (!p.linear || !(p.linear->flags & TE__CALL_DECODES) || !x ||
	    te_tensor_dtype(x) != TE_DTYPE_BF16 || !weight_of(&p))
		return 0;
	for (int i = 0; i < f->nparts - 1; i++)
		if (f->part[i]->y.hp)
			return 0;
	if (p.quantize ? !casts_alike(p.quantize) :
			 te_tensor_dtype(weight_of(&p)) != TE_DTYPE_BF16)
		return 0;
	if (p.act && act_of(p.act)->act != TE_ACT_GELU && act_of(p.act)->act != TE_ACT_SILU)
		return 0;
	if (p.add && !p.add->ex[0].hp)
		return 0;
	k = args_of(f);
	return !te__few_rows_declines(&k);
}

size_t te__few_rows_ws(const struct te_fused *f)
{
	const struct te_k_few_rows k = args_of(f);

	/* a GPU has these values in shared memory */
	return strcmp(te_ctx_backend(te_tensor_ctx(f->part[0]->x.hp)), "host") ?
		       0 : (size_t)te_k_few_rows_at(&k, TE_K_FEW_ROWS_END);
}

int te__few_rows_run(const struct te_fused *f)
{
	const struct te_k_few_rows k = args_of(f);

	return te__stream_queued(f->part[0]->stream, TE__LAUNCH(f->part[0]->stream, FEW_ROWS, &k));
}
