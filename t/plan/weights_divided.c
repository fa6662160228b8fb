/*
 * t/plan/weights_divided.c - parts of the masters in te_seq_binding: passes and updates of a rank
 * have the bits of a rank with all masters, in as much memory as the part needs.
 */
#include "config.h"

#include <stdlib.h>

#include <te/checkpoint.h>
#include <te/errno.h>
#include <te/optim.h>

#include "plan_model.h"
#include "tt_ctx.h"
#include "weights_cases.h"
#include "weights_pair.h"

#define PARTS 5
#define HOSTED (TE_SEQ_HOST_MASTERS | TE_SEQ_HOST_GRADS)

static const struct model_shape llama = { 48, 160, 2, 16, 4, 2, 2, 0, 1 };
static const struct model_shape gpt = { 48, 48, 2, 16, 4, 4, 2, 0, 0 }; /* its head is tied */

static int32_t part;
static int64_t nfetched, nmeetings; /* bytes */
static int code; /* what fetch() returns */
/* the masters of all ranks; NULL: other ranks have zeros */
static struct te_seq *all;
/* memory of this rank's part, which one sequence at a time has: also its masters in host memory */
static struct te_tensor *memory;

static int reduce(void *arg, struct te_stream *stream, void *x, void *sum, int64_t nelems,
		  enum te_dtype dtype, int32_t to)
{
	(void)arg;
	(void)to;
	return sum == x ? 0 : te_copy(stream, sum, x, (size_t)nelems * te_dtype_nbytes(dtype));
}

static int alloc(void *arg, size_t nbytes, void **ret_ptr)
{
	const int64_t n = (int64_t)nbytes;

	ck_assert_ptr_eq(arg, &nfetched);
	te_tensor_unref(memory);
	DO(te_tensor_create(ctx, TE_DTYPE_UINT8, 1, &n, NULL, &memory));
	*ret_ptr = te_tensor_data(memory);
	return 0;
}

static int meet(void *arg, struct te_stream *stream)
{
	ck_assert_ptr_eq(arg, &nfetched);
	ck_assert_ptr_nonnull(stream);
	nmeetings++;
	return 0;
}

static int64_t own_nelems(const struct te_seq *s);

static int fetch(void *arg, struct te_stream *stream, void *dst, const void *src, size_t nbytes,
		 int32_t from)
{
	const size_t at = (size_t)((const char *)src - (char *)te_tensor_data(memory));

	ck_assert_ptr_eq(arg, &nfetched);
	ck_assert_int_lt(from, PARTS);
	ck_assert_uint_le(at + nbytes, te_tensor_nbytes(memory));
	nfetched += (int64_t)nbytes;
	if (code)
		return code;
	if (from == part)
		return dst == src ? 0 : te_copy(stream, dst, src, nbytes);
	if (!all)
		return te_fill(stream, dst, 0, nbytes);
	return te_copy(stream, dst,
		       (char *)te_tensor_data(te_seq_masters(all)) + at +
			       (size_t)(from * own_nelems(all)) *
				       te_dtype_nbytes(te_tensor_dtype(te_seq_masters(all))),
		       nbytes);
}

/* sums of the other ranks are zeros */
static int gather(void *arg, struct te_stream *stream, void *parts, size_t nbytes)
{
	(void)arg;
	for (int32_t i = 0; i < PARTS; i++)
		if (i != part)
			DO(te_fill(stream, (char *)parts + (size_t)i * nbytes, 0, nbytes));
	return 0;
}

static struct te_seq_binding binding(int32_t own, uint32_t flags)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;

	b.flags = flags;
	b.nparts = PARTS;
	b.part = part = own;
	b.reduce = reduce;
	b.alloc = alloc;
	b.barrier = meet;
	b.fetch = fetch;
	b.parts_arg = &nfetched;
	code = 0;
	all = NULL;
	nfetched = nmeetings = 0;
	return b;
}

/* all ranks have weights that are frozen, after the parts */
static int freezes;

static struct te_seq *create(const struct model_shape *m, const struct te_seq_binding *b)
{
	struct te_seq *s = model_create_unbound(ctx, m);

	DO(te_seq_complete(s));
	if (freezes)
		ck_assert_int_gt(te_seq_freeze(s, "h.0.*", 1), 3);
	DO(te_seq_bind(s, b));
	DO(te_seq_init(s, 5));
	if (b->flags & TE_SEQ_HOST_MASTERS) {
		ck_assert_ptr_null(memory); /* alloc() was not called */
		memory = te_tensor_ref(te_seq_masters(s));
	}
	return s;
}

static struct te_seq *create_whole(const struct model_shape *m, uint32_t flags)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;

	b.flags = flags;
	return create(m, &b);
}

/* elements of a part */
static int64_t own_nelems(const struct te_seq *s)
{
	return te_seq_grad_nelems(s) / 64 / PARTS * 64;
}

/* zeros in place of what other ranks have */
static void clear_others(struct te_seq *s)
{
	const int64_t own = own_nelems(s);
	float *zeros = calloc((size_t)own, sizeof(*zeros));

	for (int32_t i = 0; i < PARTS; i++)
		if (i != part)
			DO(te_seq_masters_set(s, i * own, own, zeros));
	free(zeros);
}

/* bytes [first, first + n) of one and [at, at + n) of the other */
static void same_bytes(const struct te_tensor *a, size_t first, const struct te_tensor *b,
		       size_t at, size_t n, const char *what)
{
	char *x = malloc(te_tensor_nbytes(a)), *y = malloc(te_tensor_nbytes(b));

	DO(te_tensor_read(a, x, te_tensor_nbytes(a)));
	DO(te_tensor_read(b, y, te_tensor_nbytes(b)));
	ck_assert_msg(!memcmp(x + first, y + at, n), "%s differ", what);
	free(x);
	free(y);
}

static void same_part(const struct te_tensor *whole, const struct te_tensor *own, int64_t nelems,
		      const char *what)
{
	const size_t size = te_dtype_nbytes(te_tensor_dtype(own));
	const size_t n = (size_t)nelems * size, tail = te_tensor_nbytes(own) - n;

	same_bytes(whole, (size_t)part * n, own, 0, n, what);
	same_bytes(whole, te_tensor_nbytes(whole) - tail, own, n, tail, what);
}

static struct te_adamw *optimizer(struct te_seq *s, int hosted)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct te_adamw *opt;

	o.nparts = PARTS;
	o.part = part;
	o.gather = gather;
	o.max_grad_norm = 0;
	o.where = hosted ? TE_ADAMW_HOST : TE_ADAMW_DEVICE;
	DO(te_adamw_create(s, &o, &opt));
	return opt;
}

static const struct way {
	const char *recipe;
	uint32_t flags;
} ways[] = { { "fp32", 0 },
	     { "bf16", 0 },
	     { "bf16", TE_SEQ_BF16_MASTERS },
	     { "bf16", TE_SEQ_BF16_COPIES },
	     { "fp8-current", 0 },
	     { "fp8-current", TE_SEQ_BF16_MASTERS },
	     { "bf16", TE_SEQ_BF16_MASTERS | HOSTED },
	     { "fp8-current", TE_SEQ_BF16_MASTERS | TE_SEQ_HOST_MASTERS },
	     { "fp8-block", 0 },
	     { "mxfp8", 0 } };
#define NWAYS ((int)(sizeof(ways) / sizeof(ways[0])))

static void setup(void)
{
	tt_hold_and_setup();
	memory = NULL; /* a test that a level refused leaves it */
}

CASE(divided, "plan", .setup = setup, .teardown = tt_teardown);

TEST_EACH(divided, a_step_has_the_bits_of_all_masters, 4 * NWAYS, .parts = 2 * NWAYS)
{
	const struct way *way = &ways[_i % NWAYS];
	const struct model_shape *m = _i / NWAYS % 2 ? &gpt : &llama;
	const struct te_recipe r = model_recipe(way->recipe);
	const int second = _i >= 2 * NWAYS;
	const struct te_plan_opts o =
		pair_opts(m, &r, TE_PLAN_TRAIN | (second ? TE_PLAN_DELAY_DW : 0));
	const struct te_seq_binding b = binding(_i % 2 ? PARTS - 1 : 1, way->flags);
	struct pair q = { .s = { NULL } };
	int64_t own;

	freezes = second;
	q.s[0] = create_whole(m, way->flags & ~(uint32_t)(TE_SEQ_BF16_COPIES | HOSTED));
	q.s[1] = create(m, &b);
	freezes = 0;
	own = own_nelems(q.s[0]);
	if (_i >= NWAYS) /* there is a tail */
		ck_assert_int_gt(te_seq_grad_nelems(q.s[0]), PARTS * own);
	if (way->flags & TE_SEQ_BF16_COPIES)
		clear_others(q.s[0]);
	else
		all = q.s[0];
	same_part(te_seq_masters(q.s[0]), te_seq_masters(q.s[1]), own, "initial masters");
	for (int i = 0; i < 2; i++) {
		DO(te_plan_create(q.s[i], &o, &q.p[i]));
		q.opt[i] = optimizer(q.s[i], i && way->flags & TE_SEQ_HOST_MASTERS);
	}
	pair_feed(&q, m);
	for (int i = 0; i < 2; i++) {
		DO(te_seq_zero_grads(q.s[i], st));
		pair_queue_pass(q.p[i]);
	}
	for (int i = 0; i < 2; i++)
		DO(te_adamw_step(q.opt[i], st));
	DO(te_stream_sync(st));
	model_same(te_plan_output(q.p[0]), te_plan_output(q.p[1]), "losses");
	same_part(te_seq_grads(q.s[0]), te_seq_grads(q.s[1]), own, "gradients");
	same_part(te_seq_masters(q.s[0]), te_seq_masters(q.s[1]), own, "updated masters");
	/* forward reads each weight, backward most of them */
	ck_assert_int_gt(nfetched, 2 * PARTS * own);
	ck_assert_int_eq(nmeetings, 1);
	pair_free(&q);
	memory = te_tensor_unref(memory);
}

/* sinks and a bias, in one part each or more */
static struct te_seq *attention(const struct te_seq_binding *b)
{
	const struct te_attention_attrs a = TE_ATTRS(attention, 4, 2, 4, .sinks = 1,
						     .bias_queries = 8, .bias_keys = 8);
	struct te_seq *s;
	struct te_op *op;

	DO(te_seq_create(ctx, &s));
	DO(te_op_attention(&a, "attention", &op));
	tt_append(s, op);
	DO(te_seq_complete(s));
	DO(te_seq_bind(s, b));
	DO(te_seq_init(s, 5));
	return s;
}

/* the first op, which has no backward(). _i: BF16 masters */
TEST_EACH(divided, attention_has_sinks_and_a_bias_of_all_parts, 2)
{
	const struct te_recipe r = model_recipe("fp32");
	struct te_seq_binding b[2] = { TE_SEQ_BINDING_INIT, binding(2, 0) };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	float w[64 * PARTS], x[2 * 8 * 32], dy[2 * 8 * 16];
	struct pair q = { .s = { NULL } };

	for (size_t i = 0; i < TT_LEN(w); i++)
		w[i] = tt_rand_float(-1, 1);
	for (size_t i = 0; i < TT_LEN(x); i++)
		x[i] = tt_rand_float(-1, 1);
	for (size_t i = 0; i < TT_LEN(dy); i++)
		dy[i] = tt_rand_float(-1, 1);
	o.recipe = &r;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_FP32, 3, { 2, 8, 32 } };
	for (int i = 0; i < 2; i++) {
		b[i].flags = _i ? TE_SEQ_BF16_MASTERS : 0;
		q.s[i] = attention(&b[i]);
		DO(te_seq_masters_set(q.s[i], 0, (int64_t)TT_LEN(w), w));
		DO(te_plan_create(q.s[i], &o, &q.p[i]));
		DO(te_tensor_write(te_plan_input(q.p[i], "x"), x, sizeof(x)));
		DO(te_tensor_write(te_plan_output_grad(q.p[i]), dy, sizeof(dy)));
	}
	all = q.s[0];
	for (int i = 0; i < 2; i++) {
		DO(te_seq_zero_grads(q.s[i], st));
		DO(te_plan_forward(q.p[i], st, 0));
		DO(te_plan_backward(q.p[i], st));
	}
	DO(te_stream_sync(st));
	model_same(te_plan_output(q.p[0]), te_plan_output(q.p[1]), "outputs");
	same_part(te_seq_grads(q.s[0]), te_seq_grads(q.s[1]), own_nelems(q.s[0]), "gradients");
	pair_free(&q);
	memory = te_tensor_unref(memory);
}

TEST_EACH(divided, masters_of_all_parts_are_read_and_written, 2, .parts = 2)
{
	const uint32_t flags = _i ? TE_SEQ_BF16_MASTERS : 0;
	const struct te_seq_binding b = binding(1, flags);
	struct te_seq *whole = create_whole(&llama, flags), *s = create(&llama, &b);
	const int64_t n = te_seq_nelems(whole), first[] = { 0, 70, own_nelems(s) };
	float *want = malloc((size_t)n * sizeof(*want)), *got = malloc((size_t)n * sizeof(*got));

	all = whole;
	for (int pass = 0; pass < 2; pass++) {
		DO(te_seq_masters_get(whole, 0, n, want));
		for (int k = 0; k < 3; k++) {
			memset(got, 0xff, (size_t)n * sizeof(*got));
			DO(te_seq_masters_get(s, first[k], n - first[k], got));
			ck_assert_mem_eq(got, want + first[k],
					 (size_t)(n - first[k]) * sizeof(*got));
		}
		nfetched = nmeetings = 0;
		DO(te_seq_masters_get(s, 0, n, NULL)); /* for the other ranks */
		ck_assert_int_eq(nfetched, PARTS * own_nelems(s) * (_i ? 2 : 4));
		ck_assert_int_eq(nmeetings, 1);
		for (int64_t i = 0; i < n; i++)
			want[i] = (float)(i % 101) / 16;
		DO(te_seq_masters_set(whole, 0, n, want));
		DO(te_seq_masters_set(s, 0, 77, want));
		DO(te_seq_masters_set(s, 77, n - 77, want + 77));
	}
	code = -EIO;
	fails(te_seq_masters_get(s, 0, n, got), -EIO,
	      "the fetch of masters from part 0 returned");
	fails(te_seq_masters_get(whole, 0, n, NULL), -EINVAL, "the host memory is NULL");
	free(want);
	free(got);
	te_seq_unref(whole);
	te_seq_unref(s);
	memory = te_tensor_unref(memory);
}

TEST(divided, memory_has_a_part_of_masters)
{
	struct te_plan_memory mem[3] = { TE_PLAN_MEMORY_INIT, TE_PLAN_MEMORY_INIT,
					 TE_PLAN_MEMORY_INIT };
	const uint32_t flags[] = { 0, TE_SEQ_BF16_COPIES, TE_SEQ_BF16_MASTERS | HOSTED };
	const struct te_seq_binding b = binding(2, 0);
	const struct te_recipe r = model_recipe("bf16");
	const struct te_plan_opts o = pair_opts(&llama, &r, TE_PLAN_TRAIN);
	int64_t n = 0, own = 0;
	char *text;

	for (int i = 0; i < 3; i++) {
		struct te_seq_binding with = b;
		const uint64_t before = pair_measured();
		struct te_plan *p;
		struct te_seq *s;

		with.fetch = i ? fetch : NULL;
		with.flags = flags[i];
		s = create(&llama, &with);
		n = te_seq_grad_nelems(s);
		own = own_nelems(s);
		DO(te_plan_create(s, &o, &p));
		DO(te_plan_memory(p, &mem[i]));
		ck_assert_uint_le(pair_measured() - before, mem[i].total_nbytes + 512 * 16);
		ck_assert_uint_ge(pair_measured() - before, mem[i].total_nbytes - 512 * 16);
		DO(te_plan_print(p, TE_PLAN_TEXT, &text));
		ck_assert_int_eq(strstr(text, "fetched before a group") != NULL, i > 0);
		free(text);
		te_plan_unref(p);
		te_seq_unref(s);
		memory = te_tensor_unref(memory);
	}
	/* with a BF16 copy of the part */
	ck_assert_int_eq((int64_t)mem[0].weights_nbytes - (int64_t)mem[1].weights_nbytes,
			 4 * (PARTS - 1) * own - 2 * own);
	ck_assert_uint_eq(mem[1].copies_nbytes, 0);
	/* zeros for the part of the gradients, and of the elements that all have */
	ck_assert_int_eq((int64_t)mem[2].weights_nbytes, 4 * (n - (PARTS - 1) * own));
}

TEST(divided, what_does_not_fit_divided_masters_is_refused)
{
	const struct te_recipe fp8 = model_recipe("fp8-delayed"), bf16 = model_recipe("bf16");
	struct te_plan_opts o = pair_opts(&llama, &fp8, TE_PLAN_TRAIN);
	struct te_seq *s = model_create_unbound(ctx, &llama);
	const struct te_seq_binding good = binding(0, 0);
	struct te_seq_binding b = good;
	struct te_plan *p;

	DO(te_seq_complete(s));
	b.flags = TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS;
	fails(te_seq_bind(s, &b), -EINVAL, "5 parts of masters, and TE_SEQ_REMAINDERS");
	b = good;
	b.masters = (float *)(uintptr_t)4096;
	fails(te_seq_bind(s, &b), -EINVAL, "5 parts of masters, and masters");
	b = good;
	b.barrier = NULL;
	fails(te_seq_bind(s, &b), -EINVAL, "5 parts of masters, and no alloc or no barrier");
	b.fetch = NULL;
	b.flags = TE_SEQ_BF16_COPIES;
	fails(te_seq_bind(s, &b), -EINVAL, "TE_SEQ_BF16_COPIES, expected parts of FP32 masters");
	DO(te_seq_bind(s, &good));
	DO(te_seq_init(s, 5));
	fails(te_checkpoint_save(s, NULL, "none"), -EOPNOTSUPP,
	      "has one of 5 parts of the masters");
	fails(te_plan_create(s, &o, &p), -EOPNOTSUPP,
	      "has a scale from earlier amaxes, and masters are in 5 parts");
	te_seq_unref(s);
	s = create(&llama, &good);
	o = pair_opts(&llama, &bf16, TE_PLAN_TRAIN);
	DO(te_plan_create(s, &o, &p));
	model_feed(p, &llama);
	code = -EIO;
	fails(te_plan_forward(p, st, 0), -EIO, "the fetch of masters from part 0 returned");
	te_plan_unref(p);
	te_seq_unref(s);
	memory = te_tensor_unref(memory);
}
