/*
 * t/graph/recompute_random.c - te_op_recompute(3) in sequences of given and of random operations,
 * these with random policies, frozen weights and flags: plans that compute again have the bits of
 * plans that keep.
 */
#include "config.h"

#include <te/kernel.h>
#include <te/plan.h>

#include "libtecore/plan/plan.h"
#include "offload_lib.h"
#include "recompute_cases.h"

#define ROWS 32
#define WIDTH 48
#define MOST 16
#define NMODELS 6

/* ---- user-defined operations ---- */

/* SiLU, whose backward reads a copy of x; or x, and y is kept, too */
static const char copies[] = "copies", reads[] = "reads";

static int silu_infer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	if (te_op_table(inf->op)->user == copies)
		return te_infer_save(inf, &inf->in[0]);
	inf->save_x = inf->save_y = TE_FORM_HP;
	return 0;
}

static int silu_forward(const struct te_op_call *c)
{
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;
	int r = 0;

	if (te_op_table(c->op)->user == copies)
		r = te_copy(c->stream, te_tensor_data(c->saved[0]), te_tensor_data(c->x.hp),
			    te_tensor_nbytes(c->x.hp));
	o.act = TE_ACT_SILU;
	return r ? r : te_kernel_act_forward(c->stream, c->x.hp, c->y.hp, &o);
}

static int silu_backward(const struct te_op_call *c)
{
	const int saves = te_op_table(c->op)->user == copies;
	struct te_kernel_act_opts o = TE_KERNEL_ACT_OPTS_INIT;

	o.act = TE_ACT_SILU;
	return te_kernel_act_backward(c->stream, c->dy.hp, saves ? c->saved[0] : c->x.hp, c->dx.hp,
				      NULL, NULL, 0, &o);
}

/* the values of the FP8 copy, with the gradient of x; backward would read the other copy */
static int codes_infer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	if (inf->recipe->kind != TE_RECIPE_NONE) {
		inf->fwd_x = TE_FORM_ROW;
		inf->save_x = TE_FORM_COL;
	}
	inf->dx_alias = 0;
	return 0;
}

static int codes_forward(const struct te_op_call *c)
{
	return c->x.q ? te_dequantize(c->stream, c->x.q, c->y.hp) :
			te_copy(c->stream, te_tensor_data(c->y.hp), te_tensor_data(c->x.hp),
				te_tensor_nbytes(c->x.hp));
}

#define TABLE(ident, fn, back, arg, bits)                                          \
	static const struct te_op_ops ident = { .size = sizeof(ident),             \
						.name = #ident,                    \
						.infer = fn##_infer,               \
						.forward = fn##_forward,           \
						.backward = back,                  \
						.user = (void *)(uintptr_t)(arg),  \
						.flags = bits }
TABLE(copier, silu, silu_backward, copies, TE_OP_REPEATS);
TABLE(reader, silu, silu_backward, reads, TE_OP_REPEATS);
TABLE(once, silu, silu_backward, reads, 0);
TABLE(codes, codes, NULL, NULL, TE_OP_REPEATS);

/* ---- sequences ---- */

enum kind {
	LINEAR, RMSNORM, LAYERNORM, ACT, BIAS, DROPOUT, IDENTITY, COPIER, READER, ONCE, CODES,
	ATTEND, /* to the value of an open fork */
	FORK, ADD, NKINDS
};

static struct {
	int n;
	enum kind kind[MOST];
	int channel[MOST]; /* of forks, attention and additions: index of the fork */
	int policy[MOST];  /* 1: keep, 2: recompute */
	int frozen[MOST];
} model;

/* ends with an activation and a linear; forks are added again */
static void draw_model(void)
{
	int open[MOST], nopen = 0, i = 0;

	while (i + nopen < MOST - 2) {
		enum kind kind = tt_rand_int(0, 3) ? (enum kind)tt_rand_int(0, NKINDS - 1) : LINEAR;

		if ((kind == ADD || kind == ATTEND) && !nopen)
			kind = ACT;
		if (kind == FORK && i + nopen + 4 > MOST)
			kind = RMSNORM;
		if (kind == FORK)
			open[nopen++] = i;
		model.channel[i] = kind == FORK	  ? i :
				   kind == ADD	  ? open[--nopen] :
				   kind == ATTEND ? open[tt_rand_int(0, nopen - 1)] :
						    -1;
		model.kind[i++] = kind;
	}
	while (nopen) {
		model.channel[i] = open[--nopen];
		model.kind[i++] = ADD;
	}
	model.kind[i++] = ACT;
	model.kind[i++] = LINEAR;
	model.n = i;
	ck_assert_int_le(i, MOST);
	for (int k = 0; k < i; k++) {
		model.policy[k] = (int)tt_rand_int(0, 5);
		model.frozen[k] = !tt_rand_int(0, 4);
	}
	model.policy[i - 2] = 0;
}

static int make_op(int i, const char *name, struct te_op **ret_op)
{
	struct te_linear_attrs linear = TE_ATTRS(linear, WIDTH, WIDTH, 0.2f, 0, NULL);
	struct te_norm_attrs norm = TE_ATTRS(norm, WIDTH, 1e-5f, 0);
	struct te_act_attrs act = TE_ATTRS(act, TE_ACT_GELU, 0);
	struct te_bias_attrs bias = TE_ATTRS(bias, WIDTH);
	struct te_dropout_attrs dropout = TE_ATTRS(dropout, .p = 0.1f);
	struct te_attention_attrs attention =
		TE_ATTRS(attention, 4, 2, 12, 0, 0.1f, .operands = TE_ATTENTION_Q_KV, .alibi = 1);

	switch (model.kind[i]) {
	case LINEAR:
		return te_op_linear(&linear, name, ret_op);
	case RMSNORM:
		return te_op_rmsnorm(&norm, name, ret_op);
	case LAYERNORM:
		return te_op_layernorm(&norm, name, ret_op);
	case ACT:
		return te_op_activation(&act, name, ret_op);
	case BIAS:
		return te_op_bias(&bias, name, ret_op);
	case DROPOUT:
		return te_op_dropout(&dropout, name, ret_op);
	case IDENTITY:
		return te_op_identity(name, ret_op);
	case COPIER:
		return te_op_create(&copier, NULL, name, ret_op);
	case READER:
		return te_op_create(&reader, NULL, name, ret_op);
	case ONCE:
		return te_op_create(&once, NULL, name, ret_op);
	case CODES:
		return te_op_create(&codes, NULL, name, ret_op);
	case ATTEND:
		return te_op_attention(&attention, name, ret_op);
	case FORK:
		return te_op_fork(name, ret_op);
	default:
		return te_op_add(name, ret_op);
	}
}

/* policies: those of the model */
static struct te_seq *make_seq(int policies)
{
	char name[16], channel[16];
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; i < model.n; i++) {
		snprintf(name, sizeof(name), "%d", i);
		snprintf(channel, sizeof(channel), "c%d", model.channel[i]);
		DO(make_op(i, name, &op));
		if (model.kind[i] == FORK)
			DO(te_op_give(op, 0, channel));
		if (model.kind[i] == ADD || model.kind[i] == ATTEND)
			DO(te_op_take(op, 0, channel));
		if (policies && model.policy[i] == 1)
			DO(te_op_keep(op));
		if (policies && model.policy[i] == 2)
			DO(te_op_recompute(op));
		tt_append(seq, op);
	}
	DO(te_seq_complete(seq));
	for (int i = 0; i < model.n - 1; i++) {
		snprintf(name, sizeof(name), "%d", i);
		if (model.frozen[i])
			te_seq_freeze(seq, name, 1);
	}
	DO(te_seq_init(seq, 5));
	return seq;
}

static int nagain;

static struct te_plan *make_plan(struct te_seq *seq, const struct te_recipe *recipe,
				 uint32_t flags, int npatterns, struct te_offload *off)
{
	static const char *const pattern[] = { "*" };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan_saved_info s = TE_PLAN_SAVED_INFO_INIT;
	struct te_plan *p;

	o.recipe = recipe;
	o.flags = flags;
	o.x = (struct te_spec){ recipe->compute, 2, { ROWS, WIDTH } };
	o.nrecompute = npatterns;
	o.recompute = pattern;
	o.offload = off;
	DO(te_plan_create(seq, &o, &p));
	for (int i = 0; !te_plan_saved(p, i, &s); i++) {
		nagain += s.policy == TE_POLICY_RECOMPUTE;
		ck_assert(s.policy != TE_POLICY_RECOMPUTE || !s.why);
	}
	return p;
}

/* ---- passes ---- */

static void write_random(struct te_tensor *t, const float *x)
{
	uint16_t half[ROWS * WIDTH];

	for (int i = 0; i < ROWS * WIDTH; i++) {
		uint32_t u;

		memcpy(&u, &x[i], sizeof(u));
		half[i] = (uint16_t)(u >> 16);
	}
	if (te_tensor_dtype(t) == TE_DTYPE_FP32)
		DO(te_tensor_write(t, x, ROWS * WIDTH * sizeof(*x)));
	else
		DO(te_tensor_write(t, half, sizeof(half)));
}

static void draw(float *x)
{
	for (int i = 0; i < ROWS * WIDTH; i++)
		x[i] = tt_rand_normal();
}

struct results {
	void *out, *in_grad;
	size_t nbytes;
};

/* copies to the host may read the arena after forward: then it is not filled */
static struct results run(struct te_plan *p, const float *x, const float *dy, int fill)
{
	struct te_tensor *out = te_plan_output(p), *dx = te_plan_input_grad(p);
	struct results r = { .nbytes = te_tensor_nbytes(out) };

	write_random(te_plan_input(p, "x"), x);
	DO(te_plan_forward(p, st, 0));
	r.out = tt_bytes(te_tensor_data(out), r.nbytes);
	if (fill)
		poison_arena(p);
	write_random(te_plan_output_grad(p), dy);
	DO(te_plan_backward(p, st));
	if (te_plan_flags(p) & TE_PLAN_DELAY_DW)
		DO(te_plan_backward_dw(p, st));
	r.in_grad = dx ? tt_bytes(te_tensor_data(dx), r.nbytes) : NULL;
	return r;
}

static void same_passes(struct te_plan *const p[2], struct te_seq *const seq[2], int fill)
{
	float x[ROWS * WIDTH], dy[ROWS * WIDTH];
	struct results r[2];

	draw(x);
	draw(dy);
	for (int k = 0; k < 2; k++) {
		DO(te_seq_zero_grads(seq[k], st));
		r[k] = run(p[k], x, dy, fill);
	}
	ck_assert_mem_eq(r[0].out, r[1].out, r[0].nbytes);
	if (r[0].in_grad)
		ck_assert_mem_eq(r[0].in_grad, r[1].in_grad, r[0].nbytes);
	for (int k = 0; k < 2; k++) {
		free(r[k].out);
		free(r[k].in_grad);
	}
	model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "gradients");
	model_same_scales(te_seq_quant(seq[0]), te_seq_quant(seq[1]));
}

/* ---- sequences that are given ---- */

static void set_model(int n, const enum kind *kind)
{
	model.n = n;
	for (int i = 0; i < n; i++) {
		model.kind[i] = kind[i];
		model.policy[i] = model.frozen[i] = 0;
	}
}

CTX_CASE(random, "graph");

/* of casts whose producer does not run again, the reason of the producer */
TEST(random, casts_stay_with_the_reason_of_their_producer)
{
	static const enum kind kind[] = { LINEAR, DROPOUT, LINEAR };
	static const char *const want[][2] = {
		{ "1.y", "op 1 of type dropout does not run again" },
		{ "x", "x is an input, and no other step of backward reads it" },
	};
	const struct te_recipe recipe = model_recipe("fp8-block");
	struct te_plan_saved_info s = TE_PLAN_SAVED_INFO_INIT;
	struct te_plan *p;
	struct te_seq *seq;
	int n = 0;

	set_model((int)TT_LEN(kind), kind);
	seq = make_seq(0);
	p = make_plan(seq, &recipe, TE_PLAN_TRAIN, 1, NULL);
	for (int i = 0; !te_plan_saved(p, i, &s); i++)
		for (int k = 0; k < (int)TT_LEN(want); k++)
			if (!strcmp(s.name, want[k][0])) {
				ck_assert_int_eq(s.policy, TE_POLICY_KEEP);
				ck_assert_ptr_nonnull(s.why);
				ck_assert_str_eq(s.why, want[k][1]);
				n++;
			}
	ck_assert_int_eq(n, (int)TT_LEN(want));
	tt_drop(p, seq);
}

/* ---- a cast and its reader in one fusion ---- */

static int cast_and_read(const struct te_fused *f)
{
	const struct te_op_call *q = f->part[0];
	int r = te_quantize(q->stream, q->y.quant, q->y.slot, q->x.hp, q->y.q, NULL,
			    q->flags & TE_CALL_NO_AMAX ? TE_QUANTIZE_NO_AMAX : 0);

	return r ? r : codes_forward(f->part[1]);
}

/* the row-wise copy is written again for the reader, and not kept */
TEST(random, copies_for_steps_of_the_group_are_written_again)
{
	static const enum kind kind[] = { LINEAR, READER, CODES, LINEAR };
	const struct te_recipe recipe = model_recipe("fp8-delayed");
	struct te_fusion f = TE_FUSION_INIT;
	struct te_plan *p[2];
	struct te_seq *seq[2];

	set_model((int)TT_LEN(kind), kind);
	f.name = "cast+read";
	f.pattern = "quantize codes";
	f.run = cast_and_read;
	f.test = "t/graph/recompute";
	f.flags = TE_FUSION_REPEATS;
	for (int k = 0; k < 2; k++) {
		seq[k] = make_seq(0);
		DO(te_seq_add_fusion(seq[k], &f));
		p[k] = make_plan(seq[k], &recipe, TE_PLAN_TRAIN, k, NULL);
	}
	for (int v = 0; v < p[1]->nvalues; v++) {
		const int row = p[1]->value[v].row;

		if (row >= 0 && p[1]->buf[row].first < p[1]->fwd_groups)
			ck_assert_int_lt(p[1]->buf[row].last, p[1]->fwd_groups);
	}
	same_passes(p, seq, 1);
	same_passes(p, seq, 1);
	tt_drop_both(p, seq);
}

/* ---- plans that cannot be created ---- */

static struct te_seq *faulty;
static struct te_recipe faulty_recipe;

static int create_one(void)
{
	static const char *const pattern[] = { "*" };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p = NULL;
	int r;

	o.recipe = &faulty_recipe;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ faulty_recipe.compute, 2, { ROWS, WIDTH } };
	o.nrecompute = 1;
	o.recompute = pattern;
	r = te_plan_create(faulty, &o, &p);
	ck_assert_int_eq(p != NULL, !r);
	ck_assert(!p || p->scale_again);
	te_plan_unref(p);
	/* frees are queued; if the wait has the fault, the next one has none */
	for (int i = 0; i < 2; i++) {
		const int waited = te_ctx_sync(ctx);

		r = r ? r : waited;
	}
	return r;
}

/* scales are kept in device memory */
TEST(random, a_plan_with_casts_that_cannot_be_created_leaves_nothing)
{
	static const enum kind kind[] = { LINEAR, RMSNORM, LINEAR };
	struct te_plan *first;
	uint64_t used;

	faulty_recipe = model_recipe("fp8-current");
	set_model((int)TT_LEN(kind), kind);
	faulty = make_seq(0);
	first = make_plan(faulty, &faulty_recipe, TE_PLAN_TRAIN, 0, NULL); /* makes quantizers */
	used = tt_used();
	ck_assert_int_ge(tt_fault_each(create_one), 20);
	ck_assert_uint_eq(tt_used(), used);
	tt_drop(first, faulty);
}

/* ---- random sequences ---- */

static void say_model(uint32_t flags, int npatterns)
{
	static const char *const name[NKINDS] = { "linear", "rmsnorm", "layernorm", "act", "bias",
						  "dropout", "identity", "copier", "reader",
						  "once", "codes", "attend", "fork",
						  "add" };

	printf("# flags 0x%x, %d patterns:", (unsigned)flags, npatterns);
	for (int i = 0; i < model.n; i++)
		printf(" %s%s%s", name[model.kind[i]], model.frozen[i] ? ":frozen" : "",
		       model.policy[i] == 1 ? ":keep" : model.policy[i] == 2 ? ":again" : "");
	printf("\n");
}

TEST_EACH(random, random_sequences_have_the_bits_of_kept_values, 5)
{
	static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-current",
					       "fp8-block" };
	const struct te_recipe recipe = model_recipe(recipes[_i]);

	nagain = 0;
	/* the first one computes its last activation again */
	for (int m = 0; m < TT_FEWER(NMODELS); m++) {
		const uint32_t flags = TE_PLAN_TRAIN |
				       (tt_rand_int(0, 1) ? TE_PLAN_NO_FUSION : 0) |
				       (tt_rand_int(0, 1) ? TE_PLAN_DELAY_DW : 0) |
				       (tt_rand_int(0, 1) ? TE_PLAN_RECOMPUTE_COSTLY : 0) |
				       (tt_rand_int(0, 1) || !m ? TE_PLAN_INPUT_GRAD : 0);
		const struct te_offload_opts oo = rates(tt_rand_int(0, 1) ? FAST : SLOW);
		struct te_offload *off = tt_rand_int(0, 2) ? NULL : offload_of(&oo);
		const int npatterns = tt_rand_int(0, 2) || !m;
		struct te_plan *p[2];
		struct te_seq *seq[2];

		draw_model();
		say_model(flags, npatterns);
		for (int k = 0; k < 2; k++) {
			seq[k] = make_seq(k);
			p[k] = make_plan(seq[k], &recipe, flags, k && npatterns, k ? off : NULL);
		}
		same_passes(p, seq, !off);
		same_passes(p, seq, !off);
		tt_drop_both(p, seq);
		te_offload_unref(off);
	}
	ck_assert_int_gt(nagain, 0);
}
