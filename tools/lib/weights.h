/*
 * weights.h - the weights of a model in safetensors files, with the names, shapes and order that
 * Python's transformers uses.
 */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "model.h"
#include "safetensors.h"

/*
 * Write name.new in the folder, in the type cfg.saved, synced and read back; the caller renames it.
 * whole: all weights of a model that ranks divide, else NULL.
 */
int weights_write(const struct folder *dir, const char *name, const struct model *m,
		  const float *whole, char ret_digest[17]);
/* read all tensors of the model; the file may have no others except known buffers */
int weights_read(struct st_file *f, const struct model *m);
/* weights_read() for the model in a folder or a GGUF file: see tensors.h */
int weights_read_folder(const char *dir, const struct model *m);

#endif
