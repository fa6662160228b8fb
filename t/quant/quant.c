/* t/quant/quant.c - te/quant.h on the host backend: recipes, casts, updates, saved state. */
#include "config.h"

#include <float.h>
#include <math.h>

#include <te/errno.h>
#include <te/quant.h>
#include <te/capture.h>
#include <te/stream.h>
#include "libtecore/base/dtype_inline.h"
#include "tt_ctx.h"

#define OK(call)                                                             \
	do {                                                                 \
		int ok_r = (call);                                           \
		ck_assert_msg(ok_r >= 0, "%s: %s: %s", #call, te_strerror(ok_r), \
			      te_error_detail());                            \
	} while (0)

static struct te_stream *stream;

static void open_host(void)
{
	tt_setup();
	stream = st;
}

static struct te_recipe delayed(int history_len, enum te_amax_algo algo, int margin)
{
	struct te_recipe r = TE_RECIPE_INIT;

	r.kind = TE_RECIPE_DELAYED;
	r.history_len = history_len;
	r.algo = algo;
	r.margin = margin;
	return r;
}

static struct te_recipe current(float epsilon, uint32_t flags)
{
	struct te_recipe r = TE_RECIPE_INIT;

	r.kind = TE_RECIPE_CURRENT;
	r.amax_epsilon = epsilon;
	r.flags = flags;
	return r;
}

static const enum te_dtype three[] = { TE_DTYPE_E5M2, TE_DTYPE_E4M3, TE_DTYPE_E5M2 };

static struct te_quant *quants(struct te_recipe r)
{
	struct te_quant *q;

	OK(te_quant_create(ctx, &r, 3, three, &q));
	return q;
}

static struct te_tensor *tensor(enum te_dtype dtype, int64_t rows, int64_t cols, uint32_t flags,
				const void *data)
{
	struct te_tensor_opts opts = TE_TENSOR_OPTS_INIT;
	const int64_t shape[2] = { rows, cols };
	struct te_tensor *t;

	opts.flags = flags;
	OK(te_tensor_create(ctx, dtype, 2, shape, &opts, &t));
	if (data)
		OK(te_tensor_write(t, data, te_tensor_nbytes(t)));
	return t;
}

static void put(float *dst, const void *src, size_t nbytes)
{
	OK(te_copy(stream, dst, src, nbytes));
	OK(te_stream_sync(stream));
}

static void take(void *dst, const void *src, size_t nbytes)
{
	OK(te_copy(stream, dst, src, nbytes));
	OK(te_stream_sync(stream));
}

static float scale_of(struct te_quant *q, int slot)
{
	float s;

	OK(te_quant_peek(q, slot, &s, NULL));
	return s;
}

/* ---- recipes ---- */

static const char *const names[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };

CASE(recipe, "host numeric", .setup = open_host, .teardown = tt_teardown);

TEST_EACH(recipe, names_every_recipe, TT_LEN(names))
{
	struct te_recipe r = TE_RECIPE_INIT;

	OK(te_recipe_from_name(names[_i], &r));
	ck_assert_str_eq(te_recipe_name(&r), names[_i]);
	ck_assert_uint_eq(r.size, sizeof(r));
	ck_assert_int_eq(r.compute, _i ? TE_DTYPE_BF16 : TE_DTYPE_FP32);
	ck_assert_int_eq(r.history_len, 1024);
	r.kind = TE_RECIPE_NONE;
	r.compute = TE_DTYPE_FP16;
	ck_assert_str_eq(te_recipe_name(&r), "?");
	ck_assert_int_eq(te_recipe_from_name("fp8", &r), -EINVAL);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "\"fp8\""));
	ck_assert_int_eq(te_recipe_from_name(NULL, &r), -EINVAL);
}

TEST(recipe, a_device_has_a_recipe)
{
	static const struct {
		int cc, kernels;
		uint32_t features;
		const char *name, *why;
	} row[] = {
		{ 0, 0, 0, "bf16", "the device has no tensor cores" },
		{ 8, 80, TE_FEATURE_MEM_OPS, "bf16", "no FP8 tensor cores, which begin with" },
		{ 8, 89, TE_FEATURE_FP8_MMA, "fp8-delayed", "measured on compute capability 9.0" },
		{ 9, 90, TE_FEATURE_FP8_MMA, "fp8-delayed", "measured to be faster" },
		{ 9, 80, 0, "bf16", "no FP8 tensor cores" },
	};
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	struct te_recipe r = TE_RECIPE_INIT;

	for (size_t i = 0; i < TT_LEN(row); i++) {
		const char *why;

		d.cc_major = row[i].cc;
		d.kernels_cc = row[i].kernels;
		d.features = row[i].features;
		why = te_recipe_for_device(&d, &r);
		ck_assert_ptr_nonnull(why);
		ck_assert_ptr_nonnull(strstr(why, row[i].why));
		ck_assert_int_eq(strncmp(why, row[i].name, strlen(row[i].name)), 0);
		ck_assert_str_eq(te_recipe_name(&r), row[i].name);
	}
	ck_assert_ptr_null(te_recipe_for_device(NULL, &r));
	ck_assert_ptr_null(te_recipe_for_device(&d, NULL));
	r.size = 0;
	ck_assert_ptr_null(te_recipe_for_device(&d, &r));
}

TEST(recipe, create_refuses_bad_recipes)
{
	struct te_quant *q = NULL;
	struct te_recipe r;
	struct { struct te_recipe r; uint64_t more; } longer = { delayed(4, TE_AMAX_MAX, 0), 0 };
	const enum te_dtype bf16 = TE_DTYPE_BF16;

#define BAD(field, value)                                                            \
	do {                                                                         \
		r = delayed(4, TE_AMAX_MAX, 0);                                      \
		r.field = (value);                                                   \
		ck_assert_int_eq(te_quant_create(ctx, &r, 3, three, &q), -EINVAL);   \
	} while (0)
	BAD(size, 0);
	BAD(kind, TE_RECIPE_NONE);
	BAD(kind, (enum te_recipe_kind)9);
	BAD(compute, TE_DTYPE_E4M3);
	BAD(margin, 33);
	tt_said("te_quant_create: recipe: margin 33 is outside -32..32");
	BAD(margin, -33);
	tt_said("te_quant_create: recipe: margin -33 is outside -32..32");
	BAD(history_len, 0);
	BAD(history_len, 65537);
	BAD(algo, (enum te_amax_algo)2);
	BAD(amax_epsilon, -1.0f);
	BAD(amax_epsilon, NAN);
	BAD(flags, 4);
	r = delayed(4, TE_AMAX_MAX, 0);
	ck_assert_int_eq(te_quant_create(ctx, &r, 0, three, &q), -EINVAL);
	ck_assert_int_eq(te_quant_create(ctx, &r, 1, &bf16, &q), -EINVAL);
	ck_assert_int_eq(te_quant_create(NULL, &r, 3, three, &q), -EINVAL);
	longer.r.size = sizeof(longer);
	longer.more = 1;
	ck_assert_int_eq(te_quant_create(ctx, &longer.r, 3, three, &q), -EINVAL);
	ck_assert_ptr_null(q);
	longer.more = 0; /* of a later library, with nothing new in use */
	OK(te_quant_create(ctx, &longer.r, 3, three, &q));
	ck_assert_uint_eq(te_quant_recipe(q)->size, sizeof(struct te_recipe));
	q = te_quant_unref(q);
	ck_assert_ptr_null(q);
	ck_assert_ptr_null(te_quant_unref(NULL));
}

TEST(recipe, create_takes_the_ends_of_each_range)
{
	static const struct { int history_len, margin; } ends[] = {
		{ 1, -32 }, { 1, 32 }, { 65536, 0 },
	};
	struct te_quant *q;
	struct te_recipe r;

	for (size_t i = 0; i < TT_LEN(ends); i++) {
		r = delayed(ends[i].history_len, TE_AMAX_MAX, ends[i].margin);
		OK(te_quant_create(ctx, &r, 3, three, &q));
		ck_assert_int_eq(te_quant_recipe(q)->margin, ends[i].margin);
		te_quant_unref(q);
	}
}

TEST(recipe, starts_at_one_with_no_history)
{
	struct te_quant *q = quants(delayed(5, TE_AMAX_MAX, 0));
	float scale, history[5];

	ck_assert_int_eq(te_quant_nslots(q), 3);
	for (int slot = 0; slot < 3; slot++) {
		ck_assert_int_eq(te_quant_dtype(q, slot), three[slot]);
		memset(history, 0xff, sizeof(history));
		OK(te_quant_peek(q, slot, &scale, history));
		ck_assert_float_eq(scale, 1.0f);
		for (int i = 0; i < 5; i++)
			ck_assert_float_eq(history[i], 0.0f);
	}
	ck_assert_ptr_null(te_quant_scale_ptr(q, 3));
	ck_assert_ptr_null(te_quant_amax_ptr(q, -1));
	ck_assert_int_eq(te_quant_dtype(q, 3), TE_DTYPE_COUNT);
	ck_assert_int_eq(te_quant_peek(q, 3, &scale, NULL), -EINVAL);
	ck_assert_ptr_eq(te_quant_ref(q), q);
	te_quant_unref(q);
	ck_assert_int_eq(te_quant_nslots(q), 3); /* one reference is left */
	te_quant_unref(q);
}

static int create_and_destroy(void)
{
	struct te_recipe r = delayed(3, TE_AMAX_MAX, 0);
	struct te_ctx *own = NULL; /* a free that fails leaves its memory to the context */
	struct te_quant *q = NULL;
	int ret;

	ret = tt_ctx_new(&own);
	if (ret >= 0)
		ret = te_quant_create(own, &r, 3, three, &q);
	if (ret < 0)
		ck_assert_ptr_null(q);
	te_quant_unref(q);
	te_ctx_unref(own);
	return ret;
}

TEST(recipe, create_survives_every_fault)
{
	ck_assert_int_ge(tt_fault_each(create_and_destroy), 3);
}

/* ---- delayed: te_k.h, by a table (A1) ---- */

static const int lengths[] = { 1, 2, 31, 1024 };
static const int margins[] = { 0, 2 };
#define N_DELAYED (TT_LEN(lengths) * 2 * TT_LEN(margins))

static const struct { float amax, scale; /* 0: fmt_max 2^-margin / amax */ int keeps; } amaxes[] = {
	{ 0.0f, 0, 1 },
	{ 1e-38f, FLT_MAX, 0 },	/* 448 / 1e-38 is infinite in FP32 */
	{ 1e-45f, FLT_MAX, 0 },
	{ 1.0f, 0, 0 },
	{ 3.7f, 0, 0 },
	{ INFINITY, 0, 1 },
	{ NAN, 0, 1 },
};

CASE(delayed, "host numeric", .setup = open_host, .teardown = tt_teardown);

TEST_EACH(delayed, delayed_scale_by_the_table, N_DELAYED)
{
	const int len = lengths[_i / 4], margin = margins[_i & 1];
	const enum te_amax_algo algo = _i >> 1 & 1 ? TE_AMAX_MOST_RECENT : TE_AMAX_MAX;
	const float before = 0.625f;
	float *h = calloc((size_t)len, sizeof(*h));

	for (size_t k = 0; k < TT_LEN(amaxes); k++) {
		struct te_quant *q = quants(delayed(len, algo, margin));
		const float amax = amaxes[k].amax;
		float want, scale;

		put(te_quant_scale_ptr(q, 1), &before, sizeof(before));
		put(te_quant_amax_ptr(q, 1), &amax, sizeof(amax));
		OK(te_quant_update(stream, q, 0, 3));
		OK(te_quant_peek(q, 1, &scale, h));
		want = amaxes[k].keeps ? before :
		       amaxes[k].scale ? amaxes[k].scale :
					 448.0f * (margin ? 0.25f : 1.0f) / amax;
		ck_assert_uint_eq(te__f32_bits(scale), te__f32_bits(want));
		/* the newest is now the last of the window, and the entry that it had is cleared */
		ck_assert_float_eq(h[0], 0.0f);
		if (len > 1)
			ck_assert(memcmp(&h[len - 1], &amax, sizeof(amax)) == 0);
		ck_assert_float_eq(scale_of(q, 0), 1.0f);
		ck_assert_float_eq(scale_of(q, 2), 1.0f);
		te_quant_unref(q);
	}
	free(h);
}

TEST_EACH(delayed, delayed_window_slides, N_DELAYED)
{
	const int len = lengths[_i / 4], margin = margins[_i & 1], steps = 2 * 31 + 3;
	const enum te_amax_algo algo = _i >> 1 & 1 ? TE_AMAX_MOST_RECENT : TE_AMAX_MAX;
	struct te_quant *q = quants(delayed(len, algo, margin));
	float *h = calloc((size_t)len, sizeof(*h)), *push = calloc((size_t)steps, sizeof(*push));

	for (int k = 0; k < steps; k++) {
		float amax, scale;

		push[k] = amax = ldexpf(tt_rand_float(1.0f, 2.0f), (int)tt_rand_int(-20, 20));
		put(te_quant_amax_ptr(q, 2), &amax, sizeof(amax));
		OK(te_quant_update(stream, q, 2, 1));
		if (algo == TE_AMAX_MAX)
			for (int i = k; i >= 0 && i > k - len; i--)
				amax = fmaxf(amax, push[i]);
		OK(te_quant_peek(q, 2, &scale, h));
		ck_assert_float_eq(scale, 57344.0f * (margin ? 0.25f : 1.0f) / amax);
		for (int j = 1, at = k - len + 2; j < len; j++, at++)
			ck_assert_float_eq(h[j], at < 0 ? 0.0f : push[at]);
		ck_assert_float_eq(h[0], 0.0f);

		/* no amax: another update changes nothing */
		OK(te_quant_update(stream, q, 0, 3));
		ck_assert_float_eq(scale_of(q, 2), scale);
	}
	ck_assert_float_eq(scale_of(q, 1), 1.0f);
	free(h);
	free(push);
	te_quant_unref(q);
}

TEST(delayed, zero_amax_does_not_rotate)
{
	struct te_quant *q = quants(delayed(4, TE_AMAX_MAX, 0));
	const float h[4] = { 0.0f, 5.0f, 6.0f, 7.0f };
	float got[4], scale;

	put(te_quant_amax_ptr(q, 0), h, sizeof(h));
	OK(te_quant_update(stream, q, 0, 3));
	OK(te_quant_peek(q, 0, &scale, got));
	ck_assert_mem_eq(got, h, sizeof(h));
	ck_assert_float_eq(scale, 1.0f);
	te_quant_unref(q);
}

TEST(delayed, update_checks_its_range)
{
	struct te_quant *q = quants(delayed(4, TE_AMAX_MAX, 0));
	struct te_quant *c = quants(current(0.0f, 0));
	const float amax = 2.0f;

	ck_assert_int_eq(te_quant_update(stream, q, -1, 1), -EINVAL);
	ck_assert_int_eq(te_quant_update(stream, q, 0, 4), -EINVAL);
	ck_assert_int_eq(te_quant_update(stream, q, 3, 1), -EINVAL);
	ck_assert_int_eq(te_quant_update(stream, q, 2, INT32_MAX), -EINVAL);
	ck_assert_int_eq(te_quant_update(stream, q, 1, -1), -EINVAL);
	ck_assert_int_eq(te_quant_update(NULL, q, 0, 1), -EINVAL);
	OK(te_quant_update(stream, q, 3, 0));
	put(te_quant_amax_ptr(c, 0), &amax, sizeof(amax));
	OK(te_quant_update(stream, c, 0, 3)); /* current: nothing */
	ck_assert_float_eq(scale_of(c, 0), 1.0f);
	te_quant_unref(q);
	te_quant_unref(c);
}

/* ---- casts ---- */

#define ROWS 37
#define COLS 53

/* both copies of y are the codes of x * scale, scale_inv its inverse */
static void check_codes(const struct te_tensor *y, const float *x, float scale)
{
	uint8_t row[ROWS * COLS], col[ROWS * COLS];
	float inv;

	OK(te_tensor_read(y, row, sizeof(row)));
	take(col, te_tensor_coldata(y), sizeof(col));
	take(&inv, te_tensor_scale_inv(y), sizeof(inv));
	ck_assert_float_eq(inv, 1.0f / scale);
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < COLS; c++) {
			const float v = x[r * COLS + c] * scale;

			ck_assert_uint_eq(row[r * COLS + c], te_fp8_encode(te_tensor_dtype(y), v));
			ck_assert_uint_eq(col[c * ROWS + r], row[r * COLS + c]);
		}
}

/* random numbers of FP32 or BF16, in x as FP32 */
static struct te_tensor *random_input(enum te_dtype dtype, float *x, float size)
{
	uint16_t b[ROWS * COLS];

	tt_fill_normal(x, ROWS * COLS, size);
	if (dtype == TE_DTYPE_FP32)
		return tensor(dtype, ROWS, COLS, 0, x);
	for (int i = 0; i < ROWS * COLS; i++) {
		b[i] = te_bf16_encode(x[i]);
		x[i] = te_bf16_decode(b[i]);
	}
	return tensor(dtype, ROWS, COLS, 0, b);
}

static float amax_of(const float *x)
{
	float m = 0.0f;

	for (int i = 0; i < ROWS * COLS; i++)
		m = fmaxf(m, fabsf(x[i]));
	return m;
}

#define BOTH (TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE)

CASE(cast, "host numeric", .setup = open_host, .teardown = tt_teardown);

TEST_EACH(cast, delayed_casts_with_the_scale_before, 2)
{
	const enum te_dtype dtype = _i ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	struct te_quant *q = quants(delayed(3, TE_AMAX_MAX, 0));
	struct te_tensor *y = tensor(TE_DTYPE_E4M3, ROWS, COLS, BOTH, NULL), *x[3], *back;
	float v[3][ROWS * COLS], b[ROWS * COLS], scale = 1.0f, h[3], window = 0.0f;

	for (int k = 0; k < 3; k++) {
		x[k] = random_input(dtype, v[k], 10.0f);
		OK(te_quantize(stream, q, 1, x[k], y, NULL, 0));
		check_codes(y, v[k], scale);
		OK(te_quant_peek(q, 1, NULL, h));
		ck_assert_float_eq(h[0], amax_of(v[k]));
		OK(te_quant_update(stream, q, 0, 3));
		/* y is as it was: its scale_inv was stored at the cast */
		check_codes(y, v[k], scale);
		window = fmaxf(window, amax_of(v[k]));
		scale = 448.0f / window;
		ck_assert_float_eq(scale_of(q, 1), scale);
	}
	/* evaluation: no amax is recorded */
	OK(te_quantize(stream, q, 1, x[0], y, NULL, TE_QUANTIZE_NO_AMAX));
	check_codes(y, v[0], scale);
	OK(te_quant_peek(q, 1, NULL, h));
	ck_assert_float_eq(h[0], 0.0f);
	/* two tensors of one slot: the larger amax counts */
	OK(te_quantize(stream, q, 1, x[0], y, NULL, 0));
	OK(te_quantize(stream, q, 1, x[1], y, NULL, 0));
	OK(te_quant_peek(q, 1, NULL, h));
	ck_assert_float_eq(h[0], fmaxf(amax_of(v[0]), amax_of(v[1])));

	back = tensor(TE_DTYPE_FP32, ROWS, COLS, 0, NULL);
	OK(te_dequantize(stream, y, back));
	OK(te_tensor_read(back, b, sizeof(b)));
	for (int i = 0; i < ROWS * COLS; i++)
		ck_assert_float_eq(b[i], te_fp8_decode(TE_DTYPE_E4M3,
						       te_fp8_encode(TE_DTYPE_E4M3,
								     v[1][i] * scale)) *
						 (1.0f / scale));
	for (int k = 0; k < 3; k++)
		te_tensor_unref(x[k]);
	te_tensor_unref(back);
	te_tensor_unref(y);
	te_quant_unref(q);
}

static const struct {
	float epsilon;
	uint32_t flags;
	float x0, x1; /* the input is 0 but for these two */
	float scale;
} currents[] = {
	{ 0.0f, 0, 0.0f, 0.0f, 1.0f },	     /* amax 0 */
	{ 0.0f, 0, 2.0f, -3.0f, 448.0f / 3.0f },
	{ 0.0f, 0, 2.0f, NAN, 224.0f },	     /* NaN does not count */
	{ 0.0f, 0, NAN, NAN, 1.0f },
	{ 0.0f, 0, -INFINITY, 2.0f, 1.0f },
	{ 0.0f, 0, 1e-40f, 0.0f, FLT_MAX },  /* 448 / 1e-40 is infinite in FP32 */
	{ 0.0f, TE_RECIPE_POW2, 3.0f, 0.0f, 128.0f },
	{ 0.0f, TE_RECIPE_POW2, 7.0f, 0.0f, 64.0f },
	{ 0.0f, TE_RECIPE_POW2, 0.0f, 0.0f, 1.0f },
	{ 0.0f, TE_RECIPE_POW2, 1e-40f, 0.0f, 0x1p127f },
	{ 0.5f, 0, 0.25f, 0.0f, 896.0f },
	{ 0.5f, 0, 0.0f, 0.0f, 896.0f },     /* raised to epsilon before the test for 0 */
	{ 0.5f, 0, 0.75f, 0.0f, 448.0f / 0.75f },
	{ 0.5f, 0, INFINITY, 0.0f, 1.0f },
};

TEST_EACH(cast, current_scale_by_the_table, TT_LEN(currents))
{
	struct te_quant *q = quants(current(currents[_i].epsilon, currents[_i].flags));
	struct te_tensor *x, *y = tensor(TE_DTYPE_E4M3, ROWS, COLS, BOTH, NULL);
	float v[ROWS * COLS] = { 0 };

	v[5] = currents[_i].x0;
	v[ROWS * COLS - 1] = currents[_i].x1;
	x = tensor(TE_DTYPE_FP32, ROWS, COLS, 0, v);
	for (int k = 0; k < 2; k++) { /* the previous amax has been cleared */
		OK(te_quantize(stream, q, 1, x, y, NULL, 0));
		ck_assert_uint_eq(te__f32_bits(scale_of(q, 1)), te__f32_bits(currents[_i].scale));
		check_codes(y, v, currents[_i].scale);
		if (!k) {
			float big[ROWS * COLS] = { 1e20f };

			OK(te_tensor_write(x, big, sizeof(big)));
			OK(te_quantize(stream, q, 1, x, y, NULL, 0));
			OK(te_tensor_write(x, v, sizeof(v)));
		}
	}
	ck_assert_float_eq(scale_of(q, 0), 1.0f);
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_quant_unref(q);
}

TEST(cast, saturates_at_max_finite)
{
	static const struct { float x; uint8_t e4m3, e5m2; } edge[] = {
		{ 448.0f, 0x7e, 0x5f }, { 1e9f, 0x7e, 0x7b }, { INFINITY, 0x7e, 0x7b },
		{ -INFINITY, 0xfe, 0xfb }, { NAN, 0x7f, 0x7f }, { -0.0f, 0x80, 0x80 },
		{ 60000.0f, 0x7e, 0x7b }, { 3e38f, 0x7e, 0x7b },
	};
	struct te_quant *q = quants(delayed(1, TE_AMAX_MAX, 0));

	for (size_t i = 0; i < TT_LEN(edge); i++)
		for (int slot = 0; slot < 2; slot++) {
			struct te_tensor *x = tensor(TE_DTYPE_FP32, 1, 1, 0, &edge[i].x);
			struct te_tensor *y = tensor(three[slot], 1, 1, 0, NULL);
			const float scale = edge[i].x == 3e38f ? 1e3f : 1.0f; /* overflows */
			uint8_t code;

			put(te_quant_scale_ptr(q, slot), &scale, sizeof(scale));
			OK(te_quantize(stream, q, slot, x, y, NULL, 0));
			OK(te_tensor_read(y, &code, 1));
			ck_assert_uint_eq(code, slot ? edge[i].e4m3 : edge[i].e5m2);
			te_tensor_unref(x);
			te_tensor_unref(y);
		}
	te_quant_unref(q);
}

TEST_EACH(cast, noop_leaves_everything, 2)
{
	struct te_quant *q = quants(_i ? current(0.0f, 0) : delayed(2, TE_AMAX_MAX, 0));
	struct te_tensor *y = tensor(TE_DTYPE_E4M3, ROWS, COLS, BOTH, NULL), *x;
	const float on = 1.0f, off = 0.0f, before[2] = { 0.75f, 3.0f };
	struct te_tensor *flag = tensor(TE_DTYPE_FP32, 1, 1, 0, &on);
	uint8_t poison[ROWS * COLS], got[ROWS * COLS];
	float v[ROWS * COLS], scale, h[2] = { 0 };

	x = random_input(TE_DTYPE_FP32, v, 1.0f);
	put(te_quant_scale_ptr(q, 1), &before[0], sizeof(float));
	put(te_quant_amax_ptr(q, 1), &before[1], sizeof(float));
	tt_poison(poison, sizeof(poison));
	put(te_tensor_data(y), poison, sizeof(poison));
	put(te_tensor_coldata(y), poison, sizeof(poison));
	put(te_tensor_scale_inv(y), poison, sizeof(float));
	OK(te_quantize(stream, q, 1, x, y, te_tensor_data(flag), 0));
	take(got, te_tensor_data(y), sizeof(got));
	ck_assert(tt_is_poison(got, sizeof(got)));
	take(got, te_tensor_coldata(y), sizeof(got));
	ck_assert(tt_is_poison(got, sizeof(got)));
	take(got, te_tensor_scale_inv(y), sizeof(float));
	ck_assert(tt_is_poison(got, sizeof(float)));
	OK(te_quant_peek(q, 1, &scale, h));
	ck_assert_float_eq(scale, before[0]);
	ck_assert_float_eq(h[0], before[1]);

	/* the same launch with the word at 0 does its work */
	OK(te_tensor_write(flag, &off, sizeof(off)));
	OK(te_quantize(stream, q, 1, x, y, te_tensor_data(flag), 0));
	check_codes(y, v, _i ? 448.0f / amax_of(v) : before[0]);
	te_tensor_unref(flag);
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_quant_unref(q);
}

TEST(cast, writes_the_copies_that_are_there)
{
	struct te_quant *q = quants(current(0.0f, 0));
	struct te_tensor *row = tensor(TE_DTYPE_E4M3, ROWS, COLS, TE_TENSOR_ROWWISE, NULL);
	struct te_tensor *col = tensor(TE_DTYPE_E4M3, ROWS, COLS, TE_TENSOR_COLWISE, NULL);
	float v[ROWS * COLS];
	struct te_tensor *x = random_input(TE_DTYPE_BF16, v, 1.0f);
	uint8_t a[ROWS * COLS], b[ROWS * COLS];

	OK(te_quantize(stream, q, 1, x, row, NULL, 0));
	OK(te_quantize(stream, q, 1, x, col, NULL, 0));
	OK(te_tensor_read(row, a, sizeof(a)));
	take(b, te_tensor_coldata(col), sizeof(b));
	for (int i = 0; i < ROWS * COLS; i++)
		ck_assert_uint_eq(a[i], b[i % COLS * ROWS + i / COLS]);
	ck_assert_int_eq(te_dequantize(stream, col, x), -EINVAL); /* no row-wise copy */
	te_tensor_unref(row);
	te_tensor_unref(col);
	te_tensor_unref(x);
	te_quant_unref(q);
}

TEST(cast, quantize_refuses_what_does_not_fit)
{
	struct te_quant *q = quants(current(0.0f, 0)), *elsewhere;
	struct te_tensor *x = tensor(TE_DTYPE_FP32, 2, 3, 0, NULL);
	struct te_tensor *half = tensor(TE_DTYPE_FP16, 2, 3, 0, NULL);
	struct te_tensor *y = tensor(TE_DTYPE_E4M3, 2, 3, 0, NULL);
	struct te_tensor *y5 = tensor(TE_DTYPE_E5M2, 2, 3, 0, NULL);
	struct te_tensor *wide = tensor(TE_DTYPE_E4M3, 2, 4, 0, NULL);
	struct te_recipe r = current(0.0f, 0);
	struct te_ctx *other;

	ck_assert_int_eq(te_quantize(stream, q, 3, x, y, NULL, 0), -EINVAL);
	ck_assert_int_eq(te_quantize(stream, q, -1, x, y, NULL, 0), -EINVAL);
	ck_assert_int_eq(te_quantize(stream, q, 1, x, y, NULL, 2), -EINVAL);
	ck_assert_int_eq(te_quantize(stream, q, 1, x, wide, NULL, 0), -TE_ESHAPE);
	ck_assert_int_eq(te_quantize(stream, q, 1, x, y5, NULL, 0), -TE_EDTYPE);
	ck_assert_int_eq(te_quantize(stream, q, 1, half, y, NULL, 0), -TE_EDTYPE);
	ck_assert_int_eq(te_quantize(stream, q, 1, y, y, NULL, 0), -TE_EDTYPE);
	ck_assert_int_eq(te_quantize(stream, NULL, 1, x, y, NULL, 0), -EINVAL);
	ck_assert_int_eq(te_quantize(stream, q, 1, NULL, y, NULL, 0), -EINVAL);
	ck_assert_int_eq(te_dequantize(stream, x, y), -TE_EDTYPE);
	ck_assert_int_eq(te_dequantize(stream, y, half), -TE_EDTYPE);
	ck_assert_int_eq(te_dequantize(stream, wide, x), -TE_ESHAPE);
	ck_assert_int_eq(te_dequantize(stream, y, NULL), -EINVAL);
	OK(tt_ctx_new(&other));
	OK(te_quant_create(other, &r, 3, three, &elsewhere));
	ck_assert_int_eq(te_quantize(stream, elsewhere, 1, x, y, NULL, 0), -EINVAL);
	ck_assert_int_eq(te_quant_update(stream, elsewhere, 0, 1), -EINVAL);
	ck_assert_int_eq(te_quantize(te_ctx_stream(other), elsewhere, 1, x, y, NULL, 0), -EINVAL);
	te_quant_unref(elsewhere);
	te_ctx_unref(other);
	te_tensor_unref(x);
	te_tensor_unref(half);
	te_tensor_unref(y);
	te_tensor_unref(y5);
	te_tensor_unref(wide);
	te_quant_unref(q);
}

TEST(cast, replays_to_the_same_bits)
{
	struct te_quant *q[2] = { quants(delayed(3, TE_AMAX_MAX, 0)),
				  quants(delayed(3, TE_AMAX_MAX, 0)) };
	struct te_tensor *y = tensor(TE_DTYPE_E4M3, ROWS, COLS, BOTH, NULL);
	float v[ROWS * COLS], scale[2], h[2][3];
	struct te_tensor *x = random_input(TE_DTYPE_BF16, v, 1.0f);
	struct te_recording *rec;

	OK(te_capture_begin(stream));
	OK(te_quantize(stream, q[0], 1, x, y, NULL, 0));
	OK(te_quant_update(stream, q[0], 0, 3));
	ck_assert_int_eq(te_quant_peek(q[0], 1, scale, NULL), -EBUSY);
	OK(te_capture_end(stream, &rec));
	for (int k = 0; k < 3; k++) {
		for (int i = 0; i < ROWS * COLS; i++) /* larger by a BF16 power of two */
			v[i] *= 2.0f;
		{
			uint16_t b[ROWS * COLS];

			for (int i = 0; i < ROWS * COLS; i++)
				b[i] = te_bf16_encode(v[i]);
			OK(te_tensor_write(x, b, sizeof(b)));
		}
		OK(te_recording_launch(rec, stream));
		OK(te_quantize(stream, q[1], 1, x, y, NULL, 0));
		OK(te_quant_update(stream, q[1], 0, 3));
		for (int i = 0; i < 2; i++)
			OK(te_quant_peek(q[i], 1, &scale[i], h[i]));
		ck_assert_float_eq(scale[0], 448.0f / amax_of(v));
		ck_assert_float_eq(scale[0], scale[1]);
		ck_assert_mem_eq(h[0], h[1], sizeof(h[0]));
	}
	te_recording_unref(rec);
	te_tensor_unref(x);
	te_tensor_unref(y);
	te_quant_unref(q[0]);
	te_quant_unref(q[1]);
}

/* ---- saved state ---- */

/* bit by bit: shares nothing with the library's */
static uint32_t crc32_slow(const uint8_t *p, size_t n)
{
	uint32_t crc = 0xffffffffu;

	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int k = 0; k < 8; k++)
			crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
	}
	return ~crc;
}

static uint32_t word(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void set_crc(uint8_t *p, size_t n)
{
	const uint32_t crc = crc32_slow(p, n - 4);

	for (int i = 0; i < 4; i++)
		p[n - 4 + (size_t)i] = (uint8_t)(crc >> 8 * i);
}

static void randomize(struct te_quant *q, int window)
{
	float h[16];

	for (int slot = 0; slot < 3; slot++) {
		tt_fill_uniform(h, 16, 0.1f, 100.0f);
		put(te_quant_scale_ptr(q, slot), h, sizeof(float));
		put(te_quant_amax_ptr(q, slot), h, (size_t)window * sizeof(float));
	}
}

#define WINDOW 5

static void check_same_state(struct te_quant *a, struct te_quant *b, int history)
{
	float sa, sb, ha[WINDOW], hb[WINDOW];

	for (int slot = 0; slot < 3; slot++) {
		OK(te_quant_peek(a, slot, &sa, ha));
		OK(te_quant_peek(b, slot, &sb, hb));
		ck_assert_float_eq(sa, sb);
		if (history)
			ck_assert_mem_eq(ha, hb, sizeof(ha));
	}
}

CASE(save, "host numeric", .setup = open_host, .teardown = tt_teardown);

TEST_EACH(save, state_survives_a_round_trip, 2)
{
	const struct te_recipe r = _i ? current(0.25f, TE_RECIPE_POW2) :
					delayed(WINDOW, TE_AMAX_MOST_RECENT, -3);
	struct te_quant *a = quants(r), *b = quants(r);
	const size_t n = te_quant_nbytes(a);
	uint8_t *blob = malloc(n), *again = malloc(n);
	float scale;

	randomize(a, _i ? 1 : WINDOW);
	tt_poison(blob, n);
	OK(te_quant_save(a, blob, n));
	ck_assert_int_eq(te_quant_save(a, blob, n - 1), -EINVAL);
	OK(te_quant_load(b, blob, n));
	check_same_state(a, b, !_i);
	OK(te_quant_save(b, again, n));
	ck_assert_mem_eq(blob, again, n);

	/* the layout of te_quant_save(3) */
	ck_assert_uint_eq(n, 8 + 9 * 4 + 3 * 4 + (_i ? 3 : 3 + 3 * WINDOW) * 4 + 4);
	ck_assert_mem_eq(blob, "te-quant", 8);
	ck_assert_uint_eq(word(blob + 8), 1);
	ck_assert_uint_eq(word(blob + 12), r.kind);
	ck_assert_uint_eq(word(blob + 20), (uint32_t)r.margin);
	ck_assert_uint_eq(word(blob + 40), 3);
	ck_assert_uint_eq(word(blob + 44), TE_DTYPE_E5M2);
	OK(te_quant_peek(a, 0, &scale, NULL));
	ck_assert_uint_eq(word(blob + 56), te__f32_bits(scale));
	ck_assert_uint_eq(word(blob + n - 4), crc32_slow(blob, n - 4));
	free(blob);
	free(again);
	te_quant_unref(a);
	te_quant_unref(b);
}

TEST(save, load_refuses_damage_and_changes_nothing)
{
	const struct te_recipe r = delayed(WINDOW, TE_AMAX_MAX, 0);
	struct te_quant *a = quants(r), *b = quants(r), *was = quants(r);
	const size_t n = te_quant_nbytes(a);
	uint8_t *blob = malloc(n + 4), *kept = malloc(n);

	ck_assert_uint_eq(crc32_slow((const uint8_t *)"123456789", 9), 0xcbf43926);
	randomize(a, WINDOW);
	randomize(b, WINDOW);
	OK(te_quant_save(b, kept, n));
	OK(te_quant_load(was, kept, n));
	OK(te_quant_save(a, kept, n));
	memcpy(blob, kept, n);
	memset(blob + n, 0, 4);

	for (size_t cut = 0; cut < n; cut++)
		ck_assert_int_eq(te_quant_load(b, blob, cut), -TE_ECORRUPT);
	ck_assert_int_eq(te_quant_load(b, blob, n + 4), -TE_ECORRUPT);
	for (size_t i = 0; i < n; i++) {
		int got;

		blob[i] ^= (uint8_t)(1u << tt_rand_int(0, 7));
		got = te_quant_load(b, blob, n);
		/* magic and version: another kind of file */
		ck_assert_int_eq(got, i < 12 ? -TE_EFORMAT : -TE_ECORRUPT);
		ck_assert(te_error_detail()[0]);
		blob[i] = kept[i];
	}
	/* counts that would overflow the size, with a checksum that fits */
	memset(blob + 40, 0xff, 4);
	set_crc(blob, n);
	ck_assert_int_eq(te_quant_load(b, blob, n), -TE_ECORRUPT);
	memcpy(blob, kept, n);
	memset(blob + 24, 0xff, 4);
	set_crc(blob, n);
	ck_assert_int_eq(te_quant_load(b, blob, n), -TE_ECORRUPT);
	ck_assert_int_eq(te_quant_load(b, "a text file, no state", 21), -TE_EFORMAT);
	ck_assert_int_eq(te_quant_load(b, NULL, 0), -EINVAL);
	check_same_state(b, was, 1);
	OK(te_quant_load(b, kept, n)); /* and the whole one is taken */
	check_same_state(b, a, 1);
	free(blob);
	free(kept);
	te_quant_unref(a);
	te_quant_unref(b);
	te_quant_unref(was);
}

TEST(save, load_refuses_another_recipe)
{
	struct te_quant *a = quants(delayed(WINDOW, TE_AMAX_MAX, 0)), *b;
	const struct te_recipe others[] = {
		delayed(WINDOW + 1, TE_AMAX_MAX, 0),
		delayed(WINDOW, TE_AMAX_MOST_RECENT, 0),
		delayed(WINDOW, TE_AMAX_MAX, 1),
		current(0.0f, 0),
	};
	const enum te_dtype swapped[] = { TE_DTYPE_E4M3, TE_DTYPE_E5M2, TE_DTYPE_E5M2 };
	const size_t n = te_quant_nbytes(a);
	uint8_t *blob = malloc(n);

	OK(te_quant_save(a, blob, n));
	for (size_t i = 0; i < TT_LEN(others); i++) {
		b = quants(others[i]);
		ck_assert_int_eq(te_quant_load(b, blob, n), -EINVAL);
		te_quant_unref(b);
	}
	OK(te_quant_create(ctx, te_quant_recipe(a), 3, swapped, &b));
	ck_assert_int_eq(te_quant_load(b, blob, n), -EINVAL);
	te_quant_unref(b);
	OK(te_quant_create(ctx, te_quant_recipe(a), 2, three, &b));
	ck_assert_int_eq(te_quant_load(b, blob, n), -EINVAL);
	te_quant_unref(b);
	free(blob);
	te_quant_unref(a);
}

TT_MAIN("quant/quant", TT_ONE_PROCESS)
