/*
 * t/graph/graph_capture.c - te_graph_create(3) calls hooks in their order, leaves no trace of
 * warm-up nor of a failure, and names what does not fit.
 */
#include "config.h"

#include <te/errno.h>

#include "caster.h"
#include "graph_lib.h"

/* ---- warm-up leaves no trace ---- */

struct log {
	char text[512];
	size_t n;
	int fail_at;
};

static int note(void *arg, enum te_hook hook, int32_t callable, struct te_stream *stream)
{
	static const char *const name[] = { "(", ")", "f", "F", "b", "B" };
	struct log *log = arg;

	ck_assert_ptr_nonnull(stream);
	if (log->fail_at && !--log->fail_at)
		return -ECANCELED;
	log->n +=
		(size_t)snprintf(log->text + log->n, sizeof(log->text) - log->n, "%s", name[hook]);
	if (callable >= 0)
		log->n += (size_t)snprintf(log->text + log->n, sizeof(log->text) - log->n, "%d",
					   (int)callable);
	return 0;
}

CTX_CASE(capture, "graph");

TEST(capture, hooks_run_in_this_order)
{
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct log log = { "", 0, 0 };
	struct te_graph *g;

	o.hook = note;
	o.arg = &log;
	o.nwarmup = 2;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	ck_assert_str_eq(log.text, "(f0F0f1F1b1B1b0B0f0F0f1F1b1B1b0B0)f0F0f1F1b1B1b0B0");
	ck_assert_int_eq(a[0].ncalls, 6);
	DO(te_graph_forward(g, 0, st, NULL));
	DO(te_graph_forward(g, 1, st, NULL));
	DO(te_graph_backward(g, 1, st, NULL));
	DO(te_graph_backward(g, 0, st, NULL));
	DO(te_stream_sync(st));
	ck_assert_int_eq((int)strlen(log.text), 50);
	ck_assert_int_eq(a[0].ncalls, 6); /* nor do functions run at replay */
	te_graph_unref(g);
	log = (struct log){ "", 0, 0 };
	o.flags = TE_GRAPH_WHOLE | TE_GRAPH_CHAIN;
	o.nwarmup = 1;
	DO(te_graph_create(ctx, 2, c, &o, &g));
	ck_assert_str_eq(log.text, "(f0F0f1F1b1B1b0B0)");
	te_graph_unref(g);
}

/* the words of a callable */
static void words_create(struct axpy *a)
{
	DO(te_mem_alloc(st, sizeof(float), (void **)&a->w));
	DO(te_mem_alloc(st, sizeof(float), (void **)&a->dw));
}

static void words_set(const struct axpy *a, float w, float dw)
{
	DO(te_copy(st, a->w, &w, sizeof(w)));
	DO(te_copy(st, a->dw, &dw, sizeof(dw)));
	DO(te_stream_sync(st));
}

static float word_of(const float *device)
{
	float v;

	DO(te_copy(st, &v, device, sizeof(v)));
	DO(te_stream_sync(st));
	return v;
}

static void words_are(const struct axpy *a, float w, float dw)
{
	ck_assert(word_of(a->w) == w && word_of(a->dw) == dw);
}

static void words_destroy(struct axpy *a)
{
	DO(te_mem_free(st, a->w));
	DO(te_mem_free(st, a->dw));
}

/* a failure in whatever call leaves the regions, and says which call it was */
TEST(capture, a_failed_capture_leaves_nothing)
{
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };

	words_create(&a[0]);
	for (int fail = 1; fail <= 8; fail++)
		for (int whole = 0; whole < 2; whole++) {
			struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
			struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
			struct te_graph *g = NULL;
			int r;

			words_set(&a[0], 5, 6);
			DO(te_ctx_sync(ctx));
			DO(te_ctx_mem_info(ctx, &before));
			o.nwarmup = 3;
			o.flags = TE_GRAPH_CHAIN | (whole ? TE_GRAPH_WHOLE : 0);
			a[0].fail_at = fail;
			a[0].silent = fail % 2;
			r = te_graph_create(ctx, 2, c, &o, &g);
			ck_assert_int_eq(r, -EIO);
			tt_said(fail <= 6 ? "warm-up of" : "capture of");
			tt_said(fail % 2 ? "forward of low (chunk 1, micro-batch 1)" :
					   "backward of low (chunk 1, micro-batch 1)");
			tt_said(fail % 2 ? te_strerror(-EIO) : "stream is NULL");
			ck_assert_ptr_null(g);
			ck_assert_int_eq(a[0].released, 0);
			words_are(&a[0], 5, 6);
			DO(te_ctx_sync(ctx));
			DO(te_ctx_mem_info(ctx, &after));
			ck_assert_uint_eq(before.used_nbytes, after.used_nbytes);
			ck_assert_uint_eq(before.pinned_nbytes, after.pinned_nbytes);
		}
	a[0].fail_at = 0;
	words_destroy(&a[0]);
}

TEST(capture, warm_up_leaves_regions_as_they_were)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "only");
	struct te_tensor *x = filled(3);
	struct te_replay r = TE_REPLAY_INIT;
	struct te_graph *g;

	words_create(&a);
	words_set(&a, 5, 6);
	DO(te_graph_create(ctx, 1, &c, NULL, &g));
	words_are(&a, 5, 6);
	r.npos = 1;
	r.pos = &x;
	DO(te_graph_forward(g, 0, st, &r));
	words_are(&a, 3, 6);
	te_graph_unref(g);
	te_tensor_unref(x);
	words_destroy(&a);
}

static int no_regions(void *self, te_region_fn fn, void *arg)
{
	((struct axpy *)self)->ncalls++;
	return -EIO;
}

/* what nothing runs or hooks could change is not copied: weights and moments are large */
TEST(capture, regions_are_kept_only_where_something_runs)
{
	struct axpy a = { .w = NULL };
	struct te_callable c = axpy(&a, "low");
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct te_graph *g;

	c.regions = no_regions;
	o.flags = TE_GRAPH_EAGER;
	for (int i = 0; i < 3; i++) {
		o.nwarmup = i == 0;
		o.hook = i == 1 ? no_hook : NULL;
		o.flags = i == 2 ? 0 : TE_GRAPH_EAGER;
		ck_assert_int_eq(te_graph_create(ctx, 1, &c, &o, &g), -EIO);
	}
	ck_assert_int_eq(a.ncalls, 3);
	o.flags = TE_GRAPH_EAGER;
	DO(te_graph_create(ctx, 1, &c, &o, &g));
	ck_assert_int_eq(a.ncalls, 3);
	te_graph_unref(g);
}

/* ---- refusals of te_graph_create ---- */

static void refused(int32_t n, const struct te_callable *c, const struct te_graph_opts *o, int code,
		    const char *text)
{
	struct te_graph *g = NULL;

	fails(te_graph_create(ctx, n, c, o, &g), code, text);
	ck_assert_ptr_null(g);
}

TEST(capture, what_does_not_fit_is_named)
{
	static const struct te_arg narrow[] = {
		{ "x", { TE_DTYPE_FP32, 2, { 3, 4 } }, TE_ARG_GRAD },
	};
	static const struct te_arg plain[] = { { "x", { TE_DTYPE_FP32, 2, { 3, 5 } }, 0 } };
	static const struct te_arg twice[] = {
		{ "x", { TE_DTYPE_FP32, 1, { 3 } }, 0 },
		{ "x", { TE_DTYPE_FP32, 1, { 3 } }, 0 },
	};
	static const struct te_arg flat[] = { { "x", { TE_DTYPE_FP32, 2, { 3, 0 } }, 0 } };
	static const struct te_arg unnamed[] = { { NULL, { TE_DTYPE_FP32, 1, { 3 } }, 0 } };
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") }, good = c[1];
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT, clean = o;
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule *w;

	so.nmicro = 2;
	so.flags = TE_SCHED_DELAY_W;
	DO(te_schedule_create(&so, &w));
	refused(0, c, NULL, -EINVAL, "no callables");
	o.size = 0;
	refused(2, c, &o, -EINVAL, "TE_GRAPH_OPTS_INIT");
	o = clean;
	o.flags = 1u << 30;
	refused(2, c, &o, -EINVAL, "unknown flags 0x40000000");
	o = clean;
	o.nwarmup = -1;
	refused(2, c, &o, -EINVAL, "-1 runs of warm-up");
	o = clean;
	o.flags = TE_GRAPH_RETAIN;
	refused(2, c, &o, -EINVAL, "low cannot run backward twice");
	o = clean;
	o.schedule = w;
	refused(1, c, &o, -EINVAL, "1 callables, the schedule has 2");
	refused(2, c, &o, -EINVAL, "no callable there has a backward_dw");
	o.schedule = NULL;
	o.flags = TE_GRAPH_CHAIN;
	c[1].in = narrow;
	refused(2, c, &o, -TE_ESHAPE, "low gives y [3,5] fp32, high takes x [3,4] fp32");
	c[1].in = plain;
	refused(2, c, &o, -EINVAL, "low reads a gradient of y, high does not write one of x");
	c[1] = good;
	c[1].in = twice;
	c[1].nin = 2;
	refused(2, c, NULL, -EINVAL, "high has two arguments named x");
	c[1] = good;
	c[1].in = flat;
	refused(2, c, NULL, -TE_ESHAPE, "x of high: extent 1 is 0");
	c[1].in = unnamed;
	refused(2, c, NULL, -EINVAL, "input 0 of high has no name");
	c[1] = good;
	c[1].forward = NULL;
	refused(2, c, NULL, -EINVAL, "high has no forward function");
	c[1] = good;
	c[1].backward = NULL;
	refused(2, c, NULL, -EINVAL, "high has no backward function");
	c[1] = good;
	c[1].size = 0;
	refused(2, c, NULL, -EINVAL, "callable 1: struct te_callable says that it has");
	ck_assert_int_eq(a[0].ncalls + a[1].ncalls + a[0].released + a[1].released, 0);
	te_schedule_unref(w);
}

/* ---- faults ---- */

static int graph_once(void)
{
	struct te_graph_opts o = TE_GRAPH_OPTS_INIT;
	struct axpy a[2] = { { .w = NULL }, { .w = NULL } };
	struct te_callable c[2] = { axpy(&a[0], "low"), axpy(&a[1], "high") };
	struct te_graph *g = NULL;
	struct te_ctx *own = NULL;
	char *text = NULL;
	int r;

	o.flags = TE_GRAPH_CHAIN | TE_GRAPH_REUSE;
	o.nwarmup = 1;
	r = tt_ctx_new(&own);
	if (!r)
		r = te_graph_create(own, 2, c, &o, &g);
	if (!r)
		r = te_graph_run(g, te_ctx_stream(own));
	if (!r)
		r = te_stream_sync(te_ctx_stream(own));
	if (!r)
		r = te_graph_json(g, &text);
	free(text);
	tt_fault_end(); /* te_graph_unref cannot report that a wait failed */
	te_graph_unref(g);
	te_ctx_unref(own);
	return r;
}

CASE(faults, "fault");

TEST(faults, survives_every_fault)
{
	ck_assert_int_gt(tt_fault_each(graph_once), 40);
}
