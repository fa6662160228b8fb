/* t/ops/kernel_calls_train.c - cross-entropy. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "kernel_calls_cases.h"
#include "tt_num.h"

/* ---- cross-entropy ---- */

/* targets in range, beyond the classes, and ignored */
static void set_targets(struct te_tensor *t, int64_t nclasses)
{
	const int64_t n = te_tensor_nelems(t);
	float *v = malloc((size_t)n * sizeof(*v));

	for (int64_t i = 0; i < n; i++) {
		const int64_t k = tt_rand_int(0, 9);

		v[i] = !k ? -100.0f : (float)tt_rand_int(k == 1 ? -3 : 0, nclasses - (k > 2));
	}
	tt_tensor_set(t, v);
	free(v);
}

/* _i: replay, type, padding columns */
START_TEST(cross_entropy_equals_the_op)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te_cross_entropy_attrs a = TE_CROSS_ENTROPY_ATTRS_INIT;
	const size_t nbytes = te_kernel_cross_entropy_ws_nbytes(kc_rows);
	const struct te_recipe recipe =
		op_run_recipe((kc_type = kc_types[_i >> 1 & 1], kc_recipe()));
	const struct te_spec in[2] = { op_run_spec(kc_type, 2, kc_rows, kc_cols, 0),
				       op_run_spec(TE_DTYPE_INT32, 1, kc_rows, 0, 0) };
	struct te_tensor *loss, *lse, *count, *dx;
	void *ws = kc_ws(nbytes);
	struct te_op *op;
	struct op_run r;

	a.nclasses = _i >> 2 ? tt_rand_int(1, kc_cols) : kc_cols;
	a.grad_scale = tt_rand_float(0.1f, 2.0f);
	o.nclasses = _i >> 2 ? a.nclasses : 0;
	o.grad_scale = a.grad_scale;
	DO(te_op_cross_entropy(&a, "c", &op));
	op_run_init(&r, ctx, op, &recipe, in);
	kc_set_normal(r.call.x.hp);
	set_targets(r.call.ex[0].hp, a.nclasses);
	op_run_forward(&r);
	op_run_backward(&r);
	loss = kc_poison(TE_DTYPE_FP32, 1, 1);
	lse = kc_poison(TE_DTYPE_FP32, 1, kc_rows);
	count = kc_poison(TE_DTYPE_FP32, 1, 1);
	dx = kc_poison(kc_type, kc_rows, kc_cols);
	kc_begin(_i & 1);
	DO(te_kernel_cross_entropy_forward(st, r.call.x.hp, r.call.ex[0].hp, loss, lse, count, ws,
					   nbytes, &o));
	DO(te_kernel_cross_entropy_backward(st, r.call.x.hp, r.call.ex[0].hp, lse, count, dx, &o));
	kc_end(_i & 1);
	kc_same("loss", loss, r.call.y.hp);
	kc_same("lse", lse, r.saved[0]);
	kc_same("count", count, r.saved[1]);
	kc_same("dx", dx, r.call.dx.hp);
	DO(te_kernel_cross_entropy_backward(st, r.call.x.hp, r.call.ex[0].hp, lse, count,
					    r.call.x.hp, &o));
	kc_same("dx in x", r.call.x.hp, dx);
	op_run_fini(&r);
	te_op_unref(op);
}
END_TEST

START_TEST(cross_entropy_names_the_argument)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 8), *t = kc_zeros(TE_DTYPE_INT32, 1, 6);
	struct te_tensor *few = kc_zeros(TE_DTYPE_INT32, 1, 5), *h = kc_normal(TE_DTYPE_BF16, 6, 8);
	struct te_tensor *l = kc_poison(TE_DTYPE_FP32, 1, 6), *a = kc_poison(TE_DTYPE_FP32, 1, 1);
	struct te_tensor *b = kc_poison(TE_DTYPE_FP32, 1, 1);
	const size_t nbytes = te_kernel_cross_entropy_ws_nbytes(6);
	void *ws = kc_ws(nbytes);

#define FWD(code, text, ...)                                               \
	fails(te_kernel_cross_entropy_forward(st, __VA_ARGS__, &o), code,  \
	      "te_kernel_cross_entropy_forward: " text)
	FWD(-EINVAL, "x is NULL", NULL, t, a, l, b, ws, nbytes);
	FWD(-TE_EDTYPE, "x is int32, not fp32 or bf16", t, t, a, l, b, ws, nbytes);
	FWD(-EINVAL, "targets is NULL", x, NULL, a, l, b, ws, nbytes);
	FWD(-TE_EDTYPE, "targets is fp32, not int32", x, l, a, l, b, ws, nbytes);
	FWD(-TE_ESHAPE, "targets has 5 elements, not 6", x, few, a, l, b, ws, nbytes);
	FWD(-TE_ESHAPE, "loss has 6 elements, not 1", x, t, l, l, b, ws, nbytes);
	FWD(-TE_ESHAPE, "lse has 1 elements, not 6", x, t, a, a, b, ws, nbytes);
	FWD(-EINVAL, "loss is the memory of count", x, t, a, l, a, ws, nbytes);
	FWD(-EINVAL, "ws is NULL, but 24 bytes are needed", x, t, a, l, b, NULL, 0);
	o.nclasses = 9;
	FWD(-TE_ESHAPE, "x has 8 columns, but nclasses is 9", x, t, a, l, b, ws, nbytes);
	o.nclasses = -1;
	FWD(-EINVAL, "nclasses is -1", x, t, a, l, b, ws, nbytes);
	o.nclasses = 0;
	o.grad_scale = INFINITY;
	FWD(-EINVAL, "grad_scale is inf", x, t, a, l, b, ws, nbytes);
	o.grad_scale = 1;
#undef FWD
#define BWD(code, text, ...)                                               \
	fails(te_kernel_cross_entropy_backward(st, __VA_ARGS__, &o), code, \
	      "te_kernel_cross_entropy_backward: " text)
	BWD(-EINVAL, "lse is NULL", x, t, NULL, b, x);
	BWD(-EINVAL, "count is NULL", x, t, l, NULL, x);
	BWD(-EINVAL, "dx is NULL", x, t, l, b, NULL);
	BWD(-TE_EDTYPE, "dx is bf16, not fp32", x, t, l, b, h);
#undef BWD
}
END_TEST

void kc_train_cases(Suite *s)
{
	TCase *c = kc_case(s, "train");

	tcase_add_loop_test(c, cross_entropy_equals_the_op, 0, 8);
	tcase_add_test(c, cross_entropy_names_the_argument);
}
