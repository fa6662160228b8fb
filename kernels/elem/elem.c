/* elem.c - reference kernels: bias, add, dropout, random-number words. */
#include "config.h"

#include "kernels/philox.h"
#include "kernels/ref.h"
#include "kernels/team.h"

void te__h_bias_fwd(const struct te_k_bias_fwd *a)
{
	float x[TE__H_CHUNK], bias[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, a->cols) {
		te__h_load(a->dtype, a->bias, c, len, bias);
		for (int64_t r = 0; r < a->rows; r++) {
			te__h_load(a->dtype, a->x, r * a->cols + c, len, x);
			for (int64_t i = 0; i < len; i++)
				x[i] += bias[i];
			te__h_store(a->dtype, a->y, r * a->cols + c, len, x);
		}
	}
}

/* elements of a part: a multiple of TE__H_CHUNK */
#define ADD_GRAIN (16 * TE__H_CHUNK)

static void add_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_add *a = arg;
	float x[TE__H_CHUNK], y[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, end - begin) {
		te__h_load(a->dtype, a->a, begin + c, len, x);
		te__h_load(a->dtype, a->b, begin + c, len, y);
		for (int64_t i = 0; i < len; i++)
			y[i] = x[i] + y[i];
		te__h_store(a->dtype, a->y, begin + c, len, y);
	}
}

void te__h_add(const struct te_k_add *a)
{
	te__k_for(a->n, ADD_GRAIN, add_part, (void *)(uintptr_t)a);
}

void te__h_dropout(const struct te_k_dropout *a)
{
	const float factor = 65536.0f / (float)(65536 - a->threshold);
	const uint64_t seed = *a->seed, offset = *a->offset;
	float x[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, a->n) {
		te__h_load(a->dtype, a->x, c, len, x);
		for (int64_t i0 = 0; i0 < len; i0 += 8) {
			const struct te_philox r =
				te_philox_flat(seed, offset, a->tag, (uint64_t)(c + i0) / 8);

			for (int i = 0; i < 8 && i0 + i < len; i++)
				x[i0 + i] = te_philox_lane(&r, i) >= a->threshold ?
						    x[i0 + i] * factor :
						    0.0f;
		}
		te__h_store(a->dtype, a->y, c, len, x);
	}
}

void te__h_rng_next(const struct te_k_rng_next *a)
{
	*a->used = *a->next;
	*a->next += 1;
}
