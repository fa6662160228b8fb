/* memory.c - te_comm_alloc(3): symmetric memory of a communicator. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <te/tensor.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/pool/pool.h"
#include "libtecomm/reach/link/link.h"

static int check(const char *fn, const struct te_comm *c, const void *ret)
{
	return c && ret ? 0 : te__fail(-EINVAL, "%s: %s is NULL", fn, c ? "the result" : "comm");
}

int te_comm_alloc(struct te_comm *comm, size_t nbytes, void **ret_ptr)
{
	int r = check("te_comm_alloc", comm, ret_ptr);

	return r ? r : te__pool_alloc(comm->pool, "te_comm_alloc", nbytes, ret_ptr);
}

int te_comm_free(struct te_comm *comm, void *ptr)
{
	int r = check("te_comm_free", comm, &ptr);

	return r || !ptr ? r : te__pool_free(comm->pool, "te_comm_free", ptr);
}

int te_comm_reclaim(struct te_comm *comm)
{
	int r = check("te_comm_reclaim", comm, &comm);

	return r ? r : te__pool_reclaim(comm->pool, "te_comm_reclaim");
}

void *te_comm_peer_ptr(const struct te_comm *comm, const void *ptr, int rank)
{
	return comm ? te__pool_peer(comm->pool, ptr, rank) : NULL;
}

int te_comm_memory(const struct te_comm *comm, struct te_comm_memory *ret_memory)
{
	struct te_comm_memory m = TE_COMM_MEMORY_INIT;
	int r = te__sized_check("te_comm_memory", te_comm_memory, ret_memory);

	if (!r)
		r = check("te_comm_memory", comm, ret_memory);
	if (r)
		return r;
	te__pool_info(comm->pool, &m);
	te__sized_out(te_comm_memory, &m, ret_memory);
	return 0;
}

/* tensors */

/* what a tensor on symmetric memory holds */
struct held {
	struct te_comm *comm;
	void *ptr;
};

static void release(void *arg)
{
	struct held *h = arg;

	/* it began a block when the tensor was made, and the tensor alone frees it */
	(void)te__pool_free(h->comm->pool, "te_tensor_unref", h->ptr);
	te_comm_unref(h->comm);
	te__free(h);
}

static int shape_nbytes(enum te_dtype dtype, int ndim, const int64_t *shape, size_t *ret_nbytes)
{
	size_t n = te_dtype_nbytes(dtype);

	if (!n || dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2)
		return te__fail(-TE_EDTYPE, "te_comm_tensor_create: element type %s: symmetric "
				"tensors have no scales", n ? te_dtype_name(dtype) : "unknown");
	if (!shape || ndim < 1 || ndim > TE_MAX_DIMS)
		return te__fail(-EINVAL, "te_comm_tensor_create: %d extents, not 1 to %d",
				shape ? ndim : 0, TE_MAX_DIMS);
	for (int i = 0; i < ndim; i++)
		if (shape[i] < 1 || __builtin_mul_overflow(n, (size_t)shape[i], &n))
			return te__fail(-EINVAL, "te_comm_tensor_create: extent %d is %lld", i,
					(long long)shape[i]);
	*ret_nbytes = n;
	return 0;
}

/* the block is freed on this rank if this fails, as any block may be */
static int wrap(struct te_comm *comm, enum te_dtype dtype, int ndim, const int64_t *shape,
		void *ptr, struct te_tensor **ret_t)
{
	struct held *h = te__malloc(sizeof(*h));
	int r;

	if (!h)
		return te__fail(-ENOMEM, "te_comm_tensor_create: no memory for a tensor");
	*h = (struct held){ .comm = comm, .ptr = ptr };
	r = te__tensor_wrap_owned(comm->ctx, dtype, ndim, shape, ptr, release, h, ret_t);
	if (r)
		te__free(h);
	else
		te_comm_ref(comm);
	return r;
}

int te_comm_tensor_create(struct te_comm *comm, enum te_dtype dtype, int ndim,
			  const int64_t *shape, struct te_tensor **ret_t)
{
	static const char fn[] = "te_comm_tensor_create";
	size_t nbytes = 0;
	void *ptr;
	int r = check(fn, comm, ret_t);

	if (!r)
		r = shape_nbytes(dtype, ndim, shape, &nbytes);
	if (!r)
		r = te__pool_alloc(comm->pool, fn, nbytes, &ptr);
	if (r)
		return r;
	r = wrap(comm, dtype, ndim, shape, ptr, ret_t);
	if (r)
		(void)te__pool_free(comm->pool, fn, ptr);
	return r;
}

/* transports */

static int probe_fd(struct te_ctx *ctx)
{
	size_t unit;

	return te__window_unit(ctx, &unit);
}

static int probe_fabric(struct te_ctx *ctx)
{
	struct te__fabric_domain domain;

	return te__fabric_probe(ctx, &domain);
}

/* two devices and 2 MiB: what te__nvls_probe() asks */
static int probe_nvls(struct te_ctx *ctx)
{
	size_t unit;

	return te__window_multicast_unit(ctx, 2, (size_t)2 << 20, &unit);
}

/* of memory without a dma-buf */
static int by_address(const struct te_ctx *ctx)
{
	if (!strcmp(te_ctx_backend(ctx), "host"))
		return te__fail(-EOPNOTSUPP, "memory of the host backend is that of the process");
	return access("/sys/module/nvidia_peermem", F_OK) ?
		       te__fail(-EOPNOTSUPP, "the driver exports no dma-buf of memory of the GPU, "
				"and the module nvidia-peermem is not loaded") : 0;
}

/* whether network adapters can be given memory of the device: one unit of it */
static int probe_adapter(struct te_ctx *ctx)
{
	struct te__window *w = NULL;
	char why[256];
	size_t unit;
	int fd = -1;
	int r = te__window_unit(ctx, &unit);

	if (!r)
		r = te__window_create(ctx, 1, 0, unit, &w);
	if (!r)
		r = te__adapter_export(ctx, te__window_slot(w, 0), unit, &fd);
	if (!r && fd < 0)
		r = by_address(ctx);
	if (fd >= 0)
		close(fd);
	if (r) /* destroying the window may record another message */
		snprintf(why, sizeof(why), "%s", te_error_detail());
	te__window_destroy(w);
	return r ? te__fail(r, "%s", why) : 0;
}

static const struct {
	const char *name;
	int (*probe)(struct te_ctx *ctx);
} transport[] = {
	{ "fd", probe_fd },
	{ "fabric", probe_fabric },
	{ "nvls", probe_nvls },
	{ "gpudirect", probe_adapter },
};

#define NMEMORY ((int)(sizeof(transport) / sizeof(transport[0])))

/* transports of memory, and transports of messages between nodes */
int te_transport_count(void)
{
	int n = NMEMORY;

	while (te__link_transport(n - NMEMORY))
		n++;
	return n;
}

static void probe_memory(struct te_ctx *ctx, int i, struct te_transport_info *info)
{
	const int r = transport[i].probe(ctx);

	snprintf(info->name, sizeof(info->name), "%s", transport[i].name);
	info->available = !r;
	if (r)
		snprintf(info->reason, sizeof(info->reason), "%s", te_error_detail());
}

static void probe_link(const struct te__link_ops *ops, struct te_transport_info *info)
{
	snprintf(info->name, sizeof(info->name), "%s", ops->name);
	info->available = !ops->probe(info->reason, sizeof(info->reason));
	if (info->available)
		info->reason[0] = 0;
}

int te_transport_info(struct te_ctx *ctx, int index, struct te_transport_info *ret_info)
{
	struct te_transport_info info = TE_TRANSPORT_INFO_INIT;
	int r = te__sized_check("te_transport_info", te_transport_info, ret_info);

	if (r)
		return r;
	if (!ctx || index < 0 || index >= te_transport_count())
		return te__fail(-EINVAL, "te_transport_info: index %d of %d transports%s", index,
				te_transport_count(), ctx ? "" : ", ctx is NULL");
	if (index < NMEMORY)
		probe_memory(ctx, index, &info);
	else
		probe_link(te__link_transport(index - NMEMORY), &info);
	te__sized_out(te_transport_info, &info, ret_info);
	return 0;
}
