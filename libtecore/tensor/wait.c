/* wait.c - waiting for all streams of a context. */
#include "config.h"

#include <stdio.h>

#include "libtecore/tensor/ctx.h"

/*
 * The next stream after s (NULL: the first) that is not being destroyed. It is referenced, which
 * keeps it in the list, unless it is the context's default stream, which lives as long.
 */
static struct te_stream *next_stream(struct te_ctx *ctx, struct te_stream *s)
{
	pthread_mutex_lock(&ctx->streams_lock);
	for (s = s ? s->next : ctx->streams; s && s != ctx->stream; s = s->next) {
		uint32_t refs = atomic_load(&s->refs);

		while (refs && !atomic_compare_exchange_weak(&s->refs, &refs, refs + 1))
			;
		if (refs)
			break;
	}
	pthread_mutex_unlock(&ctx->streams_lock);
	return s;
}

/* wait until the queued work of each stream has run, except in captures; the first failure */
static int wait_all(struct te_ctx *ctx, const char *fn)
{
	struct te_stream *s, *next;
	char detail[512];
	int r = 0, q;

	for (s = next_stream(ctx, NULL); s; s = next) {
		q = te__stream_wait(s, fn);
		if (q && !r) {
			r = q;
			snprintf(detail, sizeof(detail), "%s", te_error_detail());
		}
		next = next_stream(ctx, s);
		if (s != ctx->stream)
			te_stream_unref(s);
	}
	return r ? te__fail(r, "%s", detail) : 0;
}

int te_ctx_sync(struct te_ctx *ctx)
{
	int r = te__ctx_check_fork(ctx, "te_ctx_sync");

	if (!r)
		r = te__ctx_not_capturing(ctx, "te_ctx_sync", 0);
	return r ? r : wait_all(ctx, "te_ctx_sync");
}

int te__ctx_wait(struct te_ctx *ctx, const char *fn)
{
	int r = te__ctx_check_fork(ctx, fn);

	if (!r)
		r = te__ctx_not_capturing(ctx, fn, 1);
	return r ? r : wait_all(ctx, fn);
}

int te__ctx_drain(struct te_ctx *ctx, const char *fn)
{
	int r = te__ctx_check_fork(ctx, fn);

	return r ? r : wait_all(ctx, fn);
}
