/* nodes.c - see nodes.h: creation, and queueing of an operation. */
#define TE_LOG_CATEGORY "comm/nodes"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libtecomm/collective/nodes/mail.h"
#include "libtecomm/collective/nodes/rail.h"
#include "libtecomm/meet/agree.h"
#include "libtecomm/meet/thread.h"

const char *te__nodes_no_chain(const struct te__nodes *n, enum te_k_comm_collective what,
			       enum te_dtype dtype)
{
	if (te__nodes_like(what) != TE_K_COLL_ALLREDUCE && what != TE_K_COLL_REDUCE_SCATTER)
		return "it computes sums only";
	if (dtype == TE_DTYPE_INT32 || dtype == TE_DTYPE_UINT8)
		return "it supports floating types only";
	if (!n->contiguous)
		return "the ranks of a node are not contiguous";
	return NULL;
}

static void wake(void *arg)
{
	struct te__nodes *n = arg;

	n->link->ops->wake(n->link);
	if (n->mail)
		te__mail_wake(n->mail);
}

/* ---- creation ---- */

/* the device's staging memory, for a transport that takes it; a reason why not is logged */
static void export_device(const struct te__nodes *n, struct te__link_opts *o)
{
	void *mem;

	if (!n->device_at || !o->npeers || !te__param_bool(TE_PARAM_COMM_GPUDIRECT))
		return;
	mem = te__device_in(n, 0, n->local);
	o->device_nbytes = te__nodes_device(n->boot, n->piece);
	if (te__adapter_export(te__pool_ctx(n->pool), mem, o->device_nbytes, &o->device_fd)) {
		te__log_info("messages pass through memory of the host: %s", te_error_detail());
		te_error_clear();
		return;
	}
	o->device = mem;
}

static int open_link(struct te__nodes *n, const struct te__link_ops *ops)
{
	const int32_t ms = te__boot_timeout_ms(n->boot);
	int32_t peers[4096];
	struct te_device_info device = TE_DEVICE_INFO_INIT;
	struct te__link_opts o = {
		.boot = n->boot,
		.peers = peers,
		.mem = te__pool_stage(n->pool),
		.mem_nbytes = te__nodes_stage(n->boot, n->piece),
		.device_fd = -1,
		.pci = device.pci_address,
		.timeout_ms = ms / 8 > (INT32_MAX - ms) ? INT32_MAX : ms + ms / 8,
		.heartbeat_ms = te__link_heartbeat_ms(),
	};
	int r;

	(void)te_ctx_device_info(te__pool_ctx(n->pool), &device); /* a hint which device is near */
	for (int32_t k = 0; k < n->nranks && n->local < n->nrails; k++) {
		const int32_t node = te__boot_node(n->boot, k);

		if (node == n->node || te__boot_local_rank(n->boot, k) != n->local)
			continue;
		n->peer_of[node] = o.npeers;
		peers[o.npeers++] = k;
	}
	n->npeers = o.npeers;
	export_device(n, &o);
	r = te__link_open(ops, &o, &n->link);
	if (o.device_fd >= 0)
		close(o.device_fd);
	return te__agree(n->boot, r, "connection of the nodes");
}

/* messages between all ranks pass through memory of the host, by host calls */
static int open_mail(struct te__nodes *n, const struct te__link_ops *ops)
{
	if (strcmp(te_ctx_backend(te__pool_ctx(n->pool)), "host"))
		return 0;
	return te__mail_create(n->boot, n->pool, ops, n->piece, &n->mail);
}

/* by the first row of messages that works */
static int connect_nodes(struct te__nodes *n, const struct te__reach_choice *reach)
{
	char why[512] = "";
	int r = 0;

	for (int k = 0; k < TE__REACH_ROWS && !n->link; k++) {
		const struct te__link_ops *ops = te__reach_link(k);

		if (!ops)
			continue;
		if (reach->why[k][0]) {
			te__log_info("not by %s: %s", ops->name, reach->why[k]);
			continue;
		}
		if (r)
			te__log_warn("the nodes are connected by %s, since: %s", ops->name, why);
		r = open_link(n, ops);
		if (!r)
			r = open_mail(n, ops);
		if (!r)
			break;
		snprintf(why, sizeof(why), "%s", te_error_detail());
		n->link = te__link_close(n->link);
	}
	if (r)
		return te__fail(r, "%s", why);
	/* memory of other nodes was to be mapped, and that has failed */
	if (!n->link)
		return te__reach_none(n->boot, reach);
	te__log_info("%d nodes, %d rails by %s%s", n->nnodes, n->nrails, n->link->ops->name,
		     n->link->direct ? ", from memory of the device" : "");
	return 0;
}

static int start_threads(struct te__nodes *n)
{
	int r = n->mail ? te__mail_start(n->mail) : 0;

	te__pool_set_ended(n->pool, wake, n);
	if (r || n->local >= n->nrails)
		return r;
	r = te__thread_start(&n->thread, te__rail_work, n, "a rail of several nodes");
	n->running = !r;
	return r;
}

static int alloc(struct te__nodes *n)
{
	const size_t m = (size_t)n->nnodes;

	n->peer_of = te__calloc(3 * m, sizeof(*n->peer_of));
	n->targets = te__calloc(3 * TE__NODES_DEPTH * m, sizeof(*n->targets));
	n->src = te__calloc((size_t)n->nranks, sizeof(*n->src));
	if (!n->peer_of || !n->targets || !n->src)
		return te__fail(-ENOMEM, "te_comm_create: no memory for %d nodes", n->nnodes);
	n->first = n->peer_of + m;
	n->nlocals = n->first + m;
	for (size_t k = 0; k < TE__NODES_DEPTH; k++) {
		n->job[k].sent = n->targets + 3 * k * m;
		n->job[k].received = n->job[k].sent + m;
		n->job[k].head = n->job[k].sent + 2 * m;
	}
	n->contiguous = te__nodes_contiguous(n->boot);
	for (int32_t r = 0; r < n->nranks; r++) {
		const int32_t node = te__boot_node(n->boot, r);

		if (!n->nlocals[node]++)
			n->first[node] = r;
	}
	return 0;
}

static int create(struct te__nodes *n, const struct te__reach_choice *reach)
{
	int r = alloc(n);

	if (r) {
		te__boot_abort(n->boot, "no memory for nodes");
		return r;
	}
	r = connect_nodes(n, reach);
	return r ? r : te__agree(n->boot, start_threads(n), "threads of several nodes");
}

int te__nodes_create(struct te__boot *boot, struct te__pool *pool,
		     const struct te__reach_choice *reach, size_t piece, size_t device_at,
		     struct te__nodes **ret_nodes)
{
	struct te__nodes *n;
	int r;

	if (te__nodes_most_local(boot) > TE__NODES_LOCAL)
		return te__fail(-EOPNOTSUPP, "te_comm_create: %d ranks on a node, at most %d are "
				"supported with several nodes", te__nodes_most_local(boot),
				TE__NODES_LOCAL);
	n = te__calloc(1, sizeof(*n));
	if (!n) {
		te__boot_abort(boot, "no memory for nodes");
		return te__fail(-ENOMEM, "te_comm_create: no memory for nodes");
	}
	*n = (struct te__nodes){
		.boot = boot,
		.pool = pool,
		.piece = piece,
		.common = te__nodes_common(boot, piece),
		.device_at = device_at,
		.rank = te__boot_rank(boot),
		.nranks = te__boot_nranks(boot),
		.nnodes = te__boot_nnodes(boot),
		.node = te__boot_node(boot, te__boot_rank(boot)),
		.nlocal = te__boot_nlocal(boot),
		.local = te__boot_local_rank(boot, te__boot_rank(boot)),
		.nrails = te__nodes_nrails(boot),
		.timeout_ns = (int64_t)te__boot_timeout_ms(boot) * 1000000,
	};
	r = create(n, reach);
	if (r) {
		char why[512];

		snprintf(why, sizeof(why), "%s", te_error_detail());
		te__nodes_destroy(n);
		return te__fail(r, "%s", why);
	}
	*ret_nodes = n;
	return 0;
}

struct te__nodes *te__nodes_destroy(struct te__nodes *n)
{
	char why[TE__CONTROL_REASON];
	int code;

	if (!n)
		return NULL;
	atomic_store(&n->stop, 1);
	if (n->running) {
		n->link->ops->wake(n->link);
		pthread_join(n->thread, NULL);
	}
	te__pool_set_ended(n->pool, NULL, NULL);
	/* after its last piece */
	atomic_store_explicit(&te__nodes_member(n, n->local)->closed, 1, memory_order_release);
	/* peers fail for the same reason, not because this rank closes */
	code = te__pool_why(n->pool, why);
	if (code && n->link)
		(void)te__link_fail(n->link, code, "%s", why);
	te__link_close(n->link);
	te__mail_destroy(n->mail);
	te__free(n->peer_of);
	te__free(n->targets);
	te__free(n->src);
	te__free(n);
	return NULL;
}

struct te__mail *te__nodes_mail(const struct te__nodes *n)
{
	return n->mail;
}

const char *te__nodes_transport(const struct te__nodes *n)
{
	return n->link->ops->name;
}

/* ---- operations ---- */

struct put {
	struct te__nodes *n;
	struct te__piece piece;
};

/* in stream order: the inputs of this rank are in staging memory */
static void put_in(void *arg)
{
	const struct put *a = arg;
	struct te__nodes *n = a->n;
	struct te__member *m = te__nodes_member(n, n->local);
	struct te__piece *p = &m->piece[n->begun % TE__NODES_DEPTH];

	if (te__pool_aborted(n->pool))
		return;
	*p = a->piece;
	p->number = n->begun++;
	n->first_piece = p->lo ? n->first_piece : p->number;
	atomic_store_explicit(&m->begun, n->begun, memory_order_release);
	if (n->running)
		n->link->ops->wake(n->link);
}

static int has_ended(const struct te__member *m, uint64_t count)
{
	return atomic_load_explicit(&m->ended, memory_order_acquire) >= count;
}

/* 1: all rails have done count pieces */
static int is_ended(struct te__nodes *n, uint64_t count)
{
	for (int32_t g = 0; g < n->nrails; g++) {
		const struct te__member *m = te__nodes_member(n, g);
		int code;

		if (has_ended(m, count))
			continue;
		if (atomic_load_explicit(&m->closed, memory_order_acquire) &&
		    !has_ended(m, count)) {
			code = te__nodes_closed(n, g);
			te__nodes_fail(n, code, te_error_detail());
		}
		return 0;
	}
	return 1;
}

/* in stream order: for the next piece */
static void wait_for(void *arg)
{
	struct te__nodes *n = arg;

	te__nodes_wait(n, is_ended, ++n->waited);
}

struct run {
	struct te__nodes *n;
	struct te_stream *stream;
	const struct te__nodes_call *c;
	int64_t es, nelems, each; /* element size; elements of the operation and of a piece */
	int device; /* te__nodes_is_device() */
};

static char *in_of(const struct run *x, int32_t slot)
{
	return x->device ? te__device_in(x->n, slot, x->n->local) :
			   te__nodes_in(x->n, slot, x->n->local);
}

static char *result_of(const struct run *x, int32_t slot)
{
	return x->device ? te__device_result(x->n, slot, x->n->local) :
			   te__nodes_result(x->n, slot);
}

static int copy(const struct run *x, void *dst, const void *src, int64_t nelems)
{
	return te_copy(x->stream, dst, src, (size_t)(nelems * x->es));
}

static char *at(const struct run *x, const void *base, int64_t i)
{
	return (char *)(uintptr_t)base + i * x->es;
}

static struct te__piece piece_of(const struct run *x, int64_t k)
{
	const struct te__nodes_call *c = x->c;
	const int64_t lo = k * x->each;

	return (struct te__piece){
		.count = c->count,
		.lo = lo,
		.n = x->nelems - lo < x->each ? x->nelems - lo : x->each,
		.dtype = (int32_t)c->dtype,
		.op = (int32_t)c->op,
		.root = c->root,
		.what = (int32_t)c->what,
		.algorithm = (int32_t)c->algorithm,
		.slot = (int32_t)(k % TE__NODES_DEPTH),
	};
}

static int begin_piece(const struct run *x, int64_t k)
{
	const struct put arg = { x->n, piece_of(x, k) };
	const struct te__piece *p = &arg.piece;
	int r = 0;

	if (te__nodes_like(x->c->what) != TE_K_COLL_BROADCAST || x->c->root == x->n->rank)
		r = copy(x, in_of(x, p->slot), at(x, x->c->in, p->lo), p->n);
	return r ? r : te_host_call(x->stream, put_in, &arg, sizeof(arg));
}

/* the elements of the piece in this rank's part, from the memory of the whole piece */
static int copy_part(const struct run *x, const struct te__piece *p, const char *from)
{
	const int64_t first = x->n->rank * p->count;
	const int64_t lo = p->lo > first ? p->lo : first;
	const int64_t end = p->lo + p->n < first + p->count ? p->lo + p->n : first + p->count;

	if (lo >= end)
		return 0;
	return copy(x, at(x, x->c->out, lo - first), at(x, from, lo - p->lo), end - lo);
}

static int add_piece(const struct run *x, int64_t k)
{
	const struct te__piece p = piece_of(x, k);

	return x->device ? te__device_add(x->n, x->stream, &p, k) : 0;
}

static int spread_piece(const struct run *x, int64_t k)
{
	const struct te__piece p = piece_of(x, k);

	return x->device ? te__device_spread(x->n, x->stream, &p, k) : 0;
}

static int end_piece(const struct run *x, int64_t k)
{
	const struct te__piece p = piece_of(x, k);
	const int like = te__nodes_like(p.what), root = p.root == x->n->rank;
	int r = te_host_call(x->stream, wait_for, x->n, 0);

	if (r || ((p.what == TE_K_COLL_REDUCE || p.what == TE_K_COLL_GATHER) && !root))
		return r;
	if (p.what == TE_K_COLL_REDUCE_SCATTER || p.what == TE_K_COLL_SCATTER)
		return copy_part(x, &p, p.what == TE_K_COLL_SCATTER && root ?
						in_of(x, p.slot) : result_of(x, p.slot));
	for (int32_t i = 0; i < x->n->nranks && !r && like == TE_K_COLL_ALL_GATHER; i++)
		r = copy(x, at(x, x->c->out, i * p.count + p.lo), te__nodes_far(x->n, p.slot, i),
			 p.n);
	if (like == TE_K_COLL_ALL_GATHER || (like == TE_K_COLL_BROADCAST && root))
		return r;
	return copy(x, at(x, x->c->out, p.lo), result_of(x, p.slot), p.n);
}

static struct run run_of(const struct te__nodes *n, const struct te__nodes_call *c)
{
	const int64_t es = (int64_t)te_dtype_nbytes(c->dtype);

	return (struct run){
		.n = (struct te__nodes *)(uintptr_t)n,
		.c = c,
		.es = es,
		.nelems = c->count * (c->what == TE_K_COLL_REDUCE_SCATTER ||
						      c->what == TE_K_COLL_SCATTER ?
					      n->nranks :
					      1),
		.each = te__nodes_is_device(n, c->algorithm) ? te__device_each(n, es) :
								(int64_t)n->piece / es,
		.device = te__nodes_is_device(n, c->algorithm),
	};
}

int te__nodes_queue(struct te__nodes *n, struct te_stream *stream, const struct te__nodes_call *c)
{
	/* steps of the pieces in the slots, the latest piece first */
	static int (*const step[TE__NODES_DEPTH])(const struct run *x, int64_t k) = {
		begin_piece, add_piece, spread_piece, end_piece,
	};
	struct run x = run_of(n, c);
	const int64_t npieces = (x.nelems + x.each - 1) / x.each;
	int r = 0;

	x.stream = stream;
	for (int64_t k = 0; k < npieces + TE__NODES_DEPTH - 1 && !r; k++)
		for (int i = 0; i < TE__NODES_DEPTH && !r; i++)
			if (k >= i && k - i < npieces)
				r = step[i](&x, k - i);
	/* a part of the operation is queued, and may run; a capture is invalid */
	if (r && !te__stream_not_capturing(stream, NULL)) {
		char why[240];

		snprintf(why, sizeof(why), "%s: %.150s", te__boot_peer(n->boot, n->rank),
			 te_error_detail());
		te__nodes_fail(n, -TE_EABORT, why);
	}
	return r;
}

void te__nodes_cost(const struct te__nodes *n, const struct te__nodes_call *c, uint64_t *ret_nsent,
		    int32_t *ret_npieces)
{
	const struct run x = run_of(n, c);
	const int64_t npieces = (x.nelems + x.each - 1) / x.each;
	const int last = n->node == n->nnodes - 1;
	uint64_t nsent = 0;

	for (int64_t k = 0; k < npieces && n->local < n->nrails; k++) {
		const struct te__piece p = piece_of(&x, k);
		int64_t lo;
		const uint64_t part = (uint64_t)te__nodes_part(n, &p, n->local, &lo);

		if (c->algorithm == TE_COMM_CHAIN)
			nsent += part * ((last ? 0 : 4) + (n->node ? (uint64_t)x.es : 0));
		else
			nsent += part * (uint64_t)x.es * (uint64_t)n->nlocal *
				 (uint64_t)(n->nnodes - 1);
	}
	*ret_nsent = nsent;
	*ret_npieces = (int32_t)npieces;
}
