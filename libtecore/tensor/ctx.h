/*
 * ctx.h - contexts and streams inside libtecore.
 *
 * State that does not depend on the backend: references, allocations, streams that take part in a
 * capture, and the failure of a capture.
 */
#ifndef TE__CTX_INTERNAL_H
#define TE__CTX_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <te/ctx.h>
#include <te/capture.h>
#include <te/stream.h>
#include <te/tensor.h>

#include "libtecore/backend/backend.h"
#include "libtecore/base/base.h"

#define TE__MEM_BUCKETS 256

struct te__mem {
	struct te__mem *next;
	void *ptr;
	size_t nbytes;
	int pinned;
};

/* A capture, shared by the streams and events that take part in it. */
struct te__capture {
	_Atomic uint32_t refs;
	struct te_stream *origin;
	pthread_t thread;  /* thread that began it */
	atomic_int active; /* between begin and end */
	uint32_t edges;	   /* TE_CAPTURE_* */
	struct te__writes *writes; /* from te__capture_writes, or NULL; under ctx->lock */
	int error;	   /* the first failed call, under ctx->lock */
	char detail[512];
};

/* cache of theta^(-2 i / head_dim): computing all takes a third of the time of a launch */
struct te__rope_freq {
	float theta;
	int32_t head_dim; /* 0: none yet */
	float inv_freq[TE_K_ROPE_MAX_HALF];
};

struct te_ctx {
	_Atomic uint32_t refs;
	const struct te__backend_ops *ops;
	void *dev;
	int32_t device;
	uint32_t traits; /* TE__BACKEND_*: of ops, unless a parameter overrides them */
	unsigned int nforks;	  /* forks of the process when the context was created */
	struct te_stream *stream; /* holds no reference to the context */
	/* the backend's stream of te__ctx_copy, te__ctx_fill_u32 and te__mem_get; never captured */
	void *helper;
	pthread_mutex_t helper_lock;

	/* locks are taken in this order: a stream's, helper_lock, streams_lock, lock */
	pthread_mutex_t streams_lock;
	struct te_stream *streams;    /* all streams */
	pthread_mutex_t lock; /* protects all below, and errors of captures */
	struct te__mem *mem[TE__MEM_BUCKETS];
	struct te__mem *deferred; /* freed while the stream was capturing */
	uint64_t used_nbytes, peak_nbytes, nallocs, pinned_nbytes;
	struct te__rope_freq rope_freq; /* latest frequencies computed */
	struct te_device_info info;	/* what does not change, set once */
	atomic_int has_info;
	struct te__outside *outside;	    /* counters, in a page */
	struct te__outside *device_outside; /* address of the page for kernels */
};

struct te_stream {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	void *impl;
	struct te_stream *prev, *next; /* in ctx->streams */
	/* not NULL: takes part in a capture; read by other threads, so atomic */
	_Atomic(struct te__capture *) capture;
	struct te__declared *declared; /* from te_capture_access(), until its end; or NULL */
	/*
	 * Taken to enter a capture, and to queue work from a thread other than the stream's if the
	 * stream is not capturing.
	 */
	pthread_mutex_t lock;
	/* the backend's event: recorded last by te__stream_follow, te__stream_wait or, before a
	 * capture, te_capture_begin or te_event_wait */
	void *mark;
};

struct te_event {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	void *impl;
	uint64_t nrecords;	     /* calls that recorded it */
	struct te__capture *capture; /* capture of the last record, or NULL */
	int external;		     /* 1: last record by te_event_record_external() in a capture */
};

/*
 * te_tensor_wrap() for an FP8 tensor with any scaling. Block scaling needs scale_inv with data and
 * col_scale_inv with coldata; TE_SCALING_TENSOR: one word for both.
 */
int te__tensor_wrap_scaled(struct te_ctx *ctx, enum te_dtype dtype, int ndim, const int64_t *shape,
			   void *data, void *coldata, float *scale_inv, float *col_scale_inv,
			   enum te_scaling scaling, struct te_tensor **ret_t);
extern const char *const te__scaling_name[]; /* "1x128"; TENSOR: "per-tensor" */

/*
 * Creates a stream without a reference to the context, for its default stream. wrap: use native, as
 * in te_stream_wrap().
 */
int te__stream_new(struct te_ctx *ctx, int wrap, void *native, struct te_stream **ret_stream);
void te__stream_delete(struct te_stream *stream);
/* before a stream is destroyed: a capture begun on it ends, one that it joined fails */
void te__stream_leave(struct te_stream *stream);

/*
 * capturing.c; unref takes NULL. fail keeps the first failure, with the calling thread's error
 * message; stop ends the capture on each of its streams.
 */
struct te__capture *te__capture_ref(struct te__capture *c);
void te__capture_unref(struct te__capture *c);
void te__capture_fail(struct te_ctx *ctx, struct te__capture *c, int code);
void te__capture_stop(struct te_ctx *ctx, struct te__capture *c);

/*
 * stream_core.c: record s->mark after all queued work, for other streams and threads to wait for.
 * Call it with s->lock held and s not capturing: the record would be captured, so a stream that
 * enters a capture records its mark first. -EBUSY for a capture that was begun through the driver
 * API.
 */
int te__stream_mark(struct te_stream *s, const char *fn);

/*
 * Returns r. Every call that queues work returns through it: a failure inside a capture invalidates
 * the capture. stream: NULL if that is the failure.
 */
int te__stream_queued(struct te_stream *stream, int r);
/*
 * Kernels launched between hold and held, where nothing else may be queued, are queued together:
 * all, or none if r is an error. held returns r as te__stream_queued() does. Both take NULL.
 */
void te__stream_hold(struct te_stream *stream);
int te__stream_held(struct te_stream *stream, int r);
/* the backend's word_set, of 1, and word_take; in a capture they have the accesses that
 * te_capture_access() declared */
int te__word_set(struct te_stream *stream, void *word);
int te__word_take(struct te_stream *stream, void *word);
/* declare the ranges that the call just queued uses; NULL: its memory is unknown */
int te__stream_used(struct te_stream *stream, const struct te__ranges *used);

/*
 * Ends the capture that began on the stream, also if it fails. Returns 0 with the graph, or the
 * first failure inside the capture; -TE_ESTATE, naming fn, if none began.
 */
int te__capture_end(struct te_stream *stream, const char *fn, void **ret_graph,
		    uint32_t *ret_edges);

/* fork.c: count forks of the process from now on, for the context */
int te__ctx_watch_forks(struct te_ctx *ctx, const char *fn);
/*
 * Returns 0, or -TE_ESTATE, naming fn, in a child that was forked after the context was created: it
 * has the memory of its parent, but neither threads nor device.
 */
int te__ctx_check_fork(const struct te_ctx *ctx, const char *fn);
/* block_smem_nbytes of the device's te_device_info */
uint64_t te__ctx_block_smem(const struct te_ctx *ctx);
/* -EBUSY if a stream is capturing; here: only if the calling thread captures it */
int te__ctx_not_capturing(struct te_ctx *ctx, const char *fn, int here);

/*
 * Synchronous helpers, for any thread, also while other threads capture streams of the context.
 * te__stream_wait waits until the work queued on the stream has run; on a capturing stream, the
 * work queued before the capture. te__ctx_copy and te__ctx_fill_u32 do not wait for other work, so
 * their memory must not be in use.
 */
int te__stream_wait(struct te_stream *stream, const char *fn);
int te__ctx_copy(struct te_ctx *ctx, void *dst, const void *src, size_t nbytes);

/* free the memory that te__mem_put deferred; no effect while the default stream is capturing */
void te__mem_flush(struct te_ctx *ctx);
/* free all device memory of the context, or all pinned memory */
void te__mem_put_all(struct te_ctx *ctx, int pinned);

#endif
