/*
 * te/kernel.h - the library's kernels as calls on tensors, without ops and plans.
 *
 * Every call checks its arguments, queues kernels on the stream and returns; it can be captured.
 * Results are bit-identical to the op in te/op.h. A call allocates nothing. ws is device scratch
 * memory, aligned to 256 bytes, of at least as many bytes as the function ..._ws_nbytes returns for
 * the same extents; it must remain until the queued work has run. It may be NULL, with 0 bytes, if
 * that function returns 0.
 *
 * x, y and gradients are FP32 or BF16, all of one type, called T below; all extents but the last
 * count as rows. Statistics, gains and the gradients of gains and biases are FP32. A tensor that is
 * written must not overlap another argument, unless the call's comment allows it to be the same.
 *
 * Quantized output: with quant and q, a call also casts its result to FP8 by a slot of quant,
 * bit-identical to te_quantize() of the result. The result itself is then optional (NULL), unless
 * the recipe computes the scale from the amax of the same tensor (fp8-current), which reads the
 * result, or the call's comment forbids it. RoPE, attention and the backward pass of norms take a q
 * with one scale, not with block scaling (-EOPNOTSUPP).
 *
 * Thread: any. A stream may be used by one thread at a time, and a tensor by several threads that
 * only read it.
 * Errors: -EINVAL, -TE_EDTYPE, -TE_ESHAPE, and the backend's codes; the message names the argument.
 * opts may be NULL if all defaults are valid.
 */
#ifndef TE_KERNEL_H
#define TE_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>
#include <te/op.h>
#include <te/quant.h>
#include <te/stream.h>
#include <te/tensor.h>

TE_BEGIN_DECLS

/* ---- transpose; te_quantize() writes transposes of its result, te_cast() converts types ---- */

struct te_kernel_transpose_opts {
	size_t size;	   /* set by the INIT macro; lets the struct grow */
	const float *noop; /* device FP32 word or NULL: 1.0 leaves y as it is */
};
#define TE_KERNEL_TRANSPOSE_OPTS_INIT { sizeof(struct te_kernel_transpose_opts), 0 }

/**
 * te_kernel_transpose - y = the transpose of x, of any type
 * @stream: work is queued on it
 * @x, @y:  input and output
 * @opts:   NULL for the defaults
 *
 * Shapes: x [rows, cols], y [cols, rows], of one type. FP8: reads and writes row-wise copies with
 * one scale each. y gets the scale-inverse of x, which may be the same word. So y may wrap the
 * memory of the column-wise copy that x lacks.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_transpose(struct te_stream *stream, const struct te_tensor *x,
				  struct te_tensor *y,
				  const struct te_kernel_transpose_opts *opts);

/* ---- embedding ---- */

struct te_kernel_embedding_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	/* FP32 [max_pos, width], max_pos at least seqlen, or NULL */
	const struct te_tensor *position; /* forward: row t is added to token t of a sequence */
	struct te_tensor *dposition;	  /* backward: the gradient of position is added to it */
	int64_t first; /* token of the table's first row, 0 or more */
};
#define TE_KERNEL_EMBEDDING_OPTS_INIT { sizeof(struct te_kernel_embedding_opts), 0, 0, 0 }

/**
 * te_kernel_embedding_forward - y = rows of a table
 * @stream: work is queued on it
 * @tokens: token ids
 * @table:  embeddings of the tokens
 * @y:      output
 * @opts:   NULL for the defaults
 *
 * Shapes: tokens INT32 [..., seqlen]; table FP32 [vocab, width]; y T [..., seqlen, width]. A token
 * outside [first, first + vocab) selects a row of zeros.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_embedding_forward(struct te_stream *stream, const struct te_tensor *tokens,
					  const struct te_tensor *table, struct te_tensor *y,
					  const struct te_kernel_embedding_opts *opts);
/* dtable: FP32 or BF16 [vocab, width]. Gradients are added to it and to dposition in the order of
 * tokens. dtable may be NULL with dposition */
TE_EXPORT int te_kernel_embedding_backward(struct te_stream *stream, const struct te_tensor *dy,
					   const struct te_tensor *tokens, struct te_tensor *dtable,
					   const struct te_kernel_embedding_opts *opts);

/* ---- bias and residual ---- */

/* y = x + bias. Shapes: x, y T [rows, cols], bias T [cols]. y may be x. */
TE_EXPORT int te_kernel_bias_forward(struct te_stream *stream, const struct te_tensor *x,
				     const struct te_tensor *bias, struct te_tensor *y);
/* dbias += the sums of dy by column. Shapes: dy T [rows, cols], dbias FP32 or BF16 [cols]. Needs
 * ws. */
TE_EXPORT int te_kernel_bias_backward(struct te_stream *stream, const struct te_tensor *dy,
				      struct te_tensor *dbias, void *ws, size_t ws_nbytes);
TE_EXPORT size_t te_kernel_bias_ws_nbytes(int64_t rows, int64_t cols);

/* y = a + b. Shapes: a, b, y T, all of the same shape. y may be a or b. */
TE_EXPORT int te_kernel_add(struct te_stream *stream, const struct te_tensor *a,
			    const struct te_tensor *b, struct te_tensor *y);

/* ---- dropout ---- */

struct te_kernel_dropout_opts {
	size_t size;  /* set by the INIT macro; lets the struct grow */
	float p;      /* probability to drop an element, [0,1) */
	uint32_t tag; /* calls of different tags drop different elements */
	struct te_rng_words rng; /* device words, the same for both passes; not needed if p is 0 */
};
#define TE_KERNEL_DROPOUT_OPTS_INIT { sizeof(struct te_kernel_dropout_opts), 0.0f, 0, { 0, 0 } }

/**
 * te_kernel_dropout_forward, te_kernel_dropout_backward - drop elements, scale the others
 * @stream:  work is queued on it
 * @x, @y:   input and output of forward
 * @opts:    NULL for the defaults
 * @dy, @dx: input and output of backward
 *
 * Shapes: x, y, dy, dx T, of one shape. y may be x, and dx dy. The words of rng, the tag and an
 * element's index decide whether the element is dropped, so backward needs no mask.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_dropout_forward(struct te_stream *stream, const struct te_tensor *x,
					struct te_tensor *y,
					const struct te_kernel_dropout_opts *opts);
TE_EXPORT int te_kernel_dropout_backward(struct te_stream *stream, const struct te_tensor *dy,
					 struct te_tensor *dx,
					 const struct te_kernel_dropout_opts *opts);

/* ---- LayerNorm and RMSNorm ---- */

struct te_kernel_norm_opts {
	size_t size;	/* set by the INIT macro; lets the struct grow */
	uint32_t flags; /* TE_NORM_ZERO_CENTERED */
	float eps;	/* forward */
	struct te_quant *quant; /* quantized output y, in backward dx; or NULL */
	struct te_tensor *q;	/* FP8 [rows, cols] */
	int32_t slot;
	uint32_t quant_flags; /* TE_QUANTIZE_* */
	const struct te_tensor *residual; /* backward: T, added to dx; or NULL */
};
#define TE_KERNEL_NORM_OPTS_INIT { sizeof(struct te_kernel_norm_opts), 0, 1e-5f, 0, 0, 0, 0, 0 }

/**
 * te_kernel_norm_forward - LayerNorm, or RMSNorm if beta and mean are NULL
 * @stream:       work is queued on it
 * @x, @y:        input and output; y may be NULL as described at the top
 * @gamma, @beta: gain and bias
 * @mean, @rstd:  statistics for the backward call
 * @opts:         NULL for the defaults
 *
 * Shapes: x, y T [rows, cols]; gamma, beta FP32 [cols]; mean, rstd FP32 [rows]. y may be x.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_norm_forward(struct te_stream *stream, const struct te_tensor *x,
				     const struct te_tensor *gamma, const struct te_tensor *beta,
				     struct te_tensor *y, struct te_tensor *mean,
				     struct te_tensor *rstd,
				     const struct te_kernel_norm_opts *opts);
/**
 * te_kernel_norm_backward - gradients of a norm
 * @stream:         work is queued on it
 * @dy:             gradient of y
 * @x, @gamma:      inputs of the forward call
 * @mean, @rstd:    statistics from the forward call; mean NULL: RMSNorm
 * @dx:             T [rows, cols], or NULL; needed with q; without q it may be dy or the residual
 * @dgamma:         FP32 [cols], to which the gradient is added, or NULL; needs ws
 * @dbeta:          FP32 [cols], as dgamma; with mean, given if and only if dgamma is
 * @ws, @ws_nbytes: scratch memory; its bytes
 * @opts:           NULL for the defaults
 *
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_norm_backward(struct te_stream *stream, const struct te_tensor *dy,
				      const struct te_tensor *x, const struct te_tensor *gamma,
				      const struct te_tensor *mean, const struct te_tensor *rstd,
				      struct te_tensor *dx, struct te_tensor *dgamma,
				      struct te_tensor *dbeta, void *ws, size_t ws_nbytes,
				      const struct te_kernel_norm_opts *opts);
/* ws of the backward call with dgamma; ngrads: 1 (RMSNorm: dgamma) or 2 (LayerNorm: dbeta too) */
TE_EXPORT size_t te_kernel_norm_ws_nbytes(int64_t rows, int64_t cols, int ngrads);

/* ---- activations ---- */

struct te_kernel_act_opts {
	size_t size;	 /* set by the INIT macro; lets the struct grow */
	enum te_act act;
	int32_t gated;	 /* 1: y = act(first half of x) * second half */
	struct te_quant *quant; /* quantized output y, in backward dx; or NULL */
	struct te_tensor *q;	/* FP8, shaped like y or dx */
	int32_t slot;
	uint32_t quant_flags; /* TE_QUANTIZE_* */
};
#define TE_KERNEL_ACT_OPTS_INIT { sizeof(struct te_kernel_act_opts), TE_ACT_GELU, 0, 0, 0, 0, 0 }

/**
 * te_kernel_act_forward - y = act(x), or gated
 * @stream: work is queued on it
 * @x, @y:  input and output
 * @opts:   NULL for the defaults
 *
 * Shapes: x T [rows, cols], y the same, and may be x; gated: x T [rows, 2 cols], y T [rows, cols].
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_act_forward(struct te_stream *stream, const struct te_tensor *x,
				    struct te_tensor *y, const struct te_kernel_act_opts *opts);
/**
 * te_kernel_act_backward - gradient of an activation's input
 * @stream:         work is queued on it
 * @dy:             gradient of y
 * @x:              input of the forward call
 * @dx:             T, shaped like x; not gated: may be dy or x
 * @dbias:          FP32 or BF16 [columns of x], to which the sums of dx by column are added; or
 *                  NULL. Needs ws
 * @ws, @ws_nbytes: scratch memory; its bytes
 * @opts:           NULL for the defaults
 *
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_act_backward(struct te_stream *stream, const struct te_tensor *dy,
				     const struct te_tensor *x, struct te_tensor *dx,
				     struct te_tensor *dbias, void *ws, size_t ws_nbytes,
				     const struct te_kernel_act_opts *opts);
/* ws of the backward call with dbias; cols: columns of x */
TE_EXPORT size_t te_kernel_act_ws_nbytes(int64_t rows, int64_t cols);

/* ---- rotary position embedding ---- */

/* Heads are packed as in struct te_rope_attrs: [nheads q | nkv k | nkv v] * head_dim. */
struct te_kernel_rope_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nheads, nkv, head_dim; /* above 0; head_dim even, at most 256 */
	float theta;
	struct te_quant *quant; /* quantized output y, in backward dx; or NULL */
	struct te_tensor *q;	/* FP8, shaped like y or dx */
	int32_t slot;
	uint32_t quant_flags; /* TE_QUANTIZE_* */
	const float *inv_freq; /* as in struct te_rope_attrs; read before the call returns */
	/* INT32, the position of each row; NULL: 0 to seqlen - 1 in each sequence */
	const struct te_tensor *position;
	int32_t interleaved; /* as in struct te_rope_attrs */
};
#define TE_KERNEL_ROPE_OPTS_INIT \
	{ sizeof(struct te_kernel_rope_opts), 0, 0, 0, 10000.0f, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_kernel_rope_forward, te_kernel_rope_backward - rotate queries and keys by their positions
 * @stream:  work is queued on it
 * @x, @y:   input and output of forward
 * @opts:    numbers and size of heads; not NULL
 * @dy, @dx: input and output of backward
 *
 * Shapes: x, y, dy, dx T [..., seqlen, (nheads + 2 nkv) head_dim]. Without q, y may be x and dx dy.
 * Backward rotates by the opposite angles.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_rope_forward(struct te_stream *stream, const struct te_tensor *x,
				     struct te_tensor *y, const struct te_kernel_rope_opts *opts);
TE_EXPORT int te_kernel_rope_backward(struct te_stream *stream, const struct te_tensor *dy,
				      struct te_tensor *dx, const struct te_kernel_rope_opts *opts);

/* ---- causal attention ---- */

struct te_kernel_attention_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	/* nheads a multiple of nkv; head_dim at most 256, in FP32 on a GPU 128 (-EOPNOTSUPP) */
	int32_t nheads, nkv, head_dim;
	float scale;   /* 0: 1/sqrt(head_dim) */
	float dropout; /* share of the probabilities that is dropped, [0,1) */
	uint32_t tag;  /* dropout: calls of different tags drop different elements */
	struct te_rng_words rng; /* dropout: device words, the same for both passes */
	struct te_quant *quant;	 /* forward: quantized output, if T is BF16; or NULL */
	struct te_tensor *q;	 /* FP8, shaped like y */
	int32_t slot;
	uint32_t quant_flags; /* TE_QUANTIZE_* */
	int32_t window; /* a token attends to itself and window - 1 tokens before it; 0: to all */
	float softcap;	/* c: a score s becomes c tanh(s / c); 0: no cap */
	/* INT32 [batch, seqlen]: first token that each token attends to; NULL: token 0. See
	 * te_kernel_attention_forward() */
	const struct te_tensor *first;
	int32_t full;  /* 1: a token also attends to later tokens of its document */
	int32_t right; /* with full: number of later tokens that it attends to; 0: all */
};
#define TE_KERNEL_ATTENTION_OPTS_INIT                                                          \
	{ sizeof(struct te_kernel_attention_opts), 0, 0, 0, 0.0f, 0.0f, 0, { 0, 0 }, 0, 0, 0, \
	  0, 0, 0.0f, 0, 0, 0 }

/**
 * te_kernel_attention_forward - attention over packed heads
 * @stream: work is queued on it
 * @x, @y:  input and output
 * @lse:    log of the sums of exponentials, for the backward call
 * @opts:   numbers and size of heads; not NULL
 *
 * Shapes: x T [..., seqlen, (nheads + 2 nkv) head_dim], y T [..., seqlen, nheads head_dim],
 * lse FP32 [batch, nheads, seqlen], where batch is the product of the other extents of x.
 * first packs documents into a sequence: each element is the index of its document's first token.
 * Token t attends to tokens max(0, min(first, t)) to t, so no value of first is outside the
 * sequence; with full to the last token before one that has a first above t. On the host the
 * results of a document do not depend on others. If it begins at a multiple of 64, they have the
 * bits of the document alone. A GPU may multiply values of other documents by 0.
 * Alignment: x, y and gradients to 16 bytes if head_dim elements are a multiple of 16 bytes.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_attention_forward(struct te_stream *stream, const struct te_tensor *x,
					  struct te_tensor *y, struct te_tensor *lse,
					  const struct te_kernel_attention_opts *opts);
/* y, lse: from the forward call; opts: the same as there, without quant. Needs ws */
TE_EXPORT int te_kernel_attention_backward(struct te_stream *stream, const struct te_tensor *dy,
					   const struct te_tensor *x, const struct te_tensor *y,
					   const struct te_tensor *lse, struct te_tensor *dx,
					   void *ws, size_t ws_nbytes,
					   const struct te_kernel_attention_opts *opts);
/* ws of the backward call; x has the type dtype and batch sequences of seqlen tokens */
TE_EXPORT size_t te_kernel_attention_ws_nbytes(enum te_dtype dtype, int64_t batch, int64_t seqlen,
					       int32_t nheads, int32_t head_dim);

enum te_attend_layout {
	TE_ATTEND_BSHD = 0, /* [batch, tokens, heads of a token] */
	TE_ATTEND_SBHD = 1, /* [tokens, batch, heads of a token] */
	TE_ATTEND_THD = 2   /* [tokens, heads of a token]: sequences after each other, by offsets */
};

struct te_kernel_attend_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nheads, nkv, head_dim; /* as in struct te_kernel_attention_opts */
	int32_t head_dim_v; /* elements of a head of v and out, at most 256; 0: head_dim */
	float scale;	    /* 0: 1/sqrt(head_dim) */
	float dropout;	    /* this, tag and rng as in struct te_kernel_attention_opts */
	struct te_rng_words rng;
	uint32_t tag;
	int32_t layout; /* enum te_attend_layout, of q, k, v, out and gradients */
	/* index of the first column of the heads in q and dq, in k and dk, and in v and dv */
	int64_t q_at, k_at, v_at;
	/* thd: INT32 [sequences + 1], the row at which each sequence begins, and after the last
	 * sequence its end: q_offsets for q and out, k_offsets for k and v; NULL: q_offsets */
	const struct te_tensor *q_offsets, *k_offsets;
	/* bottom 0: query i of a sequence is at the position of key i; 1: the last query is at the
	 * position of the last key. A query attends to window keys up to its position; 0: all. With
	 * full it also attends to right keys after its position; 0: all */
	int32_t window, full, right, bottom;
	float softcap; /* c: a score s becomes c tanh(s / c); 0: no cap */
	uint32_t flags; /* reserved: 0 */
	/* tensors of FP32, or NULL */
	const struct te_tensor *bias;	/* [1 or nheads, queries, keys]: added to scores */
	const struct te_tensor *slopes; /* [nheads]: score -= slope * distance of the key (ALiBi) */
	const struct te_tensor *sinks;	/* [nheads]: score of one more key, whose value is 0 */
	struct te_tensor *dbias;	/* backward: gradient of bias, written */
	struct te_tensor *dsinks;	/* backward: the gradient of sinks is added to it */
};
#define TE_KERNEL_ATTEND_OPTS_INIT                                                             \
	{ sizeof(struct te_kernel_attend_opts), 0, 0, 0, 0, 0.0f, 0.0f, { 0, 0 }, 0, 0, 0, 0, \
	  0, 0, 0, 0, 0, 0, 0, 0.0f, 0, 0, 0, 0, 0, 0 }

/**
 * te_kernel_attend_forward - attention of queries to other tokens' keys and values
 * @stream: work is queued on it
 * @q:      queries
 * @k, @v:  keys and values
 * @out:    output
 * @lse:    log of the sums of exponentials, for the backward call
 * @opts:   numbers and size of heads; not NULL
 *
 * Shapes: layout bshd: q T [..., queries, columns], k and v T [..., keys, columns], out T [...,
 * queries, nheads head_dim_v]. sbhd: [queries, batch, columns] and so on; thd: [queries, columns]
 * and so on, all sequences together. q has nheads heads of head_dim from column q_at on, k has nkv
 * of them from k_at on, v has nkv of head_dim_v from v_at on, so that q, k and v may be one tensor.
 * lse FP32 [batch, nheads, queries], thd: [nheads, queries].
 * A score is scale q.k, then softcap, then bias and slopes. A bias of -inf hides a key. A query
 * that has no key and no sink has out 0 and lse -inf.
 * Offsets ascend. They are in device memory and are not checked: keys outside of k are not read,
 * and a query that is in no sequence has no keys.
 * Errors: also -EOPNOTSUPP (the device has no kernel for these options).
 * Alignment: as in te_kernel_attention_forward().
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_attend_forward(struct te_stream *stream, const struct te_tensor *q,
				       const struct te_tensor *k, const struct te_tensor *v,
				       struct te_tensor *out, struct te_tensor *lse,
				       const struct te_kernel_attend_opts *opts);
/* dq, dk, dv: shaped like q, k and v, columns of heads are written; two of them may be one tensor.
 * ws: te_kernel_attention_ws_nbytes(T, batch, queries, nheads, head_dim), thd: batch 1 */
TE_EXPORT int te_kernel_attend_backward(struct te_stream *stream, const struct te_tensor *dout,
					const struct te_tensor *q, const struct te_tensor *k,
					const struct te_tensor *v, const struct te_tensor *out,
					const struct te_tensor *lse, struct te_tensor *dq,
					struct te_tensor *dk, struct te_tensor *dv, void *ws,
					size_t ws_nbytes, const struct te_kernel_attend_opts *opts);

struct te_kernel_attention_cached_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nheads, nkv, head_dim; /* nheads a multiple of nkv; head_dim at most 256 */
	float scale; /* 0: 1/sqrt(head_dim) */
	const struct te_tensor *pages; /* INT32 [nseqs, max_pages]; NULL: one page per sequence */
	uint32_t *noutside; /* device word that counts rows outside the cache; or NULL */
	int32_t window;	    /* as in struct te_kernel_attention_opts */
	float softcap;	    /* the same */
	struct te_tensor *k_scale, *v_scale; /* cache of E4M3: UINT8 [npages, page, nkv] */
	const struct te_tensor *slopes, *sinks; /* as in struct te_kernel_attend_opts; or NULL */
};
#define TE_KERNEL_ATTENTION_CACHED_OPTS_INIT                                                    \
	{ sizeof(struct te_kernel_attention_cached_opts), 0, 0, 0, 0.0f, 0, 0, 0, 0.0f, 0, 0, 0, \
	  0 }

/**
 * te_kernel_attention_cached - append new tokens to a cache of keys and values, and attend to it
 * @stream:   work is queued on it
 * @x:        packed heads of the new tokens
 * @sequence: sequence of each row of x; below 0: the row is padding
 * @position: position of each row in its sequence
 * @k, @v:    the cache
 * @y:        output
 * @opts:     numbers and size of heads; not NULL
 *
 * Shapes: x T [rows, (nheads + 2 nkv) head_dim]; sequence, position INT32 [rows]; k, v FP32, BF16
 * or E4M3, both of one type and one shape [npages, page, nkv head_dim]; y T [rows, nheads
 * head_dim].
 * Position p of sequence s is token p % page of page pages[s, p / page]; without pages sequence s
 * is page s, and page is the limit of its tokens.
 * First the keys and values of all rows are stored. Then each row attends to the positions from 0
 * to its own, which this call or earlier ones have stored. Rows of a call must differ in sequence
 * or position. With a cache of type T, results on the host are bit-identical to
 * te_kernel_attention_forward() on the whole sequences, regardless of the numbers of rows and
 * sequences in a call.
 * In a cache of E4M3 each head of each token has a scale from the amax of its head_dim elements:
 * k_scale and v_scale receive its inverse, a power of two, as an E8M0 byte.
 * Rows of padding, and rows outside the cache (a sequence, a position or an entry of pages that
 * does not exist), store nothing and have y = 0; noutside counts rows outside the cache, modulo
 * 2^32.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_attention_cached(struct te_stream *stream, const struct te_tensor *x,
					 const struct te_tensor *sequence,
					 const struct te_tensor *position, struct te_tensor *k,
					 struct te_tensor *v, struct te_tensor *y,
					 const struct te_kernel_attention_cached_opts *opts);

/* ---- cross-entropy ---- */

struct te_kernel_cross_entropy_opts {
	size_t size;	      /* set by the INIT macro; lets the struct grow */
	int64_t nclasses;     /* later columns are padding; 0: all columns are classes */
	int32_t ignore_index; /* rows with this target are ignored */
	float grad_scale;     /* backward: the gradient of the loss */
	/* nparts above 1: x has columns part * cols to (part + 1) * cols - 1 of nparts * cols;
	 * nclasses counts the classes of all parts */
	int32_t nparts, part;
};
#define TE_KERNEL_CROSS_ENTROPY_OPTS_INIT \
	{ sizeof(struct te_kernel_cross_entropy_opts), 0, -100, 1.0f, 0, 0 }

/**
 * te_kernel_cross_entropy_forward - mean softmax cross-entropy over the rows with a valid target
 * @stream:         work is queued on it
 * @x:              logits
 * @targets:        class of each row
 * @loss, @count:   mean loss; number of rows with a valid target
 * @max_sum:        statistics for the backward call
 * @ws, @ws_nbytes: scratch memory; its bytes
 * @opts:           NULL for the defaults
 *
 * Shapes: x T [rows, cols]; targets INT32 [rows]; max_sum FP32 [2, rows]: each row's largest logit,
 * max, then each row's sum of exp(x - max); loss, count FP32 [1]. A row whose target is
 * ignore_index or not a class is ignored. Needs ws.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_cross_entropy_forward(struct te_stream *stream, const struct te_tensor *x,
					      const struct te_tensor *targets,
					      struct te_tensor *loss, struct te_tensor *max_sum,
					      struct te_tensor *count, void *ws, size_t ws_nbytes,
					      const struct te_kernel_cross_entropy_opts *opts);
/* max_sum, count: from the forward call; dx: T, shaped like x, may be x */
TE_EXPORT int te_kernel_cross_entropy_backward(struct te_stream *stream, const struct te_tensor *x,
					       const struct te_tensor *targets,
					       const struct te_tensor *max_sum,
					       const struct te_tensor *count, struct te_tensor *dx,
					       const struct te_kernel_cross_entropy_opts *opts);
/* ws of the calls forward, both and join */
TE_EXPORT size_t te_kernel_cross_entropy_ws_nbytes(int64_t rows);

/**
 * te_kernel_cross_entropy_both - loss and gradient of softmax cross-entropy, reading logits once
 * @stream:                 work is queued on it
 * @x, @targets:            logits; class of each row
 * @loss, @max_sum, @count: as in te_kernel_cross_entropy_forward()
 * @dx:                     gradient of x; may be x
 * @ws, @ws_nbytes:         scratch memory; its bytes
 * @opts:                   NULL for the defaults; nparts at most 1
 *
 * Results are bit-identical to te_kernel_cross_entropy_forward() and
 * te_kernel_cross_entropy_backward(), except that max_sum is 0, 0 for ignored rows. Needs ws.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_cross_entropy_both(struct te_stream *stream, const struct te_tensor *x,
					   const struct te_tensor *targets,
					   struct te_tensor *loss, struct te_tensor *max_sum,
					   struct te_tensor *count, struct te_tensor *dx, void *ws,
					   size_t ws_nbytes,
					   const struct te_kernel_cross_entropy_opts *opts);

/**
 * te_kernel_cross_entropy_part, te_kernel_cross_entropy_join - the forward pass in column parts
 * @stream:  work is queued on it
 * @x:       columns of the logits
 * @targets: class of each row
 * @parts:   FP32 [nparts, 3, rows]. te_kernel_cross_entropy_part writes parts[part]: max and sum
 *           over the columns of x that are classes (-inf and 0 if none is), and the target's logit
 *           if it is among them, else 0
 * @loss, @count, @max_sum, @ws, @ws_nbytes: as in te_kernel_cross_entropy_forward()
 * @opts:    nparts, part and nclasses; not NULL
 *
 * The parts of the columns can be in different processes, which exchange parts[part].
 * te_kernel_cross_entropy_join combines all parts, in their order, in FP64 with one rounding: max
 * is the largest max_k, sum is the sum over k of sum_k exp(max_k - max), and the loss of a row is
 * (max - its target's logit) + log(sum). So all processes get the same bits.
 * opts->nclasses must be set. Needs ws.
 * te_kernel_cross_entropy_backward() on x, with the same opts, gives the gradient of x.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_cross_entropy_part(struct te_stream *stream, const struct te_tensor *x,
					   const struct te_tensor *targets,
					   struct te_tensor *parts,
					   const struct te_kernel_cross_entropy_opts *opts);
TE_EXPORT int te_kernel_cross_entropy_join(struct te_stream *stream, const struct te_tensor *parts,
					   const struct te_tensor *targets, struct te_tensor *loss,
					   struct te_tensor *max_sum, struct te_tensor *count,
					   void *ws, size_t ws_nbytes,
					   const struct te_kernel_cross_entropy_opts *opts);

/* ---- AdamW ---- */

struct te_kernel_adamw_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	float beta1, beta2, eps;
	float weight_decay;
	float max_grad_norm; /* clip the norm of g to it; 0: no clipping */
	/* UINT8 [ceil(elements of w / 64)]: 1 where weight decay applies to 64 elements of w.
	 * NULL: everywhere */
	const struct te_tensor *decay;
	/* UINT8 of 2 bytes for each element of w, aligned to 2: makes BF16 weights exactly FP32.
	 * The bits of a weight: w << 16, plus the INT16 number here, low byte first. NULL: none */
	struct te_tensor *remainder;
};
#define TE_KERNEL_ADAMW_OPTS_INIT \
	{ sizeof(struct te_kernel_adamw_opts), 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0, 0 }

/**
 * te_kernel_adamw_init - initialise the state of an optimizer, before its first step
 * @stream: work is queued on it
 * @state:  device memory of te_kernel_adamw_state_nbytes(), aligned to 8 bytes: step counts, powers
 *          of beta, learning rate and clip factor. Opaque, copied and restored as bytes
 * @lr:     learning rate
 *
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_adamw_init(struct te_stream *stream, void *state, float lr);
/* later steps use lr, including replays of captured steps */
TE_EXPORT int te_kernel_adamw_set_lr(struct te_stream *stream, void *state, float lr);
TE_EXPORT size_t te_kernel_adamw_state_nbytes(void);

/**
 * te_kernel_adamw_step - update flat weights, by the formula of te_adamw_create()
 * @stream:         work is queued on it
 * @g:              FP32; if its norm is not finite, only counters in the state change
 * @w:              FP32 or BF16, as many elements as g. BF16 is rounded stochastically, or with
 *                  opts->remainder to nearest
 * @m, @v:          moments, FP32 or BF16, as many elements as w, or UINT8, te_moments_nbytes of
 *                  TE_MOMENTS_FP8; zeros before the first step
 * @state:          device memory that te_kernel_adamw_init() initialised
 * @ws, @ws_nbytes: scratch memory; its bytes
 * @opts:           NULL for the defaults
 *
 * Needs ws.
 * Thread: as at the top of this header.  Since: 0.1
 */
TE_EXPORT int te_kernel_adamw_step(struct te_stream *stream, const struct te_tensor *g,
				   struct te_tensor *w, struct te_tensor *m, struct te_tensor *v,
				   void *state, void *ws, size_t ws_nbytes,
				   const struct te_kernel_adamw_opts *opts);
TE_EXPORT size_t te_kernel_adamw_ws_nbytes(void);

TE_END_DECLS

#endif
