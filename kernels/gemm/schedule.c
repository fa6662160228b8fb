/* schedule.c - work units of sm90.cu: the levels of a schedule, see schedule.h. */
#include "config.h"

#include <string.h>

#include "kernels/gemm/schedule.h"

/*
 * Estimates in k steps, not measured: cutting tiles pays if a cluster is spared more than GAIN
 * steps and more than 1 / SHARE of its steps; storing a unit's sums and adding them takes PART.
 */
#define GAIN 16
#define SHARE 20
#define PART 6

static int64_t ceil_of(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* the largest q with q * q * PART <= nsteps, at least 1: nsteps / q + q * PART is then smallest */
static int64_t most_slices(int64_t nsteps)
{
	int64_t q = 1;

	while ((q + 1) * (q + 1) * PART <= nsteps)
		q++;
	return q;
}

/* the tiles, k steps and clusters for which there is no level yet */
struct rest {
	int64_t tile, ntiles, k, end, cluster, nclusters;
};

static void append(struct te_gemm_schedule *s, const struct rest *r, int64_t ntiles, int64_t step,
		   int64_t nslices, int64_t nclusters)
{
	const int64_t end = r->k + step * nslices;
	struct te_gemm_level *l = &s->level[s->nlevels++];

	l->tile = (int32_t)r->tile;
	l->ntiles = (int32_t)ntiles;
	l->k = (int32_t)r->k;
	l->step = (int32_t)step;
	l->end = (int32_t)(end < r->end ? end : r->end);
	l->nslices = (int32_t)nslices;
	l->cluster = (int32_t)r->cluster;
	l->nclusters = (int32_t)nclusters;
	l->slot = s->nslots;
	if (r->k || l->end < r->end || nslices > 1)
		s->nslots += (int32_t)(ntiles * nslices);
}

/* r has fewer tiles than clusters; limit: steps of a cluster over its share that may remain */
static void cut(struct te_gemm_schedule *s, struct rest *r, int64_t limit)
{
	const int64_t nsteps = r->end - r->k, most = most_slices(nsteps);
	const int64_t share = ceil_of(r->ntiles * nsteps, r->nclusters);
	int64_t q = r->nclusters / r->ntiles;

	if (nsteps - share <= limit) {
		append(s, r, r->ntiles, nsteps, 1, r->ntiles);
		r->ntiles = 0;
		return;
	}
	if (q >= most || q * r->ntiles == r->nclusters || q * share >= nsteps) {
		const int64_t step = ceil_of(nsteps, q < most ? q : most);

		q = ceil_of(nsteps, step); /* no slice is empty */
		append(s, r, r->ntiles, step, q, q * r->ntiles);
		r->ntiles = 0;
		return;
	}
	append(s, r, r->ntiles, share, q, q * r->ntiles);
	r->k += q * share;
	r->cluster += q * r->ntiles;
	r->nclusters -= q * r->ntiles;
}

static void divide(int64_t ntiles, int64_t nsteps, int64_t nclusters, int max_levels,
		   struct te_gemm_schedule *s)
{
	struct rest r = { .ntiles = ntiles, .end = nsteps, .nclusters = nclusters };
	const int64_t share = ntiles * nsteps / nclusters;
	const int64_t limit = share / SHARE > GAIN ? share / SHARE : GAIN;

	memset(s, 0, sizeof(*s));
	while (r.ntiles) {
		const int64_t waves = r.ntiles / r.nclusters, whole = waves * r.nclusters;

		if (s->nlevels + 1 == max_levels) {
			append(s, &r, r.ntiles, r.end - r.k, 1, r.nclusters);
			break;
		}
		if (!waves) {
			cut(s, &r, limit);
			continue;
		}
		append(s, &r, whole, r.end - r.k, 1, r.nclusters);
		r.tile += whole;
		r.ntiles -= whole;
	}
}

void te__gemm_schedule(int64_t ntiles, int64_t nsteps, int64_t nclusters, int64_t max_slots,
		       struct te_gemm_schedule *ret)
{
	for (int n = GEMM_LEVELS; n > 0; n--) {
		divide(ntiles, nsteps, nclusters, n, ret);
		if (ret->nslots <= max_slots)
			return;
	}
}
