/*
 * te_begin.cuh - what every kernel does first.
 *
 * In a graph a kernel may begin while those it depends on still run: by a programmatic edge
 * (libtecore/backend/cuda_edges.c) its blocks are placed as soon as every block of theirs has got
 * here. It touches no memory before they are complete and what they wrote is visible. A
 * kernel that is launched otherwise passes at once.
 */
#ifndef TE_BEGIN_CUH
#define TE_BEGIN_CUH

static __device__ __forceinline__ void te_begin(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif
