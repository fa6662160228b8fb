/*
 * delayed.c - recipe fp8-delayed: one scale for a tensor, from the amaxes of earlier steps, so that
 * any kernel can cast its result as it writes it.
 *
 * Source: notes of te_quantize(3) and te_quant_update(3); t/quant/quant.c has every edge case.
 */
#define TE_LOG_CATEGORY "core/quant"
#include "config.h"

#include <errno.h>
#include <math.h>

#include "libtecore/quant/recipe.h"
#include "libtecore/tensor/ctx.h"

#define MARGIN_MOST 32
#define HISTORY_MOST 65536

static int delayed_check(const char *fn, const struct te_recipe *r)
{
	if (r->margin < -MARGIN_MOST || r->margin > MARGIN_MOST)
		return te__fail(-EINVAL, "%s: recipe: margin %d is outside -%d..%d", fn,
				(int)r->margin, MARGIN_MOST, MARGIN_MOST);
	if (r->history_len < 1 || r->history_len > HISTORY_MOST)
		return te__fail(-EINVAL, "%s: recipe: history_len %d is outside 1..%d", fn,
				(int)r->history_len, HISTORY_MOST);
	if (r->algo != TE_AMAX_MAX && r->algo != TE_AMAX_MOST_RECENT)
		return te__fail(-EINVAL, "%s: recipe: amax algorithm %d is unknown", fn,
				(int)r->algo);
	return 0;
}

static struct te__operand delayed_operand(const struct te_recipe *r, enum te__role role)
{
	const int e5m2 = role == TE__ROLE_GRADIENT && !(r->flags & TE_RECIPE_E4M3_ONLY);

	return (struct te__operand){ e5m2 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3, TE_SCALING_TENSOR, 0 };
}

static struct te__slot_words delayed_words(const struct te_recipe *r)
{
	return (struct te__slot_words){
		.nscale = 1,
		.namax = r->history_len,
		.saves_amax = 1,
	};
}

static int delayed_begin(const struct te__quantize *z, struct te_k_q *ret_q)
{
	te__quantize_by_slot(z, ret_q);
	if (!(z->flags & TE_QUANTIZE_NO_AMAX))
		ret_q->amax = te_quant_amax_ptr(z->quant, z->slot);
	return 0;
}

static int delayed_update(struct te_stream *stream, struct te_quant *q, int first, int count)
{
	const struct te_k_scale_delayed k = {
		.history = q->amax,
		.scale = q->scale,
		.fmt_max = q->fmt_max,
		.first = first,
		.count = count,
		.history_len = q->recipe.history_len,
		.most_recent = q->recipe.algo == TE_AMAX_MOST_RECENT,
		.margin_factor = ldexpf(1.0f, -q->recipe.margin),
	};

	return TE__LAUNCH(stream, SCALE_DELAYED, &k);
}

const struct te__recipe_ops te__recipe_delayed = {
	.name = "fp8-delayed",
	.kind = TE_RECIPE_DELAYED,
	.compute = TE_DTYPE_BF16,
	.flags = TE_RECIPE_POW2 | TE_RECIPE_E4M3_ONLY,
	.check = delayed_check,
	.operand = delayed_operand,
	.words = delayed_words,
	.begin = delayed_begin,
	.weights = TE__WEIGHTS_RECORD,
	.update = delayed_update,
};
