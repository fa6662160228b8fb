/* stream.c - streams: created, wrapped and waited for, above the backends. */
#include "config.h"

#include <errno.h>

#include "libtecore/tensor/ctx.h"

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
