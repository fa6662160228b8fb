/*
 * t/plan/threads.c - calls of one thread while another captures, and calls in a forked child.
 */
#include "config.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/optim.h>
#include <te/quant.h>

#include "libtecore/base/private.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_gate.h"

static const struct model_shape gpt = { 48, 32, 1, 16, 2, 2, 1, 0, 0 };

/* what the calls below need, made before anything captures */
static struct {
	struct te_seq *seq;
	struct te_adamw *adamw;
	struct te_quant *quant;
	struct te_recipe fp32, fp8;
} made;

static void setup(void)
{
	const enum te_dtype dtype = TE_DTYPE_E4M3;

	tt_setup();
	made.seq = model_create(ctx, &gpt, 5);
	DO(te_adamw_create(made.seq, NULL, &made.adamw));
	made.fp32 = made.fp8 = (struct te_recipe)TE_RECIPE_INIT;
	DO(te_recipe_from_name("fp32", &made.fp32));
	DO(te_recipe_from_name("fp8-delayed", &made.fp8));
	DO(te_quant_create(ctx, &made.fp8, 1, &dtype, &made.quant));
}

static void teardown(void)
{
	te_quant_unref(made.quant);
	te_adamw_unref(made.adamw);
	te_seq_unref(made.seq);
	tt_teardown();
}

static struct te_plan_opts plan_opts(const struct te_recipe *recipe)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	o.recipe = recipe;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { gpt.batch, gpt.seqlen } };
	return o;
}

/* each call that issue reports showed to fail; no assertions: this runs on any thread */
static int helpers(void)
{
	struct te_plan_opts o = plan_opts(&made.fp8);
	struct te_adamw_stats stats = TE_ADAMW_STATS_INIT;
	struct te_adamw *adamw = NULL;
	struct te_plan *plan = NULL;
	uint64_t seed, offset;
	float scale;
	int r = te_quant_peek(made.quant, 0, &scale, NULL);

	if (!r)
		r = te_seq_rng_get(made.seq, &seed, &offset);
	if (!r && (seed != 5 || scale != 1.0f))
		r = te__fail(-EPROTO, "seed %d, scale %g", (int)seed, (double)scale);
	if (!r)
		r = te_adamw_stats(made.adamw, &stats);
	if (!r)
		r = te_adamw_create(made.seq, NULL, &adamw);
	if (!r)
		r = te_plan_create(made.seq, &o, &plan);
	te_plan_unref(plan);
	te_adamw_unref(adamw);
	return r;
}

struct other {
	pthread_t thread;
	int rounds, r;
	char detail[300];
	atomic_int done;
};

static void *other(void *arg)
{
	struct other *o = arg;

	for (int i = 0; i < o->rounds && !o->r; i++)
		o->r = helpers();
	snprintf(o->detail, sizeof(o->detail), "%s", te_error_detail());
	atomic_store(&o->done, 1);
	return NULL;
}

static void start(struct other *o, int rounds)
{
	*o = (struct other){ .rounds = rounds };
	ck_assert_int_eq(pthread_create(&o->thread, NULL, other, o), 0);
}

static void join(struct other *o)
{
	pthread_join(o->thread, NULL);
	ck_assert_msg(!o->r, "the other thread: %d: %s", o->r, o->detail);
}

CASE(threads, "host", .setup = setup, .teardown = teardown);

/* on the context's stream, or one of the thread's */
TEST_EACH(threads, helpers_work_inside_of_another_threads_capture, 2)
{
	struct te_stream *s;
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_recording *rec;
	struct other o;
	char d[16];
	void *p;

	if (_i)
		DO(te_stream_create(ctx, &s));
	else
		s = te_stream_ref(st);
	DO(te_mem_alloc(st, 16, &p));
	DO(te_stream_sync(st));
	DO(te_capture_begin(s));
	DO(te_fill(s, p, 1, 16));
	start(&o, 1);
	join(&o);
	DO(te_fill(s, p, 2, 8));
	DO(te_capture_end(s, &rec));
	DO(te_recording_info(rec, &info));
	ck_assert_uint_eq(info.nnodes, 2);
	DO(te_recording_launch(rec, s));
	DO(te_copy(s, d, p, 16));
	DO(te_stream_sync(s));
	ck_assert_int_eq(d[0], 2);
	ck_assert_int_eq(d[15], 1);
	te_recording_unref(rec);
	te_stream_unref(s);
	DO(te_mem_free(st, p));
}

TEST_EACH(threads, helpers_and_captures_may_interleave, 2)
{
	struct te_stream *s, *joined;
	struct te_event *fork, *back;
	struct other o;
	void *p;

	if (_i)
		DO(te_stream_create(ctx, &s));
	else
		s = te_stream_ref(st);
	DO(te_stream_create(ctx, &joined));
	DO(te_event_create(ctx, &fork));
	DO(te_event_create(ctx, &back));
	DO(te_mem_alloc(st, 16, &p));
	DO(te_stream_sync(st));
	start(&o, 60);
	for (int i = 0; i < 20 || !atomic_load(&o.done); i++) {
		struct te_recording_info info = TE_RECORDING_INFO_INIT;
		struct te_recording *rec;

		DO(te_capture_begin(s));
		DO(te_fill(s, p, 1, 8));
		DO(te_event_record(fork, s));
		DO(te_event_wait(fork, joined));
		DO(te_fill(joined, (char *)p + 8, 2, 8));
		DO(te_event_record(back, joined));
		DO(te_event_wait(back, s));
		DO(te_capture_end(s, &rec));
		DO(te_recording_info(rec, &info));
		ck_assert_uint_eq(info.nnodes, 2);
		DO(te_recording_launch(rec, s));
		DO(te_stream_sync(s));
		te_recording_unref(rec);
	}
	join(&o);
	te_event_unref(fork);
	te_event_unref(back);
	te_stream_unref(joined);
	te_stream_unref(s);
	DO(te_mem_free(st, p));
}

/* the thread that captures is told, as before */
TEST(threads, the_capturing_thread_is_refused)
{
	struct te_adamw_stats stats = TE_ADAMW_STATS_INIT;
	struct te_recording *rec;
	struct te_stream *s;
	uint64_t seed, offset;
	float scale;

	DO(te_stream_create(ctx, &s));
	DO(te_capture_begin(s));
	fails(te_quant_peek(made.quant, 0, &scale, NULL), -EBUSY, "te_quant_peek: this thread");
	fails(te_seq_rng_get(made.seq, &seed, &offset), -EBUSY, "te_seq_rng_get: this thread");
	fails(te_adamw_stats(made.adamw, &stats), -EBUSY, "te_adamw_stats: this thread");
	fails(te_ctx_sync(ctx), -EBUSY, "te_ctx_sync: a stream");
	DO(te_capture_end(s, &rec));
	te_recording_unref(rec);
	te_stream_unref(s);
}

/* of streams that do not capture, and of those that do from before the capture */
TEST(threads, helpers_see_what_was_queued_before)
{
	struct te_adamw_stats stats = TE_ADAMW_STATS_INIT;
	struct te_recording *rec;
	struct te_stream *s;
	struct other o;

	DO(te_stream_create(ctx, &s));
	for (int i = 0; i < 2; i++) {
		tt_gate_close();
		DO(te_host_call(s, tt_gate_wait, NULL, 0));
		DO(te_adamw_step(made.adamw, s));
		if (i)
			DO(te_capture_begin(s));
		tt_gate_open_later(30);
		if (i) {
			start(&o, 1);
			join(&o);
			ck_assert(tt_gate_is_open());
			DO(te_capture_end(s, &rec));
			te_recording_unref(rec);
		}
		DO(te_adamw_stats(made.adamw, &stats));
		ck_assert_int_eq((int)stats.nsteps, i + 1);
	}
	te_stream_unref(s);
}

/* ---- forks ---- */

static void touch(void *arg)
{
}

/* how many of the calls do not return -TE_ESTATE; each would wait for a thread that is not there */
static int wrong_in_child(struct te_stream *s, struct te_event *e, struct te_recording *rec,
			  struct te_plan *plan, struct te_tensor *t, void *p, void *pinned)
{
	struct te_mem_info mem = TE_MEM_INFO_INIT;
	struct te_device_info dev = TE_DEVICE_INFO_INIT;
	struct te_adamw_stats stats = TE_ADAMW_STATS_INIT;
	struct te_plan_opts o = plan_opts(&made.fp32);
	struct te_adamw *adamw;
	struct te_tensor *t2;
	struct te_stream *s2;
	struct te_event *e2;
	struct te_plan *plan2;
	const int64_t shape[1] = { 4 };
	uint64_t seed, offset;
	char d[16] = { 0 };
	double ms;
	void *q;
	float scale;
	int n = 0;

#define WRONG(call)                                                                    \
	do {                                                                           \
		int r_ = (call);                                                       \
		if (r_ != -TE_ESTATE || !strstr(te_error_detail(), "forked")) {        \
			fprintf(stderr, "%s: %d: %s\n", #call, r_, te_error_detail()); \
			n++;                                                           \
		}                                                                      \
	} while (0)
	WRONG(te_ctx_sync(ctx));
	WRONG(te_ctx_mem_info(ctx, &mem));
	WRONG(te_ctx_device_info(ctx, &dev));
	WRONG(te_stream_create(ctx, &s2));
	WRONG(te_stream_sync(s));
	WRONG(te_stream_query(s));
	WRONG(te_stream_workspace(s, NULL, 0));
	WRONG(te_event_create(ctx, &e2));
	WRONG(te_event_record(e, s));
	WRONG(te_event_record_external(e, s));
	WRONG(te_event_wait(e, s));
	WRONG(te_event_sync(e));
	WRONG(te_event_query(e));
	WRONG(te_event_elapsed_ms(e, e, &ms));
	WRONG(te__stream_follow(s, st));
	WRONG(te_mem_alloc(s, 16, &q));
	WRONG(te_mem_free(s, p));
	WRONG(te_pinned_alloc(ctx, 16, &q));
	WRONG(te_pinned_free(ctx, pinned));
	WRONG(te_copy(s, d, p, 16));
	WRONG(te_fill(s, p, 1, 16));
	WRONG(te_fill_u32(s, p, 1, 16));
	WRONG(te_host_call(s, touch, NULL, 0));
	WRONG(te_capture_begin(s));
	WRONG(te_capture_end(s, &rec));
	WRONG(te_capture_update(s, rec, NULL));
	WRONG(te_recording_launch(rec, s));
	WRONG(te_tensor_create(ctx, TE_DTYPE_FP32, 1, shape, NULL, &t2));
	WRONG(te_tensor_write(t, d, 16));
	WRONG(te_tensor_read(t, d, 16));
	WRONG(te_cast(s, t, t));
	WRONG(te_quant_peek(made.quant, 0, &scale, NULL));
	WRONG(te_seq_rng_get(made.seq, &seed, &offset));
	WRONG(te_seq_rng_set(made.seq, 1, 2));
	WRONG(te_seq_zero_grads(made.seq, s));
	WRONG(te_adamw_stats(made.adamw, &stats));
	WRONG(te_adamw_step(made.adamw, s));
	WRONG(te_adamw_create(made.seq, NULL, &adamw));
	WRONG(te_plan_create(made.seq, &o, &plan2));
	WRONG(te_plan_forward(plan, s, 0));
#undef WRONG
	return n;
}

/* a context of the child's own works; TSan refuses threads there */
static int own_context(void)
{
#ifdef __SANITIZE_THREAD__
	return 0;
#else
	struct te_ctx *c;
	char d[8] = { 0 };
	void *p;
	int r = tt_ctx_new(&c);

	if (r)
		return r;
	r = te_mem_alloc(te_ctx_stream(c), 8, &p);
	if (!r)
		r = te_fill(te_ctx_stream(c), p, 3, 8);
	if (!r)
		r = te_copy(te_ctx_stream(c), d, p, 8);
	if (!r)
		r = te_ctx_sync(c);
	te_ctx_unref(c);
	return r ? r : d[7] == 3 ? 0 : -EPROTO;
#endif
}

static atomic_int at_gate;

static void arrive_at_gate(void *arg)
{
	atomic_store(&at_gate, 1);
	tt_gate_wait(arg);
}

/*
 * The parent's threads are idle, or in the middle of work. None of them is in the allocator when it
 * forks: the child of a program with AddressSanitizer would wait for its lock.
 */
TEST_EACH(threads, a_forked_child_is_refused, 2)
{
	struct te_plan_opts o = plan_opts(&made.fp32);
	const int64_t shape[1] = { 4 };
	struct te_recording *rec;
	struct te_stream *s;
	struct te_tensor *t;
	struct te_event *e;
	struct te_plan *plan;
	void *p, *pinned;
	int status;
	pid_t child;

	DO(te_stream_create(ctx, &s));
	DO(te_event_create(ctx, &e));
	DO(te_mem_alloc(s, 16, &p));
	DO(te_pinned_alloc(ctx, 16, &pinned));
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1, shape, NULL, &t));
	DO(te_plan_create(made.seq, &o, &plan));
	DO(te_stream_sync(s));
	DO(te_capture_begin(s));
	DO(te_fill(s, p, 1, 16));
	DO(te_capture_end(s, &rec));
	if (_i)
		tt_gate_close();
	atomic_store(&at_gate, 0);
	DO(te_host_call(s, arrive_at_gate, NULL, 0));
	DO(te_event_record(e, s));
	if (!_i)
		DO(te_stream_sync(s));
	while (!atomic_load(&at_gate))
		tt_sleep_ms(1);
	tt_sleep_ms(20); /* threads that have become idle release their memory before */
	child = fork();
	ck_assert_int_ge(child, 0);
	if (!child) {
		int n;

		alarm(100); /* a hang is a failure */
		n = wrong_in_child(s, e, rec, plan, t, p, pinned);
		te_plan_unref(plan);
		te_tensor_unref(t);
		te_recording_unref(rec);
		te_event_unref(e);
		te_stream_unref(s);
		te_quant_unref(made.quant);
		te_adamw_unref(made.adamw);
		te_seq_unref(made.seq);
		te_ctx_unref(ctx);
		if (own_context()) {
			fprintf(stderr, "own context: %s\n", te_error_detail());
			n++;
		}
		_exit(n ? 1 : 0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "the child: status 0x%x", status);
	tt_gate_open();
	/* the parent goes on */
	DO(te_recording_launch(rec, s));
	DO(te_ctx_sync(ctx));
	te_recording_unref(rec);
	te_event_unref(e);
	te_tensor_unref(t);
	te_plan_unref(plan);
	DO(te_mem_free(s, p));
	DO(te_pinned_free(ctx, pinned));
	te_stream_unref(s);
}

TT_MAIN("plan/threads", TT_NEED_NOTHING)
