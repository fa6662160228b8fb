/* event.c - events, and how waiting for one joins a stream to a capture. */
#include "config.h"

#include <errno.h>

#include "libtecore/tensor/ctx.h"

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
	te__capture_unref(event->capture);
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
	event->capture = c ? te__capture_ref(c) : NULL;
	event->external = external;
	event->nrecords++;
	pthread_mutex_unlock(&event->ctx->lock);
	te__capture_unref(old);
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
	*ret_capture = event->capture ? te__capture_ref(event->capture) : NULL;
	pthread_mutex_unlock(&event->ctx->lock);
	return recorded;
}

/* the event was recorded in a capture: the stream joins it, after its queued work */
static int join(struct te_event *event, struct te__capture *c, struct te_stream *stream)
{
	int r;

	pthread_mutex_lock(&stream->lock);
	r = te__stream_mark(stream, "te_event_wait");
	if (!r)
		r = event->ctx->ops->event_wait(event->impl, stream->impl);
	if (!r)
		atomic_store(&stream->capture, te__capture_ref(c));
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
		te__capture_fail(stream->ctx, c, r);
	r = te__stream_queued(stream, r);
	te__capture_unref(c);
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
	te__capture_unref(c);
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
