/*
 * t/kernels/kernel_few_rows.c - products of few rows with what is before and after them, on numbers
 * of which all but activations are exact.
 */
#include "config.h"

#include <math.h>

#include "kernel_lib.h"
#include "tt_ctx.h"

static void *whole(int32_t dtype, int64_t n, int most)
{
	void *p = kc_poison(dtype, n);

	for (int64_t i = 0; i < n; i++) {
		const float x = (float)tt_rand_int(-most, most);

		if (dtype == TE_DTYPE_E4M3)
			((uint8_t *)p)[i] = te_fp8_encode(TE_DTYPE_E4M3, x);
		else
			tt_set(dtype, p, i, x);
	}
	return p;
}

/* 2 or -2: the root of their mean square is exact, and so are its quotients */
static void *twos(int64_t n)
{
	void *p = kc_poison(TE_DTYPE_BF16, n);

	for (int64_t i = 0; i < n; i++)
		tt_set(TE_DTYPE_BF16, p, i, tt_rand_int(0, 1) ? 2.0f : -2.0f);
	return p;
}

static const float *powers_of_two(int64_t n)
{
	float *p = kc_poison(TE_DTYPE_FP32, n);

	for (int64_t i = 0; i < n; i++)
		p[i] = ldexpf(1.0f, (int)tt_rand_int(-2, 2));
	return p;
}

static const struct {
	int64_t n, k;
} shapes[] = { { 16, 128 },   { 48, 256 },   { 2064, 384 }, { 32, 2048 },
	       { 4240, 128 }, { 64, 3200 }, { 16, 4096 } };

/* i: 1 FP8, 2 gated, 4 a norm */
static struct te_k_few_rows draw(int i, size_t shape)
{
	const int fp8 = i & 1, norm = i >> 2 & 1;
	const int64_t n = shapes[shape].n, k = shapes[shape].k;
	const int64_t most = norm ? 256 / ((k + 1023) / 1024 * 32) :
				    49152 / (k * (fp8 ? 1 : 2) + 320);
	struct te_k_few_rows a = {
		.g = {
			.m = tt_rand_int(1, most < 8 ? most : 8),
			.n = n,
			.k = k,
			.alpha = 0.03125f,
			.adtype = fp8 ? TE_DTYPE_E4M3 : TE_DTYPE_BF16,
			.bdtype = fp8 ? TE_DTYPE_E4M3 : TE_DTYPE_BF16,
			.cdtype = TE_DTYPE_BF16,
			.ddtype = TE_DTYPE_BF16,
			.b_rows = n,
			.fixed = tt_rand_int(0, 1),
		},
		.pow2 = 1,
		.zero_centered = tt_rand_int(0, 1),
		.gated = i >> 1 & 1,
	};
	int64_t nd;

	a.act = a.gated ? (int32_t)tt_rand_int(1, 2) : (int32_t)tt_rand_int(-3, 2);
	a.act = a.act < 0 ? TE_K_FEW_ROWS_LINEAR : a.act;
	nd = a.g.m * n / (a.gated ? 2 : 1);
	a.g.a = norm ? twos(a.g.m * k) : whole(TE_DTYPE_BF16, a.g.m * k, 4);
	a.g.b = whole(a.g.bdtype, n * k, 4);
	a.g.d = whole(TE_DTYPE_BF16, nd, 4);
	a.g.bias = tt_rand_int(0, 1) ? whole(TE_DTYPE_BF16, n, 4) : NULL;
	if (!a.gated && a.act == TE_K_FEW_ROWS_LINEAR && tt_rand_int(0, 1)) {
		a.g.c = whole(TE_DTYPE_BF16, nd, 4);
		a.g.beta = 1.0f;
	}
	if (norm)
		a.gamma = whole(TE_DTYPE_FP32, k, 4);
	if (fp8) {
		a.g.bsc = TE_K_SCALING_128X128;
		a.g.sb = powers_of_two(te_k_scale_nfloats(TE_K_SCALING_128X128, n, k));
	}
	a.ws = kc_poison(TE_DTYPE_UINT8, te_k_few_rows_at(&a, TE_K_FEW_ROWS_END));
	return a;
}

KL_CASE(few_rows);

TEST_EACH(few_rows, few_rows, 8)
{
	for (size_t s = 0; s < TT_LEN(shapes); s++)
		for (int round = 0; round < TT_FEWER(4); round++) {
			const struct te_k_few_rows a = draw(_i, s);
			const int64_t nd = a.g.m * a.g.n / (a.gated ? 2 : 1);

			kc_defer(a.ws);
			if (a.act != TE_K_FEW_ROWS_LINEAR)
				kc_defer(a.g.d);
			KC_RUN(FEW_ROWS, &a);
			/* exp within 2 ulp, and results round to one of two BF16 */
			for (int64_t i = 0; a.act != TE_K_FEW_ROWS_LINEAR && i < nd; i++)
				kc_near(a.g.d, i,
					ldexp(fabs((double)tt_get(TE_DTYPE_BF16, a.g.d, i)), -7) +
						1e-37);
			kc_reset();
		}
}

/* te_k_gemm of few rows, which has the same kernel */
TEST(few_rows, gemm_of_few_rows)
{
	for (size_t s = 0; s < TT_LEN(shapes); s++) {
		struct te_k_few_rows a = draw(0, s);

		if (s == 6 && strcmp(backend, "host")) { /* rows that are not in shared memory */
			a.g.m = 8;
			a.g.k = 8192;
			a.g.a = whole(TE_DTYPE_BF16, a.g.m * a.g.k, 4);
			a.g.b = whole(TE_DTYPE_BF16, a.g.n * a.g.k, 4);
			a.g.d = whole(TE_DTYPE_BF16, a.g.m * a.g.n, 4);
			a.g.c = NULL;
			a.g.beta = 0.0f;
		}
		KC_RUN(GEMM, &a.g);
		kc_reset();
	}
}
