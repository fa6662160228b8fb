/* t/plan/plan_use.c - te_plan_*(3): options, the order of calls, what is printed, failures. */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>
#include <te/optim.h>
#include <te/quant.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/plan.h"
#include "libtecore/tensor/ctx.h"
#include "plan_cases.h"
#include "tt_ctx.h"

CTX_CASE(use, "run");

TEST(use, refuses_calls_out_of_order)
{
	struct te_seq *seq = model_create(ctx, &gpt, 5);
	struct te_plan *p = model_plan(seq, &gpt, "bf16", TE_PLAN_TRAIN | TE_PLAN_DELAY_DW);
	struct te_plan *e = model_plan(seq, &gpt, "bf16", 0);

	model_feed(p, &gpt);
	ck_assert_int_eq(te_plan_backward(p, st), -TE_ESTATE);
	ck_assert_int_eq(te_plan_backward_dw(p, st), -TE_ESTATE);
	ck_assert_int_eq(te_plan_forward(p, st, 64), -EINVAL);
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	ck_assert_int_eq(te_plan_backward(p, st), -TE_ESTATE);
	ck_assert_int_eq(te_plan_forward(p, st, 0), -TE_ESTATE);
	DO(te_plan_backward_dw(p, st));
	ck_assert_int_eq(te_plan_backward_dw(p, st), -TE_ESTATE);
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_forward(e, st, 0));
	ck_assert_int_eq(te_plan_backward(e, st), -TE_ESTATE);
	DO(te_stream_sync(st));
	te_plan_unref(e);
	te_plan_unref(p);
	te_seq_unref(seq);
}

#define INVALIDATES(code, call)                             \
	do {                                                \
		DO(te_capture_begin(st));                   \
		fails(call, code, "");                      \
		fails(te_capture_end(st, &rec), code, ""); \
	} while (0)

TEST(use, refused_calls_invalidate_a_capture)
{
	struct te_seq *seq = model_create(ctx, &gpt, 5);
	struct te_plan *p = model_plan(seq, &gpt, "bf16", TE_PLAN_TRAIN | TE_PLAN_DELAY_DW);
	struct te_plan *none = model_plan(seq, &gpt, "bf16", TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	struct te_recording *rec;
	struct te_adamw *opt;
	struct te_seq *raw;

	DO(te_seq_create(ctx, &raw));
	DO(te_adamw_create(seq, NULL, &opt));
	INVALIDATES(-EINVAL, te_plan_forward(NULL, st, 0));
	INVALIDATES(-EINVAL, te_plan_forward(p, st, 64));
	INVALIDATES(-TE_ESTATE, te_plan_forward(none, st, 0));
	INVALIDATES(-TE_ESTATE, te_plan_backward(none, st));
	INVALIDATES(-TE_ESTATE, te_plan_backward(p, st));
	INVALIDATES(-TE_ESTATE, te_plan_backward_dw(p, st));
	INVALIDATES(-TE_ESTATE, te_seq_zero_grads(raw, st));
	INVALIDATES(-TE_ESTATE, te_seq_weights_changed(raw, st));
	INVALIDATES(-EINVAL, te_adamw_set_lr(opt, st, -1.0f));
	INVALIDATES(-EINVAL, te_adamw_set_lr(NULL, st, 1.0f));
	INVALIDATES(-EINVAL, te_adamw_step(NULL, st));
	INVALIDATES(-EINVAL, te_quant_update(st, NULL, 0, 1));
	INVALIDATES(-EINVAL, te_quantize(st, NULL, 0, NULL, NULL, NULL, 0));
	INVALIDATES(-EINVAL, te_dequantize(st, NULL, NULL));
	te_adamw_unref(opt);
	te_plan_unref(none);
	te_plan_unref(p);
	te_seq_unref(raw);
	te_seq_unref(seq);
}

TEST(use, stops_before_the_loss)
{
	struct te_seq *seq = model_create(ctx, &gpt, 5);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;

	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, 16 } };
	o.stop_before = "loss";
	DO(te_plan_create(seq, &o, &p));
	ck_assert_ptr_null(te_plan_input(p, "targets"));
	ck_assert_int_eq(te_tensor_cols(te_plan_output(p)), 48);
	ck_assert_int_eq(te_tensor_rows(te_plan_output(p)), 16);
	model_feed(p, &(struct model_shape){ .vocab = 48, .batch = 1, .seqlen = 16 });
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	te_plan_unref(p);
	o.stop_before = "nothing";
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -EINVAL);
	o.stop_before = "emb";
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -EINVAL);
	te_seq_unref(seq);
}

TEST(use, refuses_bad_options)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT, good;
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct te_seq *seq = model_create(ctx, &gpt, 5), *raw;
	struct te_plan *p = NULL;

	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 2, 16 } };
	good = o;
	o.flags = 1u << 31;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -EINVAL);
	o = good;
	o.flags = TE_PLAN_DELAY_DW;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -EINVAL);
	o = good;
	o.x.shape[1] = 0;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_ESHAPE);
	o = good;
	o.recipe = &recipe;
	recipe.compute = TE_DTYPE_E4M3;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_EDTYPE);
	recipe = (struct te_recipe)TE_RECIPE_INIT;
	recipe.size = 0;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -EINVAL);
	tt_said("te_plan_create: struct te_recipe says that it has 0 bytes");
	recipe = (struct te_recipe)TE_RECIPE_INIT;
	recipe.kind = (enum te_recipe_kind)99;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -EINVAL);
	tt_said("kind 99 is unknown");
	recipe = (struct te_recipe)TE_RECIPE_INIT;
	DO(te_seq_create(ctx, &raw));
	ck_assert_int_eq(te_plan_create(raw, &good, &p), -TE_ESTATE);
	te_seq_unref(raw);
	te_seq_unref(seq);
	/* one FP8 recipe a sequence */
	seq = model_create(ctx, &gpt, 5);
	p = model_plan(seq, &gpt, "fp8-current", 0);
	te_plan_unref(p);
	DO(te_recipe_from_name("fp8-delayed", &recipe));
	good.recipe = &recipe;
	ck_assert_int_eq(te_plan_create(seq, &good, &p), -TE_ESTATE);
	te_seq_unref(seq);
}

/* sizes that overflow 64 bits, or a machine's address space, are refused by name */
static const struct {
	int64_t rows, cols, tail, width;
	const char *words[2];
} absurd[] = {
	{ (int64_t)1 << 32, (int64_t)1 << 32, 1, 4, { "x", "[4294967296,4294967296] int32" } },
	{ INT64_MAX, 2, 1, 4, { "x", "[9223372036854775807,2] int32" } },
	{ 4, 4, (int64_t)1 << 62, 4, { "channel mask", "[4,4,4611686018427387904] fp32" } },
	{ 1 << 20, 1 << 10, 1, 1 << 18, { "op emb", "output 0 is [1048576,1024,262144] bf16" } },
};

/*
 * Heads wider than a GPU's kernels take are refused before the plan has memory: here on a context
 * that has the name of a GPU's. _i: FP32
 */
static int l40s(int index, struct te_device_info *ret)
{
	snprintf(ret->backend, sizeof(ret->backend), "cuda");
	snprintf(ret->name, sizeof(ret->name), "NVIDIA L40S");
	ret->index = index;
	ret->block_smem_nbytes = 99 << 10;
	return 0;
}

TEST_EACH(use, refuses_wide_heads_on_gpus, 2)
{
	const struct te_attention_attrs attention = TE_ATTRS(attention, 2, 1, 129);
	const struct te_attention_attrs fp32 = TE_ATTRS(attention, 2, 1, 65);
	static const char *const want[][2] = {
		{ "attention wide: head_dim is 129, but kernels of cuda 0, ", "take at most 128 in "
		  "fp32; the backend host takes 256, and so does the recipe bf16" },
		{ "attention wide: head_dim is 65 in FP32, which takes 160 KiB of shared memory a "
		  "block, and cuda 0, ", ", has 99; heads of at most 64 run there, and the recipe "
		  "bf16" },
	};
	const struct te__backend_ops *const own = ctx->ops;
	struct te__backend_ops cuda = *own;
	const struct te_recipe in_fp32 = tt_recipe("fp32");
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_mem_info before = TE_MEM_INFO_INIT, after = before;
	struct te_plan *p = NULL;
	struct te_seq *seq;
	struct te_op *op;
	int r;

	o.recipe = &in_fp32;
	DO(te_seq_create(ctx, &seq));
	DO(te_op_attention(_i ? &fp32 : &attention, "wide", &op));
	tt_append(seq, op);
	DO(te_seq_init(seq, 1));
	o.x = (struct te_spec){ TE_DTYPE_FP32, 3, { 1, 4, 4 * (_i ? 65 : 129) } };
	DO(te_ctx_mem_info(ctx, &before));
	cuda.name = "cuda";
	cuda.device_info = l40s;
	ctx->ops = &cuda;
	ctx->has_info = 0;
	r = te_plan_create(seq, &o, &p);
	ctx->ops = own;
	ctx->has_info = 0;
	ck_assert_int_eq(r, -EOPNOTSUPP);
	ck_assert_ptr_null(p);
	ck_assert_msg(strstr(te_error_detail(), want[_i][0]) != NULL &&
			      strstr(te_error_detail(), want[_i][1]) != NULL,
		      "%s", te_error_detail());
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(before.used_nbytes, after.used_nbytes);
	if (!strcmp(own->name, "host"))
		DO(te_plan_create(seq, &o, &p));
	te_plan_unref(p);
	te_seq_unref(seq);
}

TEST_EACH(use, refuses_absurd_shapes, TT_LEN(absurd))
{
	struct te_embedding_attrs e = TE_ATTRS(embedding, 2, absurd[_i].width, 0, 0.1f, 0);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *seq;
	struct te_op *emb, *add;
	struct te_plan *p;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_embedding(&e, "emb", &emb));
	DO(te_op_add("add", &add));
	DO(te_op_take(add, 0, "mask"));
	DO(te_seq_input(seq, "mask", TE_DTYPE_FP32, 1, &absurd[_i].tail));
	DO(te_seq_append(seq, emb));
	DO(te_seq_append(seq, add));
	te_op_unref(emb);
	te_op_unref(add);
	DO(te_seq_init(seq, 1));
	o.flags = TE_PLAN_NO_ALLOC;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { absurd[_i].rows, absurd[_i].cols } };
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_ESHAPE);
	tt_said(absurd[_i].words[0]);
	tt_said(absurd[_i].words[1]);
	te_seq_unref(seq);
}

/* what infer() of an op with an extra input sets; x and the extra input are [4,8] */
static const struct {
	int32_t out_alias, dx_alias, dex_alias;
	int64_t cols; /* of the output */
	int code;
	const char *words;
} answers[] = {
	{ -1, -1, -1, 4, 0, "" },
	{ -1, 0, 0, 8, 0, "" },
	{ 2, -1, -1, 8, -TE_EPLAN, "op mine: output 0 aliases input 2" },
	{ 1, -1, -1, 4, -TE_ESHAPE, "op mine: output 0 is input 1 but of another shape" },
	{ -1, 1, -1, 8, -TE_EPLAN, "the gradient of input 0 aliases the gradient of output 1" },
	{ -1, -2, -1, 8, -TE_EPLAN, "the gradient of input 0 aliases the gradient of output -2" },
	{ -1, -1, 7, 8, -TE_EPLAN, "the gradient of input 1 aliases the gradient of output 7" },
	{ -1, 0, -1, 4, -TE_ESHAPE, "gradient of input 0 is the one of output 0 but of another" },
	{ -1, -1, 0, 4, -TE_ESHAPE, "gradient of input 1 is the one of output 0 but of another" },
};
static int answer;

static int infer_answer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	inf->out[0].shape[1] = answers[answer].cols;
	inf->out_alias[0] = answers[answer].out_alias;
	inf->dx_alias = answers[answer].dx_alias;
	inf->dex_alias[0] = answers[answer].dex_alias;
	return 0;
}

static int no_pass(const struct te_op_call *c)
{
	return 0;
}

TEST_EACH(use, refuses_aliases_that_cannot_be, TT_LEN(answers))
{
	const struct te_op_ops ops = { .size = sizeof(ops), .name = "mine", .nextra_in = 1,
				       .infer = infer_answer, .forward = no_pass,
				       .backward = no_pass };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p = NULL;
	struct te_op *fork, *op;
	struct te_seq *seq;

	answer = _i;
	DO(te_seq_create(ctx, &seq));
	DO(te_op_fork("fork", &fork));
	DO(te_op_give(fork, 0, "r"));
	DO(te_op_create(&ops, NULL, "mine", &op));
	DO(te_op_take(op, 0, "r"));
	DO(te_seq_append(seq, fork));
	DO(te_seq_append(seq, op));
	te_op_unref(fork);
	te_op_unref(op);
	DO(te_seq_init(seq, 1));
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { 4, 8 } };
	fails(te_plan_create(seq, &o, &p), answers[_i].code, answers[_i].words);
	te_plan_unref(p);
	te_seq_unref(seq);
}

TEST(use, prints_text_and_dot)
{
	struct te_seq *seq = model_create(ctx, &gpt, 5);
	struct te_plan *p = model_plan(seq, &gpt, "fp8-delayed", TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	char *text = NULL, *dot = NULL, node[32];

	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	ck_assert_ptr_nonnull(strstr(text, "plan: x [2,16] int32, recipe fp8-delayed"));
	ck_assert_ptr_nonnull(strstr(text, "norm+quantize"));
	ck_assert_ptr_nonnull(strstr(text, "h.1.down.dw"));
	ck_assert_ptr_nonnull(strstr(text, "backward:"));
	ck_assert_ptr_nonnull(strstr(text, "arena: "));
	DO(te_plan_print(p, TE_PLAN_DOT, &dot));
	ck_assert_int_eq(strncmp(dot, "digraph", 7), 0);
	for (int t = 0; t < p->ngroups; t++) {
		snprintf(node, sizeof(node), "  g%d [", t);
		ck_assert_ptr_nonnull(strstr(dot, node));
	}
	ck_assert_ptr_nonnull(strstr(dot, "g0 -> g1"));
	ck_assert_int_eq(te_plan_print(p, (enum te_plan_format)9, &text), -EINVAL);
	free(text);
	for (int k = 0; k < 2; k++) {
		text = dot;
		te__fault_set(1);
		fails(te_plan_print(p, k ? TE_PLAN_DOT : TE_PLAN_TEXT, &text), -ENOMEM,
		      "te_plan_print: no memory");
		te__fault_set(0);
		ck_assert_ptr_eq(text, dot);
	}
	free(dot);
	te_plan_unref(p);
	te_seq_unref(seq);
}

/*
 * Quantizers too: nothing is allocated, the sequence gets none, and the memory told is that of the
 * plan that is made afterwards, also by another recipe. _i: recipe
 */
TEST_EACH(use, no_alloc_leaves_the_sequence_alone, NRECIPES)
{
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	struct te_plan_memory told = TE_PLAN_MEMORY_INIT, real = TE_PLAN_MEMORY_INIT;
	struct te_seq *seq = model_create(ctx, &gpt, 5);
	struct te_plan *p[2], *other;

	DO(te_ctx_mem_info(ctx, &before));
	other = model_plan(seq, &gpt, _i ? "fp8-delayed" : "fp8-current",
			   TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	p[0] = model_plan(seq, &gpt, recipes[_i], TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	DO(te_plan_memory(p[0], &told));
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(after.nallocs, before.nallocs);
	ck_assert_uint_eq(after.used_nbytes, before.used_nbytes);
	ck_assert_uint_eq(after.peak_nbytes, before.peak_nbytes);
	ck_assert_ptr_null(te_seq_quant(seq));
	p[1] = model_plan(seq, &gpt, recipes[_i], TE_PLAN_TRAIN);
	DO(te_plan_memory(p[1], &real));
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_mem_eq(&told, &real, sizeof(real));
	/* the weights and the words of the sequence had been there */
	ck_assert_uint_eq(after.used_nbytes - before.used_nbytes,
			  told.total_nbytes - told.weights_nbytes - 3 * sizeof(uint64_t));
	/* what it then has are those of the plan that runs */
	ck_assert_int_eq(te_seq_quant(seq) != NULL, strncmp(recipes[_i], "fp8", 3) == 0);
	model_feed(p[1], &gpt);
	DO(te_plan_forward(p[1], st, 0));
	DO(te_plan_backward(p[1], st));
	DO(te_stream_sync(st));
	te_plan_unref(other);
	te_plan_unref(p[0]);
	te_plan_unref(p[1]);
	te_seq_unref(seq);
}

TEST(use, says_so_at_every_call_after_a_failure)
{
	struct te_seq *seq = model_create(ctx, &gpt, 5);
	struct te_plan *p = model_plan(seq, &gpt, "bf16", TE_PLAN_TRAIN);

	model_feed(p, &gpt);
	te__fault_set(10);
	ck_assert_int_lt(te_plan_forward(p, st, 0), 0);
	te__fault_set(0);
	ck_assert_int_lt(te_plan_forward(p, st, 0), 0);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "failed before"));
	te_stream_sync(st);
	te_plan_unref(p);
	te_seq_unref(seq);
}

static int plan_once(void)
{
	struct te_embedding_attrs ea = TE_ATTRS(embedding, 16, 16, 0, 1, 0);
	struct te_linear_attrs la = TE_ATTRS(linear, 16, 16, 1, 0, NULL);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct te_op *e = NULL, *l = NULL;
	struct te_plan *p = NULL;
	struct te_seq *s = NULL;
	struct te_ctx *c = NULL;
	int r;

	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, 16 } };
	o.recipe = &recipe;
	r = te_recipe_from_name("fp8-delayed", &recipe);
	if (!r)
		r = tt_ctx_new(&c);
	if (!r)
		r = te_seq_create(c, &s);
	if (!r)
		r = te_op_embedding(&ea, "e", &e);
	if (!r)
		r = te_op_linear(&la, "l", &l);
	if (!r)
		r = te_seq_append(s, e);
	if (!r)
		r = te_seq_append(s, l);
	if (!r)
		r = te_seq_init(s, 1);
	if (!r)
		r = te_plan_create(s, &o, &p);
	te_plan_unref(p);
	te_op_unref(e);
	te_op_unref(l);
	te_seq_unref(s);
	te_ctx_unref(c);
	return r;
}

CASE(faults, "fault");

TEST(faults, survives_every_fault)
{
	ck_assert_int_gt(tt_fault_each(plan_once), 20);
}
