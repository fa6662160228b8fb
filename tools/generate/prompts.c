/* prompts.c - prompts of options, files and standard input, and their tokens. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/generate/generate.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"

int no_memory(void)
{
	return say_failed("out of memory");
}

int run_is_bytes(const struct run *r)
{
	return !r->tokenizer && r->model.cfg.vocab <= NBYTES;
}

/* a job that has room for n tokens; NULL: no memory */
static struct job *add_job(struct run *r, int64_t n)
{
	struct job *more = realloc(r->job, (size_t)(r->njobs + 1) * sizeof(*more));

	if (!more)
		return NULL;
	r->job = more;
	more += r->njobs;
	*more = (struct job){ .seq = -1 };
	more->token = calloc((size_t)n + 1, sizeof(*more->token));
	if (!more->token)
		return NULL;
	r->njobs++;
	return more;
}

/* takes the reference; NULL: no memory */
static int add_messages(struct run *r, json_t *messages)
{
	struct job *j = messages ? add_job(r, 0) : NULL;

	if (!j) {
		json_decref(messages);
		return no_memory();
	}
	j->messages = messages;
	return STATUS_OK;
}

/* where: for messages */
int prompts_add_text(struct run *r, const char *text, const char *where)
{
	const size_t n = strlen(text);
	struct job *j;

	if (!n)
		return say_bad("%s: the prompt is empty", where);
	if (r->o.chat)
		return add_messages(r, talk_messages(r->seq < 0 ? r->o.system : NULL, text));
	j = add_job(r, (int64_t)n);
	if (j)
		j->text = strdup(text);
	return j && j->text ? STATUS_OK : no_memory();
}

/* encode the messages of a job; on standard input they may follow earlier ones */
static int encode_chat(struct run *r, struct job *j, const char *what)
{
	const int again = r->seq >= 0;
	char *text = NULL;
	size_t n = 0;
	int s = talk_text(&r->talk, j->messages, again, what, &text);

	free(j->token);
	j->token = NULL;
	if (!s)
		s = tokenizer_encode(r->tokenizer, what, text, strlen(text), 0, &j->token, &n);
	free(text);
	if (s)
		return s;
	/* the token that ended the answer is in the sequence */
	if (again && r->ended)
		memmove(j->token, j->token + 1, --n * sizeof(*j->token));
	j->nprompt = (int64_t)n;
	return STATUS_OK;
}

/* tokens of the text of prompt i, once the model is known */
static int encode(struct run *r, int64_t i)
{
	struct job *j = &r->job[i];
	const size_t n = j->text ? strlen(j->text) : 0;
	char what[40];

	snprintf(what, sizeof(what), "prompt %lld", (long long)i + 1);
	if (j->messages)
		return encode_chat(r, j, what);
	if (r->tokenizer) {
		int32_t *token;
		size_t ntokens;
		int s = tokenizer_encode(r->tokenizer, what, j->text, n, 1, &token, &ntokens);

		if (s)
			return s;
		free(j->token);
		j->token = token;
		j->nprompt = (int64_t)ntokens;
		return ntokens ? STATUS_OK : say_bad("%s: its text has no tokens", what);
	}
	if (!run_is_bytes(r))
		return say_bad("%s: is text, but the model's vocabulary of %lld is not bytes: give "
			       "a --tokenizer, or its tokens", what,
			       (long long)r->model.cfg.vocab);
	for (size_t k = 0; k < n; k++)
		j->token[k] = (unsigned char)j->text[k];
	j->nprompt = (int64_t)n;
	return STATUS_OK;
}

int prompts_add_list(struct run *r, const char *list)
{
	struct job *j = add_job(r, (int64_t)strlen(list));
	char *end = (char *)(uintptr_t)list;

	if (!j)
		return no_memory();
	for (const char *p = list;; p = end + 1) {
		const long long token = strtoll(p, &end, 10);

		if (*p < '0' || *p > '9' || (*end && *end != ',') || token > INT32_MAX)
			return say_bad("--prompt-tokens: \"%s\": expected token numbers such as "
				       "15496,995", list);
		j->token[j->nprompt++] = (int32_t)token;
		if (!*end)
			return STATUS_OK;
	}
}

static int add_object(void *arg, const json_t *obj, const char *where)
{
	struct run *r = arg;
	const json_t *tokens = json_object_get(obj, "tokens"), *e;
	json_t *messages = json_object_get(obj, "messages");
	const char *text = json_string_value(json_object_get(obj, "prompt"));
	struct job *j;
	size_t i;

	if (text)
		return prompts_add_text(r, text, where);
	if (r->o.chat && messages)
		return add_messages(r, json_incref(messages));
	if (!json_array_size(tokens))
		return say_bad("%s: expected \"prompt\", a text, or \"tokens\", a list", where);
	j = add_job(r, (int64_t)json_array_size(tokens));
	if (!j)
		return no_memory();
	json_array_foreach(tokens, i, e) {
		const json_int_t token = json_is_integer(e) ? json_integer_value(e) : -1;

		if (token < 0 || token > INT32_MAX)
			return say_bad("%s: token %zu is not a number of a token", where, i);
		j->token[j->nprompt++] = (int32_t)token;
	}
	return STATUS_OK;
}

int prompts_add_file(struct run *r)
{
	const int s = record_lines(r->o.file, add_object, r);

	return !s && !r->njobs ? say_bad("%s: has no prompts", r->o.file) : s;
}

/* tokens of the chat on standard input */
static int64_t length(const struct run *r)
{
	return r->seq >= 0 ? te_decoder_length(r->d, r->seq) : 0;
}

int prompts_check(struct run *r, int64_t first)
{
	for (int64_t i = first; i < r->njobs; i++) {
		const struct job *j = &r->job[i];
		const int s = j->text || j->messages ? encode(r, i) : STATUS_OK;

		if (s)
			return s;
		for (int64_t k = 0; k < j->nprompt; k++)
			if (j->token[k] >= r->model.cfg.vocab)
				return say_bad("prompt %lld: token %d is beyond the model's "
					       "vocabulary of %lld", (long long)i + 1,
					       (int)j->token[k], (long long)r->model.cfg.vocab);
		if (j->nprompt + length(r) >= r->context)
			return say_bad("prompt %lld: has %lld tokens, the context is %lld",
				       (long long)i + 1, (long long)(j->nprompt + length(r)),
				       (long long)r->context);
	}
	return STATUS_OK;
}
