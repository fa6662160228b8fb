/*
 * ctx.h - contexts and streams as libtecore's own files see them.
 *
 * The state that does not depend on the backend: references, allocations, which streams take part
 * in a capture and whether the capture has failed.
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

/* What streams and events that take part in one capture share. */
struct te__capture {
	_Atomic uint32_t refs;
	struct te_stream *origin;
	pthread_t thread;  /* that began it */
	atomic_int active; /* between begin and end */
	uint32_t edges;	   /* TE_CAPTURE_* */
	struct te__writes *writes; /* of te__capture_writes, or NULL; under ctx->lock */
	int error;	   /* the first failed call, under ctx->lock */
	char detail[512];
};

/* theta^(-2 i / head_dim): pow() of all of them takes as long as a third of a launch */
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
	unsigned int nforks;	  /* of the process when the context was created */
	struct te_stream *stream; /* holds no reference to the context */
	/* the backend's stream of te__ctx_copy, te__ctx_fill_u32 and te__mem_get; never captured */
	void *helper;
	pthread_mutex_t helper_lock;

	/* locks are taken in this order: a stream's, helper_lock, streams_lock, lock */
	pthread_mutex_t streams_lock;
	struct te_stream *streams;    /* all of them */

	pthread_mutex_t lock; /* all below, and errors of captures */
	struct te__mem *mem[TE__MEM_BUCKETS];
	struct te__mem *deferred; /* freed while the stream was capturing */
	uint64_t used_nbytes, peak_nbytes, nallocs, pinned_nbytes;
	struct te__rope_freq rope_freq; /* the latest that were computed */
	struct te__outside *outside;	    /* a page */
	struct te__outside *device_outside; /* the same, as kernels see it */
};

struct te_stream {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	void *impl;
	struct te_stream *prev, *next; /* in ctx->streams */
	/* not NULL: takes part in a capture; read by other threads, so atomic */
	_Atomic(struct te__capture *) capture;
	struct te__declared *declared; /* of te_capture_access(), until its end; or NULL */
	/*
	 * Taken to enter a capture, and by a thread that may not be the stream's to queue something
	 * if the stream is not capturing.
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
	struct te__capture *capture; /* of the last record, or NULL */
	int external;		     /* the last record: te_event_record_external() in a capture */
};

/*
 * te_tensor_wrap() of an FP8 tensor of any scaling. A block scaling needs scale_inv with data and
 * col_scale_inv with coldata; TE_SCALING_TENSOR: one word for both.
 */
int te__tensor_wrap_scaled(struct te_ctx *ctx, enum te_dtype dtype, int ndim, const int64_t *shape,
			   void *data, void *coldata, float *scale_inv, float *col_scale_inv,
			   enum te_scaling scaling, struct te_tensor **ret_t);

/*
 * Without a reference to the context: te_ctx_create() makes the default stream with it. wrap:
 * native is used, as te_stream_wrap() defines it.
 */
int te__stream_new(struct te_ctx *ctx, int wrap, void *native, struct te_stream **ret_stream);
void te__stream_delete(struct te_stream *stream);
/* before a stream is destroyed: a capture begun on it ends, one that it joined fails */
void te__stream_leave(struct te_stream *stream);

/*
 * Passes r on. Every call that queues work returns through it: a failure
 * inside a capture invalidates the capture. stream: NULL if that is the failure.
 */
int te__stream_queued(struct te_stream *stream, int r);
/*
 * Kernels launched from hold to held, and nothing else, are queued at once: all, or none if r is an
 * error. held passes r on as te__stream_queued() does. Both take NULL.
 */
void te__stream_hold(struct te_stream *stream);
int te__stream_held(struct te_stream *stream, int r);
/* the backend's entries of these names; in a capture what te_capture_access() declared is theirs */
int te__word_set(struct te_stream *stream, void *word, uint32_t value);
int te__word_take(struct te_stream *stream, void *word);
/* a call has been queued that uses these ranges; NULL: its memory is unknown */
int te__stream_used(struct te_stream *stream, const struct te__ranges *used);

/* TE_CAPTURE_* of the capture that the stream takes part in; 0: none */
uint32_t te__stream_edges(const struct te_stream *stream);

/*
 * Ends the capture that began on the stream, whatever it returns: 0 with the graph; the first
 * failure inside of the capture; -TE_ESTATE, naming fn, where none began.
 */
int te__capture_end(struct te_stream *stream, const char *fn, void **ret_graph,
		    uint32_t *ret_edges);

/*
 * 0, or -TE_ESTATE in a child that was forked after the context was created: it has the memory of
 * its parent, but neither the threads nor the device. fn is named in the message.
 */
int te__ctx_check_fork(const struct te_ctx *ctx, const char *fn);
/* -EBUSY where a stream is capturing; with here, by the calling thread */
int te__ctx_not_capturing(struct te_ctx *ctx, const char *fn, int here);

/*
 * Synchronous helpers, for any thread, also while other threads capture streams of the context.
 * te__stream_wait: until what was queued on the stream has run; on a stream that is capturing, what
 * was queued before the capture. te__ctx_copy and te__ctx_fill_u32 do not wait for other work, so
 * their memory must not be in use.
 */
int te__stream_wait(struct te_stream *stream, const char *fn);
int te__ctx_copy(struct te_ctx *ctx, void *dst, const void *src, size_t nbytes);

/* free what te__mem_put deferred; no effect while the default stream is capturing */
void te__mem_flush(struct te_ctx *ctx);
/* free all device memory of the context, or all pinned memory */
void te__mem_put_all(struct te_ctx *ctx, int pinned);

#endif
