/* dtype.c - element types: names, sizes, and conversions by value. */
#include "config.h"

#include <errno.h>

#include <te/dtype.h>
#include "libtecore/base/dtype_inline.h"
#include "libtecore/base/base.h"

/* values of the codes without sign: E.MMM and E.MM with biases 7 and 15 (OCP OFP8 1.0) */
#define E4M3_ABS(c)                                                        \
	((c) == 0x7f ? __builtin_nanf("") :                                \
	 (c) < 8     ? (float)(c) * 0x1p-9f :                              \
		       (float)(8 + ((c) & 7)) * (float)(1u << ((c) >> 3)) * 0x1p-10f)
#define E5M2_ABS(c)                                                        \
	((c) > 0x7c  ? __builtin_nanf("") :                                \
	 (c) == 0x7c ? __builtin_inff() :                                  \
	 (c) < 4     ? (float)(c) * 0x1p-16f :                             \
		       (float)(4 + ((c) & 3)) * (float)(1u << ((c) >> 2)) * 0x1p-17f)

#define ROW16(F, s, c) \
	s F(c), s F((c) + 1), s F((c) + 2), s F((c) + 3), s F((c) + 4), s F((c) + 5), \
	s F((c) + 6), s F((c) + 7), s F((c) + 8), s F((c) + 9), s F((c) + 10), s F((c) + 11), \
	s F((c) + 12), s F((c) + 13), s F((c) + 14), s F((c) + 15)
#define HALF(F, s) \
	ROW16(F, s, 0), ROW16(F, s, 16), ROW16(F, s, 32), ROW16(F, s, 48), \
	ROW16(F, s, 64), ROW16(F, s, 80), ROW16(F, s, 96), ROW16(F, s, 112)

const float te__e4m3_values[256] = { HALF(E4M3_ABS, +), HALF(E4M3_ABS, -) };
const float te__e5m2_values[256] = { HALF(E5M2_ABS, +), HALF(E5M2_ABS, -) };

static const struct {
	const char *name;
	size_t nbytes;
	float max;
} types[TE_DTYPE_COUNT] = {
	[TE_DTYPE_FP32] = { "fp32", 4, 0x1.fffffep127f },
	[TE_DTYPE_BF16] = { "bf16", 2, 0x1.fep127f },
	[TE_DTYPE_FP16] = { "fp16", 2, 65504.0f },
	[TE_DTYPE_E4M3] = { "e4m3", 1, 448.0f },
	[TE_DTYPE_E5M2] = { "e5m2", 1, 57344.0f },
	[TE_DTYPE_INT32] = { "int32", 4, 0.0f },
	[TE_DTYPE_UINT8] = { "uint8", 1, 0.0f },
	[TE_DTYPE_E2M1] = { "e2m1", 0, 6.0f },
};

static int known(enum te_dtype dtype)
{
	return (unsigned)dtype < TE_DTYPE_COUNT;
}

size_t te_dtype_nbytes(enum te_dtype dtype)
{
	return known(dtype) ? types[dtype].nbytes : 0;
}

const char *te_dtype_name(enum te_dtype dtype)
{
	return known(dtype) ? types[dtype].name : "?";
}

int te_dtype_from_name(const char *name, enum te_dtype *ret_dtype)
{
	if (!ret_dtype)
		return te__fail(-EINVAL, "te_dtype_from_name: ret_dtype is NULL");
	for (int i = 0; name && i < TE_DTYPE_COUNT; i++)
		if (!strcmp(name, types[i].name)) {
			*ret_dtype = (enum te_dtype)i;
			return 0;
		}
	return te__fail(-EINVAL, "there is no element type \"%s\"", name ? name : "(null)");
}

float te_dtype_max(enum te_dtype dtype)
{
	return known(dtype) ? types[dtype].max : 0.0f;
}

uint8_t te_fp8_encode(enum te_dtype dtype, float x)
{
	switch (dtype) {
	case TE_DTYPE_E4M3:
		return te__e4m3_encode(x);
	case TE_DTYPE_E5M2:
		return te__e5m2_encode(x);
	default:
		return 0;
	}
}

float te_fp8_decode(enum te_dtype dtype, uint8_t code)
{
	switch (dtype) {
	case TE_DTYPE_E4M3:
		return te__e4m3_values[code];
	case TE_DTYPE_E5M2:
		return te__e5m2_values[code];
	default:
		return 0.0f;
	}
}

uint16_t te_bf16_encode(float x)
{
	return te__bf16_encode(x);
}

float te_bf16_decode(uint16_t code)
{
	return te__bf16_decode(code);
}

uint16_t te_fp16_encode(float x)
{
	return te__fp16_encode(x);
}

float te_fp16_decode(uint16_t code)
{
	return te__fp16_decode(code);
}
