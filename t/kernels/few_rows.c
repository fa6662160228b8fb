/*
 * t/kernels/few_rows.c - host GEMM of at most TE__H_MR rows, which reads the other operand once and
 * in place, gives the bits of the same rows in a larger result, with every instruction set.
 */
#include "config.h"

#include <math.h>

#include "kernels/micro.h"
#include "kernels/ref.h"
#include "tt.h"
#include "tt_num.h"

static const char *const levels[] = { "none", "avx2", "avx512", "auto" };
#define REF 3 /* level whose sums are plain loops */
#define NCASES TT_FEWER(240)

static void *room(int64_t nbytes)
{
	/* exactly: AddressSanitizer finds accesses after it */
	void *p = malloc((size_t)(nbytes ? nbytes : 1));

	ck_assert_ptr_nonnull(p);
	memset(p, 0xa5, (size_t)nbytes);
	return p;
}

static float number(int special)
{
	static const float odd[] = { NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-40f, 3e38f };

	return special && tt_rand_int(0, 60) == 0 ? odd[tt_rand_int(0, TT_LEN(odd) - 1)] :
						    tt_rand_normal();
}

static void *numbers(int32_t dtype, int64_t n, int special)
{
	void *p = room(n * (int64_t)te_dtype_nbytes((enum te_dtype)dtype));

	for (int64_t i = 0; i < n; i++)
		tt_set(dtype, p, i, number(special));
	return p;
}

static float *scales(int32_t scaling, int64_t rows, int64_t k)
{
	const int64_t n =
		scaling == TE_K_SCALING_TENSOR ? 1 : te_k_scale_nfloats(scaling, rows, k);
	static const float odd[] = { 1e30f, 1e-30f, 1e-42f, 128, 0, NAN };
	float *p = room(n * 4);

	for (int64_t i = 0; i < n; i++)
		p[i] = tt_rand_int(0, 9) ? tt_rand_float(0.5f, 2.0f) : odd[tt_rand_int(0, 5)];
	return p;
}

/* rows first to first + m - 1 of x [rows, k], or of its transpose */
static void *rows_of(const struct te_k_gemm *a, int64_t first, int64_t m)
{
	const size_t es = te_dtype_nbytes((enum te_dtype)a->adtype);
	char *p = room(m * a->k * (int64_t)es);

	for (int64_t r = 0; r < m; r++)
		for (int64_t k = 0; k < a->k; k++)
			memcpy(p + (size_t)(a->a_t ? k * m + r : r * a->k + k) * es,
			       (const char *)a->a + (size_t)(a->a_t ? k * a->m + first + r :
								    (first + r) * a->k + k) * es,
			       es);
	return p;
}

static float *scales_of_rows(const struct te_k_gemm *a, int64_t first, int64_t m)
{
	float *p = scales(a->asc, m, a->k);

	p[0] = a->sa[0];
	for (int64_t r = 0; r < m && a->asc; r++)
		for (int64_t k = 0; k < a->k; k += TE_K_BLOCK)
			p[te_k_scale_index(a->asc, m, a->k, r, k)] =
				a->sa[te_k_scale_index(a->asc, a->m, a->k, first + r, k)];
	return p;
}

/* n or, in some cases, a multiple of 32 */
static int64_t extent(int64_t most)
{
	const int64_t n = tt_rand_int(1, most);

	return tt_rand_int(0, 2) ? n : (n + 31) / 32 * 32;
}

static void draw(struct te_k_gemm *a, int i)
{
	static const int32_t wide[] = { TE_DTYPE_BF16, TE_DTYPE_FP32, TE_DTYPE_FP16 };
	const int fp8 = i % 4 == 3, special = i % 3 == 2;

	*a = (struct te_k_gemm){
		.m = tt_rand_int(TE__H_MR + 1, 30),
		.n = extent(i % 8 ? 150 : 700),
		/* more than all rows are decoded at a time */
		.k = i % 40 == 39 ? 8192 + extent(100) : extent(i % 8 ? 150 : 600),
		.alpha = tt_rand_int(0, 1) ? 1.0f : 0.75f,
		.a_t = fp8 ? 0 : tt_rand_int(0, 1),
		.b_t = fp8 ? 0 : tt_rand_int(0, 2) == 0,
		.adtype = fp8 ? TE_DTYPE_E4M3 : wide[tt_rand_int(0, 2)],
		.bdtype = !fp8		   ? wide[tt_rand_int(0, 2)] :
			  tt_rand_int(0, 3) ? TE_DTYPE_E4M3 :
					      TE_DTYPE_E5M2,
		.ddtype = wide[tt_rand_int(0, 2)],
	};
	a->cdtype = a->ddtype;
	if (fp8 && tt_rand_int(0, 1)) {
		a->asc = TE_K_SCALING_1X128;
		a->bsc = TE_K_SCALING_128X128;
	}
	if (a->k > 8192)
		a->n = tt_rand_int(1, 40);
	a->a = numbers(a->adtype, a->m * a->k, special);
	a->b = numbers(a->bdtype, a->n * a->k, special);
	a->d = room(a->m * a->n * (int64_t)te_dtype_nbytes((enum te_dtype)a->ddtype));
	a->bias = tt_rand_int(0, 1) ? numbers(a->ddtype, a->n, special) : NULL;
	if (tt_rand_int(0, 1)) {
		a->c = numbers(a->ddtype, a->m * a->n, special);
		a->beta = 0.5f;
	}
	a->sa = fp8 ? scales(a->asc, a->m, a->k) : NULL;
	a->sb = fp8 ? scales(a->bsc, a->n, a->k) : NULL;
}

static void check_rows(const struct te_k_gemm *a, int64_t first, int64_t m, int i)
{
	const size_t row = (size_t)a->n * te_dtype_nbytes((enum te_dtype)a->ddtype);
	struct te_k_gemm few = *a;
	const char *want = (const char *)a->d + (size_t)first * row;

	few.m = m;
	few.a = rows_of(a, first, m);
	few.sa = a->sa ? scales_of_rows(a, first, m) : NULL;
	few.c = a->c ? (const char *)a->c + (size_t)first * row : NULL;
	few.d = room(m * (int64_t)row);
	te__h_gemm(&few);
	for (int64_t j = 0; j < m * a->n; j++) {
		const float x = tt_get(a->ddtype, few.d, j), y = tt_get(a->ddtype, want, j);

		/* which of two NaNs a processor gives depends on the order of its operands */
		ck_assert_msg((isnan(x) && isnan(y)) ||
				      (x == y && signbit(x) == signbit(y)),
			      "case %d: %d rows of %d x %d x %d, types %d %d %d, transposed %d %d: "
			      "element %d is %a, not %a", i, (int)m, (int)a->m, (int)a->n,
			      (int)a->k, a->adtype, a->bdtype, a->ddtype, a->a_t, a->b_t, (int)j,
			      (double)x, (double)y);
	}
	free((void *)(uintptr_t)few.a);
	free((void *)(uintptr_t)few.sa);
	free(few.d);
}

CASE(rows, "host numeric");

TEST_EACH(rows, few_rows_have_the_bits_of_many, TT_LEN(levels))
{
	setenv("TE_HOST_SIMD", levels[_i], 1);
	setenv("TE_GEMM_HOST", _i == REF ? "ref" : "tiles", 1);
	for (int i = 0; i < NCASES; i++) {
		const int64_t m = tt_rand_int(1, TE__H_MR);
		struct te_k_gemm a;

		draw(&a, i);
		te__h_gemm(&a);
		check_rows(&a, tt_rand_int(0, a.m - m), m, i);
		free((void *)(uintptr_t)a.a);
		free((void *)(uintptr_t)a.b);
		free((void *)(uintptr_t)a.c);
		free((void *)(uintptr_t)a.bias);
		free((void *)(uintptr_t)a.sa);
		free((void *)(uintptr_t)a.sb);
		free(a.d);
	}
}

TT_MAIN("kernels/few_rows", TT_NEED_NOTHING)
