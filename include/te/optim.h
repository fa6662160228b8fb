/* te/optim.h - AdamW over all weights of a sequence. */
#ifndef TE_OPTIM_H
#define TE_OPTIM_H

#include <stddef.h>
#include <stdint.h>
#include <te/seq.h>

TE_BEGIN_DECLS

struct te_adamw; /* opaque, reference counted */

struct te_adamw_opts {
	size_t size;
	float beta1, beta2, eps;
	float weight_decay;  /* on weights with TE_WEIGHT_DECAY */
	float max_grad_norm; /* clip the global norm to it; 0: no clipping */
};
#define TE_ADAMW_OPTS_INIT { sizeof(struct te_adamw_opts), 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f }

/**
 * te_adamw_create - moments for all weights, in device memory, zero
 *
 * Step count, bias corrections, learning rate and clip factor are device words, so a captured step
 * needs no host work. te_adamw_step: norm over all gradients, clip factor, and one launch that
 * updates all weights: m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr (m^ / (sqrt(v^) + eps)
 * + wd w). A gradient norm that is not finite skips the update, counted in te_adamw_stats.
 * Source: Loshchilov and Hutter, arXiv:1711.05101, algorithm 2; t/core/optim.c pins it.
 */
TE_EXPORT int te_adamw_create(struct te_seq *seq, const struct te_adamw_opts *opts,
			      struct te_adamw **ret_opt);
TE_EXPORT struct te_adamw *te_adamw_ref(struct te_adamw *opt);
TE_EXPORT struct te_adamw *te_adamw_unref(struct te_adamw *opt);
/* stream ordered; the next steps use it, captured ones too */
TE_EXPORT int te_adamw_set_lr(struct te_adamw *opt, struct te_stream *stream, float lr);
TE_EXPORT int te_adamw_step(struct te_adamw *opt, struct te_stream *stream);

struct te_adamw_stats {
	size_t size;
	uint64_t nsteps;   /* applied */
	uint64_t nskipped; /* gradient norm not finite */
	float grad_norm;   /* of the last step, before clipping */
	float lr;
};
/* synchronous */
TE_EXPORT int te_adamw_stats(struct te_adamw *opt, struct te_adamw_stats *ret_stats);
/* first and second moments, flat like te_seq_masters, borrowed */
TE_EXPORT struct te_tensor *te_adamw_m(const struct te_adamw *opt);
TE_EXPORT struct te_tensor *te_adamw_v(const struct te_adamw *opt);
/* the device words as an opaque little-endian blob of te_adamw_state_nbytes, synchronous; set
 * refuses one that no run can have left (-TE_ECORRUPT) and then changes nothing */
TE_EXPORT size_t te_adamw_state_nbytes(void);
TE_EXPORT int te_adamw_state_get(struct te_adamw *opt, void *dst, size_t nbytes);
TE_EXPORT int te_adamw_state_set(struct te_adamw *opt, const void *src, size_t nbytes);

/* what te_adamw_step changes: masters, moments and the device words */
TE_EXPORT int te_adamw_regions(const struct te_adamw *opt, te_region_fn fn, void *arg);

TE_END_DECLS

#endif
