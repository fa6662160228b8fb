/* nccl.c - see nccl.h. The constants are from NCCL's nccl.h, versions 2.19 and later. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/nccl"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <te/ctx.h>
#include <te/stream.h>

#include "libtecomm/collective/nccl.h"
#include "libtecomm/meet/agree.h"

#define LEAST_VERSION 21900
#define FP8_VERSION 22400
#define IN_PROGRESS 7
#define SPIN_NS INT64_C(200000) /* most waits are shorter */
#define PAUSE_NS INT64_C(1000000)

struct id {
	char bytes[128];
};

/* the members of version 2.14; later versions set members after them to their defaults */
struct config {
	size_t size;
	unsigned int magic, version;
	int blocking;
};

struct te__nccl {
	struct te__boot *boot;
	struct te__pool *pool;
	struct te_ctx *ctx;
	void *comm;
	int version;
};

static struct symbols {
	int (*get_version)(int *ret);
	int (*get_unique_id)(struct id *ret);
	int (*comm_init)(void **ret_comm, int nranks, struct id id, int rank,
			 struct config *config);
	int (*comm_state)(void *comm, int *ret_code);
	int (*comm_finalize)(void *comm);
	int (*comm_destroy)(void *comm);
	int (*comm_abort)(void *comm);
	int (*all_reduce)(const void *in, void *out, size_t count, int dtype, int op, void *comm,
			  void *stream);
	int (*group_start)(void);
	int (*group_end)(void);
	int (*send)(const void *in, size_t count, int dtype, int to, void *comm, void *stream);
	int (*recv)(void *out, size_t count, int dtype, int from, void *comm, void *stream);
	const char *(*error_string)(int code);
	const char *(*last_error)(void *comm);
} nccl;

static const struct te__dl_sym sym[] = {
	{ "ncclGetVersion", offsetof(struct symbols, get_version) },
	{ "ncclGetUniqueId", offsetof(struct symbols, get_unique_id) },
	{ "ncclCommInitRankConfig", offsetof(struct symbols, comm_init) },
	{ "ncclCommGetAsyncError", offsetof(struct symbols, comm_state) },
	{ "ncclCommFinalize", offsetof(struct symbols, comm_finalize) },
	{ "ncclCommDestroy", offsetof(struct symbols, comm_destroy) },
	{ "ncclCommAbort", offsetof(struct symbols, comm_abort) },
	{ "ncclAllReduce", offsetof(struct symbols, all_reduce) },
	{ "ncclGroupStart", offsetof(struct symbols, group_start) },
	{ "ncclGroupEnd", offsetof(struct symbols, group_end) },
	{ "ncclSend", offsetof(struct symbols, send) },
	{ "ncclRecv", offsetof(struct symbols, recv) },
	{ "ncclGetErrorString", offsetof(struct symbols, error_string) },
	{ "ncclGetLastError", offsetof(struct symbols, last_error) },
};
static struct te__dl dl = TE__DL(sym, &nccl, "libnccl.so.2");

static int failed(const struct te__nccl *n, const char *fn, int code)
{
	return te__fail(-TE_EPEER, "NCCL: %s: %s: %s", fn, nccl.error_string(code),
			nccl.last_error(n->comm));
}

/*
 * The result of a call that has returned `code`. The communicator does not block: what waits for
 * other ranks, such as connecting to them in the first operations, is done by threads of NCCL.
 */
static int finish(struct te__nccl *n, const char *fn, int code)
{
	const int64_t begin = te__boot_now(), deadline = te__boot_deadline(n->boot);
	int64_t now = begin;
	int r, ended;

	while (code == IN_PROGRESS && now < deadline) {
		r = now - begin < SPIN_NS ? sched_yield() :
					    te__boot_watch(n->boot, fn, -1, now + PAUSE_NS);
		ended = te__pool_check(n->pool, fn);
		if (ended || r)
			return ended ? ended : r;
		r = nccl.comm_state(n->comm, &code);
		if (r)
			return failed(n, "ncclCommGetAsyncError", r);
		now = te__boot_now();
	}
	if (code == IN_PROGRESS)
		return te__fail(-ETIMEDOUT, "NCCL: %s: not done within %d ms", fn,
				te__boot_timeout_ms(n->boot));
	return code ? failed(n, fn, code) : 0;
}

/* can this rank use NCCL? */
static int prepare(struct te__nccl *n)
{
	const char *nvls = te__env("NCCL_NVLS_ENABLE"), *missing;
	int r = te__ctx_enter(n->ctx);

	if (r == -EOPNOTSUPP)
		return te__fail(r, "NCCL: it needs GPUs, the backend is %s",
				te_ctx_backend(n->ctx));
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

/* record that ranks exchange before they wait inside NCCL */
struct offer {
	int32_t version;
	struct id id; /* id of rank 0 */
};

static int meet(struct te__nccl *n, struct id *ret_id)
{
	struct offer *all, own = { 0 };
	int r = prepare(n);

	if (!r && !te__boot_rank(n->boot)) {
		r = nccl.get_unique_id(&own.id);
		if (r)
			r = failed(n, "ncclGetUniqueId", r);
	}
	own.version = n->version;
	all = te__gather(n->boot, &r, &own, sizeof(own), "start of NCCL", 0);
	for (int32_t i = 1; i < te__boot_nranks(n->boot) && !r; i++)
		if (all[i].version != all[0].version)
			r = te__fail(-TE_EMISMATCH, "NCCL: %s has version %d, %s has %d",
				     te__boot_peer(n->boot, i), all[i].version,
				     te__boot_peer(n->boot, 0), all[0].version);
	if (!r)
		*ret_id = all[0].id;
	te__free(all);
	return r;
}

/* record of this rank */
static int join(struct te__nccl *n, struct id id)
{
	struct config config = { sizeof(config), 0xcafebeef, 21400, .blocking = 0 };
	int r = te__ctx_enter(n->ctx);

	if (r)
		return r;
	r = nccl.comm_init(&n->comm, te__boot_nranks(n->boot), id, te__boot_rank(n->boot),
			   &config);
	r = finish(n, "ncclCommInitRankConfig", r);
	te__ctx_leave(n->ctx);
	return r;
}

static void leave(struct te__nccl *n, int abort)
{
	int r = te__ctx_enter(n->ctx);

	if (r)
		return;
	if (!abort) {
		/* waits for the other ranks, so that ncclCommDestroy does not */
		r = finish(n, "ncclCommFinalize", nccl.comm_finalize(n->comm));
		if (r)
			te__log_warn("%s", te_error_detail());
	}
	if ((abort || r ? nccl.comm_abort : nccl.comm_destroy)(n->comm))
		te__log_warn("NCCL: a communicator could not be destroyed");
	te__ctx_leave(n->ctx);
}

struct te__nccl *te__nccl_destroy(struct te__nccl *n, int abort)
{
	if (n && n->comm)
		leave(n, abort);
	te__free(n);
	return NULL;
}

int te__nccl_create(struct te__boot *boot, struct te__pool *pool, struct te__nccl **ret_nccl)
{
	struct te__nccl *n = te__calloc(1, sizeof(*n));
	struct id id;
	int r;

	if (!n) {
		te__boot_abort(boot, "no memory for NCCL");
		return te__fail(-ENOMEM, "NCCL: no memory");
	}
	n->boot = boot;
	n->pool = pool;
	n->ctx = te__pool_ctx(pool);
	r = meet(n, &id);
	if (!r) {
		r = join(n, id);
		/* ranks whose wait failed take part too, unless they are the cause */
		te__free(te__gather(boot, &r, NULL, 0, "start of NCCL",
				    te__boot_deadline(boot) +
					    te__boot_timeout_ms(boot) * INT64_C(1000000)));
	}
	if (r) {
		te__nccl_destroy(n, 1);
		return r;
	}
	te__log_info("NCCL %d among %d ranks", n->version, te__boot_nranks(boot));
	*ret_nccl = n;
	return 0;
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

/* the operations of all ranks fail, for the reason of the first that has one */
static int end(struct te__nccl *n, const char *fn, int code)
{
	char why[200];

	snprintf(why, sizeof(why), "%s: %.150s", te__boot_peer(n->boot, te__boot_rank(n->boot)),
		 te_error_detail());
	te__pool_abort(n->pool, code, why);
	return te__pool_check(n->pool, fn);
}

int te__nccl_allreduce(struct te__nccl *n, struct te_stream *stream, const void *in, void *out,
		       int64_t count, enum te_dtype dtype, enum te_comm_op op)
{
	static const int ops[] = {
		[TE_COMM_SUM] = 0, [TE_COMM_AVG] = 4, [TE_COMM_MIN] = 3, [TE_COMM_MAX] = 2,
	};
	const int type = type_of(n, dtype);
	int r;

	if (type < 0)
		return te__fail(-EOPNOTSUPP, "NCCL: version %d has no type %s", n->version,
				te_dtype_name(dtype));
	r = te__ctx_enter(n->ctx);
	if (r)
		return r;
	r = nccl.all_reduce(in, out, (size_t)count, type, ops[op], n->comm,
			      te_stream_native(stream));
	r = finish(n, "ncclAllReduce", r);
	te__ctx_leave(n->ctx);
	/* no rank knows which others have queued it */
	return r ? end(n, "te_comm_allreduce", r) : 0;
}

/* in a group: bytes of any type */
static int queue_ends(struct te__nccl *n, struct te_stream *stream,
		      const struct te_k_comm_end *ends, int32_t nends)
{
	const int uint8 = type_of(n, TE_DTYPE_UINT8);
	int r = nccl.group_start(), ended;

	if (r)
		return failed(n, "ncclGroupStart", r);
	for (int32_t i = 0; i < nends && !r; i++) {
		const struct te_k_comm_end *e = &ends[i];

		r = (e->sends ? nccl.send(e->data, (size_t)e->nbytes, uint8, e->peer, n->comm,
					  te_stream_native(stream)) :
				nccl.recv(e->data, (size_t)e->nbytes, uint8, e->peer, n->comm,
					  te_stream_native(stream)));
		r = r == IN_PROGRESS ? 0 : r;
	}
	ended = nccl.group_end();
	return r ? failed(n, "ncclSend, ncclRecv", r) : finish(n, "ncclGroupEnd", ended);
}

int te__nccl_messages(struct te__nccl *n, const char *fn, struct te_stream *stream,
		      const struct te_k_comm_end *ends, int32_t nends)
{
	int r = te__ctx_enter(n->ctx);

	if (r)
		return r;
	r = queue_ends(n, stream, ends, nends);
	te__ctx_leave(n->ctx);
	return r ? end(n, fn, r) : 0;
}
