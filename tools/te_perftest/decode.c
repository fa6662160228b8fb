/*
 * decode.c - te_perftest decode: one token of each of several sequences, of a Llama style model
 * with random weights, compared with reading the weights and the cache once.
 */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/decoder.h>
#include <te/tensor.h>

#include "bench.h"
#include "tools/lib/model.h"
#include "tools/lib/say.h"

static struct {
	int64_t layers, width, heads, kv_heads, inner, vocab, top_k;
	struct option_list seqs, context;
	double temperature;
	char *recipe, *kv_cache;
} opt;

static const struct option_field options[] = {
	{ "layers", OPTION_COUNT, AT(layers), "2", 1, 1000, 0, "N", "layers of the model" },
	{ "width", OPTION_COUNT, AT(width), "256", 2, 1 << 16, 0, "N", "width of a token" },
	{ "heads", OPTION_COUNT, AT(heads), "4", 1, 1024, 0, "N", "query heads" },
	{ "kv-heads", OPTION_COUNT, AT(kv_heads), "0", 0, 1024, 0, "N",
	  "key and value heads; 0: the same" },
	{ "inner", OPTION_COUNT, AT(inner), "0", 0, 1 << 20, 0, "N",
	  "inner width of the layers; 0: four times --width" },
	{ "vocab", OPTION_COUNT, AT(vocab), "256", 1, 1 << 20, 0, "N", "size of the vocabulary" },
	{ "seqs", OPTION_LIST, AT(seqs), "1,8", 1, 1024, 0, "N,...", "sequences of a step" },
	{ "context", OPTION_LIST, AT(context), "64", 1, 1 << 20, 0, "N,...",
	  "tokens of each sequence before the first step" },
	{ "recipe", OPTION_WORD, AT(recipe), "bf16", 0, 0, 0, "bf16|fp8-block",
	  "type of the weights" },
	{ "kv-cache", OPTION_WORD, AT(kv_cache), "bf16", 0, 0, 0, "bf16|fp8",
	  "type of keys and values" },
	{ "temperature", OPTION_REAL, AT(temperature), "0", 0, 1000, 0, "T",
	  "sampling temperature; 0: the most likely token" },
	{ "top-k", OPTION_COUNT, AT(top_k), "0", 0, 1 << 20, 0, "N",
	  "sample among so many tokens; 0: all" },
	{ 0 },
};

struct decode {
	struct bench *b;
	const struct model *model;
	const struct te_recipe *recipe;
	struct te_decoder *d;
	int64_t seqs, context;
};

static int model_make(struct bench *b, const struct te_recipe *recipe, struct model *m)
{
	struct te_seq_binding bind = TE_SEQ_BINDING_INIT;
	struct config cfg = config_defaults(FAMILY_LLAMA);
	int r;

	cfg.vocab = opt.vocab;
	cfg.layers = opt.layers;
	cfg.width = opt.width;
	cfg.heads = opt.heads;
	cfg.kv_heads = opt.kv_heads ? opt.kv_heads : opt.heads;
	cfg.head_dim = opt.width / opt.heads;
	cfg.inner = opt.inner ? opt.inner : 4 * opt.width;
	bind.flags = TE_SEQ_NO_GRADS | TE_SEQ_BF16_MASTERS;
	r = model_build(b->ctx, &cfg, m);
	if (r)
		return r;
	r = te_seq_bind(m->seq, &bind);
	if (r < 0)
		return say_te(r, "decode");
	r = model_store_codes(m, recipe, 0, 1, 1);
	return r ? r : model_init(m, (uint64_t)b->o->seed);
}

static int is_fp8_cache(void)
{
	return !strcmp(opt.kv_cache, "fp8");
}

static int decoder_make(struct decode *s)
{
	struct te_decoder_opts o = TE_DECODER_OPTS_INIT;
	int r;

	o.recipe = s->recipe;
	o.flags = is_fp8_cache() ? TE_DECODER_CACHE_E4M3 : 0;
	o.max_seqs = (int32_t)s->seqs;
	o.max_tokens = (int32_t)(s->context + s->b->o->iters + s->b->o->warmup + 2);
	o.ntokens = opt.vocab;
	r = te_decoder_create(s->model->seq, &o, &s->d);
	return r < 0 ? say_te(r, "decode") : STATUS_OK;
}

static int64_t compute(struct te_decoder *d)
{
	int64_t left;

	do
		left = te_decoder_step(d);
	while (left > 0);
	return left;
}

/*
 * Opens all sequences, each with a context of random tokens, whose last one has logits. Tokens
 * attend to all earlier ones, so that one sequence computes them; the others have copies of its
 * keys and values, and a last token of their own.
 */
static int read_contexts(struct decode *s)
{
	const size_t n = (size_t)(s->context + s->seqs - 1);
	struct te_sampling how = TE_SAMPLING_INIT;
	uint32_t *token = malloc(n * sizeof(*token));
	int64_t left;
	int32_t seq = 0;

	if (!token)
		return say_failed("out of memory");
	how.temperature = opt.temperature;
	how.top_k = (int32_t)opt.top_k;
	how.seed = (uint64_t)s->b->o->seed;
	bench_random(s->b, token, n * sizeof(*token));
	for (size_t k = 0; k < n; k++)
		token[k] %= (uint32_t)opt.vocab;
	left = te_decoder_open(s->d, &how, &seq);
	if (!left)
		left = te_decoder_push(s->d, seq, (const int32_t *)token, s->context - 1);
	if (!left)
		left = compute(s->d);
	for (int64_t i = 0; i < s->seqs && !left; i++) {
		if (i)
			left = te_decoder_fork(s->d, 0, &how, &seq);
		if (!left)
			left = te_decoder_push(s->d, seq,
					       (const int32_t *)token + s->context - 1 + i, 1);
	}
	if (!left)
		left = compute(s->d);
	free(token);
	return left < 0 ? say_te((int)left, "decode") : STATUS_OK;
}

/* us[0]: the step, us[1]: a token of each sequence and the step */
static int sample(void *arg, double *us)
{
	const struct decode *s = arg;
	const double begin = now_s();
	double middle;
	int64_t left;

	for (int32_t i = 0; i < (int32_t)s->seqs; i++) {
		int32_t token;
		int r = te_decoder_take(s->d, i, &token);

		if (r < 0)
			return r;
	}
	middle = now_s();
	left = te_decoder_step(s->d);
	us[1] = (now_s() - begin) * 1e6;
	us[0] = us[1] - (middle - begin) * 1e6;
	return left < 0 ? (int)left : 0;
}

/* weights without the embedding, and keys and values of the context; codes are of all linear layers
 * but the head, whose scales are few, and of an FP8 cache, which has a scale a head and token */
static double nbytes_of(const struct decode *s)
{
	const struct config *c = &s->model->cfg;
	const int64_t head = is_fp8_cache() ? c->head_dim + 1 : 2 * c->head_dim;
	const int64_t cache = 2 * c->layers * c->kv_heads * head * s->context;
	const int64_t inside = 2 * (c->heads + c->kv_heads) * c->head_dim + 3 * c->inner;
	const int fp8 = s->recipe->kind == TE_RECIPE_BLOCK;
	const int64_t codes = fp8 ? c->layers * c->width * inside : 0;

	return 2.0 * (double)(s->model->nparams - c->vocab * c->width) +
	       (double)(s->seqs * cache - codes);
}

static void report(struct decode *s, const struct stats us[2])
{
	const double rate = nbytes_of(s) / us[0].median * 1e6, peak = s->b->dev.peak_bandwidth;

	bench_text(s->b, "recipe", opt.recipe);
	bench_text(s->b, "kv_cache", opt.kv_cache);
	bench_int(s->b, "seqs", s->seqs);
	bench_int(s->b, "context", s->context);
	bench_int(s->b, "parameters", s->model->nparams);
	bench_stats(s->b, "step_us", &us[0]);
	bench_stats(s->b, "token_us", &us[1]);
	bench_num(s->b, "tokens_per_s", (double)s->seqs / us[1].median * 1e6);
	bench_num(s->b, "bytes_per_s", rate);
	bench_num(s->b, "bandwidth_ratio", peak > 0 ? rate / peak : NAN);
}

static int measure(struct bench *b, const struct model *m, const struct te_recipe *recipe,
		   int64_t seqs, int64_t context, int rows_left)
{
	struct decode s = { b, m, recipe, NULL, seqs, context };
	struct stats us[2];
	int r;

	if (!bench_row(b, rows_left, 1))
		return STATUS_OK;
	r = decoder_make(&s);
	if (!r)
		r = read_contexts(&s);
	if (!r)
		r = bench_series(b, sample, &s, 2, us);
	if (!r)
		report(&s, us);
	te_stream_sync(b->stream);
	te_decoder_unref(s.d);
	return r;
}

static int run(struct bench *b)
{
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct model m = { 0 };
	int left = opt.seqs.n * opt.context.n, r;

	if (opt.width % (2 * opt.heads))
		return say_bad("--width: %lld is no multiple of twice --heads %lld",
			       (long long)opt.width, (long long)opt.heads);
	if (opt.kv_heads && opt.heads % opt.kv_heads)
		return say_bad("--kv-heads: %lld heads are no multiple of %lld",
			       (long long)opt.heads, (long long)opt.kv_heads);
	r = te_recipe_from_name(opt.recipe, &recipe);
	if (r < 0)
		return say_te(r, "decode");
	r = model_make(b, &recipe, &m);
	for (int i = 0; i < opt.seqs.n && !r; i++)
		for (int k = 0; k < opt.context.n && !r; k++)
			r = measure(b, &m, &recipe, opt.seqs.v[i], opt.context.v[k], left--);
	model_free(&m);
	return r;
}

static const struct column columns[] = {
	{ "recipe", "\nrecipe", 0, 0 },
	{ "kv_cache", "\ncache", 0, 0 },
	{ "seqs", "\nseqs", 0, 0 },
	{ "context", "\ncontext", 0, 0 },
	{ "parameters", "parameters\nM", 1e-6, 0 },
	{ "step_us", "a step\nus", 0, 1 },
	{ "token_us", "with sampling\nus", 0, 1 },
	{ "tokens_per_s", "\ntokens/s", 0, 0 },
	{ "bytes_per_s", "read\nGB/s", 1e-9, 0 },
	{ "bandwidth_ratio", "of peak\n%", 100, 0 },
	{ NULL, NULL, 0, 0 },
};

const struct test test_decode = {
	.name = "decode",
	.text = "a token of each sequence, compared with reading the model once",
	.options = options,
	.values = &opt,
	.columns = columns,
	.run = run,
};
