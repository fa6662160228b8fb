/* t/tensor/tensor.c - te_tensor_create(3), views, transfers and te_cast(3) on the host backend. */
#include "config.h"

#include <math.h>

#include <te/capture.h>
#include <te/errno.h>
#include "libtecore/base/private.h"
#include <te/quant.h>
#include <te/tensor.h>

#include "libtecore/tensor/ctx.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define LIMIT (256 << 20) /* of device memory, set in suite() */
/* checks the code and the whole error message */
#define REFUSED(call, code, ...)                                                 \
	do {                                                                     \
		char ref_want[200];                                              \
		int ref_r;                                                       \
		te_error_clear();                                                \
		ref_r = (call);                                                  \
		snprintf(ref_want, sizeof(ref_want), __VA_ARGS__);               \
		ck_assert_msg(ref_r == (code), "%s: %d", #call, ref_r);          \
		ck_assert_str_eq(te_error_detail(), ref_want);                   \
	} while (0)

static uint64_t used(void)
{
	struct te_mem_info m = TE_MEM_INFO_INIT;

	DO(te_ctx_mem_info(ctx, &m));
	return m.used_nbytes;
}

static struct te_tensor *create(enum te_dtype dtype, int ndim, const int64_t *shape,
				uint32_t flags, uint32_t align)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t;

	o.flags = flags;
	o.align = align;
	DO(te_tensor_create(ctx, dtype, ndim, shape, &o, &t));
	return t;
}

static struct te_tensor *vector(enum te_dtype dtype, int64_t n)
{
	return create(dtype, 1, &n, 0, 0);
}

static int64_t random_shape(int ndim, int64_t *ret_shape)
{
	int64_t n = 1;

	for (int i = 0; i < ndim; i++)
		n *= ret_shape[i] = tt_rand_int(1, ndim > 5 ? 4 : 9);
	return n;
}

static void fetch(void *host, const void *d, size_t n)
{
	DO(te_copy(st, host, d, n));
	DO(te_stream_sync(st));
}

/* ---- creating ---- */

CTX_CASE(create, "host fast");

TEST_EACH(create, has_the_shape_it_was_given, TE_DTYPE_E2M1)
{
	const enum te_dtype dtype = (enum te_dtype)_i;
	int64_t shape[TE_MAX_DIMS];

	for (int ndim = 1; ndim <= TE_MAX_DIMS; ndim++) {
		int64_t n = random_shape(ndim, shape), cols = shape[ndim - 1];
		size_t nbytes = (size_t)n * te_dtype_nbytes(dtype);
		unsigned char *in = malloc(nbytes), *out = malloc(nbytes + 8);
		struct te_tensor *t;

		DO(te_tensor_create(ctx, dtype, ndim, shape, NULL, &t));
		ck_assert_ptr_eq(te_tensor_ctx(t), ctx);
		ck_assert_int_eq(te_tensor_dtype(t), dtype);
		ck_assert_int_eq(te_tensor_ndim(t), ndim);
		ck_assert_int_eq(te_tensor_nelems(t), n);
		ck_assert_uint_eq(te_tensor_nbytes(t), nbytes);
		ck_assert_int_eq(te_tensor_cols(t), cols);
		ck_assert_int_eq(te_tensor_rows(t), n / cols);
		ck_assert_ptr_null(te_tensor_base(t));
		ck_assert_ptr_null(te_tensor_coldata(t));
		ck_assert_uint_eq((uintptr_t)te_tensor_data(t) % 256, 0);
		for (int i = 0; i < ndim; i++) {
			ck_assert_int_eq(te_tensor_extent(t, i), shape[i]);
			ck_assert_int_eq(te_tensor_extent(t, i - ndim), shape[i]);
		}
		ck_assert_int_eq(te_tensor_extent(t, ndim), -EINVAL);
		ck_assert_int_eq(te_tensor_extent(t, -ndim - 1), -EINVAL);
		/* all of it can be written and read, and no more is */
		tt_fill_bytes(in, nbytes);
		tt_poison(out, nbytes + 8);
		DO(te_tensor_write(t, in, nbytes));
		DO(te_tensor_read(t, out, nbytes));
		ck_assert_int_eq(memcmp(in, out, nbytes), 0);
		ck_assert(tt_is_poison(out + nbytes, 8));
		te_tensor_unref(t);
		free(in);
		free(out);
	}
}

static const uint32_t aligns[] = { 0, 1, 2, 64, 256, 512, 4096, 65536, 1u << 20 };

TEST_EACH(create, is_aligned_as_asked, TT_LEN(aligns))
{
	const uint32_t align = aligns[_i], want = align < 256 ? 256 : align;
	const int64_t shape[2] = { 33, 7 };
	struct te_tensor *t[3];

	for (int i = 0; i < 3; i++) {
		t[i] = create(TE_DTYPE_E4M3, 2, shape, TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE,
			      align);
		ck_assert_uint_eq((uintptr_t)te_tensor_data(t[i]) % want, 0);
		ck_assert_uint_eq((uintptr_t)te_tensor_coldata(t[i]) % want, 0);
		ck_assert_uint_eq((uintptr_t)te_tensor_scale_inv(t[i]) % 4, 0);
		/* within what was allocated, which a sanitizer sees */
		DO(te_fill(st, te_tensor_data(t[i]), 1, te_tensor_nbytes(t[i])));
		DO(te_fill(st, te_tensor_coldata(t[i]), 2, te_tensor_nbytes(t[i])));
		DO(te_fill(st, te_tensor_scale_inv(t[i]), 3, 4));
		DO(te_stream_sync(st));
	}
	for (int i = 0; i < 3; i++)
		te_tensor_unref(t[i]);
}

static const struct {
	enum te_dtype dtype;
	uint32_t flags;
} copies[] = {
	{ TE_DTYPE_E4M3, 0 },
	{ TE_DTYPE_E4M3, TE_TENSOR_ROWWISE },
	{ TE_DTYPE_E4M3, TE_TENSOR_COLWISE },
	{ TE_DTYPE_E4M3, TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE },
	{ TE_DTYPE_E5M2, 0 },
	{ TE_DTYPE_E5M2, TE_TENSOR_ROWWISE },
	{ TE_DTYPE_E5M2, TE_TENSOR_COLWISE },
	{ TE_DTYPE_E5M2, TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE },
};

TEST_EACH(create, fp8_has_the_copies_it_was_given, TT_LEN(copies))
{
	const uint32_t flags = copies[_i].flags;
	const int row = flags != TE_TENSOR_COLWISE, col = (flags & TE_TENSOR_COLWISE) != 0;
	int64_t shape[3], n = random_shape(3, shape);
	struct te_tensor *t = create(copies[_i].dtype, 3, shape, flags, 0);
	unsigned char *buf = malloc((size_t)n);
	float inv = 0;

	ck_assert_int_eq(te_tensor_data(t) != NULL, row);
	ck_assert_int_eq(te_tensor_coldata(t) != NULL, col);
	ck_assert_uint_eq(te_tensor_nbytes(t), (size_t)n); /* of one copy */
	fetch(&inv, te_tensor_scale_inv(t), 4);
	ck_assert(inv == 1.0f);
	/* copies and the scale do not overlap */
	if (row)
		DO(te_fill(st, te_tensor_data(t), 0x11, (size_t)n));
	if (col)
		DO(te_fill(st, te_tensor_coldata(t), 0x22, (size_t)n));
	fetch(&inv, te_tensor_scale_inv(t), 4);
	ck_assert(inv == 1.0f);
	if (row) {
		DO(te_tensor_read(t, buf, (size_t)n));
		for (int64_t i = 0; i < n; i++)
			ck_assert_int_eq(buf[i], 0x11);
	} else {
		REFUSED(te_tensor_read(t, buf, (size_t)n), -EINVAL,
			"te_tensor_read: the tensor has no row-wise copy");
		REFUSED(te_tensor_write(t, buf, (size_t)n), -EINVAL,
			"te_tensor_write: the tensor has no row-wise copy");
	}
	te_tensor_unref(t);
	free(buf);
}

/* ---- block scaling ---- */

static const struct {
	enum te_scaling scaling;
	int64_t rows, cols, nfloats;
	int64_t r, c, index;
} layouts[] = {
	{ TE_SCALING_TENSOR, 300, 500, 1, 299, 499, 0 },
	{ TE_SCALING_1X128, 1, 1, 4, 0, 0, 0 },
	{ TE_SCALING_1X128, 6, 128, 8, 5, 127, 5 },
	{ TE_SCALING_1X128, 6, 129, 16, 5, 128, 13 },
	{ TE_SCALING_1X128, 8, 1024, 64, 3, 700, 43 },
	{ TE_SCALING_128X128, 1, 1, 4, 0, 0, 0 },
	{ TE_SCALING_128X128, 128, 512, 4, 127, 511, 3 },
	/* 6 blocks of columns have a stride of 8 */
	{ TE_SCALING_128X128, 129, 768, 16, 128, 767, 13 },
	{ TE_SCALING_128X128, 3072, 640, 192, 3071, 639, 188 },
};

CTX_CASE(block_scaling, "host fast", .name = "block scaling");

TEST_EACH(block_scaling, scales_have_a_layout, TT_LEN(layouts))
{
	const enum te_scaling s = layouts[_i].scaling;
	const int64_t rows = layouts[_i].rows, cols = layouts[_i].cols, n = layouts[_i].nfloats;
	int64_t most = 0;

	ck_assert_int_eq(te_scaling_nfloats(s, rows, cols), n);
	ck_assert_int_eq(te_scaling_index(s, rows, cols, layouts[_i].r, layouts[_i].c),
			 layouts[_i].index);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			int64_t at = te_scaling_index(s, rows, cols, r, c);

			ck_assert_int_ge(at, 0);
			most = at > most ? at : most;
		}
	ck_assert_int_lt(most, n);
	ck_assert_int_gt(most, n - (s == TE_SCALING_TENSOR ? 2 : 5));
	ck_assert_int_eq(te_scaling_nfloats(s, 0, cols), -1);
	ck_assert_int_eq(te_scaling_nfloats(s, rows, 0), -1);
	ck_assert_int_eq(te_scaling_nfloats((enum te_scaling)6, rows, cols), -1);
	ck_assert_int_eq(te_scaling_index(s, rows, cols, rows, 0), -1);
	ck_assert_int_eq(te_scaling_index(s, rows, cols, 0, cols), -1);
	ck_assert_int_eq(te_scaling_index(s, rows, cols, -1, 0), -1);
	ck_assert_int_eq(te_scaling_index(s, rows, cols, 0, -1), -1);
}

TEST(block_scaling, too_many_scales_have_no_layout)
{
	const int64_t most = INT64_MAX;

	for (int k = TE_SCALING_1X128; k <= TE_SCALING_128X128; k++) {
		const enum te_scaling s = (enum te_scaling)k;

		ck_assert_int_eq(te_scaling_nfloats(s, most, 1), -1);
		ck_assert_int_eq(te_scaling_nfloats(s, 1, most), -1);
		ck_assert_int_eq(te_scaling_nfloats(s, most, most), -1);
		ck_assert_int_eq(te_scaling_index(s, most, 1, most - 1, 0), -1);
		ck_assert_int_eq(te_scaling_index(s, 1, most, 0, most - 1), -1);
		/* 2^57 - 1 elements in a row or a column */
		ck_assert_int_ge(te_scaling_index(s, most / 64, 1, most / 64 - 1, 0), 0);
		ck_assert_int_gt(te_scaling_nfloats(s, 1, most / 64),
				 te_scaling_index(s, 1, most / 64, 0, most / 64 - 1));
	}
	ck_assert_int_eq(te_scaling_nfloats(TE_SCALING_TENSOR, most, most), 1);
}

/* each copy has its scales, all 1, and no array overlaps another */
TEST_EACH(block_scaling, copies_of_blocks_have_scales, 6)
{
	const enum te_scaling scaling = _i % 2 ? TE_SCALING_1X128 : TE_SCALING_128X128;
	const uint32_t flags = (uint32_t)_i / 2 + 1;
	const int row = flags & TE_TENSOR_ROWWISE, col = (flags & TE_TENSOR_COLWISE) != 0;
	const int64_t shape[3] = { 3, 50, 261 };
	const size_t nrow = (size_t)te_scaling_nfloats(scaling, 150, 261);
	const size_t ncol = (size_t)te_scaling_nfloats(scaling, 261, 150);
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t, *v;
	unsigned char *buf;
	float *s;

	o.flags = flags;
	o.scaling = scaling;
	DO(te_tensor_create(ctx, TE_DTYPE_E4M3, 3, shape, &o, &t));
	buf = malloc(te_tensor_nbytes(t));
	s = malloc((nrow + ncol) * 4);
	ck_assert_int_eq(te_tensor_scaling(t), scaling);
	ck_assert_int_eq(te_tensor_scale_inv(t) != NULL, row);
	ck_assert_int_eq(te_tensor_col_scale_inv(t) != NULL, col);
	ck_assert_uint_eq((uintptr_t)te_tensor_scale_inv(t) % 16, 0);
	ck_assert_uint_eq((uintptr_t)te_tensor_col_scale_inv(t) % 16, 0);
	if (row)
		DO(te_fill(st, te_tensor_data(t), 0x11, te_tensor_nbytes(t)));
	if (col)
		DO(te_fill(st, te_tensor_coldata(t), 0x22, te_tensor_nbytes(t)));
	if (row) {
		fetch(s, te_tensor_scale_inv(t), nrow * 4);
		for (size_t i = 0; i < nrow; i++)
			ck_assert(s[i] == 1.0f);
		DO(te_fill(st, te_tensor_scale_inv(t), 0x33, nrow * 4));
		fetch(buf, te_tensor_data(t), te_tensor_nbytes(t));
		for (size_t i = 0; i < te_tensor_nbytes(t); i++)
			ck_assert_int_eq(buf[i], 0x11);
	}
	if (col) {
		fetch(s, te_tensor_col_scale_inv(t), ncol * 4);
		for (size_t i = 0; i < ncol; i++)
			ck_assert(s[i] == 1.0f);
		DO(te_fill(st, te_tensor_col_scale_inv(t), 0x44, ncol * 4));
		fetch(buf, te_tensor_coldata(t), te_tensor_nbytes(t));
		for (size_t i = 0; i < te_tensor_nbytes(t); i++)
			ck_assert_int_eq(buf[i], 0x22);
	}
	/* only the whole tensor can be viewed, with other extents of the rows */
	DO(te_tensor_view(t, 0, 2, (const int64_t[]){ 150, 261 }, &v));
	ck_assert_int_eq(te_tensor_scaling(v), scaling);
	ck_assert_ptr_eq(te_tensor_scale_inv(v), te_tensor_scale_inv(t));
	ck_assert_ptr_eq(te_tensor_col_scale_inv(v), te_tensor_col_scale_inv(t));
	te_tensor_unref(v);
	REFUSED(te_tensor_view(t, 0, 2, (const int64_t[]){ 128, 261 }, &v), -EINVAL,
		"te_tensor_view: a tensor with %s is viewed whole, with its 261 columns",
		col ? "a column-wise copy" : "block scaling");
	te_tensor_unref(t);
	free(buf);
	free(s);
}

TEST(block_scaling, wrapped_blocks_have_scales)
{
	const int64_t shape[2] = { 150, 261 };
	char mem[64] = { 0 };
	float row[4], col[4];
	struct te_tensor *t;

	DO(te__tensor_wrap_scaled(ctx, TE_DTYPE_E5M2, 2, shape, mem, mem + 32, row, col,
				  TE_SCALING_128X128, &t));
	ck_assert_int_eq(te_tensor_scaling(t), TE_SCALING_128X128);
	ck_assert_ptr_eq(te_tensor_scale_inv(t), row);
	ck_assert_ptr_eq(te_tensor_col_scale_inv(t), col);
	te_tensor_unref(t);
	/* an absent copy needs no scales */
	DO(te__tensor_wrap_scaled(ctx, TE_DTYPE_E5M2, 2, shape, NULL, mem, NULL, col,
				  TE_SCALING_1X128, &t));
	ck_assert_ptr_null(te_tensor_scale_inv(t));
	te_tensor_unref(t);
	REFUSED(te__tensor_wrap_scaled(ctx, TE_DTYPE_E5M2, 2, shape, mem, NULL, NULL, col,
				       TE_SCALING_1X128, &t), -EINVAL,
		"te_tensor_wrap: an FP8 tensor needs a scale_inv");
	REFUSED(te__tensor_wrap_scaled(ctx, TE_DTYPE_E5M2, 2, shape, mem, mem, row, NULL,
				       TE_SCALING_1X128, &t), -EINVAL,
		"te_tensor_wrap: an FP8 tensor needs a col_scale_inv");
	REFUSED(te__tensor_wrap_scaled(ctx, TE_DTYPE_E5M2, 2, shape, mem, mem, row,
				       (float *)(void *)(mem + 2), TE_SCALING_1X128, &t), -EINVAL,
		"te_tensor_wrap: scale_inv at %p is not aligned to 4 bytes", (void *)(mem + 2));
	/* with one scale for all, both accessors return its word */
	DO(te_tensor_wrap(ctx, TE_DTYPE_E4M3, 2, shape, mem, mem + 32, row, &t));
	ck_assert_int_eq(te_tensor_scaling(t), TE_SCALING_TENSOR);
	ck_assert_ptr_eq(te_tensor_col_scale_inv(t), row);
	te_tensor_unref(t);
}

/* rows are all extents but the last: the column copy of [a, b, c] is [c, a * b] */
TEST_EACH(create, the_column_copy_is_the_transpose, 5, .from = 3)
{
	const enum te_dtype dtype = copies[_i].dtype;
	struct te_recipe recipe = tt_recipe("fp8-current");
	int64_t shape[3], n = random_shape(3, shape), rows = shape[0] * shape[1], cols = shape[2];
	struct te_tensor *x = create(TE_DTYPE_FP32, 3, shape, 0, 0);
	struct te_tensor *y = create(dtype, 3, shape, TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE, 0);
	float *v = malloc((size_t)n * 4);
	uint8_t *row = malloc((size_t)n), *col = malloc((size_t)n);
	struct te_quant *q;
	int distinct = 0;
	float inv;

	DO(te_quant_create(ctx, &recipe, 1, &dtype, &q));
	tt_fill_normal(v, (size_t)n, 2.0f);
	DO(te_tensor_write(x, v, (size_t)n * 4));
	DO(te_quantize(st, q, 0, x, y, NULL, 0));
	DO(te_tensor_read(y, row, (size_t)n));
	fetch(col, te_tensor_coldata(y), (size_t)n);
	fetch(&inv, te_tensor_scale_inv(y), 4);
	ck_assert(inv > 0);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t k = 0; k < cols; k++) {
			float got = te_fp8_decode(dtype, row[i * cols + k]) * inv;

			ck_assert_uint_eq(col[k * rows + i], row[i * cols + k]);
			/* E5M2 keeps two bits: half of the last is an eighth of the value */
			ck_assert(fabsf(got - v[i * cols + k]) <= 0.13f * fabsf(v[i * cols + k]) +
				  1e-4f);
			distinct += row[i * cols + k] != row[0];
		}
	ck_assert(n == 1 || distinct > 0);
	te_quant_unref(q);
	te_tensor_unref(x);
	te_tensor_unref(y);
	free(v);
	free(row);
	free(col);
}

TEST(create, invalid_shapes_are_refused)
{
	int64_t shape[TE_MAX_DIMS + 1];
	struct te_tensor *t = (void *)shape;

	for (int i = 0; i <= TE_MAX_DIMS; i++)
		shape[i] = 2;
	REFUSED(te_tensor_create(ctx, TE_DTYPE_FP32, 0, shape, NULL, &t), -EINVAL,
		"te_tensor_create: 0 extents, not 1 to 8");
	REFUSED(te_tensor_create(ctx, TE_DTYPE_FP32, -1, shape, NULL, &t), -EINVAL,
		"te_tensor_create: -1 extents, not 1 to 8");
	REFUSED(te_tensor_create(ctx, TE_DTYPE_FP32, 9, shape, NULL, &t), -EINVAL,
		"te_tensor_create: 9 extents, not 1 to 8");
	REFUSED(te_tensor_create(ctx, TE_DTYPE_FP32, 2, NULL, NULL, &t), -EINVAL,
		"te_tensor_create: 0 extents, not 1 to 8");
	REFUSED(te_tensor_create(NULL, TE_DTYPE_FP32, 1, shape, NULL, &t), -EINVAL,
		"te_tensor_create: ctx is NULL");
	REFUSED(te_tensor_create(ctx, TE_DTYPE_FP32, 1, shape, NULL, NULL), -EINVAL,
		"te_tensor_create: ret_t is NULL");
	REFUSED(te_tensor_create(ctx, TE_DTYPE_COUNT, 1, shape, NULL, &t), -EINVAL,
		"te_tensor_create: element type %d is unknown", TE_DTYPE_COUNT);
	REFUSED(te_tensor_create(ctx, (enum te_dtype)77, 1, shape, NULL, &t), -EINVAL,
		"te_tensor_create: element type 77 is unknown");
	for (int i = 0; i < TE_MAX_DIMS; i++) {
		int64_t bad = i % 2 ? 0 : -tt_rand_int(1, 1 << 30);

		shape[i] = bad;
		REFUSED(te_tensor_create(ctx, TE_DTYPE_BF16, TE_MAX_DIMS, shape, NULL, &t),
			-EINVAL, "te_tensor_create: extent %d is %lld", i, (long long)bad);
		shape[i] = 2;
	}
	ck_assert_ptr_eq(t, shape);
}

TEST(create, invalid_options_are_refused)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	const int64_t shape[2] = { 2, 2 };
	struct te_tensor *t;

	o.align = 384;
	REFUSED(te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, &o, &t), -EINVAL,
		"te_tensor_create: an alignment of 384 is no power of two");
	o.align = 0;
	o.flags = 4;
	REFUSED(te_tensor_create(ctx, TE_DTYPE_E4M3, 2, shape, &o, &t), -EINVAL,
		"te_tensor_create: flags 0x4 are unknown");
	for (int i = 0; i < TE_DTYPE_E2M1; i++) {
		o.flags = TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE;
		if (i == TE_DTYPE_E4M3 || i == TE_DTYPE_E5M2)
			continue;
		REFUSED(te_tensor_create(ctx, (enum te_dtype)i, 2, shape, &o, &t), -EINVAL,
			"te_tensor_create: %s has no column-wise copy, FP8 has",
			te_dtype_name((enum te_dtype)i));
	}
	o.flags = 0;
	o.scaling = 6;
	REFUSED(te_tensor_create(ctx, TE_DTYPE_E4M3, 2, shape, &o, &t), -EINVAL,
		"te_tensor_create: scaling 6 is unknown");
	o.scaling = TE_SCALING_1X128;
	REFUSED(te_tensor_create(ctx, TE_DTYPE_BF16, 2, shape, &o, &t), -EINVAL,
		"te_tensor_create: bf16 has no block scaling, FP8 has");
	o.scaling = TE_SCALING_TENSOR;
	o.size = 0;
	REFUSED(te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, &o, &t), -EINVAL,
		"te_tensor_create: struct te_tensor_opts says that it has 0 bytes: initialise it "
		"by TE_TENSOR_OPTS_INIT");
}

TEST(create, sizes_that_overflow_are_refused)
{
	const int64_t big = INT64_C(1) << 32, elems[3] = { big, big, 1 }, bytes = INT64_C(1) << 61;
	const int64_t most = INT64_MAX, tall[2] = { most / 64, 1 }, fits = (INT64_C(1) << 61) - 1;
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t = (void *)&o;
	int r;

	REFUSED(te_tensor_create(ctx, TE_DTYPE_UINT8, 3, elems, NULL, &t), -EINVAL,
		"te_tensor_create: the shape has more than 2^63 elements");
	REFUSED(te_tensor_create(ctx, TE_DTYPE_FP32, 1, &bytes, NULL, &t), -EINVAL,
		"te_tensor_create: the shape has more than 2^63 bytes");
	REFUSED(te_tensor_create(ctx, TE_DTYPE_BF16, 1, &most, NULL, &t), -EINVAL,
		"te_tensor_create: the shape has more than 2^63 bytes");
	/* representable, but larger than the machine's memory */
	ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_FP32, 1, &fits, NULL, &t), -ENOMEM);
	ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_UINT8, 1, &most, NULL, &t), -ENOMEM);
	/* two copies of it */
	o.flags = TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE;
	r = te_tensor_create(ctx, TE_DTYPE_E4M3, 1, &most, &o, &t);
	ck_assert_int_eq(r, -ENOMEM);
	ck_assert_str_ne(te_error_detail(), "");
	o.align = 1u << 31;
	ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_E4M3, 1, &most, &o, &t), -ENOMEM);
	o.align = 0;
	for (int s = TE_SCALING_1X128; s <= TE_SCALING_128X128; s++) {
		o.scaling = (uint32_t)s;
		ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_E4M3, 1, &most, &o, &t), -ENOMEM);
		ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_E4M3, 2, tall, &o, &t), -ENOMEM);
	}
	ck_assert_ptr_eq(t, &o);
}

TEST(create, too_large_sizes_are_refused_without_leaks)
{
	const int64_t shape[2] = { LIMIT / 1024 + 1, 1024 }, half[2] = { LIMIT / 2048, 1024 };
	int64_t live = te__alloc_live();
	struct te_tensor *t = NULL, *u = NULL;
	char want[48];

	ck_assert_int_eq(te_tensor_create(ctx, TE_DTYPE_UINT8, 2, shape, NULL, &t), -ENOMEM);
	snprintf(want, sizeof(want), "no %lld bytes",
		 (long long)(shape[0] * shape[1]));
	ck_assert_msg(strstr(te_error_detail(), want) != NULL, "%s", te_error_detail());
	ck_assert_ptr_null(t);
	ck_assert_int_eq(te__alloc_live(), live);
	ck_assert_uint_eq(used(), 0);
	/* two halves are all of the memory */
	DO(te_tensor_create(ctx, TE_DTYPE_UINT8, 2, half, NULL, &t));
	DO(te_tensor_create(ctx, TE_DTYPE_UINT8, 2, half, NULL, &u));
	ck_assert_uint_eq(used(), LIMIT);
	te_tensor_unref(t);
	te_tensor_unref(u);
	DO(te_tensor_create(ctx, TE_DTYPE_UINT8, 2, half, NULL, &t));
	te_tensor_unref(t);
}

/* ---- references ---- */

CTX_CASE(references, "host fast");

TEST(references, references_are_counted)
{
	struct te_tensor *t = vector(TE_DTYPE_FP32, 5);

	ck_assert_ptr_eq(te_tensor_ref(t), t);
	ck_assert_ptr_null(te_tensor_unref(t));
	ck_assert_uint_ge(used(), 20);
	ck_assert_int_eq(te_tensor_nelems(t), 5);
	ck_assert_ptr_null(te_tensor_unref(t));
	ck_assert_uint_eq(used(), 0);
	ck_assert_ptr_null(te_tensor_ref(NULL));
	ck_assert_ptr_null(te_tensor_unref(NULL));
}

TEST(references, a_tensor_keeps_its_context)
{
	int64_t live = te__alloc_live(), n = 3;
	struct te_tensor *t;
	struct te_ctx *c;
	float x[3] = { 1, 2, 3 }, y[3];

	DO(tt_ctx_new(&c));
	DO(te_tensor_create(c, TE_DTYPE_FP32, 1, &n, NULL, &t));
	te_ctx_unref(c);
	DO(te_tensor_write(t, x, sizeof(x)));
	DO(te_tensor_read(t, y, sizeof(y)));
	ck_assert_int_eq(memcmp(x, y, sizeof(x)), 0);
	te_tensor_unref(t);
	ck_assert_int_eq(te__alloc_live(), live);
}

/* freeing is not captured: it is deferred to the end of the capture */
TEST(references, a_tensor_may_be_released_while_its_stream_captures)
{
	struct te_tensor *t = vector(TE_DTYPE_FP32, 1000);
	struct te_recording *rec;

	DO(te_capture_begin(st));
	te_tensor_unref(t);
	DO(te_capture_end(st, &rec));
	te_recording_unref(rec);
	ck_assert_uint_eq(used(), 0);
}

/* ---- views ---- */

CTX_CASE(views, "host fast");

TEST_EACH(views, a_view_is_a_part_of_its_base, TE_DTYPE_E2M1)
{
	const enum te_dtype dtype = (enum te_dtype)_i;
	const size_t w = te_dtype_nbytes(dtype);

	for (int k = 0; k < 20; k++) {
		int64_t shape[3], vshape[2], n = random_shape(3, shape);
		struct te_tensor *t = create(dtype, 3, shape, 0, 0), *v;
		unsigned char *all = malloc((size_t)n * w), *part = malloc((size_t)n * w);
		int64_t at, vn;

		vshape[0] = tt_rand_int(1, n);
		vshape[1] = tt_rand_int(1, n / vshape[0]);
		vn = vshape[0] * vshape[1];
		/* views may include the first and the last element */
		at = k == 0 ? n - vn : k == 1 ? 0 : tt_rand_int(0, n - vn);
		DO(te_tensor_view(t, at, 2, vshape, &v));
		ck_assert_ptr_eq(te_tensor_base(v), t);
		ck_assert_ptr_eq(te_tensor_ctx(v), ctx);
		ck_assert_int_eq(te_tensor_dtype(v), dtype);
		ck_assert_int_eq(te_tensor_ndim(v), 2);
		ck_assert_int_eq(te_tensor_rows(v), vshape[0]);
		ck_assert_int_eq(te_tensor_cols(v), vshape[1]);
		ck_assert_ptr_eq(te_tensor_data(v), (char *)te_tensor_data(t) + (size_t)at * w);
		ck_assert_ptr_eq(te_tensor_scale_inv(v), te_tensor_scale_inv(t));
		/* it has the bytes of the base */
		tt_fill_bytes(all, (size_t)n * w);
		DO(te_tensor_write(t, all, (size_t)n * w));
		DO(te_tensor_read(v, part, (size_t)vn * w));
		ck_assert_int_eq(memcmp(part, all + (size_t)at * w, (size_t)vn * w), 0);
		/* bytes written to it are in the base, at its offset only */
		tt_fill_bytes(part, (size_t)vn * w);
		DO(te_tensor_write(v, part, (size_t)vn * w));
		memcpy(all + (size_t)at * w, part, (size_t)vn * w);
		free(part);
		part = malloc((size_t)n * w);
		DO(te_tensor_read(t, part, (size_t)n * w));
		ck_assert_int_eq(memcmp(part, all, (size_t)n * w), 0);
		/* the memory remains until the last of the two is released */
		te_tensor_unref(k % 2 ? v : t);
		ck_assert_uint_gt(used(), 0);
		te_tensor_unref(k % 2 ? t : v);
		ck_assert_uint_eq(used(), 0);
		free(all);
		free(part);
	}
}

TEST(views, a_view_of_a_view_has_the_outermost_base)
{
	struct te_tensor *t = vector(TE_DTYPE_INT32, 100), *v, *w;
	const int64_t m = 50, n = 7;
	int32_t x[100], y[7];

	for (int i = 0; i < 100; i++)
		x[i] = i;
	DO(te_tensor_write(t, x, sizeof(x)));
	DO(te_tensor_view(t, 20, 1, &m, &v));
	DO(te_tensor_view(v, 30, 1, &n, &w));
	ck_assert_ptr_eq(te_tensor_base(w), t);
	/* bounded by the view, not by the base */
	REFUSED(te_tensor_view(v, 44, 1, &n, &w), -EINVAL,
		"te_tensor_view: 7 elements from 44 on, of 50");
	/* released in any order; the memory is freed with the last */
	te_tensor_unref(v);
	te_tensor_unref(t);
	ck_assert_uint_ge(used(), 400);
	DO(te_tensor_read(w, y, sizeof(y)));
	for (int i = 0; i < 7; i++)
		ck_assert_int_eq(y[i], 50 + i);
	te_tensor_unref(w);
	ck_assert_uint_eq(used(), 0);
}

TEST(views, a_view_beyond_its_base_is_refused)
{
	struct te_tensor *t = vector(TE_DTYPE_BF16, 60), *v = NULL;
	const int64_t shape[2] = { 6, 10 }, one = 1, most = INT64_MAX, none[2] = { 3, 0 };
	const int64_t wrap[2] = { INT64_C(1) << 32, INT64_C(1) << 32 };
	int64_t live = te__alloc_live();

	REFUSED(te_tensor_view(t, 1, 2, shape, &v), -EINVAL,
		"te_tensor_view: 60 elements from 1 on, of 60");
	REFUSED(te_tensor_view(t, -1, 1, &one, &v), -EINVAL,
		"te_tensor_view: 1 elements from -1 on, of 60");
	REFUSED(te_tensor_view(t, 60, 1, &one, &v), -EINVAL,
		"te_tensor_view: 1 elements from 60 on, of 60");
	REFUSED(te_tensor_view(t, INT64_MAX, 1, &one, &v), -EINVAL,
		"te_tensor_view: 1 elements from 9223372036854775807 on, of 60");
	REFUSED(te_tensor_view(t, INT64_MIN, 1, &one, &v), -EINVAL,
		"te_tensor_view: 1 elements from -9223372036854775808 on, of 60");
	REFUSED(te_tensor_view(t, 5, 1, &most, &v), -EINVAL,
		"te_tensor_view: the shape has more than 2^63 bytes");
	REFUSED(te_tensor_view(t, 0, 2, wrap, &v), -EINVAL,
		"te_tensor_view: the shape has more than 2^63 elements");
	REFUSED(te_tensor_view(t, 0, 2, none, &v), -EINVAL, "te_tensor_view: extent 1 is 0");
	REFUSED(te_tensor_view(t, 0, 9, shape, &v), -EINVAL,
		"te_tensor_view: 9 extents, not 1 to 8");
	REFUSED(te_tensor_view(NULL, 0, 1, &one, &v), -EINVAL, "te_tensor_view: base is NULL");
	REFUSED(te_tensor_view(t, 0, 1, &one, NULL), -EINVAL, "te_tensor_view: ret_t is NULL");
	ck_assert_ptr_null(v);
	ck_assert_int_eq(te__alloc_live(), live);
	/* a view of the last element is valid */
	DO(te_tensor_view(t, 59, 1, &one, &v));
	te_tensor_unref(v);
	te_tensor_unref(t);
}

/* some of the rows are not contiguous in the column copy */
TEST_EACH(views, a_tensor_with_a_column_copy_is_viewed_whole, 2)
{
	const uint32_t flags = _i ? TE_TENSOR_COLWISE : TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE;
	const int64_t shape[2] = { 6, 10 }, same[3] = { 2, 3, 10 }, cols[2] = { 10, 6 };
	const int64_t part[2] = { 5, 10 };
	struct te_tensor *t = create(TE_DTYPE_E5M2, 2, shape, flags, 0), *v = NULL;
	const char *say = "te_tensor_view: a tensor with a column-wise copy is viewed whole, "
			  "with its 10 columns";

	REFUSED(te_tensor_view(t, 0, 2, cols, &v), -EINVAL, "%s", say);
	REFUSED(te_tensor_view(t, 0, 2, part, &v), -EINVAL, "%s", say);
	REFUSED(te_tensor_view(t, 10, 2, part, &v), -EINVAL, "%s", say);
	ck_assert_ptr_null(v);
	DO(te_tensor_view(t, 0, 3, same, &v));
	ck_assert_ptr_eq(te_tensor_data(v), te_tensor_data(t));
	ck_assert_ptr_eq(te_tensor_coldata(v), te_tensor_coldata(t));
	ck_assert_ptr_eq(te_tensor_scale_inv(v), te_tensor_scale_inv(t));
	ck_assert_int_eq(te_tensor_rows(v), 6);
	te_tensor_unref(t);
	te_tensor_unref(v);
}

/* ---- memory of the caller ---- */

CTX_CASE(wrap, "host fast");

TEST(wrap, a_wrapped_tensor_owns_nothing)
{
	const int64_t shape[2] = { 3, 4 };
	uint64_t mine;
	struct te_tensor *t, *v;
	float *d, x[12], one = 1.0f, *inv;
	int64_t n = 5;

	DO(te_mem_alloc(st, sizeof(x), (void **)&d));
	DO(te_mem_alloc(st, 4, (void **)&inv));
	DO(te_copy(st, inv, &one, 4));
	mine = used();
	DO(te_tensor_wrap(ctx, TE_DTYPE_FP32, 2, shape, d, NULL, NULL, &t));
	ck_assert_ptr_eq(te_tensor_data(t), d);
	ck_assert_ptr_null(te_tensor_base(t));
	for (int i = 0; i < 12; i++)
		x[i] = (float)i;
	DO(te_tensor_write(t, x, sizeof(x)));
	DO(te_tensor_view(t, 4, 1, &n, &v));
	te_tensor_unref(t);
	DO(te_tensor_read(v, x, 20));
	ck_assert(x[0] == 4.0f && x[4] == 8.0f);
	te_tensor_unref(v);
	/* FP8, either copy or both */
	for (int i = 1; i < 4; i++) {
		DO(te_tensor_wrap(ctx, TE_DTYPE_E4M3, 2, shape, i & 1 ? d : NULL,
				  i & 2 ? d + 4 : NULL, inv, &t));
		ck_assert_ptr_eq(te_tensor_data(t), i & 1 ? d : NULL);
		ck_assert_ptr_eq(te_tensor_coldata(t), i & 2 ? d + 4 : NULL);
		ck_assert_ptr_eq(te_tensor_scale_inv(t), inv);
		te_tensor_unref(t);
	}
	ck_assert_uint_eq(used(), mine);
	DO(te_mem_free(st, d));
	DO(te_mem_free(st, inv));
}

TEST(wrap, what_cannot_be_wrapped_is_refused)
{
	const int64_t shape[2] = { 3, 4 }, bad[2] = { 3, -4 };
	struct te_tensor *t = (void *)(uintptr_t)shape;
	float d[16];

	REFUSED(te_tensor_wrap(ctx, TE_DTYPE_FP32, 2, shape, NULL, NULL, NULL, &t), -EINVAL,
		"te_tensor_wrap: data and coldata are NULL");
	REFUSED(te_tensor_wrap(ctx, TE_DTYPE_E4M3, 2, shape, d, NULL, NULL, &t), -EINVAL,
		"te_tensor_wrap: an FP8 tensor needs a scale_inv");
	REFUSED(te_tensor_wrap(ctx, TE_DTYPE_BF16, 2, shape, d, d, NULL, &t), -EINVAL,
		"te_tensor_wrap: bf16 has no column-wise copy, FP8 has");
	REFUSED(te_tensor_wrap(ctx, TE_DTYPE_FP32, 2, shape, d, NULL, d, &t), -EINVAL,
		"te_tensor_wrap: fp32 has no scale_inv, FP8 has");
	REFUSED(te_tensor_wrap(ctx, TE_DTYPE_BF16, 2, shape, (char *)d + 1, NULL, NULL, &t),
		-EINVAL, "te_tensor_wrap: data at %p is not aligned to the 2 bytes of bf16",
		(void *)((char *)d + 1));
	REFUSED(te_tensor_wrap(ctx, TE_DTYPE_E4M3, 2, shape, d, NULL, (float *)((char *)d + 2), &t),
		-EINVAL, "te_tensor_wrap: scale_inv at %p is not aligned to 4 bytes",
		(void *)((char *)d + 2));
	REFUSED(te_tensor_wrap(ctx, TE_DTYPE_FP32, 2, bad, d, NULL, NULL, &t), -EINVAL,
		"te_tensor_wrap: extent 1 is -4");
	REFUSED(te_tensor_wrap(NULL, TE_DTYPE_FP32, 2, shape, d, NULL, NULL, &t), -EINVAL,
		"te_tensor_wrap: ctx is NULL");
	REFUSED(te_tensor_wrap(ctx, TE_DTYPE_FP32, 2, shape, d, NULL, NULL, NULL), -EINVAL,
		"te_tensor_wrap: ret_t is NULL");
	ck_assert_ptr_eq(t, shape);
}

/* ---- transfers and casts ---- */

CTX_CASE(values, "host fast");

TEST(values, transfers_are_of_the_whole_tensor)
{
	struct te_tensor *t = vector(TE_DTYPE_FP16, 9);
	unsigned char x[20] = { 0 };

	REFUSED(te_tensor_write(t, x, 17), -EINVAL,
		"te_tensor_write: 17 bytes, but the tensor has 18");
	REFUSED(te_tensor_read(t, x, 19), -EINVAL,
		"te_tensor_read: 19 bytes, but the tensor has 18");
	REFUSED(te_tensor_write(t, NULL, 18), -EINVAL, "te_tensor_write: host memory is NULL");
	REFUSED(te_tensor_read(t, NULL, 18), -EINVAL, "te_tensor_read: host memory is NULL");
	REFUSED(te_tensor_write(NULL, x, 18), -EINVAL, "te_tensor_write: t is NULL");
	REFUSED(te_tensor_read(NULL, x, 18), -EINVAL, "te_tensor_read: t is NULL");
	te_tensor_unref(t);
}

static const enum te_dtype wide[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_FP16 };

/* a value of one type, rounded once to the other; bits of a NaN are unspecified */
TEST_EACH(values, casts_round_once, 9)
{
	static const float edge[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-45f,
				      3.4e38f, 65504.0f, 65520.0f, 1e-8f, 1.00390625f, 6e-8f };
	const enum te_dtype from = wide[_i / 3], to = wide[_i % 3];
	const size_t w = te_dtype_nbytes(from), u = te_dtype_nbytes(to);
	const int64_t n = tt_rand_int(200, 3000), gap = 3;
	int64_t all = n + 2 * gap, xshape[2], yshape[3];
	struct te_tensor *x, *base = vector(to, all), *y;
	unsigned char *in = malloc((size_t)n * w), *out = malloc((size_t)all * u);

	xshape[0] = n;
	xshape[1] = 1;
	yshape[0] = yshape[2] = 1;
	yshape[1] = n;
	x = create(from, 2, xshape, 0, 0);
	for (int64_t i = 0; i < n; i++)
		tt_set(from, in, i, i < (int64_t)TT_LEN(edge) ? edge[i] : tt_rand_bits_f32());
	tt_poison(out, (size_t)all * u);
	DO(te_tensor_write(base, out, (size_t)all * u));
	DO(te_tensor_write(x, in, (size_t)n * w));
	/* shapes with the same number of elements, inside larger tensors */
	DO(te_tensor_view(base, gap, 3, yshape, &y));
	DO(te_cast(st, x, y));
	DO(te_tensor_read(base, out, (size_t)all * u));
	ck_assert(tt_is_poison(out, (size_t)gap * u));
	ck_assert(tt_is_poison(out + (size_t)(n + gap) * u, (size_t)gap * u));
	for (int64_t i = 0; i < n; i++) {
		unsigned char want[4];
		float v = tt_get(from, in, i), got = tt_get(to, out, i + gap);

		tt_set(to, want, 0, v);
		if (isnan(v))
			ck_assert_msg(isnan(got), "element %lld: %g, not a NaN", (long long)i,
				      (double)got);
		else
			ck_assert_msg(!memcmp(want, out + (size_t)(i + gap) * u, u),
				      "element %lld: %a became %a", (long long)i, (double)v,
				      (double)got);
	}
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_tensor_unref(base);
	free(in);
	free(out);
}

TEST(values, invalid_casts_are_refused)
{
	struct te_tensor *x = vector(TE_DTYPE_FP32, 8), *y = vector(TE_DTYPE_BF16, 9), *z;
	const int64_t n = 8;
	struct te_ctx *other;

	REFUSED(te_cast(st, x, y), -TE_ESHAPE, "te_cast: x has 8 elements, y has 9");
	REFUSED(te_cast(NULL, x, y), -EINVAL, "te_cast: stream is NULL");
	REFUSED(te_cast(st, NULL, y), -EINVAL, "te_cast: x is NULL");
	REFUSED(te_cast(st, x, NULL), -EINVAL, "te_cast: y is NULL");
	for (int i = TE_DTYPE_E4M3; i < TE_DTYPE_E2M1; i++) {
		z = vector((enum te_dtype)i, 8);
		REFUSED(te_cast(st, x, z), -TE_EDTYPE,
			"te_cast: from fp32 to %s, not among fp32, bf16, fp16",
			te_dtype_name((enum te_dtype)i));
		REFUSED(te_cast(st, z, x), -TE_EDTYPE,
			"te_cast: from %s to fp32, not among fp32, bf16, fp16",
			te_dtype_name((enum te_dtype)i));
		te_tensor_unref(z);
	}
	DO(tt_ctx_new(&other));
	DO(te_tensor_create(other, TE_DTYPE_FP32, 1, &n, NULL, &z));
	REFUSED(te_cast(st, x, z), -EINVAL,
		"te_cast: y belongs to another context than the stream");
	REFUSED(te_cast(st, z, x), -EINVAL,
		"te_cast: x belongs to another context than the stream");
	te_tensor_unref(z);
	te_ctx_unref(other);
	te_tensor_unref(x);
	te_tensor_unref(y);
}

/* ---- faults ---- */

static uint32_t sweep_flags;
static enum te_dtype sweep_dtype;

static int use_once(void)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t = NULL, *v = NULL, *w = NULL;
	const int64_t shape[2] = { 5, 7 };
	unsigned char buf[35 * 4] = { 0 };
	int r;

	o.flags = sweep_flags;
	r = te_tensor_create(ctx, sweep_dtype, 2, shape, &o, &t);
	ck_assert_int_eq(t == NULL, r != 0);
	if (!r)
		r = te_tensor_view(t, 0, 2, shape, &v);
	if (!r)
		r = te_tensor_wrap(ctx, sweep_dtype, 2, shape, te_tensor_data(t),
				   te_tensor_coldata(t), te_tensor_scale_inv(t), &w);
	if (!r)
		r = te_tensor_write(w, buf, te_tensor_nbytes(w));
	if (!r)
		r = te_tensor_read(v, buf, te_tensor_nbytes(v));
	if (!r && sweep_dtype == TE_DTYPE_FP32)
		r = te_cast(st, v, v);
	te_tensor_unref(w);
	te_tensor_unref(v);
	te_tensor_unref(t);
	/* memory is freed in stream order: without this it would be counted as leaked */
	if (te_stream_sync(st) && !r)
		r = te_stream_sync(st) ? -EPROTO : -ENOMEM;
	return r;
}

CTX_CASE(faults, "host fast");

TEST_EACH(faults, no_failure_leaks, 2)
{
	sweep_dtype = _i ? TE_DTYPE_E4M3 : TE_DTYPE_FP32;
	sweep_flags = _i ? TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE : 0;
	ck_assert_int_ge(tt_fault_each(use_once), 10);
	ck_assert_uint_eq(used(), 0);
	DO(use_once());
}

TT_SUITE("tensor/tensor", TT_ONE_PROCESS)
{
	/* so that it can be used up */
	setenv("TE_DEVICE_MEM_LIMIT", "256M", 1);
}
