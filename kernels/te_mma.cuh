/*
 * te_mma.cuh - instructions that bring matrices to the tensor cores: asynchronous copies to
 * shared memory, ldmatrix and mma.sync, of sm_80 and up.
 */
#ifndef TE_MMA_CUH
#define TE_MMA_CUH

#include <stdint.h>

#define FN static __device__ __forceinline__

FN uint32_t smem_addr(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* n of 16 bytes, zeros for the rest; n is 16 or 0 */
FN void cp_async16(uint32_t dst, const void *src, int n)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :: "r"(dst), "l"(src), "r"(n) : "memory");
}

FN void cp_async4(uint32_t dst, const void *src, int n)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
		     :: "r"(dst), "l"(src), "r"(n) : "memory");
}

FN void cp_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* for all groups but the last N */
template <int N> FN void cp_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8 */
FN void ldmatrix(uint32_t (&r)[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

FN void ldmatrix_trans(uint32_t (&r)[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

FN void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
