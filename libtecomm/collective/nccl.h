/*
 * nccl.h - all-reduce and messages by NCCL, opened by dlopen when a call first asks for it.
 *
 * It adds in another order than the library's kernels, which may differ with size and version, so
 * its results are not bound by the definition of te/collective.h.
 */
#ifndef TE__NCCL_H
#define TE__NCCL_H

#include <te/collective.h>

#include "kernels/te_k.h"
#include "libtecomm/pool/pool.h"

struct te_stream;
struct te__nccl;

/*
 * Collective. -EOPNOTSUPP: libnccl.so.2 is absent or too old, the backend is host, or
 * NCCL_NVLS_ENABLE is not 0, since multicast is off in this library. -ETIMEDOUT: a rank did not
 * call, or NCCL did not connect in time. All ranks return an error if one of them does.
 */
int te__nccl_create(struct te__boot *boot, struct te__pool *pool, struct te__nccl **ret_nccl);
/*
 * Waits for the other ranks until the time-out; abort: does not wait, and ends waiting operations.
 * Takes NULL, returns NULL.
 */
struct te__nccl *te__nccl_destroy(struct te__nccl *nccl, int abort);
/* a failure ends the communicator, since other ranks may have queued the operation */
int te__nccl_allreduce(struct te__nccl *nccl, struct te_stream *stream, const void *in, void *out,
		       int64_t count, enum te_dtype dtype, enum te_comm_op op);
/* all of them; likewise. fn: for error messages */
int te__nccl_messages(struct te__nccl *nccl, const char *fn, struct te_stream *stream,
		      const struct te_k_comm_end *ends, int32_t nends);

#endif
