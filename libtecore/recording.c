/*
 * recording.c - recordings: the nodes of a captured graph, its executable, and changing both.
 *
 * A recording keeps its own copy of what every node was queued with. So nodes are listed,
 * uses of memory found and pointers replaced here, the same way on every backend; a
 * backend is given the nodes that change. A slot is memory and the uses of it: pairs of a node
 * and a place where it holds a pointer.
 */
#define TE_LOG_CATEGORY "core/recording"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/recording.h>

#include "libtecore/backend/edges.h"
#include "libtecore/ctx_internal.h"
#include "libtecore/search.h"
#include "libtecore/used.h"

/* big enough for every kernel's arguments */
union args {
#define TE_K(ID, name, module, host) struct te_k_##name host;
#include "kernels/te_k.def"
#undef TE_K
};

/* where a node holds a pointer, if not at an offset in its arguments */
enum { AT_DST = -1, AT_SRC = -2 };

struct use {
	uint32_t node;
	int32_t at;
	int32_t over; /* 1: reaches over an end of the slot's memory */
};

struct slot {
	uintptr_t ptr;
	uintptr_t was; /* before the rebind at hand */
	size_t nbytes;
	struct use *use;
	uint32_t nuses;
	/* of a recording by data */
	uintptr_t home;	      /* where it was captured */
	uintptr_t begin, end; /* all that its uses reach; none: equal */
	int written;	      /* some of that is */
};

/* a pointer of a node, into the bytes from ptr to end */
struct pointer {
	uintptr_t ptr, end;
	uintptr_t reach; /* the last end of all up to this one */
	uint32_t node;
	int32_t at;
};

struct nodes {
	uint64_t n;
	struct te__gnode *node;
	uint32_t *dep;
	union args *args;
	uint32_t *patch; /* scratch of a rebind: number of the node's patch, from 1 */
	int64_t foreign; /* the first such node, or -1 */
	/* all that are not NULL, by ptr; made by the first search, gone with the next rebind */
	struct pointer *pointer;
	uint64_t npointers;
};

/* room for a rebind of all slots, so that it needs no memory */
struct scratch {
	uint32_t cap;
	struct te__patch *patch;
	union args *args;
};

struct te_recording {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	void *exec;
	struct te_recording_info info;
	struct nodes nodes;
	struct slot *slot;
	int32_t nslots;
	uint64_t nuses; /* of all slots */
	/* numbers of slots by address; until a rebind moves one, they have nothing in common */
	int32_t *order;
	int moved;
	struct scratch scratch;
	int by_data;	      /* its edges keep to the memory that it was captured with */
	struct te__used used; /* then, once there is a slot */
};

static int no_memory(const char *fn, const char *what)
{
	return te__fail(-ENOMEM, "%s: no memory for %s", fn, what);
}

/* nodes */

static void nodes_free(struct nodes *s)
{
	te__free(s->node);
	te__free(s->dep);
	te__free(s->args);
	te__free(s->patch);
	te__free(s->pointer);
	*s = (struct nodes){ .foreign = -1 };
}

/* from pointers into the graph to pointers into our own copy */
static void nodes_own(struct nodes *s)
{
	uint32_t *dep = s->dep;
	union args *args = s->args;

	for (uint64_t i = 0; i < s->n; i++) {
		struct te__gnode *n = &s->node[i];

		if (n->ndeps)
			memcpy(dep, n->dep, n->ndeps * sizeof(*dep));
		n->dep = dep;
		dep += n->ndeps;
		if (!n->args)
			continue;
		memcpy(args, n->args, te__k_nbytes((enum te_k_id)n->id));
		n->args = args++;
	}
}

static int nodes_get(struct nodes *s, const struct te__backend_ops *ops, void *graph, uint64_t n,
		     const char *fn)
{
	uint64_t ndeps = 0, nargs = 0;
	int r = 0;

	*s = (struct nodes){ .n = n, .foreign = -1 };
	s->node = te__calloc(n, sizeof(*s->node));
	s->patch = te__calloc(n, sizeof(*s->patch));
	if (!s->node || !s->patch)
		r = no_memory(fn, "the nodes of a graph");
	for (uint64_t i = 0; !r && i < n; i++) {
		ops->graph_node(graph, i, &s->node[i]);
		ndeps += s->node[i].ndeps;
		nargs += s->node[i].args != NULL;
		if (s->node[i].foreign && s->foreign < 0)
			s->foreign = (int64_t)i;
	}
	if (!r) {
		s->dep = te__malloc(ndeps * sizeof(*s->dep));
		s->args = te__malloc(nargs * sizeof(*s->args));
		if (!s->dep || !s->args)
			r = no_memory(fn, "the nodes of a graph");
	}
	if (r)
		nodes_free(s);
	else
		nodes_own(s);
	return r;
}

static int nodes_same(const struct nodes *a, const struct nodes *b)
{
	if (a->n != b->n)
		return 0;
	for (uint64_t i = 0; i < a->n; i++) {
		const struct te__gnode *x = &a->node[i], *y = &b->node[i];

		if (x->kind != y->kind || x->ndeps != y->ndeps ||
		    memcmp(x->dep, y->dep, x->ndeps * sizeof(*x->dep)) != 0)
			return 0;
	}
	return 1;
}

static const char *node_name(const struct te__gnode *n)
{
	return n->id < 0 ? "" : te__k_name((enum te_k_id)n->id);
}

static const char *node_kind(const struct te__gnode *n)
{
	static const char *const name[] = {
		[TE_NODE_KERNEL] = "kernel",  [TE_NODE_COPY] = "copy",	 [TE_NODE_FILL] = "fill",
		[TE_NODE_HOST] = "host call", [TE_NODE_EVENT] = "event", [TE_NODE_OTHER] = "other",
	};

	return name[n->kind];
}

/* the name, else the kind */
static const char *node_label(const struct te__gnode *n)
{
	return n->id < 0 ? node_kind(n) : node_name(n);
}

static int check_index(const char *fn, const struct te_recording *rec, uint64_t index)
{
	if (!rec)
		return te__fail(-EINVAL, "%s: rec is NULL", fn);
	if (index >= rec->nodes.n)
		return te__fail(-EINVAL, "%s: no node has number %" PRIu64 ": there are %" PRIu64,
				fn, index, rec->nodes.n);
	return 0;
}

int te_recording_node(const struct te_recording *rec, uint64_t index, struct te_node_info *ret)
{
	const struct te__gnode *n;
	int r = check_index("te_recording_node", rec, index);

	if (r)
		return r;
	if (!ret || ret->size != sizeof(*ret))
		return te__fail(-EINVAL,
				"te_recording_node: ret is not initialised by TE_NODE_INFO_INIT");
	n = &rec->nodes.node[index];
	ret->kind = n->kind;
	ret->name = node_name(n);
	ret->nbytes = n->nbytes;
	ret->ndeps = (int32_t)n->ndeps;
	return 0;
}

int te_recording_deps(const struct te_recording *rec, uint64_t index, int32_t cap,
		      uint64_t *ret_index)
{
	const struct te__gnode *n;
	int r = check_index("te_recording_deps", rec, index);

	if (r)
		return r;
	if (cap < 0 || (cap && !ret_index))
		return te__fail(-EINVAL, "te_recording_deps: %s",
				cap < 0 ? "cap is below 0" : "ret_index is NULL");
	n = &rec->nodes.node[index];
	for (uint32_t i = 0; i < n->ndeps && i < (uint32_t)cap; i++)
		ret_index[i] = n->dep[i];
	return (int)n->ndeps;
}

static void print_dot(FILE *f, const struct nodes *s, const char *title)
{
	fputs("digraph \"", f);
	for (const char *c = title; *c; c++) {
		if (*c == '"' || *c == '\\')
			fputc('\\', f);
		fputc(*c, f);
	}
	fputs("\" {\n\tnode [shape=box];\n", f);
	for (uint64_t i = 0; i < s->n; i++) {
		const struct te__gnode *n = &s->node[i];

		fprintf(f, "\tn%" PRIu64 " [label=\"%" PRIu64 " %s", i, i, node_label(n));
		if (n->nbytes && n->kind != TE_NODE_KERNEL)
			fprintf(f, "\\n%" PRIu64 " bytes", n->nbytes);
		fputs("\"];\n", f);
		for (uint32_t d = 0; d < n->ndeps; d++)
			fprintf(f, "\tn%" PRIu32 " -> n%" PRIu64 ";\n", n->dep[d], i);
	}
	fputs("}\n", f);
}

int te_recording_dot(const struct te_recording *rec, const char *title, char **ret_text)
{
	char *text = NULL, *copy;
	size_t n = 0;
	FILE *f;
	int bad;

	if (!rec || !ret_text)
		return te__fail(-EINVAL, "te_recording_dot: %s is NULL", rec ? "ret_text" : "rec");
	f = open_memstream(&text, &n);
	if (!f)
		return no_memory("te_recording_dot", "its text");
	print_dot(f, &rec->nodes, title ? title : "recording");
	bad = ferror(f);
	bad |= fclose(f);
	/* ours, so that a test can make it fail */
	copy = bad ? NULL : te__strdup(text);
	te__free_libc(text);
	if (!copy)
		return no_memory("te_recording_dot", "its text");
	*ret_text = te__give(copy);
	return 0;
}

/* uses of memory */

/* the k-th pointer of a node: 1 with its place, or 0 where there are no more */
static int place(const struct te__gnode *n, uint32_t k, int32_t *ret_at)
{
	const uint16_t *offset;

	if (n->args) {
		if (k >= te__k_ptrs((enum te_k_id)n->id, &offset))
			return 0;
		*ret_at = offset[k];
		return 1;
	}
	*ret_at = k ? AT_SRC : AT_DST;
	return n->id < 0 && ((n->kind == TE_NODE_COPY && k < 2) || (n->kind == TE_NODE_FILL && !k));
}

static uintptr_t ptr_get(const struct te__gnode *n, int32_t at)
{
	uintptr_t p;

	if (at < 0)
		return at == AT_DST ? (uintptr_t)n->dst : (uintptr_t)n->src;
	memcpy(&p, (const char *)n->args + at, sizeof(p));
	return p;
}

/* args: where n->args is, to be written */
static void ptr_set(struct te__gnode *n, void *args, int32_t at, uintptr_t p)
{
	if (at >= 0)
		memcpy((char *)args + at, &p, sizeof(p));
	else if (at == AT_DST)
		n->dst = (void *)p;
	else
		n->src = (const void *)p;
}

static int by_ptr(const void *a, const void *b)
{
	const struct pointer *x = a, *y = b;

	return (x->ptr > y->ptr) - (x->ptr < y->ptr);
}

/* how many pointers are not NULL; written to list unless that is */
static uint64_t pointers_list(const struct nodes *s, struct pointer *list)
{
	uint64_t m = 0;
	int32_t at;

	for (uint64_t i = 0; i < s->n; i++) {
		const struct te__gnode *n = &s->node[i];
		/* of a kernel's memory only the beginning is known */
		const size_t extent = n->args ? 1 : n->nbytes;

		for (uint32_t k = 0; place(n, k, &at); k++) {
			const uintptr_t p = ptr_get(n, at);

			if (p && list)
				list[m] = (struct pointer){ p, p + extent, 0, (uint32_t)i, at };
			m += p != 0;
		}
	}
	return m;
}

static int pointers_find(struct nodes *s, const char *fn)
{
	uint64_t m = s->pointer ? 0 : pointers_list(s, NULL);
	uintptr_t reach = 0;

	if (s->pointer)
		return 0;
	s->pointer = te__malloc((m + 1) * sizeof(*s->pointer));
	if (!s->pointer)
		return no_memory(fn, "the pointers of a graph");
	s->npointers = pointers_list(s, s->pointer);
	qsort(s->pointer, m, sizeof(*s->pointer), by_ptr);
	for (uint64_t i = 0; i < m; i++) {
		if (s->pointer[i].end > reach)
			reach = s->pointer[i].end;
		s->pointer[i].reach = reach;
	}
	return 0;
}

static int pointer_below(const void *nodes, size_t i, uint64_t p)
{
	return ((const struct nodes *)nodes)->pointer[i].ptr < p;
}

/* how many uses the memory has; written to use unless it is NULL */
static uint32_t uses_find(const struct nodes *s, uintptr_t ptr, size_t nbytes, struct use *use)
{
	uint32_t nuses = 0;
	uint64_t i = te__count_before(s, s->npointers, pointer_below, ptr + nbytes);

	while (i-- && s->pointer[i].reach > ptr) {
		const struct pointer *p = &s->pointer[i];

		if (p->end <= ptr)
			continue;
		if (use)
			use[nuses] = (struct use){
				.node = p->node,
				.at = p->at,
				.over = p->ptr < ptr || p->end > ptr + nbytes,
			};
		nuses++;
	}
	return nuses;
}

static int by_node(const void *a, const void *b)
{
	const struct use *x = a, *y = b;

	return (x->node > y->node) - (x->node < y->node);
}

static int slot_find(struct slot *slot, struct nodes *s, const char *fn)
{
	int r = pointers_find(s, fn);

	if (r)
		return r;
	slot->nuses = uses_find(s, slot->ptr, slot->nbytes, NULL);
	slot->use = te__malloc(slot->nuses * sizeof(*slot->use));
	if (!slot->use)
		return no_memory(fn, "the uses of a slot");
	uses_find(s, slot->ptr, slot->nbytes, slot->use);
	/* what cannot be patched is named by the first node */
	qsort(slot->use, slot->nuses, sizeof(*slot->use), by_node);
	return 0;
}

static void slots_free(struct te_recording *rec)
{
	for (int32_t i = 0; i < rec->nslots; i++)
		te__free(rec->slot[i].use);
	te__free(rec->slot);
	te__free(rec->order);
	rec->slot = NULL;
	rec->order = NULL;
	rec->nslots = 0;
	rec->nuses = 0;
	rec->moved = 0;
}

static int overlap(const struct slot *a, const struct slot *b)
{
	return a->ptr < b->ptr + b->nbytes && b->ptr < a->ptr + a->nbytes;
}

static int scratch_reserve(struct scratch *s, uint64_t nuses, const char *fn)
{
	struct te__patch *patch;
	union args *args;
	uint32_t cap = s->cap ? s->cap : 8;

	while (cap < nuses)
		cap *= 2;
	if (cap == s->cap)
		return 0;
	patch = te__malloc(cap * sizeof(*patch));
	args = te__malloc(cap * sizeof(*args));
	if (!patch || !args) {
		te__free(patch);
		te__free(args);
		return no_memory(fn, "patches");
	}
	te__free(s->patch);
	te__free(s->args);
	*s = (struct scratch){ .cap = cap, .patch = patch, .args = args };
	return 0;
}

/* 0, or why the use cannot be patched */
static int use_check(const struct te_recording *rec, int32_t number, const struct use *use)
{
	const struct te__gnode *n = &rec->nodes.node[use->node];

	if (n->fixed)
		return te__fail(-EOPNOTSUPP,
				"te_recording_rebind: slot %" PRId32 ": node %" PRIu32
				", %s, cannot be patched on the %s backend",
				number, use->node, node_label(n), rec->ctx->ops->name);
	if (use->over)
		return te__fail(-EOPNOTSUPP,
				"te_recording_rebind: slot %" PRId32 ": node %" PRIu32
				", %s of %" PRIu64 " bytes, reaches over an end of the slot's %zu",
				number, use->node, node_label(n), n->nbytes,
				rec->slot[number].nbytes);
	return 0;
}

static int slot_check(const struct te_recording *rec, int32_t number)
{
	const struct slot *slot = &rec->slot[number];
	int r = 0;

	if (rec->nodes.foreign >= 0)
		return te__fail(-EOPNOTSUPP,
				"te_recording_rebind: slot %" PRId32 ": node %" PRId64
				", %s, was not queued through this library, and nobody knows "
				"what memory it uses",
				number, rec->nodes.foreign,
				node_kind(&rec->nodes.node[rec->nodes.foreign]));
	for (uint32_t i = 0; !r && i < slot->nuses; i++)
		r = use_check(rec, number, &slot->use[i]);
	return r;
}

static int slot_patchable(const struct te_recording *rec, const struct slot *slot)
{
	int ok = rec->nodes.foreign < 0;

	for (uint32_t i = 0; ok && i < slot->nuses; i++)
		ok = !slot->use[i].over && !rec->nodes.node[slot->use[i].node].fixed;
	return ok;
}

static int slot_below(const void *recording, size_t i, uint64_t p)
{
	const struct te_recording *rec = recording;

	return rec->slot[rec->order[i]].ptr < p;
}

/* how many slots begin below p: the place in their order of one that begins there */
static int32_t slots_below(const struct te_recording *rec, uintptr_t p)
{
	return (int32_t)te__count_before(rec, (size_t)rec->nslots, slot_below, p);
}

/* a slot that is bound to just this memory, else one that overlaps it, else -1 */
static int32_t slot_there(const struct te_recording *rec, const struct slot *want)
{
	const int32_t at = rec->moved ? 0 : slots_below(rec, want->ptr);
	/* without the order any, by it the neighbours only */
	const int32_t first = rec->moved || !at ? 0 : at - 1;
	const int32_t end = rec->moved || at == rec->nslots ? rec->nslots : at + 1;
	int32_t meets = -1;

	for (int32_t k = first; k < end; k++) {
		const int32_t i = rec->moved ? k : rec->order[k];

		if (!overlap(&rec->slot[i], want))
			continue;
		if (rec->slot[i].ptr == want->ptr && rec->slot[i].nbytes == want->nbytes)
			return i;
		if (meets < 0)
			meets = i;
	}
	return meets;
}

/* the slot that is bound to just this memory, a new number, or an error */
static int32_t slot_number(const struct te_recording *rec, const struct slot *want)
{
	const int32_t i = slot_there(rec, want);

	if (i < 0)
		return rec->nslots;
	if (rec->slot[i].ptr == want->ptr && rec->slot[i].nbytes == want->nbytes)
		return i;
	return te__fail(-EINVAL,
			"te_recording_slot: %zu bytes at %p overlap slot %" PRId32
			", which is %zu bytes at %p",
			want->nbytes, (void *)want->ptr, i, rec->slot[i].nbytes,
			(void *)rec->slot[i].ptr);
}

/* the slot takes along what of a node's memory goes where the use's pointer goes */
static void use_take(struct te_recording *rec, struct slot *slot, const struct use *use)
{
	const struct te__gnode *n = &rec->nodes.node[use->node];
	struct te__gnode other = *n;
	struct te__ranges was, now;
	union args args;

	if (n->args) {
		memcpy(&args, n->args, te__k_nbytes((enum te_k_id)n->id));
		other.args = &args;
	}
	ptr_set(&other, &args, use->at, ptr_get(n, use->at) + 16);
	te__node_ranges(n, &was);
	te__node_ranges(&other, &now);
	for (uint32_t k = 0; k < was.n; k++) {
		const uintptr_t begin = was.v[k].ptr, end = begin + was.v[k].nbytes;

		if (begin == now.v[k].ptr)
			continue;
		rec->used.taken[use->node] |= 1u << k;
		rec->used.dirty = 1;
		if (slot->begin == slot->end)
			slot->begin = begin;
		slot->begin = begin < slot->begin ? begin : slot->begin;
		slot->end = end > slot->end ? end : slot->end;
		slot->written |= was.v[k].access != TE__READ;
	}
}

/* room for another; there is some but at powers of two */
static int slots_reserve(struct te_recording *rec, const char *fn)
{
	const size_t n = (size_t)rec->nslots, more = n ? 2 * n : 1;
	struct slot *slot;
	int32_t *order;

	if (n & (n - 1))
		return 0;
	slot = te__realloc(rec->slot, more * sizeof(*slot));
	if (slot)
		rec->slot = slot;
	order = slot ? te__realloc(rec->order, more * sizeof(*order)) : NULL;
	if (!order)
		return no_memory(fn, "a slot");
	rec->order = order;
	return 0;
}

static int slot_add(struct te_recording *rec, struct slot *slot)
{
	const char *fn = "te_recording_slot";
	int32_t at;
	int r = slot_find(slot, &rec->nodes, fn);

	if (!r && rec->by_data && !rec->used.taken &&
	    te__used_init(&rec->used, rec->nodes.n, rec->nodes.node))
		r = no_memory(fn, "the memory that a graph uses");
	if (!r)
		r = scratch_reserve(&rec->scratch, rec->nuses + slot->nuses, fn);
	if (!r)
		r = slots_reserve(rec, fn);
	if (r) {
		te__free(slot->use);
		return r;
	}
	slot->home = slot->ptr;
	for (uint32_t i = 0; rec->by_data && i < slot->nuses; i++)
		use_take(rec, slot, &slot->use[i]);
	at = slots_below(rec, slot->ptr);
	memmove(&rec->order[at + 1], &rec->order[at],
		(size_t)(rec->nslots - at) * sizeof(*rec->order));
	rec->order[at] = rec->nslots;
	rec->slot[rec->nslots++] = *slot;
	rec->nuses += slot->nuses;
	return 0;
}

int te_recording_slot(struct te_recording *rec, const void *ptr, size_t nbytes,
		      struct te_slot_info *ret)
{
	struct slot slot = { .ptr = (uintptr_t)ptr, .nbytes = nbytes };
	int32_t number;
	int r;

	if (!rec || !ptr || !nbytes || nbytes > UINTPTR_MAX - slot.ptr)
		return te__fail(-EINVAL, "te_recording_slot: %s",
				!rec ? "rec is NULL" :
				!ptr ? "ptr is NULL" :
				       "no memory has so many bytes");
	if (ret && ret->size != sizeof(*ret))
		return te__fail(-EINVAL,
				"te_recording_slot: ret is not initialised by TE_SLOT_INFO_INIT");
	number = slot_number(rec, &slot);
	if (number < 0)
		return number;
	r = number == rec->nslots ? slot_add(rec, &slot) : 0;
	if (r)
		return r;
	if (ret) {
		ret->nuses = (int32_t)rec->slot[number].nuses;
		ret->patchable = slot_patchable(rec, &rec->slot[number]);
	}
	return number;
}

/* rebinding */

static int rebind_check(const struct te_recording *rec, int n, const int32_t *slots,
			void *const *ptrs)
{
	const char *fn = "te_recording_rebind";

	if (!rec || n < 0 || (n && (!slots || !ptrs)))
		return te__fail(-EINVAL, "%s: %s", fn,
				!rec   ? "rec is NULL" :
				n < 0  ? "n is below 0" :
				!slots ? "slots is NULL" :
					 "ptrs is NULL");
	for (int i = 0; i < n; i++) {
		const uintptr_t p = (uintptr_t)ptrs[i];
		const struct slot *slot;

		if (slots[i] < 0 || slots[i] >= rec->nslots)
			return te__fail(-EINVAL,
					"%s: no slot has number %" PRId32 ": there are "
					"%" PRId32,
					fn, slots[i], rec->nslots);
		slot = &rec->slot[slots[i]];
		if (!p || slot->nbytes > UINTPTR_MAX - p)
			return te__fail(-EINVAL, "%s: slot %" PRId32 ": no memory at %p", fn,
					slots[i], ptrs[i]);
		/* kernels were chosen for what the first memory allows */
		if ((p ^ slot->ptr) % 16)
			return te__fail(-EINVAL, "%s: slot %" PRId32 ": %p is not aligned as %p is",
					fn, slots[i], ptrs[i], (void *)slot->ptr);
		for (int k = 0; k < i; k++)
			if (slots[k] == slots[i])
				return te__fail(-EINVAL, "%s: slot %" PRId32 " is there twice", fn,
						slots[i]);
	}
	return 0;
}

static void slot_move(struct slot *slot, uintptr_t ptr)
{
	slot->begin += ptr - slot->ptr;
	slot->end += ptr - slot->ptr;
	slot->ptr = ptr;
}

/* edges order what was captured: those that were there already know each other */
static int slots_meet(const struct slot *s, const struct slot *t)
{
	return (s->written || t->written) && s->begin < t->end && t->begin < s->end &&
	       (s->ptr != s->home || t->ptr != t->home);
}

/* a slot of a recording by data, where it is about to be: no edge orders what it meets there */
static int slot_alone(const struct te_recording *rec, int32_t number)
{
	const char *fn = "te_recording_rebind";
	const struct slot *slot = &rec->slot[number];
	const struct te__used_list *used = slot->written ? &rec->used.any : &rec->used.written;
	int64_t node = -1;

	if (slot->begin == slot->end)
		return 0;
	if (slot->ptr != slot->home)
		node = te__used_at(used, slot->begin, slot->end);
	if (node >= 0)
		return te__fail(-EINVAL,
				"%s: slot %" PRId32 ": %zu bytes at %p overlap memory of node "
				"%" PRId64 ", %s, and one of both is written",
				fn, number, slot->nbytes, (void *)slot->ptr, node,
				node_label(&rec->nodes.node[node]));
	for (int32_t i = 0; i < rec->nslots; i++)
		if (i != number && slots_meet(slot, &rec->slot[i]))
			return te__fail(-EINVAL,
					"%s: slot %" PRId32 ": %zu bytes at %p overlap slot "
					"%" PRId32 " of node %" PRIu32 ", %s, and one of both "
					"is written",
					fn, number, slot->nbytes, (void *)slot->ptr, i,
					rec->slot[i].use[0].node,
					node_label(&rec->nodes.node[rec->slot[i].use[0].node]));
	return 0;
}

/* the patch of a node, of npatches so far */
static struct te__patch *patch_of(struct te_recording *rec, uint32_t node, uint32_t *npatches)
{
	const struct te__gnode *from = &rec->nodes.node[node];
	struct scratch *s = &rec->scratch;
	uint32_t at = rec->nodes.patch[node];

	if (at)
		return &s->patch[at - 1];
	at = (*npatches)++;
	rec->nodes.patch[node] = at + 1;
	s->patch[at] = (struct te__patch){ .index = node, .from = from, .to = *from };
	if (from->args) {
		memcpy(&s->args[at], from->args, te__k_nbytes((enum te_k_id)from->id));
		s->patch[at].to.args = &s->args[at];
	}
	return &s->patch[at];
}

static void slot_patch(struct te_recording *rec, const struct slot *slot, uint32_t *npatches)
{
	for (uint32_t i = 0; i < slot->nuses; i++) {
		const struct use *use = &slot->use[i];
		struct te__patch *p = patch_of(rec, use->node, npatches);
		uintptr_t was = ptr_get(p->from, use->at);

		ptr_set(&p->to, &rec->scratch.args[p - rec->scratch.patch], use->at,
			slot->ptr + (was - slot->was));
	}
}

/* our own nodes as the patches say */
static void patches_keep(struct te_recording *rec, uint32_t npatches)
{
	te__free(rec->nodes.pointer);
	rec->nodes.pointer = NULL;
	rec->moved = 1;
	for (uint32_t i = 0; i < npatches; i++) {
		const struct te__patch *p = &rec->scratch.patch[i];
		struct te__gnode *n = &rec->nodes.node[p->index];

		n->dst = p->to.dst;
		n->src = p->to.src;
		if (n->args)
			memcpy((void *)(uintptr_t)n->args, p->to.args,
			       te__k_nbytes((enum te_k_id)n->id));
	}
}

int te_recording_rebind(struct te_recording *rec, int n, const int32_t *slots, void *const *ptrs)
{
	uint32_t npatches = 0;
	int r = rebind_check(rec, n, slots, ptrs);

	for (int i = 0; !r && i < n; i++)
		if (rec->slot[slots[i]].ptr != (uintptr_t)ptrs[i])
			r = slot_check(rec, slots[i]);
	if (r)
		return r;
	for (int i = 0; i < n; i++) {
		rec->slot[slots[i]].was = rec->slot[slots[i]].ptr;
		slot_move(&rec->slot[slots[i]], (uintptr_t)ptrs[i]);
	}
	te__used_drop(&rec->used);
	for (int i = 0; !r && rec->by_data && i < n; i++)
		if (rec->slot[slots[i]].ptr != rec->slot[slots[i]].was)
			r = slot_alone(rec, slots[i]);
	for (int i = 0; !r && i < n; i++)
		if (rec->slot[slots[i]].ptr != rec->slot[slots[i]].was)
			slot_patch(rec, &rec->slot[slots[i]], &npatches);
	if (npatches)
		r = rec->ctx->ops->exec_patch(rec->exec, npatches, rec->scratch.patch);
	for (uint32_t i = 0; i < npatches; i++)
		rec->nodes.patch[rec->scratch.patch[i].index] = 0;
	for (int i = 0; r && i < n; i++)
		slot_move(&rec->slot[slots[i]], rec->slot[slots[i]].was);
	if (!r)
		patches_keep(rec, npatches);
	return r;
}

/* ends of captures */

static int recording_new(struct te_ctx *ctx, void *graph, uint32_t edges,
			 struct te_recording **ret_rec)
{
	const char *fn = "te_capture_end";
	struct te_recording *rec = te__calloc(1, sizeof(*rec));
	int r;

	if (!rec)
		return no_memory(fn, "a recording");
	rec->info.size = sizeof(rec->info);
	r = ctx->ops->graph_info(graph, &rec->info);
	if (!r)
		r = nodes_get(&rec->nodes, ctx->ops, graph, rec->info.nnodes, fn);
	if (!r)
		r = ctx->ops->graph_instantiate(graph, &rec->exec);
	if (r) {
		nodes_free(&rec->nodes);
		te__free(rec);
		return r;
	}
	rec->info.ninstantiated = 1;
	rec->refs = 1;
	rec->by_data = (edges & TE_CAPTURE_BY_DATA) != 0;
	rec->ctx = te_ctx_ref(ctx);
	*ret_rec = rec;
	return 0;
}

int te_capture_end(struct te_stream *stream, struct te_recording **ret_rec)
{
	uint32_t edges;
	void *graph;
	int r;

	if (!stream || !ret_rec)
		return te__fail(-EINVAL, "te_capture_end: %s is NULL",
				stream ? "ret_rec" : "stream");
	r = te__capture_end(stream, "te_capture_end", &graph, &edges);
	if (!r) {
		r = recording_new(stream->ctx, graph, edges, ret_rec);
		stream->ctx->ops->graph_destroy(graph);
	}
	te__mem_flush(stream->ctx);
	return r;
}

/* how it was updated, or an error that left it as it was */
static int recording_update(struct te_recording *rec, void *graph, uint32_t edges)
{
	const char *fn = "te_capture_update";
	const struct te__backend_ops *ops = rec->ctx->ops;
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct nodes nodes;
	int r = ops->graph_info(graph, &info);

	if (!r)
		r = nodes_get(&nodes, ops, graph, info.nnodes, fn);
	if (r)
		return r;
	r = ops->exec_update(rec->exec, graph, nodes_same(&rec->nodes, &nodes));
	if (r < 0) {
		nodes_free(&nodes);
		return r;
	}
	info.ninstantiated = rec->info.ninstantiated + (r == TE_UPDATE_INSTANTIATED);
	info.nupdated = rec->info.nupdated + (r == TE_UPDATE_IN_PLACE);
	rec->info = info;
	nodes_free(&rec->nodes);
	rec->nodes = nodes;
	/* whose the new nodes' pointers are, only the caller knows */
	slots_free(rec);
	te__used_free(&rec->used);
	rec->by_data = (edges & TE_CAPTURE_BY_DATA) != 0;
	return r;
}

int te_capture_update(struct te_stream *stream, struct te_recording *rec, enum te_update *ret_how)
{
	uint32_t edges;
	void *graph;
	int r;

	if (!stream || !rec)
		return te__fail(-EINVAL, "te_capture_update: %s is NULL",
				stream ? "rec" : "stream");
	if (rec->ctx != stream->ctx)
		return te__fail(-EINVAL,
				"te_capture_update: recording and stream are of two contexts");
	r = te__capture_end(stream, "te_capture_update", &graph, &edges);
	if (!r) {
		r = recording_update(rec, graph, edges);
		stream->ctx->ops->graph_destroy(graph);
	}
	te__mem_flush(stream->ctx);
	if (r < 0)
		return r;
	if (ret_how)
		*ret_how = (enum te_update)r;
	return 0;
}

int te_recording_launch(struct te_recording *rec, struct te_stream *stream)
{
	int r;

	if (!rec || !stream)
		return te__fail(-EINVAL, "te_recording_launch: %s is NULL", rec ? "stream" : "rec");
	if (rec->ctx != stream->ctx)
		return te__fail(-EINVAL,
				"te_recording_launch: recording and stream are of two contexts");
	r = te__stream_not_capturing(stream, "te_recording_launch");
	return r ? r : rec->ctx->ops->graph_launch(rec->exec, stream->impl);
}

int te_recording_info(const struct te_recording *rec, struct te_recording_info *ret_info)
{
	if (!rec || !ret_info || ret_info->size != sizeof(*ret_info))
		return te__fail(-EINVAL, "te_recording_info: %s",
				rec ? "ret_info is not initialised by TE_RECORDING_INFO_INIT" :
				      "rec is NULL");
	*ret_info = rec->info;
	return 0;
}

struct te_recording *te_recording_ref(struct te_recording *rec)
{
	if (rec)
		atomic_fetch_add(&rec->refs, 1);
	return rec;
}

struct te_recording *te_recording_unref(struct te_recording *rec)
{
	struct te_ctx *ctx = rec ? rec->ctx : NULL;

	if (!rec || atomic_fetch_sub(&rec->refs, 1) != 1)
		return NULL;
	ctx->ops->exec_destroy(rec->exec);
	nodes_free(&rec->nodes);
	slots_free(rec);
	te__used_free(&rec->used);
	te__free(rec->scratch.patch);
	te__free(rec->scratch.args);
	te__free(rec);
	te_ctx_unref(ctx);
	return NULL;
}
