/* pool.c - the symmetric pool of a communicator, see pool.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <te/ctx.h>

#include "libtecomm/meet/agree.h"
#include "libtecomm/pool/heap.h"
#include "libtecomm/pool/members.h"
#include "libtecomm/pool/pool.h"
#include "libtecomm/pool/stage.h"
#include "libtecomm/reach/broker.h"
#include "libtecomm/reach/nvls.h"

#define TEXT_NBYTES 200

struct te__pool {
	struct te__boot *boot;
	struct te_ctx *ctx;
	int32_t rank, nranks, nlocal, local;
	int32_t nslots, own; /* number of mapped pools; number of this rank's pool among them */
	uint64_t nbytes;  /* size of each rank's pool */
	uint64_t packets; /* bytes before each pool */
	const char **name;
	struct te__node_info info;
	char at[TE__LOCAL_NAME]; /* name of the broker */
	struct te__broker *broker; /* broker of local rank 0 */
	struct te__client *client;
	int sign; /* te__members_sign() */
	struct te__control *control;
	void *control_ptr; /* address for the device; or NULL */
	struct te__window *window;
	void *stage; /* NULL: none */
	size_t stage_nbytes;
	int stage_registered;
	int debug;
	bool multicast, fabric;
	bool held; /* 1: te__pool_leave() failed */
	void (*look)(void *arg); /* te__pool_set_look() */
	void *look_arg;

	pthread_mutex_t order; /* one collective call at a time */
	pthread_mutex_t lock;  /* all below; never held while this rank waits for others */
	struct te__heap heap;
	uint64_t nallocs;
	uint64_t history; /* hash of all allocations */
	uint64_t nreclaims;
	size_t nfreed; /* blocks */
};

/* creation */

/* record of each rank before memory is created */
struct offer {
	uint64_t nbytes, unit; /* size of its pool; units are powers of two */
	char at[TE__LOCAL_NAME]; /* name of its broker, if it is the lowest rank of a node */
};

static int names(struct te__pool *p)
{
	p->name = te__calloc((size_t)p->nlocal, sizeof(*p->name));
	if (!p->name)
		return te__fail(-ENOMEM, "te_comm_create: no memory for %d names", p->nlocal);
	for (int32_t i = 0; i < p->nlocal; i++)
		p->name[i] = te__boot_peer(p->boot, te__boot_local(p->boot, i));
	p->info = (struct te__node_info){
		.nlocal = p->nlocal,
		.key = te__boot_key(p->boot),
		.at = p->at,
		.name = p->name,
	};
	return p->local ? 0 : te__broker_start(&p->info, &p->broker);
}

static int offer(struct te__pool *p, uint64_t nbytes, struct offer *ret)
{
	size_t unit = 0, multicast = 0;
	int r = names(p);

	if (!r)
		r = te__window_unit(p->ctx, &unit);
	if (!r && p->multicast)
		r = te__window_multicast_unit(p->ctx, p->nlocal, nbytes + p->packets, &multicast);
	*ret = (struct offer){ .nbytes = nbytes, .unit = unit < multicast ? multicast : unit };
	memcpy(ret->at, p->at, sizeof(ret->at));
	return r;
}

/* the size of the pools, which the largest unit divides, and where the broker listens */
static int settle(struct te__pool *p, uint64_t nbytes)
{
	struct offer *all, own;
	uint64_t unit = 1;
	int r = offer(p, nbytes, &own);

	all = te__gather(p->boot, &r, &own, sizeof(own), "exchange of pool sizes", 0);
	for (int32_t i = 0; i < p->nranks && !r; i++) {
		if (all[i].nbytes != all[0].nbytes)
			r = te__fail(-TE_EMISMATCH, "te_comm_create: %s wants a pool of %llu "
				     "bytes, rank 0 one of %llu", te__boot_peer(p->boot, i),
				     (unsigned long long)all[i].nbytes,
				     (unsigned long long)all[0].nbytes);
		if (unit < all[i].unit)
			unit = all[i].unit;
	}
	if (!r)
		memcpy(p->at, all[te__boot_local(p->boot, 0)].at, sizeof(p->at));
	te__free(all);
	if (r)
		return r;
	if (nbytes > UINT64_MAX / 4 / (uint64_t)p->nslots)
		return te__fail(-ENOMEM, "te_comm_create: %d pools of %llu bytes exceed the "
				"address space", p->nslots, (unsigned long long)nbytes);
	p->nbytes = (nbytes + unit - 1) / unit * unit;
	p->packets = (p->packets + unit - 1) / unit * unit;
	return 0;
}

static int fetch(struct te__pool *p, int32_t i, int64_t deadline)
{
	uint64_t nbytes;
	int fd;
	int r = te__client_fetch(p->client, (uint32_t)i, i, &nbytes, &fd, deadline);

	if (r)
		return r;
	r = nbytes != te__pool_stride(p) ?
		    te__fail(-TE_EMISMATCH, "te_comm_create: %s has published %llu bytes, expected "
			     "%llu", p->name[i], (unsigned long long)nbytes,
			     (unsigned long long)te__pool_stride(p)) :
		    te__window_import(p->window, i, fd);
	close(fd);
	return r;
}

static int publish(struct te__pool *p, int64_t deadline)
{
	int fd;
	int r = te__window_export(p->window, &fd);

	if (r)
		return r;
	r = te__client_publish(p->client, (uint32_t)p->local, te__pool_stride(p), fd, deadline);
	close(fd);
	return r;
}

#define STAGE_ITEM(p) ((uint32_t)(p)->nlocal + 1) /* item at the broker; nvls has the previous */

/* the lowest rank of the node creates it */
static int share_stage(struct te__pool *p, int64_t deadline)
{
	uint64_t nbytes;
	void *device;
	int fd, r;

	if (p->local) {
		r = te__client_fetch(p->client, STAGE_ITEM(p), 0, &nbytes, &fd, deadline);
	} else {
		r = te__stage_create(p->stage_nbytes, &fd);
	}
	if (r)
		return r;
	if (!p->local && p->nlocal > 1)
		r = te__client_publish(p->client, STAGE_ITEM(p), p->stage_nbytes, fd, deadline);
	if (!r)
		r = te__stage_map(fd, p->stage_nbytes, &p->stage);
	close(fd);
	if (!r)
		r = te__page_register(p->ctx, p->stage, p->stage_nbytes, &device);
	p->stage_registered = !r;
	return r;
}

/* this rank's pool, and pools of the other ranks of the node */
static int map_node(struct te__pool *p, int64_t deadline)
{
	int r = te__window_create(p->ctx, p->nslots, p->own, te__pool_stride(p), &p->window);

	if (!r)
		r = publish(p, deadline);
	/* begin after the own rank, so that ranks do not request the same memory at once */
	for (int32_t k = 1; k < p->nlocal && !r; k++)
		r = fetch(p, (p->local + k) % p->nlocal, deadline);
	return r;
}

/* the memory of the other ranks, by their handles */
static int map_fabric(struct te__pool *p, const struct te__fabric_handle *all)
{
	char why[TEXT_NBYTES];
	int r = 0;

	for (int32_t k = 1; k < p->nranks && !r; k++) {
		const int32_t i = (p->rank + k) % p->nranks;

		r = te__window_fabric_import(p->window, i, &all[i]);
		if (r) {
			snprintf(why, sizeof(why), "%s", te_error_detail());
			te__fail(r, "memory of %s: %s", te__boot_peer(p->boot, i), why);
		}
	}
	return te__agree(p->boot, r, "mapping of memory of other nodes");
}

static int map_all(struct te__pool *p)
{
	const int64_t deadline = te__boot_deadline(p->boot);
	int r = te__client_open(&p->info, p->local, deadline, &p->client), fd = -1;

	if (!r)
		r = te__client_control(p->client, deadline, &p->control, &fd);
	if (!r && (p->multicast || !te__boot_settles(p->boot)))
		r = te__members_sign(&p->info, fd, p->local, &p->sign);
	if (fd >= 0)
		close(fd);
	if (!r)
		r = te__page_register(p->ctx, p->control, TE__CONTROL_NBYTES, &p->control_ptr);
	if (!r)
		r = p->fabric ? te__window_fabric_create(p->ctx, p->nslots, p->own,
							 te__pool_stride(p), &p->window) :
				map_node(p, deadline);
	if (!r && p->multicast)
		r = te__nvls_join(p->window, p->client, p->local, (uint32_t)p->nlocal,
				  te__pool_stride(p), deadline);
	if (!r && p->stage_nbytes)
		r = share_stage(p, deadline);
	return r ? r : te__client_watch(p->client);
}

/* code: reason for leaving, which other ranks get; or 0 */
static void give_up(struct te__pool *p, int code)
{
	char why[TEXT_NBYTES];

	snprintf(why, sizeof(why), "%s", code ? te_error_detail() : "");
	if (p->control_ptr)
		te__page_unregister(p->ctx, p->control);
	p->control_ptr = NULL;
	p->control = NULL;
	if (p->stage_registered)
		te__page_unregister(p->ctx, p->stage);
	if (p->stage)
		munmap(p->stage, p->stage_nbytes);
	p->stage = NULL;
	p->stage_registered = 0;
	if (p->sign >= 0)
		close(p->sign);
	p->sign = -1;
	p->client = te__client_close(p->client, code, why);
	if (code)
		te__fail(code, "%s", why); /* closing may have recorded other messages */
}

static int create(struct te__pool *p, uint64_t nbytes)
{
	struct te__fabric_handle *all, own;
	int r = settle(p, nbytes ? nbytes : te__param_size(TE_PARAM_COMM_POOL));

	if (r)
		return r;
	r = map_all(p);
	if (r)
		give_up(p, r);
	else if (p->fabric)
		r = te__window_fabric_export(p->window, &own);
	all = te__gather(p->boot, &r, &own, p->fabric ? sizeof(own) : 0, "exchange of pools", 0);
	if (!r && p->fabric)
		r = map_fabric(p, all);
	te__free(all);
	return r || !p->multicast ? r : te__nvls_map(p->window, p->boot);
}

int te__pool_create(struct te__boot *boot, struct te_ctx *ctx, uint64_t nbytes, uint64_t packets,
		    bool multicast, bool fabric, size_t stage, struct te__pool **ret_pool)
{
	struct te__pool *p = te__calloc(1, sizeof(*p));
	int r;

	if (!p) {
		te__boot_abort(boot, "no memory for a pool");
		return te__fail(-ENOMEM, "te_comm_create: no memory for a pool");
	}
	p->boot = boot;
	p->ctx = te_ctx_ref(ctx);
	p->rank = te__boot_rank(boot);
	p->nranks = te__boot_nranks(boot);
	p->nlocal = te__boot_nlocal(boot);
	p->local = te__boot_local_rank(boot, p->rank);
	p->nslots = fabric ? p->nranks : p->nlocal;
	p->own = fabric ? p->rank : p->local;
	p->packets = packets;
	p->sign = -1;
	p->multicast = multicast;
	p->fabric = fabric;
	p->stage_nbytes = stage;
	p->debug = te__param_bool(TE_PARAM_COMM_DEBUG);
	pthread_mutex_init(&p->order, NULL);
	pthread_mutex_init(&p->lock, NULL);
	r = create(p, nbytes);
	if (r) {
		te__pool_destroy(p);
		return r;
	}
	te__heap_init(&p->heap, p->nbytes);
	te__log_info("a pool of %llu bytes on each of %d ranks%s", (unsigned long long)p->nbytes,
		     p->nslots, fabric ? ", mapped by fabric handles" : " of this node");
	*ret_pool = p;
	return 0;
}

void te__pool_leave(struct te__pool *p)
{
	const int64_t deadline = te__boot_deadline(p->boot), ns = deadline - te__boot_now();
	char why[TEXT_NBYTES];
	const char *who;
	int code;
	const int failed = te__pool_aborted(p) || te__boot_why(p->boot, &code);

	atomic_store(&p->control->left[p->local], failed ? TE__LEFT_FAILED : TE__LEFT);
	if (!te__pool_multicast(p))
		return;
	who = te__members_leave(p->control, &p->info, p->sign, p->local, deadline);
	if (!who)
		return;
	snprintf(why, sizeof(why), "%.100s has not released multicast memory within %lld ms of %s",
		 who, (long long)(ns / 1000000), te__boot_peer(p->boot, p->rank));
	/*
	 * The abort ends its waiting kernels. A kernel that begins later, queued before or
	 * replayed, first stores its packets to all ranks: this rank has to keep its memory.
	 */
	p->held = true;
	te__pool_abort(p, -ETIMEDOUT, why);
}

struct te__pool *te__pool_destroy(struct te__pool *p)
{
	struct te_ctx *ctx;
	const char *why;
	int code;

	if (!p)
		return NULL;
	/* peers that wait in an exchange fail for the same reason, not because this rank closes */
	why = p->control ? te__control_why(p->control, &code) : NULL;
	if (why)
		te__boot_note(p->boot, code, "%.*s", (int)sizeof(p->control->reason), why);
	/* the memory of ranks that still use it stays mapped there */
	p->window = (p->held ? te__window_abandon : te__window_destroy)(p->window);
	give_up(p, 0);
	p->broker = te__broker_stop(p->broker);
	te__heap_fini(&p->heap);
	te__free(p->name);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->order);
	ctx = p->ctx;
	te__free(p);
	te_ctx_unref(ctx);
	return NULL;
}

struct te_ctx *te__pool_ctx(const struct te__pool *p)
{
	return p->ctx;
}

int te__pool_check(const struct te__pool *p, const char *fn)
{
	if (p->look)
		p->look(p->look_arg);
	return te__control_check(p->control, fn);
}

void te__pool_set_look(struct te__pool *p, void (*look)(void *arg), void *arg)
{
	p->look = look;
	p->look_arg = arg;
}

bool te__pool_has_left(const struct te__pool *p, int32_t rank)
{
	const int32_t local = te__boot_local_rank(p->boot, rank);

	if (te__boot_node(p->boot, rank) != te__boot_node(p->boot, p->rank))
		return p->fabric && te__boot_has_closed(p->boot, rank);
	return atomic_load_explicit(&p->control->left[local], memory_order_relaxed) == TE__LEFT;
}

bool te__pool_aborted(const struct te__pool *p)
{
	int code;

	return te__control_why(p->control, &code);
}

void te__pool_abort(struct te__pool *p, int code, const char *why)
{
	int first;
	const char *before = te__control_why(p->control, &first);

	/* the ranks of other nodes get the first reason, too */
	if (before)
		te__boot_note(p->boot, first, "%.*s", (int)sizeof(p->control->reason), before);
	else
		te__control_abort(p->control, code, why);
	te__boot_abort(p->boot, why);
}

int32_t te__pool_survivors(struct te__pool *p, int64_t deadline_ns, int32_t *ret_rank,
			   uint32_t *ret_attempt)
{
	char why[TEXT_NBYTES];
	int32_t n = 0;
	int r;

	/* ends waits for other ranks in the communicator, so that ranks can arrive */
	snprintf(why, sizeof(why), "%s has called te_comm_recover",
		 te__boot_peer(p->boot, p->rank));
	te__pool_abort(p, -TE_EABORT, why);
	*ret_attempt = 0;
	if (te__boot_settles(p->boot))
		return te__boot_settle(p->boot, deadline_ns, ret_rank);
	r = te__members_settle(p->control, &p->info, p->sign, p->local, deadline_ns,
			       ret_attempt);
	for (int32_t i = 0; i < p->nlocal && !r; i++)
		if (te__members_has(p->control, i, *ret_attempt))
			ret_rank[n++] = te__boot_local(p->boot, i);
	return r ? r : n;
}

int te__pool_succeeded(struct te__pool *p, uint32_t attempt, int success)
{
	return te__boot_settles(p->boot) ? success :
					   te__members_end(p->control, attempt, success);
}

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

/* record of each rank; ids follow in a second exchange if they differ */
struct epoch {
	uint64_t nallocs, history; /* values that the ranks must agree on */
	uint64_t nfreed, hash;
};

/* FNV-1a, which is enough to see that calls differ */
static uint64_t mix(uint64_t hash, uint64_t value)
{
	for (int i = 0; i < 8; i++)
		hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
	return hash;
}

static int compare_ids(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* the sorted ids of freed blocks; the caller frees *ret_id */
static int snapshot(struct te__pool *p, struct epoch *e, uint64_t **ret_id)
{
	uint64_t *id;

	pthread_mutex_lock(&p->lock);
	id = te__malloc(p->nfreed * sizeof(*id));
	for (size_t i = 0; i < p->heap.n && id; i++)
		if (p->heap.block[i].freed)
			id[e->nfreed++] = p->heap.block[i].id;
	e->nallocs = p->nallocs;
	e->history = p->history;
	pthread_mutex_unlock(&p->lock);
	if (!id)
		return te__fail(-ENOMEM, "no memory for a list of freed blocks");
	qsort(id, e->nfreed, sizeof(*id), compare_ids);
	for (uint64_t i = 0; i < e->nfreed; i++)
		e->hash = mix(e->hash, id[i]);
	*ret_id = id;
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

static int in_list(const uint64_t *id, uint64_t n, uint64_t want)
{
	return bsearch(&want, id, n, sizeof(*id), compare_ids) != NULL;
}

/* keeps the ids that every rank has freed; the lists differ if blocks are freed in another order */
static int intersect(struct te__pool *p, const char *fn, const struct epoch *all, uint64_t *id,
		     uint64_t *n)
{
	uint64_t most = 0, kept = 0;
	uint64_t *lists;
	int r;

	for (int32_t i = 0; i < p->nranks; i++)
		most = most < all[i].nfreed ? all[i].nfreed : most;
	lists = te__calloc((size_t)p->nranks * most, sizeof(*lists));
	if (!lists) {
		te__fail(-ENOMEM, "%s: no memory for the lists of freed blocks", fn);
		return abort_with(p, -ENOMEM);
	}
	memcpy(lists + (uint64_t)p->rank * most, id, *n * sizeof(*id));
	r = te__boot_allgather(p->boot, lists + (uint64_t)p->rank * most, lists,
			       most * sizeof(*lists), fn, te__boot_deadline(p->boot));
	for (uint64_t k = 0; k < *n && !r; k++) {
		int32_t i = 0;

		while (i < p->nranks &&
		       in_list(lists + (uint64_t)i * most, all[i].nfreed, id[k]))
			i++;
		if (i == p->nranks)
			id[kept++] = id[k];
	}
	te__free(lists);
	if (!r)
		*n = kept;
	return r;
}

/* with the lock */
static void reclaim_ids(struct te__pool *p, const uint64_t *id, uint64_t n)
{
	struct te__heap *h = &p->heap;

	/* backwards: blocks that are reclaimed move those after them */
	for (size_t i = h->n; i-- > 0;) {
		if (!h->block[i].freed || !in_list(id, n, h->block[i].id))
			continue;
		te__heap_reclaim(h, &h->block[i]);
		p->nfreed--;
	}
}

/* with the order lock: 0, or an error on all ranks */
static int reclaim(struct te__pool *p, const char *fn)
{
	struct epoch *all, own = { .hash = 0 };
	uint64_t *id = NULL;
	int r = snapshot(p, &own, &id);

	/* work queued before the blocks were freed may use them, here and at the peers */
	if (!r)
		r = te__ctx_wait(p->ctx, fn);
	/* do not wait again for a peer for which an operation has timed out */
	if (!r) {
		r = te__pool_check(p, fn);
		if (r) {
			te__free(id);
			return r;
		}
	}
	all = te__gather(p->boot, &r, &own, sizeof(own), fn, 0);
	if (!r)
		r = check_history(p, fn, all);
	for (int32_t i = 1; i < p->nranks && !r; i++)
		if (all[i].nfreed != all[0].nfreed || all[i].hash != all[0].hash) {
			r = intersect(p, fn, all, id, &own.nfreed);
			break;
		}
	if (!r) {
		pthread_mutex_lock(&p->lock);
		reclaim_ids(p, id, own.nfreed);
		p->nreclaims++;
		pthread_mutex_unlock(&p->lock);
	}
	te__free(id);
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
		r = te__fail(-TE_EMISMATCH, "%s: allocation %llu of %s is of %llu bytes at %llu, "
			     "allocation %llu of rank 0 of %llu bytes at %llu", fn,
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
			(unsigned long long)h->end,
			(unsigned long long)(h->end - h->used_nbytes),
			(unsigned long long)te__heap_largest(h),
			(unsigned long long)h->freed_nbytes);
}

/* with the order lock; the block has its offset, and is numbered */
static int take(struct te__pool *p, const char *fn, uint64_t nbytes, uint64_t *ret_offset)
{
	struct te__block *b = NULL;
	int r;

	pthread_mutex_lock(&p->lock);
	r = te__heap_alloc(&p->heap, nbytes, p->nallocs + 1, &b);
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

/* begin of the pool in a slot of the window */
static char *base(const struct te__pool *p, int32_t slot)
{
	return (char *)te__window_slot(p->window, slot) + p->packets;
}

static char *own_base(const struct te__pool *p)
{
	return base(p, p->own);
}

static int is_mapped(const struct te__pool *p, int32_t rank)
{
	return p->fabric || te__boot_node(p->boot, rank) == te__boot_node(p->boot, p->rank);
}

/* the slot of a mapped rank; for other ranks, the slot of the same local rank here */
static int32_t slot(const struct te__pool *p, int32_t rank)
{
	return p->fabric ? rank : te__boot_local_rank(p->boot, rank);
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
		*ret_ptr = own_base(p) + offset;
	return r;
}

int te__pool_free(struct te__pool *p, const char *fn, void *ptr)
{
	const uint64_t offset = (uint64_t)((char *)ptr - own_base(p));
	struct te__block *b = NULL;

	pthread_mutex_lock(&p->lock);
	if (offset < p->nbytes)
		b = te__heap_find(&p->heap, offset);
	if (b && b->offset != offset)
		b = NULL;
	if (b) {
		te__heap_free(&p->heap, b);
		p->nfreed++;
	}
	pthread_mutex_unlock(&p->lock);
	return b ? 0 : te__fail(-EINVAL, "%s: no block of symmetric memory begins at %p", fn, ptr);
}

void *te__pool_peer(const struct te__pool *p, const void *ptr, int32_t rank)
{
	const uint64_t offset = (uint64_t)((const char *)ptr - own_base(p));

	if (rank < 0 || rank >= p->nranks || offset >= p->nbytes || !is_mapped(p, rank))
		return NULL;
	return base(p, slot(p, rank)) + offset;
}

uint64_t te__pool_offset(const struct te__pool *p, const void *ptr, uint64_t nbytes)
{
	const uint64_t offset = (uint64_t)((const char *)ptr - own_base(p));

	return offset < p->nbytes && nbytes <= p->nbytes - offset ? offset : UINT64_MAX;
}

void *te__pool_packets(const struct te__pool *p, int32_t rank)
{
	return te__window_slot(p->window, slot(p, rank));
}

uint64_t te__pool_stride(const struct te__pool *p)
{
	return p->packets + p->nbytes;
}

void *te__pool_multicast(const struct te__pool *p)
{
	return te__window_multicast(p->window);
}

void *te__pool_stage(const struct te__pool *p)
{
	return p->stage;
}

const char *te__pool_why(const struct te__pool *p, int *ret_code)
{
	return te__control_why(p->control, ret_code);
}

const uint32_t *te__pool_abort_word(const struct te__pool *p)
{
	const char *page = p->control_ptr;

	return (const uint32_t *)(page + offsetof(struct te__control, abort));
}

void te__pool_info(struct te__pool *p, struct te_comm_memory *ret)
{
	ret->pool_nbytes = p->nbytes;
	ret->npeers = p->nslots - 1;
	ret->base = own_base(p);
	pthread_mutex_lock(&p->lock);
	ret->used_nbytes = p->heap.used_nbytes;
	ret->peak_nbytes = p->heap.peak_nbytes;
	ret->freed_nbytes = p->heap.freed_nbytes;
	ret->largest_nbytes = te__heap_largest(&p->heap);
	ret->nblocks = p->heap.n;
	ret->nallocs = p->nallocs;
	ret->nreclaims = p->nreclaims;
	pthread_mutex_unlock(&p->lock);
}
