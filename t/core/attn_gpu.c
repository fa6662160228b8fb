/* t/core/attn_gpu.c - attention on a GPU: the same cases. */
#include "config.h"

#include "attn_cases.h"

static Suite *suite(void)
{
	return attn_suite("core/attn_gpu", "cuda");
}

TT_MAIN("core/attn_gpu", TT_NEED_GPU, suite)
