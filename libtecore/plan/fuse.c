/*
 * fuse.c - groups adjacent basic steps by the fusion tables.
 *
 * The forward list, the backward list and the delayed weight gradients are fused
 * separately; each basic step ends up in exactly one group, in order. The
 * sequence's fusions are tried first, then the built-in ones, in table order. A built-in fusion
 * takes no step at which a fusion of the sequence applies. A joint fusion is tried at its forward
 * steps; its backward steps are then taken, too.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/plan.h"

/* is name one of the words in the nchars characters "a|b|c"? */
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

/* built-in, or of another library that builds on this one: its functions know the ops of these */
static int is_library(const struct te_fusion *f)
{
	return f->flags & TE__FUSION_LIBRARY ||
	       (f >= te__fusions && f < te__fusions + te__nfusions);
}

/* may the fusion replace the step? Casts and sums belong to no op */
static int knows(const struct te_plan *p, const struct te_fusion *f, const struct te__step *s)
{
	return s->kind > TE__STEP_DW || !is_library(f) || p->seq->op[s->node]->is_library;
}

/* does step s, if it is a weight gradient, belong to the op of the step that computes the input
 * gradient of an op of that type, the last of those from the first; 1 if there is none */
static int is_of_same_op(const struct te_plan *p, int first, int s)
{
	const struct te__step *dw = &p->step[s];

	for (int k = s - 1; k >= first && dw->kind == TE__STEP_DW; k--)
		if (p->step[k].kind == TE__STEP_BWD &&
		    !strcmp(p->step[k].name, p->seq->op[dw->node]->ops.name))
			return p->step[k].node == dw->node;
	return 1;
}

/*
 * Would a fusion of the library depend on frozen weights? It must not if it has a sum or a factor,
 * which it rounds once where separate steps round twice, so that freezing changes no bits. It
 * depends on them if, without frozen weights, there is a step between s - 1 and s: the gradient of
 * a weight, or the gradient of an extra input, which has another reader unless it reaches only
 * frozen weights.
 */
static int depends_on_frozen(const struct te_plan *p, int first, int s)
{
	if (s == first || (p->step[s].kind != TE__STEP_BWD && p->step[s].kind != TE__STEP_DW) ||
	    (strcmp(p->step[s].name, "fork") && strcmp(p->step[first].name, "scale")))
		return 0;
	for (int i = p->step[s].node + 1; i < p->step[s - 1].node; i++)
		if (p->seq->op[i]->ops.backward_dw || p->seq->op[i]->ops.nextra_in)
			return 1;
	return 0;
}

/* number of free steps from first that match the pattern; 0 if a word does not match */
static int matches(const struct te_plan *p, const struct te_fusion *f, int first, int end)
{
	const char *word = f->pattern;
	int n = 0;

	while (*word) {
		const size_t len = strcspn(word, " ");

		if (first + n >= end || p->step[first + n].joint ||
		    !name_in(p->step[first + n].name, word, len) ||
		    !knows(p, f, &p->step[first + n]) ||
		    !is_of_same_op(p, first, first + n) ||
		    (is_library(f) && depends_on_frozen(p, first, first + n)))
			return 0;
		n++;
		word += len + strspn(word + len, " ");
	}
	return n;
}

/* The steps that a fusion replaces: in its pass and, if it is joint, in backward. */
struct match {
	int nhalves;
	const struct te_fusion *fusion[2];
	int first[2], n[2];
};

/* are the n steps from first, except casts and sums, steps of ops lo to hi? */
static int are_of(const struct te_plan *p, int first, int n, int lo, int hi)
{
	int any = 0;

	for (int s = first; s < first + n; s++) {
		if (p->step[s].kind > TE__STEP_DW)
			continue;
		if (p->step[s].node < lo || p->step[s].node > hi)
			return 0;
		any = 1;
	}
	return any;
}

/* 1: backward steps of the ops between the forward steps before and after the match match, too, and
 * are added; these are its ops, and ops next to them without a forward step */
static int match_backward(const struct te_plan *p, struct match *m)
{
	const struct te_fusion *f = m->fusion[0]->backward;
	const int end = p->fwd_steps + p->bwd_steps;
	int lo = p->first_op, hi = p->nops - 1;

	for (int s = 0; s < p->fwd_steps; s++) {
		if (p->step[s].kind != TE__STEP_FWD)
			continue;
		if (s < m->first[0])
			lo = p->step[s].node + 1;
		else if (s >= m->first[0] + m->n[0] && p->step[s].node <= hi)
			hi = p->step[s].node - 1;
	}
	for (int s = p->fwd_steps; s < end; s++) {
		const int n = matches(p, f, s, end);

		if (!n || !are_of(p, s, n, lo, hi))
			continue;
		m->fusion[1] = f;
		m->first[1] = s;
		m->n[1] = n;
		m->nhalves = 2;
		return 1;
	}
	return 0;
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

/* reads of the full-precision form of v by matched steps */
static int reads_inside(const struct te_plan *p, int v, const struct match *m)
{
	int nreads = 0;

	for (int h = 0; h < m->nhalves; h++)
		for (int s = m->first[h]; s < m->first[h] + m->n[h]; s++)
			for (int k = 0; k < p->step[s].nrefs; k++)
				nreads += p->step[s].ref[k].value == v &&
					  reads_hp(&p->step[s].ref[k]);
	return nreads;
}

/* do only matched steps read v, which has readers? */
static int is_internal(const struct te_plan *p, int v, const struct match *m)
{
	const struct te__value *val = &p->value[v];

	return val->nreads && !val->keep && !val->fed && reads_inside(p, v, m) == val->nreads;
}

static int has_bit(uint32_t bits, int k)
{
	return k < 32 && (bits >> k & 1u);
}

/* Matched steps lose values that backward drops, and hp forms that only they write and read;
 * undone, they get it back. */
static void set_internal(struct te_plan *p, const struct match *m, int undo)
{
	for (int h = 0; h < m->nhalves; h++)
		for (int i = 0; i < m->n[h]; i++) {
			struct te__step *s = &p->step[m->first[h] + i];

			s->drops = !undo && has_bit(m->fusion[h]->drop, i);
			for (int k = 0; k < s->nrefs; k++) {
				const struct te__ref *ref = &s->ref[k];

				if (ref->write && (ref->forms & TE_FORM_HP) &&
				    !has_bit(m->fusion[h]->keep, i) &&
				    is_internal(p, ref->value, m))
					p->value[ref->value].no_hp = !undo;
			}
		}
}

static void fill_fused(struct te_plan *p, struct te_fused *f, const struct te_fusion *fusion,
		       int first, int n)
{
	memset(f, 0, sizeof(*f));
	f->size = sizeof(*f);
	f->nparts = n;
	f->part = &p->part[first];
	f->fusion = fusion;
	for (int i = 0; i < n; i++)
		te__plan_fill_call(p, &p->step[first + i]);
}

/* 1, 0 or an error: result of applies() for all parts of the match */
static int applies(struct te_plan *p, const struct match *m)
{
	int r = 1;

	for (int h = 0; h < m->nhalves && r > 0; h++) {
		const struct te_fusion *f = m->fusion[h];
		const uint64_t nfails = te__nfails();
		struct te_fused fused;

		fill_fused(p, &fused, f, m->first[h], m->n[h]);
		if (f->applies)
			r = f->applies(&fused);
		if (r < 0)
			r = te__callback_failed(nfails, r, "applies() of fusion %s", f->name);
	}
	return r;
}

void te__plan_fill_group(struct te_plan *p, struct te__group *g, const struct te_fusion *fusion,
			 int first, int n)
{
	size_t ws = 0;

	memset(g, 0, sizeof(*g));
	g->ws = -1;
	g->fusion = fusion;
	g->first = first;
	g->n = n;
	fill_fused(p, &g->fused, fusion, first, n);
	if (fusion && fusion->ws_nbytes) {
		ws = fusion->ws_nbytes(&g->fused);
	} else {
		for (int i = 0; i < n; i++)
			if (p->step[first + i].ws_nbytes > ws)
				ws = p->step[first + i].ws_nbytes;
	}
	g->fused.ws_nbytes = ws;
}

/* ---- joint fusions ---- */

/* the step refers to these values, too */
static int refer_more(struct te__step *s, const int *value, int n, int write)
{
	struct te__ref *ref = te__malloc((size_t)(s->nrefs + n + 1) * sizeof(*ref));

	if (!ref)
		return te__no_memory("plan");
	memcpy(ref, s->ref, (size_t)s->nrefs * sizeof(*ref));
	for (int k = 0; k < n; k++)
		ref[s->nrefs++] = (struct te__ref){ value[k], TE_FORM_HP, write, 0 };
	s->ref = s->more_ref = ref;
	return 0;
}

/* new values, as save() declares them */
static int save_values(struct te_plan *p, struct te__group *g)
{
	const struct te_fusion *f = g->fusion;

	for (;;) {
		const char *op = p->seq->op[p->step[g->first].node]->name;
		const uint64_t nfails = te__nfails();
		struct te_spec spec = { .ndim = 0 };
		int *saved, k = g->fused.nsaved;
		int r = f->save(&g->fused, k, &spec);

		if (r < 0)
			return te__callback_failed(nfails, r, "save() of fusion %s", f->name);
		if (!r)
			return 0;
		r = te__plan_check_spec("fusion", f->name, "saved tensor", k, &spec);
		if (r < 0)
			return r;
		saved = te__realloc(g->saved, ((size_t)k + 1) * sizeof(*saved));
		if (!saved)
			return te__no_memory("plan");
		g->saved = saved;
		r = te__plan_new_value(p, &spec, "%s.%s.saved%d", op, f->name, k);
		if (r < 0)
			return r;
		g->saved[g->fused.nsaved++] = r;
	}
}

/* the first value that it saves takes over the memory of x, and gives it to dx */
static void share(struct te_plan *p, const struct match *m, const struct te__group *g)
{
	struct te__step *const forward = &p->step[g->first];
	struct te__step *const backward = &p->step[m->first[1]];

	forward->share_to = g->saved[0];
	forward->share_from[0] = forward->role.x;
	backward->share_from[0] = g->saved[0];
	for (int k = 0; k < m->n[1]; k++)
		if (backward[k].role.dx >= 0 && !p->value[backward[k].role.dx].no_hp)
			backward->share_to = backward[k].role.dx;
}

/* the joint fusion of g gets the backward steps and the values that it saves */
static int take_backward(struct te_plan *p, const struct match *m, struct te__group *g)
{
	int r = g->fusion->save ? save_values(p, g) : 0;

	if (!r)
		r = refer_more(&p->step[g->first], g->saved, g->fused.nsaved, 1);
	if (!r)
		r = refer_more(&p->step[m->first[1]], g->saved, g->fused.nsaved, 0);
	if (r)
		return r;
	if (g->fusion->flags & TE__FUSION_IN_PLACE)
		share(p, m, g);
	for (int s = m->first[1]; s < m->first[1] + m->n[1]; s++)
		p->step[s].joint = 1 + (int)(g - p->group);
	g->t_saved = te__calloc((size_t)g->fused.nsaved + 1, sizeof(*g->t_saved));
	g->fused.saved = g->t_saved;
	return g->t_saved ? 0 : te__no_memory("plan");
}

/* make the group of the steps from s that a joint fusion has taken */
static void fill_backward(struct te_plan *p, struct te__group *g, int s)
{
	const struct te__group *forward = &p->group[p->step[s].joint - 1];
	int n = 0;

	while (s + n < p->nsteps && p->step[s + n].joint == p->step[s].joint)
		n++;
	te__plan_fill_group(p, g, forward->fusion->backward, s, n);
	g->fused.saved = forward->t_saved;
	g->fused.nsaved = forward->fused.nsaved;
}

/* ---- the lists ---- */

/* 1: taken, and the group is filled; 0: does not apply; or an error. g NULL: nothing is taken */
static int try_fusion(struct te_plan *p, const struct te_fusion *f, int first, int end,
		      struct te__group *g)
{
	struct match m = { 1, { f, NULL }, { first, 0 }, { matches(p, f, first, end), 0 } };
	int r;

	if (!m.n[0] || (f->pass == TE_PASS_JOINT && !match_backward(p, &m)))
		return 0;
	set_internal(p, &m, 0);
	r = applies(p, &m);
	if (r <= 0 || !g) {
		set_internal(p, &m, 1);
		return r;
	}
	te__plan_fill_group(p, g, f, first, m.n[0]);
	r = m.nhalves > 1 ? take_backward(p, &m, g) : 0;
	return r < 0 ? r : 1;
}

static int is_tried(const struct te_plan *p, const struct te_fusion *f, enum te_pass pass)
{
	return !(p->flags & TE_PLAN_NO_FUSION) &&
	       (f->pass == pass || (f->pass == TE_PASS_JOINT && pass == TE_PASS_FORWARD));
}

/* 1: a fusion of the sequence applies to steps that begin at one of the n after the first */
static int is_wanted(struct te_plan *p, enum te_pass pass, int first, int n, int end)
{
	int r = 0;

	for (int s = first + 1; s < first + n; s++)
		for (int k = 0; !r && k < p->seq->nfusions; k++)
			if (is_tried(p, &p->seq->fusion[k], pass))
				r = try_fusion(p, &p->seq->fusion[k], s, end, NULL);
	return r;
}

/* try fusions of the sequence, then built-in fusions that take no steps from them */
static int try_either(struct te_plan *p, enum te_pass pass, int k, int s, int end,
		      struct te__group *g)
{
	const int own = k < p->seq->nfusions;
	const struct te_fusion *f = own ? &p->seq->fusion[k] : &te__fusions[k - p->seq->nfusions];
	int r = 0;

	if (!is_tried(p, f, pass))
		return 0;
	if (!own)
		r = is_wanted(p, pass, s, matches(p, f, s, end), end);
	return r ? (r < 0 ? r : 0) : try_fusion(p, f, s, end, g);
}

static int fuse_list(struct te_plan *p, enum te_pass pass, int first, int end)
{
	int s = first;

	while (s < end) {
		struct te__group *g = &p->group[p->ngroups++];
		int r = 0;

		if (p->step[s].joint)
			fill_backward(p, g, s);
		else
			te__plan_fill_group(p, g, NULL, s, 1);
		for (int k = 0; !g->fusion && k < p->seq->nfusions + te__nfusions; k++) {
			r = try_either(p, pass, k, s, end, g);
			if (r < 0)
				return r;
		}
		s += g->n;
	}
	return 0;
}

int te__plan_parts(struct te_plan *p)
{
	void *part = te__realloc(p->part, ((size_t)p->nsteps + 1) * sizeof(*p->part));

	if (!part)
		return te__no_memory("plan");
	p->part = part;
	for (int i = 0; i < p->nsteps; i++)
		p->part[i] = &p->step[i].call;
	return 0;
}

int te__plan_fuse(struct te_plan *p)
{
	int bwd_end = p->fwd_steps + p->bwd_steps;
	int r;

	p->group = te__calloc((size_t)p->nsteps + 1, sizeof(*p->group));
	r = p->group ? te__plan_parts(p) : te__no_memory("plan");
	if (r)
		return r;
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
