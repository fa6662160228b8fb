/* t/kernels/host_kernels_acts.c - activations and their derivatives. */
#include "config.h"

#include <float.h>
#include <math.h>

#include <te/op.h>

#include "host_kernels_lib.h"

/* ---- activations: act and derivative in FP64; a: the argument of the sigmoid ---- */

static double sigmoid(double x)
{
	return 1.0 / (1.0 + exp(-x));
}

static double act_ref(int act, double x, double *ret_d, double *ret_a)
{
	const double r = x > 0.0 ? x : 0.0;
	double s, t, u;

	*ret_a = 0.0;
	switch (act) {
	case TE_ACT_GELU: /* the tanh approximation, as published */
		u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
		t = tanh(u);
		*ret_a = 2.0 * u;
		/* 1 - t and 1 + t by way of exp, else FP64 loses the tails */
		s = sigmoid(2.0 * u);
		*ret_d = s + 0.5 * x * (4.0 * s * sigmoid(-2.0 * u)) * 0.7978845608028654 *
				     (1.0 + 3.0 * 0.044715 * x * x);
		if (fabs(x) < 3.0)
			ck_assert(fabs(x * s - 0.5 * x * (1.0 + t)) < 1e-14);
		return x * s;
	case TE_ACT_QGELU:
		*ret_a = 1.702 * x;
		s = sigmoid(1.702 * x);
		*ret_d = s + 1.702 * x * s * sigmoid(-1.702 * x);
		return x * s;
	case TE_ACT_RELU:
		*ret_d = x > 0.0;
		return r;
	case TE_ACT_SRELU:
		*ret_d = 2.0 * r;
		return r * r;
	case TE_ACT_SILU:
		*ret_a = x;
		s = sigmoid(x);
		*ret_d = s + x * s * sigmoid(-x);
		return x * s;
	case TE_ACT_GELU_ERF:
		*ret_a = 0.5 * x * x; /* the argument of exp */
		s = 0.5 * erfc(-x * M_SQRT1_2);
		*ret_d = s + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
		return x * s;
	case TE_ACT_TANH:
		*ret_a = 2.0 * x;
		*ret_d = 4.0 * sigmoid(2.0 * x) * sigmoid(-2.0 * x);
		return tanh(x);
	default:
		*ret_a = x;
		s = sigmoid(x);
		*ret_d = s * sigmoid(-x);
		return s;
	}
}

/*
 * The sigmoid's argument carries up to 6 roundings, which exp turns into a relative error of 6 |a|
 * U32; exp, the sum and the quotient add 4.4. Where exp(-a) overflows, beyond |a| = 88, the
 * sigmoid is 0 where 2^-127 is due, and subnormal results lose up to 2^-149. A
 * derivative also has 1 - s, whose error U32 counts absolutely, times |x| and the polynomial.
 */
static double act_bound(double x, double a, double value)
{
	return (12 + 12 * fabs(a)) * U32 * fabs(value) + 0x1p-126 * (1.0 + fabs(x));
}

static double act_d_bound(int act, double x, double a, double d)
{
	const double slope = act == TE_ACT_GELU ? 1.6 * (1.0 + 0.134145 * x * x) : 1.702;
	const double s = act == TE_ACT_RELU || act == TE_ACT_SRELU ? 0.0 : sigmoid(a);
	const double wide = s * (1.0 + fabs(x) * slope);

	/* beyond |a| = 40, s times 1 - s is below the rounding of s */
	return (16 + 16 * fmin(fabs(a), 40.0)) * U32 *
		       (wide * fmin(1.0, exp(1.0 - fabs(a)) + U32) + s + fabs(d)) +
	       0x1p-120 * (1.0 + fabs(x) * slope);
}

static void act_inputs(int32_t dtype, void *x, int64_t n)
{
	static const float edge[] = {
		0.0f,	-0.0f, 1e-40f, -1e-40f, 1e-3f,	5.0f,	 -5.0f, 10.0f,
		-10.0f, 30.0f, -30.0f, 80.0f,	-80.0f, -100.0f, 1e4f,	-1e4f
	};

	for (int64_t i = 0; i < n; i++)
		tt_set(dtype, x, i, i < (int64_t)TT_LEN(edge) ? edge[i] : 3.0f * tt_rand_normal());
}

CASE(act, "host numeric");

TEST_EACH(act, activations_forward_and_backward, 4 * TE_ACT_COUNT)
{
	const int32_t dtype = hk_types[_i & 1];
	const int gated = _i >> 1 & 1, act = _i >> 2;

	for (size_t k = 0; k < HK_NSHAPES; k++) {
		const int64_t rows = hk_shapes[k].rows, cols = hk_shapes[k].cols, n = rows * cols;
		const int64_t xcols = gated ? 2 * cols : cols, nx = rows * xcols;
		const int64_t nparts = TE_K_NPARTS(rows);
		void *x = hk_fresh(dtype, nx), *y = hk_fresh(dtype, n),
		     *dy = hk_normal(dtype, n, 1.0f);
		void *dx = hk_fresh(dtype, nx);
		float *part = hk_fresh(TE_DTYPE_FP32, nparts * xcols);
		struct te_k_act_fwd f = { .x = x,
					  .y = y,
					  .rows = rows,
					  .cols = cols,
					  .act = act,
					  .gated = gated,
					  .dtype = dtype };
		struct te_k_act_bwd b = { .dy = dy,
					  .x = x,
					  .dx = dx,
					  .part = part,
					  .rows = rows,
					  .cols = cols,
					  .act = act,
					  .gated = gated,
					  .dtype = dtype };
		struct hk_side s;

		act_inputs(dtype, x, nx);
		te__h_act_fwd(&f);
		te__h_act_bwd(&b);
		for (int64_t i = 0; i < n; i++) {
			const int64_t at = i / cols * xcols + i % cols;
			const double v = tt_get(dtype, x, at), g = tt_get(dtype, dy, i);
			const double gate = gated ? (double)tt_get(dtype, x, at + cols) : 1.0;
			double d, a, value = act_ref(act, v, &d, &a), want = value * gate;
			const double tol = act_bound(v, a, value);

			hk_check_near(tt_get(dtype, y, i), want,
				      tol * fabs(gate) + (2 * U32 + tt_unit(dtype)) * fabs(want) +
					      0x1p-133,
				      "y", i);
			want = g * gate * d;
			hk_check_near(tt_get(dtype, dx, at), want,
				      act_d_bound(act, v, a, d) * fabs(g * gate) +
					      (4 * U32 + tt_unit(dtype)) * fabs(want) + 0x1p-133,
				      "dx", i);
			if (gated) {
				want = g * value;
				hk_check_near(tt_get(dtype, dx, at + cols), want,
					      tol * fabs(g) +
						      (2 * U32 + tt_unit(dtype)) * fabs(want) +
						      0x1p-133,
					      "dgate", i);
			}
		}
		hk_check_end(dtype, y, n);
		hk_check_end(dtype, dx, nx);
		for (int64_t p = 0; p < nparts; p++)
			for (int64_t c = 0; c < xcols; c++) {
				float sum = 0.0f;

				for (int64_t r = p * 64; r < rows && r < p * 64 + 64; r++)
					sum += tt_get(dtype, dx, r * xcols + c);
				ck_assert_float_eq(part[p * xcols + c], sum);
			}
		hk_check_end(TE_DTYPE_FP32, part, nparts * xcols);

		/* quantized: the codes of y, with and without writing y */
		for (int pass = 0; pass < 3; pass++) {
			void *was = hk_copy(dtype, y, n), *dwas = hk_copy(dtype, dx, nx);

			hk_side_init(&s, TE_DTYPE_E4M3, n, 20.0f);
			f.q = s.q;
			f.q.noop = pass == 0 ? &hk_noop_on : NULL;
			f.y = pass == 2 ? NULL : y;
			te__h_act_fwd(&f);
			if (pass == 0)
				hk_check_side_untouched(&s, n);
			else
				hk_check_side(&s, dtype, y, rows, cols);
			hk_check_same(dtype, y, was, n);
			hk_side_free(&s);
			hk_side_init(&s, TE_DTYPE_E5M2, nx, 20.0f);
			b.q = s.q;
			b.q.noop = f.q.noop;
			b.dx = pass == 2 ? NULL : dx;
			te__h_act_bwd(&b);
			if (pass == 0)
				hk_check_side_untouched(&s, nx);
			else
				hk_check_side(&s, dtype, dx, rows, xcols);
			hk_check_same(dtype, dx, dwas, nx);
			hk_side_free(&s);
			free(was);
			free(dwas);
		}
		if (!gated) { /* in place, over either input */
			void *into = hk_copy(dtype, dy, n);

			b.q = (struct te_k_q){ 0 };
			b.part = NULL;
			b.dy = b.dx = into;
			te__h_act_bwd(&b);
			hk_check_same(dtype, into, dx, n);
			b.dy = dy;
			b.dx = x;
			te__h_act_bwd(&b);
			hk_check_same(dtype, x, dx, n);
			free(into);
		}
		free(x);
		free(y);
		free(dy);
		free(dx);
		free(part);
	}
}

/* huge and infinite numbers give the limits, though x * 0 or 1.702 x would not */
TEST_EACH(act, activations_of_huge_and_nan, TE_ACT_COUNT)
{
	float x[9] = { NAN,  1e30f,   -1e30f,	3e38f,	  -3e38f,
		       FLT_MAX, -FLT_MAX, INFINITY, -INFINITY };
	float dy[9], y[9], dx[9];
	struct te_k_act_fwd f = { .x = x, .y = y, .rows = 1, .cols = 9, .act = _i };
	struct te_k_act_bwd b = { .dy = dy, .x = x, .dx = dx, .rows = 1, .cols = 9, .act = _i };

	for (int i = 0; i < 9; i++)
		dy[i] = 1.0f;

	te__h_act_fwd(&f);
	te__h_act_bwd(&b);
	ck_assert(isnan(y[0]));
	if (_i != TE_ACT_RELU) /* its slope is a step */
		ck_assert(isnan(dx[0]));
	for (int i = 1; i < 9; i++) {
		const int up = x[i] > 0.0f;

		switch (_i) {
		case TE_ACT_SRELU:
			ck_assert_float_eq(y[i], up ? x[i] * x[i] : 0.0f);
			ck_assert_float_eq(dx[i], up ? 2.0f * x[i] : 0.0f);
			break;
		case TE_ACT_SIGMOID:
			ck_assert_float_eq(y[i], up ? 1.0f : 0.0f);
			ck_assert_float_eq(dx[i], 0.0f);
			break;
		case TE_ACT_TANH:
			ck_assert_float_eq(y[i], up ? 1.0f : -1.0f);
			ck_assert_float_eq(dx[i], 0.0f);
			break;
		default:
			ck_assert_float_eq(y[i], up ? x[i] : 0.0f);
			ck_assert_float_eq(dx[i], up ? 1.0f : 0.0f);
			/* x s, of x below 0 */
			ck_assert_int_eq(!!signbit(y[i]), _i != TE_ACT_RELU && !up);
		}
	}
}
