/* t/plan/plan_copies.c - copies of weights that plans have: bytes, when they are made, by whom. */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/plan.h"
#include "plan_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

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
	{ "mxfp8", 0, 0 },
	{ "nvfp4", 0, 0 },
};

static void same_bytes(const void *a, const void *b, size_t nbytes)
{
	void *x = tt_bytes(a, nbytes), *y = tt_bytes(b, nbytes);

	ck_assert_mem_eq(x, y, nbytes);
	free(x);
	free(y);
}

CTX_CASE(copies, "run");

/* codes and scales of the FP8 copies of weights, after the first forward pass */
TEST_EACH(copies, weight_copies_are_what_te_quantize_makes, TT_LEN(copied))
{
	struct model_shape m = gpt;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = tt_recipe(copied[_i].recipe);
	struct te_quant *q;
	struct te_seq *seq;
	struct te_plan *p;
	int ncopies = 0;

	m.width = 144; /* several blocks, of which some are not whole */
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
	tt_drop(p, seq);
}

static struct te_plan *linears_plan(struct te_seq *seq, const char *recipe, uint32_t flags)
{
	const struct te_recipe rec = tt_recipe(recipe);
	struct te_plan *p = tt_plan(seq, &rec, flags,
				    (struct te_spec){ TE_DTYPE_BF16, 2, { 16, 16 } });
	uint16_t x[256];

	for (int i = 0; i < 256; i++)
		x[i] = (uint16_t)(0x3f80 + i); /* 1 and a bit */
	DO(te_tensor_write(te_plan_input(p, "x"), x, sizeof(x)));
	return p;
}

/* how many launches refresh the copies of ten weights, and what depends on them */
TEST_EACH(copies, one_launch_refreshes_all_weights, NRECIPES - 1)
{
	static const int want[] = { 1, 1, 2, 1 }; /* bf16, delayed, current and block */
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_seq *seq = linear_seq(10, 16, 16, 0);
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
	tt_drop(p, seq);
}

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
	struct te_seq *seq = linear_seq(10, 16, 16, 0);
	struct te_plan *p;
	void *y;

	weights_scale(seq, by);
	p = linears_plan(seq, recipe, 0);
	DO(te_plan_forward(p, st, 0));
	y = output_of(p);
	tt_drop(p, seq);
	return y;
}

/* copies follow the masters' version, not their bytes: a write has to be declared */
TEST_EACH(copies, copies_follow_the_version_of_the_weights, NRECIPES - 1)
{
	const char *recipe = recipes[1 + _i];
	struct te_seq *seq = linear_seq(10, 16, 16, 0);
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
	tt_drop(p, seq);
}

/* plans of one sequence share copies, whether they were captured or not, whichever refreshes them;
 * their forms may differ. Without any refresh before it a replay makes them itself. */
TEST_EACH(copies, plans_and_replays_share_copies, 5)
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
	struct te_seq *seq = linear_seq(10, 16, 16, 0);
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

/* an evaluation that refreshes copies records no amaxes, so the training pass after it does */
TEST(copies, evaluation_takes_no_amaxes_from_training)
{
	size_t n;
	char *blob[2];

	for (int k = 0; k < 2; k++) {
		struct te_seq *seq = linear_seq(10, 16, 16, 0);
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
		tt_drop(e, seq);
	}
	ck_assert_mem_eq(blob[0], blob[1], n);
	free(blob[0]);
	free(blob[1]);
}

/* a forward pass fails at each of its calls: another plan makes the copies that are missing */
TEST_EACH(copies, a_failed_pass_leaves_no_stale_copies, NRECIPES - 1)
{
	const char *recipe = recipes[1 + _i];
	void *want = want_scaled(recipe, 1);

	for (uint64_t fault = 1; fault < 100; fault++) {
		struct te_seq *seq = linear_seq(10, 16, 16, 0);
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
		tt_drop(p[1], seq);
		if (!fired)
			break;
	}
	free(want);
}
