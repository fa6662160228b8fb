/*
 * t/kernels/attn_cached.c - attention to a cache of keys and values, by the reference function and
 * by the backend's kernel, each against an FP64 model with the same inputs.
 *
 * Bounds as in attn_model.c, with v = 2^-23 and without its w, since no kernel rounds
 * probabilities:
 *
 *   score s = c q.k:   e_s = v ((d + 4) c sum|q||k| + 4 |s|), with a softcap C 16 v C more, with
 *                      ALiBi 4 v times what is subtracted, and 4 v |max s| if it is subtracted
 *   p = exp(s - max):  relative 2 max e_s, (n + 32) v for the sum over n keys, and 2^-21 for each
 *                      exponential: its own, and one of each of n / 4 + 16 times that sums are
 *                      rescaled at most
 *   out = sum p x:     that sum p |x| + unit |out|
 */
#include "config.h"

#include <math.h>

#include "kernel_lib.h"
#include "tt_ctx.h"

#define V 0x1p-23
#define EXP 0x1p-21
#define ROWS 6
#define NSEQS 3

struct cached {
	struct te_k_attn_cached k;
	int32_t *sequence, *position, *pages;
	float *parts;
};

/* n elements of a cache, and if it is of E4M3 the scales of heads, from 2^-spread to 2^spread */
static void fill_cache(const struct te_k_attn_cached *k, int64_t n, int spread, void **ret,
		       uint8_t **ret_scale)
{
	*ret = kc_normal(k->cache_dtype, n, 1.0f);
	if (k->cache_dtype != TE_DTYPE_E4M3)
		return;
	*ret_scale = kc_poison(TE_DTYPE_UINT8, n / k->head_dim);
	for (int64_t i = 0; i < n / k->head_dim; i++)
		(*ret_scale)[i] = (uint8_t)tt_rand_int(127 - spread, 127 + spread);
}

static float *heads_of(int32_t n, float lo, float hi)
{
	float *x = kc_poison(TE_DTYPE_FP32, n);

	for (int32_t h = 0; h < n; h++)
		x[h] = tt_rand_float(lo, hi);
	return x;
}

/* Rows are at random positions of sequences, and some are padding or outside. scores: 1: slopes,
 * 2: sinks */
static struct cached cached_of(int32_t dtype, int32_t cache, int64_t most, int nsplits, int scores)
{
	static const int dims[] = { 64, 96, 128, 80, 8 };
	struct cached c = { .k = { .dtype = dtype, .cache_dtype = cache, .nsplits = nsplits } };
	struct te_k_attn_cached *k = &c.k;
	const int paged = (int)tt_rand_int(0, 1);
	int64_t n;

	k->nkv = (int32_t)tt_rand_int(1, 3);
	k->nheads = k->nkv * (int32_t)tt_rand_int(1, 9);
	k->head_dim = tt_rand_int(0, 1) ? dims[tt_rand_int(0, TT_LEN(dims) - 1)] :
					  (int32_t)tt_rand_int(1, TE_K_ATTN_CUDA_HEAD_DIM);
	k->scale = tt_rand_float(0.5f, 1.5f) / sqrtf((float)k->head_dim);
	k->window = tt_rand_int(0, 1) ? 0 : (int32_t)tt_rand_int(1, most);
	k->softcap = tt_rand_int(0, 2) ? 0.0f : tt_rand_float(0.5f, 30.0f);
	k->rows = tt_rand_int(1, ROWS);
	k->nseqs = NSEQS;
	k->page = paged ? tt_rand_int(1, 70) : most;
	k->max_pages = (most + k->page - 1) / k->page;
	k->npages = k->nseqs * k->max_pages;
	c.sequence = kc_poison(TE_DTYPE_INT32, k->rows);
	c.position = kc_poison(TE_DTYPE_INT32, k->rows);
	c.pages = kc_poison(TE_DTYPE_INT32, k->npages);
	for (int64_t i = 0; i < k->npages; i++)
		c.pages[i] = (int32_t)(k->npages - 1 - i);
	for (int64_t r = 0; r < k->rows; r++) {
		const int odd = (int)tt_rand_int(0, 9);

		/* rows differ in sequence or position */
		c.sequence[r] = odd == 0 ? -1 : odd == 1 ? NSEQS : (int32_t)(r % NSEQS);
		c.position[r] = (int32_t)(tt_rand_int(0, most / 2 - 1) + r / 3 * most / 2);
		if (odd == 2)
			c.position[r] = (int32_t)(k->max_pages * k->page);
		if (odd == 3)
			c.position[r] = -1;
	}
	n = k->npages * k->page * k->nkv * k->head_dim;
	k->qkv = kc_normal(dtype, k->rows * (k->nheads + 2 * k->nkv) * k->head_dim, 1.0f);
	k->out = kc_poison(dtype, k->rows * k->nheads * k->head_dim);
	fill_cache(k, n, 2, &k->k, &k->k_scale);
	fill_cache(k, n, tt_rand_int(0, 1) ? 2 : 30, &k->v, &k->v_scale);
	k->slopes = scores & 1 ? heads_of(k->nheads, 0.0f, 0.1f) : NULL;
	k->sinks = scores & 2 ? heads_of(k->nheads, -3.0f, 6.0f) : NULL;
	k->sequence = c.sequence;
	k->position = c.position;
	k->pages = paged ? c.pages : NULL;
	k->noutside = kc_poison(TE_DTYPE_INT32, 1);
	if (!nsplits)
		return c;
	k->parts = c.parts = kc_poison(TE_DTYPE_FP32, k->rows * k->nheads * nsplits *
							      (k->head_dim + 2));
	k->ready = kc_poison(TE_DTYPE_INT32, k->rows * k->nheads);
	memset(k->ready, 0, (size_t)(k->rows * k->nheads) * sizeof(*k->ready));
	return c;
}

static int is_inside(const struct cached *c, int64_t r)
{
	return c->sequence[r] >= 0 && c->sequence[r] < NSEQS && c->position[r] >= 0 &&
	       c->position[r] < c->k.max_pages * c->k.page;
}

/* element of the caches that key/value head g begins with */
static int64_t element(const struct cached *c, int64_t seq, int64_t pos, int64_t g)
{
	const struct te_k_attn_cached *k = &c->k;
	const int64_t i = seq * k->max_pages + pos / k->page;

	return (((k->pages ? k->pages[i] : i) * k->page + pos % k->page) * k->nkv + g) *
	       k->head_dim;
}

/* 1 / scale of a value in a cache of E4M3 */
static double cache_unit(const struct te_k_attn_cached *k, int64_t at)
{
	return ldexp(1.0, k->v_scale[at / k->head_dim] - 127);
}

static double cache_at(const struct te_k_attn_cached *k, const void *cache, const uint8_t *scale,
		       int64_t at)
{
	const double x = tt_get(k->cache_dtype, cache, at);

	return scale ? ldexp(x, scale[at / k->head_dim] - 127) : x;
}

/* row r and query head h, by the model, of the reference and of the kernel */
static void check_head(const struct cached *c, int64_t r, int64_t h)
{
	const struct te_k_attn_cached *k = &c->k;
	const int64_t d = k->head_dim, g = h / (k->nheads / k->nkv), pos = c->position[r];
	const int64_t first = te_k_attn_first(pos, k->window, 0), n = pos + 1 - first;
	const int64_t q = (r * (k->nheads + 2 * k->nkv) + h) * d, out = (r * k->nheads + h) * d;
	const double sink = k->sinks ? (double)k->sinks[h] : -INFINITY;
	double *s = calloc((size_t)n, sizeof(*s)), most = sink, e = 0, sum;
	const double cap = (double)k->softcap;
	double qmax = 0, largest = 0;

	/* a device has q as FP16, scaled to 224 or more */
	for (int64_t t = 0; t < d && k->k_scale; t++)
		qmax = fmax(qmax, fabs(tt_get(k->dtype, k->qkv, q + t)));
	for (int64_t i = 0; i < n; i++) {
		const int64_t at = element(c, c->sequence[r], first + i, g);
		double mag = 0, err;

		for (int64_t t = 0; t < d; t++) {
			const double key = cache_at(k, k->k, k->k_scale, at + t);
			const double x = tt_get(k->dtype, k->qkv, q + t) * key;

			s[i] += x;
			mag += fabs(x) + 0x1p-8 * qmax * fabs(key) / (double)(d + 4);
		}
		s[i] *= (double)k->scale;
		err = V * ((double)(d + 4) * (double)k->scale * mag + 4 * fabs(s[i]));
		if (k->softcap != 0.0f) {
			s[i] = cap * tanh(s[i] / cap);
			err += 16 * V * cap;
		}
		if (k->slopes) {
			const double less = (double)k->slopes[h] * (double)(n - 1 - i);

			s[i] -= less;
			err += 4 * V * less;
		}
		e = fmax(e, err);
		most = fmax(most, s[i]);
	}
	e += 4 * V * fabs(most);
	sum = exp(sink - most);
	for (int64_t i = 0; i < n; i++)
		sum += exp(s[i] - most);
	for (int64_t i = 0; i < n; i++) {
		s[i] = exp(s[i] - most) / sum;
		if (k->v_scale)
			largest = fmax(largest, s[i] * cache_unit(k, element(c, c->sequence[r],
									     first + i, g)));
	}
	for (int64_t t = 0; t < d; t++) {
		const double rel = 2 * e + (double)(n + 32) * V + (double)(n / 4 + 17) * EXP;
		const void *side[] = { k->out, kc_got(k->out) };
		double want = 0, mag = 0, tol;

		for (int64_t i = 0; i < n; i++) {
			const double p = s[i];
			const double x = cache_at(k, k->v, k->v_scale,
						  element(c, c->sequence[r], first + i, g) + t);

			want += p * x;
			mag += p * fabs(x);
		}
		/* and weights times scales as FP16, the largest 2^15, in multiples of 2^-24 */
		tol = rel * mag + 0x1p-40 * 448 * (double)n * largest;
		tol += tt_unit(k->dtype) * (fabs(want) + tol) + 0x1p-126;
		for (int i = 0; i < 2; i++) {
			const double x = tt_get(k->dtype, side[i], out + t);

			ck_assert_msg(fabs(x - want) <= tol,
				      "heads %d/%d of %d, cache %s, page %lld%s, parts %d, "
				      "window %d, softcap %g%s%s: row %lld at %lld, head %lld, "
				      "channel %lld of the %s is %.9g, not %.9g within %.3g",
				      k->nheads, k->nkv, k->head_dim,
				      te_dtype_name((enum te_dtype)k->cache_dtype),
				      (long long)k->page, k->pages ? " of a table" : "", k->nsplits,
				      k->window, cap, k->slopes ? ", slopes" : "",
				      k->sinks ? ", sinks" : "", (long long)r, (long long)pos,
				      (long long)h, (long long)t, i ? "kernel" : "reference", x,
				      want, tol);
		}
	}
	free(s);
}

static void check(const struct cached *c)
{
	const struct te_k_attn_cached *k = &c->k;
	const int64_t width = (int64_t)k->nheads * k->head_dim;

	for (int64_t r = 0; r < k->rows; r++) {
		for (int64_t h = 0; h < k->nheads && is_inside(c, r); h++)
			check_head(c, r, h);
		for (int64_t i = 0; i < width && !is_inside(c, r); i++)
			ck_assert(tt_get(k->dtype, kc_got(k->out), r * width + i) == 0.0);
	}
}

static const int32_t cache_types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_E4M3 };

static const int splits[] = { 0, 1, 2, 7, 64 };

KL_CASE(cached, .name = backend);

/* the kernel, twice: it leaves ready as it needs it. _i: T, type of the cache, parts */
TEST_EACH(cached, agrees_with_fp64, 30, .parts = 6)
{
	const int nsplits = splits[_i / 6];
	struct cached c;
	size_t nbytes;
	void *got;

	kc_unaligned(tt_rand_int(0, 3) == 0);
	c = cached_of(kl_types[_i & 1], cache_types[_i / 2 % 3], tt_rand_int(0, 3) ? 300 : 2000,
		      nsplits, (_i + _i / 6) % 4);
	nbytes = (size_t)(c.k.rows * c.k.nheads * c.k.head_dim) *
		 te_dtype_nbytes((enum te_dtype)c.k.dtype);
	got = malloc(nbytes);
	KC_RUN(ATTN_APPEND, &c.k);
	for (int pass = 0; pass < 2; pass++) {
		kc_defer(c.k.out);
		if (c.parts)
			kc_defer(c.parts);
		KC_RUN(ATTN_CACHED, &c.k);
		if (pass)
			ck_assert_mem_eq(got, kc_got(c.k.out), nbytes);
		memcpy(got, kc_got(c.k.out), nbytes);
	}
	check(&c);
	free(got);
	kc_reset();
}

/* heads: one element, and the number that all others are */
static const struct {
	float most, one;
} edges[] = {
	{ 0.0f, 0.0f },
	{ 448.0f, -1.0f },
	{ 449.0f, 0.5f },   /* above 448: the next power of two */
	{ 464.0f, -464.0f },
	{ 0x1p-126f, 0x1p-126f },
	{ 0x1p-133f, 0x1p-130f }, /* subnormal, in BF16 too */
	{ 0x1p127f, 1.0f },
	{ 1.0f, NAN },
	{ NAN, 2.0f },
	{ -INFINITY, 3.0f },
	{ 1.0f, INFINITY },
	{ -1.5e-3f, 300.0f },
};

/* the code and the E8M0 byte of x in a block of this amax, NaN ignored */
static uint8_t model_code(float x, double amax, int *ret_byte)
{
	int e = -127;

	while (e < 127 && ldexp(448.0, e) < amax)
		e++;
	*ret_byte = e + 127;
	return te_fp8_encode(TE_DTYPE_E4M3, (float)ldexp((double)x, -e));
}

/* _i: T; each key/value head of a row is another of the edges */
TEST_EACH(cached, append_encodes_edges, 2)
{
	const int32_t dtype = kl_types[_i], n = (int32_t)TT_LEN(edges);
	const int64_t d = tt_rand_int(2, TE_K_ATTN_CUDA_HEAD_DIM), one = tt_rand_int(0, d - 1);
	struct te_k_attn_cached k = {
		.dtype = dtype, .cache_dtype = TE_DTYPE_E4M3, .rows = 1, .nseqs = 1, .npages = 1,
		.page = 2, .max_pages = 1, .nheads = n, .nkv = n, .head_dim = (int32_t)d,
		.scale = 1.0f,
	};
	int32_t *where = kc_poison(TE_DTYPE_INT32, 2);

	where[0] = 0;
	where[1] = 1;
	k.sequence = where;
	k.position = where + 1;
	k.qkv = kc_normal(dtype, 3 * n * d, 1.0f);
	k.out = kc_poison(dtype, n * d);
	k.k = kc_poison(TE_DTYPE_E4M3, 2 * n * d);
	k.v = kc_poison(TE_DTYPE_E4M3, 2 * n * d);
	k.k_scale = kc_poison(TE_DTYPE_UINT8, 2 * n);
	k.v_scale = kc_poison(TE_DTYPE_UINT8, 2 * n);
	for (int64_t i = 0; i < 2 * n * d; i++)
		tt_set(dtype, (void *)(uintptr_t)k.qkv, n * d + i,
		       i % d == one ? edges[i / d % n].one : edges[i / d % n].most);
	KC_RUN(ATTN_APPEND, &k);
	for (int64_t i = 0; i < 2 * n * d; i++) {
		const int64_t g = i / d % n, at = (n + g) * d + i % d;
		const uint8_t *code = i / d < n ? k.k : k.v;
		const float x = tt_round(dtype, i % d == one ? edges[g].one : edges[g].most);
		const double a = fabs((double)tt_round(dtype, edges[g].most));
		const double b = fabs((double)tt_round(dtype, edges[g].one));
		int byte, got = (i / d < n ? k.k_scale : k.v_scale)[n + g];
		const uint8_t want = model_code(x, fmax(isnan(a) ? 0 : a, isnan(b) ? 0 : b), &byte);

		ck_assert_msg(code[at] == want && got == byte,
			      "head %lld, channel %lld of %lld: %g is %02x by %d, not %02x by %d",
			      (long long)g, (long long)(i % d), (long long)d, (double)x, code[at],
			      got, want, byte);
	}
	kc_reset();
}

/* The reference function rotates q and the keys in qkv, of which before is a copy, in place */
static void check_rotated(const struct te_k_attn_step *s, const struct cached *c,
			  const void *before)
{
	const int64_t d = s->c.head_dim, half = d / 2, nq = s->c.nheads, nkv = s->c.nkv;

	for (int64_t r = 0; r < s->c.rows; r++)
		for (int64_t i = 0; i < (nq + nkv) * d && is_inside(c, r); i++) {
			const int64_t at = r * (nq + 2 * nkv) * d + i, h = i / d, t = i % d;
			const double angle = (float)c->position[r] * s->inv_freq[t % half];
			const double x = tt_get(s->c.dtype, before, at);
			const double y = tt_get(s->c.dtype, before,
						t < half ? at + half : at - half);
			const double want =
				x * cos(angle) + (t < half ? -y : y) * sin(angle);
			const double tol = tt_unit(s->c.dtype) * fabs(want) +
					   0x1p-20 * (fabs(x) + fabs(y));
			const double got =
				h < nq ? tt_get(s->c.dtype, s->c.qkv, at) :
					 tt_get(s->c.cache_dtype, s->c.k,
						element(c, c->sequence[r], c->position[r], h - nq) +
							t);

			ck_assert_msg(fabs(got - want) <= tol,
				      "row %lld at %d, head %lld, channel %lld: %.9g, not %.9g",
				      (long long)r, c->position[r], (long long)h, (long long)t, got,
				      want);
		}
}

/* with angles of 0 a rotation changes no bits; with others, keys differ by sines of 2 ulp, which
 * may change codes and scales. _i: angles, type of the cache, parts */
TEST_EACH(cached, steps_as_append_and_attention_do, 32, .parts = 4)
{
	const int turns = _i & 1, codes = _i >> 1 & 1;
	struct te_k_attn_step s = { 0 };
	struct cached c;
	size_t nbytes;
	void *before;
	int64_t n;

	do {
		kc_reset();
		c = cached_of(TE_DTYPE_BF16, codes ? TE_DTYPE_E4M3 : TE_DTYPE_BF16, 300, 0, 0);
	} while (c.k.head_dim % 16 || c.k.head_dim > TE_K_ATTN_STEP_CUDA_HEAD_DIM);
	nbytes = (size_t)(c.k.rows * (c.k.nheads + 2 * c.k.nkv) * c.k.head_dim) * 2;
	before = malloc(nbytes);
	memcpy(before, c.k.qkv, nbytes);
	c.k.rows = c.k.rows < NSEQS ? c.k.rows : NSEQS; /* of different sequences */
	c.k.nsplits = 1 << _i / 4 % 4;
	s.c = c.k;
	for (int i = 0; i < c.k.head_dim / 2 && turns; i++)
		s.inv_freq[i] = powf(100.0f, -2.0f * (float)i / (float)c.k.head_dim);
	kc_defer(c.k.qkv);
	kc_defer(c.k.out);
	if (turns)
		kc_defer(c.k.k);
	if (turns && codes)
		kc_defer(c.k.k_scale);
	KC_RUN(ATTN_STEP, &s);
	if (!turns)
		check(&c);
	else if (!codes)
		check_rotated(&s, &c, before);
	free(before);
	n = c.k.npages * c.k.page * c.k.nkv * c.k.head_dim;
	for (int64_t i = 0; i < n && turns && !codes; i++)
		kc_near(c.k.k, i, 0x1p-7 * fabs((double)tt_get(c.k.cache_dtype, c.k.k, i)) + 1e-5);
	n = c.k.rows * c.k.nheads * c.k.head_dim;
	for (int64_t i = 0; i < n && turns; i++)
		kc_near(c.k.out, i, codes ? 0.25 : 0.05);
	kc_reset();
}

/* scores of -inf, of keys in the cache and of the rows' own */
static void hide(struct cached *c)
{
	struct te_k_attn_cached *k = &c->k;
	const int64_t nq = (int64_t)k->nheads * k->head_dim, nk = (int64_t)k->nkv * k->head_dim;
	const float most = k->cache_dtype == TE_DTYPE_E4M3 ? 448.0f : 3e38f;

	k->softcap = 0.0f;
	for (int64_t i = 0; i < k->rows * (nq + 2 * nk); i++)
		tt_set(k->dtype, (void *)(uintptr_t)k->qkv, i,
		       i % (nq + 2 * nk) < nq      ? -3e38f :
		       i % (nq + 2 * nk) < nq + nk ? 3e38f :
						     1.0f);
	for (int64_t i = 0; i < k->npages * k->page * nk; i++)
		tt_set(k->cache_dtype, k->k, i, most);
}

static void check_zeros(const struct cached *c)
{
	const struct te_k_attn_cached *k = &c->k;
	const void *side[] = { k->out, kc_got(k->out) };

	for (int s = 0; s < 2; s++)
		for (int64_t i = 0; i < k->rows * k->nheads * k->head_dim; i++)
			ck_assert_msg(tt_get(k->dtype, side[s], i) == 0.0,
				      "element %lld of the %s is %g", (long long)i,
				      s ? "kernel" : "reference", tt_get(k->dtype, side[s], i));
}

/* _i: T, type of the cache, parts; sinks, some of them of -inf, and slopes */
TEST_EACH(cached, scores_of_minus_infinity_give_0, 30, .parts = 6)
{
	const int nsplits = splits[_i / 6];
	struct cached c = cached_of(kl_types[_i & 1], cache_types[_i / 2 % 3], 300, nsplits,
				    (_i + _i / 6) % 4);

	hide(&c);
	for (int h = 0; h < c.k.nheads && c.k.sinks; h += 2)
		((float *)(uintptr_t)c.k.sinks)[h] = -INFINITY;
	kc_defer(c.k.out);
	if (c.parts)
		kc_defer(c.parts);
	KC_RUN(ATTN_CACHED, &c.k);
	check_zeros(&c);
	kc_reset();
}

/* _i: type of the cache, parts */
TEST_EACH(cached, steps_of_hidden_keys_give_0, 8)
{
	struct te_k_attn_step s = { 0 };
	struct cached c;

	do {
		kc_reset();
		c = cached_of(TE_DTYPE_BF16, _i & 1 ? TE_DTYPE_E4M3 : TE_DTYPE_BF16, 300, 0, 0);
	} while (c.k.head_dim % 16 || c.k.head_dim > TE_K_ATTN_STEP_CUDA_HEAD_DIM);
	c.k.rows = c.k.rows < NSEQS ? c.k.rows : NSEQS;
	c.k.nsplits = 1 << _i / 2;
	hide(&c);
	s.c = c.k;
	kc_defer(c.k.qkv);
	kc_defer(c.k.out);
	KC_RUN(ATTN_STEP, &s);
	check_zeros(&c);
	kc_reset();
}

TT_PAIR("kernels/attn_cached", TT_ONE_PROCESS)
