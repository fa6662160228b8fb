/* t/graph/schedule.c - te_schedule_*(3): orders, their rules against a slow model, text. */
#include "config.h"

#include <te/errno.h>
#include <te/schedule.h>

#include "orders.h"
#include "tt_ctx.h"

static struct te_schedule_info info_of(const struct te_schedule *s)
{
	struct te_schedule_info i = TE_SCHEDULE_INFO_INIT;

	DO(te_schedule_info(s, &i));
	return i;
}

static void prints(const struct te_schedule *s, const char *want)
{
	char *text;

	DO(te_schedule_print(s, &text));
	ck_assert_str_eq(text, want);
	free(text);
}

static const struct {
	const char *text, *order; /* as given, as printed */
	int32_t nchunks, nmicro;
} known[] = {
	{ "gpipe", "1,1,-1,-1", 1, 2 },
	{ "gpipe", "1,2,1,2,-2,-1,-2,-1", 2, 2 },
	{ "1f1b", "1,-1,1,-1,1,-1", 1, 3 },
	/* that of Transformer Engine's tests for interleaved chunks */
	{ "1f1b", "1,2,1,2,-2,-1,1,2,-2,-1,-2,-1", 2, 3 },
	{ "1f1b", "1,2,3,-3,-2,-1", 3, 1 },
	{ "interleaved", "1,-1,1,-1", 1, 2 },
	{ "interleaved", "1,2,3,-3,-2,-1", 3, 1 },
	{ "interleaved", "1,2,-2,1,-1,2,-2,1,-1,2,-2,-1", 2, 3 },
	{ "interleaved", "1,2,3,-3,1,-2,2,-1,3,-3,-2,-1", 3, 2 },
	{ "zero-bubble", "1,2,1,2,-2,-1,1,2,-2.5,-1.5,-2,-1,-2.5,-1.5,-2,-1,-2.5,-1.5", 2, 3 },
	{ "1,2,1,2,-2,-1,1,2,-2,-1,-2,-1", "1,2,1,2,-2,-1,1,2,-2,-1,-2,-1", 0, 0 },
	/* Megatron's example of convert_schedule_table_to_order: groups of 3 of 5 micro-batches */
	{ "1,1,1,2,2,2,-2,1,-2,1,-2,2,-1,2,-1,-1,-2,-2,-1,-1",
	  "1,1,1,2,2,2,-2,1,-2,1,-2,2,-1,2,-1,-1,-2,-2,-1,-1", 2, 5 },
	{ "1,-1,-1.5", "1,-1,-1.5", 0, 0 },
	{ "1,2,3", "1,2,3", 3, 1 },
	/* weight gradients of one chunk only are delayed */
	{ "1,2,-2,-1,-1.5", "1,2,-2,-1,-1.5", 2, 0 },
};

CASE(orders, "schedule");

TEST_EACH(orders, known_orders, TT_LEN(known))
{
	struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule *s;

	o.nchunks = known[_i].nchunks;
	o.nmicro = known[_i].nmicro;
	DO(te_schedule_parse(known[_i].text, &o, &s));
	prints(s, known[_i].order);
	te_schedule_unref(s);
}

static const struct {
	const char *text;
	int32_t nchunks, nmicro;
	int code;
	const char *said;
} bad[] = {
	{ "-1,1", 1, 1, -TE_EORDER, "entry 1 (-1): forward of micro-batch 1 has not run" },
	{ "2,1,-2,-1", 2, 1, -TE_EORDER,
	  "entry 1 (2): forward of micro-batch 1 has not run in "
	  "chunk 1" },
	{ "1,2,-1,-2", 2, 1, -TE_EORDER,
	  "entry 3 (-1): backward of micro-batch 1 has not run in "
	  "chunk 2" },
	{ "1,-1.5,-1", 1, 1, -TE_EORDER, "entry 2 (-1.5): backward of micro-batch 1 has not run" },
	{ "1,-1,1", 1, 1, -TE_EORDER,
	  "entry 3 (1): second forward of chunk 1, but there is only 1 micro-batch" },
	{ "1,1,1", 1, 2, -TE_EORDER,
	  "entry 3 (1): third forward of chunk 1, but there are only 2 micro-batches" },
	{ "1,1,1,1,1,1,1,1,1,1,1", 1, 10, -TE_EORDER,
	  "entry 11 (1): 11th forward of chunk 1, but there are only 10 micro-batches" },
	{ "1,3,-1", 2, 1, -TE_EORDER, "entry 2 (3): there are 2 chunks" },
	{ "1,1,-1", 1, 0, -TE_EORDER, "ends without backward of chunk 1, micro-batch 2" },
	{ "1,2,1,-2,-1", 2, 2, -TE_EORDER, "ends without forward of chunk 2, micro-batch 2" },
	{ "1,1,-1,-1,-1.5", 1, 2, -TE_EORDER,
	  "ends without weight gradients of chunk 1, micro-batch 2" },
	{ "1,-1", 1, 2, -TE_EORDER, "ends without forward of chunk 1, micro-batch 2" },
	{ "", 1, 1, -EINVAL, "\"\" is neither" },
	{ "1,", 1, 1, -EINVAL, "\"\" is neither" },
	{ "1,0", 1, 1, -EINVAL, "\"0\" is neither" },
	{ "1,1.5", 1, 1, -EINVAL, "\"1.5\" is neither" },
	{ "1,-1.25,2", 1, 1, -EINVAL, "\"-1.25\" is neither" },
	{ "1,--1", 1, 1, -EINVAL, "\"--1\" is neither" },
	{ "1,99999999999999999999", 1, 1, -EINVAL, "is neither" },
	{ "1, -1", 1, 1, -EINVAL, "\" -1\" is neither" },
	{ "1f2b", 1, 1, -EINVAL, "\"1f2b\" is neither" },
	{ "gpipe", 1, 0, -EINVAL, "gpipe needs the number" },
	{ "1f1b", 0, 4, -EINVAL, "1f1b needs the number" },
	{ "interleaved", 2, 0, -EINVAL, "interleaved needs the number" },
	{ "1f1b", 1 << 20, 1 << 20, -EOVERFLOW, "more than 2^31 steps" },
	/* 3 times their product exceeds 63 bits, or 64 */
	{ "gpipe", INT32_MAX, INT32_MAX, -EOVERFLOW, "more than 2^31 steps" },
	{ "1f1b", 1 << 30, 1 << 30, -EOVERFLOW, "more than 2^31 steps" },
	{ "interleaved", INT32_MAX - 1, INT32_MAX, -EOVERFLOW, "more than 2^31 steps" },
	/* no memory for chunks that nothing reaches */
	{ "1,2147483647,-1", 0, 0, -TE_EORDER,
	  "entry 2 (2147483647): forward of micro-batch 1 has not run in chunk 2147483646" },
	{ "-2147483647.5", 0, 1, -TE_EORDER, "entry 1 (-2147483647.5): backward of" },
	{ "1,-1", INT32_MAX, 1, -TE_EORDER,
	  "entry 2 (-1): backward of micro-batch 1 has not run in chunk 2" },
	{ "1", INT32_MAX, 0, -TE_EORDER, "ends without forward of chunk 2, micro-batch 1" },
};

TEST_EACH(orders, what_is_wrong_is_named, TT_LEN(bad))
{
	struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule *s = NULL;

	o.nchunks = bad[_i].nchunks;
	o.nmicro = bad[_i].nmicro;
	fails(te_schedule_parse(bad[_i].text, &o, &s), bad[_i].code, bad[_i].said);
	ck_assert_ptr_null(s);
}

TEST(orders, options_are_checked)
{
	const struct te_sched_entry odd = { 0, (enum te_sched_kind)7 };
	const struct te_sched_entry far = { INT32_MAX, TE_SCHED_B };
	const struct te_sched_entry below = { INT32_MIN, TE_SCHED_F };
	const struct te_sched_entry many[] = { { 0, TE_SCHED_F }, { 1, TE_SCHED_F } };
	const int32_t layers[] = { 2, 0 }, huge[] = { INT32_MAX, INT32_MAX },
		      big[] = { 1 << 30, 1 };
	struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT, good;
	struct te_schedule *s;

	o.nchunks = 2;
	o.nmicro = 1;
	good = o;
	fails(te_schedule_create(NULL, &s), -EINVAL, "no struct te_schedule_opts");
	fails(te_schedule_create(&o, NULL), -EINVAL, "ret_schedule is NULL");
	o.size = 0;
	fails(te_schedule_create(&o, &s), -EINVAL, "TE_SCHEDULE_OPTS_INIT");
	o = good;
	o.flags = 4;
	fails(te_schedule_create(&o, &s), -EINVAL, "unknown flags 0x4");
	o.flags = TE_SCHED_DELAY_W | TE_SCHED_FORWARD_ONLY;
	fails(te_schedule_create(&o, &s), -EINVAL, "weight gradients without backward");
	o = good;
	o.nmicro = 0;
	fails(te_schedule_create(&o, &s), -EINVAL, "0 micro-batches");
	o = good;
	o.norder = 3;
	fails(te_schedule_create(&o, &s), -EINVAL, "norder without an order");
	o = good;
	o.nlayers = layers;
	fails(te_schedule_create(&o, &s), -EINVAL, "chunk 2 has 0 layers");
	o = good;
	o.order = &odd;
	o.norder = 1;
	fails(te_schedule_create(&o, &s), -EINVAL, "entry 1 is of kind 7");
	o.order = &far;
	fails(te_schedule_create(&o, &s), -TE_EORDER, "entry 1 (-2147483648): there are 2 chunks");
	o.order = &below;
	fails(te_schedule_create(&o, &s), -TE_EORDER, "entry 1 (-2147483647): there are 2 chunks");
	o.order = many;
	o.norder = 2;
	o.nlayers = huge;
	fails(te_schedule_create(&o, &s), -EOVERFLOW, "more than 2^31 steps");
	o.order = NULL;
	o.norder = 0;
	fails(te_schedule_create(&o, &s), -EOVERFLOW, "more than 2^31 steps");
	o.nlayers = big;
	fails(te_schedule_create(&o, &s), -EOVERFLOW, "more than 2^31 steps");
	o.nlayers = NULL;
	o.order = &odd;
	o.norder = 1;
	o.flags = TE_SCHED_DELAY_W;
	fails(te_schedule_create(&o, &s), -EINVAL, "flags are for the default order");
	fails(te_schedule_parse("1,-1", &o, &s), -EINVAL, "opts holds more");
	fails(te_schedule_parse(NULL, NULL, &s), -EINVAL, "text is NULL");
	o = good;
	o.nchunks = 0;
	o.nlayers = big;
	fails(te_schedule_parse("1,2,3,-3,-2,-1", &o, &s), -EINVAL,
	      "te_schedule_parse: nlayers needs nchunks");
	/* the function that was called, not the one that it calls */
	o.nchunks = 2;
	o.nlayers = (const int32_t[]){ 1, 0 };
	fails(te_schedule_parse("1,2,-2,-1", &o, &s), -EINVAL,
	      "te_schedule_parse: chunk 2 has 0 layers");
	o.nmicro = 1;
	fails(te_schedule_parse("gpipe", &o, &s), -EINVAL,
	      "te_schedule_parse: chunk 2 has 0 layers");
	fails(te_schedule_parse("1f1b", &o, &s), -EINVAL,
	      "te_schedule_parse: chunk 2 has 0 layers");
	o.nlayers = NULL;
	o.nmicro = INT32_MAX;
	fails(te_schedule_parse("zero-bubble", &o, &s), -EOVERFLOW,
	      "te_schedule_parse: more than 2^31 steps");
	o = good;
	o.flags = TE_SCHED_FORWARD_ONLY;
	DO(te_schedule_create(&o, &s));
	prints(s, "1,2");
	ck_assert_uint_eq(info_of(s).kinds, 1u);
	te_schedule_unref(s);
	o.flags = TE_SCHED_DELAY_W;
	DO(te_schedule_create(&o, &s));
	prints(s, "1,2,-2,-2.5,-1,-1.5");
	ck_assert_uint_eq(info_of(s).kinds, 7u);
	te_schedule_unref(te_schedule_ref(s));
	te_schedule_unref(s);
	ck_assert_ptr_null(te_schedule_unref(NULL));
}

/* chunk major, then micro-batch, then layer; forward up, others down */
TEST(orders, steps_go_through_layers)
{
	static const struct te_sched_step want[] = {
		{ 0, TE_SCHED_F, 0, 0, 0, 0 }, { 0, TE_SCHED_F, 0, 0, 1, 1 },
		{ 1, TE_SCHED_F, 1, 0, 0, 4 }, { 2, TE_SCHED_F, 0, 1, 0, 2 },
		{ 2, TE_SCHED_F, 0, 1, 1, 3 }, { 3, TE_SCHED_B, 1, 0, 0, 4 },
		{ 4, TE_SCHED_B, 0, 0, 1, 1 }, { 4, TE_SCHED_B, 0, 0, 0, 0 },
		{ 5, TE_SCHED_W, 0, 0, 1, 1 }, { 5, TE_SCHED_W, 0, 0, 0, 0 },
		{ 6, TE_SCHED_F, 1, 1, 0, 5 }, { 7, TE_SCHED_B, 1, 1, 0, 5 },
		{ 8, TE_SCHED_B, 0, 1, 1, 3 }, { 8, TE_SCHED_B, 0, 1, 0, 2 },
		{ 9, TE_SCHED_W, 0, 1, 1, 3 }, { 9, TE_SCHED_W, 0, 1, 0, 2 },
	};
	const int32_t layers[] = { 2, 1 };
	struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule_info info;
	struct te_schedule *s;
	struct te_sched_step t;

	o.nchunks = 0;
	o.nlayers = NULL;
	DO(te_schedule_parse("1,2,1,-2,-1,-1.5,2,-2,-1,-1.5", &o, &s));
	te_schedule_unref(s);
	o.nchunks = 2;
	o.nlayers = layers;
	DO(te_schedule_parse("1,2,1,-2,-1,-1.5,2,-2,-1,-1.5", &o, &s));
	info = info_of(s);
	ck_assert_int_eq(info.nsteps, (int)TT_LEN(want));
	ck_assert_int_eq(info.ncallables, 6);
	ck_assert_int_eq(info.nmicro, 2);
	for (int32_t i = 0; i < info.nsteps; i++) {
		DO(te_schedule_step(s, i, &t));
		ck_assert_msg(!memcmp(&t, &want[i], sizeof(t)), "step %d", (int)i);
	}
	fails(te_schedule_step(s, info.nsteps, &t), -EINVAL, "step 16 of 16");
	fails(te_schedule_step(s, -1, &t), -EINVAL, "step -1 of 16");
	te_schedule_unref(s);
}

/* ---- against a slow model ---- */

/* index of the first entry against a rule; n: something is missing at the end; -1: it runs */
static int model(const struct te_sched_entry *e, int n, int nchunks, int nmicro)
{
	int any_b = 0;

	for (int i = 0; i < n; i++) {
		int c = e[i].chunk, k = (int)e[i].kind, m;

		if (c < 0 || c >= nchunks)
			return i;
		m = order_before(e, i, k, c);
		if (m >= nmicro || (k == TE_SCHED_F && c && !order_has(e, i, k, c - 1, m)) ||
		    (k != TE_SCHED_F && !order_has(e, i, k - 1, c, m)) ||
		    (k == TE_SCHED_B && c < nchunks - 1 && !order_has(e, i, k, c + 1, m)))
			return i;
		any_b |= k == TE_SCHED_B;
	}
	for (int c = 0; c < nchunks; c++) {
		int w = order_before(e, n, TE_SCHED_W, c);

		if (order_before(e, n, TE_SCHED_F, c) != nmicro || (w && w != nmicro) ||
		    (any_b && order_before(e, n, TE_SCHED_B, c) != nmicro))
			return n;
	}
	return -1;
}

static int mutate(struct te_sched_entry *e, int n, int nchunks)
{
	int i = (int)tt_rand_int(0, n - 1), j = (int)tt_rand_int(0, n - 1);
	struct te_sched_entry t = e[i];

	switch (tt_rand_int(0, 4)) {
	case 0: /* two change places */
		e[i] = e[j];
		e[j] = t;
		return n;
	case 1: /* one is left out */
		memmove(e + i, e + i + 1, (size_t)(n - i - 1) * sizeof(*e));
		return n - 1;
	case 2: /* one comes twice */
		memmove(e + i + 1, e + i, (size_t)(n - i) * sizeof(*e));
		return n + 1;
	case 3:
		e[i].kind = (enum te_sched_kind)tt_rand_int(0, 2);
		return n;
	default:
		e[i].chunk = (int32_t)tt_rand_int(-1, nchunks);
		return n;
	}
}

TEST(orders, agrees_with_a_slow_model)
{
	int runs = 0, refused = 0;

	for (int trial = 0; trial < 10000; trial++) {
		int nchunks = (int)tt_rand_int(1, 4), nmicro = (int)tt_rand_int(1, 5);
		struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
		struct te_sched_entry e[ORDER_MOST];
		struct te_schedule *s = NULL;
		int n = order_valid(e, nchunks, nmicro, tt_rand_int(0, 4) > 0), want, r;
		char place[64];

		for (int k = (int)tt_rand_int(0, 2); k > 0 && n > 1; k--)
			n = mutate(e, n, nchunks);
		want = model(e, n, nchunks, nmicro);
		o.nchunks = nchunks;
		o.nmicro = nmicro;
		o.order = e;
		o.norder = n;
		r = te_schedule_create(&o, &s);
		if (want < 0) {
			ck_assert_msg(!r, "refused: %s", te_error_detail());
			runs++;
		} else {
			snprintf(place, sizeof(place),
				 want < n ? "te_schedule_create: entry %d (" :
					    "te_schedule_create: the order ends without",
				 want + 1);
			ck_assert_int_eq(r, -TE_EORDER);
			tt_said(place);
			refused++;
		}
		te_schedule_unref(s);
	}
	ck_assert_int_gt(runs, 1000);
	ck_assert_int_gt(refused, 1000);
}

TEST(orders, text_gives_back_the_order)
{
	for (int trial = 0; trial < 200; trial++) {
		struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
		struct te_schedule *s, *again;
		struct te_sched_entry e[ORDER_MOST];
		char *text;

		o.nchunks = (int32_t)tt_rand_int(1, 4);
		o.nmicro = (int32_t)tt_rand_int(1, 5);
		o.norder = order_valid(e, o.nchunks, o.nmicro, 1);
		o.order = e;
		DO(te_schedule_create(&o, &s));
		DO(te_schedule_print(s, &text));
		DO(te_schedule_parse(text, NULL, &again));
		prints(again, text);
		ck_assert_int_eq(info_of(again).nmicro, o.nmicro);
		free(text);
		te_schedule_unref(s);
		te_schedule_unref(again);
	}
}

static int make_one(void)
{
	const int32_t layers[] = { 2, 1 };
	struct te_schedule_opts o = TE_SCHEDULE_OPTS_INIT;
	struct te_schedule *s = NULL;
	char *text = NULL;
	int r;

	o.nchunks = 2;
	o.nlayers = layers;
	r = te_schedule_parse("1,2,-2,-1", &o, &s);
	if (!r)
		r = te_schedule_print(s, &text);
	te_schedule_unref(s);
	free(text);
	if (r)
		return r;
	o.nmicro = 2;
	s = NULL;
	r = te_schedule_parse("zero-bubble", &o, &s);
	te_schedule_unref(s);
	return r;
}

TEST(orders, survives_every_fault)
{
	ck_assert_int_ge(tt_fault_each(make_one), 9);
}

TT_MAIN("graph/schedule", TT_NEED_NOTHING)
