/*
 * t/ops/gemm_grouped_cases.c - te_gemm_grouped on numbers whose products and sums are exact, with
 * groups without rows, rows without a group and offsets that are wrong; and its errors.
 */
#include "config.h"

#include <math.h>

#include <te/capture.h>
#include <te/ctx.h>
#include <te/dtype.h>
#include <te/errno.h>
#include <te/gemm.h>
#include <te/stream.h>

#include "libtecore/tensor/ctx.h"
#include "tt_ctx.h"
#include "tt_num.h"

static const struct types {
	enum te_dtype a, b, d;
} types[] = {
	{ TE_DTYPE_FP32, TE_DTYPE_FP32, TE_DTYPE_FP32 },
	{ TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16 },
	{ TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_FP32 },
	{ TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_BF16 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_FP32 },
};
static const uint32_t layouts[] = { 0, TE_GEMM_B_T, TE_GEMM_BY_K };

static float power_of_two(void)
{
	return ldexpf(1, (int)tt_rand_int(-2, 2));
}

/* a tensor and its values */
struct mat {
	float *v, scale;
	void *row, *col;
	float *scale_inv;
	struct te_tensor *t;
};

static void *upload(int32_t dtype, int64_t n, const float *v)
{
	const size_t nbytes = (size_t)n * te_dtype_nbytes((enum te_dtype)dtype);
	void *host = malloc(nbytes), *p;

	for (int64_t i = 0; i < n; i++)
		tt_set(dtype, host, i, v[i]);
	DO(te_mem_alloc(st, nbytes, &p));
	DO(te_copy(st, p, host, nbytes));
	DO(te_stream_sync(st));
	free(host);
	return p;
}

/* [groups, rows, cols] or, groups 0, [rows, cols]; FP8: one copy, column-wise if col */
static struct mat mat(enum te_dtype dtype, int64_t groups, int64_t rows, int64_t cols, int col)
{
	const int64_t all = (groups ? groups : 1) * rows, n = all * cols;
	const int64_t shape[3] = { groups ? groups : rows, groups ? rows : cols, cols };
	struct mat m = { .v = malloc((size_t)n * sizeof(float)), .scale = 1.0f };

	for (int64_t i = 0; i < n; i++)
		m.v[i] = (float)tt_rand_int(-3, 3);
	if (tt_is_fp8(dtype)) {
		m.scale = power_of_two();
		m.scale_inv = upload(TE_DTYPE_FP32, 1, &m.scale);
	}
	if (tt_is_fp8(dtype) && col) {
		float *t = malloc((size_t)n * sizeof(float));

		for (int64_t i = 0; i < n; i++)
			t[i % cols * all + i / cols] = m.v[i];
		m.col = upload(dtype, n, t);
		free(t);
	} else {
		m.row = upload(dtype, n, m.v);
	}
	DO(te__tensor_wrap_scaled(ctx, dtype, groups ? 3 : 2, shape, m.row, m.col, m.scale_inv,
				  m.scale_inv, TE_SCALING_TENSOR, &m.t));
	return m;
}

static struct mat words(enum te_dtype dtype, int64_t n, const float *v)
{
	struct mat m = { .v = malloc((size_t)n * sizeof(float)) };

	memcpy(m.v, v, (size_t)n * sizeof(float));
	m.row = upload(dtype, n, v);
	DO(te_tensor_wrap(ctx, dtype, 1, &n, m.row, NULL, NULL, &m.t));
	return m;
}

static void drop(struct mat *m)
{
	te_tensor_unref(m->t);
	free(m->v);
	if (m->row)
		DO(te_mem_free(st, m->row));
	if (m->col)
		DO(te_mem_free(st, m->col));
	if (m->scale_inv)
		DO(te_mem_free(st, m->scale_inv));
}

/* a launch */
struct problem {
	uint32_t flags;
	int64_t m, n, k, groups;
	struct mat a, b, d, offsets, status, sa, sb;
	struct te_gemm_grouped_opts o;
};

static int64_t nrows(const struct problem *p)
{
	return p->flags == TE_GEMM_BY_K ? p->k : p->m;
}

static void draw_offsets(const struct problem *p, float *v)
{
	v[0] = (float)tt_rand_int(0, nrows(p) / 4);
	for (int64_t g = 1; g <= p->groups; g++)
		v[g] = tt_rand_int(0, 3) ? (float)tt_rand_int((int64_t)v[g - 1], nrows(p)) :
					   v[g - 1];
}

static struct problem problem(const struct types *ty, uint32_t flags)
{
	const int fp8 = tt_is_fp8(ty->a), by_k = flags == TE_GEMM_BY_K;
	struct problem p = {
		.flags = flags,
		.m = tt_rand_int(1, 90),
		.n = fp8 ? 16 * tt_rand_int(1, 4) : tt_rand_int(1, 60),
		.k = fp8 ? 16 * tt_rand_int(1, 5) : tt_rand_int(1, 70),
		.groups = tt_rand_int(1, 6),
		.o = TE_GEMM_GROUPED_OPTS_INIT,
	};
	float v[8], zero = 77.0f;

	p.a = mat(ty->a, 0, by_k ? p.k : p.m, by_k ? p.m : p.k, by_k);
	p.b = mat(ty->b, by_k ? 0 : p.groups, flags ? p.k : p.n, flags ? p.n : p.k, flags != 0);
	p.d = mat(ty->d, by_k ? p.groups : 0, p.m, p.n, 0);
	draw_offsets(&p, v);
	p.offsets = words(TE_DTYPE_INT32, p.groups + 1, v);
	p.status = words(TE_DTYPE_INT32, 1, &zero);
	p.o.flags = flags;
	p.o.alpha = tt_rand_int(0, 1) ? 1.0f : -0.5f;
	p.o.beta = (float)tt_rand_int(-1, 1);
	for (int i = 0; i < 8; i++)
		v[i] = power_of_two();
	p.sa = words(TE_DTYPE_FP32, p.groups, v);
	p.sb = words(TE_DTYPE_FP32, p.groups, v + 1);
	if (fp8 && tt_rand_int(0, 1))
		p.o.a_scale_inv = p.sa.t;
	if (fp8 && tt_rand_int(0, 1))
		p.o.b_scale_inv = p.sb.t;
	return p;
}

static void drop_problem(struct problem *p)
{
	drop(&p->a), drop(&p->b), drop(&p->d), drop(&p->offsets), drop(&p->status);
	drop(&p->sa), drop(&p->sb);
}

/* three groups, at least 12 rows */
static struct problem problem_of_three(const struct types *ty, uint32_t flags)
{
	struct problem p = problem(ty, flags);

	while (p.groups != 3 || nrows(&p) < 12) {
		drop_problem(&p);
		p = problem(ty, flags);
	}
	return p;
}

static int call(struct problem *p)
{
	return te_gemm_grouped(st, p->a.t, p->b.t, p->offsets.t, p->d.t, p->status.t, &p->o);
}

/* element [i, j] of group g, from d's value before */
static float want_of(const struct problem *p, int64_t g, int64_t i, int64_t j, float was)
{
	const int by_k = p->flags == TE_GEMM_BY_K;
	const float sa = p->o.a_scale_inv ? p->sa.v[g] : p->a.scale;
	const float sb = p->o.b_scale_inv ? p->sb.v[g] : p->b.scale;
	const int64_t first = by_k ? (int64_t)p->offsets.v[g] : 0;
	const int64_t end = by_k ? (int64_t)p->offsets.v[g + 1] : p->k;
	float sum = 0.0f;

	for (int64_t k = first; k < end; k++)
		sum += (by_k ? p->a.v[k * p->m + i] : p->a.v[i * p->k + k]) *
		       (by_k	 ? p->b.v[k * p->n + j] :
			p->flags ? p->b.v[(g * p->k + k) * p->n + j] :
				   p->b.v[(g * p->n + j) * p->k + k]);
	return p->o.alpha * sa * sb * sum + p->o.beta * was;
}

/* d is what it should be, with was its values before */
static void check(const struct problem *p, const float *was)
{
	const int by_k = p->flags == TE_GEMM_BY_K;
	float *got = tt_tensor_get(p->d.t), *status = tt_tensor_get(p->status.t);
	const int64_t rows = by_k ? p->groups * p->m : p->m;

	ck_assert_msg(status[0] == 0.0f, "status %g", (double)status[0]);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t j = 0; j < p->n; j++) {
			int64_t g = by_k ? r / p->m : -1;
			float want = was[r * p->n + j];

			for (int64_t i = 0; i < p->groups && !by_k; i++)
				if ((float)r >= p->offsets.v[i] && (float)r < p->offsets.v[i + 1])
					g = i;
			if (g >= 0)
				want = tt_round(te_tensor_dtype(p->d.t),
						want_of(p, g, by_k ? r % p->m : r, j, want));
			ck_assert_msg(
				got[r * p->n + j] == want,
				"%s by %s, flags %u, M %d N %d K %d, %d groups: row %d, column "
				"%d, group %d: %g, not %g",
				te_dtype_name(te_tensor_dtype(p->a.t)),
				te_dtype_name(te_tensor_dtype(p->b.t)), p->flags, (int)p->m,
				(int)p->n, (int)p->k, (int)p->groups, (int)r, (int)j, (int)g,
				(double)got[r * p->n + j], (double)want);
		}
	free(got);
	free(status);
}

CTX_CASE(grouped, "gemm numeric");

TEST_EACH(grouped, groups_are_exact, TT_LEN(types))
{
	for (int l = 0; l < 3; l++)
		for (int i = 0; i < TT_FEWER(16); i++) {
			struct problem p = problem(&types[_i], layouts[l]);

			DO(call(&p));
			check(&p, p.d.v);
			drop_problem(&p);
		}
}

/* what is no number in rows of no group reaches nothing; with beta 0 neither does that of d */
TEST_EACH(grouped, rows_of_no_group_are_not_read, TT_LEN(types))
{
	for (int l = 0; l < 3; l++) {
		const float ends[] = { 3, 7, 7, 9 };
		struct problem p = problem_of_three(&types[_i], layouts[l]);

		drop(&p.offsets);
		p.offsets = words(TE_DTYPE_INT32, 4, ends);
		for (int64_t r = 0; r < nrows(&p); r++)
			for (int64_t c = 0; c < te_tensor_cols(p.a.t) && (r < 3 || r >= 9); c++) {
				const size_t es = te_dtype_nbytes(te_tensor_dtype(p.a.t));
				const int64_t at =
					p.a.col ? c * nrows(&p) + r : r * te_tensor_cols(p.a.t) + c;
				char nan[4];

				tt_set(te_tensor_dtype(p.a.t), nan, 0, NAN);
				DO(te_copy(st,
					   (char *)(p.a.col ? p.a.col : p.a.row) + (size_t)at * es,
					   nan, es));
				DO(te_stream_sync(st));
			}
		p.o.beta = 0.0f;
		DO(call(&p));
		check(&p, p.d.v);
		drop_problem(&p);
	}
}

TEST_EACH(grouped, wrong_offsets_are_told_and_nothing_is_written, 3 * TT_LEN(types))
{
	static const struct {
		int32_t v[4];
		int status;
	} wrong[] = {
		{ { -1, 2, 4, 6 }, 1 },	       { { 0, 5, 4, 6 }, 3 },
		{ { 0, 2, 4, 1000 }, 4 },      { { 0, 2, INT32_MAX, 6 }, 3 },
		{ { INT32_MIN, 2, 4, 6 }, 1 }, { { 2000000000, 2, 4, 6 }, 1 },
		{ { 0, -5, -5, -5 }, 2 },      { { 1, 1, 1, 0 }, 4 },
	};
	struct problem p =
		problem_of_three(&types[_i % (int)TT_LEN(types)], layouts[_i / (int)TT_LEN(types)]);

	for (size_t i = 0; i < TT_LEN(wrong); i++) {
		float *got, *status;

		DO(te_copy(st, p.offsets.row, wrong[i].v, sizeof(wrong[i].v)));
		DO(call(&p));
		status = tt_tensor_get(p.status.t);
		got = tt_tensor_get(p.d.t);
		ck_assert_msg(status[0] == (float)wrong[i].status, "offsets %d: status %g, not %d",
			      (int)i, (double)status[0], wrong[i].status);
		ck_assert_msg(!memcmp(got, p.d.v, (size_t)te_tensor_nelems(p.d.t) * sizeof(float)),
			      "offsets %d: D is written", (int)i);
		free(got);
		free(status);
	}
	drop_problem(&p);
}

TEST_EACH(grouped, a_replay_reads_new_offsets, 3)
{
	struct problem p = problem(&types[1], layouts[_i]);
	struct te_recording *rec;

	p.o.beta = 0.0f;
	DO(te_capture_begin(st));
	DO(call(&p));
	DO(te_capture_end(st, &rec));
	for (int i = 0; i < 4; i++) {
		float *was = tt_tensor_get(p.d.t);
		int32_t v[8];

		draw_offsets(&p, p.offsets.v);
		for (int64_t g = 0; g <= p.groups; g++)
			v[g] = (int32_t)p.offsets.v[g];
		DO(te_copy(st, p.offsets.row, v, (size_t)(p.groups + 1) * sizeof(*v)));
		DO(te_stream_sync(st));
		DO(te_recording_launch(rec, st));
		check(&p, was);
		free(was);
	}
	te_recording_unref(rec);
	drop_problem(&p);
}

static const float three[3] = { 0, 1, 2 };

TEST(grouped, grouped_says_what_is_wrong)
{
	struct mat a = mat(TE_DTYPE_FP32, 0, 5, 6, 0), b = mat(TE_DTYPE_FP32, 2, 4, 6, 0);
	struct mat d = mat(TE_DTYPE_FP32, 0, 5, 4, 0), s = words(TE_DTYPE_INT32, 1, three);
	struct mat ends = words(TE_DTYPE_INT32, 3, three), f = words(TE_DTYPE_FP32, 3, three);
	struct mat bf = mat(TE_DTYPE_BF16, 0, 5, 6, 0), flat = mat(TE_DTYPE_FP32, 0, 8, 6, 0);
	struct mat x = mat(TE_DTYPE_E4M3, 0, 5, 16, 0), y = mat(TE_DTYPE_E4M3, 2, 8, 16, 0);
	struct mat d8 = mat(TE_DTYPE_BF16, 0, 5, 8, 0), w = mat(TE_DTYPE_E4M3, 2, 16, 16, 0);
	struct mat d16 = mat(TE_DTYPE_BF16, 0, 5, 16, 0), g2 = words(TE_DTYPE_FP32, 2, three);
	struct te_gemm_grouped_opts o = TE_GEMM_GROUPED_OPTS_INIT;
	const int64_t shape[2] = { 5, 16 };
	float *scales;
	struct te_tensor *blocks;

#define REFUSED(code, text, ...) fails(te_gemm_grouped(__VA_ARGS__), code, text)
	REFUSED(-EINVAL, "A is NULL", st, NULL, b.t, ends.t, d.t, s.t, NULL);
	REFUSED(-EINVAL, "offsets is NULL", st, a.t, b.t, NULL, d.t, s.t, NULL);
	REFUSED(-EINVAL, "status is NULL", st, a.t, b.t, ends.t, d.t, NULL, NULL);
	REFUSED(-TE_EDTYPE, "A is bf16 and B is fp32", st, bf.t, b.t, ends.t, d.t, s.t, NULL);
	REFUSED(-TE_ESHAPE, "B has 2 dimensions", st, a.t, flat.t, ends.t, d.t, s.t, NULL);
	REFUSED(-TE_ESHAPE, "offsets has 1 elements of int32, expected 3", st, a.t, b.t, s.t, d.t,
		s.t, NULL);
	REFUSED(-TE_EDTYPE, "offsets has 3 elements of fp32", st, a.t, b.t, f.t, d.t, s.t, NULL);
	REFUSED(-TE_ESHAPE, "status has 3 elements", st, a.t, b.t, ends.t, d.t, ends.t, NULL);
	REFUSED(-TE_ESHAPE, "they differ", st, flat.t, b.t, ends.t, d.t, s.t, NULL);
	REFUSED(-TE_ESHAPE, "N 8, K 16: FP8 needs multiples of 16", st, x.t, y.t, ends.t, d8.t, s.t,
		NULL);
	o.flags = TE_GEMM_A_T;
	REFUSED(-EINVAL, "flags are 0x1", st, a.t, b.t, ends.t, d.t, s.t, &o);
	o.flags = TE_GEMM_B_T | TE_GEMM_BY_K;
	REFUSED(-EINVAL, "flags are 0x6", st, a.t, b.t, ends.t, d.t, s.t, &o);
	o.flags = TE_GEMM_BY_K;
	REFUSED(-TE_ESHAPE, "D has 2 dimensions", st, a.t, flat.t, ends.t, d.t, s.t, &o);
	o.flags = 0;
	o.a_scale_inv = g2.t;
	REFUSED(-TE_EDTYPE, "a_scale_inv is given, but A is fp32", st, a.t, b.t, ends.t, d.t, s.t,
		&o);
	o.a_scale_inv = NULL;
	o.b_scale_inv = f.t;
	REFUSED(-TE_ESHAPE, "b_scale_inv has 3 elements of fp32, expected 2", st, x.t, w.t, ends.t,
		d16.t, s.t, &o);
	o.b_scale_inv = NULL;
	o.size = 1;
	REFUSED(-EINVAL, "TE_GEMM_GROUPED_OPTS_INIT", st, a.t, b.t, ends.t, d.t, s.t, &o);
	DO(te_mem_alloc(st, 64, (void **)&scales));
	DO(te__tensor_wrap_scaled(ctx, TE_DTYPE_E4M3, 2, shape, te_tensor_data(x.t), NULL, scales,
				  NULL, TE_SCALING_1X128, &blocks));
	REFUSED(-TE_EDTYPE, "A has block scaling; a group has", st, blocks, w.t, ends.t, d16.t, s.t,
		NULL);
	te_tensor_unref(blocks);
	DO(te_mem_free(st, scales));
#undef REFUSED
	drop(&a), drop(&b), drop(&d), drop(&s), drop(&ends), drop(&f), drop(&bf), drop(&flat);
	drop(&x), drop(&y), drop(&d8), drop(&w), drop(&d16), drop(&g2);
}
