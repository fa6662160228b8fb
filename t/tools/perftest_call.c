/* t/tools/perftest_call.c - te_perftest's calls: what is left of one whose --verify failed. */
#include "config.h"

#include "tools/lib/say.h"
#include "tools/te_perftest/call.h"
#include "tt.h"

static char said[256];
static int fails; /* the check of the row fails */

static void keep(const char *line)
{
	snprintf(said, sizeof(said), "%s", line);
}

static int queue(const struct call *c, struct te_tensor *const *t)
{
	return te_copy(c->b->stream, te_tensor_data(t[1]), te_tensor_data(t[0]),
		       te_tensor_nbytes(t[0]));
}

static int check(const struct call *c, const uint8_t *got)
{
	return fails ? call_near(c, "y", 0, 1, 2, 0.5) : STATUS_OK;
}

static const struct call_row row = {
	.name = "row",
	.queue = queue,
	.field = { { .dtype = TE_DTYPE_UINT8, .rows = ONE, .cols = COLS, .times = 1 },
		   { .dtype = TE_DTYPE_UINT8, .rows = ONE, .cols = COLS, .fill = ZEROS } },
	.check = check,
};

CASE(call, "host");

/* _i: calls of a sample that the caller sets, 0 for none */
TEST_EACH(call, failed_verify_sets_no_depth, 2)
{
	const struct test test = { .name = "test" };
	struct opts o = { .test = &test, .backend = (char *)"host", .seed = 1 };
	struct call c = { .row = row, .batch = 1, .once = 1, .depth = _i };
	struct stats us;
	struct bench b;

	o.iters = 3;
	o.seconds = 60;
	o.verify = 1;
	say_by(keep);
	ck_assert_int_eq(bench_open(&b, &o), STATUS_OK);
	b.cache = (char *)"warm";
	c.b = &b;
	c.extent[COLS] = 1000;
	ck_assert_int_eq(call_open(&c), STATUS_OK);
	fails = 1;
	ck_assert_int_eq(bench_row(&b, 1, 2), 1);
	ck_assert_int_eq(call_measure(&c, &us), STATUS_FAILED);
	ck_assert_str_eq(said, "te_train: verify: row: element 0 of y is 1, want 2 within 0.5");
	ck_assert_int_eq(c.depth, _i);
	ck_assert_int_eq(b.figures, 2);
	/* measured after all, it queues up to 16 calls a sample */
	fails = 0;
	ck_assert_int_eq(call_measure(&c, &us), STATUS_OK);
	ck_assert(_i ? c.depth == _i : c.depth >= 1 && c.depth <= 16);
	ck_assert_int_eq(b.figures, 1);
	call_close(&c);
	bench_close(&b);
}

TT_MAIN("tools/perftest_call", TT_NEED_NOTHING)
