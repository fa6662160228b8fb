/* stream_core.c - streams without references to their context, and waiting for their work. */
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "libtecore/tensor/ctx.h"

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
		te__capture_stop(s->ctx, c);
		return;
	}
	te__fail(-TE_ESTATE, "a stream was destroyed inside a capture");
	te__capture_fail(s->ctx, c, -TE_ESTATE);
	/* other threads look at the captures of all streams under this lock */
	pthread_mutex_lock(&s->ctx->streams_lock);
	te__free(s->declared);
	s->declared = NULL;
	atomic_store(&s->capture, NULL);
	pthread_mutex_unlock(&s->ctx->streams_lock);
	te__capture_unref(c);
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

/* for a stream that is in no capture begun through this library */
static int not_capturing_natively(const struct te_stream *s, const char *fn)
{
	if (!s->ctx->ops->capture_active(s->impl))
		return 0;
	return te__fail(-EBUSY, "%s: the stream is capturing, which began without this library",
			fn);
}

int te__stream_mark(struct te_stream *s, const char *fn)
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
		r = te__stream_mark(s, fn);
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
