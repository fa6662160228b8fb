/*
 * elem.h - arguments of the elementwise kernels. Included by te_k.h, which has the common rules.
 */
#ifndef TE_K_ELEM_H
#define TE_K_ELEM_H

/* y = T(x + bias); may be in place */
struct te_k_bias_fwd {
	const void *x, *bias; /* T [rows, cols], T [cols] */
	void *y;
	int64_t rows, cols;
	int32_t dtype;
	int32_t pad;
};

/* y = T(a + b); y may be a or b */
struct te_k_add {
	const void *a, *b;
	void *y;
	int64_t n;
	int32_t dtype;
	int32_t pad;
};

/* y = T(x * factor); y may be x */
struct te_k_scaled {
	const void *x;
	void *y;
	int64_t n;
	float factor;
	int32_t dtype;
};

/*
 * y = kept ? T(x * 65536/(65536-threshold)) : 0; the mask is a function of (seed, offset, tag,
 * number), see philox.h. Backward is the same launch on dy. In place allowed. The factor is
 * one FP32 division; threshold < 65536. The number of element i is i; where x is a part of a larger
 * tensor, of which it has runs of elements, it is first + i / run * stride + i % run.
 */
struct te_k_dropout {
	const void *x;
	void *y;
	const uint64_t *seed, *offset;
	int64_t n;
	uint32_t threshold; /* round(p * 65536) */
	uint32_t tag;
	int32_t dtype;
	int32_t pad;
	int64_t run, stride, first; /* multiples of 8; run 0: not a part */
};

/* number of the group of 8 elements in the larger tensor */
TE_K_INLINE uint64_t te_k_dropout_group(const struct te_k_dropout *a, uint64_t group)
{
	const uint64_t run = (uint64_t)a->run / 8;

	return !run ? group : ((uint64_t)a->first + group / run * (uint64_t)a->stride) / 8 +
			      group % run;
}

/* y [cols, rows] = the transpose of x; with scale_inv, *y_scale_inv = *scale_inv */
struct te_k_transpose {
	const void *x; /* [rows, cols] */
	void *y;
	const float *scale_inv; /* both or neither */
	float *y_scale_inv;
	const float *noop;
	int64_t rows, cols;
	int32_t elem; /* bytes of an element: 1, 2 or 4 */
	int32_t pad;
};

/*
 * Heads of tokens, between ranks that divide the tokens of sequences and ranks that divide heads.
 * Each of nranks has nheads / nranks query heads and kv heads of keys and of values: nkv / nranks,
 * or one that nranks / nkv ranks share. nkv and kv are 0 where there are only query heads.
 *
 * heads_split: parts = the heads that each rank has. heads_join: the reverse; a head that ranks
 * share is T(sum), an FP32 sum in the order of ranks.
 */
struct te_k_heads {
	void *tokens; /* T [nseqs, ntokens, nheads + 2 nkv, head_dim] */
	void *parts;  /* T [nseqs, nranks, ntokens, nheads / nranks + 2 kv, head_dim] */
	int64_t nseqs, ntokens;
	int32_t nranks, nheads, nkv, kv, head_dim;
	int32_t dtype;
};

/* ranks that have the same head of keys and values */
TE_K_INLINE int32_t te_k_heads_sharers(const struct te_k_heads *a)
{
	return a->nkv && a->nranks > a->nkv ? a->nranks / a->nkv : 1;
}

/*
 * Offset of head h of a token in the parts of its sequence, for the first rank with this head. The
 * next rank has it te_k_heads_part() elements further.
 */
TE_K_INLINE int64_t te_k_heads_at(const struct te_k_heads *a, int64_t token, int32_t h)
{
	const int32_t q = a->nheads / a->nranks;
	int32_t rank, own; /* own: number among the heads of a token in a part */

	if (h < a->nheads) {
		rank = h / q;
		own = h - rank * q;
	} else {
		const int32_t values = h >= a->nheads + a->nkv;
		const int32_t k = h - a->nheads - values * a->nkv;

		rank = k / a->kv * te_k_heads_sharers(a);
		own = q + values * a->kv + k % a->kv;
	}
	return ((rank * a->ntokens + token) * (q + 2 * a->kv) + own) * a->head_dim;
}

/* elements of a part */
TE_K_INLINE int64_t te_k_heads_part(const struct te_k_heads *a)
{
	return a->ntokens * (a->nheads / a->nranks + 2 * a->kv) * a->head_dim;
}

/* used = next + index; next += advance */
struct te_k_rng_next {
	uint64_t *next, *used;
	uint64_t index, advance;
};

#endif
