/* launch.c - device function and launch geometry of the optim kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/optim/geometry.h"

int te__geo_sumsq(const void *args, struct te__geometry *k)
{
	const struct te_k_sumsq *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_sumsq", TE_K_SUMSQ_PARTS, SUMSQ_THREADS);
}

int te__geo_adamw_begin(const void *args, struct te__geometry *k)
{
	(void)args;
	return te__geo_launch(k, "te_k_adamw_begin", 1, ADAMW_BEGIN_THREADS);
}

int te__geo_adamw(const void *args, struct te__geometry *k)
{
	static const char *const name[3][3] = {
		{ "te_k_adamw", "te_k_adamw_w16", "te_k_adamw_split" },
		{ "te_k_adamw_bf16", "te_k_adamw_bf16_w16", "te_k_adamw_bf16_split" },
		{ "te_k_adamw_fp8", "te_k_adamw_fp8_w16", "te_k_adamw_fp8_split" },
	};
	const struct te_k_adamw *a = args;
	const int plain = a->moments == TE_K_MOMENTS_FP32 && a->masters == TE_K_MASTERS_FP32;
	const int nelems = plain ? ADAMW_NELEMS : ADAMW_SMALL_NELEMS;

	return te__geo_launch(k, name[a->moments][a->masters],
			      ceil_div(a->n, ADAMW_THREADS * nelems), ADAMW_THREADS);
}
