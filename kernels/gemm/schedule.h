/*
 * schedule.h - which cluster computes what of a GEMM of sm90.cu, for C and CUDA.
 *
 * D is divided into tiles. A work unit is a range of k steps of one tile. A schedule is a list of
 * levels: the units of a level have the same number of k steps, so that clusters that run them
 * concurrently read the same part of k, and share what they read in L2. A cluster runs its units
 * level by level.
 *
 * Whole tiles come first. Tiles that do not fill a last wave are cut along k as Euclid's algorithm
 * does with two numbers: with r tiles for c clusters, c / r slices of each tile begin at the first
 * k step, each as long as the share of a cluster; the other c % r clusters compute the rest of k
 * of all r tiles, which is the same problem with fewer clusters.
 *
 * A unit that is not a whole tile stores FP32 sums, one slot a unit. The cluster that finishes the
 * last unit of a tile adds the slots of the tile in the order of k, whichever cluster this is.
 */
#ifndef TE_GEMM_SCHEDULE_H
#define TE_GEMM_SCHEDULE_H

#include <stdint.h>

#ifdef __CUDACC__
#define TE_SCHEDULE_FN static __device__ __forceinline__
#else
#define TE_SCHEDULE_FN static inline
#endif

#define GEMM_LEVELS 8
#define GEMM_GROUP 8 /* rows of tiles that a wave covers before the next column of tiles */

/*
 * Units are numbered by slice, then by tile. Cluster c runs the units c - cluster, c - cluster +
 * nclusters and so on.
 */
struct te_gemm_level {
	int32_t tile, ntiles; /* the first tile, and their number */
	int32_t k, step, end; /* first k step, steps of a slice, end of the last slice */
	int32_t nslices;
	int32_t cluster, nclusters; /* the first cluster, and their number */
	int32_t slot;		    /* the first unit's */
};

struct te_gemm_schedule {
	int32_t nlevels;
	int32_t nslots; /* slots for FP32 sums; 0: all tiles are whole */
	struct te_gemm_level level[GEMM_LEVELS];
};

struct te_gemm_unit {
	int32_t tile, k, end; /* k steps k to end - 1 */
	int32_t slot;
};

/* ntiles, nsteps (of k), nclusters: at least 1; max_slots: limit of nslots, may be 0 */
void te__gemm_schedule(int64_t ntiles, int64_t nsteps, int64_t nclusters, int64_t max_slots,
		       struct te_gemm_schedule *ret);

/* the i-th unit of a cluster in a level: 1, or 0 if it has no such unit */
TE_SCHEDULE_FN int te_gemm_unit(const struct te_gemm_level *l, int32_t cluster, int32_t i,
				struct te_gemm_unit *ret)
{
	const int32_t own = cluster - l->cluster, at = own + i * l->nclusters;
	int32_t slice;

	if (own < 0 || own >= l->nclusters || at >= l->nslices * l->ntiles)
		return 0;
	slice = at / l->ntiles;
	ret->tile = l->tile + at % l->ntiles;
	ret->k = l->k + slice * l->step;
	ret->end = ret->k + l->step < l->end ? ret->k + l->step : l->end;
	ret->slot = l->slot + at;
	return 1;
}

/* number of slices of a tile that a level has, the slots of which are ntiles apart; *slot: first */
TE_SCHEDULE_FN int32_t te_gemm_slices(const struct te_gemm_level *l, int32_t tile, int32_t *slot)
{
	if (tile < l->tile || tile >= l->tile + l->ntiles)
		return 0;
	*slot = l->slot + tile - l->tile;
	return l->nslices;
}

/* number of units of a tile */
TE_SCHEDULE_FN int32_t te_gemm_nparts(const struct te_gemm_schedule *s, int32_t tile)
{
	int32_t n = 0, slot;

	for (int32_t i = 0; i < s->nlevels; i++)
		n += te_gemm_slices(&s->level[i], tile, &slot);
	return n;
}

/* row and column of a tile among nrows x ncols: columns of up to GEMM_GROUP tiles */
TE_SCHEDULE_FN void te_gemm_tile(int32_t tile, int32_t nrows, int32_t ncols, int32_t *row,
				 int32_t *col)
{
	const int32_t first = tile / (GEMM_GROUP * ncols) * GEMM_GROUP;
	const int32_t left = nrows - first, height = left < GEMM_GROUP ? left : GEMM_GROUP;
	const int32_t at = tile - first * ncols;

	*row = first + at % height;
	*col = at / height;
}

#endif
