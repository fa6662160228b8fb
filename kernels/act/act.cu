/*
 * act.cu - activation functions, plain and gated, and their gradients. sm_90a.
 *
 *  kernel                  shapes                   blocks            threads  shared (BF16, FP32)
 *  act_fwd_ACT_bf16        x T [rows, cols]         a 64 x 128 tile   256      8320
 *  act_fwd_gated_ACT_bf16  x T [rows, 2 cols]       of y                       8320
 *  act_bwd_ACT_bf16        dy T [rows, cols]        a 64 x 128 tile   256      24704, 41088
 *  act_bwd_gated_ACT_bf16  the same                 of dy                      24704, 41088
 *  act_DIR_small_m_...     the same, whole vectors  a 64 x 32 tile    256      a quarter
 *  act_DIR_block_...       the same, block-scaled   a 128 x 128 tile  256      20992; bwd 37376
 *  act_DIR_fp32, act_DIR_gated_fp32, act_DIR_block_fp32, act_DIR_block_bf16, ...
 *
 * In BF16 each activation has functions, so that none needs the registers of another; GELU,
 * GELU_ERF and SILU have them also for few rows and for blocks. The last row computes the
 * activation that the launch names: all in FP32, where the memory is slower still, and in BF16
 * blocks of the others. A function for each was twice the code.
 *
 * BF16 bytes per element of y: plain forward to both FP8 copies 4, gated 6; plain backward to both
 * copies 6, gated 10; the T result 2 (gated 4) more. One pass computes everything: the column sums
 * for the bias gradient are taken from the tile in shared memory, in row order.
 */
#include "kernels/block.cuh"
#include "kernels/gelu.cuh"
#include "kernels/tile.cuh"

/* enum te_act; ACT_ANY: the activation that the launch names */
enum { ACT_GELU, ACT_QGELU, ACT_RELU, ACT_SRELU, ACT_SILU, ACT_SIGMOID, ACT_GELU_ERF,
       ACT_TANH, ACT_ANY };

/*
 * 1 / d of each, rounded as by a division; d is at least 1 or NaN. If all d are within the range of
 * plain_reciprocal(), it has the instructions of a division without its branch, at which each
 * division would wait for the previous one.
 */
DEV void reciprocals(float d[TE_V])
{
	bool plain = true;

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		plain = plain && d[e] < 0x1p100f;
	if (!plain) {
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			d[e] = __frcp_rn(d[e]);
		return;
	}
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		d[e] = plain_reciprocal(d[e]);
}

/*
 * Distribution function of -|x|, the polynomial of act.c; t = 1 / (1 + 0.26 |x|).
 */
DEV num normal_tail(num x, num t)
{
	num q = 0x1.ef4c3ep-6f;

	q = q * t - num(0x1.364364p-3f);
	q = q * t + num(0x1.fd692ap-3f);
	q = q * t - num(0x1.2ead96p-3f);
	q = q * t + num(0x1.452438p-3f);
	q = q * t + num(0x1.a9b0b6p-5f);
	q = q * t + num(0x1.a505e8p-4f);
	q = q * t + num(0x1.a618c0p-4f);
	q = q * t + num(0x1.a8fd1ep-4f);
	return num(expf((num(-0.5f) * x * x).v)) * (t * q);
}

/*
 * s = sig(the argument of the activation's sigmoid) = 1 / (1 + exp(-...)), if it has one. GELU is
 * the tanh approximation: 0.5 (1 + tanh(u)) is sig(2u), without cancellation below 0. GELU_ERF has
 * the normal distribution function instead; TANH has sig(2x).
 */
DEV void act_s(int act, const float x[TE_V], float s[TE_V])
{
	if (act == ACT_GELU_ERF) {
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const num d = num(1.0f) + num(0x1.0a3d70p-2f) * num(fabsf(x[e]));
			const float tail = normal_tail(x[e], __frcp_rn(d.v)).v;

			s[e] = x[e] < 0.0f ? tail : sub(1.0f, tail);
		}
	} else if (act != ACT_RELU && act != ACT_SRELU) {
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const num v = x[e];
			num u = v;

			if (act == ACT_GELU)
				u = num(1.5957691f) * (v + num(0.044715f) * v * v * v);
			else if (act == ACT_QGELU)
				u = num(1.702f) * v;
			else if (act == ACT_TANH)
				u = num(2.0f) * v;
			s[e] = add(1.0f, expf(-u.v));
		}
		reciprocals(s);
	}
}

/* x s, and its limit if s is 0, where x may be infinite; a finite x gives the same bits */
DEV float times_s(float x, float s)
{
	return s == 0.0f ? -0.0f : mul(x, s);
}

/*
 * Derivatives: if w is 0, the slope is s, which is 0 or 1. The terms multiplied by w may be
 * infinite there.
 */
DEV num gelu_d(num x, num s)
{
	const num w = s * (num(1.0f) - s);
	const num slope = num(1.5957691f) * (num(1.0f) + num(0.134145f) * x * x);

	return w.v == 0.0f ? s : s + x * w * slope;
}

DEV num qgelu_d(num x, num s)
{
	const num w = s * (num(1.0f) - s);

	return w.v == 0.0f ? s : s + num(1.702f) * x * s * (num(1.0f) - s);
}

DEV num silu_d(num x, num s)
{
	const num w = s * (num(1.0f) - s);

	return w.v == 0.0f ? s : s + x * s * (num(1.0f) - s);
}

DEV num gelu_erf_d(num x, num s)
{
	const num e = expf((num(-0.5f) * x * x).v);

	return e.v == 0.0f ? s : s + x * (num(0.39894228f) * e);
}

/* the polynomial of act.c where 2 s - 1 would cancel */
DEV num tanh_s(num x, num s)
{
	const num z = x * x;
	num q = 0x1.1abc24p-6f;

	q = q * z - num(0x1.b29beep-5f);
	q = q * z + num(0x1.10ea8cp-3f);
	q = q * z - num(0x1.5554dap-2f);
	return fabsf(x.v) < 0.5f ? x * (num(1.0f) + z * q) : num(2.0f) * s - num(1.0f);
}

DEV float relu(float x)
{
	return x <= 0.0f ? 0.0f : x;
}

DEV float act_y(int act, float x, float s)
{
	switch (act) {
	case ACT_RELU:
		return relu(x);
	case ACT_SRELU:
		return mul(relu(x), relu(x));
	case ACT_SIGMOID:
		return s;
	case ACT_TANH:
		return tanh_s(x, s).v;
	default:
		return times_s(x, s);
	}
}

DEV float act_d(int act, num x, num s)
{
	switch (act) {
	case ACT_GELU:
		return gelu_d(x, s).v;
	case ACT_QGELU:
		return qgelu_d(x, s).v;
	case ACT_RELU:
		return x.v <= 0.0f ? 0.0f : 1.0f;
	case ACT_SRELU:
		return mul(2.0f, relu(x.v));
	case ACT_SILU:
		return silu_d(x, s).v;
	case ACT_GELU_ERF:
		return gelu_erf_d(x, s).v;
	case ACT_TANH:
		return (num(4.0f) * s * (num(1.0f) - s)).v;
	default:
		return (s * (num(1.0f) - s)).v;
	}
}

/* is act of T numbers computed by gelu.cuh? */
template <class T> __host__ __device__ constexpr bool in_gelu_cuh(int act)
{
	return sizeof(T) == 2 && (act == ACT_GELU || act == ACT_GELU_ERF || act == ACT_SILU);
}

/* v = act(v), or of BF16 numbers */
template <class T> DEV void act_all(int act, float v[TE_V])
{
	float s[TE_V] = {};

	if (in_gelu_cuh<T>(act)) {
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[e] = act == ACT_GELU ? gelu_bf16(v[e]) :
			       act == ACT_SILU ? silu_bf16(v[e]) :
						 gelu_erf_bf16(v[e]);
		return;
	}
	act_s(act, v, s);
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		v[e] = act_y(act, v[e], s[e]);
}

/* d = act'(v), or of BF16 numbers */
template <class T> DEV void act_d_all(int act, const float v[TE_V], float d[TE_V])
{
	float s[TE_V] = {};

	if (in_gelu_cuh<T>(act)) {
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			d[e] = act == ACT_GELU ? gelu_d_bf16(v[e]) :
			       act == ACT_SILU ? silu_d_bf16(v[e]) :
						 gelu_erf_d_bf16(v[e]);
		return;
	}
	act_s(act, v, s);
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		d[e] = act_d(act, v[e], s[e]);
}

/* values of a call, in registers */
struct act_v {
	float v[TE_V];
};

/*
 * act_all() and act_d_all() of any activation, called and not inlined: inlined for each row of each
 * function with ACT_ANY, they were a third of the PTX of this file.
 */
static __device__ __noinline__ act_v act_any(int act, act_v x)
{
	act_all<float>(act, x.v);
	return x;
}
static __device__ __noinline__ act_v act_d_any(int act, act_v x)
{
	act_d_all<float>(act, x.v, x.v);
	return x;
}

/* the same of A; A is ACT_ANY: of act */
template <class T, int A> DEV void act_of(int act, float v[TE_V])
{
	act_v x;

	if (A != ACT_ANY) {
		act_all<T>(A, v);
		return;
	}
	memcpy(x.v, v, sizeof(x.v));
	x = act_any(act, x);
	memcpy(v, x.v, sizeof(x.v));
}
template <class T, int A> DEV void act_d_of(int act, const float v[TE_V], float d[TE_V])
{
	act_v x;

	if (A != ACT_ANY) {
		act_d_all<T>(A, v, d);
		return;
	}
	memcpy(x.v, v, sizeof(x.v));
	x = act_d_any(act, x);
	memcpy(d, x.v, sizeof(x.v));
}

/* 1: act_of() and act_d_of() share no term, so that both derivatives of a gated A need both */
template <class T, int A>
constexpr bool IS_WHOLE = A == ACT_ANY || in_gelu_cuh<T>(A);

template <class T, int A, bool GATED, int R> DEV void act_fwd_body(const struct te_k_act_fwd &a)
{
	__shared__ tile_codes<R> codes;
	const int64_t xcols = GATED ? 2 * a.cols : a.cols;
	const tile<R> t = tile_of_block<R>(a.rows, a.cols);
	struct tile_out<T> o = {
		(T *)a.y, a.q, NULL, 0, 1.0f,
		R == TILE_SMALL_R || tile_vec(a.cols, a.x, a.y, &a.q),
	};
	float v[R][TE_V], m;
	tile_raw<T, R> x, gate;

	x = tile_load<T>(&t, a.x, xcols, t.c, o.vec);
	if (GATED)
		gate = tile_load<T>(&t, a.x, xcols, a.cols + t.c, o.vec);
	o.scale = q_scale(&a.q);
	if (noop_set(a.q.noop))
		return;
	if (R != TILE_SMALL_R)
		q_scale_inv(&a.q, o.scale);
#pragma unroll
	for (int i = 0; i < R; i++) {
		float g[TE_V];

		unpack(x.row[i], v[i]);
		if (GATED)
			unpack(gate.row[i], g);
		act_of<T, A>(a.act, v[i]);
#pragma unroll
		for (int e = 0; GATED && e < TE_V; e++)
			v[i][e] = mul(v[i][e], g[e]);
	}
	m = tile_put<T, R, R == TILE_SMALL_R>(&o, &t, v, &codes, NULL, 0.0f);
	if (R != TILE_SMALL_R && a.q.amax)
		block_amax(a.q.amax, m);
	if (R == TILE_SMALL_R)
		q_scale_inv(&a.q, o.scale);
}

/*
 * dx has the columns of x: if gated, a tile of dy gives two tiles of dx, at columns t.c and
 * cols + t.c of a matrix of 2 cols columns, each as wide as the tile of dy.
 */
template <class T, int R, bool AMAX>
DEV float put_dx(struct tile_out<T> *o, const tile<R> *t, int64_t shift, int64_t xcols,
		 float v[R][TE_V], tile_codes<R> *codes, tile_values<T, R> *values, float m)
{
	tile<R> u = *t;

	u.c0 += shift;
	u.c += shift;
	u.end = t->cols + shift;
	u.cols = xcols;
	return tile_put<T, R, AMAX>(o, &u, v, codes, values, m);
}

template <class T, int A, bool GATED, int R> DEV void act_bwd_body(const struct te_k_act_bwd &a)
{
	__shared__ tile_codes<R> codes;
	__shared__ tile_values<T, R> values;
	const int64_t xcols = GATED ? 2 * a.cols : a.cols;
	const tile<R> t = tile_of_block<R>(a.rows, a.cols);
	struct tile_out<T> o = {
		(T *)a.dx, a.q, a.part, xcols, 1.0f,
		R == TILE_SMALL_R || (tile_vec(a.cols, a.x, a.dx, &a.q) && aligned(a.dy)),
	};
	float v[R][TE_V], m;
	tile_raw<T, R> dy, x, gate;

	dy = tile_load<T>(&t, a.dy, a.cols, t.c, o.vec);
	x = tile_load<T>(&t, a.x, xcols, t.c, o.vec);
	if (GATED)
		gate = tile_load<T>(&t, a.x, xcols, a.cols + t.c, o.vec);
	o.scale = q_scale(&a.q);
	if (noop_set(a.q.noop))
		return;
	if (R != TILE_SMALL_R)
		q_scale_inv(&a.q, o.scale);
#pragma unroll
	for (int i = 0; i < R; i++) {
		float g[TE_V], d[TE_V];

		unpack(x.row[i], v[i]);
		unpack(dy.row[i], d);
		if (GATED)
			unpack(gate.row[i], g);
		act_d_of<T, A>(a.act, v[i], v[i]);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[i][e] = mul(GATED ? mul(d[e], g[e]) : d[e], v[i][e]);
	}
	m = put_dx<T, R, !GATED && R == TILE_SMALL_R>(&o, &t, 0, xcols, v, &codes, &values, 0.0f);
	if (GATED) {
		__syncthreads(); /* the tile in shared memory has been read */
#pragma unroll
		for (int i = 0; i < R; i++) {
			float d[TE_V], s[TE_V] = {};

			unpack(x.row[i], v[i]);
			unpack(dy.row[i], d);
			if (IS_WHOLE<T, A>)
				act_of<T, A>(a.act, v[i]);
			else
				act_s(A, v[i], s);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[i][e] = mul(d[e], IS_WHOLE<T, A> ? v[i][e] :
								     act_y(A, v[i][e], s[e]));
		}
		m = put_dx<T, R, R == TILE_SMALL_R>(&o, &t, a.cols, xcols, v, &codes, &values, m);
	}
	if (R != TILE_SMALL_R && a.q.amax)
		block_amax(a.q.amax, m);
	if (R == TILE_SMALL_R)
		q_scale_inv(&a.q, o.scale);
}

/*
 * Block scaling: tiles of 128 x 128. A thread loads all inputs of BLOCK_STEP of its rows before it
 * computes the first.
 */
template <class T> constexpr int BLOCK_STEP = sizeof(T) == 2 ? 4 : 2;

template <class T, int A, bool GATED> DEV void act_fwd_block_body(const struct te_k_act_fwd &a)
{
	constexpr int STEP = BLOCK_STEP<T>;
	__shared__ block_shared<false> shared;
	const int64_t xcols = GATED ? 2 * a.cols : a.cols;
	const block_tile t = block_of_grid(a.rows, a.cols, 0);
	const block_out<T> o = { (T *)a.y, a.q, NULL, block_vec(a.cols, a.x, a.y, a.q) };
	const T *x = (const T *)a.x + t.r * xcols + t.c;
	raw<T> y[BLOCK_R];

	if (noop_set(a.q.noop))
		return;
#pragma unroll
	for (int i0 = 0; i0 < BLOCK_R; i0 += STEP) {
		raw<T> in[STEP], gate[STEP];

#pragma unroll
		for (int i = 0; i < STEP; i++) {
			const T *row = x + (i0 + i) * xcols;
			const int n = block_n(t, i0 + i);

			in[i] = block_load<false>(row, n, o.vec);
			if (GATED)
				gate[i] = block_load<false>(row + a.cols, n, o.vec);
		}
#pragma unroll
		for (int i = 0; i < STEP; i++) {
			float v[TE_V], g[TE_V];

			unpack(in[i], v);
			if (GATED)
				unpack(gate[i], g);
			act_of<T, A>(a.act, v);
#pragma unroll
			for (int e = 0; GATED && e < TE_V; e++)
				v[e] = mul(v[e], g[e]);
			y[i0 + i] = block_round<T>(block_n(t, i0 + i), v);
		}
	}
	block_put(o, a.q.scaling, t, y, &shared);
}

/* n elements at p, those from first on at p + shift: a vector that extends into the second half */
template <class T> DEV raw<T> halves_load(const T *p, int n, int first, int64_t shift)
{
	float v[TE_V];

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		v[e] = e < n ? to_float(p[e < first ? e : e + shift]) : 0.0f;
	return pack<T>(v);
}

/*
 * Computes tiles of dx. The tiles of the two halves of a gated row have the same inputs; where cols
 * is a multiple of 128 they are computed serially.
 */
template <class T, int A, bool GATED> DEV void act_bwd_block_body(const struct te_k_act_bwd &a)
{
	constexpr int STEP = BLOCK_STEP<T>;
	__shared__ block_shared<true> shared;
	const int64_t xcols = GATED ? 2 * a.cols : a.cols;
	const bool split = GATED && a.cols % BLOCK == 0;
	const block_tile t =
		block_of_grid(a.rows, xcols, split ? (uint32_t)(a.cols / BLOCK) : 0);
	const block_out<T> o = { (T *)a.dx, a.q, a.part,
				 a.cols % TE_V == 0 && aligned(a.dy) &&
					 block_vec(xcols, a.x, a.dx, a.q) };
	/* number of the thread's columns in the first half; 0 or all if rows are vectors */
	const int first = GATED ? clamp_int(a.cols - t.c, 0, TE_V) : TE_V;
	const int64_t at = first ? t.c : t.c - a.cols;
	raw<T> dx[BLOCK_R];

	if (noop_set(a.q.noop))
		return;
#pragma unroll
	for (int i0 = 0; i0 < BLOCK_R; i0 += STEP) {
		raw<T> dy[STEP], x[STEP], gate[STEP];

#pragma unroll
		for (int i = 0; i < STEP; i++) {
			const T *dy_at = (const T *)a.dy + (t.r + i0 + i) * a.cols + at;
			const T *x_at = (const T *)a.x + (t.r + i0 + i) * xcols + at;
			const int n = block_n(t, i0 + i);

			if (o.vec || !GATED) {
				dy[i] = block_load<false>(dy_at, n, o.vec);
				x[i] = block_load<false>(x_at, n, o.vec);
			} else {
				dy[i] = halves_load(dy_at, n, first, first ? -a.cols : 0);
				x[i] = halves_load(x_at, n, first, first ? -a.cols : 0);
			}
			if (GATED)
				gate[i] = block_load<false>(x_at + a.cols, min(n, first), o.vec);
		}
#pragma unroll
		for (int i = 0; i < STEP; i++) {
			float v[TE_V], y[TE_V], d[TE_V], g[TE_V], s[TE_V] = {};

			unpack(x[i], v);
			unpack(x[i], y);
			unpack(dy[i], d);
			if (GATED)
				unpack(gate[i], g);
			if (!IS_WHOLE<T, A>) {
				act_s(A, v, s);
			} else {
				if (!GATED || first)
					act_d_of<T, A>(a.act, v, v);
				if (GATED && first < TE_V)
					act_of<T, A>(a.act, y);
			}
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				if (GATED && e >= first)
					v[e] = mul(d[e], IS_WHOLE<T, A> ? y[e] :
									  act_y(A, y[e], s[e]));
				else
					v[e] = mul(GATED ? mul(d[e], g[e]) : d[e],
						   IS_WHOLE<T, A> ? v[e] : act_d(A, v[e], s[e]));
			}
			dx[i0 + i] = block_round<T>(block_n(t, i0 + i), v);
		}
	}
	block_put(o, a.q.scaling, t, dx, &shared);
}

#define BLOCK_FUNC(DIR, T, t, A, GATED, name)                                   \
	TE_KERNEL(act_##DIR##_##name##t, act_##DIR,                             \
		  (BLOCK_THREADS, sizeof(T) == 2 && A != ACT_ANY ? 2 : 1),      \
		  act_##DIR##_block_body<T, A, GATED>(a))
/* blocks of a multiprocessor that registers have room for */
#define GATED_fwd 3
#define GATED_bwd 2
#define FUNC(DIR, T, t, A, GATED, R, name)                                                      \
	extern "C" __global__ void                                                              \
	__launch_bounds__(TILE_THREADS, sizeof(T) == 4 ? 1 : !in_gelu_cuh<T>(A) ? 2 :           \
					GATED ? GATED_##DIR : 4)                                \
		te_k_act_##DIR##_##name##t(const __grid_constant__ struct te_k_act_##DIR a)     \
	{                                                                                       \
		te_begin_early();                                                               \
		act_##DIR##_body<T, A, GATED, R>(a);                                            \
	}
#define LARGE(DIR, T, t, A, name)                                       \
	FUNC(DIR, T, t, A, false, TILE_R, name)                         \
	FUNC(DIR, T, t, A, true, TILE_R, gated_##name)
#define SMALL_M(DIR, T, t, A, name)                                     \
	FUNC(DIR, T, t, A, false, TILE_SMALL_R, small_m_##name)         \
	FUNC(DIR, T, t, A, true, TILE_SMALL_R, small_m_gated_##name)
#define BLOCK_SCALED(DIR, T, t, A, name)                                \
	BLOCK_FUNC(DIR, T, t, A, false, block_##name)                   \
	BLOCK_FUNC(DIR, T, t, A, true, block_gated_##name)
#define BOTH(FUNCS, T, t, A, name)                                      \
	FUNCS(fwd, T, t, A, name)                                       \
	FUNCS(bwd, T, t, A, name)
#define COMMON(A, name)                                                 \
	BOTH(LARGE, bf16, bf16, A, name)                                \
	BOTH(SMALL_M, bf16, bf16, A, name)                              \
	BOTH(BLOCK_SCALED, bf16, bf16, A, name)
COMMON(ACT_GELU, gelu_)
COMMON(ACT_GELU_ERF, gelu_erf_)
COMMON(ACT_SILU, silu_)
BOTH(LARGE, bf16, bf16, ACT_QGELU, qgelu_)
BOTH(LARGE, bf16, bf16, ACT_RELU, relu_)
BOTH(LARGE, bf16, bf16, ACT_SRELU, srelu_)
BOTH(LARGE, bf16, bf16, ACT_SIGMOID, sigmoid_)
BOTH(LARGE, bf16, bf16, ACT_TANH, tanh_)
BOTH(BLOCK_SCALED, bf16, bf16, ACT_ANY, )
BOTH(LARGE, float, fp32, ACT_ANY, )
BOTH(BLOCK_SCALED, float, fp32, ACT_ANY, )
#undef COMMON
#undef BOTH
#undef BLOCK_SCALED
#undef SMALL_M
#undef LARGE
#undef BLOCK_FUNC
#undef FUNC
#undef GATED_fwd
#undef GATED_bwd
