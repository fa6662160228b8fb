/*
 * te/comm_op.h - operations of sequences whose forward or backward pass communicates.
 *
 * Ranks that divide a model have sequences with the same operations in the same order.
 * Communication follows the rules of te/collective.h: all ranks run their passes in the same order,
 * eagerly or recorded, and results have the same bits on every rank. n is the number of ranks.
 *
 *			y				dx
 *	allreduce	sum of x over the ranks		dy
 *	copy		x				sum of dy over the ranks
 *	reduce_scatter	this rank's part of that sum	dy of all ranks, in rank order
 *	all_gather	x of all ranks, in rank order	this rank's part of the sum of dy
 *
 * A layer that is divided into columns begins with copy or all_gather; a layer that is divided into
 * rows ends with allreduce or reduce_scatter. With one rank each op is the identity.
 *
 * Where ranks divide the tokens of sequences instead (context parallel), attention is between
 * to_heads and to_tokens.
 *
 * Values have the compute dtype of the recipe; sums are rounded to it once. An op holds a reference
 * to the communicator, which must belong to the context of the op's sequence.
 */
#ifndef TE_COMM_OP_H
#define TE_COMM_OP_H

#include <stddef.h>
#include <stdint.h>

#include <te/collective.h>
#include <te/comm.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_op;  /* te/op.h */
struct te_seq; /* te/seq.h */
struct te_cross_entropy_attrs; /* te/op.h */

struct te_comm_op_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	enum te_comm_algorithm algorithm; /* as in te_comm_call_opts */
	int32_t max_blocks;		  /* as in te_comm_call_opts */
	/* all_gather, reduce_scatter: index of the extent that has a part for each rank, divisible
	 * by n. One collective is queued for each index of the extents before it */
	int32_t axis;
};
#define TE_COMM_OP_OPTS_INIT { sizeof(struct te_comm_op_opts), TE_COMM_AUTO, 0, 0 }

/**
 * te_comm_op_allreduce, te_comm_op_copy - sums of whole values, in forward or in backward
 * @comm:   the ranks
 * @opts:   NULL: defaults; equal on all ranks
 * @name:   as in te_op_create()
 * @ret_op: the op, with one reference
 *
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM; when a pass is queued, the errors of te_comm_allreduce().
 */
TE_EXPORT int te_comm_op_allreduce(struct te_comm *comm, const struct te_comm_op_opts *opts,
				   const char *name, struct te_op **ret_op);
TE_EXPORT int te_comm_op_copy(struct te_comm *comm, const struct te_comm_op_opts *opts,
			      const char *name, struct te_op **ret_op);
/**
 * te_comm_op_reduce_scatter, te_comm_op_all_gather - sum to parts of an extent; gather the parts
 * @comm:   the ranks
 * @opts:   NULL: defaults; equal on all ranks
 * @name:   as in te_op_create()
 * @ret_op: the op, with one reference
 *
 * te_comm_op_reduce_scatter makes the extent opts->axis n times smaller, te_comm_op_all_gather n
 * times larger. Arguments and errors as for te_comm_op_allreduce().
 * Thread: any.  Since: 0.1
 */
TE_EXPORT int te_comm_op_reduce_scatter(struct te_comm *comm, const struct te_comm_op_opts *opts,
					const char *name, struct te_op **ret_op);
TE_EXPORT int te_comm_op_all_gather(struct te_comm *comm, const struct te_comm_op_opts *opts,
				    const char *name, struct te_op **ret_op);

/**
 * te_comm_op_cross_entropy - te_op_cross_entropy() with classes divided among ranks
 * @comm:   the ranks
 * @attrs:  as for te_op_cross_entropy(); nclasses counts the classes of all ranks
 * @name:   as in te_op_create()
 * @ret_op: the op, with one reference
 *
 * Rank r has the logits of classes r V to (r + 1) V - 1, [B,T,V]; targets are equal on all ranks.
 * On every rank the loss is bit-identical to te_kernel_cross_entropy_join(), and each rank gets the
 * gradient of its own logits. Put te_comm_op_copy() before the layer that computes the logits from
 * a value that all ranks have.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM; when a pass is queued, the errors of te_comm_all_gather().
 */
TE_EXPORT int te_comm_op_cross_entropy(struct te_comm *comm,
				       const struct te_cross_entropy_attrs *attrs,
				       const char *name, struct te_op **ret_op);

/* The heads of all ranks, as in te_attention_attrs of te/op.h; equal on all of them. */
struct te_comm_heads_attrs {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nheads, nkv, head_dim; /* nheads a multiple of nkv and of n */
};
#define TE_COMM_HEADS_ATTRS_INIT { sizeof(struct te_comm_heads_attrs), 0, 0, 0 }

/**
 * te_comm_op_to_heads, te_comm_op_to_tokens - divide heads instead of tokens, and undo it
 * @comm:   the ranks; n divides nkv, or is a multiple of it
 * @attrs:  the heads
 * @name:   as in te_op_create()
 * @ret_op: the op, with one reference
 *
 * For attention in a model whose tokens are divided among ranks. Rank r has tokens r T/n to (r + 1)
 * T/n - 1 of each sequence, and heads r h/n to (r + 1) h/n - 1 of h; if n is above nkv, n/nkv ranks
 * have the same head of keys and values.
 * to_heads: x [B,T/n,(nheads+2 nkv) D] -> [B,T,(nheads/n+2 k) D] with k = nkv/n, or 1 if n is above
 * nkv: the packed heads of this rank, for te_op_rope() and te_op_attention(). to_tokens:
 * x [B,T,nheads/n D] -> [B,T/n,nheads D]. Bytes do not change, except that gradients of a shared
 * head are added up in FP32 in rank order and rounded. With one rank each op is the identity.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -EOPNOTSUPP (backend cuda); when a pass is queued, the errors of
 * te_comm_alltoall().
 */
TE_EXPORT int te_comm_op_to_heads(struct te_comm *comm, const struct te_comm_heads_attrs *attrs,
				  const char *name, struct te_op **ret_op);
TE_EXPORT int te_comm_op_to_tokens(struct te_comm *comm, const struct te_comm_heads_attrs *attrs,
				   const char *name, struct te_op **ret_op);

/**
 * te_comm_op_cross_entropy_tokens - te_op_cross_entropy() with tokens divided among ranks
 * @comm:   the ranks
 * @attrs:  as for te_op_cross_entropy(); chunk is 0
 * @name:   as in te_op_create()
 * @ret_op: the op, with one reference
 *
 * Rank r has the logits [B,T/n,V] and targets [B,T/n] of its tokens. The loss is the mean over the
 * rows of all ranks with a valid target. Each rank gets the gradient of its own logits. Loss and
 * gradients are bit-identical to te_op_cross_entropy() on all rows. The gradient of a weight is the
 * sum over the ranks, as te_comm_reducer_create() computes it.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM; when a pass is queued, the errors of te_comm_all_gather().
 */
TE_EXPORT int te_comm_op_cross_entropy_tokens(struct te_comm *comm,
					      const struct te_cross_entropy_attrs *attrs,
					      const char *name, struct te_op **ret_op);

/**
 * te_comm_add_fusions - fuse these ops with the norm that follows them, by te_seq_add_fusion()
 * @seq: must have no plan yet
 *
 * Forward: allreduce, an optional add, rmsnorm and an optional cast to FP8 become
 * te_comm_allreduce_norm(). Backward: copy, rmsnorm and fork become
 * te_comm_allreduce_norm_backward(). In forward, and in backward where latency matters,
 * reduce_scatter and all_gather around the norm may take the place of allreduce and copy. For an
 * allreduce, residuals and their gradients must be equal on all ranks. Results are bit-identical to
 * a plan without these fusions, except as te_comm_allreduce_norm() describes.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: as te_seq_add_fusion().
 */
TE_EXPORT int te_comm_add_fusions(struct te_seq *seq);

TE_END_DECLS

#endif
