/* comm.c - te_comm_create(3): communicators. */
#include "config.h"

#define TE_LOG_CATEGORY "comm"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libtecomm/collective/comm.h"

/* create the pool, and the link between ranks that cannot map memory */
static int build(struct te_comm *c, const struct te_comm_opts *o,
		 const struct te__coll_terms *terms)
{
	struct te__coll_terms t = *terms;
	size_t piece = 0, packets, device_at = 0;
	int r;

	if (te__boot_nnodes(c->boot) > 1 && !t.fabric) {
		piece = te__nodes_piece(c->boot);
		/* packets are for ranks that map it */
		t.buffer_nbytes = te_k_comm_headers_nbytes(TE_K_COMM_RANKS);
		t.nlanes = 0;
	}
	packets = te__coll_packets(&t, c->boot);
	if (piece && t.device_sums && te__nodes_contiguous(c->boot)) {
		device_at = (packets + TE__NODES_ALIGN - 1) / TE__NODES_ALIGN * TE__NODES_ALIGN;
		packets = device_at + te__nodes_device(c->boot, piece);
	}
	r = te__pool_create(c->boot, c->ctx, o->pool_nbytes, packets,
			    !t.reach.why[TE__REACH_NVLS][0], t.fabric,
			    piece ? te__nodes_stage(c->boot, piece) : 0, &c->pool);
	if (!r)
		r = te__coll_init(&c->coll, c->boot, c->pool, c->name, &t);
	return r || !piece ? r : te__nodes_create(c->boot, c->pool, &t.reach, piece, device_at,
						  &c->coll.nodes);
}

/* if memory cannot be mapped, try the next transport, unless one is requested by name */
static int build_by_any(struct te_comm *c, const struct te_comm_opts *o,
			struct te__coll_terms *terms)
{
	int code;
	int r = build(c, o, terms);

	if (!r || !terms->fabric || c->pool || te__boot_why(c->boot, &code) ||
	    te__reach_wanted() == TE__REACH_FABRIC)
		return r;
	te__log_warn("%s: memory of other nodes is not mapped, since: %s", c->name,
		     te_error_detail());
	terms->fabric = false;
	return build(c, o, terms);
}

int te__comm_create(struct te_ctx *ctx, const struct te_comm_opts *o,
		    const struct te__boot_from *from, struct te_comm **ret_comm)
{
	struct te_comm *c = te__calloc(1, sizeof(*c));
	struct te__coll_terms terms;
	int r;

	if (!c)
		return te__fail(-ENOMEM, "te_comm_create: not enough memory");
	atomic_init(&c->refs, 1);
	c->ctx = te_ctx_ref(ctx);
	snprintf(c->name, sizeof(c->name), "%s", o->name ? o->name : "comm");
	r = from ? te__boot_reopen(from, o, &c->boot) : te__boot_open(o, &c->boot);
	if (!r)
		r = te__coll_agree(c->ctx, c->boot, c->name, &c->table, &terms);
	c->coll.table = &c->table;
	if (!r)
		r = build_by_any(c, o, &terms);
	if (r) {
		char why[512];

		snprintf(why, sizeof(why), "%s", te_error_detail());
		te_comm_unref(c);
		return te__fail(r, "%s", why); /* closing may have recorded other messages */
	}
	c->created = 1;
	*ret_comm = c;
	return 0;
}

int te_comm_create(struct te_ctx *ctx, const struct te_comm_opts *opts, struct te_comm **ret_comm)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	int r = opts ? te__sized_in("te_comm_create", te_comm_opts, opts, &o) : 0;

	if (r)
		return r;
	if (!ctx || !ret_comm)
		return te__fail(-EINVAL, "te_comm_create: %s is NULL",
				ctx ? "ret_comm" : "ctx");
	return te__comm_create(ctx, &o, NULL, ret_comm);
}

struct te_comm *te_comm_ref(struct te_comm *c)
{
	if (c)
		atomic_fetch_add(&c->refs, 1);
	return c;
}

struct te_comm *te_comm_unref(struct te_comm *c)
{
	int r;

	if (!c || atomic_fetch_sub(&c->refs, 1) > 1)
		return NULL;
	/* connections and threads belong to the parent, which continues */
	if (te__ctx_forked(c->ctx)) {
		te_ctx_unref(c->ctx);
		te__free(c);
		return NULL;
	}
	if (c->pool) {
		/* its operations may wait for ranks that have ended */
		if (te__pool_aborted(c->pool))
			c->nccl = te__nccl_destroy(c->nccl, 1);
		r = te__ctx_drain(c->ctx, "te_comm_unref");
		if (r == -EBUSY) {
			te__log_warn("%s: its memory is kept until the process ends: %s", c->name,
				     te_error_detail());
			return NULL;
		}
		if (!r && c->created)
			te__pool_leave(c->pool);
		c->nccl = te__nccl_destroy(c->nccl, te__pool_aborted(c->pool));
		c->coll.nodes = te__nodes_destroy(c->coll.nodes);
		te__coll_fini(&c->coll);
	}
	te__pool_destroy(c->pool);
	te__boot_close(c->boot);
	te_ctx_unref(c->ctx);
	te__free(c);
	return NULL;
}

int te_comm_rank(const struct te_comm *c)
{
	return c ? te__boot_rank(c->boot) : te__fail(-EINVAL, "te_comm_rank: comm is NULL");
}

int te_comm_nranks(const struct te_comm *c)
{
	return c ? te__boot_nranks(c->boot) : te__fail(-EINVAL, "te_comm_nranks: comm is NULL");
}

int te_comm_info(const struct te_comm *c, struct te_comm_info *ret_info)
{
	struct te_comm_info info = TE_COMM_INFO_INIT;
	const int32_t rank = te_comm_rank(c);
	int r = rank < 0 ? rank : te__sized_check("te_comm_info", te_comm_info, ret_info);

	if (r)
		return r;
	info.rank = rank;
	info.nranks = te__boot_nranks(c->boot);
	info.node = te__boot_node(c->boot, rank);
	info.nnodes = te__boot_nnodes(c->boot);
	info.local_rank = te__boot_local_rank(c->boot, rank);
	info.nlocal = te__boot_nlocal(c->boot);
	memcpy(info.name, c->name, sizeof(info.name));
	snprintf(info.bootstrap, sizeof(info.bootstrap), "%s", te__boot_provider(c->boot));
	if (c->coll.nodes)
		snprintf(info.transport, sizeof(info.transport), "%s",
			 te__nodes_transport(c->coll.nodes));
	else if (c->coll.terms.fabric)
		snprintf(info.transport, sizeof(info.transport), "fabric");
	te__sized_out(te_comm_info, &info, ret_info);
	return 0;
}

/* -1: the environment has none */
static int launch_rank(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
					     "MPI_LOCALRANKID" };
	int rank = (int)te__param_int(TE_PARAM_COMM_LOCAL_RANK);

	if (rank < 0 && te__env("TE_COMM_DIR"))
		rank = (int)te__param_int(TE_PARAM_COMM_RANK);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && rank < 0; i++) {
		const char *text = te__env(names[i]);

		rank = text ? atoi(text) : -1;
	}
	return rank;
}

int te_comm_launch_device(const char *backend)
{
	static const char *const names[] = { "auto", "host", "cuda" };
	const char *want = backend ? backend : names[te__param_enum(TE_PARAM_BACKEND)];
	const int rank = launch_rank();
	struct te_backend_info b;

	for (int i = 0; i < te_backend_count() && rank > 0; i++) {
		b = (struct te_backend_info)TE_BACKEND_INFO_INIT;
		/* "auto" takes the first with a device */
		if (te_backend_info(i, &b) || b.ndevices < 1)
			continue;
		if (!strcmp(want, "auto") || !strcmp(want, b.name))
			return rank % b.ndevices;
	}
	return 0;
}

void te_comm_abort(struct te_comm *c, const char *why)
{
	if (c)
		te__pool_abort(c->pool, -TE_EABORT, why ? why : "te_comm_abort");
}
