/*
 * te_k.h - the arguments of every kernel, for C and CUDA.
 *
 * A launch is (kernel id, struct). The struct is the device kernel's only
 * parameter and the reference function's only argument, so recording,
 * patching, tracing and faulting a launch are each written once. Grid and block
 * follow from the struct (libtecore/backend/cuda_kernels.c).
 *
 * Common rules
 * - T is the compute dtype: FP32 or BF16 (field dtype, enum te_dtype). Arithmetic is FP32
 *   unless said otherwise, without contraction into fused multiply-adds where
 *   bits are promised; results are rounded once to T.
 * - "amax" is folded by an atomic maximum on the bits of |x|; NaN elements are ignored.
 * - A kernel that also quantizes first rounds its result to T and quantizes that,
 *   so a fused kernel gives the bits of the two separate ones.
 * - noop: device word or NULL; when it holds 1.0f the kernel writes nothing, q.noop
 *   of a fused kernel included.
 * - Matrices are row-major and dense. Pointers are device pointers, aligned to their elements;
 *   16 bytes let a kernel read whole vectors. No aliasing unless a line below allows it.
 * - Reductions over rows come in two launches: partial sums of TE_K_PART_ROWS rows,
 *   each summed in ascending row order, then te_k_part_sum over the partials
 *   in ascending order. So results do not depend on the grid. A sum starts at +0.
 * - Formulas below are FP32, evaluated as written and bracketed, one rounding an
 *   operation: a + b + c is (a + b) + c. Division and sqrt are IEEE. "mean over" is a sum in
 *   FP64 on the host, in any order and at least FP32 with fixed order on a GPU.
 * - A NaN result is a NaN; its sign and payload are not promised.
 */
#ifndef TE_K_H
#define TE_K_H

#ifdef __CUDACC__
#include <cuda/std/cstdint>
typedef unsigned char uint8_t;
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
#else
#include <stdint.h>
#endif

#define TE_K_PART_ROWS 64
#define TE_K_NPARTS(rows) (((rows) + TE_K_PART_ROWS - 1) / TE_K_PART_ROWS)
#define TE_K_ALIGN_WEIGHT 64 /* flat weight buffers are padded per weight to so many elements */

enum te_k_id {
#define TE_K(ID, name, module, host) TE_K_##ID,
#include "te_k.def"
#undef TE_K
	TE_K_COUNT
};

/* Quantized side output of a [rows, cols] result v (already rounded to T). */
struct te_k_q {
	void *row;	    /* [rows, cols] codes of v * *scale, or NULL */
	void *col;	    /* [cols, rows], the same codes transposed, or NULL */
	const float *scale; /* needed with row or col */
	float *scale_inv;   /* receives 1 / *scale when row or col is written */
	float *amax;	    /* folds max |v|, or NULL; also without row and col */
	const float *noop;
	int32_t dtype;	    /* E4M3 or E5M2 */
	int32_t pad;
};

/* *word = 0 */
struct te_k_clear {
	float *word;
	const float *noop;
};

/* n times value: its lowest byte where elem is 1, all four where it is 4 */
struct te_k_fill {
	void *dst; /* aligned to elem */
	int64_t n;
	uint32_t value;
	int32_t elem;
};

/* amax of n elements */
struct te_k_amax {
	const void *x;
	int64_t n;
	float *amax; /* folded into: cleared before by te_k_clear */
	const float *noop;
	int32_t dtype;
	int32_t pad;
};

/*
 * current recipe: *scale from *amax. a = *amax < epsilon ? epsilon : *amax; s = fmt_max / a, and
 * FLT_MAX where that is infinite; a zero, infinite or NaN: s = 1; pow2: mantissa bits of s cleared
 */
struct te_k_scale_current {
	const float *amax;
	float *scale;
	const float *noop;
	float fmt_max;
	float epsilon;
	int32_t pow2;
	int32_t pad;
};

/*
 * delayed recipe: slots first .. first+count-1 of packed state. Of a slot with history h[L]:
 * h[0] == 0: nothing changes. Else a = most_recent ? h[0] : fmaxf over h; then h'[i] = h[i+1] for
 * 1 <= i < L-1, h'[L-1] = h[0], h'[0] = 0; then unless a is 0, infinite or NaN scale =
 * (fmt_max * margin_factor) / a, and FLT_MAX where that is infinite
 */
struct te_k_scale_delayed {
	float *history;	      /* [nslots, history_len] */
	float *scale;	      /* [nslots] */
	const float *fmt_max; /* [nslots] */
	int32_t first, count;
	int32_t history_len;
	int32_t most_recent; /* 1: newest amax, 0: maximum of the window */
	float margin_factor; /* 2^-margin, exact */
	int32_t pad;
};

struct te_k_quantize {
	const void *x; /* T [rows, cols] */
	int64_t rows, cols;
	struct te_k_q q;
	int32_t dtype;
	int32_t pad;
};

/* y = T(float(code) * *scale_inv) */
struct te_k_dequantize {
	const void *x;
	void *y;
	const float *scale_inv;
	int64_t n;
	int32_t xdtype, ydtype;
};

/* between FP32, BF16, FP16 */
struct te_k_cast {
	const void *x;
	void *y;
	int64_t n;
	int32_t xdtype, ydtype;
	const float *noop;
};

/*
 * LayerNorm (beta, mean not NULL) or RMSNorm (both NULL) over the last extent:
 * y = (x - mean) * rstd * gamma + beta, rstd = 1/sqrt(var + eps), var biased (RMS: mean of
 * squares). gain is gamma, or 1 + gamma when zero_centered. Both statistics in FP64, rounded once;
 * var is the mean over (x - mean)^2, before mean is rounded. xhat = (x - mean) * rstd.
 */
struct te_k_norm_fwd {
	const void *x;	    /* T [rows, cols] */
	const float *gamma; /* [cols] */
	const float *beta;
	void *y;	    /* T, or NULL when only q is wanted; may be x */
	float *mean, *rstd; /* [rows] */
	int64_t rows, cols;
	struct te_k_q q;
	float eps;
	int32_t zero_centered;
	int32_t dtype;
	int32_t pad;
};

/*
 * dx of the norm, plus dres when not NULL (the gradient of a residual that forked before it):
 * g = dy * gain, a = mean over g, b = mean over g * xhat, each rounded to FP32;
 * dx = rstd * (g - a - xhat * b) + dres; RMSNorm: a is left out
 */
struct te_k_norm_bwd {
	const void *dy, *x; /* T */
	const float *gamma;
	const float *mean, *rstd; /* mean NULL: RMSNorm */
	const void *dres;	  /* T or NULL */
	void *dx;		  /* T; may be dy or dres */
	int64_t rows, cols;
	int32_t zero_centered;
	int32_t dtype;
};

/* partial sums of dy * xhat and, with part_beta, of dy: [TE_K_NPARTS(rows), cols] each */
struct te_k_norm_dw {
	const void *dy, *x; /* T */
	const float *mean, *rstd;
	float *part_gamma;
	float *part_beta; /* NULL: RMSNorm */
	int64_t rows, cols;
	int32_t dtype;
	int32_t pad;
};

/* partial column sums of x: part [TE_K_NPARTS(rows), cols] */
struct te_k_colsum {
	const void *x; /* T */
	float *part;
	int64_t rows, cols;
	int32_t dtype;
	int32_t pad;
};

/* out[c] += sum over p of part[p][c], p ascending, added to out last */
struct te_k_part_sum {
	const float *part;
	float *out;
	int64_t nparts, cols;
};

/* y = T(x + bias); may be in place */
struct te_k_bias_fwd {
	const void *x, *bias; /* T [rows, cols], T [cols] */
	void *y;
	int64_t rows, cols;
	int32_t dtype;
	int32_t pad;
};

/* y = T(a + b); y may be a or b */
struct te_k_add {
	const void *a, *b;
	void *y;
	int64_t n;
	int32_t dtype;
	int32_t pad;
};

/*
 * y = kept ? T(x * 65536/(65536-threshold)) : 0; the mask is a function of (seed, offset, tag,
 * element), see te_philox.h. Backward is the same launch on dy. In place allowed. The factor is
 * one FP32 division; threshold < 65536.
 */
struct te_k_dropout {
	const void *x;
	void *y;
	const uint64_t *seed, *offset;
	int64_t n;
	uint32_t threshold; /* of 65536: round(p * 65536) */
	uint32_t tag;
	int32_t dtype;
	int32_t pad;
};

/* used = next; next += 1 */
struct te_k_rng_next {
	uint64_t *next, *used;
};

#define TE_K_ROPE_MAX_HALF 64
/*
 * turn the first nrot of nheads heads of every row, copy the others; row r has position r % seqlen;
 * in place allowed. y[i] = T(x[i] * c - x[i + half] * s),
 * y[i + half] = T(x[i + half] * c + x[i] * s), c and s of the angle; s negated when inverse
 */
struct te_k_rope {
	const void *x; /* T [rows, nheads * head_dim] */
	void *y;
	int64_t rows, seqlen;
	int32_t nheads, nrot, head_dim;
	int32_t inverse; /* 1: backward, the opposite angle */
	int32_t dtype;
	int32_t pad;
	float inv_freq[TE_K_ROPE_MAX_HALF]; /* head_dim/2 used; angle = float(pos) * inv_freq */
};

/*
 * act: enum te_act. gated: x [rows, 2 cols], y = act(x[:, :cols]) * x[:, cols:]; else x [rows,
 * cols].
 * sig(x) = 1 / (1 + exp(-x)):
 *	   act				act'
 * GELU    x * s, s =			s + x * w * (1.5957691f * (1 + 0.134145f * x * x)),
 *	   sig(1.5957691f *		w = s * (1 - s); s alone where w is 0
 *	   (x + 0.044715f * x * x * x))	(the tanh form, as 0.5 (1 + tanh(u)) = sig(2u))
 * QGELU   x * sig(1.702f * x)		s + 1.702f * x * s * (1 - s), s = sig(1.702f * x)
 * RELU    x <= 0 ? 0 : x		x <= 0 ? 0 : 1		(so NaN stays NaN)
 * SRELU   r * r, r = RELU		2 * r
 * SILU    x * sig(x)			s + x * s * (1 - s), s = sig(x)
 * SIGMOID sig(x)			s * (1 - s)
 * exp is libm's on the host (1 ulp) and within 2 ulp on a GPU (expf, not __expf).
 */
struct te_k_act_fwd {
	const void *x;
	void *y; /* T [rows, cols] or NULL */
	int64_t rows, cols;
	struct te_k_q q;
	int32_t act, gated;
	int32_t dtype;
	int32_t pad;
};

/*
 * dx of the above, shaped like x; q and part (column sums of dx rounded to T) over dx.
 * dx = dy * act'(x); gated: dx[:, :cols] = (dy * x[:, cols:]) * act'(x[:, :cols]),
 * dx[:, cols:] = dy * act(x[:, :cols])
 */
struct te_k_act_bwd {
	const void *dy, *x;
	void *dx;    /* T or NULL; not gated: may be dy or x */
	float *part; /* [TE_K_NPARTS(rows), dx cols] or NULL */
	int64_t rows, cols; /* of dy */
	struct te_k_q q;
	int32_t act, gated;
	int32_t dtype;
	int32_t pad;
};

/* y = T(table[token] + pos[r % seqlen]); an id outside [0, vocab) reads as a table row of
 * zeros */
struct te_k_embed_fwd {
	const int32_t *tokens; /* [rows] */
	const float *table;    /* [vocab, width] */
	const float *pos;      /* [max_pos, width] or NULL */
	void *y;	       /* T [rows, width] */
	int64_t rows, seqlen, vocab, width;
	int32_t dtype;
	int32_t pad;
};

/* dtable[v] += the sum of dy over rows with token v, summed in ascending row order */
struct te_k_embed_bwd {
	const int32_t *tokens;
	const void *dy; /* T */
	float *dtable;
	int64_t rows, vocab, width;
	int32_t dtype;
	int32_t pad;
};

/* dpos[t] += the sum over the batch of dy[b][t], summed in ascending b */
struct te_k_pos_bwd {
	const void *dy;
	float *dpos;
	int64_t batch, seqlen, width;
	int32_t dtype;
	int32_t pad;
};

#define TE_K_ATTN_MAX_HEAD_DIM 128

/*
 * Causal attention on packed heads. qkv T [batch, seqlen, (nheads + 2 nkv) head_dim]; query head
 * h uses key/value head h / (nheads / nkv). out T [batch, seqlen, nheads head_dim]. lse [batch,
 * nheads, seqlen]: natural log of the sum of exp(scale q.k). head_dim is 1 to
 * TE_K_ATTN_MAX_HEAD_DIM, scale is above 0. Probabilities are dropped after
 * normalisation (te_philox.h, element (b * nheads + h, q, k)).
 * Later tokens change no bit of a row; but a device kernel may multiply values of up to 127 of them
 * by 0, so that NaN and infinities among those reach it. Devices want qkv, out and their
 * gradients at multiples of 16 bytes where head_dim elements are one.
 */
struct te_k_attn_fwd {
	const void *qkv;
	void *out;
	float *lse;
	const uint64_t *seed, *offset; /* used when threshold > 0 */
	int64_t batch, seqlen;
	int32_t nheads, nkv, head_dim;
	float scale;
	uint32_t threshold; /* dropout, of 65536 */
	uint32_t tag;
	int32_t dtype;
	int32_t pad;
};

/*
 * Three launches: pre writes delta[b,h,q] = sum_d out * dout; dkv writes the k and v parts of
 * dqkv, summing the query heads of a group; dq writes the q part. No atomics: the same bits every
 * time. A device may do all of it in dkv: then its pre and dq have nothing to launch, and delta
 * stays as it was.
 */
struct te_k_attn_bwd {
	const void *qkv, *out, *dout;
	const float *lse;
	float *delta; /* [batch, nheads, seqlen] */
	void *dqkv;   /* T, shaped like qkv */
	const uint64_t *seed, *offset;
	int64_t batch, seqlen;
	int32_t nheads, nkv, head_dim;
	float scale;
	uint32_t threshold;
	uint32_t tag;
	int32_t dtype;
	int32_t pad;
};

/* per row: lse over the first nclasses columns, row_loss = lse - logit[target] (0 for a row
 * that does not count) */
struct te_k_ce_fwd {
	const void *logits;	/* T [rows, cols] */
	const int32_t *targets; /* [rows] */
	float *lse, *row_loss;	/* [rows] */
	int64_t rows, cols, nclasses;
	int32_t ignore_index;
	int32_t dtype;
};

/*
 * *loss = sum of row_loss / count in FP64, rounded once, 0 when no row counts; *count = rows that
 * count, as FP32. A row counts when its target is in [0, nclasses) and not ignore_index.
 */
struct te_k_ce_reduce {
	const float *row_loss;
	const int32_t *targets;
	float *loss, *count;
	int64_t rows, nclasses;
	int32_t ignore_index;
	int32_t pad;
};

/*
 * dlogits = (softmax - onehot) * grad_scale / *count; 0 in padding columns and rows that do
 * not count; may be in place. f = grad_scale / *count, dlogits = T((exp(x - lse) - onehot) * f).
 */
struct te_k_ce_bwd {
	const void *logits;
	const int32_t *targets;
	const float *lse, *count;
	void *dlogits;
	int64_t rows, cols, nclasses;
	int32_t ignore_index;
	float grad_scale;
	int32_t dtype;
	int32_t pad;
};

#define TE_K_SUMSQ_PARTS 1024
/* part[p] = FP64 sum of x^2 over the p-th of TE_K_SUMSQ_PARTS equal runs of ceil(n / parts)
 * elements (the last may be short or empty) */
struct te_k_sumsq {
	const float *x;
	double *part;
	int64_t n;
};

/* device state of AdamW; also its checkpoint blob */
struct te_k_adamw_state {
	uint64_t nsteps, nskipped;
	double beta1_t, beta2_t; /* beta^nsteps; 1 at first */
	float lr;
	float grad_norm;
	float clip; /* factor on gradients of this step */
	uint32_t skip; /* 1: this step's gradient norm was not finite */
};

/*
 * in FP64: norm = sqrt(sum of parts); grad_norm = float(norm). The sum is a tree: s = part, then
 * s[p] += s[p + n] for all p < n, for n = TE_K_SUMSQ_PARTS / 2, then half of it, down to 1; s[0].
 * Not finite: skip = 1, clip = 1, nskipped += 1. Else skip = 0; clip = max_norm > 0 and norm >
 * max_norm ? float(max_norm / norm) : 1; nsteps += 1; betaK_t *= betaK.
 */
struct te_k_adamw_begin {
	const double *part; /* [TE_K_SUMSQ_PARTS] */
	struct te_k_adamw_state *state;
	float beta1, beta2;
	float max_norm;
	int32_t pad;
};

/*
 * nothing when state->skip. c1 = float(1 - beta1_t), c2 = float(1 - beta2_t) in FP64; the rest
 * FP32, an operation a rounding, no fused multiply-add:
 *	g = grad * clip
 *	m = beta1 * m + (1 - beta1) * g
 *	v = beta2 * v + ((1 - beta2) * g) * g
 *	u = (m / c1) / (sqrt(v / c2) + eps)
 *	u = u + weight_decay * w	where decay is 1
 *	w = w - lr * u
 */
struct te_k_adamw {
	float *w, *m, *v; /* [n] */
	const float *g;
	const uint8_t *decay; /* [n / TE_K_ALIGN_WEIGHT]: 1 where weight decay applies */
	const struct te_k_adamw_state *state;
	int64_t n;
	float beta1, beta2, eps, weight_decay;
};

/*
 * d[M,N] = alpha * *sa * *sb * op(a) op(b)^T + beta * c + bias[n]. a [M,K] or, a_t, [K,M]; b
 * [N,K] or, b_t, [K,N]. Dense. FP8 operands are always K-major here (te_gemm picks the copy). sa,
 * sb: NULL means 1.
 */
struct te_k_gemm {
	const void *a, *b, *c;
	void *d; /* may be c */
	const void *bias;
	const float *sa, *sb;
	int64_t m, n, k;
	float alpha, beta;
	int32_t a_t, b_t;
	int32_t adtype, bdtype, cdtype, ddtype; /* bias is of cdtype's = ddtype's type */
};

#endif
