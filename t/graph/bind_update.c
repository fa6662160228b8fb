/*
 * t/graph/bind_update.c - te_graph_bind(3): the caller's memory for arguments; and
 * te_graph_update(3): other callables.
 */
#include "config.h"

#include <te/errno.h>
#include <te/graph.h>
#include "libtecore/base/private.h"

#include "caster.h"
#include "t/plan/plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"

/* n values from base on, small integers: exact in BF16 */
static struct te_tensor *numbers(enum te_dtype dtype, int64_t n, int base)
{
	float *v = malloc((size_t)n * sizeof(*v));
	struct te_tensor *t;

	for (int64_t i = 0; i < n; i++)
		v[i] = (float)(base + (int)(i % 7));
	DO(te_tensor_create(ctx, dtype, 1, &n, NULL, &t));
	tt_tensor_set(t, v);
	free(v);
	return t;
}

static void holds(struct te_tensor *t, int base, const char *what)
{
	float *v;

	DO(te_stream_sync(st));
	v = tt_tensor_get(t);
	for (int64_t i = 0; i < te_tensor_nelems(t); i++)
		ck_assert_msg(v[i] == (float)(base ? base + (int)(i % 7) : 0),
			      "%s: element %d is %g, not %d + %d", what, (int)i, (double)v[i], base,
			      (int)(i % 7));
	free(v);
}

static void replay(struct te_graph *g)
{
	DO(te_graph_forward(g, 0, st, NULL));
	DO(te_graph_backward(g, 0, st, NULL));
}

static struct te_graph_report report_of(const struct te_graph *g)
{
	struct te_graph_report r = TE_GRAPH_REPORT_INIT;

	DO(te_graph_report(g, &r));
	return r;
}

static const uint32_t ways[] = { 0, TE_GRAPH_REUSE, TE_GRAPH_EAGER };

CTX_CASE(bind, "graph");

/* all four arguments, one after the other to two buffers and back to the graph's own */
TEST_EACH(bind, bound_memory_is_read_and_written, TT_LEN(ways))
{
	const int64_t n = 1000;
	struct caster a;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, n, 0);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x[2], *y[2], *dx[2], *dy[2], *own[4];
	enum te_bind how[4];
	struct te_graph *g;

	o.flags = ways[_i];
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	own[0] = te_tensor_ref(te_graph_tensor(g, 0, "x"));
	own[1] = te_tensor_ref(te_graph_tensor(g, 0, "y"));
	own[2] = te_tensor_ref(te_graph_grad(g, 0, "x"));
	own[3] = te_tensor_ref(te_graph_grad(g, 0, "y"));
	for (int i = 0; i < 2; i++) {
		x[i] = numbers(TE_DTYPE_FP32, n, 10 + 20 * i);
		y[i] = numbers(TE_DTYPE_BF16, n, 100);
		dx[i] = numbers(TE_DTYPE_FP32, n, 100);
		dy[i] = numbers(TE_DTYPE_BF16, n, 20 + 20 * i);
	}
	for (int round = 0; round < 4; round++) {
		int i = round % 2;

		DO(te_graph_bind(g, 0, "x", 0, x[i], &how[0]));
		DO(te_graph_bind(g, 0, "y", 0, y[i], &how[1]));
		DO(te_graph_bind(g, 0, "x", TE_BIND_GRAD, dx[i], &how[2]));
		DO(te_graph_bind(g, 0, "y", TE_BIND_GRAD, dy[i], &how[3]));
		replay(g);
		holds(y[i], 10 + 20 * i, "y");
		holds(dx[i], 20 + 20 * i, "dx");
		holds(x[i], 10 + 20 * i, "x");
		holds(y[!i], round ? 10 + 20 * !i : 100, "the y of before");
		ck_assert_ptr_eq(te_graph_tensor(g, 0, "x"), x[i]);
		holds(own[0], 0, "the graph's own x");
		holds(own[1], 0, "the graph's own y");
		ck_assert_int_eq(report_of(g).npatched, 4);
		for (int k = 0; k < 4; k++)
			ck_assert_int_eq(how[k], TE_BIND_PATCHED);
	}
	DO(te_graph_bind(g, 0, "x", 0, NULL, NULL));
	DO(te_graph_bind(g, 0, "y", 0, NULL, NULL));
	DO(te_graph_bind(g, 0, "x", TE_BIND_GRAD, NULL, NULL));
	DO(te_graph_bind(g, 0, "y", TE_BIND_GRAD, NULL, NULL));
	ck_assert_int_eq(report_of(g).npatched + report_of(g).ncopied, 0);
	ck_assert_ptr_eq(te_graph_tensor(g, 0, "x"), own[0]);
	DO(te_copy(st, te_tensor_data(own[0]), te_tensor_data(x[0]), te_tensor_nbytes(x[0])));
	replay(g);
	holds(own[1], 10, "the graph's own y");
	holds(y[0], 10, "y");
	holds(y[1], 30, "y");
	/* what is bound to, the graph keeps */
	DO(te_graph_bind(g, 0, "x", 0, x[1], NULL));
	te_tensor_unref(x[1]);
	replay(g);
	holds(own[1], 30, "y of a tensor that only the graph keeps");
	for (int k = 0; k < 4; k++)
		te_tensor_unref(own[k]);
	te_graph_unref(g);
	te_tensor_unref(x[0]);
	for (int i = 0; i < 2; i++) {
		te_tensor_unref(y[i]);
		te_tensor_unref(dx[i]);
		te_tensor_unref(dy[i]);
	}
}

TEST_EACH(bind, whole_graphs_can_be_bound, 2)
{
	const int64_t n = 77;
	struct caster a;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, n, 0);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = numbers(TE_DTYPE_FP32, n, 5), *y = numbers(TE_DTYPE_BF16, n, 1);
	enum te_bind how;
	struct te_graph *g;

	o.flags = TE_GRAPH_WHOLE | (_i ? TE_GRAPH_REUSE : 0);
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	DO(te_graph_bind(g, 0, "x", 0, x, &how));
	ck_assert_int_eq(how, _i ? TE_BIND_COPIED : TE_BIND_PATCHED);
	DO(te_graph_bind(g, 0, "y", 0, y, &how));
	DO(te_graph_run(g, st));
	holds(y, 5, "y");
	te_graph_unref(g);
	te_tensor_unref(x);
	te_tensor_unref(y);
}

/* a plan's tokens and targets from buffers that take turns, as a loader fills them */
TEST_EACH(bind, a_plan_reads_bound_tokens, 2)
{
	const struct model_shape m = { 48, 32, 2, 16, 4, 4, 2, 0, 0 };
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *t[2][2];
	struct te_graph *g[2];
	struct te_seq *seq[2];

	o.flags = _i ? TE_GRAPH_WHOLE : 0;
	for (int w = 0; w < 2; w++) {
		struct te_callable c = TE_CALLABLE_INIT;
		struct te_plan *p;

		seq[w] = model_create(ctx, &m, 3);
		p = model_plan(seq[w], &m, "fp8-current", TE_PLAN_TRAIN | TE_PLAN_EXTERNAL);
		DO(te_callable_from_plan(p, "model", &c));
		te_plan_unref(p);
		DO(te_graph_create(ctx, 1, &c, &o, &g[w]));
	}
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 2; k++) {
			int64_t shape[2] = { m.batch, m.seqlen };
			int32_t v[32];

			for (int j = 0; j < 32; j++)
				v[j] = (int32_t)tt_rand_int(0, m.vocab - 1);
			DO(te_tensor_create(ctx, TE_DTYPE_INT32, 2, shape, NULL, &t[i][k]));
			DO(te_tensor_write(t[i][k], v, sizeof(v)));
		}
	for (int step = 0; step < 4; step++) {
		static const char *const name[] = { "x", "targets" };
		size_t nbytes = te_tensor_nbytes(te_seq_grads(seq[0]));
		char *grads[2];
		float loss[2];

		for (int k = 0; k < 2; k++) {
			struct te_tensor *from = t[step % 2][k];

			DO(te_graph_bind(g[0], 0, name[k], 0, from, NULL));
			DO(te_copy(st, te_tensor_data(te_graph_tensor(g[1], 0, name[k])),
				   te_tensor_data(from), te_tensor_nbytes(from)));
		}
		for (int w = 0; w < 2; w++) {
			DO(te_seq_zero_grads(seq[w], st));
			DO(te_graph_run(g[w], st));
			DO(te_stream_sync(st));
			DO(te_tensor_read(te_graph_tensor(g[w], 0, "out"), &loss[w],
					  sizeof(float)));
			grads[w] = malloc(nbytes);
			DO(te_tensor_read(te_seq_grads(seq[w]), grads[w], nbytes));
		}
		ck_assert(loss[0] == loss[1] && loss[0] > 0);
		ck_assert_mem_eq(grads[0], grads[1], nbytes);
		free(grads[0]);
		free(grads[1]);
	}
	for (int w = 0; w < 2; w++) {
		te_graph_unref(g[w]);
		te_seq_unref(seq[w]);
		te_tensor_unref(t[w][0]);
		te_tensor_unref(t[w][1]);
	}
}

/* two callables of a whole graph, whose arguments are bound to the same memory or to each other's:
 * moving one leaves the other where it is */
TEST(bind, arguments_may_share_memory)
{
	const int64_t n = 100;
	struct caster a[2];
	struct te_callable c[2] = { caster(&a[0], TE_DTYPE_BF16, n, 0),
				    caster(&a[1], TE_DTYPE_BF16, n, 0) };
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x[3], *y;
	struct te_graph *g;
	enum te_bind how;

	a[0].out.spec.dtype = TE_DTYPE_FP32;
	o.flags = TE_GRAPH_WHOLE;
	for (int i = 0; i < 3; i++)
		x[i] = numbers(TE_DTYPE_FP32, n, 10 * (i + 1));
	DO(te_graph_create(ctx, 2, c, &o, &g));
	y = te_tensor_ref(te_graph_tensor(g, 0, "y"));
	for (int round = 0; round < 3; round++) {
		DO(te_graph_bind(g, 0, "x", 0, x[0], NULL));
		DO(te_graph_bind(g, 1, "x", 0, x[0], NULL));
		DO(te_graph_run(g, st));
		holds(te_graph_tensor(g, 0, "y"), 10, "the first y of one tensor for both");
		holds(te_graph_tensor(g, 1, "y"), 10, "the second y of one tensor for both");
		DO(te_graph_bind(g, 1, "x", 0, x[1], NULL));
		DO(te_graph_run(g, st));
		holds(te_graph_tensor(g, 0, "y"), 10, "the y of the x that stayed");
		holds(te_graph_tensor(g, 1, "y"), 20, "the y of the x that moved");
		/* what the same graph writes is copied, as it was before the replay */
		DO(te_graph_bind(g, 1, "x", 0, y, &how));
		ck_assert_int_eq(how, TE_BIND_COPIED);
		DO(te_graph_bind(g, 0, "x", 0, x[1], NULL));
		DO(te_graph_run(g, st));
		holds(te_graph_tensor(g, 1, "y"), 10, "the y of the other's y");
		holds(y, 20, "the first y of the second tensor");
		DO(te_graph_bind(g, 0, "x", 0, x[0], NULL));
		DO(te_graph_run(g, st));
		holds(te_graph_tensor(g, 1, "y"), 20, "the y of what the other's y was");
		/* the first y goes elsewhere, what was bound to where it lay does not */
		DO(te_graph_bind(g, 0, "y", 0, x[2], NULL));
		DO(te_graph_bind(g, 0, "x", 0, x[1], NULL));
		DO(te_graph_run(g, st));
		holds(x[2], 20, "the first y, elsewhere");
		holds(te_graph_tensor(g, 1, "y"), 10, "the y of where the other's y lay");
		DO(te_graph_bind(g, 0, "y", 0, NULL, NULL));
		DO(te_graph_bind(g, 1, "x", 0, NULL, NULL));
		DO(te_graph_run(g, st));
		holds(y, 20, "the first y, where it was");
	}
	te_graph_unref(g);
	te_tensor_unref(y);
	for (int i = 0; i < 3; i++)
		te_tensor_unref(x[i]);
}

/* what is bound to memory that another argument left does not keep that one from coming back */
TEST_EACH(bind, the_way_back_stays_free, 2)
{
	const int64_t n = 100;
	const uint32_t in_order = _i ? TE_GRAPH_SERIAL : 0;
	struct caster a;
	struct te_callable c = caster(&a, TE_DTYPE_FP32, n, 0);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *own, *y = numbers(TE_DTYPE_FP32, n, 0);
	enum te_bind left, how;
	struct te_graph *g;

	o.flags = in_order;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	own = te_tensor_ref(te_graph_tensor(g, 0, "y"));
	DO(te_graph_bind(g, 0, "y", 0, y, &left));
	DO(te_graph_bind(g, 0, "x", 0, own, &how));
	ck_assert_int_eq(left, TE_BIND_PATCHED);
	ck_assert_int_eq(how, in_order ? TE_BIND_PATCHED : TE_BIND_COPIED);
	for (int home = 0; home < 2; home++) {
		struct te_tensor *v = numbers(TE_DTYPE_FP32, n, 50 + home);

		DO(te_copy(st, te_tensor_data(own), te_tensor_data(v), te_tensor_nbytes(v)));
		replay(g);
		holds(home ? own : y, 50 + home, "y");
		DO(te_graph_bind(g, 0, "y", 0, NULL, NULL));
		ck_assert_ptr_eq(te_graph_tensor(g, 0, "y"), own);
		te_tensor_unref(v);
	}
	/* y is at home, and reads and writes there keep to an order or are copied */
	DO(te_graph_bind(g, 0, "x", 0, NULL, NULL));
	te_graph_unref(g);
	te_tensor_unref(own);
	te_tensor_unref(y);
}

/* a view of n elements that holds numbers from base on */
static struct te_tensor *view_of(struct te_tensor *all, int64_t offset, int64_t n, int base)
{
	struct te_tensor *from = numbers(TE_DTYPE_FP32, n, base), *view;

	DO(te_tensor_view(all, offset, 1, &n, &view));
	DO(te_copy(st, te_tensor_data(view), te_tensor_data(from), te_tensor_nbytes(from)));
	DO(te_stream_sync(st));
	te_tensor_unref(from);
	return view;
}

/* kernels were chosen for aligned memory: other memory is copied, that time */
TEST(bind, what_is_aligned_otherwise_is_copied)
{
	const int64_t n = 99;
	struct caster a;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, n, 0);
	struct te_tensor *all = numbers(TE_DTYPE_FP32, 3 * n, 0);
	struct te_tensor *odd = view_of(all, 1, n, 10), *even = view_of(all, 104, n, 20);
	struct te_tensor *x = numbers(TE_DTYPE_FP32, n, 30);
	struct te_replay given = TE_REPLAY_INIT;
	struct te_graph *g;
	enum te_bind how;

	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	given.npos = 1;
	given.pos = &x;
	for (int round = 0; round < 3; round++) {
		DO(te_graph_bind(g, 0, "x", 0, odd, &how));
		ck_assert_int_eq(how, TE_BIND_COPIED);
		ck_assert_int_eq(report_of(g).ncopied, 1);
		ck_assert_int_eq(report_of(g).npatched, 0);
		replay(g);
		holds(te_graph_tensor(g, 0, "y"), 10, "y of the odd x");
		/* what is given for one replay comes before what is bound */
		DO(te_graph_forward(g, 0, st, &given));
		DO(te_graph_backward(g, 0, st, NULL));
		holds(te_graph_tensor(g, 0, "y"), 30, "y of the x that was given");
		holds(odd, 10, "the bound x");
		DO(te_graph_bind(g, 0, "x", 0, even, &how));
		ck_assert_int_eq(how, TE_BIND_PATCHED);
		ck_assert_int_eq(report_of(g).npatched, 1);
		ck_assert_int_eq(report_of(g).ncopied, 0);
		replay(g);
		holds(te_graph_tensor(g, 0, "y"), 20, "y of the even x");
	}
	te_graph_unref(g);
	te_tensor_unref(odd);
	te_tensor_unref(even);
	te_tensor_unref(all);
	te_tensor_unref(x);
}

/* a caster whose backward pass also copies x to memory of the model */
struct keeper {
	struct caster caster; /* first: caster_forward gets it */
	struct te_tensor *kept;
};

static int keeper_backward(void *self, const struct te_graph_call *c)
{
	const struct keeper *k = self;
	int r = te_cast(c->stream, c->out_grad[0], c->in_grad[0]);

	return r ? r :
		   te_copy(c->stream, te_tensor_data(k->kept), te_tensor_data(c->in[0]),
			   te_tensor_nbytes(c->in[0]));
}

/*
 * Forward could read the memory that backward writes, but backward cannot: x is copied in both. Of
 * the attempt nothing is left, so without a binding forward reads the graph's own x again.
 */
TEST(bind, what_one_pass_refuses_is_copied_in_all)
{
	const int64_t n = 64;
	struct keeper k;
	struct te_callable c = caster(&k.caster, TE_DTYPE_BF16, n, 0);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *own, *x = numbers(TE_DTYPE_FP32, n, 30);
	enum te_bind how;
	struct te_graph *g;

	k.kept = numbers(TE_DTYPE_FP32, n, 10);
	c.backward = keeper_backward;
	o.nwarmup = 0;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	own = te_graph_tensor(g, 0, "x");
	DO(te_graph_bind(g, 0, "x", 0, k.kept, &how));
	ck_assert_int_eq(how, TE_BIND_COPIED);
	DO(te_graph_bind(g, 0, "x", 0, NULL, NULL));
	ck_assert_ptr_eq(te_graph_tensor(g, 0, "x"), own);
	DO(te_copy(st, te_tensor_data(own), te_tensor_data(x), te_tensor_nbytes(x)));
	replay(g);
	holds(te_graph_tensor(g, 0, "y"), 30, "y of the graph's own x");
	holds(k.kept, 30, "what backward has written");
	te_graph_unref(g);
	te_tensor_unref(k.kept);
	te_tensor_unref(x);
}

/* the memory that a host call was queued with; only one of the host backend can be read there */
struct seen {
	const float *x;
	float *first;
};

static float first_x;

static void look(void *arg)
{
	const struct seen *s = arg;

	*s->first = s->x ? *s->x : 0;
}

static int forward_with_look(void *self, const struct te_graph_call *c)
{
	int host = !strcmp(backend, "host");
	struct seen s = { host ? te_tensor_data(c->in[0]) : NULL, &first_x };
	int r = te_host_call(c->stream, look, &s, sizeof(s));

	return r ? r : caster_forward(self, c);
}

TEST_EACH(bind, what_host_calls_may_use_is_copied, 2)
{
	const int64_t n = 50;
	struct caster a;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, n, 0);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = numbers(TE_DTYPE_FP32, n, 10), *y = numbers(TE_DTYPE_BF16, n, 99);
	struct te_graph *g;
	enum te_bind how;

	c.forward = forward_with_look;
	o.flags = _i ? TE_GRAPH_WHOLE : 0;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	DO(te_graph_bind(g, 0, "x", 0, x, &how));
	ck_assert_int_eq(how, TE_BIND_COPIED);
	DO(te_graph_bind(g, 0, "y", 0, y, &how));
	ck_assert_int_eq(how, TE_BIND_COPIED);
	DO(te_graph_run(g, st));
	holds(y, 10, "y");
	ck_assert(first_x == (strcmp(backend, "host") ? 0 : 10));
	te_graph_unref(g);
	te_tensor_unref(x);
	te_tensor_unref(y);
}

TEST(bind, bindings_are_refused_by_name)
{
	struct caster a[2];
	struct te_callable c[2] = { caster(&a[0], TE_DTYPE_BF16, 8, 0),
				    caster(&a[1], TE_DTYPE_BF16, 8, 0) };
	struct te_tensor *x = numbers(TE_DTYPE_FP32, 8, 1), *short_x = numbers(TE_DTYPE_FP32, 7, 1);
	struct te_tensor *bf = numbers(TE_DTYPE_BF16, 8, 1);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_graph *g;

	a[0].out.spec.dtype = TE_DTYPE_FP32;
	o.flags = TE_GRAPH_CHAIN;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	fails(te_graph_bind(NULL, 0, "x", 0, x, NULL), -EINVAL, "graph is NULL");
	fails(te_graph_bind(g, 0, NULL, 0, x, NULL), -EINVAL, "name is NULL");
	fails(te_graph_bind(g, 2, "x", 0, x, NULL), -EINVAL, "callable 2 of 2");
	fails(te_graph_bind(g, 0, "x", 2, x, NULL), -EINVAL, "unknown flags 0x2");
	fails(te_graph_bind(g, 0, "z", 0, x, NULL), -EINVAL, "cast has no z");
	fails(te_graph_bind(g, 0, "y", 0, x, NULL), -EINVAL, "cast shares y with its neighbour");
	fails(te_graph_bind(g, 1, "x", TE_BIND_GRAD, x, NULL), -EINVAL,
	      "cast shares the gradient of x with its neighbour");
	fails(te_graph_bind(g, 0, "x", 0, short_x, NULL), -TE_ESHAPE,
	      "x of cast is [7] fp32, captured was [8] fp32");
	fails(te_graph_bind(g, 0, "x", 0, bf, NULL), -TE_EDTYPE, "x of cast is [8] bf16");
	DO(te_graph_bind(g, 0, "x", 0, x, NULL));
	DO(te_graph_reset(g));
	fails(te_graph_bind(g, 0, "x", 0, x, NULL), -TE_ESTATE, "has been reset");
	te_graph_unref(g);
	te_tensor_unref(x);
	te_tensor_unref(short_x);
	te_tensor_unref(bf);
}

/* y = x by way of scratch, whose address is left in self; dx = dy */
static int scratch_forward(void *self, const struct te_graph_call *c)
{
	const int64_t n = te_tensor_nelems(c->in[0]);
	struct te_tensor *t;
	int r = te_tensor_wrap(ctx, TE_DTYPE_BF16, 1, &n, c->span[TE_SPAN_F], NULL, NULL, &t);

	if (r)
		return r;
	*(void **)self = c->span[TE_SPAN_F];
	r = te_cast(c->stream, c->in[0], t);
	if (!r)
		r = te_cast(c->stream, t, c->out[0]);
	te_tensor_unref(t);
	return r;
}

static int scratch_backward(void *self, const struct te_graph_call *c)
{
	return te_cast(c->stream, c->out_grad[0], c->in_grad[0]);
}

/* with TE_GRAPH_REUSE scratch of forward has the address of an argument of backward */
TEST(bind, what_shares_an_address_stays)
{
	const int64_t n = 1 << 16; /* patching is cheaper than a copy */
	const struct te_arg in = { "x", { TE_DTYPE_FP32, 1, { n } }, TE_ARG_GRAD };
	const struct te_arg out = { "y", { TE_DTYPE_FP32, 1, { n } }, TE_ARG_GRAD };
	struct te_tensor *x = numbers(TE_DTYPE_FP32, n, 10), *dy = numbers(TE_DTYPE_FP32, n, 20);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_callable c[2];
	void *scratch[2];
	struct te_graph *g;
	int nshared = 0;

	for (int i = 0; i < 2; i++) {
		c[i] = (struct te_callable)TE_CALLABLE_INIT;
		c[i].name = i ? "b" : "a";
		c[i].nin = c[i].nout = 1;
		c[i].in = &in;
		c[i].out = &out;
		c[i].self = &scratch[i];
		c[i].forward = scratch_forward;
		c[i].backward = scratch_backward;
		c[i].span_nbytes[TE_SPAN_F] = 64 * (uint64_t)n;
	}
	o.flags = TE_GRAPH_REUSE;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	for (int i = 0; i < 2; i++) {
		nshared += scratch[i] == te_tensor_data(te_graph_grad(g, i, "y"));
		DO(te_graph_bind(g, i, "y", TE_BIND_GRAD, dy, NULL));
	}
	ck_assert_int_gt(nshared, 0);
	for (int i = 0; i < 2; i++) {
		DO(te_copy(st, te_tensor_data(te_graph_tensor(g, i, "x")), te_tensor_data(x),
			   te_tensor_nbytes(x)));
		DO(te_graph_forward(g, i, st, NULL));
		holds(te_graph_tensor(g, i, "y"), 10, "y");
		holds(dy, 20, "dy after forward");
	}
	for (int i = 1; i >= 0; i--) {
		DO(te_graph_backward(g, i, st, NULL));
		holds(te_graph_grad(g, i, "x"), 20, "dx");
	}
	te_graph_unref(g);
	te_tensor_unref(x);
	te_tensor_unref(dy);
}

/* ---- update ---- */

CTX_CASE(update, "graph");

TEST_EACH(update, another_shape_is_captured_in_place, 2)
{
	struct caster a[3];
	struct te_callable c = caster(&a[0], TE_DTYPE_BF16, 100, 0);
	struct te_graph_change change = TE_GRAPH_CHANGE_INIT;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = numbers(TE_DTYPE_FP32, 5000, 9);
	struct te_replay rep = TE_REPLAY_INIT;
	struct te_graph_report r;
	struct te_graph *g;

	o.flags = _i ? TE_GRAPH_WHOLE : 0;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	DO(te_graph_run(g, st));
	r = report_of(g);
	ck_assert_uint_eq(r.ninstantiated, r.nrecordings);
	ck_assert_uint_eq(r.nupdated, 0);
	/* the same nodes and edges: no new executable */
	c = caster(&a[1], TE_DTYPE_BF16, 5000, 0);
	DO(te_graph_update(g, 1, &c, &change));
	ck_assert_int_eq(change.nin_place, (int)r.nrecordings);
	ck_assert_int_eq(change.ninstantiated, 0);
	ck_assert_int_eq(a[0].released, 1);
	ck_assert_int_eq(a[1].released, 0);
	r = report_of(g);
	ck_assert_uint_eq(r.ninstantiated, r.nrecordings);
	ck_assert_uint_eq(r.nupdated, r.nrecordings);
	ck_assert_uint_eq(r.nlaunches, _i ? 1 : 2);
	ck_assert_int_eq((int)te_tensor_nelems(te_graph_tensor(g, 0, "x")), 5000);
	DO(te_copy(st, te_tensor_data(te_graph_tensor(g, 0, "x")), te_tensor_data(x),
		   te_tensor_nbytes(x)));
	DO(te_graph_run(g, st));
	holds(te_graph_tensor(g, 0, "y"), 9, "y of the other shape");
	/* one node more: that takes a new one */
	c = caster(&a[2], TE_DTYPE_BF16, 5000, 1);
	DO(te_graph_update(g, 1, &c, &change));
	ck_assert_int_eq(change.nin_place, 0);
	ck_assert_int_eq(change.ninstantiated, (int)r.nrecordings);
	ck_assert_uint_eq(report_of(g).ninstantiated, 2 * r.nrecordings);
	rep.npos = 1;
	rep.pos = &x;
	if (_i) {
		DO(te_copy(st, te_tensor_data(te_graph_tensor(g, 0, "x")), te_tensor_data(x),
			   te_tensor_nbytes(x)));
		DO(te_graph_run(g, st));
	} else {
		DO(te_graph_forward(g, 0, st, &rep));
	}
	holds(te_graph_tensor(g, 0, "y"), 9, "y of other nodes");
	ck_assert_int_eq(a[1].released, 1);
	te_graph_unref(g);
	ck_assert_int_eq(a[2].released, 1);
	te_tensor_unref(x);
}

static struct te_tensor *bound[4];

/* all four arguments to the caller's memory; each is patched, and each is used */
static void bind_all(struct te_graph *g, int base)
{
	static const char *const name[] = { "x", "y", "x", "y" };

	for (int k = 0; k < 4; k++)
		DO(te_graph_bind(g, 0, name[k], k < 2 ? 0 : TE_BIND_GRAD, bound[k], NULL));
	ck_assert_int_eq(report_of(g).npatched, 4);
	if (!base)
		return;
	for (int k = 0; k < 4; k += 3) {
		struct te_tensor *from =
			numbers(te_tensor_dtype(bound[k]), te_tensor_nelems(bound[k]), base + k);

		DO(te_copy(st, te_tensor_data(bound[k]), te_tensor_data(from),
			   te_tensor_nbytes(from)));
		DO(te_stream_sync(st));
		te_tensor_unref(from);
	}
	DO(te_graph_run(g, st));
	holds(bound[1], base, "the bound y");
	holds(bound[2], base + 3, "the bound dx");
}

#define NROUNDS (10 + 3 * TT_FEWER(330)) /* the last has as many nodes as the tenth */

/* to the same memory each time, as to that of a new graph; and nothing accumulates */
TEST_EACH(update, after_an_update_memory_is_bound_again, 2)
{
	const int64_t n = 64;
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	struct caster a;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, n, 0);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	int64_t live = 0;
	struct te_graph *g;

	o.flags = _i ? TE_GRAPH_WHOLE : 0;
	o.nwarmup = 0;
	for (int k = 0; k < 4; k++)
		bound[k] = numbers(k % 2 ? TE_DTYPE_BF16 : TE_DTYPE_FP32, n, 0);
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	bind_all(g, 10);
	for (int round = 0; round < NROUNDS; round++) {
		/* twice as many nodes, now and then */
		a.more = round % 3 == 1;
		DO(te_graph_update(g, 1, &c, NULL));
		ck_assert_int_eq(report_of(g).npatched + report_of(g).ncopied, 0);
		bind_all(g, round < 5 || round % 100 == 0 ? 11 + round % 7 : 0);
		if (round != 9 && round != NROUNDS - 1)
			continue;
		DO(te_ctx_sync(ctx));
		DO(te_ctx_mem_info(ctx, &after));
		if (round == 9) {
			live = te__alloc_live();
			before = after;
		}
		ck_assert_int_eq(te__alloc_live(), live);
		ck_assert_uint_eq(after.used_nbytes, before.used_nbytes);
	}
	te_graph_unref(g);
	for (int k = 0; k < 4; k++)
		te_tensor_unref(bound[k]);
}

/* whichever call of the new callable fails, the graph keeps the old one and its tensors. _i: of a
 * whole graph; in a pool of the caller */
TEST_EACH(update, a_failed_update_changes_nothing, 3)
{
	unsigned char *bytes, marks[200];
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	struct caster a, b;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, 100, 0), other;
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = numbers(TE_DTYPE_FP32, 100, 9);
	struct te_graph *g;

	o.flags = _i == 1 ? TE_GRAPH_WHOLE : 0;
	o.pool_nbytes = te_ctx_workspace_nbytes(ctx) + (1 << 20);
	if (_i == 2)
		DO(te_mem_alloc(st, (size_t)o.pool_nbytes, &o.pool));
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	DO(te_graph_bind(g, 0, "x", 0, x, NULL));
	memset(marks, 0x5a, sizeof(marks));
	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &before));
	for (int fail = 1; fail <= 8; fail++) {
		other = caster(&b, TE_DTYPE_BF16, fail % 2 ? 5000 : 50, fail % 3 == 0);
		b.fail_at = fail; /* 1 to 6 in warm-up, 7 and 8 in capture */
		DO(te_fill(st, te_tensor_data(te_graph_tensor(g, 0, "y")), 0x5a, sizeof(marks)));
		fails(te_graph_update(g, 1, &other, NULL), -EIO,
		      fail <= 6 ? "warm-up of" : "capture of");
		ck_assert_int_eq(a.released + b.released, 0);
		bytes = tt_bytes(te_tensor_data(te_graph_tensor(g, 0, "y")), sizeof(marks));
		ck_assert_mem_eq(bytes, marks, sizeof(marks));
		free(bytes);
		DO(te_graph_run(g, st));
		holds(te_graph_tensor(g, 0, "y"), 9, "y after a failed update");
		DO(te_ctx_sync(ctx));
		DO(te_ctx_mem_info(ctx, &after));
		ck_assert_uint_eq(before.used_nbytes, after.used_nbytes);
	}
	other = caster(&b, TE_DTYPE_BF16, 50, 0);
	other.size = 0;
	fails(te_graph_update(g, 1, &other, NULL), -EINVAL, "TE_CALLABLE_INIT");
	fails(te_graph_update(g, 0, &other, NULL), -EINVAL, "no callables");
	fails(te_graph_update(NULL, 1, &other, NULL), -EINVAL, "graph is NULL");
	DO(te_graph_reset(g));
	fails(te_graph_update(g, 1, &c, NULL), -TE_ESTATE, "has been reset");
	te_graph_unref(g);
	te_tensor_unref(x);
	DO(te_mem_free(st, o.pool));
}

/* the previous callable fails too when it is captured again: the graph has failed */
TEST(update, an_update_that_cannot_be_undone_is_remembered)
{
	struct caster a, b;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, 100, 0);
	struct te_callable other = caster(&b, TE_DTYPE_BF16, 50, 0);
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_graph *g;

	o.nwarmup = 0;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	b.fail_at = 2; /* backward: forward has been updated */
	a.fail_at = 1;
	fails(te_graph_update(g, 1, &other, NULL), -EIO, "te_graph_update: capture of backward");
	ck_assert_int_eq(a.released + b.released, 0);
	fails(te_graph_forward(g, 0, st, NULL), -TE_ESTATE,
	      "the graph failed before: te_graph_update failed, and the previous callables could "
	      "not be captured again");
	fails(te_graph_run(g, st), -TE_ESTATE, "te_graph_run: the graph failed before");
	fails(te_graph_update(g, 1, &c, NULL), -TE_ESTATE, "the graph failed before");
	te_graph_unref(g);
	ck_assert_int_eq(a.released, 1);
	ck_assert_int_eq(b.released, 0);
}

static int spoilt_hook(void *arg, enum te_hook hook, int32_t callable, struct te_stream *stream)
{
	return (int)hook == *(int *)arg ? -EIO : 0;
}

static int spoilt_edge(void *arg, struct te_stream *stream)
{
	return *(int *)arg < 0 ? -EIO : 0;
}

/* the same checks and the same steps serve both functions */
TEST(update, sentences_name_the_function_that_was_called)
{
	static const struct {
		int spoilt; /* a hook, or the first function */
		const char *said;
	} when[] = {
		{ TE_HOOK_PRE_WARMUP, "the hook before warm-up: " },
		{ TE_HOOK_POST_WARMUP, "the hook after warm-up: " },
		{ TE_HOOK_BACKWARD, "the hook after warm-up of backward of cast" },
		{ -1, "the first function" },
	};
	struct caster a, b;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, 10, 0), two[2];
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_graph *g, *none;
	char said[128], *text;
	int spoilt = 99;

	o.hook = spoilt_hook;
	o.first = spoilt_edge;
	o.arg = &spoilt;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	for (size_t i = 0; i < TT_LEN(when); i++) {
		spoilt = when[i].spoilt;
		snprintf(said, sizeof(said), "te_graph_create: %s", when[i].said);
		fails(te_graph_create(ctx, 1, &c, &o, &none), -EIO, said);
		snprintf(said, sizeof(said), "te_graph_update: %s", when[i].said);
		fails(te_graph_update(g, 1, &c, NULL), -EIO, said);
	}
	spoilt = 99;
	two[0] = two[1] = caster(&b, TE_DTYPE_BF16, 10, 0);
	b.fail_at = 7;
	fails(te_graph_update(g, 1, two, NULL), -EIO, "te_graph_update: capture of forward");
	fails(te_graph_update(g, 2, two, NULL), -EINVAL, "te_graph_update: 2 callables, the");
	two[0].backward = NULL;
	fails(te_graph_update(g, 1, two, NULL), -EINVAL, "te_graph_update: cast has no backward");
	b.in.name = b.out.name;
	fails(te_graph_update(g, 1, two, NULL), -EINVAL, "te_graph_update: cast has two arguments");
	b.in.spec.shape[0] = INT64_MAX / 2;
	fails(te_graph_update(g, 1, two, NULL), -TE_ESHAPE,
	      "te_graph_update: y of cast has more than 2^63 bytes");
	b.in.spec.dtype = (enum te_dtype)99;
	fails(te_graph_update(g, 1, two, NULL), -TE_EDTYPE,
	      "te_graph_update: y of cast: no type has number 99");
	two[0].saved_nbytes = SIZE_MAX;
	fails(te_graph_update(g, 1, two, NULL), -EINVAL, "te_graph_update: cast saves more than");
	b.in.spec.ndim = 0;
	two[0].saved_nbytes = 0;
	fails(te_graph_update(g, 1, two, NULL), -TE_ESHAPE, "te_graph_update: y of cast has 0");
	two[0].forward = NULL;
	fails(te_graph_update(g, 1, two, NULL), -EINVAL, "te_graph_update: cast has no forward");
	fails(te_graph_json(NULL, &text), -EINVAL, "te_graph_json: graph is NULL");
	fails(te_graph_json(g, NULL), -EINVAL, "te_graph_json: ret_text is NULL");
	DO(te_graph_run(g, st));
	b.fail_at = 1;
	te_graph_unref(g);
	/* replays call the functions themselves */
	o.flags = TE_GRAPH_EAGER;
	o.nwarmup = 0;
	c = caster(&b, TE_DTYPE_BF16, 10, 0);
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	b.fail_at = 1;
	fails(te_graph_forward(g, 0, st, NULL), -EIO, "te_graph_forward: forward of cast (chunk 1");
	fails(te_graph_run(g, st), -EIO, "te_graph_run: the graph failed before: te_graph_forward");
	te_graph_unref(g);
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	b.fail_at = 2;
	fails(te_graph_run(g, st), -EIO, "te_graph_run: backward of cast (chunk 1");
	fails(te_graph_bind(g, 0, "x", 0, NULL, NULL), -EIO, "te_graph_bind: the graph failed");
	fails(te_graph_update(g, 1, &c, NULL), -EIO, "te_graph_update: the graph failed before");
	te_graph_unref(g);
}

/* ---- telling ---- */

TEST(update, graphs_are_drawn)
{
	struct caster a[2];
	struct te_callable c[2] = { caster(&a[0], TE_DTYPE_BF16, 8, 0),
				    caster(&a[1], TE_DTYPE_BF16, 8, 0) };
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_tensor *x = numbers(TE_DTYPE_FP32, 8, 1);
	struct te_graph *g;
	char *text;

	a[0].out.spec.dtype = TE_DTYPE_FP32;
	c[0].name = "lo\"w";
	o.flags = TE_GRAPH_CHAIN;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	DO(te_graph_dot(g, &text));
	ck_assert(!strncmp(text, "digraph te_graph {", 18));
	ck_assert_ptr_nonnull(strstr(text, "s0 [label=\"forward\\nlo\\\"w\\nchunk 1, micro-batch "
					   "1\\n1 nodes\"]"));
	ck_assert_ptr_nonnull(strstr(text, "s2 -> s3;"));
	ck_assert_ptr_nonnull(strstr(text, "s0 -> s1 [style=dashed"));
	ck_assert_ptr_nonnull(strstr(text, "s1 -> s2 [style=dashed"));
	ck_assert_ptr_nonnull(strstr(text, "s0 -> s3 [style=dashed"));
	free(text);
	ck_assert_ptr_nonnull(te_graph_recording(g, 1, TE_SCHED_B));
	ck_assert_ptr_null(te_graph_recording(g, 1, TE_SCHED_W));
	ck_assert_ptr_null(te_graph_recording(g, 2, TE_SCHED_F));
	DO(te_graph_bind(g, 0, "x", 0, x, NULL));
	DO(te_graph_json(g, &text));
	ck_assert_ptr_nonnull(strstr(text, "\"bound\": [\n  {\"callable\": 0, \"argument\": \"x\", "
					   "\"gradient\": false, \"how\": \""));
	free(text);
	te_graph_unref(g);
	te_tensor_unref(x);
	fails(te_graph_dot(NULL, &text), -EINVAL, "graph is NULL");
}

static int bind_update_once(void)
{
	struct te_tensor *x = NULL;
	struct te_graph *g = NULL;
	struct te_ctx *own = NULL;
	struct caster a, b;
	struct te_callable c = caster(&a, TE_DTYPE_BF16, 8, 0),
			   d = caster(&b, TE_DTYPE_BF16, 16, 0);
	const int64_t n = 8;
	int r;

	r = tt_ctx_new(&own);
	if (!r)
		r = te_tensor_create(own, TE_DTYPE_FP32, 1, &n, NULL, &x);
	if (!r)
		r = te_graph_create(own, 1, &c, NULL, &g);
	if (!r)
		r = te_graph_update(g, 1, &d, NULL);
	if (!r)
		r = te_graph_run(g, te_ctx_stream(own));
	if (!r)
		r = te_stream_sync(te_ctx_stream(own));
	tt_fault_end(); /* te_graph_unref cannot report that a wait failed */
	te_graph_unref(g);
	te_tensor_unref(x);
	te_ctx_unref(own);
	return r;
}

CASE(faults, "fault");

TEST(faults, survives_every_fault)
{
	ck_assert_int_gt(tt_fault_each(bind_update_once), 60);
}

TT_PAIR("graph/bind_update", TT_ONE_PROCESS)
