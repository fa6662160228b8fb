/* comm_internal.h - the communicator, for the files of libtecomm. */
#ifndef TE__COMM_INTERNAL_H
#define TE__COMM_INTERNAL_H

#include <stdatomic.h>

#include <te/comm.h>
#include <te/ctx.h>
#include "libtecomm/bootstrap/bootstrap.h"
#include "libtecomm/collective/collective.h"
#include "libtecomm/memory/pool.h"
#include "libtecomm/nccl/nccl.h"

struct te_comm {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	struct te__boot *boot;
	struct te__pool *pool;
	struct te__coll coll;
	struct te__nccl *nccl; /* once a call has asked for it */
	char name[64];
};

#endif
