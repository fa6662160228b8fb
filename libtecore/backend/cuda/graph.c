/* graph.c - the beginning and the end of captures, and the graphs that they become. */
#include "config.h"

#include <errno.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/graph.h"

void te__cuda_graph_node(void *graph, uint64_t index, struct te__gnode *ret)
{
	*ret = ((struct te__cuda_graph *)graph)->info[index];
}

int te__cuda_graph_info(void *graph, struct te_recording_info *ret)
{
	const struct te__cuda_graph *g = graph;
	struct te_recording_info info = { .size = ret->size, .nnodes = g->nodes->n };

	if (te__fault_point())
		return te__fail(-TE_ECUDA, "injected fault");
	for (size_t i = 0; i < g->nodes->n; i++) {
		const struct te__gnode *n = &g->info[i];

		info.nedges += n->ndeps;
		info.nkernels += n->kind == TE_NODE_KERNEL;
		info.ncopies += n->kind == TE_NODE_COPY;
		info.nfills += n->kind == TE_NODE_FILL;
		info.nhost += n->kind == TE_NODE_HOST;
	}
	*ret = info;
	return 0;
}

/* the context must be current */
int te__cuda_graph_free(struct te__cuda_graph *g)
{
	te__cuda_nodes_free(g->nodes);
	te__cuda_capture_free(g->dev, g->capture);
	te__free(g->info);
	te__free(g->dep);
	te__free(g);
	return 0;
}

void te__cuda_graph_destroy(void *graph)
{
	struct te__cuda_graph *g = graph;

	(void)TE__CUDA_IN_RELAXED(g->dev, te__cuda_graph_free(g));
}

static int capture_begin(struct te__cuda_stream *s, struct te__cuda_capture *c)
{
	void *graph = NULL;
	int status;
	int r;

	if (te__cuda_is_legacy(s))
		return te__fail(-EOPNOTSUPP, "the legacy default stream cannot be captured: wrap a "
				"stream that cuStreamCreate() made");
	/* also for a stream that joined the capture of another stream */
	r = te__cuda_capturing(s);
	if (r > 0)
		return te__fail(-EBUSY, "the stream is capturing already");
	if (!r)
		r = TE__CU_CALL(cuStreamBeginCapture, s->stream, TE__CU_CAPTURE_MODE_THREAD_LOCAL);
	if (r)
		return r;
	r = TE__CU_CALL(cuStreamGetCaptureInfo, s->stream, &status, &c->id, NULL, NULL, NULL, NULL);
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
		g->capture = te__cuda_capture_new();
	if (!g || !g->capture) {
		te__free(g);
		return te__fail(-ENOMEM, "no memory for a graph");
	}
	g->dev = s->dev;
	g->capture->own = 1;
	r = TE__CUDA_IN(s->dev, capture_begin(s, g->capture));
	if (r) {
		te__cuda_graph_destroy(g);
		return r;
	}
	pthread_mutex_lock(&s->dev->lock);
	te__cuda_capture_list(s->dev, g->capture);
	pthread_mutex_unlock(&s->dev->lock);
	s->graph = g;
	s->given_at = 0; /* captures of the same work use the same chunks */
	return 0;
}

int te__cuda_capture_edges(void *stream, uint32_t edges)
{
	struct te__cuda_stream *s = stream;

	if (!s->graph)
		return te__fail(-TE_ESTATE, "no capture began on this stream");
	s->graph->edges = edges;
	return 0;
}

/* ends the capture even if a fault is injected: it could not be ended later; ended: the code of the
 * end of a declaration */
static int capture_end(struct te__cuda_stream *s, struct te__cuda_graph *g, int ended)
{
	int fault = te__fault_point();
	void *graph = NULL;
	int r = te__cu.cuStreamEndCapture(s->stream, &graph);

	if (!r && fault) {
		te__cu.cuGraphDestroy(graph);
		r = TE__CU_ERROR_UNKNOWN;
	}
	if (!r && ended) {
		te__cu.cuGraphDestroy(graph);
		return ended;
	}
	/* an invalid capture has no graph */
	return r ? te__cuda_capture_check(r, "cuStreamEndCapture") : te__cuda_graph_index(g, graph);
}

int te__cuda_capture_end(void *stream, void **ret_graph)
{
	struct te__cuda_stream *s = stream;
	struct te__cuda_graph *g = s->graph;
	int r, ended;

	if (!g)
		return te__fail(-TE_ESTATE, "no capture began on this stream");
	ended = s->access ? te__cuda_capture_access(s, NULL) : 0;
	s->graph = NULL;
	te__cuda_capture_unlist(s->dev, g->capture);
	r = TE__CUDA_IN(s->dev, capture_end(s, g, ended));
	if (r) {
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

	/* cannot fail: 0 if the driver call does */
	return !TE__CUDA_IN(s->dev, te__cu.cuStreamIsCapturing(s->stream, &status)) &&
	       status != TE__CU_CAPTURE_STATUS_NONE;
}
