/*
 * heads.cu - heads of tokens, to and from the parts that ranks exchange. sm_90a. elem.h defines the
 * results.
 *
 *  kernel       shapes                       blocks           threads  B/element (BF16)
 *  heads_split  tokens T [nseqs ntokens, n]  nseqs * ntokens  to 256   4
 *  heads_join   the same                     nseqs * ntokens  to 256   4
 *
 * Bound by memory. A block has one token, n consecutive elements on that side. A thread has four
 * vectors of 8 elements in flight. Bits are moved as they are, except in heads that ranks share.
 */
#include "kernels/dev.cuh"
#include "kernels/elem/geometry.h"

/* U: elements that a thread moves at once, raw<T> or T itself */
template <class T, class U> struct row_of_heads {
	static constexpr int N = sizeof(U) / sizeof(T);
	T *tokens;     /* this block's token */
	T *parts;      /* parts of its sequence */
	int64_t token; /* its number in the sequence */
	int n;	       /* elements */
	int sharers;
	int64_t next; /* from a shared head in a part to the same one in the next */
};

template <class T, class U> DEV row_of_heads<T, U> row_begin(const struct te_k_heads &a)
{
	const int64_t seq = blockIdx.x / a.ntokens;
	row_of_heads<T, U> r;

	r.n = (a.nheads + 2 * a.nkv) * a.head_dim;
	r.next = te_k_heads_part(&a);
	r.tokens = (T *)a.tokens + (int64_t)blockIdx.x * r.n;
	r.parts = (T *)a.parts + seq * a.nranks * r.next;
	r.token = blockIdx.x - seq * a.ntokens;
	r.sharers = te_k_heads_sharers(&a);
	return r;
}

/* this thread's unit i of a group of HEADS_UNROLL: the first element in the row */
DEV int unit_at(int group, int i, int n)
{
	return ((group * HEADS_UNROLL + i) * (int)blockDim.x + (int)threadIdx.x) * n;
}

template <class T, class U>
DEV T *unit_part(const struct te_k_heads &a, const row_of_heads<T, U> &r, int at)
{
	const int h = at / a.head_dim;

	return r.parts + te_k_heads_at(&a, r.token, h) + (at - h * a.head_dim);
}

template <class T, class U> DEV bool is_shared(const struct te_k_heads &a,
					       const row_of_heads<T, U> &r, int at)
{
	return r.sharers > 1 && at >= a.nheads * a.head_dim;
}

template <class T, class U> DEV void split_body(const struct te_k_heads &a)
{
	const row_of_heads<T, U> r = row_begin<T, U>(a);
	U v[HEADS_UNROLL];

	for (int group = 0; unit_at(group, 0, r.N) < r.n; group++) {
#pragma unroll
		for (int i = 0; i < HEADS_UNROLL; i++) {
			const int at = unit_at(group, i, r.N);

			if (at < r.n)
				v[i] = *(const U *)(r.tokens + at);
		}
#pragma unroll
		for (int i = 0; i < HEADS_UNROLL; i++) {
			const int at = unit_at(group, i, r.N);
			T *to;

			if (at >= r.n)
				break;
			to = unit_part(a, r, at);
			*(U *)to = v[i];
			for (int k = 1; is_shared(a, r, at) && k < r.sharers; k++)
				*(U *)(to + k * r.next) = v[i];
		}
	}
}

template <class T, class U> DEV void add_to(float s[], const U &v)
{
	constexpr int N = sizeof(U) / sizeof(T);
	float x[N];

	if constexpr (N == 1)
		x[0] = to_float(v);
	else
		unpack(v, x);
#pragma unroll
	for (int e = 0; e < N; e++)
		s[e] = add(s[e], x[e]);
}

/* v and the units of the other ranks that share its head */
template <class T, class U> DEV U sum_of(const row_of_heads<T, U> &r, const T *from, const U &v)
{
	float s[r.N];

	if constexpr (r.N == 1)
		s[0] = to_float(v);
	else
		unpack(v, s);
	for (int k = 1; k < r.sharers; k++)
		add_to<T, U>(s, *(const U *)(from + k * r.next));
	if constexpr (r.N == 1)
		return from_float<T>(s[0]);
	else
		return pack<T>(s);
}

template <class T, class U> DEV void join_body(const struct te_k_heads &a)
{
	const row_of_heads<T, U> r = row_begin<T, U>(a);
	U v[HEADS_UNROLL];

	for (int group = 0; unit_at(group, 0, r.N) < r.n; group++) {
#pragma unroll
		for (int i = 0; i < HEADS_UNROLL; i++) {
			const int at = unit_at(group, i, r.N);

			if (at < r.n)
				v[i] = *(const U *)unit_part(a, r, at);
		}
#pragma unroll
		for (int i = 0; i < HEADS_UNROLL; i++) {
			const int at = unit_at(group, i, r.N);

			if (at >= r.n)
				break;
			if (is_shared(a, r, at))
				v[i] = sum_of(r, unit_part(a, r, at), v[i]);
			*(U *)(r.tokens + at) = v[i];
		}
	}
}

#define HEADS(way, T, t)                                                                    \
	extern "C" __global__ void __launch_bounds__(HEADS_THREADS)                         \
		te_k_heads_##way##_##t(const __grid_constant__ struct te_k_heads a)         \
	{                                                                                   \
		te_begin();                                                                 \
		if (a.head_dim % TE_V == 0 && aligned(a.tokens) && aligned(a.parts))        \
			way##_body<T, raw<T>>(a);                                           \
		else                                                                        \
			way##_body<T, T>(a);                                                \
	}
HEADS(split, float, fp32)
HEADS(split, bf16, bf16)
HEADS(join, float, fp32)
HEADS(join, bf16, bf16)
#undef HEADS
