/*
 * gemm.c - te_perftest gemm: te_gemm of K-major operands, as in the forward pass of a linear
 * layer, compared with the peak rate of the type.
 */
#include "config.h"

#include <math.h>

#include <te/gemm.h>

#include "call.h"
#include "tools/lib/say.h"

static struct {
	char *cache;
	uint32_t types;
	int64_t m, n, k;
} opt;

static const struct option_field options[] = {
	CACHE_OPTION,
	{ "types", OPTION_WORDS, AT(types), "bf16,fp8", 0, 0, 0,
	  "fp32|bf16|fp8|fp8-grad|fp8-block|fp8-block-dw|mxfp8|nvfp4",
	  "types of the operands; D is BF16, or FP32 for FP32" },
	{ "m", OPTION_COUNT, AT(m), "0", 0, 1 << 20, 0, "N",
	  "rows of D; 0: 4096, or 256 on the host" },
	{ "n", OPTION_COUNT, AT(n), "0", 0, 1 << 20, 0, "N", "columns of D; 0: the same" },
	{ "k", OPTION_COUNT, AT(k), "0", 0, 1 << 20, 0, "N", "terms of a sum; 0: the same" },
	{ 0 },
};

static int gemm(const struct call *c, struct te_tensor *const *t)
{
	return te_gemm(c->b->stream, t[0], t[1], t[2], NULL);
}

#define ROW(name, a, b, d, asc, wsc)                                                      \
	{                                                                                 \
		name, gemm,                                                               \
			{ { TE_DTYPE_##a, ROWS, INNER, NORMAL, 1, TE_SCALING_##asc, 0 },  \
			  { TE_DTYPE_##b, COLS, INNER, NORMAL, 1, TE_SCALING_##wsc, 0 },  \
			  { TE_DTYPE_##d, ROWS, COLS, ZEROS, 1, TE_SCALING_TENSOR, 0 } }, \
			NULL, NULL, check_gemm                                            \
	}

/* the choices of --types, in their order */
static const struct call_row rows[] = {
	ROW("fp32", FP32, FP32, FP32, TENSOR, TENSOR),
	ROW("bf16", BF16, BF16, BF16, TENSOR, TENSOR),
	ROW("fp8", E4M3, E4M3, BF16, TENSOR, TENSOR),
	ROW("fp8-grad", E5M2, E4M3, BF16, TENSOR, TENSOR),
	ROW("fp8-block", E4M3, E4M3, BF16, 1X128, 128X128),
	ROW("fp8-block-dw", E4M3, E4M3, BF16, 1X128, 1X128),
	ROW("mxfp8", E4M3, E4M3, BF16, 1X32, 1X32),
	ROW("nvfp4", E2M1, E2M1, BF16, 1X16, 16X16),
};
#define NROWS ((int)(sizeof(rows) / sizeof(rows[0])))

int gemm_open(struct call *c, struct bench *b, enum te_dtype type, int64_t n)
{
	*c = (struct call){ .b = b, .row = rows[type == TE_DTYPE_BF16], .batch = 1, .once = 1 };
	c->extent[ROWS] = c->extent[COLS] = c->extent[INNER] = n;
	return call_open(c);
}

static int measure(struct call *c, int rows_left)
{
	const double flops = 2.0 * (double)c->extent[ROWS] * (double)c->extent[COLS] *
			     (double)c->extent[INNER];
	struct stats us;
	int r;

	if (!bench_row(c->b, rows_left, 1))
		return STATUS_OK;
	r = call_open(c);
	if (!r)
		r = call_measure(c, &us);
	if (!r) {
		bench_text(c->b, "types", c->row.name);
		bench_int(c->b, "m", c->extent[ROWS]);
		bench_int(c->b, "n", c->extent[COLS]);
		bench_int(c->b, "k", c->extent[INNER]);
		bench_int(c->b, "buffers", 3 * (int64_t)c->nsets);
		bench_stats(c->b, "device_us", &us);
		call_rate(c, us.n ? flops / us.median * 1e6 : NAN);
	}
	call_close(c);
	return r;
}

static int run(struct bench *b)
{
	int left = __builtin_popcount(opt.types), r = STATUS_OK;

	b->cache = opt.cache;
	for (int i = 0; i < NROWS && !r; i++) {
		struct call c = { .b = b, .row = rows[i], .batch = 1 };

		if (!(opt.types & 1u << i))
			continue;
		c.extent[ROWS] = bench_extent(b, opt.m, 256, 4096);
		c.extent[COLS] = bench_extent(b, opt.n, 256, 4096);
		c.extent[INNER] = bench_extent(b, opt.k, 256, 4096);
		r = measure(&c, left--);
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
