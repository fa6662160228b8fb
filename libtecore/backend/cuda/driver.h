/*
 * driver.h - the part of the CUDA driver API that libtecore uses, declared
 * here so that building needs no cuda.h, and the table that dlopen fills.
 * t/backend/cuda_abi.c compares it with cuda.h where there is one.
 */
#ifndef TE__CUDA_DRIVER_H
#define TE__CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* handles are void *, a CUdeviceptr is a uint64_t, a CUresult an int */
enum {
	TE__CU_SUCCESS = 0,
	TE__CU_ERROR_INVALID_VALUE = 1,
	TE__CU_ERROR_OUT_OF_MEMORY = 2,
	TE__CU_ERROR_NO_DEVICE = 100,
	TE__CU_ERROR_INVALID_HANDLE = 400,
	TE__CU_ERROR_NOT_READY = 600,
	TE__CU_ERROR_NOT_PERMITTED = 800,
	TE__CU_ERROR_NOT_SUPPORTED = 801,
	TE__CU_ERROR_CAPTURE_INVALIDATED = 901,
	TE__CU_ERROR_CAPTURE_MERGE = 902,
	TE__CU_ERROR_CAPTURE_UNJOINED = 904,
	TE__CU_ERROR_CAPTURE_ISOLATION = 905,
	TE__CU_ERROR_CAPTURED_EVENT = 907,
	TE__CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
	TE__CU_ERROR_UNKNOWN = 999,

	TE__CU_ATTR_CLOCK_RATE = 13, /* kHz */
	TE__CU_ATTR_MULTIPROCESSOR_COUNT = 16,
	TE__CU_ATTR_MEMORY_CLOCK_RATE = 36,	  /* kHz */
	TE__CU_ATTR_GLOBAL_MEMORY_BUS_WIDTH = 37, /* bits */
	TE__CU_ATTR_L2_CACHE_SIZE = 38,
	TE__CU_ATTR_COMPUTE_CAPABILITY_MAJOR = 75,
	TE__CU_ATTR_COMPUTE_CAPABILITY_MINOR = 76,
	TE__CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
	TE__CU_ATTR_VMM = 102, /* virtual memory management */
	TE__CU_ATTR_HANDLE_POSIX_FD = 103,
	TE__CU_ATTR_GPU_DIRECT_RDMA_WITH_VMM = 110,
	TE__CU_ATTR_GPU_DIRECT_RDMA_FLUSH_OPTIONS = 117,
	TE__CU_ATTR_GPU_DIRECT_RDMA_ORDERING = 118,
	TE__CU_ATTR_CLUSTER_LAUNCH = 120,
	TE__CU_ATTR_64_BIT_MEM_OPS = 122, /* cuStreamBatchMemOp */
	TE__CU_ATTR_DMA_BUF = 124,
	TE__CU_ATTR_TENSOR_MAP = 127,
	TE__CU_ATTR_HANDLE_FABRIC = 128,
	TE__CU_ATTR_MULTICAST = 132,

	TE__CU_POOL_RELEASE_THRESHOLD = 4,
	TE__CU_POOL_RESERVED_MEM_CURRENT = 5,
	TE__CU_POOL_USED_MEM_CURRENT = 7,
	TE__CU_POOL_USED_MEM_HIGH = 8,

	TE__CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	TE__CU_MEM_LOCATION_TYPE_DEVICE = 1,
	TE__CU_MEMHOSTALLOC_PORTABLE = 1,
	TE__CU_HOSTREGISTER_PORTABLE = 1,
	TE__CU_HOSTREGISTER_DEVICEMAP = 2,
	TE__CU_MEM_HANDLE_POSIX_FD = 1,
	TE__CU_MEM_HANDLE_FABRIC = 8,
	TE__CU_FABRIC_HANDLE_NBYTES = 64,
	TE__CU_MEM_GRANULARITY_MINIMUM = 0,
	TE__CU_MEM_GRANULARITY_RECOMMENDED = 1,
	TE__CU_MEM_ACCESS_READWRITE = 3,

	TE__CU_FUNC_SHARED_SIZE_BYTES = 1,
	TE__CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
	TE__CU_LAUNCH_CLUSTER_DIMENSION = 4,

	TE__CU_STREAM_NON_BLOCKING = 1,
	TE__CU_STREAM_LEGACY = 1, /* handles, as NULL is */
	TE__CU_STREAM_PER_THREAD = 2,
	TE__CU_EVENT_DEFAULT = 0,
	TE__CU_EVENT_RECORD_EXTERNAL = 1,
	TE__CU_CAPTURE_MODE_THREAD_LOCAL = 1,
	TE__CU_CAPTURE_MODE_RELAXED = 2,
	TE__CU_CAPTURE_STATUS_NONE = 0,
	TE__CU_CAPTURE_STATUS_ACTIVE = 1,

	TE__CU_NODE_KERNEL = 0,
	TE__CU_NODE_MEMCPY = 1,
	TE__CU_NODE_MEMSET = 2,
	TE__CU_NODE_HOST = 3,
	TE__CU_NODE_EMPTY = 5,
	TE__CU_NODE_WAIT_EVENT = 6,
	TE__CU_NODE_EVENT_RECORD = 7,
	TE__CU_NODE_MEM_OP = 12,

	TE__CU_MEM_OP_WAIT_32 = 1,
	TE__CU_MEM_OP_WRITE_32 = 2,
	TE__CU_MEM_OP_FLUSH_REMOTE_WRITES = 3,
	TE__CU_WAIT_GEQ = 0,

	TE__CU_MEMORYTYPE_HOST = 1,

	TE__CU_TENSOR_MAP_UINT8 = 0,
	TE__CU_TENSOR_MAP_FLOAT32 = 7,
	TE__CU_TENSOR_MAP_BFLOAT16 = 9,
	TE__CU_TENSOR_MAP_SWIZZLE_128B = 3,
	TE__CU_TENSOR_MAP_L2_256B = 3,

	TE__CU_EDGE_PROGRAMMATIC = 1,
	TE__CU_PORT_PROGRAMMATIC = 1,
};

struct te__cu_location {
	int type;
	int id;
};

struct te__cu_pool_props {
	int alloc_type;
	int handle_types;
	struct te__cu_location location;
	void *win32_security;
	size_t max_size;
	unsigned short usage;
	unsigned char reserved[54];
};

/* values of TE__CU_ATTR_GPU_DIRECT_RDMA_FLUSH_OPTIONS, and of the other attribute */
#define TE__CU_FLUSH_OPTION_MEM_OPS 2
#define TE__CU_ORDERING_OWNER 100
#define TE__CU_RANGE_DMA_BUF 1
#define TE__CU_POINTER_MEMORY_TYPE 2 /* CUpointer_attribute */

/* CUstreamBatchMemOpParams, which is a union: waits and writes have the same members */
struct te__cu_mem_op {
	int operation;
	uint64_t address, value;
	unsigned flags;
	uint64_t alias;
	uint64_t reserved;
};

struct te__cu_mem_props {
	int type;
	int handle_types;
	struct te__cu_location location;
	void *win32_metadata;
	unsigned char compression;
	unsigned char rdma_capable;
	unsigned short usage;
	unsigned char reserved[4];
};

struct te__cu_mem_access {
	struct te__cu_location location;
	int flags;
};

struct te__cu_multicast_props {
	unsigned ndevices;
	size_t nbytes;
	uint64_t handle_types;
	uint64_t flags;
};

struct te__cu_launch_config {
	unsigned grid[3];
	unsigned block[3];
	unsigned smem;
	void *stream;
	void *attrs;
	unsigned nattrs;
};

struct te__cu_kernel_params {
	void *func;
	unsigned grid[3];
	unsigned block[3];
	unsigned smem;
	void **params;
	void **extra;
	void *kern;
	void *ctx;
};

/* value of a launch attribute */
union te__cu_launch_value {
	char pad[64];
	unsigned cluster[3]; /* blocks; 0: none */
};

/* one side of a copy: type tells which of the pointers is valid */
struct te__cu_memcpy_side {
	size_t x, y, z, lod;
	int type;
	void *host;
	uint64_t dev;
	void *array;
	void *reserved;
	size_t pitch, height;
};

struct te__cu_memcpy_params {
	struct te__cu_memcpy_side src, dst;
	size_t width, height, depth;
};

struct te__cu_memset_params {
	uint64_t dst;
	size_t pitch;
	unsigned value, elem;
	size_t width, height;
};

struct te__cu_update_result {
	int result;
	void *node, *from;
};

struct te__cu_edge_data {
	unsigned char from_port, to_port, type;
	unsigned char reserved[5];
};

struct te__cuda_driver {
#define TE__CU(name, version, args) int(*name) args;
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
};

struct te__cuda_multicast {
#define TE__CU(name, version, args) int(*name) args;
#include "libtecore/backend/cuda/multicast.def"
#undef TE__CU
};

/* filled by te__cuda_driver_load(); tests replace functions in it */
extern struct te__cuda_driver te__cu;

/*
 * 0, or -ENODEV if there is no driver, with the reason in *ret_reason, which stays valid; no error
 * message is recorded. Loads the driver and calls cuInit once per process.
 */
int te__cuda_driver_load(const char **ret_reason);

/*
 * 0, with these functions resolved, or -EOPNOTSUPP: te__multicast_check(), or the driver has none
 * of them. Called before each use.
 */
extern struct te__cuda_multicast te__cu_multicast;
int te__cuda_multicast_load(void);

/*
 * For tests, before any other call: a fake driver. The second function resolves the functions by
 * get_proc as from a library; found: whether there is a library; get_proc is NULL for one
 * that is older than CUDA 12.0.
 */
typedef int te__cuda_get_proc_fn(const char *symbol, void **ret_fn, int version, uint64_t flags,
				 int *ret_status);
void te__cuda_driver_fake(const struct te__cuda_driver *fake);
void te__cuda_driver_fake_lib(int found, te__cuda_get_proc_fn *get_proc);

/* "CUDA_ERROR_..." */
const char *te__cuda_error_name(int result);

/* 0, or -TE_ECUDA with the message "<call>: CUDA_ERROR_..." */
int te__cuda_check(int result, const char *call);
/* the same; -TE_ESTATE if the caller joined captures incorrectly */
int te__cuda_capture_check(int result, const char *call);

/*
 * A driver call that tests can make fail: RAW is the CUresult, CALL a checked code. Calls
 * that release something use te__cu directly.
 */
#define TE__CU_RAW(fn, ...) (te__fault_point() ? TE__CU_ERROR_UNKNOWN : te__cu.fn(__VA_ARGS__))
#define TE__CU_CALL(fn, ...) te__cuda_check(TE__CU_RAW(fn, __VA_ARGS__), #fn)

#endif
