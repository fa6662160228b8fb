/*
 * private.h - functions of libtecore that libtegraph and libtecomm of the same
 * version may call: error messages, logs, allocation, faults. Not installed.
 *
 * A file may define its log category before the first include:
 *	#define TE_LOG_CATEGORY "core/quant"
 */
#ifndef TE_PRIVATE_H
#define TE_PRIVATE_H

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <te/dtype.h>
#include <te/errno.h>
#include <te/export.h>
#include <te/log.h>

#ifndef TE_LOG_CATEGORY
#define TE_LOG_CATEGORY "core"
#endif

/*
 * Each macro records the error message for the calling thread, logs it at level debug and
 * returns code. Use it once, where the code is decided; callers return the code unchanged:
 *	return te__fail(-TE_ESHAPE, "te_gemm: a is [%d,%d], b [%d,%d]", ...);
 */
#define te__fail(code, ...) te__fail_at(TE_LOG_CATEGORY, (code), __VA_ARGS__)
/* what: the function or the object that allocates; returns -ENOMEM */
#define te__no_memory(what) te__fail(-ENOMEM, "%s: no memory", (what))
/* returns -TE_ECUDA; appends the number of the CUresult to the message */
#define te__fail_cuda(curesult, ...) \
	te__fail_cuda_at(TE_LOG_CATEGORY, (curesult), __VA_ARGS__)
/* returns code; status is an ibv_wc_status */
#define te__fail_verbs(code, status, ...) \
	te__fail_verbs_at(TE_LOG_CATEGORY, (code), (status), __VA_ARGS__)

TE_EXPORT int te__fail_at(const char *category, int code, const char *fmt, ...)
	TE_PRINTF(3, 4);
int te__fail_cuda_at(const char *category, int curesult, const char *fmt, ...) TE_PRINTF(3, 4);
TE_EXPORT int te__fail_verbs_at(const char *category, int code, int status,
				const char *fmt, ...) TE_PRINTF(4, 5);

/*
 * Errors of callbacks: call te__nfails() before a callback, and te__callback_failed() if it returns
 * a negative code r. The latter returns r, and records a message that names the callback unless the
 * callback recorded one.
 */
TE_EXPORT uint64_t te__nfails(void); /* failures of the thread so far */
TE_EXPORT int te__callback_failed(uint64_t nfails, int r, const char *fmt, ...) TE_PRINTF(3, 4);

/* arguments are not evaluated if the message is filtered out */
#define te__log(level, ...)                                                  \
	do {                                                                 \
		if (te__log_on((level), TE_LOG_CATEGORY))                    \
			te__log_at((level), TE_LOG_CATEGORY, __VA_ARGS__);   \
	} while (0)
#define te__log_error(...) te__log(TE_LOG_ERROR, __VA_ARGS__)
#define te__log_warn(...) te__log(TE_LOG_WARN, __VA_ARGS__)
#define te__log_info(...) te__log(TE_LOG_INFO, __VA_ARGS__)
#define te__log_debug(...) te__log(TE_LOG_DEBUG, __VA_ARGS__)

TE_EXPORT int te__log_on(enum te_log_level level, const char *category);
TE_EXPORT void te__log_at(enum te_log_level level, const char *category,
			  const char *fmt, ...) TE_PRINTF(3, 4);

/*
 * All host memory of the libraries is allocated by these functions, so that tests can
 * make the nth allocation fail and count leaks. It is released by te__free(), which
 * accepts NULL.
 */
TE_EXPORT void *te__malloc(size_t nbytes) __attribute__((malloc));
TE_EXPORT void *te__calloc(size_t n, size_t nbytes) __attribute__((malloc));
TE_EXPORT void *te__realloc(void *p, size_t nbytes);
TE_EXPORT void *te__aligned_alloc(size_t align, size_t nbytes)
	__attribute__((malloc));
TE_EXPORT char *te__strdup(const char *s) __attribute__((malloc));
TE_EXPORT void te__free(void *p);
/* returns p, no longer counted: the caller of the library releases it with free(3) */
TE_EXPORT void *te__give(void *p);
/* releases memory that libc allocated, as by open_memstream(3) */
TE_EXPORT void te__free_libc(void *p);
int64_t te__alloc_live(void); /* allocations not yet freed */
/* returns the output of print() as text, which the caller of the library releases with free(3).
 * Errors: codes of print(), -ENOMEM with a message that names fn */
typedef int te__print_fn(FILE *f, const void *arg);
TE_EXPORT int te__text(const char *fn, te__print_fn *print, const void *arg, char **ret_text);
/* a string in quotes, escaped; `, "key": ` and a time in microseconds with three decimals */
TE_EXPORT void te__json_string(FILE *f, const char *s);
TE_EXPORT void te__json_us(FILE *f, const char *key, double us);

/*
 * Structs of the API begin with their size: they are shorter in a program compiled with an older
 * header, and longer with a newer one. `name` is the name of the struct, without "struct".
 *
 * te__sized_in: dst holds the INIT macro's values, and gets the members that src has. If src is
 * longer, its other bytes must be 0. Returns -EINVAL otherwise, or if src is NULL or its size
 * absurd.
 * te__sized_check: checks the size of a struct that te__sized_out will write. te__sized_out: writes
 * the members that dst has; members that this library does not know become 0.
 */
#define te__sized_in(fn, name, src, dst) \
	te__sized_in_at((fn), #name, TE__SIZED(const struct name, (src)), \
			TE__SIZED(struct name, (dst)))
#define te__sized_check(fn, name, dst) \
	te__sized_check_at((fn), #name, TE__SIZED(const struct name, (dst)))
#define te__sized_out(name, src, dst) \
	te__sized_out_at(TE__SIZED(const struct name, (src)), TE__SIZED(struct name, (dst)))
#define TE__SIZED(type, ptr) (1 ? (ptr) : (type *)NULL)
TE_EXPORT int te__sized_in_at(const char *fn, const char *type, const void *src, void *dst);
TE_EXPORT int te__sized_check_at(const char *fn, const char *type, const void *sized);
TE_EXPORT void te__sized_out_at(const void *src, void *dst);

/* the environment variables of all libraries: TE_PARAM_LOG and so on, one a row of params.def */
enum te__param {
#define TE_PARAM(name, type, dflt, unit, category, text) TE_PARAM_##name,
#include "libtecore/base/params.def"
#undef TE_PARAM
	TE_PARAM_END
};

/* each asserts that the parameter has that type */
TE_EXPORT int te__param_bool(enum te__param id);
TE_EXPORT int64_t te__param_int(enum te__param id);
TE_EXPORT size_t te__param_size(enum te__param id);
TE_EXPORT const char *te__param_str(enum te__param id);
TE_EXPORT int te__param_enum(enum te__param id); /* index into the choices, from 0 */
/* a variable of launchers or other libraries, or NULL */
TE_EXPORT const char *te__env(const char *name);

/*
 * Creates a thread of the libraries, with a stack of at least 2 MiB, a name of at most 15 bytes,
 * and all signals blocked. ret_thread NULL: detached. Returns an error number. It has no fault
 * point, because some callers continue without the thread.
 */
TE_EXPORT int te__thread_create(pthread_t *ret_thread, const char *name, void *(*work)(void *arg),
				void *arg);

struct te_ctx;
struct te_stream;
/* returns 0, or -EINVAL if the stream is NULL or belongs to another context */
TE_EXPORT int te__stream_check(const char *fn, const struct te_stream *stream,
			       const struct te_ctx *ctx);
/* 0; -EBUSY while the stream takes part in a capture, with an error message that names fn, or
 * without a message if fn is NULL */
TE_EXPORT int te__stream_not_capturing(const struct te_stream *stream, const char *fn);
/*
 * Makes later work of the stream wait for the work queued on the other stream so far. If the other
 * stream is capturing, the stream waits for the work queued before the capture, and does not join
 * the capture. Both belong to one context. -EBUSY while the stream takes part in any capture, or
 * the other in a capture begun through the driver API.
 */
TE_EXPORT int te__stream_follow(struct te_stream *stream, struct te_stream *other);

/* 1: both streams take part in one capture, or neither in any; else 0 */
TE_EXPORT int te__stream_same_capture(const struct te_stream *a, const struct te_stream *b);

/* memory that calls in a capture write, as far as known */
struct te__writes {
	size_t n, cap;
	struct te__write {
		uintptr_t begin, end;
	} * v;	     /* [n], released by te__free */
	int unknown; /* 1: the capture has host calls, which may write anything */
};
/*
 * Adds the writes of later calls in the capture begun on this stream, on all its streams, to
 * writes; NULL stops this. A call fails if the list cannot grow. -TE_ESTATE: no capture was begun
 * on the stream.
 */
TE_EXPORT int te__capture_writes(struct te_stream *stream, struct te__writes *writes);

/*
 * A window is a range of reserved addresses for nslots slots of one size, a multiple of the unit.
 * The window creates the memory of slot `own` on the context's device; each other slot is mapped
 * from the file descriptor of another process's memory. The caller closes descriptors.
 * te__window_destroy waits for the work of the context, and takes NULL. Any thread, one at a time.
 */
struct te_ctx;
struct te__window;
TE_EXPORT int te__window_unit(struct te_ctx *ctx, size_t *ret_nbytes); /* a power of two */
TE_EXPORT int te__window_create(struct te_ctx *ctx, int nslots, int own, size_t slot_nbytes,
				struct te__window **ret_window);
TE_EXPORT struct te__window *te__window_destroy(struct te__window *window);
/* te__window_destroy() if other processes may still write by multicast addresses: keeps everything
 * that is bound and mapped until the process ends. Returns NULL */
TE_EXPORT struct te__window *te__window_abandon(struct te__window *window);
TE_EXPORT int te__window_export(struct te__window *window, int *ret_fd);
/* -EINVAL or -TE_ECUDA if fd is not memory of the slot's size on the same kind of device */
TE_EXPORT int te__window_import(struct te__window *window, int slot, int fd);
/*
 * Fabric windows, for GPUs of several nodes in one NVLink domain: a handle of 64 bytes, which any
 * channel can carry, takes the place of the descriptor. te__fabric_probe returns 0 and the domain,
 * or -EOPNOTSUPP with a message why there are no such handles.
 */
struct te__fabric_domain {
	unsigned char id[64];
};
struct te__fabric_handle {
	unsigned char bytes[64];
};
TE_EXPORT int te__fabric_probe(struct te_ctx *ctx, struct te__fabric_domain *ret_domain);
TE_EXPORT int te__window_fabric_create(struct te_ctx *ctx, int nslots, int own, size_t slot_nbytes,
				       struct te__window **ret_window);
TE_EXPORT int te__window_fabric_export(struct te__window *window,
				       struct te__fabric_handle *ret_handle);
TE_EXPORT int te__window_fabric_import(struct te__window *window, int slot,
				       const struct te__fabric_handle *handle);
TE_EXPORT void *te__window_slot(const struct te__window *window, int slot); /* address */
/*
 * Multicast memory of a window: slot_nbytes of addresses at which instructions store to the slots
 * of all nslots processes, or reduce from all of them. One process creates it and passes the
 * descriptor on, and the others import it. Processes bind after all have imported, map after all
 * have bound, and use it after all have mapped. -EOPNOTSUPP unless te__multicast_check() returns 0.
 */
TE_EXPORT int te__window_multicast_unit(struct te_ctx *ctx, int nslots, size_t slot_nbytes,
					size_t *ret_nbytes); /* a power of two */
TE_EXPORT int te__window_multicast_create(struct te__window *window, int *ret_fd);
TE_EXPORT int te__window_multicast_import(struct te__window *window, int fd);
TE_EXPORT int te__window_multicast_bind(struct te__window *window);
TE_EXPORT int te__window_multicast_map(struct te__window *window);
TE_EXPORT void *te__window_multicast(const struct te__window *window); /* NULL: not mapped */
/* 0, or -EOPNOTSUPP with the reason: TE_COMM_NVLS is off, or the environment refuses multicast */
int te__multicast_check(void);
/*
 * Counts of indices outside their range since the last call: targets of cross-entropy and tokens
 * of embeddings, in passes that have ended, on all streams of the context.
 */
struct te__outside {
	uint32_t ntargets, ntokens;
};
TE_EXPORT struct te__outside te__outside_take(struct te_ctx *ctx);
/* register host pages, which the device reads and writes at *ret_ptr */
TE_EXPORT int te__page_register(struct te_ctx *ctx, void *page, size_t nbytes, void **ret_ptr);
TE_EXPORT void te__page_unregister(struct te_ctx *ctx, void *page);

/*
 * Host memory that processes share: a memfd of zeros, sealed against changes of its size, because a
 * file that shrinks would end the processes that map it by SIGBUS. what: its name in messages.
 */
TE_EXPORT int te__sealed_create(const char *what, size_t nbytes, int *ret_fd);
/* -EINVAL unless fd, which may be any file, cannot shrink and has nbytes or more */
int te__sealed_check(const char *what, int fd, size_t nbytes);
/* te__sealed_check(), then mmap(2); *ret is unmapped by munmap(2) */
TE_EXPORT int te__sealed_map(const char *what, int fd, size_t nbytes, void **ret);

/*
 * Access of network adapters to memory of a window. te__adapter_export: *ret_fd is a dma-buf of a
 * part of the window, in whole pages, which the caller closes; -1: no dma-buf, register the memory
 * by its address (host memory, or with module nvidia-peermem). -EOPNOTSUPP: adapters cannot access
 * it. te__adapter_flush: makes adapter writes that precede this operation visible to later work on
 * the stream.
 */
TE_EXPORT int te__adapter_export(struct te_ctx *ctx, void *ptr, size_t nbytes, int *ret_fd);
TE_EXPORT int te__adapter_flush(struct te_stream *stream);
/*
 * Memory for objects, which streams may use immediately; -EBUSY if the calling thread is capturing
 * the context's stream. te__mem_put cannot fail and takes NULL, for destructors: the memory is
 * freed after the work queued on the context's stream or, if that is capturing, after the capture.
 */
TE_EXPORT int te__mem_get(struct te_ctx *ctx, size_t nbytes, void **ret_ptr);
TE_EXPORT void te__mem_put(struct te_ctx *ctx, void *ptr);
/* fill memory; returns when done, and does not wait for other work. Any thread */
TE_EXPORT int te__ctx_fill_u32(struct te_ctx *ctx, void *dst, uint32_t value, size_t nbytes);
/* loads all kernels, if another context of the process has the same GPU: see entries.def */
TE_EXPORT int te__ctx_load_shared(struct te_ctx *ctx);
/* queue kernel TE_K_<ID> of kernels/kernels.def with its struct on a stream */
TE_EXPORT int te__launch_k(struct te_stream *stream, int id, const void *args, size_t nbytes);
#define TE__LAUNCH(stream, ID, argsp) te__launch_k((stream), TE_K_##ID, (argsp), sizeof(*(argsp)))
/* wait for the work of all streams; -EBUSY if this thread is capturing one of them, naming fn */
TE_EXPORT int te__ctx_wait(struct te_ctx *ctx, const char *fn);
/* te__ctx_wait() for destructors: allowed while this thread is capturing; -EBUSY for a capture
 * begun through the driver API */
TE_EXPORT int te__ctx_drain(struct te_ctx *ctx, const char *fn);
/* 1: this process was forked after the context was created; threads and device are the parent's */
TE_EXPORT int te__ctx_forked(const struct te_ctx *ctx);

/* make the CUcontext current to the thread until te__ctx_leave(); -EOPNOTSUPP on host */
TE_EXPORT int te__ctx_enter(struct te_ctx *ctx);
TE_EXPORT void te__ctx_leave(struct te_ctx *ctx);

struct te_tensor;
/* te_tensor_wrap() with one copy; release(arg) is called once, with the last reference */
TE_EXPORT int te__tensor_wrap_owned(struct te_ctx *ctx, enum te_dtype dtype, int ndim,
				    const int64_t *shape, void *data, void (*release)(void *arg),
				    void *arg, struct te_tensor **ret_t);

struct te_op;
struct te_op_ops;
/* te_op_create() for an op of the libraries */
TE_EXPORT int te__op_create(const struct te_op_ops *ops, const void *attrs, const char *name,
			    struct te_op **ret_op);

struct te_fusion;
struct te_seq;
/* te_seq_add_fusion() for a fusion of the libraries: matches no step of a user-defined op */
TE_EXPORT int te__seq_add_fusion(struct te_seq *seq, const struct te_fusion *fusion);

struct te_spec;
TE_EXPORT struct te_spec te__spec_of(const struct te_tensor *t);
/* elements and bytes of a valid spec */
TE_EXPORT int64_t te__spec_nelems(const struct te_spec *s);
TE_EXPORT size_t te__spec_nbytes(const struct te_spec *s);
/* "[8,128,64] bf16" */
TE_EXPORT void te__spec_str(const struct te_spec *s, char *dst, size_t nbytes);

struct te_quant;
/* returns 1 if a cast reads its input again once the scale is known, so that no producer can cast
 * its result; else 0 */
TE_EXPORT int te__quantize_keeps_x(const struct te_quant *q);
/*
 * Runs a plan's cast step, with one scale, on this rank's part of a tensor: writes the codes of the
 * part, and scale_inv. join() queues an operation that turns *amax from the amax of the part into
 * the amax of the tensor; it is not called if no amax is computed.
 */
struct te_op_call;
struct te__quantize_part {
	const void *x; /* [rows, cols] of dtype */
	int64_t rows, cols;
	enum te_dtype dtype;
	void *codes; /* codes of the part; the copies of the tensor are not written */
	int (*join)(void *arg, struct te_stream *stream, float *amax);
	void *arg;
};
TE_EXPORT int te__plan_quantize_part(const struct te_op_call *quantize,
				     const struct te__quantize_part *part);

struct te_event;
struct te_recording;
/* 1: the recording has opaque nodes other than host calls; else 0 */
TE_EXPORT int te__recording_opaque(const struct te_recording *rec);
/* 1: launches of the recording record the event; else 0 */
TE_EXPORT int te__recording_records(const struct te_recording *rec, const struct te_event *event);
struct te_adamw;
struct te_plan;
struct te_seq;
/* set the scales of quantizers that have none yet, by running the passes several times; the random
 * state is unchanged. Waits for the device */
TE_EXPORT int te__seq_calibrate(struct te_seq *seq, struct te_stream *stream,
				int (*passes)(void *arg, struct te_stream *stream), void *arg,
				const char *fn);
/* the sequence that the optimizer updates */
TE_EXPORT const struct te_seq *te__adamw_seq(const struct te_adamw *opt);
/* 1: te_adamw_step() waits for files, and cannot be captured */
TE_EXPORT int te__adamw_waits(const struct te_adamw *opt);
/* the sequence whose random state the plan's forward uses, or NULL; the plan has the sequence's ops
 * from first to end - 1 */
TE_EXPORT const struct te_seq *te__plan_draws(const struct te_plan *plan, int *ret_first,
					      int *ret_end);
/* returns 1 for memory that a training step writes before it reads it, as long as masters do
 * not change: gradients, and copies of weights, whose versions are restored */
TE_EXPORT int te__seq_renews(const struct te_seq *seq, const void *ptr);
/* returns 1 if the plan adds to the gradient of the weight and has a TE_PLAN_EVENT_GRAD for it */
TE_EXPORT int te__plan_adds(const struct te_plan *plan, int weight);
/* te_seq_zero_grads() before passes of n plans of a sequence: gradients in host memory that the
 * passes add to are not written before the first of these passes, which adds to zeros */
TE_EXPORT int te__plans_zero_grads(struct te_plan *const *plan, int n, struct te_stream *stream);
/* claim a plan for one callable of one graph, because a plan that offloads values has pinned memory
 * for one forward pass at a time: -EBUSY if it is claimed already; claim 0 releases the claim */
TE_EXPORT int te__plan_claim(struct te_plan *plan, const char *name, int claim);
/* -EINVAL, naming fn, if a pattern of recompute, or of the te_offload's keep and move, matches no
 * value of the plans */
TE_EXPORT int te__plans_find_patterns(const char *fn, struct te_plan *const *plan, int nplans,
				      int32_t nrecompute, const char *const *recompute);
/* number of calls that have recorded the event, inside and outside captures */
TE_EXPORT uint64_t te__event_nrecords(struct te_event *event);

/* CLOCK_MONOTONIC */
static inline uint64_t te__now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * A library opened on first use. te__dl_open() fills table, a struct of function pointers, and
 * returns NULL, or the name of the library or of the first function that is not found, then and in
 * later calls. Any thread. The library is never closed: it may have threads and handlers.
 */
struct te__dl_sym {
	const char *name;
	size_t at; /* offset of the pointer in the table */
};
struct te__dl {
	const char *lib[3]; /* names, tried in order; unused ones are NULL */
	const struct te__dl_sym *sym;
	size_t nsyms;
	void *table;
	int opened; /* 1: the table is complete, or opening failed */
	const char *missing;
};
#define TE__DL(sym_, table_, ...)                                                 \
	{                                                                         \
		.lib = { __VA_ARGS__ }, .sym = (sym_),                            \
		.nsyms = sizeof(sym_) / sizeof((sym_)[0]), .table = (table_)      \
	}
TE_EXPORT const char *te__dl_open(struct te__dl *dl);

/*
 * Fault injection. Every allocation above and every driver call passes a fault
 * point; te__fault_set(n) makes the nth one after it fail, once; 0 disarms it.
 * te__fault_point() returns 1 if the caller must fail.
 */
void te__fault_set(uint64_t nth);
TE_EXPORT int te__fault_point(void);
int te__fault_fired(void); /* 1: the armed fault happened */

#endif
