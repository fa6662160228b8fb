/*
 * te_act.cu - activation functions, plain and gated, and their gradients. sm_90a.
 *
 *  kernel                shapes                     blocks             threads  shared (BF16, FP32)
 *  act_fwd_ACT_T         x T [rows, cols]           a 64 x 128 tile    256      8320
 *  act_fwd_gated_ACT_T   x T [rows, 2 cols]         of y                        8320
 *  act_bwd_ACT_T         dy T [rows, cols]          a 64 x 128 tile    256      24704, 41088
 *  act_bwd_gated_ACT_T                              of dy                       24704, 41088
 *  act_DIR_few_...       the same, whole vectors    a 64 x 32 tile     256      a quarter
 *
 * B/element of y, BF16: plain forward to both FP8 copies 4, gated 6; plain backward
 * to both copies 6, gated 10; the T result 2 (4 gated) more. One pass does all: the column
 * sums that make the bias gradient come from the tile in shared memory, in row
 * order. One function an activation, so that none pays registers for another.
 */
#include "te_tile.cuh"

enum { ACT_GELU, ACT_QGELU, ACT_RELU, ACT_SRELU, ACT_SILU, ACT_SIGMOID }; /* enum te_act */

/*
 * 1 / d of each, rounded as a division is; d is at least 1 or NaN. Where all of d are of plain
 * size this is what a division does too, without its branch an element, at which each
 * would wait for the one before.
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
 * s = sig(what the activation has in it), 1 / (1 + exp(-...)), if anything. GELU, the tanh form:
 * 0.5 (1 + tanh(u)) is sig(2u), which loses no bits below 0.
 */
template <int A> DEV void act_s(const float x[TE_V], float s[TE_V])
{
	if constexpr (A != ACT_RELU && A != ACT_SRELU) {
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			const num v = x[e];
			num u = v;

			if (A == ACT_GELU)
				u = num(1.5957691f) * (v + num(0.044715f) * v * v * v);
			else if (A == ACT_QGELU)
				u = num(1.702f) * v;
			s[e] = add(1.0f, expf(-u.v));
		}
		reciprocals(s);
	}
}

DEV num gelu_d(num x, num s)
{
	const num w = s * (num(1.0f) - s);
	const num slope = num(1.5957691f) * (num(1.0f) + num(0.134145f) * x * x);

	/* w is 0 where x * x may be infinite */
	return w.v == 0.0f ? s : s + x * w * slope;
}

DEV float relu(float x)
{
	return x <= 0.0f ? 0.0f : x;
}

template <int A> DEV float act(float x, float s)
{
	switch (A) {
	case ACT_RELU:
		return relu(x);
	case ACT_SRELU:
		return mul(relu(x), relu(x));
	case ACT_SIGMOID:
		return s;
	default:
		return mul(x, s);
	}
}

template <int A> DEV float act_d(num x, num s)
{
	switch (A) {
	case ACT_GELU:
		return gelu_d(x, s).v;
	case ACT_QGELU:
		return (s + num(1.702f) * x * s * (num(1.0f) - s)).v;
	case ACT_RELU:
		return x.v <= 0.0f ? 0.0f : 1.0f;
	case ACT_SRELU:
		return mul(2.0f, relu(x.v));
	case ACT_SILU:
		return (s + x * s * (num(1.0f) - s)).v;
	default:
		return (s * (num(1.0f) - s)).v;
	}
}

template <class T, int A, bool GATED, int R> DEV void act_fwd_body(const struct te_k_act_fwd &a)
{
	__shared__ tile_codes<R> codes;
	const int64_t xcols = GATED ? 2 * a.cols : a.cols;
	const tile<R> t = tile_of_block<R>(a.rows, a.cols);
	struct tile_out<T> o = {
		(T *)a.y, a.q, NULL, 0, 1.0f,
		R == TILE_FEW_R || tile_vec(a.cols, a.x, a.y, &a.q),
	};
	float v[R][TE_V], m;
	tile_raw<T, R> x, gate;

	x = tile_load<T>(&t, a.x, xcols, t.c, o.vec);
	if (GATED)
		gate = tile_load<T>(&t, a.x, xcols, a.cols + t.c, o.vec);
	o.scale = q_scale(&a.q);
	if (noop_set(a.q.noop))
		return;
	if (R != TILE_FEW_R)
		q_scale_inv(&a.q, o.scale);
#pragma unroll
	for (int i = 0; i < R; i++) {
		float g[TE_V], s[TE_V] = {};

		unpack(x.row[i], v[i]);
		if (GATED)
			unpack(gate.row[i], g);
		act_s<A>(v[i], s);
#pragma unroll
		for (int e = 0; e < TE_V; e++) {
			v[i][e] = act<A>(v[i][e], s[e]);
			if (GATED)
				v[i][e] = mul(v[i][e], g[e]);
		}
	}
	m = tile_put<T, R, R == TILE_FEW_R>(&o, &t, v, &codes, NULL, 0.0f);
	if (R != TILE_FEW_R && a.q.amax)
		block_amax(a.q.amax, m);
	if (R == TILE_FEW_R)
		q_scale_inv(&a.q, o.scale);
}

/*
 * dx has the columns of x: gated, a tile of dy makes two tiles of dx, cols apart. They
 * are columns t.c and cols + t.c of a matrix of 2 cols columns, but end where dy's do.
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
		R == TILE_FEW_R || (tile_vec(a.cols, a.x, a.dx, &a.q) && aligned(a.dy)),
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
	if (R != TILE_FEW_R)
		q_scale_inv(&a.q, o.scale);
#pragma unroll
	for (int i = 0; i < R; i++) {
		float g[TE_V], d[TE_V], s[TE_V] = {};

		unpack(x.row[i], v[i]);
		unpack(dy.row[i], d);
		if (GATED)
			unpack(gate.row[i], g);
		act_s<A>(v[i], s);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[i][e] = mul(GATED ? mul(d[e], g[e]) : d[e], act_d<A>(v[i][e], s[e]));
	}
	m = put_dx<T, R, !GATED && R == TILE_FEW_R>(&o, &t, 0, xcols, v, &codes, &values, 0.0f);
	if (GATED) {
		__syncthreads(); /* the tile in shared memory has been read */
#pragma unroll
		for (int i = 0; i < R; i++) {
			float d[TE_V], s[TE_V] = {};

			unpack(x.row[i], v[i]);
			unpack(dy.row[i], d);
			act_s<A>(v[i], s);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[i][e] = mul(d[e], act<A>(v[i][e], s[e]));
		}
		m = put_dx<T, R, R == TILE_FEW_R>(&o, &t, a.cols, xcols, v, &codes, &values, m);
	}
	if (R != TILE_FEW_R && a.q.amax)
		block_amax(a.q.amax, m);
	if (R == TILE_FEW_R)
		q_scale_inv(&a.q, o.scale);
}

#define FUNC(DIR, T, t, A, GATED, R, name)                                                    \
	extern "C" __global__ void __launch_bounds__(TILE_THREADS, sizeof(T) == 2 ? 2 : 1)    \
		te_k_act_##DIR##_##name##_##t(const __grid_constant__ struct te_k_act_##DIR a) \
	{                                                                                     \
		te_begin();                                                                   \
		act_##DIR##_body<T, A, GATED, R>(a);                                          \
	}
#define FUNCS(DIR, T, t, A, name)                                     \
	FUNC(DIR, T, t, A, false, TILE_R, name)                       \
	FUNC(DIR, T, t, A, true, TILE_R, gated_##name)                \
	FUNC(DIR, T, t, A, false, TILE_FEW_R, few_##name)             \
	FUNC(DIR, T, t, A, true, TILE_FEW_R, few_gated_##name)
#define TE_NAME(A, name)                 \
	FUNCS(fwd, float, fp32, A, name) \
	FUNCS(fwd, bf16, bf16, A, name)  \
	FUNCS(bwd, float, fp32, A, name) \
	FUNCS(bwd, bf16, bf16, A, name)
TE_NAME(ACT_GELU, gelu)
TE_NAME(ACT_QGELU, qgelu)
TE_NAME(ACT_RELU, relu)
TE_NAME(ACT_SRELU, srelu)
TE_NAME(ACT_SILU, silu)
TE_NAME(ACT_SIGMOID, sigmoid)
#undef TE_NAME
#undef FUNCS
#undef FUNC
