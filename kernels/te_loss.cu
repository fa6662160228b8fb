/*
 * te_loss.cu - softmax cross-entropy. sm_90a.
 *
 *  kernel     shapes                   blocks  threads  shared  B/element (BF16)
 *  ce_fwd     logits T [rows, cols]    a row   512      128     2
 *  ce_reduce  [rows]                   1       1024     512     8 a row
 *  ce_bwd     logits T [rows, cols]    a row   512      0       4
 *
 * ce_fwd keeps a running maximum and a sum relative to it in each thread, so that a
 * row of any length is read once; threads are joined in a fixed order.
 */
#include "te_dev.cuh"

#define CE_THREADS 512

DEV bool counts(int32_t target, int64_t nclasses, int32_t ignore_index)
{
	return target != ignore_index && target >= 0 && target < nclasses;
}

/* sum over x of exp(x - m) for the largest x so far */
struct softmax {
	float m, sum;
};

/* what m stands for where nothing but -inf was seen: exp(-inf - 0) is 0 */
DEV float base_of(float m)
{
	return m == -TE_INF ? 0.0f : m;
}

DEV void softmax_add(struct softmax &s, const float v[TE_V])
{
	float m = s.m, sum = 0.0f, base;

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		m = fmaxf(m, v[e]);
	base = base_of(m);
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		sum += expf(v[e] - base);
	s.sum = s.sum * expf(s.m - base) + sum;
	s.m = m;
}

DEV struct softmax softmax_join(struct softmax a, struct softmax b)
{
	const float m = fmaxf(a.m, b.m), base = base_of(m);

	return { m, a.sum * expf(a.m - base) + b.sum * expf(b.m - base) };
}

template <class T> DEV void ce_fwd_body(const struct te_k_ce_fwd &a)
{
	__shared__ struct softmax part[CE_THREADS / 32];
	const int64_t r = blockIdx.x;
	const T *x = (const T *)a.logits + r * a.cols;
	const bool vec = a.cols % TE_V == 0 && aligned(x);
	const int64_t nvec = vec ? a.nclasses / TE_V : 0;
	struct softmax s = { -TE_INF, 0.0f };
	int64_t i = threadIdx.x;
	int32_t target;
	double lse;

	for (; i + 3 * CE_THREADS < nvec; i += 4 * CE_THREADS) {
		raw<T> w[4];

#pragma unroll
		for (int u = 0; u < 4; u++)
			w[u] = load_raw(x + (i + u * CE_THREADS) * TE_V);
#pragma unroll
		for (int u = 0; u < 4; u++) {
			float v[TE_V];

			unpack(w[u], v);
			softmax_add(s, v);
		}
	}
	for (; i < nvec; i += CE_THREADS) {
		float v[TE_V];

		load_vec(x + i * TE_V, v);
		softmax_add(s, v);
	}
	for (i = nvec * TE_V + threadIdx.x; i < a.nclasses; i += CE_THREADS * TE_V) {
		float v[TE_V];

#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const int64_t c = i + e * CE_THREADS;

			v[e] = c < a.nclasses ? to_float(x[c]) : -TE_INF;
		}
		softmax_add(s, v);
	}
#pragma unroll
	for (int d = 16; d; d >>= 1)
		s = softmax_join(s, { __shfl_xor_sync(0xffffffffu, s.m, d),
				      __shfl_xor_sync(0xffffffffu, s.sum, d) });
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = s;
	__syncthreads();
	if (threadIdx.x)
		return;
	for (int w = 1; w < CE_THREADS / 32; w++)
		s = softmax_join(s, part[w]);
	/* a row of nothing but -inf: inf - inf on the host, NaN */
	lse = s.m == -TE_INF ? (double)(TE_INF - TE_INF) : (double)s.m + log((double)s.sum);
	target = a.targets[r];
	a.lse[r] = (float)lse;
	a.row_loss[r] = counts(target, a.nclasses, a.ignore_index) ?
				(float)(lse - (double)to_float(x[target])) :
				0.0f;
}

extern "C" __global__ void __launch_bounds__(1024)
	te_k_ce_reduce(const __grid_constant__ struct te_k_ce_reduce a)
{
	te_begin();
	__shared__ double part[32];
	__shared__ int64_t number[32];
	double sum = 0.0;
	int64_t n = 0;

	for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x)
		if (counts(a.targets[r], a.nclasses, a.ignore_index)) {
			sum = __dadd_rn(sum, (double)a.row_loss[r]);
			n++;
		}
	sum = warp_sum(sum);
#pragma unroll
	for (int d = 16; d; d >>= 1)
		n += __shfl_xor_sync(0xffffffffu, n, d);
	if (threadIdx.x % 32 == 0) {
		part[threadIdx.x / 32] = sum;
		number[threadIdx.x / 32] = n;
	}
	__syncthreads();
	if (threadIdx.x)
		return;
	for (int w = 1; w < 32; w++) {
		sum = __dadd_rn(sum, part[w]);
		n += number[w];
	}
	*a.loss = n ? (float)__ddiv_rn(sum, (double)n) : 0.0f;
	*a.count = (float)n;
}

template <class T> DEV void ce_bwd_body(const struct te_k_ce_bwd &a)
{
	const int64_t r = blockIdx.x;
	const T *x = (const T *)a.logits + r * a.cols;
	T *dx = (T *)a.dlogits + r * a.cols;
	const int32_t target = a.targets[r];
	const bool on = counts(target, a.nclasses, a.ignore_index);
	const bool vec = a.cols % TE_V == 0 && aligned(x) && aligned(dx);
	const float factor = __fdiv_rn(a.grad_scale, *a.count), lse = a.lse[r];

	if (!vec) {
		for (int64_t c = threadIdx.x; c < a.cols; c += CE_THREADS) {
			float p = 0.0f;

			if (on && c < a.nclasses) {
				p = expf(sub(to_float(x[c]), lse));
				p = mul(c == target ? sub(p, 1.0f) : p, factor);
			}
			dx[c] = from_float<T>(p);
		}
		return;
	}
	for (int64_t c = threadIdx.x * TE_V; c < a.cols; c += 2 * CE_THREADS * TE_V) {
		raw<T> w[2];

#pragma unroll
		for (int u = 0; u < 2; u++) {
			const int64_t cu = c + u * CE_THREADS * TE_V;

			w[u] = on && cu < a.nclasses ? load_raw(x + cu) : zero_raw<T>();
		}
#pragma unroll
		for (int u = 0; u < 2; u++) {
			const int64_t cu = c + u * CE_THREADS * TE_V;
			const int n = on ? clamp_int(a.nclasses - cu, 0, TE_V) : 0;
			const int64_t hit = target - cu;
			float v[TE_V];

			if (cu >= a.cols)
				break;
			unpack(w[u], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				float p = expf(sub(v[e], lse));

				p = mul(e == hit ? sub(p, 1.0f) : p, factor);
				v[e] = e < n ? p : 0.0f;
			}
			store_vec(dx + cu, v);
		}
	}
}

#define TE_NAME(T, t)                                                                         \
	extern "C" __global__ void __launch_bounds__(CE_THREADS)                              \
		te_k_ce_fwd_##t(const __grid_constant__ struct te_k_ce_fwd a)                 \
	{                                                                                     \
		te_begin();                                                                   \
		ce_fwd_body<T>(a);                                                            \
	}                                                                                     \
	extern "C" __global__ void __launch_bounds__(CE_THREADS)                              \
		te_k_ce_bwd_##t(const __grid_constant__ struct te_k_ce_bwd a)                 \
	{                                                                                     \
		te_begin();                                                                   \
		ce_bwd_body<T>(a);                                                            \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
