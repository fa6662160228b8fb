/*
 * decoder.c - a model's sequence on new tokens at positions, with a cache of keys and values.
 *
 * A pass is two plans of the sequence: the ops before the head on [1, rows] tokens, and the head,
 * which computes the logits, on the rows whose logits are wanted. There are plans for powers of two
 * of rows; other numbers are padded. Embedding, rope and attention find positions and caches in
 * their call's state (struct te__decode); no other op needs to know.
 *
 * A pass in which each row is the last token of its sequence is the same work for a number of rows,
 * whatever the positions are: it runs once, is recorded the second time, and then replayed. A pass
 * begins with one copy from pinned memory and ends with copies to it, so that a replay is one
 * launch. If all sequences take the most likely token, the device finds it, and logits are copied
 * when somebody asks for them.
 */
#define TE_LOG_CATEGORY "core/decoder"
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include <te/capture.h>
#include <te/stream.h>

#include "libtecore/ops/common.h"
#include "libtecore/plan/choose.h"
#include "libtecore/plan/plan.h"

#define CHUNK 128
#define PAGE 64
#define MAX_PLANS 32

/* Integers that a pass reads, in pinned memory and, laid out alike, on the device: sequence,
 * position and token of each row of a chunk, the table of pages, and the word that counts tokens
 * outside the cache. Offsets in elements, multiples of an alignment that suits all devices. */
struct inputs {
	int64_t position, token, table, noutside, best, n;
};
#define ALIGN_INTS 64
/* rows for which one launch for rope and attention is faster than their own launches */
#define STEP_ROWS 8

/* plan of a number of rows, and its views of the decoder's tensors */
struct body {
	struct te_plan *plan;
	int64_t rows;
	struct te_tensor *sequence, *position, *token;
	struct te_tensor *out; /* body: its result, which may be the input of a head */
	struct te__decode *decode; /* by op; NULL: ops of the head */
	struct te_k_rope *rope;	    /* by op, of ropes next to attention */
	int one_each;		    /* the pass has a row of each of its sequences */
	/* the pass with logits of all rows, or NULL, and how often it ran; by: all are greedy */
	struct te_recording *whole[2];
	int nwhole[2];
};

struct seq_state {
	int open, ready;
	int64_t ntokens, ncached; /* pushed, computed */
	int64_t npages;
	int32_t *token; /* [max_tokens] */
	float *logits;	/* [ntokens of the vocabulary] */
	const uint16_t *raw; /* ready: BF16 that logits are to be decoded from, or NULL */
	const uint64_t *best; /* ready: parts of te_k_argmax, or NULL */
	struct te_sampling how;
};

struct te_decoder {
	atomic_int refs;
	struct te_seq *seq;
	struct te_ctx *ctx;
	struct te_stream *stream;
	struct te_decoder_opts o;
	struct te_recipe recipe;
	enum te_dtype cache;
	int first_head; /* op that computes the logits */
	int has_attn_step;
	int64_t max_pages, vocab, width_padded;
	int nbodies, nheads;
	struct body body[MAX_PLANS], head[MAX_PLANS];
	struct inputs at;
	struct te_tensor *inputs, *pages; /* [at.n]; its table, [max_seqs, max_pages] */
	struct te_tensor **k, **v;	  /* by op; NULL: no attention */
	struct te_tensor **k_scale, **v_scale; /* by op, of a cache of E4M3 */
	void *parts, *ready; /* scratch of attention on a GPU, or NULL */
	struct seq_state *state;
	/* pinned memory */
	int32_t *row_sequence, *row_position, *row_token; /* [chunk], the first one of at.n */
	int32_t *table;	    /* [max_seqs, max_pages] */
	uint32_t *results;  /* inputs from noutside on, after a pass */
	void *raw;	    /* [max_seqs, width_padded] logits of a pass */
	/* logits of the last pass that are not in raw yet, and their rows; or NULL */
	const struct te_tensor *unread;
	int64_t nunread;
	/* host memory */
	int32_t *last;	    /* [chunk] */
	int32_t *free_page; /* [npages], of which the first nfree are free */
	int64_t nfree;
	int32_t next; /* sequence that the next pass begins with */
	struct te__candidate *room;
	uint8_t *marks;
};

/* ---- creation ---- */

static int is_op(const struct te_op *op, const char *name)
{
	return op->is_library && !strcmp(op->ops.name, name);
}

/* attributes that a later version adds and that are not as in INIT: decoding would ignore them */
static int has_more(const struct te_op *op, size_t known, const void *init)
{
	const char *a = op->attrs;

	return memcmp(a + known, (const char *)init + known, op->ops.attrs_nbytes - known) != 0;
}

static int check_op(const struct te_decoder *d, int i)
{
	static const char *const by_row[] = { "linear", "bias", "layernorm", "rmsnorm", "qk_norm",
					      "activation", "fork", "add", "swap", "dropout",
					      "scale", "identity" };
	const struct te_attention_attrs attention = TE_ATTENTION_ATTRS_INIT;
	const struct te_op *op = d->seq->op[i];
	const struct te_embedding_attrs *e = op->attrs;
	const struct te_attention_attrs *a = op->attrs;
	const struct te_rope_attrs *rope = op->attrs;

	if (is_op(op, "embedding") && i > 0)
		return te__fail(-EOPNOTSUPP, "te_decoder_create: op %s: is an embedding, which "
				"only the first op can be", op->name);
	if (is_op(op, "embedding") && e->max_pos && e->max_pos < d->o.max_tokens)
		return te__fail(-EINVAL, "te_decoder_create: max_tokens is %d, but embedding %s "
				"has %lld positions", d->o.max_tokens, op->name,
				(long long)e->max_pos);
	if (is_op(op, "rope") && rope->dynamic_positions &&
	    rope->dynamic_positions < d->o.max_tokens)
		return te__fail(-EOPNOTSUPP, "te_decoder_create: max_tokens is %d, but decoding "
				"with rope %s takes at most its dynamic_positions, %lld",
				d->o.max_tokens, op->name, (long long)rope->dynamic_positions);
	if (is_op(op, "attention") &&
	    (a->full || has_more(op, offsetof(struct te_attention_attrs, sinks) +
				     sizeof(attention.sinks), &attention)))
		return te__fail(-EOPNOTSUPP, "te_decoder_create: attention %s: has attributes that "
				"decoding does not implement", op->name);
	if (is_op(op, "embedding") || is_op(op, "rope") || is_op(op, "attention"))
		return 0;
	for (size_t k = 0; k < sizeof(by_row) / sizeof(by_row[0]); k++)
		if (is_op(op, by_row[k]))
			return 0;
	return te__fail(-EOPNOTSUPP, "te_decoder_create: op %s: is %s%s, which decoding does not "
			"implement", op->name, op->is_library ? "" : "a user-defined ",
			op->ops.name);
}

/* the last linear op computes the logits; only a loss may follow the ops after it */
static int find_head(struct te_decoder *d, const char **ret_stop)
{
	const struct te_seq *seq = d->seq;
	int end = seq->nops, r = 0;

	*ret_stop = NULL;
	if (end && is_op(seq->op[end - 1], "cross_entropy"))
		*ret_stop = seq->op[--end]->name;
	if (!end || !is_op(seq->op[0], "embedding"))
		return te__fail(-EOPNOTSUPP, "te_decoder_create: the first op of the sequence is "
				"not te_op_embedding()");
	for (int i = 0; i < end && !r; i++) {
		r = check_op(d, i);
		if (is_op(seq->op[i], "linear"))
			d->first_head = i;
	}
	if (!r && !d->first_head)
		return te__fail(-EOPNOTSUPP, "te_decoder_create: the sequence has no linear op, "
				"which computes the logits");
	for (int i = d->first_head + 1; i < end && !r; i++)
		if (is_op(seq->op[i], "rope") || is_op(seq->op[i], "attention"))
			return te__fail(-EOPNOTSUPP, "te_decoder_create: %s %s: comes after the "
					"last linear op", seq->op[i]->ops.name, seq->op[i]->name);
	return r;
}

/* 1: the scale of a row depends on rows of other sequences, or of other passes */
static int is_by_pass(const struct te_recipe *r)
{
	const enum te_scaling by = te__recipe_operand(r, TE__ROLE_ACTIVATION).scaling;

	return te__recipe_casts(r) && (by == TE_SCALING_TENSOR || by == TE_SCALING_1X16);
}

static int check_opts(struct te_decoder *d)
{
	struct te_decoder_opts *o = &d->o;
	const uint32_t caches = TE_DECODER_CACHE_FP32 | TE_DECODER_CACHE_BF16 |
				TE_DECODER_CACHE_E4M3;
	int r = 0;

	d->recipe = (struct te_recipe)TE_RECIPE_INIT;
	if (o->recipe)
		r = te__sized_in("te_decoder_create", te_recipe, o->recipe, &d->recipe);
	if (!r)
		r = te__recipe_check("te_decoder_create", &d->recipe);
	if (r < 0)
		return r;
	if (is_by_pass(&d->recipe))
		return te__fail(-EOPNOTSUPP, "te_decoder_create: recipe %s: decoding needs bf16, "
				"fp32, fp8-block or mxfp8", te_recipe_name(&d->recipe));
	for (int i = 0; i < d->seq->nops; i++)
		if (d->seq->op[i]->recipe && is_by_pass(d->seq->op[i]->recipe))
			return te__fail(-EOPNOTSUPP, "te_decoder_create: op %s has recipe %s: "
					"decoding needs bf16, fp32, fp8-block or mxfp8",
					d->seq->op[i]->name,
					te_recipe_name(d->seq->op[i]->recipe));
	if (o->flags & ~caches || (o->flags & (o->flags - 1)))
		return te__fail(-EINVAL, "te_decoder_create: flags are 0x%x, expected "
				"TE_DECODER_CACHE_FP32, TE_DECODER_CACHE_BF16, "
				"TE_DECODER_CACHE_E4M3 or 0", o->flags);
	if (o->max_seqs < 1 || o->max_seqs > 65536)
		return te__fail(-EINVAL, "te_decoder_create: max_seqs is %d, expected 1 to 65536",
				o->max_seqs);
	if (o->max_tokens < 1 || o->max_tokens > 1 << 30)
		return te__fail(-EINVAL, "te_decoder_create: max_tokens is %d, expected 1 to %d",
				o->max_tokens, 1 << 30);
	if (!o->chunk) {
		o->chunk = o->max_tokens < CHUNK ? o->max_tokens : CHUNK;
		o->chunk = o->chunk < o->max_seqs ? o->max_seqs : o->chunk;
	}
	if (o->chunk < o->max_seqs || o->chunk > 1 << 20)
		return te__fail(-EINVAL, "te_decoder_create: chunk is %d, expected max_seqs, %d, "
				"to %d", o->chunk, o->max_seqs, 1 << 20);
	if (!o->page)
		o->page = PAGE;
	if (o->page < 1)
		return te__fail(-EINVAL, "te_decoder_create: page is %d", o->page);
	d->max_pages = ((int64_t)o->max_tokens + o->page - 1) / o->page;
	if (!o->npages)
		o->npages = o->max_seqs * d->max_pages;
	if (o->npages < 1 || o->npages > INT32_MAX)
		return te__fail(-EINVAL, "te_decoder_create: npages is %lld, expected 1 to %d",
				(long long)o->npages, INT32_MAX);
	d->cache = o->flags & TE_DECODER_CACHE_FP32 ? TE_DTYPE_FP32 :
		   o->flags & TE_DECODER_CACHE_BF16 ? TE_DTYPE_BF16 :
		   o->flags & TE_DECODER_CACHE_E4M3 ? TE_DTYPE_E4M3 :
						      d->recipe.compute;
	return 0;
}

static int64_t up_to_align(int64_t n)
{
	return (n + ALIGN_INTS - 1) / ALIGN_INTS * ALIGN_INTS;
}

/* the cache of op i, an attention */
static int make_cache(struct te_decoder *d, int i)
{
	const struct te_attention_attrs *a = d->seq->op[i]->attrs;
	const int64_t shape[3] = { d->o.npages, d->o.page, (int64_t)a->nkv * a->head_dim };
	const int64_t scales[3] = { shape[0], shape[1], a->nkv };
	int r = te_tensor_create(d->ctx, d->cache, 3, shape, NULL, &d->k[i]);

	if (!r)
		r = te_tensor_create(d->ctx, d->cache, 3, shape, NULL, &d->v[i]);
	if (!r && d->cache == TE_DTYPE_E4M3)
		r = te_tensor_create(d->ctx, TE_DTYPE_UINT8, 3, scales, NULL, &d->k_scale[i]);
	if (!r && d->cache == TE_DTYPE_E4M3)
		r = te_tensor_create(d->ctx, TE_DTYPE_UINT8, 3, scales, NULL, &d->v_scale[i]);
	return r;
}

static int make_tensors(struct te_decoder *d)
{
	const int64_t table[2] = { d->o.max_seqs, d->max_pages };
	const struct te_seq *seq = d->seq;
	void *pinned;
	int r;

	d->at.position = up_to_align(d->o.chunk);
	d->at.token = 2 * d->at.position;
	d->at.table = 3 * d->at.position;
	d->at.noutside = d->at.table + up_to_align(table[0] * table[1]);
	d->at.best = d->at.noutside + ALIGN_INTS;
	d->at.n = d->at.best + table[0] * 2 * TE_K_ARGMAX_PARTS;
	r = te_tensor_create(d->ctx, TE_DTYPE_INT32, 1, &d->at.n, NULL, &d->inputs);
	if (!r)
		r = te_tensor_view(d->inputs, d->at.table, 2, table, &d->pages);
	if (!r)
		r = te_pinned_alloc(d->ctx, te_tensor_nbytes(d->inputs), &pinned);
	if (r)
		return r;
	memset(pinned, 0, te_tensor_nbytes(d->inputs));
	d->row_sequence = pinned;
	d->row_position = d->row_sequence + d->at.position;
	d->row_token = d->row_sequence + d->at.token;
	d->table = d->row_sequence + d->at.table;
	d->k = te__calloc((size_t)seq->nops, sizeof(*d->k));
	d->v = te__calloc((size_t)seq->nops, sizeof(*d->v));
	d->k_scale = te__calloc((size_t)seq->nops, sizeof(*d->k_scale));
	d->v_scale = te__calloc((size_t)seq->nops, sizeof(*d->v_scale));
	if (!d->k || !d->v || !d->k_scale || !d->v_scale)
		return te__no_memory("te_decoder_create");
	for (int i = 0; i < d->first_head && !r; i++)
		if (is_op(seq->op[i], "attention"))
			r = make_cache(d, i);
	return r;
}

/* scratch that a plan of rows needs, in which one attention op runs after another */
static void add_parts(const struct te_decoder *d, int64_t rows, size_t *nbytes, size_t *nready)
{
	for (int i = 0; i < d->first_head; i++) {
		const struct te_attention_attrs *a = d->seq->op[i]->attrs;
		size_t words, n;

		if (!d->k[i])
			continue;
		words = (size_t)(rows * a->nheads) * sizeof(uint32_t);
		n = te__attention_parts_nbytes(d->ctx, rows, a->nheads, a->nkv, a->head_dim);
		*nready = n && words > *nready ? words : *nready;
		*nbytes = n > *nbytes ? n : *nbytes;
	}
}

static int make_parts(struct te_decoder *d)
{
	size_t nbytes = 0, nready = 0;
	int r;

	for (int64_t rows = 1; rows < d->o.chunk; rows *= 2)
		add_parts(d, rows, &nbytes, &nready);
	add_parts(d, d->o.chunk, &nbytes, &nready);
	if (!nbytes)
		return 0;
	r = te__mem_get(d->ctx, nbytes, &d->parts);
	if (!r)
		r = te__mem_get(d->ctx, nready, &d->ready);
	return r ? r : te__ctx_fill_u32(d->ctx, d->ready, 0, nready);
}

/* host memory; the plans exist */
static int make_state(struct te_decoder *d)
{
	const size_t seqs = (size_t)d->o.max_seqs, rows = (size_t)d->o.chunk;
	const struct te_tensor *out = te_plan_output(d->head[0].plan);
	void *pinned;
	int r;

	d->width_padded = te_tensor_cols(out);
	d->vocab = d->o.ntokens ? d->o.ntokens : d->width_padded;
	if (d->vocab < 1 || d->vocab > d->width_padded || d->vocab > INT32_MAX)
		return te__fail(-EINVAL, "te_decoder_create: ntokens is %lld, but there are %lld "
				"logits", (long long)d->vocab, (long long)d->width_padded);
	r = te_pinned_alloc(d->ctx, (size_t)(d->at.n - d->at.noutside) * sizeof(*d->results),
			    &pinned);
	if (r)
		return r;
	d->results = pinned;
	r = te_pinned_alloc(d->ctx, seqs * (size_t)d->width_padded *
			    te_dtype_nbytes(d->recipe.compute), &d->raw);
	if (r)
		return r;
	d->state = te__calloc(seqs, sizeof(*d->state));
	d->last = te__calloc(rows, sizeof(*d->last));
	d->free_page = te__calloc((size_t)d->o.npages, sizeof(*d->free_page));
	d->room = te__calloc((size_t)d->vocab, sizeof(*d->room));
	d->marks = te__calloc((size_t)d->vocab, 1);
	if (!d->state || !d->last || !d->free_page || !d->room || !d->marks)
		return te__no_memory("te_decoder_create");
	for (size_t s = 0; s < seqs; s++) {
		d->state[s].token =
			te__calloc((size_t)d->o.max_tokens, sizeof(*d->state[s].token));
		d->state[s].logits = te__calloc((size_t)d->vocab, sizeof(float));
		if (!d->state[s].token || !d->state[s].logits)
			return te__no_memory("te_decoder_create");
	}
	d->nfree = d->o.npages;
	for (int64_t i = 0; i < d->nfree; i++)
		d->free_page[i] = (int32_t)(d->nfree - 1 - i);
	return 0;
}

/* does the device have te_k_attn_step? */
static int find_attn_step(struct te_decoder *d)
{
	struct te_device_info dev = TE_DEVICE_INFO_INIT;
	int r = te_ctx_device_info(d->ctx, &dev);

	d->has_attn_step = d->recipe.compute == TE_DTYPE_BF16 && d->cache != TE_DTYPE_FP32 &&
			   (dev.features & TE_FEATURE_CLUSTERS ||
			    !strcmp(te_ctx_backend(d->ctx), "host"));
	return r;
}

/* attention is next to the rope before it, and can have its kernel */
static int joins_rope(const struct te_seq *seq, int i)
{
	const struct te_attention_attrs *a = seq->op[i]->attrs;
	const struct te_rope_attrs *r;

	if (!i || !is_op(seq->op[i], "attention") || !is_op(seq->op[i - 1], "rope"))
		return 0;
	r = seq->op[i - 1]->attrs;
	return !a->sinks && a->head_dim % 16 == 0 &&
	       a->head_dim <= TE_K_ATTN_STEP_CUDA_HEAD_DIM &&
	       a->head_dim == r->head_dim && a->nheads == r->nheads && a->nkv == r->nkv &&
	       !r->interleaved;
}

/* the steps of ops i - 1 and i, a rope and attention, become one launch where they can */
static void join_rope(const struct te_plan *p, struct body *b, int i)
{
	for (int s = 0; s < p->nsteps; s++)
		if (p->step[s].node == i - 1 && p->step[s].kind == TE__STEP_FWD)
			te__ops_rope_fwd(&p->step[s].call, &b->rope[i]);
	b->decode[i].rope = &b->rope[i];
	b->decode[i].one_each = b->decode[i - 1].one_each = &b->one_each;
}

/* the ops of a plan that need it find positions and caches in their state */
static int set_states(struct te_decoder *d, struct body *b)
{
	const struct te_plan *p = b->plan;
	int32_t *in = te_tensor_data(d->inputs);
	const int64_t tokens[2] = { 1, b->rows };
	int r = te_tensor_view(d->inputs, 0, 1, &b->rows, &b->sequence);

	if (!r)
		r = te_tensor_view(d->inputs, d->at.position, 1, &b->rows, &b->position);
	if (!r)
		r = te_tensor_view(d->inputs, d->at.token, 2, tokens, &b->token);
	if (r)
		return r;
	b->decode = te__calloc((size_t)d->seq->nops, sizeof(*b->decode));
	b->rope = te__calloc((size_t)d->seq->nops, sizeof(*b->rope));
	if (!b->decode || !b->rope)
		return te__no_memory("te_decoder_create");
	for (int t = 0; t < p->ngroups; t++)
		for (int k = 0; k < p->group[t].n; k++) {
			struct te__step *s = &p->step[p->group[t].first + k];
			const struct te_op *op = d->seq->op[s->node];

			if (!is_op(op, "embedding") && !is_op(op, "rope") &&
			    !is_op(op, "attention"))
				continue;
			if (p->group[t].fusion || s->has_state)
				return te__fail(-EOPNOTSUPP, "te_decoder_create: op %s: is part of "
						"a fusion", op->name);
			b->decode[s->node].cache = (struct te__attention_cache){
				.sequence = b->sequence,
				.position = b->position,
				.pages = d->pages,
				.k = d->k[s->node],
				.v = d->v[s->node],
				.k_scale = d->k_scale[s->node],
				.v_scale = d->v_scale[s->node],
				.noutside = (uint32_t *)in + d->at.noutside,
				.parts = d->parts,
				.ready = d->ready,
			};
			b->decode[s->node].token = b->token;
			s->call.state = &b->decode[s->node];
		}
	for (int i = 0; i < d->first_head && d->has_attn_step && b->rows <= STEP_ROWS; i++)
		if (joins_rope(d->seq, i))
			join_rope(p, b, i);
	return 0;
}

static int make_plan(struct te_decoder *d, struct body *b, int64_t rows, const char *stop)
{
	const char *head = d->seq->op[d->first_head]->name;
	const struct te_linear_attrs *a = d->seq->op[d->first_head]->attrs;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	int r;

	b->rows = rows;
	o.recipe = &d->recipe;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, rows } };
	o.stop_before = head;
	if (b >= d->head && b < d->head + MAX_PLANS) {
		o.x = (struct te_spec){ d->recipe.compute, 3, { 1, rows, a->in } };
		o.start_at = head;
		o.stop_before = stop;
		return te__plan_create(d->seq, &o, 1, &b->plan);
	}
	r = te__plan_create(d->seq, &o, 1, &b->plan);
	return r ? r : set_states(d, b);
}

/* plans for 1, 2, 4 and so on to most rows */
static int make_plans(struct te_decoder *d, struct body *b, int *n, int64_t most, const char *stop)
{
	int r = 0;

	for (int64_t rows = 1; !r; rows *= 2) {
		r = make_plan(d, &b[*n], rows < most ? rows : most, stop);
		++*n; /* te_decoder_unref() releases half of a plan too */
		if (rows >= most)
			break;
	}
	return r;
}

/* a body writes its result into the input of the head of as many rows: one copy less */
static void join_heads(struct te_decoder *d)
{
	for (int i = 0; i < d->nbodies; i++) {
		struct te_plan *p = d->body[i].plan;
		const struct te__group *g = &p->group[p->ngroups - 1];
		struct te_op_call *last = &p->step[g->first + g->n - 1].call;

		d->body[i].out = te_plan_output(p);
		if (i >= d->nheads || d->head[i].rows != d->body[i].rows ||
		    last->y.hp != d->body[i].out)
			continue;
		d->body[i].out = last->y.hp = te_plan_input(d->head[i].plan, "x");
	}
}

static int make(struct te_decoder *d)
{
	const char *stop;
	int r = check_opts(d);

	if (!r)
		r = find_head(d, &stop);
	if (!r)
		r = make_tensors(d);
	if (!r)
		r = make_parts(d);
	if (!r)
		r = find_attn_step(d);
	if (!r)
		r = make_plans(d, d->body, &d->nbodies, d->o.chunk, stop);
	if (!r)
		r = make_plans(d, d->head, &d->nheads, d->o.max_seqs, stop);
	if (r < 0)
		return r;
	join_heads(d);
	return make_state(d);
}

int te_decoder_create(struct te_seq *seq, const struct te_decoder_opts *opts,
		      struct te_decoder **ret_d)
{
	struct te_decoder_opts o = TE_DECODER_OPTS_INIT;
	struct te_decoder *d;
	int r = opts ? te__sized_in("te_decoder_create", te_decoder_opts, opts, &o) : 0;

	if (!r && (!seq || !ret_d))
		r = te__fail(-EINVAL, "te_decoder_create: %s is NULL", seq ? "ret_d" : "seq");
	if (!r)
		r = te__seq_initialised(seq, "te_decoder_create");
	if (r < 0)
		return r;
	d = te__calloc(1, sizeof(*d));
	if (!d)
		return te__no_memory("te_decoder_create");
	atomic_init(&d->refs, 1);
	d->o = o;
	d->seq = te_seq_ref(seq);
	d->ctx = te_seq_ctx(seq);
	d->stream = te_ctx_stream(d->ctx);
	r = make(d);
	d->o.recipe = NULL; /* the caller's */
	if (r < 0) {
		te_decoder_unref(d);
		return r;
	}
	*ret_d = d;
	return 0;
}

struct te_decoder *te_decoder_ref(struct te_decoder *d)
{
	if (d)
		atomic_fetch_add(&d->refs, 1);
	return d;
}

static void free_plans(struct body *b, int n)
{
	for (int i = 0; i < n; i++) {
		te_recording_unref(b[i].whole[0]);
		te_recording_unref(b[i].whole[1]);
		te_plan_unref(b[i].plan);
		te_tensor_unref(b[i].sequence);
		te_tensor_unref(b[i].position);
		te_tensor_unref(b[i].token);
		te__free(b[i].decode);
		te__free(b[i].rope);
	}
}

static void free_pinned(struct te_decoder *d, void *ptr)
{
	if (ptr)
		te_pinned_free(d->ctx, ptr);
}

struct te_decoder *te_decoder_unref(struct te_decoder *d)
{
	if (!d || atomic_fetch_sub(&d->refs, 1) != 1)
		return NULL;
	free_plans(d->body, d->nbodies);
	free_plans(d->head, d->nheads);
	for (int i = 0; i < d->seq->nops; i++) {
		te_tensor_unref(d->k ? d->k[i] : NULL);
		te_tensor_unref(d->v ? d->v[i] : NULL);
		te_tensor_unref(d->k_scale ? d->k_scale[i] : NULL);
		te_tensor_unref(d->v_scale ? d->v_scale[i] : NULL);
	}
	te__free(d->k);
	te__free(d->v);
	te__free(d->k_scale);
	te__free(d->v_scale);
	te_tensor_unref(d->pages);
	te_tensor_unref(d->inputs);
	te__mem_put(d->ctx, d->parts);
	te__mem_put(d->ctx, d->ready);
	for (int32_t s = 0; d->state && s < d->o.max_seqs; s++) {
		te__free(d->state[s].token);
		te__free(d->state[s].logits);
	}
	te__free(d->state);
	free_pinned(d, d->row_sequence);
	free_pinned(d, d->results);
	free_pinned(d, d->raw);
	te__free(d->last);
	te__free(d->free_page);
	te__free(d->room);
	te__free(d->marks);
	te_seq_unref(d->seq);
	te__free(d);
	return NULL;
}

/* ---- sequences ---- */

static int find(const char *fn, const struct te_decoder *d, int32_t s, struct seq_state **ret)
{
	if (!d)
		return te__fail(-EINVAL, "%s: d is NULL", fn);
	if (s < 0 || s >= d->o.max_seqs || !d->state[s].open)
		return te__fail(-EINVAL, "%s: sequence %d is not open", fn, s);
	*ret = &d->state[s];
	return 0;
}

int te_decoder_open(struct te_decoder *d, const struct te_sampling *how, int32_t *ret_s)
{
	static const char fn[] = "te_decoder_open";
	struct te_sampling h = TE_SAMPLING_INIT;
	int r = how ? te__sized_in(fn, te_sampling, how, &h) : 0;

	if (!how)
		h.temperature = 0;
	if (!r)
		r = te__sampling_check(fn, &h);
	if (!r && (!d || !ret_s))
		r = te__fail(-EINVAL, "%s: %s is NULL", fn, d ? "ret_s" : "d");
	if (r < 0)
		return r;
	for (int32_t s = 0; s < d->o.max_seqs; s++) {
		struct seq_state *q = &d->state[s];

		if (q->open)
			continue;
		q->open = 1;
		q->ready = 0;
		q->ntokens = q->ncached = q->npages = 0;
		q->how = h;
		*ret_s = s;
		return 0;
	}
	return te__fail(-EBUSY, "%s: all %d sequences are open", fn, d->o.max_seqs);
}

int te_decoder_close(struct te_decoder *d, int32_t s)
{
	struct seq_state *q;
	int r = find("te_decoder_close", d, s, &q);

	if (r < 0)
		return r;
	while (q->npages)
		d->free_page[d->nfree++] = d->table[s * d->max_pages + --q->npages];
	q->open = 0;
	return 0;
}

int te_decoder_push(struct te_decoder *d, int32_t s, const int32_t *token, int64_t n)
{
	static const char fn[] = "te_decoder_push";
	struct seq_state *q;
	int r = find(fn, d, s, &q);

	if (!r && (n < 0 || (n && !token)))
		r = te__fail(-EINVAL, "%s: %s", fn, n < 0 ? "n is negative" : "token is NULL");
	if (r < 0)
		return r;
	for (int64_t i = 0; i < n; i++)
		if (token[i] < 0 || token[i] >= d->vocab)
			return te__fail(-EINVAL, "%s: token %lld is %d, expected 0 to %lld", fn,
					(long long)i, token[i], (long long)d->vocab - 1);
	if (n > d->o.max_tokens - q->ntokens)
		return te__fail(-ENOSPC, "%s: sequence %d: %lld tokens and %lld more are above "
				"max_tokens, %d", fn, s, (long long)q->ntokens, (long long)n,
				d->o.max_tokens);
	if (!n)
		return 0;
	memcpy(q->token + q->ntokens, token, (size_t)n * sizeof(*token));
	q->ntokens += n;
	q->ready = 0;
	return 0;
}

/* ---- steps ---- */

/* rows for up to n tokens of sequence s; as many as there are pages for */
static int64_t add_rows(struct te_decoder *d, int32_t s, int64_t n, int64_t at)
{
	struct seq_state *q = &d->state[s];
	int64_t i = 0;

	for (; i < n; i++, at++) {
		const int64_t pos = q->ncached + i;

		if (pos / d->o.page >= q->npages) {
			if (!d->nfree)
				break;
			d->table[s * d->max_pages + q->npages++] = d->free_page[--d->nfree];
		}
		d->row_sequence[at] = s;
		d->row_position[at] = (int32_t)pos;
		d->row_token[at] = q->token[pos];
	}
	return i;
}

/* returns the number of rows of a pass; *left: tokens that come later */
static int64_t choose_rows(struct te_decoder *d, int64_t *left)
{
	const int32_t n = d->o.max_seqs;
	int64_t rows = 0;

	*left = 0;
	/* sequences with one token are generating, and come first */
	for (int many = 0; many < 2; many++)
		for (int32_t i = 0; i < n; i++) {
			const int32_t s = (d->next + i) % n;
			const struct seq_state *q = &d->state[s];
			const int64_t pending = q->open ? q->ntokens - q->ncached : 0;

			if (!pending || (pending > 1) != many)
				continue;
			*left += pending;
			rows += add_rows(d, s, pending < d->o.chunk - rows ? pending :
								       d->o.chunk - rows, rows);
		}
	d->next = (d->next + 1) % n;
	*left -= rows;
	return rows;
}

static struct body *body_for(struct body *b, int n, int64_t rows)
{
	int i = 0;

	while (i < n - 1 && b[i].rows < rows)
		i++;
	return &b[i];
}

/* the first copy of a pass: what the rows are */
static int copy_inputs(struct te_decoder *d)
{
	return te_copy(d->stream, te_tensor_data(d->inputs), d->row_sequence,
		       (size_t)(d->at.noutside + 1) * sizeof(*d->row_sequence));
}

/* the last ones: n rows of logits or, greedy, the largest of them, and noutside */
static int copy_results(struct te_decoder *d, const struct te_tensor *logits, int64_t n, int greedy)
{
	int32_t *in = te_tensor_data(d->inputs);
	const struct te_k_argmax best = {
		.x = te_tensor_data(logits),
		.part = (uint64_t *)(void *)(in + d->at.best),
		.rows = n,
		.ld = d->width_padded,
		.n = d->vocab,
	};
	const int64_t nresults =
		greedy ? d->at.best - d->at.noutside + 2 * TE_K_ARGMAX_PARTS * n : 1;
	int r = 0;

	if (greedy && n)
		r = TE__LAUNCH(d->stream, ARGMAX, &best);
	else if (n)
		r = te_copy(d->stream, d->raw, te_tensor_data(logits),
			    (size_t)(n * d->width_padded) * te_dtype_nbytes(d->recipe.compute));
	return r < 0 ? r : te_copy(d->stream, d->results, in + d->at.noutside,
				   (size_t)nresults * sizeof(*in));
}

/*
 * Runs a body, and the head on rows of its output: n of them, or all if last is NULL. Results are
 * in the order of rows.
 */
static int pass(struct te_decoder *d, struct body *b, const struct body *h,
		const int32_t *last, int64_t n, int greedy)
{
	struct te_tensor *to = te_plan_input(h->plan, "x");
	const struct te_tensor *from = b->out;
	const size_t row = (size_t)te_tensor_cols(from) * te_dtype_nbytes(d->recipe.compute);
	const int64_t len = last ? 1 : b->rows < h->rows ? b->rows : h->rows;
	int r = copy_inputs(d);

	b->one_each = !last;
	if (!r)
		r = te_plan_forward(b->plan, d->stream, 0);
	/* rows ascend: if to is from, those that were written are not read again */
	for (int64_t i = 0; i < (last ? n : 1) && !r; i++) {
		const int64_t source = last ? last[i] : 0;

		if (to != from || source != i)
			r = te_copy(d->stream, (char *)te_tensor_data(to) + (size_t)i * row,
				    (const char *)te_tensor_data(from) + (size_t)source * row,
				    (size_t)len * row);
	}
	if (!r && n)
		r = te_plan_forward(h->plan, d->stream, 0);
	return r ? r : copy_results(d, te_plan_output(h->plan), n, greedy);
}

static int whole_pass(struct te_decoder *d, struct body *b, const struct body *h, int greedy)
{
	struct te_recording **whole = &b->whole[greedy];
	int r;

	if (!*whole && b->nwhole[greedy]++ == 1) {
		r = te_capture_begin(d->stream);
		if (r < 0)
			return r;
		te_capture_edges(d->stream, TE_CAPTURE_PDL); /* fails if the capture does */
		pass(d, b, h, NULL, h->rows, greedy); /* te_capture_end() fails if it does */
		r = te_capture_end(d->stream, whole);
		if (r < 0)
			return r;
	}
	return *whole ? te_recording_launch(*whole, d->stream) :
			pass(d, b, h, NULL, h->rows, greedy);
}

/* queues the pass over rows; *ret_n sequences get logits */
static int queue(struct te_decoder *d, int64_t rows, int32_t *last, int64_t *ret_n)
{
	struct body *b = body_for(d->body, d->nbodies, rows), *h;
	int greedy = d->recipe.compute == TE_DTYPE_BF16, r;
	int64_t n = 0;

	for (int64_t i = 0; i < rows; i++) {
		const struct seq_state *q = &d->state[d->row_sequence[i]];

		if (d->row_position[i] != q->ntokens - 1)
			continue;
		last[n++] = (int32_t)i;
		greedy &= te__is_greedy(&q->how);
	}
	*ret_n = n;
	for (int64_t i = rows; i < b->rows; i++) {
		d->row_sequence[i] = -1;
		d->row_position[i] = d->row_token[i] = 0;
	}
	h = body_for(d->head, d->nheads, n);
	r = n == rows ? whole_pass(d, b, h, greedy) : pass(d, b, h, last, n, greedy);
	d->unread = r || !greedy ? NULL : te_plan_output(h->plan);
	d->nunread = n;
	return r;
}

/* after a pass that left logits on the device */
static int read_logits(struct te_decoder *d)
{
	int r, synced;

	if (!d->unread)
		return 0;
	r = te_copy(d->stream, d->raw, te_tensor_data(d->unread),
		    (size_t)(d->nunread * d->width_padded) * te_dtype_nbytes(d->recipe.compute));
	synced = te_stream_sync(d->stream);
	r = r ? r : synced;
	d->unread = r ? d->unread : NULL;
	return r;
}

static void take_logits(struct te_decoder *d, const int32_t *last, int64_t n)
{
	const void *results = d->results + (d->at.best - d->at.noutside);
	const uint64_t *best = results;

	for (int64_t i = 0; i < n; i++) {
		struct seq_state *q = &d->state[d->row_sequence[last[i]]];

		if (d->recipe.compute == TE_DTYPE_FP32)
			memcpy(q->logits, (const float *)d->raw + i * d->width_padded,
			       (size_t)d->vocab * sizeof(float));
		else
			q->raw = (const uint16_t *)d->raw + i * d->width_padded;
		q->best = d->unread ? best + i * TE_K_ARGMAX_PARTS : NULL;
		q->ready = 1;
	}
}

/* logits of a sequence as FP32, which the most likely token does without */
static int decode_logits(struct te_decoder *d, struct seq_state *q)
{
	int r = q->raw ? read_logits(d) : 0;

	if (r < 0)
		return r;
	if (q->raw)
		te__decode_logits(q->raw, d->vocab, q->logits);
	q->raw = NULL;
	return 0;
}

static int64_t step(struct te_decoder *d)
{
	int64_t left, n = 0, rows = choose_rows(d, &left);
	int r = 0, synced;

	/* logits from which no token was taken: the pass overwrites them */
	for (int32_t s = 0; s < d->o.max_seqs && rows && !r; s++)
		if (d->state[s].open && d->state[s].ready)
			r = decode_logits(d, &d->state[s]);
	if (r < 0)
		return r;

	if (!rows)
		return left ? te__fail(-ENOMEM, "te_decoder_step: the cache has no free page of "
				       "%lld, and %lld tokens are left: close a sequence",
				       (long long)d->o.npages, (long long)left) :
			      0;
	r = queue(d, rows, d->last, &n);
	synced = te_stream_sync(d->stream); /* after a failure too: rows change before the next */
	r = r ? r : synced;
	if (!r && *d->results)
		r = te__fail(-TE_ESTATE, "te_decoder_step: %u of %lld tokens are outside the cache",
			     *d->results, (long long)rows);
	if (r < 0)
		return r;
	for (int64_t i = 0; i < rows; i++)
		d->state[d->row_sequence[i]].ncached++;
	take_logits(d, d->last, n);
	return left;
}

int64_t te_decoder_step(struct te_decoder *d)
{
	return d ? step(d) : te__fail(-EINVAL, "te_decoder_step: d is NULL");
}

/* ---- results ---- */

static int most_likely(struct te_decoder *d, const struct seq_state *q, int32_t *ret_token)
{
	uint64_t key = 0;
	int r;

	for (int i = 0; i < TE_K_ARGMAX_PARTS && q->best; i++)
		key = q->best[i] > key ? q->best[i] : key;
	if (key && !(key & TE_K_ARGMAX_NOT_FINITE)) {
		*ret_token = (int32_t)te_k_argmax_column(key);
		return 0;
	}
	r = read_logits(d);
	return r < 0 ? r : te__most_likely("te_decoder_take", q->raw, d->vocab, ret_token);
}

int te_decoder_take(struct te_decoder *d, int32_t s, int32_t *ret_token)
{
	static const char fn[] = "te_decoder_take";
	struct seq_state *q;
	int32_t token;
	int r = find(fn, d, s, &q);

	if (!r && !ret_token)
		r = te__fail(-EINVAL, "%s: ret_token is NULL", fn);
	if (r < 0 || !q->ready)
		return r;
	if (q->ntokens == d->o.max_tokens)
		return te__fail(-ENOSPC, "%s: sequence %d: has max_tokens, %d", fn, s,
				d->o.max_tokens);
	if (q->raw && te__is_greedy(&q->how)) {
		r = most_likely(d, q, &token);
	} else {
		r = decode_logits(d, q);
		r = r ? r : te__choose(fn, &q->how, q->logits, d->vocab, q->token, q->ntokens,
				       d->room, d->marks, &token);
	}
	if (r < 0)
		return r;
	q->token[q->ntokens++] = token;
	q->ready = 0;
	*ret_token = token;
	return 1;
}

const float *te_decoder_logits(const struct te_decoder *d, int32_t s, int64_t *ret_n)
{
	struct seq_state *q = NULL;

	if (find("te_decoder_logits", d, s, &q) < 0 || !q->ready)
		return NULL;
	if (decode_logits((struct te_decoder *)(uintptr_t)d, q) < 0)
		return NULL;
	if (ret_n)
		*ret_n = d->vocab;
	return q->logits;
}

int64_t te_decoder_length(const struct te_decoder *d, int32_t s)
{
	struct seq_state *q = NULL;
	int r = find("te_decoder_length", d, s, &q);

	return r < 0 ? r : q->ntokens;
}
