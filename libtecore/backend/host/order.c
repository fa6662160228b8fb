/*
 * order.c - dependencies from memory accesses for host graphs, and a random order.
 *
 * With a seed in TE_HOST_SHUFFLE nodes run serially in a random order that respects the edges, so
 * that a missing edge changes results reproducibly.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>

#include "libtecore/base/splitmix64.h"

#include "libtecore/backend/edges.h"
#include "libtecore/backend/host/host.h"

static int no_memory(void)
{
	return te__fail(-ENOMEM, "host: no memory for the edges of a graph");
}

/* g->run: repeatedly a random choice among the nodes whose dependencies have run */
static int shuffle(struct host_graph *g, const struct te__edges *e, uint64_t seed)
{
	const uint32_t n = (uint32_t)g->nnodes;
	uint32_t *ready = te__malloc(n * sizeof(*ready)), *left = te__calloc(n, sizeof(*left));
	uint32_t nready = 0, nrun = 0;
	int r = ready && left ? 0 : no_memory();

	if (!r) {
		g->run = te__malloc(n * sizeof(*g->run));
		r = g->run ? 0 : no_memory();
	}
	for (uint32_t i = 0; !r && i < n; i++) {
		left[i] = e->first[i + 1] - e->first[i];
		if (!left[i])
			ready[nready++] = i;
	}
	while (!r && nready) {
		const uint32_t at = (uint32_t)(te__splitmix64(&seed) % nready), node = ready[at];

		ready[at] = ready[--nready];
		g->run[nrun++] = node;
		for (uint32_t i = node + 1; i < n; i++)
			for (uint32_t d = e->first[i]; d < e->first[i + 1]; d++)
				if (e->dep[d] == node && !--left[i])
					ready[nready++] = i;
	}
	te__free(ready);
	te__free(left);
	return r;
}

int host_graph_order(struct host_graph *g, uint64_t seed)
{
	const uint32_t n = (uint32_t)g->nnodes;
	struct te__gnode *node = te__malloc(n * sizeof(*node));
	struct te__edges e = { 0 };
	int r = node ? 0 : no_memory();

	for (uint32_t i = 0; !r && i < n; i++)
		host_graph_node(g, i, &node[i]);
	if (!r)
		r = te__edges_from_accesses(n, node, &e);
	te__free(node);
	if (!r && seed)
		r = shuffle(g, &e, seed);
	if (r) {
		te__edges_free(&e);
		return r;
	}
	te__free(g->first.v);
	te__free(g->dep.v);
	g->nedges = e.first[n];
	g->first = (struct host_ids){ e.first, n, n + 1 };
	g->dep = (struct host_ids){ e.dep, e.first[n], e.first[n] };
	return 0;
}
