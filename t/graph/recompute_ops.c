/*
 * t/graph/recompute_ops.c - which ops and fusions run again in backward: those that declare it, if
 * their inputs are there. Functions are calls of te/kernel.h, so they run on both backends.
 */
#include "config.h"

#include <te/kernel.h>
#include <te/plan.h>

#include "recompute_cases.h"
#include "t/plan/plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define ROWS 37
#define WIDTH 21

/* ---- a user's op: SiLU that saves a copy of its input, and reads that in backward ---- */

static struct {
	int saves_x; /* backward reads x, too */
	int nforwards, nagain;
} user;

static int soft_infer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	inf->save_x = user.saves_x ? TE_FORM_HP : 0;
	return te_infer_save(inf, &inf->in[0]);
}

static int soft_forward(const struct te_op_call *c)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	int r = te_copy(c->stream, te_tensor_data(c->saved[0]), te_tensor_data(c->x.hp),
			te_tensor_nbytes(c->x.hp));

	user.nforwards++;
	user.nagain += (c->flags & TE_CALL_REPEAT) != 0;
	ck_assert(c->flags & TE_CALL_TRAIN);
	o.act = TE_ACT_SILU;
	return r ? r : te_kernel_act_forward(c->stream, c->x.hp, c->y.hp, &o);
}

static int soft_backward(const struct te_op_call *c)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;

	ck_assert_int_eq(c->x.hp != NULL, user.saves_x);
	o.act = TE_ACT_SILU;
	return te_kernel_act_backward(c->stream, c->dy.hp, c->saved[0], c->dx.hp, NULL, NULL, 0,
				      &o);
}

static const struct te_op_ops soft = {
	.size = sizeof(soft),
	.name = "soft",
	.infer = soft_infer,
	.forward = soft_forward,
	.backward = soft_backward,
	.flags = TE_OP_REPEATS,
};

static const struct te_op_ops once = {
	.size = sizeof(once),
	.name = "once",
	.infer = soft_infer,
	.forward = soft_forward,
	.backward = soft_backward,
};

/* ---- a fusion of two of them ---- */

static int pair_run(const struct te_fused *f)
{
	int r = 0;

	for (int i = 0; i < f->nparts && !r; i++)
		r = te_op_table(f->part[i]->op)->forward(f->part[i]);
	return r;
}

static struct te_fusion pair_fusion(uint32_t flags)
{
	struct te_fusion f = TE_FUSION_INIT;

	f.name = "two";
	f.pattern = "soft soft";
	f.run = pair_run;
	f.test = "t/graph/recompute";
	f.keep = 1;
	f.flags = flags;
	return f;
}

/* ---- linear a, act s, act t, linear b ---- */

static struct te_seq *seq_of(const struct te_op_ops *s, const struct te_op_ops *t,
			     const struct te_fusion *f)
{
	struct te_linear_attrs la = TE_ATTRS(linear, WIDTH, WIDTH, 0.3f, 0, NULL);
	struct te_op *op[4];
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_linear(&la, "a", &op[0]));
	DO(te_op_create(s, NULL, "s", &op[1]));
	DO(te_op_create(t, NULL, "t", &op[2]));
	DO(te_op_linear(&la, "b", &op[3]));
	for (int i = 0; i < 4; i++) {
		DO(te_seq_append(seq, op[i]));
		te_op_unref(op[i]);
	}
	if (f)
		DO(te_seq_add_fusion(seq, f));
	DO(te_seq_init(seq, 7));
	return seq;
}

static int plan_try(struct te_seq *seq, uint32_t flags, const char *pattern,
		    struct te_plan **ret_plan)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;

	rec.compute = TE_DTYPE_FP32;
	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN | flags;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 2, { ROWS, WIDTH } };
	o.nrecompute = pattern != NULL;
	o.recompute = &pattern;
	return te_plan_create(seq, &o, ret_plan);
}

static struct te_plan *plan_of(struct te_seq *seq, uint32_t flags, const char *pattern)
{
	struct te_plan *p;

	DO(plan_try(seq, flags, pattern, &p));
	return p;
}

static void run(struct te_plan *p, const float *x, const float *dy)
{
	DO(te_tensor_write(te_plan_input(p, "x"), x, ROWS * WIDTH * sizeof(*x)));
	DO(te_plan_forward(p, st, 0));
	DO(te_tensor_write(te_plan_output_grad(p), dy, ROWS * WIDTH * sizeof(*dy)));
	DO(te_plan_backward(p, st));
	DO(te_ctx_sync(ctx));
}

static void draw(float *x)
{
	for (int i = 0; i < ROWS * WIDTH; i++)
		x[i] = tt_rand_float(-3, 3);
}

/* the saved value of that name */
static struct te_plan_saved_info find(const struct te_plan *p, const char *name)
{
	struct te_plan_saved_info s = TE_PLAN_SAVED_INFO_INIT;

	for (int i = 0; !te_plan_saved(p, i, &s); i++)
		if (!strcmp(s.name, name))
			return s;
	ck_abort_msg("%s is not saved", name);
	return s;
}

static void is_kept(const struct te_plan *p, const char *name, const char *why)
{
	const struct te_plan_saved_info s = find(p, name);
	char *text, want[256];

	ck_assert_int_eq(s.policy, TE_POLICY_KEEP);
	if (!why) {
		ck_assert_ptr_null(s.why);
		return;
	}
	ck_assert_ptr_nonnull(s.why);
	ck_assert_str_eq(s.why, why);
	snprintf(want, sizeof(want), " not recomputed: %s\n", why);
	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	ck_assert_ptr_nonnull(strstr(text, want));
	free(text);
}

static void is_again(const struct te_plan *p, const char *name)
{
	const struct te_plan_saved_info s = find(p, name);

	ck_assert_int_eq(s.policy, TE_POLICY_RECOMPUTE);
	ck_assert_ptr_null(s.why);
	ck_assert_int_gt(s.last_backward, s.first_backward);
}

CASE(ops, "graph", .setup = tt_setup, .teardown = tt_teardown);

/* alone, fused, or one of the two; what the op saves goes with it */
TEST_EACH(ops, a_users_op_runs_again, 3)
{
	const struct te_fusion f = pair_fusion(TE_FUSION_REPEATS);
	const char *const name = _i == 2 ? "t.y" : "[st].y";
	float x[ROWS * WIDTH], dy[ROWS * WIDTH];
	struct te_plan *p[2];
	struct te_seq *seq[2];
	int n;

	user.saves_x = 1;
	for (int k = 0; k < 2; k++) {
		seq[k] = seq_of(&soft, &soft, _i == 1 ? &f : NULL);
		p[k] = plan_of(seq[k], 0, k ? name : NULL);
	}
	is_again(p[1], "t.y");
	is_again(p[1], "t.saved0");
	if (_i < 2)
		is_again(p[1], "s.y");
	else
		is_kept(p[1], "s.y", NULL);
	is_kept(p[1], "a.y", NULL);
	for (int step = 0; step < 2; step++) {
		draw(x);
		draw(dy);
		run(p[0], x, dy);
		n = user.nforwards;
		user.nagain = 0;
		run(p[1], x, dy);
		ck_assert_int_eq(user.nagain, _i < 2 ? 2 : 1);
		ck_assert_int_eq(user.nforwards - n, 2 + user.nagain);
		model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "gradients");
	}
	tt_drop_both(p, seq);
}

CASE(plans, "graph numeric", .setup = tt_setup, .teardown = tt_teardown);

TEST(plans, a_value_stays_and_the_plan_tells_why)
{
	const struct te_fusion f = pair_fusion(0);
	struct te_seq *seq;
	struct te_plan *p;

	user.saves_x = 1;
	seq = seq_of(&soft, &once, NULL);
	p = plan_of(seq, 0, "*");
	is_again(p, "s.y");
	is_kept(p, "t.y", "op t of type once does not run again");
	is_kept(p, "a.y", "op a of type linear does not run again");
	te_plan_unref(p);
	/* unless it may */
	p = plan_of(seq, TE_PLAN_RECOMPUTE_COSTLY, "*");
	is_kept(p, "t.y", "op t of type once does not run again");
	is_again(p, "a.y");
	tt_drop(p, seq);
	/* a.y is read by forward only, and a linear does not run again */
	user.saves_x = 0;
	seq = seq_of(&soft, &soft, NULL);
	p = plan_of(seq, 0, "*");
	is_kept(p, "t.y", "s.y is not kept");
	is_kept(p, "s.saved0", "a.y is not kept");
	tt_drop(p, seq);
	user.saves_x = 1;
	seq = seq_of(&soft, &soft, &f);
	p = plan_of(seq, 0, "*");
	is_kept(p, "t.y", "fusion two does not run again");
	te_plan_unref(p);
	p = plan_of(seq, TE_PLAN_NO_FUSION, "*");
	is_again(p, "t.y");
	tt_drop(p, seq);
}

/* of te_op_keep() and te_op_recompute() the latest counts, before patterns */
TEST(plans, ops_have_a_policy)
{
	struct te_seq *seq;
	struct te_plan *p, *before;

	user.saves_x = 1;
	seq = seq_of(&soft, &soft, NULL);
	before = plan_of(seq, 0, NULL);
	DO(te_op_recompute(te_seq_op(seq, 2)));
	is_kept(before, "t.y", NULL);
	te_plan_unref(before);
	p = plan_of(seq, 0, NULL);
	is_again(p, "t.y");
	is_kept(p, "s.y", NULL);
	te_plan_unref(p);
	DO(te_op_keep(te_seq_op(seq, 2)));
	p = plan_of(seq, 0, "*");
	is_kept(p, "t.y", NULL);
	is_again(p, "s.y");
	te_plan_unref(p);
	DO(te_op_recompute(te_seq_op(seq, 2)));
	p = plan_of(seq, 0, "s.y");
	is_again(p, "t.y");
	is_again(p, "s.y");
	tt_drop(p, seq);
}

/* s.y, which backward does not read, is computed again for t.y */
TEST(ops, inputs_run_again_for_those_that_need_them)
{
	float x[ROWS * WIDTH], dy[ROWS * WIDTH];
	struct te_act_attrs aa = TE_ATTRS(act, TE_ACT_GELU, 0);
	struct te_linear_attrs la = TE_ATTRS(linear, WIDTH, WIDTH, 0.3f, 0, NULL);
	struct te_plan *p[2];
	struct te_seq *seq[2];

	user.saves_x = 0;
	for (int k = 0; k < 2; k++) {
		struct te_op *op[4];

		DO(te_seq_create(ctx, &seq[k]));
		DO(te_op_linear(&la, "a", &op[0]));
		DO(te_op_activation(&aa, "s", &op[1]));
		DO(te_op_create(&soft, NULL, "t", &op[2]));
		DO(te_op_linear(&la, "b", &op[3]));
		for (int i = 0; i < 4; i++) {
			DO(te_seq_append(seq[k], op[i]));
			te_op_unref(op[i]);
		}
		DO(te_seq_init(seq[k], 7));
		p[k] = plan_of(seq[k], 0, k ? "t.y" : NULL);
	}
	is_again(p[1], "t.y");
	draw(x);
	draw(dy);
	for (int k = 0; k < 2; k++) {
		user.nagain = 0;
		run(p[k], x, dy);
		ck_assert_int_eq(user.nagain, k);
	}
	model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "gradients");
	tt_drop_both(p, seq);
}

TEST(plans, a_plan_prints_what_runs_again)
{
	struct te_seq *seq;
	struct te_plan *p;
	char *text, *backward;

	user.saves_x = 1;
	seq = seq_of(&soft, &soft, NULL);
	p = plan_of(seq, 0, "t.y");
	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	backward = strstr(text, "backward:");
	ck_assert_ptr_nonnull(backward);
	ck_assert_ptr_nonnull(strstr(backward, "soft.recompute"));
	ck_assert_ptr_nonnull(strstr(backward, "t.recompute\n"));
	ck_assert_ptr_null(strstr(backward, "s.recompute\n"));
	ck_assert_ptr_nonnull(strstr(backward, " recomputed@"));
	free(text);
	DO(te_plan_print(p, TE_PLAN_DOT, &text));
	ck_assert_ptr_nonnull(strstr(text, "soft.recompute"));
	free(text);
	tt_drop(p, seq);
}

static int seen;

static int see(void *arg, struct te_plan *plan, const struct te_plan_event *event)
{
	if (!strcmp(event->step, "soft.recompute")) {
		ck_assert_int_eq(event->pass, TE_PASS_BACKWARD);
		ck_assert_str_eq(te_op_name(event->op), "t");
		seen++;
	}
	return 0;
}

TEST(ops, hooks_name_what_runs_again)
{
	static const char *const pattern[] = { "t.y" };
	float x[ROWS * WIDTH], dy[ROWS * WIDTH];
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_seq *seq;
	struct te_plan *p;

	user.saves_x = 1;
	seq = seq_of(&soft, &soft, NULL);
	rec.compute = TE_DTYPE_FP32;
	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 2, { ROWS, WIDTH } };
	o.nrecompute = 1;
	o.recompute = pattern;
	o.hook = see;
	o.hooks = 1u << TE_PLAN_EVENT_BEGIN | 1u << TE_PLAN_EVENT_END;
	DO(te_plan_create(seq, &o, &p));
	draw(x);
	draw(dy);
	seen = 0;
	run(p, x, dy);
	ck_assert_int_eq(seen, 2);
	tt_drop(p, seq);
}

TEST(plans, what_makes_no_sense_is_refused)
{
	static const struct te_op_ops odd = { .size = sizeof(odd), .name = "odd",
					      .infer = soft_infer, .flags = 4 };
	static const char *const none[] = { NULL }, *const misspelt[] = { "t.*", "sort.*" };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_fusion f = pair_fusion(4);
	struct te_seq *seq;
	struct te_plan *p = NULL;
	struct te_op *op = NULL;

	fails(te_op_recompute(NULL), -EINVAL, "te_op_recompute: op is NULL");
	fails(te_op_create(&odd, NULL, "o", &op), -EINVAL, "unknown flags 0x4");
	ck_assert_ptr_null(op);
	seq = seq_of(&soft, &soft, NULL);
	fails(te_seq_add_fusion(seq, &f), -EINVAL, "flags are 0x4");
	f.flags = TE_FUSION_REPEATS;
	f.pass = TE_PASS_BACKWARD;
	fails(te_seq_add_fusion(seq, &f), -EINVAL, "flags are 0x1");
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, WIDTH } };
	o.nrecompute = 1;
	fails(te_plan_create(seq, &o, &p), -EINVAL, "nrecompute is 1, and recompute is NULL");
	o.recompute = none;
	fails(te_plan_create(seq, &o, &p), -EINVAL, "recompute[0] is NULL");
	o.nrecompute = -1;
	fails(te_plan_create(seq, &o, &p), -EINVAL, "nrecompute is -1, and recompute is a list");
	o.nrecompute = 2;
	o.recompute = misspelt;
	fails(te_plan_create(seq, &o, &p), -EINVAL,
	      "te_plan_create: recompute[1] \"sort.*\" matches no value, expected names or "
	      "patterns of them; there are");
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "such as x, "));
	ck_assert_ptr_null(p);
	te_seq_unref(seq);
}

static struct te_seq *faulty;

static int create_one(void)
{
	struct te_plan *p = NULL;
	int r = plan_try(faulty, TE_PLAN_NO_ALLOC, "*", &p);

	ck_assert_int_eq(p != NULL, !r);
	te_plan_unref(p);
	return r;
}

TEST(plans, a_plan_that_cannot_be_created_leaves_nothing)
{
	user.saves_x = 0; /* a value has a reason to stay */
	faulty = seq_of(&soft, &soft, NULL);
	DO(te_ctx_sync(ctx));
	ck_assert_int_ge(tt_fault_each(create_one), 20);
	te_seq_unref(faulty);
	user.saves_x = 1; /* values run again */
	faulty = seq_of(&soft, &soft, NULL);
	DO(te_ctx_sync(ctx));
	ck_assert_int_ge(tt_fault_each(create_one), 20);
	te_seq_unref(faulty);
}
