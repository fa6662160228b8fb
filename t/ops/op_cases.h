/* t/ops/op_cases.h - every built-in op on odd shapes, with its forward pass in FP64. */
#ifndef OP_CASES_H
#define OP_CASES_H

#include "op_run.h"

union op_attrs {
	struct te_embedding_attrs embedding;
	struct te_linear_attrs linear;
	struct te_bias_attrs bias;
	struct te_norm_attrs norm;
	struct te_act_attrs act;
	struct te_qk_norm_attrs qk_norm;
	struct te_rope_attrs rope;
	struct te_attention_attrs attention;
	struct te_dropout_attrs dropout;
	struct te_scale_attrs scale;
	struct te_reshape_attrs reshape;
	struct te_quantize_attrs quantize;
	struct te_cross_entropy_attrs ce;
};

struct op_case {
	const char *name;
	int (*create)(const struct op_case *k, struct te_op **ret_op);
	/* the output at x, extra inputs and weights; r gives shapes, attributes and mask */
	void (*ref)(const struct op_run *r, const double *x, double *const *ex,
		    double *const *w, double *y);
	struct te_spec in[1 + MOST]; /* float inputs but a bias get the recipe's compute dtype */
	/* bound on the error of an element in units of 2^-24 times the largest of its array:
	 * see op_cases.c */
	double depth;
	union op_attrs a;
	int no_targets; /* cross-entropy: all rows ignored */
	int host_only;	/* heads that GPUs do not take */
};

extern const struct op_case op_cases[];
extern const int op_ncases;

struct te_op *op_case_create(const struct op_case *k);
/* the op on a context with fresh random inputs, weights and output gradient */
void op_case_init(const struct op_case *k, struct op_run *r, struct te_ctx *ctx,
		  struct te_op *op, const char *recipe);

#endif
