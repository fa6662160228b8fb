/* costs.c - bytes and FLOPs of the groups of a plan: of values, weights and operations. */
#define TE_LOG_CATEGORY "core/plan"
#include <string.h>

#include "libtecore/base/private.h"
#include "libtecore/base/base.h"

#include "libtecore/plan/costs.h"
#include "libtecore/quant/quant.h"

static uint64_t form_nbytes(const struct te__value *v, uint32_t form)
{
	const int by_rows = form == TE_FORM_ROW;
	int64_t rows, cols;

	if (form == TE_FORM_HP)
		return te__spec_nbytes(&v->spec);
	te__value_extents(v, &rows, &cols);
	if (!v->scaling)
		return (uint64_t)(rows * cols);
	return (uint64_t)te__nbytes_of((int32_t)v->qdtype, rows * cols) +
	       (uint64_t)te_scaling_nfloats(v->scaling, by_rows ? rows : cols,
					    by_rows ? cols : rows) * sizeof(float);
}

struct traffic {
	struct te__costs *costs;
	uint64_t nbytes;
};

/* has the group written a quantized form of the value? */
static int is_cast(const struct te__costs *c, const struct te__use *u)
{
	const int first = u->form / TE__NFORMS * TE__NFORMS;

	for (int k = 0; k < TE__NFORMS; k++)
		if (te__form[k] != TE_FORM_HP && c->seen[2 * (first + k) + 1] == u->group)
			return 1;
	return 0;
}

/*
 * Values that the group wrote are read from registers or caches. With a scale of the present value
 * a cast reads it once more, after its amax is known.
 */
static int add_use(void *arg, const struct te__use *u)
{
	struct traffic *t = arg;
	const struct te_plan *p = t->costs->plan;
	const struct te__value *v = &p->value[u->form / TE__NFORMS];
	const uint32_t form = te__form[u->form % TE__NFORMS];
	int *seen = &t->costs->seen[2 * u->form];

	if (u->buf < 0 && !(v->fixed && form == TE_FORM_HP))
		return 0;
	if (seen[u->ref->write] == u->group || (!u->ref->write && seen[1] == u->group))
		return 0;
	if (u->ref->write && form != TE_FORM_HP && te__recipe_waits(&p->recipe) &&
	    !is_cast(t->costs, u))
		t->nbytes += te__spec_nbytes(&v->spec);
	seen[u->ref->write] = u->group;
	t->nbytes += form_nbytes(v, form);
	return 0;
}

static int is_library_op(const struct te_op *op, const char *name)
{
	return op->is_library && !strcmp(op->ops.name, name);
}

/* does backward() read weight k? The gradient of an addition does not depend on what is added */
static int backward_reads(const struct te_op *op, int k)
{
	if (is_library_op(op, "bias") || is_library_op(op, "embedding"))
		return 0;
	return !k || !is_library_op(op, "layernorm");
}

/* elements of weight k that a step reads or writes: of an embedding, the rows of its tokens */
static uint64_t weight_nelems(const struct te_plan *p, const struct te__step *s, int k)
{
	const struct te_op *op = p->seq->op[s->node];
	const struct te__weight *w = &p->seq->weight[p->seq->op_weight[s->node][k]];
	int64_t n = 1, used;

	for (int d = 0; d < w->decl.ndim; d++)
		n *= w->decl.shape[d];
	used = te__spec_nelems(&p->node[s->node].inf.out[0]);
	return (uint64_t)(is_library_op(op, "embedding") && used < n ? used : n);
}

/* bytes that a step reads for an element of weight k */
static uint64_t element_nbytes(const struct te_plan *p, const struct te__step *s, int k)
{
	const struct te__weight *w = &p->seq->weight[p->seq->op_weight[s->node][k]];
	const uint32_t forms = p->node[s->node].inf.weight_forms[k];
	const int stored = p->seq->op[s->node]->decl[k].flags & TE_WEIGHT_STORED;

	if (forms & (TE_FORM_ROW | TE_FORM_COL))
		return 1;
	if (forms)
		return te_dtype_nbytes(p->recipe.compute);
	/* masters, or FP32 copies of BF16 masters */
	return stored && te__seq_is_split(p->seq) && !te__weight_has_rest(p->seq, w) ? 2 : 4;
}

static uint64_t weights_nbytes(const struct te_plan *p, const struct te__step *s)
{
	const struct te_op *op = p->seq->op[s->node];
	uint64_t nbytes = 0;

	if (s->kind > TE__STEP_DW)
		return 0;
	for (int k = 0; k < op->nweights; k++) {
		const struct te__weight *w = &p->seq->weight[p->seq->op_weight[s->node][k]];
		const uint64_t n = weight_nelems(p, s, k);

		if (s->kind == TE__STEP_DW)
			/* the gradient is added to */
			nbytes += te__weight_trains(w) ? 2 * n * sizeof(float) : 0;
		else if (s->kind == TE__STEP_FWD || backward_reads(op, k))
			nbytes += n * element_nbytes(p, s, k);
	}
	return nbytes;
}

/* rows of an embedding's table, which is not copied to the arena */
static uint64_t rows_nbytes(const struct te_plan *p, const struct te__step *s)
{
	const struct te_op *op = p->seq->op[s->node];

	if (s->kind != TE__STEP_FWD || !is_library_op(op, "embedding") ||
	    !(p->seq->binding.flags & TE_SEQ_HOST_MASTERS) ||
	    !strcmp(te_ctx_backend(p->ctx), "host"))
		return 0;
	return weight_nelems(p, s, 0) * element_nbytes(p, s, 0);
}

double te__step_flops(const struct te_plan *p, const struct te__step *s)
{
	const struct te_op_infer *inf = &p->node[s->node].inf;

	return s->kind == TE__STEP_FWD ? inf->fwd_flops :
	       s->kind == TE__STEP_BWD ? inf->bwd_flops :
	       s->kind == TE__STEP_DW  ? inf->dw_flops :
					 0;
}

/* FLOPs of a step in the pass in which the group computes them */
static double group_flops(const struct te_plan *p, const struct te__group *g,
			  const struct te__step *s)
{
	const struct te_op_infer *inf = &p->node[s->node].inf;

	if (!g->fusion || !(g->fusion->flags & TE__FUSION_EARLY))
		return te__step_flops(p, s);
	return s->kind != TE__STEP_FWD ? 0 :
	       inf->fwd_flops + inf->bwd_flops +
		       (te__seq_op_trains(p->seq, s->node) ? inf->dw_flops : 0);
}

int te__step_is_fp8(const struct te__step *s)
{
	return ((s->role.x_forms | s->role.dy_forms) & (TE_FORM_ROW | TE_FORM_COL)) != 0;
}

/* bytes of logits of which a chunk exists at a time: they go through memory all the same */
static uint64_t chunks_nbytes(const struct te_plan *p, const struct te__group *g,
			      const struct te__step *s)
{
	if (!g->fusion || !(g->fusion->flags & TE__FUSION_EARLY) || s->kind != TE__STEP_FWD)
		return 0;
	return te__spec_nbytes(&p->node[s->node].inf.out[0]);
}

/* times that the step's kernels of both passes read or write logits: the loss reads them and writes
 * their gradient; of a cap, each scale is elementwise in both passes, and the tanh reads its input
 * a second time */
static uint64_t between_passes(const struct te_op *op)
{
	return is_library_op(op, "scale") ? 4 : is_library_op(op, "activation") ? 5 :
	       is_library_op(op, "linear") ? 2 : 0;
}

/* bytes of additions to the gradient of the head, s, whose kernels read and write it for each chunk
 * of rows that the group's loss has; GEMMs of one chunk do not hide them */
static uint64_t sums_nbytes(const struct te_plan *p, const struct te__group *g,
			    const struct te__step *s)
{
	const struct te_op *loss = p->seq->op[p->step[g->first + g->n - 1].node];
	const struct te_cross_entropy_attrs *a = loss->attrs;
	const struct te_spec *out = &p->node[s->node].inf.out[0];
	const int64_t rows = te__spec_nelems(out) / out->shape[out->ndim - 1];
	const size_t size = te_dtype_nbytes(te__seq_grad_dtype(p->seq));

	if (!is_library_op(loss, "cross_entropy") || a->chunk < 1 ||
	    !te__seq_op_trains(p->seq, s->node))
		return 0;
	return 2 * size * weight_nelems(p, s, 0) * (uint64_t)((rows + a->chunk - 1) / a->chunk);
}

int te__costs_open(struct te__costs *c, const struct te_plan *p)
{
	const size_t n = 2 * (size_t)p->nvalues * TE__NFORMS;

	*c = (struct te__costs){ .plan = p, .seen = te__malloc((n + 1) * sizeof(*c->seen)) };
	if (!c->seen)
		return te__no_memory("plan");
	memset(c->seen, 0xff, n * sizeof(*c->seen));
	return 0;
}

void te__costs_close(struct te__costs *c)
{
	te__free(c->seen);
	c->seen = NULL;
}

void te__costs_of(struct te__costs *c, int group, struct te__cost *ret)
{
	const struct te_plan *p = c->plan;
	const struct te__group *g = &p->group[group];
	struct traffic t = { c, 0 };

	*ret = (struct te__cost){ .nbytes = 0 };
	te__plan_each_use(p, group, 1, add_use, &t);
	for (int k = 0; k < g->n; k++) {
		const struct te__step *s = &p->step[g->first + k];
		const enum te__work work =
			is_library_op(p->seq->op[s->node], "attention") ? TE__WORK_ATTENTION :
			te__step_is_fp8(s)				? TE__WORK_FP8_GEMM :
									  TE__WORK_GEMM;
		const uint64_t logits = chunks_nbytes(p, g, s);

		/* one GEMM writes logits, two read their gradient */
		t.nbytes += weights_nbytes(p, s);
		if (logits && is_library_op(p->seq->op[s->node], "linear")) {
			t.nbytes += 3 * logits;
			ret->between_nbytes += sums_nbytes(p, g, s);
		}
		ret->between_nbytes += between_passes(p->seq->op[s->node]) * logits;
		ret->flops[work] += group_flops(p, g, s);
		ret->host_nbytes += rows_nbytes(p, s);
	}
	for (int i = 0; i < p->ncolumns; i++)
		if (p->column[i].group == group)
			t.nbytes += te__column_read_nbytes(p, &p->column[i]) +
				    p->buf[p->column[i].buf].nbytes;
	ret->nbytes = t.nbytes;
}
