/*
 * exec.c - captured graphs: their nodes, the executables instantiated from them, and
 * updates and patches of executables while earlier launches still run.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/graph.h"
#include "kernels/launch.h"

/* nodes and edges */

static void nodes_free(struct te__cuda_nodes *n)
{
	if (!n)
		return;
	te__cu.cuGraphDestroy(n->graph);
	te__free(n->node);
	te__free(n);
}

/* a node of the driver, and its number; sorted by node to find the number */
struct key {
	void *node;
	uint32_t number;
};

static int by_node(const void *a, const void *b)
{
	const uintptr_t x = (uintptr_t)((const struct key *)a)->node;
	const uintptr_t y = (uintptr_t)((const struct key *)b)->node;

	return x < y ? -1 : x > y;
}

static int by_number(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* work space of sorting a graph; first numbered like the driver's list, then like the recording */
struct order {
	size_t n, nedges;
	void **node;
	struct key *key;
	void **from, **to;
	struct te__cu_edge_data *data;
	uint32_t *first, *dep; /* node i depends on dep[first[i]] to dep[first[i + 1] - 1] */
	uint32_t *rank; /* by node in the driver's list: its number in the recording */
	uint32_t *stack, *next;
	uint32_t nranked;
};

static void order_free(struct order *o)
{
	te__free(o->node);
	te__free(o->key);
	te__free(o->from);
	te__free(o->to);
	te__free(o->data);
	te__free(o->first);
	te__free(o->dep);
	te__free(o->rank);
	te__free(o->stack);
	te__free(o->next);
}

static int order_get(struct order *o, void *graph)
{
	int r = TE__CU_CALL(cuGraphGetNodes, graph, NULL, &o->n);

	if (!r)
		r = TE__CU_CALL(cuGraphGetEdges, graph, NULL, NULL, NULL, &o->nedges);
	if (r)
		return r;
	o->node = te__malloc(o->n * sizeof(*o->node));
	o->key = te__malloc(o->n * sizeof(*o->key));
	o->from = te__malloc(o->nedges * sizeof(*o->from));
	o->to = te__malloc(o->nedges * sizeof(*o->to));
	o->data = te__malloc(o->nedges * sizeof(*o->data));
	o->first = te__calloc(o->n + 2, sizeof(*o->first));
	o->dep = te__malloc(o->nedges * sizeof(*o->dep));
	o->rank = te__malloc(o->n * sizeof(*o->rank));
	o->stack = te__malloc(o->n * sizeof(*o->stack));
	o->next = te__malloc(o->n * sizeof(*o->next));
	if (!o->node || !o->key || !o->from || !o->to || !o->data || !o->first || !o->dep ||
	    !o->rank || !o->stack || !o->next)
		return te__fail(-ENOMEM, "no memory for %zu graph nodes", o->n);
	if (o->n)
		r = TE__CU_CALL(cuGraphGetNodes, graph, o->node, &o->n);
	if (!r && o->nedges)
		r = TE__CU_CALL(cuGraphGetEdges, graph, o->from, o->to, o->data, &o->nedges);
	return r;
}

static uint32_t number_of(const struct order *o, void *node)
{
	const struct key *k =
		bsearch(&(struct key){ .node = node }, o->key, o->n, sizeof(*k), by_node);

	return k ? k->number : UINT32_MAX;
}

static void order_edges(struct order *o)
{
	for (size_t i = 0; i < o->n; i++)
		o->key[i] = (struct key){ o->node[i], (uint32_t)i };
	qsort(o->key, o->n, sizeof(*o->key), by_node);
	/* a counting sort: counts at index i + 2 become ends at i + 1, which become beginnings */
	for (size_t e = 0; e < o->nedges; e++)
		o->first[number_of(o, o->to[e]) + 2]++;
	for (size_t i = 2; i < o->n + 2; i++)
		o->first[i] += o->first[i - 1];
	for (size_t e = 0; e < o->nedges; e++)
		o->dep[o->first[number_of(o, o->to[e]) + 1]++] = number_of(o, o->from[e]);
}

/* gives the node the next number in the recording, after all of its dependencies */
static void order_visit(struct order *o, uint32_t number)
{
	uint32_t depth = 0;

	if (o->rank[number] != UINT32_MAX)
		return;
	o->stack[depth++] = number;
	while (depth) {
		uint32_t at = o->stack[depth - 1], end = o->first[at + 1];

		while (o->next[at] < end && o->rank[o->dep[o->next[at]]] != UINT32_MAX)
			o->next[at]++;
		if (o->next[at] < end) {
			o->stack[depth++] = o->dep[o->next[at]];
		} else {
			o->rank[at] = o->nranked++;
			depth--;
		}
	}
}

/*
 * Sorts in capture order, so that captures of the same work have the same numbers; the driver
 * guarantees no order of its list. Nodes that the library did not queue come before the first node
 * that depends on them, or last.
 */
static void order_sort(struct order *o, const struct te__cuda_mark *mark)
{
	for (size_t i = 0; i < o->n; i++) {
		o->rank[i] = UINT32_MAX;
		o->next[i] = o->first[i];
	}
	for (; mark; mark = mark->next) {
		uint32_t number = number_of(o, mark->node);

		if (number != UINT32_MAX)
			order_visit(o, number);
	}
	for (uint32_t i = 0; i < o->n; i++)
		order_visit(o, i);
}

static int node_info(void *node, struct te__gnode *ret)
{
	union te__cu_launch_value launch = { .cluster = { 0 } };
	int type = TE__CU_NODE_EMPTY;
	int r = TE__CU_CALL(cuGraphNodeGetType, node, &type);

	if (!r && type == TE__CU_NODE_KERNEL)
		r = TE__CU_CALL(cuGraphKernelNodeGetAttribute, node,
				TE__CU_LAUNCH_CLUSTER_DIMENSION, &launch);
	*ret = (struct te__gnode){ .id = -1 };
	ret->kind = type == TE__CU_NODE_KERNEL	     ? TE_NODE_KERNEL :
		    type == TE__CU_NODE_MEMCPY	     ? TE_NODE_COPY :
		    type == TE__CU_NODE_MEMSET	     ? TE_NODE_FILL :
		    type == TE__CU_NODE_HOST	     ? TE_NODE_HOST :
		    type == TE__CU_NODE_EVENT_RECORD ? TE_NODE_EVENT :
						       TE_NODE_OTHER;
	ret->opaque = ret->kind != TE_NODE_HOST && ret->kind != TE_NODE_EVENT &&
		       type != TE__CU_NODE_EMPTY && type != TE__CU_NODE_WAIT_EVENT;
	ret->cluster = (int32_t)(launch.cluster[0] * launch.cluster[1] * launch.cluster[2]);
	return r;
}

/* fills handles, edges and members that need no marks, numbered like the recording */
static int nodes_fill(struct te__cuda_graph *g, const struct order *o)
{
	uint32_t *dep = g->dep;
	int r = 0;

	for (uint32_t i = 0; i < o->n; i++)
		g->nodes->node[o->rank[i]] = o->node[i];
	for (uint32_t i = 0; !r && i < o->n; i++) {
		struct te__gnode *info = &g->info[o->rank[i]];

		r = node_info(o->node[i], info);
		info->ndeps = o->first[i + 1] - o->first[i];
		info->dep = dep;
		for (uint32_t k = 0; k < info->ndeps; k++)
			dep[k] = o->rank[o->dep[o->first[i] + k]];
		qsort(dep, info->ndeps, sizeof(*dep), by_number);
		dep += info->ndeps;
	}
	return r;
}

/* the node's info, or NULL: it is not in the graph */
static struct te__gnode *info_of(const struct te__cuda_graph *g, const struct order *o, void *node)
{
	uint32_t number = number_of(o, node);

	return number == UINT32_MAX ? NULL : &g->info[o->rank[number]];
}

/* the work that was queued, with the dependencies of the node */
static void mark(struct te__gnode *info, const struct te__gnode *what)
{
	const struct te__gnode found = *info;

	*info = *what;
	info->cluster = found.cluster;
	info->ndeps = found.ndeps;
	info->dep = found.dep;
}

/*
 * Marks the nodes of a GEMM before its last one. Which of its memory each accesses is unknown, so
 * each has all of it; because all write the output, they run serially.
 */
static void mark_parts(struct te__cuda_graph *g, const struct te__cuda_mark *m,
		       const struct te__gnode *last)
{
	struct te__gnode part = m->what;

	part.nbytes = 0;
	while (last->ndeps == 1 && g->info[last->dep[0]].opaque &&
	       g->nodes->node[last->dep[0]] != m->before) {
		struct te__gnode *info = &g->info[last->dep[0]];

		part.kind = info->kind;
		mark(info, &part);
		last = info;
	}
}

static int marks_apply(struct te__cuda_graph *g, const struct order *o)
{
	struct te__gnode *info;
	int r = 0;

	for (const struct te__cuda_mark *m = g->capture->marks; m; m = m->next)
		if (!m->what.declared && (info = info_of(g, o, m->node)))
			mark(info, &m->what);
	/* all other marked nodes are known now */
	for (const struct te__cuda_mark *m = g->capture->marks; m; m = m->next)
		if (m->what.id == TE_K_GEMM && m->what.fixed && (info = info_of(g, o, m->node)))
			mark_parts(g, m, info);
	for (const struct te__cuda_mark *m = g->capture->marks; !r && m; m = m->next)
		if (m->what.declared && (info = info_of(g, o, m->node)))
			r = te__cuda_user_declare(g, m, info);
	return r;
}

static int graph_fill(struct te__cuda_graph *g, struct order *o)
{
	int r = order_get(o, g->nodes->graph);

	if (r)
		return r;
	g->nodes->node = te__malloc(o->n * sizeof(*g->nodes->node));
	g->info = te__malloc(o->n * sizeof(*g->info));
	g->dep = te__malloc(o->nedges * sizeof(*g->dep));
	if (!g->nodes->node || !g->info || !g->dep)
		return te__fail(-ENOMEM, "no memory for %zu graph nodes", o->n);
	order_edges(o);
	order_sort(o, g->capture->marks);
	r = nodes_fill(g, o);
	g->nodes->n = o->n;
	if (!r)
		r = marks_apply(g, o);
	return r ? r : te__cuda_graph_arrange(g);
}

int te__cuda_graph_index(struct te__cuda_graph *g, void *graph)
{
	struct order o = { 0 };
	int r;

	g->nodes = te__calloc(1, sizeof(*g->nodes));
	if (!g->nodes) {
		te__cu.cuGraphDestroy(graph);
		return te__fail(-ENOMEM, "no memory for a graph");
	}
	g->nodes->graph = graph;
	r = graph_fill(g, &o);
	order_free(&o);
	return r;
}

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
static int graph_free(struct te__cuda_graph *g)
{
	nodes_free(g->nodes);
	te__cuda_capture_free(g->dev, g->capture);
	te__free(g->info);
	te__free(g->dep);
	te__free(g);
	return 0;
}

void te__cuda_graph_destroy(void *graph)
{
	struct te__cuda_graph *g = graph;

	(void)TE__CUDA_IN_RELAXED(g->dev, graph_free(g));
}

/* executables */

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
		graph_free(m->graph);
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
	nodes_free(g->nodes);
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
