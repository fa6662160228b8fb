/*
 * t/core/kernel_lib.h - what the cases of kernels share: types, shapes, and how many of these a
 * backend and odd addresses are worth.
 *
 * Where te_k.h fixes the order of operations, device and host give the same bits.
 * Elsewhere each is within a bound of the exact value, and the sum of both bounds is the
 * bound here. U is 2^-24; unit(T) bounds the relative error of one rounding to T, and
 * since both sides round once, results of T have 2 unit(T) |want| on top.
 */
#ifndef KERNEL_LIB_H
#define KERNEL_LIB_H

#include "kernel_check.h"

/* T of most kernels, and of codes */
extern const int32_t kl_types[2], kl_fp8[2];

extern const struct kl_shape {
	int64_t rows, cols;
} kl_shapes[];

/* the first of them that a test takes, the step to the next, and their end */
size_t kl_first(void);
size_t kl_every(void);
size_t kl_nshapes(void);
/* the end of n shapes of which the last are for GPUs */
size_t kl_count(size_t n, size_t for_gpus);

/* of a kernel that has a noop word: a word that is set or not, or none */
const float *kl_noop(void);

/* a case on the backend */
TCase *kl_case(Suite *s, const char *title);

/* the cases of a file, and those that are run at odd addresses too */
void kernel_elem_cases(Suite *s, TCase *odd);
void kernel_row_cases(Suite *s, TCase *odd);
void kernel_act_cases(Suite *s, TCase *odd);
void kernel_train_cases(Suite *s, TCase *odd);

#endif
