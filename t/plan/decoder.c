/*
 * t/plan/decoder.c - te_decoder_*: logits and tokens against plans of whole sequences, sampling,
 * pages, refusals and faults.
 *
 * On the host the bits are equal. On a GPU the two add in other orders: each sum of K terms is
 * within K 2^-23 of the other relative to its magnitudes, and a BF16 result that is near the middle
 * of two numbers is rounded to either. A logit comes after at most 14 such roundings in two layers,
 * whose norms keep the magnitudes, so that it may differ by 32 units of the largest logit; FP32
 * sums, of at most 1536 terms, by 2^-12 of it.
 */
#include "config.h"

#include <math.h>

#include <te/decoder.h>
#include <te/errno.h>

#include "plan_model.h"
#include "tt_ctx.h"
#include "tt_num.h"

#define NSEQS 3

static struct model_shape shape = { .vocab = 61, .width = 48, .batch = 1, .seqlen = 70, .nheads = 6,
				    .nkv = 2, .nlayers = 2 };
static struct te_recipe recipe;

static int is_host(void)
{
	return !strcmp(backend, "host");
}

static struct te_decoder_opts opts(void)
{
	struct te_decoder_opts o = TE_DECODER_OPTS_INIT;

	o.recipe = &recipe;
	o.max_seqs = NSEQS;
	o.max_tokens = (int32_t)shape.seqlen;
	return o;
}

/* a model; i: type, family, and from 8 on FP8 */
static struct te_seq *model(int i)
{
	static const char *const name[] = { "bf16", "fp32", "fp8-block", "mxfp8" };

	recipe = (struct te_recipe)TE_RECIPE_INIT;
	DO(te_recipe_from_name(name[(i >> 2 & 2) + (i & 1)], &recipe));
	shape.llama = i >> 1 & 1;
	shape.nkv = shape.llama ? 2 : shape.nheads;
	if (!is_host()) { /* GEMMs that its kernel for few rows computes */
		shape.width = 384;
		shape.vocab = 64;
	}
	return model_create(ctx, &shape, tt_seed());
}

/* logits of each of n tokens, by a plan of the whole sequence */
static float *whole(struct te_seq *seq, const int32_t *token, int64_t n)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;
	float *logits;

	o.recipe = &recipe;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, n } };
	o.stop_before = "loss";
	DO(te_plan_create(seq, &o, &p));
	DO(te_tensor_write(te_plan_input(p, "x"), token, (size_t)n * sizeof(*token)));
	if (te_plan_input(p, "documents"))
		DO(te_fill(st, te_tensor_data(te_plan_input(p, "documents")), 0,
			   (size_t)n * sizeof(*token)));
	DO(te_plan_forward(p, st, 0));
	DO(te_stream_sync(st));
	logits = tt_tensor_get(te_plan_output(p));
	te_plan_unref(p);
	return logits;
}

/* the difference of logits that the order of sums may make: 0 on the host */
static double tolerance(const float *logits, int64_t n)
{
	double most = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)logits[i]));
	return is_host() ? 0 : most * (recipe.compute == TE_DTYPE_FP32 ? 0x1p-12 : 0x1p-4);
}

static void same_logits(const struct te_decoder *d, int32_t s, const float *want)
{
	int64_t n = 0;
	const float *got = te_decoder_logits(d, s, &n);
	const double tol = tolerance(want, shape.vocab);

	ck_assert_ptr_nonnull(got);
	ck_assert_int_eq(n, shape.vocab);
	for (int64_t i = 0; i < n; i++)
		ck_assert_msg(fabs((double)got[i] - (double)want[i]) <= tol,
			      "logit %lld of sequence %d at %lld is %g, not %g within %g",
			      (long long)i, s, (long long)te_decoder_length(d, s), (double)got[i],
			      (double)want[i], tol);
}

CTX_CASE(decoder, backend);

/* random numbers of tokens at a time. _i: type, family, pages, type of the cache, FP8 */
TEST_EACH(decoder, logits_equal_a_whole_pass, is_host() ? 16 : 8, .parts = 2)
{
	struct te_seq *seq = model(_i);
	struct te_decoder_opts o = opts();
	int32_t token[NSEQS][70], number[NSEQS];
	int64_t len[NSEQS], done[NSEQS] = { 0 }, left = 1;
	float *want[NSEQS];
	struct te_decoder *d;

	o.chunk = _i >> 2 & 1 ? 16 : 0;
	o.page = _i >> 2 & 1 ? 5 : 0;
	o.flags = _i & 1 ? TE_DECODER_CACHE_FP32 : TE_DECODER_CACHE_BF16;
	o.ntokens = shape.vocab;
	DO(te_decoder_create(seq, &o, &d));
	for (int s = 0; s < NSEQS; s++) {
		len[s] = tt_rand_int(1, shape.seqlen);
		for (int64_t i = 0; i < len[s]; i++)
			token[s][i] = (int32_t)tt_rand_int(0, shape.vocab - 1);
		want[s] = whole(seq, token[s], len[s]);
		DO(te_decoder_open(d, NULL, &number[s]));
		ck_assert_ptr_null(te_decoder_logits(d, number[s], NULL));
	}
	for (int call = 0; left; call++) {
		left = 0;
		for (int s = 0; s < NSEQS; s++) {
			int64_t n = tt_rand_int(0, call % 2 ? 1 : 30);

			n = n < len[s] - done[s] ? n : len[s] - done[s];
			DO(te_decoder_push(d, number[s], token[s] + done[s], n));
			done[s] += n;
			left |= done[s] < len[s];
		}
		for (int64_t r = 1; r;) {
			r = te_decoder_step(d);
			ck_assert_msg(r >= 0, "%s", te_error_detail());
		}
		for (int s = 0; s < NSEQS; s++)
			if (done[s])
				same_logits(d, number[s], want[s] + (done[s] - 1) * shape.vocab);
	}
	for (int s = 0; s < NSEQS; s++) {
		ck_assert_int_eq(te_decoder_length(d, number[s]), len[s]);
		free(want[s]);
	}
	te_decoder_unref(d);
	te_seq_unref(seq);
}

/* a layer whose MLP reads the norm of the layer's input, normed heads that turn in part, attention
 * in a window with a softcap; a sequence is one document */
static struct te_seq *parallel(int sinks)
{
	const int64_t width = shape.width;
	const int heads = shape.nheads, hd = (int)width / heads;
	const float freq[4] = { 0.9f, 0.01f, 0, 0 };
	struct te_embedding_attrs ea = TE_ATTRS(embedding, shape.vocab, width, 0, 0.3f, 0);
	struct te_norm_attrs na = TE_ATTRS(norm, width, 1e-5f, 0);
	struct te_linear_attrs qkv = TE_ATTRS(linear, width, 3 * width, 0.2f, 0, NULL);
	struct te_linear_attrs square = TE_ATTRS(linear, width, width, 0.2f, 0, NULL);
	struct te_linear_attrs head = TE_ATTRS(linear, width, shape.vocab, 0.2f, 1, NULL);
	struct te_qk_norm_attrs qa = TE_ATTRS(qk_norm, heads, heads, hd);
	struct te_rope_attrs ra = TE_ATTRS(rope, heads, heads, hd, 0, freq, 1);
	struct te_attention_attrs aa = TE_ATTRS(attention, heads, heads, hd, 0, 0, 0, 0, 0, 3,
						2, 1, 0, 0, sinks);
	struct te_act_attrs act = TE_ATTRS(act, TE_ACT_GELU, 0);
	struct te_cross_entropy_attrs ca = TE_ATTRS(cross_entropy, shape.vocab, -100, 1.0f);
	struct te_seq *seq;
	struct te_op *op;

	ck_assert_int_eq(hd, 2 * TT_LEN(freq));
	DO(te_seq_create(ctx, &seq));
	DO(te_op_embedding(&ea, "emb", &op));
	tt_append(seq, op);
	DO(te_op_fork("x", &op));
	tt_append(seq, op);
	DO(te_op_give(op, 0, "x"));
	DO(te_op_layernorm(&na, "norm", &op));
	tt_append(seq, op);
	DO(te_op_fork("normed", &op));
	tt_append(seq, op);
	DO(te_op_give(op, 0, "normed"));
	DO(te_op_linear(&qkv, "qkv", &op));
	tt_append(seq, op);
	DO(te_op_qk_norm(&qa, "qk_norm", &op));
	tt_append(seq, op);
	DO(te_seq_input(seq, "documents", TE_DTYPE_INT32, 0, NULL));
	DO(te_op_rope(&ra, "rope", &op));
	tt_append(seq, op);
	DO(te_op_take(op, 0, "documents"));
	DO(te_op_attention(&aa, "attn", &op));
	tt_append(seq, op);
	DO(te_op_take(op, 0, "documents"));
	DO(te_op_linear(&square, "proj", &op));
	tt_append(seq, op);
	DO(te_op_swap("mlp", &op));
	tt_append(seq, op);
	DO(te_op_take(op, 0, "normed"));
	DO(te_op_give(op, 0, "attn"));
	DO(te_op_linear(&square, "up", &op));
	tt_append(seq, op);
	DO(te_op_activation(&act, "act", &op));
	tt_append(seq, op);
	DO(te_op_add("add1", &op));
	tt_append(seq, op);
	DO(te_op_take(op, 0, "attn"));
	DO(te_op_add("add2", &op));
	tt_append(seq, op);
	DO(te_op_take(op, 0, "x"));
	DO(te_op_linear(&head, "head", &op));
	tt_append(seq, op);
	DO(te_seq_input(seq, "targets", TE_DTYPE_INT32, 0, NULL));
	DO(te_op_cross_entropy(&ca, "loss", &op));
	tt_append(seq, op);
	DO(te_op_take(op, 0, "targets"));
	DO(te_seq_init(seq, tt_seed()));
	return seq;
}

/* the prompt at once, then tokens one by one. _i: type, sinks */
TEST_EACH(decoder, parallel_branches_and_given_frequencies_equal_a_whole_pass, 4)
{
	struct te_decoder_opts o;
	struct te_decoder *d;
	struct te_seq *seq;
	int32_t token[70], s;
	float *want;

	te_seq_unref(model(_i & 1));
	shape.width = 48;
	seq = parallel(_i >> 1);
	o = opts();
	o.page = 7;
	for (int i = 0; i < 70; i++)
		token[i] = (int32_t)tt_rand_int(0, shape.vocab - 1);
	want = whole(seq, token, 70);
	DO(te_decoder_create(seq, &o, &d));
	DO(te_decoder_open(d, NULL, &s));
	for (int64_t done = 0, n = 40; done < 70; done += n, n = 1) {
		DO(te_decoder_push(d, s, token + done, n));
		ck_assert_int_eq(te_decoder_step(d), 0);
		same_logits(d, s, want + (done + n - 1) * shape.vocab);
	}
	free(want);
	te_decoder_unref(d);
	te_seq_unref(seq);
}

/* logits after n tokens, of which up to most are pushed at a time */
static float *logits_of(struct te_seq *seq, const struct te_decoder_opts *o, const int32_t *token,
			int64_t n, int64_t most)
{
	float *ret = malloc((size_t)shape.vocab * sizeof(*ret));
	const float *last;
	struct te_decoder *d;
	int32_t s;

	DO(te_decoder_create(seq, o, &d));
	DO(te_decoder_open(d, NULL, &s));
	for (int64_t i = 0, len; i < n; i += len) {
		int64_t left;

		len = tt_rand_int(1, most);
		len = len < n - i ? len : n - i;
		DO(te_decoder_push(d, s, token + i, len));
		while ((left = te_decoder_step(d)) > 0)
			;
		ck_assert_msg(!left, "%s", te_error_detail());
	}
	last = te_decoder_logits(d, s, NULL);
	ck_assert_ptr_nonnull(last);
	memcpy(ret, last, (size_t)shape.vocab * sizeof(*ret));
	te_decoder_unref(d);
	return ret;
}

/* each head of each token has a scale: chunks and pages change nothing. _i: type, family */
TEST_EACH(decoder, e4m3_cache_does_not_depend_on_chunks, 4, .parts = 2)
{
	struct te_seq *seq = model(_i);
	struct te_decoder_opts o = opts();
	float *one, *many, *exact, most = 0, far = 0;
	int32_t token[70];

	for (int i = 0; i < 70; i++)
		token[i] = (int32_t)tt_rand_int(0, shape.vocab - 1);
	exact = logits_of(seq, &o, token, 70, 70);
	o.flags = TE_DECODER_CACHE_E4M3;
	one = logits_of(seq, &o, token, 70, 70);
	o.page = 5;
	o.chunk = 16;
	many = logits_of(seq, &o, token, 70, 9);
	for (int32_t i = 0; i < shape.vocab; i++) {
		most = fmaxf(most, fabsf(exact[i]));
		far = fmaxf(far, fabsf(one[i] - exact[i]));
	}
	/* E4M3 changes keys and values by up to 1/16, and a GPU adds in another order before */
	ck_assert_msg(far > 0 && far < most / 4, "%g of %g", (double)far, (double)most);
	for (int32_t i = 0; i < shape.vocab; i++)
		ck_assert_msg(fabsf(one[i] - many[i]) <= (is_host() ? 0 : most / 4),
			      "logit %d: %g, in chunks %g", i, (double)one[i], (double)many[i]);
	free(one);
	free(many);
	free(exact);
	te_seq_unref(seq);
}

static int32_t next(struct te_decoder *d, int32_t s)
{
	int32_t token = -1;
	int r;

	while (!(r = te_decoder_take(d, s, &token))) {
		const int64_t left = te_decoder_step(d);

		ck_assert_msg(left >= 0, "%s", te_error_detail());
	}
	ck_assert_msg(r == 1, "%s", te_error_detail());
	return token;
}

/* the most likely token of the whole context, each time. _i: type, family */
TEST_EACH(decoder, greedy_tokens_equal_whole_passes, 4)
{
	struct te_seq *seq = model(_i);
	struct te_decoder_opts o = opts();
	int32_t text[70] = { 3, 1, 4, 1, 5 }, s;
	struct te_decoder *d;

	DO(te_decoder_create(seq, &o, &d));
	DO(te_decoder_open(d, NULL, &s));
	DO(te_decoder_push(d, s, text, 5));
	for (int64_t n = 5; n < 40; n++) {
		float *logits = whole(seq, text, n), *last = logits + (n - 1) * shape.vocab;
		int32_t best = 0;

		for (int32_t i = 1; i < shape.vocab; i++)
			best = last[i] > last[best] ? i : best;
		text[n] = next(d, s);
		ck_assert_msg((double)last[text[n]] >=
				      (double)last[best] - 2 * tolerance(last, shape.vocab),
			      "token %d is %d, not %d", (int)n, text[n], best);
		ck_assert(!is_host() || text[n] == best);
		free(logits);
	}
	te_decoder_unref(d);
	te_seq_unref(seq);
}

/* sequences that begin and end at different times, and one alone. _i: type, family */
TEST_EACH(decoder, batches_equal_sequences_alone, is_host() ? 4 : 0)
{
	struct te_seq *seq = model(_i);
	struct te_decoder_opts o = opts();
	struct te_sampling how = TE_SAMPLING_INIT;
	int32_t prompt[20], text[5][12], s[5];
	struct te_decoder *d, *one;

	DO(te_decoder_create(seq, &o, &d));
	o.max_seqs = 1;
	DO(te_decoder_create(seq, &o, &one));
	for (int i = 0; i < 20; i++)
		prompt[i] = (int32_t)tt_rand_int(0, shape.vocab - 1);
	how.top_k = 20;
	for (int step = 0; step < 4 * 4 + 12; step++) {
		for (int i = 0; i < 5; i++) {
			how.seed = (uint64_t)i;
			if (step == 4 * i) {
				DO(te_decoder_open(d, &how, &s[i]));
				DO(te_decoder_push(d, s[i], prompt, 4 * i + 1));
			}
		}
		for (int i = 0; i < 5; i++)
			if (step >= 4 * i && step < 4 * i + 12)
				text[i][step - 4 * i] = next(d, s[i]);
		for (int i = 0; i < 5; i++)
			if (step == 4 * i + 11)
				DO(te_decoder_close(d, s[i]));
	}
	for (int i = 0; i < 5; i++) {
		int32_t alone;

		how.seed = (uint64_t)i;
		DO(te_decoder_open(one, &how, &alone));
		DO(te_decoder_push(one, alone, prompt, 4 * i + 1));
		for (int k = 0; k < 12; k++)
			ck_assert_int_eq(next(one, alone), text[i][k]);
		DO(te_decoder_close(one, alone));
	}
	te_decoder_unref(te_decoder_ref(d));
	te_decoder_unref(d);
	te_decoder_unref(one);
	te_seq_unref(seq);
}

/* sequences that are each at another place of a text. _i: how many, so that on GPUs a row's keys
 * are computed by four blocks, two or one */
TEST_EACH(decoder, steps_of_many_sequences_equal_a_whole_pass, 3)
{
	static const int32_t many[] = { 20, 50, 140 };
	struct te_decoder_opts o = opts();
	const int64_t width = shape.width;
	int32_t token[70], number[140];
	struct te_decoder *d;
	struct te_seq *seq;
	float *want;

	shape.width = 16 * shape.nheads; /* a head_dim that te_k_attn_step has */
	seq = model(2);
	shape.width = width;
	for (int i = 0; i < 70; i++)
		token[i] = (int32_t)tt_rand_int(0, shape.vocab - 1);
	want = whole(seq, token, 70);
	o.max_seqs = many[_i];
	o.flags = TE_DECODER_CACHE_BF16;
	DO(te_decoder_create(seq, &o, &d));
	for (int s = 0; s < o.max_seqs; s++) {
		DO(te_decoder_open(d, NULL, &number[s]));
		DO(te_decoder_push(d, number[s], token, s % 60 + 1));
	}
	for (int step = 0; step < 4; step++) {
		int64_t left;

		while ((left = te_decoder_step(d)))
			ck_assert_msg(left > 0, "%s", te_error_detail());
		for (int s = 0; s < o.max_seqs; s++) {
			const int64_t at = s % 60 + step;

			same_logits(d, number[s], want + at * shape.vocab);
			DO(te_decoder_push(d, number[s], &token[at + 1], 1));
		}
	}
	free(want);
	te_decoder_unref(d);
	te_seq_unref(seq);
}

static int32_t opened(struct te_decoder *d, const int32_t *token, int64_t n)
{
	int32_t s;

	DO(te_decoder_open(d, NULL, &s));
	DO(te_decoder_push(d, s, token, n));
	return s;
}

/* logits of a ready sequence, released by the caller */
static float *logits_now(const struct te_decoder *d, int32_t s)
{
	int64_t n;
	const float *x = te_decoder_logits(d, s, &n);
	float *copy = malloc((size_t)n * sizeof(*copy));

	ck_assert_ptr_nonnull(x);
	memcpy(copy, x, (size_t)n * sizeof(*copy));
	return copy;
}

/*
 * A fork goes on as the other sequence would, whose pages are not adjacent, and changes nothing of
 * it. _i: type; the last has a cache of E4M3
 */
TEST_EACH(decoder, a_fork_has_the_tokens_of_the_other, 3)
{
	struct te_seq *seq = model(_i & 1);
	struct te_decoder_opts o = opts();
	int32_t prompt[40], s, other, fork, last, token[2];
	const size_t nbytes = (size_t)shape.vocab * sizeof(float);
	float *want, *got;
	struct te_decoder *d;

	for (int i = 0; i < 40; i++)
		prompt[i] = (int32_t)tt_rand_int(0, shape.vocab - 1);
	o.page = 4;
	o.max_seqs = 4;
	o.flags = _i == 2 ? TE_DECODER_CACHE_E4M3 : 0;
	DO(te_decoder_create(seq, &o, &d));
	s = opened(d, prompt, 3);
	other = opened(d, prompt + 20, 19);
	ck_assert_int_eq(te_decoder_step(d), 0);
	DO(te_decoder_push(d, s, prompt + 3, 10));
	ck_assert_int_eq(te_decoder_step(d), 0);
	/* ready, before and after its logits are decoded */
	DO(te_decoder_fork(d, s, NULL, &fork));
	want = logits_now(d, s);
	DO(te_decoder_fork(d, s, NULL, &last));
	for (int i = 0; i < 2; i++) {
		got = logits_now(d, i ? last : fork);
		ck_assert_mem_eq(got, want, nbytes);
		free(got);
		ck_assert_int_eq(te_decoder_take(d, i ? last : fork, &token[i]), 1);
		ck_assert_int_eq(te_decoder_length(d, i ? last : fork), 14);
	}
	free(want);
	ck_assert_int_eq(token[0], token[1]);
	ck_assert_int_eq(te_decoder_length(d, s), 13);
	/* other tokens of one, then the same in all, one after the other */
	DO(te_decoder_close(d, other));
	DO(te_decoder_push(d, fork, prompt + 30, 9));
	ck_assert_int_eq(te_decoder_step(d), 0);
	DO(te_decoder_close(d, fork));
	DO(te_decoder_push(d, s, token, 1));
	DO(te_decoder_fork(d, s, NULL, &fork)); /* with a token that is left */
	ck_assert_int_eq(te_decoder_step(d), 0);
	want = logits_now(d, s);
	for (int i = 0; i < 2; i++) {
		got = logits_now(d, i ? last : fork);
		if (is_host())
			ck_assert_mem_eq(got, want, nbytes);
		else
			same_logits(d, i ? last : fork, want);
		free(got);
	}
	free(want);
	te_decoder_unref(d);
	te_seq_unref(seq);
}

/* a fork without pages is none: the sequences and pages of others stay */
TEST(decoder, forks_need_a_sequence_and_pages)
{
	struct te_seq *seq = model(1);
	struct te_decoder_opts o = opts();
	const int32_t token[30] = { 1 };
	int32_t s, fork = -7, again;
	struct te_decoder *d;

	o.page = 10;
	o.npages = 4;
	o.max_seqs = 2;
	DO(te_decoder_create(seq, &o, &d));
	s = opened(d, token, 25);
	ck_assert_int_eq(te_decoder_step(d), 0);
	fails(te_decoder_fork(d, s, NULL, &fork), -ENOMEM, "te_decoder_fork: the cache has 1 free "
	      "pages of 4, and sequence 0 has 3");
	fails(te_decoder_fork(d, 1, NULL, &fork), -EINVAL, "te_decoder_fork: sequence 1 is not");
	fails(te_decoder_fork(d, s, NULL, NULL), -EINVAL, "te_decoder_fork: ret_s is NULL");
	fails(te_decoder_fork(NULL, s, NULL, &fork), -EINVAL, "te_decoder_fork: d is NULL");
	ck_assert_int_eq(fork, -7);
	again = opened(d, token, 10);
	ck_assert_int_eq(te_decoder_step(d), 0);
	DO(te_decoder_close(d, s));
	DO(te_decoder_fork(d, again, NULL, &fork));
	fails(te_decoder_fork(d, again, NULL, &s), -EBUSY, "all 2 sequences are open");
	DO(te_decoder_push(d, fork, token, 20));
	ck_assert_int_eq(te_decoder_step(d), 0);
	te_decoder_unref(d);
	te_seq_unref(seq);
}

/* ---- sampling ---- */

#define VOCAB 8

static const struct te_embedding_attrs embedding = TE_ATTRS(embedding, VOCAB, 16, 0, 1.0f, 0);

/* embedding, an op or NULL, and head, in FP32: without the op, the last token alone gives logits */
static struct te_seq *bigrams(struct te_op *between)
{
	struct te_linear_attrs ha = TE_ATTRS(linear, 16, VOCAB, 0.4f, 1, NULL);
	struct te_seq *seq;
	struct te_op *op;

	recipe = (struct te_recipe)TE_RECIPE_INIT;
	DO(te_recipe_from_name("fp32", &recipe));
	DO(te_seq_create(ctx, &seq));
	DO(te_op_embedding(&embedding, "e", &op));
	tt_append(seq, op);
	if (between)
		tt_append(seq, between);
	DO(te_op_linear(&ha, "head", &op));
	tt_append(seq, op);
	DO(te_seq_init(seq, 7));
	return seq;
}

/* probabilities that are kept, in FP64, by sorting */
static void expect(const float *logits, const struct te_sampling *how, const int *seen, double *p)
{
	int order[VOCAB], k = 0;
	double sum = 0, kept = 0, v[VOCAB], top;

	for (int i = 0; i < VOCAB; i++) {
		v[i] = (double)logits[i];
		if (seen[i])
			v[i] = v[i] > 0 ? v[i] / how->repetition_penalty :
					  v[i] * how->repetition_penalty;
		order[i] = i;
		p[i] = 0;
	}
	for (int i = 0; i < VOCAB; i++)
		for (int j = i + 1; j < VOCAB; j++)
			if (v[order[j]] > v[order[i]]) {
				const int t = order[i];

				order[i] = order[j];
				order[j] = t;
			}
	top = v[order[0]];
	for (int i = 0; i < VOCAB && (!how->top_k || i < how->top_k); i++)
		sum += exp((v[order[i]] - top) / how->temperature);
	for (; k < VOCAB && (!how->top_k || k < how->top_k); k++) {
		const double w = exp((v[order[k]] - top) / how->temperature);

		if (k && (kept >= how->top_p * sum || w < how->min_p))
			break;
		p[order[k]] = w;
		kept += w;
	}
	for (int i = 0; i < VOCAB; i++)
		p[i] /= kept;
}

static const struct {
	double temperature, top_p, min_p, penalty;
	int32_t top_k;
} ways[] = {
	{ 1, 1, 0, 1, 0 },
	{ 0.5, 1, 0, 1, 0 },
	{ 1, 1, 0, 1, 3 },
	{ 1, 0.7, 0, 1, 0 },
	{ 1, 1, 0.3, 1, 0 },
	{ 2, 1, 0, 1.7, 0 },
	{ 1.5, 0.9, 0.1, 1.3, 6 },
	{ 1, 0.001, 0, 1, 0 },
	{ 1, 1, 1, 1, 0 },
};

/* the model and the seeds are fixed: the frequencies are the same each time. _i: way */
TEST_EACH(decoder, frequencies_are_the_probabilities, is_host() ? (int)TT_LEN(ways) : 2)
{
	const int n = 4000;
	struct te_decoder_opts o = opts();
	struct te_sampling how = TE_SAMPLING_INIT;
	int count[VOCAB] = { 0 }, seen[VOCAB] = { 0 };
	const int32_t prompt[3] = { 2, 5, 2 };
	struct te_seq *seq = bigrams(NULL);
	struct te_decoder *d;
	double p[VOCAB];

	o.max_tokens = 4;
	DO(te_decoder_create(seq, &o, &d));
	how.temperature = ways[_i].temperature;
	how.top_p = ways[_i].top_p;
	how.min_p = ways[_i].min_p;
	how.repetition_penalty = ways[_i].penalty;
	how.top_k = ways[_i].top_k;
	seen[2] = seen[5] = how.repetition_penalty != 1;
	for (how.seed = 0; how.seed < (uint64_t)n; how.seed++) {
		int32_t s, token;

		DO(te_decoder_open(d, &how, &s));
		DO(te_decoder_push(d, s, prompt, 3));
		ck_assert_int_eq(te_decoder_step(d), 0);
		if (!how.seed)
			expect(te_decoder_logits(d, s, NULL), &how, seen, p);
		ck_assert_int_eq(te_decoder_take(d, s, &token), 1);
		count[token]++;
		DO(te_decoder_close(d, s));
	}
	for (int i = 0; i < VOCAB; i++) {
		const double sigma = sqrt(n * p[i] * (1 - p[i]));

		ck_assert_msg(fabs(count[i] - n * p[i]) <= 4 * sigma,
			      "token %d came %d times of %d, not %g +- %g", i, count[i], n,
			      n * p[i], sigma);
	}
	te_decoder_unref(d);
	te_seq_unref(seq);
}

/* ---- limits ---- */

TEST(decoder, pages_that_are_used_up_are_told_and_come_back)
{
	struct te_seq *seq = model(1);
	struct te_decoder_opts o = opts();
	const int32_t token[30] = { 1 };
	int32_t s[2], t;
	struct te_decoder *d;

	o.page = 10;
	o.npages = 4;
	DO(te_decoder_create(seq, &o, &d));
	for (int i = 0; i < 2; i++) {
		DO(te_decoder_open(d, NULL, &s[i]));
		DO(te_decoder_push(d, s[i], token, 30));
	}
	ck_assert_int_eq(te_decoder_step(d), 20);
	ck_assert_int_eq(te_decoder_take(d, s[0], &t), 1);
	ck_assert_int_eq(te_decoder_take(d, s[1], &t), 0);
	fails((int)te_decoder_step(d), -ENOMEM, "has no free page of 4, and 21 tokens are left");
	DO(te_decoder_close(d, s[0]));
	ck_assert_int_eq(te_decoder_step(d), 0);
	ck_assert_int_eq(te_decoder_take(d, s[1], &t), 1);
	te_decoder_unref(d);
	te_seq_unref(seq);
}

TEST_IF(decoder, tokens_end_at_max_tokens, is_host())
{
	struct te_seq *seq = model(0);
	struct te_decoder_opts o = opts();
	const int32_t token[9] = { 1 }, bad[2] = { 0, 61 };
	struct te_decoder *d;
	int32_t s, t;

	o.max_tokens = 8;
	o.max_seqs = 1;
	DO(te_decoder_create(seq, &o, &d));
	fails(te_decoder_push(d, 0, token, 1), -EINVAL, "sequence 0 is not open");
	DO(te_decoder_open(d, NULL, &s));
	fails(te_decoder_open(d, NULL, &t), -EBUSY, "all 1 sequences are open");
	fails(te_decoder_push(d, s, token, 9), -ENOSPC, "0 tokens and 9 more are above max_tokens");
	fails(te_decoder_push(d, s, bad, 2), -EINVAL, "token 1 is 61, expected 0 to 60");
	ck_assert_int_eq(te_decoder_length(d, s), 0);
	DO(te_decoder_push(d, s, token, 7));
	t = next(d, s);
	ck_assert_int_eq(te_decoder_length(d, s), 8);
	ck_assert_int_eq(te_decoder_step(d), 0);
	fails(te_decoder_take(d, s, &t), -ENOSPC, "sequence 0: has max_tokens, 8");
	fails(te_decoder_take(d, s, NULL), -EINVAL, "ret_token is NULL");
	DO(te_decoder_close(d, s));
	fails(te_decoder_close(d, s), -EINVAL, "sequence 0 is not open");
	fails((int)te_decoder_length(d, 5), -EINVAL, "sequence 5 is not open");
	te_decoder_unref(d);
	te_seq_unref(seq);
}

TEST(decoder, logits_that_are_not_finite_are_told)
{
	struct te_seq *seq = bigrams(NULL);
	struct te_decoder_opts o = opts();
	struct te_weight_info w = TE_WEIGHT_INFO_INIT;
	const int32_t token = 1;
	struct te_decoder *d;
	float *v;
	int32_t s, t;

	DO(te_seq_weight(seq, 0, &w));
	v = tt_tensor_get(w.master);
	v[16] = NAN;
	tt_tensor_set(w.master, v);
	free(v);
	DO(te_seq_weights_changed(seq, st));
	DO(te_decoder_create(seq, &o, &d));
	DO(te_decoder_open(d, NULL, &s));
	DO(te_decoder_push(d, s, &token, 1));
	ck_assert_int_eq(te_decoder_step(d), 0);
	fails(te_decoder_take(d, s, &t), -TE_ENUMERIC, "the logit of token 0 is");
	te_decoder_unref(d);
	te_seq_unref(seq);
}

TEST_IF(decoder, bad_arguments_are_refused, is_host())
{
	struct te_seq *seq = model(0), *other;
	struct te_decoder *d;
	struct te_op *op;
	int32_t s;

#define BAD(code, text, set)                                                  \
	do {                                                                  \
		struct te_decoder_opts o = opts();                            \
		set;                                                          \
		fails(te_decoder_create(seq, &o, &d), code, text);            \
	} while (0)
	BAD(-EINVAL, "max_seqs is 0", o.max_seqs = 0);
	BAD(-EINVAL, "max_tokens is 0", o.max_tokens = 0);
	BAD(-EINVAL, "max_tokens is 71, but embedding emb has 70 positions", o.max_tokens = 71);
	BAD(-EINVAL, "chunk is 2, expected max_seqs, 3", o.chunk = 2);
	BAD(-EINVAL, "page is -1", o.page = -1);
	BAD(-EINVAL, "npages is -1", o.npages = -1);
	BAD(-EINVAL, "ntokens is 62, but there are 61 logits", o.ntokens = 62);
	BAD(-EINVAL, "flags are 0x3", o.flags = 3);
	BAD(-EINVAL, "flags are 0x6", o.flags = 6);
	BAD(-EINVAL, "flags are 0x8", o.flags = 8);
	BAD(-EOPNOTSUPP, "recipe fp8-current: decoding needs bf16, fp32, "
	    "fp8-block or mxfp8",
	    DO(te_recipe_from_name("fp8-current", &recipe)));
	DO(te_recipe_from_name("fp32", &recipe));
	fails(te_decoder_create(NULL, NULL, &d), -EINVAL, "seq is NULL");
	fails(te_decoder_create(seq, NULL, NULL), -EINVAL, "ret_d is NULL");
	DO(te_seq_create(ctx, &other));
	fails(te_decoder_create(other, NULL, &d), -TE_ESTATE, "te_seq_init has not run");
	DO(te_op_identity("i", &op));
	tt_append(other, op);
	DO(te_seq_init(other, 1));
	fails(te_decoder_create(other, NULL, &d), -EOPNOTSUPP, "the first op of the sequence");
	te_seq_unref(other);
#undef BAD
#define BAD(text, field, value)                                               \
	do {                                                                  \
		struct te_sampling how = TE_SAMPLING_INIT;                    \
		how.field = value;                                            \
		fails(te_decoder_open(d, &how, &s), -EINVAL, text);           \
	} while (0)
	{
		struct te_decoder_opts o = opts();

		DO(te_decoder_create(seq, &o, &d));
	}
	BAD("temperature is -1", temperature, -1);
	BAD("temperature is inf", temperature, INFINITY);
	BAD("top_p is 0", top_p, 0);
	BAD("top_p is 1.5", top_p, 1.5);
	BAD("min_p is 2", min_p, 2);
	BAD("top_k is -1", top_k, -1);
	BAD("repetition_penalty is 0", repetition_penalty, 0);
	fails(te_decoder_open(d, NULL, NULL), -EINVAL, "ret_s is NULL");
	fails((int)te_decoder_step(NULL), -EINVAL, "d is NULL");
	te_decoder_unref(d);
	te_seq_unref(seq);
}

TEST_IF(decoder, ops_that_mix_rows_are_refused_by_name, is_host())
{
	struct te_decoder *d;
	struct te_seq *seq;
	struct te_op *op;

	DO(te_op_embedding(&embedding, "again", &op));
	seq = bigrams(op);
	fails(te_decoder_create(seq, NULL, &d), -EOPNOTSUPP, "op again: is an embedding");
	te_seq_unref(seq);
}

static const struct te_attention_attrs not_decoded[] = {
	TE_ATTRS(attention, 2, 1, 4, .full = 1),
	TE_ATTRS(attention, 2, 1, 4, .head_dim_v = 4),
	TE_ATTRS(attention, 2, 1, 4, .bottom = 1),
	TE_ATTRS(attention, 2, 1, 4, .alibi = 1),
	TE_ATTRS(attention, 2, 1, 4, .bias_queries = 1, .bias_keys = 1),
};

TEST_EACH(decoder, attention_that_is_not_decoded_is_refused,
	  is_host() ? (int)TT_LEN(not_decoded) : 0)
{
	struct te_decoder *d;
	struct te_seq *seq;
	struct te_op *op;

	DO(te_op_attention(&not_decoded[_i], "attn", &op));
	seq = bigrams(op);
	fails(te_decoder_create(seq, NULL, &d), -EOPNOTSUPP,
	      "attention attn: has attributes that decoding does not implement");
	te_seq_unref(seq);
}

/* frequencies of later tokens depend on the length, and so would keys in the cache */
TEST_IF(decoder, dynamic_positions_limit_the_tokens, is_host())
{
	struct te_rope_attrs ra = TE_ATTRS(rope, 2, 1, 4, 1e4f, .dynamic_positions = 8,
					   .dynamic_factor = 2);
	struct te_decoder_opts o = opts();
	struct te_seq *seq;
	struct te_decoder *d;
	struct te_op *op;

	DO(te_op_rope(&ra, "turn", &op));
	seq = bigrams(op);
	o.max_tokens = 9;
	fails(te_decoder_create(seq, &o, &d), -EOPNOTSUPP, "max_tokens is 9, but decoding with "
	      "rope turn takes at most its dynamic_positions, 8");
	o.max_tokens = 8;
	DO(te_decoder_create(seq, &o, &d));
	te_decoder_unref(d);
	te_seq_unref(seq);
}

static int decodes(void)
{
	struct te_ctx *c = NULL;
	struct te_seq *seq = NULL;
	struct te_decoder *d = NULL;
	struct te_decoder_opts o = opts();
	const int32_t prompt[3] = { 1, 2, 3 };
	struct te_attention_attrs aa = TE_ATTRS(attention, 1, 1, 4, 0, 0, 0, 0, 0);
	struct te_linear_attrs ha = TE_ATTRS(linear, 4, VOCAB, 0.4f, 1, NULL);
	struct te_linear_attrs qa = TE_ATTRS(linear, 16, 12, 0.4f, 1, NULL);
	struct te_op *op[4] = { NULL };
	int32_t s, t;
	int r = tt_ctx_new(&c);

	if (!r)
		r = te_seq_create(c, &seq);
	if (!r)
		r = te_op_embedding(&embedding, "e", &op[0]);
	if (!r)
		r = te_op_linear(&qa, "qkv", &op[1]);
	if (!r)
		r = te_op_attention(&aa, "attn", &op[2]);
	if (!r)
		r = te_op_linear(&ha, "head", &op[3]);
	for (int i = 0; i < 4 && !r; i++)
		r = te_seq_append(seq, op[i]);
	if (!r)
		r = te_seq_init(seq, 1);
	o.recipe = NULL;
	o.max_seqs = 2;
	if (!r)
		r = te_decoder_create(seq, &o, &d);
	if (!r)
		r = te_decoder_open(d, NULL, &s);
	if (!r)
		r = te_decoder_push(d, s, prompt, 3);
	/* prompt, one token, one that is recorded, one by the recording */
	for (int i = 0; i < 4 && !r; i++) {
		r = (int)te_decoder_step(d);
		if (!r)
			r = te_decoder_take(d, s, &t) == 1 ? 0 : -1;
	}
	if (!r)
		r = te_decoder_fork(d, s, NULL, &s);
	if (!r)
		r = (int)te_decoder_step(d);
	if (!r)
		r = te_decoder_take(d, s, &t) == 1 ? 0 : -1;
	te_decoder_unref(d);
	for (int i = 0; i < 4; i++)
		te_op_unref(op[i]);
	te_seq_unref(seq);
	te_ctx_unref(c);
	return r;
}

CASE(faults, "host serial");

TEST_IF(faults, faults_are_reported, is_host())
{
	ck_assert_int_gt(tt_fault_each(decodes), 20);
}

TT_PAIR("plan/decoder", TT_ONE_PROCESS)
