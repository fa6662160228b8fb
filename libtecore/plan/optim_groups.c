/*
 * optim_groups.c - weights with a rate, decay and factors of their own. Each group has a state on
 * the device, which is a function of the optimizer's state: so checkpoints do not have it.
 */
#define TE_LOG_CATEGORY "core/optim"
#include "config.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/base/private.h"
#include "libtecore/ops/op.h"
#include "libtecore/plan/optim.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

/* steps after which the power of each factor below 1 that a float can have is less than 2^-32, so
 * that a bias correction is 1 */
#define MOST_STEPS (UINT64_C(1) << 29)

static int read_group(const char *fn, const struct te_adamw_opts *o, int32_t i,
		      struct te_adamw_group *ret)
{
	const struct te_adamw_group init = TE_ADAMW_GROUP_INIT;
	const char *at = (const char *)o->groups;
	char where[80];
	int r;

	*ret = init;
	/* a program's structs are as long as its header has them */
	r = te__sized_in(fn, te_adamw_group,
			 (const struct te_adamw_group *)(const void *)
				 (at + (size_t)i * o->groups->size), ret);
	if (r)
		return r;
	snprintf(where, sizeof(where), "%s: group %d", fn, (int)i);
	if (!ret->weights)
		return te__fail(-EINVAL, "%s: weights is NULL", where);
	if (!(ret->lr_scale >= 0) || isinf(ret->lr_scale))
		return te__fail(-EINVAL, "%s: lr_scale is %g, expected 0 or more", where,
				(double)ret->lr_scale);
	return te__adamw_check(where, ret->beta1, ret->beta2, o->eps, ret->weight_decay,
			       o->max_grad_norm);
}

int te__adamw_groups_check(const char *fn, const struct te_adamw_opts *opts)
{
	struct te_adamw_group g;
	int r = 0;

	if (opts->ngroups < 0 || (opts->ngroups && !opts->groups))
		return te__fail(-EINVAL, "%s: ngroups is %d, and groups is %s", fn, opts->ngroups,
				opts->groups ? "a list" : "NULL");
	for (int32_t i = 0; i < opts->ngroups && !r; i++)
		r = read_group(fn, opts, i, &g);
	return r;
}

/* of: [nweights] group of each weight, 0 if it has none yet */
static int match(const struct te_seq *seq, const char *pattern, int32_t group, int32_t *of)
{
	int n = 0;

	for (int i = 0; i < seq->nweights; i++) {
		const struct te__weight *w = &seq->weight[i];

		if (!te__weight_trains(w) ||
		    (fnmatch(pattern, w->name, 0) && fnmatch(pattern, w->op->name, 0)))
			continue;
		of[i] = of[i] ? of[i] : group;
		n++;
	}
	return n ? 0 : te__fail(-ENOENT, "te_adamw_create: group %d: no trained weight is named "
				"%s, and no op that owns one", group - 1, pattern);
}

static int match_all(const struct te_seq *seq, const char *weights, int32_t group, int32_t *of)
{
	char *list = te__strdup(weights), *rest = list;
	int r = list ? 0 : te__no_memory("te_adamw_create");

	while (!r && rest) {
		const char *pattern = strsep(&rest, ",");

		r = match(seq, pattern, group, of);
	}
	te__free(list);
	return r;
}

/* by their first elements */
static int compare(const void *a, const void *b)
{
	const struct te__adamw_range *x = a, *y = b;

	return (x->end > y->end) - (x->end < y->end);
}

/* ranges: [nweights]; padding belongs to the weight before it */
static void make_ranges(const struct te_seq *seq, const int32_t *of, struct te__adamw_range *range)
{
	const int64_t n = te_seq_grad_nelems(seq);
	int nfirst = 0, nranges = 0;

	for (int i = 0; i < seq->nweights; i++) {
		struct te_weight_info w = TE_WEIGHT_INFO_INIT;

		if (!te_seq_weight(seq, i, &w) && !(w.flags & TE_WEIGHT_FROZEN))
			range[nfirst++] = (struct te__adamw_range){ w.offset_nelems, of[i] };
	}
	qsort(range, (size_t)nfirst, sizeof(*range), compare);
	for (int i = 0; i < nfirst; i++) {
		const struct te__adamw_range next = { i + 1 < nfirst ? range[i + 1].end : n,
						      range[i].group };

		nranges -= nranges && range[nranges - 1].group == next.group;
		range[nranges++] = next;
	}
}

static int make(struct te_adamw *opt, const struct te_adamw_opts *opts, int32_t *of)
{
	struct te__adamw_groups *g = &opt->groups;
	struct te_adamw_group given;
	void *state = NULL;
	int r = 0;

	for (int32_t i = 0; i < opts->ngroups && !r; i++) {
		r = read_group("te_adamw_create", opts, i, &given);
		if (!r)
			r = match_all(opt->seq, given.weights, i + 1, of);
		g->lr_scale[i + 1] = given.lr_scale;
		g->group[i + 1] = (struct te__adamw_group){ .beta1 = given.beta1,
							    .beta2 = given.beta2,
							    .weight_decay = given.weight_decay };
	}
	if (!r)
		r = te__mem_get(opt->ctx, (size_t)opts->ngroups * sizeof(*g->state), &state);
	if (r)
		return r;
	g->state = state;
	for (int32_t i = 0; i < opts->ngroups; i++) {
		g->group[i + 1].state = &g->state[i].adamw;
		g->group[i + 1].version = &g->state[i].version;
	}
	g->n = opts->ngroups;
	make_ranges(opt->seq, of, g->range);
	return 0;
}

int te__adamw_groups_make(struct te_adamw *opt, const struct te_adamw_opts *opts)
{
	const size_t n = (size_t)opts->ngroups + 1, nweights = (size_t)opt->seq->nweights;
	struct te__adamw_groups *g = &opt->groups;
	struct te_k_adamw_state s;
	int32_t *of;
	int r;

	g->group = te__calloc(n, sizeof(*g->group));
	g->lr_scale = te__calloc(n, sizeof(*g->lr_scale));
	if (!g->group || !g->lr_scale)
		return te__no_memory("te_adamw_create");
	g->lr_scale[0] = 1;
	g->group[0] = (struct te__adamw_group){ opt->state, opt->seq->version, opts->beta1,
						opts->beta2, opts->weight_decay };
	if (!opts->ngroups)
		return 0;
	g->range = te__calloc(nweights, sizeof(*g->range));
	of = te__calloc(nweights, sizeof(*of));
	r = g->range && of ? make(opt, opts, of) : te__no_memory("te_adamw_create");
	te__free(of);
	if (!r)
		r = te__ctx_copy(opt->ctx, &s, opt->state, sizeof(s));
	return r ? r : te__adamw_groups_follow(opt, &s);
}

void te__adamw_groups_free(struct te_adamw *opt)
{
	te__mem_put(opt->ctx, opt->groups.state);
	te__free(opt->groups.group);
	te__free(opt->groups.lr_scale);
	te__free(opt->groups.range);
}

/* multiplied as steps do it */
static double power(float beta, uint64_t nsteps)
{
	double p = 1;

	for (uint64_t i = 0; i < nsteps && i < MOST_STEPS && p > 0; i++)
		p *= (double)beta;
	return p;
}

int te__adamw_groups_follow(struct te_adamw *opt, const struct te_k_adamw_state *s)
{
	const struct te__adamw_groups *g = &opt->groups;
	int r = 0;

	for (int32_t i = 1; i <= g->n && !r; i++) {
		struct te__adamw_group_state x = { *s, 0 };

		x.adamw.lr = s->lr * g->lr_scale[i];
		x.adamw.beta1_t = power(g->group[i].beta1, s->nsteps);
		x.adamw.beta2_t = power(g->group[i].beta2, s->nsteps);
		r = te__ctx_copy(opt->ctx, g->group[i].state, &x, sizeof(x));
	}
	return r;
}
