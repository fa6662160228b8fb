/* tt_num.c - see tt_num.h. */
#include "config.h"

#include <te/dtype.h>

#include "tt_ctx.h"
#include "tt_num.h"

int tt_is_fp8(int32_t dtype)
{
	return dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2;
}

double tt_unit(int32_t dtype)
{
	return dtype == TE_DTYPE_BF16 ? 0x1p-8 : dtype == TE_DTYPE_FP16 ? 0x1p-11 : U32;
}

float tt_get(int32_t dtype, const void *p, int64_t i)
{
	const char *at = (const char *)p + i * (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
	union {
		uint8_t u8;
		uint16_t u16;
		int32_t i32;
		float f32;
	} x;

	memcpy(&x, at, te_dtype_nbytes((enum te_dtype)dtype));
	switch (dtype) {
	case TE_DTYPE_BF16:
		return te_bf16_decode(x.u16);
	case TE_DTYPE_FP16:
		return te_fp16_decode(x.u16);
	case TE_DTYPE_E4M3:
	case TE_DTYPE_E5M2:
		return te_fp8_decode((enum te_dtype)dtype, x.u8);
	case TE_DTYPE_INT32:
		return (float)x.i32;
	case TE_DTYPE_UINT8:
		return (float)x.u8;
	default:
		return x.f32;
	}
}

void tt_set(int32_t dtype, void *p, int64_t i, float x)
{
	char *at = (char *)p + i * (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
	union {
		uint8_t u8;
		uint16_t u16;
		int32_t i32;
		float f32;
	} y;

	switch (dtype) {
	case TE_DTYPE_BF16:
		y.u16 = te_bf16_encode(x);
		break;
	case TE_DTYPE_FP16:
		y.u16 = te_fp16_encode(x);
		break;
	case TE_DTYPE_E4M3:
	case TE_DTYPE_E5M2:
		y.u8 = te_fp8_encode((enum te_dtype)dtype, x);
		break;
	case TE_DTYPE_INT32:
		y.i32 = (int32_t)x;
		break;
	case TE_DTYPE_UINT8:
		y.u8 = (uint8_t)x;
		break;
	default:
		y.f32 = x;
	}
	memcpy(at, &y, te_dtype_nbytes((enum te_dtype)dtype));
}

float tt_round(int32_t dtype, float x)
{
	float one;

	tt_set(dtype, &one, 0, x);
	return tt_get(dtype, &one, 0);
}

float *tt_tensor_get(const struct te_tensor *t)
{
	int64_t n = te_tensor_nelems(t);
	void *p = malloc(te_tensor_nbytes(t));
	float *v = malloc((size_t)n * sizeof(*v));

	DO(te_tensor_read(t, p, te_tensor_nbytes(t)));
	for (int64_t i = 0; i < n; i++)
		v[i] = tt_get(te_tensor_dtype(t), p, i);
	free(p);
	return v;
}

void tt_tensor_set(struct te_tensor *t, const float *v)
{
	int64_t n = te_tensor_nelems(t);
	void *p = malloc(te_tensor_nbytes(t));

	for (int64_t i = 0; i < n; i++)
		tt_set(te_tensor_dtype(t), p, i, v[i]);
	DO(te_tensor_write(t, p, te_tensor_nbytes(t)));
	free(p);
}
