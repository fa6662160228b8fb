/* t/ops/kernel_calls_train.c - cross-entropy and AdamW. */
#include "config.h"

#include <math.h>

#include <te/optim.h>
#include "kernels/te_k.h"

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

/* targets in range */
static void set_classes(struct te_tensor *t, int64_t nclasses)
{
	const int64_t n = te_tensor_nelems(t);
	float *v = malloc((size_t)n * sizeof(*v));

	for (int64_t i = 0; i < n; i++)
		v[i] = (float)tt_rand_int(0, nclasses - 1);
	tt_tensor_set(t, v);
	free(v);
}

KC_CASE(train);

/* _i: replay, type, padding columns */
TEST_EACH(train, cross_entropy_equals_the_op, 8)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te_cross_entropy_attrs a = TE_CROSS_ENTROPY_ATTRS_INIT;
	const size_t nbytes = te_kernel_cross_entropy_ws_nbytes(kc_rows);
	const struct te_spec in[2] = { op_run_spec(kc_types[_i >> 1 & 1], 2, kc_rows, kc_cols, 0),
				       op_run_spec(TE_DTYPE_INT32, 1, kc_rows, 0, 0) };
	struct te_tensor *loss, *max_sum, *count, *dx;
	void *ws = kc_ws(nbytes);
	struct te_op *op;
	struct op_run r;

	kc_type = in[0].dtype;
	a.nclasses = _i >> 2 ? tt_rand_int(1, kc_cols) : kc_cols;
	a.grad_scale = tt_rand_float(0.1f, 2.0f);
	o.nclasses = _i >> 2 ? a.nclasses : 0;
	o.grad_scale = a.grad_scale;
	DO(te_op_cross_entropy(&a, "c", &op));
	kc_op_init(&r, op, in);
	set_targets(r.call.ex[0].hp, a.nclasses);
	kc_op_passes(&r);
	loss = kc_poison(TE_DTYPE_FP32, 1, 1);
	max_sum = kc_poison(TE_DTYPE_FP32, 2, kc_rows);
	count = kc_poison(TE_DTYPE_FP32, 1, 1);
	dx = kc_poison(kc_type, kc_rows, kc_cols);
	kc_begin(_i & 1);
	DO(te_kernel_cross_entropy_forward(st, r.call.x.hp, r.call.ex[0].hp, loss, max_sum, count,
					   ws, nbytes, &o));
	DO(te_kernel_cross_entropy_backward(st, r.call.x.hp, r.call.ex[0].hp, max_sum, count, dx,
					    &o));
	kc_end(_i & 1);
	kc_same("loss", loss, r.call.y.hp);
	kc_same("max_sum", max_sum, r.saved[0]);
	kc_same("count", count, r.saved[1]);
	kc_same("dx", dx, r.call.dx.hp);
	DO(te_kernel_cross_entropy_backward(st, r.call.x.hp, r.call.ex[0].hp, max_sum, count,
					    r.call.x.hp, &o));
	kc_same("dx in x", r.call.x.hp, dx);
	kc_op_fini(&r);
}

/* rows in shared memory, also in registers, and read twice. _i: replay, FP32 */
TEST_EACH(train, cross_entropy_both_equals_two_calls, 4)
{
	static const struct {
		int64_t rows, cols, nclasses;
	} shape[] = { { 9, 33, 30 }, { 33, 512, 509 }, { 5, 50304, 50257 }, { 3, 152064, 151643 },
		      { 2, 160000, 160000 } };
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;

	kc_type = kc_types[_i >> 1 & 1];
	for (size_t k = 0; k < TT_LEN(shape); k++) {
		const int64_t rows = shape[k].rows, cols = shape[k].cols;
		const size_t nbytes = te_kernel_cross_entropy_ws_nbytes(rows);
		struct te_tensor *x = kc_normal(kc_type, rows, cols);
		struct te_tensor *t = kc_zeros(TE_DTYPE_INT32, 1, rows);
		struct te_tensor *loss[2], *max_sum[2], *count[2], *dx[2];
		void *ws = kc_ws(nbytes);

		for (int i = 0; i < 2; i++) {
			loss[i] = kc_poison(TE_DTYPE_FP32, 1, 1);
			max_sum[i] = kc_poison(TE_DTYPE_FP32, 2, rows);
			count[i] = kc_poison(TE_DTYPE_FP32, 1, 1);
			dx[i] = kc_poison(kc_type, rows, cols);
		}
		o.nclasses = shape[k].nclasses;
		o.grad_scale = tt_rand_float(0.1f, 2.0f);
		set_classes(t, o.nclasses);
		kc_begin(_i & 1);
		DO(te_kernel_cross_entropy_forward(st, x, t, loss[0], max_sum[0], count[0], ws,
						   nbytes, &o));
		DO(te_kernel_cross_entropy_backward(st, x, t, max_sum[0], count[0], dx[0], &o));
		DO(te_kernel_cross_entropy_both(st, x, t, loss[1], max_sum[1], count[1], dx[1], ws,
						nbytes, &o));
		kc_end(_i & 1);
		kc_same("loss", loss[1], loss[0]);
		kc_same("max_sum", max_sum[1], max_sum[0]);
		kc_same("count", count[1], count[0]);
		kc_same("dx", dx[1], dx[0]);
		set_targets(t, o.nclasses); /* max_sum of rows that do not count is another */
		DO(te_kernel_cross_entropy_forward(st, x, t, loss[0], max_sum[0], count[0], ws,
						   nbytes, &o));
		DO(te_kernel_cross_entropy_backward(st, x, t, max_sum[0], count[0], dx[0], &o));
		DO(te_kernel_cross_entropy_both(st, x, t, loss[1], max_sum[1], count[1], x, ws,
						nbytes, &o));
		kc_same("loss", loss[1], loss[0]);
		kc_same("count", count[1], count[0]);
		kc_same("dx in x", x, dx[0]);
	}
}

TEST(train, cross_entropy_names_the_argument)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 8), *t = kc_zeros(TE_DTYPE_INT32, 1, 6);
	struct te_tensor *few = kc_zeros(TE_DTYPE_INT32, 1, 5), *h = kc_normal(TE_DTYPE_BF16, 6, 8);
	struct te_tensor *l = kc_poison(TE_DTYPE_FP32, 2, 6), *a = kc_poison(TE_DTYPE_FP32, 1, 1);
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
	FWD(-TE_ESHAPE, "loss has 12 elements, not 1", x, t, l, l, b, ws, nbytes);
	FWD(-TE_ESHAPE, "max_sum has 1 elements, not 12", x, t, a, a, b, ws, nbytes);
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
	BWD(-EINVAL, "max_sum is NULL", x, t, NULL, b, x);
	BWD(-EINVAL, "count is NULL", x, t, l, NULL, x);
	BWD(-EINVAL, "dx is NULL", x, t, l, b, NULL);
	BWD(-TE_EDTYPE, "dx is bf16, not fp32", x, t, l, b, h);
#undef BWD
#define BOTH(code, text, ...)                                          \
	fails(te_kernel_cross_entropy_both(st, __VA_ARGS__, &o), code, \
	      "te_kernel_cross_entropy_both: " text)
	BOTH(-EINVAL, "x is NULL", NULL, t, a, l, b, x, ws, nbytes);
	BOTH(-EINVAL, "dx is NULL", x, t, a, l, b, NULL, ws, nbytes);
	BOTH(-TE_EDTYPE, "dx is bf16, not fp32", x, t, a, l, b, h, ws, nbytes);
	BOTH(-EINVAL, "ws is NULL, but 24 bytes are needed", x, t, a, l, b, x, NULL, 0);
#undef BOTH
	o.nparts = 3;
	o.part = 3;
	fails(te_kernel_cross_entropy_backward(st, x, t, l, b, x, &o), -EINVAL,
	      "te_kernel_cross_entropy_backward: part 3 of 3 parts");
	o.part = 2;
	fails(te_kernel_cross_entropy_forward(st, x, t, a, l, b, ws, nbytes, &o), -EINVAL,
	      "te_kernel_cross_entropy_forward: x has one of 3 parts");
	fails(te_kernel_cross_entropy_both(st, x, t, a, l, b, x, ws, nbytes, &o), -EINVAL,
	      "te_kernel_cross_entropy_both: x has one of 3 parts");
}

TEST(train, cross_entropy_parts_name_the_argument)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 6, 8), *t = kc_zeros(TE_DTYPE_INT32, 1, 6);
	struct te_tensor *p = kc_poison(TE_DTYPE_FP32, 9, 6), *l = kc_poison(TE_DTYPE_FP32, 2, 6);
	struct te_tensor *a = kc_poison(TE_DTYPE_FP32, 1, 1), *b = kc_poison(TE_DTYPE_FP32, 1, 1);
	const size_t nbytes = te_kernel_cross_entropy_ws_nbytes(6);
	void *ws = kc_ws(nbytes);

	o.nparts = 3;
#define PART(code, text, ...)                                          \
	fails(te_kernel_cross_entropy_part(st, __VA_ARGS__, &o), code, \
	      "te_kernel_cross_entropy_part: " text)
	PART(-EINVAL, "x is NULL", NULL, t, p);
	PART(-EINVAL, "targets is NULL", x, NULL, p);
	PART(-EINVAL, "parts is NULL", x, t, NULL);
	PART(-TE_ESHAPE, "parts has 12 elements, not 54", x, t, l);
	o.nclasses = 25;
	PART(-TE_ESHAPE, "x has 8 columns in each part, but nclasses is 25", x, t, p);
	o.nclasses = 24;
	o.part = -1;
	PART(-EINVAL, "part -1 of 3 parts", x, t, p);
	o.part = 0;
#undef PART
#define JOIN(code, text, ...)                                          \
	fails(te_kernel_cross_entropy_join(st, __VA_ARGS__, &o), code, \
	      "te_kernel_cross_entropy_join: " text)
	JOIN(-EINVAL, "parts is NULL", NULL, t, a, l, b, ws, nbytes);
	JOIN(-EINVAL, "targets is NULL", p, NULL, a, l, b, ws, nbytes);
	JOIN(-TE_ESHAPE, "parts has 12 elements, not 54", l, t, a, l, b, ws, nbytes);
	JOIN(-TE_ESHAPE, "loss has 12 elements, not 1", p, t, l, l, b, ws, nbytes);
	JOIN(-EINVAL, "loss is the memory of count", p, t, a, l, a, ws, nbytes);
	JOIN(-EINVAL, "ws is NULL, but 24 bytes are needed", p, t, a, l, b, NULL, 0);
	o.nclasses = 0;
	JOIN(-EINVAL, "nclasses is 0", p, t, a, l, b, ws, nbytes);
#undef JOIN
}

/* ---- AdamW ---- */

#define WIDTH 7

/* a sequence with a weight that decays and one that does not */
static struct te_seq *make_seq(void)
{
	struct te_embedding_attrs ea = TE_ATTRS(embedding, 13, WIDTH, 0, 0.5f, 0);
	const struct te_spec tokens = op_run_spec(TE_DTYPE_INT32, 1, 3, 0, 0);
	struct te_bias_attrs ba = TE_ATTRS(bias, WIDTH);
	struct te_op *op[3] = { NULL };

	kc_type = TE_DTYPE_FP32;
	DO(te_op_embedding(&ea, "emb", &op[0]));
	DO(te_op_bias(&ba, "b", &op[1]));
	kc_plan(op, &tokens, 0);
	return kc_seq();
}

static struct te_tensor *decay_of(const struct te_seq *seq, int64_t n)
{
	struct te_tensor *t = kc_zeros(TE_DTYPE_UINT8, 1, n / TE_K_ALIGN_WEIGHT);
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	const int64_t run = TE_K_ALIGN_WEIGHT;

	for (int i = 0; i < te_seq_nweights(seq); i++) {
		DO(te_seq_weight(seq, i, &w));
		if (w.flags & TE_WEIGHT_DECAY)
			DO(te_fill(st, (char *)te_tensor_data(t) + w.offset_nelems / run, 1,
				   (size_t)((te_tensor_nelems(w.master) + run - 1) / run)));
	}
	return t;
}

/*
 * Weights, moments and state of some steps, one of them with infinite gradients. _i: enum
 * te_moments, and 3 more for a replay.
 */
TEST_EACH(train, adamw_equals_the_optimizer, 6)
{
	static const enum te_dtype types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_UINT8 };
	const enum te_dtype type = types[_i % 3];
	const size_t state_nbytes = te_adamw_state_nbytes(), nbytes = te_kernel_adamw_ws_nbytes();
	void *ws = kc_ws(nbytes), *state = kc_ws(te_kernel_adamw_state_nbytes()), *want, *got;
	struct te_kernel_adamw_opts o = TE_KERNEL_ADAMW_OPTS_INIT;
	struct te_adamw_opts ao = TE_ADAMW_OPTS_INIT;
	struct te_tensor *w, *m, *v, *g;
	struct te_recording *rec = NULL;
	struct te_seq *seq = make_seq();
	struct te_adamw *opt;
	int64_t n, nm;

	ao.moments = (enum te_moments)(_i % 3);
	o.max_grad_norm = ao.max_grad_norm = 3;
	o.weight_decay = ao.weight_decay = 0.3f;
	DO(te_adamw_create(seq, &ao, &opt));
	n = te_tensor_nelems(te_seq_masters(seq));
	w = kc_copy(te_seq_masters(seq));
	g = kc_poison(TE_DTYPE_FP32, 1, n);
	nm = (int64_t)(te_moments_nbytes(ao.moments, n) / te_dtype_nbytes(type));
	m = kc_zeros(type, 1, nm);
	v = kc_zeros(type, 1, nm);
	o.decay = decay_of(seq, n);
	DO(te_kernel_adamw_init(st, state, 1.0f));
	if (_i >= 3) {
		DO(te_capture_begin(st));
		DO(te_kernel_adamw_step(st, g, w, m, v, state, ws, nbytes, &o));
		DO(te_capture_end(st, &rec));
	}
	for (int i = 0; i < 6; i++) {
		const float lr = tt_rand_float(0.001f, 0.1f);

		kc_set_normal(g);
		if (i == 3)
			DO(te_fill_u32(st, te_tensor_data(g), 0x7f800000, 4));
		DO(te_copy(st, te_tensor_data(te_seq_grads(seq)), te_tensor_data(g),
			   te_tensor_nbytes(g)));
		DO(te_adamw_set_lr(opt, st, lr));
		DO(te_adamw_step(opt, st));
		DO(te_kernel_adamw_set_lr(st, state, lr));
		if (_i >= 3)
			DO(te_recording_launch(rec, st));
		else
			DO(te_kernel_adamw_step(st, g, w, m, v, state, ws, nbytes, &o));
		DO(te_stream_sync(st));
	}
	kc_same("w", w, te_seq_masters(seq));
	kc_same("m", m, te_adamw_m(opt));
	kc_same("v", v, te_adamw_v(opt));
	want = malloc(state_nbytes);
	DO(te_adamw_state_get(opt, want, state_nbytes));
	got = tt_bytes(state, state_nbytes);
	ck_assert_mem_eq(got, want, state_nbytes);
	free(want);
	free(got);
	te_recording_unref(rec);
	te_adamw_unref(opt);
}

/* without decay all of w decays; n is any */
TEST(train, adamw_decays_everywhere_by_default)
{
	const int64_t n = tt_rand_int(1, 1000), nruns = (n + TE_K_ALIGN_WEIGHT - 1) /
							TE_K_ALIGN_WEIGHT;
	const size_t nbytes = te_kernel_adamw_ws_nbytes();
	struct te_kernel_adamw_opts o = TE_KERNEL_ADAMW_OPTS_INIT;
	struct te_tensor *w[2], *g = kc_normal(TE_DTYPE_FP32, 1, n);
	struct te_tensor *ones = kc_zeros(TE_DTYPE_UINT8, 1, nruns);
	void *ws = kc_ws(nbytes), *state[2];

	DO(te_fill(st, te_tensor_data(ones), 1, (size_t)nruns));
	w[0] = kc_normal(TE_DTYPE_FP32, 1, n);
	w[1] = kc_copy(w[0]);
	for (int i = 0; i < 2; i++) {
		state[i] = kc_ws(te_kernel_adamw_state_nbytes());
		o.decay = i ? ones : NULL;
		DO(te_kernel_adamw_init(st, state[i], 0.1f));
		DO(te_kernel_adamw_step(st, g, w[i], kc_zeros(TE_DTYPE_FP32, 1, n),
					kc_zeros(TE_DTYPE_FP32, 1, n), state[i], ws, nbytes, &o));
	}
	kc_same("w", w[0], w[1]);
}

/* the same values as in FP32; _i: enum te_moments */
TEST_EACH(train, adamw_reads_gradients_in_bf16, 3)
{
	static const enum te_dtype types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_UINT8 };
	const int64_t n = tt_rand_int(1, 5000);
	const int64_t nm = (int64_t)(te_moments_nbytes((enum te_moments)_i, n) /
				     te_dtype_nbytes(types[_i]));
	const size_t nbytes = te_kernel_adamw_ws_nbytes();
	struct te_kernel_adamw_opts o = TE_KERNEL_ADAMW_OPTS_INIT;
	struct te_tensor *g[2] = { kc_normal(TE_DTYPE_BF16, 1, n), kc_zeros(TE_DTYPE_FP32, 1, n) };
	struct te_tensor *w[2] = { kc_normal(TE_DTYPE_FP32, 1, n) }, *m[2], *v[2];
	float *values = tt_tensor_get(g[0]);
	void *ws = kc_ws(nbytes), *state[2];

	o.max_grad_norm = 0; /* two orders of FP64 sums */
	w[1] = kc_copy(w[0]);
	DO(te_tensor_write(g[1], values, (size_t)n * sizeof(*values)));
	for (int i = 0; i < 2; i++) {
		m[i] = kc_zeros(types[_i], 1, nm);
		v[i] = kc_zeros(types[_i], 1, nm);
		state[i] = kc_ws(te_kernel_adamw_state_nbytes());
		DO(te_kernel_adamw_init(st, state[i], 0.1f));
		for (int step = 0; step < 2; step++)
			DO(te_kernel_adamw_step(st, g[i], w[i], m[i], v[i], state[i], ws, nbytes,
						&o));
	}
	DO(te_stream_sync(st));
	kc_same("w", w[0], w[1]);
	kc_same("m", m[0], m[1]);
	kc_same("v", v[0], v[1]);
	free(values);
}

/*
 * Weights in BF16 with a remainder are FP32 weights bit for bit. Without one they stay within steps
 * of BF16, and their sum moves as FP32 weights' does. _i: enum te_moments
 */
TEST_EACH(train, adamw_of_split_and_of_bf16_weights, 3)
{
	static const enum te_dtype types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_UINT8 };
	const int64_t n = 4001, nm = (int64_t)te_moments_nbytes((enum te_moments)_i, n);
	const int64_t nelems = nm / (int64_t)te_dtype_nbytes(types[_i]);
	const size_t nbytes = te_kernel_adamw_ws_nbytes();
	struct te_tensor *w[3], *m[3], *v[3], *g = kc_poison(TE_DTYPE_FP32, 1, n);
	struct te_tensor *rest = kc_zeros(TE_DTYPE_UINT8, 1, 2 * n);
	void *ws = kc_ws(nbytes), *state[3];
	float *got[3], *first;
	double sum[3] = { 0 }, far = 0;
	uint16_t *lower;

	w[1] = kc_normal(TE_DTYPE_BF16, 1, n);
	w[2] = kc_copy(w[1]);
	w[0] = kc_zeros(TE_DTYPE_FP32, 1, n);
	first = tt_tensor_get(w[1]);
	DO(te_tensor_write(w[0], first, (size_t)n * sizeof(*first)));
	for (int i = 0; i < 3; i++) {
		m[i] = kc_zeros(types[_i], 1, nelems);
		v[i] = kc_zeros(types[_i], 1, nelems);
		state[i] = kc_ws(te_kernel_adamw_state_nbytes());
		DO(te_kernel_adamw_init(st, state[i], 1e-3f));
	}
	for (int t = 0; t < 5; t++) {
		kc_set_normal(g);
		for (int i = 0; i < 3; i++) {
			struct te_kernel_adamw_opts o = TE_KERNEL_ADAMW_OPTS_INIT;

			o.remainder = i == 1 ? rest : NULL;
			DO(te_kernel_adamw_step(st, g, w[i], m[i], v[i], state[i], ws, nbytes, &o));
		}
	}
	DO(te_stream_sync(st));
	kc_same("m", m[1], m[0]);
	kc_same("v", v[1], v[0]);
	lower = tt_bytes(te_tensor_data(rest), 2 * (size_t)n);
	for (int i = 0; i < 3; i++)
		got[i] = tt_tensor_get(w[i]);
	for (int64_t k = 0; k < n; k++) {
		uint32_t bits;
		float whole;

		memcpy(&bits, &got[1][k], sizeof(bits));
		bits += (uint32_t)(int32_t)(int16_t)lower[k];
		memcpy(&whole, &bits, sizeof(whole));
		ck_assert_float_eq(whole, got[0][k]);
		for (int i = 0; i < 3; i += 2)
			sum[i] += (double)(got[i][k] - first[k]);
		far = fmax(far, fabs((double)first[k]));
		/* five steps round by less than 2^-7 of the weight each; 1e-3 decays slower */
		ck_assert_float_le(fabsf(got[2][k] - got[0][k]),
				   5 * 0x1p-7f * fabsf(first[k]) + 0.02f);
	}
	/* a rounding has a variance of at most a quarter of its step squared; 8 deviations */
	ck_assert_double_le(fabs(sum[2] - sum[0]),
			    8 * sqrt((double)n * 5) * (0x1p-8 * far));
	for (int i = 0; i < 3; i++)
		free(got[i]);
	free(first);
	free(lower);
}

TEST(train, adamw_names_the_argument)
{
	const size_t nbytes = te_kernel_adamw_ws_nbytes();
	struct te_kernel_adamw_opts o = TE_KERNEL_ADAMW_OPTS_INIT;
	struct te_tensor *g = kc_normal(TE_DTYPE_FP32, 1, 65), *w = kc_normal(TE_DTYPE_FP32, 1, 65);
	struct te_tensor *m = kc_zeros(TE_DTYPE_FP32, 1, 65), *v = kc_zeros(TE_DTYPE_FP32, 1, 65);
	struct te_tensor *few = kc_zeros(TE_DTYPE_FP32, 1, 64);
	struct te_tensor *u8 = kc_zeros(TE_DTYPE_UINT8, 1, 1);
	void *ws = kc_ws(nbytes), *state = kc_ws(te_kernel_adamw_state_nbytes());

#define INIT(fn, code, text, ...) fails(fn(__VA_ARGS__), code, #fn ": " text)
	INIT(te_kernel_adamw_init, -EINVAL, "stream is NULL", NULL, state, 1);
	INIT(te_kernel_adamw_init, -EINVAL, "state is NULL", st, NULL, 1);
	INIT(te_kernel_adamw_init, -EINVAL, "a learning rate of -1", st, state, -1);
	INIT(te_kernel_adamw_set_lr, -EINVAL, "state at ", st, (char *)state + 4, 1);
	INIT(te_kernel_adamw_set_lr, -EINVAL, "a learning rate of inf", st, state, INFINITY);
#undef INIT
#define STEP(code, text, ...) \
	fails(te_kernel_adamw_step(st, __VA_ARGS__, &o), code, "te_kernel_adamw_step: " text)
	STEP(-EINVAL, "g is NULL", NULL, w, m, v, state, ws, nbytes);
	STEP(-EINVAL, "w is NULL", g, NULL, m, v, state, ws, nbytes);
	STEP(-EINVAL, "m is NULL", g, w, NULL, v, state, ws, nbytes);
	STEP(-EINVAL, "state is NULL", g, w, m, v, NULL, ws, nbytes);
	STEP(-EINVAL, "ws is NULL", g, w, m, v, state, NULL, nbytes);
	STEP(-EINVAL, "w is the memory of g", g, g, m, v, state, ws, nbytes);
	STEP(-EINVAL, "m is the memory of v", g, w, m, m, state, ws, nbytes);
	STEP(-TE_ESHAPE, "v has 64 elements, not 65", g, w, m, few, state, ws, nbytes);
	STEP(-TE_ESHAPE, "m has 1 elements, not 67", g, w, u8, v, state, ws, nbytes);
	STEP(-TE_EDTYPE, "v is uint8, not fp32", g, w, m, u8, state, ws, nbytes);
	o.remainder = u8;
	STEP(-EINVAL, "remainder, and w is fp32", g, w, m, v, state, ws, nbytes);
	STEP(-TE_ESHAPE, "remainder has 1 elements, not 130", g, kc_zeros(TE_DTYPE_BF16, 1, 65), m,
	     v, state, ws, nbytes);
	o.remainder = NULL;
	o.decay = u8;
	STEP(-TE_ESHAPE, "decay has 1 elements, not 2", g, w, m, v, state, ws, nbytes);
	o.decay = g;
	STEP(-TE_EDTYPE, "decay is fp32, not uint8", g, w, m, v, state, ws, nbytes);
	o.decay = NULL;
	o.beta1 = 1;
	STEP(-EINVAL, "beta1 1 and beta2", g, w, m, v, state, ws, nbytes);
	o.beta1 = 0;
	o.eps = -1;
	STEP(-EINVAL, "eps, weight_decay and max_grad_norm", g, w, m, v, state, ws, nbytes);
#undef STEP
}
