/*
 * t/kernels/host_kernels_block.c - block-scaled quantization, of te_k_q: the reference function
 * against an independent implementation (t/data/gen_block.py), and fused against separate kernels.
 */
#include "config.h"

#include <te/dtype.h>
#include <te/op.h>

#include "host_kernels_lib.h"
#include "kernels/ref.h"

static const struct golden {
	int64_t rows, cols;
	int32_t qdtype, scaling, pow2;
	float epsilon;
	uint64_t seed;
	uint32_t row, row_scales, col, col_scales; /* FNV-1a */
} golden[] = {
#define E4M3 TE_DTYPE_E4M3
#define E5M2 TE_DTYPE_E5M2
#define BLOCK(rows, cols, type, scaling, pow2, epsilon, seed, row, row_scales, col, col_scales) \
	{ rows, cols, type,	   TE_K_SCALING_##scaling, pow2, epsilon, seed, row,           \
	  row_scales, col, col_scales },
#include "t/data/block.inc"
#undef BLOCK
#undef E5M2
#undef E4M3
};

/* the numbers of gen_block.py */
static void fill(float *x, int64_t rows, int64_t cols, uint64_t state)
{
	static const uint32_t special[] = { 0,		0x80000000, 0x7fc00000, 0x7f800000,
					    0xff800000, 1,	    0x007fffff, 0x00800000,
					    0x7f7fffff, 0x3f800000 };

	for (int64_t i = 0; i < rows * cols; i++) {
		const int64_t r = i / cols;
		uint32_t w, bits;

		state = state * 6364136223846793005u + 1442695040888963407u;
		w = (uint32_t)(state >> 32);
		bits = (w & 0x807fffff) | (112 + (w >> 23 & 31)) << 23;
		if (r % 7 == 3)
			bits = (w & 0x807fffff) | (w >> 23 & 3) << 23;
		if (r % 16 == 5)
			bits = special[r < 160 ? r / 16 : i % 10];
		x[i] = te__f32_from_bits(bits);
	}
}

static const int32_t block_scalings[] = { TE_K_SCALING_1X128, TE_K_SCALING_128X128,
					  TE_K_SCALING_1X32 };

static uint32_t fnv(const void *p, size_t nbytes)
{
	const uint8_t *b = p;
	uint32_t h = 2166136261u;

	while (nbytes--)
		h = (h ^ *b++) * 16777619u;
	return h;
}

/* all codes of NaN become 0x7f */
static void one_nan(int32_t qdtype, uint8_t *code, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if ((code[i] & 0x7f) > (qdtype == TE_DTYPE_E4M3 ? 0x7e : 0x7c))
			code[i] = 0x7f;
}

/* a block-scaled output over a [rows, cols] result, all of it poison */
struct blocks {
	struct te_k_q q;
	int64_t n, nrow, ncol; /* codes; scales of each copy */
};

static struct blocks blocks_new(int32_t qdtype, int32_t scaling, int64_t rows, int64_t cols)
{
	struct blocks b = {
		.q = { .dtype = qdtype, .scaling = scaling, .pow2 = 1 },
		.n = rows * cols,
		.nrow = te_k_scale_nfloats(scaling, rows, cols),
		.ncol = te_k_scale_nfloats(scaling, cols, rows),
	};

	b.q.row = hk_fresh(qdtype, b.n);
	b.q.col = hk_fresh(qdtype, b.n);
	b.q.scale_inv = hk_fresh(TE_DTYPE_FP32, b.nrow);
	b.q.col_scale_inv = hk_fresh(TE_DTYPE_FP32, b.ncol);
	return b;
}

/* nothing was written after the end of an array */
static void blocks_check_ends(const struct blocks *b)
{
	hk_check_end(b->q.dtype, b->q.row, b->n);
	hk_check_end(b->q.dtype, b->q.col, b->n);
	hk_check_end(TE_DTYPE_FP32, b->q.scale_inv, b->nrow);
	hk_check_end(TE_DTYPE_FP32, b->q.col_scale_inv, b->ncol);
}

static void blocks_check_same(const struct blocks *a, const struct blocks *b)
{
	hk_check_same(a->q.dtype, a->q.row, b->q.row, a->n);
	hk_check_same(a->q.dtype, a->q.col, b->q.col, a->n);
	hk_check_same(TE_DTYPE_FP32, a->q.scale_inv, b->q.scale_inv, a->nrow);
	hk_check_same(TE_DTYPE_FP32, a->q.col_scale_inv, b->q.col_scale_inv, a->ncol);
}

static void blocks_free(struct blocks *b)
{
	free(b->q.row);
	free(b->q.col);
	free(b->q.scale_inv);
	free(b->q.col_scale_inv);
}

CASE(block, "host numeric");

TEST_EACH(block, quantizes_as_another_implementation, TT_LEN(golden))
{
	const struct golden *g = &golden[_i];
	struct blocks b = blocks_new(g->qdtype, g->scaling, g->rows, g->cols);
	float *x = hk_fresh(TE_DTYPE_FP32, b.n);
	struct te_k_quantize k = { x, g->rows, g->cols, b.q, TE_DTYPE_FP32, 0, 0, 0, 0 };

	k.q.pow2 = g->pow2;
	k.q.epsilon = g->epsilon;
	fill(x, g->rows, g->cols, g->seed);
	te__h_quantize(&k);
	blocks_check_ends(&b);
	one_nan(g->qdtype, b.q.row, b.n);
	one_nan(g->qdtype, b.q.col, b.n);
	ck_assert_uint_eq(fnv(b.q.scale_inv, (size_t)b.nrow * 4), g->row_scales);
	ck_assert_uint_eq(fnv(b.q.row, (size_t)b.n), g->row);
	ck_assert_uint_eq(fnv(b.q.col_scale_inv, (size_t)b.ncol * 4), g->col_scales);
	ck_assert_uint_eq(fnv(b.q.col, (size_t)b.n), g->col);
	free(x);
	blocks_free(&b);
}

/* omitting one copy does not change the other, and noop writes nothing */
TEST_EACH(block, copies_are_optional, 3)
{
	const int32_t scaling = block_scalings[_i];
	const int64_t rows = 130, cols = 261;
	struct blocks want = blocks_new(TE_DTYPE_E4M3, scaling, rows, cols);
	struct blocks got = blocks_new(TE_DTYPE_E4M3, scaling, rows, cols);
	void *x = hk_normal(TE_DTYPE_BF16, rows * cols, 3.0f);
	struct te_k_quantize k = { x, rows, cols, want.q, TE_DTYPE_BF16, 0, 0, 0, 0 };

	te__h_quantize(&k);
	k.q = got.q;
	k.q.noop = &hk_noop_on;
	te__h_quantize(&k);
	ck_assert(tt_is_poison(got.q.row, (size_t)got.n));
	ck_assert(tt_is_poison(got.q.scale_inv, (size_t)got.nrow * 4));
	k.q.noop = &hk_noop_off;
	k.q.col = NULL;
	te__h_quantize(&k);
	ck_assert(tt_is_poison(got.q.col, (size_t)got.n));
	ck_assert(tt_is_poison(got.q.col_scale_inv, (size_t)got.ncol * 4));
	hk_check_same(TE_DTYPE_E4M3, got.q.row, want.q.row, got.n);
	k.q.col = got.q.col;
	k.q.row = NULL;
	te__h_quantize(&k);
	blocks_check_same(&got, &want);
	free(x);
	blocks_free(&got);
	blocks_free(&want);
}

/* both copies of a 128x128-scaled result have the same codes */
/* an input that ends before the copies has the codes and scales of one with zeros after it */
TEST_EACH(block, padding_has_the_codes_of_zeros, 16)
{
	const int32_t scaling = _i % 4, dtype = hk_types[_i / 4 % 2];
	const int64_t rows = _i < 8 ? 144 : 16, cols = _i < 8 ? 272 : 16;

	for (int pad = 1; pad < 16; pad += 7) {
		const int64_t width = cols - pad, nx = (rows - 16 + pad) * width;
		struct blocks want = blocks_new(TE_DTYPE_E4M3, scaling, rows, cols);
		struct blocks got = blocks_new(TE_DTYPE_E4M3, scaling, rows, cols);
		void *x = hk_normal(dtype, nx, 3.0f), *all = hk_normal(dtype, rows * cols, 3.0f);
		float scale = 1.7f, amax[2] = { 0 };
		struct te_k_quantize k = { all, rows, cols, want.q, dtype, 0, 0, 0, 0 };

		for (int64_t i = 0; i < rows * cols; i++) {
			const int64_t r = i / cols, c = i % cols;
			const int in = r < rows - 16 + pad && c < width;

			tt_set(dtype, all, i, in ? tt_get(dtype, x, r * width + c) : 0.0f);
		}
		k.q.scale = &scale;
		k.q.amax = scaling ? NULL : &amax[0];
		te__h_quantize(&k);
		k.x = x;
		k.q = got.q;
		k.q.scale = &scale;
		k.q.amax = scaling ? NULL : &amax[1];
		k.pad_rows = (int16_t)(16 - pad);
		k.pad_cols = (int16_t)pad;
		te__h_quantize(&k);
		blocks_check_same(&got, &want);
		blocks_check_ends(&got);
		ck_assert_float_eq(amax[0], amax[1]);
		blocks_free(&want);
		blocks_free(&got);
		free(x);
		free(all);
	}
}

TEST(block, square_blocks_are_transposed)
{
	const int64_t rows = 257, cols = 130;
	struct blocks b = blocks_new(TE_DTYPE_E4M3, TE_K_SCALING_128X128, rows, cols);
	float *x = hk_normal(TE_DTYPE_FP32, rows * cols, 1.0f);
	struct te_k_quantize k = { x, rows, cols, b.q, TE_DTYPE_FP32, 0, 0, 0, 0 };
	const uint8_t *row = b.q.row, *col = b.q.col;

	te__h_quantize(&k);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			ck_assert(row[r * cols + c] == col[c * rows + r]);
			ck_assert(b.q.scale_inv[te_k_scale_index(b.q.scaling, rows, cols, r, c)] ==
				  b.q.col_scale_inv[te_k_scale_index(b.q.scaling, cols, rows, c,
								     r)]);
		}
	free(x);
	blocks_free(&b);
}

/* no error beyond the format's, of any number that is not tiny in its block */
TEST_EACH(block, dequantizes_within_the_format, 3)
{
	const int32_t scaling = block_scalings[_i];
	const int64_t rows = 140, cols = 300, n = rows * cols;
	struct blocks b = blocks_new(TE_DTYPE_E4M3, scaling, rows, cols);
	float *x = hk_normal(TE_DTYPE_FP32, n, 1.0f), *y = hk_fresh(TE_DTYPE_FP32, n);
	struct te_k_quantize k = { x, rows, cols, b.q, TE_DTYPE_FP32, 0, 0, 0, 0 };
	struct te_k_dequantize d = { b.q.row, y, b.q.scale_inv, rows, cols, TE_DTYPE_E4M3,
				     TE_DTYPE_FP32, scaling, 0, 0 };

	te__h_quantize(&k);
	te__h_dequantize(&d);
	hk_check_end(TE_DTYPE_FP32, y, n);
	/* half a unit of three bits; below 2^-6 of a scaled 1, half of the smallest step, 2^-9 */
	for (int64_t i = 0; i < n; i++) {
		const int64_t at = te_k_scale_index(scaling, rows, cols, i / cols, i % cols);
		const float inv = te__h_scale_get(b.q.scale_inv, scaling, at);

		hk_check_near(y[i], x[i], fabs((double)x[i]) / 16 + (double)inv / 1024, "value",
			      i);
	}
	free(x);
	free(y);
	blocks_free(&b);
}

/* kernels that quantize their result give the codes of the separate launches */
TEST_EACH(block, fused_is_separate, 12)
{
	static const struct {
		int64_t rows, cols;
	} shapes[] = { { 1, 1 }, { 130, 200 }, { 5, 2100 }, { 200, 128 }, { 129, 72 } };
	const int32_t dtype = hk_types[_i & 1];
	const int32_t scaling = block_scalings[_i / 4];
	const int gated = _i >> 1 & 1;

	for (size_t s = 0; s < TT_LEN(shapes); s++) {
		const int64_t rows = shapes[s].rows, cols = shapes[s].cols, n = rows * cols;
		const int64_t width = gated ? 2 * cols : cols, nx = rows * width;
		struct blocks want = blocks_new(TE_DTYPE_E4M3, scaling, rows, cols);
		struct blocks got = blocks_new(TE_DTYPE_E4M3, scaling, rows, cols);
		struct blocks want_dx = blocks_new(TE_DTYPE_E4M3, scaling, rows, width);
		struct blocks got_dx = blocks_new(TE_DTYPE_E4M3, scaling, rows, width);
		void *x = hk_normal(dtype, nx, 2.0f), *dy = hk_normal(dtype, n, 1.0f);
		void *y = hk_fresh(dtype, n), *again = hk_fresh(dtype, n);
		void *dx = hk_fresh(dtype, nx);
		float *gamma = hk_normal(TE_DTYPE_FP32, cols, 1.0f);
		float *rstd = hk_fresh(TE_DTYPE_FP32, rows), *mean = hk_fresh(TE_DTYPE_FP32, rows);
		float *part = hk_fresh(TE_DTYPE_FP32, TE_K_NPARTS(rows) * width);
		float *part2 = hk_fresh(TE_DTYPE_FP32, TE_K_NPARTS(rows) * width);
		struct te_k_quantize q = { y, rows, cols, want.q, dtype, 0, 0, 0, 0 };
		struct te_k_act_fwd f = { x, y, rows, cols, { 0 }, TE_ACT_SILU, gated, dtype, 0 };
		struct te_k_act_bwd w = { dy, x, dx, part, rows, cols, { 0 }, TE_ACT_GELU, gated,
					  dtype, 0 };
		struct te_k_norm_fwd m = { .x = dy, .gamma = gamma, .beta = gamma, .y = y,
					   .mean = mean, .rstd = rstd, .rows = rows, .cols = cols,
					   .eps = 1e-5f, .dtype = dtype };

		te__h_act_fwd(&f);
		te__h_quantize(&q);
		f.q = got.q;
		f.y = again;
		te__h_act_fwd(&f);
		hk_check_same(dtype, again, y, n);
		blocks_check_same(&got, &want);
		f.y = NULL;
		te__h_act_fwd(&f);
		blocks_check_same(&got, &want);

		te__h_norm_fwd(&m);
		te__h_quantize(&q);
		m.q = got.q;
		m.y = NULL;
		te__h_norm_fwd(&m);
		blocks_check_same(&got, &want);
		m.y = dy; /* in place */
		te__h_norm_fwd(&m);
		hk_check_same(dtype, dy, y, n);
		blocks_check_same(&got, &want);

		te__h_act_bwd(&w);
		q = (struct te_k_quantize){ dx, rows, width, want_dx.q, dtype, 0, 0, 0, 0 };
		te__h_quantize(&q);
		w.q = got_dx.q;
		w.dx = NULL;
		w.part = part2;
		te__h_act_bwd(&w);
		blocks_check_same(&got_dx, &want_dx);
		hk_check_same(TE_DTYPE_FP32, part2, part, TE_K_NPARTS(rows) * width);

		blocks_check_ends(&got);
		blocks_check_ends(&got_dx);
		blocks_free(&want), blocks_free(&got), blocks_free(&want_dx), blocks_free(&got_dx);
		free(x), free(dy), free(y), free(again), free(dx), free(gamma), free(rstd);
		free(mean), free(part), free(part2);
	}
}
