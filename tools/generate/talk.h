/* talk.h - a conversation with a model: its template, and the texts that follow each other. */
#ifndef TALK_H
#define TALK_H

#include <stdint.h>

#include "tools/lib/chat.h"

struct tokenizer;

/* Zeroed: none. */
struct talk {
	struct chat chat;
	char *head;	   /* text before an answer */
	const char *after; /* text after it, which begins with the token `end` */
	int32_t end;
};

/*
 * name: a template, or "auto": the one of the tokenizer's folder or file, or of the model's.
 * tokenizer may be NULL. STATUS_BAD, with a message: there is none, or it is not implemented.
 */
int talk_open(const char *name, const char *tokenizer, const char *model,
	      const struct tokenizer *t, struct talk *ret_talk);
/*
 * The text of messages up to where the answer begins, for free(3). again: they follow an answer.
 * where: for messages.
 */
int talk_text(const struct talk *t, const json_t *messages, int again, const char *where,
	      char **ret_text);
/* the list of a message of the system, unless it is NULL, and one of the user; NULL: no memory */
json_t *talk_messages(const char *system, const char *user);
void talk_close(struct talk *t);

#endif
