/*
 * t/ops/kernel_calls_cross.c - te_op_attention(3) with keys and values in other values, biases,
 * slopes and offsets, against te_kernel_attend_*(3), and in plans.
 */
#include "config.h"

#include "kernel_calls_cases.h"
#include "tt_num.h"

#define B 3
#define T 21
#define S 37
#define NSEQS 4

static const struct variant {
	struct te_attention_attrs a;
	int head_major; /* a bias of each head */
} variants[] = {
	{ TE_ATTRS(attention, 4, 2, 16, .full = 1, .operands = TE_ATTENTION_Q_KV,
		   .head_dim_v = 24), 0 },
	{ TE_ATTRS(attention, 4, 2, 16, 0.3f, 0.2f, .window = 9, .bottom = 1, .alibi = 1,
		   .operands = TE_ATTENTION_Q_K_V), 0 },
	{ TE_ATTRS(attention, 4, 4, 8, .full = 1, .right = 5, .bias = 1, .sinks = 1,
		   .operands = TE_ATTENTION_Q_K_V, .head_dim_v = 32), 1 },
	{ TE_ATTRS(attention, 6, 2, 8, .bias = 1, .operands = TE_ATTENTION_Q_KV,
		   .head_dim_v = 16), 0 },
	{ TE_ATTRS(attention, 2, 1, 32, .offsets = 1, .bottom = 1, .alibi = 1, .sinks = 1,
		   .operands = TE_ATTENTION_Q_K_V,
		   .slopes = (const float[]){ 0.7f, 0.05f }), 0 },
	{ TE_ATTRS(attention, 2, 2, 16, 0, 0.3f, .offsets = 1), 0 },
};

static int64_t dv_of(const struct te_attention_attrs *a)
{
	return a->head_dim_v ? a->head_dim_v : a->head_dim;
}

/* x and extra inputs */
static void specs_of(const struct variant *v, struct te_spec in[1 + MOST])
{
	const struct te_attention_attrs *a = &v->a;
	const int64_t q = (int64_t)a->nheads * a->head_dim, k = (int64_t)a->nkv * a->head_dim;
	const int64_t nv = a->nkv * dv_of(a);
	int n = 1;

	in[0] = op_run_spec(kc_type, 3, B, T, a->operands ? q : q + k + nv);
	if (a->operands == TE_ATTENTION_Q_KV)
		in[n++] = op_run_spec(kc_type, 3, B, S, k + nv);
	if (a->operands == TE_ATTENTION_Q_K_V) {
		in[n++] = op_run_spec(kc_type, 3, B, S, k);
		in[n++] = op_run_spec(kc_type, 3, B, S, nv);
	}
	if (a->bias)
		in[n++] = v->head_major ? op_run_spec(TE_DTYPE_FP32, 3, a->nheads, T, S) :
					  op_run_spec(TE_DTYPE_FP32, 2, T, S, 0);
	if (a->offsets)
		in[n++] = op_run_spec(TE_DTYPE_INT32, 1, NSEQS + 1, 0, 0);
	if (a->offsets && a->operands)
		in[n++] = op_run_spec(TE_DTYPE_INT32, 1, NSEQS + 1, 0, 0);
}

static void put_offsets(struct te_tensor *t, int64_t nrows)
{
	int32_t x[NSEQS + 1] = { 0, (int32_t)tt_rand_int(1, 9), (int32_t)tt_rand_int(9, 20),
				 (int32_t)tt_rand_int(21, nrows), (int32_t)nrows };

	DO(te_tensor_write(t, x, sizeof(x)));
}

static int on_host(void)
{
	return !strcmp(te_ctx_backend(ctx), "host");
}

/* options of the same calls; slopes are the op's numbers */
static struct te_kernel_attend_opts opts_of(const struct te_attention_attrs *a,
					    const struct op_run *r)
{
	struct te_kernel_attend_opts o = TE_KERNEL_ATTEND_OPTS_INIT;
	const struct te_op_value *ex = r->call.ex;
	const int bias = a->operands, offsets = bias + a->bias;

	o.nheads = a->nheads;
	o.nkv = a->nkv;
	o.head_dim = a->head_dim;
	o.head_dim_v = a->head_dim_v;
	o.scale = a->scale;
	o.dropout = a->dropout;
	o.rng = r->call.rng;
	o.tag = r->call.tag;
	o.window = a->window;
	o.full = a->full;
	o.right = a->right;
	o.bottom = a->bottom;
	if (a->operands != TE_ATTENTION_Q_K_V)
		o.v_at = (int64_t)a->nkv * a->head_dim;
	if (!a->operands) {
		o.k_at = (int64_t)a->nheads * a->head_dim;
		o.v_at += o.k_at;
	}
	if (a->bias) {
		o.bias = ex[bias].hp;
		o.dbias = kc_zeros(TE_DTYPE_FP32, te_tensor_rows(o.bias), S);
	}
	if (a->offsets) {
		o.layout = TE_ATTEND_THD;
		o.q_offsets = ex[offsets].hp;
		o.k_offsets = a->operands ? ex[offsets + 1].hp : NULL;
	}
	if (a->alibi) {
		struct te_tensor *slopes = kc_zeros(TE_DTYPE_FP32, 1, a->nheads);

		for (int h = 0; h < a->nheads; h++) {
			const float x = a->slopes ? a->slopes[h] : 1.0f / (float)(1 << 2 * (h + 1));

			ck_assert(a->slopes || a->nheads == 4);
			DO(te_copy(st, (float *)te_tensor_data(slopes) + h, &x, sizeof(x)));
			DO(te_stream_sync(st));
		}
		o.slopes = slopes;
	}
	if (a->sinks) {
		o.sinks = r->call.master[0];
		o.dsinks = kc_zeros(TE_DTYPE_FP32, 1, a->nheads);
	}
	return o;
}

static struct te_tensor *like(const struct te_tensor *t)
{
	struct te_spec s = { te_tensor_dtype(t), te_tensor_ndim(t), { 0 } };

	for (int d = 0; d < s.ndim; d++)
		s.shape[d] = te_tensor_extent(t, d);
	return kc_reshaped(kc_poison(s.dtype, te_tensor_rows(t), te_tensor_cols(t)), &s);
}

KC_CASE(cross);

/* _i: replay of the calls, type, variant */
TEST_EACH(cross, op_has_the_bits_of_the_calls, 4 * (int)TT_LEN(variants))
{
	const struct variant *v = &variants[_i >> 2];
	const struct te_attention_attrs *a = &v->a;
	struct te_tensor *q, *k, *val, *d[3], *y, *lse;
	struct te_kernel_attend_opts o, back;
	struct te_spec in[1 + MOST];
	struct op_run r;
	struct te_op *op;
	size_t nbytes;
	void *ws;

	kc_type = kc_types[_i >> 1 & 1];
	specs_of(v, in);
	DO(te_op_attention(a, "attention", &op));
	DO(te__op_prepare(op, ctx));
	kc_op_init(&r, op, in);
	for (int i = 0; i < r.ops->nextra_in; i++)
		if (in[1 + i].dtype != TE_DTYPE_INT32)
			kc_set_normal(r.call.ex[i].hp);
		else
			put_offsets(r.call.ex[i].hp,
				    B * (a->operands && i + 1 == r.ops->nextra_in ? S : T));
	kc_op_passes(&r);

	q = r.call.x.hp;
	k = a->operands ? r.call.ex[0].hp : q;
	val = a->operands == TE_ATTENTION_Q_K_V ? r.call.ex[1].hp : k;
	d[0] = like(q);
	d[1] = k == q ? d[0] : like(k);
	d[2] = val == k ? d[1] : like(val);
	y = like(r.call.y.hp);
	lse = like(r.saved[0]);
	o = back = opts_of(a, &r);
	o.dbias = o.dsinks = NULL;
	nbytes = te_kernel_attention_ws_nbytes(kc_type, a->offsets ? 1 : B, a->offsets ? B * T : T,
					       a->nheads, a->head_dim);
	ws = kc_ws(nbytes);
	kc_begin(_i & 1);
	DO(te_kernel_attend_forward(st, q, k, val, y, lse, &o));
	DO(te_kernel_attend_backward(st, r.call.dy.hp, q, k, val, y, lse, d[0], d[1], d[2], ws,
				     nbytes, &back));
	kc_end(_i & 1);
	kc_same("y", r.call.y.hp, y);
	kc_same("lse", r.saved[0], lse);
	kc_same("dx", r.call.dx.hp, d[0]);
	for (int i = 0; i < (a->operands ? a->operands : 0); i++)
		kc_same("dex", r.call.dex[i].hp, d[1 + i]);
	if (back.dbias)
		kc_same("dbias", r.call.dex[a->operands].hp, back.dbias);
	if (back.dsinks)
		kc_same("dsinks", r.grad[0], back.dsinks);
	kc_op_fini(&r);
}

/* ---- plans ---- */

/* a sequence of up to two forks and attention; channels are the forks' and those that are fed */
static struct te_seq *seq_of(const struct te_attention_attrs *a, const char *const *take,
			     int nforks)
{
	struct te_op *op;
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; i < nforks; i++)
		DO(te_seq_fork(seq, take[i]));
	DO(te_op_attention(a, "cross", &op));
	for (int i = 0; take[i]; i++)
		DO(te_op_take(op, i, take[i]));
	tt_append(seq, op);
	return seq;
}

static int plan_with(struct te_seq *seq, int64_t ntokens, int64_t cols, uint32_t flags,
		     struct te_plan **ret_plan)
{
	struct te_recipe recipe = op_run_recipe(kc_recipe());
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	o.recipe = &recipe;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD | flags;
	o.x = op_run_spec(kc_type, 3, B, ntokens, cols);
	return te_plan_create(seq, &o, ret_plan);
}

static int plan_try(struct te_seq *seq, int64_t ntokens, int64_t cols, struct te_plan **ret_plan)
{
	return plan_with(seq, ntokens, cols, 0, ret_plan);
}

/* both passes on normal numbers; the output gradient stays in ret_dy */
static void run(struct te_plan *p, struct te_tensor **ret_dy)
{
	const char *name;

	for (int i = 0; (name = te_plan_input_name(p, i)); i++)
		kc_set_normal(te_plan_input(p, name));
	DO(te_plan_forward(p, st, 0));
	kc_set_normal(te_plan_output_grad(p));
	*ret_dy = kc_copy(te_plan_output_grad(p));
	DO(te_plan_backward(p, st));
}

/* calls on the inputs of the plan; d: gradients, or NULL; k, v: columns of kv, or tensors */
static void calls(struct te_plan *p, const struct te_tensor *k, const struct te_tensor *v,
		  const struct te_tensor *dy, struct te_kernel_attend_opts *o,
		  struct te_tensor *ret_d[3])
{
	const struct te_tensor *q = te_plan_input(p, "x");
	struct te_tensor *y = like(te_plan_output(p)), *dout = like(y);
	const int64_t ntokens = te_tensor_extent(q, -2), batch = te_tensor_rows(q) / ntokens;
	struct te_tensor *lse = kc_poison(TE_DTYPE_FP32, batch * o->nheads, ntokens);
	struct te_tensor *dbias = o->dbias, *dsinks = o->dsinks;
	const size_t nbytes = te_kernel_attention_ws_nbytes(kc_type, batch, ntokens, o->nheads,
							    o->head_dim);

	DO(te_copy(st, te_tensor_data(dout), te_tensor_data(dy), te_tensor_nbytes(dy)));
	ret_d[0] = like(q);
	ret_d[1] = k == q && o->k_at ? ret_d[0] : like(k);
	ret_d[2] = v == k && o->v_at ? ret_d[1] : like(v);
	o->dbias = o->dsinks = NULL;
	DO(te_kernel_attend_forward(st, q, k, v, y, lse, o));
	o->dbias = dbias;
	o->dsinks = dsinks;
	kc_same("y", te_plan_output(p), y);
	DO(te_kernel_attend_backward(st, dout, q, k, v, y, lse, ret_d[0], ret_d[1], ret_d[2],
				     kc_ws(nbytes), nbytes, o));
}

/* keys, values and biases that the caller writes have no gradients. _i: type */
TEST_EACH(cross, a_plan_attends_to_other_lengths, 2)
{
	const struct te_attention_attrs a = TE_ATTRS(attention, 4, 2, 16, .bias = 1, .full = 1,
						     .operands = TE_ATTENTION_Q_KV);
	static const char *const take[] = { "kv", "bias", NULL };
	const int64_t kv[3] = { 0, S, 64 }, bias[3] = { 4, T, S };
	struct te_kernel_attend_opts o = TE_KERNEL_ATTEND_OPTS_INIT;
	struct te_seq *seq = seq_of(&a, take, 0);
	struct te_tensor *dy, *d[3];
	struct te_plan *p;

	kc_type = kc_types[_i];
	DO(te_seq_input_shape(seq, "kv", kc_type, 3, kv));
	DO(te_seq_input_shape(seq, "bias", TE_DTYPE_FP32, 3, bias));
	DO(te_seq_init(seq, 1));
	DO(plan_try(seq, T, 64, &p));
	run(p, &dy);
	o.nheads = 4;
	o.nkv = 2;
	o.head_dim = 16;
	o.full = 1;
	o.v_at = 32;
	o.bias = te_plan_input(p, "bias");
	calls(p, te_plan_input(p, "kv"), te_plan_input(p, "kv"), dy, &o, d);
	kc_same("dx", te_plan_input_grad(p), d[0]);
	tt_drop(p, seq);
}

static void ck_sum(struct te_plan *p, struct te_tensor *const *d, int n)
{
	float *got = tt_tensor_get(te_plan_input_grad(p)), *of[3] = { NULL };

	for (int i = 0; i < n; i++)
		of[i] = tt_tensor_get(d[i]);
	for (int64_t i = 0; i < te_tensor_nelems(te_plan_input_grad(p)); i++) {
		float sum = of[0][i];

		for (int k = n - 1; k > 0; k--)
			sum += of[k][i];
		ck_assert_msg(sum == got[i], "gradient %d is %g, not %g", (int)i, (double)got[i],
			      (double)sum);
	}
	for (int i = 0; i < n; i++)
		free(of[i]);
	free(got);
}

/* x is q and k, and v too or a value that is fed. _i: v is fed */
TEST_EACH(cross, gradients_reach_the_values_that_need_them, 2)
{
	const struct te_attention_attrs a = TE_ATTRS(attention, 2, 2, 8,
						     .operands = TE_ATTENTION_Q_K_V);
	static const char *const take[] = { "k", "v", NULL };
	struct te_kernel_attend_opts o = TE_KERNEL_ATTEND_OPTS_INIT;
	struct te_seq *seq = seq_of(&a, take, 2 - _i);
	const int64_t cols = 16;
	struct te_tensor *dy, *d[3];
	struct te_plan *p;

	kc_type = TE_DTYPE_FP32;
	if (_i)
		DO(te_seq_input(seq, "v", kc_type, 1, &cols));
	DO(te_seq_init(seq, 1));
	if (_i && !on_host()) {
		fails(plan_try(seq, T, cols, &p), -EOPNOTSUPP, "attention cross: kernels of cuda "
		      "compute gradients of k and of v or none of them, but that of v is not");
		te_seq_unref(seq);
		return;
	}
	DO(plan_try(seq, T, cols, &p));
	run(p, &dy);
	o.nheads = o.nkv = 2;
	o.head_dim = 8;
	calls(p, te_plan_input(p, "x"), te_plan_input(p, _i ? "v" : "x"), dy, &o, d);
	ck_sum(p, d, 3 - _i);
	tt_drop(p, seq);
}

/* a bias that the model computes: [8,8] of one sequence */
TEST(cross, a_bias_has_a_gradient)
{
	const struct te_attention_attrs a = TE_ATTRS(attention, 2, 2, 4, .bias = 1,
						     .operands = TE_ATTENTION_Q_KV);
	static const char *const take[] = { "bias", NULL };
	struct te_kernel_attend_opts o = TE_KERNEL_ATTEND_OPTS_INIT;
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = op_run_recipe("fp32");
	const int64_t cols = 16;
	struct te_tensor *dy, *d[3];
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;

	kc_type = TE_DTYPE_FP32;
	DO(te_seq_create(ctx, &seq));
	DO(te_seq_fork(seq, take[0]));
	DO(te_op_attention(&a, "cross", &op));
	DO(te_op_take(op, 0, "kv"));
	DO(te_op_take(op, 1, "bias"));
	tt_append(seq, op);
	DO(te_seq_input_shape(seq, "kv", kc_type, 2, (const int64_t[]){ 0, cols }));
	DO(te_seq_init(seq, 1));
	po.recipe = &recipe;
	po.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	po.x = op_run_spec(kc_type, 2, 8, 8, 0);
	DO(te_plan_create(seq, &po, &p));
	run(p, &dy);
	o.nheads = o.nkv = 2;
	o.head_dim = 4;
	o.v_at = 8;
	o.bias = te_plan_input(p, "x");
	o.dbias = kc_zeros(TE_DTYPE_FP32, 8, 8);
	calls(p, te_plan_input(p, "kv"), te_plan_input(p, "kv"), dy, &o, d);
	d[1] = o.dbias;
	ck_sum(p, d, 2);
	tt_drop(p, seq);
}

/* values of weight i */
static void set_weight(struct te_seq *seq, int i)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	DO(te_seq_weight(seq, i, &w));
	kc_set_normal(w.master);
}

/* sinks of the sequence, and zeros for their gradient */
static void set_sinks(struct te_seq *seq, struct te_kernel_attend_opts *o)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	DO(te_seq_weight(seq, 0, &w));
	o->sinks = w.master;
	o->dsinks = kc_zeros(TE_DTYPE_FP32, 1, o->nheads);
}

static struct te_tensor *grad_of(struct te_seq *seq, int i)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	DO(te_seq_weight(seq, i, &w));
	return w.grad;
}

/* with keys and values that are fed. _i: gradients of weights come later; type; backward computes
 * attention again */
TEST_EACH(cross, a_bias_is_a_weight, 8)
{
	const struct te_attention_attrs a = TE_ATTRS(attention, 4, 2, 16, .full = 1, .sinks = 1,
						     .operands = TE_ATTENTION_Q_KV,
						     .bias_queries = T, .bias_keys = S);
	static const char *const take[] = { "kv", NULL };
	struct te_kernel_attend_opts o = TE_KERNEL_ATTEND_OPTS_INIT;
	struct te_seq *seq = seq_of(&a, take, 0);
	const uint32_t flags = (_i & 1 ? TE_PLAN_DELAY_DW : 0) |
			       (_i & 4 ? TE_PLAN_RECOMPUTE_COSTLY : 0);
	const struct te_scale_attrs same = TE_ATTRS(scale, 1.0f);
	struct te_weight_info bias = TE_WEIGHT_INFO_INIT;
	struct te_tensor *dy, *d[3];
	char *text = NULL;
	struct te_plan *p;
	struct te_op *op;

	DO(te_op_scale(&same, "same", &op)); /* plans keep the output of the last op */
	tt_append(seq, op);
	DO(_i & 4 ? te_op_recompute(te_seq_op(seq, 0)) : 0);
	kc_type = kc_types[_i >> 1 & 1];
	DO(te_seq_input_shape(seq, "kv", kc_type, 3, (const int64_t[]){ 0, S, 64 }));
	DO(te_seq_init(seq, 1));
	set_weight(seq, 0);
	set_weight(seq, 1);
	DO(te_seq_weight(seq, 1, &bias));
	ck_assert_str_eq(bias.name, "cross.bias");
	fails(plan_with(seq, T + 1, 64, flags, &p), -TE_ESHAPE, "attention cross: its bias is of "
	      "21 queries and 37 keys, and its inputs have 22 and 37");
	DO(plan_with(seq, T, 64, flags, &p));
	if (_i & 4)
		DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	ck_assert(!(_i & 4) || strstr(text, "attention.recompute"));
	free(text);
	run(p, &dy);
	if (_i & 1)
		DO(te_plan_backward_dw(p, st));
	o.nheads = 4;
	o.nkv = 2;
	o.head_dim = 16;
	o.full = 1;
	o.v_at = 32;
	o.bias = bias.master;
	o.dbias = kc_zeros(TE_DTYPE_FP32, 4 * T, S);
	set_sinks(seq, &o);
	calls(p, te_plan_input(p, "kv"), te_plan_input(p, "kv"), dy, &o, d);
	kc_same("dx", te_plan_input_grad(p), d[0]);
	kc_same("dbias", grad_of(seq, 1), o.dbias);
	kc_same("dsinks", grad_of(seq, 0), o.dsinks);
	tt_drop(p, seq);
}

/* a bias that is not trained has no gradient, that of sinks stays. _i: which is frozen */
TEST_EACH(cross, weights_of_attention_are_frozen_apart, 2)
{
	const struct te_attention_attrs a = TE_ATTRS(attention, 2, 2, 8, .sinks = 1,
						     .bias_queries = T, .bias_keys = T);
	static const char *const none[] = { NULL };
	struct te_kernel_attend_opts o = TE_KERNEL_ATTEND_OPTS_INIT;
	struct te_seq *seq = seq_of(&a, none, 0);
	struct te_weight_info bias = TE_WEIGHT_INFO_INIT;
	struct te_tensor *dy, *d[3];
	struct te_plan *p;

	kc_type = TE_DTYPE_FP32;
	DO(te_seq_complete(seq));
	ck_assert_int_eq(te_seq_freeze(seq, _i ? "cross.sinks" : "cross.bias", 1), 1);
	DO(te_seq_init(seq, 1));
	set_weight(seq, 0);
	set_weight(seq, 1);
	DO(te_seq_weight(seq, 1, &bias));
	DO(plan_try(seq, T, 48, &p));
	run(p, &dy);
	o.nheads = o.nkv = 2;
	o.head_dim = 8;
	o.k_at = 16;
	o.v_at = 32;
	o.bias = bias.master;
	o.dbias = kc_zeros(TE_DTYPE_FP32, 2 * T, T);
	set_sinks(seq, &o);
	calls(p, te_plan_input(p, "x"), te_plan_input(p, "x"), dy, &o, d);
	kc_same("dx", te_plan_input_grad(p), d[0]);
	if (_i)
		kc_same("dbias", grad_of(seq, 1), o.dbias);
	else
		kc_same("dsinks", grad_of(seq, 0), o.dsinks);
	ck_assert_ptr_null(grad_of(seq, _i ? 0 : 1));
	tt_drop(p, seq);
}

/* _i: 1: of the second context, after the first sequence has gone */
TEST(cross, an_op_moves_to_another_context)
{
	const struct te_attention_attrs a = TE_ATTRS(attention, 2, 2, 4, .alibi = 1);
	struct te_op *op;
	struct te_ctx *c;

	DO(te_op_attention(&a, "attention", &op));
	for (int i = 0; i < 2; i++) {
		float x[2];

		DO(tt_ctx_new(&c));
		DO(te__op_prepare(op, c));
		DO(te__op_prepare(op, c));
		ck_assert_ptr_eq(te_tensor_ctx(atomic_load(&op->constants)), c);
		DO(te_tensor_read(atomic_load(&op->constants), x, sizeof(x)));
		ck_assert(x[0] == 1 / 16.0f && x[1] == 1 / 256.0f);
		te_ctx_unref(c);
	}
	te_op_unref(op);
}

static int infer_of(const struct te_attention_attrs *a, const struct te_spec *in)
{
	const struct te_recipe recipe = op_run_recipe("fp32");
	struct te_op_infer inf;
	struct te_op *op;
	int r;

	DO(te_op_attention(a, "a", &op));
	r = te__infer(op, &recipe, TE_INFER_TRAIN, in, &inf);
	te__infer_free(&inf);
	te_op_unref(op);
	return r;
}

/* as many queries as keys: bottom changes nothing, and kernels get the scratch that they use */
TEST(cross, bottom_of_packed_heads_has_the_scratch_of_others)
{
	struct te_attention_attrs a = TE_ATTRS(attention, 2, 2, 64);
	const struct te_recipe recipe = op_run_recipe("bf16");
	const struct te_spec in = op_run_spec(TE_DTYPE_BF16, 3, 1, 128, 384);
	size_t nbytes[2];

	for (a.bottom = 0; a.bottom < 2; a.bottom++) {
		struct te_op_infer inf;
		struct te_op *op;

		DO(te_op_attention(&a, "a", &op));
		DO(te__infer(op, &recipe, TE_INFER_TRAIN, &in, &inf));
		nbytes[a.bottom] = inf.bwd_ws_nbytes;
		te__infer_free(&inf);
		te_op_unref(op);
	}
	ck_assert_uint_eq(nbytes[0], te_kernel_attention_ws_nbytes(TE_DTYPE_BF16, 1, 128, 2, 64));
	ck_assert_uint_eq(nbytes[0], nbytes[1]);
}

/* with documents a GPU has sums in the scratch, too */
TEST(cross, documents_have_the_scratch_of_others)
{
	struct te_attention_attrs a = TE_ATTRS(attention, 2, 2, 64, .documents = 1);
	const struct te_recipe recipe = op_run_recipe("bf16");
	const struct te_spec in[2] = { op_run_spec(TE_DTYPE_BF16, 3, 1, 128, 384),
				       op_run_spec(TE_DTYPE_INT32, 2, 1, 128, 0) };
	struct te_op_infer inf;
	struct te_op *op;

	DO(te_op_attention(&a, "a", &op));
	DO(te__infer(op, &recipe, TE_INFER_TRAIN, in, &inf));
	ck_assert_uint_eq(inf.bwd_ws_nbytes,
			  te_kernel_attention_ws_nbytes(TE_DTYPE_BF16, 1, 128, 2, 64));
	te__infer_free(&inf);
	te_op_unref(op);
}

TEST(cross, the_op_names_the_attribute_and_the_value)
{
	struct te_attention_attrs a = TE_ATTRS(attention, 2, 2, 4);
	const float slope[2] = { 1, -INFINITY };
	struct te_spec in[1 + MOST];
	struct te_op *op;

	kc_type = TE_DTYPE_FP32;
#define WITH(field, value, text)                                                       \
	do {                                                                           \
		const struct te_attention_attrs was = a;                               \
										       \
		a.field = value;                                                       \
		fails(te_op_attention(&a, "a", &op), -EINVAL, "attention a: " text); \
		a = was;                                                               \
	} while (0)
	WITH(operands, 3, "operands is 3, not one of enum te_attention_operands");
	WITH(operands, -1, "operands is -1");
	WITH(head_dim_v, 257, "head_dim_v is 257, not 0 to 256");
	WITH(bottom, 2, "bottom is 2, not 0 or 1");
	WITH(bias, -1, "bias is -1, not 0 or 1");
	WITH(alibi, 2, "alibi is 2, not 0 or 1");
	WITH(offsets, 2, "offsets is 2, not 0 or 1");
	WITH(bias_keys, 3, "bias_queries and bias_keys are 0 and 3, not both 0");
	WITH(bias_queries, 3, "bias_queries and bias_keys are 3 and 0, not both 0");
	a.bias_keys = 5;
	WITH(bias_queries, -5, "bias_queries and bias_keys are -5 and 5, not both 0");
	a.bias_keys = 0;
	a.bias = 1;
	a.bias_keys = 4;
	WITH(bias_queries, 4, "bias is 1, but bias_queries makes the bias a weight");
	a.bias = 0;
	a.bias_keys = 0;
	WITH(slopes, slope, "slopes are given, but alibi is 0");
	a.alibi = 1;
	WITH(slopes, slope, "slope 1 is -inf");
	a.documents = 1;
	WITH(operands, 1, "documents are of packed heads without offsets");
	WITH(offsets, 1, "documents are of packed heads without offsets");
	a.documents = a.alibi = 0;
#undef WITH
	a.operands = TE_ATTENTION_Q_K_V;
	a.bias = a.offsets = 1;
	specs_of(&(struct variant){ a, 1 }, in);
	in[3].shape[1] = B * T;
	in[3].shape[2] = B * S;
	DO(infer_of(&a, in));
#define SPEC(i, change, code, text)                                      \
	do {                                                             \
		const struct te_spec was = in[i];                        \
									 \
		in[i].change;                                            \
		fails(infer_of(&a, in), code, "attention a: " text);     \
		in[i] = was;                                             \
	} while (0)
	SPEC(0, shape[2] = 9, -TE_ESHAPE, "its input is 9 wide, it takes 8");
	SPEC(1, dtype = TE_DTYPE_BF16, -TE_EDTYPE, "k is bf16, and its input fp32");
	SPEC(1, shape[2] = 9, -TE_ESHAPE, "k has 3 extents and is 9 wide, it takes 2 or more");
	SPEC(2, ndim = 1, -TE_ESHAPE, "v has 1 extents and is 3 wide");
	SPEC(2, shape[1] = 5, -TE_ESHAPE, "v has 15 tokens, and k 111");
	SPEC(3, dtype = TE_DTYPE_BF16, -TE_EDTYPE, "its bias is bf16, not fp32");
	SPEC(3, shape[0] = 3, -TE_ESHAPE, "its bias is not of 1 or 2 heads, 63 queries and 111");
	SPEC(3, shape[1] = 5, -TE_ESHAPE, "its bias is not of 1 or 2 heads");
	SPEC(4, dtype = TE_DTYPE_FP32, -TE_EDTYPE, "offsets are fp32, not int32");
	SPEC(4, shape[0] = 1, -TE_ESHAPE, "1 offsets of queries, expected 2 or more");
	SPEC(5, shape[0] = 4, -TE_ESHAPE, "4 offsets of keys, expected as many as of queries");
	a.offsets = a.bias = 0;
	SPEC(1, shape[0] = 2, -TE_ESHAPE, "k has 2 sequences, and its input 3");
#undef SPEC
}
