/* t/plan/plan.c - what a plan promises: gradients, memory, order, bits of a capture. */
#include "config.h"

#include <math.h>

#include <te/capture.h>
#include <te/optim.h>

#include "libtecore/plan/plan.h"
#include "libtecore/tensor/ctx.h"
#include "plan_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0, 0 };
static const struct model_shape gpt_drop = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const struct model_shape llama = { 48, 32, 2, 16, 4, 2, 2, 0, 1 };
const char *const recipes[NRECIPES] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };

/* forward and backward from zero gradients; the caller frees the gradients */
static float *gradients(struct te_seq *seq, struct te_plan *p)
{
	DO(te_seq_zero_grads(seq, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	if (p->flags & TE_PLAN_DELAY_DW)
		DO(te_plan_backward_dw(p, st));
	DO(te_stream_sync(st));
	return tt_tensor_get(te_seq_grads(seq));
}

static void gradient_matches(const struct model_shape *m)
{
	struct te_seq *seq = model_create(ctx, m, tt_seed());
	struct te_plan *p = model_plan(seq, m, "fp32", TE_PLAN_TRAIN);
	size_t n = (size_t)te_tensor_nelems(te_seq_masters(seq));
	size_t nbytes = n * sizeof(float);
	float *g, *w, *moved = malloc(nbytes);
	double *v = malloc(n * sizeof(*v));

	model_feed(p, m);
	g = gradients(seq, p);
	w = tt_tensor_get(te_seq_masters(seq));
	for (int trial = 0; trial < 4; trial++) {
		double want = 0, norm = 0, gnorm = 0, loss[2], got;
		const double h = 4e-3;

		/* along the gradient, tilted at random: the derivative is far from 0 */
		for (size_t i = 0; i < n; i++)
			gnorm += (double)g[i] * g[i];
		gnorm = sqrt(gnorm);
		for (size_t i = 0; i < n; i++) {
			v[i] = g[i] / gnorm + tt_rand_normal() / sqrt((double)n);
			norm += v[i] * v[i];
		}
		norm = sqrt(norm);
		for (size_t i = 0; i < n; i++) {
			v[i] /= norm;
			want += v[i] * g[i];
		}
		for (int s = 0; s < 2; s++) {
			for (size_t i = 0; i < n; i++)
				moved[i] = (float)(w[i] + (s ? h : -h) * v[i]);
			DO(te_tensor_write(te_seq_masters(seq), moved, nbytes));
			DO(te_seq_weights_changed(seq, st));
			DO(te_plan_forward(p, st, 0));
			DO(te_stream_sync(st));
			loss[s] = model_loss(p);
		}
		got = (loss[1] - loss[0]) / (2 * h);
		/* FP32 loss near 4: 4 * 2^-23 / (2 h) = 6e-5 of noise, times a few for the
		 * rounding along the way; h^2/6 L''' is of the same size */
		ck_assert_msg(fabs(got - want) < 1e-3 + 5e-3 * fabs(want),
			      "directional derivative %g, gradient says %g", got, want);
		ck_assert_msg(fabs(want) > 0.05, "gradient vanished: %g", want);
	}
	free(g);
	free(w);
	free(moved);
	free(v);
	tt_drop(p, seq);
}

CTX_CASE(gradients, "numeric");

TEST_EACH(gradients, gradient_is_the_derivative_of_the_loss, 2)
{
	gradient_matches(_i ? &llama : &gpt);
}

static struct te_spec fp32_vector(int64_t n)
{
	return (struct te_spec){ TE_DTYPE_FP32, 2, { 1, n } };
}

/* the sequence computes y = k x in FP32, and dx = k dy */
static void multiplies(struct te_seq *seq, float k)
{
	const struct te_recipe fp32 = tt_recipe("fp32");
	float x[5] = { 1, -2, 3, 0.5f, 7 }, dy[5] = { 1, 2, 4, 8, 16 }, y[5], dx[5];
	struct te_plan *p;

	DO(te_seq_init(seq, 1));
	p = tt_plan(seq, &fp32, TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD, fp32_vector(5));
	DO(te_tensor_write(te_plan_input(p, "x"), x, sizeof(x)));
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	DO(te_tensor_read(te_plan_output(p), y, sizeof(y)));
	DO(te_tensor_write(te_plan_output_grad(p), dy, sizeof(dy)));
	DO(te_plan_backward(p, st));
	DO(te_stream_sync(st));
	DO(te_tensor_read(te_plan_input_grad(p), dx, sizeof(dx)));
	for (int i = 0; i < 5; i++) {
		ck_assert_float_eq(y[i], k * x[i]);
		ck_assert_float_eq(dx[i], k * dy[i]);
	}
	te_plan_unref(p);
}

TEST(gradients, sums_the_gradients_of_all_takers)
{
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_fork("f", &op));
	DO(te_op_give(op, 0, "r"));
	tt_append(seq, op);
	for (int i = 0; i < 3; i++) {
		DO(te_op_add(i == 0 ? "a" : i == 1 ? "b" : "c", &op));
		DO(te_op_take(op, 0, "r"));
		tt_append(seq, op);
	}
	multiplies(seq, 4);
	te_seq_unref(seq);
}

static void append_scale(struct te_seq *seq, float factor, const char *name)
{
	struct te_scale_attrs a = TE_ATTRS(scale, factor);
	struct te_op *op;

	DO(te_op_scale(&a, name, &op));
	tt_append(seq, op);
}

/* y = 2 x + 5 x, the second summand on a branch that begins from a channel */
TEST(gradients, swaps_the_main_value_and_a_channel)
{
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_fork("f", &op));
	DO(te_op_give(op, 0, "r"));
	tt_append(seq, op);
	append_scale(seq, 2, "two");
	DO(te_op_swap("s", &op));
	DO(te_op_take(op, 0, "r"));
	DO(te_op_give(op, 0, "sum"));
	tt_append(seq, op);
	append_scale(seq, 5, "five");
	DO(te_op_add("a", &op));
	DO(te_op_take(op, 0, "sum"));
	tt_append(seq, op);
	multiplies(seq, 7);
	te_seq_unref(seq);
}

static const uint32_t variants[] = { 0, TE_PLAN_NO_FUSION, TE_PLAN_DELAY_DW };
#define NVARIANTS ((int)TT_LEN(variants))

CTX_CASE(memory, "memory");

/* nothing is read before it is written, and no two live values share memory */
TEST_EACH(memory, reads_only_what_it_wrote, NVARIANTS * NRECIPES)
{
	const char *recipe = recipes[_i % NRECIPES];
	uint32_t flags = variants[_i / NRECIPES] | TE_PLAN_TRAIN;
	struct te_seq *seq = model_create(ctx, &gpt, 3);
	struct te_plan *p = model_plan(seq, &gpt, recipe, flags);
	size_t n = te_tensor_nbytes(te_seq_grads(seq));
	float *a, *b, loss;

	model_feed(p, &gpt);
	DO(te_fill(st, p->arena, 0, p->arena_nbytes));
	a = gradients(seq, p);
	loss = model_loss(p);
	/* how large depends on the random tokens; the bits below are the test */
	ck_assert_msg(isfinite(loss) && loss > 0, "loss %g", (double)loss);
	if (p->recipe.kind != TE_RECIPE_DELAYED) {
		DO(te_fill(st, p->arena, 0xff, p->arena_nbytes));
		b = gradients(seq, p);
		ck_assert_mem_eq(a, b, n);
		free(b);
	} else {
		/* scales change between passes: only check that no NaN of the poison was read */
		DO(te_fill(st, p->arena, 0xff, p->arena_nbytes));
		b = gradients(seq, p);
		for (size_t i = 0; i < n / sizeof(*b); i++)
			ck_assert_msg(isfinite(b[i]), "gradient %zu is %g", i, (double)b[i]);
		free(b);
	}
	free(a);
	tt_drop(p, seq);
}

/* no two live buffers overlap; how many pairs that are not shared on purpose use the same memory */
static int count_reused(const struct te_plan *p)
{
	size_t end = 0;
	int nreused = 0;

	for (int i = 0; i < p->nbufs; i++) {
		const struct te__buf *a = &p->buf[i];

		if (a->first < 0)
			continue;
		if (a->offset + a->nbytes > end)
			end = a->offset + a->nbytes;
		for (int j = 0; j < i; j++) {
			const struct te__buf *b = &p->buf[j];
			int reused = a->offset == b->offset &&
				   (a->first == b->last || b->first == a->last);

			nreused += b->first >= 0 && a->share < 0 && b->share < 0 &&
				   a->offset < b->offset + b->nbytes &&
				   b->offset < a->offset + a->nbytes;
			if (b->first < 0 || a->last < b->first || b->last < a->first)
				continue;
			if (reused || a->share == j || b->share == i)
				continue; /* the taker reuses the giver's memory in place */
			ck_assert_msg(a->offset + a->nbytes <= b->offset ||
					      b->offset + b->nbytes <= a->offset ||
					      a->share >= 0 || b->share >= 0,
				      "buffers %d and %d overlap", i, j);
		}
	}
	ck_assert_uint_eq(end, p->arena_nbytes);
	ck_assert_uint_lt(p->arena_nbytes, p->sum_nbytes);
	return nreused;
}

/* with separate, as on a GPU, small buffers keep their memory to the end */
static void lay_out(int i, int separate)
{
	const struct model_shape *m = i & 1 ? &llama : &gpt_drop;
	struct te_seq *seq = model_create(ctx, m, 3);
	const uint32_t traits = ctx->traits;
	struct te_plan *p;

	ctx->traits = separate ? ctx->traits | TE__BACKEND_SEPARATE_SMALL :
				 ctx->traits & ~TE__BACKEND_SEPARATE_SMALL;
	p = model_plan(seq, m, recipes[i % NRECIPES],
		       TE_PLAN_TRAIN | variants[i / NRECIPES] | TE_PLAN_NO_ALLOC);
	ctx->traits = traits;
	ck_assert_int_eq(count_reused(p) > 0, !separate);
	tt_drop(p, seq);
}

TEST_EACH(memory, places_live_buffers_apart, NVARIANTS * NRECIPES)
{
	/* the backend's own choice */
	if (!getenv("TE_PLAN_SEPARATE"))
		ck_assert_int_eq(!(ctx->traits & TE__BACKEND_SEPARATE_SMALL),
				 !strcmp(backend, "host"));
	lay_out(_i, 0);
	lay_out(_i, 1);
}

/* the layout does not affect results */
TEST_EACH(memory, separate_buffers_give_the_same_bits, NRECIPES)
{
	static const char *const input[] = { "x", "targets" };
	const uint32_t traits = ctx->traits;
	struct te_seq *seq[2];
	struct te_plan *p[2];
	float *g[2];

	for (int k = 0; k < 2; k++) {
		ctx->traits = k ? TE__BACKEND_SEPARATE_SMALL : 0;
		seq[k] = model_create(ctx, &gpt_drop, 3);
		p[k] = model_plan(seq[k], &gpt_drop, recipes[_i], TE_PLAN_TRAIN);
	}
	ctx->traits = traits;
	ck_assert_uint_lt(p[0]->arena_nbytes, p[1]->arena_nbytes);
	model_feed(p[0], &gpt_drop);
	for (int i = 0; i < 2; i++) {
		struct te_tensor *from = te_plan_input(p[0], input[i]);
		const size_t n = te_tensor_nbytes(from);
		void *t = malloc(n);

		DO(te_tensor_read(from, t, n));
		DO(te_tensor_write(te_plan_input(p[1], input[i]), t, n));
		free(t);
	}
	for (int k = 0; k < 2; k++)
		g[k] = gradients(seq[k], p[k]);
	ck_assert_mem_eq(g[0], g[1], te_tensor_nbytes(te_seq_grads(seq[0])));
	for (int k = 0; k < 2; k++) {
		free(g[k]);
		tt_drop(p[k], seq[k]);
	}
}

CTX_CASE(running, "run");

TEST_EACH(running, covers_each_step_once_and_in_order, NRECIPES)
{
	struct te_seq *seq = model_create(ctx, &gpt, 3);
	struct te_plan *p = model_plan(seq, &gpt, recipes[_i], TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	int next = 0, fused = 0;

	for (int t = 0; t < p->ngroups; t++) {
		const struct te__group *g = &p->group[t];

		ck_assert_int_ge(g->n, 1);
		ck_assert(g->n == 1 || g->fusion);
		fused += g->fusion != NULL;
		ck_assert_int_eq(g->first, next);
		next += g->n;
	}
	ck_assert_int_eq(next, p->nsteps);
	ck_assert_int_gt(fused, 0);
	tt_drop(p, seq);
}

TEST_EACH(gradients, delayed_weight_gradients_are_the_same_bits, NRECIPES)
{
	struct te_seq *a = model_create(ctx, &gpt, 5), *b = model_create(ctx, &gpt, 5);
	/* without fusion on both sides, since delaying takes dbias out of a fusion */
	struct te_plan *pa = model_plan(a, &gpt, recipes[_i], TE_PLAN_TRAIN);
	struct te_plan *pb = model_plan(b, &gpt, recipes[_i], TE_PLAN_TRAIN | TE_PLAN_DELAY_DW);
	size_t n = te_tensor_nbytes(te_seq_grads(a));
	int32_t tok[2][32];
	float *ga, *gb;

	model_feed(pa, &gpt);
	for (int k = 0; k < 2; k++) {
		const char *name = k ? "targets" : "x";

		DO(te_tensor_read(te_plan_input(pa, name), tok[k], sizeof(tok[k])));
		DO(te_tensor_write(te_plan_input(pb, name), tok[k], sizeof(tok[k])));
	}
	ga = gradients(a, pa);
	gb = gradients(b, pb);
	ck_assert_mem_eq(ga, gb, n);
	free(ga);
	free(gb);
	te_plan_unref(pa);
	tt_drop(pb, a);
	te_seq_unref(b);
}

/* backward uses the dropout mask of its own forward, also after forwards of other plans */
TEST(memory, draws_at_offsets_of_64_bits)
{
	static const uint64_t at[] = { 0, 0xffffffff, UINT64_C(1) << 32, UINT64_C(3) << 32 };
	struct te_seq *seq = model_create(ctx, &gpt_drop, 3);
	struct te_plan *p = model_plan(seq, &gpt_drop, "fp32", TE_PLAN_TRAIN);
	float *g[TT_LEN(at)];
	uint64_t seed, offset;

	model_feed(p, &gpt_drop);
	for (size_t i = 0; i < TT_LEN(at); i++) {
		DO(te_seq_rng_set(seq, 5, at[i]));
		g[i] = gradients(seq, p);
		DO(te_seq_rng_get(seq, &seed, &offset));
		ck_assert(seed == 5 && offset == at[i] + 1);
		for (size_t k = 0; k < i; k++)
			ck_assert_mem_ne(g[i], g[k], te_tensor_nbytes(te_seq_grads(seq)));
	}
	for (size_t i = 0; i < TT_LEN(at); i++)
		free(g[i]);
	tt_drop(p, seq);
}

TEST(memory, plans_of_one_sequence_take_turns)
{
	struct te_seq *seq = model_create(ctx, &gpt_drop, 3);
	struct te_plan *p[2];
	float *alone[2], *turns;

	for (int i = 0; i < 2; i++) {
		p[i] = model_plan(seq, &gpt_drop, "fp32", TE_PLAN_TRAIN);
		model_feed(p[i], &gpt_drop);
		DO(te_seq_rng_set(seq, 5, (uint64_t)i));
		alone[i] = gradients(seq, p[i]);
	}
	DO(te_seq_rng_set(seq, 5, 0));
	DO(te_plan_forward(p[0], st, 0));
	DO(te_plan_forward(p[1], st, 0));
	for (int i = 0; i < 2; i++) {
		DO(te_seq_zero_grads(seq, st));
		DO(te_plan_backward(p[i], st));
		DO(te_stream_sync(st));
		turns = tt_tensor_get(te_seq_grads(seq));
		ck_assert_mem_eq(turns, alone[i], te_tensor_nbytes(te_seq_grads(seq)));
		free(turns);
	}
	ck_assert(memcmp(alone[0], alone[1], te_tensor_nbytes(te_seq_grads(seq))));
	for (int i = 0; i < 2; i++) {
		te_plan_unref(p[i]);
		free(alone[i]);
	}
	te_seq_unref(seq);
}

TEST_EACH(memory, allocates_nothing_when_running_and_reports_its_peak, NRECIPES)
{
	const char *recipe = recipes[_i];
	struct te_mem_info before = TE_MEM_INFO_INIT, made = before, after = before;
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;
	struct model_shape m = gpt_drop;
	struct te_seq *seq;
	struct te_plan *p;
	double used, held;

	m.width = 128;
	tt_renew(); /* the peak is the context's */
	DO(te_ctx_mem_info(ctx, &before));
	seq = model_create(ctx, &m, 3);
	p = model_plan(seq, &m, recipe, TE_PLAN_TRAIN);
	DO(te_ctx_mem_info(ctx, &made));
	model_feed(p, &m);
	for (int i = 0; i < 3; i++)
		free(gradients(seq, p));
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(made.nallocs, after.nallocs);
	ck_assert_uint_eq(made.used_nbytes, after.used_nbytes);
	DO(te_plan_memory(p, &mem));
	used = (double)(after.used_nbytes - before.used_nbytes);
	held = (double)(after.measured_nbytes - after.workspace_nbytes) -
	       (double)(before.measured_nbytes - before.workspace_nbytes);
	ck_assert_msg(fabs(held - (double)mem.total_nbytes) <= 0.02 * held,
		      "reported %llu, the backend measured %.0f",
		      (unsigned long long)mem.total_nbytes, held);
	ck_assert_uint_ge(after.measured_peak_nbytes, after.measured_nbytes);
	ck_assert_msg(fabs(used - (double)mem.total_nbytes) <= 0.02 * used,
		      "reported %llu, measured %.0f", (unsigned long long)mem.total_nbytes, used);
	ck_assert_uint_le(after.peak_nbytes, after.used_nbytes + before.used_nbytes + used * 0.02);
	tt_drop(p, seq);
	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(after.used_nbytes, before.used_nbytes);
}

TEST(memory, plans_without_memory_when_asked)
{
	struct te_mem_info before = TE_MEM_INFO_INIT, after = before;
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT, real = mem;
	struct te_seq *seq = model_create(ctx, &llama, 3);
	struct te_plan *p;

	DO(te_ctx_mem_info(ctx, &before));
	p = model_plan(seq, &llama, "bf16", TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(before.used_nbytes, after.used_nbytes);
	DO(te_plan_memory(p, &mem));
	ck_assert_int_eq(te_plan_forward(p, st, 0), -TE_ESTATE);
	te_plan_unref(p);
	p = model_plan(seq, &llama, "bf16", TE_PLAN_TRAIN);
	DO(te_plan_memory(p, &real));
	ck_assert_uint_eq(mem.total_nbytes, real.total_nbytes);
	tt_drop(p, seq);
}

/* three steps with dropout and two micro-batches; the weights at the end */
static float *train(const char *recipe, int captured)
{
	const struct model_shape *m = &gpt_drop;
	struct te_adamw_opts ao = TE_ADAMW_OPTS_INIT;
	struct te_seq *seq = model_create(ctx, m, 5);
	struct te_plan *p = model_plan(seq, m, recipe, TE_PLAN_TRAIN);
	struct te_recording *rec = NULL;
	struct te_adamw *opt;
	int32_t tok[32];
	float *w;

	DO(te_adamw_create(seq, &ao, &opt));
	DO(te_adamw_set_lr(opt, st, 1e-2f));
	for (int step = 0; step < 3; step++) {
		for (int i = 0; i < 32; i++)
			tok[i] = (i * 7 + step * 3) % 48;
		DO(te_tensor_write(te_plan_input(p, "x"), tok, sizeof(tok)));
		for (int i = 0; i < 32; i++)
			tok[i] = (i * 5 + step) % 48;
		DO(te_tensor_write(te_plan_input(p, "targets"), tok, sizeof(tok)));
		if (!captured || step == 0) {
			if (captured)
				DO(te_capture_begin(st));
			DO(te_seq_zero_grads(seq, st));
			for (int mb = 0; mb < 2; mb++) {
				DO(te_plan_forward(p, st, 0));
				DO(te_plan_backward(p, st));
			}
			DO(te_adamw_step(opt, st));
			if (captured)
				DO(te_capture_end(st, &rec));
		}
		if (captured)
			DO(te_recording_launch(rec, st));
		DO(te_stream_sync(st));
	}
	w = tt_tensor_get(te_seq_masters(seq));
	te_recording_unref(rec);
	te_adamw_unref(opt);
	tt_drop(p, seq);
	return w;
}

TEST_EACH(running, a_captured_step_gives_the_bits_of_eager_ones, NRECIPES)
{
	struct te_seq *seq = model_create(ctx, &gpt_drop, 5);
	size_t n = te_tensor_nbytes(te_seq_masters(seq));
	float *start = tt_tensor_get(te_seq_masters(seq));
	float *eager = train(recipes[_i], 0), *graph = train(recipes[_i], 1);

	ck_assert_mem_eq(eager, graph, n);
	ck_assert_mem_ne(eager, start, n);
	free(start);
	free(eager);
	free(graph);
	te_seq_unref(seq);
}

TEST(running, draws_fresh_masks_each_step)
{
	struct te_seq *seq = model_create(ctx, &gpt_drop, 5);
	struct te_plan *p = model_plan(seq, &gpt_drop, "fp32", TE_PLAN_TRAIN);
	struct te_plan *e = model_plan(seq, &gpt_drop, "fp32", 0);
	uint64_t seed, offset;
	float a, b, c;

	model_feed(p, &gpt_drop);
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	a = model_loss(p);
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	b = model_loss(p);
	ck_assert_float_ne(a, b);
	DO(te_seq_rng_get(seq, &seed, &offset));
	ck_assert_uint_eq(offset, 2);
	DO(te_seq_rng_set(seq, seed, 0));
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	c = model_loss(p);
	ck_assert_float_eq(a, c);
	/* evaluation neither drops nor draws */
	model_feed(e, &gpt_drop);
	DO(te_plan_forward(e, st, 0));
	DO(te_stream_sync(st));
	a = model_loss(e);
	DO(te_plan_forward(e, st, 0));
	DO(te_stream_sync(st));
	ck_assert_float_eq(a, model_loss(e));
	DO(te_seq_rng_get(seq, &seed, &offset));
	ck_assert_uint_eq(offset, 1);
	te_plan_unref(e);
	tt_drop(p, seq);
}

TEST(running, evaluation_leaves_quantizers_alone)
{
	struct te_seq *seq = model_create(ctx, &gpt, 5);
	struct te_plan *p = model_plan(seq, &gpt, "fp8-delayed", TE_PLAN_TRAIN);
	struct te_plan *e = model_plan(seq, &gpt, "fp8-delayed", 0);
	size_t n = te_quant_nbytes(te_seq_quant(seq));
	char *a = malloc(n), *b = malloc(n);

	model_feed(p, &gpt);
	model_feed(e, &gpt);
	free(gradients(seq, p));
	DO(te_quant_save(te_seq_quant(seq), a, n));
	DO(te_plan_forward(e, st, 0));
	DO(te_stream_sync(st));
	ck_assert(isfinite(model_loss(e)));
	DO(te_quant_save(te_seq_quant(seq), b, n));
	ck_assert_mem_eq(a, b, n);
	free(gradients(seq, p));
	DO(te_quant_save(te_seq_quant(seq), b, n));
	ck_assert_mem_ne(a, b, n);
	free(a);
	free(b);
	te_plan_unref(e);
	tt_drop(p, seq);
}

TT_PAIR("plan/plan", TT_ONE_PROCESS)
