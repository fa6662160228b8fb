/* te/ctx.h - a context: one device of one backend, with its streams and memory. */
#ifndef TE_CTX_H
#define TE_CTX_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_ctx;	  /* opaque, reference counted */
struct te_stream; /* te/stream.h */

/*
 * Program functions that allocate all device memory of a context, all its pinned memory, or both:
 * each pair may be NULL. Several threads may call them concurrently. They must not call the
 * library. An allocation returns NULL if there is not enough memory.
 */
struct te_alloc_ops {
	size_t size; /* set by the INIT macro; lets the struct grow */
	void *user;  /* the first argument of each function */
	/*
	 * Device memory, aligned to 256 bytes. On a GPU both functions are ordered by the CUstream
	 * native, as cuMemAllocAsync is. On host native is NULL: memory can be used immediately,
	 * and a library thread calls device_free after all work queued before has run.
	 */
	void *(*device_alloc)(void *user, size_t nbytes, void *native);
	void (*device_free)(void *user, void *ptr, size_t nbytes, void *native);
	/* host memory that the device copies from and to asynchronously; not stream ordered */
	void *(*pinned_alloc)(void *user, size_t nbytes);
	void (*pinned_free)(void *user, void *ptr, size_t nbytes);
};
#define TE_ALLOC_OPS_INIT { sizeof(struct te_alloc_ops), 0, 0, 0, 0, 0 }

struct te_ctx_opts {
	size_t size;	     /* set by the INIT macro; lets the struct grow */
	const char *backend; /* "host", "cuda", "auto"; NULL: TE_BACKEND, default auto */
	int32_t device;	     /* index within the backend */
	uint32_t flags;	     /* none yet: 0 */
	/* limit of device memory, 0: none. The lower of this and TE_DEVICE_MEM_LIMIT applies */
	uint64_t mem_limit_nbytes;
	const struct te_alloc_ops *alloc; /* copied; NULL: the library's allocators */
	/* a CUcontext of the device, which must outlive the context; NULL: the primary context */
	void *native;
};
#define TE_CTX_OPTS_INIT { sizeof(struct te_ctx_opts), 0, 0, 0, 0, 0, 0 }

/* Description of a backend, as te_info(1) prints it. */
struct te_backend_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	char name[16];
	int32_t ndevices;  /* 0 if the backend is absent */
	char reason[256];  /* why it is absent; "" if it is present */
	char version[64];  /* driver or library version, "" if there is none */
};
#define TE_BACKEND_INFO_INIT { sizeof(struct te_backend_info), { 0 }, 0, { 0 }, { 0 } }

/* Features that a GPU and the kernels loaded on it both have: bits of te_device_info.features. */
enum te_feature {
	TE_FEATURE_FP8_CONVERT = 1, /* conversion instructions of FP8; software otherwise */
	TE_FEATURE_FP8_MMA = 2,	    /* FP8 tensor cores */
	TE_FEATURE_CLUSTERS = 4,    /* clusters of thread blocks */
	TE_FEATURE_PDL = 8,	    /* programmatic dependent launch (PDL) edges */
	TE_FEATURE_TMA = 16,	    /* tensor memory accelerator */
	TE_FEATURE_WGMMA = 32,	    /* warpgroup matrix instructions */
	TE_FEATURE_MULTICAST = 64,  /* multicast memory between GPUs */
	TE_FEATURE_MEM_OPS = 128    /* batch memory operations on streams */
};

struct te_device_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	char name[128];
	char backend[16];
	int32_t index;
	int32_t usable;		/* 1, or 0 with the reason below */
	char reason[256];
	int32_t cc_major;	/* compute capability; 0 on host */
	int32_t cc_minor;
	int32_t nprocs;		/* multiprocessors; host: TE_HOST_THREADS, or usable CPU cores */
	int32_t clock_mhz;	/* 0 where unknown */
	uint64_t mem_total_nbytes;
	uint64_t mem_free_nbytes; /* 0 where unknown: no context can be created on the GPU */
	uint64_t l2_nbytes;
	double peak_fp8_flops;	/* dense datasheet rates per second; 0 where unknown */
	double peak_bf16_flops;
	double peak_fp32_flops;
	double peak_bandwidth;	/* bytes per second; 0 where unknown */
	char pci_address[24];	/* as "0000:1a:00.0"; "" on host */
	int32_t numa_node;	/* nearest to the device; -1 where unknown, as on host */
	uint64_t block_smem_nbytes; /* shared memory that a thread block may have; 0 on host */
	uint32_t features;	    /* TE_FEATURE_*; 0 on host */
	int32_t kernels_cc; /* compute capability of the kernels: 90 is 9.0; 0: none, or host */
};
#define TE_DEVICE_INFO_INIT                                                                        \
	{                                                                                          \
		sizeof(struct te_device_info), { 0 }, { 0 }, 0, 0, { 0 }, 0, 0, 0, 0, 0, 0, 0, 0,  \
			0, 0, 0, { 0 }, 0, 0, 0, 0                                                 \
	}

/* The implementation of one task on a device, as te_info(1) prints it. */
struct te_variant_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	char task[48];	  /* such as "FP8 GEMM" */
	char variant[32]; /* such as "cublaslt"; "none": the task fails there */
	char reason[176]; /* why the device uses this variant */
};
#define TE_VARIANT_INFO_INIT { sizeof(struct te_variant_info), { 0 }, { 0 }, { 0 } }

struct te_mem_info {
	size_t size;		     /* set by the INIT macro; lets the struct grow */
	uint64_t used_nbytes;	     /* device memory that this context has allocated now */
	uint64_t peak_nbytes;	     /* the largest used_nbytes so far */
	uint64_t nallocs;	     /* allocations so far: running a plan makes none */
	uint64_t pinned_nbytes;	     /* pinned host memory allocated now */
	/* free and total memory of the device, which may have other users; with a limit, the unused
	 * part of the limit and the limit */
	uint64_t device_free_nbytes;
	uint64_t device_total_nbytes;
	/* used_nbytes as the backend's allocator counts it: rounded up, and with workspaces */
	uint64_t measured_nbytes;
	/* GEMM autotuning temporarily adds a copy of D and one workspace */
	uint64_t measured_peak_nbytes;
	/* included in measured: 32 MiB per stream or recording that runs GEMMs on a GPU */
	uint64_t workspace_nbytes;
};
#define TE_MEM_INFO_INIT { sizeof(struct te_mem_info), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_backend_count, te_backend_info - the backends of this build, present or absent
 * te_device_info - a device by backend name and index, without creating a context
 * @index:    number of the backend, or of the device within its backend, from 0
 * @ret_info: initialised by TE_BACKEND_INFO_INIT or TE_DEVICE_INFO_INIT
 * @backend:  name of the backend, "host" or "cuda"
 *
 * If the process has no context on a GPU, te_device_info() creates one to query the free memory and
 * destroys it, which is slow.
 *
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL (no such backend or index, ret_info is not initialised).
 */
TE_EXPORT int te_backend_count(void);
TE_EXPORT int te_backend_info(int index, struct te_backend_info *ret_info);
TE_EXPORT int te_device_info(const char *backend, int index, struct te_device_info *ret_info);

/**
 * te_variant_count, te_variant_info - how a device does the tasks that differ between GPUs
 * @device:   from te_device_info()
 * @index:    number of the task, below te_variant_count()
 * @ret_info: initialised by TE_VARIANT_INFO_INIT
 *
 * The answer depends on the features of the device and on TE_ATTENTION and TE_GEMM_PROVIDER.
 *
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL (device is NULL or not initialised, no such index, ret_info is not initialised).
 */
TE_EXPORT int te_variant_count(void);
TE_EXPORT int te_variant_info(const struct te_device_info *device, int index,
			      struct te_variant_info *ret_info);

/**
 * te_ctx_create - open a device
 * @opts:    NULL for the defaults
 * @ret_ctx: the context, with one reference
 *
 * "auto" chooses cuda if a usable GPU is present, else host.
 * In a child forked afterwards, functions that would use the device return -TE_ESTATE.
 * No function of the library changes the CUcontext that is current to the calling thread.
 * Thread: any. A context may be used by many threads; each stream by one at a time.  Since: 0.1
 * Errors: -EINVAL (also a CUcontext of another device, or an invalid TE_ variable in the
 * environment), -EOPNOTSUPP (a CUcontext for the host backend), -ENOMEM, -ENODEV (backend or device
 * absent; the error message has the reason), -TE_EDEVICE (a GPU that this build has no kernels
 * for), -TE_EKERNEL (built without nvcc), -TE_ECUDA.
 */
TE_EXPORT int te_ctx_create(const struct te_ctx_opts *opts, struct te_ctx **ret_ctx);
TE_EXPORT struct te_ctx *te_ctx_ref(struct te_ctx *ctx);
TE_EXPORT struct te_ctx *te_ctx_unref(struct te_ctx *ctx);

TE_EXPORT const char *te_ctx_backend(const struct te_ctx *ctx);
/* ret_info must be initialised by TE_DEVICE_INFO_INIT or TE_MEM_INFO_INIT, or -EINVAL */
TE_EXPORT int te_ctx_device_info(const struct te_ctx *ctx, struct te_device_info *ret_info);
TE_EXPORT int te_ctx_mem_info(const struct te_ctx *ctx, struct te_mem_info *ret_info);

/* the context's default stream; valid as long as the context; do not unref it */
TE_EXPORT struct te_stream *te_ctx_stream(struct te_ctx *ctx);
/* wait for every stream of the context; returns the first asynchronous failure */
TE_EXPORT int te_ctx_sync(struct te_ctx *ctx);

TE_END_DECLS

#endif
