/* act.h - arguments of activation functions. Included by te_k.h, which has the common rules. */
#ifndef TE_K_ACT_H
#define TE_K_ACT_H

/*
 * act: enum te_act. gated: x [rows, 2 cols], y = act(x[:, :cols]) * x[:, cols:]; else x [rows,
 * cols].
 * sig(x) = 1 / (1 + exp(-x)); with w = s * (1 - s):
 *	   act				act'
 * GELU    x * s, s =			s + x * w * (1.5957691f * (1 + 0.134145f * x * x))
 *	   sig(1.5957691f *		(the tanh form, as 0.5 (1 + tanh(u)) = sig(2u))
 *	   (x + 0.044715f * x * x * x))
 * QGELU   x * s, s = sig(1.702f * x)	s + 1.702f * x * s * (1 - s)
 * RELU    x <= 0 ? 0 : x		x <= 0 ? 0 : 1		(NaN stays NaN)
 * SRELU   r * r, r = RELU		2 * r
 * SILU    x * s, s = sig(x)		s + x * s * (1 - s)
 * SIGMOID sig(x)			w
 * GELU_ERF x * s, s = the normal	s + x * (0.39894228f * e), e = exp(-0.5f * x * x)
 *	   distribution function, by the polynomial of act.c
 * TANH    2 * s - 1, s = sig(2 * x);	4 * s * (1 - s)
 *	   by the polynomial of act.c for |x| below 0.5
 * Limits: x * s is -0 if s is 0, and act' of GELU, QGELU, SILU and GELU_ERF is s if w, or e, is 0,
 * so that infinite and overflowing terms do not become NaN.
 * A GPU evaluates GELU, GELU_ERF and SILU of BF16 numbers, and their derivatives, by gelu.cuh, with
 * fewer roundings.
 * exp is te__expf() of exp.h on the host (1.2 ulp) and within 2 ulp on a GPU (expf, not __expf).
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
	int64_t rows, cols; /* extents of dy */
	struct te_k_q q;
	int32_t act, gated;
	int32_t dtype;
	int32_t pad;
};

#endif
