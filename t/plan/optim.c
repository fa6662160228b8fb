/* t/plan/optim.c - te_adamw_*(3) on the host backend: against FP64, clipping, skips, state. */
#include "config.h"

#include <math.h>

#include <te/capture.h>
#include <te/checkpoint.h>
#include <te/errno.h>
#include <te/optim.h>
#include "kernels/te_k.h"

#include "tt_ctx.h"
#include "tt_num.h"

#define SIZE sizeof(struct te_adamw_opts)

static struct te_seq *seq;
static size_t n; /* of the flat buffers */

static struct te_seq *make_seq(struct te_ctx *c)
{
	/* 91 elements: padded to 128 */
	struct te_embedding_attrs ea = TE_ATTRS(embedding, 13, 7, 0, 0.5f, 0);
	struct te_bias_attrs ba = TE_ATTRS(bias, 7);
	struct te_seq *s;
	struct te_op *op;

	DO(te_seq_create(c, &s));
	DO(te_op_embedding(&ea, "emb", &op));
	tt_append(s, op);
	DO(te_op_bias(&ba, "b", &op));
	tt_append(s, op);
	return s;
}

static void setup(void)
{
	tt_setup();
	seq = make_seq(ctx);
	DO(te_seq_init(seq, tt_seed()));
	n = (size_t)te_tensor_nelems(te_seq_masters(seq));
}

static void teardown(void)
{
	seq = te_seq_unref(seq);
	tt_teardown();
}

/* gradients of all elements but the padding, which stays 0, as in a plan */
static void put_grads(float *g, float scale)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	memset(g, 0, n * sizeof(*g));
	for (int i = 0; i < te_seq_nweights(seq); i++) {
		DO(te_seq_weight(seq, i, &w));
		tt_fill_normal(g + w.offset_nelems, (size_t)te_tensor_nelems(w.master), scale);
	}
	DO(te_tensor_write(te_seq_grads(seq), g, n * sizeof(*g)));
}

static struct te_adamw *make(const struct te_adamw_opts *o)
{
	struct te_adamw *opt;

	DO(te_adamw_create(seq, o, &opt));
	return opt;
}

static void step(struct te_adamw *opt)
{
	DO(te_adamw_step(opt, st));
	DO(te_stream_sync(st));
}

static struct te_adamw_stats stats(struct te_adamw *opt)
{
	struct te_adamw_stats s = TE_ADAMW_STATS_INIT;

	DO(te_adamw_stats(opt, &s));
	return s;
}

/*
 * AdamW in FP64, Loshchilov and Hutter, algorithm 2 with eta = 1 and decay times the learning
 * rate. Betas, eps and the rest are the FP32 numbers the library was given.
 */
struct paper {
	double *w, *m, *v;
	int t;
};

static void paper_step(struct paper *p, const struct te_adamw_opts *o, const float *g, double lr)
{
	double b1 = o->beta1, b2 = o->beta2, norm = 0, clip = 1;
	size_t decayed = 128; /* the embedding and its padding; the bias is not decayed */

	for (size_t i = 0; i < n; i++)
		norm += (double)g[i] * g[i];
	norm = sqrt(norm);
	if (o->max_grad_norm > 0 && norm > o->max_grad_norm)
		clip = o->max_grad_norm / norm;
	p->t++;
	for (size_t i = 0; i < n; i++) {
		double gi = g[i] * clip;

		p->m[i] = b1 * p->m[i] + (1 - b1) * gi;
		p->v[i] = b2 * p->v[i] + (1 - b2) * gi * gi;
		p->w[i] -= lr * (p->m[i] / (1 - pow(b1, p->t)) /
					 (sqrt(p->v[i] / (1 - pow(b2, p->t))) + o->eps) +
				 (i < decayed ? o->weight_decay * p->w[i] : 0));
	}
}

CASE(adamw, "host numeric", .setup = setup, .teardown = teardown);

/*
 * The update u is at most 1/sqrt(1-b2) < 20 in magnitude and passes about 12 roundings, m's own
 * among them, which a sum of cancelling gradients amplifies: 2^-24 * 200 * lr a step bounds what
 * they move w by, and each step rounds w once more.
 */
TEST_EACH(adamw, follows_the_paper_for_20_steps, 3)
{
	static const struct te_adamw_opts opts[] = {
		TE_ADAMW_OPTS_INIT,
		{ .size = SIZE, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f },
		{ .size = SIZE, .beta1 = 0.8f, .beta2 = 0.99f, .eps = 1e-3f,
		  .weight_decay = 0.5f, .max_grad_norm = 0.01f },
	};
	const struct te_adamw_opts *o = &opts[_i];
	struct te_adamw *opt = make(o);
	float *g = malloc(n * sizeof(*g)), *w = tt_tensor_get(te_seq_masters(seq));
	struct paper p = { malloc(n * sizeof(double)), calloc(n, sizeof(double)),
			   calloc(n, sizeof(double)), 0 };

	for (size_t i = 0; i < n; i++)
		p.w[i] = w[i];
	free(w);
	for (int t = 1; t <= 20; t++) {
		float lr = 0.01f * (float)t;
		double norm = 0;
		struct te_adamw_stats s = TE_ADAMW_STATS_INIT;

		put_grads(g, t % 3 ? 1 : 0.001f);
		DO(te_adamw_set_lr(opt, st, lr));
		step(opt);
		paper_step(&p, o, g, lr);
		w = tt_tensor_get(te_seq_masters(seq));
		for (size_t i = 0; i < n; i++) {
			double bound = ldexp(200.0 * 0.2 * t + 2 * t * fabs(p.w[i]), -24);

			ck_assert_msg(fabs(w[i] - p.w[i]) <= bound,
				      "step %d: w[%zu] is %.9g, not %.9g +- %.3g", t, i,
				      (double)w[i], p.w[i], bound);
		}
		free(w);
		s = stats(opt);
		for (size_t i = 0; i < n; i++)
			norm += (double)g[i] * g[i];
		ck_assert_uint_eq(s.nsteps, (uint64_t)t);
		ck_assert_uint_eq(s.nskipped, 0);
		ck_assert_float_eq(s.lr, lr);
		ck_assert_int_le(tt_ulps_f32(s.grad_norm, (float)sqrt(norm)), 1);
	}
	free(g);
	free(p.w);
	free(p.m);
	free(p.v);
	te_adamw_unref(opt);
}

/* zero gradients: only decay moves a weight, and only where it is declared */
/* without weight decay the first step moves a weight by the rate, but for eps and roundings */
TEST(adamw, has_a_rate_from_the_start)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct te_adamw *opt;
	float *g = malloc(n * sizeof(*g)), *was = tt_tensor_get(te_seq_masters(seq)), *w;

	o.weight_decay = 0;
	opt = make(&o);
	ck_assert_float_eq(stats(opt).lr, 1e-3f);
	put_grads(g, 1);
	step(opt);
	w = tt_tensor_get(te_seq_masters(seq));
	for (size_t i = 0; i < n; i++)
		if (fabsf(g[i]) > 1e-2f)
			ck_assert_float_eq_tol(was[i] - w[i], g[i] > 0 ? 1e-3f : -1e-3f, 1e-5f);
	te_adamw_unref(opt);
	free(g);
	free(was);
	free(w);
}

TEST(adamw, decays_what_is_declared)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	float *g = calloc(n, sizeof(*g)), *before, *after;
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	float ones[7] = { 1, 1, 1, 1, 1, 1, 1 };
	struct te_adamw *opt;

	o.weight_decay = 0.5f;
	opt = make(&o);
	DO(te_seq_weight(seq, 1, &w));
	ck_assert_str_eq(w.name, "b.bias");
	DO(te_tensor_write(w.master, ones, sizeof(ones)));
	DO(te_tensor_write(te_seq_grads(seq), g, n * sizeof(*g)));
	before = tt_tensor_get(te_seq_masters(seq));
	DO(te_adamw_set_lr(opt, st, 0.5f));
	step(opt);
	after = tt_tensor_get(te_seq_masters(seq));
	for (size_t i = 0; i < n; i++) {
		if (i >= 128)
			ck_assert_float_eq(after[i], before[i]);
		else
			ck_assert_int_le(tt_ulps_f32(after[i], 0.75f * before[i]), 1);
	}
	free(g);
	free(before);
	free(after);
	te_adamw_unref(opt);
}

/* the sums of the other of two shards, at some place among them */
struct others {
	int ncalls, code;
	double sum;
};

static int put_others(void *arg, struct te_stream *stream, void *parts, size_t nbytes)
{
	struct others *o = arg;
	double *other = calloc(1, nbytes);
	int r;

	ck_assert_uint_eq(nbytes % sizeof(*other), 0);
	other[nbytes / sizeof(*other) - 5] = o->sum;
	r = te_copy(stream, parts, other, nbytes); /* of shard 0: this is shard 1 */
	if (r >= 0)
		r = te_stream_sync(stream);
	free(other);
	o->ncalls++;
	return o->code ? o->code : r;
}

/* the norm is of both shards, and a weight that both have is counted once */
TEST(adamw, shards_have_one_norm)
{
	struct te_adamw_shards sh = TE_ADAMW_SHARDS_INIT;
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	float *g = malloc(n * sizeof(*g)), *m;
	struct others other = { 0, 0, 50.0 };
	struct te_adamw *opt, *bare;
	uint8_t uncounted[2] = { 0, 1 };
	double want = other.sum;
	float norm, clip;

	o.max_grad_norm = 0.75f;
	opt = make(&o);
	sh.nshards = 2;
	sh.shard = 1;
	sh.gather = put_others;
	sh.arg = &other;
	sh.uncounted = uncounted;
	DO(te_adamw_set_shards(opt, &sh));
	memset(uncounted, 0xff, sizeof(uncounted)); /* were copied */
	put_grads(g, 1);
	DO(te_seq_weight(seq, 0, &w));
	for (int64_t i = 0; i < te_tensor_nelems(w.master); i++)
		want += (double)g[w.offset_nelems + i] * (double)g[w.offset_nelems + i];
	step(opt);
	norm = stats(opt).grad_norm;
	ck_assert_int_eq(other.ncalls, 1);
	ck_assert_double_le(fabs((double)norm - sqrt(want)), 2 * 0x1p-24 * sqrt(want));
	/* all gradients are clipped by it, counted or not */
	clip = (float)((double)o.max_grad_norm / sqrt(want));
	m = tt_tensor_get(te_adamw_m(opt));
	for (size_t i = 0; i < n; i++)
		ck_assert_int_le(tt_ulps_f32(m[i], (1.0f - o.beta1) * (g[i] * clip)), 3);
	free(m);
	/* a shard with a norm that is not finite ends the step of all */
	other.sum = INFINITY;
	step(opt);
	ck_assert_uint_eq(stats(opt).nskipped, 1);
	/* the callback's failure is that of the step */
	other.code = -EPIPE;
	ck_assert_int_eq(te_adamw_step(opt, st), -EPIPE);
	ck_assert_msg(strstr(te_error_detail(), "te_adamw_step: the gather of 2 shards") != NULL,
		      "%s", te_error_detail());
	te_adamw_unref(opt);

	bare = make(NULL);
	ck_assert_int_eq(te_adamw_set_shards(NULL, &sh), -EINVAL);
	ck_assert_int_eq(te_adamw_set_shards(bare, NULL), -EINVAL);
	sh.shard = 2;
	ck_assert_int_eq(te_adamw_set_shards(bare, &sh), -EINVAL);
	ck_assert_msg(strstr(te_error_detail(), "shard 2 of 2") != NULL, "%s", te_error_detail());
	sh.shard = 0;
	sh.gather = NULL;
	ck_assert_int_eq(te_adamw_set_shards(bare, &sh), -EINVAL);
	ck_assert_msg(strstr(te_error_detail(), "no gather") != NULL, "%s", te_error_detail());
	step(bare);
	te_adamw_unref(bare);
	free(g);
}

/* a gradient without a finite norm changes only the count of skipped steps; the next step is not
 * affected */
TEST_EACH(adamw, skips_gradients_that_are_not_finite, 3)
{
	static const float odd[] = { NAN, INFINITY, -INFINITY };
	struct te_adamw *opt = make(NULL);
	float *g = malloc(n * sizeof(*g)), *w[2], *m[2], *v[2];
	struct te_adamw_stats s = TE_ADAMW_STATS_INIT;

	DO(te_adamw_set_lr(opt, st, 0.01f));
	put_grads(g, 1);
	step(opt);
	w[0] = tt_tensor_get(te_seq_masters(seq));
	m[0] = tt_tensor_get(te_adamw_m(opt));
	v[0] = tt_tensor_get(te_adamw_v(opt));
	g[17] = odd[_i];
	DO(te_tensor_write(te_seq_grads(seq), g, n * sizeof(*g)));
	step(opt);
	w[1] = tt_tensor_get(te_seq_masters(seq));
	m[1] = tt_tensor_get(te_adamw_m(opt));
	v[1] = tt_tensor_get(te_adamw_v(opt));
	ck_assert_mem_eq(w[0], w[1], n * sizeof(float));
	ck_assert_mem_eq(m[0], m[1], n * sizeof(float));
	ck_assert_mem_eq(v[0], v[1], n * sizeof(float));
	s = stats(opt);
	ck_assert_uint_eq(s.nsteps, 1);
	ck_assert_uint_eq(s.nskipped, 1);
	ck_assert(!isfinite(s.grad_norm));
	put_grads(g, 1);
	step(opt);
	s = stats(opt);
	ck_assert_uint_eq(s.nsteps, 2);
	ck_assert_uint_eq(s.nskipped, 1);
	ck_assert(isfinite(s.grad_norm));
	for (int i = 0; i < 2; i++) {
		free(w[i]);
		free(m[i]);
		free(v[i]);
	}
	free(g);
	te_adamw_unref(opt);
}

static const float values[] = { 0.0f, 1.0f, -1.0f, 3e-5f, 448.0f, -0x1p-20f, 1e30f, INFINITY };

/* the formats of te_moments_*(3): sizes, and values that are read as what was stored */
TEST_EACH(adamw, moments_in_host_memory, 3)
{
	const int64_t sizes[] = { 0, 1, 63, 64, 65, 200 };
	const enum te_moments moments = (enum te_moments)_i;
	static const char *const fn[] = { "te_moments_to_fp32", "te_moments_from_fp32" };
	float x[200], y[200], z[200];
	uint8_t stored[800], again[800];

	for (size_t k = 0; k < TT_LEN(sizes); k++) {
		const int64_t len = sizes[k];
		const size_t nbytes = te_moments_nbytes(moments, len);
		const int64_t want[] = { 4 * len, 2 * len, len + (len + 63) / 64 };

		ck_assert_uint_eq(nbytes, (size_t)want[moments]);
		for (int second = 0; second < 2; second++) {
			for (int64_t i = 0; i < len; i++) {
				x[i] = i % 3 ? tt_rand_normal() : values[i / 3 % TT_LEN(values)];
				x[i] = second ? fabsf(x[i]) : x[i];
			}
			tt_poison(stored, sizeof(stored));
			memcpy(again, stored, sizeof(stored));
			DO(te_moments_from_fp32(moments, second, len, x, stored));
			ck_assert_mem_eq(stored + nbytes, again + nbytes, sizeof(stored) - nbytes);
			DO(te_moments_to_fp32(moments, second, len, stored, y));
			DO(te_moments_from_fp32(moments, second, len, y, again));
			DO(te_moments_to_fp32(moments, second, len, again, z));
			ck_assert_mem_eq(y, z, (size_t)len * sizeof(*y));
		}
	}
	ck_assert_uint_eq(te_moments_nbytes((enum te_moments)3, 1), 0);
	ck_assert_uint_eq(te_moments_nbytes(TE_MOMENTS_BF16, -1), 0);
	for (int to = 0; to < 2; to++) {
		int (*f)(enum te_moments, int, int64_t, const void *, float *) =
			te_moments_to_fp32;
		int (*g)(enum te_moments, int, int64_t, const float *, void *) =
			te_moments_from_fp32;
#define BAD(a, b, c, d, e) (to ? g(a, b, c, d, e) : f(a, b, c, d, e))
		ck_assert_int_eq(BAD((enum te_moments)3, 0, 1, x, y), -EINVAL);
		ck_assert_msg(strstr(te_error_detail(), fn[to]) != NULL, "%s", te_error_detail());
		ck_assert_int_eq(BAD(moments, 2, 1, x, y), -EINVAL);
		ck_assert_int_eq(BAD(moments, 0, -1, x, y), -EINVAL);
		ck_assert_int_eq(BAD(moments, 0, 1, NULL, y), -EINVAL);
		ck_assert_int_eq(BAD(moments, 0, 1, x, NULL), -EINVAL);
#undef BAD
	}
}

static void *dirty_alloc(void *user, size_t nbytes, void *native)
{
	void *p = NULL;

	if (!posix_memalign(&p, 256, nbytes))
		memset(p, 0xff, nbytes);
	return p;
}

static void dirty_free(void *user, void *ptr, size_t nbytes, void *native)
{
	free(ptr);
}

/* all bytes, though their number is odd: an exponent of 255 would make a moment NaN */
TEST(adamw, moments_begin_at_zero)
{
	struct te_alloc_ops alloc = TE_ALLOC_OPS_INIT;
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct te_adamw *opt;
	struct te_ctx *dirty;
	struct te_seq *s;

	alloc.device_alloc = dirty_alloc;
	alloc.device_free = dirty_free;
	co.backend = "host";
	co.alloc = &alloc;
	DO(te_ctx_create(&co, &dirty));
	s = make_seq(dirty);
	DO(te_seq_init(s, 1));
	o.moments = TE_MOMENTS_FP8;
	DO(te_adamw_create(s, &o, &opt));
	for (int second = 0; second < 2; second++) {
		const struct te_tensor *t = second ? te_adamw_v(opt) : te_adamw_m(opt);
		const uint8_t *p = te_tensor_data(t);

		ck_assert_uint_ne(te_tensor_nbytes(t) % 4, 0);
		for (size_t i = 0; i < te_tensor_nbytes(t); i++)
			ck_assert_msg(!p[i], "byte %zu of moment %d is %u", i, second, p[i]);
	}
	te_adamw_unref(opt);
	te_seq_unref(s);
	te_ctx_unref(dirty);
}

/* without weight decay, steps of constant gradients move weights as moments in FP32 do */
TEST_EACH(adamw, small_moments_move_weights_alike, 3, .from = 1)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	float *g = malloc(n * sizeof(*g)), *was = tt_tensor_get(te_seq_masters(seq)), *w[2];

	o.weight_decay = 0;
	o.max_grad_norm = 0;
	put_grads(g, 1);
	for (int small = 0; small < 2; small++) {
		struct te_adamw *opt;

		o.moments = small ? (enum te_moments)_i : TE_MOMENTS_FP32;
		ck_assert_uint_gt(te_adamw_nbytes(seq, &o),
				  2 * te_moments_nbytes(o.moments, (int64_t)n));
		opt = make(&o);
		DO(te_tensor_write(te_seq_masters(seq), was, n * sizeof(*was)));
		for (int t = 0; t < 40; t++)
			step(opt);
		w[small] = tt_tensor_get(te_seq_masters(seq));
		te_adamw_unref(opt);
	}
	/* 40 steps by 1e-3, each off by a few of the 1/8 that rounding may move a moment */
	for (size_t i = 0; i < n; i++)
		ck_assert_float_le(fabsf(w[0][i] - w[1][i]), fabsf(g[i]) < 1e-3f ? 0.04f : 0.012f);
	free(g);
	free(was);
	free(w[0]);
	free(w[1]);
}

/* weights, moments and blob continue a run bit for bit */
TEST_EACH(adamw, resumes_bit_for_bit, 3)
{
	const size_t nbytes = n * sizeof(float);
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	float *grads[6], *w, *want, *got;
	void *m, *v;
	struct te_adamw *opt, *again;
	size_t nstate = te_adamw_state_nbytes();
	void *state = malloc(nstate);
	struct te_adamw_stats s = TE_ADAMW_STATS_INIT;

	o.moments = (enum te_moments)_i;
	opt = make(&o);
	DO(te_adamw_set_lr(opt, st, 0.02f));
	for (int i = 0; i < 3; i++) {
		grads[i] = malloc(nbytes);
		put_grads(grads[i], 1);
		step(opt);
	}
	w = tt_tensor_get(te_seq_masters(seq));
	m = tt_bytes(te_tensor_data(te_adamw_m(opt)), te_tensor_nbytes(te_adamw_m(opt)));
	v = tt_bytes(te_tensor_data(te_adamw_v(opt)), te_tensor_nbytes(te_adamw_v(opt)));
	DO(te_adamw_state_get(opt, state, nstate));
	for (int i = 3; i < 6; i++) {
		grads[i] = malloc(nbytes);
		put_grads(grads[i], 1);
		step(opt);
	}
	want = tt_tensor_get(te_seq_masters(seq));
	te_adamw_unref(opt);

	again = make(&o);
	DO(te_tensor_write(te_seq_masters(seq), w, nbytes));
	DO(te_tensor_write(te_adamw_m(again), m, te_moments_nbytes(o.moments, (int64_t)n)));
	DO(te_tensor_write(te_adamw_v(again), v, te_moments_nbytes(o.moments, (int64_t)n)));
	DO(te_adamw_state_set(again, state, nstate));
	s = stats(again);
	ck_assert_uint_eq(s.nsteps, 3);
	ck_assert_float_eq(s.lr, 0.02f);
	for (int i = 3; i < 6; i++) {
		DO(te_tensor_write(te_seq_grads(seq), grads[i], nbytes));
		step(again);
	}
	got = tt_tensor_get(te_seq_masters(seq));
	ck_assert_mem_eq(want, got, nbytes);
	ck_assert_int_eq(te_adamw_state_get(again, state, nstate - 1), -EINVAL);
	ck_assert_int_eq(te_adamw_state_set(again, state, nstate + 1), -EINVAL);
	ck_assert_int_eq(te_adamw_state_set(again, NULL, nstate), -EINVAL);
	/* a damaged blob is refused and changes nothing */
	DO(te_adamw_state_get(again, state, nstate));
	for (size_t at = 2 * sizeof(uint64_t); at < nstate; at += sizeof(double)) {
		uint64_t was;

		memcpy(&was, (char *)state + at, sizeof(was));
		memset((char *)state + at, 0xff, sizeof(was));
		/* grad_norm, next to the rate, may have any value; the rate may not */
		ck_assert_int_eq(te_adamw_state_set(again, state, nstate), -TE_ECORRUPT);
		memcpy((char *)state + at, &was, sizeof(was));
	}
	ck_assert_uint_eq(stats(again).nsteps, 6);
	te_adamw_unref(again);
	for (int i = 0; i < 6; i++)
		free(grads[i]);
	free(state);
	free(w);
	free(m);
	free(v);
	free(want);
	free(got);
}

/* fields of a state, and what te_adamw_state_set returns for it */
static const struct {
	double beta1_t, beta2_t;
	float lr, clip;
	uint32_t skip;
	int r;
} states[] = {
	{ 1, 1, 0, 0, 0, 0 },
	{ 0, 0, 1, 1, 1, 0 },
	{ 1.5, 1, 0, 1, 0, -TE_ECORRUPT },
	{ -0.5, 1, 0, 1, 0, -TE_ECORRUPT },
	{ 1, 1.5, 0, 1, 0, -TE_ECORRUPT },
	{ 1, -0.5, 0, 1, 0, -TE_ECORRUPT },
	{ 1, 1, -1, 1, 0, -TE_ECORRUPT },
	{ 1, 1, INFINITY, 1, 0, -TE_ECORRUPT },
	{ 1, 1, NAN, 1, 0, -TE_ECORRUPT },
	{ 1, 1, 0, 1.5f, 0, -TE_ECORRUPT },
	{ 1, 1, 0, -0.5f, 0, -TE_ECORRUPT },
	{ 1, 1, 0, 1, 2, -TE_ECORRUPT },
};

/* each field of the state alone, at the ends of its range and outside of it */
TEST_EACH(adamw, checks_each_field_of_a_state, TT_LEN(states))
{
	struct te_adamw *opt = make(NULL);
	struct te_k_adamw_state want, s, got;

	DO(te_adamw_state_get(opt, &want, sizeof(want)));
	s = want;
	s.beta1_t = states[_i].beta1_t;
	s.beta2_t = states[_i].beta2_t;
	s.lr = states[_i].lr;
	s.clip = states[_i].clip;
	s.skip = states[_i].skip;
	ck_assert_int_eq(te_adamw_state_set(opt, &s, sizeof(s)), states[_i].r);
	DO(te_adamw_state_get(opt, &got, sizeof(got)));
	ck_assert_mem_eq(&got, states[_i].r ? &want : &s, sizeof(got));
	te_adamw_unref(opt);
}

/* a captured step uses a learning rate that is set later, and is counted */
TEST(adamw, a_captured_step_needs_no_host_work)
{
	struct te_adamw *opt = make(NULL), *eager;
	float *g = malloc(n * sizeof(*g)), *start = tt_tensor_get(te_seq_masters(seq)), *want, *got;
	struct te_recording *rec;

	put_grads(g, 1);
	DO(te_capture_begin(st));
	DO(te_adamw_step(opt, st));
	DO(te_capture_end(st, &rec));
	for (int i = 0; i < 4; i++) {
		DO(te_adamw_set_lr(opt, st, 0.01f * (float)(i + 1)));
		DO(te_recording_launch(rec, st));
	}
	DO(te_stream_sync(st));
	ck_assert_uint_eq(stats(opt).nsteps, 4);
	got = tt_tensor_get(te_seq_masters(seq));
	DO(te_tensor_write(te_seq_masters(seq), start, n * sizeof(*start)));
	eager = make(NULL);
	for (int i = 0; i < 4; i++) {
		DO(te_adamw_set_lr(eager, st, 0.01f * (float)(i + 1)));
		step(eager);
	}
	want = tt_tensor_get(te_seq_masters(seq));
	ck_assert_mem_eq(got, want, n * sizeof(*got));
	te_recording_unref(rec);
	te_adamw_unref(opt);
	te_adamw_unref(eager);
	free(g);
	free(start);
	free(want);
	free(got);
}

/* ---- parts ---- */

static struct {
	int ncalls, r; /* r: what the gather returns */
	size_t nbytes;
} gathered;

/* an exchange in which the other parts send nothing */
static int gather(void *arg, struct te_stream *stream, void *all, size_t nbytes)
{
	ck_assert(arg == &gathered && stream && all);
	gathered.ncalls++;
	gathered.nbytes += nbytes;
	return gathered.r;
}

static struct te_adamw_opts opts_of_part(int nparts, int part)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;

	o.nparts = nparts;
	o.part = part;
	o.gather = gather;
	o.gather_arg = &gathered;
	gathered.ncalls = gathered.r = 0;
	gathered.nbytes = 0;
	return o;
}

/* 0 to 2: not of this part, its own, of all parts */
static int owner(size_t i, size_t nparts, size_t part)
{
	const size_t own = n / 64 / nparts * 64;

	return i >= nparts * own ? 2 : i / own == part;
}

/* a step and its moments: the bits of one part in the elements that the part updates */
TEST_EACH(adamw, a_part_updates_its_weights, 9)
{
	const int nparts = 2 + _i % 3; /* blocks of 64: 1 each and a tail, 1 each, only a tail */
	const size_t own = n / 64 / (size_t)nparts * 64;
	float *g = malloc(n * sizeof(*g)), *was = tt_tensor_get(te_seq_masters(seq)), *want, *got;
	struct te_adamw_opts o = opts_of_part(nparts, 0), whole = TE_ADAMW_OPTS_INIT;
	const size_t nbytes = te_moments_nbytes((enum te_moments)(_i / 3), (int64_t)n);
	char *m = malloc(nbytes), *back = malloc(nbytes);
	struct te_adamw *opt;

	o.moments = whole.moments = (enum te_moments)(_i / 3);
	put_grads(g, 1);
	opt = make(&whole);
	step(opt);
	step(opt);
	want = tt_tensor_get(te_seq_masters(seq));
	DO(te_adamw_moments_get(opt, 1, m));
	ck_assert_mem_eq(m, te_tensor_data(te_adamw_v(opt)), nbytes);
	te_adamw_unref(opt);
	for (o.part = 0; o.part < nparts; o.part++) {
		DO(te_tensor_write(te_seq_masters(seq), was, n * sizeof(*was)));
		gathered.ncalls = 0;
		gathered.nbytes = 0;
		opt = make(&o);
		step(opt);
		step(opt);
		ck_assert_int_eq(gathered.ncalls, own ? 2 : 0);
		ck_assert_uint_eq(gathered.nbytes, 2 * own * sizeof(*was));
		got = tt_tensor_get(te_seq_masters(seq));
		for (size_t i = 0; i < n; i++)
			ck_assert(!memcmp(&got[i], owner(i, (size_t)nparts, (size_t)o.part) ?
							   &want[i] : &was[i], sizeof(*got)));
		free(got);
		/* the part of a moment that this one has */
		memset(back, 0x55, nbytes);
		DO(te_adamw_moments_get(opt, 1, back));
		DO(te_adamw_moments_get(opt, 1, NULL));
		for (size_t i = 0; i < n && o.moments == TE_MOMENTS_FP32; i++)
			if (owner(i, (size_t)nparts, (size_t)o.part))
				ck_assert_mem_eq(back + 4 * i, m + 4 * i, 4);
		/* it keeps its part of another one */
		DO(te_adamw_moments_set(opt, 0, m));
		ck_assert_mem_eq(te_tensor_data(te_adamw_m(opt)), te_tensor_data(te_adamw_v(opt)),
				 te_tensor_nbytes(te_adamw_m(opt)));
		te_adamw_unref(opt);
	}
	free(g);
	free(was);
	free(want);
	free(m);
	free(back);
}

TEST(adamw, a_part_tells_what_failed)
{
	const struct te_adamw_opts o = opts_of_part(2, 1);
	struct te_adamw *opt = make(&o);
	char m[4096];

	gathered.r = -EIO;
	ck_assert_int_eq(te_adamw_step(opt, st), -EIO);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "te_adamw_step: the gather of parts"));
	fails(te_adamw_moments_get(opt, 0, m), -EIO,
	      "te_adamw_moments_get: the gather of parts returned -5");
	fails(te_adamw_moments_get(opt, 2, m), -EINVAL,
	      "te_adamw_moments_get: second is neither 0 nor 1");
	fails(te_adamw_moments_get(NULL, 0, m), -EINVAL, "te_adamw_moments_get: opt is NULL");
	fails(te_adamw_moments_set(opt, 0, NULL), -EINVAL, "te_adamw_moments_set: src is NULL");
	ck_assert_int_eq(te_adamw_moments_set(opt, -1, m), -EINVAL);
	ck_assert_int_eq(te_adamw_moments_set(NULL, 0, m), -EINVAL);
	ck_assert_int_eq(te_checkpoint_save(seq, opt, "none"), -EOPNOTSUPP);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "one of 2 parts of the moments"));
	ck_assert_int_eq(te_checkpoint_load(seq, opt, "none", 0, NULL), -EOPNOTSUPP);
	te_adamw_unref(opt);
}

static const struct {
	struct te_adamw_opts o;
	const char *words;
} bad[] = {
	{ { .size = SIZE + 8 }, "bytes" },
	{ { .size = SIZE, .beta1 = 1 }, "beta1 1" },
	{ { .size = SIZE, .beta2 = -0.5f }, "beta2 -0.5" },
	{ { .size = SIZE, .beta1 = NAN }, "beta1 nan" },
	{ { .size = SIZE, .eps = -1 }, "eps" },
	{ { .size = SIZE, .weight_decay = INFINITY }, "weight_decay" },
	{ { .size = SIZE, .max_grad_norm = NAN }, "max_grad_norm" },
	{ { .size = SIZE, .moments = 3 }, "moments 3" },
	{ { .size = SIZE, .flags = 2 }, "flags 0x2" },
	{ { .size = SIZE, .nparts = -1 }, "part 0 of -1 parts" },
	{ { .size = SIZE, .nparts = 2, .part = 2 }, "part 2 of 2 parts" },
	{ { .size = SIZE, .part = 1 }, "part 1 of 0 parts" },
	{ { .size = SIZE, .nparts = 2, .part = 1 }, "2 parts, and no gather" },
};

TEST_EACH(adamw, names_the_option_at_fault, TT_LEN(bad))
{
	struct te_adamw *opt;

	ck_assert_int_eq(te_adamw_create(seq, &bad[_i].o, &opt), -EINVAL);
	ck_assert_msg(strstr(te_error_detail(), bad[_i].words) != NULL, "%s", te_error_detail());
}

TEST(adamw, refuses_what_it_cannot_do)
{
	struct te_seq *raw = make_seq(ctx);
	struct te_adamw *opt = NULL;
	struct te_ctx *other;

	DO(tt_ctx_new(&other));
	ck_assert_int_eq(te_adamw_create(raw, NULL, &opt), -TE_ESTATE);
	ck_assert_int_eq(te_adamw_create(NULL, NULL, &opt), -EINVAL);
	ck_assert_int_eq(te_adamw_create(seq, NULL, NULL), -EINVAL);
	ck_assert_ptr_null(opt);
	te_seq_unref(raw);
	opt = make(NULL);
	ck_assert_int_eq(te_adamw_set_lr(opt, st, -1), -EINVAL);
	ck_assert_int_eq(te_adamw_set_lr(opt, st, NAN), -EINVAL);
	fails(te_adamw_set_lr(opt, NULL, 1), -EINVAL, "te_adamw_set_lr: the stream is NULL");
	fails(te_adamw_set_lr(opt, te_ctx_stream(other), 1), -EINVAL,
	      "te_adamw_set_lr: the stream belongs to another context");
	fails(te_adamw_step(opt, NULL), -EINVAL, "te_adamw_step: the stream is NULL");
	fails(te_adamw_step(opt, te_ctx_stream(other)), -EINVAL,
	      "te_adamw_step: the stream belongs to another context");
	fails(te_adamw_step(NULL, st), -EINVAL, "te_adamw_step: opt is NULL");
	ck_assert_int_eq(te_adamw_stats(opt, NULL), -EINVAL);
	ck_assert_ptr_eq(te_adamw_ref(opt), opt);
	ck_assert_ptr_null(te_adamw_unref(opt));
	ck_assert_ptr_null(te_adamw_unref(opt));
	ck_assert_ptr_null(te_adamw_unref(NULL));
	te_ctx_unref(other);
}

/* includes the context, because streams keep memory that they have grown */
static int build_all(struct te_ctx **ret_ctx, struct te_seq **ret_seq, struct te_op **ret_op,
		     struct te_adamw **ret_opt)
{
	struct te_bias_attrs ba = TE_ATTRS(bias, 130);
	struct te_adamw_opts o;
	char m[256];
	int r;

	r = tt_ctx_new(ret_ctx);
	if (r >= 0)
		r = te_seq_create(*ret_ctx, ret_seq);
	if (r >= 0)
		r = te_op_bias(&ba, "b", ret_op);
	if (r >= 0)
		r = te_seq_append(*ret_seq, *ret_op);
	if (r >= 0)
		r = te_seq_init(*ret_seq, 1);
	o = opts_of_part(2, 1);
	o.moments = TE_MOMENTS_FP8;
	if (r >= 0)
		r = te_adamw_create(*ret_seq, &o, ret_opt);
	if (r >= 0)
		r = te_adamw_moments_get(*ret_opt, 0, m);
	return r < 0 ? r : te_adamw_moments_set(*ret_opt, 1, m);
}

static int create(void)
{
	struct te_adamw *opt = NULL;
	struct te_ctx *c = NULL;
	struct te_seq *s = NULL;
	struct te_op *op = NULL;
	int r = build_all(&c, &s, &op, &opt);

	te_adamw_unref(opt);
	te_op_unref(op);
	te_seq_unref(s);
	te_ctx_unref(c);
	return r;
}

CASE(faults, "host");

TEST(faults, survives_every_failed_allocation)
{
	ck_assert_int_ge(tt_fault_each(create), 20);
}

TT_MAIN("plan/optim", TT_ONE_PROCESS)
