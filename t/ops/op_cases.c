/*
 * t/ops/op_cases.c - the built-in ops in FP64, and inputs for them.
 *
 * depth counts the FP32 roundings on the way to one element, times how far a
 * rounding can grow on it (a norm's 1/std, a softmax's scores): elementwise ops 4 to 40 (libm's
 * exp, cos and sin are within 1 ulp, their argument adds that of the products
 * before), sums of K terms K + 4, doubled where sums follow each other.
 */
#include "config.h"

#include <math.h>

#include <te/errno.h>

#include "kernels/philox.h"
#include "op_cases.h"
#include "tt_num.h"

static int64_t cols_of(const struct te_spec *s)
{
	return s->shape[s->ndim - 1];
}

static int64_t nelems_of(const struct te_spec *s)
{
	int64_t n = 1;

	for (int i = 0; i < s->ndim; i++)
		n *= s->shape[i];
	return n;
}

static int64_t rows_of(const struct te_spec *s)
{
	return nelems_of(s) / cols_of(s);
}

#define CREATE(op, member)                                                     \
	static int create_##op(const struct op_case *k, struct te_op **ret_op) \
	{                                                                      \
		return te_op_##op(&k->a.member, #op, ret_op);                  \
	}
CREATE(embedding, embedding)
CREATE(linear, linear)
CREATE(bias, bias)
CREATE(layernorm, norm)
CREATE(rmsnorm, norm)
CREATE(activation, act)
CREATE(qk_norm, qk_norm)
CREATE(rope, rope)
CREATE(attention, attention)
CREATE(dropout, dropout)
CREATE(scale, scale)
CREATE(reshape, reshape)
CREATE(cross_entropy, ce)

static int create_fork(const struct op_case *k, struct te_op **ret_op)
{
	return te_op_fork("fork", ret_op);
}

static int create_identity(const struct op_case *k, struct te_op **ret_op)
{
	return te_op_identity("identity", ret_op);
}

static int create_add(const struct op_case *k, struct te_op **ret_op)
{
	return te_op_add("add", ret_op);
}

/* ---- FP64 ---- */

static void ref_embedding(const struct op_run *r, const double *x, double *const *ex,
			  double *const *w, double *y)
{
	const struct te_embedding_attrs *a = te_op_attrs(r->op);
	int64_t n = nelems_of(&r->inf.in[0]), seqlen = cols_of(&r->inf.in[0]);

	for (int64_t i = 0; i < n; i++)
		for (int64_t c = 0; c < a->width; c++) {
			double v = 0;

			if (x[i] >= 0 && x[i] < (double)a->vocab)
				v = w[0][(int64_t)x[i] * a->width + c];
			if (a->max_pos)
				v += w[1][i % seqlen * a->width + c];
			y[i * a->width + c] = v;
		}
}

static void ref_linear(const struct op_run *r, const double *x, double *const *ex,
		       double *const *w, double *y)
{
	const struct te_linear_attrs *a = te_op_attrs(r->op);

	for (int64_t i = 0; i < rows_of(&r->inf.in[0]); i++)
		for (int64_t o = 0; o < a->out; o++) {
			double s = 0;

			for (int64_t c = 0; c < a->in; c++)
				s += x[i * a->in + c] * w[0][o * a->in + c];
			y[i * a->out + o] = s;
		}
}

static void ref_bias(const struct op_run *r, const double *x, double *const *ex,
		     double *const *w, double *y)
{
	for (int64_t i = 0; i < nelems_of(&r->inf.in[0]); i++)
		y[i] = x[i] + w[0][i % cols_of(&r->inf.in[0])];
}

static void ref_norm(const struct op_run *r, const double *x, double *const *ex,
		     double *const *w, double *y)
{
	const struct te_norm_attrs *a = te_op_attrs(r->op);
	int64_t n = a->width;

	for (int64_t i = 0; i < rows_of(&r->inf.in[0]); i++, x += n, y += n) {
		double mean = 0, var = 0, rstd;

		for (int64_t c = 0; r->op->nweights == 2 && c < n; c++)
			mean += x[c] / (double)n;
		for (int64_t c = 0; c < n; c++)
			var += (x[c] - mean) * (x[c] - mean) / (double)n;
		rstd = 1 / sqrt(var + (double)a->eps);
		for (int64_t c = 0; c < n; c++) {
			double gain = w[0][c] + (a->flags & TE_NORM_ZERO_CENTERED ? 1 : 0);

			y[c] = (x[c] - mean) * rstd * gain;
			if (r->op->nweights == 2)
				y[c] += w[1][c];
		}
	}
}

static double act(enum te_act kind, double x)
{
	switch (kind) {
	case TE_ACT_GELU: /* Hendrycks and Gimpel, arXiv:1606.08415 */
		return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
	case TE_ACT_QGELU:
		return x / (1 + exp(-1.702 * x));
	case TE_ACT_RELU:
		return x > 0 ? x : 0;
	case TE_ACT_SRELU:
		return x > 0 ? x * x : 0;
	case TE_ACT_SILU:
		return x / (1 + exp(-x));
	case TE_ACT_SIGMOID:
		return 1 / (1 + exp(-x));
	case TE_ACT_GELU_ERF:
		return 0.5 * x * erfc(-x * M_SQRT1_2);
	case TE_ACT_TANH:
		return tanh(x);
	default:
		return NAN;
	}
}

static void ref_act(const struct op_run *r, const double *x, double *const *ex,
		    double *const *w, double *y)
{
	const struct te_act_attrs *a = te_op_attrs(r->op);
	int64_t n = cols_of(&r->inf.in[0]), m = a->gated ? n / 2 : n;

	for (int64_t i = 0; i < rows_of(&r->inf.in[0]); i++)
		for (int64_t c = 0; c < m; c++)
			y[i * m + c] = act(a->act, x[i * n + c]) *
				       (a->gated ? x[i * n + m + c] : 1);
}

/* the first token of the document of token t of a sequence; ex: of this sequence, or NULL */
static int64_t document_of(const double *ex, int64_t t)
{
	return ex ? (int64_t)fmax(0, fmin(ex[t], (double)t)) : 0;
}

/* theta of a head for sequences of this length, by the formula of transformers, see
 * libtecore/ops/kernel_rope.c */
static double theta_of(const struct te_rope_attrs *a, int64_t seqlen)
{
	const double f = (double)a->dynamic_factor, d = a->head_dim;
	const double n = (double)a->dynamic_positions;

	if (!a->dynamic_positions || seqlen < a->dynamic_positions)
		return (double)a->theta;
	return (double)a->theta * pow(f * (double)seqlen / n - (f - 1), d / (d - 2));
}

static void ref_rope(const struct op_run *r, const double *x, double *const *ex,
		     double *const *w, double *y)
{
	const struct te_rope_attrs *a = te_op_attrs(r->op);
	int64_t seqlen = r->inf.in[0].shape[r->inf.in[0].ndim - 2];
	int d = a->head_dim, heads = a->nheads + 2 * a->nkv;

	for (int64_t i = 0; i < rows_of(&r->inf.in[0]); i++)
		for (int h = 0; h < heads; h++, x += d, y += d)
			for (int j = 0; j < d / 2; j++) {
				const int64_t at = i % seqlen;
				const double *first = a->documents ? ex[0] + i - at : NULL;
				const int64_t m = a->interleaved ? 2 * j : j;
				const int64_t n = a->interleaved ? m + 1 : j + d / 2;
				const double position = a->positions ? ex[0][i] :
						(double)(at - document_of(first, at));
				double t = position *
					   (a->inv_freq ? (double)a->inv_freq[j] :
					    pow(theta_of(a, seqlen), -2.0 * j / d));

				if (h >= a->nheads + a->nkv)
					t = 0;
				y[m] = x[m] * cos(t) - x[n] * sin(t);
				y[n] = x[n] * cos(t) + x[m] * sin(t);
			}
}

static void ref_qk_norm(const struct op_run *r, const double *x, double *const *ex,
			double *const *w, double *y)
{
	const struct te_qk_norm_attrs *a = te_op_attrs(r->op);
	const int heads[3] = { a->nheads, a->nkv, a->nkv };

	for (int64_t i = 0; i < rows_of(&r->inf.in[0]); i++)
		for (int part = 0; part < 3; part++) {
			const int n = a->whole ? heads[part] * a->head_dim : a->head_dim;
			const int end = a->whole ? 1 : heads[part];

			for (int h = 0; h < end; h++, x += n, y += n) {
				double sum = 0, rstd;

				for (int c = 0; c < n; c++)
					sum += x[c] * x[c];
				rstd = 1 / sqrt(sum / n + (double)a->eps);
				for (int c = 0; c < n && part < 2; c++)
					y[c] = x[c] * rstd *
					       (w[part][c] + (a->flags ? 1 : 0));
				for (int c = 0; c < n && part == 2; c++)
					y[c] = x[c];
			}
		}
}

static double kept(uint32_t lane, uint32_t threshold)
{
	return lane >= threshold ? 65536.0 / (65536.0 - threshold) : 0;
}

static void rng_words(const struct op_run *r, uint64_t words[2])
{
	DO(te_copy(r->stream, words, r->rng, 2 * sizeof(*words)));
	DO(te_stream_sync(r->stream));
}

/* rows of an operand of attention: of row i, head h of d elements */
struct heads {
	const double *x;
	int64_t cols;
	int d;
};

static const double *head_of(const struct heads *v, int64_t i, int h)
{
	return v->x + i * v->cols + h * v->d;
}

/* keys from to to - 1, and the diagonal, of row q: the sequence has rows q0 on and keys k0 on */
struct keys {
	int64_t from, to, diagonal;
};

static struct keys keys_of(const struct te_attention_attrs *a, int64_t q, int64_t q0, int64_t nq,
			   int64_t k0, int64_t nk, const double *first)
{
	struct keys r = { k0, k0 + nk, k0 + q - q0 + (a->bottom ? nk - nq : 0) };

	if (a->documents && r.from < q0 + document_of(first, q - q0))
		r.from = q0 + document_of(first, q - q0);
	if (a->window && r.from < r.diagonal - a->window + 1)
		r.from = r.diagonal - a->window + 1;
	if ((!a->full || a->right) && r.to > r.diagonal + a->right + 1)
		r.to = r.diagonal + a->right + 1;
	return r;
}

/* Press et al., arXiv:2108.12409: 4 and 3 heads; the fourth of 3 heads does not exist */
static double slope_of(const struct te_attention_attrs *a, int h)
{
	static const double of4[] = { 1 / 4., 1 / 16., 1 / 64., 1 / 256. };
	static const double of3[] = { 1 / 16., 1 / 256., 1 / 4. };

	ck_assert(a->slopes || a->nheads == 4 || a->nheads == 3);
	return a->slopes ? (double)a->slopes[h] : a->nheads == 4 ? of4[h] : of3[h];
}

/* row q of head h of sequence b, whose rows are q0 to q0 + nq - 1 and keys k0 to k0 + nk - 1 */
static void attend_row(const struct op_run *r, const struct heads v[3], double *const *ex,
		       double *const *w, const uint64_t words[2], int64_t b, int h, int64_t q,
		       int64_t q0, int64_t nq, int64_t k0, int64_t nk, double *out)
{
	const struct te_attention_attrs *a = te_op_attrs(r->op);
	const double scale = a->scale > 0 ? (double)a->scale : 1 / sqrt((double)a->head_dim);
	const uint32_t threshold = (uint32_t)lrintf(a->dropout * 65536);
	const uint32_t tag = a->tag ? (uint32_t)a->tag : r->call.tag;
	const int64_t all = a->all_heads ? a->all_heads : a->nheads;
	const int64_t nbias = a->bias_keys ? a->bias_keys :
					     cols_of(&r->inf.in[a->bias ? 1 + a->operands : 0]);
	const double *bias = a->bias ? ex[a->operands] : NULL;
	const double *qp = head_of(&v[0], q, h);
	const int g = h / (a->nheads / a->nkv);
	const int64_t q_at = a->offsets ? q : q - q0, k_at = a->offsets ? 0 : k0;
	const struct keys keys = keys_of(a, q, q0, nq, k0, nk, a->documents ? ex[0] + q0 : NULL);
	double sum = a->sinks ? exp(w[0][h]) : 0, p[64];

	if (bias && r->inf.in[1 + a->operands].ndim == 3)
		bias += h * nbias * r->inf.in[1 + a->operands].shape[1];
	if (a->bias_queries)
		bias = w[a->sinks] + h * a->bias_queries * nbias;
	for (int64_t k = keys.from; k < keys.to; k++) {
		const double *kp = head_of(&v[1], k, g);
		double s = 0;

		for (int c = 0; c < a->head_dim; c++)
			s += qp[c] * kp[c];
		s *= scale;
		if (a->softcap > 0)
			s = (double)a->softcap * tanh(s / (double)a->softcap);
		if (bias)
			s += bias[q_at * nbias + k - k_at];
		if (a->alibi)
			s -= slope_of(a, h) * fabs((double)(k - keys.diagonal));
		p[k - keys.from] = exp(s);
		sum += p[k - keys.from];
	}
	for (int c = 0; c < v[2].d; c++)
		out[c] = 0;
	for (int64_t k = keys.from; k < keys.to; k++) {
		const double *vp = head_of(&v[2], k, g);
		const struct te_philox ph = te_philox_attn(
			words[0], words[1], tag, (uint32_t)((a->offsets ? 0 : b) * all +
							    a->first_head + h),
			(uint32_t)q_at, (uint32_t)(k - k_at) / 8);

		for (int c = 0; c < v[2].d; c++)
			out[c] += p[k - keys.from] / sum * vp[c] *
				  kept(te_philox_lane(&ph, (int)(k - k_at) % 8), threshold);
	}
}

static void ref_attention(const struct op_run *r, const double *x, double *const *ex,
			  double *const *w, double *y)
{
	const struct te_attention_attrs *a = te_op_attrs(r->op);
	const struct te_spec *in = r->inf.in;
	const int d = a->head_dim, dv = a->head_dim_v ? a->head_dim_v : d;
	const int q_at = a->operands ? 0 : a->nheads * d;
	const int ninputs = a->operands + a->bias;
	struct heads v[3] = { { x, cols_of(&in[0]), d }, { x + q_at, cols_of(&in[0]), d },
			      { x + q_at + a->nkv * d, cols_of(&in[0]), dv } };
	const int64_t T = in[0].shape[in[0].ndim - 2];
	const int64_t S = a->operands ? in[1].shape[in[1].ndim - 2] : T;
	const double *qo = a->offsets ? ex[ninputs] : NULL;
	const double *ko = a->offsets ? ex[ninputs + (a->operands ? 1 : 0)] : NULL;
	uint64_t words[2];

	if (a->operands) {
		v[1] = (struct heads){ ex[0], cols_of(&in[1]), d };
		v[2] = (struct heads){ a->operands == TE_ATTENTION_Q_K_V ? ex[1] :
								      ex[0] + a->nkv * d,
				       cols_of(&in[a->operands]), dv };
	}
	rng_words(r, words);
	for (int64_t q = 0; q < rows_of(&in[0]); q++) {
		int64_t b = q / T, q0 = b * T, nq = T, k0 = b * S, nk = S;

		if (a->offsets) {
			for (b = 0; qo[b + 1] <= (double)q; b++)
				;
			q0 = (int64_t)qo[b];
			nq = (int64_t)qo[b + 1] - q0;
			k0 = (int64_t)ko[b];
			nk = (int64_t)ko[b + 1] - k0;
		}
		for (int h = 0; h < a->nheads; h++)
			attend_row(r, v, ex, w, words, b, h, q, q0, nq, k0, nk,
				   y + (q * a->nheads + h) * dv);
	}
}

static void ref_dropout(const struct op_run *r, const double *x, double *const *ex,
			double *const *w, double *y)
{
	const struct te_dropout_attrs *a = te_op_attrs(r->op);
	uint32_t threshold = (uint32_t)lrintf(a->p * 65536);
	const uint32_t tag = a->tag ? (uint32_t)a->tag : r->call.tag;
	const int64_t nparts = a->nparts ? a->nparts : 1;
	int64_t run = 1;
	uint64_t words[2];

	for (int d = a->axis; d < r->inf.in[0].ndim; d++)
		run *= r->inf.in[0].shape[d];
	rng_words(r, words);
	for (int64_t i = 0; i < nelems_of(&r->inf.in[0]); i++) {
		const int64_t at = (i / run * nparts + a->part) * run + i % run;
		struct te_philox ph = te_philox_flat(words[0], words[1], tag, (uint64_t)at / 8);

		y[i] = x[i] * kept(te_philox_lane(&ph, (int)(at % 8)), threshold);
	}
}

static void ref_fork(const struct op_run *r, const double *x, double *const *ex,
		     double *const *w, double *y)
{
	memcpy(y, x, (size_t)nelems_of(&r->inf.in[0]) * sizeof(*y));
}

static void ref_scale(const struct op_run *r, const double *x, double *const *ex,
		      double *const *w, double *y)
{
	const struct te_scale_attrs *a = te_op_attrs(r->op);

	for (int64_t i = 0; i < nelems_of(&r->inf.in[0]); i++)
		y[i] = x[i] * (double)a->factor;
}

static void ref_add(const struct op_run *r, const double *x, double *const *ex,
		    double *const *w, double *y)
{
	for (int64_t i = 0; i < nelems_of(&r->inf.in[0]); i++)
		y[i] = x[i] + ex[0][i];
}

static void ref_ce(const struct op_run *r, const double *x, double *const *ex,
		   double *const *w, double *y)
{
	const struct te_cross_entropy_attrs *a = te_op_attrs(r->op);
	int64_t n = cols_of(&r->inf.in[0]);
	double loss = 0, count = 0;

	for (int64_t i = 0; i < rows_of(&r->inf.in[0]); i++) {
		double sum = 0;

		if (ex[0][i] < 0 || ex[0][i] >= (double)a->nclasses ||
		    ex[0][i] == a->ignore_index)
			continue;
		for (int64_t c = 0; c < a->nclasses; c++)
			sum += exp(x[i * n + c]);
		loss += log(sum) - x[i * n + (int64_t)ex[0][i]];
		count++;
	}
	y[0] = count > 0 ? loss / count : 0;
}

/* ---- the cases ---- */

#define T TE_DTYPE_FP32 /* any: replaced by the compute dtype */
#define I TE_DTYPE_INT32
#define ACT(NAME, KIND, GATED, WIDTH)                                                      \
	{                                                                                  \
		.name = NAME, .create = create_activation, .ref = ref_act, .depth = 60,    \
		.in = { { T, 3, { 3, 5, WIDTH } } }, .a.act = TE_ATTRS(act, KIND, GATED),   \
	}

const struct op_case op_cases[] = {
	{ .name = "embedding", .create = create_embedding, .ref = ref_embedding, .depth = 25,
	  .in = { { I, 2, { 3, 7 } } }, .a.embedding = TE_ATTRS(embedding, 11, 5, 0, 0.5f, 0) },
	{ .name = "embedding with positions", .create = create_embedding, .ref = ref_embedding,
	  .depth = 25, .in = { { I, 2, { 3, 7 } } },
	  .a.embedding = TE_ATTRS(embedding, 6, 9, 8, 0.5f, 0) },
	{ .name = "linear", .create = create_linear, .ref = ref_linear, .depth = 40,
	  .in = { { T, 3, { 3, 5, 11 } } }, .a.linear = TE_ATTRS(linear, 11, 7, 0.2f, 0, NULL) },
	{ .name = "linear of one row", .create = create_linear, .ref = ref_linear, .depth = 40,
	  .in = { { T, 1, { 13 } } }, .a.linear = TE_ATTRS(linear, 13, 3, 0.2f, 0, NULL) },
	{ .name = "bias", .create = create_bias, .ref = ref_bias, .depth = 80,
	  .in = { { T, 3, { 5, 15, 9 } } }, .a.bias = TE_ATTRS(bias, 9) },
	{ .name = "layernorm", .create = create_layernorm, .ref = ref_norm, .depth = 200,
	  .in = { { T, 3, { 2, 37, 13 } } }, .a.norm = TE_ATTRS(norm, 13, 1e-5f, 0) },
	{ .name = "layernorm, zero-centered", .create = create_layernorm, .ref = ref_norm,
	  .depth = 200, .in = { { T, 2, { 5, 21 } } },
	  .a.norm = TE_ATTRS(norm, 21, 1e-3f, TE_NORM_ZERO_CENTERED) },
	{ .name = "rmsnorm", .create = create_rmsnorm, .ref = ref_norm, .depth = 200,
	  .in = { { T, 3, { 2, 37, 13 } } }, .a.norm = TE_ATTRS(norm, 13, 1e-5f, 0) },
	{ .name = "rmsnorm, zero-centered", .create = create_rmsnorm, .ref = ref_norm, .depth = 200,
	  .in = { { T, 2, { 5, 21 } } },
	  .a.norm = TE_ATTRS(norm, 21, 1e-3f, TE_NORM_ZERO_CENTERED) },
	ACT("gelu", TE_ACT_GELU, 0, 9),
	ACT("qgelu", TE_ACT_QGELU, 0, 9),
	ACT("relu", TE_ACT_RELU, 0, 9),
	ACT("srelu", TE_ACT_SRELU, 0, 9),
	ACT("silu", TE_ACT_SILU, 0, 9),
	ACT("sigmoid", TE_ACT_SIGMOID, 0, 9),
	ACT("gelu_erf", TE_ACT_GELU_ERF, 0, 16),
	ACT("gated gelu_erf", TE_ACT_GELU_ERF, 1, 32),
	ACT("tanh", TE_ACT_TANH, 0, 16),
	ACT("gated tanh", TE_ACT_TANH, 1, 32),
	ACT("gated gelu", TE_ACT_GELU, 1, 18),
	ACT("gated qgelu", TE_ACT_QGELU, 1, 18),
	ACT("gated relu", TE_ACT_RELU, 1, 18),
	ACT("gated srelu", TE_ACT_SRELU, 1, 18),
	ACT("gated silu", TE_ACT_SILU, 1, 18),
	ACT("gated sigmoid", TE_ACT_SIGMOID, 1, 18),
	{ .name = "qk_norm", .create = create_qk_norm, .ref = ref_qk_norm, .depth = 200,
	  .in = { { T, 3, { 2, 37, 35 } } }, .a.qk_norm = TE_ATTRS(qk_norm, 3, 1, 7, 0, 1e-5f, 0) },
	{ .name = "qk_norm, whole", .create = create_qk_norm, .ref = ref_qk_norm, .depth = 200,
	  .in = { { T, 2, { 5, 32 } } }, .a.qk_norm = TE_ATTRS(qk_norm, 4, 2, 4, 1, 1e-3f, 0) },
	{ .name = "qk_norm, zero-centered", .create = create_qk_norm, .ref = ref_qk_norm,
	  .depth = 200, .in = { { T, 2, { 9, 48 } } },
	  .a.qk_norm = TE_ATTRS(qk_norm, 2, 2, 8, 0, 1e-3f, TE_NORM_ZERO_CENTERED) },
	{ .name = "rope", .create = create_rope, .ref = ref_rope, .depth = 60,
	  .in = { { T, 3, { 2, 9, 30 } } }, .a.rope = TE_ATTRS(rope, 3, 1, 6, 10000) },
	{ .name = "rope, grouped", .create = create_rope, .ref = ref_rope, .depth = 60,
	  .in = { { T, 3, { 3, 5, 32 } } }, .a.rope = TE_ATTRS(rope, 4, 2, 4, 500) },
	{ .name = "rope, in part", .create = create_rope, .ref = ref_rope, .depth = 60,
	  .in = { { T, 3, { 2, 9, 40 } } },
	  .a.rope = TE_ATTRS(rope, 3, 1, 8, 0, (const float[]){ 1.0f, 0.3f, 0, -0.01f }) },
	{ .name = "rope of documents", .create = create_rope, .ref = ref_rope, .depth = 60,
	  .in = { { T, 3, { 2, 9, 30 } }, { I, 2, { 2, 9 } } },
	  .a.rope = TE_ATTRS(rope, 3, 1, 6, 10000, NULL, 1) },
	{ .name = "rope of positions", .create = create_rope, .ref = ref_rope, .depth = 60,
	  .in = { { T, 3, { 2, 9, 30 } }, { I, 2, { 2, 9 } } },
	  .a.rope = TE_ATTRS(rope, 3, 1, 6, 10000, .positions = 1) },
	{ .name = "rope, interleaved", .create = create_rope, .ref = ref_rope, .depth = 60,
	  .in = { { T, 3, { 2, 9, 40 } } },
	  .a.rope = TE_ATTRS(rope, 3, 1, 8, 100, .interleaved = 1) },
	{ .name = "rope, dynamic", .create = create_rope, .ref = ref_rope, .depth = 60,
	  .in = { { T, 3, { 2, 9, 40 } } },
	  .a.rope = TE_ATTRS(rope, 3, 1, 8, 1e4f, .dynamic_positions = 5, .dynamic_factor = 4) },
	{ .name = "attention", .create = create_attention, .ref = ref_attention, .depth = 200,
	  .in = { { T, 3, { 2, 9, 30 } } }, .a.attention = TE_ATTRS(attention, 2, 2, 5, 0, 0,
								   0, 0, 0) },
	{ .name = "attention, grouped", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 1, 13, 32 } } },
	  .a.attention = TE_ATTRS(attention, 6, 1, 4, 0.7f, 0, 0, 0, 0) },
	{ .name = "attention with dropout", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 2, 11, 24 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 3, 0, 0.3f, 0, 0, 0) },
	{ .name = "attention in a window", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 2, 9, 30 } } },
	  .a.attention = TE_ATTRS(attention, 2, 2, 5, 0, 0, 0, 0, 0, 4) },
	{ .name = "attention with softcap", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 2, 9, 30 } } },
	  .a.attention = TE_ATTRS(attention, 2, 2, 5, 0, 0.2f, 0, 0, 0, 3, 1.5f) },
	{ .name = "attention of documents", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 2, 11, 30 } }, { I, 2, { 2, 11 } } },
	  .a.attention = TE_ATTRS(attention, 2, 2, 5, .documents = 1) },
	{ .name = "attention of documents in a window", .create = create_attention,
	  .ref = ref_attention, .depth = 200,
	  .in = { { T, 3, { 2, 11, 24 } }, { I, 2, { 2, 11 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 3, 0, 0.3f, .window = 4, .documents = 1) },
	{ .name = "attention, full", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 2, 9, 30 } } },
	  .a.attention = TE_ATTRS(attention, 2, 2, 5, .full = 1) },
	{ .name = "attention, full, with dropout", .create = create_attention,
	  .ref = ref_attention, .depth = 200, .in = { { T, 3, { 2, 11, 24 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 3, 0, 0.3f, .full = 1) },
	{ .name = "attention in windows on both sides", .create = create_attention,
	  .ref = ref_attention, .depth = 200, .in = { { T, 3, { 2, 11, 24 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 3, 0, 0.3f, .window = 4, .full = 1,
				  .right = 2) },
	{ .name = "attention with sinks", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 2, 11, 24 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 3, 0, 0.3f, .window = 7, .sinks = 1) },
	{ .name = "attention to a value of k and v", .create = create_attention,
	  .ref = ref_attention, .depth = 200,
	  .in = { { T, 3, { 2, 7, 24 } }, { T, 3, { 2, 11, 22 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 6, .full = 1, .operands = TE_ATTENTION_Q_KV,
				  .head_dim_v = 5) },
	{ .name = "attention to k and v, bottom, with alibi", .create = create_attention,
	  .ref = ref_attention, .depth = 200,
	  .in = { { T, 3, { 2, 7, 24 } }, { T, 3, { 2, 11, 12 } }, { T, 3, { 2, 11, 16 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 6, 0, 0.3f, .window = 8, .bottom = 1,
				  .operands = TE_ATTENTION_Q_K_V, .head_dim_v = 8, .alibi = 1) },
	{ .name = "attention with alibi, 3 heads", .create = create_attention,
	  .ref = ref_attention, .depth = 200, .in = { { T, 3, { 2, 9, 25 } } },
	  .a.attention = TE_ATTRS(attention, 3, 1, 5, .alibi = 1) },
	{ .name = "attention with slopes and values of 2", .create = create_attention,
	  .ref = ref_attention, .depth = 200, .in = { { T, 3, { 2, 9, 24 } } }, .host_only = 1,
	  .a.attention = TE_ATTRS(attention, 2, 2, 5, .head_dim_v = 2, .full = 1, .alibi = 1,
				  .slopes = (const float[]){ 0.3f, -0.1f }) },
	{ .name = "attention with a bias", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 3, 9, 30 } }, { T, 2, { 9, 9 } } }, .host_only = 1,
	  .a.attention = TE_ATTRS(attention, 2, 2, 5, .bias = 1, .sinks = 1) },
	{ .name = "attention to k and v with biases", .create = create_attention,
	  .ref = ref_attention, .depth = 200, .host_only = 1,
	  .in = { { T, 3, { 2, 7, 24 } }, { T, 3, { 2, 11, 12 } }, { T, 3, { 2, 11, 10 } },
		  { T, 3, { 4, 7, 11 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 6, 0, 0.3f, .full = 1, .right = 3, .bias = 1,
				  .operands = TE_ATTENTION_Q_K_V, .head_dim_v = 5,
				  .softcap = 1.5f, .sinks = 1) },
	{ .name = "attention with a weight as bias", .create = create_attention,
	  .ref = ref_attention, .depth = 200, .in = { { T, 3, { 3, 9, 40 } } }, .host_only = 1,
	  .a.attention = TE_ATTRS(attention, 4, 2, 5, 0, 0.3f, .window = 6, .bias_queries = 9,
				  .bias_keys = 9) },
	{ .name = "attention of documents with a weight as bias", .create = create_attention,
	  .ref = ref_attention, .depth = 200, .host_only = 1,
	  .in = { { T, 3, { 2, 11, 30 } }, { I, 2, { 2, 11 } } },
	  .a.attention = TE_ATTRS(attention, 2, 2, 5, .documents = 1, .bias_queries = 11,
				  .bias_keys = 11) },
	{ .name = "attention to k and v with sinks and a weight as bias",
	  .create = create_attention, .ref = ref_attention, .depth = 200, .host_only = 1,
	  .in = { { T, 3, { 2, 7, 24 } }, { T, 3, { 2, 11, 12 } }, { T, 3, { 2, 11, 10 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 6, .full = 1, .head_dim_v = 5, .sinks = 1,
				  .operands = TE_ATTENTION_Q_K_V, .softcap = 1.5f,
				  .bias_queries = 7, .bias_keys = 11) },
	{ .name = "attention of sequences with a weight as bias", .create = create_attention,
	  .ref = ref_attention, .depth = 200, .host_only = 1,
	  .in = { { T, 3, { 1, 13, 24 } }, { T, 2, { 21, 22 } }, { I, 1, { 5 } },
		  { I, 1, { 5 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 6, .bottom = 1, .offsets = 1,
				  .operands = TE_ATTENTION_Q_KV, .head_dim_v = 5,
				  .bias_queries = 13, .bias_keys = 21) },
	{ .name = "attention of sequences", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 2, 11, 24 } }, { I, 1, { 6 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 3, 0, 0.3f, .offsets = 1) },
	{ .name = "attention of sequences to others", .create = create_attention,
	  .ref = ref_attention, .depth = 200,
	  .in = { { T, 3, { 1, 13, 24 } }, { T, 2, { 21, 22 } }, { I, 1, { 5 } },
		  { I, 1, { 5 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 6, .bottom = 1, .sinks = 1, .offsets = 1,
				  .operands = TE_ATTENTION_Q_KV, .head_dim_v = 5) },
	{ .name = "attention of some heads", .create = create_attention, .ref = ref_attention,
	  .depth = 200, .in = { { T, 3, { 3, 11, 24 } } },
	  .a.attention = TE_ATTRS(attention, 4, 2, 3, 0, 0.3f, 77, 3, 9) },
	{ .name = "rope of wide heads", .create = create_rope, .ref = ref_rope, .depth = 60,
	  .in = { { T, 3, { 2, 5, 1024 } } }, .a.rope = TE_ATTRS(rope, 2, 1, 256, 10000) },
	{ .name = "attention of wide heads", .create = create_attention, .ref = ref_attention,
	  .depth = 2000, .in = { { T, 3, { 1, 5, 532 } } },
	  .a.attention = TE_ATTRS(attention, 2, 1, 133, 0, 0, .window = 3, .softcap = 1.5f),
	  .host_only = 1 },
	{ .name = "dropout", .create = create_dropout, .ref = ref_dropout, .depth = 4,
	  .in = { { T, 3, { 3, 5, 11 } } }, .a.dropout = TE_ATTRS(dropout, .p = 0.4f) },
	{ .name = "dropout of a part", .create = create_dropout, .ref = ref_dropout, .depth = 4,
	  .in = { { T, 3, { 3, 45, 24 } } }, .a.dropout = TE_ATTRS(dropout, 0.4f, 9, 1, 3, 2) },
	{ .name = "dropout of nothing", .create = create_dropout, .ref = ref_dropout, .depth = 4,
	  .in = { { T, 3, { 3, 5, 11 } } }, .a.dropout = TE_ATTRS(dropout, .p = 0) },
	{ .name = "scale", .create = create_scale, .ref = ref_scale, .depth = 4,
	  .in = { { T, 3, { 3, 5, 11 } } }, .a.scale = TE_ATTRS(scale, -0.37f) },
	{ .name = "identity", .create = create_identity, .ref = ref_fork, .depth = 4,
	  .in = { { T, 2, { 7, 5 } } } },
	{ .name = "reshape", .create = create_reshape, .ref = ref_fork, .depth = 4,
	  .in = { { T, 3, { 3, 5, 14 } } }, .a.reshape = TE_ATTRS(reshape, 4, { 7, 1, -1, 2 }) },
	{ .name = "fork", .create = create_fork, .ref = ref_fork, .depth = 4,
	  .in = { { T, 2, { 7, 5 } } } },
	{ .name = "add", .create = create_add, .ref = ref_add, .depth = 4,
	  .in = { { T, 2, { 7, 5 } }, { T, 2, { 7, 5 } } } },
	{ .name = "cross_entropy", .create = create_cross_entropy, .ref = ref_ce, .depth = 100,
	  .in = { { T, 3, { 2, 9, 13 } }, { I, 2, { 2, 9 } } },
	  .a.ce = TE_ATTRS(cross_entropy, 13, -100, 1) },
	{ .name = "cross_entropy, padded", .create = create_cross_entropy, .ref = ref_ce,
	  .depth = 100, .in = { { T, 3, { 2, 9, 16 } }, { I, 2, { 2, 9 } } },
	  .a.ce = TE_ATTRS(cross_entropy, 11, 3, 0.25f) },
	{ .name = "cross_entropy of no row", .create = create_cross_entropy, .ref = ref_ce,
	  .depth = 100, .in = { { T, 3, { 2, 3, 5 } }, { I, 2, { 2, 3 } } },
	  .a.ce = TE_ATTRS(cross_entropy, 5, -100, 1), .no_targets = 1 },
};
const int op_ncases = TT_LEN(op_cases);

struct te_op *op_case_create(const struct op_case *k)
{
	struct te_op *op;

	DO(k->create(k, &op));
	return op;
}

static void put_random(struct te_tensor *t, float scale)
{
	size_t n = (size_t)te_tensor_nelems(t);
	float *v = malloc(n * sizeof(*v));

	tt_fill_normal(v, n, scale);
	/* no kink of relu within reach of a finite difference, nor zero */
	for (size_t i = 0; i < n; i++)
		if (fabsf(v[i]) < 0.01f)
			v[i] = 0.01f;
	tt_tensor_set(t, v);
	free(v);
}

static void put_positions(struct te_tensor *t)
{
	size_t len = (size_t)te_tensor_nelems(t);
	float *v = malloc(len * sizeof(*v));

	for (size_t i = 0; i < len; i++)
		v[i] = (float)tt_rand_int(-9, 9);
	tt_tensor_set(t, v);
	free(v);
}

/* rows at which sequences begin, of which one is empty, and the end */
static void put_offsets(struct te_tensor *t, int64_t nrows)
{
	const size_t n = (size_t)te_tensor_nelems(t);
	float *v = malloc(n * sizeof(*v));

	for (size_t i = 0; i < n; i++)
		v[i] = (float)(i < 2 ? 0 : (int64_t)(i - 1) * nrows / (int64_t)(n - 2));
	tt_tensor_set(t, v);
	free(v);
}

/* ids, targets and first tokens of documents: mostly good ones, some on every wrong side */
static void put_ids(struct te_tensor *t, int64_t n, int32_t ignore, int none)
{
	static const float wrong[] = { -1, -2e9f, 2e9f };
	size_t len = (size_t)te_tensor_nelems(t);
	float *v = malloc(len * sizeof(*v));

	for (size_t i = 0; i < len; i++) {
		v[i] = (float)tt_rand_int(0, n - 1);
		if (none)
			v[i] = (float)(i % 2 ? ignore : n);
		else if (i % 5 == 1)
			v[i] = (float)(i % 2 ? n : ignore);
		else if (i % 5 == 3)
			v[i] = wrong[i / 5 % 3];
	}
	tt_tensor_set(t, v);
	free(v);
}

void op_case_init(const struct op_case *k, struct op_run *r, struct te_ctx *ctx, struct te_op *op,
		  const char *recipe)
{
	struct te_recipe rec = op_run_recipe(recipe);
	const int targets = k->create == create_cross_entropy;
	const int attention = k->create == create_attention;
	const int operands = attention ? k->a.attention.operands : 0;
	struct te_spec in[1 + MOST];

	memcpy(in, k->in, sizeof(in));
	for (int i = 0; i < 1 + MOST; i++)
		if (in[i].dtype != TE_DTYPE_INT32 &&
		    !(attention && k->a.attention.bias && i == 1 + operands))
			in[i].dtype = rec.compute;
	DO(te__op_prepare(op, ctx));
	op_run_init(r, ctx, op, &rec, in);
	if (in[0].dtype == TE_DTYPE_INT32)
		put_ids(r->call.x.hp, k->a.embedding.vocab, 0, 0);
	else
		put_random(r->call.x.hp, 1);
	if (k->create == create_rope && k->a.rope.positions)
		put_positions(r->call.ex[0].hp);
	else if (r->ops->nextra_in && in[1].dtype == TE_DTYPE_INT32)
		put_ids(r->call.ex[0].hp, targets ? k->a.ce.nclasses : cols_of(&in[1]),
			targets ? k->a.ce.ignore_index : 0, k->no_targets);
	for (int i = 0; i < r->ops->nextra_in; i++)
		if (in[1 + i].dtype != TE_DTYPE_INT32)
			put_random(r->call.ex[i].hp, 1);
		else if (attention && k->a.attention.offsets)
			put_offsets(r->call.ex[i].hp,
				    rows_of(&in[i + 1 == r->ops->nextra_in && operands ? 1 : 0]));
	for (int i = 0; i < r->op->nweights; i++)
		put_random(r->call.master[i], r->op->decl[i].ndim == 2 ? 0.4f : 1);
	put_random(r->call.dy.hp, 1);
	if (r->ops->nextra_out)
		put_random(r->call.dey[0].hp, 1);
}
