/* t/ops/op_run.c - runs one op through its table; see op_run.h. */
#include "config.h"

#include <te/errno.h>
#include <te/stream.h>

#include "op_run.h"

/* slots of the quantizers: x, weight, dy */
#define SLOT_WEIGHT 1

struct te_recipe op_run_recipe(const char *name)
{
	struct te_recipe r = tt_recipe(name);

	if (r.kind == TE_RECIPE_DELAYED)
		r.history_len = 4;
	return r;
}

struct te_spec op_run_spec(enum te_dtype dtype, int ndim, int64_t a, int64_t b, int64_t c)
{
	return (struct te_spec){ dtype, ndim, { a, b, c } };
}

static struct te_tensor *make(struct op_run *r, const struct te_spec *s, uint32_t flags,
			      enum te_scaling scaling)
{
	struct te_tensor_opts o = TE_TENSOR_OPTS_INIT;
	struct te_tensor *t;
	void *poison;

	o.flags = flags;
	o.scaling = scaling;
	DO(te_tensor_create(r->ctx, s->dtype, s->ndim, s->shape, &o, &t));
	if (flags)
		return t;
	poison = malloc(te_tensor_nbytes(t));
	tt_poison(poison, te_tensor_nbytes(t));
	DO(te_tensor_write(t, poison, te_tensor_nbytes(t)));
	free(poison);
	return t;
}

/* a value, and its FP8 copies where asked for */
static void make_value(struct op_run *r, struct te_op_value *v, const struct te_spec *s,
		       uint32_t forms, int slot)
{
	const uint32_t both = TE_TENSOR_ROWWISE | TE_TENSOR_COLWISE;
	enum te_scaling scaling = TE_SCALING_TENSOR;
	struct te_spec q = *s;

	v->hp = make(r, s, 0, TE_SCALING_TENSOR);
	v->slot = slot;
	if (!(forms & (TE_FORM_ROW | TE_FORM_COL)))
		return;
	v->quant = r->quant;
	q.dtype = te_quant_dtype(r->quant, slot);
	if (r->recipe.kind == TE_RECIPE_BLOCK)
		scaling = slot == SLOT_WEIGHT ? TE_SCALING_128X128 : TE_SCALING_1X128;
	v->q = make(r, &q, both, scaling);
}

/* the arrays that a call gets, empty */
static void arrays(const struct op_run *r, struct op_arrays *a, struct te_op_call *c)
{
	memset(a, 0, sizeof(*a));
	ck_assert_int_le(r->ops->nextra_in, MOST);
	ck_assert_int_le(r->ops->nextra_out, MOST);
	ck_assert_int_le(r->op->nweights, MOST);
	ck_assert_int_le(r->inf.nsaved, MOST);
	c->ex = a->ex;
	c->ey = a->ey;
	c->dex = a->dex;
	c->dey = a->dey;
	c->weight = a->weight;
	c->master = r->master;
	c->grad = r->no_grad;
	c->saved = r->saved;
}

static void all_arrays(struct op_run *r)
{
	arrays(r, &r->all, &r->call);
	r->call.grad = r->grad;
}

void op_run_init(struct op_run *r, struct te_ctx *ctx, struct te_op *op,
		 const struct te_recipe *recipe, const struct te_spec *in)
{
	static const enum te_dtype dtypes[3] = { TE_DTYPE_E4M3, TE_DTYPE_E4M3, TE_DTYPE_E5M2 };
	const struct te_op_infer *inf = &r->inf;
	struct te_op_call *c = &r->call;

	memset(r, 0, sizeof(*r));
	r->ctx = ctx;
	r->stream = te_ctx_stream(ctx);
	r->op = op;
	r->ops = te_op_table(op);
	r->recipe = *recipe;
	DO(te__infer(op, &r->recipe, TE_INFER_TRAIN, in, &r->inf));
	if (r->recipe.kind != TE_RECIPE_NONE)
		DO(te_quant_create(ctx, &r->recipe, 3, dtypes, &r->quant));
	all_arrays(r);
	c->size = sizeof(*c);
	c->op = op;
	c->stream = r->stream;
	c->flags = TE_CALL_TRAIN;
	c->tag = 5;
	c->grad_scale = 1;
	make_value(r, &c->x, &inf->in[0], inf->fwd_x | inf->dw_x, 0);
	make_value(r, &c->y, &inf->out[0], 0, -1);
	make_value(r, &c->dy, &inf->out[0], inf->bwd_dy | inf->dw_dy, 2);
	make_value(r, &c->dx, &inf->in[0], 0, -1);
	for (int k = 0; k < r->ops->nextra_in; k++) {
		make_value(r, &r->all.ex[k], &inf->in[1 + k], 0, -1);
		make_value(r, &r->all.dex[k], &inf->in[1 + k], 0, -1);
	}
	for (int k = 0; k < r->ops->nextra_out; k++) {
		make_value(r, &r->all.ey[k], &inf->out[1 + k], 0, -1);
		make_value(r, &r->all.dey[k], &inf->out[1 + k], 0, -1);
	}
	for (int k = 0; k < inf->nsaved; k++)
		r->saved[k] = make(r, &inf->saved[k], 0, TE_SCALING_TENSOR);
	for (int k = 0; k < op->nweights; k++) {
		const struct te_weight_decl *d = &op->decl[k];
		struct te_spec s = { TE_DTYPE_FP32, d->ndim, { 0 } };

		memcpy(s.shape, d->shape, sizeof(s.shape));
		r->master[k] = make(r, &s, 0, TE_SCALING_TENSOR);
		r->grad[k] = make(r, &s, 0, TE_SCALING_TENSOR);
		DO(te_fill(r->stream, te_tensor_data(c->grad[k]), 0,
			   te_tensor_nbytes(c->grad[k])));
		s.dtype = r->recipe.compute;
		if (inf->weight_forms[k])
			make_value(r, &r->all.weight[k], &s, inf->weight_forms[k], SLOT_WEIGHT);
	}
	r->ws_nbytes = inf->fwd_ws_nbytes;
	if (inf->bwd_ws_nbytes > r->ws_nbytes)
		r->ws_nbytes = inf->bwd_ws_nbytes;
	if (inf->dw_ws_nbytes > r->ws_nbytes)
		r->ws_nbytes = inf->dw_ws_nbytes;
	if (r->ws_nbytes)
		DO(te_mem_alloc(r->stream, r->ws_nbytes, &r->ws));
	DO(te_mem_alloc(r->stream, 2 * sizeof(*r->rng), (void **)&r->rng));
	op_run_seed(r, tt_seed(), 3);
	c->rng.seed = r->rng;
	c->rng.offset = r->rng + 1;
}

static void drop(struct te_op_value *v)
{
	te_tensor_unref(v->hp);
	te_tensor_unref(v->q);
}

void op_run_fini(struct op_run *r)
{
	struct te_op_call *c = &r->call;

	DO(te_stream_sync(r->stream));
	drop(&c->x);
	drop(&c->y);
	drop(&c->dx);
	drop(&c->dy);
	for (int k = 0; k < MOST; k++) {
		drop(&r->all.ex[k]);
		drop(&r->all.ey[k]);
		drop(&r->all.dex[k]);
		drop(&r->all.dey[k]);
		drop(&r->all.weight[k]);
		te_tensor_unref(r->saved[k]);
		te_tensor_unref(r->master[k]);
		te_tensor_unref(r->grad[k]);
	}
	te__infer_free(&r->inf);
	te_quant_unref(r->quant);
	if (r->ws)
		DO(te_mem_free(r->stream, r->ws));
	DO(te_mem_free(r->stream, r->rng));
	DO(te_stream_sync(r->stream));
}

void op_run_seed(struct op_run *r, uint64_t seed, uint64_t offset)
{
	uint64_t words[2] = { seed, offset };

	DO(te_copy(r->stream, r->rng, words, sizeof(words)));
	DO(te_stream_sync(r->stream));
}

float *op_run_get_fp8(const struct te_tensor *t, int colwise)
{
	struct te_stream *st = te_ctx_stream(te_tensor_ctx(t));
	int64_t rows = te_tensor_rows(t), cols = te_tensor_cols(t);
	uint8_t *code = malloc((size_t)(rows * cols));
	const enum te_scaling scaling = te_tensor_scaling(t);
	/* extents of the copy as it is stored */
	const int64_t m = colwise ? cols : rows, n = colwise ? rows : cols;
	const size_t nscales = (size_t)te_scaling_nfloats(scaling, m, n);
	float *v = malloc((size_t)(rows * cols) * sizeof(*v));
	float *scale_inv = malloc(nscales * sizeof(*scale_inv));

	DO(te_copy(st, code, colwise ? te_tensor_coldata(t) : te_tensor_data(t),
		   (size_t)(rows * cols)));
	DO(te_copy(st, scale_inv, colwise ? te_tensor_col_scale_inv(t) : te_tensor_scale_inv(t),
		   nscales * sizeof(*scale_inv)));
	DO(te_stream_sync(st));
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++)
			v[colwise ? j * m + i : i * n + j] =
				scale_inv[te_scaling_index(scaling, m, n, i, j)] *
				te_fp8_decode(te_tensor_dtype(t), code[i * n + j]);
	free(scale_inv);
	free(code);
	return v;
}

/* only the forms asked for */
static struct te_op_value part(const struct te_op_value *v, uint32_t forms)
{
	struct te_op_value p = { NULL, NULL, NULL, v->slot };

	if (forms & TE_FORM_HP)
		p.hp = v->hp;
	if (forms & (TE_FORM_ROW | TE_FORM_COL)) {
		p.q = v->q;
		p.quant = v->quant;
	}
	return p;
}

static void none(struct te_op_value *v)
{
	memset(v, 0, sizeof(*v));
}

/* the weights as the functions see them */
static void weights(const struct op_run *r, struct op_arrays *a)
{
	for (int k = 0; k < r->op->nweights; k++)
		a->weight[k] = part(&r->all.weight[k], r->inf.weight_forms[k]);
}

static void scribble(struct op_run *r)
{
	if (r->ws)
		DO(te_fill(r->stream, r->ws, 0xff, r->ws_nbytes));
}

void op_run_forward(struct op_run *r)
{
	struct te_op_call *all = &r->call, c = r->call;
	struct op_arrays a;

	arrays(r, &a, &c);
	for (int k = 0; k < r->op->nweights; k++) {
		if (all->weight[k].hp)
			DO(te_cast(r->stream, all->master[k], all->weight[k].hp));
		if (all->weight[k].q)
			DO(te_quantize(r->stream, r->quant, 1, all->master[k], all->weight[k].q,
				       NULL, 0));
	}
	if (all->x.q)
		DO(te_quantize(r->stream, r->quant, 0, all->x.hp, all->x.q, NULL, 0));
	c.x = part(&all->x, r->inf.fwd_x);
	none(&c.dy);
	none(&c.dx);
	if (r->inf.out_alias[0] == 0)
		c.y = c.x;
	memcpy(a.ex, r->all.ex, sizeof(a.ex));
	memcpy(a.ey, r->all.ey, sizeof(a.ey));
	weights(r, &a);
	scribble(r);
	c.ws = r->inf.fwd_ws_nbytes ? r->ws : NULL;
	c.ws_nbytes = r->inf.fwd_ws_nbytes;
	if (r->ops->forward)
		DO(r->ops->forward(&c));
	DO(te_stream_sync(r->stream));
}

static void backward_call(struct op_run *r, struct te_op_call *c, struct op_arrays *a, uint32_t x,
			  uint32_t y, uint32_t dy, int32_t ex, size_t ws_nbytes)
{
	*c = r->call;
	arrays(r, a, c);
	if (r->call.dy.q)
		DO(te_quantize(r->stream, r->quant, 2, r->call.dy.hp, r->call.dy.q, NULL, 0));
	c->x = part(&r->call.x, x);
	c->y = part(&r->call.y, y);
	c->dy = part(&r->call.dy, dy);
	memcpy(a->dex, r->all.dex, sizeof(a->dex));
	memcpy(a->dey, r->all.dey, sizeof(a->dey));
	for (int k = 0; k < r->ops->nextra_in; k++)
		if (r->inf.save_ex[k] & ex)
			a->ex[k] = r->all.ex[k];
	weights(r, a);
	scribble(r);
	c->ws = ws_nbytes ? r->ws : NULL;
	c->ws_nbytes = ws_nbytes;
}

void op_run_backward(struct op_run *r)
{
	struct op_arrays a;
	struct te_op_call c;

	if (!r->ops->backward || r->inf.dx_alias >= 0)
		return;
	backward_call(r, &c, &a, r->inf.save_x, r->inf.save_y, r->inf.bwd_dy, 1,
		      r->inf.bwd_ws_nbytes);
	DO(r->ops->backward(&c));
	DO(te_stream_sync(r->stream));
}

void op_run_dw(struct op_run *r)
{
	struct op_arrays a;
	struct te_op_call c;

	if (!r->ops->backward_dw)
		return;
	backward_call(r, &c, &a, r->inf.dw_x, r->inf.dw_y, r->inf.dw_dy, 2, r->inf.dw_ws_nbytes);
	none(&c.dx);
	c.grad = r->grad;
	DO(r->ops->backward_dw(&c));
	DO(te_stream_sync(r->stream));
}

struct te_tensor *op_run_dx(const struct op_run *r)
{
	return r->inf.dx_alias < 0 ? r->call.dx.hp : r->call.dy.hp;
}

struct te_tensor *op_run_dex(const struct op_run *r, int k)
{
	return r->inf.dex_alias[k] < 0 ? r->call.dex[k].hp : r->call.dy.hp;
}

struct te_tensor *op_run_y(const struct op_run *r)
{
	return r->inf.out_alias[0] < 0 ? r->call.y.hp : r->call.x.hp;
}
