/*
 * step.c - te_perftest step: a training step of a GPT-2 style model, from clearing the gradients
 * to updated weights, replayed and queued call by call.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/optim.h>
#include <te/plan.h>
#include <te/quant.h>
#include <te/tensor.h>

#include "replay.h"
#include "tools/lib/model.h"
#include "tools/lib/say.h"

/* steps of each side that --verify compares */
#define NVERIFIED 3

static struct {
	uint32_t edges, recipe;
	int64_t layers, width, heads, vocab, batch, seq_len;
} opt;

static const struct option_field options[] = {
	EDGES_OPTION,
	{ "recipe", OPTION_WORDS, AT(recipe), "bf16,fp8-delayed", 0, 0, 0, TE_RECIPE_NAMES "|auto",
	  "number formats" },
	{ "layers", OPTION_COUNT, AT(layers), "12", 1, 1000, 0, "N", "layers of the model" },
	{ "width", OPTION_COUNT, AT(width), "256", 2, 1 << 16, 0, "N", "width of a token" },
	{ "heads", OPTION_COUNT, AT(heads), "4", 1, 1024, 0, "N", "attention heads" },
	{ "vocab", OPTION_COUNT, AT(vocab), "256", 1, 1 << 20, 0, "N", "size of the vocabulary" },
	{ "batch", OPTION_COUNT, AT(batch), "1", 1, 1 << 16, 0, "N", "sequences of a step" },
	{ "seq-len", OPTION_COUNT, AT(seq_len), "64", 1, 1 << 16, 0, "N", "tokens of a sequence" },
	{ 0 },
};

struct step {
	struct bench *b;
	struct model model;
	struct te_plan *plan;
	struct te_adamw *opt;
};

static int queue(void *arg)
{
	struct step *s = arg;
	struct te_stream *st = s->b->stream;
	int r = te_seq_zero_grads(s->model.seq, st);

	if (r >= 0)
		r = te_plan_forward(s->plan, st, 0);
	if (r >= 0)
		r = te_plan_backward(s->plan, st);
	return r < 0 ? r : te_adamw_step(s->opt, st);
}

static int write_tokens(struct step *s, const char *input, const int32_t *token)
{
	struct te_tensor *t = te_plan_input(s->plan, input);

	return te_tensor_write(t, token, te_tensor_nbytes(t));
}

/* objects with the same seed have the same initial weights */
static int step_create(struct step *s, const char *recipe, const int32_t *tokens)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct config cfg = config_defaults(FAMILY_GPT2);
	int r;

	cfg.vocab = opt.vocab;
	cfg.layers = opt.layers;
	cfg.width = opt.width;
	cfg.heads = cfg.kv_heads = opt.heads;
	cfg.head_dim = opt.width / opt.heads;
	cfg.inner = 4 * opt.width;
	cfg.max_pos = opt.seq_len;
	cfg.drop_embd = cfg.drop_resid = cfg.drop_attn = 0;
	r = model_create(s->b->ctx, &cfg, (uint64_t)s->b->o->seed, &s->model);
	if (r)
		return r;
	r = te_recipe_from_name(recipe, &rec);
	po.recipe = &rec;
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { opt.batch, opt.seq_len } };
	po.flags = TE_PLAN_TRAIN;
	if (r >= 0)
		r = te_plan_create(s->model.seq, &po, &s->plan);
	if (r >= 0)
		r = te_adamw_create(s->model.seq, NULL, &s->opt);
	if (r >= 0)
		r = te_adamw_set_lr(s->opt, s->b->stream, 1e-4f);
	if (r >= 0)
		r = write_tokens(s, "x", tokens);
	if (r >= 0)
		r = write_tokens(s, MODEL_TARGETS, tokens + opt.batch * opt.seq_len);
	return r < 0 ? say_te(r, "step: %s", recipe) : STATUS_OK;
}

static void step_free(struct step *s)
{
	te_stream_sync(s->b->stream);
	te_adamw_unref(s->opt);
	te_plan_unref(s->plan);
	model_free(&s->model);
}

/* inputs, then targets */
static int32_t *make_tokens(struct bench *b)
{
	size_t n = 2 * (size_t)(opt.batch * opt.seq_len);
	uint32_t *t = malloc(n * sizeof(*t));

	if (!t)
		return NULL;
	bench_random(b, t, n * sizeof(*t));
	for (size_t i = 0; i < n; i++)
		t[i] %= (uint32_t)opt.vocab;
	return (int32_t *)t;
}

static int run_steps(struct bench *b, bench_work work, void *arg)
{
	int r = 0;

	for (int i = 0; i < NVERIFIED && r >= 0; i++)
		r = work(arg);
	return bench_idle(b, r);
}

/* a second model, queued call by call, has the same weights after as many steps */
static int verify(struct step *s, struct replay *p, const char *recipe, const int32_t *tokens)
{
	struct step eager = { .b = s->b };
	size_t nbytes = te_tensor_nbytes(te_seq_masters(s->model.seq));
	void *got = malloc(nbytes), *want = malloc(nbytes);
	int r = step_create(&eager, recipe, tokens), code;

	if (!r && (!got || !want))
		r = say_failed("out of memory");
	if (r)
		goto out;
	code = run_steps(s->b, queue, &eager);
	if (code >= 0)
		code = te_tensor_read(te_seq_masters(eager.model.seq), want, nbytes);
	if (code >= 0)
		code = replay_record(p);
	if (code >= 0)
		code = run_steps(s->b, replay_launch, p);
	if (code >= 0)
		code = te_tensor_read(te_seq_masters(s->model.seq), got, nbytes);
	r = code < 0 ? say_te(code, "verify") :
		       bench_equal("weights after replayed steps", got, want, nbytes);
out:
	step_free(&eager);
	free(got);
	free(want);
	return r;
}

static int measure(struct bench *b, const char *recipe, uint32_t edges, int rows_left,
		   const int32_t *tokens)
{
	struct step s = { .b = b };
	struct replay p = { .b = b, .queue = queue, .arg = &s, .edges = edges };
	int r;

	if (!bench_row(b, rows_left, REPLAY_SERIES))
		return STATUS_OK;
	bench_text(b, "recipe", recipe);
	replay_row(&p);
	r = step_create(&s, recipe, tokens);
	if (!r && b->o->verify)
		r = verify(&s, &p, recipe, tokens);
	if (!r)
		bench_int(b, "parameters", s.model.nparams);
	if (!r)
		r = replay_measure(&p);
	te_stream_sync(b->stream);
	replay_free(&p);
	step_free(&s);
	return r;
}

static int run(struct bench *b)
{
	int rows = __builtin_popcount(opt.recipe) * __builtin_popcount(opt.edges), r = STATUS_OK;
	const char *next = TE_RECIPE_NAMES "|auto";
	int32_t *tokens;

	if (opt.width % (2 * opt.heads))
		return say_bad("--width: %lld is no multiple of twice --heads %lld",
			       (long long)opt.width, (long long)opt.heads);
	tokens = make_tokens(b);
	if (!tokens)
		return say_failed("out of memory");
	for (uint32_t i = 0; *next && !r; i++) {
		char recipe[32];

		snprintf(recipe, sizeof(recipe), "%.*s", (int)strcspn(next, "|"), next);
		next += strlen(recipe);
		next += *next == '|';
		if (!strcmp(recipe, "auto") && opt.recipe & 1u << i) {
			struct te_recipe chosen = TE_RECIPE_INIT;

			say_note("--recipe auto is %s", te_recipe_for_device(&b->dev, &chosen));
			snprintf(recipe, sizeof(recipe), "%s", te_recipe_name(&chosen));
		}
		for (uint32_t edges = 0; opt.recipe & 1u << i && !r && edges < REPLAY_EDGES;
		     edges++)
			if (opt.edges & 1u << edges)
				r = measure(b, recipe, edges, rows--, tokens);
	}
	free(tokens);
	return r;
}

const struct test test_step = {
	.name = "step",
	.text = "a training step of a GPT-2 style model, replayed and queued call by call",
	.options = options,
	.values = &opt,
	.columns = replay_columns,
	.run = run,
};
