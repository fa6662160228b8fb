/* t/kernels/attn_gpu.c - attention on a GPU: the same cases. */
#include "config.h"

#include "attn_cases.h"

static Suite *suite(void)
{
	return attn_suite("kernels/attn_gpu", "cuda");
}

TT_MAIN("kernels/attn_gpu", TT_NEED_GPU, suite)
