/*
 * t/plan/weights_columns.c - TE_SEQ_RECOMPUTE_COLS: column-wise copies of weights that backward
 * makes in the arena have the bits of those that are kept, in each recipe and order of passes, and
 * take the memory of one at a time.
 */
#include "config.h"

#include <stdlib.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/optim.h>

#include "libtecore/plan/plan.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"
#include "weights_cases.h"
#include "weights_pair.h"

/* weights of several blocks of 128 x 128, not all whole; of extents that are no multiples of 16 */
static const struct model_shape llama = { 48, 160, 2, 16, 4, 2, 2, 0, 1 };
static const struct model_shape gpt = { 48, 144, 2, 16, 4, 4, 2, 0, 0 };
static const struct model_shape odd = { 48, 40, 2, 16, 4, 2, 2, 0, 1 };
static const char *const recipes[] = { "fp8-delayed", "fp8-current", "fp8-block", "mxfp8",
				       "nvfp4" };

/* again: column-wise copies are made in backward. frozen: weights of GEMMs are */
static struct te_seq *complete(const struct model_shape *m, uint32_t flags, int again, int frozen)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = model_create_unbound(ctx, m);

	b.flags = flags | (again ? TE_SEQ_RECOMPUTE_COLS : 0);
	DO(te_seq_complete(s));
	for (int k = 0; k < te_seq_nweights(s) && frozen; k++)
		if (weight(s, k).flags & TE_WEIGHT_GEMM)
			ck_assert_int_eq(te_seq_freeze(s, weight(s, k).name, 1), 1);
	DO(te_seq_bind(s, &b));
	return s;
}

static void make_pair(struct pair *q, const struct model_shape *m, const char *recipe,
		      uint32_t seq_flags, uint32_t flags, int recompute)
{
	static const char *const again[] = { "h.*" };
	const struct te_recipe r = model_recipe(recipe);
	struct te_plan_opts o = pair_opts(m, &r, flags);

	o.nrecompute = recompute;
	o.recompute = again;
	for (int i = 0; i < 2; i++) {
		q->s[i] = complete(m, seq_flags, i, 0);
		DO(te_seq_init(q->s[i], 5));
		DO(te_plan_create(q->s[i], &o, &q->p[i]));
		DO(te_adamw_create(q->s[i], NULL, &q->opt[i]));
		DO(te_adamw_set_lr(q->opt[i], st, 1e-2f));
	}
	ck_assert_int_eq(q->p[0]->ncolumns, 0);
	ck_assert_int_gt(q->p[1]->ncolumns, m->nlayers);
}

CTX_CASE(columns, "plan numeric");

/* each recipe; with all fusions and FP32 masters, without fusions, with delayed weight gradients,
 * and with blocks that are computed again */
TEST_EACH(columns, copies_made_in_backward_have_the_bits_of_kept_ones, 4 * (int)TT_LEN(recipes),
	  .parts = 5)
{
	static const struct {
		const struct model_shape *m;
		uint32_t seq_flags, flags;
		int recompute;
	} way[] = {
		{ &llama, 0, 0, 0 },
		{ &gpt, TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS, TE_PLAN_NO_FUSION, 0 },
		{ &odd, TE_SEQ_BF16_MASTERS, TE_PLAN_DELAY_DW, 0 },
		{ &gpt, 0, TE_PLAN_RECOMPUTE_COSTLY, 1 },
	};
	const int k = _i % (int)TT_LEN(way);
	struct pair q;

	make_pair(&q, way[k].m, recipes[_i / (int)TT_LEN(way)], way[k].seq_flags,
		  TE_PLAN_TRAIN | way[k].flags, way[k].recompute);
	for (int step = 0; step < 2; step++) {
		for (int i = 0; i < 2; i++)
			DO(te_seq_zero_grads(q.s[i], st));
		for (int micro = 0; micro < 2; micro++) {
			pair_feed(&q, way[k].m);
			for (int i = 0; i < 2; i++)
				pair_queue_pass(q.p[i]);
			pair_same(&q);
		}
		for (int i = 0; i < 2; i++)
			DO(te_adamw_step(q.opt[i], st));
		pair_same(&q);
	}
	pair_free(&q);
}

/* replays make the copies again, from the weights of each step, in nodes that run concurrently */
TEST_EACH(columns, a_recorded_step_makes_them_each_time, TT_LEN(recipes))
{
	struct te_recording *rec;
	struct pair q;

	make_pair(&q, &llama, recipes[_i], 0, TE_PLAN_TRAIN, 0);
	pair_feed(&q, &llama);
	for (int i = 0; i < 2; i++) /* GEMMs choose their algorithm outside the capture */
		pair_queue_step(&q, i);
	DO(te_stream_sync(st));
	DO(te_capture_begin(st));
	DO(te_capture_edges(st, TE_CAPTURE_CONCURRENT));
	pair_queue_step(&q, 1);
	DO(te_capture_end(st, &rec));
	for (int step = 0; step < 3; step++) {
		pair_feed(&q, &llama);
		pair_queue_step(&q, 0);
		DO(te_recording_launch(rec, st));
		pair_same(&q);
	}
	te_recording_unref(rec);
	pair_free(&q);
}

/* ---- memory ---- */

/* bytes of the column-wise copies of the model's weights in FP8, and of the largest */
static uint64_t columns_nbytes(struct te_seq *s, const char *recipe, uint64_t *ret_most)
{
	uint64_t sum = 0;

	*ret_most = 0;
	for (int i = 0; i < te_seq_nweights(s); i++) {
		const struct te_weight_info info = weight(s, i);
		const struct te_tensor *w = info.master;
		uint64_t n;

		if (!(info.flags & TE_WEIGHT_GEMM) || strstr(info.name, "head"))
			continue;
		n = ((uint64_t)te_tensor_nelems(w) + 255) / 256 * 256;
		if (!strcmp(recipe, "fp8-block"))
			n += (4 * (uint64_t)te_scaling_nfloats(TE_SCALING_128X128,
							       te_tensor_cols(w),
							       te_tensor_rows(w)) +
			      255) / 256 * 256;
		sum += n;
		*ret_most = n > *ret_most ? n : *ret_most;
	}
	return sum;
}

TEST_EACH(columns, one_is_in_memory_at_a_time, 3)
{
	struct te_plan_memory mem[2] = { TE_PLAN_MEMORY_INIT, TE_PLAN_MEMORY_INIT };
	const struct te_recipe r = model_recipe(recipes[_i]);
	uint64_t before, sum, most, states = 0, used[2];
	int on_host;

	for (int i = 0; i < 2; i++) {
		struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
		struct te_plan_memory real = TE_PLAN_MEMORY_INIT;
		struct te_seq *s = complete(&llama, 0, i, 0);
		struct te_plan *p;

		DO(te_plan_create(s, &o, &p));
		DO(te_plan_memory(p, &mem[i]));
		te_plan_unref(p);
		before = pair_measured();
		DO(te_seq_init(s, 5));
		o.flags = TE_PLAN_TRAIN;
		DO(te_plan_create(s, &o, &p));
		used[i] = pair_measured() - before;
		DO(te_plan_memory(p, &real));
		ck_assert_uint_eq(real.total_nbytes, mem[i].total_nbytes);
		ck_assert_uint_eq(real.arena_nbytes, mem[i].arena_nbytes);
		ck_assert_uint_le(used[i], mem[i].total_nbytes + 512 * 16);
		ck_assert_uint_ge(used[i], mem[i].total_nbytes - 512 * 16);
		sum = columns_nbytes(s, recipes[_i], &most);
		states = te__columns_nbytes(p);
		tt_drop(p, s);
	}
	ck_assert_uint_eq(mem[0].copies_nbytes - mem[1].copies_nbytes, sum);
	/* a GPU's plan gives no small buffer the memory of another (offsets.c) */
	on_host = !strcmp(backend, "host");
	ck_assert_uint_le(mem[1].arena_nbytes, mem[0].arena_nbytes + (on_host ? most : sum));
	ck_assert_uint_gt(states, 0);
	ck_assert_uint_eq(mem[1].own_nbytes, mem[0].own_nbytes + states);
	if (on_host)
		ck_assert_uint_lt(used[1], used[0] - sum / 2);
}

/* what a plan prints names the copies, and their lifetime is one group */
TEST(columns, a_plan_tells_where_they_are_made)
{
	const struct te_recipe r = model_recipe("fp8-current");
	const struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC);
	struct te_seq *s = complete(&llama, 0, 1, 0);
	const char *line;
	struct te_plan *p;
	int first, last;
	char *text;

	DO(te_plan_create(s, &o, &p));
	for (int k = 0; k < 2; k++) {
		DO(te_plan_print(p, k ? TE_PLAN_DOT : TE_PLAN_TEXT, &text));
		ck_assert_ptr_nonnull(strstr(text, k ? "columns(h.0.qkv.weight) + h.0.qkv.bwd" :
						       " columns(h.1.proj.weight) + h.1.proj.bwd"));
		if (!k) {
			line = strstr(text, "column-wise copies of weights, made for a group:\n");
			ck_assert_ptr_nonnull(line);
			line = strstr(line, "h.0.qkv.weight ");
			ck_assert_ptr_nonnull(line);
			line = strstr(line, " col@");
			ck_assert_ptr_nonnull(line);
			ck_assert_int_eq(sscanf(strchr(line, '['), "[%d,%d]", &first, &last), 2);
			ck_assert_int_eq(first, last);
			ck_assert_int_ge(first, p->fwd_groups);
		}
		free(text);
	}
	tt_drop(p, s);
}

/* ---- weights that nothing trains ---- */

/* codes without masters: a column-wise copy of blocks of 32 or 16 cannot be made, and is kept */
TEST_EACH(columns, stored_codes_are_row_wise, (int)TT_LEN(recipes) - 1)
{
	const struct te_recipe r = model_recipe(recipes[1 + _i]);
	const struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN);
	struct te_plan_memory mem[2] = { TE_PLAN_MEMORY_INIT, TE_PLAN_MEMORY_INIT };
	const int transposed = 1 + _i < 3;
	struct pair q = { .opt = { NULL, NULL } };
	int n;

	for (int i = 0; i < 2; i++) {
		q.s[i] = complete(&llama, 0, i, 1);
		n = te_seq_store_codes(q.s[i], &o);
		ck_assert_msg(n > 0, "%d: %s", n, te_error_detail());
		DO(te_seq_init(q.s[i], 5));
		DO(te_plan_create(q.s[i], &o, &q.p[i]));
		DO(te_plan_memory(q.p[i], &mem[i]));
		for (int k = 0; k < te_seq_nweights(q.s[i]); k++)
			if (weight(q.s[i], k).value)
				ck_assert_int_eq(!te_tensor_coldata(weight(q.s[i], k).value),
						 i && transposed);
	}
	ck_assert_int_eq(q.p[1]->ncolumns > 0, transposed);
	/* the rest is the head, in BF16 */
	ck_assert_uint_eq(mem[1].copies_nbytes, mem[0].copies_nbytes);
	if (transposed)
		ck_assert_uint_le(mem[1].bound_nbytes, mem[0].bound_nbytes / 2 + 64 * 32);
	for (int k = 0; k < 2; k++) {
		pair_feed(&q, &llama);
		for (int i = 0; i < 2; i++)
			pair_queue_pass(q.p[i]);
		pair_same(&q);
	}
	pair_free(&q);
}

/* the caller's row-wise codes, which it changes */
TEST_EACH(columns, bound_codes_are_transposed_in_backward, 2)
{
	const char *recipe = recipes[1 + _i];
	const struct te_recipe r = model_recipe(recipe);
	const struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN);
	struct te_tensor_opts to = TE_TENSOR_OPTS_INIT;
	static const char name[] = "h.1.proj.weight";
	const int64_t shape[] = { 160, 160 };
	const enum te_dtype dtype = TE_DTYPE_E4M3;
	struct te_tensor *codes, *values;
	struct pair q = { .opt = { NULL, NULL } };
	struct te_quant *quant;

	to.scaling = _i ? TE_SCALING_128X128 : TE_SCALING_TENSOR;
	DO(te_tensor_create(ctx, TE_DTYPE_E4M3, 2, shape, &to, &codes));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, shape, NULL, &values));
	DO(te_quant_create(ctx, &r, 1, &dtype, &quant));
	for (int i = 0; i < 2; i++) {
		q.s[i] = complete(&llama, 0, i, 0);
		DO(te_seq_bind_weight(q.s[i], name, codes));
		DO(te_seq_init(q.s[i], 5));
		DO(te_plan_create(q.s[i], &o, &q.p[i]));
	}
	for (int k = 0; k < 2; k++) {
		float x[160 * 160];

		tt_fill_normal(x, TT_LEN(x), 0.1f);
		tt_tensor_set(values, x);
		DO(te_quantize(st, quant, 0, values, codes, NULL, 0));
		pair_feed(&q, &llama);
		for (int i = 0; i < 2; i++) {
			DO(te_seq_weights_changed(q.s[i], st));
			pair_queue_pass(q.p[i]);
		}
		pair_same(&q);
	}
	pair_free(&q);
	te_quant_unref(quant);
	te_tensor_unref(values);
	te_tensor_unref(codes);
}

/* ---- a user's fusion, and errors ---- */

static int nseen, nmissed;

/* forward of a linear op and its bias, which looks at both copies of the weight */
static int look(const struct te_fused *f)
{
	const struct te_tensor *w = f->part[0]->weight[0].q, *y = f->part[1]->y.hp;

	nseen++;
	nmissed += !te_tensor_data(w) || !te_tensor_coldata(w);
	return te_fill(f->part[0]->stream, te_tensor_data(y), 0, te_tensor_nbytes(y));
}

TEST(columns, a_users_fusion_finds_both_copies)
{
	static const struct te_fusion mine = { .size = sizeof(mine), .name = "mine",
					       .pass = TE_PASS_FORWARD, .pattern = "linear bias",
					       .run = look };
	const struct te_recipe r = model_recipe("fp8-current");
	const struct te_plan_opts o = pair_opts(&gpt, &r, TE_PLAN_TRAIN);
	struct te_seq *s = complete(&gpt, 0, 1, 0);
	struct te_plan *p;

	DO(te_seq_add_fusion(s, &mine));
	DO(te_seq_init(s, 5));
	DO(te_plan_create(s, &o, &p));
	model_feed(p, &gpt);
	nseen = nmissed = 0;
	pair_queue_pass(p);
	DO(te_stream_sync(st));
	ck_assert_int_gt(nseen, 0);
	ck_assert_int_eq(nmissed, 0);
	tt_drop(p, s);
}

TEST(columns, inference_has_none_to_make)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_seq *s = complete(&llama, 0, 1, 0);
	const struct te_recipe r = model_recipe("fp8-block");
	const struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_NO_ALLOC);
	struct te_plan *p;

	DO(te_plan_create(s, &o, &p));
	ck_assert_int_eq(p->ncolumns, 0);
	te_plan_unref(p);
	b.flags = TE_SEQ_RECOMPUTE_COLS | TE_SEQ_NO_GRADS;
	fails(te_seq_bind(s, &b), -EINVAL,
	      "te_seq_bind: TE_SEQ_RECOMPUTE_COLS, and TE_SEQ_NO_GRADS");
	te_seq_unref(s);
}

static int create(void)
{
	const struct te_recipe r = model_recipe("nvfp4");
	struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN);
	struct te_linear_attrs a = TE_ATTRS(linear, 64, 32, 0.02f, 0, NULL);
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_op *op = NULL;
	struct te_plan *p = NULL;
	struct te_ctx *c = NULL;
	struct te_seq *s = NULL;
	int n = tt_ctx_new(&c);

	b.flags = TE_SEQ_RECOMPUTE_COLS;
	o.flags |= TE_PLAN_INPUT_GRAD;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { 16, 64 } };
	if (!n)
		n = te_seq_create(c, &s);
	if (!n)
		n = te_op_linear(&a, "l", &op);
	if (!n)
		n = te_seq_append(s, op);
	if (!n)
		n = te_seq_complete(s);
	if (!n)
		n = te_seq_bind(s, &b);
	if (!n)
		n = te_seq_init(s, 1);
	if (!n)
		n = te_plan_create(s, &o, &p);
	tt_drop(p, s);
	te_op_unref(op);
	te_ctx_unref(c);
	return n;
}

CASE(faults_of_columns, "host", .name = "faults of columns");

TEST_IF(faults_of_columns, survives_every_failed_allocation, ON_HOST)
{
	ck_assert_int_ge(tt_fault_each(create), 20);
}
