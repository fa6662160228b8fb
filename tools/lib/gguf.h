/* gguf.h - models in one file, as llama.cpp has them. */
#ifndef GGUF_H
#define GGUF_H

#include <jansson.h>

#include "safetensors.h"

/* 1 if the path is a regular file that begins as a GGUF file does */
int gguf_is(const char *path);
/*
 * Map the file. Its tensors get the names that transformers gives them, and the types F32, F16,
 * BF16, Q8_0, Q4_0 or Q4_1; other types have their number as a name.
 */
int gguf_open(const char *path, struct st_file **ret_f);
/* the config.json of the model, a new reference */
int gguf_config(const char *path, json_t **ret_config);

/* the name in GGUF files of a tensor of transformers; 0: there is none */
int gguf_name(const char *hf, char *ret_name, size_t room);
/* FP32 [head_dim / 2]: divisors of the frequencies of rotary positions */
#define GGUF_DIVISORS "rope_freqs.weight"

/* keys of the metadata after the architecture and a dot, and fields of config.json with their
 * values; ends with NULL */
struct gguf_field {
	const char *gguf, *hf;
};
extern const struct gguf_field gguf_fields[];
/*
 * The metadata whose keys begin with prefix, as bytes of a file, for free(3). ret_nitems: their
 * number.
 */
int gguf_items(const char *path, const char *prefix, void **ret, size_t *ret_nbytes,
	       uint64_t *ret_nitems);

/* metadata of a file whose rows of queries and keys pair channel 2i of a head with 2i + 1 */
#define GGUF_PAIRED "te.paired"

#endif
