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

/* the same for interleaved pairs */
TE__SIMD_BODY void rotate_pairs_body(const float *restrict x, const float *restrict c,
				     const float *restrict s, int half, float *restrict y)
{
	for (int i = 0; i < half; i++) {
		y[2 * i] = x[2 * i] * c[i] - x[2 * i + 1] * s[i];
		y[2 * i + 1] = x[2 * i + 1] * c[i] + x[2 * i] * s[i];
	}
}
static TE__SIMD(void, rotate_pairs,
		(const float *x, const float *c, const float *s, int half, float *y),
		(x, c, s, half, y))

/* x and y have room for head_dim numbers; returns y of head h of row r, which may be x */
static const float *head(const struct te_k_rope *a, int64_t r, int64_t h, const float *c,
			 const float *s, float *x, float *y)
{
	te__h_load(a->dtype, a->x, (r * a->nheads + h) * a->head_dim, a->head_dim, x);
	if (h >= a->nrot)
		return x;
	(a->interleaved ? rotate_pairs : rotate)(x, c, s, a->head_dim / 2, y);
	return y;
}

static void angles(const struct te_k_rope *a, int64_t pos, float *cosine, float *sine)
{
	for (int i = 0; i < a->head_dim / 2; i++) {
		const float angle = (float)pos * a->inv_freq[i];

		cosine[i] = cosf(angle);
		sine[i] = a->inverse ? -sinf(angle) : sinf(angle);
	}
}

static void rope_row(const struct te_k_rope *a, int64_t r, const float *cosine, const float *sine)
{
	float x[2 * TE_K_ROPE_MAX_HALF], y[2 * TE_K_ROPE_MAX_HALF];

	for (int64_t h = 0; h < a->nheads; h++)
		te__h_store(a->dtype, a->y, (r * a->nheads + h) * a->head_dim, a->head_dim,
			    (float *)(uintptr_t)head(a, r, h, cosine, sine, x, y));
}

/* rows with positions of their own */
static void rope_rows(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_rope *a = arg;
	float cosine[TE_K_ROPE_MAX_HALF], sine[TE_K_ROPE_MAX_HALF];

	for (int64_t r = begin; r < end; r++) {
		angles(a, te_k_rope_position(a, r), cosine, sine);
		rope_row(a, r, cosine, sine);
	}
}

/* the angles of a position serve every row at that position */
static void rope_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_rope *a = arg;
	float cosine[TE_K_ROPE_MAX_HALF], sine[TE_K_ROPE_MAX_HALF];

	for (int64_t pos = begin; pos < end; pos++) {
		angles(a, pos, cosine, sine);
		for (int64_t r = pos; r < a->rows; r += a->seqlen)
			rope_row(a, r, cosine, sine);
	}
}

/* a chunk may begin and end within heads */
static void rope_chunk(const void *arg, int64_t r, int64_t c, int64_t n, float *v)
{
	const struct te_k_rope *a = arg;
	float cosine[TE_K_ROPE_MAX_HALF], sine[TE_K_ROPE_MAX_HALF];
	float x[2 * TE_K_ROPE_MAX_HALF], y[2 * TE_K_ROPE_MAX_HALF];

	angles(a, te_k_rope_position(a, r), cosine, sine);
	for (int64_t k = c, len; k < c + n; k += len) {
		const int64_t h = k / a->head_dim, at = k % a->head_dim;

		len = te__h_min(a->head_dim - at, c + n - k);
		memcpy(v + k - c, head(a, r, h, cosine, sine, x, y) + at,
		       (size_t)len * sizeof(*v));
	}
	if (a->y)
		te__h_store(a->dtype, a->y, r * a->nheads * a->head_dim + c, n, v);
	else
		te__h_round(a->dtype, n, v);
}

void te__h_rope(const struct te_k_rope *a)
{
	const int64_t positions = te__h_min(a->seqlen, a->rows);
	const int64_t cols = (int64_t)a->nheads * a->head_dim;

	if (te__h_noop(a->q.noop))
		return;
	if (a->q.row || a->q.col || a->q.amax)
		te__h_q_run(&a->q, a->rows, cols, rope_chunk, a);
	else if (a->position || a->first)
		te__k_for(a->rows, te__h_rows_grain(cols, 1), rope_rows, (void *)(uintptr_t)a);
	else
		te__k_for(positions, te__h_rows_grain(cols * (a->rows / positions), 1), rope_part,
			  (void *)(uintptr_t)a);
}
