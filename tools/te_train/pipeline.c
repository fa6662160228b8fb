/*
 * pipeline.c - see pipeline.h.
 *
 * A rank's program is a list of passes, and of te_comm_sendrecv() calls between them, which send
 * what passes have computed and receive what later ones need, in place.
 *
 * As many plans of a chunk as micro-batches are between its forward and last pass serve in turn.
 * Each adds to the gradients in the order of the micro-batches, and has the factor of the loss and
 * the dropout of te_step_create(3), so that a stage's weights have the bits of a model on one rank.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/capture.h>
#include <te/collective.h>
#include <te/errno.h>
#include <te/schedule.h>

#include "pipeline.h"
#include "program.h"
#include "tools/lib/shard.h"

struct pipeline {
	const struct model *m;
	struct te_adamw *adamw;
	int graph;
	te_plan_hook_fn hook; /* or NULL */
	void *hook_arg;
	int32_t queued;	      /* micro-batch whose pass is queued now */
	int32_t first, total; /* first micro-batch, and number of all, in the step of all ranks */
	int32_t nmicro;
	struct program program;
	const struct rank_program *own;
	struct te_plan ***plan;	 /* [nchunks][own->nplans] */
	struct te_event **event; /* [2 npasses] begin and end of each pass */
	int nruns;		 /* 0, 1, or 2 if there were more */
	struct te_recording *recording;
	/* [nmicro] tensors of plans are used again within a step; NULL in other stages */
	struct te_tensor **x, **targets, **loss;
};

/* chunk 0 of the first stage has the embedding, the last chunk of the last stage the head */
static int is_first(const struct model *m, int32_t chunk)
{
	return !m->stage && !chunk;
}

static int is_last(const struct model *m, int32_t chunk)
{
	return m->stage == m->nstages - 1 && chunk == m->nchunks - 1;
}

int pipeline_plan(const struct model *m, const struct te_plan_opts *opts, int32_t chunk, int64_t B,
		  int64_t T, struct te_plan **ret_plan)
{
	struct te_plan_opts po = *opts;
	char begin[32], end[32];

	po.x = is_first(m, chunk) ?
		       (struct te_spec){ TE_DTYPE_INT32, 2, { B, T } } :
		       (struct te_spec){ opts->recipe->compute, 3, { B, T, m->cfg.width } };
	if (po.flags & TE_PLAN_TRAIN && !is_first(m, chunk))
		po.flags |= TE_PLAN_INPUT_GRAD;
	if (chunk)
		po.start_at = stage_begins_with(m, chunk, begin, sizeof(begin));
	if (chunk < m->nchunks - 1)
		po.stop_before = stage_begins_with(m, chunk + 1, end, sizeof(end));
	return te_plan_create(m->seq, &po, ret_plan);
}

/* ---- messages ---- */

static struct te_plan *plan_of(const struct pipeline *p, const struct pass *pass)
{
	return p->plan[pass->chunk][pass->micro % p->own->nplans[pass->chunk]];
}

/* to, from: stages; each shard has the whole value, and sends it to the same shard */
static int exchange(const struct model *m, struct te_stream *stream, struct te_tensor *in,
		    int32_t to, struct te_tensor *out, int32_t from)
{
	const int32_t n = m->nshards, k = m->shard;

	if (!in && !out)
		return 0;
	return te_comm_sendrecv(m->pipe, stream, in ? te_tensor_data(in) : NULL,
				in ? te_tensor_nelems(in) : 0, in ? n * to + k : TE_COMM_NO_RANK,
				out ? te_tensor_data(out) : NULL, out ? te_tensor_nelems(out) : 0,
				out ? n * from + k : TE_COMM_NO_RANK,
				te_tensor_dtype(in ? in : out), NULL);
}

static int exchange_all(const struct pipeline *p, struct te_stream *stream, const struct action *a)
{
	struct te_tensor *in = NULL, *out = NULL;

	if (a->to >= 0)
		in = a->sends.kind == TE_SCHED_F ? te_plan_output(plan_of(p, &a->sends)) :
						   te_plan_input_grad(plan_of(p, &a->sends));
	if (a->from >= 0)
		out = a->receives.kind == TE_SCHED_F ?
			      te_plan_input(plan_of(p, &a->receives), "x") :
			      te_plan_output_grad(plan_of(p, &a->receives));
	return exchange(p->m, stream, in, a->to, out, a->from);
}

int pipeline_forward(const struct model *m, struct te_plan *const *plan, struct te_stream *stream)
{
	const int32_t n = m->nstages, before = (m->stage + n - 1) % n, after = (m->stage + 1) % n;
	int te = 0;

	for (int32_t c = 0; c < m->nchunks && te >= 0; c++) {
		if (!is_first(m, c))
			te = exchange(m, stream, NULL, 0, te_plan_input(plan[c], "x"), before);
		if (te >= 0)
			te = te_plan_forward(plan[c], stream, 0);
		if (te >= 0 && !is_last(m, c))
			te = exchange(m, stream, te_plan_output(plan[c]), after, NULL, 0);
	}
	return te;
}

/* ---- passes ---- */

static int copy(struct te_stream *stream, struct te_tensor *dst, const struct te_tensor *src)
{
	return te_copy(stream, te_tensor_data(dst), te_tensor_data(src), te_tensor_nbytes(dst));
}

/* the last pass of a step that draws random numbers; without dropout in layers only the embedding
 * has some */
static int draws_last(const struct pipeline *p, const struct pass *pass)
{
	const struct config *c = &p->m->cfg;
	const int32_t chunk = c->drop_attn > 0 || c->drop_resid > 0 ? p->m->nchunks - 1 : 0;

	return pass->chunk == chunk && pass->micro == p->nmicro - 1;
}

static int forward(const struct pipeline *p, struct te_stream *stream, const struct pass *pass)
{
	struct te_plan *plan = plan_of(p, pass);
	const int32_t i = pass->micro;
	/* as te_step_create() does */
	int te = te_plan_set_rng(plan, (uint64_t)(p->first + i),
				 draws_last(p, pass) ? (uint64_t)p->total : 0);

	if (te >= 0 && is_first(p->m, pass->chunk))
		te = copy(stream, te_plan_input(plan, "x"), p->x[i]);
	if (te >= 0 && is_last(p->m, pass->chunk))
		te = copy(stream, te_plan_input(plan, MODEL_TARGETS), p->targets[i]);
	if (te >= 0)
		te = te_plan_forward(plan, stream, 0);
	return te >= 0 && is_last(p->m, pass->chunk) ?
		       copy(stream, p->loss[i], te_plan_output(plan)) :
		       te;
}

/* the last micro-batch completes the gradients */
static int plan_hook(void *arg, struct te_plan *plan, const struct te_plan_event *e)
{
	const struct pipeline *p = arg;

	return e->kind == TE_PLAN_EVENT_GRAD && p->queued < p->nmicro - 1 ?
		       0 :
		       p->hook(p->hook_arg, plan, e);
}

static int run_pass(struct pipeline *p, struct te_stream *stream, int32_t k)
{
	const struct pass *pass = &p->own->pass[k];
	int te = te_event_record_external(p->event[2 * k], stream);

	p->queued = pass->micro;
	if (te >= 0 && pass->kind == TE_SCHED_F)
		te = forward(p, stream, pass);
	else if (te >= 0)
		te = (pass->kind == TE_SCHED_B ? te_plan_backward :
						 te_plan_backward_dw)(plan_of(p, pass), stream);
	return te < 0 ? te : te_event_record_external(p->event[2 * k + 1], stream);
}

static int queue(struct pipeline *p, struct te_stream *stream)
{
	int te = te_seq_zero_grads(p->m->seq, stream);

	for (int32_t k = 0; k < p->own->nactions && te >= 0; k++) {
		const struct action *a = &p->own->action[k];

		te = a->pass < 0 ? exchange_all(p, stream, a) : run_pass(p, stream, a->pass);
	}
	return te < 0 ? te : te_adamw_step(p->adamw, stream);
}

static int record(struct pipeline *p, struct te_stream *stream)
{
	struct te_recording *recording = NULL;
	int te = te_capture_begin(stream), end;

	if (te < 0)
		return te;
	te = queue(p, stream);
	end = te_capture_end(stream, &recording);
	if (te < 0)
		te_recording_unref(recording);
	else
		p->recording = recording;
	return te < 0 ? te : end;
}

int pipeline_run(struct pipeline *p, struct te_stream *stream)
{
	const int replays = p->graph && p->nruns;
	int te = replays && !p->recording ? record(p, stream) : 0;

	if (te >= 0)
		te = replays ? te_recording_launch(p->recording, stream) : queue(p, stream);
	p->nruns = p->nruns ? 2 : 1;
	return te;
}

/* ---- times ---- */

int pipeline_bubble(const struct pipeline *p, const struct part_times *times, double *ret_was,
		    double *ret_predicted)
{
	const int32_t n = p->program.nranks;
	const double end = program_span(&p->program, times);
	double busy = 0, span = 0;

	if (end < 0)
		return -ENOMEM;
	for (int32_t i = 0; i < n * p->program.nchunks; i++) {
		for (int kind = 0; kind < 3; kind++)
			busy += p->nmicro * (double)times[i].pass[kind];
		span = fmax(span, times[i].span);
	}
	*ret_predicted = 1 - busy / (n * end);
	*ret_was = 1 - busy / (n * span);
	return 0;
}

int pipeline_times(const struct pipeline *p, int32_t chunk, struct part_times *ret)
{
	const int32_t n = p->program.npasses;
	double ms = 0;
	int te = 0;

	*ret = (struct part_times){ .span = 0 };
	for (int32_t k = 0; k < n && te >= 0; k++) {
		const struct pass *pass = &p->own->pass[k];

		if (pass->chunk != chunk)
			continue;
		te = te_event_elapsed_ms(p->event[2 * k], p->event[2 * k + 1], &ms);
		ret->pass[pass->kind] += (float)(ms / p->nmicro);
	}
	if (te >= 0)
		te = te_event_elapsed_ms(p->event[0], p->event[2 * n - 1], &ms);
	ret->span = (float)ms;
	return te;
}

/* ---- creating ---- */

static int make_events(struct pipeline *p)
{
	const int32_t n = 2 * p->program.npasses;
	int te = 0;

	p->event = calloc((size_t)n, sizeof(struct te_event *));
	if (!p->event)
		return -ENOMEM;
	for (int32_t i = 0; i < n && te >= 0; i++)
		te = te_event_create(te_seq_ctx(p->m->seq), &p->event[i]);
	return te;
}

static int make_plans(struct pipeline *p, const struct pipeline_opts *o)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	int te = 0;

	po.recipe = o->recipe;
	po.flags = TE_PLAN_TRAIN | (p->program.separate ? TE_PLAN_DELAY_DW : 0);
	po.grad_scale = 1.0 / p->total;
	po.hook = p->hook ? plan_hook : NULL;
	po.hook_arg = p;
	po.hooks = o->step->hooks;
	p->plan = calloc((size_t)p->m->nchunks, sizeof(*p->plan));
	if (!p->plan)
		return -ENOMEM;
	for (int32_t c = 0; c < p->m->nchunks; c++) {
		p->plan[c] = calloc((size_t)p->own->nplans[c], sizeof(struct te_plan *));
		if (!p->plan[c])
			return -ENOMEM;
		for (int32_t i = 0; i < p->own->nplans[c] && te >= 0; i++)
			te = pipeline_plan(p->m, &po, c, o->B, o->T, &p->plan[c][i]);
	}
	return te;
}

/* a tensor for each micro-batch, unless another stage has them */
static int make_tensors(struct pipeline *p, int has, enum te_dtype dtype, int ndim,
			const int64_t *shape, struct te_tensor ***ret)
{
	int te = 0;

	if (!has)
		return 0;
	*ret = calloc((size_t)p->nmicro, sizeof(**ret));
	if (!*ret)
		return -ENOMEM;
	for (int32_t i = 0; i < p->nmicro && te >= 0; i++)
		te = te_tensor_create(te_seq_ctx(p->m->seq), dtype, ndim, shape, NULL, &(*ret)[i]);
	return te;
}

int pipeline_create(const struct model *m, const struct pipeline_opts *o,
		    struct pipeline **ret_pipeline)
{
	const int64_t tokens[] = { o->B, o->T }, one[] = { 1 };
	const int has_loss = is_last(m, m->nchunks - 1);
	struct pipeline *p = calloc(1, sizeof(*p));
	int te;

	if (!p)
		return -ENOMEM;
	p->m = m;
	p->adamw = te_adamw_ref(o->adamw);
	p->nmicro = o->nmicro;
	p->graph = o->graph;
	p->hook = o->step->hook;
	p->hook_arg = o->step->hook_arg;
	p->first = o->step->first_micro_batch;
	p->total = o->step->total_micro_batches;
	te = program_create(o->schedule, m->nstages, m->nchunks, p->nmicro, &p->program);
	if (te >= 0) {
		p->own = &p->program.rank[m->stage];
		te = make_events(p);
	}
	if (te >= 0)
		te = make_plans(p, o);
	if (te >= 0)
		te = make_tensors(p, is_first(m, 0), TE_DTYPE_INT32, 2, tokens, &p->x);
	if (te >= 0)
		te = make_tensors(p, has_loss, TE_DTYPE_INT32, 2, tokens, &p->targets);
	if (te >= 0)
		te = make_tensors(p, has_loss, TE_DTYPE_FP32, 1, one, &p->loss);
	if (te < 0)
		pipeline_free(p);
	else
		*ret_pipeline = p;
	return te;
}

static void drop_tensors(struct te_tensor **list, int32_t n)
{
	for (int32_t i = 0; list && i < n; i++)
		te_tensor_unref(list[i]);
	free(list);
}

static void drop_plans(const struct pipeline *p)
{
	for (int32_t c = 0; p->plan && c < p->m->nchunks; c++) {
		for (int32_t i = 0; p->plan[c] && i < p->own->nplans[c]; i++)
			te_plan_unref(p->plan[c][i]);
		free(p->plan[c]);
	}
	free(p->plan);
}

struct pipeline *pipeline_free(struct pipeline *p)
{
	if (!p)
		return NULL;
	te_recording_unref(p->recording);
	for (int32_t i = 0; p->event && i < 2 * p->program.npasses; i++)
		te_event_unref(p->event[i]);
	free(p->event);
	drop_plans(p);
	drop_tensors(p->x, p->nmicro);
	drop_tensors(p->targets, p->nmicro);
	drop_tensors(p->loss, p->nmicro);
	te_adamw_unref(p->adamw);
	program_free(&p->program);
	free(p);
	return NULL;
}

void pipeline_tensors(const struct pipeline *p, int32_t micro, struct te_tensor **ret_x,
		      struct te_tensor **ret_targets, struct te_tensor **ret_loss)
{
	*ret_x = p->x ? p->x[micro] : NULL;
	*ret_targets = p->targets ? p->targets[micro] : NULL;
	*ret_loss = p->loss ? p->loss[micro] : NULL;
}
