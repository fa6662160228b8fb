/*
 * mix.c - --memory: what is computed again, divided, offloaded or kept in host memory so that a run
 * fits.
 *
 * Each mix is laid out without memory, which tells its bytes exactly. The time of a step follows
 * from the bytes that its kernels access, the operations of its GEMMs and the rates of the device
 * and the link: te_offload_report(3) has them. A mix that does not fit offloads as little as makes
 * it fit.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "mix.h"
#include "tools/lib/say.h"

/* from the least that is computed again to the most */
static const char *const recomputed[] = { "off", "norm,act", "norm,act,attention", "block" };
static const int64_t chunks[] = { 0, 4096, 1024 };
/* from the least in host memory to the most */
static const char *const states[] = { "device", "host", "masters", "all" };
static const char *const copies[] = { "keep", "recompute" };

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct mix {
	const char *recompute, *states, *copies;
	int64_t chunk;
	struct mem m;
	struct mem_fit fit;
};

/* fills x from its choices; the rates of t->offload, created once, predict its time */
static int try(struct opts *o, struct trainer *t, struct mix *x)
{
	const struct attempt *a = &t->now;
	struct mem_run run = { o, &a->model, &a->graph, 1, NULL, &t->choices };
	int r = opts_set(o, "recompute", x->recompute), te = 0;

	if (!r)
		r = opts_set(o, "states", x->states);
	if (!r)
		r = opts_set(o, "column-copies", x->copies);
	t->cfg.loss_chunk = o->loss_chunk = x->chunk;
	if (!r)
		r = trainer_plan(t);
	if (!r && !t->offload)
		te = step_graph_offload(&a->graph, t->ctx, 0, 0, &t->offload);
	if (te < 0)
		r = say_te(te, "--memory");
	run.offload = t->offload;
	if (!r)
		r = mem_try(&run, !o->offload_given || strcmp(o->offload, "off") != 0, &x->m,
			    &x->fit);
	trainer_close(t);
	return r;
}

static int tells(const struct opts *o, const struct trainer *t)
{
	return !o->json && !t->ranks.rank;
}

/* are there column-wise copies of weights? */
static int has_copies(const struct trainer *t)
{
	return t->recipe.kind != TE_RECIPE_NONE || config_has_recipe(&t->cfg, TE_RECIPE_NONE);
}

static void print_heading(const struct opts *o, const struct trainer *t)
{
	if (!tells(o, t))
		return;
	printf("%-20s %10s %7s ", "recompute", "loss-chunk", "states");
	if (has_copies(t))
		printf("%13s ", "column-copies");
	printf("%12s %12s %13s\n", "offloaded", "memory", "step");
}

static void print(const struct opts *o, const struct trainer *t, const struct mix *x)
{
	char total[32], moved[32];

	if (!tells(o, t))
		return;
	printf("%-20s %10lld %7s ", x->recompute, (long long)x->chunk, x->states);
	if (has_copies(t))
		printf("%13s ", x->copies);
	printf("%12s %12s %10.2f ms%s\n", x->fit.moves ? mem_amount(x->m.offloaded, moved) : "-",
	       mem_amount(x->m.total, total), x->m.step_ms, x->fit.fits ? "" : "  does not fit");
}

/* number of values of --states that are possible, of `states` */
static size_t count_states(const struct opts *o, const struct trainer *t)
{
	if (!(opts_masters(o, "host") & TE_SEQ_BF16_MASTERS) || o->context > 1)
		return 2;
	return ranks_n(&t->ranks) == 1 || o->zero > 1 ? COUNT(states) : COUNT(states) - 1;
}

/* choices; one of each if the command line gives it */
struct axes {
	const char *recompute[COUNT(recomputed)];
	const char *states[COUNT(states)];
	const char *copies[COUNT(copies)];
	int64_t chunk[COUNT(chunks)];
	size_t nrecompute, nstates, ncopies, nchunks;
};

/* given: --recompute of the command line, or NULL */
static struct axes axes_of(const struct opts *o, const struct trainer *t, const char *given)
{
	/* a head in FP8, or of ranks that divide it or the tokens, has no chunks */
	const int divides = o->tensor == 1 && o->context == 1 &&
			    t->head_recipe.kind == TE_RECIPE_NONE;
	struct axes a = { .nrecompute = given ? 1 : COUNT(recomputed), .nchunks = 1 };

	memcpy(a.states, states, sizeof(states));
	a.nstates = o->states_given ? 1 : count_states(o, t);
	for (size_t i = 0; i < COUNT(states) && o->states_given; i++)
		if (!strcmp(o->states, states[i]))
			a.states[0] = states[i];
	memcpy(a.copies, copies, sizeof(copies));
	a.ncopies = o->copies_given || !has_copies(t) ? 1 : COUNT(copies);
	a.copies[0] = copies[!strcmp(o->column_copies, "recompute")];
	memcpy(a.recompute, recomputed, sizeof(recomputed));
	if (given)
		a.recompute[0] = given;
	a.chunk[0] = o->chunk_given ? o->loss_chunk : 0;
	for (size_t i = 1; i < COUNT(chunks) && !o->chunk_given && divides; i++)
		if (chunks[i] < t->B * t->T)
			a.chunk[a.nchunks++] = chunks[i];
	return a;
}

/* least: the mix of the fewest bytes */
static int none_fits(const struct opts *o, const struct mix *least)
{
	const struct mem *m = &least->m;
	char all[32], there[32], fixed[32], act[32];

	return say_bad("--memory: nothing fits into %s: --recompute %s --loss-chunk %lld takes %s, "
		       "and an offload does not free enough; weights, gradients, moments (--states "
		       "%s) and copies take %s, activations %s",
		       mem_amount((uint64_t)o->memory, there), least->recompute,
		       (long long)least->chunk, mem_amount(m->total, all), least->states,
		       mem_amount(m->weights + m->grads + m->moments + m->copies, fixed),
		       mem_amount(m->activations, act));
}

int mix_replaces(double ms, int moves, double best_ms, int best_moves)
{
	return ms < 0.975 * best_ms || (ms < 1.02 * best_ms && best_moves && !moves);
}

/* does x, which fits, replace mix `best` of all, or is it the first? */
static int is_better(const struct mix *x, const struct mix *all, int best)
{
	return best < 0 || mix_replaces(x->m.step_ms, x->fit.moves, all[best].m.step_ms,
					all[best].fit.moves);
}

/* lays out all mixes; best: index of the fastest that fits, -1: none; least: of the fewest bytes */
static int search(struct opts *o, struct trainer *t, const struct axes *a, struct mix *x,
		  int *best, int *least)
{
	const size_t each = a->nchunks * a->nrecompute, all = each * a->nstates;
	const int n = (int)(all * a->ncopies);
	const struct mix *less;
	int r = STATUS_OK;

	*best = -1;
	*least = 0;
	for (int i = 0; i < n && !r; i++) {
		x[i] = (struct mix){ .recompute = a->recompute[(size_t)i % a->nrecompute],
				     .chunk = a->chunk[(size_t)i / a->nrecompute % a->nchunks],
				     .states = a->states[(size_t)i / each % a->nstates],
				     .copies = a->copies[(size_t)i / all] };
		/* the same with moments in device memory, or with the copies, is no slower */
		less = (size_t)i % all >= each ? &x[i - (int)each] :
		       (size_t)i >= all	       ? &x[i - (int)all] :
						 NULL;
		if (less && less->fit.fits && !less->fit.moves) {
			x[i] = *less;
			continue;
		}
		r = try(o, t, &x[i]);
		if (r)
			break;
		print(o, t, &x[i]);
		if (x[i].fit.fits && is_better(&x[i], x, *best))
			*best = i;
		*least = x[i].m.total < x[*least].m.total ? i : *least;
	}
	return r;
}

static int take(struct opts *o, struct trainer *t, const struct mix *x)
{
	int r = opts_set(o, "recompute", x->recompute);

	if (!r)
		r = opts_set(o, "offload", x->fit.moves ? "auto" : "off");
	if (!r)
		r = opts_set(o, "states", x->states);
	if (!r)
		r = opts_set(o, "column-copies", x->copies);
	if (r)
		return r;
	t->cfg.loss_chunk = o->loss_chunk = x->chunk;
	if (!x->fit.moves)
		t->offload = te_offload_unref(t->offload);
	t->predicted_ms = x->m.step_ms;
	t->predicted_nbytes = x->m.total;
	if (tells(o, t))
		printf("chosen: --recompute %s --loss-chunk %lld --offload %s --states %s%s%s\n",
		       o->recompute, (long long)o->loss_chunk, o->offload, o->states,
		       has_copies(t) ? " --column-copies " : "", has_copies(t) ? x->copies : "");
	return STATUS_OK;
}

int mix_choose(struct opts *o, struct trainer *t)
{
	struct mix x[COUNT(chunks) * COUNT(recomputed) * COUNT(states) * COUNT(copies)];
	char *given = NULL;
	struct axes a;
	int best, least, te, r;

	if (o->recompute_given && !(given = strdup(o->recompute)))
		return say_failed("out of memory");
	a = axes_of(o, t, given);
	print_heading(o, t);
	r = search(o, t, &a, x, &best, &least);
	/* rates are measured, and differ from rank to rank */
	te = r ? 0 : ranks_first(&t->ranks, t->stream, &best);
	if (te < 0)
		r = say_te(te, "--memory");
	if (!r)
		r = best < 0 ? none_fits(o, &x[least]) : take(o, t, &x[best]);
	free(given);
	return r;
}
