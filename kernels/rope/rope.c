/* rope.c - reference kernel: rotary position embedding. */
#include "config.h"

#include "kernels/ref.h"

void te__h_rope(const struct te_k_rope *a)
{
	const int64_t cols = (int64_t)a->nheads * a->head_dim;
	const int half = a->head_dim / 2;
	float cosine[TE_K_ROPE_MAX_HALF], sine[TE_K_ROPE_MAX_HALF];
	float x[2 * TE_K_ROPE_MAX_HALF], y[2 * TE_K_ROPE_MAX_HALF];

	/* the angles of a position serve every row at that position */
	for (int64_t pos = 0; pos < te__h_min(a->seqlen, a->rows); pos++) {
		for (int i = 0; i < half; i++) {
			const float angle = (float)pos * a->inv_freq[i];

			cosine[i] = cosf(angle);
			sine[i] = a->inverse ? -sinf(angle) : sinf(angle);
		}
		for (int64_t r = pos; r < a->rows; r += a->seqlen)
			for (int h = 0; h < a->nheads; h++) {
				const int64_t off = r * cols + (int64_t)h * a->head_dim;

				te__h_load(a->dtype, a->x, off, a->head_dim, x);
				if (h >= a->nrot) {
					te__h_store(a->dtype, a->y, off, a->head_dim, x);
					continue;
				}
				for (int i = 0; i < half; i++) {
					y[i] = x[i] * cosine[i] - x[i + half] * sine[i];
					y[i + half] = x[i + half] * cosine[i] + x[i] * sine[i];
				}
				te__h_store(a->dtype, a->y, off, a->head_dim, y);
			}
	}
}
