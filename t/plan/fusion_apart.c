/* t/plan/fusion_apart.c - plans that must not be fused, and users' fusions before built-in ones. */
#include "config.h"

#include <math.h>

#include <te/errno.h>

#include "fusion_side.h"

static const struct {
	const char *letters, *recipe;
	uint32_t flags;
	const char *not; /* the fusion that must not be applied */
	const char *why;
} blocked[] = {
	{ "lfba", "bf16", 0, "linear+bias", "the GEMM result is needed without bias" },
	{ "lfba", "bf16", 0, "linear+bias+add", "the GEMM result is needed without bias" },
	{ "flbqgae", "bf16", 0, "linear+bias+add", "an activation is between them" },
	{ "lfa", "bf16", 0, "linear+add", "the residual is the GEMM result itself" },
	{ "lfa", "fp8-current", 0, "linear+add", "the residual is the GEMM result itself" },
	{ "lbfa", "bf16", 0, "linear+bias+add", "the residual is the biased GEMM result itself" },
	{ "qlfemla", "bf16", 0, "norm.bwd+dw+add", "q receives the norm's gradient, too" },
	{ "qlfemla", "bf16", TE_PLAN_DELAY_DW, "norm.bwd+add", "as above" },
	{ "qmfella", "bf16", 0, "dgrad+wgrad+add", "q receives the GEMM's gradient, too" },
	{ "lbg", "fp8-current", TE_PLAN_DELAY_DW, "dact+dbias+quantize", "bias.dw is delayed" },
	{ "lbg", "bf16", 0, "dact+dbias+quantize", "nothing is quantized" },
	{ "lbg", "bf16", TE_PLAN_DELAY_DW, "dact+dbias", "bias.dw is delayed" },
	{ "ml", "bf16", 0, "norm+quantize", "nothing is quantized" },
	{ "nl", "fp8-block", 0, "norm+quantize", "blocks of 128 rows are not of one row" },
	{ "gl", "fp32", 0, "act+quantize", "nothing is quantized" },
	{ "lg", "fp8-delayed", EVAL, "dact+quantize", "there is no backward" },
	{ "lc", "fp8-current", 0, "dscale+dgrad+wgrad", "the scaled gradient is cast" },
	{ "lc", "bf16", TE_PLAN_DELAY_DW, "dscale+dgrad+wgrad", "linear.dw is delayed" },
	{ "lc", "fp32", 0, "dscale+dgrad+wgrad", "FP32 has the bits of separate steps" },
	{ "lcfa", "bf16", 0, "linear+scale+add", "the residual is the scaled result itself" },
	{ "lml", "fp8-block", 0, "norm.bwd+dw+quantize", "its kernel casts with one scale" },
	{ "whl", "fp8-block", 0, "attention+quantize", "blocks of 128 are not of one head" },
	{ "wos", "fp8-block", 0, "drope+quantize", "its kernel casts with one scale" },
};

CTX_CASE(apart, "");

/* without it the plan equals the unfused steps, within the bound of its other fusions */
TEST_EACH(apart, does_not_fuse_where_it_must_not, TT_LEN(blocked))
{
	uint32_t flags = blocked[_i].flags & EVAL ?
				 0 :
				 blocked[_i].flags | TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD;
	float *x = malloc(NELEMS * sizeof(*x)), *dy = malloc(NELEMS * sizeof(*dy));
	struct side fused, steps;
	double diff = 0, most = 0;

	side_open(&fused, blocked[_i].letters, blocked[_i].recipe, flags);
	side_open(&steps, blocked[_i].letters, blocked[_i].recipe, flags | TE_PLAN_NO_FUSION);
	ck_assert_msg(!has_group(fused.p, blocked[_i].not), "%s: %s", blocked[_i].not,
		      blocked[_i].why);
	tt_fill_normal(x, NELEMS, 1);
	tt_fill_normal(dy, NELEMS, 1);
	side_run(&fused, x, dy);
	side_run(&steps, x, dy);
	for (int i = 0; i < NELEMS && fused.dx; i++) {
		diff = fmax(diff, fabs((double)fused.dx[i] - (double)steps.dx[i]));
		most = fmax(most, fabs((double)steps.dx[i]));
	}
	/* a few BF16 roundings; a lost or doubled term differs far more */
	ck_assert_msg(diff <= most / 32, "dx differs by %g of %g", diff, most);
	free(x);
	free(dy);
	side_close(&fused);
	side_close(&steps);
}

static int copy_infer(struct te_op_infer *inf)
{
	inf->out[0] = inf->in[0];
	return 0;
}

static int ncopies;

static int copy_forward(const struct te_op_call *c)
{
	ncopies++;
	return te_copy(c->stream, te_tensor_data(c->y.hp), te_tensor_data(c->x.hp),
		       te_tensor_nbytes(c->x.hp));
}

static const struct {
	const char *letters; /* an x is an op of the type, without attributes, that copies */
	const char *type;
} namesakes[] = {
	{ "lx", "bias" },      { "flxa", "scale" },   { "lx", "add" },    { "xl", "layernorm" },
	{ "xl", "rmsnorm" },   { "xl", "activation" }, { "xb", "linear" }, { "xl", "attention" },
};

/* a user-defined op is run, whatever its name */
TEST_EACH(apart, does_not_take_a_namesake, TT_LEN(namesakes))
{
	const struct te_op_ops ops = {
		.size = sizeof(ops),
		.name = namesakes[_i].type,
		.infer = copy_infer,
		.forward = copy_forward,
	};
	struct te_seq *seq;
	struct te_plan *p;
	struct te_op *op;

	DO(te_seq_create(ctx, &seq));
	for (int i = 0; namesakes[_i].letters[i]; i++) {
		if (namesakes[_i].letters[i] == 'x')
			DO(te_op_create(&ops, NULL, "mine", &op));
		else
			op = op_of(namesakes[_i].letters[i], i);
		tt_append(seq, op);
	}
	DO(te_seq_init(seq, 1));
	p = plan_of(seq, "fp8-delayed", 0);
	ncopies = 0;
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	ck_assert_int_eq(ncopies, 1);
	tt_drop(p, seq);
}

/* both operands of the add are one value: 2 l(x), whatever is fused */
TEST(apart, adds_a_gemm_result_to_itself)
{
	float *x = malloc(NELEMS * sizeof(*x)), *once;
	struct side twice, one;

	side_open(&twice, "lfa", "fp32", 0);
	side_open(&one, "l", "fp32", 0);
	tt_fill_normal(x, NELEMS, 1);
	side_run(&twice, x, NULL);
	side_run(&one, x, NULL);
	once = one.y;
	for (int i = 0; i < NELEMS; i++)
		ck_assert_float_eq(twice.y[i], 2 * once[i]);
	free(x);
	side_close(&twice);
	side_close(&one);
}

/* ---- fusions of users ---- */

static int asked;

static int declines(const struct te_fused *f)
{
	ck_assert_int_eq(f->nparts, 2);
	ck_assert_str_eq(te_op_table(f->part[0]->op)->name, "linear");
	/* specs are known, and a value used only between the two parts has no memory */
	ck_assert_ptr_null(f->part[0]->y.hp);
	ck_assert_int_eq(te_tensor_cols(f->part[1]->y.hp), WIDTH);
	asked++;
	return 0;
}

static int breaks(const struct te_fused *f)
{
	return -TE_EPLAN;
}

static int refuses(const struct te_fused *f)
{
	return 0;
}

static void fails_to_plan(struct te_seq *seq)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;

	o.x = (struct te_spec){ TE_DTYPE_BF16, 3, { 5, 16, WIDTH } };
	ck_assert_int_eq(te_plan_create(seq, &o, &p), -TE_EPLAN);
}

CTX_CASE(tables, "");

TEST(tables, tries_user_fusions_first)
{
	struct te_fusion mine = apart;
	struct te_seq *seq = seq_of("lb");
	struct te_plan *p;

	mine.applies = declines;
	DO(te_seq_add_fusion(seq, &mine));
	asked = 0;
	p = plan_of(seq, "bf16", 0);
	ck_assert_int_eq(asked, 1);
	ck_group(p, "linear-then-bias", 0);
	ck_group(p, "linear+bias", 1); /* the next one that applies */
	tt_drop(p, seq);

	seq = seq_of("lb");
	DO(te_seq_add_fusion(seq, &apart));
	p = plan_of(seq, "bf16", 0);
	ck_group(p, "linear-then-bias", 1);
	ck_group(p, "linear+bias", 0);
	tt_drop(p, seq);

	seq = seq_of("lb");
	mine.applies = breaks;
	DO(te_seq_add_fusion(seq, &mine));
	fails_to_plan(seq);
	te_seq_unref(seq);
}

/* a user's fusion of a bias and an activation; a built-in one could take them with the linear */
static const struct te_fusion later = {
	.size = sizeof(later),
	.name = "bias-then-act",
	.pass = TE_PASS_FORWARD,
	.pattern = "bias activation",
	.run = apart_run,
};

TEST(tables, built_in_fusions_leave_user_fusions_their_steps)
{
	struct te_fusion mine = later;
	struct te_seq *seq = seq_of("lbg");
	struct te_plan *p;

	DO(te_seq_add_fusion(seq, &mine));
	p = plan_of(seq, "bf16", 0);
	ck_group(p, "bias-then-act", 1);
	ck_group(p, "linear+bias", 0);
	tt_drop(p, seq);

	/* one that does not apply leaves them to the built-in ones */
	seq = seq_of("lbg");
	mine.applies = refuses;
	DO(te_seq_add_fusion(seq, &mine));
	p = plan_of(seq, "bf16", 0);
	ck_group(p, "bias-then-act", 0);
	ck_group(p, "linear+bias", 1);
	tt_drop(p, seq);

	/* a failure ends planning */
	seq = seq_of("lbg");
	mine.applies = breaks;
	DO(te_seq_add_fusion(seq, &mine));
	fails_to_plan(seq);
	te_seq_unref(seq);
}
