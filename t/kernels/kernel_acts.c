/* t/kernels/kernel_acts.c - activations and their derivatives. */
#include "config.h"

#include <math.h>

#include <te/op.h>

#include "kernel_lib.h"

/*
 * exp has an error of 4 ulp (8 U) on a GPU and of 1.2 ulp (2.4 U) on the host; arguments have the
 * same bits. The sum and the quotient round on both sides. So sig has an error of 15 U of itself,
 * and 1 - s of that or a rounding of 1; results near the end of FP32's range, where exp becomes
 * infinite on one side first, by 1e-36.
 */
static double act_tol(int32_t act, double x, double y)
{
	const double ax = fabs(x);

	switch (act) {
	case TE_ACT_GELU: /* 1 + t cancels */
		return 8.0 * U32 * ax + 20.0 * U32 * fabs(y);
	case TE_ACT_RELU:
	case TE_ACT_SRELU:
		return 0.0;
	case TE_ACT_TANH: /* 2 s - 1 with an s of at most 1: 0.46 at 0.5 */
		return 60.0 * U32 * fabs(y) + 1e-36;
	default:
		return 20.0 * U32 * fabs(y) + 1e-36;
	}
}

static double act_d_tol(int32_t act, double x)
{
	const double ax = fabs(x);

	switch (act) {
	case TE_ACT_GELU: /* 1 - t * t cancels: 15 U, times half x and the slope */
		return 16.0 * U32 * 0.5 * ax * 0.8 * (1.0 + 0.1342 * ax * ax) + 20.0 * U32;
	case TE_ACT_RELU:
	case TE_ACT_SRELU:
		return 0.0;
	default:
		return 20.0 * U32 * (1.0 + 2.0 * ax) + 1e-36;
	}
}

static void *act_input(int32_t dtype, int64_t n)
{
	void *x = kc_normal(dtype, n, 3.0f);
	static const float odd[] = { 0.0f,  -0.0f,  1e-40f, -1e-40f, 30.0f, -30.0f,
				     88.0f, -88.0f, 1e10f,  -1e10f,  1e30f, -1e30f,
				     3e38f, -3e38f, NAN,    INFINITY, -INFINITY };

	for (int64_t i = 0; i < n; i += 37)
		tt_set(dtype, x, i, odd[i / 37 % (int64_t)TT_LEN(odd)]);
	return x;
}

static void check_act_fwd(const struct te_k_act_fwd *a)
{
	const int64_t pitch = a->gated ? 2 * a->cols : a->cols;

	for (int64_t i = 0; i < a->rows * a->cols; i++) {
		const int64_t r = i / a->cols, c = i % a->cols;
		const double x = tt_get(a->dtype, a->x, r * pitch + c);
		const double gate =
			a->gated ? (double)tt_get(a->dtype, a->x, r * pitch + a->cols + c) : 1.0;
		const double y = tt_get(a->dtype, a->y, i);

		kc_near(a->y, i,
			act_tol(a->act, x, gate != 0.0 ? y / gate : 0.0) * fabs(gate) +
				2.0 * tt_unit(a->dtype) * fabs(y) + 1e-37);
	}
}

KL_CASE(act);

TEST_EACH(act, act_fwd, 4 * TE_ACT_COUNT, .parts = 4)
{
	const int32_t dtype = kl_types[_i & 1], act = _i / 4;
	const int gated = _i >> 1 & 1;

	for (size_t k = kl_first(kl_nshapes()); k < kl_nshapes(); k += kl_every()) {
		const int64_t rows = kl_shapes[k].rows, cols = kl_shapes[k].cols, n = rows * cols;
		const int side = (int)tt_rand_int(0, 3);
		struct te_k_act_fwd a = { act_input(dtype, n * (1 + gated)),
					  kc_poison(dtype, n),
					  rows,
					  cols,
					  { 0 },
					  act,
					  gated,
					  dtype,
					  0 };
		void *y = a.y;

		if (side)
			a.q = kc_q_blocks(kl_fp8[k & 1], (int32_t)tt_rand_int(0, 2), rows, cols,
					  kc_word(0.0f));
		if (side == 1)
			a.q.col = NULL;
		if (side == 3)
			a.q.row = NULL;
		kc_defer(y);
		kc_defer_q(&a.q);
		KC_RUN(ACT_FWD, &a);
		check_act_fwd(&a);
		kc_check_q(&a.q, dtype, kc_got(y), rows, cols);
		if (side) {
			size_t nbytes = (size_t)n * te_dtype_nbytes((enum te_dtype)dtype);
			void *was = malloc(nbytes);

			ck_assert_ptr_nonnull(was);
			memcpy(was, kc_got(y), nbytes);
			a.y = NULL;
			*a.q.amax = 0.0f;
			kc_defer_q(&a.q);
			KC_RUN(ACT_FWD, &a);
			kc_check_q(&a.q, dtype, was, rows, cols);
			/* noop: the codes are not written */
			*(float *)a.q.noop = 1.0f;
			*(float *)a.q.scale = 7.0f;
			a.y = y;
			KC_RUN(ACT_FWD, &a);
			free(was);
		}
		kc_reset();
	}
}

TEST_ALSO(odd, act_fwd, 4, .parts = 4);

/* of element i of dx */
static double act_bwd_tol(const struct te_k_act_bwd *a, const void *x, const void *dy, int64_t i)
{
	const int64_t width = a->gated ? 2 * a->cols : a->cols, r = i / width, c = i % width;
	const int second = c >= a->cols;
	const int64_t k = second ? c - a->cols : c;
	const double v = tt_get(a->dtype, x, r * width + k);
	const double g = fabs((double)tt_get(a->dtype, dy, r * a->cols + k));
	const double gate =
		a->gated ? fabs((double)tt_get(a->dtype, x, r * width + a->cols + k)) : 1.0;

	/* |act(v)| <= |v| + 1 */
	if (second)
		return g * act_tol(a->act, v, fabs(v) + 1.0) + 1e-37;
	return g * gate * act_d_tol(a->act, v) + 1e-37;
}

TEST_EACH(act, act_bwd, 4 * TE_ACT_COUNT, .parts = 4)
{
	const int32_t dtype = kl_types[_i & 1], act = _i / 4;
	const int gated = _i >> 1 & 1;

	for (size_t k = kl_first(kl_nshapes()); k < kl_nshapes(); k += kl_every()) {
		const int64_t rows = kl_shapes[k].rows, cols = kl_shapes[k].cols, n = rows * cols;
		const int64_t width = cols * (1 + gated), nx = rows * width;
		const int64_t nparts = TE_K_NPARTS(rows);
		const int side = (int)tt_rand_int(0, 3);
		struct te_k_act_bwd a = { kc_normal(dtype, n, 1.0f),
					  act_input(dtype, nx),
					  kc_poison(dtype, nx),
					  NULL,
					  rows,
					  cols,
					  { 0 },
					  act,
					  gated,
					  dtype,
					  0 };
		const float *part;
		double *tol = malloc((size_t)nx * sizeof(*tol));

		ck_assert_ptr_nonnull(tol);
		for (int64_t i = 0; i < nx; i++)
			tol[i] = act_bwd_tol(&a, a.x, a.dy, i);
		if (k % 3)
			a.part = kc_poison(TE_DTYPE_FP32, nparts * width);
		if (side)
			a.q = kc_q_blocks(kl_fp8[k & 1], (int32_t)tt_rand_int(0, 2), rows, width,
					  NULL);
		if (side == 1)
			a.q.col = NULL;
		if (side == 3)
			a.q.row = NULL;
		if (!gated && k % 4 == 1)
			a.dx = (void *)a.dy;
		if (!gated && k % 4 == 2)
			a.dx = (void *)a.x;
		kc_defer(a.dx);
		kc_defer(a.part);
		kc_defer_q(&a.q);
		KC_RUN(ACT_BWD, &a);
		for (int64_t i = 0; i < nx; i++)
			kc_near(a.dx, i,
				tol[i] + (4.0 * U32 + 2.0 * tt_unit(dtype)) *
						 fabs((double)tt_get(dtype, a.dx, i)));
		kc_check_q(&a.q, dtype, kc_got(a.dx), rows, width);
		/* sums of the device's dx, in the specified order: equal bits */
		part = a.part ? kc_got(a.part) : NULL;
		for (int64_t p = 0; part && p < nparts; p++)
			for (int64_t c = 0; c < width; c++) {
				const float got = part[p * width + c];
				float sum = 0.0f;

				for (int64_t r = p * 64; r < rows && r < p * 64 + 64; r++)
					sum += tt_get(dtype, kc_got(a.dx), r * width + c);
				if (got != sum && !(isnan(got) && isnan(sum)))
					ck_abort_msg("part %lld column %lld: got %.9g, want %.9g",
						     (long long)p, (long long)c, (double)got,
						     (double)sum);
			}
		if (side) {
			a.q.noop = kc_word(1.0f);
			*(float *)a.q.scale = 7.0f;
			KC_RUN(ACT_BWD, &a);
		}
		free(tol);
		kc_reset();
	}
}

TEST_ALSO(odd, act_bwd, 4, .parts = 4);
