/*
 * t/comm/context.c - sequences whose tokens ranks divide: attention between te_comm_op_to_heads(3)
 * and te_comm_op_to_tokens(3), and te_comm_op_cross_entropy_tokens(3), have the bits of one rank
 * with all tokens, in both passes, eagerly and recorded.
 */
#include "config.h"

#include <te/capture.h>
#include <te/comm_op.h>
#include <te/errno.h>
#include <te/op.h>
#include <te/plan.h>

#include "threads.h"
#include "tt_num.h"

#define ROUNDS 3
#define IGNORED (-5)

/* what all ranks know; tokens: of a rank */
static struct {
	enum te_dtype dtype;
	int32_t nheads, nkv, head_dim, window, full, documents;
	float dropout, softcap;
	int64_t batch, tokens, width, nclasses;
	uint64_t seed;
} g;

/* ranks divide the heads of keys and values, or share them */
static void set(int i, int shared)
{
	const int n = threads_n;
	int each, group;

	/* each process of a case begins with the same numbers */
	for (int k = 0; k < i; k++)
		(void)tt_rand_u64();
	each = (int)tt_rand_int(1, 3);
	group = (int)tt_rand_int(1, 3);
	memset(&g, 0, sizeof(g));
	g.seed = tt_rand_u64();
	g.dtype = i % 2 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	g.nkv = shared ? (n % 2 || i % 4 < 2 ? 1 : n / 2) : n * each;
	g.nheads = shared ? n * each : g.nkv * group;
	g.head_dim = 2 * (int32_t)tt_rand_int(1, 9);
	g.batch = 1 + i / 2 % 3;
	g.tokens = tt_rand_int(1, 24);
	g.full = i % 5 == 1;
	g.window = !g.full && i % 3 == 0 ? (int32_t)tt_rand_int(1, 2 * g.tokens) : 0;
	g.softcap = i % 4 == 2 ? 3.0f : 0.0f;
	g.documents = !g.full && i % 3 == 2;
	g.dropout = i % 4 == 3 ? 0.25f : 0.0f;
	g.width = tt_rand_int(1, 60);
	g.nclasses = tt_rand_int(1, g.width);
}

static int64_t all_tokens(void)
{
	return threads_n * g.tokens;
}

static uint64_t draw(int what, int64_t i)
{
	return threads_hash(g.seed + (uint64_t)what, i);
}

static float value(int what, int64_t i)
{
	return tt_round(g.dtype, 2.0f * ((float)(draw(what, i) >> 40) / (float)(1 << 23) - 1));
}

/* the first token of the document of token i of a sequence: few documents */
static int32_t first_of(int what, int64_t seq, int64_t i)
{
	while (i && draw(what + 50, seq * all_tokens() + i) % 5)
		i--;
	return (int32_t)i;
}

static int32_t target(int what, int64_t i)
{
	const uint64_t x = draw(what + 100, i);

	return x % 4 ? (int32_t)((x >> 8) % (uint64_t)g.nclasses) :
	       x % 8 ? IGNORED : (int32_t)g.nclasses;
}

/* the row of the value with all tokens; of a rank, or of all if rank is -1 */
static int64_t row_of(int rank, int64_t i)
{
	return rank < 0 ? i : i / g.tokens * all_tokens() + rank * g.tokens + i % g.tokens;
}

/*
 * One rank has a head of keys and values for each rank that shares one: what ranks compute before
 * they add up gradients.
 */
static int one_nkv(void)
{
	return g.nkv < threads_n ? threads_n : g.nkv;
}

/* the column of the ranks' value that this one of one rank's has */
static int64_t col_of(int64_t col)
{
	const int64_t h = col / g.head_dim - g.nheads, n = one_nkv();

	return h < 0 ? col :
		       (g.nheads + h / n * g.nkv + h % n * g.nkv / n) * g.head_dim +
			       col % g.head_dim;
}

enum what { X, DY, LOGITS, FIRST, TARGETS };

static int64_t cols_of(enum what what)
{
	return what == X  ? (int64_t)(g.nheads + 2 * g.nkv) * g.head_dim :
	       what == DY ? (int64_t)g.nheads * g.head_dim :
			    g.width;
}

/* the elements that a rank has, or all if rank is -1; documents are all in each rank */
static int put(struct te_tensor *t, enum what what, int rank, int round)
{
	const size_t nbytes = te_tensor_nbytes(t);
	const int64_t cols = te_tensor_cols(t);
	char *bytes = malloc(nbytes);
	int r;

	for (int64_t i = 0; i < te_tensor_nelems(t); i++) {
		const int64_t col = what == X && rank < 0 ? col_of(i % cols) : i % cols;
		const int64_t at = row_of(rank, i / cols) * cols_of(what) + col;

		if (what == FIRST)
			((int32_t *)(void *)bytes)[i] =
				first_of(round, i / all_tokens(), i % all_tokens());
		else if (what == TARGETS)
			((int32_t *)(void *)bytes)[i] = target(round, row_of(rank, i));
		else
			tt_set(g.dtype, bytes, i, value(10 * (int)what + round, at));
	}
	r = te_tensor_write(t, bytes, nbytes);
	free(bytes);
	return r;
}

/* the gradient of a column of keys or values that ranks share: a sum in FP32, in rank order */
static void add_shared(char *want, const char *row, int64_t col)
{
	const int64_t h = col / g.head_dim - g.nheads, n = threads_n, each = n / g.nkv;
	const int64_t first = g.nheads + h / g.nkv * n + h % g.nkv * each;
	float sum = tt_get(g.dtype, row, first * g.head_dim + col % g.head_dim);

	for (int64_t k = first + 1; k < first + each; k++)
		sum += tt_get(g.dtype, row, k * g.head_dim + col % g.head_dim);
	tt_set(g.dtype, want, 0, sum);
}

/* the rows of this rank have the bits of one rank's */
static int same_rows(const char *name, const struct te_tensor *own, const struct te_tensor *whole,
		     int rank)
{
	const int64_t cols = te_tensor_cols(own), wcols = te_tensor_cols(whole);
	const size_t es = te_dtype_nbytes(te_tensor_dtype(own));
	char *x = malloc(te_tensor_nbytes(own)), *y = malloc(te_tensor_nbytes(whole)), want[4];
	int64_t wrong = -1;

	STEP(te_tensor_read(own, x, te_tensor_nbytes(own)));
	STEP(te_tensor_read(whole, y, te_tensor_nbytes(whole)));
	for (int64_t i = 0; i < te_tensor_nelems(own) && wrong < 0; i++) {
		const char *row = y + (size_t)(row_of(rank, i / cols) * wcols) * es;

		if (wcols == cols || i % cols < (int64_t)g.nheads * g.head_dim)
			memcpy(want, row + (size_t)(i % cols) * es, es);
		else
			add_shared(want, row, i % cols);
		if (memcmp(x + (size_t)i * es, want, es))
			wrong = i;
	}
	free(x);
	free(y);
	return wrong < 0 ? 0 : te_fail(-EPROTO, "%s: element %d of %d columns differs", name,
				       (int)wrong, (int)cols);
}

static int append(struct te_seq *seq, int r, struct te_op *op)
{
	STEP(r);
	STEP(te_seq_append(seq, op));
	te_op_unref(op);
	return 0;
}

/* ---- attention ---- */

/* comm NULL: one rank with all tokens and heads; n: ranks of comm, or 1 */
static int attend(struct te_seq *seq, struct te_comm *comm, int rank, int n)
{
	struct te_comm_heads_attrs h = TE_COMM_HEADS_ATTRS_INIT;
	struct te_attention_attrs a = TE_ATTENTION_ATTRS_INIT;
	struct te_rope_attrs rope = TE_ROPE_ATTRS_INIT;
	struct te_op *op = NULL;
	int r;

	h.nheads = g.nheads;
	h.nkv = g.nkv;
	rope.head_dim = a.head_dim = h.head_dim = g.head_dim;
	rope.nheads = a.nheads = g.nheads / n;
	rope.nkv = a.nkv = g.nkv > n ? g.nkv / n : 1;
	rope.documents = a.documents = g.documents;
	a.first_head = rank * a.nheads;
	a.all_heads = g.nheads;
	a.tag = 3;
	a.dropout = g.dropout;
	a.window = g.window;
	a.softcap = g.softcap;
	a.full = g.full;
	if (!comm)
		rope.nkv = a.nkv = one_nkv();
	if (comm) {
		r = te_comm_op_to_heads(comm, &h, "to_heads", &op);
		STEP(append(seq, r, op));
	}
	r = te_op_rope(&rope, "rope", &op);
	if (!r && g.documents)
		r = te_op_take(op, 0, "documents");
	STEP(append(seq, r, op));
	r = te_op_attention(&a, "attention", &op);
	if (!r && g.documents)
		r = te_op_take(op, 0, "documents");
	STEP(append(seq, r, op));
	if (!comm)
		return 0;
	r = te_comm_op_to_tokens(comm, &h, "to_tokens", &op);
	return append(seq, r, op);
}

static int attention_plan(struct thread_rank *r, struct te_recipe *recipe, int alone,
			  struct te_plan **ret_plan)
{
	const int64_t n = alone ? 1 : threads_n, tail[] = { n };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *seq;
	int code;

	*recipe = (struct te_recipe)TE_RECIPE_INIT;
	recipe->compute = g.dtype;
	STEP(te_seq_create(r->ctx, &seq));
	STEP(attend(seq, alone ? NULL : r->comm, alone ? 0 : r->rank, (int)n));
	if (g.documents)
		STEP(te_seq_input(seq, "documents", TE_DTYPE_INT32, 1, tail));
	STEP(te_seq_init(seq, 7));
	o.recipe = recipe;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	o.x = (struct te_spec){ g.dtype, 3,
				{ g.batch, alone ? all_tokens() : g.tokens,
				  (g.nheads + 2 * (alone ? one_nkv() : g.nkv)) * g.head_dim } };
	code = te_plan_create(seq, &o, ret_plan);
	te_seq_unref(seq); /* the plan has a reference */
	return code;
}

/* both passes; by recordings of each, unless they are NULL */
static int pass(struct te_plan *plan, struct te_stream *s, struct te_recording *const *rec,
		int rank, int round)
{
	STEP(put(te_plan_input(plan, "x"), X, rank, round));
	if (g.documents)
		STEP(put(te_plan_input(plan, "documents"), FIRST, -1, round));
	STEP(rec ? te_recording_launch(rec[0], s) : te_plan_forward(plan, s, 0));
	STEP(put(te_plan_output_grad(plan), DY, rank, round));
	return rec ? te_recording_launch(rec[1], s) : te_plan_backward(plan, s);
}

static int run_attention(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te_recording *rec[2];
	struct te_plan *plan, *one;
	struct te_recipe recipe;

	STEP(attention_plan(r, &recipe, 0, &plan));
	STEP(attention_plan(r, &recipe, 1, &one));
	for (int i = 0; i < 2; i++) {
		STEP(te_capture_begin(s));
		STEP(i ? te_plan_backward(plan, s) : te_plan_forward(plan, s, 0));
		STEP(te_capture_end(s, &rec[i]));
	}
	for (int round = 0; round < ROUNDS; round++) {
		STEP(pass(plan, s, (round + r->rank) % 2 ? rec : NULL, r->rank, round));
		STEP(pass(one, s, NULL, -1, round));
		STEP(te_stream_sync(s));
		STEP(te_comm_error(r->comm));
		STEP(same_rows("output", te_plan_output(plan), te_plan_output(one), r->rank));
		STEP(same_rows("gradient", te_plan_input_grad(plan), te_plan_input_grad(one),
			       r->rank));
	}
	te_recording_unref(rec[0]);
	te_recording_unref(rec[1]);
	te_plan_unref(plan);
	te_plan_unref(one);
	return 0;
}

CASE(context, "comm", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(context, attention_has_the_bits_of_one_rank, 12)
{
	threads_n = threads_apart(1 + (_i + 1) % 4);
	set(_i, 0);
	threads_run(threads_n, run_attention, 0, NULL);
}

TEST_EACH(context, ranks_share_keys_and_values, 6)
{
	threads_n = threads_apart(2 + _i % 3);
	set(_i, 1);
	threads_run(threads_n, run_attention, 0, NULL);
}

/* ---- the loss ---- */

static int loss_plan(struct thread_rank *r, struct te_recipe *recipe, int alone,
		     struct te_plan **ret_plan)
{
	struct te_cross_entropy_attrs a = TE_CROSS_ENTROPY_ATTRS_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_seq *seq;
	struct te_op *op = NULL;
	int code;

	a.nclasses = g.nclasses;
	a.ignore_index = IGNORED;
	a.grad_scale = 0.7f;
	*recipe = (struct te_recipe)TE_RECIPE_INIT;
	recipe->compute = g.dtype;
	STEP(te_seq_create(r->ctx, &seq));
	code = alone ? te_op_cross_entropy(&a, "loss", &op) :
		       te_comm_op_cross_entropy_tokens(r->comm, &a, "loss", &op);
	if (!code)
		code = te_op_take(op, 0, "targets");
	STEP(append(seq, code, op));
	STEP(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
	STEP(te_seq_init(seq, 1));
	o.recipe = recipe;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	o.x = (struct te_spec){ g.dtype, 3,
				{ g.batch, alone ? all_tokens() : g.tokens, g.width } };
	code = te_plan_create(seq, &o, ret_plan);
	te_seq_unref(seq);
	return code;
}

static int fill_loss(struct te_plan *plan, int rank, int round)
{
	STEP(put(te_plan_input(plan, "x"), LOGITS, rank, round));
	return put(te_plan_input(plan, "targets"), TARGETS, rank, round);
}

static int run_loss(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	struct te_plan *plan, *one;
	struct te_recording *rec;
	struct te_recipe recipe;
	float loss, want;

	STEP(loss_plan(r, &recipe, 0, &plan));
	STEP(loss_plan(r, &recipe, 1, &one));
	STEP(te_capture_begin(s));
	STEP(threads_queue(plan, s));
	STEP(te_capture_end(s, &rec));
	for (int round = 0; round < ROUNDS; round++) {
		STEP(fill_loss(plan, r->rank, round));
		STEP(fill_loss(one, -1, round));
		STEP((round + r->rank) % 2 ? te_recording_launch(rec, s) : threads_queue(plan, s));
		STEP(threads_queue(one, s));
		STEP(te_stream_sync(s));
		STEP(te_comm_error(r->comm));
		STEP(te_tensor_read(te_plan_output(plan), &loss, sizeof(loss)));
		STEP(te_tensor_read(te_plan_output(one), &want, sizeof(want)));
		HOLDS(!memcmp(&loss, &want, sizeof(loss)));
		STEP(same_rows("gradient", te_plan_input_grad(plan), te_plan_input_grad(one),
			       r->rank));
	}
	te_recording_unref(rec);
	te_plan_unref(plan);
	te_plan_unref(one);
	return 0;
}

TEST_EACH(context, the_loss_has_the_bits_of_one_rank, 6)
{
	threads_n = threads_apart(1 + (_i + 1) % 4);
	set(_i, 0);
	threads_run(threads_n, run_loss, 0, NULL);
}

/* ---- what is wrong ---- */

static int bad(struct thread_rank *r)
{
	static const struct {
		int32_t nheads, nkv, head_dim;
		const char *text;
	} wrong[] = {
		{ 0, 1, 8, "to_heads op: 0 query heads" },
		{ 4, 3, 8, "4 query heads, 3 key/value heads" },
		{ 4, 4, 0, "to_heads op: head_dim is 0" },
		{ 3, 3, 8, "2 ranks cannot divide 3 heads" },
		{ 6, 3, 8, "2 ranks can neither divide nor share 3 key/value heads" },
	};
	struct te_comm_heads_attrs h = TE_COMM_HEADS_ATTRS_INIT;
	struct te_cross_entropy_attrs a = TE_CROSS_ENTROPY_ATTRS_INIT;
	struct te_op *op = NULL;

	for (size_t i = 0; i < TT_LEN(wrong); i++) {
		h.nheads = wrong[i].nheads;
		h.nkv = wrong[i].nkv;
		h.head_dim = wrong[i].head_dim;
		HOLDS(te_comm_op_to_heads(r->comm, &h, "op", &op) == -EINVAL && !op);
		HOLDS(strstr(te_error_detail(), wrong[i].text));
	}
	HOLDS(te_comm_op_to_heads(NULL, &h, "op", &op) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "te_comm_op_to_heads: comm is NULL"));
	HOLDS(te_comm_op_to_tokens(NULL, &h, "op", &op) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "te_comm_op_to_tokens: comm is NULL"));
	HOLDS(te_comm_op_to_tokens(r->comm, NULL, "op", &op) == -EINVAL && !op);
	HOLDS(te_comm_op_cross_entropy_tokens(NULL, &a, "op", &op) == -EINVAL);
	HOLDS(te_comm_op_cross_entropy_tokens(r->comm, &a, "op", &op) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "tokens_cross_entropy op: nclasses is 0"));
	return 0;
}

/* a plan of one op: to_heads if before is 1, for x of these extents */
static int plan_of(struct thread_rank *r, int before, int64_t rows, int64_t cols)
{
	struct te_comm_heads_attrs h = TE_COMM_HEADS_ATTRS_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *plan = NULL;
	struct te_seq *seq;
	struct te_op *op;
	int code;

	h.nheads = 4;
	h.nkv = 2;
	h.head_dim = 3;
	STEP(te_seq_create(r->ctx, &seq));
	code = before ? te_comm_op_to_heads(r->comm, &h, "op", &op) :
			te_comm_op_to_tokens(r->comm, &h, "op", &op);
	STEP(append(seq, code, op));
	STEP(te_seq_init(seq, 1));
	o.x = (struct te_spec){ TE_DTYPE_BF16, 3, { 1, rows, cols } };
	code = te_plan_create(seq, &o, &plan);
	tt_drop(plan, seq);
	return code;
}

static int bad_shapes(struct thread_rank *r)
{
	STEP(plan_of(r, 1, 5, 24));
	STEP(plan_of(r, 0, 4, 6));
	HOLDS(plan_of(r, 1, 5, 23) == -TE_ESHAPE);
	HOLDS(strstr(te_error_detail(), "to_heads op: its input has 23 columns, not 24"));
	HOLDS(plan_of(r, 0, 4, 12) == -TE_ESHAPE);
	HOLDS(strstr(te_error_detail(), "to_tokens op: its input has 12 columns, not 6"));
	HOLDS(plan_of(r, 0, 5, 6) == -TE_ESHAPE);
	HOLDS(strstr(te_error_detail(), "2 ranks cannot divide 5 tokens"));
	return 0;
}

TEST(context, arguments_are_checked)
{
	threads_run(2, bad, 0, NULL);
	threads_run(2, bad_shapes, 0, NULL);
}

TT_PAIR_SUITE("comm/context")
{
	threads_pool_nbytes = (uint64_t)4 << 20;
	setenv("TE_COMM_PACKETS", "256k", 1);
}
