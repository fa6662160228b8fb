/*
 * te_embed.cu - token and position tables, forward and backward.
 *
 * forward: y [rows, width] = table[token] + pos. One block of 128 threads a row, 4 elements
 *   of table a thread and turn; 4 + 4 bytes read, sizeof(T) written an element.
 * backward: dtable[v] += sum of dy over the rows with token v in ascending order, which
 *   must not depend on the grid, so no atomics: a block owns SPAN tokens and a slice of columns,
 *   scans all tokens in order, gathers the matching rows in shared memory, and each thread
 *   then adds its column of them. A small vocabulary gets a block a token; a large one 8 tokens
 *   a block, so that the scans together read the tokens only vocab / 8 times from L2.
 *   Shared memory: 9 KiB. sm_90a; plain loads are enough for what is a few per cent of a step.
 */
#include "te_dev.cuh"

template <class T> DEV void embed_fwd(const struct te_k_embed_fwd &a)
{
	const int64_t r = blockIdx.x;
	const int64_t token = a.tokens[r];
	const float *row = token >= 0 && token < a.vocab ? a.table + token * a.width : 0;
	const float *pos = a.pos ? a.pos + r % a.seqlen * a.width : 0;
	T *y = (T *)a.y + r * a.width;

	for (int64_t c = threadIdx.x; c < a.width; c += blockDim.x) {
		float v = row ? row[c] : 0.0f;

		y[c] = from_float<T>(pos ? add(v, pos[c]) : v);
	}
}

#define SCAN 256  /* threads; tokens looked at a turn */
#define HITS 1024 /* rows gathered before they are added */

struct hits {
	int row[HITS];
	int token[HITS];
	int n;
	int warp[SCAN / 32];
};

/* rows of the next SCAN tokens that lie in [lo, hi), appended in ascending order; all threads */
DEV void gather(struct hits *h, const int32_t *tokens, int64_t begin, int64_t rows, int64_t lo,
		int64_t hi)
{
	const int64_t r = begin + threadIdx.x;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int32_t t = r < rows ? tokens[r] : -1;
	const bool hit = t >= lo && t < hi;
	const unsigned mask = __ballot_sync(0xffffffffu, hit);
	int at = h->n;

	if (lane == 0)
		h->warp[warp] = __popc(mask);
	__syncthreads();
	for (int w = 0; w < warp; w++)
		at += h->warp[w];
	if (hit) {
		at += __popc(mask & ((1u << lane) - 1));
		h->row[at] = (int)r;
		h->token[at] = t;
	}
	__syncthreads();
	if (threadIdx.x == 0)
		for (int w = 0; w < SCAN / 32; w++)
			h->n += h->warp[w];
	__syncthreads();
}

/* the sum over all rows with token t, scanned in order, into its row of the table */
template <class T> DEV void one_token(const struct te_k_embed_bwd &a, struct hits *h, int64_t t,
				      int64_t c)
{
	const T *dy = (const T *)a.dy;
	const bool on = c < a.width;
	float sum = 0.0f;
	bool any = false;

	for (int64_t begin = 0; begin < a.rows; begin += SCAN) {
		gather(h, a.tokens, begin, a.rows, t, t + 1);
		if (h->n + SCAN <= HITS && begin + SCAN < a.rows)
			continue;
		any = any || h->n > 0;
		if (on) {
			int i = 0;

			for (; i + 8 <= h->n; i += 8) {
				float v[8];

#pragma unroll
				for (int k = 0; k < 8; k++)
					v[k] = to_float(dy[(int64_t)h->row[i + k] * a.width + c]);
#pragma unroll
				for (int k = 0; k < 8; k++)
					sum = add(sum, v[k]);
			}
			for (; i < h->n; i++)
				sum = add(sum, to_float(dy[(int64_t)h->row[i] * a.width + c]));
		}
		__syncthreads();
		if (threadIdx.x == 0)
			h->n = 0;
		__syncthreads();
	}
	if (on && any)
		a.dtable[t * a.width + c] = add(a.dtable[t * a.width + c], sum);
}

/* a block's tokens share one scan where their rows fit HITS, else each token scans by itself */
template <class T> DEV void embed_bwd(const struct te_k_embed_bwd &a, int span)
{
	__shared__ struct hits h;
	const T *dy = (const T *)a.dy;
	const int64_t lo = (int64_t)blockIdx.x * span;
	const int64_t hi = lo + span < a.vocab ? lo + span : a.vocab;
	const int64_t c = (int64_t)blockIdx.y * SCAN + threadIdx.x;
	bool fits = span > 1;

	if (threadIdx.x == 0)
		h.n = 0;
	__syncthreads();
	for (int64_t begin = 0; begin < a.rows && fits; begin += SCAN) {
		gather(&h, a.tokens, begin, a.rows, lo, hi);
		fits = h.n + SCAN <= HITS || begin + SCAN >= a.rows;
	}
	if (!fits) {
		__syncthreads();
		if (threadIdx.x == 0)
			h.n = 0;
		__syncthreads();
		for (int64_t t = lo; t < hi; t++)
			one_token<T>(a, &h, t, c);
		return;
	}
	for (int64_t t = lo; t < hi; t++) {
		float sum = 0.0f;
		bool any = false;

		for (int i = 0; i < h.n; i++)
			if (h.token[i] == t) {
				any = true;
				if (c < a.width)
					sum = add(sum,
						  to_float(dy[(int64_t)h.row[i] * a.width + c]));
			}
		if (any && c < a.width)
			a.dtable[t * a.width + c] = add(a.dtable[t * a.width + c], sum);
	}
}

template <class T> DEV void pos_bwd(const struct te_k_pos_bwd &a)
{
	const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	const int64_t n = a.seqlen * a.width;
	const T *dy = (const T *)a.dy;
	float sum = 0.0f;

	if (i >= n)
		return;
	for (int64_t b = 0; b < a.batch; b++)
		sum = add(sum, to_float(dy[b * n + i]));
	a.dpos[i] = add(a.dpos[i], sum);
}

#define KERNELS(NAME, T)                                                                        \
	extern "C" __global__ void __launch_bounds__(128)                                       \
		te_k_embed_fwd_##NAME(const __grid_constant__ struct te_k_embed_fwd a)          \
	{                                                                                       \
		embed_fwd<T>(a);                                                                \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(SCAN)                                      \
		te_k_embed_bwd_##NAME(const __grid_constant__ struct te_k_embed_bwd a)          \
	{                                                                                       \
		embed_bwd<T>(a, (int)((a.vocab + gridDim.x - 1) / gridDim.x));                  \
	}                                                                                       \
	extern "C" __global__ void __launch_bounds__(256)                                       \
		te_k_pos_bwd_##NAME(const __grid_constant__ struct te_k_pos_bwd a)              \
	{                                                                                       \
		pos_bwd<T>(a);                                                                  \
	}
KERNELS(fp32, float)
KERNELS(bf16, bf16)
