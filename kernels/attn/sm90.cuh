/* attn/sm90.cuh - common code of sm90.cu and sm90_bwd.cu: rings, order of items, strips. */
#ifndef TE_ATTN_SM90_CUH
#define TE_ATTN_SM90_CUH

#include "kernels/attn/dev.cuh"
#include "kernels/attn/sm90.h"
#include "kernels/begin.cuh"
#include "kernels/sm90.cuh"

#define STRIP ATTN_SM90_STRIP
#define BOX ATTN_SM90_BOX
#define ROW_NBYTES 128 /* row of a box */
#define BOX_NBYTES (BOX * ROW_NBYTES)

/* a stage, and the parity of the phase of its barriers; tiles go through stages in order */
template <int STAGES> struct ring {
	uint32_t stage = 0, parity = 0;

	__device__ __forceinline__ void next(void)
	{
		if (++stage < STAGES)
			return;
		stage = 0;
		parity ^= 1;
	}
	__device__ __forceinline__ struct ring before(void) const
	{
		struct ring r;

		r.stage = stage ? stage - 1 : STAGES - 1;
		r.parity = stage ? parity : parity ^ 1;
		return r;
	}
};

/*
 * A warp has read the tile. All of its lanes must have seen that the tile was full: a lane that
 * looks only when the next tile is there, too, finds the parity as before both and waits forever.
 */
DEV void release(uint32_t empty)
{
	__syncwarp();
	if (LANE == 0)
		barrier_arrive(empty);
}

/*
 * The i-th item of this block: its head, and its level, 0 for the longest. Heads are taken at_once
 * at a time, level by level; every second round goes from the last block to the first.
 */
DEV bool deal(int i, int nheads, int nlevels, int at_once, int *head, int *level)
{
	const int n = (int)gridDim.x, b = (int)blockIdx.x, per = at_once * nlevels;
	const int k = i * n + (i & 1 ? n - 1 - b : b), first = k / per * at_once;
	int count;

	if (k >= nheads * nlevels)
		return false;
	count = min(at_once, nheads - first);
	*head = first + k % per % count;
	*level = k % per / count;
	return true;
}

/* accumulators of 8 N / 2 columns as operands in registers, and two neighbours in a word */
template <int N> DEV void round_all(const float (&s)[2 * N], uint32_t (&p)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

/* accumulators of a strip times f of their row, rounded, to boxes of 64 columns */
template <int D> DEV void write_strip(uint32_t to, const float (&f)[2], const float (&o)[D / 2])
{
	const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;

#pragma unroll
	for (int j = 0; j < D / 8; j += 2) {
		uint32_t w[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = pack_bf16(o[4 * j + 2 * i] * f[i % 2],
					 o[4 * j + 2 * i + 1] * f[i % 2]);
		smem_store_matrices(to + j / 8 * BOX_NBYTES + row * ROW_NBYTES +
					    ((j % 8 + lane / 16) ^ row % 8) * 16,
				    w[0], w[1], w[2], w[3]);
	}
}

/* the boxes of a strip from a row on and a column on, a multiple of 8; see quantize_rows() */
struct strip_part {
	uint32_t boxes;
	int row, col;

	__device__ __forceinline__ uint32_t chunk(int y, int x) const
	{
		y += row;
		x += col;
		return boxes + x / BOX * BOX_NBYTES + y * ROW_NBYTES + (x % BOX / 8 ^ y % 8) * 16;
	}
	__device__ __forceinline__ uint16_t one(int y, int x) const
	{
		return smem_load_half(chunk(y, x) + x % 8 * 2);
	}
	__device__ __forceinline__ uint4 eight(int y, int x) const
	{
		int w[4];

		smem_load4(chunk(y, x), w[0], w[1], w[2], w[3]);
		return make_uint4(w[0], w[1], w[2], w[3]);
	}
};

/* starts the copy of a strip from its boxes; one thread */
template <int D>
DEV void store_strip(const struct te_tensor_map *to, int col, int row, int batch, uint32_t from)
{
	for (int c = 0; c < D / BOX; c++)
		tma_store(to, col + c * BOX, row, batch, from + c * BOX_NBYTES);
}

#endif
