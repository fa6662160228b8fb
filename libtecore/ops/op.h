/* op.h - the fields of an op instance, and specs. */
#ifndef TE__OP_INTERNAL_H
#define TE__OP_INTERNAL_H

#include <stdatomic.h>

#include <te/op.h>

struct te_op {
	atomic_int refs;
	struct te_op_ops ops; /* a copy: an older, shorter table is padded with zeros */
	const struct te_op_ops *table;
	char *name;
	void *attrs;
	char *give[TE_OP_MAX_EXTRA]; /* channel names; NULL: not joined */
	char *take[TE_OP_MAX_EXTRA];
	_Atomic(const struct te_seq *) seq; /* the one that it was appended to, or NULL */
	int locked; /* 1: that sequence is initialised */
};

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
/* "[8,128,64] bf16" */
void te__spec_str(const struct te_spec *s, char *dst, size_t nbytes);

#endif
