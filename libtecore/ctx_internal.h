/*
 * ctx_internal.h - inside of contexts and streams, shared by libtecore's own files.
 *
 * The bookkeeping that does not depend on the backend is here: references,
 * what is allocated, which streams take part in a capture and whether it failed.
 */
#ifndef TE__CTX_INTERNAL_H
#define TE__CTX_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <te/ctx.h>
#include <te/stream.h>

#include "libtecore/backend/backend.h"
#include "libtecore/internal.h"

struct te_tensor;

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
	atomic_int active; /* between begin and end */
	uint32_t edges;	   /* TE_CAPTURE_* */
	int error;	   /* the first failed call, under ctx->lock */
	char detail[512];
};

struct te_ctx {
	_Atomic uint32_t refs;
	const struct te__backend_ops *ops;
	void *dev;
	int32_t device;
	struct te_stream *stream; /* holds no reference to the context */

	_Atomic uint32_t ncalls; /* of te__call_begin */

	pthread_mutex_t streams_lock; /* taken before lock */
	struct te_stream *streams;    /* all of them */

	pthread_mutex_t lock; /* all below, and errors of captures */
	struct te__mem *mem[TE__MEM_BUCKETS];
	struct te__mem *deferred; /* freed while the stream was capturing */
	uint64_t used_nbytes, peak_nbytes, nallocs, pinned_nbytes;
};

struct te_stream {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	void *impl;
	struct te_stream *prev, *next; /* in ctx->streams */
	/* not NULL: takes part in a capture; read by other threads, so atomic */
	_Atomic(struct te__capture *) capture;
	uint32_t call; /* what launches are part of, or 0 */
	/* the backend's event behind what others are to wait for: what there was at the latest
	 * te__stream_follow, or before a capture */
	void *mark;
};

struct te_event {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	void *impl;
	int recorded;
	struct te__capture *capture; /* of the last record, or NULL */
	int external;		     /* the last record was asked for inside of a capture */
};

/* te_cast, unless the device word noop holds 1.0 when it runs */
int te__cast(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y,
	     const float *noop);

/* without references to the context: te_ctx_create makes the context's own */
int te__stream_new(struct te_ctx *ctx, struct te_stream **ret_stream);
void te__stream_delete(struct te_stream *stream);
/* a stream about to go: a capture that began on it ends, one that it joined has failed */
void te__stream_leave(struct te_stream *stream);

/*
 * Passes r on. Every call that queues work returns through it: a failure
 * inside a capture invalidates the capture.
 */
int te__stream_queued(struct te_stream *stream, int r);

/* TE_CAPTURE_* of the capture that the stream takes part in; 0: none */
uint32_t te__stream_edges(const struct te_stream *stream);

/*
 * Launches between these two are one call. In a graph whose nodes wait by data they are a
 * straight line, and what needs one of them waits for the last: worth it for small launches
 * that are all needed soon, since a node that waits for one node only begins sooner.
 */
void te__call_begin(struct te_stream *stream);
void te__call_end(struct te_stream *stream);

/*
 * Ends the capture that began on the stream, whatever it returns: 0 with the graph; the first
 * failure inside of the capture; -TE_ESTATE, naming fn, where none began.
 */
int te__capture_end(struct te_stream *stream, const char *fn, void **ret_graph,
		    uint32_t *ret_edges);

/*
 * Memory for objects: allocated on the context's stream and at once fit for
 * every stream. te__mem_put cannot fail, so destructors call it: while the
 * context's stream is capturing the memory is kept aside until the capture ends.
 */
int te__mem_get(struct te_ctx *ctx, size_t nbytes, void **ret_ptr);
void te__mem_put(struct te_ctx *ctx, void *ptr);
/* give back what te__mem_put kept aside; no effect while capturing */
void te__mem_flush(struct te_ctx *ctx);

#endif
