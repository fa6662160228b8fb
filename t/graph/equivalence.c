/*
 * t/graph/equivalence.c - every op, under every recipe: plans without a graph, an eager
 * graph, graphs of single passes and one graph of the whole step give the same bits over three
 * steps of two micro-batches: outputs, gradients, weights, moments, scales.
 *
 * The ops come in short lists, a row of a table each. A list is fed random values and random
 * gradients of its output, unless it begins with tokens or ends in a loss.
 */
#include "config.h"

#include <math.h>

#include <te/errno.h>
#include <te/graph.h>
#include <te/optim.h>

#include "tt_ctx.h"

#define STEPS 3
#define MICRO 2
#define WEIGHTS 8192 /* elements of a list's at most */

/* ---- the table ---- */

/* extents are rounded up to multiples of 16 where GEMMs are in FP8 and casts may be fused */
#define VOCAB 29
#define WIDTH 37

struct list {
	int width;	 /* of the main input; 0: tokens */
	const char *ops; /* words and the attributes of te/op.h, probabilities in percent */
};

static const struct list lists[] = {
	{ 0, "embedding 37 0" },
	{ 0, "embedding 37 16" },
	{ WIDTH, "linear 37 21" },
	{ WIDTH, "linear 37 21, bias 21" },
	{ WIDTH, "fork, linear 37 37, bias 37, add" },
	{ WIDTH, "fork, linear 37 37, add" },
	{ WIDTH, "linear 37 21 1" },
	{ 0, "embedding 37 0, tied 37 29, cross_entropy 29" },
	{ 21, "linear 21 37, linear 37 21" },
	{ WIDTH, "dropout 10, bias 37" },
	{ WIDTH, "layernorm 37" },
	{ WIDTH, "layernorm 37 1" },
	{ WIDTH, "rmsnorm 37" },
	{ WIDTH, "rmsnorm 37 1" },
	{ WIDTH, "fork, layernorm 37, linear 37 37, add" },
	{ WIDTH, "rmsnorm 37 1, linear 37 21" },
	{ WIDTH, "gelu" },
	{ WIDTH, "qgelu" },
	{ WIDTH, "relu" },
	{ WIDTH, "srelu" },
	{ WIDTH, "silu" },
	{ WIDTH, "sigmoid" },
	{ 2 * WIDTH, "gelu 1" },
	{ 2 * WIDTH, "qgelu 1" },
	{ 2 * WIDTH, "relu 1" },
	{ 2 * WIDTH, "srelu 1" },
	{ 2 * WIDTH, "silu 1" },
	{ 2 * WIDTH, "sigmoid 1" },
	{ 21, "linear 21 37, bias 37, gelu, linear 37 21" },
	{ 21, "linear 21 22, silu 1, linear 11 21" },
	{ 48, "rope 4 2 6" },
	{ 45, "attention 3 3 5" },
	{ 64, "attention 4 2 8" },
	{ 45, "attention 3 3 5 30" },
	{ 64, "attention 4 2 8 30" },
	{ 32, "linear 32 64, rope 4 2 8, attention 4 2 8 20, linear 32 32" },
	{ 32, "fork, linear 32 32, attend 4 2 8 20, linear 32 32" },
	{ 64, "biased 4 2 8 30" },
	{ WIDTH, "dropout 40, silu" },
	{ WIDTH, "fork, linear 37 37, bias 37, dropout 40, add" },
	{ WIDTH, "dropout 10, linear 37 21, dropout 60" },
	{ WIDTH, "fork, add, gelu" },
	{ WIDTH, "rmsnorm 37, add_other 37, silu" },
	{ VOCAB, "cross_entropy 29" },
	{ WIDTH, "cross_entropy 29" }, /* classes beyond the 29th are padding */
	{ WIDTH, "linear 37 29, cross_entropy 29" },
	{ 0, "embedding 32 16, fork, layernorm 32, linear 32 32, bias 32, dropout 20, add, "
	     "rmsnorm 32, linear 32 29 1, cross_entropy 29" },
};

enum what {
	EMBEDDING,
	LINEAR,
	TIED,
	BIAS,
	LAYERNORM,
	RMSNORM,
	ROPE,
	ATTENTION,
	ATTEND, /* to the value of the fork, with slopes, and to later tokens, too */
	BIASED, /* attention, with a bias that the caller feeds */
	DROPOUT,
	FORK,
	ADD,
	ADD_OTHER, /* of a channel that the caller feeds */
	CROSS_ENTROPY,
	ACT /* and those after it, in the order of enum te_act */
};

static const char *const words[] = {
	"embedding", "linear",	  "tied",   "bias",    "layernorm", "rmsnorm", "rope",
	"attention", "attend",	  "biased", "dropout", "fork",	    "add",     "add_other",
	"cross_entropy", "gelu",  "qgelu",  "relu",    "srelu",	    "silu",    "sigmoid",
};

struct item {
	int what;
	int a[4];
};

/* the item that text begins with; returns the text after it, or NULL after the last item */
static const char *next_item(const char *text, struct item *ret)
{
	char word[16] = "";

	*ret = (struct item){ .what = 0 };
	sscanf(text, "%15[a-z_] %d %d %d %d", word, &ret->a[0], &ret->a[1], &ret->a[2], &ret->a[3]);
	while (ret->what < (int)TT_LEN(words) && strcmp(words[ret->what], word))
		ret->what++;
	ck_assert_msg(ret->what < (int)TT_LEN(words), "no op is called %s", word);
	text = strchr(text, ',');
	return text ? text + 2 : NULL;
}

static const struct {
	const char *name;
	int only_linear; /* differs from the row above in casts only */
	enum te_amax_algo algo;
	int margin;
	float epsilon;
	uint32_t flags;
} recipes[] = {
	{ "fp32", 0, TE_AMAX_MAX, 0, 0, 0 },
	{ "bf16", 0, TE_AMAX_MAX, 0, 0, 0 },
	{ "fp8-delayed", 0, TE_AMAX_MAX, 0, 0, 0 },
	{ "fp8-delayed", 1, TE_AMAX_MOST_RECENT, 1, 0, TE_RECIPE_E4M3_ONLY },
	{ "fp8-current", 0, TE_AMAX_MAX, 0, 0, 0 },
	{ "fp8-current", 1, TE_AMAX_MAX, 0, 0.5f, TE_RECIPE_POW2 },
	{ "fp8-block", 0, TE_AMAX_MAX, 0, 0, 0 },
	{ "fp8-block", 1, TE_AMAX_MAX, 0, 0.5f, TE_RECIPE_E5M2_GRADS | TE_RECIPE_FP32_SCALES },
	{ "mxfp8", 1, TE_AMAX_MAX, 0, 0, TE_RECIPE_E5M2_GRADS },
	{ "nvfp4", 0, TE_AMAX_MAX, 0, 0, 0 },
};

static const struct variant {
	const char *order;
	uint32_t graph, plan; /* flags */
	int adds;	      /* to earlier gradients: they are not set to zero */
	int layers;	      /* a plan for each op that can have one */
} variants[] = {
	{ "1,1,-1,-1", 0, TE_PLAN_TRAIN, 0, 0 },
	{ "1,-1,1,-1", 0, TE_PLAN_TRAIN, 1, 0 },
	{ "1,-1,-1.5,1,-1,-1.5", 0, TE_PLAN_TRAIN | TE_PLAN_DELAY_DW, 0, 0 },
	{ "1,1,-1,-1.5,-1,-1.5", 0, TE_PLAN_TRAIN | TE_PLAN_DELAY_DW, 0, 0 },
	{ "1,1", 0, 0, 0, 0 }, /* inference */
	{ "1,1,-1,-1", 0, TE_PLAN_TRAIN, 0, 1 },
	{ "1,1,-1,-1.5,-1,-1.5", 0, TE_PLAN_TRAIN | TE_PLAN_DELAY_DW, 0, 1 },
};

enum how { PLANS, PASSES, RUN };

static const struct way {
	const char *name;
	enum how how; /* plans without a graph, passes one by one, or te_graph_run */
	uint32_t flags;
} ways[] = {
	{ "plans", PLANS, 0 },
	{ "eager graph", RUN, TE_GRAPH_CHAIN | TE_GRAPH_EAGER },
	{ "graphs of passes", RUN, TE_GRAPH_CHAIN },
	{ "passes one by one", PASSES, TE_GRAPH_REUSE },
	{ "whole graph", RUN, TE_GRAPH_CHAIN | TE_GRAPH_WHOLE },
	{ "whole graph, reused buffers", RUN, TE_GRAPH_CHAIN | TE_GRAPH_WHOLE | TE_GRAPH_REUSE },
};
#define WAYS TT_LEN(ways)

/* ---- a sequence from a list ---- */

/* some GEMM of the list is in FP8 under an FP8 recipe */
static int in_fp8(const struct list *l)
{
	const char *text = l->ops;
	struct item it;
	int any = 0;

	while (text) {
		text = next_item(text, &it);
		any |= (it.what == LINEAR && !it.a[2]) || it.what == TIED;
	}
	return any;
}

static int drops(const struct list *l)
{
	const char *text = l->ops;
	struct item it;
	int any = 0;

	while (text) {
		text = next_item(text, &it);
		any |= (it.what == DROPOUT && it.a[0]) ||
		       (it.what >= ATTENTION && it.what <= BIASED && it.a[3]);
	}
	return any;
}

static struct te_recipe recipe_of(int i)
{
	struct te_recipe r = tt_recipe(recipes[i].name);

	r.history_len = r.kind == TE_RECIPE_DELAYED ? 3 : r.history_len;
	r.algo = recipes[i].algo;
	r.margin = recipes[i].margin;
	r.amax_epsilon = recipes[i].epsilon;
	r.flags = recipes[i].flags;
	return r;
}

/* how extents grow, and the input */
struct shape {
	int64_t unit, batch, seqlen;
};

static struct shape shape_of(const struct list *l, const struct te_recipe *r)
{
	/* recipes with flags have odd extents, for which plans pad FP8 copies */
	const int fp8 = r->kind != TE_RECIPE_NONE && !r->flags && in_fp8(l);

	return (struct shape){ fp8 ? 16 : 1, 3, fp8 ? 16 : 7 };
}

static int64_t grown(const struct shape *s, int n)
{
	return (n + s->unit - 1) / s->unit * s->unit;
}

static struct te_op *make_op(const struct item *it, const struct shape *s, struct te_op *emb,
			     const char *name)
{
	const int *a = it->a;
	const struct te_embedding_attrs ea = TE_ATTRS(embedding, grown(s, VOCAB), grown(s, a[0]),
						      a[1], 0.5f, 0);
	const struct te_linear_attrs la = TE_ATTRS(linear, grown(s, a[0]), grown(s, a[1]), 0.2f,
						   a[2],
					    it->what == TIED ? emb : NULL);
	const struct te_bias_attrs ba = TE_ATTRS(bias, grown(s, a[0]));
	const struct te_norm_attrs na = TE_ATTRS(norm, grown(s, a[0]), 1e-5f, (uint32_t)a[1]);
	const struct te_rope_attrs ra = TE_ATTRS(rope, a[0], a[1], a[2], 1e4f);
	const int attend = it->what == ATTEND;
	const struct te_attention_attrs ta =
		TE_ATTRS(attention, a[0], a[1], a[2], 0, (float)a[3] / 100, .full = attend,
			 .operands = attend ? TE_ATTENTION_Q_KV : TE_ATTENTION_QKV,
			 .alibi = attend, .bias = it->what == BIASED);
	const struct te_dropout_attrs da = TE_ATTRS(dropout, .p = (float)a[0] / 100);
	const struct te_cross_entropy_attrs ca = TE_ATTRS(cross_entropy, a[0], -100, 1.0f / MICRO);
	const struct te_act_attrs aa = TE_ATTRS(act, (enum te_act)(it->what - ACT), a[0]);
	struct te_op *op = NULL;
	int r;

	switch (it->what) {
	case EMBEDDING:
		r = te_op_embedding(&ea, name, &op);
		break;
	case LINEAR:
	case TIED:
		r = te_op_linear(&la, name, &op);
		break;
	case BIAS:
		r = te_op_bias(&ba, name, &op);
		break;
	case LAYERNORM:
		r = te_op_layernorm(&na, name, &op);
		break;
	case RMSNORM:
		r = te_op_rmsnorm(&na, name, &op);
		break;
	case ROPE:
		r = te_op_rope(&ra, name, &op);
		break;
	case ATTENTION:
	case ATTEND:
	case BIASED:
		r = te_op_attention(&ta, name, &op);
		break;
	case DROPOUT:
		r = te_op_dropout(&da, name, &op);
		break;
	case FORK:
		r = te_op_fork(name, &op);
		break;
	case ADD:
	case ADD_OTHER:
		r = te_op_add(name, &op);
		break;
	case CROSS_ENTROPY:
		r = te_op_cross_entropy(&ca, name, &op);
		break;
	default:
		r = te_op_activation(&aa, name, &op);
		break;
	}
	ck_assert_msg(r == 0, "%s: %d: %s", name, r, te_error_detail());
	return op;
}

static void join(struct te_seq *seq, struct te_op *op, const struct item *it, const struct shape *s,
		 enum te_dtype compute)
{
	const int64_t tail = grown(s, it->a[0]), bias[3] = { it->a[0], s->seqlen, s->seqlen };

	if (it->what == FORK)
		DO(te_op_give(op, 0, "forked"));
	if (it->what == ADD || it->what == ATTEND)
		DO(te_op_take(op, 0, "forked"));
	if (it->what == BIASED) {
		DO(te_seq_input_shape(seq, "biases", TE_DTYPE_FP32, 3, bias));
		DO(te_op_take(op, 0, "biases"));
	}
	if (it->what == ADD_OTHER) {
		DO(te_seq_input(seq, "other", compute, 1, &tail));
		DO(te_op_take(op, 0, "other"));
	}
	if (it->what == CROSS_ENTROPY) {
		DO(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
		DO(te_op_take(op, 0, "targets"));
	}
}

static struct te_seq *make_seq(const struct list *l, const struct te_recipe *r)
{
	const struct shape s = shape_of(l, r);
	const char *text = l->ops;
	struct te_op *emb = NULL;
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; text; i++) {
		struct te_op *op;
		struct item it;
		char name[32];

		text = next_item(text, &it);
		snprintf(name, sizeof(name), "%d.%s", i, words[it.what]);
		op = make_op(&it, &s, emb, name);
		if (it.what == EMBEDDING)
			emb = op;
		join(seq, op, &it, &s, r->compute);
		tt_append(seq, op);
	}
	DO(te_seq_init(seq, 5));
	return seq;
}

#define LAYERS 8

/* the ops that layers begin with, and how many layers there are */
static int layers_of(const struct list *l, const struct variant *v, int ret_first[LAYERS])
{
	const char *text = l->ops;
	int n = 0, open = 0;

	for (int i = 0; text; i++) {
		struct item it;

		text = next_item(text, &it);
		/* whose dx is dy itself has no plan of its own; nor has half of a branch */
		if (!i || (v->layers && !open && it.what != BIAS && it.what != ADD_OTHER))
			ret_first[n++] = i;
		open += (it.what == FORK) - (it.what == ADD || it.what == ATTEND);
	}
	return n;
}

/* of all layers; returns how many there are */
static int make_plans(struct te_seq *seq, const struct list *l, const struct te_recipe *r,
		      const struct variant *v, uint32_t flags, struct te_plan **ret_plan)
{
	const struct shape s = shape_of(l, r);
	int first[LAYERS], n = layers_of(l, v, first);
	struct te_spec x = { TE_DTYPE_INT32, 2, { s.batch, s.seqlen } };

	if (l->width)
		x = (struct te_spec){ r->compute, 3, { s.batch, s.seqlen, grown(&s, l->width) } };
	for (int k = 0; k < n; k++) {
		struct te_plan_opts o = TE_PLAN_OPTS_INIT;

		o.recipe = r;
		o.flags = v->plan | flags;
		if ((k || l->width) && (v->plan & TE_PLAN_TRAIN))
			o.flags |= TE_PLAN_INPUT_GRAD;
		o.x = x;
		if (k)
			o.start_at = te_op_name(te_seq_op(seq, first[k]));
		if (k + 1 < n)
			o.stop_before = te_op_name(te_seq_op(seq, first[k + 1]));
		DO(te_plan_create(seq, &o, &ret_plan[k]));
		DO(te_plan_spec(ret_plan[k], "out", &x));
	}
	return n;
}

/* ---- inputs: the same for every way ---- */

#define INPUTS 3 /* x, a channel, the gradient of the output */

struct feed {
	struct te_spec spec[INPUTS];
	const char *name[INPUTS]; /* NULL: there is none; of the gradient: "out" */
	int layer[INPUTS];	  /* that takes it */
	void *v[MICRO][INPUTS];
	size_t nbytes[INPUTS];
};

static void feed_fill(struct feed *f)
{
	for (int i = 0; i < MICRO; i++)
		for (int k = 0; k < INPUTS; k++) {
			const size_t n = f->nbytes[k];

			for (size_t j = 0; f->spec[k].dtype == TE_DTYPE_INT32 && j < n / 4; j++)
				((int32_t *)f->v[i][k])[j] =
					tt_rand_int(0, 7) ? (int32_t)tt_rand_int(0, VOCAB - 1) :
					tt_rand_int(0, 1) ? -100 :
							    VOCAB + 100;
			for (size_t j = 0; f->spec[k].dtype == TE_DTYPE_BF16 && j < n / 2; j++)
				((uint16_t *)f->v[i][k])[j] = te_bf16_encode(tt_rand_normal());
			if (n && f->spec[k].dtype == TE_DTYPE_FP32)
				tt_fill_normal(f->v[i][k], n / 4, 1);
		}
}

/* plans tell what they take */
static void feed_create(struct feed *f, struct te_plan *const *plan, int nlayers)
{
	*f = (struct feed){ .name = { "x", NULL, NULL } };
	if (te_plan_spec(plan[0], "x", &f->spec[0]))
		ck_abort_msg("no x");
	for (int k = 0; k < nlayers; k++)
		if (te_plan_input_name(plan[k], 1)) {
			ck_assert_ptr_null(f->name[1]);
			f->name[1] = te_plan_input_name(plan[k], 1);
			DO(te_plan_spec(plan[k], f->name[1], &f->spec[1]));
			f->layer[1] = k;
		}
	f->layer[2] = nlayers - 1;
	if (!te_plan_spec(plan[nlayers - 1], "out_grad", &f->spec[2]))
		f->name[2] = "out";
	for (int k = 0; k < INPUTS; k++) {
		size_t n = te_dtype_nbytes(f->spec[k].dtype);

		for (int d = 0; d < f->spec[k].ndim; d++)
			n *= (size_t)f->spec[k].shape[d];
		f->nbytes[k] = f->name[k] ? n : 0;
		for (int i = 0; i < MICRO; i++)
			f->v[i][k] = malloc(n);
	}
}

static void feed_free(struct feed *f)
{
	for (int i = 0; i < MICRO; i++)
		for (int k = 0; k < INPUTS; k++)
			free(f->v[i][k]);
}

/* ---- one way to run a list ---- */

struct run {
	const struct list *list;
	const struct way *way;
	const struct variant *variant;
	struct te_schedule *order;
	struct te_seq *seq;
	struct te_adamw *opt;
	int nlayers;
	struct te_plan *plan[MICRO][LAYERS];
	struct te_graph *g; /* NULL for plans */
	/* passes one by one: what is given, and what they gave */
	struct te_tensor *given[MICRO][INPUTS], *out[MICRO], *dx[MICRO];
};

static int trains(const struct run *r)
{
	return !!(r->variant->plan & TE_PLAN_TRAIN);
}

static int zero(void *arg, struct te_stream *stream)
{
	const struct run *r = arg;

	return r->variant->adds ? 0 : te_seq_zero_grads(r->seq, stream);
}

static int update(void *arg, struct te_stream *stream)
{
	const struct run *r = arg;

	return trains(r) ? te_adamw_step(r->opt, stream) : 0;
}

static int run_regions(void *arg, te_region_fn fn, void *fn_arg)
{
	return te_adamw_regions(((struct run *)arg)->opt, fn, fn_arg);
}

static struct te_tensor *tensor_of(const struct te_spec *s)
{
	struct te_tensor *t;

	DO(te_tensor_create(ctx, s->dtype, s->ndim, s->shape, NULL, &t));
	DO(te_fill(st, te_tensor_data(t), 0xa5, te_tensor_nbytes(t)));
	return t;
}

static void make_graph(struct run *r, const struct feed *f)
{
	struct te_callable c[MICRO * LAYERS];
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	const int n = r->nlayers;

	for (int i = 0; i < MICRO; i++) {
		struct te_spec s;

		for (int k = 0; k < INPUTS; k++)
			if (f->name[k])
				r->given[i][k] = tensor_of(&f->spec[k]);
		DO(te_plan_spec(r->plan[i][n - 1], "out", &s));
		r->out[i] = tensor_of(&s);
		if (!te_plan_spec(r->plan[i][0], "in_grad", &s))
			r->dx[i] = tensor_of(&s);
		for (int k = 0; k < n; k++) {
			c[i * n + k] = (struct te_callable)TE_CALLABLE_INIT;
			DO(te_callable_from_plan(r->plan[i][k], r->list->ops, &c[i * n + k]));
		}
	}
	o.flags = r->way->flags | r->variant->graph;
	o.nwarmup = 2;
	o.schedule = r->order;
	o.first = zero;
	o.last = update;
	o.regions = run_regions;
	o.arg = r;
	DO(te_graph_create(ctx, MICRO * n, c, &o, &r->g));
}

/* weights: what all ways begin with, gradients too. The first way's plans say what f holds */
static void run_create(struct run *r, const struct list *l, const struct te_recipe *recipe,
		       const struct variant *v, const struct way *w, const float *weights,
		       struct feed *f)
{
	struct te_weight_info info = TE_WEIGHT_INFO_INIT;
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;

	*r = (struct run){ .list = l, .way = w, .variant = v };
	r->seq = make_seq(l, recipe);
	ck_assert_int_le((int)te_tensor_nelems(te_seq_masters(r->seq)), WEIGHTS);
	for (int i = 0; i < te_seq_nweights(r->seq); i++) {
		DO(te_seq_weight(r->seq, i, &info));
		DO(te_tensor_write(info.master, weights + info.offset_nelems,
				   te_tensor_nbytes(info.master)));
		DO(te_tensor_write(info.grad, weights + info.offset_nelems,
				   te_tensor_nbytes(info.grad)));
	}
	DO(te_adamw_create(r->seq, NULL, &r->opt));
	DO(te_adamw_set_lr(r->opt, st, 1e-2f));
	for (int i = 0; i < MICRO; i++)
		r->nlayers = make_plans(r->seq, l, recipe, v,
					w->how == PLANS ? 0 : TE_PLAN_EXTERNAL, r->plan[i]);
	so.nlayers = &r->nlayers;
	DO(te_schedule_parse(v->order, &so, &r->order));
	if (!f->name[0])
		feed_create(f, r->plan[0], r->nlayers);
	if (w->how != PLANS)
		make_graph(r, f);
}

static void run_destroy(struct run *r)
{
	te_graph_unref(r->g);
	for (int i = 0; i < MICRO; i++) {
		for (int k = 0; k < r->nlayers; k++)
			te_plan_unref(r->plan[i][k]);
		te_tensor_unref(r->out[i]);
		te_tensor_unref(r->dx[i]);
		for (int k = 0; k < INPUTS; k++)
			te_tensor_unref(r->given[i][k]);
	}
	te_adamw_unref(r->opt);
	te_seq_unref(r->seq);
	te_schedule_unref(r->order);
}

static struct te_tensor *input(const struct run *r, int micro, int k, const struct feed *f)
{
	const int grad = k == INPUTS - 1, callable = micro * r->nlayers + f->layer[k];
	struct te_plan *p = r->plan[micro][f->layer[k]];

	if (r->way->how == PASSES)
		return r->given[micro][k];
	if (r->way->how == PLANS)
		return grad ? te_plan_output_grad(p) : te_plan_input(p, f->name[k]);
	return grad ? te_graph_grad(r->g, callable, "out") :
		      te_graph_tensor(r->g, callable, f->name[k]);
}

/* the values stay where they are until the step has ended */
static void feed_one(struct run *r, int micro, int k, const struct feed *f)
{
	if (f->name[k])
		DO(te_copy(st, te_tensor_data(input(r, micro, k, f)), f->v[micro][k],
			   f->nbytes[k]));
}

static void copy(struct te_tensor *dst, const struct te_tensor *src)
{
	DO(te_copy(st, te_tensor_data(dst), te_tensor_data(src), te_tensor_nbytes(dst)));
}

static void plan_pass(struct run *r, const struct te_sched_step *s, const struct feed *f)
{
	struct te_plan **p = &r->plan[s->micro][s->layer];

	if (s->kind == TE_SCHED_F) {
		if (s->layer)
			copy(te_plan_input(p[0], "x"), te_plan_output(p[-1]));
		DO(te_plan_set_rng(p[0], (uint64_t)s->micro, 0));
		DO(te_plan_forward(p[0], st, 0));
	} else if (s->kind == TE_SCHED_B) {
		/* where it lies, forward may have had something else */
		if (s->layer == r->nlayers - 1)
			feed_one(r, s->micro, INPUTS - 1, f);
		else
			copy(te_plan_output_grad(p[0]), te_plan_input_grad(p[1]));
		DO(te_plan_backward(p[0], st));
	} else {
		DO(te_plan_backward_dw(p[0], st));
	}
}

/* the first argument by position, others by name; results are taken while they last */
static void graph_pass(struct run *r, const struct te_sched_step *s, const struct feed *f)
{
	const int i = s->micro, is_last = s->layer == r->nlayers - 1;
	struct te_named named = { f->name[1], r->given[i][1] }, kept = { "x", r->dx[i] };
	struct te_replay rep = TE_REPLAY_INIT;
	struct te_tensor *pos;

	rep.pos = &pos;
	if (s->kind == TE_SCHED_W) {
		DO(te_graph_backward_dw(r->g, s->callable, st, NULL));
	} else if (s->kind == TE_SCHED_B) {
		pos = is_last ? r->given[i][INPUTS - 1] : te_graph_grad(r->g, s->callable + 1, "x");
		rep.npos = pos != NULL;
		rep.nkept = !s->layer && r->dx[i];
		rep.kept = &kept;
		DO(te_graph_backward(r->g, s->callable, st, &rep));
	} else {
		pos = s->layer ? te_graph_tensor(r->g, s->callable - 1, "out") : r->given[i][0];
		rep.npos = 1;
		rep.nnamed = f->name[1] && f->layer[1] == s->layer;
		rep.named = &named;
		DO(te_graph_forward(r->g, s->callable, st, &rep));
		if (is_last)
			copy(r->out[i], te_graph_tensor(r->g, s->callable, "out"));
	}
}

static void run_step(struct run *r, const struct feed *f)
{
	struct te_sched_step s;

	for (int i = 0; i < MICRO; i++)
		for (int k = 0; k < INPUTS; k++)
			feed_one(r, i, k, f);
	if (r->way->how == RUN) {
		DO(te_graph_run(r->g, st));
	} else {
		DO(zero(r, st));
		for (int i = 0; !te_schedule_step(r->order, i, &s); i++)
			if (r->way->how == PLANS)
				plan_pass(r, &s, f);
			else
				graph_pass(r, &s, f);
		DO(update(r, st));
		if (r->way->how == PLANS && trains(r) && drops(r->list)) {
			uint64_t seed, offset;

			DO(te_seq_rng_get(r->seq, &seed, &offset));
			DO(te_seq_rng_set(r->seq, seed, offset + MICRO));
		}
	}
	DO(te_stream_sync(st));
}

/* ---- all that a step leaves, as bytes ---- */

#define PIECES (2 * MICRO + 6)

struct state {
	struct piece {
		char name[32];
		void *v;
		size_t nbytes;
	} piece[PIECES];
	int n;
};

static void *piece(struct state *s, const char *name, size_t nbytes)
{
	struct piece *p = &s->piece[s->n++];

	ck_assert_int_le(s->n, PIECES);
	snprintf(p->name, sizeof(p->name), "%s", name);
	p->nbytes = nbytes;
	p->v = calloc(1, nbytes);
	return p->v;
}

static void take(struct state *s, const char *name, struct te_tensor *t)
{
	DO(te_copy(st, piece(s, name, te_tensor_nbytes(t)), te_tensor_data(t),
		   te_tensor_nbytes(t)));
}

static void state_take(struct state *s, const struct run *r)
{
	struct te_quant *q = te_seq_quant(r->seq);
	char name[32];
	uint64_t *rng;

	s->n = 0;
	for (int i = 0; i < MICRO; i++) {
		struct te_tensor *out = r->out[i], *dx = r->dx[i];

		if (r->way->how == RUN) {
			out = te_graph_tensor(r->g, (i + 1) * r->nlayers - 1, "out");
			dx = te_graph_grad(r->g, i * r->nlayers, "x");
		} else if (r->way->how == PLANS) {
			out = te_plan_output(r->plan[i][r->nlayers - 1]);
			dx = te_plan_input_grad(r->plan[i][0]);
		}
		snprintf(name, sizeof(name), "output %d", i);
		take(s, name, out);
		snprintf(name, sizeof(name), "input gradient %d", i);
		if (dx)
			take(s, name, dx);
	}
	take(s, "gradients", te_seq_grads(r->seq));
	take(s, "weights", te_seq_masters(r->seq));
	take(s, "first moments", te_adamw_m(r->opt));
	take(s, "second moments", te_adamw_v(r->opt));
	rng = piece(s, "random state", 2 * sizeof(*rng));
	DO(te_seq_rng_get(r->seq, &rng[0], &rng[1]));
	if (q)
		DO(te_quant_save(q, piece(s, "scales", te_quant_nbytes(q)), te_quant_nbytes(q)));
	DO(te_stream_sync(st));
}

static void state_free(struct state *s)
{
	while (s->n)
		free(s->piece[--s->n].v);
}

/* the first piece that is not the same, or NULL */
static const char *differs(const struct state *a, const struct state *b)
{
	ck_assert_int_eq(a->n, b->n);
	for (int i = 0; i < a->n; i++) {
		ck_assert_str_eq(a->piece[i].name, b->piece[i].name);
		ck_assert_uint_eq(a->piece[i].nbytes, b->piece[i].nbytes);
		if (memcmp(a->piece[i].v, b->piece[i].v, a->piece[i].nbytes))
			return a->piece[i].name;
	}
	return NULL;
}

static const struct piece *find(const struct state *s, const char *name)
{
	for (int i = 0; i < s->n; i++)
		if (!strcmp(s->piece[i].name, name))
			return &s->piece[i];
	return NULL;
}

/* whether a step must change the piece */
static int moves(const struct run *r, const char *name)
{
	const struct te_quant *q = te_seq_quant(r->seq);

	if (!trains(r))
		return !!strstr(name, "output");
	if (!strcmp(name, "random state"))
		return drops(r->list);
	/* those of the other recipe may come out the same */
	if (!strcmp(name, "scales"))
		return in_fp8(r->list) && te_quant_recipe(q)->kind == TE_RECIPE_DELAYED;
	return strstr(name, "put") || te_seq_nweights(r->seq);
}

/* a loss, one FP32 number, which two steps may have in common by chance (seen once on a GPU) */
static int is_loss(const struct piece *p)
{
	return strstr(p->name, "output") && p->nbytes == sizeof(float);
}

/* steps have something to compare: nothing is left out, stuck or infinite */
static void means_something(const struct state *now, const struct state *before,
			    const struct run *r)
{
	const struct piece *grads = find(now, "gradients");
	int nsame = 0;
	size_t odd = 0;

	for (int i = 0; i < now->n && before->n; i++) {
		const struct piece *p = &now->piece[i];
		const int same = moves(r, p->name) &&
				 !memcmp(p->v, find(before, p->name)->v, p->nbytes);

		nsame += same;
		ck_assert_msg(!same || (is_loss(p) && nsame == 1), "%s: %s as in the step before",
			      r->list->ops, p->name);
	}
	for (size_t k = 0; k < grads->nbytes / sizeof(float); k++)
		odd += !isfinite(((float *)grads->v)[k]);
	ck_assert_msg(!odd, "%s: gradients are not finite", r->list->ops);
	ck_assert_msg(memcmp(find(now, "output 0")->v, find(now, "output 1")->v,
			     find(now, "output 0")->nbytes),
		      "%s: both micro-batches have the same output", r->list->ops);
}

/* so that neither zeros nor ones hide what a kernel does */
static float *random_weights(void)
{
	float *v = malloc(WEIGHTS * sizeof(*v));

	tt_fill_normal(v, WEIGHTS, 0.3f);
	return v;
}

static void sweep(const struct list *l, int recipe, const struct variant *v)
{
	const struct te_recipe rec = recipe_of(recipe);
	struct state want = { .n = 0 }, have = { .n = 0 }, before = { .n = 0 };
	float *weights = random_weights();
	struct run run[WAYS];
	struct feed f = { .name = { NULL } };

	for (size_t w = 0; w < WAYS; w++)
		run_create(&run[w], l, &rec, v, &ways[w], weights, &f);
	for (int step = 0; step < STEPS; step++) {
		feed_fill(&f);
		for (size_t w = 0; w < WAYS; w++) {
			const char *what;

			run_step(&run[w], &f);
			state_take(w ? &have : &want, &run[w]);
			if (!w)
				continue;
			what = differs(&want, &have);
			ck_assert_msg(!what,
				      "%s, %s, order %s, step %d: %s of %s are others than "
				      "those of %s",
				      l->ops, recipes[recipe].name, v->order, step, what,
				      ways[w].name, ways[0].name);
			state_free(&have);
		}
		means_something(&want, &before, &run[0]);
		state_free(&before);
		before = want;
		want.n = 0;
	}
	state_free(&before);
	for (size_t w = 0; w < WAYS; w++)
		run_destroy(&run[w]);
	feed_free(&f);
	free(weights);
}

/* whether it could show what no other sweep of the list does */
static int worth(const struct list *l, int recipe, int variant)
{
	int first[LAYERS];

	if (variants[variant].layers && layers_of(l, &variants[variant], first) == 1)
		return 0;
	/* nothing is cast: an FP8 recipe is that of its compute dtype */
	return in_fp8(l) || recipe < 2 || (!recipes[recipe].only_linear && !variant);
}

CTX_CASE(bits, "graph");

/* with sanitizers, of each list one pair of recipe and variant in 8, of all lists each pair */
TEST_EACH(bits, every_way_gives_the_same_bits, TT_LEN(lists), .parts = 3)
{
	const int one_in = 8 / TT_FEWER(8);

	for (int r = 0; r < (int)TT_LEN(recipes); r++)
		for (int v = 0; v < (int)TT_LEN(variants); v++)
			if ((r + v + _i) % one_in == 0 && worth(&lists[_i], r, v))
				sweep(&lists[_i], r, &variants[v]);
}

/* ---- whether it can fail ---- */

static const struct list watched = { WIDTH, "fork, linear 37 37, bias 37, dropout 40, add" };

/* a way that goes wrong by one number is seen, whichever it is */
TEST_EACH(bits, a_difference_is_seen, 5 * (WAYS - 1))
{
	static const char *const seen[] = { "output 0", "output 0", "output 1", "input gradient 0",
					    "weights" };
	const struct te_recipe rec = recipe_of(1);
	const uint32_t poison = 0x40490fdb;
	struct state state[2] = { { .n = 0 }, { .n = 0 } };
	float *weights = random_weights();
	struct run run[2];
	struct feed f = { .name = { NULL } };

	run_create(&run[0], &watched, &rec, &variants[0], &ways[0], weights, &f);
	run_create(&run[1], &watched, &rec, &variants[0], &ways[1 + _i / TT_LEN(seen)], weights,
		   &f);
	feed_fill(&f);
	run_step(&run[0], &f);
	switch (_i % TT_LEN(seen)) {
	case 0: /* a draw that warm-up has kept */
		DO(te_seq_rng_set(run[1].seq, 5, 1));
		break;
	case 1:
		DO(te_copy(st, te_tensor_data(te_seq_masters(run[1].seq)), &poison, 4));
		break;
	case 2: /* 40 instead of a normal number: no sum rounds the difference away */
		((uint16_t *)f.v[1][0])[0] = te_bf16_encode(40);
		break;
	case 3:
		((uint16_t *)f.v[0][INPUTS - 1])[0] = te_bf16_encode(40);
		break;
	case 4:
		DO(te_adamw_set_lr(run[1].opt, st, 2e-2f));
		break;
	}
	run_step(&run[1], &f);
	for (int i = 0; i < 2; i++)
		state_take(&state[i], &run[i]);
	ck_assert_ptr_nonnull(differs(&state[0], &state[1]));
	ck_assert_str_eq(differs(&state[0], &state[1]), seen[_i % TT_LEN(seen)]);
	for (int i = 0; i < 2; i++) {
		state_free(&state[i]);
		run_destroy(&run[i]);
	}
	feed_free(&f);
	free(weights);
}

/* fed the same again, each micro-batch of each step drops others */
TEST_EACH(bits, every_replay_draws_anew, 2 * WAYS)
{
	static const struct list list[] = { { WIDTH, "dropout 40" }, { 64, "attention 4 2 8 30" } };
	const struct list *l = &list[_i / WAYS];
	const struct te_recipe rec = recipe_of(0);
	float *weights = random_weights();
	struct state state[2] = { { .n = 0 }, { .n = 0 } };
	const struct piece *out[2 * MICRO];
	struct run plans, run;
	struct feed f = { .name = { NULL } };

	run_create(&plans, l, &rec, &variants[1], &ways[0], weights, &f);
	feed_fill(&f);
	for (int k = 0; k < INPUTS; k++)
		if (f.name[k])
			memcpy(f.v[1][k], f.v[0][k], f.nbytes[k]);
	run_create(&run, l, &rec, &variants[1], &ways[_i % WAYS], weights, &f);
	for (int step = 0; step < 2; step++) {
		run_step(&run, &f);
		state_take(&state[step], &run);
		out[2 * step] = find(&state[step], "output 0");
		out[2 * step + 1] = find(&state[step], "output 1");
	}
	for (int i = 0; i < 2 * MICRO; i++)
		for (int j = 0; j < i; j++)
			ck_assert_msg(memcmp(out[i]->v, out[j]->v, out[i]->nbytes),
				      "%s: passes %d and %d drop the same", l->ops, j, i);
	state_free(&state[0]);
	state_free(&state[1]);
	run_destroy(&plans);
	run_destroy(&run);
	feed_free(&f);
	free(weights);
}

TT_PAIR("graph/equivalence", TT_ONE_PROCESS)
