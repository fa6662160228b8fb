/*
 * nccl.h - all-reduce by NCCL, which is opened by dlopen when a call first asks for it.
 *
 * It adds in another order than the library's kernels, which may differ with size and version, so
 * its results are not bound by the definition of te/collective.h.
 */
#ifndef TE__NCCL_H
#define TE__NCCL_H

#include <te/collective.h>

#include "libtecomm/bootstrap/bootstrap.h"

struct te_ctx;
struct te_stream;
struct te__nccl;

/*
 * Collective. -EOPNOTSUPP: libnccl.so.2 is not there or too old, the backend is host, or
 * NCCL_NVLS_ENABLE is not 0: multicast is off in this library. All ranks return an error if one of
 * them does.
 */
int te__nccl_create(struct te__boot *boot, struct te_ctx *ctx, struct te__nccl **ret_nccl);
/* abort: do not wait for other ranks. Takes NULL, returns NULL */
struct te__nccl *te__nccl_destroy(struct te__nccl *nccl, int abort);
int te__nccl_allreduce(struct te__nccl *nccl, struct te_stream *stream, const void *in, void *out,
		       int64_t count, enum te_dtype dtype, enum te_comm_op op);

#endif
