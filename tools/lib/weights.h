/*
 * weights.h - the weights of a model in safetensors files, with the names, shapes and order that
 * Python's transformers uses.
 */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "lora.h"
#include "model.h"
#include "safetensors.h"
#include "tensors.h"

/*
 * Write name.new in the folder, in the type cfg.saved, synced and read back; the caller renames it.
 * whole: all weights of a model that ranks divide, else NULL. Of a model with adapters, the file
 * has these only.
 */
int weights_write(const struct folder *dir, const char *name, const struct model *m,
		  const float *whole, char ret_digest[17]);
/*
 * The elements of part `part` of nparts in the flat buffer, which are the elements of whole tensors
 * and about as many as other parts have. The model has no adapters.
 */
int weights_part(const struct model *m, int32_t part, int32_t nparts, int64_t *ret_first,
		 int64_t *ret_n);
/* likewise for the tensors of n elements from `first` on, which flat has */
int weights_write_part(const struct folder *dir, const char *name, const struct model *m,
		       const float *flat, int64_t first, int64_t n, char ret_digest[17]);
/* name of that file in a folder of transformers, or of PEFT */
const char *weights_file(const struct model *m);
/* adapter_config.json of a model with adapters, a new reference; or NULL after a failure */
json_t *weights_adapter(const struct model *m);
/* read all tensors that weights_write() writes; the files may have no others but known buffers */
int weights_read(struct st_file *const *f, size_t nfiles, const struct model *m);
/*
 * Read all tensors but adapters, in a folder or a GGUF file: see tensors.h. Sets the digest of
 * cfg.lora. adapter: NULL, or the folder of an adapter of PEFT that is merged: weights are
 * W + scale B A; a warning tells that it was trained with other weights.
 */
int weights_read_folder(const char *dir, const char *adapter, const struct model *m);
/* number of elements that weights_write() reads, the first ones of the flat buffer */
int64_t weights_nelems(const struct model *m);

/* a tensor of a model as transformers has it */
struct weights_tensor {
	const char *name;
	int ndim;
	int64_t shape[2]; /* [out,in], or a vector */
	const struct st_tensor *st;
	enum part part;
	int transposed; /* the data are [in,out] */
	int in_out; /* files of transformers have [in,out] */
	int gain; /* the gains of an RMSNorm */
	const struct gguf_arch *arch; /* rows are ordered as in its GGUF files, or NULL */
};
typedef int (*weights_fn)(void *arg, const struct weights_tensor *t);
/* call fn for each tensor of the model, found in ts and checked as weights_read() does, with an
 * adapter merged if one is given. checks: read all, and warn as adapter_check() does */
int weights_each(struct tensors *ts, const struct model *m, const struct adapter *adapter,
		 int checks, weights_fn fn, void *arg);
/* write elements in FP32 or BF16 */
int weights_put(struct st_writer *w, enum te_dtype dtype, const float *src, int64_t nelems);
/* element i of a tensor of a type that weights_read() reads */
float weights_element(const struct st_tensor *st, int64_t i);

#endif
