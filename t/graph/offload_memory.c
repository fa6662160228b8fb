/*
 * t/graph/offload_memory.c - te_offload_*(3): the memory is what the plan predicts, a target is
 * reached, and what must stay stays.
 */
#include "config.h"

#include "libtecore/plan/moves.h"
#include "offload_lib.h"

static uint64_t arena_of(const struct te_plan *p)
{
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT;

	DO(te_plan_memory(p, &pm));
	return pm.arena_nbytes;
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

CTX_CASE(memory, "graph offload serial");

TEST(memory, memory_is_what_the_plan_predicts)
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

TEST(memory, as_little_moves_as_a_target_takes)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_plan *p = plan_of(seq, NULL, TE_PLAN_NO_ALLOC);
	const uint64_t plain = arena_of(p);
	uint64_t last = UINT64_MAX, all;
	struct te_offload_opts o = rates(FAST);
	struct te_offload *off = offload_of(&o), *other;

	te_plan_unref(p);
	p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
	all = report_of(off).moved_nbytes;
	te_plan_unref(p);
	te_offload_unref(off);
	other = offload_of(&o);
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
		/* and by an object that had none */
		DO(te_offload_set_target(other, o.target_nbytes));
		p = plan_of(seq, other, TE_PLAN_NO_ALLOC);
		ck_assert_uint_eq(report_of(other).moved_nbytes, moved);
		te_plan_unref(p);
	}
	fails(te_offload_set_target(NULL, 1), -EINVAL, "offload is NULL");
	te_offload_unref(other);
	te_seq_unref(seq);
}

static const struct model_shape deep = { 48, 32, 2, 16, 4, 4, 12, 0.1f, 0 };

TEST(memory, a_target_can_make_passes_wait)
{
	struct te_offload_opts o = rates(SLOW);
	struct te_seq *seq = model_create(ctx, &deep, 3);
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
	/* where memory runs out, not for each copy */
	ck_assert_double_gt(report_of(off).hidden, 0.3);
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}

TEST_EACH(memory, passes_that_wait_have_the_bits, WAYS - 1, .parts = 3)
{
	struct te_offload_opts o = rates(SLOW);
	struct run plain = run_create(&deep, &ways[_i], "fp8-delayed", NULL), run;

	o.target_nbytes = pool_of(&plain) * 7 / 10;
	run = run_create(&deep, &ways[_i], "fp8-delayed", &o);
	ck_assert_double_gt(report_of(run.off).stall_ms, 0);
	same_steps(&plain, &run);
	run_destroy(&plain);
	run_destroy(&run);
}

static struct te_step *step_of(struct te_seq *seq, struct te_offload *off, int32_t ncuts,
			       uint32_t flags)
{
	const struct te_recipe rec = model_recipe("bf16");
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_step *step;

	o.recipe = &rec;
	o.flags = flags;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { small.batch, small.seqlen } };
	o.ncuts = ncuts;
	o.cut = cuts;
	o.offload = off;
	DO(te_step_create(seq, NULL, &o, &step));
	return step;
}

/* the slower the link, the less moves, and nothing is waited for */
TEST_EACH(memory, what_a_part_would_wait_for_stays, 2)
{
	const double speed[] = { 1e12, 1e9, 2e8, 5e7, 5e6, 1e3 };
	struct te_seq *seq = model_create(ctx, &small, 3);
	uint64_t last = UINT64_MAX, all = 0;
	int nsome = 0;

	for (size_t i = 0; i < TT_LEN(speed); i++) {
		struct te_offload_opts o = _i ? through_file(FAST) : rates(FAST);
		struct te_offload_report rep;
		struct te_offload *off;
		struct te_step *step;

		o.out_rate = o.in_rate = _i ? 1e12 : speed[i];
		o.write_rate = o.read_rate = speed[i];
		o.group_nbytes = 1;
		off = offload_of(&o);
		step = step_of(seq, off, NCUTS, TE_STEP_NO_ALLOC);
		rep = report_of(off);
		ck_assert_double_le(rep.stall_ms, 1e-6 * rep.pass_ms);
		ck_assert_uint_le(rep.moved_nbytes, last);
		last = rep.moved_nbytes;
		nsome += last > 0 && last < all;
		all = i ? all : last;
		te_step_unref(step);
		te_offload_unref(off);
	}
	ck_assert_uint_eq(last, 0);
	ck_assert_int_gt(nsome, 0);
	te_seq_unref(seq);
}

/* no fewer than the target takes, with the same bits */
TEST_EACH(memory, a_target_can_make_parts_wait, WAYS - 3)
{
	struct te_offload_opts o = rates(SLOW);
	struct run plain = run_create(&small, &ways[3 + _i], "bf16", NULL);
	struct run hidden = run_create(&small, &ways[3 + _i], "bf16", &o), run;

	o.target_nbytes = pool_of(&plain) * 4 / 5;
	ck_assert_uint_gt(pool_of(&hidden), o.target_nbytes);
	run = run_create(&small, &ways[3 + _i], "bf16", &o);
	ck_assert_uint_le(pool_of(&run), o.target_nbytes);
	ck_assert_uint_gt(report_of(run.off).moved_nbytes, report_of(hidden.off).moved_nbytes);
	ck_assert_double_gt(report_of(run.off).stall_ms, report_of(hidden.off).stall_ms);
	same_steps(&plain, &run);
	run_destroy(&plain);
	run_destroy(&hidden);
	run_destroy(&run);
}

/* copies out do not wait for copies back: their slots are of different memory */
TEST(memory, slots_that_were_read_into_are_not_written_in_one_forward_pass)
{
	static const double per_s[] = { 1e7, 1e8, 1e9, 1e11 };
	struct te_seq *seq = model_create(ctx, &small, 3);
	int early = 0;

	for (int i = 0; i < 48; i++) {
		struct te_offload_opts o = through_file(FAST);
		struct te_offload *off;
		struct te_plan *p;

		o.out_rate = o.in_rate = per_s[i % 4];
		o.write_rate = o.read_rate = per_s[i / 4 % 4];
		o.group_nbytes = i < 16 ? 1 : i < 32 ? 4096 : 32768;
		off = offload_of(&o);
		p = plan_of(seq, off, TE_PLAN_NO_ALLOC);
		for (int k = 0; k < p->moves->n; k++)
			for (int l = 0; l < p->moves->n; l++) {
				const struct te__move *in = &p->moves->v[k], *out = &p->moves->v[l];

				ck_assert_int_lt(out->out_after, p->fwd_groups);
				early += in->in_before < p->fwd_groups;
				ck_assert(in->read_before > out->written_by ||
					  in->slot_in + in->nbytes <= out->slot ||
					  out->slot + out->nbytes <= in->slot_in);
			}
		te_plan_unref(p);
		te_offload_unref(off);
	}
	ck_assert_int_gt(early, 0); /* some return before forward has ended */
	te_seq_unref(seq);
}

/* a drive that would need several times the time of a step, with the same bits */
TEST_EACH(memory, a_target_can_make_passes_wait_for_a_file, 3)
{
	struct te_offload_opts o = through_file(FAST);
	struct run plain = run_create(&small, &ways[_i], "bf16", NULL), run;
	struct te_offload_report rep;

	o.write_rate = o.read_rate = 1e6;
	o.target_nbytes = pool_of(&plain) * 4 / 5;
	run = run_create(&small, &ways[_i], "bf16", &o);
	rep = report_of(run.off);
	ck_assert_uint_le(pool_of(&run), o.target_nbytes);
	ck_assert_uint_gt(rep.moved_nbytes, 0);
	/* most of the time that the drive takes */
	ck_assert_double_ge(rep.stall_ms, 2e3 * (double)rep.moved_nbytes / 1e6 * 0.5);
	same_steps(&plain, &run);
	run_destroy(&plain);
	run_destroy(&run);
}

TEST(memory, a_target_out_of_reach_is_named)
{
	const struct te_recipe rec = model_recipe("bf16");
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

static uint64_t pool_of_step(struct te_seq *seq, struct te_offload *off, int32_t ncuts)
{
	struct te_step_memory sm = TE_STEP_MEMORY_INIT;
	const uint64_t before = tt_used();
	struct te_step *step = step_of(seq, off, ncuts, 0);

	DO(te_step_memory(step, &sm));
	ck_assert_uint_ge(tt_used() - before, sm.pool_nbytes);
	te_step_unref(step);
	return sm.pool_nbytes;
}

TEST_EACH(memory, a_target_is_of_the_pool_of_a_step, 2)
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

/* the predicted time of the passes of a step, of which speed is the device's and nothing moves */
static double passes_ms(struct te_seq *seq, double speed, int32_t nmicro, int32_t ncuts)
{
	struct te_step_memory sm = TE_STEP_MEMORY_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_offload_opts oo = rates(FAST);
	struct te_step *step;

	oo.mem_rate *= speed;
	oo.flop_rate *= speed;
	oo.target_nbytes = UINT64_MAX;
	o.flags = TE_STEP_NO_ALLOC;
	o.micro_batches = nmicro;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { small.batch, small.seqlen } };
	o.ncuts = ncuts;
	o.cut = cuts;
	o.offload = speed > 0 ? offload_of(&oo) : NULL;
	DO(te_step_create(seq, NULL, &o, &step));
	DO(te_step_memory(step, &sm));
	te_step_unref(step);
	te_offload_unref(o.offload);
	return sm.passes_ms;
}

TEST(memory, a_step_predicts_the_time_of_its_passes)
{
	struct te_seq *seq = model_create(ctx, &small, 3);
	const double one = passes_ms(seq, 1, 1, 0), parts = passes_ms(seq, 1, 1, NCUTS);

	ck_assert_double_eq(passes_ms(seq, 0, 1, 0), 0);
	ck_assert_double_gt(one, 0);
	ck_assert_double_eq_tol(passes_ms(seq, 0.5, 1, 0), 2 * one, 1e-9 * one);
	ck_assert_double_eq_tol(passes_ms(seq, 1, 3, 0), 3 * one, 1e-9 * one);
	/* parts pass their gradients on: they access a little more than the whole */
	ck_assert_double_gt(parts, 0.99 * one);
	ck_assert_double_lt(parts, 1.5 * one);
	ck_assert_double_eq_tol(passes_ms(seq, 1, 3, NCUTS), 3 * parts, 1e-9 * parts);
	te_seq_unref(seq);
}

TEST(memory, pinned_memory_has_a_limit)
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

CTX_CASE(values, "graph offload serial");

TEST(values, names_and_ops_choose_what_moves)
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

TEST(values, a_picture_shows_memory_over_time)
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

TEST(values, large_groups_are_few_copies)
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
