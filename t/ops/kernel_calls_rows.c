/* t/ops/kernel_calls_rows.c - norms and activations. */
#include "config.h"

#include "kernel_calls_cases.h"

/* all passes of an op on x [rows, cols] */
static void run_op(struct op_run *r, struct te_op *op, int64_t rows, int64_t cols)
{
	const struct te_spec in = op_run_spec(kc_type, 2, rows, cols, 0);

	kc_op_init(r, op, &in);
	kc_op_passes(r);
}

/* ---- norms ---- */

KC_CASE(rows);

/* _i: replay, type, LayerNorm, zero-centered */
TEST_EACH(rows, norm_equals_the_op, 16)
{
	const int replay = _i & 1, beta = _i >> 2 & 1;
	struct te_norm_attrs a = TE_ATTRS(norm, .width = kc_cols, .eps = tt_rand_float(0, 1e-2f),
					  .flags = _i >> 3 ? TE_NORM_ZERO_CENTERED : 0);
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	struct te_tensor *y, *mean, *rstd, *dx, *dgamma, *dbeta;
	const size_t nbytes = te_kernel_norm_ws_nbytes(kc_rows, kc_cols, 1 + beta);
	void *ws = kc_ws(nbytes);
	struct te_op *op;
	struct op_run r;

	kc_type = kc_types[_i >> 1 & 1];
	DO(beta ? te_op_layernorm(&a, "n", &op) : te_op_rmsnorm(&a, "n", &op));
	run_op(&r, op, kc_rows, kc_cols);
	y = kc_poison(kc_type, kc_rows, kc_cols);
	dx = kc_poison(kc_type, kc_rows, kc_cols);
	rstd = kc_poison(TE_DTYPE_FP32, 1, kc_rows);
	mean = beta ? kc_poison(TE_DTYPE_FP32, 1, kc_rows) : NULL;
	dgamma = kc_zeros(TE_DTYPE_FP32, 1, kc_cols);
	dbeta = beta ? kc_zeros(TE_DTYPE_FP32, 1, kc_cols) : NULL;
	o.flags = a.flags;
	o.eps = a.eps;
	kc_begin(replay);
	DO(te_kernel_norm_forward(st, r.call.x.hp, r.master[0], beta ? r.master[1] : NULL, y, mean,
				  rstd, &o));
	DO(te_kernel_norm_backward(st, r.call.dy.hp, r.call.x.hp, r.master[0], mean, rstd, dx,
				   dgamma, dbeta, ws, nbytes, &o));
	kc_end(replay);
	kc_same("y", y, r.call.y.hp);
	kc_same("rstd", rstd, r.saved[0]);
	kc_same("dx", dx, r.call.dx.hp);
	kc_same("dgamma", dgamma, r.grad[0]);
	if (beta) {
		kc_same("mean", mean, r.saved[1]);
		kc_same("dbeta", dbeta, r.grad[1]);
	}
	kc_op_fini(&r);
}

/* dx may be dy or the residual; gradients of weights are those of the dy before */
TEST_EACH(rows, norm_works_in_place, 2)
{
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	const size_t nbytes = te_kernel_norm_ws_nbytes(kc_rows, kc_cols, 1);
	struct te_tensor *x, *g, *y, *dy, *res, *rstd, *dx, *dg[2], *dyc, *resc;
	void *ws = kc_ws(nbytes);

	kc_type = kc_types[_i];
	x = kc_normal(kc_type, kc_rows, kc_cols);
	dy = kc_normal(kc_type, kc_rows, kc_cols);
	res = kc_normal(kc_type, kc_rows, kc_cols);
	g = kc_normal(TE_DTYPE_FP32, 1, kc_cols);
	y = kc_copy(x);
	dyc = kc_copy(dy);
	resc = kc_copy(res);
	dx = kc_poison(kc_type, kc_rows, kc_cols);
	rstd = kc_poison(TE_DTYPE_FP32, 1, kc_rows);
	dg[0] = kc_zeros(TE_DTYPE_FP32, 1, kc_cols);
	dg[1] = kc_zeros(TE_DTYPE_FP32, 1, kc_cols);
	DO(te_kernel_norm_forward(st, y, g, NULL, y, NULL, rstd, NULL));
	DO(te_kernel_norm_forward(st, x, g, NULL, dx, NULL, rstd, NULL));
	kc_same("y", y, dx);
	o.residual = res;
	DO(te_kernel_norm_backward(st, dy, x, g, NULL, rstd, dx, dg[0], NULL, ws, nbytes, &o));
	DO(te_kernel_norm_backward(st, dyc, x, g, NULL, rstd, dyc, dg[1], NULL, ws, nbytes, &o));
	kc_same("dx in dy", dyc, dx);
	kc_same("dgamma", dg[1], dg[0]);
	o.residual = resc;
	DO(te_kernel_norm_backward(st, dy, x, g, NULL, rstd, resc, NULL, NULL, NULL, 0, &o));
	kc_same("dx in the residual", resc, dx);
	/* dgamma alone */
	dg[1] = kc_zeros(TE_DTYPE_FP32, 1, kc_cols);
	DO(te_kernel_norm_backward(st, dy, x, g, NULL, rstd, NULL, dg[1], NULL, ws, nbytes, NULL));
	kc_same("dgamma", dg[1], dg[0]);
}

/* ---- activations ---- */

/* _i: replay, type, gated, act */
TEST_EACH(rows, activation_equals_the_op, 8 * TE_ACT_COUNT)
{
	const int replay = _i & 1, gated = _i >> 2 & 1;
	struct te_act_attrs a = TE_ATTRS(act, .act = (enum te_act)(_i >> 3), .gated = gated);
	const struct te_bias_attrs bias = TE_ATTRS(bias, .width = kc_cols * (1 + gated));
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	const int64_t cols = kc_cols * (1 + gated);
	struct te_tensor *y, *dx, *dbias, *dxc;
	const size_t nbytes = te_kernel_act_ws_nbytes(kc_rows, cols);
	void *ws = kc_ws(nbytes);
	struct te_op *op;
	struct op_run r;

	kc_type = kc_types[_i >> 1 & 1];
	DO(te_op_activation(&a, "a", &op));
	run_op(&r, op, kc_rows, cols);
	y = kc_poison(kc_type, kc_rows, kc_cols);
	dx = kc_poison(kc_type, kc_rows, cols);
	dbias = kc_zeros(TE_DTYPE_FP32, 1, cols);
	o.act = a.act;
	o.gated = gated;
	kc_begin(replay);
	DO(te_kernel_act_forward(st, r.call.x.hp, y, &o));
	DO(te_kernel_act_backward(st, r.call.dy.hp, r.call.x.hp, dx, dbias, ws, nbytes, &o));
	kc_end(replay);
	kc_same("y", y, r.call.y.hp);
	kc_same("dx", dx, r.call.dx.hp);
	kc_op_fini(&r);
	/* the gradient of a bias whose output is x */
	DO(te_op_bias(&bias, "b", &op));
	run_op(&r, op, kc_rows, cols);
	DO(te_copy(st, te_tensor_data(r.call.dy.hp), te_tensor_data(dx), te_tensor_nbytes(dx)));
	DO(te_fill(st, te_tensor_data(r.grad[0]), 0, te_tensor_nbytes(r.grad[0])));
	op_run_dw(&r);
	kc_same("dbias", dbias, r.grad[0]);
	kc_op_fini(&r);
	if (gated)
		return;
	dxc = kc_normal(kc_type, kc_rows, cols);
	y = kc_copy(dxc);
	dx = kc_poison(kc_type, kc_rows, cols);
	DO(te_kernel_act_backward(st, dxc, y, dx, NULL, NULL, 0, &o));
	DO(te_kernel_act_backward(st, dxc, y, dxc, NULL, NULL, 0, &o));
	kc_same("dx in dy", dxc, dx);
	DO(te_kernel_act_forward(st, y, dx, &o));
	DO(te_kernel_act_forward(st, y, y, &o));
	kc_same("y in x", y, dx);
}

/* ---- quantized output ---- */

/* _i: replay, type, NO_AMAX, recipe */
TEST_EACH(rows, norm_quantizes_as_te_quantize, 24)
{
	const int replay = _i & 1, current = _i >> 3 == 1;
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	struct kc_quants z = kc_quants(kc_quant_recipes[_i >> 3], kc_rows, kc_cols);
	struct te_tensor *x, *g, *y, *rstd;

	kc_type = kc_types[_i >> 1 & 1];
	x = kc_normal(kc_type, kc_rows, kc_cols);
	g = kc_normal(TE_DTYPE_FP32, 1, kc_cols);
	y = kc_poison(kc_type, kc_rows, kc_cols);
	rstd = kc_poison(TE_DTYPE_FP32, 1, kc_rows);
	o.quant = z.of[0];
	o.slot = 1;
	o.q = z.q[0];
	o.quant_flags = _i >> 2 & 1 ? TE_QUANTIZE_NO_AMAX : 0;
	kc_begin(replay);
	DO(te_kernel_norm_forward(st, x, g, NULL, y, NULL, rstd, &o));
	kc_end(replay);
	kc_equals_quantize(&z, y, o.quant_flags);
	/* and without the result, where the recipe does not read it */
	DO(te_fill(st, te_tensor_data(z.q[0]), 0x55, te_tensor_nbytes(z.q[0])));
	if (current) {
		fails(te_kernel_norm_forward(st, x, g, NULL, NULL, NULL, rstd, &o), -EINVAL,
		      "te_kernel_norm_forward: y is NULL, but recipe fp8-current reads it");
	} else {
		DO(te_kernel_norm_forward(st, x, g, NULL, NULL, NULL, rstd, &o));
		kc_same("q", z.q[0], z.q[1]);
	}
	DO(te_stream_sync(st));
	kc_quants_drop(&z);
}

/*
 * The gradient of x with the residual's, and gradients of weights in the same call. _i: replay,
 * type, LayerNorm, recipe
 */
TEST_EACH(rows, norm_backward_quantizes_as_te_quantize, 16)
{
	const int layer = _i >> 2 & 1;
	const size_t nbytes = te_kernel_norm_ws_nbytes(kc_rows, kc_cols, 1 + layer);
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	struct kc_quants z = kc_quants(kc_quant_recipes[_i >> 3], kc_rows, kc_cols);
	struct te_tensor *x, *g, *dy, *dx[2], *mean, *rstd, *dg[2], *db[2];
	void *ws = kc_ws(nbytes);

	kc_type = kc_types[_i >> 1 & 1];
	x = kc_normal(kc_type, kc_rows, kc_cols);
	dy = kc_normal(kc_type, kc_rows, kc_cols);
	o.residual = kc_normal(kc_type, kc_rows, kc_cols);
	g = kc_normal(TE_DTYPE_FP32, 1, kc_cols);
	mean = layer ? kc_normal(TE_DTYPE_FP32, 1, kc_rows) : NULL;
	rstd = kc_normal(TE_DTYPE_FP32, 1, kc_rows);
	for (int i = 0; i < 2; i++) {
		dx[i] = kc_poison(kc_type, kc_rows, kc_cols);
		dg[i] = kc_zeros(TE_DTYPE_FP32, 1, kc_cols);
		db[i] = layer ? kc_zeros(TE_DTYPE_FP32, 1, kc_cols) : NULL;
	}
	DO(te_kernel_norm_backward(st, dy, x, g, mean, rstd, dx[1], dg[1], db[1], ws, nbytes, &o));
	o.quant = z.of[0];
	o.slot = 1;
	o.q = z.q[0];
	kc_begin(_i & 1);
	DO(te_kernel_norm_backward(st, dy, x, g, mean, rstd, dx[0], dg[0], db[0], ws, nbytes, &o));
	kc_end(_i & 1);
	kc_same("dx", dx[0], dx[1]);
	kc_same("dgamma", dg[0], dg[1]);
	if (layer)
		kc_same("dbeta", db[0], db[1]);
	kc_equals_quantize(&z, dx[1], 0);
	kc_quants_drop(&z);
}

TEST_EACH(rows, activation_quantizes_as_te_quantize, 24)
{
	const int replay = _i & 1, gated = _i >> 2 & 1, current = _i >> 3 == 1;
	const int64_t cols = kc_cols * (1 + gated);
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	struct kc_quants z = kc_quants(kc_quant_recipes[_i >> 3], kc_rows, kc_cols);
	struct kc_quants dz = kc_quants(kc_quant_recipes[_i >> 3], kc_rows, cols);
	struct te_tensor *x, *y, *dy, *dx, *dbias[2];
	const size_t nbytes = te_kernel_act_ws_nbytes(kc_rows, cols);
	void *ws = kc_ws(nbytes);

	kc_type = kc_types[_i >> 1 & 1];
	x = kc_normal(kc_type, kc_rows, cols);
	dy = kc_normal(kc_type, kc_rows, kc_cols);
	y = kc_poison(kc_type, kc_rows, kc_cols);
	dx = kc_poison(kc_type, kc_rows, cols);
	dbias[0] = kc_zeros(TE_DTYPE_FP32, 1, cols);
	dbias[1] = kc_zeros(TE_DTYPE_FP32, 1, cols);
	o.act = TE_ACT_SILU;
	o.gated = gated;
	o.slot = 1;
	kc_begin(replay);
	o.quant = z.of[0];
	o.q = z.q[0];
	DO(te_kernel_act_forward(st, x, y, &o));
	o.quant = dz.of[0];
	o.q = dz.q[0];
	DO(te_kernel_act_backward(st, dy, x, dx, dbias[0], ws, nbytes, &o));
	kc_end(replay);
	kc_equals_quantize(&z, y, 0);
	kc_equals_quantize(&dz, dx, 0);
	if (!current) {
		DO(te_fill(st, te_tensor_data(dz.q[0]), 0x55, te_tensor_nbytes(dz.q[0])));
		DO(te_kernel_act_backward(st, dy, x, NULL, dbias[1], ws, nbytes, &o));
		kc_same("q", dz.q[0], dz.q[1]);
		kc_same("dbias", dbias[1], dbias[0]);
	}
	DO(te_stream_sync(st));
	kc_quants_drop(&z);
	kc_quants_drop(&dz);
}

/* ---- what is refused ---- */

TEST(rows, norm_names_the_argument)
{
	static const char fwd[] = "te_kernel_norm_forward: ", bwd[] = "te_kernel_norm_backward: ";
	struct te_kernel_norm_opts o = TE_KERNEL_NORM_OPTS_INIT;
	const size_t nbytes = te_kernel_norm_ws_nbytes(6, 8, 2);
	struct kc_quants z = kc_quants("fp8-delayed", 6, 8), small = kc_quants("fp8-delayed", 6, 7);
	struct kc_quants block = kc_quants("fp8-block", 6, 8);
	struct te_tensor *w6 = kc_poison(TE_DTYPE_FP32, 6, 8);
	char *ws = kc_ws(nbytes + 16);
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 8), *y = kc_poison(TE_DTYPE_FP32, 6, 8);
	struct te_tensor *h = kc_normal(TE_DTYPE_BF16, 6, 8), *g = kc_normal(TE_DTYPE_FP32, 1, 8);
	struct te_tensor *b = kc_normal(TE_DTYPE_FP32, 1, 8), *m = kc_poison(TE_DTYPE_FP32, 1, 6);
	struct te_tensor *s = kc_poison(TE_DTYPE_FP32, 1, 6), *dg = kc_zeros(TE_DTYPE_FP32, 1, 8);
	struct te_tensor *db = kc_zeros(TE_DTYPE_FP32, 1, 8), *part, *first, *other;
	struct te_tensor *w = kc_normal(TE_DTYPE_FP32, 7, 8), *i32 = kc_zeros(TE_DTYPE_INT32, 6, 8);
	const int64_t shape[2] = { 6, 8 };
	struct te_ctx *second;

	DO(tt_ctx_new(&second));
	DO(te_tensor_create(second, TE_DTYPE_FP32, 2, shape, NULL, &other));
	DO(te_tensor_view(w, 0, 2, shape, &first));
	DO(te_tensor_view(w, 8, 2, shape, &part));
#define FWD(code, text, ...)                                                                \
	do {                                                                                \
		fails(te_kernel_norm_forward(st, __VA_ARGS__, &o), code, text);             \
		tt_said(fwd);                                                               \
	} while (0)
	fails(te_kernel_norm_forward(NULL, x, g, b, y, m, s, NULL), -EINVAL, "stream is NULL");
	FWD(-EINVAL, "x is NULL", NULL, g, b, y, m, s);
	FWD(-EINVAL, "gamma is NULL", x, NULL, b, y, m, s);
	FWD(-EINVAL, "y is NULL, and there is no q", x, g, b, NULL, m, s);
	FWD(-EINVAL, "rstd is NULL", x, g, b, y, m, NULL);
	FWD(-EINVAL, "beta is NULL, but mean is not", x, g, NULL, y, m, s);
	FWD(-EINVAL, "mean is NULL, but beta is not", x, g, b, y, NULL, s);
	FWD(-TE_EDTYPE, "x is int32, not fp32 or bf16", i32, g, b, y, m, s);
	FWD(-TE_EDTYPE, "y is bf16, not fp32", x, g, b, h, m, s);
	FWD(-TE_EDTYPE, "gamma is bf16, not fp32", x, h, b, y, m, s);
	FWD(-TE_ESHAPE, "gamma has 6 elements, not 8", x, s, b, y, m, s);
	FWD(-TE_ESHAPE, "beta has 6 elements, not 8", x, g, s, y, m, s);
	FWD(-TE_ESHAPE, "mean has 8 elements, not 6", x, g, b, y, b, s);
	FWD(-TE_ESHAPE, "rstd has 8 elements, not 6", x, g, b, y, m, b);
	FWD(-TE_ESHAPE, "y is [7, 8], not [6, 8]", x, g, b, w, m, s);
	FWD(-EINVAL, "mean is the memory of rstd", x, g, b, y, s, s);
	FWD(-EINVAL, "x and the stream are of two contexts", other, g, b, y, m, s);
	FWD(-EINVAL, "y and the stream are of two contexts", x, g, b, other, m, s);
	o.flags = 8;
	FWD(-EINVAL, "unknown flags 0x8", x, g, b, y, m, s);
	o.flags = 0;
	o.eps = -1;
	FWD(-EINVAL, "eps is -1", x, g, b, y, m, s);
	o.eps = 0;
	o.residual = x;
	FWD(-EINVAL, "residual is for the backward pass", x, g, b, y, m, s);
	o.residual = NULL;
	o.q = z.q[0];
	FWD(-EINVAL, "quant is NULL, but q is given", x, g, b, y, m, s);
	o.quant = z.of[0];
	o.slot = 2;
	FWD(-EINVAL, "slot 2 of 2", x, g, b, y, m, s);
	o.slot = 0;
	FWD(-TE_EDTYPE, "q is e5m2, but slot 0 makes e4m3", x, g, b, y, m, s);
	o.slot = 1;
	o.q = small.q[0];
	FWD(-TE_ESHAPE, "q is [6, 7], not [6, 8]", x, g, b, y, m, s);
	o.q = NULL;
	FWD(-EINVAL, "q is NULL, but quant is given", x, g, b, y, m, s);
	o.q = z.q[0];
	o.quant_flags = 4;
	FWD(-EINVAL, "unknown flags 0x4", x, g, b, y, m, s);
	o = (struct te_kernel_norm_opts)TE_KERNEL_NORM_OPTS_INIT;
#define BWD(code, text, ...)                                                                \
	do {                                                                                \
		fails(te_kernel_norm_backward(st, __VA_ARGS__, &o), code, text);            \
		tt_said(bwd);                                                               \
	} while (0)
	BWD(-EINVAL, "dy is NULL", NULL, x, g, m, s, y, dg, db, ws, nbytes);
	BWD(-EINVAL, "x is NULL", y, NULL, g, m, s, y, dg, db, ws, nbytes);
	BWD(-EINVAL, "dx and dgamma are NULL", y, x, g, m, s, NULL, NULL, NULL, ws, nbytes);
	BWD(-EINVAL, "dbeta is NULL, but dgamma is not", y, x, g, m, s, y, dg, NULL, ws, nbytes);
	BWD(-EINVAL, "dbeta is given, but mean is NULL", y, x, g, NULL, s, y, dg, db, ws, nbytes);
	BWD(-EINVAL, "dx is the memory of x", y, x, g, m, s, x, dg, db, ws, nbytes);
	BWD(-EINVAL, "dx and dy overlap", first, x, g, m, s, part, dg, db, ws, nbytes);
	BWD(-EINVAL, "ws is NULL, but", y, x, g, m, s, y, dg, db, NULL, nbytes);
	BWD(-EINVAL, "ws_nbytes is ", y, x, g, m, s, y, dg, db, ws, nbytes - 1);
	BWD(-EINVAL, "not aligned to 256", y, x, g, m, s, y, dg, db, ws + 16, nbytes);
	o.residual = w;
	BWD(-TE_ESHAPE, "residual is [7, 8]", y, x, g, m, s, y, dg, db, ws, nbytes);
	o.residual = NULL;
	o.q = z.q[0];
	BWD(-EINVAL, "quant is NULL, but q is given", y, x, g, m, s, w6, dg, db, ws, nbytes);
	o.quant = z.of[0];
	BWD(-TE_EDTYPE, "q is e5m2, but slot 0 makes e4m3", y, x, g, m, s, w6, dg, db, ws, nbytes);
	o.slot = 1;
	BWD(-EINVAL, "quant is given, but dx is NULL", y, x, g, m, s, NULL, dg, db, ws, nbytes);
	BWD(-EINVAL, "dx is the memory of dy", y, x, g, m, s, y, dg, db, ws, nbytes);
	o.quant = block.of[0];
	o.q = block.q[0];
	BWD(-EOPNOTSUPP, "q has block scaling", y, x, g, m, s, w6, dg, db, ws, nbytes);
#undef FWD
#undef BWD
	ck_assert_uint_eq(te_kernel_norm_ws_nbytes(0, 8, 1), 0);
	te_tensor_unref(first);
	te_tensor_unref(part);
	te_tensor_unref(other);
	te_ctx_unref(second);
	kc_quants_drop(&z);
	kc_quants_drop(&small);
	kc_quants_drop(&block);
}

TEST(rows, activation_names_the_argument)
{
	static const char fwd[] = "te_kernel_act_forward: ", bwd[] = "te_kernel_act_backward: ";
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	const size_t nbytes = te_kernel_act_ws_nbytes(6, 9);
	void *ws = kc_ws(nbytes);
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 9), *y = kc_poison(TE_DTYPE_FP32, 6, 9);
	struct te_tensor *h = kc_normal(TE_DTYPE_BF16, 6, 9), *b = kc_zeros(TE_DTYPE_FP32, 1, 9);
	struct te_tensor *even = kc_normal(TE_DTYPE_FP32, 6, 18);

#define FWD(code, text, ...)                                                                \
	do {                                                                                \
		fails(te_kernel_act_forward(st, __VA_ARGS__, &o), code, text);              \
		tt_said(fwd);                                                               \
	} while (0)
	FWD(-EINVAL, "x is NULL", NULL, y);
	FWD(-EINVAL, "y is NULL, and there is no q", x, NULL);
	FWD(-TE_EDTYPE, "y is bf16, not fp32", x, h);
	FWD(-TE_ESHAPE, "y is [1, 9], not [6, 9]", x, b);
	o.act = (enum te_act)TE_ACT_COUNT;
	FWD(-EINVAL, "act is 8, not 0 to 7", x, y);
	o.act = TE_ACT_SILU;
	o.gated = 2;
	FWD(-EINVAL, "gated is 2, not 0 or 1", x, y);
	o.gated = 1;
	FWD(-TE_ESHAPE, "gated, but x has 9 columns", x, y);
	FWD(-TE_ESHAPE, "y is [6, 18], not [6, 9]", even, even);
#define BWD(code, text, ...)                                                                \
	do {                                                                                \
		fails(te_kernel_act_backward(st, __VA_ARGS__, &o), code, text);             \
		tt_said(bwd);                                                               \
	} while (0)
	BWD(-TE_ESHAPE, "dy is [6, 18], not [6, 9]", even, even, even, NULL, NULL, 0);
	o.gated = 0;
	BWD(-EINVAL, "dy is NULL", NULL, x, y, NULL, NULL, 0);
	BWD(-EINVAL, "dx is NULL, and there is no q", y, x, NULL, NULL, NULL, 0);
	BWD(-TE_ESHAPE, "dbias has 54 elements, not 9", y, x, y, x, ws, nbytes);
	BWD(-EINVAL, "ws is NULL", y, x, y, b, NULL, 0);
#undef FWD
#undef BWD
}

/* a refused call makes the capture fail, as other calls do */
TEST(rows, a_refused_call_fails_the_capture)
{
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 8);
	struct te_recording *rec;

	DO(te_capture_begin(st));
	fails(te_kernel_act_forward(st, x, NULL, NULL), -EINVAL, "y is NULL");
	fails(te_capture_end(st, &rec), -EINVAL, "y is NULL");
}
