/* loss.h - arguments of cross-entropy. Included by te_k.h, which has the common rules. */
#ifndef TE_K_LOSS_H
#define TE_K_LOSS_H

/*
 * Column c is class first + c; classes from nclasses on are padding. A row counts when its target
 * is in [0, nclasses) and not ignore_index.
 *
 * Per row, over the columns that are classes: max, the largest x, and sum, of exp(x - max), or of
 * exp(x) if max is -inf. No columns: -inf and 0. They are kept apart, because one FP32 logarithm of
 * the sum of exp(x) has an error that grows with the distance of x from 0. Without part, first is 0
 * and row_loss = (max - logit[target]) + log(sum); with part, row_loss = logit[target] of a target
 * among the columns. Else, and for a row that does not count, row_loss is 0.
 */
struct te_k_ce_fwd {
	const void *logits;	/* T [rows, cols] */
	const int32_t *targets; /* [rows] */
	float *max_sum;		/* [2, rows] */
	float *row_loss;	/* [rows] */
	int64_t rows, cols, nclasses;
	int32_t ignore_index;
	int32_t dtype;
	int64_t first;
	int32_t part;
	int32_t pad;
};

/*
 * Combine the results of te_k_ce_fwd of nparts ranges of columns, in FP64 and in the order of the
 * parts: max = the largest max[k], s = the sum of sum[k] exp(max[k] - max), where exp is 0 if max
 * is -inf, sum = s and row_loss = (max - the sum of logit[k]) + log(s), or 0 for a row that does
 * not count, each rounded once.
 */
struct te_k_ce_join {
	const float *parts;	/* [nparts, 3, rows]: max, sum and row_loss of each part */
	const int32_t *targets; /* [rows] */
	float *max_sum;		/* [2, rows] */
	float *row_loss;	/* [rows] */
	int64_t rows, nclasses;
	int32_t nparts;
	int32_t ignore_index;
};

/*
 * *loss = sum of row_loss / count in FP64, rounded once, 0 when no row counts; *count = rows that
 * count, as FP32. *noutside += rows whose target is neither a class nor ignore_index, modulo 2^32.
 */
struct te_k_ce_reduce {
	const float *row_loss; /* ce_count uses targets and count only */
	const int32_t *targets;
	float *loss, *count;
	uint32_t *noutside; /* or NULL */
	int64_t rows, nclasses;
	int32_t ignore_index;
	int32_t pad;
};

/*
 * dlogits = (softmax - onehot) * grad_scale / *count; 0 in padding columns and rows that do
 * not count; may be in place. Columns as in te_k_ce_fwd. With f = grad_scale / *count,
 * dlogits = T((exp(x - max) * (1 / sum) - onehot) * f).
 */
struct te_k_ce_bwd {
	const void *logits;
	const int32_t *targets;
	const float *max_sum, *count;
	void *dlogits;
	int64_t rows, cols, nclasses;
	int32_t ignore_index;
	float grad_scale;
	int32_t dtype;
	int32_t pad;
	int64_t first;
};

/*
 * The results of te_k_ce_fwd without part and of te_k_ce_bwd, bit for bit, with first 0 and the
 * count known before. A row that does not count is not read: its dlogits, row_loss, max and sum are
 * 0. dlogits may be logits.
 */
struct te_k_ce_grad {
	const void *logits;
	const int32_t *targets;
	const float *count;
	void *dlogits;
	float *max_sum;	 /* [2, rows] */
	float *row_loss; /* [rows] */
	int64_t rows, cols, nclasses;
	int32_t ignore_index;
	float grad_scale;
	int32_t dtype;
	int32_t pad;
};

#endif
