/*
 * t/graph/offload_cases.c - te_offload_*(3): a step has the same bits whatever moves, eagerly, as
 * a graph and as graphs of passes; the memory is what the plan predicts; what must stay stays.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/offload.h>
#include <te/step.h>

#include "libtecore/base/private.h"
#include "libtecore/offload/spill_impl.h"
#include "libtecore/plan/moves.h"
#include "offload_cases.h"
#include "t/plan/plan_model.h"
#include "tt_ctx.h"
#include "tt_gate.h"

/* no tied weights: no two parts add to the same gradient */
static const struct model_shape small = { 48, 32, 2, 16, 4, 2, 2, 0.2f, 1 };
static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };
static const char *const cuts[] = { "h.1.ln1", "norm" };
static const int32_t one_chunk[] = { 3 };
#define NCUTS ((int32_t)TT_LEN(cuts))
#define STEPS 2
#define MICRO 2
#define NTOKENS (2 * 16)

static const struct way {
	uint32_t flags;
	int32_t ncuts;
	const char *order; /* NULL: the default */
} ways[] = {
	{ 0, 0, NULL },
	{ TE_STEP_GRAPH, 0, NULL },
	{ TE_STEP_PASS_GRAPHS, 0, NULL },
	{ 0, NCUTS, NULL },
	{ TE_STEP_PASS_GRAPHS, NCUTS, NULL },
	{ TE_STEP_GRAPH, NCUTS, "gpipe" },
	{ 0, NCUTS, "gpipe" },
	{ TE_STEP_PASS_GRAPHS, NCUTS, "zero-bubble" },
};
#define WAYS ((int)TT_LEN(ways))

/*
 * Rates that do not depend on the machine. Fast: copies end within a group or two. Slow: the link
 * has half of the time that it needs.
 */
enum speed { FAST, SLOW };
static struct te_offload_opts rates(enum speed speed)
{
	struct te_offload_opts o = TE_OFFLOAD_OPTS_INIT;

	o.mem_rate = 1e9;
	o.flop_rate = 1e10;
	o.out_rate = o.in_rate = speed == FAST ? 1e9 : 5e7;
	o.min_nbytes = 256;
	o.group_nbytes = 8192;
	return o;
}

/* the same through a file; small slots, so that they are used again */
static struct te_offload_opts through_file(enum speed speed)
{
	struct te_offload_opts o = rates(speed);

	o.dir = "/tmp";
	o.quota_nbytes = (uint64_t)16 << 20;
	o.pinned_nbytes = (uint64_t)16 << 20;
	o.write_rate = speed == FAST ? 1e9 : 1e8;
	o.read_rate = 5e8;
	o.verify = TE_OFFLOAD_VERIFY_ALL;
	return o;
}

static struct te_offload *offload_of(const struct te_offload_opts *o)
{
	struct te_offload *off;

	DO(te_offload_create(ctx, o, &off));
	return off;
}

static struct te_recipe recipe_of(const char *name)
{
	struct te_recipe rec = TE_RECIPE_INIT;

	DO(te_recipe_from_name(name, &rec));
	if (rec.kind == TE_RECIPE_DELAYED)
		rec.history_len = 16;
	return rec;
}

struct run {
	struct te_seq *seq;
	struct te_adamw *opt;
	struct te_offload *off; /* or NULL */
	struct te_step *step;
};

static void nap(void *arg)
{
	(void)arg;
	usleep(200);
}

/* delays the streams of the copies now and then, so that a wait that is missing shows */
static int delay_copies(void *arg, struct te_plan *plan, const struct te_plan_event *event)
{
	struct te_offload *off = arg;
	int r = 0;

	(void)plan;
	(void)event;
	if (off && !tt_rand_int(0, 31))
		r = te_host_call(tt_rand_int(0, 1) ? off->out : off->in, nap, NULL, 0);
	return r;
}

static int no_words; /* graphs call the host instead */

static struct run run_create(const struct model_shape *m, const struct way *w, const char *recipe,
			     const struct te_offload_opts *oo)
{
	struct te_schedule_opts so = TE_SCHEDULE_OPTS_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const struct te_recipe rec = recipe_of(recipe);
	struct run r = { .off = NULL };

	r.seq = model_create(ctx, m, 3);
	DO(te_adamw_create(r.seq, NULL, &r.opt));
	DO(te_adamw_set_lr(r.opt, st, 1e-2f));
	r.off = oo ? offload_of(oo) : NULL;
	if (r.off && no_words)
		r.off->words = 0;
	so.nchunks = 1;
	so.nmicro = MICRO;
	so.nlayers = one_chunk;
	if (w->order)
		DO(te_schedule_parse(w->order, &so, &o.schedule));
	o.recipe = &rec;
	o.flags = w->flags;
	o.micro_batches = MICRO;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	o.ncuts = w->ncuts;
	o.cut = cuts;
	o.offload = r.off;
	if (r.off && !w->flags) {
		o.hook = delay_copies;
		o.hook_arg = r.off;
		o.hooks = 1u << TE_PLAN_EVENT_BEGIN;
	}
	DO(te_step_create(r.seq, r.opt, &o, &r.step));
	te_schedule_unref(o.schedule);
	return r;
}

static void run_destroy(struct run *r)
{
	te_step_unref(r->step);
	te_offload_unref(r->off);
	te_adamw_unref(r->opt);
	te_seq_unref(r->seq);
}

static struct te_offload_report report_of(struct te_offload *off)
{
	struct te_offload_report rep = TE_OFFLOAD_REPORT_INIT;

	DO(te_offload_report(off, &rep));
	return rep;
}

static uint64_t pool_of(const struct run *r)
{
	struct te_step_memory sm = TE_STEP_MEMORY_INIT;

	DO(te_step_memory(r->step, &sm));
	return sm.pool_nbytes;
}

static int start_step(struct run *r, int32_t t[MICRO][2][NTOKENS])
{
	for (int m = 0; m < MICRO; m++)
		for (int k = 0; k < 2; k++)
			DO(te_tensor_write(te_step_input(r->step, 0, m, k ? "targets" : "x"),
					   t[m][k], sizeof(t[m][k])));
	return te_step_run(r->step, 0, st);
}

static void run_step(struct run *r, int32_t t[MICRO][2][NTOKENS], double *loss)
{
	DO(start_step(r, t));
	DO(te_step_loss(r->step, loss));
}

static void same_steps(struct run *a, struct run *b)
{
	int32_t t[MICRO][2][NTOKENS];
	double want, have;

	for (int k = 0; k < STEPS; k++) {
		for (int m = 0; m < MICRO; m++)
			for (int i = 0; i < 2 * NTOKENS; i++)
				t[m][i / NTOKENS][i % NTOKENS] =
					(int32_t)tt_rand_int(0, small.vocab - 1);
		run_step(a, t, &want);
		run_step(b, t, &have);
		ck_assert_double_eq(want, have);
		model_same(te_seq_grads(a->seq), te_seq_grads(b->seq), "gradients");
		model_same(te_seq_masters(a->seq), te_seq_masters(b->seq), "weights");
		model_same(te_adamw_v(a->opt), te_adamw_v(b->opt), "moments");
		model_same_scales(te_seq_quant(a->seq), te_seq_quant(b->seq));
	}
}

START_TEST(a_step_has_the_bits_without_offload)
{
	const struct way *w = &ways[_i % WAYS];
	const char *recipe = recipes[_i / WAYS];
	const int odd = (_i + _i / WAYS) % 2;
	const struct te_offload_opts o = rates(odd ? SLOW : FAST);
	const struct model_shape *m = w->ncuts || _i / WAYS % 2 ? &small : &gpt;
	struct run plain = run_create(m, w, recipe, NULL), run = run_create(m, w, recipe, &o);
	struct te_offload_report rep = report_of(run.off);

	ck_assert_uint_gt(rep.moved_nbytes, 0);
	ck_assert_uint_eq(rep.pinned_nbytes, rep.moved_nbytes);
	ck_assert_uint_lt(pool_of(&run), pool_of(&plain));
	ck_assert_int_gt(rep.ngroups, w->ncuts);
	same_steps(&plain, &run);
	run_destroy(&plain);
	run_destroy(&run);
}
END_TEST

START_TEST(a_file_has_the_bits_too)
{
	const struct way *w = &ways[_i % WAYS];
	const struct te_offload_opts o = through_file(_i % 2 ? SLOW : FAST);
	const char *recipe = recipes[2 + _i % 3];
	struct run plain, run;
	struct te_offload_report rep;

	no_words = _i >= WAYS;
	plain = run_create(&small, w, recipe, NULL);
	run = run_create(&small, w, recipe, &o);

	ck_assert_uint_gt(report_of(run.off).moved_nbytes, 0);
	ck_assert_uint_lt(pool_of(&run), pool_of(&plain));
	same_steps(&plain, &run);
	DO(te_ctx_sync(ctx));
	ck_assert_int_eq(run.off->words, !no_words);
	ck_assert_int_eq(run.off->narmed > 0, w->flags && !no_words);
	rep = report_of(run.off);
	ck_assert_uint_ge(rep.read_nbytes, STEPS * rep.moved_nbytes);
	ck_assert_uint_ge(rep.written_nbytes, rep.read_nbytes);
	ck_assert_double_gt(rep.write_ms, 0);
	ck_assert_double_gt(rep.read_ms, 0);
	ck_assert_uint_eq(rep.nerrors, 0);
	run_destroy(&plain);
	run_destroy(&run);
}
END_TEST

static struct te_plan *plan_of(struct te_seq *seq, struct te_offload *off, uint32_t flags)
{
	const struct te_recipe rec = recipe_of("bf16");
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;

	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN | flags;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { small.batch, small.seqlen } };
	o.offload = off;
	DO(te_plan_create(seq, &o, &p));
	return p;
}

/* the copies of one direction run when the whole pass is queued: all that needs them waits */
START_TEST(late_copies_are_waited_for)
{
	const int out = _i & 1, file = _i & 2;
	struct te_offload_opts o = file ? through_file(FAST) : rates(FAST);
	struct te_seq *seq[2];
	struct te_plan *p[2];
	struct te_offload *off;
	int early = 0;

	o.group_nbytes = _i & 4 ? 32768 : 4096;
	off = offload_of(&o);
	for (int k = 0; k < 2; k++) {
		seq[k] = model_create(ctx, &small, 3);
		p[k] = plan_of(seq[k], k ? off : NULL, 0);
	}
	for (int i = 0; i < p[1]->moves->n; i++)
		early += p[1]->moves->v[i].in_before <= p[1]->moves->v[i].free_after;
	ck_assert(file || !(_i & 4) || early); /* groups that return before their memory is free */
	for (int step = 0; step < 2; step++) {
		int32_t t[2][NTOKENS];

		for (int i = 0; i < 2 * NTOKENS; i++)
			t[i / NTOKENS][i % NTOKENS] = (int32_t)tt_rand_int(0, small.vocab - 1);
		memset(p[1]->moves->pinned, 0xff, p[1]->moves->held);
		for (int k = 0; k < 2; k++) {
			DO(te_tensor_write(te_plan_input(p[k], "x"), t[0], sizeof(t[0])));
			DO(te_tensor_write(te_plan_input(p[k], "targets"), t[1], sizeof(t[1])));
			tt_gate_close();
			DO(te_host_call(!k ? st : out ? off->out : off->in, tt_gate_wait, NULL,
					0));
			DO(te_plan_forward(p[k], st, 0));
			DO(te_plan_backward(p[k], st));
			tt_gate_open();
			DO(te_ctx_sync(ctx));
		}
		model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "gradients");
	}
	for (int k = 0; k < 2; k++) {
		te_plan_unref(p[k]);
		te_seq_unref(seq[k]);
	}
	te_offload_unref(off);
}
END_TEST

/* ---- memory ---- */

static uint64_t arena_of(const struct te_plan *p)
{
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;

	DO(te_plan_memory(p, &pm));
	return pm.arena_nbytes;
}

static struct te_mem_info mem_now(void)
{
	struct te_mem_info mi = TE_MEM_INFO_INIT;

	DO(te_ctx_sync(ctx));
	DO(te_ctx_mem_info(ctx, &mi));
	return mi;
}

/* device memory of a plan, by the backend's count; the plan runs once */
static uint64_t used_by_plan(struct te_seq *seq, struct te_offload *off)
{
	const uint64_t before = tt_used();
	struct te_plan *p = plan_of(seq, off, 0);
	struct te_mem_info created = mem_now(), ran;
	const uint64_t used = created.used_nbytes - before;

	for (int i = 0; i < 2; i++) {
		model_feed(p, &small);
		DO(te_plan_forward(p, st, 0));
		DO(te_plan_backward(p, st));
	}
	ran = mem_now();
	ck_assert_uint_eq(ran.used_nbytes, created.used_nbytes);
	ck_assert_uint_eq(ran.pinned_nbytes, created.pinned_nbytes);
	te_plan_unref(p);
	return used;
}

START_TEST(memory_is_what_the_plan_predicts)
{
	const struct te_offload_opts fast = rates(FAST);
	struct te_offload *off = offload_of(&fast);
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_plan *first = plan_of(seq, NULL, 0); /* makes the copies of weights */
	struct te_plan *told = plan_of(seq, off, TE_PLAN_NO_ALLOC);
	const uint64_t plain = used_by_plan(seq, NULL), moved = used_by_plan(seq, off);
	struct te_offload_report rep;

	ck_assert_uint_eq(plain - moved, arena_of(first) - arena_of(told));
	/* most of what moves is free while forward ends and backward begins */
	rep = report_of(off);
	ck_assert_int_eq(rep.nplans, 1);
	ck_assert_uint_eq(rep.plain_nbytes, arena_of(first));
	ck_assert_uint_eq(rep.peak_nbytes, arena_of(told));
	ck_assert_uint_lt(3 * arena_of(told), 2 * arena_of(first));
	te_plan_unref(told);
	ck_assert_int_eq(report_of(off).nplans, 0);
	ck_assert_uint_eq(report_of(off).pinned_nbytes, 0);
	te_plan_unref(first);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

START_TEST(as_little_moves_as_a_target_takes)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_plan *p = plan_of(seq, NULL, TE_PLAN_NO_ALLOC);
	const uint64_t plain = arena_of(p);
	uint64_t last = UINT64_MAX, all;
	struct te_offload_opts o = rates(FAST);
	struct te_offload *off = offload_of(&o);

	te_plan_unref(p);
	p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
	all = report_of(off).moved_nbytes;
	te_plan_unref(p);
	te_offload_unref(off);
	for (uint64_t pct = 65; pct <= 105; pct += 5) {
		uint64_t moved;

		o.target_nbytes = plain * pct / 100;
		off = offload_of(&o);
		p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
		moved = report_of(off).moved_nbytes;
		ck_assert_uint_le(arena_of(p), o.target_nbytes);
		ck_assert_uint_le(moved, last);
		ck_assert_uint_le(moved, all);
		ck_assert(pct < 100 ? moved > 0 : moved == 0);
		last = moved;
		te_plan_unref(p);
		te_offload_unref(off);
	}
	te_seq_unref(seq);
}
END_TEST

START_TEST(a_target_can_make_passes_wait)
{
	struct te_offload_opts o = rates(SLOW);
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload *off = offload_of(&o);
	struct te_plan *p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
	const uint64_t least = arena_of(p);

	ck_assert_double_eq_tol(report_of(off).stall_ms, 0, 1e-9);
	ck_assert_double_eq_tol(report_of(off).hidden, 1, 1e-9);
	te_plan_unref(p);
	te_offload_unref(off);
	o.target_nbytes = least - least / 10;
	off = offload_of(&o);
	p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
	ck_assert_uint_le(arena_of(p), o.target_nbytes);
	ck_assert_double_gt(report_of(off).stall_ms, 0);
	ck_assert_double_lt(report_of(off).hidden, 1);
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

START_TEST(a_target_out_of_reach_is_named)
{
	const struct te_recipe rec = recipe_of("bf16");
	struct te_offload_opts o = rates(FAST);
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_step_opts so = TE_STEP_OPTS_INIT;
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_plan *p = NULL;
	struct te_step *step = NULL;
	struct te_offload *off;

	o.target_nbytes = 4096;
	off = offload_of(&o);
	po.recipe = so.recipe = &rec;
	po.flags = TE_PLAN_TRAIN;
	po.x = so.x = (struct te_spec){ TE_DTYPE_INT32, 2, { small.batch, small.seqlen } };
	po.offload = so.offload = off;
	fails(te_plan_create(seq, &po, &p), -ENOMEM, "the arena of the plan");
	tt_said("MiB at least, expected 0.00 MiB at most");
	so.ncuts = NCUTS;
	so.cut = cuts;
	fails(te_step_create(seq, NULL, &so, &step), -ENOMEM, "the pool of the step");
	ck_assert_ptr_null(p);
	ck_assert_ptr_null(step);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

static uint64_t pool_of_step(struct te_seq *seq, struct te_offload *off, int32_t ncuts)
{
	const struct te_recipe rec = recipe_of("bf16");
	struct te_step_memory sm = TE_STEP_MEMORY_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	const uint64_t before = tt_used();
	struct te_step *step;

	o.recipe = &rec;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { small.batch, small.seqlen } };
	o.ncuts = ncuts;
	o.cut = cuts;
	o.offload = off;
	DO(te_step_create(seq, NULL, &o, &step));
	DO(te_step_memory(step, &sm));
	ck_assert_uint_ge(tt_used() - before, sm.pool_nbytes);
	te_step_unref(step);
	return sm.pool_nbytes;
}

START_TEST(a_target_is_of_the_pool_of_a_step)
{
	const int32_t ncuts = _i ? NCUTS : 0;
	struct te_seq *seq = model_create(ctx, &small, 3);
	const uint64_t plain = pool_of_step(seq, NULL, ncuts);
	struct te_offload_opts o = rates(FAST);
	struct te_offload *off;
	uint64_t have;

	o.target_nbytes = plain * 4 / 5;
	off = offload_of(&o);
	have = pool_of_step(seq, off, ncuts);
	ck_assert_uint_le(have, o.target_nbytes);
	ck_assert_uint_ge(have, o.target_nbytes / 2);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

START_TEST(pinned_memory_has_a_limit)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload_opts o = rates(FAST);
	struct te_offload *off;
	struct te_plan *p[2];

	o.pinned_nbytes = 20000;
	off = offload_of(&o);
	for (int i = 0; i < 2; i++)
		p[i] = plan_of(seq, off, 0);
	ck_assert_uint_le(mem_now().pinned_nbytes, 20000);
	ck_assert_uint_gt(mem_now().pinned_nbytes, 10000);
	ck_assert_uint_eq(mem_now().pinned_nbytes, report_of(off).pinned_nbytes);
	for (int i = 0; i < 2; i++)
		te_plan_unref(p[i]);
	ck_assert_uint_eq(mem_now().pinned_nbytes, 0);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

/* ---- what moves ---- */

static char *table_of(struct te_seq *seq, const struct te_offload_opts *o)
{
	struct te_offload *off = offload_of(o);
	struct te_plan *p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
	char *text;

	DO(te_offload_print(off, &text));
	te_plan_unref(p);
	te_offload_unref(off);
	return text;
}

START_TEST(names_and_ops_choose_what_moves)
{
	static const char *const norms[] = { "h.*.norm.y" }, *const layer1[] = { "h.1.*" };
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload_opts o = rates(FAST);
	char *text;

	o.group_nbytes = 1; /* a group of each value */
	text = table_of(seq, &o);
	ck_assert_ptr_nonnull(strstr(text, "h.0.ln1.norm.y"));
	ck_assert_ptr_nonnull(strstr(text, "h.1.up.y"));
	ck_assert_ptr_nonnull(strstr(text, "h.0.attn.y"));
	free(text);
	o.keep = norms;
	o.nkeep = 1;
	text = table_of(seq, &o);
	ck_assert_ptr_null(strstr(text, ".norm.y"));
	ck_assert_ptr_nonnull(strstr(text, "h.0.attn.y"));
	free(text);
	o.move = layer1;
	o.nmove = 1;
	text = table_of(seq, &o);
	ck_assert_ptr_null(strstr(text, "h.0."));
	ck_assert_ptr_null(strstr(text, ".norm.y"));
	ck_assert_ptr_nonnull(strstr(text, "h.1.up.y"));
	free(text);
	for (int i = 0; i < te_seq_nops(seq); i++)
		if (!strcmp(te_op_name(te_seq_op(seq, i)), "h.1.up"))
			DO(te_op_keep(te_seq_op(seq, i)));
	text = table_of(seq, &o);
	ck_assert_ptr_null(strstr(text, "h.1.up.y"));
	ck_assert_ptr_nonnull(strstr(text, "h.1.attn.y"));
	free(text);
	fails(te_op_keep(NULL), -EINVAL, "te_op_keep");
	te_seq_unref(seq);
}
END_TEST

START_TEST(a_picture_shows_memory_over_time)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload_opts o = through_file(FAST);
	struct te_offload_report rep;
	struct te_offload *off;
	struct te_plan *p;
	double used = 0, plain = 0;
	char *text;

	o.endurance_nbytes = (uint64_t)1 << 50;
	off = offload_of(&o);
	p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
	DO(te_offload_print(off, &text));
	rep = report_of(off);
	for (char *s = strstr(text, "in use (#)"); s && (s = strchr(s, '\n'));) {
		double u, q;
		int first, last;

		if (sscanf(++s, "%d-%d %lf %lf", &first, &last, &u, &q) < 4)
			break;
		ck_assert_int_le(first, last);
		used = u > used ? u : used;
		plain = q > plain ? q : plain;
	}
	/* each column has its peak; placement may take more, for lack of a better order */
	ck_assert_double_gt(used, 0);
	ck_assert_double_lt(used, plain);
	ck_assert_double_le(used, (double)rep.peak_nbytes / 1048576.0 + 0.001);
	ck_assert_double_le(plain, (double)rep.plain_nbytes / 1048576.0 + 0.001);
	ck_assert_double_ge(used, (double)rep.peak_nbytes / 1048576.0 * 0.7);
	ck_assert_double_gt(rep.pass_ms, rep.stall_ms);
	ck_assert_double_eq_tol(rep.drive_days,
				(double)o.endurance_nbytes / (double)rep.moved_nbytes *
					rep.pass_ms / 86400e3, 1e-6 * rep.drive_days);
	ck_assert_ptr_nonnull(strstr(text, "days of the drive's life"));
	free(text);
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

START_TEST(large_groups_are_few_copies)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload_opts o = rates(FAST);
	uint64_t nbytes[2];
	int32_t n[2];

	for (int i = 0; i < 2; i++) {
		struct te_offload *off;
		struct te_plan *p;

		o.group_nbytes = i ? 16384 : 1;
		off = offload_of(&o);
		p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
		n[i] = report_of(off).ngroups;
		nbytes[i] = report_of(off).moved_nbytes;
		te_plan_unref(p);
		te_offload_unref(off);
	}
	ck_assert_int_lt(2 * n[1], n[0]);
	ck_assert_uint_eq(nbytes[0], nbytes[1]);
	te_seq_unref(seq);
}
END_TEST

/* ---- use ---- */

START_TEST(a_report_counts_copies)
{
	const struct te_offload_opts fast = rates(FAST);
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload *off = offload_of(&fast);
	struct te_plan *p = plan_of(seq, off, 0);
	struct te_offload_report rep;

	/* the second forward follows one without backward */
	for (int i = 0; i < 2; i++)
		DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	rep = report_of(off);
	ck_assert_uint_eq(rep.nforwards, 2);
	ck_assert_uint_eq(rep.out_nbytes, 2 * rep.moved_nbytes);
	ck_assert_uint_eq(rep.ncopies, 3 * (uint64_t)rep.ngroups);
	ck_assert_uint_eq(rep.in_nbytes, rep.moved_nbytes);
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

START_TEST(both_passes_are_captured_or_none)
{
	const struct te_offload_opts fast = rates(FAST);
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload *off = offload_of(&fast);
	struct te_plan *p = plan_of(seq, off, 0);
	struct te_recording *rec = NULL;

	DO(te_plan_forward(p, st, 0));
	DO(te_capture_begin(st));
	fails(te_plan_backward(p, st), -TE_ESTATE, "was not captured");
	DO(te_capture_end(st, &rec));
	te_recording_unref(rec);
	DO(te_plan_backward(p, st));
	DO(te_ctx_sync(ctx));
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

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

START_TEST(a_file_that_fails_is_named)
{
	const struct te_offload_opts o = through_file(FAST);
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload *off = offload_of(&o);
	struct te_plan *p = plan_of(seq, off, 0);

	model_feed(p, &small);
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_ctx_sync(ctx));
	damage_file();
	DO(te_plan_backward(p, st));
	DO(te_ctx_sync(ctx));
	ck_assert_int_lt(te_plan_forward(p, st, 0), 0);
	tt_said("offload: read of group");
	tt_said("of the file in /tmp");
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}
END_TEST

/* less moves where the file has no room for all, down to nothing */
START_TEST(a_small_file_takes_less)
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
END_TEST

/* ---- failures of the file in every way to run a step ---- */

/* the engine of a spill, of whose blocks in one direction one fails, or never ends */
static struct {
	struct te__spill_ops ops;
	void (*submit)(void *impl, const struct te__blk *blk);
	enum te__spill_dir dir;
	int left; /* blocks until then */
	int drop;
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

static void break_file(struct te__spill *s, enum te__spill_dir dir, int left, int drop)
{
	pthread_mutex_lock(&s->lock);
	s->timeout_ms = drop ? TT_SLOWER(200) : s->timeout_ms;
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

START_TEST(any_failure_ends_the_step_and_is_named)
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
END_TEST

START_TEST(steps_allocate_nothing)
{
	const struct te_offload_opts fast = rates(FAST);
	struct run run = run_create(&small, &ways[_i], "fp8-delayed", &fast);
	uint64_t nallocs = 0;
	int64_t live = 0;

	for (int k = 0; k < 6; k++) {
		DO(te_step_run(run.step, 0, st));
		DO(te_ctx_sync(ctx));
		if (k == 1) {
			nallocs = mem_now().nallocs;
			live = te__alloc_live();
		}
	}
	ck_assert_uint_eq(mem_now().nallocs, nallocs);
	ck_assert_int_eq(te__alloc_live(), live);
	run_destroy(&run);
}
END_TEST

START_TEST(rates_are_measured)
{
	struct te_offload *off = offload_of(NULL);
	struct te_offload_report rep = report_of(off);
	char *text;

	ck_assert_double_gt(rep.out_rate, 1e6);
	ck_assert_double_gt(rep.in_rate, 1e6);
	ck_assert_double_gt(rep.mem_rate, 1e6);
	ck_assert_double_gt(rep.flop_rate, 1e6);
	ck_assert_int_eq(rep.nplans, 0);
	DO(te_offload_print(off, &text));
	ck_assert_ptr_nonnull(strstr(text, "total: 0.00 MiB move"));
	free(text);
	ck_assert_ptr_eq(te_offload_ref(off), off);
	te_offload_unref(off);
	te_offload_unref(off);
	ck_assert_ptr_null(te_offload_unref(NULL));
}
END_TEST

START_TEST(options_must_fit)
{
	struct te_offload_opts o = TE_OFFLOAD_OPTS_INIT;
	const char *const none[] = { NULL };
	struct te_offload *off = NULL;
	char *text = NULL;

	fails(te_offload_create(NULL, NULL, &off), -EINVAL, "ctx is NULL");
	fails(te_offload_create(ctx, NULL, NULL), -EINVAL, "ret_offload is NULL");
	o.margin = 1;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "margin is 1");
	o.margin = 0;
	o.nkeep = 1;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "1 patterns to keep");
	o.keep = none;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "keep[0] is NULL");
	o.nkeep = 0;
	o.nmove = 1;
	o.move = none;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "move[0] is NULL");
	o.nmove = -1;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "-1 to move");
	o.nmove = 0;
	o.in_rate = -1;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "a rate is -1");
	o.in_rate = 0;
	o.verify = 3;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "verify is 3");
	o.verify = 0;
	o.dir = "/tmp";
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "quota_nbytes of dir /tmp is 0");
	o.quota_nbytes = (uint64_t)16 << 20;
	o.pinned_nbytes = (uint64_t)4 << 20;
	o.dir = "/nowhere/at/all";
	fails(te_offload_create(ctx, &o, &off), -ENOENT, "/nowhere/at/all");
	fails(te_offload_print(NULL, &text), -EINVAL, "offload is NULL");
	ck_assert_ptr_null(off);
	ck_assert_ptr_null(text);
}
END_TEST

static int create_and_run(struct te_seq *seq)
{
	const struct te_recipe rec = recipe_of("bf16");
	struct te_offload_opts oo = rates(FAST);
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_offload *off = NULL;
	struct te_step *step = NULL;
	int r;

	oo.keep = oo.move = cuts;
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

START_TEST(a_failure_leaves_nothing)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	int64_t live;
	int fired = 1;

	DO(create_and_run(seq));
	live = te__alloc_live();
	for (uint64_t n = 1; fired; n += n < 200 ? (uint64_t)TT_SLOWER(1) : 61) {
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
END_TEST

Suite *offload_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);
	TCase *c = tt_case(s, "bits", "graph offload");

	backend = on;
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	TT_ADD_LOOP(c, a_step_has_the_bits_without_offload,
		    WAYS * (int)TT_LEN(recipes), 3);
	tcase_add_loop_test(c, late_copies_are_waited_for, 0, 8);
	TT_ADD_LOOP(c, a_file_has_the_bits_too, 2 * WAYS, 3);
	c = tt_case(s, "memory", "graph offload serial");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_test(c, memory_is_what_the_plan_predicts);
	tcase_add_test(c, as_little_moves_as_a_target_takes);
	tcase_add_test(c, a_target_can_make_passes_wait);
	tcase_add_test(c, a_target_out_of_reach_is_named);
	tcase_add_loop_test(c, a_target_is_of_the_pool_of_a_step, 0, 2);
	tcase_add_test(c, pinned_memory_has_a_limit);
	c = tt_case(s, "values", "graph offload serial");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_test(c, names_and_ops_choose_what_moves);
	tcase_add_test(c, a_picture_shows_memory_over_time);
	tcase_add_test(c, large_groups_are_few_copies);
	c = tt_case(s, "failures", "graph offload serial");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	TT_ADD_LOOP(c, any_failure_ends_the_step_and_is_named, 4 * WAYS, 3);
	c = tt_case(s, "use", "graph offload");
	tcase_add_checked_fixture(c, tt_setup, tt_teardown);
	tcase_add_test(c, a_report_counts_copies);
	tcase_add_test(c, a_file_that_fails_is_named);
	tcase_add_test(c, a_small_file_takes_less);
	tcase_add_test(c, both_passes_are_captured_or_none);
	tcase_add_loop_test(c, steps_allocate_nothing, 0, WAYS);
	tcase_add_test(c, rates_are_measured);
	tcase_add_test(c, options_must_fit);
	tcase_add_test(c, a_failure_leaves_nothing);
	return s;
}
