/*
 * profile.c - te_plan_profile(3): the time of each group of a plan, compared with the time that its
 * bytes and FLOPs need at the rates of copies and GEMMs.
 */
#define TE_LOG_CATEGORY "core/plan"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/base/private.h"

#include "libtecore/plan/costs.h"
#include "libtecore/tensor/ctx.h"

#define NPASSES 3
#define NRUNS_MAX 1000
#define WEIGHTS -1 /* groups of entries outside of groups: before the first one of a pass */
#define SCALES -2  /* after the last one */

struct te__profile {
	struct te_plan_profile sum;
	struct te_plan_profile_step *step; /* [sum.nsteps] by lost_us */
};

/* The interval between two events. */
struct interval {
	int group; /* or WEIGHTS, SCALES */
	enum te_pass pass;
	int from; /* its first event */
};

struct measure {
	struct te_plan *plan;
	struct te_stream *stream;
	struct te_plan_profile_opts opts;
	struct te__probe probe;
	int nevents, nintervals;
	struct interval *interval;
	double *us; /* [nintervals][opts.nruns] */
	struct te__costs costs;
};

void te__profile_free(struct te__profile *f)
{
	for (int i = 0; f && i < f->sum.nsteps; i++)
		te__free((char *)(uintptr_t)f->step[i].steps);
	if (f)
		te__free(f->step);
	te__free(f);
}

/* ---- bytes and FLOPs ---- */

/* sets nbytes, flops, bound_us and lost_us of a group, whose time is known */
static void compare(struct measure *m, int group, struct te_plan_profile_step *ret)
{
	const struct te_plan_profile_opts *o = &m->opts;
	struct te__cost cost;
	double gemm, flops_s = 0, copy_s;

	te__costs_of(&m->costs, group, &cost);
	gemm = cost.flops[TE__WORK_GEMM] + cost.flops[TE__WORK_ATTENTION];
	ret->nbytes = cost.nbytes + cost.between_nbytes;
	ret->flops = gemm + cost.flops[TE__WORK_FP8_GEMM];
	if (gemm > 0)
		flops_s += gemm / o->gemm_rate;
	if (cost.flops[TE__WORK_FP8_GEMM] > 0)
		flops_s += cost.flops[TE__WORK_FP8_GEMM] / o->fp8_rate;
	copy_s = (double)cost.nbytes / o->copy_rate;
	ret->bound_us = (copy_s > flops_s ? copy_s : flops_s) * 1e6 +
			(double)cost.between_nbytes / o->copy_rate * 1e6;
}

/* rates that the caller has not given, if the plan needs them */
static int measure_rates(struct measure *m)
{
	const struct te_plan *p = m->plan;
	int fp8 = 0, gemm = 0, r = 0;

	for (int i = 0; i < p->nsteps; i++) {
		fp8 |= te__step_flops(p, &p->step[i]) > 0 && te__step_is_fp8(&p->step[i]);
		gemm |= te__step_flops(p, &p->step[i]) > 0 && !te__step_is_fp8(&p->step[i]);
	}
	if (!(m->opts.copy_rate > 0))
		r = te__rate_copy(m->stream, &m->opts.copy_rate);
	if (!r && fp8 && !(m->opts.fp8_rate > 0))
		r = te__rate_gemm(m->stream, TE_DTYPE_E4M3, &m->opts.fp8_rate);
	if (!r && gemm && !(m->opts.gemm_rate > 0))
		r = te__rate_gemm(m->stream, p->recipe.compute, &m->opts.gemm_rate);
	return r;
}

/* ---- runs ---- */

/* events of a pass: its begin, each group, the end of the last one, the end of the pass */
static void add_pass(struct measure *m, enum te_pass pass, int first, int n)
{
	for (int i = -1; i <= n; i++)
		m->interval[m->nintervals++] = (struct interval){
			i < 0 ? WEIGHTS : i < n ? first + i : SCALES, pass, m->nevents + i + 1,
		};
	m->nevents += n + 3;
}

static int open_measure(struct measure *m)
{
	const struct te_plan *p = m->plan;
	const size_t room = (size_t)p->ngroups + 3 * NPASSES;
	int r = 0;

	m->interval = te__calloc(room, sizeof(*m->interval));
	m->us = te__calloc(room * (size_t)m->opts.nruns, sizeof(*m->us));
	m->probe.event = te__calloc(room, sizeof(*m->probe.event));
	if (!m->interval || !m->us || !m->probe.event)
		return te__no_memory("te_plan_profile");
	r = te__costs_open(&m->costs, p);
	if (r)
		return r;
	add_pass(m, TE_PASS_FORWARD, 0, p->fwd_groups);
	if (p->flags & TE_PLAN_TRAIN)
		add_pass(m, TE_PASS_BACKWARD, p->fwd_groups, p->bwd_groups);
	if (p->flags & TE_PLAN_TRAIN && p->flags & TE_PLAN_DELAY_DW)
		add_pass(m, TE_PASS_BACKWARD, p->fwd_groups + p->bwd_groups,
			 p->ngroups - p->fwd_groups - p->bwd_groups);
	for (int i = 0; i < m->nevents && !r; i++)
		r = te_event_create(p->ctx, &m->probe.event[i]);
	return r;
}

static void close_measure(struct measure *m)
{
	for (int i = 0; m->probe.event && i < m->nevents; i++)
		te_event_unref(m->probe.event[i]);
	te__free(m->probe.event);
	te__free(m->interval);
	te__costs_close(&m->costs);
	te__free(m->us);
}

static int run_passes(struct measure *m)
{
	struct te_plan *p = m->plan;
	int r;

	m->probe.n = 0;
	p->probe = &m->probe;
	r = te_plan_forward(p, m->stream, 0);
	if (!r && p->flags & TE_PLAN_TRAIN)
		r = te_plan_backward(p, m->stream);
	if (!r && p->flags & TE_PLAN_TRAIN && p->flags & TE_PLAN_DELAY_DW)
		r = te_plan_backward_dw(p, m->stream);
	p->probe = NULL;
	return r ? r : te_stream_sync(m->stream);
}

static int run_all(struct measure *m)
{
	const int nruns = m->opts.nruns;
	double ms;
	int r = 0;

	for (int run = -m->opts.nwarm; run < nruns && !r; run++) {
		r = run_passes(m);
		for (int i = 0; i < m->nintervals && run >= 0 && !r; i++) {
			struct te_event **e = &m->probe.event[m->interval[i].from];

			r = te_event_elapsed_ms(e[0], e[1], &ms);
			if (!r)
				m->us[i * nruns + run] = ms * 1e3;
		}
	}
	return r;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* ---- results ---- */

/* the labels of the group's steps, for te__free(); NULL: no memory */
static char *steps_of(const struct te_plan *p, int group)
{
	const struct te__group *g = &p->group[group];
	const size_t room = (size_t)g->n * 200;
	char *text = te__malloc(room);
	size_t n = 0;

	for (int k = 0; text && k < g->n; k++) {
		n += (size_t)snprintf(text + n, room - n, "%s", k ? " + " : "");
		te__plan_step_label(p, &p->step[g->first + k], text + n, 192);
		n += strlen(text + n);
	}
	return text;
}

/* work outside of groups that the plan does */
static int has_outside(const struct te_plan *p, const struct interval *v)
{
	if (v->group == WEIGHTS)
		return v->pass == TE_PASS_FORWARD && p->nneeds;
	return p->quant && p->flags & TE_PLAN_TRAIN;
}

static int by_loss(const void *a, const void *b)
{
	const struct te_plan_profile_step *x = a, *y = b;

	if (x->lost_us != y->lost_us)
		return x->lost_us < y->lost_us ? 1 : -1;
	return (x->group > y->group) - (x->group < y->group);
}

static int add_step(struct measure *m, struct te__profile *f, const struct interval *v, double *us)
{
	struct te_plan_profile_step *s = &f->step[f->sum.nsteps];
	const struct te_plan *p = m->plan;
	const int n = m->opts.nruns;

	qsort(us, (size_t)n, sizeof(*us), by_value);
	*s = (struct te_plan_profile_step){
		.size = sizeof(*s),
		.name = v->group == WEIGHTS ? "weights" :
			v->group == SCALES  ? "scales" :
					      te__plan_group_name(p, &p->group[v->group]),
		.steps = v->group < 0 ? te__strdup("") : steps_of(p, v->group),
		.pass = v->pass,
		.group = v->group < 0 ? -1 : v->group,
		.us = (us[(n - 1) / 2] + us[n / 2]) / 2,
		.min_us = us[0],
	};
	if (!s->steps)
		return te__no_memory("te_plan_profile");
	f->sum.nsteps++;
	if (v->group >= 0)
		compare(m, v->group, s);
	s->lost_us = s->us > s->bound_us ? s->us - s->bound_us : 0;
	f->sum.us += s->us;
	f->sum.bound_us += s->bound_us;
	f->sum.lost_us += s->lost_us;
	f->sum.nbytes += s->nbytes;
	f->sum.flops += s->flops;
	return 0;
}

static int summarise(struct measure *m, struct te__profile *f)
{
	int r = 0;

	f->sum = (struct te_plan_profile){
		.size = sizeof(f->sum),
		.nruns = m->opts.nruns,
		.copy_rate = m->opts.copy_rate,
		.fp8_rate = m->opts.fp8_rate,
		.gemm_rate = m->opts.gemm_rate,
	};
	f->step = te__calloc((size_t)m->nintervals, sizeof(*f->step));
	if (!f->step)
		return te__no_memory("te_plan_profile");
	for (int i = 0; i < m->nintervals && !r; i++)
		if (m->interval[i].group >= 0 || has_outside(m->plan, &m->interval[i]))
			r = add_step(m, f, &m->interval[i], &m->us[i * m->opts.nruns]);
	qsort(f->step, (size_t)f->sum.nsteps, sizeof(*f->step), by_loss);
	return r;
}

static int check_opts(const struct te_plan_profile_opts *o)
{
	if (o->nruns < 1 || o->nruns > NRUNS_MAX || o->nwarm < 0 || o->nwarm > NRUNS_MAX)
		return te__fail(-EINVAL,
				"te_plan_profile: %d runs after %d: expected 1 to %d after 0 to %d",
				o->nruns, o->nwarm, NRUNS_MAX, NRUNS_MAX);
	if (!(o->copy_rate >= 0) || !(o->fp8_rate >= 0) || !(o->gemm_rate >= 0))
		return te__fail(-EINVAL,
				"te_plan_profile: a rate is %g, %g or %g, expected 0 or more",
				o->copy_rate, o->fp8_rate, o->gemm_rate);
	return 0;
}

static int profile(struct measure *m, struct te_plan_profile *ret_profile)
{
	struct te__profile *f = te__calloc(1, sizeof(*f));
	int r = f ? open_measure(m) : te__no_memory("te_plan_profile");

	if (!r)
		r = measure_rates(m);
	if (!r)
		r = run_all(m);
	if (!r)
		r = summarise(m, f);
	close_measure(m);
	if (r) {
		te__profile_free(f);
		return r;
	}
	te__profile_free(m->plan->profile);
	m->plan->profile = f;
	if (ret_profile)
		te__sized_out(te_plan_profile, &f->sum, ret_profile);
	return 0;
}

int te_plan_profile(struct te_plan *plan, struct te_stream *stream,
		    const struct te_plan_profile_opts *opts, struct te_plan_profile *ret_profile)
{
	struct measure m = { .plan = plan, .stream = stream, .opts = TE_PLAN_PROFILE_OPTS_INIT };
	int r = te__plan_runnable(plan, stream, "te_plan_profile");

	if (!r && opts)
		r = te__sized_in("te_plan_profile", te_plan_profile_opts, opts, &m.opts);
	if (!r && ret_profile)
		r = te__sized_check("te_plan_profile", te_plan_profile, ret_profile);
	if (!r)
		r = check_opts(&m.opts);
	if (!r)
		r = te__stream_not_capturing(stream, "te_plan_profile");
	return r ? r : profile(&m, ret_profile);
}

int te_plan_profile_step(const struct te_plan *plan, int index,
			 struct te_plan_profile_step *ret_step)
{
	int r = te__sized_check("te_plan_profile_step", te_plan_profile_step, ret_step);

	if (r)
		return r;
	if (!plan || index < 0)
		return te__fail(-EINVAL, "te_plan_profile_step: %s",
				plan ? "index is below 0" : "plan is NULL");
	if (!plan->profile)
		return te__fail(-TE_ESTATE, "te_plan_profile_step: the plan has no profile, "
				"expected te_plan_profile before");
	if (index >= plan->profile->sum.nsteps)
		return -ENOENT;
	te__sized_out(te_plan_profile_step, &plan->profile->step[index], ret_step);
	return 0;
}

/* ---- texts ---- */

static const char *pass_name(const struct te_plan_profile_step *s)
{
	return s->pass == TE_PASS_FORWARD ? "forward" : "backward";
}

static double ratio(double bound_us, double us)
{
	return us > 0 ? 100 * bound_us / us : 100;
}

static void print_row(FILE *out, double lost, double us, double bound, uint64_t nbytes,
		      double flops)
{
	fprintf(out, "%11.1f %11.1f %11.1f %6.1f %10.3f %10.3f", lost, us, bound, ratio(bound, us),
		(double)nbytes * 1e-6, flops * 1e-9);
}

static int print_text(FILE *out, const void *arg)
{
	const struct te_plan *p = arg;
	const struct te_plan_profile *t = &p->profile->sum;
	char spec[96];

	te__spec_str(&p->xspec, spec, sizeof(spec));
	fprintf(out, "profile: x %s, recipe %s, %d runs\n", spec, te_recipe_name(&p->recipe),
		t->nruns);
	fprintf(out, "rates: copy %.1f GB/s", t->copy_rate * 1e-9);
	if (t->fp8_rate > 0)
		fprintf(out, ", FP8 GEMM %.3f TFLOPS", t->fp8_rate * 1e-12);
	if (t->gemm_rate > 0)
		fprintf(out, ", %s GEMM %.3f TFLOPS", te_dtype_name(p->recipe.compute),
			t->gemm_rate * 1e-12);
	fprintf(out, "\n%11s %11s %11s %6s %10s %10s  %-8s %5s  %s\n", "lost us", "us", "needed us",
		"%", "MB", "GFLOP", "pass", "group", "steps");
	for (int i = 0; i < t->nsteps; i++) {
		const struct te_plan_profile_step *s = &p->profile->step[i];

		print_row(out, s->lost_us, s->us, s->bound_us, s->nbytes, s->flops);
		fprintf(out, "  %-8s ", pass_name(s));
		if (s->group >= 0)
			fprintf(out, "%5d  %s: %s\n", s->group, s->name, s->steps);
		else
			fprintf(out, "%5s  %s\n", "", s->name);
	}
	print_row(out, t->lost_us, t->us, t->bound_us, t->nbytes, t->flops);
	fputs("  sum\n", out);
	return 0;
}

static void json_times(FILE *out, double us, double bound_us, double lost_us, uint64_t nbytes,
		       double flops)
{
	te__json_us(out, "us", us);
	te__json_us(out, "bound_us", bound_us);
	te__json_us(out, "lost_us", lost_us);
	/* no decimals: a locale may have another decimal point */
	fprintf(out, ", \"bytes\": %" PRIu64 ", \"flops\": %.0f", nbytes, flops);
}

static int print_json(FILE *out, const void *arg)
{
	const struct te_plan *p = arg;
	const struct te_plan_profile *t = &p->profile->sum;

	fputs("{\"recipe\": ", out);
	te__json_string(out, te_recipe_name(&p->recipe));
	fprintf(out, ", \"runs\": %d, \"copy_bytes_per_s\": %.0f, \"fp8_flops\": %.0f, "
		"\"gemm_flops\": %.0f", t->nruns, t->copy_rate, t->fp8_rate, t->gemm_rate);
	json_times(out, t->us, t->bound_us, t->lost_us, t->nbytes, t->flops);
	fputs(", \"steps\": [", out);
	for (int i = 0; i < t->nsteps; i++) {
		const struct te_plan_profile_step *s = &p->profile->step[i];

		fprintf(out, "%s\n  {\"pass\": \"%s\", \"group\": %d, \"name\": ",
			i ? "," : "", pass_name(s), s->group);
		te__json_string(out, s->name);
		fputs(", \"steps\": ", out);
		te__json_string(out, s->steps);
		te__json_us(out, "min_us", s->min_us);
		json_times(out, s->us, s->bound_us, s->lost_us, s->nbytes, s->flops);
		fputc('}', out);
	}
	fputs("\n]}\n", out);
	return 0;
}

int te_plan_profile_print(const struct te_plan *plan, enum te_plan_format format, char **ret_text)
{
	if (!plan || !ret_text || (format != TE_PLAN_TEXT && format != TE_PLAN_JSON))
		return te__fail(-EINVAL, "te_plan_profile_print: %s is NULL, or format %d is "
				"neither TE_PLAN_TEXT nor TE_PLAN_JSON",
				plan ? "ret_text" : "plan", (int)format);
	if (!plan->profile)
		return te__fail(-TE_ESTATE, "te_plan_profile_print: the plan has no profile, "
				"expected te_plan_profile before");
	return te__text("te_plan_profile_print", format == TE_PLAN_JSON ? print_json : print_text,
			plan, ret_text);
}
