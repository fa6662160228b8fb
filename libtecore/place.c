/*
 * place.c - te_place(3): greedy by size, first fit.
 *
 * What memory is taken when is kept in a tree over time. Its leaves are the times at which items
 * are born, as two lives meet just where one is born within the other. A life is made of a few
 * whole nodes, and has a part of each node above them. A node has two sets of memory: what is taken
 * by lives that it is a whole piece of, and what is taken by any life that has a part of it. What
 * meets a life is then found in the first sets of the nodes that it has a part of, and in the
 * second sets of those that are its pieces.
 *
 * A long life among many of random length meets gaps without number that are too small, some in
 * each set. There it is faster to look at all that is taken, in one list by address.
 */
#define TE_LOG_CATEGORY "core/place"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <te/place.h>
#include <te/private.h>

#include "libtecore/search.h"

struct placed {
	uint64_t nbytes, offset;
	int32_t item;
};

/*
 * Taken memory, with free memory before and behind it. The spans of a set are a treap (Seidel and
 * Aragon, "Randomized search trees", 1996): sorted by address, and a heap by heat().
 */
struct span {
	uint64_t from, to;
	uint32_t low, high; /* the spans below and above; 0: none */
};

struct tree {
	int32_t *birth; /* sorted, each once */
	size_t nbirths;
	/* a power of two; leaf i is node nleaves + i, below node i are 2 i and 2 i + 1 */
	size_t nleaves;
	uint32_t *whole, *any; /* by node, from 1: the top span of the two sets; 0: empty */
	struct span *span;     /* from 1 */
	size_t nspans, cap;
	uint32_t unused; /* list of spans, by low */
};

/* an item in its place */
struct row {
	uint64_t from, to;
	int32_t first, last;
};

#define NLATE 256

/* all of them by address; those that came last are apart until they are so many, so that few
 * move */
struct list {
	struct row *v, late[NLATE];
	size_t n, nlate;
};

/* what a life touches: two nodes at most of each kind on each of 32 levels */
struct nodes {
	size_t part[64], whole[64];
	int npart, nwhole;
};

static int by_size(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	if (x->nbytes != y->nbytes)
		return x->nbytes < y->nbytes ? 1 : -1;
	return x->item - y->item;
}

static int by_time(const void *a, const void *b)
{
	const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

	return (x > y) - (x < y);
}

static uint64_t higher(uint64_t x, uint64_t y)
{
	return x > y ? x : y;
}

static uint64_t rounded(uint64_t nbytes, uint64_t align)
{
	return (nbytes + align - 1) & ~(align - 1);
}

/* ---- the tree ---- */

static int born_by(const void *tree, size_t i, uint64_t t)
{
	return ((const struct tree *)tree)->birth[i] <= (int32_t)t;
}

/* which birth is the last that is not behind time t; there is one */
static size_t birth(const struct tree *tree, int32_t t)
{
	return te__count_before(tree, tree->nbirths, born_by, (uint64_t)t) - 1;
}

/* the longest first: most memory is taken in them, so that they settle most of a search */
static void put_whole(struct nodes *nodes, size_t node)
{
	int i = nodes->nwhole++;

	for (; i && nodes->whole[i - 1] > node; i--)
		nodes->whole[i] = nodes->whole[i - 1];
	nodes->whole[i] = node;
}

/* the nodes that births first to last touch, from a node down, whose n leaves begin at lo */
static void touched(size_t node, size_t lo, size_t n, size_t first, size_t last, struct nodes *ret)
{
	if (lo + n <= first || last < lo)
		return;
	if (first <= lo && lo + n - 1 <= last) {
		put_whole(ret, node);
		return;
	}
	ret->part[ret->npart++] = node;
	touched(2 * node, lo, n / 2, first, last, ret);
	touched(2 * node + 1, lo + n / 2, n / 2, first, last, ret);
}

/* looks random; the last step of MurmurHash3, which takes no two to one */
static uint32_t heat(uint32_t span)
{
	span = (span ^ span >> 16) * 0x85ebca6b;
	span = (span ^ span >> 13) * 0xc2b2ae35;
	return span ^ span >> 16;
}

/* takes a set apart: spans that end before x, or with begin those that begin up to x, and others */
static void split(struct span *span, uint32_t set, uint64_t x, int begin, uint32_t *low,
		  uint32_t *high)
{
	while (set) {
		if (begin ? span[set].from <= x : span[set].to < x) {
			*low = set;
			low = &span[set].high;
			set = *low;
		} else {
			*high = set;
			high = &span[set].low;
			set = *high;
		}
	}
	*low = *high = 0;
}

/* all of low lies below high */
static uint32_t join(struct span *span, uint32_t low, uint32_t high)
{
	uint32_t set, *at = &set;

	while (low && high) {
		if (heat(low) > heat(high)) {
			*at = low;
			at = &span[low].high;
			low = *at;
		} else {
			*at = high;
			at = &span[high].low;
			high = *at;
		}
	}
	*at = low ? low : high;
	return set;
}

/* there are n spans to be had */
static int reserve(struct tree *tree, size_t n)
{
	const size_t cap = 2 * (tree->nspans + n);
	struct span *span;

	if (tree->nspans + n <= tree->cap)
		return 0;
	span = cap <= UINT32_MAX ? te__realloc(tree->span, cap * sizeof(*span)) : NULL;
	if (!span)
		return -ENOMEM;
	tree->span = span;
	tree->cap = cap;
	return 0;
}

/* a set takes in memory; spans that meet become one */
static void take(struct tree *tree, uint32_t *set, uint64_t from, uint64_t to)
{
	struct span *span = tree->span;
	uint32_t low, met, high, i;

	split(span, *set, from, 0, &low, &met);
	split(span, met, to, 1, &met, &high);
	while (met) {
		i = met;
		met = join(span, span[i].low, span[i].high);
		from = span[i].from < from ? span[i].from : from;
		to = span[i].to > to ? span[i].to : to;
		span[i].low = tree->unused;
		tree->unused = i;
	}
	i = tree->unused;
	if (i)
		tree->unused = span[i].low;
	else
		i = (uint32_t)tree->nspans++;
	span[i] = (struct span){ from, to, 0, 0 };
	*set = join(span, join(span, low, i), high);
}

/* the first span of a set that ends behind an offset; 0: none */
static uint32_t first(const struct span *span, uint32_t set, uint64_t off)
{
	uint32_t found = 0;

	while (set) {
		if (span[set].to > off) {
			found = set;
			set = span[set].low;
		} else {
			set = span[set].high;
		}
	}
	return found;
}

/* ---- the list ---- */

static int begins_below(const void *rows, size_t i, uint64_t x)
{
	return ((const struct row *)rows)[i].from < x;
}

static void list_add(struct list *l, struct row row)
{
	size_t at = te__count_before(l->late, l->nlate, begins_below, row.from), i;

	memmove(&l->late[at + 1], &l->late[at], (l->nlate - at) * sizeof(row));
	l->late[at] = row;
	if (++l->nlate < NLATE)
		return;
	/* from the end, where there is room */
	i = l->n;
	l->n += NLATE;
	for (at = l->n; l->nlate;) {
		const int of_late = !i || l->v[i - 1].from < l->late[l->nlate - 1].from;

		l->v[--at] = of_late ? l->late[--l->nlate] : l->v[--i];
	}
}

/* where a row ends that lives at the same time, or 0: a mask in place of a branch, which nobody
 * could guess */
static uint64_t met(const struct row *row, const struct te_place_item *life)
{
	const int meets = (row->first <= life->last) & (life->first <= row->last);

	return row->to & -(uint64_t)meets;
}

/* where nbytes are free as far as the rows from *at on tell */
static uint64_t pass(const struct row *v, size_t n, size_t *at, const struct te_place_item *life,
		     uint64_t nbytes, uint64_t off)
{
	size_t i = *at;

	/* eight that do not wait for each other, as the last is in the way */
	for (; i + 8 <= n && v[i + 7].from < off + nbytes; i += 8) {
		uint64_t most = 0;

		for (int k = 0; k < 8; k++)
			most = higher(most, met(&v[i + k], life));
		off = higher(off, most);
	}
	for (; i < n && v[i].from < off + nbytes; i++)
		off = higher(off, met(&v[i], life));
	*at = i;
	return off;
}

/* the lowest offset from off on where nbytes are free beside all that lives at the same time */
static uint64_t list_fit(const struct list *l, const struct te_place_item *life, uint64_t nbytes,
			 uint64_t off)
{
	size_t i = 0, late = 0;
	uint64_t was;

	do {
		was = off;
		off = pass(l->v, l->n, &i, life, nbytes, off);
		off = pass(l->late, l->nlate, &late, life, nbytes, off);
	} while (off != was);
	return off;
}

/* ---- te_place ---- */

/* how many rows of the list are looked at in the time of a step through the tree */
#define STEP_ROWS 512

/* the lowest offset where nbytes are free beside all that lives at the same time */
static uint64_t lowest_fit(const struct tree *tree, const struct nodes *at, const struct list *list,
			   const struct te_place_item *life, uint64_t nbytes)
{
	size_t nsteps = (list->n + list->nlate) / STEP_ROWS + 16;
	const struct span *span = tree->span;
	uint32_t set[128], next[128]; /* next: the first span that ends behind the offset */
	uint64_t off = 0;
	int n = 0;

	for (int i = 0; i < at->nwhole; i++)
		set[n++] = tree->any[at->whole[i]];
	for (int i = 0; i < at->npart; i++)
		set[n++] = tree->whole[at->part[i]];
	for (int i = 0; i < n; i++)
		next[i] = first(span, set[i], 0);
	for (int i = 0; i < n;) {
		if (next[i] && span[next[i]].to <= off)
			next[i] = first(span, set[i], off);
		if (next[i] && span[next[i]].from < off + nbytes) {
			off = span[next[i]].to;
			i = 0;
			if (!nsteps--)
				return list_fit(list, life, nbytes, off);
		} else {
			i++;
		}
	}
	return off;
}

static int place(struct tree *tree, struct list *list, const struct te_place_item *it,
		 struct placed *p, uint64_t align)
{
	const uint64_t nbytes = rounded(p->nbytes, align);
	struct nodes at = { .npart = 0 };
	uint64_t end;
	int r;

	touched(1, 0, tree->nleaves, birth(tree, it->first), birth(tree, it->last), &at);
	r = reserve(tree, (size_t)at.npart + 2 * (size_t)at.nwhole);
	if (r)
		return r;
	p->offset = lowest_fit(tree, &at, list, it, nbytes);
	end = p->offset + nbytes;
	list_add(list, (struct row){ p->offset, end, it->first, it->last });
	for (int i = 0; i < at.npart; i++)
		take(tree, &tree->any[at.part[i]], p->offset, end);
	for (int i = 0; i < at.nwhole; i++) {
		take(tree, &tree->whole[at.whole[i]], p->offset, end);
		take(tree, &tree->any[at.whole[i]], p->offset, end);
	}
	return 0;
}

static void tree_free(struct tree *tree)
{
	te__free(tree->birth);
	te__free(tree->whole);
	te__free(tree->span);
}

static int tree_init(struct tree *tree, const struct te_place_item *items, const struct placed *p,
		     int32_t n)
{
	*tree = (struct tree){ .nspans = 1 };
	tree->birth = te__malloc((size_t)n * sizeof(*tree->birth));
	if (!tree->birth)
		return -ENOMEM;
	for (int32_t i = 0; i < n; i++)
		tree->birth[i] = items[p[i].item].first;
	qsort(tree->birth, (size_t)n, sizeof(*tree->birth), by_time);
	for (int32_t i = 0; i < n; i++)
		if (!i || tree->birth[i] != tree->birth[tree->nbirths - 1])
			tree->birth[tree->nbirths++] = tree->birth[i];
	for (tree->nleaves = 1; tree->nleaves < tree->nbirths;)
		tree->nleaves *= 2;
	tree->whole = te__calloc(4 * tree->nleaves, sizeof(*tree->whole));
	tree->any = tree->whole ? tree->whole + 2 * tree->nleaves : NULL;
	return tree->whole ? 0 : -ENOMEM;
}

static int check(const struct te_place_item *items, int32_t n, uint64_t align)
{
	uint64_t sum = 0;

	if (n < 0 || (n && !items) || !align || (align & (align - 1)))
		return te__fail(-EINVAL, "te_place: %" PRId32 " items%s, align %" PRIu64, n,
				n > 0 && !items ? " at NULL" : "", align);
	for (int32_t i = 0; i < n; i++) {
		if (items[i].last < items[i].first)
			return te__fail(-EINVAL,
					"te_place: item %" PRId32 " lives from %" PRId32
					" to %" PRId32,
					i, items[i].first, items[i].last);
		if (items[i].nbytes > UINT64_MAX - (align - 1) ||
		    rounded(items[i].nbytes, align) > UINT64_MAX - sum)
			return te__fail(-EOVERFLOW,
					"te_place: item %" PRId32 " of %" PRIu64
					" bytes: the sum exceeds 64 bits",
					i, items[i].nbytes);
		sum += rounded(items[i].nbytes, align);
	}
	return 0;
}

/* those with bytes, largest first; returns how many */
static int32_t sort(const struct te_place_item *items, int32_t n, struct placed *p)
{
	int32_t m = 0;

	for (int32_t i = 0; i < n; i++)
		if (items[i].nbytes)
			p[m++] = (struct placed){ items[i].nbytes, 0, i };
	qsort(p, (size_t)m, sizeof(*p), by_size);
	return m;
}

int te_place(struct te_place_item *items, int32_t n, uint64_t align, uint64_t *ret_peak)
{
	struct tree tree = { .birth = NULL };
	struct list list = { .n = 0 };
	uint64_t peak = 0;
	struct placed *p;
	int32_t m = 0;
	int r = check(items, n, align);

	if (r)
		return r;
	if (!ret_peak)
		return te__fail(-EINVAL, "te_place: ret_peak is NULL");
	p = te__malloc((size_t)n * sizeof(*p) + 1);
	r = p ? 0 : -ENOMEM;
	if (!r) {
		m = sort(items, n, p);
		r = m ? tree_init(&tree, items, p, m) : 0;
		list.v = te__malloc((size_t)m * sizeof(*list.v));
		r = list.v ? r : -ENOMEM;
	}
	for (int32_t i = 0; i < m && !r; i++)
		r = place(&tree, &list, &items[p[i].item], &p[i], align);
	tree_free(&tree);
	te__free(list.v);
	if (r) {
		te__free(p);
		return te__fail(r, "te_place: no memory for %" PRId32 " items", n);
	}
	for (int32_t i = 0; i < n; i++)
		items[i].offset = 0;
	for (int32_t i = 0; i < m; i++) {
		items[p[i].item].offset = p[i].offset;
		if (p[i].offset + rounded(p[i].nbytes, align) > peak)
			peak = p[i].offset + rounded(p[i].nbytes, align);
	}
	te__free(p);
	*ret_peak = peak;
	return 0;
}
