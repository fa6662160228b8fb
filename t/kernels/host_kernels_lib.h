/*
 * t/kernels/host_kernels_lib.h - shared by the cases of the reference kernels: shapes, arrays of T
 * followed by a poisoned element, and quantized outputs.
 *
 * Bounds: U32 and tt_unit(T) are unit roundoffs, 2^-24 and, BF16, 2^-8. A result that takes k FP32
 * operations on terms of total size s and is rounded to T is within k U32 s + tt_unit(T) |want|,
 * to first order; k is generous by up to 2, which also covers second order.
 */
#ifndef HOST_KERNELS_LIB_H
#define HOST_KERNELS_LIB_H

#include "libtecore/backend/backend.h"
#include "tt.h"
#include "tt_num.h"

#define HK_NTYPES 2
#define HK_NSHAPES 7

/* T of most kernels, by the lowest bit of the loop index */
extern const int32_t hk_types[HK_NTYPES];

extern const struct hk_shape {
	int64_t rows, cols;
} hk_shapes[HK_NSHAPES];

/* words for a kernel's noop */
extern const float hk_noop_on, hk_noop_off;

/* bytes of an element */
size_t hk_width(int32_t dtype);
/* n elements and one more, all poison, to be freed with free(3) */
void *hk_fresh(int32_t dtype, int64_t n);
void *hk_normal(int32_t dtype, int64_t n, float scale);
void *hk_copy(int32_t dtype, const void *p, int64_t n);

/* the element after the end was not written */
void hk_check_end(int32_t dtype, const void *p, int64_t n);
/* the same bits */
void hk_check_same(int32_t dtype, const void *a, const void *b, int64_t n);
void hk_check_near(double got, double want, double tol, const char *what, int64_t i);

/* a quantized output with both copies */
struct hk_side {
	uint8_t *row, *col;
	float scale, scale_inv, amax;
	struct te_k_q q;
};

void hk_side_init(struct hk_side *s, int32_t dtype, int64_t n, float scale);
void hk_side_free(struct hk_side *s);
/* codes, transpose, amax and inverse are those of the T values y */
void hk_check_side(const struct hk_side *s, int32_t dtype, const void *y, int64_t rows,
		   int64_t cols);
void hk_check_side_untouched(const struct hk_side *s, int64_t n);

#endif
