/* recover.c - te_comm_recover(3): a communicator of the ranks that are left after a failure. */
#include "config.h"

#define TE_LOG_CATEGORY "comm"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/collective/comm.h"

static const char fn[] = "te_comm_recover";

static int check(const struct te_comm *c, const struct te_comm_recover_opts *o, const void *ret)
{
	if (!c || !ret)
		return te__fail(-EINVAL, "%s: %s is NULL", fn, c ? "ret_comm" : "comm");
	if (o->flags || o->timeout_ms < 0)
		return te__fail(-EINVAL, "%s: %s: flags 0x%x, timeout_ms %d, expected 0 and 0 or "
				"more", fn, c->name, o->flags, o->timeout_ms);
	if (c->recovered)
		return te__fail(-TE_ESTATE, "%s: %s: it has been recovered before", fn, c->name);
	return 0;
}

/* the error of this thread, with the name of the function and the communicator */
static int named(const struct te_comm *c, int code)
{
	return te__fail(code, "%s: %s: %s", fn, c->name, te_error_detail());
}

/* ranks: [n] the ranks of the successor, which succeed or fail together */
static int succeed(struct te_comm *c, const struct te_comm_recover_opts *o, const int32_t *ranks,
		   int32_t n, uint32_t attempt, struct te_comm **ret_comm)
{
	struct te_comm_opts create = TE_COMM_OPTS_INIT;
	struct te_comm_memory m = TE_COMM_MEMORY_INIT;
	const int settled = te__boot_settles(c->boot);
	struct te__boot_from from = { c->boot, settled ? NULL : ranks, fn, { 0 } };
	struct te_comm *next = NULL;
	int r;

	memcpy(from.salt, &attempt, sizeof(attempt));
	te__pool_info(c->pool, &m);
	create.name = c->name;
	create.nranks = n;
	while (ranks[create.rank] != te__boot_rank(c->boot))
		create.rank++;
	create.timeout_ms = te__boot_timeout_ms(c->boot);
	create.pool_nbytes = o->pool_nbytes ? o->pool_nbytes : m.pool_nbytes;
	r = te__comm_create(c->ctx, &create, &from, &next);
	c->recovered = te__pool_succeeded(c->pool, attempt, !r);
	if (r)
		return named(c, r);
	if (!c->recovered) {
		te_comm_unref(next);
		return te__fail(-TE_EABORT, "%s: %s: another rank could not create the new "
				"communicator", fn, c->name);
	}
	*ret_comm = next;
	return 0;
}

int te_comm_recover(struct te_comm *comm, const struct te_comm_recover_opts *opts,
		    int32_t *ret_ranks, struct te_comm **ret_comm)
{
	struct te_comm_recover_opts o = TE_COMM_RECOVER_OPTS_INIT;
	uint32_t attempt;
	int32_t *ranks;
	int64_t ms;
	int r = opts ? te__sized_in(fn, te_comm_recover_opts, opts, &o) : 0;

	if (!r)
		r = check(comm, &o, ret_comm);
	if (r)
		return r;
	ranks = te__calloc((size_t)te__boot_nranks(comm->boot), sizeof(*ranks));
	if (!ranks)
		return te__fail(-ENOMEM, "%s: %s: not enough memory", fn, comm->name);
	ms = o.timeout_ms ? o.timeout_ms : te__boot_timeout_ms(comm->boot);
	r = te__pool_survivors(comm->pool, te__boot_now() + ms * 1000000, ranks, &attempt);
	if (r < 0)
		r = named(comm, r);
	else
		te__log_info("%s: %d of %d ranks are left", comm->name, r,
			     te__boot_nranks(comm->boot));
	if (r > 0) {
		const int32_t n = r;

		r = succeed(comm, &o, ranks, n, attempt, ret_comm);
		if (!r && ret_ranks)
			memcpy(ret_ranks, ranks, (size_t)n * sizeof(*ranks));
	}
	te__free(ranks);
	return r;
}
