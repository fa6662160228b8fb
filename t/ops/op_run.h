/*
 * t/ops/op_run.h - one op through its table, without a plan: what infer() asks for is made, and
 * each function sees only what infer() said it keeps.
 */
#ifndef OP_RUN_H
#define OP_RUN_H

#include <te/ctx.h>
#include <te/op.h>
#include <te/quant.h>

#include "libtecore/ops/op.h"
#include "tt_ctx.h"

/* of extra values, weights and saved tensors in these tests */
#define MOST 5

struct op_arrays {
	struct te_op_value ex[MOST], ey[MOST], dex[MOST], dey[MOST], weight[MOST];
};

struct op_run {
	struct te_ctx *ctx;
	struct te_stream *stream;
	struct te_op *op; /* borrowed */
	const struct te_op_ops *ops;
	struct te_recipe recipe;
	struct te_op_infer inf;
	struct te_op_call call; /* all there is; the functions get parts of it */
	struct op_arrays all;
	struct te_tensor *master[MOST], *grad[MOST], *no_grad[MOST], *saved[MOST];
	struct te_quant *quant; /* slots: x, weight 0, dy */
	void *ws;
	size_t ws_nbytes;
	uint64_t *rng; /* device words: seed, offset */
};

/* tensors of all sorts, poisoned; in: main input, then the extras */
void op_run_init(struct op_run *r, struct te_ctx *ctx, struct te_op *op,
		 const struct te_recipe *recipe, const struct te_spec *in);
void op_run_fini(struct op_run *r);
void op_run_seed(struct op_run *r, uint64_t seed, uint64_t offset);

/* host floats to and from a tensor of any float type or INT32 */
/* codes times scale-inverse, from the row-wise or column-wise copy, as [rows, cols] */
float *op_run_get_fp8(const struct te_tensor *t, int colwise);

/* FP8 casts and weight copies are made as the recipe says; waits */
void op_run_forward(struct op_run *r);
void op_run_backward(struct op_run *r); /* dx and dex, where the op gives them */
void op_run_dw(struct op_run *r);

/* the gradient of the main input: dx, or the dy it aliases */
struct te_tensor *op_run_dx(const struct op_run *r);
struct te_tensor *op_run_dex(const struct op_run *r, int k);
/* the output: y, or the x it aliases */
struct te_tensor *op_run_y(const struct op_run *r);

/* the recipe of that name */
struct te_recipe op_run_recipe(const char *name);
struct te_spec op_run_spec(enum te_dtype dtype, int ndim, int64_t a, int64_t b, int64_t c);

#endif
