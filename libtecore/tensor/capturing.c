/* capturing.c - which streams take part in a capture, and the failure of one. */
#include "config.h"

#include <errno.h>
#include <stdio.h>

#include "libtecore/tensor/ctx.h"

struct te__capture *te__capture_ref(struct te__capture *c)
{
	atomic_fetch_add(&c->refs, 1);
	return c;
}

void te__capture_unref(struct te__capture *c)
{
	if (c && atomic_fetch_sub(&c->refs, 1) == 1)
		te__free(c);
}

void te__capture_fail(struct te_ctx *ctx, struct te__capture *c, int code)
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
	return te__fail(-EINVAL, "%s: the stream %s", fn,
			stream ? "belongs to another context" : "is NULL");
}

int te__stream_queued(struct te_stream *stream, int r)
{
	struct te__capture *c = stream && r < 0 ? atomic_load(&stream->capture) : NULL;

	if (c && !te__ctx_forked(stream->ctx))
		te__capture_fail(stream->ctx, c, r);
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

void te__capture_stop(struct te_ctx *ctx, struct te__capture *c)
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
		te__capture_unref(c);
	}
	pthread_mutex_unlock(&ctx->streams_lock);
}

int te__ctx_not_capturing(struct te_ctx *ctx, const char *fn, int here)
{
	const struct te__capture *c;
	int found = 0;

	/* captures end under this lock */
	pthread_mutex_lock(&ctx->streams_lock);
	for (struct te_stream *s = ctx->streams; s && !found; s = s->next) {
		c = atomic_load(&s->capture);
		found = c && (!here || pthread_equal(c->thread, pthread_self()));
	}
	pthread_mutex_unlock(&ctx->streams_lock);
	if (!found)
		return 0;
	return te__fail(-EBUSY, here ? "%s: this thread is capturing a stream of the context" :
				       "%s: a stream of the context is capturing", fn);
}
