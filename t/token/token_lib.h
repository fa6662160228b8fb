/* token_lib.h - texts and checks that the tests of te_token_*(3) share. */
#ifndef T_TOKEN_LIB_H
#define T_TOKEN_LIB_H

#include <te/token.h>

/* a tokenizer.json in the style of SentencePiece; ' for " */
extern const char tl_llama[];

/* text with " for ', to free */
char *tl_json(const char *text);
/* the tokenizer of tl_json(text) */
struct te_token *tl_load(const char *text);
/* tokens of text are want, such as "3 14", and their text is decoded, unless that is NULL */
void tl_gives(const struct te_token *t, const char *text, uint32_t flags, const char *want,
	      const char *decoded);
/* random words of about that many bytes, to free */
char *tl_sample(size_t nbytes);

#endif
