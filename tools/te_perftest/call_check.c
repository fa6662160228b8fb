/* call_check.c - the references of --verify, see call.h: simple loops over images of memory. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/kernel.h>

#include "call.h"
#include "tools/lib/say.h"

#define NROWS 100     /* rows of a norm or an activation that are computed, and the last */
#define NPRODUCTS 500 /* elements of a GEMM: all of them take too long on a CPU */
#define NRESULTS 50   /* elements of attention */

int check_cast(const struct call *c, const uint8_t *got)
{
	const int64_t n = call_rows(c, 0) * call_cols(c, 0);
	int r = STATUS_OK;

	for (int64_t i = 0; i < n && !r; i++) {
		const float x = (float)call_element(c, c->host, 0, i);

		r = call_near(c, "y", i, call_element(c, got, 1, i),
			      te_bf16_decode(te_bf16_encode(x)), 0);
	}
	return r;
}

/* ---- quantize ---- */

/* a copy of y: row-wise, or turned, column-wise */
struct codes {
	const struct call *c;
	const uint8_t *code;
	const void *inv;
	int turned;
	int64_t rows, cols;
};

static float input(const struct codes *y, int64_t row, int64_t col)
{
	return (float)call_element(y->c, y->c->host, 0,
				   y->turned ? col * y->rows + row : row * y->cols + col);
}

/* A scale is 1 at first, of the current recipe 448 / amax, of a block the power of two below it */
static float scale_of(const struct codes *y, float amax)
{
	const float most = te_dtype_max(TE_DTYPE_E4M3);
	int exponent;

	if (!y->c->row.field[1].scaling)
		return !strcmp(y->c->recipe, "fp8-current") && amax > 0 ? most / amax : 1;
	frexpf(amax > 0 ? most / amax : 1, &exponent);
	return ldexpf(1, exponent - 1);
}

/* the scale-inverse of an element of a copy */
static double scale_inv(enum te_scaling s, const void *inv, int64_t rows, int64_t cols, int64_t row,
			int64_t col)
{
	const int64_t at = s ? te_scaling_index(s, rows, cols, row, col) : 0;

	if (s >= TE_SCALING_1X16)
		return (double)*(const float *)inv *
		       te_fp8_decode(TE_DTYPE_E4M3, ((const uint8_t *)inv)[at]);
	return s == TE_SCALING_1X32 ? ldexp(1, ((const uint8_t *)inv)[at] - 127) :
				      (double)((const float *)inv)[at];
}

static int check_block(const struct codes *y, int64_t row, int64_t col, int64_t height,
		       int64_t width)
{
	const enum te_scaling s = y->c->row.field[1].scaling;
	const int64_t end_row = row + height < y->rows ? row + height : y->rows;
	const int64_t end_col = col + width < y->cols ? col + width : y->cols;
	const char *const what = y->turned ? "the column-wise copy" : "the row-wise copy";
	float amax = 0, scale;
	int r;

	for (int64_t i = row; i < end_row; i++)
		for (int64_t k = col; k < end_col; k++)
			amax = fmaxf(amax, fabsf(input(y, i, k)));
	scale = scale_of(y, amax);
	r = call_near(y->c, y->turned ? "column-wise scale-inverses" : "row-wise scale-inverses",
		      row * y->cols + col,
		      scale_inv(s, y->inv, y->rows, y->cols, row, col), (double)(1 / scale), 0);
	for (int64_t i = row; i < end_row && !r; i++)
		for (int64_t k = col; k < end_col && !r; k++)
			r = call_near(y->c, what, i * y->cols + k, y->code[i * y->cols + k],
				      te_fp8_encode(TE_DTYPE_E4M3, input(y, i, k) * scale), 0);
	return r;
}

/*
 * Nvfp4: an element is off by half of the largest step of E2M1, 2, or with stochastic rounding by a
 * step, times its scale. The row-wise copy only: the column-wise one is of transformed columns.
 */
static int check_fp4(const struct call *c, const uint8_t *got)
{
	static const float value[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	const int64_t rows = call_rows(c, 1), cols = call_cols(c, 1);
	const enum te_scaling s = c->row.field[1].scaling;
	const uint8_t *code = got + c->part[1][0], *inv = got + c->part[1][2];
	const double steps = c->variant ? 1.001 : 0.5005;
	int r = STATUS_OK;
	float word;

	memcpy(&word, inv, sizeof(word));
	for (int64_t i = 0; i < rows * cols && !r; i++) {
		const int k = code[i / 2] >> i % 2 * 4 & 15;
		const uint8_t e = inv[te_scaling_index(s, rows, cols, i / cols, i % cols)];
		const double scale = (double)(te_fp8_decode(TE_DTYPE_E4M3, e) * word);
		const double v = (double)value[k & 7] * scale;

		r = call_near(c, "the row-wise copy", i, k & 8 ? -v : v,
			      (double)call_element(c, c->host, 0, i), 2 * steps * scale);
	}
	return r;
}

int check_quantize(const struct call *c, const uint8_t *got)
{
	const struct field *f = &c->row.field[1];
	const int64_t rows = call_rows(c, 1), cols = call_cols(c, 1);
	int r = STATUS_OK;

	if (f->dtype == TE_DTYPE_E2M1)
		return check_fp4(c, got);
	for (int turned = 0; turned <= !!(f->copies & TE_TENSOR_COLWISE); turned++) {
		const struct codes y = {
			c,
			got + c->part[1][turned],
			(const void *)(got + c->part[1][f->scaling && turned ? 3 : 2]),
			turned,
			turned ? cols : rows,
			turned ? rows : cols
		};
		const int64_t height = f->scaling == TE_SCALING_TENSOR	? y.rows :
				       f->scaling == TE_SCALING_128X128 ? 128 :
									  1;
		const int64_t width = f->scaling == TE_SCALING_TENSOR ? y.cols :
				      f->scaling == TE_SCALING_1X32   ? 32 :
									128;

		for (int64_t i = 0; i < y.rows && !r; i += height)
			for (int64_t k = 0; k < y.cols && !r; k += width)
				r = check_block(&y, i, k, height, width);
	}
	return r;
}

/* ---- norms and activations; some of their rows ---- */

/*
 * The result is rounded once to BF16. In FP32 each of the few sums of cols terms has an error of at
 * most cols 2^-24 times its size; the result has the same relative error.
 */
static int near_row(const struct call *c, const char *what, int64_t i, const uint8_t *got,
		    int field, double want, double size)
{
	const double bound =
		0x1p-8 * fabs(want) + 4 * (double)(c->extent[COLS] + 8) * 0x1p-24 * size;

	return call_near(c, what, i, call_element(c, got, field, i), want, bound);
}

/*
 * The reference, in FP64. With c = x less its mean (RMSNorm: x) and h = c / rms(c):
 * y = h gain + bias, and with g = gain dy, dx = (g - mean(g) - h mean(g h)) / rms(c)
 * where RMSNorm has no mean(g). Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019.
 */
static int check_norm_row(const struct call *c, int64_t row, const uint8_t *got)
{
	const int layernorm = c->variant, both = c->row.field[6].rows != NONE;
	const int64_t n = c->extent[COLS], at = row * n;
	const double cols = (double)n, eps = 1e-5;
	double mean = 0, square = 0, rstd, mean_g = 0, mean_gh = 0, most = 0, most_g = 0;
	int r = STATUS_OK;

	for (int64_t i = 0; i < n; i++) {
		const double x = call_element(c, c->host, 0, at + i);

		mean += layernorm ? x / cols : 0;
		most = fmax(most, fabs(x));
	}
	for (int64_t i = 0; i < n; i++)
		square += pow(call_element(c, c->host, 0, at + i) - mean, 2) / cols;
	rstd = 1 / sqrt(square + eps);
	most = 2 * most * rstd; /* no h is larger */
	for (int64_t i = 0; i < n && both; i++) {
		const double h = (call_element(c, c->host, 0, at + i) - mean) * rstd;
		const double g =
			call_element(c, c->host, 1, i) * call_element(c, c->host, 6, at + i);

		mean_g += layernorm ? g / cols : 0;
		mean_gh += g * h / cols;
		most_g = fmax(most_g, fabs(g));
	}
	for (int64_t i = 0; i < n && !r; i++) {
		const double h = (call_element(c, c->host, 0, at + i) - mean) * rstd;
		const double gain = call_element(c, c->host, 1, i);
		const double bias = layernorm ? call_element(c, c->host, 2, i) : 0;

		r = near_row(c, "y", at + i, got, 3, h * gain + bias,
			     most * fabs(gain) + fabs(bias));
		if (r || !both)
			continue;
		r = near_row(c, "dx", at + i, got, 7,
			     (gain * call_element(c, c->host, 6, at + i) - mean_g - h * mean_gh) *
				     rstd,
			     rstd * most_g * (2 + most * most));
	}
	return r;
}

/*
 * In FP64: y = x s(t), s(t) = 1 / (1 + exp(-t)), t = x for SiLU; for GELU t = 2 sqrt(2 / pi) (x +
 * 0.044715 x^3), the tanh form of Hendrycks and Gimpel 2016. dx = dy (s + x s (1 - s) t').
 */
static int check_act_row(const struct call *c, int64_t row, const uint8_t *got)
{
	const int both = c->row.field[2].rows != NONE;
	const int64_t n = c->extent[COLS];
	const double k = c->variant == TE_ACT_GELU ? 1.5957691216057308 : 1;
	const double cube = c->variant == TE_ACT_GELU ? 0.044715 : 0;
	int r = STATUS_OK;

	for (int64_t i = row * n; i < (row + 1) * n && !r; i++) {
		const double x = call_element(c, c->host, 0, i);
		const double s = 1 / (1 + exp(-k * (x + cube * x * x * x)));
		const double slope = k * (1 + 3 * cube * x * x);
		const double dy = both ? call_element(c, c->host, 2, i) : 0;

		r = near_row(c, "y", i, got, 1, x * s, fabs(x));
		if (!r && both)
			r = near_row(c, "dx", i, got, 3, dy * (s + x * s * (1 - s) * slope),
				     fabs(dy) * (1 + fabs(x) * slope));
	}
	return r;
}

static int check_rows(const struct call *c, const uint8_t *got,
		      int (*check)(const struct call *c, int64_t row, const uint8_t *got))
{
	const int64_t n = c->extent[ROWS];
	int r = STATUS_OK;

	for (int64_t i = 0; i < n && i < NROWS && !r; i++)
		r = check(c, i, got);
	return r ? r : check(c, n - 1, got);
}

int check_norm(const struct call *c, const uint8_t *got)
{
	return check_rows(c, got, check_norm_row);
}

int check_act(const struct call *c, const uint8_t *got)
{
	return check_rows(c, got, check_act_row);
}

/* ---- GEMMs and attention; elements at random places ---- */

/* element (row, col) of an operand */
static double operand(const struct call *c, int field, int64_t row, int64_t col)
{
	const enum te_scaling s = c->row.field[field].scaling;
	const void *inv = c->host + c->part[field][2];
	const int64_t rows = call_rows(c, field), cols = call_cols(c, field);
	const double x = call_element(c, c->host, field, row * cols + col);

	return s ? x * scale_inv(s, inv, rows, cols, row, col) : x;
}

/*
 * The reference: sums in FP64. In FP32 a sum of K products is off by at most
 * K 2^-24 sum|a||w|, twice that where a tensor core truncates; FP8 tensor cores add
 * with 14 bits, so a term loses up to 2^-13 of the largest. BF16 rounds by 2^-8 more.
 * t/ops/gemm_cases.c, which tests te_gemm, has the derivation.
 */
static int check_product(const struct call *c, int64_t row, int64_t col, const uint8_t *got)
{
	const int64_t n = c->extent[INNER], at = row * call_cols(c, 2) + col;
	double sum = 0, size = 0, bound;

	for (int64_t k = 0; k < n; k++) {
		const double p = operand(c, 0, row, k) * operand(c, 1, col, k);

		sum += p;
		size += fabs(p);
	}
	bound = (double)(n + 8) * 0x1p-23 * size;
	if (call_is_fp8(c->row.field[0].dtype))
		bound += 0x1p-13 * size;
	if (c->row.field[2].dtype == TE_DTYPE_BF16)
		bound += 0x1p-8 * fabs(sum);
	return call_near(c, "d", at, call_element(c, got, 2, at), sum, bound);
}

int check_gemm(const struct call *c, const uint8_t *got)
{
	uint64_t at[2];
	int r = STATUS_OK;

	for (int i = 0; i < NPRODUCTS && !r; i++) {
		bench_random(c->b, at, sizeof(at));
		r = check_product(c, (int64_t)(at[0] % (uint64_t)call_rows(c, 2)),
				  (int64_t)(at[1] % (uint64_t)call_cols(c, 2)), got);
	}
	return r;
}

/*
 * The reference: softmax(scale q k^T) v in FP64, of one row and channel; variant is the window. Its
 * error, with v = 2^-23: a score has one of v (d + 4) scale sum|q||k| + 8 v |s|, which its
 * probability has twice, with the error of the sum; probabilities and the result are rounded to
 * BF16.
 * t/kernels/attn_model.c, of the tests of the kernels, has the derivation.
 */
static int check_result(const struct call *c, int64_t seq, int64_t q, int64_t at, double *s,
			const uint8_t *got)
{
	const int64_t row = c->extent[QKV], nheads = c->extent[HEADS];
	const int64_t d = c->extent[HEADED] / nheads, nkv = (row / d - nheads) / 2;
	const int64_t h = at / d, begin = seq * c->extent[ROWS] * row;
	const int64_t query = begin + q * row + h * d;
	const int64_t key = begin + (nheads + h / (nheads / nkv)) * d;
	const int64_t place = (seq * c->extent[ROWS] + q) * nheads * d + at;
	const double v = 0x1p-23, w = c->row.field[1].dtype == TE_DTYPE_BF16 ? 0x1p-8 : 0;
	const double scale = (double)(1.0f / sqrtf((float)d));
	const int64_t document = c->document ? q - q % c->document : 0;
	const int64_t in_window = c->variant && q >= c->variant ? q - c->variant + 1 : 0;
	const int64_t first = document > in_window ? document : in_window;
	double most = -INFINITY, sum = 0, o = 0, size = 0, err = 0;

	for (int64_t k = first; k <= q; k++) {
		double dot = 0, mag = 0;

		for (int64_t i = 0; i < d; i++) {
			const double p = call_element(c, c->host, 0, query + i) *
					 call_element(c, c->host, 0, key + k * row + i);

			dot += p;
			mag += fabs(p);
		}
		s[k] = dot * scale;
		most = fmax(most, s[k]);
		err = fmax(err, v * ((double)(d + 4) * mag * scale + 8 * fabs(s[k])));
	}
	for (int64_t k = first; k <= q; k++) {
		const double p = exp(s[k] - most);
		const double x = call_element(c, c->host, 0, key + nkv * d + k * row + at % d);

		sum += p;
		o += p * x;
		size += p * fabs(x);
	}
	o /= sum;
	size /= sum;
	return call_near(c, "y", place, call_element(c, got, 1, place), o,
			 (2 * err + (double)(q + 32) * v + 0x1p-21 + w) * size + w * fabs(o) +
				 0x1p-126);
}

int check_attn(const struct call *c, const uint8_t *got)
{
	double *score = malloc((size_t)c->extent[ROWS] * sizeof(*score));
	uint64_t at[3];
	int r = score ? STATUS_OK : say_failed("out of memory");

	for (int i = 0; i < NRESULTS && !r; i++) {
		bench_random(c->b, at, sizeof(at));
		r = check_result(c, (int64_t)(at[0] % (uint64_t)c->batch),
				 (int64_t)(at[1] % (uint64_t)c->extent[ROWS]),
				 (int64_t)(at[2] % (uint64_t)c->extent[HEADED]), score, got);
	}
	free(score);
	return r;
}
