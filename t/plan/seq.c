/* t/plan/seq.c - te_seq_*(3): building, channels and their errors, weights, random state. */
#include "config.h"

#include <math.h>
#include <sched.h>
#include <time.h>

#include <te/ctx.h>
#include <te/errno.h>
#include <te/optim.h>
#include <te/plan.h>
#include <te/seq.h>

#include "kernels/philox.h"
#include "tt_ctx.h"

static struct te_seq *seq;

static void setup(void)
{
	tt_setup();
	ck_assert_int_eq(te_seq_create(ctx, &seq), 0);
}

static void teardown(void)
{
	seq = te_seq_unref(seq);
	tt_teardown();
}

/* appends, and drops the test's own reference: the sequence keeps the op alive */
static struct te_op *put(struct te_op *op)
{
	ck_assert_int_eq(te_seq_append(seq, op), 0);
	te_op_unref(op);
	return op;
}

static struct te_op *fork_op(const char *name)
{
	struct te_op *op;

	ck_assert_int_eq(te_op_fork(name, &op), 0);
	return op;
}

static struct te_op *add_op(const char *name)
{
	struct te_op *op;

	ck_assert_int_eq(te_op_add(name, &op), 0);
	return op;
}

static struct te_op *embedding(const char *name, int64_t vocab, int64_t width)
{
	struct te_embedding_attrs a = TE_ATTRS(embedding, vocab, width, 0, 0.5f, 0);
	struct te_op *op;

	ck_assert_int_eq(te_op_embedding(&a, name, &op), 0);
	return op;
}

static struct te_op *linear(const char *name, int64_t in, int64_t out, struct te_op *tied)
{
	struct te_linear_attrs a = TE_ATTRS(linear, in, out, 0.02f, 0, tied);
	struct te_op *op;

	ck_assert_int_eq(te_op_linear(&a, name, &op), 0);
	return op;
}

CASE(channels, "host", .setup = setup, .teardown = teardown);

TEST(channels, refuses_two_givers_of_a_channel)
{
	ck_assert_int_eq(te_op_give(put(fork_op("a")), 0, "res"), 0);
	ck_assert_int_eq(te_op_give(put(fork_op("b")), 0, "res"), 0);
	ck_assert_int_eq(te_op_take(put(add_op("c")), 0, "res"), 0);
	ck_assert_int_eq(te_seq_init(seq, 1), -TE_ECHANNEL);
	tt_said("given by a and by b");
	tt_said("res");
}

TEST(channels, refuses_a_taker_before_its_giver)
{
	ck_assert_int_eq(te_op_take(put(add_op("early")), 0, "res"), 0);
	ck_assert_int_eq(te_op_give(put(fork_op("late")), 0, "res"), 0);
	ck_assert_int_eq(te_seq_init(seq, 1), -TE_ECHANNEL);
	tt_said("taken by early before late");
	tt_said("res");
}

TEST(channels, refuses_a_channel_no_op_gives_or_takes)
{
	struct te_op *a = put(add_op("a"));

	ck_assert_int_eq(te_seq_init(seq, 1), -TE_ECHANNEL);
	tt_said("op a");
	tt_said("no channel");
	ck_assert_int_eq(te_op_take(a, 0, "ghost"), 0);
	ck_assert_int_eq(te_seq_init(seq, 1), -TE_ECHANNEL);
	tt_said("ghost");
	tt_said("given by no op");
	/* after a failed init the sequence can be corrected: declare the channel as input */
	ck_assert_int_eq(te_seq_input(seq, "ghost", TE_DTYPE_FP32, 0, NULL), 0);
	ck_assert_int_eq(te_op_give(put(fork_op("f")), 0, "idle"), 0);
	ck_assert_int_eq(te_seq_init(seq, 1), -TE_ECHANNEL);
	tt_said("idle");
	tt_said("taken by no op");
}

TEST(channels, refuses_giving_what_the_caller_feeds)
{
	ck_assert_int_eq(te_seq_input(seq, "res", TE_DTYPE_FP32, 0, NULL), 0);
	ck_assert_int_eq(te_seq_input(seq, "res", TE_DTYPE_FP32, 0, NULL), -TE_ECHANNEL);
	ck_assert_int_eq(te_op_give(put(fork_op("f")), 0, "res"), 0);
	ck_assert_int_eq(te_op_take(put(add_op("a")), 0, "res"), 0);
	ck_assert_int_eq(te_seq_init(seq, 1), -TE_ECHANNEL);
	tt_said("op f");
	tt_said("caller feeds");
}

TEST(channels, refuses_bad_inputs)
{
	const int64_t tail[2] = { 3, -4 };

	fails(te_seq_input(seq, "x", TE_DTYPE_FP32, 0, NULL), -EINVAL, "other than \"x\"");
	fails(te_seq_input(seq, "m", TE_DTYPE_COUNT, 0, NULL), -EINVAL, "m: element type");
	fails(te_seq_input(seq, "m", TE_DTYPE_FP32, TE_MAX_DIMS - 1, tail), -EINVAL, "not 0 to 6");
	fails(te_seq_input(seq, "m", TE_DTYPE_FP32, 1, NULL), -EINVAL, "tail is NULL");
	fails(te_seq_input(seq, "m", TE_DTYPE_FP32, 2, tail), -EINVAL,
	      "te_seq_input: m: extent 1 of its tail is -4");
	fails(te_seq_input_shape(seq, "m", TE_DTYPE_FP32, 0, tail), -EINVAL,
	      "te_seq_input_shape: m: ndim is 0, not 1 to 8");
	fails(te_seq_input_shape(seq, "m", TE_DTYPE_FP32, 2, NULL), -EINVAL, "shape is NULL");
	fails(te_seq_input_shape(seq, "m", TE_DTYPE_FP32, 2, tail), -EINVAL,
	      "te_seq_input_shape: m: extent 1 of its shape is -4");
	ck_assert_int_eq(te_seq_input(seq, "m", TE_DTYPE_FP32, 1, tail), 0);
}

TEST(channels, refuses_bad_joins)
{
	struct te_op *f = put(fork_op("f"));

	fails(te_op_give(f, 1, "res"), -EINVAL,
	      "op f: there is no extra output 1: type fork has 1");
	ck_assert_int_eq(te_op_give(f, -1, "res"), -EINVAL);
	ck_assert_int_eq(te_op_give(f, 0, ""), -EINVAL);
	ck_assert_int_eq(te_op_give(f, 0, NULL), -EINVAL);
	ck_assert_int_eq(te_op_take(f, 0, "res"), -EINVAL);
	ck_assert_int_eq(te_op_give(f, 0, "res"), 0);
	ck_assert_int_eq(te_op_give(f, 0, "other"), -EINVAL);
	ck_assert_int_eq(te_op_take(put(add_op("a")), 0, "res"), 0);
	ck_assert_int_eq(te_seq_init(seq, 1), 0);
	ck_assert_int_eq(te_op_give(f, 0, "late"), -EBUSY);
	ck_assert_int_eq(te_seq_append(seq, f), -EBUSY);
	ck_assert_int_eq(te_seq_input(seq, "late", TE_DTYPE_FP32, 0, NULL), -EBUSY);
	ck_assert_int_eq(te_seq_init(seq, 1), -EBUSY);
}

TEST(channels, refuses_a_name_in_use)
{
	struct te_op *again = fork_op("f");

	put(fork_op("f"));
	ck_assert_int_eq(te_seq_append(seq, again), -EEXIST);
	tt_said("f");
	tt_said("already");
	te_op_unref(again);
	ck_assert_int_eq(te_seq_append(seq, NULL), -EINVAL);
}

TEST(channels, refuses_an_op_of_another_sequence)
{
	struct te_seq *other;
	struct te_op *op = fork_op("f");

	ck_assert_int_eq(te_seq_create(ctx, &other), 0);
	ck_assert_int_eq(te_seq_append(other, op), 0);
	ck_assert_int_eq(te_seq_append(seq, op), -EBUSY);
	tt_said("op f");
	tt_said("another sequence");
	ck_assert_int_eq(te_seq_nops(seq), 0);
	ck_assert_int_eq(te_seq_append(other, op), -EEXIST);
	te_seq_unref(other);
	/* that sequence is gone */
	ck_assert_int_eq(te_seq_append(seq, op), 0);
	te_op_unref(op);
}

/* an initialised sequence keeps its ops, and releases them too */
TEST(channels, releases_its_ops)
{
	struct te_op *op = embedding("e", 4, 4);

	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(te_seq_append(seq, op), 0);
		ck_assert_int_eq(te_seq_init(seq, 1), 0);
		ck_assert_int_eq(te_seq_append(seq, op), -EBUSY);
		te_seq_unref(seq);
		ck_assert_int_eq(te_seq_create(ctx, &seq), 0);
	}
	te_op_unref(op);
}

static const struct {
	int64_t in, out;
	const char *words;
} absurd[] = {
	{ (int64_t)1 << 32, (int64_t)1 << 32, "weight [4294967296,4294967296] fp32" },
	{ INT64_MAX, 3, "weight [3,9223372036854775807] fp32" },
	{ (int64_t)1 << 31, (int64_t)1 << 31, "weight [2147483648,2147483648] fp32" },
	{ 1, INT64_MAX - 1, "weight [9223372036854775806,1] fp32" },
};

CASE(weights, "host", .setup = setup, .teardown = teardown);

TEST_EACH(weights, refuses_a_weight_that_is_too_large, TT_LEN(absurd))
{
	put(linear("ok", 4, 4, NULL));
	put(linear("big", absurd[_i].in, absurd[_i].out, NULL));
	ck_assert_int_eq(te_seq_init(seq, 1), -TE_ESHAPE);
	tt_said("op big");
	tt_said(absurd[_i].words);
	tt_said("2^48 bytes");
}

TEST(weights, refuses_weights_that_are_too_large_together)
{
	put(linear("a", (int64_t)1 << 23, (int64_t)1 << 23, NULL));
	put(linear("b", 1, 1, NULL));
	ck_assert_int_eq(te_seq_init(seq, 1), -TE_ESHAPE);
	tt_said("op b");
	tt_said("2^48 bytes");
}

TEST(weights, lays_weights_out_flat_and_zero_padded)
{
	struct te_weight_info w[2] = { TE_WEIGHT_INFO_INIT, TE_WEIGHT_INFO_INIT };
	float *all;
	int64_t n;

	put(embedding("e", 5, 7));
	put(linear("l", 7, 3, NULL));
	ck_assert_int_eq(te_seq_init(seq, 42), 0);
	ck_assert_int_eq(te_seq_nweights(seq), 2);
	ck_assert_int_eq(te_seq_weight(seq, 0, &w[0]), 0);
	ck_assert_int_eq(te_seq_weight(seq, 1, &w[1]), 0);
	ck_assert_str_eq(w[0].name, "e.weight");
	ck_assert_str_eq(w[1].name, "l.weight");
	ck_assert_int_eq(w[0].offset_nelems, 0);
	ck_assert_int_eq(w[1].offset_nelems, 64);
	ck_assert_ptr_eq(te_tensor_base(w[1].master), te_seq_masters(seq));
	ck_assert_ptr_eq(te_tensor_data(w[1].grad),
			 (float *)te_tensor_data(te_seq_grads(seq)) + 64);
	n = te_tensor_nelems(te_seq_masters(seq));
	ck_assert_int_eq(n, 128);
	all = malloc((size_t)n * sizeof(*all));
	ck_assert_int_eq(te_tensor_read(te_seq_masters(seq), all, (size_t)n * sizeof(*all)), 0);
	for (int i = 0; i < n; i++) {
		int weight = i < 35 || (i >= 64 && i < 64 + 21);

		ck_assert_msg((all[i] != 0) == weight, "element %d is %g", i, (double)all[i]);
	}
	free(all);
	ck_assert_int_eq(te_seq_weight(seq, 2, &w[0]), -EINVAL);
}

TEST(weights, draws_normal_weights_by_seed)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	double sum = 0, sq = 0;
	int n = 200 * 100;
	float *a = malloc((size_t)n * sizeof(*a)), *b = malloc((size_t)n * sizeof(*b));

	for (int k = 0; k < 3; k++) {
		put(embedding("e", 200, 100));
		ck_assert_int_eq(te_seq_init(seq, k < 2 ? 7 : 8), 0);
		te_seq_weight(seq, 0, &w);
		ck_assert_int_eq(te_tensor_read(w.master, k ? b : a, (size_t)n * sizeof(*a)), 0);
		if (k == 1)
			ck_assert_mem_eq(a, b, (size_t)n * sizeof(*a));
		if (k == 2)
			ck_assert_mem_ne(a, b, (size_t)n * sizeof(*a));
		te_seq_unref(seq);
		ck_assert_int_eq(te_seq_create(ctx, &seq), 0);
	}
	for (int i = 0; i < n; i++) {
		sum += a[i];
		sq += (double)a[i] * a[i];
	}
	/* deviation 0.5: the mean of n draws is off by 0.5/sqrt(n) = 0.0035, the variance by
	 * 0.25 sqrt(2/n) = 0.0025; 6 deviations each */
	ck_assert_double_lt(fabs(sum / n), 0.022);
	ck_assert_double_lt(fabs(sq / n - 0.25), 0.015);
	free(a);
	free(b);
}

/* what libm makes of the draw of element i, of all weights in order; deviation 0.5 */
static float normal_by_libm(uint64_t seed, uint64_t i)
{
	const struct te_philox r = te_philox(seed, (uint32_t)(i / 2), 0, 0, 0x696e6974);
	const double u = ((double)r.w[0] + 0.5) / 4294967296.0;
	const double a = 6.283185307179586 * ((double)r.w[1] / 4294967296.0);

	return (float)(sqrt(-2.0 * log(u)) * (i & 1 ? sin(a) : cos(a)) * 0.5);
}

/* with each instruction set, at the end of a vector and at one element more, too */
TEST_EACH(weights, vectors_draw_the_numbers_of_libm, 3)
{
	static const char *const levels[] = { "none", "avx2", "avx512" };
	static const int64_t rows[] = { TT_FEWER(4001), 5, 64, 1 };
	int64_t offset = 0;

	setenv("TE_HOST_SIMD", levels[_i], 1);
	for (int k = 0; k < 4; k++)
		put(embedding(k ? k > 1 ? k > 2 ? "h" : "g" : "f" : "e", rows[k], k ? 13 : 101));
	ck_assert_int_eq(te_seq_init(seq, 7), 0);
	for (int k = 0; k < 4; k++) {
		const int64_t n = rows[k] * (k ? 13 : 101);
		float *a = malloc((size_t)n * sizeof(*a));

		ck_assert_int_eq(te_seq_masters_get(seq, offset, n, a), 0);
		for (int64_t i = 0; i < n; i++) {
			const float want = normal_by_libm(7, (uint64_t)(offset + i));

			ck_assert_msg(!memcmp(&a[i], &want, sizeof(want)),
				      "element %d of %d: %.9g, expected %.9g", (int)i, (int)n,
				      (double)a[i], (double)want);
		}
		offset += (n + 63) / 64 * 64;
		free(a);
	}
}

/* a weight that is drawn by as many threads as there are processors, and then by one */
TEST(weights, draws_the_same_weights_with_any_number_of_threads)
{
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	const size_t n = 1001 * 771;
	float *a = malloc(n * sizeof(*a)), *b = malloc(n * sizeof(*b));
	cpu_set_t all, one;
	int cpu = 0;

	ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	for (int k = 0; k < 2; k++) {
		put(embedding("e", 1001, 771));
		ck_assert_int_eq(sched_setaffinity(0, sizeof(one), k ? &one : &all), 0);
		ck_assert_int_eq(te_seq_init(seq, 7), 0);
		te_seq_weight(seq, 0, &w);
		ck_assert_int_eq(te_tensor_read(w.master, k ? b : a, n * sizeof(*a)), 0);
		te_seq_unref(seq);
		ck_assert_int_eq(te_seq_create(ctx, &seq), 0);
	}
	ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
	ck_assert_mem_eq(a, b, n * sizeof(*a));
	for (size_t i = 1; i < n; i++)
		ck_assert_msg(a[i] != a[i - 1], "elements %zu and %zu are equal", i - 1, i);
	free(a);
	free(b);
}

/* a weight that is drawn in two runs has the values of two weights of their lengths */
TEST(weights, draws_long_weights_as_their_parts)
{
	const int64_t n = (65536 + 3) * 64;
	float *a = malloc((size_t)n * sizeof(*a)), *b = malloc((size_t)n * sizeof(*b));

	for (int k = 0; k < 2; k++) {
		put(embedding("e", k ? 65536 : 65536 + 3, 64));
		if (k)
			put(embedding("f", 3, 64));
		ck_assert_int_eq(te_seq_init(seq, 7), 0);
		ck_assert_int_eq(te_seq_masters_get(seq, 0, n, k ? b : a), 0);
		te_seq_unref(seq);
		ck_assert_int_eq(te_seq_create(ctx, &seq), 0);
	}
	ck_assert_mem_eq(a, b, (size_t)n * sizeof(*a));
	free(a);
	free(b);
}

TEST(weights, shares_a_tied_weight)
{
	struct te_op *e = put(embedding("e", 16, 32));

	put(linear("head", 32, 16, e));
	ck_assert_int_eq(te_seq_init(seq, 1), 0);
	ck_assert_int_eq(te_seq_nweights(seq), 1);
}

TEST(weights, refuses_a_tie_that_does_not_fit)
{
	struct te_op *e = embedding("e", 16, 32);

	put(linear("head", 32, 16, e));
	put(e);
	ck_assert_int_eq(te_seq_init(seq, 1), -EINVAL);
	tt_said("head");
	tt_said("must come earlier");
}

/* an operation whose attributes are its only weight, which is tied */
static int tied_weight(const struct te_op *op, int32_t index, struct te_weight_decl *ret_decl)
{
	memcpy(ret_decl, te_op_attrs(op), sizeof(*ret_decl));
	return !index;
}

static int tied_infer(struct te_op_infer *inf)
{
	return 0;
}

static int tied_pass(const struct te_op_call *c)
{
	return 0;
}

static const struct te_op_ops tied_ops = {
	.size = sizeof(tied_ops),
	.name = "tied",
	.attrs_nbytes = sizeof(struct te_weight_decl),
	.weight = tied_weight,
	.infer = tied_infer,
	.forward = tied_pass,
	.backward = tied_pass,
	.backward_dw = tied_pass,
};

static const struct {
	struct te_weight_decl decl;
	int r;
} ties[] = {
	{ { 0, "w", 2, { 16, 32 }, TE_INIT_ZERO, 0, 0, NULL, 0 }, 0 },
	{ { 0, "w", 2, { 16, 31 }, TE_INIT_ZERO, 0, 0, NULL, 0 }, -TE_ESHAPE },
	{ { 0, "w", 2, { 32, 16 }, TE_INIT_ZERO, 0, 0, NULL, 0 }, -TE_ESHAPE },
	{ { 0, "w", 1, { 16 }, TE_INIT_ZERO, 0, 0, NULL, 0 }, -TE_ESHAPE },
	{ { 0, "w", 3, { 16, 32, 1 }, TE_INIT_ZERO, 0, 0, NULL, 0 }, -TE_ESHAPE },
};

/* its attributes are not those of an embedding */
TEST(weights, refuses_a_tie_to_a_namesake)
{
	const struct te_op_ops ops = { .size = sizeof(ops), .name = "embedding",
				       .infer = tied_infer, .forward = tied_pass };
	struct te_linear_attrs a = TE_ATTRS(linear, 32, 16, 0.02f, 0, NULL);
	struct te_op *op;

	ck_assert_int_eq(te_op_create(&ops, NULL, "e", &a.tied_op), 0);
	fails(te_op_linear(&a, "head", &op), -EINVAL,
	      "linear head: tied_op e is no embedding but a user-defined embedding");
	te_op_unref(a.tied_op);
}

/* whatever operation declares it, a tied weight has the shape of its owner's */
TEST_EACH(weights, refuses_a_tie_of_another_shape, TT_LEN(ties))
{
	struct te_weight_decl decl = ties[_i].decl;
	struct te_op *op;

	decl.tied_op = put(embedding("e", 16, 32));
	ck_assert_int_eq(te_op_create(&tied_ops, &decl, "mine", &op), 0);
	put(op);
	ck_assert_int_eq(te_seq_init(seq, 1), ties[_i].r);
	if (ties[_i].r)
		tt_said("op mine: its w and the tied e.weight differ in shape");
	else
		ck_assert_int_eq(te_seq_nweights(seq), 1);
}

TEST(weights, keeps_random_state)
{
	uint64_t s = 0, o = 9;

	put(embedding("e", 4, 4));
	ck_assert_int_eq(te_seq_rng_get(seq, &s, &o), -TE_ESTATE);
	ck_assert_int_eq(te_seq_init(seq, 11), 0);
	ck_assert_int_eq(te_seq_rng_get(seq, &s, &o), 0);
	ck_assert_uint_eq(s, 11);
	ck_assert_uint_eq(o, 0);
	ck_assert_int_eq(te_seq_rng_get(seq, NULL, &o), -EINVAL);
	ck_assert_str_eq(te_error_detail(), "te_seq_rng_get: ret_seed is NULL");
	ck_assert_int_eq(te_seq_rng_get(seq, &s, NULL), -EINVAL);
	ck_assert_str_eq(te_error_detail(), "te_seq_rng_get: ret_offset is NULL");
	ck_assert_int_eq(te_seq_rng_set(seq, 0x123456789abcdef0u, 77), 0);
	ck_assert_int_eq(te_seq_rng_get(seq, &s, &o), 0);
	ck_assert_uint_eq(s, 0x123456789abcdef0u);
	ck_assert_uint_eq(o, 77);
}

TEST(weights, zeroes_gradients)
{
	struct te_ctx *other;
	float one[64];

	DO(tt_ctx_new(&other));
	put(embedding("e", 4, 4));
	ck_assert_int_eq(te_seq_zero_grads(seq, te_ctx_stream(ctx)), -TE_ESTATE);
	ck_assert_int_eq(te_seq_init(seq, 1), 0);
	for (int i = 0; i < 64; i++)
		one[i] = 1;
	ck_assert_int_eq(te_tensor_write(te_seq_grads(seq), one, sizeof(one)), 0);
	fails(te_seq_zero_grads(seq, te_ctx_stream(other)), -EINVAL,
	      "te_seq_zero_grads: the stream belongs to another context");
	fails(te_seq_zero_grads(seq, NULL), -EINVAL, "te_seq_zero_grads: the stream is NULL");
	fails(te_seq_weights_changed(seq, te_ctx_stream(other)), -EINVAL,
	      "te_seq_weights_changed: the stream belongs to another context");
	ck_assert_int_eq(te_seq_zero_grads(seq, te_ctx_stream(ctx)), 0);
	ck_assert_int_eq(te_tensor_read(te_seq_grads(seq), one, sizeof(one)), 0);
	for (int i = 0; i < 64; i++)
		ck_assert(one[i] == 0);
	te_ctx_unref(other);
}

static int run_f(const struct te_fused *f)
{
	return 0;
}

TEST(weights, refuses_bad_fusions)
{
	struct te_fusion f = { .size = sizeof(f), .name = "f", .pattern = "a b" };

	ck_assert_int_eq(te_seq_add_fusion(seq, &f), -EINVAL);
	f.run = run_f;
	ck_assert_int_eq(te_seq_add_fusion(seq, &f), 0);
	f.pattern = "a";
	ck_assert_int_eq(te_seq_add_fusion(seq, &f), -EINVAL);
	f.pattern = "a b";
	f.size = 1;
	ck_assert_int_eq(te_seq_add_fusion(seq, &f), -EINVAL);
}

/* around one op and around two, nested */
TEST(channels, residuals_are_forks_and_adds)
{
	static const char *const names[] = { "a", "e", "b", "f", "b.add", "a.add" };
	struct te_op *op;

	DO(te_seq_fork(seq, "a"));
	op = embedding("e", 4, 4);
	tt_append(seq, op);
	DO(te_seq_fork(seq, "b"));
	op = linear("f", 4, 4, NULL);
	tt_append(seq, op);
	fails(te_seq_fork(seq, "b"), -EEXIST, "b");
	DO(te_seq_add(seq, "b"));
	DO(te_seq_add(seq, "a"));
	fails(te_seq_add(seq, "a"), -EEXIST, "a.add");
	fails(te_seq_add(seq, NULL), -EINVAL, "name is NULL");
	fails(te_seq_fork(seq, NULL), -EINVAL, "name");
	fails(te_seq_fork(NULL, "c"), -EINVAL, "te_seq_fork");
	ck_assert_int_eq(te_seq_nops(seq), (int)TT_LEN(names));
	for (int i = 0; i < te_seq_nops(seq); i++)
		ck_assert_str_eq(te_op_name(te_seq_op(seq, i)), names[i]);
	DO(te_seq_complete(seq));
	fails(te_seq_add(seq, "a"), -EBUSY, "te_seq_add");
}

static int build_once(void)
{
	struct te_embedding_attrs ea = TE_ATTRS(embedding, 4, 4, 0, 1, 0);
	struct te_ctx *c = NULL;
	struct te_seq *s = NULL;
	struct te_op *op = NULL;
	int r;

	r = tt_ctx_new(&c);
	if (!r)
		r = te_seq_create(c, &s);
	if (!r)
		r = te_op_embedding(&ea, "e", &op);
	if (!r)
		r = te_seq_append(s, op);
	if (!r)
		r = te_seq_fork(s, "r");
	if (!r)
		r = te_seq_add(s, "r");
	if (!r)
		r = te_seq_init(s, 1);
	te_op_unref(op);
	te_seq_unref(s);
	te_ctx_unref(c);
	return r;
}

CASE(faults, "host fault");

TEST(faults, survives_every_fault)
{
	ck_assert_int_gt(tt_fault_each(build_once), 5);
}

TEST(weights, is_planned_before_it_has_memory)
{
	struct te_mem_info before = TE_MEM_INFO_INIT, after = TE_MEM_INFO_INIT;
	struct te_plan_memory pm = TE_PLAN_MEMORY_INIT, real = TE_PLAN_MEMORY_INIT;
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	struct te_adamw *opt = NULL;
	struct te_plan *plan;
	uint64_t adamw;

	put(linear("a", 64, 32, NULL));
	put(linear("b", 32, 16, NULL));
	po.flags = TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC;
	po.x = (struct te_spec){ TE_DTYPE_BF16, 2, { 16, 64 } };
	ck_assert_int_eq(te_adamw_nbytes(seq, NULL), 0);
	ck_assert_int_eq(te_plan_create(seq, &po, &plan), -TE_ESTATE);
	te_ctx_mem_info(ctx, &before);
	ck_assert_int_eq(te_seq_complete(seq), 0);
	ck_assert_int_eq(te_seq_complete(seq), -EBUSY);
	ck_assert_int_eq(te_seq_weight(seq, 0, &w), 0);
	ck_assert_int_eq(te_tensor_nelems(w.master), 32 * 64);
	ck_assert_ptr_null(te_seq_masters(seq));
	ck_assert_ptr_null(te_seq_grads(seq));
	ck_assert_int_eq(te_adamw_create(seq, NULL, &opt), -TE_ESTATE);
	adamw = te_adamw_nbytes(seq, NULL);
	ck_assert_int_eq(te_plan_create(seq, &po, &plan), 0);
	ck_assert_int_eq(te_plan_memory(plan, &pm), 0);
	te_plan_unref(plan);
	te_ctx_mem_info(ctx, &after);
	ck_assert_uint_eq(after.nallocs, before.nallocs);
	po.flags = TE_PLAN_TRAIN;
	ck_assert_int_eq(te_plan_create(seq, &po, &plan), -TE_ESTATE);

	/* with memory: as much as was told */
	ck_assert_int_eq(te_seq_init(seq, 1), 0);
	ck_assert_int_eq(te_seq_init(seq, 1), -EBUSY);
	ck_assert_int_eq(te_plan_create(seq, &po, &plan), 0);
	ck_assert_int_eq(te_plan_memory(plan, &real), 0);
	ck_assert_mem_eq(&real, &pm, sizeof(pm));
	te_ctx_mem_info(ctx, &after);
	ck_assert_uint_eq(after.used_nbytes - before.used_nbytes, pm.total_nbytes);
	ck_assert_int_eq(te_adamw_create(seq, NULL, &opt), 0);
	te_ctx_mem_info(ctx, &after);
	ck_assert_uint_eq(after.used_nbytes - before.used_nbytes, pm.total_nbytes + adamw);
	te_adamw_unref(opt);
	te_plan_unref(plan);
}

/* CPU seconds to build a model of n layers and to plan its training */
static double seconds_to_plan(int n)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_plan *plan = NULL;
	struct timespec from, to;
	char name[32];

	ck_assert_int_eq(te_seq_create(ctx, &seq), 0);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	put(linear("first", 16, 16, NULL));
	for (int i = 0; i < n; i++) {
		struct te_op *op;

		snprintf(name, sizeof(name), "fork%d", i);
		op = put(fork_op(name));
		ck_assert_int_eq(te_op_give(op, 0, name), 0);
		snprintf(name, sizeof(name), "linear%d", i);
		put(linear(name, 16, 16, NULL));
		snprintf(name, sizeof(name), "add%d", i);
		op = put(add_op(name));
		snprintf(name, sizeof(name), "fork%d", i);
		ck_assert_int_eq(te_op_take(op, 0, name), 0);
	}
	ck_assert_int_eq(te_seq_init(seq, 1), 0);
	po.flags = TE_PLAN_TRAIN | TE_PLAN_NO_ALLOC;
	po.x = (struct te_spec){ TE_DTYPE_BF16, 2, { 16, 16 } };
	ck_assert_msg(!te_plan_create(seq, &po, &plan), "%s", te_error_detail());
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	te_plan_unref(plan);
	seq = te_seq_unref(seq);
	return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* 8 times the layers took 34 times as long with searches through lists; 8 is linear */
TEST(weights, building_time_grows_with_the_layers)
{
	double few = INFINITY, many = INFINITY;

	seq = te_seq_unref(seq);
	for (int i = 0; i < 3; i++) {
		few = fmin(few, seconds_to_plan(200));
		many = fmin(many, seconds_to_plan(1600));
	}
	ck_assert_msg(many < 20 * few, "%g s for 200 layers, %g s for 1600", few, many);
}

TT_MAIN("plan/seq", TT_ONE_PROCESS)
