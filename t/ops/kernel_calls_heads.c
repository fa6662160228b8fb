/* t/ops/kernel_calls_heads.c - rotary position embedding and attention over packed heads. */
#include "config.h"

#include <math.h>

#include "kernel_calls_cases.h"
#include "tt_num.h"

static int64_t batch, seqlen;
static int32_t nheads, nkv, head_dim;

/* the widest heads of the backend */
static int32_t most_channels(void)
{
	return strcmp(te_ctx_backend(ctx), "host") ? 128 : 256;
}

static struct te_spec packed(int32_t dim)
{
	batch = tt_rand_int(1, 3);
	seqlen = tt_rand_int(1, 90);
	nkv = (int32_t)tt_rand_int(1, 3);
	nheads = nkv * (int32_t)tt_rand_int(1, 3);
	head_dim = dim;
	kc_rows = batch * seqlen;
	kc_cols = ((int64_t)nheads + 2 * nkv) * head_dim;
	return op_run_spec(kc_type, 3, batch, seqlen, kc_cols);
}

KC_CASE(heads);

/* _i: replay, type, frequencies and positions are given, pairs are interleaved */
TEST_EACH(heads, rope_equals_the_op, 8)
{
	float given[128], first, at[3 * 90];
	struct te_kernel_rope_opts o = TE_KERNEL_ROPE_OPTS_INIT;
	struct te_rope_attrs a = TE_ROPE_ATTRS_INIT;
	struct te_spec in[2];
	struct te_tensor *y, *dx;
	struct te_op *op;
	struct op_run r;

	kc_type = kc_types[_i >> 1 & 1];
	in[0] = packed(2 * (int32_t)tt_rand_int(1, 128));
	in[1] = op_run_spec(TE_DTYPE_INT32, 2, batch, seqlen, 0);
	o.nheads = a.nheads = nheads;
	o.nkv = a.nkv = nkv;
	o.head_dim = a.head_dim = head_dim;
	o.theta = a.theta = tt_rand_float(100, 10000);
	for (int32_t i = 0; i < head_dim / 2; i++)
		given[i] = tt_rand_float(-1, 1);
	o.inv_freq = a.inv_freq = _i >> 2 ? given : NULL;
	o.interleaved = a.interleaved = (int32_t)tt_rand_int(0, 1);
	a.positions = _i >> 2;
	DO(te_op_rope(&a, "r", &op));
	first = given[0];
	given[0] = 9; /* the op has a copy */
	kc_op_init(&r, op, in);
	if (a.positions) {
		for (int64_t i = 0; i < kc_rows; i++)
			at[i] = (float)tt_rand_int(-5, 99999);
		tt_tensor_set(r.call.ex[0].hp, at);
		o.position = r.call.ex[0].hp;
	}
	kc_op_passes(&r);
	given[0] = first;
	y = kc_poison(kc_type, kc_rows, kc_cols);
	dx = kc_poison(kc_type, kc_rows, kc_cols);
	kc_begin(_i & 1);
	DO(te_kernel_rope_forward(st, r.call.x.hp, y, &o));
	DO(te_kernel_rope_backward(st, r.call.dy.hp, dx, &o));
	kc_end(_i & 1);
	kc_same("y", y, r.call.y.hp);
	kc_same("dx", dx, r.call.dx.hp);
	DO(te_kernel_rope_forward(st, r.call.x.hp, r.call.x.hp, &o));
	kc_same("y in x", r.call.x.hp, y);
	kc_op_fini(&r);
}

/* _i: replay, type, dropout, a scale with a window and a softcap */
TEST_EACH(heads, attention_equals_the_op, 16)
{
	struct te_kernel_attention_opts o = TE_KERNEL_ATTENTION_OPTS_INIT;
	struct te_attention_attrs a = TE_ATTENTION_ATTRS_INIT;
	struct te_tensor *y, *lse, *dx;
	struct te_spec in;
	struct te_op *op;
	struct op_run r;
	size_t nbytes;
	void *ws;

	kc_type = kc_types[_i >> 1 & 1];
	in = packed((int32_t)tt_rand_int(1, most_channels()));
	o.nheads = a.nheads = nheads;
	o.nkv = a.nkv = nkv;
	o.head_dim = a.head_dim = head_dim;
	o.dropout = a.dropout = _i >> 2 & 1 ? 0.25f : 0.0f;
	o.scale = a.scale = _i >> 3 ? 0.3f : 0.0f;
	o.window = a.window = _i >> 3 ? (int32_t)tt_rand_int(1, 30) : 0;
	o.softcap = a.softcap = _i >> 3 ? 2.0f : 0.0f;
	DO(te_op_attention(&a, "a", &op));
	kc_op_init(&r, op, &in);
	kc_op_passes(&r);
	o.tag = r.call.tag;
	o.rng = r.call.rng;
	y = kc_poison(kc_type, kc_rows, (int64_t)nheads * head_dim);
	lse = kc_poison(TE_DTYPE_FP32, nheads, kc_rows);
	dx = kc_poison(kc_type, kc_rows, kc_cols);
	nbytes = te_kernel_attention_ws_nbytes(kc_type, batch, seqlen, nheads, head_dim);
	ws = kc_ws(nbytes);
	kc_begin(_i & 1);
	DO(te_kernel_attention_forward(st, r.call.x.hp, y, lse, &o));
	DO(te_kernel_attention_backward(st, r.call.dy.hp, r.call.x.hp, y, lse, dx, ws, nbytes,
					&o));
	kc_end(_i & 1);
	kc_same("y", y, r.call.y.hp);
	kc_same("lse", lse, r.saved[0]);
	kc_same("dx", dx, r.call.dx.hp);
	kc_op_fini(&r);
}

/* _i: replay, type, recipe */
TEST_EACH(heads, rope_quantizes_as_te_quantize, 8)
{
	const char *recipe = kc_quant_recipes[_i >> 2];
	struct te_kernel_rope_opts o = TE_KERNEL_ROPE_OPTS_INIT;
	struct te_tensor *x, *y[2], *dx[2];
	struct kc_quants z[2];
	struct te_spec in;

	kc_type = kc_types[_i >> 1 & 1];
	in = packed(2 * (int32_t)tt_rand_int(1, 128));
	o.nheads = nheads;
	o.nkv = nkv;
	o.head_dim = head_dim;
	x = kc_reshaped(kc_normal(kc_type, kc_rows, kc_cols), &in);
	for (int i = 0; i < 2; i++) {
		z[i] = kc_quants(recipe, kc_rows, kc_cols);
		y[i] = kc_poison(kc_type, kc_rows, kc_cols);
		dx[i] = kc_poison(kc_type, kc_rows, kc_cols);
	}
	DO(te_kernel_rope_forward(st, x, y[1], &o));
	DO(te_kernel_rope_backward(st, x, dx[1], &o));
	o.slot = 1;
	kc_begin(_i & 1);
	o.quant = z[0].of[0];
	o.q = z[0].q[0];
	DO(te_kernel_rope_forward(st, x, y[0], &o));
	o.quant = z[1].of[0];
	o.q = z[1].q[0];
	DO(te_kernel_rope_backward(st, x, dx[0], &o));
	kc_end(_i & 1);
	kc_same("y", y[0], y[1]);
	kc_same("dx", dx[0], dx[1]);
	kc_equals_quantize(&z[0], y[1], 0);
	kc_equals_quantize(&z[1], dx[1], 0);
	fails(te_kernel_rope_backward(st, x, x, &o), -EINVAL, "dx is the memory of dy");
	if (strcmp(recipe, "fp8-current")) {
		DO(te_fill(st, te_tensor_data(o.q), 0x55, te_tensor_nbytes(o.q)));
		DO(te_kernel_rope_backward(st, x, NULL, &o));
		kc_same("q", z[1].q[0], z[1].q[1]);
	} else {
		fails(te_kernel_rope_backward(st, x, NULL, &o), -EINVAL,
		      "te_kernel_rope_backward: dx is NULL, but recipe fp8-current reads it");
	}
	DO(te_stream_sync(st));
	for (int i = 0; i < 2; i++)
		kc_quants_drop(&z[i]);
}

/* _i: replay, dropout, NO_AMAX, recipe */
TEST_EACH(heads, attention_quantizes_as_te_quantize, 16)
{
	const char *recipe = kc_quant_recipes[_i >> 3];
	struct te_kernel_attention_opts o = TE_KERNEL_ATTENTION_OPTS_INIT;
	struct te_tensor *x, *y[2], *lse[2], *words;
	struct te_spec in;
	struct kc_quants z;
	int64_t cols;

	kc_type = TE_DTYPE_BF16;
	in = packed((int32_t)tt_rand_int(1, most_channels()));
	o.nheads = nheads;
	o.nkv = nkv;
	o.head_dim = head_dim;
	cols = (int64_t)nheads * head_dim;
	words = kc_zeros(TE_DTYPE_FP32, 1, 4);
	o.dropout = _i >> 1 & 1 ? 0.25f : 0.0f;
	o.rng.seed = te_tensor_data(words);
	o.rng.offset = o.rng.seed + 1;
	x = kc_reshaped(kc_normal(kc_type, kc_rows, kc_cols), &in);
	z = kc_quants(recipe, kc_rows, cols);
	for (int i = 0; i < 2; i++) {
		y[i] = kc_poison(kc_type, kc_rows, cols);
		lse[i] = kc_poison(TE_DTYPE_FP32, nheads, kc_rows);
	}
	DO(te_kernel_attention_forward(st, x, y[1], lse[1], &o));
	o.quant = z.of[0];
	o.slot = 1;
	o.q = z.q[0];
	o.quant_flags = _i >> 2 & 1 ? TE_QUANTIZE_NO_AMAX : 0;
	kc_begin(_i & 1);
	DO(te_kernel_attention_forward(st, x, y[0], lse[0], &o));
	kc_end(_i & 1);
	kc_same("y", y[0], y[1]);
	kc_same("lse", lse[0], lse[1]);
	kc_equals_quantize(&z, y[1], o.quant_flags);
	if (strcmp(recipe, "fp8-current")) {
		DO(te_fill(st, te_tensor_data(o.q), 0x55, te_tensor_nbytes(o.q)));
		DO(te_kernel_attention_forward(st, x, NULL, lse[0], &o));
		kc_same("q", z.q[0], z.q[1]);
	} else {
		fails(te_kernel_attention_forward(st, x, NULL, lse[0], &o), -EINVAL,
		      "te_kernel_attention_forward: y is NULL, but recipe fp8-current reads it");
	}
	DO(te_stream_sync(st));
	kc_quants_drop(&z);
}

/* a planned block of a model, forward and backward, and the same calls. _i: type */
TEST_EACH(heads, calls_equal_a_plan, 2)
{
	struct te_kernel_attention_opts ao = TE_KERNEL_ATTENTION_OPTS_INIT;
	struct te_kernel_rope_opts ro = TE_KERNEL_ROPE_OPTS_INIT;
	struct te_attention_attrs aa = TE_ATTENTION_ATTRS_INIT;
	struct te_tensor *n, *r, *a, *y, *d[4], *mean, *rstd, *lse, *dg, *db, *x, *dy, *want;
	struct te_rope_attrs ra = TE_ROPE_ATTRS_INIT;
	struct te_act_attrs ca = TE_ACT_ATTRS_INIT;
	struct te_norm_attrs na = TE_NORM_ATTRS_INIT;
	size_t norm_nbytes, attn_nbytes;
	struct te_op *op[5] = { NULL };
	struct te_weight_info w[2];
	struct te_plan *plan;
	struct te_spec in;
	int64_t out;

	kc_type = kc_types[_i];
	in = packed(2 * (int32_t)tt_rand_int(1, 32));
	na.width = kc_cols;
	ao.nheads = ro.nheads = aa.nheads = ra.nheads = nheads;
	ao.nkv = ro.nkv = aa.nkv = ra.nkv = nkv;
	ao.head_dim = ro.head_dim = aa.head_dim = ra.head_dim = head_dim;
	DO(te_op_layernorm(&na, "norm", &op[0]));
	DO(te_op_rope(&ra, "rope", &op[1]));
	DO(te_op_attention(&aa, "attention", &op[2]));
	DO(te_op_activation(&ca, "act", &op[3]));
	plan = kc_plan(op, &in, TE_PLAN_INPUT_GRAD);
	kc_set_normal(te_plan_input(plan, "x"));
	x = kc_copy(te_plan_input(plan, "x"));
	DO(te_plan_forward(plan, st, 0));
	want = kc_copy(te_plan_output(plan));
	/* the plan may reuse its memory after the pass that reads it */
	kc_set_normal(te_plan_output_grad(plan));
	dy = kc_copy(te_plan_output_grad(plan));
	DO(te_plan_backward(plan, st));
	for (int i = 0; i < 2; i++)
		w[i] = kc_weight(i);

	out = (int64_t)nheads * head_dim;
	n = kc_reshaped(kc_poison(kc_type, kc_rows, kc_cols), &in);
	r = kc_reshaped(kc_poison(kc_type, kc_rows, kc_cols), &in);
	a = kc_poison(kc_type, kc_rows, out);
	y = kc_poison(kc_type, kc_rows, out);
	for (int i = 0; i < 4; i++)
		d[i] = kc_poison(kc_type, kc_rows, i ? kc_cols : out);
	mean = kc_poison(TE_DTYPE_FP32, 1, kc_rows);
	rstd = kc_poison(TE_DTYPE_FP32, 1, kc_rows);
	lse = kc_poison(TE_DTYPE_FP32, nheads, kc_rows);
	dg = kc_zeros(TE_DTYPE_FP32, 1, kc_cols);
	db = kc_zeros(TE_DTYPE_FP32, 1, kc_cols);
	norm_nbytes = te_kernel_norm_ws_nbytes(kc_rows, kc_cols, 2);
	attn_nbytes = te_kernel_attention_ws_nbytes(kc_type, batch, seqlen, nheads, head_dim);
	DO(te_kernel_norm_forward(st, x, w[0].master, w[1].master, n, mean, rstd, NULL));
	DO(te_kernel_rope_forward(st, n, r, &ro));
	DO(te_kernel_attention_forward(st, r, a, lse, &ao));
	DO(te_kernel_act_forward(st, a, y, NULL));
	kc_same("y", y, want);
	DO(te_kernel_act_backward(st, dy, a, d[0], NULL, NULL, 0, NULL));
	DO(te_kernel_attention_backward(st, d[0], r, a, lse, d[1], kc_ws(attn_nbytes), attn_nbytes,
					&ao));
	DO(te_kernel_rope_backward(st, kc_reshaped(d[1], &in), kc_reshaped(d[2], &in), &ro));
	DO(te_kernel_norm_backward(st, d[2], x, w[0].master, mean, rstd, d[3], dg, db,
				   kc_ws(norm_nbytes), norm_nbytes, NULL));
	kc_same("dx", d[3], te_plan_input_grad(plan));
	kc_same("dgamma", dg, w[0].grad);
	kc_same("dbeta", db, w[1].grad);
}

TEST(heads, rope_names_the_argument)
{
	struct te_kernel_rope_opts o = TE_KERNEL_ROPE_OPTS_INIT;
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 12), *h = kc_normal(TE_DTYPE_BF16, 6, 12);
	struct te_tensor *w = kc_normal(TE_DTYPE_FP32, 6, 13), *y = kc_poison(TE_DTYPE_FP32, 6, 12);
	struct kc_quants block = kc_quants("fp8-block", 6, 12), z = kc_quants("fp8-delayed", 6, 12);
	struct te_tensor *flat;
	const int64_t n = 72;

	DO(te_tensor_view(x, 0, 1, &n, &flat));
#define FWD(code, text, x, y) \
	fails(te_kernel_rope_forward(st, x, y, &o), code, "te_kernel_rope_forward: " text)
	fails(te_kernel_rope_forward(st, x, y, NULL), -EINVAL, "no struct te_kernel_rope_opts");
	FWD(-EINVAL, "nheads is 0", x, y);
	o.nheads = 1;
	FWD(-EINVAL, "nkv is 0", x, y);
	o.nkv = 1;
	o.head_dim = 3;
	FWD(-EINVAL, "head_dim is 3, not an even number", x, y);
	o.head_dim = 4;
	o.theta = -1;
	FWD(-EINVAL, "theta is -1", x, y);
	o.theta = 10;
	o.interleaved = 2;
	FWD(-EINVAL, "interleaved is 2, not 0 or 1", x, y);
	o.interleaved = 0;
	o.position = kc_zeros(TE_DTYPE_INT32, 1, 5);
	FWD(-TE_ESHAPE, "position has 5 elements, not 6", x, y);
	o.position = NULL;
	FWD(-EINVAL, "x is NULL", NULL, y);
	FWD(-EINVAL, "y is NULL, and there is no q", x, NULL);
	FWD(-TE_EDTYPE, "y is bf16, not fp32", x, h);
	FWD(-TE_ESHAPE, "x is [6, 13], not [6, 12]", w, y);
	FWD(-TE_ESHAPE, "y is [6, 13], not [6, 12]", x, w);
	FWD(-TE_ESHAPE, "x has 1 extents, it needs 2", flat, y);
	fails(te_kernel_rope_backward(st, x, NULL, &o), -EINVAL,
	      "te_kernel_rope_backward: dx is NULL");
	fails(te_kernel_rope_backward(st, NULL, x, &o), -EINVAL,
	      "te_kernel_rope_backward: dy is NULL");
	o.q = z.q[0];
	FWD(-EINVAL, "quant is NULL, but q is given", x, y);
	o.quant = z.of[0];
	FWD(-TE_EDTYPE, "q is e5m2, but slot 0 makes e4m3", x, y);
	o.quant_flags = 4;
	FWD(-EINVAL, "unknown flags 0x4", x, y);
	o.quant_flags = 0;
	o.slot = 1;
	o.quant = block.of[0];
	o.q = block.q[0];
	FWD(-EOPNOTSUPP, "q has block scaling", x, y);
#undef FWD
	kc_quants_drop(&block);
	kc_quants_drop(&z);
	te_tensor_unref(flat);
}

TEST(heads, attention_names_the_argument)
{
	struct te_kernel_attention_opts o = TE_KERNEL_ATTENTION_OPTS_INIT;
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 16), *y = kc_poison(TE_DTYPE_FP32, 6, 8);
	struct te_tensor *lse = kc_poison(TE_DTYPE_FP32, 2, 6), *i = kc_zeros(TE_DTYPE_INT32, 6, 8);
	struct te_tensor *dy = kc_normal(TE_DTYPE_FP32, 6, 8);
	struct te_tensor *dx = kc_poison(TE_DTYPE_FP32, 6, 16);
	struct te_tensor *big = kc_normal(TE_DTYPE_FP32, 7, 16), *off;
	const size_t nbytes = te_kernel_attention_ws_nbytes(TE_DTYPE_FP32, 1, 6, 2, 4);
	struct kc_quants block = kc_quants("fp8-block", 6, 8), z = kc_quants("fp8-delayed", 6, 8);
	struct te_tensor *h[2] = { kc_normal(TE_DTYPE_BF16, 6, 16),
				   kc_poison(TE_DTYPE_BF16, 6, 8) };
	const int64_t shape[2] = { 6, 16 };
	void *ws = kc_ws(nbytes);

	DO(te_tensor_view(big, 1, 2, shape, &off));
	o.nheads = 2;
	o.head_dim = 4;
#define FWD(code, text, ...)                                             \
	fails(te_kernel_attention_forward(st, __VA_ARGS__, &o), code,    \
	      "te_kernel_attention_forward: " text)
	FWD(-EINVAL, "nheads 2 is no multiple of nkv 0", x, y, lse);
	o.nkv = 1;
	o.scale = NAN;
	FWD(-EINVAL, "scale is ", x, y, lse);
	o.scale = 0;
	o.window = -1;
	FWD(-EINVAL, "window is -1", x, y, lse);
	o.window = 0;
	o.softcap = INFINITY;
	FWD(-EINVAL, "softcap is inf", x, y, lse);
	o.softcap = 0;
	o.full = 2;
	FWD(-EINVAL, "full is 2", x, y, lse);
	o.full = 0;
	o.right = 1;
	FWD(-EINVAL, "right is 1, not 0, but full is 0", x, y, lse);
	o.full = 1;
	o.right = -1;
	FWD(-EINVAL, "right is -1, not 0 or more", x, y, lse);
	o.full = o.right = 0;
	o.first = i;
	FWD(-TE_ESHAPE, "first has 48 elements, not 6", x, y, lse);
	o.first = lse;
	FWD(-TE_EDTYPE, "first is fp32, not int32", x, y, lse);
	o.first = NULL;
	o.dropout = 1;
	FWD(-EINVAL, "dropout is 1, not in [0,1)", x, y, lse);
	o.dropout = 0.5f;
	FWD(-EINVAL, "dropout is 0.5, but rng.seed is NULL", x, y, lse);
	o.dropout = 0;
	FWD(-EINVAL, "x is NULL", NULL, y, lse);
	FWD(-EINVAL, "y is NULL", x, NULL, lse);
	FWD(-EINVAL, "lse is NULL", x, y, NULL);
	FWD(-TE_EDTYPE, "y is int32, not fp32", x, i, lse);
	FWD(-TE_ESHAPE, "x is [6, 8], not [6, 16]", y, y, lse);
	FWD(-TE_ESHAPE, "lse has 96 elements, not 12", x, y, x);
	FWD(-EINVAL, "x at ", off, y, lse);
	tt_said("is not aligned to 16 bytes");
#define BWD(code, text, ...)                                             \
	fails(te_kernel_attention_backward(st, __VA_ARGS__, &o), code,   \
	      "te_kernel_attention_backward: " text)
	BWD(-EINVAL, "dy is NULL", NULL, x, y, lse, dx, ws, nbytes);
	BWD(-EINVAL, "y is NULL", dy, x, NULL, lse, dx, ws, nbytes);
	BWD(-EINVAL, "dx is NULL", dy, x, y, lse, NULL, ws, nbytes);
	BWD(-EINVAL, "dx is the memory of x", dy, x, y, lse, x, ws, nbytes);
	BWD(-EINVAL, "dx at ", dy, x, y, lse, off, ws, nbytes);
	BWD(-EINVAL, "ws is NULL", dy, x, y, lse, dx, NULL, nbytes);
	BWD(-EINVAL, "ws_nbytes is 47, but 48 bytes are needed", dy, x, y, lse, dx, ws, nbytes - 1);
	o.quant = z.of[0];
	o.slot = 1;
	FWD(-EINVAL, "q is NULL, but quant is given", h[0], h[1], lse);
	o.q = z.q[0];
	FWD(-EOPNOTSUPP, "x is fp32, this call casts from bf16 only", x, y, lse);
	BWD(-EINVAL, "quant is for the forward pass", dy, x, y, lse, dx, ws, nbytes);
	o.quant = block.of[0];
	o.q = block.q[0];
	FWD(-EOPNOTSUPP, "q has block scaling", h[0], h[1], lse);
	kc_quants_drop(&block);
	kc_quants_drop(&z);
#undef FWD
#undef BWD
	ck_assert_uint_eq(te_kernel_attention_ws_nbytes(TE_DTYPE_FP32, 1, 6, 0, 4), 0);
	ck_assert_uint_eq(te_kernel_attention_ws_nbytes(TE_DTYPE_BF16, 1, 6, 2, 0), 0);
	te_tensor_unref(off);
}
