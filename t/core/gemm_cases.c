/*
 * t/core/gemm_cases.c - te_gemm against FP64 loops, its repeatability and its errors.
 *
 * Bound: with u = 2^-24, a sum of K products in FP32, in any order, is off by at most
 * K u sum|a||b| to first order. The scales, alpha, beta and the bias add fewer than 8 more
 * roundings of the magnitude |s| sum|a||b| + |beta c| + |bias|. D rounds once more: 2^-8 of
 * the result in BF16, u in FP32; with a bias on a GPU before each addition too (te/gemm.h). Tensor
 * cores truncate, which doubles u. FP8 tensor cores add with 14 bits (see t/core/ops_gpu.c): each
 * term loses up to 2^-13 of the largest, which is no more than sum|a||b|.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/ctx.h>
#include <te/dtype.h>
#include <te/errno.h>
#include <te/gemm.h>
#include <te/stream.h>

#include "gemm_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define TAIL 64 /* bytes behind D that stay poison */

static const struct types {
	enum te_dtype a, b, d;
} types[] = {
	{ TE_DTYPE_FP32, TE_DTYPE_FP32, TE_DTYPE_FP32 },
	{ TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16 },
	{ TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_FP32 },
	{ TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_BF16 },
	{ TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_FP32 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_BF16 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_FP32 },
};

static void *upload(const void *src, size_t nbytes)
{
	void *p;

	DO(te_mem_alloc(st, nbytes, &p));
	DO(te_copy(st, p, src, nbytes));
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

/* stored [cols, rows] when flag; of FP8 only the copy that is K-major exists */
static struct mat mat(enum te_dtype dtype, int64_t rows, int64_t cols, int flag)
{
	int64_t shape[2] = { flag ? cols : rows, flag ? rows : cols }, n = rows * cols;
	struct mat m = { .v = malloc((size_t)n * sizeof(double)), .scale = 1.0f };
	size_t nbytes = (size_t)n * te_dtype_nbytes(dtype);
	void *code = malloc(nbytes);
	int fp8 = tt_is_fp8(dtype);

	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			m.v[r * cols + c] = tt_round(dtype, tt_rand_normal());
			tt_set(dtype, code, flag && !fp8 ? c * rows + r : r * cols + c,
			       (float)m.v[r * cols + c]);
		}
	m.mem = upload(code, nbytes);
	if (fp8) {
		m.scale = tt_rand_float(0.1f, 3.0f);
		m.scale_inv = upload(&m.scale, sizeof(m.scale));
	}
	DO(te_tensor_wrap(ctx, dtype, 2, shape, fp8 && flag ? NULL : m.mem,
			  fp8 && flag ? m.mem : NULL, m.scale_inv, &m.t));
	free(code);
	return m;
}

static void drop(struct mat *m)
{
	te_tensor_unref(m->t);
	if (m->scale_inv)
		DO(te_mem_free(st, m->scale_inv));
	DO(te_mem_free(st, m->mem));
	free(m->v);
}

/* D with a poisoned tail */
static struct te_tensor *output(enum te_dtype dtype, int64_t m, int64_t n, void **ret_mem)
{
	size_t nbytes = (size_t)(m * n) * te_dtype_nbytes(dtype) + TAIL;
	int64_t shape[2] = { m, n };
	struct te_tensor *t;

	DO(te_mem_alloc(st, nbytes, ret_mem));
	DO(te_fill(st, *ret_mem, 0xff, nbytes)); /* NaN in every type */
	DO(te_tensor_wrap(ctx, dtype, 2, shape, *ret_mem, NULL, NULL, &t));
	return t;
}

static int64_t extent(int fp8)
{
	return fp8 ? 16 * tt_rand_int(1, 6) : tt_rand_int(1, 90);
}

static void one(const struct types *ty, uint32_t flags, int beta, int bias)
{
	int fp8 = tt_is_fp8(ty->a), cuda = !strcmp(backend, "cuda");
	int64_t m = extent(fp8), n = extent(fp8), k = extent(fp8);
	struct mat a = mat(ty->a, m, k, !!(flags & TE_GEMM_A_T));
	struct mat b = mat(ty->b, n, k, !!(flags & TE_GEMM_B_T));
	struct mat c = mat(ty->d, m, n, 0), v = mat(ty->d, 1, n, 0);
	double u = ldexp(1, cuda ? -23 : -24), term = fp8 && cuda ? ldexp(1, -13) : u;
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
		DO(te_copy(st, mem, c.mem, nbytes)); /* C is D */
	else
		o.c = c.t; /* not read where beta is 0 */
	DO(te_gemm(st, a.t, b.t, d, &o));
	DO(te_copy(st, got, mem, nbytes + TAIL));
	DO(te_stream_sync(st));
	s = (double)o.alpha * a.scale * b.scale;
	for (int64_t i = 0; i < m * n; i++) {
		double sum = 0, mag = 0, x, err, y;

		for (int64_t p = 0; p < k; p++) {
			x = a.v[i / n * k + p] * b.v[i % n * k + p];
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
		err += 8 * u * mag;
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
		ck_assert_msg(got[nbytes + (size_t)i] == 0xff, "writes behind D");
	te_tensor_unref(d);
	DO(te_mem_free(st, mem));
	drop(&a);
	drop(&b);
	drop(&c);
	drop(&v);
	free(got);
}

START_TEST(agrees_with_fp64)
{
	for (uint32_t flags = 0; flags < 4; flags++)
		for (int e = 0; e < 6; e++)
			one(&types[_i], flags, e % 3, e / 3);
}
END_TEST

START_TEST(gives_the_same_bits_again_and_captured)
{
	const struct types *ty = &types[_i];
	int fp8 = tt_is_fp8(ty->a);
	int64_t m = extent(fp8), n = extent(fp8), k = extent(fp8);
	struct mat a = mat(ty->a, m, k, 0), b = mat(ty->b, n, k, 0);
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
END_TEST

static void refused(int code, const char *text, const struct te_tensor *a,
		    const struct te_tensor *b, struct te_tensor *d, const struct te_gemm_opts *o)
{
	int r = te_gemm(st, a, b, d, o);

	ck_assert_msg(r == code, "%s: %d, not %d: %s", text, r, code, te_error_detail());
	ck_assert_msg(strstr(te_error_detail(), text) != NULL, "\"%s\" lacks \"%s\"",
		      te_error_detail(), text);
}

START_TEST(says_what_is_wrong)
{
	struct mat a = mat(TE_DTYPE_FP32, 3, 5, 0), b = mat(TE_DTYPE_FP32, 4, 5, 0);
	struct mat k6 = mat(TE_DTYPE_FP32, 4, 6, 0), d = mat(TE_DTYPE_FP32, 3, 4, 0);
	struct mat bf = mat(TE_DTYPE_BF16, 3, 5, 0), fp16 = { 0 };
	struct mat dbf = mat(TE_DTYPE_BF16, 3, 4, 0), sq = mat(TE_DTYPE_FP32, 4, 4, 0);
	struct mat x = mat(TE_DTYPE_E4M3, 16, 16, 0), y = mat(TE_DTYPE_E5M2, 16, 16, 0);
	struct mat odd = mat(TE_DTYPE_E4M3, 16, 24, 0), f = mat(TE_DTYPE_FP32, 16, 16, 0);
	struct mat f4 = mat(TE_DTYPE_FP32, 4, 4, 0);
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
	refused(-TE_ESHAPE, "FP8 needs multiples of 16", odd.t, odd.t, f.t, NULL);
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
	te_tensor_unref(fp16.t);
	drop(&a), drop(&b), drop(&k6), drop(&d), drop(&bf), drop(&dbf), drop(&sq);
	drop(&x), drop(&y), drop(&odd), drop(&f), drop(&f4);
}
END_TEST

Suite *gemm_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);
	TCase *c = tt_case(s, "products", "gemm");

	backend = on;
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, agrees_with_fp64, 0, TT_LEN(types));
	tcase_add_loop_test(c, gives_the_same_bits_again_and_captured, 0, TT_LEN(types));
	tcase_add_test(c, says_what_is_wrong);
	return s;
}
