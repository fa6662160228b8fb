/* talk.c - a conversation with a model: its template, and the texts that follow each other. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "talk.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"

static int no_room(void)
{
	return say_failed("out of memory");
}

/* the template of a tokenizer or model */
static int detect(const char *tokenizer, const char *model, const char **ret_name)
{
	char *source = NULL;
	int r = tokenizer ? chat_source(tokenizer, &source) : STATUS_OK;

	if (!r && !source)
		r = chat_source(model, &source);
	if (r)
		return r;
	*ret_name = source ? chat_name(source) : NULL;
	if (!*ret_name)
		r = say_bad("%s: its template of chats is %s: give one of " CHAT_NAMES
			    " as --chat-template", model,
			    source ? "not implemented" : "not known");
	free(source);
	return r;
}

/* the token that ends an answer */
static int find_end(const char *name, const struct tokenizer *t, struct talk *k)
{
	const size_t n = strcspn(k->after, " \n");
	int32_t *token = NULL;
	size_t ntokens = 0;
	int r = tokenizer_encode(t, "--chat", k->after, n, 0, &token, &ntokens);

	if (!r && ntokens != 1)
		r = say_bad("--chat: the tokenizer has no token \"%.*s\", which ends an answer in "
			    "the template %s", (int)n, k->after, name);
	if (!r)
		k->end = *token;
	free(token);
	return r;
}

int talk_open(const char *name, const char *tokenizer, const char *model,
	      const struct tokenizer *t, struct talk *ret_talk)
{
	const char *const none[CHAT_NROLES] = { NULL };
	struct talk k = { .end = -1 };
	const char *text, *at;
	size_t n;
	int r = STATUS_OK;

	if (!t)
		return say_bad("--chat: the model has no tokenizer: give --tokenizer");
	if (!strcmp(name, "auto"))
		r = detect(tokenizer, model, &name);
	if (!r)
		r = chat_create(name, NULL, none, NULL, &k.chat);
	if (r)
		return r;
	text = k.chat.role[CHAT_ASSISTANT];
	at = strstr(text, "{}");
	/* a space there belongs to the first token of the answer */
	for (n = (size_t)(at - text); n && text[n - 1] == ' ';)
		n--;
	k.after = at + 2;
	k.head = strndup(text, n);
	r = k.head ? find_end(name, t, &k) : no_room();
	if (r)
		talk_close(&k);
	else
		*ret_talk = k;
	return r;
}

void talk_close(struct talk *t)
{
	chat_free(&t->chat);
	free(t->head);
	*t = (struct talk){ .end = -1 };
}

static int put(void *arg, const char *text, size_t n, int target)
{
	(void)target;
	fwrite(text, 1, n, arg);
	return STATUS_OK;
}

static int is_by_user(const json_t *message)
{
	const char *role = json_string_value(json_object_get(message, "role"));

	return role && !strcmp(role, "user");
}

int talk_text(const struct talk *t, const json_t *messages, int again, const char *where,
	      char **ret_text)
{
	const size_t n = json_array_size(messages);
	char wrong[CHAT_NWRONG] = "", *text = NULL;
	size_t room;
	FILE *f;
	int r;

	if (!n || !is_by_user(json_array_get(messages, n - 1)))
		return say_bad("%s: \"messages\": expected a list whose last message is by the "
			       "user", where);
	f = open_memstream(&text, &room);
	if (!f)
		return no_room();
	fputs(again ? t->after : t->chat.begin, f);
	r = chat_messages(&t->chat, messages, put, f, wrong);
	if (r == STATUS_BAD && *wrong)
		say_bad("%s: %s", where, wrong);
	fputs(t->head, f);
	if (fclose(f) && !r)
		r = no_room();
	if (r)
		free(text);
	else
		*ret_text = text;
	return r;
}

static json_t *message(const char *role, const char *content)
{
	json_t *m = json_object();

	if (json_object_set_new(m, "role", json_string(role)) ||
	    json_object_set_new(m, "content", json_string(content))) {
		json_decref(m);
		return NULL;
	}
	return m;
}

json_t *talk_messages(const char *system, const char *user)
{
	json_t *list = json_array();

	if ((system && json_array_append_new(list, message("system", system))) ||
	    json_array_append_new(list, message("user", user))) {
		json_decref(list);
		return NULL;
	}
	return list;
}
