/* alloc.c - allocation in a symmetric pool, see pool.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/meet/agree.h"
#include "libtecomm/pool/state.h"

/* an error that only this rank has would make the ranks' pools differ: it ends the communicator */
static int abort_with(struct te__pool *p, int code)
{
	char why[TEXT_NBYTES];

	snprintf(why, sizeof(why), "%s: %.100s", te__boot_peer(p->boot, p->rank),
		 te_error_detail());
	te__pool_abort(p, -TE_EABORT, why);
	return code;
}

/* reclaiming */

/* record of each rank: all have the same blocks, and may have freed different ones */
struct epoch {
	uint64_t nallocs, history; /* values that the ranks must agree on */
	uint64_t freed; /* hash of the flags of freed blocks */
};

/* FNV-1a, which is enough to see that calls differ */
static uint64_t mix(uint64_t hash, uint64_t value)
{
	for (int i = 0; i < 8; i++)
		hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
	return hash;
}

/* with the order lock: a flag for each block, 1 if it is freed; *ret_freed is to be freed */
static int snapshot(struct te__pool *p, struct epoch *e, uint8_t **ret_freed)
{
	uint8_t *freed = te__malloc(p->heap.n);

	if (!freed)
		return te__fail(-ENOMEM, "no memory for a list of freed blocks");
	pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < p->heap.n; i++) {
		freed[i] = (uint8_t)p->heap.block[i].freed;
		e->freed = mix(e->freed, freed[i]);
	}
	e->nallocs = p->nallocs;
	e->history = p->history;
	pthread_mutex_unlock(&p->lock);
	*ret_freed = freed;
	return 0;
}

static int check_history(struct te__pool *p, const char *fn, const struct epoch *all)
{
	for (int32_t i = 1; i < p->nranks; i++) {
		if (all[i].nallocs == all[0].nallocs && all[i].history == all[0].history)
			continue;
		te__fail(-TE_EMISMATCH, "%s: %s has made %llu allocations, rank 0 %llu%s", fn,
			 te__boot_peer(p->boot, i), (unsigned long long)all[i].nallocs,
			 (unsigned long long)all[0].nallocs,
			 all[i].nallocs == all[0].nallocs ? ", of other sizes" : "");
		/* all ranks compare the same bytes, so all come here */
		te__control_abort(p->control, -TE_EMISMATCH, te_error_detail());
		return -TE_EMISMATCH;
	}
	return 0;
}

/* keeps the flags of blocks that every rank has freed */
static int intersect(struct te__pool *p, const char *fn, uint8_t *freed)
{
	const size_t n = p->heap.n;
	uint8_t *all = te__malloc((size_t)p->nranks * n);
	int r;

	if (!all) {
		te__fail(-ENOMEM, "%s: no memory for the lists of freed blocks", fn);
		return abort_with(p, -ENOMEM);
	}
	r = te__boot_allgather(p->boot, freed, all, n, fn, te__boot_deadline(p->boot));
	for (size_t i = 0; i < (size_t)p->nranks * n && !r; i++)
		freed[i % n] &= all[i];
	te__free(all);
	return r;
}

/* with the order lock: 0, or an error on all ranks */
static int reclaim(struct te__pool *p, const char *fn)
{
	struct epoch *all, own = { .freed = 0 };
	uint8_t *freed = NULL;
	int r = snapshot(p, &own, &freed);

	/* work queued before the blocks were freed may use them, here and at the peers */
	if (!r)
		r = te__ctx_wait(p->ctx, fn);
	/* do not wait again for a peer for which an operation has timed out */
	if (!r) {
		r = te__pool_check(p, fn);
		if (r) {
			te__free(freed);
			return r;
		}
	}
	all = te__gather(p->boot, &r, &own, sizeof(own), fn, 0);
	if (!r)
		r = check_history(p, fn, all);
	for (int32_t i = 1; i < p->nranks && !r; i++)
		if (all[i].freed != all[0].freed) {
			r = intersect(p, fn, freed);
			break;
		}
	if (!r) {
		pthread_mutex_lock(&p->lock);
		/* backwards: blocks that are reclaimed move those after them */
		for (size_t i = p->heap.n; i-- > 0;)
			if (freed[i])
				te__heap_reclaim(&p->heap, &p->heap.block[i]);
		p->nreclaims++;
		pthread_mutex_unlock(&p->lock);
	}
	te__free(freed);
	te__free(all);
	return r;
}

int te__pool_reclaim(struct te__pool *p, const char *fn)
{
	int r = te__pool_check(p, fn);

	if (r)
		return r;
	pthread_mutex_lock(&p->order);
	r = reclaim(p, fn);
	pthread_mutex_unlock(&p->order);
	return r;
}

/* allocation */

/* in debug mode each rank shows its allocations */
struct shown {
	uint64_t offset, nbytes, nallocs;
};

static int compare_allocs(struct te__pool *p, const char *fn, const struct shown *own)
{
	struct shown *all = te__calloc((size_t)p->nranks, sizeof(*all));
	int r;

	if (!all) {
		te__fail(-ENOMEM, "%s: no memory for an exchange", fn);
		return abort_with(p, -ENOMEM);
	}
	r = te__boot_allgather(p->boot, own, all, sizeof(*own), fn, te__boot_deadline(p->boot));
	for (int32_t i = 1; i < p->nranks && !r; i++) {
		if (!memcmp(&all[i], &all[0], sizeof(*all)))
			continue;
		r = te__fail(-TE_EMISMATCH, "%s: allocation %llu of %s has %llu bytes at offset "
			     "%llu, allocation %llu of rank 0 has %llu bytes at offset %llu", fn,
			     (unsigned long long)all[i].nallocs, te__boot_peer(p->boot, i),
			     (unsigned long long)all[i].nbytes, (unsigned long long)all[i].offset,
			     (unsigned long long)all[0].nallocs,
			     (unsigned long long)all[0].nbytes, (unsigned long long)all[0].offset);
		te__control_abort(p->control, r, te_error_detail());
	}
	te__free(all);
	return r;
}

static int no_room(const struct te__pool *p, const char *fn, uint64_t nbytes)
{
	const struct te__heap *h = &p->heap;

	return te__fail(-ENOMEM, "%s: no %llu bytes in the pool of %llu bytes (pool_nbytes, "
			"TE_COMM_POOL): %llu are free, the largest block that fits has %llu, and "
			"%llu were freed, but not by all ranks", fn, (unsigned long long)nbytes,
			(unsigned long long)h->end, (unsigned long long)(h->end - h->used_nbytes),
			(unsigned long long)te__heap_largest(h),
			(unsigned long long)h->freed_nbytes);
}

/* with the order lock; the block has its offset, and is numbered */
static int take(struct te__pool *p, const char *fn, uint64_t nbytes, uint64_t *ret_offset)
{
	struct te__block *b = NULL;
	int r;

	pthread_mutex_lock(&p->lock);
	r = te__heap_alloc(&p->heap, nbytes, &b);
	if (r > 0) {
		p->nallocs++;
		p->history = mix(mix(p->history, b->offset), nbytes);
		*ret_offset = b->offset;
	}
	pthread_mutex_unlock(&p->lock);
	if (r < 0) {
		te__fail(r, "%s: no host memory for the list of blocks", fn);
		return abort_with(p, r);
	}
	return r;
}

static int alloc(struct te__pool *p, const char *fn, uint64_t nbytes, uint64_t *ret_offset)
{
	struct shown s = { .nbytes = nbytes };
	int r = take(p, fn, nbytes, &s.offset);

	/*
	 * Freed blocks are reclaimed when memory is needed. Ranks may have freed different blocks,
	 * but all have the same ones, so all come here.
	 */
	if (!r && p->heap.n) {
		r = reclaim(p, fn);
		if (!r)
			r = take(p, fn, nbytes, &s.offset);
	}
	if (r < 0)
		return r;
	if (!r)
		return no_room(p, fn, nbytes);
	s.nallocs = p->nallocs;
	*ret_offset = s.offset;
	return p->debug ? compare_allocs(p, fn, &s) : 0;
}

int te__pool_alloc(struct te__pool *p, const char *fn, uint64_t nbytes, void **ret_ptr)
{
	uint64_t offset = 0;
	int r = te__pool_check(p, fn);

	if (r)
		return r;
	if (!nbytes)
		return te__fail(-EINVAL, "%s: zero bytes", fn);
	pthread_mutex_lock(&p->order);
	r = alloc(p, fn, nbytes, &offset);
	pthread_mutex_unlock(&p->order);
	if (!r)
		*ret_ptr = te__pool_base(p, p->own) + offset;
	return r;
}

int te__pool_free(struct te__pool *p, const char *fn, void *ptr)
{
	const uint64_t offset = (uint64_t)((char *)ptr - te__pool_base(p, p->own));
	struct te__block *b = NULL;

	pthread_mutex_lock(&p->lock);
	if (offset < p->nbytes)
		b = te__heap_find(&p->heap, offset);
	if (b && b->offset != offset)
		b = NULL;
	if (b)
		te__heap_free(&p->heap, b);
	pthread_mutex_unlock(&p->lock);
	return b ? 0 : te__fail(-EINVAL, "%s: no block of symmetric memory begins at %p", fn, ptr);
}
