/* memory.c - memory of the device in stream order, pinned memory, and how much of it is in use. */
#include "config.h"

#include <errno.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"

static int dev_mem(struct te__cuda_dev *d, uint64_t *ret_free, uint64_t *ret_total)
{
	uint64_t reserved = 0, used = 0;
	size_t nfree, total;
	int r = TE__CU_CALL(cuMemGetInfo, &nfree, &total);

	if (!r && d->pool)
		r = TE__CU_CALL(cuMemPoolGetAttribute, d->pool, TE__CU_POOL_RESERVED_MEM_CURRENT,
				&reserved);
	if (!r && d->pool)
		r = TE__CU_CALL(cuMemPoolGetAttribute, d->pool, TE__CU_POOL_USED_MEM_CURRENT,
				&used);
	if (r)
		return r;
	/* memory that the pool keeps for later allocations is available */
	*ret_free = nfree + (reserved - used);
	*ret_total = total;
	te__devmem_clamp(&d->mem, ret_free, ret_total);
	return 0;
}

int te__cuda_dev_mem(void *dev, uint64_t *ret_free, uint64_t *ret_total)
{
	return TE__CUDA_IN_RELAXED(dev, dev_mem(dev, ret_free, ret_total));
}

static int mem_held(struct te__cuda_dev *d, struct te__mem_held *ret)
{
	int r;

	ret->workspace_nbytes = atomic_load(&d->workspace_nbytes);
	ret->used_nbytes = atomic_load(&d->mem.used_nbytes);
	ret->peak_nbytes = atomic_load(&d->mem.peak_nbytes);
	if (!d->pool)
		return 0;
	/* including bytes that the pool adds by rounding */
	r = TE__CU_CALL(cuMemPoolGetAttribute, d->pool, TE__CU_POOL_USED_MEM_CURRENT,
			&ret->used_nbytes);
	if (!r)
		r = TE__CU_CALL(cuMemPoolGetAttribute, d->pool, TE__CU_POOL_USED_MEM_HIGH,
				&ret->peak_nbytes);
	/* not in the pool; the sum of two peaks is an upper bound */
	ret->used_nbytes += atomic_load(&d->shared_nbytes);
	ret->peak_nbytes += atomic_load(&d->shared_peak_nbytes);
	return r;
}

int te__cuda_mem_held(void *dev, struct te__mem_held *ret)
{
	return TE__CUDA_IN_RELAXED(dev, mem_held(dev, ret));
}

int te__cuda_no_memory(struct te__cuda_dev *d, size_t nbytes)
{
	uint64_t nfree = 0, total = 0;

	(void)dev_mem(d, &nfree, &total);
	return te__fail(-ENOMEM, "no %zu bytes of device memory: GPU %d has %llu of %llu bytes "
			"free", nbytes, d->index, (unsigned long long)nfree,
			(unsigned long long)total);
}

/* a CUresult; the bytes are counted already */
static int from_pool(struct te__cuda_dev *d, size_t nbytes, void *native, void **ret_ptr)
{
	uint64_t ptr;
	int r;

	/* the driver would allocate all free memory before it fails, also at the cost of other
	 * processes */
	if (nbytes > d->total_nbytes)
		return TE__CU_ERROR_OUT_OF_MEMORY;
	r = te__cu.cuMemAllocFromPoolAsync(&ptr, nbytes, d->pool, native);
	if (!r)
		*ret_ptr = (void *)(uintptr_t)ptr;
	return r;
}

int te__cuda_mem_try(struct te__cuda_dev *d, size_t nbytes, void *native, void **ret_ptr)
{
	int r;

	if (!te__devmem_take(&d->mem, nbytes))
		return 0;
	r = d->mem.alloc.device_alloc ?
		    te__devmem_device_alloc(&d->mem, nbytes, native, ret_ptr) :
		    from_pool(d, nbytes, native, ret_ptr);
	if (r)
		te__devmem_give(&d->mem, nbytes);
	return !r;
}

int te__cuda_mem_get(struct te__cuda_dev *d, size_t nbytes, void *native, void **ret_ptr)
{
	int r;

	if (!te__devmem_take(&d->mem, nbytes))
		return te__devmem_full(&d->mem, nbytes);
	if (d->mem.alloc.device_alloc) {
		r = te__devmem_device_alloc(&d->mem, nbytes, native, ret_ptr);
		if (r)
			te__devmem_give(&d->mem, nbytes);
		return r;
	}
	r = te__fault_point() ? TE__CU_ERROR_UNKNOWN : from_pool(d, nbytes, native, ret_ptr);
	if (!r)
		return 0;
	te__devmem_give(&d->mem, nbytes);
	return r == TE__CU_ERROR_OUT_OF_MEMORY ? te__cuda_no_memory(d, nbytes) :
						 te__cuda_check(r, "cuMemAllocFromPoolAsync");
}

int te__cuda_mem_put(struct te__cuda_dev *d, void *ptr, size_t nbytes, void *native)
{
	const struct te_alloc_ops *a = &d->mem.alloc;
	int r = 0;

	if (a->device_free)
		a->device_free(a->user, ptr, nbytes, native);
	else
		r = te__cu.cuMemFreeAsync((uintptr_t)ptr, native);
	if (!r)
		te__devmem_give(&d->mem, nbytes);
	return r;
}

static int mem_alloc(struct te__cuda_stream *s, size_t nbytes, void **ret_ptr)
{
	int r = te__cuda_not_capturing(s, "allocate device memory");

	return r ? r : te__cuda_mem_get(s->dev, nbytes, s->stream, ret_ptr);
}

int te__cuda_mem_alloc(void *stream, size_t nbytes, void **ret_ptr)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN_RELAXED(s->dev, mem_alloc(s, nbytes, ret_ptr));
}

static int mem_free(struct te__cuda_stream *s, void *ptr, size_t nbytes)
{
	int status;
	int r = te__cuda_check(te__cu.cuStreamIsCapturing(s->stream, &status),
			       "cuStreamIsCapturing");

	if (r)
		return r;
	if (status != TE__CU_CAPTURE_STATUS_NONE)
		return te__fail(-EBUSY, "free device memory: the stream is capturing");
	return te__cuda_check(te__cuda_mem_put(s->dev, ptr, nbytes, s->stream), "cuMemFreeAsync");
}

int te__cuda_mem_free(void *stream, void *ptr, size_t nbytes)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN_RELAXED(s->dev, mem_free(s, ptr, nbytes));
}

static int pinned_alloc(struct te__cuda_dev *d, size_t nbytes, void **ret_ptr)
{
	void *ptr; /* the driver writes NULL if it fails */
	int r;

	if (d->mem.alloc.pinned_alloc)
		return te__devmem_pinned_alloc(&d->mem, nbytes, ret_ptr);
	r = TE__CU_RAW(cuMemHostAlloc, &ptr, nbytes, TE__CU_MEMHOSTALLOC_PORTABLE);
	if (r == TE__CU_ERROR_OUT_OF_MEMORY)
		return te__fail(-ENOMEM, "no %zu bytes of pinned host memory", nbytes);
	if (!r)
		*ret_ptr = ptr;
	return te__cuda_check(r, "cuMemHostAlloc");
}

int te__cuda_pinned_alloc(void *dev, size_t nbytes, void **ret_ptr)
{
	return TE__CUDA_IN_RELAXED(dev, pinned_alloc(dev, nbytes, ret_ptr));
}

static int pinned_free(struct te__cuda_dev *d, void *ptr, size_t nbytes)
{
	const struct te_alloc_ops *a = &d->mem.alloc;

	if (!a->pinned_free)
		return te__cuda_check(te__cu.cuMemFreeHost(ptr), "cuMemFreeHost");
	a->pinned_free(a->user, ptr, nbytes);
	return 0;
}

int te__cuda_pinned_free(void *dev, void *ptr, size_t nbytes)
{
	return TE__CUDA_IN_RELAXED(dev, pinned_free(dev, ptr, nbytes));
}
