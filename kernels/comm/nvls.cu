/*
 * nvls.cu - all-reduce through multicast memory: nvls and nvls-oneshot of comm.h. sm_90a.
 *
 *  kernel        packets of a thread                   blocks of 512 threads, at most max_blocks
 *  nvls          1 of each 512 blocks of a chunk       packets / n / 512
 *  nvls-oneshot  1 of each 512 blocks                  packets / 512
 *
 * No shared memory. These kernels have been compiled, and have not run: no machine with multicast
 * was available.
 *
 * Multicast addresses and the regions' own are two names of one memory, whose accesses the memory
 * model does not order without fence.proxy.alias. So each thread executes one before
 * it accesses memory by one name that was written by the other.
 */
#include "kernels/comm/algorithms.cuh"

#if __CUDA_ARCH__ >= 900

DEV void fence_alias(void)
{
	asm volatile("fence.proxy.alias;" ::: "memory");
}

/* the multicast address of this rank's memory at p */
DEV void *multicast(const struct te_k_comm &a, const void *p)
{
	return a.multicast + ((const uint8_t *)p - region(a, a.rank));
}

DEV void multimem_st_release(void *p, uint64_t x)
{
	asm volatile("multimem.st.release.sys.global.b64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}

DEV void multimem_red_and_release(void *p, uint64_t x)
{
	asm volatile("multimem.red.release.sys.global.and.b64 [%0], %1;" ::"l"(p), "l"(x)
		     : "memory");
}

/* two halves, of which each is full by itself: 16 bytes are not stored at once */
DEV void multimem_st_packet(void *p, uint4 v)
{
	v.y = v.y == TE_K_COMM_EMPTY ? TE_K_COMM_NAN : v.y;
	v.w = v.w == TE_K_COMM_EMPTY ? TE_K_COMM_NAN : v.w;
	asm volatile("multimem.st.relaxed.sys.global.b64 [%0], %1;\n\t"
		     "multimem.st.relaxed.sys.global.b64 [%0+8], %2;" ::"l"(p),
		     "l"((uint64_t)v.y << 32 | v.x), "l"((uint64_t)v.w << 32 | v.z)
		     : "memory");
}

DEV void multimem_st(void *p, uint4 v)
{
	asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p),
		     "f"(__uint_as_float(v.x)), "f"(__uint_as_float(v.y)),
		     "f"(__uint_as_float(v.z)), "f"(__uint_as_float(v.w))
		     : "memory");
}

#define MULTIMEM_LD_REDUCE(v, p, TYPE)                                                     \
	asm volatile("multimem.ld_reduce.relaxed.sys.global.add" TYPE " {%0, %1, %2, %3}, [%4];" \
		     : "=r"((v).x), "=r"((v).y), "=r"((v).z), "=r"((v).w)                  \
		     : "l"(p)                                                              \
		     : "memory")

/* the sum over all ranks, rounded to the type */
DEV uint4 multimem_ld_reduce_add(int dtype, const void *p)
{
	float x, y, z, w;
	uint4 v;

	switch (dtype) {
	case TE_D_FP32:
		asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, "
			     "[%4];"
			     : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
			     : "l"(p)
			     : "memory");
		return make_uint4(__float_as_uint(x), __float_as_uint(y), __float_as_uint(z),
				  __float_as_uint(w));
	case TE_D_BF16:
		MULTIMEM_LD_REDUCE(v, p, ".acc::f32.v4.bf16x2");
		return v;
	default:
		MULTIMEM_LD_REDUCE(v, p, ".acc::f32.v4.f16x2");
		return v;
	}
}

/* sum() of one operand divides by the number of ranks, and gives the NaN of comm.h */
DEV uint4 finish(const struct te_k_comm &a, uint4 v)
{
	const bool average = a.op == TE_K_COMM_AVG;

	switch (a.dtype) {
	case TE_D_FP32:
		return sum<1, TE_D_FP32>(&v, a.nranks, average);
	case TE_D_BF16:
		return sum<1, TE_D_BF16>(&v, a.nranks, average);
	default:
		return sum<1, TE_D_FP16>(&v, a.nranks, average);
	}
}

/* thread 0: all accesses of the block are before its bit; false after a failure */
DEV bool exit_flags(const struct te_k_comm &a, struct op &o)
{
	uint64_t *p = flag(a, a.rank, TE_K_COMM_EXIT, TE_K_COMM_ARRIVED), x;
	const uint64_t all = (1u << a.nranks) - 1;
	bool ok = true;

	__syncthreads();
	if (threadIdx.x == 0) {
		multimem_red_and_release(multicast(a, p), ~(1ull << a.rank));
		fence_alias();
		o.since = 0;
		while (ok && ((x = load_acquire(p)) & all))
			ok = again(a, o, TE_K_COMM_EXIT, (uint32_t)(x & all), 0, x);
		/* no rank clears a bit again before it has this one's next entry flag */
		if (ok)
			store_release(p, ~0ull);
	}
	ok = __syncthreads_and(ok);
	fence_alias(); /* before the output is read by its own address */
	return ok;
}

/* nvls: the last packet may be part of one, of which the rest belongs to another array */
DEV bool nvls_two_shot(const struct te_k_comm &a, struct op &o)
{
	const int64_t end = chunk_begin(o, a.rank + 1);
	uint64_t *p = flag(a, a.rank, TE_K_COMM_ENTRY, a.rank);

	fence_alias();
	__syncthreads();
	if (threadIdx.x == 0)
		multimem_st_release(multicast(a, p), te_k_comm_flag(&a, o.epoch, o.signature));
	fence_alias();
	if (!__syncthreads_and(header_collect(a, o)) || !flags_wait(a, o, TE_K_COMM_ENTRY))
		return false;
	EACH(i, chunk_begin(o, a.rank), end) {
		const int64_t at = i * TE_K_COMM_PACKET;
		const uint8_t *in = (const uint8_t *)a.in + at;
		const uint4 v = finish(a, multimem_ld_reduce_add(a.dtype, multicast(a, in)));

		if (o.nbytes - at >= TE_K_COMM_PACKET)
			multimem_st(multicast(a, (uint8_t *)a.out + at), v);
		else
			for (int r = 0; r < a.nranks; r++)
				write_packet(o, (uint8_t *)a.out + (r - a.rank) * a.stride, i, v);
	}
	return exit_flags(a, o);
}

/* nvls-oneshot: a rank's own packets arrive, too */
template <int N> DEV bool nvls_one_shot(const struct te_k_comm &a, struct op &o, uint4 first)
{
	const int64_t i0 = (int64_t)blockIdx.x * COMM_THREADS + threadIdx.x;

	fence_alias(); /* packets were emptied by the region's own address */
	EACH(i, 0, o.npackets)
		multimem_st_packet(multicast(a, packet(a, o, a.rank, a.rank * o.npackets + i)),
				   i == i0 ? first : read_packet(o, a.in, i));
	fence_alias();
	if (!header_collect(a, o))
		return false;
	EACH(i, 0, o.npackets) {
		uint4 v[N];

#pragma unroll
		for (int r = 0; r < N; r++) {
			v[r] = empty();
			if (r < a.nranks && !collect_one(a, o, TE_K_COMM_DATA, 1u << r,
							 r * o.npackets + i, v[r]))
				return false;
		}
		write_packet(o, a.out, i, reduce<N>(a, v));
	}
	return true;
}

COMM_KERNEL(allreduce_nvls, TE_K_COLL_ALLREDUCE, nvls_two_shot(a, o))
COMM_KERNEL_ONE_SHOT(allreduce_nvls_oneshot, TE_K_COLL_ALLREDUCE,
		     (a.nranks == 2 ? nvls_one_shot<2>(a, o, first) :
		      a.nranks == 4 ? nvls_one_shot<4>(a, o, first) :
				      nvls_one_shot<8>(a, o, first)))
#endif
