/* t/plan/fusion_loss.c - fusions of the loss, and of the head with it by chunks of rows. */
#include "config.h"

#include <math.h>

#include <te/gemm.h>

#include "fusion_side.h"

/* letters, then a loss of WIDTH classes with the targets t, by chunks of rows */
static struct te_seq *loss_seq(const char *letters, int64_t chunk)
{
	struct te_cross_entropy_attrs a = TE_CROSS_ENTROPY_ATTRS_INIT;
	struct te_seq *seq;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; letters[i]; i++) {
		op = op_of(letters[i], i);
		tt_append(seq, op);
	}
	DO(te_seq_input(seq, "t", TE_DTYPE_INT32, 0, NULL));
	a.nclasses = WIDTH - 3;
	a.chunk = chunk;
	DO(te_op_cross_entropy(&a, "loss", &op));
	DO(te_op_take(op, 0, "t"));
	tt_append(seq, op);
	DO(te_seq_complete(seq));
	if (strchr(letters, 'L'))
		ck_assert_int_gt(te_seq_freeze(seq, "L*", 1), 0);
	DO(te_seq_init(seq, 1));
	return seq;
}

static const struct loss_case {
	const char *letters, *recipe;
	uint32_t flags;
	int in_place; /* the gradient is in the memory of the logits */
} losses[] = {
	{ "l", "bf16", 0, 1 },
	{ "l", "fp32", 0, 1 },
	{ "lbg", "fp8-delayed", 0, 1 },
	{ "l", "bf16", TE_PLAN_DELAY_DW, 1 },
	{ "", "bf16", 0, 0 }, /* the logits are the caller's */
	{ "fga", "bf16", 0, 1 },
};

static const struct te__group *loss_group(const struct te_plan *p, const char *name, int backward)
{
	for (int t = backward ? p->fwd_groups : 0; t < p->ngroups; t++)
		if (p->group[t].fusion && !strcmp(p->group[t].fusion->name, name))
			return &p->group[t];
	ck_abort_msg("no group of a loss");
}

static void targets_of_rows(float *target)
{
	for (int i = 0; i < NROWS; i++)
		target[i] = (float)(i % 7 ? tt_rand_int(0, WIDTH - 2) : -100);
}

TEST_EACH(equal, loss_gradient_has_the_same_bits, TT_LEN(losses))
{
	const struct loss_case *k = &losses[_i];
	const uint32_t flags = k->flags | TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	float *x = malloc(NELEMS * sizeof(*x)), target[NROWS];
	struct side s[2];
	const struct te__group *g;

	for (int i = 0; i < 2; i++) {
		s[i] = (struct side){ .seq = loss_seq(k->letters, 0) };
		s[i].p = plan_of(s[i].seq, k->recipe, flags | (i ? TE_PLAN_NO_FUSION : 0));
		ck_group(s[i].p, "cross_entropy+grad", !i);
	}
	g = loss_group(s[0].p, "cross_entropy+grad", 1);
	ck_assert_int_eq(k->in_place,
			 te_tensor_data(g->fused.saved[0]) ==
			 te_tensor_data(loss_group(s[0].p, "cross_entropy+grad", 0)
						->fused.part[0]->x.hp));
	ck_assert_ptr_eq(te_tensor_data(g->fused.saved[0]),
			 te_tensor_data(g->fused.part[0]->dx.hp));
	for (int pass = 0; pass < PASSES; pass++) {
		tt_fill_normal(x, NELEMS, 1.0f + 3.0f * (float)pass);
		targets_of_rows(target);
		for (int i = 0; i < 2; i++) {
			tt_tensor_set(te_plan_input(s[i].p, "t"), target);
			side_run(&s[i], x, NULL);
		}
		ck_bits("loss", s[0].y, s[1].y, 1);
		ck_bits("dx", s[0].dx, s[1].dx, NELEMS);
		if (te_seq_nweights(s[0].seq))
			ck_bits("gradient", s[0].grads, s[1].grads,
				(size_t)te_tensor_nelems(te_seq_grads(s[0].seq)));
		ck_quant(s[0].seq, s[1].seq);
	}
	side_close(&s[0]);
	side_close(&s[1]);
	free(x);
}

static const struct chunk_case {
	const char *letters, *recipe;
	uint32_t flags; /* as in struct fcase */
	int64_t chunk;
	int has; /* 1: chunks are possible */
	int in_place; /* dx of the head is in the memory of its input */
} chunks[] = {
	{ "l", "bf16", 0, 16, 1, 0 }, /* x is the plan's */
	{ "nl", "bf16", 0, 16, 1, 1 },
	{ "nl", "bf16", 0, 32, 1, 1 }, /* the last chunk has 16 of 80 rows */
	{ "lgl", "fp32", 0, 48, 1, 1 },
	{ "fgal", "bf16", 0, 64, 1, 1 },
	{ "ngL", "bf16", 0, 32, 1, 1 },
	{ "nltyt", "bf16", 0, 32, 1, 1 },
	{ "lgltyt", "fp32", 0, 48, 1, 1 },
	{ "ngLtyt", "bf16", 0, 32, 1, 1 },
	{ "nltyt", "bf16", EVAL, 32, 1, 0 },
	{ "nltgt", "bf16", 0, 32, 0, 0 }, /* not a tanh */
	{ "nltyt", "fp8-delayed", 0, 32, 0, 0 },
	{ "nlty", "bf16", 0, 32, 0, 0 },
	{ "nl", "bf16", EVAL, 32, 1, 0 },
	{ "nl", "fp8-delayed", EVAL, 32, 0, 0 },
	{ "nl", "fp8-delayed", 0, 32, 0, 0 },
	{ "nl", "bf16", TE_PLAN_DELAY_DW, 32, 0, 0 },
	{ "nl", "bf16", 0, 80, 0, 0 },
	{ "nlb", "bf16", 0, 32, 0, 0 },
};

/* a user's fusion for the head of a plan without chunks: adds to the gradient of w by chunks */
static int by_chunks_run(const struct te_fused *f)
{
	const struct te_op_call *bwd = f->part[0], *dw = f->part[1];
	const struct chunk_case *k = f->fusion->user;
	struct te_gemm_opts o = TE_GEMM_OPTS_INIT;
	int r = te_op_table(bwd->op)->backward(bwd);

	o.flags = TE_GEMM_A_T | TE_GEMM_B_T;
	o.beta = 1.0f;
	for (int64_t n, at = 0; at < NROWS && r >= 0; at += n) {
		struct te_tensor *x, *dy;

		n = NROWS - at < k->chunk ? NROWS - at : k->chunk;
		DO(te_tensor_view(dw->x.hp, at * WIDTH, 2, (int64_t[]){ n, WIDTH }, &x));
		DO(te_tensor_view(dw->dy.hp, at * WIDTH, 2, (int64_t[]){ n, WIDTH }, &dy));
		r = te_gemm(dw->stream, dy, x, dw->grad[0], &o);
		te_tensor_unref(x);
		te_tensor_unref(dy);
	}
	return r;
}

/* index of the last linear op */
static int head_at(const char *letters)
{
	const char *l = strrchr(letters, 'l'), *frozen = strrchr(letters, 'L');

	return (int)((l > frozen ? l : frozen) - letters);
}

static int by_chunks_applies(const struct te_fused *f)
{
	const struct chunk_case *k = f->fusion->user;

	return k->has && te_op_name(f->part[0]->op)[1] == (char)('0' + head_at(k->letters));
}

/* On a GPU the GEMM of a chunk may use another algorithm than that of all rows: results of one BF16
 * rounding more or less, which later operations spread. */
static void ck_chunks(const char *what, const float *a, const float *b, size_t n)
{
	double most = 0;

	if (!strcmp(backend, "host")) {
		ck_bits(what, a, b, n);
		return;
	}
	for (size_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)b[i]));
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= ldexp(most, -5),
			      "%s[%zu]: chunks %.9g, whole %.9g", what, i, (double)a[i],
			      (double)b[i]);
}

TEST_EACH(equal, head_has_the_same_bits_by_chunks, TT_LEN(chunks))
{
	struct chunk_case k = chunks[_i];
	const int trains = !(k.flags & EVAL);
	const uint32_t flags = trains ? k.flags | TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD : 0;
	const int capped = strstr(k.letters, "tyt") != NULL;
	const char *name = capped ? "head+cap+loss" : "head+loss";
	struct te_fusion by_chunks = TE_FUSION_INIT;
	float *x = malloc(NELEMS * sizeof(*x)), target[NROWS];
	struct side s[2];
	const struct te__group *g;

	by_chunks.name = "by-chunks";
	by_chunks.pass = TE_PASS_BACKWARD;
	by_chunks.pattern = "linear linear.dw";
	by_chunks.run = by_chunks_run;
	by_chunks.applies = by_chunks_applies;
	by_chunks.user = &k;
	for (int i = 0; i < 2; i++) {
		s[i] = (struct side){ .seq = loss_seq(k.letters, i ? 0 : k.chunk) };
		if (i)
			DO(te_seq_add_fusion(s[i].seq, &by_chunks));
		s[i].p = plan_of(s[i].seq, k.recipe, flags);
		ck_group(s[i].p, name, !i && k.has);
	}
	ck_group(s[1].p, "by-chunks", k.has && trains && !strchr(k.letters, 'L'));
	if (k.has && trains) {
		g = loss_group(s[0].p, name, 1);
		ck_assert_ptr_eq(te_tensor_data(g->fused.saved[0]),
				 te_tensor_data(g->fused.part[capped ? 4 : 1]->dx.hp));
		g = loss_group(s[0].p, name, 0);
		ck_assert_int_eq(k.in_place, te_tensor_data(g->fused.saved[0]) ==
					     te_tensor_data(g->fused.part[0]->x.hp));
		ck_assert_uint_lt(s[0].p->arena_nbytes, s[1].p->arena_nbytes);
	}
	for (int pass = 0; pass < PASSES; pass++) {
		tt_fill_normal(x, NELEMS, 1.0f + 3.0f * (float)pass);
		targets_of_rows(target);
		for (int i = 0; i < 2; i++) {
			tt_tensor_set(te_plan_input(s[i].p, "t"), target);
			side_run(&s[i], x, NULL);
		}
		ck_chunks("loss", s[0].y, s[1].y, 1);
		if (!trains)
			continue;
		ck_chunks("dx", s[0].dx, s[1].dx, NELEMS);
		ck_chunks("gradient", s[0].grads, s[1].grads,
			  (size_t)te_tensor_nelems(te_seq_grads(s[0].seq)));
	}
	side_close(&s[0]);
	side_close(&s[1]);
	free(x);
}
