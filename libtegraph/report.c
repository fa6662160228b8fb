/* report.c - what a graph is made of and costs, as numbers and as JSON. */
#define TE_LOG_CATEGORY "graph"
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "graph_internal.h"

void te__graph_spec_of(const struct te_tensor *t, struct te_spec *ret_spec)
{
	ret_spec->dtype = te_tensor_dtype(t);
	ret_spec->ndim = te_tensor_ndim(t);
	for (int32_t d = 0; d < ret_spec->ndim; d++)
		ret_spec->shape[d] = te_tensor_extent(t, d);
}

void te__graph_spec_str(const struct te_spec *s, char *dst, size_t nbytes)
{
	size_t n = 0;

	for (int32_t d = 0; d < s->ndim && n < nbytes; d++)
		n += (size_t)snprintf(dst + n, nbytes - n, "%c%" PRId64, d ? ',' : '[',
				      s->shape[d]);
	if (n < nbytes)
		snprintf(dst + n, nbytes - n, "] %s", te_dtype_name(s->dtype));
}

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
	return 0;
}

int te_graph_report(const struct te_graph *graph, struct te_graph_report *ret_report)
{
	struct te_graph_report rep;
	int r;

	if (!graph || !ret_report || ret_report->size != sizeof(*ret_report))
		return te__fail(-EINVAL, "te_graph_report: %s",
				graph ? "ret_report is not initialised by TE_GRAPH_REPORT_INIT" :
					"graph is NULL");
	rep = graph->report;
	rep.ncallables = graph->nnodes;
	rep.nsteps = graph->nsteps;
	rep.launch_us = rep.nlaunches ? graph->launch_sum_us / (double)rep.nlaunches : 0;
	r = add(&rep, graph->whole);
	for (int32_t i = 0; i < graph->nnodes && !r; i++)
		for (int k = 0; k < 3 && !r; k++)
			r = add(&rep, graph->node[i].rec[k]);
	if (!r)
		*ret_report = rep;
	return r;
}

static void json_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			fprintf(f, "\\u%04x", (unsigned)*s);
		else
			fputc(*s, f);
	}
	fputc('"', f);
}

static int json_pass(FILE *f, const struct te_graph *g, const struct te_sched_step *s)
{
	const struct te__node *n = &g->node[s->callable];
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	int r = n->rec[s->kind] ? te_recording_info(n->rec[s->kind], &i) : 0;

	if (r)
		return r;
	fprintf(f,
		"{\"pass\": \"%s\", \"callable\": %" PRId32 ", \"name\": ", te__graph_pass(s->kind),
		s->callable);
	json_string(f, n->c.name);
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

static int print_json(FILE *f, const struct te_graph *g, const struct te_graph_report *r)
{
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
		", \"gradient_bytes\": %" PRIu64 ", \"saved_bytes\": %" PRIu64,
		r->peak_nbytes, r->sum_nbytes, r->in_nbytes, r->out_nbytes, r->grad_nbytes,
		r->saved_nbytes);
	fprintf(f, ",\n \"launches\": %" PRIu64 ", \"launch_us\": %.3f, \"launch_max_us\": %.3f",
		r->nlaunches, r->launch_us, r->launch_max_us);
	fprintf(f, ",\n \"passes\": [");
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
	char *text = NULL;
	size_t n;
	FILE *f;
	int bad, r;

	if (!ret_text)
		return te__fail(-EINVAL, "te_graph_json: ret_text is NULL");
	r = te_graph_report(graph, &rep);
	if (r)
		return r;
	f = open_memstream(&text, &n);
	if (!f)
		return te__fail(-ENOMEM, "te_graph_json: no memory");
	r = print_json(f, graph, &rep);
	bad = ferror(f);
	if ((fclose(f) || bad) && !r)
		r = te__fail(-ENOMEM, "te_graph_json: no memory");
	if (r) {
		te__free_libc(text);
		return r;
	}
	*ret_text = text;
	return 0;
}
