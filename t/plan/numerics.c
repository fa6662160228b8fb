/* t/plan/numerics.c - te_plan_watch(3): counts against a loop, order, effects and errors. */
#include "config.h"

#include <math.h>
#include <string.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/plan.h>

#include "libtecore/base/dtype_inline.h"
#include "plan_model.h"
#include "tt_ctx.h"

#define ROWS 5 /* casts of these extents are padded */
#define IN 20
#define OUT 12
#define MAX_SEEN 400

static const struct model_shape gpt = { 48, 32, 2, 16, 4, 4, 2, 0.1f, 0 };

static const char *const recipes[] = { "fp32", "bf16", "fp8-delayed", "fp8-block" };

struct seen {
	int n, fail_at;
	struct te_plan_numerics at[MAX_SEEN];
	char name[MAX_SEEN][112];
};

static int see(void *arg, const struct te_plan_numerics *n)
{
	struct seen *s = arg;

	ck_assert_uint_eq(n->size, sizeof(*n));
	ck_assert_int_lt(s->n, MAX_SEEN);
	if (s->n == s->fail_at)
		return te_fail(-ENOSPC, "the table is full");
	s->at[s->n] = *n;
	snprintf(s->name[s->n], sizeof(s->name[0]), "%s", n->value);
	s->at[s->n].value = s->name[s->n];
	s->n++;
	return 0;
}

/* the k-th entry of this name, or NULL */
static const struct te_plan_numerics *find(const struct seen *s, const char *name, int k)
{
	for (int i = 0; i < s->n; i++)
		if (!strcmp(s->at[i].value, name) && !k--)
			return &s->at[i];
	return NULL;
}

static struct te_plan *linear_plan(struct te_seq *seq, const char *recipe, uint32_t flags)
{
	const struct te_recipe rec = tt_recipe(recipe);

	return tt_plan(seq, &rec, flags, (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, IN } });
}

static float round_bf16(float x)
{
	return te__bf16_decode(te__bf16_encode(x));
}

/* x in BF16 to a plan's tensor of ROWS rows */
static void write_rows(struct te_tensor *t, const float *x, int cols)
{
	uint16_t half[ROWS * IN];

	for (int i = 0; i < ROWS * cols; i++)
		half[i] = te__bf16_encode(x[i]);
	DO(te_tensor_write(t, half, (size_t)(ROWS * cols) * sizeof(*half)));
}

static struct te_plan_numerics counted(const float *x, int n, float scale, int e5m2)
{
	struct te_plan_numerics c = { .nelems = n };

	for (int i = 0; i < n; i++) {
		const float v = round_bf16(x[i]), y = v * scale;
		const uint8_t code = e5m2 ? te__e5m2_encode(y) : te__e4m3_encode(y);

		c.nnan += v != v;
		c.ninf += v == INFINITY || v == -INFINITY;
		c.nzero += v == 0;
		c.nsaturated += fabsf(y) > (e5m2 ? 57344.0f : 448.0f);
		c.nunderflow += v != 0 && !(code & 0x7f);
		if (fabsf(v) < INFINITY && fabsf(v) > c.amax)
			c.amax = fabsf(v);
	}
	return c;
}

static void same(const struct te_plan_numerics *got, const struct te_plan_numerics *want)
{
	ck_assert_ptr_nonnull(got);
	ck_assert_int_eq(got->nelems, want->nelems);
	ck_assert_int_eq(got->nnan, want->nnan);
	ck_assert_int_eq(got->ninf, want->ninf);
	ck_assert_int_eq(got->nzero, want->nzero);
	ck_assert_int_eq(got->nsaturated, want->nsaturated);
	ck_assert_int_eq(got->nunderflow, want->nunderflow);
	ck_assert_float_eq(got->amax, want->amax);
}

/* magnitudes from far below the smallest code to far above the largest, and special values */
static void draw(float *x, int n, int special)
{
	tt_fill_normal(x, (size_t)n, 1);
	for (int i = 0; i < n; i++)
		x[i] = ldexpf(x[i], (int)tt_rand_int(-30, 30));
	x[tt_rand_int(8, n - 1)] = 0;
	if (special) {
		x[n - 1] = NAN;
		x[2] = -INFINITY;
		x[3] = INFINITY;
		x[4] = -0.0f;
		x[5] = 1e-44f;
	}
}

CTX_CASE(numerics, "host");

/* scales are 1 in the first pass; the output's gradient is E5M2, and only its transpose is read
 * where x has no gradient */
TEST_EACH(numerics, counts_what_casts_do, 2)
{
	struct te_seq *seq = linear_seq(1, IN, OUT, 0);
	struct te_plan *plan = linear_plan(seq, "fp8-delayed", _i ? TE_PLAN_TRAIN :
					   TE_PLAN_TRAIN | TE_PLAN_INPUT_GRAD);
	float x[ROWS * IN], dy[ROWS * OUT];
	struct seen s = { .fail_at = -1 };
	struct te_plan_numerics want;

	draw(x, ROWS * IN, 1);
	draw(dy, ROWS * OUT, 1);
	write_rows(te_plan_input(plan, "x"), x, IN);
	DO(te_plan_watch(plan, see, &s));
	DO(te_plan_forward(plan, st, 0));
	write_rows(te_plan_output_grad(plan), dy, OUT);
	DO(te_plan_backward(plan, st));
	ck_assert_str_eq(s.at[0].value, "l.weight");
	ck_assert_int_eq(s.at[0].dtype, TE_DTYPE_E4M3);
	ck_assert_int_eq(s.at[0].nelems, IN * OUT);
	ck_assert_float_gt(s.at[0].amax, 0.1f);
	want = counted(x, ROWS * IN, 1, 0);
	same(find(&s, "x", 0), &want);
	ck_assert_float_eq(find(&s, "x", 0)->scale_inv, 1);
	ck_assert_int_gt(want.nsaturated, want.ninf);
	ck_assert_int_gt(want.nunderflow, 1);
	want = counted(dy, ROWS * OUT, 1, 1);
	same(find(&s, "dy", 0), &want);
	ck_assert_int_eq(find(&s, "dy", 0)->dtype, TE_DTYPE_E5M2);
	ck_assert_int_eq(find(&s, "dy", 0)->pass, TE_PASS_BACKWARD);
	ck_assert_int_gt(find(&s, "l.y", 0)->nnan, 0);
	ck_assert_int_eq(find(&s, "l.y", 0)->dtype, TE_DTYPE_BF16);
	tt_drop(plan, seq);
}

/* scales from the tensor itself: nothing is saturated */
TEST_EACH(numerics, own_scales_saturate_nothing, 2)
{
	const char *recipe = _i ? "fp8-block" : "fp8-current";
	struct te_seq *seq = linear_seq(1, IN, OUT, 0);
	struct te_plan *plan = linear_plan(seq, recipe, 0);
	struct seen s = { .fail_at = -1 };
	const struct te_plan_numerics *got;
	struct te_plan_numerics want;
	float x[ROWS * IN];

	draw(x, ROWS * IN, 0);
	x[7] = ldexpf(1, 40); /* a block is a row here */
	write_rows(te_plan_input(plan, "x"), x, IN);
	DO(te_plan_watch(plan, see, &s));
	DO(te_plan_forward(plan, st, 0));
	got = find(&s, "x", 0);
	ck_assert_ptr_nonnull(got);
	want = counted(x, ROWS * IN, _i ? 1 : 448.0f / ldexpf(1, 40), 0);
	ck_assert_int_eq(got->nsaturated, 0);
	ck_assert_int_gt(got->nunderflow, 0);
	if (!_i) {
		ck_assert_float_eq(got->scale_inv, 1 / (448.0f / ldexpf(1, 40)));
		same(got, &want);
	} else {
		ck_assert_float_eq(got->scale_inv, 0);
		ck_assert_int_le(got->nunderflow, ROWS * IN);
	}
	tt_drop(plan, seq);
}

/* the passes are ordinary ones, also with fusions, and a plan without fusions shows more values */
TEST_EACH(numerics, passes_are_ordinary, TT_LEN(recipes))
{
	struct seen some = { .fail_at = -1 }, all = { .fail_at = -1 };
	struct te_seq *seq[3];
	struct te_plan *plan[3];

	for (int i = 0; i < 3; i++) {
		seq[i] = model_create(ctx, &gpt, 3);
		plan[i] = model_plan(seq[i], &gpt, recipes[_i],
				     TE_PLAN_TRAIN | (i == 2 ? TE_PLAN_NO_FUSION : 0));
	}
	model_feed(plan[0], &gpt);
	for (int i = 1; i < 3; i++) {
		const size_t n = (size_t)(gpt.batch * gpt.seqlen) * sizeof(int32_t);
		int32_t tokens[64];

		ck_assert_uint_le(n, sizeof(tokens));
		for (int k = 0; k < 2; k++) {
			const char *name = te_plan_input_name(plan[0], k);

			DO(te_tensor_read(te_plan_input(plan[0], name), tokens, n));
			DO(te_tensor_write(te_plan_input(plan[i], name), tokens, n));
		}
	}
	DO(te_plan_watch(plan[1], see, &some));
	DO(te_plan_watch(plan[2], see, &all));
	for (int i = 0; i < 3; i++) {
		DO(te_plan_forward(plan[i], st, 0));
		DO(te_plan_backward(plan[i], st));
	}
	DO(te_stream_sync(st));
	ck_assert_float_eq(model_loss(plan[0]), model_loss(plan[1]));
	model_same(te_seq_grads(seq[0]), te_seq_grads(seq[1]), "gradients");
	model_same_scales(te_seq_quant(seq[0]), te_seq_quant(seq[1]));
	ck_assert_int_gt(some.n, 20);
	ck_assert_int_gt(all.n, some.n);
	for (int i = 0; i < all.n; i++) {
		ck_assert_int_eq(all.at[i].nnan + all.at[i].ninf, 0);
		ck_assert(i == 0 || all.at[i].pass >= all.at[i - 1].pass);
	}
	for (int i = 0; i < 3; i++)
		tt_drop(plan[i], seq[i]);
}

TEST(numerics, refuses_bad_calls)
{
	struct te_seq *seq = linear_seq(1, IN, OUT, 0);
	struct te_plan *plan = linear_plan(seq, "fp8-delayed", 0);
	struct seen s = { .fail_at = -1 };
	struct te_recording *rec;

	fails(te_plan_watch(NULL, see, &s), -EINVAL, "te_plan_watch: plan is NULL");
	DO(te_plan_watch(plan, see, &s));
	DO(te_capture_begin(st));
	fails(te_plan_forward(plan, st, 0), -EBUSY, "te_plan_watch");
	fails(te_capture_end(st, &rec), -EBUSY, "te_plan_watch"); /* it has a part of the pass */
	ck_assert_int_eq(s.n, 0);
	DO(te_plan_watch(plan, NULL, NULL));
	DO(te_plan_forward(plan, st, 0));
	ck_assert_int_eq(s.n, 0);
	s.fail_at = 1;
	DO(te_plan_watch(plan, see, &s));
	fails(te_plan_forward(plan, st, 0), -ENOSPC, "the table is full");
	ck_assert_int_eq(s.n, 1);
	tt_drop(plan, seq);
}

static int with_a_plan(void)
{
	struct seen s = { .fail_at = -1 };
	struct linear_plan p;
	int r = linear_plan_create("fp8-delayed", ROWS, IN, OUT, &p);
	struct te_tensor *x = r ? NULL : te_plan_input(p.plan, "x");

	if (!r)
		r = te_fill(te_ctx_stream(p.ctx), te_tensor_data(x), 0, te_tensor_nbytes(x));
	if (!r)
		r = te_plan_watch(p.plan, see, &s);
	if (!r)
		r = te_plan_forward(p.plan, te_ctx_stream(p.ctx), 0);
	linear_plan_free(&p);
	return r;
}

CTX_CASE(faults, "host fault");

TEST(faults, survives_every_fault)
{
	ck_assert_int_ge(tt_fault_each(with_a_plan), 20);
	ck_assert_int_eq(with_a_plan(), 0);
}

TT_MAIN("plan/numerics", TT_ONE_PROCESS)
