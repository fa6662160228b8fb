/* loss.h - arguments of cross-entropy. Included by te_k.h, which has the common rules. */
#ifndef TE_K_LOSS_H
#define TE_K_LOSS_H

/*
 * Column c is class first + c; classes from nclasses on are padding. A row counts when its target
 * is in [0, nclasses) and not ignore_index.
 *
 * Per row: lse over the columns that are classes, -inf if there are none. Without part, first is 0
 * and row_loss = lse - logit[target]; with part, row_loss = logit[target] of a target among the
 * columns. Else, and for a row that does not count, row_loss is 0.
 */
struct te_k_ce_fwd {
	const void *logits;	/* T [rows, cols] */
	const int32_t *targets; /* [rows] */
	float *lse, *row_loss;	/* [rows] */
	int64_t rows, cols, nclasses;
	int32_t ignore_index;
	int32_t dtype;
	int64_t first;
	int32_t part;
	int32_t pad;
};

/*
 * What te_k_ce_fwd has of nparts ranges of columns becomes that of all, in FP64 and in the order of
 * the parts: with m = the largest lse[k], L = m + log(sum of exp(lse[k] - m)), lse = L and row_loss
 * = L - the sum of logit[k], or 0 for a row that does not count, each rounded once.
 */
struct te_k_ce_join {
	const float *parts;	/* [nparts, 2, rows]: lse and row_loss of each part */
	const int32_t *targets; /* [rows] */
	float *lse, *row_loss;	/* [rows] */
	int64_t rows, nclasses;
	int32_t nparts;
	int32_t ignore_index;
};

/*
 * *loss = sum of row_loss / count in FP64, rounded once, 0 when no row counts; *count = rows that
 * count, as FP32.
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
 * not count; may be in place. Columns are those of te_k_ce_fwd. With f = grad_scale / *count,
 * dlogits = T((exp(x - lse) - onehot) * f).
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
	int64_t first;
};

#endif
