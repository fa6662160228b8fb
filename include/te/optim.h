/* te/optim.h - AdamW over all weights of a sequence. */
#ifndef TE_OPTIM_H
#define TE_OPTIM_H

#include <stddef.h>
#include <stdint.h>
#include <te/seq.h>

TE_BEGIN_DECLS

struct te_adamw; /* opaque, reference counted */

/*
 * How a moment is stored. Steps compute in FP32 and then round stochastically. The random numbers
 * depend only on the numbers of the step and the element, so a resumed run and all ranks have the
 * same bits. FP8: the code bytes of all elements, then an exponent byte e for each block of 64
 * elements. The first moment is E4M3; the second is UE5M3, which is FP16 without its sign and last
 * 7 bits. A value is its code times 2^(e - 127), or 0 if e is 0.
 * Source: kernels/optim/round.h; tested by t/kernels/host_kernels_optim.c.
 */
enum te_moments {
	TE_MOMENTS_FP32 = 0, /* 8 bytes per parameter for both moments */
	TE_MOMENTS_BF16 = 1, /* 4 bytes */
	TE_MOMENTS_FP8 = 2,  /* 2.03 bytes */
};

/*
 * Memory of the moments. HOST: pinned host memory. A step copies chunks of them to buffers in
 * device memory, updates them there and copies them back. Copies and updates of different chunks
 * run concurrently. FILE: an unnamed file; four chunks of it are in pinned host memory at a time.
 * The thread that calls te_adamw_step waits for reads and writes. Results are bit-identical to
 * DEVICE; tested by t/plan/optim_host.c and t/plan/optim_file.c.
 */
enum te_adamw_where {
	TE_ADAMW_DEVICE = 0,
	TE_ADAMW_HOST = 1,
	TE_ADAMW_FILE = 2,
};

/*
 * Weights with a separate learning rate, decay and betas. `weights` has patterns of fnmatch(3),
 * separated by commas; a weight matches by its name or the name of the op that owns it.
 */
struct te_adamw_group {
	size_t size; /* set by the INIT macro; lets the struct grow */
	const char *weights;
	float lr_scale; /* factor of the learning rate, 0 or more */
	float weight_decay;
	float beta1, beta2;
};
#define TE_ADAMW_GROUP_INIT { sizeof(struct te_adamw_group), 0, 1.0f, 0.1f, 0.9f, 0.95f }

/*
 * With BF16 masters in host memory (TE_SEQ_HOST_MASTERS, no remainders): an update also makes the
 * plans' copies of the weights while the weights are in device memory. Without the flag, the next
 * pass reads the masters from host memory again. Needs two buffers, each for the largest weight of
 * at most 32 chunks; larger weights are read again. Results have the same bits. No effect if plans
 * have copies of frozen weights. For one part.
 */
#define TE_ADAMW_CAST 1u
struct te_adamw_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	float beta1, beta2, eps;
	float weight_decay;  /* applied to weights with TE_WEIGHT_DECAY */
	float max_grad_norm; /* clip the global norm to this; 0: no clipping */
	float reserved;	     /* 0 */
	enum te_moments moments;
	uint32_t flags; /* 0 or TE_ADAMW_CAST */
	/*
	 * Processes with the same weights and gradients may each keep a part of the moments and
	 * update a part of the weights. The n trained elements, padding included, are divided in
	 * order into nparts parts of n / 64 / nparts * 64 elements (integer divisions). Each
	 * process also has the moments of the elements after all parts, fewer than 64 * nparts.
	 */
	int32_t nparts; /* 0 and 1: one part */
	int32_t part;	/* number of this process's part, from 0 */
	/*
	 * With several parts: queues an exchange on the stream. all, in device memory, has nbytes
	 * for each part, in order. It holds this part's bytes and receives the others. Returns 0 or
	 * a negative code.
	 */
	int (*gather)(void *arg, struct te_stream *stream, void *all, size_t nbytes);
	void *gather_arg;
	enum te_adamw_where where; /* memory of the moments */
	/* TE_ADAMW_HOST and TE_ADAMW_FILE: elements of a chunk, a multiple of 64; 0: a 16th of all,
	 * at most 2^23. te_adamw_nbytes counts three chunks, or one */
	int32_t chunk_nelems;
	/* A weight belongs to the first group that matches it; other weights have the options
	 * above. The array is only read during the call. */
	int32_t ngroups;
	const struct te_adamw_group *groups; /* [ngroups] */
	const char *dir; /* TE_ADAMW_FILE: an existing folder, or the socket of ted(8) */
};
#define TE_ADAMW_OPTS_INIT                                                                         \
	{                                                                                          \
		sizeof(struct te_adamw_opts), 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0, TE_MOMENTS_FP32,  \
			0, 0, 0, 0, 0, TE_ADAMW_DEVICE, 0, 0, 0, 0                                 \
	}

/**
 * te_adamw_create - allocate moments of all trained weights, set to zero
 * @seq:     the initialised sequence; the optimizer keeps a reference
 * @opts:    NULL for the defaults
 * @ret_opt: the optimizer, with one reference
 *
 * Step count, bias corrections, learning rate and clip factor are in device memory, so a captured
 * step needs no host work. te_adamw_step computes the norm of all gradients and the clip factor,
 * then updates all weights, in one launch without groups: m = b1 m + (1-b1) g;
 * v = b2 v + (1-b2) g^2;
 * w -= lr (m^ / (sqrt(v^) + eps) + wd w). If the gradient norm is not finite, the update is skipped
 * and counted in te_adamw_stats. The learning rate is 1e-3 until te_adamw_set_lr is called.
 * Source: Loshchilov and Hutter, arXiv:1711.05101, algorithm 2; tested by t/plan/optim.c.
 * With several parts, te_adamw_step updates the weights of this part and gathers the others, so
 * that results are bit-identical to one part. Source: Rajbhandari et al., arXiv:1910.02054,
 * section 5.1; tested by t/comm/reducer.c.
 * With TE_ADAMW_HOST, a step that fails has changed no weight and no moment, unless the exchange of
 * several parts failed.
 * With TE_ADAMW_FILE, te_adamw_step returns after the update and cannot be captured (-EBUSY). A
 * step that fails is undone: weights, moments and state are as before it, unless the exchange of
 * several parts failed. If weights cannot be restored, because the file cannot be read, all later
 * steps return the error.
 * Thread: one sequence by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -TE_ESTATE, -ENOENT (no trained weight has a name that a pattern of a
 * group matches, or there is no dir), -ENOSPC and other codes of the file.
 */
TE_EXPORT int te_adamw_create(struct te_seq *seq, const struct te_adamw_opts *opts,
			      struct te_adamw **ret_opt);
/* bytes of device memory that te_adamw_create allocates with these options, NULL for the defaults;
 * 0 before the sequence is complete */
TE_EXPORT uint64_t te_adamw_nbytes(const struct te_seq *seq, const struct te_adamw_opts *opts);
/* likewise, bytes of pinned host memory, and of the file of TE_ADAMW_FILE: two records of each
 * chunk with its moments, and with weights and remainders that a step replaces */
TE_EXPORT uint64_t te_adamw_host_nbytes(const struct te_seq *seq, const struct te_adamw_opts *opts);
TE_EXPORT uint64_t te_adamw_file_nbytes(const struct te_seq *seq, const struct te_adamw_opts *opts);
TE_EXPORT struct te_adamw *te_adamw_ref(struct te_adamw *opt);
TE_EXPORT struct te_adamw *te_adamw_unref(struct te_adamw *opt);
/* A model that is divided into shards: each process has a sequence with some of the weights. */
struct te_adamw_shards {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nshards;
	int32_t shard; /* number of this sequence's shard, from 0 */
	/*
	 * Queues an exchange of partial sums on the stream: parts, in device memory, has nbytes for
	 * each shard, in order. It holds this shard's bytes and receives the others. Returns 0 or a
	 * negative code.
	 */
	int (*gather)(void *arg, struct te_stream *stream, void *parts, size_t nbytes);
	void *arg;
	/* [te_seq_nweights] 1: another shard counts the weight's gradient in its norm; NULL:
	 * none */
	const uint8_t *uncounted;
};
#define TE_ADAMW_SHARDS_INIT { sizeof(struct te_adamw_shards), 1, 0, 0, 0, 0 }

/**
 * te_adamw_set_shards - let later steps use the norm of the gradients of all shards
 * @opt:    the optimizer
 * @shards: copied; each weight's gradient must be counted by one shard
 *
 * Sums are added in the order of the shards, so that all have the same norm, clip factor and
 * skipped steps. Call it before the first step is run or captured.
 * Thread: one optimizer by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_adamw_set_shards(struct te_adamw *opt, const struct te_adamw_shards *shards);
/* stream ordered; later steps use lr, including replays of captured steps */
TE_EXPORT int te_adamw_set_lr(struct te_adamw *opt, struct te_stream *stream, float lr);
TE_EXPORT int te_adamw_step(struct te_adamw *opt, struct te_stream *stream);

struct te_adamw_stats {
	size_t size;	   /* set by the INIT macro; lets the struct grow */
	uint64_t nsteps;   /* steps applied */
	uint64_t nskipped; /* steps skipped: gradient norm not finite */
	float grad_norm;   /* norm in the last step, before clipping */
	float lr;
};
#define TE_ADAMW_STATS_INIT { sizeof(struct te_adamw_stats), 0, 0, 0.0f, 0.0f }
/* synchronous */
TE_EXPORT int te_adamw_stats(struct te_adamw *opt, struct te_adamw_stats *ret_stats);
/* first and second moments, flat like te_seq_grads, borrowed: FP32, BF16, or for FP8 UINT8 of
 * te_moments_nbytes elements; in pinned host memory with TE_ADAMW_HOST, NULL with TE_ADAMW_FILE.
 * With several parts: this part's elements, then the elements after all parts */
TE_EXPORT struct te_tensor *te_adamw_m(const struct te_adamw *opt);
TE_EXPORT struct te_tensor *te_adamw_v(const struct te_adamw *opt);
TE_EXPORT enum te_moments te_adamw_moments(const struct te_adamw *opt);
/**
 * te_adamw_moments_get, te_adamw_moments_set - a moment of all elements, from all parts
 * @opt:      the optimizer
 * @second:   0: the first moment; 1: the second
 * @dst:      host memory, te_moments_nbytes bytes for te_seq_grad_nelems elements; NULL: this
 *            process only takes part in the exchange
 * @src:      likewise; not NULL
 *
 * With several parts, te_adamw_moments_get calls gather, so all processes must call it. Its result
 * is valid if the exchange has not failed: check te_comm_error(), for example. te_adamw_moments_set
 * keeps this part, without an exchange. So a saved state can continue with another number of
 * processes.
 * Stream: synchronous, after all work that was queued on the context.
 * Thread: one optimizer by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -EBUSY (capturing), the value that gather returned, and codes of the
 * file of TE_ADAMW_FILE, whose moments then have not changed.
 */
TE_EXPORT int te_adamw_moments_get(struct te_adamw *opt, int second, void *dst);
TE_EXPORT int te_adamw_moments_set(struct te_adamw *opt, int second, const void *src);
/* bytes of one moment of nelems elements; 0 if the arguments are not valid */
TE_EXPORT size_t te_moments_nbytes(enum te_moments moments, int64_t nelems);
/**
 * te_moments_to_fp32 - values of a stored moment
 * @moments: how src is stored
 * @second:  0: src is a first moment; 1: a second
 * @nelems:  elements
 * @src:     host memory, te_moments_nbytes bytes
 * @dst:     host memory
 *
 * te_moments_from_fp32 rounds to nearest, so it stores values that te_moments_to_fp32 returned
 * without a change.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL.
 */
TE_EXPORT int te_moments_to_fp32(enum te_moments moments, int second, int64_t nelems,
				 const void *src, float *dst);
TE_EXPORT int te_moments_from_fp32(enum te_moments moments, int second, int64_t nelems,
				   const float *src, void *dst);
/* get or set the state in device memory (without the moments) as an opaque little-endian blob of
 * te_adamw_state_nbytes bytes, synchronously; set returns -TE_ECORRUPT for a state that no run can
 * produce, and then changes nothing */
TE_EXPORT size_t te_adamw_state_nbytes(void);
TE_EXPORT int te_adamw_state_get(struct te_adamw *opt, void *dst, size_t nbytes);
TE_EXPORT int te_adamw_state_set(struct te_adamw *opt, const void *src, size_t nbytes);

/* memory that te_adamw_step modifies: master weights, moments and device state */
TE_EXPORT int te_adamw_regions(const struct te_adamw *opt, te_region_fn fn, void *arg);

TE_END_DECLS

#endif
