/* rope.c - reference kernel: rotary position embedding. */
#include "config.h"

#include "kernels/ref.h"
#include "kernels/team.h"

/* y of one head, the angles' cosines and sines being c and s */
TE__SIMD_BODY void rotate_body(const float *restrict x, const float *restrict c,
			       const float *restrict s, int half, float *restrict y)
{
	for (int i = 0; i < half; i++) {
		y[i] = x[i] * c[i] - x[i + half] * s[i];
		y[i + half] = x[i + half] * c[i] + x[i] * s[i];
	}
}
static TE__SIMD(void, rotate,
		(const float *x, const float *c, const float *s, int half, float *y),
		(x, c, s, half, y))

static void row(const struct te_k_rope *a, int64_t r, const float *c, const float *s)
{
	const int64_t cols = (int64_t)a->nheads * a->head_dim;
	float x[2 * TE_K_ROPE_MAX_HALF], y[2 * TE_K_ROPE_MAX_HALF];

	for (int h = 0; h < a->nheads; h++) {
		const int64_t off = r * cols + (int64_t)h * a->head_dim;

		te__h_load(a->dtype, a->x, off, a->head_dim, x);
		if (h < a->nrot)
			rotate(x, c, s, a->head_dim / 2, y);
		te__h_store(a->dtype, a->y, off, a->head_dim, h < a->nrot ? y : x);
	}
}

/* the angles of a position serve every row at that position */
static void rope_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_rope *a = arg;
	float cosine[TE_K_ROPE_MAX_HALF], sine[TE_K_ROPE_MAX_HALF];

	for (int64_t pos = begin; pos < end; pos++) {
		for (int i = 0; i < a->head_dim / 2; i++) {
			const float angle = (float)pos * a->inv_freq[i];

			cosine[i] = cosf(angle);
			sine[i] = a->inverse ? -sinf(angle) : sinf(angle);
		}
		for (int64_t r = pos; r < a->rows; r += a->seqlen)
			row(a, r, cosine, sine);
	}
}

void te__h_rope(const struct te_k_rope *a)
{
	const int64_t positions = te__h_min(a->seqlen, a->rows);
	const int64_t cols = (int64_t)a->nheads * a->head_dim;

	te__k_for(positions, te__h_rows_grain(cols * (a->rows / positions), 1), rope_part,
		  (void *)(uintptr_t)a);
}
