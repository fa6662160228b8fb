/*
 * exec.c - executables of captured graphs: launches, and updates and patches while earlier
 * launches still run.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/graph.h"

/* Objects that launches use: the present graph, or an earlier one after an update. */
struct made {
	struct made *next;
	void *exec;
	/* exec was instantiated from its nodes; its info has the patches */
	struct te__cuda_graph *graph;
	void *done; /* event after the latest launch; NULL if the capture owns nothing */
};

struct exec {
	struct te__cuda_dev *dev;
	struct made now;
	struct made *past; /* objects that launches queued before an update may use */
};

/* the context must be current; no launch may still use it */
static void made_free(struct made *m)
{
	if (m->done)
		te__cu.cuEventDestroy(m->done);
	if (m->exec)
		te__cu.cuGraphExecDestroy(m->exec);
	if (m->graph)
		te__cuda_graph_free(m->graph);
}

static void past_free(struct exec *e, int wait)
{
	struct made **p = &e->past;

	while (*p) {
		struct made *m = *p;

		if (m->done && wait)
			te__cu.cuEventSynchronize(m->done);
		else if (m->done && te__cu.cuEventQuery(m->done)) {
			p = &m->next;
			continue;
		}
		*p = m->next;
		made_free(m);
		te__free(m);
	}
}

static int exec_destroy(struct exec *e)
{
	past_free(e, 1);
	if (e->now.done)
		te__cu.cuEventSynchronize(e->now.done);
	made_free(&e->now);
	return 0;
}

void te__cuda_exec_destroy(void *exec)
{
	struct exec *e = exec;

	(void)TE__CUDA_IN_RELAXED(e->dev, exec_destroy(e));
	te__free(e);
}

/* creates the event after which launches do not use the capture's memory and events */
static int done_new(const struct te__cuda_capture *c, void **ret_done)
{
	*ret_done = NULL;
	if (!c->calls && !c->works && !c->events)
		return 0;
	return TE__CU_CALL(cuEventCreate, ret_done, TE__CU_EVENT_DEFAULT);
}

static int instantiate(struct te__cuda_graph *g, struct made *ret)
{
	struct made m = { 0 };
	int r = TE__CU_CALL(cuGraphInstantiateWithFlags, &m.exec, g->nodes->graph, 0);

	if (!r)
		r = done_new(g->capture, &m.done);
	/* otherwise the first launch would upload; launches wait for it */
	if (!r)
		r = TE__CU_CALL(cuGraphUpload, m.exec, g->dev->stream);
	if (r) {
		made_free(&m);
		return r;
	}
	m.graph = g;
	*ret = m;
	return 0;
}

int te__cuda_graph_instantiate(void *graph, void **ret_exec)
{
	struct te__cuda_graph *g = graph;
	struct exec *e = te__calloc(1, sizeof(*e));
	int r;

	if (!e)
		return te__fail(-ENOMEM, "no memory for a graph");
	e->dev = g->dev;
	r = TE__CUDA_IN_RELAXED(e->dev, instantiate(g, &e->now));
	if (r) {
		te__free(e);
		return r;
	}
	*ret_exec = e;
	return 0;
}

void *te__cuda_exec_graph(void *exec)
{
	return ((struct exec *)exec)->now.graph;
}

/*
 * A kernel without clusters that takes the place of one with clusters is run with those, because
 * cuGraphExecUpdate() does not remove them (driver 580), and its results are wrong.
 */
static int clusters_remain(const struct te__cuda_graph *from, const struct te__cuda_graph *to)
{
	for (size_t i = 0; i < from->nodes->n; i++)
		if (from->info[i].cluster && !to->info[i].cluster)
			return 1;
	return 0;
}

/* 1: done, 0: the driver cannot, or an error; old receives objects that earlier launches may use */
static int update_in_place(struct exec *e, struct te__cuda_graph *g, struct made *old)
{
	struct te__cu_update_result result;
	void *done;
	int r;

	if (clusters_remain(e->now.graph, g))
		return 0;
	r = done_new(g->capture, &done);
	if (r)
		return r;
	r = TE__CU_RAW(cuGraphExecUpdate, e->now.exec, g->nodes->graph, &result);
	if (r) {
		if (done)
			te__cu.cuEventDestroy(done);
		return r == TE__CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE ?
			       0 :
			       te__cuda_check(r, "cuGraphExecUpdate");
	}
	old->done = e->now.done;
	old->graph = e->now.graph;
	e->now.done = done;
	e->now.graph = g;
	/* patches name nodes of the graph that was instantiated */
	te__cuda_nodes_free(g->nodes);
	g->nodes = old->graph->nodes;
	old->graph->nodes = NULL;
	return 1;
}

static int exec_update(struct exec *e, struct te__cuda_graph *g, int same, struct made *old)
{
	struct made made;
	int r = same ? update_in_place(e, g, old) : 0;
	int how = TE_UPDATE_IN_PLACE;

	if (!r) {
		how = TE_UPDATE_INSTANTIATED;
		r = instantiate(g, &made);
		if (!r) {
			*old = e->now;
			e->now = made;
		}
	}
	if (r < 0)
		return r;
	old->next = e->past;
	e->past = old;
	past_free(e, 0);
	return how;
}

int te__cuda_exec_update(void *exec, void *graph, int same)
{
	struct exec *e = exec;
	struct made *old = te__calloc(1, sizeof(*old));
	int r;

	if (!old)
		return te__fail(-ENOMEM, "no memory to update a graph");
	r = TE__CUDA_IN_RELAXED(e->dev, exec_update(e, graph, same, old));
	if (r < 0)
		te__free(old);
	return r;
}

/* patches */

/* pointers of the same alignment: the function remains */
static int kernel_set(struct exec *e, void *node, const struct te__launch *l)
{
	struct te__cu_kernel_params p;
	void *arg = (void *)(uintptr_t)l->args;
	int r = te__cuda_kernel_params(e->dev, l, &arg, &p);

	return r ? r : te__cu.cuGraphExecKernelNodeSetParams(e->now.exec, node, &p);
}

static void side_set(struct te__cu_memcpy_side *side, const void *ptr)
{
	side->x = side->y = side->z = 0;
	if (side->type == TE__CU_MEMORYTYPE_HOST)
		side->host = (void *)(uintptr_t)ptr;
	else
		side->dev = (uintptr_t)ptr;
}

static int copy_set(struct exec *e, void *node, const struct te__gnode *n)
{
	struct te__cu_memcpy_params p;
	/* the kind of memory, as the driver sees it, which an update in place does not change */
	int r = te__cu.cuGraphMemcpyNodeGetParams(node, &p);

	if (r)
		return r;
	p.width = n->nbytes;
	side_set(&p.dst, n->dst);
	side_set(&p.src, n->src);
	return te__cu.cuGraphExecMemcpyNodeSetParams(e->now.exec, node, &p, e->dev->ctx);
}

/* a CUresult, or an error below 0 */
static int node_set(struct exec *e, uint64_t index, const struct te__gnode *n)
{
	void *node = e->now.graph->nodes->node[index];
	const struct te_k_fill fill = { .dst = n->dst,
					.n = (int64_t)(n->nbytes / (size_t)(n->elem ? n->elem : 1)),
					.value = n->value,
					.elem = n->elem };
	const struct te__launch l = {
		n->args ? (enum te_k_id)n->id : TE_K_FILL,
		n->args ? n->args : &fill,
		n->args ? n->nbytes : sizeof(fill),
	};

	if (n->declared)
		return te__cuda_user_set(e->now.exec, node, &e->now.graph->info[index],
					 n->declared);
	return n->kind == TE_NODE_COPY ? copy_set(e, node, n) : kernel_set(e, node, &l);
}

/* no other node has these arguments: arguments of several nodes are fixed */
static void node_keep(struct te__gnode *info, const struct te__gnode *to)
{
	info->dst = to->dst;
	info->src = to->src;
	if (info->declared)
		*(struct te__declared *)(uintptr_t)info->declared = *to->declared;
	if (info->args)
		memcpy((void *)(uintptr_t)info->args, to->args, (size_t)to->nbytes);
}

static int patch_fail(int r, const struct te__patch *p)
{
	const char *what = p->to.args		      ? te__k_name((enum te_k_id)p->to.id) :
			   p->to.declared	      ? "kernel" :
			   p->to.kind == TE_NODE_COPY ? "copy" :
							"fill";

	if (r < 0)
		return r;
	if (r == TE__CU_ERROR_INVALID_VALUE && !p->to.args && !p->to.declared)
		return te__fail(-EOPNOTSUPP,
				"node %" PRIu64 " (%s of %" PRIu64 " bytes) cannot use memory of "
				"another kind or device",
				p->index, what, p->to.nbytes);
	return te__fail_cuda(r, "node %" PRIu64 " (%s) cannot be patched: %s", p->index, what,
			     te__cuda_error_name(r));
}

static int exec_patch(struct exec *e, uint64_t n, const struct te__patch *patch)
{
	uint64_t i;
	int r = 0;

	for (i = 0; !r && i < n; i++)
		r = te__fault_point() ? TE__CU_ERROR_UNKNOWN :
					node_set(e, patch[i].index, &patch[i].to);
	if (r) {
		r = patch_fail(r, &patch[i - 1]);
		while (i--)
			(void)node_set(e, patch[i].index, &patch[i].from);
		return r;
	}
	for (i = 0; i < n; i++)
		node_keep(&e->now.graph->info[patch[i].index], &patch[i].to);
	return 0;
}

int te__cuda_exec_patch(void *exec, uint64_t n, const struct te__patch *patch)
{
	struct exec *e = exec;

	return TE__CUDA_IN_RELAXED(e->dev, exec_patch(e, n, patch));
}

/* a graph of one fill: the driver queues a memset faster than any graph */
static int is_lone_fill(const struct te__cuda_graph *g)
{
	return g->nodes->n == 1 && g->info->kind == TE_NODE_FILL && !g->info->opaque &&
	       !g->info->declared;
}

static int graph_launch(struct exec *e, struct te__cuda_stream *s)
{
	const struct te__gnode *f = e->now.graph->info;
	void *stream = s->stream;
	int r = s->shown ? te__cuda_capturing(s) : 0;

	if (r > 0)
		return te__fail(-EBUSY, "launch of a recording: the stream is capturing, which "
				"began without this library");
	if (r)
		return r;
	r = is_lone_fill(e->now.graph) ? te__cuda_memset(stream, f->dst, f->value, f->elem,
							 f->nbytes / (size_t)f->elem) :
					 TE__CU_CALL(cuGraphLaunch, e->now.exec, stream);
	return r || !e->now.done ? r : TE__CU_CALL(cuEventRecord, e->now.done, stream);
}

int te__cuda_graph_launch(void *exec, void *stream)
{
	struct exec *e = exec;

	return TE__CUDA_IN(e->dev, graph_launch(e, stream));
}
