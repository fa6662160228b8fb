/*
 * t/kernels/attn_cases.c - attention forward and backward, by the reference function and by the
 * backend's kernel, each against an FP64 model with the same inputs.
 */
#include "config.h"

#include <math.h>

#include "attn_model.h"
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

static int64_t row_of(const struct shape *s)
{
	return (int64_t)(s->nheads + 2 * s->nkv) * s->d;
}

/* what a case has more than packed causal attention */
enum {
	WINDOW = 1,
	CAP = 2,
	DOCUMENTS = 4,
	FULL = 8,
	RIGHT = 16,
	BOTTOM = 32,
	BIAS = 64,
	ALIBI = 128,
	SINKS = 256,
	SEPARATE = 512, /* q, k, v at any strides, of other lengths and widths */
	OFFSETS = 1024, /* with SEPARATE */
	ALL = 2047,
};

/* what the backend's kernels have, and what excludes each other */
static int supported(int more)
{
	if (!strcmp(backend, "cuda") && more & CAP)
		more &= ~(BIAS | ALIBI);
	if (more & SEPARATE)
		more &= ~DOCUMENTS;
	else
		more &= ~OFFSETS;
	return more & RIGHT ? more | FULL : more;
}

/* compare n elements of the reference's array and of the kernel's result with the model */
static void near(const struct model *m, int32_t dtype, const void *array, const double *want,
		 const double *err, int64_t n, const char *what)
{
	const void *side[] = { array, kc_got(array) };
	const size_t w = te_dtype_nbytes((enum te_dtype)dtype);

	for (int k = 0; k < 2; k++)
		for (int64_t i = 0; i < n; i++) {
			double x = tt_get(dtype, side[k], i);
			/* below FP32's subnormals */
			double tol = err[i] + tt_unit(dtype) * (fabs(want[i]) + err[i]) + 0x1p-126;

			if (err[i] < 0 ? tt_is_poison((const char *)side[k] + (size_t)i * w, w) :
					 x == want[i] || fabs(x - want[i]) <= tol)
				continue;
			ck_abort_msg("T %d, S %d, heads %d/%d, d %d/%d, %s, threshold %u, window "
				     "%d, softcap %g, full %d, right %d, bottom %d%s%s%s%s%s: %s "
				     "of the %s, element %lld: %.9g, not %.9g within %.3g",
				     (int)m->s.T, (int)m->s.S, m->s.nheads, m->s.nkv, m->s.d,
				     m->s.dv, te_dtype_name((enum te_dtype)m->dtype), m->threshold,
				     m->window, m->softcap, m->full, m->right, m->bottom,
				     m->first ? ", documents" : "", m->bias ? ", bias" : "",
				     m->slopes ? ", slopes" : "", m->sinks ? ", sinks" : "",
				     m->q_offsets ? ", offsets" : "", what,
				     k ? "kernel" : "reference", (long long)i, x, want[i], tol);
		}
}

/* ---- a case ---- */

struct run {
	struct model m;
	struct te_k_attn_fwd f;
	struct te_k_attn_bwd b;
	int64_t nqkv, nk, nv, nout, nlse; /* nqkv: separate: elements of q */
	float *dsinks;
};

/* first keys of documents of 1 to most tokens; bad: some are out of range */
static const int32_t *documents(const struct shape *s, int64_t most, int bad)
{
	int32_t *first = kc_poison(TE_DTYPE_INT32, s->batch * s->T);
	const int64_t n = s->batch * s->T;

	for (int64_t i = 0; i < n;) {
		const int64_t at = i % s->T, len = tt_rand_int(1, most);
		const int out = bad && tt_rand_int(0, 9) == 0;

		for (int64_t k = 0; k < len && at + k < s->T; k++, i++)
			first[i] = !out ? (int32_t)at :
				   k % 2 ? INT32_MAX - (int32_t)k : INT32_MIN + (int32_t)k;
	}
	return first;
}

static int ascending(const void *x, const void *y)
{
	const int32_t *a = x, *b = y;

	return (*a > *b) - (*a < *b);
}

/* n + 1 offsets; some tokens may be in no sequence, and some sequences empty */
static const int32_t *offsets(int n, int64_t ntokens, int64_t beyond)
{
	int32_t *x = kc_poison(TE_DTYPE_INT32, n + 1);

	for (int i = 0; i <= n; i++)
		x[i] = (int32_t)tt_rand_int(0, ntokens + beyond);
	if (tt_rand_int(0, 1))
		x[0] = 0;
	qsort(x, (size_t)n + 1, sizeof(*x), ascending);
	return x;
}

static float *words_of(int64_t n, float lo, float hi)
{
	float *x = kc_poison(TE_DTYPE_FP32, n);

	for (int64_t i = 0; i < n; i++)
		x[i] = tt_rand_float(lo, hi);
	return x;
}

/* scores' parts, the same for both passes */
static void add_scores(struct run *r, int more)
{
	const struct shape *s = &r->m.s;
	struct te_k_attn_more *x = &r->f.more;

	if (more & BIAS) {
		float *bias;

		x->bias_head = tt_rand_int(0, 1) ? s->T * s->S : 0;
		bias = words_of((x->bias_head ? s->nheads : 1) * s->T * s->S, -2.0f, 2.0f);
		for (int64_t i = 0; i < s->T * s->S; i++)
			if (!tt_rand_int(0, 19))
				bias[i] = -INFINITY;
		x->bias = bias;
	}
	if (more & ALIBI)
		x->slopes = words_of(s->nheads, 0.0f, 0.5f);
	if (more & SINKS)
		x->sinks = words_of(s->nheads, -3.0f, 3.0f);
}

static void add_more(struct run *r, int more)
{
	const struct shape *s = &r->m.s;
	const int64_t longer = s->T > s->S ? s->T : s->S;
	struct te_k_attn_more *x = &r->f.more;

	if (more & WINDOW)
		r->m.window = (int32_t)tt_rand_int(1, tt_rand_int(0, 1) ? 9 : longer + 3);
	if (more & CAP)
		r->m.softcap = (double)tt_rand_float(0.5f, 30.0f);
	if (more & DOCUMENTS)
		r->m.first = documents(s, tt_rand_int(1, s->T), !(more & FULL));
	r->m.full = !!(more & FULL);
	x->right = more & RIGHT ? (int32_t)tt_rand_int(1, tt_rand_int(0, 1) ? 9 : longer + 3) : 0;
	x->bottom = !!(more & BOTTOM);
	if (more & OFFSETS) {
		x->nseqs = (int32_t)tt_rand_int(1, 5);
		x->q_offsets = offsets(x->nseqs, s->T, 0);
		if (s->T != s->S || tt_rand_int(0, 1))
			x->k_offsets = offsets(x->nseqs, s->S, tt_rand_int(0, 1) ? 9 : 0);
	}
	add_scores(r, more);
	if (more & ~WINDOW)
		r->b.sums = NULL;
	r->b.more = r->f.more;
	if (x->bias && tt_rand_int(0, 3) && strcmp(backend, "cuda") != 0)
		r->b.dbias = kc_poison(TE_DTYPE_FP32, (x->bias_head ? s->nheads : 1) * s->T * s->S);
	if (x->sinks)
		r->dsinks = kc_normal(TE_DTYPE_FP32, s->nheads, 1.0f);
	r->f.window = r->b.window = r->m.window;
	r->f.softcap = r->b.softcap = (float)r->m.softcap;
	r->f.first = r->b.first = r->m.first;
	r->f.full = r->b.full = r->m.full;
	r->m.right = x->right;
	r->m.bottom = x->bottom;
	r->m.q_offsets = x->q_offsets;
	r->m.k_offsets = x->k_offsets;
	r->m.nseqs = x->nseqs;
	r->m.bias = x->bias;
	r->m.bias_head = x->bias_head;
	r->m.slopes = x->slopes;
	r->m.sinks = x->sinks;
	if (r->b.dbias) {
		r->m.dbias = model_doubles(&r->m, s->nheads * s->T * s->S);
		r->m.dbias_err = model_doubles(&r->m, s->nheads * s->T * s->S);
	}
	if (r->dsinks) {
		r->m.dsinks = model_values(&r->m, TE_DTYPE_FP32, r->dsinks, s->nheads);
		r->m.dsinks_err = model_doubles(&r->m, s->nheads);
	}
}

/* arrays with any order of extents, and gaps; *ret_n: elements */
static struct te_k_strides any_strides(int64_t batch, int64_t ntokens, int64_t nheads, int64_t d,
				       int64_t *ret_n)
{
	const int64_t wide = d + 8 * tt_rand_int(0, 1);
	struct te_k_strides s;

	switch (tt_rand_int(0, 2)) {
	case 0: /* bshd */
		s = (struct te_k_strides){ ntokens * nheads * wide, nheads * wide, wide };
		break;
	case 1: /* sbhd */
		s = (struct te_k_strides){ nheads * wide, batch * nheads * wide, wide };
		break;
	default: /* bhsd */
		s = (struct te_k_strides){ ntokens * nheads * wide, wide, ntokens * wide };
		break;
	}
	*ret_n = (batch - 1) * s.batch + (ntokens - 1) * s.token + (nheads - 1) * s.head + d;
	return s;
}

/* gradient: of an array that several operands may be in */
static struct operand operand_of(struct model *m, const void *p, int64_t n, struct te_k_strides s,
				 int64_t ntokens, int nheads, int d)
{
	struct operand x = { .s = s };

	x.x = model_values(m, m->dtype, p, n);
	x.abs = model_magnitudes(m, x.x, n);
	x.g = model_doubles(m, n);
	x.g_err = model_errors(m, n, s, 0, ntokens, nheads, d);
	return x;
}

static void add_packed(struct run *r, float amplitude)
{
	const struct shape *s = &r->m.s;
	const struct te_k_strides all = { s->T * row_of(s), row_of(s), s->d };
	struct model *m = &r->m;

	r->nqkv = s->batch * s->T * row_of(s);
	r->f.qkv = kc_normal(m->dtype, r->nqkv, amplitude);
	r->b.dqkv = kc_poison(m->dtype, r->nqkv);
	m->q = m->k = m->v = operand_of(m, r->f.qkv, r->nqkv, all, s->T, s->nheads + 2 * s->nkv,
					s->d);
	m->k.at = (int64_t)s->nheads * s->d;
	m->v.at = m->k.at + (int64_t)s->nkv * s->d;
}

static void add_separate(struct run *r, float amplitude)
{
	const struct shape *s = &r->m.s;
	struct te_k_attn_more *x = &r->f.more;
	struct model *m = &r->m;

	x->klen = s->S;
	x->head_dim_v = s->dv;
	x->qs = any_strides(s->batch, s->T, s->nheads, s->d, &r->nqkv);
	x->ks = any_strides(s->batch, s->S, s->nkv, s->d, &r->nk);
	x->vs = any_strides(s->batch, s->S, s->nkv, s->dv, &r->nv);
	r->f.qkv = kc_normal(m->dtype, r->nqkv, amplitude);
	x->k = kc_normal(m->dtype, r->nk, amplitude);
	x->v = kc_normal(m->dtype, r->nv, amplitude);
	r->b.dqkv = kc_poison(m->dtype, r->nqkv);
	r->b.dk = kc_poison(m->dtype, r->nk);
	r->b.dv = kc_poison(m->dtype, r->nv);
	m->q = operand_of(m, r->f.qkv, r->nqkv, x->qs, s->T, s->nheads, s->d);
	m->k = operand_of(m, x->k, r->nk, x->ks, s->S, s->nkv, s->d);
	m->v = operand_of(m, x->v, r->nv, x->vs, s->S, s->nkv, s->dv);
}

static struct run run_with(const struct shape *shape, int32_t dtype, uint32_t threshold,
			   float amplitude, int more)
{
	struct run r = { .m = { .s = *shape, .dtype = dtype, .threshold = threshold } };
	struct shape *s = &r.m.s;
	const float scale = tt_rand_float(0.5f, 1.5f) / sqrtf((float)s->d);
	uint64_t *words = kc_poison(TE_DTYPE_UINT8, 16);
	const uint32_t tag = (uint32_t)tt_rand_u64();

	s->S = s->S ? s->S : s->T;
	s->dv = s->dv ? s->dv : s->d;
	r.nlse = s->batch * s->T * s->nheads;
	words[0] = r.m.words[0] = tt_rand_u64();
	words[1] = r.m.words[1] = (uint64_t)tt_rand_int(0, 1 << 30);
	r.m.scale = (double)scale;
	r.m.w = dtype == TE_DTYPE_BF16 ? 0x1p-8 : 0;
	r.m.tag = tag;
	r.m.first_head = tt_rand_int(0, 5);
	r.m.other_heads = tt_rand_int(5, 9);
	if (more & SEPARATE) {
		add_separate(&r, amplitude);
		r.m.os = any_strides(s->batch, s->T, s->nheads, s->dv, &r.nout);
		r.f.more.os = r.m.os;
	} else {
		add_packed(&r, amplitude);
		r.m.os = (struct te_k_strides){ s->T * s->nheads * s->d, (int64_t)s->nheads * s->d,
						s->d };
		r.nout = s->batch * s->T * s->nheads * s->d;
	}
	r.f = (struct te_k_attn_fwd){
		.qkv = r.f.qkv,
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
		.more = r.f.more,
	};
	r.b = (struct te_k_attn_bwd){
		.qkv = r.f.qkv,
		.out = r.f.out,
		.dout = kc_normal(dtype, r.nout, 1.0f),
		.lse = r.f.lse,
		.delta = kc_poison(TE_DTYPE_FP32, r.nlse),
		.dqkv = r.b.dqkv,
		.dk = r.b.dk,
		.dv = r.b.dv,
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
	r.m.o = model_doubles(&r.m, r.nout);
	r.m.o_err = model_errors(&r.m, r.nout, r.m.os, 0, s->T, s->nheads, s->dv);
	r.m.lse = model_doubles(&r.m, r.nlse);
	r.m.lse_err = model_doubles(&r.m, r.nlse);
	r.m.delta = model_doubles(&r.m, r.nlse);
	r.m.delta_err = model_doubles(&r.m, r.nlse);
	if (dtype == TE_DTYPE_BF16 && (s->d == 64 || s->d == 128) && !threshold)
		r.b.sums = kc_poison(TE_DTYPE_UINT8, te_k_attn_sums_nbytes(&r.b));
	add_more(&r, more);
	return r;
}

static struct run run_of(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude)
{
	return run_with(s, dtype, threshold, amplitude, 0);
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
	       s->d % 8 == 0 && s->d <= 128 && s->batch * s->nheads * ((s->T + 15) / 16) <= 264;
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
	model_pre(&r->m);
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

/* dk and dv in one array, and in the other launch dq, which is copied next to them */
static void check_packed(struct run *r, int strips)
{
	const struct shape *s = &r->m.s;
	const size_t w = te_dtype_nbytes((enum te_dtype)r->m.dtype), nbytes = (size_t)r->nqkv * w;
	const int64_t nq = (int64_t)s->nheads * s->d;
	char *before = copy_of(r->b.dqkv, nbytes);
	const int once = launch_dkv(r) || strips;

	if (!once)
		untouched(r, before, 0, nq);
	free(before);
	before = copy_of(kc_got(r->b.dqkv), nbytes);
	/* copy the reference's k and v parts next to its q part, to compare all of dqkv at once */
	kc_defer(r->b.dqkv);
	kc_defer(r->b.dbias);
	KC_RUN(ATTN_BWD_DQ, &r->b);
	for (int64_t t = 0; t < s->batch * s->T; t++) {
		const size_t at = (size_t)(t * row_of(s) + nq) * w;
		const size_t n = (size_t)(row_of(s) - nq) * w;
		char *got = (char *)(uintptr_t)kc_got(r->b.dqkv);

		ck_assert_msg(!memcmp(got + at, (char *)r->b.dqkv + at, n),
			      "row %d: dq is written outside of its part", (int)t);
		memcpy(got + at, before + at, n);
		if (once) {
			ck_assert(tt_is_poison(got + at - nq * w, nq * w));
			memcpy(got + at - nq * w, before + at - nq * w, nq * w);
		}
	}
	near(&r->m, r->m.dtype, r->b.dqkv, r->m.q.g, r->m.q.g_err, r->nqkv, "dqkv");
	if (strips)
		without_delta(r, nbytes);
	free(before);
}

static void check_separate(struct run *r)
{
	struct model *m = &r->m;

	kc_defer(r->b.dk);
	kc_defer(r->b.dv);
	KC_RUN(ATTN_BWD_DKV, &r->b);
	near(m, m->dtype, r->b.dk, m->k.g, m->k.g_err, r->nk, "dk");
	near(m, m->dtype, r->b.dv, m->v.g, m->v.g_err, r->nv, "dv");
	kc_defer(r->b.dqkv);
	kc_defer(r->b.dbias);
	KC_RUN(ATTN_BWD_DQ, &r->b);
	near(m, m->dtype, r->b.dqkv, m->q.g, m->q.g_err, r->nqkv, "dq");
}

static void check_sinks(struct run *r)
{
	const struct te_k_attn_sinks k = {
		.lse = r->b.lse,
		.delta = r->b.delta,
		.sinks = r->m.sinks,
		.dsinks = r->dsinks,
		.batch = r->m.s.batch,
		.seqlen = r->m.s.T,
		.nheads = r->m.s.nheads,
	};

	kc_defer(r->dsinks);
	KC_RUN(ATTN_BWD_SINKS, &k);
	near(&r->m, TE_DTYPE_FP32, r->dsinks, r->m.dsinks, r->m.dsinks_err, r->m.s.nheads,
	     "dsinks");
}

static void one(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude,
		int more)
{
	struct run r = run_with(s, dtype, threshold, amplitude, more);
	struct model *m = &r.m;

	run_forward(&r);
	model_forward(m);
	near(m, dtype, r.f.out, m->o, m->o_err, r.nout, "out");
	near(m, TE_DTYPE_FP32, r.f.lse, m->lse, m->lse_err, r.nlse, "lse");
	/* from here on, both read the reference's out and lse */
	m->out = model_values(m, dtype, r.b.out, r.nout);
	m->dout = model_values(m, dtype, r.b.dout, r.nout);
	m->dout_abs = model_magnitudes(m, m->dout, r.nout);
	run_pre(&r);
	model_backward(m, r.b.lse, r.b.delta);
	if (more & SEPARATE)
		check_separate(&r);
	else
		check_packed(&r, is_strips(s, dtype, threshold, TE_K_ATTN_HAS_MORE(&r.b)));
	if (r.b.dbias)
		near(m, TE_DTYPE_FP32, r.b.dbias, m->dbias, m->dbias_err,
		     (m->bias_head ? s->nheads : 1) * m->s.T * m->s.S, "dbias");
	if (r.dsinks)
		check_sinks(&r);
	model_free(m);
	kc_reset();
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

TEST_ALSO(rules, casts_what_it_computes, 2 * (2 * (!ON_HOST ? NSHAPES : NSHAPES_HOST)), .parts = 4);

static void agrees(int i, int32_t dtype)
{
	const uint32_t some = (uint32_t)tt_rand_int(1, 30000);

	one(&shapes[i / 2], type_for(&shapes[i / 2], dtype), i & 1 ? some : 0, 1.0f, 0);
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

	one(s, type_for(s, _i / 15 & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32),
	    _i / 30 & 1 ? some : 0, _i / 60 & 1 ? 6.0f : 1.0f, supported(more));
}

/* _i: what it has more, type, dropout */
TEST_EACH(more, wide_heads_agree_with_fp64, 64, .parts = 8)
{
	const struct shape s = wide_shape();
	const uint32_t some = (uint32_t)tt_rand_int(1, 30000);

	one(&s, type_for(&s, _i / 16 & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32), _i / 32 & 1 ? some : 0,
	    1.0f, supported(_i % 16));
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

		one(&s, dtype, tt_rand_int(0, 2) ? 0 : some, amplitudes[tt_rand_int(0, 3)],
		    supported(tt_rand_int(0, 1) ? (int)tt_rand_int(1, 15) :
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
	const int more = supported((int)tt_rand_int(1, ALL) & sets[tt_rand_int(0, 3)]);

	if (more & SEPARATE) {
		s.S = tt_rand_int(0, 2) ? tt_rand_int(1, 200) : s.T;
		s.dv = tt_rand_int(0, 1) ? any_shape(dtype).d : s.d;
		s.batch = more & OFFSETS ? 1 : s.batch;
	}
	one(&s, dtype, tt_rand_int(0, 2) ? 0 : (uint32_t)tt_rand_int(1, 60000), 1.0f, more);
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
	one(&shapes[_i / 2 ? 5 : 11], _i & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32, 0, 9.0f, 0);
}

TEST_EACH(rules, drops_nearly_everything, 2)
{
	one(&shapes[4], _i ? TE_DTYPE_BF16 : TE_DTYPE_FP32, 65000, 1.0f, 0);
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

/* the host's promise, for documents at multiples of its tiles. _i: type, window and softcap */
TEST_EACH(more, a_document_has_the_bits_of_it_alone, ON_HOST ? 4 : 0)
{
	const int64_t from = 64 * tt_rand_int(0, 3), n = tt_rand_int(1, 150);
	const struct shape s = { 1, from + n + tt_rand_int(0, 70), 4, 2, 40, 0, 0 };
	const struct shape alone = { 1, n, 4, 2, 40, 0, 0 };
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
