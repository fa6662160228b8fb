/*
 * cached.c - host kernel: attention to a cache of keys and values.
 *
 * The parts of a team are BLOCK rows and a key/value head. In them, runs of rows at consecutive
 * positions of a sequence share tiles of keys, which begin at multiples of TILE as in attn.c; up to
 * SLOTS pairs of a row and a query head are computed at a time.
 */
#include "config.h"

#include "kernels/attn/online.h"
#include "kernels/team.h"

#define MAXD TE_K_ATTN_MAX_HEAD_DIM
#define BLOCK 32
#define SLOTS 64
/* multiplications that are worth a part */
#define GRAIN 100000

/* token of the caches at position pos of a sequence */
static int64_t token_at(const struct te_k_attn_cached *a, int64_t s, int64_t pos)
{
	const int64_t i = s * a->max_pages + pos / a->page;

	return (a->pages ? a->pages[i] : i) * a->page + pos % a->page;
}

enum where { INSIDE, PADDING, OUTSIDE };

static enum where find(const struct te_k_attn_cached *a, int64_t r)
{
	const int64_t s = a->sequence[r], pos = a->position[r];

	if (s < 0)
		return PADDING;
	if (s >= a->nseqs || pos < 0 || pos >= a->max_pages * a->page)
		return OUTSIDE;
	for (int64_t i = 0; i <= pos / a->page; i++) {
		const int64_t page = a->pages ? a->pages[s * a->max_pages + i] :
						s * a->max_pages + i;

		if (page < 0 || page >= a->npages)
			return OUTSIDE;
	}
	return INSIDE;
}

/* ---- append ---- */

static void copy(const struct te_k_attn_cached *a, int64_t from, void *cache, int64_t to, int64_t n)
{
	float v[TE__H_CHUNK];

	TE__H_CHUNKS(c, len, n)
	{
		te__h_load(a->dtype, a->qkv, from + c, len, v);
		te__h_store(a->cache_dtype, cache, to + c, len, v);
	}
}

/* the head at element from of qkv, as block number at of an E4M3 cache */
static void encode(const struct te_k_attn_cached *a, int64_t from, void *cache, uint8_t *scale,
		   int64_t at)
{
	float v[MAXD], s;

	te__h_load(a->dtype, a->qkv, from, a->head_dim, v);
	s = te__h_scale_mx(te__h_amax_bits(v, a->head_dim, 0), a->cache_dtype);
	te__h_encode(a->cache_dtype, v, s, a->head_dim, (uint8_t *)cache + at * a->head_dim);
	te__h_scale_put(scale, TE_K_SCALING_1X32, at, 1.0f / s);
}

static void append_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_attn_cached *a = arg;
	const int64_t width = (int64_t)a->nkv * a->head_dim;
	const int64_t qwidth = (int64_t)a->nheads * a->head_dim;
	uint32_t noutside = 0;

	for (int64_t r = begin; r < end; r++) {
		const enum where where = find(a, r);
		const int64_t from = r * (qwidth + 2 * width) + qwidth;
		int64_t to;

		noutside += where == OUTSIDE;
		if (where != INSIDE)
			continue;
		to = token_at(a, a->sequence[r], a->position[r]) * width;
		if (a->cache_dtype != TE_DTYPE_E4M3) {
			copy(a, from, a->k, to, width);
			copy(a, from + width, a->v, to, width);
			continue;
		}
		for (int32_t g = 0; g < a->nkv; g++) {
			const int64_t head = from + (int64_t)g * a->head_dim;

			encode(a, head, a->k, a->k_scale, to / a->head_dim + g);
			encode(a, head + width, a->v, a->v_scale, to / a->head_dim + g);
		}
	}
	if (noutside && a->noutside)
		__atomic_fetch_add(a->noutside, noutside, __ATOMIC_RELAXED);
}

void te__h_attn_append(const struct te_k_attn_cached *a)
{
	te__k_for(a->rows, te__h_rows_grain(2 * (int64_t)a->nkv * a->head_dim, 1), append_part,
		  (void *)(uintptr_t)a);
}

/* ---- attend ---- */

/* buffers of a thread; channels are padded to dp, a multiple of NR, with zeros */
struct buffers {
	float q[SLOTS * MAXD], acc[SLOTS * MAXD];
	float x[TILE * MAXD], kt[TILE * MAXD]; /* a tile; columns of te__h_micro() */
	float p[MR * TILE];
	struct online o[SLOTS / MR];
};

/* n rows from first on, at consecutive positions from pos on, and the head of keys and values g */
struct run {
	int64_t first, n, seq, pos;
	int32_t g;
};

/* how many of the n tokens from pos on are at equal distances in the caches */
static int64_t nearby(const struct te_k_attn_cached *a, int64_t pos, int64_t n)
{
	return a->pages ? te__h_min(a->page - pos % a->page, n) : n;
}

/* element of the caches that a run's head begins with at position pos */
static int64_t element_at(const struct te_k_attn_cached *a, const struct run *u, int64_t pos)
{
	return (token_at(a, u->seq, pos) * a->nkv + u->g) * a->head_dim;
}

/* n rows of d numbers, stride elements apart, to rows of dp */
TE__SIMD_BODY void load_rows_body(int32_t dtype, const void *p, int64_t at, int64_t stride,
				  int64_t n, int64_t d, float *restrict ret, int64_t dp)
{
	const uint16_t *restrict h = (const uint16_t *)p + at;
	const float *restrict x = (const float *)p + at;

	if (dtype == TE_DTYPE_BF16)
		for (int64_t i = 0; i < n; i++, h += stride, ret += dp)
			for (int64_t c = 0; c < d; c++)
				ret[c] = te__bf16_decode(h[c]);
	else
		for (int64_t i = 0; i < n; i++, x += stride, ret += dp)
			for (int64_t c = 0; c < d; c++)
				ret[c] = x[c];
}
static TE__SIMD(void, load_rows,
		(int32_t dtype, const void *p, int64_t at, int64_t stride, int64_t n, int64_t d,
		 float *ret, int64_t dp),
		(dtype, p, at, stride, n, d, ret, dp))

/* n heads of an E4M3 cache, nkv blocks apart, to rows of dp */
static void decode(const struct te_k_attn_cached *a, const void *cache, const uint8_t *scale,
		   int64_t at, int64_t n, int64_t dp, float *ret)
{
	for (int64_t i = 0; i < n; i++, at += a->nkv)
		te__h_decode(a->cache_dtype, (const uint8_t *)cache + at * a->head_dim,
			     te__h_scale_get(scale, TE_K_SCALING_1X32, at), a->head_dim,
			     ret + i * dp);
}

/* keys or values pos to pos + n - 1, then zeros up to most rows */
static void load_tile(const struct te_k_attn_cached *a, const struct run *u, const void *cache,
		      int64_t pos, int64_t n, int64_t most, int64_t dp, float *ret)
{
	const uint8_t *scale = cache == a->k ? a->k_scale : a->v_scale;
	const int64_t d = a->head_dim;

	if (n < most || d < dp)
		memset(ret, 0, (size_t)(most * dp) * sizeof(*ret));
	for (int64_t i = 0, len; i < n; i += len) {
		len = nearby(a, pos + i, n - i);
		if (a->cache_dtype == TE_DTYPE_E4M3)
			decode(a, cache, scale, element_at(a, u, pos + i) / d, len, dp,
			       ret + i * dp);
		else
			load_rows(a->cache_dtype, cache, element_at(a, u, pos + i), a->nkv * d,
				  len, d, ret + i * dp, dp);
	}
}

/* n keys from pos on, as columns of te__h_micro(): in place where NR are at equal distances */
static void pack_keys(const struct te_k_attn_cached *a, const struct run *u, int64_t pos,
		      int64_t n, int64_t dp, float *x, float *ret)
{
	const int64_t d = a->head_dim, stride = a->nkv * d;
	const size_t es = te_dtype_nbytes((enum te_dtype)a->cache_dtype);

	for (int64_t r = 0; r < n; r += NR, pos += NR, ret += NR * d) {
		if (a->cache_dtype != TE_DTYPE_E4M3 && n - r >= NR && nearby(a, pos, NR) == NR) {
			te__h_pack(a->cache_dtype, d,
				   (const char *)a->k + (size_t)element_at(a, u, pos) * es, stride,
				   NR * stride, ret);
			continue;
		}
		load_tile(a, u, a->k, pos, te__h_min(n - r, NR), NR, dp, x);
		te__h_pack(TE_DTYPE_FP32, d, x, dp, 0, ret);
	}
}

/* scores p of n pairs from first on, at most MR, and keys k0 on, of which pair r has hi[r] */
static void add_slopes(const struct te_k_attn_cached *a, const struct run *u, int64_t first,
		       int64_t n, int64_t k0, const int32_t *hi, float scale, float *p)
{
	for (int64_t r = 0; r < te__h_min(n, MR); r++) {
		const int64_t h = u->g * (a->nheads / a->nkv) + (first + r) / u->n;
		const int64_t at = u->pos + (first + r) % u->n - k0;

		add_bias(p + r * TILE, hi[r], scale, NULL, a->slopes[h], (int32_t)at);
	}
}

/* pairs first to first + n - 1 of a run: pair i is row i % run.n and query head i / run.n */
static void pairs(const struct te_k_attn_cached *a, const struct run *u, int64_t first, int64_t n,
		  struct buffers *w)
{
	const int32_t group = a->nheads / a->nkv;
	const int64_t d = a->head_dim, dp = (d + NR - 1) / NR * NR;
	const int64_t row = (int64_t)(a->nheads + 2 * a->nkv) * d;
	const int64_t end = u->pos + u->n, npadded = (n + MR - 1) / MR * MR;

	memset(w->q, 0, (size_t)(npadded * dp) * sizeof(*w->q));
	memset(w->acc, 0, (size_t)(npadded * dp) * sizeof(*w->acc));
	/* scores of padding rows need not be computed */
	memset(w->p, 0, sizeof(w->p));
	for (int64_t i = 0; i < npadded; i++) {
		const int64_t h = u->g * group + (first + te__h_min(i, n - 1)) / u->n;
		const float sink = a->sinks ? a->sinks[h] : -INFINITY;

		w->o[i / MR].m[i % MR] = sink;
		w->o[i / MR].l[i % MR] = sink == -INFINITY ? 0.0 : 1.0;
	}
	for (int64_t i = 0; i < n; i++)
		te__h_load(a->dtype, a->qkv,
			   (u->first + (first + i) % u->n) * row +
				   (u->g * group + (first + i) / u->n) * d,
			   d, w->q + i * dp);
	for (int64_t k0 = te_k_attn_first(u->pos, a->window, 0) / TILE * TILE; k0 < end;
	     k0 += TILE) {
		const int64_t nk = te__h_min(TILE, end - k0);

		pack_keys(a, u, k0, nk, dp, w->x, w->kt);
		load_tile(a, u, a->v, k0, nk, TILE, dp, w->x);
		for (int64_t i = 0; i < n; i += MR) {
			int32_t lo[MR], hi[MR], most = 0;
			const struct span keys = { lo, hi };
			float scale = a->scale;
			uint8_t mask[TILE];

			/* padding rows have the keys of the last one */
			for (int64_t r = 0; r < MR; r++) {
				const int64_t q = u->pos + (first + te__h_min(i + r, n - 1)) % u->n;
				const int64_t from = te_k_attn_first(q, a->window, 0) - k0;
				const int some = q >= k0 && from < TILE;

				lo[r] = some && from > 0 ? (int32_t)from : 0;
				hi[r] = some ? (int32_t)te__h_min(q + 1 - k0, TILE) : 0;
				most = hi[r] > most ? hi[r] : most;
			}
			for (int64_t k = 0; k < most; k += NR)
				te__h_micro(n - i, d, (struct te__h_rows){ w->q + i * dp, dp, 1 },
					    w->kt + k * d, NR, w->p + k, TILE, 0);
			if (!most)
				continue;
			if (a->softcap != 0.0f) {
				cap_scores(w->p, most, scale, a->softcap);
				scale = 1.0f;
			}
			if (a->slopes) {
				add_slopes(a, u, first + i, n - i, k0, hi, scale, w->p);
				scale = 1.0f;
			}
			hide_keys(w->p, keys);
			soften(w->p, hi, scale, &w->o[i / MR], w->acc + i * dp, dp);
			mask_keys(mask, keys);
			add_masked(w->acc + i * dp, n - i, (struct te__h_rows){ w->p, TILE, 1 },
				   w->x, mask, dp);
		}
	}
	for (int64_t i = 0; i < n; i++) {
		const int64_t r = u->first + (first + i) % u->n;
		const int64_t h = u->g * group + (first + i) / u->n;
		const double l = w->o[i / MR].l[i % MR];

		/* as in attn.c, 0 if all scores are -inf */
		te__h_scale_by(w->acc + i * dp, l == 0.0 ? 0.0f : (float)(1.0 / l), d);
		te__h_store(a->dtype, a->out, (r * a->nheads + h) * d, d, w->acc + i * dp);
	}
}

static void clear(const struct te_k_attn_cached *a, int64_t r, int32_t g)
{
	const int64_t n = a->nheads / a->nkv * a->head_dim;
	float zero[TE__H_CHUNK] = { 0 };

	TE__H_CHUNKS(c, len, n)
	{
		te__h_store(a->dtype, a->out, (r * a->nkv + g) * n + c, len, zero);
	}
}

static void attend_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_attn_cached *a = arg;
	const int64_t nblocks = (a->rows + BLOCK - 1) / BLOCK;
	const int32_t group = a->nheads / a->nkv;
	struct buffers *w = te__k_take(sizeof(*w));

	for (int64_t t = begin; t < end; t++) {
		const int64_t last = te__h_min((t % nblocks + 1) * BLOCK, a->rows);
		struct run u = { .first = t % nblocks * BLOCK, .g = (int32_t)(t / nblocks) };

		for (; u.first < last; u.first += u.n) {
			const int64_t r = u.first;

			u.n = 1;
			if (find(a, r) != INSIDE) {
				clear(a, r, u.g);
				continue;
			}
			u.seq = a->sequence[r];
			u.pos = a->position[r];
			while (r + u.n < last && a->sequence[r + u.n] == u.seq &&
			       a->position[r + u.n] == u.pos + u.n &&
			       find(a, r + u.n) == INSIDE)
				u.n++;
			for (int64_t i = 0; i < u.n * group; i += SLOTS)
				pairs(a, &u, i, te__h_min(SLOTS, u.n * group - i), w);
		}
	}
	te__k_give(w);
}

void te__h_attn_cached(const struct te_k_attn_cached *a)
{
	const int64_t nblocks = (a->rows + BLOCK - 1) / BLOCK;
	int64_t most = 0;

	for (int64_t r = 0; r < a->rows; r++)
		most = a->position[r] > most ? a->position[r] : most;
	most = te__h_min(most + TILE, a->max_pages * a->page);
	te__k_for(nblocks * a->nkv,
		  1 + GRAIN / (most * MR * a->head_dim * te__h_min(a->rows, BLOCK)), attend_part,
		  (void *)(uintptr_t)a);
}

void te__h_attn_step(const struct te_k_attn_step *a)
{
	struct te_k_rope rope = {
		.x = a->c.qkv,
		.y = (void *)(uintptr_t)a->c.qkv,
		.rows = a->c.rows,
		.seqlen = 1,
		.nheads = a->c.nheads + 2 * a->c.nkv,
		.nrot = a->c.nheads + a->c.nkv,
		.head_dim = a->c.head_dim,
		.dtype = a->c.dtype,
		.position = a->c.position,
	};

	memcpy(rope.inv_freq, a->inv_freq, sizeof(rope.inv_freq));
	te__h_rope(&rope);
	te__h_attn_append(&a->c);
	te__h_attn_cached(&a->c);
}
