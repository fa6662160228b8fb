/*
 * rng.c - random numbers of the plans of a graph.
 *
 * They depend on the step, the micro-batch and the op, and neither on the order of the passes nor
 * on the division into plans. Of one sequence's plans, the forward of micro-batch m draws at the
 * sequence's offset plus m, and the last forward of the schedule advances the offset. m and nmicro
 * count in the larger step that ranks share, if there is one. A plan with ops that an earlier plan
 * of its micro-batch has too draws nmicro later, because otherwise both would drop the same
 * elements.
 */
#include "config.h"

#include "graph_internal.h"

/* the ops of one sequence that a callable's plan runs; seq NULL: it draws nothing */
struct ops {
	const struct te_seq *seq;
	int first, end;
};

static struct ops ops_of(const struct te_graph *g, int32_t i)
{
	struct ops o = { NULL, 0, 0 };
	struct te_plan *plan = te__callable_plan(&g->callable[i].c);

	if (plan)
		o.seq = te__plan_draws(plan, &o.first, &o.end);
	return o;
}

/* number of consecutive plans of the micro-batch before callable i that have ops in common */
static uint64_t repeats(const struct te_graph *g, int32_t i, uint64_t nmicro)
{
	const struct ops a = ops_of(g, i);
	uint64_t most = 0;

	for (int32_t j = te__graph_before(g, i); j >= 0; j = te__graph_before(g, j)) {
		const struct ops b = ops_of(g, j);
		const uint64_t k = g->callable[j].rng_index / nmicro + 1;

		if (b.seq == a.seq && b.first < a.end && a.first < b.end && k > most)
			most = k;
	}
	return most;
}

/* the last forward pass of a sequence's plans advances its offset past all their draws */
static void advance(struct te_graph *g, const struct te_seq *seq, uint64_t nmicro)
{
	struct te__graph_callable *last = NULL;
	uint64_t n = 0;

	for (int32_t k = 0; k < g->nsteps; k++) {
		struct te__graph_callable *c = &g->callable[g->step[k].callable];

		if (g->step[k].kind != TE_SCHED_F || ops_of(g, g->step[k].callable).seq != seq)
			continue;
		last = c;
		if (n < (c->rng_index / nmicro + 1) * nmicro)
			n = (c->rng_index / nmicro + 1) * nmicro;
	}
	last->rng_advance = n;
}

void te__graph_rng(struct te_graph *g)
{
	struct te_schedule_info info = TE_SCHEDULE_INFO_INIT;
	const struct te_seq *seq, *done = NULL;
	uint64_t nmicro;

	te_schedule_info(g->schedule, &info);
	nmicro = (uint64_t)(g->total_micro ? g->total_micro : info.nmicro);
	for (int32_t i = 0; i < g->ncallables; i++) {
		struct te__graph_callable *c = &g->callable[i];

		if (ops_of(g, i).seq)
			c->rng_index = (uint64_t)(g->first_micro + c->micro) +
				       nmicro * repeats(g, i, nmicro);
	}
	for (int32_t i = 0; i < g->ncallables; i++) {
		seq = ops_of(g, i).seq;
		if (seq && seq != done)
			advance(g, seq, nmicro);
		done = seq ? seq : done;
	}
}
