/*
 * t/ops/kernel_calls_cases.h - the calls of te/kernel.h against ops on every backend.
 *
 * Both queue the same kernels, so results have the same bits. Each case runs eagerly and from a
 * recording (_i & 1).
 */
#ifndef KERNEL_CALLS_CASES_H
#define KERNEL_CALLS_CASES_H

#include <te/capture.h>
#include <te/kernel.h>
#include <te/plan.h>

#include "op_run.h"

/* a case with the fixture */
#define KC_CASE(case_, ...) \
	CASE(case_, "kernel numeric", .setup = kc_setup, .teardown = kc_teardown, ##__VA_ARGS__)
void kc_setup(void);
void kc_teardown(void);

/* extents of the case, chosen at random; type FP32 or BF16 */
extern int64_t kc_rows, kc_cols;
extern enum te_dtype kc_type;
extern const enum te_dtype kc_types[2];
const char *kc_recipe(void); /* of that type, without FP8 */

/* tensors that the fixture releases: poisoned, of normal numbers, of zeros */
struct te_tensor *kc_poison(enum te_dtype dtype, int64_t rows, int64_t cols);
struct te_tensor *kc_normal(enum te_dtype dtype, int64_t rows, int64_t cols);
struct te_tensor *kc_zeros(enum te_dtype dtype, int64_t rows, int64_t cols);
void kc_set_normal(struct te_tensor *t);
/* FP8 with both copies */
struct te_tensor *kc_fp8(enum te_dtype dtype, int64_t rows, int64_t cols, enum te_scaling scaling);
/* the same elements in other memory */
struct te_tensor *kc_copy(const struct te_tensor *t);
/* the same memory in another shape */
struct te_tensor *kc_reshaped(struct te_tensor *t, const struct te_spec *s);
/* scratch that the fixture releases, poisoned */
void *kc_ws(size_t nbytes);

/*
 * An op that kc_type's recipe runs without a plan: on normal numbers for x, weights and dy, then
 * all its passes; in: of x and of extra inputs. kc_op_fini releases the op too.
 */
void kc_op_init(struct op_run *r, struct te_op *op, const struct te_spec *in);
void kc_op_passes(struct op_run *r);
void kc_op_fini(struct op_run *r);

/* a plan for training of ops, which the sequence takes over, and of x; NULL ends the ops */
struct te_plan *kc_plan(struct te_op *const *ops, const struct te_spec *x, uint32_t flags);
/* master and gradient of weight i of the plan's sequence */
struct te_weight_info kc_weight(int i);
struct te_seq *kc_seq(void);

/* what is queued in between runs at the end: from a recording if replay is 1 */
void kc_begin(int replay);
void kc_end(int replay);

/* the same bits in all copies, and scales */
void kc_same(const char *what, const struct te_tensor *got, const struct te_tensor *want);

/* two equal quantizers: one casts in the call, the other by te_quantize */
struct kc_quants {
	struct te_quant *of[2];
	struct te_tensor *q[2]; /* by slot 1 */
};
extern const char *const kc_quant_recipes[3]; /* the last has block scaling */
struct kc_quants kc_quants(const char *recipe, int64_t rows, int64_t cols);
void kc_quants_drop(struct kc_quants *z);
/* q[0] has the codes, scales and history that te_quantize() of y makes */
void kc_equals_quantize(struct kc_quants *z, const struct te_tensor *y, uint32_t flags);

#endif
