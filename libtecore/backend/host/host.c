/*
 * host.c - the host backend: streams as queues with a worker thread, and events.
 *
 * A stream is a ring of commands that its worker runs in order. A position in a stream is the
 * number of commands up to it. An event is a (stream, position) pair: it is reached once the stream
 * has finished that many commands or, if its record is a node of a graph, once that node has run.
 * Waits cannot form a cycle, because a command waits only for commands that were queued before it.
 * A stream that is destroyed first runs everything in its queue.
 *
 * A thread that waits for a stream executes short commands itself if the worker has not begun, as
 * two thread switches take longer than an all-reduce of some KiB. If a program has waited for such
 * commands alone PROMPT consecutive times, the worker leaves them to it, and checks each LOOK_NS
 * for a command that was queued at the previous check. No thread waits for that command, so the
 * worker executes it, and all commands until the program has waited another MISSES times.
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "libtecore/backend/host/host.h"

/* a wait for a word yields so often, then sleeps longer and longer, up to this */
#define WORD_SPINS 64
#define WORD_NAP_NS 100000
#define SLOW_WAIT_S 60 /* a longer wait for a stream is logged */
/* see above; SHORT_NBYTES are copied or filled in some 100 us */
#define SHORT_NBYTES ((size_t)1 << 20)
#define PROMPT 4
#define MISSES 256
#define LOOK_NS 200000

_Thread_local struct host_running host_running;

int host_fault(const char *what)
{
	if (!te__fault_point())
		return 0;
	te__fail(-ENOMEM, "host: %s: injected fault", what);
	return 1;
}

void te__k_fail(int code)
{
	if (host_running.dev && !host_running.error)
		host_running.error = code;
}

/* commands */

int host_cmd_set(struct host_cmd *cmd, const struct host_op *op, const void *args, size_t nbytes)
{
	cmd->op = *op;
	cmd->big = NULL;
	cmd->declared = NULL;
	if (nbytes > sizeof(cmd->args)) {
		cmd->big = te__malloc(nbytes);
		if (!cmd->big)
			return te__fail(-ENOMEM, "host: no memory for %zu bytes of arguments",
					nbytes);
		memcpy(cmd->big, args, nbytes);
	} else if (nbytes) {
		memcpy(cmd->args, args, nbytes);
	}
	return 0;
}

static void fill32(uint32_t *dst, uint32_t value, size_t nwords)
{
	for (size_t i = 0; i < nwords; i++)
		dst[i] = value;
}

/* the thread that sets the word must end the wait */
static void take_word(_Atomic uint32_t *word)
{
	struct timespec t = { .tv_nsec = 1000 };

	for (int i = 0; !atomic_load_explicit(word, memory_order_acquire); i++) {
		if (i < WORD_SPINS) {
			sched_yield();
			continue;
		}
		nanosleep(&t, NULL);
		t.tv_nsec = t.tv_nsec < WORD_NAP_NS ? 2 * t.tv_nsec : t.tv_nsec;
	}
	atomic_store_explicit(word, 0, memory_order_relaxed);
}

void host_run(const struct host_cmd *cmd)
{
	const struct host_op *op = &cmd->op;
	const void *args = cmd->big ? cmd->big : cmd->args;

	switch (op->kind) {
	case HOST_COPY:
		memmove(op->dst, op->src, op->nbytes);
		break;
	case HOST_FILL8:
		memset(op->dst, (int)op->value, op->nbytes);
		break;
	case HOST_FILL32:
		fill32(op->dst, op->value, op->nbytes / 4);
		break;
	case HOST_CALL:
		op->fn(op->nbytes ? (void *)(uintptr_t)args : op->dst);
		break;
	case HOST_WORD_SET:
		atomic_store_explicit((_Atomic uint32_t *)op->dst, op->value, memory_order_release);
		break;
	case HOST_WORD_TAKE:
		take_word(op->dst);
		break;
	case HOST_KERNEL:
		te__k_reference((enum te_k_id)op->value)(args);
		break;
	default:
		break;
	}
}

/* streams */

static struct host_stream *stream_ref(struct host_stream *s)
{
	atomic_fetch_add(&s->refs, 1);
	return s;
}

static void stream_unref(struct host_stream *s)
{
	if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
		return;
	pthread_cond_destroy(&s->progress);
	pthread_cond_destroy(&s->work);
	pthread_mutex_destroy(&s->lock);
	te__free(s);
}

static int sticky_locked(struct host_stream *s)
{
	return s->error ? te__fail(s->error, "%s", s->detail) : 0;
}

int host_sticky(struct host_stream *s)
{
	int r;

	pthread_mutex_lock(&s->lock);
	r = sticky_locked(s);
	pthread_mutex_unlock(&s->lock);
	return r;
}

int host_not_capturing(const struct host_stream *s, const char *what)
{
	return s->member ? te__fail(-EBUSY, "host: %s: stream %u is capturing", what, s->number) :
			   0;
}

/* the stream has finished pos commands */
static void publish(struct host_stream *s, uint64_t pos)
{
	pthread_mutex_lock(&s->lock);
	s->done = pos;
	if (s->nwaiting)
		pthread_cond_broadcast(&s->progress);
	pthread_mutex_unlock(&s->lock);
}

/* 1: the record inside a graph has run, which s->progress signals */
static int reached(const struct host_event *e, uint64_t count)
{
	return e && atomic_load(&e->reached) >= count;
}

/* until pos is finished or, given an event, its record has run; with s->lock held */
static void await(struct host_stream *s, uint64_t pos, const struct host_event *e, uint64_t count)
{
	struct timespec until;

	while (s->done < pos && !reached(e, count)) {
		if (s->idle)
			pthread_cond_signal(&s->work);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += SLOW_WAIT_S;
		s->nwaiting++;
		if (pthread_cond_timedwait(&s->progress, &s->lock, &until) == ETIMEDOUT)
			te__log_warn("stream %u: waited %d s for command %llu of %llu", s->number,
				     SLOW_WAIT_S, (unsigned long long)pos,
				     (unsigned long long)s->queued);
		s->nwaiting--;
	}
}

/* 1: the stream failed before that position or record; with s->lock held */
static int failed_before(const struct host_stream *s, uint64_t pos, const struct host_event *e,
			 uint64_t count)
{
	return s->error && s->error_pos <= pos && !reached(e, count);
}

static int wait_for(struct host_stream *s, uint64_t pos, const struct host_event *e,
		    uint64_t count)
{
	int r;

	pthread_mutex_lock(&s->lock);
	await(s, pos, e, count);
	r = failed_before(s, pos, e, count) ? sticky_locked(s) : 0;
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* work that takes no longer than waking a thread does, and collective operations */
static int is_short(const struct host_op *op)
{
	switch (op->kind) {
	case HOST_COPY:
	case HOST_FILL8:
	case HOST_FILL32:
		return op->nbytes <= SHORT_NBYTES;
	case HOST_KERNEL:
		return te__k_is_collective((enum te_k_id)op->value);
	default:
		return op->kind == HOST_RECORD;
	}
}

int host_push(struct host_stream *s, const struct host_op *op, const void *args, size_t nbytes,
	      uint64_t *ret_pos)
{
	int r = 0;

	pthread_mutex_lock(&s->lock);
	/* memory is freed even if the stream has failed */
	if (op->kind != HOST_FREE)
		r = sticky_locked(s);
	while (s->queued - s->done == HOST_RING)
		await(s, s->done + 1, NULL, 0);
	if (!r)
		r = host_cmd_set(&s->ring[s->queued % HOST_RING], op, args, nbytes);
	if (!r) {
		s->queued++;
		if (ret_pos)
			*ret_pos = s->queued;
		if (!is_short(op) && s->nprompt > 0)
			s->nprompt = 0;
		if (s->idle && !(s->looking && is_short(op)))
			pthread_cond_signal(&s->work);
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

struct host_event *host_event_ref(struct host_event *e)
{
	atomic_fetch_add(&e->refs, 1);
	return e;
}

void host_event_unref(struct host_event *e)
{
	if (!e || atomic_fetch_sub(&e->refs, 1) != 1)
		return;
	host_capture_forget(e);
	stream_unref(e->stream);
	pthread_mutex_destroy(&e->lock);
	te__free(e);
}

static void reach(struct host_event *e, uint64_t count)
{
	pthread_mutex_lock(&e->lock);
	/* an older record, on another stream, may be reached later */
	if (count > atomic_load(&e->reached)) {
		e->time_ns = te__now_ns();
		atomic_store(&e->reached, count);
	}
	pthread_mutex_unlock(&e->lock);
}

static void fail_stream(struct host_stream *s, int code, uint64_t pos)
{
	pthread_mutex_lock(&s->lock);
	if (!s->error) {
		s->error = code;
		s->error_pos = pos;
		snprintf(s->detail, sizeof(s->detail), "stream %u failed: %s", s->number,
			 te_error_detail());
	}
	pthread_mutex_unlock(&s->lock);
}

/* a record that is a node: its waiters continue while later nodes run */
static void reach_inside(struct host_stream *s, struct host_event *e, uint64_t count)
{
	reach(e, count);
	pthread_mutex_lock(&s->lock);
	if (s->nwaiting)
		pthread_cond_broadcast(&s->progress);
	pthread_mutex_unlock(&s->lock);
}

/* number of records before this node: a launch has their counts in this order */
static uint64_t records_before(const struct host_graph *g, uint64_t number)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < number; i++)
		n += g->node[i].op.kind == HOST_RECORD;
	return n;
}

int host_run_node(struct host_stream *s, const struct host_graph *g, uint64_t number,
		  const uint64_t *count)
{
	const struct host_cmd *node = &g->node[number];

	host_running.error = 0;
	if (node->op.kind == HOST_RECORD)
		reach_inside(s, node->op.obj, count[records_before(g, number)]);
	else
		host_run(node);
	return host_running.error;
}

static int run_graph(struct host_stream *s, const struct host_cmd *cmd)
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

/* run the command at position pos; 0, or the code that the stream fails with */
static int run_cmd(struct host_stream *s, struct host_cmd *cmd, uint64_t pos, int failed)
{
	host_running.error = 0;
	switch (cmd->op.kind) {
	case HOST_FREE:
		host_mem_release(s->dev, cmd->op.dst, cmd->op.nbytes);
		break;
	case HOST_RECORD:
		reach(cmd->op.obj, cmd->op.pos);
		host_event_unref(cmd->op.obj);
		publish(s, pos);
		break;
	case HOST_WAIT:
		host_running.error = failed ? 0 :
					 wait_for(cmd->op.obj, cmd->op.pos, cmd->op.event,
						  cmd->op.count);
		stream_unref(cmd->op.obj);
		host_event_unref(cmd->op.event);
		break;
	case HOST_GRAPH:
		if (!failed)
			host_running.error = run_graph(s, cmd);
		host_graph_destroy(cmd->op.obj);
		te__free(cmd->op.replay);
		te__free(cmd->big);
		break;
	default:
		if (!failed)
			host_run(cmd);
		te__free(cmd->big);
		break;
	}
	return host_running.error;
}

/* execute commands up to end, with s->lock held, which is released meanwhile */
static void execute(struct host_stream *s, uint64_t end)
{
	const struct host_running before = host_running;
	uint64_t pos = s->done;
	int failed = s->error, r;

	s->busy = 1;
	pthread_mutex_unlock(&s->lock);
	host_running = (struct host_running){ .dev = s->dev, .scratch = &s->scratch };
	while (pos < end) {
		r = run_cmd(s, &s->ring[pos % HOST_RING], pos + 1, failed);
		pos++;
		if (r && !failed) {
			fail_stream(s, r, pos);
			failed = 1;
		}
	}
	host_running = before;
	pthread_mutex_lock(&s->lock);
	s->busy = 0;
	s->done = pos;
	if (s->nwaiting)
		pthread_cond_broadcast(&s->progress);
	/* the worker went back to rest if it was woken meanwhile */
	if (s->idle && !s->looking && s->queued > pos)
		pthread_cond_signal(&s->work);
}

/* execute what precedes pos on this thread, if the worker has not begun; with s->lock held */
static void take_over(struct host_stream *s, uint64_t pos)
{
	uint64_t end = s->done;

	s->nprompt += s->nprompt < PROMPT;
	while (!s->busy && end < pos && end < s->done + HOST_BATCH &&
	       is_short(&s->ring[end % HOST_RING].op))
		end++;
	if (end > s->done)
		execute(s, end);
}

/*
 * Whether the worker leaves the next command to a thread that will wait for it; looked: LOOK_NS
 * have passed since the last time.
 */
static int is_left(struct host_stream *s, int looked)
{
	if (s->nprompt < PROMPT || s->nwaiting || s->quit ||
	    !is_short(&s->ring[s->done % HOST_RING].op))
		return 0;
	if (looked && s->left == s->done + 1) {
		s->nprompt = -MISSES;
		return 0;
	}
	s->left = s->done + 1;
	return 1;
}

/* until there may be work; 1: LOOK_NS have passed */
static int rest(struct host_stream *s)
{
	struct timespec until;
	int r;

	/* a stream without work since the last look needs none */
	s->looking = s->nprompt >= PROMPT && (s->queued > s->done || s->queued != s->rested);
	s->rested = s->queued;
	s->idle = 1;
	if (s->looking) {
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += LOOK_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		r = pthread_cond_timedwait(&s->work, &s->lock, &until) == ETIMEDOUT;
	} else {
		r = pthread_cond_wait(&s->work, &s->lock);
	}
	s->idle = 0;
	return r;
}

static void *work(void *arg)
{
	struct host_stream *s = arg;
	uint64_t end;
	int looked = 0;

	pthread_mutex_lock(&s->lock);
	while (!s->quit || s->busy || s->queued > s->done)
		if (!s->busy && s->queued > s->done && !is_left(s, looked)) {
			end = s->queued < s->done + HOST_BATCH ? s->queued : s->done + HOST_BATCH;
			execute(s, end);
			looked = 0;
		} else {
			looked = rest(s);
		}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int stream_create(void *dev, void **ret_stream)
{
	struct host_stream *s;
	pthread_condattr_t attr;
	int r;

	if (host_fault("stream_create"))
		return -ENOMEM;
	s = te__calloc(1, sizeof(*s));
	if (!s)
		return te__fail(-ENOMEM, "host: no memory for a stream");
	s->ring = te__malloc(HOST_RING * sizeof(*s->ring));
	s->scratch.mem = host_scratch_new(1);
	if (!s->ring || !s->scratch.mem) {
		te__free(s->scratch.mem);
		te__free(s->ring);
		te__free(s);
		return te__fail(-ENOMEM, "host: no memory for a stream's queue");
	}
	s->refs = 1;
	s->dev = dev;
	s->number = atomic_fetch_add(&s->dev->nstreams, 1);
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->work, &attr);
	pthread_cond_init(&s->progress, &attr);
	pthread_condattr_destroy(&attr);

	r = te__fault_point() ? EAGAIN : te__thread_create(&s->worker, "te-stream", work, s);
	if (r) {
		te__free(s->ring);
		te__free(s->scratch.mem);
		stream_unref(s);
		return te__fail(-EAGAIN, "host: no thread for a stream: %s", te_strerror(-r));
	}
	*ret_stream = s;
	return 0;
}

static int stream_wrap(void *dev, void *native, void **ret_stream)
{
	if (native)
		return te__fail(-EOPNOTSUPP, "te_stream_wrap: native %p: the host backend has no "
				"CUstream, only NULL makes a stream", native);
	return stream_create(dev, ret_stream);
}

static void stream_destroy(void *stream)
{
	struct host_stream *s = stream;

	if (!s)
		return;
	host_capture_leave(s);
	pthread_mutex_lock(&s->lock);
	s->quit = 1;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->worker, NULL);
	te__free(s->ring);
	te__free(s->scratch.mem);
	s->ring = NULL;
	stream_unref(s);
}

static int stream_sync(void *stream)
{
	struct host_stream *s = stream;
	int r = host_not_capturing(s, "wait for a stream");
	uint64_t pos;

	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	pos = s->queued;
	take_over(s, pos);
	await(s, pos, NULL, 0);
	r = sticky_locked(s);
	pthread_mutex_unlock(&s->lock);
	/* after the wait, because the caller then frees memory that queued copies read */
	return host_fault("stream_sync") ? -ENOMEM : r;
}

static int stream_query(void *stream)
{
	struct host_stream *s = stream;
	int r;

	if (host_fault("stream_query"))
		return -ENOMEM;
	r = host_not_capturing(s, "ask a stream whether it is idle");
	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	r = sticky_locked(s);
	if (!r)
		r = s->done == s->queued;
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* events */

static int event_create(void *dev, void **ret_event)
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

static void event_destroy(void *event)
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
	host_capture_forget(e);
	old = e->stream;
	e->stream = stream_ref(s);
	e->pos = pos;
	e->count = count;
	pthread_mutex_unlock(&e->lock);
	stream_unref(old);
}

static int event_record(void *event, void *stream)
{
	struct host_event *e = event;
	struct host_stream *s = stream;
	struct host_op op = { .kind = HOST_RECORD, .obj = e };
	uint64_t pos;
	int r;

	if (host_fault("event_record"))
		return -ENOMEM;
	if (s->member)
		return host_capture_record(e, s);
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

static int event_captured(struct host_event *e)
{
	int r;

	pthread_mutex_lock(&e->lock);
	r = e->capture != NULL;
	pthread_mutex_unlock(&e->lock);
	return r;
}

/* it marks a node of a graph, not a point in time */
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
	s = e->stream ? stream_ref(e->stream) : NULL;
	*ret_pos = e->pos;
	*ret_inside = s && e->count ? host_event_ref(e) : NULL;
	*ret_count = e->count;
	pthread_mutex_unlock(&e->lock);
	return s;
}

static int event_wait(void *event, void *stream)
{
	struct host_event *e = event;
	struct host_stream *s = stream;
	struct host_op op = { .kind = HOST_WAIT };
	int r;

	if (host_fault("event_wait"))
		return -ENOMEM;
	if (s->member || event_captured(e))
		return host_capture_wait(e, s);
	op.obj = event_place(e, &op.pos, &op.event, &op.count);
	if (!op.obj)
		return host_sticky(s);
	r = op.obj == s ? host_sticky(s) : host_push(s, &op, NULL, 0, NULL);
	if (r || op.obj == s) {
		stream_unref(op.obj);
		host_event_unref(op.event);
	}
	return r;
}

static int event_sync(void *event)
{
	struct host_event *inside;
	struct host_stream *s;
	uint64_t pos, count;
	int r;

	if (host_fault("event_sync"))
		return -ENOMEM;
	if (event_captured(event))
		return refuse_captured();
	s = event_place(event, &pos, &inside, &count);
	if (!s)
		return 0;
	if (!inside) {
		pthread_mutex_lock(&s->lock);
		take_over(s, pos);
		pthread_mutex_unlock(&s->lock);
	}
	r = wait_for(s, pos, inside, count);
	stream_unref(s);
	host_event_unref(inside);
	return r;
}

static int event_query(void *event)
{
	struct host_event *inside;
	struct host_stream *s;
	uint64_t pos, count;
	int r;

	if (host_fault("event_query"))
		return -ENOMEM;
	if (event_captured(event))
		return refuse_captured();
	s = event_place(event, &pos, &inside, &count);
	if (!s)
		return 1;
	pthread_mutex_lock(&s->lock);
	r = s->done >= pos || reached(inside, count);
	if (r && failed_before(s, pos, inside, count))
		r = sticky_locked(s);
	pthread_mutex_unlock(&s->lock);
	stream_unref(s);
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

static int event_elapsed_ms(void *from, void *to, double *ret_ms)
{
	uint64_t a, b;

	if (host_fault("event_elapsed_ms"))
		return -ENOMEM;
	if (event_captured(from) || event_captured(to))
		return refuse_captured();
	a = event_time(from);
	b = event_time(to);
	if (!a || !b)
		return te__fail(-EBUSY, "host: the %s event is not reached yet",
				a ? "second" : "first");
	*ret_ms = ((double)b - (double)a) * 1e-6;
	return 0;
}

/* work */

int host_work(struct host_stream *s, const struct host_op *op, const void *args, size_t nbytes)
{
	return s->member ? host_capture_add(s, op, args, nbytes) :
			   host_push(s, op, args, nbytes, NULL);
}

static int copy(void *stream, void *dst, const void *src, size_t nbytes)
{
	if (host_fault("copy"))
		return -ENOMEM;
	if (!nbytes)
		return 0;
	return host_work(stream,
			 &(struct host_op){
				 .kind = HOST_COPY, .dst = dst, .src = src, .nbytes = nbytes },
			 NULL, 0);
}

static int fill8(void *stream, void *dst, uint8_t value, size_t nbytes)
{
	if (host_fault("fill8"))
		return -ENOMEM;
	if (!nbytes)
		return 0;
	return host_work(stream,
			 &(struct host_op){
				 .kind = HOST_FILL8, .value = value, .dst = dst, .nbytes = nbytes },
			 NULL, 0);
}

static int fill32_queue(void *stream, void *dst, uint32_t value, size_t nwords)
{
	if (host_fault("fill32"))
		return -ENOMEM;
	if (!nwords)
		return 0;
	return host_work(stream,
			 &(struct host_op){ .kind = HOST_FILL32,
					    .value = value,
					    .dst = dst,
					    .nbytes = 4 * nwords },
			 NULL, 0);
}

static int host_call(void *stream, te_host_fn fn, const void *arg, size_t nbytes)
{
	if (host_fault("host_call"))
		return -ENOMEM;
	return host_work(stream,
			 &(struct host_op){ .kind = HOST_CALL,
					    .fn = fn,
					    .dst = (void *)(uintptr_t)arg,
					    .nbytes = nbytes },
			 arg, nbytes);
}

static int word_set(void *stream, void *word, uint32_t value)
{
	if (host_fault("word_set"))
		return -ENOMEM;
	return host_work(
		stream, &(struct host_op){ .kind = HOST_WORD_SET, .dst = word, .value = value },
		NULL, 0);
}

static int word_take(void *stream, void *word)
{
	if (host_fault("word_take"))
		return -ENOMEM;
	return host_work(stream, &(struct host_op){ .kind = HOST_WORD_TAKE, .dst = word }, NULL,
			 0);
}

static int launch(void *stream, const struct te__launch *l)
{
	if (host_fault("launch"))
		return -ENOMEM;
	if (!te__k_reference(l->id))
		return te__fail(-TE_EKERNEL, "host: this build holds no kernel %s",
				te__k_name(l->id));
	return host_work(stream,
			 &(struct host_op){
				 .kind = HOST_KERNEL, .value = l->id, .nbytes = l->nbytes },
			 l->args, l->nbytes);
}

const struct te__backend_ops te__backend_host = {
	.name = "host",
	.probe = host_probe,
	.device_info = host_device_info,
	.free_nbytes = host_free_nbytes,
	.open = host_open,
	.close = host_close,
	.dev_mem = host_dev_mem,
	.mem_held = host_mem_held,
	.mem_alloc = host_mem_alloc,
	.mem_free = host_mem_free,
	.pinned_alloc = host_pinned_alloc,
	.pinned_free = host_pinned_free,
	.share_unit = host_share_unit,
	.share_create = host_share_create,
	.share_export = host_share_export,
	.share_import = host_share_import,
	.share_release = host_share_release,
	.share_reserve = host_share_reserve,
	.share_map = host_share_map,
	.share_unmap = host_share_unmap,
	.share_unreserve = host_share_unreserve,
	.multicast_unit = host_multicast_unit,
	.multicast_create = host_multicast_create,
	.multicast_import = host_multicast_import,
	.multicast_bind = host_multicast_bind,
	.page_register = host_page_register,
	.adapter_export = host_adapter_export,
	.adapter_flush = host_adapter_flush,
	.fabric_probe = host_fabric_probe,
	.fabric_create = host_share_create,
	.fabric_export = host_fabric_export,
	.fabric_import = host_fabric_import,
	.stream_create = stream_create,
	.stream_wrap = stream_wrap,
	.stream_destroy = stream_destroy,
	.stream_sync = stream_sync,
	.stream_query = stream_query,
	.event_create = event_create,
	.event_destroy = event_destroy,
	.event_record = event_record,
	.event_record_external = host_event_record_external,
	.event_wait = event_wait,
	.event_sync = event_sync,
	.event_query = event_query,
	.event_elapsed_ms = event_elapsed_ms,
	.copy = copy,
	.fill8 = fill8,
	.fill32 = fill32_queue,
	.host_call = host_call,
	.word_set = word_set,
	.word_take = word_take,
	.launch = launch,
	.capture_begin = host_capture_begin,
	.capture_edges = host_capture_edges,
	.capture_access = host_capture_access,
	.capture_end = host_capture_end,
	.capture_active = host_capture_active,
	.graph_info = host_graph_info,
	.graph_node = host_graph_node,
	.exec_graph = host_exec_graph,
	.graph_instantiate = host_graph_instantiate,
	.graph_launch = host_graph_launch,
	.exec_update = host_exec_update,
	.exec_patch = host_exec_patch,
	.graph_destroy = host_graph_destroy,
	.exec_destroy = host_exec_destroy,
};
