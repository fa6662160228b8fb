/* scale.c - reference kernels: scales from amaxes, now and from a history. */
#include "config.h"

#include "kernels/ref.h"

#include <float.h>

static int no_scale_from(float amax)
{
	return amax == 0.0f || !isfinite(amax);
}

static float scale_from(float most, float amax)
{
	float s = most / amax;

	return isinf(s) ? FLT_MAX : s;
}

float te__h_scale(float amax, float fmt_max, float epsilon, int pow2)
{
	const float a = amax < epsilon ? epsilon : amax;
	const float s = no_scale_from(a) ? 1.0f : scale_from(fmt_max, a);

	return pow2 ? te__f32_from_bits(te__f32_bits(s) & 0x7f800000u) : s;
}

/*
 * fmt_max is 1.75 2^e, so amax / fmt_max is above 2^(its exponent) if amax has a larger mantissa.
 * In biased exponents, as E8M0 has them; E4M3 has e = 8, E5M2 15.
 */
float te__h_scale_mx(uint32_t bits, int32_t dtype)
{
	int32_t e = (int32_t)(bits >> 23) - (dtype == TE_DTYPE_E4M3 ? 8 : 15) +
		    ((bits & 0x007fffffu) > 0x00600000u);

	e = bits >= TE__F32_INF ? 254 : e > 0 ? e : 0;
	return te__f32_from_bits(e == 254 ? 0x00400000u : (uint32_t)(254 - e) << 23);
}

void te__h_scale_current(const struct te_k_scale_current *a)
{
	if (!te__h_noop(a->noop))
		*a->scale = te__h_scale(*a->amax, a->fmt_max, a->epsilon, a->pow2);
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
