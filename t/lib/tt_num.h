/* tt_num.h - numbers of any type, as elements of an array or as a whole tensor. */
#ifndef TT_NUM_H
#define TT_NUM_H

#include <stdint.h>

#include <te/tensor.h>

#define U32 0x1p-24 /* unit roundoff of FP32 */

int tt_is_fp8(int32_t dtype);
/* unit roundoff of FP32, BF16 or FP16 */
double tt_unit(int32_t dtype);

/* FP32, BF16, FP16, E4M3, E5M2, INT32 or UINT8, aligned or not; x is rounded as the type is */
float tt_get(int32_t dtype, const void *p, int64_t i);
void tt_set(int32_t dtype, void *p, int64_t i, float x);
/* x rounded to the type */
float tt_round(int32_t dtype, float x);

/* all elements of a tensor as floats, to be released by free(3); and the reverse */
float *tt_tensor_get(const struct te_tensor *t);
void tt_tensor_set(struct te_tensor *t, const float *v);

#endif
