/*
 * custom_op.c - trains a model with a user-defined operation and a user-defined fusion.
 *
 * The op is y = limit s x / (1 + |s x|), a softsign with one learned number s. Its three
 * functions queue CPU functions by te_host_call(3), so it runs on the host backend; on a
 * GPU they would launch kernels on te_stream_native(3) instead. The fusion replaces a bias
 * and this op after it with one pass over memory.
 *
 * Usage: custom_op
 * Prints the fused plan and the loss, and exits 0 if training worked and the fused
 * plan gave the numbers of the one without fusions.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/ctx.h>
#include <te/errno.h>
#include <te/optim.h>
#include <te/plan.h>

#define ROWS 64
#define WIDTH 32
#define CLASSES 16

/* ---- the functions that run on the CPU: loops over FP32 ---- */

struct job {
	const float *x, *bias, *s, *dy;
	float *y, *dx, *ds;
	int64_t n, width;
	float limit;
};

static void run_forward(void *arg)
{
	const struct job *j = arg;

	for (int64_t i = 0; i < j->n; i++) {
		float v = j->bias ? j->x[i] + j->bias[i % j->width] : j->x[i];
		float u = *j->s * v;

		j->y[i] = j->limit * u / (1.0f + fabsf(u));
	}
}

static void run_backward(void *arg)
{
	const struct job *j = arg;

	for (int64_t i = 0; i < j->n; i++) {
		float d = 1.0f + fabsf(*j->s * j->x[i]);

		j->dx[i] = j->limit * j->dy[i] * *j->s / (d * d);
	}
}

/* adds to the gradient, always in the same order: the same bits every time */
static void run_dw(void *arg)
{
	const struct job *j = arg;
	float sum = 0.0f;

	for (int64_t i = 0; i < j->n; i++) {
		float d = 1.0f + fabsf(*j->s * j->x[i]);

		sum += j->limit * j->dy[i] * j->x[i] / (d * d);
	}
	*j->ds += sum;
}

/* ---- the op ---- */

struct softsign_attrs {
	float limit; /* limit of |y|, above 0 */
};

static int softsign_check(const struct te_op *op)
{
	const struct softsign_attrs *a = te_op_attrs(op);

	return a->limit > 0.0f ? 0 : -EINVAL;
}

static float limit_of(const struct te_op_call *c)
{
	const struct softsign_attrs *a = te_op_attrs(c->op);

	return a->limit;
}

static int softsign_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret_decl)
{
	(void)op;
	if (index)
		return 0; /* there are no others */
	ret_decl->name = "slope";
	ret_decl->ndim = 1;
	ret_decl->shape[0] = 1;
	ret_decl->init = TE_INIT_ONE;
	return 1;
}

static int softsign_infer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	inf->save_x = TE_FORM_HP; /* backward() reads x */
	inf->dw_x = TE_FORM_HP;	  /* and so does backward_dw(), with dy */
	inf->dw_dy = TE_FORM_HP;
	return 0;
}

static int softsign_forward(const struct te_op_call *c)
{
	struct job j = { 0 };

	j.x = te_tensor_data(c->x.hp);
	j.s = te_tensor_data(c->master[0]);
	j.y = te_tensor_data(c->y.hp);
	j.n = te_tensor_nelems(c->x.hp);
	j.limit = limit_of(c);
	return te_host_call(c->stream, run_forward, &j, sizeof(j));
}

static int softsign_backward(const struct te_op_call *c)
{
	struct job j = { 0 };

	j.x = te_tensor_data(c->x.hp);
	j.s = te_tensor_data(c->master[0]);
	j.dy = te_tensor_data(c->dy.hp);
	j.dx = te_tensor_data(c->dx.hp);
	j.n = te_tensor_nelems(c->x.hp);
	j.limit = limit_of(c);
	return te_host_call(c->stream, run_backward, &j, sizeof(j));
}

static int softsign_dw(const struct te_op_call *c)
{
	struct job j = { 0 };

	j.x = te_tensor_data(c->x.hp);
	j.s = te_tensor_data(c->master[0]);
	j.dy = te_tensor_data(c->dy.hp);
	j.ds = te_tensor_data(c->grad[0]);
	j.n = te_tensor_nelems(c->x.hp);
	j.limit = limit_of(c);
	return te_host_call(c->stream, run_dw, &j, sizeof(j));
}

static const struct te_op_ops softsign_ops = {
	.size = sizeof(struct te_op_ops),
	.name = "softsign",
	.attrs_nbytes = sizeof(struct softsign_attrs),
	.check = softsign_check,
	.weight = softsign_weight,
	.infer = softsign_infer,
	.forward = softsign_forward,
	.backward = softsign_backward,
	.backward_dw = softsign_dw,
};

/* ---- the fusion: bias, softsign ---- */

/* only in a plan for inference: in training the biased value has memory, as backward reads it */
static int fused_applies(const struct te_fused *f)
{
	return !f->part[0]->y.hp;
}

static int fused_run(const struct te_fused *f)
{
	const struct te_op_call *bias = f->part[0], *act = f->part[1];
	struct job j = { 0 };

	j.x = te_tensor_data(bias->x.hp);
	j.bias = te_tensor_data(bias->master[0]);
	j.s = te_tensor_data(act->master[0]);
	j.y = te_tensor_data(act->y.hp);
	j.n = te_tensor_nelems(bias->x.hp);
	j.width = te_tensor_cols(bias->x.hp);
	j.limit = limit_of(act);
	return te_host_call(bias->stream, run_forward, &j, sizeof(j));
}

static const struct te_fusion bias_softsign = {
	.size = sizeof(struct te_fusion),
	.name = "bias+softsign",
	.pass = TE_PASS_FORWARD,
	.pattern = "bias softsign",
	.applies = fused_applies,
	.run = fused_run,
	.test = "this program",
};

/* ---- a small classifier that uses it ---- */

/* the sequence takes its own reference */
static int append(struct te_seq *seq, int created, struct te_op **op)
{
	if (created >= 0)
		created = te_seq_append(seq, *op);
	*op = te_op_unref(*op);
	return created;
}

static int build(struct te_seq *seq)
{
	struct te_norm_attrs norm = TE_ATTRS(norm, WIDTH, 1e-5f, 0);
	struct te_bias_attrs bias = TE_ATTRS(bias, WIDTH);
	struct softsign_attrs softsign = { 2.0f };
	struct te_linear_attrs head = TE_ATTRS(linear, WIDTH, CLASSES, 0.1f, 0, NULL);
	struct te_cross_entropy_attrs ce = TE_ATTRS(cross_entropy, CLASSES, -100, 1.0f);
	struct te_op *op = NULL;
	int r;

	r = append(seq, te_op_rmsnorm(&norm, "norm", &op), &op);
	if (r >= 0)
		r = append(seq, te_op_bias(&bias, "bias", &op), &op);
	if (r >= 0)
		r = append(seq, te_op_create(&softsign_ops, &softsign, "act", &op), &op);
	if (r >= 0)
		r = append(seq, te_op_linear(&head, "head", &op), &op);
	if (r >= 0)
		r = te_op_cross_entropy(&ce, "loss", &op);
	if (r >= 0) {
		r = te_op_take(op, 0, "targets");
		r = append(seq, r, &op);
	}
	if (r >= 0)
		r = te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL);
	if (r >= 0)
		r = te_seq_add_fusion(seq, &bias_softsign);
	return r < 0 ? r : te_seq_init(seq, 7);
}

/* points around one centre for each class */
static int feed(struct te_plan *plan)
{
	static float x[ROWS * WIDTH];
	int32_t target[ROWS];
	uint32_t lcg = 1;

	for (int i = 0; i < ROWS; i++) {
		target[i] = i % CLASSES;
		for (int c = 0; c < WIDTH; c++) {
			lcg = lcg * 1664525u + 1013904223u;
			x[i * WIDTH + c] = (c % CLASSES == target[i] ? 2.0f : 0.0f) +
					   (float)(lcg >> 8) / 16777216.0f;
		}
	}
	if (te_plan_input(plan, "targets") &&
	    te_tensor_write(te_plan_input(plan, "targets"), target, sizeof(target)) < 0)
		return -1;
	return te_tensor_write(te_plan_input(plan, "x"), x, sizeof(x));
}

static int make_plan(struct te_seq *seq, uint32_t flags, const char *stop_before,
		     struct te_plan **ret_plan)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	int r;

	r = te_recipe_from_name("fp32", &recipe);
	o.recipe = &recipe;
	o.flags = flags;
	o.stop_before = stop_before;
	o.x.dtype = TE_DTYPE_FP32;
	o.x.ndim = 3;
	o.x.shape[0] = 1;
	o.x.shape[1] = ROWS;
	o.x.shape[2] = WIDTH;
	if (r >= 0)
		r = te_plan_create(seq, &o, ret_plan);
	return r < 0 ? r : feed(*ret_plan);
}

static int train(struct te_seq *seq, struct te_stream *st, float *ret_first, float *ret_last)
{
	struct te_adamw *opt = NULL;
	struct te_plan *plan = NULL;
	float loss = 0;
	int r;

	r = make_plan(seq, TE_PLAN_TRAIN, NULL, &plan);
	if (r >= 0)
		r = te_adamw_create(seq, NULL, &opt);
	if (r >= 0)
		r = te_adamw_set_lr(opt, st, 0.05f);
	for (int i = 0; r >= 0 && i < 50; i++) {
		if ((r = te_seq_zero_grads(seq, st)) < 0 ||
		    (r = te_plan_forward(plan, st, 0)) < 0 ||
		    (r = te_plan_backward(plan, st)) < 0 || (r = te_adamw_step(opt, st)) < 0 ||
		    (r = te_stream_sync(st)) < 0)
			break;
		r = te_tensor_read(te_plan_output(plan), &loss, sizeof(loss));
		if (i == 0)
			*ret_first = loss;
		*ret_last = loss;
	}
	te_adamw_unref(opt);
	te_plan_unref(plan);
	return r;
}

/* the logits of a plan for inference; prints the plan if it is the fused one */
static int logits(struct te_seq *seq, struct te_stream *st, uint32_t flags, float *ret_y,
		  int *ret_fused)
{
	struct te_plan *plan = NULL;
	char *text = NULL;
	int r;

	r = make_plan(seq, flags, "loss", &plan);
	if (r >= 0)
		r = te_plan_forward(plan, st, 0);
	if (r >= 0)
		r = te_stream_sync(st);
	if (r >= 0)
		r = te_tensor_read(te_plan_output(plan), ret_y, ROWS * CLASSES * sizeof(*ret_y));
	if (r >= 0)
		r = te_plan_print(plan, TE_PLAN_TEXT, &text);
	if (r >= 0) {
		*ret_fused = strstr(text, "  bias+softsign ") != NULL;
		if (!flags)
			fputs(text, stdout);
	}
	free(text);
	te_plan_unref(plan);
	return r;
}

int main(void)
{
	static float fused[ROWS * CLASSES], steps[ROWS * CLASSES];
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_ctx *ctx = NULL;
	struct te_seq *seq = NULL;
	float first = 0, last = 0;
	int is_fused = 0, is_not = 1, ok = 0, r;

	o.backend = "host";
	r = te_ctx_create(&o, &ctx);
	if (r >= 0)
		r = te_seq_create(ctx, &seq);
	if (r >= 0)
		r = build(seq);
	if (r >= 0)
		r = train(seq, te_ctx_stream(ctx), &first, &last);
	if (r >= 0)
		r = logits(seq, te_ctx_stream(ctx), 0, fused, &is_fused);
	if (r >= 0)
		r = logits(seq, te_ctx_stream(ctx), TE_PLAN_NO_FUSION, steps, &is_not);
	if (r < 0) {
		fprintf(stderr, "%s: %s\n", te_strerror(r), te_error_detail());
	} else {
		printf("loss %.3f after one step, %.3f after 50\n", (double)first, (double)last);
		ok = last < 0.5f * first && is_fused && !is_not &&
		     !memcmp(fused, steps, sizeof(fused));
	}
	te_seq_unref(seq);
	te_ctx_unref(ctx);
	return ok ? 0 : 1;
}
