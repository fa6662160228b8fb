/*
 * t/ops/gemm_exact_cases.c - te_gemm(3) of small integers, on either backend.
 *
 * All sums are below 2^13 and so exact in whatever order and with the 14 bits that Hopper's
 * FP8 tensor cores keep: every provider must give the same number.
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include <te/capture.h>
#include <te/errno.h>

#include "gemm_exact_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

/* ---- elements ---- */

static float *values(enum te_dtype t, int64_t n, float (*fill)(void))
{
	float *v = malloc((size_t)n * sizeof(*v));

	ck_assert_ptr_nonnull(v);
	for (int64_t i = 0; i < n; i++)
		v[i] = tt_round(t, fill());
	return v;
}

static void send(struct te_ctx *ctx, void *dst, const void *src, size_t nbytes)
{
	ck_assert_int_eq(te_copy(te_ctx_stream(ctx), dst, src, nbytes), 0);
	ck_assert_int_eq(te_ctx_sync(ctx), 0);
}

/* the values v [rows, cols], or their transpose, as t, to device memory */
static void send_as(struct te_ctx *ctx, enum te_dtype t, void *dst, const float *v, int64_t rows,
		    int64_t cols, int transpose)
{
	size_t nbytes = (size_t)(rows * cols) * te_dtype_nbytes(t);
	void *p = malloc(nbytes);

	ck_assert_ptr_nonnull(p);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++)
			tt_set(t, p, transpose ? c * rows + r : r * cols + c, v[r * cols + c]);
	send(ctx, dst, p, nbytes);
	free(p);
}

static struct te_tensor *tensor(struct te_ctx *ctx, enum te_dtype t, int64_t rows, int64_t cols,
				uint32_t flags)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	const int64_t shape[2] = { rows, cols };
	struct te_tensor *x;

	o.flags = flags;
	ck_assert_msg(!te_tensor_create(ctx, t, 2, shape, &o, &x), "%s", te_error_detail());
	return x;
}

/* v [rows, k]; transposed, the tensor is [k, rows] and an FP8 one has only the column copy */
static struct te_tensor *operand(struct te_ctx *ctx, enum te_dtype t, const float *v, int64_t rows,
				 int64_t k, int transpose, float scale_inv)
{
	struct te_tensor *x;

	if (!tt_is_fp8(t)) {
		x = tensor(ctx, t, transpose ? k : rows, transpose ? rows : k, 0);
		send_as(ctx, t, te_tensor_data(x), v, rows, k, transpose);
		return x;
	}
	x = tensor(ctx, t, transpose ? k : rows, transpose ? rows : k,
		   transpose ? TE_TENSOR_COLWISE : TE_TENSOR_ROWWISE);
	send_as(ctx, t, transpose ? te_tensor_coldata(x) : te_tensor_data(x), v, rows, k, 0);
	send(ctx, te_tensor_scale_inv(x), &scale_inv, sizeof(scale_inv));
	return x;
}

/* ---- a GEMM ---- */

void gemm_run_make(struct gemm_run *r, struct te_ctx *ctx, const struct gemm_case *c,
		   float (*fill)(void))
{
	int fp8 = tt_is_fp8(c->a);

	memset(r, 0, sizeof(*r));
	r->c = *c;
	r->alpha = tt_rand_u64() & 1 ? 1.0f : -0.5f;
	r->beta = !c->c ? 0.0f : tt_rand_u64() & 1 ? 1.0f : 2.0f;
	r->sa = fp8 ? 0.25f : 1.0f;
	r->sb = fp8 ? 8.0f : 1.0f;
	r->va = values(c->a, c->m * c->k, fill);
	r->vb = values(c->b, c->n * c->k, fill);
	r->vc = values(c->d, c->m * c->n, fill);
	r->vbias = values(c->d, c->n, fill);
	r->a = operand(ctx, c->a, r->va, c->m, c->k, !!(c->flags & TE_GEMM_A_T), r->sa);
	r->b = operand(ctx, c->b, r->vb, c->n, c->k, !!(c->flags & TE_GEMM_B_T), r->sb);
	r->tc = tensor(ctx, c->d, c->m, c->n, 0);
	send_as(ctx, c->d, te_tensor_data(r->tc), r->vc, c->m, c->n, 0);
	r->bias = tensor(ctx, c->d, 1, c->n, 0);
	send_as(ctx, c->d, te_tensor_data(r->bias), r->vbias, 1, c->n, 0);
	r->d = tensor(ctx, c->d, c->m, c->n, 0);
	if (c->c == 2) {
		send_as(ctx, c->d, te_tensor_data(r->d), r->vc, c->m, c->n, 0);
	} else {
		/* NaN: an element left out, or read though beta is 0, shows */
		ck_assert_int_eq(te_fill(te_ctx_stream(ctx), te_tensor_data(r->d), 0xff,
					 te_tensor_nbytes(r->d)), 0);
		ck_assert_int_eq(te_ctx_sync(ctx), 0);
	}
	r->got = malloc((size_t)(c->m * c->n) * sizeof(float));
	ck_assert_ptr_nonnull(r->got);
}

int gemm_run_queue(struct gemm_run *r, struct te_stream *stream)
{
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;

	o.flags = r->c.flags;
	o.alpha = r->alpha;
	o.beta = r->beta;
	o.bias = r->c.bias ? r->bias : NULL;
	o.c = r->c.c == 1 ? r->tc : NULL;
	return te_gemm(stream, r->a, r->b, r->d, &o);
}

void gemm_run_read(struct gemm_run *r)
{
	size_t nbytes = te_tensor_nbytes(r->d);
	void *p = malloc(nbytes);

	ck_assert_ptr_nonnull(p);
	ck_assert_msg(!te_tensor_read(r->d, p, nbytes), "%s", te_error_detail());
	for (int64_t i = 0; i < r->c.m * r->c.n; i++)
		r->got[i] = tt_get(r->c.d, p, i);
	free(p);
}

void gemm_run_free(struct gemm_run *r)
{
	te_tensor_unref(r->a);
	te_tensor_unref(r->b);
	te_tensor_unref(r->d);
	te_tensor_unref(r->tc);
	te_tensor_unref(r->bias);
	free(r->va);
	free(r->vb);
	free(r->vc);
	free(r->vbias);
	free(r->got);
}

/* element (i, j) before C and the bias are added and D is rounded */
static double element_of(const struct gemm_run *r, int64_t i, int64_t j)
{
	const struct gemm_case *c = &r->c;
	double sum = 0;

	for (int64_t p = 0; p < c->k; p++)
		sum += (double)r->va[i * c->k + p] * r->vb[j * c->k + p];
	return sum * ((double)r->alpha * r->sa * r->sb);
}

static void say(const struct gemm_run *r, int64_t i, int64_t j, double want)
{
	const struct gemm_case *c = &r->c;

	ck_abort_msg("%s by %s to %s, %lld x %lld x %lld, flags %u, bias %d, c %d: "
		     "element %lld, %lld is %g, not %g",
		     te_dtype_name(c->a), te_dtype_name(c->b), te_dtype_name(c->d),
		     (long long)c->m, (long long)c->n, (long long)c->k, c->flags, c->bias, c->c,
		     (long long)i, (long long)j, r->got[i * c->n + j], want);
}

/*
 * With C or a bias a GPU may round a BF16 D before each addition too (te/gemm.h): then up to 2^-8,
 * half a unit in the last place, of each partial sum.
 */
static void check_exact(const struct gemm_run *r)
{
	const enum te_dtype d = r->c.d;
	const int often = (r->c.bias || r->c.c) && d == TE_DTYPE_BF16 && !strcmp(backend, "cuda");

	for (int64_t i = 0; i < r->c.m; i++)
		for (int64_t j = 0; j < r->c.n; j++) {
			double x = element_of(r, i, j);
			double y = x + (r->c.c ? (double)r->beta * r->vc[i * r->c.n + j] : 0);
			double z = y + (r->c.bias ? r->vbias[j] : 0);
			double got = r->got[i * r->c.n + j];

			if (!(got == (double)tt_round(d, (float)z)) &&
			    !(often && fabs(got - z) <= (fabs(x) + fabs(y) + fabs(z)) * 0x1p-8))
				say(r, i, j, z);
		}
}

/* ---- tests ---- */

static float small_int(void)
{
	return (float)tt_rand_int(-2, 2);
}

static const struct {
	enum te_dtype a, b, d;
} types[] = {
	{ TE_DTYPE_FP32, TE_DTYPE_FP32, TE_DTYPE_FP32 },
	{ TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_BF16 },
	{ TE_DTYPE_BF16, TE_DTYPE_BF16, TE_DTYPE_FP32 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_BF16 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_FP32 },
	{ TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_BF16 },
	{ TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_FP32 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_BF16 },
	{ TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_FP32 },
};

static int64_t extent(enum te_dtype t, int64_t most)
{
	return tt_is_fp8(t) ? 16 * tt_rand_int(1, most / 16) : tt_rand_int(1, most);
}

static struct gemm_case any_case(int type, uint32_t flags, int bias, int c, int64_t most_k)
{
	enum te_dtype t = types[type].a;

	return (struct gemm_case){ t, types[type].b, types[type].d, flags, bias, c,
				   extent(t, 70), extent(t, 70), extent(t, most_k) };
}

static void run(struct gemm_case c)
{
	struct gemm_run r;

	gemm_run_make(&r, ctx, &c, small_int);
	ck_assert_msg(!gemm_run_queue(&r, te_ctx_stream(ctx)), "%s", te_error_detail());
	gemm_run_read(&r);
	check_exact(&r);
	gemm_run_free(&r);
}

CASE(random, "gemm numeric", .setup = tt_setup, .teardown = tt_teardown);
CASE(gemms, "gemm numeric", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(gemms, integers_are_exact, TT_LEN(types))
{
	for (uint32_t flags = 0; flags < 4; flags++)
		for (int bias = 0; bias < 2; bias++)
			for (int c = 0; c < 3; c++)
				run(any_case(_i, flags, bias, c, 600));
}

/* as many small extents as large ones */
static int64_t any_extent(enum te_dtype t, int least, int most)
{
	const int64_t extent_most = INT64_C(1) << tt_rand_int(least, most);

	return tt_rand_int(0, 1) && extent_most >= 16 ? 16 * tt_rand_int(1, extent_most / 16) :
							extent(t, extent_most);
}

/*
 * Types, layouts, epilogues and shapes drawn at random. TT_ROUNDS=10000
 * CK_TIMEOUT_MULTIPLIER=100 CK_RUN_CASE=random runs that many, TE_GEMM_PROVIDER=sm90 by sm90.cu.
 */
TEST(random, any_gemm_is_exact)
{
	const char *rounds = getenv("TT_ROUNDS");
	const int n = rounds ? atoi(rounds) : TT_FEWER(40);

	for (int i = 0; i < n; i++) {
		struct gemm_case c = any_case((int)tt_rand_int(0, TT_LEN(types) - 1),
					      (uint32_t)tt_rand_int(0, 3), (int)tt_rand_int(0, 1),
					      (int)tt_rand_int(0, 2), 16);

		c.m = any_extent(c.a, 4, 9);
		c.n = any_extent(c.a, 4, 9);
		c.k = any_extent(c.a, 4, 10);
		run(c);
	}
}

/* more than a block of the host backend in each direction */
TEST_EACH(gemms, large_gemms_are_exact, TT_LEN(types))
{
	struct gemm_case c = any_case(_i, (uint32_t)_i & 3, 1, 1, 64);

	c.m = 1040;
	c.n = 1072;
	run(c);
}

/* the types but FP8 */
TEST_EACH(gemms, one_element_gemms, 3)
{
	struct gemm_case c = any_case(_i, 0, 1, 2, 1);

	c.m = c.n = c.k = 1;
	run(c);
	c.k = 511;
	run(c);
}

/* pointers that are aligned to an element only */
TEST_EACH(gemms, views_at_odd_offsets, 3)
{
	enum te_dtype t = types[_i].a;
	const int64_t m = 24, n = 40, k = 56, as[2] = { m, k }, bs[2] = { n, k }, ds[2] = { m, n };
	struct te_tensor *base[3], *view[3];
	float *va = values(t, m * k, small_int), *vb = values(t, n * k, small_int), *got;
	size_t nbytes = (size_t)(m * n) * te_dtype_nbytes(types[_i].d);

	got = malloc(nbytes);
	base[0] = tensor(ctx, t, 1, m * k + 1, 0);
	base[1] = tensor(ctx, t, 1, n * k + 3, 0);
	base[2] = tensor(ctx, types[_i].d, 1, m * n + 1, 0);
	ck_assert_int_eq(te_tensor_view(base[0], 1, 2, as, &view[0]), 0);
	ck_assert_int_eq(te_tensor_view(base[1], 3, 2, bs, &view[1]), 0);
	ck_assert_int_eq(te_tensor_view(base[2], 1, 2, ds, &view[2]), 0);
	send_as(ctx, t, te_tensor_data(view[0]), va, m, k, 0);
	send_as(ctx, t, te_tensor_data(view[1]), vb, n, k, 0);
	ck_assert_msg(!te_gemm(te_ctx_stream(ctx), view[0], view[1], view[2], NULL), "%s",
		      te_error_detail());
	ck_assert_msg(!te_tensor_read(view[2], got, nbytes), "%s", te_error_detail());
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++) {
			float want = 0;

			for (int64_t p = 0; p < k; p++)
				want += va[i * k + p] * vb[j * k + p];
			ck_assert_float_eq(tt_get(types[_i].d, got, i * n + j),
					   tt_round(types[_i].d, want));
		}
	for (int i = 0; i < 3; i++) {
		te_tensor_unref(view[i]);
		te_tensor_unref(base[i]);
	}
	free(va);
	free(vb);
	free(got);
}

TEST_EACH(gemms, nan_stays_in_its_row, TT_LEN(types))
{
	struct gemm_case c = any_case(_i, 0, 0, 0, 64);
	struct gemm_run r;
	int64_t row;

	gemm_run_make(&r, ctx, &c, small_int);
	row = tt_rand_int(0, c.m - 1);
	r.va[row * c.k + tt_rand_int(0, c.k - 1)] = NAN;
	send_as(ctx, c.a, te_tensor_data(r.a), r.va, c.m, c.k, 0);
	DO(gemm_run_queue(&r, te_ctx_stream(ctx)));
	gemm_run_read(&r);
	for (int64_t i = 0; i < c.m; i++)
		for (int64_t j = 0; j < c.n; j++)
			ck_assert_int_eq(!!isnan(r.got[i * c.n + j]), i == row);
	gemm_run_free(&r);
}

/* a shape met first inside a capture, run twice on changed inputs */
TEST_EACH(gemms, captured_gemms_read_what_is_there_at_launch, TT_LEN(types))
{
	struct gemm_case c = any_case(_i, (uint32_t)_i & 3, 1, 1, 128);
	struct te_stream *s = te_ctx_stream(ctx);
	struct te_recording *rec;
	struct gemm_run r;

	gemm_run_make(&r, ctx, &c, small_int);
	ck_assert_int_eq(te_capture_begin(s), 0);
	ck_assert_msg(!gemm_run_queue(&r, s), "%s", te_error_detail());
	ck_assert_msg(!te_capture_end(s, &rec), "%s", te_error_detail());
	gemm_run_read(&r);
	for (int64_t i = 0; i < c.m * c.n; i++)
		ck_assert(isnan(r.got[i]));
	for (int n = 0; n < 2; n++) {
		for (int64_t i = 0; i < c.m * c.n; i++)
			r.vc[i] = small_int();
		send_as(ctx, c.d, te_tensor_data(r.tc), r.vc, c.m, c.n, 0);
		ck_assert_msg(!te_recording_launch(rec, s), "%s", te_error_detail());
		gemm_run_read(&r);
		check_exact(&r);
	}
	te_recording_unref(rec);
	gemm_run_free(&r);
}
