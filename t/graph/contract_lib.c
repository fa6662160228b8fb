/* t/graph/contract_lib.c - see contract_lib.h. */
#include "config.h"

#include "contract_lib.h"

struct te_ctx *new_ctx(void)
{
	struct te_ctx *c;

	DO(tt_ctx_new(&c));
	return c;
}

uint32_t word_at(const void *device)
{
	uint32_t v;

	DO(te_copy(st, &v, device, sizeof(v)));
	DO(te_stream_sync(st));
	return v;
}

void set_word(void *device, uint32_t v)
{
	DO(te_fill_u32(st, device, v, sizeof(v)));
	DO(te_stream_sync(st));
}

/* ---- a callable that passes x on, and leaves its mark in a word ---- */

static int called(struct stage *s, const struct te_graph_call *c, int *n, uint32_t mark)
{
	++*n;
	if (++s->calls->n == s->calls->fail_at)
		return -EIO;
	return te_fill_u32(c->stream, s->word, mark, sizeof(mark));
}

static int stage_forward(void *self, const struct te_graph_call *c)
{
	struct stage *s = self;
	int r = called(s, c, &s->nforward, 0xf0f0);

	return r ? r :
		   te_copy(c->stream, te_tensor_data(c->out[0]), te_tensor_data(c->in[0]),
			   te_tensor_nbytes(c->in[0]));
}

static int stage_backward(void *self, const struct te_graph_call *c)
{
	struct stage *s = self;
	int r = called(s, c, &s->nbackward, 0xb0b0);

	return r ? r :
		   te_copy(c->stream, te_tensor_data(c->in_grad[0]), te_tensor_data(c->out_grad[0]),
			   te_tensor_nbytes(c->in[0]));
}

static int stage_dw(void *self, const struct te_graph_call *c)
{
	struct stage *s = self;

	return called(s, c, &s->ndw, 0xd0d0);
}

static int stage_regions(void *self, te_region_fn fn, void *arg)
{
	const struct stage *s = self;
	const struct te_region word = { "word", TE_REGION_DEVICE, s->word, sizeof(*s->word) };

	return fn(arg, &word);
}

static void stage_release(void *self)
{
	((struct stage *)self)->released++;
}

static const struct te_arg stage_in[] = { { "x", { TE_DTYPE_INT32, 1, { 3 } }, TE_ARG_GRAD } };
const struct te_arg stage_out[1] = { { "y", { TE_DTYPE_INT32, 1, { 3 } }, TE_ARG_GRAD } };

struct te_callable stage(struct stage *s, const char *name, int dw)
{
	struct te_callable c = TE_CALLABLE_INIT;

	c.name = name;
	c.self = s;
	c.nin = c.nout = 1;
	c.in = stage_in;
	c.out = stage_out;
	c.forward = stage_forward;
	c.backward = stage_backward;
	c.backward_dw = dw ? stage_dw : NULL;
	c.regions = stage_regions;
	c.release = stage_release;
	return c;
}

/* ---- a pipeline of stages ---- */

const struct pipe pipes[PIPES] = {
	{ "1,2,-2,-1", 2, 1, 0 },
	{ "1,2,1,2,-2,-1,-2,-1", 2, 2, 0 },
	{ "1,2,1,-2,-1,-1.5,2,-2,-1,-1.5", 2, 2, 1 },
};

static int on_hook(void *arg, enum te_hook hook, int32_t callable, struct te_stream *stream)
{
	struct pipeline *p = arg;
	void *scratch;
	int fails;

	if (!stream || te_stream_ctx(stream) != ctx)
		return -EINVAL;
	/* outside of any capture: what a hook is there to do may allocate and wait */
	DO(te_mem_alloc(stream, 64, &scratch));
	DO(te_fill_u32(stream, p->hooked, 0x4000, 4));
	DO(te_mem_free(stream, scratch));
	DO(te_stream_sync(stream));
	fails = ++p->nhooks == p->hook_fails_at;
	snprintf(p->log + strlen(p->log), sizeof(p->log) - strlen(p->log), "%d:%d%s ", (int)hook,
		 (int)callable, fails ? "!" : "");
	return fails ? -ECANCELED : 0;
}

static int on_edge(void *arg, struct te_stream *stream)
{
	struct pipeline *p = arg;

	return ++p->calls.n == p->calls.fail_at ? -EIO :
						  te_fill_u32(stream, p->stage[0].word, 0xe0e0, 4);
}

void pipeline_create(struct pipeline *p, const struct pipe *of, uint32_t flags, int nwarmup)
{
	static const char *const names[NODES] = { "a", "b", "c", "d" };

	*p = (struct pipeline){ .p = of, .o = TE_GRAPH_OPTS_INIT };
	p->n = of->nchunks * of->nmicro;
	DO(te_schedule_parse(of->order, NULL, &p->o.schedule));
	p->o.flags = TE_GRAPH_CHAIN | flags;
	p->o.nwarmup = nwarmup;
	p->o.hook = on_hook;
	p->o.first = p->o.last = on_edge;
	p->o.arg = p;
	DO(te_mem_alloc(st, 4, (void **)&p->hooked));
	set_word(p->hooked, 0);
	for (int i = 0; i < p->n; i++) {
		p->stage[i].calls = &p->calls;
		DO(te_mem_alloc(st, 4, (void **)&p->stage[i].word));
		set_word(p->stage[i].word, 1000u + (uint32_t)i);
		p->c[i] = stage(&p->stage[i], names[i], of->delayed && i < of->nmicro);
	}
}

void pipeline_destroy(struct pipeline *p)
{
	p->g = te_graph_unref(p->g);
	te_schedule_unref(p->o.schedule);
	for (int i = 0; i < p->n; i++)
		DO(te_mem_free(st, p->stage[i].word));
	DO(te_mem_free(st, p->hooked));
}

/* ---- a callable that passes three arguments on ---- */

static int many_forward(void *self, const struct te_graph_call *c)
{
	int r = 0;

	for (int k = 0; k < 3 && !r; k++)
		r = te_copy(c->stream, te_tensor_data(c->out[k]), te_tensor_data(c->in[k]),
			    te_tensor_nbytes(c->in[k]));
	return r;
}

static int many_backward(void *self, const struct te_graph_call *c)
{
	static const int from[] = { 1, 0 }; /* of in 0 and in 2 */
	int r = 0;

	for (int k = 0; k < 2 && !r; k++)
		r = te_copy(c->stream, te_tensor_data(c->in_grad[2 * k]),
			    te_tensor_data(c->out_grad[from[k] ? 2 : 0]),
			    te_tensor_nbytes(c->in_grad[2 * k]));
	return r;
}

const struct te_arg many_in[3] = {
	{ "x", { TE_DTYPE_INT32, 2, { 2, 3 } }, TE_ARG_GRAD },
	{ "mask", { TE_DTYPE_INT32, 1, { 5 } }, 0 },
	{ "bias", { TE_DTYPE_INT32, 2, { 2, 3 } }, TE_ARG_GRAD },
};
static const struct te_arg many_out[] = {
	{ "y", { TE_DTYPE_INT32, 2, { 2, 3 } }, TE_ARG_GRAD },
	{ "seen", { TE_DTYPE_INT32, 1, { 5 } }, 0 },
	{ "z", { TE_DTYPE_INT32, 2, { 2, 3 } }, TE_ARG_GRAD },
};

static struct te_callable many(void)
{
	struct te_callable c = TE_CALLABLE_INIT;

	c.name = "many";
	c.nin = c.nout = 3;
	c.in = many_in;
	c.out = many_out;
	c.forward = many_forward;
	c.backward = many_backward;
	return c;
}

static struct te_tensor *filled(const struct te_spec *s, uint32_t value)
{
	struct te_tensor *t;

	DO(te_tensor_create(ctx, s->dtype, s->ndim, s->shape, NULL, &t));
	DO(te_fill_u32(st, te_tensor_data(t), value, te_tensor_nbytes(t)));
	return t;
}

uint32_t value_of(const struct te_tensor *t)
{
	return word_at(te_tensor_data(t));
}

void some_create(struct some *s)
{
	struct te_callable c = many();

	for (int k = 0; k < 3; k++) {
		s->in[k] = filled(&many_in[k].spec, 10u + (uint32_t)k);
		s->dy[k] = filled(&many_out[k].spec, 20u + (uint32_t)k);
	}
	s->kept[0] = filled(&many_in[0].spec, 0);
	s->kept[1] = filled(&many_in[2].spec, 0);
	DO(te_graph_create(ctx, 1, &c, NULL, &s->g));
}

void some_destroy(struct some *s)
{
	te_graph_unref(s->g);
	for (int k = 0; k < 3; k++) {
		te_tensor_unref(s->in[k]);
		te_tensor_unref(s->dy[k]);
	}
	te_tensor_unref(s->kept[0]);
	te_tensor_unref(s->kept[1]);
}

void some_gave(const struct some *s, int inputs)
{
	static const char *const out[] = { "y", "seen", "z" };

	for (int k = 0; k < 3; k++)
		ck_assert_uint_eq(value_of(te_graph_tensor(s->g, 0, out[k])),
				  (uint32_t)(inputs + k));
}
