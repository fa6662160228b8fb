/* device.c - GPUs: what they can do, and opening and closing them. */
#include "config.h"

#include <errno.h>
#include <stdio.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"

static int load(void)
{
	const char *reason;

	if (te__cuda_driver_load(&reason))
		return te__fail(-ENODEV, "the cuda backend is absent: %s", reason);
	return 0;
}

int te__cuda_probe(struct te_backend_info *ret)
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

/*
 * Machine code runs on its own compute capability and on later ones with the same first digit;
 * machine code for 9.0 is sm_90a and runs on 9.0 only. PTX runs on its own and on all later ones,
 * and the driver prefers machine code.
 */
int te__cuda_arch(const short *cubins, const short *ptx, int cc)
{
	int best = 0;

	for (; *ptx; ptx++)
		if (*ptx <= cc && *ptx > best)
			best = *ptx;
	for (; *cubins; cubins++)
		if (*cubins / 10 == cc / 10 && (*cubins == 90 ? cc == 90 : *cubins <= cc) &&
		    *cubins >= best)
			best = *cubins;
	return best;
}

static int arch(int major, int minor)
{
	/* lists of configure, each ends with 0 */
	static const short cubins[] = { TE_GPU_CUBINS }, ptx[] = { TE_GPU_PTX };

	return te__cuda_arch(cubins, ptx, 10 * major + minor);
}

/* 0, or the error code of a device that cannot run the kernels, with the reason in why */
static int unfit(int major, int minor, char *why, size_t nbytes)
{
	if (!arch(major, minor)) {
		snprintf(why, nbytes, "compute capability %d.%d: the kernels of this build are for "
			 TE_GPU_ARCHS, major, minor);
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

int te__cuda_device_info(int index, struct te_device_info *ret)
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
int te__cuda_free_nbytes(int index, uint64_t *ret_nbytes)
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

int te__cuda_fp8_gemm(void *dev)
{
	const struct te__cuda_dev *d = dev;

	if (d->arch >= 89)
		return 0;
	return te__fail(-EOPNOTSUPP, "FP8 GEMM: GPU %d, %s, with kernels for compute capability "
			"%d.%d, has no FP8 tensor cores; the recipe bf16 runs there", d->index,
			d->name, d->arch / 10, d->arch % 10);
}

/* with the context current */
static int fill(struct te__cuda_dev *d)
{
	int r = d->mem.alloc.device_alloc ? 0 : pool_create(d);

	if (!r)
		r = TE__CU_CALL(cuStreamCreate, &d->stream, TE__CU_STREAM_NON_BLOCKING);
	return r ? r : te__cuda_kernels_get(d);
}

static int empty(struct te__cuda_dev *d)
{
	te__cuda_captures_drop(d);
	te__cublaslt_close(d);
	te__cuda_kernels_put(d);
	if (d->stream) {
		te__cu.cuStreamSynchronize(d->stream);
		te__cu.cuStreamDestroy(d->stream);
	}
	if (d->pool)
		te__cu.cuMemPoolDestroy(d->pool);
	return 0;
}

void te__cuda_close(void *dev)
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

int te__cuda_open(const struct te__open *how, void **ret_dev)
{
	const int index = how->device;
	struct te__cuda_dev *d;
	int dev, major, minor, smem_max;
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
	d->arch = arch(major, minor);
	d->has_wgmma = major == 9 && minor == 0 && d->arch == 90;
	r = TE__CU_CALL(cuDeviceTotalMem, &d->total_nbytes, dev);
	if (!r)
		r = attribute(dev, TE__CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &smem_max);
	d->smem_max = r ? 0 : (unsigned)smem_max;
	d->ctx = how->native;
	d->borrowed = d->ctx != NULL;
	if (!r && !d->ctx)
		r = TE__CU_CALL(cuDevicePrimaryCtxRetain, &d->ctx, dev);
	if (!r)
		r = TE__CUDA_IN_RELAXED(d, fill(d));
	if (r) {
		te__cuda_close(d);
		return r;
	}
	*ret_dev = d;
	return 0;
}

int te__cuda_enter(void *dev)
{
	return te__cuda_push(dev);
}

void te__cuda_leave(void *dev)
{
	void *ctx;

	(void)dev;
	(void)te__cu.cuCtxPopCurrent(&ctx);
}
