/*
 * gemm.c - te_perftest gemm: te_gemm of K-major operands, as in the forward pass of a linear
 * layer, compared with the peak rate of the type.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/gemm.h>
#include <te/tensor.h>

#include "bench.h"
#include "blas.h"
#include "tools/lib/say.h"

/* elements of D that --verify computes: a whole GEMM takes a CPU too long */
#define NVERIFIED 500

/* the choices of --types, in their order */
static const struct type {
	const char *name;
	enum te_dtype ab, d;
	enum te_scaling asc, wsc;
} types[] = {
	{ "fp32", TE_DTYPE_FP32, TE_DTYPE_FP32, TE_SCALING_TENSOR, TE_SCALING_TENSOR },
	{ "bf16", TE_DTYPE_BF16, TE_DTYPE_BF16, TE_SCALING_TENSOR, TE_SCALING_TENSOR },
	{ "fp8", TE_DTYPE_E4M3, TE_DTYPE_BF16, TE_SCALING_TENSOR, TE_SCALING_TENSOR },
	{ "fp8-block", TE_DTYPE_E4M3, TE_DTYPE_BF16, TE_SCALING_1X128, TE_SCALING_128X128 },
	{ "fp8-block-dw", TE_DTYPE_E4M3, TE_DTYPE_BF16, TE_SCALING_1X128, TE_SCALING_1X128 },
};
#define NTYPES ((int)(sizeof(types) / sizeof(types[0])))

static struct {
	char *cache;
	uint32_t types;
	int64_t m, n, k;
} opt;

static const struct option_field options[] = {
	CACHE_OPTION,
	{ "types", OPTION_WORDS, AT(types), "bf16,fp8", 0, 0, 0,
	  "fp32|bf16|fp8|fp8-block|fp8-block-dw",
	  "types of the operands; D is BF16, or FP32 for FP32" },
	{ "m", OPTION_COUNT, AT(m), "0", 0, 1 << 20, 0, "N",
	  "rows of D; 0: 4096, or 256 on the host" },
	{ "n", OPTION_COUNT, AT(n), "0", 0, 1 << 20, 0, "N", "columns of D; 0: the same" },
	{ "k", OPTION_COUNT, AT(k), "0", 0, 1 << 20, 0, "N", "terms of a sum; 0: the same" },
	{ 0 },
};

/* nsets triples of tensors; each call takes the next */
struct gemm {
	struct bench *b;
	const struct type *type;
	int64_t m, n, k;
	int nsets, at, batch;
	struct te_tensor **a, **w, **d;
	/* set i's operands are copied from element i on */
	uint8_t *host_a, *host_w;
	float *scales_a, *scales_w; /* scales of blocks, for each set */
	struct blas blas;
};

static int work(void *arg)
{
	struct gemm *g = arg;
	int i = g->at;

	g->at = (i + 1) % g->nsets;
	return te_gemm(g->b->stream, g->a[i], g->w[i], g->d[i], NULL);
}

static int device_us(void *arg, double *ret_us)
{
	struct gemm *g = arg;

	int r = bench_device_us(g->b, work, g, g->batch, ret_us);

	/* alternately, so that clock drift affects both */
	return r || !blas_there(g->b) ? r :
					bench_device_us(g->b, blas_work, &g->blas, g->blas.batch,
							&ret_us[1]);
}

static double peak_of(const struct gemm *g)
{
	const struct te_device_info *d = &g->b->dev;

	switch (g->type->ab) {
	case TE_DTYPE_FP32:
		return d->peak_fp32_flops;
	case TE_DTYPE_BF16:
		return d->peak_bf16_flops;
	default:
		return d->peak_fp8_flops;
	}
}

/* random normal numbers as elements of the type */
static uint8_t *make_host(struct gemm *g, size_t n)
{
	enum te_dtype type = g->type->ab;
	size_t nbytes = te_dtype_nbytes(type);
	uint8_t *p = malloc(n * nbytes);
	float x[256];

	for (size_t i = 0; i < n && p; i++) {
		uint16_t half;

		if (i % 256 == 0)
			bench_normal(g->b, x, 256);
		half = te_bf16_encode(x[i % 256]);
		if (type == TE_DTYPE_FP32)
			memcpy(p + i * 4, &x[i % 256], 4);
		else if (type == TE_DTYPE_BF16)
			memcpy(p + i * 2, &half, 2);
		else
			p[i] = te_fp8_encode(type, x[i % 256]);
	}
	return p;
}

static double element(const struct gemm *g, const uint8_t *p, int64_t i)
{
	uint16_t half;
	float x;

	switch (g->type->ab) {
	case TE_DTYPE_FP32:
		memcpy(&x, p + 4 * i, 4);
		return x;
	case TE_DTYPE_BF16:
		memcpy(&half, p + 2 * i, 2);
		return te_bf16_decode(half);
	default:
		return te_fp8_decode(g->type->ab, p[i]);
	}
}

/* powers of two from 1/8 to 8 */
static float *make_scales(struct gemm *g, enum te_scaling scaling, int64_t rows)
{
	const int64_t n = te_scaling_nfloats(scaling, rows, g->k);
	float *p = malloc((size_t)n * sizeof(*p));
	uint64_t r;

	for (int64_t i = 0; i < n && p; i++) {
		bench_random(g->b, &r, sizeof(r));
		p[i] = ldexpf(1, (int)(r % 7) - 3);
	}
	return p;
}

/* host: NULL for D. scales: of an operand, used with block scaling */
static int make_tensor(struct gemm *g, enum te_dtype type, enum te_scaling scaling, int64_t rows,
		       int64_t cols, const uint8_t *host, const float *scales,
		       struct te_tensor **ret)
{
	const int64_t shape[] = { rows, cols };
	struct te_tensor_opts opts = TE_TENSOR_OPTS_INIT;
	int r;

	opts.scaling = scaling;
	r = te_tensor_create(g->b->ctx, type, 2, shape, &opts, ret);
	if (r >= 0 && host)
		r = te_tensor_write(*ret, host, te_tensor_nbytes(*ret));
	if (r >= 0 && scaling)
		r = bench_idle(g->b, te_copy(g->b->stream, te_tensor_scale_inv(*ret), scales,
					     (size_t)te_scaling_nfloats(scaling, rows, cols) *
						     sizeof(*scales)));
	return r;
}

static int gemm_alloc(struct gemm *g)
{
	const struct type *t = g->type;
	const size_t size = te_dtype_nbytes(t->ab);
	int r = 0;

	g->nsets = bench_nsets(g->b,
			       (double)size * (double)g->k * (double)(g->m + g->n) +
				       (double)te_dtype_nbytes(t->d) * (double)g->m * (double)g->n);
	g->a = calloc((size_t)g->nsets, sizeof(*g->a));
	g->w = calloc((size_t)g->nsets, sizeof(*g->w));
	g->d = calloc((size_t)g->nsets, sizeof(*g->d));
	g->host_a = make_host(g, (size_t)(g->m * g->k) + (size_t)g->nsets);
	g->host_w = make_host(g, (size_t)(g->n * g->k) + (size_t)g->nsets);
	g->scales_a = make_scales(g, t->asc, g->m);
	g->scales_w = make_scales(g, t->wsc, g->n);
	if (!g->a || !g->w || !g->d || !g->host_a || !g->host_w || !g->scales_a || !g->scales_w)
		return say_bad("--m, --n, --k: no memory for %lld by %lld by %lld", (long long)g->m,
			       (long long)g->n, (long long)g->k);
	for (int i = 0; i < g->nsets && r >= 0; i++) {
		size_t at = (size_t)i * size;

		r = make_tensor(g, t->ab, t->asc, g->m, g->k, g->host_a + at, g->scales_a,
				&g->a[i]);
		if (r >= 0)
			r = make_tensor(g, t->ab, t->wsc, g->n, g->k, g->host_w + at, g->scales_w,
					&g->w[i]);
		if (r >= 0)
			r = make_tensor(g, t->d, TE_SCALING_TENSOR, g->m, g->n, NULL, NULL,
					&g->d[i]);
	}
	if (r < 0)
		return say_te(r, "gemm");
	g->blas = (struct blas){ .b = g->b, .m = g->m, .n = g->n, .k = g->k };
	return blas_alloc(&g->blas);
}

static void gemm_free(struct gemm *g)
{
	te_stream_sync(g->b->stream);
	if (g->blas.b)
		blas_free(&g->blas);
	for (int i = 0; i < g->nsets; i++) {
		if (g->a)
			te_tensor_unref(g->a[i]);
		if (g->w)
			te_tensor_unref(g->w[i]);
		if (g->d)
			te_tensor_unref(g->d[i]);
	}
	free(g->a);
	free(g->w);
	free(g->d);
	free(g->host_a);
	free(g->host_w);
	free(g->scales_a);
	free(g->scales_w);
}

/* element (row, col) of an operand of set 0 */
static double value(const struct gemm *g, const uint8_t *p, enum te_scaling scaling,
		    const float *scales, int64_t rows, int64_t row, int64_t col)
{
	const double x = element(g, p, row * g->k + col);

	return scaling ? x * (double)scales[te_scaling_index(scaling, rows, g->k, row, col)] : x;
}

/*
 * The reference: sums in FP64. In FP32 a sum of K products is off by at most
 * K 2^-24 sum|a||w|, twice that where a tensor core truncates; FP8 tensor cores add
 * with 14 bits, so a term loses up to 2^-13 of the largest. BF16 rounds by 2^-8 more.
 * t/ops/gemm_cases.c, which tests te_gemm, has the derivation.
 */
static int verify_element(const struct gemm *g, int64_t row, int64_t col, const uint8_t *d)
{
	double sum = 0, size = 0, bound, got;
	uint16_t half;
	float x;

	for (int64_t k = 0; k < g->k; k++) {
		double p = value(g, g->host_a, g->type->asc, g->scales_a, g->m, row, k) *
			   value(g, g->host_w, g->type->wsc, g->scales_w, g->n, col, k);

		sum += p;
		size += fabs(p);
	}
	bound = (double)(g->k + 8) * 0x1p-23 * size;
	if (g->type->ab == TE_DTYPE_E4M3)
		bound += 0x1p-13 * size;
	if (g->type->d == TE_DTYPE_BF16) {
		memcpy(&half, d + 2 * (row * g->n + col), 2);
		got = te_bf16_decode(half);
		bound += 0x1p-8 * fabs(sum);
	} else {
		memcpy(&x, d + 4 * (row * g->n + col), 4);
		got = x;
	}
	if (fabs(got - sum) <= bound)
		return STATUS_OK;
	return say_failed("verify: %s: element %lld, %lld is %g, want %g within %g", g->type->name,
			  (long long)row, (long long)col, got, sum, bound);
}

/* set 0, at random places */
static int verify(struct gemm *g)
{
	size_t nbytes = te_tensor_nbytes(g->d[0]);
	uint8_t *got = malloc(nbytes);
	uint64_t at[2];
	int r;

	if (!got)
		return say_bad("--verify: no memory for %zu bytes", nbytes);
	/* bytes of all ones are NaN in both types of D */
	r = te_fill(g->b->stream, te_tensor_data(g->d[0]), 0xff, nbytes);
	g->at = 0;
	if (r >= 0)
		r = work(g);
	if (r >= 0)
		r = te_copy(g->b->stream, got, te_tensor_data(g->d[0]), nbytes);
	r = bench_idle(g->b, r);
	if (r < 0)
		r = say_te(r, "verify");
	for (int i = 0; i < NVERIFIED && !r; i++) {
		bench_random(g->b, at, sizeof(at));
		r = verify_element(g, (int64_t)(at[0] % (uint64_t)g->m),
				   (int64_t)(at[1] % (uint64_t)g->n), got);
	}
	free(got);
	return r;
}

static int measure(struct gemm *g, int rows_left)
{
	double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k, rate = NAN;
	double peak = peak_of(g);
	struct bench *b = g->b;
	struct stats us[2];
	int r;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	r = gemm_alloc(g);
	if (!r && b->o->verify)
		r = verify(g);
	if (!r)
		r = bench_batch(b, work, g, 1000, 1, 16, &g->batch);
	if (!r)
		r = bench_series(b, device_us, g, 1 + blas_there(b), us);
	if (r)
		return r;
	if (us[0].n)
		rate = flops / us[0].median * 1e6;
	bench_text(b, "types", g->type->name);
	bench_int(b, "m", g->m);
	bench_int(b, "n", g->n);
	bench_int(b, "k", g->k);
	bench_int(b, "buffers", 3 * (int64_t)g->nsets);
	bench_stats(b, "device_us", &us[0]);
	rate_report(b, rate, peak, &g->blas, &us[1]);
	return STATUS_OK;
}

static int run(struct bench *b)
{
	int rows = __builtin_popcount(opt.types), r = STATUS_OK;

	b->cache = opt.cache;
	for (int i = 0; i < NTYPES && !r; i++) {
		struct gemm g = { .b = b,
				  .type = &types[i],
				  .m = bench_extent(b, opt.m, 256, 4096),
				  .n = bench_extent(b, opt.n, 256, 4096),
				  .k = bench_extent(b, opt.k, 256, 4096) };

		if (!(opt.types & 1u << i))
			continue;
		r = measure(&g, rows--);
		gemm_free(&g);
	}
	return r;
}

static const struct column columns[] = {
	{ "types", "\ntypes", 0, 0 },
	{ "m", "\nm", 0, 0 },
	{ "n", "\nn", 0, 0 },
	{ "k", "\nk", 0, 0 },
	{ "buffers", "\nbuffers", 0, 0 },
	{ "device_us", "a call\nus", 0, 1 },
	RATE_COLUMNS,
	{ NULL, NULL, 0, 0 },
};

const struct test test_gemm = {
	.name = "gemm",
	.text = "GEMMs of K-major matrices, compared with the peak rate of their type",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
