/* memory.c - te_comm_alloc(3): symmetric memory of a communicator. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>

#include <te/tensor.h>

#include "libtecomm/collective/comm.h"
#include "libtecomm/pool/pool.h"

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

/* references of a tensor in symmetric memory */
struct held {
	struct te_comm *comm;
	void *ptr;
};

static void release(void *arg)
{
	struct held *h = arg;

	/* valid: it began a block when the tensor was made, and only the tensor frees it */
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
