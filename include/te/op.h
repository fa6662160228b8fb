/* te/op.h - operations: the table that an op fills in, and the library's ops. */
#ifndef TE_OP_H
#define TE_OP_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/export.h>
#include <te/quant.h>
#include <te/stream.h>
#include <te/tensor.h>

TE_BEGIN_DECLS

/*
 * An op has one main input x, which is the main output of the previous op, and one main output y.
 * It may have extra inputs and outputs, connected to named channels. Values are row-major. Ops on
 * rows treat all extents but the last as one.
 *
 * The table has no state; an op instance (struct te_op) holds the attributes. te_plan_create calls
 * infer() once; the plan's memory depends on its result. forward(), backward() and backward_dw()
 * get tensors at addresses that do not change until te_plan_bind is called. They only queue work on
 * the stream: they must not allocate or wait.
 */

struct te_op; /* opaque, reference counted */

/* Like all structs of this API without a size, it never gets another member. */
struct te_spec {
	enum te_dtype dtype;
	int32_t ndim;
	int64_t shape[TE_MAX_DIMS];
};

/* The forms of a value. */
#define TE_FORM_HP 1u  /* the compute dtype */
#define TE_FORM_ROW 2u /* FP8 row-wise */
#define TE_FORM_COL 4u /* FP8 column-wise */

enum te_init {
	TE_INIT_ZERO = 0,
	TE_INIT_ONE = 1,
	TE_INIT_NORMAL = 2 /* mean 0, deviation init_std */
};

#define TE_WEIGHT_DECAY 1u   /* AdamW applies weight decay to it */
#define TE_WEIGHT_COMPUTE 2u /* the op reads a copy in the compute dtype, not the FP32 master */
#define TE_WEIGHT_GEMM 4u    /* GEMM operand: FP8 with an FP8 recipe, if the op asks for it */
#define TE_WEIGHT_FROZEN 8u  /* no gradient, no optimizer state: te_seq_freeze() */
/* the op reads masters as stored, also BF16 with te_op_call.remainder; other ops get FP32 */
#define TE_WEIGHT_STORED 16u

/* One weight of an op: master and gradient are FP32, unless te_seq_bind() says otherwise. */
struct te_weight_decl {
	size_t size;	  /* set by the library; lets the struct grow */
	const char *name; /* "weight", "bias" */
	int32_t ndim;
	int64_t shape[TE_MAX_DIMS];
	enum te_init init;
	float init_std;
	uint32_t flags;
	struct te_op *tied_op; /* share weight tied_index of this op; NULL: not shared */
	int32_t tied_index;
};
#define TE_WEIGHT_DECL_INIT \
	{ sizeof(struct te_weight_decl), 0, 0, { 0 }, TE_INIT_ZERO, 0.0f, 0, 0, 0 }

#define TE_INFER_TRAIN 1u /* a backward pass will be planned */

/* Input and output of te_op_ops.infer. Index 0 of in and out: main, 1 and up: extra. */
struct te_op_infer {
	size_t size; /* set by the library; lets the struct grow */
	/* set by the plan */
	const struct te_op *op;
	const struct te_recipe *recipe;
	uint32_t flags; /* TE_INFER_* */
	const struct te_spec *in; /* [1 + nextra_in] */
	/* set by infer() */
	struct te_spec *out; /* [1 + nextra_out] */
	/* [1 + nextra_out] k: the output is input k itself, and no kernel runs for it; -1 (preset):
	 * a new value */
	int32_t *out_alias;
	int32_t dx_alias;   /* k: dx is the gradient of output k itself; -1 (preset) */
	int32_t *dex_alias; /* [nextra_in]: the same for the gradients of the extra inputs */
	uint32_t fwd_x;	   /* TE_FORM_*: main input in forward; preset HP */
	uint32_t save_x;   /* main input kept for backward; preset 0 */
	uint32_t save_y;   /* main output kept for backward; preset 0 */
	uint32_t bwd_dy;   /* output gradient, for backward(); preset HP */
	uint32_t dw_x;	   /* main input kept for backward_dw(); preset 0 */
	uint32_t dw_dy;	   /* output gradient for backward_dw(); preset 0 */
	/* [nextra_in] extra inputs (HP) that are kept: 1 for backward(), 2 for backward_dw(), 3 for
	 * both; preset 0 */
	int32_t *save_ex;
	/* [number of weights] TE_FORM_*: copies that the op reads; 0 (preset): the FP32 master */
	uint32_t *weight_forms;
	uint32_t inplace_fwd; /* 1: y may share memory with x if this is the last use of x */
	/* 1: dx may share memory with dy, dey 0 or the saved x, if this is its last use */
	uint32_t inplace_bwd;
	struct te_spec *saved; /* [nsaved] tensors declared by te_infer_save() */
	int32_t nsaved;
	size_t fwd_ws_nbytes, bwd_ws_nbytes, dw_ws_nbytes; /* scratch while the function runs */
	int32_t uses_rng; /* 1: te_op_call.rng is needed */
	int32_t no_dx;	  /* 1: the main input has no gradient (tokens) */
	/* floating-point operations of the matrix products of forward(), backward() and
	 * backward_dw(), for te_plan_profile(); preset 0 */
	double fwd_flops, bwd_flops, dw_flops;
	uint32_t dw_y; /* main output kept for backward_dw(), TE_FORM_HP; preset 0 */
};

/**
 * te_infer_save - let the plan keep a tensor that forward writes and backward reads
 * @inf:  the argument of infer()
 * @spec: type and shape of the tensor, copied
 *
 * For infer() only. Returns the tensor's index in te_op_call.saved.
 * Thread: the thread that called infer().  Since: 0.1
 * Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_infer_save(struct te_op_infer *inf, const struct te_spec *spec);

/* A value at run time. Absent forms are NULL. */
struct te_op_value {
	struct te_tensor *hp;
	struct te_tensor *q;	 /* FP8 copies; extents padded with zeros to multiples of 16 */
	struct te_quant *quant;	 /* quantizers that make the copies */
	int32_t slot;		 /* quantizer of this value */
};

/* State of a sequence's counter-based random numbers, in device memory. */
struct te_rng_words {
	const uint64_t *seed;	/* one word */
	/* one word: offset of the forward pass, by te_plan_set_rng; backward reads the same word */
	const uint64_t *offset;
};

struct te_op_call {
	size_t size; /* set by the library; lets the struct grow */
	const struct te_op *op;
	struct te_stream *stream;
	uint32_t flags;	 /* TE_CALL_* */
	/* index of the op in its sequence: makes random numbers differ between ops without a tag
	 * attribute */
	uint32_t tag;
	struct te_op_value x, y;   /* forward: input, output; backward: if saved */
	struct te_op_value dy, dx; /* backward only */
	const struct te_op_value *ex, *ey;   /* [nextra_in], [nextra_out] */
	const struct te_op_value *dex, *dey; /* [nextra_in], [nextra_out]; backward only */
	const struct te_op_value *weight;    /* copies, by infer()'s weight_forms */
	struct te_tensor *const *master;     /* FP32; with TE_WEIGHT_STORED BF16, too */
	struct te_tensor *const *grad; /* gradients to add to, FP32 or BF16; NULL: frozen weight */
	struct te_tensor *const *saved;	     /* [nsaved] */
	void *ws; /* device scratch, 256-byte aligned */
	size_t ws_nbytes;
	struct te_rng_words rng;
	void *state; /* from bind(), for this function */
	/* factor on the gradient that a loss begins backward with: grad_scale of te_plan_opts */
	float grad_scale;
	/* [number of weights] of BF16 masters: 16 bits per element that make them FP32, as in
	 * te_kernel_adamw_opts; or NULL */
	const void *const *remainder;
};
#define TE_CALL_TRAIN 1u
#define TE_CALL_NO_AMAX 2u /* do not record amaxes (evaluation) */
#define TE_CALL_REPEAT 4u  /* forward() runs again, in backward: change nothing but outputs */

enum te_op_fn { TE_OP_FORWARD = 0, TE_OP_BACKWARD = 1, TE_OP_BACKWARD_DW = 2 };

/* te_op_ops.flags: forward() can run again in backward: it is cheap, writes the same bits for the
 * same inputs, and changes nothing but its outputs */
#define TE_OP_REPEATS 1u
/* the same, but it is not cheap: only plans with TE_PLAN_RECOMPUTE_COSTLY run it again */
#define TE_OP_REPEATS_COSTLY 2u

struct te_op_ops {
	size_t size;	  /* sizeof(struct te_op_ops); lets the struct grow */
	const char *name; /* "linear": printed by plans and matched by fusions */
	size_t attrs_nbytes;
	int32_t nextra_in, nextra_out;
	/* check attributes when the op is created; may be NULL */
	int (*check)(const struct te_op *op);
	/* fill in the declaration of weight index and return 1; return 0 if there are only index
	 * weights. Called when the op is created; NULL: the op has no weights */
	int (*weight)(const struct te_op *op, int32_t index, struct te_weight_decl *ret_decl);
	int (*infer)(struct te_op_infer *inf);
	int (*forward)(const struct te_op_call *c);	/* NULL when all outputs alias */
	int (*backward)(const struct te_op_call *c);	/* dx, dex; NULL when they alias */
	/* weight gradients; NULL without weights. Not called if all weights are frozen */
	int (*backward_dw)(const struct te_op_call *c);
	/* one-line attributes for plan prints; may be NULL */
	int (*describe)(const struct te_op *op, char *dst, size_t nbytes);
	void (*destroy)(struct te_op *op); /* may be NULL */
	void *user; /* for the functions: te_op_table(c->op)->user */
	/*
	 * bind() prepares the function fn for the addresses in c, which are the same in each run.
	 * te_plan_create() and te_plan_bind() call it at their end, unless a fusion replaces fn.
	 * unbind() releases the state before the plan is bound again or destroyed: work that uses
	 * it may still be queued or recorded. Both may be NULL
	 */
	int (*bind)(const struct te_op_call *c, enum te_op_fn fn, void **ret_state);
	void (*unbind)(const struct te_op *op, enum te_op_fn fn, void *state);
	uint32_t flags; /* TE_OP_* */
};
#define TE_OP_OPS_INIT { sizeof(struct te_op_ops), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_op_create - create an instance of an operation
 * @ops:    its table, which must outlive the op
 * @attrs:  ops->attrs_nbytes bytes, copied; NULL when that is 0
 * @name:   unique within a sequence ("h.0.attn.qkv"), copied
 * @ret_op: the op, with one reference
 *
 * Thread: any.  Since: 0.1
 */
TE_EXPORT int te_op_create(const struct te_op_ops *ops, const void *attrs, const char *name,
			   struct te_op **ret_op);
TE_EXPORT struct te_op *te_op_ref(struct te_op *op);
TE_EXPORT struct te_op *te_op_unref(struct te_op *op);
/* plans created later keep the op's outputs and saved tensors in device memory: they neither
 * offload them (te_offload_create) nor compute them again */
TE_EXPORT int te_op_keep(struct te_op *op);
/* plans created later do not keep the op's outputs for backward, but compute them again there if
 * possible: see te_plan_saved. Of this and te_op_keep, the latest call applies */
TE_EXPORT int te_op_recompute(struct te_op *op);
TE_EXPORT const char *te_op_name(const struct te_op *op);
TE_EXPORT const struct te_op_ops *te_op_table(const struct te_op *op);
TE_EXPORT const void *te_op_attrs(const struct te_op *op);

/**
 * te_op_give, te_op_take - connect an extra output or input to a named channel
 * @op:      the op
 * @index:   0 .. nextra-1
 * @channel: name of the channel, copied
 *
 * Thread: one op by one thread at a time.  Since: 0.1
 * Errors: -EINVAL (index, empty name), -EBUSY (the op's sequence has been initialised).
 * A channel needs exactly one op that gives it, before all ops that take it, or te_seq_init fails
 * with -TE_ECHANNEL and names the ops. Gradients from several takers are summed.
 */
TE_EXPORT int te_op_give(struct te_op *op, int index, const char *channel);
TE_EXPORT int te_op_take(struct te_op *op, int index, const char *channel);

/* ---- the library's ops ---- */

#ifndef __cplusplus
/*
 * Attributes of an op, in C; attributes not given have the defaults of the INIT macros:
 *	struct te_linear_attrs a = TE_ATTRS(linear, .in = 768, .out = 3072);
 * init_std is 0.02, eps 1e-5, theta 10000, ignore_index -100, grad_scale 1, factor 1, and forward
 * and backward of struct te_quantize_attrs are 1.
 */
#define TE_ATTRS(op, ...) \
	{ TE_ATTRS_##op .size = sizeof(struct te_##op##_attrs), __VA_ARGS__ }
#define TE_ATTRS_embedding .init_std = 0.02f,
#define TE_ATTRS_linear .init_std = 0.02f,
#define TE_ATTRS_bias
#define TE_ATTRS_norm .eps = 1e-5f,
#define TE_ATTRS_act
#define TE_ATTRS_qk_norm .eps = 1e-5f,
#define TE_ATTRS_rope .theta = 10000.0f,
#define TE_ATTRS_attention
#define TE_ATTRS_dropout
#define TE_ATTRS_scale .factor = 1.0f,
#define TE_ATTRS_reshape
#define TE_ATTRS_quantize .forward = 1, .backward = 1,
#define TE_ATTRS_cross_entropy .ignore_index = -100, .grad_scale = 1.0f,
/* -Wextra of GCC and Clang would report members that replace their default */
#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
#endif

/* tokens [B,T] INT32 -> [B,T,width]: table row, plus position row when max_pos > 0. Token ids
 * outside the table read as zero rows and get no gradient; te_step_loss() reports ids outside
 * [0,ntokens). Weights: weight [vocab,width], position [max_pos,width]. */
struct te_embedding_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int64_t vocab, width;
	int64_t max_pos; /* 0: no learned positions */
	float init_std;
	int64_t first; /* token of the table's first row: ranks may divide a table */
	int64_t ntokens; /* vocabulary size over all ranks; 0: first + vocab */
};
#define TE_EMBEDDING_ATTRS_INIT { sizeof(struct te_embedding_attrs), 0, 0, 0, 0.02f, 0, 0 }
TE_EXPORT int te_op_embedding(const struct te_embedding_attrs *a, const char *name,
			      struct te_op **ret_op);

/* y = x w^T, w [out,in] */
struct te_linear_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int64_t in, out;
	float init_std;
	int32_t keep_hp;	/* 1: never FP8, for example the output head */
	struct te_op *tied_op;	/* embedding whose table is used as the weight, or NULL */
	/* recipe of this op's casts, with the plan's compute dtype; TE_RECIPE_NONE: never FP8;
	 * NULL: the plan's recipe */
	const struct te_recipe *recipe;
};
#define TE_LINEAR_ATTRS_INIT { sizeof(struct te_linear_attrs), 0, 0, 0.02f, 0, 0, 0 }
TE_EXPORT int te_op_linear(const struct te_linear_attrs *a, const char *name,
			   struct te_op **ret_op);

struct te_bias_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int64_t width;
};
#define TE_BIAS_ATTRS_INIT { sizeof(struct te_bias_attrs), 0 }
TE_EXPORT int te_op_bias(const struct te_bias_attrs *a, const char *name, struct te_op **ret_op);

#define TE_NORM_ZERO_CENTERED 1u /* gain is 1 + gamma, gamma starts at 0 */
struct te_norm_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int64_t width;
	float eps;
	uint32_t flags;
};
#define TE_NORM_ATTRS_INIT { sizeof(struct te_norm_attrs), 0, 1e-5f, 0 }
/* weights: weight [width], bias [width] */
TE_EXPORT int te_op_layernorm(const struct te_norm_attrs *a, const char *name,
			      struct te_op **ret_op);
/* weight: weight [width] */
TE_EXPORT int te_op_rmsnorm(const struct te_norm_attrs *a, const char *name, struct te_op **ret_op);

enum te_act {
	TE_ACT_GELU = 0, /* tanh form */
	TE_ACT_QGELU = 1,
	TE_ACT_RELU = 2,
	TE_ACT_SRELU = 3,
	TE_ACT_SILU = 4,
	TE_ACT_SIGMOID = 5,
	TE_ACT_GELU_ERF = 6, /* x times the normal distribution function */
	TE_ACT_TANH = 7,
	TE_ACT_COUNT
};
/* gated: x [...,2F] -> act(first half) * second half [...,F]: SwiGLU is gated SiLU, GLU
 * gated sigmoid */
struct te_act_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	enum te_act act;
	int32_t gated;
};
#define TE_ACT_ATTRS_INIT { sizeof(struct te_act_attrs), TE_ACT_GELU, 0 }
TE_EXPORT int te_op_activation(const struct te_act_attrs *a, const char *name,
			       struct te_op **ret_op);

/*
 * Packed heads: the last extent of the value is [nheads q | nkv k | nkv v] * head_dim.
 * RoPE turns q and k by position (0 .. T-1), pairing element i with i + head_dim/2 as
 * Hugging Face's Llama does, or with interleaved, elements 2 i and 2 i + 1, as GPT-J and the
 * weights that Meta published do.
 */
struct te_rope_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int32_t nheads, nkv, head_dim; /* head_dim even, at most 256 */
	float theta; /* unused if inv_freq is given */
	/* host memory [head_dim/2], copied: angle in radians, finite, by which elements i and i +
	 * head_dim/2 turn from one position to the next; 0 leaves both as they are (partial
	 * rotation). NULL: theta^(-2i/head_dim) */
	const float *inv_freq;
	int32_t documents; /* 1: as in te_attention_attrs; positions of a document begin with 0 */
	/* 1: extra input 0, INT32 [B,T], has the position of each token; without documents. A
	 * decoder counts positions itself */
	int32_t positions;
	int32_t interleaved; /* 1: pairs are elements 2 i and 2 i + 1 of a head */
	/* "dynamic" scaling of config.json. With dynamic_positions above 0, in a plan whose T is
	 * larger, the angle of pair i is divided by s^(2i/(n-2)), where n elements of a head turn
	 * and s = dynamic_factor T / dynamic_positions - dynamic_factor + 1. dynamic_factor is
	 * above 0. A decoder takes at most dynamic_positions tokens */
	int64_t dynamic_positions;
	float dynamic_factor;
};
#define TE_ROPE_ATTRS_INIT { sizeof(struct te_rope_attrs), 0, 0, 0, 10000.0f, 0, 0, 0, 0, 0, 0.0f }
TE_EXPORT int te_op_rope(const struct te_rope_attrs *a, const char *name, struct te_op **ret_op);

/*
 * RMSNorm of q and k among packed heads; v is copied. Each head is a row of the norm, with a gain
 * that all heads of q share and another that all heads of k share (Qwen3); whole: all heads of q
 * are one row, and all heads of k another (OLMo 2). Weights: q, k [head_dim]; whole:
 * q [nheads * head_dim], k [nkv * head_dim].
 */
struct te_qk_norm_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int32_t nheads, nkv, head_dim;
	int32_t whole;
	float eps;
	uint32_t flags; /* TE_NORM_ZERO_CENTERED */
};
#define TE_QK_NORM_ATTRS_INIT { sizeof(struct te_qk_norm_attrs), 0, 0, 0, 0, 1e-5f, 0 }
TE_EXPORT int te_op_qk_norm(const struct te_qk_norm_attrs *a, const char *name,
			    struct te_op **ret_op);

/* Where attention has its keys and values: D elements of each head of k, and Dv of v. */
enum te_attention_operands {
	TE_ATTENTION_QKV = 0,	/* x [B,T,nheads D + nkv (D + Dv)]: q, k, v */
	TE_ATTENTION_Q_KV = 1,	/* x [B,T,nheads D]; extra input [B,S,nkv (D + Dv)]: k, v */
	TE_ATTENTION_Q_K_V = 2, /* x; extra inputs k [B,S,nkv D], v [B,S,nkv Dv] */
	TE_ATTENTION_OPERANDS_COUNT
};

/*
 * causal attention: x [B,T,(nheads+2 nkv) D] -> [B,T,nheads D]. On a GPU a NaN or infinity may
 * affect up to 127 tokens before its own. If a head's bytes are a multiple of 16, x and y that the
 * caller binds must be aligned to 16 bytes (-EINVAL). The order of extra inputs is: k and v,
 * documents, bias, offsets of q, offsets of k; without inputs that the attributes do not ask for.
 */
struct te_attention_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	/* nheads a multiple of nkv; head_dim <= 256, in FP32 on a GPU 128, else plans are refused
	 * (-EOPNOTSUPP) */
	int32_t nheads, nkv, head_dim;
	float scale;   /* 0: 1/sqrt(head_dim) */
	float dropout; /* share of the probabilities that is dropped, [0,1) */
	/* dropout: ops of different tags drop different elements; 0: the op's index */
	int64_t tag;
	/* dropout: the op has heads first_head and up of all_heads, and drops the elements that an
	 * op with all of them would drop; all_heads 0: nheads */
	int32_t first_head, all_heads;
	int32_t window; /* a token attends to itself and window - 1 tokens before it; 0: to all */
	float softcap;	/* c: a score s becomes c tanh(s / c); 0: no cap */
	/* 1: extra input 0, INT32 [B,T], has for each token the index in the sequence of the first
	 * token of its document; a token attends to its document only. Indices are clamped to 0 at
	 * least and the token's own index at most */
	int32_t documents;
	int32_t full;  /* 1: not causal: a token also attends to later tokens of its document */
	int32_t right; /* with full: number of later tokens that it attends to; 0: all */
	/* 1: a weight "sinks" [nheads], the score of one more key, whose value is 0 */
	int32_t sinks;
	int32_t operands;   /* enum te_attention_operands */
	int32_t head_dim_v; /* elements of a head of v and y, at most 256; 0: head_dim */
	/* 0: query i of a sequence is at the position of key i; 1: the last query is at the
	 * position of the last key */
	int32_t bottom;
	/* 1: an extra input, FP32 [T,S] or [nheads,T,S], is added to the scores of all sequences;
	 * S: keys of a sequence. GPUs compute no gradient of it: plans that need that are refused
	 * (-EOPNOTSUPP) */
	int32_t bias;
	/* 1: the distance of a key from the query, times the head's slope, is subtracted from its
	 * score (ALiBi) */
	int32_t alibi;
	/* 1: sequences of different lengths follow each other. An extra input, INT32 [n + 1], has
	 * the row of q at which each sequence begins, and the end of the last one; if k and v are
	 * extra inputs, another one has the rows of k. Rows ascend. Not with documents */
	int32_t offsets;
	/* with alibi: slopes in host memory [nheads], finite, copied. NULL: 2^(-8/n), 2^(-16/n)
	 * and so on if n, the number of heads, is a power of two; see te_op_attention(3) */
	const float *slopes;
	/* above 0: a weight "bias" [nheads, bias_queries, bias_keys] is added to the scores of all
	 * sequences, each of bias_queries queries and bias_keys keys. Not with bias */
	int64_t bias_queries, bias_keys;
};
#define TE_ATTENTION_ATTRS_INIT                                                                 \
	{ sizeof(struct te_attention_attrs), 0, 0, 0, 0.0f, 0.0f, 0, 0, 0, 0, 0.0f, 0, 0, 0, 0, \
	  0, 0, 0, 0, 0, 0, 0, 0, 0 }
TE_EXPORT int te_op_attention(const struct te_attention_attrs *a, const char *name,
			      struct te_op **ret_op);

struct te_dropout_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	float p; /* [0,1) */
	int64_t tag; /* ops of different tags drop different elements; 0: the op's index */
	/* x is part `part` of a larger value whose extent axis is divided into nparts equal parts;
	 * the op drops the same elements as on the whole value. The product of x's extents from
	 * axis on is a multiple of 8. nparts 0: x is not a part */
	int32_t axis, nparts, part;
};
#define TE_DROPOUT_ATTRS_INIT { sizeof(struct te_dropout_attrs), 0.0f, 0, 0, 0, 0 }
TE_EXPORT int te_op_dropout(const struct te_dropout_attrs *a, const char *name,
			    struct te_op **ret_op);

/* y = factor x */
struct te_scale_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	float factor; /* finite */
};
#define TE_SCALE_ATTRS_INIT { sizeof(struct te_scale_attrs), 1.0f }
TE_EXPORT int te_op_scale(const struct te_scale_attrs *a, const char *name, struct te_op **ret_op);

/* y is x; no kernel runs */
TE_EXPORT int te_op_identity(const char *name, struct te_op **ret_op);

/* y has the elements of x and other extents; copied if x is needed later */
struct te_reshape_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int32_t ndim; /* 0: one extent, of all elements */
	int64_t shape[TE_MAX_DIMS]; /* one may be -1: computed from the others */
};
#define TE_RESHAPE_ATTRS_INIT { sizeof(struct te_reshape_attrs), 0, { 0 } }
TE_EXPORT int te_op_reshape(const struct te_reshape_attrs *a, const char *name,
			    struct te_op **ret_op);

/*
 * y is x after a cast to the recipe's FP8 type of activations and back, and dx is dy after a cast
 * to the FP8 type of gradients and back; without FP8 in the recipe the op is the identity. Plans
 * print its type as fake_quantize.
 */
struct te_quantize_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int32_t forward, backward; /* 1: cast the value; 1: cast the gradient */
};
#define TE_QUANTIZE_ATTRS_INIT { sizeof(struct te_quantize_attrs), 1, 1 }
TE_EXPORT int te_op_quantize(const struct te_quantize_attrs *a, const char *name,
			     struct te_op **ret_op);

/* y and extra output 0 are x. Backward sums both gradients. */
TE_EXPORT int te_op_fork(const char *name, struct te_op **ret_op);
/* y = x + extra input 0 */
TE_EXPORT int te_op_add(const char *name, struct te_op **ret_op);
/* y is extra input 0, and extra output 0 is x: a second branch begins from a channel. No kernel
 * runs. */
TE_EXPORT int te_op_swap(const char *name, struct te_op **ret_op);

/*
 * Mean softmax cross-entropy over the rows with a valid target: x logits [B,T,V], extra input 0
 * targets [B,T] INT32 -> y FP32 [1]. Classes beyond nclasses are padding: probability 0, gradient
 * 0. Rows with target == ignore_index are ignored, and so are rows with a target outside
 * [0,nclasses), which te_step_loss() reports. If all rows are ignored, loss and gradient are 0. The
 * op is the last one of a sequence: its backward starts from grad_scale times the grad_scale of
 * te_plan_opts.
 */
struct te_cross_entropy_attrs {
	size_t size; /* set by TE_ATTRS or the INIT macro; lets the struct grow */
	int64_t nclasses;
	int32_t ignore_index; /* rows with this target are ignored; -100 by default */
	float grad_scale;
	/* rows whose logits exist at a time, a multiple of 16; 0: all rows. Has an effect if
	 * te_op_linear computes the logits, not in FP8, and nothing else reads them, see
	 * te_op_linear(3) */
	int64_t chunk;
};
#define TE_CROSS_ENTROPY_ATTRS_INIT { sizeof(struct te_cross_entropy_attrs), 0, -100, 1.0f, 0 }
TE_EXPORT int te_op_cross_entropy(const struct te_cross_entropy_attrs *a, const char *name,
				  struct te_op **ret_op);

TE_END_DECLS

#endif
