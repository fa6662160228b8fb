/* t/graph/caster.c - see caster.h. */
#include "config.h"

#include <errno.h>

#include "caster.h"

static int cast(struct caster *a, const struct te_graph_call *c, struct te_tensor *x,
		struct te_tensor *y)
{
	int r = 0;

	a->count++;
	if (a->fail_at && !--a->fail_at)
		return -EIO;
	if (a->words)
		r = te_fill_u32(c->stream, a->words, 0x77777777, 4 * CASTER_WORDS);
	if (!r && a->more)
		r = te_fill(c->stream, c->saved, 1, 64);
	return r ? r : te_cast(c->stream, x, y);
}

int caster_forward(void *self, const struct te_graph_call *c)
{
	return cast(self, c, c->in[0], c->out[0]);
}

static int backward(void *self, const struct te_graph_call *c)
{
	return cast(self, c, c->out_grad[0], c->in_grad[0]);
}

int caster_regions(void *self, te_region_fn fn, void *arg)
{
	struct caster *a = self;
	struct te_region device = { "words", TE_REGION_DEVICE, a->words, 4 * CASTER_WORDS };
	struct te_region host = { "count", TE_REGION_HOST, &a->count, sizeof(a->count) };
	int r = fn(arg, &device);

	return r ? r : fn(arg, &host);
}

static void release(void *self)
{
	((struct caster *)self)->released++;
}

struct te_callable caster(struct caster *a, enum te_dtype to, int64_t n, int more)
{
	struct te_callable c = TE_CALLABLE_INIT;

	*a = (struct caster){ .more = more };
	a->in = (struct te_arg){ "x", { TE_DTYPE_FP32, 1, { n } }, TE_ARG_GRAD };
	a->out = (struct te_arg){ "y", { to, 1, { n } }, TE_ARG_GRAD };
	c.name = "cast";
	c.self = a;
	c.nin = c.nout = 1;
	c.in = &a->in;
	c.out = &a->out;
	c.saved_nbytes = 64;
	c.forward = caster_forward;
	c.backward = backward;
	c.release = release;
	return c;
}

int no_hook(void *arg, enum te_hook hook, int32_t callable, struct te_stream *stream)
{
	(void)arg;
	(void)hook;
	(void)callable;
	(void)stream;
	return 0;
}
