/* jsonl.h - documents in JSON lines: texts, prompts with completions, messages of a chat. */
#ifndef JSONL_H
#define JSONL_H

#include <stddef.h>
#include <stdint.h>

#include "tools/lib/chat.h"
#include "tools/lib/digest.h"

enum docs_ignored {
	DOCS_TARGET,
	DOCS_PROMPT, /* the token is no target */
	DOCS_FIRST   /* nor is this one, the first of a document */
};

/* Documents, one after the other. Zeroed: none. */
struct docs {
	int32_t *token;
	uint8_t *ignored; /* enum docs_ignored */
	int64_t n, room;
	int64_t ntargets;
	int32_t largest; /* token, set by docs_digest() */
	void *map; /* mapping of a file that has them, or NULL */
	size_t map_nbytes;
};
void docs_free(struct docs *d);
/* n tokens at the end; the caller sets docs->ntargets. STATUS_FAILED, with a message: no memory */
int docs_add(struct docs *d, const int32_t *token, size_t n, int ignored);
/* documents at the end; likewise */
int docs_append(struct docs *d, const struct docs *more);

/* add the tokens and which are targets, and set d->largest */
void docs_digest(struct docs *d, struct digest *all);

/* lines of a file, which come in chunks of any size. Zeroed, with the members up to docs set. */
struct jsonl {
	const char *name; /* name of the file, for messages */
	const struct tokenizer *tokenizer; /* NULL: tokens are bytes */
	const struct chat *chat;
	struct docs *docs;
	int64_t line; /* number of complete lines */
	char *part;   /* begin of the next line */
	size_t npart, room;
	char *text; /* text of a document whose tokens are not computed yet, with a tokenizer */
	size_t ntext, text_room;
	int text_target;
	int status; /* STATUS_OK, or the first failure, which was reported */
};
void jsonl_add(struct jsonl *j, const uint8_t *p, size_t n);
/* the last line need not end with a newline; returns the status, STATUS_OK without documents too */
int jsonl_end(struct jsonl *j);

#endif
