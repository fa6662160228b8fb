/* sample.c - text generation, one token at a time over a sliding window. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/collective.h>
#include <te/errno.h>

#include "sample.h"
#include "tools/lib/say.h"
#include "tools/lib/shard.h"
#include "tools/lib/stop.h"
#include "tools/lib/tokens.h"

/* a plan without the loss: its output is the logits [model_fewest(), T, vocab_padded] */
static int make_plan(struct trainer *t, struct te_plan **ret_plan)
{
	struct te_plan_opts po = TE_PLAN_OPTS_INIT;
	int r;

	po.recipe = &t->recipe;
	po.x = (struct te_spec){ TE_DTYPE_INT32, 2, { model_fewest(&t->now.model), t->T } };
	po.stop_before = MODEL_LOSS;
	r = te_plan_create(t->now.model.seq, &po, ret_plan);
	return r < 0 ? say_te(r, "sampling cannot be planned") : STATUS_OK;
}

/* The logits of one position, of the device, and what ranks that divide a model gather: the logits
 * of all of them, and whether one of them is to stop. */
struct logits {
	void *raw; /* host memory */
	void *all; /* device memory, like word; NULL: the model is whole */
	int32_t *word;
};

static int make_logits(struct trainer *t, struct logits *l)
{
	const size_t nbytes =
		(size_t)(t->now.model.nshards * t->now.model.vocab_padded) * sizeof(float);
	void *word = NULL;
	int te = 0;

	l->raw = malloc(nbytes);
	if (!l->raw)
		return say_failed("out of memory");
	if (t->now.model.comm)
		te = te_mem_alloc(t->stream, nbytes, &l->all);
	if (t->now.model.comm && te >= 0)
		te = te_mem_alloc(t->stream, sizeof(*l->word), &word);
	l->word = word;
	return te < 0 ? say_te(te, "sampling") : STATUS_OK;
}

static void drop_logits(struct trainer *t, struct logits *l)
{
	if (l->word)
		te_mem_free(t->stream, l->word);
	if (l->all)
		te_mem_free(t->stream, l->all);
	free(l->raw);
}

/* on all ranks if on one of them */
static int is_stopped(struct trainer *t, const struct logits *l, int *ret_stop)
{
	int32_t stop = stop_at(t->now.done.step);
	int te = 0;

	if (l->word) {
		te = te_copy(t->stream, l->word, &stop, sizeof(stop));
		if (te >= 0)
			te = te_comm_allreduce(t->now.model.comm, t->stream, l->word, l->word, 1,
					       TE_DTYPE_INT32, TE_COMM_MAX, NULL);
		if (te >= 0)
			te = te_copy(t->stream, &stop, l->word, sizeof(stop));
		te = settle(t->stream, te);
		if (te >= 0)
			te = te_comm_error(t->now.model.comm);
	}
	*ret_stop = stop;
	return te;
}

/* logits after the tokens so far, as floats; the same on all ranks of the model */
static int logits_at(struct trainer *t, struct te_plan *plan, int64_t pos, const struct logits *l,
		     float *dst)
{
	struct te_tensor *out = te_plan_output(plan);
	size_t width = te_dtype_nbytes(te_tensor_dtype(out));
	size_t nbytes = (size_t)t->now.model.vocab_padded * width;
	const char *row = (char *)te_tensor_data(out) + (size_t)pos * nbytes;
	const void *raw = l->raw;
	int r = 0;

	if (l->all) {
		r = te_comm_all_gather(t->now.model.comm, t->stream, row, l->all, (int64_t)nbytes,
				       TE_DTYPE_UINT8, NULL);
		row = l->all;
	}
	if (r >= 0)
		r = te_copy(t->stream, l->raw, row, (size_t)t->now.model.nshards * nbytes);
	if (r >= 0)
		r = te_stream_sync(t->stream);
	if (r >= 0 && l->all)
		r = te_comm_error(t->now.model.comm);
	for (int64_t i = 0; i < t->now.model.cfg.vocab && r >= 0; i++) {
		if (width == 4)
			dst[i] = ((const float *)raw)[i];
		else
			dst[i] = te_bf16_decode(((const uint16_t *)raw)[i]);
	}
	return r;
}

/* such logits have no order, and so no likely token */
static int check_logits(const struct trainer *t, const float *logits)
{
	char what[64];

	for (int64_t i = 0; i < t->now.model.cfg.vocab; i++) {
		if (isfinite(logits[i]))
			continue;
		snprintf(what, sizeof(what), "the sample ends: the logit of token %lld",
			 (long long)i);
		return trainer_not_finite(t, what, (double)logits[i], "there is no likely token");
	}
	return STATUS_OK;
}

/* falling logits; equal ones in the order of their ids */
static int compare(const void *pa, const void *pb)
{
	const struct candidate *a = pa, *b = pb;

	if (a->logit != b->logit)
		return a->logit < b->logit ? 1 : -1;
	return a->id < b->id ? -1 : 1;
}

int64_t sample_choose(const struct sampling *s, const float *logits, int64_t n, double u,
		      struct candidate *room)
{
	double sum = 0, kept = 0;
	int64_t k;

	for (int64_t i = 0; i < n; i++)
		room[i] = (struct candidate){ logits[i], i };
	qsort(room, (size_t)n, sizeof(*room), compare);
	if (s->temperature == 0)
		return room[0].id;
	n = s->top_k && s->top_k < n ? s->top_k : n;
	for (int64_t i = n - 1; i >= 0; i--) {
		room[i].logit = expf((float)((room[i].logit - room[0].logit) / s->temperature));
		sum += room[i].logit;
	}
	for (k = 0; k < n && (!k || kept < s->top_p * sum); k++)
		kept += room[k].logit;
	for (int64_t i = 0; i < k; i++) {
		u -= room[i].logit / kept;
		if (u < 0)
			return room[i].id;
	}
	return room[0].id;
}

struct text {
	char *p; /* NULL before the first text */
	size_t n, room;
	int loud; /* print each token immediately */
};

static int put(struct text *text, const char *s, size_t n)
{
	if (text->n + n >= text->room) {
		const size_t room = 2 * (text->n + n) + 64;
		char *p = realloc(text->p, room);

		if (!p)
			return say_failed("out of memory");
		text->p = p;
		text->room = room;
	}
	memcpy(text->p + text->n, s, n);
	text->n += n;
	text->p[text->n] = '\0';
	if (text->loud) {
		fwrite(s, 1, n, stdout);
		fflush(stdout);
	}
	return STATUS_OK;
}

/* a byte of text; control characters would change what a terminal does */
static char shown(uint8_t c)
{
	return (c < ' ' && c != '\n' && c != '\t') || c == 127 ? '?' : (char)c;
}

/* token -1: what is left of the text */
static int put_decoded(struct text *text, struct tokenizer *tokenizer, int32_t token)
{
	char *s = NULL;
	size_t n = 0;
	int r = tokenizer_decode(tokenizer, token, &s, &n);

	for (size_t i = 0; i < n && !r; i++)
		s[i] = shown((uint8_t)s[i]);
	if (!r)
		r = put(text, s, n);
	free(s);
	return r;
}

static int put_token(struct text *text, struct tokenizer *tokenizer, int32_t token, int bytes)
{
	char s[16];

	if (tokenizer)
		return put_decoded(text, tokenizer, token);
	if (!bytes)
		return put(text, s, (size_t)snprintf(s, sizeof(s), "%d ", (int)token));
	s[0] = shown((uint8_t)token);
	return put(text, s, 1);
}

static int is_bytes(const struct config *cfg)
{
	return cfg->vocab <= DATA_NBYTES;
}

static int check_token(const char *option, int64_t token, const struct config *cfg)
{
	if (token < cfg->vocab)
		return STATUS_OK;
	return say_bad("%s: token %lld is beyond the model's vocabulary of %lld", option,
		       (long long)token, (long long)cfg->vocab);
}

/* token numbers with commas between them; dst: room for all, or NULL */
static int parse_tokens(const char *list, const struct config *cfg, int32_t *dst, int64_t *ret_n)
{
	static const char option[] = "--prompt-tokens";
	char *end = (char *)(uintptr_t)list;
	int64_t n = 0;

	for (const char *p = list;; p = end + 1, n++) {
		int64_t token = strtoll(p, &end, 10);
		int r;

		if (*p < '0' || *p > '9' || (*end && *end != ','))
			return say_bad("%s: \"%s\": expected token numbers such as 15496,995",
				       option, list);
		r = check_token(option, token, cfg);
		if (r)
			return r;
		if (dst)
			dst[n] = (int32_t)token;
		if (!*end)
			break;
	}
	*ret_n = n + 1;
	return STATUS_OK;
}

int sample_check_prompt(const struct opts *o, const struct tokenizer *tokenizer,
			const struct config *cfg)
{
	int64_t n;
	int r = STATUS_OK;

	if (o->prompt && o->prompt_tokens)
		return say_bad("--prompt and --prompt-tokens exclude each other");
	if (o->prompt && !tokenizer && !is_bytes(cfg))
		return say_bad("--prompt: is text, but the model's vocabulary of %lld is not "
			       "bytes: give a --tokenizer, or its tokens by --prompt-tokens",
			       (long long)cfg->vocab);
	for (const char *p = o->prompt && !tokenizer ? o->prompt : ""; *p && !r; p++)
		r = check_token("--prompt", (unsigned char)*p, cfg);
	return !r && o->prompt_tokens ? parse_tokens(o->prompt_tokens, cfg, NULL, &n) : r;
}

/* the first token of texts if tokens are not bytes, or 0 */
static int32_t first_token(const struct trainer *t)
{
	const struct config *cfg = &t->now.model.cfg;
	const int64_t token =
		is_bytes(cfg) && !t->tokenizer ?
			'\n' :
			json_integer_value(json_object_get(cfg->source, "bos_token_id"));

	return token >= 0 && token < cfg->vocab ? (int32_t)token : 0;
}

/* the tokens that samples begin with, for free(3) */
static int make_prompt(const struct trainer *t, int32_t **ret_token, int64_t *ret_n)
{
	const struct opts *o = t->o;
	const struct config *cfg = &t->now.model.cfg;
	const char *text = o->prompt_tokens ? o->prompt_tokens : o->prompt ? o->prompt : "";
	int32_t *token;

	*ret_n = 0;
	if (t->tokenizer && *text && !o->prompt_tokens) {
		size_t n;
		int r = tokenizer_encode(t->tokenizer, "--prompt", text, strlen(text), 0,
					 ret_token, &n);

		*ret_n = r ? 0 : (int64_t)n;
		if (r || n)
			return r;
		free(*ret_token); /* a tokenizer may remove all of a text */
		text = "";
	}
	token = malloc((strlen(text) + 1) * sizeof(*token));
	*ret_token = token;
	if (!token)
		return say_failed("out of memory");
	if (o->prompt_tokens)
		(void)parse_tokens(text, cfg, token, ret_n); /* checked before */
	else
		while (text[*ret_n]) {
			token[*ret_n] = (unsigned char)text[*ret_n];
			++*ret_n;
		}
	if (!*ret_n)
		token[(*ret_n)++] = o->prompt && !t->tokenizer ? 0 : first_token(t);
	return STATUS_OK;
}

static int write_tokens(struct trainer *t, struct te_plan *plan, struct text *text)
{
	const struct config *cfg = &t->now.model.cfg;
	struct te_tensor *x = te_plan_input(plan, "x");
	struct te_tensor *documents = cfg->documents ? te_plan_input(plan, MODEL_DOCUMENTS) : NULL;
	int64_t len = 0, n = 0;
	int bytes = is_bytes(cfg), r, te;
	int32_t *prompt = NULL;
	/* tokens of the first sequence; others that a batch needs have token 0 */
	int32_t *window = calloc((size_t)(model_fewest(&t->now.model) * t->T), sizeof(*window));
	float *logits = malloc((size_t)t->now.model.cfg.vocab * sizeof(*logits));
	struct logits l = { 0 };
	struct candidate *room = malloc((size_t)t->now.model.cfg.vocab * sizeof(*room));
	const struct sampling how = { t->o->temperature, t->o->top_k, t->o->top_p };

	r = make_prompt(t, &prompt, &len);
	if (!r)
		r = make_logits(t, &l);
	if (!r && (!window || !logits || !room))
		r = say_failed("out of memory");
	/* the context is the last T tokens */
	for (int64_t i = len > t->T ? len - t->T : 0; i < len && !r; i++)
		window[n++] = prompt[i];
	if (!r && t->o->prompt)
		r = put(text, t->o->prompt, strlen(t->o->prompt));
	for (int64_t i = 0; i < len && t->o->prompt_tokens && !r; i++)
		r = put_token(text, t->tokenizer, prompt[i], bytes);
	for (int64_t i = 0; i < t->o->sample && !r; i++) {
		uint64_t u =
			mix64(mix64((uint64_t)t->o->seed, (uint64_t)t->now.done.step), (uint64_t)i);
		int32_t token;
		int stop;

		te = is_stopped(t, &l, &stop);
		if (te >= 0 && stop) {
			t->now.interrupted = 1;
			break;
		}
		if (te >= 0)
			te = te_tensor_write(x, window, te_tensor_nbytes(x));
		if (te >= 0 && documents) /* one */
			te = te_fill(t->stream, te_tensor_data(documents), 0,
				     te_tensor_nbytes(documents));
		if (te >= 0)
			te = te_plan_forward(plan, t->stream, 0);
		if (te >= 0)
			te = logits_at(t, plan, n - 1, &l, logits);
		if (te < 0) {
			r = say_te(te, "sampling");
			break;
		}
		r = check_logits(t, logits);
		if (r)
			break;
		token = (int32_t)sample_choose(&how, logits, t->now.model.cfg.vocab,
					       (double)(u >> 11) * 0x1p-53, room);
		r = put_token(text, t->tokenizer, token, bytes);
		if (n == t->T)
			memmove(window, window + 1, (size_t)(--n) * sizeof(*window));
		window[n++] = token;
	}
	if (!r && t->tokenizer)
		r = put_decoded(text, t->tokenizer, -1);
	drop_logits(t, &l);
	free(room);
	free(logits);
	free(window);
	free(prompt);
	return r;
}

int sample(struct trainer *t, struct record *samples)
{
	struct text text = { .loud = !samples && !t->ranks.rank };
	struct te_plan *plan = NULL;
	int r;

	if (!t->o->sample || t->ranks.data_rank)
		return STATUS_OK;
	stop_phase(STOP_SAMPLE, t->now.done.step, 0);
	r = make_plan(t, &plan);
	if (!r)
		r = put(&text, "", 0);
	if (!r)
		r = write_tokens(t, plan, &text);
	if (!r && text.loud)
		putchar('\n');
	if (!r && text.loud && (fflush(stdout) || ferror(stdout)))
		r = say_failed("standard output: %s", strerror(errno));
	if (!r && samples && !t->ranks.rank)
		record_shown(samples, NULL, text.p, text.n);
	te_plan_unref(plan);
	free(text.p);
	return r;
}
