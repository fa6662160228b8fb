/*
 * numerics.c - te_plan_watch(3): the values that a pass writes, counted on the host after each
 * group: NaN, infinities, zeros, and what a cast to FP8 saturates or flushes to zero.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <math.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/base/dtype_inline.h"
#include "libtecore/plan/plan.h"
#include "libtecore/tensor/ctx.h"

struct te__watch {
	te_plan_numerics_fn fn;
	void *arg;
	struct te_stream *stream;
	float *x; /* a value; room elements */
	uint8_t *codes; /* its FP8 codes with their padding; code_room bytes */
	int64_t room, code_room;
};

static int reserve(struct te__watch *w, int64_t nelems, int64_t ncodes)
{
	if (nelems > w->room) {
		te__free(w->x);
		w->x = te__malloc((size_t)nelems * sizeof(*w->x));
		w->room = w->x ? nelems : 0;
	}
	if (ncodes > w->code_room) {
		te__free(w->codes);
		w->codes = te__malloc((size_t)ncodes);
		w->code_room = w->codes ? ncodes : 0;
	}
	return w->room < nelems || w->code_room < ncodes ? te__no_memory("te_plan_watch") : 0;
}

static int fetch(const struct te__watch *w, void *dst, const void *src, size_t nbytes)
{
	int r = te_copy(w->stream, dst, src, nbytes);

	return r < 0 ? r : te_stream_sync(w->stream);
}

/* w->x = t, which is FP32 or BF16 */
static int fetch_floats(struct te__watch *w, const struct te_tensor *t)
{
	const int64_t n = te_tensor_nelems(t);
	const int is_bf16 = te_tensor_dtype(t) == TE_DTYPE_BF16;
	uint16_t half;
	char *at;
	int r = reserve(w, n, 0);

	if (r < 0)
		return r;
	/* BF16 to the second half: each element is read before it is overwritten */
	at = (char *)w->x + (is_bf16 ? (size_t)n * sizeof(half) : 0);
	r = fetch(w, at, te_tensor_data(t), te_tensor_nbytes(t));
	for (int64_t i = 0; i < n && is_bf16 && r >= 0; i++) {
		memcpy(&half, at + (size_t)i * sizeof(half), sizeof(half));
		w->x[i] = te__bf16_decode(half);
	}
	return r;
}

static void count(const float *x, struct te_plan_numerics *ret)
{
	for (int64_t i = 0; i < ret->nelems; i++) {
		ret->nnan += isnan(x[i]) != 0;
		ret->ninf += isinf(x[i]) != 0;
		ret->nzero += x[i] == 0;
		if (isfinite(x[i]) && fabsf(x[i]) > ret->amax)
			ret->amax = fabsf(x[i]);
	}
}

static int is_counted(const struct te_tensor *t)
{
	return t && (te_tensor_dtype(t) == TE_DTYPE_FP32 || te_tensor_dtype(t) == TE_DTYPE_BF16);
}

/* the codes of q, the cast of w->x, whose shape is [rows, cols] */
static int count_cast(struct te__watch *w, const struct te_tensor *q, int64_t rows, int64_t cols,
		      struct te_plan_numerics *ret)
{
	const int by_rows = te_tensor_data(q) != NULL;
	const int64_t step = by_rows ? te_tensor_cols(q) : te_tensor_rows(q);
	float limit = INFINITY;
	int r = reserve(w, 0, te_tensor_nelems(q));

	ret->dtype = te_tensor_dtype(q);
	if (r >= 0)
		r = fetch(w, w->codes, by_rows ? te_tensor_data(q) : te_tensor_coldata(q),
			  te_tensor_nbytes(q));
	if (r >= 0 && te_tensor_scaling(q) == TE_SCALING_TENSOR) {
		r = fetch(w, &ret->scale_inv, te_tensor_scale_inv(q), sizeof(ret->scale_inv));
		limit = te_dtype_max(ret->dtype) * ret->scale_inv;
	}
	/* codes of transformed columns tell nothing about elements */
	if (!by_rows && te_tensor_scaling(q) == TE_SCALING_1X16)
		return r;
	for (int64_t k = 0; k < rows && r >= 0; k++)
		for (int64_t c = 0; c < cols; c++) {
			const float x = w->x[k * cols + c];
			const int64_t at = by_rows ? k * step + c : c * step + k;
			const int fp4 = ret->dtype == TE_DTYPE_E2M1;
			const int code = fp4 ? w->codes[at / 2] >> at % 2 * 4 & 7 :
					       w->codes[at] & 0x7f;

			ret->nsaturated += fabsf(x) > limit;
			ret->nunderflow += x != 0 && !code;
		}
	return r;
}

static int tell(const struct te__watch *w, const struct te_plan_numerics *n)
{
	const uint64_t nfails = te__nfails();
	const int r = w->fn(w->arg, n);

	return r < 0 ? te__callback_failed(nfails, r, "the function of te_plan_watch") : 0;
}

static struct te_plan_numerics begin(const char *name, enum te_pass pass)
{
	return (struct te_plan_numerics){
		.size = sizeof(struct te_plan_numerics),
		.value = name,
		.pass = pass,
	};
}

/* a value of a step, or with q its cast */
static int watch_value(struct te__watch *w, const char *name, enum te_pass pass,
		       const struct te_tensor *x, const struct te_tensor *q)
{
	struct te_plan_numerics n = begin(name, pass);
	int r;

	if (!is_counted(x))
		return 0;
	n.dtype = te_tensor_dtype(x);
	n.nelems = te_tensor_nelems(x);
	r = fetch_floats(w, x);
	if (r < 0)
		return r;
	count(w->x, &n);
	if (q)
		r = count_cast(w, q, te_tensor_rows(x), te_tensor_cols(x), &n);
	return r < 0 ? r : tell(w, &n);
}

/* the FP8 copies of weights */
static int watch_weights(struct te_plan *p)
{
	int r = 0;

	for (int i = 0; i < p->nneeds && !r; i++) {
		const struct te__weight *weight = &p->seq->weight[p->need[i].weight];
		const struct te_tensor *q = p->need[i].t_q;
		struct te_plan_numerics n = begin(weight->name, TE_PASS_FORWARD);
		int64_t cols;

		if (!q || weight->value || !weight->master)
			continue;
		n.nelems = te_tensor_nelems(weight->master);
		cols = te_tensor_cols(weight->master);
		r = reserve(p->watch, n.nelems, 0);
		if (!r)
			r = te_seq_masters_get(p->seq, weight->offset_nelems, n.nelems,
					       p->watch->x);
		if (r < 0)
			return r;
		count(p->watch->x, &n);
		r = count_cast(p->watch, q, n.nelems / cols, cols, &n);
		if (!r)
			r = tell(p->watch, &n);
	}
	return r;
}

int te__watch_group(struct te_plan *p, struct te_stream *stream, int group)
{
	const struct te__group *g = &p->group[group];
	const enum te_pass pass = group < p->fwd_groups ? TE_PASS_FORWARD : TE_PASS_BACKWARD;
	int r = te__stream_not_capturing(stream, "te_plan_watch");

	p->watch->stream = stream;
	if (!r && !group)
		r = watch_weights(p);
	for (int k = g->first; k < g->first + g->n && !r; k++) {
		const struct te__step *s = &p->step[k];

		for (int i = 0; i < s->nrefs && !r; i++) {
			const struct te__value *v = &p->value[s->ref[i].value];

			if (!s->ref[i].write || v->no_hp)
				continue;
			r = watch_value(p->watch, v->label, pass, v->t_hp,
					s->kind == TE__STEP_QUANT ? v->t_q : NULL);
		}
	}
	return r;
}

void te__watch_free(struct te__watch *w)
{
	if (!w)
		return;
	te__free(w->x);
	te__free(w->codes);
	te__free(w);
}

int te_plan_watch(struct te_plan *plan, te_plan_numerics_fn fn, void *arg)
{
	struct te__watch *w = NULL;

	if (!plan)
		return te__fail(-EINVAL, "te_plan_watch: plan is NULL");
	if (fn) {
		w = te__calloc(1, sizeof(*w));
		if (!w)
			return te__no_memory("te_plan_watch");
		w->fn = fn;
		w->arg = arg;
	}
	te__watch_free(plan->watch);
	plan->watch = w;
	return 0;
}
