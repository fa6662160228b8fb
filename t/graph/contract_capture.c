/*
 * t/graph/contract_capture.c - te_graph_create(3): the exact order of the functions and hooks that
 * it calls, the failure of each of these calls, what it refuses, and that it restores all regions.
 */
#include "config.h"

#include <te/errno.h>
#include <te/optim.h>

#include "contract_lib.h"
#include "t/plan/plan_model.h"

/* ---- all that happens while a pipeline is captured ---- */

#define MOST 160

/* "forward of b (chunk 2, micro-batch 1)" */
static void step_name(const struct pipeline *p, const struct te_sched_step *s, char *dst, size_t n)
{
	static const char *const pass[] = { "forward", "backward", "backward_dw" };

	snprintf(dst, n, "%s of %s (chunk %d, micro-batch %d)", pass[s->kind],
		 p->c[s->callable].name, (int)s->chunk + 1, (int)s->micro + 1);
}

/* what is called, in order: "warm-up of forward of a (...)", "the first function" and the like */
struct event {
	char text[112];
};

static int events(const struct pipeline *p, int hooks, struct event *e)
{
	const int whole = !!(p->o.flags & TE_GRAPH_WHOLE);
	struct te_sched_step s;
	int n = 0;

	if (hooks)
		snprintf(e[n++].text, sizeof(e->text), "the hook before warm-up: ");
	for (int w = 0; w <= p->o.nwarmup; w++) {
		const int captures = w == p->o.nwarmup, edges = !hooks && (!captures || whole);

		if (captures && hooks)
			snprintf(e[n++].text, sizeof(e->text), "the hook after warm-up: ");
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
					 "te_graph_create: %s%s of %s: ",
					 !hooks ? "" : k ? "the hook after " : "the hook before ",
					 captures ? "capture" : "warm-up", step);
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

/*
 * Each hook before something is followed by the hook after the same, unless it failed itself, and
 * after a failure of a hook only hooks that complete a pair are called.
 */
static void hooks_are_paired(const char *log)
{
	int open[3][2], depth = 0, failed = 0, hook, callable, len;

	for (; sscanf(log, "%d:%d%n", &hook, &callable, &len) == 2; log += len + 1) {
		const int fails = log[len] == '!';

		if (hook % 2) { /* TE_HOOK_POST_WARMUP, TE_HOOK_FORWARD, TE_HOOK_BACKWARD */
			ck_assert_int_gt(depth, 0);
			depth--;
			ck_assert_int_eq(open[depth][0], hook - 1);
			ck_assert_int_eq(open[depth][1], callable);
		} else {
			ck_assert(!failed);
			open[depth][0] = hook;
			open[depth][1] = callable;
			depth += !fails;
		}
		failed |= fails;
		log += fails;
	}
	ck_assert_str_eq(log, "");
	ck_assert_int_eq(depth, 0);
}

static const uint32_t how[] = { 0, TE_GRAPH_WHOLE };

CTX_CASE(capture, "graph");

/* each call of warm-up and capture fails once, of functions and of hooks; hooks stay paired */
TEST_EACH(capture, whichever_call_fails_is_named, 4 * PIPES)
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
		p.log[0] = '\0';
		fails(te_graph_create(ctx, p.n, p.c, &p.o, &p.g), hooks ? -ECANCELED : -EIO,
		      e[k - 1].text);
		ck_assert_ptr_null(p.g);
		ck_assert_int_ge(p.nhooks, hooks ? k : 2);
		hooks_are_paired(p.log);
		if (!hooks)
			ck_assert_int_eq(p.calls.n, k);
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

/* the exact list, with no, one and three runs of warm-up; replays add nothing to it */
TEST_EACH(capture, hooks_are_called_in_this_order, 6 * PIPES)
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

/* no schedule: forwards, backwards reversed, then the weight gradients, as far as there are */
TEST(capture, weight_gradients_are_passes_of_their_own)
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
	      "a leaves weight gradients to backward_dw, and the schedule has no entry for weight "
	      "gradients of chunk 1");
	p.o.schedule = NULL;
	te_schedule_unref(order);
	pipeline_destroy(&p);
}

/* ---- what te_graph_create refuses ---- */

static struct calls none;
static struct stage spare[2];

/* b comes after a in a chain */
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

TEST(capture, callables_are_checked)
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

/* ---- gradients that are declared are written ---- */

/* backward writes words [from, to) of its 3-word gradient by each of two copies */
struct writer {
	struct stage stage;
	int from[2], to[2];
	int by_host, in_dw;
};

static int writer_write(const struct writer *w, const struct te_graph_call *c)
{
	uint32_t *dx = te_tensor_data(c->in_grad[0]), *dy = te_tensor_data(c->out_grad[0]);
	int r = 0;

	for (int k = 0; k < 2 && !r; k++)
		r = te_copy(c->stream, dx + w->from[k], dy + w->from[k],
			    4 * (size_t)(w->to[k] - w->from[k]));
	return r;
}

static void nothing(void *arg)
{
}

static int writer_backward(void *self, const struct te_graph_call *c)
{
	const struct writer *w = self;

	if (w->by_host)
		return te_host_call(c->stream, nothing, NULL, 0);
	return w->in_dw ? 0 : writer_write(w, c);
}

static int writer_dw(void *self, const struct te_graph_call *c)
{
	const struct writer *w = self;

	return w->in_dw ? writer_write(w, c) : 0;
}

static const struct {
	int from[2], to[2], by_host, in_dw;
	int nbytes; /* that are written, as far as is known; -1: not known */
} writes[] = {
	{ { 0, 0 }, { 3, 0 }, 0, 0, 12 }, { { 2, 0 }, { 3, 2 }, 0, 0, 12 },
	{ { 0, 1 }, { 2, 3 }, 0, 0, 12 }, { { 0, 0 }, { 0, 0 }, 1, 0, -1 },
	{ { 0, 0 }, { 0, 0 }, 0, 0, 0 },  { { 0, 0 }, { 2, 1 }, 0, 0, 8 },
	{ { 0, 2 }, { 1, 3 }, 0, 0, 8 },  { { 1, 2 }, { 3, 3 }, 0, 0, 8 },
	{ { 0, 0 }, { 3, 3 }, 0, 1, 0 },
};

static const uint32_t writer_flags[] = { 0, TE_GRAPH_REUSE, TE_GRAPH_WHOLE,
					 TE_GRAPH_WHOLE | TE_GRAPH_REUSE };

/*
 * A gradient that backward leaves unwritten holds what was in the memory: with TE_GRAPH_REUSE that
 * is another tensor's, and other passes of a whole graph do write there. What a host call writes is
 * unknown.
 */
TEST_EACH(capture, gradients_are_written_in_full, 4 * TT_LEN(writes))
{
	const int way = _i / 4;
	const uint32_t flags = TE_GRAPH_CHAIN | writer_flags[_i % 4];
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct calls calls = { 0 };
	struct writer w = { .stage = { .calls = &calls } };
	struct te_callable c[3];
	struct te_graph *g = NULL;
	char said[192];

	DO(te_mem_alloc(st, 4, (void **)&w.stage.word));
	memcpy(w.from, writes[way].from, sizeof(w.from));
	memcpy(w.to, writes[way].to, sizeof(w.to));
	w.by_host = writes[way].by_host;
	w.in_dw = writes[way].in_dw;
	for (int i = 0; i < 3; i++)
		c[i] = stage(&w.stage, (const char *[]){ "a", "b", "c" }[i], 0);
	o.flags = flags;
	DO(te_graph_create(ctx, 3, c, &o, &g));
	for (int i = 0; i < 3; i++) {
		struct te_graph *none = NULL;
		struct te_callable was = c[i];

		c[i].self = &w;
		c[i].backward = writer_backward;
		c[i].backward_dw = w.in_dw ? writer_dw : NULL;
		c[i].regions = NULL;
		c[i].release = NULL;
		c[i].forward = was.forward;
		if (writes[way].nbytes == 12 || writes[way].nbytes < 0) {
			DO(te_graph_create(ctx, 3, c, &o, &none));
			te_graph_unref(none);
			c[i] = was;
			continue;
		}
		for (int update = 0; update < 2 - w.in_dw; update++) {
			snprintf(said, sizeof(said),
				 "te_graph_%s: capture of backward of %s (chunk 1, micro-batch 1): "
				 "backward writes %d of the 12 bytes of the gradient of x",
				 update ? "update" : "create", was.name, writes[way].nbytes);
			fails(update ? te_graph_update(g, 3, c, NULL) :
				       te_graph_create(ctx, 3, c, &o, &none),
			      -EINVAL, said);
			ck_assert_ptr_null(none);
		}
		c[i] = was;
		/* the graph works as before the refused update */
		set_word(te_tensor_data(te_graph_tensor(g, 0, "x")), 5);
		set_word(te_tensor_data(te_graph_grad(g, 2, "y")), 6);
		DO(te_graph_run(g, st));
		ck_assert_uint_eq(value_of(te_graph_grad(g, 0, "x")), 6);
	}
	te_graph_unref(g);
	DO(te_mem_free(st, w.stage.word));
}

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

	return ++m->nhooks == m->hook_fails_at ? -ECANCELED : 0;
}

/* weights, gradients, moments, scales, histories, random state: byte for byte, after a capture and
 * after one that a hook has ended half-way */
TEST_EACH(capture, a_model_is_left_as_it_was, 8)
{
	static const struct model_shape shape = { 48, 32, 2, 16, 4, 4, 1, 0.2f, 0 };
	static const char *const recipes[] = { "bf16", "fp8-delayed", "fp8-current",
					       "fp8-block" };
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
	/* 1: nothing has run; 5: half of a run of warm-up; 14: after warm-up */
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
