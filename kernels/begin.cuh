/*
 * begin.cuh - the first statement of every kernel.
 *
 * In a graph, a kernel may start while kernels that it depends on still run: along a programmatic
 * dependent launch (PDL) edge (libtecore/backend/cuda/edges.c), its blocks are scheduled
 * as soon as every block of the predecessor has executed launch_dependents. It must not access
 * memory before its predecessors are complete and their writes are visible, which is what wait
 * ensures. In a kernel that is launched otherwise, both instructions have no effect. GPUs below
 * compute capability 9.0 have neither, and no such edges.
 *
 * Successors of te_begin_early() may start before the kernel's own predecessors are complete. They
 * wait for this kernel, which is complete after those. For kernels of a few microseconds, so that
 * the blocks of a chain of them, and the first weights of the next GEMM, are there when data is.
 * te_begin_launch() and te_begin_wait() are its two halves: between them a kernel may read what no
 * kernel writes that may still run.
 */
#ifndef TE_BEGIN_CUH
#define TE_BEGIN_CUH

#define DEV static __device__ __forceinline__ /* for every device function */
#define TE_ARCH (__CUDA_ARCH__ / 10) /* 90: compiled for compute capability 9.0 */

DEV void te_begin(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEV void te_begin_launch(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

DEV void te_begin_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEV void te_begin_early(void)
{
	te_begin_launch();
	te_begin_wait();
}

#endif
