/* choose.c - te_comm_explain(3): which algorithm an all-reduce is run by, and in which pieces. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/launch.h"
#include "libtecomm/collective/collective.h"

/* a row for each enum te_comm_algorithm */
static const struct {
	const char *name;
	int32_t kernel;
	int floats; /* 1: floating types only */
} algorithms[] = {
	[TE_COMM_AUTO] = { "auto", -1, 0 },
	[TE_COMM_LL] = { "ll", TE_K_COMM_L1, 0 },
	[TE_COMM_ONE_SHOT] = { "oneshot", TE_K_COMM_P1, 1 },
	[TE_COMM_TWO_SHOT] = { "twoshot", TE_K_COMM_P2, 1 },
	[TE_COMM_ZERO_COPY] = { "zerocopy", TE_K_COMM_S, 0 },
	[TE_COMM_STAGED] = { "staged", TE_K_COMM_R, 0 },
	[TE_COMM_NCCL] = { "nccl", -1, 0 },
	[TE_COMM_NVLS] = { "nvls", TE_K_COMM_M, 1 },
	[TE_COMM_NVLS_ONE_SHOT] = { "nvls-oneshot", TE_K_COMM_M1, 1 },
};
#define NALGORITHMS ((int)(sizeof(algorithms) / sizeof(algorithms[0])))

const char *te_comm_algorithm_name(enum te_comm_algorithm a)
{
	return (unsigned)a < (unsigned)NALGORITHMS ? algorithms[a].name : NULL;
}

const char *te__coll_kernel_name(int32_t kernel)
{
	for (int i = 0; i < NALGORITHMS; i++)
		if (algorithms[i].kernel == kernel)
			return algorithms[i].name;
	return NULL;
}

/* the most bytes of a launch, a multiple of 16; 0: packet memory does not limit it */
static int64_t fits(const struct te__coll *c, int32_t kernel)
{
	const int64_t n = te__boot_nranks(c->boot);
	const int64_t packets =
		(c->terms.half_nbytes - TE_K_COMM_HEADERS_NBYTES) / TE_K_COMM_PACKET;

	switch (kernel) {
	case TE_K_COMM_L1:
		return packets / (2 * n) * TE_K_COMM_PACKET;
	case TE_K_COMM_P1:
	case TE_K_COMM_M1:
		return packets / n * TE_K_COMM_PACKET;
	case TE_K_COMM_P2:
		return packets / (2 * n) * n * TE_K_COMM_PACKET;
	default:
		return 0;
	}
}

struct asked {
	enum te_k_comm_collective what;
	int64_t nbytes; /* of count elements */
	int integers;
	uint32_t arrays; /* TE__COLL_* */
};

static enum te_comm_algorithm choose_auto(const struct te__coll *c, const struct asked *a,
					  int32_t *ret_max_blocks, char *why, size_t n)
{
	const int32_t nranks = te__boot_nranks(c->boot);
	/* others than all-reduce have no algorithm for floating types alone */
	const int floats = !a->integers && a->what == TE_K_COLL_ALLREDUCE;
	const int symmetric = (a->arrays & TE__COLL_SYMMETRIC) != 0;
	const struct te__table_row *row;
	char most[48] = "larger arrays";

	*ret_max_blocks = 0;
	if (nranks == 1) {
		snprintf(why, n, "there is one rank: a copy");
		return TE_COMM_ZERO_COPY;
	}
	row = te__table_find(c->table, nranks, floats, symmetric, a->nbytes);
	while (row->algorithm == TE_COMM_LL && a->nbytes > fits(c, TE_K_COMM_L1))
		row = te__table_find(c->table, nranks, floats, symmetric, row->nbytes + 1);
	if (row->nbytes != TE__TABLE_REST)
		snprintf(most, sizeof(most), "at most %lld bytes", (long long)row->nbytes);
	snprintf(why, n, "%s among %d ranks, %s, %s%s%.80s", most, nranks,
		 floats ? "floating types" : "any type",
		 symmetric ? "symmetric memory" : "any memory", c->table->path[0] ? ": " : "",
		 c->table->path);
	*ret_max_blocks = row->max_blocks;
	return row->algorithm;
}

enum te_comm_algorithm te__coll_latency(const struct te__coll *c, int64_t nbytes)
{
	const int asked = te__param_enum(TE_PARAM_COMM_ALGO);
	enum te_comm_algorithm k;

	if (asked)
		return (enum te_comm_algorithm)asked;
	k = te__table_find(c->table, te__boot_nranks(c->boot), 1, 0, nbytes)->algorithm;
	return k == TE_COMM_ONE_SHOT || k == TE_COMM_TWO_SHOT ? k : TE_COMM_AUTO;
}

/* one that the caller or TE_COMM_ALGO names */
static int check_forced(const struct te__coll *c, const char *fn, enum te_comm_algorithm k,
			const struct asked *a)
{
	if (a->what != TE_K_COLL_ALLREDUCE && (algorithms[k].floats || algorithms[k].kernel < 0))
		return te__fail(-EOPNOTSUPP, "%s: there is no algorithm %s, only ll, zerocopy and "
				"staged", fn, algorithms[k].name);
	if (algorithms[k].floats && a->integers)
		return te__fail(-EOPNOTSUPP, "%s: algorithm %s takes floating types only", fn,
				algorithms[k].name);
	if ((k == TE_COMM_NVLS || k == TE_COMM_NVLS_ONE_SHOT) && c->terms.nvls_why[0])
		return te__fail(-EOPNOTSUPP, "%s: algorithm %s: %s", fn, algorithms[k].name,
				c->terms.nvls_why);
	if (k == TE_COMM_NVLS && !(a->arrays & TE__COLL_NVLS))
		return te__fail(-EOPNOTSUPP, "%s: algorithm %s takes sums and averages of FP32, "
				"BF16 and FP16 in arrays that are aligned to %d bytes", fn,
				algorithms[k].name, TE_K_COMM_PACKET);
	if ((k == TE_COMM_ZERO_COPY || k == TE_COMM_NVLS) && !(a->arrays & TE__COLL_SYMMETRIC))
		return te__fail(-EOPNOTSUPP, "%s: algorithm %s needs in and out in symmetric "
				"memory (te_comm_alloc)", fn, algorithms[k].name);
	return 0;
}

int te__coll_choose(const struct te__coll *c, const char *fn, enum te_k_comm_collective what,
		    int64_t count, enum te_dtype dtype, uint32_t arrays,
		    const struct te_comm_call_opts *opts, struct te__coll_choice *ret)
{
	const int64_t es = (int64_t)te_dtype_nbytes(dtype);
	const int integers = dtype == TE_DTYPE_INT32 || dtype == TE_DTYPE_UINT8;
	const struct asked a = { what, count * es, integers, arrays };
	enum te_comm_algorithm k = opts->algorithm;
	int32_t max_blocks = 0;
	int64_t most;
	int r = 0;

	if ((unsigned)k >= (unsigned)NALGORITHMS)
		return te__fail(-EINVAL, "%s: algorithm %d is unknown", fn, (int)k);
	snprintf(ret->reason, sizeof(ret->reason), "asked for by the call");
	if (!k) {
		k = (enum te_comm_algorithm)te__param_enum(TE_PARAM_COMM_ALGO);
		snprintf(ret->reason, sizeof(ret->reason), "TE_COMM_ALGO");
	}
	if (te__boot_nranks(c->boot) == 1)
		k = TE_COMM_AUTO;
	if (k)
		r = check_forced(c, fn, k, &a);
	else
		k = choose_auto(c, &a, &max_blocks, ret->reason, sizeof(ret->reason));
	if (r)
		return r;
	ret->algorithm = k;
	ret->kernel = algorithms[k].kernel;
	ret->max_blocks = c->terms.max_blocks;
	if (max_blocks && max_blocks < ret->max_blocks)
		ret->max_blocks = max_blocks;
	if (opts->max_blocks && opts->max_blocks < ret->max_blocks)
		ret->max_blocks = opts->max_blocks;
	most = fits(c, ret->kernel);
	ret->each = most && a.nbytes > most ? most / es : count;
	if (ret->each < count && what != TE_K_COLL_ALLREDUCE && what != TE_K_COLL_BROADCAST)
		return te__fail(-EOPNOTSUPP, "%s: %lld elements do not fit into packet memory, of "
				"which algorithm %s has room for %lld", fn, (long long)count,
				algorithms[k].name, (long long)ret->each);
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
