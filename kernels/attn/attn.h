/* attn.h - arguments of causal attention. Included by te_k.h, which has the common rules. */
#ifndef TE_K_ATTN_H
#define TE_K_ATTN_H

#define TE_K_ATTN_MAX_HEAD_DIM 256
#define TE_K_ATTN_CUDA_HEAD_DIM 128 /* the same, for device kernels */

/*
 * Causal attention on packed heads. qkv T [batch, seqlen, (nheads + 2 nkv) head_dim]; query head
 * h uses key/value head h / (nheads / nkv). out T [batch, seqlen, nheads head_dim]. lse [batch,
 * nheads, seqlen]: natural log of the sum of exp(scale q.k). head_dim is 1 to
 * TE_K_ATTN_MAX_HEAD_DIM, on a device TE_K_ATTN_CUDA_HEAD_DIM; scale is above 0. Probabilities are
 * dropped after normalisation (philox.h, element (head, q, k)). The number of a head is
 * te_k_attn_head(): these heads may be some of more, first_head and those after it.
 * Tokens that are not among a row's keys change no bit of it, except that a device kernel may
 * multiply up to 127 values after its keys, and up to 127 before these, by 0, so that NaN and
 * infinities among them propagate.
 * Query q of a sequence has the keys from max(0, q - window + 1, min(first[q], q)) to q, or with
 * full to the last one; window 0: without that bound. With softcap c above 0, a score s becomes
 * c tanh(s / c). On a device, qkv, out and their
 * gradients must be aligned to 16 bytes if head_dim elements are a multiple of 16 bytes.
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
	int32_t window;
	const int32_t *first; /* [batch, seqlen], or NULL */
	float softcap;
	int32_t full;
};

/*
 * Three launches: pre writes delta[b,h,q] = sum_d out * dout; dkv writes the k and v parts of
 * dqkv, summing the query heads of a group; dq writes the q part. No atomics, so that results are
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
};

/*
 * te_k_attn_bwd.sums: TE_K_ATTN_SUMS_FIRST words, a counter for each 64 queries x 64 columns of dq
 * and, from a multiple of 1024 bytes on, their sums in FP32.
 */
#define TE_K_ATTN_SUMS_FIRST 4

#define te_k_attn_tiles(a) \
	((a)->batch * (a)->nheads * (((a)->seqlen + 63) / 64) * ((a)->head_dim / 64))
#define te_k_attn_counts(a) ((te_k_attn_tiles(a) + TE_K_ATTN_SUMS_FIRST + 255) / 256 * 256)
#define te_k_attn_sums_nbytes(a) (4 * te_k_attn_counts(a) + 4 * 64 * 64 * te_k_attn_tiles(a))

/* Does a launch differ from plain causal attention? */
#define TE_K_ATTN_HAS_MORE(a) ((a)->window || (a)->first || (a)->softcap != 0.0f || (a)->full)

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

#endif
