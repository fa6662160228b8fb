/* event.c - events, except records that launches of a graph repeat, see capture.c. */
#include "config.h"

#include <errno.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"

int te__cuda_event_create(void *dev, void **ret_event)
{
	struct te__cuda_dev *d = dev;
	struct te__cuda_event *e = te__calloc(1, sizeof(*e));
	int r;

	if (!e)
		return te__fail(-ENOMEM, "no memory for an event");
	e->refs = 1;
	e->dev = d;
	r = TE__CUDA_IN_RELAXED(d, TE__CU_CALL(cuEventCreate, &e->event, TE__CU_EVENT_DEFAULT));
	if (r) {
		te__free(e);
		return r;
	}
	*ret_event = e;
	return 0;
}

void te__cuda_event_unref(struct te__cuda_event *e)
{
	if (atomic_fetch_sub(&e->refs, 1) != 1)
		return;
	te__cu.cuEventDestroy(e->event);
	te__free(e);
}

void te__cuda_event_destroy(void *event)
{
	struct te__cuda_event *e = event;

	(void)TE__CUDA_IN_RELAXED(e->dev, (te__cuda_event_unref(e), 0));
}

int te__cuda_event_record(void *event, void *stream)
{
	struct te__cuda_event *e = event;
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN(s->dev, TE__CU_CALL(cuEventRecord, e->event, s->stream));
}

int te__cuda_event_wait(void *event, void *stream)
{
	struct te__cuda_event *e = event;
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN(s->dev, te__cuda_capture_check(TE__CU_RAW(cuStreamWaitEvent, s->stream,
								     e->event, 0),
							  "cuStreamWaitEvent"));
}

/* an event that was recorded during a capture is part of a graph and cannot be waited for */
static int event_check(int result, const char *call)
{
	if (result == TE__CU_ERROR_CAPTURED_EVENT)
		return te__fail(-EBUSY, "%s: the event was recorded during a capture", call);
	return te__cuda_check(result, call);
}

static int event_sync(struct te__cuda_event *e)
{
	/* a wait for a captured event returns CUDA_ERROR_INVALID_VALUE, a query a specific code */
	int r = TE__CU_RAW(cuEventQuery, e->event);

	if (r == TE__CU_ERROR_NOT_READY)
		r = TE__CU_RAW(cuEventSynchronize, e->event);
	return event_check(r, "cuEventSynchronize");
}

int te__cuda_event_sync(void *event)
{
	struct te__cuda_event *e = event;

	return TE__CUDA_IN_RELAXED(e->dev, event_sync(e));
}

static int event_query(struct te__cuda_event *e)
{
	int r = TE__CU_RAW(cuEventQuery, e->event);

	if (r == TE__CU_ERROR_NOT_READY)
		return 0;
	return r ? event_check(r, "cuEventQuery") : 1;
}

int te__cuda_event_query(void *event)
{
	struct te__cuda_event *e = event;

	return TE__CUDA_IN_RELAXED(e->dev, event_query(e));
}

static int event_elapsed_ms(struct te__cuda_event *from, struct te__cuda_event *to, double *ret_ms)
{
	float ms;
	int r = TE__CU_RAW(cuEventElapsedTime, &ms, from->event, to->event);

	if (r == TE__CU_ERROR_NOT_READY)
		return te__fail(-EBUSY, "time between events: one has not been reached");
	if (r == TE__CU_ERROR_INVALID_HANDLE)
		return te__fail(-EBUSY, "time between events: one was never recorded");
	if (r)
		return event_check(r, "cuEventElapsedTime");
	*ret_ms = ms;
	return 0;
}

int te__cuda_event_elapsed_ms(void *from, void *to, double *ret_ms)
{
	struct te__cuda_event *e = from;

	return TE__CUDA_IN_RELAXED(e->dev, event_elapsed_ms(e, to, ret_ms));
}
