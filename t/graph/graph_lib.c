/* t/graph/graph_lib.c - see graph_lib.h. */
#include "config.h"

#include "graph_lib.h"

static int count_down(struct axpy *a)
{
	a->ncalls++;
	if (!a->fail_at || --a->fail_at)
		return 0;
	if (!a->silent)
		te_mem_alloc(NULL, 0, NULL); /* leaves a sentence: stream is NULL */
	return -EIO;
}

static int axpy_forward(void *self, const struct te_graph_call *c)
{
	struct axpy *a = self;
	int r = count_down(a);

	if (!r)
		r = te_copy(c->stream, c->saved, te_tensor_data(c->in[0]),
			    te_tensor_nbytes(c->in[0]));
	if (!r)
		r = te_copy(c->stream, te_tensor_data(c->out[0]), te_tensor_data(c->in[0]),
			    te_tensor_nbytes(c->in[0]));
	if (!r && a->w)
		r = te_copy(c->stream, a->w, c->saved, sizeof(float));
	return r;
}

static int axpy_backward(void *self, const struct te_graph_call *c)
{
	struct axpy *a = self;
	int r = count_down(a);

	if (!r)
		r = te_copy(c->stream, te_tensor_data(c->in_grad[0]), c->saved,
			    te_tensor_nbytes(c->in[0]));
	if (!r && a->dw)
		r = te_copy(c->stream, a->dw, te_tensor_data(c->out_grad[0]), sizeof(float));
	return r;
}

static int axpy_regions(void *self, te_region_fn fn, void *arg)
{
	const struct axpy *a = self;
	const struct te_region w = { "w", TE_REGION_DEVICE, a->w, sizeof(float) };
	const struct te_region dw = { "dw", TE_REGION_DEVICE, a->dw, sizeof(float) };
	int r = a->w ? fn(arg, &w) : 0;

	return !r && a->dw ? fn(arg, &dw) : r;
}

static void axpy_release(void *self)
{
	((struct axpy *)self)->released++;
}

const struct te_arg axpy_in[1] = { { "x", { TE_DTYPE_FP32, 2, { 3, 5 } }, TE_ARG_GRAD } };
static const struct te_arg axpy_out[] = { { "y", { TE_DTYPE_FP32, 2, { 3, 5 } }, TE_ARG_GRAD } };

struct te_callable axpy(struct axpy *a, const char *name)
{
	struct te_callable c = TE_CALLABLE_INIT;

	c.name = name;
	c.self = a;
	c.nin = c.nout = 1;
	c.in = axpy_in;
	c.out = axpy_out;
	c.saved_nbytes = 15 * sizeof(float);
	c.forward = axpy_forward;
	c.backward = axpy_backward;
	c.regions = axpy_regions;
	c.release = axpy_release;
	return c;
}

struct te_tensor *filled(float x)
{
	struct te_tensor *t;
	float v[15];

	for (int i = 0; i < 15; i++)
		v[i] = x + (float)i;
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, axpy_in[0].spec.shape, NULL, &t));
	DO(te_tensor_write(t, v, sizeof(v)));
	return t;
}

float first_of(struct te_tensor *t)
{
	float v[15];

	DO(te_stream_sync(st));
	DO(te_tensor_read(t, v, sizeof(v)));
	return v[0];
}
