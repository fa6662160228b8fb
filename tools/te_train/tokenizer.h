/* tokenizer.h - tokens of texts and text of tokens; copies of a tokenizer's files. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "tools/lib/folder.h"

struct tokenizer;

/* 1: the folder has a file that tokenizer_open() reads */
int tokenizer_in(const char *dir);
/*
 * Open a file or a model's folder for a model of vocab tokens. end: the token that ends texts if
 * the file does not tell it, or -1. STATUS_BAD, with a message, also if a token is beyond the
 * vocabulary, or without libtetoken.
 */
int tokenizer_open(const char *path, int64_t vocab, int32_t end, struct tokenizer **ret_t);
void tokenizer_close(struct tokenizer *t);

/* The tokens of a text, for free(3). what: for messages. Special tokens in the text are found. */
int tokenizer_encode(const struct tokenizer *t, const char *what, const char *text, size_t n,
		     int32_t **ret_token, size_t *ret_n);
/* the token that ends a text, or -1 */
int32_t tokenizer_end(const struct tokenizer *t);
/*
 * The text, for free(3), that a further token completes, perhaps none: "[N]" if the tokenizer has
 * no such token. -1: what is left of the text.
 */
int tokenizer_decode(struct tokenizer *t, int32_t token, char **ret_text, size_t *ret_n);

/*
 * Copy them from the folder of the model that a run began with, unless NULL, to the folder `to`, or
 * to `sub` in it. drop: remove those that are not there. One that fails is reported and left as it
 * was, and the others are copied. A file is copied alone, under a name that tokenizer_open() finds.
 */
int tokenizer_copy(const char *from, const char *to, const char *sub, int drop);
int tokenizer_remove(const struct folder *f);

#endif
