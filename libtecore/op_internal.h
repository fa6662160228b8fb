/* op_internal.h - what an op instance holds. */
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
	char *give[TE_OP_MAX_EXTRA]; /* channel names, NULL where not joined */
	char *take[TE_OP_MAX_EXTRA];
	int locked; /* its sequence is initialised */
};

int64_t te__spec_nelems(const struct te_spec *s);
size_t te__spec_nbytes(const struct te_spec *s);
int te__spec_equal(const struct te_spec *a, const struct te_spec *b);
/* "[8,128,64] bf16" */
void te__spec_str(const struct te_spec *s, char *dst, size_t nbytes);

#endif
