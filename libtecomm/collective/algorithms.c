/* algorithms.c - the table of algorithms: their names, and what runs them. */
#include "config.h"

#include "libtecomm/collective/collective.h"

const struct te__algorithm te__algorithms[TE__ALGORITHMS] = {
	[TE_COMM_AUTO] = { "auto", TE__BY_KERNELS, -1, 0 },
	[TE_COMM_LL] = { "ll", TE__BY_KERNELS, TE_K_COMM_LL, 0 },
	[TE_COMM_ONE_SHOT] = { "oneshot", TE__BY_KERNELS, TE_K_COMM_ONE_SHOT, 1 },
	[TE_COMM_TWO_SHOT] = { "twoshot", TE__BY_KERNELS, TE_K_COMM_TWO_SHOT, 1 },
	[TE_COMM_ZERO_COPY] = { "zerocopy", TE__BY_KERNELS, TE_K_COMM_ZERO_COPY, 0 },
	[TE_COMM_STAGED] = { "staged", TE__BY_KERNELS, TE_K_COMM_STAGED, 0 },
	[TE_COMM_NCCL] = { "nccl", TE__BY_NCCL, -1, 0 },
	[TE_COMM_NVLS] = { "nvls", TE__BY_KERNELS, TE_K_COMM_NVLS, 1 },
	[TE_COMM_NVLS_ONE_SHOT] = { "nvls-oneshot", TE__BY_KERNELS, TE_K_COMM_NVLS_ONE_SHOT, 1 },
	[TE_COMM_EXCHANGE] = { "exchange", TE__BY_NODES, -1, 0 },
	[TE_COMM_CHAIN] = { "chain", TE__BY_NODES, -1, 1 },
};

const char *te_comm_algorithm_name(enum te_comm_algorithm a)
{
	return (unsigned)a < (unsigned)TE__ALGORITHMS ? te__algorithms[a].name : NULL;
}

const char *te__coll_kernel_name(int32_t kernel)
{
	for (int i = 0; i < TE__ALGORITHMS && kernel >= 0; i++)
		if (te__algorithms[i].kernel == kernel)
			return te__algorithms[i].name;
	return NULL;
}
