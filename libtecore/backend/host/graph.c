/*
 * graph.c - capture on the host backend: nodes, edges, and their replay.
 *
 * Each stream of a capture has a front: the nodes its next node depends on. A
 * record copies the front to the event, a wait adds the event's nodes to the
 * front. Nodes depend on earlier ones only, so the order of capture is an order
 * to run them in, and a launch is one command that runs them all.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/backend/host/host.h"

struct host_member {
	struct host_member *next;
	struct host_capture *capture;
	struct host_stream *stream; /* NULL: destroyed meanwhile */
	uint32_t number;	    /* number of the stream */
	struct te__declared *declared; /* accesses of calls queued now, or NULL */
	struct host_ids front;
};

struct host_capture {
	_Atomic uint32_t refs; /* the members, and events recorded in it */
	pthread_mutex_t lock;
	int active;
	struct host_stream *origin;
	struct host_member *members;
	struct host_graph *graph;
	int concurrent; /* TE_CAPTURE_CONCURRENT: dependencies come from memory accesses */
};

static int ids_reserve(struct host_ids *ids, uint32_t n)
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

static int ids_has(const struct host_ids *ids, uint32_t id)
{
	for (uint32_t i = 0; i < ids->n; i++)
		if (ids->v[i] == id)
			return 1;
	return 0;
}

static int ids_merge(struct host_ids *to, const struct host_ids *from)
{
	int r = ids_reserve(to, to->n + from->n);

	if (r)
		return r;
	for (uint32_t i = 0; i < from->n; i++)
		if (!ids_has(to, from->v[i]))
			to->v[to->n++] = from->v[i];
	return 0;
}

static void ids_free(struct host_ids *ids)
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
	ids_free(&g->first);
	ids_free(&g->dep);
	te__free(g);
}

static struct host_graph *graph_new(void)
{
	struct host_graph *g = te__calloc(1, sizeof(*g));

	if (g)
		g->refs = 1;
	else
		te__fail(-ENOMEM, "host: no memory for a graph");
	return g;
}

static int graph_reserve(struct host_graph *g)
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

static int is_word(const struct host_op *op)
{
	return op->kind == HOST_WORD_SET || op->kind == HOST_WORD_TAKE;
}

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
	} else if (op->kind == HOST_CALL || is_word(op)) {
		ret->declared = cmd->declared;
		ret->fixed = is_word(op);
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
	int r = ids_reserve(to, from->n);

	for (uint32_t i = 0; !r && i < from->n; i++)
		to->v[to->n++] = from->v[i];
	return r;
}

static int declared_copy(struct host_cmd *cmd, const struct te__declared *d)
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
		r = declared_copy(to, from->declared);
	if (r)
		te__free(to->big);
	if (!r && from->op.kind == HOST_RECORD)
		host_event_ref(from->op.obj);
	return r;
}

static int graph_copy(const struct host_graph *g, struct host_graph **ret_graph)
{
	struct host_graph *c = graph_new();
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
		r = graph_reserve(c);
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

int host_graph_launch(void *exec, void *stream)
{
	struct host_graph *g = ((struct host_exec *)exec)->graph;
	struct host_op op = { .kind = HOST_GRAPH, .obj = g };
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

/* captures */

static void capture_unref(struct host_capture *c)
{
	if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	host_graph_destroy(c->graph);
	pthread_mutex_destroy(&c->lock);
	te__free(c);
}

static struct host_member *member_new(struct host_capture *c, struct host_stream *s)
{
	struct host_member *m = te__calloc(1, sizeof(*m));

	if (!m) {
		te__fail(-ENOMEM, "host: no memory for a capture");
		return NULL;
	}
	atomic_fetch_add(&c->refs, 1);
	m->capture = c;
	m->stream = s;
	m->number = s->number;
	m->next = c->members;
	c->members = m;
	s->member = m;
	return m;
}

int host_capture_begin(void *stream)
{
	struct host_stream *s = stream;
	struct host_capture *c;
	int r;

	if (host_fault("capture_begin"))
		return -ENOMEM;
	r = host_sticky(s);
	if (r)
		return r;
	if (s->member)
		return te__fail(-EBUSY, "host: stream %u is capturing already", s->number);
	c = te__calloc(1, sizeof(*c));
	if (!c)
		return te__fail(-ENOMEM, "host: no memory for a capture");
	c->refs = 1;
	c->active = 1;
	c->origin = s;
	pthread_mutex_init(&c->lock, NULL);
	c->graph = graph_new();
	if (!c->graph) {
		capture_unref(c);
		return -ENOMEM;
	}
	r = member_new(c, s) ? 0 : -ENOMEM;
	capture_unref(c);
	return r;
}

int host_capture_active(void *stream)
{
	return ((struct host_stream *)stream)->member != NULL;
}

/* sorted: a front is in the order of its merges */
static void add_deps(struct host_ids *dep, const struct host_ids *front)
{
	const uint32_t start = dep->n;

	for (uint32_t i = 0; i < front->n; i++) {
		uint32_t at = dep->n++;

		for (; at > start && dep->v[at - 1] > front->v[i]; at--)
			dep->v[at] = dep->v[at - 1];
		dep->v[at] = front->v[i];
	}
}

int host_capture_add(struct host_stream *s, const struct host_op *op, const void *args,
		     size_t nbytes)
{
	struct host_member *m = s->member;
	struct host_capture *c = m->capture;
	struct host_graph *g = c->graph;
	uint32_t id;
	int r;

	pthread_mutex_lock(&c->lock);
	id = (uint32_t)g->nnodes;
	r = graph_reserve(g);
	if (!r)
		r = ids_reserve(&g->first, id + 1);
	if (!r)
		r = ids_reserve(&g->dep, g->dep.n + m->front.n);
	if (!r)
		r = ids_reserve(&m->front, 1);
	if (!r)
		r = host_cmd_set(&g->node[id], op, args, nbytes);
	if (!r && (op->kind == HOST_CALL || op->kind == HOST_RECORD || is_word(op))) {
		r = declared_copy(&g->node[id], m->declared);
		if (r)
			te__free(g->node[id].big);
	}
	if (!r) {
		g->first.v[g->first.n++] = g->dep.n;
		add_deps(&g->dep, &m->front);
		g->nedges += m->front.n;
		g->nrecords += op->kind == HOST_RECORD;
		g->nnodes++;
		m->front.v[0] = id;
		m->front.n = 1;
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* with e->lock held, or for the last reference to the event */
void host_capture_forget(struct host_event *e)
{
	capture_unref(e->capture);
	e->capture = NULL;
	ids_free(&e->ids);
}

int host_capture_record(struct host_event *e, struct host_stream *s)
{
	struct host_capture *c = s->member->capture;
	struct host_ids ids = { 0 };
	int r;

	pthread_mutex_lock(&c->lock);
	r = ids_merge(&ids, &s->member->front);
	pthread_mutex_unlock(&c->lock);
	if (r)
		return r;
	pthread_mutex_lock(&e->lock);
	host_capture_forget(e);
	atomic_fetch_add(&c->refs, 1);
	e->capture = c;
	e->ids = ids;
	pthread_mutex_unlock(&e->lock);
	return 0;
}

int host_event_record_external(void *event, void *stream)
{
	struct host_event *e = event;
	struct host_stream *s = stream;
	int r;

	if (host_fault("event_record_external"))
		return -ENOMEM;
	if (!s->member)
		return te__fail(-TE_ESTATE, "host: stream %u does not capture", s->number);
	host_event_ref(e);
	r = host_capture_add(s, &(struct host_op){ .kind = HOST_RECORD, .obj = e }, NULL, 0);
	if (r) {
		host_event_unref(e);
		return r;
	}
	/* its last record is not inside a capture any more */
	pthread_mutex_lock(&e->lock);
	host_capture_forget(e);
	pthread_mutex_unlock(&e->lock);
	return 0;
}

/* under e->lock and, where there is a capture, its lock */
static int capture_wait(struct host_event *e, struct host_capture *c, struct host_stream *s)
{
	struct host_member *m = s->member;

	if (!c)
		return te__fail(-TE_ESTATE, "host: stream %u captures, and the event to wait for "
				"was recorded outside of the capture", s->number);
	if (!c->active)
		return te__fail(-TE_ESTATE, "host: the event was recorded in a capture that ended");
	if (m && m->capture != c)
		return te__fail(-TE_ESTATE, "host: stream %u takes part in another capture than "
				"the event", s->number);
	if (!m) {
		int r = host_sticky(s);

		if (r)
			return r;
		m = member_new(c, s);
	}
	return m ? ids_merge(&m->front, &e->ids) : -ENOMEM;
}

int host_capture_wait(struct host_event *e, struct host_stream *s)
{
	struct host_capture *c;
	int r = 0;

	pthread_mutex_lock(&e->lock);
	c = e->capture;
	if (c)
		pthread_mutex_lock(&c->lock);
	if (c || e->stream) /* else never recorded: nothing to wait for */
		r = capture_wait(e, c, s);
	if (c)
		pthread_mutex_unlock(&c->lock);
	pthread_mutex_unlock(&e->lock);
	return r;
}

/* 0, or -TE_ESTATE if work of some stream does not precede the end of the origin */
static int check_joined(struct host_capture *c)
{
	uint64_t n = c->graph->nnodes;
	const struct host_member *m;
	unsigned char *seen = te__calloc(n, 1);
	int r = 0;

	if (!seen)
		return te__fail(-ENOMEM, "host: no memory to end a capture");
	for (uint32_t i = 0; i < c->origin->member->front.n; i++)
		seen[c->origin->member->front.v[i]] = 1;
	for (uint64_t i = n; i-- > 0;) {
		uint32_t end = i + 1 < n ? c->graph->first.v[i + 1] : c->graph->dep.n;

		for (uint32_t d = c->graph->first.v[i]; seen[i] && d < end; d++)
			seen[c->graph->dep.v[d]] = 1;
	}
	for (m = c->members; m && !r; m = m->next)
		for (uint32_t i = 0; i < m->front.n && !r; i++)
			if (!seen[m->front.v[i]])
				r = te__fail(-TE_ESTATE, "host: stream %u was not joined to the "
					     "captured stream %u", m->number, c->origin->number);
	te__free(seen);
	return r;
}

static struct host_graph *capture_stop(struct host_capture *c)
{
	struct host_graph *g;
	struct host_member *m;

	/* a reference: the members hold the others */
	atomic_fetch_add(&c->refs, 1);
	pthread_mutex_lock(&c->lock);
	c->active = 0;
	g = c->graph;
	c->graph = NULL;
	while ((m = c->members)) {
		c->members = m->next;
		if (m->stream)
			m->stream->member = NULL;
		ids_free(&m->front);
		te__free(m->declared);
		te__free(m);
		atomic_fetch_sub(&c->refs, 1);
	}
	pthread_mutex_unlock(&c->lock);
	capture_unref(c);
	return g;
}

int host_capture_edges(void *stream, uint32_t edges)
{
	struct host_stream *s = stream;

	if (!s->member || s->member->capture->origin != s)
		return te__fail(-TE_ESTATE, "host: no capture began on stream %u", s->number);
	s->member->capture->concurrent = (edges & TE_CAPTURE_CONCURRENT) != 0;
	return 0;
}

int host_capture_access(void *stream, const struct te__declared *declared)
{
	struct host_member *m = ((struct host_stream *)stream)->member;

	if (host_fault("capture_access"))
		return -ENOMEM;
	if (!m)
		return te__fail(-TE_ESTATE, "host: the stream does not capture");
	te__free(m->declared);
	m->declared = NULL;
	if (!declared)
		return 0;
	m->declared = te__malloc(sizeof(*m->declared));
	if (!m->declared)
		return te__fail(-ENOMEM, "host: no memory for the memory of calls");
	*m->declared = *declared;
	return 0;
}

int host_capture_end(void *stream, void **ret_graph)
{
	struct host_stream *s = stream;
	struct host_graph *g;
	int concurrent, r;

	if (!s->member || s->member->capture->origin != s)
		return te__fail(-TE_ESTATE, "host: no capture began on stream %u", s->number);
	/* the capture ends even if this call fails */
	r = host_fault("capture_end") ? -ENOMEM : check_joined(s->member->capture);
	concurrent = s->member->capture->concurrent;
	g = capture_stop(s->member->capture);
	g->dev = s->dev;
	if (!r && concurrent)
		r = host_graph_order(g, s->dev->shuffle);
	if (!r)
		r = host_graph_branches(g);
	if (r) {
		host_graph_destroy(g);
		return r;
	}
	*ret_graph = g;
	return 0;
}

void host_capture_leave(struct host_stream *s)
{
	struct host_member *m = s->member;

	if (!m)
		return;
	if (m->capture->origin == s) {
		host_graph_destroy(capture_stop(m->capture));
		return;
	}
	pthread_mutex_lock(&m->capture->lock);
	m->stream = NULL;
	pthread_mutex_unlock(&m->capture->lock);
}
