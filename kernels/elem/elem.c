/* elem.c - reference kernels: bias, add, scale, dropout, transpose, heads, random-number words. */
#include "config.h"

#include "kernels/philox.h"
#include "kernels/ref.h"
#include "kernels/team.h"

static void bias_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_bias_fwd *a = arg;
	float x[TE__H_CHUNK], bias[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, a->cols) {
		te__h_load(a->dtype, a->bias, c, len, bias);
		for (int64_t r = begin; r < end; r++) {
			te__h_load(a->dtype, a->x, r * a->cols + c, len, x);
			te__h_add_to(x, bias, len);
			te__h_store(a->dtype, a->y, r * a->cols + c, len, x);
		}
	}
}

void te__h_bias_fwd(const struct te_k_bias_fwd *a)
{
	te__k_for(a->rows, te__h_rows_grain(a->cols, 1), bias_part, (void *)(uintptr_t)a);
}

static void add_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_add *a = arg;
	float x[TE__H_CHUNK], y[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, end - begin) {
		te__h_load(a->dtype, a->a, begin + c, len, x);
		te__h_load(a->dtype, a->b, begin + c, len, y);
		te__h_add_to(x, y, len);
		te__h_store(a->dtype, a->y, begin + c, len, x);
	}
}

void te__h_add(const struct te_k_add *a)
{
	te__k_for(a->n, TE__H_GRAIN, add_part, (void *)(uintptr_t)a);
}

static void scale_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_scaled *a = arg;
	float x[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, end - begin) {
		te__h_load(a->dtype, a->x, begin + c, len, x);
		te__h_scale_by(x, a->factor, len);
		te__h_store(a->dtype, a->y, begin + c, len, x);
	}
}

void te__h_scaled(const struct te_k_scaled *a)
{
	te__k_for(a->n, TE__H_GRAIN, scale_part, (void *)(uintptr_t)a);
}

/* v: 8 elements of each of n groups from first on; draws of 16 groups at a time are vectors */
TE__SIMD_BODY void drop_body(float *restrict v, uint64_t seed, uint64_t offset, uint32_t tag,
			     uint32_t threshold, float factor, uint64_t first, int64_t n)
{
	for (int64_t g0 = 0; g0 < n; g0 += 16) {
		struct te_philox r[16];
		const int ng = (int)te__h_min(n - g0, 16);

		for (int g = 0; g < 16; g++)
			r[g] = te_philox_flat(seed, offset, tag, first + (uint64_t)(g0 + g));
		for (int g = 0; g < ng; g++)
			for (int i = 0; i < 8; i++) {
				float *x = v + 8 * (g0 + g) + i;

				*x = te_philox_lane(&r[g], i) >= threshold ? *x * factor : 0.0f;
			}
	}
}
static TE__SIMD(void, drop,
		(float *v, uint64_t seed, uint64_t offset, uint32_t tag, uint32_t threshold,
		 float factor, uint64_t first, int64_t n),
		(v, seed, offset, tag, threshold, factor, first, n))

static void dropout_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_dropout *a = arg;
	const float factor = 65536.0f / (float)(65536 - a->threshold);
	float x[TE__H_CHUNK] = { 0 };

	TE__H_CHUNKS(c, len, end - begin) {
		const int64_t group = (begin + c) / 8, n = (len + 7) / 8, run = a->run / 8;

		te__h_load(a->dtype, a->x, begin + c, len, x);
		/* numbers of groups are consecutive up to the end of a run */
		for (int64_t g = 0, k; g < n; g += k) {
			k = run ? te__h_min(n - g, run - (group + g) % run) : n;
			drop(x + 8 * g, *a->seed, *a->offset, a->tag, a->threshold, factor,
			     te_k_dropout_group(a, (uint64_t)(group + g)), k);
		}
		te__h_store(a->dtype, a->y, begin + c, len, x);
	}
}

void te__h_dropout(const struct te_k_dropout *a)
{
	te__k_for(a->n, TE__H_GRAIN, dropout_part, (void *)(uintptr_t)a);
}

/* rows begin to end - 1 of y, in squares that fit into a cache */
#define SQUARE 64
#define TURN(type)                                                                            \
	static void turn_##type(void *arg, int64_t begin, int64_t end)                        \
	{                                                                                     \
		const struct te_k_transpose *a = arg;                                         \
		const type *x = a->x;                                                         \
		type *y = a->y;                                                               \
                                                                                              \
		for (int64_t c0 = begin; c0 < end; c0 += SQUARE)                              \
			for (int64_t r0 = 0; r0 < a->rows; r0 += SQUARE)                      \
				for (int64_t c = c0; c < te__h_min(c0 + SQUARE, end); c++)    \
					for (int64_t r = r0;                                  \
					     r < te__h_min(r0 + SQUARE, a->rows); r++)        \
						y[c * a->rows + r] = x[r * a->cols + c];      \
	}
TURN(uint8_t)
TURN(uint16_t)
TURN(uint32_t)
#undef TURN

void te__h_transpose(const struct te_k_transpose *a)
{
	if (te__h_noop(a->noop))
		return;
	te__k_for(a->cols, te__h_rows_grain(a->rows, SQUARE),
		  a->elem == 1 ? turn_uint8_t : a->elem == 2 ? turn_uint16_t : turn_uint32_t,
		  (void *)(uintptr_t)a);
	if (a->scale_inv)
		*a->y_scale_inv = *a->scale_inv;
}

static int64_t heads_of_token(const struct te_k_heads *a)
{
	return a->nheads + 2 * a->nkv;
}

/* the parts of the sequence of a row of tokens */
static char *heads_parts(const struct te_k_heads *a, int64_t row)
{
	return (char *)a->parts + row / a->ntokens * a->nranks * te_k_heads_part(a) *
					  (int64_t)te_dtype_nbytes((enum te_dtype)a->dtype);
}

static void split_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_heads *a = arg;
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)a->dtype);
	const int64_t n = a->head_dim * es, next = te_k_heads_part(a) * es;
	const char *from = (const char *)a->tokens + begin * heads_of_token(a) * n;

	for (int64_t row = begin; row < end; row++)
		for (int32_t h = 0; h < heads_of_token(a); h++, from += n) {
			char *to = heads_parts(a, row) + te_k_heads_at(a, row % a->ntokens, h) * es;

			memcpy(to, from, (size_t)n);
			for (int32_t k = 1; h >= a->nheads && k < te_k_heads_sharers(a); k++)
				memcpy(to + k * next, from, (size_t)n);
		}
}

void te__h_heads_split(const struct te_k_heads *a)
{
	te__k_for(a->nseqs * a->ntokens, te__h_rows_grain(heads_of_token(a) * a->head_dim, 1),
		  split_part, (void *)(uintptr_t)a);
}

/* to = the sum of all ranks' parts of a head; from: the first one */
static void join_shared(const struct te_k_heads *a, char *to, const char *from)
{
	float sum[TE__H_CHUNK], x[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, a->head_dim) {
		te__h_load(a->dtype, from, c, len, sum);
		for (int32_t k = 1; k < te_k_heads_sharers(a); k++) {
			te__h_load(a->dtype, from, k * te_k_heads_part(a) + c, len, x);
			te__h_add_to(sum, x, len);
		}
		te__h_store(a->dtype, to, c, len, sum);
	}
}

static void join_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_heads *a = arg;
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)a->dtype);
	const int64_t n = a->head_dim * es;
	char *to = (char *)a->tokens + begin * heads_of_token(a) * n;

	for (int64_t row = begin; row < end; row++)
		for (int32_t h = 0; h < heads_of_token(a); h++, to += n) {
			const char *from = heads_parts(a, row) +
					   te_k_heads_at(a, row % a->ntokens, h) * es;

			if (h < a->nheads || te_k_heads_sharers(a) == 1)
				memcpy(to, from, (size_t)n);
			else
				join_shared(a, to, from);
		}
}

void te__h_heads_join(const struct te_k_heads *a)
{
	te__k_for(a->nseqs * a->ntokens, te__h_rows_grain(heads_of_token(a) * a->head_dim, 1),
		  join_part, (void *)(uintptr_t)a);
}

void te__h_rng_next(const struct te_k_rng_next *a)
{
	*a->used = *a->next + a->index;
	*a->next += a->advance;
}
