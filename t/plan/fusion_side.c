/* t/plan/fusion_side.c - small sequences in letters, planned and run, for t/plan/fusion. */
#include "config.h"

#include "fusion_side.h"

/*
 * A sequence in letters: l linear 32 to 32, L the same and frozen, w linear 32 to 64, b bias of 32,
 * B of 64, n layernorm, m rmsnorm, g gelu, s gated silu 64 to 32, d dropout of rate 0, f and q
 * forks to the channels r and q, a and e adds of them; o RoPE and h attention 64 to 32 of 2 heads
 * of 16, i and j of 8 heads of 4, k attention as h with dropout, x attention of 4
 * heads of 8 to k and v in r; c scale by 0.5, t by 0.7; y tanh.
 */
struct te_op *op_of(char letter, int at)
{
	struct te_linear_attrs la = TE_ATTRS(linear, WIDTH, letter == 'w' ? 2 * WIDTH : WIDTH, 0.2f,
					     0, NULL);
	struct te_bias_attrs ba = TE_ATTRS(bias, letter == 'B' ? 2 * WIDTH : WIDTH);
	struct te_act_attrs aa = TE_ATTRS(act, letter == 's' ? TE_ACT_SILU :
					       letter == 'y' ? TE_ACT_TANH : TE_ACT_GELU,
					  letter == 's');
	struct te_norm_attrs na = TE_ATTRS(norm, WIDTH, 1e-5f, 0);
	struct te_dropout_attrs da = TE_ATTRS(dropout, .p = 0);
	const int small = letter == 'i' || letter == 'j';
	struct te_rope_attrs ra = TE_ATTRS(rope, small ? 8 : 2, small ? 4 : 1, small ? 4 : 16,
					   10000.0f);
	struct te_attention_attrs ta = TE_ATTRS(attention, small ? 8 : 2, small ? 4 : 1,
						small ? 4 : 16, 0, letter == 'k' ? 0.25f : 0,
						0, 0, 0);
	struct te_attention_attrs xa = TE_ATTRS(attention, 4, 2, 8, .full = 1, .alibi = 1,
						.operands = TE_ATTENTION_Q_KV);
	struct te_scale_attrs ca = TE_ATTRS(scale, letter == 'c' ? 0.5f : 0.7f);
	struct te_op *op = NULL;
	char name[16];

	snprintf(name, sizeof(name), "%c%d", letter, at);
	switch (letter) {
	case 'l':
	case 'L':
	case 'w':
		DO(te_op_linear(&la, name, &op));
		break;
	case 'b':
	case 'B':
		DO(te_op_bias(&ba, name, &op));
		break;
	case 'n':
		DO(te_op_layernorm(&na, name, &op));
		break;
	case 'm':
		DO(te_op_rmsnorm(&na, name, &op));
		break;
	case 'g':
	case 's':
	case 'y':
		DO(te_op_activation(&aa, name, &op));
		break;
	case 'd':
		DO(te_op_dropout(&da, name, &op));
		break;
	case 'c':
	case 't':
		DO(te_op_scale(&ca, name, &op));
		break;
	case 'o':
	case 'i':
		DO(te_op_rope(&ra, name, &op));
		break;
	case 'h':
	case 'j':
	case 'k':
		DO(te_op_attention(&ta, name, &op));
		break;
	case 'x':
		DO(te_op_attention(&xa, name, &op));
		DO(te_op_take(op, 0, "r"));
		break;
	case 'f':
	case 'q':
		DO(te_op_fork(name, &op));
		DO(te_op_give(op, 0, letter == 'f' ? "r" : "q"));
		break;
	default:
		DO(te_op_add(name, &op));
		DO(te_op_take(op, 0, letter == 'a' ? "r" : "q"));
	}
	return op;
}

struct te_seq *seq_of(const char *letters)
{
	struct te_seq *seq;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; letters[i]; i++) {
		struct te_op *op = op_of(letters[i], i);

		tt_append(seq, op);
	}
	DO(te_seq_complete(seq));
	if (strchr(letters, 'L'))
		ck_assert_int_gt(te_seq_freeze(seq, "L*", 1), 0);
	DO(te_seq_init(seq, 1));
	return seq;
}

struct te_plan *plan_in(struct te_seq *seq, const char *recipe, enum te_dtype compute,
			uint32_t flags)
{
	struct te_recipe rec = tt_recipe(recipe);

	rec.compute = compute;
	rec.history_len = 2;
	return tt_plan(seq, &rec, flags, (struct te_spec){ compute, 3, { 5, 16, WIDTH } });
}

struct te_plan *plan_of(struct te_seq *seq, const char *recipe, uint32_t flags)
{
	return plan_in(seq, recipe, tt_recipe(recipe).compute, flags);
}

/* 1: the plan has a group of that name */
int has_group(const struct te_plan *p, const char *name)
{
	char *text, want[64];
	int has;

	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	snprintf(want, sizeof(want), "  %s ", name);
	has = strstr(text, want) != NULL;
	free(text);
	return has;
}

void ck_group(const struct te_plan *p, const char *name, int want)
{
	char *text;

	if (has_group(p, name) == want)
		return;
	DO(te_plan_print(p, TE_PLAN_TEXT, &text));
	ck_abort_msg("%s %s:\n%s", want ? "no" : "unwanted", name, text);
}

/* a user's fusion, tried before the built-in ones: the same two launches */
int apart_run(const struct te_fused *f)
{
	struct te_op_call linear = *f->part[0], bias = *f->part[1];
	int r;

	linear.y = bias.x = bias.y;
	r = te_op_table(linear.op)->forward(&linear);
	return r < 0 ? r : te_op_table(bias.op)->forward(&bias);
}

const struct te_fusion apart = {
	.size = sizeof(apart),
	.name = "linear-then-bias",
	.pass = TE_PASS_FORWARD,
	.pattern = "linear bias",
	.run = apart_run,
};

void side_open(struct side *s, const char *letters, const char *recipe, uint32_t flags)
{
	s->seq = seq_of(letters);
	if (flags & APART)
		DO(te_seq_add_fusion(s->seq, &apart));
	/* rows of a user go first: before the longer ones that cast */
	for (int i = 0; flags & UNCAST && i < te__nfusions; i++)
		if (!strncmp(te__fusions[i].name, "norm.bwd", 8) &&
		    !strstr(te__fusions[i].name, "quantize") &&
		    !strstr(te__fusions[i].name, "dbias"))
			DO(te_seq_add_fusion(s->seq, &te__fusions[i]));
	s->p = plan_of(s->seq, recipe, flags & ~(APART | UNCAST));
	s->y = s->dx = s->grads = NULL;
}

static void side_drop(struct side *s)
{
	free(s->y);
	free(s->dx);
	free(s->grads);
	s->y = s->dx = s->grads = NULL;
}

void side_close(struct side *s)
{
	side_drop(s);
	tt_drop(s->p, s->seq);
}

void side_run(struct side *s, const float *x, const float *dy)
{
	side_drop(s);
	tt_tensor_set(te_plan_input(s->p, "x"), x);
	/* previous contents must not matter */
	DO(te_fill(st, s->p->arena, 0xff, s->p->arena_nbytes));
	DO(te_seq_zero_grads(s->seq, st));
	DO(te_plan_forward(s->p, st, 0));
	DO(te_stream_sync(st));
	s->y = tt_tensor_get(te_plan_output(s->p));
	if (!(s->p->flags & TE_PLAN_TRAIN))
		return;
	if (dy)
		tt_tensor_set(te_plan_output_grad(s->p), dy);
	DO(te_plan_backward(s->p, st));
	if (s->p->flags & TE_PLAN_DELAY_DW)
		DO(te_plan_backward_dw(s->p, st));
	DO(te_stream_sync(st));
	if (te_plan_input_grad(s->p))
		s->dx = tt_tensor_get(te_plan_input_grad(s->p));
	s->grads = tt_tensor_get(te_seq_grads(s->seq));
}

void ck_bits(const char *what, const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(!memcmp(&a[i], &b[i], sizeof(*a)), "%s[%zu]: fused %.9g, steps %.9g",
			      what, i, (double)a[i], (double)b[i]);
}

/* scales and amax histories */
void ck_quant(const struct te_seq *a, const struct te_seq *b)
{
	struct te_quant *qa = te_seq_quant(a), *qb = te_seq_quant(b);
	size_t n;
	char *p, *q;

	if (!qa)
		return;
	n = te_quant_nbytes(qa);
	p = malloc(n);
	q = malloc(n);
	DO(te_quant_save(qa, p, n));
	DO(te_quant_save(qb, q, n));
	ck_assert_mem_eq(p, q, n);
	free(p);
	free(q);
}
