/*
 * event.c - events. An event is a (stream, position) pair: it is reached once the stream has
 * finished that many commands or, if its record is a node of a graph, once that node has run.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>

#include "libtecore/backend/host/host.h"

struct host_event *host_event_ref(struct host_event *e)
{
	atomic_fetch_add(&e->refs, 1);
	return e;
}

void host_event_unref(struct host_event *e)
{
	if (!e || atomic_fetch_sub(&e->refs, 1) != 1)
		return;
	if (e->forget)
		e->forget(e);
	host_stream_unref(e->stream);
	pthread_mutex_destroy(&e->lock);
	te__free(e);
}

void host_event_reach(struct host_event *e, uint64_t count)
{
	pthread_mutex_lock(&e->lock);
	/* an older record, on another stream, may be reached later */
	if (count > atomic_load(&e->reached)) {
		e->time_ns = te__now_ns();
		atomic_store(&e->reached, count);
	}
	pthread_mutex_unlock(&e->lock);
}

int host_event_create(void *dev, void **ret_event)
{
	struct host_event *e;

	(void)dev;
	if (host_fault("event_create"))
		return -ENOMEM;
	e = te__calloc(1, sizeof(*e));
	if (!e)
		return te__fail(-ENOMEM, "host: no memory for an event");
	e->refs = 1;
	pthread_mutex_init(&e->lock, NULL);
	*ret_event = e;
	return 0;
}

void host_event_destroy(void *event)
{
	host_event_unref(event);
}

uint64_t host_event_count(struct host_event *e)
{
	uint64_t count;

	pthread_mutex_lock(&e->lock);
	count = ++e->nrecords;
	pthread_mutex_unlock(&e->lock);
	return count;
}

void host_event_uncount(struct host_event *e)
{
	pthread_mutex_lock(&e->lock);
	e->nrecords--;
	pthread_mutex_unlock(&e->lock);
}

void host_event_place(struct host_event *e, struct host_stream *s, uint64_t pos, uint64_t count)
{
	struct host_stream *old;

	pthread_mutex_lock(&e->lock);
	if (e->forget)
		e->forget(e);
	old = e->stream;
	e->stream = host_stream_ref(s);
	e->pos = pos;
	e->count = count;
	pthread_mutex_unlock(&e->lock);
	host_stream_unref(old);
}

static int run_record(struct host_stream *s, struct host_cmd *cmd, uint64_t pos, int failed)
{
	(void)failed;
	host_event_reach(cmd->op.obj, cmd->op.pos);
	host_event_unref(cmd->op.obj);
	host_stream_publish(s, pos);
	return 0;
}

int host_event_mark(struct host_event *e, struct host_stream *s)
{
	struct host_op op = { .kind = HOST_RECORD, .run = run_record, .obj = e };
	uint64_t pos;
	int r;

	op.pos = host_event_count(e);
	host_event_ref(e);
	/* without e->lock: host_push() may wait for a record that takes it */
	r = host_push(s, &op, NULL, 0, &pos);
	if (r) {
		host_event_uncount(e);
		host_event_unref(e);
		return r;
	}
	host_event_place(e, s, pos, 0);
	return 0;
}

int host_event_captured(struct host_event *e)
{
	int r;

	pthread_mutex_lock(&e->lock);
	r = e->capture != NULL;
	pthread_mutex_unlock(&e->lock);
	return r;
}

/* the event marks a node of a graph, not a point in time */
static int refuse_captured(void)
{
	return te__fail(-EBUSY, "host: the event was recorded during a capture");
}

/*
 * The stream, referenced, and position of the last record; NULL if never recorded. *ret_inside is
 * the event, referenced, if the record is a node of the graph launched at that position, else NULL.
 */
static struct host_stream *event_place(struct host_event *e, uint64_t *ret_pos,
				       struct host_event **ret_inside, uint64_t *ret_count)
{
	struct host_stream *s;

	pthread_mutex_lock(&e->lock);
	s = e->stream ? host_stream_ref(e->stream) : NULL;
	*ret_pos = e->pos;
	*ret_inside = s && e->count ? host_event_ref(e) : NULL;
	*ret_count = e->count;
	pthread_mutex_unlock(&e->lock);
	return s;
}

static int run_wait(struct host_stream *s, struct host_cmd *cmd, uint64_t pos, int failed)
{
	const struct host_op *op = &cmd->op;
	const int r = failed ? 0 : host_stream_await(op->obj, op->pos, op->event, op->count);

	(void)s;
	(void)pos;
	host_stream_unref(op->obj);
	host_event_unref(op->event);
	return r;
}

int host_event_await(struct host_event *e, struct host_stream *s)
{
	struct host_op op = { .kind = HOST_CONTROL, .run = run_wait };
	int r;

	op.obj = event_place(e, &op.pos, &op.event, &op.count);
	if (!op.obj)
		return host_sticky(s);
	r = op.obj == s ? host_sticky(s) : host_push(s, &op, NULL, 0, NULL);
	if (r || op.obj == s) {
		host_stream_unref(op.obj);
		host_event_unref(op.event);
	}
	return r;
}

int host_event_sync(void *event)
{
	struct host_event *inside;
	struct host_stream *s;
	uint64_t pos, count;
	int r;

	if (host_fault("event_sync"))
		return -ENOMEM;
	if (host_event_captured(event))
		return refuse_captured();
	s = event_place(event, &pos, &inside, &count);
	if (!s)
		return 0;
	r = host_stream_finish(s, pos, inside, count);
	host_stream_unref(s);
	host_event_unref(inside);
	return r;
}

int host_event_query(void *event)
{
	struct host_event *inside;
	struct host_stream *s;
	uint64_t pos, count;
	int r;

	if (host_fault("event_query"))
		return -ENOMEM;
	if (host_event_captured(event))
		return refuse_captured();
	s = event_place(event, &pos, &inside, &count);
	if (!s)
		return 1;
	r = host_stream_finished(s, pos, inside, count);
	host_stream_unref(s);
	host_event_unref(inside);
	return r;
}

/* when the last record was reached, or 0 */
static uint64_t event_time(struct host_event *e)
{
	uint64_t t;

	pthread_mutex_lock(&e->lock);
	t = e->nrecords && atomic_load(&e->reached) == e->nrecords ? e->time_ns : 0;
	pthread_mutex_unlock(&e->lock);
	return t;
}

int host_event_elapsed_ms(void *from, void *to, double *ret_ms)
{
	uint64_t a, b;

	if (host_fault("event_elapsed_ms"))
		return -ENOMEM;
	if (host_event_captured(from) || host_event_captured(to))
		return refuse_captured();
	a = event_time(from);
	b = event_time(to);
	if (!a || !b)
		return te__fail(-EBUSY, "host: the %s event is not reached yet",
				a ? "second" : "first");
	*ret_ms = ((double)b - (double)a) * 1e-6;
	return 0;
}
