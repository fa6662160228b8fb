/* work.c - work on streams: copies, fills, host functions, words and kernels. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/tensor/ctx.h"

/* a call has been queued that writes this range */
static int stream_wrote(struct te_stream *stream, const void *ptr, size_t nbytes)
{
	const struct te__ranges used = { 1, { { (uintptr_t)ptr, nbytes, TE__WRITE } } };

	return te__stream_used(stream, &used);
}

/* 1: continue, 0: nothing to do, or an error */
static int check_range(const char *fn, struct te_stream *stream, const void *dst, const void *src,
		       size_t nbytes)
{
	int r;

	if (!stream)
		return te__fail(-EINVAL, "%s: stream is NULL", fn);
	r = te__ctx_check_fork(stream->ctx, fn);
	if (r)
		return r;
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
	r = stream->ctx->ops->copy(stream->impl, dst, src, nbytes);
	return te__stream_queued(stream, r ? r : stream_wrote(stream, dst, nbytes));
}

int te_fill(struct te_stream *stream, void *dst, uint8_t value, size_t nbytes)
{
	int r = check_range("te_fill", stream, dst, dst, nbytes);

	if (r <= 0)
		return r;
	r = stream->ctx->ops->fill8(stream->impl, dst, value, nbytes);
	return te__stream_queued(stream, r ? r : stream_wrote(stream, dst, nbytes));
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
	return te__stream_queued(stream, r ? r : stream_wrote(stream, dst, nbytes));
}

/* do the arguments of a host call have the declared pointers? d: or NULL */
static int check_places(const struct te__declared *d, const void *arg, size_t nbytes)
{
	for (uint32_t k = 0; d && k < d->ranges.n; k++) {
		const size_t at = (size_t)d->at[k];
		uintptr_t p;

		if (d->at[k] < 0)
			continue;
		if (nbytes < sizeof(p) || at > nbytes - sizeof(p))
			return te__fail(-EINVAL, "te_host_call: declared range %u: its pointer "
					"would be at byte %zu of an argument of %zu bytes", k, at,
					nbytes);
		memcpy(&p, (const char *)arg + at, sizeof(p));
		if (p != d->ranges.v[k].ptr)
			return te__fail(-EINVAL, "te_host_call: declared range %u: byte %zu of the "
					"argument has %p, not %p", k, at, (void *)p,
					(void *)d->ranges.v[k].ptr);
	}
	return 0;
}

/* r of a call whose memory is known only if it is declared */
static int opaque_queued(struct te_stream *stream, int r)
{
	if (!r && !stream->declared)
		r = te__stream_used(stream, NULL);
	return te__stream_queued(stream, r);
}

int te_host_call(struct te_stream *stream, te_host_fn fn, const void *arg, size_t nbytes)
{
	int r;

	if (!stream)
		return te__fail(-EINVAL, "te_host_call: stream is NULL");
	r = te__ctx_check_fork(stream->ctx, "te_host_call");
	if (r)
		return r;
	if (!fn || (nbytes && !arg))
		r = te__fail(-EINVAL, "te_host_call: %s is NULL", fn ? "arg" : "fn");
	else
		r = check_places(stream->declared, arg, nbytes);
	if (!r)
		r = stream->ctx->ops->host_call(stream->impl, fn, arg, nbytes);
	return opaque_queued(stream, r);
}

int te__word_set(struct te_stream *stream, void *word)
{
	return opaque_queued(stream, stream->ctx->ops->word_set(stream->impl, word, 1));
}

int te__word_take(struct te_stream *stream, void *word)
{
	return opaque_queued(stream, stream->ctx->ops->word_take(stream->impl, word));
}

int te__adapter_flush(struct te_stream *stream)
{
	return opaque_queued(stream, stream->ctx->ops->adapter_flush(stream->impl));
}

int te__launch_k(struct te_stream *stream, int id, const void *args, size_t nbytes)
{
	struct te__launch l = { (enum te_k_id)id, args, nbytes };
	struct te__ranges used;
	int r;

	if (!stream)
		return te__fail(-EINVAL, "launch of %s: stream is NULL", te__k_name(id));
	r = te__ctx_check_fork(stream->ctx, "launch of a kernel");
	if (r)
		return r;
	if (!args || !nbytes || nbytes != te__k_nbytes(id))
		r = te__fail(-EINVAL, "launch of kernel %d (%s): %zu bytes of arguments, not %zu",
			     (int)id, te__k_name(id), nbytes, te__k_nbytes(id));
	else
		r = stream->ctx->ops->launch(stream->impl, &l);
	if (r || !atomic_load(&stream->capture))
		return te__stream_queued(stream, r);
	te__k_ranges(id, args, &used);
	return te__stream_queued(stream, te__stream_used(stream, &used));
}
