/*
 * kernel.h - launches of each kernel family, for ops, fusions, and the calls of te/kernel.h, which
 * check their arguments first. A family's functions fill the kernel's arguments (_args), so that a
 * fusion can add to them, and queue the launches; they do not check arguments.
 */
#ifndef TE__OPS_KERNEL_H
#define TE__OPS_KERNEL_H

#include <te/kernel.h>
#include <te/optim.h>

#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"

/* ---- sums over rows ---- */

/* partial sums of rows: [TE_K_NPARTS(rows), cols] FP32, rounded up to the alignment */
size_t te__part_nbytes(int64_t rows, int64_t cols);
/* out += the partial sums */
int te__part_sum(struct te_stream *stream, const float *part, struct te_tensor *out, int64_t rows,
		 int64_t cols);
/* the same twice, by one launch if both have one type; out or out_b may be NULL */
int te__part_sum_two(struct te_stream *stream, const float *part, struct te_tensor *out,
		     const float *part_b, struct te_tensor *out_b, int64_t rows, int64_t cols);

/* ---- embedding ---- */

/* position, dposition, remainder: or NULL; at: INT32 positions of the rows, or NULL: those in a
 * sequence */
int te__embedding_fwd(struct te_stream *stream, const struct te_tensor *tokens,
		      const struct te_tensor *table, const struct te_tensor *position,
		      const void *const *remainder, const struct te_tensor *at, int64_t first,
		      int64_t ntokens, struct te_tensor *y);
/* dtable: or NULL */
int te__embedding_dw(struct te_stream *stream, const struct te_tensor *dy,
		     const struct te_tensor *tokens, struct te_tensor *dtable,
		     struct te_tensor *dposition, int64_t first);

/* ---- bias, residual, dropout ---- */

int te__bias_fwd(struct te_stream *stream, const struct te_tensor *x, const struct te_tensor *bias,
		 struct te_tensor *y);
int te__bias_dw(struct te_stream *stream, const struct te_tensor *dy, struct te_tensor *dbias,
		void *ws);
/* the same of memory: dy [rows, cols] */
int te__bias_dw_of(struct te_stream *stream, const void *dy, int32_t dtype, int64_t rows,
		   int64_t cols, struct te_tensor *dbias, void *ws);
int te__add(struct te_stream *stream, const struct te_tensor *a, const struct te_tensor *b,
	    struct te_tensor *y);

/*
 * Check attributes of ops and options of calls. The message begins with kind and name: "dropout "
 * and the op's name, or the name of the call and "". field: name of the probability.
 */
int te__dropout_check(const char *kind, const char *name, const char *field, float p);
int te__dropout_check_tag(const char *kind, const char *name, int64_t tag);
struct te__dropout {
	float p; /* 0: copies, unless y is x */
	uint32_t tag;
	struct te_rng_words rng;
	int64_t run, stride, first; /* as in struct te_k_dropout */
};
int te__dropout(struct te_stream *stream, const struct te_tensor *x, struct te_tensor *y,
		const struct te__dropout *d);

/* ---- norms ---- */

struct te__norm {
	const struct te_tensor *x, *gamma, *beta; /* beta is not read backward */
	const struct te_tensor *mean, *rstd;	  /* mean NULL: RMSNorm */
	float eps;
	uint32_t flags;
};
void te__norm_fwd_args(const struct te__norm *n, struct te_tensor *y, struct te_k_norm_fwd *ret);
/* residual: added to dx; or NULL. dx: memory of the result. z: also cast dx; or NULL */
int te__norm_bwd(struct te_stream *stream, const struct te__norm *n, const struct te_tensor *dy,
		 const struct te_tensor *residual, void *dx, const struct te__quantize *z);
/* NULL gradients are not computed */
int te__norm_dw(struct te_stream *stream, const struct te__norm *n, const struct te_tensor *dy,
		struct te_tensor *dgamma, struct te_tensor *dbeta, void *ws);
/*
 * te__norm_bwd() and te__norm_dw(), and te__bias_dw() of dx if dbias is not NULL, by one kernel if
 * there is one. Without z, dx may be dy. ws: partial sums of each of the gradients.
 */
int te__norm_grads(struct te_stream *stream, const struct te__norm *n, const struct te_tensor *dy,
		   const struct te_tensor *residual, void *dx, struct te_tensor *dgamma,
		   struct te_tensor *dbeta, struct te_tensor *dbias, const struct te__quantize *z,
		   void *ws);

/* ---- activations ---- */

void te__act_fwd_args(const struct te_tensor *x, struct te_tensor *y, enum te_act act,
		      int32_t gated, struct te_k_act_fwd *ret);
void te__act_bwd_args(const struct te_tensor *dy, const struct te_tensor *x, struct te_tensor *dx,
		      enum te_act act, int32_t gated, struct te_k_act_bwd *ret);
/* dbias: the sums are added to it, with partial sums in args->part; or NULL */
int te__act_bwd(struct te_stream *stream, struct te_k_act_bwd *args, struct te_tensor *dbias,
		const struct te__quantize *z);

/* ---- packed heads ---- */

/* kind, name: as in te__dropout_check() */
int te__rope_check(const char *kind, const char *name, const struct te_rope_attrs *a);
/* all but position and first */
void te__rope_args(const struct te_tensor *x, struct te_tensor *y, const struct te_rope_attrs *a,
		   int inverse, struct te_k_rope *ret);

struct te__attention {
	const struct te_tensor *x, *y, *lse;
	int32_t nheads, nkv, head_dim;
	float scale;	    /* 0: 1/sqrt(head_dim) */
	uint32_t threshold; /* dropout probability * 65536 */
	uint32_t tag;
	int32_t first_head, other_heads;
	struct te_rng_words rng;
	int32_t window, full, right;
	float softcap;
	const struct te_tensor *first, *sinks; /* or NULL */
};
int te__attention_check(const char *kind, const char *name, int32_t nheads, int32_t nkv,
			int32_t head_dim, float scale, float dropout);
int te__attention_check_scores(const char *kind, const char *name, int32_t window, float softcap);
int te__attention_check_full(const char *kind, const char *name, int32_t full, int32_t right);
/* 0, or -TE_ESHAPE if seqlen is too large for dropout */
int te__attention_check_dropout(const char *kind, const char *name, int64_t seqlen);
float te__attention_scale(float scale, int32_t head_dim);
/* scratch of the backward pass; plain: it has no dropout, softcap or documents, and is causal */
size_t te__attention_ws_nbytes(int plain, enum te_dtype dtype, int64_t batch, int64_t seqlen,
			       int32_t nheads, int32_t head_dim);
void te__attention_fwd_args(const struct te__attention *a, struct te_k_attn_fwd *ret);
int te__attention_bwd(struct te_stream *stream, const struct te__attention *a,
		      const struct te_tensor *dy, struct te_tensor *dx, void *ws);
/* adds gradients of sinks; batch: sequences in lse; x: shaped like y; ws: 4 bytes an element of
 * lse */
int te__attention_dsinks(struct te_stream *stream, const struct te__attention *a, int64_t batch,
			 const struct te_tensor *dy, const struct te_tensor *dsinks, void *ws);
/* sets delta and sums to ws; dsinks: to add gradients of sinks to, or NULL. With more.k, dk and dv
 * may be NULL */
int te__attention_bwd_launch(struct te_stream *stream, struct te_k_attn_bwd *k, void *ws,
			     const struct te_tensor *dsinks);

/* attention that te__attention cannot describe; q, k and v may be one tensor */
struct te__attend {
	struct te_kernel_attend_opts o; /* head_dim_v is not 0 */
	const struct te_tensor *q, *k, *v, *lse;
	const struct te_tensor *out;	  /* or NULL, as in te_k_attn_fwd */
	const struct te_tensor *const *d; /* backward: dq, dk, dv; dk and dv may be NULL */
	const struct te_tensor *first;	  /* as in te__attention */
	int64_t batch, qlen, klen;
	int32_t first_head, other_heads;
	int32_t dtype;
};
void te__attend_fwd_args(const struct te__attend *a, struct te_k_attn_fwd *ret);
void te__attend_bwd_args(const struct te__attend *a, const struct te_tensor *dout,
			 struct te_k_attn_bwd *ret);
/* adds the gradient of a->o.bias; ws: te__attend_dbias_ws() bytes */
int te__attend_dbias(struct te_stream *stream, struct te__attend *a, const struct te_tensor *dout,
		     struct te_tensor *dbias, void *ws);
/* scratch, for these numbers of elements of lse and of the bias */
size_t te__attend_dbias_ws(int64_t nlse, int64_t nbias);

/* a cache of keys and values; tensors as in te_kernel_attention_cached() */
struct te__attention_cache {
	const struct te_tensor *sequence, *position, *pages; /* pages: or NULL */
	const struct te_tensor *k, *v;
	const struct te_tensor *k_scale, *v_scale; /* with k and v of E4M3; else NULL */
	const struct te_tensor *slopes;		    /* or NULL */
	uint32_t *noutside; /* or NULL */
	float *parts; /* te__attention_parts_nbytes() bytes; or NULL: a row's keys are one part */
	uint32_t *ready; /* with parts: [rows, nheads], 0, and left so */
};
/* scratch of te__attention_cached() on a GPU, in which several blocks compute a row; 0: none */
size_t te__attention_parts_nbytes(const struct te_ctx *ctx, int64_t rows, int32_t nheads,
				  int32_t nkv, int32_t head_dim);
/*
 * State of embedding, rope and attention in the plans of a decoder (te_op_call.state; NULL in
 * other plans): rows of the main input are tokens at positions of several sequences.
 */
struct te__decode {
	struct te__attention_cache cache; /* embedding, rope: its position only */
	const struct te_tensor *token;	  /* embedding: read instead of x */
	/* 1: the rows of this pass have different sequences; NULL: no rope is next to attention */
	const int *one_each;
	const struct te_k_rope *rope; /* attention: what the rope before it leaves to it then */
};
/* rope: of x, whose rows have different sequences; or NULL */
int te__attention_cached(struct te_stream *stream, const struct te__attention *a,
			 const struct te__attention_cache *c, const struct te_k_rope *rope);

/* TE_GRADIENTS for nelems elements of x of a norm or of logits; auto: on the host, or if many */
int te__gradients_once(const struct te_ctx *ctx, int64_t nelems);

/* ---- cross-entropy ---- */

/* rows of logits and their loss; pointers that a launch does not use may be NULL */
struct te__ce {
	const void *logits; /* [rows, cols] */
	const int32_t *targets;
	float *max_sum, *row_loss, *count; /* as in te_k_ce_fwd and te_k_ce_reduce */
	float *loss;
	int64_t rows, cols, nclasses;
	int64_t first; /* class of the first column */
	int32_t ignore_index, dtype;
	int32_t part;	  /* as in te_k_ce_fwd */
	float grad_scale; /* backward */
};
int te__ce_fwd(struct te_stream *stream, const struct te__ce *e);
int te__ce_bwd(struct te_stream *stream, const struct te__ce *e, void *dlogits);
/* both passes of rows whose count is known */
int te__ce_grad(struct te_stream *stream, const struct te__ce *e, void *dlogits);
int te__ce_count(struct te_stream *stream, const struct te__ce *e);
/* loss and count */
int te__ce_reduce(struct te_stream *stream, const struct te__ce *e);
/* count, both passes, and the loss */
int te__ce_whole(struct te_stream *stream, const struct te__ce *e, void *dlogits);

/* ---- AdamW ---- */

/* elements of the weights whose moments a part has: its own, and the tail, which all parts have */
struct te__adamw_part {
	int64_t first, nelems; /* own ones */
	int64_t tail, ntail;
	int32_t nparts, part;
	int (*gather)(void *arg, struct te_stream *stream, void *all, size_t nbytes);
	void *arg;
};

/* moments, and perhaps remainders, weights and gradients, that are in pinned host memory: chunks of
 * them pass through buffers in device memory */
#define TE__ADAMW_NBUFS 3 /* one is filled, one is updated, one is emptied */
struct te__adamw_chunks {
	int64_t nelems; /* elements of a chunk, a multiple of TE_K_ALIGN_WEIGHT */
	char *buf;	/* device, TE__ADAMW_NBUFS times te__adamw_buf_nbytes() */
	int rest;	/* 1: the remainders are in host memory, too */
	int w, g;	/* bytes of a weight and of its gradient; 0: they are in device memory */
	const struct te__adamw_casts *casts; /* how weights pass, if w is 0; or NULL */
};

/* BF16 weights in host memory that are cast after their update, see optim_casts.c */
struct te__adamw_unit {
	int64_t end;  /* elements of this unit and of earlier ones */
	int end_cast; /* its casts and earlier ones */
};
struct te__adamw_casts {
	int64_t nelems; /* elements of the largest unit */
	char *buf;	/* device: two units */
	int nunits, ncasts;
	struct te__adamw_unit *unit;
	struct te__adamw_cast *cast;
	const void *copies; /* the sets that units were made for */
	const struct te_seq *seq;
	/* after the update of a unit in buf; and after the last one */
	int (*run)(struct te_stream *stream, const struct te__adamw_casts *c, int unit, char *buf);
	int (*end)(struct te_stream *stream, const struct te__adamw_casts *c);
};

/* weights that share a rate, decay and factors */
struct te__adamw_group {
	struct te_k_adamw_state *state;
	uint64_t *version; /* incremented by steps that were not skipped */
	float beta1, beta2, weight_decay;
};

/* elements of one group, from the end of the range before on; both are multiples of
 * TE_K_ALIGN_WEIGHT */
struct te__adamw_range {
	int64_t end;
	int32_t group; /* index of te__adamw.group */
};

struct te__adamw_file; /* plan/optim_file.h */

struct te__adamw {
	int64_t n; /* elements that all parts have together; w may be longer, with frozen weights */
	const struct te_tensor *g; /* with own_g: of this part */
	int own_g, own_w; /* own_w: weights are of this part, too */
	struct te_tensor *w, *m, *v;
	const struct te__adamw_chunks *chunks; /* NULL: moments are in device memory */
	struct te_recording *update; /* te__adamw_update(), recorded; or NULL */
	/* moments in a file: updates all chunks, by te__adamw_chunk(); or NULL */
	int (*update_file)(struct te__adamw_file *file, struct te_stream *stream,
			   const struct te__adamw *a);
	struct te__adamw_file *file;
	uint16_t *remainder; /* the bits that BF16 weights lack; or NULL */
	double *part; /* [nshards, TE_K_SUMSQ_PARTS] partial sums */
	const uint8_t *skip; /* 1: not counted in the norm; or NULL */
	const struct te_adamw_shards *shards; /* NULL: one shard */
	const struct te__adamw_part *own;     /* NULL: one part */
	const uint8_t *decay; /* as in te_kernel_adamw_opts; NULL: everywhere */
	const struct te__adamw_group *group;
	int32_t ngroups;
	const struct te__adamw_range *range; /* NULL: all elements are of group 0 */
	float eps, max_grad_norm;
};
int te__adamw_check(const char *fn, float beta1, float beta2, float eps, float weight_decay,
		    float max_grad_norm);
int te__adamw_set_lr(const char *fn, struct te_stream *stream, struct te_k_adamw_state *state,
		     float lr);
int te__adamw_step(struct te_stream *stream, const struct te__adamw *a);
/* the part of a step that follows the norm, and precedes the gather of parts */
int te__adamw_update(struct te_stream *stream, const struct te__adamw *a);
/*
 * Update n elements of the weights from `at` on, a chunk whose moments are in memory at `slot`, in
 * the layout of a buffer for `kept`: that also has room for weights and remainders.
 * te__adamw_keep() copies these there, or back.
 */
int te__adamw_chunk(struct te_stream *stream, const struct te__adamw *a, int64_t at, int64_t m_at,
		    int64_t n, const struct te__adamw_chunks *kept, char *slot);
int te__adamw_keep(struct te_stream *stream, const struct te__adamw *a, int64_t at, int64_t m_at,
		   int64_t n, const struct te__adamw_chunks *kept, char *slot, int back);
/* addresses of a moment in a slot: its elements, or its exponents, which only FP8 has, else NULL */
char *te__adamw_slot_moment(const struct te__adamw_chunks *kept, enum te_moments moments,
			    char *slot, int second, int exponents);
/* bytes of one buffer for a chunk */
size_t te__adamw_buf_nbytes(enum te_moments moments, const struct te__adamw_chunks *c);
/* queue the exchange of nbytes of each part, in place; nothing if there are none */
int te__adamw_gather(const char *fn, struct te_stream *stream, const struct te__adamw_part *own,
		     void *all, size_t nbytes);
/* how a moment in a tensor is stored */
enum te_moments te__adamw_moments(const struct te_tensor *t);

/* ---- checks of the public calls: fn begins the message, the argument's name follows ---- */

#define TE__ARG_OUT 1u	/* written: must not overlap others */
#define TE__ARG_NULL 2u /* may be NULL */
#define TE__ARG_GRAD 4u /* gradient of a weight: BF16, too */

struct te__arg {
	const char *name;
	const struct te_tensor *t;
	int32_t dtype;
	int64_t rows, cols; /* rows 0: cols elements in any shape */
	uint32_t flags;	    /* TE__ARG_* */
	uint32_t inplace;   /* bit i: argument i may be the same memory */
};

/* type, FP32 or BF16, and extents of the main tensor, which others must match */
struct te__main {
	int64_t rows, cols;
	int32_t dtype;
};
int te__arg_main(const char *fn, const struct te_stream *stream, const char *name,
		 const struct te_tensor *t, struct te__main *ret);
int te__args(const char *fn, const struct te_stream *stream, const struct te__arg *args, int n);
/* checks that t has two extents or more */
int te__arg_seq(const char *fn, const char *name, const struct te_tensor *t);
/* checks that t is aligned to 16 bytes */
int te__arg_aligned(const char *fn, const char *name, const struct te_tensor *t);
/* checks that dropout with probability p has the words; field: name of the probability */
int te__arg_rng(const char *fn, const char *field, float p, const struct te_rng_words *rng);
int te__arg_ws(const char *fn, const void *ws, size_t ws_nbytes, size_t need);
/* struct te__quantize from options that have quant, slot, q and quant_flags */
#define TE__QUANTIZE_OF(stream, o) \
	((struct te__quantize){ (stream), (o)->quant, (o)->slot, (o)->q, NULL, \
				 (o)->quant_flags, NULL, NULL })
/* checks the quantized output z of the result y, [rows, cols]; returns 1 if there is one */
int te__arg_q(const char *fn, const struct te__quantize *z, const char *name,
	      const struct te_tensor *y, int64_t rows, int64_t cols);
/* te__arg_q() for a kernel that casts with one scale */
int te__arg_q_tensor(const char *fn, const struct te__quantize *z, const char *name,
		     const struct te_tensor *y, int64_t rows, int64_t cols);

/* te__stream_queued() for an int expression that only launches several kernels */
#define TE__KERNELS(stream, expr) (te__stream_hold(stream), te__stream_held(stream, expr))

#endif
