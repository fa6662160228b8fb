/*
 * seq_store.c - weights that nothing trains, stored as nothing but the FP8 codes that plans read.
 *
 * A plan without memory tells which weights these are. Their tensors are like tensors of
 * te_seq_bind_weight(), but the library allocates them and casts values to them.
 */
#define TE_LOG_CATEGORY "core/seq"
#include <errno.h>

#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/build.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"

/* the codes that the plan's ops read of weight w, if they read nothing else of it; else 0 */
static uint32_t codes_read(const struct te_plan *p, int w, struct te__operand *ret_how)
{
	uint32_t all = 0;

	for (int i = p->first_op; i < p->nops; i++)
		for (int k = 0; k < p->seq->op[i]->nweights; k++) {
			uint32_t forms = p->node[i].inf.weight_forms[k];

			if (p->seq->op_weight[i][k] != w)
				continue;
			if (!forms || forms & ~(TE_FORM_ROW | TE_FORM_COL))
				return 0;
			if (!te__build_need_dx(p, i))
				forms &= ~TE_FORM_COL;
			all |= forms;
			*ret_how = te__recipe_operand(&p->node[i].recipe, TE__ROLE_WEIGHT);
		}
	return all;
}

/* a tensor without memory */
static int place_codes(struct te_seq *seq, struct te__weight *w, uint32_t forms,
		       struct te__operand how)
{
	const struct te_weight_decl *d = &w->decl;
	struct te_tensor *t;
	int r;

	if (seq->binding.flags & TE_SEQ_RECOMPUTE_COLS && how.scaling < TE_SCALING_1X32)
		forms &= ~TE_FORM_COL;
	r = te__tensor_wrap_scaled(seq->ctx, how.dtype, d->ndim, d->shape, TE__NOWHERE,
				       forms & TE_FORM_COL ? TE__NOWHERE : NULL,
				       (float *)TE__NOWHERE, (float *)TE__NOWHERE, how.scaling, &t);

	if (r)
		return r;
	te_tensor_unref(w->value);
	w->value = t;
	w->codes = &seq->codes;
	return 0;
}

static int may_be_codes(const struct te_seq *seq, const struct te__weight *w)
{
	const struct te_tensor *t = w->master;

	return t && te_tensor_rows(t) % TE__FP8_EXTENT == 0 &&
	       te_tensor_cols(t) % TE__FP8_EXTENT == 0 &&
	       (!te__weight_trains(w) || seq->binding.flags & TE_SEQ_NO_GRADS);
}

int te_seq_store_codes(struct te_seq *seq, const struct te_plan_opts *opts)
{
	static const char fn[] = "te_seq_store_codes";
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p = NULL;
	int planned, n = 0, r = te__seq_laid_out(seq, fn);

	if (!r)
		r = te__sized_in(fn, te_plan_opts, opts, &o);
	if (r)
		return r;
	o.flags |= TE_PLAN_NO_ALLOC;
	planned = seq->planned;
	r = te_plan_create(seq, &o, &p);
	if (r)
		return r;
	seq->planned = planned;
	if (p->nothers) {
		te_plan_unref(p);
		return te__fail(-EOPNOTSUPP, "%s: operations have FP8 recipes of two kinds, "
				"expected one", fn);
	}
	seq->codes = te__recipe_present(&p->casts); /* no pass computes a scale */
	for (int i = 0; i < seq->nweights && !r; i++) {
		struct te__weight *w = &seq->weight[i];
		struct te__operand how;
		const uint32_t forms = may_be_codes(seq, w) ? codes_read(p, i, &how) : 0;

		if (forms)
			r = place_codes(seq, w, forms, how);
		n += forms != 0;
	}
	te_plan_unref(p);
	te__seq_lay_out(seq); /* te_seq_init makes the tensors again */
	return r ? r : n;
}

int te_seq_weight_set(struct te_seq *seq, int index, const float *src)
{
	static const char fn[] = "te_seq_weight_set";
	const struct te__weight *w;
	int r = te__seq_initialised(seq, fn);

	if (r)
		return r;
	if (index < 0 || index >= seq->nweights || !src)
		return te__fail(-EINVAL, "%s: weight %d of %d%s", fn, index, seq->nweights,
				src ? "" : ": src is NULL");
	w = &seq->weight[index];
	if (w->value && !w->codes)
		return te__fail(-TE_ESTATE, "%s: weight %s is bound to a tensor of the caller", fn,
				w->name);
	r = te__ctx_wait(seq->ctx, fn);
	if (!r)
		r = w->codes ? te__weight_write_codes(w, src) : te__weight_write(w, src);
	return r ? r : te_seq_weights_changed(seq, te_ctx_stream(seq->ctx));
}
