/* t/plan/plan_cases.c - what a plan promises: gradients, memory, order, errors. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>
#include <te/optim.h>
#include "libtecore/base/private.h"
#include <te/capture.h>

#include "libtecore/tensor/ctx.h"
#include "libtecore/plan/plan.h"
#include "plan_cases.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0, 0 };
static const struct model_shape gpt_drop = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const struct model_shape llama = { 48, 32, 2, 16, 4, 2, 2, 0, 1 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };
#define NRECIPES ((int)TT_LEN(recipes))

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
	te_plan_unref(p);
	te_seq_unref(seq);
}

START_TEST(gradient_is_the_derivative_of_the_loss)
{
	gradient_matches(_i ? &llama : &gpt);
}
END_TEST

static struct te_spec fp32_vector(int64_t n)
{
	return (struct te_spec){ TE_DTYPE_FP32, 2, { 1, n } };
}

START_TEST(sums_the_gradients_of_all_takers)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe fp32 = TE_RECIPE_INIT;
	float x[5] = { 1, -2, 3, 0.5f, 7 }, dy[5] = { 1, 2, 4, 8, 16 }, y[5], dx[5];
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_fork("f", &op));
	DO(te_op_give(op, 0, "r"));
	DO(te_seq_append(seq, op));
	te_op_unref(op);
	for (int i = 0; i < 3; i++) {
		DO(te_op_add(i == 0 ? "a" : i == 1 ? "b" : "c", &op));
		DO(te_op_take(op, 0, "r"));
		DO(te_seq_append(seq, op));
		te_op_unref(op);
	}
	DO(te_seq_init(seq, 1));
	fp32.compute = TE_DTYPE_FP32;
	o.recipe = &fp32;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	o.x = fp32_vector(5);
	DO(te_plan_create(seq, &o, &p));
	DO(te_tensor_write(te_plan_input(p, "x"), x, sizeof(x)));
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	DO(te_tensor_read(te_plan_output(p), y, sizeof(y)));
	DO(te_tensor_write(te_plan_output_grad(p), dy, sizeof(dy)));
	DO(te_plan_backward(p, st));
	DO(te_stream_sync(st));
	DO(te_tensor_read(te_plan_input_grad(p), dx, sizeof(dx)));
	for (int i = 0; i < 5; i++) {
		ck_assert_float_eq(y[i], 4 * x[i]);
		ck_assert_float_eq(dx[i], 4 * dy[i]);
	}
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

static const uint32_t variants[] = { 0, TE_PLAN_NO_FUSION, TE_PLAN_DELAY_DW };
#define NVARIANTS ((int)TT_LEN(variants))

/* nothing is read before it is written, and no two live values share memory */
START_TEST(reads_only_what_it_wrote)
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
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

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
	struct te_plan *p;

	ctx->traits = separate ? ctx->traits | TE__BACKEND_SEPARATE_SMALL :
				 ctx->traits & ~TE__BACKEND_SEPARATE_SMALL;
	p = model_plan(seq, m, recipes[i % NRECIPES],
		       TE_PLAN_TRAIN | variants[i / NRECIPES] | TE_PLAN_NO_ALLOC);
	ck_assert_int_eq(count_reused(p) > 0, !separate);
	te_plan_unref(p);
	te_seq_unref(seq);
}

START_TEST(places_live_buffers_apart)
{
	/* the backend's own choice */
	if (!getenv("TE_PLAN_SEPARATE"))
		ck_assert_int_eq(!(ctx->traits & TE__BACKEND_SEPARATE_SMALL),
				 !strcmp(backend, "host"));
	lay_out(_i, 0);
	lay_out(_i, 1);
}
END_TEST

/* the layout does not affect results */
START_TEST(separate_buffers_give_the_same_bits)
{
	static const char *const input[] = { "x", "targets" };
	struct te_seq *seq[2];
	struct te_plan *p[2];
	float *g[2];

	for (int k = 0; k < 2; k++) {
		ctx->traits = k ? TE__BACKEND_SEPARATE_SMALL : 0;
		seq[k] = model_create(ctx, &gpt_drop, 3);
		p[k] = model_plan(seq[k], &gpt_drop, recipes[_i], TE_PLAN_TRAIN);
	}
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
		te_plan_unref(p[k]);
		te_seq_unref(seq[k]);
	}
}
END_TEST

START_TEST(covers_each_step_once_and_in_order)
{
	struct te_seq *seq = model_create(ctx, &gpt, 3);
	struct te_plan *p = model_plan(seq, &gpt, recipes[_i], TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	int next = 0, fused = 0;

	for (int t = 0; t < p->ngroups; t++) {
		const struct te__group *g = &p->group[t];

		ck_assert_int_ge(g->n, 1);
		ck_assert((g->n > 1) == (g->fusion != NULL));
		fused += g->fusion != NULL;
		ck_assert_int_eq(g->first, next);
		next += g->n;
	}
	ck_assert_int_eq(next, p->nsteps);
	ck_assert_int_gt(fused, 0);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

START_TEST(delayed_weight_gradients_are_the_same_bits)
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
	te_plan_unref(pb);
	te_seq_unref(a);
	te_seq_unref(b);
}
END_TEST

/* backward uses the dropout mask of its own forward, also after forwards of other plans */
START_TEST(plans_of_one_sequence_take_turns)
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
END_TEST

START_TEST(allocates_nothing_when_running_and_reports_its_peak)
{
	const char *recipe = recipes[_i];
	struct te_mem_info before = TE_MEM_INFO_INIT, made = before, after = before;
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT;
	struct model_shape m = gpt_drop;
	struct te_seq *seq;
	struct te_plan *p;
	double used, held;

	m.width = 128;
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
	te_plan_unref(p);
	te_seq_unref(seq);
	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(after.used_nbytes, before.used_nbytes);
}
END_TEST

static const struct {
	const char *recipe;
	float epsilon;
	uint32_t flags;
} copied[] = {
	{ "fp8-delayed", 0, 0 },
	{ "fp8-current", 0, 0 },
	{ "fp8-current", 0.125f, TE_RECIPE_POW2 },
	{ "fp8-block", 0, 0 },
	{ "fp8-block", 0.125f, TE_RECIPE_FP32_SCALES },
};

static void same_bytes(const void *a, const void *b, size_t nbytes)
{
	void *x = tt_bytes(a, nbytes), *y = tt_bytes(b, nbytes);

	ck_assert_mem_eq(x, y, nbytes);
	free(x);
	free(y);
}

/* codes and scales of the FP8 copies of weights, after the first forward pass */
START_TEST(weight_copies_are_what_te_quantize_makes)
{
	struct model_shape m = gpt;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_quant *q;
	struct te_seq *seq;
	struct te_plan *p;
	int ncopies = 0;

	m.width = 144; /* several blocks, of which some are not whole */
	DO(te_recipe_from_name(copied[_i].recipe, &rec));
	rec.amax_epsilon = copied[_i].epsilon;
	rec.flags = copied[_i].flags;
	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m.batch, m.seqlen } };
	seq = model_create(ctx, &m, 5);
	DO(te_plan_create(seq, &o, &p));
	model_feed(p, &m);
	DO(te_plan_forward(p, st, 0));
	for (int i = 0; i < p->nneeds; i++) {
		const struct te_tensor *master = seq->weight[p->need[i].weight].master;
		const struct te_tensor *have = p->need[i].t_q;
		const int64_t rows = te_tensor_rows(master), cols = te_tensor_cols(master);
		const int64_t shape[2] = { rows, cols };
		struct te_tensor_opts to = TE_TENSOR_OPTS_INIT;
		struct te_tensor *want;
		enum te_dtype dtype;

		if (!have)
			continue;
		ncopies++;
		dtype = te_tensor_dtype(have);
		to.flags = TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE;
		to.scaling = te_tensor_scaling(have);
		DO(te_tensor_create(ctx, dtype, 2, shape, &to, &want));
		DO(te_quant_create(ctx, &rec, 1, &dtype, &q));
		DO(te_quantize(st, q, 0, master, want, NULL, 0));
		same_bytes(te_tensor_data(have), te_tensor_data(want), te_tensor_nbytes(want));
		same_bytes(te_tensor_coldata(have), te_tensor_coldata(want),
			   te_tensor_nbytes(want));
		same_bytes(te_tensor_scale_inv(have), te_tensor_scale_inv(want),
			   4 * (size_t)te_scaling_nfloats(to.scaling, rows, cols));
		same_bytes(te_tensor_col_scale_inv(have), te_tensor_col_scale_inv(want),
			   4 * (size_t)te_scaling_nfloats(to.scaling, cols, rows));
		te_quant_unref(q);
		te_tensor_unref(want);
	}
	ck_assert_int_gt(ncopies, 4);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

START_TEST(plans_without_memory_when_asked)
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
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

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
	te_plan_unref(p);
	te_seq_unref(seq);
	return w;
}

START_TEST(a_captured_step_gives_the_bits_of_eager_ones)
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
END_TEST

/* ten linear ops */
static struct te_seq *linears(void)
{
	const struct te_linear_attrs attrs = TE_ATTRS(linear, .in = 16, .out = 16,
						      .init_std = 0.1f);
	struct te_seq *seq;
	struct te_op *op;
	char name[8];

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; i < 10; i++) {
		snprintf(name, sizeof(name), "l%d", i);
		DO(te_op_linear(&attrs, name, &op));
		DO(te_seq_append(seq, op));
		te_op_unref(op);
	}
	DO(te_seq_init(seq, 1));
	return seq;
}

static struct te_plan *linears_plan(struct te_seq *seq, const char *recipe, uint32_t flags)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_plan *p;
	uint16_t x[256];

	DO(te_recipe_from_name(recipe, &rec));
	o.recipe = &rec;
	o.flags = flags;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { 16, 16 } };
	DO(te_plan_create(seq, &o, &p));
	for (int i = 0; i < 256; i++)
		x[i] = (uint16_t)(0x3f80 + i); /* 1 and a bit */
	DO(te_tensor_write(te_plan_input(p, "x"), x, sizeof(x)));
	return p;
}

/* how many launches refresh the copies of ten weights, and what depends on them */
START_TEST(one_launch_refreshes_all_weights)
{
	static const int want[] = { 1, 1, 2, 1 }; /* bf16, delayed, current and block */
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_seq *seq = linears();
	struct te_plan *p = linears_plan(seq, recipes[1 + _i], 0);
	struct te_recording *rec;
	int ncasts = 0, ngemms = 0;

	DO(te_capture_begin(st));
	DO(te_capture_edges(st, TE_CAPTURE_CONCURRENT));
	DO(te_plan_forward(p, st, 0));
	DO(te_capture_end(st, &rec));
	DO(te_recording_info(rec, &info));
	for (uint64_t i = 0; i < info.nnodes; i++) {
		struct te_node_info n = TE_NODE_INFO_INIT;

		DO(te_recording_node(rec, i, &n));
		ncasts += !strncmp(n.name, "weights_", 8);
		ngemms += !strcmp(n.name, "gemm");
		ck_assert_str_ne(n.name, "cast");
	}
	ck_assert_int_eq(ncasts, want[_i]);
	ck_assert_int_ge(ngemms, 10);
	te_recording_unref(rec);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

static void *output_of(struct te_plan *p)
{
	const size_t n = te_tensor_nbytes(te_plan_output(p));
	void *y = malloc(n);

	ck_assert_ptr_nonnull(y);
	DO(te_stream_sync(st));
	DO(te_tensor_read(te_plan_output(p), y, n));
	return y;
}

static void weights_scale(struct te_seq *seq, float by)
{
	struct te_tensor *t = te_seq_masters(seq);
	float *w = tt_tensor_get(t);

	for (int64_t i = 0; i < te_tensor_nelems(t); i++)
		w[i] *= by;
	DO(te_tensor_write(t, w, te_tensor_nbytes(t)));
	free(w);
}

/* what a sequence with weights that were scaled from the start gives */
static void *want_scaled(const char *recipe, float by)
{
	struct te_seq *seq = linears();
	struct te_plan *p;
	void *y;

	weights_scale(seq, by);
	p = linears_plan(seq, recipe, 0);
	DO(te_plan_forward(p, st, 0));
	y = output_of(p);
	te_plan_unref(p);
	te_seq_unref(seq);
	return y;
}

/* copies follow the masters' version, not their bytes: a write has to be declared */
START_TEST(copies_follow_the_version_of_the_weights)
{
	const char *recipe = recipes[1 + _i];
	struct te_seq *seq = linears();
	struct te_plan *p = linears_plan(seq, recipe, 0);
	const size_t n = te_tensor_nbytes(te_plan_output(p));
	void *first, *stale, *fresh, *want = want_scaled(recipe, -2);

	DO(te_plan_forward(p, st, 0));
	first = output_of(p);
	weights_scale(seq, -2);
	DO(te_plan_forward(p, st, 0));
	stale = output_of(p);
	ck_assert_mem_eq(first, stale, n);
	DO(te_seq_weights_changed(seq, st));
	DO(te_plan_forward(p, st, 0));
	fresh = output_of(p);
	ck_assert_mem_ne(first, fresh, n);
	ck_assert_mem_eq(want, fresh, n);
	ck_assert_int_eq(te_seq_weights_changed(seq, NULL), -EINVAL);
	ck_assert_int_eq(te_seq_weights_changed(NULL, st), -TE_ESTATE);
	free(first);
	free(stale);
	free(fresh);
	free(want);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

/* plans of one sequence share copies, whether they were captured or not, whichever refreshes them;
 * their forms may differ. Without any refresh before it a replay makes them itself. */
START_TEST(plans_and_replays_share_copies)
{
	static const struct {
		const char *recipe[2];
		uint32_t flags[2];
	} pair[] = {
		{ { "bf16", "bf16" }, { 0, 0 } },
		{ { "fp8-current", "fp8-current" }, { TE_PLAN_TRAIN, 0 } },
		{ { "fp8-delayed", "fp8-delayed" }, { 0, TE_PLAN_TRAIN } },
		{ { "fp8-current", "bf16" }, { TE_PLAN_TRAIN, 0 } },
		{ { "bf16", "fp8-delayed" }, { TE_PLAN_TRAIN, 0 } },
	};
	struct te_seq *seq = linears();
	struct te_recording *rec[2];
	struct te_plan *p[2];

	for (int k = 0; k < 2; k++) {
		p[k] = linears_plan(seq, pair[_i].recipe[k], pair[_i].flags[k]);
		DO(te_capture_begin(st));
		DO(te_plan_forward(p[k], st, 0));
		DO(te_capture_end(st, &rec[k]));
	}
	for (int round = 0; round < 6; round++) {
		const float by = round % 3 == 2 ? -1.0f : round % 3 == 1 ? 0.5f : 2.0f;
		float scale = 1;

		weights_scale(seq, by);
		DO(te_seq_weights_changed(seq, st));
		for (int i = 0; i <= round; i++)
			scale *= i % 3 == 2 ? -1.0f : i % 3 == 1 ? 0.5f : 2.0f;
		for (int turn = 0; turn < 2; turn++) {
			const int k = (turn + round) % 2;
			void *y, *want;

			if ((round + turn) % 3)
				DO(te_recording_launch(rec[k], st));
			else
				DO(te_plan_forward(p[k], st, 0));
			y = output_of(p[k]);
			/* scales of delayed follow what was recorded before */
			want = want_scaled(pair[_i].recipe[k], scale);
			if (strcmp(pair[_i].recipe[k], "fp8-delayed") || !round)
				ck_assert_mem_eq(y, want, te_tensor_nbytes(te_plan_output(p[k])));
			free(y);
			free(want);
		}
	}
	for (int k = 0; k < 2; k++) {
		te_recording_unref(rec[k]);
		te_plan_unref(p[k]);
	}
	te_seq_unref(seq);
}
END_TEST

/* an evaluation that refreshes copies records no amaxes, so the training pass after it does */
START_TEST(evaluation_takes_no_amaxes_from_training)
{
	size_t n;
	char *blob[2];

	for (int k = 0; k < 2; k++) {
		struct te_seq *seq = linears();
		struct te_plan *t = linears_plan(seq, "fp8-delayed", TE_PLAN_TRAIN);
		struct te_plan *e = linears_plan(seq, "fp8-delayed", 0);

		if (k)
			DO(te_plan_forward(e, st, 0));
		DO(te_plan_forward(t, st, 0));
		n = te_quant_nbytes(te_seq_quant(seq));
		blob[k] = malloc(n);
		DO(te_stream_sync(st));
		DO(te_quant_save(te_seq_quant(seq), blob[k], n));
		te_plan_unref(t);
		te_plan_unref(e);
		te_seq_unref(seq);
	}
	ck_assert_mem_eq(blob[0], blob[1], n);
	free(blob[0]);
	free(blob[1]);
}
END_TEST

/* a forward pass fails at each of its calls: another plan makes the copies that are missing */
START_TEST(a_failed_pass_leaves_no_stale_copies)
{
	const char *recipe = recipes[1 + _i];
	void *want = want_scaled(recipe, 1);

	for (uint64_t fault = 1; fault < 100; fault++) {
		struct te_seq *seq = linears();
		struct te_plan *p[2];
		int fired;
		void *y;

		for (int k = 0; k < 2; k++)
			p[k] = linears_plan(seq, recipe, 0);
		te__fault_set(fault);
		(void)te_plan_forward(p[0], st, 0);
		fired = te__fault_fired();
		te__fault_set(0);
		te_error_clear();
		DO(te_plan_forward(p[1], st, 0));
		y = output_of(p[1]);
		ck_assert_mem_eq(y, want, te_tensor_nbytes(te_plan_output(p[1])));
		free(y);
		te_plan_unref(p[0]);
		te_plan_unref(p[1]);
		te_seq_unref(seq);
		if (!fired)
			break;
	}
	free(want);
}
END_TEST

START_TEST(draws_fresh_masks_each_step)
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
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

START_TEST(evaluation_leaves_quantizers_alone)
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
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

START_TEST(refuses_calls_out_of_order)
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
END_TEST

START_TEST(stops_before_the_loss)
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
END_TEST

START_TEST(refuses_bad_options)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT, good;
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct model_shape odd = gpt;
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
	/* FP8 GEMMs need extents divisible by 16: the message names the op */
	odd.width = 24;
	seq = model_create(ctx, &odd, 5);
	DO(te_recipe_from_name("fp8-current", &recipe));
	o.flags = TE_PLAN_TRAIN;
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_ESHAPE);
	ck_assert_msg(strstr(te_error_detail(), "h.0.qkv") != NULL, "%s", te_error_detail());
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
END_TEST

/* sizes that overflow 64 bits, or a machine's address space, are refused by name */
static const struct {
	int64_t rows, cols, tail, width;
	const char *words[2];
} absurd[] = {
	{ (int64_t)1 << 32, (int64_t)1 << 32, 1, 4, { "x", "[4294967296,4294967296] int32" } },
	{ INT64_MAX, 2, 1, 4, { "x", "[9223372036854775807,2] int32" } },
	{ 4, 4, (int64_t)1 << 62, 4, { "channel mask", "[4,4,4611686018427387904] fp32" } },
	{ 4, 4, -1, 4, { "channel mask", "[4,4,-1] fp32" } },
	{ 1 << 20, 1 << 10, 1, 1 << 18, { "op emb", "output 0 is [1048576,1024,262144] bf16" } },
};

START_TEST(refuses_absurd_shapes)
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
END_TEST

START_TEST(prints_text_and_dot)
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
	free(dot);
	te_plan_unref(p);
	te_seq_unref(seq);
}
END_TEST

/*
 * Quantizers too: nothing is allocated, the sequence gets none, and the memory told is that of the
 * plan that is made afterwards, also by another recipe. _i: recipe
 */
START_TEST(no_alloc_leaves_the_sequence_alone)
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
END_TEST

START_TEST(says_so_at_every_call_after_a_failure)
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
END_TEST

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

START_TEST(survives_every_fault)
{
	ck_assert_int_gt(tt_fault_each(plan_once), 20);
}
END_TEST

Suite *plan_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);
	TCase *c;

	backend = on;
	c = tt_case(s, "gradients", "numeric");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, gradient_is_the_derivative_of_the_loss, 0, 2);
	tcase_add_test(c, sums_the_gradients_of_all_takers);
	tcase_add_loop_test(c, delayed_weight_gradients_are_the_same_bits, 0, NRECIPES);
	c = tt_case(s, "memory", "memory");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, reads_only_what_it_wrote, 0, NVARIANTS * NRECIPES);
	tcase_add_loop_test(c, places_live_buffers_apart, 0, NVARIANTS * NRECIPES);
	tcase_add_loop_test(c, separate_buffers_give_the_same_bits, 0, NRECIPES);
	tcase_add_test(c, plans_of_one_sequence_take_turns);
	tcase_add_loop_test(c, allocates_nothing_when_running_and_reports_its_peak, 0,
			    NRECIPES);
	tcase_add_loop_test(c, weight_copies_are_what_te_quantize_makes, 0, TT_LEN(copied));
	tcase_add_test(c, plans_without_memory_when_asked);
	c = tt_case(s, "running", "run");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, covers_each_step_once_and_in_order, 0, NRECIPES);
	tcase_add_loop_test(c, a_captured_step_gives_the_bits_of_eager_ones, 0, NRECIPES);
	tcase_add_loop_test(c, one_launch_refreshes_all_weights, 0, NRECIPES - 1);
	tcase_add_loop_test(c, copies_follow_the_version_of_the_weights, 0, NRECIPES - 1);
	tcase_add_loop_test(c, plans_and_replays_share_copies, 0, 5);
	tcase_add_test(c, evaluation_takes_no_amaxes_from_training);
	tcase_add_loop_test(c, a_failed_pass_leaves_no_stale_copies, 0, NRECIPES - 1);
	tcase_add_test(c, draws_fresh_masks_each_step);
	tcase_add_test(c, evaluation_leaves_quantizers_alone);
	tcase_add_test(c, refuses_calls_out_of_order);
	tcase_add_test(c, stops_before_the_loss);
	tcase_add_test(c, refuses_bad_options);
	tcase_add_loop_test(c, refuses_absurd_shapes, 0, TT_LEN(absurd));
	tcase_add_loop_test(c, no_alloc_leaves_the_sequence_alone, 0, NRECIPES);
	tcase_add_test(c, prints_text_and_dot);
	tcase_add_test(c, says_so_at_every_call_after_a_failure);
	plan_hook_cases(s);
	c = tt_case(s, "faults", "fault");
	tcase_add_test(c, survives_every_fault);
	return s;
}
