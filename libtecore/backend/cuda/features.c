/* features.c - what a GPU can do, and the level of the kernels that run on it. */
#include "config.h"

#include <stdio.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"

/*
 * Can a GPU of compute capability cc load the machine code of a level? It runs on its own
 * compute capability and on later ones with the same first digit; machine code for 9.0 is sm_90a
 * and runs on 9.0 only.
 */
static int code_runs(const short *cubins, int cc, int level)
{
	for (; *cubins; cubins++)
		if (*cubins == level && level / 10 == cc / 10 &&
		    (level == 90 ? cc == 90 : level <= cc))
			return 1;
	return 0;
}

/* PTX runs on its own compute capability and on all later ones */
static int runs(const short *cubins, const short *ptx, int cc, int level)
{
	for (; *ptx; ptx++)
		if (*ptx == level && level <= cc)
			return 1;
	return code_runs(cubins, cc, level);
}

/*
 * The highest level. A block of 12.x has the shared memory of 8.9, and kernels of 9.0 take more:
 * these come last there.
 */
int te__cuda_arch(const short *cubins, const short *ptx, int cc)
{
	static const int level[] = { 90, 89, 86, 80 };
	int last = 0;

	for (size_t i = 0; i < sizeof(level) / sizeof(level[0]); i++) {
		if (!runs(cubins, ptx, cc, level[i]))
			continue;
		if (level[i] < 90 || cc < 120)
			return level[i];
		last = level[i];
	}
	return last;
}

/* lists of configure, each ends with 0 */
static const short built_cubins[] = { TE_GPU_CUBINS }, built_ptx[] = { TE_GPU_PTX };
static const short *cubins = built_cubins, *ptx = built_ptx;

void te__cuda_levels_fake(const short *fake_cubins, const short *fake_ptx)
{
	cubins = fake_cubins;
	ptx = fake_ptx;
}

/* levels of the choices of TE_CUDA_ARCH */
static const int forced[] = { 0, 80, 86, 89, 90 };

/* the level of the kernels, or 0 with the reason in why */
static int choose(int cc, char *why, size_t nbytes)
{
	const int as = forced[te__param_enum(TE_PARAM_CUDA_ARCH)];
	const int level = te__cuda_arch(cubins, ptx, as ? as : cc);

	if (as > cc) {
		snprintf(why, nbytes, "TE_CUDA_ARCH=%d.%d is higher than its compute capability, "
			 "%d.%d", as / 10, as % 10, cc / 10, cc % 10);
	} else if (!level) {
		snprintf(why, nbytes, "compute capability %d.%d: the kernels of this build are for "
			 TE_GPU_ARCHS "%s", (as ? as : cc) / 10, (as ? as : cc) % 10,
			 as ? ", and TE_CUDA_ARCH is set" : "");
	} else if (!runs(cubins, ptx, cc, level)) {
		snprintf(why, nbytes, "TE_CUDA_ARCH=%d.%d: compute capability %d.%d needs PTX of "
			 "%d.%d, and the kernels of this build are for " TE_GPU_ARCHS,
			 as / 10, as % 10, cc / 10, cc % 10, level / 10, level % 10);
	} else {
		return level;
	}
	return 0;
}

int te__cuda_features(int dev, struct te__cuda_features *ret, char *ret_why, size_t nbytes)
{
	struct te__cuda_features f = { 0 };
	int smem, clusters, maps, multicast, ops;
	const struct {
		int which;
		int *to;
	} asked[] = {
		{ TE__CU_ATTR_COMPUTE_CAPABILITY_MAJOR, &f.major },
		{ TE__CU_ATTR_COMPUTE_CAPABILITY_MINOR, &f.minor },
		{ TE__CU_ATTR_MULTIPROCESSOR_COUNT, &f.nprocs },
		{ TE__CU_ATTR_CLOCK_RATE, &f.clock_khz },
		{ TE__CU_ATTR_MEMORY_CLOCK_RATE, &f.mem_clock_khz },
		{ TE__CU_ATTR_GLOBAL_MEMORY_BUS_WIDTH, &f.bus_bits },
		{ TE__CU_ATTR_L2_CACHE_SIZE, &f.l2_nbytes },
		{ TE__CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &smem },
		{ TE__CU_ATTR_CLUSTER_LAUNCH, &clusters },
		{ TE__CU_ATTR_TENSOR_MAP, &maps },
		{ TE__CU_ATTR_MULTICAST, &multicast },
		{ TE__CU_ATTR_64_BIT_MEM_OPS, &ops },
	};
	int cc, r = 0;

	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]) && !r; i++)
		r = TE__CU_CALL(cuDeviceGetAttribute, asked[i].to, asked[i].which, dev);
	if (r)
		return r;
	ret_why[0] = 0;
	cc = 10 * f.major + f.minor;
	f.target.arch = choose(cc, ret_why, nbytes);
	if (f.target.arch) {
		f.target = te__target_of(f.target.arch);
		f.ptx = !code_runs(cubins, cc, f.target.arch);
		if (f.target.smem_max > (unsigned)smem)
			f.target.smem_max = (unsigned)smem;
		if (!clusters)
			f.target.features &= ~TE_FEATURE_CLUSTERS;
		if (!maps)
			f.target.features &= ~TE_FEATURE_TMA;
		if (!maps || cc != 90)
			f.target.features &= ~TE_FEATURE_WGMMA;
		if (!multicast)
			f.target.features &= ~TE_FEATURE_MULTICAST;
		if (!ops)
			f.target.features &= ~TE_FEATURE_MEM_OPS;
		if (!te__kernel_images[0].name)
			snprintf(ret_why, nbytes, "this libtecore has no device kernels: it was "
				 "built without nvcc");
	}
	*ret = f;
	return 0;
}
