/*
 * t/plan/optim_groups.c - groups of te_adamw_opts: the weights of each have the bits that an
 * optimizer with the group's options gives them, for the same gradients.
 */
#include "config.h"

#include <math.h>

#include <te/capture.h>
#include <te/errno.h>
#include <te/optim.h>

#include "tt_ctx.h"
#include "tt_num.h"

#define STEPS 6
#define LR 0.03f

static const struct te_adamw_group groups[] = {
	{ sizeof(struct te_adamw_group), "last*,first", 0.25f, 0.5f, 0.8f, 0.9f },
	{ sizeof(struct te_adamw_group), "*.bias", 3, 0, 0.9f, 0.999f },
	/* all that it matches have a group */
	{ sizeof(struct te_adamw_group), "f*", 100, 0, 0, 0 },
};

static const struct {
	const char *weight;
	int group; /* 0: none */
} expected[] = {
	{ "first.weight", 1 }, { "first_b.bias", 2 }, { "last.weight", 1 },
	{ "last_b.bias", 1 },  { "rest.weight", 0 },  { "rest_b.bias", 2 },
};

enum how { EAGER, CAPTURED, RESUMED };

static struct te_seq *seq;
static size_t n;
static float *start, *grads[STEPS];

static void add_linear(const char *name, const char *bias, int64_t in, int64_t out)
{
	struct te_linear_attrs a = TE_ATTRS(linear, in, out, 0.5f, 1, NULL);
	struct te_bias_attrs b = TE_ATTRS(bias, out);
	struct te_op *op;

	DO(te_op_linear(&a, name, &op));
	tt_append(seq, op);
	DO(te_op_bias(&b, bias, &op));
	tt_append(seq, op);
}

static void setup(void)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	tt_setup();
	DO(te_seq_create(ctx, &seq));
	add_linear("first", "first_b", 70, 33);
	add_linear("last", "last_b", 33, 5);
	add_linear("rest", "rest_b", 5, 90);
	DO(te_seq_init(seq, tt_seed()));
	n = (size_t)te_tensor_nelems(te_seq_masters(seq));
	start = tt_tensor_get(te_seq_masters(seq));
	for (int k = 0; k < STEPS; k++) {
		grads[k] = calloc(n, sizeof(float)); /* padding remains 0 */
		for (int i = 0; i < te_seq_nweights(seq); i++) {
			DO(te_seq_weight(seq, i, &w));
			tt_fill_normal(grads[k] + w.offset_nelems,
				       (size_t)te_tensor_nelems(w.master), 1);
		}
	}
}

static void teardown(void)
{
	free(start);
	for (int k = 0; k < STEPS; k++)
		free(grads[k]);
	seq = te_seq_unref(seq);
	tt_teardown();
}

static struct te_adamw *make(const struct te_adamw_opts *o)
{
	struct te_adamw *opt;

	DO(te_adamw_create(seq, o, &opt));
	return opt;
}

/* another optimizer with the state and the moments of this one, which ends */
static struct te_adamw *resume(struct te_adamw *opt, const struct te_adamw_opts *o)
{
	const size_t nbytes = te_moments_nbytes(o->moments, (int64_t)n);
	char *m = malloc(nbytes), *v = malloc(nbytes), *state = malloc(te_adamw_state_nbytes());
	struct te_adamw *again;

	DO(te_adamw_moments_get(opt, 0, m));
	DO(te_adamw_moments_get(opt, 1, v));
	DO(te_adamw_state_get(opt, state, te_adamw_state_nbytes()));
	te_adamw_unref(opt);
	again = make(o);
	DO(te_adamw_moments_set(again, 0, m));
	DO(te_adamw_moments_set(again, 1, v));
	DO(te_adamw_state_set(again, state, te_adamw_state_nbytes()));
	free(m);
	free(v);
	free(state);
	return again;
}

/* weights after all steps, of which the third has gradients that are not finite */
static float *train(const struct te_adamw_opts *o, float lr_scale, enum how how)
{
	struct te_adamw *opt = make(o);
	struct te_recording *rec = NULL;
	float *w;

	DO(te_tensor_write(te_seq_masters(seq), start, n * sizeof(*start)));
	if (how == CAPTURED) {
		DO(te_capture_begin(st));
		DO(te_adamw_step(opt, st));
		DO(te_capture_end(st, &rec));
	}
	for (int k = 0; k < STEPS; k++) {
		DO(te_tensor_write(te_seq_grads(seq), grads[k], n * sizeof(*start)));
		if (k == 2)
			DO(te_fill_u32(st, te_tensor_data(te_seq_grads(seq)), 0x7f800000, 4));
		/* without a call the rate is 1e-3, and a resumed run has the last one */
		if (k != 0 && k != 4)
			DO(te_adamw_set_lr(opt, st, LR * (float)k * lr_scale));
		else if (lr_scale != 1 && !k)
			DO(te_adamw_set_lr(opt, st, 1e-3f * lr_scale));
		if (how == CAPTURED)
			DO(te_recording_launch(rec, st));
		else
			DO(te_adamw_step(opt, st));
		DO(te_stream_sync(st));
		if (k == 3 && how == RESUMED)
			opt = resume(opt, o);
	}
	w = tt_tensor_get(te_seq_masters(seq));
	te_recording_unref(rec);
	te_adamw_unref(opt);
	return w;
}

static void same(const float *got, const float *want, const char *name)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;

	for (int i = 0; i < te_seq_nweights(seq) && (!i || strcmp(w.name, name)); i++)
		DO(te_seq_weight(seq, i, &w));
	ck_assert_str_eq(w.name, name);
	ck_assert_msg(!memcmp(got + w.offset_nelems, want + w.offset_nelems,
			      (size_t)te_tensor_nelems(w.master) * sizeof(*got)),
		      "%s has other bits than with the options of its group", name);
}

static struct te_adamw_opts with_groups(const struct te_adamw_opts *base)
{
	struct te_adamw_opts o = *base;

	o.ngroups = TT_LEN(groups);
	o.groups = groups;
	return o;
}

CASE(groups, ON_HOST ? "host numeric" : backend, .setup = setup, .teardown = teardown);

/* moments of each kind, in device memory and in chunks that end within weights */
TEST_EACH(groups, a_group_has_the_bits_of_an_optimizer_with_its_options, 18)
{
	struct te_adamw_opts base = TE_ADAMW_OPTS_INIT, o;
	float *want[3], *got;

	base.moments = (enum te_moments)(_i % 3);
	if (_i / 9) {
		base.where = TE_ADAMW_HOST;
		base.chunk_nelems = 192;
	}
	want[0] = train(&base, 1, EAGER);
	for (int g = 1; g < 3; g++) {
		o = base;
		o.weight_decay = groups[g - 1].weight_decay;
		o.beta1 = groups[g - 1].beta1;
		o.beta2 = groups[g - 1].beta2;
		want[g] = train(&o, groups[g - 1].lr_scale, EAGER);
	}
	o = with_groups(&base);
	got = train(&o, 1, (enum how)(_i / 3 % 3));
	for (size_t i = 0; i < TT_LEN(expected); i++)
		same(got, want[expected[i].group], expected[i].weight);
	ck_assert(memcmp(want[0], want[1], n * sizeof(*got)));
	for (int g = 0; g < 3; g++)
		free(want[g]);
	free(got);
}

static int exchange(void *arg, struct te_stream *stream, void *all, size_t nbytes)
{
	(void)arg;
	(void)stream;
	(void)all;
	(void)nbytes;
	return 0;
}

/* a part that begins and ends within groups updates its elements alike; _i: the moments */
TEST_EACH(groups, parts_have_groups, 3)
{
	struct te_adamw_opts base = TE_ADAMW_OPTS_INIT, o = with_groups(&base);
	float *want;

	o.moments = (enum te_moments)_i;
	want = train(&o, 1, EAGER);
	o.nparts = 3;
	o.gather = exchange;
	for (o.part = 0; o.part < o.nparts; o.part++) {
		const size_t own = n / 64 / 3 * 64, first = (size_t)o.part * own;
		float *got = train(&o, 1, EAGER);

		ck_assert_mem_eq(got + first, want + first, own * sizeof(*got));
		ck_assert_mem_eq(got + 3 * own, want + 3 * own, (n - 3 * own) * sizeof(*got));
		free(got);
	}
	free(want);
}

TEST_IF(groups, states_of_groups_are_counted, ON_HOST)
{
	struct te_adamw_opts base = TE_ADAMW_OPTS_INIT, o = with_groups(&base);
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	const uint64_t nbytes = te_adamw_nbytes(seq, &o);
	struct te_adamw *opt;

	ck_assert_uint_gt(nbytes, te_adamw_nbytes(seq, &base));
	DO(te_ctx_mem_info(ctx, &before));
	opt = make(&o);
	DO(te_ctx_mem_info(ctx, &after));
	ck_assert_uint_eq(after.used_nbytes - before.used_nbytes, nbytes);
	te_adamw_unref(opt);
}

/* rates, and the number of the group */
static const struct {
	int32_t ngroups;
	struct te_adamw_group g;
	int r;
	const char *words;
} bad[] = {
	{ -1, TE_ADAMW_GROUP_INIT, -EINVAL, "ngroups is -1" },
	{ 1, TE_ADAMW_GROUP_INIT, -EINVAL, "group 0: weights is NULL" },
	{ 1, { 0, "*", 1, 0, 0, 0 }, -EINVAL, "TE_ADAMW_GROUP_INIT" },
	{ 1, { sizeof(struct te_adamw_group), "*", -1, 0, 0, 0 }, -EINVAL,
	  "group 0: lr_scale is -1" },
	{ 1, { sizeof(struct te_adamw_group), "*", INFINITY, 0, 0, 0 }, -EINVAL,
	  "lr_scale is inf" },
	{ 1, { sizeof(struct te_adamw_group), "*", NAN, 0, 0, 0 }, -EINVAL, "lr_scale is nan" },
	{ 1, { sizeof(struct te_adamw_group), "*", 1, 0, 1, 0 }, -EINVAL, "group 0: beta1 1" },
	{ 1, { sizeof(struct te_adamw_group), "*", 1, -1, 0, 0 }, -EINVAL, "group 0: eps, weight" },
	{ 1, { sizeof(struct te_adamw_group), "first,nothing", 1, 0, 0, 0 }, -ENOENT,
	  "group 0: no trained weight is named nothing" },
	{ 1, { sizeof(struct te_adamw_group), "", 1, 0, 0, 0 }, -ENOENT, "is named " },
};

TEST_EACH(groups, names_what_is_wrong_with_a_group, ON_HOST ? TT_LEN(bad) : 0)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct te_adamw *opt = NULL;

	o.ngroups = bad[_i].ngroups;
	o.groups = &bad[_i].g;
	ck_assert_int_eq(te_adamw_create(seq, &o, &opt), bad[_i].r);
	ck_assert_msg(strstr(te_error_detail(), bad[_i].words) != NULL, "%s", te_error_detail());
	o.ngroups = 1;
	o.groups = NULL;
	ck_assert_int_eq(te_adamw_create(seq, &o, &opt), -EINVAL);
	ck_assert_ptr_null(opt);
}

TEST_IF(groups, a_rate_that_a_group_makes_infinite_changes_none, ON_HOST)
{
	struct te_adamw_opts base = TE_ADAMW_OPTS_INIT, o = with_groups(&base);
	struct te_adamw *opt = make(&o);
	struct te_adamw_stats s = TE_ADAMW_STATS_INIT;

	DO(te_adamw_set_lr(opt, st, 0.5f));
	ck_assert_int_eq(te_adamw_set_lr(opt, st, 2e38f), -EINVAL);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "3 times in group 1"));
	DO(te_adamw_stats(opt, &s));
	ck_assert_float_eq(s.lr, 0.5f);
	te_adamw_unref(opt);
}

static int creates(void)
{
	struct te_linear_attrs a = TE_ATTRS(linear, 4, 4, 0.5f, 1, NULL);
	struct te_adamw_group g = TE_ADAMW_GROUP_INIT;
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct te_adamw *opt = NULL;
	struct te_ctx *c = NULL;
	struct te_seq *s = NULL;
	struct te_op *op = NULL;
	int r = tt_ctx_new(&c);

	g.weights = "*.weight,l";
	o.ngroups = 1;
	o.groups = &g;
	if (r >= 0)
		r = te_seq_create(c, &s);
	if (r >= 0)
		r = te_op_linear(&a, "l", &op);
	if (r >= 0)
		r = te_seq_append(s, op);
	if (r >= 0)
		r = te_seq_init(s, 1);
	if (r >= 0)
		r = te_adamw_create(s, &o, &opt);
	if (r >= 0)
		r = te_adamw_step(opt, te_ctx_stream(c));
	if (r >= 0)
		r = te_stream_sync(te_ctx_stream(c));
	te_adamw_unref(opt);
	te_op_unref(op);
	te_seq_unref(s);
	te_ctx_unref(c);
	return r;
}

CASE(faults, "host");

TEST_IF(faults, survives_every_failed_allocation, ON_HOST)
{
	ck_assert_int_ge(tt_fault_each(creates), 20);
}

TT_PAIR("plan/optim_groups", TT_ONE_PROCESS)
