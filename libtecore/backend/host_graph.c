/*
 * host_graph.c - capture on the host backend: nodes, edges, and their replay.
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

#include "libtecore/backend/host.h"

struct host_member {
	struct host_member *next;
	struct host_capture *capture;
	struct host_stream *stream; /* NULL: destroyed meanwhile */
	uint32_t number;	    /* of the stream */
	struct host_ids front;
};

struct host_capture {
	_Atomic uint32_t refs; /* the members, and events recorded in it */
	pthread_mutex_t lock;
	int active;
	struct host_stream *origin;
	struct host_member *members;
	struct host_graph *graph;
	/* node i depends on dep.v[first.v[i]] up to that of i + 1 */
	struct host_ids first, dep;
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

struct host_graph *host_graph_ref(struct host_graph *g)
{
	atomic_fetch_add(&g->refs, 1);
	return g;
}

void host_graph_destroy(void *graph)
{
	struct host_graph *g = graph;

	if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
		return;
	for (uint64_t i = 0; i < g->nnodes; i++)
		te__free(g->node[i].big);
	te__free(g->node);
	te__free(g);
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
		default:
			ret->nkernels++;
			break;
		}
	}
	return 0;
}

/* nodes do not change once captured: what runs is the graph itself */
int host_graph_instantiate(void *graph, void **ret_exec)
{
	if (host_fault("graph_instantiate"))
		return -ENOMEM;
	*ret_exec = host_graph_ref(graph);
	return 0;
}

int host_graph_launch(void *exec, void *stream)
{
	struct host_op op = { .kind = HOST_GRAPH, .obj = exec };
	int r;

	if (host_fault("graph_launch"))
		return -ENOMEM;
	host_graph_ref(exec);
	r = host_push(stream, &op, NULL, 0, NULL);
	if (r)
		host_graph_destroy(exec);
	return r;
}

/* captures */

static void capture_unref(struct host_capture *c)
{
	if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	host_graph_destroy(c->graph);
	ids_free(&c->first);
	ids_free(&c->dep);
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
	c->graph = te__calloc(1, sizeof(*c->graph));
	if (!c->graph) {
		capture_unref(c);
		return te__fail(-ENOMEM, "host: no memory for a graph");
	}
	c->graph->refs = 1;
	r = member_new(c, s) ? 0 : -ENOMEM;
	capture_unref(c);
	return r;
}

int host_capture_active(void *stream)
{
	return ((struct host_stream *)stream)->member != NULL;
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
		r = ids_reserve(&c->first, id + 1);
	if (!r)
		r = ids_reserve(&c->dep, c->dep.n + m->front.n);
	if (!r)
		r = ids_reserve(&m->front, 1);
	if (!r)
		r = host_cmd_set(&g->node[id], op, args, nbytes);
	if (!r) {
		c->first.v[c->first.n++] = c->dep.n;
		for (uint32_t i = 0; i < m->front.n; i++)
			c->dep.v[c->dep.n++] = m->front.v[i];
		g->nedges += m->front.n;
		g->nnodes++;
		m->front.v[0] = id;
		m->front.n = 1;
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* under e->lock, or by the last that holds the event */
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

/* 0, or -TE_ESTATE where the front of some stream does not lead to the origin's */
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
		uint32_t end = i + 1 < n ? c->first.v[i + 1] : c->dep.n;

		for (uint32_t d = c->first.v[i]; seen[i] && d < end; d++)
			seen[c->dep.v[d]] = 1;
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
		te__free(m);
		atomic_fetch_sub(&c->refs, 1);
	}
	pthread_mutex_unlock(&c->lock);
	capture_unref(c);
	return g;
}

int host_capture_end(void *stream, void **ret_graph)
{
	struct host_stream *s = stream;
	struct host_graph *g;
	int r;

	if (!s->member || s->member->capture->origin != s)
		return te__fail(-TE_ESTATE, "host: no capture began on stream %u", s->number);
	/* a capture ends even where ending it fails */
	r = host_fault("capture_end") ? -ENOMEM : check_joined(s->member->capture);
	g = capture_stop(s->member->capture);
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
