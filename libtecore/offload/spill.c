/*
 * spill.c - the file tier: groups, requests, and the I/O thread that divides requests into blocks.
 *
 * One lock protects all. The I/O thread holds it, except while it waits in reap() and while it
 * copies or checks the bytes of a request that is active, which only it completes.
 */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "libtecore/base/base.h"
#include "libtecore/offload/crc32c.h"
#include "libtecore/offload/spill_io.h"

#define BLOCK_NBYTES ((size_t)4 << 20)
#define BLOCK_MAX ((size_t)256 << 20)
#define DEPTH 8u
#define TIMEOUT_MS 5000u
#define RETRIES 100u /* of one block, after EAGAIN and the like */
#define SAMPLE 16u   /* one block of so many is verified */
/* pauses between polls of words: doubled from the first to the second, and to the third if nothing
 * has happened for QUIET_NS */
#define PAUSE_MIN_NS 2000
#define PAUSE_NS 100000
#define PAUSE_QUIET_NS 1000000
#define QUIET_NS 100000000u

/* A block of a group. */
struct block {
	uint64_t offset; /* in the file; UINT64_MAX: no extent yet */
	uint32_t crc;
	int has_crc; /* 1: of what was written last */
};

/* The requests of a group in one direction: at most one is active. */
struct request {
	struct request *prev, *next; /* of the active ones in this direction, oldest first */
	uint32_t group;
	enum te__spill_dir dir;
	int active; /* from the request until its completion */
	int forward; /* a read that began while the group was being written */
	uint8_t *slot;
	size_t nbytes;
	_Atomic uint32_t *done;
	uint32_t value;
	uint64_t begin_ns;
	uint32_t nblocks, started, nflight;
	/* the first failure, or the result of the latest request */
	int code;
	uint32_t bad;

	/* te__spill_bind(): start is NULL if there is none */
	struct request *next_bound;
	uint8_t *bound_slot;
	size_t bound_nbytes;
	_Atomic uint32_t *start, *bound_done;
};

struct group {
	struct request req[2]; /* by te__spill_dir */
	struct block *block;   /* NULL: not reserved */
	uint32_t nblocks;
	size_t nbytes; /* reserved */
	size_t stored; /* bytes of the latest write; 0: EMPTY */
	int lost;      /* the code of a failed write; 0: not LOST */
	uint32_t lost_block;
	uint32_t nzombies; /* blocks in flight of requests that have timed out */
	uint32_t nwrites;
};

/* A block in flight; the tag is its index. */
struct flight {
	struct request *req; /* NULL: free */
	uint32_t block;
	int zombie; /* 1: its request is complete: the outcome is ignored */
	int moved;
	uint32_t nretries;
	size_t nbytes; /* rounded up to TE__SPILL_ALIGN */
	size_t have;   /* of them, transferred */
	uint64_t begin_ns;
};

struct te__spill {
	struct te__pinned *arena;
	char *dir;
	uint64_t quota;
	size_t block_nbytes;
	uint32_t depth, ngroups, timeout_ms;
	enum te__spill_engine engine;
	enum te__spill_verify verify;
	const struct te__spill_ops *given; /* or NULL */
	pid_t pid;
	pthread_t thread;
	int has_thread;

	pthread_mutex_t lock;
	pthread_cond_t changed; /* a request is complete, the thread is ready, quit, or dead */
	const struct te__spill_ops *ops;
	void *impl;
	struct te__spill_file file;
	int ready, ready_code; /* what the thread made of its start */
	char ready_message[512];
	char reason[256]; /* why AUTO is not io_uring */
	int quit, sleeping, armed;
	int dead; /* the code with which the engine broke; 0: it works */
	uint64_t used; /* bytes of the file in extents */
	struct group *group;
	struct flight *flight; /* 2 * depth */
	struct request *first[2], *last[2], *bound;
	uint32_t nflight[2];
	uint64_t busy_since_ns[2], progress_ns[2]; /* progress: the latest completion of a block */
	int unlocked; /* 1: requests may have been made since the I/O thread last looked for them */
	struct te__spill_error error;
	struct te__spill_stats stats;
};

static const char *const verb[2] = { "write", "read" };

uint64_t te__now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct group *group_of(struct te__spill *s, const struct request *q)
{
	return &s->group[q->group];
}

/* block i of a request, without the rounding of the last one */
static size_t block_size(const struct te__spill *s, const struct request *q, uint32_t i)
{
	const size_t at = (size_t)i * s->block_nbytes;

	return q->nbytes - at < s->block_nbytes ? q->nbytes - at : s->block_nbytes;
}

static size_t rounded(size_t nbytes)
{
	return (nbytes + TE__SPILL_ALIGN - 1) / TE__SPILL_ALIGN * TE__SPILL_ALIGN;
}

/* messages */

static void describe(const struct te__spill *s, const struct request *q, int code, uint32_t block,
		     char *ret, size_t nbytes)
{
	const struct group *g = &s->group[q->group];
	const uint64_t offset = block < g->nblocks ? g->block[block].offset : 0;

	snprintf(ret, nbytes, "offload: %s of group %u, %zu bytes: block %u, at byte %" PRIu64
		 " of the file in %s: %s", verb[q->dir], q->group, q->nbytes, block, offset,
		 s->dir, te_strerror(code));
}

static int failed(const struct te__spill *s, const struct request *q, int code, uint32_t block)
{
	char text[sizeof(s->error.message)];

	describe(s, q, code, block, text, sizeof(text));
	return te__fail(code, "%s", text);
}

static void keep_error(struct te__spill *s, const struct request *q, int code, uint32_t block)
{
	const struct group *g = group_of(s, q);

	s->stats.nerrors++;
	if (s->error.code)
		return;
	s->error = (struct te__spill_error){
		.code = code,
		.dir = q->dir,
		.group = q->group,
		.block = block,
		.offset = block < g->nblocks ? g->block[block].offset : 0,
	};
	describe(s, q, code, block, s->error.message, sizeof(s->error.message));
	te__log_warn("%s", s->error.message);
}

/* requests: all with the lock held */

static void activate(struct te__spill *s, struct request *q)
{
	struct request **end = &s->last[q->dir];

	q->active = 1;
	q->prev = *end;
	q->next = NULL;
	*(*end ? &(*end)->next : &s->first[q->dir]) = q;
	if (!*end)
		s->busy_since_ns[q->dir] = q->begin_ns;
	*end = q;
}

static void deactivate(struct te__spill *s, struct request *q)
{
	*(q->prev ? &q->prev->next : &s->first[q->dir]) = q->next;
	*(q->next ? &q->next->prev : &s->last[q->dir]) = q->prev;
	q->active = 0;
	if (!s->first[q->dir])
		s->stats.busy_ns[q->dir] += te__now_ns() - s->busy_since_ns[q->dir];
}

static void release(struct te__spill *s, _Atomic uint32_t *done, uint32_t value)
{
	if (done)
		atomic_store_explicit(done, value, memory_order_release);
	pthread_cond_broadcast(&s->changed);
}

/* with the result q->code; the I/O thread */
static void complete(struct te__spill *s, struct request *q)
{
	struct group *g = group_of(s, q);

	deactivate(s, q);
	s->stats.nrequests[q->dir]++;
	if (!q->code)
		s->stats.nbytes[q->dir] += q->nbytes;
	else
		keep_error(s, q, q->code, q->bad);
	if (q->dir == TE__SPILL_WRITE) {
		g->stored = q->code ? 0 : q->nbytes;
		g->lost = q->code;
		g->lost_block = q->bad;
	} else if (q->code) {
		memset(q->slot, 0xff, q->nbytes);
	}
	release(s, q->done, q->value);
}

/* its blocks in flight are waited for, or become zombies */
static void fail_request(struct te__spill *s, struct request *q, int code, uint32_t block, int wait)
{
	if (!q->code) {
		q->code = code;
		q->bad = block;
	}
	if (q->nflight && wait)
		return;
	for (uint32_t i = 0; i < 2 * s->depth && q->nflight; i++) {
		struct flight *f = &s->flight[i];

		if (f->req != q || f->zombie)
			continue;
		f->zombie = 1;
		q->nflight--;
		group_of(s, q)->nzombies++;
	}
	complete(s, q);
}

/* whether the state of the group allows the request; te__spill.h has the rules */
static int check(struct te__spill *s, const char *fn, struct group *g, enum te__spill_dir dir,
		 const uint8_t *slot, size_t nbytes)
{
	const uint32_t i = (uint32_t)(g - s->group);
	const struct request *w = &g->req[TE__SPILL_WRITE];
	const uint8_t *base = te__pinned_base(s->arena);

	if (!g->block || !nbytes || nbytes > g->nbytes)
		return te__fail(-EINVAL, "%s: group %u: %zu bytes, but %zu are reserved", fn, i,
				nbytes, g->nbytes);
	if (slot < base || (size_t)(slot - base) % TE__SPILL_ALIGN ||
	    (size_t)(slot - base) + rounded(nbytes) > te__pinned_nbytes(s->arena))
		return te__fail(-EINVAL, "%s: group %u: slot %p of %zu bytes is not in the arena, "
				"or not aligned to %u bytes", fn, i, (const void *)slot, nbytes,
				TE__SPILL_ALIGN);
	if (g->req[dir].active)
		return te__fail(-EBUSY, "%s: group %u: its latest %s is not complete", fn, i,
				verb[dir]);
	if (g->nzombies)
		return te__fail(-EBUSY, "%s: group %u: %u blocks that timed out are still in "
				"flight", fn, i, g->nzombies);
	if (dir == TE__SPILL_WRITE)
		return g->req[TE__SPILL_READ].active ?
			       te__fail(-EBUSY, "%s: group %u is being read", fn, i) :
			       0;
	if (!w->active && g->lost)
		return failed(s, w, g->lost, g->lost_block);
	if (!w->active && !g->stored)
		return te__fail(-TE_ESTATE, "%s: group %u has not been written", fn, i);
	if (nbytes != (w->active ? w->nbytes : g->stored))
		return te__fail(-EINVAL, "%s: group %u: %zu bytes, but %zu were written", fn, i,
				nbytes, w->active ? w->nbytes : g->stored);
	return 0;
}

static int request(struct te__spill *s, const char *fn, struct group *g, enum te__spill_dir dir,
		   void *slot, size_t nbytes, _Atomic uint32_t *done, uint32_t value)
{
	struct request *q = &g->req[dir];
	int r;

	if (s->dead)
		return te__fail(s->dead, "%s: group %u: the I/O thread has ended its work: %s", fn,
				q->group, te_strerror(s->dead));
	r = check(s, fn, g, dir, slot, nbytes);
	if (r)
		return r;
	q->slot = slot;
	q->nbytes = nbytes;
	q->done = done;
	q->value = value;
	q->begin_ns = te__now_ns();
	q->nblocks = (uint32_t)((nbytes + s->block_nbytes - 1) / s->block_nbytes);
	q->started = q->nflight = 0;
	q->code = 0;
	q->bad = 0;
	q->forward = dir == TE__SPILL_READ && g->req[TE__SPILL_WRITE].active;
	if (dir == TE__SPILL_WRITE)
		g->nwrites++;
	activate(s, q);
	return 0;
}

/* blocks: the I/O thread, with the lock held */

static uint32_t free_flight(const struct te__spill *s)
{
	uint32_t i = 0;

	while (s->flight[i].req)
		i++;
	return i;
}

static void submit(struct te__spill *s, const struct flight *f)
{
	const struct request *q = f->req;
	const struct te__blk b = {
		.dir = q->dir,
		.tag = (uint32_t)(f - s->flight),
		.mem = q->slot + (size_t)f->block * s->block_nbytes + f->have,
		.nbytes = f->nbytes - f->have,
		.offset = group_of(s, q)->block[f->block].offset + f->have,
	};

	s->stats.nblocks[q->dir]++;
	s->ops->submit(s->impl, &b);
}

static void start_block(struct te__spill *s, struct request *q)
{
	struct flight *f = &s->flight[free_flight(s)];

	*f = (struct flight){
		.req = q,
		.block = q->started,
		.nbytes = rounded(block_size(s, q, q->started)),
		.begin_ns = te__now_ns(),
	};
	q->started++;
	q->nflight++;
	s->nflight[q->dir]++;
	submit(s, f);
}

/* a read of a group that is being written: its bytes are still in the slot of the write */
static void forward(struct te__spill *s, struct request *q)
{
	const struct request *w = &group_of(s, q)->req[TE__SPILL_WRITE];

	if (q->slot != w->slot) {
		pthread_mutex_unlock(&s->lock);
		memmove(q->slot, w->slot, q->nbytes);
		pthread_mutex_lock(&s->lock);
		s->unlocked = 1;
	}
	s->stats.nforwarded++;
	complete(s, q);
}

/* what to do with reads that began during a write which is complete now */
static int settle(struct te__spill *s, struct request *q)
{
	struct group *g = group_of(s, q);

	if (g->req[TE__SPILL_WRITE].active) {
		forward(s, q);
		return 1;
	}
	q->forward = 0;
	if (!g->lost)
		return 0;
	fail_request(s, q, g->lost, g->lost_block, 1);
	return 1;
}

/* 1 if anything was started */
static int start_blocks(struct te__spill *s, enum te__spill_dir dir)
{
	struct request *q = s->first[dir], *next;
	int any = 0;

	for (; q; q = next) {
		next = q->next;
		if (q->forward && settle(s, q)) {
			any = 1;
			continue;
		}
		while (s->nflight[dir] < s->depth && q->started < q->nblocks && !q->code) {
			start_block(s, q);
			any = 1;
		}
	}
	return any;
}

static int wants_crc(const struct te__spill *s, const struct request *q, uint32_t block)
{
	const struct group *g = &s->group[q->group];

	if (s->verify != TE__SPILL_VERIFY_SAMPLE)
		return s->verify == TE__SPILL_VERIFY_ALL;
	/* another block of the group in every step */
	return (q->group + block + g->nwrites) % SAMPLE == 0;
}

/* the CRC of a block that is in memory: kept after a write, compared after a read */
static int verify_block(struct te__spill *s, const struct request *q, uint32_t i)
{
	struct block *b = &group_of(s, q)->block[i];
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

static void count_latency(struct te__spill *s, const struct flight *f)
{
	const uint64_t ns = te__now_ns() - f->begin_ns;
	const enum te__spill_dir dir = f->req->dir;

	s->stats.latency_bin[dir][bin_of(ns)]++;
	if (ns > s->stats.latency_max_ns[dir])
		s->stats.latency_max_ns[dir] = ns;
}

/* a block of the file that cannot be written is left; 1 if the file has room for another */
static int move_block(struct te__spill *s, struct flight *f)
{
	struct block *b = &group_of(s, f->req)->block[f->block];

	if (f->moved || s->file.nbytes - s->used < s->block_nbytes)
		return 0;
	te__log_info("spill: group %u, block %u: byte %" PRIu64 " of the file cannot be written: "
		     "byte %" PRIu64 " is used", f->req->group, f->block, b->offset, s->used);
	b->offset = s->used;
	s->used += s->block_nbytes;
	s->stats.nmoved++;
	f->moved = 1;
	f->have = 0;
	return 1;
}

/* 1 if the block goes on; else it has ended with *ret_code */
static int continues(struct te__spill *s, struct flight *f, int32_t res, int *ret_code)
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
		*ret_code = -EIO; /* the file is shorter than what was written */
		return 0;
	} else if (res == -EIO && f->req->dir == TE__SPILL_WRITE) {
		*ret_code = res;
		return move_block(s, f);
	} else if (res < 0 && res != -EAGAIN && res != -EINTR && res != -ECANCELED) {
		*ret_code = res;
		return 0;
	}
	/* no progress, and nothing is known to be wrong */
	s->stats.nretries++;
	*ret_code = res < 0 ? res : -EIO;
	return f->nretries++ < RETRIES;
}

static void finish_block(struct te__spill *s, const struct te__blk_done *done)
{
	struct flight *f = done->tag < 2 * s->depth ? &s->flight[done->tag] : NULL;
	struct request *q = f ? f->req : NULL;
	int code = 0;

	/* an engine that completes what is not in flight: nothing of it can be trusted */
	if (!q) {
		s->dead = -EIO;
		return;
	}
	s->progress_ns[q->dir] = te__now_ns();
	if (!f->zombie && !q->code && continues(s, f, done->res, &code)) {
		submit(s, f);
		return;
	}
	count_latency(s, f);
	s->nflight[q->dir]--;
	if (f->zombie) {
		group_of(s, q)->nzombies--;
		f->req = NULL;
		return;
	}
	if (!code && !q->code)
		code = verify_block(s, q, f->block);
	f->req = NULL;
	q->nflight--;
	if (code || q->code)
		fail_request(s, q, code, f->block, 1);
	else if (!q->nflight && q->started == q->nblocks)
		complete(s, q);
}

/* words: the I/O thread, with the lock held */

/* a bound request that the state does not allow: its words are released all the same */
static void refuse(struct te__spill *s, struct request *q, int code)
{
	if (q->active) {
		keep_error(s, q, code, 0);
		return; /* the active one releases them */
	}
	q->slot = q->bound_slot;
	q->nbytes = q->bound_nbytes;
	q->code = code;
	keep_error(s, q, code, 0);
	s->stats.nrequests[q->dir]++;
	if (q->dir == TE__SPILL_READ)
		memset(q->slot, 0xff, q->nbytes);
	else
		group_of(s, q)->lost = code;
	release(s, q->bound_done, 1);
}

/* 1 if any request was made */
static int poll_words(struct te__spill *s)
{
	int any = 0, r;

	for (struct request *q = s->bound; q; q = q->next_bound) {
		if (atomic_load_explicit(q->start, memory_order_acquire) != 1)
			continue;
		/* before the request: after its completion the word may become 1 again */
		atomic_store_explicit(q->start, 0, memory_order_relaxed);
		any = 1;
		r = request(s, "offload", group_of(s, q), q->dir, q->bound_slot, q->bound_nbytes,
			    q->bound_done, 1);
		if (r)
			refuse(s, q, r);
	}
	return any;
}

static void fail_all(struct te__spill *s, int code, int wait)
{
	for (int dir = 0; dir < 2; dir++)
		for (struct request *q = s->first[dir], *next; q; q = next) {
			next = q->next;
			fail_request(s, q, code, q->started ? q->started - 1 : 0, wait);
		}
}

static int64_t left_of(const struct te__spill *s, uint64_t since_ns, uint64_t now)
{
	return (int64_t)since_ns + (int64_t)s->timeout_ms * 1000000 - (int64_t)now;
}

/*
 * Requests with a block that is too long in flight, and those that wait while no block of their
 * direction is completed. Returns the time until the next may be late; INT64_MAX: there is none.
 */
static int64_t fail_late(struct te__spill *s)
{
	const uint64_t now = te__now_ns();
	int64_t least = INT64_MAX, left;

	for (uint32_t i = 0; i < 2 * s->depth; i++) {
		struct flight *f = &s->flight[i];

		if (!f->req || f->zombie)
			continue;
		left = left_of(s, f->begin_ns, now);
		if (left <= 0)
			fail_request(s, f->req, -ETIMEDOUT, f->block, 0);
		else if (left < least)
			least = left;
	}
	for (int dir = 0; dir < 2; dir++)
		for (struct request *q = s->first[dir], *next; q; q = next) {
			const uint64_t progress = s->progress_ns[dir];

			next = q->next;
			if (q->nflight)
				continue;
			left = left_of(s, q->begin_ns > progress ? q->begin_ns : progress, now);
			if (left > 0) {
				least = left < least ? left : least;
				break;
			}
			fail_request(s, q, -ETIMEDOUT, q->started, 0);
		}
	return least;
}

/* the I/O thread */

/* for pthread_cond_timedwait on s->changed */
static struct timespec in_ns(int64_t ns)
{
	const uint64_t t = te__now_ns() + (uint64_t)ns;

	return (struct timespec){ .tv_sec = (time_t)(t / 1000000000u),
				  .tv_nsec = (long)(t % 1000000000u) };
}

/* pauses between polls of words grow; anything that happened makes them short again */
struct pace {
	int64_t pause_ns;
	uint64_t since_ns; /* of the latest event */
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

/* after the engine broke: requests fail, words are released, until the end */
static void serve_dead(struct te__spill *s)
{
	te__log_error("spill: %s: %s: no further I/O", s->dir, te_strerror(s->dead));
	while (!s->quit) {
		const struct timespec t = in_ns(PAUSE_QUIET_NS);

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
	struct te__blk_done done[64];
	struct pace pace = { 0, 0 };
	int n = 1;

	pthread_mutex_lock(&s->lock);
	while (!s->dead) {
		int any = n > 0;
		int64_t wait;

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
		pthread_mutex_unlock(&s->lock);
		n = s->ops->reap(s->impl, done, sizeof(done) / sizeof(done[0]), wait);
		pthread_mutex_lock(&s->lock);
		/* a wake() for which there was no need ends the next wait early: no harm */
		s->sleeping = 0;
		if (n < 0)
			s->dead = n;
		for (int i = 0; i < n && !s->dead; i++)
			finish_block(s, &done[i]);
	}
	if (s->dead)
		serve_dead(s);
	pthread_mutex_unlock(&s->lock);
}

/* one operation on the scratch bytes; what the engine returned */
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

static void *run(void *arg)
{
	struct te__spill *s = arg;
	int r = open_all(s);

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
		te__pinned_keep(s->arena);
	}
	te__spill_file_close(&s->file);
	return NULL;
}

/* life */

static int start_thread(struct te__spill *s)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = te__fault_point() ? EAGAIN : pthread_create(&s->thread, NULL, run, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return te__fail(-r, "spill: cannot start the I/O thread: %s", strerror(r));
	s->has_thread = 1;
	pthread_mutex_lock(&s->lock);
	while (!s->ready)
		pthread_cond_wait(&s->changed, &s->lock);
	r = s->ready_code;
	pthread_mutex_unlock(&s->lock);
	return r ? te__fail(r, "%s", s->ready_message) : 0;
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
		return te__fail(-EINVAL, "spill: %u groups in %" PRIu64 " bytes: there must be one "
				"and %u", o->ngroups, o->quota_nbytes, TE__SPILL_ALIGN);
	if (o->block_nbytes % TE__SPILL_ALIGN || o->block_nbytes > BLOCK_MAX)
		return te__fail(-EINVAL, "spill: blocks of %zu bytes: a multiple of %u up to %zu "
				"is needed", o->block_nbytes, TE__SPILL_ALIGN, BLOCK_MAX);
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
	struct te__spill *s;
	int r = check_opts(o);

	if (r)
		return r;
	s = te__calloc(1, sizeof(*s));
	if (!s)
		return te__fail(-ENOMEM, "spill: no memory");
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->changed, &attr);
	pthread_condattr_destroy(&attr);
	s->arena = arena;
	s->quota = o->quota_nbytes / TE__SPILL_ALIGN * TE__SPILL_ALIGN;
	s->block_nbytes = o->block_nbytes ? o->block_nbytes : BLOCK_NBYTES;
	s->depth = o->depth ? o->depth : DEPTH;
	s->ngroups = o->ngroups;
	s->timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS;
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

/* in a forked child: the thread and the locks are not there, and the file is the parent's */
static int forked(const struct te__spill *s)
{
	return s->pid != getpid();
}

struct te__spill *te__spill_destroy(struct te__spill *s)
{
	if (!s)
		return NULL;
	if (forked(s)) {
		te__spill_file_close(&s->file);
	} else {
		if (s->has_thread) {
			pthread_mutex_lock(&s->lock);
			s->quit = 1;
			pthread_cond_broadcast(&s->changed);
			if (s->sleeping && !s->dead)
				s->ops->wake(s->impl);
			pthread_mutex_unlock(&s->lock);
			pthread_join(s->thread, NULL);
		}
		pthread_cond_destroy(&s->changed);
		pthread_mutex_destroy(&s->lock);
	}
	for (uint32_t i = 0; s->group && i < s->ngroups; i++)
		te__free(s->group[i].block);
	te__free(s->group);
	te__free(s->flight);
	te__free(s->dir);
	te__free(s);
	return NULL;
}

/* calls */

static int enter(struct te__spill *s, const char *fn, uint32_t group)
{
	if (forked(s))
		return te__fail(-TE_ESTATE, "%s: the spill was created before this process was "
				"forked: create one in the child", fn);
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

static int reserve(struct te__spill *s, struct group *g, uint32_t i, size_t nbytes)
{
	const size_t n = rounded(nbytes);
	const size_t nblocks = (n + s->block_nbytes - 1) / s->block_nbytes;

	if (!nbytes || n < nbytes || nblocks > UINT32_MAX)
		return te__fail(-EINVAL, "te__spill_reserve: group %u: %zu bytes", i, nbytes);
	if (g->block)
		return te__fail(-TE_ESTATE, "te__spill_reserve: group %u has %zu bytes already", i,
				g->nbytes);
	if (n > s->file.nbytes - s->used)
		return te__fail(-ENOSPC, "te__spill_reserve: group %u: %zu bytes, but %" PRIu64
				" of the file's %" PRIu64 " are left", i, nbytes,
				s->file.nbytes - s->used, s->file.nbytes);
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
	r = request(s, "te__spill_write", &s->group[group], TE__SPILL_WRITE,
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
	r = request(s, "te__spill_read", &s->group[group], TE__SPILL_READ, slot, nbytes, done,
		    value);
	leave(s, !r);
	return r;
}

int te__spill_wait(struct te__spill *s, enum te__spill_dir dir, uint32_t group, int timeout_ms)
{
	struct timespec t;
	struct request *q;
	int late = 0, r = enter(s, "te__spill_wait", group);

	if (r)
		return r;
	q = &s->group[group].req[dir];
	t = in_ns((int64_t)timeout_ms * 1000000);
	while (q->active && !late) {
		if (timeout_ms < 0)
			late = pthread_cond_wait(&s->changed, &s->lock);
		else
			late = pthread_cond_timedwait(&s->changed, &s->lock, &t);
	}
	if (q->active)
		r = te__fail(-ETIMEDOUT, "te__spill_wait: %s of group %u, %zu bytes: not complete "
			     "after %d ms", verb[dir], group, q->nbytes, timeout_ms);
	else if (q->code)
		r = failed(s, q, q->code, q->bad);
	leave(s, 0);
	return r;
}

static int bind(struct te__spill *s, struct group *g, struct request *q, void *slot, size_t nbytes)
{
	const uint8_t *base = te__pinned_base(s->arena), *p = slot;

	if (!g->block || !nbytes || nbytes > g->nbytes || p < base ||
	    (size_t)(p - base) % TE__SPILL_ALIGN ||
	    (size_t)(p - base) + rounded(nbytes) > te__pinned_nbytes(s->arena))
		return te__fail(-EINVAL, "te__spill_bind: group %u: slot %p of %zu bytes: %zu are "
				"reserved; the slot is in the arena, aligned to %u bytes", q->group,
				slot, nbytes, g->nbytes, TE__SPILL_ALIGN);
	q->bound_slot = slot;
	q->bound_nbytes = nbytes;
	return 0;
}

int te__spill_bind(struct te__spill *s, enum te__spill_dir dir, uint32_t group, void *slot,
		   size_t nbytes, _Atomic uint32_t *start, _Atomic uint32_t *done)
{
	struct request **at, *q;
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
