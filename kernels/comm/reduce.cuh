/* reduce.cuh - arithmetic: packets of all ranks become one. */
#ifndef TE_COMM_REDUCE_CUH
#define TE_COMM_REDUCE_CUH

#include "kernels/dev.cuh"

#define TE_D_INT32 5
#define TE_D_UINT8 6

/* Sums and averages of floats are inlined, the rest is called. */

/* elements of a word as floats */
template <int DTYPE> struct word_of {
	static constexpr int L = DTYPE == TE_D_FP32			   ? 1 :
				 DTYPE == TE_D_BF16 || DTYPE == TE_D_FP16 ? 2 :
									    4;

	static __device__ __forceinline__ void unpack(uint32_t w, float *v)
	{
		if (DTYPE == TE_D_FP32) {
			v[0] = __uint_as_float(w);
		} else if (DTYPE == TE_D_BF16) {
			v[0] = __uint_as_float(w << 16);
			v[1] = __uint_as_float(w & 0xffff0000u);
		} else {
#pragma unroll
			for (int k = 0; k < L / 2; k++) {
				const uint32_t h = DTYPE == TE_D_FP16 ?
							   w :
							   fp8x2_decode(DTYPE, w >> 16 * k);

				v[2 * k] = to_float(fp16{ (unsigned short)h });
				v[2 * k + 1] = to_float(fp16{ (unsigned short)(h >> 16) });
			}
		}
	}

	/* the conversions give the NaN of comm.h */
	static __device__ __forceinline__ uint32_t pack(const float *v)
	{
		if (DTYPE == TE_D_FP32)
			return v[0] != v[0] ? TE_K_COMM_NAN : __float_as_uint(v[0]);
		if (DTYPE == TE_D_BF16)
			return pack_bf16x2(v[0], v[1]);
		if (DTYPE == TE_D_FP16)
			return pack_fp16x2(v[0], v[1]);
		return fp8x2(DTYPE, v[0], v[1]) | fp8x2(DTYPE, v[2], v[3]) << 16;
	}
};

DEV uint32_t word(const uint4 &v, int k)
{
	return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

__device__ __noinline__ float divide_by(float x, int n)
{
	return __fdiv_rn(x, (float)n);
}

/* 1 / n of a power of two: a product with it is as exact, or rounded, as the quotient */
DEV float inverse(int n)
{
	return __int_as_float((128 - __ffs(n)) << 23);
}

DEV float divide(float x, int n)
{
	return n & (n - 1) ? divide_by(x, n) : mul(x, inverse(n));
}

/*
 * n is N, or at most that. All results are multiplied by a factor, which is 1 without an average:
 * so most code has no branch for averages.
 */
template <int N, int DTYPE> DEV uint4 sum(const uint4 v[N], int n, bool average)
{
	typedef word_of<DTYPE> W;
	const bool divides = average && n & (n - 1);
	const float factor = average && !divides ? inverse(n) : 1.0f;
	uint32_t w[4];

#pragma unroll
	for (int k = 0; k < 4; k++) {
		float s[W::L], x[W::L];

		W::unpack(word(v[0], k), s);
#pragma unroll
		for (int r = 1; r < N; r++) {
			if (r >= n)
				continue;
			W::unpack(word(v[r], k), x);
#pragma unroll
			for (int l = 0; l < W::L; l++)
				s[l] = add(s[l], x[l]);
		}
#pragma unroll
		for (int l = 0; l < W::L; l++)
			s[l] = N == 2 || N == 4 || !divides ? mul(s[l], factor) :
							       divide_by(s[l], n);
		w[k] = W::pack(s);
	}
	return make_uint4(w[0], w[1], w[2], w[3]);
}

/* minimum or maximum of the elements of two words */
template <int DTYPE> DEV uint32_t choose_floats(uint32_t a, uint32_t b, bool least)
{
	float x[word_of<DTYPE>::L], y[word_of<DTYPE>::L];

	word_of<DTYPE>::unpack(a, x);
	word_of<DTYPE>::unpack(b, y);
#pragma unroll
	for (int l = 0; l < word_of<DTYPE>::L; l++)
		x[l] = least ? min_nan(x[l], y[l]) : max_nan(x[l], y[l]);
	return word_of<DTYPE>::pack(x);
}

DEV uint32_t choose(int dtype, uint32_t a, uint32_t b, bool least)
{
	switch (dtype) {
	case TE_D_FP32:
		return choose_floats<TE_D_FP32>(a, b, least);
	case TE_D_BF16:
		return choose_floats<TE_D_BF16>(a, b, least);
	case TE_D_FP16:
		return choose_floats<TE_D_FP16>(a, b, least);
	case TE_D_E4M3:
		return choose_floats<TE_D_E4M3>(a, b, least);
	case TE_D_E5M2:
		return choose_floats<TE_D_E5M2>(a, b, least);
	case TE_D_INT32:
		return (uint32_t)(least ? min((int)a, (int)b) : max((int)a, (int)b));
	default:
		return least ? __vminu4(a, b) : __vmaxu4(a, b);
	}
}

/* sum or average of the integers in word k, of bits each */
DEV uint32_t add_ints(const uint4 *v, int k, int n, int bits, bool average)
{
	uint32_t w = 0;

#pragma unroll 1
	for (int at = 0; at < 32; at += bits) {
		int64_t s = 0;

#pragma unroll 1
		for (int r = 0; r < n; r++) {
			const uint32_t x = word(v[r], k);

			s += bits == 32 ? (int64_t)(int32_t)x : (int64_t)(x >> at & 0xff);
		}
		if (average)
			s /= n;
		w |= (uint32_t)(bits == 32 ? s : s & 0xff) << at;
	}
	return w;
}

/* minimum and maximum, and all of integers */
__device__ __noinline__ uint4 reduce_other(const struct te_k_comm &a, const uint4 *v)
{
	const bool add = a.op == TE_K_COMM_SUM || a.op == TE_K_COMM_AVG;
	uint32_t w[4];

#pragma unroll
	for (int k = 0; k < 4; k++) {
		w[k] = word(v[0], k);
#pragma unroll 1
		for (int r = 1; r < a.nranks && !add; r++)
			w[k] = choose(a.dtype, w[k], word(v[r], k), a.op == TE_K_COMM_MIN);
		if (add)
			w[k] = add_ints(v, k, a.nranks, a.dtype == TE_D_INT32 ? 32 : 8,
					a.op == TE_K_COMM_AVG);
	}
	return make_uint4(w[0], w[1], w[2], w[3]);
}

/* reduce the packets of all ranks; their number is N unless N is TE_K_COMM_RANKS */
template <int N> DEV uint4 reduce(const struct te_k_comm &a, const uint4 v[N])
{
	const int n = N == TE_K_COMM_RANKS ? a.nranks : N;
	const bool average = a.op == TE_K_COMM_AVG;

	if (N == TE_K_COMM_RANKS && n == 1)
		return v[0];
	if (a.dtype >= TE_D_INT32 || a.op == TE_K_COMM_MIN || a.op == TE_K_COMM_MAX) {
		uint4 copy[N]; /* so that v stays in registers */

#pragma unroll
		for (int r = 0; r < N; r++)
			copy[r] = v[r];
		return reduce_other(a, copy);
	}
	switch (a.dtype) {
	case TE_D_FP32:
		return sum<N, TE_D_FP32>(v, n, average);
	case TE_D_BF16:
		return sum<N, TE_D_BF16>(v, n, average);
	case TE_D_FP16:
		return sum<N, TE_D_FP16>(v, n, average);
	case TE_D_E4M3:
		return sum<N, TE_D_E4M3>(v, n, average);
	default:
		return sum<N, TE_D_E5M2>(v, n, average);
	}
}

#endif
