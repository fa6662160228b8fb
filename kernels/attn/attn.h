/* attn.h - arguments of attention. Included by te_k.h, which has the common rules. */
#ifndef TE_K_ATTN_H
#define TE_K_ATTN_H

#define TE_K_ATTN_MAX_HEAD_DIM 256
#define TE_K_ATTN_CUDA_HEAD_DIM 256	 /* the same, for device kernels */
#define TE_K_ATTN_CUDA_HEAD_DIM_FP32 128 /* and for these in FP32, without a cache */

/* distances in elements between sequences, tokens and heads; the channels of a head are adjacent */
struct te_k_strides {
	int64_t batch, token, head;
};

/*
 * What both passes have besides packed causal attention, for which all of it is 0.
 *
 * Operands: if k is not NULL, qkv has the queries only, and qs, ks, vs and os are the strides of
 * q, k, v and out, and of their gradients. klen, the number of keys and values, and head_dim_v, the
 * channels of v and out, are seqlen and head_dim if they are 0.
 *
 * Offsets: with q_offsets, batch is 1 and its tokens are of nseqs sequences. Sequence i has the
 * queries q_offsets[i] to q_offsets[i + 1] - 1; k_offsets, or q_offsets if that is NULL, has keys
 * in the same way. Offsets ascend from 0 to at most seqlen, k_offsets to klen. Offsets of keys are
 * clamped to that, and a query that is in no sequence has no keys.
 *
 * Keys: te_k_attn_keys(). With full, keys after the query are seen, too, up to right ones, or all
 * if right is 0. The diagonal, the key that query 0 of a sequence is at, is its first key or, with
 * bottom, such that the last query is at the last key.
 *
 * Scores, after scale and softcap: bias[h * bias_head + q * klen + k] is added, in a launch with
 * offsets too by tokens of the launch, and slopes[h] |k - diagonal of q| is subtracted. A score of
 * -inf is a key that is not seen. sinks[h] is the score of one more key, with a value of 0. Without
 * a key and a sink, out is 0 and lse -inf. h: number of a head in this launch.
 */
struct te_k_attn_more {
	const void *k, *v;
	struct te_k_strides qs, ks, vs, os;
	int64_t klen;
	const int32_t *q_offsets, *k_offsets; /* [nseqs + 1], or NULL */
	const float *bias, *slopes, *sinks;   /* slopes, sinks: [nheads]; or NULL */
	int64_t bias_head;		      /* 0: all heads have one bias */
	int32_t nseqs, head_dim_v;
	int32_t right, bottom;
};

/*
 * Attention on heads, by default causal and packed: qkv T [batch, seqlen, (nheads + 2 nkv)
 * head_dim]; query head h uses key/value head h / (nheads / nkv). out T [batch, seqlen, nheads
 * head_dim]. lse [batch, nheads, seqlen]: natural log of the sum of exp(scale q.k). head_dim is 1
 * to TE_K_ATTN_MAX_HEAD_DIM, on a device TE_K_ATTN_CUDA_HEAD_DIM, or in FP32
 * TE_K_ATTN_CUDA_HEAD_DIM_FP32; scale is above 0. Probabilities are dropped after normalisation
 * (philox.h, element (head, q, k)). The number of a head is te_k_attn_head(): these heads may be
 * some of more, first_head and those after it.
 * Tokens that are not among a row's keys, te_k_attn_keys(), change no bit of it, except that a
 * device kernel may multiply up to 127 values after its keys, and up to 127 before these, by 0, so
 * that NaN and infinities among them propagate. With softcap c above 0, a score s becomes
 * c tanh(s / c). On a device, qkv, out and their gradients must be aligned to 16 bytes if head_dim
 * elements are a multiple of 16 bytes.
 * q is of out [batch * seqlen, nheads * head_dim], without block scaling; on a device of BF16 only.
 */
struct te_k_attn_fwd {
	const void *qkv;
	void *out; /* or NULL if only q is wanted */
	float *lse;
	const uint64_t *seed, *offset; /* used when threshold > 0 */
	int64_t batch, seqlen;
	struct te_k_q q;
	int32_t nheads, nkv, head_dim;
	float scale;
	uint32_t threshold; /* dropout, of 65536 */
	uint32_t tag;
	int32_t dtype;
	int32_t first_head, other_heads; /* other_heads: those that are not here */
	int32_t window;	      /* keys that are not before the diagonal - window + 1; 0: all */
	const int32_t *first; /* [batch, seqlen]: first tokens of documents; or NULL */
	float softcap;
	int32_t full;
	struct te_k_attn_more more;
};

/*
 * Three launches: pre writes delta[b,h,q] = sum_d out * dout; dkv writes the k and v parts of
 * dqkv, summing the query heads of a group; dq writes the q part. Bias, after pre, writes dbias,
 * summing sequences and, if all heads have one bias, heads. No atomics, so that results are
 * reproducible. A device may compute everything in dkv: then dq launches nothing, and unless pre
 * does, delta is not written. With sums a device may add to dq block by block of keys, in a fixed
 * order; pre clears the counters.
 */
struct te_k_attn_bwd {
	const void *qkv, *out, *dout;
	const float *lse;
	float *delta; /* [batch, nheads, seqlen] */
	void *dqkv;   /* T, shaped like qkv */
	const uint64_t *seed, *offset;
	int64_t batch, seqlen;
	int32_t nheads, nkv, head_dim;
	float scale;
	uint32_t threshold;
	uint32_t tag;
	int32_t dtype;
	int32_t first_head, other_heads;
	int32_t window;
	const int32_t *first;
	float softcap;
	int32_t full;
	uint32_t *sums;
	struct te_k_attn_more more;
	/* with more.k; dqkv is the gradient of q then. On the host one may be NULL */
	void *dk, *dv;
	float *dbias;  /* shaped like bias, summed over sequences; or NULL */
};

/* gradients of sinks are added to dsinks; after pre */
struct te_k_attn_sinks {
	const float *lse, *delta, *sinks; /* as above */
	void *dsinks;			  /* [nheads], of dtype FP32 or BF16 */
	int64_t batch, seqlen;
	int32_t nheads, dtype;
};

/*
 * te_k_attn_bwd.sums: TE_K_ATTN_SUMS_FIRST words, a counter for each 64 queries x 64 columns of dq,
 * with documents the least first key of each tile of 64 queries and all later ones, [batch,
 * ceil(seqlen / 64)], and, from a multiple of 1024 bytes on, sums in FP32.
 */
#define TE_K_ATTN_SUMS_FIRST 4

#define te_k_attn_tiles(a) \
	((a)->batch * (a)->nheads * (((a)->seqlen + 63) / 64) * ((a)->head_dim / 64))
#define te_k_attn_starts_at(a) (te_k_attn_tiles(a) + TE_K_ATTN_SUMS_FIRST)
#define te_k_attn_counts(a) \
	((te_k_attn_starts_at(a) + (a)->batch * (((a)->seqlen + 63) / 64) + 255) / 256 * 256)
#define te_k_attn_sums_nbytes(a) (4 * te_k_attn_counts(a) + 4 * 64 * 64 * te_k_attn_tiles(a))

/* Does a launch differ from packed causal attention, and in what only more has? */
#define TE_K_ATTN_HAS_NEW(a)                                                                  \
	((a)->more.k || (a)->more.klen || (a)->more.head_dim_v || (a)->more.right ||            \
	 (a)->more.q_offsets || (a)->more.bias || (a)->more.slopes || (a)->more.sinks ||        \
	 ((a)->full && ((a)->window || (a)->first)))
#define TE_K_ATTN_HAS_MORE(a)                                                                 \
	((a)->window || (a)->first || (a)->softcap != 0.0f || (a)->full || TE_K_ATTN_HAS_NEW(a))

/* number of head bh = b * nheads + h among all heads; nheads: heads in this launch */
TE_K_INLINE uint32_t te_k_attn_head(int64_t bh, int32_t nheads, int32_t first, int32_t others)
{
	return (uint32_t)(bh + first + bh / nheads * others);
}

/* first key of query q; first: of its document */
TE_K_INLINE int64_t te_k_attn_first(int64_t q, int32_t window, int64_t first)
{
	first = first < q ? first : q;
	first = window && first < q - window + 1 ? q - window + 1 : first;
	return first > 0 ? first : 0;
}

/* where heads are: from qkv, k and v of more if it has them, and out on */
struct te_k_attn_views {
	struct te_k_strides q, k, v, out;
	int64_t k_at, v_at; /* elements before k and v, in a packed qkv */
	int32_t head_dim_v;
};

#define TE_K_ATTN_VIEWS(a) \
	te_k_attn_views(&(a)->more, (a)->seqlen, (a)->nheads, (a)->nkv, (a)->head_dim)

TE_K_INLINE struct te_k_strides te_k_attn_dense(int64_t ntokens, int64_t nheads, int64_t head_dim)
{
	struct te_k_strides s;

	s.head = head_dim;
	s.token = nheads * head_dim;
	s.batch = ntokens * s.token;
	return s;
}

/* elements from the first to the last */
TE_K_INLINE int64_t te_k_attn_extent(struct te_k_strides s, int64_t batch, int64_t ntokens,
				     int64_t nheads, int64_t head_dim)
{
	return batch && ntokens ? (batch - 1) * s.batch + (ntokens - 1) * s.token +
					  (nheads - 1) * s.head + head_dim :
				  0;
}

TE_K_INLINE struct te_k_attn_views te_k_attn_views(const struct te_k_attn_more *m, int64_t seqlen,
						   int32_t nheads, int32_t nkv, int32_t head_dim)
{
	struct te_k_attn_views w;

	w.head_dim_v = m->head_dim_v ? m->head_dim_v : head_dim;
	if (m->k) {
		w.q = m->qs;
		w.k = m->ks;
		w.v = m->vs;
		w.out = m->os;
		w.k_at = w.v_at = 0;
		return w;
	}
	w.q = w.k = w.v = te_k_attn_dense(seqlen, nheads + 2 * (int64_t)nkv, head_dim);
	w.out = te_k_attn_dense(seqlen, nheads, head_dim);
	w.k_at = (int64_t)nheads * head_dim;
	w.v_at = w.k_at + (int64_t)nkv * head_dim;
	return w;
}

/* what decides on the keys of a query */
struct te_k_attn_mask {
	int64_t qlen, klen;
	const int32_t *first, *q_offsets, *k_offsets;
	int32_t nseqs, window, full, right, bottom;
};

#define TE_K_ATTN_MASK(a)                                                                     \
	{                                                                                       \
		(a)->seqlen, (a)->more.klen ? (a)->more.klen : (a)->seqlen, (a)->first,         \
			(a)->more.q_offsets,                                                    \
			(a)->more.k_offsets ? (a)->more.k_offsets : (a)->more.q_offsets,        \
			(a)->more.nseqs, (a)->window, (a)->full, (a)->more.right,               \
			(a)->more.bottom                                                        \
	}

/* keys from to to - 1, none if these are equal; at: the diagonal, perhaps outside of them */
struct te_k_attn_span {
	int64_t from, to, at;
};

/* the least i in [lo, n) with x[i] > value, or n; x ascends */
TE_K_INLINE int64_t te_k_attn_above(const int32_t *x, int64_t lo, int64_t n, int64_t value)
{
	while (lo < n) {
		const int64_t mid = lo + (n - lo) / 2;

		if (x[mid] > value)
			n = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

TE_K_INLINE int64_t te_k_attn_clamp(int64_t x, int64_t most)
{
	return x < 0 ? 0 : x > most ? most : x;
}

/* keys of query q of sequence b, never outside of 0 to klen */
TE_K_INLINE struct te_k_attn_span te_k_attn_keys(const struct te_k_attn_mask *m, int64_t b,
						 int64_t q)
{
	int64_t q0 = 0, k0 = 0, qend = m->qlen, kend = m->klen;
	struct te_k_attn_span s;

	if (m->q_offsets) {
		const int64_t i = te_k_attn_above(m->q_offsets, 0, m->nseqs + 1, q) - 1;

		if (i < 0 || i >= m->nseqs) {
			q0 = kend = 0;
		} else {
			q0 = m->q_offsets[i];
			qend = m->q_offsets[i + 1];
			k0 = te_k_attn_clamp(m->k_offsets[i], m->klen);
			kend = te_k_attn_clamp(m->k_offsets[i + 1], m->klen);
		}
	} else if (m->first) {
		const int32_t *first = m->first + b * m->qlen;

		q0 = k0 = te_k_attn_first(q, 0, first[q]);
		if (m->full)
			qend = kend = te_k_attn_above(first, q + 1, m->qlen, q);
	}
	s.at = k0 + q - q0 + (m->bottom ? kend - k0 - (qend - q0) : 0);
	s.from = k0;
	s.to = kend;
	if (m->window && s.from < s.at - m->window + 1)
		s.from = s.at - m->window + 1;
	if ((!m->full || m->right) && s.to > s.at + m->right + 1)
		s.to = s.at + m->right + 1;
	if (s.to <= s.from)
		s.from = s.to = te_k_attn_clamp(s.to, m->klen);
	return s;
}

#endif
