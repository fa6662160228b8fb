/* graph.c - a training step as a graph. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>

#include "graph.h"
#include "record.h"
#include "say.h"

/* ---- the order ---- */

static const char *schedule_of(const struct opts *o)
{
	/* an empty name removes the schedule that a checkpoint was saved with */
	return o->pipeline_schedule && *o->pipeline_schedule ? o->pipeline_schedule : NULL;
}

static int is_mode(const struct step_graph *g, const char *mode)
{
	return !strcmp(g->o->graph, mode);
}

static int parse(const struct step_graph *g, const char *text, struct te_schedule **ret_schedule)
{
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	int r;

	so.nchunks = g->nchunks;
	so.nmicro = g->accum;
	so.nlayers = g->nlayers;
	r = te_schedule_parse(text, &so, ret_schedule);
	return r < 0 ? say_te(r, "--pipeline-schedule") : STATUS_OK;
}

/* the number of chunks that --chunks gives, or that the list names */
static int count_chunks(struct step_graph *g, const char *text)
{
	struct te_schedule_info info = TE_SCHEDULE_INFO_INIT;
	struct te_schedule *s = NULL;
	int r = parse(g, text, &s);

	if (r)
		return r;
	te_schedule_info(s, &info);
	te_schedule_unref(s);
	if (info.nchunks > g->cfg.layers) {
		return say_bad("--pipeline-schedule: %d chunks, but the model has %lld layers",
			       (int)info.nchunks, (long long)g->cfg.layers);
	}
	g->nchunks = info.nchunks;
	return STATUS_OK;
}

int step_graph_plan(const struct opts *o, struct step_graph *g)
{
	const char *text = schedule_of(o);
	const int64_t layers = g->cfg.layers;
	int r = STATUS_OK;

	g->o = o;
	g->accum = (int32_t)o->accum;
	g->nchunks = text ? (int32_t)o->chunks : 1;
	g->nparts = text || is_mode(g, "layer") ? model_nparts(&g->cfg) : 1;
	if (text && is_mode(g, "off"))
		return say_bad("--pipeline-schedule needs --graph step or --graph layer");
	if (o->chunks && !text)
		return say_bad("--chunks needs --pipeline-schedule");
	if (text)
		r = count_chunks(g, text);
	if (r)
		return r;
	g->nlayers = calloc((size_t)g->nchunks, sizeof(*g->nlayers));
	if (!g->nlayers)
		return say_failed("out of memory");
	for (int32_t c = 0; c < g->nchunks; c++)
		g->nlayers[c] = (int32_t)((c + 1) * layers / g->nchunks - c * layers / g->nchunks);
	/* the last chunk has the head */
	g->nlayers[g->nchunks - 1] += g->nparts - (int32_t)layers;
	return parse(g, text ? text : "1f1b", &g->schedule);
}

void step_graph_free(struct step_graph *g)
{
	g->graph = te_graph_unref(g->graph);
	g->schedule = te_schedule_unref(g->schedule);
	free(g->nlayers);
	g->nlayers = NULL;
}

/* ---- parts ---- */

static int32_t chunk_of(const struct step_graph *g, int32_t part)
{
	int32_t c = 0;

	while (part >= g->nlayers[c])
		part -= g->nlayers[c++];
	return c;
}

/* maximum of a chunk's micro-batches in flight; delayed: weight gradients are separate passes */
static int32_t in_flight(const struct step_graph *g, int32_t chunk, int *ret_delayed)
{
	struct te_schedule_info info = TE_SCHEDULE_INFO_INIT;
	int32_t begun = 0, done[3] = { 0, 0, 0 }, most = 0;
	struct te_sched_step s;

	te_schedule_info(g->schedule, &info);
	*ret_delayed = 0;
	for (int32_t i = 0; i < info.nsteps; i++) {
		te_schedule_step(g->schedule, i, &s);
		*ret_delayed |= s.chunk == chunk && s.kind == TE_SCHED_W;
	}
	for (int32_t i = 0; i < info.nsteps; i++) {
		te_schedule_step(g->schedule, i, &s);
		if (s.chunk != chunk || s.layer)
			continue;
		if (s.kind == TE_SCHED_F)
			begun++;
		else
			done[s.kind]++;
		if (begun - done[*ret_delayed ? TE_SCHED_W : TE_SCHED_B] > most)
			most = begun - done[*ret_delayed ? TE_SCHED_W : TE_SCHED_B];
	}
	return most;
}

int step_graph_part(const struct step_graph *g, struct te_seq *seq, int32_t part, uint32_t flags,
		    struct te_plan **ret_plan)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	char from[32], to[32];
	int delayed;

	in_flight(g, chunk_of(g, part), &delayed);
	po.recipe = &g->recipe;
	po.flags = flags | TE_PLAN_TRAIN | (part ? TE_PLAN_INPUT_GRAD : 0) |
		   (delayed ? TE_PLAN_DELAY_DW : 0);
	if (part)
		po.x = (struct te_spec){ g->recipe.compute, 3, { g->B, g->T, g->cfg.width } };
	else
		po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { g->B, g->T } };
	if (g->nparts > 1) {
		po.start_at = model_cut(&g->cfg, part, from);
		po.stop_before = model_cut(&g->cfg, part + 1, to);
	}
	return te_plan_create(seq, &po, ret_plan);
}

static int make_callable(const struct step_graph *g, int32_t part, uint32_t flags,
			 struct te_callable *ret_c, uint64_t *own_nbytes)
{
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;
	struct te_plan *plan = NULL;
	char at[32], name[48];
	const char *from = g->nparts > 1 ? model_cut(&g->cfg, part, at) : "all";
	int r = step_graph_part(g, g->seq, part, TE_PLAN_EXTERNAL | flags, &plan);

	*ret_c = (struct te_callable)TE_CALLABLE_INIT;
	snprintf(name, sizeof(name), "the part from %s", from ? from : "embed");
	if (r >= 0)
		r = te_plan_memory(plan, &pm);
	if (r >= 0)
		r = te_callable_from_plan(plan, name, ret_c);
	te_plan_unref(plan);
	*own_nbytes += pm.own_nbytes;
	return r;
}

static void release(struct te_callable *c, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		if (c[i].release)
			c[i].release(c[i].self);
}

/*
 * In the order of chunk, micro-batch, layer; all or none. Each chunk runs its micro-batches in
 * order, so it needs only as many plans as micro-batches are in flight at once, used in turn.
 * flags: of the plans. *ret_own: memory of the plans outside the pool.
 */
static int make_callables(const struct step_graph *g, uint32_t flags, struct te_callable *c,
			  uint64_t *ret_own)
{
	int32_t n = 0, part = 0;
	int delayed, r = 0;

	*ret_own = 0;
	for (int32_t k = 0; k < g->nchunks; part += g->nlayers[k++]) {
		const int32_t own = in_flight(g, k, &delayed) * g->nlayers[k];

		for (int32_t i = 0; i < g->accum * g->nlayers[k]; i++, n++) {
			if (i >= own) {
				c[n] = c[n - own];
				c[n].release = NULL;
				continue;
			}
			c[n] = (struct te_callable)TE_CALLABLE_INIT;
			r = make_callable(g, part + i % g->nlayers[k], flags, &c[n], ret_own);
			if (r < 0) {
				release(c, n);
				return r;
			}
		}
	}
	return 0;
}

/* ---- the graph ---- */

static int zero_grads(void *arg, struct te_stream *stream)
{
	const struct step_graph *g = arg;

	return te_seq_zero_grads(g->seq, stream);
}

static int update(void *arg, struct te_stream *stream)
{
	const struct step_graph *g = arg;

	return te_adamw_step(g->opt, stream);
}

static int regions(void *arg, te_region_fn fn, void *fn_arg)
{
	const struct step_graph *g = arg;

	return te_adamw_regions(g->opt, fn, fn_arg);
}

/* the graph in g->graph; no_alloc: only laid out */
static int make_graph(struct step_graph *g, int no_alloc, uint64_t *ret_own)
{
	struct te_schedule_info info = TE_SCHEDULE_INFO_INIT;
	struct te_graph_opts go = TE_GRAPH_OPTS_INIT;
	struct te_callable *c;
	int r;

	te_schedule_info(g->schedule, &info);
	c = calloc((size_t)info.ncallables, sizeof(*c));
	if (!c)
		return -ENOMEM;
	go.flags = TE_GRAPH_CHAIN | TE_GRAPH_REUSE | (no_alloc ? TE_GRAPH_NO_ALLOC : 0) |
		   (is_mode(g, "step") ? TE_GRAPH_WHOLE : 0) |
		   (is_mode(g, "off") ? TE_GRAPH_EAGER : 0);
	/* one warm-up loads the libraries: shapes do not change */
	go.nwarmup = !is_mode(g, "off");
	go.schedule = g->schedule;
	go.first = zero_grads;
	go.last = update;
	go.regions = regions;
	go.arg = g;
	r = make_callables(g, no_alloc ? TE_PLAN_NO_ALLOC : 0, c, ret_own);
	if (!r) {
		r = te_graph_create(te_seq_ctx(g->seq), info.ncallables, c, &go, &g->graph);
		if (r < 0)
			release(c, info.ncallables);
	}
	free(c);
	return r;
}

int step_graph_create(struct step_graph *g, struct te_seq *seq, struct te_adamw *opt)
{
	uint64_t own;
	int r;

	g->seq = seq;
	g->opt = opt;
	r = make_graph(g, 0, &own);
	if (r == -ENOMEM) {
		return say_te(r, "--batch %lld with --seq-len %lld does not fit", (long long)g->B,
			      (long long)g->T);
	}
	return r < 0 ? say_te(r, "the model cannot be planned") : STATUS_OK;
}

int step_graph_measure(const struct step_graph *from, struct te_seq *seq, int64_t B,
		       struct step_memory *ret)
{
	struct te_graph_report rep = TE_GRAPH_REPORT_INIT;
	struct step_graph g = *from;
	int r;

	g.seq = seq;
	g.B = B;
	g.graph = NULL;
	r = make_graph(&g, 1, &ret->own_nbytes);
	if (r >= 0)
		r = te_graph_report(g.graph, &rep);
	ret->pool_nbytes = rep.peak_nbytes;
	te_graph_unref(g.graph);
	return r;
}

struct te_tensor *step_graph_tensor(const struct step_graph *g, int64_t micro, const char *name)
{
	const int32_t m = (int32_t)micro, last = g->nchunks - 1;
	int32_t at = 0;

	if (!strcmp(name, "x"))
		return te_graph_tensor(g->graph, m * g->nlayers[0], name);
	for (int32_t c = 0; c < last; c++)
		at += g->accum * g->nlayers[c];
	return te_graph_tensor(g->graph, at + (m + 1) * g->nlayers[last] - 1, name);
}

json_t *step_graph_to_json(const struct step_graph *g)
{
	struct te_graph_report rep = TE_GRAPH_REPORT_INIT;
	const char *text = schedule_of(g->o);
	struct record rec;

	te_graph_report(g->graph, &rep);
	record_begin(&rec);
	record_text(&rec, "mode", g->o->graph);
	record_text(&rec, "schedule", text ? text : "1f1b");
	record_int(&rec, "chunks", g->nchunks);
	record_int(&rec, "parts", g->nparts);
	record_int(&rec, "micro_batches", g->accum);
	record_int(&rec, "passes", rep.nsteps);
	record_int(&rec, "nodes", (int64_t)rep.nnodes);
	record_int(&rec, "kernels", (int64_t)rep.nkernels);
	/* each recording is launched once per step */
	record_int(&rec, "launches_per_step", (int64_t)rep.nrecordings);
	record_int(&rec, "pool_bytes", (int64_t)rep.peak_nbytes);
	return record_end(&rec, "the graph");
}
