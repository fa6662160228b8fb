/* comm.h - the communicator, for the files of libtecomm. */
#ifndef TE__COMM_H
#define TE__COMM_H

#include <stdatomic.h>

#include <te/comm.h>
#include <te/ctx.h>
#include "libtecomm/collective/collective.h"
#include "libtecomm/collective/nccl.h"
#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/pool/pool.h"

struct te_comm {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	struct te__boot *boot;
	struct te__pool *pool;
	struct te__coll coll;
	struct te__table table;
	struct te__nccl *nccl; /* opened by the first call that asks for NCCL; or NULL */
	char name[64];
	int created;   /* te__comm_create() has succeeded */
	int recovered; /* there is a successor that this rank is part of */
};

/*
 * te_comm_create(); with `from`, creates a successor or a group of a communicator whose ranks have
 * agreed on it (te__boot_reopen())
 */
int te__comm_create(struct te_ctx *ctx, const struct te_comm_opts *opts,
		    const struct te__boot_from *from, struct te_comm **ret_comm);
/* returns 0 if the communicator can reduce; errors name fn */
int te__comm_check(const char *fn, struct te_comm *comm);

/* the arguments of a collective call */
struct te__call {
	const char *fn; /* name of the function, for errors */
	struct te_comm *comm;
	const void *in;
	void *out;
	int64_t count;
	enum te_dtype dtype;
	enum te_comm_op op;
	enum te_k_comm_collective what;
	int32_t root; /* broadcast */
};

/* opens NCCL unless it is open: collective. -EBUSY: the stream is capturing */
int te__comm_open_nccl(struct te_comm *comm, const char *fn, struct te_stream *stream);
int te__comm_queue(const struct te__call *call, const struct te_comm_call_opts *opts,
		   struct te_stream *stream);
int te__comm_explain(const struct te__call *call, const struct te_comm_call_opts *opts,
		     struct te_comm_choice *ret);

#endif
