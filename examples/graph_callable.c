/*
 * graph_callable.c - a training step of a plan and a user-defined layer, replayed as one graph.
 *
 * The model is a linear layer, planned by libtecore, followed by a mean squared error whose
 * forward and backward are C functions. te_host_call(3) queues them, so the program uses the host
 * backend; on a GPU they would launch kernels on te_stream_native(3). Each step runs two
 * micro-batches in 1F1B order; the graph also zeroes gradients and runs AdamW.
 *
 * Usage: graph_callable
 * Prints a report of the graph and the loss, and exits 0 if the layer has learned the weights
 * that the targets were made with.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <te/errno.h>
#include <te/graph.h>
#include <te/optim.h>

#define ROWS 16
#define IN 8
#define OUT 4
#define MICRO 2

/* ---- the user-defined layer: loss = mean (x - target)^2 ---- */

struct job {
	const float *x, *target;
	float *loss, *dx;
};

static void run_forward(void *arg)
{
	const struct job *j = arg;
	double sum = 0;

	for (int i = 0; i < ROWS * OUT; i++)
		sum += (double)(j->x[i] - j->target[i]) * (j->x[i] - j->target[i]);
	*j->loss = (float)(sum / (ROWS * OUT));
}

static void run_backward(void *arg)
{
	const struct job *j = arg;

	for (int i = 0; i < ROWS * OUT; i++)
		j->dx[i] = 2 * (j->x[i] - j->target[i]) / (ROWS * OUT * MICRO);
}

static int forward(void *self, const struct te_graph_call *c)
{
	const struct job j = { te_tensor_data(c->in[0]), te_tensor_data(c->in[1]),
			       te_tensor_data(c->out[0]), NULL };

	(void)self;
	return te_host_call(c->stream, run_forward, &j, sizeof(j));
}

static int backward(void *self, const struct te_graph_call *c)
{
	const struct job j = { te_tensor_data(c->in[0]), te_tensor_data(c->in[1]), NULL,
			       te_tensor_data(c->in_grad[0]) };

	(void)self;
	return te_host_call(c->stream, run_backward, &j, sizeof(j));
}

static const struct te_arg loss_in[] = {
	{ "x", { TE_DTYPE_FP32, 2, { ROWS, OUT } }, TE_ARG_GRAD },
	{ "target", { TE_DTYPE_FP32, 2, { ROWS, OUT } }, 0 },
};
static const struct te_arg loss_out[] = { { "loss", { TE_DTYPE_FP32, 1, { 1 } }, 0 } };

static struct te_callable loss_callable(void)
{
	struct te_callable c = TE_CALLABLE_INIT;

	c.name = "loss";
	c.nin = 2;
	c.in = loss_in;
	c.nout = 1;
	c.out = loss_out;
	c.forward = forward;
	c.backward = backward;
	return c;
}

/* ---- the model ---- */

struct model {
	struct te_ctx *ctx;
	struct te_seq *seq;
	struct te_adamw *adamw;
};

static int zero(void *arg, struct te_stream *stream)
{
	return te_seq_zero_grads(((struct model *)arg)->seq, stream);
}

static int update(void *arg, struct te_stream *stream)
{
	return te_adamw_step(((struct model *)arg)->adamw, stream);
}

static int regions(void *arg, te_region_fn fn, void *fn_arg)
{
	return te_adamw_regions(((struct model *)arg)->adamw, fn, fn_arg);
}

static int model_create(struct model *m)
{
	const struct te_linear_attrs linear = TE_ATTRS(linear, IN, OUT, 0.1f, 1, NULL);
	struct te_adamw_opts adamw = TE_ADAMW_OPTS_INIT;
	struct te_ctx_opts host = TE_CTX_OPTS_INIT;
	struct te_op *op;
	int r;

	host.backend = "host";
	adamw.weight_decay = 0;
	r = te_ctx_create(&host, &m->ctx);
	if (!r)
		r = te_seq_create(m->ctx, &m->seq);
	if (!r)
		r = te_op_linear(&linear, "linear", &op);
	if (!r) {
		r = te_seq_append(m->seq, op);
		te_op_unref(op);
	}
	if (!r)
		r = te_seq_init(m->seq, 1);
	if (!r)
		r = te_adamw_create(m->seq, &adamw, &m->adamw);
	return r ? r : te_adamw_set_lr(m->adamw, te_ctx_stream(m->ctx), 0.05f);
}

/* a plan has memory for one micro-batch: each needs its own */
static int linear_callable(struct model *m, struct te_callable *ret)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe fp32 = TE_RECIPE_INIT;
	struct te_plan *plan;
	int r;

	fp32.compute = TE_DTYPE_FP32;
	o.recipe = &fp32;
	o.flags = TE_PLAN_TRAIN | TE_PLAN_EXTERNAL;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 2, { ROWS, IN } };
	r = te_plan_create(m->seq, &o, &plan);
	if (r)
		return r;
	*ret = (struct te_callable)TE_CALLABLE_INIT;
	r = te_callable_from_plan(plan, "linear", ret);
	te_plan_unref(plan);
	return r;
}

/* callables in the order of chunk, micro-batch, layer: here one chunk of two layers */
static int graph_create(struct model *m, struct te_graph **ret_graph)
{
	const int32_t nlayers = 2;
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_callable c[2 * MICRO];
	int r = 0;

	so.nmicro = MICRO;
	so.nlayers = &nlayers;
	for (int i = 0; i < MICRO && !r; i++) {
		r = linear_callable(m, &c[2 * i]);
		c[2 * i + 1] = loss_callable();
	}
	if (!r)
		r = te_schedule_parse("1f1b", &so, &o.schedule);
	o.flags = TE_GRAPH_CHAIN | TE_GRAPH_WHOLE | TE_GRAPH_REUSE;
	o.first = zero;
	o.last = update;
	o.regions = regions;
	o.arg = m;
	if (!r)
		r = te_graph_create(m->ctx, 2 * MICRO, c, &o, ret_graph);
	te_schedule_unref(o.schedule);
	return r;
}

static float uniform(void)
{
	return (float)rand() / (float)RAND_MAX * 2 - 1;
}

/* rows and targets, into the graph's static tensors */
static int feed(struct te_graph *g, float w[OUT][IN])
{
	float x[ROWS][IN], y[ROWS][OUT];
	int r = 0;

	for (int m = 0; m < MICRO && !r; m++) {
		for (int i = 0; i < ROWS; i++) {
			for (int k = 0; k < IN; k++)
				x[i][k] = uniform();
			for (int o = 0; o < OUT; o++) {
				y[i][o] = 0;
				for (int k = 0; k < IN; k++)
					y[i][o] += w[o][k] * x[i][k];
			}
		}
		r = te_tensor_write(te_graph_tensor(g, 2 * m, "x"), x, sizeof(x));
		if (!r)
			r = te_tensor_write(te_graph_tensor(g, 2 * m + 1, "target"), y, sizeof(y));
	}
	return r;
}

static int train(struct model *m, struct te_graph *g, float *ret_loss)
{
	struct te_stream *stream = te_ctx_stream(m->ctx);
	float w[OUT][IN];
	int r = 0;

	for (int o = 0; o < OUT; o++)
		for (int k = 0; k < IN; k++)
			w[o][k] = uniform();
	for (int step = 0; step <= 300 && !r; step++) {
		r = feed(g, w);
		/* the graph reads the learning rate from device memory: no need to capture again */
		if (!r && step == 150)
			r = te_adamw_set_lr(m->adamw, stream, 0.005f);
		if (!r)
			r = te_graph_run(g, stream);
		if (!r)
			r = te_stream_sync(stream);
		if (!r)
			r = te_tensor_read(te_graph_tensor(g, 1, "loss"), ret_loss,
					   sizeof(*ret_loss));
		if (!r && step % 100 == 0)
			printf("step %3d, loss %.6f\n", step, (double)*ret_loss);
	}
	return r;
}

int main(void)
{
	struct te_graph_report report = TE_GRAPH_REPORT_INIT;
	struct te_graph *graph = NULL;
	struct model m = { NULL, NULL, NULL };
	float loss = INFINITY;
	int r = model_create(&m);

	if (!r)
		r = graph_create(&m, &graph);
	if (!r)
		r = te_graph_report(graph, &report);
	if (!r)
		printf("%d callables in %d steps, one graph of %llu nodes\n", report.ncallables,
		       report.nsteps, (unsigned long long)report.nnodes);
	if (!r)
		r = train(&m, graph, &loss);
	if (r)
		fprintf(stderr, "%s\n", te_error_detail());
	te_graph_unref(graph);
	te_adamw_unref(m.adamw);
	te_seq_unref(m.seq);
	te_ctx_unref(m.ctx);
	return r || !(loss < 1e-4f);
}
