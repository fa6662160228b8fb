/* nodes.c - the nodes of a captured graph, in the order of the capture, with their edges. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/graph.h"

void te__cuda_nodes_free(struct te__cuda_nodes *n)
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
	size_t n;
	void **node;
	struct key *key;
	struct te__cuda_edges edges;
	uint32_t *first, *dep; /* node i depends on dep[first[i]] to dep[first[i + 1] - 1] */
	uint32_t *rank; /* by node in the driver's list: its number in the recording */
	uint32_t *stack, *next;
	uint32_t nranked;
};

static void order_free(struct order *o)
{
	te__free(o->node);
	te__free(o->key);
	te__cuda_edges_free(&o->edges);
	te__free(o->first);
	te__free(o->dep);
	te__free(o->rank);
	te__free(o->stack);
	te__free(o->next);
}

static int order_get(struct order *o, void *graph)
{
	size_t nedges = 0;
	int r = TE__CU_CALL(cuGraphGetNodes, graph, NULL, &o->n);

	if (!r)
		r = TE__CU_CALL(cuGraphGetEdges, graph, NULL, NULL, NULL, &nedges);
	if (!r)
		r = te__cuda_edges_alloc(&o->edges, nedges);
	if (r)
		return r;
	o->node = te__malloc(o->n * sizeof(*o->node));
	o->key = te__malloc(o->n * sizeof(*o->key));
	o->first = te__calloc(o->n + 2, sizeof(*o->first));
	o->dep = te__malloc(nedges * sizeof(*o->dep));
	o->rank = te__malloc(o->n * sizeof(*o->rank));
	o->stack = te__malloc(o->n * sizeof(*o->stack));
	o->next = te__malloc(o->n * sizeof(*o->next));
	if (!o->node || !o->key || !o->first || !o->dep || !o->rank || !o->stack || !o->next)
		return te__fail(-ENOMEM, "no memory for %zu graph nodes", o->n);
	if (o->n)
		r = TE__CU_CALL(cuGraphGetNodes, graph, o->node, &o->n);
	if (!r && nedges)
		r = TE__CU_CALL(cuGraphGetEdges, graph, o->edges.from, o->edges.to, o->edges.data,
				&o->edges.n);
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
	for (size_t e = 0; e < o->edges.n; e++)
		o->first[number_of(o, o->edges.to[e]) + 2]++;
	for (size_t i = 2; i < o->n + 2; i++)
		o->first[i] += o->first[i - 1];
	for (size_t e = 0; e < o->edges.n; e++)
		o->dep[o->first[number_of(o, o->edges.to[e]) + 1]++] =
			number_of(o, o->edges.from[e]);
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
	g->dep = te__malloc(o->edges.n * sizeof(*g->dep));
	if (!g->nodes->node || !g->info || !g->dep)
		return te__fail(-ENOMEM, "no memory for %zu graph nodes", o->n);
	order_edges(o);
	order_sort(o, g->capture->marks);
	r = nodes_fill(g, o);
	g->nodes->n = o->n;
	if (!r)
		r = marks_apply(g, o);
	return r ? r : te__cuda_graph_arrange(g, &o->edges);
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
