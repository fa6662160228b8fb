/* quant.c - reference kernels: amax, scales, FP8 casts both ways, casts of T. */
#include "config.h"

#include "libtecore/host/host.h"

#include <float.h>

void te__h_clear(const struct te_k_clear *a)
{
	if (!te__h_noop(a->noop))
		*a->word = 0.0f;
}

void te__h_fill(const struct te_k_fill *a)
{
	if (a->elem == 1) {
		memset(a->dst, (int)(a->value & 0xff), (size_t)a->n);
		return;
	}
	for (int64_t i = 0; i < a->n; i++)
		((uint32_t *)a->dst)[i] = a->value;
}

void te__h_amax(const struct te_k_amax *a)
{
	float v[TE__H_CHUNK];
	uint32_t m = 0;

	if (te__h_noop(a->noop))
		return;
	TE__H_CHUNKS(i, len, a->n) {
		te__h_load(a->dtype, a->x, i, len, v);
		m = te__h_amax_bits(v, len, m);
	}
	te__h_amax_fold(a->amax, m);
}

static int no_scale_from(float amax)
{
	return amax == 0.0f || !isfinite(amax);
}

static float scale_from(float most, float amax)
{
	float s = most / amax;

	return isinf(s) ? FLT_MAX : s;
}

void te__h_scale_current(const struct te_k_scale_current *a)
{
	float amax, s;

	if (te__h_noop(a->noop))
		return;
	amax = *a->amax < a->epsilon ? a->epsilon : *a->amax;
	s = no_scale_from(amax) ? 1.0f : scale_from(a->fmt_max, amax);
	if (a->pow2)
		s = te__f32_from_bits(te__f32_bits(s) & 0x7f800000u);
	*a->scale = s;
}

void te__h_scale_delayed(const struct te_k_scale_delayed *a)
{
	const int64_t len = a->history_len;

	for (int32_t slot = a->first; slot < a->first + a->count; slot++) {
		float *h = a->history + slot * len;
		const float newest = h[0];
		float amax = newest;

		if (newest == 0.0f)
			continue;
		if (!a->most_recent)
			for (int64_t i = 1; i < len; i++)
				amax = fmaxf(amax, h[i]);
		if (len > 1) {
			memmove(h + 1, h + 2, (size_t)(len - 2) * sizeof(*h));
			h[len - 1] = newest;
		}
		h[0] = 0.0f;
		if (!no_scale_from(amax))
			a->scale[slot] = scale_from(a->fmt_max[slot] * a->margin_factor, amax);
	}
}

void te__h_quantize(const struct te_k_quantize *a)
{
	float v[TE__H_CHUNK];
	struct te__h_q q;

	if (te__h_noop(a->q.noop))
		return;
	te__h_q_begin(&q, &a->q, a->rows, a->cols);
	for (int64_t r = 0; r < a->rows; r++)
		TE__H_CHUNKS(c, len, a->cols) {
			te__h_load(a->dtype, a->x, r * a->cols + c, len, v);
			te__h_q_put(&q, v, r, c, len);
		}
	te__h_q_end(&q);
}

void te__h_dequantize(const struct te_k_dequantize *a)
{
	const float *value = a->xdtype == TE_DTYPE_E4M3 ? te__e4m3_values : te__e5m2_values;
	const float scale_inv = *a->scale_inv;
	const uint8_t *x = a->x;
	float v[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, a->n) {
		for (int64_t i = 0; i < len; i++)
			v[i] = value[x[c + i]] * scale_inv;
		te__h_store(a->ydtype, a->y, c, len, v);
	}
}

void te__h_cast(const struct te_k_cast *a)
{
	float v[TE__H_CHUNK];

	if (te__h_noop(a->noop))
		return;
	TE__H_CHUNKS(c, len, a->n) {
		te__h_load(a->xdtype, a->x, c, len, v);
		te__h_store(a->ydtype, a->y, c, len, v);
	}
}
