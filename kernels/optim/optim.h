/* optim.h - arguments of AdamW and the gradient norm. Included by te_k.h, with the common rules. */
#ifndef TE_K_OPTIM_H
#define TE_K_OPTIM_H

#define TE_K_SUMSQ_PARTS 1024
/*
 * part[p] = FP64 sum of x^2 over the p-th of TE_K_SUMSQ_PARTS runs of ceil(n / TE_K_SUMSQ_PARTS)
 * elements; the last runs may be short or empty. Elements of blocks that are skipped are left out.
 */
struct te_k_sumsq {
	const void *x; /* FP32 or BF16 */
	double *part;
	int64_t n;
	const uint8_t *skip; /* [n / TE_K_ALIGN_WEIGHT], rounded up: 1 to skip; NULL: none */
	int32_t dtype;	     /* type of x */
	int32_t pad;
};

/* device state of AdamW; also its checkpoint blob */
struct te_k_adamw_state {
	uint64_t nsteps, nskipped;
	double beta1_t, beta2_t; /* beta^nsteps; initially 1 */
	float lr;
	float grad_norm;
	float clip; /* factor on gradients of this step */
	uint32_t skip; /* 1: this step's gradient norm was not finite */
};

/*
 * In FP64: norm = sqrt(sum of parts); grad_norm = float(norm). Parts of several shards are added
 * first, in the order of the shards. The sum is a tree: s = part, then s[p] += s[p + n] for all
 * p < n, for n = TE_K_SUMSQ_PARTS / 2, then half of it, down to 1; s[0].
 * Not finite: skip = 1, clip = 1, nskipped += 1. Else skip = 0; clip = max_norm > 0 and norm >
 * max_norm ? float(max_norm / norm) : 1; nsteps += 1; betaK_t *= betaK; version += 1.
 */
struct te_k_adamw_begin {
	const double *part; /* [1 + nmore][TE_K_SUMSQ_PARTS] */
	struct te_k_adamw_state *state;
	uint64_t *version; /* version of the weights */
	float beta1, beta2;
	float max_norm;
	int32_t nmore; /* shards after the first */
};

/* how a moment is stored; enum te_moments of te/optim.h */
enum te_k_moments {
	TE_K_MOMENTS_FP32 = 0,
	TE_K_MOMENTS_BF16 = 1,
	TE_K_MOMENTS_FP8 = 2, /* blocks of TE_K_ALIGN_WEIGHT elements: kernels/optim/round.h */
};

/* how weights are stored; enum te_masters of te/seq.h */
enum te_k_masters {
	TE_K_MASTERS_FP32 = 0,
	TE_K_MASTERS_BF16 = 1,
	TE_K_MASTERS_SPLIT = 2, /* BF16, and the 16 bits that restore FP32: te_round_join() */
};

/*
 * Weights in BF16 for te__h_load() as type TE_K_DTYPE_SPLIT: FP32 numbers if they have a remainder.
 */
struct te_k_split {
	const uint16_t *upper;
	const uint16_t *rest; /* or NULL */
};
#define TE_K_DTYPE_SPLIT 64 /* not in enum te_dtype */

/* numbers of the draws of round.h: what is rounded */
enum te_k_rounded {
	TE_K_ROUNDED_M = 0,
	TE_K_ROUNDED_V = 1,
	TE_K_ROUNDED_W = 2,
};

/*
 * Writes nothing when state->skip. c1 = float(1 - beta1_t), c2 = float(1 - beta2_t) in FP64; the
 * rest is FP32, one rounding per operation, no fused multiply-add:
 *	g = grad * clip
 *	m = beta1 * m + (1 - beta1) * g
 *	v = beta2 * v + ((1 - beta2) * g) * g
 *	u = (m / c1) / (sqrt(v / c2) + eps)
 *	u = u + weight_decay * w	where decay is 1
 *	w = w - lr * u
 * Moments that are not FP32, and weights in BF16, are rounded after that, by round.h: element i by
 * lane i % 8 of te_round_draw(nsteps, enum te_k_rounded, (first + i) / 8). The exponent of an FP8
 * block is te_round_exponent() of its largest magnitude. Weights with a remainder are exact; their
 * BF16 part is the nearest, ties away from zero.
 */
struct te_k_adamw {
	void *w;     /* [n] FP32 or BF16 */
	void *m, *v; /* [n] FP32, BF16, or codes */
	const void *g;	     /* [n] FP32 or BF16 */
	/* [n / TE_K_ALIGN_WEIGHT], rounded up: 1 where weight decay applies; NULL: everywhere */
	const uint8_t *decay;
	const struct te_k_adamw_state *state;
	int64_t n;
	float beta1, beta2, eps, weight_decay;
	uint8_t *m_exp, *v_exp; /* FP8: exponents of the blocks, as many as decay; or NULL */
	uint16_t *rest;		/* SPLIT: [n] the bits that BF16 lacks; or NULL */
	int32_t moments;	/* enum te_k_moments */
	int32_t masters;	/* enum te_k_masters */
	int32_t bf16_grads;	/* 1: g is BF16 */
	int32_t pad;
	/* number of element 0 in the draws, a multiple of TE_K_ALIGN_WEIGHT */
	int64_t first;
};

/* bytes of one moment of n elements, codes and then exponents */
TE_K_INLINE int64_t te_k_moment_nbytes(int32_t moments, int64_t n)
{
	return moments == TE_K_MOMENTS_FP8 ?
		       n + (n + TE_K_ALIGN_WEIGHT - 1) / TE_K_ALIGN_WEIGHT :
		       n * (moments == TE_K_MOMENTS_BF16 ? 2 : 4);
}

#endif
