/* spill_request.c - requests: the rules by which they are made, their results, messages and end. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libtecore/base/base.h"
#include "libtecore/offload/spill_impl.h"

const char *const te__spill_verb[2] = { "write", "read" };

/* messages */

static void describe(const struct te__spill *s, const struct te__spill_request *q, int code,
		     uint32_t block, char *ret, size_t nbytes)
{
	const struct te__spill_group *g = &s->group[q->group];
	const uint64_t offset = block < g->nblocks ? g->block[block].offset : 0;

	snprintf(ret, nbytes,
		 "offload: %s of group %u, %zu bytes: block %u, at byte %" PRIu64
		 " of the file in %s: %s",
		 te__spill_verb[q->dir], q->group, q->nbytes, block, offset, s->dir,
		 te_strerror(code));
}

int te__spill_failed(const struct te__spill *s, const struct te__spill_request *q, int code,
		     uint32_t block)
{
	char text[sizeof(s->error.message)];

	describe(s, q, code, block, text, sizeof(text));
	return te__fail(code, "%s", text);
}

/* counts an error, and keeps it if it is the first */
static void keep_error(struct te__spill *s, const struct te__spill_request *q, int code,
		       uint32_t block)
{
	const struct te__spill_group *g = te__spill_group_of(s, q);

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

void te__spill_refused(struct te__spill *s, struct te__spill_request *q, int code)
{
	keep_error(s, q, code, 0);
	if (q->dir == TE__SPILL_WRITE && !q->active)
		te__spill_group_of(s, q)->lost = code;
}

static void activate(struct te__spill *s, struct te__spill_request *q)
{
	struct te__spill_request **end = &s->last[q->dir];

	q->active = 1;
	q->prev = *end;
	q->next = NULL;
	*(*end ? &(*end)->next : &s->first[q->dir]) = q;
	if (!*end)
		s->busy_since_ns[q->dir] = q->begin_ns;
	*end = q;
}

static void deactivate(struct te__spill *s, struct te__spill_request *q)
{
	*(q->prev ? &q->prev->next : &s->first[q->dir]) = q->next;
	*(q->next ? &q->next->prev : &s->last[q->dir]) = q->prev;
	q->active = 0;
	if (!s->first[q->dir])
		s->stats.busy_ns[q->dir] += te__now_ns() - s->busy_since_ns[q->dir];
}

void te__spill_release(struct te__spill *s, _Atomic uint32_t *done, uint32_t value)
{
	if (done)
		atomic_store_explicit(done, value, memory_order_release);
	pthread_cond_broadcast(&s->changed);
}

/* complete a request with the result q->code; on the I/O thread */
void te__spill_complete(struct te__spill *s, struct te__spill_request *q)
{
	struct te__spill_group *g = te__spill_group_of(s, q);

	deactivate(s, q);
	s->stats.nrequests[q->dir]++;
	if (q->code)
		keep_error(s, q, q->code, q->bad);
	else
		s->stats.nbytes[q->dir] += q->nbytes;
	if (!q->code && q->dir == TE__SPILL_WRITE)
		te__spill_ted_wrote(s->file.ted, q->nbytes);
	if (q->dir == TE__SPILL_WRITE) {
		g->stored = q->code ? 0 : q->nbytes;
		g->lost = q->code;
		g->lost_block = q->bad;
	} else if (q->code) {
		memset(q->slot, 0xff, q->nbytes);
	}
	te__spill_release(s, q->done, q->value);
}

/* fail a request; its blocks in flight are waited for, or become zombies */
void te__spill_fail(struct te__spill *s, struct te__spill_request *q, int code, uint32_t block,
		    int wait)
{
	if (!q->code) {
		q->code = code;
		q->bad = block;
	}
	if (q->nflight && wait)
		return;
	for (uint32_t i = 0; i < 2 * s->depth && q->nflight; i++) {
		struct te__spill_flight *f = &s->flight[i];

		if (f->req != q || f->zombie)
			continue;
		f->zombie = 1;
		q->nflight--;
		te__spill_group_of(s, q)->nzombies++;
	}
	te__spill_complete(s, q);
}

/* check that the state of the group allows the request; spill.h has the rules */
static int check(struct te__spill *s, const char *fn, struct te__spill_group *g,
		 enum te__spill_dir dir, const uint8_t *slot, size_t nbytes)
{
	const uint32_t i = (uint32_t)(g - s->group);
	const struct te__spill_request *w = &g->req[TE__SPILL_WRITE];
	const uint8_t *base = te__pinned_base(s->arena);

	if (!g->block || !nbytes || nbytes > g->nbytes)
		return te__fail(-EINVAL, "%s: group %u: %zu bytes, but %zu are reserved", fn, i,
				nbytes, g->nbytes);
	if (slot < base || (size_t)(slot - base) % TE__SPILL_ALIGN ||
	    (size_t)(slot - base) + te__spill_rounded(nbytes) > te__pinned_nbytes(s->arena))
		return te__fail(-EINVAL,
				"%s: group %u: slot %p of %zu bytes is not in the arena, "
				"or not aligned to %u bytes",
				fn, i, (const void *)slot, nbytes, TE__SPILL_ALIGN);
	if (g->req[dir].active)
		return te__fail(-EBUSY, "%s: group %u: its latest %s is not complete", fn, i,
				te__spill_verb[dir]);
	if (g->nzombies)
		return te__fail(-EBUSY,
				"%s: group %u: %u blocks that timed out are still in "
				"flight",
				fn, i, g->nzombies);
	if (dir == TE__SPILL_WRITE)
		return g->req[TE__SPILL_READ].active ?
			       te__fail(-EBUSY, "%s: group %u is being read", fn, i) :
			       0;
	if (!w->active && g->lost)
		return te__spill_failed(s, w, g->lost, g->lost_block);
	if (!w->active && !g->stored)
		return te__fail(-TE_ESTATE, "%s: group %u has not been written", fn, i);
	if (nbytes != (w->active ? w->nbytes : g->stored))
		return te__fail(-EINVAL, "%s: group %u: %zu bytes, but %zu were written", fn, i,
				nbytes, w->active ? w->nbytes : g->stored);
	return 0;
}

int te__spill_request(struct te__spill *s, const char *fn, struct te__spill_group *g,
		      enum te__spill_dir dir, void *slot, size_t nbytes, _Atomic uint32_t *done,
		      uint32_t value)
{
	struct te__spill_request *q = &g->req[dir];
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

/* life */

int te__spill_forked(const struct te__spill *s)
{
	return s->pid != getpid();
}

void te__spill_free(struct te__spill *s)
{
	for (uint32_t i = 0; s->group && i < s->ngroups; i++)
		te__free(s->group[i].block);
	te__free(s->group);
	te__free(s->flight);
	te__free(s->dir);
	if (!te__spill_forked(s)) {
		pthread_cond_destroy(&s->ended);
		pthread_cond_destroy(&s->changed);
		pthread_mutex_destroy(&s->lock);
	}
	te__free(s);
}
