/*
 * t/comm/vocab.c - a vocabulary that ranks divide: te_comm_op_cross_entropy(3), whose loss and
 * gradients have the bits of te_kernel_cross_entropy_join(3) in one process, and a table of
 * embeddings, whose rows and gradients are those of the whole one.
 */
#include "config.h"

#include <te/capture.h>
#include <te/comm_op.h>
#include <te/errno.h>
#include <te/kernel.h>
#include <te/op.h>
#include <te/plan.h>

#include "threads.h"
#include "tt_num.h"

#define ROUNDS 3
#define IGNORED (-5)

/* what all ranks know */
static struct {
	enum te_dtype dtype;
	int64_t batch, seqlen, cols, nclasses, width; /* cols: of each rank */
	float grad_scale;
	uint64_t seed;
} g;

static int64_t rows(void)
{
	return g.batch * g.seqlen;
}

static void set(int i)
{
	g.seed = tt_rand_u64();
	g.dtype = i % 2 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	g.batch = tt_rand_int(1, 3);
	g.seqlen = tt_rand_int(1, 40);
	g.cols = tt_rand_int(1, 200);
	g.width = tt_rand_int(1, 33);
	/* the last rank may have padding, or nothing but padding */
	g.nclasses = tt_rand_int((threads_n - 1) * g.cols * 4 / 5, threads_n * g.cols);
	g.nclasses = g.nclasses ? g.nclasses : 1;
	g.grad_scale = tt_rand_float(0.1f, 2.0f);
}

static uint64_t draw(int round, int64_t i)
{
	return threads_hash(g.seed + (uint64_t)round, i);
}

/* element i of a tensor of all ranks */
static float value(int round, int64_t i)
{
	const float f = 8.0f * ((float)(draw(round, i) >> 40) / (float)(1 << 23) - 1);

	return tt_round(g.dtype, f);
}

/* some do not count */
static int32_t target(int round, int64_t r)
{
	const uint64_t x = draw(round + 100, r);

	return x % 7 ? (int32_t)((x >> 8) % (uint64_t)g.nclasses) :
	       x % 2 ? IGNORED : (int32_t)g.nclasses;
}

static int put_logits(struct te_tensor *t, int rank, int round)
{
	const int64_t n = te_tensor_nelems(t);
	char *bytes = malloc(te_tensor_nbytes(t));
	int r;

	for (int64_t i = 0; i < n; i++) {
		const int64_t c = rank * g.cols + i % g.cols;
		/* padding is not read */
		const float f = c < g.nclasses ?
					value(round, i / g.cols * threads_n * g.cols + c) : NAN;

		tt_set(g.dtype, bytes, i, f);
	}
	r = te_tensor_write(t, bytes, te_tensor_nbytes(t));
	free(bytes);
	return r;
}

static int put_targets(struct te_tensor *t, int round)
{
	int32_t *x = malloc(te_tensor_nbytes(t));
	int r;

	for (int64_t i = 0; i < te_tensor_nelems(t); i++)
		x[i] = target(round, i);
	r = te_tensor_write(t, x, te_tensor_nbytes(t));
	free(x);
	return r;
}

static int same(const struct te_tensor *a, const struct te_tensor *b, const char *what)
{
	const size_t nbytes = te_tensor_nbytes(a);
	char *x = malloc(nbytes), *y = malloc(nbytes);
	int differ;

	STEP(te_tensor_read(a, x, nbytes));
	STEP(te_tensor_read(b, y, nbytes));
	differ = memcmp(x, y, nbytes);
	free(x);
	free(y);
	return differ ? te_fail(-EPROTO, "%s differs", what) : 0;
}

static int make(struct thread_rank *r, enum te_dtype dtype, int ndim, int64_t a, int64_t b,
		int64_t c, struct te_tensor **ret)
{
	const int64_t shape[3] = { a, b, c };

	STEP(te_tensor_create(r->ctx, dtype, ndim, shape, NULL, ret));
	return te_fill(te_ctx_stream(r->ctx), te_tensor_data(*ret), 0xff, te_tensor_nbytes(*ret));
}

/* ---- the loss ---- */

/* the same in this process, with the logits of one rank after the other */
static int alone(struct thread_rank *r, int round, const struct te_tensor *loss,
		 const struct te_tensor *grad)
{
	struct te_kernel_cross_entropy_opts o = TE_KERNEL_CROSS_ENTROPY_OPTS_INIT;
	const size_t nbytes = te_kernel_cross_entropy_ws_nbytes(rows());
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te_tensor *x, *t, *parts, *l, *max_sum, *count;
	void *ws;

	STEP(make(r, g.dtype, 2, rows(), g.cols, 0, &x));
	STEP(make(r, TE_DTYPE_INT32, 1, rows(), 0, 0, &t));
	STEP(make(r, TE_DTYPE_FP32, 3, threads_n, 3, rows(), &parts));
	STEP(make(r, TE_DTYPE_FP32, 1, 1, 0, 0, &l));
	STEP(make(r, TE_DTYPE_FP32, 2, 2, rows(), 0, &max_sum));
	STEP(make(r, TE_DTYPE_FP32, 1, 1, 0, 0, &count));
	STEP(te_mem_alloc(s, nbytes, &ws));
	STEP(put_targets(t, round));
	o.nclasses = g.nclasses;
	o.ignore_index = IGNORED;
	o.nparts = threads_n;
	for (o.part = 0; o.part < threads_n; o.part++) {
		STEP(put_logits(x, o.part, round));
		STEP(te_kernel_cross_entropy_part(s, x, t, parts, &o));
		STEP(te_stream_sync(s));
	}
	o.part = r->rank;
	o.grad_scale = g.grad_scale;
	STEP(te_kernel_cross_entropy_join(s, parts, t, l, max_sum, count, ws, nbytes, &o));
	STEP(put_logits(x, r->rank, round));
	STEP(te_kernel_cross_entropy_backward(s, x, t, max_sum, count, x, &o));
	STEP(te_stream_sync(s));
	STEP(same(l, loss, "the loss"));
	STEP(same(x, grad, "the gradient"));
	STEP(te_mem_free(s, ws));
	te_tensor_unref(x);
	te_tensor_unref(t);
	te_tensor_unref(parts);
	te_tensor_unref(l);
	te_tensor_unref(max_sum);
	te_tensor_unref(count);
	return 0;
}

static int loss_plan(struct thread_rank *r, struct te_recipe *recipe, struct te_plan **ret_plan)
{
	struct te_cross_entropy_attrs a = TE_CROSS_ENTROPY_ATTRS_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *seq;
	struct te_op *op;
	int code;

	a.nclasses = g.nclasses;
	a.ignore_index = IGNORED;
	a.grad_scale = g.grad_scale;
	*recipe = (struct te_recipe)TE_RECIPE_INIT;
	recipe->compute = g.dtype;
	STEP(te_seq_create(r->ctx, &seq));
	STEP(te_comm_op_cross_entropy(r->comm, &a, "loss", &op));
	STEP(te_op_take(op, 0, "targets"));
	STEP(te_seq_append(seq, op));
	te_op_unref(op);
	STEP(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
	STEP(te_seq_init(seq, 1));
	o.recipe = recipe;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	o.x = (struct te_spec){ g.dtype, 3, { g.batch, g.seqlen, g.cols } };
	code = te_plan_create(seq, &o, ret_plan);
	te_seq_unref(seq); /* the plan has a reference */
	return code;
}

static int run_loss(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te_recording *rec;
	struct te_recipe recipe;
	struct te_plan *plan;

	STEP(loss_plan(r, &recipe, &plan));
	STEP(te_capture_begin(s));
	STEP(threads_queue(plan, s));
	STEP(te_capture_end(s, &rec));
	for (int round = 0; round < ROUNDS; round++) {
		STEP(put_logits(te_plan_input(plan, "x"), r->rank, round));
		STEP(put_targets(te_plan_input(plan, "targets"), round));
		STEP((round + r->rank) % 2 ? te_recording_launch(rec, s) : threads_queue(plan, s));
		STEP(te_stream_sync(s));
		STEP(te_comm_error(r->comm));
		STEP(alone(r, round, te_plan_output(plan), te_plan_input_grad(plan)));
	}
	te_recording_unref(rec);
	te_plan_unref(plan);
	return 0;
}

CASE(vocab, "comm", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(vocab, the_loss_has_the_bits_of_one_process, 8)
{
	threads_n = threads_apart(1 + (_i * 3 + 1) % 5);
	set(_i);
	threads_run(threads_n, run_loss, 0, NULL);
}

/* ---- the table ---- */

static int table_plan(struct thread_rank *r, struct te_recipe *recipe, struct te_plan **ret_plan,
		      struct te_seq **ret_seq)
{
	struct te_embedding_attrs a = TE_ATTRS(embedding, g.cols, g.width, 0, 1.0f,
					       r->rank * g.cols);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_op *op;

	*recipe = (struct te_recipe)TE_RECIPE_INIT;
	recipe->compute = g.dtype;
	STEP(te_seq_create(r->ctx, ret_seq));
	STEP(te_op_embedding(&a, "embed", &op));
	STEP(te_seq_append(*ret_seq, op));
	te_op_unref(op);
	STEP(te_comm_op_allreduce(r->comm, NULL, "sum", &op));
	STEP(te_seq_append(*ret_seq, op));
	te_op_unref(op);
	STEP(te_seq_init(*ret_seq, 1));
	o.recipe = recipe;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { g.batch, g.seqlen } };
	return te_plan_create(*ret_seq, &o, ret_plan);
}

/* y = the rows of the whole table, zeros for tokens outside of it */
static int check_rows(const struct te_tensor *y)
{
	const size_t es = te_dtype_nbytes(g.dtype);
	char *got = malloc(te_tensor_nbytes(y)), want[4];
	int64_t wrong = -1;

	STEP(te_tensor_read(y, got, te_tensor_nbytes(y)));
	for (int64_t i = 0; i < rows() * g.width && wrong < 0; i++) {
		const int32_t t = target(0, i / g.width);
		const int known = t >= 0 && t < threads_n * g.cols;

		tt_set(g.dtype, want, 0, known ? value(1, t * g.width + i % g.width) : 0.0f);
		if (memcmp(got + (size_t)i * es, want, es))
			wrong = i;
	}
	free(got);
	HOLDS(wrong < 0);
	return 0;
}

/* each row's gradient is the sum of dy over its tokens, in their order */
static int check_grad(const struct te_tensor *grad, int rank)
{
	const int64_t n = te_tensor_nelems(grad);
	float *got = malloc(te_tensor_nbytes(grad));
	int64_t wrong = -1;

	STEP(te_tensor_read(grad, got, te_tensor_nbytes(grad)));
	for (int64_t i = 0; i < n && wrong < 0; i++) {
		float sum = 0.0f;

		for (int64_t r = 0; r < rows(); r++)
			if (target(0, r) == rank * g.cols + i / g.width)
				sum += value(2, r * g.width + i % g.width);
		if (memcmp(&got[i], &sum, sizeof(sum)))
			wrong = i;
	}
	free(got);
	HOLDS(wrong < 0);
	return 0;
}

static int run_table(struct thread_rank *r)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te_recipe recipe;
	struct te_plan *plan;
	struct te_seq *seq;
	float *table;
	char *dy;

	STEP(table_plan(r, &recipe, &plan, &seq));
	STEP(te_seq_weight(seq, 0, &w));
	table = malloc(te_tensor_nbytes(w.master));
	for (int64_t i = 0; i < g.cols * g.width; i++)
		table[i] = value(1, r->rank * g.cols * g.width + i);
	STEP(te_tensor_write(w.master, table, te_tensor_nbytes(w.master)));
	free(table);
	STEP(te_seq_weights_changed(seq, s));
	STEP(put_targets(te_plan_input(plan, "x"), 0));
	dy = malloc(te_tensor_nbytes(te_plan_output_grad(plan)));
	for (int64_t i = 0; i < rows() * g.width; i++)
		tt_set(g.dtype, dy, i, value(2, i));
	STEP(te_tensor_write(te_plan_output_grad(plan), dy,
			     te_tensor_nbytes(te_plan_output_grad(plan))));
	free(dy);
	STEP(te_plan_forward(plan, s, 0));
	STEP(te_plan_backward(plan, s));
	STEP(te_stream_sync(s));
	STEP(te_comm_error(r->comm));
	STEP(check_rows(te_plan_output(plan)));
	STEP(check_grad(w.grad, r->rank));
	tt_drop(plan, seq);
	return 0;
}

TEST_EACH(vocab, rows_and_gradients_are_those_of_the_whole_table, 6)
{
	threads_n = threads_apart(1 + _i % 4);
	set(_i);
	threads_run(threads_n, run_table, 0, NULL);
}

/* ---- what is wrong ---- */

static int too_narrow(struct thread_rank *r)
{
	struct te_plan *plan = NULL;
	struct te_recipe recipe;

	HOLDS(loss_plan(r, &recipe, &plan) == -TE_ESHAPE && !plan);
	HOLDS(strstr(te_error_detail(), "logits are 7 wide on each of 2 ranks, nclasses is 15"));
	return 0;
}

static int bad(struct thread_rank *r)
{
	struct te_cross_entropy_attrs a = TE_CROSS_ENTROPY_ATTRS_INIT;
	struct te_op *op = NULL;

	HOLDS(te_comm_op_cross_entropy(r->comm, &a, "loss", &op) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "comm_cross_entropy loss: nclasses is 0"));
	a.nclasses = 9;
	a.chunk = 16;
	HOLDS(te_comm_op_cross_entropy(r->comm, &a, "loss", &op) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "comm_cross_entropy loss: chunk is 16"));
	a.chunk = 0;
	a.grad_scale = INFINITY;
	HOLDS(te_comm_op_cross_entropy(r->comm, &a, "loss", &op) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "comm_cross_entropy loss: grad_scale is inf"));
	a.grad_scale = 0;
	HOLDS(te_comm_op_cross_entropy(r->comm, &a, "loss", &op) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "comm_cross_entropy loss: grad_scale is 0"));
	a.grad_scale = 1;
	HOLDS(te_comm_op_cross_entropy(NULL, &a, "loss", &op) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "comm is NULL"));
	HOLDS(te_comm_op_cross_entropy(r->comm, NULL, "loss", &op) == -EINVAL);
	HOLDS(te_comm_op_cross_entropy(r->comm, &a, NULL, &op) == -EINVAL);
	HOLDS(te_comm_op_cross_entropy(r->comm, &a, "loss", NULL) == -EINVAL && !op);
	return 0;
}

TEST(vocab, arguments_are_checked)
{
	threads_run(1, bad, 0, NULL);
	threads_n = 2;
	set(0);
	g.cols = 7;
	g.nclasses = 15;
	threads_run(2, too_narrow, 0, NULL);
}

TT_PAIR_SUITE("comm/vocab")
{
	threads_pool_nbytes = (uint64_t)4 << 20;
	setenv("TE_COMM_PACKETS", "256k", 1);
}
