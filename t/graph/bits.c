/*
 * t/graph/bits.c - the same bits: random models with random cuts, orders of passes, graphs, values
 * that are computed again or offloaded, and frozen weights, as te_step_create(3) and
 * te_seq_freeze(3) promise them.
 */
#include "config.h"

#include <te/step.h>

#include "t/plan/plan_model.h"
#include "tt_ctx.h"

#define WIDTH 32
#define HEADS 2
#define BATCH 2
#define TOKENS 8
#define MOST 24
#define NMICRO 2
#define NSTEPS 2
#define NMODELS 40

enum kind {
	LINEAR, BIAS, RMSNORM, LAYERNORM, ACT, DROPOUT, SCALE, IDENTITY, RESHAPE, QUANTIZE,
	FORK, ADD, GATED, ATTENTION, NDRAWN, /* the last two are of several ops */
	ROPE, EMBEDDING, HEAD, LOSS
};
static const char *const kinds[] = { "linear", "bias", "rmsnorm", "layernorm", "act", "dropout",
				     "scale", "identity", "reshape", "quantize", "fork", "add",
				     "gated", "attention", "", "rope", "embedding", "head",
				     "loss" };

static struct {
	int n;
	struct item {
		enum kind kind;
		int64_t in, out;
		int fork;  /* of forks and additions: index of the fork */
		int depth; /* forks that are open before it */
		int frozen;
		int keep_hp;
		float factor;
		enum te_act act;
	} item[MOST + 8];
	int tied;
} model;

static struct item *put(enum kind kind, int64_t in, int64_t out, int depth)
{
	struct item *i = &model.item[model.n++];

	ck_assert_int_le(model.n, (int)TT_LEN(model.item));
	memset(i, 0, sizeof(*i));
	i->kind = kind;
	i->in = in;
	i->out = out;
	i->depth = depth;
	i->frozen = !tt_rand_int(0, 2);
	i->keep_hp = kind == HEAD || !tt_rand_int(0, 4);
	i->factor = tt_rand_int(0, 3) ? tt_rand_float(0.2f, 1.5f) : 0.5f;
	i->act = (enum te_act)tt_rand_int(0, TE_ACT_COUNT - 1);
	return i;
}

/* half of the ops follow a linear, where fusions are */
static enum kind draw_kind(int nopen)
{
	static const enum kind after[] = { BIAS, BIAS, SCALE, ACT, ADD, FORK, RMSNORM, QUANTIZE };
	const int fused = model.item[model.n - 1].kind == LINEAR && tt_rand_int(0, 1);
	enum kind kind = fused ? after[tt_rand_int(0, (int)TT_LEN(after) - 1)] :
				 (enum kind)tt_rand_int(0, NDRAWN - 1);

	if (kind == ADD && !nopen)
		return LINEAR;
	return kind;
}

static void draw_model(void)
{
	int open[MOST], nopen = 0;
	const int n = (int)tt_rand_int(4, MOST - 8);

	model.n = 0;
	model.tied = !tt_rand_int(0, 4);
	put(EMBEDDING, WIDTH, WIDTH, 0);
	while (model.n + nopen < n) {
		const enum kind kind = draw_kind(nopen);

		switch (kind) {
		case GATED:
			put(LINEAR, WIDTH, 2 * WIDTH, nopen);
			put(GATED, WIDTH, WIDTH, nopen);
			break;
		case ATTENTION:
			put(LINEAR, WIDTH, 3 * WIDTH, nopen);
			if (tt_rand_int(0, 1))
				put(ROPE, WIDTH, WIDTH, nopen);
			put(ATTENTION, WIDTH, WIDTH, nopen);
			break;
		case FORK:
			open[nopen] = model.n;
			put(FORK, WIDTH, WIDTH, nopen)->fork = open[nopen];
			nopen++;
			break;
		case ADD:
			put(ADD, WIDTH, WIDTH, nopen)->fork = open[nopen - 1];
			nopen--;
			break;
		default:
			put(kind, WIDTH, WIDTH, nopen);
		}
	}
	for (; nopen; nopen--)
		put(ADD, WIDTH, WIDTH, nopen)->fork = open[nopen - 1];
	put(HEAD, WIDTH, WIDTH, 0);
	put(LOSS, WIDTH, 1, 0);
}

static int make_op(const struct item *i, const char *name, struct te_op *embedding,
		   struct te_op **ret_op)
{
	const struct te_embedding_attrs e = TE_ATTRS(embedding, WIDTH, WIDTH, .init_std = 1);
	const struct te_linear_attrs l =
		TE_ATTRS(linear, i->in, i->out, .init_std = 0.2f, .keep_hp = i->keep_hp,
			 .tied_op = i->kind == HEAD && model.tied ? embedding : NULL);
	const struct te_bias_attrs b = TE_ATTRS(bias, WIDTH);
	const struct te_norm_attrs n = TE_ATTRS(norm, WIDTH);
	const struct te_act_attrs a = TE_ATTRS(act, i->act, .gated = i->kind == GATED);
	const struct te_dropout_attrs d = TE_ATTRS(dropout, .p = 0.2f);
	const struct te_scale_attrs s = TE_ATTRS(scale, .factor = i->factor);
	const struct te_reshape_attrs r = TE_ATTRS(reshape, 3, { BATCH, -1, WIDTH });
	const struct te_quantize_attrs q = TE_QUANTIZE_ATTRS_INIT;
	const struct te_rope_attrs ro = TE_ATTRS(rope, HEADS, HEADS, WIDTH / HEADS);
	const struct te_attention_attrs at = TE_ATTRS(attention, HEADS, HEADS, WIDTH / HEADS,
						      .dropout = i->factor > 1 ? 0.1f : 0);
	const struct te_cross_entropy_attrs c = TE_ATTRS(cross_entropy, WIDTH);

	switch (i->kind) {
	case EMBEDDING:
		return te_op_embedding(&e, name, ret_op);
	case LINEAR:
	case HEAD:
		return te_op_linear(&l, name, ret_op);
	case BIAS:
		return te_op_bias(&b, name, ret_op);
	case RMSNORM:
		return te_op_rmsnorm(&n, name, ret_op);
	case LAYERNORM:
		return te_op_layernorm(&n, name, ret_op);
	case ACT:
	case GATED:
		return te_op_activation(&a, name, ret_op);
	case DROPOUT:
		return te_op_dropout(&d, name, ret_op);
	case SCALE:
		return te_op_scale(&s, name, ret_op);
	case IDENTITY:
		return te_op_identity(name, ret_op);
	case RESHAPE:
		return te_op_reshape(&r, name, ret_op);
	case QUANTIZE:
		return te_op_quantize(&q, name, ret_op);
	case ROPE:
		return te_op_rope(&ro, name, ret_op);
	case ATTENTION:
		return te_op_attention(&at, name, ret_op);
	case FORK:
		return te_op_fork(name, ret_op);
	case ADD:
		return te_op_add(name, ret_op);
	default:
		return te_op_cross_entropy(&c, name, ret_op);
	}
}

static struct te_seq *make_seq(int frozen)
{
	char name[16], channel[16];
	struct te_op *op, *embedding = NULL;
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; i < model.n; i++) {
		const struct item *m = &model.item[i];

		snprintf(name, sizeof(name), "%d", i);
		snprintf(channel, sizeof(channel), "c%d", m->fork);
		DO(make_op(m, name, embedding, &op));
		if (m->kind == FORK)
			DO(te_op_give(op, 0, channel));
		if (m->kind == ADD)
			DO(te_op_take(op, 0, channel));
		if (m->kind == LOSS)
			DO(te_op_take(op, 0, "targets"));
		DO(te_seq_append(seq, op));
		embedding = i ? embedding : op;
		te_op_unref(op);
	}
	DO(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
	DO(te_seq_complete(seq));
	for (int i = 0; i < model.n && frozen; i++) {
		snprintf(name, sizeof(name), "%d", i);
		if (model.item[i].frozen)
			te_seq_freeze(seq, name, 1); /* -ENOENT: it has no weight */
	}
	DO(te_seq_init(seq, 5));
	return seq;
}

/* ---- what the pages promise ---- */

/* ops that have no step of their own */
static int is_alias(const struct item *i, const struct te_recipe *rec)
{
	return i->kind == IDENTITY || i->kind == RESHAPE ||
	       (i->kind == QUANTIZE && rec->kind == TE_RECIPE_NONE);
}

/* whether op i is linear and one of that kind follows it */
static int follows(int i, enum kind kind, const struct te_recipe *rec)
{
	if (model.item[i].kind != LINEAR)
		return 0;
	do
		i++;
	while (is_alias(&model.item[i], rec));
	return model.item[i].kind == kind;
}

/* between a linear op and the bias or the scale after it */
static int cuts_sum(int at, const struct te_recipe *rec)
{
	int i = at - 1;

	while (is_alias(&model.item[i], rec))
		i--;
	return follows(i, BIAS, rec) || follows(i, SCALE, rec);
}

static int has_scaled_linear(const struct te_recipe *rec)
{
	for (int i = 0; i < model.n; i++)
		if (follows(i, SCALE, rec))
			return 1;
	return 0;
}

/* ops from, .. at - 1 can be a plan that another follows: only the main value passes, and there are
 * ops that compute a value and a gradient */
static int may_cut(int from, int at, const struct te_recipe *rec)
{
	int computes = 0;

	for (int i = from; i < at; i++)
		computes |= !is_alias(&model.item[i], rec) && model.item[i].kind != BIAS;
	return computes && !model.item[at].depth &&
	       (rec->compute == TE_DTYPE_FP32 || !cuts_sum(at, rec));
}

/* how a step differs from one without options */
struct way {
	uint32_t flags;
	int32_t ncuts;
	int at[3];
	const char *order;
	int again;
};

static struct way draw_way(const struct te_recipe *rec)
{
	static const char *const orders[] = { NULL, NULL, "gpipe", "1f1b", "zero-bubble" };
	static const uint32_t flags[] = { 0, TE_STEP_GRAPH, TE_STEP_PASS_GRAPHS };
	struct way w = { .flags = flags[tt_rand_int(0, 2)], .again = !tt_rand_int(0, 2) };

	for (int i = 1; i < model.n && w.ncuts < (int)TT_LEN(w.at); i++)
		if (!tt_rand_int(0, 3) && may_cut(w.ncuts ? w.at[w.ncuts - 1] : 0, i, rec))
			w.at[w.ncuts++] = i;
	/* with a tied weight, the order of passes is that of its gradients */
	w.order = orders[model.tied ? 0 : tt_rand_int(0, (int)TT_LEN(orders) - 1)];
	if (w.order && *w.order == 'z' && rec->compute != TE_DTYPE_FP32 && has_scaled_linear(rec))
		w.order = "1f1b";
	return w;
}

static void say(const struct way *w)
{
	printf("flags %u, order %s%s%s:", (unsigned)w->flags, w->order ? w->order : "plain",
	       w->again ? ", again" : "", model.tied ? ", tied" : "");
	for (int i = 0, cut = 0; i < model.n; i++) {
		const int begins = cut < w->ncuts && w->at[cut] == i;

		cut += begins;
		printf("%s %s%s%s", begins ? " |" : "", kinds[model.item[i].kind],
		       model.item[i].frozen ? ":frozen" : "", model.item[i].keep_hp ? ":hp" : "");
	}
	printf("\n");
	fflush(stdout); /* a test that fails ends its process */
}

/* ---- steps ---- */

struct run {
	struct te_seq *seq;
	struct te_adamw *adamw;
	struct te_step *step;
};

static struct run run_create(const struct te_recipe *rec, const struct way *w, int frozen,
			     int trains)
{
	static const char *const all[] = { "*" };
	static const int32_t ones[] = { 1, 1, 1, 1 };
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct run r = { make_seq(frozen), NULL, NULL };
	const char *cut[TT_LEN(w->at)];
	char name[TT_LEN(w->at)][16];

	for (int32_t i = 0; i < w->ncuts; i++) {
		snprintf(name[i], sizeof(name[i]), "%d", w->at[i]);
		cut[i] = name[i];
	}
	so.nchunks = w->ncuts + 1;
	so.nmicro = NMICRO;
	so.nlayers = ones;
	if (w->order)
		DO(te_schedule_parse(w->order, &so, &o.schedule));
	o.recipe = rec;
	o.flags = w->flags;
	o.micro_batches = NMICRO;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { BATCH, TOKENS } };
	o.ncuts = w->ncuts;
	o.cut = cut;
	o.nrecompute = w->again;
	o.recompute = all;
	if (trains) {
		DO(te_adamw_create(r.seq, NULL, &r.adamw));
		DO(te_adamw_set_lr(r.adamw, st, 1e-2f));
	}
	DO(te_step_create(r.seq, r.adamw, &o, &r.step));
	te_schedule_unref(o.schedule);
	return r;
}

static void run_destroy(struct run *r)
{
	te_step_unref(r->step);
	te_adamw_unref(r->adamw);
	te_seq_unref(r->seq);
}

/* the same tokens in step k of each run */
static void run_step(struct run *r, int k, float loss[NMICRO])
{
	int32_t t[BATCH * TOKENS];

	for (int m = 0; m < NMICRO; m++) {
		for (int target = 0; target < 2; target++) {
			for (int i = 0; i < BATCH * TOKENS; i++)
				t[i] = (i * (5 + 6 * target) + 3 * m + k) % WIDTH;
			DO(te_tensor_write(te_step_input(r->step, 0, m, target ? "targets" : "x"),
					   t, sizeof(t)));
		}
	}
	DO(te_step_run(r->step, 0, st));
	for (int m = 0; m < NMICRO; m++)
		DO(te_tensor_read(te_step_output(r->step, 0, m), &loss[m], sizeof(*loss)));
}

static void same_steps(const struct te_recipe *rec)
{
	const struct way plain = { .flags = 0 }, w = draw_way(rec);
	struct run a = run_create(rec, &plain, 0, 1), b;
	float want[NMICRO], have[NMICRO];

	say(&w);
	b = run_create(rec, &w, 0, 1);
	for (int k = 0; k < NSTEPS; k++) {
		run_step(&a, k, want);
		run_step(&b, k, have);
		ck_assert_mem_eq(want, have, sizeof(want));
		model_same(te_seq_grads(a.seq), te_seq_grads(b.seq), "gradients");
		model_same(te_seq_masters(a.seq), te_seq_masters(b.seq), "weights");
		model_same_scales(te_seq_quant(a.seq), te_seq_quant(b.seq));
	}
	run_destroy(&a);
	run_destroy(&b);
}

/* the exception of te_seq_freeze(3): a frozen linear op in BF16 before a factor */
static int rounds_when_frozen(const struct te_recipe *rec)
{
	for (int i = 0; i < model.n && rec->compute != TE_DTYPE_FP32; i++)
		if (follows(i, SCALE, rec) && model.item[i].frozen)
			return 1;
	return 0;
}

static void same_without_frozen(const struct te_recipe *rec)
{
	const struct way way = draw_way(rec);
	struct te_weight_info w = TE_WEIGHT_INFO_INIT, v = TE_WEIGHT_INFO_INIT;
	float want[NMICRO], have[NMICRO];
	struct run a, b;

	if (rounds_when_frozen(rec))
		return;
	printf("# frozen or not, ");
	say(&way);
	a = run_create(rec, &way, 0, 0);
	b = run_create(rec, &way, 1, 0);
	run_step(&a, 0, want);
	run_step(&b, 0, have);
	ck_assert_mem_eq(want, have, sizeof(want));
	for (int i = 0; i < te_seq_nweights(b.seq); i++) {
		DO(te_seq_weight(b.seq, i, &w));
		for (int k = 0; k < te_seq_nweights(a.seq) && w.grad; k++) {
			DO(te_seq_weight(a.seq, k, &v));
			if (!strcmp(w.name, v.name))
				model_same(v.grad, w.grad, w.name);
		}
	}
	run_destroy(&a);
	run_destroy(&b);
}

CTX_CASE(bits, "graph step numeric");

TEST(bits, random_models_have_the_bits_that_pages_promise)
{
	static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current",
					       "fp8-block" };

	for (int m = 0; m < TT_FEWER(NMODELS); m++) {
		const char *recipe = recipes[tt_rand_int(0, (int)TT_LEN(recipes) - 1)];
		struct te_recipe rec = tt_recipe(recipe);

		draw_model();
		printf("# %s, ", recipe);
		same_steps(&rec);
		same_without_frozen(&rec);
	}
}

TT_MAIN("graph/bits", TT_NEED_NOTHING)
