/* decoder.h - the struct of decoder.c and its plans, decoder_plans.c. */
#ifndef TE__DECODER_H
#define TE__DECODER_H

#include <stdatomic.h>

#include <te/capture.h>
#include <te/stream.h>

#include "libtecore/ops/common.h"
#include "libtecore/plan/choose.h"
#include "libtecore/plan/plan.h"

#define MAX_PLANS 32 /* for powers of two of rows */

/* Integers that a pass reads, in pinned memory and, laid out alike, on the device: sequence,
 * position and token of each row of a chunk, the table of pages, and the word that counts tokens
 * outside the cache. Offsets in elements, multiples of an alignment that suits all devices. */
struct inputs {
	int64_t position, token, table, noutside, best, n;
};

/* plan of a number of rows, and its views of the decoder's tensors */
struct body {
	struct te_plan *plan;
	int64_t rows;
	struct te_tensor *sequence, *position, *token;
	struct te_tensor *out; /* body: its result, which may be the input of a head */
	struct te__decode *decode; /* by op; NULL: ops of the head */
	struct te_k_rope *rope;	    /* by op, of ropes next to attention */
	int one_each;		    /* the pass has a row of each of its sequences */
	/* the pass with logits of all rows, or NULL, and how often it ran; by: all are greedy */
	struct te_recording *whole[2];
	int nwhole[2];
};

struct seq_state {
	int open, ready;
	int64_t ntokens, ncached; /* pushed, computed */
	int64_t npages;
	int32_t *token; /* [max_tokens] */
	float *logits;	/* [ntokens of the vocabulary] */
	const uint16_t *raw; /* ready: BF16 that logits are to be decoded from, or NULL */
	const uint64_t *best; /* ready: parts of te_k_argmax, or NULL */
	struct te_sampling how;
};

struct te_decoder {
	atomic_int refs;
	struct te_seq *seq;
	struct te_ctx *ctx;
	struct te_stream *stream;
	struct te_decoder_opts o;
	struct te_recipe recipe;
	enum te_dtype cache;
	int first_head; /* op that computes the logits */
	int has_attn_step;
	int64_t max_pages, vocab, width_padded;
	int nbodies, nheads;
	struct body body[MAX_PLANS], head[MAX_PLANS];
	struct inputs at;
	struct te_tensor *inputs, *pages; /* [at.n]; its table, [max_seqs, max_pages] */
	struct te_tensor **k, **v;	  /* by op; NULL: no attention */
	struct te_tensor **k_scale, **v_scale; /* by op, of a cache of E4M3 */
	void *parts, *ready; /* scratch of attention on a GPU, or NULL */
	struct seq_state *state;
	/* pinned memory */
	int32_t *row_sequence, *row_position, *row_token; /* [chunk], the first one of at.n */
	int32_t *table;	    /* [max_seqs, max_pages] */
	uint32_t *results;  /* inputs from noutside on, after a pass */
	void *raw;	    /* [max_seqs, width_padded] logits of a pass */
	/* logits of the last pass that are not in raw yet, and their rows; or NULL */
	const struct te_tensor *unread;
	int64_t nunread;
	/* host memory */
	int32_t *last;	    /* [chunk] */
	int32_t *free_page; /* [npages], of which the first nfree are free */
	int64_t nfree;
	int32_t next; /* sequence that the next pass begins with */
	struct te__candidate *room;
	uint8_t *marks;
};

/*
 * Checks the options and the sequence of a decoder that has its context, and creates its memory and
 * plans. After a failure, te_decoder_unref() releases what there is.
 */
int te__decoder_make(struct te_decoder *d);

#endif
