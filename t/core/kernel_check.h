/*
 * t/core/kernel_check.h - one kernel launch on a backend beside its reference function.
 *
 * A test makes its arrays with kc_*(), fills the kernel's struct with these host
 * pointers and calls kc_run(): the arrays are copied to the device, pointers in the
 * struct are moved there, the kernel runs, its results come back beside the arrays, and the
 * reference runs on the arrays themselves. Then every array must hold the same bits
 * (any NaN for a NaN), but those that kc_defer() named, which the test compares by
 * kc_near(). The 256 bytes before and behind each array must be as they were. On the
 * host backend kc_near() asks for equal bits too: it is the check of the checker. Every launch is
 * compared with what te_k_ptr.def says of it: it writes nothing else, reads nothing else that
 * counts, and no range reaches over its array.
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
 * n elements; kc_poison's hold bytes that no result should. Arrays begin at 256 bytes; after
 * kc_odd(1) at any address that their elements may have, but those of TE_DTYPE_UINT8, which
 * stand for structs and longer words.
 */
void kc_odd(int on);
int kc_is_odd(void);
void *kc_poison(int32_t dtype, int64_t n);
void *kc_normal(int32_t dtype, int64_t n, float scale);
/* FP32, BF16, FP16: any bits: NaN, infinite, subnormal */
void *kc_anything(int32_t dtype, int64_t n);
float *kc_word(float x);

/* what the next kc_run() shall not compare */
void kc_defer(const void *p);
void kc_run(enum te_k_id id, const void *args, size_t nbytes);
#define KC_RUN(ID, argsp) kc_run(TE_K_##ID, (argsp), sizeof(*(argsp)))
/* what the device left in an array */
const void *kc_got(const void *p);
/* element i of a deferred array is within tol, or both are NaN, or the same infinity */
void kc_near(const void *p, int64_t i, double tol);

/* a quantized side output with both copies, over n elements */
struct te_k_q kc_q(int32_t qdtype, int64_t n, float scale, const float *noop);
void kc_defer_q(const struct te_k_q *q);
/* the device's codes, inverse and amax are those of the T values y */
void kc_check_q(const struct te_k_q *q, int32_t dtype, const void *y, int64_t rows, int64_t cols);

#endif
