/* launch.c - launch geometry by kernel id, and helpers of the families' launch.c. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include "kernels/launch.h"
#include "libtecore/base/private.h"

#define MAX_BLOCKS 0x7fffffff

int te__geo_launch(struct te__geometry *k, const char *func, int64_t nblocks, unsigned nthreads)
{
	if (nblocks < 0 || nblocks > MAX_BLOCKS)
		return te__fail(-TE_ESHAPE, "%s: %lld blocks are more than a grid can have", func,
				(long long)nblocks);
	k->func = func;
	k->grid[0] = (unsigned)nblocks;
	k->block[0] = nthreads;
	return 0;
}

int te__geo_no_type(const char *name, int32_t dtype)
{
	return te__fail(-TE_EDTYPE, "%s takes FP32 and BF16, not %s", name,
			te_dtype_name((enum te_dtype)dtype));
}

int te__geo_tiles(struct te__geometry *k, const char *func, int64_t rows, int64_t cols, bool small)
{
	const int64_t nrows = ceil_div(rows, TILE_ROWS);

	if (!small)
		return te__geo_launch(k, func, nrows * ceil_div(cols, TILE_COLS), TILE_THREADS);
	k->grid[1] = (unsigned)nrows;
	return te__geo_launch(k, func, nrows ? ceil_div(cols, TILE_SMALL_COLS) : 0, TILE_THREADS);
}

int te__geo_blocks(struct te__geometry *k, const char *func, int64_t rows, int64_t cols)
{
	return te__geo_launch(k, func, ceil_div(rows, TE_K_BLOCK) * ceil_div(cols, TE_K_BLOCK),
			      BLOCK_THREADS);
}

static te__geometry_fn *const geometry[TE_K_COUNT] = {
#define TE_K(ID, name, args, family, ...) te__geo_##name,
#include "kernels/kernels.def"
#undef TE_K
};

/*
 * Shared memory of a block: CUDA C++ Programming Guide, technical specifications per compute
 * capability. wgmma is in sm_90a only.
 */
struct te__target te__target_of(int arch)
{
	struct te__target t = { .arch = arch, .features = TE_FEATURE_MEM_OPS };

	t.smem_max = arch >= 90 ? 227 << 10 : arch == 80 ? 163 << 10 : 99 << 10;
	if (arch >= 89)
		t.features |= TE_FEATURE_FP8_CONVERT | TE_FEATURE_FP8_MMA;
	if (arch >= 90)
		t.features |= TE_FEATURE_CLUSTERS | TE_FEATURE_PDL | TE_FEATURE_TMA |
			      TE_FEATURE_WGMMA | TE_FEATURE_MULTICAST;
	return t;
}

int te__geometry_for(const struct te__target *target, enum te_k_id id, const void *args,
		     struct te__geometry *ret)
{
	*ret = (struct te__geometry){
		.grid = { 1, 1, 1 },
		.block = { 1, 1, 1 },
		.target = *target,
	};
	if ((unsigned)id >= TE_K_COUNT)
		return te__fail(-TE_EKERNEL, "the cuda backend has no kernel of id %d", (int)id);
	return geometry[id](args, ret);
}

int te__geometry(enum te_k_id id, const void *args, struct te__geometry *ret)
{
	const struct te__target hopper = te__target_of(90);

	return te__geometry_for(&hopper, id, args, ret);
}
