/*
 * weights.c - the compute copies of a sequence's weights, and their refresh.
 *
 * Weights that the caller has bound are read in place. They have at most a column-wise copy, which
 * is a separate set: its launch then names exactly the memory that it reads.
 *
 * A plan needs FP8 or BF16 copies of some weights. Copies that no earlier plan of the sequence made
 * become a set: one allocation, refreshed as a whole by one launch, or by two if scales are
 * computed from the weights' amaxes. A forward pass begins by refreshing the sets that it needs.
 * Whether a set is current is decided on the device: by the masters' version, which the sequence
 * keeps, and the version that the set was made from.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>

#include <te/errno.h>
#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"

static int no_memory(void)
{
	return te__fail(-ENOMEM, "plan: no memory for weight copies");
}

static size_t aligned(size_t nbytes)
{
	return (nbytes + TE__PLAN_ALIGN - 1) / TE__PLAN_ALIGN * TE__PLAN_ALIGN;
}

/* take nbytes more; returns their offset */
static int64_t take(size_t *end, size_t nbytes)
{
	const size_t at = *end;

	*end = at + aligned(nbytes);
	return (int64_t)at;
}

static size_t scales_nbytes(int32_t scaling, int64_t rows, int64_t cols)
{
	return (size_t)te_k_scale_nfloats(scaling, rows, cols) * sizeof(float);
}

static struct te__weight *weight_of(const struct te_plan *p, int need)
{
	return &p->seq->weight[p->need[need].weight];
}

/* a copy of values: in the compute dtype; of BF16 masters, which need no such copy, FP32 */
static int wants_values(const struct te_plan *p, int need)
{
	return (p->need[need].forms &
		(te__seq_is_split(p->seq) ? TE__FORM_FP32 : TE_FORM_HP)) != 0;
}

static int wants_codes(const struct te_plan *p, int need)
{
	return (p->need[need].forms & TE__FORM_CODES) != 0;
}

/* a set has the codes of one recipe, and the set of the plan's quantizers the values, too */
static int values_in(const struct te_plan *p, int need, const struct te_quant *quant)
{
	return quant == p->quant && wants_values(p, need);
}

static int codes_in(const struct te_plan *p, int need, const struct te_quant *quant)
{
	return wants_codes(p, need) && te__plan_quant(p, p->need[need].slot) == quant;
}

/* a bound weight's column-wise copy */
static int wants_transpose(const struct te_plan *p, int need)
{
	const struct te_tensor *t = weight_of(p, need)->value;

	return t && p->need[need].forms & TE_FORM_COL && !te_tensor_coldata(t) &&
	       !te__weight_recomputes_cols(p->seq, weight_of(p, need));
}

/* ---- making a set ---- */

/* 1: the copies of a weight are in the set, whose masters all have remainders, or none has */
static int is_in_set(const struct te__copies *set, const struct te__weight *w)
{
	return !w->value && (w->rest != NULL) == (set->args.rest != NULL);
}

/* the copies that the plan needs and, unless all is set, the sequence lacks; codes both ways, as a
 * later plan may need the other, except where no plan can train or plans make column-wise copies */
static void table_fill(const struct te_plan *p, int all, struct te_quant *quant,
		       struct te__copies *set, struct te_k_weight *table)
{
	const int row_only =
		(p->seq->binding.flags & (TE_SEQ_NO_GRADS | TE_SEQ_RECOMPUTE_COLS)) != 0;
	const enum te_dtype values = te__seq_is_split(p->seq) ? TE_DTYPE_FP32 : TE_DTYPE_BF16;
	struct te_k_weights *a = &set->args;
	int32_t lo = INT32_MAX, hi = 0;
	size_t nbytes = 0;

	a->split = te__seq_is_split(p->seq);

	for (int i = 0; i < p->nneeds; i++) {
		const struct te__weight *w = weight_of(p, i);
		const struct te_k_weight none = {
			.master = te__weight_own_offset(p->seq, w),
			.rows = w->value ? 0 : te_tensor_rows(w->master),
			.cols = w->value ? 0 : te_tensor_cols(w->master),
			.hp = -1,
			.row = -1,
			.col = -1,
		};

		if ((all ? w->value != NULL : !is_in_set(set, w)) ||
		    te__weight_is_divided(p->seq, w))
			continue;
		if (values_in(p, i, quant) && (all || !w->copy_hp)) {
			table[a->n] = none;
			table[a->n++].hp = 0;
			set->has_frozen |= !te__weight_trains(w);
		}
		if (codes_in(p, i, quant) && (all || !w->copy_q)) {
			const int32_t slot = p->need[i].slot;
			const struct te__operand how = te__plan_operand(p, slot, TE__ROLE_WEIGHT);

			set->has_frozen |= !te__weight_trains(w);
			table[a->n] = none;
			table[a->n].slot = slot;
			table[a->n].scaling = (int32_t)how.scaling;
			table[a->n].rows = te__fp8_extent(none.rows);
			table[a->n].cols = te__fp8_extent(none.cols);
			table[a->n].pad_rows = (int16_t)(table[a->n].rows - none.rows);
			table[a->n].pad_cols = (int16_t)(table[a->n].cols - none.cols);
			table[a->n++].dtype = (int32_t)how.dtype;
			lo = slot < lo ? slot : lo;
			hi = slot > hi ? slot : hi;
		}
	}
	for (int32_t i = 0; i < a->n; i++) {
		struct te_k_weight *w = &table[i];
		const size_t n = (size_t)(w->rows * w->cols);

		w->tile = a->ntiles;
		if (w->scaling)
			a->scaling = w->scaling;
		a->ntiles += te_k_weight_ntiles(w);
		if (w->hp >= 0) {
			w->hp = take(&nbytes, n * te_dtype_nbytes(values));
			continue;
		}
		w->slot -= lo;
		w->row = take(&nbytes, (size_t)te__nbytes_of(w->dtype, (int64_t)n));
		if (!row_only)
			w->col = take(&nbytes, (size_t)te__nbytes_of(w->dtype, (int64_t)n));
		w->scale_inv = take(&nbytes, scales_nbytes(w->scaling, w->rows, w->cols));
		w->col_scale_inv = w->scale_inv;
		if (w->scaling != TE_K_SCALING_TENSOR && !row_only)
			w->col_scale_inv =
				take(&nbytes, scales_nbytes(w->scaling, w->cols, w->rows));
	}
	a->copies_nbytes = (int64_t)nbytes;
	if (hi)
		set->flags = te__quant_weights(quant, lo, hi - lo + 1, a);
}

/* offsets in the state of a set; alone: of each entry as a set of one, 0: there are none */
struct layout {
	size_t table, part, alone, alone_done, nbytes;
};

static struct layout state_layout(const struct te_seq *seq, const struct te__copies *set)
{
	const struct te_k_weights *a = &set->args;
	const size_t n = (size_t)a->n, table = aligned(n * sizeof(*a->table));
	struct layout at = { .table = aligned(sizeof(*a->done)) };

	at.part = at.table + table;
	at.nbytes = at.part + (size_t)a->ntiles * sizeof(*a->part);
	if (!(seq->binding.flags & TE_SEQ_HOST_MASTERS) ||
	    seq->binding.flags & TE_SEQ_REMAINDERS || set->has_frozen)
		return at;
	at.alone = aligned(at.nbytes);
	at.alone_done = at.alone + table;
	at.nbytes = at.alone_done + n * sizeof(*a->done);
	return at;
}

/* where the memory of an entry begins */
static int64_t entry_begin(const struct te_k_weight *e)
{
	return e->hp < 0 ? e->row : e->hp;
}

/* an entry at the beginning of its own memory */
static struct te_k_weight entry_alone(const struct te_k_weight *e)
{
	const int64_t begin = entry_begin(e);
	struct te_k_weight w = *e;

	w.master = w.tile = 0;
	w.slot = 0;
	if (w.hp >= 0) {
		w.hp = 0;
		return w;
	}
	w.row -= begin;
	w.col -= w.col < 0 ? 0 : begin;
	w.scale_inv -= begin;
	w.col_scale_inv -= begin;
	return w;
}

void te__copies_alone(const struct te__copies *set, int i, const void *master,
		      struct te_k_weights *ret)
{
	const struct te_k_weight *e = &set->table[i];
	const int64_t begin = entry_begin(e);
	const int64_t end = i + 1 < set->args.n ? entry_begin(e + 1) : set->args.copies_nbytes;
	struct te_k_weights a = set->args;

	a.table = set->alone + i;
	a.done = set->alone_done + i;
	a.masters = master;
	a.nmasters = (e->rows - e->pad_rows) * (e->cols - e->pad_cols);
	a.copies = (char *)a.copies + begin;
	a.copies_nbytes = end - begin;
	a.part += e->tile;
	a.ntiles = te_k_weight_ntiles(e);
	a.n = 1;
	a.scaling = TE_K_SCALING_TENSOR;
	if (e->hp < 0) {
		a.scaling = e->scaling;
		a.scale = a.scale ? a.scale + e->slot : NULL;
		a.amax = a.amax ? a.amax + (int64_t)e->slot * a.window : NULL;
		a.nslots = a.scale ? 1 : 0;
	} else {
		a.scale = a.amax = NULL;
		a.nslots = 0;
	}
	a.record = e->hp < 0 && set->flags & TE__WEIGHTS_RECORD;
	*ret = a;
}

/* the column-wise copy of a bound weight: bytes, and offset of its scales; 0: no such copy */
static size_t transpose_layout(const struct te_tensor *t, size_t *ret_scales_at)
{
	const size_t n = aligned(te_tensor_nbytes(t));

	*ret_scales_at = te_tensor_scaling(t) ? n : 0;
	return !*ret_scales_at ? n : n + aligned(scales_nbytes((int32_t)te_tensor_scaling(t),
							      te_tensor_cols(t),
							      te_tensor_rows(t)));
}

/* quantizers of the k-th set, of 1 + nothers */
static struct te_quant *quant_of_set(const struct te_plan *p, int k)
{
	return k ? p->other[k - 1] : p->quant;
}

/* bytes of the plan's copies if no other plan has made them */
static int measure(struct te_plan *p)
{
	struct te_k_weight *table = te__calloc(2 * (size_t)p->nneeds + 1, sizeof(*table));
	size_t scales_at;

	if (!table)
		return no_memory();
	for (int k = 0; k <= p->nothers; k++) {
		struct te__copies set = { 0 };

		table_fill(p, 1, quant_of_set(p, k), &set, table);
		if (set.args.n)
			p->copies_nbytes += (uint64_t)set.args.copies_nbytes +
					    state_layout(p->seq, &set).nbytes;
	}
	te__free(table);
	for (int i = 0; i < p->nneeds; i++)
		if (wants_transpose(p, i))
			p->copies_nbytes += transpose_layout(weight_of(p, i)->value, &scales_at) +
					    aligned(sizeof(struct te_k_weights_done));
	return 0;
}

static int upload_alone(struct te_ctx *ctx, struct te__copies *set, const struct layout *at)
{
	const size_t n = (size_t)set->args.n, nbytes = n * sizeof(*set->alone);
	struct te_k_weight *table = te__malloc(nbytes);
	char *state = set->state;
	int r = table ? 0 : no_memory();

	for (size_t i = 0; i < n && !r; i++)
		table[i] = entry_alone(&set->table[i]);
	if (!r)
		r = te__ctx_copy(ctx, state + at->alone, table, nbytes);
	te__free(table);
	if (r)
		return r;
	set->alone = (struct te_k_weight *)(void *)(state + at->alone);
	set->alone_done = (struct te_k_weights_done *)(void *)(state + at->alone_done);
	return te__ctx_fill_u32(ctx, set->alone_done, 0, n * sizeof(*set->alone_done));
}

static int set_upload(const struct te_seq *seq, struct te__copies *set)
{
	const struct layout at = state_layout(seq, set);
	struct te_k_weights *a = &set->args;
	char *state;
	int r = set == seq->part_set ? 0 :
				       te__mem_get(seq->ctx, (size_t)a->copies_nbytes, &a->copies);

	if (!r)
		r = te__mem_get(seq->ctx, at.nbytes, &set->state);
	if (r < 0)
		return r;
	state = set->state;
	a->done = (struct te_k_weights_done *)(void *)state;
	a->table = (struct te_k_weight *)(void *)(state + at.table);
	a->part = (float *)(void *)(state + at.part);
	r = te__ctx_fill_u32(seq->ctx, state, 0, sizeof(*a->done));
	if (!r)
		r = te__ctx_copy(seq->ctx, state + at.table, set->table,
				 (size_t)a->n * sizeof(*set->table));
	return r || !at.alone ? r : upload_alone(seq->ctx, set, &at);
}

/* the tensors over an entry's memory */
static int entry_wrap(struct te_ctx *ctx, const struct te__copies *set, struct te__weight *w,
		      const struct te_k_weight *e)
{
	const struct te_weight_decl *d = &w->decl;
	const int padded = e->pad_rows || e->pad_cols;
	const int64_t shape[2] = { e->rows, e->cols };
	char *base = set->args.copies;

	if (e->hp >= 0)
		return te_tensor_wrap(ctx, set->args.split ? TE_DTYPE_FP32 : TE_DTYPE_BF16, d->ndim,
				      d->shape, base + e->hp, NULL, NULL, &w->copy_hp);
	return te__tensor_wrap_scaled(ctx, (enum te_dtype)e->dtype, padded ? 2 : d->ndim,
				      padded ? shape : d->shape, base + e->row,
				      e->col < 0 ? NULL : base + e->col,
				      (float *)(void *)(base + e->scale_inv),
				      (float *)(void *)(base + e->col_scale_inv),
				      (enum te_scaling)e->scaling, &w->copy_q);
}

/* in the order of table_fill */
static int set_wrap(struct te_plan *p, struct te__copies *set, const struct te_quant *quant)
{
	const struct te_k_weight *e = set->table;
	int r = 0;

	for (int i = 0; i < p->nneeds && !r; i++) {
		struct te__weight *w = weight_of(p, i);

		if (!is_in_set(set, w) || te__weight_is_divided(p->seq, w))
			continue;
		if (values_in(p, i, quant) && !w->copy_hp) {
			r = entry_wrap(p->ctx, set, w, e++);
			w->set_hp = set;
		}
		if (!r && codes_in(p, i, quant) && !w->copy_q) {
			r = entry_wrap(p->ctx, set, w, e++);
			w->set_q = set;
		}
	}
	return r;
}

static void set_free(struct te_seq *seq, struct te__copies *set)
{
	for (int i = 0; i < seq->nweights; i++) {
		struct te__weight *w = &seq->weight[i];

		if (w->set_hp == set) {
			w->copy_hp = te_tensor_unref(w->copy_hp);
			w->set_hp = NULL;
		}
		if (w->set_q == set) {
			w->copy_q = te_tensor_unref(w->copy_q);
			w->set_q = NULL;
		}
	}
	if (set != seq->part_set)
		te__mem_put(seq->ctx, set->args.copies);
	te__mem_put(seq->ctx, set->state);
	te__free(set->table);
	te__free(set);
}

void te__copies_free(struct te_seq *seq)
{
	while (seq->copies) {
		struct te__copies *set = seq->copies;

		seq->copies = set->next;
		set_free(seq, set);
	}
}

/* make the copies that the plan needs and no earlier plan made, with codes of these quantizers;
 * rest: remainders of their masters, or NULL */
static int set_make(struct te_plan *p, struct te_quant *quant, const uint16_t *rest)
{
	struct te_seq *seq = p->seq;
	struct te_k_weight *table = te__calloc(2 * (size_t)p->nneeds, sizeof(*table));
	struct te__copies *set = te__calloc(1, sizeof(*set));
	int r = table && set ? 0 : no_memory();

	if (!r) {
		set->table = table;
		table = NULL;
		set->args.rest = rest;
		table_fill(p, 0, quant, set, set->table);
	}
	if (!r && set->args.n) {
		set->args.masters = te_tensor_data(seq->masters);
		set->args.nmasters = rest ? seq->nrest : te__seq_own_masters(seq);
		set->args.version = seq->version;
		r = set_upload(seq, set);
		if (!r)
			r = set_wrap(p, set, quant);
		if (!r) {
			set->next = seq->copies;
			seq->copies = set;
			set = NULL;
		}
	}
	if (set)
		set_free(seq, set);
	te__free(table);
	return r;
}

static int transpose_fill(struct te_ctx *ctx, struct te__copies *set, struct te__weight *w)
{
	const struct te_tensor *t = w->value;
	struct te_k_weight_transpose *a = &set->transpose;
	size_t scales_at;
	int r;

	set->args.copies_nbytes = (int64_t)transpose_layout(t, &scales_at);
	r = te__mem_get(ctx, (size_t)set->args.copies_nbytes, &set->args.copies);
	if (!r)
		r = te__mem_get(ctx, aligned(sizeof(*a->done)), &set->state);
	if (r < 0)
		return r;
	set->args.done = set->state;
	*a = (struct te_k_weight_transpose){
		.row = te_tensor_data(t),
		.col = set->args.copies,
		.done = set->args.done,
		.rows = te_tensor_rows(t),
		.cols = te_tensor_cols(t),
		.scaling = (int32_t)te_tensor_scaling(t),
	};
	if (scales_at) {
		a->scale_inv = te_tensor_scale_inv(t);
		a->col_scale_inv = (float *)(void *)((char *)a->col + scales_at);
	}
	r = te__ctx_fill_u32(ctx, a->done, 0, sizeof(*a->done));
	return r ? r : te__tensor_wrap_scaled(ctx, te_tensor_dtype(t), w->decl.ndim, w->decl.shape,
					      te_tensor_data(t), a->col, te_tensor_scale_inv(t),
					      scales_at ? a->col_scale_inv : te_tensor_scale_inv(t),
					      te_tensor_scaling(t), &w->copy_q);
}

/* the column-wise copy of a bound weight */
static int transpose_make(struct te_seq *seq, struct te__weight *w)
{
	struct te__copies *set = te__calloc(1, sizeof(*set));
	int r = set ? transpose_fill(seq->ctx, set, w) : no_memory();

	if (r < 0) {
		if (set)
			set_free(seq, set);
		return r;
	}
	set->transpose.version = seq->version;
	w->set_q = set;
	set->next = seq->copies;
	seq->copies = set;
	return 0;
}

/* ---- a plan's copies ---- */

/* a plan that only prints: tensors without memory */
static int need_wrap(const struct te_plan *p, struct te__need *need, const struct te_weight_decl *d)
{
	const uint32_t q = need->forms & TE__FORM_CODES;
	int r = te_tensor_wrap(p->ctx, p->recipe.compute, d->ndim, d->shape, TE__NOWHERE, NULL,
			       NULL, &need->t_hp);

	if (!r && need->forms & TE__FORM_FP32)
		r = te_tensor_wrap(p->ctx, TE_DTYPE_FP32, d->ndim, d->shape, TE__NOWHERE, NULL,
				   NULL, &need->t_fp32);

	if (!r && q)
		r = te__tensor_wrap_scaled(
			p->ctx, te__plan_operand(p, need->slot, TE__ROLE_WEIGHT).dtype, d->ndim,
			d->shape, TE__NOWHERE, q & TE_FORM_COL ? TE__NOWHERE : NULL,
			(float *)TE__NOWHERE, (float *)TE__NOWHERE,
			te__plan_operand(p, need->slot, TE__ROLE_WEIGHT).scaling, &need->t_q);
	return r;
}

static void plan_uses(struct te_plan *p, struct te__copies *set)
{
	for (int k = 0; k < p->nsets; k++)
		if (p->set[k] == set)
			return;
	p->set[p->nsets++] = set;
}

/* the BF16 copy of this rank's part, as one weight */
static int part_make(struct te_seq *seq)
{
	const struct te__part own = te__seq_part(seq);
	struct te__copies *set = te__calloc(1, sizeof(*set));
	struct te_k_weight *table = te__malloc(sizeof(*table));
	int r;

	if (!set || !table) {
		te__free(set);
		te__free(table);
		return no_memory();
	}
	*table = (struct te_k_weight){
		.rows = (own.nelems + own.ntail) / TE_K_ALIGN_WEIGHT,
		.cols = TE_K_ALIGN_WEIGHT,
		.row = -1,
		.col = -1,
	};
	set->table = table;
	set->args = (struct te_k_weights){
		.masters = te_tensor_data(seq->masters),
		.copies = seq->part_copy,
		.version = seq->version,
		.nmasters = te__seq_own_masters(seq),
		.copies_nbytes = 2 * table->rows * table->cols,
		.ntiles = te_k_weight_ntiles(table),
		.n = 1,
	};
	set->next = seq->copies;
	seq->part_set = set;
	r = set_upload(seq, set);
	if (!r) {
		seq->copies = set;
		return 0;
	}
	set_free(seq, set);
	seq->part_set = NULL;
	return r;
}

/* codes of divided masters are cast in each pass, and amaxes of a history are recorded once */
static int check_divided(const struct te_plan *p)
{
	struct te_k_weights a = { 0 };

	for (int i = 0; i < p->nneeds; i++)
		if (wants_codes(p, i) && te__weight_is_divided(p->seq, weight_of(p, i)) &&
		    te__quant_weights(te__plan_quant(p, p->need[i].slot), p->need[i].slot, 1, &a) &
			    TE__WEIGHTS_RECORD)
			return te__fail(-EOPNOTSUPP, "plan: weight %s has a scale from earlier "
					"amaxes, and masters are in %d parts: expected another "
					"recipe", weight_of(p, i)->name, p->seq->binding.nparts);
	return 0;
}

int te__plan_weights(struct te_plan *p)
{
	int r = check_divided(p);

	if (!r)
		r = measure(p);
	for (int i = 0; i < p->nneeds && !r && p->flags & TE_PLAN_NO_ALLOC; i++)
		r = need_wrap(p, &p->need[i], &weight_of(p, i)->decl);
	if (r < 0 || p->flags & TE_PLAN_NO_ALLOC)
		return r;
	p->set = te__calloc(2 * (size_t)p->nneeds + 1, sizeof(*p->set));
	if (!p->set)
		return no_memory();
	for (int k = 0; p->nneeds && k <= p->nothers && !r; k++) {
		r = set_make(p, quant_of_set(p, k), NULL);
		if (!r && p->seq->rest)
			r = set_make(p, quant_of_set(p, k), p->seq->rest);
	}
	if (!r && te__seq_copies_part(p->seq) && !p->seq->part_set)
		r = part_make(p->seq);
	for (int i = 0; i < p->nneeds && !r; i++)
		if (wants_transpose(p, i) && !weight_of(p, i)->copy_q)
			r = transpose_make(p->seq, weight_of(p, i));
	for (int i = 0; i < p->nneeds && !r; i++) {
		struct te__weight *w = weight_of(p, i);
		struct te__need *need = &p->need[i];

		if (te__weight_is_divided(p->seq, w)) { /* in the arena */
			if (te__seq_copies_part(p->seq) && need->forms & TE_FORM_HP)
				plan_uses(p, p->seq->part_set);
			r = need_wrap(p, need, &w->decl);
			continue;
		}
		if (w->value && !wants_transpose(p, i)) {
			*(need->forms & TE_FORM_HP ? &need->t_hp : &need->t_q) =
				te_tensor_ref(w->value);
			continue;
		}
		if (te__seq_is_split(p->seq) && need->forms & TE_FORM_HP)
			need->t_hp = te_tensor_ref(w->master);
		if (wants_values(p, i)) {
			*(te__seq_is_split(p->seq) ? &need->t_fp32 : &need->t_hp) =
				te_tensor_ref(w->copy_hp);
			plan_uses(p, w->set_hp);
		}
		if (wants_codes(p, i)) {
			need->t_q = te_tensor_ref(w->copy_q);
			plan_uses(p, w->set_q);
		}
	}
	return r;
}

int te__plan_refresh(struct te_plan *p, struct te_stream *stream)
{
	int r = 0;

	for (int k = 0; k < p->nsets && !r; k++) {
		struct te_k_weights a = p->set[k]->args;

		if (p->set[k]->transpose.col) {
			r = TE__LAUNCH(stream, WEIGHT_TRANSPOSE, &p->set[k]->transpose);
			continue;
		}
		a.record = p->set[k]->flags & TE__WEIGHTS_RECORD && p->flags & TE_PLAN_TRAIN;
		if (p->set[k]->flags & TE__WEIGHTS_OWN_AMAX)
			r = TE__LAUNCH(stream, WEIGHTS_AMAX, &a);
		if (!r)
			r = TE__LAUNCH(stream, WEIGHTS_CAST, &a);
	}
	return r;
}
