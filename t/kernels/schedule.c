/*
 * t/kernels/schedule.c - schedules of sm90.cu: every k step of every tile is in one unit, and no
 * cluster has many more than its share.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/gemm/schedule.h"
#include "libtecore/base/splitmix64.h"
#include "tt.h"

#define CLUSTERS 66 /* of two multiprocessors of an H100 or H200 */
#define SLOTS 127   /* 32 MiB of tiles of 256 x 256 sums */

static int ceil_of(int a, int b)
{
	return (a + b - 1) / b;
}

/* k steps of the cluster with most of them; checks that units cover all tiles exactly */
static int64_t most_steps(int ntiles, int nsteps, int nclusters, const struct te_gemm_schedule *s)
{
	uint8_t *done = calloc((size_t)ntiles, (size_t)nsteps);
	uint8_t *slot = calloc((size_t)s->nslots + 1, 1);
	int64_t *load = calloc((size_t)nclusters, sizeof(*load));
	int64_t most = 0, sum = 0;
	struct te_gemm_unit u;

	ck_assert_int_ge(s->nlevels, 1);
	ck_assert_int_le(s->nlevels, GEMM_LEVELS);
	for (int l = 0; l < s->nlevels; l++)
		for (int c = 0; c < nclusters; c++)
			for (int i = 0; te_gemm_unit(&s->level[l], c, i, &u); i++) {
				ck_assert(u.tile >= 0 && u.tile < ntiles);
				ck_assert(u.k >= 0 && u.k < u.end && u.end <= nsteps);
				for (int k = u.k; k < u.end; k++)
					ck_assert_int_eq(done[u.tile * nsteps + k]++, 0);
				load[c] += u.end - u.k;
				if (te_gemm_nparts(s, u.tile) == 1)
					continue;
				ck_assert(u.slot >= 0 && u.slot < s->nslots);
				ck_assert_int_eq(slot[u.slot]++, 0);
			}
	for (int c = 0; c < nclusters; c++) {
		most = load[c] > most ? load[c] : most;
		sum += load[c];
	}
	ck_assert_int_eq(sum, (int64_t)ntiles * nsteps);
	for (int i = 0; i < s->nslots; i++)
		ck_assert_int_eq(slot[i], 1);
	free(done);
	free(slot);
	free(load);
	return most;
}

/* the slots of a tile, in the order of its levels and slices, are sums of ascending k */
static void check_order(int ntiles, int nclusters, const struct te_gemm_schedule *s)
{
	int *k_of = calloc((size_t)s->nslots + 1, sizeof(*k_of));
	struct te_gemm_unit u;

	for (int l = 0; l < s->nlevels; l++)
		for (int c = 0; c < nclusters; c++)
			for (int i = 0; te_gemm_unit(&s->level[l], c, i, &u); i++)
				if (te_gemm_nparts(s, u.tile) > 1)
					k_of[u.slot] = u.k;
	for (int t = 0; t < ntiles; t++) {
		int k = -1, slot = 0, n;

		if (te_gemm_nparts(s, t) == 1)
			continue;
		for (int l = 0; l < s->nlevels; l++) {
			n = te_gemm_slices(&s->level[l], t, &slot);
			for (int i = 0; i < n; i++, slot += s->level[l].ntiles) {
				ck_assert_int_gt(k_of[slot], k);
				k = k_of[slot];
			}
		}
	}
	free(k_of);
}

CASE(schedule, "host numeric");

TEST(schedule, every_step_is_in_one_unit)
{
	uint64_t state = tt_seed();

	for (int n = 0; n < TT_FEWER(400); n++) {
		const int ntiles = 1 + (int)(te__splitmix64(&state) % 300);
		const int nsteps = 1 + (int)(te__splitmix64(&state) % 200);
		const int nclusters = 1 + (int)(te__splitmix64(&state) % 70);
		const int max = (int)(te__splitmix64(&state) % 200);
		struct te_gemm_schedule s;

		te__gemm_schedule(ntiles, nsteps, nclusters, max, &s);
		ck_assert_int_le(s.nslots, max);
		most_steps(ntiles, nsteps, nclusters, &s);
		check_order(ntiles, nclusters, &s);
	}
}

/*
 * A cluster has at most 5 % or 16 steps more than its share, and a step of each level, unless the
 * last tiles would be cut into more slices than adding their sums is worth.
 */
TEST(schedule, clusters_have_equal_shares)
{
	static const int steps[] = { 24, 64, 128, 400, 512, 1000 };

	for (int ntiles = 1; ntiles < TT_FEWER(300); ntiles++)
		for (size_t i = 0; i < TT_LEN(steps); i++) {
			const int nsteps = steps[i];
			const double share = (double)ntiles * nsteps / CLUSTERS;
			const double over = share / 20 > 16 ? share / 20 : 16;
			const struct te_gemm_level *last;
			struct te_gemm_schedule s;
			int64_t most, extra = 0;

			te__gemm_schedule(ntiles, nsteps, CLUSTERS, 4 * CLUSTERS, &s);
			most = most_steps(ntiles, nsteps, CLUSTERS, &s);
			last = &s.level[s.nlevels - 1];
			if (last->cluster + last->nclusters < CLUSTERS && last->nslices > 1)
				extra = last->step;
			ck_assert_msg((double)(most - extra) <= share + over + GEMM_LEVELS,
				      "%d tiles of %d steps: %d, share %g", ntiles, nsteps,
				      (int)most, share);
			ck_assert_int_le(most, ceil_of(ntiles, CLUSTERS) * nsteps);
		}
}

/* weight gradient of 3072 x 768 with 32768 rows, in tiles of 256 x 256 and steps of 64 */
TEST(schedule, a_weight_gradient_is_cut_by_levels)
{
	struct te_gemm_schedule s;

	te__gemm_schedule(36, 512, CLUSTERS, SLOTS, &s);
	ck_assert_int_eq(s.nlevels, 3);
	ck_assert_int_eq(s.level[0].step, 280); /* 36 * 512 / 66, rounded up */
	ck_assert_int_eq(s.level[0].nclusters, 36);
	ck_assert_int_eq(s.level[1].k, 280);
	ck_assert_int_eq(s.level[1].ntiles, 30);
	ck_assert_int_eq(s.level[1].nclusters, 30);
	ck_assert_int_eq(s.level[2].tile, 30);
	ck_assert_int_eq(s.level[2].ntiles, 6);
	ck_assert_int_eq(s.level[2].nslices, 5);
	ck_assert_int_eq(s.nslots, 36 + 30 + 30);
}

TEST(schedule, whole_waves_are_not_cut)
{
	struct te_gemm_schedule s;

	te__gemm_schedule(3 * CLUSTERS, 64, CLUSTERS, SLOTS, &s);
	ck_assert_int_eq(s.nlevels, 1);
	ck_assert_int_eq(s.nslots, 0);
	te__gemm_schedule(CLUSTERS - 1, 64, CLUSTERS, SLOTS, &s);
	ck_assert_int_eq(s.nslots, 0);
	te__gemm_schedule(36, 512, CLUSTERS, 0, &s); /* no memory for sums */
	ck_assert_int_eq(s.nslots, 0);
}

TEST(schedule, tiles_are_numbered_by_groups)
{
	for (int nrows = 1; nrows < 20; nrows++)
		for (int ncols = 1; ncols < 12; ncols++) {
			uint8_t seen[20 * 12] = { 0 };

			for (int t = 0; t < nrows * ncols; t++) {
				int row, col;

				te_gemm_tile(t, nrows, ncols, &row, &col);
				ck_assert(row >= 0 && row < nrows && col >= 0 && col < ncols);
				ck_assert_int_eq(seen[row * ncols + col]++, 0);
				ck_assert_int_eq(row / GEMM_GROUP, t / (GEMM_GROUP * ncols));
			}
		}
}

TT_MAIN("kernels/schedule", TT_NEED_NOTHING)
