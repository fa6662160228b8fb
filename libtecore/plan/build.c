/* build.c - from ops to basic steps: ops of a plan, its quantizers, and the forms of weights. */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <stdio.h>

#include "libtecore/base/private.h"
#include "libtecore/base/base.h"
#include "kernels/te_k.h"
#include "libtecore/plan/build.h"
#include "libtecore/tensor/ctx.h"

/* ---- weights ---- */

/* "bf16", "e4m3 scaled by 128x128 blocks" */
static const char *type_text(enum te_dtype dtype, enum te_scaling scaling, char dst[64])
{
	if (!te__is_codes((int32_t)dtype))
		snprintf(dst, 64, "%s", te_dtype_name(dtype));
	else if (scaling == TE_SCALING_TENSOR)
		snprintf(dst, 64, "%s with one scale", te_dtype_name(dtype));
	else
		snprintf(dst, 64, "%s scaled by %s blocks", te_dtype_name(dtype),
			 te__scaling_name[scaling]);
	return dst;
}

/* can op i read its bound weight k? forms: forms that it reads; 0: FP32 */
static int check_bound(const struct te_plan *p, int i, int k, uint32_t forms)
{
	const struct te_recipe *recipe = &p->node[i].recipe;
	const struct te__operand w = te__recipe_operand(recipe, TE__ROLE_WEIGHT);
	const struct te__weight *weight = &p->seq->weight[p->seq->op_weight[i][k]];
	const struct te_tensor *t = weight->value;
	const int codes = (forms & (TE_FORM_ROW | TE_FORM_COL)) != 0;
	const int values = (forms & TE_FORM_HP) != 0;
	const enum te_dtype dtype = codes ? w.dtype : p->recipe.compute;
	const enum te_scaling scaling = codes ? w.scaling : TE_SCALING_TENSOR;
	char want[64], have[64];

	if (t && codes &&
	    (te_tensor_rows(t) % TE__FP8_EXTENT || te_tensor_cols(t) % TE__FP8_EXTENT))
		return te__fail(-TE_ESHAPE,
				"op %s: FP8 GEMMs read copies of weights with extents rounded up "
				"to multiples of %d, but weight %s of [%lld,%lld] is bound",
				te__build_op_name(p, i), TE__FP8_EXTENT, weight->name,
				(long long)te_tensor_rows(t), (long long)te_tensor_cols(t));
	/*
	 * a column-wise copy with blocks of its own is not the transpose of a row-wise one, and no
	 * kernel transposes codes of 4 bits
	 */
	if (t && te_tensor_scaling(t) >= TE_SCALING_1X32 && forms & TE_FORM_COL &&
	    te__build_need_dx(p, i) && !te_tensor_coldata(t))
		return te__fail(-TE_EDTYPE,
				"op %s: under recipe %s it reads a column-wise copy of weight %s, "
				"and the bound tensor has none",
				te__build_op_name(p, i), te_recipe_name(recipe), weight->name);
	if (!t || (codes + values == 1 && te_tensor_dtype(t) == dtype &&
		   te_tensor_scaling(t) == scaling))
		return 0;
	type_text(dtype, scaling, want);
	return te__fail(-TE_EDTYPE,
			"op %s: under recipe %s it reads %s%s of weight %s, which is bound as %s",
			te__build_op_name(p, i), te_recipe_name(recipe),
			codes + values ? want : "the FP32 master",
			codes && values ? " and other values" : "", weight->name,
			type_text(te_tensor_dtype(t), te_tensor_scaling(t), have));
}

/* op i reads codes of a weight that an earlier op reads */
static int share_codes(const struct te_plan *p, struct te__need *need, int i)
{
	if (need->forms & TE__FORM_CODES)
		return te__build_same_recipe(p, need->slot, i, p->seq->weight[need->weight].name);
	if (p->node[i].quant != p->quant)
		need->slot = 2 * i + 1;
	return 0;
}

static int collect_needs(struct te_plan *p)
{
	p->need = te__calloc((size_t)p->seq->nweights + 1, sizeof(*p->need));
	p->need_of = te__malloc(((size_t)p->seq->nweights + 1) * sizeof(*p->need_of));
	if (!p->need || !p->need_of)
		return te__no_memory("plan");
	for (int w = 0; w < p->seq->nweights; w++)
		p->need_of[w] = -1;
	for (int i = p->first_op; i < p->nops; i++) {
		for (int k = 0; k < p->seq->op[i]->nweights; k++) {
			int w = p->seq->op_weight[i][k];
			uint32_t forms = p->node[i].inf.weight_forms[k];
			int j, r;

			const int stored = p->seq->op[i]->decl[k].flags & TE_WEIGHT_STORED;

			if (p->recipe.compute == TE_DTYPE_FP32)
				forms &= ~TE_FORM_HP; /* the master serves as the copy */
			r = check_bound(p, i, k, forms);
			if (r < 0)
				return r;
			if (!forms && !stored && te__seq_is_split(p->seq) &&
			    !p->seq->weight[w].value)
				forms = TE__FORM_FP32;
			if (!te__build_need_dx(p, i))
				forms &= ~TE_FORM_COL;
			if (!forms)
				continue;
			j = p->need_of[w];
			if (j >= 0 && forms & TE__FORM_CODES) {
				r = share_codes(p, &p->need[j], i);
				if (r)
					return r;
			}
			if (j < 0) {
				j = p->need_of[w] = p->nneeds++;
				p->need[j].weight = w;
				p->need[j].slot = 2 * i + 1;
			}
			p->need[j].forms |= forms;
		}
	}
	return 0;
}

/* ---- the whole ---- */

static const struct te_recipe *recipe_of(const struct te_plan *p, int i)
{
	const struct te_op *op = p->seq->op[i];

	return op->recipe ? op->recipe : &p->recipe;
}

/*
 * The recipe of the sequence's quantizers: the first with state, or else the first that casts. The
 * plans of parts of a sequence choose the same one.
 */
static void choose_casts(struct te_plan *p)
{
	p->casts = p->recipe;
	for (int i = 0; i < p->seq->nops && !te__recipe_has_state(&p->casts); i++) {
		const struct te_recipe *r = recipe_of(p, i);

		if (te__recipe_has_state(r) ||
		    (te__recipe_casts(r) && !te__recipe_casts(&p->casts)))
			p->casts = *r;
	}
}

/* each op gets its recipe: with the state of another recipe, the quantizers have none */
static int choose_recipes(struct te_plan *p)
{
	int casts = te__recipe_casts(&p->recipe), r = 0;

	choose_casts(p);
	for (int i = p->first_op; i < p->nops && !r; i++) {
		struct te_recipe *recipe = &p->node[i].recipe;

		*recipe = *recipe_of(p, i);
		recipe->compute = p->recipe.compute;
		if (!te__recipe_casts(recipe))
			continue;
		casts = 1;
		if (te__recipe_has_state(recipe) && !te__recipe_shares(recipe, &p->casts))
			return te__fail(-TE_EPLAN, "plan: op %s has recipe %s, but another one has "
					"recipe %s: recipes with scales of tensors must be equal, "
					"but for the type of gradients", te__build_op_name(p, i),
					te_recipe_name(recipe), te_recipe_name(&p->casts));
		r = p->ctx->ops->fp8_gemm(p->ctx->dev,
					  te__recipe_operand(recipe, TE__ROLE_ACTIVATION).scaling);
	}
	if (!casts)
		p->casts = p->recipe;
	else if (!r)
		r = p->ctx->ops->fp8_gemm(p->ctx->dev,
				te__recipe_operand(&p->casts, TE__ROLE_ACTIVATION).scaling);
	return r;
}

/* types of the slots of the sequence, for te__free(); NULL: no memory */
static enum te_dtype *slot_dtypes(const struct te_plan *p, const struct te_recipe *recipe)
{
	const int n = p->seq->nops;
	enum te_dtype *dtypes = te__malloc((size_t)n * 3 * sizeof(*dtypes));

	for (int i = 0; i < n && dtypes; i++) {
		const struct te_recipe *own = recipe_of(p, i);
		const struct te_recipe *r = te__recipe_shares(own, recipe) ? own : recipe;

		dtypes[2 * i] = te__recipe_operand(r, TE__ROLE_ACTIVATION).dtype;
		dtypes[2 * i + 1] = te__recipe_operand(r, TE__ROLE_WEIGHT).dtype;
		dtypes[2 * n + i] = te__recipe_operand(r, TE__ROLE_GRADIENT).dtype;
	}
	if (!dtypes)
		te__no_memory("plan");
	return dtypes;
}

static int make_quant(struct te_plan *p)
{
	struct te_seq *seq = p->seq;
	const struct te_recipe *have;
	enum te_dtype *dtypes;
	int r;

	if (!te__recipe_casts(&p->casts))
		return 0;
	if (seq->quant) {
		have = te_quant_recipe(seq->quant);
		if (!te__recipe_same(have, &p->casts))
			return te__fail(-TE_ESTATE, "plan: the sequence's quantizers follow recipe "
					"%s with other settings", te_recipe_name(have));
		p->quant = te_quant_ref(seq->quant);
		return 0;
	}
	dtypes = slot_dtypes(p, &p->casts);
	if (!dtypes)
		return -ENOMEM;
	if (p->flags & TE_PLAN_NO_ALLOC)
		r = te__quant_describe(seq->ctx, &p->casts, 3 * seq->nops, dtypes, &p->quant);
	else
		r = te_quant_create(seq->ctx, &p->casts, 3 * seq->nops, dtypes, &seq->quant);
	if (!p->quant)
		p->quant = te_quant_ref(seq->quant);
	te__free(dtypes);
	return r;
}

/* quantizers of one of the plan's other recipes, which have no state */
static int make_other(struct te_plan *p, const struct te_recipe *recipe, struct te_quant **ret_q)
{
	enum te_dtype *dtypes;
	int r;

	for (int k = 0; k < p->nothers; k++)
		if (te__recipe_same(te_quant_recipe(p->other[k]), recipe)) {
			*ret_q = p->other[k];
			return 0;
		}
	if (!p->other)
		p->other = te__calloc((size_t)p->nops, sizeof(struct te_quant *));
	if (!p->other)
		return te__no_memory("plan");
	dtypes = slot_dtypes(p, recipe);
	if (!dtypes)
		return -ENOMEM;
	r = te_quant_create(p->ctx, recipe, 3 * p->seq->nops, dtypes, ret_q);
	if (!r)
		p->other[p->nothers++] = *ret_q;
	te__free(dtypes);
	return r;
}

static int make_quants(struct te_plan *p)
{
	int r = make_quant(p);

	for (int i = p->first_op; i < p->nops && !r; i++) {
		struct te__plan_op *node = &p->node[i];

		node->quant = p->quant;
		if (te__recipe_casts(&node->recipe) && !te__recipe_shares(&node->recipe, &p->casts))
			r = make_other(p, &node->recipe, &node->quant);
	}
	return r;
}

/* index of the op of that name */
static int find_op(const struct te_seq *seq, const char *name)
{
	const int i = te__seq_op(seq, name);

	return i < 0 ? te__fail(-EINVAL, "plan: no op is named %s", name) : i;
}

/* choose the planned ops; channels must not cross their ends if that would matter */
static int choose_ops(struct te_plan *p, const char *start_at, const char *stop_before)
{
	const struct te_seq *seq = p->seq;

	p->first_op = start_at ? find_op(seq, start_at) : 0;
	p->nops = stop_before ? find_op(seq, stop_before) : seq->nops;
	if (p->first_op < 0 || p->nops < 0)
		return -EINVAL;
	if (p->nops <= p->first_op)
		return te__fail(-EINVAL, "plan: nothing is left before %s", stop_before);
	for (int i = p->first_op; i < seq->nops; i++) {
		const struct te_op *op = seq->op[i];

		for (int k = 0; k < op->ops.nextra_in; k++) {
			const struct te__channel *c = te__seq_channel(seq, op->take[k]);
			int inside = c->giver >= p->first_op && c->giver < p->nops;

			if (c->giver < 0)
				continue;
			if (i < p->nops && !inside)
				return te__fail(-TE_ECHANNEL,
						"plan: op %s takes channel %s of op %s, which lies "
						"before %s", op->name, c->name,
						seq->op[c->giver]->name, start_at);
			if (i >= p->nops && inside && (p->flags & TE_PLAN_TRAIN))
				return te__fail(-TE_ECHANNEL,
						"plan: op %s gives channel %s to op %s, which does "
						"not lie before %s: its gradient is not known",
						seq->op[c->giver]->name, c->name, op->name,
						stop_before);
		}
	}
	return 0;
}

int te__plan_build(struct te_plan *p, const char *start_at, const char *stop_before)
{
	struct te_seq *seq = p->seq;
	int x, r = choose_ops(p, start_at, stop_before);

	if (r < 0)
		return r;
	p->node = te__calloc((size_t)p->nops, sizeof(*p->node));
	p->channel_value = te__calloc((size_t)seq->nchannels + 1, sizeof(int));
	p->channel_grad = te__calloc((size_t)seq->nchannels + 1, sizeof(int));
	if (!p->node || !p->channel_value || !p->channel_grad)
		return te__no_memory("plan");
	for (int c = 0; c < seq->nchannels; c++)
		p->channel_value[c] = p->channel_grad[c] = -1;
	p->out_grad = p->in_grad = -1;
	p->first_grad = te__build_first_grad(p);
	r = choose_recipes(p);
	if (!r)
		r = make_quants(p);
	if (r < 0)
		return r;
	x = p->x_value = te__plan_new_value(p, &p->xspec, "x");
	if (x < 0)
		return x;
	for (int i = p->first_op; i < p->nops; i++) {
		r = te__build_infer(p, i, x);
		if (r < 0)
			return r;
		x = p->node[i].value.y;
	}
	p->out_value = x;
	p->value[x].keep = 1;
	r = te__build_forward(p);
	if (r < 0)
		return r;
	p->fwd_steps = p->nsteps;
	if (p->flags & TE_PLAN_TRAIN) {
		if (p->node[p->nops - 1].inf.bwd_dy) {
			p->out_grad = te__plan_new_value(p, &p->value[x].spec, "dy");
			if (p->out_grad < 0)
				return p->out_grad;
			p->value[p->out_grad].fed = 1;
		}
		r = te__build_backward(p);
		if (r < 0)
			return r;
		p->bwd_steps = p->nsteps - p->fwd_steps;
		r = te__build_delayed(p);
		if (r < 0)
			return r;
		if (p->in_grad >= 0)
			p->value[p->in_grad].keep = 1;
	}
	return collect_needs(p);
}
