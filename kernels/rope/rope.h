/*
 * rope.h - arguments of rotary position embedding (Su et al., arXiv 2104.09864). Included by
 * te_k.h, which has the common rules.
 */
#ifndef TE_K_ROPE_H
#define TE_K_ROPE_H

#define TE_K_ROPE_MAX_HALF 128 /* largest head_dim / 2 */

/*
 * Rotate the first nrot of the nheads heads of every row and copy the others. Row r has position
 * r % seqlen or, if position is not NULL, position[r]; if first is not NULL, r % seqlen less the
 * index in its sequence of the first token of its document, which is te_k_attn_first(). With
 * c = cos(angle) and s = sin(angle), negated when inverse, the elements i and j of pair p:
 *	y[i] = T(x[i] * c - x[j] * s)
 *	y[j] = T(x[j] * c + x[i] * s)
 * i = p and j = p + head_dim / 2, or with interleaved, i = 2 p and j = 2 p + 1.
 * y may be x, if nothing is written to q.
 */
struct te_k_rope {
	const void *x; /* T [rows, nheads * head_dim] */
	void *y;       /* T, or NULL if only q is wanted */
	int64_t rows, seqlen;
	struct te_k_q q;
	int32_t nheads, nrot, head_dim;
	int32_t inverse; /* 1: backward, rotate by the opposite angle */
	int32_t dtype;
	int32_t interleaved;
	const int32_t *position; /* [rows], or NULL */
	const int32_t *first;	 /* [rows], or NULL */
	/* by pair, the first head_dim / 2 used; angle = float(position) * inv_freq */
	float inv_freq[TE_K_ROPE_MAX_HALF];
};

/* element i of a head is the second of its pair */
TE_K_INLINE int te_k_rope_is_second(const struct te_k_rope *a, int i)
{
	return a->interleaved ? i & 1 : i >= a->head_dim / 2;
}

/* the pair of element i */
TE_K_INLINE int te_k_rope_pair(const struct te_k_rope *a, int i)
{
	return a->interleaved ? i / 2 : i % (a->head_dim / 2);
}

/* the other element of the pair of element i */
TE_K_INLINE int te_k_rope_other(const struct te_k_rope *a, int i)
{
	const int half = a->head_dim / 2;

	return a->interleaved ? i ^ 1 : i < half ? i + half : i - half;
}

/* position of row r */
TE_K_INLINE int64_t te_k_rope_position(const struct te_k_rope *a, int64_t r)
{
	const int64_t at = a->position ? a->position[r] : r % a->seqlen;

	if (a->position)
		return at;
	return a->first ? at - te_k_attn_first(at, 0, a->first[r]) : at;
}

#endif
