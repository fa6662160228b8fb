/*
 * rope.h - arguments of rotary position embedding (Su et al., arXiv 2104.09864). Included by
 * te_k.h, which has the common rules.
 */
#ifndef TE_K_ROPE_H
#define TE_K_ROPE_H

#define TE_K_ROPE_MAX_HALF 128 /* largest head_dim / 2 */
#define TE_K_ROPE_CUDA_HALF 64 /* the same, for device kernels */

/*
 * Rotate the first nrot of the nheads heads of every row and copy the others. Row r has position
 * r % seqlen or, if position is not NULL, position[r]; if first is not NULL, r % seqlen less the
 * index in its sequence of the first token of its document, which is te_k_attn_first(). With
 * half = head_dim / 2, c = cos(angle) and s = sin(angle), negated when inverse:
 *	y[i] = T(x[i] * c - x[i + half] * s)
 *	y[i + half] = T(x[i + half] * c + x[i] * s)
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
	int32_t pad;
	const int32_t *position; /* [rows], or NULL */
	const int32_t *first;	 /* [rows], or NULL */
	float inv_freq[TE_K_ROPE_MAX_HALF]; /* half of them used; angle = float(pos) * inv_freq */
};

/* position of row r */
TE_K_INLINE int64_t te_k_rope_position(const struct te_k_rope *a, int64_t r)
{
	const int64_t at = a->position ? a->position[r] : r % a->seqlen;

	if (a->position)
		return at;
	return a->first ? at - te_k_attn_first(at, 0, a->first[r]) : at;
}

#endif
