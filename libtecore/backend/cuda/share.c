/*
 * share.c - memory that other processes map: allocations of the driver's virtual memory
 * management, passed on as file descriptors and mapped into reserved addresses, and multicast
 * objects over them.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/nvml.h"

struct share {
	struct te__cuda_dev *dev;
	uint64_t handle;
	size_t nbytes;
	int created; /* here, and counted as memory of the device */
	int bound;   /* a multicast object to which memory of this device is bound */
};

static int attribute(const struct te__cuda_dev *d, int which, int *ret)
{
	return TE__CU_CALL(cuDeviceGetAttribute, ret, which, d->dev);
}

/* handle_type: TE__CU_MEM_HANDLE_* */
static int props(const struct te__cuda_dev *d, int handle_type, struct te__cu_mem_props *ret)
{
	int rdma;
	int r = attribute(d, TE__CU_ATTR_GPU_DIRECT_RDMA_WITH_VMM, &rdma);

	if (r)
		return r;
	*ret = (struct te__cu_mem_props){
		.type = TE__CU_MEM_ALLOCATION_TYPE_PINNED,
		.handle_types = handle_type,
		.location = { TE__CU_MEM_LOCATION_TYPE_DEVICE, d->dev },
		.rdma_capable = rdma != 0,
	};
	return 0;
}

static int share_unit(struct te__cuda_dev *d, size_t *ret_nbytes)
{
	struct te__cu_mem_props p;
	int can;
	int r = attribute(d, TE__CU_ATTR_VMM, &can);

	if (!r && !can)
		return te__fail(-EOPNOTSUPP, "GPU %d, %s: the driver has no virtual memory "
				"management for it", d->index, d->name);
	if (!r)
		r = attribute(d, TE__CU_ATTR_HANDLE_POSIX_FD, &can);
	if (!r && !can)
		return te__fail(-EOPNOTSUPP, "GPU %d, %s: its memory cannot be exported as a file "
				"descriptor", d->index, d->name);
	if (!r)
		r = props(d, TE__CU_MEM_HANDLE_POSIX_FD, &p);
	return r ? r : TE__CU_CALL(cuMemGetAllocationGranularity, ret_nbytes, &p,
				   TE__CU_MEM_GRANULARITY_RECOMMENDED);
}

int te__cuda_share_unit(void *dev, size_t *ret_nbytes)
{
	return TE__CUDA_IN_RELAXED(dev, share_unit(dev, ret_nbytes));
}

static int fabric_failed(const char *call, int result)
{
	if (result == TE__CU_ERROR_NOT_PERMITTED)
		return te__fail(-EOPNOTSUPP, "no fabric handles: no IMEX channel: "
				"/dev/nvidia-caps-imex-channels/channel0 does not exist, or this "
				"user may not read it");
	return te__fail(-EOPNOTSUPP, "no fabric handles: %s: %s", call,
			te__cuda_error_name(result));
}

static int create(struct te__cuda_dev *d, struct share *s, int handle_type)
{
	struct te__cu_mem_props p;
	int r = props(d, handle_type, &p);

	if (r)
		return r;
	if (s->nbytes > d->total_nbytes)
		return te__cuda_no_memory(d, s->nbytes);
	r = TE__CU_RAW(cuMemCreate, &s->handle, s->nbytes, &p, 0);
	if (r == TE__CU_ERROR_OUT_OF_MEMORY)
		return te__cuda_no_memory(d, s->nbytes);
	if (r && handle_type == TE__CU_MEM_HANDLE_FABRIC)
		return fabric_failed("cuMemCreate", r);
	return te__cuda_check(r, "cuMemCreate");
}

/* NULL: -ENOMEM is recorded */
static struct share *share_new(struct te__cuda_dev *d, size_t nbytes)
{
	struct share *s = te__calloc(1, sizeof(*s));

	if (!s)
		te__fail(-ENOMEM, "no memory for a share");
	else
		*s = (struct share){ .dev = d, .nbytes = nbytes };
	return s;
}

/* r: the result of opening it; frees it after an error */
static int opened(struct share *s, int r, void **ret_share)
{
	if (r)
		te__free(s);
	else
		*ret_share = s;
	return r;
}

static void count(struct te__cuda_dev *d, size_t nbytes)
{
	uint64_t now = atomic_fetch_add(&d->shared_nbytes, nbytes) + nbytes;
	uint64_t peak = atomic_load(&d->shared_peak_nbytes);

	while (peak < now && !atomic_compare_exchange_weak(&d->shared_peak_nbytes, &peak, now))
		;
}

static int share_create(struct te__cuda_dev *d, size_t nbytes, int handle_type, void **ret_share)
{
	struct share *s;
	int r;

	if (!te__devmem_take(&d->mem, nbytes))
		return te__devmem_full(&d->mem, nbytes);
	s = share_new(d, nbytes);
	r = s ? TE__CUDA_IN_RELAXED(d, create(d, s, handle_type)) : -ENOMEM;
	if (r) {
		te__free(s);
		te__devmem_give(&d->mem, nbytes);
		return r;
	}
	count(d, nbytes);
	s->created = 1;
	*ret_share = s;
	return 0;
}

int te__cuda_share_create(void *dev, size_t nbytes, void **ret_share)
{
	return share_create(dev, nbytes, TE__CU_MEM_HANDLE_POSIX_FD, ret_share);
}

static int export_fd(const struct share *s, int *ret_fd)
{
	int fd;
	int r = TE__CU_CALL(cuMemExportToShareableHandle, &fd, s->handle,
			    TE__CU_MEM_HANDLE_POSIX_FD, 0);

	if (r)
		return r;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC)) {
		r = te__fail(-errno, "fcntl of an exported file descriptor: %s", strerror(errno));
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

int te__cuda_share_export(void *share, int *ret_fd)
{
	struct share *s = share;

	return TE__CUDA_IN_RELAXED(s->dev, export_fd(s, ret_fd));
}

static int import_fd(struct share *s, int fd)
{
	int r = TE__CU_RAW(cuMemImportFromShareableHandle, &s->handle, (void *)(intptr_t)fd,
			   TE__CU_MEM_HANDLE_POSIX_FD);

	return te__cuda_check(r, "import memory of another process by its file descriptor: "
			      "cuMemImportFromShareableHandle");
}

int te__cuda_share_import(void *dev, int fd, size_t nbytes, void **ret_share)
{
	struct te__cuda_dev *d = dev;
	struct share *s = share_new(d, nbytes);

	return opened(s, s ? TE__CUDA_IN_RELAXED(d, import_fd(s, fd)) : -ENOMEM, ret_share);
}

static int release(const struct share *s)
{
	if (s->bound)
		te__cu_multicast.cuMulticastUnbind(s->handle, s->dev->dev, 0, s->nbytes);
	return te__cu.cuMemRelease(s->handle);
}

void te__cuda_share_release(void *share)
{
	struct share *s = share;

	(void)TE__CUDA_IN_RELAXED(s->dev, release(s));
	if (s->created) {
		atomic_fetch_sub(&s->dev->shared_nbytes, s->nbytes);
		te__devmem_give(&s->dev->mem, s->nbytes);
	}
	te__free(s);
}

static int reserve(size_t nbytes, void **ret_base)
{
	uint64_t base;
	int r = TE__CU_CALL(cuMemAddressReserve, &base, nbytes, 0, 0, 0);

	if (!r)
		*ret_base = (void *)(uintptr_t)base;
	return r;
}

int te__cuda_share_reserve(void *dev, size_t nbytes, void **ret_base)
{
	return TE__CUDA_IN_RELAXED(dev, reserve(nbytes, ret_base));
}

/* fails for memory on another GPU without peer access between the two */
static int map(const struct share *s, uint64_t at)
{
	const struct te__cu_mem_access access = {
		.location = { TE__CU_MEM_LOCATION_TYPE_DEVICE, s->dev->dev },
		.flags = TE__CU_MEM_ACCESS_READWRITE,
	};
	int r = TE__CU_CALL(cuMemMap, at, s->nbytes, 0, s->handle, 0);

	if (r)
		return r;
	r = TE__CU_CALL(cuMemSetAccess, at, s->nbytes, &access, 1);
	if (r)
		te__cu.cuMemUnmap(at, s->nbytes);
	return r;
}

int te__cuda_share_map(void *share, void *at)
{
	struct share *s = share;

	return TE__CUDA_IN_RELAXED(s->dev, map(s, (uintptr_t)at));
}

void te__cuda_share_unmap(void *dev, void *at, size_t nbytes)
{
	(void)TE__CUDA_IN_RELAXED(dev, te__cu.cuMemUnmap((uintptr_t)at, nbytes));
}

void te__cuda_share_unreserve(void *dev, void *base, size_t nbytes)
{
	(void)TE__CUDA_IN_RELAXED(dev, te__cu.cuMemAddressFree((uintptr_t)base, nbytes));
}

/* ---- multicast ---- */

#define MULTICAST_CALL(fn, ...)                                                            \
	te__cuda_check(te__fault_point() ? TE__CU_ERROR_UNKNOWN :                          \
					   te__cu_multicast.fn(__VA_ARGS__), #fn)

static struct te__cu_multicast_props multicast_props(int ndevices, size_t nbytes)
{
	return (struct te__cu_multicast_props){
		.ndevices = (unsigned)ndevices,
		.nbytes = nbytes,
		.handle_types = TE__CU_MEM_HANDLE_POSIX_FD,
	};
}

static int multicast_unit(const struct te__cuda_dev *d, int ndevices, size_t nbytes,
			  size_t *ret_nbytes)
{
	const struct te__cu_multicast_props p = multicast_props(ndevices, nbytes);

	if (!(d->target.features & TE_FEATURE_MULTICAST))
		return te__fail(-EOPNOTSUPP, "GPU %d, %s, does not support multicast", d->index,
				d->name);
	return MULTICAST_CALL(cuMulticastGetGranularity, ret_nbytes, &p,
			      TE__CU_MEM_GRANULARITY_MINIMUM);
}

int te__cuda_multicast_unit(void *dev, int ndevices, size_t nbytes, size_t *ret_nbytes)
{
	struct te__cuda_dev *d = dev;
	int r = te__cuda_multicast_load();

	return r ? r : TE__CUDA_IN_RELAXED(d, multicast_unit(d, ndevices, nbytes, ret_nbytes));
}

/* a new multicast object of ndevices; 0: the object of fd */
static int multicast_open(struct share *s, int ndevices, int fd)
{
	const struct te__cu_multicast_props p = multicast_props(ndevices, s->nbytes);
	int r = ndevices ? MULTICAST_CALL(cuMulticastCreate, &s->handle, &p) : import_fd(s, fd);

	if (r)
		return r;
	r = MULTICAST_CALL(cuMulticastAddDevice, s->handle, s->dev->dev);
	if (r)
		te__cu.cuMemRelease(s->handle);
	return r;
}

static int multicast_new(struct te__cuda_dev *d, int ndevices, int fd, size_t nbytes,
			 void **ret_share)
{
	struct share *s;
	int r = te__cuda_multicast_load();

	if (r)
		return r;
	s = share_new(d, nbytes);
	return opened(s, s ? TE__CUDA_IN_RELAXED(d, multicast_open(s, ndevices, fd)) : -ENOMEM,
		      ret_share);
}

int te__cuda_multicast_create(void *dev, int ndevices, size_t nbytes, void **ret_share)
{
	return multicast_new(dev, ndevices, -1, nbytes, ret_share);
}

int te__cuda_multicast_import(void *dev, int fd, size_t nbytes, void **ret_share)
{
	return multicast_new(dev, 0, fd, nbytes, ret_share);
}

int te__cuda_multicast_bind(void *multicast, void *share)
{
	struct share *s = multicast;
	const struct share *memory = share;
	int r = te__cuda_multicast_load();

	if (!r)
		r = TE__CUDA_IN_RELAXED(s->dev, MULTICAST_CALL(cuMulticastBindMem, s->handle, 0,
							       memory->handle, 0, s->nbytes, 0));
	s->bound = !r;
	return r;
}

/* ---- pages ---- */

static int page_register(void *page, size_t nbytes, void **ret_ptr)
{
	uint64_t ptr;
	int r = TE__CU_CALL(cuMemHostRegister, page, nbytes,
			    TE__CU_HOSTREGISTER_PORTABLE | TE__CU_HOSTREGISTER_DEVICEMAP);

	if (r)
		return r;
	r = TE__CU_CALL(cuMemHostGetDevicePointer, &ptr, page, 0);
	if (r) {
		te__cu.cuMemHostUnregister(page);
		return r;
	}
	*ret_ptr = (void *)(uintptr_t)ptr;
	return 0;
}

int te__cuda_page_register(void *dev, void *page, size_t nbytes, void **ret_ptr)
{
	return TE__CUDA_IN_RELAXED(dev, page_register(page, nbytes, ret_ptr));
}

void te__cuda_page_unregister(void *dev, void *page)
{
	(void)TE__CUDA_IN_RELAXED(dev, te__cu.cuMemHostUnregister(page));
}

/* ---- network adapters ---- */

/* 1: the GPU sees their writes when the CPU does, 2: it does after a flush in stream order */
static int ordering(const struct te__cuda_dev *d)
{
	int native, options;
	int r = attribute(d, TE__CU_ATTR_GPU_DIRECT_RDMA_ORDERING, &native);

	if (!r)
		r = attribute(d, TE__CU_ATTR_GPU_DIRECT_RDMA_FLUSH_OPTIONS, &options);
	if (r)
		return r;
	if (native >= TE__CU_ORDERING_OWNER)
		return 1;
	if (options & TE__CU_FLUSH_OPTION_MEM_OPS)
		return 2;
	return te__fail(-EOPNOTSUPP, "GPU %d, %s: its work cannot wait for what network adapters "
			"write to its memory", d->index, d->name);
}

static int adapter_export(const struct te__cuda_dev *d, void *ptr, size_t nbytes, int *ret_fd)
{
	int can, fd = -1;
	int r = attribute(d, TE__CU_ATTR_DMA_BUF, &can);

	if (!r)
		r = ordering(d);
	if (r < 0)
		return r;
	r = !can ? 0 : TE__CU_CALL(cuMemGetHandleForAddressRange, &fd, (uintptr_t)ptr, nbytes,
				   TE__CU_RANGE_DMA_BUF, 0);
	if (!r)
		*ret_fd = fd;
	return r;
}

int te__cuda_adapter_export(void *dev, void *ptr, size_t nbytes, int *ret_fd)
{
	return TE__CUDA_IN_RELAXED(dev, adapter_export(dev, ptr, nbytes, ret_fd));
}

static int adapter_flush(struct te__cuda_stream *s)
{
	struct te__cu_mem_op op = { .operation = TE__CU_MEM_OP_FLUSH_REMOTE_WRITES };
	const int r = ordering(s->dev);

	return r == 2 ? TE__CU_CALL(cuStreamBatchMemOp, s->stream, 1, &op, 0) : r < 0 ? r : 0;
}

int te__cuda_adapter_flush(void *stream)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN(s->dev, adapter_flush(s));
}

/* ---- fabric handles ---- */

#define PROBE_NBYTES ((size_t)2 << 20)

int te__cuda_fabric_create(void *dev, size_t nbytes, void **ret_share)
{
	return share_create(dev, nbytes, TE__CU_MEM_HANDLE_FABRIC, ret_share);
}

static int export_fabric(const struct share *s, struct te__fabric_handle *ret_handle)
{
	int r = TE__CU_RAW(cuMemExportToShareableHandle, ret_handle, s->handle,
			   TE__CU_MEM_HANDLE_FABRIC, 0);

	return r ? fabric_failed("cuMemExportToShareableHandle", r) : 0;
}

int te__cuda_fabric_export(void *share, struct te__fabric_handle *ret_handle)
{
	struct share *s = share;

	return TE__CUDA_IN_RELAXED(s->dev, export_fabric(s, ret_handle));
}

static int import_fabric(struct share *s, const struct te__fabric_handle *handle)
{
	struct te__fabric_handle copy = *handle; /* the driver's argument is not const */
	int r = TE__CU_RAW(cuMemImportFromShareableHandle, &s->handle, &copy,
			   TE__CU_MEM_HANDLE_FABRIC);

	return r ? fabric_failed("cuMemImportFromShareableHandle", r) : 0;
}

int te__cuda_fabric_import(void *dev, const struct te__fabric_handle *handle, size_t nbytes,
			   void **ret_share)
{
	struct te__cuda_dev *d = dev;
	struct share *s = share_new(d, nbytes);

	return opened(s, s ? TE__CUDA_IN_RELAXED(d, import_fabric(s, handle)) : -ENOMEM, ret_share);
}

/* the attribute is set on machines where the calls fail, so a round trip is made */
static int fabric_probe(struct te__cuda_dev *d, struct te__fabric_domain *ret_domain)
{
	struct te__cu_mem_props p;
	struct te__fabric_handle handle;
	struct share own = { .dev = d }, imported = { .dev = d };
	size_t unit;
	int can;
	int r = attribute(d, TE__CU_ATTR_HANDLE_FABRIC, &can);

	if (r)
		return r;
	if (!can)
		return te__fail(-EOPNOTSUPP, "no fabric handles: GPU %d, %s, does not support them",
				d->index, d->name);
	r = te__nvml_domain(d, ret_domain);
	if (!r)
		r = props(d, TE__CU_MEM_HANDLE_FABRIC, &p);
	if (r)
		return r;
	r = TE__CU_RAW(cuMemGetAllocationGranularity, &unit, &p, TE__CU_MEM_GRANULARITY_MINIMUM);
	if (r)
		return fabric_failed("cuMemGetAllocationGranularity", r);
	own.nbytes = (PROBE_NBYTES + unit - 1) / unit * unit;
	r = create(d, &own, TE__CU_MEM_HANDLE_FABRIC);
	if (r)
		return r;
	r = export_fabric(&own, &handle);
	if (!r)
		r = import_fabric(&imported, &handle);
	if (!r)
		te__cu.cuMemRelease(imported.handle);
	te__cu.cuMemRelease(own.handle);
	return r;
}

int te__cuda_fabric_probe(void *dev, struct te__fabric_domain *ret_domain)
{
	return TE__CUDA_IN_RELAXED(dev, fabric_probe(dev, ret_domain));
}
