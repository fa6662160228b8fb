/*
 * fold.cu - a part of a reduction over ranks of several nodes. sm_90a. comm.h defines the results.
 *
 *  kernel  shapes                     blocks                          threads  B/element (BF16)
 *  fold    in T [nin][n], FP32 [n]    n / 1024, at most 1024          256      2 nin + 8
 *
 * Bound by the memory of the inputs, which is on other GPUs for all ranks but one. A thread has 16
 * bytes of up to four inputs in flight.
 */
#include "kernels/comm/comm.cuh"

DEV float combine(int op, float a, float b)
{
	return op == TE_K_COMM_MIN ? min_nan(a, b) :
	       op == TE_K_COMM_MAX ? max_nan(a, b) :
				     add(a, b);
}

/* E elements from i on, or, unless WHOLE, n of them */
template <int DTYPE, bool WHOLE> DEV void fold_at(const struct te_k_comm_fold &a, int64_t i, int n)
{
	typedef word_of<DTYPE> W;
	constexpr int E = 4 * W::L, ES = 16 / E;
	const uint8_t *in = (const uint8_t *)a.in + i * ES;
	float s[E], x[W::L];
	int first = 0;

	if (a.from) {
#pragma unroll
		for (int e = 0; e < E; e += 4)
			if (WHOLE)
				*(float4 *)(s + e) = *(const float4 *)(a.from + i + e);
			else
				for (int k = e; k < e + 4; k++)
					s[k] = k < n ? a.from[i + k] : 0;
	} else {
		const uint4 v = WHOLE ? *(const uint4 *)in : read_bytes(in, n * ES);

#pragma unroll
		for (int k = 0; k < 4; k++)
			W::unpack(word(v, k), s + k * W::L);
		first = 1;
	}
#pragma unroll 4
	for (int r = first; r < a.nin; r++) {
		const uint8_t *p = in + r * a.stride;
		const uint4 v = WHOLE ? *(const uint4 *)p : read_bytes(p, n * ES);

#pragma unroll
		for (int k = 0; k < 4; k++) {
			W::unpack(word(v, k), x);
#pragma unroll
			for (int l = 0; l < W::L; l++)
				s[k * W::L + l] = combine(a.op, s[k * W::L + l], x[l]);
		}
	}
	if (a.out) {
		uint8_t *out = (uint8_t *)a.out + i * ES;
		uint32_t w[4];

#pragma unroll
		for (int k = 0; k < 4; k++) {
#pragma unroll
			for (int l = 0; l < W::L && a.op == TE_K_COMM_AVG; l++)
				s[k * W::L + l] = divide(s[k * W::L + l], a.nranks);
			w[k] = W::pack(s + k * W::L);
		}
		if (WHOLE)
			*(uint4 *)out = make_uint4(w[0], w[1], w[2], w[3]);
		else
			write_bytes(out, n * ES, make_uint4(w[0], w[1], w[2], w[3]));
		return;
	}
#pragma unroll
	for (int e = 0; e < E; e += 4)
		if (WHOLE)
			*(float4 *)(a.sums + i + e) = *(const float4 *)(s + e);
		else
			for (int k = e; k < e + 4; k++)
				if (k < n)
					a.sums[i + k] = s[k];
}

template <int DTYPE> DEV void fold_body(const struct te_k_comm_fold &a)
{
	constexpr int E = 4 * word_of<DTYPE>::L;
	const bool vec = aligned(a.in) && aligned(a.out) && aligned(a.from) && aligned(a.sums) &&
			 a.stride % 16 == 0;
	const int64_t step = (int64_t)gridDim.x * COMM_FOLD_THREADS * E;
	int64_t i = ((int64_t)blockIdx.x * COMM_FOLD_THREADS + threadIdx.x) * E;

	for (; i < a.n; i += step)
		if (vec && i + E <= a.n)
			fold_at<DTYPE, true>(a, i, E);
		else
			fold_at<DTYPE, false>(a, i, clamp_int(a.n - i, 0, E));
}

#define FOLD(name, dtype)       \
	TE_KERNEL(comm_fold_##name, comm_fold, (COMM_FOLD_THREADS), fold_body<dtype>(a))
FOLD(fp32, TE_D_FP32)
FOLD(bf16, TE_D_BF16)
FOLD(fp16, TE_D_FP16)
FOLD(e4m3, TE_D_E4M3)
FOLD(e5m2, TE_D_E5M2)
