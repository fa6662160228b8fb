/*
 * t/kernels/attn_cases.c - attention forward and backward, by the reference function and by the
 * backend's kernel, each against an FP64 model with the same inputs.
 */
#include "config.h"

#include <math.h>

#include "attn_run.h"
#include "kernel_check.h"
#include "tt_ctx.h"

static void setup(void)
{
	kc_open(backend);
}

static const struct shape shapes[] = {
	{ 2, 1, 3, 1, 16, 0, 0 },
	{ 1, 7, 4, 2, 20, 0, 0 },
	{ 2, 63, 2, 2, 32, 0, 0 },
	{ 1, 64, 4, 1, 40, 0, 0 },
	{ 1, 65, 2, 1, 64, 0, 0 },
	{ 1, 129, 2, 2, 80, 0, 0 },
	{ 1, 256, 2, 1, 96, 0, 0 },
	{ 1, 1000, 1, 1, 128, 0, 0 },
	{ 3, 33, 6, 3, 1, 0, 0 },
	{ 1, 130, 2, 1, 3, 0, 0 },
	{ 1, 70, 2, 2, 127, 0, 0 },
	{ 1, 192, 4, 2, 64, 0, 0 },
	{ 1, 300, 2, 1, 32, 0, 0 },
	{ 2, 128, 1, 1, 128, 0, 0 },
	{ 1, 145, 6, 2, 72, 0, 0 },
	{ 3, 50, 4, 4, 8, 0, 0 },
	/* more than MAX_STRIPS (kernels/attn/launch.c); for GPUs, as the host has one variant */
	{ 34, 125, 1, 1, 24, 0, 0 },
	{ 7, 330, 2, 1, 64, 0, 0 },
	{ 17, 127, 2, 2, 88, 0, 0 },
	{ 34, 128, 1, 1, 128, 0, 0 },
	/* and enough blocks of 128 rows for half of a GPU's multiprocessors */
	{ 140, 20, 1, 1, 32, 0, 0 },
	{ 34, 129, 1, 1, 40, 0, 0 },
	{ 140, 17, 1, 1, 96, 0, 0 },
	{ 34, 129, 1, 1, 128, 0, 0 },
	{ 2, 500, 4, 2, 256, 0, 0 },
	{ 1, 260, 3, 1, 192, 0, 0 },
};
#define NSHAPES ((int)TT_LEN(shapes))
#define NSHAPES_HOST (NSHAPES - 10)

/* the most channels of a head */
static int most_channels(int32_t dtype)
{
	return strcmp(backend, "host") && dtype == TE_DTYPE_FP32 ? TE_K_ATTN_CUDA_HEAD_DIM_FP32 :
								   TE_K_ATTN_MAX_HEAD_DIM;
}

/* a type that the backend has for such heads: this one, else BF16 */
static int32_t type_for(const struct shape *s, int32_t dtype)
{
	return s->d > most_channels(dtype) ? TE_DTYPE_BF16 : dtype;
}

static struct shape wide_shape(void)
{
	const int nkv = (int)tt_rand_int(1, 2);

	return (struct shape){ tt_rand_int(1, 2), tt_rand_int(1, 140),
			       nkv * (int)tt_rand_int(1, 2), nkv,
			       tt_rand_int(0, 3) ? (int)tt_rand_int(129, 256) : 256, 0, 0 };
}

CASE(fp32, "numeric", .setup = setup, .teardown = kc_close);
CASE(bf16, "numeric", .setup = setup, .teardown = kc_close);
CASE(rules, "numeric", .setup = setup, .teardown = kc_close);

/* codes are those of out, whose bits do not depend on them, and out may be NULL */
TEST_EACH(rules, casts_what_it_computes, ON_HOST ? 4 * NSHAPES + 4 : 0, .from = 4 * NSHAPES)
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
	out = run_copy(kc_got(r.f.out), nbytes);
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

TEST_ALSO(rules, casts_what_it_computes, 2 * (2 * (!ON_HOST ? NSHAPES : NSHAPES_HOST)), .parts = 4);

static void agrees(int i, int32_t dtype)
{
	const uint32_t some = (uint32_t)tt_rand_int(1, 30000);

	run_check(&shapes[i / 2], type_for(&shapes[i / 2], dtype), i & 1 ? some : 0, 1.0f, 0);
}

TEST_EACH(fp32, fp32_agrees_with_fp64, 2 * (!ON_HOST ? NSHAPES : NSHAPES_HOST), .parts = 3)
{
	agrees(_i, TE_DTYPE_FP32);
}

TEST_EACH(bf16, bf16_agrees_with_fp64, 2 * (!ON_HOST ? NSHAPES : NSHAPES_HOST), .parts = 3)
{
	agrees(_i, TE_DTYPE_BF16);
}

CASE(more, "numeric", .setup = setup, .teardown = kc_close);

/* windows, softcaps, documents and full attention, each with each; _i: those, type, dropout */
TEST_EACH(more, more_agrees_with_fp64, 120, .parts = 8)
{
	const int n = strcmp(backend, "host") ? NSHAPES : NSHAPES_HOST;
	const int more = 1 + _i % 15;
	const uint32_t some = (uint32_t)tt_rand_int(1, 30000);
	const struct shape *s = &shapes[tt_rand_int(0, n - 1)];

	run_check(s, type_for(s, _i / 15 & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32),
	    _i / 30 & 1 ? some : 0, _i / 60 & 1 ? 6.0f : 1.0f, run_supported(more));
}

/* more than one block of keys, and a scratch with sums; _i: head_dim, window */
TEST_EACH(more, documents_of_several_blocks_agree_with_fp64, 4)
{
	const struct shape s = { tt_rand_int(1, 2), tt_rand_int(200, ON_HOST ? 300 : 700), 3, 1,
				 _i & 1 ? 128 : 64, 0, 0 };

	run_check(&s, TE_DTYPE_BF16, 0, 1.0f, DOCUMENTS | (_i & 2 ? WINDOW : 0));
}

/* _i: what it has more, type, dropout */
TEST_EACH(more, wide_heads_agree_with_fp64, 64, .parts = 8)
{
	const struct shape s = wide_shape();
	const uint32_t some = (uint32_t)tt_rand_int(1, 30000);

	run_check(&s, type_for(&s, _i / 16 & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32),
		  _i / 32 & 1 ? some : 0, 1.0f, run_supported(_i % 16));
}

/* heads that each kernel has, and few tokens if there are many heads */
static struct shape any_shape(int32_t dtype)
{
	static const int lens[] = { 20, 140, 420 };
	const int most = most_channels(dtype), kind = (int)tt_rand_int(0, 3);
	const int len = (int)tt_rand_int(0, 2), n = 3 - len;
	const int nkv = (int)tt_rand_int(1, n);

	return (struct shape){ tt_rand_int(1, n), tt_rand_int(1, lens[len]),
			       nkv * (int)tt_rand_int(1, 4), nkv,
			       kind == 0 ? 64 :
			       kind == 1 ? most / 2 * (int)tt_rand_int(1, 2) :
			       kind == 2 ? 8 * (int)tt_rand_int(1, most / 8) :
					   (int)tt_rand_int(1, most), 0, 0 };
}

CASE(random, "numeric", .setup = setup, .teardown = kc_close);

/*
 * Everything drawn at random. TT_ROUNDS=5000 CK_TIMEOUT_MULTIPLIER=100 CK_RUN_CASE=random runs that
 * many cases.
 */
TEST(random, any_case_agrees_with_fp64)
{
	const char *rounds = getenv("TT_ROUNDS");
	const int n = rounds ? atoi(rounds) : TT_FEWER(20);

	for (int i = 0; i < n; i++) {
		const int32_t dtype = tt_rand_int(0, 2) ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
		const struct shape s = any_shape(dtype);
		const uint32_t some = (uint32_t)tt_rand_int(1, 60000);
		static const float amplitudes[] = { 0.1f, 1.0f, 1.0f, 6.0f };

		run_check(&s, dtype, tt_rand_int(0, 2) ? 0 : some, amplitudes[tt_rand_int(0, 3)],
			  run_supported(tt_rand_int(0, 1) ? (int)tt_rand_int(1, 15) :
					tt_rand_int(0, 1) ? WINDOW : 0));
	}
}

/* each with each of what is not packed causal attention */
static void any_arguments(void)
{
	static const int sets[] = { ALL, SEPARATE | OFFSETS | FULL | RIGHT | BOTTOM | WINDOW,
				    BIAS | SINKS | ALIBI | CAP, SEPARATE | BOTTOM };
	const int32_t dtype = tt_rand_int(0, 1) ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct shape s = any_shape(dtype);
	const int more = run_supported((int)tt_rand_int(1, ALL) & sets[tt_rand_int(0, 3)]);

	if (more & SEPARATE) {
		s.S = tt_rand_int(0, 2) ? tt_rand_int(1, 200) : s.T;
		s.dv = tt_rand_int(0, 1) ? any_shape(dtype).d : s.d;
		s.batch = more & OFFSETS ? 1 : s.batch;
	}
	run_check(&s, dtype, tt_rand_int(0, 2) ? 0 : (uint32_t)tt_rand_int(1, 60000), 1.0f, more);
}

/* by TT_ROUNDS as above */
TEST(random, any_arguments_agree_with_fp64)
{
	const char *rounds = getenv("TT_ROUNDS");
	const int n = rounds ? atoi(rounds) : TT_FEWER(40);

	for (int i = 0; i < n; i++)
		any_arguments();
}

/* the sum of dout out, of the model */
static double loss_of(struct model *m, int64_t n)
{
	double sum = 0;

	memset(m->o, 0, (size_t)n * sizeof(*m->o));
	model_forward(m);
	for (int64_t i = 0; i < n; i++)
		sum += m->o[i] * m->dout[i];
	return sum;
}

static void differs_by(double up, double down, double gradient, const char *what, int64_t i)
{
	const double slope = (up - down) / 0x1p-7;

	ck_assert_msg(fabs(slope - gradient) < 1e-3 * (1 + fabs(gradient)), "%s %d: %g, not %g",
		      what, (int)i, gradient, slope);
}

static void check_floats(struct run *r, const float *x, const double *g, int64_t n,
			 const char *what)
{
	float *at = (float *)(uintptr_t)x;

	for (int64_t i = 0; i < n; i++) {
		const float was = at[i];
		double up;

		at[i] = was + 0x1p-8f;
		up = loss_of(&r->m, r->nout);
		at[i] = was - 0x1p-8f;
		differs_by(up, loss_of(&r->m, r->nout), g[i], what, i);
		at[i] = was;
	}
}

static void check_doubles(struct run *r, const struct operand *x, int64_t n, const char *what)
{
	for (int64_t i = 0; i < n; i++) {
		const double was = x->x[i];
		double up;

		x->x[i] = was + 0x1p-8;
		up = loss_of(&r->m, r->nout);
		x->x[i] = was - 0x1p-8;
		differs_by(up, loss_of(&r->m, r->nout), x->g[i], what, i);
		x->x[i] = was;
	}
}

/* the model's own gradients; _i: with a softcap, with slopes */
TEST_EACH(more, model_agrees_with_finite_differences, ON_HOST ? 4 : 0)
{
	const struct shape s = { 2, 5, 4, 2, 3, 6, 2 };
	const int more = SEPARATE | BIAS | SINKS | FULL | (_i & 1 ? CAP : 0) | (_i & 2 ? ALIBI : 0);
	struct run r = run_with(&s, TE_DTYPE_FP32, 0, 1.0f, more);
	const int64_t nbias = (r.m.bias_head ? s.nheads : 1) * s.T * s.S;
	float lse[40], delta[40];
	struct model *m = &r.m;

	m->dbias = model_doubles(m, nbias);
	m->dbias_err = model_doubles(m, nbias);
	memset(m->dsinks, 0, (size_t)s.nheads * sizeof(*m->dsinks));
	m->dout = model_values(m, TE_DTYPE_FP32, r.b.dout, r.nout);
	m->dout_abs = model_magnitudes(m, m->dout, r.nout);
	loss_of(m, r.nout);
	m->out = m->o;
	model_pre(m);
	for (int64_t i = 0; i < r.nlse; i++) {
		lse[i] = (float)m->lse[i];
		delta[i] = (float)m->delta[i];
	}
	model_backward(m, lse, delta);
	check_floats(&r, m->sinks, m->dsinks, s.nheads, "sink");
	check_floats(&r, m->bias, m->dbias, nbias, "bias");
	check_doubles(&r, &m->q, r.nqkv, "q");
	check_doubles(&r, &m->k, r.nk, "k");
	check_doubles(&r, &m->v, r.nv, "v");
	model_free(m);
	kc_reset();
}

/* scores of some hundreds: one probability of a row is nearly 1, nothing overflows */
TEST_EACH(rules, large_scores_do_not_overflow, 4)
{
	run_check(&shapes[_i / 2 ? 5 : 11], _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32, 0, 9.0f, 0);
}

TEST_EACH(rules, drops_nearly_everything, 2)
{
	run_check(&shapes[4], _i ? TE_DTYPE_BF16 : TE_DTYPE_FP32, 65000, 1.0f, 0);
}

static void check_all(const void *array, int32_t dtype, int64_t n, double want, const char *what)
{
	const void *side[] = { array, kc_got(array) };

	for (int s = 0; s < 2; s++)
		for (int64_t i = 0; i < n; i++) {
			const double x = tt_get(dtype, side[s], i);

			ck_assert_msg(isnan(want) ? isnan(x) : x == want,
				      "%s of the %s, element %d: %g, not %g", what,
				      s ? "kernel" : "reference", (int)i, x, want);
		}
}

/* BF16 kernels of GPUs for plain causal attention take finite scores */
TEST_EACH(rules, scores_of_minus_infinity_give_0, ON_HOST ? 2 : 1)
{
	const struct shape *s = &shapes[1];
	const int32_t dtype = _i ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct run r = run_of(s, dtype, 0, 1.0f);
	const int64_t nq = s->nheads * s->d, nk = s->nkv * s->d, row = run_row(s);

	for (int64_t i = 0; i < r.nqkv; i++)
		tt_set(dtype, (void *)(uintptr_t)r.f.qkv, i,
		       i % row < nq ? -3e38f : i % row < nq + nk ? 3e38f : 1.0f);
	run_forward(&r);
	check_all(r.f.out, dtype, r.nout, 0.0, "out");
	check_all(r.f.lse, TE_DTYPE_FP32, r.nlse, -INFINITY, "lse");
	run_launch_pre(&r);
	run_launch_dkv(&r);
	kc_defer(r.b.dqkv);
	KC_RUN(ATTN_BWD_DQ, &r.b);
	for (int64_t i = 0; i < r.nqkv; i++)
		ck_assert(tt_get(dtype, kc_got(r.b.dqkv), i) == 0.0);
	model_free(&r.m);
	kc_reset();
}

/* _i: type */
TEST_EACH(more, a_sink_of_nan_gives_nan, 2)
{
	const int32_t dtype = _i ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct run r = run_with(&shapes[1], dtype, 0, 1.0f, SINKS);

	for (int h = 0; h < shapes[1].nheads; h++)
		((float *)(uintptr_t)r.f.more.sinks)[h] = NAN;
	run_forward(&r);
	check_all(r.f.out, dtype, r.nout, NAN, "out");
	check_all(r.f.lse, TE_DTYPE_FP32, r.nlse, NAN, "lse");
	model_free(&r.m);
	kc_reset();
}

/*
 * Later tokens change no bit of earlier rows, and a repeated launch gives the same bits. A GPU
 * multiplies masked values by 0 (te_k.h), so later tokens are finite there.
 */
TEST_EACH(rules, later_tokens_change_nothing, 8)
{
	const struct shape *s = &shapes[_i & 2 ? 5 : 7];
	const int32_t dtype = _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct run r = run_of(s, dtype, _i & 4 ? 0 : 9000, 1.0f);
	const size_t w = te_dtype_nbytes((enum te_dtype)dtype);
	const int64_t cut = s->T - 1 - tt_rand_int(0, s->T / 2);
	const float later = strcmp(backend, "cuda") ? NAN : -70.0f;
	char *out, *lse;

	run_forward(&r);
	out = run_copy(kc_got(r.f.out), (size_t)r.nout * w);
	lse = run_copy(kc_got(r.f.lse), (size_t)r.nlse * 4);
	run_forward(&r);
	ck_assert_mem_eq(out, kc_got(r.f.out), (size_t)r.nout * w);
	ck_assert_mem_eq(lse, kc_got(r.f.lse), (size_t)r.nlse * 4);
	for (int64_t i = cut * run_row(s); i < s->T * run_row(s); i++)
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

/* tokens from to to - 1 of one sequence: out, dk and dv, dq and lse; released by the caller */
static char *results_of(struct run *r, int64_t from, int64_t to, size_t *ret_nbytes)
{
	int once = 0;
	const size_t w = te_dtype_nbytes((enum te_dtype)r->m.dtype);
	const size_t row = (size_t)run_row(&r->m.s) * w, orow = (size_t)(r->nout / r->m.s.T) * w;
	const size_t n = (size_t)(to - from);
	char *ret = malloc(n * (2 * row + orow + (size_t)r->m.s.nheads * 4)), *p = ret;

	ck_assert_ptr_nonnull(ret);
	run_forward(r);
	memcpy(p, (const char *)kc_got(r->f.out) + (size_t)from * orow, n * orow);
	p += n * orow;
	for (int h = 0; h < r->m.s.nheads; h++, p += n * 4)
		memcpy(p, (const float *)kc_got(r->f.lse) + h * r->m.s.T + from, n * 4);
	run_launch_pre(r);
	for (int i = 0; i < 2; i++) {
		const size_t skip = i ? 0 : orow, len = i ? orow : row - orow;

		if (!i) {
			once = run_launch_dkv(r);
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
	int64_t unused, diagonal;

	*ret_from = model_keys(&r->m, 0, at, &unused, &diagonal);
	*ret_to = at + 1;
	while (*ret_to < T && model_keys(&r->m, 0, *ret_to, &unused, &diagonal) == *ret_from)
		++*ret_to;
}

/*
 * What other documents contain changes no bit of a document. As above, it is finite on a GPU.
 * _i: type, dropout, softcap
 */
TEST_EACH(more, documents_do_not_see_each_other, 8)
{
	const int32_t dtype = _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	const struct shape s = { 1, tt_rand_int(2, 300), 2, 1,
				 (int)tt_rand_int(1, most_channels(dtype)), 0, 0 };
	struct run r = run_with(&s, dtype, _i & 2 ? 9000 : 0, 1.0f, _i & 4 ? CAP : 0);
	const float other = strcmp(backend, "cuda") ? NAN : -70.0f;
	int32_t *first = kc_poison(TE_DTYPE_INT32, s.T);
	const int64_t len = tt_rand_int(1, s.T);
	int64_t from, to;
	size_t nbytes, again;
	char *want, *got;

	for (int64_t i = 0; i < s.T; i++)
		first[i] = (int32_t)(i / len * len);
	r.m.first = r.f.first = r.b.first = first;
	choose_document(&r, &from, &to);
	want = results_of(&r, from, to, &nbytes);
	for (int64_t t = 0; t < s.T; t++) {
		if (t >= from && t < to)
			continue;
		for (int64_t i = 0; i < run_row(&s); i++)
			tt_set(dtype, (void *)(uintptr_t)r.f.qkv, t * run_row(&s) + i,
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

/* the host's promise, for documents at multiples of its tiles. _i: type, window and softcap */
TEST_EACH(more, a_document_has_the_bits_of_it_alone, ON_HOST ? 4 : 0)
{
	const int64_t from = 64 * tt_rand_int(0, 3), n = tt_rand_int(1, 150);
	const struct shape s = { 1, from + n + tt_rand_int(0, 70), 4, 2, 40, 0, 0 };
	const struct shape alone = { 1, n, 4, 2, 40, 0, 0 };
	const int32_t dtype = _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct run r = run_of(&s, dtype, 0, 1.0f), one = run_of(&alone, dtype, 0, 1.0f);
	const size_t w = te_dtype_nbytes((enum te_dtype)dtype);
	const size_t row = (size_t)run_row(&s) * w, orow = (size_t)s.nheads * (size_t)s.d * w;
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

/* over many masks, about the requested share is dropped */
TEST(rules, drops_the_requested_share)
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
			kept += model_factor(&m, 3, q, k) > 0;
	p = 1 - m.threshold / 65536.0;
	sigma = sqrt(p * (1 - p) / (double)(n * n));
	ck_assert(fabs((double)kept / (double)(n * n) - p) < 6 * sigma);
}
