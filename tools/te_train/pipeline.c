/*
 * pipeline.c - see pipeline.h.
 *
 * A rank's program is a list of passes. After each pass one te_comm_sendrecv() sends what the pass
 * has computed and receives what the next one needs, in place: neither waits for the other, so that
 * neighbours whose messages cross cannot wait for each other. Both lists have the same order of
 * micro-batches, in which messages of a pair of ranks arrive.
 *
 * As many plans as micro-batches are between forward and backward serve in turn. Each adds to the
 * gradients in the order of the micro-batches, and has the factor of the loss and the dropout of
 * te_step_create(3), so that a stage's weights have the bits of a model on one rank.
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

struct pass {
	enum te_sched_kind kind;
	int32_t micro;
};

struct pipeline {
	const struct model *m;
	struct te_adamw *adamw;
	int gpipe, graph;
	te_plan_hook_fn hook; /* or NULL */
	void *hook_arg;
	int32_t queued;	      /* micro-batch whose pass is queued now */
	int32_t first, total; /* first micro-batch, and number of all, in the step of all ranks */
	int32_t nmicro, nplans, npasses;
	struct te_plan **plan; /* [nplans] */
	struct pass *pass;     /* [npasses] */
	struct te_event **event; /* [2 npasses] begin and end of each pass */
	int nruns;		 /* 0, 1, or 2 if there were more */
	struct te_recording *recording;
	/* [nmicro] tensors of plans are used again within a step; NULL in other stages */
	struct te_tensor **x, **targets, **loss;
};

static int is_first(const struct model *m)
{
	return !m->stage;
}

static int is_last(const struct model *m)
{
	return m->stage == m->nstages - 1;
}

struct te_spec pipeline_spec(const struct model *m, const struct te_recipe *recipe, int64_t B,
			     int64_t T)
{
	return is_first(m) ? (struct te_spec){ TE_DTYPE_INT32, 2, { B, T } } :
			     (struct te_spec){ recipe->compute, 3, { B, T, m->cfg.width } };
}

/* ---- messages ---- */

/* tensors that a pass sends and receives, or NULL, and the rank at the other end */
static struct te_tensor *result(const struct pipeline *p, const struct pass *pass, int32_t *ret_to)
{
	struct te_plan *plan = p->plan[pass->micro % p->nplans];

	*ret_to = p->m->stage + (pass->kind == TE_SCHED_F ? 1 : -1);
	if (pass->kind == TE_SCHED_F)
		return is_last(p->m) ? NULL : te_plan_output(plan);
	return is_first(p->m) ? NULL : te_plan_input_grad(plan);
}

static struct te_tensor *operand(const struct pipeline *p, const struct pass *pass,
				 int32_t *ret_from)
{
	struct te_plan *plan = p->plan[pass->micro % p->nplans];

	*ret_from = p->m->stage + (pass->kind == TE_SCHED_F ? -1 : 1);
	if (pass->kind == TE_SCHED_F)
		return is_first(p->m) ? NULL : te_plan_input(plan, "x");
	return is_last(p->m) ? NULL : te_plan_output_grad(plan);
}

static int exchange(const struct model *m, struct te_stream *stream, struct te_tensor *in,
		    int32_t to, struct te_tensor *out, int32_t from)
{
	if (!in && !out)
		return 0;
	return te_comm_sendrecv(m->comm, stream, in ? te_tensor_data(in) : NULL,
				in ? te_tensor_nelems(in) : 0, in ? to : TE_COMM_NO_RANK,
				out ? te_tensor_data(out) : NULL, out ? te_tensor_nelems(out) : 0,
				out ? from : TE_COMM_NO_RANK, te_tensor_dtype(in ? in : out), NULL);
}

/* between pass k - 1 and pass k of the program */
static int pass_on(const struct pipeline *p, struct te_stream *stream, int32_t k)
{
	int32_t to = 0, from = 0;
	struct te_tensor *in = k ? result(p, &p->pass[k - 1], &to) : NULL;
	struct te_tensor *out = k < p->npasses ? operand(p, &p->pass[k], &from) : NULL;

	return exchange(p->m, stream, in, to, out, from);
}

int pipeline_forward(const struct model *m, struct te_plan *plan, struct te_stream *stream)
{
	int te = is_first(m) ? 0 :
			       exchange(m, stream, NULL, 0, te_plan_input(plan, "x"), m->stage - 1);

	if (te >= 0)
		te = te_plan_forward(plan, stream, 0);
	return te < 0 || is_last(m) ?
		       te :
		       exchange(m, stream, te_plan_output(plan), m->stage + 1, NULL, 0);
}

/* ---- passes ---- */

static int copy(struct te_stream *stream, struct te_tensor *dst, const struct te_tensor *src)
{
	return te_copy(stream, te_tensor_data(dst), te_tensor_data(src), te_tensor_nbytes(dst));
}

static int forward(const struct pipeline *p, struct te_stream *stream, int32_t i)
{
	struct te_plan *plan = p->plan[i % p->nplans];
	/* as te_step_create() does */
	int te = te_plan_set_rng(plan, (uint64_t)(p->first + i),
				 i == p->nmicro - 1 ? (uint64_t)p->total : 0);

	if (te >= 0 && p->x)
		te = copy(stream, te_plan_input(plan, "x"), p->x[i]);
	if (te >= 0 && p->targets)
		te = copy(stream, te_plan_input(plan, MODEL_TARGETS), p->targets[i]);
	if (te >= 0)
		te = te_plan_forward(plan, stream, 0);
	return te < 0 || !p->loss ? te : copy(stream, p->loss[i], te_plan_output(plan));
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
	const struct pass *pass = &p->pass[k];
	int te = te_event_record_external(p->event[2 * k], stream);

	p->queued = pass->micro;
	if (te >= 0 && pass->kind == TE_SCHED_F)
		te = forward(p, stream, pass->micro);
	else if (te >= 0)
		te = te_plan_backward(p->plan[pass->micro % p->nplans], stream);
	return te < 0 ? te : te_event_record_external(p->event[2 * k + 1], stream);
}

static int queue(struct pipeline *p, struct te_stream *stream)
{
	int te = te_seq_zero_grads(p->m->seq, stream);

	for (int32_t k = 0; k < p->npasses && te >= 0; k++) {
		te = pass_on(p, stream, k);
		if (te >= 0)
			te = run_pass(p, stream, k);
	}
	if (te >= 0)
		te = pass_on(p, stream, p->npasses);
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

/* ---- programs ---- */

/* gpipe: all forward passes first. 1f1b: one for the stage and for each after it, then backward
 * and forward passes alternate. Returns the number of micro-batches in flight */
static int32_t make_program(const struct pipeline *p, int32_t stage, struct pass *pass)
{
	const int32_t n = p->nmicro, after = p->m->nstages - stage;
	const int32_t lead = p->gpipe || after > n ? n : after;

	for (int32_t i = 0; i < lead; i++)
		*pass++ = (struct pass){ TE_SCHED_F, i };
	for (int32_t i = 0; i < n; i++) {
		*pass++ = (struct pass){ TE_SCHED_B, i };
		if (i + lead < n)
			*pass++ = (struct pass){ TE_SCHED_F, i + lead };
	}
	return lead;
}

/* progress of a stage in its program */
struct simulated {
	struct pass *pass; /* [npasses] */
	double *end;	   /* [2][nmicro] by enum te_sched_kind; 0: not yet */
	int32_t next;
	double time;
};

/* 1: the next pass of stage k has run; 0: it waits for another stage */
static int simulate(const struct pipeline *p, const struct pipeline_times *times,
		    struct simulated *s, int32_t k)
{
	const struct pass pass = s[k].pass[s[k].next];
	const int32_t from = k + (pass.kind == TE_SCHED_F ? -1 : 1);
	const int32_t at = (int32_t)pass.kind * p->nmicro + pass.micro;
	double begin = s[k].time;

	if (from >= 0 && from < p->m->nstages) {
		if (!(s[from].end[at] > 0))
			return 0;
		begin = fmax(begin, s[from].end[at]);
	}
	s[k].time = s[k].end[at] = begin + fmax(times[k].pass[pass.kind], 1e-9);
	s[k].next++;
	return 1;
}

/* the end of the last pass */
static double simulate_all(const struct pipeline *p, const struct pipeline_times *times,
			   struct simulated *s)
{
	const int32_t n = p->m->nstages;
	double last = 0;
	int more = 1;

	while (more) {
		more = 0;
		for (int32_t k = 0; k < n; k++)
			while (s[k].next < p->npasses && simulate(p, times, s, k))
				more = 1;
	}
	for (int32_t k = 0; k < n; k++)
		last = fmax(last, s[k].time);
	return last;
}

int pipeline_bubble(const struct pipeline *p, const struct pipeline_times *times, double *ret_was,
		    double *ret_predicted)
{
	const int32_t n = p->m->nstages;
	struct simulated *s = calloc((size_t)n, sizeof(*s));
	double busy = 0, span = 0;
	int te = s ? 0 : -ENOMEM;

	for (int32_t k = 0; k < n && te >= 0; k++) {
		s[k].pass = calloc((size_t)p->npasses, sizeof(*s->pass));
		s[k].end = calloc(2 * (size_t)p->nmicro, sizeof(*s->end));
		te = s[k].pass && s[k].end ? 0 : -ENOMEM;
		if (te >= 0)
			make_program(p, k, s[k].pass);
		busy += p->nmicro * ((double)times[k].pass[0] + (double)times[k].pass[1]);
		span = fmax(span, times[k].span);
	}
	if (te >= 0) {
		*ret_predicted = 1 - busy / (n * simulate_all(p, times, s));
		*ret_was = 1 - busy / (n * span);
	}
	for (int32_t k = 0; k < n && s; k++) {
		free(s[k].pass);
		free(s[k].end);
	}
	free(s);
	return te;
}

int pipeline_times(const struct pipeline *p, struct pipeline_times *ret)
{
	double ms = 0;
	int te = 0;

	*ret = (struct pipeline_times){ .span = 0 };
	for (int32_t k = 0; k < p->npasses && te >= 0; k++) {
		te = te_event_elapsed_ms(p->event[2 * k], p->event[2 * k + 1], &ms);
		ret->pass[p->pass[k].kind] += (float)(ms / p->nmicro);
	}
	if (te >= 0)
		te = te_event_elapsed_ms(p->event[0], p->event[2 * p->npasses - 1], &ms);
	ret->span = (float)ms;
	return te;
}

/* ---- creating ---- */

static int make_events(struct pipeline *p)
{
	int te = 0;

	p->npasses = 2 * p->nmicro;
	p->pass = calloc((size_t)p->npasses, sizeof(*p->pass));
	p->event = calloc(2 * (size_t)p->npasses, sizeof(struct te_event *));
	if (!p->pass || !p->event)
		return -ENOMEM;
	for (int32_t i = 0; i < 2 * p->npasses && te >= 0; i++)
		te = te_event_create(te_seq_ctx(p->m->seq), &p->event[i]);
	return te;
}

static int make_plans(struct pipeline *p, const struct pipeline_opts *o)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	int te = 0;

	po.recipe = o->recipe;
	po.flags = TE_PLAN_TRAIN | (is_first(p->m) ? 0 : TE_PLAN_INPUT_GRAD);
	po.x = pipeline_spec(p->m, o->recipe, o->B, o->T);
	po.grad_scale = 1.0 / p->total;
	po.hook = p->hook ? plan_hook : NULL;
	po.hook_arg = p;
	po.hooks = o->step->hooks;
	p->plan = calloc((size_t)p->nplans, sizeof(struct te_plan *));
	if (!p->plan)
		return -ENOMEM;
	for (int32_t i = 0; i < p->nplans && te >= 0; i++)
		te = te_plan_create(p->m->seq, &po, &p->plan[i]);
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
	struct pipeline *p = calloc(1, sizeof(*p));
	int te;

	if (!p)
		return -ENOMEM;
	p->m = m;
	p->adamw = te_adamw_ref(o->adamw);
	p->nmicro = o->nmicro;
	p->gpipe = o->schedule && !strcmp(o->schedule, "gpipe");
	p->graph = o->graph;
	p->hook = o->step->hook;
	p->hook_arg = o->step->hook_arg;
	p->first = o->step->first_micro_batch;
	p->total = o->step->total_micro_batches;
	te = make_events(p);
	if (te >= 0) {
		p->nplans = make_program(p, m->stage, p->pass);
		te = make_plans(p, o);
	}
	if (te >= 0)
		te = make_tensors(p, is_first(m), TE_DTYPE_INT32, 2, tokens, &p->x);
	if (te >= 0)
		te = make_tensors(p, is_last(m), TE_DTYPE_INT32, 2, tokens, &p->targets);
	if (te >= 0)
		te = make_tensors(p, is_last(m), TE_DTYPE_FP32, 1, one, &p->loss);
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

struct pipeline *pipeline_free(struct pipeline *p)
{
	if (!p)
		return NULL;
	te_recording_unref(p->recording);
	for (int32_t i = 0; p->event && i < 2 * p->npasses; i++)
		te_event_unref(p->event[i]);
	free(p->event);
	for (int32_t i = 0; p->plan && i < p->nplans; i++)
		te_plan_unref(p->plan[i]);
	drop_tensors(p->x, p->nmicro);
	drop_tensors(p->targets, p->nmicro);
	drop_tensors(p->loss, p->nmicro);
	te_adamw_unref(p->adamw);
	free(p->plan);
	free(p->pass);
	free(p);
	return NULL;
}

struct te_tensor *pipeline_x(const struct pipeline *p, int32_t micro)
{
	return p->x ? p->x[micro] : NULL;
}

struct te_tensor *pipeline_targets(const struct pipeline *p, int32_t micro)
{
	return p->targets ? p->targets[micro] : NULL;
}

struct te_tensor *pipeline_loss(const struct pipeline *p, int32_t micro)
{
	return p->loss ? p->loss[micro] : NULL;
}
