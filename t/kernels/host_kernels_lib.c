/* t/kernels/host_kernels_lib.c - see host_kernels_lib.h. */
#include "config.h"

#include <math.h>

#include <te/dtype.h>

#include "host_kernels_lib.h"

const int32_t hk_types[HK_NTYPES] = { TE_DTYPE_FP32, TE_DTYPE_BF16 };
const struct hk_shape hk_shapes[HK_NSHAPES] = {
	{ 1, 1 }, { 3, 7 }, { 64, 33 }, { 65, 8 }, { 130, 5 }, { 2, 2048 }, { 3, 4099 },
};
const float hk_noop_on = 1.0f, hk_noop_off = 0.0f;

size_t hk_width(int32_t dtype)
{
	return te_dtype_nbytes((enum te_dtype)dtype);
}

void *hk_fresh(int32_t dtype, int64_t n)
{
	const size_t nbytes = (size_t)(n + 1) * hk_width(dtype);
	void *p = malloc(nbytes);

	ck_assert_ptr_nonnull(p);
	tt_poison(p, nbytes);
	return p;
}

void *hk_normal(int32_t dtype, int64_t n, float scale)
{
	void *p = hk_fresh(dtype, n);

	for (int64_t i = 0; i < n; i++)
		tt_set(dtype, p, i, scale * tt_rand_normal());
	return p;
}

void *hk_copy(int32_t dtype, const void *p, int64_t n)
{
	void *c = hk_fresh(dtype, n);

	memcpy(c, p, (size_t)n * hk_width(dtype));
	return c;
}

void hk_check_end(int32_t dtype, const void *p, int64_t n)
{
	ck_assert(tt_is_poison((const char *)p + (size_t)n * hk_width(dtype), hk_width(dtype)));
}

void hk_check_same(int32_t dtype, const void *a, const void *b, int64_t n)
{
	ck_assert_int_eq(memcmp(a, b, (size_t)n * hk_width(dtype)), 0);
}

void hk_check_near(double got, double want, double tol, const char *what, int64_t i)
{
	ck_assert_msg(fabs(got - want) <= tol, "%s[%lld]: got %.9g want %.9g, off %.3g, bound %.3g",
		      what, (long long)i, got, want, fabs(got - want), tol);
}

void hk_side_init(struct hk_side *s, int32_t dtype, int64_t n, float scale)
{
	s->row = hk_fresh(TE_DTYPE_UINT8, n);
	s->col = hk_fresh(TE_DTYPE_UINT8, n);
	s->scale = scale;
	s->scale_inv = -1.0f;
	s->amax = 0.0f;
	s->q = (struct te_k_q){
		.row = s->row,
		.col = s->col,
		.scale = &s->scale,
		.scale_inv = &s->scale_inv,
		.amax = &s->amax,
		.dtype = dtype,
	};
}

void hk_side_free(struct hk_side *s)
{
	free(s->row);
	free(s->col);
}

void hk_check_side(const struct hk_side *s, int32_t dtype, const void *y, int64_t rows,
		   int64_t cols)
{
	float amax = 0.0f;

	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			const float v = tt_get(dtype, y, r * cols + c);
			const uint8_t code = te_fp8_encode((enum te_dtype)s->q.dtype, v * s->scale);

			ck_assert_uint_eq(s->row[r * cols + c], code);
			ck_assert_uint_eq(s->col[c * rows + r], code);
			if (!isnan(v) && fabsf(v) > amax)
				amax = fabsf(v);
		}
	ck_assert_float_eq(s->amax, amax);
	ck_assert_float_eq(s->scale_inv, 1.0f / s->scale);
	hk_check_end(TE_DTYPE_UINT8, s->row, rows * cols);
	hk_check_end(TE_DTYPE_UINT8, s->col, rows * cols);
}

void hk_check_side_untouched(const struct hk_side *s, int64_t n)
{
	ck_assert(tt_is_poison(s->row, (size_t)n + 1));
	ck_assert(tt_is_poison(s->col, (size_t)n + 1));
	ck_assert_float_eq(s->scale_inv, -1.0f);
	ck_assert_float_eq(s->amax, 0.0f);
}
