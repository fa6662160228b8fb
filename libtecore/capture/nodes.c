/* nodes.c - the nodes of a recording: listed, compared, drawn. */
#define TE_LOG_CATEGORY "core/recording"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/capture/recording.h"

int te__recording_no_memory(const char *fn, const char *what)
{
	return te__fail(-ENOMEM, "%s: no memory for %s", fn, what);
}

void te__nodes_free(struct te__nodes *s)
{
	te__free(s->patch);
	te__free(s->pointer);
	*s = (struct te__nodes){ .opaque = -1 };
}

int te__nodes_init(struct te__nodes *s, const struct te__backend_ops *ops, void *graph, uint64_t n,
		   const char *fn)
{
	struct te__gnode node;

	*s = (struct te__nodes){ .opaque = -1, .patch = te__calloc(n, sizeof(*s->patch)) };
	if (!s->patch)
		return te__recording_no_memory(fn, "the nodes of a graph");
	for (uint64_t i = 0; s->opaque < 0 && i < n; i++) {
		ops->graph_node(graph, i, &node);
		if (node.opaque)
			s->opaque = (int64_t)i;
	}
	return 0;
}

struct te__gnode te__recording_gnode(const struct te_recording *rec, uint64_t index)
{
	const struct te__backend_ops *ops = rec->ctx->ops;
	struct te__gnode n;

	ops->graph_node(ops->exec_graph(rec->exec), index, &n);
	return n;
}

int te__nodes_same(const struct te_recording *rec, void *graph, uint64_t n)
{
	if (rec->info.nnodes != n)
		return 0;
	for (uint64_t i = 0; i < n; i++) {
		const struct te__gnode x = te__recording_gnode(rec, i);
		struct te__gnode y;

		rec->ctx->ops->graph_node(graph, i, &y);
		if (x.kind != y.kind || x.ndeps != y.ndeps ||
		    (x.ndeps && memcmp(x.dep, y.dep, x.ndeps * sizeof(*x.dep)) != 0))
			return 0;
	}
	return 1;
}

/* names */

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

const char *te__gnode_label(const struct te__gnode *n)
{
	return n->id < 0 ? node_kind(n) : node_name(n);
}

/* pointers */

int te__gnode_pointer(const struct te__gnode *n, uint32_t k, int32_t *ret_at)
{
	const uint16_t *offset;

	if (n->declared) {
		*ret_at = (int32_t)k;
		return k < n->declared->ranges.n;
	}
	if (n->args) {
		if (k >= te__k_ptrs((enum te_k_id)n->id, &offset))
			return 0;
		*ret_at = offset[k];
		return 1;
	}
	*ret_at = k ? TE__AT_SRC : TE__AT_DST;
	return n->id < 0 && ((n->kind == TE_NODE_COPY && k < 2) || (n->kind == TE_NODE_FILL && !k));
}

uintptr_t te__gnode_ptr_get(const struct te__gnode *n, int32_t at)
{
	uintptr_t p;

	if (n->declared)
		return n->declared->ranges.v[at].ptr;
	if (at < 0)
		return at == TE__AT_DST ? (uintptr_t)n->dst : (uintptr_t)n->src;
	memcpy(&p, (const char *)n->args + at, sizeof(p));
	return p;
}

void te__gnode_ptr_set(struct te__gnode *n, void *args, int32_t at, uintptr_t p)
{
	if (n->declared)
		((struct te__declared *)args)->ranges.v[at].ptr = p;
	else if (at >= 0)
		memcpy((char *)args + at, &p, sizeof(p));
	else if (at == TE__AT_DST)
		n->dst = (void *)p;
	else
		n->src = (const void *)p;
}

/* lists */

static int check_index(const char *fn, const struct te_recording *rec, uint64_t index)
{
	if (!rec)
		return te__fail(-EINVAL, "%s: rec is NULL", fn);
	if (index >= rec->info.nnodes)
		return te__fail(-EINVAL, "%s: no node %" PRIu64 ": the recording has %" PRIu64
				" nodes", fn, index, rec->info.nnodes);
	return 0;
}

int te_recording_node(const struct te_recording *rec, uint64_t index, struct te_node_info *ret)
{
	struct te_node_info info = TE_NODE_INFO_INIT;
	struct te__gnode n;
	int r = check_index("te_recording_node", rec, index);

	if (!r)
		r = te__sized_check("te_recording_node", te_node_info, ret);
	if (r)
		return r;
	n = te__recording_gnode(rec, index);
	info.kind = n.kind;
	info.name = node_name(&n);
	info.nbytes = n.nbytes;
	info.ndeps = (int32_t)n.ndeps;
	te__sized_out(te_node_info, &info, ret);
	return 0;
}

int te_recording_deps(const struct te_recording *rec, uint64_t index, int32_t cap,
		      uint64_t *ret_index)
{
	struct te__gnode n;
	int r = check_index("te_recording_deps", rec, index);

	if (r)
		return r;
	if (cap < 0 || (cap && !ret_index))
		return te__fail(-EINVAL, "te_recording_deps: %s",
				cap < 0 ? "cap is below 0" : "ret_index is NULL");
	n = te__recording_gnode(rec, index);
	for (uint32_t i = 0; i < n.ndeps && i < (uint32_t)cap; i++)
		ret_index[i] = n.dep[i];
	return (int)n.ndeps;
}

int te__recording_opaque(const struct te_recording *rec)
{
	return rec->nodes.opaque >= 0;
}

int te__recording_records(const struct te_recording *rec, const struct te_event *event)
{
	for (uint64_t i = 0; i < rec->info.nnodes && rec->ctx == event->ctx; i++)
		if (te__recording_gnode(rec, i).event == event->impl)
			return 1;
	return 0;
}

struct dot {
	const struct te_recording *rec;
	const char *title;
};

static int print_dot(FILE *f, const void *arg)
{
	const struct dot *dot = arg;
	const struct te_recording *rec = dot->rec;

	fputs("digraph \"", f);
	for (const char *c = dot->title; *c; c++) {
		if (*c == '"' || *c == '\\')
			fputc('\\', f);
		fputc(*c, f);
	}
	fputs("\" {\n\tnode [shape=box];\n", f);
	for (uint64_t i = 0; i < rec->info.nnodes; i++) {
		const struct te__gnode n = te__recording_gnode(rec, i);

		fprintf(f, "\tn%" PRIu64 " [label=\"%" PRIu64 " %s", i, i, te__gnode_label(&n));
		if (n.nbytes && n.kind != TE_NODE_KERNEL)
			fprintf(f, "\\n%" PRIu64 " bytes", n.nbytes);
		fputs("\"];\n", f);
		for (uint32_t d = 0; d < n.ndeps; d++)
			fprintf(f, "\tn%" PRIu32 " -> n%" PRIu64 ";\n", n.dep[d], i);
	}
	fputs("}\n", f);
	return 0;
}

int te_recording_dot(const struct te_recording *rec, const char *title, char **ret_text)
{
	const struct dot dot = { rec, title ? title : "recording" };

	if (!rec || !ret_text)
		return te__fail(-EINVAL, "te_recording_dot: %s is NULL", rec ? "ret_text" : "rec");
	return te__text("te_recording_dot", print_dot, &dot, ret_text);
}
