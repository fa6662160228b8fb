/*
 * stream.c - streams, events and captures, above the backends.
 *
 * The streams of a capture are tracked here, independently of the backend: waiting for an event
 * that was recorded in a capture joins it. So calls that cannot be captured are rejected before the
 * backend is called, and a failed call on any of the streams makes the capture's end fail.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/tensor/ctx.h"

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

/* the first failure is kept, with the calling thread's error message */
static void capture_fail(struct te_ctx *ctx, struct te__capture *c, int code)
{
	pthread_mutex_lock(&ctx->lock);
	if (!c->error) {
		c->error = code;
		snprintf(c->detail, sizeof(c->detail), "%s", te_error_detail());
	}
	pthread_mutex_unlock(&ctx->lock);
}

int te__stream_check(const char *fn, const struct te_stream *stream, const struct te_ctx *ctx)
{
	if (stream && stream->ctx == ctx)
		return 0;
	return te__fail(-EINVAL, "%s: the stream is %s", fn,
			stream ? "of another context" : "NULL");
}

int te__stream_queued(struct te_stream *stream, int r)
{
	struct te__capture *c = stream && r < 0 ? atomic_load(&stream->capture) : NULL;

	if (c && !te__ctx_forked(stream->ctx))
		capture_fail(stream->ctx, c, r);
	return r;
}

void te__stream_hold(struct te_stream *stream)
{
	if (stream && !atomic_load(&stream->capture) && !te__ctx_forked(stream->ctx))
		stream->ctx->ops->launch_hold(stream->impl);
}

int te__stream_held(struct te_stream *stream, int r)
{
	if (!stream)
		return r;
	return te__stream_queued(stream, stream->ctx->ops->launch_held(stream->impl, r));
}

int te__capture_writes(struct te_stream *stream, struct te__writes *writes)
{
	struct te__capture *c = atomic_load(&stream->capture);

	if (!c || c->origin != stream)
		return te__fail(-TE_ESTATE, "te__capture_writes: no capture began on the stream");
	pthread_mutex_lock(&stream->ctx->lock);
	c->writes = writes;
	pthread_mutex_unlock(&stream->ctx->lock);
	return 0;
}

static int writes_add(struct te__writes *w, const struct te__range *range)
{
	struct te__write *v;

	if (w->n == w->cap) {
		const size_t cap = w->cap ? 2 * w->cap : 64;

		v = te__realloc(w->v, cap * sizeof(*v));
		if (!v)
			return te__fail(-ENOMEM, "no memory for what a capture writes");
		w->v = v;
		w->cap = cap;
	}
	w->v[w->n++] = (struct te__write){ range->ptr, range->ptr + range->nbytes };
	return 0;
}

int te__stream_used(struct te_stream *stream, const struct te__ranges *used)
{
	struct te__capture *c = atomic_load(&stream->capture);
	int r = 0;

	if (!c)
		return 0;
	pthread_mutex_lock(&stream->ctx->lock);
	if (c->writes && !used)
		c->writes->unknown = 1;
	for (uint32_t i = 0; c->writes && used && i < used->n && !r; i++)
		if (used->v[i].access != TE__READ)
			r = writes_add(c->writes, &used->v[i]);
	pthread_mutex_unlock(&stream->ctx->lock);
	return r;
}

int te__stream_not_capturing(const struct te_stream *stream, const char *fn)
{
	if (!atomic_load(&stream->capture))
		return 0;
	return fn ? te__fail(-EBUSY, "%s: the stream is capturing", fn) : -EBUSY;
}

int te__stream_same_capture(const struct te_stream *a, const struct te_stream *b)
{
	return atomic_load(&a->capture) == atomic_load(&b->capture);
}

/* end the capture on each of its streams */
static void capture_stop(struct te_ctx *ctx, struct te__capture *c)
{
	struct te_stream *s;

	atomic_store(&c->active, 0);
	pthread_mutex_lock(&ctx->streams_lock);
	for (s = ctx->streams; s; s = s->next) {
		if (atomic_load(&s->capture) != c)
			continue;
		te__free(s->declared);
		s->declared = NULL;
		atomic_store(&s->capture, NULL);
		capture_unref(c);
	}
	pthread_mutex_unlock(&ctx->streams_lock);
}

/* streams */

int te__stream_new(struct te_ctx *ctx, int wrap, void *native, struct te_stream **ret_stream)
{
	struct te_stream *s = te__calloc(1, sizeof(*s));
	int r;

	if (!s)
		return te__fail(-ENOMEM, "no memory for a stream");
	r = wrap ? ctx->ops->stream_wrap(ctx->dev, native, &s->impl) :
		   ctx->ops->stream_create(ctx->dev, &s->impl);
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
	pthread_mutex_init(&s->lock, NULL);
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
	/* other threads look at the captures of all streams under this lock */
	pthread_mutex_lock(&s->ctx->streams_lock);
	te__free(s->declared);
	s->declared = NULL;
	atomic_store(&s->capture, NULL);
	pthread_mutex_unlock(&s->ctx->streams_lock);
	capture_unref(c);
}

void te__stream_delete(struct te_stream *s)
{
	struct te_ctx *ctx;

	if (!s)
		return;
	ctx = s->ctx;
	if (te__ctx_forked(ctx)) {
		te__free(s);
		return;
	}
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
	pthread_mutex_destroy(&s->lock);
	te__free(s);
}

static int stream_make(const char *fn, struct te_ctx *ctx, int wrap, void *native,
		       struct te_stream **ret_stream)
{
	int r;

	if (!ctx || !ret_stream)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, ctx ? "ret_stream" : "ctx");
	r = te__ctx_check_fork(ctx, fn);
	if (!r)
		r = te__stream_new(ctx, wrap, native, ret_stream);
	if (!r)
		te_ctx_ref(ctx);
	return r;
}

int te_stream_create(struct te_ctx *ctx, struct te_stream **ret_stream)
{
	return stream_make("te_stream_create", ctx, 0, NULL, ret_stream);
}

int te_stream_wrap(struct te_ctx *ctx, void *native, struct te_stream **ret_stream)
{
	return stream_make("te_stream_wrap", ctx, 1, native, ret_stream);
}

/* a reference to the context's default stream is a reference to the context */
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
	return stream ? stream->ctx : NULL;
}

void *te_stream_native(const struct te_stream *stream)
{
	return stream ? stream->ctx->ops->stream_native(stream->impl) : NULL;
}

size_t te_ctx_workspace_nbytes(const struct te_ctx *ctx)
{
	return ctx ? ctx->ops->workspace_nbytes : 0;
}

int te_stream_workspace(struct te_stream *stream, void *ptr, size_t nbytes)
{
	size_t want;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_stream_workspace: stream is NULL");
	r = te__ctx_check_fork(stream->ctx, "te_stream_workspace");
	if (!r)
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
	r = te__ctx_check_fork(stream->ctx, "te_stream_sync");
	if (!r)
		r = te__stream_not_capturing(stream, "te_stream_sync");
	return r ? r : stream->ctx->ops->stream_sync(stream->impl);
}

int te_stream_query(struct te_stream *stream)
{
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_stream_query: stream is NULL");
	r = te__ctx_check_fork(stream->ctx, "te_stream_query");
	if (!r)
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
	r = te__ctx_check_fork(ctx, "te_event_create");
	if (r)
		return r;
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
	if (!te__ctx_forked(ctx))
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
	return te__ctx_check_fork(stream->ctx, fn);
}

/* the record was queued: in capture c, of launches to come, or NULL */
static void recorded(struct te_event *event, struct te__capture *c, int external)
{
	struct te__capture *old;

	pthread_mutex_lock(&event->ctx->lock);
	old = event->capture;
	event->capture = c ? capture_ref(c) : NULL;
	event->external = external;
	event->nrecords++;
	pthread_mutex_unlock(&event->ctx->lock);
	capture_unref(old);
}

int te_event_record(struct te_event *event, struct te_stream *stream)
{
	int r = same_ctx("te_event_record", event, stream);

	if (r)
		return te__stream_queued(stream, r);
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
		return te__stream_queued(stream, r);
	recorded(event, NULL, 1);
	return 0;
}

/* returns 1 if the event was recorded; its capture, with a reference, or NULL */
static int last_record(struct te_event *event, struct te__capture **ret_capture, int *ret_external)
{
	int recorded;

	pthread_mutex_lock(&event->ctx->lock);
	recorded = event->nrecords != 0;
	*ret_external = event->external;
	*ret_capture = event->capture ? capture_ref(event->capture) : NULL;
	pthread_mutex_unlock(&event->ctx->lock);
	return recorded;
}

/* for a stream that is in no capture begun through this library */
static int not_capturing_natively(const struct te_stream *s, const char *fn)
{
	if (!s->ctx->ops->capture_active(s->impl))
		return 0;
	return te__fail(-EBUSY, "%s: the stream is capturing, which began without this library",
			fn);
}

/*
 * Record s->mark after all queued work, for other streams and threads to wait for. Call it with
 * s->lock held and s not capturing: the record would be captured, so a stream that enters a capture
 * records its mark first. -EBUSY for a capture that was begun through the driver API.
 */
static int set_mark(struct te_stream *s, const char *fn)
{
	int r = not_capturing_natively(s, fn);

	return r ? r : s->ctx->ops->event_record(s->mark, s->impl);
}

/* the mark of a stream that is capturing is the one recorded before its capture */
static int refresh_mark(struct te_stream *s, const char *fn)
{
	int r = 0;

	pthread_mutex_lock(&s->lock);
	if (!atomic_load(&s->capture))
		r = set_mark(s, fn);
	pthread_mutex_unlock(&s->lock);
	return r;
}

int te__stream_follow(struct te_stream *stream, struct te_stream *other)
{
	const char *fn = "te__stream_follow";
	int r = te__ctx_check_fork(stream->ctx, fn);

	if (!r)
		r = te__stream_not_capturing(stream, fn);
	if (!r)
		r = not_capturing_natively(stream, fn);
	if (!r)
		r = refresh_mark(other, fn);
	return r ? r : stream->ctx->ops->event_wait(other->mark, stream->impl);
}

int te__stream_wait(struct te_stream *stream, const char *fn)
{
	const struct te__backend_ops *ops = stream->ctx->ops;
	char detail[512];
	int r = refresh_mark(stream, fn);

	if (!r)
		r = ops->event_sync(stream->mark);
	if (!r || r == -EBUSY)
		return r;
	/* a failed stream: wait until it has skipped its queued work */
	snprintf(detail, sizeof(detail), "%s", te_error_detail());
	pthread_mutex_lock(&stream->lock);
	if (!atomic_load(&stream->capture))
		(void)ops->stream_sync(stream->impl);
	pthread_mutex_unlock(&stream->lock);
	return te__fail(r, "%s", detail);
}

/* the event was recorded in a capture: the stream joins it, after its queued work */
static int join(struct te_event *event, struct te__capture *c, struct te_stream *stream)
{
	int r;

	pthread_mutex_lock(&stream->lock);
	r = set_mark(stream, "te_event_wait");
	if (!r)
		r = event->ctx->ops->event_wait(event->impl, stream->impl);
	if (!r)
		atomic_store(&stream->capture, capture_ref(c));
	pthread_mutex_unlock(&stream->lock);
	return r;
}

int te_event_wait(struct te_event *event, struct te_stream *stream)
{
	struct te__capture *c;
	int external, r = same_ctx("te_event_wait", event, stream);

	if (r)
		return te__stream_queued(stream, r);
	if (!last_record(event, &c, &external))
		return 0;
	if (external && atomic_load(&stream->capture))
		r = te__fail(-TE_ESTATE, "te_event_wait: launches of a recording record the event, "
					 "and the stream is capturing");
	else if (c && !atomic_load(&c->active))
		r = te__fail(-TE_ESTATE,
			     "te_event_wait: the event was recorded in a capture that ended");
	else if (c && !atomic_load(&stream->capture))
		r = join(event, c, stream);
	else
		r = event->ctx->ops->event_wait(event->impl, stream->impl);
	/* a stream that could not join leaves a hole in the capture it was to join */
	if (r && c && !atomic_load(&stream->capture))
		capture_fail(stream->ctx, c, r);
	r = te__stream_queued(stream, r);
	capture_unref(c);
	return r;
}

uint64_t te__event_nrecords(struct te_event *event)
{
	uint64_t n;

	if (te__ctx_forked(event->ctx))
		return event->nrecords;
	pthread_mutex_lock(&event->ctx->lock);
	n = event->nrecords;
	pthread_mutex_unlock(&event->ctx->lock);
	return n;
}

/* 1: recorded, outside of captures; 0: never; or an error */
static int is_live(const char *fn, struct te_event *event)
{
	struct te__capture *c;
	int active, external, recorded;

	if (!event)
		return te__fail(-EINVAL, "%s: event is NULL", fn);
	recorded = te__ctx_check_fork(event->ctx, fn);
	if (recorded)
		return recorded;
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

/* captures: their ends are in recording.c */

int te_capture_begin(struct te_stream *stream)
{
	static const char fn[] = "te_capture_begin";
	struct te__capture *c;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "%s: stream is NULL", fn);
	r = te__ctx_check_fork(stream->ctx, fn);
	if (!r)
		r = te__stream_not_capturing(stream, fn);
	if (r)
		return r;
	c = te__calloc(1, sizeof(*c));
	if (!c)
		return te__fail(-ENOMEM, "%s: no memory for a capture", fn);
	c->refs = 1;
	c->origin = stream;
	c->thread = pthread_self();
	atomic_store(&c->active, 1);
	/* other threads that wait for the stream see it before its capture, or in it */
	pthread_mutex_lock(&stream->lock);
	r = set_mark(stream, fn);
	if (!r)
		r = stream->ctx->ops->capture_begin(stream->impl);
	if (!r)
		atomic_store(&stream->capture, c);
	pthread_mutex_unlock(&stream->lock);
	if (r)
		te__free(c);
	return r;
}

int te_capture_edges(struct te_stream *stream, uint32_t edges)
{
	struct te__capture *c = stream ? atomic_load(&stream->capture) : NULL;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_capture_edges: stream is NULL");
	r = te__ctx_check_fork(stream->ctx, "te_capture_edges");
	if (r)
		return r;
	if (edges & ~(TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL))
		return te__fail(-EINVAL, "te_capture_edges: edges has unknown bits, 0x%x", edges);
	if (!c || c->origin != stream)
		return te__fail(-TE_ESTATE, "te_capture_edges: no capture began on the stream");
	r = stream->ctx->ops->capture_edges(stream->impl, edges);
	if (!r)
		c->edges = edges;
	return r;
}

static int check_access(int n, const struct te_access *access)
{
	static const char fn[] = "te_capture_access";

	if (n < 0 || n > TE_ACCESS_MAX || (n && !access))
		return te__fail(-EINVAL, "%s: %s", fn,
				n < 0		  ? "n is below 0" :
				n > TE_ACCESS_MAX ? "n is above 16" :
						    "access is NULL");
	for (int k = 0; k < n; k++) {
		const struct te_access *a = &access[k];

		if (!a->ptr || !a->nbytes || a->nbytes > UINTPTR_MAX - (uintptr_t)a->ptr)
			return te__fail(-EINVAL, "%s: range %d: %p is not the address of %zu bytes",
					fn, k, a->ptr, a->nbytes);
		if (a->flags & ~TE_ACCESS_WRITE)
			return te__fail(-EINVAL, "%s: range %d: unknown flags 0x%x", fn, k,
					(unsigned)a->flags);
		if (a->at < -1)
			return te__fail(-EINVAL, "%s: range %d: at is %d", fn, k, (int)a->at);
	}
	return 0;
}

static int declare(struct te_stream *stream, int n, const struct te_access *access)
{
	struct te__declared *d = te__calloc(1, sizeof(*d));
	int r;

	if (!d)
		return te__no_memory("te_capture_access");
	for (int k = 0; k < n; k++) {
		d->at[k] = access[k].at;
		d->ranges.v[d->ranges.n++] = (struct te__range){
			.ptr = (uintptr_t)access[k].ptr,
			.nbytes = access[k].nbytes,
			.access = access[k].flags & TE_ACCESS_WRITE ? TE__WRITE : TE__READ,
		};
	}
	r = stream->ctx->ops->capture_access(stream->impl, d);
	if (!r)
		r = te__stream_used(stream, &d->ranges);
	if (r) {
		te__free(d);
		return r;
	}
	stream->declared = d;
	return 0;
}

int te_capture_access(struct te_stream *stream, int n, const struct te_access *access)
{
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_capture_access: stream is NULL");
	r = te__ctx_check_fork(stream->ctx, "te_capture_access");
	if (!r)
		r = check_access(n, access);
	if (r || !atomic_load(&stream->capture))
		return r;
	if (stream->declared)
		return te__fail(-EBUSY, "te_capture_access: te_capture_access_end has not ended "
				"the previous declaration");
	return te__stream_queued(stream, declare(stream, n, access));
}

int te_capture_access_end(struct te_stream *stream)
{
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_capture_access_end: stream is NULL");
	r = te__ctx_check_fork(stream->ctx, "te_capture_access_end");
	if (r || !atomic_load(&stream->capture))
		return r;
	if (!stream->declared)
		return te__fail(-TE_ESTATE, "te_capture_access_end: te_capture_access has not "
				"begun a declaration");
	te__free(stream->declared);
	stream->declared = NULL;
	return te__stream_queued(stream, stream->ctx->ops->capture_access(stream->impl, NULL));
}

int te__capture_end(struct te_stream *stream, const char *fn, void **ret_graph, uint32_t *ret_edges)
{
	struct te__capture *c = atomic_load(&stream->capture);
	struct te_ctx *ctx = stream->ctx;
	void *graph = NULL;
	int r = te__ctx_check_fork(ctx, fn);

	if (r)
		return r;
	if (!c || c->origin != stream)
		return te__fail(-TE_ESTATE, "%s: no capture began on the stream", fn);
	capture_ref(c);
	r = ctx->ops->capture_end(stream->impl, &graph);
	capture_stop(ctx, c);
	/* the first failed call is the cause of capture_end()'s error */
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
