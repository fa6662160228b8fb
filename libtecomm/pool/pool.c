/* pool.c - the symmetric pool of a communicator, see pool.h. */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <te/ctx.h>

#include "libtecomm/meet/agree.h"
#include "libtecomm/meet/pass.h"
#include "libtecomm/pool/state.h"

/* creation */

#define UNIT_MOST ((uint64_t)1 << 40)

/* record of each rank before memory is created */
struct offer {
	uint64_t nbytes, unit; /* size of its pool; units are powers of two */
};

static struct te__node_info info_of(const struct te__pool *p)
{
	return (struct te__node_info){ .nlocal = p->nlocal, .name = p->name };
}

static int names(struct te__pool *p)
{
	p->name = te__calloc((size_t)p->nlocal, sizeof(*p->name));
	if (!p->name)
		return te__fail(-ENOMEM, "te_comm_create: no memory for %d names", p->nlocal);
	for (int32_t i = 0; i < p->nlocal; i++)
		p->name[i] = te__boot_peer(p->boot, te__boot_local(p->boot, i));
	return 0;
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
	return r;
}

/* the size of the pools, which the largest unit divides */
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
		else if (!all[i].unit || all[i].unit > UNIT_MOST ||
			 (all[i].unit & (all[i].unit - 1)))
			r = te__fail(-TE_EMISMATCH, "te_comm_create: %s allocates memory in units "
				     "of %llu bytes, not a power of two of at most 2^40",
				     te__boot_peer(p->boot, i), (unsigned long long)all[i].unit);
		if (unit < all[i].unit)
			unit = all[i].unit;
	}
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

/*
 * Descriptors that ranks of a node pass to each other: MEMORY by each rank, unless it has a fabric
 * handle; the others by the lowest rank.
 */
enum { MEMORY, CONTROL, STAGE, MULTICAST, NFDS };

static const char control_name[] = "the control page", stage_name[] = "staging memory";

static bool has_fd(const struct te__pool *p, int32_t local, int k)
{
	return k == MEMORY    ? !p->fabric && p->nlocal > 1 :
	       local	      ? false :
	       k == STAGE     ? p->stage_nbytes > 0 :
	       k == MULTICAST ? p->multicast :
				true;
}

static void close_fds(int fd[NFDS])
{
	for (int k = 0; k < NFDS; k++)
		if (fd[k] >= 0)
			close(fd[k]);
}

/* this rank's memory, and its descriptors; -1: it has none */
static int make(struct te__pool *p, int fd[NFDS])
{
	int r = (p->fabric ? te__window_fabric_create : te__window_create)(
		p->ctx, p->nslots, p->own, te__pool_stride(p), &p->window);

	if (!r && has_fd(p, p->local, MEMORY))
		r = te__window_export(p->window, &fd[MEMORY]);
	if (!r && has_fd(p, p->local, CONTROL))
		r = te__sealed_create(control_name, TE__CONTROL_NBYTES, &fd[CONTROL]);
	if (!r && has_fd(p, p->local, STAGE))
		r = te__sealed_create(stage_name, p->stage_nbytes, &fd[STAGE]);
	if (!r && has_fd(p, p->local, MULTICAST))
		r = te__window_multicast_create(p->window, &fd[MULTICAST]);
	return r;
}

/* map what the lowest rank of the node has created for all */
static int share(struct te__pool *p, const int fd[NFDS])
{
	const struct te__node_info info = info_of(p);
	void *device, *control = NULL;
	int r = te__sealed_map(control_name, fd[CONTROL], TE__CONTROL_NBYTES, &control);

	p->control = control;
	if (!r && (p->multicast || !te__boot_settles(p->boot)))
		r = te__members_sign(&info, fd[CONTROL], p->local, &p->sign);
	if (!r)
		r = te__page_register(p->ctx, p->control, TE__CONTROL_NBYTES, &p->control_ptr);
	if (r || !p->stage_nbytes)
		return r;
	r = te__sealed_map(stage_name, fd[STAGE], p->stage_nbytes, &p->stage);
	if (!r)
		r = te__page_register(p->ctx, p->stage, p->stage_nbytes, &device);
	p->stage_registered = !r;
	return r;
}

/* the descriptors of another rank of the node */
static int take(void *arg, int32_t local, int pid, const int *passed, int n)
{
	struct te__pool *p = arg;
	int fd[NFDS] = { -1, -1, -1, -1 }, want = 0, r = 0;

	for (int k = 0; k < NFDS; k++)
		want += has_fd(p, local, k);
	if (n != want)
		return te__fail(-EPROTO, "te_comm_create: %s has passed %d file descriptors, "
				"expected %d", p->name[local], n, want);
	for (int k = 0; k < NFDS; k++)
		if (has_fd(p, local, k))
			fd[k] = *passed++;
	te__watch_process(p->watch, local, pid);
	if (!local)
		r = share(p, fd);
	if (!r && fd[MEMORY] >= 0)
		r = te__window_import(p->window, local, fd[MEMORY]);
	return r || fd[MULTICAST] < 0 ? r : te__window_multicast_import(p->window, fd[MULTICAST]);
}

static int map_all(struct te__pool *p)
{
	const int64_t deadline = te__boot_deadline(p->boot);
	int fd[NFDS] = { -1, -1, -1, -1 }, passed[NFDS], n = 0;
	int r = p->nranks > 1 ? te__watch_create(p->boot, p, &p->watch) : 0;

	if (!r)
		r = make(p, fd);
	if (!r && !p->local)
		r = share(p, fd);
	for (int k = 0; k < NFDS; k++)
		if (fd[k] >= 0)
			passed[n++] = fd[k];
	r = te__pass(p->boot, r, passed, n, take, p, deadline);
	close_fds(fd);
	return r || !p->watch ? r : te__watch_start(p->watch);
}

/* the memory of the other ranks, by their handles */
static int map_fabric(struct te__pool *p, const struct te__fabric_handle *all)
{
	int r = 0;

	for (int32_t k = 1; k < p->nranks && !r; k++) {
		const int32_t i = (p->rank + k) % p->nranks;

		r = te__window_fabric_import(p->window, i, &all[i]);
		if (r)
			te__fail(r, "memory of %s: %s", te__boot_peer(p->boot, i),
				 te_error_detail());
	}
	return te__agree(p->boot, r, "mapping of memory of other nodes");
}

/* after all ranks have added their devices */
static int map_multicast(struct te__pool *p)
{
	int r = te__agree(p->boot, te__window_multicast_bind(p->window), "bind multicast memory");

	return r ? r : te__agree(p->boot, te__window_multicast_map(p->window),
				 "map multicast memory");
}

static int create(struct te__pool *p, uint64_t nbytes)
{
	struct te__fabric_handle *all, own;
	int r = settle(p, nbytes ? nbytes : te__param_size(TE_PARAM_COMM_POOL));

	if (r)
		return r;
	r = map_all(p);
	if (!r && p->fabric)
		r = te__window_fabric_export(p->window, &own);
	all = te__gather(p->boot, &r, &own, p->fabric ? sizeof(own) : 0, "exchange of pools", 0);
	if (!r && p->fabric)
		r = map_fabric(p, all);
	te__free(all);
	return r || !p->multicast ? r : map_multicast(p);
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
	const struct te__node_info info = info_of(p);
	const int64_t deadline = te__boot_deadline(p->boot), ns = deadline - te__boot_now();
	char why[TEXT_NBYTES];
	const char *who;
	int code;
	const int failed = te__pool_aborted(p) || te__boot_why(p->boot, &code);

	atomic_store(&p->control->left[p->local], failed ? TE__LEFT_FAILED : TE__LEFT);
	if (!te__pool_multicast(p))
		return;
	who = te__members_leave(p->control, &info, p->sign, p->local, deadline);
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
	char why[TE__CONTROL_REASON];
	struct te_ctx *ctx;
	int code;

	if (!p)
		return NULL;
	p->watch = te__watch_stop(p->watch);
	/* peers that wait in an exchange fail for the same reason, not because this rank closes */
	code = p->control ? te__control_why(p->control, why) : 0;
	if (code)
		te__boot_note(p->boot, code, "%s", why);
	/* the memory of ranks that still use it stays mapped there */
	p->window = (p->held ? te__window_abandon : te__window_destroy)(p->window);
	if (p->control_ptr)
		te__page_unregister(p->ctx, p->control);
	if (p->control)
		munmap(p->control, TE__CONTROL_NBYTES);
	if (p->stage_registered)
		te__page_unregister(p->ctx, p->stage);
	if (p->stage)
		munmap(p->stage, p->stage_nbytes);
	if (p->sign >= 0)
		close(p->sign);
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

void te__pool_set_ended(struct te__pool *p, void (*ended)(void *arg), void *arg)
{
	te__watch_set_ended(p->watch, ended, arg);
}

int32_t te__pool_survivors(struct te__pool *p, int64_t deadline_ns, int32_t *ret_rank,
			   uint32_t *ret_attempt)
{
	const struct te__node_info info = info_of(p);
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
	r = te__members_settle(p->control, &info, p->sign, p->local, deadline_ns, ret_attempt);
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

static int is_mapped(const struct te__pool *p, int32_t rank)
{
	return p->fabric || te__boot_node(p->boot, rank) == te__boot_node(p->boot, p->rank);
}

/* the slot of a mapped rank; for other ranks, the slot of the same local rank here */
static int32_t slot(const struct te__pool *p, int32_t rank)
{
	return p->fabric ? rank : te__boot_local_rank(p->boot, rank);
}

void *te__pool_peer(const struct te__pool *p, const void *ptr, int32_t rank)
{
	const uint64_t offset = (uint64_t)((const char *)ptr - te__pool_base(p, p->own));

	if (rank < 0 || rank >= p->nranks || offset >= p->nbytes || !is_mapped(p, rank))
		return NULL;
	return te__pool_base(p, slot(p, rank)) + offset;
}

uint64_t te__pool_offset(const struct te__pool *p, const void *ptr, uint64_t nbytes)
{
	const uint64_t offset = (uint64_t)((const char *)ptr - te__pool_base(p, p->own));

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

void te__pool_info(struct te__pool *p, struct te_comm_memory *ret)
{
	ret->pool_nbytes = p->nbytes;
	ret->npeers = p->nslots - 1;
	ret->base = te__pool_base(p, p->own);
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
