/*
 * loss.cu - softmax cross-entropy. sm_90a.
 *
 *  kernel     shapes                   blocks  threads   shared  B/element (BF16)
 *  ce_fwd     logits T [rows, cols]    a row   32..512   128     2
 *  ce_join    parts [nparts, 2, rows]  128 rows  128     0       12 per row and part
 *  ce_reduce  [rows]                   1       32..1024  384     8 per row
 *  ce_bwd     logits T [rows, cols]    a row   32..512   0       4
 *  ce_count   [rows]                   1       32..1024  128     4 per row
 *  ce_grad    logits T [rows, cols]    a row   32..512   a row   4
 *
 * ce_fwd keeps a running maximum and a sum relative to it in each thread (online softmax), so that
 * a row of any length is read once; the threads' results are combined in a fixed order. A block
 * has only as many threads as its row has vectors, and all loads of a row's last step are issued
 * together, because short rows are bound by latency.
 *
 * ce_grad reads a row once: each thread copies its vectors to shared memory, all at once, adds them
 * up as in ce_fwd while later ones arrive, and computes the gradient from there. Only the thread
 * that copied a vector reads it. Of ce_grad_long the last vectors are in registers, which shared
 * memory has no room for; ce_grad_twice reads longer rows twice.
 */
#include "kernels/dev.cuh"
#include "kernels/loss/geometry.h"

DEV bool counts(int32_t target, int64_t nclasses, int32_t ignore_index)
{
	return target != ignore_index && target >= 0 && target < nclasses;
}

/* the columns that are classes */
DEV int64_t columns(int64_t cols, int64_t nclasses, int64_t first)
{
	return max(min(cols, nclasses - first), (int64_t)0);
}

/* m: the largest x so far; sum: of exp(x - m) over all x so far */
struct softmax {
	float m, sum;
};

/* m, or 0 if all x so far are -inf: exp(-inf - 0) is 0 */
DEV float base_of(float m)
{
	return m == -TE_INF ? 0.0f : m;
}

/*
 * exp(x) for an x of at most 0, for logits of type T: of BF16 within 2^-23 (2 - x) of itself, far
 * below the rounding of their gradients; of FP32 by expf, which has three times the instructions.
 */
template <class T> DEV float exp_of(float x)
{
	return sizeof(T) == 2 ? exp2_approx(mul(x, 0x1.715476p+0f)) : expf(x);
}

template <class T> DEV void softmax_add(struct softmax &s, const float v[TE_V])
{
	float m = s.m, sum = 0.0f, base;

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		m = fmaxf(m, v[e]);
	base = base_of(m);
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		sum += exp_of<T>(v[e] - base);
	s.sum = s.sum * exp_of<T>(s.m - base) + sum;
	s.m = m;
}

DEV float loss_of(float m, double hit, double log_sum)
{
	return (float)__dadd_rn(__dsub_rn((double)m, hit), log_sum);
}

/* combine the lanes of a warp; every lane gets the result. m is never NaN: fmaxf ignores NaN */
DEV struct softmax softmax_of_warp(struct softmax s)
{
	const float m = warp_max(s.m);

	return { m, warp_sum(s.sum * expf(s.m - base_of(m))) };
}

template <class T> DEV void ce_fwd_body(const struct te_k_ce_fwd &a)
{
	__shared__ struct softmax part[CE_THREADS / 32];
	const int64_t r = blockIdx.x;
	const T *x = (const T *)a.logits + r * a.cols;
	const bool vec = a.cols % TE_V == 0 && aligned(x);
	const int64_t n = columns(a.cols, a.nclasses, a.first);
	const int64_t nvec = vec ? n / TE_V : 0;
	const int nthreads = blockDim.x, nwarps = nthreads / 32, lane = threadIdx.x % 32;
	const int32_t target = a.targets[r];
	const int64_t at = target - a.first;
	const bool on = counts(target, a.nclasses, a.ignore_index) && at >= 0 && at < n;
	struct softmax s = { -TE_INF, 0.0f };
	int64_t i = threadIdx.x;
	float hit = 0.0f;

	for (; i + 3 * nthreads < nvec; i += 4 * nthreads) {
		raw<T> w[4];

#pragma unroll
		for (int u = 0; u < 4; u++)
			w[u] = load_raw(x + (i + u * nthreads) * TE_V);
#pragma unroll
		for (int u = 0; u < 4; u++) {
			float v[TE_V];

			unpack(w[u], v);
			softmax_add<T>(s, v);
		}
	}
	if (vec) {
		raw<T> w[3];

#pragma unroll
		for (int u = 0; u < 3; u++)
			if (i + u * nthreads < nvec)
				w[u] = load_raw(x + (i + u * nthreads) * TE_V);
		if (threadIdx.x == 0 && on) /* concurrently with the vectors */
			hit = to_float(x[at]);
#pragma unroll
		for (int u = 0; u < 3; u++) {
			float v[TE_V];

			if (i + u * nthreads >= nvec)
				break;
			unpack(w[u], v);
			softmax_add<T>(s, v);
		}
	} else if (threadIdx.x == 0 && on) {
		hit = to_float(x[at]);
	}
	for (i = nvec * TE_V + threadIdx.x; i < n; i += nthreads * TE_V) {
		float v[TE_V];

#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const int64_t c = i + e * nthreads;

			v[e] = c < n ? to_float(x[c]) : -TE_INF;
		}
		softmax_add<T>(s, v);
	}
	s = softmax_of_warp(s);
	if (nwarps > 1) {
		if (lane == 0)
			part[threadIdx.x / 32] = s;
		__syncthreads();
		if (threadIdx.x >= 32)
			return;
		s = softmax_of_warp(lane < nwarps ? part[lane] : softmax{ -TE_INF, 0.0f });
	}
	if (threadIdx.x)
		return;
	a.max_sum[r] = s.m;
	a.max_sum[a.rows + r] = s.sum;
	/* FP32 logf is enough: its error is below the error of the FP32 sum */
	a.row_loss[r] = !on ? 0.0f : a.part ? hit : loss_of(s.m, hit, (double)logf(s.sum));
}

extern "C" __global__ void __launch_bounds__(CE_JOIN_THREADS)
	te_k_ce_join(const __grid_constant__ struct te_k_ce_join a)
{
	te_begin();
	const int64_t r = (int64_t)blockIdx.x * CE_JOIN_THREADS + threadIdx.x;
	const float *part = a.parts + r;
	double sum = 0.0, hit = 0.0;
	float most = -TE_INF;

	if (r >= a.rows)
		return;
	for (int k = 0; k < a.nparts; k++)
		most = fmaxf(most, part[3 * k * a.rows]);
	for (int k = 0; k < a.nparts; k++, part += 3 * a.rows) {
		const double e = exp(__dsub_rn((double)part[0], (double)base_of(most)));

		sum = __dadd_rn(sum, __dmul_rn((double)part[a.rows], e));
		hit = __dadd_rn(hit, (double)part[2 * a.rows]);
	}
	a.max_sum[r] = most;
	a.max_sum[a.rows + r] = (float)sum;
	a.row_loss[r] = counts(a.targets[r], a.nclasses, a.ignore_index) ?
				loss_of(most, hit, log(sum)) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(CE_REDUCE_THREADS)
	te_k_ce_reduce(const __grid_constant__ struct te_k_ce_reduce a)
{
	te_begin();
	__shared__ double part[CE_REDUCE_THREADS / 32];
	__shared__ uint32_t number[CE_REDUCE_THREADS / 32];
	const int nwarps = blockDim.x / 32, lane = threadIdx.x % 32;
	double sum = 0.0;
	uint32_t n = 0, noutside = 0; /* below 2^31: ce_fwd has one block per row */

	for (int64_t r0 = threadIdx.x; r0 < a.rows; r0 += blockDim.x * CE_REDUCE_ROWS) {
		int32_t target[CE_REDUCE_ROWS];
		float loss[CE_REDUCE_ROWS];

#pragma unroll
		for (int u = 0; u < CE_REDUCE_ROWS; u++) {
			const int64_t r = r0 + u * (int)blockDim.x;

			target[u] = r < a.rows ? a.targets[r] : a.ignore_index;
			loss[u] = r < a.rows ? a.row_loss[r] : 0.0f;
		}
#pragma unroll
		for (int u = 0; u < CE_REDUCE_ROWS; u++)
			if (counts(target[u], a.nclasses, a.ignore_index)) {
				sum = __dadd_rn(sum, (double)loss[u]);
				n++;
			} else if (target[u] != a.ignore_index) {
				noutside++;
			}
	}
	if (a.noutside && noutside)
		atomicAdd_system(a.noutside, noutside);
	sum = warp_sum(sum);
	n = __reduce_add_sync(0xffffffffu, n);
	if (nwarps > 1) {
		if (lane == 0) {
			part[threadIdx.x / 32] = sum;
			number[threadIdx.x / 32] = n;
		}
		__syncthreads();
		if (threadIdx.x >= 32)
			return;
		sum = warp_sum(lane < nwarps ? part[lane] : 0.0);
		n = __reduce_add_sync(0xffffffffu, lane < nwarps ? number[lane] : 0);
	}
	if (threadIdx.x)
		return;
	*a.loss = n ? (float)__ddiv_rn(sum, (double)n) : 0.0f;
	*a.count = (float)n;
}

template <class T> DEV void ce_bwd_body(const struct te_k_ce_bwd &a)
{
	const int64_t r = blockIdx.x;
	const T *x = (const T *)a.logits + r * a.cols;
	T *dx = (T *)a.dlogits + r * a.cols;
	const int64_t nlocal = columns(a.cols, a.nclasses, a.first);
	const int64_t target = a.targets[r] - a.first;
	const bool on = counts(a.targets[r], a.nclasses, a.ignore_index);
	const bool vec = a.cols % TE_V == 0 && aligned(x) && aligned(dx);
	const int nthreads = blockDim.x;
	/* a row of one step loads its logits before it knows whether the row counts */
	const bool once = a.cols <= 2 * nthreads * TE_V;
	const float factor = __fdiv_rn(a.grad_scale, *a.count);
	const float most = a.max_sum[r], inv = __fdiv_rn(1.0f, a.max_sum[a.rows + r]);

	if (!vec) {
		for (int64_t c = threadIdx.x; c < a.cols; c += nthreads) {
			float p = 0.0f;

			if (on && c < nlocal) {
				p = mul(exp_of<T>(sub(to_float(x[c]), most)), inv);
				p = mul(c == target ? sub(p, 1.0f) : p, factor);
			}
			dx[c] = from_float<T>(p);
		}
		return;
	}
	for (int64_t c = threadIdx.x * TE_V; c < a.cols; c += 2 * nthreads * TE_V) {
		raw<T> w[2];

#pragma unroll
		for (int u = 0; u < 2; u++) {
			const int64_t cu = c + u * nthreads * TE_V;

			w[u] = (once || on) && cu < nlocal ? load_raw(x + cu) : zero_raw<T>();
		}
#pragma unroll
		for (int u = 0; u < 2; u++) {
			const int64_t cu = c + u * nthreads * TE_V;
			const int n = on ? clamp_int(nlocal - cu, 0, TE_V) : 0;
			const int64_t hit = target - cu;
			float v[TE_V];

			if (cu >= a.cols)
				break;
			unpack(w[u], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				float p = mul(exp_of<T>(sub(v[e], most)), inv);

				p = mul(e == hit ? sub(p, 1.0f) : p, factor);
				v[e] = e < n ? p : 0.0f;
			}
			store_vec(dx + cu, v);
		}
	}
}

extern "C" __global__ void __launch_bounds__(CE_REDUCE_THREADS)
	te_k_ce_count(const __grid_constant__ struct te_k_ce_reduce a)
{
	te_begin();
	__shared__ uint32_t number[CE_REDUCE_THREADS / 32];
	const int nwarps = blockDim.x / 32, lane = threadIdx.x % 32;
	uint32_t n = 0; /* below 2^31: ce_grad has one block per row */

	for (int64_t r0 = threadIdx.x; r0 < a.rows; r0 += blockDim.x * CE_REDUCE_ROWS) {
		int32_t target[CE_REDUCE_ROWS];

#pragma unroll
		for (int u = 0; u < CE_REDUCE_ROWS; u++) {
			const int64_t r = r0 + u * (int)blockDim.x;

			target[u] = r < a.rows ? a.targets[r] : a.ignore_index;
		}
#pragma unroll
		for (int u = 0; u < CE_REDUCE_ROWS; u++)
			n += counts(target[u], a.nclasses, a.ignore_index);
	}
	n = __reduce_add_sync(0xffffffffu, n);
	if (lane == 0)
		number[threadIdx.x / 32] = n;
	__syncthreads();
	if (threadIdx.x >= 32)
		return;
	n = __reduce_add_sync(0xffffffffu, lane < nwarps ? number[lane] : 0);
	if (threadIdx.x == 0)
		*a.count = (float)n;
}

DEV void held_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* wait until at most N of this thread's groups of copies are under way */
template <int N> DEV void held_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

template <class T> DEV raw<T> held_load(const uint4 *from, int nthreads)
{
	raw<T> w;

#pragma unroll
	for (int q = 0; q < (int)sizeof(T) / 2; q++)
		w.q[q] = from[q * nthreads];
	return w;
}

/* values that all gradients of a row share */
struct ce_row {
	float most, inv, factor;
	int64_t n, target;
};

template <class T> DEV float ce_gradient(float x, const struct ce_row &row)
{
	return mul(exp_of<T>(sub(x, row.most)), row.inv);
}

/* vector i of a row: its gradient */
template <class T> DEV void ce_put(T *dx, int64_t i, const raw<T> &w, const struct ce_row &row)
{
	const int64_t hit = row.target - i * TE_V;
	const int n = clamp_int(row.n - i * TE_V, 0, TE_V);
	float x[TE_V], v[TE_V];

	unpack(w, x);
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		v[e] = mul(ce_gradient<T>(x[e], row), row.factor);
	if (hit >= 0 && hit < TE_V)
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			if (e == hit)
				v[e] = mul(sub(ce_gradient<T>(x[e], row), 1.0f), row.factor);
	if (n < TE_V)
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[e] = e < n ? v[e] : 0.0f;
	store_vec(dx + i * TE_V, v);
}

/* copies are waited for in this number of groups */
#define HELD_GROUPS 4

template <class T, int NREGS> DEV void ce_grad_body(const struct te_k_ce_grad &a)
{
	extern __shared__ uint4 held[];
	__shared__ struct softmax part[CE_THREADS / 32];
	constexpr int W = (int)sizeof(T) / 2;
	const int64_t r = blockIdx.x;
	const T *x = (const T *)a.logits + r * a.cols;
	T *dx = (T *)a.dlogits + r * a.cols;
	const int nthreads = blockDim.x, nwarps = nthreads / 32, lane = threadIdx.x % 32;
	const int tid = threadIdx.x;
	const int64_t n = columns(a.cols, a.nclasses, 0), ncols = a.cols / TE_V;
	const int64_t nvec = n / TE_V, nread = (n + TE_V - 1) / TE_V;
	const int64_t target = a.targets[r];
	const int room = CE_HELD_NBYTES(TE_ARCH) / (int)(sizeof(uint4) * W) / nthreads;
	const int nsteps = (int)((nread + nthreads - 1) / nthreads);
	const int nheld = NREGS ? min(nsteps, room) : nsteps;
	const int each = (nheld + HELD_GROUPS - 1) / HELD_GROUPS;
	struct softmax s = { -TE_INF, 0.0f };
	raw<T> w[NREGS ? NREGS : 1];
	struct ce_row row;
	float hit = 0.0f;

	if (!counts((int32_t)target, a.nclasses, a.ignore_index)) {
		for (int64_t i = tid; i < ncols; i += nthreads)
			store_raw(dx + i * TE_V, zero_raw<T>());
		if (tid == 0)
			a.max_sum[r] = a.max_sum[a.rows + r] = a.row_loss[r] = 0.0f;
		return;
	}
#pragma unroll
	for (int g = 0; g < HELD_GROUPS; g++) {
		for (int k = g * each; k < min((g + 1) * each, nheld); k++) {
			const int64_t i = tid + (int64_t)k * nthreads;

			if (i < nread)
				copy_ahead(held + k * W * nthreads + tid, x + i * TE_V, nthreads);
		}
		held_commit();
	}
#pragma unroll
	for (int k = 0; k < NREGS; k++) {
		const int64_t i = tid + (int64_t)(nheld + k) * nthreads;

		w[k] = i < nread ? load_raw(x + i * TE_V) : zero_raw<T>();
	}
	row.factor = __fdiv_rn(a.grad_scale, *a.count);
	if (tid == 0)
		hit = to_float(x[target]);
	const bool tail = nvec * TE_V + tid < n;
	const float last = tail ? to_float(x[nvec * TE_V + tid]) : 0.0f;

#pragma unroll
	for (int g = 0; g < HELD_GROUPS; g++) {
		if (g == 0)
			held_wait<3>();
		else if (g == 1)
			held_wait<2>();
		else if (g == 2)
			held_wait<1>();
		else
			held_wait<0>();
#pragma unroll 2
		for (int k = g * each; k < min((g + 1) * each, nheld); k++) {
			float v[TE_V];

			if (tid + (int64_t)k * nthreads >= nvec)
				break;
			unpack(held_load<T>(held + k * W * nthreads + tid, nthreads), v);
			softmax_add<T>(s, v);
		}
	}
#pragma unroll
	for (int k = 0; k < NREGS; k++) {
		float v[TE_V];

		if (tid + (int64_t)(nheld + k) * nthreads >= nvec)
			break;
		unpack(w[k], v);
		softmax_add<T>(s, v);
	}
	if (tail) {
		float v[TE_V] = { last, -TE_INF, -TE_INF, -TE_INF,
				  -TE_INF, -TE_INF, -TE_INF, -TE_INF };

		softmax_add<T>(s, v);
	}
	s = softmax_of_warp(s);
	if (nwarps > 1) {
		if (lane == 0)
			part[tid / 32] = s;
		__syncthreads(); /* also: every thread has read its part of the row */
		s = softmax_of_warp(lane < nwarps ? part[lane] : softmax{ -TE_INF, 0.0f });
	} else {
		__syncwarp();
	}
	if (tid == 0) {
		a.max_sum[r] = s.m;
		a.max_sum[a.rows + r] = s.sum;
		a.row_loss[r] = loss_of(s.m, hit, (double)logf(s.sum));
	}
	row.most = s.m;
	row.inv = __fdiv_rn(1.0f, s.sum);
	row.n = n;
	row.target = target;
#pragma unroll 2
	for (int k = 0; k < nheld; k++) {
		const int64_t i = tid + (int64_t)k * nthreads;

		if (i < nread)
			ce_put(dx, i, held_load<T>(held + k * W * nthreads + tid, nthreads), row);
	}
#pragma unroll
	for (int k = 0; k < NREGS; k++) {
		const int64_t i = tid + (int64_t)(nheld + k) * nthreads;

		if (i < nread)
			ce_put(dx, i, w[k], row);
	}
	for (int64_t i = nread + tid; i < ncols; i += nthreads)
		store_raw(dx + i * TE_V, zero_raw<T>());
}

/* the same bits, for rows of any length and alignment */
template <class T> DEV void ce_grad_twice_body(const struct te_k_ce_grad &a)
{
	const struct te_k_ce_fwd f = { a.logits,   a.targets, a.max_sum,      a.row_loss,
				       a.rows,	   a.cols,    a.nclasses,     a.ignore_index,
				       a.dtype,	   0,	      0,	      0 };
	const struct te_k_ce_bwd b = { a.logits,       a.targets,    a.max_sum, a.count,
				       a.dlogits,      a.rows,	     a.cols,	a.nclasses,
				       a.ignore_index, a.grad_scale, a.dtype,	0,
				       0 };
	const int64_t r = blockIdx.x;

	if (counts(a.targets[r], a.nclasses, a.ignore_index))
		ce_fwd_body<T>(f);
	else if (threadIdx.x == 0)
		a.max_sum[r] = a.max_sum[a.rows + r] = a.row_loss[r] = 0.0f;
	__syncthreads();
	ce_bwd_body<T>(b);
}

TE_KERNEL(ce_grad_long_bf16, ce_grad, (CE_THREADS, 1), ce_grad_body<bf16, CE_HELD_VECTORS>(a))

#define TE_NAME(T, t)                                                                           \
	TE_KERNEL(ce_grad_##t, ce_grad, (CE_THREADS, 2), ce_grad_body<T, 0>(a))                 \
	TE_KERNEL(ce_grad_twice_##t, ce_grad, (CE_THREADS, 2), ce_grad_twice_body<T>(a))        \
	TE_KERNEL(ce_fwd_##t, ce_fwd, (CE_THREADS, sizeof(T) == 2 ? 4 : 2), ce_fwd_body<T>(a))  \
	TE_KERNEL(ce_bwd_##t, ce_bwd, (CE_THREADS), ce_bwd_body<T>(a))
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
