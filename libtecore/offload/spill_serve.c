/*
 * spill_serve.c - the I/O thread: it opens the file and an engine, divides requests into blocks,
 * polls the words of bound requests, and ensures that every request ends.
 */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "libtecore/base/base.h"
#include "libtecore/offload/crc32c.h"
#include "libtecore/offload/spill_impl.h"

#define RETRIES 100u /* retries of one block, after EAGAIN and similar errors */
#define SAMPLE 16u   /* one of so many blocks is verified */
/* pauses between polls of words: doubled from the first to the second, and to the third if nothing
 * has happened for QUIET_NS */
#define PAUSE_MIN_NS 2000
#define PAUSE_NS 100000
#define PAUSE_QUIET_NS 1000000
#define QUIET_NS 100000000u

/* block i of a request, without the rounding of the last one */
static size_t block_size(const struct te__spill *s, const struct te__spill_request *q, uint32_t i)
{
	const size_t at = (size_t)i * s->block_nbytes;

	return q->nbytes - at < s->block_nbytes ? q->nbytes - at : s->block_nbytes;
}

/* blocks: the I/O thread, with the lock held */

static uint32_t free_flight(const struct te__spill *s)
{
	uint32_t i = 0;

	while (s->flight[i].req)
		i++;
	return i;
}

static void submit(struct te__spill *s, const struct te__spill_flight *f)
{
	const struct te__spill_request *q = f->req;
	const struct te__blk b = {
		.dir = q->dir,
		.tag = (uint32_t)(f - s->flight),
		.mem = q->slot + (size_t)f->block * s->block_nbytes + f->have,
		.nbytes = f->nbytes - f->have,
		.offset = te__spill_group_of(s, q)->block[f->block].offset + f->have,
	};

	s->stats.nblocks[q->dir]++;
	s->ops->submit(s->impl, &b);
}

static void start_block(struct te__spill *s, struct te__spill_request *q)
{
	struct te__spill_flight *f = &s->flight[free_flight(s)];

	*f = (struct te__spill_flight){
		.req = q,
		.block = q->started,
		.nbytes = te__spill_rounded(block_size(s, q, q->started)),
		.begin_ns = te__now_ns(),
	};
	q->started++;
	q->nflight++;
	s->nflight[q->dir]++;
	submit(s, f);
}

/* a read of a group that is being written: its bytes are still in the slot of the write */
static void forward(struct te__spill *s, struct te__spill_request *q)
{
	const struct te__spill_request *w = &te__spill_group_of(s, q)->req[TE__SPILL_WRITE];

	if (q->slot != w->slot) {
		pthread_mutex_unlock(&s->lock);
		memmove(q->slot, w->slot, q->nbytes);
		pthread_mutex_lock(&s->lock);
		s->unlocked = 1;
	}
	s->stats.nforwarded++;
	te__spill_complete(s, q);
}

/* complete, start or fail a read that began during a write which is complete now */
static int settle(struct te__spill *s, struct te__spill_request *q)
{
	struct te__spill_group *g = te__spill_group_of(s, q);

	if (g->req[TE__SPILL_WRITE].active) {
		forward(s, q);
		return 1;
	}
	q->forward = 0;
	if (!g->lost)
		return 0;
	te__spill_fail(s, q, g->lost, g->lost_block, 1);
	return 1;
}

/* 1 if anything was started */
static int start_blocks(struct te__spill *s, enum te__spill_dir dir)
{
	struct te__spill_request *q = s->first[dir], *next;
	int any = 0;

	for (; q; q = next) {
		next = q->next;
		if (q->forward && settle(s, q)) {
			any = 1;
			continue;
		}
		while (s->nflight[dir] < s->depth && q->started < q->nblocks && !q->code &&
		       !s->stopped[dir]) {
			start_block(s, q);
			any = 1;
		}
	}
	return any;
}

static int wants_crc(const struct te__spill *s, const struct te__spill_request *q, uint32_t block)
{
	const struct te__spill_group *g = &s->group[q->group];

	if (s->verify != TE__SPILL_VERIFY_SAMPLE)
		return s->verify == TE__SPILL_VERIFY_ALL;
	/* another block of the group in every step */
	return (q->group + block + g->nwrites) % SAMPLE == 0;
}

/* the CRC of a block that is in memory: kept after a write, compared after a read */
static int verify_block(struct te__spill *s, const struct te__spill_request *q, uint32_t i)
{
	struct te__spill_block *b = &te__spill_group_of(s, q)->block[i];
	uint32_t crc;

	if (q->dir == TE__SPILL_WRITE)
		b->has_crc = wants_crc(s, q, i);
	if (!b->has_crc || s->verify == TE__SPILL_VERIFY_OFF)
		return 0;
	pthread_mutex_unlock(&s->lock);
	crc = te__crc32c(0, q->slot + (size_t)i * s->block_nbytes, block_size(s, q, i));
	pthread_mutex_lock(&s->lock);
	if (q->dir == TE__SPILL_WRITE) {
		b->crc = crc;
		return 0;
	}
	s->stats.nverified++;
	return crc == b->crc ? 0 : -TE_ECORRUPT;
}

static uint32_t bin_of(uint64_t ns)
{
	uint64_t us4 = ns / 1000; /* its 4th power has the bin as its logarithm */
	uint32_t log = 0, quarter = 0;

	if (us4 < 1)
		return 0;
	while (us4 >> (log + 1))
		log++;
	/* quarter octaves at 2^(1/4), 2^(1/2), 2^(3/4), in 1/1024 */
	us4 = log >= 10 ? us4 >> (log - 10) : us4 << (10 - log);
	quarter = (us4 >= 1218) + (us4 >= 1448) + (us4 >= 1722);
	log = 4 * log + quarter;
	return log < TE__SPILL_BINS ? log : TE__SPILL_BINS - 1;
}

static void count_latency(struct te__spill *s, const struct te__spill_flight *f)
{
	const uint64_t ns = te__now_ns() - f->begin_ns;
	const enum te__spill_dir dir = f->req->dir;

	s->stats.latency_bin[dir][bin_of(ns)]++;
	if (ns > s->stats.latency_max_ns[dir])
		s->stats.latency_max_ns[dir] = ns;
}

/* a block of the file that cannot be written is left; 1 if the file has room for another */
static int move_block(struct te__spill *s, struct te__spill_flight *f)
{
	struct te__spill_block *b = &te__spill_group_of(s, f->req)->block[f->block];

	if (f->moved || s->file.nbytes - s->used < s->block_nbytes)
		return 0;
	te__log_info("spill: group %u, block %u: byte %" PRIu64 " of the file cannot be written: "
		     "byte %" PRIu64 " is used",
		     f->req->group, f->block, b->offset, s->used);
	b->offset = s->used;
	s->used += s->block_nbytes;
	s->stats.nmoved++;
	f->moved = 1;
	f->have = 0;
	return 1;
}

/* 1 if the block continues; else it has ended with *ret_code */
static int continues(struct te__spill *s, struct te__spill_flight *f, int32_t res, int *ret_code)
{
	const size_t before = f->have;

	*ret_code = 0;
	if (res > 0) {
		f->have += (size_t)res;
		if (f->have >= f->nbytes)
			return 0;
		s->stats.nshort++;
		f->have -= f->have % s->file.align;
		if (f->have > before)
			return 1;
	} else if (res == 0 && f->req->dir == TE__SPILL_READ) {
		*ret_code = -EIO; /* the file is shorter than the data written */
		return 0;
	} else if (res == -EIO && f->req->dir == TE__SPILL_WRITE) {
		*ret_code = res;
		return move_block(s, f);
	} else if (res < 0 && res != -EAGAIN && res != -EINTR && res != -ECANCELED) {
		*ret_code = res;
		return 0;
	}
	/* no progress, and no error */
	s->stats.nretries++;
	*ret_code = res < 0 ? res : -EIO;
	return f->nretries++ < RETRIES;
}

static void finish_block(struct te__spill *s, const struct te__blk_done *done)
{
	struct te__spill_flight *f = done->tag < 2 * s->depth ? &s->flight[done->tag] : NULL;
	struct te__spill_request *q = f ? f->req : NULL;
	int code = 0;

	/* the engine completed a block that is not in flight: it cannot be trusted */
	if (!q) {
		s->dead = -EIO;
		return;
	}
	s->progress_ns[q->dir] = te__now_ns();
	s->stopped[q->dir] = 0;
	if (!f->zombie && !q->code && continues(s, f, done->res, &code)) {
		submit(s, f);
		return;
	}
	count_latency(s, f);
	s->nflight[q->dir]--;
	if (f->zombie) {
		te__spill_group_of(s, q)->nzombies--;
		f->req = NULL;
		return;
	}
	if (!code && !q->code)
		code = verify_block(s, q, f->block);
	f->req = NULL;
	q->nflight--;
	if (code || q->code)
		te__spill_fail(s, q, code, f->block, 1);
	else if (!q->nflight && q->started == q->nblocks)
		te__spill_complete(s, q);
}

/* words: the I/O thread, with the lock held */

/* a bound request that the state does not allow: its words are released nevertheless */
static void refuse(struct te__spill *s, struct te__spill_request *q, int code)
{
	te__spill_refused(s, q, code);
	if (q->active)
		return; /* the active one releases them */
	q->slot = q->bound_slot;
	q->nbytes = q->bound_nbytes;
	q->code = code;
	s->stats.nrequests[q->dir]++;
	if (q->dir == TE__SPILL_READ)
		memset(q->slot, 0xff, q->nbytes);
	te__spill_release(s, q->bound_done, 1);
}

/* a request of the group was made by a call, and is not complete */
static int called(const struct te__spill_group *g)
{
	for (int dir = 0; dir < 2; dir++)
		if (g->req[dir].active && g->req[dir].done != g->req[dir].bound_done)
			return 1;
	return 0;
}

/* 1 if any request was made */
static int poll_words(struct te__spill *s)
{
	int any = 0, r;

	for (struct te__spill_request *q = s->bound; q; q = q->next_bound) {
		if (atomic_load_explicit(q->start, memory_order_acquire) != 1 ||
		    called(te__spill_group_of(s, q)))
			continue;
		/* before the request: after its completion the word may become 1 again */
		atomic_store_explicit(q->start, 0, memory_order_relaxed);
		any = 1;
		/* a waiter would mistake the previous request's end for this one's */
		if (atomic_load_explicit(q->bound_done, memory_order_acquire))
			r = te__fail(-TE_ESTATE, "offload: group %u: its %s was not waited for",
				     q->group, te__spill_verb[q->dir]);
		else
			r = te__spill_request(s, "offload", te__spill_group_of(s, q), q->dir,
					      q->bound_slot, q->bound_nbytes, q->bound_done, 1);
		if (r)
			refuse(s, q, r);
	}
	return any;
}

static void fail_all(struct te__spill *s, int code, int wait)
{
	for (int dir = 0; dir < 2; dir++)
		for (struct te__spill_request *q = s->first[dir], *next; q; q = next) {
			next = q->next;
			te__spill_fail(s, q, code, q->started ? q->started - 1 : 0, wait);
		}
}

static int64_t left_of(const struct te__spill *s, uint64_t since_ns, uint64_t now)
{
	return (int64_t)since_ns + (int64_t)s->timeout_ms * 1000000 - (int64_t)now;
}

/*
 * Fails requests with a block that is in flight too long, requests that wait while no block of
 * their direction completes, and all requests of a direction that has stopped, since each would
 * wait as long for the same drive. Returns the time until the next may be late; INT64_MAX: there is
 * none.
 */
static int64_t fail_late(struct te__spill *s)
{
	const uint64_t now = te__now_ns();
	int64_t least = INT64_MAX, left;

	for (uint32_t i = 0; i < 2 * s->depth; i++) {
		struct te__spill_flight *f = &s->flight[i];

		if (!f->req || f->zombie)
			continue;
		left = left_of(s, f->begin_ns, now);
		if (left > 0) {
			least = left < least ? left : least;
			continue;
		}
		if (s->progress_ns[f->req->dir] < f->begin_ns)
			s->stopped[f->req->dir] = 1;
		te__spill_fail(s, f->req, -ETIMEDOUT, f->block, 0);
	}
	for (int dir = 0; dir < 2; dir++)
		for (struct te__spill_request *q = s->first[dir], *next; q; q = next) {
			const uint64_t progress = s->progress_ns[dir];

			next = q->next;
			if (q->nflight && !s->stopped[dir])
				continue;
			left = left_of(s, q->begin_ns > progress ? q->begin_ns : progress, now);
			if (left > 0 && !s->stopped[dir]) {
				least = left < least ? left : least;
				break;
			}
			te__spill_fail(s, q, -ETIMEDOUT, q->started - !!q->nflight, 0);
		}
	return least;
}

/* the I/O thread */

/* pauses between polls of words grow; anything that happened makes them short again */
struct pace {
	int64_t pause_ns;
	uint64_t since_ns; /* time of the latest event */
};

static int64_t next_pause(struct pace *p, int any)
{
	const uint64_t now = te__now_ns();
	int64_t most = PAUSE_NS;

	if (any || !p->since_ns) {
		p->since_ns = now;
		p->pause_ns = 0;
	}
	if (now - p->since_ns > QUIET_NS)
		most = PAUSE_QUIET_NS;
	p->pause_ns = p->pause_ns ? 2 * p->pause_ns : PAUSE_MIN_NS;
	p->pause_ns = p->pause_ns < most ? p->pause_ns : most;
	return p->pause_ns;
}

void te__spill_serve_dead(struct te__spill *s)
{
	while (!s->quit) {
		const struct timespec t = te__spill_in_ns(PAUSE_QUIET_NS);

		fail_all(s, s->dead, 0);
		if (s->armed && poll_words(s))
			continue;
		if (s->armed)
			pthread_cond_timedwait(&s->changed, &s->lock, &t);
		else
			pthread_cond_wait(&s->changed, &s->lock);
	}
	fail_all(s, s->dead, 0);
}

static void serve(struct te__spill *s)
{
	const struct te__spill_ops *ops;
	struct te__blk_done done[64];
	struct pace pace = { 0, 0 };
	int n = 1;

	pthread_mutex_lock(&s->lock);
	while (!s->dead) {
		int any = n > 0;
		int64_t wait;

		s->nloops++;
		if (s->armed)
			any |= poll_words(s);
		if (s->quit)
			fail_all(s, -ECANCELED, 1);
		any |= start_blocks(s, TE__SPILL_READ);
		any |= start_blocks(s, TE__SPILL_WRITE);
		wait = fail_late(s);
		if (s->quit && !s->first[0] && !s->first[1])
			break;
		if (s->unlocked) {
			s->unlocked = 0;
			continue;
		}
		if (wait == INT64_MAX)
			wait = -1;
		if (s->armed) {
			const int64_t p = next_pause(&pace, any);

			wait = wait < 0 || p < wait ? p : wait;
		}
		s->sleeping = 1;
		ops = s->ops;
		pthread_mutex_unlock(&s->lock);
		n = ops->reap(s->impl, done, sizeof(done) / sizeof(done[0]), wait);
		pthread_mutex_lock(&s->lock);
		/* an unnecessary wake() only ends the next wait early */
		s->sleeping = 0;
		if (n < 0)
			s->dead = n;
		for (int i = 0; i < n && !s->dead; i++)
			finish_block(s, &done[i]);
	}
	if (s->dead) {
		te__log_error("spill: %s: %s: no further I/O", s->dir, te_strerror(s->dead));
		te__spill_serve_dead(s);
	}
	pthread_mutex_unlock(&s->lock);
}

/* one operation on the scratch bytes; returns the engine's result */
static int try_one(struct te__spill *s, enum te__spill_dir dir, uint8_t *mem)
{
	const uint64_t deadline = te__now_ns() + (uint64_t)s->timeout_ms * 1000000u;
	const struct te__blk b = { .dir = dir, .mem = mem, .nbytes = TE__SPILL_ALIGN };
	struct te__blk_done done;
	int n = 0;

	s->ops->submit(s->impl, &b);
	while (!n && te__now_ns() < deadline)
		n = s->ops->reap(s->impl, &done, 1, 10000000);
	if (n > 0 && done.res != (int32_t)TE__SPILL_ALIGN)
		n = done.res < 0 ? done.res : -EIO;
	return n ? n : -ETIMEDOUT;
}

/* a write and a read by the very engine, of the very file, with registered memory if it has any */
static int try_engine(struct te__spill *s)
{
	uint8_t *mem = te__pinned_scratch_lock(s->arena);
	int r;

	for (uint32_t i = 0; i < TE__SPILL_ALIGN; i++)
		mem[i] = (uint8_t)(i * 7 + i / 256);
	r = try_one(s, TE__SPILL_WRITE, mem);
	if (r > 0) {
		memset(mem, 0, TE__SPILL_ALIGN);
		r = try_one(s, TE__SPILL_READ, mem);
	}
	for (uint32_t i = 0; i < TE__SPILL_ALIGN && r > 0; i++)
		if (mem[i] != (uint8_t)(i * 7 + i / 256))
			r = -TE_ECORRUPT;
	te__pinned_scratch_unlock(s->arena);
	return r > 0 ? 0 : r;
}

static int open_engine(struct te__spill *s, const struct te__spill_ops *ops)
{
	const struct te__spill_io io = {
		.fd = s->file.fd,
		.nbytes = s->file.nbytes,
		.mem = te__pinned_base(s->arena),
		.mem_nbytes = te__pinned_held_nbytes(s->arena),
		.depth = s->depth,
		.ret_fixed = &s->stats.fixed,
		.timeout_ms = s->timeout_ms,
	};
	int r;

	s->stats.fixed = 0;
	r = ops->open(&io, &s->impl);
	if (r)
		return r;
	s->ops = ops;
	r = try_engine(s);
	if (!r)
		return 0;
	if (ops->close(s->impl))
		te__pinned_keep(s->arena);
	s->impl = NULL;
	return te__fail(r, "spill: %s: a trial of %s failed: %s", s->dir, ops->name,
			te_strerror(r));
}

static int open_all(struct te__spill *s)
{
	static const struct te__spill_ops *const own[] = {
		[TE__SPILL_AUTO] = &te__spill_uring,
		[TE__SPILL_URING] = &te__spill_uring,
		[TE__SPILL_THREADS] = &te__spill_threads,
		[TE__SPILL_MEMORY] = &te__spill_memory,
	};
	int r = 0;

	/* finer than the 50 us by which the kernel may delay a thread's timers */
	(void)prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
	if (s->engine == TE__SPILL_MEMORY)
		s->file.align = 1;
	else
		r = te__spill_file_open(s->dir, s->quota, &s->file);
	if (r)
		return r;
	r = open_engine(s, s->given ? s->given : own[s->engine]);
	if (r && s->engine == TE__SPILL_AUTO) {
		snprintf(s->reason, sizeof(s->reason), "%s", te_error_detail());
		te__log_info("%s: threads are used instead", s->reason);
		r = open_engine(s, &te__spill_threads);
	}
	return r;
}

void *te__spill_run(void *arg)
{
	struct te__spill *s = arg;
	int r = open_all(s), orphan;

	pthread_mutex_lock(&s->lock);
	s->ready = 1;
	s->ready_code = r;
	if (r)
		snprintf(s->ready_message, sizeof(s->ready_message), "%s", te_error_detail());
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	if (!r)
		serve(s);
	if (s->impl && s->ops->close(s->impl)) {
		te__log_error("spill: %s: I/O that was begun has not ended in %u ms", s->dir,
			      s->timeout_ms);
		/* the arena of an orphan may be destroyed, and keeps the mapping already */
		if (!s->orphan)
			te__pinned_keep(s->arena);
	}
	te__spill_file_close(&s->file);
	pthread_mutex_lock(&s->lock);
	s->gone = 1;
	orphan = s->orphan;
	pthread_cond_broadcast(&s->ended);
	pthread_mutex_unlock(&s->lock);
	if (orphan)
		te__spill_free(s);
	return NULL;
}
