/* memory.c - device and pinned memory of a context, with an account of each allocation. */
#include "config.h"

#include <errno.h>

#include "libtecore/tensor/ctx.h"

static struct te__mem **bucket(struct te_ctx *ctx, const void *ptr)
{
	/* allocations are 256-byte aligned; the factor is 2^32 / golden ratio */
	return &ctx->mem[(uint32_t)((uintptr_t)ptr >> 8) * 2654435769u >> 24];
}

/* remove the account of ptr; NULL if the context has none */
static struct te__mem *mem_take(struct te_ctx *ctx, const void *ptr, int pinned)
{
	struct te__mem **at, *m;

	pthread_mutex_lock(&ctx->lock);
	for (at = bucket(ctx, ptr); *at; at = &(*at)->next)
		if ((*at)->ptr == ptr && (*at)->pinned == pinned)
			break;
	m = *at;
	if (m) {
		*at = m->next;
		*(pinned ? &ctx->pinned_nbytes : &ctx->used_nbytes) -= m->nbytes;
	}
	pthread_mutex_unlock(&ctx->lock);
	return m;
}

/* restore an account whose memory could not be freed */
static void mem_restore(struct te_ctx *ctx, struct te__mem *m)
{
	pthread_mutex_lock(&ctx->lock);
	m->next = *bucket(ctx, m->ptr);
	*bucket(ctx, m->ptr) = m;
	*(m->pinned ? &ctx->pinned_nbytes : &ctx->used_nbytes) += m->nbytes;
	pthread_mutex_unlock(&ctx->lock);
}

static void mem_enter(struct te_ctx *ctx, struct te__mem *m, void *ptr, size_t nbytes)
{
	m->ptr = ptr;
	m->nbytes = nbytes;
	mem_restore(ctx, m);
	pthread_mutex_lock(&ctx->lock);
	ctx->nallocs++;
	if (ctx->used_nbytes > ctx->peak_nbytes)
		ctx->peak_nbytes = ctx->used_nbytes;
	pthread_mutex_unlock(&ctx->lock);
}

static struct te__mem *mem_new(const char *fn, int pinned)
{
	struct te__mem *m = te__calloc(1, sizeof(*m));

	if (m)
		m->pinned = pinned;
	else
		te__fail(-ENOMEM, "%s: no memory for an account", fn);
	return m;
}

int te_mem_alloc(struct te_stream *stream, size_t nbytes, void **ret_ptr)
{
	struct te__mem *m;
	struct te_ctx *ctx;
	void *ptr;
	int r;

	if (!stream || !nbytes || !ret_ptr)
		return te__fail(-EINVAL, "te_mem_alloc: %s",
				!stream ? "stream is NULL" :
				nbytes	? "ret_ptr is NULL" : "zero bytes");
	r = te__ctx_check_fork(stream->ctx, "te_mem_alloc");
	if (!r)
		r = te__stream_not_capturing(stream, "te_mem_alloc");
	if (r)
		return r;
	ctx = stream->ctx;
	te__mem_flush(ctx);
	m = mem_new("te_mem_alloc", 0);
	if (!m)
		return -ENOMEM;
	r = ctx->ops->mem_alloc(stream->impl, nbytes, &ptr);
	if (r) {
		te__free(m);
		return r;
	}
	mem_enter(ctx, m, ptr, nbytes);
	*ret_ptr = ptr;
	return 0;
}

int te_mem_free(struct te_stream *stream, void *ptr)
{
	struct te__mem *m;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_mem_free: stream is NULL");
	if (!ptr)
		return 0;
	r = te__ctx_check_fork(stream->ctx, "te_mem_free");
	if (!r)
		r = te__stream_not_capturing(stream, "te_mem_free");
	if (r)
		return r;
	m = mem_take(stream->ctx, ptr, 0);
	if (!m)
		return te__fail(-EINVAL, "te_mem_free: %p is not allocated by this context", ptr);
	r = stream->ctx->ops->mem_free(stream->impl, ptr, m->nbytes);
	if (r) {
		mem_restore(stream->ctx, m);
		return r;
	}
	te__free(m);
	return 0;
}

int te_pinned_alloc(struct te_ctx *ctx, size_t nbytes, void **ret_ptr)
{
	struct te__mem *m;
	void *ptr;
	int r;

	if (!ctx || !nbytes || !ret_ptr)
		return te__fail(-EINVAL, "te_pinned_alloc: %s",
				!ctx   ? "ctx is NULL" :
				nbytes ? "ret_ptr is NULL" : "zero bytes");
	r = te__ctx_check_fork(ctx, "te_pinned_alloc");
	if (r)
		return r;
	m = mem_new("te_pinned_alloc", 1);
	if (!m)
		return -ENOMEM;
	r = ctx->ops->pinned_alloc(ctx->dev, nbytes, &ptr);
	if (r) {
		te__free(m);
		return r;
	}
	mem_enter(ctx, m, ptr, nbytes);
	*ret_ptr = ptr;
	return 0;
}

int te_pinned_free(struct te_ctx *ctx, void *ptr)
{
	struct te__mem *m;
	int r;

	if (!ctx)
		return te__fail(-EINVAL, "te_pinned_free: ctx is NULL");
	if (!ptr)
		return 0;
	r = te__ctx_check_fork(ctx, "te_pinned_free");
	if (r)
		return r;
	m = mem_take(ctx, ptr, 1);
	if (!m)
		return te__fail(-EINVAL, "te_pinned_free: %p is not allocated by this context",
				ptr);
	r = ctx->ops->pinned_free(ctx->dev, ptr, m->nbytes);
	if (r) {
		mem_restore(ctx, m);
		return r;
	}
	te__free(m);
	return 0;
}

/* 1: allocations and frees on the stream would be captured, maybe by the driver API */
static int captures(const struct te_stream *s)
{
	return atomic_load(&s->capture) || s->ctx->ops->capture_active(s->impl);
}

/* on the context's stream, which frees too, or on the helper while that is capturing */
static int get(struct te_ctx *ctx, size_t nbytes, void **ret_ptr, int *ret_helper)
{
	struct te_stream *s = ctx->stream;
	int r;

	pthread_mutex_lock(&s->lock);
	*ret_helper = captures(s);
	r = *ret_helper ? 0 : ctx->ops->mem_alloc(s->impl, nbytes, ret_ptr);
	pthread_mutex_unlock(&s->lock);
	if (!*ret_helper)
		return r;
	pthread_mutex_lock(&ctx->helper_lock);
	r = ctx->ops->mem_alloc(ctx->helper, nbytes, ret_ptr);
	pthread_mutex_unlock(&ctx->helper_lock);
	return r;
}

static int helper_sync(struct te_ctx *ctx)
{
	int r;

	pthread_mutex_lock(&ctx->helper_lock);
	r = ctx->ops->stream_sync(ctx->helper);
	pthread_mutex_unlock(&ctx->helper_lock);
	return r;
}

int te__mem_get(struct te_ctx *ctx, size_t nbytes, void **ret_ptr)
{
	static const char fn[] = "allocate device memory";
	struct te__mem *m;
	void *ptr;
	int helper, r = te__ctx_check_fork(ctx, fn);

	if (!r && te__stream_not_capturing(ctx->stream, NULL))
		r = te__ctx_not_capturing(ctx, fn, 1);
	if (r)
		return r;
	te__mem_flush(ctx);
	m = mem_new(fn, 0);
	if (!m)
		return -ENOMEM;
	r = get(ctx, nbytes, &ptr, &helper);
	if (r) {
		te__free(m);
		return r;
	}
	mem_enter(ctx, m, ptr, nbytes);
	r = helper ? helper_sync(ctx) : te__stream_wait(ctx->stream, fn);
	if (r) {
		te__mem_put(ctx, ptr);
		return r;
	}
	*ret_ptr = ptr;
	return 0;
}

/* free the memory; a failure is logged, because no caller can retry */
static void mem_drop(struct te_ctx *ctx, struct te__mem *m)
{
	if (ctx->ops->mem_free(ctx->stream->impl, m->ptr, m->nbytes))
		te__log_warn("%zu bytes of device memory are lost: %s", m->nbytes,
			     te_error_detail());
	te__free(m);
}

void te__mem_put(struct te_ctx *ctx, void *ptr)
{
	struct te__mem *m;

	if (!ptr || te__ctx_forked(ctx))
		return;
	m = mem_take(ctx, ptr, 0);
	if (!m)
		return;
	pthread_mutex_lock(&ctx->stream->lock);
	if (!captures(ctx->stream)) {
		mem_drop(ctx, m);
	} else {
		pthread_mutex_lock(&ctx->lock);
		m->next = ctx->deferred;
		ctx->deferred = m;
		pthread_mutex_unlock(&ctx->lock);
	}
	pthread_mutex_unlock(&ctx->stream->lock);
}

static void drop_deferred(struct te_ctx *ctx)
{
	struct te__mem *m, *next;

	pthread_mutex_lock(&ctx->lock);
	m = ctx->deferred;
	ctx->deferred = NULL;
	pthread_mutex_unlock(&ctx->lock);
	for (; m; m = next) {
		next = m->next;
		mem_drop(ctx, m);
	}
}

void te__mem_flush(struct te_ctx *ctx)
{
	if (te__ctx_forked(ctx))
		return;
	pthread_mutex_lock(&ctx->stream->lock);
	if (!captures(ctx->stream))
		drop_deferred(ctx);
	pthread_mutex_unlock(&ctx->stream->lock);
}

void te__mem_put_all(struct te_ctx *ctx, int pinned)
{
	for (int i = 0; i < TE__MEM_BUCKETS; i++)
		for (struct te__mem *m = ctx->mem[i], *next; m; m = next) {
			next = m->next;
			if (m->pinned && pinned)
				te_pinned_free(ctx, m->ptr);
			else if (!m->pinned && !pinned)
				te__mem_put(ctx, m->ptr);
		}
	/* also in a capture of the driver API, where it fails */
	if (!pinned)
		drop_deferred(ctx);
}
