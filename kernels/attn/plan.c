/* plan.c - which attention sm90.cu computes, and its arguments for it. */
#include "config.h"

#include <string.h>

#include <te/dtype.h>

#include "kernels/attn/sm90.h"

#define MAX_EXTENT (1 << 28) /* coordinates of boxes outside of an array are int32_t, too */
#define CACHE_NBYTES ((int64_t)64 << 20) /* keys and values in L2, and about to be */
#define LEAST_PART 12			 /* a part of the multiprocessors that is allowed anyway */
#define BWD_CACHE_NBYTES ((int64_t)32 << 20)
#define BWD_LEAST_HEADS 32
#define MAX_SMS 256
#define MAX_DEALT (1 << 16) /* items whose order is searched for */
#define TILE_COST 5
#define ITEM_COST 6

/* the reasons of both passes; other: more than a window or documents; width: columns of qkv */
static const char *declines_any(int32_t dtype, int32_t head_dim, uint32_t threshold, int other,
				int64_t batch, int64_t seqlen, int64_t width)
{
	if (dtype != TE_DTYPE_BF16)
		return "it is not BF16";
	if (head_dim != 64 && head_dim != 128)
		return "head_dim is neither 64 nor 128";
	if (threshold)
		return "it has dropout";
	if (other)
		return "it is not causal attention of all keys, a window or documents";
	if (batch < 1 || seqlen < 1)
		return "it is empty";
	if (batch > MAX_EXTENT || seqlen > MAX_EXTENT || width > MAX_EXTENT)
		return "an extent is above 2^28";
	return NULL;
}

/* is a launch more than causal attention in a window or documents? */
#define HAS_OTHER(a) ((a)->softcap != 0.0f || (a)->full || TE_K_ATTN_HAS_NEW(a))

/* 0: the window leaves out no key */
static int32_t window_of(int32_t window, int64_t seqlen)
{
	return window < seqlen ? window : 0;
}

static int64_t width_of(int32_t nheads, int32_t nkv, int32_t head_dim)
{
	return ((int64_t)nheads + 2 * (int64_t)nkv) * head_dim;
}

static const char *declines(const struct te_k_attn_fwd *a)
{
	if (((uintptr_t)a->qkv | (uintptr_t)a->out) % 16)
		return "qkv or out is not aligned to 16 bytes";
	return declines_any(a->dtype, a->head_dim, a->threshold, HAS_OTHER(a), a->batch,
			    a->seqlen, width_of(a->nheads, a->nkv, a->head_dim));
}

/*
 * The largest sum of costs of a block, with n heads at a time. An item costs TILE_COST for each
 * tile and ITEM_COST more. Items go to blocks as in item_of() of sm90.cu, n or fewer of one length
 * after each other.
 */
static int64_t longest(int32_t nheads, int32_t nrows, int32_t rows, int32_t window, int32_t nsms,
		       int32_t n)
{
	const int64_t most = window ? (window + rows) / ATTN_SM90_KEYS + 1 : INT32_MAX;
	int64_t more[MAX_SMS + 1] = { 0 }; /* than the block before */
	int64_t k = 0, cost = 0, max = 0;

	for (int32_t head = 0; head < nheads; head += n)
		for (int32_t end = nrows; end > 0; end -= rows) {
			int64_t tiles = (end + ATTN_SM90_KEYS - 1) / ATTN_SM90_KEYS;
			int64_t left = nheads - head, len, from;

			tiles = tiles < most ? tiles : most;
			for (left = left < n ? left : n; left > 0; left -= len, k += len) {
				len = nsms - k % nsms < left ? nsms - k % nsms : left;
				from = k / nsms % 2 ? nsms - k % nsms - len : k % nsms;
				more[from] += TILE_COST * tiles + ITEM_COST;
				more[from + len] -= TILE_COST * tiles + ITEM_COST;
			}
		}
	for (int32_t i = 0; i < nsms; i++) {
		cost += more[i];
		max = cost > max ? cost : max;
	}
	return max;
}

/*
 * Heads at a time: few, so that their keys and values stay in L2, but such that blocks have about
 * the same work. Measured on an H100, time grows by a few percent with the bytes.
 */
static int32_t at_once(int32_t nheads, int32_t nrows, int32_t rows, int32_t window, int32_t nsms,
		       int64_t head_nbytes)
{
	static const int32_t parts[] = { 1, 2, 3, 4, 6, 8, 12, 16 };
	int32_t best = nheads;
	int64_t best_cost = INT64_MAX;

	if (nsms > MAX_SMS || (int64_t)nheads * nrows / rows > MAX_DEALT)
		return best < nsms ? best : nsms / 16 > 1 ? nsms / 16 : 1;
	for (int i = -1; i < (int)(sizeof(parts) / sizeof(*parts)); i++) {
		const int32_t n = i < 0 ? nheads : nsms / parts[i];
		int64_t cost;

		if (n < 1 || n > nheads ||
		    (n * head_nbytes > CACHE_NBYTES && n > nsms / LEAST_PART))
			continue;
		cost = longest(nheads, nrows, rows, window, nsms, n) *
		       (16 * CACHE_NBYTES + n * head_nbytes);
		if (cost < best_cost) {
			best_cost = cost;
			best = n;
		}
	}
	return best;
}

const char *te__attn_sm90_plan(const struct te_k_attn_fwd *a, int32_t nsms,
			       struct te_attn_sm90_plan *ret)
{
	const char *why = declines(a);
	struct te_attn_sm90 *s = &ret->args;
	const int32_t d = a->head_dim, rows = ATTN_SM90_ROWS(d);
	const int64_t nheads = a->batch * a->nheads;
	int64_t nitems;

	if (why)
		return why;
	memset(ret, 0, sizeof(*ret)); /* padding, too: arguments are compared as bytes */
	s->lse = a->lse;
	s->q = a->q;
	s->scale = a->scale;
	s->has_out = a->out != NULL;
	s->seqlen = (int32_t)a->seqlen;
	s->nheads = a->nheads;
	s->nkv = a->nkv;
	s->nrows = (s->seqlen + ATTN_SM90_STRIP - 1) / ATTN_SM90_STRIP * ATTN_SM90_STRIP;
	s->nblocks = (s->nrows + rows - 1) / rows;
	nitems = nheads * s->nblocks;
	if (nitems > MAX_EXTENT)
		return "it has more than 2^28 blocks of rows";
	s->nmatrices = (int32_t)nheads;
	s->window = window_of(a->window, a->seqlen);
	s->first = a->first;
	s->at_once = at_once(s->nmatrices, s->nrows, rows, s->window, nsms,
			     4 * a->seqlen * d * a->nkv / a->nheads);
	ret->head_dim = d;
	ret->nblocks = (int32_t)(nitems < nsms ? nitems : nsms);
	ret->qkv = (struct te_sm90_map){
		a->qkv, width_of(a->nheads, a->nkv, d), a->seqlen, a->batch, 2,
		ATTN_SM90_BOX, ATTN_SM90_BOX,
	};
	ret->out = ret->qkv;
	ret->out.p = a->out;
	ret->out.nx = (int64_t)a->nheads * d;
	return NULL;
}

/*
 * Heads of keys whose items are taken level by level, in equal shares: few, so that their queries
 * and sums stay in L2, but several, since items of one head wait for each other.
 */
static int32_t bwd_at_once(int32_t nheads, int64_t head_nbytes)
{
	const int64_t most = BWD_CACHE_NBYTES / head_nbytes;
	const int32_t n = most > BWD_LEAST_HEADS ? (int32_t)most : BWD_LEAST_HEADS;
	const int32_t rounds = (nheads + n - 1) / n;

	return (nheads + rounds - 1) / rounds;
}

const char *te__attn_bwd_sm90_plan(const struct te_k_attn_bwd *a, int32_t nsms,
				   struct te_attn_bwd_sm90_plan *ret)
{
	const int64_t width = width_of(a->nheads, a->nkv, a->head_dim);
	const char *why = declines_any(a->dtype, a->head_dim, a->threshold, HAS_OTHER(a),
				       a->batch, a->seqlen, width);
	struct te_attn_bwd_sm90 *s = &ret->args;
	const int32_t d = a->head_dim, rows = ATTN_SM90_BWD_ROWS;
	const int64_t nheads = a->batch * a->nkv;
	int64_t nitems;

	if (((uintptr_t)a->qkv | (uintptr_t)a->dout | (uintptr_t)a->dqkv) % 16)
		return "qkv or a gradient is not aligned to 16 bytes";
	if (why)
		return why;
	if (!a->sums)
		return "it has no memory for sums";
	memset(ret, 0, sizeof(*ret));
	s->lse = a->lse;
	s->delta = a->delta;
	s->next = a->sums;
	s->ready = s->next + TE_K_ATTN_SUMS_FIRST;
	s->sums = (float *)(s->next + te_k_attn_counts(a));
	s->scale = a->scale;
	s->seqlen = (int32_t)a->seqlen;
	s->nheads = a->nheads;
	s->nkv = a->nkv;
	s->group = a->nheads / a->nkv;
	s->nblocks = (s->seqlen + rows - 1) / rows;
	s->ntiles = (s->seqlen + ATTN_SM90_BOX - 1) / ATTN_SM90_BOX;
	nitems = nheads * s->nblocks;
	if (nitems > MAX_EXTENT || a->batch * a->nheads * a->seqlen > INT32_MAX)
		return "it has more than 2^28 blocks of rows, or 2^31 rows";
	s->nmatrices = (int32_t)nheads;
	s->window = window_of(a->window, a->seqlen);
	s->first = a->first;
	s->starts = (const int32_t *)a->sums + te_k_attn_starts_at(a);
	/* two operands in BF16 and sums in FP32, of the queries of a group */
	s->at_once = bwd_at_once(s->nmatrices, 8 * a->seqlen * d * s->group);
	ret->head_dim = d;
	ret->nblocks = (int32_t)(nitems < nsms ? nitems : nsms);
	ret->qkv = (struct te_sm90_map){
		a->qkv, width, a->seqlen, a->batch, 2, ATTN_SM90_BOX, ATTN_SM90_BOX,
	};
	ret->dqkv = ret->dout = ret->qkv;
	ret->dqkv.p = a->dqkv;
	ret->dout.p = a->dout;
	ret->dout.nx = (int64_t)a->nheads * d;
	return NULL;
}
