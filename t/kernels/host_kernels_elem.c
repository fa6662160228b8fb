/* t/kernels/host_kernels_elem.c - quantization, casts and elementwise kernels. */
#include "config.h"

#include <math.h>

#include <te/dtype.h>

#include "host_kernels_lib.h"
#include "kernels/philox.h"
#include "libtecore/base/dtype_inline.h"

/* ---- quantization ---- */

CASE(quant, "host numeric");

TEST_EACH(quant, clear_and_amax, 2)
{
	const int32_t dtype = hk_types[_i];

	for (size_t k = 0; k < HK_NSHAPES; k++) {
		const int64_t n = hk_shapes[k].rows * hk_shapes[k].cols;
		void *x = hk_normal(dtype, n, 3.0f);
		float amax = 7.0f, want = 0.0f;
		struct te_k_clear clear = { &amax, &hk_noop_on };
		struct te_k_amax a = { x, n, &amax, &hk_noop_on, dtype, 0 };

		tt_set(dtype, x, tt_rand_int(0, n - 1), NAN);
		tt_set(dtype, x, tt_rand_int(0, n - 1), -NAN);
		for (int64_t i = 0; i < n; i++)
			if (fabsf(tt_get(dtype, x, i)) > want)
				want = fabsf(tt_get(dtype, x, i));
		te__h_clear(&clear);
		ck_assert_float_eq(amax, 7.0f);
		clear.noop = &hk_noop_off;
		te__h_clear(&clear);
		te__h_amax(&a);
		ck_assert_float_eq(amax, 0.0f);
		a.noop = NULL;
		te__h_amax(&a);
		ck_assert_float_eq(amax, want);
		amax = 1e6f; /* folded: a larger value stays */
		te__h_amax(&a);
		ck_assert_float_eq(amax, 1e6f);
		tt_set(dtype, x, n - 1, -INFINITY);
		te__h_amax(&a);
		ck_assert_float_eq(amax, INFINITY);
		free(x);
	}
}

TEST_EACH(quant, quantize_writes_both_copies, 4)
{
	const int32_t dtype = hk_types[_i & 1];
	const int32_t qdtype = _i & 2 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3;

	for (size_t k = 0; k < HK_NSHAPES; k++) {
		const int64_t rows = hk_shapes[k].rows, cols = hk_shapes[k].cols, n = rows * cols;
		void *x = hk_normal(dtype, n, 1.0f);
		struct hk_side s;
		struct te_k_quantize a;

		for (int64_t i = 0; i < n; i += 3)
			tt_set(dtype, x, i, tt_rand_bits_f32());
		tt_set(dtype, x, 0, k & 1 ? NAN : 0x1p-140f);
		tt_set(dtype, x, n / 2, k & 1 ? -INFINITY : -0.0f);
		hk_side_init(&s, qdtype, n, tt_rand_float(0.01f, 200.0f));
		a = (struct te_k_quantize){ x, rows, cols, s.q, dtype, 0, 0, 0, 0 };
		a.q.noop = &hk_noop_on;
		te__h_quantize(&a);
		hk_check_side_untouched(&s, n);
		a.q.noop = &hk_noop_off;
		te__h_quantize(&a);
		hk_check_side(&s, dtype, x, rows, cols);

		/* each output is optional */
		tt_poison(s.row, (size_t)n);
		tt_poison(s.col, (size_t)n);
		a.q.col = NULL;
		a.q.amax = NULL;
		s.amax = 0.0f;
		te__h_quantize(&a);
		ck_assert(tt_is_poison(s.col, (size_t)n));
		ck_assert_float_eq(s.amax, 0.0f);
		a.q.col = s.col;
		a.q.row = NULL;
		a.q.amax = &s.amax;
		te__h_quantize(&a);
		hk_check_side(&s, dtype, x, rows, cols);
		a.q.col = NULL;
		s.scale_inv = -1.0f;
		te__h_quantize(&a);
		ck_assert_float_eq(s.scale_inv, -1.0f); /* no code was written */
		hk_side_free(&s);
		free(x);
	}
}

TEST_EACH(quant, dequantize_and_cast_round_once, 9)
{
	const int64_t n = 2 * 2048 + 13;
	const int32_t from = _i / 3, to = _i % 3; /* FP32, BF16, FP16 */
	void *x = hk_normal(from, n, 100.0f), *y = hk_fresh(to, n);
	struct te_k_cast a = { x, y, n, from, to, &hk_noop_on };

	for (int64_t i = 0; i < n; i += 2)
		tt_set(from, x, i, tt_rand_bits_f32());
	te__h_cast(&a);
	ck_assert(tt_is_poison(y, (size_t)n * hk_width(to)));
	a.noop = NULL;
	te__h_cast(&a);
	for (int64_t i = 0; i < n; i++) {
		const float want = tt_round(to, tt_get(from, x, i)), got = tt_get(to, y, i);

		ck_assert(isnan(want) ? isnan(got) : te__f32_bits(want) == te__f32_bits(got));
	}
	hk_check_end(to, y, n);
	free(y);
	free(x);

	if (to != TE_DTYPE_FP16) {
		const int32_t qdtype = from & 1 ? TE_DTYPE_E5M2 : TE_DTYPE_E4M3;
		const float scale_inv = tt_rand_float(1e-4f, 10.0f);
		uint8_t *code = hk_fresh(TE_DTYPE_UINT8, n);
		struct te_k_dequantize d = { code, NULL, &scale_inv, 1, n, qdtype, to, 0, 0, 0 };

		for (int64_t i = 0; i < n; i++)
			code[i] = (uint8_t)tt_rand_u64();
		d.y = y = hk_fresh(to, n);
		te__h_dequantize(&d);
		for (int64_t i = 0; i < n; i++) {
			const float v = te_fp8_decode((enum te_dtype)qdtype, code[i]) * scale_inv;
			const float want = tt_round(to, v), got = tt_get(to, y, i);

			ck_assert(isnan(want) ? isnan(got) : want == got);
		}
		hk_check_end(to, y, n);
		free(y);
		free(code);
	}
}

/* ---- elementwise ---- */

CASE(elem, "host numeric");

TEST_EACH(elem, bias_and_add_round_once, 2)
{
	const int32_t dtype = hk_types[_i];

	for (size_t k = 0; k < HK_NSHAPES; k++) {
		const int64_t rows = hk_shapes[k].rows, cols = hk_shapes[k].cols, n = rows * cols;
		void *x = hk_normal(dtype, n, 3.0f), *bias = hk_normal(dtype, cols, 1.0f);
		void *b = hk_normal(dtype, n, 5.0f), *y = hk_fresh(dtype, n);
		struct te_k_bias_fwd f = { x, bias, y, rows, cols, dtype, 0 };
		struct te_k_add a = { x, b, y, n, dtype, 0 };

		tt_set(dtype, x, n - 1, NAN);
		te__h_bias_fwd(&f);
		for (int64_t i = 0; i < n - 1; i++)
			ck_assert_float_eq(tt_get(dtype, y, i),
					   tt_round(dtype, tt_get(dtype, x, i) +
								   tt_get(dtype, bias, i % cols)));
		ck_assert(isnan(tt_get(dtype, y, n - 1)));
		te__h_add(&a);
		for (int64_t i = 0; i < n - 1; i++)
			ck_assert_float_eq(tt_get(dtype, y, i),
					   tt_round(dtype,
						    tt_get(dtype, x, i) + tt_get(dtype, b, i)));
		hk_check_end(dtype, y, n);
		a.y = b; /* in place */
		te__h_add(&a);
		hk_check_same(dtype, b, y, n - 1);
		te__h_bias_fwd(&f);
		f.y = x;
		te__h_bias_fwd(&f);
		hk_check_same(dtype, x, y, n - 1);
		free(x);
		free(bias);
		free(b);
		free(y);
	}
}

static const struct {
	uint64_t key;
	uint32_t ctr[4], want[4];
} philox_kat[] = {
	/* kat_vectors of the Random123 distribution, philox4x32 of 10 rounds */
	{ 0, { 0, 0, 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
	{ UINT64_MAX,
	  { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
	  { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
	{ 0x299f31d0a4093822,
	  { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
	  { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
};

TEST_EACH(elem, philox_known_answers, TT_LEN(philox_kat))
{
	const uint32_t *c = philox_kat[_i].ctr;
	const struct te_philox r = te_philox(philox_kat[_i].key, c[0], c[1], c[2], c[3]);

	for (int i = 0; i < 4; i++) {
		ck_assert_uint_eq(r.w[i], philox_kat[_i].want[i]);
		ck_assert_uint_eq(te_philox_lane(&r, 2 * i), r.w[i] & 0xffff);
		ck_assert_uint_eq(te_philox_lane(&r, 2 * i + 1), r.w[i] >> 16);
	}
}

/* the low word of the offset is in the counter, the high one in the key */
TEST(elem, offsets_of_64_bits_differ)
{
	static const uint64_t offset[] = {
		0, 1, 0xffffffff, UINT64_C(1) << 32, (UINT64_C(1) << 32) + 1, UINT64_C(1) << 33,
		UINT64_C(1) << 63, UINT64_MAX,
	};
	const uint64_t seed = tt_rand_u64();
	struct te_philox r[2 * TT_LEN(offset)], w;

	for (size_t i = 0; i < TT_LEN(offset); i++) {
		r[2 * i] = te_philox_flat(seed, offset[i], 3, 4);
		r[2 * i + 1] = te_philox_attn(seed, offset[i], 3, 0, 0, 4);
	}
	for (size_t i = 0; i < TT_LEN(r); i++)
		for (size_t k = 0; k < i; k++)
			ck_assert_mem_ne(&r[i], &r[k], sizeof(w));
	for (size_t i = 0; i < 3; i++) {
		w = te_philox(seed, 4, 0, 3, (uint32_t)offset[i]);
		ck_assert_mem_eq(&r[2 * i], &w, sizeof(w));
		w = te_philox(seed, 4, 0, 0x80000003, (uint32_t)offset[i]);
		ck_assert_mem_eq(&r[2 * i + 1], &w, sizeof(w));
	}
}

TEST_EACH(elem, dropout_keeps_scales_and_repeats, 2)
{
	const int32_t dtype = hk_types[_i];
	const int64_t n = 400003;
	const uint32_t threshold = 6554; /* 0.1 */
	const float factor = 65536.0f / (65536 - 6554);
	uint64_t seed = tt_rand_u64(), offset = tt_rand_u64();
	void *x = hk_normal(dtype, n, 1.0f), *y = hk_fresh(dtype, n), *z = hk_fresh(dtype, n);
	struct te_k_dropout a = { x, y, &seed, &offset, n, threshold, 5, dtype, 0,
				  0, 0, 0 };
	int64_t kept = 0, differ = 0;

	for (int64_t i = 0; i < n; i++) /* so that a zero means dropped */
		if (tt_get(dtype, x, i) == 0.0f)
			tt_set(dtype, x, i, 1.0f);
	te__h_dropout(&a);
	for (int64_t i = 0; i < n; i++) {
		const struct te_philox r =
			te_philox(seed + (offset >> 32) * 0x9e3779b97f4a7c15, (uint32_t)(i / 8),
				  (uint32_t)((uint64_t)i / 8 >> 32), 5, (uint32_t)offset);
		const float v = tt_get(dtype, y, i);

		if (te_philox_lane(&r, (int)(i % 8)) >= threshold) {
			ck_assert_float_eq(v, tt_round(dtype, tt_get(dtype, x, i) * factor));
			kept++;
		} else {
			ck_assert_uint_eq(te__f32_bits(v), 0);
		}
	}
	hk_check_end(dtype, y, n);
	/* binomial: 6 deviations, less than one failure in 10^8 runs */
	hk_check_near((double)kept, (double)n * (65536 - 6554) / 65536, 6 * sqrt(n * 0.1 * 0.9),
		      "kept", 0);

	a.y = z; /* the same again, then with another seed, offset or tag */
	te__h_dropout(&a);
	hk_check_same(dtype, y, z, n);
	for (int what = 0; what < 4; what++) {
		seed += what == 0;
		offset += (uint64_t)(what == 3) << 32;
		offset += what == 1;
		a.tag += what == 2;
		te__h_dropout(&a);
		differ = 0;
		for (int64_t i = 0; i < n; i++)
			differ += (tt_get(dtype, y, i) == 0.0f) != (tt_get(dtype, z, i) == 0.0f);
		hk_check_near((double)differ, 2 * n * 0.1 * 0.9, 6 * sqrt(n * 0.18 * 0.82),
			      "differ", what);
	}
	a.threshold = 0;
	te__h_dropout(&a);
	hk_check_same(dtype, x, z, n);
	a.threshold = 65535;
	a.y = x;
	te__h_dropout(&a);
	kept = 0;
	for (int64_t i = 0; i < n; i++)
		kept += tt_get(dtype, x, i) != 0.0f;
	ck_assert_int_lt(kept, 60); /* Poisson of mean 6.1 */
	free(x);
	free(y);
	free(z);
}

/* _i: bytes of an element */
TEST_EACH(elem, transpose_moves_every_byte, 3)
{
	const int32_t elem = 1 << _i;
	float from = 3.0f, to = 0.0f;

	for (size_t k = 0; k < HK_NSHAPES; k++) {
		const int64_t rows = hk_shapes[k].rows, cols = hk_shapes[k].cols;
		const int64_t n = rows * cols;
		uint8_t *x = hk_fresh(TE_DTYPE_UINT8, n * elem);
		uint8_t *y = hk_fresh(TE_DTYPE_UINT8, n * elem);
		struct te_k_transpose a = {
			.x = x,
			.y = y,
			.scale_inv = &from,
			.y_scale_inv = &to,
			.noop = &hk_noop_on,
			.rows = rows,
			.cols = cols,
			.elem = elem,
		};

		for (int64_t i = 0; i < n * elem; i++)
			x[i] = (uint8_t)tt_rand_u64();
		to = 0.0f;
		te__h_transpose(&a);
		ck_assert(tt_is_poison(y, (size_t)(n * elem)));
		ck_assert_float_eq(to, 0.0f);
		a.noop = &hk_noop_off;
		te__h_transpose(&a);
		for (int64_t r = 0; r < rows; r++)
			for (int64_t c = 0; c < cols; c++)
				ck_assert_mem_eq(y + (c * rows + r) * elem,
						 x + (r * cols + c) * elem, (size_t)elem);
		ck_assert_float_eq(to, 3.0f);
		hk_check_end(TE_DTYPE_UINT8, y, n * elem);
		a.scale_inv = NULL;
		a.y_scale_inv = NULL;
		te__h_transpose(&a);
		free(x);
		free(y);
	}
}

TEST(elem, rng_words_advance)
{
	uint64_t words[4] = { 11, 7, 99, 42 };
	struct te_k_rng_next a = { words + 1, words + 2, 0, 1 };

	te__h_rng_next(&a);
	te__h_rng_next(&a);
	ck_assert_uint_eq(words[0], 11);
	ck_assert_uint_eq(words[1], 9);
	ck_assert_uint_eq(words[2], 8);
	ck_assert_uint_eq(words[3], 42);
	/* the third of some, and the first, of which the offset moves on by three */
	a.index = 2;
	a.advance = 0;
	te__h_rng_next(&a);
	ck_assert_uint_eq(words[1], 9);
	ck_assert_uint_eq(words[2], 11);
	a.index = 0;
	a.advance = 3;
	te__h_rng_next(&a);
	ck_assert_uint_eq(words[1], 12);
	ck_assert_uint_eq(words[2], 9);
}

/* _i: type, interleaved */
TEST_EACH(elem, rope_rotates_and_rotates_back, 4)
{
	const int32_t dtype = hk_types[_i & 1];
	static const struct {
		int nheads, nrot, head_dim;
		int64_t batch, seqlen;
	} cases[] = {
		{ 3, 2, 8, 2, 5 },
		{ 5, 5, 128, 1, 33 },
		{ 3, 2, 256, 1, 19 },
		{ 4, 0, 6, 3, 1 },
		{ 1, 1, 2, 1, 700 },
	};

	for (size_t k = 0; k < TT_LEN(cases); k++) {
		const int hd = cases[k].head_dim, half = hd / 2;
		const int64_t rows = cases[k].batch * cases[k].seqlen, cols = cases[k].nheads * hd;
		void *x = hk_normal(dtype, rows * cols, 1.0f), *y = hk_fresh(dtype, rows * cols);
		struct te_k_rope a = { .x = x,
				       .y = y,
				       .rows = rows,
				       .seqlen = cases[k].seqlen,
				       .nheads = cases[k].nheads,
				       .nrot = cases[k].nrot,
				       .head_dim = hd,
				       .dtype = dtype,
				       .interleaved = _i >> 1 };

		for (int i = 0; i < half; i++)
			a.inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)hd);
		te__h_rope(&a);
		for (int64_t r = 0; r < rows; r++)
			for (int64_t c = 0; c < cols; c++) {
				const int h = (int)(c / hd), d = (int)(c % hd);
				const int i = _i >> 1 ? d / 2 : d % half;
				const int is_first = _i >> 1 ? d % 2 == 0 : d < half;
				const int64_t at = r * cols + h * hd + (_i >> 1 ? 2 * i : i);
				/* one FP32 multiplication; sine and cosine within 2 ulp */
				const float angle = (float)(r % a.seqlen) * a.inv_freq[i];
				const double x0 = tt_get(dtype, x, at);
				const double x1 = tt_get(dtype, x, at + (_i >> 1 ? 1 : half));
				double want = is_first ? x0 * cos(angle) - x1 * sin(angle) :
							 x1 * cos(angle) + x0 * sin(angle);

				if (h >= a.nrot) {
					want = is_first ? x0 : x1;
					ck_assert_double_eq(tt_get(dtype, y, r * cols + c), want);
					continue;
				}
				hk_check_near(tt_get(dtype, y, r * cols + c), want,
					      8 * U32 * (fabs(x0) + fabs(x1)) +
						      tt_unit(dtype) * fabs(want),
					      "y", c);
			}
		hk_check_end(dtype, y, rows * cols);
		/* the opposite angle, in place, restores x up to both roundings */
		a.x = y;
		a.inverse = 1;
		te__h_rope(&a);
		for (int64_t r = 0; r < rows; r++)
			for (int64_t c = 0; c < cols; c++) {
				const int64_t at = r * cols + c;
				const int in = (int)(c % hd);
				const int64_t other = at - in + te_k_rope_other(&a, in);
				const double size = fabs((double)tt_get(dtype, x, at)) +
						    fabs((double)tt_get(dtype, x, other));

				hk_check_near(tt_get(dtype, y, r * cols + c),
					      tt_get(dtype, x, r * cols + c),
					      (16 * U32 + 3 * tt_unit(dtype)) * size, "x", c);
			}
		free(x);
		free(y);
	}
}
