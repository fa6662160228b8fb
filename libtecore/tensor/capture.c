/*
 * capture.c - captures that have not ended.
 *
 * The streams of a capture are tracked here, independently of the backend: waiting for an event
 * that was recorded in a capture joins it. So calls that cannot be captured are rejected before the
 * backend is called, and a failed call on any of the streams makes the capture's end fail. Their
 * ends are in capture/recording.c.
 */
#include "config.h"

#include <errno.h>

#include "libtecore/base/grow.h"
#include "libtecore/tensor/ctx.h"

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
	if (TE__GROW(w->v, w->cap, w->n))
		return te__fail(-ENOMEM, "no memory for what a capture writes");
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
	r = te__stream_mark(stream, fn);
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
	te__capture_ref(c);
	r = ctx->ops->capture_end(stream->impl, &graph);
	te__capture_stop(ctx, c);
	/* the first failed call is the cause of capture_end()'s error */
	if (c->error)
		r = te__fail(c->error, "%s", c->detail);
	*ret_edges = c->edges;
	te__capture_unref(c);
	if (!r)
		*ret_graph = graph;
	else if (graph)
		ctx->ops->graph_destroy(graph);
	return r;
}
