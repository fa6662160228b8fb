/* loss.h - arguments of cross-entropy. Included by te_k.h, which has the common rules. */
#ifndef TE_K_LOSS_H
#define TE_K_LOSS_H

/*
 * Per row: lse over the first nclasses columns, row_loss = lse - logit[target], or 0 for a row that
 * does not count.
 */
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

#endif
