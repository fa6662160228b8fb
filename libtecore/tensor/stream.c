/* stream.c - streams: created, wrapped and waited for, above the backends. */
#include "config.h"

#include <errno.h>

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
