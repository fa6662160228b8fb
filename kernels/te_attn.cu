/*
 * te_attn.cu - causal attention with grouped queries, forward and backward, sm_80 and up.
 *
 * qkv T [batch, seqlen, (nheads + 2 nkv) head_dim]; head_dim is 1 to 128 and is padded with zeros
 * in shared memory to the D of the variant (bf16: 32, 64, 96, 128; fp32: 64, 128). Rows that are
 * no multiple of 16 bytes are read by element. The score matrix is never in memory.
 *
 *   pre  grid ceil(batch seqlen nheads / (256 / lanes)), 256 threads, no shared memory, where
 *        lanes is the power of two from 16 bytes a lane on
 */
#include "te_attn_fp32.cuh"
#include "te_attn_strip.cuh"
#include "te_attn_tile.cuh"
#include "te_begin.cuh"

/* ---- delta ---- */

/* rows of hd elements, h fastest as they are in memory; lanes of 16 bytes share a row */
template <class E> FN void bwd_pre(const struct te_k_attn_bwd &a)
{
	constexpr int PER = 16 / sizeof(E);
	const int hd = a.head_dim;
	int lanes = 1;

	while (lanes * PER < hd)
		lanes *= 2;
	const int64_t row = ((int64_t)blockIdx.x * 256 + threadIdx.x) / lanes;
	const int c0 = (threadIdx.x % lanes) * PER;
	const bool ok = row < a.batch * a.seqlen * a.nheads;
	const E *x = (const E *)a.out + row * hd, *y = (const E *)a.dout + row * hd;
	float sum = 0.0f;

	if (ok && c0 < hd && hd % PER == 0) {
		sum = dot16<E>(*(const uint4 *)(x + c0), *(const uint4 *)(y + c0));
	} else if (ok) {
		for (int c = c0; c < min(c0 + PER, hd); c++)
			sum = fmaf(to_float(x[c]), to_float(y[c]), sum);
	}
	sum = sum_lanes(sum, lanes);
	if (ok && c0 == 0) {
		const int64_t bt = row / a.nheads;

		a.delta[(bt / a.seqlen * a.nheads + row % a.nheads) * a.seqlen + bt % a.seqlen] =
			sum;
	}
}

/* ---- what the geometry names (libtecore/backend/cuda_kernels_attn.c) ---- */

extern "C" __global__ void __launch_bounds__(256) te_k_attn_bwd_pre_bf16(struct te_k_attn_bwd a)
{
	te_begin();
	bwd_pre<uint16_t>(a);
}

extern "C" __global__ void __launch_bounds__(256) te_k_attn_bwd_pre_fp32(struct te_k_attn_bwd a)
{
	te_begin();
	bwd_pre<float>(a);
}

#define KERNEL(name, threads, blocks, args, body)                                               \
	extern "C" __global__ void __launch_bounds__(threads, blocks) name(const struct args a) \
	{                                                                                       \
		te_begin();                                                                     \
		body(a);                                                                        \
	}
#define FWD(...) fwd_bf16<__VA_ARGS__>
#define BWD(...) bwd_bf16<__VA_ARGS__>
/* W warps of M tiles of 16 rows, C columns at a time, B blocks on a multiprocessor */
#define BF16(D, W, M, C, B)                                                               \
	KERNEL(te_k_attn_fwd_bf16_d##D, 128, 2, te_k_attn_fwd, FWD(D, 4, 2, false))       \
	KERNEL(te_k_attn_fwd_bf16_d##D##_drop, 256, 1, te_k_attn_fwd, FWD(D, 8, 1, true)) \
	KERNEL(te_k_attn_fwd_bf16_d##D##_few, 128, 2, te_k_attn_fwd, FWD(D, 4, 1, false)) \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D, W * 32, B, te_k_attn_bwd,                     \
	       BWD(true, D, W, M, C, false))                                              \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D##_drop, W * 32, B, te_k_attn_bwd,              \
	       BWD(true, D, W, M, C, true))                                               \
	KERNEL(te_k_attn_bwd_dkv_bf16_d##D##_few, 128, B, te_k_attn_bwd,                  \
	       BWD(true, D, 4, 1, C, false))                                              \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D, W * 32, B, te_k_attn_bwd,                      \
	       BWD(false, D, W, M, C, false))                                             \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D##_drop, W * 32, B, te_k_attn_bwd,               \
	       BWD(false, D, W, M, C, true))                                              \
	KERNEL(te_k_attn_bwd_dq_bf16_d##D##_few, 128, B, te_k_attn_bwd,                   \
	       BWD(false, D, 4, 1, C, false))

BF16(32, 4, 2, 32, 2)
BF16(64, 4, 2, 32, 2)
BF16(96, 8, 1, 64, 1)
BF16(128, 8, 1, 64, 1)

/* the body says where its memory is before anything of it may be touched */
template <class Body> FN void strip(Body run)
{
	te_begin();
	run();
}

#define STRIPS(D)                                                                 \
	extern "C" __global__ void __launch_bounds__(128, 2)                      \
		te_k_attn_fwd_bf16_d##D##_strip(const struct te_k_attn_fwd a)     \
	{                                                                         \
		strip(fwd_strip<D>(a));                                           \
	}                                                                         \
	extern "C" __global__ void __launch_bounds__(128, 2)                      \
		te_k_attn_bwd_bf16_d##D##_strip(const struct te_k_attn_bwd a)     \
	{                                                                         \
		/* blocks of dkv, then those of dq */                             \
		if (blockIdx.x < a.nkv)                                           \
			strip(bwd_strip<true, D>(a, blockIdx.x));                 \
		else                                                              \
			strip(bwd_strip<false, D>(a, blockIdx.x - a.nkv));        \
	}

STRIPS(32)
STRIPS(64)
STRIPS(96)
STRIPS(128)

#define BWD32(...) bwd_fp32<__VA_ARGS__>
#define FP32(D)                                                                           \
	KERNEL(te_k_attn_fwd_fp32_d##D, 256, 1, te_k_attn_fwd, fwd_fp32<D>)               \
	KERNEL(te_k_attn_bwd_dkv_fp32_d##D, 256, 1, te_k_attn_bwd, BWD32(true, D))        \
	KERNEL(te_k_attn_bwd_dq_fp32_d##D, 256, 1, te_k_attn_bwd, BWD32(false, D))

FP32(64)
FP32(128)
