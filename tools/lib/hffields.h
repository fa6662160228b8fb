/* hffields.h - the fields of config.json, by families. */
#ifndef HFFIELDS_H
#define HFFIELDS_H

#include "hfconfig.h"

struct record;

/* sets of families */
#define GPT2 (1u << FAMILY_GPT2)
#define LLAMA (1u << FAMILY_LLAMA)
#define QWEN2 (1u << FAMILY_QWEN2)
#define MISTRAL (1u << FAMILY_MISTRAL)
#define SMOLLM3 (1u << FAMILY_SMOLLM3)
#define PHI3 (1u << FAMILY_PHI3)
#define NEOX (1u << FAMILY_NEOX)
#define FALCON (1u << FAMILY_FALCON)
#define STABLELM (1u << FAMILY_STABLELM)
#define QWEN3 (1u << FAMILY_QWEN3)
#define OLMO2 (1u << FAMILY_OLMO2)
#define GEMMA2 (1u << FAMILY_GEMMA2)
#define GEMMA3 (1u << FAMILY_GEMMA3)
#define GEMMAS (GEMMA2 | GEMMA3)
/* families with RMSNorm, and with the names of Llama's fields */
#define RMS (LLAMA | QWEN2 | MISTRAL | SMOLLM3 | PHI3 | QWEN3 | OLMO2 | GEMMAS)
#define LLAMAS (RMS | STABLELM)
#define ROTARY (LLAMAS | NEOX | FALCON)
#define ALL (GPT2 | ROTARY)

/* read the fields of an object into a config with the defaults of its family */
int fields_read(const json_t *obj, const char *where, struct config *cfg);
/* add the fields of the family, with their present values, to an open object */
void fields_write(struct record *rec, const struct config *cfg);
/* fails, and names the field, if a number or flag of x differs in y; config_to_json() wrote both */
int fields_same(enum family family, const json_t *x, const char *where_x, const json_t *y,
		const char *where_y);

#endif
