/* export.h - a model that te_export writes, and the formats of what it writes. */
#ifndef EXPORT_H
#define EXPORT_H

#include "tools/lib/folder.h"
#include "tools/lib/lora.h"
#include "tools/lib/model.h"
#include "tools/lib/tensors.h"
#include "tools/lib/weights.h"

/* numbers of matrices, in the order of --type */
enum export_type { EXPORT_F32, EXPORT_BF16, EXPORT_Q8_0 };

struct export {
	const char *from; /* folder or GGUF file of the model */
	const char *tokenizer; /* folder or file; NULL: the model's */
	enum export_type type;
	int overwrite; /* a folder of an earlier export is replaced */
	struct model model;
	struct tensors tensors;
	const struct adapter *adapter; /* merged, or NULL */
};

/* the folder that will have the file or folder of that path; ret_name: its name there */
int export_parent(const char *path, struct folder *ret_dir, char ret_name[256]);
/* a folder of transformers and GGUF files differ in this tensor: 1 is added to its elements */
int export_adds_one(const struct export *x, const struct weights_tensor *t);
/* element of a tensor [out,in] or of a vector, whose rows are ordered as in its file */
float export_element(const struct weights_tensor *t, int64_t row, int64_t col);

/* ---- signals ---- */

/* let SIGINT, SIGTERM and SIGHUP, unless ignored, stop the export, which removes its files */
void export_on_signals(void);
/* the signal that stopped it, or 0 */
int export_stopped(void);

/* ---- formats ---- */

/* STATUS_BAD, with a message, for a model with features that GGUF files lack */
int export_gguf_check(const struct config *c, const char *from);
int export_gguf(struct export *x, const char *path);

/* STATUS_BAD, with a message, if the name is taken */
int export_folder_check(const char *path, int overwrite);
int export_folder(struct export *x, const char *path);

#endif
