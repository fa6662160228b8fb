/* t/plan/plan_hooks.c - hooks between steps, what plans save, and state of ops and fusions. */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>
#include <te/plan.h>
#include <te/stream.h>

#include "libtecore/plan/plan.h"
#include "libtecore/quant/quant.h"
#include "plan_cases.h"
#include "tt_ctx.h"
#include "tt_num.h"

static const struct model_shape shapes[] = {
	{ 48, 32, 2, 16, 4, 4, 2, 0.2f, 0 },
	{ 48, 32, 2, 16, 4, 2, 2, 0, 1 },
};
#define NWAYS ((int)TT_LEN(shapes) * NRECIPES)

#define ALL_EVENTS ((1u << TE_PLAN_EVENT_COUNT) - 1)

/* what a hook saw, and what it does */
struct seen {
	int nopen, nsteps, nscales, namaxes;
	int ngrads, weight[64];
	/* a copy of each gradient at its event, queued by the hook; or NULL */
	struct te_tensor *snapshot;
	float amax; /* above 0: written into the amax of every slot before the scales are updated */
	int r;	    /* returned at the first weight's event */
	const char *said;
};

static int snapshot(const struct seen *s, const struct te_plan *plan, const struct te_plan_event *e)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	int r = te_seq_weight(plan->seq, e->weight, &w);

	return r ? r : te_copy(e->stream, (float *)te_tensor_data(s->snapshot) + w.offset_nelems,
			       te_tensor_data(w.grad), te_tensor_nbytes(w.grad));
}

static int hook(void *arg, struct te_plan *plan, const struct te_plan_event *e)
{
	struct seen *s = arg;
	uint32_t bits;
	int r = 0;

	ck_assert_uint_eq(e->size, sizeof(*e));
	switch (e->kind) {
	case TE_PLAN_EVENT_BEGIN:
		ck_assert_ptr_nonnull(te_op_name(e->op));
		ck_assert_ptr_nonnull(e->step);
		s->nopen++;
		s->nsteps++;
		return 0;
	case TE_PLAN_EVENT_END:
		s->nopen--;
		ck_assert_int_ge(s->nopen, 0);
		return 0;
	case TE_PLAN_EVENT_GRAD:
		ck_assert_int_eq(s->nopen, 0);
		ck_assert_int_eq(e->pass, TE_PASS_BACKWARD);
		ck_assert_int_lt(s->ngrads, TT_LEN(s->weight));
		s->weight[s->ngrads++] = e->weight;
		if (s->snapshot)
			r = snapshot(s, plan, e);
		if (s->r && s->said)
			return te_fail(s->r, "weight %d: %s", e->weight, s->said);
		return s->r ? s->r : r;
	case TE_PLAN_EVENT_AMAX:
		ck_assert_int_gt(s->nopen, 0);
		ck_assert_ptr_nonnull(te_op_name(e->op));
		ck_assert_str_eq(e->step, "quantize");
		ck_assert_int_eq(e->pass, e->slot < 2 * te_seq_nops(plan->seq) ? TE_PASS_FORWARD :
										 TE_PASS_BACKWARD);
		ck_assert_int_eq(e->nslots, 1);
		s->namaxes++;
		memcpy(&bits, &s->amax, sizeof(bits));
		if (s->amax > 0)
			r = te_fill_u32(e->stream,
					te_quant_amax_ptr(te_seq_quant(plan->seq), e->slot), bits,
					sizeof(float));
		return r;
	default:
		ck_assert_int_eq(e->kind, TE_PLAN_EVENT_SCALES);
		ck_assert_int_eq(s->nopen, 0);
		s->nscales++;
		memcpy(&bits, &s->amax, sizeof(bits));
		for (int k = e->slot; s->amax > 0 && k < e->slot + e->nslots && !r; k++)
			r = te_fill_u32(e->stream, te_quant_amax_ptr(te_seq_quant(plan->seq), k),
					bits, sizeof(float));
		return r;
	}
}

static struct te_plan *hooked(struct te_seq *seq, const struct model_shape *m, const char *recipe,
			      uint32_t flags, struct seen *s)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = tt_recipe(recipe);
	struct te_plan *p;

	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN | flags;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	o.hook = hook;
	o.hook_arg = s;
	o.hooks = ALL_EVENTS;
	DO(te_plan_create(seq, &o, &p));
	model_feed(p, m);
	return p;
}

static void step(struct te_plan *p)
{
	DO(te_seq_zero_grads(p->seq, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_plan_backward(p, st));
	if (p->flags & TE_PLAN_DELAY_DW)
		DO(te_plan_backward_dw(p, st));
}

static void rewind_masks(struct te_seq *seq)
{
	DO(te_seq_rng_set(seq, 3, 0));
}

CTX_CASE(hooks, "hooks");

/* each weight once, when its gradient is what it will be at the end: eager, and in a replay */
TEST_EACH(hooks, gradients_are_complete_at_their_events, 2 * NWAYS)
{
	const struct model_shape *m = &shapes[_i % TT_LEN(shapes)];
	const char *recipe = recipes[(size_t)_i / TT_LEN(shapes) % TT_LEN(recipes)];
	const uint32_t flags = _i >= NWAYS ? TE_PLAN_DELAY_DW : 0;
	struct te_seq *seq = model_create(ctx, m, 5);
	struct seen s = { 0 };
	struct te_plan *p;
	struct te_recording *rec;
	int last;

	s.snapshot = NULL;
	p = hooked(seq, m, recipe, flags, &s);
	DO(te_tensor_create(ctx, TE_DTYPE_FP32, 1,
			    (const int64_t[]){ te_tensor_nelems(te_seq_grads(seq)) }, NULL,
			    &s.snapshot));
	DO(te_fill(st, te_tensor_data(s.snapshot), 0, te_tensor_nbytes(s.snapshot)));
	step(p);
	ck_assert_int_eq(s.nopen, 0);
	ck_assert_int_eq(s.nsteps, p->nsteps);
	ck_assert_int_eq(s.ngrads, te_seq_nweights(seq));
	ck_assert_int_eq(s.nscales, te__recipe_casts(&p->recipe) ? 2 : 0);
	model_same(s.snapshot, te_seq_grads(seq), "gradients at their events");
	/* in backward order of the ops; a tied weight comes with its owner, the embedding */
	last = p->nops;
	for (int i = 0; i < s.ngrads; i++) {
		const int op = seq->weight[s.weight[i]].op_index;

		ck_assert_int_le(op, last);
		last = op;
		for (int k = 0; k < i; k++)
			ck_assert_int_ne(s.weight[k], s.weight[i]);
	}

	DO(te_capture_begin(st));
	step(p);
	DO(te_capture_end(st, &rec));
	DO(te_fill(st, te_tensor_data(s.snapshot), 0, te_tensor_nbytes(s.snapshot)));
	DO(te_fill(st, te_tensor_data(te_seq_grads(seq)), 0xff, te_tensor_nbytes(s.snapshot)));
	DO(te_recording_launch(rec, st));
	DO(te_stream_sync(st));
	model_same(s.snapshot, te_seq_grads(seq), "gradients at their events, replayed");
	te_recording_unref(rec);
	te_tensor_unref(s.snapshot);
	tt_drop(p, seq);
}

/* amaxes that the hook writes, as a reduction over ranks does, are those that scales follow */
TEST(hooks, scales_follow_what_the_hook_makes_of_amaxes)
{
	const struct model_shape *m = &shapes[1];
	struct te_seq *seq = model_create(ctx, m, 5);
	struct seen s = { .amax = 4096 };
	struct te_plan *p = hooked(seq, m, "fp8-delayed", 0, &s);
	struct te_quant *q = te_seq_quant(seq);
	float scale, history[1024];
	int ncast = 0;

	step(p);
	DO(te_stream_sync(st));
	for (int k = 0; k < te_quant_nslots(q); k++) {
		DO(te_quant_peek(q, k, &scale, history));
		ck_assert_float_eq(scale, (float)te_dtype_max(te_quant_dtype(q, k)) / 4096);
		ncast++;
	}
	ck_assert_int_gt(ncast, 0);
	tt_drop(p, seq);
}

/* the same of current scaling, where each cast of an activation or a gradient has an event */
TEST_EACH(hooks, current_scales_follow_what_the_hook_makes_of_amaxes, 4)
{
	const struct model_shape *m = &shapes[_i % 2];
	struct te_seq *seq = model_create(ctx, m, 5);
	struct seen s = { .amax = 4096 };
	struct te_plan *p = hooked(seq, m, "fp8-current", _i / 2 ? TE_PLAN_NO_FUSION : 0, &s);
	const int n = te_seq_nops(seq);
	struct te_quant *q = te_seq_quant(seq);
	float scale, amax;
	int ncast = 0;

	step(p);
	DO(te_stream_sync(st));
	for (int k = 0; k < te_quant_nslots(q); k++) {
		DO(te_quant_peek(q, k, &scale, &amax));
		if (scale == 1 || (k < 2 * n && k % 2)) /* never cast, or of a weight */
			continue;
		ck_assert_float_eq(scale, (float)te_dtype_max(te_quant_dtype(q, k)) / 4096);
		ncast++;
	}
	ck_assert_int_gt(ncast, 8);
	ck_assert_int_eq(s.namaxes, ncast);
	tt_drop(p, seq);
}

TEST(hooks, a_failing_hook_ends_the_pass)
{
	const struct model_shape *m = &shapes[1];

	for (int said = 0; said < 2; said++) {
		struct te_seq *seq = model_create(ctx, m, 5);
		struct seen s = { .r = -ENOSPC, .said = said ? "the disk is full" : NULL };
		struct te_plan *p = hooked(seq, m, "bf16", 0, &s);

		DO(te_seq_zero_grads(seq, st));
		DO(te_plan_forward(p, st, 0));
		/* somebody else's failure must not be taken for the hook's */
		ck_assert_int_eq(te_plan_bind(NULL, NULL), -EINVAL);
		fails(te_plan_backward(p, st), -ENOSPC,
		      said ? "the disk is full" : "the hook of a plan returned -28");
		ck_assert_int_eq(s.ngrads, 1);
		fails(te_plan_forward(p, st, 0), -ENOSPC, "the plan failed before");
		tt_drop(p, seq);
	}
}

TEST(hooks, hooks_are_checked)
{
	const struct model_shape *m = &shapes[1];
	struct te_seq *seq = model_create(ctx, m, 5);
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;

	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { m->batch, m->seqlen } };
	o.hooks = 1;
	fails(te_plan_create(seq, &o, &p), -EINVAL, "hook is NULL");
	o.hook = hook;
	o.hooks = 1u << TE_PLAN_EVENT_COUNT;
	fails(te_plan_create(seq, &o, &p), -EINVAL, "there are no such events");
	te_seq_unref(seq);
}

/* fill the arena with NaN, but for the ranges of all saved values; less: but for one of them */
static void poison_rest(struct te_plan *p, int less)
{
	struct te_plan_saved_info s = TE_PLAN_SAVED_INFO_INIT;
	char *keep = calloc(1, p->arena_nbytes), *bytes = malloc(p->arena_nbytes);

	DO(te_copy(st, bytes, p->arena, p->arena_nbytes));
	DO(te_stream_sync(st));
	for (int i = 0; !te_plan_saved(p, i, &s); i++) {
		ck_assert_uint_le(s.offset + s.nbytes, p->arena_nbytes);
		if (i != less)
			memset(keep + s.offset, 1, s.nbytes);
	}
	for (size_t i = 0; i < p->arena_nbytes; i++)
		if (!keep[i])
			bytes[i] = (char)0xff;
	DO(te_copy(st, p->arena, bytes, p->arena_nbytes));
	DO(te_stream_sync(st));
	free(bytes);
	free(keep);
}

static float *grads_after(struct te_plan *p, int poison, int less)
{
	rewind_masks(p->seq);
	DO(te_seq_zero_grads(p->seq, st));
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	if (poison)
		poison_rest(p, less);
	DO(te_plan_backward(p, st));
	DO(te_stream_sync(st));
	return tt_tensor_get(te_seq_grads(p->seq));
}

/* backward needs what te_plan_saved lists, all of it, and nothing else of the arena */
TEST_EACH(hooks, lists_all_that_backward_needs, NWAYS)
{
	const struct model_shape *m = &shapes[_i % TT_LEN(shapes)];
	const char *recipe = recipes[(size_t)_i / TT_LEN(shapes)];
	struct te_plan_saved_info s = TE_PLAN_SAVED_INFO_INIT;
	struct te_seq *seq = model_create(ctx, m, 5);
	struct te_plan *p = model_plan(seq, m, recipe, TE_PLAN_TRAIN);
	const size_t nbytes = te_tensor_nbytes(te_seq_grads(seq));
	float *want, *got;
	int n = 0;

	model_feed(p, m);
	free(grads_after(p, 0, -1)); /* delayed scaling: scales are those of the second step */
	DO(te_seq_weights_changed(seq, st));
	for (; !te_plan_saved(p, n, &s); n++) {
		ck_assert(s.written <= s.last_forward && s.last_forward < p->fwd_groups);
		ck_assert(s.first_backward >= p->fwd_groups && s.first_backward <= s.last_backward);
		ck_assert(s.form == TE_FORM_HP || s.form == TE_FORM_ROW || s.form == TE_FORM_COL);
		ck_assert_uint_ge(s.nbytes, te__spec_nbytes(&s.spec));
		ck_assert_ptr_nonnull(s.name);
	}
	ck_assert_int_gt(n, 4);
	ck_assert_int_eq(te_plan_saved(p, -1, &s), -EINVAL);
	if (!strcmp(recipe, "fp8-delayed")) {
		/* its scales change from step to step, so that no two steps can be compared */
		tt_drop(p, seq);
		return;
	}
	want = grads_after(p, 0, -1);
	got = grads_after(p, 1, -1);
	ck_assert_msg(!memcmp(want, got, nbytes), "%s: backward reads what is not listed", recipe);
	free(got);
	for (int k = 0; k < 3; k++) {
		const int less = (int)(tt_seed() % (uint64_t)n + (uint64_t)k) % n;

		got = grads_after(p, 1, less);
		DO(te_plan_saved(p, less, &s));
		ck_assert_msg(memcmp(want, got, nbytes), "%s: %s is listed and not read", recipe,
			      s.name);
		free(got);
	}
	free(want);
	tt_drop(p, seq);
}

/* ---- state and user pointers of ops and fusions ---- */

struct counts {
	int nbinds, nunbinds, nruns, fail;
};

static int infer_copy(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	return 0;
}

static int bind_op(const struct te_op_call *c, enum te_op_fn fn, void **ret_state)
{
	struct counts *n = te_op_table(c->op)->user;

	ck_assert_ptr_nonnull(te_tensor_data(c->x.hp));
	ck_assert_int_eq(fn, TE_OP_FORWARD);
	if (n->fail)
		return te_fail(-ENOSPC, "no room for %s", te_op_name(c->op));
	n->nbinds++;
	*ret_state = te_tensor_data(c->y.hp);
	return 0;
}

static void unbind_op(const struct te_op *op, enum te_op_fn fn, void *state)
{
	struct counts *n = te_op_table(op)->user;

	ck_assert_int_eq(fn, TE_OP_FORWARD);
	ck_assert_ptr_nonnull(state);
	n->nunbinds++;
}

static int run_op(const struct te_op_call *c)
{
	struct counts *n = te_op_table(c->op)->user;

	ck_assert_ptr_eq(c->state, te_tensor_data(c->y.hp));
	n->nruns++;
	return te_copy(c->stream, te_tensor_data(c->y.hp), te_tensor_data(c->x.hp),
		       te_tensor_nbytes(c->y.hp));
}

static int bind_fusion(const struct te_fused *f, void **ret_state)
{
	struct counts *n = f->fusion->user;

	n->nbinds++;
	*ret_state = n;
	return 0;
}

static void unbind_fusion(const struct te_fused *f, void *state)
{
	ck_assert_ptr_eq(f->fusion->user, state);
	((struct counts *)state)->nunbinds++;
}

/* the kept value between the parts has memory, although only the second part reads it */
static int run_fusion(const struct te_fused *f)
{
	const struct te_op_call *a = f->part[0], *b = f->part[1];
	int r;

	ck_assert_ptr_eq(f->state, f->fusion->user);
	((struct counts *)f->state)->nruns++;
	ck_assert_ptr_nonnull(a->y.hp);
	r = te_copy(a->stream, te_tensor_data(a->y.hp), te_tensor_data(a->x.hp),
		    te_tensor_nbytes(a->y.hp));
	return r ? r : te_copy(a->stream, te_tensor_data(b->y.hp), te_tensor_data(a->y.hp),
			       te_tensor_nbytes(b->y.hp));
}

TEST(hooks, states_are_bound_and_unbound)
{
	struct te_recipe fp32 = TE_RECIPE_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct counts n = { 0 }, nf = { 0 };
	struct te_op_ops ops = TE_OP_OPS_INIT;
	struct te_fusion fusion = TE_FUSION_INIT;
	float x[6], y[6];
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;

	ops.name = "copy";
	ops.infer = infer_copy;
	ops.forward = run_op;
	ops.bind = bind_op;
	ops.unbind = unbind_op;
	ops.user = &n;
	fusion.name = "copy+copy";
	fusion.pattern = "copy copy";
	fusion.run = run_fusion;
	fusion.bind = bind_fusion;
	fusion.unbind = unbind_fusion;
	fusion.user = &nf;
	fusion.keep = 1;
	DO(te_seq_create(ctx, &seq));
	for (int i = 0; i < 3; i++) {
		DO(te_op_create(&ops, NULL, (const char *[]){ "a", "b", "c" }[i], &op));
		tt_append(seq, op);
	}
	DO(te_seq_add_fusion(seq, &fusion));
	DO(te_seq_init(seq, 1));
	fp32.compute = TE_DTYPE_FP32;
	o.recipe = &fp32;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 2, { 2, 3 } };
	n.fail = 1;
	fails(te_plan_create(seq, &o, &p), -ENOSPC, "no room for c");
	ck_assert(nf.nbinds == 1 && nf.nunbinds == 1 && !n.nbinds && !n.nunbinds);
	n.fail = nf.nbinds = nf.nunbinds = 0;
	DO(te_plan_create(seq, &o, &p));
	ck_assert(nf.nbinds == 1 && n.nbinds == 1); /* a and b are fused */
	tt_fill_normal(x, 6, 1);
	DO(te_tensor_write(te_plan_input(p, "x"), x, sizeof(x)));
	DO(te_plan_forward(p, st, 0));
	DO(te_tensor_read(te_plan_output(p), y, sizeof(y)));
	ck_assert(!memcmp(x, y, sizeof(x)));
	ck_assert(nf.nruns == 1 && n.nruns == 1 && !nf.nunbinds && !n.nunbinds);
	te_plan_unref(p);
	ck_assert(nf.nunbinds == 1 && n.nunbinds == 1);
	te_seq_unref(seq);
}

static int fail_silently(const struct te_op_call *c)
{
	return -EXDEV;
}

TEST(hooks, a_silent_failure_is_given_a_name)
{
	struct te_recipe fp32 = TE_RECIPE_INIT;
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_op_ops ops = TE_OP_OPS_INIT;
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;

	ops.name = "mute";
	ops.infer = infer_copy;
	ops.forward = fail_silently;
	DO(te_op_create(&ops, NULL, "here", &op));
	DO(te_seq_create(ctx, &seq));
	tt_append(seq, op);
	DO(te_seq_init(seq, 1));
	fp32.compute = TE_DTYPE_FP32;
	o.recipe = &fp32;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 2, { 2, 3 } };
	DO(te_plan_create(seq, &o, &p));
	ck_assert_int_eq(te_plan_bind(NULL, NULL), -EINVAL);
	ck_assert_int_eq(te_plan_forward(p, st, 0), -EXDEV);
	tt_said("mute here returned -18 and gave no reason");
	tt_drop(p, seq);
}
