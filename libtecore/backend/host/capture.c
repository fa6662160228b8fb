/*
 * capture.c - capture on the host backend.
 *
 * Each stream of a capture has a front: the nodes its next node depends on. A
 * record copies the front to the event, a wait adds the event's nodes to the
 * front.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>

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

static int ids_has(const struct host_ids *ids, uint32_t id)
{
	for (uint32_t i = 0; i < ids->n; i++)
		if (ids->v[i] == id)
			return 1;
	return 0;
}

static int ids_merge(struct host_ids *to, const struct host_ids *from)
{
	int r = host_ids_reserve(to, to->n + from->n);

	if (r)
		return r;
	for (uint32_t i = 0; i < from->n; i++)
		if (!ids_has(to, from->v[i]))
			to->v[to->n++] = from->v[i];
	return 0;
}

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
	c->graph = host_graph_new();
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
	r = host_graph_reserve(g);
	if (!r)
		r = host_ids_reserve(&g->first, id + 1);
	if (!r)
		r = host_ids_reserve(&g->dep, g->dep.n + m->front.n);
	if (!r)
		r = host_ids_reserve(&m->front, 1);
	if (!r)
		r = host_cmd_set(&g->node[id], op, args, nbytes);
	if (!r && (op->kind == HOST_CALL || op->kind == HOST_RECORD || host_is_word(op))) {
		r = host_declared_copy(&g->node[id], m->declared);
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
static void forget(struct host_event *e)
{
	capture_unref(e->capture);
	e->capture = NULL;
	host_ids_free(&e->ids);
	e->forget = NULL;
}

static int record(struct host_event *e, struct host_stream *s)
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
	forget(e);
	atomic_fetch_add(&c->refs, 1);
	e->capture = c;
	e->ids = ids;
	e->forget = forget;
	pthread_mutex_unlock(&e->lock);
	return 0;
}

int host_event_record(void *event, void *stream)
{
	struct host_stream *s = stream;

	if (host_fault("event_record"))
		return -ENOMEM;
	return s->member ? record(event, s) : host_event_mark(event, s);
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
	if (e->forget)
		e->forget(e);
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

static int wait_in_capture(struct host_event *e, struct host_stream *s)
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

int host_event_wait(void *event, void *stream)
{
	struct host_stream *s = stream;

	if (host_fault("event_wait"))
		return -ENOMEM;
	return s->member || host_event_captured(event) ? wait_in_capture(event, s) :
							 host_event_await(event, s);
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
		host_ids_free(&m->front);
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

/* before the stream is destroyed */
static void leave(struct host_stream *s)
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

void host_stream_destroy(void *stream)
{
	if (!stream)
		return;
	leave(stream);
	host_stream_close(stream);
}
