/*
 * fold.h - what host calls of libtecomm run on the host. Reductions of comm.h, for operations
 * between nodes: the same bits, whether the inputs of all ranks are reduced at once, or on one node
 * after the other. Groups of messages.h.
 */
#ifndef TE__COMM_FOLD_H
#define TE__COMM_FOLD_H

#include <te/export.h>

#include "kernels/te_k.h"

/* the reference function of the kernel, for callers that launch nothing */
TE_EXPORT void te__h_comm_fold(const struct te_k_comm_fold *a);
/* any type; src[r]: input of rank r. out must not be an input */
TE_EXPORT void te__comm_reduce(int32_t dtype, int32_t op, int32_t nranks, const void *const *src,
			       int64_t n, void *out);
/*
 * n ends of messages with other ranks, all in progress at once, in the order of the list for each
 * rank. a has comm, nlanes and kind. A TE_K_COMM_REDUCE has, in comm, op, and at the root in and
 * out; otherwise these are unused
 */
TE_EXPORT void te__h_comm_list(const struct te_k_comm_messages *a,
			       const struct te_k_comm_end *ends, int32_t n);

#endif
