/*
 * stream.c - streams as queues with a worker thread.
 *
 * A stream is a ring of commands that its worker runs in order. A position in a stream is the
 * number of commands up to it.
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
#include <time.h>

#include "libtecore/backend/host/host.h"

#define SLOW_WAIT_S 60 /* a longer wait for a stream is logged */
/* see above; SHORT_NBYTES are copied or filled in some 100 us */
#define SHORT_NBYTES ((size_t)1 << 20)
#define PROMPT 4
#define MISSES 256
#define LOOK_NS 200000

struct host_stream *host_stream_ref(struct host_stream *s)
{
	atomic_fetch_add(&s->refs, 1);
	return s;
}

void host_stream_unref(struct host_stream *s)
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
void host_stream_publish(struct host_stream *s, uint64_t pos)
{
	pthread_mutex_lock(&s->lock);
	s->done = pos;
	if (s->nwaiting)
		pthread_cond_broadcast(&s->progress);
	pthread_mutex_unlock(&s->lock);
}

/* until pos is finished or, given an event, its record has run; with s->lock held */
static void await(struct host_stream *s, uint64_t pos, const struct host_event *e, uint64_t count)
{
	struct timespec until;

	while (s->done < pos && !host_event_reached(e, count)) {
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
	return s->error && s->error_pos <= pos && !host_event_reached(e, count);
}

int host_stream_await(struct host_stream *s, uint64_t pos, const struct host_event *e,
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

/* a record that is a node has run */
void host_stream_progress(struct host_stream *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->nwaiting)
		pthread_cond_broadcast(&s->progress);
	pthread_mutex_unlock(&s->lock);
}

/* run the command at position pos; 0, or the code that the stream fails with */
static int run_cmd(struct host_stream *s, struct host_cmd *cmd, uint64_t pos, int failed)
{
	host_running.error = 0;
	if (cmd->op.run)
		return cmd->op.run(s, cmd, pos, failed);
	if (!failed)
		host_run(cmd);
	te__free(cmd->big);
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
 * Returns 1 if the worker leaves the next command to a thread that will wait for it. looked:
 * LOOK_NS have passed since the last look.
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

int host_stream_create(void *dev, void **ret_stream)
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
		host_stream_unref(s);
		return te__fail(-EAGAIN, "host: no thread for a stream: %s", te_strerror(-r));
	}
	*ret_stream = s;
	return 0;
}

int host_stream_wrap(void *dev, void *native, void **ret_stream)
{
	if (native)
		return te__fail(-EOPNOTSUPP, "te_stream_wrap: native %p: the host backend has no "
				"CUstream, only NULL makes a stream", native);
	return host_stream_create(dev, ret_stream);
}

void host_stream_close(struct host_stream *s)
{
	pthread_mutex_lock(&s->lock);
	s->quit = 1;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->worker, NULL);
	te__free(s->ring);
	te__free(s->scratch.mem);
	s->ring = NULL;
	host_stream_unref(s);
}

int host_stream_finish(struct host_stream *s, uint64_t pos, const struct host_event *e,
		       uint64_t count)
{
	if (!e) {
		pthread_mutex_lock(&s->lock);
		take_over(s, pos);
		pthread_mutex_unlock(&s->lock);
	}
	return host_stream_await(s, pos, e, count);
}

int host_stream_finished(struct host_stream *s, uint64_t pos, const struct host_event *e,
			 uint64_t count)
{
	int r;

	pthread_mutex_lock(&s->lock);
	r = s->done >= pos || host_event_reached(e, count);
	if (r && failed_before(s, pos, e, count))
		r = sticky_locked(s);
	pthread_mutex_unlock(&s->lock);
	return r;
}

int host_stream_sync(void *stream)
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

int host_stream_query(void *stream)
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
