/* graph.c - the training step of a run: its options, and its report. */
#include "config.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>

#include "graph.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

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

/* the layers of each chunk; the last one has the head too */
static int divide(struct step_graph *g)
{
	const int64_t layers = g->cfg.layers, n = g->nchunks;

	g->nlayers = calloc((size_t)n, sizeof(*g->nlayers));
	if (!g->nlayers)
		return say_failed("out of memory");
	for (int32_t c = 0; c < n; c++)
		g->nlayers[c] = (int32_t)((c + 1) * layers / n - c * layers / n);
	g->nlayers[n - 1]++;
	return STATUS_OK;
}

int step_graph_plan(const struct opts *o, struct step_graph *g)
{
	const char *text = schedule_of(o);
	int r = STATUS_OK;

	g->o = o;
	if (o->pipeline > 1)
		return STATUS_OK;
	g->nchunks = text ? (int32_t)o->chunks : 1;
	if (text && is_mode(g, "off"))
		return say_bad("--pipeline-schedule needs --graph step, pass or layer");
	if (o->chunks && !text)
		return say_bad("--chunks needs --pipeline-schedule");
	if (text)
		r = count_chunks(g, text);
	if (!r && (text || is_mode(g, "layer"))) {
		g->cut = model_cuts(&g->cfg, &g->ncuts);
		r = g->cut ? STATUS_OK : say_failed("out of memory");
	}
	if (!r && text)
		r = divide(g);
	return !r && text ? parse(g, text, &g->schedule) : r;
}

/* ---- values that are computed again ---- */

/* 1: its output is the residual stream between layers: the last operation of h.N */
static int ends_layer(const struct te_seq *seq, int i)
{
	const char *name = te_op_name(te_seq_op(seq, i)), *dot;
	const struct te_op *next = i + 1 < te_seq_nops(seq) ? te_seq_op(seq, i + 1) : NULL;

	if (strncmp(name, "h.", 2) || !(dot = strchr(name + 2, '.')))
		return 0;
	return !next || strncmp(name, te_op_name(next), (size_t)(dot - name) + 1);
}

/* 1: a word of the list selects operation i */
static int selects(const char *word, const struct te_seq *seq, int i)
{
	const struct te_op *op = te_seq_op(seq, i);
	const char *type = te_op_table(op)->name;

	if (!(te_op_table(op)->flags & (TE_OP_REPEATS | TE_OP_REPEATS_COSTLY)))
		return 0;
	if (!strcmp(word, "norm"))
		return !strcmp(type, "layernorm") || !strcmp(type, "rmsnorm");
	if (!strcmp(word, "act"))
		return !strcmp(type, "activation");
	if (!strcmp(word, "attention"))
		return !strcmp(type, "attention");
	if (!strcmp(word, "block"))
		return !strncmp(te_op_name(op), "h.", 2) && !ends_layer(seq, i);
	return !fnmatch(word, te_op_name(op), 0);
}

/* the main outputs of those operations, which are at most nops */
static int add_outputs(struct step_graph *g, const struct te_seq *seq, const char *word)
{
	int found = 0;

	for (int i = 0; i < te_seq_nops(seq); i++) {
		const struct te_op *op = te_seq_op(seq, i);
		char *name;

		if (!selects(word, seq, i))
			continue;
		found = 1;
		g->costly |= te_op_table(op)->flags & TE_OP_REPEATS_COSTLY;
		if (asprintf(&name, "%s.y", te_op_name(op)) < 0)
			return say_failed("out of memory");
		g->recompute[g->nrecompute++] = name;
	}
	return found ? STATUS_OK :
		       say_bad("--recompute: \"%s\": the model has no operation of this name that "
			       "can run again", word);
}

int step_graph_recompute(struct step_graph *g, const struct te_seq *seq)
{
	size_t nwords = 1;
	char *list, *rest;
	int r = STATUS_OK;

	if (!strcmp(g->o->recompute, "off"))
		return STATUS_OK;
	for (const char *p = g->o->recompute; (p = strchr(p, ',')); p++)
		nwords++;
	list = rest = strdup(g->o->recompute);
	g->recompute = calloc(nwords * (size_t)te_seq_nops(seq), sizeof(*g->recompute));
	if (!list || !g->recompute)
		r = say_failed("out of memory");
	for (char *word; !r && (word = strsep(&rest, ","));)
		r = add_outputs(g, seq, word);
	free(list);
	return r;
}

void step_graph_recomputed(const struct step_graph *g, struct recomputed *ret)
{
	struct te_plan_saved_info s = TE_PLAN_SAVED_INFO_INIT;

	*ret = (struct recomputed){ .n = 0 };
	for (int32_t part = 0; part <= g->ncuts; part++) {
		const struct te_plan *plan = te_step_plan(g->step, 0, part);

		for (int i = 0; plan && !te_plan_saved(plan, i, &s); i++) {
			if (s.why && !ret->nstay++)
				snprintf(ret->why, sizeof(ret->why), "%s, because %s", s.name,
					 s.why);
			if (s.policy != TE_POLICY_RECOMPUTE)
				continue;
			ret->n++;
			ret->nbytes += s.nbytes;
		}
	}
}

/* ---- steps ---- */

void step_graph_free(struct step_graph *g)
{
	for (int32_t i = 0; i < g->nrecompute; i++)
		free(g->recompute[i]);
	free(g->recompute);
	g->recompute = NULL;
	g->nrecompute = 0;
	g->step = te_step_unref(g->step);
	g->pipeline = pipeline_free(g->pipeline);
	free(g->x);
	g->x = g->targets = g->documents = g->loss = NULL;
	g->schedule = te_schedule_unref(g->schedule);
	g->offload = te_offload_unref(g->offload);
	free(g->nlayers);
	free(g->cut);
	g->nlayers = NULL;
	g->cut = NULL;
}

int step_graph_make(const struct step_graph *g, struct te_seq *seq, struct te_adamw *opt, int64_t B,
		    uint32_t flags, struct te_step **ret_step)
{
	struct te_step_opts so = TE_STEP_OPTS_INIT;

	so.recipe = &g->recipe;
	so.flags = flags | (is_mode(g, "step") ? TE_STEP_GRAPH : 0) |
		   (is_mode(g, "pass") || is_mode(g, "layer") ? TE_STEP_PASS_GRAPHS : 0);
	so.micro_batches = g->accum;
	ranks_step(g->ranks, &so);
	so.x = (struct te_spec){ TE_DTYPE_INT32, 2, { B, g->T } };
	so.ncuts = g->ncuts;
	so.cut = g->cut;
	so.schedule = g->schedule;
	so.offload = g->offload;
	so.flags |= g->costly ? TE_STEP_RECOMPUTE_COSTLY : 0;
	so.nrecompute = g->nrecompute;
	so.recompute = (const char *const *)g->recompute;
	return te_step_create(seq, opt, &so, ret_step);
}

int step_graph_offload(const struct step_graph *g, struct te_ctx *ctx, uint64_t target_nbytes,
		       uint64_t move_nbytes, struct te_offload **ret_offload)
{
	struct te_offload_opts oo = TE_OFFLOAD_OPTS_INIT;

	oo.target_nbytes = target_nbytes;
	oo.move_nbytes = move_nbytes;
	oo.dir = g->o->offload_file;
	oo.quota_nbytes = oo.dir ? (uint64_t)g->o->offload_quota : 0;
	oo.pinned_nbytes = (uint64_t)g->o->pinned_nbytes;
	oo.verify = !strcmp(g->o->offload_verify, "all")    ? TE_OFFLOAD_VERIFY_ALL :
		    !strcmp(g->o->offload_verify, "sample") ? TE_OFFLOAD_VERIFY_SAMPLE :
							      TE_OFFLOAD_VERIFY_OFF;
	oo.timed = g->o->log != NULL;
	return te_offload_create(ctx, &oo, ret_offload);
}

static int make_pipeline(struct step_graph *g, struct te_adamw *opt)
{
	const char *text = schedule_of(g->o);
	struct te_step_opts so = TE_STEP_OPTS_INIT;
	const struct pipeline_opts po = {
		.step = &so,
		.recipe = &g->recipe,
		.schedule = text ? text : "1f1b",
		.graph = is_mode(g, "step"),
		.nmicro = g->accum,
		.B = g->B,
		.T = g->T,
		.adamw = opt,
	};

	so.micro_batches = g->accum;
	ranks_step(g->ranks, &so);
	return pipeline_create(g->model, &po, &g->pipeline);
}

static int find_tensors(struct step_graph *g)
{
	const size_t n = (size_t)g->accum;

	g->x = calloc(4 * n, sizeof(struct te_tensor *));
	if (!g->x)
		return say_failed("out of memory");
	g->targets = g->x + n;
	g->documents = g->targets + n;
	g->loss = g->documents + n;
	for (int32_t i = 0; i < g->accum; i++) {
		if (!g->step) {
			pipeline_tensors(g->pipeline, i, &g->x[i], &g->targets[i], &g->loss[i]);
			continue;
		}
		g->x[i] = te_step_input(g->step, 0, i, "x");
		g->targets[i] = te_step_input(g->step, 0, i, MODEL_TARGETS);
		if (g->cfg.documents)
			g->documents[i] = te_step_input(g->step, 0, i, MODEL_DOCUMENTS);
		g->loss[i] = te_step_output(g->step, 0, i);
	}
	return STATUS_OK;
}

int step_graph_create(struct step_graph *g, const struct model *m, struct te_adamw *opt)
{
	int r;

	g->model = m;
	r = m->nstages > 1 ? make_pipeline(g, opt) :
			     step_graph_make(g, m->seq, opt, g->B, 0, &g->step);
	if (r == -ENOMEM) {
		return say_te(r, "--batch %lld with --seq-len %lld does not fit", (long long)g->B,
			      (long long)g->T);
	}
	return r < 0 ? say_te(r, "the model cannot be planned") : find_tensors(g);
}

int step_graph_run(const struct step_graph *g, struct te_stream *stream)
{
	return g->pipeline ? pipeline_run(g->pipeline, stream) : te_step_run(g->step, 0, stream);
}

json_t *step_graph_to_json(const struct step_graph *g)
{
	struct te_graph_report rep = TE_GRAPH_REPORT_INIT;
	struct te_offload_report off = TE_OFFLOAD_REPORT_INIT;
	const char *text = schedule_of(g->o);
	struct recomputed again;
	struct record rec;

	record_begin(&rec);
	record_text(&rec, "mode", g->o->graph);
	record_text(&rec, "schedule", text ? text : "1f1b");
	if (g->pipeline) {
		record_int(&rec, "stages", g->model->nstages);
		record_int(&rec, "chunks", g->model->nchunks);
		record_int(&rec, "micro_batches", g->accum);
		return record_end(&rec, "the pipeline");
	}
	te_graph_report(te_step_graph(g->step, 0), &rep);
	record_int(&rec, "chunks", g->nchunks);
	record_int(&rec, "parts", g->ncuts + 1);
	record_int(&rec, "micro_batches", g->accum);
	record_int(&rec, "passes", rep.nsteps);
	record_int(&rec, "nodes", (int64_t)rep.nnodes);
	record_int(&rec, "kernels", (int64_t)rep.nkernels);
	/* each recording is launched once per step */
	record_int(&rec, "launches_per_step", (int64_t)rep.nrecordings);
	record_int(&rec, "pool_bytes", (int64_t)rep.peak_nbytes);
	if (g->nrecompute) {
		step_graph_recomputed(g, &again);
		record_int(&rec, "recomputed_values", again.n);
		record_int(&rec, "recomputed_bytes", (int64_t)again.nbytes);
	}
	if (g->offload && te_offload_report(g->offload, &off) >= 0) {
		record_open(&rec, "offload");
		record_int(&rec, "moved_bytes", (int64_t)off.moved_nbytes);
		record_int(&rec, "pinned_bytes", (int64_t)off.pinned_nbytes);
		record_int(&rec, "arena_bytes", (int64_t)off.peak_nbytes);
		record_int(&rec, "plain_arena_bytes", (int64_t)off.plain_nbytes);
		record_int(&rec, "groups", off.ngroups);
		record_real(&rec, "copy_ms", off.copy_ms);
		record_real(&rec, "stall_ms", off.stall_ms);
		record_real(&rec, "hidden", off.hidden);
		record_real(&rec, "out_bytes_per_s", off.out_rate);
		record_real(&rec, "in_bytes_per_s", off.in_rate);
		record_real(&rec, "write_bytes_per_s", off.write_rate);
		record_real(&rec, "read_bytes_per_s", off.read_rate);
		record_real(&rec, "pass_ms", off.pass_ms);
		record_close(&rec);
	}
	return record_end(&rec, "the graph");
}
