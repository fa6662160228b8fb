/* spill.c - the file tier: its life, and the calls that make requests and wait for them. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "libtecore/base/base.h"
#include "libtecore/offload/spill_impl.h"

#define BLOCK_NBYTES ((size_t)4 << 20)
#define BLOCK_MAX ((size_t)256 << 20)
#define DEPTH 8u
#define TIMEOUT_MOST_MS 3600000

/* life */

static int start_one(struct te__spill *s, pthread_t *thread, int *ret_has, void *(*fn)(void *))
{
	const int r = te__fault_point() ? EAGAIN : te__thread_create(thread, "te-spill", fn, s);

	*ret_has = !r;
	return r ? te__fail(-r, "spill: cannot start an I/O thread: %s", strerror(r)) : 0;
}

static int start_thread(struct te__spill *s)
{
	int r = start_one(s, &s->thread, &s->has_thread, te__spill_run);

	if (r)
		return r;
	pthread_mutex_lock(&s->lock);
	while (!s->ready)
		pthread_cond_wait(&s->changed, &s->lock);
	r = s->ready_code;
	pthread_mutex_unlock(&s->lock);
	return r ? te__fail(r, "%s", s->ready_message) :
		   start_one(s, &s->watch, &s->has_watch, te__spill_watch);
}

static int set_up(struct te__spill *s, const struct te__spill_opts *o)
{
	s->dir = te__strdup(o->dir ? o->dir : "memory");
	s->group = te__calloc(s->ngroups, sizeof(*s->group));
	s->flight = te__calloc(2 * (size_t)s->depth, sizeof(*s->flight));
	if (!s->dir || !s->group || !s->flight)
		return te__fail(-ENOMEM, "spill: no memory for %u groups", s->ngroups);
	for (uint32_t i = 0; i < s->ngroups; i++)
		for (int dir = 0; dir < 2; dir++) {
			s->group[i].req[dir].group = i;
			s->group[i].req[dir].dir = (enum te__spill_dir)dir;
		}
	return start_thread(s);
}

static int check_opts(const struct te__spill_opts *o)
{
	if (!o->ngroups || o->quota_nbytes < TE__SPILL_ALIGN)
		return te__fail(-EINVAL,
				"spill: %u groups in %" PRIu64 " bytes: there must be one "
				"and %u",
				o->ngroups, o->quota_nbytes, TE__SPILL_ALIGN);
	if (o->block_nbytes % TE__SPILL_ALIGN || o->block_nbytes > BLOCK_MAX)
		return te__fail(-EINVAL,
				"spill: blocks of %zu bytes: a multiple of %u up to %zu "
				"is needed",
				o->block_nbytes, TE__SPILL_ALIGN, BLOCK_MAX);
	if (o->depth > TE__SPILL_DEPTH_MAX)
		return te__fail(-EINVAL, "spill: a depth of %u: at most %u", o->depth,
				TE__SPILL_DEPTH_MAX);
	if (!o->dir && o->engine != TE__SPILL_MEMORY)
		return te__fail(-EINVAL, "spill: no folder for the file");
	return 0;
}

int te__spill_create(struct te__pinned *arena, const struct te__spill_opts *o,
		     struct te__spill **ret_spill)
{
	pthread_condattr_t attr;
	const int64_t timeout_ms = te__param_int(TE_PARAM_OFFLOAD_TIMEOUT_MS);
	struct te__spill *s;
	int r = check_opts(o);

	if (!r && (timeout_ms < 1 || timeout_ms > TIMEOUT_MOST_MS))
		r = te__fail(-EINVAL, "spill: TE_OFFLOAD_TIMEOUT_MS is %lld: expected 1 to %d",
			     (long long)timeout_ms, TIMEOUT_MOST_MS);
	if (r)
		return r;
	s = te__calloc(1, sizeof(*s));
	if (!s)
		return te__no_memory("spill");
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->changed, &attr);
	pthread_cond_init(&s->ended, &attr);
	pthread_condattr_destroy(&attr);
	s->arena = arena;
	s->quota = o->quota_nbytes / TE__SPILL_ALIGN * TE__SPILL_ALIGN;
	s->block_nbytes = o->block_nbytes ? o->block_nbytes : BLOCK_NBYTES;
	s->depth = o->depth ? o->depth : DEPTH;
	s->ngroups = o->ngroups;
	s->timeout_ms = o->timeout_ms ? o->timeout_ms : (uint32_t)timeout_ms;
	s->engine = o->engine;
	if (s->engine == TE__SPILL_AUTO)
		s->engine = (enum te__spill_engine)te__param_enum(TE_PARAM_OFFLOAD_IO);
	s->verify = o->verify;
	s->given = o->ops;
	s->pid = getpid();
	s->file = (struct te__spill_file){ .fd = -1, .nbytes = s->quota };
	r = set_up(s, o);
	if (r) {
		te__spill_destroy(s);
		return r;
	}
	*ret_spill = s;
	return 0;
}

/* with the lock held: the I/O thread does not return from a system call, and may never */
static void abandon(struct te__spill *s)
{
	te__log_error("spill: %s: the I/O thread does not end", s->dir);
	s->dead = s->dead ? s->dead : -ETIMEDOUT;
	te__spill_serve_dead(s);
	s->armed = 0;
	s->orphan = 1;
	te__pinned_keep(s->arena); /* its I/O may still end */
	pthread_detach(s->thread);
}

/* 1: the threads have ended */
static int stop_threads(struct te__spill *s)
{
	/* time limits of its last I/O and of close(), and a margin */
	const struct timespec t = te__spill_in_ns(3 * (int64_t)s->timeout_ms * 1000000);
	int late = 0, gone;

	pthread_mutex_lock(&s->lock);
	s->quit = 1;
	pthread_cond_broadcast(&s->changed);
	pthread_cond_broadcast(&s->ended);
	if (s->sleeping)
		s->ops->wake(s->impl);
	pthread_mutex_unlock(&s->lock);
	if (s->has_watch)
		pthread_join(s->watch, NULL);
	pthread_mutex_lock(&s->lock);
	while (!s->gone && !late)
		late = pthread_cond_timedwait(&s->ended, &s->lock, &t);
	gone = s->gone;
	if (!gone)
		abandon(s);
	pthread_mutex_unlock(&s->lock);
	if (gone)
		pthread_join(s->thread, NULL);
	return gone;
}

struct te__spill *te__spill_destroy(struct te__spill *s)
{
	if (!s)
		return NULL;
	if (te__spill_forked(s))
		te__spill_file_close(&s->file);
	else if (s->has_thread && !stop_threads(s))
		return NULL;
	te__spill_free(s);
	return NULL;
}

/* calls */

static int enter(struct te__spill *s, const char *fn, uint32_t group)
{
	if (te__spill_forked(s))
		return te__fail(-TE_ESTATE,
				"%s: the spill was created before this process was "
				"forked: create one in the child",
				fn);
	if (group >= s->ngroups)
		return te__fail(-EINVAL, "%s: there is no group %u, only 0 to %u", fn, group,
				s->ngroups - 1);
	pthread_mutex_lock(&s->lock);
	return 0;
}

/* after a change that the I/O thread should see; with the lock held, which is released */
static void leave(struct te__spill *s, int wake)
{
	if (wake && s->dead)
		pthread_cond_broadcast(&s->changed);
	else if (wake && s->sleeping)
		s->ops->wake(s->impl);
	pthread_mutex_unlock(&s->lock);
}

static int reserve(struct te__spill *s, struct te__spill_group *g, uint32_t i, size_t nbytes)
{
	const size_t n = te__spill_rounded(nbytes);
	const size_t nblocks = (n + s->block_nbytes - 1) / s->block_nbytes;

	if (!nbytes || n < nbytes || nblocks > UINT32_MAX)
		return te__fail(-EINVAL, "te__spill_reserve: group %u: %zu bytes", i, nbytes);
	if (g->block)
		return te__fail(-TE_ESTATE, "te__spill_reserve: group %u has %zu bytes already", i,
				g->nbytes);
	if (n > s->file.nbytes - s->used)
		return te__fail(-ENOSPC,
				"te__spill_reserve: group %u: %zu bytes, but %" PRIu64
				" of the file's %" PRIu64 " are left",
				i, nbytes, s->file.nbytes - s->used, s->file.nbytes);
	g->block = te__calloc(nblocks, sizeof(*g->block));
	if (!g->block)
		return te__fail(-ENOMEM, "te__spill_reserve: no memory for %zu blocks", nblocks);
	for (size_t k = 0; k < nblocks; k++)
		g->block[k].offset = s->used + k * s->block_nbytes;
	g->nblocks = (uint32_t)nblocks;
	g->nbytes = nbytes;
	s->used += n;
	return 0;
}

int te__spill_reserve(struct te__spill *s, uint32_t group, size_t nbytes)
{
	int r = enter(s, "te__spill_reserve", group);

	if (r)
		return r;
	r = reserve(s, &s->group[group], group, nbytes);
	leave(s, 0);
	return r;
}

int te__spill_write(struct te__spill *s, uint32_t group, const void *slot, size_t nbytes,
		    _Atomic uint32_t *done, uint32_t value)
{
	int r = enter(s, "te__spill_write", group);

	if (r)
		return r;
	r = te__spill_request(s, "te__spill_write", &s->group[group], TE__SPILL_WRITE,
			      (void *)(uintptr_t)slot, nbytes, done, value);
	leave(s, !r);
	return r;
}

int te__spill_read(struct te__spill *s, uint32_t group, void *slot, size_t nbytes,
		   _Atomic uint32_t *done, uint32_t value)
{
	int r = enter(s, "te__spill_read", group);

	if (r)
		return r;
	r = te__spill_request(s, "te__spill_read", &s->group[group], TE__SPILL_READ, slot, nbytes,
			      done, value);
	leave(s, !r);
	return r;
}

int te__spill_wait(struct te__spill *s, enum te__spill_dir dir, uint32_t group, int timeout_ms)
{
	struct timespec t;
	struct te__spill_request *q;
	int late = 0, r = enter(s, "te__spill_wait", group);

	if (r)
		return r;
	q = &s->group[group].req[dir];
	t = te__spill_in_ns((int64_t)timeout_ms * 1000000);
	while (q->active && !late) {
		if (timeout_ms < 0)
			late = pthread_cond_wait(&s->changed, &s->lock);
		else
			late = pthread_cond_timedwait(&s->changed, &s->lock, &t);
	}
	if (q->active)
		r = te__fail(-ETIMEDOUT,
			     "te__spill_wait: %s of group %u, %zu bytes: not complete "
			     "after %d ms",
			     te__spill_verb[dir], group, q->nbytes, timeout_ms);
	else if (q->code)
		r = te__spill_failed(s, q, q->code, q->bad);
	leave(s, 0);
	return r;
}

void te__spill_refuse(struct te__spill *s, enum te__spill_dir dir, uint32_t group, int code)
{
	if (enter(s, "te__spill_refuse", group))
		return;
	te__spill_refused(s, &s->group[group].req[dir], code);
	leave(s, 0);
}

static int bind(struct te__spill *s, struct te__spill_group *g, struct te__spill_request *q,
		void *slot, size_t nbytes)
{
	const uint8_t *base = te__pinned_base(s->arena), *p = slot;

	if (!g->block || !nbytes || nbytes > g->nbytes || p < base ||
	    (size_t)(p - base) % TE__SPILL_ALIGN ||
	    (size_t)(p - base) + te__spill_rounded(nbytes) > te__pinned_nbytes(s->arena))
		return te__fail(-EINVAL,
				"te__spill_bind: group %u: slot %p of %zu bytes: %zu are "
				"reserved; the slot is in the arena, aligned to %u bytes",
				q->group, slot, nbytes, g->nbytes, TE__SPILL_ALIGN);
	q->bound_slot = slot;
	q->bound_nbytes = nbytes;
	return 0;
}

int te__spill_bind(struct te__spill *s, enum te__spill_dir dir, uint32_t group, void *slot,
		   size_t nbytes, _Atomic uint32_t *start, _Atomic uint32_t *done)
{
	struct te__spill_request **at, *q;
	int r = enter(s, "te__spill_bind", group);

	if (r)
		return r;
	q = &s->group[group].req[dir];
	if (slot)
		r = bind(s, &s->group[group], q, slot, nbytes);
	if (!r) {
		for (at = &s->bound; *at && *at != q; at = &(*at)->next_bound)
			;
		if (*at)
			*at = q->next_bound;
		if (slot) {
			q->start = start;
			q->bound_done = done;
			q->next_bound = s->bound;
			s->bound = q;
		}
	}
	leave(s, !r);
	return r;
}

void te__spill_arm(struct te__spill *s, int on)
{
	if (enter(s, "te__spill_arm", 0))
		return;
	s->armed = on;
	leave(s, 1);
}

void te__spill_kick(struct te__spill *s)
{
	if (!enter(s, "te__spill_kick", 0))
		leave(s, 1);
}

int te__spill_error(struct te__spill *s, struct te__spill_error *ret)
{
	int r = enter(s, "te__spill_error", 0);

	if (r)
		return r;
	r = s->error.code;
	if (ret)
		*ret = s->error;
	if (r)
		te__fail(r, "%s", s->error.message);
	leave(s, 0);
	return r;
}

void te__spill_clear(struct te__spill *s)
{
	if (enter(s, "te__spill_clear", 0))
		return;
	memset(&s->error, 0, sizeof(s->error));
	for (uint32_t i = 0; i < s->ngroups; i++)
		s->group[i].lost = 0;
	leave(s, 0);
}

void te__spill_stats(struct te__spill *s, struct te__spill_stats *ret)
{
	const uint64_t now = te__now_ns();

	if (enter(s, "te__spill_stats", 0)) {
		memset(ret, 0, sizeof(*ret));
		return;
	}
	*ret = s->stats;
	for (int dir = 0; dir < 2; dir++)
		if (s->first[dir] && now > s->busy_since_ns[dir])
			ret->busy_ns[dir] += now - s->busy_since_ns[dir];
	ret->file_nbytes = s->file.nbytes;
	ret->used_nbytes = s->used;
	ret->engine = s->ops->name;
	ret->reason = s->reason;
	ret->direct = s->file.direct;
	ret->align = s->file.align;
	leave(s, 0);
}

void te__spill_forget_max(struct te__spill *s)
{
	if (enter(s, "te__spill_forget_max", 0))
		return;
	s->stats.latency_max_ns[0] = s->stats.latency_max_ns[1] = 0;
	leave(s, 0);
}
