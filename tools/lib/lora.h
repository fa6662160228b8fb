/*
 * lora.h - low-rank adapters of a model, and their files in the format of Python's PEFT:
 * adapter_config.json and adapter_model.safetensors.
 */
#ifndef LORA_H
#define LORA_H

#include "hfconfig.h"
#include "tensors.h"

#define ADAPTER_JSON "adapter_config.json"
#define ADAPTER_ST "adapter_model.safetensors"
#define BASE_DIGEST "base_digest" /* metadata of that file: digest of the model's weights */

/* rank=R[,alpha=A][,dropout=P][,targets=LIST]; ret_l->targets is in text, ret_l->base NULL */
int lora_parse(const char *text, struct lora *ret_l);
/* 1: "h.i.qkv" or another projection gets an adapter */
int lora_adapts(const struct lora *l, const char *name);
/* adapter_config.json: a new reference, or NULL after a failure. modules: names in files of what is
 * adapted, a list */
json_t *lora_to_json(const struct lora *l, const json_t *modules);
/* the model that the adapter in a folder belongs to, for free(3) */
int lora_base(const char *dir, char **ret_base);

/* an adapter that is merged into weights while these are read */
struct adapter {
	struct tensors tensors;
	double scale; /* the factor of B A */
	int64_t rank;
	const char *base_digest; /* digest of the weights that it was trained with, or NULL */
};
int adapter_open(const char *dir, struct adapter *ret_a);
void adapter_close(struct adapter *a);
/* warns if the weights of path, with this digest, are not those that it was trained with */
void adapter_check(const struct adapter *a, const char *path, const char *digest);

#endif
