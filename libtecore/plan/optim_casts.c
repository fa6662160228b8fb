/*
 * optim_casts.c - TE_ADAMW_CAST: an update of masters in host memory also makes the copies of the
 * weights that it has changed, so that no pass reads the masters again for them.
 *
 * The scale of FP8 codes may come from all values of a weight. So masters go to one of two buffers
 * that hold whole weights, a unit of them at a time, in as many chunks as their moments have; after
 * the chunks of a unit its weights are cast. Larger weights have units of their own without a cast,
 * and are cast from host memory. A set of copies whose weights are all updated is current
 * afterwards.
 */
#define TE_LOG_CATEGORY "core/optim"

#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/ops/op.h"
#include "libtecore/plan/optim.h"
#include "libtecore/plan/seq.h"
#include "libtecore/quant/quant.h"
#include "libtecore/tensor/ctx.h"

#define MOST_CHUNKS 32 /* the most elements of a buffer, in chunks: 2^28 by default */

/* a copy of a weight */
struct te__adamw_cast {
	const struct te__copies *set;
	int entry;	/* index in its table */
	int64_t offset; /* the weight's, in its buffer; -1: it is read in host memory */
	void *master;
};

/* elements of weight w in the flat buffers, padding included */
static int64_t nelems_of(const struct te__weight *w)
{
	const struct te_spec s = te__weight_spec(&w->decl);

	return (te__spec_nelems(&s) + TE_K_ALIGN_WEIGHT - 1) / TE_K_ALIGN_WEIGHT *
	       TE_K_ALIGN_WEIGHT;
}

static int is_updated(const struct te__weight *w)
{
	return te__weight_trains(w) && !w->value;
}

/* chunk: its elements */
static int64_t buf_nelems(const struct te_seq *seq, int64_t chunk)
{
	int64_t most = TE_K_ALIGN_WEIGHT;

	for (int i = 0; i < seq->nweights; i++) {
		const int64_t n = is_updated(&seq->weight[i]) ? nelems_of(&seq->weight[i]) : 0;

		most = n > most && n <= MOST_CHUNKS * chunk ? n : most;
	}
	return most;
}

uint64_t te__adamw_casts_nbytes(const struct te_seq *seq, int64_t chunk)
{
	return 2 * sizeof(uint16_t) * (uint64_t)buf_nelems(seq, chunk);
}

/* ---- units ---- */

static void add_casts(struct te_adamw *opt, struct te__weight *w, int64_t offset)
{
	struct te__adamw_casts *c = &opt->casts;

	for (const struct te__copies *set = opt->seq->copies; set; set = set->next)
		for (int i = 0; i < set->args.n && set->alone; i++)
			if (set->table[i].master == w->offset_nelems)
				c->cast[c->ncasts++] = (struct te__adamw_cast){
					set, i, offset, te_tensor_data(w->master),
				};
}

/* the unit that is being filled ends before element `end` */
static void end_unit(struct te__adamw_casts *c, int64_t end)
{
	const int64_t begin = c->nunits ? c->unit[c->nunits - 1].end : 0;

	if (end > begin)
		c->unit[c->nunits++] = (struct te__adamw_unit){ end, c->ncasts };
}

static void list_units(struct te_adamw *opt)
{
	struct te__adamw_casts *c = &opt->casts;

	for (int i = 0; i < opt->seq->nweights; i++) {
		struct te__weight *w = &opt->seq->weight[i];
		const int64_t at = w->offset_nelems, n = nelems_of(w);
		int64_t begin = c->nunits ? c->unit[c->nunits - 1].end : 0;

		if (!is_updated(w))
			continue;
		if (at + n - begin > c->nelems) {
			end_unit(c, at);
			begin = at;
		}
		while (at + n - begin > c->nelems)
			end_unit(c, begin += c->nelems);
		add_casts(opt, w, n > c->nelems ? -1 : at - begin);
		if (n > c->nelems)
			end_unit(c, at + n);
	}
	end_unit(c, te_seq_grad_nelems(opt->seq));
	if (c->nunits) /* a last weight may have been too large */
		c->unit[c->nunits - 1].end_cast = c->ncasts;
}

static int make_units(struct te_adamw *opt)
{
	struct te__adamw_casts *c = &opt->casts;
	const int64_t n = te_seq_grad_nelems(opt->seq);
	size_t ncasts = 0;

	for (const struct te__copies *set = opt->seq->copies; set; set = set->next)
		ncasts += (size_t)set->args.n;
	te__adamw_casts_free(opt);
	c->unit = te__calloc((size_t)(opt->seq->nweights + n / c->nelems) + 2, sizeof(*c->unit));
	c->cast = te__calloc(ncasts + 1, sizeof(*c->cast));
	if (!c->unit || !c->cast)
		return te__no_memory("te_adamw_step");
	list_units(opt);
	c->copies = opt->seq->copies;
	return 0;
}

int te__adamw_casts_find(struct te_adamw *opt)
{
	struct te__adamw_casts *c = &opt->casts;

	if (!c->buf || (c->unit && c->copies == opt->seq->copies))
		return 0;
	opt->update = te_recording_unref(opt->update); /* it makes the copies of fewer plans */
	return make_units(opt);
}

void te__adamw_casts_free(struct te_adamw *opt)
{
	struct te__adamw_casts *c = &opt->casts;

	te__free(c->unit);
	te__free(c->cast);
	c->unit = NULL;
	c->cast = NULL;
	c->nunits = c->ncasts = 0;
}

/* ---- launches ---- */

static int cast(struct te_stream *stream, const struct te__adamw_cast *c, char *buf)
{
	const struct te__copies *set = c->set;
	struct te_k_weights a;
	int r = 0;

	te__copies_alone(set, c->entry,
			 c->offset < 0 ? c->master : buf + sizeof(uint16_t) * (size_t)c->offset,
			 &a);
	if (set->flags & TE__WEIGHTS_OWN_AMAX && set->table[c->entry].hp < 0)
		r = TE__LAUNCH(stream, WEIGHTS_AMAX, &a);
	return r ? r : TE__LAUNCH(stream, WEIGHTS_CAST, &a);
}

static int run(struct te_stream *stream, const struct te__adamw_casts *c, int unit, char *buf)
{
	int r = 0;

	for (int i = unit ? c->unit[unit - 1].end_cast : 0; i < c->unit[unit].end_cast && !r; i++)
		r = cast(stream, &c->cast[i], buf);
	return r;
}

/* sets are current: no pass makes their copies again */
static int end(struct te_stream *stream, const struct te__adamw_casts *c)
{
	const struct te_seq *seq = c->seq;
	int r = 0;

	for (const struct te__copies *set = seq->copies; set && !r; set = set->next) {
		struct te_k_weights_done *done = set->args.done;

		if (!set->alone)
			continue;
		r = te_copy(stream, &done->copies, seq->version, sizeof(*seq->version));
		if (!r && set->flags & TE__WEIGHTS_RECORD)
			r = te_copy(stream, &done->amax, seq->version, sizeof(*seq->version));
	}
	return r;
}

void te__adamw_casts_init(struct te_adamw *opt, char *buf)
{
	opt->casts.seq = opt->seq;
	opt->casts.nelems = buf_nelems(opt->seq, opt->chunks.nelems);
	opt->casts.buf = buf;
	opt->casts.run = run;
	opt->casts.end = end;
	opt->chunks.casts = &opt->casts;
}
