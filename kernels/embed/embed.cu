/*
 * embed.cu - token and position tables. sm_90a.
 *
 *  kernel             shapes                      blocks               threads  shared  B/element
 *  embed_fwd          table FP32 [vocab, width]   a row                32..128  0       6, pos 10
 *    _split           BF16 + 16 bits              a row                32..128  0       6, pos 10
 *  embed_bwd          dy T [rows, width]          1 or 16 table rows   256      24612   2, + tokens
 *  embed_bwd_small_m  the same, up to 256 rows    4 rows of dy         128      4096    2
 *  pos_bwd            dy T [batch, seqlen, width] 1024 elements        128      0       2
 *
 * B/element is of BF16. embed_bwd uses no atomics, so that sums are in ascending row order. A
 * block owns 16 rows of the table, or 1 of a small table, whose rows occur often. It reads all
 * tokens, which are few bytes and in L2, lists its rows of dy in ascending order, and sums them in
 * registers with 16 rows in flight. If the list does not fit in shared memory, it is rebuilt for
 * each table row, EMBED_BWD_STEP tokens at a time. embed_bwd_small_m exists because its latency
 * does not depend on the vocabulary: a warp takes one row of dy and 256 columns, and the first row
 * of a token sums all rows of that token.
 */
#include "kernels/dev.cuh"
#include "kernels/split.cuh"
#include "kernels/embed/geometry.h"

/* --- forward ------------------------------------------------------------- */

/* n elements of a table from at on; n is TE_V, or less without vec */
template <bool SPLIT>
DEV void row_load(const void *table, const uint16_t *rest, int64_t at, int n, bool vec,
		  float v[TE_V])
{
	if constexpr (SPLIT)
		split_load<false>((const uint16_t *)table + at, rest ? rest + at : NULL, n, vec, v);
	else if (vec)
		load_vec((const float *)table + at, v);
	else
		load_some((const float *)table + at, n, v);
}

template <class T, bool SPLIT> DEV void embed_fwd_body(const struct te_k_embed_fwd &a)
{
	const uint32_t r = blockIdx.x;
	const int64_t token = (int64_t)a.tokens[r] - a.first;
	const bool known = token >= 0 && token < a.vocab;
	const int64_t row = (known ? token : 0) * a.width;
	const int64_t at = a.position		 ? a.position[r] :
			   a.seqlen > UINT32_MAX ? r :
						   r % (uint32_t)a.seqlen;
	const bool has_pos = a.pos && (!a.position || (at >= 0 && at < a.npos));
	const int64_t pos = at * a.width;
	T *y = (T *)a.y + r * a.width;

	if (a.noutside && threadIdx.x == 0 && (token < -a.first || token >= a.ntokens - a.first))
		atomicAdd_system(a.noutside, 1u);
	if (a.width % TE_V == 0 && aligned(a.table) && aligned(a.pos) && aligned(a.y) &&
	    (!SPLIT || (aligned(a.table_rest) && aligned(a.pos_rest)))) {
		for (int64_t c = threadIdx.x * TE_V; c < a.width; c += blockDim.x * TE_V) {
			float v[TE_V] = { 0.0f }, p[TE_V];

			if (has_pos) /* concurrently with the load of the token */
				row_load<SPLIT>(a.pos, a.pos_rest, pos + c, TE_V, true, p);
			if (known)
				row_load<SPLIT>(a.table, a.table_rest, row + c, TE_V, true, v);
			if (has_pos) {
#pragma unroll
				for (int e = 0; e < TE_V; e++)
					v[e] = add(v[e], p[e]);
			}
			store_vec(y + c, v);
		}
		return;
	}
	for (int64_t c = threadIdx.x; c < a.width; c += blockDim.x) {
		float v[TE_V] = { 0.0f }, p[TE_V];

		if (known)
			row_load<SPLIT>(a.table, a.table_rest, row + c, 1, false, v);
		if (has_pos)
			row_load<SPLIT>(a.pos, a.pos_rest, pos + c, 1, false, p);
		y[c] = from_float<T>(has_pos ? add(v[0], p[0]) : v[0]);
	}
}

/* --- backward ------------------------------------------------------------ */

#define EMBED_BWD_STEP (EMBED_BWD_THREADS * 4)	/* tokens of a step: four per thread */
#define EMBED_BWD_AHEAD 4			/* steps of which tokens are loaded at once */
#define EMBED_BWD_FLIGHT (24 / (int)sizeof(T))	/* rows of dy that a thread reads at once */
#define EMBED_BWD_LIST 3072			/* entries */
#define EMBED_SMALL_M_FLIGHT 4

struct embed_bwd_shared {
	uint32_t list[EMBED_BWD_LIST]; /* dy row * EMBED_BWD_SPAN + table row, ascending */
	uint32_t rows[EMBED_BWD_LIST]; /* dy rows of one table row */
	int warp_n[EMBED_BWD_THREADS / 32];
	uint32_t present; /* one bit per table row that occurs */
};

/*
 * Exclusive prefix sum of n over the threads of the block; ret_total receives the sum of all.
 * Two barriers.
 */
DEV int block_scan(struct embed_bwd_shared *s, int n, int *ret_total)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int upto = n, before = 0, total = 0;

#pragma unroll
	for (int d = 1; d < 32; d <<= 1) {
		const int other = __shfl_up_sync(0xffffffffu, upto, d);

		upto += lane >= d ? other : 0;
	}
	if (lane == 31)
		s->warp_n[warp] = upto;
	__syncthreads();
	for (int w = 0; w < EMBED_BWD_THREADS / 32; w++) {
		before += w < warp ? s->warp_n[w] : 0;
		total += s->warp_n[w];
	}
	__syncthreads();
	*ret_total = total;
	return before + upto - n;
}

/* the table rows, less v0, of this thread's tokens among EMBED_BWD_STEP from row first on */
DEV void list_load(const struct te_k_embed_bwd &a, int64_t first, int64_t v0, uint32_t v[4])
{
	const int64_t r = first + threadIdx.x * 4;
	const uint32_t base = (uint32_t)v0 + (uint32_t)a.first;

	if (r + 4 <= a.rows && aligned(a.tokens)) {
		const int4 t = *(const int4 *)(a.tokens + r);

		v[0] = (uint32_t)t.x - base;
		v[1] = (uint32_t)t.y - base;
		v[2] = (uint32_t)t.z - base;
		v[3] = (uint32_t)t.w - base;
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = r + i < a.rows ? (uint32_t)a.tokens[r + i] - base :
						0xffffffffu;
	}
}

/*
 * Append to the n entries of s->list those rows first .. first + EMBED_BWD_STEP - 1 whose token has
 * the table row v0 .. v0 + nv - 1; v is of list_load(). Entries beyond the end of the list are
 * counted, not stored. Returns the new n.
 */
DEV int list_step(struct embed_bwd_shared *s, int64_t first, const uint32_t v[4], int nv, int n)
{
	const int64_t r = first + threadIdx.x * 4;
	int mine = 0, at, total;

#pragma unroll
	for (int i = 0; i < 4; i++)
		mine += v[i] < (uint32_t)nv;
	if (!__syncthreads_or(mine))
		return n;
	at = n + block_scan(s, mine, &total);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (v[i] >= (uint32_t)nv)
			continue;
		atomicOr(&s->present, 1u << v[i]);
		if (at < EMBED_BWD_LIST)
			s->list[at] = (uint32_t)(r + i) * EMBED_BWD_SPAN + v[i];
		at++;
	}
	return n + total;
}

/* copy the dy rows of table row v from the first n entries of the list to s->rows, in order */
DEV int pick(struct embed_bwd_shared *s, int n, uint32_t v)
{
	int npicked = 0;

	for (int i0 = 0; i0 < n; i0 += EMBED_BWD_THREADS) {
		const int i = i0 + threadIdx.x;
		const uint32_t entry = i < n ? s->list[i] : 0;
		const int mine = i < n && entry % EMBED_BWD_SPAN == v;
		int total;
		const int at = npicked + block_scan(s, mine, &total);

		if (mine)
			s->rows[at] = entry / EMBED_BWD_SPAN;
		npicked += total;
	}
	__syncthreads();
	return npicked;
}

/* sum[e] += dy[row][c + e] over the n rows listed, in order; FLIGHT rows are read at once */
template <class T, int FLIGHT>
DEV void sum_rows(const struct te_k_embed_bwd &a, const uint32_t *rows, int n, int64_t c, bool vec,
		  float sum[TE_V])
{
	const T *dy = (const T *)a.dy + c;
	const int nc = clamp_int(a.width - c, 0, TE_V);

	if (!nc)
		return;
	if (!vec) {
		for (int i = 0; i < n; i++)
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				if (e < nc)
					sum[e] = add(sum[e], to_float(dy[rows[i] * a.width + e]));
		return;
	}
	for (int i0 = 0; i0 < n; i0 += FLIGHT) {
		raw<T> w[FLIGHT];

#pragma unroll
		for (int i = 0; i < FLIGHT; i++)
			if (i0 + i < n)
				w[i] = load_raw(dy + rows[i0 + i] * a.width);
#pragma unroll
		for (int i = 0; i < FLIGHT; i++) {
			float x[TE_V];

			if (i0 + i >= n)
				break;
			unpack(w[i], x);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				sum[e] = add(sum[e], x[e]);
		}
	}
}

/* load the n columns of the table that add_sums() adds to */
template <class G> DEV void table_load(const G *table, int n, bool vec, float ret_was[TE_V])
{
	if (vec && n)
		load_vec(table, ret_was);
	else
		load_some(table, n, ret_was);
}

template <class G>
DEV void add_sums(G *table, int n, bool vec, float was[TE_V], const float sum[TE_V])
{
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		was[e] = add(was[e], sum[e]);
	if (vec && n)
		store_vec(table, was);
	else
		store_some(table, n, was);
}

/* G: type of the table */
template <class T, class G> DEV void embed_bwd_body(const struct te_k_embed_bwd &a)
{
	__shared__ struct embed_bwd_shared s;
	const int span = (int)((a.vocab + gridDim.x - 1) / gridDim.x); /* EMBED_BWD_SPAN or 1 */
	const int64_t v0 = (int64_t)blockIdx.x * span;
	const int nv = clamp_int(a.vocab - v0, 0, span);
	const bool vec = a.width % TE_V == 0 && aligned(a.dy) && aligned(a.dtable);
	int n = 0;

	if (threadIdx.x == 0)
		s.present = 0;
	__syncthreads();
	for (int64_t first = 0; first < a.rows; first += EMBED_BWD_AHEAD * EMBED_BWD_STEP) {
		uint32_t v[EMBED_BWD_AHEAD][4];

#pragma unroll
		for (int k = 0; k < EMBED_BWD_AHEAD; k++)
			list_load(a, first + k * EMBED_BWD_STEP, v0, v[k]);
#pragma unroll
		for (int k = 0; k < EMBED_BWD_AHEAD; k++)
			if (first + k * EMBED_BWD_STEP < a.rows)
				n = list_step(&s, first + k * EMBED_BWD_STEP, v[k], nv, n);
	}
	__syncthreads();
	const uint32_t present = s.present;

	for (int v = 0; v < nv; v++) {
		if (!(present >> v & 1))
			continue;
		if (n <= EMBED_BWD_LIST) {
			const int npicked = pick(&s, n, v);

			for (int64_t c0 = 0; c0 < a.width; c0 += EMBED_BWD_THREADS * TE_V) {
				const int64_t c = c0 + threadIdx.x * TE_V;
				const int nc = clamp_int(a.width - c, 0, TE_V);
				G *table = (G *)a.dtable + (v0 + v) * a.width + c;
				float was[TE_V], sum[TE_V] = { 0.0f };

				table_load(table, nc, vec, was);
				sum_rows<T, EMBED_BWD_FLIGHT>(a, s.rows, npicked, c, vec, sum);
				add_sums(table, nc, vec, was, sum);
			}
			__syncthreads(); /* before s.rows is overwritten */
			continue;
		}
		for (int64_t c0 = 0; c0 < a.width; c0 += EMBED_BWD_THREADS * TE_V) {
			const int64_t c = c0 + threadIdx.x * TE_V;
			const int nc = clamp_int(a.width - c, 0, TE_V);
			G *table = (G *)a.dtable + (v0 + v) * a.width + c;
			float was[TE_V], sum[TE_V] = { 0.0f };

			for (int64_t first = 0; first < a.rows; first += EMBED_BWD_STEP) {
				uint32_t at[4];
				int m;

				list_load(a, first, v0 + v, at);
				m = list_step(&s, first, at, 1, 0);
				__syncthreads();
				sum_rows<T, EMBED_BWD_FLIGHT>(a, s.rows, pick(&s, m, 0), c, vec,
							      sum);
				__syncthreads();
			}
			table_load(table, nc, vec, was);
			add_sums(table, nc, vec, was, sum);
		}
	}
}

/* a lane reads eight tokens, 32 apart, and sums eight columns */
template <class T, class G> DEV void embed_bwd_small_m_body(const struct te_k_embed_bwd &a)
{
	__shared__ uint32_t rows[EMBED_SMALL_M_THREADS / 32][EMBED_SMALL_M_ROWS];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int r = blockIdx.x * (EMBED_SMALL_M_THREADS / 32) + warp, nrows = (int)a.rows;
	const int64_t c = ((int64_t)blockIdx.y * 32 + lane) * TE_V;
	const int nc = clamp_int(a.width - c, 0, TE_V);
	const bool vec = a.width % TE_V == 0 && aligned(a.dy) && aligned(a.dtable);
	const int32_t token = r < nrows ? a.tokens[r] : -1;
	float was[TE_V], sum[TE_V] = { 0.0f };
	int32_t other[EMBED_SMALL_M_ROWS / 32];
	int n = 0;

#pragma unroll
	for (int k = 0; k < EMBED_SMALL_M_ROWS / 32; k++)
		other[k] = k * 32 + lane < nrows ? a.tokens[k * 32 + lane] : -1;
	if (token < a.first || token - a.first >= a.vocab)
		return;
	/* list all rows of the token, in order; the first of these rows sums them */
#pragma unroll
	for (int k = 0; k < EMBED_SMALL_M_ROWS / 32; k++) {
		const uint32_t same = __ballot_sync(0xffffffffu, other[k] == token);

		if (other[k] == token)
			rows[warp][n + __popc(same & ((1u << lane) - 1))] = k * 32 + lane;
		n += __popc(same);
	}
	__syncwarp();
	if (rows[warp][0] != (uint32_t)r)
		return;
	G *table = (G *)a.dtable + ((int64_t)token - a.first) * a.width + c;
	table_load(table, nc, vec, was);
	sum_rows<T, EMBED_SMALL_M_FLIGHT>(a, rows[warp], n, c, vec, sum);
	add_sums(table, nc, vec, was, sum);
}

/* --- positions ----------------------------------------------------------- */

template <class T, class G> DEV void pos_bwd_body(const struct te_k_pos_bwd &a)
{
	const int64_t n = a.seqlen * a.width;
	const int64_t at = ((int64_t)blockIdx.x * POS_BWD_THREADS + threadIdx.x) * TE_V;
	const int nc = clamp_int(n - at, 0, TE_V);
	const bool vec = n % TE_V == 0 && aligned(a.dy) && aligned(a.dpos);
	const T *dy = (const T *)a.dy + at;
	G *const dpos = (G *)a.dpos + at;
	float sum[TE_V] = { 0.0f }, out[TE_V];

	if (!nc)
		return;
	if (!vec) {
		for (int64_t b = 0; b < a.batch; b++)
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				if (e < nc)
					sum[e] = add(sum[e], to_float(dy[b * n + e]));
#pragma unroll
		for (int e = 0; e < TE_V; e++)
			if (e < nc)
				dpos[e] = from_float<G>(add(to_float(dpos[e]), sum[e]));
		return;
	}
	load_vec(dpos, out); /* concurrently with the loads of dy */
	for (int64_t b0 = 0; b0 < a.batch; b0 += 4) {
		raw<T> w[4];

#pragma unroll
		for (int i = 0; i < 4; i++)
			if (b0 + i < a.batch)
				w[i] = load_raw(dy + (b0 + i) * n);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float x[TE_V];

			if (b0 + i >= a.batch)
				break;
			unpack(w[i], x);
#pragma unroll
			for (int e = 0; e < TE_V; e++)
				sum[e] = add(sum[e], x[e]);
		}
	}
#pragma unroll
	for (int e = 0; e < TE_V; e++)
		out[e] = add(out[e], sum[e]);
	store_vec(dpos, out);
}

#define TE_NAME(T, t)                                                                           \
	TE_KERNEL(embed_fwd_##t, embed_fwd, (EMBED_FWD_THREADS), embed_fwd_body<T, false>(a))   \
	TE_KERNEL(embed_fwd_split_##t, embed_fwd, (EMBED_FWD_THREADS),                          \
		  embed_fwd_body<T, true>(a))
TE_NAME(float, fp32)
TE_NAME(bf16, bf16)
#undef TE_NAME

#define TE_NAME(T, G, t)                                                                        \
	TE_KERNEL(embed_bwd_##t, embed_bwd, (EMBED_BWD_THREADS, 2), embed_bwd_body<T, G>(a))    \
	TE_KERNEL(embed_bwd_small_m_##t, embed_bwd, (EMBED_SMALL_M_THREADS),                    \
		  embed_bwd_small_m_body<T, G>(a))                                              \
	TE_KERNEL(pos_bwd_##t, pos_bwd, (POS_BWD_THREADS), pos_bwd_body<T, G>(a))
TE_NAME(float, float, fp32)
TE_NAME(bf16, float, bf16)
TE_NAME(float, bf16, to_bf16_fp32)
TE_NAME(bf16, bf16, to_bf16_bf16)
#undef TE_NAME
