/*
 * edges.c - the edges that a captured graph runs with on a GPU.
 *
 * With TE_CAPTURE_CONCURRENT edges are computed from memory accesses. With TE_CAPTURE_PDL edges
 * from a kernel to a kernel of the library, which waits in te_begin() until its dependencies have
 * completed, are programmatic: the GPU may schedule its blocks while the last blocks of the
 * dependencies run. Kernels compiled for less than compute capability 9.0 do not wait, and have
 * full edges.
 *
 * On an H200 with driver 580 a launch of connected kernel nodes takes 2 us of CPU time, for
 * any number; each memset node adds 1 us, and each node without dependencies, or that
 * depends on an empty node, 0.7 us. So memsets of cuBLASLt are replaced by kernels, and if several
 * nodes have no dependencies, an empty kernel is added before them.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/graph.h"
#include "libtecore/backend/edges.h"

void te__cuda_edges_free(struct te__cuda_edges *e)
{
	te__free(e->from);
	te__free(e->to);
	te__free(e->data);
	*e = (struct te__cuda_edges){ 0 };
}

int te__cuda_edges_alloc(struct te__cuda_edges *e, size_t n)
{
	*e = (struct te__cuda_edges){ .n = n };
	e->from = te__malloc(n * sizeof(*e->from));
	e->to = te__malloc(n * sizeof(*e->to));
	e->data = te__calloc(n, sizeof(*e->data));
	if (e->from && e->to && e->data)
		return 0;
	te__cuda_edges_free(e);
	return te__fail(-ENOMEM, "no memory for %zu graph edges", n);
}

/* driver 580 applies the data of the first edge of a call to all edges of the call */
static int edges_remove(void *graph, const struct te__cuda_edges *e)
{
	int r = 0;

	for (size_t i = 0, end; !r && i < e->n; i = end) {
		for (end = i + 1;
		     end < e->n && !memcmp(&e->data[end], &e->data[i], sizeof(*e->data));)
			end++;
		r = TE__CU_CALL(cuGraphRemoveDependencies, graph, e->from + i, e->to + i,
				e->data + i, end - i);
	}
	return r;
}

/* 1: a kernel of the library, including fills, which are kernels; no node of cuBLASLt */
static int is_own_kernel(const struct te__gnode *n)
{
	if (n->declared || (n->id == TE_K_GEMM && n->fixed))
		return 0;
	return n->kind == TE_NODE_FILL ? !n->opaque : n->kind == TE_NODE_KERNEL && n->id >= 0;
}

static int is_kernel(const struct te__gnode *n)
{
	return n->kind == TE_NODE_KERNEL || is_own_kernel(n);
}

/*
 * Programmatic edges to user-defined kernels become full ones: these kernels may begin later than
 * necessary, but never too early.
 */
static int edges_add(const struct te__cuda_graph *g)
{
	const struct te__cu_edge_data pdl = { .from_port = TE__CU_PORT_PROGRAMMATIC,
						.type = TE__CU_EDGE_PROGRAMMATIC };
	struct te__cuda_edges e;
	const int has_pdl = (g->dev->target.features & TE_FEATURE_PDL) != 0;
	size_t n = 0, npdl = 0, at;
	int r;

	for (size_t i = 0; i < g->nodes->n; i++)
		n += g->info[i].ndeps;
	r = te__cuda_edges_alloc(&e, n);
	if (r)
		return r;
	n = 0;
	for (size_t i = 0; i < g->nodes->n; i++) {
		const struct te__gnode *to = &g->info[i];

		for (uint32_t k = 0; k < to->ndeps; k++) {
			const int is_pdl = g->edges & TE_CAPTURE_PDL && has_pdl &&
					     is_own_kernel(to) &&
					     is_kernel(&g->info[to->dep[k]]);

			at = is_pdl ? e.n - ++npdl : n++;
			e.from[at] = g->nodes->node[to->dep[k]];
			e.to[at] = g->nodes->node[i];
			if (is_pdl)
				e.data[at] = pdl;
		}
	}
	if (n)
		r = TE__CU_CALL(cuGraphAddDependencies, g->nodes->graph, e.from, e.to, e.data, n);
	if (!r && npdl)
		r = TE__CU_CALL(cuGraphAddDependencies, g->nodes->graph, e.from + n, e.to + n,
				e.data + n, npdl);
	te__cuda_edges_free(&e);
	return r;
}

int te__cuda_kernel_params(struct te__cuda_dev *d, const struct te__launch *l, void **arg,
			   struct te__cu_kernel_params *ret_p)
{
	struct te__cu_kernel_params p = { .params = arg };
	struct te__geometry k;
	int r = te__cuda_func_find(d, l, &k, &p.func);

	if (r)
		return r;
	for (int i = 0; i < 3; i++) {
		p.grid[i] = k.grid[i];
		p.block[i] = k.block[i];
	}
	p.smem = k.smem;
	*ret_p = p;
	return 0;
}

/* replaces a memset of cuBLASLt, which has no edges now, if te_k_fill can do the same */
static int memset_replace(struct te__cuda_graph *g, size_t i)
{
	struct te__cu_memset_params m;
	struct te__cu_kernel_params p;
	struct te_k_fill fill;
	const struct te__launch l = { TE_K_FILL, &fill, sizeof(fill) };
	void *arg = &fill, *node;
	int r = TE__CU_CALL(cuGraphMemsetNodeGetParams, g->nodes->node[i], &m);

	if (r || m.height != 1 || m.elem == 2)
		return r;
	fill = (struct te_k_fill){ (void *)(uintptr_t)m.dst, (int64_t)m.width, m.value,
				   (int32_t)m.elem };
	r = te__cuda_kernel_params(g->dev, &l, &arg, &p);
	if (!r)
		r = TE__CU_CALL(cuGraphAddKernelNode, &node, g->nodes->graph, NULL, 0, &p);
	if (r)
		return r;
	te__cu.cuGraphDestroyNode(g->nodes->node[i]);
	g->nodes->node[i] = node;
	g->info[i].kind = TE_NODE_KERNEL;
	return 0;
}

/* adds an empty fill as node 0, on which all nodes without dependencies depend */
static int root_add(struct te__cuda_graph *g, uint32_t nroots)
{
	struct te_k_fill fill = { .elem = 1 };
	const struct te__launch l = { TE_K_FILL, &fill, sizeof(fill) };
	struct te__cu_kernel_params p;
	void *arg = &fill;
	const size_t n = g->nodes->n + 1;
	size_t ndeps = nroots;
	void **node;
	struct te__gnode *info;
	uint32_t *dep, *at;
	int r;

	for (size_t i = 0; i < g->nodes->n; i++)
		ndeps += g->info[i].ndeps;
	dep = te__malloc(ndeps * sizeof(*dep));
	node = te__realloc(g->nodes->node, n * sizeof(*node));
	if (node)
		g->nodes->node = node;
	info = te__realloc(g->info, n * sizeof(*info));
	if (info)
		g->info = info;
	r = dep && node && info ? 0 : te__fail(-ENOMEM, "no memory for a graph node");
	if (!r)
		r = te__cuda_kernel_params(g->dev, &l, &arg, &p);
	if (!r) {
		memmove(node + 1, node, (n - 1) * sizeof(*node));
		r = TE__CU_CALL(cuGraphAddKernelNode, &node[0], g->nodes->graph, NULL, 0, &p);
	}
	if (r) {
		te__free(dep);
		return r;
	}
	memmove(info + 1, info, (n - 1) * sizeof(*info));
	info[0] = (struct te__gnode){ .kind = TE_NODE_FILL, .id = -1, .elem = 1, .dep = dep };
	g->nodes->n = n;
	at = dep;
	for (size_t i = 1; i < n; i++) {
		uint32_t *begin = at;

		for (uint32_t k = 0; k < info[i].ndeps; k++)
			*at++ = info[i].dep[k] + 1;
		if (begin == at)
			*at++ = 0;
		info[i].dep = begin;
		info[i].ndeps = (uint32_t)(at - begin);
	}
	te__free(g->dep);
	g->dep = dep;
	return 0;
}

static int concurrent_edges(struct te__cuda_graph *g)
{
	struct te__edges e;
	uint32_t nroots = 0;
	int r = te__edges_from_accesses((uint32_t)g->nodes->n, g->info, &e);

	if (r)
		return r;
	te__free(g->dep);
	g->dep = e.dep;
	for (size_t i = 0; i < g->nodes->n; i++) {
		g->info[i].ndeps = e.first[i + 1] - e.first[i];
		g->info[i].dep = g->info[i].ndeps ? e.dep + e.first[i] : NULL;
		nroots += !g->info[i].ndeps;
	}
	te__free(e.first);
	return nroots > 1 ? root_add(g, nroots) : 0;
}

static int is_gemm_memset(const struct te__gnode *n)
{
	return n->kind == TE_NODE_FILL && n->id == TE_K_GEMM;
}

int te__cuda_graph_arrange(struct te__cuda_graph *g, const struct te__cuda_edges *captured)
{
	int changes = g->edges != 0;
	int r;

	for (size_t i = 0; !changes && i < g->nodes->n; i++)
		changes = is_gemm_memset(&g->info[i]);
	if (!changes)
		return 0;
	r = edges_remove(g->nodes->graph, captured);
	for (size_t i = 0; !r && i < g->nodes->n; i++)
		if (is_gemm_memset(&g->info[i]))
			r = memset_replace(g, i);
	if (!r && g->edges & TE_CAPTURE_CONCURRENT)
		r = concurrent_edges(g);
	return r ? r : edges_add(g);
}
