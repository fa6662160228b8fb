/*
 * backward.cu - gradients of LayerNorm and RMSNorm. sm_90a.
 *
 *  kernel             shapes             blocks            threads  shared  B/element (BF16)
 *  norm_bwd           dy, x, dres T      4 rows, or a row  64..512  128     6, with dres 8
 *  norm_bwd_small_mN  the same           4 rows            128      1040; N = 1024: 4112
 *  norm_bwd_colCxN    the same, with q   C for 64 rows     256      9248    6 to 8, and FP8 2
 *  norm_bwd_col       the same, any      64 rows           256      9248    10 to 12, and FP8 2
 *  norm_dw            dy, x T            64 rows, 64 cols  128      32768   4
 *
 * The variants are as in forward.cu. both.cu computes dx and the sums at once.
 */
#include "kernels/norm/rows.cuh"

template <class T, int NV, bool VEC, bool LONG>
DEV void norm_bwd_body(const struct te_k_norm_bwd &a)
{
	__shared__ float2 part[NORM_THREADS / 32];
	const struct team w = team_of(a.cols);
	const int64_t at = w.row * a.cols;
	const T *dy = (const T *)a.dy + at, *x = (const T *)a.x + at;
	const T *dres = a.dres ? (const T *)a.dres + at : NULL;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	float mean, rstd, sum_g = 0.0f, sum_gx = 0.0f;
	raw<T> held_dy[NV], held_x[NV];

	if (w.row >= a.rows)
		return;
	mean = a.mean ? a.mean[w.row] : 0.0f;
	rstd = a.rstd[w.row];
	chunks<NV, LONG>(w, a.cols, [&](int64_t base) {
#pragma unroll
		for (int j = 0; j < NV; j++) {
			held_dy[j] = row_load<VEC>(w, dy, a.cols, base, j);
			held_x[j] = row_load<VEC>(w, x, a.cols, base, j);
		}
#pragma unroll
		for (int j = 0; j < NV; j++) {
			float g[TE_V], v[TE_V], gain[TE_V];

			if (column<VEC>(w, base, j, 0) >= a.cols)
				break;
			gain_load<VEC>(w, a.gamma, a.zero_centered, a.cols, base, j, gain);
			unpack(held_dy[j], g);
			unpack(held_x[j], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				const bool in = VEC || column<VEC>(w, base, j, e) < a.cols;

				g[e] = in ? mul(g[e], gain[e]) : 0.0f;
				v[e] = in ? mul(g[e], mul(sub(v[e], mean), rstd)) : 0.0f;
			}
			if (a.mean)
				sum_g = add(sum_g, sum8(g));
			sum_gx = add(sum_gx, sum8(v));
		}
	});
	team_sum(w, part, sum_g, sum_gx);
	sum_g = plain_quotient(sum_g, n, per);
	sum_gx = plain_quotient(sum_gx, n, per);
	chunks<NV, LONG>(w, a.cols, [&](int64_t base) {
		if (LONG)
#pragma unroll
			for (int j = 0; j < NV; j++) {
				held_dy[j] = row_load<VEC>(w, dy, a.cols, base, j);
				held_x[j] = row_load<VEC>(w, x, a.cols, base, j);
			}
#pragma unroll
		for (int j = 0; j < NV; j++) {
			float g[TE_V], v[TE_V], gain[TE_V], res[TE_V];

			if (column<VEC>(w, base, j, 0) >= a.cols)
				break;
			if (dres)
				unpack(row_load<VEC>(w, dres, a.cols, base, j), res);
			gain_load<VEC>(w, a.gamma, a.zero_centered, a.cols, base, j, gain);
			unpack(held_dy[j], g);
			unpack(held_x[j], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				const float xhat = mul(sub(v[e], mean), rstd);

				g[e] = sub(mul(g[e], gain[e]), sum_g);
				g[e] = mul(rstd, sub(g[e], mul(xhat, sum_gx)));
				if (dres)
					g[e] = add(g[e], res[e]);
			}
			row_store<VEC>(w, (T *)a.dx + at, a.cols, base, j, pack<T>(g));
		}
	});
}

/* norm_bwd_small_m: same results as norm_bwd_body(), bit for bit; a warp per row */
template <class T, int NV> DEV void norm_bwd_small_m_body(const struct te_k_norm_bwd &a)
{
	__shared__ uint2 codes[NORM_SMALL_M_ROWS][32 * NV];
	__shared__ float amax[NORM_SMALL_M_ROWS];
	const int64_t r0 = (int64_t)blockIdx.x * NORM_SMALL_M_ROWS;
	const struct team w = { (int)threadIdx.x % 32, 32, r0 + threadIdx.x / 32 };
	const int64_t cols = w.row < a.rows ? a.cols : 0, at = w.row * a.cols;
	const bool casts = a.q.amax || a.q.row || a.q.col;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	float mean = 0.0f, rstd = 0.0f, sum_g = 0.0f, sum_gx = 0.0f, scale, m = 0.0f;
	float gain[NV][TE_V];
	raw<T> dy[NV], x[NV], dres[NV];

#pragma unroll
	for (int j = 0; j < NV; j++) {
		dy[j] = row_load<true>(w, (const T *)a.dy + at, cols, 0, j);
		x[j] = row_load<true>(w, (const T *)a.x + at, cols, 0, j);
		dres[j] = row_load<true>(w, (const T *)a.dres + at, a.dres ? cols : 0, 0, j);
	}
	if (cols) {
		rstd = a.rstd[w.row];
		if (a.mean)
			mean = a.mean[w.row];
	}
	scale = q_scale(&a.q);
	if (noop_set(a.q.noop))
		return;
#pragma unroll
	for (int j = 0; j < NV; j++)
		gain_load<true>(w, a.gamma, a.zero_centered, cols, 0, j, gain[j]);
#pragma unroll
	for (int j = 0; j < NV; j++) {
		float g[TE_V], v[TE_V];

		if (column<true>(w, 0, j, 0) >= cols)
			break;
		unpack(dy[j], g);
		unpack(x[j], v);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			g[e] = mul(g[e], gain[j][e]);
			v[e] = mul(g[e], mul(sub(v[e], mean), rstd));
		}
		if (a.mean)
			sum_g = add(sum_g, sum8(g));
		sum_gx = add(sum_gx, sum8(v));
	}
	sum_g = plain_quotient(warp_sum(sum_g), n, per);
	sum_gx = plain_quotient(warp_sum(sum_gx), n, per);
#pragma unroll
	for (int j = 0; j < NV; j++) {
		const int64_t c = column<true>(w, 0, j, 0);
		float g[TE_V], v[TE_V], res[TE_V];
		uint2 code;

		if (c >= cols)
			break;
		unpack(dy[j], g);
		unpack(x[j], v);
		unpack(dres[j], res);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const float xhat = mul(sub(v[e], mean), rstd);

			g[e] = sub(mul(g[e], gain[j][e]), sum_g);
			g[e] = mul(rstd, sub(g[e], mul(xhat, sum_gx)));
			if (a.dres)
				g[e] = add(g[e], res[e]);
		}
		dy[j] = pack<T>(g);
		store_raw((T *)a.dx + at + c, dy[j]);
		if (!casts)
			continue;
		unpack(dy[j], g);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			m = amax_of(m, g[e]);
		code = fp8x8(a.q.dtype, g, scale);
		if (a.q.row)
			*(uint2 *)((uint8_t *)a.q.row + at + c) = code;
		codes[threadIdx.x / 32][c / TE_V] = code;
	}
	if (casts)
		small_m_finish<NV>(a.q, a.rows, a.cols, r0, scale, codes, amax, m);
}

/* the gradient of x, given mean, rstd and the means over g and over g * xhat */
DEV float norm_dx(float dy, float x, float gain, const float4 &s)
{
	const float xhat = mul(sub(x, s.x), s.y);

	return mul(s.y, sub(sub(mul(dy, gain), s.z), mul(xhat, s.w)));
}

DEV void tile_gain(const struct te_k_norm_bwd &a, int64_t c, float gain[TE_V])
{
	load_some(a.gamma + c, clamp_int(a.cols - c, 0, TE_V), gain);
	if (a.zero_centered)
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			gain[e] = add(1.0f, gain[e]);
}

/* store a tile of dx, with s of the thread's rows; returns the maximum of m and |dx| */
template <class T>
DEV float norm_dx_put(const struct te_k_norm_bwd &a, const struct tile_out<T> *o,
		      const tile<TILE_R> *t, const tile_raw<T, TILE_R> &dy,
		      const tile_raw<T, TILE_R> &x, const float4 s[TILE_R],
		      tile_codes<TILE_R> *codes, float m)
{
	float v[TILE_R][TE_V], gain[TE_V];
	tile_raw<T, TILE_R> dres;

	if (a.dres)
		dres = tile_load<T>(t, a.dres, a.cols, t->c, o->vec);
	tile_gain(a, t->c, gain);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		float d[TE_V], res[TE_V];

		unpack(dy.row[i], d);
		unpack(x.row[i], v[i]);
		if (a.dres)
			unpack(dres.row[i], res);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			v[i][e] = norm_dx(d[e], v[i][e], gain[e], s[i]);
			if (a.dres)
				v[i][e] = add(v[i][e], res[e]);
		}
	}
	return tile_put<T, TILE_R>(o, t, v, codes, NULL, m);
}

/* norm_bwd_col: two passes over 64 rows */
template <class T, bool VEC> DEV float2 norm_bwd_sums(const struct te_k_norm_bwd &a,
						      const struct team &w, float mean, float rstd)
{
	const T *dy = (const T *)a.dy + w.row * a.cols, *x = (const T *)a.x + w.row * a.cols;
	float sum_g = 0.0f, sum_gx = 0.0f;

	for (int64_t base = 0; base < a.cols; base += 32 * TE_V) {
		float g[TE_V], v[TE_V], gain[TE_V];

		unpack(row_load<VEC>(w, dy, a.cols, base, 0), g);
		unpack(row_load<VEC>(w, x, a.cols, base, 0), v);
		gain_load<VEC>(w, a.gamma, a.zero_centered, a.cols, base, 0, gain);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const bool in = column<VEC>(w, base, 0, e) < a.cols;

			g[e] = in ? mul(g[e], gain[e]) : 0.0f;
			v[e] = in ? mul(g[e], mul(sub(v[e], mean), rstd)) : 0.0f;
		}
		if (a.mean)
			sum_g = add(sum_g, sum8(g));
		sum_gx = add(sum_gx, sum8(v));
	}
	return make_float2(warp_sum(sum_g), warp_sum(sum_gx));
}

template <class T> DEV void norm_bwd_col_body(const struct te_k_norm_bwd &a)
{
	__shared__ tile_codes<TILE_R> codes;
	__shared__ float4 stats[TILE_ROWS]; /* as norm_dx() takes them */
	const int64_t r0 = (int64_t)blockIdx.x * TILE_ROWS;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	struct tile_out<T> o = { (T *)a.dx, a.q, NULL, 0, 1.0f,
				 tile_vec(a.cols, a.x, a.dx, &a.q) && aligned(a.dy) &&
					 aligned(a.dres) && aligned(a.gamma) };
	float4 s[TILE_R];
	float m = 0.0f;

	if (noop_set(a.q.noop))
		return;
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q, o.scale);
	for (int i = threadIdx.x / 32; i < TILE_ROWS && r0 + i < a.rows; i += TILE_THREADS / 32) {
		const struct team w = { (int)threadIdx.x % 32, 32, r0 + i };
		const float mean = a.mean ? a.mean[w.row] : 0.0f, rstd = a.rstd[w.row];
		const float2 sum = o.vec ? norm_bwd_sums<T, true>(a, w, mean, rstd) :
					   norm_bwd_sums<T, false>(a, w, mean, rstd);

		if (w.t == 0)
			stats[i] = make_float4(mean, rstd, plain_quotient(sum.x, n, per),
					       plain_quotient(sum.y, n, per));
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		const int row = threadIdx.x / 16 * TILE_R + i;

		s[i] = r0 + row < a.rows ? stats[row] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
	}
	for (int64_t c0 = 0; c0 < a.cols; c0 += TILE_COLS) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0, c0);
		const tile_raw<T, TILE_R> dy = tile_load<T>(&t, a.dy, a.cols, t.c, o.vec);
		const tile_raw<T, TILE_R> x = tile_load<T>(&t, a.x, a.cols, t.c, o.vec);

		m = norm_dx_put<T>(a, &o, &t, dy, x, s, &codes, m);
		__syncthreads();
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

/* norm_bwd_colCxN: norm_bwd_col with the rows in registers, as norm_fwd_cluster_body() */
template <int C, int NS> DEV void norm_bwd_cluster_body(const struct te_k_norm_bwd &a)
{
	__shared__ tile_codes<TILE_R> codes;
	__shared__ float2 part[TILE_ROWS], total[TILE_ROWS];
	const int rank = (int)cluster_rank();
	const int64_t r0 = (int64_t)(blockIdx.x / C) * TILE_ROWS;
	const int row0 = threadIdx.x / 16 * TILE_R;
	const float n = (float)a.cols, per = plain_reciprocal(n);
	struct tile_out<bf16> o = { (bf16 *)a.dx, a.q, NULL, 0, 1.0f, true };
	tile_raw<bf16, TILE_R> dy[NS], x[NS];
	float2 sum[TILE_R];
	float4 s[TILE_R];
	float m = 0.0f;

	if (noop_set(a.q.noop))
		return; /* every block of the cluster */
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0,
						       (int64_t)(k * C + rank) * TILE_COLS);

		dy[k] = tile_load<bf16>(&t, a.dy, a.cols, t.c, true);
		x[k] = tile_load<bf16>(&t, a.x, a.cols, t.c, true);
	}
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q, o.scale);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		const bool in = r0 + row0 + i < a.rows;

		sum[i] = make_float2(0.0f, 0.0f);
		s[i] = make_float4(in && a.mean ? a.mean[r0 + row0 + i] : 0.0f,
				   in ? a.rstd[r0 + row0 + i] : 0.0f, 0.0f, 0.0f);
	}
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const int64_t c = (int64_t)(k * C + rank) * TILE_COLS + threadIdx.x % 16 * TE_V;
		float gain[TE_V];

		if (c >= a.cols)
			continue;
		tile_gain(a, c, gain);
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			float g[TE_V], v[TE_V];

			unpack(dy[k].row[i], g);
			unpack(x[k].row[i], v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				g[e] = mul(g[e], gain[e]);
				v[e] = mul(g[e], mul(sub(v[e], s[i].x), s[i].y));
			}
			if (a.mean)
				sum[i].x = add(sum[i].x, sum8(g));
			sum[i].y = add(sum[i].y, sum8(v));
		}
	}
	cluster_sum<C>(part, total, sum);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		s[i].z = plain_quotient(total[row0 + i].x, n, per);
		s[i].w = plain_quotient(total[row0 + i].y, n, per);
	}
#pragma unroll
	for (int k = 0; k < NS; k++) {
		const tile<TILE_R> t = tile_at<TILE_R>(a.rows, a.cols, r0,
						       (int64_t)(k * C + rank) * TILE_COLS);

		if (t.c0 >= a.cols)
			break; /* the whole block */
		m = norm_dx_put<bf16>(a, &o, &t, dy[k], x[k], s, &codes, m);
		__syncthreads();
	}
	if (a.q.amax)
		block_amax(a.q.amax, m);
	cluster_barrier(); /* other blocks may still read part */
}

/* --- weights ------------------------------------------------------------- */

/*
 * dy * xhat and dy of the rows and columns of this block. A warp has 16 rows, a lane two columns;
 * all loads are issued before the first value is used.
 */
template <class T, bool VEC>
DEV void norm_dw_terms(const struct te_k_norm_dw &a,
		       float2 term[2][TE_K_PART_ROWS][NORM_DW_COLS / 2], int64_t p, int64_t c)
{
	constexpr int STEP = TE_K_PART_ROWS / (NORM_DW_THREADS / 32);
	const int r0 = threadIdx.x / 32 * STEP, lane = threadIdx.x % 32, r = r0 + lane % STEP;
	const int nrows = clamp_int(a.rows - p * TE_K_PART_ROWS, 0, TE_K_PART_ROWS);
	const int n = clamp_int(a.cols - c - lane * 2, 0, 2);
	const int64_t at = (p * TE_K_PART_ROWS + r0) * a.cols + c + lane * 2;
	const T *dy = (const T *)a.dy + at, *x = (const T *)a.x + at;
	const float *stats = lane < STEP ? a.mean : a.rstd;
	raw2<T> wd[STEP], wx[STEP];
	float stat;

#pragma unroll
	for (int i = 0; i < STEP; i++, dy += a.cols, x += a.cols) {
		wd[i] = load2<VEC>(dy, r0 + i < nrows ? n : 0);
		wx[i] = load2<VEC>(x, r0 + i < nrows ? n : 0);
	}
	/* row r: the mean in lanes below STEP, rstd in lanes above */
	stat = stats && r < nrows ? stats[p * TE_K_PART_ROWS + r] : 0.0f;
#pragma unroll
	for (int i = 0; i < STEP; i++) {
		const float2 d = unpack2(wd[i]), v = unpack2(wx[i]);
		const float mean = __shfl_sync(0xffffffffu, stat, i);
		const float rstd = __shfl_sync(0xffffffffu, stat, STEP + i);

		term[0][r0 + i][lane] = make_float2(mul(d.x, mul(sub(v.x, mean), rstd)),
						    mul(d.y, mul(sub(v.y, mean), rstd)));
		term[1][r0 + i][lane] = d;
	}
}

template <class T> DEV void norm_dw_body(const struct te_k_norm_dw &a)
{
	__shared__ float2 term[2][TE_K_PART_ROWS][NORM_DW_COLS / 2];
	const uint32_t nblocks = (uint32_t)((a.cols + NORM_DW_COLS - 1) / NORM_DW_COLS);
	const int64_t p = blockIdx.x / nblocks;
	const int64_t c = (int64_t)(blockIdx.x % nblocks) * NORM_DW_COLS;
	const int64_t mine = c + threadIdx.x % NORM_DW_COLS;
	const bool beta = threadIdx.x >= NORM_DW_COLS;
	const float *value = (const float *)term[beta] + threadIdx.x % NORM_DW_COLS;
	float *part = beta ? a.part_beta : a.part_gamma;
	float sum = 0.0f;

	if (a.cols % 2 == 0 && aligned(a.dy) && aligned(a.x))
		norm_dw_terms<T, true>(a, term, p, c);
	else
		norm_dw_terms<T, false>(a, term, p, c);
	__syncthreads();
	if (!part || mine >= a.cols)
		return;
	/* rows beyond the end add +0, which changes no sum that started at +0 */
#pragma unroll 32
	for (int r = 0; r < TE_K_PART_ROWS; r++)
		sum = add(sum, value[r * NORM_DW_COLS]);
	part[p * a.cols + mine] = sum;
}


#define ROWS(T, t, variant, NV, VEC, LONG)                                                      \
	extern "C" __global__ void __launch_bounds__(NORM_THREADS)                              \
		te_k_norm_bwd_##variant##t(const __grid_constant__ struct te_k_norm_bwd a)      \
	{                                                                                       \
		te_begin();                                                                     \
		norm_bwd_body<T, NV, VEC, LONG>(a);                                             \
	}
#define CLUSTER(C, NS)                                                          \
	extern "C" __global__ void __cluster_dims__(C, 1, 1)                    \
		__launch_bounds__(TILE_THREADS, NS < 3 ? 2 : 1)                 \
		te_k_norm_bwd_col##C##x##NS##_bf16(                             \
			const __grid_constant__ struct te_k_norm_bwd a)         \
	{                                                                       \
		te_begin();                                                     \
		norm_bwd_cluster_body<C, NS>(a);                                \
	}
#if __CUDA_ARCH__ >= 900
NORM_BWD_COL_CLUSTERS(CLUSTER)
#endif
#undef CLUSTER

#define SMALL_M(T, t, COLS)                                                                       \
	extern "C" __global__ void __launch_bounds__(NORM_SMALL_M_ROWS * 32)                      \
		te_k_norm_bwd_small_m##COLS##_##t(const __grid_constant__ struct te_k_norm_bwd a) \
	{                                                                                         \
		te_begin();                                                                       \
		norm_bwd_small_m_body<T, COLS / (32 * TE_V)>(a);                                  \
	}
#define TE_NAME(T, t)                                                                   \
	ROWS(T, t, , NORM_NV, true, false)                                              \
	ROWS(T, t, long_, 2, true, true)                                                \
	ROWS(T, t, unaligned_, 1, false, true)                                          \
	extern "C" __global__ void __launch_bounds__(TILE_THREADS)                      \
		te_k_norm_bwd_col_##t(const __grid_constant__ struct te_k_norm_bwd a)   \
	{                                                                               \
		te_begin();                                                             \
		norm_bwd_col_body<T>(a);                                                \
	}                                                                               \
	SMALL_M(T, t, 256)                                                              \
	SMALL_M(T, t, 1024)                                                             \
	extern "C" __global__ void __launch_bounds__(NORM_DW_THREADS)                   \
		te_k_norm_dw_##t(const __grid_constant__ struct te_k_norm_dw a)         \
	{                                                                               \
		te_begin();                                                             \
		norm_dw_body<T>(a);                                                     \
	}
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME
#undef SMALL_M
#undef ROWS
