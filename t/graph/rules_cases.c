/*
 * t/graph/rules_cases.c - the rules of te_graph_*(3), one by one: arguments by position and by
 * name, hooks and functions in their exact order, failures of each call of them, states in
 * which a replay is refused, one weight-cache flag a graph, and nothing left of a trial.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>
#include <te/gemm.h>
#include <te/graph.h>
#include <te/optim.h>

#include "rules_cases.h"
#include "../core/plan_model.h"
#include "tt_ctx.h"
#include "tt_gate.h"

static struct te_ctx *new_ctx(void)
{
	struct te_ctx *c;

	DO(tt_ctx_new(&c));
	return c;
}

static uint32_t word_at(const void *device)
{
	uint32_t v;

	DO(te_copy(st, &v, device, sizeof(v)));
	DO(te_stream_sync(st));
	return v;
}

static void set_word(void *device, uint32_t v)
{
	DO(te_fill_u32(st, device, v, sizeof(v)));
	DO(te_stream_sync(st));
}

/* ---- a callable that passes x on, and leaves its mark in a word ---- */

/* what all callables of a test share: which of their calls fails */
struct calls {
	int n, fail_at;
};

struct stage {
	struct calls *calls;
	uint32_t *word; /* of the device; each pass writes it */
	int nforward, nbackward, ndw, released;
};

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
static const struct te_arg stage_out[] = { { "y", { TE_DTYPE_INT32, 1, { 3 } }, TE_ARG_GRAD } };

static struct te_callable stage(struct stage *s, const char *name, int dw)
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

/* ---- a pipeline of stages, and all that happens while it is captured ---- */

#define NODES 4
#define MOST 160

static const struct pipe {
	const char *order;
	int32_t nchunks, nmicro; /* a layer each */
	int delayed;		 /* chunk 1 has weight gradients of its own */
} pipes[] = {
	{ "1,2,-2,-1", 2, 1, 0 },
	{ "1,2,1,2,-2,-1,-2,-1", 2, 2, 0 },
	{ "1,2,1,-2,-1,-1.5,2,-2,-1,-1.5", 2, 2, 1 },
};

struct pipeline {
	const struct pipe *p;
	struct calls calls;
	struct stage stage[NODES];
	struct te_callable c[NODES];
	struct te_graph_opts o;
	struct te_graph *g;
	int n;
	char log[64 * 1024]; /* a line a hook */
	int nhooks, hook_fails_at;
	uint32_t *hooked; /* written by each hook */
};

/* "forward of b (chunk 2, micro-batch 1)" */
static void step_name(const struct pipeline *p, const struct te_sched_step *s, char *dst, size_t n)
{
	static const char *const pass[] = { "forward", "backward", "backward_dw" };

	snprintf(dst, n, "%s of %s (chunk %d, micro-batch %d)", pass[s->kind],
		 p->c[s->callable].name, (int)s->chunk + 1, (int)s->micro + 1);
}

static int on_hook(void *arg, enum te_hook hook, int32_t callable, struct te_stream *stream)
{
	struct pipeline *p = arg;

	void *scratch;

	if (!stream || te_stream_ctx(stream) != ctx)
		return -EINVAL;
	/* outside of any capture: what a hook is there to do may allocate and wait */
	DO(te_mem_alloc(stream, 64, &scratch));
	DO(te_fill_u32(stream, p->hooked, 0x4000, 4));
	DO(te_mem_free(stream, scratch));
	DO(te_stream_sync(stream));
	if (++p->nhooks == p->hook_fails_at)
		return -ECANCELED;
	snprintf(p->log + strlen(p->log), sizeof(p->log) - strlen(p->log), "%d:%d ", (int)hook,
		 (int)callable);
	return 0;
}

static int on_edge(void *arg, struct te_stream *stream)
{
	struct pipeline *p = arg;

	return ++p->calls.n == p->calls.fail_at ? -EIO :
						  te_fill_u32(stream, p->stage[0].word, 0xe0e0, 4);
}

static void pipeline_create(struct pipeline *p, const struct pipe *of, uint32_t flags, int nwarmup)
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

static void pipeline_destroy(struct pipeline *p)
{
	p->g = te_graph_unref(p->g);
	te_schedule_unref(p->o.schedule);
	for (int i = 0; i < p->n; i++)
		DO(te_mem_free(st, p->stage[i].word));
	DO(te_mem_free(st, p->hooked));
}

/* what is called, in order: "warm-up of forward of a (...)", "the first function" and the like */
struct event {
	char text[96];
};

static int events(const struct pipeline *p, int hooks, struct event *e)
{
	const int whole = !!(p->o.flags & TE_GRAPH_WHOLE);
	struct te_sched_step s;
	int n = 0;

	if (hooks)
		snprintf(e[n++].text, sizeof(e->text), "the hook before warm-up returned");
	for (int w = 0; w <= p->o.nwarmup; w++) {
		const int captures = w == p->o.nwarmup, edges = !hooks && (!captures || whole);

		if (captures && hooks)
			snprintf(e[n++].text, sizeof(e->text), "the hook after warm-up returned");
		if (edges)
			snprintf(e[n++].text, sizeof(e->text), "the first function: ");
		for (int i = 0; !te_schedule_step(p->o.schedule, i, &s); i++) {
			char step[64];

			step_name(p, &s, step, sizeof(step));
			if (hooks && (s.kind == TE_SCHED_W || (captures && whole)))
				continue;
			if (!hooks && s.kind == TE_SCHED_W && !p->c[s.callable].backward_dw)
				continue;
			for (int k = 0; k <= hooks; k++)
				snprintf(e[n++].text, sizeof(e->text),
					 "%s of %s: ", captures ? "capture" : "warm-up", step);
		}
		if (edges)
			snprintf(e[n++].text, sizeof(e->text), "the last function: ");
	}
	ck_assert_int_le(n, MOST);
	return n;
}

/* nothing is left of a capture, that failed or not */
static void untouched(const struct pipeline *p)
{
	for (int i = 0; i < p->n; i++) {
		ck_assert_uint_eq(word_at(p->stage[i].word), 1000u + (uint32_t)i);
		ck_assert_int_eq(p->stage[i].released, 0);
	}
}

static const uint32_t how[] = { 0, TE_GRAPH_WHOLE };

/* each call of warm-up and capture fails once, of functions and of hooks */
START_TEST(whichever_call_fails_is_named)
{
	const struct pipe *pipe = &pipes[_i / 4];
	const int hooks = _i % 2;
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	struct event e[MOST];
	struct pipeline p;
	int n;

	pipeline_create(&p, pipe, how[_i / 2 % 2], 2);
	n = events(&p, hooks, e);
	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &before));
	for (int k = 1; k <= n; k++) {
		*(hooks ? &p.hook_fails_at : &p.calls.fail_at) = k;
		p.nhooks = p.calls.n = 0;
		fails(te_graph_create(ctx, p.n, p.c, &p.o, &p.g), hooks ? -ECANCELED : -EIO,
		      e[k - 1].text);
		ck_assert_ptr_null(p.g);
		ck_assert_int_eq(hooks ? p.nhooks : p.calls.n, k);
		untouched(&p);
		DO(te_ctx_sync(ctx));
		DO(te_ctx_mem_info(ctx, &after));
		ck_assert_uint_eq(before.used_nbytes, after.used_nbytes);
		ck_assert_uint_eq(before.pinned_nbytes, after.pinned_nbytes);
	}
	p.hook_fails_at = p.calls.fail_at = p.nhooks = p.calls.n = 0;
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	ck_assert_int_eq(hooks ? p.nhooks : p.calls.n, n);
	untouched(&p);
	DO(te_graph_run(p.g, st));
	ck_assert_uint_eq(word_at(p.stage[p.n - 1].word), 0xb0b0);
	pipeline_destroy(&p);
	for (int i = 0; i < p.n; i++)
		ck_assert_int_eq(p.stage[i].released, 1);
}
END_TEST

/* the exact list, with no, one and three runs of warm-up; replays add nothing to it */
START_TEST(hooks_are_called_in_this_order)
{
	static const int nwarmup[] = { 0, 1, 3 };
	const uint32_t flags = how[_i / 3 % 2];
	struct te_sched_step s;
	struct pipeline p;
	char want[8192] = "0:-1 ";

	pipeline_create(&p, &pipes[_i / 6], flags, nwarmup[_i % 3]);
	for (int w = 0; w <= p.o.nwarmup; w++) {
		if (w == p.o.nwarmup)
			strcat(want, "1:-1 ");
		for (int i = 0; !te_schedule_step(p.o.schedule, i, &s); i++) {
			const int pre =
				s.kind == TE_SCHED_F ? TE_HOOK_FORWARD_PRE : TE_HOOK_BACKWARD_PRE;

			if (s.kind == TE_SCHED_W || (w == p.o.nwarmup && flags))
				continue;
			for (int k = 0; k < 2; k++)
				sprintf(want + strlen(want), "%d:%d ", pre + k, (int)s.callable);
		}
	}
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	ck_assert_str_eq(p.log, want);
	/* functions run once a pass of warm-up and of capture */
	for (int i = 0; i < p.n; i++) {
		const int times = p.o.nwarmup + 1;

		ck_assert_int_eq(p.stage[i].nforward, times);
		ck_assert_int_eq(p.stage[i].nbackward, times);
		ck_assert_int_eq(p.stage[i].ndw, p.c[i].backward_dw ? times : 0);
	}
	ck_assert_uint_eq(word_at(p.hooked), 0x4000);
	set_word(p.hooked, 0);
	for (int k = 0; k < 2; k++)
		DO(te_graph_run(p.g, st));
	ck_assert_uint_eq(word_at(p.hooked), 0); /* nor was what they queue recorded */
	ck_assert_str_eq(p.log, want);
	ck_assert_int_eq(p.stage[0].nforward, p.o.nwarmup + 1);
	pipeline_destroy(&p);
}
END_TEST

/* no schedule: forwards, backwards reversed, then the weight gradients, as far as there are */
START_TEST(weight_gradients_are_passes_of_their_own)
{
	struct pipeline p;
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule *order = NULL;
	struct te_graph *g = NULL;

	pipeline_create(&p, &pipes[2], 0, 1);
	p.o.schedule = te_schedule_unref(p.o.schedule);
	p.o.flags = 0;
	DO(te_graph_create(ctx, 3, p.c, &p.o, &p.g)); /* a and b delay theirs, c does not */
	ck_assert_int_eq(p.stage[0].ndw, 2);	      /* warmed up, captured */
	ck_assert_int_eq(p.stage[2].ndw, 0);
	untouched(&p);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 3; i++)
			set_word(p.stage[i].word, 1);
		fails(te_graph_backward_dw(p.g, 0, st, NULL), -TE_ESTATE,
		      "forward of callable 0 (a, chunk 1, micro-batch 1) is due, not backward_dw");
		for (int i = 0; i < 3; i++)
			DO(te_graph_forward(p.g, i, st, NULL));
		for (int i = 2; i >= 0; i--)
			DO(te_graph_backward(p.g, i, st, NULL));
		fails(te_graph_forward(p.g, 0, st, NULL), -TE_ESTATE,
		      "backward_dw of callable 2 (c, chunk 1, micro-batch 1) is due, not forward");
		for (int i = 2; i >= 0; i--) {
			ck_assert_uint_eq(word_at(p.stage[i].word), 0xb0b0);
			DO(te_graph_backward_dw(p.g, i, st, NULL));
			ck_assert_uint_eq(word_at(p.stage[i].word), i < 2 ? 0xd0d0 : 0xb0b0);
		}
	}
	ck_assert_ptr_nonnull(te_graph_recording(p.g, 1, TE_SCHED_W));
	ck_assert_ptr_null(te_graph_recording(p.g, 2, TE_SCHED_W));
	/* who delays them must have an entry for them */
	so.nmicro = 2;
	DO(te_schedule_create(&so, &order));
	p.o.schedule = order;
	fails(te_graph_create(ctx, 2, p.c, &p.o, &g), -EINVAL,
	      "a leaves weight gradients to backward_dw, and the schedule has no entry for those "
	      "of chunk 1");
	p.o.schedule = NULL;
	te_schedule_unref(order);
	pipeline_destroy(&p);
}
END_TEST

/* ---- arguments ---- */

/* three inputs of different kinds, three outputs, of which one has no gradient */
static int many_forward(void *self, const struct te_graph_call *c)
{
	int r = 0;

	(void)self;
	for (int k = 0; k < 3 && !r; k++)
		r = te_copy(c->stream, te_tensor_data(c->out[k]), te_tensor_data(c->in[k]),
			    te_tensor_nbytes(c->in[k]));
	return r;
}

static int many_backward(void *self, const struct te_graph_call *c)
{
	static const int from[] = { 1, 0 }; /* of in 0 and in 2 */
	int r = 0;

	(void)self;
	for (int k = 0; k < 2 && !r; k++)
		r = te_copy(c->stream, te_tensor_data(c->in_grad[2 * k]),
			    te_tensor_data(c->out_grad[from[k] ? 2 : 0]),
			    te_tensor_nbytes(c->in_grad[2 * k]));
	return r;
}

static const struct te_arg many_in[] = {
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

static uint32_t value_of(const struct te_tensor *t)
{
	return word_at(te_tensor_data(t));
}

struct some {
	struct te_tensor *in[3], *dy[3], *kept[2];
	struct te_graph *g;
};

static void some_create(struct some *s)
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

static void some_destroy(struct some *s)
{
	te_graph_unref(s->g);
	for (int k = 0; k < 3; k++) {
		te_tensor_unref(s->in[k]);
		te_tensor_unref(s->dy[k]);
	}
	te_tensor_unref(s->kept[0]);
	te_tensor_unref(s->kept[1]);
}

static void some_gave(const struct some *s, int inputs)
{
	static const char *const out[] = { "y", "seen", "z" };

	for (int k = 0; k < 3; k++)
		ck_assert_uint_eq(value_of(te_graph_tensor(s->g, 0, out[k])),
				  (uint32_t)(inputs + k));
}

START_TEST(named_arguments_come_in_any_order)
{
	static const int perm[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
					{ 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
	struct some s;

	some_create(&s);
	ck_assert_ptr_null(te_graph_grad(s.g, 0, "mask"));
	ck_assert_ptr_null(te_graph_grad(s.g, 0, "seen"));
	ck_assert_ptr_null(te_graph_tensor(s.g, 0, "nothing"));
	for (int npos = 0; npos <= 3; npos++) {
		for (int i = 0; i < 6; i++) {
			struct te_named named[3], dy[2] = { { "z", s.dy[2] }, { "y", s.dy[0] } };
			struct te_named kept[2] = { { "bias", s.kept[1] }, { "x", s.kept[0] } };
			struct te_replay f = TE_REPLAY_INIT, b = f;
			int n = 0;

			for (int k = 0; k < 3; k++)
				if (perm[i][k] >= npos)
					named[n++] = (struct te_named){ many_in[perm[i][k]].name,
									s.in[perm[i][k]] };
			f.npos = npos;
			f.pos = s.in;
			f.nnamed = n;
			f.named = named;
			DO(te_graph_forward(s.g, 0, st, &f));
			some_gave(&s, 10);
			b.nnamed = 2 - i % 2;
			b.named = dy; /* only z by name where y is given by position */
			b.npos = i % 2;
			b.pos = s.dy;
			b.nkept = 2;
			b.kept = kept;
			DO(te_fill(st, te_tensor_data(s.kept[0]), 0, 24));
			DO(te_fill(st, te_tensor_data(s.kept[1]), 0, 24));
			DO(te_graph_backward(s.g, 0, st, &b));
			ck_assert_uint_eq(value_of(s.kept[0]), 22);
			ck_assert_uint_eq(value_of(s.kept[1]), 20);
		}
	}
	some_destroy(&s);
}
END_TEST

/* the static tensors themselves may be given: nothing is copied onto itself */
START_TEST(static_tensors_may_be_given)
{
	struct te_tensor *in[3];
	struct te_replay f = TE_REPLAY_INIT;
	struct some s;

	some_create(&s);
	for (int k = 0; k < 3; k++) {
		in[k] = te_graph_tensor(s.g, 0, many_in[k].name);
		DO(te_fill_u32(st, te_tensor_data(in[k]), 30u + (uint32_t)k,
			       te_tensor_nbytes(in[k])));
	}
	f.npos = 3;
	f.pos = in;
	DO(te_graph_forward(s.g, 0, st, &f));
	some_gave(&s, 30);
	some_destroy(&s);
}
END_TEST

/* what is wrong with inputs in one replay: names and tensors by index, -1: none */
enum odd { GOOD, NO_TENSOR, WIDER, DEEPER, FLOATS, FOREIGN };

static const struct {
	int npos;
	const char *name[4];
	enum odd odd; /* of the last one by name, or of the first by position */
	int code;
	const char *said;
} wrong[] = {
	{ 0, { NULL }, GOOD, -EINVAL, "the input x of many was captured and is not given" },
	{ 1, { "bias" }, GOOD, -EINVAL, "the input mask of many was captured and is not given" },
	{ 2, { NULL }, GOOD, -EINVAL, "the input bias of many was captured and is not given" },
	{ 0, { "mask", "bias" }, GOOD, -EINVAL, "the input x of many was captured and is not" },
	{ 3, { "scale" }, GOOD, -EINVAL, "many has no input scale" },
	{ 3, { "y" }, GOOD, -EINVAL, "many has no input y" },
	{ 3, { "" }, GOOD, -EINVAL, "many has no input " },
	{ 2, { "bias", "bias" }, GOOD, -EINVAL, "bias of many is given twice" },
	{ 3, { "x" }, GOOD, -EINVAL, "x of many is given by position and by name" },
	{ 2, { "bias", "mask" }, GOOD, -EINVAL, "mask of many is given by position and by name" },
	{ 4, { NULL }, GOOD, -EINVAL, "4 arguments by position, many takes 3" },
	{ 2, { "bias" }, NO_TENSOR, -EINVAL, "input bias of many was captured and is not given" },
	{ 2, { "bias" }, WIDER, -TE_ESHAPE, "bias of many is [2,4] int32, captured was [2,3]" },
	{ 2, { "bias" }, DEEPER, -TE_ESHAPE, "bias of many is [1,2,3] int32, captured was [2,3]" },
	{ 2, { "bias" }, FLOATS, -TE_EDTYPE, "bias of many is [2,3] fp32, captured was [2,3] int" },
	{ 2, { "bias" }, FOREIGN, -EINVAL, "bias of many is of another context" },
	{ 3, { NULL }, NO_TENSOR, -EINVAL, "the input x of many was captured and is not given" },
	{ 3, { NULL }, WIDER, -TE_ESHAPE, "x of many is [2,4] int32, captured was [2,3] int32" },
	{ 3, { NULL }, FLOATS, -TE_EDTYPE, "x of many is [2,3] fp32, captured was [2,3] int32" },
	{ 3, { NULL }, FOREIGN, -EINVAL, "x of many is of another context" },
};

START_TEST(wrong_arguments_are_named)
{
	static const struct te_spec spec[] = {
		[WIDER] = { TE_DTYPE_INT32, 2, { 2, 4 } },
		[DEEPER] = { TE_DTYPE_INT32, 3, { 1, 2, 3 } },
		[FLOATS] = { TE_DTYPE_FP32, 2, { 2, 3 } },
		[FOREIGN] = { TE_DTYPE_INT32, 2, { 2, 3 } },
	};
	const enum odd odd = wrong[_i].odd;
	struct te_ctx *other = odd == FOREIGN ? new_ctx() : NULL, *own = ctx;
	struct te_tensor *t = NULL, *pos[4];
	struct te_replay f = TE_REPLAY_INIT;
	struct te_named named[4];
	struct some s;
	int n = 0;

	some_create(&s);
	if (other)
		ctx = other;
	if (odd > NO_TENSOR)
		DO(te_tensor_create(ctx, spec[odd].dtype, spec[odd].ndim, spec[odd].shape, NULL,
				    &t));
	ctx = own;
	for (int k = 0; k < 4; k++)
		pos[k] = s.in[k % 3];
	for (; n < 4 && wrong[_i].name[n]; n++) {
		const char *name = wrong[_i].name[n];

		named[n] = (struct te_named){ name, s.in[!strcmp(name, "mask") ? 1 :
							 !strcmp(name, "bias") ? 2 :
										 0] };
	}
	if (odd != GOOD && n)
		named[n - 1].tensor = t;
	else if (odd != GOOD)
		pos[0] = t;
	f.npos = wrong[_i].npos;
	f.pos = pos;
	f.nnamed = n;
	f.named = named;
	for (int k = 0; k < 3; k++)
		DO(te_fill_u32(st, te_tensor_data(te_graph_tensor(s.g, 0, many_in[k].name)), 77,
			       20));
	fails(te_graph_forward(s.g, 0, st, &f), wrong[_i].code, wrong[_i].said);
	/* nothing has been copied, and the step is still due */
	for (int k = 0; k < 3; k++)
		ck_assert_uint_eq(value_of(te_graph_tensor(s.g, 0, many_in[k].name)), 77);
	f.npos = 3;
	f.nnamed = 0;
	f.pos = s.in;
	DO(te_graph_forward(s.g, 0, st, &f));
	some_gave(&s, 10);
	some_destroy(&s);
	te_tensor_unref(t);
	te_ctx_unref(other);
}
END_TEST

START_TEST(wrong_gradients_are_named)
{
	struct te_replay b = TE_REPLAY_INIT, f = b;
	struct te_named named[2], kept[2];
	struct some s;

	some_create(&s);
	f.npos = 3;
	f.pos = s.in;
	DO(te_graph_forward(s.g, 0, st, &f));
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL,
	      "the output gradient y of many was captured and is not given");
	b.npos = 1;
	b.pos = s.dy;
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL,
	      "the output gradient z of many was captured and is not given");
	b.nnamed = 1;
	b.named = named;
	named[0] = (struct te_named){ "seen", s.dy[1] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "many has no output gradient seen");
	named[0] = (struct te_named){ "y", s.dy[0] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL,
	      "y of many is given by position and by name");
	named[0] = (struct te_named){ "z", s.dy[1] };
	fails(te_graph_backward(s.g, 0, st, &b), -TE_ESHAPE,
	      "z of many is [5] int32, captured was [2,3] int32");
	named[0].tensor = s.dy[2];
	b.nkept = 1;
	b.kept = kept;
	kept[0] = (struct te_named){ "mask", s.in[1] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "many gives no gradient of mask");
	kept[0] = (struct te_named){ "y", s.in[0] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "many gives no gradient of y");
	kept[0] = (struct te_named){ NULL, s.in[0] };
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL,
	      "many gives no gradient of an input without a name");
	kept[0] = (struct te_named){ "x", s.in[1] };
	fails(te_graph_backward(s.g, 0, st, &b), -TE_ESHAPE, "x of many is [5] int32");
	kept[0].tensor = NULL;
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "x of many is NULL");
	kept[0].tensor = s.kept[0];
	b.kept = NULL;
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "1 kept, and no list of them");
	b.kept = kept;
	b.npos = -1;
	fails(te_graph_backward(s.g, 0, st, &b), -EINVAL, "-1 arguments by position");
	b.npos = 1;
	DO(te_graph_backward(s.g, 0, st, &b));
	ck_assert_uint_eq(value_of(s.kept[0]), 22);
	some_destroy(&s);
}
END_TEST

/* ---- one flag a graph ---- */

/* y = the word that says whether weights are cached, or 7 without one */
static int told_forward(void *self, const struct te_graph_call *c)
{
	void *y = te_tensor_data(c->out[0]);

	(void)self;
	return c->weights_cached ? te_copy(c->stream, y, c->weights_cached, 4) :
				   te_fill_u32(c->stream, y, 7, 4);
}

static struct te_graph *telling(uint32_t flags)
{
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_callable c[3];
	struct te_graph *g;

	for (int i = 0; i < 3; i++) {
		c[i] = (struct te_callable)TE_CALLABLE_INIT;
		c[i].name = "told";
		c[i].nout = 1;
		c[i].out = stage_out;
		c[i].forward = told_forward;
	}
	so.nmicro = 3;
	so.flags = TE_SCHED_FORWARD_ONLY;
	DO(te_schedule_create(&so, &o.schedule));
	o.flags = flags;
	DO(te_graph_create(ctx, 3, c, &o, &g));
	te_schedule_unref(o.schedule);
	return g;
}

#define ONE 0x3f800000u /* 1.0f */

static const uint32_t telling_flags[] = { 0, TE_GRAPH_EAGER, TE_GRAPH_REUSE };

START_TEST(the_first_micro_batch_is_to_be_said)
{
	const uint32_t flags = telling_flags[_i];
	struct te_graph *g = telling(TE_GRAPH_CACHE_WEIGHTS | flags), *h = telling(flags);
	struct te_replay r = TE_REPLAY_INIT;

	fails(te_graph_forward(g, 0, st, &r), -EINVAL,
	      "te_graph_forward: TE_GRAPH_CACHE_WEIGHTS needs to be told whether this is the "
	      "first micro-batch");
	r.first = (enum te_first)3;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "needs to be told");
	r.first = (enum te_first) - 1;
	fails(te_graph_forward(g, 0, st, &r), -EINVAL, "needs to be told");
	/* said to be so, whatever the schedule counts */
	r.first = TE_FIRST_NO;
	DO(te_graph_forward(g, 0, st, &r));
	ck_assert_uint_eq(value_of(te_graph_tensor(g, 0, "y")), ONE);
	r.first = TE_FIRST_YES;
	DO(te_graph_forward(g, 1, st, &r));
	ck_assert_uint_eq(value_of(te_graph_tensor(g, 1, "y")), 0);
	/* without arguments the schedule counts */
	DO(te_graph_forward(g, 2, st, NULL));
	ck_assert_uint_eq(value_of(te_graph_tensor(g, 2, "y")), ONE);
	DO(te_graph_forward(g, 0, st, NULL));
	ck_assert_uint_eq(value_of(te_graph_tensor(g, 0, "y")), 0);
	/* nobody asks where nothing is cached */
	r.first = TE_FIRST_UNSAID;
	DO(te_graph_forward(h, 0, st, &r));
	ck_assert_uint_eq(value_of(te_graph_tensor(h, 0, "y")), 7);
	te_graph_unref(g);
	te_graph_unref(h);
}
END_TEST

/* two models at different micro-batches do not hear of each other */
START_TEST(each_graph_has_its_own_flag)
{
	struct te_graph *g[2] = { telling(TE_GRAPH_CACHE_WEIGHTS),
				  telling(TE_GRAPH_CACHE_WEIGHTS) };
	struct te_graph *whole = telling(TE_GRAPH_CACHE_WEIGHTS | TE_GRAPH_WHOLE);

	for (int k = 0; k < 9; k++) {
		const int at[2] = { k % 3, (k + 1) % 3 };

		if (!k) /* the second is one ahead */
			DO(te_graph_forward(g[1], 0, st, NULL));
		for (int i = 0; i < 2; i++) {
			DO(te_graph_forward(g[i], at[i], st, NULL));
			ck_assert_uint_eq(value_of(te_graph_tensor(g[i], at[i], "y")),
					  at[i] ? ONE : 0);
		}
		DO(te_graph_run(whole, st));
		for (int i = 0; i < 3; i++)
			ck_assert_uint_eq(value_of(te_graph_tensor(whole, i, "y")), i ? ONE : 0);
	}
	te_graph_unref(g[0]);
	te_graph_unref(g[1]);
	te_graph_unref(whole);
}
END_TEST

/* ---- states ---- */

START_TEST(other_ways_to_replay_are_refused)
{
	struct te_ctx *other = new_ctx();
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph_change change = TE_GRAPH_CHANGE_INIT;
	struct te_stream *side;
	struct pipeline p;

	DO(te_stream_create(ctx, &side));
	pipeline_create(&p, &pipes[0], TE_GRAPH_WHOLE, 1);
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	fails(te_graph_forward(p.g, 0, st, NULL), -TE_ESTATE,
	      "te_graph_forward: a whole graph is replayed by te_graph_run");
	fails(te_graph_backward(p.g, 1, st, NULL), -TE_ESTATE, "replayed by te_graph_run");
	fails(te_graph_backward_dw(p.g, 1, st, NULL), -TE_ESTATE, "replayed by te_graph_run");
	fails(te_graph_run(p.g, te_ctx_stream(other)), -EINVAL, "the stream is of another context");
	fails(te_graph_run(NULL, st), -EINVAL, "graph is NULL");
	fails(te_graph_run(p.g, NULL), -EINVAL, "stream is NULL");
	fails(te_graph_rewind(NULL), -EINVAL, "graph is NULL");
	fails(te_graph_reset(NULL), -EINVAL, "graph is NULL");
	p.g = te_graph_unref(p.g);
	p.o.flags = TE_GRAPH_CHAIN;
	p.stage[0].released = p.stage[1].released = 0;
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	r.side = te_ctx_stream(other);
	r.npos = 1;
	r.pos = (struct te_tensor *[]){ te_graph_tensor(p.g, 0, "x") };
	fails(te_graph_forward(p.g, 0, st, &r), -EINVAL, "the side stream is of another context");
	r.side = side;
	DO(te_graph_forward(p.g, 0, st, &r));
	/* the neighbour's output is the input */
	fails(te_graph_forward(p.g, 1, st, &r), -EINVAL, "1 arguments by position, b takes 0");
	r.npos = 0;
	r.nnamed = 1;
	r.named = &(struct te_named){ "x", te_graph_tensor(p.g, 0, "x") };
	fails(te_graph_forward(p.g, 1, st, &r), -EINVAL,
	      "the input x of b comes from its neighbour in the chain");
	DO(te_graph_forward(p.g, 1, st, NULL));
	/* a whole run begins anew, and ends where it began */
	DO(te_graph_run(p.g, st));
	fails(te_graph_backward(p.g, 1, st, NULL), -TE_ESTATE,
	      "forward of callable 0 (a, chunk 1, micro-batch 1) is due");
	DO(te_graph_reset(p.g));
	fails(te_graph_backward(p.g, 1, st, NULL), -TE_ESTATE, "te_graph_backward: the graph has");
	fails(te_graph_backward_dw(p.g, 1, st, NULL), -TE_ESTATE, "the graph has been reset");
	fails(te_graph_run(p.g, st), -TE_ESTATE, "te_graph_run: the graph has been reset");
	fails(te_graph_update(p.g, p.n, p.c, &change), -TE_ESTATE, "the graph has been reset");
	ck_assert_ptr_null(te_graph_recording(p.g, 0, TE_SCHED_F));
	ck_assert_ptr_null(te_graph_grad(p.g, 0, "x"));
	DO(te_graph_rewind(p.g));
	pipeline_destroy(&p);
	te_stream_unref(side);
	te_ctx_unref(other);
}
END_TEST

/* a stream that captures takes no replay: nothing of one gets into the capture */
START_TEST(a_capturing_stream_is_left_alone)
{
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_recording *rec;
	struct te_stream *side;
	struct te_replay r = TE_REPLAY_INIT;
	struct some s;

	some_create(&s);
	DO(te_stream_create(ctx, &side));
	r.npos = 3;
	r.pos = s.in;
	for (int k = 0; k < 4; k++) {
		struct te_stream *own = k == 2 ? side : st;

		DO(te_capture_begin(st));
		r.side = k == 2 ? st : k == 1 ? side : NULL;
		fails(k < 3 ? te_graph_forward(s.g, 0, own, &r) : te_graph_run(s.g, own), -EBUSY,
		      "the stream is capturing");
		DO(te_capture_end(st, &rec));
		DO(te_recording_info(rec, &info));
		ck_assert_uint_eq(info.nnodes, 0);
		te_recording_unref(rec);
	}
	/* it has not failed, and its step is still due */
	r.side = NULL;
	DO(te_graph_forward(s.g, 0, st, &r));
	some_gave(&s, 10);
	some_destroy(&s);
	te_stream_unref(side);
}
END_TEST

/* a function that fails when it is replayed, as an eager graph does: later calls say so */
START_TEST(a_failed_replay_is_remembered)
{
	struct pipeline p;

	pipeline_create(&p, &pipes[0], TE_GRAPH_EAGER, 1);
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	DO(te_graph_forward(p.g, 0, st, NULL));
	p.calls.n = 0;
	p.calls.fail_at = 1;
	fails(te_graph_forward(p.g, 1, st, NULL), -EIO,
	      "te_graph_forward: forward of b (chunk 2, micro-batch 1)");
	p.calls.fail_at = 0;
	fails(te_graph_forward(p.g, 1, st, NULL), -EIO,
	      "te_graph_forward: the graph failed before: ");
	fails(te_graph_run(p.g, st), -EIO, "forward of b (chunk 2, micro-batch 1)");
	fails(te_graph_update(p.g, p.n, p.c, NULL), -EIO, "the graph failed before");
	pipeline_destroy(&p);
	pipeline_create(&p, &pipes[0], TE_GRAPH_EAGER, 1);
	DO(te_graph_create(ctx, p.n, p.c, &p.o, &p.g));
	p.calls.n = 0;
	p.calls.fail_at = 1;
	fails(te_graph_run(p.g, st), -EIO, "");
	p.calls.fail_at = 0;
	fails(te_graph_run(p.g, st), -EIO, "te_graph_run: the graph failed before");
	pipeline_destroy(&p);
}
END_TEST

/* ---- what te_graph_create refuses ---- */

static struct calls none;
static struct stage spare[2];

/* b stands behind a in a chain */
static void refused(struct te_callable a, struct te_callable b, uint32_t flags, int code,
		    const char *said)
{
	struct te_callable c[2] = { a, b };
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_graph *g = NULL;

	o.flags = flags;
	fails(te_graph_create(ctx, 2, c, &o, &g), code, said);
	ck_assert_ptr_null(g);
}

#define REFUSED(field, value, flags, code, said)                         \
	do {                                                             \
		struct te_callable b = good;                             \
                                                                         \
		b.field = value;                                         \
		refused(stage(&spare[0], "a", 0), b, flags, code, said); \
	} while (0)

START_TEST(callables_are_checked)
{
	static const struct te_arg flags[] = { { "x", { TE_DTYPE_INT32, 1, { 3 } }, 6 } };
	static const struct te_arg deep[] = {
		{ "x", { TE_DTYPE_INT32, TE_MAX_DIMS + 1, { 3 } }, 0 }
	};
	static const struct te_arg none_of[] = { { "x", { TE_DTYPE_INT32, 0, { 3 } }, 0 } };
	static const struct te_arg blank[] = { { "", { TE_DTYPE_INT32, 1, { 3 } }, 0 } };
	static const struct te_arg typed[] = { { "x", { TE_DTYPE_FP32, 1, { 3 } }, TE_ARG_GRAD } };
	static const struct te_arg alike[] = { { "x", { TE_DTYPE_INT32, 1, { 3 } }, TE_ARG_GRAD } };
	static const struct te_arg plain[] = { { "y", { TE_DTYPE_INT32, 1, { 3 } }, 0 } };
	const struct te_callable good = stage(&spare[1], "b", 0);
	struct te_callable a = stage(&spare[0], "a", 0);
	struct te_graph *g = NULL;

	fails(te_graph_create(NULL, 1, &a, NULL, &g), -EINVAL, "ctx is NULL");
	fails(te_graph_create(ctx, 1, NULL, NULL, &g), -EINVAL, "callables is NULL");
	fails(te_graph_create(ctx, -1, &a, NULL, &g), -EINVAL, "no callables");
	fails(te_graph_create(ctx, 1, &a, NULL, NULL), -EINVAL, "ret_graph is NULL");
	for (int k = 0; k < 3; k++) {
		const uint64_t most = INT64_MAX;

		a.saved_nbytes = most - (k == 2 ? 1023 : 0);
		fails(te_graph_create(ctx, 1 + (k > 0), (struct te_callable[]){ a, a }, NULL, &g),
		      -ENOMEM,
		      k == 1 ? "te_graph_create: the pool needs more than 2^64 bytes" :
			       "te_graph_create: the pool needs ");
	}
	a.saved_nbytes = 0;
	REFUSED(name, NULL, 0, -EINVAL, "callable 1 has no name");
	REFUSED(flags, 6, 0, -EINVAL, "b: unknown flags 0x6");
	REFUSED(nin, -1, 0, -EINVAL, "b has -1 inputs and 1 outputs, and no list of them");
	REFUSED(out, NULL, 0, -EINVAL, "b has 1 inputs and 1 outputs, and no list of them");
	REFUSED(in, flags, 0, -EINVAL, "x of b: unknown flags 0x6");
	REFUSED(in, deep, 0, -TE_ESHAPE, "x of b has");
	REFUSED(in, none_of, 0, -TE_ESHAPE, "x of b has 0 extents");
	REFUSED(out, blank, 0, -EINVAL, "output 0 of b has no name");
	REFUSED(out, alike, 0, -EINVAL, "b has two arguments named x");
	REFUSED(in, typed, TE_GRAPH_CHAIN, -TE_EDTYPE, "a gives y [3] int32, b takes x [3] fp32");
	REFUSED(nin, 0, TE_GRAPH_CHAIN, -EINVAL, "b has no input to be chained");
	a.out = plain;
	refused(a, good, TE_GRAPH_CHAIN, -EINVAL, "a reads no gradient of y, b writes one of x");
	a.nout = 0;
	refused(a, good, TE_GRAPH_CHAIN, -EINVAL, "a has no output to be chained");
	ck_assert_int_eq(none.n + spare[0].released + spare[1].released, 0);
}
END_TEST

/* ---- a model is left as it was ---- */

#define REGIONS 400

struct kept {
	int n;
	struct te_region region[REGIONS];
	void *v[REGIONS];
};

static int keep(void *arg, const struct te_region *r)
{
	struct kept *k = arg;

	if (k->n == REGIONS)
		return -ENOMEM;
	k->region[k->n] = *r;
	k->v[k->n] = malloc(r->nbytes + 1);
	if (r->kind == TE_REGION_HOST)
		memcpy(k->v[k->n++], r->ptr, r->nbytes);
	else
		DO(te_copy(st, k->v[k->n++], r->ptr, r->nbytes));
	return 0;
}

static void keep_all(struct kept *k, const struct te_plan *plan, const struct te_adamw *opt)
{
	k->n = 0;
	DO(te_plan_regions(plan, keep, k));
	DO(te_adamw_regions(opt, keep, k));
	DO(te_stream_sync(st));
}

static void same_regions(struct kept *a, struct kept *b)
{
	ck_assert_int_eq(a->n, b->n);
	for (int i = 0; i < a->n; i++) {
		ck_assert_msg(a->region[i].ptr == b->region[i].ptr &&
				      a->region[i].nbytes == b->region[i].nbytes &&
				      !memcmp(a->v[i], b->v[i], a->region[i].nbytes),
			      "region %s has changed", a->region[i].name);
		free(b->v[i]);
	}
	b->n = 0;
}

struct model {
	struct te_seq *seq;
	struct te_adamw *opt;
	int nhooks, hook_fails_at;
};

static int model_first(void *arg, struct te_stream *stream)
{
	return te_seq_zero_grads(((struct model *)arg)->seq, stream);
}

static int model_last(void *arg, struct te_stream *stream)
{
	return te_adamw_step(((struct model *)arg)->opt, stream);
}

static int model_regions(void *arg, te_region_fn fn, void *fn_arg)
{
	return te_adamw_regions(((struct model *)arg)->opt, fn, fn_arg);
}

static int model_hook(void *arg, enum te_hook hook, int32_t callable, struct te_stream *stream)
{
	struct model *m = arg;

	(void)hook;
	(void)callable;
	(void)stream;
	return ++m->nhooks == m->hook_fails_at ? -ECANCELED : 0;
}

/* weights, gradients, moments, scales, histories, random state: byte for byte, after a capture and
 * after one that a hook has ended half-way */
START_TEST(a_model_is_left_as_it_was)
{
	static const struct model_shape shape = { 48, 32, 2, 16, 4, 4, 1, 0.2f, 0 };
	static const char *const recipes[] = { "bf16", "fp8-delayed", "fp8-current" };
	const char *recipe = recipes[_i / 2];
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_callable c = TE_CALLABLE_INIT;
	static struct kept before, after;
	struct model m = { .nhooks = 0 };
	struct te_plan *plan, *other;
	struct te_graph *g;
	float *grads;
	size_t n;

	m.seq = model_create(ctx, &shape, 3);
	DO(te_adamw_create(m.seq, NULL, &m.opt));
	DO(te_adamw_set_lr(m.opt, st, 1e-2f));
	/* a step of its own first, so that there is something to lose */
	plan = model_plan(m.seq, &shape, recipe, TE_PLAN_TRAIN);
	model_feed(plan, &shape);
	DO(te_plan_forward(plan, st, 0));
	DO(te_plan_backward(plan, st));
	DO(te_adamw_step(m.opt, st));
	n = (size_t)te_tensor_nelems(te_seq_grads(m.seq));
	grads = malloc(n * sizeof(*grads));
	tt_fill_normal(grads, n, 1);
	DO(te_tensor_write(te_seq_grads(m.seq), grads, n * sizeof(*grads)));
	free(grads);
	other = model_plan(m.seq, &shape, recipe, TE_PLAN_TRAIN | TE_PLAN_EXTERNAL);
	DO(te_callable_from_plan(other, "model", &c));
	o.flags = how[_i % 2];
	o.hook = model_hook;
	o.first = model_first;
	o.last = model_last;
	o.regions = model_regions;
	o.arg = &m;
	keep_all(&before, other, m.opt);
	ck_assert_int_gt(before.n, 10);
	/* 1: nothing has run; 5: half of a run of warm-up; 14: behind warm-up */
	for (int at = 1; at <= 14; at++) {
		m.nhooks = 0;
		m.hook_fails_at = at;
		ck_assert_int_eq(te_graph_create(ctx, 1, &c, &o, &g), -ECANCELED);
		keep_all(&after, other, m.opt);
		same_regions(&before, &after);
	}
	m.hook_fails_at = 0;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	keep_all(&after, other, m.opt);
	same_regions(&before, &after);
	while (before.n)
		free(before.v[--before.n]);
	te_graph_unref(g);
	te_plan_unref(plan);
	te_plan_unref(other);
	te_adamw_unref(m.opt);
	te_seq_unref(m.seq);
}
END_TEST

/* ---- main gradients ---- */

/* 4 by 4 of one number each: y = x w, dw += dy x, dx = dy w; a product is 4 times that of them */
struct layer {
	struct te_tensor *w, *dw, *minus; /* minus: what a step takes from w for a dw of 1 */
	int zeroes;			  /* first sets dw to zero */
};

static const struct te_spec square = { TE_DTYPE_FP32, 2, { 4, 4 } };
static const struct te_arg layer_in[] = { { "x", { TE_DTYPE_FP32, 2, { 4, 4 } }, TE_ARG_GRAD } };
static const struct te_arg layer_out[] = { { "y", { TE_DTYPE_FP32, 2, { 4, 4 } }, TE_ARG_GRAD } };

static int layer_forward(void *self, const struct te_graph_call *c)
{
	const struct layer *l = self;

	return te_gemm(c->stream, c->in[0], l->w, c->out[0], NULL);
}

static int layer_backward(void *self, const struct te_graph_call *c)
{
	const struct layer *l = self;
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	int r = te_gemm(c->stream, c->out_grad[0], l->w, c->in_grad[0], &o);

	o.beta = 1;
	return r ? r : te_gemm(c->stream, c->out_grad[0], c->in[0], l->dw, &o);
}

static int visit(const struct te_tensor *t, te_region_fn fn, void *arg)
{
	const struct te_region r = { "layer", TE_REGION_DEVICE, te_tensor_data(t),
				     te_tensor_nbytes(t) };

	return fn(arg, &r);
}

static int layer_regions(void *self, te_region_fn fn, void *arg)
{
	return visit(((struct layer *)self)->dw, fn, arg);
}

static int layer_first(void *arg, struct te_stream *stream)
{
	const struct layer *l = arg;

	return l->zeroes ? te_fill(stream, te_tensor_data(l->dw), 0, te_tensor_nbytes(l->dw)) : 0;
}

/* the optimizer: w -= dw */
static int layer_last(void *arg, struct te_stream *stream)
{
	const struct layer *l = arg;
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;

	o.beta = 1;
	return te_gemm(stream, l->dw, l->minus, l->w, &o);
}

static int optimizer_regions(void *arg, te_region_fn fn, void *fn_arg)
{
	return visit(((struct layer *)arg)->w, fn, fn_arg);
}

static void set_all(struct te_tensor *t, float x)
{
	float v[16];

	for (int i = 0; i < 16; i++)
		v[i] = x;
	DO(te_tensor_write(t, v, sizeof(v)));
}

static void all_are(struct te_tensor *t, float x, const char *what, int step)
{
	float v[16];

	DO(te_stream_sync(st));
	DO(te_tensor_read(t, v, sizeof(v)));
	for (int i = 0; i < 16; i++)
		ck_assert_msg(v[i] == x, "step %d: %s is %g, not %g", step, what, (double)v[i],
			      (double)x);
}

static const uint32_t layer_ways[] = {
	TE_GRAPH_EAGER, 0, TE_GRAPH_REUSE, TE_GRAPH_WHOLE, TE_GRAPH_WHOLE | TE_GRAPH_REUSE,
};

/*
 * The trap: a capture puts another buffer in the place of the gradients, and the optimizer goes on
 * with that of the first step; or it clears what was there. With integers every value is
 * known: neither stale nor doubled, in the first step and in later ones.
 */
START_TEST(main_gradients_add_up_where_the_optimizer_reads)
{
	const int zeroes = _i % 2;
	struct layer l = { .zeroes = zeroes };
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_callable c[2];
	float w = 5, dw = 100; /* dw: from before the capture */
	struct te_graph *g;

	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, square.shape, NULL, &l.w));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, square.shape, NULL, &l.dw));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 2, square.shape, NULL, &l.minus));
	set_all(l.w, w);
	set_all(l.dw, dw);
	set_all(l.minus, -0.25f);
	for (int i = 0; i < 2; i++) {
		c[i] = (struct te_callable)TE_CALLABLE_INIT;
		c[i].name = "layer";
		c[i].self = &l;
		c[i].nin = c[i].nout = 1;
		c[i].in = layer_in;
		c[i].out = layer_out;
		c[i].forward = layer_forward;
		c[i].backward = layer_backward;
		c[i].regions = layer_regions;
	}
	so.nmicro = 2;
	DO(te_schedule_create(&so, &o.schedule));
	o.flags = TE_GRAPH_CHAIN | layer_ways[_i / 2];
	o.first = layer_first;
	o.last = layer_last;
	o.regions = optimizer_regions;
	o.arg = &l;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	te_schedule_unref(o.schedule);
	all_are(l.dw, dw, "the gradient", -1);
	all_are(l.w, w, "the weight", -1);
	for (int step = 0; step < 3; step++) {
		const float x[2] = { (float)(2 + step), 3 }, dy[2] = { -1, (float)(1 + step) };

		for (int i = 0; i < 2; i++) {
			set_all(te_graph_tensor(g, i, "x"), x[i]);
			set_all(te_graph_grad(g, i, "y"), dy[i]);
		}
		DO(te_graph_run(g, st));
		for (int i = 0; i < 2; i++) {
			all_are(te_graph_tensor(g, i, "y"), 4 * x[i] * w, "y", step);
			all_are(te_graph_grad(g, i, "x"), 4 * dy[i] * w, "dx", step);
		}
		dw = (zeroes ? 0 : dw) + 4 * dy[0] * x[0] + 4 * dy[1] * x[1];
		w -= dw;
		all_are(l.dw, dw, "the gradient", step);
		all_are(l.w, w, "the weight", step);
	}
	te_graph_unref(g);
	te_tensor_unref(l.w);
	te_tensor_unref(l.dw);
	te_tensor_unref(l.minus);
}
END_TEST

/* ---- work behind the event, in any pass ---- */

struct gate {
	struct te_event *mid;
	enum te_sched_kind at; /* the pass with the gate */
};

static int gate_pass(struct gate *gate, const struct te_graph_call *c, enum te_sched_kind kind)
{
	int r = te_fill_u32(c->stream, te_tensor_data(c->out[0]), 50u + (uint32_t)kind, 4);

	if (r || kind != gate->at)
		return r;
	r = te_event_record_external(gate->mid, c->stream);
	if (!r)
		r = te_host_call(c->stream, tt_gate_wait, NULL, 0);
	return r ? r : te_fill_u32(c->stream, te_tensor_data(c->out[0]), 50u + (uint32_t)kind, 4);
}

static int gate_forward(void *self, const struct te_graph_call *c)
{
	return gate_pass(self, c, TE_SCHED_F);
}

static int gate_backward(void *self, const struct te_graph_call *c)
{
	return gate_pass(self, c, TE_SCHED_B);
}

static int gate_dw(void *self, const struct te_graph_call *c)
{
	return gate_pass(self, c, TE_SCHED_W);
}

/* any pass may run aside, and its stream go on at the event or at the end */
START_TEST(every_pass_may_trail)
{
	static int (*const replay[])(struct te_graph *, int32_t, struct te_stream *,
				     const struct te_replay *) = { te_graph_forward,
								   te_graph_backward,
								   te_graph_backward_dw };
	struct gate gate = { .at = (enum te_sched_kind)_i };
	struct te_callable c = TE_CALLABLE_INIT;
	struct te_replay r = TE_REPLAY_INIT;
	struct te_stream *side;
	struct te_graph *g;

	DO(te_event_create(ctx, &gate.mid));
	DO(te_stream_create(ctx, &side));
	c.name = "gate";
	c.self = &gate;
	c.nout = 1;
	c.out = stage_out;
	c.forward = gate_forward;
	c.backward = gate_backward;
	c.backward_dw = gate_dw;
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	r.side = side;
	r.npos = 1;
	r.pos = (struct te_tensor *[]){ te_graph_grad(g, 0, "y") };
	for (int round = 0; round < 2; round++)
		for (int k = 0; k < 3; k++) {
			const int trails = k == _i && !round;

			r.npos = k == TE_SCHED_B;
			r.until = trails ? gate.mid : NULL;
			if (trails)
				tt_gate_close();
			DO(replay[k](g, 0, st, &r));
			DO(te_stream_sync(st));
			ck_assert_int_eq(te_stream_query(side), !trails);
			ck_assert_uint_eq(value_of(te_graph_tensor(g, 0, "y")), 50u + (uint32_t)k);
			tt_gate_open();
		}
	DO(te_stream_sync(side));
	ck_assert(!tt_gate_timed_out());
	te_graph_unref(g);
	te_event_unref(gate.mid);
	te_stream_unref(side);
}
END_TEST

static uint64_t held(void)
{
	struct te_mem_info mi = TE_MEM_INFO_INIT;

	DO(te_ctx_mem_info(ctx, &mi));
	return mi.measured_nbytes;
}

/*
 * A graph goes while its latest replay trails, and while no stream captures, that of the replay
 * does, or the one that trails: the pool stays until all has run, and nothing gets into the
 * capture. Whether it has gone by then is told by tt_teardown.
 */
START_TEST(the_pool_goes_behind_all_that_uses_it)
{
	struct gate gate = { .at = TE_SCHED_F };
	struct te_callable c = TE_CALLABLE_INIT;
	struct te_replay r = TE_REPLAY_INIT;
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_recording *rec = NULL;
	struct te_stream *side, *captures;
	struct te_graph *g;
	uint64_t before, pool;
	uint32_t *word;

	DO(te_mem_alloc(st, 4, (void **)&word));
	DO(te_event_create(ctx, &gate.mid));
	DO(te_stream_create(ctx, &side));
	DO(te_stream_sync(st));
	before = held();
	c.name = "gate";
	c.self = &gate;
	c.nout = 1;
	c.out = stage_out;
	c.forward = gate_forward;
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	pool = held() - before;
	r.side = side;
	r.until = gate.mid;
	captures = _i % 3 == 1 ? st : _i % 3 == 2 ? side : NULL;
	for (int round = 0; round < 2; round++) {
		tt_gate_close();
		DO(te_graph_forward(g, 0, st, &r));
		if (!round)
			tt_gate_open();
	}
	if (captures) {
		DO(te_capture_begin(captures));
		DO(te_fill(captures, word, 0, 4));
	}
	if (_i < 3 && !strcmp(backend, "host")) {
		DO(te_graph_reset(g));
		ck_assert_uint_ge(held(), before + pool);
		tt_gate_open_later(30);
	} else {
		/* a stream of the host goes when it is idle, recorded host calls of a GPU too */
		tt_gate_open_later(30);
		if (_i < 3)
			DO(te_graph_reset(g));
		else
			g = te_graph_unref(g);
	}
	if (captures) {
		DO(te_capture_end(captures, &rec));
		DO(te_recording_info(rec, &info));
		ck_assert_uint_eq(info.nnodes, 1);
	}
	DO(te_ctx_sync(ctx));
	ck_assert(!tt_gate_timed_out());
	if (!strcmp(backend, "host"))
		ck_assert_uint_eq(held(), before);
	te_recording_unref(rec);
	te_graph_unref(g);
	te_event_unref(gate.mid);
	te_stream_unref(side);
	DO(te_mem_free(st, word));
}
END_TEST

Suite *rules_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);
	TCase *c = tt_case(s, "capture", "graph");

	backend = on;
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, whichever_call_fails_is_named, 0, 4 * TT_LEN(pipes));
	tcase_add_loop_test(c, hooks_are_called_in_this_order, 0, 6 * TT_LEN(pipes));
	tcase_add_test(c, weight_gradients_are_passes_of_their_own);
	tcase_add_test(c, callables_are_checked);
	tcase_add_loop_test(c, a_model_is_left_as_it_was, 0, 6);
	c = tt_case(s, "arguments", "graph");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_test(c, named_arguments_come_in_any_order);
	tcase_add_test(c, static_tensors_may_be_given);
	tcase_add_loop_test(c, wrong_arguments_are_named, 0, TT_LEN(wrong));
	tcase_add_test(c, wrong_gradients_are_named);
	c = tt_case(s, "replay", "graph");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_loop_test(c, the_first_micro_batch_is_to_be_said, 0, TT_LEN(telling_flags));
	tcase_add_test(c, each_graph_has_its_own_flag);
	tcase_add_test(c, other_ways_to_replay_are_refused);
	tcase_add_test(c, a_capturing_stream_is_left_alone);
	tcase_add_test(c, a_failed_replay_is_remembered);
	tcase_add_loop_test(c, main_gradients_add_up_where_the_optimizer_reads, 0,
			    2 * TT_LEN(layer_ways));
	tcase_add_loop_test(c, every_pass_may_trail, 0, 3);
	tcase_add_loop_test(c, the_pool_goes_behind_all_that_uses_it, 0, 6);
	return s;
}
