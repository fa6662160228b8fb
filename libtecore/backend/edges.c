/*
 * edges.c - dependency edges of a captured graph, computed from memory accesses.
 *
 * The endpoints of all accessed ranges split memory into segments. Each segment remembers its
 * latest group of accesses that may run concurrently (all reads, or disjoint writes) and the
 * group before. A compatible access joins the latest group and depends on the group before; any
 * other access depends on the latest group and starts a new one. Edges that others imply are
 * dropped, using one bit set of ancestors per node.
 */
#define TE_LOG_CATEGORY "core/edges"
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/backend/edges.h"
#include "libtecore/base/base.h"
#include "libtecore/base/grow.h"

#define NONE UINT32_MAX
/* maximum nodes of graphs whose implied edges are dropped: n sets of n bits, 32 MiB */
#define REDUCE_MAX 16384

/* a node in a list */
struct link {
	uint32_t node;
	uint32_t next; /* or NONE */
};

struct segment {
	uintptr_t begin;
	uint32_t latest, before; /* lists of links */
	uint32_t since;		 /* the latest barrier when these were added */
	enum te__access access;	 /* access by the latest group */
};

struct work {
	uint32_t n;
	const struct te__gnode *node;
	struct segment *segment;
	size_t nsegments;
	struct link *link;
	size_t nlinks, caplinks;
	uint32_t *pending; /* dependencies of the present node, without duplicates */
	uint32_t npending;
	uint32_t *seen; /* the latest node that has this one as dependency */
	uint64_t *ancestors; /* [n, nwords] bits: all that a node depends on; or NULL */
	size_t nwords;
	unsigned char *has_dependent;
	uint32_t barrier; /* the latest, or NONE */
	struct te__edges e;
	size_t ndeps, capdeps;
};

void te__edges_free(struct te__edges *e)
{
	te__free(e->first);
	te__free(e->dep);
	*e = (struct te__edges){ 0 };
}

/* memory */

void te__node_ranges(const struct te__gnode *n, struct te__ranges *ret)
{
	ret->n = 0;
	if (n->declared)
		*ret = n->declared->ranges;
	if (n->args)
		te__k_ranges((enum te_k_id)n->id, n->args, ret);
	if (n->src)
		ret->v[ret->n++] = (struct te__range){ (uintptr_t)n->src, n->nbytes, TE__READ };
	if (n->dst)
		ret->v[ret->n++] = (struct te__range){ (uintptr_t)n->dst, n->nbytes, TE__WRITE };
	if (n->scratch.nbytes)
		ret->v[ret->n++] = n->scratch;
}

static int by_begin(const void *a, const void *b)
{
	const uintptr_t x = ((const struct segment *)a)->begin;
	const uintptr_t y = ((const struct segment *)b)->begin;

	return x < y ? -1 : x > y;
}

/* make a segment from each endpoint of a range to the next */
static int segments_make(struct work *w)
{
	struct te__ranges r;
	size_t n = 0, kept = 0;

	for (uint32_t i = 0; i < w->n; i++) {
		te__node_ranges(&w->node[i], &r);
		n += 2 * r.n;
	}
	w->segment = te__malloc(n * sizeof(*w->segment));
	if (!w->segment)
		return -ENOMEM;
	n = 0;
	for (uint32_t i = 0; i < w->n; i++) {
		te__node_ranges(&w->node[i], &r);
		for (uint32_t k = 0; k < r.n; k++) {
			w->segment[n++].begin = r.v[k].ptr;
			w->segment[n++].begin = r.v[k].ptr + r.v[k].nbytes;
		}
	}
	if (n)
		qsort(w->segment, n, sizeof(*w->segment), by_begin);
	for (size_t i = 0; i < n; i++)
		if (!kept || w->segment[i].begin != w->segment[kept - 1].begin)
			w->segment[kept++] = (struct segment){ .begin = w->segment[i].begin,
							       .latest = NONE,
							       .before = NONE,
							       .since = NONE };
	w->nsegments = kept;
	return 0;
}

static struct segment *segment_at(const struct work *w, uintptr_t begin)
{
	return bsearch(&(struct segment){ .begin = begin }, w->segment, w->nsegments,
		       sizeof(*w->segment), by_begin);
}

/* dependencies */

/* adds a dependency of node at, unless it is the node itself */
static void dep_add(struct work *w, uint32_t node, uint32_t at)
{
	if (node == at || w->seen[node] == at)
		return;
	w->seen[node] = at;
	w->pending[w->npending++] = node;
}

static void deps_add_list(struct work *w, uint32_t list, uint32_t at)
{
	for (; list != NONE; list = w->link[list].next)
		dep_add(w, w->link[list].node, at);
}

static int link_add(struct work *w, uint32_t *list, uint32_t node)
{
	if (TE__GROW(w->link, w->caplinks, w->nlinks))
		return -ENOMEM;
	w->link[w->nlinks] = (struct link){ node, *list };
	*list = (uint32_t)w->nlinks++;
	return 0;
}

/* Kernels of one pass, each launched once with the same arguments, make disjoint writes. */
static int are_disjoint(const struct work *w, uint32_t list, const struct te__gnode *n)
{
	const size_t nbytes = te__k_nbytes((enum te_k_id)n->id);

	for (; list != NONE; list = w->link[list].next) {
		const struct te__gnode *o = &w->node[w->link[list].node];

		if (!o->args || o->id == n->id || te__k_nbytes((enum te_k_id)o->id) != nbytes ||
		    memcmp(o->args, n->args, nbytes) != 0)
			return 0;
	}
	return 1;
}

static int joins_latest(const struct work *w, const struct segment *s, enum te__access access,
			const struct te__gnode *n)
{
	if (s->latest == NONE || s->access != access || access == TE__WRITE)
		return 0;
	return access == TE__READ || are_disjoint(w, s->latest, n);
}

/* the node accesses the range */
static int use(struct work *w, const struct te__range *r, uint32_t node)
{
	int ret = 0;

	for (struct segment *s = segment_at(w, r->ptr); !ret && s->begin < r->ptr + r->nbytes;
	     s++) {
		if (s->since != w->barrier) {
			s->since = w->barrier;
			s->latest = s->before = NONE;
		}
		if (!joins_latest(w, s, r->access, &w->node[node])) {
			s->before = s->latest;
			s->latest = NONE;
			s->access = r->access;
		}
		deps_add_list(w, s->before, node);
		ret = link_add(w, &s->latest, node);
	}
	return ret;
}

/* edges */

static uint64_t *ancestors(const struct work *w, uint32_t node)
{
	return w->ancestors + node * w->nwords;
}

static int depends_on(const struct work *w, uint32_t node, uint32_t other)
{
	return w->ancestors && ancestors(w, node)[other / 64] >> other % 64 & 1;
}

static void ancestors_add(const struct work *w, uint32_t node, uint32_t other)
{
	if (!w->ancestors)
		return;
	for (size_t i = 0; i <= other / 64; i++)
		ancestors(w, node)[i] |= ancestors(w, other)[i];
	ancestors(w, node)[other / 64] |= (uint64_t)1 << other % 64;
}

static int by_number(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* drops dependencies that others imply */
static void deps_reduce(struct work *w, uint32_t node)
{
	const uint32_t n = w->npending;
	uint32_t kept = n;

	if (w->ancestors)
		memset(ancestors(w, node), 0, w->nwords * sizeof(*w->ancestors));
	qsort(w->pending, n, sizeof(*w->pending), by_number);
	/* from the last one: only later nodes can depend on earlier ones */
	for (uint32_t i = n; i-- > 0;) {
		if (depends_on(w, node, w->pending[i]))
			continue;
		ancestors_add(w, node, w->pending[i]);
		w->pending[--kept] = w->pending[i];
	}
	w->npending = n - kept;
	memmove(w->pending, w->pending + kept, w->npending * sizeof(*w->pending));
}

/* the pending dependencies become edges of the node */
static int edges_add(struct work *w, uint32_t node)
{
	deps_reduce(w, node);
	if (w->ndeps + w->npending > w->capdeps) {
		size_t cap = 2 * w->capdeps + w->npending + 64;
		uint32_t *dep = te__realloc(w->e.dep, cap * sizeof(*dep));

		if (!dep)
			return -ENOMEM;
		w->e.dep = dep;
		w->capdeps = cap;
	}
	w->e.first[node] = (uint32_t)w->ndeps;
	for (uint32_t i = 0; i < w->npending; i++) {
		const uint32_t before = w->pending[i];

		w->has_dependent[before] = 1;
		w->e.dep[w->ndeps++] = before;
	}
	w->npending = 0;
	return 0;
}

static int is_barrier(const struct te__gnode *n)
{
	return n->opaque || (!n->declared && (n->kind == TE_NODE_HOST || n->kind == TE_NODE_EVENT ||
					      n->kind == TE_NODE_OTHER));
}

/* finds the dependencies of a node */
static int node_add(struct work *w, uint32_t node)
{
	const int barrier = is_barrier(&w->node[node]);
	struct te__ranges ranges;
	int r = 0;

	te__node_ranges(&w->node[node], &ranges);
	for (uint32_t k = 0; !r && k < ranges.n; k++)
		r = use(w, &ranges.v[k], node);
	if (barrier)
		for (uint32_t i = w->barrier == NONE ? 0 : w->barrier; i < node; i++)
			if (!w->has_dependent[i])
				dep_add(w, i, node);
	if (!w->npending && w->barrier != NONE)
		dep_add(w, w->barrier, node);
	if (barrier)
		w->barrier = node;
	return r ? r : edges_add(w, node);
}

static int is_chain(uint32_t n, const struct te__gnode *node)
{
	for (uint32_t i = 0; i < n; i++)
		if (node[i].ndeps != (i > 0) || (i && node[i].dep[0] != i - 1))
			return 0;
	return 1;
}

static int edges_keep(struct work *w)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < w->n; i++) {
		for (uint32_t k = 0; k < w->node[i].ndeps; k++)
			dep_add(w, w->node[i].dep[k], i);
		r = edges_add(w, i);
	}
	return r;
}

static int edges_find(struct work *w)
{
	int r = segments_make(w);

	for (uint32_t i = 0; !r && i < w->n; i++)
		r = node_add(w, i);
	return r;
}

int te__edges_from_accesses(uint32_t n, const struct te__gnode *node, struct te__edges *ret)
{
	const int serial = is_chain(n, node);
	struct work w = { .n = n, .node = node, .barrier = NONE, .nwords = (n + 63) / 64 };
	int r = 0;

	w.e.first = te__calloc((size_t)n + 1, sizeof(*w.e.first));
	w.pending = te__malloc(n * sizeof(*w.pending));
	w.seen = te__malloc(n * sizeof(*w.seen));
	w.has_dependent = te__calloc(n, 1);
	if (serial && n <= REDUCE_MAX)
		w.ancestors = te__calloc((size_t)n * w.nwords, sizeof(*w.ancestors));
	if (!w.e.first || !w.pending || !w.seen || !w.has_dependent ||
	    (serial && n <= REDUCE_MAX && !w.ancestors))
		r = -ENOMEM;
	if (!r) {
		memset(w.seen, 0xff, n * sizeof(*w.seen));
		r = serial ? edges_find(&w) : edges_keep(&w);
	}
	if (!r) {
		w.e.first[n] = (uint32_t)w.ndeps;
		*ret = w.e;
	} else {
		te__edges_free(&w.e);
		te__fail(r, "no memory for the edges of %u nodes", n);
	}
	te__free(w.pending);
	te__free(w.seen);
	te__free(w.has_dependent);
	te__free(w.ancestors);
	te__free(w.segment);
	te__free(w.link);
	return r;
}
