/* te/decoder.h - a decoder: tokens in, the next token out, with a cache of keys and values. */
#ifndef TE_DECODER_H
#define TE_DECODER_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>
#include <te/quant.h>
#include <te/seq.h>

TE_BEGIN_DECLS

struct te_decoder; /* opaque, reference counted */

#define TE_DECODER_CACHE_FP32 1u /* type of the cache; without a flag the recipe's compute type */
#define TE_DECODER_CACHE_BF16 2u
#define TE_DECODER_CACHE_E4M3 4u /* as in te_kernel_attention_cached() */

struct te_decoder_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	const struct te_recipe *recipe; /* copied; NULL: bf16. Or fp32, fp8-block, mxfp8 */
	uint32_t flags;	    /* TE_DECODER_* */
	int32_t max_seqs;   /* limit of open sequences; 1 by default */
	int32_t max_tokens; /* limit of tokens in a sequence; 2048 by default */
	int32_t chunk;	    /* limit of tokens in a step, at least max_seqs; 0: 128 */
	int32_t page;	    /* tokens of a page of the cache; 0: 64 */
	int64_t npages;	    /* pages of all sequences; 0: enough for max_seqs of max_tokens */
	int64_t ntokens;    /* size of the vocabulary: later logits are padding; 0: all */
};
#define TE_DECODER_OPTS_INIT { sizeof(struct te_decoder_opts), 0, 0, 1, 2048, 0, 0, 0, 0 }

/*
 * How te_decoder_take() chooses a token. For tokens that are in the sequence, logits above 0 are
 * divided by repetition_penalty and others multiplied by it. All logits are divided by temperature,
 * and the softmax is computed. Then tokens are selected: first the top_k most likely ones; of
 * these, the fewest whose probabilities add up to top_p of their sum; of these, the tokens with at
 * least min_p times the largest probability. The random number that chooses among them depends only
 * on seed and on the position of the token.
 */
struct te_sampling {
	size_t size; /* set by the INIT macro; lets the struct grow */
	double temperature;	   /* 0: the most likely token */
	double top_p;		   /* above 0; 1: all */
	double min_p;		   /* 0 to 1; 0: all */
	double repetition_penalty; /* above 0; 1: none */
	uint64_t seed;
	int32_t top_k; /* 0: all */
};
#define TE_SAMPLING_INIT { sizeof(struct te_sampling), 1.0, 1.0, 0.0, 1.0, 0, 0 }

/**
 * te_decoder_create - plan a model for decoding, and allocate the cache
 * @seq:   the model, initialised; the decoder keeps a reference
 * @opts:  NULL for the defaults
 * @ret_d: the decoder, with one reference
 *
 * The model's first op is an embedding, its last linear op computes the logits, and
 * te_op_cross_entropy may follow. The other ops must compute each row separately, except te_op_rope
 * and te_op_attention, which get the positions and the cache; the error message names an op that
 * does not. On the host, if the cache has the compute type, logits are bit-identical to a plan of
 * the whole sequence, unless a BLAS (TE_GEMM_HOST) adds in an order that depends on the extents.
 * Weights may change between steps: call te_seq_weights_changed().
 * Thread: one decoder by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -EOPNOTSUPP (an op, another recipe), -TE_ESTATE (sequence not initialised),
 * -ENOMEM, and the codes of te_plan_create.
 */
TE_EXPORT int te_decoder_create(struct te_seq *seq, const struct te_decoder_opts *opts,
				struct te_decoder **ret_d);
TE_EXPORT struct te_decoder *te_decoder_ref(struct te_decoder *d);
TE_EXPORT struct te_decoder *te_decoder_unref(struct te_decoder *d);

/**
 * te_decoder_open - begin a sequence without tokens
 * @d:     the decoder
 * @how:   how te_decoder_take() chooses tokens, copied; NULL: the most likely one
 * @ret_s: number of the sequence, 0 to max_seqs - 1
 *
 * Thread: one decoder by one thread at a time.  Since: 0.1
 * Errors: -EBUSY (max_seqs are open), -EINVAL.
 */
TE_EXPORT int te_decoder_open(struct te_decoder *d, const struct te_sampling *how, int32_t *ret_s);
/**
 * te_decoder_fork - begin a sequence with the tokens of another
 * @d:     the decoder
 * @s:     the other sequence
 * @how:   as in te_decoder_open()
 * @ret_s: number of the new sequence
 *
 * Keys and values are copied to pages of the new sequence. It is ready if s is.
 * Stream: queued on the context's stream.
 * Thread: one decoder by one thread at a time.  Since: 0.1
 * Errors: -EINVAL (s is not open), -EBUSY (max_seqs are open), -ENOMEM (too few free pages), and
 * the backend's codes.
 */
TE_EXPORT int te_decoder_fork(struct te_decoder *d, int32_t s, const struct te_sampling *how,
			      int32_t *ret_s);
/* ends sequence s, whose pages become free. -EINVAL: it is not open */
TE_EXPORT int te_decoder_close(struct te_decoder *d, int32_t s);

/**
 * te_decoder_push - append tokens to a sequence
 * @d:     the decoder
 * @s:     the sequence
 * @token: n tokens, copied
 * @n:     number of tokens
 *
 * Later steps compute them.
 * Thread: one decoder by one thread at a time.  Since: 0.1
 * Errors: -EINVAL (not open, a token outside the vocabulary), -ENOSPC (more than max_tokens).
 */
TE_EXPORT int te_decoder_push(struct te_decoder *d, int32_t s, const int32_t *token, int64_t n);

/**
 * te_decoder_step - compute tokens that were pushed
 * @d: the decoder
 *
 * One pass over at most chunk tokens, beginning with one token of each sequence that has any left.
 * Returns the number of tokens that are left. A sequence without tokens left is ready: it has
 * logits of the next token.
 * Stream: the context's stream; returns when the pass has run.
 * Thread: one decoder by one thread at a time.  Since: 0.1
 * Errors: -ENOMEM (no free page for any sequence: close one), and the backend's codes.
 */
TE_EXPORT int64_t te_decoder_step(struct te_decoder *d);

/**
 * te_decoder_take - choose the next token of a sequence, and append it
 * @d:         the decoder
 * @s:         the sequence
 * @ret_token: the token
 *
 * Returns 1, or 0 if the sequence is not ready. The next step computes the token, as if it had been
 * pushed: close the sequence instead if the token ends the text.
 * Thread: one decoder by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOSPC (the sequence has max_tokens), -TE_ENUMERIC (a logit is not finite).
 */
TE_EXPORT int te_decoder_take(struct te_decoder *d, int32_t s, int32_t *ret_token);

/*
 * The *ret_n logits of the next token, borrowed until the next call, to choose it by other means. A
 * step on a GPU whose sequences all take the most likely token leaves them there: this call copies
 * them and waits for the copy. NULL: the sequence is not ready, or the copy failed, and
 * te_error_detail() tells why. ret_n may be NULL.
 */
TE_EXPORT const float *te_decoder_logits(const struct te_decoder *d, int32_t s, int64_t *ret_n);
/* number of tokens of sequence s, computed or not; -EINVAL: it is not open */
TE_EXPORT int64_t te_decoder_length(const struct te_decoder *d, int32_t s);

TE_END_DECLS

#endif
