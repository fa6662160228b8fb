/* model.c - a family's model as a sequence of ops. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/comm_op.h>
#include <te/errno.h>
#include <te/plan.h>

#include "lora.h"
#include "model.h"
#include "say.h"
#include "shard.h"

/* ops are appended until the first failure, whose code is in r */
struct builder {
	struct te_seq *seq;
	const struct model *m;
	struct te_comm *comm; /* ranks that divide the model, or NULL */
	enum model_divides by;
	int ndrops; /* ops with dropout so far: a divided model drops what the whole one does */
	int skips;  /* 1: the next ops are in another stage */
	int r;
	char name[96];
	char adapted[48]; /* the projection that gets an adapter, or "" */
	int64_t in, out; /* its columns and rows */
};

static const char *name_of(struct builder *b, const char *fmt, ...) TE_PRINTF(2, 3);
static const char *name_of(struct builder *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(b->name, sizeof(b->name), fmt, ap);
	va_end(ap);
	return b->name;
}

/* consumes op; returns it, borrowed from the sequence, or NULL */
static struct te_op *append(struct builder *b, int r, struct te_op *op)
{
	if (r < 0) {
		b->r = r;
		return NULL;
	}
	b->r = te_seq_append(b->seq, op);
	te_op_unref(op);
	return b->r < 0 ? NULL : op;
}

/* runs an op constructor unless something failed before, or the op is skipped */
#define APPEND(b, ctor, ...)                                       \
	({                                                         \
		const int none_ = (b)->r < 0 || (b)->skips;        \
		struct te_op *op_ = NULL;                          \
		int r_ = none_ ? 0 : ctor(__VA_ARGS__, &op_);      \
		none_ ? NULL : append((b), r_, op_);               \
	})

static void linear(struct builder *b, const struct config *c, int64_t in, int64_t out, double std,
		   const char *name)
{
	struct te_linear_attrs a = TE_ATTRS(linear, .in = in, .out = out, .init_std = (float)std,
		.recipe = config_recipe(c, name));

	APPEND(b, te_op_linear, &a, name);
}

static void bias(struct builder *b, int64_t width, const char *name)
{
	struct te_bias_attrs a = TE_ATTRS(bias, .width = width);

	APPEND(b, te_op_bias, &a, name);
}

/* extents of a value [B,T,width] */
#define SEQUENCES 0
#define TOKENS 1

static int32_t divided_axis(const struct builder *b)
{
	return b->by == DIVIDE_SEQUENCES ? SEQUENCES : TOKENS;
}

/* this rank among those that divide the tokens of attention's input */
static int32_t context_rank(const struct model *m)
{
	return m->context ? te_comm_rank(m->context) : 0;
}

static void dropout(struct builder *b, double p, const char *name)
{
	struct te_dropout_attrs a = TE_ATTRS(dropout, .p = (float)p,
		.tag = ++b->ndrops,
		.axis = divided_axis(b),
		.nparts = b->by ? b->m->nshards : b->m->ncontext,
		.part = b->by ? b->m->shard : context_rank(b->m));

	if (p > 0)
		APPEND(b, te_op_dropout, &a, name);
}

static void norm(struct builder *b, const struct config *c, const char *name)
{
	struct te_norm_attrs a = TE_ATTRS(norm, .width = c->width,
		.eps = (float)c->eps,
		.flags = c->zero_centered ? TE_NORM_ZERO_CENTERED : 0);

	if (c->layernorm)
		APPEND(b, te_op_layernorm, &a, name);
	else
		APPEND(b, te_op_rmsnorm, &a, name);
}

static void qk_norm(struct builder *b, const struct config *c, const char *name)
{
	struct te_qk_norm_attrs a = TE_ATTRS(qk_norm, .nheads = (int32_t)c->heads,
		.nkv = (int32_t)c->kv_heads,
		.head_dim = (int32_t)c->head_dim,
		.whole = c->qk_norm == QK_NORM_WHOLE,
		.eps = (float)c->eps,
		.flags = c->zero_centered ? TE_NORM_ZERO_CENTERED : 0);

	if (c->qk_norm != QK_NORM_NONE)
		APPEND(b, te_op_qk_norm, &a, name);
}

static void fork_to(struct builder *b, const char *name)
{
	struct te_op *op = APPEND(b, te_op_fork, name);

	if (op)
		b->r = te_op_give(op, 0, name);
}

/* make the value of channel `from` the main value, and give the former main value to `to` */
static void swap(struct builder *b, const char *name, const char *from, const char *to)
{
	struct te_op *op = APPEND(b, te_op_swap, name);

	if (op)
		b->r = te_op_take(op, 0, from);
	if (op && b->r >= 0)
		b->r = te_op_give(op, 0, to);
}

static void add_from(struct builder *b, const char *name, const char *channel)
{
	struct te_op *op = APPEND(b, te_op_add, name);

	if (op)
		b->r = te_op_take(op, 0, channel);
}

/* before weights that are divided by rows, of which each gives a part of the value that follows */
static void divide(struct builder *b, const char *name)
{
	struct te_comm_op_opts o = TE_COMM_OP_OPTS_INIT;

	o.axis = divided_axis(b);
	if (b->comm && b->by)
		APPEND(b, te_comm_op_all_gather, b->comm, &o, name);
	else if (b->comm)
		APPEND(b, te_comm_op_copy, b->comm, NULL, name);
}

/* after weights that are divided by columns, each of which gives a summand of the value */
static void sum(struct builder *b, const char *name)
{
	struct te_comm_op_opts o = TE_COMM_OP_OPTS_INIT;

	o.axis = divided_axis(b);
	if (b->comm && b->by)
		APPEND(b, te_comm_op_reduce_scatter, b->comm, &o, name);
	else if (b->comm)
		APPEND(b, te_comm_op_allreduce, b->comm, NULL, name);
}

/* sines and cosines of queries and of keys have the factor of the rotations; 0: none has one */
static double attention_scale(const struct config *c, int layer)
{
	const double given = c->learned ? 1 : config_rotary(c, layer)->attention;
	const double f = given > 0 ? given : 1;
	const double n = c->query_scalar > 0 ? c->query_scalar : (double)c->head_dim;

	return f == 1 && n == (double)c->head_dim ? 0 : f * f / sqrt(n);
}

static void take_documents(struct builder *b, const struct config *c, struct te_op *op)
{
	if (op && c->documents)
		b->r = te_op_take(op, 0, MODEL_DOCUMENTS);
}

static void attention(struct builder *b, const struct config *c, int i, const char *name)
{
	const int64_t window = config_window(c, i);
	struct te_attention_attrs a = TE_ATTRS(attention, .nheads = (int32_t)c->heads,
		.nkv = (int32_t)c->kv_heads,
		.head_dim = (int32_t)c->head_dim,
		.scale = (float)attention_scale(c, i),
		.dropout = (float)c->drop_attn,
		.tag = ++b->ndrops,
		.first_head = (b->m->shard + context_rank(b->m)) * (int32_t)c->heads,
		.all_heads = b->m->nshards * b->m->ncontext * (int32_t)c->heads,
		.window = (int32_t)(window < INT32_MAX ? window : 0),
		.softcap = (float)c->score_cap,
		.documents = c->documents);

	take_documents(b, c, APPEND(b, te_op_attention, &a, name));
}

/* ranks have all tokens of some heads after to_heads, some tokens of all heads after to_tokens */
static void exchange(struct builder *b, const struct config *c, int to_heads, const char *name)
{
	struct te_comm_heads_attrs a = TE_COMM_HEADS_ATTRS_INIT;

	a.nheads = (int32_t)c->heads;
	a.nkv = (int32_t)c->kv_heads;
	a.head_dim = (int32_t)c->head_dim;
	if (b->m->context && to_heads)
		APPEND(b, te_comm_op_to_heads, b->m->context, &a, name);
	else if (b->m->context)
		APPEND(b, te_comm_op_to_tokens, b->m->context, &a, name);
}

static void rope(struct builder *b, const struct config *c, int i, const char *name)
{
	const struct rotary *rot = config_rotary(c, i);
	float freq[ROTARY_MOST_PAIRS];
	struct te_rope_attrs a = TE_ATTRS(rope, .nheads = (int32_t)c->heads,
		.nkv = (int32_t)c->kv_heads,
		.head_dim = (int32_t)c->head_dim,
		.theta = (float)rot->theta,
		.documents = c->documents);

	/* the others are computed by the library, as runs before this one did */
	if (rot->kind == ROTARY_DYNAMIC) {
		a.dynamic_positions = (int64_t)rot->original;
		a.dynamic_factor = (float)rot->factor;
	}
	if ((rot->kind != ROTARY_DEFAULT && rot->kind != ROTARY_DYNAMIC) || rot->part != 1) {
		rotary_frequencies(rot, c->head_dim, freq);
		a.inv_freq = freq;
	}
	take_documents(b, c, APPEND(b, te_op_rope, &a, name));
}

static void scale(struct builder *b, double factor, const char *name)
{
	struct te_scale_attrs a = TE_ATTRS(scale, .factor = (float)factor);

	APPEND(b, te_op_scale, &a, name);
}

/* before the projection "h.i.what" of in to out columns */
static void adapter_begin(struct builder *b, const struct config *c, int i, const char *what,
			  int64_t in, int64_t out)
{
	snprintf(b->adapted, sizeof(b->adapted), "h.%d.%s", i, what);
	b->in = in;
	b->out = out;
	if (lora_adapts(&c->lora, b->adapted))
		fork_to(b, name_of(b, "%s.lora", b->adapted));
	else
		*b->adapted = '\0';
}

/*
 * After the projection and what the library fuses with it, which remain neighbours: a bias, and a
 * residual. Until B changes, values have the bits of the model without adapters. A and B are small
 * and have no FP8 copies.
 */
static void adapter_end(struct builder *b, const struct config *c)
{
	const struct lora *l = &c->lora;
	const struct te_linear_attrs to_a = TE_ATTRS(linear, .in = b->in, .out = l->rank,
		.init_std = 0,
		.keep_hp = 1);
	const struct te_linear_attrs to_b = TE_ATTRS(linear, .in = l->rank, .out = b->out,
		.init_std = 0,
		.keep_hp = 1);
	char from[64], base[64];

	if (!*b->adapted)
		return;
	snprintf(from, sizeof(from), "%s.lora", b->adapted);
	snprintf(base, sizeof(base), "%s.base", b->adapted);
	swap(b, name_of(b, "%s.lora_swap", b->adapted), from, base);
	if (l->dropout > 0)
		dropout(b, l->dropout, name_of(b, "%s.lora_drop", b->adapted));
	APPEND(b, te_op_linear, &to_a, name_of(b, "%s.lora_A", b->adapted));
	APPEND(b, te_op_linear, &to_b, name_of(b, "%s.lora_B", b->adapted));
	scale(b, l->alpha / (double)l->rank, name_of(b, "%s.lora_scale", b->adapted));
	add_from(b, name_of(b, "%s.lora_add", b->adapted), base);
	*b->adapted = '\0';
}

/* does an adapter at the end of a branch follow the residual, because nothing is before this? */
static int follows_residual(const struct config *c)
{
	return c->placement == NORMS_BEFORE && !(c->drop_resid > 0);
}

/* c tanh(x / c) */
static void cap_logits(struct builder *b, double cap)
{
	struct te_act_attrs a = TE_ATTRS(act, .act = TE_ACT_TANH);

	scale(b, 1 / cap, "logits_by_cap");
	APPEND(b, te_op_activation, &a, "tanh");
	scale(b, cap, "capped");
}

static void activation(struct builder *b, const struct config *c, const char *name)
{
	struct te_act_attrs a = TE_ATTRS(act, .act = c->act, .gated = c->gated);

	APPEND(b, te_op_activation, &a, name);
}

/*
 * One layer; c has the heads and the inner width of this rank. Residual branches end in a
 * projection whose initial standard deviation is divided by the square root of their number, so
 * that the variance of the sum does not grow with depth (GPT-2 paper, section 2.3).
 */
static void attention_branch(struct builder *b, const struct config *c, int i, double proj_std)
{
	const int64_t qkv = (c->heads + 2 * c->kv_heads) * c->head_dim;
	const int64_t kv = c->kv_heads / b->m->ncontext;
	struct config own = *c;

	own.heads /= b->m->ncontext;
	own.kv_heads = kv ? kv : 1;
	divide(b, name_of(b, "h.%d.copy1", i));
	adapter_begin(b, c, i, "qkv", c->width, qkv);
	linear(b, c, c->width, qkv, c->init_std, name_of(b, "h.%d.qkv", i));
	if (c->qkv_bias)
		bias(b, qkv, name_of(b, "h.%d.qkv_b", i));
	adapter_end(b, c);
	qk_norm(b, c, name_of(b, "h.%d.qk_norm", i));
	exchange(b, c, 1, name_of(b, "h.%d.to_heads", i));
	if (!c->learned && config_turns(c, i))
		rope(b, &own, i, name_of(b, "h.%d.rope", i));
	attention(b, &own, i, name_of(b, "h.%d.attn", i));
	exchange(b, c, 0, name_of(b, "h.%d.to_tokens", i));
	adapter_begin(b, c, i, "proj", c->heads * c->head_dim, c->width);
	linear(b, c, c->heads * c->head_dim, c->width, proj_std, name_of(b, "h.%d.proj", i));
	sum(b, name_of(b, "h.%d.sum1", i));
	if (c->proj_bias)
		bias(b, c->width, name_of(b, "h.%d.proj_b", i));
	if (!follows_residual(c))
		adapter_end(b, c);
	dropout(b, c->drop_resid, name_of(b, "h.%d.drop1", i));
}

static void mlp_branch(struct builder *b, const struct config *c, int i, double proj_std)
{
	const int64_t up = c->gated ? 2 * c->inner : c->inner;

	divide(b, name_of(b, "h.%d.copy2", i));
	adapter_begin(b, c, i, "up", c->width, up);
	linear(b, c, c->width, up, c->init_std, name_of(b, "h.%d.up", i));
	if (c->mlp_bias)
		bias(b, up, name_of(b, "h.%d.up_b", i));
	adapter_end(b, c);
	activation(b, c, name_of(b, "h.%d.act", i));
	adapter_begin(b, c, i, "down", c->inner, c->width);
	linear(b, c, c->inner, c->width, proj_std, name_of(b, "h.%d.down", i));
	sum(b, name_of(b, "h.%d.sum2", i));
	if (c->mlp_bias)
		bias(b, c->width, name_of(b, "h.%d.down_b", i));
	if (!follows_residual(c))
		adapter_end(b, c);
	dropout(b, c->drop_resid, name_of(b, "h.%d.drop2", i));
}

/* the norm of what a branch adds */
static void norm_after(struct builder *b, const struct config *c, int i, int branch)
{
	if (c->placement != NORMS_BEFORE)
		norm(b, c, name_of(b, "h.%d.%s%d", i,
				   c->placement == NORMS_AFTER ? "norm" : "post", branch));
}

static void layer(struct builder *b, const struct config *c, int i)
{
	const double proj_std = c->init_std / sqrt(2.0 * (double)c->layers);
	char r1[32], r2[32], shared[32];

	snprintf(r1, sizeof(r1), "h.%d.res1", i);
	snprintf(r2, sizeof(r2), "h.%d.res2", i);
	snprintf(shared, sizeof(shared), "h.%d.normed", i);

	fork_to(b, r1);
	if (c->placement != NORMS_AFTER)
		norm(b, c, name_of(b, "h.%d.norm1", i));
	if (c->residual == RESIDUAL_SHARED)
		fork_to(b, shared);
	attention_branch(b, c, i, proj_std);
	norm_after(b, c, i, 1);
	add_from(b, name_of(b, "h.%d.add1", i), r1);
	adapter_end(b, c); /* if it is not there yet */

	if (c->residual == RESIDUAL_SERIAL)
		fork_to(b, r2);
	else
		swap(b, name_of(b, "h.%d.swap", i), c->residual == RESIDUAL_SHARED ? shared : r1,
		     r2);
	if (c->residual != RESIDUAL_SHARED && c->placement != NORMS_AFTER)
		norm(b, c, name_of(b, "h.%d.norm2", i));
	mlp_branch(b, c, i, proj_std);
	norm_after(b, c, i, 2);
	add_from(b, name_of(b, "h.%d.add2", i), r2);
	adapter_end(b, c); /* if it is not there yet */
}

static void build(struct builder *b, const struct model *m)
{
	const struct config *c = &m->cfg;
	struct config part = *c;
	struct te_embedding_attrs ea = TE_ATTRS(embedding, .vocab = m->vocab_padded,
		.width = c->width,
		.max_pos = c->learned && !m->shard ? c->max_pos : 0,
		.init_std = (float)c->init_std,
		.first = m->shard * m->vocab_padded,
		.ntokens = m->nshards * m->vocab_padded);
	struct te_linear_attrs ha = TE_ATTRS(linear, .in = c->width,
		.out = m->vocab_padded,
		.init_std = (float)c->init_std,
		.keep_hp = !c->head_recipe,
		.recipe = c->head_recipe);
	struct te_cross_entropy_attrs la = TE_ATTRS(cross_entropy, .nclasses = c->vocab,
		.ignore_index = IGNORED_TARGET,
		.grad_scale = 1,
		.chunk = c->loss_chunk);
	const int64_t ncontext = m->ncontext;
	struct te_op *op;

	part.heads /= m->nshards;
	part.kv_heads /= m->nshards;
	part.inner /= m->nshards;
	b->skips = m->stage > 0;
	op = APPEND(b, te_op_embedding, &ea, "embed");
	if (c->tied)
		ha.tied_op = op;
	sum(b, "embed_sum");
	if (c->scaled_embedding)
		scale(b, sqrt((double)c->width), "embed_scale");
	dropout(b, c->drop_embd, "drop");
	if (c->documents && b->r >= 0)
		b->r = te_seq_input(b->seq, MODEL_DOCUMENTS, TE_DTYPE_INT32, ncontext > 1,
				    ncontext > 1 ? &ncontext : NULL);
	for (int i = 0; i < c->layers; i++) {
		b->skips = stage_of_layer(m, i) != m->stage;
		layer(b, &part, i);
	}
	b->skips = m->stage < m->nstages - 1;
	norm(b, c, "norm");
	divide(b, "head_copy");
	APPEND(b, te_op_linear, &ha, MODEL_HEAD);
	if (c->logit_cap > 0)
		cap_logits(b, c->logit_cap);
	op = b->comm ? APPEND(b, te_comm_op_cross_entropy, b->comm, &la, MODEL_LOSS) :
	     m->context ? APPEND(b, te_comm_op_cross_entropy_tokens, m->context, &la, MODEL_LOSS) :
			  APPEND(b, te_op_cross_entropy, &la, MODEL_LOSS);
	if (op)
		b->r = te_op_take(op, 0, MODEL_TARGETS);
	if (b->r >= 0 && !b->skips)
		b->r = te_seq_input(b->seq, MODEL_TARGETS, TE_DTYPE_INT32, 0, NULL);
}

int64_t model_count(const struct model *m, uint32_t without)
{
	const int64_t padding = (m->vocab_padded - m->cfg.vocab) * m->cfg.width;
	int64_t n = 0;

	for (int i = 0; i < te_seq_nweights(m->seq); i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;

		if (te_seq_weight(m->seq, i, &w) < 0 || w.flags & without)
			continue;
		n += te_tensor_nelems(w.master);
		if (!strcmp(w.name, "embed.weight") || !strcmp(w.name, "head.weight"))
			n -= padding;
	}
	return n;
}

int model_cannot(const struct model *m, int r)
{
	return say_te(r, "the %s model cannot be built", family_name(m->cfg.family));
}

static int check_shards(const struct config *c, int32_t n)
{
	const struct {
		const char *name;
		int64_t value;
	} even[] = {
		{ "heads", c->heads },
		{ "heads of keys and values", c->kv_heads },
		{ "columns between the layers of an MLP", c->inner },
	};

	if (n > 1 && c->qk_norm != QK_NORM_NONE)
		return say_bad("--tensor %d: ranks cannot divide norms of queries and keys, which "
			       "%s models have", (int)n, family_name(c->family));
	for (size_t i = 0; i < sizeof(even) / sizeof(even[0]); i++)
		if (even[i].value % n)
			return say_bad("--tensor %d: the model has %lld %s, which %d ranks cannot "
				       "divide", (int)n, (long long)even[i].value, even[i].name,
				       (int)n);
	return STATUS_OK;
}

/* the layout of a shard's whole model */
static int add_whole(struct te_ctx *ctx, const struct config *cfg, struct model *m)
{
	int r;

	m->whole = calloc(1, sizeof(*m->whole));
	if (!m->whole)
		return say_failed("out of memory");
	r = model_build(ctx, cfg, m->whole);
	if (r) {
		free(m->whole);
		m->whole = NULL;
		return r;
	}
	m->nparams = m->ntrained = m->whole->nparams;
	return STATUS_OK;
}

/* m: the part of the model that the sequence is to have */
static int build_part(struct te_ctx *ctx, struct model m, struct model *ret_model)
{
	struct builder b = { .comm = m.comm, .by = m.by };
	int r = check_shards(&m.cfg, m.nshards);

	if (r)
		return r;
	/* FP8 GEMMs need multiples of 16; cuBLASLt is fastest with multiples of 64 */
	m.vocab_padded = (m.cfg.vocab + 64 * m.nshards - 1) / (64 * m.nshards) * 64;
	b.r = te_seq_create(ctx, &m.seq);
	if (b.r >= 0) {
		b.seq = m.seq;
		b.m = &m;
		build(&b, &m);
	}
	if (b.r >= 0 && b.comm)
		b.r = te_comm_add_fusions(m.seq);
	if (b.r >= 0)
		b.r = te_seq_complete(m.seq);
	if (b.r >= 0 && m.cfg.lora.rank)
		b.r = te_seq_freeze(m.seq, "*", 1);
	if (b.r >= 0 && m.cfg.lora.rank)
		b.r = te_seq_freeze(m.seq, "*.lora_[AB]", 0);
	if (b.r == -ENOENT) {
		te_seq_unref(m.seq);
		return say_bad("--lora: targets=%s: no layer has a projection of this name; there "
			       "are h.0.qkv, h.0.proj, h.0.up and h.0.down", m.cfg.lora.targets);
	}
	if (b.r < 0) {
		te_seq_unref(m.seq);
		return model_cannot(&m, b.r);
	}
	if (!m.comm && !m.pipe) {
		m.nparams = model_count(&m, 0);
		m.ntrained = model_count(&m, TE_WEIGHT_FROZEN);
	}
	json_incref(m.cfg.source);
	r = m.comm || m.pipe ? add_whole(ctx, &m.cfg, &m) : STATUS_OK;
	if (r)
		model_free(&m);
	else
		*ret_model = m;
	return r;
}

int model_build_shard(struct te_ctx *ctx, const struct config *cfg, struct te_comm *comm,
		      enum model_divides by, struct model *ret_model)
{
	struct model m = { .cfg = *cfg,
			   .nshards = 1,
			   .nstages = 1,
			   .nchunks = 1,
			   .ncontext = 1 };

	if (comm && te_comm_nranks(comm) > 1) {
		m.comm = comm;
		m.by = by;
		m.nshards = te_comm_nranks(comm);
		m.shard = te_comm_rank(comm);
	}
	return build_part(ctx, m, ret_model);
}

int model_build_stage(struct te_ctx *ctx, const struct config *cfg, struct te_comm *pipe,
		      struct te_comm *comm, int32_t nchunks, struct model *ret_model)
{
	const int32_t nshards = comm ? te_comm_nranks(comm) : 1;

	return build_part(ctx, (struct model){
		.cfg = *cfg,
		.nshards = nshards,
		.shard = comm ? te_comm_rank(comm) : 0,
		.ncontext = 1,
		.comm = comm,
		.nstages = te_comm_nranks(pipe) / nshards,
		.stage = te_comm_rank(pipe) / nshards,
		.nchunks = nchunks,
		.pipe = pipe,
	}, ret_model);
}

int model_build_context(struct te_ctx *ctx, const struct config *cfg, struct te_comm *comm,
			struct model *ret_model)
{
	return build_part(ctx, (struct model){
		.cfg = *cfg,
		.nshards = 1,
		.nstages = 1,
		.nchunks = 1,
		.ncontext = te_comm_nranks(comm),
		.context = comm,
	}, ret_model);
}

int model_build(struct te_ctx *ctx, const struct config *cfg, struct model *ret_model)
{
	return model_build_shard(ctx, cfg, NULL, DIVIDE_NOTHING, ret_model);
}

int64_t model_fewest(const struct model *m)
{
	return m->by == DIVIDE_SEQUENCES ? m->nshards : 1;
}

void model_free(struct model *m)
{
	m->seq = te_seq_unref(m->seq);
	config_free(&m->cfg);
	if (m->whole)
		model_free(m->whole);
	free(m->whole);
	m->whole = NULL;
}

const char **model_cuts(const struct config *c, int32_t *ret_n)
{
	enum { NAME = 32 };
	const size_t n = (size_t)c->layers;
	const char **cut = malloc(n * (sizeof(*cut) + NAME));
	char *name = (char *)(cut + n);

	for (size_t i = 0; cut && i < n; i++, name += NAME) {
		snprintf(name, NAME, "h.%zu.res1", i + 1);
		cut[i] = i + 1 < n ? name : "norm";
	}
	*ret_n = (int32_t)n;
	return cut;
}

double model_flops_per_token(const struct config *c, int64_t T)
{
	double gates = c->gated ? 3 : 2;
	double joined = (double)(c->heads * c->head_dim);
	double attn = (double)c->width * (double)((c->heads + 2 * c->kv_heads) * c->head_dim) +
		      joined * (double)c->width;
	double layer = attn + gates * (double)c->width * (double)c->inner;

	/* frozen weights have no gradient, and adapters are small */
	return (c->lora.rank ? 4 : 6) *
		       ((double)c->layers * layer + (double)c->width * (double)c->vocab) +
	       6 * (double)c->layers * joined * (double)T;
}
