/* ref.c - shared by the reference kernels, see ref.h. */
#include "config.h"

#include "kernels/exp.h"
#include "kernels/optim/round.h"
#include "kernels/ref.h"
#include "kernels/team.h"

/* ---- conversions ---- */

TE__SIMD_BODY void te__h_load_body(int32_t dtype, const void *p, int64_t off, int64_t n,
				   float *restrict v)
{
	const uint16_t *restrict h = (const uint16_t *)p + off;
	const struct te_k_split *s;

	switch (dtype) {
	case TE_DTYPE_BF16:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__bf16_decode(h[i]);
		break;
	case TE_DTYPE_FP16:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__fp16_decode(h[i]);
		break;
	case TE_K_DTYPE_SPLIT:
		s = p;
		for (int64_t i = 0; i < n; i++)
			v[i] = te_round_join(s->upper[off + i], s->rest ? s->rest[off + i] : 0);
		break;
	default:
		memcpy(v, (const float *)p + off, (size_t)n * sizeof(*v));
	}
}
TE__SIMD(void, te__h_load, (int32_t dtype, const void *p, int64_t off, int64_t n, float *v),
	 (dtype, p, off, n, v))

TE__SIMD_BODY void te__h_store_body(int32_t dtype, void *p, int64_t off, int64_t n,
				    float *restrict v)
{
	uint16_t *restrict h = (uint16_t *)p + off;

	switch (dtype) {
	case TE_DTYPE_BF16:
		for (int64_t i = 0; i < n; i++) {
			const uint16_t c = te__bf16_encode(v[i]);

			h[i] = c;
			v[i] = te__bf16_decode(c);
		}
		break;
	case TE_DTYPE_FP16:
		for (int64_t i = 0; i < n; i++) {
			const uint16_t c = te__fp16_encode(v[i]);

			h[i] = c;
			v[i] = te__fp16_decode(c);
		}
		break;
	default:
		memcpy((float *)p + off, v, (size_t)n * sizeof(*v));
	}
}
TE__SIMD(void, te__h_store, (int32_t dtype, void *p, int64_t off, int64_t n, float *v),
	 (dtype, p, off, n, v))

TE__SIMD_BODY void te__h_round_body(int32_t dtype, int64_t n, float *v)
{
	switch (dtype) {
	case TE_DTYPE_BF16:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__bf16_decode(te__bf16_encode(v[i]));
		break;
	case TE_DTYPE_FP16:
		for (int64_t i = 0; i < n; i++)
			v[i] = te__fp16_decode(te__fp16_encode(v[i]));
		break;
	}
}
TE__SIMD(void, te__h_round, (int32_t dtype, int64_t n, float *v), (dtype, n, v))

TE__SIMD_BODY void te__h_encode_body(int32_t dtype, const float *restrict v, float scale,
				     int64_t n, uint8_t *restrict code)
{
	if (dtype == TE_DTYPE_E4M3)
		for (int64_t i = 0; i < n; i++)
			code[i] = te__e4m3_encode(v[i] * scale);
	else
		for (int64_t i = 0; i < n; i++)
			code[i] = te__e5m2_encode(v[i] * scale);
}
TE__SIMD(void, te__h_encode,
	 (int32_t dtype, const float *v, float scale, int64_t n, uint8_t *code),
	 (dtype, v, scale, n, code))

/* with a scale for each element */
TE__SIMD_BODY void encode_each_body(int32_t dtype, const float *restrict v,
				    const float *restrict scale, int64_t n, uint8_t *restrict code)
{
	if (dtype == TE_DTYPE_E4M3)
		for (int64_t i = 0; i < n; i++)
			code[i] = te__e4m3_encode(v[i] * scale[i]);
	else
		for (int64_t i = 0; i < n; i++)
			code[i] = te__e5m2_encode(v[i] * scale[i]);
}
static TE__SIMD(void, encode_each,
		(int32_t dtype, const float *v, const float *scale, int64_t n, uint8_t *code),
		(dtype, v, scale, n, code))

TE__SIMD_BODY void te__h_decode_body(int32_t dtype, const uint8_t *restrict code, float scale,
				     int64_t n, float *restrict v)
{
	if (dtype == TE_DTYPE_E4M3)
		for (int64_t i = 0; i < n; i++)
			v[i] = te__e4m3_decode(code[i]) * scale;
	else if (dtype == TE_DTYPE_E2M1)
		for (int64_t i = 0; i < n; i++)
			v[i] = te__e2m1_decode((uint32_t)code[i / 2] >> i % 2 * 4) * scale;
	else
		for (int64_t i = 0; i < n; i++)
			v[i] = te__e5m2_decode(code[i]) * scale;
}
TE__SIMD(void, te__h_decode,
	 (int32_t dtype, const uint8_t *code, float scale, int64_t n, float *v),
	 (dtype, code, scale, n, v))

/* ---- elementwise ---- */

TE__SIMD_BODY void te__h_multiply_body(float *restrict v, const float *restrict by, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		v[i] *= by[i];
}
TE__SIMD(void, te__h_multiply, (float *v, const float *by, int64_t n), (v, by, n))

TE__SIMD_BODY void te__h_scale_by_body(float *v, float by, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		v[i] *= by;
}
TE__SIMD(void, te__h_scale_by, (float *v, float by, int64_t n), (v, by, n))

TE__SIMD_BODY void te__h_add_to_body(float *restrict v, const float *restrict by, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		v[i] += by[i];
}
TE__SIMD(void, te__h_add_to, (float *v, const float *by, int64_t n), (v, by, n))

void te__h_add_at(int32_t dtype, void *p, int64_t off, int64_t n, const float *by)
{
	float buf[TE__H_CHUNK];

	if (dtype == TE_DTYPE_FP32) {
		te__h_add_to((float *)p + off, by, n);
		return;
	}
	TE__H_CHUNKS(i, len, n) {
		te__h_load(dtype, p, off + i, len, buf);
		te__h_add_to(buf, by + i, len);
		te__h_store(dtype, p, off + i, len, buf);
	}
}

TE__SIMD_BODY void te__h_exp_body(float *v, float most, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		v[i] = te__expf(v[i] - most);
}
TE__SIMD(void, te__h_exp, (float *v, float most, int64_t n), (v, most, n))

/* ---- sums and maxima ---- */

#define LANES 16

/* the sum of lanes 0, 2, 4 ..., then of every fourth and so on: a tree */
TE__SIMD_BODY double lanes_sum(double *acc)
{
	for (int n = 1; n < LANES; n *= 2)
		for (int k = 0; k < LANES; k += 2 * n)
			acc[k] += acc[k + n];
	return acc[0];
}

/* EXPR is the term of element i */
#define SUM_BODY(EXPR)                                     \
	double acc[LANES] = { 0 };                         \
	int64_t i0 = 0;                                    \
                                                           \
	for (; i0 + LANES <= n; i0 += LANES)               \
		for (int k = 0; k < LANES; k++) {          \
			const int64_t i = i0 + k;          \
			acc[k] += (EXPR);                  \
		}                                          \
	for (int64_t i = i0; i < n; i++)                   \
		acc[i - i0] += (EXPR);                     \
	return lanes_sum(acc)

TE__SIMD_BODY double te__h_sum_body(const float *v, int64_t n)
{
	SUM_BODY((double)v[i]);
}
TE__SIMD(double, te__h_sum, (const float *v, int64_t n), (v, n))

TE__SIMD_BODY double te__h_dot_body(const float *a, const float *b, int64_t n)
{
	SUM_BODY((double)a[i] * (double)b[i]);
}
TE__SIMD(double, te__h_dot, (const float *a, const float *b, int64_t n), (a, b, n))

TE__SIMD_BODY double te__h_sumsq_about_body(const float *v, double mean, int64_t n)
{
	SUM_BODY(((double)v[i] - mean) * ((double)v[i] - mean));
}
TE__SIMD(double, te__h_sumsq_about, (const float *v, double mean, int64_t n), (v, mean, n))

TE__SIMD_BODY float te__h_max_body(const float *v, int64_t n, float m)
{
	float acc[LANES];
	int64_t i0 = 0;

	for (int k = 0; k < LANES; k++)
		acc[k] = m;
	for (; i0 + LANES <= n; i0 += LANES)
		for (int k = 0; k < LANES; k++)
			acc[k] = v[i0 + k] > acc[k] ? v[i0 + k] : acc[k];
	for (int64_t i = i0; i < n; i++)
		acc[i - i0] = v[i] > acc[i - i0] ? v[i] : acc[i - i0];
	for (int k = 0; k < LANES; k++)
		m = acc[k] > m ? acc[k] : m;
	return m;
}
TE__SIMD(float, te__h_max, (const float *v, int64_t n, float m), (v, n, m))

/* bits of |x|; signed, because SSE2 has no unsigned comparison; 0 of a NaN */
TE__SIMD_BODY int32_t abs_bits(float x)
{
	const int32_t a = (int32_t)(te__f32_bits(x) & 0x7fffffffu);

	return a > (int32_t)TE__F32_INF ? 0 : a;
}

TE__SIMD_BODY uint32_t te__h_amax_bits_body(const float *v, int64_t n, uint32_t m)
{
	int32_t most = (int32_t)m;

	for (int64_t i = 0; i < n; i++) {
		const int32_t a = abs_bits(v[i]);

		most = a > most ? a : most;
	}
	return (uint32_t)most;
}
TE__SIMD(uint32_t, te__h_amax_bits, (const float *v, int64_t n, uint32_t m), (v, n, m))

/* te__h_amax_bits() for each column: bits[i] = max(bits[i], bits of |v[i]|) */
TE__SIMD_BODY void amax_each_body(const float *restrict v, int64_t n, int32_t *restrict bits)
{
	for (int64_t i = 0; i < n; i++) {
		const int32_t a = abs_bits(v[i]);

		bits[i] = a > bits[i] ? a : bits[i];
	}
}
static TE__SIMD(void, amax_each, (const float *v, int64_t n, int32_t *bits), (v, n, bits))

void te__h_amax_fold(float *amax, uint32_t bits)
{
	uint32_t *word = (uint32_t *)(void *)amax;
	uint32_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

	while (old < bits && !__atomic_compare_exchange_n(word, &old, bits, 1, __ATOMIC_RELAXED,
							  __ATOMIC_RELAXED))
		;
}

/* ---- quantized side outputs ---- */

int64_t te__h_rows_grain(int64_t cols, int64_t height)
{
	return (TE__H_GRAIN / height / cols + 1) * height;
}

/* codes are transposed in squares of SQUARE rows and columns: a cache line each */
#define SQUARE 64

/* swaps, in each pair of rows that are far apart, bytes of the one and of the other */
TE__SIMD_BODY void swap_bytes(uint64_t (*x)[SQUARE / 8], int far, uint64_t mask)
{
	for (int r = 0; r < 8; r++) {
		if (r & far)
			continue;
		for (int k = 0; k < SQUARE / 8; k++) {
			const uint64_t t = (x[r][k] >> (8 * far) ^ x[r + far][k]) & mask;

			x[r + far][k] ^= t;
			x[r][k] ^= t << (8 * far);
		}
	}
}

/*
 * to[j * to_ld + i] = code[i * ld + j] of nr rows and nc columns, each at most SQUARE; code has
 * SQUARE rows and columns in any case. Eight rows at a time, as 8 x 8 squares of bytes, words of
 * eight bytes of a row: squares of 4, 2 and 1 bytes exchange places across the diagonal. Words are
 * little-endian.
 */
TE__SIMD_BODY void turn_body(const uint8_t *restrict code, int64_t ld, int64_t nr, int64_t nc,
			     uint8_t *restrict to, int64_t to_ld)
{
	uint64_t x[8][SQUARE / 8], t[SQUARE][SQUARE / 8];

	for (int i = 0; i < SQUARE; i += 8) {
		for (int r = 0; r < 8; r++)
			memcpy(x[r], code + (i + r) * ld, SQUARE);
		swap_bytes(x, 4, 0x00000000ffffffff);
		swap_bytes(x, 2, 0x0000ffff0000ffff);
		swap_bytes(x, 1, 0x00ff00ff00ff00ff);
		for (int r = 0; r < 8; r++)
			for (int k = 0; k < SQUARE / 8; k++)
				t[8 * k + r][i / 8] = x[r][k];
	}
	if (nr == SQUARE)
		for (int64_t j = 0; j < nc; j++)
			memcpy(to + j * to_ld, t[j], SQUARE);
	else
		for (int64_t j = 0; j < nc; j++)
			memcpy(to + j * to_ld, t[j], (size_t)nr);
}
static TE__SIMD(void, turn,
		(const uint8_t *code, int64_t ld, int64_t nr, int64_t nc, uint8_t *to,
		 int64_t to_ld),
		(code, ld, nr, nc, to, to_ld))

/* data shared by the parts of a result */
struct run {
	const struct te_k_q *q;
	int64_t rows, cols;
	te__h_chunk_fn *fn;
	const void *a;
};

/* no copy, or only the row-wise one, with one scale */
static void run_rows(void *arg, int64_t begin, int64_t end)
{
	const struct run *s = arg;
	const struct te_k_q *q = s->q;
	float v[TE__H_CHUNK];
	uint32_t amax = 0;

	for (int64_t r = begin; r < end; r++)
		TE__H_CHUNKS(c, n, s->cols) {
			s->fn(s->a, r, c, n, v);
			if (q->amax)
				amax = te__h_amax_bits(v, n, amax);
			if (q->row)
				te__h_encode(q->dtype, v, *q->scale, n,
					     (uint8_t *)q->row + r * s->cols + c);
		}
	if (q->amax)
		te__h_amax_fold(q->amax, amax);
}

/* columns of codes that are transposed together; rows of them start in different cache sets */
#define BAND_COLS (8 * SQUARE)
#define BAND_LD (9 * SQUARE)

/* the column-wise copy too, one scale: bands of SQUARE rows */
static void run_bands(void *arg, int64_t begin, int64_t end)
{
	const struct run *s = arg;
	const struct te_k_q *q = s->q;
	uint8_t *const code = te__k_take(SQUARE * BAND_LD);
	float v[BAND_COLS];
	uint32_t amax = 0;

	memset(code, 0, SQUARE * BAND_LD);
	for (int64_t r0 = begin; r0 < end; r0 += SQUARE)
		for (int64_t c0 = 0; c0 < s->cols; c0 += BAND_COLS) {
			const int64_t nr = te__h_min(end - r0, SQUARE);
			const int64_t nc = te__h_min(s->cols - c0, BAND_COLS);
			uint8_t *col = (uint8_t *)q->col + c0 * s->rows + r0;

			for (int64_t i = 0; i < nr; i++) {
				uint8_t *row = code + i * BAND_LD;

				s->fn(s->a, r0 + i, c0, nc, v);
				if (q->amax)
					amax = te__h_amax_bits(v, nc, amax);
				te__h_encode(q->dtype, v, *q->scale, nc, row);
				if (q->row)
					memcpy((uint8_t *)q->row + (r0 + i) * s->cols + c0, row,
					       (size_t)nc);
			}
			for (int64_t j = 0; j < nc; j += SQUARE)
				turn(code + j, BAND_LD, nr, te__h_min(nc - j, SQUARE),
				     col + j * s->rows, s->rows);
		}
	te__k_give(code);
	if (q->amax)
		te__h_amax_fold(q->amax, amax);
}

#define PARTS (TE_K_BLOCK / TE_K_BLOCK_MX)

/* a tile of a result with block scaling */
struct tile {
	float v[TE_K_BLOCK][TE_K_BLOCK];
	/* scales of te_k_scale_width() columns of a row, and rows of a column */
	float row[TE_K_BLOCK][PARTS], col[PARTS][TE_K_BLOCK];
};

/* the scale of a block whose amax has these bits */
static float block_scale(const struct te_k_q *q, uint32_t bits)
{
	const float fmt_max = q->dtype == TE_DTYPE_E4M3 ? 448.0f : 57344.0f;

	if (q->scaling == TE_K_SCALING_1X32)
		return te__h_scale_mx(bits, q->dtype);
	return te__h_scale(te__f32_from_bits(bits), fmt_max, q->epsilon, q->pow2);
}

/* the scales of the first nr rows and nc columns of the tile */
static void tile_scales(const struct te_k_q *q, int64_t nr, int64_t nc, struct tile *t)
{
	const int each = q->scaling != TE_K_SCALING_128X128;
	const int64_t width = te_k_scale_width(q->scaling);
	uint32_t row[TE_K_BLOCK][PARTS] = { { 0 } }, all = 0;
	int32_t col[PARTS][TE_K_BLOCK] = { { 0 } };
	float one;

	for (int64_t i = 0; i < nr; i++) {
		TE__H_EACH(c, n, nc, width) {
			uint32_t *bits = &row[i][c / width];

			*bits = te__h_amax_bits(t->v[i] + c, n, 0);
			all = *bits > all ? *bits : all;
		}
		if (each && q->col)
			amax_each(t->v[i], nc, col[i / width]);
	}
	one = block_scale(q, all);
	for (int64_t i = 0; i < TE_K_BLOCK; i++)
		for (int64_t p = 0; p < TE_K_BLOCK / width; p++) {
			t->row[i][p] = each ? block_scale(q, row[i][p]) : one;
			t->col[p][i] = each ? block_scale(q, (uint32_t)col[p][i]) : one;
		}
}

/* the row-wise copy of nr rows and nc columns at (r0, c0) */
static void tile_rows(const struct run *s, const struct tile *t, int64_t r0, int64_t c0,
		      int64_t nr, int64_t nc)
{
	const struct te_k_q *q = s->q;
	const int64_t width = te_k_scale_width(q->scaling);

	for (int64_t i = 0; i < nr; i++)
		TE__H_EACH(c, n, nc, width) {
			const float scale = t->row[i][c / width];

			te__h_encode(q->dtype, t->v[i] + c, scale, n,
				     (uint8_t *)q->row + (r0 + i) * s->cols + c0 + c);
			te__h_scale_put(q->scale_inv, q->scaling,
					te_k_scale_index(q->scaling, s->rows, s->cols, r0 + i,
							 c0 + c), 1.0f / scale);
		}
}

/* the column-wise copy */
static void tile_cols(const struct run *s, const struct tile *t, int64_t r0, int64_t c0,
		      int64_t nr, int64_t nc)
{
	const struct te_k_q *q = s->q;
	const int64_t width = te_k_scale_width(q->scaling);
	uint8_t code[SQUARE * SQUARE] = { 0 };

	for (int64_t i0 = 0; i0 < nr; i0 += SQUARE)
		for (int64_t j0 = 0; j0 < nc; j0 += SQUARE) {
			const int64_t ni = te__h_min(nr - i0, SQUARE);
			const int64_t nj = te__h_min(nc - j0, SQUARE);

			for (int64_t i = 0; i < ni; i++)
				encode_each(q->dtype, t->v[i0 + i] + j0,
					    t->col[(i0 + i) / width] + j0, nj, code + i * SQUARE);
			turn(code, SQUARE, ni, nj,
			     (uint8_t *)q->col + (c0 + j0) * s->rows + r0 + i0, s->rows);
		}
	for (int64_t j = 0; j < nc; j++)
		for (int64_t i = 0; i < nr; i += width)
			te__h_scale_put(q->col_scale_inv, q->scaling,
					te_k_scale_index(q->scaling, s->cols, s->rows, c0 + j,
							 r0 + i), 1.0f / t->col[i / width][j]);
}

/* block scaling: bands of TE_K_BLOCK rows */
static void run_blocks(void *arg, int64_t begin, int64_t end)
{
	const struct run *s = arg;
	struct tile *const t = te__k_take(sizeof(*t));

	for (int64_t r0 = begin; r0 < end; r0 += TE_K_BLOCK)
		for (int64_t c0 = 0; c0 < s->cols; c0 += TE_K_BLOCK) {
			const int64_t nr = te__h_min(end - r0, TE_K_BLOCK);
			const int64_t nc = te__h_min(s->cols - c0, TE_K_BLOCK);

			for (int64_t i = 0; i < nr; i++)
				s->fn(s->a, r0 + i, c0, nc, t->v[i]);
			tile_scales(s->q, nr, nc, t);
			if (s->q->row)
				tile_rows(s, t, r0, c0, nr, nc);
			if (s->q->col)
				tile_cols(s, t, r0, c0, nr, nc);
		}
	te__k_give(t);
}

/* the padding of the scales */
static void clear_scales(float *scale, int32_t scaling, int64_t rows, int64_t cols)
{
	memset(scale, 0, (size_t)te_k_scale_nfloats(scaling, rows, cols) * sizeof(*scale));
}

void te__h_q_run(const struct te_k_q *q, int64_t rows, int64_t cols, te__h_chunk_fn *fn,
		 const void *a)
{
	const int blocks = q->scaling != TE_K_SCALING_TENSOR;
	const int64_t height = blocks ? TE_K_BLOCK : SQUARE;
	struct run s = { q, rows, cols, fn, a };

	if (blocks && q->row)
		clear_scales(q->scale_inv, q->scaling, rows, cols);
	if (blocks && q->col)
		clear_scales(q->col_scale_inv, q->scaling, cols, rows);
	if (!blocks && (q->row || q->col))
		*q->scale_inv = 1.0f / *q->scale;
	te__k_for(rows, te__h_rows_grain(cols, height),
		  blocks ? run_blocks : q->col ? run_bands : run_rows, &s);
}

void te__h_quantize_chunk(const void *arg, int64_t r, int64_t c, int64_t n, float *v)
{
	const struct te_k_quantize *a = arg;
	const int64_t width = a->cols - a->pad_cols;
	const int64_t have = r < a->rows - a->pad_rows ? te__h_min(width - c, n) : 0;

	if (have > 0)
		te__h_load(a->dtype, a->x, r * width + c, have, v);
	for (int64_t i = have > 0 ? have : 0; i < n; i++)
		v[i] = 0.0f;
}
