/*
 * te_generate - text from a model, with a cache of keys and values.
 *
 * Prompts wait until a sequence of the decoder is free. Each step computes what is left of new
 * prompts and one token of each sequence that generates.
 */
#include "config.h"

#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/ctx.h>
#include <te/decoder.h>
#include <te/errno.h>

#include "tools/generate/generate.h"
#include "tools/lib/chat.h"
#include "tools/lib/clock.h"
#include "tools/lib/device.h"
#include "tools/lib/model_path.h"
#include "tools/lib/option.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"
#include "tools/lib/weights.h"

#define AT(field) offsetof(struct opts, field)
static const struct option_field options[] = {
	{ "Model", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "model", OPTION_TEXT, AT(model), NULL, 0, 0, 'm', "DIR|FILE",
	  "folder with config.json and its weights as safetensors, or a GGUF file" },
	{ "adapter", OPTION_TEXT, AT(adapter), NULL, 0, 0, 0, "DIR",
	  "LoRA adapter of te_train or PEFT, which is merged into the weights" },
	{ "tokenizer", OPTION_TEXT, AT(tokenizer), NULL, 0, 0, 0, "FILE|DIR",
	  "tokenizer of the model, if it is not in its folder or file" },
	{ "recipe", OPTION_WORD, AT(recipe), "bf16", 0, 0, 0, "bf16|fp32|fp8-block",
	  "type of weights and activations; fp8-block: the cache and the head are BF16" },
	{ "cache", OPTION_WORD, AT(cache), "auto", 0, 0, 0, "auto|bf16|fp32|fp8",
	  "type of keys and values in the cache; auto: of activations" },
	{ "backend", OPTION_WORD, AT(backend), NULL, 0, 0, 0, "auto|host|cuda",
	  "where to run (TE_BACKEND, else auto)" },
	{ "context", OPTION_INT, AT(context), "0", 0, 1 << 24, 0, "N",
	  "most tokens of a prompt and its text; 0: the model's, at most 2048" },
	{ "batch", OPTION_INT, AT(batch), "8", 1, 4096, 0, "N",
	  "prompts at a time" },
	{ "Prompts", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "prompt", OPTION_TEXT, AT(prompt), NULL, 0, 0, 'p', "TEXT", "one prompt" },
	{ "prompt-tokens", OPTION_TEXT, AT(prompt_tokens), NULL, 0, 0, 0, "LIST",
	  "one prompt as numbers of tokens, e.g. 15496,995" },
	{ "file", OPTION_TEXT, AT(file), NULL, 0, 0, 'f', "FILE",
	  "prompts, a JSON object with \"prompt\" or \"tokens\" on each line" },
	{ "interactive", OPTION_FLAG, AT(interactive), NULL, 0, 1, 'i', NULL,
	  "each line of standard input is a prompt" },
	{ "chat", OPTION_FLAG, AT(chat), NULL, 0, 1, 0, NULL,
	  "prompts are messages to a chat model; lines of standard input are one chat" },
	{ "system", OPTION_TEXT, AT(system), NULL, 0, 0, 0, "TEXT",
	  "with --chat: message of the system before the first one" },
	{ "chat-template", OPTION_WORD, AT(chat_template), "auto", 0, 0, 0, "auto|" CHAT_NAMES,
	  "with --chat: texts around messages; auto: of the model" },
	{ "eval-choices", OPTION_TEXT, AT(eval_choices), NULL, 0, 0, 0, "FILE",
	  "no text: accuracy in multiple-choice questions, in the format of HellaSwag" },
	{ "Text", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "max-tokens", OPTION_INT, AT(max_tokens), "0", 0, 1 << 24, 'n', "N",
	  "most tokens after each prompt; 0: 128, with --chat up to the context" },
	{ "temperature", OPTION_REAL, AT(temperature), "0", 0, 1e6, 't', "T",
	  "0: the most likely token" },
	{ "top-k", OPTION_INT, AT(top_k), "0", 0, INT32_MAX, 0, "K",
	  "choose among the K most likely tokens; 0: all" },
	{ "top-p", OPTION_REAL, AT(top_p), "1", 1e-9, 1, 0, "P",
	  "choose among the most likely tokens whose probabilities sum to P" },
	{ "min-p", OPTION_REAL, AT(min_p), "0", 0, 1, 0, "P",
	  "choose among tokens with P times the largest probability or more" },
	{ "repetition-penalty", OPTION_REAL, AT(repetition_penalty), "1", 1e-6, 1e6, 0, "R",
	  "factor that makes tokens of the text less likely" },
	{ "seed", OPTION_INT, AT(seed), "1337", 0, 1e15, 0, "N",
	  "seed of the first prompt; each later one adds 1" },
	{ "stop", OPTION_TEXT, AT(stop), NULL, 0, 0, 0, "TEXT",
	  "end each text before this text; \\n is a newline" },
	{ "json", OPTION_FLAG, AT(json), NULL, 0, 1, 0, NULL, "print one JSON object" },
	{ "logprobs", OPTION_FLAG, AT(logprobs), NULL, 0, 1, 0, NULL,
	  "with --json: log probability of each token" },
	{ 0 },
};
#undef AT

static const struct option_field *const tables[] = { options, NULL };
static const struct option_table table = {
	.usage = "usage: te_generate --model DIR|FILE --prompt TEXT | --file FILE | -i [options]\n"
		 "       te_generate --model DIR|FILE --chat [--prompt TEXT] [options]\n"
		 "       te_generate --model DIR|FILE --eval-choices FILE [options]\n"
		 "Generates text with a model: see te_generate(1).\n",
	.fields = tables,
};

/* ---- the model ---- */

static void read_ends(struct run *r)
{
	const json_t *eos = json_object_get(r->model.cfg.source, "eos_token_id"), *e;
	size_t i;

	if (json_is_integer(eos))
		r->eos[r->neos++] = (int32_t)json_integer_value(eos);
	json_array_foreach(eos, i, e)
		if (json_is_integer(e) && r->neos < NEOS)
			r->eos[r->neos++] = (int32_t)json_integer_value(e);
}

static int has_text(const struct run *r)
{
	for (int64_t i = 0; i < r->njobs; i++)
		if (r->job[i].text)
			return 1;
	return r->o.chat || r->o.interactive || r->o.eval_choices || r->stop;
}

/* the one that was asked for or, if a prompt is text and tokens are not bytes, the model's own */
static int open_tokenizer(struct run *r)
{
	const char *from = r->o.tokenizer;
	struct stat st;
	int s;

	if (!from && !run_is_bytes(r) && has_text(r) && !stat(r->o.model, &st) &&
	    (!S_ISDIR(st.st_mode) || tokenizer_in(r->o.model)))
		from = r->o.model;
	if (!from)
		return STATUS_OK;
	s = tokenizer_open(from, r->model.cfg.vocab, -1, &r->tokenizer);
	if (!s && tokenizer_end(r->tokenizer) >= 0 && r->neos < NEOS)
		r->eos[r->neos++] = tokenizer_end(r->tokenizer);
	return s;
}

static int open_talk(struct run *r)
{
	const struct opts *o = &r->o;
	const int s = talk_open(o->chat_template, o->tokenizer, o->model, r->tokenizer, &r->talk);

	r->neos -= !s && r->neos == NEOS;
	if (!s)
		r->eos[r->neos++] = r->talk.end;
	return s;
}

static int read_choices(struct run *r)
{
	r->choices.tokenizer = r->tokenizer;
	r->choices.vocab = r->model.cfg.vocab;
	r->choices.context = r->context;
	return choices_read(&r->choices, r->o.eval_choices);
}

static uint32_t cache_flag(const char *name)
{
	return !strcmp(name, "fp32") ? TE_DECODER_CACHE_FP32 :
	       !strcmp(name, "bf16") ? TE_DECODER_CACHE_BF16 :
	       !strcmp(name, "fp8")  ? TE_DECODER_CACHE_E4M3 :
				       0;
}

static int open_model(struct run *r)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_decoder_opts o = TE_DECODER_OPTS_INIT;
	struct te_recipe recipe = TE_RECIPE_INIT;
	struct config cfg = { 0 };
	int64_t most, nseqs;
	int te, s = model_path_check(r->o.model);

	if (!s)
		s = config_read(r->o.model, &cfg);
	if (s)
		return s;
	s = device_open(r->o.backend, &r->ctx);
	if (!s)
		s = model_build(r->ctx, &cfg, &r->model);
	config_free(&cfg);
	if (s)
		return s;
	read_ends(r);
	/* weights as the recipe reads them, from the files */
	b.flags = TE_SEQ_NO_GRADS | TE_SEQ_NO_DRAW;
	b.flags |= strcmp(r->o.recipe, "fp32") ? TE_SEQ_BF16_MASTERS : 0;
	te = te_recipe_from_name(r->o.recipe, &recipe);
	if (te >= 0)
		te = te_seq_bind(r->model.seq, &b);
	if (te < 0)
		return say_te(te, "%s", r->o.model);
	s = model_store_codes(&r->model, &recipe, 0, 1, 1);
	if (!s)
		s = model_init(&r->model, 0);
	if (!s)
		s = weights_read_folder(r->o.model, r->o.adapter, &r->model);
	if (s)
		return s;
	s = open_tokenizer(r);
	if (!s && r->o.chat)
		s = open_talk(r);
	if (!s && r->stop && !r->tokenizer && !run_is_bytes(r))
		s = say_bad("--stop: the model's tokens are numbers: give a --tokenizer");
	if (s)
		return s;
	most = config_positions(&r->model.cfg);
	r->context = r->o.context	    ? r->o.context :
		     most < DEFAULT_CONTEXT ? most :
					      DEFAULT_CONTEXT;
	if (r->context > most)
		return say_bad("--context %lld: the model has %lld positions",
			       (long long)r->context, (long long)most);
	if (r->o.eval_choices)
		s = read_choices(r);
	if (s)
		return s;
	o.recipe = &recipe;
	o.flags = cache_flag(r->o.cache);
	nseqs = r->o.eval_choices ? r->choices.nendings : r->njobs;
	o.max_seqs = (int32_t)(r->o.batch < nseqs ? r->o.batch : nseqs);
	o.max_seqs = o.max_seqs ? o.max_seqs : 1;
	o.max_tokens = (int32_t)(r->o.eval_choices ? r->choices.longest : r->context);
	o.ntokens = r->model.cfg.vocab;
	if (r->o.logprobs && !(r->logit = calloc((size_t)o.ntokens, sizeof(*r->logit))))
		return no_memory();
	te = te_decoder_create(r->model.seq, &o, &r->d);
	return te < 0 ? say_te(te, "%s", r->o.model) : STATUS_OK;
}

static int is_end(const struct run *r, int32_t token)
{
	for (int i = 0; i < r->neos; i++)
		if (r->eos[i] == token)
			return 1;
	return 0;
}

/* ---- generation ---- */

static int begin(struct run *r, int64_t i)
{
	struct job *j = &r->job[i];
	struct te_sampling how = TE_SAMPLING_INIT;
	const int64_t most = r->o.max_tokens < r->context ? r->o.max_tokens : r->context;
	int32_t *more = realloc(j->token, (size_t)(j->nprompt + most) * sizeof(*more));
	int te = 0;

	if (!more)
		return no_memory();
	j->token = more;
	if (r->o.logprobs && !(j->logprob = calloc((size_t)most + 1, sizeof(*j->logprob))))
		return no_memory();
	j->n = j->nprompt;
	j->end = NULL;
	how.temperature = r->o.temperature;
	how.top_k = (int32_t)r->o.top_k;
	how.top_p = r->o.top_p;
	how.min_p = r->o.min_p;
	how.repetition_penalty = r->o.repetition_penalty;
	how.seed = (uint64_t)(r->o.seed + i);
	j->seq = r->seq;
	if (j->seq < 0)
		te = te_decoder_open(r->d, &how, &j->seq);
	if (te >= 0)
		te = te_decoder_push(r->d, j->seq, j->token, j->n);
	return te < 0 ? say_te(te, "prompt %lld", (long long)i + 1) : STATUS_OK;
}

/* as te_decoder_take(); *ret_logprob: of the token, without sampling options, if it is wanted */
static int take(const struct run *r, int32_t seq, int32_t *ret_token, double *ret_logprob)
{
	const float *logit = NULL;
	int64_t n = 0;
	int te;

	if (r->o.logprobs)
		logit = te_decoder_logits(r->d, seq, &n);
	if (logit)
		memcpy(r->logit, logit, (size_t)n * sizeof(*logit));
	te = te_decoder_take(r->d, seq, ret_token);
	if (te > 0 && logit)
		*ret_logprob = choices_logprob(r->logit, n, *ret_token);
	return te;
}

/* takes the token of a job that is ready; ends the job if it is the last */
static int advance(struct run *r, struct job *j, int loud)
{
	double logprob = NAN;
	int32_t token;
	int s = STATUS_OK, te = take(r, j->seq, &token, &logprob);

	if (te <= 0)
		return te < 0 ? say_te(te, "generation") : STATUS_OK;
	r->ended = token == r->talk.end;
	if (is_end(r, token)) {
		j->end = "eos";
	} else {
		if (j->logprob)
			j->logprob[j->n - j->nprompt] = logprob;
		j->token[j->n++] = token;
		if (loud && !r->stop)
			s = text_put(r, token);
		if (j->n - j->nprompt == r->o.max_tokens)
			j->end = "length";
		else if (te_decoder_length(r->d, j->seq) == r->context)
			j->end = "context";
	}
	if (r->stop && !s)
		s = text_stop(r, j, loud);
	if (loud)
		fflush(stdout);
	if (!j->end)
		return s;
	if (r->o.chat && r->o.interactive)
		r->seq = j->seq;
	else
		te_decoder_close(r->d, j->seq);
	j->seq = -1;
	return s || !loud || r->stop ? s : text_put(r, -1);
}

/* jobs first and later; loud: each token is printed immediately */
static int generate(struct run *r, int64_t first, int loud)
{
	int64_t next = first, live = 0;
	int s = STATUS_OK;

	while (!s && (next < r->njobs || live)) {
		int64_t left, before = 0, generating = 0;
		double at;

		for (; next < r->njobs && live < r->o.batch && !s; next++, live++)
			s = begin(r, next);
		for (int64_t i = first; i < next && !s; i++) {
			const struct job *j = &r->job[i];

			if (j->seq >= 0 && j->n > j->nprompt)
				generating++;
			else if (j->seq >= 0)
				before++;
		}
		at = now_s();
		left = s ? 0 : te_decoder_step(r->d);
		if (left < 0)
			s = say_te((int)left, "generation");
		if (before && !generating)
			r->prefill_s += now_s() - at;
		else
			r->decode_s += now_s() - at;
		for (int64_t i = first; i < next && !s; i++) {
			struct job *j = &r->job[i];
			const int64_t had = j->n;

			if (j->seq < 0)
				continue;
			at = now_s();
			s = advance(r, j, loud);
			live -= j->seq < 0;
			r->decode_s += now_s() - at;
			if (had == j->nprompt && (j->n > had || j->end))
				r->nprefill += j->nprompt;
			else
				r->ndecoded += j->n - had;
		}
		if (!s && ferror(stdout))
			s = say_failed("standard output: %s", strerror(errno));
	}
	return s;
}

/* ---- output ---- */

static double rate(int64_t n, double s)
{
	return s > 0 ? (double)n / s : 0;
}

static int print_json(const struct run *r)
{
	struct record rec;

	record_begin(&rec);
	record_open_list(&rec, "texts");
	for (int64_t i = 0; i < r->njobs; i++) {
		const struct job *j = &r->job[i];
		char *text = NULL;
		size_t n = 0;
		int s = text_after(r, j, &text, &n);

		if (s) {
			record_drop(&rec);
			return s;
		}
		record_open(&rec, NULL);
		record_int(&rec, "prompt_tokens", j->nprompt);
		record_open_list(&rec, "tokens");
		for (int64_t k = j->nprompt; k < j->n; k++)
			record_int(&rec, NULL, j->token[k]);
		record_close(&rec);
		if (j->logprob) {
			record_open_list(&rec, "logprobs");
			for (int64_t k = 0; k < j->n - j->nprompt; k++)
				record_real(&rec, NULL, j->logprob[k]);
			record_close(&rec);
		}
		if (text)
			record_shown(&rec, "text", text, n);
		record_text(&rec, "end", j->end);
		record_close(&rec);
		free(text);
	}
	record_close(&rec);
	record_int(&rec, "prefill_tokens", r->nprefill);
	record_real(&rec, "prefill_tokens_per_s", rate(r->nprefill, r->prefill_s));
	record_int(&rec, "decoded_tokens", r->ndecoded);
	record_real(&rec, "decoded_tokens_per_s", rate(r->ndecoded, r->decode_s));
	return record_print(&rec, JSON_INDENT(2));
}

/* as getline(3), after a mark for the person who writes a chat */
static ssize_t next_line(const struct run *r, char **line, size_t *room)
{
	const int marks = r->o.chat && !r->o.json && isatty(STDIN_FILENO);
	ssize_t n;

	if (marks) {
		fputs("> ", stdout);
		fflush(stdout);
	}
	n = getline(line, room, stdin);
	if (marks && n < 0)
		putchar('\n');
	return n;
}

static int interactive(struct run *r)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t n;
	int s = STATUS_OK;

	while (!s && (n = next_line(r, &line, &room)) >= 0) {
		const int64_t first = r->njobs;

		if (n && line[n - 1] == '\n')
			line[--n] = '\0';
		if (!n)
			continue;
		s = prompts_add_text(r, line, "standard input");
		if (!s)
			s = prompts_check(r, first);
		if (!s)
			s = generate(r, first, !r->o.json);
		if (!s && !r->o.json)
			putchar('\n');
	}
	free(line);
	return s;
}

static int generate_all(struct run *r)
{
	const int loud = r->njobs == 1 && !r->o.json;
	int s = prompts_check(r, 0);

	if (!s && loud && r->o.prompt && !r->o.chat)
		fputs(r->o.prompt, stdout);
	if (!s)
		s = generate(r, 0, loud);
	for (int64_t i = 0; i < r->njobs && !s && !r->o.json; i++) {
		if (!loud)
			s = text_put_job(r, &r->job[i]);
		putchar('\n');
	}
	return s;
}

static int answer_choices(struct run *r)
{
	struct record rec;
	int s = choices_score(&r->choices, r->d, r->o.batch, 0, r->choices.nquestions);

	if (!s && r->o.json) {
		record_begin(&rec);
		choices_record(&r->choices, &rec);
		s = record_print(&rec, JSON_INDENT(2));
	} else if (!s) {
		choices_print(&r->choices);
	}
	return s;
}

static int run(struct run *r)
{
	struct opts *o = &r->o;
	int n = (o->prompt != NULL) + (o->prompt_tokens != NULL) + (o->file != NULL) +
		      (o->interactive != 0) + (o->eval_choices != NULL);
	int s = STATUS_OK;

	if (!o->model)
		return say_bad("no model: give --model; see --help");
	if (o->chat && (o->prompt_tokens || o->eval_choices))
		return say_bad("--chat excludes --prompt-tokens and --eval-choices");
	if (!o->chat && (o->system || strcmp(o->chat_template, "auto")))
		return say_bad("--system and --chat-template need --chat");
	if (o->eval_choices && (o->stop || o->logprobs))
		return say_bad("--eval-choices generates no text: it excludes --stop and "
			       "--logprobs");
	if (o->logprobs && !o->json)
		return say_bad("--logprobs needs --json");
	if (o->stop && !*o->stop)
		return say_bad("--stop: the text is empty");
	if (o->stop)
		s = chat_unescape("--stop", o->stop, &r->stop);
	if (s)
		return s;
	if (o->chat && !n)
		n = (int)(o->interactive = 1);
	if (!o->max_tokens)
		o->max_tokens = o->chat ? 1 << 24 : 128;
	if (!n)
		return say_bad("one of --prompt, --prompt-tokens, --file, --interactive, "
			       "--chat and --eval-choices is needed");
	if (n > 1)
		return say_bad("--prompt, --prompt-tokens, --file, --interactive and "
			       "--eval-choices exclude each other");
	if (o->prompt)
		s = prompts_add_text(r, o->prompt, "--prompt");
	else if (o->prompt_tokens)
		s = prompts_add_list(r, o->prompt_tokens);
	else if (o->file)
		s = prompts_add_file(r);
	if (!s)
		s = open_model(r);
	if (!s)
		s = o->eval_choices ? answer_choices(r) :
		    o->interactive  ? interactive(r) :
				      generate_all(r);
	if (!s && o->json && !o->eval_choices)
		s = print_json(r);
	if (!s && (fflush(stdout) || ferror(stdout)))
		s = say_failed("standard output: %s", strerror(errno));
	if (!s && !o->json && !o->eval_choices)
		say_note("prompts: %lld tokens, %.1f a second; text: %lld tokens, %.1f a second",
			 (long long)r->nprefill, rate(r->nprefill, r->prefill_s),
			 (long long)r->ndecoded, rate(r->ndecoded, r->decode_s));
	return s;
}

int main(int argc, char **argv)
{
	struct run r = { .seq = -1, .talk.end = -1 };
	int s;

	signal(SIGPIPE, SIG_IGN);
#ifdef M_MMAP_THRESHOLD
	/* by default glibc keeps freed buffers of the size of a weight, about 40 MB of them */
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
	say_as("te_generate");
	if (option_parse(&table, &r.o, argc, argv, &s))
		return s;
	s = optind < argc ? say_bad("\"%s\": unexpected argument", argv[optind]) : say_params();
	if (!s)
		s = run(&r);
	te_decoder_unref(r.d);
	choices_free(&r.choices);
	talk_close(&r.talk);
	model_free(&r.model);
	te_ctx_unref(r.ctx);
	tokenizer_close(r.tokenizer);
	for (int64_t i = 0; i < r.njobs; i++) {
		free(r.job[i].text);
		json_decref(r.job[i].messages);
		free(r.job[i].token);
		free(r.job[i].logprob);
	}
	free(r.job);
	free(r.stop);
	free(r.logit);
	option_free(options, &r.o);
	return s;
}
