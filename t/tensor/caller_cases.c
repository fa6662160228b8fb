/*
 * t/tensor/caller_cases.c - what a program brings along: a limit of device memory. Plans of a small
 * model give the same bits with it.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <te/ctx.h>
#include <te/dtype.h>
#include <te/errno.h>
#include <te/plan.h>
#include <te/seq.h>
#include <te/stream.h>

#include "caller_cases.h"
#include "tt_ctx.h"

static int is_host;
static struct te_ctx_opts opts; /* of contexts to come */

static void setup(void)
{
	is_host = !strcmp(backend, "host");
	opts = (struct te_ctx_opts)TE_CTX_OPTS_INIT;
	opts.backend = backend;
	te_error_clear();
}

static struct te_mem_info mem(struct te_ctx *c)
{
	struct te_mem_info m = TE_MEM_INFO_INIT;

	DO(te_ctx_sync(c));
	DO(te_ctx_mem_info(c, &m));
	return m;
}

/* ---- two linear operations, trained one step ---- */

#define ROWS 32
#define COLS 64

struct trained {
	struct te_mem_info mem; /* while the plan exists */
	uint16_t y[ROWS * COLS]; /* BF16 */
	float dw[2 * COLS * COLS];
};

static int append(struct te_seq *seq, const char *name)
{
	struct te_linear_attrs la = TE_ATTRS(linear, COLS, COLS, 0.08f, 0, NULL);
	struct te_op *op = NULL;
	int r = te_op_linear(&la, name, &op);

	if (!r)
		r = te_seq_append(seq, op);
	te_op_unref(op);
	return r;
}

static int passes(struct te_plan *p, struct te_seq *seq, struct te_stream *on, struct trained *ret)
{
	static uint16_t x[ROWS * COLS], dy[ROWS * COLS]; /* BF16 */
	struct te_ctx *c = te_stream_ctx(on);
	struct te_mem_info m = TE_MEM_INFO_INIT;
	void *dev = NULL, *pinned = NULL;
	int r;

	for (int i = 0; i < ROWS * COLS; i++) {
		x[i] = te_bf16_encode((float)(i * 7 % 31 - 15) / 16);
		dy[i] = te_bf16_encode((float)(i * 5 % 23 - 11) / 32);
	}
	r = te_mem_alloc(on, sizeof(x), &dev);
	if (!r)
		r = te_pinned_alloc(c, sizeof(x), &pinned);
	if (!r) {
		memcpy(pinned, x, sizeof(x));
		r = te_copy(on, dev, pinned, sizeof(x));
	}
	if (!r)
		r = te_copy(on, te_tensor_data(te_plan_input(p, "x")), dev, sizeof(x));
	if (!r)
		r = te_copy(on, te_tensor_data(te_plan_output_grad(p)), dy, sizeof(dy));
	if (!r)
		r = te_plan_forward(p, on, 0);
	if (!r)
		r = te_plan_backward(p, on);
	if (!r)
		r = te_copy(on, ret->y, te_tensor_data(te_plan_output(p)), sizeof(ret->y));
	if (!r)
		r = te_copy(on, ret->dw, te_tensor_data(te_seq_grads(seq)), sizeof(ret->dw));
	if (!r)
		r = te_ctx_mem_info(c, &m);
	ret->mem = m;
	/* also before the memory of a failed call is freed */
	if (te_stream_sync(on) < 0 && !r)
		r = -TE_ESTATE;
	te_mem_free(on, dev);
	te_pinned_free(c, pinned);
	return r;
}

/* 0, or the code of the call that failed: then too, all that was made is released */
static int train(struct te_stream *on, struct trained *ret)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_seq *seq = NULL;
	struct te_plan *p = NULL;
	int r = te_recipe_from_name("fp8-current", &rec);

	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, COLS } };
	if (!r)
		r = te_seq_create(te_stream_ctx(on), &seq);
	if (!r)
		r = append(seq, "a");
	if (!r)
		r = append(seq, "b");
	if (!r)
		r = te_seq_init(seq, 7);
	if (!r)
		r = te_plan_create(seq, &o, &p);
	if (!r)
		r = passes(p, seq, on, ret);
	te_plan_unref(p);
	te_seq_unref(seq);
	return r;
}

static void check_same(const struct trained *got, const struct trained *want)
{
	ck_assert(!memcmp(got->y, want->y, sizeof(want->y)));
	ck_assert(!memcmp(got->dw, want->dw, sizeof(want->dw)));
}

/* as by default: nothing of the caller's */
static const struct trained *by_default(void)
{
	static struct trained t;
	struct te_ctx *c;

	DO(tt_ctx_new(&c));
	DO(train(te_ctx_stream(c), &t));
	ck_assert_uint_gt(t.mem.peak_nbytes, 0);
	ck_assert_float_gt(t.dw[0] * t.dw[0], 0);
	te_ctx_unref(c);
	return &t;
}

/* ---- a limit ---- */

START_TEST(the_limit_holds_to_the_byte)
{
	const size_t limit = (1 << 20) + 3;
	struct te_ctx *c;
	char text[160];
	void *p, *q;

	opts.mem_limit_nbytes = limit;
	DO(te_ctx_create(&opts, &c));
	ck_assert_uint_eq(mem(c).device_total_nbytes, limit);
	ck_assert_uint_eq(mem(c).device_free_nbytes, limit);
	fails(te_mem_alloc(te_ctx_stream(c), limit + 1, &p), -ENOMEM, "");
	DO(te_mem_alloc(te_ctx_stream(c), 1000, &p));
	ck_assert_uint_eq(mem(c).device_free_nbytes, limit - 1000);
	snprintf(text, sizeof(text),
		 "no %zu bytes of device memory: 1000 bytes are in use, the limit of the context "
		 "is %zu", limit - 999, limit);
	fails(te_mem_alloc(te_ctx_stream(c), limit - 999, &q), -ENOMEM, text);
	DO(te_mem_alloc(te_ctx_stream(c), limit - 1000, &q));
	ck_assert_uint_eq(mem(c).device_free_nbytes, 0);
	ck_assert_uint_eq(mem(c).used_nbytes, limit);
	fails(te_mem_alloc(te_ctx_stream(c), 1, &p), -ENOMEM, "no 1 bytes");
	/* what is queued to be freed is free for work that is queued later */
	DO(te_mem_free(te_ctx_stream(c), q));
	DO(te_mem_free(te_ctx_stream(c), p));
	DO(te_mem_alloc(te_ctx_stream(c), limit, &p));
	DO(te_mem_free(te_ctx_stream(c), p));
	ck_assert_uint_eq(mem(c).device_free_nbytes, limit);
	te_ctx_unref(c);
}
END_TEST

/* pinned memory is no device memory */
START_TEST(pinned_memory_has_no_limit)
{
	struct te_ctx *c;
	void *p;

	opts.mem_limit_nbytes = 1;
	DO(te_ctx_create(&opts, &c));
	DO(te_pinned_alloc(c, 4096, &p));
	DO(te_pinned_free(c, p));
	te_ctx_unref(c);
}
END_TEST

START_TEST(training_fits_exactly)
{
	const struct trained *want = by_default();
	struct trained got;
	struct te_ctx *c;

	/* where GEMMs need a workspace, one that is timed needs another and a copy of D */
	opts.mem_limit_nbytes = want->mem.peak_nbytes +
				(want->mem.workspace_nbytes ? 3 * want->mem.workspace_nbytes : 0);
	DO(te_ctx_create(&opts, &c));
	DO(train(te_ctx_stream(c), &got));
	check_same(&got, want);
	ck_assert_uint_eq(mem(c).used_nbytes, 0);
	te_ctx_unref(c);
	opts.mem_limit_nbytes = want->mem.peak_nbytes - 1;
	DO(te_ctx_create(&opts, &c));
	fails(train(te_ctx_stream(c), &got), -ENOMEM, "");
	ck_assert_uint_eq(mem(c).used_nbytes, 0);
	te_ctx_unref(c);
}
END_TEST

Suite *caller_suite(const char *name, const char *on)
{
	Suite *s = suite_create(name);
	TCase *c;

	backend = on;
	c = tt_case(s, "limit", "fast");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_test(c, the_limit_holds_to_the_byte);
	tcase_add_test(c, pinned_memory_has_no_limit);
	tcase_add_test(c, training_fits_exactly);
	return s;
}
