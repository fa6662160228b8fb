/*
 * cuda.c - the cuda backend: devices, memory, streams, events and copies through
 * the CUDA driver. Kernels are in module.c, captures in graph.c.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"

/* devices */

static int load(void)
{
	const char *reason;

	if (te__cuda_driver_load(&reason))
		return te__fail(-ENODEV, "the cuda backend is absent: %s", reason);
	return 0;
}

static int cuda_probe(struct te_backend_info *ret)
{
	const char *reason;
	int version = 0;
	int n = 0;

	snprintf(ret->name, sizeof(ret->name), "cuda");
	if (te__cuda_driver_load(&reason)) {
		snprintf(ret->reason, sizeof(ret->reason), "%s", reason);
		return 0;
	}
	if (te__cu.cuDeviceGetCount(&n) || !n)
		snprintf(ret->reason, sizeof(ret->reason), "the driver sees no GPU");
	ret->ndevices = n;
	if (!te__cu.cuDriverGetVersion(&version))
		snprintf(ret->version, sizeof(ret->version), "CUDA %d.%d", version / 1000,
			 version % 1000 / 10);
	return 0;
}

static int attribute(int dev, int which, int *ret)
{
	return TE__CU_CALL(cuDeviceGetAttribute, ret, which, dev);
}

/* 0, or the error code of a device that cannot run the kernels, with the reason in why */
static int unfit(int major, int minor, char *why, size_t nbytes)
{
	if (major != 9 || minor != 0) {
		snprintf(why, nbytes,
			 "compute capability %d.%d: the kernels are for 9.0, the Hopper GPUs",
			 major, minor);
		return -TE_EDEVICE;
	}
	if (!te__kernel_images[0].name) {
		snprintf(why, nbytes,
			 "this libtecore has no device kernels: it was built without nvcc");
		return -TE_EKERNEL;
	}
	return 0;
}

static int cc(int dev, int *ret_major, int *ret_minor)
{
	int r = attribute(dev, TE__CU_ATTR_COMPUTE_CAPABILITY_MAJOR, ret_major);

	return r ? r : attribute(dev, TE__CU_ATTR_COMPUTE_CAPABILITY_MINOR, ret_minor);
}

static int device(int index, int code, int *ret_dev)
{
	int n = 0;
	int r = load();

	if (!r)
		r = TE__CU_CALL(cuDeviceGetCount, &n);
	if (r)
		return r;
	if (index < 0 || index >= n)
		return te__fail(code, "the cuda backend has no device %d: it has %d devices",
				index, n);
	return TE__CU_CALL(cuDeviceGet, ret_dev, index);
}

/*
 * Dense rates of Hopper. Per SM and clock, four tensor cores do 4096 FLOP in BF16 and 8192 in
 * FP8, 128 lanes do 256 in FP32 (NVIDIA H100 Tensor Core GPU Architecture, table 3).
 * Tensor rates of the datasheets hold at 1830 MHz where the SM's highest clock,
 * which the driver reports, is 1980 MHz: 132 SMs give 989.4, 1978.9 and 66.9 TFLOPS.
 */
static void peaks(struct te_device_info *ret, int mem_clock_khz, int bus_bits)
{
	double hz = ret->clock_mhz * 1e6 * ret->nprocs;

	if (ret->cc_major == 9 && ret->cc_minor == 0) {
		ret->peak_bf16_flops = hz * 1830 / 1980 * 4096;
		ret->peak_fp8_flops = hz * 1830 / 1980 * 8192;
		ret->peak_fp32_flops = hz * 256;
	}
	/* two transfers a clock */
	ret->peak_bandwidth = 2e3 * mem_clock_khz * bus_bits / 8;
}

static int cuda_device_info(int index, struct te_device_info *ret)
{
	int dev, l2, khz, mem_khz, bus;
	size_t total;
	int r = device(index, -EINVAL, &dev);

	if (!r)
		r = TE__CU_CALL(cuDeviceGetName, ret->name, (int)sizeof(ret->name), dev);
	if (!r)
		r = TE__CU_CALL(cuDeviceGetPCIBusId, ret->pci_address,
				(int)sizeof(ret->pci_address), dev);
	if (!r)
		r = TE__CU_CALL(cuDeviceTotalMem, &total, dev);
	if (!r)
		r = cc(dev, &ret->cc_major, &ret->cc_minor);
	if (!r)
		r = attribute(dev, TE__CU_ATTR_MULTIPROCESSOR_COUNT, &ret->nprocs);
	if (!r)
		r = attribute(dev, TE__CU_ATTR_CLOCK_RATE, &khz);
	if (!r)
		r = attribute(dev, TE__CU_ATTR_MEMORY_CLOCK_RATE, &mem_khz);
	if (!r)
		r = attribute(dev, TE__CU_ATTR_GLOBAL_MEMORY_BUS_WIDTH, &bus);
	if (!r)
		r = attribute(dev, TE__CU_ATTR_L2_CACHE_SIZE, &l2);
	if (r)
		return r;
	snprintf(ret->backend, sizeof(ret->backend), "cuda");
	ret->index = index;
	ret->usable = !unfit(ret->cc_major, ret->cc_minor, ret->reason, sizeof(ret->reason));
	ret->clock_mhz = khz / 1000;
	ret->mem_total_nbytes = total;
	ret->l2_nbytes = (uint64_t)l2;
	peaks(ret, mem_khz, bus);
	return 0;
}

/*
 * The driver reports free memory to a context only. If the process has none on this GPU, the driver
 * creates one here and destroys it at the release, which is slow. If no context can be
 * created, because the GPU's memory is full or another process uses it exclusively, *ret_nbytes
 * is 0.
 */
static int cuda_free_nbytes(int index, uint64_t *ret_nbytes)
{
	int mode = TE__CU_CAPTURE_MODE_RELAXED;
	size_t nfree = 0, total;
	void *ctx;
	int dev;
	int r = device(index, -EINVAL, &dev);

	if (r)
		return r;
	*ret_nbytes = 0;
	if (te__cu.cuDevicePrimaryCtxRetain(&ctx, dev))
		return 0;
	if (!te__cu.cuCtxPushCurrent(ctx)) {
		te__cu.cuThreadExchangeStreamCaptureMode(&mode);
		if (!te__cu.cuMemGetInfo(&nfree, &total))
			*ret_nbytes = nfree;
		te__cu.cuThreadExchangeStreamCaptureMode(&mode);
		te__cu.cuCtxPopCurrent(&ctx);
	}
	te__cu.cuDevicePrimaryCtxRelease(dev);
	return 0;
}

static int pool_create(struct te__cuda_dev *d)
{
	struct te__cu_pool_props props = {
		.alloc_type = TE__CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { TE__CU_MEM_LOCATION_TYPE_DEVICE, d->dev },
	};
	uint64_t keep = UINT64_MAX; /* the pool keeps freed memory for later allocations */
	int r = TE__CU_CALL(cuMemPoolCreate, &d->pool, &props);

	return r ? r :
		   TE__CU_CALL(cuMemPoolSetAttribute, d->pool, TE__CU_POOL_RELEASE_THRESHOLD,
			       &keep);
}

/* with the context current */
static int fill(struct te__cuda_dev *d)
{
	int r = d->mem.alloc.device_alloc ? 0 : pool_create(d);

	if (!r)
		r = TE__CU_CALL(cuStreamCreate, &d->stream, TE__CU_STREAM_NON_BLOCKING);
	return r ? r : te__cuda_modules_load(d);
}

static int empty(struct te__cuda_dev *d)
{
	te__cuda_captures_drop(d);
	te__cublaslt_close(d);
	te__cuda_modules_unload(d);
	if (d->stream) {
		te__cu.cuStreamSynchronize(d->stream);
		te__cu.cuStreamDestroy(d->stream);
	}
	if (d->pool)
		te__cu.cuMemPoolDestroy(d->pool);
	return 0;
}

static void cuda_close(void *dev)
{
	struct te__cuda_dev *d = dev;

	if (d->ctx) {
		(void)TE__CUDA_IN_RELAXED(d, empty(d));
		if (!d->borrowed)
			te__cu.cuDevicePrimaryCtxRelease(d->dev);
	}
	pthread_mutex_destroy(&d->lt_lock);
	pthread_mutex_destroy(&d->lock);
	te__free(d);
}

/* the program's CUcontext */
static int check_native(void *native, int index, int dev)
{
	void *ctx;
	int is = -1;
	int r = TE__CU_RAW(cuCtxPushCurrent, native);

	if (r)
		return te__fail(-EINVAL, "te_ctx_create: native %p is no CUcontext that can be "
				"used: cuCtxPushCurrent: %s", native, te__cuda_error_name(r));
	r = TE__CU_CALL(cuCtxGetDevice, &is);
	te__cu.cuCtxPopCurrent(&ctx);
	if (r || is == dev)
		return r;
	return te__fail(-EINVAL, "te_ctx_create: native %p is a CUcontext of GPU %d, not of GPU %d",
			native, is, index);
}

static int cuda_open(const struct te__open *how, void **ret_dev)
{
	const int index = how->device;
	struct te__cuda_dev *d;
	int dev, major, minor;
	char name[sizeof(d->name)], why[256];
	int r = device(index, -ENODEV, &dev);

	if (!r)
		r = TE__CU_CALL(cuDeviceGetName, name, (int)sizeof(name), dev);
	if (!r)
		r = cc(dev, &major, &minor);
	if (!r && how->native)
		r = check_native(how->native, index, dev);
	if (r)
		return r;
	r = unfit(major, minor, why, sizeof(why));
	if (r)
		return te__fail(r, "GPU %d, %s: %s", index, name, why);
	d = te__calloc(1, sizeof(*d));
	if (!d)
		return te__fail(-ENOMEM, "no memory for GPU %d", index);
	d->index = index;
	d->dev = dev;
	te__devmem_init(&d->mem, how->limit_nbytes, how->alloc);
	snprintf(d->name, sizeof(d->name), "%s", name);
	pthread_mutex_init(&d->lock, NULL);
	pthread_mutex_init(&d->lt_lock, NULL);
	r = TE__CU_CALL(cuDeviceTotalMem, &d->total_nbytes, dev);
	d->ctx = how->native;
	d->borrowed = d->ctx != NULL;
	if (!r && !d->ctx)
		r = TE__CU_CALL(cuDevicePrimaryCtxRetain, &d->ctx, dev);
	if (!r)
		r = TE__CUDA_IN_RELAXED(d, fill(d));
	if (r) {
		cuda_close(d);
		return r;
	}
	*ret_dev = d;
	return 0;
}

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

static int cuda_enter(void *dev)
{
	return te__cuda_enter(dev);
}

static void cuda_leave(void *dev)
{
	void *ctx;

	(void)dev;
	(void)te__cu.cuCtxPopCurrent(&ctx);
}

static int cuda_dev_mem(void *dev, uint64_t *ret_free, uint64_t *ret_total)
{
	struct te__cuda_dev *d = dev;

	return TE__CUDA_IN_RELAXED(d, dev_mem(d, ret_free, ret_total));
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

static int cuda_mem_held(void *dev, struct te__mem_held *ret)
{
	struct te__cuda_dev *d = dev;

	return TE__CUDA_IN_RELAXED(d, mem_held(d, ret));
}

/* memory */

int te__cuda_capturing(struct te__cuda_stream *s)
{
	int status;
	int r = TE__CU_CALL(cuStreamIsCapturing, s->stream, &status);

	return r ? r : status != TE__CU_CAPTURE_STATUS_NONE;
}

/* checked first: the driver would invalidate the capture */
static int not_capturing(struct te__cuda_stream *s, const char *what)
{
	int r = te__cuda_capturing(s);

	return r > 0 ? te__fail(-EBUSY, "%s: the stream is capturing", what) : r;
}

int te__cuda_no_memory(struct te__cuda_dev *d, size_t nbytes, const char *kind)
{
	uint64_t nfree = 0, total = 0;

	(void)dev_mem(d, &nfree, &total);
	return te__fail(-ENOMEM, "no %zu bytes of %s memory: GPU %d has %llu of %llu bytes free",
			nbytes, kind, d->index, (unsigned long long)nfree,
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
	return r == TE__CU_ERROR_OUT_OF_MEMORY ? te__cuda_no_memory(d, nbytes, "device") :
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
	int r = not_capturing(s, "allocate device memory");

	return r ? r : te__cuda_mem_get(s->dev, nbytes, s->stream, ret_ptr);
}

static int cuda_mem_alloc(void *stream, size_t nbytes, void **ret_ptr)
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

static int cuda_mem_free(void *stream, void *ptr, size_t nbytes)
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

static int cuda_pinned_alloc(void *dev, size_t nbytes, void **ret_ptr)
{
	struct te__cuda_dev *d = dev;

	return TE__CUDA_IN_RELAXED(d, pinned_alloc(d, nbytes, ret_ptr));
}

static int pinned_free(struct te__cuda_dev *d, void *ptr, size_t nbytes)
{
	const struct te_alloc_ops *a = &d->mem.alloc;

	if (!a->pinned_free)
		return te__cuda_check(te__cu.cuMemFreeHost(ptr), "cuMemFreeHost");
	a->pinned_free(a->user, ptr, nbytes);
	return 0;
}

static int cuda_pinned_free(void *dev, void *ptr, size_t nbytes)
{
	struct te__cuda_dev *d = dev;

	return TE__CUDA_IN_RELAXED(d, pinned_free(d, ptr, nbytes));
}

/* streams */

int te__cuda_is_legacy(const struct te__cuda_stream *s)
{
	return !s->stream || (uintptr_t)s->stream == TE__CU_STREAM_LEGACY;
}

/* a stream of the program must be one of the device's context */
static int adopt(struct te__cuda_stream *s)
{
	void *ctx = NULL;
	int r;

	if ((uintptr_t)s->stream == TE__CU_STREAM_PER_THREAD)
		return te__fail(-EINVAL, "te_stream_wrap: CU_STREAM_PER_THREAD is another stream "
				"in each thread: wrap one that cuStreamCreate() made");
	if (te__cuda_is_legacy(s))
		return 0;
	r = TE__CU_RAW(cuStreamGetCtx, s->stream, &ctx);
	if (r)
		return te__fail(-EINVAL, "te_stream_wrap: native %p is no CUstream that can be "
				"used: cuStreamGetCtx: %s", s->stream, te__cuda_error_name(r));
	if (ctx != s->dev->ctx)
		return te__fail(-EINVAL, "te_stream_wrap: native %p is a CUstream of the CUcontext "
				"%p, the context uses %p", s->stream, ctx, s->dev->ctx);
	return 0;
}

static int stream_new(struct te__cuda_dev *d, int wrap, void *native, void **ret_stream)
{
	struct te__cuda_stream *s = te__calloc(1, sizeof(*s));
	int r;

	if (!s)
		return te__fail(-ENOMEM, "no memory for a stream");
	s->dev = d;
	s->stream = native;
	s->borrowed = s->shown = wrap;
	r = TE__CUDA_IN_RELAXED(d, wrap ? adopt(s) :
					  TE__CU_CALL(cuStreamCreate, &s->stream,
						      TE__CU_STREAM_NON_BLOCKING));
	if (r) {
		te__free(s);
		return r;
	}
	*ret_stream = s;
	return 0;
}

static int cuda_stream_create(void *dev, void **ret_stream)
{
	return stream_new(dev, 0, NULL, ret_stream);
}

static int cuda_stream_wrap(void *dev, void *native, void **ret_stream)
{
	return stream_new(dev, 1, native, ret_stream);
}

/* 1: the workspace remains: its release would become part of a capture of the program's */
static int stream_destroy(struct te__cuda_stream *s)
{
	int status = TE__CU_CAPTURE_STATUS_NONE;
	int keep = 0;

	te__free(s->access);
	te__cuda_batch_free(s->batch);
	if (s->workspace) {
		(void)te__cu.cuStreamIsCapturing(s->stream, &status);
		keep = status != TE__CU_CAPTURE_STATUS_NONE;
		if (!keep)
			te__cuda_workspace_free(s->dev, s->workspace, s->stream);
	}
	if (!s->borrowed)
		te__cu.cuStreamDestroy(s->stream);
	return keep;
}

static void cuda_stream_destroy(void *stream)
{
	struct te__cuda_stream *s = stream;
	void *graph;

	if (s->graph && !te__cuda_capture_end(s, &graph))
		te__cuda_graph_destroy(graph);
	if (TE__CUDA_IN_RELAXED(s->dev, stream_destroy(s)) <= 0) {
		te__free(s);
		return;
	}
	pthread_mutex_lock(&s->dev->lock);
	s->next = s->dev->left;
	s->dev->left = s;
	pthread_mutex_unlock(&s->dev->lock);
}

static int stream_sync(struct te__cuda_stream *s)
{
	int r = not_capturing(s, "wait for a stream");

	return r ? r : TE__CU_CALL(cuStreamSynchronize, s->stream);
}

static int cuda_stream_sync(void *stream)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN_RELAXED(s->dev, stream_sync(s));
}

static int stream_query(struct te__cuda_stream *s)
{
	int r = not_capturing(s, "ask a stream whether it is idle");

	if (r)
		return r;
	r = TE__CU_RAW(cuStreamQuery, s->stream);
	if (r == TE__CU_ERROR_NOT_READY)
		return 0;
	return r ? te__cuda_check(r, "cuStreamQuery") : 1;
}

static int cuda_stream_query(void *stream)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN_RELAXED(s->dev, stream_query(s));
}

static void *cuda_stream_native(void *stream)
{
	struct te__cuda_stream *s = stream;

	s->shown = 1;
	return s->stream;
}

static void cuda_stream_workspace(void *stream, void *ptr)
{
	struct te__cuda_stream *s = stream;

	s->given = ptr;
	s->given_at = 0;
}

/* events */

static int cuda_event_create(void *dev, void **ret_event)
{
	struct te__cuda_dev *d = dev;
	struct te__cuda_event *e = te__calloc(1, sizeof(*e));
	int r;

	if (!e)
		return te__fail(-ENOMEM, "no memory for an event");
	e->refs = 1;
	e->dev = d;
	r = TE__CUDA_IN_RELAXED(d, TE__CU_CALL(cuEventCreate, &e->event, TE__CU_EVENT_DEFAULT));
	if (r) {
		te__free(e);
		return r;
	}
	*ret_event = e;
	return 0;
}

void te__cuda_event_unref(struct te__cuda_event *e)
{
	if (atomic_fetch_sub(&e->refs, 1) != 1)
		return;
	te__cu.cuEventDestroy(e->event);
	te__free(e);
}

static void cuda_event_destroy(void *event)
{
	struct te__cuda_event *e = event;

	(void)TE__CUDA_IN_RELAXED(e->dev, (te__cuda_event_unref(e), 0));
}

static int cuda_event_record(void *event, void *stream)
{
	struct te__cuda_event *e = event;
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN(s->dev, TE__CU_CALL(cuEventRecord, e->event, s->stream));
}

static int cuda_event_wait(void *event, void *stream)
{
	struct te__cuda_event *e = event;
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN(s->dev, te__cuda_capture_check(TE__CU_RAW(cuStreamWaitEvent, s->stream,
								     e->event, 0),
							  "cuStreamWaitEvent"));
}

/* an event that was recorded during a capture is part of a graph and cannot be waited for */
static int event_check(int result, const char *call)
{
	if (result == TE__CU_ERROR_CAPTURED_EVENT)
		return te__fail(-EBUSY, "%s: the event was recorded during a capture", call);
	return te__cuda_check(result, call);
}

static int event_sync(struct te__cuda_event *e)
{
	/* a wait for a captured event returns CUDA_ERROR_INVALID_VALUE, a query a specific code */
	int r = TE__CU_RAW(cuEventQuery, e->event);

	if (r == TE__CU_ERROR_NOT_READY)
		r = TE__CU_RAW(cuEventSynchronize, e->event);
	return event_check(r, "cuEventSynchronize");
}

static int cuda_event_sync(void *event)
{
	struct te__cuda_event *e = event;

	return TE__CUDA_IN_RELAXED(e->dev, event_sync(e));
}

static int event_query(struct te__cuda_event *e)
{
	int r = TE__CU_RAW(cuEventQuery, e->event);

	if (r == TE__CU_ERROR_NOT_READY)
		return 0;
	return r ? event_check(r, "cuEventQuery") : 1;
}

static int cuda_event_query(void *event)
{
	struct te__cuda_event *e = event;

	return TE__CUDA_IN_RELAXED(e->dev, event_query(e));
}

static int event_elapsed_ms(struct te__cuda_event *from, struct te__cuda_event *to, double *ret_ms)
{
	float ms;
	int r = TE__CU_RAW(cuEventElapsedTime, &ms, from->event, to->event);

	if (r == TE__CU_ERROR_NOT_READY)
		return te__fail(-EBUSY, "time between events: one has not been reached");
	if (r == TE__CU_ERROR_INVALID_HANDLE)
		return te__fail(-EBUSY, "time between events: one was never recorded");
	if (r)
		return event_check(r, "cuEventElapsedTime");
	*ret_ms = ms;
	return 0;
}

static int cuda_event_elapsed_ms(void *from, void *to, double *ret_ms)
{
	struct te__cuda_event *e = from;

	return TE__CUDA_IN_RELAXED(e->dev, event_elapsed_ms(e, to, ret_ms));
}

/* work */

static int copy(struct te__cuda_stream *s, void *dst, const void *src, size_t nbytes)
{
	const struct te__gnode what = {
		.kind = TE_NODE_COPY, .id = -1, .dst = dst, .src = src, .nbytes = nbytes,
	};
	int r = TE__CU_CALL(cuMemcpyAsync, (uintptr_t)dst, (uintptr_t)src, nbytes, s->stream);

	return r ? r : te__cuda_note(s, &what, NULL);
}

static int cuda_copy(void *stream, void *dst, const void *src, size_t nbytes)
{
	struct te__cuda_stream *s = stream;

	return nbytes ? TE__CUDA_IN(s->dev, copy(s, dst, src, nbytes)) : 0;
}

int te__cuda_memset(void *native, void *dst, uint32_t value, int32_t elem, size_t n)
{
	return elem == 4 ?
		       TE__CU_CALL(cuMemsetD32Async, (uintptr_t)dst, value, n, native) :
		       TE__CU_CALL(cuMemsetD8Async, (uintptr_t)dst, (uint8_t)value, n, native);
}

/* repeats value, of elem bytes, n times */
static int fill_mem(struct te__cuda_stream *s, void *dst, uint32_t value, int32_t elem, size_t n)
{
	const struct te__gnode what = {
		.kind = TE_NODE_FILL, .id = -1, .dst = dst, .value = value,
		.elem = elem, .nbytes = n * (size_t)elem,
	};
	const struct te_k_fill args = { dst, (int64_t)n, value, elem };
	const struct te__launch l = { TE_K_FILL, &args, sizeof(args) };
	/* a memset node adds a microsecond of CPU time to each launch of a graph, a kernel none */
	int r = atomic_load(&s->dev->ncaptures) ? te__cuda_capturing(s) : 0;

	if (r)
		return r < 0 ? r : te__cuda_launch_as(s, &l, &what);
	return te__cuda_memset(s->stream, dst, value, elem, n);
}

static int cuda_fill8(void *stream, void *dst, uint8_t value, size_t nbytes)
{
	struct te__cuda_stream *s = stream;

	return nbytes ? TE__CUDA_IN(s->dev, fill_mem(s, dst, value, 1, nbytes)) : 0;
}

static int cuda_fill32(void *stream, void *dst, uint32_t value, size_t nwords)
{
	struct te__cuda_stream *s = stream;

	return nwords ? TE__CUDA_IN(s->dev, fill_mem(s, dst, value, 4, nwords)) : 0;
}

const struct te__backend_ops te__backend_cuda = {
	.name = "cuda",
	.traits = TE__BACKEND_SEPARATE_SMALL,
	.workspace_nbytes = TE__CUDA_WORKSPACE_NBYTES,
	.probe = cuda_probe,
	.device_info = cuda_device_info,
	.free_nbytes = cuda_free_nbytes,
	.open = cuda_open,
	.close = cuda_close,
	.enter = cuda_enter,
	.leave = cuda_leave,
	.dev_mem = cuda_dev_mem,
	.mem_held = cuda_mem_held,
	.mem_alloc = cuda_mem_alloc,
	.mem_free = cuda_mem_free,
	.pinned_alloc = cuda_pinned_alloc,
	.pinned_free = cuda_pinned_free,
	.share_unit = te__cuda_share_unit,
	.share_create = te__cuda_share_create,
	.share_export = te__cuda_share_export,
	.share_import = te__cuda_share_import,
	.share_release = te__cuda_share_release,
	.share_reserve = te__cuda_share_reserve,
	.share_map = te__cuda_share_map,
	.share_unmap = te__cuda_share_unmap,
	.share_unreserve = te__cuda_share_unreserve,
	.multicast_unit = te__cuda_multicast_unit,
	.multicast_create = te__cuda_multicast_create,
	.multicast_import = te__cuda_multicast_import,
	.multicast_bind = te__cuda_multicast_bind,
	.page_register = te__cuda_page_register,
	.page_unregister = te__cuda_page_unregister,
	.adapter_export = te__cuda_adapter_export,
	.adapter_flush = te__cuda_adapter_flush,
	.fabric_probe = te__cuda_fabric_probe,
	.fabric_create = te__cuda_fabric_create,
	.fabric_export = te__cuda_fabric_export,
	.fabric_import = te__cuda_fabric_import,
	.stream_create = cuda_stream_create,
	.stream_wrap = cuda_stream_wrap,
	.stream_destroy = cuda_stream_destroy,
	.stream_sync = cuda_stream_sync,
	.stream_query = cuda_stream_query,
	.stream_native = cuda_stream_native,
	.stream_workspace = cuda_stream_workspace,
	.event_create = cuda_event_create,
	.event_destroy = cuda_event_destroy,
	.event_record = cuda_event_record,
	.event_record_external = te__cuda_event_record_external,
	.event_wait = cuda_event_wait,
	.event_sync = cuda_event_sync,
	.event_query = cuda_event_query,
	.event_elapsed_ms = cuda_event_elapsed_ms,
	.copy = cuda_copy,
	.fill8 = cuda_fill8,
	.fill32 = cuda_fill32,
	.host_call = te__cuda_host_call,
	.word_set = te__cuda_word_set,
	.word_take = te__cuda_word_take,
	.launch = te__cuda_launch,
	.launch_hold = te__cuda_launch_hold,
	.launch_held = te__cuda_launch_held,
	.capture_begin = te__cuda_capture_begin,
	.capture_edges = te__cuda_capture_edges,
	.capture_access = te__cuda_capture_access,
	.capture_end = te__cuda_capture_end,
	.capture_active = te__cuda_capture_active,
	.graph_info = te__cuda_graph_info,
	.graph_node = te__cuda_graph_node,
	.exec_graph = te__cuda_exec_graph,
	.graph_instantiate = te__cuda_graph_instantiate,
	.graph_launch = te__cuda_graph_launch,
	.exec_update = te__cuda_exec_update,
	.exec_patch = te__cuda_exec_patch,
	.graph_destroy = te__cuda_graph_destroy,
	.exec_destroy = te__cuda_exec_destroy,
};
