/* grads.c - check that backward passes write the gradients that their callables declare. */
#include "config.h"

#include <stdlib.h>

#include "graph_internal.h"

static int by_begin(const void *a, const void *b)
{
	const struct te__write *x = a, *y = b;

	return (x->begin > y->begin) - (x->begin < y->begin);
}

/* number of bytes of [begin, end) that the writes cover; writes are sorted by begin */
static size_t covered(const struct te__writes *w, uintptr_t begin, uintptr_t end)
{
	size_t nbytes = 0;

	for (size_t i = 0; i < w->n && begin < end; i++) {
		const uintptr_t from = w->v[i].begin > begin ? w->v[i].begin : begin;
		const uintptr_t to = w->v[i].end < end ? w->v[i].end : end;

		if (from >= to)
			continue;
		nbytes += to - from;
		begin = to;
	}
	return nbytes;
}

int te__graph_grad_gap(const struct te__graph_callable *n, struct te__writes *writes,
		       struct te__grad_gap *ret_gap)
{
	if (writes->unknown)
		return 0;
	if (writes->n)
		qsort(writes->v, writes->n, sizeof(*writes->v), by_begin);
	for (int32_t k = 0; k < n->c.nin; k++) {
		const struct te_tensor *t = n->in_grad[k];
		const uintptr_t p = t ? (uintptr_t)te_tensor_data(t) : 0;
		size_t nbytes;

		if (!t)
			continue;
		nbytes = covered(writes, p, p + te_tensor_nbytes(t));
		if (nbytes == te_tensor_nbytes(t))
			continue;
		*ret_gap = (struct te__grad_gap){ k, nbytes };
		return 1;
	}
	return 0;
}
