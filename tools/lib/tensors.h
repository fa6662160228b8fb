/*
 * tensors.h - the tensors of a model's weight files, by the names that transformers gives them.
 *
 * A model is one file, or several that an index lists or whose names number them.
 */
#ifndef TENSORS_H
#define TENSORS_H

#include "gguf_arch.h"
#include "safetensors.h"

struct tensor {
	char *key;	  /* the name without prefixes of wrappers */
	const char *name; /* name in the file */
	const struct st_file *file;
	const struct gguf_arch *arch; /* architecture of a GGUF file, or NULL */
	struct st_tensor st;
	int used; /* a reader of weights has taken it */
};

struct tensors {
	struct st_file **file; /* opened here */
	size_t nfiles;
	char *path; /* path of the file, the index, or the folder, for messages */
	struct tensor *at; /* ordered by key */
	size_t n;
};

/* the model in a folder, or in a GGUF file of that name */
int tensors_of_folder(const char *dir, struct tensors *ret_ts);
/* the adapter in a folder */
int tensors_of_adapter(const char *dir, struct tensors *ret_ts);
/* the tensors of one file or more, which must outlive them; messages name the first */
int tensors_of_files(struct st_file *const *f, size_t nfiles, struct tensors *ret_ts);
void tensors_free(struct tensors *ts);

/* find by the name in transformers, or the name that the metadata give for it; NULL: none */
struct tensor *tensors_find(const struct tensors *ts, const char *name);
/* the first tensor that is neither used nor a known buffer, or NULL; ret_n: their number */
const struct tensor *tensors_unused(const struct tensors *ts, size_t *ret_n);

#define SHAPE_TEXT 192
/* "[128,64,1]" */
const char *shape_text(int ndim, const int64_t *shape, char buf[SHAPE_TEXT]);

#endif
