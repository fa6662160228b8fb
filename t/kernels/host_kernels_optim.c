/* t/kernels/host_kernels_optim.c - AdamW: sums of squares, steps, moments and split weights. */
#include "config.h"

#include <float.h>
#include <math.h>

#include <te/dtype.h>

#include "host_kernels_lib.h"
#include "kernels/optim/round.h"
#include "libtecore/base/dtype_inline.h"

CASE(optim, "host numeric");

TEST_EACH(optim, sum_of_squares_by_runs, 2)
{
	static const int64_t sizes[] = { 1, 1023, 1024, 1025, 5000, 70001 };

	for (size_t k = 0; k < TT_LEN(sizes); k++) {
		const int64_t n = sizes[k], run = (n + 1023) / 1024;
		const int32_t type = hk_types[_i];
		void *x = hk_normal(type, n, 1e3f);
		double part[TE_K_SUMSQ_PARTS];
		struct te_k_sumsq a = { x, part, n, NULL, type, 0 };
		uint8_t *skip;

		if (type) /* its square overflows FP32 */
			*(uint16_t *)x = 0x7f60;
		else
			*(float *)x = 3e38f;
		te__h_sumsq(&a);
		for (int64_t p = 0; p < TE_K_SUMSQ_PARTS; p++) {
			double sum = 0.0;

			for (int64_t i = p * run; i < n && i < (p + 1) * run; i++)
				sum += (double)tt_get(type, x, i) * (double)tt_get(type, x, i);
			hk_check_near(part[p], sum, 1e-13 * sum, "part", p);
		}
		/* without blocks of 64, however the runs divide them */
		skip = hk_fresh(TE_DTYPE_UINT8, (n + 63) / 64);
		a.skip = skip;
		for (int64_t i = 0; i < (n + 63) / 64; i++)
			skip[i] = (uint8_t)tt_rand_int(0, 1);
		te__h_sumsq(&a);
		for (int64_t p = 0; p < TE_K_SUMSQ_PARTS; p++) {
			double sum = 0.0;

			for (int64_t i = p * run; i < n && i < (p + 1) * run; i++)
				sum += skip[i / 64] ? 0.0 : pow(tt_get(type, x, i), 2);
			hk_check_near(part[p], sum, 1e-13 * sum, "part", p);
		}
		free(skip);
		free(x);
	}
}

TEST(optim, adamw_begin_adds_up_shards)
{
	double part[3][TE_K_SUMSQ_PARTS] = {
		{ [0] = 9.0, [7] = 1.0 }, { [7] = 3.0 }, { [9] = 12.0 }
	};
	struct te_k_adamw_state s = { 0, 0, 1.0, 1.0, 0.5f, 0.0f, 0.0f, 7 };
	uint64_t version = 7;
	struct te_k_adamw_begin a = { part[0], &s, &version, 0.9f, 0.95f, 0.0f, 2 };

	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.grad_norm, 5.0f);
	part[2][1000] = INFINITY;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.skip, 1);
}

TEST(optim, adamw_begin_clips_and_skips)
{
	double part[TE_K_SUMSQ_PARTS] = { [0] = 9.0, [1023] = 16.0 };
	struct te_k_adamw_state s = { 0, 0, 1.0, 1.0, 0.5f, 0.0f, 0.0f, 7 };
	uint64_t version = 7;
	struct te_k_adamw_begin a = { part, &s, &version, 0.9f, 0.95f, 10.0f, 0 };

	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.grad_norm, 5.0f);
	ck_assert_float_eq(s.clip, 1.0f);
	ck_assert_uint_eq(s.skip, 0);
	a.max_norm = 2.0f;
	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.clip, 0.4f);
	a.max_norm = 0.0f;
	te__h_adamw_begin(&a);
	ck_assert_float_eq(s.clip, 1.0f);
	ck_assert_uint_eq(s.nsteps, 3);
	ck_assert_double_eq(s.beta1_t, (double)0.9f * (double)0.9f * (double)0.9f);
	part[5] = NAN;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.skip, 1);
	ck_assert(isnan(s.grad_norm));
	part[5] = 1e77; /* finite, but not its root in FP32 */
	part[6] = INFINITY;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.nskipped, 2);
	ck_assert_uint_eq(s.nsteps, 3);
	ck_assert_double_eq(s.beta1_t, (double)0.9f * (double)0.9f * (double)0.9f);
	ck_assert_float_eq(s.lr, 0.5f);
	part[6] = 0.0;
	part[5] = 0.0;
	te__h_adamw_begin(&a);
	ck_assert_uint_eq(s.skip, 0);
	ck_assert_uint_eq(s.nsteps, 4);
	ck_assert_uint_eq(version, 7 + 4); /* steps that were not skipped */
}

TEST(optim, adamw_follows_the_paper)
{
	const int64_t n = 5 * TE_K_ALIGN_WEIGHT;
	const float b1 = 0.9f, b2 = 0.95f, eps = 1e-8f, wd = 0.1f, lr = 1e-2f;
	float *w = hk_normal(TE_DTYPE_FP32, n, 1.0f), *g = hk_fresh(TE_DTYPE_FP32, n);
	float *m = calloc((size_t)n, sizeof(float)), *v = calloc((size_t)n, sizeof(float));
	double *wr = malloc((size_t)n * 8), *mr = calloc((size_t)n, 8), *vr = calloc((size_t)n, 8);
	const uint8_t decay[5] = { 1, 0, 1, 0, 0 };
	double part[TE_K_SUMSQ_PARTS];
	struct te_k_adamw_state s = { 0, 0, 1.0, 1.0, lr, 0.0f, 0.0f, 0 };
	struct te_k_sumsq q = { g, part, n, NULL, TE_DTYPE_FP32, 0 };
	uint64_t version = 0;
	struct te_k_adamw_begin begin = { part, &s, &version, b1, b2, 3.0f, 0 };
	struct te_k_adamw a = { w,  m,   v,  g,    decay, &s,	 n, b1,
				b2, eps, wd, NULL, NULL,  NULL, 0, 0, 0, 0, 0 };
	float *was;

	for (int64_t i = 0; i < n; i++)
		wr[i] = w[i];
	for (int step = 1; step <= 10; step++) {
		double norm = 0.0, clip;

		for (int64_t i = 0; i < n; i++) {
			/* away from 0, where m^ / sqrt(v^) magnifies the rounding errors of m */
			g[i] = tt_rand_float(0.5f, 1.0f) * (i % 3 ? 1.0f : -1.0f);
			norm += (double)g[i] * (double)g[i];
		}
		norm = sqrt(norm);
		clip = norm > 3.0 ? 3.0 / norm : 1.0;
		te__h_sumsq(&q);
		te__h_adamw_begin(&begin);
		te__h_adamw(&a);
		for (int64_t i = 0; i < n; i++) {
			const double gc = g[i] * clip, r1 = b1, r2 = b2;
			double u;

			mr[i] = r1 * mr[i] + (1 - r1) * gc;
			vr[i] = r2 * vr[i] + (1 - r2) * gc * gc;
			u = mr[i] / (1 - pow(r1, step)) /
			    (sqrt(vr[i] / (1 - pow(r2, step))) + (double)eps);
			if (decay[i / TE_K_ALIGN_WEIGHT])
				u += (double)wd * wr[i];
			wr[i] -= (double)lr * u;
			/* moments: 4 roundings per step and that of clip, all terms of one sign */
			hk_check_near(m[i], mr[i], 8 * step * U32 * fabs(mr[i]), "m", i);
			hk_check_near(v[i], vr[i], 10 * step * U32 * vr[i], "v", i);
			/* u within 20 step U32 |u| and |u| < 2; w rounds once per step */
			hk_check_near(w[i], wr[i],
				      step * U32 * (40 * step * (double)lr + 2 * fabs(wr[i]) + 2),
				      "w", i);
		}
	}
	hk_check_end(TE_DTYPE_FP32, w, n);

	/* with a gradient that is not finite, nothing changes */
	was = hk_copy(TE_DTYPE_FP32, w, n);
	g[17] = INFINITY;
	te__h_sumsq(&q);
	te__h_adamw_begin(&begin);
	te__h_adamw(&a);
	hk_check_same(TE_DTYPE_FP32, w, was, n);
	ck_assert_uint_eq(s.nskipped, 1);
	for (int64_t i = 0; i < n; i++)
		ck_assert(isfinite(m[i]) && isfinite(v[i]));
	free(was);
	free(w);
	free(g);
	free(m);
	free(v);
	free(wr);
	free(mr);
	free(vr);
}

/* _i: moments, masters */
TEST_EACH(optim, adamw_reads_bf16_gradients, 9)
{
	const int64_t n = TE_K_ALIGN_WEIGHT * 3 + 5;
	const int32_t moments = _i % 3, masters = _i / 3;
	const int32_t mtype = moments ? TE_DTYPE_BF16 : TE_DTYPE_FP32; /* FP8: fewer bytes */
	const int32_t wtype = masters ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	void *w = hk_normal(wtype, n, 1.0f), *rest = hk_normal(TE_DTYPE_BF16, n, 1.0f);
	void *m = calloc((size_t)n, 4), *v = calloc((size_t)n, 4), *g = hk_normal(1, n, 1.0f);
	float *g32 = hk_fresh(TE_DTYPE_FP32, n);
	uint8_t exps[4][4] = { { 0 } };
	const struct te_k_adamw_state s = { 3, 0, 0.729, 0.857, 1e-3f, 0.0f, 0.37f, 0 };
	struct te_k_adamw a = {
		.w = w, .m = m, .v = v, .g = g, .state = &s, .n = n, .beta1 = 0.9f, .beta2 = 0.95f,
		.eps = 1e-8f, .weight_decay = 0.1f, .m_exp = exps[0], .v_exp = exps[1],
		.rest = rest, .moments = moments, .masters = masters, .bf16_grads = 1,
	}, b = a;

	b.w = hk_copy(wtype, w, n);
	b.rest = hk_copy(TE_DTYPE_BF16, rest, n);
	b.m = calloc((size_t)n, 4);
	b.v = calloc((size_t)n, 4);
	b.g = g32;
	b.m_exp = exps[2];
	b.v_exp = exps[3];
	b.bf16_grads = 0;
	for (int64_t i = 0; i < n; i++)
		g32[i] = tt_get(TE_DTYPE_BF16, g, i);
	for (int t = 0; t < 2; t++) {
		te__h_adamw(&a);
		te__h_adamw(&b);
	}
	hk_check_same(wtype, w, b.w, n);
	hk_check_same(TE_DTYPE_BF16, rest, b.rest, n);
	hk_check_same(mtype, m, b.m, moments == TE_K_MOMENTS_FP8 ? n / 2 : n);
	hk_check_same(mtype, v, b.v, moments == TE_K_MOMENTS_FP8 ? n / 2 : n);
	free(w);
	free(rest);
	free(m);
	free(v);
	free(g);
	free(g32);
	free(b.w);
	free(b.rest);
	free(b.m);
	free(b.v);
}

/* the order of operations of optim.h, which a GPU matches bit for bit */
TEST(optim, adamw_in_the_specified_order)
{
	const int64_t n = TE_K_ALIGN_WEIGHT * 3;
	float *w = hk_normal(TE_DTYPE_FP32, n, 1.0f), *m = hk_normal(TE_DTYPE_FP32, n, 1.0f);
	float *v = hk_normal(TE_DTYPE_FP32, n, 1.0f), *g = hk_normal(TE_DTYPE_FP32, n, 1.0f);
	const uint8_t decay[3] = { 0, 1, 0 };
	struct te_k_adamw_state s = { 3, 0, 0.729, 0.857375, 0.01f, 1.0f, 0.37f, 0 };
	struct te_k_adamw a = { w,	m,    v,     g,	   decay, &s,	n, 0.9f,
				0.95f, 1e-8f, 0.1f, NULL, NULL, NULL, 0, 0, 0, 0, 0 };
	const float c1 = (float)(1.0 - 0.729), c2 = (float)(1.0 - 0.857375);
	float *wa, *ma, *va;

	for (int64_t i = 0; i < n; i++)
		v[i] = fabsf(v[i]);
	g[0] = 0.0f;
	m[0] = v[0] = 0.0f; /* 0 / (0 + eps) */
	v[1] = 1e-42f;
	wa = hk_copy(TE_DTYPE_FP32, w, n);
	ma = hk_copy(TE_DTYPE_FP32, m, n);
	va = hk_copy(TE_DTYPE_FP32, v, n);
	te__h_adamw(&a);
	for (int64_t i = 0; i < n; i++) {
		volatile float gc = g[i] * 0.37f, t, u;

		t = (1.0f - 0.9f) * gc;
		ma[i] = 0.9f * ma[i];
		ma[i] = ma[i] + t;
		t = (1.0f - 0.95f) * gc;
		t = t * gc;
		va[i] = 0.95f * va[i];
		va[i] = va[i] + t;
		t = sqrtf(va[i] / c2);
		t = t + 1e-8f;
		u = ma[i] / c1;
		u = u / t;
		if (decay[i / TE_K_ALIGN_WEIGHT]) {
			t = 0.1f * wa[i];
			u = u + t;
		}
		t = 0.01f * u;
		wa[i] = wa[i] - t;
	}
	hk_check_same(TE_DTYPE_FP32, m, ma, n);
	hk_check_same(TE_DTYPE_FP32, v, va, n);
	hk_check_same(TE_DTYPE_FP32, w, wa, n);
	free(w);
	free(m);
	free(v);
	free(g);
	free(wa);
	free(ma);
	free(va);
}

static uint32_t draw_of(uint64_t step, int which, int64_t i)
{
	const struct te_philox r = te_round_draw(step, (uint32_t)which, i / TE_ROUND_GROUP);

	return te_philox_lane(&r, (int)(i % TE_ROUND_GROUP));
}

/* exponent of the block of element i */
static uint32_t exponent_of(int which, const float *x, int64_t i, int64_t n)
{
	const int64_t first = i / TE_K_ALIGN_WEIGHT * TE_K_ALIGN_WEIGHT;
	uint32_t most = 0;

	for (int64_t k = first; k < n && k < first + TE_K_ALIGN_WEIGHT; k++)
		most = te_round_magnitude(x[k]) > most ? te_round_magnitude(x[k]) : most;
	return te_round_exponent(te_round_format(which), most);
}

/* a step from moments of 0 stores those of FP32, rounded by the draws of optim.h; _i: how */
TEST_EACH(optim, moments_are_rounded_by_draws, TE_K_MOMENTS_FP8 + 1, .from = TE_K_MOMENTS_BF16)
{
	const int64_t n = TE_K_ALIGN_WEIGHT * 2 + 9;
	float *w = hk_normal(TE_DTYPE_FP32, n, 1.0f), *w32 = hk_copy(TE_DTYPE_FP32, w, n);
	float *g = hk_normal(TE_DTYPE_FP32, n, 1.0f);
	float x[2][TE_K_ALIGN_WEIGHT * 2 + 9] = { { 0 } };
	uint16_t bf16[2][TE_K_ALIGN_WEIGHT * 2 + 9] = { { 0 } };
	uint8_t code[2][TE_K_ALIGN_WEIGHT * 2 + 9] = { { 0 } }, exps[2][3] = { { 0 } };
	const int fp8 = _i == TE_K_MOMENTS_FP8;
	struct te_k_adamw_state s = { 7, 0, 0.9, 0.95, 0.01f, 1.0f, 1.0f, 0 };
	struct te_k_adamw a = { w32,   x[0],  x[1], g,	  NULL, &s, n, 0.9f,
				0.95f, 1e-8f, 0.1f, NULL, NULL, NULL, 0, 0, 0, 0, 0 };

	te__h_adamw(&a);
	a.w = w;
	a.m = fp8 ? (void *)code[0] : bf16[0];
	a.v = fp8 ? (void *)code[1] : bf16[1];
	a.m_exp = exps[0];
	a.v_exp = exps[1];
	a.moments = _i;
	te__h_adamw(&a);
	hk_check_same(TE_DTYPE_FP32, w, w32, n);
	for (int which = 0; which < 2; which++)
		for (int64_t i = 0; i < n; i++) {
			const uint32_t r = draw_of(s.nsteps, which, i);
			const uint32_t e = exponent_of(which, x[which], i, n);

			if (!fp8) {
				ck_assert_uint_eq(bf16[which][i], te_round_bf16(x[which][i], r));
				continue;
			}
			ck_assert_uint_eq(exps[which][i / TE_K_ALIGN_WEIGHT], e);
			ck_assert_uint_eq(code[which][i],
					  which ? te_round_second(x[which][i], e, r) :
						  te_round_first(x[which][i], e, r));
		}
	free(w);
	free(w32);
	free(g);
}

/* every code of a moment is read and rounded to itself, at the ends of the exponents too */
TEST(optim, moments_round_to_themselves)
{
	static const uint32_t exps[] = { 3, 100, 127, 200, 236 };

	for (size_t e = 0; e < TT_LEN(exps); e++)
		for (uint32_t code = 0; code < 256; code++) {
			const uint32_t s = exps[e];
			const float m = te_round_first_value(code, s);
			const float v = te_round_second_value(code, s);

			if ((code & 0x7f) < 0x7f && code != 0x80)
				ck_assert_uint_eq(te_round_first(m, s, TE_ROUND_NEAREST), code);
			if (code < 0xf8)
				ck_assert_uint_eq(te_round_second(v, s, TE_ROUND_NEAREST), code);
			if ((code & 0x7f) < 0x7f)
				ck_assert_float_eq(m * ldexpf(1.0f, 127 - (int)s),
						   te_fp8_decode(TE_DTYPE_E4M3, (uint8_t)code));
			/* FP16 without its sign and its last 7 bits: 5 bits of exponent, bias 15 */
			ck_assert_float_eq(v, ldexpf(code < 8 ? (float)code : (float)(8 + code % 8),
						     (int)s - 127 - 17 +
							     (code < 8 ? 0 : (int)code / 8 - 1)));
		}
}

static float moment_value(int which, uint32_t code, uint32_t s)
{
	return which ? te_round_second_value(code, s) : te_round_first_value(code, s);
}

/* the mean over all random numbers is the value, but for what 16 bits cannot express */
TEST_EACH(optim, moments_round_without_bias, 2)
{
	for (int k = 0; k < TT_FEWER(40); k++) {
		const float x = tt_rand_float(0.5f, 1.0f) * ldexpf(1.0f, -(k % 20));
		const uint32_t s = te_round_exponent(te_round_format(_i), te_round_bits(1.0f));
		const double bf16_step = ldexp(1.0, ilogbf(x) - 7);
		const uint32_t below = _i ? te_round_second(x, s, 0) : te_round_first(x, s, 0);
		const double lo = (double)moment_value(_i, below, s);
		const double step = (double)moment_value(_i, below + 1, s) - lo;
		double sum = 0.0, bf16 = 0.0;

		for (uint32_t r = 0; r < 65536; r++) {
			const uint32_t code = _i ? te_round_second(x, s, r) :
						   te_round_first(x, s, r);

			ck_assert(code == below || code == below + 1);
			sum += (double)moment_value(_i, code, s);
			bf16 += (double)te_round_float(te_round_bf16(-x, r) << 16);
		}
		ck_assert_double_le(fabs(sum / 65536 - (double)x), step / 65536);
		ck_assert_double_le(fabs(bf16 / 65536 + (double)x), bf16_step / 65536);
	}
}

/* values that are not finite saturate in FP8 and remain in BF16; a block's largest fits */
TEST(optim, moments_of_extreme_values)
{
	static const float odd[] = { INFINITY, NAN, FLT_MAX, 1.0f, 1.99f, 448.0f, 449.0f, 1.875f,
				     1.9f, 0x1p-126f, 0x1p-149f, 0.0f };

	for (size_t i = 0; i < TT_LEN(odd); i++)
		for (int which = 0; which < 2; which++) {
			const struct te_round_fp8 f = te_round_format(which);
			const uint32_t mag = te_round_magnitude(odd[i]);
			const uint32_t s = te_round_exponent(f, mag);
			const uint32_t code = which ? te_round_second(odd[i], s, 0xffff) :
						      te_round_first(odd[i], s, 0xffff);

			ck_assert_uint_ge(s, 1);
			ck_assert_uint_le(s, 247);
			ck_assert_uint_le(code, which ? 0xf7 : 0x7e);
			/* the next smaller scale would saturate */
			if (s > 1)
				ck_assert_float_gt(
					te_round_float(mag) * ldexpf(1.0f, 128 - (int)s),
					which ? 0x1.ep15f : 448.0f);
			if (which)
				ck_assert_int_eq(code > 0, mag > 0);
		}
	/* far below a block's largest: never to zero, unless it is zero */
	ck_assert_uint_eq(te_round_second(0x1p-140f, 127, 0), 1);
	ck_assert_uint_eq(te_round_second(0.0f, 127, 0xffff), 0);
	ck_assert_uint_eq(te_round_first(-0x1p-140f, 127, 0), 0);
	ck_assert_float_eq(te_round_second_value(0xf7, 0), 0.0f);
	ck_assert_uint_eq(te_round_bf16(INFINITY, 0xffff), 0x7f80);
	ck_assert_uint_eq(te_round_bf16(-INFINITY, 0), 0xff80);
	ck_assert_uint_eq(te_round_bf16(FLT_MAX, 0xffff), 0x7f7f);
	ck_assert_uint_eq(te_round_bf16(-0.0f, 0xffff), 0x8000);
	ck_assert_uint_gt(te_round_bf16(NAN, 0xffff) & 0x7fff, 0x7f80);
	ck_assert_uint_gt(te_round_bf16(te_round_float(0x7f800001), 0) & 0x7fff, 0x7f80);
}

/* a weight is restored from its halves, of which the upper is a nearest BF16 number */
TEST(optim, weights_are_split_without_loss)
{
	static const uint32_t ends[] = { 0,	     0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff,
					 0xff7fffff, 1,		 0x00008000, 0x00017fff, 0x3f808000,
					 0x3f818000, 0x3f807fff };

	for (int i = 0; i < 100000; i++) {
		const uint32_t bits = i < (int)TT_LEN(ends) ? ends[i] : (uint32_t)tt_rand_u64();
		const float w = te_round_float(bits);
		const uint32_t upper = te_round_upper(w), lower = te_round_lower(w);
		const float back = te_round_join(upper, lower);

		ck_assert_uint_le(upper, 0xffff);
		ck_assert_uint_le(lower, 0xffff);
		if (isnan(w)) {
			ck_assert(isnan(back) && isnan(te_round_float(upper << 16)));
			continue;
		}
		ck_assert_uint_eq(te_round_bits(back), bits);
		if (isfinite(w) && isfinite(te_round_float(upper << 16)))
			ck_assert_double_le(
				fabs((double)te_round_float(upper << 16) - (double)w),
				fabs((double)te_bf16_decode(te_bf16_encode(w)) - (double)w));
	}
}

/* 100 steps on weights and their halves, with values that no run has; the bits agree in each */
TEST(optim, split_weights_step_as_whole_ones)
{
	static const uint32_t ends[] = { 0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff, 0x7fc00001,
					 1,	     0x807fffff, 0x00008000, 0x3f808000 };
	const int64_t n = TE_K_ALIGN_WEIGHT * 3 + 5;
	float *w = hk_normal(TE_DTYPE_FP32, n, 0.02f), *g = hk_normal(TE_DTYPE_FP32, n, 1.0f);
	float *m = hk_normal(TE_DTYPE_FP32, n, 0.0f), *m2 = hk_copy(TE_DTYPE_FP32, m, n);
	float *v = hk_copy(TE_DTYPE_FP32, m, n), *v2 = hk_copy(TE_DTYPE_FP32, m, n);
	uint16_t *upper = hk_normal(TE_DTYPE_BF16, n, 1.0f);
	uint16_t *lower = hk_normal(TE_DTYPE_BF16, n, 1.0f);
	struct te_k_adamw_state s = { .beta1_t = 1, .beta2_t = 1, .lr = 1e-4f, .clip = 1 };

	for (int64_t i = 0; i < n; i++) {
		if (i < (int64_t)TT_LEN(ends))
			w[i] = te_round_float(ends[i]);
		upper[i] = (uint16_t)te_round_upper(w[i]);
		lower[i] = (uint16_t)te_round_lower(w[i]);
	}
	for (int t = 0; t < 100; t++) {
		struct te_k_adamw a = { .w = w, .m = m, .v = v, .g = g, .state = &s, .n = n,
					.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
					.weight_decay = t & 1 ? 0.1f : 0.0f };

		s.nsteps++;
		s.beta1_t *= 0.9;
		s.beta2_t *= 0.95;
		for (int64_t i = 0; i < n; i++) /* some weights stay what they are */
			g[i] = i < (int64_t)TT_LEN(ends) ? 0.0f : tt_rand_normal();
		te__h_adamw(&a);
		a.w = upper;
		a.m = m2;
		a.v = v2;
		a.rest = lower;
		a.masters = TE_K_MASTERS_SPLIT;
		te__h_adamw(&a);
		for (int64_t i = 0; i < n; i++) {
			const float whole = te_round_join(upper[i], lower[i]);

			if (isnan(w[i]))
				ck_assert(isnan(whole) && te_round_upper(w[i]) == upper[i]);
			else
				ck_assert_uint_eq(te_round_bits(whole), te_round_bits(w[i]));
		}
	}
	free(w);
	free(g);
	free(m);
	free(m2);
	free(v);
	free(v2);
	free(upper);
	free(lower);
}
