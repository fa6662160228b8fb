/* ckpt_files.h - what the sources of checkpoints share. */
#ifndef CKPT_FILES_H
#define CKPT_FILES_H

#include "ckpt.h"
#include "tools/lib/folder.h"
#include "tools/lib/lora.h"
#include "tools/lib/safetensors.h"

#define CKPT_FORMAT 1 /* version of state.safetensors */

#define CONFIG_JSON "config.json"
#define MODEL_ST "model.safetensors"
#define STATE_ST "state.safetensors"
#define BEST_DIR "best"

/* all of them, state first; a checkpoint has either the model's weights or the adapter's files */
enum { CKPT_NFILES = 5 };
extern const char *const ckpt_file[CKPT_NFILES];

/* metadata of state.safetensors */
struct ckpt_run {
	json_t *obj;
	const json_t *options; /* owned by obj, like the texts */
	const char *digest;    /* digest of the weights */
	uint64_t seed, offset;
	struct progress p;
};

int ckpt_make_folder(const char *dir); /* and its parents */

/* the name under which a file is written */
const char *ckpt_fresh_name(const char *file, char ret_name[64]);
/* rename file.new to file; or, if it may be renamed, by another rank that resumes too, it was */
int ckpt_commit(const struct folder *dir, const char *file, int may_be_renamed);
void ckpt_drop(const struct folder *dir, const char *file); /* file.new */
/* remove the files of an adapter, or the model's weights, which another run has left */
void ckpt_drop_kind(const struct folder *dir, int adapter);
/* complete the save that a crash interrupted after it was committed */
int ckpt_complete(const struct folder *dir);

/* a file whose digest is right */
int ckpt_open(const struct folder *dir, const char *name, struct st_file **ret_f);
/* the caller releases ret_run->obj */
int ckpt_read_run(const struct st_file *f, struct ckpt_run *ret_run);
/* both, after ckpt_complete() */
int ckpt_open_state(const struct folder *dir, struct st_file **ret_f, struct ckpt_run *ret_run);

#endif
