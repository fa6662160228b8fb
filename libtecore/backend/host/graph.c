/*
 * graph.c - graphs of the host backend: nodes and edges, executables, and launches. Nodes depend on
 * earlier ones only, so the order of capture is an order to run them in, and a launch is one
 * command that runs them all.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/backend/host/host.h"

int host_ids_reserve(struct host_ids *ids, uint32_t n)
{
	uint32_t cap = ids->cap ? ids->cap : 8;
	uint32_t *v;

	while (cap < n)
		cap *= 2;
	if (cap == ids->cap)
		return 0;
	v = te__realloc(ids->v, cap * sizeof(*v));
	if (!v)
		return te__fail(-ENOMEM, "host: no memory for a capture");
	ids->v = v;
	ids->cap = cap;
	return 0;
}

void host_ids_free(struct host_ids *ids)
{
	te__free(ids->v);
	*ids = (struct host_ids){ 0 };
}

/* graphs */

void host_graph_destroy(void *graph)
{
	struct host_graph *g = graph;

	if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
		return;
	for (uint64_t i = 0; i < g->nnodes; i++) {
		te__free(g->node[i].big);
		te__free(g->node[i].declared);
		if (g->node[i].op.kind == HOST_RECORD)
			host_event_unref(g->node[i].op.obj);
	}
	te__free(g->node);
	te__free(g->run);
	te__free(g->succ_first);
	te__free(g->succ);
	host_ids_free(&g->first);
	host_ids_free(&g->dep);
	te__free(g);
}

struct host_graph *host_graph_new(void)
{
	struct host_graph *g = te__calloc(1, sizeof(*g));

	if (g)
		g->refs = 1;
	else
		te__fail(-ENOMEM, "host: no memory for a graph");
	return g;
}

int host_graph_reserve(struct host_graph *g)
{
	struct host_cmd *node;
	uint64_t cap = g->cap ? 2 * g->cap : 16;

	if (g->nnodes < g->cap)
		return 0;
	node = te__realloc(g->node, cap * sizeof(*node));
	if (!node)
		return te__fail(-ENOMEM, "host: no memory for %llu graph nodes",
				(unsigned long long)cap);
	g->node = node;
	g->cap = cap;
	return 0;
}

int host_graph_info(void *graph, struct te_recording_info *ret)
{
	const struct host_graph *g = graph;

	if (host_fault("graph_info"))
		return -ENOMEM;
	ret->nnodes = g->nnodes;
	ret->nedges = g->nedges;
	for (uint64_t i = 0; i < g->nnodes; i++) {
		switch (g->node[i].op.kind) {
		case HOST_COPY:
			ret->ncopies++;
			break;
		case HOST_FILL8:
		case HOST_FILL32:
			ret->nfills++;
			break;
		case HOST_CALL:
			ret->nhost++;
			break;
		case HOST_RECORD:
		case HOST_WORD_SET:
		case HOST_WORD_TAKE:
			break;
		default:
			ret->nkernels++;
			break;
		}
	}
	return 0;
}

static const enum te_node_kind node_kind[] = {
	[HOST_COPY] = TE_NODE_COPY, [HOST_FILL8] = TE_NODE_FILL,     [HOST_FILL32] = TE_NODE_FILL,
	[HOST_CALL] = TE_NODE_HOST, [HOST_KERNEL] = TE_NODE_KERNEL, [HOST_RECORD] = TE_NODE_EVENT,
	[HOST_WORD_SET] = TE_NODE_OTHER, [HOST_WORD_TAKE] = TE_NODE_OTHER,
};

void host_graph_node(void *graph, uint64_t index, struct te__gnode *ret)
{
	const struct host_graph *g = graph;
	const struct host_cmd *cmd = &g->node[index];
	const struct host_op *op = &cmd->op;
	uint32_t end = index + 1 < g->nnodes ? g->first.v[index + 1] : g->dep.n;

	*ret = (struct te__gnode){
		.kind = node_kind[op->kind],
		.id = -1,
		.nbytes = op->nbytes,
		.ndeps = end - g->first.v[index],
	};
	if (ret->ndeps)
		ret->dep = &g->dep.v[g->first.v[index]];
	if (op->kind == HOST_KERNEL) {
		ret->id = (int32_t)op->value;
		ret->args = cmd->args;
	} else if (op->kind == HOST_CALL || host_is_word(op)) {
		ret->declared = cmd->declared;
		ret->fixed = host_is_word(op);
	} else if (op->kind == HOST_RECORD) {
		ret->event = op->obj;
		ret->declared = cmd->declared;
		ret->fixed = 1;
	} else {
		ret->dst = op->dst;
		ret->src = op->src;
		ret->value = op->value;
		ret->elem = op->kind == HOST_FILL32 ? 4 : 1;
	}
}

/* executables: each has a graph, which is copied before a change if a queued launch uses it */

static int ids_copy(struct host_ids *to, const struct host_ids *from)
{
	int r = host_ids_reserve(to, from->n);

	for (uint32_t i = 0; !r && i < from->n; i++)
		to->v[to->n++] = from->v[i];
	return r;
}

int host_declared_copy(struct host_cmd *cmd, const struct te__declared *d)
{
	if (!d)
		return 0;
	cmd->declared = te__malloc(sizeof(*cmd->declared));
	if (!cmd->declared)
		return te__fail(-ENOMEM, "host: no memory for the memory of a call");
	*cmd->declared = *d;
	return 0;
}

static int cmd_copy(struct host_cmd *to, const struct host_cmd *from)
{
	const void *args = from->big ? from->big : from->args;
	/* op.nbytes of a copy or fill is not a size of arguments */
	size_t nbytes = from->op.kind == HOST_CALL || from->op.kind == HOST_KERNEL ?
				from->op.nbytes :
				0;
	int r = host_cmd_set(to, &from->op, args, nbytes);

	if (!r)
		r = host_declared_copy(to, from->declared);
	if (r)
		te__free(to->big);
	if (!r && from->op.kind == HOST_RECORD)
		host_event_ref(from->op.obj);
	return r;
}

static int graph_copy(const struct host_graph *g, struct host_graph **ret_graph)
{
	struct host_graph *c = host_graph_new();
	int r;

	if (!c)
		return -ENOMEM;
	r = ids_copy(&c->first, &g->first);
	if (!r)
		r = ids_copy(&c->dep, &g->dep);
	if (!r && g->run) {
		c->run = te__malloc(g->nnodes * sizeof(*c->run));
		if (c->run)
			memcpy(c->run, g->run, g->nnodes * sizeof(*c->run));
		else
			r = te__fail(-ENOMEM, "host: no memory for a graph");
	}
	while (!r && c->nnodes < g->nnodes) {
		r = host_graph_reserve(c);
		if (!r)
			r = cmd_copy(&c->node[c->nnodes], &g->node[c->nnodes]);
		if (!r)
			c->nnodes++;
	}
	c->dev = g->dev;
	if (!r)
		r = host_graph_branches(c);
	c->nedges = g->nedges;
	c->nrecords = g->nrecords;
	if (r)
		host_graph_destroy(c);
	else
		*ret_graph = c;
	return r;
}

int host_graph_instantiate(void *graph, void **ret_exec)
{
	struct host_exec *e;
	int r;

	if (host_fault("graph_instantiate"))
		return -ENOMEM;
	r = host_replay_start(graph);
	if (r)
		return r;
	e = te__malloc(sizeof(*e));
	if (!e)
		return te__fail(-ENOMEM, "host: no memory for an executable graph");
	e->graph = graph;
	*ret_exec = e;
	return 0;
}

void *host_exec_graph(void *exec)
{
	return ((struct host_exec *)exec)->graph;
}

void host_exec_destroy(void *exec)
{
	struct host_exec *e = exec;

	if (!e)
		return;
	host_graph_destroy(e->graph);
	te__free(e);
}

/* new addresses of a call's memory, also in its arguments */
static void patch_call(struct host_cmd *cmd, const struct te__declared *to)
{
	char *args = cmd->big ? cmd->big : (char *)cmd->args;

	*cmd->declared = *to;
	for (uint32_t k = 0; k < to->ranges.n; k++)
		if (to->at[k] >= 0)
			memcpy(args + to->at[k], &to->ranges.v[k].ptr, sizeof(uintptr_t));
}

/* queued launches keep a reference to the previous graph */
int host_exec_update(void *exec, void *graph, int same)
{
	struct host_exec *e = exec;
	int r;

	if (host_fault("exec_update"))
		return -ENOMEM;
	r = host_replay_start(graph);
	if (r)
		return r;
	host_graph_destroy(e->graph);
	e->graph = graph;
	return same ? TE_UPDATE_IN_PLACE : TE_UPDATE_INSTANTIATED;
}

int host_exec_patch(void *exec, uint64_t n, const struct te__patch *patch)
{
	struct host_exec *e = exec;

	if (host_fault("exec_patch"))
		return -ENOMEM;
	/* only a call with this exec could add a reference meanwhile */
	if (atomic_load(&e->graph->refs) > 1) {
		struct host_graph *copy;
		int r = graph_copy(e->graph, &copy);

		if (r)
			return r;
		host_graph_destroy(e->graph);
		e->graph = copy;
	}
	for (uint64_t i = 0; i < n; i++) {
		struct host_cmd *cmd = &e->graph->node[patch[i].index];

		if (patch[i].to.args) {
			memcpy(cmd->args, patch[i].to.args, cmd->op.nbytes);
		} else if (patch[i].to.declared) {
			patch_call(cmd, patch[i].to.declared);
		} else {
			cmd->op.dst = patch[i].to.dst;
			cmd->op.src = patch[i].to.src;
		}
	}
	return 0;
}

/* take the counts of the records in a launch; with undo, give them up again */
static void count_records(const struct host_graph *g, uint64_t *count, int undo)
{
	for (uint64_t i = 0; i < g->nnodes; i++) {
		if (g->node[i].op.kind != HOST_RECORD)
			continue;
		if (undo)
			host_event_uncount(g->node[i].op.obj);
		else
			*count++ = host_event_count(g->node[i].op.obj);
	}
}

static void place_records(const struct host_graph *g, const uint64_t *count, struct host_stream *s,
			  uint64_t pos)
{
	for (uint64_t i = 0; i < g->nnodes; i++)
		if (g->node[i].op.kind == HOST_RECORD)
			host_event_place(g->node[i].op.obj, s, pos, *count++);
}

static int launch_recording(struct host_graph *g, struct host_stream *s, const struct host_op *op)
{
	uint64_t *count = te__malloc(g->nrecords * sizeof(*count));
	uint64_t pos;
	int r;

	if (!count)
		return te__fail(-ENOMEM, "host: no memory to launch a graph");
	count_records(g, count, 0);
	r = host_push(s, op, count, g->nrecords * sizeof(*count), &pos);
	if (r)
		count_records(g, count, 1);
	else
		place_records(g, count, s, pos);
	te__free(count);
	return r;
}

static int run_nodes(struct host_stream *s, const struct host_cmd *cmd)
{
	const struct host_graph *g = cmd->op.obj;
	const void *args = cmd->big ? cmd->big : cmd->args;
	int r = 0;

	if (cmd->op.replay)
		return host_replay_run(cmd->op.replay, s, args);
	for (uint64_t i = 0; i < g->nnodes && !r; i++)
		r = host_run_node(s, g, g->run ? g->run[i] : i, args);
	return r;
}

static int run_launch(struct host_stream *s, struct host_cmd *cmd, uint64_t pos, int failed)
{
	const int r = failed ? 0 : run_nodes(s, cmd);

	(void)pos;
	host_graph_destroy(cmd->op.obj);
	te__free(cmd->op.replay);
	te__free(cmd->big);
	return r;
}

int host_graph_launch(void *exec, void *stream)
{
	struct host_graph *g = ((struct host_exec *)exec)->graph;
	struct host_op op = { .kind = HOST_CONTROL, .run = run_launch, .obj = g };
	int r;

	if (host_fault("graph_launch"))
		return -ENOMEM;
	r = host_replay_new(g, &op.replay);
	if (r)
		return r;
	atomic_fetch_add(&g->refs, 1);
	r = g->nrecords ? launch_recording(g, stream, &op) : host_push(stream, &op, NULL, 0, NULL);
	if (r) {
		host_graph_destroy(g);
		te__free(op.replay);
	}
	return r;
}
