/* used.c - see used.h. */
#include "config.h"

#include <errno.h>
#include <stdlib.h>

#include "libtecore/backend/edges.h"
#include "libtecore/base/base.h"
#include "libtecore/base/search.h"
#include "libtecore/capture/used.h"

static int by_begin(const void *a, const void *b)
{
	const uintptr_t x = ((const struct te__used_range *)a)->begin;
	const uintptr_t y = ((const struct te__used_range *)b)->begin;

	return x < y ? -1 : x > y;
}

static void set_last_ends(struct te__used_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		const size_t before = i ? l->v[i - 1].last_end : i;

		l->v[i].last_end = l->v[before].end > l->v[i].end ? before : i;
	}
}

/* the ranges of a node of the graph */
static void ranges_of(const struct te__backend_ops *ops, void *graph, uint64_t index,
		      struct te__ranges *ret)
{
	struct te__gnode n;

	ops->graph_node(graph, index, &n);
	te__node_ranges(&n, ret);
}

int te__used_init(struct te__used *u, const struct te__backend_ops *ops, void *graph, uint64_t n)
{
	struct te__ranges r;
	size_t nranges = 0;

	for (uint64_t i = 0; i < n; i++) {
		ranges_of(ops, graph, i, &r);
		nranges += r.n;
	}
	*u = (struct te__used){ .bound = te__calloc(n, sizeof(*u->bound)) };
	u->any.v = te__malloc(nranges * sizeof(*u->any.v));
	u->written.v = te__malloc(nranges * sizeof(*u->written.v));
	if (!u->bound || !u->any.v || !u->written.v) {
		te__used_free(u);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < n; i++) {
		ranges_of(ops, graph, i, &r);
		for (uint32_t k = 0; k < r.n; k++) {
			const struct te__used_range range = { .begin = r.v[k].ptr,
							      .end = r.v[k].ptr + r.v[k].nbytes,
							      .node = (uint32_t)i,
							      .number = k };

			u->any.v[u->any.n++] = range;
		}
	}
	if (u->any.n)
		qsort(u->any.v, u->any.n, sizeof(*u->any.v), by_begin);
	for (size_t i = 0; i < u->any.n; i++) {
		ranges_of(ops, graph, u->any.v[i].node, &r);
		if (r.v[u->any.v[i].number].access != TE__READ)
			u->written.v[u->written.n++] = u->any.v[i];
	}
	set_last_ends(&u->any);
	set_last_ends(&u->written);
	return 0;
}

void te__used_free(struct te__used *u)
{
	te__free(u->any.v);
	te__free(u->written.v);
	te__free(u->bound);
	*u = (struct te__used){ 0 };
}

static void list_drop(struct te__used_list *l, const uint32_t *bound)
{
	size_t kept = 0;

	for (size_t i = 0; i < l->n; i++)
		if (!(bound[l->v[i].node] >> l->v[i].number & 1))
			l->v[kept++] = l->v[i];
	l->n = kept;
	set_last_ends(l);
}

void te__used_drop_bound(struct te__used *u)
{
	if (!u->stale)
		return;
	list_drop(&u->any, u->bound);
	list_drop(&u->written, u->bound);
	u->stale = 0;
}

static int begins_below(const void *list, size_t i, uint64_t p)
{
	return ((const struct te__used_list *)list)->v[i].begin < p;
}

int64_t te__used_at(const struct te__used_list *l, uintptr_t begin, uintptr_t end)
{
	const size_t n = te__count_before(l, l->n, begins_below, end);
	size_t last_end;

	/* among the ranges that begin before end, does the one that ends last end after begin? */
	if (!n)
		return -1;
	last_end = l->v[n - 1].last_end;
	return l->v[last_end].end > begin ? (int64_t)l->v[last_end].node : -1;
}
