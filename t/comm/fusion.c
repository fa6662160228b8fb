/*
 * t/comm/fusion.c - te_comm_add_fusions(3): plans with and without the fusions compute the same
 * bits, as two sequences with the same weights of a rank. A model of two blocks is divided: each
 * rank has linear layers of its own.
 */
#include "config.h"

#include <te/comm_op.h>
#include <te/errno.h>
#include <te/graph.h>
#include <te/kernel.h>
#include <te/plan.h>

#include "threads.h"
#include "tt_num.h"

#define ROUNDS TT_FEWER(3)
#define BATCH 2
#define TOKENS 1 /* the extent of [BATCH, tokens, width] */
#define SLOTS 96 /* two for each op; there are fewer */

struct mode {
	const char *recipe;
	uint32_t flags; /* flags of the plan; 0: evaluation */
	int64_t width, seqlen; /* a width of 44 is no whole packets of BF16 */
	const char *want[6]; /* names of fusions; or unwanted ones, which begin with '-' */
	enum te_comm_algorithm algorithm;
	uint32_t norm_flags;
	int graph, frozen;
	int tokens; /* ranks divide tokens, too: seqlen are those of a rank */
	int no_residual;
	/* on a GPU, the built-in fusion of norm and cast adds squares in another order */
	int host_only;
};

#define TRAIN (TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD)
#define DELAY (TRAIN | TE_PLAN_DELAY_DW)

static const struct mode modes[] = {
	{ .recipe = "fp32", .flags = TRAIN, .width = 40, .seqlen = 7,
	  .want = { "allreduce+add+norm", "allreduce+norm", "allreduce+norm.bwd+dw+add",
		    "allreduce+norm.bwd+dw" } },
	{ .recipe = "bf16", .flags = TRAIN, .width = 44, .seqlen = 3,
	  .want = { "allreduce+add+norm", "allreduce+norm", "allreduce+norm.bwd+dw+add",
		    "allreduce+norm.bwd+dw" }, .norm_flags = TE_NORM_ZERO_CENTERED },
	{ .recipe = "bf16", .flags = DELAY, .width = 40, .seqlen = 5, .graph = 1,
	  .want = { "allreduce+add+norm", "allreduce+norm", "allreduce+norm.bwd+add",
		    "allreduce+norm.bwd" }, .algorithm = TE_COMM_STAGED },
	{ .recipe = "bf16", .flags = TRAIN, .width = 40, .seqlen = 5, .frozen = 1,
	  .want = { "allreduce+add+norm", "allreduce+norm", "allreduce+norm.bwd+add",
		    "allreduce+norm.bwd" }, .algorithm = TE_COMM_TWO_SHOT },
	{ .recipe = "bf16", .width = 48, .seqlen = 9,
	  .want = { "allreduce+add+norm", "allreduce+norm" } },
	{ .recipe = "fp8-delayed", .flags = TRAIN, .width = 48, .seqlen = 16, .graph = 1,
	  .host_only = 1,
	  .want = { "allreduce+add+norm+quantize", "allreduce+norm",
		    "allreduce+norm.bwd+dw+add", "allreduce+norm.bwd+dw" } },
	{ .recipe = "fp8-delayed", .width = 144, .seqlen = 16,
	  .want = { "allreduce+add+norm+quantize" }, .algorithm = TE_COMM_TWO_SHOT },
	{ .recipe = "fp8-current", .flags = TRAIN, .width = 48, .seqlen = 16,
	  .want = { "allreduce+add+norm", "-allreduce+add+norm+quantize",
		    "allreduce+norm.bwd+dw+add" } },
	{ .recipe = "fp8-block", .flags = TRAIN, .width = 144, .seqlen = 16, .graph = 1,
	  .host_only = 1,
	  .want = { "allreduce+add+norm", "-allreduce+add+norm+quantize",
		    "allreduce+norm.bwd+dw+add" } },
	{ .recipe = "fp8-block", .width = 144, .seqlen = 16, .host_only = 1,
	  .want = { "allreduce+add+norm+quantize" }, .norm_flags = TE_NORM_ZERO_CENTERED },

	{ .recipe = "fp32", .flags = TRAIN, .width = 40, .seqlen = 7, .tokens = 1,
	  .want = { "scatter+add+norm+gather", "scatter+norm+gather",
		    "scatter+norm.bwd+dw+add+gather",
		    "scatter+norm.bwd+dw+gather" } },
	{ .recipe = "bf16", .flags = TRAIN, .width = 44, .seqlen = 3, .tokens = 1,
	  .want = { "scatter+add+norm+gather", "scatter+norm+gather",
		    "scatter+norm.bwd+dw+add+gather",
		    "scatter+norm.bwd+dw+gather" },
	  .norm_flags = TE_NORM_ZERO_CENTERED },
	{ .recipe = "bf16", .flags = DELAY, .width = 40, .seqlen = 5, .tokens = 1, .graph = 1,
	  .want = { "scatter+add+norm+gather", "scatter+norm+gather",
		    "-scatter+norm.bwd+add+gather" }, .algorithm = TE_COMM_STAGED },
	{ .recipe = "bf16", .flags = DELAY, .width = 48, .seqlen = 5, .tokens = 1, .graph = 1,
	  .want = { "scatter+norm.bwd+add+gather", "scatter+norm.bwd+gather" },
	  .norm_flags = TE_NORM_ZERO_CENTERED },
	{ .recipe = "bf16", .flags = TRAIN, .width = 40, .seqlen = 1, .tokens = 1, .frozen = 1,
	  .want = { "scatter+norm.bwd+add+gather", "scatter+norm.bwd+gather" } },
	{ .recipe = "fp32", .flags = TRAIN, .width = 40, .seqlen = 3, .tokens = 1, .graph = 1,
	  .want = { "scatter+norm.bwd+dw+gather" }, .no_residual = 1 },
	{ .recipe = "bf16", .width = 48, .seqlen = 1, .tokens = 1,
	  .want = { "scatter+add+norm+gather", "scatter+norm+gather" } },
	{ .recipe = "fp8-delayed", .flags = TRAIN, .width = 48, .seqlen = 16, .tokens = 1,
	  .graph = 1,
	  .want = { "scatter+add+norm+gather+quantize", "scatter+norm+gather",
		    "-gather+quantize", "-gather.bwd+quantize",
		    "scatter+norm.bwd+dw+add+gather",
		    "scatter+norm.bwd+dw+gather" } },
	{ .recipe = "fp8-delayed", .flags = TRAIN, .width = 48, .seqlen = 16, .tokens = 1,
	  .want = { "scatter+add+norm+gather+quantize", "scatter+norm+gather",
		    "gather+quantize", "gather.bwd+quantize" }, .algorithm = TE_COMM_STAGED },
	{ .recipe = "fp8-delayed", .width = 144, .seqlen = 8, .tokens = 1,
	  .want = { "scatter+add+norm+gather+quantize" } },
	{ .recipe = "fp8-current", .flags = TRAIN, .width = 48, .seqlen = 16, .tokens = 1,
	  .want = { "scatter+add+norm+gather+quantize", "scatter+norm+gather",
		    "gather+quantize", "gather.bwd+quantize" }, .algorithm = TE_COMM_STAGED },
	{ .recipe = "fp8-current", .flags = TRAIN, .width = 48, .seqlen = 16, .tokens = 1,
	  .graph = 1,
	  .want = { "scatter+norm+gather+quantize", "scatter+norm+gather",
		    "gather+quantize", "gather.bwd+quantize" }, .algorithm = TE_COMM_STAGED,
	  .no_residual = 1 },
	{ .recipe = "fp8-current", .flags = TRAIN, .width = 48, .seqlen = 16, .tokens = 1,
	  .want = { "scatter+add+norm+gather", "-scatter+add+norm+gather+quantize",
		    "-gather+quantize", "-gather.bwd+quantize",
		    "scatter+norm.bwd+dw+add+gather",
		    "scatter+norm.bwd+dw+gather" } },
	{ .recipe = "fp8-current", .width = 144, .seqlen = 8, .tokens = 1,
	  .want = { "scatter+add+norm+gather+quantize", "scatter+norm+gather",
		    "gather+quantize" }, .algorithm = TE_COMM_STAGED,
	  .norm_flags = TE_NORM_ZERO_CENTERED },
	{ .recipe = "fp8-block", .flags = TRAIN, .width = 144, .seqlen = 16, .tokens = 1,
	  .want = { "scatter+add+norm+gather", "-scatter+add+norm+gather+quantize",
		    "-gather+quantize", "-gather.bwd+quantize",
		    "scatter+norm.bwd+dw+add+gather",
		    "scatter+norm.bwd+dw+gather" } },
};

static struct {
	const struct mode *m;
	uint64_t seed;
	void *out[THREADS_MOST]; /* outputs of the last round */
	size_t out_nbytes;
} g;

static int put(struct te_seq *seq, struct te_op *op)
{
	int r = te_seq_append(seq, op);

	te_op_unref(op);
	return r;
}

static int put_norm(struct te_seq *seq, const char *name)
{
	const struct te_norm_attrs a = TE_ATTRS(norm, g.m->width, 1e-5f, g.m->norm_flags);
	struct te_op *op;

	STEP(te_op_rmsnorm(&a, name, &op));
	return put(seq, op);
}

/* copy, two linear layers of which this rank has a part of the inner extent, allreduce; with tokens
 * all_gather and reduce_scatter */
static int put_branch(struct thread_rank *r, struct te_seq *seq, const char *letter)
{
	struct te_comm_op_opts co = TE_COMM_OP_OPTS_INIT;
	const struct te_linear_attrs up = TE_ATTRS(linear, g.m->width, 32, 0.2f, 0, NULL);
	const struct te_linear_attrs down = TE_ATTRS(linear, 32, g.m->width, 0.2f, 0, NULL);
	const struct te_act_attrs act = TE_ATTRS(act, TE_ACT_GELU, 0);
	char name[4][16];
	struct te_op *op;

	snprintf(name[0], sizeof(name[0]), "%s.copy", letter);
	snprintf(name[1], sizeof(name[1]), "%s.up", letter);
	snprintf(name[2], sizeof(name[2]), "%s.act", letter);
	snprintf(name[3], sizeof(name[3]), "%s.down", letter);
	co.algorithm = g.m->algorithm;
	co.axis = TOKENS;
	STEP(g.m->tokens ? te_comm_op_all_gather(r->comm, &co, name[0], &op) :
			te_comm_op_copy(r->comm, &co, name[0], &op));
	STEP(put(seq, op));
	STEP(te_op_linear(&up, name[1], &op));
	STEP(put(seq, op));
	STEP(te_op_activation(&act, name[2], &op));
	STEP(put(seq, op));
	STEP(te_op_linear(&down, name[3], &op));
	STEP(put(seq, op));
	snprintf(name[0], sizeof(name[0]), "%s.sum", letter);
	STEP(g.m->tokens ? te_comm_op_reduce_scatter(r->comm, &co, name[0], &op) :
			te_comm_op_allreduce(r->comm, &co, name[0], &op));
	return put(seq, op);
}

static int put_block(struct thread_rank *r, struct te_seq *seq, const char *letter)
{
	char name[16];
	struct te_op *op;

	if (g.m->no_residual) {
		snprintf(name, sizeof(name), "%s.norm", letter);
		STEP(put_norm(seq, name));
		return put_branch(r, seq, letter);
	}
	snprintf(name, sizeof(name), "%s.fork", letter);
	STEP(te_op_fork(name, &op));
	STEP(te_op_give(op, 0, letter));
	STEP(put(seq, op));
	snprintf(name, sizeof(name), "%s.norm", letter);
	STEP(put_norm(seq, name));
	STEP(put_branch(r, seq, letter));
	snprintf(name, sizeof(name), "%s.add", letter);
	STEP(te_op_add(name, &op));
	STEP(te_op_take(op, 0, letter));
	return put(seq, op);
}

/* the masters of linear layers, which differ between ranks */
static int own_weights(struct te_seq *seq, int rank)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	uint64_t x = g.seed + (uint64_t)rank * 977;

	for (int i = 0; i < te_seq_nweights(seq); i++) {
		float *v;

		w.size = sizeof(w);
		STEP(te_seq_weight(seq, i, &w));
		if (!strstr(w.name, "up") && !strstr(w.name, "down"))
			continue;
		v = malloc(te_tensor_nbytes(w.master));
		for (int64_t k = 0; k < te_tensor_nelems(w.master); k++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			v[k] = ((float)(x >> 40) / (float)(1 << 23) - 1) * 0.3f;
		}
		STEP(te_tensor_write(w.master, v, te_tensor_nbytes(w.master)));
		free(v);
	}
	return te_seq_weights_changed(seq, te_ctx_stream(te_seq_ctx(seq)));
}

static int make_seq(struct thread_rank *r, int fused, struct te_seq **ret)
{
	struct te_comm_op_opts co = TE_COMM_OP_OPTS_INIT;
	struct te_op *op;

	co.axis = TOKENS;
	STEP(te_seq_create(r->ctx, ret));
	STEP(put_block(r, *ret, "a"));
	STEP(put_block(r, *ret, "b"));
	STEP(put_norm(*ret, "norm"));
	STEP(put_branch(r, *ret, "c"));
	STEP(put_norm(*ret, "last"));
	if (g.m->tokens) {
		STEP(te_comm_op_all_gather(r->comm, &co, "out", &op));
		STEP(put(*ret, op));
	}
	if (fused)
		STEP(te_comm_add_fusions(*ret));
	STEP(te_seq_complete(*ret));
	if (g.m->frozen)
		HOLDS(te_seq_freeze(*ret, "*norm.weight", 1) == 3);
	if (g.m->frozen)
		HOLDS(te_seq_freeze(*ret, "last.weight", 1) == 1);
	STEP(te_seq_init(*ret, 3));
	return own_weights(*ret, r->rank);
}

/* ---- one of the two sequences that are compared ---- */

struct side {
	struct te_seq *seq;
	struct te_plan *plan;
	struct te_graph *graph; /* or NULL */
	struct te_tensor *x, *out, *dy, *dx;
	struct te_tensor *other; /* x is bound to it from the second round on; or NULL */
	/* amaxes of current scaling, by slot, and how often the hook was called for them */
	struct te_tensor *amaxes;
	int nevents;
};

static int log_amax(void *arg, struct te_plan *plan, const struct te_plan_event *e)
{
	struct side *s = arg;

	HOLDS(e->slot >= 0 && e->slot < SLOTS);
	s->nevents++;
	return te_copy(e->stream, (float *)te_tensor_data(s->amaxes) + e->slot,
		       te_quant_amax_ptr(te_seq_quant(s->seq), e->slot), sizeof(float));
}

static int check_groups(struct te_plan *plan, int fused)
{
	char *text, name[64];

	STEP(te_plan_print(plan, TE_PLAN_TEXT, &text));
	for (size_t i = 0; i < TT_LEN(g.m->want) && g.m->want[i]; i++) {
		const int unwanted = g.m->want[i][0] == '-';

		snprintf(name, sizeof(name), "  %s ", g.m->want[i] + unwanted);
		if (!strstr(text, name) != (!fused || unwanted))
			return te_fail(-EPROTO, "%s %s, fused %d:\n%s",
				       unwanted ? "unwanted" : "no", name, fused, text);
	}
	free(text);
	return 0;
}

static int open_graph(struct thread_rank *r, struct side *s)
{
	struct te_graph_opts go = TE_GRAPH_OPTS_INIT;
	struct te_callable c = TE_CALLABLE_INIT;

	STEP(te_callable_from_plan(s->plan, "c", &c));
	go.flags = TE_GRAPH_WHOLE;
	STEP(te_graph_create(r->ctx, 1, &c, &go, &s->graph));
	s->x = te_graph_tensor(s->graph, 0, "x");
	s->out = te_graph_tensor(s->graph, 0, "out");
	s->dy = te_graph_grad(s->graph, 0, "out");
	s->dx = te_graph_grad(s->graph, 0, "x");
	return 0;
}

static int side_open(struct thread_rank *r, int fused, struct side *s)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;

	memset(s, 0, sizeof(*s));
	STEP(make_seq(r, fused, &s->seq));
	STEP(te_recipe_from_name(g.m->recipe, &recipe));
	recipe.history_len = 2;
	o.recipe = &recipe;
	if (!strcmp(g.m->recipe, "fp8-current")) {
		STEP(te_tensor_create(r->ctx, TE_DTYPE_FP32, 1, (int64_t[]){ SLOTS }, NULL,
				      &s->amaxes));
		STEP(te_fill(te_ctx_stream(r->ctx), te_tensor_data(s->amaxes), 0,
			     SLOTS * sizeof(float)));
		o.hook = log_amax;
		o.hook_arg = s;
		o.hooks = 1u << TE_PLAN_EVENT_AMAX;
	}
	o.flags = g.m->flags | (g.m->graph ? TE_PLAN_EXTERNAL : 0);
	o.x = (struct te_spec){ recipe.compute, 3, { BATCH, g.m->seqlen, g.m->width } };
	STEP(te_plan_create(s->seq, &o, &s->plan));
	STEP(check_groups(s->plan, fused));
	if (g.m->graph)
		return open_graph(r, s);
	s->x = te_plan_input(s->plan, "x");
	s->out = te_plan_output(s->plan);
	s->dy = te_plan_output_grad(s->plan);
	s->dx = te_plan_input_grad(s->plan);
	return 0;
}

static void side_close(struct side *s)
{
	te_graph_unref(s->graph);
	te_tensor_unref(s->other);
	te_tensor_unref(s->amaxes);
	tt_drop(s->plan, s->seq);
}

/* the same numbers on all ranks: residuals and their gradients are equal there */
static int fill(struct te_tensor *t, uint64_t salt)
{
	const int64_t n = te_tensor_nelems(t);
	const size_t nbytes = te_tensor_nbytes(t);
	uint64_t x = g.seed ^ salt * 0x9e3779b97f4a7c15u;
	char *p = malloc(nbytes);
	int r;

	for (int64_t i = 0; i < n; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		tt_set(te_tensor_dtype(t), p, i, ((float)(x >> 40) / (float)(1 << 23) - 1) * 3);
	}
	r = te_tensor_write(t, p, nbytes);
	free(p);
	return r;
}

static int side_run(struct thread_rank *r, struct side *s, int round)
{
	struct te_stream *q = te_ctx_stream(r->ctx);

	if (s->graph && round == 1) {
		STEP(te_tensor_create(r->ctx, te_tensor_dtype(s->x), 3,
				      (int64_t[]){ BATCH, g.m->seqlen, g.m->width }, NULL,
				      &s->other));
		STEP(te_graph_bind(s->graph, 0, "x", 0, s->other, NULL));
		s->x = s->other;
	}
	STEP(fill(s->x, (uint64_t)(round * 2 + r->rank * 1000 * g.m->tokens)));
	if (s->graph) {
		STEP(fill(s->dy, (uint64_t)round * 2 + 1));
		STEP(te_seq_zero_grads(s->seq, q));
		STEP(te_graph_run(s->graph, q));
		return te_stream_sync(q);
	}
	STEP(te_plan_forward(s->plan, q, 0));
	if (g.m->flags) {
		/* its memory may have been used by forward */
		STEP(fill(s->dy, (uint64_t)round * 2 + 1));
		STEP(te_seq_zero_grads(s->seq, q));
		STEP(te_plan_backward(s->plan, q));
	}
	if (g.m->flags & TE_PLAN_DELAY_DW)
		STEP(te_plan_backward_dw(s->plan, q));
	return te_stream_sync(q);
}

static int same(const struct te_tensor *a, const struct te_tensor *b, const char *what, int round)
{
	const size_t nbytes = a ? te_tensor_nbytes(a) : 0;
	char *p, *q;
	size_t i = 0;

	if (!a)
		return 0;
	p = malloc(nbytes);
	q = malloc(nbytes);
	STEP(te_tensor_read(a, p, nbytes));
	STEP(te_tensor_read(b, q, nbytes));
	while (i < nbytes && p[i] == q[i])
		i++;
	free(p);
	free(q);
	return i == nbytes ? 0 : te_fail(-EPROTO, "%s, round %d: byte %zu of %s differs",
					 g.m->recipe, round, i, what);
}

static int same_scales(struct te_quant *a, struct te_quant *b)
{
	const size_t nbytes = a ? te_quant_nbytes(a) : 0;
	char *p = malloc(nbytes + 1), *q = malloc(nbytes + 1);

	if (a) {
		STEP(te_quant_save(a, p, nbytes));
		STEP(te_quant_save(b, q, nbytes));
		HOLDS(!memcmp(p, q, nbytes));
	}
	free(p);
	free(q);
	return 0;
}

static int both(struct thread_rank *r)
{
	struct side s[2];

	for (int k = 0; k < 2; k++)
		STEP(side_open(r, k, &s[k]));
	for (int round = 0; round < ROUNDS; round++) {
		for (int k = 0; k < 2; k++)
			STEP(side_run(r, &s[k], round));
		STEP(te_comm_error(r->comm));
		STEP(same(s[0].out, s[1].out, "the output", round));
		STEP(same(s[0].dx, s[1].dx, "the input's gradient", round));
		if (g.m->flags)
			STEP(same(te_seq_grads(s[0].seq), te_seq_grads(s[1].seq),
				  "the gradients", round));
		STEP(same_scales(te_seq_quant(s[0].seq), te_seq_quant(s[1].seq)));
		STEP(same(s[0].amaxes, s[1].amaxes, "the amaxes", round));
		HOLDS(s[0].nevents == s[1].nevents && !s[0].amaxes == !s[0].nevents);
	}
	if (!r->rank)
		g.out_nbytes = te_tensor_nbytes(s[1].out);
	g.out[r->rank] = malloc(te_tensor_nbytes(s[1].out));
	STEP(te_tensor_read(s[1].out, g.out[r->rank], te_tensor_nbytes(s[1].out)));
	for (int k = 0; k < 2; k++)
		side_close(&s[k]);
	return 0;
}

CASE(fusion, "comm", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(fusion, plans_have_the_same_bits, TT_FEWER(3) * (int)TT_LEN(modes))
{
	const int n = threads_apart(2 + _i / (int)TT_LEN(modes));

	memset(&g, 0, sizeof(g));
	g.m = &modes[_i % (int)TT_LEN(modes)];
	if (n < 2 || (g.m->host_only && strcmp(backend, "host")) || (n > 3 && !g.m->tokens))
		return;
	g.seed = tt_rand_u64();
	threads_run(n, both, 0, NULL);
	for (int k = 1; k < n; k++)
		ck_assert_mem_eq(g.out[k], g.out[0], g.out_nbytes);
	for (int k = 0; k < n; k++)
		free(g.out[k]);
}

/* one rank: the ops leave no steps, and built-in fusions apply */
static int alone(struct thread_rank *r)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *plan;
	struct te_seq *seq;
	char *text;

	STEP(make_seq(r, 1, &seq));
	o.x = (struct te_spec){ TE_DTYPE_BF16, 3, { BATCH, g.m->seqlen, g.m->width } };
	STEP(te_plan_create(seq, &o, &plan));
	STEP(te_plan_print(plan, TE_PLAN_TEXT, &text));
	HOLDS(!strstr(text, "allreduce") && !strstr(text, "gather") && strstr(text, "linear+add"));
	free(text);
	HOLDS(te_comm_add_fusions(seq) == -EBUSY);
	HOLDS(te_comm_add_fusions(NULL) == -EINVAL);
	tt_drop(plan, seq);
	return 0;
}

TEST_EACH(fusion, one_rank_has_nothing_to_fuse, 2)
{
	memset(&g, 0, sizeof(g));
	g.m = &modes[_i ? TT_LEN(modes) - 1 : 0];
	threads_run(1, alone, 0, NULL);
}

/* ---- where the fusions must not be applied ---- */

static int infer_same(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	return 0;
}

static int double_it(const struct te_op_call *c)
{
	return te_kernel_add(c->stream, c->x.hp, c->x.hp, c->y.hp);
}

/* an op of a program, which has the same name */
static const struct te_op_ops namesake = {
	.size = sizeof(struct te_op_ops),
	.name = "allreduce",
	.infer = infer_same,
	.forward = double_it,
};

static int put_add(struct te_seq *seq, const char *name)
{
	struct te_op *op;

	STEP(te_op_add(name, &op));
	STEP(te_op_take(op, 0, "f"));
	return put(seq, op);
}

static int what; /* 0: the sum is its own residual, 1: and is read later, 2: a namesake */

static int declined(struct thread_rank *r)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *plan;
	struct te_seq *seq;
	struct te_op *op;
	char *text;

	STEP(te_seq_create(r->ctx, &seq));
	if (what == 2) {
		STEP(te_op_fork("fork", &op));
		STEP(te_op_give(op, 0, "f"));
		STEP(put(seq, op));
	}
	STEP(what == 2 ? te_op_create(&namesake, NULL, "sum", &op) :
			 te_comm_op_allreduce(r->comm, NULL, "sum", &op));
	STEP(put(seq, op));
	if (what != 2) {
		STEP(te_op_fork("own", &op));
		STEP(te_op_give(op, 0, "f"));
		STEP(put(seq, op));
	}
	STEP(put_add(seq, "add"));
	STEP(put_norm(seq, "norm"));
	if (what == 1)
		STEP(put_add(seq, "later"));
	STEP(te_comm_add_fusions(seq));
	STEP(te_seq_init(seq, 1));
	o.x = (struct te_spec){ TE_DTYPE_BF16, 3, { BATCH, g.m->seqlen, g.m->width } };
	STEP(te_plan_create(seq, &o, &plan));
	STEP(te_plan_print(plan, TE_PLAN_TEXT, &text));
	HOLDS(strstr(text, "  allreduce ") && !strstr(text, "allreduce+"));
	free(text);
	tt_drop(plan, seq);
	return 0;
}

TEST_EACH(fusion, what_looks_alike_is_declined, threads_apart(2) == 2 ? 3 : 0)
{
	memset(&g, 0, sizeof(g));
	g.m = &modes[2];
	what = _i;
	threads_run(threads_apart(2), declined, 0, NULL);
}

TT_PAIR_SUITE("comm/fusion")
{
	threads_pool_nbytes = (uint64_t)1 << 20;
	setenv("TE_COMM_PACKETS", "512k", 1);
}
