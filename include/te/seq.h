/* te/seq.h - a sequence: an ordered list of ops, with their weights. */
#ifndef TE_SEQ_H
#define TE_SEQ_H

#include <stddef.h>
#include <stdint.h>
#include <te/op.h>
#include <te/region.h>

TE_BEGIN_DECLS

struct te_seq; /* opaque, reference counted */

TE_EXPORT int te_seq_create(struct te_ctx *ctx, struct te_seq **ret_seq);
TE_EXPORT struct te_seq *te_seq_ref(struct te_seq *seq);
TE_EXPORT struct te_seq *te_seq_unref(struct te_seq *seq);
TE_EXPORT struct te_ctx *te_seq_ctx(const struct te_seq *seq);

/**
 * te_seq_append - add an op at the end; takes a reference
 * @seq: the sequence
 * @op:  the op to append
 *
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EEXIST (name in use), -EBUSY (already initialised, or op is in another sequence).
 */
TE_EXPORT int te_seq_append(struct te_seq *seq, struct te_op *op);
/**
 * te_seq_fork, te_seq_add - a residual around the ops that are appended between the two calls
 * @seq:  the sequence
 * @name: name of the fork and of its channel, equal in both calls; the add is "name.add"
 *
 * te_seq_fork appends te_op_fork(), and te_seq_add appends te_op_add() of that channel.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -EEXIST (name in use), -EBUSY (already initialised), -ENOMEM.
 */
TE_EXPORT int te_seq_fork(struct te_seq *seq, const char *name);
TE_EXPORT int te_seq_add(struct te_seq *seq, const char *name);
/**
 * te_seq_input - declare a channel that the caller writes, such as targets or masks
 * @seq:       the sequence
 * @channel:   name of the channel, copied
 * @dtype:     its element type
 * @ndim_tail: number of extents in tail
 * @tail:      extents above 0 that follow [B,T] in its shape; NULL if there are none
 *
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ECHANNEL (an input of that name exists), -EBUSY (initialised), -ENOMEM.
 */
TE_EXPORT int te_seq_input(struct te_seq *seq, const char *channel, enum te_dtype dtype,
			   int ndim_tail, const int64_t *tail);
/**
 * te_seq_input_shape - declare a channel that the caller writes, of any shape
 * @seq:     the sequence
 * @channel: name of the channel, copied
 * @dtype:   its element type
 * @ndim:    number of extents, 1 to TE_MAX_DIMS
 * @shape:   extents; 0: the extent of that index of the plan's main input
 *
 * For example a bias of attention [nheads,T,S], or {0, S}: S tokens of another text for each
 * sequence. Plans whose main input has no such extent are refused (-TE_ESHAPE).
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: as te_seq_input().
 */
TE_EXPORT int te_seq_input_shape(struct te_seq *seq, const char *channel, enum te_dtype dtype,
				 int ndim, const int64_t *shape);
TE_EXPORT int te_seq_nops(const struct te_seq *seq);
TE_EXPORT struct te_op *te_seq_op(const struct te_seq *seq, int index);

/**
 * te_seq_complete - check the channels and lay out the weights, without allocating them
 * @seq: the sequence
 *
 * Afterwards no op and no channel can be added. Plans with TE_PLAN_NO_ALLOC can be created, so that
 * te_plan_memory tells how much memory training needs before anything is allocated. Until
 * te_seq_init the tensors of te_seq_weight have shapes and no memory, and te_seq_masters and
 * te_seq_grads return NULL.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EBUSY (already complete), -EINVAL, -ENOMEM, -TE_ECHANNEL and -TE_ESHAPE as te_seq_init.
 */
TE_EXPORT int te_seq_complete(struct te_seq *seq);

#define TE_SEQ_NO_GRADS 1u	/* inference only: no gradients, no optimizer */
#define TE_SEQ_KEEP_MASTERS 2u	/* te_seq_init draws no weights: te_seq_binding.masters has them */
/* masters are BF16, and are the compute copies too: 2 bytes per parameter. AdamW rounds them
 * stochastically */
#define TE_SEQ_BF16_MASTERS 4u
/* with TE_SEQ_BF16_MASTERS: 2 more bytes make each master exactly FP32; its BF16 part is the
 * nearest number, ties away from zero */
#define TE_SEQ_REMAINDERS 8u
#define TE_SEQ_NO_DRAW 16u /* te_seq_init draws no weights: all are 0, to be loaded */
#define TE_SEQ_ROUND_FROZEN 32u /* with TE_SEQ_REMAINDERS: frozen weights have none */
/* with TE_SEQ_REMAINDERS: they are in pinned host memory, where the device reads them. Backend host
 * only. TE_ADAMW_HOST updates them in chunks, like moments */
#define TE_SEQ_HOST_REMAINDERS 64u
/* gradients are BF16, 2 bytes per parameter: sums are FP32, and each addition to a gradient is
 * rounded to nearest even. Plans compute in BF16; user-defined ops have no trained weights */
#define TE_SEQ_BF16_GRADS 128u
/* no column-wise copies of FP8 weights are kept: backward makes each in a plan's arena, before the
 * GEMM that reads it. Results have the same bits */
#define TE_SEQ_RECOMPUTE_COLS 256u
/* with TE_SEQ_BF16_MASTERS: masters are in pinned host memory, and a plan copies each to its arena
 * before a GEMM reads it; FP8 copies stay in device memory. Needs TE_ADAMW_HOST */
#define TE_SEQ_HOST_MASTERS 512u
/* gradients are in pinned host memory: a plan copies each to its arena, adds to it, and copies it
 * back. Needs TE_ADAMW_HOST; for one rank, or ranks that divide gradients */
#define TE_SEQ_HOST_GRADS 1024u
/* with te_seq_binding.fetch and FP32 masters: this rank's part of them has a BF16 copy, and plans
 * that compute in BF16 fetch copies */
#define TE_SEQ_BF16_COPIES 2048u

/**
 * te_seq_freeze - freeze weights: no gradient, no optimizer state; or undo it
 * @seq:     the sequence
 * @pattern: pattern of fnmatch(3) for names of weights ("h.*.qkv.weight") or of their ops
 * @frozen:  1: freeze the weights; 0: compute their gradients
 *
 * Call it after te_seq_complete and before te_seq_init; later calls override earlier ones. Backward
 * passes have no step for the gradient of a frozen weight, and none for gradients that reach only
 * frozen weights; te_adamw_step neither changes frozen weights nor counts them in the norm. Initial
 * values do not depend on which weights are frozen. Sets TE_WEIGHT_FROZEN; ops may declare it.
 * Returns the number of weights that the pattern matches.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -ENOENT (none), -EINVAL, -TE_ESTATE (not complete), -EBUSY (initialised).
 */
TE_EXPORT int te_seq_freeze(struct te_seq *seq, const char *pattern, int frozen);

/* Caller-provided device memory for weights: te_seq_nelems() floats for masters,
 * te_seq_grad_nelems() for gradients, or as many BF16, aligned to 256 bytes. NULL: the library
 * allocates it. */
struct te_seq_binding {
	size_t size; /* set by the INIT macro; lets the struct grow */
	float *masters;
	void *grads;
	uint32_t flags; /* TE_SEQ_* */
	/*
	 * Number of parts into which ranks divide the gradients, as te_adamw_opts divides moments,
	 * and the index of this rank's part. nparts 0 or 1: this rank has whole gradients.
	 * A plan adds to each gradient in its arena and then calls reduce, which queues the sum
	 * over all ranks of nelems elements at x. The result goes to sum on the rank with part
	 * `to`, or on all ranks if `to` is -1. On the other ranks sum is x, whose elements are
	 * undefined afterwards. reduce returns 0 or a negative code; reduce_arg is its argument.
	 */
	int32_t nparts, part;
	int (*reduce)(void *arg, struct te_stream *stream, void *x, void *sum, int64_t nelems,
		      enum te_dtype dtype, int32_t to);
	void *reduce_arg;
	/*
	 * fetch not NULL: ranks divide the masters like gradients. The functions return 0 or a
	 * negative code; parts_arg is their argument.
	 * alloc returns memory aligned to 256 bytes for this rank's part: te_seq_init calls it
	 * once, with the same size on all ranks, unless TE_SEQ_HOST_MASTERS puts the part into the
	 * library's memory.
	 * barrier queues a barrier of all ranks. A plan calls it before a forward pass's groups.
	 * fetch queues a copy of nbytes to dst from the memory of the rank with part `from`, where
	 * the bytes have the offset that src has in this rank's memory. A plan calls it for each
	 * part of a master before a group reads the master, on all ranks in the same order. If this
	 * rank's part in device memory has the whole master, the plan reads it there: dst is src.
	 */
	int (*alloc)(void *arg, size_t nbytes, void **ret_ptr);
	int (*barrier)(void *arg, struct te_stream *stream);
	int (*fetch)(void *arg, struct te_stream *stream, void *dst, const void *src,
		     size_t nbytes, int32_t from);
	void *parts_arg;
};
#define TE_SEQ_BINDING_INIT { sizeof(struct te_seq_binding), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/**
 * te_seq_bind - use the caller's memory for master weights, gradients or both
 * @seq:     the sequence
 * @binding: copied
 *
 * Call it after te_seq_complete and before te_seq_init. The memory must remain until the sequence
 * has been released. Call te_seq_weights_changed after writing masters. The caller's masters are
 * FP32: TE_SEQ_BF16_MASTERS excludes them.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -TE_ESTATE (not complete), -EBUSY (initialised).
 */
TE_EXPORT int te_seq_bind(struct te_seq *seq, const struct te_seq_binding *binding);
/* elements of the flat buffer of masters, padding included; 0 before te_seq_complete */
TE_EXPORT int64_t te_seq_nelems(const struct te_seq *seq);
/* elements of the flat buffer of gradients, without frozen weights; 0 with TE_SEQ_NO_GRADS */
TE_EXPORT int64_t te_seq_grad_nelems(const struct te_seq *seq);

/**
 * te_seq_bind_weight - use the caller's tensor as a weight, which then has no FP32 master
 * @seq:   the sequence
 * @name:  name of the weight, as in te_weight_info
 * @value: tensor of the weight's shape: BF16, or row-wise E4M3 codes with their scale-inverses;
 *         copies aligned to 256 bytes, scale-inverses to 16. NULL: a master again
 *
 * Call it after te_seq_complete and before te_seq_init; the sequence holds a reference. Plans read
 * the weight as it is: te_plan_create returns -TE_EDTYPE unless the op needs exactly this type and
 * scaling under the plan's recipe. If a backward pass needs a column-wise copy that the tensor
 * lacks, the library keeps one, and forward passes refresh it after te_seq_weights_changed. The
 * weight has a gradient like others, unless it is frozen; te_adamw_create refuses the sequence.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -ENOENT (no such weight), -EINVAL, -TE_EDTYPE, -TE_ESHAPE, -TE_ESTATE (not complete),
 * -EBUSY (initialised).
 */
TE_EXPORT int te_seq_bind_weight(struct te_seq *seq, const char *name, struct te_tensor *value);

struct te_plan_opts;
/**
 * te_seq_store_codes - store untrained weights only as the FP8 codes that plans read
 * @seq:  the sequence
 * @opts: options of te_plan_create for the plan that will run
 *
 * Call it after te_seq_complete, te_seq_freeze and te_seq_bind, and before te_seq_init. A frozen
 * weight, or any weight with TE_SEQ_NO_GRADS, has no master if the plan reads only its codes, and
 * its extents are multiples of 16: te_seq_init allocates the copies that the plan reads, as
 * te_seq_bind_weight would have them, and te_seq_weight_set casts values to them. Returns the
 * number of these weights.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -TE_ESTATE (not complete), -EBUSY (initialised), -ENOMEM, -EOPNOTSUPP (operations have
 * FP8 recipes of two kinds), and errors of te_plan_create.
 */
TE_EXPORT int te_seq_store_codes(struct te_seq *seq, const struct te_plan_opts *opts);
/**
 * te_seq_weight_set - write the values of a weight, in a master or as codes
 * @seq:   the sequence
 * @index: number of the weight, as in te_seq_weight
 * @src:   all elements, FP32, in host memory
 *
 * Waits for the device. Calls te_seq_weights_changed.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -TE_ESTATE (not initialised, or bound by te_seq_bind_weight).
 */
TE_EXPORT int te_seq_weight_set(struct te_seq *seq, int index, const float *src);

/**
 * te_seq_init - allocate weights, gradients and random state; draw initial weights
 * @seq:  the sequence
 * @seed: the same seed gives the same weights on every backend
 *
 * All master weights are in one flat FP32 buffer, each padded with zeros to a multiple of 64
 * elements: trained weights in op order, then frozen ones. Gradients are in another buffer, at the
 * same offsets as their weights, initially 0. Calls te_seq_complete if it has not been called.
 * After an error the sequence is not complete.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EBUSY (already initialised), -ENOMEM, -TE_ECHANNEL (naming channel and ops), -TE_ECUDA.
 */
TE_EXPORT int te_seq_init(struct te_seq *seq, uint64_t seed);

struct te_weight_info {
	size_t size;	  /* set by the INIT macro; lets the struct grow */
	const char *name; /* "<op>.<weight>", valid as long as the sequence */
	struct te_op *op;
	/* FP32, or BF16 with TE_SEQ_BF16_MASTERS, borrowed; NULL: bound. It has no memory if it is
	 * in parts */
	struct te_tensor *master;
	/* FP32, or BF16 with TE_SEQ_BF16_GRADS, borrowed; NULL: frozen, no gradients, or gradients
	 * in parts (te_seq_binding) */
	struct te_tensor *grad;
	uint32_t flags;		  /* TE_WEIGHT_* */
	int64_t offset_nelems;	  /* in the flat buffers that have it; -1: none */
	/* tensor of te_seq_bind_weight or te_seq_store_codes, borrowed; or NULL */
	struct te_tensor *value;
};
#define TE_WEIGHT_INFO_INIT { sizeof(struct te_weight_info), 0, 0, 0, 0, 0, 0, 0 }
/* tied weights are listed once, under their owner */
TE_EXPORT int te_seq_nweights(const struct te_seq *seq);
TE_EXPORT int te_seq_weight(const struct te_seq *seq, int index, struct te_weight_info *ret_info);
/* the flat buffers, FP32 or BF16, borrowed; NULL if there are no gradients. With parts, the buffer
 * of gradients, or either one, has this part, then the elements after all parts */
TE_EXPORT struct te_tensor *te_seq_masters(const struct te_seq *seq);
TE_EXPORT struct te_tensor *te_seq_grads(const struct te_seq *seq);
/**
 * te_seq_masters_get, te_seq_masters_set - FP32 values of masters, however they are stored
 * @seq:       the sequence
 * @first:     first element, as offset_nelems of te_weight_info counts
 * @nelems:    number of elements; first + nelems is te_seq_nelems() at most
 * @dst, @src: host memory of nelems floats
 *
 * BF16 masters without remainders are rounded to nearest, with ties away from zero.
 * te_seq_masters_set calls te_seq_weights_changed.
 * If ranks divide the masters, all of them must call te_seq_masters_get; with dst NULL a rank only
 * sends its part. te_seq_masters_set then writes only the elements that this rank has.
 * Stream: synchronous, after all work that was queued on the context.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -EBUSY (capturing), -TE_ESTATE (not initialised).
 */
TE_EXPORT int te_seq_masters_get(const struct te_seq *seq, int64_t first, int64_t nelems,
				 float *dst);
TE_EXPORT int te_seq_masters_set(struct te_seq *seq, int64_t first, int64_t nelems,
				 const float *src);
TE_EXPORT int te_seq_zero_grads(struct te_seq *seq, struct te_stream *stream);

/**
 * te_seq_weights_changed - declare that masters or bound weights were written
 * @seq:    the sequence
 * @stream: the stream on which they were written
 *
 * Call it on the same stream after writing them directly; te_seq_init and te_adamw_step do this
 * themselves. Later forward passes refresh the FP8 and BF16 copies of the weights; without the call
 * they may use copies of earlier weights.
 * Stream: asynchronous, captures.  Errors: -EINVAL, -TE_ESTATE (not initialised).
 * Thread: one sequence, and one stream, by one thread at a time.  Since: 0.1
 */
TE_EXPORT int te_seq_weights_changed(struct te_seq *seq, struct te_stream *stream);

/* The FP8 quantizers of the plans created so far; NULL before the first FP8 plan. With n ops,
 * slot 2i is op i's input, 2i + 1 its weight, 2n + i its output gradient. Plans of one sequence
 * share one FP8 recipe. */
TE_EXPORT struct te_quant *te_seq_quant(const struct te_seq *seq);
/* get or set the random state, synchronously: seed, and the offset at which the next training
 * forward draws (te_plan_set_rng) */
TE_EXPORT int te_seq_rng_get(struct te_seq *seq, uint64_t *ret_seed, uint64_t *ret_offset);
TE_EXPORT int te_seq_rng_set(struct te_seq *seq, uint64_t seed, uint64_t offset);

/**
 * te_seq_regions - list the memory of the sequence that passes of its plans modify
 * @seq:      the sequence
 * @fn, @arg: called for each region, with arg as its first argument
 *
 * These are gradients, random state, quantizers, weight copies, and the versions that tell whether
 * the copies are current. Only an optimizer modifies master weights; te_plan_regions adds a plan's
 * memory.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -TE_ESTATE (not initialised), and the value that fn returned.
 */
TE_EXPORT int te_seq_regions(const struct te_seq *seq, te_region_fn fn, void *arg);

TE_END_DECLS

#endif
