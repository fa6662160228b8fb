/* t/ops/kernel_calls_attend.c - attention on separate queries, keys and values. */
#include "config.h"

#include <math.h>

#include "kernel_calls_cases.h"
#include "tt_num.h"

static struct te_kernel_attend_opts o;

/* the backend's kernels do not have the options of the case */
static int refused(int r)
{
	if (r == -EOPNOTSUPP && strcmp(te_ctx_backend(ctx), "host"))
		return 1;
	DO(r);
	return 0;
}

static void *ws_for(int64_t batch, int64_t nqueries, size_t *ret_nbytes)
{
	*ret_nbytes = te_kernel_attention_ws_nbytes(kc_type, batch, nqueries, o.nheads,
						    o.head_dim);
	return kc_ws(*ret_nbytes);
}

static void choose_heads(int most)
{
	o = (struct te_kernel_attend_opts)TE_KERNEL_ATTEND_OPTS_INIT;
	o.nkv = (int32_t)tt_rand_int(1, 3);
	o.nheads = o.nkv * (int32_t)tt_rand_int(1, 3);
	o.head_dim = 8 * (int32_t)tt_rand_int(1, most);
}

static struct te_tensor *shaped(struct te_tensor *t, int64_t a, int64_t b, int64_t c)
{
	const struct te_spec s = { te_tensor_dtype(t), 3, { a, b, c } };

	return kc_reshaped(t, &s);
}

static struct te_tensor *ints(int64_t n, const int32_t *x)
{
	struct te_tensor *t = kc_zeros(TE_DTYPE_INT32, 1, n);

	DO(te_tensor_write(t, x, (size_t)n * sizeof(*x)));
	return t;
}

KC_CASE(attend);

/* one packed tensor is what te_kernel_attention_forward() computes. _i: replay, type, mask */
TEST_EACH(attend, attend_has_the_bits_of_attention, 12)
{
	struct te_kernel_attention_opts p = TE_KERNEL_ATTENTION_OPTS_INIT;
	const int64_t batch = tt_rand_int(1, 3), n = tt_rand_int(1, 90), rows = batch * n;
	struct te_tensor *x, *dx[2], *y[2], *lse[2], *dy, *other;
	int64_t nq, nk, cols;
	size_t nbytes;
	void *ws;

	kc_type = kc_types[_i >> 1 & 1];
	choose_heads(16);
	nq = (int64_t)o.nheads * o.head_dim;
	nk = (int64_t)o.nkv * o.head_dim;
	cols = nq + 2 * nk;
	p.nheads = o.nheads;
	p.nkv = o.nkv;
	p.head_dim = o.head_dim;
	o.k_at = nq;
	o.v_at = nq + nk;
	p.window = o.window = _i >> 2 == 1 ? 7 : 0;
	p.softcap = o.softcap = _i >> 2 == 1 ? 3.0f : 0.0f;
	p.full = o.full = _i >> 2 == 2;
	x = shaped(kc_normal(kc_type, rows, cols), batch, n, cols);
	dy = shaped(kc_normal(kc_type, rows, nq), batch, n, nq);
	for (int i = 0; i < 2; i++) {
		y[i] = shaped(kc_poison(kc_type, rows, nq), batch, n, nq);
		dx[i] = shaped(kc_poison(kc_type, rows, cols), batch, n, cols);
		lse[i] = kc_poison(TE_DTYPE_FP32, o.nheads, rows);
	}
	ws = ws_for(batch, n, &nbytes);
	kc_begin(_i & 1);
	DO(te_kernel_attention_forward(st, x, y[0], lse[0], &p));
	DO(te_kernel_attention_backward(st, dy, x, y[0], lse[0], dx[0], ws, nbytes, &p));
	DO(te_kernel_attend_forward(st, x, x, x, y[1], lse[1], &o));
	DO(te_kernel_attend_backward(st, dy, x, x, x, y[1], lse[1], dx[1], dx[1], dx[1], ws,
				     nbytes, &o));
	kc_end(_i & 1);
	kc_same("y", y[1], y[0]);
	kc_same("lse", lse[1], lse[0]);
	kc_same("dx", dx[1], dx[0]);
	if (strcmp(te_ctx_backend(ctx), "host"))
		return;
	/* two tensors are not one packed tensor, but have the same bits there */
	other = shaped(kc_copy(x), batch, n, cols);
	DO(te_fill(st, te_tensor_data(y[1]), 0x55, te_tensor_nbytes(y[1])));
	DO(te_fill(st, te_tensor_data(dx[1]), 0x55, te_tensor_nbytes(dx[1])));
	DO(te_kernel_attend_forward(st, x, other, other, y[1], lse[1], &o));
	DO(te_kernel_attend_backward(st, dy, x, other, other, y[1], lse[1], dx[1], dx[1], dx[1], ws,
				     nbytes, &o));
	kc_same("y of two", y[1], y[0]);
	kc_same("dx of two", dx[1], dx[0]);
}

/* element of a tensor [batch, n, cols] or, sbhd, [n, batch, cols] */
static int64_t at(int sbhd, int64_t batch, int64_t n, int64_t b, int64_t t)
{
	return sbhd ? t * batch + b : b * n + t;
}

static void get(const struct te_tensor *t, float *ret)
{
	float *x;

	DO(te_stream_sync(st));
	x = tt_tensor_get(t);
	memcpy(ret, x, (size_t)te_tensor_nelems(t) * sizeof(*x));
	free(x);
}

/* the same numbers in other tensors have, on the host, the same bits: k and v from one, q apart */
TEST_EACH(attend, layouts_have_the_same_results, 2)
{
	const int64_t batch = 3, nq = 33, nk = 70, wide = 2;
	float *out[2], *dkv[2], *was, *moved;
	int64_t cols, kcols, ncols[2];
	size_t nbytes;
	void *ws;

	kc_type = kc_types[_i & 1];
	choose_heads(4);
	o.full = 1;
	o.right = 9;
	o.window = 20;
	o.bottom = 1;
	cols = (int64_t)o.nheads * o.head_dim;
	kcols = 2 * (int64_t)o.nkv * o.head_dim;
	ncols[0] = cols;
	ncols[1] = kcols;
	was = malloc((size_t)(batch * nk * (cols + kcols)) * sizeof(float));
	moved = malloc((size_t)(batch * nk * (cols + kcols)) * sizeof(float));
	struct te_tensor *in[3] = { kc_normal(kc_type, batch * nq, cols),
				    kc_normal(kc_type, batch * nk, kcols),
				    kc_normal(kc_type, batch * nq, cols) };

	o.v_at = kcols / wide;
	for (int sbhd = 0; sbhd < 2; sbhd++) {
		struct te_tensor *t[3], *y, *lse, *d[2];

		for (int i = 0; i < 3; i++) {
			const int64_t n = i == 1 ? nk : nq, c = ncols[i == 1];

			t[i] = kc_poison(kc_type, batch * n, c);
			get(in[i], was);
			for (int64_t r = 0; r < batch * n; r++)
				memcpy(moved + at(sbhd, batch, n, r / n, r % n) * c, was + r * c,
				       (size_t)c * sizeof(float));
			tt_tensor_set(t[i], moved);
			t[i] = sbhd ? shaped(t[i], n, batch, c) : shaped(t[i], batch, n, c);
		}
		y = kc_poison(kc_type, batch * nq, cols);
		y = sbhd ? shaped(y, nq, batch, cols) : shaped(y, batch, nq, cols);
		lse = kc_poison(TE_DTYPE_FP32, o.nheads, batch * nq);
		d[0] = kc_poison(kc_type, batch * nq, cols);
		d[1] = kc_poison(kc_type, batch * nk, kcols);
		o.layout = sbhd ? TE_ATTEND_SBHD : TE_ATTEND_BSHD;
		ws = ws_for(batch, nq, &nbytes);
		if (refused(te_kernel_attend_forward(st, t[0], t[1], t[1], y, lse, &o)))
			break;
		DO(te_kernel_attend_backward(st, t[2], t[0], t[1], t[1], y, lse, d[0], d[1], d[1],
					     ws, nbytes, &o));
		out[sbhd] = malloc((size_t)(batch * nq * cols) * sizeof(float));
		dkv[sbhd] = malloc((size_t)(batch * nk * kcols) * sizeof(float));
		get(y, out[sbhd]);
		get(d[1], dkv[sbhd]);
		if (!sbhd)
			continue;
		for (int64_t r = 0; r < batch * nq; r++)
			ck_assert_mem_eq(out[1] + at(1, batch, nq, r / nq, r % nq) * cols,
					 out[0] + r * cols, (size_t)cols * sizeof(float));
		for (int64_t r = 0; r < batch * nk; r++)
			ck_assert_mem_eq(dkv[1] + at(1, batch, nk, r / nk, r % nk) * kcols,
					 dkv[0] + r * kcols, (size_t)kcols * sizeof(float));
		for (int i = 0; i < 2; i++) {
			free(out[i]);
			free(dkv[i]);
		}
	}
	free(was);
	free(moved);
}

/* sequences by offsets are those of separate calls: bit for bit where they begin at tiles of the
 * host. _i: type, bottom */
TEST_EACH(attend, offsets_separate_sequences, 4)
{
	const int32_t qoff[] = { 0, 64, 64, 100 }, koff[] = { 0, 128, 192, 200 };
	struct te_tensor *q, *k, *v, *y, *lse, *one;
	float *all, *alone;
	int64_t cols, kcols, vcols;

	kc_type = kc_types[_i & 1];
	choose_heads(4);
	o.head_dim_v = 24;
	o.bottom = _i >> 1;
	o.layout = TE_ATTEND_THD;
	cols = (int64_t)o.nheads * o.head_dim;
	kcols = (int64_t)o.nkv * o.head_dim;
	vcols = 24 * (int64_t)o.nkv;
	q = kc_normal(kc_type, 100, cols);
	k = kc_normal(kc_type, 200, kcols);
	v = kc_normal(kc_type, 200, vcols);
	y = kc_poison(kc_type, 100, 24 * (int64_t)o.nheads);
	lse = kc_poison(TE_DTYPE_FP32, o.nheads, 100);
	o.q_offsets = ints(4, qoff);
	o.k_offsets = ints(4, koff);
	if (refused(te_kernel_attend_forward(st, q, k, v, y, lse, &o)))
		return;
	all = malloc((size_t)te_tensor_nelems(y) * sizeof(float));
	alone = malloc((size_t)te_tensor_nelems(y) * sizeof(float));
	get(y, all);
	o.layout = TE_ATTEND_BSHD;
	o.q_offsets = o.k_offsets = NULL;
	for (int i = 0; i < 3; i++) {
		const int64_t n = qoff[i + 1] - qoff[i], m = koff[i + 1] - koff[i];
		const struct te_tensor *from[] = { q, k, v };
		struct te_tensor *part[3];

		if (!n)
			continue;
		for (int j = 0; j < 3; j++) {
			const int64_t shape[2] = { j ? m : n, te_tensor_cols(from[j]) };

			DO(te_tensor_view((struct te_tensor *)(uintptr_t)from[j],
					  (j ? koff[i] : qoff[i]) * shape[1], 2, shape, &part[j]));
		}
		one = kc_poison(kc_type, n, 24 * (int64_t)o.nheads);
		lse = kc_poison(TE_DTYPE_FP32, o.nheads, n);
		DO(te_kernel_attend_forward(st, part[0], part[1], part[2], one, lse, &o));
		get(one, alone);
		for (int64_t e = 0; e < te_tensor_nelems(one); e++) {
			const float want = all[qoff[i] * 24 * o.nheads + e];

			if (strcmp(te_ctx_backend(ctx), "host"))
				ck_assert(fabsf(alone[e] - want) <= 0.02f * (1 + fabsf(want)));
			else
				ck_assert_mem_eq(&alone[e], &want, sizeof(want));
		}
		for (int j = 0; j < 3; j++)
			te_tensor_unref(part[j]);
	}
	free(all);
	free(alone);
}

/* random rows with NaN before and after them in memory */
static struct te_tensor *between_nan(int64_t n, int64_t cols)
{
	struct te_tensor *around = kc_poison(kc_type, n + 128, cols), *t;
	const int64_t shape[2] = { n, cols };

	DO(te_fill(st, te_tensor_data(around), 0xff, te_tensor_nbytes(around)));
	DO(te_stream_sync(st));
	DO(te_tensor_view(around, 64 * cols, 2, shape, &t));
	kc_set_normal(t);
	return t;
}

static void no_nan(const char *what, const struct te_tensor *t)
{
	float *v = malloc((size_t)te_tensor_nelems(t) * sizeof(*v));

	get(t, v);
	for (int64_t i = 0; i < te_tensor_nelems(t); i++)
		ck_assert_msg(!isnan(v[i]), "%s[%lld]", what, (long long)i);
	free(v);
}

/* offsets that descend or lie outside: only tokens that are there are read. _i: type, masks,
 * queries too */
TEST_EACH(attend, any_offsets_stay_inside, 16)
{
	static const int32_t odd[] = { INT32_MIN, -1, 0, 3, 40, 70, 90, 1 << 20, INT32_MAX };
	static const char *const name[] = { "dq", "dk", "dv" };
	const int64_t n[4] = { 70, 90, 90, 70 };
	struct te_tensor *t[4], *d[3], *y, *lse;
	int32_t off[2][6] = { { 0, 20, 20, 50, 60, 70 } };
	size_t nbytes;
	void *ws;

	kc_type = kc_types[_i & 1];
	choose_heads(4);
	o.layout = TE_ATTEND_THD;
	o.full = _i >> 1 & 1;
	o.bottom = _i >> 2 & 1;
	o.window = 9 * (int32_t)tt_rand_int(0, 1);
	for (int i = 0; i < 6; i++)
		for (int j = _i < 8; j < 2; j++)
			off[j][i] = odd[tt_rand_int(0, (int64_t)TT_LEN(odd) - 1)];
	o.q_offsets = ints(6, off[0]);
	o.k_offsets = ints(6, off[1]);
	for (int i = 0; i < 4; i++)
		t[i] = between_nan(n[i], o.head_dim * (int64_t)(i % 3 ? o.nkv : o.nheads));
	for (int i = 0; i < 3; i++)
		d[i] = kc_poison(kc_type, n[i], te_tensor_cols(t[i]));
	y = kc_poison(kc_type, 70, te_tensor_cols(t[0]));
	lse = kc_poison(TE_DTYPE_FP32, o.nheads, 70);
	ws = ws_for(1, 70, &nbytes);
	DO(te_kernel_attend_forward(st, t[0], t[1], t[2], y, lse, &o));
	DO(te_kernel_attend_backward(st, t[3], t[0], t[1], t[2], y, lse, d[0], d[1], d[2], ws,
				     nbytes, &o));
	no_nan("out", y);
	no_nan("lse", lse);
	for (int i = 0; i < 3; i++)
		no_nan(name[i], d[i]);
	for (int i = 0; i < 4; i++)
		te_tensor_unref(t[i]);
}

/* two heads of one channel, [queries], [keys]: out in FP64 */
struct small {
	float q[4], k[6], v[6], bias[12], slope[2], sink[2];
};

static double expected(const struct small *s, int h, int i)
{
	const int at = i + 1; /* bottom: of 2 queries and 3 keys */
	double sum = exp((double)s->sink[h]), out = 0;

	for (int k = 0; k < 3; k++) {
		double score = (double)s->q[2 * i + h] * (double)s->k[2 * k + h];

		if (k > at)
			continue;
		score += (double)s->bias[6 * h + 3 * i + k] - (double)s->slope[h] * abs(k - at);
		sum += exp(score);
		out += exp(score) * (double)s->v[2 * k + h];
	}
	return out / sum;
}

static double loss_of(const struct small *s, const float *dy)
{
	double sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (double)dy[i] * expected(s, i % 2, i / 2);
	return sum;
}

static void check_gradient(struct small *s, float *x, const float *dy, float got, const char *what)
{
	const float was = *x;
	double up, down;

	*x = was + 0x1p-8f;
	up = loss_of(s, dy);
	*x = was - 0x1p-8f;
	down = loss_of(s, dy);
	*x = was;
	ck_assert_msg(fabs((up - down) / 0x1p-7 - (double)got) < 1e-3, "%s: %g, not %g", what,
		      (double)got, (up - down) / 0x1p-7);
}

static struct te_tensor *floats(int64_t rows, int64_t cols, const float *x)
{
	struct te_tensor *t = kc_poison(TE_DTYPE_FP32, rows, cols);

	DO(te_tensor_write(t, x, (size_t)(rows * cols) * sizeof(*x)));
	return t;
}

TEST(attend, bias_slopes_and_sinks_are_scores)
{
	struct te_tensor *q, *k, *v, *y, *lse, *dy, *d[3];
	const float dout[4] = { 1.0f, -2.0f, 0.5f, 3.0f };
	float out[4], dbias[12], dsinks[2], *all;
	struct small s;
	size_t nbytes;
	void *ws;

	kc_type = TE_DTYPE_FP32;
	all = (float *)&s;
	for (size_t i = 0; i < sizeof(s) / sizeof(*all); i++)
		all[i] = tt_rand_float(-1, 1);
	o = (struct te_kernel_attend_opts)TE_KERNEL_ATTEND_OPTS_INIT;
	o.nheads = o.nkv = 2;
	o.head_dim = 1;
	o.bottom = 1;
	q = floats(2, 2, s.q);
	k = floats(3, 2, s.k);
	v = floats(3, 2, s.v);
	dy = floats(2, 2, dout);
	o.bias = floats(4, 3, s.bias);
	o.slopes = floats(1, 2, s.slope);
	o.sinks = floats(1, 2, s.sink);
	y = kc_poison(TE_DTYPE_FP32, 2, 2);
	lse = kc_poison(TE_DTYPE_FP32, 2, 2);
	if (refused(te_kernel_attend_forward(st, q, k, v, y, lse, &o)))
		return;
	get(y, out);
	for (int i = 0; i < 4; i++)
		ck_assert(fabs((double)out[i] - expected(&s, i % 2, i / 2)) < 1e-5);
	for (int i = 0; i < 3; i++)
		d[i] = kc_poison(TE_DTYPE_FP32, i ? 3 : 2, 2);
	o.dsinks = kc_zeros(TE_DTYPE_FP32, 1, 2);
	o.dbias = kc_poison(TE_DTYPE_FP32, 4, 3);
	ws = ws_for(1, 2, &nbytes);
	DO(te_kernel_attend_backward(st, dy, q, k, v, y, lse, d[0], d[1], d[2], ws, nbytes, &o));
	get(o.dsinks, dsinks);
	get(o.dbias, dbias);
	for (int h = 0; h < 2; h++)
		check_gradient(&s, &s.sink[h], dout, dsinks[h], "dsinks");
	for (int i = 0; i < 12; i++)
		check_gradient(&s, &s.bias[i], dout, dbias[i], "dbias");
	/* a second time: dsinks is added to */
	DO(te_kernel_attend_backward(st, dy, q, k, v, y, lse, d[0], d[1], d[2], ws, nbytes, &o));
	get(o.dsinks, out);
	ck_assert(fabsf(out[0] - 2 * dsinks[0]) < 1e-5f);
}

static struct te_tensor *view(struct te_tensor *t, int64_t rows, int64_t cols)
{
	const int64_t shape[2] = { rows, cols };
	struct te_tensor *v;

	DO(te_tensor_view(t, 0, 2, shape, &v));
	return v;
}

/* the first tokens of packed heads, as queries or as keys; the same as in other memory */
TEST_EACH(attend, packed_heads_may_be_of_other_lengths, 2)
{
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 9, 12), *some = view(x, 4, 12);
	struct te_tensor *q = _i ? some : x, *k = _i ? x : some, *copy = kc_copy(k);
	const int64_t n = te_tensor_rows(q);
	struct te_tensor *y[2], *lse[2];

	kc_type = TE_DTYPE_FP32;
	o = (struct te_kernel_attend_opts)TE_KERNEL_ATTEND_OPTS_INIT;
	o.nheads = o.nkv = 1;
	o.head_dim = o.k_at = 4;
	o.v_at = 8;
	o.full = 1;
	for (int i = 0; i < 2; i++) {
		y[i] = kc_poison(TE_DTYPE_FP32, n, 4);
		lse[i] = kc_poison(TE_DTYPE_FP32, 1, n);
		DO(te_kernel_attend_forward(st, q, i ? copy : k, i ? copy : k, y[i], lse[i], &o));
	}
	kc_same("y", y[0], y[1]);
	kc_same("lse", lse[0], lse[1]);
	te_tensor_unref(some);
}

/* a query of no sequence, and a sink that is not seen */
TEST(attend, sinks_of_minus_infinity_have_no_gradient)
{
	struct te_tensor *x = kc_normal(TE_DTYPE_FP32, 3, 12), *y, *lse, *dy, *d;
	const int32_t offsets[2] = { 0, 2 };
	float got[1];
	size_t nbytes;
	void *ws;

	kc_type = TE_DTYPE_FP32;
	o = (struct te_kernel_attend_opts)TE_KERNEL_ATTEND_OPTS_INIT;
	o.nheads = o.nkv = 1;
	o.head_dim = o.k_at = 4;
	o.v_at = 8;
	o.layout = TE_ATTEND_THD;
	o.q_offsets = ints(2, offsets);
	o.sinks = floats(1, 1, (const float[1]){ -INFINITY });
	y = kc_poison(TE_DTYPE_FP32, 3, 4);
	lse = kc_poison(TE_DTYPE_FP32, 1, 3);
	dy = kc_normal(TE_DTYPE_FP32, 3, 4);
	d = kc_poison(TE_DTYPE_FP32, 3, 12);
	ws = ws_for(1, 3, &nbytes);
	DO(te_kernel_attend_forward(st, x, x, x, y, lse, &o));
	o.dsinks = floats(1, 1, (const float[1]){ 3.0f });
	DO(te_kernel_attend_backward(st, dy, x, x, x, y, lse, d, d, d, ws, nbytes, &o));
	get(o.dsinks, got);
	ck_assert(got[0] == 3.0f);
}

TEST(attend, attend_names_the_argument)
{
	struct te_tensor *q = kc_normal(TE_DTYPE_FP32, 6, 8), *k = kc_normal(TE_DTYPE_FP32, 5, 4);
	struct te_tensor *y = kc_poison(TE_DTYPE_FP32, 6, 8), *v = kc_normal(TE_DTYPE_FP32, 5, 4);
	struct te_tensor *lse = kc_poison(TE_DTYPE_FP32, 2, 6);
	struct te_tensor *dy = kc_normal(TE_DTYPE_FP32, 6, 8);
	struct te_tensor *dq = kc_poison(TE_DTYPE_FP32, 6, 8), *dk = kc_poison(TE_DTYPE_FP32, 5, 4);
	struct te_tensor *dv = kc_poison(TE_DTYPE_FP32, 5, 4), *i = kc_zeros(TE_DTYPE_INT32, 1, 1);
	struct te_tensor *other = kc_normal(TE_DTYPE_FP32, 4, 4);
	size_t nbytes;
	void *ws;

	kc_type = TE_DTYPE_FP32;
	o = (struct te_kernel_attend_opts)TE_KERNEL_ATTEND_OPTS_INIT;
	o.nheads = 2;
	o.nkv = 1;
	o.head_dim = 4;
	ws = ws_for(1, 6, &nbytes);
#define WITH(field, value, code, text)                                                        \
	do {                                                                                  \
		const struct te_kernel_attend_opts was = o;                                   \
											      \
		o.field = value;                                                              \
		fails(te_kernel_attend_forward(st, q, k, v, y, lse, &o), code,                \
		      "te_kernel_attend_forward: " text);                                     \
		o = was;                                                                      \
	} while (0)
	WITH(nkv, 0, -EINVAL, "nheads 2 is no multiple of nkv 0");
	WITH(head_dim_v, 257, -EINVAL, "head_dim_v is 257");
	WITH(window, -1, -EINVAL, "window is -1");
	WITH(right, 2, -EINVAL, "right is 2, not 0, but full is 0");
	WITH(full, 3, -EINVAL, "full is 3");
	WITH(bottom, 2, -EINVAL, "bottom is 2");
	WITH(layout, 3, -EINVAL, "layout is 3");
	WITH(flags, 4, -EINVAL, "flags are 0x4");
	WITH(layout, TE_ATTEND_THD, -EINVAL, "q_offsets is NULL, but layout is thd");
	WITH(layout, TE_ATTEND_SBHD, -TE_ESHAPE, "q has 2 extents, layout sbhd takes 3");
	WITH(q_offsets, i, -EINVAL, "q_offsets is given, but layout is not thd");
	WITH(k_offsets, i, -EINVAL, "k_offsets is given, but q_offsets is NULL");
	WITH(dsinks, dv, -EINVAL, "dsinks is given, but sinks is NULL");
	WITH(dbias, dv, -EINVAL, "dbias is given, but bias is NULL");
	WITH(q_at, 1, -TE_ESHAPE, "q has 8 columns, too few for 2 heads of 4 from column 1 on");
	WITH(k_at, -1, -TE_ESHAPE, "k has 4 columns, too few for 1 heads of 4 from column -1 on");
	WITH(head_dim_v, 8, -TE_ESHAPE, "v has 4 columns, too few for 1 heads of 8");
	WITH(bias, other, -TE_ESHAPE, "bias has 16 elements, not 60");
	WITH(slopes, other, -TE_ESHAPE, "slopes has 16 elements, not 2");
	WITH(sinks, i, -TE_EDTYPE, "sinks is int32, not fp32");
	WITH(dropout, 0.5f, -EINVAL, "dropout is 0.5, but rng.seed is NULL");
	o.layout = TE_ATTEND_THD;
	WITH(q_offsets, i, -TE_ESHAPE, "k_offsets is NULL, but q has 6 tokens and k 5");
	o.k_offsets = i;
	WITH(q_offsets, i, -TE_ESHAPE, "q_offsets has 1 element, of no sequence");
	o.k_offsets = NULL;
	o.layout = TE_ATTEND_BSHD;
#undef WITH
#define FWD(code, text, ...)                                             \
	fails(te_kernel_attend_forward(st, __VA_ARGS__, &o), code,       \
	      "te_kernel_attend_forward: " text)
	FWD(-EINVAL, "v is NULL", q, k, NULL, y, lse);
	FWD(-TE_ESHAPE, "q, k and v have 1, 1 and 1 sequences of 6, 5 and 4 tokens", q, k, other, y,
	    lse);
	FWD(-EINVAL, "out is the memory of q", q, k, v, q, lse);
#undef FWD
#define BWD(code, text, ...)                                                        \
	fails(te_kernel_attend_backward(st, dy, q, k, v, y, lse, __VA_ARGS__, &o), \
	      code, "te_kernel_attend_backward: " text)
	BWD(-EINVAL, "dq is NULL", NULL, dk, dv, ws, nbytes);
	BWD(-EINVAL, "dk and dv are columns of one tensor, and overlap", dq, dk, dk, ws, nbytes);
	BWD(-EINVAL, "dk is the memory of k", dq, k, dv, ws, nbytes);
	BWD(-EINVAL, "ws is NULL", dq, dk, dv, NULL, nbytes);
	/* columns that are apart, but not in rows of another length */
	o.nheads = 1;
	o.q_at = 4;
	y = kc_poison(TE_DTYPE_FP32, 6, 4);
	dy = kc_normal(TE_DTYPE_FP32, 6, 4);
	lse = kc_poison(TE_DTYPE_FP32, 1, 6);
	other = view(dq, 5, 4);
	BWD(-EINVAL, "dq and dk are of one memory, but have 8 and 4 columns", dq, other, dv, ws,
	    nbytes);
	te_tensor_unref(other);
	o.nheads = 2;
	o.q_at = 0;
	o.sinks = floats(1, 2, (const float[2]){ 0 });
	o.dsinks = floats(1, 2, (const float[2]){ 0 });
	fails(te_kernel_attend_forward(st, q, k, v, y, lse, &o), -EINVAL,
	      "te_kernel_attend_forward: dsinks is for the backward pass");
#undef BWD
}
