/*
 * t/kernels/attn_model.c - see attn_model.h.
 *
 * Bounds, with v = 2^-23, twice the unit roundoff of FP32, since tensor cores truncate; w = 2^-8
 * for BF16, whose probabilities and score gradients a GPU rounds before the next GEMM, else 0;
 * t = 2^-125, below which ex2.approx.ftz and multiplications flush to zero; unit(T) for the one
 * rounding of the result:
 *
 *   score s = c q.k:      e_s  = v ((d + 4) c sum|q||k| + 4 |s|), and 4 v |max s| if it is
 *                         subtracted
 *   p = exp(s - max):     relative 2 max e_s (its own, and the row sum's), (T + 32) v for the sum
 *                         over keys and 2^-21 for ex2.approx and its argument
 *   out = sum p f x:      (that + w) sum p f |x| + unit |out|
 *   lse:                  max e_s + (T + 32) v + 2 v |lse|
 *   p = exp(s - lse):     relative e_p = e_s + 4 v (|s| + |lse|) + 2^-21
 *   dp = dy.x:            e_dp = v (d + 4) sum|dy||x|
 *   D = sum y dy:         e_D = v (d + 4) sum|y||dy|, which dkv and dq may compute themselves
 *   ds = p (dp f - D):    e_ds = (p (e_p + 4 v) + t) (|dp f| + |D| + 1) + p (f e_dp + e_D) + w |ds|
 *   dq, dk = c sum ds y:  c sum (e_ds |y|) + (n + 8) v c sum|ds||y| + unit |.|, n terms
 *   dx = sum p f dy:      sum ((e_p + w) p + t) f |dy| + (n + 8) v sum p f |dy| + unit |.|
 *
 * With a softcap c, s becomes c tanh(s / c): e_s and 16 v c, since 1 - 2 / (1 + e^2u) has an
 * absolute error of 4 units and those of its steps; ds has the factor 1 - tanh^2, with an absolute
 * error of 2 e_s / c + 4 v, also where it is 0, for what e_ds leaves.
 *
 * A bias and a slope add 4 v times their terms to e_s. The gradient of a bias is the sum of ds
 * before the factor of the softcap, and of a sink -sum p D with p = exp(sink - lse).
 */
#include "config.h"

#include <math.h>

#include "attn_model.h"
#include "tt_num.h"
#include "kernels/philox.h"

#define V 0x1p-23
#define EXP 0x1p-21
#define TINY 0x1p-125

double *model_doubles(struct model *m, int64_t n)
{
	double *x = calloc((size_t)n, sizeof(*x));

	ck_assert_ptr_nonnull(x);
	ck_assert_int_lt(m->nmine, (int)TT_LEN(m->mine));
	return m->mine[m->nmine++] = x;
}

double *model_values(struct model *m, int32_t dtype, const void *p, int64_t n)
{
	double *x = model_doubles(m, n);

	for (int64_t i = 0; i < n; i++)
		x[i] = tt_get(dtype, p, i);
	return x;
}

double *model_magnitudes(struct model *m, const double *x, int64_t n)
{
	double *y = model_doubles(m, n);

	for (int64_t i = 0; i < n; i++)
		y[i] = fabs(x[i]);
	return y;
}

static int64_t at(struct te_k_strides s, int64_t b, int64_t token, int64_t h)
{
	return b * s.batch + token * s.token + h * s.head;
}

double *model_errors(struct model *m, int64_t n, struct te_k_strides s, int64_t first,
		     int64_t ntokens, int nheads, int d)
{
	double *x = model_doubles(m, n);

	for (int64_t i = 0; i < n; i++)
		x[i] = -1;
	for (int64_t b = 0; b < m->s.batch; b++)
		for (int64_t t = 0; t < ntokens; t++)
			for (int h = 0; h < nheads; h++)
				for (int c = 0; c < d; c++)
					x[first + at(s, b, t, h) + c] = 0;
	return x;
}

void model_free(struct model *m)
{
	while (m->nmine)
		free(m->mine[--m->nmine]);
}

double model_factor(const struct model *m, int64_t bh, int64_t q, int64_t k)
{
	struct te_philox r;

	if (!m->threshold)
		return 1;
	r = te_philox_attn(m->words[0], m->words[1], m->tag,
			   (uint32_t)(bh / m->s.nheads * (m->s.nheads + m->other_heads) +
				      m->first_head + bh % m->s.nheads),
			   (uint32_t)q, (uint32_t)(k >> 3));
	return te_philox_lane(&r, (int)(k & 7)) >= m->threshold ? 65536.0 / (65536 - m->threshold) :
								  0;
}

/* a vector of the model's inner loops: random cases are many, and FP64 takes most of their time */
typedef double vec __attribute__((vector_size(16), aligned(8), may_alias));

static double dot(const double *x, const double *y, int d)
{
	vec a = { 0 }, b = { 0 };
	double sum = 0;
	int c = 0;

	for (; c + 4 <= d; c += 4) {
		a += *(const vec *)(x + c) * *(const vec *)(y + c);
		b += *(const vec *)(x + c + 2) * *(const vec *)(y + c + 2);
	}
	for (; c < d; c++)
		sum += x[c] * y[c];
	a += b;
	return sum + a[0] + a[1];
}

/* to += f x */
static void add(double *to, double f, const double *x, int d)
{
	int c = 0;

	for (; c + 4 <= d; c += 4) {
		const vec a = *(vec *)(to + c) + f * *(const vec *)(x + c);
		const vec b = *(vec *)(to + c + 2) + f * *(const vec *)(x + c + 2);

		*(vec *)(to + c) = a;
		*(vec *)(to + c + 2) = b;
	}
	for (; c < d; c++)
		to[c] += f * x[c];
}

/* the sequence or document of query q: its first query and key, and how many it has of each */
static void find_document(const struct model *m, int64_t b, int64_t q, int64_t *q0, int64_t *nq,
			  int64_t *k0, int64_t *nk)
{
	const int32_t *first = m->first ? m->first + b * m->s.T : NULL;
	const int32_t *ks = m->k_offsets ? m->k_offsets : m->q_offsets;
	int64_t end = q + 1;

	*q0 = *k0 = *nk = 0;
	*nq = m->s.T;
	if (first) {
		*q0 = *k0 = first[q] > q ? q : first[q] < 0 ? 0 : first[q];
		while (end < m->s.T && first[end] <= q)
			end++;
		*nq = *nk = end - *q0;
		return;
	}
	if (!m->q_offsets)
		*nk = m->s.S;
	for (int i = 0; i < m->nseqs; i++)
		if (m->q_offsets[i] <= q && q < m->q_offsets[i + 1]) {
			*q0 = m->q_offsets[i];
			*nq = m->q_offsets[i + 1] - *q0;
			*k0 = ks[i] < m->s.S ? ks[i] : m->s.S;
			*nk = (ks[i + 1] < m->s.S ? ks[i + 1] : m->s.S) - *k0;
		}
}

int64_t model_keys(const struct model *m, int64_t b, int64_t q, int64_t *ret_end, int64_t *ret_at)
{
	int64_t q0, nq, k0, nk, diagonal, from = -1;

	find_document(m, b, q, &q0, &nq, &k0, &nk);
	diagonal = q - q0 + (m->bottom ? nk - nq : 0);
	*ret_at = k0 + diagonal;
	for (int64_t k = 0; k < nk; k++) {
		if (m->window && k <= diagonal - m->window)
			continue;
		if (m->full ? m->right && k > diagonal + m->right : k > diagonal)
			continue;
		from = from < 0 ? k0 + k : from;
		*ret_end = k0 + k + 1;
	}
	if (from < 0)
		*ret_end = from = 0;
	return from;
}

/* a query and the keys that it has */
struct query {
	int64_t b, h, g, q, from, to, diagonal;
	int64_t at; /* in the array of q */
};

static struct query query_of(const struct model *m, int64_t bh, int64_t q)
{
	struct query w = { .b = bh / m->s.nheads, .h = bh % m->s.nheads, .q = q };

	w.g = w.h / (m->s.nheads / m->s.nkv);
	w.from = model_keys(m, w.b, q, &w.to, &w.diagonal);
	w.at = m->q.at + at(m->q.s, w.b, q, w.h);
	return w;
}

static int64_t key_at(const struct operand *x, const struct query *w, int64_t k)
{
	return x->at + at(x->s, w->b, k, w->g);
}

/*
 * Scores of a query, and their error bounds. capped: those before biases; a score of -inf is a key
 * that is not seen, and has a bound of 0.
 */
static void scores(const struct model *m, const struct query *w, double *s, double *es,
		   double *capped)
{
	for (int64_t k = w->from; k < w->to; k++) {
		const int64_t key = key_at(&m->k, w, k);
		const double mag = dot(m->q.abs + w->at, m->k.abs + key, m->s.d);
		double more = 0, slope = 0;

		s[k] = m->scale * dot(m->q.x + w->at, m->k.x + key, m->s.d);
		es[k] = V * ((m->s.d + 4) * m->scale * mag + 4 * fabs(s[k]));
		if (m->softcap > 0) {
			s[k] = m->softcap * tanh(s[k] / m->softcap);
			es[k] += 16 * V * m->softcap;
		}
		capped[k] = s[k];
		if (m->bias)
			more = (double)m->bias[w->h * m->bias_head + w->q * m->s.S + k];
		if (m->slopes)
			slope = (double)m->slopes[w->h] * fabs((double)(k - w->diagonal));
		es[k] += 4 * V * (fabs(more) + fabs(slope));
		s[k] += more - slope;
		if (s[k] == -INFINITY)
			es[k] = 0;
	}
}

/* scores, their bounds, and scores before biases */
static double *room(const struct model *m)
{
	double *s = malloc((size_t)m->s.S * 3 * sizeof(*s));

	ck_assert_ptr_nonnull(s);
	return s;
}

static void forward_row(struct model *m, const struct query *w, double *s, double *es)
{
	const struct shape *sh = &m->s;
	double *o = m->o + at(m->os, w->b, w->q, w->h), *err = m->o_err + (o - m->o);
	double max = m->sinks ? (double)m->sinks[w->h] : -INFINITY, sum = 0, e = 0, rel;
	const int64_t row = (w->b * sh->nheads + w->h) * sh->T + w->q;

	scores(m, w, s, es, es + sh->S);
	for (int64_t k = w->from; k < w->to; k++)
		max = fmax(max, s[k]);
	if (max == -INFINITY) {
		m->lse[row] = -INFINITY;
		return;
	}
	sum = m->sinks ? exp((double)m->sinks[w->h] - max) : 0;
	for (int64_t k = w->from; k < w->to; k++) {
		sum += exp(s[k] - max);
		e = fmax(e, es[k] + 4 * V * fabs(max));
	}
	rel = 2 * e + (double)(sh->S + 32) * V + EXP;
	for (int64_t k = w->from; k < w->to; k++) {
		const double f = model_factor(m, w->b * sh->nheads + w->h, w->q, k);
		const double p = exp(s[k] - max) / sum * f;
		const int64_t value = key_at(&m->v, w, k);

		add(o, p, m->v.x + value, sh->dv);
		add(err, p * (rel + m->w) + f * TINY, m->v.abs + value, sh->dv);
	}
	m->lse[row] = max + log(sum);
	m->lse_err[row] = e + (double)(sh->S + 32) * V + EXP + 2 * V * fabs(max + log(sum)) +
			  4 * V * fabs(max);
}

void model_forward(struct model *m)
{
	double *s = room(m);

	for (int64_t bh = 0; bh < m->s.batch * m->s.nheads; bh++)
		for (int64_t q = 0; q < m->s.T; q++) {
			const struct query w = query_of(m, bh, q);

			forward_row(m, &w, s, s + m->s.S);
		}
	free(s);
}

void model_pre(struct model *m)
{
	const struct shape *sh = &m->s;

	for (int64_t i = 0; i < sh->batch * sh->T * sh->nheads; i++) {
		const int64_t b = i / (sh->T * sh->nheads), t = i / sh->nheads % sh->T;
		const int64_t h = i % sh->nheads, row = (b * sh->nheads + h) * sh->T + t;
		const int64_t from = at(m->os, b, t, h);
		double mag = 0;

		for (int64_t c = from; c < from + sh->dv; c++)
			mag += fabs(m->out[c] * m->dout[c]);
		m->delta[row] = dot(m->out + from, m->dout + from, sh->dv);
		m->delta_err[row] = V * (sh->dv + 4) * mag;
	}
}

/* lse and delta of one query, which the kernels read */
static void backward_row(struct model *m, const struct query *w, double lse, double delta,
			 double delta_err, double *s, double *es)
{
	const struct shape *sh = &m->s;
	const int64_t n = sh->T * (sh->nheads / sh->nkv), row = at(m->os, w->b, w->q, w->h);
	const double *dy = m->dout + row, *dy_abs = m->dout_abs + row, *capped = es + sh->S;

	scores(m, w, s, es, es + sh->S);
	if (m->sinks) {
		const double p = exp((double)m->sinks[w->h] - lse);
		const double ep = 4 * V * (fabs((double)m->sinks[w->h]) + fabs(lse)) + EXP;

		m->dsinks[w->h] -= p * delta;
		m->dsinks_err[w->h] += (p * (ep + (double)(sh->batch * sh->T + 8) * V) + TINY) *
				       fabs(delta);
	}
	for (int64_t k = w->from; k < w->to; k++) {
		const int64_t key = key_at(&m->k, w, k), value = key_at(&m->v, w, k);
		double f = model_factor(m, w->b * sh->nheads + w->h, w->q, k), p = exp(s[k] - lse);
		double dp = dot(dy, m->v.x + value, sh->dv);
		double mag = dot(dy_abs, m->v.abs + value, sh->dv);
		double ep, ds, eds;

		if (s[k] == -INFINITY)
			continue;
		ep = es[k] + 4 * V * (fabs(s[k]) + fabs(lse)) + EXP;
		ds = p * (dp * f - delta);
		eds = (p * (ep + 4 * V) + TINY) * (fabs(dp * f) + fabs(delta) + 1) +
		      p * (f * V * (sh->dv + 4) * mag + delta_err) + m->w * fabs(ds);
		if (m->dbias) {
			const int64_t i = w->h * m->bias_head + w->q * sh->S + k;

			m->dbias[i] += ds;
			m->dbias_err[i] += eds + (double)(sh->batch * sh->nheads) * V * fabs(ds);
		}
		if (m->softcap > 0) {
			const double t = capped[k] / m->softcap, slope = 1 - t * t;

			eds = eds * slope + (fabs(ds) + eds) * (2 * es[k] / m->softcap + 4 * V);
			ds *= slope;
		}
		add(m->q.g + w->at, m->scale * ds, m->k.x + key, sh->d);
		add(m->q.g_err + w->at, m->scale * (eds + (double)(sh->S + 8) * V * fabs(ds)),
		    m->k.abs + key, sh->d);
		add(m->k.g + key, m->scale * ds, m->q.x + w->at, sh->d);
		add(m->k.g_err + key, m->scale * (eds + (double)(n + 8) * V * fabs(ds)),
		    m->q.abs + w->at, sh->d);
		add(m->v.g + value, p * f, dy, sh->dv);
		add(m->v.g_err + value, f * (p * (ep + m->w + (double)(n + 8) * V) + TINY), dy_abs,
		    sh->dv);
	}
}

void model_backward(struct model *m, const float *lse, const float *delta)
{
	const struct shape *sh = &m->s;
	double *s = room(m);

	for (int64_t row = 0; row < sh->batch * sh->nheads * sh->T; row++) {
		const struct query w = query_of(m, row / sh->T, row % sh->T);

		if ((double)lse[row] != -INFINITY)
			backward_row(m, &w, (double)lse[row], (double)delta[row],
				     m->delta_err[row], s, s + sh->S);
	}
	free(s);
}
