/*
 * embed.h - arguments of token and position embeddings. Included by te_k.h, which has the common
 * rules.
 */
#ifndef TE_K_EMBED_H
#define TE_K_EMBED_H

/*
 * y = T(table[token - first] + pos[r % seqlen]), or, if position is not NULL, pos[position[r]], and
 * nothing for a position outside [0, npos). A token outside [first, first + vocab) selects a
 * row of zeros. *noutside += tokens outside [0, ntokens), modulo 2^32. Tables are FP32; with split
 * BF16, and FP32 by their remainders, if they have some: te_round_join()
 */
struct te_k_embed_fwd {
	const int32_t *tokens; /* [rows] */
	const void *table;     /* [vocab, width] */
	const void *pos;       /* [max_pos, width] or NULL */
	void *y;	       /* T [rows, width] */
	uint32_t *noutside;    /* or NULL */
	int64_t rows, seqlen, vocab, width;
	const int32_t *position; /* [rows], or NULL */
	int64_t npos;		 /* rows of pos; used with position */
	int64_t ntokens; /* vocabulary size over all ranks */
	int32_t dtype;
	int32_t first;
	const uint16_t *table_rest, *pos_rest; /* split: as table and pos; or NULL */
	int32_t split;
	int32_t pad;
};

/* dtable[v] += the sum of dy over rows with token first + v, in ascending row order; rounded to the
 * table's type */
struct te_k_embed_bwd {
	const int32_t *tokens;
	const void *dy; /* T */
	void *dtable; /* FP32 or BF16 */
	int64_t rows, vocab, width;
	int32_t dtype;
	int32_t first;
	int32_t table_dtype;
	int32_t pad;
};

/* dpos[t] += the sum over the batch of dy[b][t], in ascending b; rounded to its type */
struct te_k_pos_bwd {
	const void *dy;
	void *dpos; /* FP32 or BF16 */
	int64_t batch, seqlen, width;
	int32_t dtype;
	int32_t table_dtype;
};

#endif
