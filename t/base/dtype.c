/* t/base/dtype.c - te/dtype.h: names, sizes, and every conversion against golden tables. */
#include "config.h"

#include <math.h>

#include <te/dtype.h>
#include <te/errno.h>
#include "libtecore/base/dtype_inline.h"
#include "tt.h"

/* FP32 bits of the value of each positive code, and of the smallest number that becomes it */
struct code { uint32_t value, first; };
static const struct code e4m3[] = {
#define E4M3
#include "t/data/dtype_fp8.inc"
#undef E4M3
};
static const struct code e5m2[] = {
#define E5M2
#include "t/data/dtype_fp8.inc"
#undef E5M2
};
static const struct { enum te_dtype dtype; const struct code *code; unsigned n; } fp8[] = {
	{ TE_DTYPE_E4M3, e4m3, TT_LEN(e4m3) },
	{ TE_DTYPE_E5M2, e5m2, TT_LEN(e5m2) },
};

static const struct { uint32_t x; uint16_t bf16, fp16; } f32_rows[] = {
#include "t/data/dtype_f32.inc"
};

/* narrow types: the code that no number rounds beyond, and exponents of random numbers */
static const struct { enum te_dtype dtype; unsigned most; int lo, hi; } narrow[] = {
	{ TE_DTYPE_E4M3, 0x7e, -11, 18 },
	{ TE_DTYPE_E5M2, 0x7b, -18, 18 },
	{ TE_DTYPE_BF16, 0x7f80, -135, 128 },
	{ TE_DTYPE_FP16, 0x7c00, -26, 17 },
};

static unsigned encode(enum te_dtype dtype, float x)
{
	switch (dtype) {
	case TE_DTYPE_BF16:
		return te_bf16_encode(x);
	case TE_DTYPE_FP16:
		return te_fp16_encode(x);
	default:
		return te_fp8_encode(dtype, x);
	}
}

/* value of a positive code; infinity counts as the next power of two */
static double value(enum te_dtype dtype, unsigned code)
{
	switch (dtype) {
	case TE_DTYPE_BF16:
		return code == 0x7f80 ? 0x1p128 : te_bf16_decode((uint16_t)code);
	case TE_DTYPE_FP16:
		return code == 0x7c00 ? 0x1p16 : te_fp16_decode((uint16_t)code);
	default:
		return te_fp8_decode(dtype, (uint8_t)code);
	}
}

CASE(fp8, "host numeric");

TEST_EACH(fp8, decodes_every_fp8_code, TT_LEN(fp8))
{
	/* E4M3: S.1111.111; E5M2: S.11111.{01,10,11} */
	ck_assert_uint_eq(fp8[_i].n, fp8[_i].dtype == TE_DTYPE_E4M3 ? 0x7f : 0x7c);
	for (unsigned c = 0; c < 256; c++) {
		const float x = te_fp8_decode(fp8[_i].dtype, (uint8_t)c);

		if ((c & 0x7f) < fp8[_i].n)
			ck_assert_uint_eq(te__f32_bits(x),
					  fp8[_i].code[c & 0x7f].value | (c & 0x80) << 24);
		else if (fp8[_i].dtype == TE_DTYPE_E5M2 && (c & 0x7f) == 0x7c)
			ck_assert_float_eq(x, c & 0x80 ? -INFINITY : INFINITY);
		else
			ck_assert(isnan(x));
	}
}

/* the first and the last number that become a code, and every BF16 number between them */
TEST_EACH(fp8, encodes_all_numbers_that_become_each_fp8_code, TT_LEN(fp8))
{
	unsigned nbf16 = 0;

	for (unsigned c = 0; c < fp8[_i].n; c++) {
		const uint32_t first = fp8[_i].code[c].first;
		const uint32_t last =
			c + 1 < fp8[_i].n ? fp8[_i].code[c + 1].first - 1 : 0x7f800000;

		for (uint64_t b = first; b <= last; b = b == last ? b + 1 : (b | 0xffff) + 1) {
			const float x = te__f32_from_bits((uint32_t)b);

			nbf16 += !(b & 0xffff);
			ck_assert_msg(te_fp8_encode(fp8[_i].dtype, x) == c, "%a", x);
			ck_assert_msg(te_fp8_encode(fp8[_i].dtype, -x) == (c | 0x80), "%a", -x);
		}
		ck_assert_uint_eq(te_fp8_encode(fp8[_i].dtype, te__f32_from_bits(last)), c);
	}
	ck_assert_uint_eq(nbf16, 0x7f81); /* all but NaN */
}

TEST_EACH(fp8, fp8_codes_survive_a_round_trip, TT_LEN(fp8))
{
	for (unsigned c = 0; c < 256; c++) {
		const float x = te_fp8_decode(fp8[_i].dtype, (uint8_t)c);

		if (isfinite(x))
			ck_assert_uint_eq(te_fp8_encode(fp8[_i].dtype, x), c);
	}
}

/* nearest by search over all codes; a tie goes to the even code. Half of the numbers are short */
TEST_EACH(fp8, rounds_random_numbers_to_the_nearest_code, TT_LEN(narrow))
{
	const enum te_dtype dtype = narrow[_i].dtype;
	const unsigned sign = te_dtype_nbytes(dtype) == 1 ? 0x80 : 0x8000;

	for (int k = 0; k < 20000; k++) {
		const uint32_t keep = UINT32_MAX << (k & 1 ? tt_rand_int(0, 22) : 0);
		const float m = te__f32_from_bits(te__f32_bits(tt_rand_float(1.0f, 2.0f)) & keep);
		const float x = ldexpf(m, (int)tt_rand_int(narrow[_i].lo, narrow[_i].hi));
		unsigned lo = 0, hi = narrow[_i].most;
		double down, up;

		while (lo + 1 < hi) {
			const unsigned mid = (lo + hi) / 2;

			if (value(dtype, mid) <= (double)x)
				lo = mid;
			else
				hi = mid;
		}
		down = (double)x - value(dtype, lo);
		up = value(dtype, hi) - (double)x;
		if (up < down || (up == down && !(hi & 1)))
			lo = hi;
		ck_assert_uint_eq(encode(dtype, x), lo);
		ck_assert_uint_eq(encode(dtype, -x), lo | sign);
	}
}

static const struct { enum te_dtype dtype; float x; uint8_t want; } edge[] = {
	{ TE_DTYPE_E4M3, 448.0f, 0x7e },   /* largest finite, S.1111.110 (OCP OFP8 1.0) */
	{ TE_DTYPE_E4M3, 464.0f, 0x7e },   /* halfway to what would be 480 */
	{ TE_DTYPE_E4M3, 1e9f, 0x7e },	   /* saturates, does not become NaN */
	{ TE_DTYPE_E4M3, INFINITY, 0x7e },
	{ TE_DTYPE_E4M3, -INFINITY, 0xfe },
	{ TE_DTYPE_E4M3, -0.0f, 0x80 },
	{ TE_DTYPE_E4M3, 0x1p-9f, 0x01 },  /* smallest subnormal */
	{ TE_DTYPE_E4M3, 0x1p-10f, 0x00 }, /* half of it: ties to even */
	{ TE_DTYPE_E4M3, 0x1.000002p-10f, 0x01 },
	{ TE_DTYPE_E4M3, -0x1.8p-9f, 0x82 },
	{ TE_DTYPE_E4M3, 0x1.ep-7f, 0x08 }, /* rounds up into the normal range */
	{ TE_DTYPE_E4M3, 0x1p-149f, 0x00 },
	{ TE_DTYPE_E5M2, 57344.0f, 0x7b }, /* S.11110.11 */
	{ TE_DTYPE_E5M2, 61440.0f, 0x7b },
	{ TE_DTYPE_E5M2, INFINITY, 0x7b },
	{ TE_DTYPE_E5M2, -1e30f, 0xfb },
	{ TE_DTYPE_E5M2, 0x1p-16f, 0x01 },
	{ TE_DTYPE_E5M2, 0x1p-17f, 0x00 },
	{ TE_DTYPE_E5M2, 0x1.8p-16f, 0x02 },
	{ TE_DTYPE_E5M2, -0.0f, 0x80 },
	{ TE_DTYPE_FP32, 1.0f, 0x00 },	   /* not an FP8 type */
};

TEST_EACH(fp8, encodes_edge_values, TT_LEN(edge))
{
	ck_assert_uint_eq(te_fp8_encode(edge[_i].dtype, edge[_i].x), edge[_i].want);
}

CASE(half, "host numeric");

TEST(half, converts_fp32_as_the_golden_table)
{
	for (size_t i = 0; i < TT_LEN(f32_rows); i++) {
		const float x = te__f32_from_bits(f32_rows[i].x);

		ck_assert_msg(te_bf16_encode(x) == f32_rows[i].bf16, "0x%08x", f32_rows[i].x);
		ck_assert_msg(te_fp16_encode(x) == f32_rows[i].fp16, "0x%08x", f32_rows[i].x);
	}
}

TEST(half, half_codes_survive_a_round_trip)
{
	for (unsigned c = 0; c < 65536; c++) {
		const float b = te_bf16_decode((uint16_t)c), h = te_fp16_decode((uint16_t)c);
		const int e = (c >> 10) & 31;
		/* by the definition: sign, exponent bias 15, 10 bits */
		const double abs = e ? ldexp(1024 + (c & 1023), e - 25) : ldexp(c & 1023, -24);

		ck_assert_uint_eq(te__f32_bits(b), c << 16);
		if (!isnan(b))
			ck_assert_uint_eq(te_bf16_encode(b), c);
		ck_assert_int_eq(signbit(h) != 0, c >> 15);
		if (e == 31) {
			ck_assert_int_eq(isnan(h) != 0, (c & 1023) != 0);
			ck_assert_int_eq(isinf(h) != 0, (c & 1023) == 0);
		} else {
			ck_assert_double_eq(fabs((double)h), abs);
		}
		if (!isnan(h))
			ck_assert_uint_eq(te_fp16_encode(h), c);
	}
}

TEST(half, nan_stays_nan_with_its_sign)
{
	/* quiet and signalling, with payloads at both ends */
	static const uint32_t nan[] = { 0x7fc00000, 0x7f800001, 0x7fffffff, 0x7fa00000 };

	for (size_t i = 0; i < TT_LEN(nan); i++)
		for (uint32_t sign = 0; sign < 2; sign++) {
			const float x = te__f32_from_bits(nan[i] | sign << 31);

			/* the inline form: a call may make a signalling NaN quiet */
			ck_assert_uint_eq(te__e4m3_encode(x), 0x7f | sign << 7);
			ck_assert_uint_eq(te__e5m2_encode(x), 0x7f | sign << 7);
			ck_assert(isnan(te_bf16_decode(te__bf16_encode(x))));
			ck_assert_uint_eq(te__bf16_encode(x) >> 15, sign);
			ck_assert(isnan(te_fp16_decode(te__fp16_encode(x))));
			ck_assert_uint_eq(te__fp16_encode(x) >> 15, sign);
		}
}

static const struct { const char *name; size_t nbytes; float max; } types[] = {
	[TE_DTYPE_FP32] = { "fp32", 4, 3.4028234663852886e38f },
	[TE_DTYPE_BF16] = { "bf16", 2, 3.3895313892515355e38f },
	[TE_DTYPE_FP16] = { "fp16", 2, 65504.0f },
	[TE_DTYPE_E4M3] = { "e4m3", 1, 448.0f },
	[TE_DTYPE_E5M2] = { "e5m2", 1, 57344.0f },
	[TE_DTYPE_INT32] = { "int32", 4, 0.0f },
	[TE_DTYPE_UINT8] = { "uint8", 1, 0.0f },
	[TE_DTYPE_E2M1] = { "e2m1", 0, 6.0f }, /* two elements a byte */
};

CASE(names, "host fast");

TEST_EACH(names, names_and_measures_every_type, TT_LEN(types))
{
	enum te_dtype d = TE_DTYPE_COUNT;

	ck_assert_uint_eq(TT_LEN(types), TE_DTYPE_COUNT);
	ck_assert_str_eq(te_dtype_name((enum te_dtype)_i), types[_i].name);
	ck_assert_uint_eq(te_dtype_nbytes((enum te_dtype)_i), types[_i].nbytes);
	ck_assert_float_eq(te_dtype_max((enum te_dtype)_i), types[_i].max);
	ck_assert_int_eq(te_dtype_from_name(types[_i].name, &d), 0);
	ck_assert_int_eq(d, _i);
}

TEST(names, refuses_unknown_types)
{
	enum te_dtype d = TE_DTYPE_INT32;

	ck_assert_int_eq(te_dtype_from_name("fp64", &d), -EINVAL);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "\"fp64\""));
	ck_assert_int_eq(te_dtype_from_name(NULL, &d), -EINVAL);
	ck_assert_int_eq(te_dtype_from_name("", &d), -EINVAL);
	ck_assert_int_eq(te_dtype_from_name("fp32", NULL), -EINVAL);
	ck_assert_str_eq(te_error_detail(), "te_dtype_from_name: ret_dtype is NULL");
	ck_assert_int_eq(d, TE_DTYPE_INT32);
	ck_assert_str_eq(te_dtype_name(TE_DTYPE_COUNT), "?");
	ck_assert_str_eq(te_dtype_name((enum te_dtype)-1), "?");
	ck_assert_uint_eq(te_dtype_nbytes(TE_DTYPE_COUNT), 0);
	ck_assert_float_eq(te_dtype_max(TE_DTYPE_COUNT), 0.0f);
	ck_assert_float_eq(te_fp8_decode(TE_DTYPE_BF16, 0x7e), 0.0f);
}

TT_MAIN("base/dtype", TT_NEED_NOTHING)
