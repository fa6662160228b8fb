/*
 * attn.c - host kernels of attention: forward and backward, on heads at any strides.
 *
 * Tiles of TILE queries and TILE keys, converted to FP32 in memory of the thread (team.h). The
 * parts of a team are tiles of queries of a head, or in dkv tiles of keys of a key/value head, so
 * that results do not depend on the number of threads. GEMMs of 8 rows of a tile are
 * kernels/micro.c: sums over channels and over the keys or queries of a tile ascend, and tiles
 * ascend. Each tile of keys rescales the results of the previous ones (online softmax, Milakov and
 * Gimelshein, arXiv 1805.02867). A row's sum of probabilities is FP32 in 16 lanes within a tile and
 * FP64 over tiles. Keys after the query are never multiplied by: on the diagonal, 8 rows end with a
 * triangle.
 */
#include "config.h"

#include "kernels/attn/online.h"
#include "kernels/philox.h"
#include "kernels/ref.h"
#include "kernels/team.h"

#define MAXD TE_K_ATTN_MAX_HEAD_DIM

/* channels of a head, d, and padded to a multiple of NR with zeros, dp */
struct chans {
	int32_t d, dp;
};

#define CHANS_OF(n) { (n), ((n) + NR - 1) / NR * NR }

/* data of both passes */
struct shape {
	int64_t T, S, ntiles, nktiles; /* queries and keys, and tiles of them */
	int32_t dtype, nheads, nkv, group;
	struct chans qk, v;
	struct te_k_attn_views at;
	float scale;
	uint32_t threshold, tag;
	int32_t first_head, other_heads;
	const uint64_t *seed, *offset;
	int32_t more; /* not plain causal attention */
	struct te_k_attn_mask mask;
	float softcap;
	const struct te_k_attn_more *x;
};

#define NTILES(n) (((n) + TILE - 1) / TILE)
#define KLEN(a) ((a)->more.klen ? (a)->more.klen : (a)->seqlen)
#define HEAD_DIM_V(a) ((a)->more.head_dim_v ? (a)->more.head_dim_v : (a)->head_dim)
#define SHAPE_OF(a)                                                                             \
	{                                                                                       \
		.T = (a)->seqlen, .S = KLEN(a), .ntiles = NTILES((a)->seqlen),                  \
		.nktiles = NTILES(KLEN(a)), .dtype = (a)->dtype, .nheads = (a)->nheads,         \
		.nkv = (a)->nkv, .group = (a)->nheads / (a)->nkv,                               \
		.qk = CHANS_OF((a)->head_dim), .v = CHANS_OF(HEAD_DIM_V(a)),                    \
		.at = TE_K_ATTN_VIEWS(a), .scale = (a)->scale, .threshold = (a)->threshold,     \
		.tag = (a)->tag, .first_head = (a)->first_head,                                 \
		.other_heads = (a)->other_heads, .seed = (a)->seed, .offset = (a)->offset,      \
		.more = (a)->window || (a)->first || (a)->softcap != 0.0f || (a)->full ||       \
			KLEN(a) != (a)->seqlen || (a)->more.q_offsets || (a)->more.bias ||      \
			(a)->more.slopes,                                                       \
		.mask = TE_K_ATTN_MASK(a), .softcap = (a)->softcap, .x = &(a)->more,            \
	}

/* element of the first token of a head */
static int64_t head_at(struct te_k_strides s, int64_t b, int64_t h)
{
	return b * s.batch + h * s.head;
}

/* tiles that are worth a part */
static int64_t grain(const struct shape *s)
{
	return 1 + 200000 / (TILE * s->S * s->qk.d);
}

/* n rows of d numbers, a multiple of LANES: faster than calls of memcpy() */
TE__SIMD_BODY void copy_rows_body(float *ret, int64_t rstride, const float *x, int64_t xstride,
				  int64_t n, int64_t d)
{
	for (int64_t r = 0; r < n; r++, ret += rstride, x += xstride)
		for (int64_t c = 0; c < d; c += LANES)
			*(vec *)(ret + c) = *(const vec *)(x + c);
}
static TE__SIMD(void, copy_rows,
		(float *ret, int64_t rstride, const float *x, int64_t xstride, int64_t n,
		 int64_t d),
		(ret, rstride, x, xstride, n, d))

/* a tile: n rows, stride elements apart, then rows of zeros */
static void load_tile(const struct shape *s, struct chans c, float *ret, const void *x, int64_t at,
		      int64_t stride, int64_t n)
{
	if (n < TILE || c.d < c.dp)
		memset(ret, 0, (size_t)(TILE * c.dp) * sizeof(*ret));
	if (s->dtype == TE_DTYPE_FP32 && c.d % LANES == 0) {
		copy_rows(ret, c.dp, (const float *)x + at, stride, n, c.d);
		return;
	}
	for (int64_t r = 0; r < n; r++)
		te__h_load(s->dtype, x, at + r * stride, c.d, ret + r * c.dp);
}

/* tiles from a token on; h: query head, g: key/value head */
static void load_q(const struct shape *s, float *ret, const void *q, int64_t b, int64_t h,
		   int64_t token)
{
	load_tile(s, s->qk, ret, q, head_at(s->at.q, b, h) + token * s->at.q.token, s->at.q.token,
		  te__h_min(TILE, s->T - token));
}

static void load_k(const struct shape *s, float *ret, const void *qkv, int64_t b, int64_t g,
		   int64_t token)
{
	const int64_t at = s->at.k_at + head_at(s->at.k, b, g) + token * s->at.k.token;

	load_tile(s, s->qk, ret, s->x->k ? s->x->k : qkv, at, s->at.k.token,
		  te__h_min(TILE, s->S - token));
}

static void load_v(const struct shape *s, float *ret, const void *qkv, int64_t b, int64_t g,
		   int64_t token)
{
	const int64_t at = s->at.v_at + head_at(s->at.v, b, g) + token * s->at.v.token;

	load_tile(s, s->v, ret, s->x->k ? s->x->v : qkv, at, s->at.v.token,
		  te__h_min(TILE, s->S - token));
}

static void load_dout(const struct shape *s, float *ret, const void *dout, int64_t b, int64_t h,
		      int64_t token)
{
	load_tile(s, s->v, ret, dout, head_at(s->at.out, b, h) + token * s->at.out.token,
		  s->at.out.token, te__h_min(TILE, s->T - token));
}

/* the transpose, as columns of te__h_micro(): NR rows of the tile after each other */
static void transpose_tile(struct chans c, const float *x, float *ret)
{
	for (int64_t r = 0; r < TILE; r += NR)
		te__h_pack(TE_DTYPE_FP32, c.d, x + r * c.dp, c.dp, 0, ret + r * c.d);
}

static struct te__h_rows rows(const float *p, int64_t rs, int64_t cs)
{
	return (struct te__h_rows){ p, rs, cs };
}

/* v [MR, n] = x [MR, d] yt, n rounded up to a multiple of NR */
static void dots(struct chans c, float *v, const float *x, const float *yt, int64_t n)
{
	for (int64_t k = 0; k < n; k += NR)
		te__h_micro(MR, c.d, rows(x, c.dp, 1), yt + k * c.d, NR, v + k, TILE, 0);
}

/* acc [MR, dp] += a [MR, n] y [n, dp] */
static void add_terms(int32_t dp, float *acc, struct te__h_rows a, const float *y, int64_t n)
{
	for (int c = 0; c < dp && n > 0; c += NR)
		te__h_micro(MR, n, a, y + c, dp, acc + c, dp, 1);
}

/* for the keys of 8 queries: n before the first query, and with corner the keys up to each query */
static void add_keys(int32_t dp, float *acc, const float *a, const float *y, int64_t n, int corner)
{
	add_terms(dp, acc, rows(a, TILE, 1), y, n);
	for (int c = 0; c < dp && corner; c += NR)
		te__h_micro_lower(rows(a + n, TILE, 1), y + n * dp + c, dp, acc + c, dp);
}

/* over the queries of 8 keys k of a tile a [queries, keys] */
static void add_queries(int32_t dp, float *acc, const float *a, const float *y, int64_t k,
			int corner)
{
	const int64_t after = corner ? k + MR : 0;

	for (int c = 0; c < dp && corner; c += NR)
		te__h_micro_upper(rows(a + k * TILE + k, 1, TILE), y + k * dp + c, dp, acc + c, dp);
	add_terms(dp, acc, rows(a + after * TILE + k, 1, TILE), y + after * dp, TILE - after);
}

/* f[k]: the dropout factor of key k0 + k: 0, or the scale of kept probabilities */
static void keep(const struct shape *s, float *f, int64_t bh, int64_t q, int64_t k0)
{
	const uint32_t head = te_k_attn_head(bh, s->nheads, s->first_head, s->other_heads);
	float scale = 65536.0f / (float)(65536u - s->threshold);
	struct te_philox r = { { 0 } };

	for (int64_t k = 0; k < TILE; k++) {
		if (k % 8 == 0)
			r = te_philox_attn(*s->seed, *s->offset, s->tag, head, (uint32_t)q,
					   (uint32_t)((k0 + k) >> 3));
		f[k] = te_philox_lane(&r, (int)(k & 7)) >= s->threshold ? scale : 0.0f;
	}
}

/* the keys of a tile of queries: of each query, and from to to - 1 of all */
struct tile_keys {
	struct te_k_attn_span of[TILE];
	int64_t from, to;
};

/* queries q0 to q0 + nq - 1 of sequence b */
static void find_keys(const struct shape *s, int64_t b, int64_t q0, int64_t nq,
		      struct tile_keys *ret)
{
	ret->from = s->more ? s->S : 0;
	ret->to = s->more ? 0 : q0 + 1;
	for (int64_t i = 0; i < nq && s->more; i++) {
		const struct te_k_attn_span w = te_k_attn_keys(&s->mask, b, q0 + i);

		ret->of[i] = w;
		if (w.from == w.to)
			continue;
		ret->from = te__h_min(ret->from, w.from / TILE * TILE);
		ret->to = w.to > ret->to ? w.to : ret->to;
	}
}

/* keys of each query of a tile, in a tile of keys */
struct spans {
	int32_t lo[TILE], hi[TILE];
	int32_t at[TILE]; /* the diagonal, for ALiBi */
};

/* the nq queries of a tile and keys k0 on; returns 0 if no query has a key there */
static int cut_keys(const struct tile_keys *keys, int64_t nq, int64_t k0, struct spans *ret)
{
	int any = 0;

	memset(ret, 0, sizeof(*ret));
	for (int64_t i = 0; i < nq; i++) {
		const int64_t lo = keys->of[i].from - k0;
		const int64_t hi = te__h_min(keys->of[i].to - k0, TILE);

		if (hi <= 0 || hi <= lo)
			continue;
		ret->lo[i] = lo > 0 ? (int32_t)lo : 0;
		ret->hi[i] = (int32_t)hi;
		ret->at[i] = (int32_t)(keys->of[i].at - k0);
		any = 1;
	}
	return any;
}

/* MR queries of a tile */
static struct span span_of(const struct spans *w, int64_t i0)
{
	return (struct span){ w->lo + i0, w->hi + i0 };
}

static int32_t last_key(struct span w)
{
	int32_t most = 0;

	for (int r = 0; r < MR; r++)
		most = w.hi[r] > most ? w.hi[r] : most;
	return most;
}

/*
 * Scores p of MR queries q on of head h and keys k0 on, of which n are used, before scaling: what
 * is done before the softmax. capped: the scores that a softcap leaves, or NULL. Returns the factor
 * that is left.
 */
static float finish_scores(const struct shape *s, float *p, int64_t h, int64_t q, int64_t k0,
			   int32_t n, const struct spans *keys, int64_t i0, float *capped)
{
	const struct te_k_attn_more *x = s->x;
	const float scale = s->softcap != 0.0f ? 1.0f : s->scale;

	if (s->softcap != 0.0f)
		cap_scores(p, n, s->scale, s->softcap);
	if (s->softcap != 0.0f && capped)
		memcpy(capped, p, MR * TILE * sizeof(*p));
	if (!x->bias && !x->slopes)
		return scale;
	for (int r = 0; r < MR; r++)
		add_bias(p + r * TILE, keys->hi[i0 + r], scale,
			 x->bias ? x->bias + h * x->bias_head + (q + r) * s->S + k0 : NULL,
			 x->slopes ? x->slopes[h] : 0.0f, keys->at[i0 + r]);
	return 1.0f;
}

/* ---- forward ---- */

struct fwd {
	const struct te_k_attn_fwd *a;
	struct shape s;
};

/* drop probabilities p [MR, n] of queries q on and keys k0 on */
static void drop(const struct shape *s, float *p, int64_t bh, int64_t q, int64_t k0, int64_t n)
{
	float f[TILE];

	for (int r = 0; r < MR && s->threshold; r++) {
		keep(s, f, bh, q + r, k0);
		for (int64_t k = 0; k < n; k++)
			p[r * TILE + k] *= f[k];
	}
}

/* as fwd_rows(), for the keys of each query */
static void fwd_some(const struct shape *s, int64_t bh, int64_t q0, int64_t k0, int64_t i0,
		     const float *q, const float *kt, const float *v, const struct spans *keys,
		     struct online *o, float *acc)
{
	const struct span w = span_of(keys, i0);
	const int32_t n = last_key(w);
	TE__H_ALIGNED float p[MR * TILE];
	uint8_t mask[TILE];
	float scale;

	if (!n)
		return;
	dots(s->qk, p, q + i0 * s->qk.dp, kt, n);
	scale = finish_scores(s, p, bh % s->nheads, q0 + i0, k0, n, keys, i0, NULL);
	hide_keys(p, w);
	soften(p, w.hi, scale, &o[i0 / MR], acc + i0 * s->v.dp, s->v.dp);
	drop(s, p, bh, q0 + i0, k0, n);
	mask_keys(mask, w);
	add_masked(acc + i0 * s->v.dp, MR, rows(p, TILE, 1), v, mask, s->v.dp);
}

/* queries q0 to q0 + nq - 1 of head bh with keys k0 on; i0: MR of the queries */
static void fwd_rows(const struct shape *s, int64_t bh, int64_t q0, int64_t k0, int64_t i0,
		     const float *q, const float *kt, const float *v, struct online *o, float *acc)
{
	/* keys of this tile before the first query; on the diagonal, query r has r + 1 more */
	const int64_t n = te__h_min(q0 + i0 - k0, TILE);
	const int corner = n < TILE;
	TE__H_ALIGNED float p[MR * TILE];
	int32_t nkeys[MR];

	for (int r = 0; r < MR; r++)
		nkeys[r] = (int32_t)te__h_min(n + 1 + r, TILE);
	dots(s->qk, p, q + i0 * s->qk.dp, kt, corner ? n + MR : n);
	soften(p, nkeys, s->scale, &o[i0 / MR], acc + i0 * s->v.dp, s->v.dp);
	drop(s, p, bh, q0 + i0, k0, te__h_min(n + MR, TILE));
	add_keys(s->v.dp, acc + i0 * s->v.dp, p, v, n, corner);
}

/* nr rows and nc columns of the result [rows, cols] at row r and column c; v: rounded, stride dp */
static void fwd_quantize(const struct te_k_q *q, int64_t rows, int64_t cols, int64_t r, int64_t c,
			 int64_t nr, int64_t nc, const float *v, int64_t dp)
{
	uint8_t code[MAXD];
	uint32_t amax = 0;

	for (int64_t i = 0; i < nr; i++) {
		if (q->amax)
			amax = te__h_amax_bits(v + i * dp, nc, amax);
		if (!q->row && !q->col)
			continue;
		te__h_encode(q->dtype, v + i * dp, *q->scale, nc, code);
		if (q->row)
			memcpy((uint8_t *)q->row + (r + i) * cols + c, code, (size_t)nc);
		for (int64_t j = 0; j < nc && q->col; j++)
			((uint8_t *)q->col)[(c + j) * rows + r + i] = code[j];
	}
	if (q->amax)
		te__h_amax_fold(q->amax, amax);
}

/* buffers of a thread */
struct fwd_tiles {
	float q[TILE * MAXD], x[TILE * MAXD], kt[TILE * MAXD], acc[TILE * MAXD];
};

static void fwd_tile(const struct te_k_attn_fwd *a, const struct shape *s, int64_t bh, int64_t q0,
		     struct fwd_tiles *w)
{
	float *const q = w->q, *const x = w->x, *const kt = w->kt, *const acc = w->acc;
	const int64_t b = bh / s->nheads, h = bh % s->nheads, g = h / s->group;
	const int64_t nq = te__h_min(TILE, s->T - q0);
	const float sink = s->x->sinks ? s->x->sinks[h] : -INFINITY;
	struct online o[TILE / MR];
	struct tile_keys keys;
	struct spans some;

	load_q(s, q, a->qkv, b, h, q0);
	memset(acc, 0, (size_t)(TILE * s->v.dp) * sizeof(*acc));
	for (int i = 0; i < TILE; i++) {
		o[i / MR].m[i % MR] = sink;
		o[i / MR].l[i % MR] = sink == -INFINITY ? 0.0 : 1.0;
	}
	find_keys(s, b, q0, nq, &keys);
	for (int64_t k0 = keys.from; k0 < keys.to; k0 += TILE) {
		if (s->more && !cut_keys(&keys, nq, k0, &some))
			continue;
		load_k(s, x, a->qkv, b, g, k0);
		transpose_tile(s->qk, x, kt);
		load_v(s, x, a->qkv, b, g, k0);
		for (int64_t i = 0; i < nq && !s->more; i += MR)
			fwd_rows(s, bh, q0, k0, i, q, kt, x, o, acc);
		for (int64_t i = 0; i < nq && s->more; i += MR)
			fwd_some(s, bh, q0, k0, i, q, kt, x, &some, o, acc);
	}
	for (int64_t i = 0; i < nq; i++) {
		const int64_t at = head_at(s->at.out, b, h) + (q0 + i) * s->at.out.token;
		const double l = o[i / MR].l[i % MR];
		const float inv = l == 0.0 ? 0.0f : (float)(1.0 / l);

		a->lse[bh * s->T + q0 + i] = (float)(o[i / MR].m[i % MR] + log(l));
		te__h_scale_by(acc + i * s->v.dp, inv, s->v.d);
		if (a->out)
			te__h_store(s->dtype, a->out, at, s->v.d, acc + i * s->v.dp);
		else
			te__h_round(s->dtype, s->v.d, acc + i * s->v.dp);
	}
	fwd_quantize(&a->q, a->batch * s->T, (int64_t)s->nheads * s->v.d, b * s->T + q0,
		     h * s->v.d, nq, s->v.d, acc, s->v.dp);
}

static void fwd_part(void *arg, int64_t begin, int64_t end)
{
	const struct fwd *f = arg;
	struct fwd_tiles *w = te__k_take(sizeof(*w));

	for (int64_t t = begin; t < end; t++)
		fwd_tile(f->a, &f->s, t / f->s.ntiles, t % f->s.ntiles * TILE, w);
	te__k_give(w);
}

void te__h_attn_fwd(const struct te_k_attn_fwd *a)
{
	struct fwd f = { a, SHAPE_OF(a) };

	if (te__h_noop(a->q.noop))
		return;
	if (a->q.row || a->q.col)
		*a->q.scale_inv = 1.0f / *a->q.scale;
	te__k_for(a->batch * a->nheads * f.s.ntiles, grain(&f.s), fwd_part, &f);
}

/* ---- backward ---- */

struct bwd {
	const struct te_k_attn_bwd *a;
	struct shape s;
};

/* tokens begin to end - 1 of all sequences */
static void pre_part(void *arg, int64_t begin, int64_t end)
{
	const struct bwd *w = arg;
	const struct te_k_attn_bwd *a = w->a;
	const struct te_k_strides o = w->s.at.out;
	const int64_t T = w->s.T, d = w->s.v.d, width = o.head == d ? TE__H_CHUNK / d : 1;
	float x[TE__H_CHUNK], y[TE__H_CHUNK];

	for (int64_t t = begin; t < end; t++)
		for (int64_t h0 = 0; h0 < a->nheads; h0 += width) {
			const int64_t n = te__h_min(width, a->nheads - h0);
			const int64_t at = head_at(o, t / T, h0) + t % T * o.token;

			te__h_load(a->dtype, a->out, at, n * d, x);
			te__h_load(a->dtype, a->dout, at, n * d, y);
			for (int64_t h = 0; h < n; h++)
				a->delta[(t / T * a->nheads + h0 + h) * T + t % T] =
					(float)te__h_dot(x + h * d, y + h * d, d);
		}
}

void te__h_attn_bwd_pre(const struct te_k_attn_bwd *a)
{
	struct bwd w = { a, SHAPE_OF(a) };

	te__k_for(a->batch * a->seqlen, 1 + 30000 / ((int64_t)a->nheads * w.s.v.d), pre_part, &w);
}

/* the end of the keys of MR queries, of which the first one has n, in chunks of LANES */
TE__SIMD_BODY int32_t keys_end(int64_t n)
{
	return (int32_t)te__h_min((n + MR - 1 + LANES - 1) / LANES * LANES, TILE);
}

/*
 * Turns the scores of MR queries, before scaling, into probabilities, and the products grads into
 * gradients of scaled scores. Row r has n + r keys, at most TILE; the others get 0. With factors f
 * [MR, TILE], dropout is applied to the probabilities.
 */
TE__SIMD_BODY void soften_bwd_body(float *restrict scores, float *restrict grads, int64_t n,
				   float scale, const float *lse, const float *delta,
				   const float *restrict f)
{
	const int32_t end = keys_end(n);

	for (int r = 0; r < MR; r++) {
		const float most = lse[r], less = delta[r];
		float *p = TE__H_ALIGNED_TO(scores + r * TILE);
		float *dp = TE__H_ALIGNED_TO(grads + r * TILE);

		for (int32_t k = 0; k < end && f; k++)
			dp[k] *= f[r * TILE + k];
		for (int32_t k = 0; k < end; k++) {
			p[k] = te__expf(p[k] * scale - most);
			dp[k] = p[k] * (dp[k] - less);
		}
		for (int32_t k = 0; k < end && f; k++)
			p[k] *= f[r * TILE + k];
		for (int32_t k = (int32_t)n + r; k < end; k++)
			p[k] = dp[k] = 0.0f;
	}
}
static TE__SIMD(void, soften_bwd,
		(float *p, float *dp, int64_t n, float scale, const float *lse, const float *delta,
		 const float *f),
		(p, dp, n, scale, lse, delta, f))

/* gradients of scores c tanh(s / c) become gradients of scores s; capped: the former */
TE__SIMD_BODY void uncap_body(float *restrict ds, const float *restrict capped, int64_t n, float c)
{
	for (int64_t i = 0; i < n; i++) {
		const float t = capped[i] / c;

		ds[i] *= 1.0f - t * t;
	}
}
static TE__SIMD(void, uncap, (float *ds, const float *capped, int64_t n, float c),
		(ds, capped, n, c))

/*
 * p and ds [MR, TILE] of queries q0 + i0 on and keys k0 on, from the tiles q and dout and the
 * transposed tiles kt and vt. nq: queries in the tile; keys: of each query, or NULL; dbias: to add
 * gradients of biases to, or NULL
 */
static void bwd_rows(const struct bwd *w, int64_t bh, int64_t q0, int64_t nq, int64_t k0,
		     int64_t i0, const float *q, const float *dout, const float *kt,
		     const float *vt, const struct spans *keys, float *p, float *ds, float *dbias)
{
	const struct shape *s = &w->s;
	const struct span some = keys ? span_of(keys, i0) : (struct span){ NULL, NULL };
	const int64_t n = keys ? last_key(some) - MR : te__h_min(q0 + i0 - k0, TILE);
	float f[MR * TILE], capped[MR * TILE], lse[MR] = { 0 }, delta[MR] = { 0 };
	float scale = s->scale;

	for (int64_t r = 0; r < MR && i0 + r < nq; r++) {
		lse[r] = w->a->lse[bh * s->T + q0 + i0 + r];
		/* a query that sees no key has probabilities of 0 */
		lse[r] = lse[r] == -INFINITY ? INFINITY : lse[r];
		delta[r] = w->a->delta[bh * s->T + q0 + i0 + r];
	}
	for (int r = 0; r < MR && s->threshold; r++)
		keep(s, f + r * TILE, bh, q0 + i0 + r, k0);
	dots(s->qk, p, q + i0 * s->qk.dp, kt, te__h_min(n + MR, TILE));
	dots(s->v, ds, dout + i0 * s->v.dp, vt, te__h_min(n + MR, TILE));
	if (keys)
		scale = finish_scores(s, p, bh % s->nheads, q0 + i0, k0, (int32_t)n + MR, keys, i0,
				      capped);
	soften_bwd(p, ds, keys ? n + MR : n + 1, scale, lse, delta, s->threshold ? f : NULL);
	for (int r = 0; r < MR && dbias; r++)
		for (int32_t k = some.lo[r]; k < some.hi[r]; k++)
			dbias[r * s->S + k] += ds[r * TILE + k];
	if (s->softcap != 0.0f)
		uncap(ds, capped, MR * TILE, s->softcap);
	for (int r = 0; r < MR && keys; r++)
		for (int32_t k = 0; k < TILE; k++)
			if (k < some.lo[r] || k >= some.hi[r])
				p[r * TILE + k] = ds[r * TILE + k] = 0.0f;
}

/* as add_queries(), of the queries that have each of the keys */
static void add_some_queries(int32_t dp, float *acc, const float *a, const float *y, int64_t k,
			     const struct spans *keys)
{
	uint8_t mask[TILE] = { 0 };

	for (int i = 0; i < TILE; i++)
		for (int r = 0; r < MR; r++)
			if (k + r >= keys->lo[i] && k + r < keys->hi[i])
				mask[i] |= (uint8_t)(1 << r);
	add_masked(acc, MR, rows(a + k, 1, TILE), y, mask, dp);
}

/* n rows of a gradient from a token on, times scale; at: element of token 0; to: NULL: it is not
 * needed */
static void store_tile(const struct shape *s, struct chans c, void *to, int64_t at,
		       int64_t stride, int64_t token, int64_t n, float *x, float scale)
{
	if (!to)
		return;
	te__h_scale_by(x, scale, n * c.dp);
	for (int64_t r = 0; r < n; r++)
		te__h_store(s->dtype, to, at + (token + r) * stride, c.d, x + r * c.dp);
}

/* buffers of a thread */
struct dkv_tiles {
	float kt[TILE * MAXD], vt[TILE * MAXD], q[TILE * MAXD], dout[TILE * MAXD];
	float dk[TILE * MAXD], dv[TILE * MAXD], p[TILE * TILE], ds[TILE * TILE];
};

static void dkv_tile(const struct bwd *w, int64_t b, int64_t g, int64_t k0, struct dkv_tiles *m)
{
	float *const kt = m->kt, *const vt = m->vt, *const q = m->q, *const dout = m->dout;
	float *const dk = m->dk, *const dv = m->dv, *const p = m->p, *const ds = m->ds;
	const struct te_k_attn_bwd *a = w->a;
	const struct shape *s = &w->s;
	const struct te_k_attn_mask *mask = &s->mask;
	const int64_t nk = te__h_min(TILE, s->S - k0);
	/* queries before it have no key here */
	const int64_t first = mask->full || s->S != s->T || mask->q_offsets ? 0 : k0;
	struct tile_keys keys;
	struct spans some;

	memset(dk, 0, (size_t)(TILE * s->qk.dp) * sizeof(*dk));
	memset(dv, 0, (size_t)(TILE * s->v.dp) * sizeof(*dv));
	load_k(s, q, a->qkv, b, g, k0);
	transpose_tile(s->qk, q, kt);
	load_v(s, q, a->qkv, b, g, k0);
	transpose_tile(s->v, q, vt);
	for (int64_t h = g * s->group; h < (g + 1) * s->group; h++)
		for (int64_t q0 = first; q0 < s->T; q0 += TILE) {
			const int64_t nq = te__h_min(TILE, s->T - q0);

			find_keys(s, b, q0, nq, &keys);
			if (s->more && !cut_keys(&keys, nq, k0, &some))
				continue;
			load_q(s, q, a->qkv, b, h, q0);
			load_dout(s, dout, a->dout, b, h, q0);
			for (int64_t i = 0; i < TILE; i += MR)
				bwd_rows(w, b * s->nheads + h, q0, nq, k0, i, q, dout, kt, vt,
					 s->more ? &some : NULL, p + i * TILE, ds + i * TILE, NULL);
			for (int64_t k = 0; k < nk && s->more; k += MR) {
				add_some_queries(s->qk.dp, dk + k * s->qk.dp, ds, q, k, &some);
				add_some_queries(s->v.dp, dv + k * s->v.dp, p, dout, k, &some);
			}
			for (int64_t k = 0; k < nk && !s->more; k += MR) {
				add_queries(s->qk.dp, dk + k * s->qk.dp, ds, q, k, q0 == k0);
				add_queries(s->v.dp, dv + k * s->v.dp, p, dout, k, q0 == k0);
			}
		}
	store_tile(s, s->qk, a->more.k ? a->dk : a->dqkv, s->at.k_at + head_at(s->at.k, b, g),
		   s->at.k.token, k0, nk, dk, s->scale);
	store_tile(s, s->v, a->more.k ? a->dv : a->dqkv, s->at.v_at + head_at(s->at.v, b, g),
		   s->at.v.token, k0, nk, dv, 1.0f);
}

static void dkv_part(void *arg, int64_t begin, int64_t end)
{
	const struct bwd *w = arg;
	const int64_t n = w->s.nktiles;
	struct dkv_tiles *m = te__k_take(sizeof(*m));

	for (int64_t t = begin; t < end; t++)
		dkv_tile(w, t / n / w->s.nkv, t / n % w->s.nkv, t % n * TILE, m);
	te__k_give(m);
}

void te__h_attn_bwd_dkv(const struct te_k_attn_bwd *a)
{
	struct bwd w = { a, SHAPE_OF(a) };

	te__k_for(a->batch * a->nkv * w.s.nktiles, grain(&w.s), dkv_part, &w);
}

/* buffers of a thread */
struct dq_tiles {
	float k[TILE * MAXD], kt[TILE * MAXD], vt[TILE * MAXD], q[TILE * MAXD];
	float dout[TILE * MAXD], dq[TILE * MAXD], p[MR * TILE], ds[MR * TILE];
};

/* dbias: NULL, or of the head and query q0, and then dq is not computed */
static void dq_tile(const struct bwd *w, int64_t bh, int64_t q0, struct dq_tiles *m, float *dbias)
{
	float *const k = m->k, *const kt = m->kt, *const vt = m->vt, *const q = m->q;
	float *const dout = m->dout, *const dq = m->dq, *const p = m->p, *const ds = m->ds;
	const struct te_k_attn_bwd *a = w->a;
	const struct shape *s = &w->s;
	const int64_t b = bh / s->nheads, h = bh % s->nheads, g = h / s->group;
	const int64_t nq = te__h_min(TILE, s->T - q0);
	uint8_t mask[TILE];
	struct tile_keys keys;
	struct spans some;

	memset(dq, 0, (size_t)(TILE * s->qk.dp) * sizeof(*dq));
	load_q(s, q, a->qkv, b, h, q0);
	load_dout(s, dout, a->dout, b, h, q0);
	find_keys(s, b, q0, nq, &keys);
	for (int64_t k0 = keys.from; k0 < keys.to; k0 += TILE) {
		if (s->more && !cut_keys(&keys, nq, k0, &some))
			continue;
		load_v(s, k, a->qkv, b, g, k0);
		transpose_tile(s->v, k, vt);
		load_k(s, k, a->qkv, b, g, k0);
		transpose_tile(s->qk, k, kt);
		for (int64_t i = 0; i < nq; i += MR) {
			const int64_t n = te__h_min(q0 + i - k0, TILE);

			bwd_rows(w, bh, q0, nq, k0, i, q, dout, kt, vt, s->more ? &some : NULL, p,
				 ds, dbias ? dbias + i * s->S + k0 : NULL);
			if (dbias)
				continue;
			if (!s->more) {
				add_keys(s->qk.dp, dq + i * s->qk.dp, ds, k, n, n < TILE);
				continue;
			}
			mask_keys(mask, span_of(&some, i));
			add_masked(dq + i * s->qk.dp, MR, rows(ds, TILE, 1), k, mask, s->qk.dp);
		}
	}
	store_tile(s, s->qk, dbias ? NULL : a->dqkv, head_at(s->at.q, b, h), s->at.q.token, q0, nq,
		   dq, s->scale);
}

static void dq_part(void *arg, int64_t begin, int64_t end)
{
	const struct bwd *w = arg;
	struct dq_tiles *m = te__k_take(sizeof(*m));

	for (int64_t t = begin; t < end; t++)
		dq_tile(w, t / w->s.ntiles, t % w->s.ntiles * TILE, m, NULL);
	te__k_give(m);
}

void te__h_attn_bwd_dq(const struct te_k_attn_bwd *a)
{
	struct bwd w = { a, SHAPE_OF(a) };

	te__k_for(a->batch * a->nheads * w.s.ntiles, grain(&w.s), dq_part, &w);
}

/* a part is a tile of queries of a bias, for all heads that have it */
static void bias_part(void *arg, int64_t begin, int64_t end)
{
	const struct bwd *w = arg;
	const struct shape *s = &w->s;
	const int64_t n = s->x->bias_head ? 1 : s->nheads;
	struct dq_tiles *m = te__k_take(sizeof(*m));

	for (int64_t t = begin; t < end; t++) {
		const int64_t q0 = t % s->ntiles * TILE, h0 = t / s->ntiles;
		float *dbias = w->a->dbias + h0 * s->x->bias_head + q0 * s->S;

		memset(dbias, 0, (size_t)(te__h_min(TILE, s->T - q0) * s->S) * sizeof(*dbias));
		for (int64_t bh = 0; bh < w->a->batch * n; bh++)
			dq_tile(w, bh / n * s->nheads + h0 + bh % n, q0, m, dbias);
	}
	te__k_give(m);
}

void te__h_attn_bwd_bias(const struct te_k_attn_bwd *a)
{
	struct bwd w = { a, SHAPE_OF(a) };

	te__k_for((a->more.bias_head ? a->nheads : 1) * w.s.ntiles, 1, bias_part, &w);
}

static void sinks_part(void *arg, int64_t begin, int64_t end)
{
	const struct te_k_attn_sinks *a = arg;

	for (int64_t h = begin; h < end; h++) {
		double sum = 0.0;
		float was;

		for (int64_t i = 0; i < a->batch * a->seqlen; i++) {
			const int64_t at = (i / a->seqlen * a->nheads + h) * a->seqlen +
					   i % a->seqlen;

			/* lse is -inf, too, where a query has no key */
			if (a->sinks[h] != -INFINITY)
				sum += exp((double)a->sinks[h] - (double)a->lse[at]) *
				       (double)a->delta[at];
		}
		te__h_load(a->dtype, a->dsinks, h, 1, &was);
		was -= (float)sum;
		te__h_store(a->dtype, a->dsinks, h, 1, &was);
	}
}

void te__h_attn_bwd_sinks(const struct te_k_attn_sinks *a)
{
	te__k_for(a->nheads, 1, sinks_part, (void *)(uintptr_t)a);
}
