/* hfconfig.h - the model described by a Hugging Face style config.json. */
#ifndef HFCONFIG_H
#define HFCONFIG_H

#include <jansson.h>
#include <stdint.h>

#include <te/op.h>

enum family { FAMILY_GPT2, FAMILY_LLAMA, FAMILY_QWEN2 };

struct config {
	enum family family;
	int64_t vocab, layers, width, heads, kv_heads, head_dim, inner, max_pos;
	double eps, rope_theta, init_std;
	double drop_embd, drop_resid, drop_attn;
	enum te_act act;
	int tied; /* the head uses the embedding's table */
	/* The object read, including unused fields. config_free() releases it; copies of the struct
	 * borrow it, unless they take a reference. */
	json_t *source;
};

const char *family_name(enum family family);
/* @path: the file, or the folder of config.json */
int config_read(const char *path, struct config *ret_cfg);
/* @where: error messages begin with it */
int config_parse(const json_t *obj, const char *where, struct config *ret_cfg);
void config_free(struct config *cfg);
/*
 * Returns a new reference, or NULL after a failure: all fields that were read, with the present
 * values of the used ones. Readable by config_parse and by transformers.
 */
json_t *config_to_json(const struct config *cfg);
/* fails if the two describe different models, and names the first field that differs */
int config_same(const struct config *a, const char *where_a, const struct config *b,
		const char *where_b);

#endif
