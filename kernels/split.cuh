/* split.cuh - loads of weights that are stored as BF16 numbers, with or without a remainder. */
#ifndef TE_SPLIT_CUH
#define TE_SPLIT_CUH

#include "kernels/dev.cuh"
#include "kernels/optim/round.h"

/*
 * The first n of TE_V elements as FP32; the others are 0. rest: their other halves, or NULL. vec:
 * both are aligned to vectors, and n is 0 or TE_V. ONCE: as in load_raw().
 */
template <bool ONCE>
DEV void split_load(const uint16_t *upper, const uint16_t *rest, int n, bool vec, float v[TE_V])
{
	raw<bf16> u = zero_raw<bf16>(), l = zero_raw<bf16>();

	if (!vec) {
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			v[e] = e < n ? te_round_join(upper[e], rest ? rest[e] : 0) : 0.0f;
		return;
	}
	if (n)
		u = load_raw<ONCE>((const bf16 *)upper);
	if (n && rest)
		l = load_raw<ONCE>((const bf16 *)rest);

	const uint32_t hi[4] = { u.q[0].x, u.q[0].y, u.q[0].z, u.q[0].w };
	const uint32_t lo[4] = { l.q[0].x, l.q[0].y, l.q[0].z, l.q[0].w };

#pragma unroll
	for (int i = 0; i < TE_V / 2; i++) {
		v[2 * i] = te_round_join(hi[i] & 0xffffu, lo[i] & 0xffffu);
		v[2 * i + 1] = te_round_join(hi[i] >> 16, lo[i] >> 16);
	}
}

#endif
