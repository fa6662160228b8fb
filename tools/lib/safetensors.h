/*
 * safetensors.h - the file format of model weights that Python's safetensors reads:
 * 8 bytes of header length, a JSON header of names, types, shapes and offsets, the data.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "folder.h"

struct st_tensor {
	const char *dtype; /* "F32", "BF16", "F16", "U8" */
	int ndim;
	int64_t shape[8];
	const uint8_t *data; /* reading only */
	size_t nbytes;
};

/* ---- writing: declare all, begin, write each tensor's bytes in order, end ---- */

struct st_writer;

/* writes name.new in the folder, which stays open; the caller renames it after st_end() */
int st_create(const struct folder *dir, const char *name, struct st_writer **ret_w);
void st_declare(struct st_writer *w, const char *name, const char *dtype, int ndim,
		const int64_t *shape, size_t nbytes);
/* an entry of the metadata, before st_begin(); at most one, borrowed until then */
void st_set_meta(struct st_writer *w, const char *key, const char *value);
int st_begin(struct st_writer *w);
int st_write(struct st_writer *w, const void *src, size_t nbytes);
/*
 * Write the rest, and the digest of all data as metadata "digest"; fsync; read the file and
 * compare its header and digest.
 */
int st_end(struct st_writer *w, char ret_digest[17]);
void st_free(struct st_writer *w);

/* ---- reading ---- */

struct st_file;

/* checks the header, and that the tensors cover all other data without overlaps */
int st_open(const char *path, struct st_file **ret_f);
/*
 * A file of another format: header describes its tensors as a safetensors file does, with offsets
 * from data_at on. Takes the mapping and the header, also when it fails.
 */
int st_adopt(const char *path, uint8_t *map, size_t nbytes, size_t data_at, json_t *header,
	     struct st_file **ret_f);
void st_close(struct st_file *f);
const char *st_path(const struct st_file *f);
const json_t *st_header(const struct st_file *f);
/* NULL if there is none */
const char *st_get_meta(const struct st_file *f, const char *key);
/* 1 if it exists, else 0 */
int st_find(const struct st_file *f, const char *name, struct st_tensor *ret_t);
/* the name of the tensor after `name`, which st_next() returned; name NULL: the first. Returns NULL
 * after the last */
const char *st_next(const struct st_file *f, const char *name);
/* compares the data with the digest in the metadata; a file without one passes */
int st_check_digest(const struct st_file *f);

#endif
