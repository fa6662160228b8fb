/*
 * dev.cuh - shared by all device code but attention: arithmetic without contraction, elements of T
 * as floats, FP8 codes, reductions, flat arrays.
 *
 * A vector is TE_V = 8 elements: 16 bytes of BF16, 32 of FP32, 8 of FP8. A kernel accesses vectors
 * if every row starts on one, that is if the row width is a multiple of 8 and the pointers are
 * aligned to 16 bytes, and single elements otherwise.
 */
#ifndef TE_DEV_CUH
#define TE_DEV_CUH

#include "kernels/approx.cuh"
#include "kernels/fp8.cuh"
#include "kernels/tile.h"

#define TE_INF __int_as_float(0x7f800000)
#define TE_FLT_MAX __int_as_float(0x7f7fffff)

struct bf16 {
	unsigned short bits;
};
struct fp16 {
	unsigned short bits;
};

/* one rounding per operation: the compiler does not fuse these into multiply-adds */
DEV float mul(float a, float b)
{
	return __fmul_rn(a, b);
}
DEV float add(float a, float b)
{
	return __fadd_rn(a, b);
}
DEV float sub(float a, float b)
{
	return __fsub_rn(a, b);
}

/* a float with these functions as its operators, for formulas */
struct num {
	float v;
	__device__ __forceinline__ num(float x) : v(x)
	{
	}
};
DEV num operator+(num a, num b)
{
	return add(a.v, b.v);
}
DEV num operator-(num a, num b)
{
	return sub(a.v, b.v);
}
DEV num operator*(num a, num b)
{
	return mul(a.v, b.v);
}
DEV num operator/(num a, num b)
{
	return __fdiv_rn(a.v, b.v);
}

/*
 * IEEE division and square root branch on very large and very small operands, so that consecutive
 * ones cannot overlap. The following are the same without the branch, for a limited range.
 */

/* 1 / d, for 2^-100 < d < 2^100 */
DEV float plain_reciprocal(float d)
{
	const float r = reciprocal_approx(d);

	return __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
}

/* x / n for a number of elements n and its reciprocal; off by an ulp below 2^-100 */
DEV float plain_quotient(float x, float n, float reciprocal)
{
	float q = mul(x, reciprocal);

	if (!(fabsf(q) < TE_INF))
		return q;
#pragma unroll
	for (int i = 0; i < 2; i++)
		q = __fmaf_rn(__fmaf_rn(-q, n, x), reciprocal, q);
	return q;
}

/* 1 / sqrt(x), both rounded to nearest */
DEV float reciprocal_root(float x)
{
	float r, root;

	if (!(x > 0x1p-100f && x < 0x1p100f))
		return __fdiv_rn(1.0f, __fsqrt_rn(x));
	asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	root = mul(x, r);
	return plain_reciprocal(__fmaf_rn(__fmaf_rn(-root, root, x), mul(0.5f, r), root));
}

/* --- elements ----------------------------------------------------------- */

DEV float to_float(float x)
{
	return x;
}
DEV float to_float(bf16 x)
{
	return __uint_as_float((uint32_t)x.bits << 16);
}
DEV float to_float(fp16 x)
{
	float f;

	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
	return f;
}

template <class T> DEV T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
	return x;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
	bf16 r;

	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
	return r;
}
template <> __device__ __forceinline__ fp16 from_float<fp16>(float x)
{
	fp16 r;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
	return r;
}

template <class T> DEV float round_to(float x)
{
	return to_float(from_float<T>(x));
}

/* TE_V elements as stored in memory: BF16 loads in flight need half the registers of floats */
template <class T> struct raw {
	uint4 q[sizeof(T) / 2];
};

/*
 * ONCE: evict first from L2, for data that is read once, so that data that is read again stays,
 * such as the copies of weights that a backward pass reads.
 */
template <bool ONCE = false, class T> DEV raw<T> load_raw(const T *p)
{
	const uint4 *q = (const uint4 *)p;
	raw<T> r;

#pragma unroll
	for (int i = 0; i < (int)sizeof(T) / 2; i++)
		r.q[i] = ONCE ? __ldcs(q + i) : q[i];
	return r;
}

/* ONCE: evicted from L2 first, since nothing reads it soon */
template <bool ONCE, class W> DEV void store_word(W *p, const W &w)
{
	if (ONCE)
		__stcs(p, w);
	else
		*p = w;
}

template <bool ONCE = false, class T> DEV void store_raw(T *p, const raw<T> &r)
{
#pragma unroll
	for (int i = 0; i < (int)sizeof(T) / 2; i++)
		store_word<ONCE>((uint4 *)p + i, r.q[i]);
}

template <class T> DEV raw<T> zero_raw(void)
{
	raw<T> r;

#pragma unroll
	for (int i = 0; i < (int)sizeof(T) / 2; i++)
		r.q[i] = make_uint4(0, 0, 0, 0);
	return r;
}

DEV void unpack(const raw<float> &r, float v[TE_V])
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		v[4 * i] = __uint_as_float(r.q[i].x);
		v[4 * i + 1] = __uint_as_float(r.q[i].y);
		v[4 * i + 2] = __uint_as_float(r.q[i].z);
		v[4 * i + 3] = __uint_as_float(r.q[i].w);
	}
}

DEV void unpack(const raw<bf16> &r, float v[TE_V])
{
	const uint32_t w[4] = { r.q[0].x, r.q[0].y, r.q[0].z, r.q[0].w };

#pragma unroll
	for (int i = 0; i < 4; i++) {
		v[2 * i] = __uint_as_float(w[i] << 16);
		v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
	}
}

DEV void unpack(const raw<fp16> &r, float v[TE_V])
{
	const uint32_t w[4] = { r.q[0].x, r.q[0].y, r.q[0].z, r.q[0].w };

#pragma unroll
	for (int i = 0; i < 4; i++) {
		v[2 * i] = to_float(fp16{ (unsigned short)w[i] });
		v[2 * i + 1] = to_float(fp16{ (unsigned short)(w[i] >> 16) });
	}
}

/* TE_V floats rounded to T */
template <class T> DEV raw<T> pack(const float v[TE_V]);
template <> __device__ __forceinline__ raw<float> pack<float>(const float v[TE_V])
{
	raw<float> r;

#pragma unroll
	for (int i = 0; i < 2; i++)
		r.q[i] = make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]),
				    __float_as_uint(v[4 * i + 2]), __float_as_uint(v[4 * i + 3]));
	return r;
}

#define PACK2(NAME, PTX)                                                             \
	DEV uint32_t NAME(float lo, float hi)                                        \
	{                                                                            \
		uint32_t r;                                                          \
                                                                                     \
		asm(PTX " %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));                \
		return r;                                                            \
	}
PACK2(pack_bf16x2, "cvt.rn.bf16x2.f32")
PACK2(pack_fp16x2, "cvt.rn.f16x2.f32")
#undef PACK2

template <> __device__ __forceinline__ raw<bf16> pack<bf16>(const float v[TE_V])
{
	raw<bf16> r;

	r.q[0] = make_uint4(pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]),
			    pack_bf16x2(v[4], v[5]), pack_bf16x2(v[6], v[7]));
	return r;
}
template <> __device__ __forceinline__ raw<fp16> pack<fp16>(const float v[TE_V])
{
	raw<fp16> r;

	r.q[0] = make_uint4(pack_fp16x2(v[0], v[1]), pack_fp16x2(v[2], v[3]),
			    pack_fp16x2(v[4], v[5]), pack_fp16x2(v[6], v[7]));
	return r;
}

template <class T> DEV void load_vec(const T *p, float v[TE_V])
{
	unpack(load_raw(p), v);
}

template <class T> DEV void store_vec(T *p, const float v[TE_V])
{
	store_raw(p, pack<T>(v));
}

/*
 * Two consecutive elements as stored in memory, of which the first n exist; the others are 0. VEC:
 * n is 0 or 2, and p is aligned to two elements.
 */
template <class T> struct raw2 {
	uint32_t w[sizeof(T) / 2];
};

template <bool VEC> DEV raw2<float> load2(const float *p, int n)
{
	if (VEC) {
		const uint2 w = n ? *(const uint2 *)p : make_uint2(0, 0);

		return { { w.x, w.y } };
	}
	return { { n > 0 ? __float_as_uint(p[0]) : 0, n > 1 ? __float_as_uint(p[1]) : 0 } };
}

template <bool VEC> DEV raw2<bf16> load2(const bf16 *p, int n)
{
	if (VEC)
		return { { n ? *(const uint32_t *)p : 0 } };
	return { { (n > 0 ? p[0].bits : 0u) | (n > 1 ? (uint32_t)p[1].bits << 16 : 0u) } };
}

DEV float2 unpack2(const raw2<float> &r)
{
	return make_float2(__uint_as_float(r.w[0]), __uint_as_float(r.w[1]));
}

DEV float2 unpack_bf16x2(uint32_t w)
{
	return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}

DEV float2 unpack2(const raw2<bf16> &r)
{
	return unpack_bf16x2(r.w[0]);
}

/* the first n elements, n < TE_V; the others are 0 */
template <class T> DEV void load_some(const T *p, int n, float v[TE_V])
{
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		v[e] = e < n ? to_float(p[e]) : 0.0f;
}

template <class T> DEV void store_some(T *p, int n, const float v[TE_V])
{
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		if (e < n)
			p[e] = from_float<T>(v[e]);
}

DEV bool aligned(const void *p)
{
	return ((uint64_t)p & 15) == 0;
}

DEV int clamp_int(int64_t x, int lo, int hi)
{
	return x < lo ? lo : x > hi ? hi : (int)x;
}

/* --- FP8 ---------------------------------------------------------------- */

/* for elements times scale */
DEV uint2 fp8x8(int dtype, const float v[TE_V], float scale)
{
	float s[TE_V];

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		s[e] = mul(v[e], scale);
	return fp8x8(dtype, s);
}

/* b[c] = byte c of a[0..3], a[0]'s lowest */
DEV void transpose4(const uint32_t a[4], uint32_t b[4])
{
	const uint32_t t0 = __byte_perm(a[0], a[1], 0x5140), t1 = __byte_perm(a[2], a[3], 0x5140);
	const uint32_t t2 = __byte_perm(a[0], a[1], 0x7362), t3 = __byte_perm(a[2], a[3], 0x7362);

	b[0] = __byte_perm(t0, t1, 0x5410);
	b[1] = __byte_perm(t0, t1, 0x7632);
	b[2] = __byte_perm(t2, t3, 0x5410);
	b[3] = __byte_perm(t2, t3, 0x7632);
}

/* a pair of codes as two FP16 numbers: exact, since FP16 has both formats' values */
DEV uint32_t fp8x2_decode(int dtype, uint32_t codes)
{
#if __CUDA_ARCH__ >= 890
	const unsigned short c = (unsigned short)codes;
	uint32_t r;

	if (dtype == TE_D_E4M3)
		asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(c));
	else
		asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"(c));
	return r;
#else
	/* the upper byte of the FP16 number; E4M3: shifted by one, 2^-8 of the value */
	const uint32_t c = __byte_perm(codes, 0, 0x1404), sign = c & 0x80008000u;
	uint32_t r, nan;

	if (dtype != TE_D_E4M3)
		return c;
	asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(c >> 1 & 0x3f803f80u), "r"(0x5c005c00u));
	/* 480 would be the value of the NaN's code */
	asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(nan) : "r"(r), "r"(0x5f805f80u));
	return (r ^ (nan & 0x21802180u)) | sign;
#endif
}

/* --- reductions --------------------------------------------------------- */

DEV float warp_max(float m)
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
		m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
	return m;
}

/* every lane gets the same bits: addition is commutative, and all lanes use the same tree */
DEV float warp_sum(float s)
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
		s = add(s, __shfl_xor_sync(0xffffffffu, s, d));
	return s;
}

DEV double warp_sum(double s)
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
		s = __dadd_rn(s, __shfl_xor_sync(0xffffffffu, s, d));
	return s;
}

/* fold the block's largest m (see amax_of) into *amax; called by all threads of the block */
DEV void block_amax(float *amax, float m)
{
	__shared__ float part[32];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, nwarps = blockDim.x / 32;

	m = warp_amax(m);
	if (lane == 0)
		part[warp] = m;
	__syncthreads();
	if (warp == 0) {
		m = warp_amax(lane < nwarps ? part[lane] : 0.0f);
		if (lane == 0)
			atomic_amax(amax, m);
	}
}

/* --- flat arrays -------------------------------------------------------- */

/*
 * Queues the copy of a vector to shared memory (cp.async). Its words are nthreads apart there:
 * threads of a warp use different banks.
 */
template <class T> DEV void copy_ahead(uint4 *to, const T *from, int nthreads)
{
#pragma unroll
	for (int q = 0; q < (int)sizeof(T) / 2; q++)
		asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
				     (uint32_t)__cvta_generic_to_shared(to + q * nthreads)),
			     "l"((const uint4 *)from + q)
			     : "memory");
}

/* index of the first element of this thread's vector u */
DEV int64_t flat_at(int u)
{
	return ((int64_t)blockIdx.x * TE_FLAT_UNROLL + u) * (TE_V * TE_FLAT_THREADS) +
	       (int64_t)threadIdx.x * TE_V;
}

/* vector u of n elements; 0 after the end. vec: x is aligned */
template <class T> DEV void flat_get(const T *x, int64_t n, bool vec, int u, float v[TE_V])
{
	const int64_t at = flat_at(u);
	const int left = clamp_int(n - at, 0, TE_V);

	if (vec && left == TE_V)
		load_vec(x + at, v);
	else
		load_some(x + at, left, v);
}

template <class T> DEV void flat_put(T *y, int64_t n, bool vec, int u, const float v[TE_V])
{
	const int64_t at = flat_at(u);
	const int left = clamp_int(n - at, 0, TE_V);

	if (vec && left == TE_V)
		store_vec(y + at, v);
	else
		store_some(y + at, left, v);
}

/* kernel te_k_NAME of a struct te_k_ARGS a, with BOUNDS as in __launch_bounds__(): te_begin(), then
 * the call that follows */
#define TE_KERNEL(NAME, ARGS, BOUNDS, ...)                                                    \
	extern "C" __global__ void __launch_bounds__ BOUNDS                                   \
		te_k_##NAME(const __grid_constant__ struct te_k_##ARGS a)                     \
	{                                                                                     \
		te_begin();                                                                   \
		__VA_ARGS__;                                                                  \
	}

#endif
