/* weights.c - reference kernels: the compute copies of a set of weights. */
#include "config.h"

#include "kernels/ref.h"

void te__h_weights_changed(const struct te_k_weights_changed *a)
{
	++*a->version;
}

void te__h_weights_amax(const struct te_k_weights *a)
{
	if (te_k_weights_current(a))
		return;
	for (int32_t i = 0; i < a->n; i++) {
		const struct te_k_weight *w = &a->table[i];
		struct te_k_amax amax = {
			.x = a->masters + w->master,
			.n = w->rows * w->cols,
			.dtype = TE_DTYPE_FP32,
		};
		struct te_k_scale_current scale = {
			.fmt_max = a->fmt_max[w->dtype == TE_DTYPE_E5M2],
			.epsilon = a->epsilon,
			.pow2 = a->pow2,
		};

		if (w->hp >= 0)
			continue;
		amax.amax = a->amax + (int64_t)w->slot * a->window;
		scale.amax = amax.amax;
		scale.scale = a->scale + w->slot;
		*amax.amax = 0.0f;
		te__h_amax(&amax);
		te__h_scale_current(&scale);
	}
}

static void copy_codes(const struct te_k_weights *a, const struct te_k_weight *w)
{
	const struct te_k_quantize k = {
		.x = a->masters + w->master,
		.rows = w->rows,
		.cols = w->cols,
		.q = te_k_weight_q(a, w),
		.dtype = TE_DTYPE_FP32,
	};

	te__h_quantize(&k);
}

static void copy_bf16(const struct te_k_weights *a, const struct te_k_weight *w)
{
	const struct te_k_cast k = {
		.x = a->masters + w->master,
		.y = (char *)a->copies + w->hp,
		.n = w->rows * w->cols,
		.xdtype = TE_DTYPE_FP32,
		.ydtype = TE_DTYPE_BF16,
	};

	te__h_cast(&k);
}

void te__h_weights_cast(const struct te_k_weights *a)
{
	if (te_k_weights_current(a))
		return;
	for (int32_t i = 0; i < a->n; i++) {
		if (a->table[i].hp >= 0)
			copy_bf16(a, &a->table[i]);
		else
			copy_codes(a, &a->table[i]);
	}
	a->done->copies = *a->version;
	if (a->record)
		a->done->amax = *a->version;
}
