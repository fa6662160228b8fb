/*
 * te_loss.cu - softmax cross-entropy over logits [rows, cols].
 *
 * forward and backward: one block of 512 threads a row, 8 elements a thread and turn where rows
 *   are vectors. Forward keeps a running maximum and sum a thread, so it reads a row once:
 *   sizeof(T) bytes an element; backward reads and writes one: 2 sizeof(T).
 * reduce: one block of 1024 threads, FP64.
 * Static shared memory below 1 KiB. sm_90a.
 */
#include "te_dev.cuh"

#define ROW_THREADS 512

DEV bool counts(int32_t target, int64_t nclasses, int32_t ignore_index)
{
	return target != ignore_index && target >= 0 && target < nclasses;
}

/* sum of exp(x - m) over what a thread saw */
struct online {
	float m, s;
};

DEV void see(struct online *o, float x)
{
	if (x > o->m) {
		o->s = o->s * expf(o->m - x) + 1.0f;
		o->m = x;
	} else {
		/* NaN comes here and stays; x = m = -inf adds nothing */
		o->s += x == -TE_INF ? 0.0f : expf(x - o->m);
	}
}

DEV struct online join(struct online a, struct online b)
{
	const float m = fmaxf(a.m, b.m);
	const float sa = a.m == -TE_INF ? a.s : a.s * expf(a.m - m);
	const float sb = b.m == -TE_INF ? b.s : b.s * expf(b.m - m);

	return online{ m, sa + sb };
}

DEV struct online block_join(struct online o)
{
	__shared__ struct online part[ROW_THREADS / 32];
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
	for (int d = 16; d; d >>= 1) {
		struct online other = { __shfl_xor_sync(0xffffffffu, o.m, d),
					__shfl_xor_sync(0xffffffffu, o.s, d) };

		o = join(o, other);
	}
	if (lane == 0)
		part[warp] = o;
	__syncthreads();
	o = lane < ROW_THREADS / 32 ? part[lane] : online{ -TE_INF, 0.0f };
#pragma unroll
	for (int d = ROW_THREADS / 64; d; d >>= 1) {
		struct online other = { __shfl_xor_sync(0xffffffffu, o.m, d),
					__shfl_xor_sync(0xffffffffu, o.s, d) };

		o = join(o, other);
	}
	return o;
}

template <class T> DEV void ce_fwd(const struct te_k_ce_fwd &a)
{
	const int64_t r = blockIdx.x;
	const T *x = (const T *)a.logits + r * a.cols;
	const bool vec = a.cols % TE_V == 0 && aligned(x);
	struct online o = { -TE_INF, 0.0f };
	int64_t c = 0;

	if (vec) {
		const int64_t whole = a.nclasses / TE_V;

		for (int64_t i = threadIdx.x; i < whole; i += ROW_THREADS) {
			float v[TE_V];

			load_vec(x + i * TE_V, v);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				see(&o, v[e]);
		}
		c = whole * TE_V;
	}
	for (c += threadIdx.x; c < a.nclasses; c += ROW_THREADS)
		see(&o, to_float(x[c]));
	o = block_join(o);
	if (threadIdx.x == 0) {
		const int32_t t = a.targets[r];
		const double lse = (double)o.m + log((double)o.s);

		a.lse[r] = (float)lse;
		a.row_loss[r] = counts(t, a.nclasses, a.ignore_index) ?
					(float)(lse - (double)to_float(x[t])) :
					0.0f;
	}
}

DEV float grad(float x, bool hot, float lse, float f)
{
	const float p = expf(x - lse);

	return mul(hot ? sub(p, 1.0f) : p, f);
}

template <class T> DEV void ce_bwd(const struct te_k_ce_bwd &a)
{
	const int64_t r = blockIdx.x;
	const T *x = (const T *)a.logits + r * a.cols;
	T *dx = (T *)a.dlogits + r * a.cols;
	const int32_t t = a.targets[r];
	const bool on = counts(t, a.nclasses, a.ignore_index);
	const float f = __fdiv_rn(a.grad_scale, *a.count), lse = a.lse[r];
	const bool vec = a.cols % TE_V == 0 && aligned(x) && aligned(dx);
	int64_t c = 0;

	if (vec) {
		for (int64_t i = threadIdx.x; i < a.cols / TE_V; i += ROW_THREADS) {
			float v[TE_V];

			load_vec(x + i * TE_V, v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				const int64_t k = i * TE_V + e;

				v[e] = on && k < a.nclasses ? grad(v[e], k == t, lse, f) : 0.0f;
			}
			store_vec(dx + i * TE_V, v);
		}
		return;
	}
	for (c = threadIdx.x; c < a.cols; c += ROW_THREADS)
		dx[c] = from_float<T>(on && c < a.nclasses ?
					      grad(to_float(x[c]), c == t, lse, f) :
					      0.0f);
}

extern "C" __global__ void __launch_bounds__(1024)
	te_k_ce_reduce(const __grid_constant__ struct te_k_ce_reduce a)
{
	__shared__ double sums[32];
	__shared__ double ns[32];
	double sum = 0.0, n = 0.0;

	for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x)
		if (counts(a.targets[r], a.nclasses, a.ignore_index)) {
			sum += (double)a.row_loss[r];
			n += 1.0;
		}
	sum = warp_sum(sum);
	n = warp_sum(n);
	if (threadIdx.x % 32 == 0) {
		sums[threadIdx.x / 32] = sum;
		ns[threadIdx.x / 32] = n;
	}
	__syncthreads();
	if (threadIdx.x < 32) {
		sum = warp_sum(sums[threadIdx.x]);
		n = warp_sum(ns[threadIdx.x]);
		if (threadIdx.x == 0) {
			*a.loss = n > 0.0 ? (float)(sum / n) : 0.0f;
			*a.count = (float)n;
		}
	}
}

#define KERNELS(NAME, T)                                                                        \
	extern "C" __global__ void __launch_bounds__(ROW_THREADS)                               \
		te_k_ce_fwd_##NAME(const __grid_constant__ struct te_k_ce_fwd a)                \
	{                                                                                       \
		ce_fwd<T>(a);                                                                   \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(ROW_THREADS)                               \
		te_k_ce_bwd_##NAME(const __grid_constant__ struct te_k_ce_bwd a)                \
	{                                                                                       \
		ce_bwd<T>(a);                                                                   \
	}
KERNELS(fp32, float)
KERNELS(bf16, bf16)
