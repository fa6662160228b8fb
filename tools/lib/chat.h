/* chat.h - chats: the texts around their messages, which templates have. */
#ifndef CHAT_H
#define CHAT_H

#include <jansson.h>
#include <stddef.h>

#define CHAT_NAMES "chatml|llama3|mistral|gemma|phi3|zephyr"
#define CHAT_NWRONG 160

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_NROLES };

/* Texts around the messages of a conversation. Zeroed: none. */
struct chat {
	char *begin; /* text before the first message */
	/* text of a message, with {} for its content; NULL: it is put before the next content */
	char *role[CHAT_NROLES];
	char *end; /* text after a text or a completion; NULL: a newline, or the end token */
};

/*
 * name: one of CHAT_NAMES. begin, role and end replace its texts unless they are
 * NULL; in them, backslashes begin \n, \t and \\. STATUS_BAD, with a message, if one is wrong.
 */
int chat_create(const char *name, const char *begin, const char *const role[CHAT_NROLES],
		const char *end, struct chat *ret_chat);
void chat_free(struct chat *c);
/* a text of an option, with such backslashes, in place of the one in *ret, which is freed */
int chat_unescape(const char *option, const char *text, char **ret);
/*
 * The template of a model's folder or GGUF file, as the text in Jinja's language that transformers
 * runs, for free(3). *ret NULL: there is none.
 */
int chat_source(const char *path, char **ret);
/* the name for chat_create() of the template that such a text has, or NULL: it is another one */
const char *chat_name(const char *source);

/* target: the text is by the assistant */
typedef int (*chat_put)(void *arg, const char *text, size_t n, int target);
/*
 * Write the messages of a list, {"role": ..., "content": ...} each, without c->begin. STATUS_BAD,
 * with ret_wrong and no message, if one is wrong.
 */
int chat_messages(const struct chat *c, const json_t *list, chat_put put, void *arg,
		  char ret_wrong[CHAT_NWRONG]);

#endif
