/*
 * step.cu - attention of one token of each of several sequences to a cache, with what a decoder
 * does before it: q and k are rotated, and k and v appended. Level 90 only.
 *
 *  kernel                blocks                             threads  shared
 *  attn_step_64_bf16_P   a cluster of P a row and up to 8   256 or   78 KiB
 *  attn_step_64_e4m3_P   query heads of a key/value head    128      56 KiB for P of 1, or 42
 *  attn_step_128_bf16_P  the same                           128 or   80 KiB
 *  attn_step_128_e4m3_P                                     64       55 KiB for P of 1, or 46
 *
 * The number is the largest head_dim, and after it is the type of the cache. P is 8, for few rows,
 * or with half of the threads 4, 2 or 1. Keys and values of E4M3 are multiplied as FP16, without
 * their scales, by which a warp multiplies scores and weights. Each block of a cluster has a part
 * of the keys, and each warp 16 keys at a time, which it copies to shared memory itself; where the
 * next ones are, it reads before. Before the preceding kernels are complete, blocks read positions
 * and pages, which no kernel of a pass writes, copy their first keys and values, and compute sines.
 * Scores and sums are computed by mma.sync, with heads as the rows of its first operand; a weight
 * is the sum of two BF16. Warps and then blocks are joined in ascending order, and each block
 * writes a part of the result: its bits depend on P.
 *
 * With P of 8 a block has more than a third of an SM's shared memory, so that an SM with a block of
 * gemm/few_rows.cu has room for one of these, not for two. With P of 1 there is room for four,
 * which wait at different times. Loops are not unrolled where that saves instructions: a launch
 * reads them from memory, once.
 */
#include "kernels/approx.cuh"
#include "kernels/attn/cached.cuh"
#include "kernels/attn/geometry.h"
#include "kernels/mma.cuh"
#include "kernels/norm/rows.cuh"
#include "kernels/rope/sincos.cuh"

#define KEYS ATTN_STEP_KEYS
#define HEADS ATTN_STEP_HEADS

/* D: the largest head_dim; P: blocks that share a row's keys */
template <int D_, int P_> struct step {
	static constexpr int D = D_, P = P_;
	static constexpr int WARPS = ATTN_STEP_WARPS(D, P), THREADS = 32 * WARPS;
	static constexpr int STAGES = ATTN_STEP_STAGES(P);
	static constexpr int BLOCKS = P == ATTN_STEP_PARTS ? 2 : 4; /* blocks of an SM */
	static constexpr int LANES = D / TE_V;	  /* lanes that copy a key */
	static constexpr int AT_ONCE = 32 / LANES; /* keys that a warp copies at once */
	static constexpr int ROW = D + TE_V;	  /* elements from a key to the next */
	static constexpr int TILE = 2 * KEYS * ROW; /* keys and values */
	static constexpr int RING = STAGES * TILE;  /* elements of shared memory of a warp */
};

template <class S> struct step_shared {
	float cosine[S::D / 2], sine[S::D / 2];
	/* the row's, rotated; E4M3: q as FP16, key and value as codes, all without scales */
	bf16 q[HEADS][S::D], key[S::D], value[S::D];
	uint32_t scale[2];	/* E4M3: bytes of key and value */
	float inverse[HEADS];	/* E4M3: 1 / scale of q */
	float2 sums[S::WARPS][HEADS];		     /* m and l */
	/* sums of two channels, m and l, by block, if there are several */
	float4 in[S::P][S::P > 1 ? HEADS * S::D / 2 / S::P : 1];
};

/* what a warp computes: the token and the keys of its block, and the keys that it copies next */
struct part {
	int64_t r, sequence;
	int g, chunk, nh, head, rank, d; /* nh: heads from head on */
	int pos, begin, end, next, stage;
	uint32_t page, at;  /* the page of key next + lane % KEYS, and its token there */
	uint32_t low;	    /* E4M3: the last 2 bits of the address of a scale, by stage */
};

/*
 * The keys from p.next + n on are copied next. The number of their page is not used here, so that
 * the warp does not wait for it.
 */
DEV void go_on(const struct te_k_attn_cached &a, struct part &p, int n)
{
	p.next += n;
	if (p.next < p.end) {
		const unsigned pos = min(p.next + (int)threadIdx.x % KEYS, p.end - 1);
		const unsigned i = pos / (unsigned)a.page;
		const int64_t at = p.sequence * a.max_pages + i;

		p.page = a.pages ? (uint32_t)a.pages[at] : (uint32_t)at;
		p.at = pos - i * (unsigned)a.page;
	}
}

/* the index of head g of key next + lane % KEYS in the caches */
DEV int64_t block_of(const struct te_k_attn_cached &a, const struct part &p)
{
	return ((int64_t)p.page * a.page + p.at) * a.nkv + p.g;
}

/* keys that are not there become 0, and so does the key at pos, which a kernel computes just now */
template <class S>
DEV void load(const struct te_k_attn_cached &a, struct part &p, bf16 *ring)
{
	const int lane = threadIdx.x % 32, at = lane % S::LANES * TE_V;
	bf16 *to = ring + p.stage * S::TILE + lane / S::LANES * S::ROW + at;

	if (p.next < p.end) {
		const int64_t block = block_of(a, p);

#pragma unroll 2
		for (int i = lane / S::LANES; i < KEYS; i += S::AT_ONCE) {
			const int key = p.next + i;
			const int n = key < p.end && key != p.pos && at < p.d ? 16 : 0;
			const int64_t from = __shfl_sync(~0u, block, i) * p.d + (n ? at : 0);

			cp_async16(smem_addr(to), (const bf16 *)a.k + from, n);
			cp_async16(smem_addr(to + KEYS * S::ROW), (const bf16 *)a.v + from, n);
			to += S::AT_ONCE * S::ROW;
		}
	}
	cp_async_commit();
	go_on(a, p, S::WARPS * KEYS);
	p.stage = p.stage + 1 == S::STAGES ? 0 : p.stage + 1;
}

/*
 * E4M3: the place of 16 channels c of a key in a stage, whose rows have no padding: the reads of
 * add_codes() have no bank in common
 */
template <class S> DEV int place_of(int key, int c)
{
	const int swap = S::D == 64 ? key & 2 : (key & 1) << 2 | (key & 2);

	return key * S::D + (c ^ swap) * 16;
}

/* E4M3: the words that have the scales of a stage; they are after all stages */
template <class S> DEV uint32_t *words_of(uint8_t *codes, int stage)
{
	return (uint32_t *)(codes + S::STAGES * 2 * KEYS * S::D) + stage * 32;
}

/*
 * The same for a cache of E4M3: a lane copies 16 channels at a time, and the aligned word that has
 * the scale of key or, from lane 16 on, value lane % 16: no lane waits for a scale before its tile.
 */
template <class S>
DEV void load_codes(const struct te_k_attn_cached &a, struct part &p, uint8_t *codes)
{
	constexpr int LANES = S::LANES / 2, AT_ONCE = 2 * S::AT_ONCE;
	const int lane = threadIdx.x % 32, at = lane % LANES * 16;
	uint8_t *stage = codes + p.stage * 2 * KEYS * S::D;

	p.low >>= 2;
	if (p.next < p.end) {
		const int64_t block = block_of(a, p);
		const uint8_t *scale = (lane < KEYS ? a.k_scale : a.v_scale) + block;
		const uint32_t low = (uint32_t)(uint64_t)scale & 3;

		p.low |= low << 2 * (S::STAGES - 1);
		cp_async4(smem_addr(words_of<S>(codes, p.stage) + lane), scale - low, 4);
#pragma unroll 2
		for (int i = lane / LANES; i < KEYS; i += AT_ONCE) {
			const int key = p.next + i;
			const int n = key < p.end && key != p.pos && at < p.d ? 16 : 0;
			const int64_t from = __shfl_sync(~0u, block, i) * p.d + (n ? at : 0);
			const uint32_t to = smem_addr(stage + place_of<S>(i, lane % LANES));

			cp_async16(to, (const uint8_t *)a.k + from, n);
			cp_async16(to + KEYS * S::D, (const uint8_t *)a.v + from, n);
		}
	}
	cp_async_commit();
	go_on(a, p, S::WARPS * KEYS);
	p.stage = p.stage + 1 == S::STAGES ? 0 : p.stage + 1;
}

/* the byte of a head's scale; S::LANES lanes have the head, and a lane x of it */
template <int LANES> DEV uint32_t scale_of(const float x[TE_V])
{
	const uint32_t mask = (LANES == 8 ? 0xffu : 0xffffu) << threadIdx.x % 32 / LANES * LANES;
	float amax = 0.0f;

#pragma unroll
	for (int e = 0; e < TE_V; e++)
		amax = amax_of(amax, x[e]);
#pragma unroll
	for (int w = LANES / 2; w; w /= 2)
		amax = fmaxf(amax, __shfl_xor_sync(mask, amax, w));
	return mx_byte(TE_D_E4M3, amax);
}

/*
 * q of the heads, and the key and the value of the row, rotated: x c - other s in the first half
 * of a head, x c + other s after it. The block with the key at pos stores it and its value in the
 * cache.
 */
template <class S, class C>
DEV void rotate(const struct te_k_attn_cached &a, const struct part &p, struct step_shared<S> &s)
{
	const int at = threadIdx.x % S::LANES * TE_V, half = p.d / 2, low = at < half;
	const bf16 *row = (const bf16 *)a.qkv + p.r * (a.nheads + 2 * a.nkv) * p.d + at;
	const int64_t to = (token_at(a, p.sequence, p.pos) * a.nkv + p.g) * p.d + at;

#pragma unroll 1
	for (int i = threadIdx.x / S::LANES; i < HEADS + 2; i += S::THREADS / S::LANES) {
		const int h = i < HEADS ? p.head + min(i, p.nh - 1) :
					  a.nheads + p.g + (i == HEADS ? 0 : a.nkv);
		bf16 *y = i < HEADS ? s.q[i] : i == HEADS ? s.key : s.value;
		raw<bf16> x = zero_raw<bf16>(), other = x;

		if (at < p.d) {
			x = load_raw(row + h * p.d);
			other = load_raw(row + h * p.d + (low ? half : -half));
		}
		if (i <= HEADS && at < p.d) {
			float u[TE_V], v[TE_V];

			unpack(x, u);
			unpack(other, v);
#pragma unroll
			for (int e = 0; e < TE_V; e++) {
				const int k = low ? at + e : at + e - half;

				v[e] = mul(v[e], low ? -s.sine[k] : s.sine[k]);
				u[e] = add(mul(u[e], s.cosine[k]), v[e]);
			}
			x = pack<bf16>(u);
		}
		const bool stores =
			i >= HEADS && at < p.d && !p.chunk && p.begin <= p.pos && p.pos < p.end;
		void *cache = i == HEADS ? a.k : a.v;

		if constexpr (is_same<C, e4m3>) {
			float v[TE_V];

			unpack(x, v);
			const uint32_t scale = scale_of<S::LANES>(v);
			const float f = mx_scale(scale);

			if (i < HEADS) {
#pragma unroll
				for (int e = 0; e < TE_V; e += 2)
					*(uint32_t *)(y + at + e) =
						pack_fp16x2(v[e] * f, v[e + 1] * f);
				if (!at)
					s.inverse[i] = mx_inverse(scale);
			} else {
				const uint2 codes = fp8x8(TE_D_E4M3, v, f);

				*(uint2 *)((uint8_t *)y + at) = codes;
				if (stores)
					*(uint2 *)((uint8_t *)cache + to) = codes;
				if (stores && !at)
					(i == HEADS ? a.k_scale : a.v_scale)[to / p.d] =
						(uint8_t)scale;
				if (!at)
					s.scale[i - HEADS] = scale;
			}
		} else {
			if (stores)
				store_raw((bf16 *)cache + to, x);
			store_raw(y + at, x);
		}
	}
	__syncthreads();
}

/*
 * The sums of a warp: a lane has head lane / 4, and of each 8 channels 2 (lane % 4) and the next.
 * E4M3: it has D / 8 channels from D / 4 (lane % 4) on, and as many after them, of each two sums to
 * be added. m is a logarithm to base 2, and so is most, the largest m and logarithm of its value's
 * scale; acc is multiplied by 2^(15 - most) instead of 2^-m.
 */
template <int D> struct sums {
	float m, l, most, acc[D / 8][4];
};

/* a score from the product of q and a key */
DEV float score_of(const struct te_k_attn_cached &a, float y)
{
	y *= a.scale;
	/* tanh */
	if (a.softcap != 0.0f)
		y = a.softcap * (1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f / a.softcap * y)));
	return y;
}

/* weight_of() by logarithms to base 2 */
DEV float weight_of_2(float x, float m)
{
	return exp2_approx(x - (m == -TE_INF ? 0.0f : m));
}

/* the largest of the four lanes of a head */
DEV float head_max(float m)
{
	m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
	return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
}

/* the s-th of the four keys of lane j of 4 */
DEV int key_of(int s, int j)
{
	return 4 * s + (j ^ (s & 1));
}

/*
 * Adds the keys from first on, whose codes are at codes, with these scales. A lane reads the codes
 * that mma.sync takes from it as FP16: a step of k may be any 16 channels or keys, equal in both
 * operands. A weight times its value's scale is the sum of two FP16; the smaller one is in rows 8
 * to 15 of the first operand, since there are 8 heads.
 */
template <class S>
DEV void add_codes(const struct te_k_attn_cached &a, struct sums<S::D> &x, const uint32_t *q,
		   float inverse, const uint8_t *codes, int first, int end, uint32_t scales)
{
	constexpr int W = S::D / 32; /* words of a value that a lane multiplies */
	const int lane = threadIdx.x % 32, j = lane % 4, n = lane / 4;
	/* a lane's key or, from lane 16 on, value has this: 1 / scale, and its logarithm */
	const float unit = lane < KEYS ? mx_inverse(scales) :
			   scales == 255 ? mx_inverse(255) : (float)((int)scales - 127);
	float s[2][4] = {}, z[4], next = x.m, most = x.most, w;
	uint32_t hi[2], lo[2], v[4][W];

#pragma unroll
	for (int i = 0; i < 2; i++)
#pragma unroll
		for (int h = 0; h < S::D / 64; h++) {
			const uint4 c = *(const uint4 *)(codes + place_of<S>(
					key_of(2 * i + n % 2, n / 2), j + 4 * h));
			const uint32_t word[4] = { c.x, c.y, c.z, c.w };

#pragma unroll
			for (int k = 0; k < 4; k++)
				fp16_fp16::mma(s[i], q[8 * h + 2 * k], 0, q[8 * h + 2 * k + 1], 0,
					       fp8x2_decode(TE_D_E4M3, word[k]),
					       fp8x2_decode(TE_D_E4M3, word[k] >> 16));
		}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int key = key_of(i, j);
		float &y = s[i / 2][i % 2];

		y = score_of(a, y * inverse * __shfl_sync(~0u, unit, key)) * 1.44269504f;
		if (key >= end - first)
			y = -TE_INF;
		z[i] = y + __shfl_sync(~0u, unit, KEYS + key);
		next = fmaxf(next, y);
		most = fmaxf(most, z[i]);
	}
	next = head_max(next);
	most = head_max(most);
	x.l *= weight_of_2(x.m, next);
	w = weight_of_2(x.most, most);
	x.m = next;
	x.most = most;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const float t = 0x1p15f * weight_of_2(z[2 * i], most);
		const float u = 0x1p15f * weight_of_2(z[2 * i + 1], most);

		x.l += weight_of_2(s[i][0], next) + weight_of_2(s[i][1], next);
		hi[i] = pack_fp16x2(t, u);
		lo[i] = pack_fp16x2(t - to_float(fp16{ (uint16_t)hi[i] }),
				    u - to_float(fp16{ (uint16_t)(hi[i] >> 16) }));
	}
	/* few tiles have a larger score than all before */
	if (__any_sync(~0u, w != 1.0f))
#pragma unroll
		for (int k = 0; k < S::D / 8; k++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				x.acc[k][e] *= w;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int key = key_of(i, j);
		const uint8_t *from = codes + KEYS * S::D +
				      place_of<S>(key, n * W / 4) + n * W % 4 * 4;

		if constexpr (W == 4) {
			const uint4 c = *(const uint4 *)from;

			v[i][0] = c.x, v[i][1] = c.y, v[i][2] = c.z, v[i][3] = c.w;
		} else {
			const uint2 c = *(const uint2 *)from;

			v[i][0] = c.x, v[i][1] = c.y;
		}
	}
#pragma unroll
	for (int k = 0; k < 2 * W; k++) {
		/* two channels of two keys: a pair of codes is one channel's */
		const int which = k % 2 ? 0x7362 : 0x5140;
		const uint32_t b0 = __byte_perm(v[0][k / 2], v[1][k / 2], which);
		const uint32_t b1 = __byte_perm(v[2][k / 2], v[3][k / 2], which);

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t c0 = fp8x2_decode(TE_D_E4M3, b0 >> 16 * i);
			const uint32_t c1 = fp8x2_decode(TE_D_E4M3, b1 >> 16 * i);

			fp16_fp16::mma(x.acc[2 * k + i], hi[0], lo[0], hi[1], lo[1], c0, c1);
		}
	}
}

/* adds the keys from first on, which are at tile */
template <class S>
DEV void add_keys(const struct te_k_attn_cached &a, struct sums<S::D> &x, const uint32_t *q,
		  const bf16 *tile, int first, int end)
{
	const int lane = threadIdx.x % 32, row = lane % 8, which = lane / 8;
	const uint32_t keys = smem_addr(tile + (which / 2 * 8 + row) * S::ROW + which % 2 * 8);
	const uint32_t values = smem_addr(tile + (KEYS + which % 2 * 8 + row) * S::ROW +
					  which / 2 * 8);
	float s[2][4] = {}, next = x.m, w;
	uint32_t b[4], hi[2], lo[2];

#pragma unroll
	for (int k = 0; k < S::D / 16; k++) {
		ldmatrix(b, keys + 32 * k);
		bf16_bf16::mma(s[0], q[2 * k], 0, q[2 * k + 1], 0, b[0], b[1]);
		bf16_bf16::mma(s[1], q[2 * k], 0, q[2 * k + 1], 0, b[2], b[3]);
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float &y = s[i / 2][i % 2];

		y = score_of(a, y);
		if (first + i / 2 * 8 + lane % 4 * 2 + i % 2 >= end)
			y = -TE_INF;
		next = fmaxf(next, y);
	}
	next = head_max(next);
	w = weight_of(x.m, next);
	x.m = next;
	x.l *= w;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const float u = weight_of(s[i][0], next), v = weight_of(s[i][1], next);
		const float2 near = unpack_bf16x2(hi[i] = pack_bf16x2(u, v));

		x.l += u + v;
		lo[i] = pack_bf16x2(u - near.x, v - near.y);
	}
#pragma unroll
	for (int k = 0; k < S::D / 16; k++) {
		ldmatrix_trans(b, values + 32 * k);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float *acc = x.acc[2 * k + i];

			acc[0] *= w;
			acc[1] *= w;
			bf16_bf16::mma(acc, hi[0], 0, hi[1], 0, b[2 * i], b[2 * i + 1]);
			bf16_bf16::mma(acc, lo[0], 0, lo[1], 0, b[2 * i], b[2 * i + 1]);
		}
	}
}

/* writes *p in the shared memory of a block of the cluster */
DEV void cluster_write(float4 *p, uint32_t rank, float4 v)
{
	uint32_t at = (uint32_t)__cvta_generic_to_shared(p);

	asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
	asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x),
		     "f"(v.y), "f"(v.z), "f"(v.w)
		     : "memory");
}

/* writes two channels of out; y: their sums, m and l */
DEV void finish(bf16 *out, const float4 &y)
{
	const float f = inverse_of(y.w);

	*(uint32_t *)out = pack_bf16x2(y.x * f, y.y * f);
}

/* the sums of all warps of the block, each sent to the block that writes the result, or written */
template <class S, class C>
DEV void join_block(struct step_shared<S> &s, bf16 *rings, struct sums<S::D> &x,
		    const struct part &p, bf16 *out)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane / 4;
	const int per = p.nh * (S::D / 2 / S::P);
	/* a warp's sums are where its keys were */
	float *acc = (float *)(rings + warp * S::RING) + head * S::D;

	x.l += __shfl_xor_sync(~0u, x.l, 1);
	x.l += __shfl_xor_sync(~0u, x.l, 2);
	if (lane % 4 == 0)
		s.sums[warp][head] =
			make_float2(is_same<C, e4m3> ? x.m * 0.693147181f : x.m, x.l);
	if constexpr (is_same<C, e4m3>) {
		const float f = 0x1p-15f * weight_of_2(x.most, x.m);

		acc += lane % 4 * (S::D / 4);
#pragma unroll
		for (int k = 0; k < S::D / 8; k++)
#pragma unroll
			for (int e = 0; e < 2; e++)
				acc[e * (S::D / 8) + k] = (x.acc[k][e] + x.acc[k][e + 2]) * f;
	} else {
		acc += lane % 4 * 2;
#pragma unroll
		for (int k = 0; k < S::D / 8; k++)
			*(float2 *)(acc + 8 * k) = make_float2(x.acc[k][0], x.acc[k][1]);
	}
	__syncthreads();
#pragma unroll 1
	for (int i = threadIdx.x; i < p.nh * (S::D / 2); i += S::THREADS) {
		const int h = i / (S::D / 2), c = 2 * (i % (S::D / 2));
		float4 y = make_float4(0.0f, 0.0f, -TE_INF, 0.0f);

#pragma unroll
		for (int w = 0; w < S::WARPS; w++)
			y.z = fmaxf(y.z, s.sums[w][h].x);
#pragma unroll
		for (int w = 0; w < S::WARPS; w++) {
			const float f = weight_of(s.sums[w][h].x, y.z);
			const float *from = (const float *)(rings + w * S::RING);
			const float2 v = *(const float2 *)(from + h * S::D + c);

			y.w += s.sums[w][h].y * f;
			y.x += v.x * f;
			y.y += v.y * f;
		}
		if (S::P > 1)
			cluster_write(&s.in[p.rank][i % per], i / per, y);
		else if (c < p.d)
			finish(out + h * p.d + c, y);
	}
}

/* this block's part of the pairs of channels of all heads */
template <class S>
DEV void join_cluster(const struct step_shared<S> &s, const struct part &p, bf16 *out)
{
	const int per = p.nh * (S::D / 2 / S::P);

#pragma unroll 1
	for (int n = threadIdx.x; n < per; n += S::THREADS) {
		const int i = p.rank * per + n, h = i / (S::D / 2), c = 2 * (i % (S::D / 2));
		float4 part[S::P], y = make_float4(0.0f, 0.0f, -TE_INF, 0.0f);

#pragma unroll
		for (int k = 0; k < S::P; k++) {
			part[k] = s.in[k][n];
			y.z = fmaxf(y.z, part[k].z);
		}
#pragma unroll
		for (int k = 0; k < S::P; k++) {
			const float f = weight_of(part[k].z, y.z);

			y.w += part[k].w * f;
			y.x += part[k].x * f;
			y.y += part[k].y * f;
		}
		if (c < p.d)
			finish(out + h * p.d + c, y);
	}
}

template <class S, class C> DEV void attn_step(const struct te_k_attn_step &args)
{
	constexpr bool FP8 = is_same<C, e4m3>;
	te_begin_launch();

	extern __shared__ uint4 memory[];
	__shared__ struct step_shared<S> s;
	const struct te_k_attn_cached &a = args.c;
	const int size = a.nheads / a.nkv, nchunks = (size + HEADS - 1) / HEADS;
	const int b = blockIdx.x / S::P, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	struct part p = { b / nchunks / a.nkv };
	bf16 *ring = (bf16 *)memory + warp * S::RING, *out;
	uint8_t *codes = (uint8_t *)ring;
	struct sums<S::D> x = { -TE_INF, 0.0f, -TE_INF };
	uint32_t q[S::D / 8]; /* head lane / 4, as add_codes() or add_keys() multiplies it */
	enum where where;
	int stage = 0;

	p.sequence = a.sequence[p.r];
	p.pos = a.position[p.r];
	p.g = b / nchunks % a.nkv;
	p.chunk = b % nchunks;
	p.nh = min(size - p.chunk * HEADS, HEADS);
	p.head = p.g * size + p.chunk * HEADS;
	p.rank = blockIdx.x % S::P;
	p.d = a.head_dim;
	out = (bf16 *)a.out + (p.r * a.nheads + p.head) * p.d;
#pragma unroll 1
	for (int i = threadIdx.x; i < p.d / 2; i += S::THREADS)
		sincos_of(mul((float)p.pos, args.inv_freq[i]), &s.sine[i], &s.cosine[i]);
	where = find(a, p.r);
	if (where == INSIDE) {
		const int first = (int)te_k_attn_first(p.pos, a.window, 0);
		const int per = ((p.pos - first) / (S::P * KEYS) + 1) * KEYS;

		p.begin = first + p.rank * per;
		p.end = min(p.pos + 1, p.begin + per);
		p.next = p.begin;
		go_on(a, p, warp * KEYS);
#pragma unroll 1
		for (int i = 0; i < S::STAGES; i++)
			if constexpr (FP8)
				load_codes<S>(a, p, codes);
			else
				load<S>(a, p, ring);
	}
	if (S::P > 1 && where == INSIDE)
		cluster_barrier(); /* all blocks run, so that others may write to them */
	te_begin_wait();
	if (where == OUTSIDE && a.noutside && !threadIdx.x && !p.rank && !p.chunk && !p.g)
		atomicAdd((unsigned *)a.noutside, 1u);
	if (where != INSIDE) {
#pragma unroll 1
		for (int i = threadIdx.x; i < p.nh * p.d && !p.rank; i += S::THREADS)
			out[i] = from_float<bf16>(0.0f);
		return;
	}
	rotate<S, C>(a, p, s);
#pragma unroll
	for (int i = 0; i < S::D / 8; i++)
		q[i] = *(const uint32_t *)(s.q[lane / 4] +
					   (FP8 ? (i / 8 * 4 + lane % 4) * 16 + i % 8 * 2 :
						  i * 8 + lane % 4 * 2));
#pragma unroll 1
	for (int first = p.begin + warp * KEYS; first < p.end; first += S::WARPS * KEYS) {
		const int mine = p.pos - first;

		cp_async_wait<S::STAGES - 1>();
		__syncwarp();
		if constexpr (FP8) {
			uint8_t *at = codes + stage * 2 * KEYS * S::D;
			uint32_t scales = words_of<S>(codes, stage)[lane] >> 8 * (p.low & 3) & 0xff;

			if (0 <= mine && mine < KEYS) {
				uint4 *to = (uint4 *)(at + place_of<S>(mine, lane));

				if (lane < S::LANES / 2) {
					to[0] = ((const uint4 *)s.key)[lane];
					to[KEYS * S::D / 16] = ((const uint4 *)s.value)[lane];
				}
				if (lane % KEYS >= mine)
					scales = s.scale[lane / KEYS];
				__syncwarp();
			}
			add_codes<S>(a, x, q, s.inverse[lane / 4], at, first, p.end, scales);
		} else {
			bf16 *tile = ring + stage * S::TILE;

			if (0 <= mine && mine < KEYS) {
				uint4 *to = (uint4 *)(tile + mine * S::ROW) + lane;

				if (lane < S::LANES) {
					to[0] = ((const uint4 *)s.key)[lane];
					to[KEYS * S::ROW / TE_V] = ((const uint4 *)s.value)[lane];
				}
				__syncwarp();
			}
			add_keys<S>(a, x, q, tile, first, p.end);
		}
		__syncwarp(); /* all lanes have read the tile */
		if constexpr (FP8)
			load_codes<S>(a, p, codes);
		else
			load<S>(a, p, ring);
		stage = stage + 1 == S::STAGES ? 0 : stage + 1;
	}
	join_block<S, C>(s, (bf16 *)memory, x, p, out);
	if constexpr (S::P > 1) {
		cluster_barrier();
		join_cluster(s, p, out);
	}
}

#define ATTN_STEP(D, C, P)                                                                     \
	extern "C" __global__ void __launch_bounds__(step<D, P>::THREADS, step<D, P>::BLOCKS)   \
		CLUSTER_DIMS(P) te_k_attn_step_##D##_##C##_##P(                                 \
			const __grid_constant__ struct te_k_attn_step a)                        \
	{                                                                                      \
		attn_step<step<D, P>, C>(a);                                                    \
	}
#define ATTN_STEPS(D, C)                                                                       \
	ATTN_STEP(D, C, 1) ATTN_STEP(D, C, 2) ATTN_STEP(D, C, 4) ATTN_STEP(D, C, 8)
ATTN_STEPS(64, bf16)
ATTN_STEPS(128, bf16)
ATTN_STEPS(64, e4m3)
ATTN_STEPS(128, e4m3)
#undef ATTN_STEPS
#undef ATTN_STEP
