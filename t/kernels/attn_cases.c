/*
 * t/kernels/attn_cases.c - attention forward and backward, by the reference function and by the
 * backend's kernel, each against an FP64 model with the same inputs.
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
 */
#include "config.h"

#include <math.h>

#include "attn_cases.h"
#include "kernel_check.h"
#include "tt_ctx.h"
#include "kernels/philox.h"

#define V 0x1p-23
#define EXP 0x1p-21
#define TINY 0x1p-125

static void setup(void)
{
	kc_open(backend);
}

static const struct shape {
	int64_t batch, T;
	int nheads, nkv, d;
} shapes[] = {
	{ 2, 1, 3, 1, 16 },
	{ 1, 7, 4, 2, 20 },
	{ 2, 63, 2, 2, 32 },
	{ 1, 64, 4, 1, 40 },
	{ 1, 65, 2, 1, 64 },
	{ 1, 129, 2, 2, 80 },
	{ 1, 256, 2, 1, 96 },
	{ 1, 1000, 1, 1, 128 },
	{ 3, 33, 6, 3, 1 },
	{ 1, 130, 2, 1, 3 },
	{ 1, 70, 2, 2, 127 },
	{ 1, 192, 4, 2, 64 },
	{ 1, 300, 2, 1, 32 },
	{ 2, 128, 1, 1, 128 },
	{ 1, 145, 6, 2, 72 },
	{ 3, 50, 4, 4, 8 },
	/* more than MAX_STRIPS (kernels/attn/launch.c); for GPUs, as the host has one variant */
	{ 34, 125, 1, 1, 24 },
	{ 7, 330, 2, 1, 64 },
	{ 17, 127, 2, 2, 88 },
	{ 34, 128, 1, 1, 128 },
	/* and enough blocks of 128 rows for half of a GPU's multiprocessors */
	{ 140, 20, 1, 1, 32 },
	{ 34, 129, 1, 1, 40 },
	{ 140, 17, 1, 1, 96 },
	{ 34, 129, 1, 1, 128 },
};
#define NSHAPES ((int)TT_LEN(shapes))
#define NSHAPES_HOST (NSHAPES - 8)

/* ---- the model ---- */

struct model {
	struct shape s;
	int32_t dtype;
	double scale, w;
	uint64_t words[2]; /* seed, offset */
	uint32_t threshold, tag;
	int32_t first_head, other_heads;
	double *qkv, *out, *dout; /* as the arrays hold them */
	/* results and their error bounds */
	double *o, *o_err, *lse, *lse_err, *delta, *delta_err, *g, *g_err;
};

static int64_t row_of(const struct shape *s)
{
	return (int64_t)(s->nheads + 2 * s->nkv) * s->d;
}

static double factor(const struct model *m, int64_t bh, int64_t q, int64_t k)
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

static double dot(const double *x, const double *y, int d, double *ret_abs)
{
	double sum = 0;

	*ret_abs = 0;
	for (int c = 0; c < d; c++) {
		sum += x[c] * y[c];
		*ret_abs += fabs(x[c] * y[c]);
	}
	return sum;
}

/* scores of query q with keys 0 .. q, and their error bounds */
static void scores(const struct model *m, const double *qp, const double *kp, int64_t q, double *s,
		   double *es)
{
	for (int64_t k = 0; k <= q; k++) {
		double mag;

		s[k] = m->scale * dot(qp, kp + k * row_of(&m->s), m->s.d, &mag);
		es[k] = V * ((m->s.d + 4) * m->scale * mag + 4 * fabs(s[k]));
	}
}

static void forward(struct model *m)
{
	const struct shape *sh = &m->s;
	const int64_t row = row_of(sh), T = sh->T;
	double *s = malloc((size_t)T * 2 * sizeof(*s)), *es = s + T;

	for (int64_t bh = 0; bh < sh->batch * sh->nheads; bh++)
		for (int64_t q = 0; q < T; q++) {
			const int64_t b = bh / sh->nheads, h = bh % sh->nheads;
			const int64_t g = h / (sh->nheads / sh->nkv);
			const double *at = m->qkv + b * T * row;
			const double *vp = at + (sh->nheads + sh->nkv + g) * sh->d;
			double *o = m->o + ((b * T + q) * sh->nheads + h) * sh->d;
			double *err = m->o_err + (o - m->o);
			double max = -INFINITY, sum = 0, e = 0, rel;

			scores(m, at + q * row + h * sh->d, at + (sh->nheads + g) * sh->d, q, s,
			       es);
			for (int64_t k = 0; k <= q; k++)
				max = fmax(max, s[k]);
			for (int64_t k = 0; k <= q; k++) {
				sum += exp(s[k] - max);
				e = fmax(e, es[k] + 4 * V * fabs(max));
			}
			rel = 2 * e + (double)(T + 32) * V + EXP;
			for (int c = 0; c < sh->d; c++)
				o[c] = err[c] = 0;
			for (int64_t k = 0; k <= q; k++) {
				double p = exp(s[k] - max) / sum * factor(m, bh, q, k);

				for (int c = 0; c < sh->d; c++) {
					o[c] += p * vp[k * row + c];
					err[c] += p * fabs(vp[k * row + c]) * (rel + m->w);
				}
			}
			m->lse[bh * T + q] = max + log(sum);
			m->lse_err[bh * T + q] =
				e + (double)(T + 32) * V + EXP + 2 * V * fabs(max + log(sum));
		}
	free(s);
}

static void pre(struct model *m)
{
	const struct shape *sh = &m->s;

	for (int64_t i = 0; i < sh->batch * sh->T * sh->nheads; i++) {
		const int64_t b = i / (sh->T * sh->nheads), t = i / sh->nheads % sh->T;
		const int64_t at = (b * sh->nheads + i % sh->nheads) * sh->T + t;
		double mag;

		m->delta[at] = dot(m->out + i * sh->d, m->dout + i * sh->d, sh->d, &mag);
		m->delta_err[at] = V * (sh->d + 4) * mag;
	}
}

/* lse and delta of one query, which the kernels read */
static void backward_row(struct model *m, int64_t bh, int64_t q, double lse, double delta,
			 double delta_err, double *s, double *es)
{
	const struct shape *sh = &m->s;
	const int64_t row = row_of(sh), T = sh->T, b = bh / sh->nheads, h = bh % sh->nheads;
	const int64_t gr = h / (sh->nheads / sh->nkv), n = T * (sh->nheads / sh->nkv);
	const int64_t qat = (b * T + q) * row + h * sh->d;
	const int64_t kat = b * T * row + (sh->nheads + gr) * sh->d, vat = kat + sh->nkv * sh->d;
	const double *dy = m->dout + ((b * T + q) * sh->nheads + h) * sh->d;

	scores(m, m->qkv + qat, m->qkv + kat, q, s, es);
	for (int64_t k = 0; k <= q; k++) {
		const double *kp = m->qkv + kat + k * row, *qp = m->qkv + qat;
		double f = factor(m, bh, q, k), p = exp(s[k] - lse), mag;
		double dp = dot(dy, m->qkv + vat + k * row, sh->d, &mag);
		double ep = es[k] + 4 * V * (fabs(s[k]) + fabs(lse)) + EXP;
		double ds = p * (dp * f - delta);
		double eds = (p * (ep + 4 * V) + TINY) * (fabs(dp * f) + fabs(delta) + 1) +
			     p * (f * V * (sh->d + 4) * mag + delta_err) + m->w * fabs(ds);

		for (int c = 0; c < sh->d; c++) {
			m->g[qat + c] += m->scale * ds * kp[c];
			m->g_err[qat + c] +=
				m->scale * fabs(kp[c]) * (eds + (double)(T + 8) * V * fabs(ds));
			m->g[kat + k * row + c] += m->scale * ds * qp[c];
			m->g_err[kat + k * row + c] +=
				m->scale * fabs(qp[c]) * (eds + (double)(n + 8) * V * fabs(ds));
			m->g[vat + k * row + c] += p * f * dy[c];
			m->g_err[vat + k * row + c] +=
				f * fabs(dy[c]) * (p * (ep + m->w + (double)(n + 8) * V) + TINY);
		}
	}
}

static void backward(struct model *m, const float *lse, const float *delta)
{
	const struct shape *sh = &m->s;
	double *s = malloc((size_t)sh->T * 2 * sizeof(*s));

	for (int64_t bh = 0; bh < sh->batch * sh->nheads; bh++)
		for (int64_t q = 0; q < sh->T; q++)
			backward_row(m, bh, q, lse[bh * sh->T + q], delta[bh * sh->T + q],
				     m->delta_err[bh * sh->T + q], s, s + sh->T);
	free(s);
}

static double *doubles(int64_t n)
{
	double *x = calloc((size_t)n, sizeof(*x));

	ck_assert_ptr_nonnull(x);
	return x;
}

static double *values(int32_t dtype, const void *p, int64_t n)
{
	double *x = doubles(n);

	for (int64_t i = 0; i < n; i++)
		x[i] = tt_get(dtype, p, i);
	return x;
}

static void model_free(struct model *m)
{
	double *all[] = { m->qkv,     m->out,	m->dout,      m->o, m->o_err, m->lse,
			  m->lse_err, m->delta, m->delta_err, m->g, m->g_err };

	for (size_t i = 0; i < TT_LEN(all); i++)
		free(all[i]);
}

/* compare n elements of the reference's array and of the kernel's result with the model */
static void near(const struct model *m, int32_t dtype, const void *array, const double *want,
		 const double *err, int64_t n, const char *what)
{
	const void *side[] = { array, kc_got(array) };

	for (int k = 0; k < 2; k++)
		for (int64_t i = 0; i < n; i++) {
			double x = tt_get(dtype, side[k], i);
			/* below FP32's subnormals */
			double tol = err[i] + tt_unit(dtype) * (fabs(want[i]) + err[i]) + 0x1p-126;

			ck_assert_msg(fabs(x - want[i]) <= tol,
				      "T %d, heads %d/%d, d %d, %s, threshold %u: %s of the %s, "
				      "element %lld: %.9g, not %.9g within %.3g",
				      (int)m->s.T, m->s.nheads, m->s.nkv, m->s.d,
				      te_dtype_name((enum te_dtype)m->dtype), m->threshold, what,
				      k ? "kernel" : "reference", (long long)i, x, want[i], tol);
		}
}

/* ---- a case ---- */

struct run {
	struct model m;
	struct te_k_attn_fwd f;
	struct te_k_attn_bwd b;
	int64_t nqkv, nout, nlse;
};

static struct run run_of(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude)
{
	struct run r = { .m = { .s = *s, .dtype = dtype, .threshold = threshold } };
	const float scale = tt_rand_float(0.5f, 1.5f) / sqrtf((float)s->d);
	uint64_t *words = kc_poison(TE_DTYPE_UINT8, 16);
	const uint32_t tag = (uint32_t)tt_rand_u64();

	r.nqkv = s->batch * s->T * row_of(s);
	r.nout = s->batch * s->T * s->nheads * s->d;
	r.nlse = s->batch * s->T * s->nheads;
	words[0] = r.m.words[0] = tt_rand_u64();
	words[1] = r.m.words[1] = (uint64_t)tt_rand_int(0, 1 << 30);
	r.m.scale = (double)scale;
	r.m.w = dtype == TE_DTYPE_BF16 ? 0x1p-8 : 0;
	r.m.tag = tag;
	r.m.first_head = tt_rand_int(0, 5);
	r.m.other_heads = tt_rand_int(5, 9);
	r.f = (struct te_k_attn_fwd){
		.qkv = kc_normal(dtype, r.nqkv, amplitude),
		.out = kc_poison(dtype, r.nout),
		.lse = kc_poison(TE_DTYPE_FP32, r.nlse),
		.seed = words,
		.offset = words + 1,
		.batch = s->batch,
		.seqlen = s->T,
		.nheads = s->nheads,
		.nkv = s->nkv,
		.head_dim = s->d,
		.scale = scale,
		.threshold = threshold,
		.tag = tag,
		.dtype = dtype,
		.first_head = r.m.first_head,
		.other_heads = r.m.other_heads,
	};
	r.b = (struct te_k_attn_bwd){
		.qkv = r.f.qkv,
		.out = r.f.out,
		.dout = kc_normal(dtype, r.nout, 1.0f),
		.lse = r.f.lse,
		.delta = kc_poison(TE_DTYPE_FP32, r.nlse),
		.dqkv = kc_poison(dtype, r.nqkv),
		.seed = words,
		.offset = words + 1,
		.batch = s->batch,
		.seqlen = s->T,
		.nheads = s->nheads,
		.nkv = s->nkv,
		.head_dim = s->d,
		.scale = scale,
		.threshold = threshold,
		.tag = tag,
		.dtype = dtype,
		.first_head = r.m.first_head,
		.other_heads = r.m.other_heads,
	};
	r.m.qkv = values(dtype, r.f.qkv, r.nqkv);
	r.m.o = doubles(r.nout);
	r.m.o_err = doubles(r.nout);
	r.m.lse = doubles(r.nlse);
	r.m.lse_err = doubles(r.nlse);
	r.m.delta = doubles(r.nlse);
	r.m.delta_err = doubles(r.nlse);
	r.m.g = doubles(r.nqkv);
	r.m.g_err = doubles(r.nqkv);
	return r;
}

static void run_forward(const struct run *r)
{
	kc_defer(r->f.out);
	kc_defer(r->f.lse);
	KC_RUN(ATTN_FWD, &r->f);
}

/* columns [from, to) of each row of dqkv were not written */
static void untouched(const struct run *r, const char *before, int64_t from, int64_t to)
{
	const size_t w = te_dtype_nbytes((enum te_dtype)r->m.dtype);
	const int64_t row = row_of(&r->m.s);
	const char *got = kc_got(r->b.dqkv);

	for (int64_t t = 0; t < r->m.s.batch * r->m.s.T; t++)
		ck_assert_msg(!memcmp(got + (size_t)(t * row + from) * w,
				      before + (size_t)(t * row + from) * w,
				      (size_t)(to - from) * w),
			      "row %d: written outside of its part", (int)t);
}

static void *copy_of(const void *p, size_t nbytes)
{
	void *c = malloc(nbytes);

	ck_assert_ptr_nonnull(c);
	return memcpy(c, p, nbytes);
}

/* does the backend run one kernel for the whole backward pass, which computes delta itself and is
 * launched as dkv (kernels/attn/launch.c)? */
static int is_strips(const struct shape *s, int32_t dtype, uint32_t threshold)
{
	return !strcmp(backend, "cuda") && dtype == TE_DTYPE_BF16 && !threshold &&
	       s->d % 8 == 0 && s->batch * s->nheads * ((s->T + 15) / 16) <= 264;
}

static void run_pre(struct run *r)
{
	const size_t nbytes = (size_t)r->nlse * sizeof(float);

	kc_defer(r->b.delta);
	KC_RUN(ATTN_BWD_PRE, &r->b);
	pre(&r->m);
	if (!is_strips(&r->m.s, r->m.dtype, r->m.threshold)) {
		near(&r->m, TE_DTYPE_FP32, r->b.delta, r->m.delta, r->m.delta_err, r->nlse,
		     "delta");
		return;
	}
	ck_assert(tt_is_poison(kc_got(r->b.delta), nbytes));
	/* of the reference only */
	memcpy((void *)(uintptr_t)kc_got(r->b.delta), r->b.delta, nbytes);
	near(&r->m, TE_DTYPE_FP32, r->b.delta, r->m.delta, r->m.delta_err, r->nlse, "delta");
}

/* kernels that compute delta do not read it: NaN in its place changes no bit */
static void without_delta(struct run *r, size_t nbytes)
{
	char *want = copy_of(kc_got(r->b.dqkv), nbytes);

	for (int64_t i = 0; i < r->nlse; i++)
		r->b.delta[i] = NAN;
	tt_poison(r->b.dqkv, nbytes);
	kc_defer(r->b.delta);
	KC_RUN(ATTN_BWD_PRE, &r->b);
	for (int64_t i = 0; i < r->nlse; i++)
		r->b.delta[i] = NAN;
	/* the reference's results are not used here; dq runs after dkv on the device's arrays */
	kc_defer(r->b.dqkv);
	KC_RUN(ATTN_BWD_DKV, &r->b);
	memcpy(r->b.dqkv, kc_got(r->b.dqkv), nbytes);
	kc_defer(r->b.dqkv);
	KC_RUN(ATTN_BWD_DQ, &r->b);
	ck_assert_mem_eq(kc_got(r->b.dqkv), want, nbytes);
	free(want);
}

static void one(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude)
{
	struct run r = run_of(s, dtype, threshold, amplitude);
	const size_t nbytes = (size_t)r.nqkv * te_dtype_nbytes((enum te_dtype)dtype);
	const int64_t nq = (int64_t)s->nheads * s->d;
	const int strips = is_strips(s, dtype, threshold);
	char *before;

	run_forward(&r);
	forward(&r.m);
	near(&r.m, dtype, r.f.out, r.m.o, r.m.o_err, r.nout, "out");
	near(&r.m, TE_DTYPE_FP32, r.f.lse, r.m.lse, r.m.lse_err, r.nlse, "lse");
	/* from here on, both read the reference's out and lse */
	r.m.out = values(dtype, r.b.out, r.nout);
	r.m.dout = values(dtype, r.b.dout, r.nout);
	run_pre(&r);
	backward(&r.m, r.b.lse, r.b.delta);
	before = copy_of(r.b.dqkv, nbytes);
	kc_defer(r.b.dqkv);
	KC_RUN(ATTN_BWD_DKV, &r.b);
	if (!strips)
		untouched(&r, before, 0, nq);
	free(before);
	before = copy_of(kc_got(r.b.dqkv), nbytes);
	/* copy the reference's k and v parts next to its q part, to compare all of dqkv at once */
	kc_defer(r.b.dqkv);
	KC_RUN(ATTN_BWD_DQ, &r.b);
	for (int64_t t = 0; t < s->batch * s->T; t++) {
		const size_t w = te_dtype_nbytes((enum te_dtype)dtype);
		const size_t at = (size_t)(t * row_of(s) + nq) * w;
		const size_t n = (size_t)(row_of(s) - nq) * w;
		char *got = (char *)(uintptr_t)kc_got(r.b.dqkv);

		ck_assert_msg(!memcmp(got + at, (char *)r.b.dqkv + at, n),
			      "row %d: dq is written outside of its part", (int)t);
		memcpy(got + at, before + at, n);
		if (strips) {
			ck_assert(tt_is_poison(got + at - nq * w, nq * w));
			memcpy(got + at - nq * w, before + at - nq * w, nq * w);
		}
	}
	near(&r.m, dtype, r.b.dqkv, r.m.g, r.m.g_err, r.nqkv, "dqkv");
	if (strips)
		without_delta(&r, nbytes);
	free(before);
	model_free(&r.m);
	kc_reset();
}

/* codes are those of out, whose bits do not depend on them, and out may be NULL */
START_TEST(casts_what_it_computes)
{
	const struct shape *s = &shapes[_i / 4];
	const int32_t dtype = _i & 1 && strcmp(backend, "cuda") ? TE_DTYPE_FP32 : TE_DTYPE_BF16;
	struct run r = run_of(s, dtype, _i & 2 ? (uint32_t)tt_rand_int(1, 30000) : 0, 1.0f);
	const size_t nbytes = (size_t)r.nout * te_dtype_nbytes((enum te_dtype)dtype);
	const int64_t rows = s->batch * s->T, cols = (int64_t)s->nheads * s->d;
	const int side = (int)tt_rand_int(0, 3);
	struct te_k_q q;
	char *out;

	run_forward(&r);
	out = copy_of(kc_got(r.f.out), nbytes);
	q = kc_q(side & 1 ? TE_DTYPE_E4M3 : TE_DTYPE_E5M2, r.nout, 40.0f, kc_word(0.0f));
	if (side == 1)
		q.col = NULL;
	if (side == 2)
		q.row = NULL;
	if (side == 3)
		q.row = q.col = NULL; /* only the amax */
	for (int pass = 0; pass < 3; pass++) {
		r.f.q = q;
		*q.amax = 0.0f;
		if (pass)
			r.f.out = NULL;
		if (pass == 2) {
			*(float *)q.noop = 1.0f;
			*(float *)q.scale = 7.0f;
		}
		if (pass < 2) {
			kc_defer(r.f.out);
			kc_defer(r.f.lse);
			kc_defer_q(&r.f.q);
		}
		KC_RUN(ATTN_FWD, &r.f);
		if (pass == 0)
			ck_assert_mem_eq(out, kc_got(r.f.out), nbytes);
		if (pass < 2)
			kc_check_q(&q, dtype, out, rows, cols);
	}
	free(out);
	model_free(&r.m);
	kc_reset();
}
END_TEST

static void agrees(int i, int32_t dtype)
{
	const uint32_t some = (uint32_t)tt_rand_int(1, 30000);

	one(&shapes[i / 2], dtype, i & 1 ? some : 0, 1.0f);
}

START_TEST(fp32_agrees_with_fp64)
{
	agrees(_i, TE_DTYPE_FP32);
}
END_TEST

START_TEST(bf16_agrees_with_fp64)
{
	agrees(_i, TE_DTYPE_BF16);
}
END_TEST

/* scores of some hundreds: one probability of a row is nearly 1, nothing overflows */
START_TEST(large_scores_do_not_overflow)
{
	one(&shapes[_i / 2 ? 5 : 11], _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32, 0, 9.0f);
}
END_TEST

START_TEST(drops_nearly_everything)
{
	one(&shapes[4], _i ? TE_DTYPE_BF16 : TE_DTYPE_FP32, 65000, 1.0f);
}
END_TEST

/*
 * Later tokens change no bit of earlier rows, and a repeated launch gives the same bits. A GPU
 * multiplies masked values by 0 (te_k.h), so later tokens are finite there.
 */
START_TEST(later_tokens_change_nothing)
{
	const struct shape *s = &shapes[_i & 2 ? 5 : 7];
	const int32_t dtype = _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct run r = run_of(s, dtype, _i & 4 ? 0 : 9000, 1.0f);
	const size_t w = te_dtype_nbytes((enum te_dtype)dtype);
	const int64_t cut = s->T - 1 - tt_rand_int(0, s->T / 2);
	const float later = strcmp(backend, "cuda") ? NAN : -70.0f;
	char *out, *lse;

	run_forward(&r);
	out = copy_of(kc_got(r.f.out), (size_t)r.nout * w);
	lse = copy_of(kc_got(r.f.lse), (size_t)r.nlse * 4);
	run_forward(&r);
	ck_assert_mem_eq(out, kc_got(r.f.out), (size_t)r.nout * w);
	ck_assert_mem_eq(lse, kc_got(r.f.lse), (size_t)r.nlse * 4);
	for (int64_t i = cut * row_of(s); i < s->T * row_of(s); i++)
		tt_set(dtype, (void *)(uintptr_t)r.f.qkv, i, i % 3 ? 100.0f : later);
	run_forward(&r);
	ck_assert_mem_eq(out, kc_got(r.f.out), (size_t)(cut * s->nheads * s->d) * w);
	for (int h = 0; h < s->nheads; h++)
		ck_assert_mem_eq(lse + h * s->T * 4, (const char *)kc_got(r.f.lse) + h * s->T * 4,
				 (size_t)cut * 4);
	free(out);
	free(lse);
	model_free(&r.m);
	kc_reset();
}
END_TEST

/* over many masks, about the requested share is dropped */
START_TEST(drops_the_requested_share)
{
	struct model m = { .s.nheads = 3, .threshold = (uint32_t)tt_rand_int(6000, 60000) };
	const int64_t n = 400;
	int64_t kept = 0;
	double p, sigma;

	m.words[0] = tt_rand_u64();
	m.words[1] = tt_rand_u64() & 0xffffff;
	m.tag = (uint32_t)tt_rand_u64();
	for (int64_t q = 0; q < n; q++)
		for (int64_t k = 0; k < n; k++)
			kept += factor(&m, 3, q, k) > 0;
	p = 1 - m.threshold / 65536.0;
	sigma = sqrt(p * (1 - p) / (double)(n * n));
	ck_assert(fabs((double)kept / (double)(n * n) - p) < 6 * sigma);
}
END_TEST

Suite *attn_suite(const char *name, const char *on)
{
	const int n = 2 * (strcmp(on, "host") ? NSHAPES : NSHAPES_HOST);
	Suite *s = suite_create(name);
	TCase *c[] = { tt_case(s, "fp32", "numeric"), tt_case(s, "bf16", "numeric"),
		       tt_case(s, "rules", "numeric") };

	for (size_t i = 0; i < TT_LEN(c); i++)
		tcase_add_checked_fixture(c[i], setup, kc_close);
	TT_ADD_LOOP(c[0], fp32_agrees_with_fp64, n, 3);
	TT_ADD_LOOP(c[1], bf16_agrees_with_fp64, n, 3);
	tcase_add_loop_test(c[2], large_scores_do_not_overflow, 0, 4);
	tcase_add_loop_test(c[2], drops_nearly_everything, 0, 2);
	tcase_add_loop_test(c[2], later_tokens_change_nothing, 0, 8);
	tcase_add_test(c[2], drops_the_requested_share);
	TT_ADD_LOOP(c[2], casts_what_it_computes, 2 * n, 4);
	return s;
}
