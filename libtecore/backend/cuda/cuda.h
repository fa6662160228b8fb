/*
 * cuda.h - shared by the files of the cuda backend. A file calls functions of its own and of
 * earlier files only, in this order (t/meta/t0007-layers.t):
 *	driver		the functions of libcuda, found by dlopen
 *	features	what a GPU can do, asked once
 *	memory, event	of the device and of pinned memory; events
 *	capture		notes which work became which node, and keeps what nodes refer to
 *	module		the embedded kernels
 *	gemm_cache, cublaslt	GEMMs of cuBLASLt
 *	sm90		large GEMMs and attention of the library
 *	launch, work	kernels, by themselves or in batches; copies, fills, words
 *	user, edges, nodes, graph, exec		captured graphs, see graph.h
 *	nvml, share	memory that other processes map
 *	stream, device, cuda	streams, GPUs, and the table of all entries
 */
#ifndef TE__CUDA_INTERNAL_H
#define TE__CUDA_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/launch.h"
#include "libtecore/backend/backend.h"
#include "libtecore/backend/cuda/driver.h"
#include "libtecore/backend/devmem.h"
#include "libtecore/base/base.h"

struct te__cublaslt;

struct te__cuda_func {
	const char *name;
	_Atomic(void *) func; /* NULL: PTX that no launch has used */
	unsigned smem; /* with func: bytes of a block, to which a launch adds its own */
	const struct te__cuda_image *ptx; /* the PTX that has it, or NULL: machine code */
	const char *text; /* there */
	size_t text_nbytes;
};

/* What the driver reports of a GPU, and the level of its kernels. */
struct te__cuda_features {
	int major, minor; /* compute capability */
	struct te__target target; /* arch 0: none of the kernels of this build run there */
	int ptx; /* 1: the driver compiles the level's PTX, 0: there is machine code */
	int nprocs;
	int clock_khz, mem_clock_khz, bus_bits, l2_nbytes;
};

struct te__cuda_dev {
	int index;
	int dev; /* CUdevice */
	int cc; /* compute capability: 89 is 8.9 */
	char name[128];
	size_t total_nbytes; /* bytes of device memory */
	void *ctx;
	int borrowed; /* 1: ctx is the program's; 0: the primary context, retained */
	void *pool; /* NULL: the program allocates */
	struct te__devmem mem;
	void *stream; /* for the backend's own work; never captures */

	struct te__cuda_images *images;	   /* not loaded yet, or NULL */
	struct te__cuda_kernels *kernels;  /* module.c */
	struct te__cuda_func *funcs;	   /* theirs, sorted by name */
	unsigned nfuncs;
	struct te__target target; /* features.c */
	int ptx; /* as in te__cuda_features */

	pthread_mutex_t lock;
	struct te__cuda_capture *captures; /* under lock: captures that have not ended */
	_Atomic uint32_t ncaptures;	   /* captures begun by te__cuda_capture_begin */
	pthread_mutex_t lt_lock;	   /* never taken under lock */
	struct te__cublaslt *lt;	   /* under lt_lock: NULL until the first GEMM */
	_Atomic uint64_t workspace_nbytes; /* allocated for GEMMs, not by callers */
	_Atomic uint64_t shared_nbytes, shared_peak_nbytes; /* by share_create(), not in the pool */
	/* under lock: streams destroyed during such captures; their workspaces remain */
	struct te__cuda_stream *left;
};

struct te__cuda_stream {
	struct te__cuda_dev *dev;
	struct te__cuda_stream *next; /* in dev->left */
	void *stream;
	int borrowed; /* 1: the program destroys it */
	int shown;    /* 1: the program has its handle, and may capture it by the driver API */
	struct te__cuda_graph *graph; /* graph of the present capture begun here; or NULL */
	void *workspace;	      /* for GEMMs outside captures; or NULL */
	void *given;		      /* the caller's workspace, for all GEMMs; or NULL */
	size_t given_at;	      /* offset of the next chunk of it */
	struct te__cuda_mark *access; /* mark of te__cuda_capture_access, until its end; or NULL */
	int holds; /* launches wait for te__cuda_launch_held */
	struct te__cuda_batch *batch; /* or NULL */
};

/*
 * Evaluates an int expression with the device's context current, so that any
 * thread may call. Afterwards the previous context is current again.
 */
#define TE__CUDA_IN(d, expr)                         \
	({                                           \
		int in_r_ = te__cuda_push(d);       \
		if (!in_r_) {                        \
			in_r_ = (expr);              \
			te__cu.cuCtxPopCurrent(      \
				&(void *){ NULL });  \
		}                                    \
		in_r_;                               \
	})

/*
 * TE__CUDA_IN for calls that allocate, wait or load: if this thread captures on another stream, the
 * driver would otherwise refuse them or invalidate that capture.
 */
#define TE__CUDA_IN_RELAXED(d, expr)                                   \
	TE__CUDA_IN(d, ({                                              \
			    int mode_ = TE__CU_CAPTURE_MODE_RELAXED;   \
			    int relaxed_r_;                            \
			    te__cu.cuThreadExchangeStreamCaptureMode(  \
				    &mode_);                           \
			    relaxed_r_ = (expr);                       \
			    te__cu.cuThreadExchangeStreamCaptureMode(  \
				    &mode_);                           \
			    relaxed_r_;                                \
		    }))

static inline int te__cuda_push(struct te__cuda_dev *d)
{
	return te__cuda_check(te__cu.cuCtxPushCurrent(d->ctx), "cuCtxPushCurrent");
}

/* the default stream, which cannot be captured */
static inline int te__cuda_is_legacy(const struct te__cuda_stream *s)
{
	return !s->stream || (uintptr_t)s->stream == TE__CU_STREAM_LEGACY;
}

/* 0 or 1, or an error; the context must be current */
static inline int te__cuda_capturing(struct te__cuda_stream *s)
{
	int status;
	int r = TE__CU_CALL(cuStreamIsCapturing, s->stream, &status);

	return r ? r : status != TE__CU_CAPTURE_STATUS_NONE;
}

/* -EBUSY, checked first: the driver would invalidate the capture */
static inline int te__cuda_not_capturing(struct te__cuda_stream *s, const char *what)
{
	int r = te__cuda_capturing(s);

	return r > 0 ? te__fail(-EBUSY, "%s: the stream is capturing", what) : r;
}

/* the entries of the backend, by topic */
#define TE__ENTRY(name, args) int te__cuda_##name args;
#define TE__ENTRY_VOID(name, args) void te__cuda_##name args;
#define TE__ENTRY_OWN(type, name, args) type te__cuda_##name args;
#include "libtecore/backend/entries.def"
#undef TE__ENTRY_OWN
#undef TE__ENTRY_VOID
#undef TE__ENTRY

/*
 * memory.c: device memory in the order of a CUstream that is not capturing; the context must be
 * current. try: without fault point and error message; 1, or 0 if there is not enough. put: a
 * CUresult.
 */
int te__cuda_mem_get(struct te__cuda_dev *d, size_t nbytes, void *native, void **ret_ptr);
int te__cuda_mem_try(struct te__cuda_dev *d, size_t nbytes, void *native, void **ret_ptr);
int te__cuda_mem_put(struct te__cuda_dev *d, void *ptr, size_t nbytes, void *native);
/* -ENOMEM, with the sizes */
int te__cuda_no_memory(struct te__cuda_dev *d, size_t nbytes);

/* event.c */
struct te__cuda_event {
	_Atomic uint32_t refs; /* the creator, and captures with an external record of it */
	struct te__cuda_dev *dev;
	void *event;
};
void te__cuda_event_unref(struct te__cuda_event *e); /* the context must be current */

/*
 * capture.c: notes work that was just queued on the stream together with the node that it became,
 * in the stream's capture; does nothing outside captures. before: for a GEMM, which may become
 * several nodes, the result of te__cuda_note_before(), called before it was queued. The context
 * must be current.
 */
int te__cuda_note(struct te__cuda_stream *s, const struct te__gnode *what, void *before);
int te__cuda_note_before(struct te__cuda_stream *s, void **ret_node);
/* release the state of captures that the program began, whose ends are not reported */
void te__cuda_captures_drop(struct te__cuda_dev *d);
/*
 * Workspace for GEMMs queued on the stream: one per stream, and one per stream and capture.
 * The latter belongs to the recording, because a recording may run while its stream does other
 * work. The context must be current.
 */
#define TE__CUDA_WORKSPACE_NBYTES ((size_t)32 << 20)
int te__cuda_workspace(struct te__cuda_stream *s, size_t nbytes, void **ret_ptr);
void te__cuda_workspace_free(struct te__cuda_dev *d, void *ptr, void *stream);

/*
 * module.c: loads the embedded machine code of the level, or lists the kernels of its PTX; the
 * context must be current
 */
int te__cuda_kernels_get(struct te__cuda_dev *d);
/* before: starts to unpack them, if another te_ctx has not; any context may be current */
int te__cuda_kernels_begin(struct te__cuda_dev *d);
void te__cuda_kernels_put(struct te__cuda_dev *d);
/*
 * The device function of a launch; if grid[0] is 0, there is nothing to launch. If it is PTX, the
 * first call compiles it, also during a capture. Any context may be current.
 */
struct te__geometry;
int te__cuda_func_find(struct te__cuda_dev *d, const struct te__launch *l,
		       struct te__geometry *ret_kernel, void **ret_func);
/* the device function of this name, or -TE_EKERNEL */
int te__cuda_func_named(struct te__cuda_dev *d, const char *name, void **ret_func);
/* launch a kernel that does not become a node; the context must be current */
int te__cuda_launch_func(struct te__cuda_stream *s, const struct te__geometry *k, void *func,
			 const void *args);
/* launches a kernel that a capture records as *what; the context must be current */
int te__cuda_launch_as(struct te__cuda_stream *s, const struct te__launch *l,
		       const struct te__gnode *what);
/* the same as itself, in no batch; any context may be current */
int te__cuda_launch_now(struct te__cuda_stream *s, const struct te__launch *l);

/* cublaslt.c: the GEMM of te_k_gemm; the device must be idle when it is closed */
/* the library that is not found, or NULL */
const char *te__cublaslt_missing(void);
int te__cublaslt_gemm(struct te__cuda_stream *s, const struct te_k_gemm *g);
/* the same for MXFP8 and NVFP4 by block-scaled modes; 1: by cuBLASLt not, nothing was queued */
int te__cublaslt_mx(struct te__cuda_stream *s, const struct te_k_gemm *g);
void te__cublaslt_close(struct te__cuda_dev *d);
/* does gemm/block.cu compute GEMMs with scales of 1x128 and 128x128 blocks? Else cuBLASLt */
int te__cuda_blocks_by_mma(const struct te__cuda_dev *d);
/* has cuBLASLt block-scaled modes for this GPU? Not for every shape */
int te__cuda_mx_by_cublaslt(const struct te__cuda_dev *d);

/*
 * sm90.c: the same by a kernel of sm90.cu. 1: none computes it, nothing is queued, and the reason
 * is logged.
 */
int te__sm90_gemm(struct te__cuda_stream *s, const struct te_k_gemm *g);
/* the same for TE_K_ATTN_FWD, and for TE_K_ATTN_BWD_DKV and _DQ after TE_K_ATTN_BWD_PRE */
int te__sm90_attn(struct te__cuda_stream *s, const struct te__launch *l);

/*
 * features.c: the level of the kernels that run on compute capability cc, such as 89 for 8.9, among
 * those compiled to machine code and to PTX, or 0. Lists end with 0.
 */
int te__cuda_arch(const short *cubins, const short *ptx, int cc);
/* a test's lists in the place of the build's */
void te__cuda_levels_fake(const short *cubins, const short *ptx);
/* dev: a CUdevice. *ret_why: "", or why no kernels run there, which is no error */
int te__cuda_features(int dev, struct te__cuda_features *ret, char *ret_why, size_t nbytes);

/* launch.c: takes NULL; the context must be current */
void te__cuda_batch_free(struct te__cuda_batch *b);

/* work.c: memset on a CUstream: n values of elem bytes, 1 or 4; the context must be current */
int te__cuda_memset(void *native, void *dst, uint32_t value, int32_t elem, size_t n);

#endif
