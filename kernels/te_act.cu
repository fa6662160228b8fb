/*
 * te_act.cu - activation functions, plain and gated, with quantized results. sm_90a.
 *
 * Blocks of 256 threads make tiles of 64 rows x 128 columns of the result (te_tile.cuh):
 *  act_fwd         reads 1 (gated 2) T, writes T and up to two codes an element
 *  act_bwd         reads 2 T an element of dx; column sums of dx on the way
 *  act_bwd gated   a tile lies in the activated half, which reads dy, x and the gate, or in the
 *                  gate's half, which reads dy and x: 5 reads where a pass over dy needs 3
 * Shared memory: 8192 bytes of codes, and in act_bwd the tile as T for its sums.
 */
#include "te_tile.cuh"

/* enum te_act of te/op.h, which kernels cannot include */
enum { ACT_GELU, ACT_QGELU, ACT_RELU, ACT_SRELU, ACT_SILU, ACT_SIGMOID };

DEV float sig(float x)
{
	return __fdividef(1.0f, 1.0f + __expf(-x));
}

DEV float gelu_s(float x)
{
	return sig(1.5957691f * (x + 0.044715f * x * x * x));
}

DEV float relu(float x)
{
	return x <= 0.0f ? 0.0f : x; /* NaN passes */
}

DEV float act(int kind, float x)
{
	switch (kind) {
	case ACT_GELU:
		return x * gelu_s(x);
	case ACT_QGELU:
		return x * sig(1.702f * x);
	case ACT_RELU:
		return relu(x);
	case ACT_SRELU:
		return mul(relu(x), relu(x));
	case ACT_SILU:
		return x * sig(x);
	default:
		return sig(x);
	}
}

DEV float act_d(int kind, float x)
{
	float s, w;

	switch (kind) {
	case ACT_GELU:
		s = gelu_s(x);
		w = s * (1.0f - s);
		/* where x * x may be infinite */
		return w == 0.0f ? s : s + x * w * (1.5957691f * (1.0f + 0.134145f * x * x));
	case ACT_QGELU:
		s = sig(1.702f * x);
		return s + 1.702f * x * s * (1.0f - s);
	case ACT_RELU:
		return x <= 0.0f ? 0.0f : 1.0f;
	case ACT_SRELU:
		return 2.0f * relu(x);
	case ACT_SILU:
		s = sig(x);
		return s + x * s * (1.0f - s);
	default:
		s = sig(x);
		return s * (1.0f - s);
	}
}

template <class T> DEV void act_fwd(const struct te_k_act_fwd &a)
{
	__shared__ struct tile_codes codes;
	const struct tile t = tile_of_block(a.rows, a.cols);
	const int64_t pitch = a.gated ? 2 * a.cols : a.cols;
	struct tile_out<T> o = { (T *)a.y, a.q, NULL, 0, 1.0f,
				 tile_vec(a.cols, a.x, a.y, &a.q) };
	float v[TILE_R][TE_V], m;
	tile_raw<T> x, gate;

	if (noop_set(a.q.noop))
		return;
	x = tile_load<T>(&t, a.x, pitch, t.c, o.vec);
	if (a.gated)
		gate = tile_load<T>(&t, a.x, pitch, a.cols + t.c, o.vec);
	o.scale = q_scale(&a.q);
	q_scale_inv(&a.q);
#pragma unroll
	for (int i = 0; i < TILE_R; i++) {
		unpack(x.row[i], v[i]);
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[i][e] = act(a.act, v[i][e]);
		if (a.gated) {
			float g[TE_V];

			unpack(gate.row[i], g);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[i][e] = mul(v[i][e], g[e]);
		}
	}
	m = tile_put<T>(&o, &t, v, &codes, NULL, 0.0f);
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

/* dx of the gated form at column c of 2 cols */
template <class T> DEV float gated_dx(const struct te_k_act_bwd &a, int64_t r, int64_t c)
{
	const bool second = c >= a.cols;
	const int64_t k = second ? c - a.cols : c;
	const T *x = (const T *)a.x + r * 2 * a.cols;
	const float dy = to_float(((const T *)a.dy)[r * a.cols + k]), v = to_float(x[k]);

	if (second)
		return mul(dy, act(a.act, v));
	return mul(mul(to_float(x[a.cols + k]), dy), act_d(a.act, v));
}

template <class T> DEV void act_bwd(const struct te_k_act_bwd &a)
{
	__shared__ struct tile_codes codes;
	__shared__ struct tile_values<T> values;
	const int64_t cols = a.gated ? 2 * a.cols : a.cols; /* of dx */
	const struct tile t = tile_of_block(a.rows, cols);
	struct tile_out<T> o = { (T *)a.dx, a.q, a.part, cols, 1.0f,
				 tile_vec(a.cols, a.x, a.dx, &a.q) && aligned(a.dy) };
	float v[TILE_R][TE_V], m;

	if (noop_set(a.q.noop))
		return;
	o.scale = q_scale(&a.q);
	if (!a.gated) {
		tile_raw<T> x = tile_load<T>(&t, a.x, cols, t.c, o.vec);
		tile_raw<T> dy = tile_load<T>(&t, a.dy, cols, t.c, o.vec);

#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			float d[TE_V];

			unpack(x.row[i], v[i]);
			unpack(dy.row[i], d);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[i][e] = mul(act_d(a.act, v[i][e]), d[e]);
		}
	} else if (o.vec) {
		/* a vector lies in one half */
		const bool second = t.c >= a.cols;
		const int64_t k = second ? t.c - a.cols : t.c;
		tile_raw<T> x = tile_load<T>(&t, a.x, cols, k, true);
		tile_raw<T> dy = tile_load<T>(&t, a.dy, a.cols, k, true);
		tile_raw<T> gate;

		if (!second)
			gate = tile_load<T>(&t, a.x, cols, a.cols + k, true);
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			float d[TE_V], g[TE_V];

			unpack(x.row[i], v[i]);
			unpack(dy.row[i], d);
			if (!second)
				unpack(gate.row[i], g);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[i][e] = second ? mul(d[e], act(a.act, v[i][e])) :
						   mul(mul(g[e], d[e]), act_d(a.act, v[i][e]));
		}
	} else {
#pragma unroll
		for (int i = 0; i < TILE_R; i++) {
			const int n = tile_n(&t, i);

#pragma unroll
			for (int e = 0; e < TE_V; e++)
				v[i][e] = e < n ? gated_dx<T>(a, t.r + i, t.c + e) : 0.0f;
		}
	}
	q_scale_inv(&a.q);
	m = tile_put<T>(&o, &t, v, &codes, &values, 0.0f);
	if (a.q.amax)
		block_amax(a.q.amax, m);
}

#define KERNELS(NAME, T)                                                                        \
	extern "C" __global__ void __launch_bounds__(TILE_THREADS)                              \
		te_k_act_fwd_##NAME(const __grid_constant__ struct te_k_act_fwd a)              \
	{                                                                                       \
		act_fwd<T>(a);                                                                  \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(TILE_THREADS)                              \
		te_k_act_bwd_##NAME(const __grid_constant__ struct te_k_act_bwd a)              \
	{                                                                                       \
		act_bwd<T>(a);                                                                  \
	}
KERNELS(fp32, float)
KERNELS(bf16, bf16)
