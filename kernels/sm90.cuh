/*
 * sm90.cuh - the instructions of sm_90a, one function each: asynchronous copies of tensor maps,
 * barriers in shared memory, multiplication by warpgroups. An address in shared memory is a
 * uint32_t, in the shared window of the block. t/kernels/sm90.h has functions of the same names
 * that run on the host.
 */
#ifndef TE_SM90_CUH
#define TE_SM90_CUH

#include "kernels/begin.cuh"
#include "kernels/sm90.h"

/* the dynamic shared memory of the block; begins at a multiple of 1024, as swizzled tiles must */
DEV uint32_t smem_begin(void)
{
	extern __shared__ __align__(1024) char smem[];

	return (uint32_t)__cvta_generic_to_shared(smem);
}

DEV void smem_store(uint32_t at, uint32_t x)
{
	asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

DEV uint32_t smem_load(uint32_t at)
{
	uint32_t x;

	asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
	return x;
}

DEV uint16_t smem_load_half(uint32_t at)
{
	uint16_t x;

	asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
	return x;
}

DEV void smem_store4(uint32_t at, int a, int b, int c, int d)
{
	asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c),
		     "r"(d)
		     : "memory");
}

DEV void smem_load4(uint32_t at, int &a, int &b, int &c, int &d)
{
	asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
		     : "r"(at)
		     : "memory");
}

DEV void smem_store2(uint32_t at, float x, float y)
{
	asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}

DEV float2 smem_load2(uint32_t at)
{
	float2 v;

	asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
		     : "=f"(v.x), "=f"(v.y)
		     : "r"(at)
		     : "memory");
	return v;
}

/* four matrices of 8 x 8 16-bit elements: lane l has the address of row l % 8 of matrix l / 8 */
DEV void smem_store_matrices(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
		     "r"(a), "r"(b), "r"(c), "r"(d)
		     : "memory");
}

/* the inverse of smem_store_matrices() */
DEV void smem_load_matrices(uint32_t at, uint32_t (&w)[4])
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
		     : "r"(at)
		     : "memory");
}

/* makes this thread's stores to shared memory visible to copies of tensor maps */
DEV void smem_publish(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- threads ------------------------------------------------------------- */

DEV uint32_t cluster_rank(void)
{
	uint32_t r;

	asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
	return r;
}

/* all threads of both blocks, whole warps; what they did before is visible to all afterwards */
DEV void cluster_sync(void)
{
	asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::
			     : "memory");
}

/* N threads, some of which only arrive and do not wait; id: 1 to 15 */
template <int N> DEV void threads_sync(int id)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(N) : "memory");
}

template <int N> DEV void threads_arrive(int id)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(N) : "memory");
}

/* the 128 threads of a warpgroup */
DEV void group_sync(int id)
{
	threads_sync<128>(id);
}

template <int N> DEV void registers_lower(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> DEV void registers_raise(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- barriers in shared memory ------------------------------------------- */

DEV void barrier_init(uint32_t at, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}

/* after barrier_init(), before cluster_sync() */
DEV void barrier_init_publish(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* arrives, and adds nbytes to the bytes that copies are to bring in this phase */
DEV void barrier_expect(uint32_t at, uint32_t nbytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(nbytes)
		     : "memory");
}

/* arrives at the barrier at the same address of block rank of the cluster */
DEV void barrier_arrive(uint32_t at, uint32_t rank)
{
	asm volatile("{\n\t"
		     ".reg .b32 remote;\n\t"
		     "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
		     "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t"
		     "}" ::"r"(at),
		     "r"(rank)
		     : "memory");
}

/* at a barrier of this block */
DEV void barrier_arrive(uint32_t at)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* waits for the end of the phase with this parity; the phase before the first has parity 1 */
DEV void barrier_wait(uint32_t at, uint32_t parity)
{
	asm volatile("{\n\t"
		     ".reg .pred done;\n"
		     "again%=:\n\t"
		     "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
		     "@!done bra again%=;\n\t"
		     "}" ::"r"(at),
		     "r"(parity)
		     : "memory");
}

/* --- copies of tensor maps ------------------------------------------------ */

/* the box at element (x, y), x innermost, to this block */
DEV void tma_load(uint32_t to, const struct te_tensor_map *map, int x, int y, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
		     ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
		     "l"(map), "r"(x), "r"(y), "r"(barrier)
		     : "memory");
}

/* nbytes that are consecutive; addresses and nbytes are multiples of 16 */
DEV void bulk_load(uint32_t to, const void *from, uint32_t nbytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
		     " [%0], [%1], %2, [%3];" ::"r"(to),
		     "l"(from), "r"(nbytes), "r"(barrier)
		     : "memory");
}

/* the box at (x, y) of matrix z of an array */
DEV void tma_load(uint32_t to, const struct te_tensor_map *map, int x, int y, int z,
		  uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
		     ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
		     "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
		     : "memory");
}

/* from a matrix to these addresses of both blocks, each of whose barriers counts the bytes */
DEV void tma_load_both(uint32_t to, const struct te_tensor_map *map, int x, int y, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
		     ".mbarrier::complete_tx::bytes.multicast::cluster"
		     " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
		     "l"(map), "r"(x), "r"(y), "r"(barrier), "h"((unsigned short)3)
		     : "memory");
}

DEV void tma_store(const struct te_tensor_map *map, int x, int y, uint32_t from)
{
	asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
		     " [%0, {%1, %2}], [%3];\n\t"
		     "cp.async.bulk.commit_group;" ::"l"(map),
		     "r"(x), "r"(y), "r"(from)
		     : "memory");
}

DEV void tma_store(const struct te_tensor_map *map, int x, int y, int z, uint32_t from)
{
	asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
		     " [%0, {%1, %2, %3}], [%4];\n\t"
		     "cp.async.bulk.commit_group;" ::"l"(map),
		     "r"(x), "r"(y), "r"(z), "r"(from)
		     : "memory");
}

/* until at most N of this thread's latest stores have not read shared memory */
template <int N> DEV void tma_store_wait(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* nbytes that are consecutive in both; addresses and nbytes are multiples of 16 */
DEV void bulk_store(void *to, uint32_t from, uint32_t nbytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\t"
		     "cp.async.bulk.commit_group;" ::"l"(to),
		     "r"(from), "r"(nbytes)
		     : "memory");
}

/* the same, adding */
DEV void bulk_add(float *to, uint32_t from, uint32_t nbytes)
{
	asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
		     " [%0], [%1], %2;\n\t"
		     "cp.async.bulk.commit_group;" ::"l"(to),
		     "r"(from), "r"(nbytes)
		     : "memory");
}

/* until at most N of this thread's latest stores are not complete */
template <int N> DEV void bulk_wait(void)
{
	asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/* --- counters in device memory ---------------------------------------------- */

/* until it is n: then, what was written before count_set() can be read, and added to by copies */
DEV void count_wait(const uint32_t *count, uint32_t n)
{
	uint32_t x;

	do {
		asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
			     : "=r"(x)
			     : "l"(count)
			     : "memory");
	} while (x != n);
	asm volatile("fence.proxy.async;" ::: "memory");
}

/* after what this thread has written, also by copies that are complete */
DEV void count_set(uint32_t *count, uint32_t n)
{
	asm volatile("fence.proxy.async;\n\t"
		     "st.release.gpu.global.u32 [%0], %1;" ::"l"(count),
		     "r"(n)
		     : "memory");
}

/* --- multiplication by warpgroups ----------------------------------------- */

/* a tile with swizzled rows of 128 bytes; groups of 8 rows are 1024 bytes apart */
DEV uint64_t wgmma_tile(uint32_t at, uint32_t leading)
{
	return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 |
	       (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* the part of the tile that begins nbytes, a multiple of 16, after this one */
DEV uint64_t wgmma_after(uint64_t tile, int nbytes)
{
	return tile + (nbytes >> 4);
}

/* before the first wgmma on accumulators that were read or written otherwise */
DEV void wgmma_begin(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEV void wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* until at most LEFT of the latest groups run: d, which an earlier group computed, is valid */
template <int LEFT, int N> DEV void wgmma_wait(float (&d)[N])
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

#define D8(i)                                                                       \
	"+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
		"+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define REGS_32 \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
	"%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define REGS_64 \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
	"%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
	"%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "  \
	"%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
	"%62, %63}"
#define REGS_128                                                                       \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
	"%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
	"%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "  \
	"%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
	"%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "  \
	"%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "  \
	"%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, " \
	"%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "     \
	"%118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"

/*
 * Accumulator 4 j + 2 i + c of a thread is in row 16 warp + lane / 4 + 8 i of 64, and in column
 * 8 j + 2 (lane % 4) + c.
 */
template <bool A_T, bool B_T> struct bf16_256 {
	DEV void mma(float (&d)[128], uint64_t a, uint64_t b, int add_to_d)
	{
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
			     "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " REGS_128
			     ", %128, %129, p, 1, 1, %131, %132;\n\t}"
			     : D64(0), D64(64)
			     : "l"(a), "l"(b), "r"(add_to_d), "n"(A_T), "n"(B_T));
	}
};

struct e4m3_e4m3_256 {
	DEV void mma(float (&d)[128], uint64_t a, uint64_t b, int add_to_d)
	{
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
			     "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 " REGS_128
			     ", %128, %129, p, 1, 1;\n\t}"
			     : D64(0), D64(64)
			     : "l"(a), "l"(b), "r"(add_to_d));
	}
};

struct e4m3_e4m3_128 {
	DEV void mma(float (&d)[64], uint64_t a, uint64_t b, int add_to_d)
	{
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
			     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " REGS_64
			     ", %64, %65, p, 1, 1;\n\t}"
			     : D64(0)
			     : "l"(a), "l"(b), "r"(add_to_d));
	}
};

struct e5m2_e4m3_128 {
	DEV void mma(float (&d)[64], uint64_t a, uint64_t b, int add_to_d)
	{
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
			     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3 " REGS_64
			     ", %64, %65, p, 1, 1;\n\t}"
			     : D64(0)
			     : "l"(a), "l"(b), "r"(add_to_d));
	}
};

/* b has k innermost, and 64 or 128 rows */
DEV void mma_bf16(float (&d)[32], uint64_t a, uint64_t b, int add_to_d)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " REGS_32
		     ", %32, %33, p, 1, 1, 0, 0;\n\t}"
		     : D32(0)
		     : "l"(a), "l"(b), "r"(add_to_d));
}

DEV void mma_bf16(float (&d)[64], uint64_t a, uint64_t b, int add_to_d)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " REGS_64
		     ", %64, %65, p, 1, 1, 0, 0;\n\t}"
		     : D64(0)
		     : "l"(a), "l"(b), "r"(add_to_d));
}

/*
 * With a in registers: words 0 and 2 are two neighbours each of the thread's first row, 1 and 3 of
 * its second row, as accumulators of 16 columns are. b has its 64 or 128 columns innermost.
 */
DEV void mma_bf16_bt(float (&d)[32], const uint32_t *a, uint64_t b, int add_to_d)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " REGS_32
		     ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n\t}"
		     : D32(0)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add_to_d));
}

DEV void mma_bf16_bt(float (&d)[64], const uint32_t *a, uint64_t b, int add_to_d)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " REGS_64
		     ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n\t}"
		     : D64(0)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add_to_d));
}

/* with both innermost: 64 rows of a, 64 columns of b */
DEV void mma_bf16_tt(float (&d)[32], uint64_t a, uint64_t b, int add_to_d)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
		     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " REGS_32
		     ", %32, %33, p, 1, 1, 1, 1;\n\t}"
		     : D32(0)
		     : "l"(a), "l"(b), "r"(add_to_d));
}
#undef D8
#undef D16
#undef D32
#undef D64
#undef REGS_32
#undef REGS_64
#undef REGS_128

#endif
