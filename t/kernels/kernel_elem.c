/* t/kernels/kernel_elem.c - quantization, casts and elementwise kernels. */
#include "config.h"

#include <math.h>

#include "kernel_lib.h"

/* ---- quantization ---- */

KL_CASE(quant);

TEST_EACH(quant, clear_and_amax, 4)
{
	const int32_t dtype = kl_types[_i & 1];
	static const int64_t sizes[] = { 1, 3, 63, 64, 65, 1000, 4097, 300007 };

	for (size_t k = kl_first(TT_LEN(sizes)); k < TT_LEN(sizes); k += kl_every()) {
		const int64_t n = sizes[k];
		void *x = _i & 2 ? kc_anything(dtype, n) : kc_normal(dtype, n, 3.0f);
		float *amax = kc_word(tt_rand_float(0.0f, 1.0f));
		struct te_k_clear c = { kc_word(5.0f), kl_noop() };
		struct te_k_amax a = { x, n, amax, kl_noop(), dtype, 0 };

		tt_set(dtype, x, tt_rand_int(0, n - 1), NAN);
		KC_RUN(CLEAR, &c);
		KC_RUN(AMAX, &a);
		kc_reset();
	}
}

TEST_ALSO(odd, clear_and_amax, 4);

/* bytes and words at any address: vectors in the middle, the remainder at both ends */
TEST_EACH(quant, fill, 2)
{
	static const int64_t sizes[] = { 0,	1,  2,	 3,   4,    5,	   12,	   15,	   16,
					 17,	31, 63,	 64,  65,   255,   1000,   4095,   16384,
					 16385, 77, 333, 999, 9973, 65537, 262144, 1000003 };
	const int32_t elem = _i ? 4 : 1;

	for (size_t k = 0; k < TT_LEN(sizes); k++) {
		const int64_t at = tt_rand_int(0, 40), behind = tt_rand_int(1, 40);
		const int64_t n = sizes[k];
		uint8_t *x = kc_poison(TE_DTYPE_UINT8, (at + n + behind) * elem);
		struct te_k_fill a = { x + at * elem, n, (uint32_t)tt_rand_u64(), elem };

		KC_RUN(FILL, &a);
		for (int64_t i = 0; i < n * elem; i++)
			if (x[at * elem + i] != (uint8_t)(a.value >> (i % elem * 8)))
				ck_abort_msg("byte %lld of %lld times %d is %02x, want one of %08x",
					     (long long)i, (long long)n, elem, x[at * elem + i],
					     a.value);
		kc_reset();
	}
}

TEST(quant, scale_current)
{
	static const float amaxes[] = { 0.0f, 1.0f, 448.0f, 1e-45f, 1e-38f, 3e38f, INFINITY, NAN };

	for (int i = 0; i < 64; i++) {
		const float x = i < 8 ? amaxes[i] : fabsf(tt_rand_bits_f32());
		struct te_k_scale_current a = { kc_word(x),
						kc_word(7.0f),
						kl_noop(),
						i & 1 ? 448.0f : 57344.0f,
						i & 2 ? 0.0f : tt_rand_float(0.0f, 2.0f),
						i & 4,
						0 };

		KC_RUN(SCALE_CURRENT, &a);
		kc_reset();
	}
}

TEST_EACH(quant, scale_delayed, 2)
{
	static const int32_t lens[] = { 1, 2, 3, 16, 255, 256, 257, 258, 1024, 5000 };

	for (size_t k = 0; k < TT_LEN(lens); k++) {
		const int32_t len = lens[k], nslots = 9;
		float *h = kc_normal(TE_DTYPE_FP32, (int64_t)nslots * len, 3.0f);
		float *max = kc_normal(TE_DTYPE_FP32, nslots, 1.0f);
		struct te_k_scale_delayed a = { h,	    kc_normal(TE_DTYPE_FP32, nslots, 1.0f),
						max,	    1,
						nslots - 2, len,
						_i & 1,	    0x1p-3f,
						0 };

		for (int64_t i = 0; i < (int64_t)nslots * len; i++)
			h[i] = fabsf(h[i]);
		for (int i = 0; i < nslots; i++)
			max[i] = i & 1 ? 448.0f : 57344.0f;
		h[2 * len] = 0.0f;
		h[3 * len] = INFINITY;
		h[4 * len + len - 1] = NAN;
		h[5 * len] = NAN;
		memset(h + 6 * len, 0, (size_t)len * sizeof(*h));
		h[6 * len] = 1e-44f; /* an infinite scale */
		for (int32_t i = 0; i < len; i++)
			h[7 * len + i] = -h[7 * len + i]; /* the largest is below 0 */
		KC_RUN(SCALE_DELAYED, &a);
		KC_RUN(SCALE_DELAYED, &a); /* now most have 0 as the newest */
		kc_reset();
	}
}

/* often x ends before the copies do */
static void draw_padding(struct te_k_quantize *a)
{
	if (tt_rand_int(0, 1))
		a->pad_rows = (int16_t)tt_rand_int(0, a->rows < 16 ? a->rows - 1 : 15);
	if (tt_rand_int(0, 1))
		a->pad_cols = (int16_t)tt_rand_int(0, a->cols < 16 ? a->cols - 1 : 15);
}

TEST_EACH(quant, quantize, 16)
{
	const int32_t dtype = kl_types[_i % 2], qdtype = kl_fp8[_i / 2 % 2];

	for (size_t k = kl_first(kl_nshapes()); k < kl_nshapes(); k += kl_every()) {
		const int64_t rows = kl_shapes[k].rows, cols = kl_shapes[k].cols, n = rows * cols;
		void *x = k & 1 ? kc_anything(dtype, n) : kc_normal(dtype, n, 1.0f);
		struct te_k_quantize a = {
			x,     rows, cols, kc_q(qdtype, n, tt_rand_float(0.1f, 99.0f), kl_noop()),
			dtype, 0, 0, 0, 0
		};

		if (_i / 4 & 1)
			a.q.row = NULL;
		if (_i / 4 & 2)
			a.q.col = NULL;
		if (tt_rand_int(0, 3) == 0)
			a.q.amax = NULL;
		draw_padding(&a);
		KC_RUN(QUANTIZE, &a);
		kc_reset();
	}
}

TEST_ALSO(odd, quantize, 16);

/* rows or columns of one kind of number each: blocks of zeros, of NaN, of subnormal numbers */
static void *block_input(int32_t dtype, int64_t rows, int64_t cols, int by_columns)
{
	static const float kinds[] = { 0.0f, NAN, INFINITY, 0x1p-133f, 3e38f, 0x1p-126f, -0.0f };
	void *x = kc_normal(dtype, rows * cols, 4.0f);

	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			const int64_t line = by_columns ? c : r, i = r * cols + c;
			const int64_t kind = line / 2 % 16;

			if (line % 2 && kind < (int64_t)TT_LEN(kinds))
				tt_set(dtype, x, i, kinds[kind]);
			else if (line % 4 == 0) /* NaN among finite numbers */
				tt_set(dtype, x, i, i % 5 ? tt_get(dtype, x, i) : NAN);
			else if (line / 128 == 1) /* a tile of small numbers */
				tt_set(dtype, x, i, tt_get(dtype, x, i) * 0x1p-130f);
		}
	return x;
}

TEST_EACH(quant, quantize_blocks, 24)
{
	static const struct kl_shape shapes[] = {
		{ 1, 1 },     { 3, 63 },    { 128, 128 }, { 129, 257 },	 { 130, 33 },  { 64, 384 },
		{ 256, 136 }, { 200, 999 }, { 5, 1500 },  { 1000, 24 },	 { 384, 640 }, { 272, 768 },
		/* of more than four tile rows, and more tiles than a GPU has SMs */
		{ 1312, 1672 }, { 700, 3001 },
	};
	const int32_t dtype = kl_types[_i % 2], qdtype = kl_fp8[_i / 2 % 2];
	const int32_t scaling = _i / 4 % 2 ? TE_K_SCALING_128X128 : TE_K_SCALING_1X128;

	const size_t n = kl_count(TT_LEN(shapes), 2);
	for (size_t k = kl_first(n); k < n; k += kl_every()) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols;
		void *x = k % 3 == 2 ? kc_anything(dtype, rows * cols) :
				       block_input(dtype, rows, cols, k % 3);
		struct te_k_quantize a = {
			.x = x,
			.rows = rows,
			.cols = cols,
			.q = kc_q_blocks(qdtype, scaling, rows, cols, kl_noop()),
			.dtype = dtype,
		};
		struct te_k_dequantize d = {
			.scale_inv = a.q.scale_inv,
			.rows = rows,
			.cols = cols,
			.xdtype = qdtype,
			.ydtype = k & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32,
			.scaling = scaling,
		};

		if (_i / 8 == 1)
			a.q.row = NULL;
		if (_i / 8 == 2)
			a.q.col = NULL;
		draw_padding(&a);
		d.pad_rows = a.pad_rows;
		d.pad_cols = a.pad_cols;
		KC_RUN(QUANTIZE, &a);
		d.x = a.q.row;
		d.y = kc_poison(d.ydtype, rows * cols);
		if (d.x)
			KC_RUN(DEQUANTIZE, &d);
		kc_reset();
	}
}

TEST_ALSO(odd, quantize_blocks, 24);

/* the launches of a cast, and back */
static void run_mx(struct te_k_quantize *a, struct te_k_dequantize *d)
{
	const int fp4 = a->q.dtype == TE_DTYPE_E2M1;

	if (fp4) {
		KC_RUN(NVFP4_BEGIN, a);
		KC_RUN(NVFP4_AMAX, a);
	}
	KC_RUN(QUANTIZE, a);
	d->x = a->q.row;
	d->y = kc_poison(d->ydtype, a->rows * a->cols);
	if (d->x && !(fp4 && a->q.noop)) /* words of poison */
		KC_RUN(DEQUANTIZE, d);
	kc_reset();
}

TEST_EACH(quant, quantize_mx, 30)
{
	static const struct kl_shape shapes[] = {
		{ 1, 16 },	{ 3, 63 },     { 16, 16 },     { 128, 128 }, { 129, 257 },
		{ 144, 208 },	{ 64, 384 },   { 256, 144 },   { 200, 999 }, { 5, 1504 },
		{ 1000, 24 },	{ 272, 768 },
		/* more tiles than a GPU has SMs */
		{ 1312, 1680 }, { 2064, 1104 },
	};
	static const struct {
		int32_t dtype, scaling, stochastic;
	} kinds[] = {
		{ TE_DTYPE_E4M3, TE_K_SCALING_1X32, 0 },  { TE_DTYPE_E5M2, TE_K_SCALING_1X32, 0 },
		{ TE_DTYPE_E2M1, TE_K_SCALING_1X16, 0 },  { TE_DTYPE_E2M1, TE_K_SCALING_1X16, 1 },
		{ TE_DTYPE_E2M1, TE_K_SCALING_16X16, 0 },
	};
	const int32_t dtype = kl_types[_i % 2], qdtype = kinds[_i / 2 % 5].dtype;
	const size_t n = kl_count(TT_LEN(shapes), 2);
	const int copies = _i / 10;

	for (size_t k = kl_first(n); k < n; k += kl_every()) {
		const int fp4 = qdtype == TE_DTYPE_E2M1;
		const int64_t cols = fp4 ? (shapes[k].cols + 15) / 16 * 16 : shapes[k].cols;
		const int64_t rows = fp4 && copies != 2 ? (shapes[k].rows + 15) / 16 * 16 :
							  shapes[k].rows;
		struct te_k_quantize a = {
			.x = k % 3 == 2 ? kc_anything(dtype, rows * cols) :
					  block_input(dtype, rows, cols, k % 3),
			.rows = rows,
			.cols = cols,
			.q = kc_q_blocks(qdtype, kinds[_i / 2 % 5].scaling, rows, cols, kl_noop()),
			.dtype = dtype,
			.stochastic = kinds[_i / 2 % 5].stochastic,
		};
		struct te_k_dequantize d = {
			.scale_inv = a.q.scale_inv,
			.rows = rows,
			.cols = cols,
			.xdtype = qdtype,
			.ydtype = k & 1 ? TE_DTYPE_BF16 : TE_DTYPE_FP32,
			.scaling = a.q.scaling,
		};

		if (copies == 1)
			a.q.row = NULL;
		if (copies == 2)
			a.q.col = NULL;
		draw_padding(&a);
		d.pad_rows = a.pad_rows;
		d.pad_cols = a.pad_cols;
		run_mx(&a, &d);
	}
}

TEST_ALSO(odd, quantize_mx, 30);

TEST_EACH(quant, dequantize_and_cast, 9)
{
	static const int32_t types[] = { TE_DTYPE_FP32, TE_DTYPE_BF16, TE_DTYPE_FP16 };
	static const int64_t sizes[] = { 1, 7, 8, 9, 256, 4096, 4097, 10001 };
	const int32_t to = types[_i % 3];

	for (size_t k = kl_first(TT_LEN(sizes)); k < TT_LEN(sizes); k += kl_every()) {
		const int64_t n = sizes[k];
		const int32_t from = types[_i / 3];
		uint8_t *codes = kc_poison(kl_fp8[k & 1], n);
		struct te_k_dequantize d = {
			codes, kc_poison(to, n), kc_word(tt_rand_float(0.001f, 9.0f)),
			1,     n,		 kl_fp8[k & 1],
			to,    TE_K_SCALING_TENSOR, 0, 0
		};
		struct te_k_cast c = {
			kc_anything(from, n), kc_poison(to, n), n, from, to, kl_noop()
		};

		for (int64_t i = 0; i < n; i++)
			codes[i] = (uint8_t)(n < 256 ? tt_rand_u64() : (uint64_t)i);
		KC_RUN(DEQUANTIZE, &d);
		KC_RUN(CAST, &c);
		kc_reset();
	}
}

TEST_ALSO(odd, dequantize_and_cast, 9);

/* ---- elementwise ---- */

KL_CASE(elem);

TEST_EACH(elem, bias_add_and_scale, 2)
{
	const int32_t dtype = kl_types[_i & 1];

	for (size_t k = kl_first(kl_nshapes()); k < kl_nshapes(); k += kl_every()) {
		const int64_t rows = kl_shapes[k].rows, cols = kl_shapes[k].cols, n = rows * cols;
		void *x = kc_anything(dtype, n), *y = kc_poison(dtype, n);
		struct te_k_bias_fwd f = {
			x, kc_normal(dtype, cols, 1.0f), y, rows, cols, dtype, 0
		};
		struct te_k_add a = { x, kc_normal(dtype, n, 1.0f), y, n, dtype, 0 };
		struct te_k_scaled s = { x, y, n, tt_rand_float(-3.0f, 3.0f), dtype };

		KC_RUN(BIAS_FWD, &f);
		KC_RUN(ADD, &a);
		KC_RUN(SCALED, &s);
		s.y = x;
		KC_RUN(SCALED, &s);
		f.y = x;
		KC_RUN(BIAS_FWD, &f);
		a.y = (void *)a.b;
		KC_RUN(ADD, &a);
		a.y = x;
		KC_RUN(ADD, &a);
		kc_reset();
	}
}

TEST_ALSO(odd, bias_add_and_scale, 2);

TEST_EACH(elem, dropout_and_its_words, 2)
{
	static const int64_t sizes[] = { 1, 7, 8, 9, 4095, 4096, 4104, 100003 };
	const int32_t dtype = kl_types[_i & 1];

	for (size_t k = kl_first(TT_LEN(sizes)); k < TT_LEN(sizes); k += kl_every()) {
		const int64_t n = sizes[k];
		uint64_t *words = kc_poison(TE_DTYPE_UINT8, 24);
		struct te_k_rng_next r = { words + 1, words + 2, tt_rand_u64(), tt_rand_u64() };
		struct te_k_dropout a = { kc_normal(dtype, n, 1.0f),
					  kc_poison(dtype, n),
					  words,
					  words + 2,
					  n,
					  (uint32_t)tt_rand_int(0, 65535),
					  (uint32_t)tt_rand_u64(),
					  dtype,
					  0,
					  0,
					  0,
					  0 };

		words[0] = tt_rand_u64();
		words[1] = tt_rand_u64();
		if (k == 3)
			a.threshold = 0;
		KC_RUN(RNG_NEXT, &r);
		KC_RUN(DROPOUT, &a);
		a.run = 8 * tt_rand_int(1, 300);
		a.first = a.run * tt_rand_int(0, 4);
		a.stride = 5 * a.run;
		KC_RUN(DROPOUT, &a);
		a.y = (void *)a.x;
		KC_RUN(DROPOUT, &a);
		kc_reset();
	}
}

TEST_ALSO(odd, dropout_and_its_words, 2);

/* _i: bytes of an element; whole vectors in one direction, both, or neither */
TEST_EACH(elem, transpose, 3)
{
	static const int32_t types[] = { TE_DTYPE_UINT8, TE_DTYPE_BF16, TE_DTYPE_FP32 };
	static const struct kl_shape shapes[] = {
		{ 1, 1 },     { 1, 65 },    { 65, 1 },	  { 64, 64 },	 { 63, 130 }, { 130, 63 },
		{ 128, 200 }, { 200, 129 }, { 129, 256 }, { 1000, 264 }, { 72, 1500 },
	};

	for (size_t k = kl_first(TT_LEN(shapes)); k < TT_LEN(shapes); k += kl_every()) {
		const int64_t rows = shapes[k].rows, cols = shapes[k].cols, n = rows * cols;
		struct te_k_transpose a = {
			.x = _i ? kc_anything(types[_i], n) : kc_poison(TE_DTYPE_UINT8, n),
			.y = kc_poison(types[_i], n),
			.noop = kl_noop(),
			.rows = rows,
			.cols = cols,
			.elem = 1 << _i,
		};

		for (int64_t i = 0; !_i && i < n; i++)
			((uint8_t *)(uintptr_t)a.x)[i] = (uint8_t)tt_rand_u64();
		if (k & 1) {
			a.scale_inv = kc_word(tt_rand_float(0.1f, 9.0f));
			a.y_scale_inv = kc_word(77.0f);
		}
		KC_RUN(TRANSPOSE, &a);
		kc_reset();
	}
}

TEST_ALSO(odd, transpose, 3);

/* codes are those of y, and do not depend on whether y is wanted */
static void rope_casts(struct te_k_rope a, int side)
{
	const int64_t cols = (int64_t)a.nheads * a.head_dim;
	const size_t nbytes = (size_t)(a.rows * cols) * te_dtype_nbytes((enum te_dtype)a.dtype);
	void *was = malloc(nbytes);
	struct te_k_q q;

	ck_assert_ptr_nonnull(was);
	a.q = kc_q(kl_fp8[side & 1], a.rows * cols, 40.0f, kc_word(0.0f));
	if (side == 1)
		a.q.col = NULL;
	if (side == 2)
		a.q.row = NULL;
	if (side == 3)
		a.q.row = a.q.col = NULL; /* only the amax */
	q = a.q;
	kc_defer(a.y);
	kc_defer_q(&a.q);
	KC_RUN(ROPE, &a);
	kc_check_q(&q, a.dtype, kc_got(a.y), a.rows, cols);
	memcpy(was, kc_got(a.y), nbytes);
	a.y = NULL;
	*q.amax = 0.0f;
	kc_defer_q(&a.q);
	KC_RUN(ROPE, &a);
	kc_check_q(&q, a.dtype, was, a.rows, cols);
	*(float *)a.q.noop = 1.0f;
	*(float *)a.q.scale = 7.0f;
	KC_RUN(ROPE, &a); /* writes nothing */
	free(was);
}

/* _i: type, direction, documents */
/* both ways, with heads of keys and values that ranks divide, share, or do not have */
TEST_EACH(elem, heads, 2)
{
	const int32_t dtype = kl_types[_i];

	for (int i = 0; i < TT_FEWER(40); i++) {
		struct te_k_heads a = {
			.nseqs = tt_rand_int(1, 3),
			.ntokens = tt_rand_int(1, 20),
			.nranks = (int32_t)tt_rand_int(1, 8),
			.head_dim = (int32_t)(i % 2 ? 8 * tt_rand_int(1, 20) : tt_rand_int(1, 40)),
			.dtype = dtype,
		};
		int64_t ntokens, nparts;

		a.kv = (int32_t)tt_rand_int(0, 3);
		a.nkv = a.nranks * a.kv;
		a.nheads = (int32_t)(a.nranks * (a.kv ? a.kv * tt_rand_int(1, 4) : 1));
		if (i % 3 == 0 && a.nranks % 2 == 0) {
			a.kv = 1;
			a.nkv = a.nranks / 2;
		}
		ntokens = a.nseqs * a.ntokens * (a.nheads + 2 * a.nkv) * a.head_dim;
		nparts = a.nseqs * a.nranks * te_k_heads_part(&a);
		a.tokens = kc_anything(dtype, ntokens);
		a.parts = kc_poison(dtype, nparts);
		KC_RUN(HEADS_SPLIT, &a);
		a.tokens = kc_poison(dtype, ntokens);
		a.parts = kc_anything(dtype, nparts);
		KC_RUN(HEADS_JOIN, &a);
		kc_reset();
	}
}

TEST_ALSO(odd, heads, 2);

TEST_EACH(elem, rope, 8)
{
	static const struct {
		int32_t nheads, nrot, head_dim;
		int64_t seqlen, batch;
	} cases[] = {
		{ 1, 1, 2, 5, 1 },     { 3, 2, 6, 7, 3 },    { 6, 4, 64, 33, 2 },
		{ 12, 8, 128, 17, 2 }, { 5, 5, 16, 300, 1 }, { 4, 0, 32, 3, 1 },
		{ 40, 36, 16, 67, 1 }, { 12, 8, 48, 32, 2 },  { 5, 3, 256, 70, 1 },
		{ 4, 3, 192, 9, 2 },
	};
	const int32_t dtype = kl_types[_i & 1];

	for (size_t k = 0; k < TT_LEN(cases); k++) {
		const int32_t dim = cases[k].head_dim, half = dim / 2;
		const int64_t rows = cases[k].seqlen * cases[k].batch;
		const int64_t width = (int64_t)cases[k].nheads * dim, n = rows * width;
		void *x = kc_normal(dtype, n, 1.0f), *y = kc_poison(dtype, n);
		struct te_k_rope a = { .x = x,
				       .y = y,
				       .rows = rows,
				       .seqlen = cases[k].seqlen,
				       .nheads = cases[k].nheads,
				       .nrot = cases[k].nrot,
				       .head_dim = dim,
				       .inverse = _i >> 1 & 1,
				       .dtype = dtype,
				       .interleaved = (int32_t)tt_rand_int(0, 1) };
		double *pair = malloc((size_t)n * sizeof(*pair));

		ck_assert_ptr_nonnull(pair);
		if (tt_rand_int(0, 1)) {
			int32_t *position = kc_poison(TE_DTYPE_INT32, rows);

			for (int64_t i = 0; i < rows; i++)
				position[i] = (int32_t)tt_rand_int(0, 1 << 17);
			a.position = position;
		}
		if (_i >> 2) {
			int32_t *first = kc_poison(TE_DTYPE_INT32, rows);

			for (int64_t i = 0; i < rows; i++)
				first[i] = (int32_t)tt_rand_int(-3, cases[k].seqlen + 3);
			a.first = first;
		}
		for (int i = 0; i < half; i++) /* the last case has large angles */
			a.inv_freq[i] =
				powf(10000.0f, -(float)i / (float)half) * (k == 4 ? 300.0f : 1.0f);
		for (int64_t i = 0; i < n; i++) {
			const int64_t in = i % dim, other = i - in + te_k_rope_other(&a, (int)in);

			pair[i] = fabs((double)tt_get(dtype, x, i)) +
				  fabs((double)tt_get(dtype, x, other));
		}
		/*
		 * The angle has the same bits on both sides. Sine and cosine have errors of 1 ulp
		 * on the host and 2 on a GPU, of numbers up to 1; two operations follow.
		 */
		for (int place = 0; place < 2; place++) {
			a.y = place ? x : y;
			if (!place && !kc_is_unaligned())
				rope_casts(a, (int)tt_rand_int(0, 3));
			kc_defer(a.y);
			KC_RUN(ROPE, &a);
			for (int64_t i = 0; i < n; i++)
				kc_near(a.y, i,
					i % width / dim >= a.nrot ?
						0.0 :
						8.0 * U32 * pair[i] +
							2.0 * tt_unit(dtype) *
								fabs((double)tt_get(dtype, a.y,
										    i)));
		}
		free(pair);
		kc_reset();
	}
}

TEST_ALSO(odd, rope, 2);
