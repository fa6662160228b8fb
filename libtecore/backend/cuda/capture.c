/*
 * capture.c - captures that have not ended, which queued work became which node, and the objects
 * that recorded work refers to: copies of host call arguments, workspaces and events. They are
 * freed with the last graph or executable.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/graph.h"

struct te__cuda_call {
	struct te__cuda_call *next;
	te_host_fn fn;
	_Alignas(max_align_t) char arg[];
};

struct te__cuda_work {
	struct te__cuda_work *next;
	void *stream;
	void *ptr;
	size_t at; /* offset of the next chunk */
};

struct te__cuda_kept {
	struct te__cuda_kept *next;
	struct te__cuda_event *event;
};

void te__cuda_capture_free(struct te__cuda_dev *d, struct te__cuda_capture *c)
{
	while (c->calls) {
		struct te__cuda_call *next = c->calls->next;

		te__free(c->calls);
		c->calls = next;
	}
	while (c->works) {
		struct te__cuda_work *next = c->works->next;

		te__cuda_workspace_free(d, c->works->ptr, d->stream);
		te__free(c->works);
		c->works = next;
	}
	while (c->events) {
		struct te__cuda_kept *next = c->events->next;

		te__cuda_event_unref(c->events->event);
		te__free(c->events);
		c->events = next;
	}
	while (c->marks) {
		struct te__cuda_mark *next = c->marks->next;

		te__free(c->marks);
		c->marks = next;
	}
	while (c->users) {
		struct te__cuda_user *next = c->users->next;

		te__free(c->users);
		c->users = next;
	}
	te__free(c);
}

void te__cuda_capture_list(struct te__cuda_dev *d, struct te__cuda_capture *c)
{
	c->next = d->captures;
	d->captures = c;
	atomic_fetch_add(&d->ncaptures, c->own != 0);
}

void te__cuda_capture_unlist(struct te__cuda_dev *d, struct te__cuda_capture *c)
{
	pthread_mutex_lock(&d->lock);
	for (struct te__cuda_capture **p = &d->captures; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			atomic_fetch_sub(&d->ncaptures, c->own != 0);
			break;
		}
	pthread_mutex_unlock(&d->lock);
}

struct te__cuda_capture *te__cuda_capture_new(void)
{
	struct te__cuda_capture *c = te__calloc(1, sizeof(*c));

	if (!c)
		te__fail(-ENOMEM, "no memory for a capture");
	return c;
}

/* the capture that the stream takes part in; NULL: none */
static int capture_get(struct te__cuda_stream *s, struct te__cuda_capture **ret)
{
	struct te__cuda_dev *d = s->dev;
	struct te__cuda_capture *c;
	uint64_t id = 0;
	int status;
	int r = TE__CU_CALL(cuStreamGetCaptureInfo, s->stream, &status, &id, NULL, NULL, NULL,
			    NULL);

	*ret = NULL;
	if (r || status == TE__CU_CAPTURE_STATUS_NONE)
		return r;
	pthread_mutex_lock(&d->lock);
	for (c = d->captures; c && c->id != id; c = c->next)
		;
	/* begun by the caller on te_stream_native(): its end is not reported here */
	if (!c && (c = te__cuda_capture_new())) {
		c->id = id;
		te__cuda_capture_list(d, c);
	}
	pthread_mutex_unlock(&d->lock);
	*ret = c;
	return c ? 0 : -ENOMEM;
}

void te__cuda_captures_drop(struct te__cuda_dev *d)
{
	while (d->captures) {
		struct te__cuda_capture *c = d->captures;

		d->captures = c->next;
		te__cuda_capture_free(d, c);
	}
	while (d->left) {
		struct te__cuda_stream *s = d->left;

		d->left = s->next;
		te__cuda_workspace_free(d, s->workspace, d->stream);
		te__free(s);
	}
}

/* marks: the node of each queued work */

/* the stream's capture if the library began it, and its latest node if there is one; or NULL */
static int stream_at(struct te__cuda_stream *s, struct te__cuda_capture **ret_capture,
		     void **ret_node)
{
	const struct te__cu_edge_data *data;
	struct te__cuda_capture *c;
	void *const *dep = NULL;
	size_t ndeps = 0;
	uint64_t id = 0;
	int status, r;

	*ret_capture = NULL;
	*ret_node = NULL;
	if (!atomic_load(&s->dev->ncaptures))
		return 0;
	r = TE__CU_CALL(cuStreamGetCaptureInfo, s->stream, &status, &id, NULL, &dep, &data, &ndeps);
	if (r || status != TE__CU_CAPTURE_STATUS_ACTIVE)
		return r;
	pthread_mutex_lock(&s->dev->lock);
	for (c = s->dev->captures; c && c->id != id; c = c->next)
		;
	pthread_mutex_unlock(&s->dev->lock);
	if (c && c->own) {
		*ret_capture = c;
		*ret_node = ndeps == 1 ? dep[0] : NULL;
	}
	return 0;
}

int te__cuda_note_before(struct te__cuda_stream *s, void **ret_node)
{
	struct te__cuda_capture *c;

	return stream_at(s, &c, ret_node);
}

static void mark_add(struct te__cuda_stream *s, struct te__cuda_capture *c,
		     struct te__cuda_mark *m)
{
	pthread_mutex_lock(&s->dev->lock);
	if (c->last_mark)
		c->last_mark->next = m;
	else
		c->marks = m;
	c->last_mark = m;
	pthread_mutex_unlock(&s->dev->lock);
}

int te__cuda_note(struct te__cuda_stream *s, const struct te__gnode *what, void *before)
{
	const size_t nbytes = what->args ? (size_t)what->nbytes : 0;
	struct te__cuda_capture *c;
	struct te__cuda_mark *m;
	void *node;
	int r = stream_at(s, &c, &node);

	if (r || !node)
		return r;
	m = te__malloc(sizeof(*m) + nbytes);
	if (!m)
		return te__fail(-ENOMEM, "no memory for a captured node");
	m->next = NULL;
	m->node = node;
	m->before = before;
	m->what = *what;
	if (nbytes) {
		memcpy(m->args, what->args, nbytes);
		m->what.args = m->args;
	}
	mark_add(s, c, m);
	return 0;
}

/* user-defined work */

static int access_begin(struct te__cuda_stream *s, const struct te__declared *d)
{
	struct te__cuda_capture *c;
	struct te__cuda_mark *m;
	void *before;
	int r = stream_at(s, &c, &before);

	if (!r && !c)
		r = te__fail(-TE_ESTATE, "the stream is not capturing");
	if (r)
		return r;
	m = te__malloc(sizeof(*m) + sizeof(*d));
	if (!m)
		return te__fail(-ENOMEM, "no memory for declared accesses");
	*m = (struct te__cuda_mark){ .before = before, .what = { .id = -1 } };
	memcpy(m->args, d, sizeof(*d));
	m->what.declared = (const struct te__declared *)(const void *)m->args;
	te__free(s->access);
	s->access = m;
	return 0;
}

/* apply the declaration to the work queued since, unless several streams have joined */
static int access_end(struct te__cuda_stream *s)
{
	struct te__cuda_mark *m = s->access;
	struct te__cuda_capture *c = NULL;
	void *node = NULL;
	int r = m ? stream_at(s, &c, &node) : 0;

	s->access = NULL;
	if (r || !node || node == m->before) {
		te__free(m);
		return r;
	}
	m->node = node;
	mark_add(s, c, m);
	return 0;
}

int te__cuda_capture_access(void *stream, const struct te__declared *declared)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN(s->dev, declared ? access_begin(s, declared) : access_end(s));
}

/* host calls */

static void call_run(void *arg)
{
	struct te__cuda_call *c = arg;

	c->fn(c->arg);
}

static void call_run_once(void *arg)
{
	call_run(arg);
	te__free(arg);
}

/* c: NULL, or a copy of the arguments of fn */
static int host_call(struct te__cuda_stream *s, struct te__cuda_call *c, te_host_fn fn, void *arg,
		     size_t nbytes)
{
	const struct te__gnode what = { .kind = TE_NODE_HOST, .id = -1, .nbytes = nbytes };
	struct te__cuda_capture *capture = NULL;
	int r = 0;

	if (c) {
		r = capture_get(s, &capture);
		fn = capture ? call_run : call_run_once;
		arg = c;
	}
	if (!r)
		r = TE__CU_CALL(cuLaunchHostFunc, s->stream, fn, arg);
	if (r) {
		te__free(c);
		return r;
	}
	if (capture) {
		pthread_mutex_lock(&s->dev->lock);
		c->next = capture->calls;
		capture->calls = c;
		pthread_mutex_unlock(&s->dev->lock);
	}
	return te__cuda_note(s, &what, NULL);
}

int te__cuda_host_call(void *stream, te_host_fn fn, const void *arg, size_t nbytes)
{
	struct te__cuda_stream *s = stream;
	struct te__cuda_call *c = NULL;

	if (nbytes) {
		c = te__malloc(sizeof(*c) + nbytes);
		if (!c)
			return te__fail(-ENOMEM, "no memory for a host call's %zu bytes", nbytes);
		c->fn = fn;
		memcpy(c->arg, arg, nbytes);
	}
	return TE__CUDA_IN(s->dev, host_call(s, c, fn, (void *)(uintptr_t)arg, nbytes));
}

/* events */

static int record_external(struct te__cuda_event *e, struct te__cuda_stream *s)
{
	const struct te__gnode what = { .kind = TE_NODE_EVENT, .id = -1, .event = e };
	struct te__cuda_capture *c;
	struct te__cuda_kept *k;
	int r = capture_get(s, &c);

	if (r)
		return r;
	if (!c)
		return te__fail(-TE_ESTATE, "the stream is not capturing");
	k = te__malloc(sizeof(*k));
	if (!k)
		return te__fail(-ENOMEM, "no memory for a captured event");
	atomic_fetch_add(&e->refs, 1);
	k->event = e;
	pthread_mutex_lock(&s->dev->lock);
	k->next = c->events;
	c->events = k;
	pthread_mutex_unlock(&s->dev->lock);
	r = TE__CU_CALL(cuEventRecordWithFlags, e->event, s->stream,
			TE__CU_EVENT_RECORD_EXTERNAL);
	return r ? r : te__cuda_note(s, &what, NULL);
}

int te__cuda_event_record_external(void *event, void *stream)
{
	struct te__cuda_stream *s = stream;

	return TE__CUDA_IN(s->dev, record_external(event, s));
}

/* workspaces */

/* on the device's private stream, because the caller's may be capturing */
static int workspace_alloc(struct te__cuda_dev *d, void **ret_ptr)
{
	int mode = TE__CU_CAPTURE_MODE_RELAXED;
	void *ptr = NULL;
	int r;

	te__cu.cuThreadExchangeStreamCaptureMode(&mode);
	r = te__cuda_mem_get(d, TE__CUDA_WORKSPACE_NBYTES, d->stream, &ptr);
	if (!r) {
		/* so that any stream may use it */
		r = TE__CU_CALL(cuStreamSynchronize, d->stream);
		if (r)
			te__cuda_mem_put(d, ptr, TE__CUDA_WORKSPACE_NBYTES, d->stream);
	}
	te__cu.cuThreadExchangeStreamCaptureMode(&mode);
	if (r)
		return r;
	atomic_fetch_add(&d->workspace_nbytes, TE__CUDA_WORKSPACE_NBYTES);
	*ret_ptr = ptr;
	return 0;
}

void te__cuda_workspace_free(struct te__cuda_dev *d, void *ptr, void *stream)
{
	te__cuda_mem_put(d, ptr, TE__CUDA_WORKSPACE_NBYTES, stream);
	atomic_fetch_sub(&d->workspace_nbytes, TE__CUDA_WORKSPACE_NBYTES);
}

/* chunks of a workspace in turn: GEMMs with separate chunks may run concurrently */
static void *next_chunk(void *workspace, size_t nbytes, size_t *at)
{
	if (nbytes > TE__CUDA_WORKSPACE_NBYTES - *at)
		*at = 0;
	workspace = (char *)workspace + *at;
	*at += (nbytes + 255) & ~(size_t)255;
	return workspace;
}

static int capture_workspace(struct te__cuda_stream *s, struct te__cuda_capture *c, size_t nbytes,
			     void **ret_ptr)
{
	struct te__cuda_work *w;
	int r;

	/* a stream is used by one thread at a time: no other thread adds an entry for it */
	pthread_mutex_lock(&s->dev->lock);
	for (w = c->works; w && w->stream != s->stream; w = w->next)
		;
	pthread_mutex_unlock(&s->dev->lock);
	if (w) {
		*ret_ptr = next_chunk(w->ptr, nbytes, &w->at);
		return 0;
	}
	w = te__malloc(sizeof(*w));
	if (!w)
		return te__fail(-ENOMEM, "no memory for a workspace");
	w->stream = s->stream;
	w->at = 0;
	r = workspace_alloc(s->dev, &w->ptr);
	if (r) {
		te__free(w);
		return r;
	}
	*ret_ptr = next_chunk(w->ptr, nbytes, &w->at);
	pthread_mutex_lock(&s->dev->lock);
	w->next = c->works;
	c->works = w;
	pthread_mutex_unlock(&s->dev->lock);
	return 0;
}

int te__cuda_workspace(struct te__cuda_stream *s, size_t nbytes, void **ret_ptr)
{
	struct te__cuda_capture *c;
	int r;

	if (s->given) {
		*ret_ptr = next_chunk(s->given, nbytes, &s->given_at);
		return 0;
	}
	r = capture_get(s, &c);
	if (!r && c)
		return capture_workspace(s, c, nbytes, ret_ptr);
	if (!r && !s->workspace)
		r = workspace_alloc(s->dev, &s->workspace);
	if (!r)
		*ret_ptr = s->workspace;
	return r;
}
