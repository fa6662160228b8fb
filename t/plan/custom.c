/*
 * t/plan/custom.c - joint fusions of a user: values of their own, when they are applied, and
 * what fails.
 *
 * The fusion replaces a ReLU in both passes. Backward needs the signs of x only, so it saves x
 * rounded to BF16, whose signs are those of x, and drops x. The functions are calls of te/kernel.h,
 * so they run on both backends, with the bits of the steps that they replace.
 */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>
#include <te/kernel.h>
#include <te/plan.h>

#include "libtecore/plan/plan.h"
#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define B 3
#define T 7
#define WIDTH 33
#define NELEMS ((size_t)B * T * WIDTH)
#define SAVED "r.relu.saved0"

/* what the functions of both passes share, by user */
struct relu {
	int nbinds[2], nunbinds[2], nruns[2];
	int refuses; /* 1: forward, 2: backward */
	int fail;    /* the same, of bind() */
	int bad_save;
};

static int is_relu(const struct te_op_call *c)
{
	const struct te_act_attrs *a = te_op_attrs(c->op);

	return a->act == TE_ACT_RELU && !a->gated;
}

static int forward_applies(const struct te_fused *f)
{
	const struct relu *u = f->fusion->user;

	ck_assert_int_eq(f->nparts, 1);
	return is_relu(f->part[0]) && u->refuses != 1;
}

static int save_signs(const struct te_fused *f, int32_t index, struct te_spec *ret)
{
	const struct te_tensor *x = f->part[0]->x.hp;
	const struct relu *u = f->fusion->user;

	if (u->bad_save)
		return u->bad_save < 0 ? te_fail(u->bad_save, "save is out of order") : 1;
	if (index)
		return 0;
	*ret = (struct te_spec){ TE_DTYPE_BF16, 2, { te_tensor_rows(x), te_tensor_cols(x) } };
	return 1;
}

static int forward_run(const struct te_fused *f)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	const struct te_op_call *c = f->part[0];
	struct relu *u = f->fusion->user;
	int r = te_cast(c->stream, c->x.hp, f->saved[0]);

	ck_assert_ptr_eq(f->state, u);
	u->nruns[0]++;
	o.act = TE_ACT_RELU;
	return r ? r : te_kernel_act_forward(c->stream, c->x.hp, c->y.hp, &o);
}

static int bind_half(const struct te_fused *f, int half)
{
	struct relu *u = f->fusion->user;

	ck_assert_int_eq(f->nsaved, 1);
	ck_assert_ptr_nonnull(te_tensor_data(f->saved[0]));
	if (u->fail == 1 + half)
		return te_fail(-ENOSPC, "no room for half %d", half);
	u->nbinds[half]++;
	return 0;
}

static int forward_bind(const struct te_fused *f, void **ret_state)
{
	*ret_state = f->fusion->user;
	return bind_half(f, 0);
}

static void forward_unbind(const struct te_fused *f, void *state)
{
	ck_assert_ptr_eq(state, f->fusion->user);
	((struct relu *)state)->nunbinds[0]++;
}

static int backward_applies(const struct te_fused *f)
{
	const struct te_op_call *c = f->part[0];
	const struct relu *u = f->fusion->user;

	ck_assert_ptr_null(c->x.hp); /* it drops what it does not name in save() */
	ck_assert_ptr_null(c->y.hp);
	ck_assert_ptr_nonnull(c->dy.hp);
	return u->refuses != 2;
}

static size_t backward_ws(const struct te_fused *f)
{
	return te_tensor_nbytes(f->part[0]->dx.hp);
}

/* the signs in the type of the gradients: a tensor over the scratch */
static int backward_bind(const struct te_fused *f, void **ret_state)
{
	const struct te_tensor *dx = f->part[0]->dx.hp;
	const int64_t shape[] = { te_tensor_rows(dx), te_tensor_cols(dx) };
	int r = te_tensor_wrap(ctx, te_tensor_dtype(dx), 2, shape, f->ws, NULL, NULL,
			       (struct te_tensor **)ret_state);

	if (!r)
		r = bind_half(f, 1);
	if (r)
		*ret_state = te_tensor_unref(*ret_state);
	return r;
}

static void backward_unbind(const struct te_fused *f, void *state)
{
	te_tensor_unref(state);
	((struct relu *)f->fusion->user)->nunbinds[1]++;
}

static int backward_run(const struct te_fused *f)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	const struct te_op_call *c = f->part[0];
	struct relu *u = f->fusion->user;
	int r = te_cast(c->stream, f->saved[0], f->state);

	u->nruns[1]++;
	o.act = TE_ACT_RELU;
	return r ? r : te_kernel_act_backward(c->stream, c->dy.hp, f->state, c->dx.hp, NULL, NULL,
					      0, &o);
}

static const struct te_fusion relu_backward = {
	.size = sizeof(struct te_fusion),
	.name = "relu.bwd",
	.pass = TE_PASS_BACKWARD,
	.pattern = "activation",
	.applies = backward_applies,
	.ws_nbytes = backward_ws,
	.run = backward_run,
	.bind = backward_bind,
	.unbind = backward_unbind,
	.drop = 1,
};

static const struct te_fusion relu_forward = {
	.size = sizeof(struct te_fusion),
	.name = "relu",
	.pass = TE_PASS_JOINT,
	.pattern = "activation",
	.applies = forward_applies,
	.run = forward_run,
	.bind = forward_bind,
	.unbind = forward_unbind,
	.backward = &relu_backward,
	.save = save_signs,
};

/* ---- a sequence: m RMSNorm, r ReLU, s SiLU ---- */

static struct te_seq *seq_of(const char *letters, struct relu *u)
{
	struct te_norm_attrs na = TE_ATTRS(norm, WIDTH, 1e-5f, 0);
	struct te_fusion backward = relu_backward, forward = relu_forward;
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; letters[i]; i++) {
		struct te_act_attrs aa = TE_ATTRS(act, letters[i] == 'r' ? TE_ACT_RELU :
									   TE_ACT_SILU, 0);
		char name[3] = { letters[i], i == 1 ? 0 : (char)('0' + i), 0 };
		struct te_op *op;

		if (letters[i] == 'm')
			DO(te_op_rmsnorm(&na, name, &op));
		else
			DO(te_op_activation(&aa, name, &op));
		tt_append(seq, op);
	}
	if (u) {
		forward.user = backward.user = u;
		forward.backward = &backward;
		DO(te_seq_add_fusion(seq, &forward));
		memset(&backward, 0xff, sizeof(backward)); /* it is copied */
	}
	DO(te_seq_init(seq, 1));
	return seq;
}

static struct te_plan_opts opts_of(const char *recipe, uint32_t flags, struct te_recipe *rec)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;

	*rec = tt_recipe(recipe);
	o.recipe = rec;
	o.flags = flags;
	o.x = (struct te_spec){ rec->compute, 3, { B, T, WIDTH } };
	return o;
}

static struct te_plan *plan_of(struct te_seq *seq, const char *recipe, uint32_t flags)
{
	struct te_recipe rec;
	struct te_plan_opts o = opts_of(recipe, flags, &rec);
	struct te_plan *p;

	DO(te_plan_create(seq, &o, &p));
	return p;
}

/* ---- results ---- */

struct result {
	float *y, *dx, *grads;
};

static struct result result_of(const struct te_plan *p)
{
	struct te_plan *q = (struct te_plan *)(uintptr_t)p;

	DO(te_stream_sync(st));
	return (struct result){
		tt_tensor_get(te_plan_output(q)),
		tt_tensor_get(te_plan_input_grad(q)),
		tt_tensor_get(te_seq_grads(p->seq)),
	};
}

static void ck_same(const struct result *a, const struct result *b, const struct te_plan *p)
{
	const size_t n = (size_t)te_tensor_nelems(te_seq_grads(p->seq));

	ck_assert_mem_eq(a->y, b->y, NELEMS * sizeof(float));
	ck_assert_mem_eq(a->dx, b->dx, NELEMS * sizeof(float));
	ck_assert_mem_eq(a->grads, b->grads, n * sizeof(float));
}

static void drop_result(struct result *r)
{
	free(r->y);
	free(r->dx);
	free(r->grads);
}

static int saved_at(const struct te_plan *p, const char *name, struct te_plan_saved_info *ret)
{
	for (int i = 0; !te_plan_saved(p, i, ret); i++)
		if (!strcmp(ret->name, name))
			return i;
	return -1;
}

static int shows(const struct te_plan *p, const char *text)
{
	char *print, *dot;
	int has;

	DO(te_plan_print(p, TE_PLAN_TEXT, &print));
	DO(te_plan_print(p, TE_PLAN_DOT, &dot));
	has = strstr(print, text) != NULL;
	free(print);
	free(dot);
	return has;
}

#define TRAIN (TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD)

static const char *const recipes[] = { "fp32", "bf16" };

CTX_CASE(joint, "numeric");

/* the bits of the steps, eager and replayed, with its value in the arena instead of x */
TEST_EACH(joint, a_joint_fusion_keeps_a_value_of_its_own, TT_LEN(recipes))
{
	const char *recipe = recipes[_i];
	float *x = malloc(NELEMS * sizeof(*x)), *dy = malloc(NELEMS * sizeof(*dy));
	struct te_plan_saved_info info = TE_PLAN_SAVED_INFO_INIT;
	struct relu u = { .nruns = { 0 } };
	struct te_seq *seq = seq_of("mrsm", &u), *plain = seq_of("mrsm", NULL);
	struct te_plan *p = plan_of(seq, recipe, TRAIN);
	struct te_plan *q = plan_of(plain, recipe, TRAIN | TE_PLAN_NO_FUSION);
	struct te_plan_memory mem = TE_PLAN_MEMORY_INIT, unfused = TE_PLAN_MEMORY_INIT;
	struct te_recording *rec;
	struct result a, b;
	int index;

	ck_assert(shows(p, "  relu ") && shows(p, "  relu.bwd ") && shows(p, SAVED));
	index = saved_at(p, SAVED, &info);
	ck_assert_int_ge(index, 0);
	ck_assert_int_eq(info.spec.dtype, TE_DTYPE_BF16);
	ck_assert_uint_eq(info.nbytes, (NELEMS * 2 + 255) / 256 * 256);
	ck_assert_int_eq(info.written, 1);
	ck_assert_int_eq(info.last_forward, 1);
	ck_assert_int_eq(info.first_backward, info.last_backward);
	ck_assert_int_ge(info.first_backward, 4);
	ck_assert_int_lt(saved_at(p, "m0.y", &info), 0); /* x of the ReLU */
	ck_assert_int_ge(saved_at(q, "m0.y", &info), 0);
	DO(te_plan_memory(p, &mem));
	DO(te_plan_memory(q, &unfused));
	if (!strcmp(recipe, "fp32") && !strcmp(backend, "host"))
		ck_assert_uint_lt(mem.arena_nbytes, unfused.arena_nbytes);
	for (int step = 0; step < 3; step++) {
		tt_fill_normal(x, NELEMS, 1);
		tt_fill_normal(dy, NELEMS, 1);
		plan_feed(p, x, dy);
		plan_feed(q, x, dy);
		if (step == 1) {
			DO(te_capture_begin(st));
			plan_passes(p);
			DO(te_capture_end(st, &rec));
		}
		if (step)
			DO(te_recording_launch(rec, st));
		else
			plan_passes(p);
		plan_passes(q);
		a = result_of(p);
		b = result_of(q);
		ck_same(&a, &b, p);
		drop_result(&a);
		drop_result(&b);
	}
	ck_assert(u.nbinds[0] == 1 && u.nbinds[1] == 1 && u.nruns[0] == 2 && u.nruns[1] == 2);
	ck_assert(!u.nunbinds[0] && !u.nunbinds[1]);
	te_recording_unref(rec);
	te_plan_unref(p);
	te_plan_unref(q);
	ck_assert(u.nunbinds[0] == 1 && u.nunbinds[1] == 1);
	te_seq_unref(seq);
	te_seq_unref(plain);
	free(x);
	free(dy);
}

static void ck_not_applied(const char *letters, const char *recipe, uint32_t flags, struct relu *u)
{
	struct te_seq *seq = seq_of(letters, u), *plain = seq_of(letters, NULL);
	struct te_plan *p = plan_of(seq, recipe, flags), *q = plan_of(plain, recipe, flags);
	char *a, *b;

	/* nothing of the attempt is left */
	DO(te_plan_print(p, TE_PLAN_TEXT, &a));
	DO(te_plan_print(q, TE_PLAN_TEXT, &b));
	ck_assert_str_eq(a, b);
	free(a);
	free(b);
	te_plan_unref(p);
	tt_drop(q, seq);
	te_seq_unref(plain);
}

TEST(joint, both_passes_or_none)
{
	struct relu u = { .nruns = { 0 } };

	ck_not_applied("mrsm", "fp32", 0, &u); /* no backward */
	ck_not_applied("mrsm", "fp32", TRAIN | TE_PLAN_NO_FUSION, &u);
	ck_not_applied("rms", "fp32", TE_PLAN_TRAIN, &u); /* no gradient is needed so far down */
	ck_not_applied("msm", "fp32", TRAIN, &u);	  /* no forward step that it takes */
	u.refuses = 1;
	ck_not_applied("mrsm", "fp32", TRAIN, &u);
	u.refuses = 2;
	ck_not_applied("mrsm", "fp32", TRAIN, &u);
	ck_assert(!u.nbinds[0] && !u.nbinds[1]);
}

static int alone_run(const struct te_fused *f)
{
	return 0;
}

/* where backward does not match, forward is free for another fusion */
TEST(joint, a_plain_fusion_takes_what_a_joint_one_leaves)
{
	struct te_fusion alone = TE_FUSION_INIT, forward = relu_forward, backward = relu_backward;
	struct relu u = { .nruns = { 0 } };
	struct te_act_attrs aa = TE_ATTRS(act, TE_ACT_RELU, 0);
	struct te_norm_attrs na = TE_ATTRS(norm, WIDTH, 1e-5f, 0);
	struct te_plan *train, *eval;
	struct te_seq *seq;
	struct te_op *op;

	forward.user = backward.user = &u;
	forward.backward = &backward;
	alone.name = "alone";
	alone.pattern = "activation rmsnorm";
	alone.run = alone_run;
	DO(te_seq_create(ctx, &seq));
	DO(te_op_activation(&aa, "r", &op));
	tt_append(seq, op);
	DO(te_op_rmsnorm(&na, "m", &op));
	tt_append(seq, op);
	DO(te_seq_add_fusion(seq, &forward));
	DO(te_seq_add_fusion(seq, &alone));
	DO(te_seq_init(seq, 1));
	train = plan_of(seq, "fp32", TRAIN);
	eval = plan_of(seq, "fp32", 0);
	ck_assert(shows(train, "  relu.bwd ") && !shows(train, "  alone "));
	ck_assert(!shows(eval, "  relu") && shows(eval, "  alone "));
	te_plan_unref(train);
	tt_drop(eval, seq);
}

/* several ReLUs: each forward has the backward of its own op */
TEST(joint, halves_belong_to_the_same_ops)
{
	struct relu u = { .nruns = { 0 } };
	struct te_seq *seq = seq_of("srmrsrm", &u);
	struct te_plan *p = plan_of(seq, "fp32", TRAIN);
	int of_op[8] = { 0 };

	for (int t = 0; t < p->ngroups; t++) {
		const struct te__group *g = &p->group[t];
		const int node = p->step[g->first].node;

		if (!g->fusion)
			continue;
		ck_assert_int_eq(g->n, 1);
		if (g->fusion->pass == TE_PASS_JOINT)
			of_op[node] = g->saved[0];
		else
			ck_assert_ptr_eq(g->fused.saved[0], p->value[of_op[node]].t_hp);
	}
	ck_assert(of_op[1] && of_op[3] && of_op[5] && !of_op[0] && !of_op[4]);
	tt_drop(p, seq);
}

/* with te_plan_bind, what is saved moves with the arena */
TEST(joint, memory_of_the_caller_is_bound_anew)
{
	const char *name[] = { "x" };
	float *x = malloc(NELEMS * sizeof(*x)), *dy = malloc(NELEMS * sizeof(*dy));
	struct te_plan_binding b = TE_PLAN_BINDING_INIT;
	struct relu u = { .nruns = { 0 } };
	struct te_seq *seq = seq_of("mrsm", &u), *plain = seq_of("mrsm", NULL);
	struct te_plan *p = plan_of(seq, "fp32", TRAIN | TE_PLAN_EXTERNAL);
	struct te_plan *q = plan_of(plain, "fp32", TRAIN | TE_PLAN_NO_FUSION);
	struct te_tensor *t[4];
	struct result want, got;
	void *arena[2];

	for (int i = 0; i < 4; i++)
		DO(te_tensor_create(ctx, TE_DTYPE_FP32, 3, (const int64_t[]){ B, T, WIDTH }, NULL,
				    &t[i]));
	tt_fill_normal(x, NELEMS, 1);
	tt_fill_normal(dy, NELEMS, 1);
	tt_tensor_set(t[0], x);
	tt_tensor_set(t[2], dy);
	plan_feed(q, x, dy);
	plan_passes(q);
	want = result_of(q);
	b.nin = 1;
	b.in_name = name;
	b.in = t;
	b.out = t[1];
	b.out_grad = t[2];
	b.in_grad = t[3];
	for (int i = 0; i < 2; i++) {
		DO(te_mem_alloc(st, p->arena_nbytes, &arena[i]));
		DO(te_fill(st, arena[i], 0xff, p->arena_nbytes));
		b.arena = arena[i];
		u.fail = 2;
		fails(te_plan_bind(p, &b), -ENOSPC, "no room for half 1");
		fails(te_plan_forward(p, st, 0), -TE_ESTATE, "te_plan_bind has given no memory");
		u.fail = 0;
		DO(te_plan_bind(p, &b));
		ck_assert_int_eq(u.nbinds[0] - u.nunbinds[0], 1);
		ck_assert_int_eq(u.nbinds[1] - u.nunbinds[1], 1);
		DO(te_stream_sync(st));
		plan_passes(p);
		got = result_of(p);
		ck_same(&want, &got, p);
		drop_result(&got);
	}
	te_plan_unref(p);
	te_plan_unref(q);
	for (int i = 0; i < 2; i++)
		DO(te_mem_free(st, arena[i]));
	for (int i = 0; i < 4; i++)
		te_tensor_unref(t[i]);
	drop_result(&want);
	te_seq_unref(seq);
	te_seq_unref(plain);
	free(x);
	free(dy);
}

/* ---- failures ---- */

TEST(joint, a_failing_half_is_named)
{
	struct relu u = { .nruns = { 0 } };
	struct te_seq *seq = seq_of("mrsm", &u);
	struct te_recipe rec;
	struct te_plan_opts o = opts_of("fp32", TRAIN, &rec);
	struct te_plan *p;

	for (int half = 0; half < 2; half++) {
		u = (struct relu){ .fail = 1 + half };
		fails(te_plan_create(seq, &o, &p), -ENOSPC, half ? "half 1" : "half 0");
		ck_assert_int_eq(u.nbinds[0], half); /* and is released */
		ck_assert_int_eq(u.nunbinds[0], half);
		ck_assert(!u.nbinds[1] && !u.nunbinds[1]);
	}
	u = (struct relu){ .bad_save = -EXDEV };
	fails(te_plan_create(seq, &o, &p), -EXDEV, "save is out of order");
	u.bad_save = 1; /* and no spec */
	fails(te_plan_create(seq, &o, &p), -TE_ESHAPE,
	      "fusion relu: gives no shape for saved tensor 0");
	te_seq_unref(seq);
}

TEST(joint, rows_are_checked)
{
	struct te_fusion f = relu_forward, b = relu_backward;
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
#define BAD(text, ...)                                                              \
	do {                                                                        \
		f = relu_forward;                                                   \
		b = relu_backward;                                                  \
		f.backward = &b;                                                    \
		__VA_ARGS__;                                                        \
		fails(te_seq_add_fusion(seq, &f), -EINVAL, text);                   \
	} while (0)
	BAD("pass 3 is unknown", f.pass = (enum te_pass)3; f.pattern = "activation activation");
	BAD("backward is NULL, but it is joint", f.backward = NULL);
	BAD("backward is set, but it is not joint", f.pass = TE_PASS_FORWARD;
	    f.pattern = "activation activation");
	BAD("save() is set, but it is not joint", f.pass = TE_PASS_FORWARD;
	    f.pattern = "activation activation"; f.backward = NULL);
	BAD("only backward of a joint fusion can drop", f.drop = 1);
	BAD("two steps or more", f.pattern = "");
	BAD("its backward needs TE_PASS_BACKWARD", b.pass = TE_PASS_FORWARD);
	BAD("its backward needs TE_PASS_BACKWARD", b.run = NULL);
	BAD("its backward needs TE_PASS_BACKWARD", b.pattern = NULL);
	BAD("its backward has save() of its own", b.save = save_signs);
	BAD("its backward has a backward of its own", b.backward = &relu_backward);
	BAD("TE_FUSION_INIT", b.size = 1);
	te_seq_unref(seq);
}

/* each allocation of planning and binding fails in turn */
static int plan_once(void)
{
	static struct relu u;
	struct te_fusion forward = relu_forward, backward = relu_backward;
	struct te_act_attrs aa = TE_ATTRS(act, TE_ACT_RELU, 0);
	struct te_recipe rec;
	struct te_plan_opts o = opts_of("fp32", TRAIN, &rec);
	struct te_seq *seq = NULL;
	struct te_plan *p = NULL;
	struct te_op *op = NULL;
	int r;

	forward.user = backward.user = &u;
	forward.backward = &backward;
	u = (struct relu){ .nruns = { 0 } };
	r = te_seq_create(ctx, &seq);
	if (!r)
		r = te_op_activation(&aa, "r", &op);
	if (!r)
		r = te_seq_append(seq, op);
	te_op_unref(op);
	if (!r)
		r = te_seq_add_fusion(seq, &forward);
	if (!r)
		r = te_seq_init(seq, 1);
	if (!r)
		r = te_plan_create(seq, &o, &p);
	tt_fault_end();
	tt_drop(p, seq);
	DO(te_stream_sync(st)); /* frees device memory */
	ck_assert(u.nbinds[0] == u.nunbinds[0] && u.nbinds[1] == u.nunbinds[1]);
	return r;
}

TEST_IF(joint, a_joint_plan_survives_faults, ON_HOST)
{
	ck_assert_int_ge(tt_fault_each(plan_once), 20);
}

TT_PAIR("plan/custom", TT_ONE_PROCESS)
