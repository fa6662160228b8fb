/* plan.c - which attention sm90.cu computes, and its arguments for it. */
#include "config.h"

#include <string.h>

#include <te/dtype.h>

#include "kernels/attn/sm90.h"

#define MAX_EXTENT (1 << 28) /* coordinates of boxes outside of an array are int32_t, too */
#define CACHE_NBYTES (32 << 20) /* keys and values in L2 at the same time */

static const char *declines(const struct te_k_attn_fwd *a)
{
	if (a->dtype != TE_DTYPE_BF16)
		return "it is not BF16";
	if (a->head_dim != 64 && a->head_dim != 128)
		return "head_dim is neither 64 nor 128";
	if (a->threshold)
		return "it has dropout";
	if (TE_K_ATTN_HAS_MORE(a))
		return "it is not plain causal attention";
	if (!a->out || a->q.row || a->q.col || a->q.amax || a->q.noop)
		return "its result is quantized";
	if (((uintptr_t)a->qkv | (uintptr_t)a->out) % 16)
		return "qkv or out is not aligned to 16 bytes";
	if (a->batch < 1 || a->seqlen < 1)
		return "it is empty";
	if (a->batch > MAX_EXTENT || a->seqlen > MAX_EXTENT ||
	    ((int64_t)a->nheads + 2 * (int64_t)a->nkv) * a->head_dim > MAX_EXTENT)
		return "an extent is above 2^28";
	return NULL;
}

/* heads at a time: all of nheads, or a part of nsms whose items fill rounds of blocks */
static int32_t at_once(const struct te_k_attn_fwd *a, int64_t nheads, int32_t nsms)
{
	const int64_t head_nbytes = 4 * a->seqlen * a->head_dim * a->nkv / a->nheads + 1;
	const int64_t most = CACHE_NBYTES / head_nbytes;
	int32_t n = 1;

	if (nheads <= most || nheads <= nsms / 8)
		return (int32_t)nheads;
	while (n < 8 && nsms / n > most)
		n++;
	return nsms / n > 1 ? nsms / n : 1;
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
	s->scale = a->scale;
	s->seqlen = (int32_t)a->seqlen;
	s->nheads = a->nheads;
	s->nkv = a->nkv;
	s->nrows = (s->seqlen + ATTN_SM90_STRIP - 1) / ATTN_SM90_STRIP * ATTN_SM90_STRIP;
	s->nblocks = (s->nrows + rows - 1) / rows;
	nitems = nheads * s->nblocks;
	if (nitems > MAX_EXTENT)
		return "it has more than 2^28 blocks of rows";
	s->nmatrices = (int32_t)nheads;
	s->at_once = at_once(a, nheads, nsms);
	ret->head_dim = d;
	ret->nblocks = (int32_t)(nitems < nsms ? nitems : nsms);
	ret->qkv = (struct te_sm90_map){
		a->qkv, ((int64_t)a->nheads + 2 * a->nkv) * d, a->seqlen, a->batch, 2,
		ATTN_SM90_BOX,	ATTN_SM90_BOX,
	};
	ret->out = ret->qkv;
	ret->out.p = a->out;
	ret->out.nx = (int64_t)a->nheads * d;
	return NULL;
}
