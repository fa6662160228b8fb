/*
 * mma.cuh - tensor core instructions of sm_80 and up: cp.async, ldmatrix and mma.sync, and barriers
 * of some warps; FP8 needs sm_89.
 */
#ifndef TE_MMA_CUH
#define TE_MMA_CUH

#include <stdint.h>

#include "kernels/begin.cuh"

DEV uint32_t pack_bf16(float lo, float hi)
{
	uint32_t r;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

DEV uint32_t smem_addr(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* copy n bytes, 16 or 0, and fill up to 16 with zeros */
DEV void cp_async16(uint32_t dst, const void *src, int n)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :: "r"(dst), "l"(src), "r"(n) : "memory");
}

/* 16 bytes of a line that is read to its end, once */
DEV void cp_async16_line(uint32_t dst, const void *src)
{
	asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
		     :: "r"(dst), "l"(src) : "memory");
}

DEV void cp_async4(uint32_t dst, const void *src, int n)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
		     :: "r"(dst), "l"(src), "r"(n) : "memory");
}

DEV void cp_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* wait for all groups except the last N */
template <int N> DEV void cp_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* a barrier of N warps, the i-th such group of the block */
template <int N> DEV void sync_warps(int i)
{
	asm volatile("bar.sync %0, %1;" :: "r"(i + 1), "n"(32 * N) : "memory");
}

/* four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8 */
DEV void ldmatrix(uint32_t (&r)[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

DEV void ldmatrix_trans(uint32_t (&r)[4], uint32_t addr)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

#define MMA_ROWS 16
#define MMA_COLS 8

/*
 * A_B::mma: d += a b, for MMA_ROWS rows, 32 bytes of k and MMA_COLS columns. Lane l holds rows l /
 * 4 and l / 4 + 8 of a and column l / 4 of b; d[0..1] are columns 2 (l % 4) and the next of the
 * first row, d[2..3] of the second.
 */
#define MMA(A, B, PTX)                                                                          \
	struct A##_##B {                                                                        \
		DEV void mma(float d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,    \
			     uint32_t b0, uint32_t b1)                                          \
		{                                                                               \
			asm("mma.sync.aligned." PTX " {%0, %1, %2, %3}, {%4, %5, %6, %7}, "     \
			    "{%8, %9}, {%0, %1, %2, %3};"                                       \
			    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                    \
			    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));            \
		}                                                                               \
	};
MMA(bf16, bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA(fp16, fp16, "m16n8k16.row.col.f32.f16.f16.f32")
MMA(e4m3, e4m3, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
MMA(e4m3, e5m2, "m16n8k32.row.col.f32.e4m3.e5m2.f32")
MMA(e5m2, e4m3, "m16n8k32.row.col.f32.e5m2.e4m3.f32")
#undef MMA

DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	bf16_bf16::mma(d, a[0], a[1], a[2], a[3], b0, b1);
}

#endif
