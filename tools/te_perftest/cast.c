/*
 * cast.c - te_perftest cast and quantize: te_cast of FP32 to BF16 and te_quantize
 * of BF16 to E4M3, compared with a copy that moves as many bytes.
 */
#include "config.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/quant.h>
#include <te/tensor.h>

#include "copy.h"
#include "tools/lib/say.h"

/* choices of --recipe and --copies, in their order */
enum { DELAYED, CURRENT, BLOCK, BLOCK_WEIGHT, NRECIPES };
enum { ROW, BOTH, NCOPIES };

static const char *const recipe_names[NRECIPES] = { "delayed", "current", "block",
						    "block-weight" };
static const char *const recipes[NRECIPES] = { "fp8-delayed", "fp8-current", "fp8-block",
					       "fp8-block" };
static const enum te_scaling scalings[NRECIPES] = {
	[BLOCK] = TE_SCALING_1X128,
	[BLOCK_WEIGHT] = TE_SCALING_128X128,
};
static const char *const copies_names[NCOPIES] = { "row", "both" };

static struct {
	char *cache;
	int64_t rows, cols;
	uint32_t recipe, copies;
} opt;

static const struct option_field cast_options[] = {
	CACHE_OPTION,
	{ "rows", OPTION_COUNT, AT(rows), "4096", 1, 1 << 24, 0, "N", "rows of a tensor" },
	{ "cols", OPTION_COUNT, AT(cols), "4096", 1, 1 << 24, 0, "N", "columns of a tensor" },
	{ 0 },
};

static const struct option_field quantize_options[] = {
	CACHE_OPTION,
	{ "rows", OPTION_COUNT, AT(rows), "4096", 1, 1 << 24, 0, "N", "rows of a tensor" },
	{ "cols", OPTION_COUNT, AT(cols), "4096", 1, 1 << 24, 0, "N", "columns of a tensor" },
	{ "recipe", OPTION_WORDS, AT(recipe), "delayed,current", 0, 0, 0,
	  "delayed|current|block|block-weight", "recipe that gives the scales" },
	{ "copies", OPTION_WORDS, AT(copies), "row,both", 0, 0, 0, "row|both",
	  "write the row-wise copy, or both copies" },
	{ 0 },
};

/* nsets pairs of tensors; each call takes the next */
struct cast {
	struct bench *b;
	int quantize; /* else cast */
	int recipe, copies;
	int64_t rows, cols;
	int64_t nelems;
	double traffic; /* bytes that one call has to read and to write */
	int nsets, at, batch;
	struct te_quant *q;
	struct te_tensor **x, **y;
	float *host;	  /* nelems + nsets numbers: set i has the nelems from i on */
	uint16_t *host16; /* the same as BF16 */
	struct copy copy; /* moves as many bytes */
};

static int work(void *arg)
{
	struct cast *c = arg;
	int i = c->at;

	c->at = (i + 1) % c->nsets;
	if (!c->quantize)
		return te_cast(c->b->stream, c->x[i], c->y[i]);
	return te_quantize(c->b->stream, c->q, 0, c->x[i], c->y[i], NULL, 0);
}

static int device_us(void *arg, double *ret_us)
{
	struct cast *c = arg;
	int r = bench_device_us(c->b, work, c, c->batch, &ret_us[0]);

	/* alternately, so that clock drift affects both */
	return r ? r : bench_device_us(c->b, copy_work, &c->copy, c->copy.batch, &ret_us[1]);
}

/* source of a set: nelems of the input type */
static const void *host_of(const struct cast *c, int i)
{
	return c->quantize ? (const void *)(c->host16 + i) : c->host + i;
}

static int make_host(struct cast *c)
{
	size_t n = (size_t)c->nelems + (size_t)c->nsets;

	c->host = malloc(n * sizeof(*c->host));
	c->host16 = malloc(n * sizeof(*c->host16));
	c->x = calloc((size_t)c->nsets, sizeof(*c->x));
	c->y = calloc((size_t)c->nsets, sizeof(*c->y));
	if (!c->host || !c->host16 || !c->x || !c->y)
		return say_bad("--rows, --cols: no memory for %lld elements", (long long)c->nelems);
	bench_normal(c->b, c->host, n);
	for (size_t i = 0; i < n; i++)
		c->host16[i] = te_bf16_encode(c->host[i]);
	return STATUS_OK;
}

static int make_quant(struct cast *c)
{
	const enum te_dtype type = TE_DTYPE_E4M3;
	struct te_recipe recipe = TE_RECIPE_INIT;
	int r = te_recipe_from_name(recipes[c->recipe], &recipe);

	return r < 0 ? r : te_quant_create(c->b->ctx, &recipe, 1, &type, &c->q);
}

static int cast_alloc(struct cast *c)
{
	const enum te_dtype from = c->quantize ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	const enum te_dtype to = c->quantize ? TE_DTYPE_E4M3 : TE_DTYPE_BF16;
	const int64_t shape[] = { c->rows, c->cols };
	struct te_tensor_opts opts = TE_TENSOR_OPTS_INIT;
	double nread = (double)te_dtype_nbytes(from), nwritten = (double)te_dtype_nbytes(to);
	int r;

	c->nelems = c->rows * c->cols;
	if (c->quantize && c->copies == BOTH) {
		opts.flags = TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE;
		nwritten *= 2;
	}
	if (c->quantize)
		opts.scaling = scalings[c->recipe];
	c->nsets = bench_nsets(c->b, (nread + nwritten) * (double)c->nelems);
	/* the scale needs the amax of all elements: x is read twice */
	if (c->quantize && c->recipe == CURRENT)
		nread *= 2;
	c->traffic = (nread + nwritten) * (double)c->nelems;
	c->copy.b = c->b;
	c->copy.nbytes = (size_t)ceil(c->traffic / 2);
	r = make_host(c);
	if (!r)
		r = copy_alloc(&c->copy);
	if (r)
		return r;
	if (c->quantize)
		r = make_quant(c);
	for (int i = 0; i < c->nsets && r >= 0; i++) {
		r = te_tensor_create(c->b->ctx, from, 2, shape, NULL, &c->x[i]);
		if (r >= 0)
			r = te_tensor_create(c->b->ctx, to, 2, shape, &opts, &c->y[i]);
		if (r >= 0)
			r = te_tensor_write(c->x[i], host_of(c, i), te_tensor_nbytes(c->x[i]));
	}
	return r < 0 ? say_te(r, "%s", c->b->o->test->name) : STATUS_OK;
}

static void cast_free(struct cast *c)
{
	te_stream_sync(c->b->stream);
	copy_free(&c->copy);
	for (int i = 0; i < c->nsets; i++) {
		if (c->x)
			te_tensor_unref(c->x[i]);
		if (c->y)
			te_tensor_unref(c->y[i]);
	}
	te_quant_unref(c->q);
	free(c->x);
	free(c->y);
	free(c->host);
	free(c->host16);
}

/*
 * The reference. A scale is 1 at first; in the current recipe it is 448 / amax. The amax of
 * normally distributed numbers is neither 0 nor so small that the quotient overflows.
 */
static void model_cast(const struct cast *c, int set, uint8_t *want)
{
	for (int64_t i = 0; i < c->nelems; i++) {
		uint16_t half = te_bf16_encode(c->host[set + i]);

		memcpy(want + 2 * i, &half, 2);
	}
}

/*
 * Blocks, each of height rows and width columns of the copy: of the row-wise copy, or, turned, of
 * the column-wise one. Scales are the powers of two that are not above 448 / amax.
 */
static void model_blocks(const struct cast *c, int set, int turned, uint8_t *want, float *want_inv)
{
	const enum te_scaling scaling = scalings[c->recipe];
	const int64_t rows = turned ? c->cols : c->rows, cols = turned ? c->rows : c->cols;
	const int64_t height = scaling == TE_SCALING_1X128 ? 1 : 128;
	const int64_t n = te_scaling_nfloats(scaling, rows, cols);

	for (int64_t i = 0; i < n; i++)
		want_inv[i] = 0; /* padding stays so */
	for (int64_t i = 0; i < 2 * c->nelems; i++) {
		const int64_t e = i % c->nelems, row = e / cols, col = e % cols;
		float *inv = &want_inv[te_scaling_index(scaling, rows, cols, row, col)];
		const float x = te_bf16_decode(
			c->host16[set + (turned ? col * c->cols + row : e)]);

		if (i < c->nelems) { /* the amax */
			*inv = fmaxf(*inv, fabsf(x));
			continue;
		}
		if (row % height == 0 && col % 128 == 0) { /* the first of its block */
			int exponent;

			frexpf(*inv > 0 ? te_dtype_max(TE_DTYPE_E4M3) / *inv : 1, &exponent);
			*inv = ldexpf(1, 1 - exponent);
		}
		want[e] = te_fp8_encode(TE_DTYPE_E4M3, x / *inv);
	}
}

static float model_quantize(const struct cast *c, int set, uint8_t *want, uint8_t *want_cols)
{
	float amax = 0, scale = 1;

	for (int64_t i = 0; i < c->nelems; i++)
		amax = fmaxf(amax, fabsf(te_bf16_decode(c->host16[set + i])));
	if (c->recipe == CURRENT && amax > 0)
		scale = te_dtype_max(TE_DTYPE_E4M3) / amax;
	for (int64_t row = 0; row < c->rows; row++) {
		for (int64_t col = 0; col < c->cols; col++) {
			int64_t i = row * c->cols + col;
			float x = te_bf16_decode(c->host16[set + i]) * scale;

			want[i] = te_fp8_encode(TE_DTYPE_E4M3, x);
			want_cols[col * c->rows + row] = want[i];
		}
	}
	return 1 / scale;
}

static int fetch(struct cast *c, void *got, const void *device, size_t nbytes)
{
	return bench_idle(c->b, te_copy(c->b->stream, got, device, nbytes));
}

/* the copy of a block-scaled tensor and its scales */
static int verify_blocks(struct cast *c, int set, int turned, uint8_t *got, uint8_t *want)
{
	const struct te_tensor *y = c->y[set];
	const size_t nbytes = te_tensor_nbytes(y);
	const size_t n = (size_t)te_scaling_nfloats(scalings[c->recipe],
						    turned ? c->cols : c->rows,
						    turned ? c->rows : c->cols);
	float *inv = malloc(2 * n * sizeof(*inv));
	int r;

	if (!inv)
		return say_bad("--verify: no memory for %zu scales", n);
	model_blocks(c, set, turned, want, inv + n);
	r = fetch(c, got, turned ? te_tensor_coldata(y) : te_tensor_data(y), nbytes);
	if (r >= 0)
		r = fetch(c, inv, turned ? te_tensor_col_scale_inv(y) : te_tensor_scale_inv(y),
			  n * sizeof(*inv));
	if (r < 0)
		r = say_te(r, "verify");
	else
		r = bench_equal(turned ? "column-wise scales" : "row-wise scales", inv, inv + n,
				n * sizeof(*inv));
	if (!r)
		r = bench_equal(turned ? "column-wise codes" : "row-wise codes", got, want,
				nbytes);
	free(inv);
	return r;
}

/* got, want and want_cols have nelems of the output type */
static int verify_set(struct cast *c, int set, uint8_t *got, uint8_t *want, uint8_t *want_cols)
{
	size_t nbytes = te_tensor_nbytes(c->y[set]);
	float scale_inv, want_scale_inv;
	int r;

	r = te_fill(c->b->stream, te_tensor_data(c->y[set]), 0xa5, nbytes);
	c->at = set;
	if (r >= 0)
		r = work(c);
	if (r >= 0 && c->quantize && scalings[c->recipe]) {
		r = verify_blocks(c, set, 0, got, want);
		return r || c->copies == ROW ? r : verify_blocks(c, set, 1, got, want);
	}
	r = r < 0 ? bench_idle(c->b, r) : fetch(c, got, te_tensor_data(c->y[set]), nbytes);
	if (r >= 0 && !c->quantize) {
		model_cast(c, set, want);
		return bench_equal("cast", got, want, nbytes);
	}
	if (r >= 0)
		r = fetch(c, &scale_inv, te_tensor_scale_inv(c->y[set]), sizeof(scale_inv));
	if (r < 0)
		return say_te(r, "verify");
	want_scale_inv = model_quantize(c, set, want, want_cols);
	r = bench_equal("scale_inv", &scale_inv, &want_scale_inv, sizeof(scale_inv));
	if (!r)
		r = bench_equal("row-wise codes", got, want, nbytes);
	if (r || c->copies == ROW)
		return r;
	r = fetch(c, got, te_tensor_coldata(c->y[set]), nbytes);
	return r < 0 ? say_te(r, "verify") :
		       bench_equal("column-wise codes", got, want_cols, nbytes);
}

static int verify(struct cast *c)
{
	size_t nbytes = te_tensor_nbytes(c->y[0]);
	uint8_t *got = malloc(nbytes), *want = malloc(nbytes), *want_cols = malloc(nbytes);
	int r;

	if (!got || !want || !want_cols)
		r = say_bad("--verify: no memory for three times %zu bytes", nbytes);
	else
		r = verify_set(c, 0, got, want, want_cols);
	if (!r && c->nsets > 1)
		r = verify_set(c, c->nsets - 1, got, want, want_cols);
	free(got);
	free(want);
	free(want_cols);
	return r;
}

static int measure(struct cast *c, int rows_left)
{
	struct bench *b = c->b;
	struct stats us[2];
	int r;

	b->cache = opt.cache;
	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	c->rows = opt.rows;
	c->cols = opt.cols;
	r = cast_alloc(c);
	if (!r && b->o->verify)
		r = verify(c);
	if (!r)
		r = bench_batch(b, work, c, 1000, 1, 16, &c->batch);
	if (!r)
		r = bench_batch(b, copy_work, &c->copy, 1000, 1, 16, &c->copy.batch);
	if (!r)
		r = bench_series(b, device_us, c, 2, us);
	if (r)
		return r;
	if (c->quantize) {
		bench_text(b, "recipe", recipe_names[c->recipe]);
		bench_text(b, "copies", copies_names[c->copies]);
	}
	bench_int(b, "rows", c->rows);
	bench_int(b, "cols", c->cols);
	bench_int(b, "buffers", 2 * (int64_t)c->nsets);
	copy_compare(b, c->traffic, us);
	return STATUS_OK;
}

static int run_cast(struct bench *b)
{
	struct cast c = { .b = b };
	int r = measure(&c, 1);

	cast_free(&c);
	return r;
}

static int run_quantize(struct bench *b)
{
	int rows = __builtin_popcount(opt.recipe) * __builtin_popcount(opt.copies), r = STATUS_OK;

	for (int i = 0; i < NRECIPES * NCOPIES && !r; i++) {
		struct cast c = {
			.b = b, .quantize = 1, .recipe = i / NCOPIES, .copies = i % NCOPIES
		};

		if (!(opt.recipe & 1u << c.recipe) || !(opt.copies & 1u << c.copies))
			continue;
		r = measure(&c, rows--);
		cast_free(&c);
	}
	return r;
}

const struct test test_cast = {
	.name = "cast",
	.text = "FP32 to BF16, compared with a copy of as many bytes",
	.options = cast_options,
	.values = &opt,
	.columns = copy_columns,
	.run = run_cast,
};

const struct test test_quantize = {
	.name = "quantize",
	.text = "BF16 to E4M3 by a recipe, compared with a copy of as many bytes",
	.options = quantize_options,
	.values = &opt,
	.columns = copy_columns,
	.run = run_quantize,
};
