/* json.h - JSON files: tokenizer.json and tekken.json. */
#ifndef TE__TOKEN_JSON_H
#define TE__TOKEN_JSON_H

#include <jansson.h>

struct te_token;

/* -TE_EFORMAT without a message if the bytes do not begin as an object does */
int te__json_parse(const char *p, size_t n, json_t **ret_root);
int te__token_load_tekken(struct te_token *t, const json_t *root);

#endif
