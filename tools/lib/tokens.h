/* tokens.h - tokens of texts, and text of tokens; needs libtetoken. */
#ifndef TOKENS_H
#define TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "digest.h"

struct tokenizer;

/* a GGUF file that has a tokenizer only, in the folder of a model that came from such a file */
#define TOKENIZER_GGUF "tokenizer.gguf"

/* 1: the path is a GGUF file, or a folder with a file that tokenizer_open() reads */
int tokenizer_in(const char *path);
/*
 * Open a file or a model's folder for a model of vocab tokens. end: the token that ends texts if
 * the file does not tell it, or -1. STATUS_BAD, with a message, also if a token is beyond the
 * vocabulary, or without libtetoken.
 */
int tokenizer_open(const char *path, int64_t vocab, int32_t end, struct tokenizer **ret_t);
void tokenizer_close(struct tokenizer *t);
/* 1: the digest of what tokenizer_open() reads for the path; 0: it cannot be read twice */
int tokenizer_digest(const char *path, char ret_text[DIGEST_NBYTES]);

/*
 * The tokens of a text, for free(3). what: for messages. Special tokens in the text are found.
 * begins: add the tokens that the tokenizer puts around a text, such as BOS.
 */
int tokenizer_encode(const struct tokenizer *t, const char *what, const char *text, size_t n,
		     int begins, int32_t **ret_token, size_t *ret_n);
/*
 * The metadata of GGUF files for the tokenizer in a file or folder: ret_nitems items in the bytes
 * *ret, for free(3), with vocab tokens. Those of a GGUF file are as they are there.
 */
int tokenizer_gguf(const char *path, int64_t vocab, void **ret, size_t *ret_nbytes,
		   uint64_t *ret_nitems);
/* the token that ends a text, or -1 */
int32_t tokenizer_end(const struct tokenizer *t);
/*
 * The text, for free(3), that a further token completes, perhaps none: "[N]" if the tokenizer has
 * no such token. -1: what is left of the text.
 */
int tokenizer_decode(struct tokenizer *t, int32_t token, char **ret_text, size_t *ret_n);

#endif
