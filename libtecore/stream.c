/*
 * stream.c - streams, events, queued work and captures, above the backends.
 *
 * Which streams take part in a capture is followed here, the same way on every
 * backend: a wait for an event that was recorded in a capture joins. So calls
 * that cannot be captured are refused before a backend sees them, and a failed
 * call on any of the streams is known to the one that ends the capture.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/ctx_internal.h"

/* captures */

static struct te__capture *capture_ref(struct te__capture *c)
{
	atomic_fetch_add(&c->refs, 1);
	return c;
}

static void capture_unref(struct te__capture *c)
{
	if (c && atomic_fetch_sub(&c->refs, 1) == 1)
		te__free(c);
}

/* the first failure stays, with the calling thread's sentence */
static void capture_fail(struct te_ctx *ctx, struct te__capture *c, int code)
{
	pthread_mutex_lock(&ctx->lock);
	if (!c->error) {
		c->error = code;
		snprintf(c->detail, sizeof(c->detail), "%s", te_error_detail());
	}
	pthread_mutex_unlock(&ctx->lock);
}

int te__stream_queued(struct te_stream *stream, int r)
{
	struct te__capture *c = r < 0 ? atomic_load(&stream->capture) : NULL;

	if (c)
		capture_fail(stream->ctx, c, r);
	return r;
}

int te__stream_not_capturing(const struct te_stream *stream, const char *fn)
{
	if (!atomic_load(&stream->capture))
		return 0;
	return fn ? te__fail(-EBUSY, "%s: the stream is capturing", fn) : -EBUSY;
}

/* no stream takes part any more */
static void capture_stop(struct te_ctx *ctx, struct te__capture *c)
{
	struct te_stream *s;

	atomic_store(&c->active, 0);
	pthread_mutex_lock(&ctx->streams_lock);
	for (s = ctx->streams; s; s = s->next) {
		if (atomic_load(&s->capture) != c)
			continue;
		atomic_store(&s->capture, NULL);
		capture_unref(c);
	}
	pthread_mutex_unlock(&ctx->streams_lock);
}

/* streams */

int te__stream_new(struct te_ctx *ctx, struct te_stream **ret_stream)
{
	struct te_stream *s = te__calloc(1, sizeof(*s));
	int r;

	if (!s)
		return te__fail(-ENOMEM, "no memory for a stream");
	r = ctx->ops->stream_create(ctx->dev, &s->impl);
	if (!r) {
		r = ctx->ops->event_create(ctx->dev, &s->mark);
		if (r)
			ctx->ops->stream_destroy(s->impl);
	}
	if (r) {
		te__free(s);
		return r;
	}
	s->refs = 1;
	s->ctx = ctx;
	pthread_mutex_lock(&ctx->streams_lock);
	s->next = ctx->streams;
	if (s->next)
		s->next->prev = s;
	ctx->streams = s;
	pthread_mutex_unlock(&ctx->streams_lock);
	*ret_stream = s;
	return 0;
}

void te__stream_leave(struct te_stream *s)
{
	struct te__capture *c = atomic_load(&s->capture);
	void *graph;

	if (!c)
		return;
	if (c->origin == s) {
		if (!s->ctx->ops->capture_end(s->impl, &graph))
			s->ctx->ops->graph_destroy(graph);
		capture_stop(s->ctx, c);
		return;
	}
	te__fail(-TE_ESTATE, "a stream was destroyed inside a capture");
	capture_fail(s->ctx, c, -TE_ESTATE);
	atomic_store(&s->capture, NULL);
	capture_unref(c);
}

void te__stream_delete(struct te_stream *s)
{
	struct te_ctx *ctx;

	if (!s)
		return;
	ctx = s->ctx;
	te__stream_leave(s);
	pthread_mutex_lock(&ctx->streams_lock);
	if (s->prev)
		s->prev->next = s->next;
	else
		ctx->streams = s->next;
	if (s->next)
		s->next->prev = s->prev;
	pthread_mutex_unlock(&ctx->streams_lock);
	ctx->ops->stream_destroy(s->impl);
	ctx->ops->event_destroy(s->mark);
	te__free(s);
}

int te_stream_create(struct te_ctx *ctx, struct te_stream **ret_stream)
{
	int r;

	if (!ctx || !ret_stream)
		return te__fail(-EINVAL, "te_stream_create: %s is NULL",
				ctx ? "ret_stream" : "ctx");
	r = te__stream_new(ctx, ret_stream);
	if (!r)
		te_ctx_ref(ctx);
	return r;
}

/* a reference to the context's own stream is one to the context */
static int is_own(const struct te_stream *stream)
{
	return stream->ctx->stream == stream;
}

struct te_stream *te_stream_ref(struct te_stream *stream)
{
	if (stream && is_own(stream))
		te_ctx_ref(stream->ctx);
	else if (stream)
		atomic_fetch_add(&stream->refs, 1);
	return stream;
}

struct te_stream *te_stream_unref(struct te_stream *stream)
{
	struct te_ctx *ctx = stream ? stream->ctx : NULL;

	if (stream && is_own(stream)) {
		te_ctx_unref(ctx);
	} else if (stream && atomic_fetch_sub(&stream->refs, 1) == 1) {
		te__stream_delete(stream);
		te_ctx_unref(ctx);
	}
	return NULL;
}

struct te_ctx *te_stream_ctx(const struct te_stream *stream)
{
	return stream->ctx;
}

void *te_stream_native(const struct te_stream *stream)
{
	return stream->ctx->ops->stream_native(stream->impl);
}

size_t te_ctx_workspace_nbytes(const struct te_ctx *ctx)
{
	return ctx->ops->workspace_nbytes;
}

int te_stream_workspace(struct te_stream *stream, void *ptr, size_t nbytes)
{
	size_t want;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_stream_workspace: stream is NULL");
	r = te__stream_not_capturing(stream, "te_stream_workspace");
	if (r)
		return r;
	want = stream->ctx->ops->workspace_nbytes;
	if (ptr && (nbytes < want || (uintptr_t)ptr % 256))
		return te__fail(-EINVAL,
				"te_stream_workspace: %zu bytes at %p: %zu are needed, "
				"aligned to 256",
				nbytes, ptr, want);
	stream->ctx->ops->stream_workspace(stream->impl, ptr);
	return 0;
}

int te_stream_sync(struct te_stream *stream)
{
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_stream_sync: stream is NULL");
	r = te__stream_not_capturing(stream, "te_stream_sync");
	return r ? r : stream->ctx->ops->stream_sync(stream->impl);
}

int te_stream_query(struct te_stream *stream)
{
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_stream_query: stream is NULL");
	r = te__stream_not_capturing(stream, "te_stream_query");
	return r ? r : stream->ctx->ops->stream_query(stream->impl);
}

/* events */

int te_event_create(struct te_ctx *ctx, struct te_event **ret_event)
{
	struct te_event *e;
	int r;

	if (!ctx || !ret_event)
		return te__fail(-EINVAL, "te_event_create: %s is NULL", ctx ? "ret_event" : "ctx");
	e = te__calloc(1, sizeof(*e));
	if (!e)
		return te__fail(-ENOMEM, "te_event_create: no memory for an event");
	r = ctx->ops->event_create(ctx->dev, &e->impl);
	if (r) {
		te__free(e);
		return r;
	}
	e->refs = 1;
	e->ctx = te_ctx_ref(ctx);
	*ret_event = e;
	return 0;
}

struct te_event *te_event_ref(struct te_event *event)
{
	if (event)
		atomic_fetch_add(&event->refs, 1);
	return event;
}

struct te_event *te_event_unref(struct te_event *event)
{
	struct te_ctx *ctx = event ? event->ctx : NULL;

	if (!event || atomic_fetch_sub(&event->refs, 1) != 1)
		return NULL;
	ctx->ops->event_destroy(event->impl);
	capture_unref(event->capture);
	te__free(event);
	te_ctx_unref(ctx);
	return NULL;
}

static int same_ctx(const char *fn, const struct te_event *event, const struct te_stream *stream)
{
	if (!event || !stream)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, event ? "stream" : "event");
	if (event->ctx != stream->ctx)
		return te__fail(-EINVAL, "%s: event and stream are of two contexts", fn);
	return 0;
}

/* the record was queued: in capture c, of launches to come, or NULL */
static void recorded(struct te_event *event, struct te__capture *c, int external)
{
	struct te__capture *old;

	pthread_mutex_lock(&event->ctx->lock);
	old = event->capture;
	event->capture = c ? capture_ref(c) : NULL;
	event->external = external;
	event->recorded = 1;
	pthread_mutex_unlock(&event->ctx->lock);
	capture_unref(old);
}

int te_event_record(struct te_event *event, struct te_stream *stream)
{
	int r = same_ctx("te_event_record", event, stream);

	if (r)
		return stream ? te__stream_queued(stream, r) : r;
	r = event->ctx->ops->event_record(event->impl, stream->impl);
	if (r)
		return te__stream_queued(stream, r);
	recorded(event, atomic_load(&stream->capture), 0);
	return 0;
}

int te_event_record_external(struct te_event *event, struct te_stream *stream)
{
	int r = same_ctx("te_event_record_external", event, stream);

	if (!r && !atomic_load(&stream->capture))
		return te_event_record(event, stream);
	if (!r)
		r = event->ctx->ops->event_record_external(event->impl, stream->impl);
	if (r)
		return stream ? te__stream_queued(stream, r) : r;
	recorded(event, NULL, 1);
	return 0;
}

/* the last record: whether there was one, and its capture, referenced, or NULL */
static int last_record(struct te_event *event, struct te__capture **ret_capture, int *ret_external)
{
	int recorded;

	pthread_mutex_lock(&event->ctx->lock);
	recorded = event->recorded;
	*ret_external = event->external;
	*ret_capture = event->capture ? capture_ref(event->capture) : NULL;
	pthread_mutex_unlock(&event->ctx->lock);
	return recorded;
}

/* a stream that takes part in no capture of ours */
static int not_capturing_natively(const struct te_stream *s, const char *fn)
{
	if (!s->ctx->ops->capture_active(s->impl))
		return 0;
	return te__fail(-EBUSY, "%s: the stream is capturing, which began without this library",
			fn);
}

/* The stream's mark behind all that is queued. A stream that captures cannot be asked for what it
 * has queued to run, so it has its mark since before; but not where the capture was begun by the
 * driver's own call: there the mark would be part of it. */
static int set_mark(struct te_stream *s, const char *fn)
{
	int r = not_capturing_natively(s, fn);

	return r ? r : s->ctx->ops->event_record(s->mark, s->impl);
}

int te__stream_follow(struct te_stream *stream, struct te_stream *other)
{
	const char *fn = "te__stream_follow";
	int r = te__stream_not_capturing(stream, fn);

	if (!r)
		r = not_capturing_natively(stream, fn);
	if (!r && !atomic_load(&other->capture))
		r = set_mark(other, fn);
	return r ? r : stream->ctx->ops->event_wait(other->mark, stream->impl);
}

int te_event_wait(struct te_event *event, struct te_stream *stream)
{
	struct te__capture *c;
	int external, r = same_ctx("te_event_wait", event, stream);

	if (r)
		return stream ? te__stream_queued(stream, r) : r;
	if (!last_record(event, &c, &external))
		return 0;
	if (external && atomic_load(&stream->capture))
		r = te__fail(-TE_ESTATE, "te_event_wait: launches of a recording record the event, "
					 "and the stream is capturing");
	else if (c && !atomic_load(&c->active))
		r = te__fail(-TE_ESTATE,
			     "te_event_wait: the event was recorded in a capture that ended");
	else
		r = c && !atomic_load(&stream->capture) ? set_mark(stream, "te_event_wait") : 0;
	if (!r)
		r = event->ctx->ops->event_wait(event->impl, stream->impl);
	if (!r && c && !atomic_load(&stream->capture)) {
		atomic_store(&stream->capture, c);
		return 0;
	}
	/* a stream that could not join leaves a hole in the capture it was to join */
	if (r && c && !atomic_load(&stream->capture))
		capture_fail(stream->ctx, c, r);
	r = te__stream_queued(stream, r);
	capture_unref(c);
	return r;
}

/* 1: recorded, outside of captures; 0: never; or an error */
static int is_live(const char *fn, struct te_event *event)
{
	struct te__capture *c;
	int active, external, recorded;

	if (!event)
		return te__fail(-EINVAL, "%s: event is NULL", fn);
	recorded = last_record(event, &c, &external);
	if (!c)
		return recorded;
	active = atomic_load(&c->active);
	capture_unref(c);
	if (active)
		return te__fail(-EBUSY, "%s: the event was recorded in a capture", fn);
	return te__fail(-TE_ESTATE, "%s: the event was recorded in a capture that ended", fn);
}

int te_event_sync(struct te_event *event)
{
	int r = is_live("te_event_sync", event);

	return r <= 0 ? r : event->ctx->ops->event_sync(event->impl);
}

int te_event_query(struct te_event *event)
{
	int r = is_live("te_event_query", event);

	return r < 0 ? r : r == 0 ? 1 : event->ctx->ops->event_query(event->impl);
}

int te_event_elapsed_ms(struct te_event *from, struct te_event *to, double *ret_ms)
{
	int a = is_live("te_event_elapsed_ms", from);
	int b = a < 0 ? a : is_live("te_event_elapsed_ms", to);

	if (b < 0)
		return b;
	if (!ret_ms || from->ctx != to->ctx)
		return te__fail(-EINVAL, "te_event_elapsed_ms: %s",
				ret_ms ? "the events are of two contexts" : "ret_ms is NULL");
	if (!a || !b)
		return te__fail(-EBUSY, "te_event_elapsed_ms: the %s event was never recorded",
				a ? "second" : "first");
	return from->ctx->ops->event_elapsed_ms(from->impl, to->impl, ret_ms);
}

/* work */

/* 1: go on, 0: nothing to do, or an error */
static int check_range(const char *fn, struct te_stream *stream, const void *dst, const void *src,
		       size_t nbytes)
{
	if (!stream)
		return te__fail(-EINVAL, "%s: stream is NULL", fn);
	if (nbytes && (!dst || !src))
		return te__stream_queued(stream, te__fail(-EINVAL, "%s: %zu bytes, and %s is NULL",
							  fn, nbytes, dst ? "src" : "dst"));
	return nbytes != 0;
}

int te_copy(struct te_stream *stream, void *dst, const void *src, size_t nbytes)
{
	int r = check_range("te_copy", stream, dst, src, nbytes);

	if (r <= 0)
		return r;
	return te__stream_queued(stream, stream->ctx->ops->copy(stream->impl, dst, src, nbytes));
}

int te_fill(struct te_stream *stream, void *dst, uint8_t value, size_t nbytes)
{
	int r = check_range("te_fill", stream, dst, dst, nbytes);

	if (r <= 0)
		return r;
	return te__stream_queued(stream, stream->ctx->ops->fill8(stream->impl, dst, value, nbytes));
}

int te_fill_u32(struct te_stream *stream, void *dst, uint32_t value, size_t nbytes)
{
	int r = check_range("te_fill_u32", stream, dst, dst, nbytes);

	if (r <= 0)
		return r;
	if (nbytes % 4 || (uintptr_t)dst % 4)
		r = te__fail(-EINVAL, "te_fill_u32: %zu bytes at %p are not words of 4", nbytes,
			     dst);
	else
		r = stream->ctx->ops->fill32(stream->impl, dst, value, nbytes / 4);
	return te__stream_queued(stream, r);
}

int te_host_call(struct te_stream *stream, te_host_fn fn, const void *arg, size_t nbytes)
{
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_host_call: stream is NULL");
	if (!fn || (nbytes && !arg))
		r = te__fail(-EINVAL, "te_host_call: %s is NULL", fn ? "arg" : "fn");
	else
		r = stream->ctx->ops->host_call(stream->impl, fn, arg, nbytes);
	return te__stream_queued(stream, r);
}

/* captures: their ends are in recording.c */

int te_capture_begin(struct te_stream *stream)
{
	struct te__capture *c;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_capture_begin: stream is NULL");
	r = te__stream_not_capturing(stream, "te_capture_begin");
	if (!r)
		r = set_mark(stream, "te_capture_begin");
	if (r)
		return r;
	c = te__calloc(1, sizeof(*c));
	if (!c)
		return te__fail(-ENOMEM, "te_capture_begin: no memory for a capture");
	c->refs = 1;
	c->origin = stream;
	atomic_store(&c->active, 1);
	r = stream->ctx->ops->capture_begin(stream->impl);
	if (r) {
		te__free(c);
		return r;
	}
	atomic_store(&stream->capture, c);
	return 0;
}

int te_capture_edges(struct te_stream *stream, uint32_t edges)
{
	struct te__capture *c = stream ? atomic_load(&stream->capture) : NULL;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_capture_edges: stream is NULL");
	if (edges & ~(TE_CAPTURE_BY_DATA | TE_CAPTURE_EARLY))
		return te__fail(-EINVAL, "te_capture_edges: edges has unknown bits, 0x%x", edges);
	if (!c || c->origin != stream)
		return te__fail(-TE_ESTATE, "te_capture_edges: no capture began on the stream");
	r = stream->ctx->ops->capture_edges(stream->impl, edges);
	if (!r)
		c->edges = edges;
	return r;
}

uint32_t te__stream_edges(const struct te_stream *stream)
{
	const struct te__capture *c = atomic_load(&stream->capture);

	return c ? c->edges : 0;
}

void te__call_begin(struct te_stream *stream)
{
	stream->call = atomic_fetch_add(&stream->ctx->ncalls, 1) + 1;
}

void te__call_end(struct te_stream *stream)
{
	stream->call = 0;
}

int te__capture_end(struct te_stream *stream, const char *fn, void **ret_graph, uint32_t *ret_edges)
{
	struct te__capture *c = atomic_load(&stream->capture);
	struct te_ctx *ctx = stream->ctx;
	void *graph = NULL;
	int r;

	if (!c || c->origin != stream)
		return te__fail(-TE_ESTATE, "%s: no capture began on the stream", fn);
	capture_ref(c);
	r = ctx->ops->capture_end(stream->impl, &graph);
	capture_stop(ctx, c);
	/* the call that failed first says more than what ending found */
	if (c->error)
		r = te__fail(c->error, "%s", c->detail);
	*ret_edges = c->edges;
	capture_unref(c);
	if (!r)
		*ret_graph = graph;
	else if (graph)
		ctx->ops->graph_destroy(graph);
	return r;
}
