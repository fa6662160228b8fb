/* cached.cuh - keys in a cache and sums of softmax, shared by cached.cu and step.cu. */
#ifndef TE_ATTN_CACHED_CUH
#define TE_ATTN_CACHED_CUH

#include "kernels/dev.cuh"
#include "kernels/quant/mx.cuh"

/* one head of one part: sums of e^(score - m), and of its products with values */
struct softmax {
	float m, l, acc[TE_V];
};

/* a code of E4M3 */
struct e4m3 {
	uint8_t bits;
};

template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;

/* TE_V codes of E4M3: FP16 has all of its numbers */
DEV raw<fp16> decode_codes(const uint2 &x)
{
	raw<fp16> r;

	r.q[0] = make_uint4(fp8x2_decode(TE_D_E4M3, x.x), fp8x2_decode(TE_D_E4M3, x.x >> 16),
			    fp8x2_decode(TE_D_E4M3, x.y), fp8x2_decode(TE_D_E4M3, x.y >> 16));
	return r;
}

DEV int64_t token_at(const struct te_k_attn_cached &a, int64_t s, int pos)
{
	const unsigned page = (unsigned)a.page, i = (unsigned)pos / page;
	const int64_t at = s * a.max_pages + i;

	return (a.pages ? a.pages[at] : at) * page + ((unsigned)pos - i * page);
}

enum where { INSIDE, PADDING, OUTSIDE };

/* the same for all threads of a block */
DEV enum where find(const struct te_k_attn_cached &a, int64_t r)
{
	const int64_t s = a.sequence[r], pos = a.position[r];
	int bad = 0;

	if (s < 0)
		return PADDING;
	if (s >= a.nseqs || pos < 0 || pos >= a.max_pages * a.page)
		return OUTSIDE;
#pragma unroll 1
	for (unsigned i = threadIdx.x; i <= (unsigned)pos / (unsigned)a.page; i += blockDim.x) {
		const int64_t at = s * a.max_pages + i, page = a.pages ? a.pages[at] : at;

		bad |= page < 0 || page >= a.npages;
	}
	return __syncthreads_or(bad) ? OUTSIDE : INSIDE;
}

/* e^(x - m), and 0 for x = -inf whatever m is */
DEV float weight_of(float x, float m)
{
	return __expf(x - (m == -TE_INF ? 0.0f : m));
}

/* 1 / sum of weights, or 0 if all scores are -inf */
DEV float inverse_of(float sum)
{
	return sum == 0.0f ? 0.0f : 1.0f / sum;
}

DEV void join(struct softmax &x, float m, float l, const float acc[TE_V])
{
	const float most = fmaxf(x.m, m), mine = weight_of(x.m, most), other = weight_of(m, most);

	x.m = most;
	x.l = x.l * mine + l * other;
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		x.acc[e] = x.acc[e] * mine + acc[e] * other;
}

#endif
