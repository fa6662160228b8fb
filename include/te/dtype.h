/* te/dtype.h - element types and the conversions that define them. */
#ifndef TE_DTYPE_H
#define TE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>

TE_BEGIN_DECLS

enum te_dtype {
	TE_DTYPE_FP32 = 0,
	TE_DTYPE_BF16 = 1,
	TE_DTYPE_FP16 = 2,
	TE_DTYPE_E4M3 = 3,	/* OCP OFP8 E4M3FN: max 448, no infinity */
	TE_DTYPE_E5M2 = 4,	/* OCP OFP8 E5M2: max 57344 */
	TE_DTYPE_INT32 = 5,
	TE_DTYPE_UINT8 = 6,
	TE_DTYPE_E2M1 = 7,	/* OCP MX FP4 E2M1: max 6, no NaN; two codes a byte */
	TE_DTYPE_COUNT
};

/**
 * te_dtype_nbytes - bytes of one element, 0 for an unknown type and for E2M1, half a byte
 * te_dtype_name - "fp32", "bf16", "fp16", "e4m3", "e5m2", "int32", "uint8", "e2m1"; "?" for an
 *	unknown type
 * te_dtype_from_name - the inverse; -EINVAL names the unknown word
 * te_dtype_max - largest finite value of a floating type, 0 for the others
 * @dtype:     the element type
 * @name:      a name that te_dtype_name returns
 * @ret_dtype: the element type
 *
 * Thread: any.  Since: 0.1
 */
TE_EXPORT size_t te_dtype_nbytes(enum te_dtype dtype);
TE_EXPORT const char *te_dtype_name(enum te_dtype dtype);
TE_EXPORT int te_dtype_from_name(const char *name, enum te_dtype *ret_dtype);
TE_EXPORT float te_dtype_max(enum te_dtype dtype);

/**
 * te_fp8_encode - round a number to an FP8 code
 * @dtype: TE_DTYPE_E4M3 or TE_DTYPE_E5M2
 * @x:     the number
 * @code:  the FP8 code to decode
 *
 * Rounds to nearest, ties to even; finite values and infinities beyond the
 * largest finite value saturate to it with their sign; NaN becomes the NaN
 * code 0x7f with the sign of x (E5M2: the same 0x7f); zeros keep their sign.
 * Any other dtype gives 0.
 * Source: OCP 8-bit Floating Point Specification 1.0, saturating mode, as
 * cvt.rn.satfinite does on Hopper.
 * Thread: any.  Since: 0.1
 */
TE_EXPORT uint8_t te_fp8_encode(enum te_dtype dtype, float x);
TE_EXPORT float te_fp8_decode(enum te_dtype dtype, uint8_t code);

/* round to nearest, ties to even; NaN stays NaN, out of range is infinite */
TE_EXPORT uint16_t te_bf16_encode(float x);
TE_EXPORT float te_bf16_decode(uint16_t code);
TE_EXPORT uint16_t te_fp16_encode(float x);
TE_EXPORT float te_fp16_decode(uint16_t code);

TE_END_DECLS

#endif
