/*
 * t/ops/gemm_cases.c - te_gemm against FP64 loops, its repeatability and its errors.
 *
 * Bound: with u = 2^-24, a sum of K products in FP32, in any order, is off by at most
 * K u sum|a||b| to first order. The scales, alpha, beta and the bias add fewer than 8 more
 * roundings of the magnitude |s| sum|a||b| + |beta c| + |bias|; scales of blocks, which round each
 * factor, fewer than 10, and those of e2m1, which round it twice, fewer than 12. D rounds once
 * more: 2^-8 of the result in BF16, u in FP32; with a bias on a GPU before each addition too
 * (te/gemm.h). Tensor cores truncate, which doubles u. FP8 tensor cores add with 14 bits (see
 * t/ops/ops_gpu.c): each term loses up to 2^-13 of the largest, which is no more than sum|a||b|.
 * From TE_SCALING_1X32 on codes are multiplied as BF16, exactly.
 */
#include "config.h"

#include <math.h>

#include <te/ctx.h>
#include <te/dtype.h>
#include <te/errno.h>
#include <te/gemm.h>
#include <te/capture.h>
#include <te/stream.h>

#include "libtecore/tensor/ctx.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define TAIL 64 /* bytes of poison after D */

static const struct types {
	enum te_dtype a, b, d;
	enum te_scaling asc, bsc;
} types[] = {
	{ TE_DTYPE_FP32, TE_DTYPE_FP32, TE_DTYPE_FP32, 0, 0 },
	{ TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16, 0, 0 },
	{ TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32, 0, 0 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16, 0, 0 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_FP32, 0, 0 },
	{ TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_BF16, 0, 0 },
	{ TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_FP32, 0, 0 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_BF16, 0, 0 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_FP32, 0, 0 },
	/* a linear layer's forward pass, its two gradients */
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16, TE_SCALING_1X128, TE_SCALING_128X128 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_FP32, TE_SCALING_1X128, TE_SCALING_128X128 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_FP32, TE_SCALING_1X128, TE_SCALING_1X128 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16, TE_SCALING_1X128, TE_SCALING_1X128 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16, TE_SCALING_128X128, TE_SCALING_1X128 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16, TE_SCALING_1X32, TE_SCALING_1X32 },
	{ TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_FP32, TE_SCALING_1X32, TE_SCALING_1X32 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_BF16, TE_SCALING_1X32, TE_SCALING_1X32 },
	{ TE_DTYPE_E2M1, TE_DTYPE_E2M1, TE_DTYPE_BF16, TE_SCALING_1X16, TE_SCALING_16X16 },
	{ TE_DTYPE_E2M1, TE_DTYPE_E2M1, TE_DTYPE_FP32, TE_SCALING_1X16, TE_SCALING_1X16 },
};
#define BLOCK_TYPES 9 /* the first that are block-scaled */
#define NBLOCK_TYPES ((int)TT_LEN(types) - BLOCK_TYPES)

/* offset from a multiple of 256 bytes of all memory that needs no alignment */
static size_t off;

static void *upload(const void *src, size_t nbytes, size_t at)
{
	char *p;

	DO(te_mem_alloc(st, nbytes + at, (void **)&p));
	DO(te_copy(st, p + at, src, nbytes));
	DO(te_stream_sync(st));
	return p;
}

/* a matrix or vector: its values in FP64 by [rows, cols], and the tensor */
struct mat {
	double *v;
	void *mem;
	float *scale_inv; /* on the device */
	float scale;
	struct te_tensor *t;
};

static int is_codes(enum te_dtype dtype)
{
	return tt_is_fp8(dtype) || dtype == TE_DTYPE_E2M1;
}

/* the column-wise copy of e2m1 with 1x16 scaling is transformed: both operands are, or none */
static int multiplied(const struct types *ty, uint32_t flags)
{
	return ty->a != TE_DTYPE_E2M1 ||
	       (flags & TE_GEMM_A_T && ty->asc == TE_SCALING_1X16) ==
		       (flags & TE_GEMM_B_T && ty->bsc == TE_SCALING_1X16);
}

/* the same, of bytes: E8M0 from 2^-3 to 2^3, or after the word of the copy E4M3 from 1/8 to 7.5 */
static float *byte_scales(enum te_scaling scaling, int64_t rows, int64_t cols, double *v)
{
	const int64_t n = te_scaling_nfloats(scaling, rows, cols);
	const int mx = scaling == TE_SCALING_1X32;
	float *s = calloc((size_t)n, sizeof(*s)), *device;
	uint8_t *byte = (uint8_t *)s;

	if (!mx)
		s[0] = tt_rand_float(0.1f, 3.0f);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			uint8_t *at = &byte[te_scaling_index(scaling, rows, cols, r, c)];

			if (!*at)
				*at = (uint8_t)(mx ? tt_rand_int(124, 130) : tt_rand_int(32, 79));
			v[r * cols + c] *= mx ? ldexp(1, *at - 127) :
						(double)s[0] *
							(double)te_fp8_decode(TE_DTYPE_E4M3, *at);
		}
	device = upload(s, (size_t)n * sizeof(*s), 0);
	free(s);
	return device;
}

/* scales of a [rows, cols] copy, a power of two or not; its values are multiplied by them */
static float *block_scales(enum te_scaling scaling, int64_t rows, int64_t cols, double *v)
{
	const int64_t n = te_scaling_nfloats(scaling, rows, cols);
	float *s, *device;

	if (scaling >= TE_SCALING_1X32)
		return byte_scales(scaling, rows, cols, v);
	s = calloc((size_t)n, sizeof(*s));
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			float *word = &s[te_scaling_index(scaling, rows, cols, r, c)];

			if (*word == 0.0f)
				*word = tt_rand_int(0, 1) ? tt_rand_float(0.1f, 3.0f) :
							    ldexpf(1, (int)tt_rand_int(-3, 3));
			v[r * cols + c] *= (double)*word;
		}
	device = upload(s, (size_t)n * sizeof(*s), 0);
	free(s);
	return device;
}

/* element i of codes or others: what x is rounded to */
static double put(enum te_dtype dtype, void *p, int64_t i, float x)
{
	static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	uint8_t *byte = (uint8_t *)p + i / 2;
	int c = (int)tt_rand_int(0, 7);

	if (dtype == TE_DTYPE_E2M1) {
		*byte = (uint8_t)((*byte & 0xf0 >> i % 2 * 4) | (c | (x < 0) << 3) << i % 2 * 4);
		return (double)(x < 0 ? -e2m1[c] : e2m1[c]);
	}
	tt_set(dtype, p, i, x);
	return (double)tt_round(dtype, x);
}

/* stored [cols, rows] when flag; of FP8 only the copy that is K-major exists */
static struct mat mat_scaled(enum te_dtype dtype, int64_t rows, int64_t cols, int flag,
			     enum te_scaling scaling)
{
	int64_t shape[2] = { flag ? cols : rows, flag ? rows : cols }, n = rows * cols;
	struct mat m = { .v = malloc((size_t)n * sizeof(double)), .scale = 1.0f };
	size_t nbytes = te__nbytes_of(dtype, n);
	void *code = calloc(nbytes, 1), *p;
	int fp8 = is_codes(dtype);
	const size_t at = fp8 ? 0 : off;

	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			m.v[r * cols + c] = put(dtype, code,
						flag && !fp8 ? c * rows + r : r * cols + c,
						tt_rand_normal());
		}
	m.mem = upload(code, nbytes, at);
	p = (char *)m.mem + at;
	if (scaling) {
		m.scale_inv = block_scales(scaling, rows, cols, m.v);
	} else if (fp8) {
		m.scale = tt_rand_float(0.1f, 3.0f);
		m.scale_inv = upload(&m.scale, sizeof(m.scale), 0);
	}
	DO(te__tensor_wrap_scaled(ctx, dtype, 2, shape, fp8 && flag ? NULL : p,
				  fp8 && flag ? p : NULL, m.scale_inv, m.scale_inv, scaling, &m.t));
	free(code);
	return m;
}

static struct mat mat(enum te_dtype dtype, int64_t rows, int64_t cols, int flag)
{
	return mat_scaled(dtype, rows, cols, flag, TE_SCALING_TENSOR);
}

static void drop(struct mat *m)
{
	te_tensor_unref(m->t);
	if (m->scale_inv)
		DO(te_mem_free(st, m->scale_inv));
	DO(te_mem_free(st, m->mem));
	free(m->v);
}

/* D with a poisoned tail, at *ret_mem + off */
static struct te_tensor *output(enum te_dtype dtype, int64_t m, int64_t n, void **ret_mem)
{
	size_t nbytes = (size_t)(m * n) * te_dtype_nbytes(dtype) + TAIL;
	int64_t shape[2] = { m, n };
	struct te_tensor *t;

	DO(te_mem_alloc(st, nbytes + off, ret_mem));
	DO(te_fill(st, *ret_mem, 0xff, nbytes + off)); /* NaN in every type */
	DO(te_tensor_wrap(ctx, dtype, 2, shape, (char *)*ret_mem + off, NULL, NULL, &t));
	return t;
}

/* K is a multiple of 16 in FP8 */
static int64_t extent(int fp8)
{
	return fp8 ? 16 * tt_rand_int(1, 6) : tt_rand_int(1, 90);
}

/* rows of A, if is_a, or of B for so many rows or columns of D: in FP8 with padding */
static int64_t rows_for(const struct types *ty, int64_t n, int is_a)
{
	const int pads = is_codes(ty->a) && (!is_a || ty->asc || tt_rand_int(0, 1));

	return pads ? (n + 15) / 16 * 16 : n;
}

static void one(const struct types *ty, uint32_t flags, int beta, int bias, int64_t m, int64_t n,
		int64_t k)
{
	const int cuda = !strcmp(backend, "cuda"), mx = ty->asc >= TE_SCALING_1X32;
	struct mat a = mat_scaled(ty->a, rows_for(ty, m, 1), k, !!(flags & TE_GEMM_A_T), ty->asc);
	struct mat b = mat_scaled(ty->b, rows_for(ty, n, 0), k, !!(flags & TE_GEMM_B_T), ty->bsc);
	struct mat c = mat(ty->d, m, n, 0), v = mat(ty->d, 1, n, 0);
	const double u = ldexp(1, cuda ? -23 : -24);
	const double term = tt_is_fp8(ty->a) && cuda && !mx ? ldexp(1, -13) : u;
	size_t nbytes = (size_t)(m * n) * te_dtype_nbytes(ty->d);
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	unsigned char *got = malloc(nbytes + TAIL);
	struct te_tensor *d;
	void *mem;
	double s;

	d = output(ty->d, m, n, &mem);
	o.flags = flags;
	o.alpha = tt_rand_float(-2, 2);
	o.beta = beta ? tt_rand_float(-2, 2) : 0.0f;
	o.bias = bias ? v.t : NULL;
	if (beta == 1)
		DO(te_copy(st, te_tensor_data(d), te_tensor_data(c.t), nbytes)); /* C is D */
	else
		o.c = c.t; /* not read where beta is 0 */
	DO(te_gemm(st, a.t, b.t, d, &o));
	DO(te_copy(st, got, te_tensor_data(d), nbytes + TAIL));
	DO(te_stream_sync(st));
	s = (double)o.alpha * a.scale * b.scale;
	for (int64_t i = 0; i < m * n; i++) {
		const double *row = a.v + i / n * k, *col = b.v + i % n * k;
		double sum = 0, mag = 0, x, err, y;

		for (int64_t p = 0; p < k; p++) {
			x = row[p] * col[p];
			sum += x;
			mag += fabs(x);
		}
		mag *= fabs(s);
		err = (double)k * term * mag;
		x = s * sum;
		if (bias && cuda && ty->d == TE_DTYPE_BF16)
			err += (fabs(x) + err) * ldexp(1, -8);
		if (beta) {
			x += o.beta * c.v[i];
			mag += fabs(o.beta * c.v[i]);
		}
		if (bias) {
			if (cuda && ty->d == TE_DTYPE_BF16)
				err += (fabs(x) + err) * ldexp(1, -8);
			x += v.v[i % n];
			mag += fabs(v.v[i % n]);
		}
		err += (ty->a == TE_DTYPE_E2M1 ? 12 : ty->asc ? 10 : 8) * u * mag;
		err += (fabs(x) + err) * (ty->d == TE_DTYPE_BF16 ? ldexp(1, -8) : u);
		y = ty->d == TE_DTYPE_BF16 ? te_bf16_decode(((uint16_t *)got)[i]) :
					     ((float *)got)[i];
		ck_assert_msg(fabs(x - y) <= err,
			      "%s x %s, flags %u, beta %d, bias %d, [%d, %d] K %d: element %d is "
			      "%.9g, not %.9g within %.3g", te_dtype_name(ty->a),
			      te_dtype_name(ty->b), flags, beta, bias, (int)m, (int)n, (int)k,
			      (int)i, y, x, err);
	}
	for (int i = 0; i < TAIL; i++)
		ck_assert_msg(got[nbytes + (size_t)i] == 0xff, "writes after the end of D");
	te_tensor_unref(d);
	DO(te_mem_free(st, mem));
	drop(&a);
	drop(&b);
	drop(&c);
	drop(&v);
	free(got);
}

CTX_CASE(gemm, "gemm numeric");

TEST_EACH(gemm, agrees_with_fp64, TT_LEN(types))
{
	const int fp8 = is_codes(types[_i].a);

	for (uint32_t flags = 0; flags < 4; flags++)
		for (int e = 0; e < 6 && multiplied(&types[_i], flags); e++)
			one(&types[_i], flags, e % 3, e / 3, extent(fp8 && e % 2),
			    extent(fp8 && e / 2 % 2), extent(fp8));
}

static int64_t one_of(const int64_t *v, int n)
{
	return v[tt_rand_int(0, n - 1)];
}

/*
 * Shapes that libtecore has kernels for on a GPU, and neighbours of them; at odd addresses too, for
 * which cuBLASLt has nothing from FP8
 */
TEST_EACH(gemm, small_gemms_agree_with_fp64, TT_LEN(types), .parts = 3)
{
	static const int64_t few[] = { 1, 7, 8, 15, 16, 17, 33, 63, 64, 65 };
	static const int64_t cols[] = { 8, 24, 264, 1000 }, cols16[] = { 16, 48, 272, 1008 };
	static const int64_t depth[] = { 64, 128, 192, 256, 1024, 2112 };
	static const int64_t depth16[] = { 128, 144, 256, 1024, 2176 };
	static const int64_t rows[] = { 8, 40, 264 }, rows16[] = { 16, 48, 272 };
	static const int64_t tokens[] = { 1, 7, 31, 32, 64, 65, 100, 128, 129 };
	static const int64_t tokens16[] = { 16, 64, 128, 192 };
	const struct types *ty = &types[_i];
	const int fp8 = is_codes(ty->a);

#define PICK(a, b) (fp8 ? one_of(b, TT_LEN(b)) : one_of(a, TT_LEN(a)))
	for (int i = 0; i < TT_FEWER(12); i++) {
		const int beta = tt_rand_int(0, 2), bias = tt_rand_int(0, 1);

		off = i % 3 || fp8 ? 0 : te_dtype_nbytes(ty->d) * (size_t)tt_rand_int(1, 3);
		if (ty->d == TE_DTYPE_BF16)
			one(ty, i % 2 ? TE_GEMM_B_T : 0, beta, bias, one_of(few, TT_LEN(few)),
			    PICK(cols, cols16), PICK(depth, depth16));
		else
			one(ty, TE_GEMM_A_T | TE_GEMM_B_T, beta, bias && i % 4 == 0,
			    PICK(rows, rows16), PICK(cols, cols16), PICK(tokens, tokens16));
	}
#undef PICK
	/* cuBLASLt, which may run GEMMs with block scales, has none for unaligned D */
	off = ty->asc || ty->bsc ? 0 : te_dtype_nbytes(ty->d);
	if (ty->d == TE_DTYPE_BF16)
		one(ty, 0, 2, 1, 48, 272, 256);
	else
		one(ty, TE_GEMM_A_T | TE_GEMM_B_T, 2, 0, 48, 272, 64);
	off = 0;
}

/* element (r, c) of an operand [rows, k] is what is no number, or the scale of its block is NaN */
static void poison(const struct mat *m, enum te_dtype dtype, enum te_scaling scaling, int flag,
		   int64_t rows, int64_t k, int64_t r, int64_t c, float what)
{
	/* codes are stored K-major with any flag */
	const int64_t at = flag && !is_codes(dtype) ? c * rows + r : r * k + c;
	const uint8_t nan = scaling == TE_SCALING_1X32 ? 0xff : 0x7f;
	unsigned char code[4];

	if (dtype == TE_DTYPE_E2M1 || (scaling == TE_SCALING_1X32 && isinf(what))) {
		DO(te_copy(st, (char *)m->scale_inv + te_scaling_index(scaling, rows, k, r, c),
			   &nan, 1));
	} else {
		tt_set(dtype, code, 0, what);
		DO(te_copy(st, (char *)m->mem + at * (int64_t)te_dtype_nbytes(dtype), code,
			   te_dtype_nbytes(dtype)));
	}
	DO(te_stream_sync(st));
}

/* row 3 of A and row 5 of B hold what is no number: it reaches their row and column of D alone */
static void check_nans(const struct types *ty, uint32_t flags, float what)
{
	const int64_t m = 32, n = 48, k = 128;
	const int at = !!(flags & TE_GEMM_A_T), bt = !!(flags & TE_GEMM_B_T);
	const size_t nbytes = (size_t)(m * n) * te_dtype_nbytes(ty->d);
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	unsigned char *got = malloc(nbytes);
	struct te_tensor *d;
	struct mat a, b;
	void *mem;

	off = 0; /* also where the previous test failed in this process */
	a = mat_scaled(ty->a, m, k, at, ty->asc);
	b = mat_scaled(ty->b, n, k, bt, ty->bsc);
	poison(&a, ty->a, ty->asc, at, m, k, 3, 7, what);
	poison(&b, ty->b, ty->bsc, bt, n, k, 5, 9, what);
	d = output(ty->d, m, n, &mem);
	o.flags = flags;
	DO(te_gemm(st, a.t, b.t, d, &o));
	DO(te_copy(st, got, mem, nbytes));
	DO(te_stream_sync(st));
	for (int64_t i = 0; i < m * n; i++) {
		const float y = ty->d == TE_DTYPE_BF16 ? te_bf16_decode(((uint16_t *)got)[i]) :
							 ((float *)got)[i];

		ck_assert_msg(!isfinite(y) == (i / n == 3 || i % n == 5),
			      "%s by %s, flags %u, %g: element [%d, %d] is %g",
			      te_dtype_name(ty->a), te_dtype_name(ty->b), flags, (double)what,
			      (int)(i / n), (int)(i % n), (double)y);
	}
	te_tensor_unref(d);
	DO(te_mem_free(st, mem));
	drop(&a);
	drop(&b);
	free(got);
}

TEST_EACH(gemm, what_is_no_number_stays_in_its_row_and_column, TT_LEN(types))
{
	for (uint32_t flags = 0; flags < 4; flags++) {
		if (!multiplied(&types[_i], flags))
			continue;
		check_nans(&types[_i], flags, NAN);
		/* E4M3 has no infinity */
		if (!tt_is_fp8(types[_i].a) || types[_i].asc == TE_SCALING_1X32)
			check_nans(&types[_i], flags, INFINITY);
	}
}

TEST_EACH(gemm, gives_the_same_bits_again_and_captured, TT_LEN(types))
{
	const struct types *ty = &types[_i];
	int fp8 = is_codes(ty->a);
	int64_t m = extent(fp8), n = extent(fp8), k = extent(fp8);
	struct mat a = mat_scaled(ty->a, m, k, 0, ty->asc), b = mat_scaled(ty->b, n, k, 0, ty->bsc);
	size_t nbytes = (size_t)(m * n) * te_dtype_nbytes(ty->d);
	unsigned char *got[3];
	struct te_recording *rec;
	struct te_tensor *d;
	void *mem;

	d = output(ty->d, m, n, &mem);
	for (int i = 0; i < 3; i++) {
		got[i] = malloc(nbytes);
		DO(te_fill(st, mem, 0xff, nbytes));
		if (i == 2) {
			DO(te_capture_begin(st));
			DO(te_gemm(st, a.t, b.t, d, NULL));
			DO(te_capture_end(st, &rec));
			DO(te_recording_launch(rec, st));
		} else {
			DO(te_gemm(st, a.t, b.t, d, NULL));
		}
		DO(te_copy(st, got[i], mem, nbytes));
		DO(te_stream_sync(st));
	}
	ck_assert_msg(!memcmp(got[0], got[1], nbytes), "the second call differs");
	ck_assert_msg(!memcmp(got[0], got[2], nbytes), "the captured call differs");
	te_recording_unref(rec);
	te_tensor_unref(d);
	DO(te_mem_free(st, mem));
	drop(&a);
	drop(&b);
	for (int i = 0; i < 3; i++)
		free(got[i]);
}

/*
 * Numbers of blocks whose scales have padding, and K that ends within a block. cuBLASLt computes
 * wrong results without an error where the stride of 128x128 scales is not a multiple of 4.
 */
#define NDEPTHS 10
TEST_EACH(gemm, block_scales_of_any_depth, TT_FEWER(NDEPTHS) * NBLOCK_TYPES)
{
	static const int64_t depths[NDEPTHS] = { 400, 256, 128, 384, 512,
						 640, 768, 896, 144, 1136 };
	const struct types *ty = &types[BLOCK_TYPES + _i % NBLOCK_TYPES];
	const int64_t k = depths[_i / NBLOCK_TYPES];

	one(ty, 0, 0, 0, 272, 304, k);
	if (multiplied(ty, TE_GEMM_A_T | TE_GEMM_B_T))
		one(ty, TE_GEMM_A_T | TE_GEMM_B_T, 1, 0, 128, 384, k);
	if (multiplied(ty, TE_GEMM_B_T))
		one(ty, TE_GEMM_B_T, 0, 1, 48, 640, k);
	one(ty, 0, 2, 1, 139, 203, k);
}

/* in a capture, which becomes invalid */
static void refused(int code, const char *text, const struct te_tensor *a,
		    const struct te_tensor *b, struct te_tensor *d, const struct te_gemm_opts *o)
{
	struct te_recording *rec;
	int r;

	DO(te_capture_begin(st));
	r = te_gemm(st, a, b, d, o);
	ck_assert_int_eq(te_capture_end(st, &rec), r);
	ck_assert_msg(r == code, "%s: %d, not %d: %s", text, r, code, te_error_detail());
	ck_assert_msg(strstr(te_error_detail(), text) != NULL, "\"%s\" lacks \"%s\"",
		      te_error_detail(), text);
}

TEST(gemm, says_what_is_wrong)
{
	struct mat a = mat(TE_DTYPE_FP32, 3, 5, 0), b = mat(TE_DTYPE_FP32, 4, 5, 0);
	struct mat k6 = mat(TE_DTYPE_FP32, 4, 6, 0), d = mat(TE_DTYPE_FP32, 3, 4, 0);
	struct mat bf = mat(TE_DTYPE_BF16, 3, 5, 0), fp16 = { 0 };
	struct mat dbf = mat(TE_DTYPE_BF16, 3, 4, 0), sq = mat(TE_DTYPE_FP32, 4, 4, 0);
	struct mat x = mat(TE_DTYPE_E4M3, 16, 16, 0), y = mat(TE_DTYPE_E5M2, 16, 16, 0);
	struct mat odd = mat(TE_DTYPE_E4M3, 16, 24, 0), f = mat(TE_DTYPE_FP32, 16, 16, 0);
	struct mat f4 = mat(TE_DTYPE_FP32, 4, 4, 0);
	struct mat square = mat_scaled(TE_DTYPE_E4M3, 16, 16, 0, TE_SCALING_128X128);
	const int64_t shape16[2] = { 16, 16 };
	struct te_tensor *unaligned;
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	int64_t shape[2] = { 3, 5 };

	DO(te_tensor_create(ctx, TE_DTYPE_FP16, 2, shape, NULL, &fp16.t));
	refused(-EINVAL, "A is NULL", NULL, b.t, d.t, NULL);
	refused(-EINVAL, "D is NULL", a.t, b.t, NULL, NULL);
	refused(-TE_ESHAPE, "K differs", a.t, k6.t, d.t, NULL);
	refused(-TE_ESHAPE, "D is [4, 4]", a.t, b.t, sq.t, NULL);
	refused(-TE_EDTYPE, "A is bf16 and B is fp32", bf.t, b.t, d.t, NULL);
	refused(-TE_EDTYPE, "A is fp16", fp16.t, b.t, d.t, NULL);
	refused(-TE_EDTYPE, "D is bf16", a.t, b.t, dbf.t, NULL);
	refused(-TE_EDTYPE, "both e5m2", y.t, y.t, f.t, NULL);
	refused(-TE_ESHAPE, "FP8 needs rows of B and K in multiples of 16", odd.t, odd.t, f.t,
		NULL);
	refused(-EINVAL, "D is A", sq.t, f4.t, sq.t, NULL);
	o.flags = 4;
	refused(-EINVAL, "unknown flags 0x4", a.t, b.t, d.t, &o);
	o.flags = TE_GEMM_B_T;
	refused(-EINVAL, "B has no column-wise copy", x.t, y.t, f.t, &o);
	o.flags = 0;
	o.beta = 1.0f;
	o.c = sq.t;
	refused(-TE_ESHAPE, "C is [4, 4]", a.t, b.t, d.t, &o);
	o.c = dbf.t;
	refused(-TE_EDTYPE, "C is bf16", a.t, b.t, d.t, &o);
	o.c = NULL;
	o.bias = a.t;
	refused(-TE_ESHAPE, "bias has 15 elements", a.t, b.t, d.t, &o);
	o.bias = bf.t;
	refused(-TE_EDTYPE, "bias is bf16", a.t, b.t, d.t, &o);
	o.size = 1;
	refused(-EINVAL, "TE_GEMM_OPTS_INIT", a.t, b.t, d.t, &o);
	o = (struct te_gemm_opts)TE_GEMM_OPTS_INIT;
	refused(-TE_EDTYPE, "A and B are both scaled by 128x128 blocks", square.t, square.t, f.t,
		&o);
	refused(-TE_EDTYPE, "B has one scale and A has block scaling", square.t, x.t, f.t, &o);
	refused(-TE_EDTYPE, "A has one scale and B has block scaling", x.t, square.t, f.t, &o);
	DO(te__tensor_wrap_scaled(ctx, TE_DTYPE_E4M3, 2, shape16, te_tensor_data(x.t), NULL,
				  x.scale_inv + 1, NULL, TE_SCALING_1X128, &unaligned));
	refused(-EINVAL, "scales of A at", unaligned, square.t, f.t, &o);
	te_tensor_unref(unaligned);
	drop(&square);
	te_tensor_unref(fp16.t);
	drop(&a), drop(&b), drop(&k6), drop(&d), drop(&bf), drop(&dbf), drop(&sq);
	drop(&x), drop(&y), drop(&odd), drop(&f), drop(&f4);
}
