/* rebind.c - changing the memory of bindings: checks, conflicts with other nodes, patches. */
#define TE_LOG_CATEGORY "core/recording"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "libtecore/capture/recording.h"

static const char *node_label(const struct te_recording *rec, int64_t node)
{
	const struct te__gnode n = te__recording_gnode(rec, (uint64_t)node);

	return te__gnode_label(&n);
}

/* 0, or an error with the reason why the use cannot be patched */
static int use_check(const struct te_recording *rec, int32_t number, const struct te__use *use)
{
	const struct te__gnode n = te__recording_gnode(rec, use->node);

	if (te__gnode_unplaced(&n, use->at))
		return te__fail(-EOPNOTSUPP,
				"te_recording_rebind: binding %" PRId32 ": node %" PRIu32
				" (%s) uses %" PRIu64 " bytes at %p, and te_capture_access did not "
				"say where its arguments have this pointer",
				number, use->node, te__gnode_label(&n),
				n.declared->ranges.v[use->at].nbytes,
				(void *)n.declared->ranges.v[use->at].ptr);
	if (n.fixed)
		return te__fail(-EOPNOTSUPP,
				"te_recording_rebind: binding %" PRId32 ": node %" PRIu32
				" (%s) cannot be patched on the %s backend",
				number, use->node, te__gnode_label(&n), rec->ctx->ops->name);
	if (use->beyond)
		return te__fail(-EOPNOTSUPP,
				"te_recording_rebind: binding %" PRId32 ": node %" PRIu32
				" (%s of %" PRIu64 " bytes) also accesses memory outside the %zu "
				"bytes of the binding",
				number, use->node, te__gnode_label(&n),
				n.declared ? n.declared->ranges.v[use->at].nbytes : n.nbytes,
				rec->binding[number].nbytes);
	return 0;
}

static int binding_check(const struct te_recording *rec, int32_t number)
{
	const struct te__binding *b = &rec->binding[number];
	int r = 0;

	if (rec->nodes.opaque >= 0)
		return te__fail(-EOPNOTSUPP,
				"te_recording_rebind: binding %" PRId32 ": node %" PRId64
				" (%s) was not queued through this library: which memory it uses "
				"is unknown",
				number, rec->nodes.opaque, node_label(rec, rec->nodes.opaque));
	for (uint32_t i = 0; !r && i < b->nuses; i++)
		r = use_check(rec, number, &b->use[i]);
	return r;
}

static int rebind_check(const struct te_recording *rec, int n, const int32_t *bindings,
			void *const *ptrs)
{
	const char *fn = "te_recording_rebind";

	if (!rec || n < 0 || (n && (!bindings || !ptrs)))
		return te__fail(-EINVAL, "%s: %s", fn,
				!rec	  ? "rec is NULL" :
				n < 0	  ? "n is below 0" :
				!bindings ? "bindings is NULL" :
					    "ptrs is NULL");
	for (int i = 0; i < n; i++) {
		const uintptr_t p = (uintptr_t)ptrs[i];
		const struct te__binding *b;

		if (bindings[i] < 0 || bindings[i] >= rec->nbindings)
			return te__fail(-EINVAL,
					"%s: no binding %" PRId32 ": the recording has %" PRId32
					" bindings",
					fn, bindings[i], rec->nbindings);
		b = &rec->binding[bindings[i]];
		if (!p || b->nbytes > UINTPTR_MAX - p)
			return te__fail(-EINVAL,
					"%s: binding %" PRId32 ": %p is not the address of %zu "
					"bytes",
					fn, bindings[i], ptrs[i], b->nbytes);
		/* the alignment of the captured memory decided which kernels were launched */
		if ((p ^ b->ptr) % 16)
			return te__fail(-EINVAL,
					"%s: binding %" PRId32 ": %p and its present memory %p "
					"differ modulo 16",
					fn, bindings[i], ptrs[i], (void *)b->ptr);
		for (int k = 0; k < i; k++)
			if (bindings[k] == bindings[i])
				return te__fail(-EINVAL, "%s: binding %" PRId32 " is given twice",
						fn, bindings[i]);
	}
	return 0;
}

/* conflicts */

static void binding_move(struct te__binding *b, uintptr_t ptr)
{
	b->begin += ptr - b->ptr;
	b->end += ptr - b->ptr;
	b->ptr = ptr;
}

/* Returns 1 if two bindings overlap and one is written. If both are at their captured addresses,
 * the captured dependencies order them. */
static int bindings_conflict(const struct te__binding *a, const struct te__binding *b)
{
	return (a->written || b->written) && a->begin < b->end && b->begin < a->end &&
	       (a->ptr != a->captured_ptr || b->ptr != b->captured_ptr);
}

/* For a concurrent recording, after the move of all bindings: -EINVAL if the memory of the binding
 * overlaps memory of a node or binding that no captured dependency orders against its uses. */
static int conflict_check(const struct te_recording *rec, int32_t number)
{
	const char *fn = "te_recording_rebind";
	const struct te__binding *b = &rec->binding[number];
	const struct te__used_list *used = b->written ? &rec->used.any : &rec->used.written;
	int64_t node = -1;

	if (b->begin == b->end)
		return 0;
	if (b->ptr != b->captured_ptr)
		node = te__used_at(used, b->begin, b->end);
	if (node >= 0)
		return te__fail(-EINVAL,
				"%s: binding %" PRId32 ": %zu bytes at %p overlap memory that node "
				"%" PRId64 " (%s) uses, and at least one of the two writes it",
				fn, number, b->nbytes, (void *)b->ptr, node,
				node_label(rec, node));
	for (int32_t i = 0; i < rec->nbindings; i++)
		if (i != number && bindings_conflict(b, &rec->binding[i]))
			return te__fail(-EINVAL,
					"%s: binding %" PRId32 ": %zu bytes at %p overlap binding "
					"%" PRId32 ", which node %" PRIu32 " (%s) uses, and at "
					"least one of the two is written",
					fn, number, b->nbytes, (void *)b->ptr, i,
					rec->binding[i].use[0].node,
					node_label(rec, rec->binding[i].use[0].node));
	return 0;
}

/* patches */

/* the patch of a node, which is new if the node is not among the *npatches so far */
static struct te__patch *patch_of(struct te_recording *rec, uint32_t node, uint32_t *npatches)
{
	const struct te__gnode from = te__recording_gnode(rec, node);
	struct te__scratch *s = &rec->scratch;
	uint32_t at = rec->nodes.patch[node];

	if (at)
		return &s->patch[at - 1];
	at = (*npatches)++;
	rec->nodes.patch[node] = at + 1;
	s->patch[at] = (struct te__patch){ .index = node, .from = from, .to = from };
	if (from.args) {
		memcpy(&s->args[at], from.args, te__k_nbytes((enum te_k_id)from.id));
		s->patch[at].to.args = &s->args[at];
	} else if (from.declared) {
		s->args[at].declared = *from.declared;
		s->patch[at].to.declared = &s->args[at].declared;
	}
	return &s->patch[at];
}

static void binding_patch(struct te_recording *rec, const struct te__binding *b,
			  uint32_t *npatches)
{
	for (uint32_t i = 0; i < b->nuses; i++) {
		const struct te__use *use = &b->use[i];
		struct te__patch *p = patch_of(rec, use->node, npatches);
		uintptr_t old = te__gnode_ptr_get(&p->from, use->at);

		te__gnode_ptr_set(&p->to, &rec->scratch.args[p - rec->scratch.patch], use->at,
				  b->ptr + (old - b->old_ptr));
	}
}

int te_recording_rebind(struct te_recording *rec, int n, const int32_t *bindings,
			void *const *ptrs)
{
	uint32_t npatches = 0;
	int r = rec ? te__ctx_check_fork(rec->ctx, "te_recording_rebind") : 0;

	if (!r)
		r = rebind_check(rec, n, bindings, ptrs);
	for (int i = 0; !r && i < n; i++)
		if (rec->binding[bindings[i]].ptr != (uintptr_t)ptrs[i])
			r = binding_check(rec, bindings[i]);
	if (r)
		return r;
	for (int i = 0; i < n; i++) {
		struct te__binding *b = &rec->binding[bindings[i]];

		b->old_ptr = b->ptr;
		binding_move(b, (uintptr_t)ptrs[i]);
	}
	te__used_drop_bound(&rec->used);
	for (int i = 0; !r && rec->concurrent && i < n; i++)
		if (rec->binding[bindings[i]].ptr != rec->binding[bindings[i]].old_ptr)
			r = conflict_check(rec, bindings[i]);
	for (int i = 0; !r && i < n; i++)
		if (rec->binding[bindings[i]].ptr != rec->binding[bindings[i]].old_ptr)
			binding_patch(rec, &rec->binding[bindings[i]], &npatches);
	if (npatches)
		r = rec->ctx->ops->exec_patch(rec->exec, npatches, rec->scratch.patch);
	for (uint32_t i = 0; i < npatches; i++)
		rec->nodes.patch[rec->scratch.patch[i].index] = 0;
	for (int i = 0; r && i < n; i++)
		binding_move(&rec->binding[bindings[i]], rec->binding[bindings[i]].old_ptr);
	if (r)
		return r;
	te__free(rec->nodes.pointer);
	rec->nodes.pointer = NULL;
	rec->rebound = 1;
	return 0;
}
