/* op.h - the fields of an op instance, and specs. */
#ifndef TE__OP_INTERNAL_H
#define TE__OP_INTERNAL_H

#include <stdatomic.h>

#include <te/op.h>

/* The caller's choice how to keep values that forward saves for backward. */
enum te__policy { TE__POLICY_ANY, TE__POLICY_KEEP, TE__POLICY_RECOMPUTE };

struct te_op {
	atomic_int refs;
	struct te_op_ops ops; /* a copy: an older, shorter table is padded with zeros */
	const struct te_op_ops *table;
	char *name;
	void *attrs;
	char **give; /* [nextra_out] channel names; NULL: not joined */
	char **take; /* [nextra_in] */
	int nweights;
	struct te_weight_decl *decl; /* [nweights] */
	_Atomic(const struct te_seq *) seq; /* sequence that has the op, or NULL */
	_Atomic(struct te_tensor *) constants; /* device memory, from te__op_constants(); or NULL */
	enum te__policy policy; /* for its outputs and saved tensors */
	/* the recipe used instead of the plan's, without its compute dtype; or NULL */
	const struct te_recipe *recipe;
	int locked; /* 1: the sequence is initialised */
	int is_library; /* 1: created by te__op_create(); else user-defined, with any name */
};

/*
 * Calls infer() for inputs with these specs, as a plan does. te__infer_free releases the arrays,
 * also after a failure. Members that only a newer header has must not be set (-EINVAL).
 */
int te__infer(struct te_op *op, const struct te_recipe *recipe, uint32_t flags,
	      const struct te_spec *in, struct te_op_infer *ret_inf);
void te__infer_free(struct te_op_infer *inf);

/* copy FP32 numbers, which the op's kernels read, to op->constants until the op is destroyed; once
 * on a context */
int te__op_constants(struct te_op *op, struct te_ctx *ctx, const float *x, int64_t n);
/* device memory that an op needs besides the plan's: slopes of attention; a plan that allocates
 * calls it */
int te__op_prepare(struct te_op *op, struct te_ctx *ctx);
/* -EOPNOTSUPP: an attention whose gradients, of inputs of this type, the kernels of the context's
 * device do not compute; dex: for each extra input, below 0 if its gradient is not needed */
int te__op_check_gradients(const struct te_op *op, const struct te_ctx *ctx, enum te_dtype dtype,
			   const int *dex);
/* -EOPNOTSUPP: an attention or rope of this type, whose heads are wider than the kernels of the
 * context's device take; a plan checks it before it allocates memory */
int te__op_check_heads(const struct te_op *op, const struct te_ctx *ctx, enum te_dtype dtype);

/*
 * Limit of the size of a tensor and of an op's scratch in a sequence or plan: 256 TiB. So neither a
 * size nor the sum of many sizes overflows 64 bits.
 */
#define TE__SPEC_MAX_NBYTES ((int64_t)1 << 48)

/* 1: the type is known, and there are 1 to TE_MAX_DIMS extents above 0 with at most
 * TE__SPEC_MAX_NBYTES in all */
int te__spec_valid(const struct te_spec *s);
int te__spec_equal(const struct te_spec *a, const struct te_spec *b);

#endif
