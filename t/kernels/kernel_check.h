/*
 * t/kernels/kernel_check.h - compares a kernel launch on a backend with its reference function.
 *
 * A test allocates arrays with kc_*(), fills the kernel's struct with these host pointers and
 * calls kc_run(). It copies the arrays to the device, replaces the pointers of the struct, runs
 * the kernel, copies the results back to separate arrays and runs the reference on the original
 * ones. Then every array must hold the same bits (any NaN for a NaN), except those named by
 * kc_defer(), which the test compares by kc_near(). The 256 bytes before and after each array must
 * be unchanged. On the host backend kc_near() requires equal bits too, which tests this code.
 * Every launch is compared with its row of kernels.def: it writes nothing else, its results depend
 * on nothing else, and no range extends beyond its array.
 */
#ifndef KERNEL_CHECK_H
#define KERNEL_CHECK_H

#include <te/ctx.h>
#include <te/dtype.h>
#include "libtecore/backend/backend.h"
#include "tt.h"
#include "tt_num.h"

void kc_open(const char *on);
void kc_close(void);
/* frees all arrays */
void kc_reset(void);

/*
 * n elements; those of kc_poison() hold bytes that no result should. Arrays are aligned to 256
 * bytes; after kc_unaligned(1) to their elements only, except those of TE_DTYPE_UINT8, which are
 * also used for structs and longer words.
 */
void kc_unaligned(int on);
int kc_is_unaligned(void);
/* bytes of shared memory that a block of the device may have; many on the host */
uint64_t kc_block_smem(void);
void *kc_poison(int32_t dtype, int64_t n);
void *kc_normal(int32_t dtype, int64_t n, float scale);
/* FP32, BF16, FP16: any bits: NaN, infinite, subnormal */
void *kc_anything(int32_t dtype, int64_t n);
float *kc_word(float x);
/* the BF16 parts of n weights, and their other halves */
uint16_t *kc_split(const float *w, int64_t n, const uint16_t **ret_rest);

/* exclude an array from the comparison of the next kc_run() */
void kc_defer(const void *p);
void kc_run(enum te_k_id id, const void *args, size_t nbytes);
#define KC_RUN(ID, argsp) kc_run(TE_K_##ID, (argsp), sizeof(*(argsp)))
/* the device's contents of an array */
const void *kc_got(const void *p);
/* element i of a deferred array is within tol, or both are NaN, or the same infinity */
void kc_near(const void *p, int64_t i, double tol);

/* a quantized side output with both copies, over n elements */
struct te_k_q kc_q(int32_t qdtype, int64_t n, float scale, const float *noop);
/* the same with block scaling, over a [rows, cols] result; scaling is one of enum te_k_scaling */
struct te_k_q kc_q_blocks(int32_t qdtype, int32_t scaling, int64_t rows, int64_t cols,
			  const float *noop);
void kc_defer_q(const struct te_k_q *q);
/* the device's codes, inverses and amax are those of the T values y */
void kc_check_q(const struct te_k_q *q, int32_t dtype, const void *y, int64_t rows, int64_t cols);

#endif
