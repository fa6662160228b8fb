/*
 * edges.c - which nodes of a recorded graph have to wait for which.
 *
 * The ends of all ranges of memory cut it into segments. A segment knows the latest group of
 * nodes that used it, of which each may go on beside the others (they read, or write parts of
 * their own), and the group before. A node that joins the latest group waits for the group
 * before; one that cannot waits for the latest and is a new one. Bit sets of all that a
 * node is behind then tell which of these edges others imply.
 *
 * From these edges each node's height is known, the longest way behind it, and nodes are put on a
 * few lines: of those that wait for a node the highest goes on with its line.
 */
#define TE_LOG_CATEGORY "core/edges"
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/backend/edges.h"
#include "libtecore/internal.h"

#define NONE UINT32_MAX
/* nodes up to which implied edges are looked for: sets of n bits for each of n nodes, 32 MiB */
#define REDUCE_MAX 16384
/*
 * Nodes make so many lines at most, each node behind the one before it in its line. A training step
 * has no use for more: its longest way is then as long as with any number, and on an H200 a step
 * of 550 small nodes took 954, 866 and 910 us with 4, 6 and 8 lines, when it was first measured.
 */
#define WIDTH 6

/* a node in a list */
struct link {
	uint32_t node;
	uint32_t next; /* or NONE */
};

struct segment {
	uintptr_t begin;
	uint32_t latest, before; /* lists of links */
	uint32_t since;		 /* the barrier that these came behind */
	enum te__access access;	 /* of the latest group */
};

struct work {
	uint32_t n;
	const struct te__gnode *node;
	struct segment *segment;
	size_t nsegments;
	struct link *link;
	size_t nlinks, caplinks;
	uint32_t *wait; /* of the node at hand, each once: seen[node] says who was at hand */
	uint32_t nwaits;
	uint32_t *seen;
	uint64_t *behind; /* [n, nwords] bits, or NULL */
	size_t nwords;
	unsigned char *awaited;
	uint32_t barrier;	      /* the latest, or NONE */
	uint32_t line[WIDTH], nlines; /* since that: the last node of each */
	uint32_t *depth;	      /* edges on the longest way to a node */
	uint32_t *height;	      /* and on that from it */
	uint32_t *heir;		      /* of those that wait for a node the highest, or NONE */
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

/* a segment from each end of a range to the next */
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

/* waiting */

/* not for itself, nor for the end of its own call */
static void wait_for(struct work *w, uint32_t node, uint32_t at)
{
	if (node >= at || w->seen[node] == at)
		return;
	w->seen[node] = at;
	w->wait[w->nwaits++] = node;
}

static void wait_for_all(struct work *w, uint32_t list, uint32_t at)
{
	for (; list != NONE; list = w->link[list].next)
		wait_for(w, w->link[list].node, at);
}

static int link_add(struct work *w, uint32_t *list, uint32_t node)
{
	if (w->nlinks == w->caplinks) {
		size_t cap = w->caplinks ? 2 * w->caplinks : 256;
		struct link *link = te__realloc(w->link, cap * sizeof(*link));

		if (!link)
			return -ENOMEM;
		w->link = link;
		w->caplinks = cap;
	}
	w->link[w->nlinks] = (struct link){ node, *list };
	*list = (uint32_t)w->nlinks++;
	return 0;
}

/* kernels of one pass write different parts: they have the same arguments, and it has each once */
static int parts_differ(const struct work *w, uint32_t list, const struct te__gnode *n)
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
	return access == TE__READ || parts_differ(w, s->latest, n);
}

/* node i of a call, from node up to last, uses the range */
static int use(struct work *w, const struct te__range *r, uint32_t i, uint32_t node, uint32_t last)
{
	int ret = 0;

	for (struct segment *s = segment_at(w, r->ptr); !ret && s->begin < r->ptr + r->nbytes;
	     s++) {
		if (s->since != w->barrier) {
			s->since = w->barrier;
			s->latest = s->before = NONE;
		}
		if (!joins_latest(w, s, r->access, &w->node[i])) {
			s->before = s->latest;
			s->latest = NONE;
			s->access = r->access;
		}
		wait_for_all(w, s->before, node);
		ret = link_add(w, &s->latest, last);
	}
	return ret;
}

/* edges */

static uint64_t *behind(const struct work *w, uint32_t node)
{
	return w->behind + node * w->nwords;
}

static int is_behind(const struct work *w, uint32_t node, uint32_t other)
{
	return w->behind && behind(w, node)[other / 64] >> other % 64 & 1;
}

static void put_behind(const struct work *w, uint32_t node, uint32_t other)
{
	if (!w->behind)
		return;
	for (size_t i = 0; i <= other / 64; i++)
		behind(w, node)[i] |= behind(w, other)[i];
	behind(w, node)[other / 64] |= (uint64_t)1 << other % 64;
}

static int by_number(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* without what others imply */
static void waits_reduce(struct work *w, uint32_t node)
{
	const uint32_t n = w->nwaits;
	uint32_t kept = n;

	if (w->behind)
		memset(behind(w, node), 0, w->nwords * sizeof(*w->behind));
	qsort(w->wait, n, sizeof(*w->wait), by_number);
	/* the later a node is the more it is behind */
	for (uint32_t i = n; i-- > 0;) {
		if (is_behind(w, node, w->wait[i]))
			continue;
		put_behind(w, node, w->wait[i]);
		w->wait[--kept] = w->wait[i];
	}
	w->nwaits = n - kept;
	memmove(w->wait, w->wait + kept, w->nwaits * sizeof(*w->wait));
}

/* whether a node that is higher, and still to come, is to go on with the line behind its end */
static int is_kept(const struct work *w, uint32_t end, uint32_t node)
{
	const uint32_t heir = w->heir[end];

	return heir != NONE && heir > node && w->height[heir] > w->height[node];
}

/* edges on the longest way to what is behind all that the node at hand waits for */
static uint32_t depth_at_hand(const struct work *w)
{
	uint32_t depth = 0;

	for (uint32_t k = 0; k < w->nwaits; k++)
		if (w->depth[w->wait[k]] >= depth)
			depth = w->depth[w->wait[k]] + 1;
	return depth;
}

/*
 * A call becomes the end of a line: of the deepest that it is behind and that no other is to go on
 * with, so that the longest way is one line; else of a new one or, behind a node that it has
 * nothing to do with, of that which makes the shortest way, of equal ones the shallowest.
 */
static void line_join(struct work *w, uint32_t node, uint32_t last)
{
	const uint32_t from = depth_at_hand(w);
	uint32_t best = NONE, least = NONE, shortest = 0;

	for (uint32_t i = 0; i < w->nlines; i++) {
		const uint32_t end = w->line[i], depth = w->depth[end];
		const int kept = is_kept(w, end, node);
		/* edges on the longest way through the node if it goes on here */
		const uint32_t len = (from > depth ? from : depth + 1) +
				     (kept ? w->height[w->heir[end]] + 1 : w->height[node]);

		if (!kept && is_behind(w, node, end) &&
		    (best == NONE || depth > w->depth[w->line[best]]))
			best = i;
		if (least == NONE || len < shortest ||
		    (len == shortest && depth < w->depth[w->line[least]])) {
			least = i;
			shortest = len;
		}
	}
	if (best == NONE && w->nlines < WIDTH) {
		best = w->nlines++;
	} else if (best == NONE) {
		best = least;
		wait_for(w, w->line[best], node);
		waits_reduce(w, node);
	}
	w->line[best] = last;
}

/* what the node waits for becomes its edges */
static int edges_add(struct work *w, uint32_t node)
{
	if (w->ndeps + w->nwaits > w->capdeps) {
		size_t cap = 2 * w->capdeps + w->nwaits + 64;
		uint32_t *dep = te__realloc(w->e.dep, cap * sizeof(*dep));

		if (!dep)
			return -ENOMEM;
		w->e.dep = dep;
		w->capdeps = cap;
	}
	for (uint32_t i = 0; i < w->nwaits; i++) {
		const uint32_t before = w->wait[i];

		w->awaited[before] = 1;
		w->e.dep[w->ndeps++] = before;
	}
	w->depth[node] = depth_at_hand(w);
	w->nwaits = 0;
	return 0;
}

static int is_barrier(const struct te__gnode *n)
{
	return n->foreign || n->kind == TE_NODE_HOST || n->kind == TE_NODE_EVENT ||
	       n->kind == TE_NODE_OTHER;
}

/* the nodes of a call, from node up to last, are a straight line behind what node waits for */
static int call_edges(struct work *w, uint32_t node, uint32_t last)
{
	int r = 0;

	for (uint32_t i = node; !r && i <= last; i++) {
		w->e.first[i] = (uint32_t)w->ndeps;
		if (i > node) {
			wait_for(w, i - 1, i);
			waits_reduce(w, i);
		}
		r = edges_add(w, i);
	}
	return r;
}

static int has_barrier(const struct work *w, uint32_t node, uint32_t last)
{
	while (node < last && !is_barrier(&w->node[node]))
		node++;
	return is_barrier(&w->node[node]);
}

/* by data */
static int call_add(struct work *w, uint32_t node, uint32_t last)
{
	const int barrier = has_barrier(w, node, last);
	struct te__ranges ranges;
	int r = 0;

	for (uint32_t i = node; !r && i <= last; i++) {
		te__node_ranges(&w->node[i], &ranges);
		for (uint32_t k = 0; !r && k < ranges.n; k++)
			r = use(w, &ranges.v[k], i, node, last);
	}
	if (barrier)
		for (uint32_t i = w->barrier == NONE ? 0 : w->barrier; i < node; i++)
			if (!w->awaited[i])
				wait_for(w, i, node);
	if (!w->nwaits && w->barrier != NONE)
		wait_for(w, w->barrier, node);
	if (barrier)
		w->barrier = last;
	waits_reduce(w, node);
	return r ? r : call_edges(w, node, last);
}

static uint32_t call_end(const struct work *w, uint32_t node)
{
	while (node + 1 < w->n && w->node[node + 1].joined)
		node++;
	return node;
}

/* from what there is by data */
static void heirs_find(struct work *w)
{
	for (uint32_t i = w->n; i-- > 0;) {
		const uint32_t end = i + 1 < w->n ? w->e.first[i + 1] : (uint32_t)w->ndeps;

		for (uint32_t k = w->e.first[i]; k < end; k++) {
			const uint32_t before = w->e.dep[k];

			/* of equal ones the first */
			if (w->height[before] > w->height[i] + 1)
				continue;
			w->height[before] = w->height[i] + 1;
			w->heir[before] = i;
		}
	}
}

/* the edges by data, and those that make lines */
static int lines_add(struct work *w)
{
	struct te__edges by_data = w->e;
	const uint32_t nby_data = (uint32_t)w->ndeps;
	int r = 0;

	w->e = (struct te__edges){ te__calloc((size_t)w->n + 1, sizeof(*w->e.first)), NULL };
	w->ndeps = w->capdeps = 0;
	memset(w->seen, 0xff, w->n * sizeof(*w->seen));
	if (!w->e.first)
		r = -ENOMEM;
	for (uint32_t i = 0, last; !r && i < w->n; i = last + 1) {
		const uint32_t end = i + 1 < w->n ? by_data.first[i + 1] : nby_data;
		int barrier;

		last = call_end(w, i);
		barrier = has_barrier(w, i, last);
		/* all since the barrier before is on a line */
		for (uint32_t k = 0; barrier && k < w->nlines; k++)
			wait_for(w, w->line[k], i);
		for (uint32_t k = by_data.first[i]; !barrier && k < end; k++)
			wait_for(w, by_data.dep[k], i);
		waits_reduce(w, i);
		line_join(w, i, last);
		r = call_edges(w, i, last);
		if (barrier) {
			w->line[0] = last;
			w->nlines = 1;
		}
	}
	te__edges_free(&by_data);
	return r;
}

static int in_line(uint32_t n, const struct te__gnode *node)
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
		w->e.first[i] = (uint32_t)w->ndeps;
		for (uint32_t k = 0; k < w->node[i].ndeps; k++)
			wait_for(w, w->node[i].dep[k], i);
		waits_reduce(w, i);
		r = edges_add(w, i);
	}
	return r;
}

static int edges_find(struct work *w)
{
	int r = segments_make(w);

	for (uint32_t i = 0, last; !r && i < w->n; i = last + 1) {
		last = call_end(w, i);
		r = call_add(w, i, last);
	}
	if (r)
		return r;
	heirs_find(w);
	return lines_add(w);
}

int te__edges_by_data(uint32_t n, const struct te__gnode *node, struct te__edges *ret)
{
	const int line = in_line(n, node);
	struct work w = { .n = n, .node = node, .barrier = NONE, .nwords = (n + 63) / 64 };
	int r = 0;

	w.e.first = te__calloc((size_t)n + 1, sizeof(*w.e.first));
	w.wait = te__malloc(n * sizeof(*w.wait));
	w.seen = te__malloc(n * sizeof(*w.seen));
	w.awaited = te__calloc(n, 1);
	w.depth = te__calloc(n, sizeof(*w.depth));
	w.height = te__calloc(n, sizeof(*w.height));
	w.heir = te__malloc(n * sizeof(*w.heir));
	if (line && n <= REDUCE_MAX)
		w.behind = te__calloc((size_t)n * w.nwords, sizeof(*w.behind));
	if (!w.e.first || !w.wait || !w.seen || !w.awaited || !w.depth || !w.height || !w.heir ||
	    (line && n <= REDUCE_MAX && !w.behind))
		r = -ENOMEM;
	if (!r) {
		memset(w.seen, 0xff, n * sizeof(*w.seen));
		memset(w.heir, 0xff, n * sizeof(*w.heir));
		r = line ? edges_find(&w) : edges_keep(&w);
	}
	if (!r) {
		w.e.first[n] = (uint32_t)w.ndeps;
		*ret = w.e;
	} else {
		te__edges_free(&w.e);
		te__fail(r, "no memory for the edges of %u nodes", n);
	}
	te__free(w.wait);
	te__free(w.seen);
	te__free(w.awaited);
	te__free(w.depth);
	te__free(w.height);
	te__free(w.heir);
	te__free(w.behind);
	te__free(w.segment);
	te__free(w.link);
	return r;
}
