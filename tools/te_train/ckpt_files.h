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
#define INDEX_JSON "model.safetensors.index.json"
#define BEST_DIR "best"

/* state first; a checkpoint has the model's weights, the adapter's files, or the index and parts */
enum { CKPT_NFILES = 6 };
extern const char *const ckpt_file[CKPT_NFILES];

/* metadata of state.safetensors */
struct ckpt_run {
	json_t *obj;
	const json_t *options; /* owned by obj, like the texts */
	const char *digest;    /* digest of the weights, or of the digests of all parts */
	struct ckpt_part part;
	const json_t *digests; /* digests of the model files of parts, then of the state files */
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

/* ---- parts ---- */

enum ckpt_kind { CKPT_MODEL, CKPT_STATE };

const char *ckpt_part_name(const struct ckpt_part *p, enum ckpt_kind kind, int32_t k,
			   char ret_name[64]);
/* a file of part k, which belongs to the state */
int ckpt_open_part(const struct folder *dir, const struct ckpt_run *run, enum ckpt_kind kind,
		   int32_t k, struct st_file **ret_f);
/*
 * Once all parts are written, write the index as .new. *ret_digests: as in struct ckpt_run, a new
 * reference; ret_digest: their digest
 */
int ckpt_write_index(const struct folder *dir, const struct ckpt_part *p, json_t **ret_digests,
		     char ret_digest[17]);
/* remove files of parts that te_train has written and are not of `keep`; keep NULL: the index, too,
 * if there were any */
int ckpt_drop_parts(const struct folder *dir, const struct ckpt_part *keep);
/* links in the folder `to` of the files of parts of the checkpoint in dir */
int ckpt_link_parts(const struct folder *dir, const struct folder *to, const struct ckpt_part *p);

/* safetensors types of moments in files; U8: codes and exponents of te/optim.h */
extern const char *const ckpt_moments_types[TE_MOMENTS_FP8 + 1];
/* find a moment, stored in any way; its name is "adamw.m" or "adamw.v" */
int ckpt_find_moment(const struct st_file *f, int second, int64_t nelems,
		     enum te_moments *ret_from, struct st_tensor *ret_t);
/* the state files of parts, opened once */
struct ckpt_states {
	const struct folder *dir;
	const struct ckpt_run *run;
	struct st_file *file[CKPT_MOST_PARTS]; /* NULL: not open */
};
int ckpt_state_part(struct ckpt_states *s, int32_t k, const struct st_file **ret_f);
void ckpt_states_close(struct ckpt_states *s);
/*
 * A moment of nall elements from the files of parts: all of it, or with own->n above 0 the elements
 * that an optimizer with this part has. For free(3), *ret_n elements, stored as *ret_from.
 */
int ckpt_read_moment(struct ckpt_states *s, int second, int64_t nall, const struct ckpt_part *own,
		     enum te_moments *ret_from, int64_t *ret_n, void **ret_data);

/* ---- all files ---- */

/* a file whose digest is right */
int ckpt_open(const struct folder *dir, const char *name, struct st_file **ret_f);
/* the caller releases ret_run->obj */
int ckpt_read_run(const struct st_file *f, struct ckpt_run *ret_run);
/* both, after ckpt_complete() */
int ckpt_open_state(const struct folder *dir, struct st_file **ret_f, struct ckpt_run *ret_run);

#endif
