/* op.h - the fields of an op instance, and specs. */
#ifndef TE__OP_INTERNAL_H
#define TE__OP_INTERNAL_H

#include <stdatomic.h>

#include <te/op.h>

/* What the caller wants of a value that forward leaves for backward. */
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
	_Atomic(const struct te_seq *) seq; /* the one that it was appended to, or NULL */
	enum te__policy policy; /* of what it gives and saves */
	int locked; /* 1: that sequence is initialised */
	int is_library; /* 1: of te__op_create(), else user-defined, of any name */
};

/*
 * Asks infer() about inputs of these specs, as a plan does. te__infer_free releases the arrays,
 * also after a failure. Members that only a newer header has must not be set (-EINVAL).
 */
int te__infer(struct te_op *op, const struct te_recipe *recipe, uint32_t flags,
	      const struct te_spec *in, struct te_op_infer *ret_inf);
void te__infer_free(struct te_op_infer *inf);

/*
 * The largest tensor, and the most scratch of an op, that a sequence or plan accepts: 256 TiB. So
 * neither the size of one nor the sum of many overflows 64 bits.
 */
#define TE__SPEC_MAX_NBYTES ((int64_t)1 << 48)

/* 1: of a known type, 1 to TE_MAX_DIMS extents above 0, and at most TE__SPEC_MAX_NBYTES */
int te__spec_valid(const struct te_spec *s);
/* the next two: of a valid spec */
int64_t te__spec_nelems(const struct te_spec *s);
size_t te__spec_nbytes(const struct te_spec *s);
int te__spec_equal(const struct te_spec *a, const struct te_spec *b);

#endif
