/* report.c - te_graph_report(3): numbers, JSON and dot. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "graph_internal.h"

static int add(struct te_graph_report *ret, const struct te_recording *rec)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	int r = rec ? te_recording_info(rec, &i) : 0;

	if (r || !rec)
		return r;
	ret->nrecordings++;
	ret->nnodes += i.nnodes;
	ret->nedges += i.nedges;
	ret->nkernels += i.nkernels;
	ret->ncopies += i.ncopies;
	ret->nfills += i.nfills;
	ret->nhost += i.nhost;
	ret->ninstantiated += i.ninstantiated;
	ret->nupdated += i.nupdated;
	return 0;
}

static int report(const struct te_graph *graph, struct te_graph_report *ret_report)
{
	struct te_graph_report rep = graph->report;
	int r;

	rep.ncallables = graph->ncallables;
	rep.nsteps = graph->nsteps;
	rep.launch_us = rep.nlaunches ? graph->launch_sum_us / (double)rep.nlaunches : 0;
	r = add(&rep, graph->whole);
	for (int32_t i = 0; i < graph->ncallables && !r; i++)
		for (int k = 0; k < 3 && !r; k++)
			r = add(&rep, graph->callable[i].rec[k]);
	for (int32_t i = 0; i < graph->ncallables; i++) {
		const struct te__graph_callable *n = &graph->callable[i];

		for (int32_t k = 0; k < 2 * (n->c.nin + n->c.nout); k++) {
			rep.npatched += n->bound[k].own != NULL;
			rep.ncopied += n->bound[k].copied != NULL;
		}
	}
	if (!r)
		te__sized_out(te_graph_report, &rep, ret_report);
	return r;
}

int te_graph_report(const struct te_graph *graph, struct te_graph_report *ret_report)
{
	int r = te__sized_check("te_graph_report", te_graph_report, ret_report);

	if (r)
		return r;
	if (!graph)
		return te__fail(-EINVAL, "te_graph_report: graph is NULL");
	return report(graph, ret_report);
}

const struct te_recording *te_graph_recording(const struct te_graph *graph, int32_t callable,
					      enum te_sched_kind kind)
{
	if (!graph || callable < 0 || callable >= graph->ncallables || kind < TE_SCHED_F ||
	    kind > TE_SCHED_W)
		return NULL;
	return graph->whole ? graph->whole : graph->callable[callable].rec[kind];
}

static int json_pass(FILE *f, const struct te_graph *g, const struct te_sched_step *s)
{
	const struct te__graph_callable *n = &g->callable[s->callable];
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	int r = n->rec[s->kind] ? te_recording_info(n->rec[s->kind], &i) : 0;

	if (r)
		return r;
	fprintf(f,
		"{\"pass\": \"%s\", \"callable\": %" PRId32 ", \"name\": ", te__graph_pass(s->kind),
		s->callable);
	te__json_string(f, n->c.name);
	fprintf(f, ", \"chunk\": %" PRId32 ", \"micro_batch\": %" PRId32 ", \"layer\": %" PRId32,
		s->chunk, s->micro, s->layer);
	if (n->rec[s->kind])
		fprintf(f,
			", \"nodes\": %" PRIu64 ", \"edges\": %" PRIu64 ", \"kernels\": %" PRIu64
			", \"copies\": %" PRIu64 ", \"fills\": %" PRIu64
			", \"host_calls\": %" PRIu64,
			i.nnodes, i.nedges, i.nkernels, i.ncopies, i.nfills, i.nhost);
	fputc('}', f);
	return 0;
}

static const struct te_arg *arg_at(const struct te__graph_callable *n, int32_t at, int *ret_grad)
{
	const int32_t nin = n->c.nin, nout = n->c.nout;

	*ret_grad = at < 2 * nin ? at >= nin : at >= 2 * nin + nout;
	return at < 2 * nin ? &n->c.in[at % nin] : &n->c.out[(at - 2 * nin) % nout];
}

static void json_bound(FILE *f, const struct te_graph *g)
{
	const char *comma = "";

	for (int32_t i = 0; i < g->ncallables; i++) {
		const struct te__graph_callable *n = &g->callable[i];

		for (int32_t k = 0; k < 2 * (n->c.nin + n->c.nout); k++) {
			const struct te__bound *b = &n->bound[k];
			const struct te_arg *a;
			int grad;

			if (!b->how)
				continue;
			a = arg_at(n, k, &grad);
			fprintf(f, "%s\n  {\"callable\": %" PRId32 ", \"argument\": ", comma, i);
			te__json_string(f, a->name);
			fprintf(f, ", \"gradient\": %s, \"how\": \"%s\"}", grad ? "true" : "false",
				b->how == TE_BIND_PATCHED ? "patched" : "copied");
			comma = ",";
		}
	}
}

struct json {
	const struct te_graph *g;
	const struct te_graph_report *rep;
};

static int print_json(FILE *f, const void *arg)
{
	const struct json *json = arg;
	const struct te_graph *g = json->g;
	const struct te_graph_report *r = json->rep;
	int e = 0;

	fprintf(f,
		"{\"callables\": %" PRId32 ", \"steps\": %" PRId32 ", \"recordings\": %" PRIu64
		",\n \"nodes\": %" PRIu64 ", \"edges\": %" PRIu64 ", \"kernels\": %" PRIu64
		", \"copies\": %" PRIu64 ", \"fills\": %" PRIu64 ", \"host_calls\": %" PRIu64,
		r->ncallables, r->nsteps, r->nrecordings, r->nnodes, r->nedges, r->nkernels,
		r->ncopies, r->nfills, r->nhost);
	fprintf(f,
		",\n \"pool_peak_bytes\": %" PRIu64 ", \"pool_sum_bytes\": %" PRIu64
		", \"input_bytes\": %" PRIu64 ", \"output_bytes\": %" PRIu64
		", \"gradient_bytes\": %" PRIu64 ", \"saved_bytes\": %" PRIu64
		", \"scratch_bytes\": %" PRIu64,
		r->peak_nbytes, r->sum_nbytes, r->in_nbytes, r->out_nbytes, r->grad_nbytes,
		r->saved_nbytes, r->scratch_nbytes);
	fprintf(f, ",\n \"launches\": %" PRIu64, r->nlaunches);
	te__json_us(f, "launch_us", r->launch_us);
	te__json_us(f, "launch_max_us", r->launch_max_us);
	fprintf(f,
		",\n \"executables_made\": %" PRIu64 ", \"updated_in_place\": %" PRIu64
		", \"bound\": [",
		r->ninstantiated, r->nupdated);
	json_bound(f, g);
	fprintf(f, "],\n \"passes\": [");
	for (int32_t i = 0; i < g->nsteps && !e; i++) {
		fprintf(f, "%s\n  ", i ? "," : "");
		e = json_pass(f, g, &g->step[i]);
	}
	fprintf(f, "]}\n");
	return e;
}

int te_graph_json(const struct te_graph *graph, char **ret_text)
{
	struct te_graph_report rep = TE_GRAPH_REPORT_INIT;
	int r;

	if (!graph || !ret_text)
		return te__fail(-EINVAL, "te_graph_json: %s is NULL", graph ? "ret_text" : "graph");
	r = report(graph, &rep);
	return r ? r : te__text("te_graph_json", print_json, &(struct json){ graph, &rep },
				ret_text);
}

static void dot_data(FILE *f, const struct te_graph *g, int32_t from, int32_t to)
{
	if (from >= 0 && to >= 0 && g->nsteps)
		fprintf(f, "\ts%" PRId32 " -> s%" PRId32 " [style=dashed, constraint=false];\n",
			from, to);
}

/* solid edges: the order of replays; dashed: data between passes */
static int print_dot(FILE *f, const void *arg)
{
	const struct te_graph *g = arg;

	fprintf(f, "digraph te_graph {\n\tnode [shape=box];\n");
	for (int32_t i = 0; i < g->nsteps; i++) {
		const struct te_sched_step *s = &g->step[i];
		const struct te_recording *rec = g->callable[s->callable].rec[s->kind];
		struct te_recording_info info = TE_RECORDING_INFO_INIT;

		fprintf(f, "\ts%" PRId32 " [label=\"%s\\n", i, te__graph_pass(s->kind));
		for (const char *p = g->callable[s->callable].c.name; *p; p++)
			fprintf(f, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
		fprintf(f, "\\nchunk %" PRId32 ", micro-batch %" PRId32, s->chunk + 1,
			s->micro + 1);
		if (rec && !te_recording_info(rec, &info))
			fprintf(f, "\\n%" PRIu64 " nodes", info.nnodes);
		fprintf(f, "\"];\n");
		if (i)
			fprintf(f, "\ts%" PRId32 " -> s%" PRId32 ";\n", i - 1, i);
	}
	for (int32_t i = 0; i < g->ncallables; i++) {
		const struct te__graph_callable *n = &g->callable[i];

		dot_data(f, g, n->at[TE_SCHED_F], n->at[TE_SCHED_B]);
		dot_data(f, g, n->at[TE_SCHED_B], n->at[TE_SCHED_W]);
		if (n->next < 0)
			continue;
		dot_data(f, g, n->at[TE_SCHED_F], g->callable[n->next].at[TE_SCHED_F]);
		dot_data(f, g, g->callable[n->next].at[TE_SCHED_B], n->at[TE_SCHED_B]);
	}
	fprintf(f, "}\n");
	return 0;
}

int te_graph_dot(const struct te_graph *graph, char **ret_text)
{
	if (!graph || !ret_text)
		return te__fail(-EINVAL, "te_graph_dot: %s is NULL", graph ? "ret_text" : "graph");
	return te__text("te_graph_dot", print_dot, graph, ret_text);
}
