/* stream.c - streams that the backend or the program created. */
#include "config.h"

#include <errno.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"

/* a stream of the program must be one of the device's context */
static int adopt(struct te__cuda_stream *s)
{
	void *ctx = NULL;
	int r;

	if ((uintptr_t)s->stream == TE__CU_STREAM_PER_THREAD)
		return te__fail(-EINVAL, "te_stream_wrap: CU_STREAM_PER_THREAD is another stream "
				"in each thread: wrap one that cuStreamCreate() made");
	if (te__cuda_is_legacy(s))
		return 0;
	r = TE__CU_RAW(cuStreamGetCtx, s->stream, &ctx);
	if (r)
		return te__fail(-EINVAL, "te_stream_wrap: native %p is no CUstream that can be "
				"used: cuStreamGetCtx: %s", s->stream, te__cuda_error_name(r));
	if (ctx != s->dev->ctx)
		return te__fail(-EINVAL, "te_stream_wrap: native %p is a CUstream of the CUcontext "
				"%p, the context uses %p", s->stream, ctx, s->dev->ctx);
	return 0;
}

static int stream_new(struct te__cuda_dev *d, int wrap, void *native, void **ret_stream)
{
	struct te__cuda_stream *s = te__calloc(1, sizeof(*s));
	int r;

	if (!s)
		return te__fail(-ENOMEM, "no memory for a stream");
	s->dev = d;
	s->stream = native;
	s->borrowed = s->shown = wrap;
	r = TE__CUDA_IN_RELAXED(d, wrap ? adopt(s) :
					  TE__CU_CALL(cuStreamCreate, &s->stream,
						      TE__CU_STREAM_NON_BLOCKING));
	if (r) {
		te__free(s);
		return r;
	}
	*ret_stream = s;
	return 0;
}

int te__cuda_stream_create(void *dev, void **ret_stream)
{
	return stream_new(dev, 0, NULL, ret_stream);
}

int te__cuda_stream_wrap(void *dev, void *native, void **ret_stream)
{
	return stream_new(dev, 1, native, ret_stream);
}

/* 1: the workspace remains: its release would become part of a capture of the program's */
static int stream_destroy(struct te__cuda_stream *s)
{
	int status = TE__CU_CAPTURE_STATUS_NONE;
	int keep = 0;

	te__free(s->access);
	te__cuda_batch_free(s->batch);
	if (s->workspace) {
		(void)te__cu.cuStreamIsCapturing(s->stream, &status);
		keep = status != TE__CU_CAPTURE_STATUS_NONE;
		if (!keep)
			te__cuda_workspace_free(s->dev, s->workspace, s->stream);
	}
	if (!s->borrowed)
		te__cu.cuStreamDestroy(s->stream);
	return keep;
}

void te__cuda_stream_destroy(void *stream)
{
	struct te__cuda_stream *s = stream;
	void *graph;

	if (s->graph && !te__cuda_capture_end(s, &graph))
		te__cuda_graph_destroy(graph);
	if (TE__CUDA_IN_RELAXED(s->dev, stream_destroy(s)) <= 0) {
		te__free(s);
		return;
	}
	pthread_mutex_lock(&s->dev->lock);
	s->next = s->dev->left;
	s->dev->left = s;
	pthread_mutex_unlock(&s->dev->lock);
}

static int stream_sync(struct te__cuda_stream *s)
{
	int r = te__cuda_not_capturing(s, "wait for a stream");

	return r ? r : TE__CU_CALL(cuStreamSynchronize, s->stream);
}

int te__cuda_stream_sync(void *stream)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN_RELAXED(s->dev, stream_sync(s));
}

static int stream_query(struct te__cuda_stream *s)
{
	int r = te__cuda_not_capturing(s, "ask a stream whether it is idle");

	if (r)
		return r;
	r = TE__CU_RAW(cuStreamQuery, s->stream);
	if (r == TE__CU_ERROR_NOT_READY)
		return 0;
	return r ? te__cuda_check(r, "cuStreamQuery") : 1;
}

int te__cuda_stream_query(void *stream)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN_RELAXED(s->dev, stream_query(s));
}

void *te__cuda_stream_native(void *stream)
{
	struct te__cuda_stream *s = stream;

	s->shown = 1;
	return s->stream;
}

void te__cuda_stream_workspace(void *stream, void *ptr)
{
	struct te__cuda_stream *s = stream;

	s->given = ptr;
	s->given_at = 0;
}
