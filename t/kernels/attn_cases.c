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
 *
 * With a softcap c, s becomes c tanh(s / c): e_s and 16 v c, since 1 - 2 / (1 + e^2u) has an
 * absolute error of 4 units and those of its steps; ds has the factor 1 - tanh^2, with an absolute
 * error of 2 e_s / c + 4 v, also where it is 0, for what e_ds leaves.
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

/* the host's kernels have heads of up to 256 channels, those of GPUs of up to 128 */
static struct shape wide_shape(void)
{
	const int nkv = (int)tt_rand_int(1, 2);

	return (struct shape){ tt_rand_int(1, 2), tt_rand_int(1, 140),
			       nkv * (int)tt_rand_int(1, 2), nkv,
			       tt_rand_int(0, 3) ? (int)tt_rand_int(129, 256) : 256 };
}

/* ---- the model ---- */

struct model {
	struct shape s;
	int32_t dtype;
	double scale, w;
	uint64_t words[2]; /* seed, offset */
	uint32_t threshold, tag;
	int32_t first_head, other_heads;
	int32_t window, full;
	const int32_t *first;
	double softcap;
	double *qkv, *out, *dout; /* as the arrays hold them */
	double *qkv_abs, *dout_abs;
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

/* the keys of query q of sequence b: from the returned one to *ret_end - 1 */
static int64_t keys_of(const struct model *m, int64_t b, int64_t q, int64_t *ret_end)
{
	int64_t first = m->first ? m->first[b * m->s.T + q] : 0;

	*ret_end = m->full ? m->s.T : q + 1;
	first = first > q ? q : first;
	if (m->window && first < q - m->window + 1)
		first = q - m->window + 1;
	return first < 0 ? 0 : first;
}

/* scores of a query with keys k0 .. k1 - 1, and their error bounds; q and key: in qkv */
static void scores(const struct model *m, int64_t q, int64_t key, int64_t k0, int64_t k1, double *s,
		   double *es)
{
	for (int64_t k = k0; k < k1; k++) {
		const int64_t at = key + k * row_of(&m->s);
		const double mag = dot(m->qkv_abs + q, m->qkv_abs + at, m->s.d);

		s[k] = m->scale * dot(m->qkv + q, m->qkv + at, m->s.d);
		es[k] = V * ((m->s.d + 4) * m->scale * mag + 4 * fabs(s[k]));
		if (m->softcap > 0) {
			s[k] = m->softcap * tanh(s[k] / m->softcap);
			es[k] += 16 * V * m->softcap;
		}
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
			const int64_t at = b * T * row;
			const int64_t v = at + (sh->nheads + sh->nkv + g) * sh->d;
			double *o = m->o + ((b * T + q) * sh->nheads + h) * sh->d;
			double *err = m->o_err + (o - m->o);
			double max = -INFINITY, sum = 0, e = 0, rel;
			int64_t k1;
			const int64_t k0 = keys_of(m, b, q, &k1);

			scores(m, at + q * row + h * sh->d, at + (sh->nheads + g) * sh->d, k0, k1,
			       s, es);
			for (int64_t k = k0; k < k1; k++)
				max = fmax(max, s[k]);
			for (int64_t k = k0; k < k1; k++) {
				sum += exp(s[k] - max);
				e = fmax(e, es[k] + 4 * V * fabs(max));
			}
			rel = 2 * e + (double)(T + 32) * V + EXP;
			for (int c = 0; c < sh->d; c++)
				o[c] = err[c] = 0;
			for (int64_t k = k0; k < k1; k++) {
				const double f = factor(m, bh, q, k);
				const double p = exp(s[k] - max) / sum * f;

				add(o, p, m->qkv + v + k * row, sh->d);
				add(err, p * (rel + m->w) + f * TINY, m->qkv_abs + v + k * row,
				    sh->d);
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
		double mag = 0;

		for (int64_t c = i * sh->d; c < (i + 1) * sh->d; c++)
			mag += fabs(m->out[c] * m->dout[c]);
		m->delta[at] = dot(m->out + i * sh->d, m->dout + i * sh->d, sh->d);
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
	const int64_t yat = ((b * T + q) * sh->nheads + h) * sh->d;
	const double *dy = m->dout + yat, *dy_abs = m->dout_abs + yat;

	int64_t k1;
	const int64_t k0 = keys_of(m, b, q, &k1);

	scores(m, qat, kat, k0, k1, s, es);
	for (int64_t k = k0; k < k1; k++) {
		const int64_t key = kat + k * row, value = vat + k * row;
		double f = factor(m, bh, q, k), p = exp(s[k] - lse);
		double dp = dot(dy, m->qkv + value, sh->d);
		double mag = dot(dy_abs, m->qkv_abs + value, sh->d);
		double ep = es[k] + 4 * V * (fabs(s[k]) + fabs(lse)) + EXP;
		double ds = p * (dp * f - delta);
		double eds = (p * (ep + 4 * V) + TINY) * (fabs(dp * f) + fabs(delta) + 1) +
			     p * (f * V * (sh->d + 4) * mag + delta_err) + m->w * fabs(ds);

		if (m->softcap > 0) {
			const double t = s[k] / m->softcap, slope = 1 - t * t;

			eds = eds * slope + (fabs(ds) + eds) * (2 * es[k] / m->softcap + 4 * V);
			ds *= slope;
		}
		add(m->g + qat, m->scale * ds, m->qkv + key, sh->d);
		add(m->g_err + qat, m->scale * (eds + (double)(T + 8) * V * fabs(ds)),
		    m->qkv_abs + key, sh->d);
		add(m->g + key, m->scale * ds, m->qkv + qat, sh->d);
		add(m->g_err + key, m->scale * (eds + (double)(n + 8) * V * fabs(ds)),
		    m->qkv_abs + qat, sh->d);
		add(m->g + value, p * f, dy, sh->d);
		add(m->g_err + value, f * (p * (ep + m->w + (double)(n + 8) * V) + TINY), dy_abs,
		    sh->d);
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

static double *magnitudes(const double *x, int64_t n)
{
	double *y = doubles(n);

	for (int64_t i = 0; i < n; i++)
		y[i] = fabs(x[i]);
	return y;
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
			  m->lse_err, m->delta, m->delta_err, m->g, m->g_err, m->qkv_abs,
			  m->dout_abs };

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
				      "T %d, heads %d/%d, d %d, %s, threshold %u, window %d, "
				      "softcap %g%s%s: %s of the %s, "
				      "element %lld: %.9g, not %.9g within %.3g",
				      (int)m->s.T, m->s.nheads, m->s.nkv, m->s.d,
				      te_dtype_name((enum te_dtype)m->dtype), m->threshold,
				      m->window, m->softcap, m->first ? ", documents" : "",
				      m->full ? ", full" : "", what,
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

/* what a case has more than plain causal attention */
enum { WINDOW = 1, CAP = 2, DOCUMENTS = 4, FULL = 8 };

/* first keys of documents of 1 to most tokens; some are out of range */
static const int32_t *documents(const struct shape *s, int64_t most)
{
	int32_t *first = kc_poison(TE_DTYPE_INT32, s->batch * s->T);
	const int64_t n = s->batch * s->T;

	for (int64_t i = 0; i < n;) {
		const int64_t at = i % s->T, len = tt_rand_int(1, most);
		const int bad = tt_rand_int(0, 9) == 0;

		for (int64_t k = 0; k < len && at + k < s->T; k++, i++)
			first[i] = !bad ? (int32_t)at :
				   k % 2 ? INT32_MAX - (int32_t)k : INT32_MIN + (int32_t)k;
	}
	return first;
}

static void add_more(struct run *r, int more)
{
	if (more & WINDOW)
		r->m.window = (int32_t)tt_rand_int(1, tt_rand_int(0, 1) ? 9 : r->m.s.T + 3);
	if (more & CAP)
		r->m.softcap = (double)tt_rand_float(0.5f, 30.0f);
	if (more & DOCUMENTS)
		r->m.first = documents(&r->m.s, tt_rand_int(1, r->m.s.T));
	r->m.full = !!(more & FULL);
	if (more & ~WINDOW)
		r->b.sums = NULL;
	r->f.window = r->b.window = r->m.window;
	r->f.softcap = r->b.softcap = (float)r->m.softcap;
	r->f.first = r->b.first = r->m.first;
	r->f.full = r->b.full = r->m.full;
}

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
	r.m.qkv_abs = magnitudes(r.m.qkv, r.nqkv);
	r.m.o = doubles(r.nout);
	r.m.o_err = doubles(r.nout);
	r.m.lse = doubles(r.nlse);
	r.m.lse_err = doubles(r.nlse);
	r.m.delta = doubles(r.nlse);
	r.m.delta_err = doubles(r.nlse);
	r.m.g = doubles(r.nqkv);
	r.m.g_err = doubles(r.nqkv);
	if (dtype == TE_DTYPE_BF16 && (s->d == 64 || s->d == 128) && !threshold)
		r.b.sums = kc_poison(TE_DTYPE_UINT8, te_k_attn_sums_nbytes(&r.b));
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
static int is_strips(const struct shape *s, int32_t dtype, uint32_t threshold, int more)
{
	return !strcmp(backend, "cuda") && dtype == TE_DTYPE_BF16 && !threshold && !more &&
	       s->d % 8 == 0 && s->batch * s->nheads * ((s->T + 15) / 16) <= 264;
}

/* clears the counters of a device, which the reference does not use */
static void launch_pre(struct run *r)
{
	const size_t nbytes = r->b.sums ? 4 * (size_t)te_k_attn_counts(&r->b) : 0;

	kc_defer(r->b.delta);
	kc_defer(r->b.sums);
	KC_RUN(ATTN_BWD_PRE, &r->b);
	if (nbytes)
		memcpy(r->b.sums, kc_got(r->b.sums), nbytes);
}

/* did it write dq, too? */
static int launch_dkv(struct run *r)
{
	tt_poison(r->b.dqkv, (size_t)r->nqkv * te_dtype_nbytes((enum te_dtype)r->m.dtype));
	kc_defer(r->b.dqkv);
	kc_defer(r->b.sums);
	KC_RUN(ATTN_BWD_DKV, &r->b);
	return r->b.sums && !tt_is_poison(kc_got(r->b.dqkv), 16);
}

static void run_pre(struct run *r)
{
	const size_t nbytes = (size_t)r->nlse * sizeof(float);

	launch_pre(r);
	pre(&r->m);
	if (!is_strips(&r->m.s, r->m.dtype, r->m.threshold, TE_K_ATTN_HAS_MORE(&r->b))) {
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
	launch_pre(r);
	for (int64_t i = 0; i < r->nlse; i++)
		r->b.delta[i] = NAN;
	/* the reference's results are not used here; dq runs after dkv on the device's arrays */
	launch_dkv(r);
	memcpy(r->b.dqkv, kc_got(r->b.dqkv), nbytes);
	kc_defer(r->b.dqkv);
	KC_RUN(ATTN_BWD_DQ, &r->b);
	ck_assert_mem_eq(kc_got(r->b.dqkv), want, nbytes);
	free(want);
}

static void one(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude,
		int more)
{
	struct run r = run_of(s, dtype, threshold, amplitude);
	const size_t nbytes = (size_t)r.nqkv * te_dtype_nbytes((enum te_dtype)dtype);
	const int64_t nq = (int64_t)s->nheads * s->d;
	const int strips = is_strips(s, dtype, threshold, more);
	char *before;
	int once;

	add_more(&r, more);
	run_forward(&r);
	forward(&r.m);
	near(&r.m, dtype, r.f.out, r.m.o, r.m.o_err, r.nout, "out");
	near(&r.m, TE_DTYPE_FP32, r.f.lse, r.m.lse, r.m.lse_err, r.nlse, "lse");
	/* from here on, both read the reference's out and lse */
	r.m.out = values(dtype, r.b.out, r.nout);
	r.m.dout = values(dtype, r.b.dout, r.nout);
	r.m.dout_abs = magnitudes(r.m.dout, r.nout);
	run_pre(&r);
	backward(&r.m, r.b.lse, r.b.delta);
	before = copy_of(r.b.dqkv, nbytes);
	once = launch_dkv(&r) || strips;
	if (!once)
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
		if (once) {
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
	const struct shape wide = wide_shape();
	const struct shape *s = _i / 4 < NSHAPES ? &shapes[_i / 4] : &wide;
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

	one(&shapes[i / 2], dtype, i & 1 ? some : 0, 1.0f, 0);
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

/* windows, softcaps, documents and full attention, each with each; _i: those, type, dropout */
START_TEST(more_agrees_with_fp64)
{
	const int n = strcmp(backend, "host") ? NSHAPES : NSHAPES_HOST;
	const int more = 1 + _i % 15;
	const uint32_t some = (uint32_t)tt_rand_int(1, 30000);

	one(&shapes[tt_rand_int(0, n - 1)], _i / 15 & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32,
	    _i / 30 & 1 ? some : 0, _i / 60 & 1 ? 6.0f : 1.0f, more);
}
END_TEST

/* _i: what it has more, type, dropout */
START_TEST(wide_heads_agree_with_fp64)
{
	const struct shape s = wide_shape();
	const uint32_t some = (uint32_t)tt_rand_int(1, 30000);

	one(&s, _i / 16 & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32, _i / 32 & 1 ? some : 0, 1.0f, _i % 16);
}
END_TEST

/* heads that each kernel has, and few tokens if there are many heads */
static struct shape any_shape(void)
{
	static const int lens[] = { 20, 140, 420 };
	const int most = strcmp(backend, "host") ? 128 : 256, kind = (int)tt_rand_int(0, 3);
	const int len = (int)tt_rand_int(0, 2), n = 3 - len;
	const int nkv = (int)tt_rand_int(1, n);

	return (struct shape){ tt_rand_int(1, n), tt_rand_int(1, lens[len]),
			       nkv * (int)tt_rand_int(1, 4), nkv,
			       kind == 0 ? 64 :
			       kind == 1 ? most / 2 * (int)tt_rand_int(1, 2) :
			       kind == 2 ? 8 * (int)tt_rand_int(1, most / 8) :
					   (int)tt_rand_int(1, most) };
}

/*
 * Everything drawn at random. TT_ROUNDS=5000 CK_TIMEOUT_MULTIPLIER=100 CK_RUN_CASE=random runs that
 * many cases.
 */
START_TEST(any_case_agrees_with_fp64)
{
	const char *rounds = getenv("TT_ROUNDS");
	const int n = rounds ? atoi(rounds) : TT_FEWER(20);

	for (int i = 0; i < n; i++) {
		const struct shape s = any_shape();
		const uint32_t some = (uint32_t)tt_rand_int(1, 60000);
		static const float amplitudes[] = { 0.1f, 1.0f, 1.0f, 6.0f };

		one(&s, tt_rand_int(0, 2) ? TE_DTYPE_BF16 : TE_DTYPE_FP32,
		    tt_rand_int(0, 2) ? 0 : some, amplitudes[tt_rand_int(0, 3)],
		    tt_rand_int(0, 1) ? (int)tt_rand_int(1, 15) :
		    tt_rand_int(0, 1) ? WINDOW : 0);
	}
}
END_TEST

/* scores of some hundreds: one probability of a row is nearly 1, nothing overflows */
START_TEST(large_scores_do_not_overflow)
{
	one(&shapes[_i / 2 ? 5 : 11], _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32, 0, 9.0f, 0);
}
END_TEST

START_TEST(drops_nearly_everything)
{
	one(&shapes[4], _i ? TE_DTYPE_BF16 : TE_DTYPE_FP32, 65000, 1.0f, 0);
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

/* tokens from to to - 1 of one sequence: out, dk and dv, dq and lse; released by the caller */
static char *results_of(struct run *r, int64_t from, int64_t to, size_t *ret_nbytes)
{
	int once = 0;
	const size_t w = te_dtype_nbytes((enum te_dtype)r->m.dtype);
	const size_t row = (size_t)row_of(&r->m.s) * w, orow = (size_t)(r->nout / r->m.s.T) * w;
	const size_t n = (size_t)(to - from);
	char *ret = malloc(n * (2 * row + orow + (size_t)r->m.s.nheads * 4)), *p = ret;

	ck_assert_ptr_nonnull(ret);
	run_forward(r);
	memcpy(p, (const char *)kc_got(r->f.out) + (size_t)from * orow, n * orow);
	p += n * orow;
	for (int h = 0; h < r->m.s.nheads; h++, p += n * 4)
		memcpy(p, (const float *)kc_got(r->f.lse) + h * r->m.s.T + from, n * 4);
	launch_pre(r);
	for (int i = 0; i < 2; i++) {
		const size_t skip = i ? 0 : orow, len = i ? orow : row - orow;

		if (!i) {
			once = launch_dkv(r);
		} else if (!once) {
			kc_defer(r->b.dqkv);
			KC_RUN(ATTN_BWD_DQ, &r->b);
		}
		for (int64_t t = from; t < to; t++, p += len)
			memcpy(p, (const char *)kc_got(r->b.dqkv) + (size_t)t * row + skip, len);
	}
	*ret_nbytes = (size_t)(p - ret);
	return ret;
}

/* a random document of r, whose sequence is one batch */
static void choose_document(const struct run *r, int64_t *ret_from, int64_t *ret_to)
{
	const int64_t T = r->m.s.T, at = tt_rand_int(0, T - 1);
	int64_t unused;

	*ret_from = keys_of(&r->m, 0, at, &unused);
	*ret_to = at + 1;
	while (*ret_to < T && keys_of(&r->m, 0, *ret_to, &unused) == *ret_from)
		++*ret_to;
}

/*
 * What other documents contain changes no bit of a document. As above, it is finite on a GPU.
 * _i: type, dropout, softcap
 */
START_TEST(documents_do_not_see_each_other)
{
	const int most = strcmp(backend, "host") ? 128 : 256;
	const struct shape s = { 1, tt_rand_int(2, 300), 2, 1, (int)tt_rand_int(1, most) };
	const int32_t dtype = _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct run r = run_of(&s, dtype, _i & 2 ? 9000 : 0, 1.0f);
	const float other = strcmp(backend, "cuda") ? NAN : -70.0f;
	int32_t *first = kc_poison(TE_DTYPE_INT32, s.T);
	const int64_t len = tt_rand_int(1, s.T);
	int64_t from, to;
	size_t nbytes, again;
	char *want, *got;

	for (int64_t i = 0; i < s.T; i++)
		first[i] = (int32_t)(i / len * len);
	add_more(&r, _i & 4 ? CAP : 0);
	r.m.first = r.f.first = r.b.first = first;
	choose_document(&r, &from, &to);
	want = results_of(&r, from, to, &nbytes);
	for (int64_t t = 0; t < s.T; t++) {
		if (t >= from && t < to)
			continue;
		for (int64_t i = 0; i < row_of(&s); i++)
			tt_set(dtype, (void *)(uintptr_t)r.f.qkv, t * row_of(&s) + i,
			       i % 3 ? 100.0f : other);
		for (int64_t i = 0; i < s.nheads * s.d; i++)
			tt_set(dtype, (void *)(uintptr_t)r.b.dout, t * s.nheads * s.d + i, other);
	}
	got = results_of(&r, from, to, &again);
	ck_assert_uint_eq(nbytes, again);
	ck_assert_msg(!memcmp(want, got, nbytes), "T %d, d %d, documents of %d: tokens %d to %d",
		      (int)s.T, s.d, (int)len, (int)from, (int)to - 1);
	free(want);
	free(got);
	model_free(&r.m);
	kc_reset();
}
END_TEST

/* the host's promise, for documents at multiples of its tiles. _i: type, window and softcap */
START_TEST(a_document_has_the_bits_of_it_alone)
{
	const int64_t from = 64 * tt_rand_int(0, 3), n = tt_rand_int(1, 150);
	const struct shape s = { 1, from + n + tt_rand_int(0, 70), 4, 2, 40 };
	const struct shape alone = { 1, n, 4, 2, 40 };
	const int32_t dtype = _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct run r = run_of(&s, dtype, 0, 1.0f), one = run_of(&alone, dtype, 0, 1.0f);
	const size_t w = te_dtype_nbytes((enum te_dtype)dtype);
	const size_t row = (size_t)row_of(&s) * w, orow = (size_t)s.nheads * (size_t)s.d * w;
	int32_t *first = kc_poison(TE_DTYPE_INT32, s.T);
	size_t nbytes, again;
	char *want, *got;

	for (int64_t i = 0; i < s.T; i++)
		first[i] = (int32_t)(i < from ? 0 : i < from + n ? from : from + n);
	memcpy((void *)(uintptr_t)one.f.qkv, (const char *)r.f.qkv + (size_t)from * row,
	       (size_t)n * row);
	memcpy((void *)(uintptr_t)one.b.dout, (const char *)r.b.dout + (size_t)from * orow,
	       (size_t)n * orow);
	if (_i & 2) {
		one.f.window = one.b.window = r.f.window = r.b.window = 20;
		one.f.softcap = one.b.softcap = r.f.softcap = r.b.softcap = 2.0f;
	}
	one.f.scale = one.b.scale = r.f.scale;
	r.f.first = r.b.first = first;
	want = results_of(&one, 0, n, &nbytes);
	got = results_of(&r, from, from + n, &again);
	ck_assert_uint_eq(nbytes, again);
	ck_assert_msg(!memcmp(want, got, nbytes), "T %d: %d tokens from %d on", (int)s.T, (int)n,
		      (int)from);
	free(want);
	free(got);
	model_free(&r.m);
	model_free(&one.m);
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

void attn_cases(Suite *s, const char *on)
{
	const int n = 2 * (strcmp(on, "host") ? NSHAPES : NSHAPES_HOST);
	TCase *c[] = { tt_case(s, "fp32", "numeric"), tt_case(s, "bf16", "numeric"),
		       tt_case(s, "rules", "numeric"), tt_case(s, "more", "numeric"),
		       tt_case(s, "random", "numeric") };

	for (size_t i = 0; i < TT_LEN(c); i++)
		tcase_add_checked_fixture(c[i], setup, kc_close);
	TT_ADD_LOOP(c[0], fp32_agrees_with_fp64, n, 3);
	TT_ADD_LOOP(c[1], bf16_agrees_with_fp64, n, 3);
	TT_ADD_LOOP(c[3], more_agrees_with_fp64, 120, 8);
	tcase_add_test(c[4], any_case_agrees_with_fp64);
	tcase_add_loop_test(c[3], documents_do_not_see_each_other, 0, 8);
	if (!strcmp(on, "host")) {
		tcase_add_loop_test(c[3], a_document_has_the_bits_of_it_alone, 0, 4);
		TT_ADD_LOOP(c[3], wide_heads_agree_with_fp64, 64, 8);
		tcase_add_loop_test(c[2], casts_what_it_computes, 4 * NSHAPES, 4 * NSHAPES + 4);
	}
	tcase_add_loop_test(c[2], large_scores_do_not_overflow, 0, 4);
	tcase_add_loop_test(c[2], drops_nearly_everything, 0, 2);
	tcase_add_loop_test(c[2], later_tokens_change_nothing, 0, 8);
	tcase_add_test(c[2], drops_the_requested_share);
	TT_ADD_LOOP(c[2], casts_what_it_computes, 2 * n, 4);
}
