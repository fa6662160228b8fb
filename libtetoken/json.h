/* json.h - JSON files: tokenizer.json and tekken.json. */
#ifndef TE__TOKEN_JSON_H
#define TE__TOKEN_JSON_H

#include <errno.h>
#include <jansson.h>

#include "token_internal.h"

#define FN "te_token: tokenizer.json"

/* steps by which a token's text becomes its bytes */
struct te__json_decoder {
	int byte_level, byte_fallback, fused;
	struct {
		char *from, *to;
		size_t nfrom, nto;
	} replace[TE__TOKEN_MAX_STEPS];
	int nreplace;
};

/* errors of tokenizer.json; where: the object, what: a type or NULL */
static inline int te__json_corrupt(const char *what)
{
	return te__fail(-TE_ECORRUPT, FN ": %s", what);
}

static inline int te__json_unsupported(const char *where, const char *what)
{
	return te__fail(-EOPNOTSUPP, FN ": %s: %.60s is not implemented", where,
			what ? what : "this");
}

static inline const char *te__json_text(const json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

static inline int te__json_truth(const json_t *o, const char *key, int dflt)
{
	const json_t *v = json_object_get(o, key);

	return json_is_boolean(v) ? json_is_true(v) : dflt;
}

/* the number of a token */
static inline int te__json_id(const json_t *v, int32_t *ret)
{
	const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

	if (id < 0 || id >= TE__TOKEN_MAX_VOCAB)
		return te__json_corrupt("a token's number is out of range");
	*ret = (int32_t)id;
	return 0;
}

/* the object "model": vocabulary, merges, scores */
int te__json_model(struct te_token *t, const json_t *o);
int te__token_load_tekken(struct te_token *t, const json_t *root);

#endif
