/*
 * qk.cu - RMSNorm of the queries and keys among packed heads. Any architecture.
 *
 *  kernel       shapes                                    blocks             threads  shared
 *  qk_norm_fwd  x, y T [rows, nq qcols + 2 nk kcols]      8 groups, or one   256      128
 *  qk_norm_bwd  dy, x, dx, the same                       the same           256      128
 *  qk_norm_dw   dy, x, the same                           64 rows, 128 cols  128      0
 *
 * A warp computes a group, which is a head, or a block does if queries have more than 1024 columns.
 * A group is read again from L1 after its sums are known. Threads of qk_norm_dw add the groups and
 * rows of a column in order, so that the partial sums have the bits of the reference.
 */
#include "kernels/norm/rows.cuh"

/* a group of a row, with the threads that compute it */
struct group {
	struct team w;
	int64_t g, at, cols; /* at: its first element */
};

template <class A> DEV struct group group_of(const A &a)
{
	const int64_t ngroups = a.nq + 2 * a.nk;
	struct group p;

	p.w = team_of(a.qcols);
	p.g = p.w.row % ngroups;
	p.w.row /= ngroups;
	p.cols = p.g < a.nq ? a.qcols : a.kcols;
	p.at = p.w.row * TE_K_QK_COLS(&a) +
	       (p.g < a.nq ? p.g * a.qcols : a.nq * a.qcols + (p.g - a.nq) * a.kcols);
	return p;
}

template <class T> DEV void group_copy(const struct group &p, const T *from, T *to)
{
	for (int64_t c = p.w.t; c < p.cols; c += p.w.tpr)
		to[p.at + c] = from[p.at + c];
}

DEV float qk_gain(const float *gamma, bool zero_centered, int64_t c)
{
	return zero_centered ? add(1.0f, gamma[c]) : gamma[c];
}

template <class T> DEV void qk_norm_fwd_body(const struct te_k_qk_norm_fwd &a)
{
	__shared__ float2 part[NORM_THREADS / 32];
	const struct group p = group_of(a);
	const T *x = (const T *)a.x;
	T *y = (T *)a.y;
	const float *gamma = p.g < a.nq ? a.gamma_q : a.gamma_k;
	const float n = (float)p.cols;
	float sum = 0.0f, zero = 0.0f, rstd;

	if (p.w.row >= a.rows)
		return;
	if (p.g >= a.nq + a.nk) {
		if (x != y)
			group_copy(p, x, y);
		return;
	}
	for (int64_t c = p.w.t; c < p.cols; c += p.w.tpr) {
		const float v = to_float(x[p.at + c]);

		sum = add(sum, mul(v, v));
	}
	team_sum(p.w, part, sum, zero);
	rstd = reciprocal_root(add(plain_quotient(sum, n, plain_reciprocal(n)), a.eps));
	if (p.w.t == 0)
		a.rstd[p.w.row * (a.nq + a.nk) + p.g] = rstd;
	for (int64_t c = p.w.t; c < p.cols; c += p.w.tpr)
		y[p.at + c] = from_float<T>(normed(to_float(x[p.at + c]), 0.0f, rstd,
						   qk_gain(gamma, a.zero_centered, c)));
}

template <class T> DEV void qk_norm_bwd_body(const struct te_k_qk_norm_bwd &a)
{
	__shared__ float2 part[NORM_THREADS / 32];
	const struct group p = group_of(a);
	const T *dy = (const T *)a.dy, *x = (const T *)a.x;
	T *dx = (T *)a.dx;
	const float *gamma = p.g < a.nq ? a.gamma_q : a.gamma_k;
	const float n = (float)p.cols;
	float sum = 0.0f, zero = 0.0f, mean, rstd;

	if (p.w.row >= a.rows)
		return;
	if (p.g >= a.nq + a.nk) {
		if (dy != dx)
			group_copy(p, dy, dx);
		return;
	}
	rstd = a.rstd[p.w.row * (a.nq + a.nk) + p.g];
	for (int64_t c = p.w.t; c < p.cols; c += p.w.tpr)
		sum = add(sum, mul(mul(to_float(dy[p.at + c]), qk_gain(gamma, a.zero_centered, c)),
				   mul(to_float(x[p.at + c]), rstd)));
	team_sum(p.w, part, sum, zero);
	mean = plain_quotient(sum, n, plain_reciprocal(n));
	for (int64_t c = p.w.t; c < p.cols; c += p.w.tpr) {
		const float g = mul(to_float(dy[p.at + c]), qk_gain(gamma, a.zero_centered, c));
		const float xhat = mul(to_float(x[p.at + c]), rstd);

		dx[p.at + c] = from_float<T>(mul(rstd, sub(g, mul(xhat, mean))));
	}
}

template <class T> DEV void qk_norm_dw_body(const struct te_k_qk_norm_dw &a)
{
	const int64_t nblocks = (a.qcols + a.kcols + QK_DW_COLS - 1) / QK_DW_COLS;
	const int64_t p = blockIdx.x / nblocks;
	const int64_t i = blockIdx.x % nblocks * QK_DW_COLS + threadIdx.x;
	const bool keys = i >= a.qcols;
	const int64_t width = keys ? a.kcols : a.qcols, c = keys ? i - a.qcols : i;
	const int64_t first = keys ? a.nq : 0, n = keys ? a.nk : a.nq;
	const int64_t r0 = p * TE_K_PART_ROWS;
	const int64_t end = r0 + TE_K_PART_ROWS < a.rows ? r0 + TE_K_PART_ROWS : a.rows;
	float sum = 0.0f;

	if (i >= a.qcols + a.kcols)
		return;
	for (int64_t r = r0; r < end; r++) {
		const int64_t at = r * TE_K_QK_COLS(&a) + (keys ? a.nq * a.qcols : 0) + c;
		const float *rstd = a.rstd + r * (a.nq + a.nk) + first;

#pragma unroll 4
		for (int64_t g = 0; g < n; g++) {
			const float dy = to_float(((const T *)a.dy)[at + g * width]);
			const float x = to_float(((const T *)a.x)[at + g * width]);

			sum = add(sum, mul(dy, mul(x, rstd[g])));
		}
	}
	if (keys)
		a.part_k[p * a.kcols + c] = sum;
	else
		a.part_q[p * a.qcols + c] = sum;
}

#define TE_NAME(T, t)                                                                 \
	extern "C" __global__ void __launch_bounds__(QK_THREADS)                      \
		te_k_qk_norm_fwd_##t(const __grid_constant__ struct te_k_qk_norm_fwd a) \
	{                                                                             \
		te_begin();                                                           \
		qk_norm_fwd_body<T>(a);                                               \
	}                                                                             \
	extern "C" __global__ void __launch_bounds__(QK_THREADS)                      \
		te_k_qk_norm_bwd_##t(const __grid_constant__ struct te_k_qk_norm_bwd a) \
	{                                                                             \
		te_begin();                                                           \
		qk_norm_bwd_body<T>(a);                                               \
	}                                                                             \
	extern "C" __global__ void __launch_bounds__(QK_DW_COLS)                      \
		te_k_qk_norm_dw_##t(const __grid_constant__ struct te_k_qk_norm_dw a)   \
	{                                                                             \
		te_begin();                                                           \
		qk_norm_dw_body<T>(a);                                                \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
