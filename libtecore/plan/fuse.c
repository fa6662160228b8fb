/*
 * fuse.c - groups adjacent basic steps by the fusion tables.
 *
 * The forward list, the backward list and the delayed weight gradients are fused
 * separately; each basic step ends up in exactly one group, in order. The
 * sequence's own fusions are tried first, then the built-in ones, in table order.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/plan.h"

/* whether name is one of the nchars characters "a|b|c" */
static int name_in(const char *name, const char *choices, size_t nchars)
{
	const char *end = choices + nchars;
	const size_t n = strlen(name);

	while (choices < end) {
		const size_t len = strcspn(choices, "| ");

		if (len == n && !memcmp(choices, name, n))
			return 1;
		choices += len + 1;
	}
	return 0;
}

/* how many steps from the first match the words of the pattern; 0 if not all words do */
static int matches(const struct te_plan *p, const struct te_fusion *f, int first, int end)
{
	const char *word = f->pattern;
	int n = 0;

	while (*word) {
		const size_t len = strcspn(word, " ");

		if (first + n >= end || !name_in(p->step[first + n].name, word, len))
			return 0;
		n++;
		word += len + strspn(word + len, " ");
	}
	return n;
}

static int reads_hp(const struct te__ref *ref)
{
	return !ref->write && (ref->forms & TE_FORM_HP);
}

static void count_reads(struct te_plan *p)
{
	for (int s = 0; s < p->nsteps; s++)
		for (int k = 0; k < p->step[s].nrefs; k++)
			p->value[p->step[s].ref[k].value].nreads += reads_hp(&p->step[s].ref[k]);
}

/* reads of the full-precision form of v by steps of [first, first + n) */
static int reads_inside(const struct te_plan *p, int v, int first, int n)
{
	int nreads = 0;

	for (int s = first; s < first + n; s++)
		for (int k = 0; k < p->step[s].nrefs; k++)
			nreads += p->step[s].ref[k].value == v && reads_hp(&p->step[s].ref[k]);
	return nreads;
}

/* whether all reads of v, one or more, are by steps of [first, first + n) */
static int is_internal(const struct te_plan *p, int v, int first, int n)
{
	const struct te__value *val = &p->value[v];

	return val->nreads && !val->keep && !val->fed &&
	       reads_inside(p, v, first, n) == val->nreads;
}

/* values written and read only inside the candidate lose their hp form, or get it back */
static void set_internal(struct te_plan *p, const struct te_fusion *f, int first, int n, int no_hp)
{
	for (int s = first; s < first + n; s++) {
		for (int k = 0; k < p->step[s].nrefs; k++) {
			const struct te__ref *ref = &p->step[s].ref[k];

			if (ref->write && (ref->forms & TE_FORM_HP) &&
			    !(s - first < 32 && f->keep & (1u << (s - first))) &&
			    is_internal(p, ref->value, first, n))
				p->value[ref->value].no_hp = no_hp;
		}
	}
}

static void fill_fused(struct te_plan *p, struct te_fused *f, int first, int n)
{
	memset(f, 0, sizeof(*f));
	f->size = sizeof(*f);
	f->nparts = n;
	f->part = &p->part[first];
	for (int i = 0; i < n; i++)
		te__plan_fill_call(p, &p->step[first + i]);
}

/* 1: taken, and the group is filled; 0: does not apply; or an error */
static int try_fusion(struct te_plan *p, const struct te_fusion *f, int first, int end,
		      struct te__group *g)
{
	struct te_fused *fused = &g->fused;
	const uint64_t nfails = te__nfails();
	int n = matches(p, f, first, end);
	size_t ws = 0;
	int r = 1;

	if (!n)
		return 0;
	set_internal(p, f, first, n, 1);
	fill_fused(p, fused, first, n);
	fused->fusion = f;
	if (f->applies) {
		r = f->applies(fused);
		if (r < 0)
			r = te__callback_failed(nfails, r, "applies() of fusion %s", f->name);
	}
	if (r <= 0) {
		set_internal(p, f, first, n, 0);
		return r;
	}
	g->fusion = f;
	g->first = first;
	g->n = n;
	if (f->ws_nbytes) {
		ws = f->ws_nbytes(fused);
	} else {
		for (int i = 0; i < n; i++)
			if (p->step[first + i].ws_nbytes > ws)
				ws = p->step[first + i].ws_nbytes;
	}
	fused->ws_nbytes = ws;
	return 1;
}

static int fuse_list(struct te_plan *p, enum te_pass pass, int first, int end)
{
	int s = first;

	while (s < end) {
		struct te__group *g = &p->group[p->ngroups++];
		int r = 0;

		g->ws = -1;
		for (int k = 0; k < p->seq->nfusions + te__nfusions; k++) {
			const struct te_fusion *f = k < p->seq->nfusions ?
							    &p->seq->fusion[k] :
							    &te__fusions[k - p->seq->nfusions];

			if ((p->flags & TE_PLAN_NO_FUSION) || f->pass != pass)
				continue;
			r = try_fusion(p, f, s, end, g);
			if (r < 0)
				return r;
			if (r)
				break;
		}
		if (!r) {
			memset(g, 0, sizeof(*g));
			g->ws = -1;
			g->first = s;
			g->n = 1;
			g->fused.ws_nbytes = p->step[s].ws_nbytes;
		}
		s += g->n;
	}
	return 0;
}

int te__plan_fuse(struct te_plan *p)
{
	int bwd_end = p->fwd_steps + p->bwd_steps;
	int r;

	p->group = te__calloc((size_t)p->nsteps + 1, sizeof(*p->group));
	p->part = te__malloc(((size_t)p->nsteps + 1) * sizeof(*p->part));
	if (!p->group || !p->part)
		return te__fail(-ENOMEM, "plan: no memory");
	for (int i = 0; i < p->nsteps; i++)
		p->part[i] = &p->step[i].call;
	count_reads(p);
	r = fuse_list(p, TE_PASS_FORWARD, 0, p->fwd_steps);
	p->fwd_groups = p->ngroups;
	if (!r)
		r = fuse_list(p, TE_PASS_BACKWARD, p->fwd_steps, bwd_end);
	p->bwd_groups = p->ngroups - p->fwd_groups;
	if (!r)
		r = fuse_list(p, TE_PASS_BACKWARD, bwd_end, p->nsteps);
	return r;
}
