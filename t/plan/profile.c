/* t/plan/profile.c - te_plan_profile(3): what it runs, times, bytes, FLOPs, order and texts. */
#include "config.h"

#include <math.h>
#include <string.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/plan.h>

#include "libtecore/plan/plan.h"
#include "plan_model.h"
#include "tt_ctx.h"

#define ROWS 6
#define IN 10
#define OUT 7

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const struct model_shape llama = { 48, 32, 2, 16, 4, 2, 2, 0, 1 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };

/* one run, and rates that need not be measured */
static struct te_plan_profile_opts given(void)
{
	struct te_plan_profile_opts o = TE_PLAN_PROFILE_OPTS_INIT;

	o.nruns = 1;
	o.nwarm = 0;
	o.copy_rate = 1e9;
	o.fp8_rate = 4e9;
	o.gemm_rate = 2e9;
	return o;
}

static struct te_plan *linear_plan(struct te_seq *seq, const char *recipe, int64_t rows, int64_t in,
				   uint32_t flags)
{
	const struct te_recipe rec = tt_recipe(recipe);
	const struct te_spec x = { rec.compute, 2, { rows, in } };
	struct te_plan *plan = tt_plan(seq, &rec, flags, x);

	DO(te_fill(st, te_tensor_data(te_plan_input(plan, "x")), 0,
		   te_tensor_nbytes(te_plan_input(plan, "x"))));
	if (te_plan_output_grad(plan))
		DO(te_fill(st, te_tensor_data(te_plan_output_grad(plan)), 0,
			   te_tensor_nbytes(te_plan_output_grad(plan))));
	return plan;
}

/* bytes that an embedding of two tokens in [64,8] reads and writes, with these masters */
static uint64_t embedding_nbytes(uint32_t masters)
{
	struct te_embedding_attrs a = TE_ATTRS(embedding, .vocab = 64, .width = 8);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_plan_profile_step s = TE_PLAN_PROFILE_STEP_INIT;
	struct te_plan_profile_opts po = given();
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *plan;
	struct te_seq *seq;
	struct te_op *op;

	b.flags = masters;
	DO(te_seq_create(ctx, &seq));
	DO(te_op_embedding(&a, "e", &op));
	tt_append(seq, op);
	DO(te_seq_complete(seq));
	DO(te_seq_bind(seq, &b));
	DO(te_seq_init(seq, 1));
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, 2 } };
	DO(te_plan_create(seq, &o, &plan));
	DO(te_fill(st, te_tensor_data(te_plan_input(plan, "x")), 0, 2 * sizeof(int32_t)));
	DO(te_plan_profile(plan, st, &po, NULL));
	DO(te_plan_profile_step(plan, 0, &s));
	tt_drop(plan, seq);
	return s.nbytes;
}

CTX_CASE(profile, "host");

/* two rows of the table as it is stored, tokens, and outputs in BF16 */
TEST(profile, counts_masters_as_they_are_stored)
{
	const uint64_t rest = 2 * (sizeof(int32_t) + 2 * 8);

	ck_assert_uint_eq(embedding_nbytes(0), 4 * 2 * 8 + rest);
	ck_assert_uint_eq(embedding_nbytes(TE_SEQ_BF16_MASTERS), 2 * 2 * 8 + rest);
	ck_assert_uint_eq(embedding_nbytes(TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS),
			  4 * 2 * 8 + rest);
}

static struct te_plan_profile_step find(struct te_plan *plan, const char *steps)
{
	struct te_plan_profile_step s = TE_PLAN_PROFILE_STEP_INIT;

	for (int i = 0; !te_plan_profile_step(plan, i, &s); i++)
		if (!strcmp(s.steps, steps))
			return s;
	ck_abort_msg("no step is %s", steps);
	return s;
}

/* bytes and FLOPs of y = x w^T and of its gradients, as their formulas give them */
TEST(profile, counts_bytes_and_flops_of_a_linear)
{
	const uint64_t x = ROWS * IN, w = IN * OUT, y = ROWS * OUT;
	const double flops = 2.0 * ROWS * IN * OUT;
	struct te_plan_profile_opts o = given();
	struct te_plan_profile sum = TE_PLAN_PROFILE_INIT;
	struct te_seq *seq = linear_seq(1, IN, OUT, 0);
	struct te_plan *plan =
		linear_plan(seq, "fp32", ROWS, IN, TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD);
	struct te_plan_profile_step fwd, bwd, dw;

	DO(te_plan_profile(plan, st, &o, &sum));
	fwd = find(plan, "l");
	bwd = find(plan, "l.bwd");
	dw = find(plan, "l.dw");
	ck_assert_uint_eq(fwd.nbytes, 4 * (x + w + y));
	ck_assert_uint_eq(bwd.nbytes, 4 * (y + w + x));
	ck_assert_uint_eq(dw.nbytes, 4 * (y + x + 2 * w));
	ck_assert_double_eq(fwd.flops, flops);
	ck_assert_double_eq(bwd.flops, flops);
	ck_assert_double_eq(dw.flops, flops);
	ck_assert_int_eq(fwd.pass, TE_PASS_FORWARD);
	ck_assert_int_eq(dw.pass, TE_PASS_BACKWARD);
	/* 2e9 FLOP/s need longer than 1e9 bytes/s */
	ck_assert_double_eq(fwd.bound_us, flops / 2e9 * 1e6 > (double)fwd.nbytes / 1e9 * 1e6 ?
						  flops / 2e9 * 1e6 :
						  (double)fwd.nbytes / 1e9 * 1e6);
	ck_assert_uint_eq(sum.nbytes, fwd.nbytes + bwd.nbytes + dw.nbytes);
	ck_assert_double_eq(sum.flops, 3 * flops);
	ck_assert_int_eq(sum.nsteps, 3);
	tt_drop(plan, seq);
}

/* FP8: a cast reads BF16, twice if its amax is needed first, and writes two copies, and GEMMs read
 * codes at the FP8 rate */
TEST_EACH(profile, counts_fp8_copies, 2)
{
	const int64_t rows = 16, in = 32, out = 48;
	struct te_plan_profile_opts o = given();
	struct te_seq *seq = linear_seq(1, in, out, 0);
	const int reads = _i ? 2 : 1;
	struct te_plan *plan = linear_plan(seq, _i ? "fp8-current" : "fp8-delayed", rows, in,
					   TE_PLAN_TRAIN);
	struct te_plan_profile_step s;

	o.copy_rate = 1e18;
	DO(te_plan_profile(plan, st, &o, NULL));
	s = find(plan, "l");
	ck_assert_uint_eq(s.nbytes, (uint64_t)(rows * in + in * out + 2 * rows * out));
	ck_assert_double_eq_tol(s.bound_us, 2.0 * (double)(rows * in * out) / 4e9 * 1e6, 1e-9);
	s = find(plan, "quantize(x)");
	ck_assert_uint_eq(s.nbytes, (uint64_t)((2 * reads + 2) * rows * in));
	ck_assert_double_eq(s.flops, 0);
	tt_drop(plan, seq);
}

static void check_sums(struct te_plan *plan, const struct te_plan_profile *sum)
{
	struct te_plan_profile_step s = TE_PLAN_PROFILE_STEP_INIT;
	char seen[512] = { 0 };
	double us = 0, bound = 0, lost = 0, last = INFINITY;
	int n = 0, ngroups = 0;

	for (; !te_plan_profile_step(plan, n, &s); n++) {
		ck_assert_double_ge(s.min_us, 0);
		ck_assert_double_ge(s.us, s.min_us);
		ck_assert_double_eq(s.lost_us, s.us > s.bound_us ? s.us - s.bound_us : 0);
		ck_assert_double_le(s.lost_us, last);
		last = s.lost_us;
		us += s.us;
		bound += s.bound_us;
		lost += s.lost_us;
		if (s.group < 0) {
			ck_assert(!strcmp(s.name, "weights") || !strcmp(s.name, "scales"));
			continue;
		}
		ck_assert_int_lt(s.group, (int)sizeof(seen));
		ck_assert_int_eq(seen[s.group]++, 0);
		ck_assert_uint_gt(s.nbytes, 0);
		ck_assert_uint_gt(strlen(s.steps), 0);
		ngroups++;
	}
	ck_assert_int_eq(n, sum->nsteps);
	for (int i = 0; i < ngroups; i++)
		ck_assert_int_eq(seen[i], 1);
	ck_assert_double_eq_tol(sum->us, us, 1e-6 * us + 1e-9);
	ck_assert_double_eq_tol(sum->bound_us, bound, 1e-6 * bound);
	ck_assert_double_eq_tol(sum->lost_us, lost, 1e-6 * lost + 1e-9);
}

/* each group once, in order of what it loses, under all recipes and with delayed gradients */
TEST_EACH(profile, lists_each_group_once, TT_LEN(recipes))
{
	static const uint32_t flags[] = { 0, TE_PLAN_TRAIN, TE_PLAN_TRAIN | TE_PLAN_DELAY_DW,
					  TE_PLAN_TRAIN | TE_PLAN_NO_FUSION };
	const struct model_shape *m = _i % 2 ? &gpt : &llama;
	struct te_plan_profile_opts o = given();
	struct te_plan_profile sum = TE_PLAN_PROFILE_INIT;
	struct te_seq *seq = model_create(ctx, m, 3);

	o.nruns = 3;
	for (size_t f = 0; f < TT_LEN(flags); f++) {
		struct te_plan *plan = model_plan(seq, m, recipes[_i], flags[f]);

		model_feed(plan, m);
		DO(te_plan_profile(plan, st, &o, &sum));
		ck_assert_int_eq(sum.nruns, 3);
		ck_assert_double_eq(sum.copy_rate, o.copy_rate);
		ck_assert_double_gt(sum.flops, 0);
		check_sums(plan, &sum);
		te_plan_unref(plan);
	}
	te_seq_unref(seq);
}

/* bytes of the group with these steps; 0: there is none */
static uint64_t nbytes_of(const struct te_plan *plan, int32_t nsteps, const char *steps)
{
	struct te_plan_profile_step s = TE_PLAN_PROFILE_STEP_INIT;

	for (int32_t i = 0; i < nsteps; i++) {
		DO(te_plan_profile_step(plan, i, &s));
		if (!strcmp(s.steps, steps))
			return s.nbytes;
	}
	return 0;
}

/* a cast reads BF16 and writes two forms; run again, it writes the one that backward reads */
TEST(profile, counts_casts_that_run_again)
{
	static const char *const pattern[] = { "*" };
	const struct te_recipe rec = tt_recipe("fp8-delayed");
	const uint64_t form = (uint64_t)(gpt.batch * gpt.seqlen * 2 * gpt.width);
	struct te_plan_profile_opts o = given();
	struct te_plan_profile sum = TE_PLAN_PROFILE_INIT;
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_seq *seq = model_create(ctx, &gpt, 3);
	struct te_plan *plan;

	po.recipe = &rec;
	po.flags = TE_PLAN_TRAIN;
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { gpt.batch, gpt.seqlen } };
	po.nrecompute = 1;
	po.recompute = pattern;
	DO(te_plan_create(seq, &po, &plan));
	model_feed(plan, &gpt);
	DO(te_plan_profile(plan, st, &o, &sum));
	ck_assert_uint_eq(nbytes_of(plan, sum.nsteps, "h.0.act + quantize(h.0.act.y)"), 4 * form);
	ck_assert_uint_eq(nbytes_of(plan, sum.nsteps,
				    "h.0.act.recompute + quantize.recompute(h.0.act.y)"),
			  3 * form);
	tt_drop(plan, seq);
}

/* the passes are ordinary ones: loss, gradients and scales have the same bits */
TEST_EACH(profile, runs_the_passes, TT_LEN(recipes))
{
	struct te_plan_profile_opts o = given();
	struct te_seq *a = model_create(ctx, &gpt, 3), *b = model_create(ctx, &gpt, 3);
	struct te_plan *p = model_plan(a, &gpt, recipes[_i], TE_PLAN_TRAIN);
	struct te_plan *q = model_plan(b, &gpt, recipes[_i], TE_PLAN_TRAIN);

	model_feed(p, &gpt);
	for (int k = 0; k < 2; k++) {
		const struct te_tensor *x = te_plan_input(p, k ? "targets" : "x");

		DO(te_copy(st, te_tensor_data(te_plan_input(q, k ? "targets" : "x")),
			   te_tensor_data(x), te_tensor_nbytes(x)));
	}
	o.nruns = 2;
	o.nwarm = 1;
	DO(te_seq_zero_grads(a, st));
	DO(te_seq_zero_grads(b, st));
	DO(te_plan_profile(p, st, &o, NULL));
	for (int i = 0; i < 3; i++) {
		DO(te_plan_forward(q, st, 0));
		DO(te_plan_backward(q, st));
	}
	model_same(te_plan_output(p), te_plan_output(q), "loss");
	model_same(te_seq_grads(a), te_seq_grads(b), "gradients");
	model_same_scales(te_seq_quant(a), te_seq_quant(b));
	/* and later passes go on */
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_forward(q, st, 0));
	model_same(te_plan_output(p), te_plan_output(q), "loss");
	te_plan_unref(p);
	tt_drop(q, a);
	te_seq_unref(b);
}

TEST_EACH(profile, measures_rates, TT_LEN(recipes))
{
	struct te_plan_profile_opts o = TE_PLAN_PROFILE_OPTS_INIT;
	struct te_plan_profile sum = TE_PLAN_PROFILE_INIT;
	struct te_seq *seq = linear_seq(1, 16, 32, 0);
	struct te_plan *plan = linear_plan(seq, recipes[_i], 16, 16, TE_PLAN_TRAIN);
	const int fp8 = !strncmp(recipes[_i], "fp8", 3);

	o.nruns = 1;
	DO(te_plan_profile(plan, st, &o, &sum));
	/* slower than any device, and faster: only units are tested */
	ck_assert_double_gt(sum.copy_rate, 1e6);
	ck_assert_double_lt(sum.copy_rate, 1e14);
	ck_assert_double_gt(fp8 ? sum.fp8_rate : sum.gemm_rate, 1e6);
	ck_assert_double_lt(fp8 ? sum.fp8_rate : sum.gemm_rate, 1e17);
	ck_assert_double_eq(fp8 ? sum.gemm_rate : sum.fp8_rate, 0);
	tt_drop(plan, seq);
}

static char *text_of(struct te_plan *plan, enum te_plan_format format)
{
	char *text;

	DO(te_plan_profile_print(plan, format, &text));
	return text;
}

TEST(profile, prints_text_and_json)
{
	struct te_plan_profile_opts o = given();
	struct te_seq *seq = model_create(ctx, &gpt, 3);
	struct te_plan *plan = model_plan(seq, &gpt, "fp8-delayed", TE_PLAN_TRAIN);
	char *text;

	model_feed(plan, &gpt);
	DO(te_plan_profile(plan, st, &o, NULL));
	text = text_of(plan, TE_PLAN_TEXT);
	ck_assert_ptr_nonnull(strstr(text, "recipe fp8-delayed, 1 runs\n"));
	ck_assert_ptr_nonnull(strstr(text, "copy 1.0 GB/s, FP8 GEMM 0.004 TFLOPS"));
	ck_assert_ptr_nonnull(strstr(text, "attention: "));
	ck_assert_str_eq(text + strlen(text) - strlen("  sum\n"), "  sum\n");
	free(text);
	text = text_of(plan, TE_PLAN_JSON);
	ck_assert_int_eq(*text, '{');
	ck_assert_ptr_nonnull(strstr(text, "\"copy_bytes_per_s\": 1000000000, "));
	ck_assert_ptr_nonnull(strstr(text, "{\"pass\": \"backward\", \"group\": "));
	ck_assert_str_eq(text + strlen(text) - strlen("}\n]}\n"), "}\n]}\n");
	free(text);
	tt_drop(plan, seq);
}

TEST(profile, refuses_bad_calls)
{
	struct te_plan_profile_opts o = given();
	struct te_plan_profile_step s = TE_PLAN_PROFILE_STEP_INIT;
	struct te_plan_profile sum = TE_PLAN_PROFILE_INIT;
	struct te_seq *seq = linear_seq(1, IN, OUT, 0);
	struct te_plan *plan = linear_plan(seq, "fp32", ROWS, IN, TE_PLAN_TRAIN);
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_recording *rec;
	struct te_plan *dry;
	char *text;

	fails(te_plan_profile_step(plan, 0, &s), -TE_ESTATE, "has no profile");
	fails(te_plan_profile_print(plan, TE_PLAN_TEXT, &text), -TE_ESTATE, "has no profile");
	fails(te_plan_profile(NULL, st, &o, &sum), -EINVAL, "plan is NULL");
	fails(te_plan_profile(plan, NULL, &o, &sum), -EINVAL, "te_plan_profile");
	o.nruns = 0;
	fails(te_plan_profile(plan, st, &o, &sum), -EINVAL, "0 runs");
	o = given();
	o.nwarm = -1;
	fails(te_plan_profile(plan, st, &o, &sum), -EINVAL, "after -1");
	o = given();
	o.copy_rate = -1;
	fails(te_plan_profile(plan, st, &o, &sum), -EINVAL, "a rate is -1");
	o.copy_rate = NAN;
	fails(te_plan_profile(plan, st, &o, &sum), -EINVAL, "a rate is");
	o = given();
	DO(te_capture_begin(st));
	fails(te_plan_profile(plan, st, &o, &sum), -EBUSY, "te_plan_profile");
	DO(te_capture_end(st, &rec));
	te_recording_unref(rec);
	DO(te_plan_profile(plan, st, &o, &sum));
	DO(te_plan_profile_step(plan, 0, &s));
	fails(te_plan_profile_step(plan, -1, &s), -EINVAL, "below 0");
	fails(te_plan_profile_step(NULL, 0, &s), -EINVAL, "plan is NULL");
	ck_assert_int_eq(te_plan_profile_step(plan, sum.nsteps, &s), -ENOENT);
	fails(te_plan_profile_print(plan, TE_PLAN_DOT, &text), -EINVAL, "format 1");
	fails(te_plan_profile_print(NULL, TE_PLAN_TEXT, &text), -EINVAL, "plan is NULL");
	po.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, IN } };
	po.flags = TE_PLAN_NO_ALLOC;
	DO(te_plan_create(seq, &po, &dry));
	fails(te_plan_profile(dry, st, &o, &sum), -TE_ESTATE, "without memory");
	te_plan_unref(dry);
	tt_drop(plan, seq);
}

static int profile_once(struct te_plan *plan, struct te_stream *stream)
{
	struct te_plan_profile_opts o = TE_PLAN_PROFILE_OPTS_INIT;
	char *text = NULL, *json = NULL;
	int r;

	o.nruns = o.nwarm = 1;
	o.copy_rate = 1e9; /* measured in rate() */
	r = te_plan_profile(plan, stream, &o, NULL);
	if (!r)
		r = te_plan_profile_print(plan, TE_PLAN_TEXT, &text);
	if (!r)
		r = te_plan_profile_print(plan, TE_PLAN_JSON, &json);
	free(text);
	free(json);
	return r;
}

static int with_a_plan(void)
{
	struct linear_plan p;
	int r = linear_plan_create("bf16", 4, 4, 8, &p);

	if (!r)
		r = profile_once(p.plan, te_ctx_stream(p.ctx));
	linear_plan_free(&p);
	return r;
}

static int rate(void)
{
	struct te_ctx *own = NULL;
	double x = -1;
	int r = tt_ctx_new(&own);

	if (!r)
		r = te__rate_copy(te_ctx_stream(own), &x);
	ck_assert_int_eq(x > 0, !r);
	te_ctx_unref(own);
	return r;
}

CTX_CASE(faults, "host fault");

TEST(faults, survives_every_fault)
{
	ck_assert_int_ge(tt_fault_each(with_a_plan), 20);
	ck_assert_int_eq(with_a_plan(), 0);
	ck_assert_int_ge(tt_fault_each(rate), 3);
	ck_assert_int_eq(rate(), 0);
}

/* forward computes the three GEMMs of a head with chunks */
TEST(profile, counts_flops_of_a_head_in_forward)
{
	const double flops = 2.0 * 32 * IN * OUT;
	struct te_linear_attrs la = TE_ATTRS(linear, IN, OUT, 0.1f, 0, NULL);
	struct te_cross_entropy_attrs ca = TE_ATTRS(cross_entropy, .nclasses = OUT, .chunk = 16);
	struct te_plan_profile_opts o = given();
	struct te_plan_profile sum = TE_PLAN_PROFILE_INIT;
	struct te_plan_profile_step s = TE_PLAN_PROFILE_STEP_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_plan *plan;
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_linear(&la, "l", &op));
	tt_append(seq, op);
	DO(te_seq_input(seq, "t", TE_DTYPE_INT32, 0, NULL));
	DO(te_op_cross_entropy(&ca, "loss", &op));
	DO(te_op_take(op, 0, "t"));
	tt_append(seq, op);
	DO(te_seq_init(seq, 1));
	rec.compute = TE_DTYPE_FP32;
	plan = tt_plan(seq, &rec, TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD,
		       (struct te_spec){ TE_DTYPE_FP32, 3, { 2, 16, IN } });
	DO(te_fill(st, te_tensor_data(te_plan_input(plan, "x")), 0, 32 * IN * sizeof(float)));
	DO(te_fill(st, te_tensor_data(te_plan_input(plan, "t")), 0, 32 * sizeof(int32_t)));
	DO(te_plan_profile(plan, st, &o, &sum));
	ck_assert_double_eq(sum.flops, 3 * flops);
	/*
	 * logits 3 times in GEMMs and twice in the loss between them; x, then its gradient,
	 * written and, in backward, scaled; the weight twice, its gradient, and both chunks' sums
	 * of that; targets, the loss
	 */
	ck_assert_uint_eq(sum.nbytes,
			  (5 * 32 * OUT + 4 * 32 * IN + 8 * IN * OUT + 32 + 1) * 4);
	DO(te_plan_profile_step(plan, 0, &s));
	ck_assert_int_eq(s.pass, s.flops > 0 ? TE_PASS_FORWARD : TE_PASS_BACKWARD);
	DO(te_plan_profile_step(plan, 1, &s));
	ck_assert_int_eq(s.pass, s.flops > 0 ? TE_PASS_FORWARD : TE_PASS_BACKWARD);
	tt_drop(plan, seq);
}

TT_MAIN("plan/profile", TT_ONE_PROCESS)
