/*
 * nvfp4.c - reference kernels of casts to E2M1, over bands of 16 rows of x: te_k_nvfp4_amax for the
 * amax of each copy, te_k_quantize for scales and codes.
 */
#include "config.h"

#include <float.h>

#include "kernels/philox.h"
#include "kernels/ref.h"
#include "kernels/team.h"

#define BLOCK TE_K_BLOCK_NV
#define WIDTH 128 /* columns of a band that are processed together */
#define NV_MAX 2688.0f /* 448 * 6 */

/* the scale of a copy, and its inverse */
struct level {
	float scale, inv;
};

/* what the threads of nvfp4_amax fold */
struct amaxes {
	const struct te_k_quantize *a;
	float row, col;
	uint32_t sum; /* bits of the elements */
};

struct cast {
	const struct te_k_quantize *a;
	struct level row, col;
	uint64_t seed;
};

/* the part of a band that is in work */
struct band {
	float x[BLOCK][WIDTH], t[BLOCK][WIDTH]; /* t: of the column-wise copy */
	float by[BLOCK][WIDTH]; /* factors to multiply elements with */
	uint32_t random[BLOCK][WIDTH];
	uint8_t code[BLOCK][WIDTH];
	uint32_t most[WIDTH];
};

/* ---- elements ---- */

/* the transform of each column of x */
TE__SIMD_BODY void transform_body(float (*x)[WIDTH], float (*t)[WIDTH])
{
	for (int i = 0; i < BLOCK; i++)
		for (int j = 0; j < WIDTH; j++)
			t[i][j] = TE_K_RHT_SIGNS >> i & 1 ? -x[i][j] : x[i][j];
	for (int d = 1; d < BLOCK; d *= 2)
		for (int i = 0; i < BLOCK; i++) {
			if (i & d)
				continue;
			for (int j = 0; j < WIDTH; j++) {
				const float a = t[i][j], b = t[i + d][j];

				t[i][j] = a + b;
				t[i + d][j] = a - b;
			}
		}
	for (int i = 0; i < BLOCK; i++)
		for (int j = 0; j < WIDTH; j++)
			t[i][j] *= 0.25f;
}
static TE__SIMD(void, transform, (float (*x)[WIDTH], float (*t)[WIDTH]), (x, t))

/* most[j] = bits of the largest |v[j]|, of a NaN if there is one */
TE__SIMD_BODY void most_each_body(const float *restrict v, uint32_t *restrict most)
{
	for (int j = 0; j < WIDTH; j++) {
		const int32_t a = (int32_t)(te__f32_bits(v[j]) & 0x7fffffffu);
		const int32_t m = (int32_t)most[j];

		most[j] = (uint32_t)(a > m ? a : m);
	}
}
static TE__SIMD(void, most_each, (const float *v, uint32_t *most), (v, most))

TE__SIMD_BODY uint32_t sum_bits_body(const float *v, int64_t n)
{
	uint32_t sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += te__f32_bits(v[i]);
	return sum;
}
static TE__SIMD(uint32_t, sum_bits, (const float *v, int64_t n), (v, n))

TE__SIMD_BODY void encode_body(const float *restrict v, const float *restrict by,
			       uint8_t *restrict code)
{
	for (int j = 0; j < WIDTH; j++)
		code[j] = te__e2m1_encode(v[j] * by[j]);
}
static TE__SIMD(void, encode, (const float *v, const float *by, uint8_t *code), (v, by, code))

/*
 * E2M1 of v * by, rounded by a random number of 16 bits. Values are multiples of 1/2 up to 2, of 1
 * up to 4, and of 2 up to 6; codes 0, 2 and 4 begin these ranges, counted in steps from 0.
 */
TE__SIMD_BODY void encode_random_body(const float *restrict v, const float *restrict by,
				      const uint32_t *restrict random, uint8_t *restrict code)
{
	for (int j = 0; j < WIDTH; j++) {
		const uint32_t u = te__f32_bits(v[j] * by[j]), bits = u & 0x7fffffffu;
		const float z = te__f32_from_bits(bits < 0x40c00000u ? bits : 0x40c00000u);
		const float steps = z < 2.0f ? 2.0f : z < 4.0f ? 1.0f : 0.5f;
		const uint32_t first = z < 2.0f ? 0 : z < 4.0f ? 2 : 4;
		const uint32_t fixed = (uint32_t)(int32_t)(z * steps * 0x1p16f);
		const uint32_t c = first + ((fixed + random[j]) >> 16);

		code[j] = (uint8_t)(bits > TE__F32_INF ? 0 : c | (u >> 28 & 8));
	}
}
static TE__SIMD(void, encode_random,
		(const float *v, const float *by, const uint32_t *random, uint8_t *code),
		(v, by, random, code))

/* ---- blocks ---- */

static struct level level_of(float amax, float epsilon)
{
	const float scale = te__h_scale(amax, NV_MAX, epsilon, 0);

	return (struct level){ scale, 1.0f / scale };
}

/* the scale byte of a block whose largest element has these bits, and the factor of its elements */
static uint8_t block_scale(struct level level, uint32_t most, float *ret_by)
{
	const uint8_t e = most > TE__F32_INF ?
				  0x7f :
				  te__e4m3_encode(te__f32_from_bits(most) / 6.0f * level.scale);
	const float by = 1.0f / (te__e4m3_decode(e) * level.inv);

	*ret_by = e == 0 || e == 0x7f ? 0.0f : by < FLT_MAX ? by : FLT_MAX;
	return e;
}

/* nc <= WIDTH columns of nr rows, then zeros */
static void load(const struct te_k_quantize *a, int64_t r0, int64_t nr, int64_t c0, int64_t nc,
		 struct band *b)
{
	for (int64_t i = 0; i < BLOCK; i++) {
		const int64_t n = i < nr ? nc : 0;

		if (n)
			te__h_quantize_chunk(a, r0 + i, c0, n, b->x[i]);
		memset(b->x[i] + n, 0, (size_t)(WIDTH - n) * sizeof(b->x[i][0]));
	}
}

/* ---- pass 1 ---- */

static void measure(void *arg, int64_t begin, int64_t end)
{
	struct amaxes *s = arg;
	const int turns = s->a->q.col && s->a->q.scaling == TE_K_SCALING_1X16;
	struct band *const b = te__k_take(sizeof(*b));
	uint32_t row = 0, col = 0, sum = 0;

	for (int64_t r = begin; r < end; r += BLOCK)
		for (int64_t c = 0; c < s->a->cols; c += WIDTH) {
			load(s->a, r, te__h_min(end - r, BLOCK), c,
			     te__h_min(s->a->cols - c, WIDTH), b);
			row = te__h_amax_bits(b->x[0], BLOCK * WIDTH, row);
			if (s->a->stochastic)
				sum += sum_bits(b->x[0], BLOCK * WIDTH);
			if (!turns)
				continue;
			transform(b->x, b->t);
			col = te__h_amax_bits(b->t[0], BLOCK * WIDTH, col);
		}
	te__k_give(b);
	te__h_amax_fold(&s->row, row);
	te__h_amax_fold(&s->col, turns ? col : row);
	__atomic_fetch_add(&s->sum, sum, __ATOMIC_RELAXED);
}

/* ---- pass 2 ---- */

/* the random numbers of n elements, a multiple of 8, from number at of a copy on, each stride words
 * after the one before */
static void draw(const struct cast *s, int64_t at, int64_t n, uint32_t col, uint32_t *to,
		 int64_t stride)
{
	for (int64_t i = 0; i < n; i += 8) {
		const uint64_t group = (uint64_t)(at + i) / 8;
		const struct te_philox p = te_philox(s->seed, (uint32_t)group,
						     (uint32_t)(group >> 32), col, 0);

		for (int k = 0; k < 8; k++)
			to[(i + k) * stride] = te_philox_lane(&p, k);
	}
}

static void encode_row(const struct cast *s, const float *v, struct band *b, int i)
{
	if (s->a->stochastic)
		encode_random(v, b->by[i], b->random[i], b->code[i]);
	else
		encode(v, b->by[i], b->code[i]);
}

static uint8_t *scale_at(float *scales, int32_t scaling, int64_t rows, int64_t cols, int64_t r,
			 int64_t c)
{
	return (uint8_t *)scales + te_k_scale_index(scaling, rows, cols, r, c);
}

/* the largest of each block of a row or, 16X16, of each square */
static uint32_t block_most(const float *v)
{
	uint32_t most = 0;

	for (int j = 0; j < BLOCK; j++) {
		const uint32_t a = te__f32_bits(v[j]) & 0x7fffffffu;

		most = a > most ? a : most;
	}
	return most;
}

static void cast_rows(const struct cast *s, int64_t r0, int64_t nr, int64_t c0, int64_t nc,
		      struct band *b)
{
	const struct te_k_quantize *a = s->a;

	for (int i = 0; i < nr; i++) {
		uint8_t *to = (uint8_t *)a->q.row + ((r0 + i) * a->cols + c0) / 2;

		for (int64_t j = 0; j < nc; j += BLOCK) {
			float by;

			*scale_at(a->q.scale_inv, a->q.scaling, a->rows, a->cols, r0 + i, c0 + j) =
				block_scale(s->row, block_most(b->x[i] + j), &by);
			for (int k = 0; k < BLOCK; k++)
				b->by[i][j + k] = by;
		}
		if (a->stochastic)
			draw(s, (r0 + i) * a->cols + c0, nc, 0, b->random[i], 1);
		encode_row(s, b->x[i], b, i);
		for (int64_t j = 0; j < nc; j += 2)
			to[j / 2] = (uint8_t)(b->code[i][j] | b->code[i][j + 1] << 4);
	}
}

/* the codes of the band, as 8 bytes of each row of the column-wise copy */
static void store_cols(const struct te_k_quantize *a, int64_t r0, int64_t c0, int64_t nc,
		       const struct band *b)
{
	for (int64_t j = 0; j < nc; j++) {
		uint8_t *to = (uint8_t *)a->q.col + ((c0 + j) * a->rows + r0) / 2;

		for (int i = 0; i < BLOCK; i += 2)
			to[i / 2] = (uint8_t)(b->code[i][j] | b->code[i + 1][j] << 4);
	}
}

static void cast_cols(const struct cast *s, int64_t r0, int64_t c0, int64_t nc, struct band *b)
{
	const struct te_k_quantize *a = s->a;

	transform(b->x, b->t);
	memset(b->most, 0, sizeof(b->most));
	for (int i = 0; i < BLOCK; i++)
		most_each(b->t[i], b->most);
	for (int64_t j = 0; j < nc; j++) {
		*scale_at(a->q.col_scale_inv, a->q.scaling, a->cols, a->rows, c0 + j, r0) =
			block_scale(s->col, b->most[j], &b->by[0][j]);
		if (a->stochastic)
			draw(s, (c0 + j) * a->rows + r0, BLOCK, 1, &b->random[0][j], WIDTH);
	}
	for (int i = 0; i < BLOCK; i++) {
		if (i)
			memcpy(b->by[i], b->by[0], sizeof(b->by[i]));
		encode_row(s, b->t[i], b, i);
	}
	store_cols(a, r0, c0, nc, b);
}

/* 16X16: both copies */
static void cast_squares(const struct cast *s, int64_t r0, int64_t nr, int64_t c0, int64_t nc,
			 struct band *b)
{
	const struct te_k_quantize *a = s->a;

	for (int64_t j = 0; j < nc; j += BLOCK) {
		uint32_t most = 0;
		uint8_t e;
		float by;

		for (int i = 0; i < BLOCK; i++) {
			const uint32_t m = block_most(b->x[i] + j);

			most = m > most ? m : most;
		}
		e = block_scale(s->row, most, &by);
		for (int i = 0; i < BLOCK; i++) {
			if (a->q.row && i < nr)
				*scale_at(a->q.scale_inv, a->q.scaling, a->rows, a->cols, r0 + i,
					  c0 + j) = e;
			if (a->q.col)
				*scale_at(a->q.col_scale_inv, a->q.scaling, a->cols, a->rows,
					  c0 + j + i, r0) = e;
			for (int k = 0; k < BLOCK; k++)
				b->by[i][j + k] = by;
		}
	}
	for (int i = 0; i < BLOCK; i++) {
		encode(b->x[i], b->by[i], b->code[i]);
		for (int64_t j = 0; a->q.row && i < nr && j < nc; j += 2)
			((uint8_t *)a->q.row)[((r0 + i) * a->cols + c0 + j) / 2] =
				(uint8_t)(b->code[i][j] | b->code[i][j + 1] << 4);
	}
	if (a->q.col)
		store_cols(a, r0, c0, nc, b);
}

static void cast_bands(void *arg, int64_t begin, int64_t end)
{
	const struct cast *s = arg;
	struct band *const b = te__k_take(sizeof(*b));

	memset(b, 0, sizeof(*b));
	for (int64_t r = begin; r < end; r += BLOCK)
		for (int64_t c = 0; c < s->a->cols; c += WIDTH) {
			const int64_t nr = te__h_min(end - r, BLOCK);
			const int64_t nc = te__h_min(s->a->cols - c, WIDTH);

			load(s->a, r, nr, c, nc, b);
			if (s->a->q.scaling == TE_K_SCALING_16X16) {
				cast_squares(s, r, nr, c, nc, b);
				continue;
			}
			if (s->a->q.row)
				cast_rows(s, r, nr, c, nc, b);
			if (s->a->q.col)
				cast_cols(s, r, c, nc, b);
		}
	te__k_give(b);
}

static int64_t grain_of(const struct te_k_quantize *a)
{
	return te__h_rows_grain(a->cols, BLOCK);
}

/* the words before the scales of a copy; NULL if it is not written */
static float *head_of(const void *copy, float *scales)
{
	return copy ? scales : NULL;
}

void te__h_nvfp4_begin(const struct te_k_quantize *a)
{
	float *const head[2] = { head_of(a->q.row, a->q.scale_inv),
				 head_of(a->q.col, a->q.col_scale_inv) };

	for (int i = 0; i < 2 && !te__h_noop(a->q.noop); i++)
		for (int w = TE_K_NV_AMAX; head[i] && w <= TE_K_NV_SUM; w++)
			head[i][w] = 0;
}

static void fold(float *head, float amax, const struct amaxes *s)
{
	const uint32_t sum = head ? te__f32_bits(head[TE_K_NV_SUM]) + s->sum : 0;

	if (!head)
		return;
	te__h_amax_fold(&head[TE_K_NV_AMAX], te__f32_bits(amax));
	te__h_amax_fold(&head[TE_K_NV_AMAX_X], te__f32_bits(s->row));
	memcpy(&head[TE_K_NV_SUM], &sum, sizeof(sum));
}

void te__h_nvfp4_amax(const struct te_k_quantize *a)
{
	struct amaxes s = { .a = a };

	if (te__h_noop(a->q.noop))
		return;
	te__k_for(a->rows, grain_of(a), measure, &s);
	fold(head_of(a->q.row, a->q.scale_inv), s.row, &s);
	fold(head_of(a->q.col, a->q.col_scale_inv), s.col, &s);
}

/* the scale of a copy, after the head zeros; returns the seed */
static uint64_t put_head(const struct te_k_quantize *a, float *head, int64_t rows, int64_t cols,
			 struct level *ret)
{
	const int64_t n = te_k_scale_nfloats(a->q.scaling, rows, cols);

	*ret = level_of(head[TE_K_NV_AMAX], a->q.epsilon);
	head[0] = ret->inv;
	memset(head + TE_K_NV_HEAD / 4, 0, (size_t)(n - TE_K_NV_HEAD / 4) * sizeof(*head));
	return te__f32_bits(head[TE_K_NV_AMAX_X]) |
	       (uint64_t)te__f32_bits(head[TE_K_NV_SUM]) << 32;
}

void te__h_quantize_nvfp4(const struct te_k_quantize *a)
{
	struct cast s = { .a = a };

	if (a->q.col)
		s.seed = put_head(a, a->q.col_scale_inv, a->cols, a->rows, &s.col);
	if (a->q.row)
		s.seed = put_head(a, a->q.scale_inv, a->rows, a->cols, &s.row);
	else
		s.row = s.col; /* for squares */
	te__k_for(a->rows, grain_of(a), cast_bands, &s);
}
