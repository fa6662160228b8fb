/*
 * private.h - functions of libtecore that libtegraph and libtecomm of the same
 * version may call: error messages, logs, allocation, faults. Not installed.
 *
 * A file may define its log category before the first include:
 *	#define TE_LOG_CATEGORY "core/quant"
 */
#ifndef TE_PRIVATE_H
#define TE_PRIVATE_H

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
 * Each records the error message for the calling thread, logs it at level debug and
 * returns code. It is called once, where the code is decided:
 *	return te__fail(-TE_ESHAPE, "te_gemm: a is [%d,%d], b [%d,%d]", ...);
 * Callers of that function return the code unchanged.
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
TE_EXPORT int te__fail_cuda_at(const char *category, int curesult,
			       const char *fmt, ...) TE_PRINTF(3, 4);
TE_EXPORT int te__fail_verbs_at(const char *category, int code, int status,
				const char *fmt, ...) TE_PRINTF(4, 5);

/*
 * Around a callback: te__nfails() before it, and for a negative code r te__callback_failed(), which
 * returns r. It records a message that names the callback, unless there has been one since.
 */
TE_EXPORT uint64_t te__nfails(void); /* of the thread */
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
#define te__log_trace(...) te__log(TE_LOG_TRACE, __VA_ARGS__)

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
TE_EXPORT int64_t te__alloc_live(void); /* allocations not yet freed */
/* the text that print() writes, which the caller of the library releases with free(3); or its
 * failure; -ENOMEM with a message that names fn */
typedef int te__print_fn(FILE *f, const void *arg);
TE_EXPORT int te__text(const char *fn, te__print_fn *print, const void *arg, char **ret_text);

/*
 * Structs of the API begin with their size: a program compiled with an older header has shorter
 * ones, with a newer header longer ones. `name` is the struct's, without "struct"; the pointers are
 * to it.
 *
 * te__sized_in: dst holds the INIT macro's values, and gets the members that src has. Where src is
 * longer, its other bytes must be 0. -EINVAL otherwise, or if src is NULL or its size absurd.
 * te__sized_check: the same for the size of a struct that is written later, by te__sized_out: the
 * members that dst has are written, those that this library does not know become 0.
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
TE_EXPORT double te__param_double(enum te__param id);
TE_EXPORT const char *te__param_str(enum te__param id);
TE_EXPORT int te__param_enum(enum te__param id); /* index into the choices, from 0 */
/* a variable of launchers or other libraries, or NULL */
TE_EXPORT const char *te__env(const char *name);

/*
 * Every thread of the libraries: with a stack of at least 2 MiB, whatever the default, a name of at
 * most 15 bytes, and all signals blocked. ret_thread NULL: detached. Returns an error number. It
 * has no fault point, because some callers go on without the thread.
 */
TE_EXPORT int te__thread_create(pthread_t *ret_thread, const char *name, void *(*work)(void *arg),
				void *arg);

struct te_ctx;
struct te_stream;
/* 0, or -EINVAL: the stream is NULL or of another context */
TE_EXPORT int te__stream_check(const char *fn, const struct te_stream *stream,
			       const struct te_ctx *ctx);
/* 0; -EBUSY while the stream takes part in a capture, with an error message that names fn, or
 * without a message if fn is NULL */
TE_EXPORT int te__stream_not_capturing(const struct te_stream *stream, const char *fn);
/*
 * Makes work that is queued on the stream later wait for the work queued on the other stream so
 * far. If the other stream is capturing, that is the work queued before the capture, and the
 * stream does not join the capture. Both belong to one context. -EBUSY while the stream takes part
 * in any capture, or the other in a capture begun through the driver API.
 */
TE_EXPORT int te__stream_follow(struct te_stream *stream, struct te_stream *other);

/* 1: both streams take part in one capture, or neither in any; else 0 */
TE_EXPORT int te__stream_same_capture(const struct te_stream *a, const struct te_stream *b);

/* the memory that calls in a capture write, as far as it is known */
struct te__writes {
	size_t n, cap;
	struct te__write {
		uintptr_t begin, end;
	} * v;	     /* released by te__free */
	int unknown; /* 1: there were host calls, which may write anything */
};
/*
 * Makes later calls on all streams of the capture that was begun on this stream add to writes; NULL
 * ends that. A call fails if the list cannot grow. -TE_ESTATE: no capture was begun on the stream.
 */
TE_EXPORT int te__capture_writes(struct te_stream *stream, struct te__writes *writes);

/*
 * A window: reserved addresses of nslots slots of one size, a multiple of the unit. The own slot is
 * memory that the window creates, on the context's device; each other slot is mapped when the file
 * descriptor of another process's memory arrives. The caller closes descriptors. te__window_destroy
 * waits for the work of the context, and takes NULL. Any thread, one at a time.
 */
struct te_ctx;
struct te__window;
TE_EXPORT int te__window_unit(struct te_ctx *ctx, size_t *ret_nbytes); /* a power of two */
TE_EXPORT int te__window_create(struct te_ctx *ctx, int nslots, int own, size_t slot_nbytes,
				struct te__window **ret_window);
TE_EXPORT struct te__window *te__window_destroy(struct te__window *window);
/* instead of that, where other processes may still write to it by multicast addresses: all that it
 * has bound and mapped stays so until the process ends. Returns NULL */
TE_EXPORT struct te__window *te__window_abandon(struct te__window *window);
TE_EXPORT int te__window_export(struct te__window *window, int *ret_fd);
/* -EINVAL or -TE_ECUDA if fd is not memory of the slot's size, of the same kind of device */
TE_EXPORT int te__window_import(struct te__window *window, int slot, int fd);
/*
 * The same for GPUs of several nodes in one NVLink domain: 64 bytes, which any channel carries,
 * take the place of the descriptor. probe: 0 and the domain; -EOPNOTSUPP and why there are no such
 * handles.
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
TE_EXPORT void *te__window_slot(const struct te__window *window, int slot); /* its address */
/*
 * Multicast memory of a window: addresses of slot_nbytes that are those of the slots of all nslots
 * processes at once, for instructions that store to all of them or reduce from all of them. One
 * process creates it and passes the descriptor on, and the others import it. Processes bind after
 * all have done so, map after all have bound, and use it after all have mapped. -EOPNOTSUPP unless
 * te__multicast_check() returns 0.
 */
TE_EXPORT int te__window_multicast_unit(struct te_ctx *ctx, int nslots, size_t slot_nbytes,
					size_t *ret_nbytes); /* a power of two */
TE_EXPORT int te__window_multicast_create(struct te__window *window, int *ret_fd);
TE_EXPORT int te__window_multicast_import(struct te__window *window, int fd);
TE_EXPORT int te__window_multicast_bind(struct te__window *window);
TE_EXPORT int te__window_multicast_map(struct te__window *window);
TE_EXPORT void *te__window_multicast(const struct te__window *window); /* NULL: not mapped */
/* 0, or -EOPNOTSUPP with the reason: TE_COMM_NVLS is off, or the environment refuses multicast */
TE_EXPORT int te__multicast_check(void);
/*
 * Indices outside of their range, in passes of all streams of the context that have ended, since
 * the last call: targets of cross-entropy, and tokens of embeddings
 */
struct te__outside {
	uint32_t ntargets, ntokens;
};
TE_EXPORT struct te__outside te__outside_take(struct te_ctx *ctx);
/* pages of the process, which the device reads and writes at *ret_ptr */
TE_EXPORT int te__page_register(struct te_ctx *ctx, void *page, size_t nbytes, void **ret_ptr);
TE_EXPORT void te__page_unregister(struct te_ctx *ctx, void *page);
/*
 * For network adapters that access memory of a window: *ret_fd is a dma-buf of part of it, whole
 * pages, which the caller closes; or -1: there is none, and it is registered by its address, which
 * is memory of the process, or needs the module nvidia-peermem. -EOPNOTSUPP: they cannot.
 * flush: later work of the stream sees what they have written before the device comes to it.
 */
TE_EXPORT int te__adapter_export(struct te_ctx *ctx, void *ptr, size_t nbytes, int *ret_fd);
TE_EXPORT int te__adapter_flush(struct te_stream *stream);
/*
 * Memory for objects, which every stream may use at once; -EBUSY if the calling thread is capturing
 * the context's stream. te__mem_put cannot fail, so destructors call it: the memory is freed after
 * the work queued on the context's stream or, while that is capturing, after the capture. NULL.
 */
TE_EXPORT int te__mem_get(struct te_ctx *ctx, size_t nbytes, void **ret_ptr);
TE_EXPORT void te__mem_put(struct te_ctx *ctx, void *ptr);
/* any thread; returns when it is done, and does not wait for other work */
TE_EXPORT int te__ctx_fill_u32(struct te_ctx *ctx, void *dst, uint32_t value, size_t nbytes);
/* queue kernel TE_K_<ID> of kernels/kernels.def with its struct on a stream */
TE_EXPORT int te__launch_k(struct te_stream *stream, int id, const void *args, size_t nbytes);
#define TE__LAUNCH(stream, ID, argsp) te__launch_k((stream), TE_K_##ID, (argsp), sizeof(*(argsp)))
/* wait for the work of all streams; -EBUSY if this thread is capturing one of them, naming fn */
TE_EXPORT int te__ctx_wait(struct te_ctx *ctx, const char *fn);
/* the same for destructors: while this thread is capturing, too. -EBUSY for a capture that was
 * begun through the driver API */
TE_EXPORT int te__ctx_drain(struct te_ctx *ctx, const char *fn);
/* this process was forked after the context was created: threads and the device are the parent's */
TE_EXPORT int te__ctx_forked(const struct te_ctx *ctx);

/* the CUcontext is the thread's current one until te__ctx_leave(); -EOPNOTSUPP on host */
TE_EXPORT int te__ctx_enter(struct te_ctx *ctx);
TE_EXPORT void te__ctx_leave(struct te_ctx *ctx);

struct te_tensor;
/* te_tensor_wrap() of one copy; release(arg) is called once, when the last reference is dropped */
TE_EXPORT int te__tensor_wrap_owned(struct te_ctx *ctx, enum te_dtype dtype, int ndim,
				    const int64_t *shape, void *data, void (*release)(void *arg),
				    void *arg, struct te_tensor **ret_t);

struct te_op;
struct te_op_ops;
/* te_op_create() of an op of the libraries */
TE_EXPORT int te__op_create(const struct te_op_ops *ops, const void *attrs, const char *name,
			    struct te_op **ret_op);

struct te_fusion;
struct te_seq;
/* te_seq_add_fusion() of a fusion of the libraries: it matches no step of a user-defined op */
TE_EXPORT int te__seq_add_fusion(struct te_seq *seq, const struct te_fusion *fusion);

struct te_spec;
TE_EXPORT struct te_spec te__spec_of(const struct te_tensor *t);
/* "[8,128,64] bf16" */
TE_EXPORT void te__spec_str(const struct te_spec *s, char *dst, size_t nbytes);

struct te_quant;
/* 1: a cast reads its input again once the scale is known, so that no producer can cast its result;
 * else 0 */
TE_EXPORT int te__quantize_keeps_x(const struct te_quant *q);
/*
 * The cast of a plan's step with one scale, of a tensor of which each rank has a part: the codes of
 * the part, and scale_inv. join() queues what makes *amax, of the part, that of the tensor; it is
 * not called if no amax is computed.
 */
struct te_op_call;
struct te__quantize_part {
	const void *x; /* [rows, cols] of dtype */
	int64_t rows, cols;
	enum te_dtype dtype;
	void *codes; /* the part's; the copies of the tensor are not written */
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
/* Set the scales of quantizers that have none yet: the passes run several times. The random state
 * stays. Waits for the device */
TE_EXPORT int te__seq_calibrate(struct te_seq *seq, struct te_stream *stream,
				int (*passes)(void *arg, struct te_stream *stream), void *arg,
				const char *fn);
/* the sequence that the optimizer updates */
TE_EXPORT const struct te_seq *te__adamw_seq(const struct te_adamw *opt);
/* the sequence whose random state the plan's forward uses, or NULL; the plan has its ops from first
 * to end - 1 */
TE_EXPORT const struct te_seq *te__plan_draws(const struct te_plan *plan, int *ret_first,
					      int *ret_end);
/* 1: the plan has a TE_PLAN_EVENT_GRAD of the weight, to whose gradient a pass adds; else 0 */
TE_EXPORT int te__plan_adds(const struct te_plan *plan, int weight);
/* A plan that offloads values has pinned memory for one forward pass at a time, so it is one
 * callable, of one graph: -EBUSY if it is claimed already; claim 0 gives it back. */
TE_EXPORT int te__plan_claim(struct te_plan *plan, const char *name, int claim);
/* -EINVAL of fn: one of the patterns of recompute, or of keep and move of the plans' te_offload,
 * matches no value of the plans */
TE_EXPORT int te__plans_find_patterns(const char *fn, struct te_plan *const *plan, int nplans,
				      int32_t nrecompute, const char *const *recompute);
/* how many calls have recorded the event, inside and outside captures */
TE_EXPORT uint64_t te__event_nrecords(struct te_event *event);

/* CLOCK_MONOTONIC */
static inline uint64_t te__now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * A library that is opened by the first te__dl_open(), which fills table, a struct of pointers to
 * its functions. NULL: it did; else what is not found, now and later: the library, by the last of
 * its names, or the first such function. Any thread. It is never closed: it may have threads and
 * handlers.
 */
struct te__dl_sym {
	const char *name;
	size_t at; /* of the pointer in the table */
};
struct te__dl {
	const char *lib[3]; /* names, tried in order; those that are not needed are NULL */
	const struct te__dl_sym *sym;
	size_t nsyms;
	void *table;
	int opened; /* 1: the table is complete, or has no use */
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
TE_EXPORT void te__fault_set(uint64_t nth);
TE_EXPORT int te__fault_point(void);
TE_EXPORT int te__fault_fired(void); /* whether the armed fault happened */

#endif
