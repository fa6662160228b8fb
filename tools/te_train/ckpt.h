/*
 * ckpt.h - checkpoints: a folder with model.safetensors and config.json, as Python's
 * transformers reads them, and state.safetensors with all other state of a run. Ranks may divide
 * the weights and moments into parts: then there is model.safetensors.index.json, and each part is
 * in model-00001-of-00004.safetensors and state-00001-of-00004.safetensors, for example.
 */
#ifndef CKPT_H
#define CKPT_H

#include <jansson.h>
#include <stdint.h>

#include <te/optim.h>

#include "chunks.h"
#include "opts.h"
#include "tools/lib/digest.h"
#include "tools/lib/model.h"

#define CKPT_MOST 1000000000000000 /* steps, tokens and windows */

#define CKPT_MOST_PARTS 64

/* a part of a checkpoint */
struct ckpt_part {
	int32_t n;  /* parts; 0: the checkpoint is not divided */
	int32_t k;  /* number of the part, from 0 */
	int digits; /* digits of the numbers in names of files: 5 or 6 */
};

/* progress of a run */
struct progress {
	int64_t step;	 /* optimizer steps done */
	double best_val; /* nats per token; infinity before the first validation */
	int64_t best_step;
	int64_t eval_step;    /* step of the last validation, or -1 */
	/* numbers of tokens; a resumed run must have the same; with --order chunks ntrain is 0 */
	int64_t ntrain, nval;
	int64_t drawn;	      /* windows of all epochs; 0 with --order random */
	int chunked;	      /* the order was chunks, and these have the window before */
	struct chunks_at chunks;
	int64_t window;	      /* tokens of a window, or 0 */
	int reordered;	      /* ckpt_load(): windows were drawn in another order */
	char data_digest[2 * DIGEST_NBYTES]; /* "TRAIN" or "TRAIN+VAL"; the same applies */
};

/*
 * Create a folder and its parents, check that files can be created in it, lock it as lock_folder()
 * does unless *lock_fd is 0 or more, complete the save that a crash interrupted after it was
 * committed, and refuse a folder where the names of the next save are taken.
 */
int ckpt_folder(const char *dir, double wait_s, int *lock_fd);
/* characters of the path up to the last folder that exists */
size_t ckpt_existing(const char *dir);
/* remove the lock and the folders that were made after nkept characters, unless they have files */
void ckpt_unmake_folder(const char *dir, size_t nkept);
/* STATUS_BAD, with a message, if the disk of the folder has no room for a checkpoint */
int ckpt_check_room(const char *dir, const struct model *m, enum te_moments moments);

/* has it neither a checkpoint, nor weights, nor the best weights of a run */
int ckpt_is_free(const char *dir);
/* when the checkpoint in the folder was written, in ns since 1970; 0: there is none */
int64_t ckpt_written_ns(const char *dir);
/* STATUS_BAD, with a message, if the folder is not free */
int ckpt_check_free(const char *dir);
/* remove the best weights and the kept checkpoints of an earlier run */
int ckpt_drop_others(const char *dir);
/*
 * Keep the checkpoint in dir as dir/step-N, of links, and remove the oldest of these folders until
 * `most` are left. most 1: the one in dir is enough.
 */
int ckpt_keep(const char *dir, int64_t most);

/*
 * Flat buffers of a whole model that ranks divide, in host memory of shard 0; NULL in other ranks,
 * and if the model is not divided. Moments of which each rank has a part are in rank 0.
 */
struct ckpt_flat {
	float *weights;
	void *m, *v; /* moments as the optimizer stores them; divided ones are FP32 */
	struct te_ctx *device; /* the three are its device memory; NULL: of malloc() */
	struct ckpt_part part; /* n above 0: the three have this part only: */
	int64_t first, n;      /* elements of the weights, */
	int64_t nmoment;       /* and of each moment */
};
/*
 * Collective, if the optimizer has a part of the moments: all of them that belong to this rank's
 * weights, in ranks that keep them. The exchange may have failed: te_comm_error().
 */
int ckpt_gather_moments(const struct model *m, struct te_adamw *opt, int keep,
			struct ckpt_flat *ret_flat);
/* the same for weights of which each rank has a part */
int ckpt_gather_weights(const struct model *m, int keep, struct ckpt_flat *flat);
/*
 * Collective, in the ranks of a divided model: all weights and moments in rank 0. flat: moments of
 * ckpt_gather_moments(), or empty; it is replaced. opt NULL: weights only.
 */
int ckpt_gather(const struct model *m, struct te_adamw *opt, struct ckpt_flat *flat);
void ckpt_flat_free(struct ckpt_flat *flat);
/*
 * This rank's part of the weights and moments. Collective, if each rank has a part of the weights;
 * part has the number and the part of the optimizer, whose moments are not in a file.
 */
int ckpt_read_part(const struct model *m, const struct te_adamw *opt, const struct ckpt_part *part,
		   struct ckpt_flat *ret_flat);
/*
 * Digits in the names of the next checkpoint's parts. The checkpoint in dir has names with another
 * number of digits, so that no file of it is written to. 0: a failure, which was reported.
 */
int ckpt_next_digits(const char *dir);

/*
 * A copy of all that a checkpoint has: in device memory, if weights and moments are there and it
 * has room; else in host memory. flat: of the functions above, which the copy takes, or zeros.
 * options NULL: the failure of opts_to_json().
 */
struct ckpt_copy;
int ckpt_take(const struct model *m, struct te_adamw *opt, struct ckpt_flat *flat,
	      const json_t *options, const struct progress *p, struct ckpt_copy **ret_copy);
void ckpt_copy_free(struct ckpt_copy *copy);
/* the step after which it was taken; -1: NULL */
int64_t ckpt_copy_step(const struct ckpt_copy *copy);
/*
 * Sends a copy of a model that is not divided, in host memory, to copies of the same model, with
 * one call of send for each of its buffers on all ranks. root: this one is sent. A call that
 * fails ends it, with its status: the caller then frees a copy that was received.
 */
int ckpt_copy_send(struct ckpt_copy *copy, const struct model *m, int root,
		   int (*send)(void *arg, void *p, size_t nbytes), void *arg);
/* sets the model, after planning, and the optimizer to a copy that has host memory */
int ckpt_copy_load(const struct ckpt_copy *copy, const struct model *m, struct te_adamw *opt,
		   struct progress *ret_p);
/*
 * Replace the checkpoint in dir. Everything is first written, synced and read back under temporary
 * names, so after a full disk or a crash the previous checkpoint is intact. Another thread may
 * train the model meanwhile.
 */
int ckpt_write(const char *dir, const struct model *m, const struct ckpt_copy *copy);
/*
 * Write the files of the copy's part. The checkpoint in dir stays until one rank calls ckpt_write()
 * with its copy, after all ranks have written their parts.
 */
int ckpt_write_part(const char *dir, const struct model *m, const struct ckpt_copy *copy);
/* weights and config only, in dir/best */
int ckpt_save_best(const char *dir, const struct model *m, const struct ckpt_flat *flat);

/* *ret_options: options of the run that saved the checkpoint, a new reference */
int ckpt_options(const char *dir, json_t **ret_options);
/* opt NULL: weights only, for sampling. Call it after planning, which creates the quantizers; o has
 * their recipes. own: the optimizer's part; n 0: it has all moments. */
int ckpt_load(const char *dir, const struct model *m, const struct opts *o, struct te_adamw *opt,
	      const struct ckpt_part *own, struct progress *ret_p);

#endif
