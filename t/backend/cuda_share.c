/*
 * t/backend/cuda_share.c - what the cuda backend asks of a driver to share memory, and what it
 * says if that fails. This program fakes the driver: neither libcuda nor a GPU is needed.
 */
#include "config.h"

#include <fcntl.h>
#include <unistd.h>

#include <te/errno.h>

#include "cuda_fake.h"
#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/nvml.h"
#include "tt.h"
#include "tt_ctx.h"

#define UNIT ((size_t)2 << 20)
#define WINDOW 0x700000000000u

static const struct te__backend_ops *const ops = &te__backend_cuda;
static struct te__cuda_dev dev;

/* what the driver can do, which of its calls fails, and what exists */
static struct {
	int vmm, posix, fabric, rdma;
	int dmabuf, ordering, flush; /* of network adapters */
	struct te__nvml_fabric domain;
	const char *failing;
	int code;
	int handles, windows, mapped, accessible, registered, current, nvml;
	int rdma_asked;
} fake;

#define CALL(fn)                                            \
	do {                                                \
		if (fake.failing && !strcmp(fake.failing, fn)) \
			return fake.code;                   \
	} while (0)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
int fake_cuGetErrorName(int result, const char **ret_name)
{
	*ret_name = result == TE__CU_ERROR_NOT_PERMITTED ? "CUDA_ERROR_NOT_PERMITTED" :
							   "CUDA_ERROR_FAKE";
	return 0;
}

int fake_cuCtxPushCurrent(void *ctx)
{
	fake.current++;
	return 0;
}

int fake_cuCtxPopCurrent(void **ret_ctx)
{
	fake.current--;
	return 0;
}

int fake_cuDeviceGetAttribute(int *ret_value, int attribute, int device)
{
	switch (attribute) {
	case TE__CU_ATTR_VMM:
		*ret_value = fake.vmm;
		return 0;
	case TE__CU_ATTR_HANDLE_POSIX_FD:
		*ret_value = fake.posix;
		return 0;
	case TE__CU_ATTR_HANDLE_FABRIC:
		*ret_value = fake.fabric;
		return 0;
	case TE__CU_ATTR_GPU_DIRECT_RDMA_WITH_VMM:
		*ret_value = fake.rdma;
		return 0;
	case TE__CU_ATTR_DMA_BUF:
		*ret_value = fake.dmabuf;
		return 0;
	case TE__CU_ATTR_GPU_DIRECT_RDMA_ORDERING:
		*ret_value = fake.ordering;
		return 0;
	case TE__CU_ATTR_GPU_DIRECT_RDMA_FLUSH_OPTIONS:
		*ret_value = fake.flush;
		return 0;
	default:
		return FAKE_UNKNOWN;
	}
}

int fake_cuMemGetHandleForAddressRange(void *ret, uint64_t ptr, size_t nbytes, int type,
				       unsigned long long flags)
{
	CALL("cuMemGetHandleForAddressRange");
	ck_assert_uint_eq(ptr, WINDOW);
	ck_assert_uint_eq(nbytes, UNIT);
	ck_assert_int_eq(type, TE__CU_RANGE_DMA_BUF);
	*(int *)ret = open("/dev/null", O_RDWR | O_CLOEXEC);
	return 0;
}

int fake_cuMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	*ret_free = 5 * UNIT;
	*ret_total = 16 * UNIT;
	return 0;
}

int fake_cuMemGetAllocationGranularity(size_t *ret_nbytes,
				       const struct te__cu_mem_props *props, int option)
{
	CALL("cuMemGetAllocationGranularity");
	ck_assert_int_eq(props->type, TE__CU_MEM_ALLOCATION_TYPE_PINNED);
	*ret_nbytes = UNIT;
	return 0;
}

int fake_cuMemCreate(uint64_t *ret_handle, size_t nbytes,
		     const struct te__cu_mem_props *props, uint64_t flags)
{
	CALL("cuMemCreate");
	ck_assert_uint_eq(nbytes % UNIT, 0);
	ck_assert_int_eq(props->location.type, TE__CU_MEM_LOCATION_TYPE_DEVICE);
	ck_assert_int_eq(props->location.id, 3);
	fake.rdma_asked = props->rdma_capable;
	fake.handles++;
	*ret_handle = (uint64_t)props->handle_types;
	return 0;
}

int fake_cuMemRelease(uint64_t handle)
{
	fake.handles--;
	return 0;
}

int fake_cuMemExportToShareableHandle(void *ret, uint64_t handle, int type, uint64_t flags)
{
	CALL("cuMemExportToShareableHandle");
	/* memory is exported as what it was created for */
	ck_assert_uint_eq(handle, (uint64_t)type);
	if (type == TE__CU_MEM_HANDLE_POSIX_FD)
		*(int *)ret = open("/dev/null", O_RDWR);
	else
		memset(ret, 0x5a, TE__CU_FABRIC_HANDLE_NBYTES);
	return 0;
}

int fake_cuMemImportFromShareableHandle(uint64_t *ret_handle, void *shareable, int type)
{
	CALL("cuMemImportFromShareableHandle");
	if (type == TE__CU_MEM_HANDLE_FABRIC)
		ck_assert_int_eq(((unsigned char *)shareable)[63], 0x5a);
	else
		ck_assert_int_ge(fcntl((int)(intptr_t)shareable, F_GETFD), 0);
	fake.handles++;
	*ret_handle = (uint64_t)type;
	return 0;
}

int fake_cuMemAddressReserve(uint64_t *ret_ptr, size_t nbytes, size_t align, uint64_t addr,
			     uint64_t flags)
{
	CALL("cuMemAddressReserve");
	fake.windows++;
	*ret_ptr = WINDOW;
	return 0;
}

int fake_cuMemAddressFree(uint64_t ptr, size_t nbytes)
{
	fake.windows--;
	return 0;
}

int fake_cuMemMap(uint64_t ptr, size_t nbytes, size_t offset, uint64_t handle,
		  uint64_t flags)
{
	CALL("cuMemMap");
	ck_assert_uint_eq(offset, 0);
	fake.mapped++;
	return 0;
}

int fake_cuMemUnmap(uint64_t ptr, size_t nbytes)
{
	fake.mapped--;
	return 0;
}

int fake_cuMemSetAccess(uint64_t ptr, size_t nbytes, const struct te__cu_mem_access *desc,
			size_t n)
{
	CALL("cuMemSetAccess");
	/* for the own device only */
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(desc->location.id, 3);
	ck_assert_int_eq(desc->flags, TE__CU_MEM_ACCESS_READWRITE);
	fake.accessible++;
	return 0;
}

int fake_cuDeviceGetPCIBusId(char *address, int len, int device)
{
	CALL("cuDeviceGetPCIBusId");
	ck_assert_int_eq(device, 3);
	snprintf(address, (size_t)len, "0000:3b:00.0");
	return 0;
}

static int fake_nvml_init(void)
{
	CALL("nvmlInit");
	fake.nvml++;
	return 0;
}

static int fake_nvml_shutdown(void)
{
	fake.nvml--;
	return 0;
}

static const char *fake_nvml_error_string(int code)
{
	return code == 10 ? "Timeout" : "Unknown Error";
}

static int fake_nvml_device(const char *address, void **ret_device)
{
	CALL("nvmlDeviceGetHandleByPciBusId");
	ck_assert_str_eq(address, "0000:3b:00.0");
	*ret_device = &fake;
	return 0;
}

static int fake_nvml_fabric(void *device, struct te__nvml_fabric *ret)
{
	CALL("nvmlDeviceGetGpuFabricInfo");
	ck_assert_ptr_eq(device, &fake);
	memset(ret, 0xff, sizeof(*ret)); /* its padding */
	memcpy(ret, &fake.domain, 24);
	((unsigned char *)ret)[24] = (unsigned char)fake.domain.state;
	return 0;
}

int fake_cuMemHostRegister(void *ptr, size_t nbytes, unsigned flags)
{
	CALL("cuMemHostRegister");
	ck_assert_uint_eq(flags, TE__CU_HOSTREGISTER_PORTABLE | TE__CU_HOSTREGISTER_DEVICEMAP);
	fake.registered++;
	return 0;
}

int fake_cuMemHostUnregister(void *ptr)
{
	fake.registered--;
	return 0;
}

int fake_cuMemHostGetDevicePointer(uint64_t *ret_ptr, void *host, unsigned flags)
{
	CALL("cuMemHostGetDevicePointer");
	*ret_ptr = (uintptr_t)host + 64;
	return 0;
}
#pragma GCC diagnostic pop

static void setup(void)
{
	const struct te__cuda_driver d = fake_driver();

	te__cuda_driver_fake(&d);
	te__nvml_fake(&(const struct te__nvml){
		.init = fake_nvml_init,
		.shutdown = fake_nvml_shutdown,
		.error_string = fake_nvml_error_string,
		.device = fake_nvml_device,
		.fabric = fake_nvml_fabric,
	});
	memset(&fake, 0, sizeof(fake));
	fake.vmm = fake.posix = fake.fabric = fake.rdma = 1;
	fake.domain.state = TE__NVML_FABRIC_COMPLETED;
	fake.domain.cluster[15] = 1;
	memset(&dev, 0, sizeof(dev));
	dev.index = 2;
	dev.dev = 3;
	dev.ctx = &dev;
	dev.total_nbytes = 16 * UNIT;
	strcpy(dev.name, "NVIDIA H100 80GB HBM3");
	te__devmem_init(&dev.mem, 0, NULL);
	te_error_clear();
}

static void check_nothing_left(void)
{
	ck_assert_int_eq(fake.handles, 0);
	ck_assert_int_eq(fake.windows, 0);
	ck_assert_int_eq(fake.mapped, 0);
	ck_assert_int_eq(fake.registered, 0);
	ck_assert_int_eq(fake.current, 0);
	ck_assert_int_eq(fake.nvml, 0);
	ck_assert_uint_eq(dev.shared_nbytes, 0);
	ck_assert_uint_eq(dev.mem.used_nbytes, 0);
}

static int by_fabric; /* else by file descriptor */

/* everything that a pool of two ranks does; stops at the first call that fails */
static int use(void)
{
	void *own = NULL, *peer = NULL, *base = NULL, *seen = NULL, *page = &fake;
	struct te__fabric_handle handle;
	int fd = -1, mapped = 0, r;
	size_t unit;

	r = ops->share_unit(&dev, &unit);
	if (!r)
		r = by_fabric ? ops->fabric_create(&dev, 3 * unit, &own) :
				ops->share_create(&dev, 3 * unit, &own);
	if (!r)
		r = by_fabric ? ops->fabric_export(own, &handle) : ops->share_export(own, &fd);
	if (!r)
		r = ops->share_reserve(&dev, 6 * unit, &base);
	if (!r)
		r = ops->share_map(own, base);
	mapped = !r;
	if (!r)
		r = by_fabric ? ops->fabric_import(&dev, &handle, 3 * unit, &peer) :
				ops->share_import(&dev, fd, 3 * unit, &peer);
	if (!r)
		r = ops->share_map(peer, (char *)base + 3 * unit);
	mapped += !r;
	if (!r)
		r = ops->page_register(&dev, page, 4096, &seen);
	if (!r) {
		ck_assert_ptr_eq(seen, (char *)page + 64);
		ck_assert_uint_eq(dev.shared_nbytes, 3 * UNIT);
		if (!by_fabric)
			ck_assert_uint_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
		ops->page_unregister(&dev, page);
	}
	while (mapped--)
		ops->share_unmap(&dev, (char *)base + (size_t)mapped * 3 * UNIT, 3 * UNIT);
	if (base)
		ops->share_unreserve(&dev, base, 6 * UNIT);
	if (peer)
		ops->share_release(peer);
	if (own)
		ops->share_release(own);
	if (fd >= 0)
		close(fd);
	check_nothing_left();
	return r;
}

CASE(share, "host fast", .setup = setup);

TEST_EACH(share, shares_memory, 2)
{
	by_fabric = _i;
	DO(use());
	ck_assert_int_eq(fake.accessible, 2);
	ck_assert_int_eq(fake.rdma_asked, 1);
	fake.rdma = 0;
	DO(use());
	ck_assert_int_eq(fake.rdma_asked, 0);
}

TEST_EACH(share, each_failing_call_leaves_nothing, 2)
{
	by_fabric = _i;
	ck_assert_int_ge(tt_fault_each(use), 16);
}

static const char *const call[] = {
	"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle",
	"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
	"cuMemHostRegister", "cuMemHostGetDevicePointer",
};

TEST_EACH(share, names_the_call_that_fails, TT_LEN(call))
{
	fake.failing = call[_i];
	fake.code = FAKE_UNKNOWN;
	ck_assert_int_eq(use(), -TE_ECUDA);
	tt_said(call[_i]);
	tt_said("CUDA_ERROR_FAKE");
}

TEST_EACH(share, out_of_memory_has_the_sizes, 2)
{
	fake.failing = "cuMemCreate";
	fake.code = TE__CU_ERROR_OUT_OF_MEMORY;
	by_fabric = _i;
	ck_assert_int_eq(use(), -ENOMEM);
	tt_said("no 6291456 bytes of device memory: GPU 2 has 10485760 of 33554432 bytes free");
}

TEST(share, a_gpu_without_shareable_memory_is_named)
{
	fake.vmm = 0;
	ck_assert_int_eq(use(), -EOPNOTSUPP);
	tt_said("GPU 2, NVIDIA H100 80GB HBM3: the driver has no virtual memory management");
	fake.vmm = 1;
	fake.posix = 0;
	te_error_clear();
	ck_assert_int_eq(use(), -EOPNOTSUPP);
	tt_said("its memory cannot be exported as a file descriptor");
}

/* to network adapters: by a dma-buf or, where the driver exports none, by its address */
TEST(share, memory_is_exported_to_adapters)
{
	int fd = -7;

	fake.dmabuf = 1;
	fake.ordering = TE__CU_ORDERING_OWNER;
	DO(ops->adapter_export(&dev, (void *)WINDOW, UNIT, &fd));
	ck_assert_int_ge(fd, 0);
	close(fd);
	fake.failing = "cuMemGetHandleForAddressRange";
	fake.code = FAKE_UNKNOWN;
	ck_assert_int_eq(ops->adapter_export(&dev, (void *)WINDOW, UNIT, &fd), -TE_ECUDA);
	tt_said("cuMemGetHandleForAddressRange");
	fake.dmabuf = fake.ordering = 0;
	fake.flush = TE__CU_FLUSH_OPTION_MEM_OPS;
	DO(ops->adapter_export(&dev, (void *)WINDOW, UNIT, &fd));
	ck_assert_int_eq(fd, -1);
	fake.flush = 0;
	te_error_clear();
	ck_assert_int_eq(ops->adapter_export(&dev, (void *)WINDOW, UNIT, &fd), -EOPNOTSUPP);
	tt_said("GPU 2, NVIDIA H100 80GB HBM3: its work cannot wait for what network adapters");
	check_nothing_left();
}

static int probe(void)
{
	struct te__fabric_domain domain;
	int r = ops->fabric_probe(&dev, &domain);

	check_nothing_left();
	return r;
}

TEST(share, a_domain_is_a_cluster_and_a_clique)
{
	struct te__fabric_domain first, other;

	DO(ops->fabric_probe(&dev, &first));
	DO(ops->fabric_probe(&dev, &other));
	ck_assert_mem_eq(&first, &other, sizeof(first));
	fake.domain.clique = 1;
	DO(ops->fabric_probe(&dev, &other));
	ck_assert_mem_ne(&first, &other, sizeof(first));
	fake.domain.clique = 0;
	fake.domain.cluster[0] = 9;
	DO(ops->fabric_probe(&dev, &other));
	ck_assert_mem_ne(&first, &other, sizeof(first));
}

TEST(share, fabric_handles_are_tried)
{
	DO(probe());
	ck_assert_int_ge(tt_fault_each(probe), 6);
	fake.fabric = 0;
	te_error_clear();
	ck_assert_int_eq(probe(), -EOPNOTSUPP);
	ck_assert_str_eq(te_error_detail(), "no fabric handles: GPU 2, NVIDIA H100 80GB HBM3, "
			 "does not support them");
}

static const struct {
	struct te__nvml_fabric domain;
	const char *said;
} domains[] = {
	{ { { 1 }, 0, 0, TE__NVML_FABRIC_NOT_SUPPORTED }, "is in no NVLink domain" },
	{ { { 1 }, 0, 0, TE__NVML_FABRIC_NOT_STARTED }, "has not joined its NVLink domain" },
	{ { { 1 }, 0, 0, TE__NVML_FABRIC_IN_PROGRESS }, "has not joined its NVLink domain" },
	{ { { 1 }, 10, 0, TE__NVML_FABRIC_COMPLETED },
	  "has failed to join its NVLink domain: Timeout" },
	{ { { 0 }, 0, 7, TE__NVML_FABRIC_COMPLETED },
	  "the NVLink domain of GPU 2, NVIDIA H100 80GB HBM3, is of this node only" },
};

/* then no memory is created */
TEST_EACH(share, the_nvlink_domain_is_asked_for, TT_LEN(domains))
{
	fake.domain = domains[_i].domain;
	fake.failing = "cuMemCreate";
	fake.code = FAKE_UNKNOWN;
	ck_assert_int_eq(probe(), -EOPNOTSUPP);
	tt_said("no fabric handles: ");
	tt_said("GPU 2, NVIDIA H100 80GB HBM3");
	tt_said(domains[_i].said);
}

TEST(share, a_failing_call_of_nvml_is_named)
{
	static const char *const calls[] = { "nvmlInit", "nvmlDeviceGetHandleByPciBusId",
					     "nvmlDeviceGetGpuFabricInfo" };

	fake.code = 10;
	for (size_t i = 0; i < TT_LEN(calls); i++) {
		fake.failing = calls[i];
		te_error_clear();
		ck_assert_int_eq(probe(), -EOPNOTSUPP);
		tt_said(calls[i]);
		tt_said("Timeout");
	}
}

/* the attribute promises them, and the call fails: the usual case without an IMEX daemon */
TEST_EACH(share, a_failing_fabric_call_is_explained, 4)
{
	fake.failing = call[_i];
	fake.code = TE__CU_ERROR_NOT_PERMITTED;
	ck_assert_int_eq(probe(), -EOPNOTSUPP);
	tt_said("no IMEX channel: /dev/nvidia-caps-imex-channels/channel0");
	fake.code = FAKE_UNKNOWN;
	te_error_clear();
	ck_assert_int_eq(probe(), -EOPNOTSUPP);
	tt_said(call[_i]);
}

TT_MAIN("backend/cuda_share", TT_NEED_NOTHING)
