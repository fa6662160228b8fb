/* choose.c - choice of the algorithm and the pieces of an operation, with the reason. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/launch.h"
#include "libtecomm/collective/collective.h"

/* maximum bytes of a launch, a multiple of 16; 0: packet memory does not limit it */
static int64_t fits(const struct te__coll *c, int32_t kernel)
{
	const int64_t n = te__boot_nranks(c->boot), others = n > 1 ? n - 1 : 1;
	const int64_t packets =
		(c->terms.buffer_nbytes - te_k_comm_headers_nbytes((int32_t)n)) / TE_K_COMM_PACKET;

	switch (kernel) {
	case TE_K_COMM_LL:
		return packets / (2 * others) * TE_K_COMM_PACKET;
	case TE_K_COMM_ONE_SHOT:
		return packets / others * TE_K_COMM_PACKET;
	case TE_K_COMM_NVLS_ONE_SHOT:
		return packets / n * TE_K_COMM_PACKET;
	case TE_K_COMM_TWO_SHOT:
		return packets / (2 * others) * n * TE_K_COMM_PACKET;
	default:
		return 0;
	}
}

struct asked {
	enum te_k_comm_collective what;
	enum te_dtype dtype;
	int64_t nbytes; /* bytes of count elements */
	int integers;
	uint32_t arrays; /* TE__COLL_* */
};

/* do its arrays have a part for each rank? */
static int has_parts(const struct asked *a)
{
	return a->what == TE_K_COLL_REDUCE_SCATTER || a->what == TE_K_COLL_ALL_GATHER;
}

/* is there a kernel of this number for the operation? */
static int has_kernel(const struct asked *a, int32_t kernel)
{
	return a->what == TE_K_COLL_ALLREDUCE || kernel == TE_K_COMM_LL ||
	       kernel == TE_K_COMM_ZERO_COPY || kernel == TE_K_COMM_STAGED ||
	       (kernel == TE_K_COMM_ONE_SHOT && has_parts(a));
}

/* adds to the reason, if requested: formatting takes longer than a small operation */
__attribute__((format(printf, 2, 3))) static void say(struct te__coll_choice *ret,
						      const char *format, ...)
{
	const size_t n = ret->explain ? strlen(ret->reason) : 0;
	va_list args;

	if (!ret->explain)
		return;
	va_start(args, format);
	vsnprintf(ret->reason + n, sizeof(ret->reason) - n, format, args);
	va_end(args);
}

static enum te_comm_algorithm choose_auto(const struct te__coll *c, const struct asked *a,
					  struct te__coll_choice *ret)
{
	const int32_t nranks = te__boot_nranks(c->boot);
	/* rows for floating types alone are for all-reduce */
	const int floats = !a->integers && a->what == TE_K_COLL_ALLREDUCE;
	const int symmetric = (a->arrays & TE__COLL_SYMMETRIC) != 0;
	const struct te__table *t = c->table;
	const int host = c->terms.host;
	const struct te__table_row *row;

	if (nranks == 1) {
		say(ret, "there is one rank: a copy");
		return TE_COMM_ZERO_COPY;
	}
	row = te__table_find(t, host, nranks, floats, symmetric, a->nbytes);
	while (row->algorithm == TE_COMM_LL && a->nbytes > fits(c, TE_K_COMM_LL))
		row = te__table_find(t, host, nranks, floats, symmetric, row->nbytes + 1);
	if (row->nbytes != TE__TABLE_REST)
		say(ret, "at most %lld bytes", (long long)row->nbytes);
	else if (row == te__table_find(t, host, nranks, floats, symmetric, 1))
		say(ret, "any size");
	else
		say(ret, "larger arrays");
	say(ret, " among %d ranks, %s, %s%s%.48s", nranks, floats ? "floating types" : "any type",
	    symmetric ? "symmetric memory" : "any memory", t->path[0] ? ": " : "", t->path);
	ret->max_blocks = row->max_blocks;
	if (row->algorithm == TE_COMM_STAGED && has_parts(a) && !a->integers && !host &&
	    a->nbytes <= fits(c, TE_K_COMM_ONE_SHOT)) {
		say(ret, "; parts of floating types fit into packets");
		return TE_COMM_ONE_SHOT;
	}
	return row->algorithm;
}

enum te_comm_algorithm te__coll_latency(const struct te__coll *c, int64_t nbytes)
{
	const int asked = te__param_enum(TE_PARAM_COMM_ALGO);
	enum te_comm_algorithm k;

	if (asked)
		return (enum te_comm_algorithm)asked;
	if (c->nodes) /* rows of the table are for ranks of one node */
		return TE_COMM_AUTO;
	/* a fusion needs kernels of packets, though the host has faster kernels for sums alone */
	k = te__table_find(c->table, 0, te__boot_nranks(c->boot), 1, 0, nbytes)->algorithm;
	return k == TE_COMM_ONE_SHOT || k == TE_COMM_TWO_SHOT ? k : TE_COMM_AUTO;
}

static enum te_comm_algorithm by_nodes(const struct te__coll *c, const struct asked *a,
				       struct te__coll_choice *ret)
{
	const char *no = te__nodes_no_chain(c->nodes, a->what, a->dtype);
	const long long most = TE__NODES_EXCHANGE_MOST;
	const char *by = te__nodes_transport(c->nodes);
	const int32_t nnodes = te__boot_nnodes(c->boot);

	if (no) {
		say(ret, "%d nodes by %s, no chain: %s", nnodes, by, no);
		return TE_COMM_EXCHANGE;
	}
	say(ret, "%d nodes by %s, %s %lld bytes", nnodes, by,
	    a->nbytes > most ? "more than" : "at most", most);
	return a->nbytes > most ? TE_COMM_CHAIN : TE_COMM_EXCHANGE;
}

/* 0, or 1 with the reason why the requested algorithm cannot be used */
static int cannot(const struct te__coll *c, enum te_comm_algorithm k, const struct asked *a,
		  char *why, size_t n)
{
	const char *name = te__algorithms[k].name, *no_nvls = c->terms.reach.why[TE__REACH_NVLS];
	const enum te__carrier carrier = te__algorithms[k].carrier;
	const int64_t room = fits(c, te__algorithms[k].kernel);

	if (c->nodes && k == TE_COMM_CHAIN && te__nodes_no_chain(c->nodes, a->what, a->dtype))
		snprintf(why, n, "algorithm %s: %s", name,
			 te__nodes_no_chain(c->nodes, a->what, a->dtype));
	else if (c->nodes && carrier == TE__BY_KERNELS)
		snprintf(why, n, "algorithm %s is for ranks of one node, and there are %d", name,
			 te__boot_nnodes(c->boot));
	else if (!c->nodes && carrier == TE__BY_NODES)
		snprintf(why, n, "algorithm %s is for nodes that exchange messages", name);
	else if (carrier == TE__BY_NODES)
		return 0;
	else if (!has_kernel(a, te__algorithms[k].kernel))
		snprintf(why, n, "there is no algorithm %s, only ll, %szerocopy and staged", name,
			 has_parts(a) ? "oneshot, " : "");
	else if (te__algorithms[k].floats && a->integers)
		snprintf(why, n, "algorithm %s takes floating types only", name);
	else if ((k == TE_COMM_NVLS || k == TE_COMM_NVLS_ONE_SHOT) && no_nvls[0])
		snprintf(why, n, "algorithm %s: %.200s", name, no_nvls);
	else if (k == TE_COMM_NVLS && !(a->arrays & TE__COLL_NVLS))
		snprintf(why, n, "algorithm %s takes sums and averages of FP32, BF16 and FP16 in "
			 "arrays that are aligned to %d bytes", name, TE_K_COMM_PACKET);
	else if ((k == TE_COMM_ZERO_COPY || k == TE_COMM_NVLS) &&
		 !(a->arrays & TE__COLL_SYMMETRIC))
		snprintf(why, n, "algorithm %s needs in and out in symmetric memory "
			 "(te_comm_alloc)", name);
	else if (has_parts(a) && room && a->nbytes > room)
		snprintf(why, n, "%lld bytes do not fit into packet memory, of which algorithm %s "
			 "has room for %lld", (long long)a->nbytes, name, (long long)room);
	else
		return 0;
	return 1;
}

/* the algorithm of the call, or of the environment if it can be used, or by size */
static int choose(const struct te__coll *c, const char *fn, const struct asked *a,
		  enum te_comm_algorithm by_call, struct te__coll_choice *ret)
{
	const enum te_comm_algorithm env =
		(enum te_comm_algorithm)te__param_enum(TE_PARAM_COMM_ALGO);
	const int alone = te__boot_nranks(c->boot) == 1;
	char why[256];

	ret->max_blocks = 0;
	ret->reason[0] = '\0';
	if (by_call && !alone) {
		ret->algorithm = by_call;
		say(ret, "asked for by the call");
		return cannot(c, by_call, a, why, sizeof(why)) ?
			       te__fail(-EOPNOTSUPP, "%s: %s", fn, why) : 0;
	}
	if (env && !alone && !cannot(c, env, a, why, sizeof(why))) {
		ret->algorithm = env;
		say(ret, "TE_COMM_ALGO");
		return 0;
	}
	if (env && !alone)
		say(ret, "TE_COMM_ALGO: %.70s; ", why);
	ret->algorithm = c->nodes ? by_nodes(c, a, ret) : choose_auto(c, a, ret);
	return 0;
}

int te__coll_choose(const struct te__coll *c, const char *fn, enum te_k_comm_collective what,
		    int64_t count, enum te_dtype dtype, uint32_t arrays,
		    const struct te_comm_call_opts *opts, struct te__coll_choice *ret)
{
	const int64_t es = (int64_t)te_dtype_nbytes(dtype);
	const int integers = dtype == TE_DTYPE_INT32 || dtype == TE_DTYPE_UINT8;
	const struct asked a = { what, dtype, count * es, integers, arrays };
	int64_t most;
	int r;

	if ((unsigned)opts->algorithm >= (unsigned)TE__ALGORITHMS)
		return te__fail(-EINVAL, "%s: algorithm %d is unknown", fn, (int)opts->algorithm);
	r = choose(c, fn, &a, opts->algorithm, ret);
	if (r)
		return r;
	ret->carrier = te__algorithms[ret->algorithm].carrier;
	ret->kernel = te__algorithms[ret->algorithm].kernel;
	if (!ret->max_blocks || ret->max_blocks > c->terms.max_blocks)
		ret->max_blocks = c->terms.max_blocks;
	if (opts->max_blocks && opts->max_blocks < ret->max_blocks)
		ret->max_blocks = opts->max_blocks;
	most = fits(c, ret->kernel);
	ret->each = most && a.nbytes > most ? most / es : count;
	return 0;
}

int te__coll_nblocks(const struct te__coll *c, const struct te__coll_choice *k, int64_t count,
		     enum te_dtype dtype)
{
	struct te_k_comm a = te__coll_args(c);
	struct te__geometry g;

	if (k->kernel < 0)
		return 0;
	a.algorithm = k->kernel;
	a.max_blocks = k->max_blocks;
	a.count = count;
	a.dtype = dtype;
	return te__geometry(TE_K_COMM_ALLREDUCE, &a, &g) ? 0 : (int)g.grid[0];
}
