/*
 * columns.c - column-wise copies of weights that a plan makes in its arena: TE_SEQ_RECOMPUTE_COLS.
 *
 * A group that reads such a copy has a buffer for it, which lives in this group only, and begins
 * with a kernel that fills it. Codes with one scale, or with a scale for squares of 128, are the
 * row-wise copy, transposed; all others are cast from the master again.
 *
 * With parts of the masters, te_seq_binding.fetch, there is no row-wise copy: each group that reads
 * codes casts both copies, from the master that hosted.c has brought to the arena.
 *
 * These kernels do nothing where a copy is of the present version of the masters. A buffer loses
 * its contents between passes, so versions are of the plan's passes instead: each pass begins with
 * another one.
 */
#define TE_LOG_CATEGORY "core/plan"

#include "libtecore/base/private.h"

#include "libtecore/plan/build.h"
#include "libtecore/tensor/ctx.h"

/* device memory of a column; the version of the passes goes before the first */
struct state {
	struct te_k_weights_done done;
	struct te_k_weight table;
};
#define VERSION_NBYTES 64

size_t te__columns_nbytes(const struct te_plan *p)
{
	return p->ncolumns ? VERSION_NBYTES + (size_t)p->ncolumns * sizeof(struct state) : 0;
}

static int is_builtin(const struct te_fusion *f)
{
	for (int k = 0; k < te__nfusions; k++)
		if (f == &te__fusions[k] || f == te__fusions[k].backward)
			return 1;
	return (f->flags & TE__FUSION_LIBRARY) != 0;
}

/* does the step read a column-wise copy of its first weight, which no set has? */
static int reads(const struct te_plan *p, const struct te__group *g, const struct te__step *s)
{
	const struct te_op *op = p->seq->op[s->node];

	if (s->kind <= TE__STEP_DW && op->nweights && te__hosted_reads(p, g, s, 0))
		return (p->node[s->node].inf.weight_forms[0] & TE__FORM_CODES) != 0;
	if (s->kind > TE__STEP_DW || !op->nweights ||
	    !(p->node[s->node].inf.weight_forms[0] & TE_FORM_COL) ||
	    !te__build_need_dx(p, s->node) ||
	    !te__weight_recomputes_cols(p->seq, &p->seq->weight[p->seq->op_weight[s->node][0]]))
		return 0;
	/* the library's linear reads it for the gradient of its input; any pass of others may */
	return s->kind == TE__STEP_BWD || !op->is_library || (g->fusion && !is_builtin(g->fusion));
}

static const struct te__need *need_of(const struct te_plan *p, const struct te__step *s)
{
	return &p->need[p->need_of[p->seq->op_weight[s->node][0]]];
}

/* extents of the codes */
static void extents(const struct te__need *need, int64_t *ret_rows, int64_t *ret_cols)
{
	*ret_rows = te__fp8_extent(te_tensor_rows(need->t_q));
	*ret_cols = te__fp8_extent(te_tensor_cols(need->t_q));
}

/* bytes of the codes, rounded up: the scales of blocks follow */
static size_t codes_nbytes(const struct te__need *need)
{
	int64_t rows, cols;
	size_t n;

	extents(need, &rows, &cols);
	n = (size_t)te__nbytes_of((int32_t)te_tensor_dtype(need->t_q), rows * cols);
	return (n + TE__PLAN_ALIGN - 1) / TE__PLAN_ALIGN * TE__PLAN_ALIGN;
}

static size_t scales_nbytes(const struct te__need *need)
{
	const enum te_scaling scaling = te_tensor_scaling(need->t_q);
	int64_t rows, cols;

	extents(need, &rows, &cols);
	return scaling ? (size_t)te_scaling_nfloats(scaling, cols, rows) * sizeof(float) : 0;
}

/* both copies are made, from a master in the arena */
static int is_whole(const struct te_plan *p, const struct te__need *need)
{
	return te__weight_is_divided(p->seq, &p->seq->weight[need->weight]);
}

/* offsets in the buffer of a column. Row-wise codes are at 0 and have scales if it is whole, and
 * are not there else */
struct places {
	size_t col, scale_inv, col_scale_inv, part, nbytes;
};

static struct places places_of(const struct te_plan *p, const struct te__need *need)
{
	const enum te_scaling scaling = te_tensor_scaling(need->t_q);
	const size_t n = codes_nbytes(need);
	struct te_k_weight e = { .hp = -1, .scaling = (int32_t)scaling };
	struct places at = { 0 };
	size_t rows = 0;

	extents(need, &e.rows, &e.cols);
	if (is_whole(p, need)) {
		at.col = n;
		rows = (size_t)te_scaling_nfloats(scaling, e.rows, e.cols) * sizeof(float);
		rows = (rows + TE__PLAN_ALIGN - 1) / TE__PLAN_ALIGN * TE__PLAN_ALIGN;
	}
	at.scale_inv = at.col + n;
	at.col_scale_inv = at.scale_inv + (scaling ? rows : 0);
	at.part = at.scale_inv + rows + scales_nbytes(need);
	at.nbytes = at.part;
	if (is_whole(p, need) || scaling >= TE_SCALING_1X16) /* scratch of the amax of a cast */
		at.nbytes += (size_t)te_k_weight_ntiles(&e) * sizeof(float);
	return at;
}

/* from the master; else from the row-wise copy */
static int is_cast(const struct te_plan *p, const struct te__need *need)
{
	return is_whole(p, need) || te_tensor_scaling(need->t_q) >= TE_SCALING_1X32;
}

uint64_t te__column_read_nbytes(const struct te_plan *p, const struct te__column *c)
{
	const struct te__need *need = need_of(p, &p->step[c->step]);
	const struct te__weight *w = &p->seq->weight[need->weight];

	if (!is_cast(p, need))
		return te_tensor_nbytes(need->t_q) + scales_nbytes(need);
	return (uint64_t)te_tensor_nelems(w->master) *
	       (te__seq_is_split(p->seq) && !te__weight_has_rest(p->seq, w) ? 2 : 4);
}

/* ---- making ---- */

/* a column for each weight that the group's steps read so */
static int find_in_group(struct te_plan *p, int t, int make)
{
	const struct te__group *g = &p->group[t];
	const int first = p->ncolumns;

	for (int k = 0; k < g->n; k++) {
		struct te__step *s = &p->step[g->first + k];
		struct te__column *c;
		int same = 0;

		if (!reads(p, g, s))
			continue;
		if (!make) {
			p->ncolumns++;
			continue;
		}
		for (int i = first; i < p->ncolumns; i++)
			if (need_of(p, &p->step[p->column[i].step]) == need_of(p, s))
				same = 1 + i;
		s->column = same ? same : 1 + p->ncolumns;
		if (same)
			continue;
		c = &p->column[p->ncolumns];
		*c = (struct te__column){ .group = t, .step = g->first + k };
		c->buf = te__plan_new_buf(p, places_of(p, need_of(p, s)).nbytes);
		if (c->buf < 0)
			return c->buf;
		p->buf[c->buf].first = p->buf[c->buf].last = t;
		p->ncolumns++;
	}
	return 0;
}

/* the entry of a cast */
static struct te_k_weight entry_of(const struct te_plan *p, const struct te__column *c)
{
	const struct te__need *need = need_of(p, &p->step[c->step]);
	const struct te_tensor *master = p->seq->weight[need->weight].master;
	const struct places at = places_of(p, need);
	struct te_k_weight e = {
		.hp = -1,
		.row = is_whole(p, need) ? 0 : -1,
		.col = (int64_t)at.col,
		.scale_inv = (int64_t)at.scale_inv,
		.col_scale_inv = (int64_t)at.col_scale_inv,
		.dtype = (int32_t)te_tensor_dtype(need->t_q),
		.scaling = (int32_t)te_tensor_scaling(need->t_q),
	};

	extents(need, &e.rows, &e.cols);
	e.pad_rows = (int16_t)(e.rows - te_tensor_rows(master));
	e.pad_cols = (int16_t)(e.cols - te_tensor_cols(master));
	return e;
}

/* versions of 0, and the tables of casts */
static int make_state(struct te_plan *p)
{
	const size_t nbytes = te__columns_nbytes(p);
	void *ptr;
	int r = te__mem_get(p->ctx, nbytes, &ptr);

	if (r)
		return r;
	p->columns_state = ptr;
	r = te__ctx_fill_u32(p->ctx, ptr, 0, nbytes);
	for (int i = 0; i < p->ncolumns && !r; i++) {
		struct state *at = (struct state *)(void *)((char *)ptr + VERSION_NBYTES) + i;
		const struct te_k_weight e = entry_of(p, &p->column[i]);

		if (is_cast(p, need_of(p, &p->step[p->column[i].step])))
			r = te__ctx_copy(p->ctx, &at->table, &e, sizeof(e));
	}
	return r;
}

int te__columns_find(struct te_plan *p)
{
	int r = 0;

	for (int t = 0; t < p->ngroups; t++)
		find_in_group(p, t, 0);
	if (!p->ncolumns)
		return 0;
	p->column = te__calloc((size_t)p->ncolumns, sizeof(*p->column));
	p->ncolumns = 0;
	if (!p->column)
		return te__no_memory("plan");
	for (int t = 0; t < p->ngroups && !r; t++)
		r = find_in_group(p, t, 1);
	if (r)
		return r;
	p->state_nbytes += te__columns_nbytes(p);
	return p->flags & TE_PLAN_NO_ALLOC ? 0 : make_state(p);
}

/* ---- addresses ---- */

static void fill_turn(const struct te_plan *p, struct te__column *c, void *col, float *scales)
{
	struct state *at =
		(struct state *)(void *)((char *)p->columns_state + VERSION_NBYTES) +
		(c - p->column);
	const struct te_tensor *q = need_of(p, &p->step[c->step])->t_q;

	c->turn = (struct te_k_weight_transpose){
		.row = te_tensor_data(q),
		.col = col,
		.version = p->columns_state,
		.done = &at->done,
		.rows = te_tensor_rows(q),
		.cols = te_tensor_cols(q),
		.scaling = (int32_t)te_tensor_scaling(q),
	};
	if (!c->turn.scaling)
		return;
	c->turn.scale_inv = te_tensor_scale_inv(q);
	c->turn.col_scale_inv = scales;
}

static void fill_cast(const struct te_plan *p, struct te__column *c, void *col)
{
	struct state *at =
		(struct state *)(void *)((char *)p->columns_state + VERSION_NBYTES) +
		(c - p->column);
	const struct te__need *need = need_of(p, &p->step[c->step]);
	const struct te__weight *w = &p->seq->weight[need->weight];
	const struct te_k_weight e = entry_of(p, c);
	const struct places places = places_of(p, need);
	const struct te_tensor *master =
		is_whole(p, need) ? te__hosted_tensor(p, &p->step[c->step], need->weight, 0) :
				    w->master;

	c->cast = (struct te_k_weights){
		.table = &at->table,
		.masters = te_tensor_data(master),
		.rest = w->rest,
		.copies = col,
		.version = p->columns_state,
		.done = &at->done,
		.nmasters = te_tensor_nelems(w->master),
		.copies_nbytes = (int64_t)places.part,
		.ntiles = te_k_weight_ntiles(&e),
		.n = 1,
		.part = (float *)(void *)((char *)col + places.part),
		.scaling = e.scaling,
		.split = te__seq_is_split(p->seq),
	};
	c->flags = te__quant_weights(te__plan_quant(p, need->slot), need->slot, 1, &c->cast);
}

void te__columns_unbind(struct te_plan *p)
{
	for (int i = 0; i < p->ncolumns; i++)
		p->column[i].t = te_tensor_unref(p->column[i].t);
}

/* the copies of the sequence and of the plan in one tensor */
static int bind_column(const struct te_plan *p, struct te__column *c)
{
	const struct te__need *need = need_of(p, &p->step[c->step]);
	const struct te__buf *b = &p->buf[c->buf];
	char *buf = p->bound ? p->span[b->span] + b->offset : TE__NOWHERE;
	const enum te_scaling scaling = te_tensor_scaling(need->t_q);
	const struct places at = places_of(p, need);
	const int whole = is_whole(p, need);
	float *rows = whole ? (float *)(void *)(buf + at.scale_inv) :
			      te_tensor_scale_inv(need->t_q);
	float *scales = scaling ? (float *)(void *)(buf + at.col_scale_inv) : rows;
	const struct te_spec s = te__spec_of(need->t_q);

	/* a plan without memory launches nothing */
	if (p->columns_state && is_cast(p, need))
		fill_cast(p, c, buf);
	else if (p->columns_state)
		fill_turn(p, c, buf, scales);
	return te__tensor_wrap_scaled(p->ctx, s.dtype, s.ndim, s.shape,
				      whole ? buf : te_tensor_data(need->t_q), buf + at.col, rows,
				      scales, scaling, &c->t);
}

int te__columns_bind(struct te_plan *p)
{
	int r = 0;

	for (int i = 0; i < p->ncolumns && !r; i++)
		r = bind_column(p, &p->column[i]);
	return r;
}

/* ---- passes ---- */

int te__columns_begin(const struct te_plan *p, struct te_stream *stream, int first, int n)
{
	const struct te_k_weights_changed next = { p->columns_state };

	for (int i = 0; i < p->ncolumns; i++)
		if (p->column[i].group >= first && p->column[i].group < first + n)
			return TE__LAUNCH(stream, WEIGHTS_CHANGED, &next);
	return 0;
}

int te__columns_run(const struct te_plan *p, struct te_stream *stream, const struct te__group *g)
{
	int r = 0;

	for (int k = 0; k < g->n && !r; k++) {
		const struct te__step *s = &p->step[g->first + k];
		const struct te__column *c = s->column ? &p->column[s->column - 1] : NULL;

		if (!c || c->step != g->first + k)
			continue;
		if (c->turn.row) {
			r = TE__LAUNCH(stream, WEIGHT_TRANSPOSE, &c->turn);
			continue;
		}
		if (c->cast.scaling >= TE_K_SCALING_1X16 || c->flags & TE__WEIGHTS_OWN_AMAX)
			r = TE__LAUNCH(stream, WEIGHTS_AMAX, &c->cast);
		if (!r)
			r = TE__LAUNCH(stream, WEIGHTS_CAST, &c->cast);
	}
	return r;
}
