/*
 * t/kernels/kernel_lib.h - shared by the cases of kernels: types, shapes, and how many of the
 * shapes are run on a backend and at unaligned addresses.
 *
 * If te_k.h specifies the order of operations, device and host give the same bits.
 * Otherwise each is within a bound of the exact value, and the sum of both bounds is the
 * tolerance here. U is 2^-24; unit(T) bounds the relative error of one rounding to T, and
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

/* the index of the first of n shapes that a test runs, the step to the next, and the end */
size_t kl_first(size_t n);
size_t kl_every(void);
size_t kl_nshapes(void);
/* the end of n shapes, of which the last for_gpus are for GPUs only */
size_t kl_count(size_t n, size_t for_gpus);

/* a random noop argument: a word that is set, a word that is not, or NULL */
const float *kl_noop(void);

/* a case on the backend */
#define KL_CASE(case_, ...) \
	CASE(case_, "numeric", .setup = kl_setup, .teardown = kc_close, ##__VA_ARGS__)
void kl_setup(void);
/* tests that are also run at unaligned addresses */
void kl_setup_odd(void);
CASE(odd, "numeric", .name = "unaligned addresses", .setup = kl_setup_odd, .teardown = kc_close);

#endif
