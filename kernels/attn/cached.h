/*
 * cached.h - arguments of attention to a cache of keys and values. Included by te_k.h, which has
 * the common rules.
 */
#ifndef TE_K_ATTN_CACHED_H
#define TE_K_ATTN_CACHED_H

/*
 * Row r of qkv T [rows, (nheads + 2 nkv) head_dim] is the token at position[r] of sequence[r]. Two
 * launches: append stores the keys and values of all rows in the caches, C [npages, page, nkv,
 * head_dim]; cached writes out T [rows, nheads head_dim], attention of each row to the positions 0
 * to position[r] of its sequence. Position p of sequence s is token p % page of page
 * pages[s * max_pages + p / page], or, if pages is NULL, of page s * max_pages + p / page. Rows
 * differ in sequence or position. Heads, scale, window, softcap, slopes and sinks are as in struct
 * te_k_attn_fwd, and on the host the order of sums: with caches of type T, rows have the bits that
 * it computes.
 *
 * With C E4M3 the head_dim channels of a token and a key/value head are a block as in 1X32
 * (te_k_q): append computes their scale s from their amax, and stores the E8M0 byte of 1 / s in
 * k_scale or v_scale, [npages, page, nkv]. So no scale depends on other tokens, and on the host
 * rows have the bits of a cache of FP32 with the numbers that the codes and scales stand for. A
 * device multiplies sums by 1 / s instead of each element: infinities may become NaN or finite.
 * te_k_attn_step has q and the weights, times 1 / s of their values, as FP16 there: to these come
 * errors of 2^-32 of the largest element of q, and of 2^-40 of the largest weight.
 *
 * A row whose sequence is negative is padding. A row that is outside, because its sequence is nseqs
 * or more, its position is below 0 or at least max_pages * page, or a page up to its own is not one
 * of 0 to npages - 1, adds 1 to *noutside, modulo 2^32. Rows of both kinds store nothing, and their
 * out is 0.
 * A device computes the keys of a row in up to nsplits parts of about equal size, which it joins in
 * their order: parts and ready are memory for that, and ready is left 0. The host uses neither.
 */
#define TE_K_ATTN_CACHED_SPLITS 64 /* the most parts */
#define TE_K_ATTN_CACHED_HEADS 4   /* query heads that share the loads of keys, on a device */
struct te_k_attn_cached {
	const void *qkv;
	void *out;
	void *k, *v;
	const int32_t *sequence, *position; /* [rows] */
	const int32_t *pages;		    /* [nseqs, max_pages], or NULL */
	uint32_t *noutside;		    /* or NULL */
	int64_t rows, nseqs, npages, page, max_pages;
	int32_t nheads, nkv, head_dim;
	float scale;
	int32_t dtype, cache_dtype; /* T: FP32 or BF16; C: E4M3, too */
	int32_t window;
	float softcap;
	float *parts;	 /* [rows, nheads, nsplits, head_dim + 2] */
	uint32_t *ready; /* [rows, nheads], 0 */
	int32_t nsplits; /* 0: 1, without parts and ready */
	uint8_t *k_scale, *v_scale;   /* C E4M3; else NULL */
	const float *slopes, *sinks; /* [nheads], or NULL */
};

/*
 * te_k_rope of the heads of qkv that have positions, append and cached in one launch, on the host
 * with their bits. Rows have different sequences. qkv is undefined after it. A device reads ahead:
 * no kernel that may still run writes sequence, position, pages or the caches. There T is BF16, C
 * BF16 or E4M3, head_dim is a multiple of 16 of at most TE_K_ATTN_STEP_CUDA_HEAD_DIM, there are no
 * slopes and sinks, parts and ready are not used, and nsplits is 1, 2, 4 or 8.
 */
#define TE_K_ATTN_STEP_PARTS 8 /* the most nsplits */
#define TE_K_ATTN_STEP_HEADS 8 /* query heads that share the loads of keys */
#define TE_K_ATTN_STEP_CUDA_HEAD_DIM 128
struct te_k_attn_step {
	struct te_k_attn_cached c;
	float inv_freq[TE_K_ROPE_MAX_HALF]; /* half of head_dim used */
};

#endif
