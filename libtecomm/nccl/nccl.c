/* nccl.c - see nccl.h. The constants are those of nccl.h, versions 2.19 and later. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/nccl"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <te/ctx.h>
#include <te/stream.h>

#include "libtecomm/nccl/nccl.h"

#define LEAST_VERSION 21900
#define FP8_VERSION 22400

struct id {
	char bytes[128];
};

struct te__nccl {
	struct te_ctx *ctx;
	void *comm;
	int version;
};

static struct symbols {
	int (*get_version)(int *ret);
	int (*get_unique_id)(struct id *ret);
	int (*comm_init_rank)(void **ret_comm, int nranks, struct id id, int rank);
	int (*comm_destroy)(void *comm);
	int (*comm_abort)(void *comm);
	int (*all_reduce)(const void *in, void *out, size_t count, int dtype, int op, void *comm,
			  void *stream);
	const char *(*error_string)(int code);
	const char *(*last_error)(void *comm);
} nccl;

static const struct te__dl_sym sym[] = {
	{ "ncclGetVersion", offsetof(struct symbols, get_version) },
	{ "ncclGetUniqueId", offsetof(struct symbols, get_unique_id) },
	{ "ncclCommInitRank", offsetof(struct symbols, comm_init_rank) },
	{ "ncclCommDestroy", offsetof(struct symbols, comm_destroy) },
	{ "ncclCommAbort", offsetof(struct symbols, comm_abort) },
	{ "ncclAllReduce", offsetof(struct symbols, all_reduce) },
	{ "ncclGetErrorString", offsetof(struct symbols, error_string) },
	{ "ncclGetLastError", offsetof(struct symbols, last_error) },
};
static struct te__dl dl = TE__DL(sym, &nccl, "libnccl.so.2");

static int failed(const struct te__nccl *n, const char *fn, int code)
{
	return te__fail(-TE_EPEER, "NCCL: %s: %s: %s", fn, nccl.error_string(code),
			nccl.last_error(n->comm));
}

/* of this rank: can it use NCCL? */
static int prepare(struct te__nccl *n)
{
	const char *nvls = te__env("NCCL_NVLS_ENABLE"), *missing;
	int r = te__ctx_enter(n->ctx);

	if (r)
		return r;
	te__ctx_leave(n->ctx);
	if (!nvls || strcmp(nvls, "0"))
		return te__fail(-EOPNOTSUPP, "NCCL: NCCL_NVLS_ENABLE is not 0 in the environment; "
				"this library does not use multicast");
	missing = te__dl_open(&dl);
	if (missing)
		return te__fail(-EOPNOTSUPP, "NCCL: %s is not found", missing);
	r = nccl.get_version(&n->version);
	if (r)
		return failed(n, "ncclGetVersion", r);
	if (n->version < LEAST_VERSION)
		return te__fail(-EOPNOTSUPP, "NCCL: its version is %d, expected %d or later",
				n->version, LEAST_VERSION);
	return 0;
}

/* what ranks exchange before any of them waits inside NCCL */
struct offer {
	int32_t code, version;
	struct id id;
	char text[160];
};

static int meet(struct te__nccl *n, struct te__boot *boot, struct offer *all)
{
	const int32_t nranks = te__boot_nranks(boot), rank = te__boot_rank(boot);
	struct offer *own = &all[rank];
	int r = prepare(n);

	if (!r && !rank) {
		r = nccl.get_unique_id(&own->id);
		if (r)
			r = failed(n, "ncclGetUniqueId", r);
	}
	own->code = r;
	own->version = n->version;
	if (r)
		snprintf(own->text, sizeof(own->text), "%s", te_error_detail());
	r = te__boot_allgather(boot, own, all, sizeof(*own), "start of NCCL",
			       te__boot_deadline(boot));
	for (int32_t i = 0; i < nranks && !r; i++) {
		if (all[i].code)
			r = te__fail(all[i].code, "%s: %.*s", te__boot_peer(boot, i),
				     (int)sizeof(all[i].text) - 1, all[i].text);
		else if (all[i].version != all[0].version)
			r = te__fail(-TE_EMISMATCH, "NCCL: %s has version %d, %s has %d",
				     te__boot_peer(boot, i), all[i].version,
				     te__boot_peer(boot, 0), all[0].version);
	}
	return r;
}

static int join(struct te__nccl *n, struct te__boot *boot, const struct id *id)
{
	int r = te__ctx_enter(n->ctx), code;

	if (r)
		return r;
	code = nccl.comm_init_rank(&n->comm, te__boot_nranks(boot), *id, te__boot_rank(boot));
	te__ctx_leave(n->ctx);
	return code ? failed(n, "ncclCommInitRank", code) : 0;
}

int te__nccl_create(struct te__boot *boot, struct te_ctx *ctx, struct te__nccl **ret_nccl)
{
	struct offer *all = te__calloc((size_t)te__boot_nranks(boot), sizeof(*all));
	struct te__nccl *n = te__calloc(1, sizeof(*n));
	int r;

	if (!all || !n) {
		te__boot_abort(boot, "no memory for NCCL");
		r = te__fail(-ENOMEM, "NCCL: no memory");
	} else {
		n->ctx = ctx;
		r = meet(n, boot, all);
		if (!r)
			r = join(n, boot, &all[0].id);
	}
	te__free(all);
	if (r) {
		te__free(n);
		return r;
	}
	te__log_info("NCCL %d among %d ranks", n->version, te__boot_nranks(boot));
	*ret_nccl = n;
	return 0;
}

struct te__nccl *te__nccl_destroy(struct te__nccl *n, int abort)
{
	if (!n)
		return NULL;
	if (!te__ctx_enter(n->ctx)) {
		if ((abort ? nccl.comm_abort : nccl.comm_destroy)(n->comm))
			te__log_warn("NCCL: a communicator could not be destroyed");
		te__ctx_leave(n->ctx);
	}
	te__free(n);
	return NULL;
}

static int type_of(const struct te__nccl *n, enum te_dtype t)
{
	static const int type[] = {
		[TE_DTYPE_FP32] = 7, [TE_DTYPE_BF16] = 9, [TE_DTYPE_FP16] = 6, [TE_DTYPE_E4M3] = 10,
		[TE_DTYPE_E5M2] = 11, [TE_DTYPE_INT32] = 2, [TE_DTYPE_UINT8] = 1,
	};

	if ((unsigned)t >= sizeof(type) / sizeof(type[0]))
		return -1;
	return n->version < FP8_VERSION && type[t] >= 10 ? -1 : type[t];
}

int te__nccl_allreduce(struct te__nccl *n, struct te_stream *stream, const void *in, void *out,
		       int64_t count, enum te_dtype dtype, enum te_comm_op op)
{
	static const int ops[] = {
		[TE_COMM_SUM] = 0, [TE_COMM_AVG] = 4, [TE_COMM_MIN] = 3, [TE_COMM_MAX] = 2,
	};
	const int type = type_of(n, dtype);
	int r, code;

	if (type < 0)
		return te__fail(-EOPNOTSUPP, "NCCL: version %d has no type %s", n->version,
				te_dtype_name(dtype));
	r = te__ctx_enter(n->ctx);
	if (r)
		return r;
	code = nccl.all_reduce(in, out, (size_t)count, type, ops[op], n->comm,
			      te_stream_native(stream));
	te__ctx_leave(n->ctx);
	return code ? failed(n, "ncclAllReduce", code) : 0;
}
