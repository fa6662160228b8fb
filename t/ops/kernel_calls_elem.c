/* t/ops/kernel_calls_elem.c - transpose, embedding, bias, residual and dropout. */
#include "config.h"

#include "kernel_calls_cases.h"
#include "tt_num.h"

/* ---- transpose ---- */

/* the elements of x [rows, cols], as bytes, transposed */
static void is_transpose(const struct te_tensor *x, const struct te_tensor *y)
{
	const int64_t rows = te_tensor_rows(x), cols = te_tensor_cols(x);
	const size_t nbytes = te_tensor_nbytes(x), elem = nbytes / (size_t)(rows * cols);
	unsigned char *from = tt_bytes(te_tensor_data(x), nbytes);
	unsigned char *to = tt_bytes(te_tensor_data(y), nbytes);

	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++)
			ck_assert_mem_eq(to + (size_t)(c * rows + r) * elem,
					 from + (size_t)(r * cols + c) * elem, elem);
	free(from);
	free(to);
}

/* any bytes */
static struct te_tensor *anything(enum te_dtype dtype)
{
	struct te_tensor *t = kc_poison(dtype, kc_rows, kc_cols);
	const size_t nbytes = te_tensor_nbytes(t);
	unsigned char *p = malloc(nbytes);

	for (size_t i = 0; i < nbytes; i++)
		p[i] = (unsigned char)tt_rand_u64();
	DO(te_tensor_write(t, p, nbytes));
	free(p);
	return t;
}

static void same_word(const float *got, const float *want)
{
	float *a = tt_bytes(got, sizeof(*a)), *b = tt_bytes(want, sizeof(*b));

	ck_assert_mem_eq(a, b, sizeof(*a));
	free(a);
	free(b);
}

/* a device word of that value */
static float *word(float x)
{
	float *w = kc_ws(sizeof(*w));

	DO(te_copy(st, w, &x, sizeof(x)));
	DO(te_stream_sync(st));
	return w;
}

KC_CASE(elem);

/* _i: replay, type; twice is the tensor itself */
TEST_EACH(elem, transpose_moves_elements, 10)
{
	static const enum te_dtype types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_FP16,
					       TE_DTYPE_INT32, TE_DTYPE_UINT8 };
	struct te_kernel_transpose_opts o = TE_KERNEL_TRANSPOSE_OPTS_INIT;
	const enum te_dtype type = types[_i >> 1];
	struct te_tensor *x = anything(type), *y = kc_poison(type, kc_cols, kc_rows);
	struct te_tensor *z = kc_poison(type, kc_rows, kc_cols), *kept = kc_copy(z);

	kc_begin(_i & 1);
	DO(te_kernel_transpose(st, x, y, NULL));
	DO(te_kernel_transpose(st, y, z, NULL));
	kc_end(_i & 1);
	is_transpose(x, y);
	kc_same("twice", z, x);
	DO(te_copy(st, te_tensor_data(z), te_tensor_data(kept), te_tensor_nbytes(z)));
	o.noop = word(1.0f);
	DO(te_kernel_transpose(st, y, z, &o));
	kc_same("noop", z, kept);
	o.noop = word(0.0f);
	DO(te_kernel_transpose(st, y, z, &o));
	kc_same("noop 0", z, x);
}

/* of row-wise codes: the column-wise copy that te_quantize() makes. _i: replay, type */
TEST_EACH(elem, transpose_makes_the_column_copy, 4)
{
	static const enum te_dtype dtypes[2] = { TE_DTYPE_E4M3, TE_DTYPE_E5M2 };
	const struct te_recipe recipe = op_run_recipe("fp8-current");
	const enum te_dtype type = dtypes[_i >> 1];
	const int64_t turned[2] = { kc_cols, kc_rows };
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, kc_rows, kc_cols), *q, *col, *y;
	float *scale_inv = word(-1.0f);
	struct te_quant *quant;

	q = kc_fp8(type, kc_rows, kc_cols, TE_SCALING_TENSOR);
	DO(te_quant_create(ctx, &recipe, 1, &type, &quant));
	DO(te_quantize(st, quant, 0, x, q, NULL, 0));
	DO(te_tensor_wrap(ctx, type, 2, turned, te_tensor_coldata(q), NULL, te_tensor_scale_inv(q),
			  &col));
	DO(te_tensor_wrap(ctx, type, 2, turned, kc_ws(te_tensor_nbytes(q)), NULL, scale_inv, &y));
	kc_begin(_i & 1);
	DO(te_kernel_transpose(st, q, y, NULL));
	kc_end(_i & 1);
	is_transpose(q, y);
	is_transpose(q, col);
	same_word(scale_inv, te_tensor_scale_inv(q));
	/* into the copy itself, with one word of scale */
	DO(te_fill(st, te_tensor_coldata(q), 0x55, te_tensor_nbytes(q)));
	DO(te_kernel_transpose(st, q, col, NULL));
	is_transpose(q, col);
	te_tensor_unref(col);
	te_tensor_unref(y);
	te_quant_unref(quant);
}

TEST(elem, transpose_names_the_argument)
{
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 9), *y = kc_poison(TE_DTYPE_FP32, 9, 6);
	struct te_tensor *h = kc_poison(TE_DTYPE_BF16, 9, 6), *square;
	struct te_tensor *block = kc_fp8(TE_DTYPE_E4M3, 9, 6, TE_SCALING_1X128), *col;
	struct te_tensor *q = kc_fp8(TE_DTYPE_E4M3, 9, 6, TE_SCALING_TENSOR);
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	const int64_t shape[2] = { 6, 9 };

	o.flags = TE_TENSOR_COLWISE;
	DO(te_tensor_create(ctx, TE_DTYPE_E4M3, 2, shape, &o, &col));
	square = kc_normal(TE_DTYPE_FP32, 5, 5);
#define CALL(code, text, x, y) \
	fails(te_kernel_transpose(st, x, y, NULL), code, "te_kernel_transpose: " text)
	fails(te_kernel_transpose(NULL, x, y, NULL), -EINVAL, "stream is NULL");
	CALL(-EINVAL, "x is NULL", NULL, y);
	CALL(-EINVAL, "y is NULL", x, NULL);
	CALL(-TE_EDTYPE, "y is bf16, not fp32", x, h);
	CALL(-TE_ESHAPE, "y is [6, 9], not [9, 6]", x, x);
	CALL(-EINVAL, "y is the memory of x", square, square);
	CALL(-TE_EDTYPE, "y has scales of blocks, not one", q, block);
	CALL(-TE_EDTYPE, "x has scales of blocks, not one", block, q);
	CALL(-EINVAL, "x has no row-wise copy", col, q);
	CALL(-EINVAL, "y has no row-wise copy", q, col);
#undef CALL
	te_tensor_unref(col);
}

/* ---- embedding ---- */

/* tokens of the table and outside of it */
static void set_tokens(struct te_tensor *t, int64_t vocab)
{
	const int64_t n = te_tensor_nelems(t);
	float *v = malloc((size_t)n * sizeof(*v));

	for (int64_t i = 0; i < n; i++)
		v[i] = (float)tt_rand_int(-1, vocab);
	tt_tensor_set(t, v);
	free(v);
}

/* _i: replay, type, positions */
TEST_EACH(elem, embedding_equals_the_op, 8)
{
	const int64_t batch = tt_rand_int(1, 4), seqlen = tt_rand_int(1, 40);
	const int64_t max_pos = _i >> 2 ? seqlen + tt_rand_int(0, 9) : 0;
	const int64_t vocab = tt_rand_int(1, 50);
	const struct te_spec in = op_run_spec(TE_DTYPE_INT32, 2, batch, seqlen, 0);
	struct te_embedding_attrs a = TE_ATTRS(embedding, vocab, kc_cols, max_pos, 0.1f, 0);
	struct te_kernel_embedding_opts o = TE_KERNEL_EMBEDDING_OPTS_INIT;
	struct te_tensor *y, *dtable, *dpos = NULL;
	struct te_op *op;
	struct op_run r;

	kc_type = kc_types[_i >> 1 & 1];
	DO(te_op_embedding(&a, "e", &op));
	kc_op_init(&r, op, &in);
	set_tokens(r.call.x.hp, vocab);
	kc_op_passes(&r);
	y = kc_poison(kc_type, batch * seqlen, kc_cols);
	dtable = kc_zeros(TE_DTYPE_FP32, vocab, kc_cols);
	if (max_pos)
		dpos = kc_zeros(TE_DTYPE_FP32, max_pos, kc_cols);
	kc_begin(_i & 1);
	o.position = max_pos ? r.master[1] : NULL;
	DO(te_kernel_embedding_forward(st, r.call.x.hp, r.master[0], y, &o));
	o.dposition = dpos;
	DO(te_kernel_embedding_backward(st, r.call.dy.hp, r.call.x.hp, dtable, &o));
	kc_end(_i & 1);
	kc_same("y", y, r.call.y.hp);
	kc_same("dtable", dtable, r.grad[0]);
	if (max_pos) {
		kc_same("dposition", dpos, r.grad[1]);
		/* alone */
		o.dposition = kc_zeros(TE_DTYPE_FP32, max_pos, kc_cols);
		DO(te_kernel_embedding_backward(st, r.call.dy.hp, r.call.x.hp, NULL, &o));
		kc_same("dposition", o.dposition, dpos);
	}
	kc_op_fini(&r);
}

TEST(elem, embedding_names_the_argument)
{
	struct te_kernel_embedding_opts o = TE_KERNEL_EMBEDDING_OPTS_INIT;
	struct te_tensor *t = kc_zeros(TE_DTYPE_INT32, 2, 3), *w = kc_normal(TE_DTYPE_FP32, 7, 4);
	struct te_tensor *y = kc_poison(TE_DTYPE_FP32, 6, 4), *few = kc_normal(TE_DTYPE_FP32, 2, 4);
	struct te_tensor *pos = kc_normal(TE_DTYPE_FP32, 3, 4), *h = kc_normal(TE_DTYPE_BF16, 7, 4);
	struct te_tensor *wide = kc_normal(TE_DTYPE_FP32, 7, 5);

#define FWD(code, text, ...)                                                   \
	fails(te_kernel_embedding_forward(st, __VA_ARGS__, &o), code,          \
	      "te_kernel_embedding_forward: " text)
	fails(te_kernel_embedding_forward(NULL, t, w, y, NULL), -EINVAL, "stream is NULL");
	FWD(-EINVAL, "tokens is NULL", NULL, w, y);
	FWD(-EINVAL, "table is NULL", t, NULL, y);
	FWD(-EINVAL, "y is NULL", t, w, NULL);
	FWD(-TE_EDTYPE, "tokens is fp32, not int32", y, w, y);
	FWD(-TE_EDTYPE, "table is bf16, not fp32", t, h, y);
	FWD(-TE_EDTYPE, "y is int32, not fp32 or bf16", t, w, t);
	FWD(-TE_ESHAPE, "table is [7, 5], not [7, 4]", t, wide, y);
	FWD(-TE_ESHAPE, "y is [7, 4], not [6, 4]", t, w, w);
	o.position = few;
	FWD(-TE_ESHAPE, "position has 2 rows, but tokens are in rows of 3", t, w, y);
	o.position = h;
	FWD(-TE_EDTYPE, "position is bf16, not fp32", t, w, y);
	o.position = wide;
	FWD(-TE_ESHAPE, "position is [7, 5], not [7, 4]", t, w, y);
	o.position = NULL;
	o.dposition = pos;
	FWD(-EINVAL, "dposition is for the backward pass", t, w, y);
	o.dposition = NULL;
#define BWD(code, text, ...)                                                   \
	fails(te_kernel_embedding_backward(st, __VA_ARGS__, &o), code,         \
	      "te_kernel_embedding_backward: " text)
	BWD(-EINVAL, "dtable and dposition are NULL", y, t, NULL);
	BWD(-EINVAL, "dy is NULL", NULL, t, w);
	BWD(-EINVAL, "tokens is NULL", y, NULL, w);
	BWD(-TE_ESHAPE, "dtable is [7, 5], not [7, 4]", y, t, wide);
	BWD(-EINVAL, "dtable is the memory of dy", y, t, y);
	o.dposition = few;
	BWD(-TE_ESHAPE, "dposition has 2 rows, but tokens are in rows of 3", y, t, w);
	o.dposition = w;
	BWD(-EINVAL, "dtable is the memory of dposition", y, t, w);
#undef FWD
#undef BWD
}

/* ---- bias, residual ---- */

/* _i: replay, type */
TEST_EACH(elem, bias_equals_the_op, 4)
{
	const size_t nbytes = te_kernel_bias_ws_nbytes(kc_rows, kc_cols);
	const struct te_bias_attrs a = TE_ATTRS(bias, .width = kc_cols);
	struct te_tensor *y, *dbias, *bias;
	void *ws = kc_ws(nbytes);
	struct te_spec in;
	struct te_op *op;
	struct op_run r;

	kc_type = kc_types[_i >> 1];
	in = op_run_spec(kc_type, 2, kc_rows, kc_cols, 0);
	DO(te_op_bias(&a, "b", &op));
	kc_op_init(&r, op, &in);
	kc_op_passes(&r);
	bias = kc_type == TE_DTYPE_FP32 ? r.master[0] : r.all.weight[0].hp;
	y = kc_poison(kc_type, kc_rows, kc_cols);
	dbias = kc_zeros(TE_DTYPE_FP32, 1, kc_cols);
	kc_begin(_i & 1);
	DO(te_kernel_bias_forward(st, r.call.x.hp, bias, y));
	DO(te_kernel_bias_backward(st, r.call.dy.hp, dbias, ws, nbytes));
	kc_end(_i & 1);
	kc_same("y", y, r.call.y.hp);
	kc_same("dbias", dbias, r.grad[0]);
	DO(te_kernel_bias_forward(st, r.call.x.hp, bias, r.call.x.hp));
	kc_same("y in x", r.call.x.hp, y);
	kc_op_fini(&r);
}

/* _i: replay, type */
TEST_EACH(elem, add_equals_the_op, 4)
{
	struct te_spec in[2];
	struct te_tensor *y;
	struct te_op *op;
	struct op_run r;

	kc_type = kc_types[_i >> 1];
	in[0] = in[1] = op_run_spec(kc_type, 2, kc_rows, kc_cols, 0);
	DO(te_op_add("a", &op));
	kc_op_init(&r, op, in);
	kc_set_normal(r.call.ex[0].hp);
	kc_op_passes(&r);
	y = kc_poison(kc_type, kc_rows, kc_cols);
	kc_begin(_i & 1);
	DO(te_kernel_add(st, r.call.x.hp, r.call.ex[0].hp, y));
	kc_end(_i & 1);
	kc_same("y", y, r.call.y.hp);
	y = kc_copy(r.call.ex[0].hp);
	DO(te_kernel_add(st, r.call.x.hp, y, y));
	kc_same("y in b", y, r.call.y.hp);
	DO(te_kernel_add(st, r.call.x.hp, r.call.ex[0].hp, r.call.x.hp));
	kc_same("y in a", r.call.x.hp, y);
	kc_op_fini(&r);
}

TEST(elem, bias_and_add_name_the_argument)
{
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 9), *y = kc_poison(TE_DTYPE_FP32, 6, 9);
	struct te_tensor *h = kc_normal(TE_DTYPE_BF16, 6, 9), *b = kc_zeros(TE_DTYPE_FP32, 1, 9);
	struct te_tensor *w = kc_normal(TE_DTYPE_FP32, 7, 9), *i = kc_zeros(TE_DTYPE_INT32, 6, 9);
	const size_t nbytes = te_kernel_bias_ws_nbytes(6, 9);
	void *ws = kc_ws(nbytes);

#define FWD(code, text, ...)                                                              \
	fails(te_kernel_bias_forward(st, __VA_ARGS__), code, "te_kernel_bias_forward: " text)
#define BWD(code, text, ...)                                                              \
	fails(te_kernel_bias_backward(st, __VA_ARGS__), code, "te_kernel_bias_backward: " text)
#define ADD(code, text, ...) fails(te_kernel_add(st, __VA_ARGS__), code, "te_kernel_add: " text)
	fails(te_kernel_bias_forward(NULL, x, b, y), -EINVAL, "stream is NULL");
	fails(te_kernel_bias_backward(NULL, x, b, ws, nbytes), -EINVAL, "stream is NULL");
	fails(te_kernel_add(NULL, x, x, y), -EINVAL, "stream is NULL");
	FWD(-EINVAL, "x is NULL", NULL, b, y);
	FWD(-EINVAL, "bias is NULL", x, NULL, y);
	FWD(-EINVAL, "y is NULL", x, b, NULL);
	FWD(-TE_EDTYPE, "x is int32, not fp32 or bf16", i, b, y);
	FWD(-TE_EDTYPE, "bias is fp32, not bf16", h, b, h);
	FWD(-TE_ESHAPE, "bias has 54 elements, not 9", x, x, y);
	FWD(-TE_ESHAPE, "y is [7, 9], not [6, 9]", x, b, w);
	BWD(-EINVAL, "dy is NULL", NULL, b, ws, nbytes);
	BWD(-EINVAL, "dbias is NULL", x, NULL, ws, nbytes);
	BWD(-TE_EDTYPE, "dbias is int32, not fp32 or bf16", x, i, ws, nbytes);
	BWD(-TE_ESHAPE, "dbias has 54 elements, not 9", x, y, ws, nbytes);
	BWD(-EINVAL, "ws is NULL", x, b, NULL, nbytes);
	BWD(-EINVAL, "ws_nbytes is ", x, b, ws, nbytes - 1);
	ADD(-EINVAL, "a is NULL", NULL, x, y);
	ADD(-EINVAL, "b is NULL", x, NULL, y);
	ADD(-EINVAL, "y is NULL", x, x, NULL);
	ADD(-TE_EDTYPE, "b is bf16, not fp32", x, h, y);
	ADD(-TE_ESHAPE, "b is [7, 9], not [6, 9]", x, w, y);
	ADD(-TE_ESHAPE, "y is [7, 9], not [6, 9]", x, x, w);
#undef FWD
#undef BWD
#undef ADD
	ck_assert_uint_eq(te_kernel_bias_ws_nbytes(0, 9), 0);
}

/* ---- dropout ---- */

/* _i: replay, type, p above 0 */
TEST_EACH(elem, dropout_equals_the_op, 8)
{
	struct te_kernel_dropout_opts o = TE_KERNEL_DROPOUT_OPTS_INIT;
	struct te_dropout_attrs a = TE_DROPOUT_ATTRS_INIT;
	struct te_tensor *y, *dx;
	struct te_spec in;
	struct te_op *op;
	struct op_run r;

	kc_type = kc_types[_i >> 1 & 1];
	in = op_run_spec(kc_type, 2, kc_rows, kc_cols, 0);
	o.p = a.p = _i >> 2 ? tt_rand_float(0.1f, 0.9f) : 0.0f;
	DO(te_op_dropout(&a, "d", &op));
	kc_op_init(&r, op, &in);
	kc_op_passes(&r);
	if (o.p > 0) {
		o.tag = r.call.tag;
		o.rng = r.call.rng;
	}
	y = kc_poison(kc_type, kc_rows, kc_cols);
	dx = kc_poison(kc_type, kc_rows, kc_cols);
	kc_begin(_i & 1);
	DO(te_kernel_dropout_forward(st, r.call.x.hp, y, &o));
	DO(te_kernel_dropout_backward(st, r.call.dy.hp, dx, &o));
	kc_end(_i & 1);
	kc_same("y", y, op_run_y(&r));
	kc_same("dx", dx, op_run_dx(&r));
	DO(te_kernel_dropout_forward(st, r.call.x.hp, r.call.x.hp, &o));
	kc_same("y in x", r.call.x.hp, y);
	kc_op_fini(&r);
}

TEST(elem, dropout_names_the_argument)
{
	struct te_kernel_dropout_opts o = TE_KERNEL_DROPOUT_OPTS_INIT;
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 9), *y = kc_poison(TE_DTYPE_FP32, 6, 9);
	struct te_tensor *h = kc_normal(TE_DTYPE_BF16, 6, 9), *w = kc_normal(TE_DTYPE_FP32, 7, 9);
	uint64_t *words = kc_ws(2 * sizeof(*words));

#define FWD(code, text, x, y) \
	fails(te_kernel_dropout_forward(st, x, y, &o), code, "te_kernel_dropout_forward: " text)
	fails(te_kernel_dropout_forward(NULL, x, y, NULL), -EINVAL, "stream is NULL");
	FWD(-EINVAL, "x is NULL", NULL, y);
	FWD(-EINVAL, "y is NULL", x, NULL);
	FWD(-TE_EDTYPE, "y is bf16, not fp32", x, h);
	FWD(-TE_ESHAPE, "y is [7, 9], not [6, 9]", x, w);
	o.p = 1;
	FWD(-EINVAL, "p is 1, not in [0,1)", x, y);
	o.p = 0.5f;
	FWD(-EINVAL, "p is 0.5, but rng.seed is NULL", x, y);
	o.rng.seed = words;
	FWD(-EINVAL, "p is 0.5, but rng.offset is NULL", x, y);
	o.rng.offset = words + 1;
	fails(te_kernel_dropout_backward(st, NULL, y, &o), -EINVAL,
	      "te_kernel_dropout_backward: dy is NULL");
	fails(te_kernel_dropout_backward(st, x, NULL, &o), -EINVAL,
	      "te_kernel_dropout_backward: dx is NULL");
#undef FWD
}

/* ---- all of them ---- */

#define DROPOUT 3 /* index in the sequence */

/* tokens, a branch of bias and dropout, and the sum of both branches, planned. _i: type */
TEST_EACH(elem, elementwise_calls_equal_a_plan, 2)
{
	const int64_t batch = tt_rand_int(1, 4), seqlen = tt_rand_int(1, 40);
	const int64_t vocab = tt_rand_int(1, 50), rows = batch * seqlen;
	const struct te_embedding_attrs ea = TE_ATTRS(embedding, vocab, kc_cols, seqlen, 0.5f, 0);
	const struct te_spec in = op_run_spec(TE_DTYPE_INT32, 2, batch, seqlen, 0);
	const size_t nbytes = te_kernel_bias_ws_nbytes(rows, kc_cols);
	struct te_kernel_embedding_opts eo = TE_KERNEL_EMBEDDING_OPTS_INIT;
	struct te_kernel_dropout_opts o = TE_KERNEL_DROPOUT_OPTS_INIT;
	const struct te_bias_attrs ba = TE_ATTRS(bias, .width = kc_cols);
	const struct te_dropout_attrs da = TE_ATTRS(dropout, .p = 0.3f);
	struct te_tensor *tokens, *want, *dy, *v[6], *grad[3], *bias;
	uint64_t *words = kc_ws(2 * sizeof(*words)), rng[2];
	struct te_op *op[6] = { NULL };
	struct te_weight_info w[3];
	struct te_plan *plan;

	kc_type = kc_types[_i];
	DO(te_op_embedding(&ea, "tokens", &op[0]));
	DO(te_op_fork("fork", &op[1]));
	DO(te_op_give(op[1], 0, "residual"));
	DO(te_op_bias(&ba, "bias", &op[2]));
	DO(te_op_dropout(&da, "dropout", &op[DROPOUT]));
	DO(te_op_add("add", &op[4]));
	DO(te_op_take(op[4], 0, "residual"));
	plan = kc_plan(op, &in, 0);
	set_tokens(te_plan_input(plan, "x"), vocab);
	tokens = kc_copy(te_plan_input(plan, "x"));
	for (int i = 0; i < 3; i++) {
		w[i] = kc_weight(i);
		kc_set_normal(w[i].master);
		grad[i] = kc_zeros(TE_DTYPE_FP32, te_tensor_rows(w[i].master), kc_cols);
	}
	DO(te_seq_weights_changed(kc_seq(), st));
	DO(te_seq_rng_get(kc_seq(), &rng[0], &rng[1]));
	DO(te_copy(st, words, rng, sizeof(rng)));
	DO(te_plan_forward(plan, st, 0));
	want = kc_copy(te_plan_output(plan));
	kc_set_normal(te_plan_output_grad(plan));
	dy = kc_copy(te_plan_output_grad(plan));
	DO(te_plan_backward(plan, st));

	for (int i = 0; i < 6; i++)
		v[i] = kc_poison(kc_type, rows, kc_cols);
	bias = kc_poison(kc_type, 1, kc_cols);
	o.p = da.p;
	o.tag = DROPOUT;
	o.rng = (struct te_rng_words){ words, words + 1 };
	eo.position = w[1].master;
	DO(te_cast(st, w[2].master, bias));
	DO(te_kernel_embedding_forward(st, tokens, w[0].master, v[0], &eo));
	DO(te_kernel_bias_forward(st, v[0], bias, v[1]));
	DO(te_kernel_dropout_forward(st, v[1], v[2], &o));
	DO(te_kernel_add(st, v[2], v[0], v[3]));
	kc_same("y", v[3], want);
	DO(te_kernel_dropout_backward(st, dy, v[4], &o));
	DO(te_kernel_bias_backward(st, v[4], grad[2], kc_ws(nbytes), nbytes));
	DO(te_kernel_add(st, v[4], dy, v[5]));
	eo.dposition = grad[1];
	DO(te_kernel_embedding_backward(st, v[5], tokens, grad[0], &eo));
	for (int i = 0; i < 3; i++)
		kc_same(w[i].name, grad[i], w[i].grad);
}
