/*
 * t/graph/offload_faults.c - te_offload_*(3): files that are damaged, too small, slow, or fail in
 * every way to run a step; memory that cannot be allocated.
 */
#include "config.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "libtecore/base/private.h"
#include "libtecore/offload/spill_impl.h"
#include "libtecore/plan/moves.h"
#include "libtecore/plan/optim.h"
#include "offload_lib.h"

/* overwrites the file of the only te_offload */
static void damage_file(void)
{
	static const char junk[4096] = { 1 };
	char path[64], to[256];
	int found = 0;

	for (int fd = 3; fd < 256 && !found; fd++) {
		ssize_t n;
		int mine;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, to, sizeof(to) - 1);
		if (n < 6 || memcmp(to, "/tmp/#", 6))
			continue;
		mine = open(path, O_RDWR | O_CLOEXEC);
		for (off_t at = 0; mine >= 0 && at < 16 << 20; at += 4096)
			ck_assert_int_eq(pwrite(mine, junk, sizeof(junk), at), sizeof(junk));
		found = mine >= 0 && !close(mine);
	}
	ck_assert_msg(found, "no file without a name in /tmp");
}

CTX_CASE(failures, "graph offload serial");
CTX_CASE(files, "graph offload");

/* by default all that is read is verified; OFF: wrong bytes are taken */
TEST_EACH(files, a_file_that_returns_other_bytes_is_named, 2)
{
	struct te_offload_opts o = through_file(FAST);
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload *off;
	struct te_plan *p;
	int ms = 0;

	ck_assert_uint_eq(o.verify, TE_OFFLOAD_VERIFY_ALL);
	if (_i)
		o.verify = TE_OFFLOAD_VERIFY_OFF;
	off = offload_of(&o);
	p = plan_of(seq, off, 0);
	model_feed(p, &small);
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_ctx_sync(ctx));
	/* what is still being written would be read from memory */
	for (; report_of(off).written_nbytes < 2 * report_of(off).moved_nbytes; ms++) {
		ck_assert_int_lt(ms, 10000);
		usleep(1000);
	}
	damage_file();
	DO(te_plan_backward(p, st));
	DO(te_ctx_sync(ctx));
	if (_i) {
		DO(te_plan_forward(p, st, 0));
	} else {
		ck_assert_int_eq(te_plan_forward(p, st, 0), -TE_ECORRUPT);
		tt_said("offload: read of group");
		tt_said("of the file in /tmp");
	}
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}

/* less moves where the file has no room for all, down to nothing */
TEST(files, a_small_file_takes_less)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload_opts o = through_file(FAST);
	uint64_t most = UINT64_MAX;

	for (uint64_t quota = 128; quota >= 4; quota /= 2) {
		struct te_offload *off;
		struct te_plan *p[2];

		o.quota_nbytes = quota << 10;
		off = offload_of(&o);
		for (int i = 0; i < 2; i++)
			p[i] = plan_of(seq, off, 0);
		ck_assert_uint_le(report_of(off).moved_nbytes, quota << 10);
		ck_assert_uint_le(report_of(off).moved_nbytes, most);
		most = report_of(off).moved_nbytes;
		for (int i = 0; i < 2; i++) {
			model_feed(p[i], &small);
			DO(te_plan_forward(p[i], st, 0));
			DO(te_plan_backward(p[i], st));
		}
		DO(te_ctx_sync(ctx));
		DO(te_plan_forward(p[0], st, 0));
		for (int i = 0; i < 2; i++)
			te_plan_unref(p[i]);
		te_offload_unref(off);
	}
	te_seq_unref(seq);
}

/* ---- failures of the file in every way to run a step ---- */

/* the engine of a spill, of whose blocks in one direction one fails, or never ends */
static struct {
	struct te__spill_ops ops;
	const struct te__spill_ops *real;
	void (*submit)(void *impl, const struct te__blk *blk);
	enum te__spill_dir dir;
	int left; /* blocks until then */
	int drop;
	useconds_t pause_us; /* before a block is read */
} broken;

static void submit_broken(void *impl, const struct te__blk *blk)
{
	struct te__blk b = *blk;

	if (b.dir == broken.dir && broken.left-- == 0) {
		if (broken.drop)
			return;
		b.offset = (uint64_t)1 << 62; /* no file reaches so far */
	}
	broken.submit(impl, &b);
}

static void submit_late(void *impl, const struct te__blk *blk)
{
	if (blk->dir == TE__SPILL_READ)
		usleep(broken.pause_us);
	broken.submit(impl, blk);
}

static void slow_file(struct te__spill *s, useconds_t pause_us)
{
	pthread_mutex_lock(&s->lock);
	broken.ops = *s->ops;
	broken.submit = s->ops->submit;
	broken.ops.submit = submit_late;
	broken.pause_us = pause_us;
	s->ops = &broken.ops;
	pthread_mutex_unlock(&s->lock);
}

static void break_file(struct te__spill *s, enum te__spill_dir dir, int left, int drop)
{
	pthread_mutex_lock(&s->lock);
	s->timeout_ms = drop ? TT_SLOWER(200) : s->timeout_ms;
	broken.real = s->ops;
	broken.ops = *s->ops;
	broken.submit = s->ops->submit;
	broken.ops.submit = submit_broken;
	broken.dir = dir;
	broken.left = left;
	broken.drop = drop;
	s->ops = &broken.ops;
	pthread_mutex_unlock(&s->lock);
}

static int has_nan(struct te_tensor *t)
{
	const size_t n = (size_t)te_tensor_nelems(t);
	float *v = malloc(n * sizeof(*v));
	int found = 0;

	ck_assert_int_eq(te_tensor_dtype(t), TE_DTYPE_FP32);
	DO(te_tensor_read(t, v, n * sizeof(*v)));
	for (size_t i = 0; i < n; i++)
		found |= v[i] != v[i];
	free(v);
	return found;
}

/* the pauses of all reads are waited for, but for the time of the step without them */
TEST_EACH(failures, waits_for_slow_files_are_measured, WAYS, .parts = 3)
{
	const struct way *w = &ways[_i];
	struct te_offload_opts o = through_file(FAST);
	int32_t t[MICRO][2][NTOKENS] = { 0 };
	struct run plain = run_create(&small, w, "fp8-delayed", NULL), run;
	struct te_offload_report rep;
	struct timespec begin, end;
	double loss, ms;
	char *text;

	o.timed = 1;
	run = run_create(&small, w, "fp8-delayed", &o);
	same_steps(&plain, &run);
	DO(te_ctx_sync(ctx));
	ck_assert_double_ge(report_of(run.off).waited_ms, 0);
	slow_file(run.off->spill, 5000);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	run_step(&run, t, &loss);
	DO(te_ctx_sync(ctx));
	clock_gettime(CLOCK_MONOTONIC, &end);
	rep = report_of(run.off);
	ck_assert_double_ge(rep.waited_ms, 3);
	/* no plan waits longer than the step takes */
	ms = 1e3 * (double)(end.tv_sec - begin.tv_sec);
	ms += 1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
	ck_assert_double_le(rep.waited_ms, rep.nplans * ms);
	DO(te_offload_print(run.off, &text));
	ck_assert_ptr_nonnull(strstr(text, "waited ms"));
	free(text);
	run_destroy(&plain);
	run_destroy(&run);
}

TEST_EACH(failures, any_failure_ends_the_step_and_is_named, 4 * WAYS, .parts = 3)
{
	static const enum te__spill_dir dirs[] = { TE__SPILL_WRITE, TE__SPILL_READ };
	const struct way *w = &ways[_i / 4];
	const enum te__spill_dir dir = dirs[_i % 2];
	const struct te_offload_opts o = through_file(FAST);
	int32_t t[MICRO][2][NTOKENS] = { 0 };
	struct run run = run_create(&small, w, "bf16", &o);
	double loss;

	run_step(&run, t, &loss);
	ck_assert(!has_nan(te_seq_grads(run.seq)));
	break_file(run.off->spill, dir, (int)tt_rand_int(0, 7), _i / 2 % 2);
	/* a later pass of an eager step may find the failure already */
	if (start_step(&run, t))
		ck_assert_uint_eq(w->flags, 0);
	else
		ck_assert(has_nan(te_seq_grads(run.seq)));
	for (int i = 0; i < 2; i++) {
		ck_assert_int_lt(te_step_run(run.step, 0, st), 0);
		tt_said(" of group ");
		tt_said("bytes: block 0, at byte ");
		tt_said(" of the file in /tmp: ");
		tt_said(": values from ");
	}
	DO(te_ctx_sync(ctx));
	run_destroy(&run);
}

/* the step of moments in a file that fails is undone: with the next one, weights and moments have
 * the bits of device memory */
TEST_EACH(failures, moments_in_a_file_survive_a_failure, 2 * WAYS, .parts = 3)
{
	const struct way *w = &ways[_i / 2];
	int32_t t[MICRO][2][NTOKENS] = { 0 };
	struct run plain = run_create(&small, w, "bf16", NULL), run;
	uint64_t seed, offset;
	struct te__spill *spill;

	states_dir = "/tmp";
	run = run_create(&small, w, "bf16", NULL);
	states_dir = NULL;
	spill = te__adamw_file_spill(run.opt);
	same_steps(&plain, &run);
	DO(te_seq_rng_get(run.seq, &seed, &offset));
	break_file(spill, _i % 2 ? TE__SPILL_READ : TE__SPILL_WRITE, (int)tt_rand_int(0, 7), 0);
	ck_assert_int_lt(start_step(&run, t), 0);
	tt_said(_i % 2 ? "read of group " : "write of group ");
	tt_said(" of the file in /tmp: ");
	pthread_mutex_lock(&spill->lock);
	spill->ops = broken.real;
	pthread_mutex_unlock(&spill->lock);
	model_same(te_seq_masters(plain.seq), te_seq_masters(run.seq), "weights");
	DO(te_seq_rng_set(run.seq, seed, offset)); /* the passes have drawn numbers */
	same_steps(&plain, &run);
	run_destroy(&plain);
	run_destroy(&run);
}

static int create_and_run(struct te_seq *seq)
{
	static const char *const kept[] = { "h.1.ln1.*" };
	const struct te_recipe rec = model_recipe("bf16");
	struct te_offload_opts oo = rates(FAST);
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_offload *off = NULL;
	struct te_step *step = NULL;
	int r;

	oo.keep = oo.move = kept;
	oo.nkeep = 1;
	oo.target_nbytes = 60000;
	r = te_offload_create(ctx, &oo, &off);
	o.recipe = &rec;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { small.batch, small.seqlen } };
	o.offload = off;
	if (!r)
		r = te_step_create(seq, NULL, &o, &step);
	if (!r)
		r = te_step_run(step, 0, st);
	if (!r)
		r = te_ctx_sync(ctx);
	tt_fault_end();
	te_ctx_sync(ctx);
	te_step_unref(step);
	te_offload_unref(off);
	DO(te_ctx_sync(ctx)); /* memory is freed in stream order */
	return r;
}

TEST(files, a_failure_leaves_nothing)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	int64_t live;
	int fired = 1;

	DO(create_and_run(seq));
	live = te__alloc_live();
	for (uint64_t n = 1; fired; n += n < 200 ? 4 / TT_FEWER(4) : 61) {
		int r;

		te_error_clear();
		te__fault_set(n);
		r = create_and_run(seq);
		fired = te__fault_fired();
		te__fault_set(0);
		ck_assert_int_eq(te__alloc_live(), live);
		ck_assert(r < 0 ? fired && te_error_detail()[0] : 1);
	}
	DO(create_and_run(seq));
	te_seq_unref(seq);
}
