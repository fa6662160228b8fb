/* jsonl.c - documents in JSON lines: texts, prompts with completions, messages of a chat. */
#include "config.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "jsonl.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"

#define CHUNK_NTOKENS 1024 /* tokens of a copy */

/* ---- documents ---- */

void docs_free(struct docs *d)
{
	if (d->map) {
		munmap(d->map, d->map_nbytes);
	} else {
		free(d->token);
		free(d->ignored);
	}
	memset(d, 0, sizeof(*d));
}

static int reserve(struct docs *d, size_t n)
{
	int64_t room = d->room ? d->room : 4096;
	int32_t *token;
	uint8_t *ignored;

	while (room < d->n + (int64_t)n)
		room *= 2;
	if (room == d->room)
		return STATUS_OK;
	token = realloc(d->token, (size_t)room * sizeof(*token));
	if (!token)
		return say_failed("out of memory");
	d->token = token;
	ignored = realloc(d->ignored, (size_t)room);
	if (!ignored)
		return say_failed("out of memory");
	d->ignored = ignored;
	d->room = room;
	return STATUS_OK;
}

int docs_add(struct docs *d, const int32_t *token, size_t n, int ignored)
{
	const int r = reserve(d, n);

	if (r || !n)
		return r;
	memcpy(d->token + d->n, token, n * sizeof(*token));
	memset(d->ignored + d->n, ignored, n);
	d->n += (int64_t)n;
	return STATUS_OK;
}

int docs_append(struct docs *d, const struct docs *more)
{
	const int r = reserve(d, (size_t)more->n);

	if (r || !more->n)
		return r;
	memcpy(d->token + d->n, more->token, (size_t)more->n * sizeof(*d->token));
	memcpy(d->ignored + d->n, more->ignored, (size_t)more->n);
	d->n += more->n;
	d->ntargets += more->ntargets;
	return STATUS_OK;
}

void docs_digest(struct docs *d, struct digest *all)
{
	uint8_t ignored[CHUNK_NTOKENS];
	int64_t m;

	for (int64_t at = 0; at < d->n; at += m) {
		m = d->n - at < CHUNK_NTOKENS ? d->n - at : CHUNK_NTOKENS;
		for (int64_t i = 0; i < m; i++)
			d->largest = d->token[at + i] > d->largest ? d->token[at + i] : d->largest;
		digest_add(all, d->token + at, (size_t)m * sizeof(*d->token));
	}
	/* 1 for each token that is no target, as earlier versions had */
	for (int64_t at = 0; at < d->n; at += m) {
		m = d->n - at < CHUNK_NTOKENS ? d->n - at : CHUNK_NTOKENS;
		for (int64_t i = 0; i < m; i++)
			ignored[i] = d->ignored[at + i] != DOCS_TARGET;
		digest_add(all, ignored, (size_t)m);
	}
}

/* a document that is being added */
struct doc {
	struct jsonl *j;
	int64_t first; /* index of its first token */
	char wrong[CHAT_NWRONG];
};

/* the failure of a document: the caller reports it with the line */
#define doc_bad(d, ...) (snprintf((d)->wrong, sizeof((d)->wrong), __VA_ARGS__), STATUS_BAD)

static int add_tokens(struct doc *d, const int32_t *token, size_t n, int target)
{
	struct docs *docs = d->j->docs;
	const int64_t at = docs->n;
	const int r = docs_add(docs, token, n, !target);

	if (r || !n)
		return r;
	docs->ignored[d->first] = DOCS_FIRST;
	if (target)
		docs->ntargets += docs->n - at - (at == d->first);
	return STATUS_OK;
}

/* tokens of the text that waits */
static int end_text(struct doc *d)
{
	struct jsonl *j = d->j;
	int32_t *token = NULL;
	size_t n = 0;
	int r;

	if (!j->ntext)
		return STATUS_OK;
	r = tokenizer_encode(j->tokenizer, j->name, j->text, j->ntext, 0, &token, &n);
	if (!r)
		r = add_tokens(d, token, n, j->text_target);
	free(token);
	j->ntext = 0;
	return r;
}

/* texts are joined up to where targets begin or end, so that tokens do not depend on the parts */
static int join_text(struct doc *d, const char *text, size_t n, int target)
{
	struct jsonl *j = d->j;
	int r = STATUS_OK;

	if (!n)
		return STATUS_OK;
	if (j->text_target != target)
		r = end_text(d);
	if (r)
		return r;
	if (j->text_room < j->ntext + n) {
		const size_t room = 2 * (j->ntext + n);
		char *p = realloc(j->text, room);

		if (!p)
			return say_failed("%s: out of memory", j->name);
		j->text = p;
		j->text_room = room;
	}
	memcpy(j->text + j->ntext, text, n);
	j->ntext += n;
	j->text_target = target;
	return STATUS_OK;
}

static int add_text(struct doc *d, const char *text, size_t n, int target)
{
	struct docs *docs = d->j->docs;
	int r = STATUS_OK;

	if (d->j->tokenizer)
		return join_text(d, text, n, target);
	r = reserve(docs, n);

	for (size_t i = 0; i < n && !r; i++, docs->n++) {
		docs->token[docs->n] = (uint8_t)text[i];
		docs->ignored[docs->n] = docs->n == d->first ? DOCS_FIRST :
					 target		     ? DOCS_TARGET :
							       DOCS_PROMPT;
		docs->ntargets += docs->ignored[docs->n] == DOCS_TARGET;
	}
	return r;
}

static int add_string(struct doc *d, const char *text, int target)
{
	return add_text(d, text, strlen(text), target);
}

static int add_field(struct doc *d, const json_t *obj, const char *key, int target)
{
	const json_t *v = json_object_get(obj, key);

	if (!json_is_string(v))
		return doc_bad(d, "\"%s\" is not a text", key);
	return add_text(d, json_string_value(v), json_string_length(v), target);
}

/* the writer of chat_messages() */
static int put_message(void *arg, const char *text, size_t n, int target)
{
	return add_text(arg, text, n, target);
}

/* after a text or a completion */
static int add_end(struct doc *d)
{
	const char *end = d->j->chat->end;
	const int32_t token = d->j->tokenizer ? tokenizer_end(d->j->tokenizer) : -1;
	int r;

	if (end || token < 0)
		return add_string(d, end ? end : "\n", 1);
	r = end_text(d);
	return r ? r : add_tokens(d, &token, 1, 1);
}

static int add_messages(struct doc *d, const json_t *messages)
{
	const int r = add_string(d, d->j->chat->begin, 0);

	return r ? r : chat_messages(d->j->chat, messages, put_message, d, d->wrong);
}

static int add_document(struct doc *d, const json_t *obj)
{
	const json_t *messages = json_object_get(obj, "messages");
	int r;

	if (messages)
		return add_messages(d, messages);
	if (json_object_get(obj, "prompt")) {
		r = add_field(d, obj, "prompt", 0);
		if (!r)
			r = add_field(d, obj, "completion", 1);
	} else if (json_object_get(obj, "text")) {
		r = add_field(d, obj, "text", 1);
	} else {
		r = doc_bad(d, "has neither \"text\", \"prompt\" nor \"messages\"");
	}
	return r ? r : add_end(d);
}

/* ---- lines ---- */

static int add_line(struct jsonl *j, const char *text, size_t n)
{
	struct doc d = { .j = j, .first = j->docs->n };
	json_error_t err;
	json_t *obj;
	int r;

	j->line++;
	if (strspn(text, " \t\r") == n)
		return STATUS_OK;
	obj = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &err);
	if (!obj)
		return say_bad("%s: line %lld: is not JSON: %s", j->name, (long long)j->line,
			       err.text);
	r = json_is_object(obj) ? add_document(&d, obj) : doc_bad(&d, "is not a JSON object");
	if (!r)
		r = end_text(&d);
	json_decref(obj);
	if (*d.wrong)
		say_bad("%s: line %lld: %s", j->name, (long long)j->line, d.wrong);
	return r;
}

/* keeps the n bytes, and a 0 after them */
static int keep(struct jsonl *j, const uint8_t *p, size_t n)
{
	if (j->room < j->npart + n + 1) {
		const size_t room = 2 * (j->npart + n + 1);
		char *part = realloc(j->part, room);

		if (!part)
			return say_failed("%s: out of memory", j->name);
		j->part = part;
		j->room = room;
	}
	memcpy(j->part + j->npart, p, n);
	j->npart += n;
	j->part[j->npart] = '\0';
	return STATUS_OK;
}

void jsonl_add(struct jsonl *j, const uint8_t *p, size_t n)
{
	while (n && !j->status) {
		const uint8_t *end = memchr(p, '\n', n);
		const size_t k = end ? (size_t)(end - p) : n;

		j->status = keep(j, p, k);
		if (!j->status && end) {
			j->status = add_line(j, j->part, j->npart);
			j->npart = 0;
		}
		p += k + (end != NULL);
		n -= k + (end != NULL);
	}
}

int jsonl_end(struct jsonl *j)
{
	if (!j->status && j->npart)
		j->status = add_line(j, j->part, j->npart);
	free(j->part);
	free(j->text);
	j->part = j->text = NULL;
	return j->status;
}
