/*
 * t/graph/offload.c - te_offload_*(3): a step has the same bits whatever moves, eagerly, as
 * a graph and as graphs of passes; reports and options.
 */
#include "config.h"

#include <inttypes.h>

#include "libtecore/base/private.h"
#include "libtecore/plan/moves.h"
#include "offload_lib.h"
#include "tt_gate.h"

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 3, 0.2f, 0 };
static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current", "fp8-block" };

CASE(bits, "graph offload", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(bits, a_step_has_the_bits_without_offload, WAYS * (int)TT_LEN(recipes), .parts = 3)
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

TEST_EACH(bits, a_file_has_the_bits_too, 2 * WAYS, .parts = 3)
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

/* the copies of one direction run when the whole pass is queued: all that needs them waits */
TEST_EACH(bits, late_copies_are_waited_for, 8)
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
	tt_drop_both(p, seq);
	te_offload_unref(off);
}

/* node a of a recording depends on node b, perhaps through others */
static int depends(const struct te_recording *rec, uint64_t a, uint64_t b)
{
	uint64_t dep[64];
	const int n = te_recording_deps(rec, a, TT_LEN(dep), dep);

	ck_assert_int_le(n, (int)TT_LEN(dep));
	for (int i = n; i-- > 0;)
		if (dep[i] == b || (dep[i] > b && depends(rec, dep[i], b)))
			return 1;
	return 0;
}

/* in a graph copies could run in any order that their memory allows; the plan counts on its own */
TEST_EACH(bits, captured_copies_keep_their_order, 2)
{
	struct te_offload_opts o = _i ? through_file(FAST) : rates(FAST);
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_seq *seq = model_create(ctx, &small, 3);
	uint64_t latest[2] = { UINT64_MAX, UINT64_MAX };
	struct te_recording *rec = NULL;
	struct te_offload *off;
	int act = 0, ncopies = 0;
	struct te_plan *p;

	o.group_nbytes = 2048;
	o.timed = 1;
	off = offload_of(&o);
	p = plan_of(seq, off, 0);
	ck_assert_int_gt(p->moves->n, 4);
	DO(te_capture_begin(st));
	DO(te_capture_edges(st, TE_CAPTURE_CONCURRENT));
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	DO(te_capture_end(st, &rec));
	DO(te_recording_info(rec, &info));
	for (uint64_t i = 0; i < info.nnodes; i++) {
		struct te_node_info node = TE_NODE_INFO_INIT;
		const struct te__act *a = &p->moves->act[act];
		int in;

		DO(te_recording_node(rec, i, &node));
		if (node.kind != TE_NODE_COPY)
			continue;
		while (a->kind != TE__ACT_LOAD && a->kind != TE__ACT_STORE)
			a = &p->moves->act[++act];
		ck_assert_uint_eq(node.nbytes, p->moves->v[a->move].nbytes);
		in = a->kind == TE__ACT_LOAD;
		if (latest[in] != UINT64_MAX && !(in && o.dir))
			ck_assert_msg(depends(rec, i, latest[in]),
				      "copy %d, %s, node %" PRIu64 ": not after node %" PRIu64,
				      ncopies, in ? "in" : "out", i, latest[in]);
		latest[in] = i;
		act++;
		ncopies++;
	}
	ck_assert_int_eq(ncopies, 2 * p->moves->n);
	te_recording_unref(rec);
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}

/* ---- use ---- */

CTX_CASE(use, "graph offload");

TEST(use, a_report_counts_copies)
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

TEST(use, both_passes_are_captured_or_none)
{
	const struct te_offload_opts fast = rates(FAST);
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload *off = offload_of(&fast);
	struct te_plan *p = plan_of(seq, off, 0);
	struct te_recording *rec;

	DO(te_plan_forward(p, st, 0));
	DO(te_capture_begin(st));
	fails(te_plan_backward(p, st), -TE_ESTATE, "was not captured");
	fails(te_capture_end(st, &rec), -TE_ESTATE, "was not captured");
	DO(te_plan_backward(p, st));
	DO(te_ctx_sync(ctx));
	te_plan_unref(p);
	te_offload_unref(off);
	te_seq_unref(seq);
}

static struct te_callable callable_of(struct te_plan *p)
{
	struct te_callable c = TE_CALLABLE_INIT;

	DO(te_callable_from_plan(p, "a", &c));
	return c;
}

/* two graphs of it could be replayed at once */
TEST(use, a_plan_is_the_callable_of_one_graph)
{
	const struct te_offload_opts fast = rates(FAST);
	struct te_seq *seq = model_create(ctx, &small, 3);
	struct te_offload *off = offload_of(&fast);
	struct te_plan *p = plan_of(seq, off, TE_PLAN_EXTERNAL);
	struct te_plan *plain = plan_of(seq, NULL, TE_PLAN_EXTERNAL);
	struct te_callable a = callable_of(p), c = TE_CALLABLE_INIT, untouched = c;

	fails(te_callable_from_plan(p, "b", &c), -EBUSY, "the plan of b offloads values");
	ck_assert(!memcmp(&c, &untouched, sizeof(c)));
	a.release(a.self);
	a = callable_of(p);
	a.release(a.self);
	/* without offload all its memory is that of the graph */
	a = callable_of(plain);
	c = callable_of(plain);
	a.release(a.self);
	c.release(c.self);
	te_plan_unref(p);
	te_plan_unref(plain);
	te_offload_unref(off);
	te_seq_unref(seq);
}

TEST_EACH(use, steps_allocate_nothing, WAYS)
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

TEST(use, rates_are_measured)
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

TEST(use, options_must_fit)
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
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "nkeep is 1, and keep is NULL");
	o.keep = none;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "keep[0] is NULL");
	o.nkeep = 0;
	o.nmove = 1;
	o.move = none;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "move[0] is NULL");
	o.nmove = -1;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "nmove is -1, and move is a list");
	o.nmove = 0;
	o.in_rate = -1;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "a rate is -1");
	o.in_rate = 0;
	o.verify = 3;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "verify is 3");
	o.verify = 0;
	o.timed = 2;
	fails(te_offload_create(ctx, &o, &off), -EINVAL, "timed is 2");
	o.timed = 0;
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

TT_PAIR_SUITE("graph/offload")
{
	/* these small models are laid out as large ones are: all buffers share memory */
	setenv("TE_PLAN_SEPARATE", "off", 1);
	/* other programs use the disk, too */
	setenv("TE_OFFLOAD_TIMEOUT_MS", "60000", 1);
}
