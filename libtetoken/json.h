/* json.h - JSON files: tokenizer.json and tekken.json. */
#ifndef TE__TOKEN_JSON_H
#define TE__TOKEN_JSON_H

#include <jansson.h>

struct te_token;

int te__token_load_tekken(struct te_token *t, const json_t *root);

#endif
