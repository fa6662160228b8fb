/* device.c - GPUs: their descriptions, and opening and closing them. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/images.h"

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
 * Dense FLOP per multiprocessor and clock: tensor cores in BF16 and FP8 with sums in FP32, FP32
 * lanes. "GeForce" halves: these chips do sums in FP32 at half the rate. Sources: NVIDIA's
 * architecture white papers, A100 (table 1), GA102 (table 2), Ada (appendix A), H100 (table 3),
 * RTX Blackwell (appendix A), and the datasheet of B200.
 */
static const struct {
	int cc, bf16, fp8, fp32;
	int geforce_halves;
} rate[] = {
	{ 80, 2048, 0, 128, 0 },       { 86, 1024, 0, 256, 1 },	   { 89, 1024, 2048, 256, 1 },
	{ 90, 4096, 8192, 256, 0 },    { 100, 8192, 16384, 256, 0 }, { 103, 8192, 16384, 256, 0 },
	{ 120, 1024, 2048, 256, 1 },
};

/*
 * Clocks are the highest that the driver reports. On Hopper tensor rates of the datasheets hold at
 * 1830 MHz where that clock is 1980 MHz: 132 SMs give 989.4, 1978.9 and 66.9 TFLOPS.
 */
static void peaks(struct te_device_info *ret, const struct te__cuda_features *f)
{
	const double hz = f->clock_khz * 1e3 * f->nprocs;
	const int cc = 10 * f->major + f->minor;
	double tensor = cc == 90 ? hz * 1830 / 1980 : hz;

	for (size_t i = 0; i < sizeof(rate) / sizeof(rate[0]); i++) {
		if (rate[i].cc != cc)
			continue;
		if (rate[i].geforce_halves && strstr(ret->name, "GeForce"))
			tensor /= 2;
		ret->peak_bf16_flops = tensor * rate[i].bf16;
		ret->peak_fp8_flops = tensor * rate[i].fp8;
		ret->peak_fp32_flops = hz * rate[i].fp32;
	}
	/* two transfers a clock */
	ret->peak_bandwidth = 2e3 * f->mem_clock_khz * f->bus_bits / 8;
}

int te__cuda_device_info(int index, struct te_device_info *ret)
{
	struct te__cuda_features f;
	size_t total;
	int dev, r = device(index, -EINVAL, &dev);

	if (!r)
		r = TE__CU_CALL(cuDeviceGetName, ret->name, (int)sizeof(ret->name), dev);
	if (!r)
		r = TE__CU_CALL(cuDeviceGetPCIBusId, ret->pci_address,
				(int)sizeof(ret->pci_address), dev);
	if (!r)
		r = TE__CU_CALL(cuDeviceTotalMem, &total, dev);
	if (!r)
		r = te__cuda_features(dev, &f, ret->reason, sizeof(ret->reason));
	if (r)
		return r;
	snprintf(ret->backend, sizeof(ret->backend), "cuda");
	ret->index = index;
	ret->usable = !ret->reason[0];
	ret->cc_major = f.major;
	ret->cc_minor = f.minor;
	ret->nprocs = f.nprocs;
	ret->clock_mhz = f.clock_khz / 1000;
	ret->mem_total_nbytes = total;
	ret->l2_nbytes = (uint64_t)f.l2_nbytes;
	if (ret->usable) {
		ret->block_smem_nbytes = f.target.smem_max;
		ret->features = f.target.features;
		ret->kernels_cc = f.target.arch;
	}
	peaks(ret, &f);
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

int te__cuda_blocks_by_mma(const struct te__cuda_dev *d)
{
	return d->cc / 10 != 9 || d->target.arch < 90;
}

int te__cuda_mx_by_cublaslt(const struct te__cuda_dev *d)
{
	return d->cc / 10 == 10 || d->cc / 10 == 12;
}

int te__cuda_fp8_gemm(void *dev, int scaling)
{
	const struct te__cuda_dev *d = dev;

	if (d->target.features & TE_FEATURE_FP8_MMA || scaling >= TE_K_SCALING_1X32)
		return 0;
	return te__fail(-EOPNOTSUPP, "FP8 GEMM: GPU %d, %s, with kernels for compute capability "
			"%d.%d, has no FP8 tensor cores; the recipe bf16 runs there", d->index,
			d->name, d->target.arch / 10, d->target.arch % 10);
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
	te__cuda_images_end(d->images);
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
	struct te__cuda_features f;
	char name[sizeof(d->name)], why[256];
	int dev;
	int r = device(index, -ENODEV, &dev);

	if (!r)
		r = TE__CU_CALL(cuDeviceGetName, name, (int)sizeof(name), dev);
	if (!r)
		r = te__cuda_features(dev, &f, why, sizeof(why));
	if (!r && how->native)
		r = check_native(how->native, index, dev);
	if (r)
		return r;
	if (why[0])
		return te__fail(f.target.arch ? -TE_EKERNEL : -TE_EDEVICE, "GPU %d, %s: %s", index,
				name, why);
	d = te__calloc(1, sizeof(*d));
	if (!d)
		return te__fail(-ENOMEM, "no memory for GPU %d", index);
	d->index = index;
	d->dev = dev;
	te__devmem_init(&d->mem, how->limit_nbytes, how->alloc);
	snprintf(d->name, sizeof(d->name), "%s", name);
	pthread_mutex_init(&d->lock, NULL);
	pthread_mutex_init(&d->lt_lock, NULL);
	d->cc = 10 * f.major + f.minor;
	d->target = f.target;
	d->ptx = f.ptx;
	r = TE__CU_CALL(cuDeviceTotalMem, &d->total_nbytes, dev);
	d->ctx = how->native;
	d->borrowed = d->ctx != NULL;
	if (!r)
		r = te__cuda_kernels_begin(d);
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
