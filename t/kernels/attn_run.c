/* t/kernels/attn_run.c - operands, launches and comparisons of the cases of attention. */
#include "config.h"

#include <math.h>

#include "attn_run.h"
#include "kernel_check.h"
#include "tt_ctx.h"

int64_t run_row(const struct shape *s)
{
	return (int64_t)(s->nheads + 2 * s->nkv) * s->d;
}

int run_supported(int more)
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

const int32_t *run_documents(const struct shape *s, int64_t most, int bad)
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
		r->m.first = run_documents(s, tt_rand_int(1, s->T), !(more & FULL));
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
	if (more & ~(WINDOW | DOCUMENTS))
		r->b.sums = NULL;
	r->b.more = r->f.more;
	if (x->bias && tt_rand_int(0, 3))
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
	const struct te_k_strides all = { s->T * run_row(s), run_row(s), s->d };
	struct model *m = &r->m;

	r->nqkv = s->batch * s->T * run_row(s);
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

struct run run_with(const struct shape *shape, int32_t dtype, uint32_t threshold, float amplitude,
		    int more)
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

struct run run_of(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude)
{
	return run_with(s, dtype, threshold, amplitude, 0);
}

void run_forward(const struct run *r)
{
	kc_defer(r->f.out);
	kc_defer(r->f.lse);
	KC_RUN(ATTN_FWD, &r->f);
}

/* columns [from, to) of each row of dqkv were not written */
static void untouched(const struct run *r, const char *before, int64_t from, int64_t to)
{
	const size_t w = te_dtype_nbytes((enum te_dtype)r->m.dtype);
	const int64_t row = run_row(&r->m.s);
	const char *got = kc_got(r->b.dqkv);

	for (int64_t t = 0; t < r->m.s.batch * r->m.s.T; t++)
		ck_assert_msg(!memcmp(got + (size_t)(t * row + from) * w,
				      before + (size_t)(t * row + from) * w,
				      (size_t)(to - from) * w),
			      "row %d: written outside of its part", (int)t);
}

void *run_copy(const void *p, size_t nbytes)
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

void run_launch_pre(struct run *r)
{
	const size_t nbytes = r->b.sums ? 4 * (size_t)te_k_attn_counts(&r->b) : 0;

	kc_defer(r->b.delta);
	kc_defer(r->b.sums);
	KC_RUN(ATTN_BWD_PRE, &r->b);
	if (nbytes)
		memcpy(r->b.sums, kc_got(r->b.sums), nbytes);
}

int run_launch_dkv(struct run *r)
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

	run_launch_pre(r);
	model_pre(&r->m);
	if (!is_strips(&r->m.s, r->m.dtype, r->m.threshold, TE_K_ATTN_HAS_MORE(&r->b))) {
		near(&r->m, TE_DTYPE_FP32, r->b.delta, r->m.delta, r->m.delta_err, r->nlse,
		     "delta");
		return;
	}
	ck_assert(tt_is_poison(kc_got(r->b.delta), nbytes));
	/* delta that only the reference has computed */
	memcpy((void *)(uintptr_t)kc_got(r->b.delta), r->b.delta, nbytes);
	near(&r->m, TE_DTYPE_FP32, r->b.delta, r->m.delta, r->m.delta_err, r->nlse, "delta");
}

/* kernels that compute delta do not read it: NaN in its place changes no bit */
static void without_delta(struct run *r, size_t nbytes)
{
	char *want = run_copy(kc_got(r->b.dqkv), nbytes);

	for (int64_t i = 0; i < r->nlse; i++)
		r->b.delta[i] = NAN;
	tt_poison(r->b.dqkv, nbytes);
	run_launch_pre(r);
	for (int64_t i = 0; i < r->nlse; i++)
		r->b.delta[i] = NAN;
	/* the reference's results are not used here; dq runs after dkv on the device's arrays */
	run_launch_dkv(r);
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
	char *before = run_copy(r->b.dqkv, nbytes);
	const int once = run_launch_dkv(r) || strips;

	if (!once)
		untouched(r, before, 0, nq);
	free(before);
	before = run_copy(kc_got(r->b.dqkv), nbytes);
	/* copy the reference's k and v parts next to its q part, to compare all of dqkv at once */
	kc_defer(r->b.dqkv);
	KC_RUN(ATTN_BWD_DQ, &r->b);
	for (int64_t t = 0; t < s->batch * s->T; t++) {
		const size_t at = (size_t)(t * run_row(s) + nq) * w;
		const size_t n = (size_t)(run_row(s) - nq) * w;
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

void run_check(const struct shape *s, int32_t dtype, uint32_t threshold, float amplitude, int more)
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
	if (r.b.dbias) {
		kc_defer(r.b.dbias);
		KC_RUN(ATTN_BWD_BIAS, &r.b);
		near(m, TE_DTYPE_FP32, r.b.dbias, m->dbias, m->dbias_err,
		     (m->bias_head ? s->nheads : 1) * m->s.T * m->s.S, "dbias");
	}
	if (r.dsinks)
		check_sinks(&r);
	model_free(m);
	kc_reset();
}
