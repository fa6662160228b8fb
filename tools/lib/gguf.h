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

/*
 * The metadata whose keys begin with prefix, as bytes of a file, for free(3). ret_nitems: their
 * number.
 */
int gguf_items(const char *path, const char *prefix, void **ret, size_t *ret_nbytes,
	       uint64_t *ret_nitems);

/* metadata of the file that gguf_open() makes: its architecture */
#define GGUF_ARCH "te.arch"

#endif
