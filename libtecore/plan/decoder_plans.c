/*
 * decoder_plans.c - what a decoder is created with: checks of its options and of the ops of its
 * sequence, memory, and plans whose embedding, rope and attention read positions and caches.
 */
#define TE_LOG_CATEGORY "core/decoder"
#include <errno.h>
#include <string.h>

#include "libtecore/plan/decoder.h"

#define CHUNK 128
#define PAGE 64
/* alignment of integers of struct inputs */
#define ALIGN_INTS 64

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
	for (int i = 0; i < d->first_head && d->has_attn_step; i++)
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

int te__decoder_make(struct te_decoder *d)
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
