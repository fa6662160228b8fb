/*
 * cuda_graph.c - captures, graphs, and what recorded work needs to live: copies
 * of host call arguments and workspaces. The last of graph and exec frees those.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda_internal.h"

struct call {
	struct call *next;
	te_host_fn fn;
	_Alignas(max_align_t) char arg[];
};

struct work {
	struct work *next;
	void *stream;
	void *ptr;
};

struct te__cuda_capture {
	struct te__cuda_capture *next;
	uint64_t id;
	int refs; /* under the device's lock, like the lists */
	struct call *calls;
	struct work *works;
};

struct te__cuda_graph {
	struct te__cuda_dev *dev;
	void *graph;
	struct te__cuda_capture *capture;
};

struct exec {
	struct te__cuda_dev *dev;
	void *exec;
	struct te__cuda_capture *capture;
	void *done; /* event behind the latest launch; NULL where nothing waits for it */
};

/* with the context current */
static void capture_free(struct te__cuda_dev *d, struct te__cuda_capture *c)
{
	while (c->calls) {
		struct call *next = c->calls->next;

		te__free(c->calls);
		c->calls = next;
	}
	while (c->works) {
		struct work *next = c->works->next;

		te__cuda_workspace_free(d, c->works->ptr, d->stream);
		te__free(c->works);
		c->works = next;
	}
	te__free(c);
}

static void capture_unref(struct te__cuda_dev *d, struct te__cuda_capture *c)
{
	int left;

	pthread_mutex_lock(&d->lock);
	left = --c->refs;
	pthread_mutex_unlock(&d->lock);
	if (!left)
		capture_free(d, c);
}

static void capture_list(struct te__cuda_dev *d, struct te__cuda_capture *c)
{
	c->next = d->captures;
	d->captures = c;
}

static void capture_unlist(struct te__cuda_dev *d, struct te__cuda_capture *c)
{
	pthread_mutex_lock(&d->lock);
	for (struct te__cuda_capture **p = &d->captures; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			break;
		}
	pthread_mutex_unlock(&d->lock);
}

static struct te__cuda_capture *capture_new(void)
{
	struct te__cuda_capture *c = te__calloc(1, sizeof(*c));

	if (c)
		c->refs = 1;
	else
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
	int r = TE__CU_CALL(cuStreamGetCaptureInfo, s->stream, &status, &id);

	*ret = NULL;
	if (r || status == TE__CU_CAPTURE_STATUS_NONE)
		return r;
	pthread_mutex_lock(&d->lock);
	for (c = d->captures; c && c->id != id; c = c->next)
		;
	/* begun by the caller on te_stream_native(): we never see its end */
	if (!c && (c = capture_new())) {
		c->id = id;
		capture_list(d, c);
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
		capture_free(d, c);
	}
}

/* host calls */

static void call_run(void *arg)
{
	struct call *c = arg;

	c->fn(c->arg);
}

static void call_run_once(void *arg)
{
	call_run(arg);
	te__free(arg);
}

static int host_call(struct te__cuda_stream *s, struct call *c)
{
	struct te__cuda_capture *capture;
	int r = capture_get(s, &capture);

	if (!r)
		r = TE__CU_CALL(cuLaunchHostFunc, s->stream, capture ? call_run : call_run_once, c);
	if (r || !capture)
		return r;
	pthread_mutex_lock(&s->dev->lock);
	c->next = capture->calls;
	capture->calls = c;
	pthread_mutex_unlock(&s->dev->lock);
	return 0;
}

int te__cuda_host_call(void *stream, te_host_fn fn, const void *arg, size_t nbytes)
{
	struct te__cuda_stream *s = stream;
	struct call *c;
	int r;

	if (!nbytes)
		return TE__CUDA_IN(s->dev,
				   TE__CU_CALL(cuLaunchHostFunc, s->stream, fn, (void *)arg));
	c = te__malloc(sizeof(*c) + nbytes);
	if (!c)
		return te__fail(-ENOMEM, "no memory for a host call's %zu bytes", nbytes);
	c->fn = fn;
	memcpy(c->arg, arg, nbytes);
	r = TE__CUDA_IN(s->dev, host_call(s, c));
	if (r)
		te__free(c);
	return r;
}

/* workspaces */

/* on the device's own stream: the caller's may be capturing */
static int workspace_alloc(struct te__cuda_dev *d, void **ret_ptr)
{
	int mode = TE__CU_CAPTURE_MODE_RELAXED;
	uint64_t ptr = 0;
	int r;

	te__cu.cuThreadExchangeStreamCaptureMode(&mode);
	r = TE__CU_CALL(cuMemAllocFromPoolAsync, &ptr, TE__CUDA_WORKSPACE_NBYTES, d->pool,
			d->stream);
	if (!r) {
		/* from now on any stream may use it */
		r = TE__CU_CALL(cuStreamSynchronize, d->stream);
		if (r)
			te__cu.cuMemFreeAsync(ptr, d->stream);
	}
	te__cu.cuThreadExchangeStreamCaptureMode(&mode);
	if (r)
		return r;
	atomic_fetch_add(&d->workspace_nbytes, TE__CUDA_WORKSPACE_NBYTES);
	*ret_ptr = (void *)(uintptr_t)ptr;
	return 0;
}

void te__cuda_workspace_free(struct te__cuda_dev *d, void *ptr, void *stream)
{
	te__cu.cuMemFreeAsync((uintptr_t)ptr, stream);
	atomic_fetch_sub(&d->workspace_nbytes, TE__CUDA_WORKSPACE_NBYTES);
}

static int capture_workspace(struct te__cuda_stream *s, struct te__cuda_capture *c, void **ret_ptr)
{
	struct work *w;
	int r;

	/* a stream is used by one thread at a time: nobody adds its entry meanwhile */
	pthread_mutex_lock(&s->dev->lock);
	for (w = c->works; w && w->stream != s->stream; w = w->next)
		;
	pthread_mutex_unlock(&s->dev->lock);
	if (w) {
		*ret_ptr = w->ptr;
		return 0;
	}
	w = te__malloc(sizeof(*w));
	if (!w)
		return te__fail(-ENOMEM, "no memory for a workspace");
	w->stream = s->stream;
	r = workspace_alloc(s->dev, &w->ptr);
	if (r) {
		te__free(w);
		return r;
	}
	*ret_ptr = w->ptr;
	pthread_mutex_lock(&s->dev->lock);
	w->next = c->works;
	c->works = w;
	pthread_mutex_unlock(&s->dev->lock);
	return 0;
}

int te__cuda_workspace(struct te__cuda_stream *s, void **ret_ptr)
{
	struct te__cuda_capture *c;
	int r = capture_get(s, &c);

	if (!r && c)
		return capture_workspace(s, c, ret_ptr);
	if (!r && !s->workspace)
		r = workspace_alloc(s->dev, &s->workspace);
	if (!r)
		*ret_ptr = s->workspace;
	return r;
}

/* captures */

int te__cuda_capture_check(int result, const char *call)
{
	switch (result) {
	case TE__CU_ERROR_CAPTURE_INVALIDATED:
	case TE__CU_ERROR_CAPTURE_MERGE:
	case TE__CU_ERROR_CAPTURE_UNJOINED:
	case TE__CU_ERROR_CAPTURE_ISOLATION:
	case TE__CU_ERROR_CAPTURED_EVENT:
		return te__fail(-TE_ESTATE, "%s: %s", call, te__cuda_error_name(result));
	default:
		return te__cuda_check(result, call);
	}
}

static int capture_begin(struct te__cuda_stream *s, struct te__cuda_capture *c)
{
	void *graph = NULL;
	int status;
	/* also a stream that joined the capture of another one */
	int r = te__cuda_capturing(s);

	if (r > 0)
		return te__fail(-EBUSY, "the stream is capturing already");
	if (!r)
		r = TE__CU_CALL(cuStreamBeginCapture, s->stream, TE__CU_CAPTURE_MODE_THREAD_LOCAL);
	if (r)
		return r;
	r = TE__CU_CALL(cuStreamGetCaptureInfo, s->stream, &status, &c->id);
	if (r && !te__cu.cuStreamEndCapture(s->stream, &graph))
		te__cu.cuGraphDestroy(graph);
	return r;
}

int te__cuda_capture_begin(void *stream)
{
	struct te__cuda_stream *s = stream;
	struct te__cuda_graph *g;
	int r;

	if (s->graph)
		return te__fail(-EBUSY, "the stream is capturing already");
	g = te__calloc(1, sizeof(*g));
	if (g)
		g->capture = capture_new();
	if (!g || !g->capture) {
		te__free(g);
		return te__fail(-ENOMEM, "no memory for a graph");
	}
	g->dev = s->dev;
	r = TE__CUDA_IN(s->dev, capture_begin(s, g->capture));
	if (r) {
		te__cuda_graph_destroy(g);
		return r;
	}
	pthread_mutex_lock(&s->dev->lock);
	capture_list(s->dev, g->capture);
	pthread_mutex_unlock(&s->dev->lock);
	s->graph = g;
	return 0;
}

/* ends even where a test makes it fail: nobody could end it later */
static int capture_end(struct te__cuda_stream *s, void **ret_graph)
{
	int fault = te__fault_point();
	int r = te__cu.cuStreamEndCapture(s->stream, ret_graph);

	if (!r && fault) {
		te__cu.cuGraphDestroy(*ret_graph);
		r = TE__CU_ERROR_UNKNOWN;
	}
	return te__cuda_capture_check(r, "cuStreamEndCapture");
}

int te__cuda_capture_end(void *stream, void **ret_graph)
{
	struct te__cuda_stream *s = stream;
	struct te__cuda_graph *g = s->graph;
	int r;

	if (!g)
		return te__fail(-TE_ESTATE, "no capture began on this stream");
	s->graph = NULL;
	capture_unlist(s->dev, g->capture);
	r = TE__CUDA_IN(s->dev, capture_end(s, &g->graph));
	if (r) {
		/* an invalid capture leaves no graph */
		g->graph = NULL;
		te__cuda_graph_destroy(g);
		return r;
	}
	*ret_graph = g;
	return 0;
}

int te__cuda_capture_active(void *stream)
{
	struct te__cuda_stream *s = stream;
	int status = TE__CU_CAPTURE_STATUS_NONE;

	/* it only tells: what cannot be asked does not capture */
	return !TE__CUDA_IN(s->dev, te__cu.cuStreamIsCapturing(s->stream, &status)) &&
	       status != TE__CU_CAPTURE_STATUS_NONE;
}

/* graphs */

static int count_nodes(void *graph, size_t n, struct te_recording_info *ret)
{
	void **node = te__malloc(n * sizeof(*node));
	int r;

	if (!node)
		return te__fail(-ENOMEM, "no memory for %zu graph nodes", n);
	r = TE__CU_CALL(cuGraphGetNodes, graph, node, &n);
	for (size_t i = 0; !r && i < n; i++) {
		int type;

		r = TE__CU_CALL(cuGraphNodeGetType, node[i], &type);
		if (r)
			break;
		ret->nkernels += type == TE__CU_NODE_KERNEL;
		ret->ncopies += type == TE__CU_NODE_MEMCPY;
		ret->nfills += type == TE__CU_NODE_MEMSET;
		ret->nhost += type == TE__CU_NODE_HOST;
	}
	te__free(node);
	return r;
}

static int graph_info(void *graph, struct te_recording_info *ret)
{
	struct te_recording_info info = { .size = ret->size };
	size_t nnodes, nedges;
	int r = TE__CU_CALL(cuGraphGetNodes, graph, NULL, &nnodes);

	if (!r)
		r = TE__CU_CALL(cuGraphGetEdges, graph, NULL, NULL, NULL, &nedges);
	if (!r && nnodes)
		r = count_nodes(graph, nnodes, &info);
	if (r)
		return r;
	info.nnodes = nnodes;
	info.nedges = nedges;
	*ret = info;
	return 0;
}

int te__cuda_graph_info(void *graph, struct te_recording_info *ret)
{
	struct te__cuda_graph *g = graph;

	return TE__CUDA_IN(g->dev, graph_info(g->graph, ret));
}

static int exec_destroy(struct exec *e)
{
	/* recorded work still runs with what capture_free() takes away */
	if (e->done) {
		te__cu.cuEventSynchronize(e->done);
		te__cu.cuEventDestroy(e->done);
	}
	if (e->exec)
		te__cu.cuGraphExecDestroy(e->exec);
	capture_unref(e->dev, e->capture);
	return 0;
}

void te__cuda_exec_destroy(void *exec)
{
	struct exec *e = exec;

	(void)TE__CUDA_IN_RELAXED(e->dev, exec_destroy(e));
	te__free(e);
}

static int instantiate(struct exec *e, void *graph)
{
	int r = TE__CU_CALL(cuGraphInstantiateWithFlags, &e->exec, graph, 0);

	if (!r && (e->capture->calls || e->capture->works))
		r = TE__CU_CALL(cuEventCreate, &e->done, TE__CU_EVENT_DEFAULT);
	/* else the first launch would do it; launches wait for it */
	return r ? r : TE__CU_CALL(cuGraphUpload, e->exec, e->dev->stream);
}

int te__cuda_graph_instantiate(void *graph, void **ret_exec)
{
	struct te__cuda_graph *g = graph;
	struct exec *e = te__calloc(1, sizeof(*e));
	int r;

	if (!e)
		return te__fail(-ENOMEM, "no memory for a graph");
	e->dev = g->dev;
	e->capture = g->capture;
	pthread_mutex_lock(&g->dev->lock);
	e->capture->refs++;
	pthread_mutex_unlock(&g->dev->lock);
	r = TE__CUDA_IN_RELAXED(e->dev, instantiate(e, g->graph));
	if (r) {
		te__cuda_exec_destroy(e);
		return r;
	}
	*ret_exec = e;
	return 0;
}

static int graph_launch(struct exec *e, void *stream)
{
	int r = TE__CU_CALL(cuGraphLaunch, e->exec, stream);

	return r || !e->done ? r : TE__CU_CALL(cuEventRecord, e->done, stream);
}

int te__cuda_graph_launch(void *exec, void *stream)
{
	struct exec *e = exec;

	return TE__CUDA_IN(e->dev, graph_launch(e, ((struct te__cuda_stream *)stream)->stream));
}

static int graph_destroy(struct te__cuda_graph *g)
{
	if (g->graph)
		te__cu.cuGraphDestroy(g->graph);
	capture_unref(g->dev, g->capture);
	return 0;
}

void te__cuda_graph_destroy(void *graph)
{
	struct te__cuda_graph *g = graph;

	(void)TE__CUDA_IN_RELAXED(g->dev, graph_destroy(g));
	te__free(g);
}
