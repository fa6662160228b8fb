/*
 * t/plan/checkpoint.c - te_checkpoint_*(3): training continues with the same bits; a file that is
 * damaged, of another model or not a checkpoint is refused and changes nothing; a save that fails
 * keeps the old file.
 */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/checkpoint.h>
#include <te/plan.h>

#include "plan_model.h"
#include "tt_ctx.h"

#define T 16
static const struct model_shape gpt = { 24, 16, 1, T, 2, 2, 1, 0.2f, 0 };
static const struct model_shape llama = { 24, 16, 1, T, 2, 1, 1, 0, 1 };
static char dir[64];
static char path[96], fresh[112];

static void setup(void)
{
	tt_setup();
	snprintf(dir, sizeof(dir), "%s/te-checkpoint.XXXXXX", tt_tmpdir());
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/run.safetensors", dir);
	snprintf(fresh, sizeof(fresh), "%s.new", path);
}

static void teardown(void)
{
	unlink(path);
	unlink(fresh);
	ck_assert_int_eq(rmdir(dir), 0);
	tt_teardown();
}

struct run {
	const struct model_shape *m;
	struct te_seq *seq;
	struct te_adamw *opt;
	struct te_plan *plan;
};

/* masters: flags of te_seq_bind() */
static struct run run_kept(const struct model_shape *m, const char *recipe, uint64_t seed,
			   const char *frozen, enum te_moments moments, uint32_t masters)
{
	struct run r = { .m = m, .seq = model_create_unbound(ctx, m) };
	struct te_seq_binding binding = TE_SEQ_BINDING_INIT;
	struct te_adamw_opts ao = TE_ADAMW_OPTS_INIT;

	ao.moments = moments;
	binding.flags = masters;
	DO(te_seq_complete(r.seq));
	if (frozen)
		ck_assert_int_gt(te_seq_freeze(r.seq, frozen, 1), 0);
	DO(te_seq_bind(r.seq, &binding));
	DO(te_seq_init(r.seq, seed));
	r.plan = model_plan(r.seq, m, recipe, TE_PLAN_TRAIN);
	DO(te_adamw_create(r.seq, &ao, &r.opt));
	DO(te_adamw_set_lr(r.opt, st, 1e-2f));
	return r;
}

static struct run run_storing(const struct model_shape *m, const char *recipe, uint64_t seed,
			      const char *frozen, enum te_moments moments)
{
	return run_kept(m, recipe, seed, frozen, moments, 0);
}

static struct run run_frozen(const struct model_shape *m, const char *recipe, uint64_t seed,
			     const char *frozen)
{
	return run_storing(m, recipe, seed, frozen, TE_MOMENTS_FP32);
}

static struct run run_of(const struct model_shape *m, const char *recipe, uint64_t seed)
{
	return run_frozen(m, recipe, seed, NULL);
}

static void run_end(struct run *r)
{
	te_plan_unref(r->plan);
	te_adamw_unref(r->opt);
	te_seq_unref(r->seq);
}

/* the inputs of step k are the same in every run */
static float forward(struct run *r, int k)
{
	int32_t tokens[T + 1];

	for (int i = 0; i <= T; i++)
		tokens[i] = (7 * i + 5 * k + i * i * k) % 24;
	DO(te_tensor_write(te_plan_input(r->plan, "x"), tokens, T * sizeof(*tokens)));
	DO(te_tensor_write(te_plan_input(r->plan, "targets"), tokens + 1, T * sizeof(*tokens)));
	DO(te_plan_forward(r->plan, st, 0));
	return model_loss(r->plan);
}

static float run_step(struct run *r, int k)
{
	float loss;

	DO(te_seq_zero_grads(r->seq, st));
	loss = forward(r, k);
	DO(te_plan_backward(r->plan, st));
	DO(te_adamw_step(r->opt, st));
	return loss;
}

static void same_runs(struct run *a, struct run *b)
{
	unsigned char sa[256], sb[256];
	uint64_t rng[4];

	model_same(te_seq_masters(a->seq), te_seq_masters(b->seq), "weights");
	model_same(te_adamw_m(a->opt), te_adamw_m(b->opt), "first moments");
	model_same(te_adamw_v(a->opt), te_adamw_v(b->opt), "second moments");
	DO(te_adamw_state_get(a->opt, sa, te_adamw_state_nbytes()));
	DO(te_adamw_state_get(b->opt, sb, te_adamw_state_nbytes()));
	ck_assert_mem_eq(sa, sb, te_adamw_state_nbytes());
	DO(te_seq_rng_get(a->seq, &rng[0], &rng[1]));
	DO(te_seq_rng_get(b->seq, &rng[2], &rng[3]));
	ck_assert_mem_eq(rng, rng + 2, 16);
	model_same_scales(te_seq_quant(a->seq), te_seq_quant(b->seq));
}

/* the last two on the host backend only */
static const char *const recipes[] = { "fp32",	      "bf16",	   "fp8-delayed",
				       "fp8-current", "fp8-block", "mxfp8",
				       "nvfp4" };

CASE(checkpoint, backend, .setup = setup, .teardown = teardown);

/* with dropout, and a weight that is tied */
TEST_EACH(checkpoint, training_continues_with_the_same_bits, TT_LEN(recipes))
{
	struct run a = run_of(&gpt, recipes[_i], 3), b = run_of(&gpt, recipes[_i], 4);
	int64_t nsteps = -1;

	for (int k = 0; k < 3; k++)
		run_step(&a, k);
	run_step(&b, 9);
	DO(te_checkpoint_save(a.seq, a.opt, path));
	DO(te_checkpoint_load(b.seq, b.opt, path, 0, &nsteps));
	ck_assert_int_eq(nsteps, 3);
	same_runs(&a, &b);
	for (int k = 3; k < 6; k++)
		ck_assert(run_step(&a, k) == run_step(&b, k));
	same_runs(&a, &b);
	ck_assert_int_ne(access(fresh, F_OK), 0);
	run_end(&a);
	run_end(&b);
}

/* values of all moments, first and second, for free() */
static float *moments_in_fp32(const struct run *r, enum te_moments moments)
{
	const int64_t n = te_tensor_nelems(te_seq_grads(r->seq));
	float *ret = malloc(2 * (size_t)n * sizeof(*ret));

	for (int second = 0; second < 2; second++) {
		const struct te_tensor *t = second ? te_adamw_v(r->opt) : te_adamw_m(r->opt);
		void *stored = malloc(te_tensor_nbytes(t));

		ck_assert_uint_eq(te_tensor_nbytes(t), te_moments_nbytes(moments, n));
		DO(te_tensor_read(t, stored, te_tensor_nbytes(t)));
		DO(te_moments_to_fp32(moments, second, n, stored, ret + second * n));
		free(stored);
	}
	return ret;
}

/*
 * A file with moments of any format, with a frozen weight. The same format continues with the same
 * bits. A smaller one has values within half of its largest step, and returned to the first format
 * they have not changed. _i: formats of the file and of the run that loads it.
 */
TEST_EACH(checkpoint, moments_load_from_any_format, 9)
{
	const enum te_moments from = (enum te_moments)(_i % 3), to = (enum te_moments)(_i / 3);
	struct run a = run_storing(&llama, "bf16", 3, "emb*", from);
	struct run b = run_storing(&llama, "bf16", 4, "emb*", to);
	float *was, *now;
	int64_t n;

	for (int k = 0; k < 3; k++)
		run_step(&a, k);
	run_step(&b, 9);
	DO(te_checkpoint_save(a.seq, a.opt, path));
	DO(te_checkpoint_load(b.seq, b.opt, path, 0, NULL));
	n = te_tensor_nelems(te_seq_grads(a.seq));
	was = moments_in_fp32(&a, from);
	now = moments_in_fp32(&b, to);
	for (int64_t i = 0; i < 2 * n; i++) {
		float most = 0.0f; /* largest magnitude of the block */

		for (int64_t k = i / 64 * 64; k < i / 64 * 64 + 64; k++)
			most = fmaxf(most, fabsf(was[k]));
		if (to == TE_MOMENTS_FP32 || from == to)
			ck_assert_float_eq(now[i], was[i]);
		else if (to == TE_MOMENTS_BF16)
			ck_assert_float_le(fabsf(now[i] - was[i]), 0x1p-8f * fabsf(was[i]));
		else
			ck_assert_float_le(fabsf(now[i] - was[i]),
					   fmaxf(0x1p-4f * fabsf(was[i]), 0x1p-17f * most));
	}
	if (from == to) {
		same_runs(&a, &b);
		for (int k = 3; k < 6; k++)
			ck_assert(run_step(&a, k) == run_step(&b, k));
		same_runs(&a, &b);
	} else if (to == TE_MOMENTS_FP32) {
		run_step(&a, 9);
		DO(te_checkpoint_save(b.seq, b.opt, path));
		DO(te_checkpoint_load(a.seq, a.opt, path, 0, NULL));
		free(now);
		now = moments_in_fp32(&a, from);
		ck_assert_mem_eq(now, was, 2 * (size_t)n * sizeof(*now));
	}
	free(was);
	free(now);
	run_end(&a);
	run_end(&b);
}

static const uint32_t masters[] = { 0, TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS,
				    TE_SEQ_BF16_MASTERS };

static float *masters_in_fp32(const struct run *r, size_t *ret_nbytes)
{
	float *w;

	*ret_nbytes = (size_t)te_seq_nelems(r->seq) * sizeof(*w);
	w = malloc(*ret_nbytes);
	ck_assert_ptr_nonnull(w);
	DO(te_seq_masters_get(r->seq, 0, te_seq_nelems(r->seq), w));
	return w;
}

/*
 * Masters in BF16 with remainders train as FP32 masters, bit for bit where no copy is BF16: there
 * ties are rounded to even from FP32, and away from zero from a remainder. A llama has no biases;
 * its head is BF16 whatever the recipe, and frozen here: as drawn, it has no ties.
 */
TEST_EACH(checkpoint, remainders_train_as_fp32, TT_LEN(recipes))
{
	const int exact = strcmp(recipes[_i], "bf16") != 0;
	const char *frozen = exact ? "head" : NULL;
	struct run a = run_kept(&llama, recipes[_i], 3, frozen, TE_MOMENTS_FP32, masters[0]);
	struct run b = run_kept(&llama, recipes[_i], 3, frozen, TE_MOMENTS_FP32, masters[1]);
	struct run c = run_kept(&llama, recipes[_i], 3, frozen, TE_MOMENTS_FP32, masters[2]);
	float *wa, *wb, first = 0, last = 0;
	size_t nbytes;

	for (int k = 0; k < 20; k++) {
		const float want = run_step(&a, k % 4), got = run_step(&b, k % 4);

		last = run_step(&c, k % 4);
		first = k ? first : last;
		if (exact)
			ck_assert_float_eq(got, want);
		else /* a step of a few weights differs by a step of BF16 */
			ck_assert_float_le(fabsf(got - want), 0.02f * want);
	}
	wa = masters_in_fp32(&a, &nbytes);
	wb = masters_in_fp32(&b, &nbytes);
	if (exact)
		ck_assert_mem_eq(wa, wb, nbytes);
	ck_assert_float_lt(last, first); /* BF16 alone */
	free(wa);
	free(wb);
	run_end(&a);
	run_end(&b);
	run_end(&c);
}

/*
 * BF16 copies of FP32 masters and BF16 masters with a remainder differ at ties only. _i: 1: all
 * masters are ties whose upper half is even, so that copies are rounded towards zero
 */
TEST_EACH(checkpoint, copies_differ_at_ties_only, 2)
{
	struct run a = run_kept(&gpt, "bf16", 3, NULL, TE_MOMENTS_FP32, masters[0]);
	struct run b = run_kept(&gpt, "bf16", 4, NULL, TE_MOMENTS_FP32, masters[1]);
	float *wa, *wb, loss[2];
	uint64_t rng[2];
	size_t nbytes;

	wa = masters_in_fp32(&a, &nbytes);
	for (size_t i = 0; i < nbytes / sizeof(*wa); i++) {
		uint32_t bits;

		memcpy(&bits, &wa[i], sizeof(bits));
		if (_i)
			bits = (bits & 0xfffe0000u) | 0x8000u;
		else
			bits |= (bits & 0xffffu) == 0x8000u;
		memcpy(&wa[i], &bits, sizeof(bits));
	}
	DO(te_seq_masters_set(a.seq, 0, te_seq_nelems(a.seq), wa));
	DO(te_seq_masters_set(b.seq, 0, te_seq_nelems(b.seq), wa));
	DO(te_seq_rng_get(a.seq, &rng[0], &rng[1]));
	DO(te_seq_rng_set(b.seq, rng[0], rng[1]));
	loss[0] = run_step(&a, 0);
	loss[1] = run_step(&b, 0);
	free(wa);
	wa = masters_in_fp32(&a, &nbytes);
	wb = masters_in_fp32(&b, &nbytes);
	if (_i) {
		ck_assert(loss[0] != loss[1]);
	} else {
		ck_assert(loss[0] == loss[1]);
		model_same(te_seq_grads(a.seq), te_seq_grads(b.seq), "gradients");
		ck_assert_mem_eq(wa, wb, nbytes);
	}
	free(wa);
	free(wb);
	run_end(&a);
	run_end(&b);
}

/*
 * FP32 and remainders load each other's files without a change of a bit, and the file of a BF16 run
 * is BF16; BF16 rounds to nearest. _i: formats of the run that saves, and of the one that loads
 */
TEST_EACH(checkpoint, masters_load_from_any_format, 9)
{
	const uint32_t from = masters[_i % 3], to = masters[_i / 3];
	struct run a = run_kept(&gpt, "bf16", 3, "emb*", TE_MOMENTS_BF16, from);
	struct run b = run_kept(&gpt, "bf16", 4, "emb*", TE_MOMENTS_BF16, to);
	float *wa, *wb, *back;
	size_t nbytes;
	int64_t n;

	for (int k = 0; k < 3; k++)
		run_step(&a, k);
	run_step(&b, 9);
	DO(te_checkpoint_save(a.seq, a.opt, path));
	DO(te_checkpoint_load(b.seq, b.opt, path, 0, NULL));
	wa = masters_in_fp32(&a, &nbytes);
	wb = masters_in_fp32(&b, &nbytes);
	n = te_seq_nelems(b.seq);
	for (size_t i = 0; i < nbytes / sizeof(*wa); i++)
		if (to == TE_SEQ_BF16_MASTERS && from != to)
			ck_assert_float_le(fabsf(wa[i] - wb[i]), 0x1p-8f * fabsf(wa[i]));
		else
			ck_assert_float_eq(wa[i], wb[i]);
	if (from == to) {
		same_runs(&a, &b);
		for (int k = 3; k < 6; k++)
			ck_assert(run_step(&a, k) == run_step(&b, k));
		same_runs(&a, &b);
	}
	DO(te_seq_masters_set(b.seq, 0, n / 3, wa));
	DO(te_seq_masters_set(b.seq, n / 3, n - n / 3, wa + n / 3));
	back = masters_in_fp32(&b, &nbytes);
	ck_assert_mem_eq(back, wb, nbytes * (from != to)); /* trained on, if they are equal */
	DO(te_seq_masters_get(b.seq, n / 2, n - n / 2, back));
	ck_assert_mem_eq(back, wb + n / 2, (size_t)(n - n / 2) * sizeof(*wb) * (from != to));
	fails(te_seq_masters_get(b.seq, 1, n, back), -EINVAL, "elements from 1 on");
	fails(te_seq_masters_get(b.seq, -1, 1, back), -EINVAL, "elements from -1 on");
	fails(te_seq_masters_set(b.seq, 0, n, NULL), -EINVAL, "memory is NULL");
	free(back);
	free(wa);
	free(wb);
	run_end(&a);
	run_end(&b);
}

TEST(checkpoint, frozen_weights_are_saved_without_moments)
{
	struct run a = run_frozen(&llama, "bf16", 3, "emb*");
	struct run b = run_frozen(&llama, "bf16", 4, "emb*");
	struct run c = run_of(&llama, "bf16", 5);

	run_step(&a, 0);
	DO(te_checkpoint_save(a.seq, a.opt, path));
	DO(te_checkpoint_load(b.seq, b.opt, path, 0, NULL));
	same_runs(&a, &b);
	fails(te_checkpoint_load(c.seq, c.opt, path, 0, NULL), -TE_ESHAPE, "adamw.m.emb.weight");
	DO(te_checkpoint_load(c.seq, NULL, path, 0, NULL));
	for (int i = 0; i < te_seq_nweights(a.seq); i++) {
		struct te_weight_info wa = TE_WEIGHT_INFO_INIT, wc = TE_WEIGHT_INFO_INIT;

		DO(te_seq_weight(a.seq, i, &wa));
		DO(te_seq_weight(c.seq, i, &wc));
		model_same(wa.master, wc.master, wa.name);
	}
	run_end(&a);
	run_end(&b);
	run_end(&c);
}

/* the plan's copies of the weights are of the file's, too */
TEST(checkpoint, a_file_without_moments_serves_for_inference)
{
	struct run a = run_of(&llama, "fp8-current", 3), b = run_of(&llama, "fp8-current", 4);

	run_step(&a, 0);
	forward(&b, 0);
	DO(te_checkpoint_save(a.seq, NULL, path));
	fails(te_checkpoint_load(b.seq, b.opt, path, 0, NULL), -TE_ESTATE, "without an optimizer");
	DO(te_checkpoint_load(b.seq, NULL, path, 0, NULL));
	ck_assert(forward(&a, 1) == forward(&b, 1));
	run_end(&a);
	run_end(&b);
}

TEST(checkpoint, quantizers_are_restored_or_skipped_on_request)
{
	struct run a = run_of(&llama, "fp8-delayed", 3), b = run_of(&llama, "bf16", 4);
	struct run c = run_of(&llama, "fp8-current", 5);

	run_step(&a, 0);
	DO(te_checkpoint_save(a.seq, a.opt, path));
	fails(te_checkpoint_load(b.seq, b.opt, path, 0, NULL), -TE_ESTATE, "the sequence has none");
	DO(te_checkpoint_load(b.seq, b.opt, path, TE_CHECKPOINT_SKIP_QUANT, NULL));
	model_same(te_adamw_v(a.opt), te_adamw_v(b.opt), "moments");
	fails(te_checkpoint_load(c.seq, c.opt, path, 0, NULL), -EINVAL, "recipe");
	DO(te_checkpoint_load(c.seq, c.opt, path, TE_CHECKPOINT_SKIP_QUANT, NULL));
	DO(te_checkpoint_save(b.seq, b.opt, path));
	fails(te_checkpoint_load(a.seq, a.opt, path, 0, NULL), -TE_ESTATE, "no state of");
	DO(te_checkpoint_load(a.seq, a.opt, path, TE_CHECKPOINT_SKIP_QUANT, NULL));
	run_end(&a);
	run_end(&b);
	run_end(&c);
}

/* the file's bytes, for free(3) */
static unsigned char *get_file(size_t *ret_nbytes)
{
	unsigned char *bytes;
	struct stat s;
	int fd = open(path, O_RDONLY);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &s), 0);
	bytes = malloc((size_t)s.st_size);
	ck_assert(read(fd, bytes, (size_t)s.st_size) == s.st_size);
	close(fd);
	*ret_nbytes = (size_t)s.st_size;
	return bytes;
}

static void put_file(const void *bytes, size_t nbytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);

	ck_assert_int_ge(fd, 0);
	ck_assert(write(fd, bytes, nbytes) == (ssize_t)nbytes);
	close(fd);
}

static int is_refusal(int r)
{
	return r == -TE_EFORMAT || r == -TE_ECORRUPT || r == -TE_ESHAPE || r == -TE_ESTATE ||
	       r == -EINVAL;
}

static int load_quietly(struct run *r)
{
	int64_t nsteps = 77;
	int e = te_checkpoint_load(r->seq, r->opt, path, 0, &nsteps);

	ck_assert(!e || nsteps == 77);
	ck_assert(!e || strstr(te_error_detail(), path) ||
		  strstr(te_error_detail(), "te_quant_load"));
	return e;
}

TEST(checkpoint, damaged_bytes_are_refused_and_change_nothing)
{
	struct run a = run_of(&gpt, "fp8-delayed", 3), b = run_of(&gpt, "fp8-delayed", 4);
	struct run as_b = run_of(&gpt, "fp8-delayed", 4);
	unsigned char *bytes;
	int64_t most;
	size_t n;

	run_step(&a, 0);
	run_step(&b, 1);
	run_step(&as_b, 1);
	DO(te_checkpoint_save(a.seq, a.opt, path));
	bytes = get_file(&n);
	most = (int64_t)n / TT_FEWER(200);
	/* each byte of the header's length and of its begin, and some of all others */
	for (size_t i = 0; i < n; i += i < 400 ? 1 : 1 + (size_t)tt_rand_int(0, most)) {
		const unsigned char flip = (unsigned char)(1u << tt_rand_int(0, 7));

		bytes[i] ^= flip;
		put_file(bytes, n);
		ck_assert_msg(is_refusal(load_quietly(&b)), "byte %zu ^ %u: %s", i, flip,
			      te_error_detail());
		bytes[i] ^= flip;
	}
	for (size_t k = 0; k < n; k += k < 100 ? 7 : 1 + n / 50) {
		put_file(bytes, k);
		ck_assert_msg(is_refusal(load_quietly(&b)), "cut to %zu bytes", k);
	}
	/* more bytes than there should be */
	put_file(bytes, n);
	ck_assert_int_eq(truncate(path, (off_t)n + 8), 0);
	ck_assert(is_refusal(load_quietly(&b)));
	same_runs(&b, &as_b);
	put_file(bytes, n);
	DO(load_quietly(&b));
	same_runs(&b, &a);
	free(bytes);
	run_end(&a);
	run_end(&b);
	run_end(&as_b);
}

TEST(checkpoint, foreign_files_are_refused_with_a_reason)
{
	static const char other[] = "\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
				    "\"data_offsets\":[0,4]}}                    \0\0\0\0";
	struct model_shape wide = gpt;
	struct run a = run_of(&gpt, "bf16", 3), b;
	struct te_seq *empty;

	wide.vocab++;
	b = run_of(&wide, "bf16", 3);
	fails(te_checkpoint_load(a.seq, a.opt, path, 0, NULL), -ENOENT, path);
	put_file(other, sizeof(other) - 1);
	fails(te_checkpoint_load(a.seq, a.opt, path, 0, NULL), -TE_EFORMAT, "not a checkpoint");
	put_file("hello", 5);
	fails(te_checkpoint_load(a.seq, a.opt, path, 0, NULL), -TE_EFORMAT, "not a checkpoint");
	unlink(path);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	fails(te_checkpoint_load(a.seq, a.opt, path, 0, NULL), -TE_EFORMAT, "not a checkpoint");
	unlink(path);
	DO(te_checkpoint_save(b.seq, b.opt, path));
	fails(te_checkpoint_load(a.seq, a.opt, path, 0, NULL), -TE_ESHAPE, "[25,16]");
	tt_said("[24,16]");
	fails(te_checkpoint_load(a.seq, b.opt, path, 0, NULL), -EINVAL, "another sequence");
	fails(te_checkpoint_load(a.seq, a.opt, path, 8, NULL), -EINVAL, "0x8");
	fails(te_checkpoint_load(NULL, NULL, path, 0, NULL), -EINVAL, "seq is NULL");
	fails(te_checkpoint_load(a.seq, a.opt, NULL, 0, NULL), -EINVAL, "path is NULL");
	DO(te_seq_create(ctx, &empty));
	fails(te_checkpoint_save(empty, NULL, path), -TE_ESTATE, "te_seq_init");
	te_seq_unref(empty);
	run_end(&a);
	run_end(&b);
}

TEST(checkpoint, a_save_that_fails_keeps_the_old_file)
{
	struct run a = run_of(&gpt, "bf16", 3);
	struct rlimit was, small;
	unsigned char *before, *after;
	char link[96];
	struct stat s;
	size_t n, m;

	snprintf(link, sizeof(link), "%s/link", dir);
	DO(te_checkpoint_save(a.seq, a.opt, path));
	before = get_file(&n);
	run_step(&a, 0);
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
	small = was;
	signal(SIGXFSZ, SIG_IGN);
	for (size_t k = 0; k < n; k += 1 + n / 10) {
		small.rlim_cur = k;
		ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
		fails(te_checkpoint_save(a.seq, a.opt, path), -EFBIG, path);
		ck_assert_int_ne(access(fresh, F_OK), 0);
	}
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
	after = get_file(&m);
	ck_assert_uint_eq(n, m);
	ck_assert_mem_eq(before, after, n);
	free(before);
	free(after);
	fails(te_checkpoint_save(a.seq, a.opt, "/nowhere/run"), -ENOENT, "/nowhere/run");
	fails(te_checkpoint_save(a.seq, a.opt, dir), -EISDIR, dir);
	/* what is no file is not replaced */
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	fails(te_checkpoint_save(a.seq, a.opt, path), -EINVAL, "expected a file or a new name");
	ck_assert_int_eq(symlink(path, link), 0);
	fails(te_checkpoint_save(a.seq, a.opt, link), -EINVAL, "expected a file or a new name");
	ck_assert_int_eq(lstat(path, &s), 0);
	ck_assert(S_ISFIFO(s.st_mode));
	unlink(link);
	run_end(&a);
}

TEST(checkpoint, links_are_not_followed)
{
	struct run a = run_of(&gpt, "bf16", 3), b = run_of(&gpt, "bf16", 4);
	char victim[96], text[8] = "";
	struct stat s;
	int fd;

	snprintf(victim, sizeof(victim), "%s/victim", dir);
	fd = open(victim, O_RDWR | O_CREAT, 0666);
	ck_assert_int_eq(write(fd, "mine", 4), 4);
	ck_assert_int_eq(symlink(victim, fresh), 0);
	ck_assert_int_eq(symlink(victim, path), 0);
	DO(te_checkpoint_save(a.seq, a.opt, path));
	ck_assert_int_eq(pread(fd, text, sizeof(text), 0), 4);
	ck_assert_str_eq(text, "mine");
	ck_assert_int_eq(lstat(path, &s), 0);
	ck_assert(S_ISREG(s.st_mode));
	DO(te_checkpoint_load(b.seq, b.opt, path, 0, NULL));
	/* in the current folder, without a slash */
	ck_assert_int_eq(chdir(dir), 0);
	run_step(&a, 0);
	DO(te_checkpoint_save(a.seq, a.opt, "run.safetensors"));
	DO(te_checkpoint_load(b.seq, b.opt, path, 0, NULL));
	same_runs(&a, &b);
	close(fd);
	unlink(victim);
	run_end(&a);
	run_end(&b);
}

/* characters that JSON does not allow in strings */
TEST(checkpoint, names_of_weights_are_escaped)
{
	struct te_bias_attrs attrs = TE_ATTRS(bias, .width = 4);
	const float ones[4] = { 1, 1, 1, 1 };
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	struct te_seq *seq;
	struct te_op *op;
	unsigned char *bytes;
	float got[4];
	size_t n;

	DO(te_seq_create(ctx, &seq));
	DO(te_op_bias(&attrs, "a\"b\\c\n", &op));
	tt_append(seq, op);
	DO(te_seq_init(seq, 1));
	DO(te_seq_weight(seq, 0, &w));
	DO(te_tensor_write(w.master, ones, sizeof(ones)));
	DO(te_checkpoint_save(seq, NULL, path));
	bytes = get_file(&n);
	ck_assert_ptr_nonnull(memmem(bytes, n, "\"a\\u0022b\\u005cc\\u000a.bias\"", 27));
	free(bytes);
	memset(got, 0, sizeof(got));
	DO(te_tensor_write(w.master, got, sizeof(got)));
	DO(te_checkpoint_load(seq, NULL, path, 0, NULL));
	DO(te_tensor_read(w.master, got, sizeof(got)));
	ck_assert_mem_eq(got, ones, sizeof(ones));
	te_seq_unref(seq);
}

static uint32_t faulty_masters;

static int save_and_load(void)
{
	struct te_seq_binding binding = TE_SEQ_BINDING_INIT;
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	struct te_bias_attrs attrs = TE_ATTRS(bias, .width = 4);
	struct te_adamw *opt = NULL;
	struct te_ctx *c = NULL;
	struct te_seq *seq = NULL;
	struct te_op *op = NULL;
	int r;

	co.backend = "host";
	r = te_ctx_create(&co, &c);
	if (r >= 0)
		r = te_seq_create(c, &seq);
	if (r >= 0)
		r = te_op_bias(&attrs, "b", &op);
	if (r >= 0)
		r = te_seq_append(seq, op);
	if (r >= 0)
		r = te_seq_complete(seq);
	binding.flags = faulty_masters;
	if (r >= 0)
		r = te_seq_bind(seq, &binding);
	if (r >= 0)
		r = te_seq_init(seq, 1);
	if (r >= 0)
		r = te_adamw_create(seq, NULL, &opt);
	if (r >= 0)
		r = te_checkpoint_save(seq, opt, path);
	if (r >= 0)
		r = te_checkpoint_load(seq, opt, path, 0, NULL);
	ck_assert_int_ne(access(fresh, F_OK), 0);
	te_adamw_unref(opt);
	te_op_unref(op);
	te_seq_unref(seq);
	te_ctx_unref(c);
	return r;
}

TEST_EACH(checkpoint, survives_every_failed_allocation, ON_HOST ? TT_LEN(masters) : 0)
{
	faulty_masters = masters[_i];
	ck_assert_int_ge(tt_fault_each(save_and_load), 20);
}

TT_PAIR("plan/checkpoint", TT_ONE_PROCESS)
