/* bindings.c - bindings of a recording: memory, and every pointer of a node into it. */
#define TE_LOG_CATEGORY "core/recording"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/backend/edges.h"
#include "libtecore/base/search.h"
#include "libtecore/capture/recording.h"

/* uses of memory */

static int by_ptr(const void *a, const void *b)
{
	const struct te__pointer *x = a, *y = b;

	return (x->ptr > y->ptr) - (x->ptr < y->ptr);
}

/* returns how many pointers are not NULL; writes them to list unless list is NULL */
static uint64_t pointers_list(const struct te_recording *rec, struct te__pointer *list)
{
	uint64_t m = 0;
	int32_t at;

	for (uint64_t i = 0; i < rec->info.nnodes; i++) {
		const struct te__gnode n = te__recording_gnode(rec, i);

		for (uint32_t k = 0; te__gnode_pointer(&n, k, &at); k++) {
			const uintptr_t ptr = te__gnode_ptr_get(&n, at);
			const uintptr_t p = !ptr || !n.args ? ptr :
					    ptr + (uintptr_t)te__k_begin((enum te_k_id)n.id,
									 n.args, (uint32_t)at);
			/* only the first byte of a kernel's memory is known to be used */
			const size_t extent = n.declared ? n.declared->ranges.v[at].nbytes :
					      n.args	 ? 1 :
							   n.nbytes;

			if (p && list)
				list[m] = (struct te__pointer){ p, p + extent, 0, (uint32_t)i, at };
			m += p != 0;
		}
	}
	return m;
}

static int pointers_find(struct te_recording *rec, const char *fn)
{
	struct te__nodes *s = &rec->nodes;
	uint64_t m = s->pointer ? 0 : pointers_list(rec, NULL);
	uintptr_t max_end = 0;

	if (s->pointer)
		return 0;
	s->pointer = te__malloc((m + 1) * sizeof(*s->pointer));
	if (!s->pointer)
		return te__recording_no_memory(fn, "the pointers of a graph");
	s->npointers = pointers_list(rec, s->pointer);
	qsort(s->pointer, m, sizeof(*s->pointer), by_ptr);
	for (uint64_t i = 0; i < m; i++) {
		if (s->pointer[i].end > max_end)
			max_end = s->pointer[i].end;
		s->pointer[i].max_end = max_end;
	}
	return 0;
}

static int pointer_below(const void *nodes, size_t i, uint64_t p)
{
	return ((const struct te__nodes *)nodes)->pointer[i].ptr < p;
}

/* returns how many uses the memory has; writes them to use unless use is NULL */
static uint32_t uses_find(const struct te__nodes *s, uintptr_t ptr, size_t nbytes,
			  struct te__use *use)
{
	uint32_t nuses = 0;
	uint64_t i = te__count_before(s, s->npointers, pointer_below, ptr + nbytes);

	while (i-- && s->pointer[i].max_end > ptr) {
		const struct te__pointer *p = &s->pointer[i];

		if (p->end <= ptr)
			continue;
		if (use)
			use[nuses] = (struct te__use){
				.node = p->node,
				.at = p->at,
				.beyond = p->ptr < ptr || p->end > ptr + nbytes,
			};
		nuses++;
	}
	return nuses;
}

static int by_node(const void *a, const void *b)
{
	const struct te__use *x = a, *y = b;

	return (x->node > y->node) - (x->node < y->node);
}

static int binding_find_uses(struct te__binding *b, struct te_recording *rec, const char *fn)
{
	const struct te__nodes *s = &rec->nodes;
	int r = pointers_find(rec, fn);

	if (r)
		return r;
	b->nuses = uses_find(s, b->ptr, b->nbytes, NULL);
	b->use = te__malloc(b->nuses * sizeof(*b->use));
	if (!b->use)
		return te__recording_no_memory(fn, "the uses of a binding");
	uses_find(s, b->ptr, b->nbytes, b->use);
	/* so that an error names the first node that cannot be patched */
	qsort(b->use, b->nuses, sizeof(*b->use), by_node);
	return 0;
}

/* bindings by address */

void te__bindings_free(struct te_recording *rec)
{
	for (int32_t i = 0; i < rec->nbindings; i++)
		te__free(rec->binding[i].use);
	te__free(rec->binding);
	te__free(rec->order);
	rec->binding = NULL;
	rec->order = NULL;
	rec->nbindings = 0;
	rec->nuses = 0;
	rec->rebound = 0;
}

static int overlap(const struct te__binding *a, const struct te__binding *b)
{
	return a->ptr < b->ptr + b->nbytes && b->ptr < a->ptr + a->nbytes;
}

static int binding_below(const void *recording, size_t i, uint64_t p)
{
	const struct te_recording *rec = recording;

	return rec->binding[rec->order[i]].ptr < p;
}

/* number of bindings that begin below p: the index in rec->order of a binding that begins at p */
static int32_t bindings_below(const struct te_recording *rec, uintptr_t p)
{
	return (int32_t)te__count_before(rec, (size_t)rec->nbindings, binding_below, p);
}

/* the index of a binding of exactly this memory, else of one that overlaps it, else -1 */
static int32_t binding_at(const struct te_recording *rec, const struct te__binding *want)
{
	const int32_t at = rec->rebound ? 0 : bindings_below(rec, want->ptr);
	/* in order of addresses only the two neighbours can overlap; otherwise any binding */
	const int32_t first = rec->rebound || !at ? 0 : at - 1;
	const int32_t end = rec->rebound || at == rec->nbindings ? rec->nbindings : at + 1;
	int32_t overlapping = -1;

	for (int32_t k = first; k < end; k++) {
		const int32_t i = rec->rebound ? k : rec->order[k];

		if (!overlap(&rec->binding[i], want))
			continue;
		if (rec->binding[i].ptr == want->ptr && rec->binding[i].nbytes == want->nbytes)
			return i;
		if (overlapping < 0)
			overlapping = i;
	}
	return overlapping;
}

/* the index of the binding of exactly this memory, rec->nbindings for a new one, or an error */
static int32_t binding_number(const struct te_recording *rec, const struct te__binding *want)
{
	const int32_t i = binding_at(rec, want);

	if (i < 0)
		return rec->nbindings;
	if (rec->binding[i].ptr == want->ptr && rec->binding[i].nbytes == want->nbytes)
		return i;
	return te__fail(-EINVAL,
			"te_recording_binding: %zu bytes at %p overlap binding %" PRId32
			", which has %zu bytes at %p",
			want->nbytes, (void *)want->ptr, i, rec->binding[i].nbytes,
			(void *)rec->binding[i].ptr);
}

/* creating bindings */

static int scratch_reserve(struct te__scratch *s, uint64_t nuses, const char *fn)
{
	struct te__patch *patch;
	union te__any_args *args;
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
		return te__recording_no_memory(fn, "patches");
	}
	te__free(s->patch);
	te__free(s->args);
	*s = (struct te__scratch){ .cap = cap, .patch = patch, .args = args };
	return 0;
}

/*
 * Extends the binding's range by the memory that the node accesses through the use's pointer: the
 * ranges of the node that move if the pointer does. They are marked as bound in rec->used.
 */
static void use_extend(struct te_recording *rec, struct te__binding *b, const struct te__use *use)
{
	const struct te__gnode n = te__recording_gnode(rec, use->node);
	struct te__gnode other = n;
	struct te__ranges now, moved;
	union te__any_args args;

	if (n.args) {
		memcpy(&args, n.args, te__k_nbytes((enum te_k_id)n.id));
		other.args = &args;
	} else if (n.declared) {
		args.declared = *n.declared;
		other.declared = &args.declared;
	}
	te__gnode_ptr_set(&other, &args, use->at, te__gnode_ptr_get(&n, use->at) + 16);
	te__node_ranges(&n, &now);
	te__node_ranges(&other, &moved);
	for (uint32_t k = 0; k < now.n; k++) {
		const uintptr_t begin = now.v[k].ptr, end = begin + now.v[k].nbytes;

		if (begin == moved.v[k].ptr)
			continue;
		rec->used.bound[use->node] |= 1u << k;
		rec->used.stale = 1;
		if (b->begin == b->end)
			b->begin = begin;
		b->begin = begin < b->begin ? begin : b->begin;
		b->end = end > b->end ? end : b->end;
		b->written |= now.v[k].access != TE__READ;
	}
}

/* reserves memory for one more binding; capacities are powers of two */
static int bindings_reserve(struct te_recording *rec, const char *fn)
{
	const size_t n = (size_t)rec->nbindings, more = n ? 2 * n : 1;
	struct te__binding *binding;
	int32_t *order;

	if (n & (n - 1))
		return 0;
	binding = te__realloc(rec->binding, more * sizeof(*binding));
	if (binding)
		rec->binding = binding;
	order = binding ? te__realloc(rec->order, more * sizeof(*order)) : NULL;
	if (!order)
		return te__recording_no_memory(fn, "a binding");
	rec->order = order;
	return 0;
}

static int binding_add(struct te_recording *rec, struct te__binding *b)
{
	const struct te__backend_ops *ops = rec->ctx->ops;
	const char *fn = "te_recording_binding";
	int32_t at;
	int r = binding_find_uses(b, rec, fn);

	if (!r && rec->concurrent && !rec->used.bound &&
	    te__used_init(&rec->used, ops, ops->exec_graph(rec->exec), rec->info.nnodes))
		r = te__recording_no_memory(fn, "the memory that a graph uses");
	if (!r)
		r = scratch_reserve(&rec->scratch, rec->nuses + b->nuses, fn);
	if (!r)
		r = bindings_reserve(rec, fn);
	if (r) {
		te__free(b->use);
		return r;
	}
	b->captured_ptr = b->ptr;
	for (uint32_t i = 0; rec->concurrent && i < b->nuses; i++)
		use_extend(rec, b, &b->use[i]);
	at = bindings_below(rec, b->ptr);
	memmove(&rec->order[at + 1], &rec->order[at],
		(size_t)(rec->nbindings - at) * sizeof(*rec->order));
	rec->order[at] = rec->nbindings;
	rec->binding[rec->nbindings++] = *b;
	rec->nuses += b->nuses;
	return 0;
}

static int is_patchable(const struct te_recording *rec, const struct te__binding *b)
{
	int ok = rec->nodes.opaque < 0;

	for (uint32_t i = 0; ok && i < b->nuses; i++) {
		const struct te__gnode n = te__recording_gnode(rec, b->use[i].node);

		ok = !b->use[i].beyond && !n.fixed && !te__gnode_unplaced(&n, b->use[i].at);
	}
	return ok;
}

int te_recording_binding(struct te_recording *rec, const void *ptr, size_t nbytes,
			 struct te_binding_info *ret)
{
	struct te__binding b = { .ptr = (uintptr_t)ptr, .nbytes = nbytes };
	struct te_binding_info info = TE_BINDING_INFO_INIT;
	int32_t number;
	int r;

	if (!rec || !ptr || !nbytes || nbytes > UINTPTR_MAX - b.ptr)
		return te__fail(-EINVAL, "te_recording_binding: %s",
				!rec	? "rec is NULL" :
				!ptr	? "ptr is NULL" :
				!nbytes ? "nbytes is 0" :
					  "ptr + nbytes overflows");
	r = ret ? te__sized_check("te_recording_binding", te_binding_info, ret) : 0;
	if (r)
		return r;
	number = binding_number(rec, &b);
	if (number < 0)
		return number;
	r = number == rec->nbindings ? binding_add(rec, &b) : 0;
	if (r)
		return r;
	if (ret) {
		info.nuses = (int32_t)rec->binding[number].nuses;
		info.patchable = is_patchable(rec, &rec->binding[number]);
		te__sized_out(te_binding_info, &info, ret);
	}
	return number;
}
