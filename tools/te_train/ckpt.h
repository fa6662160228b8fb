/*
 * ckpt.h - checkpoints: a folder with model.safetensors and config.json, as Python's
 * transformers reads them, and state.safetensors with all else a resumed run needs.
 */
#ifndef CKPT_H
#define CKPT_H

#include <jansson.h>
#include <stdint.h>

#include <te/optim.h>

#include "model.h"

/* how far a run is */
struct progress {
	int64_t step;	 /* optimizer steps done */
	double best_val; /* nats a token; infinity before the first validation */
	int64_t best_step;
	int64_t ntrain, nval; /* tokens: the same files must come back */
};

/* make a folder and those above it, and see that files can be made there */
int ckpt_folder(const char *dir);

/*
 * Replace the checkpoint in dir. Everything is written and synced under new names
 * first, so a full disk or a crash leaves the one of before.
 */
int ckpt_save(const char *dir, const struct model *m, struct te_adamw *opt, json_t *options,
	      const struct progress *p);
/* weights and config only */
int ckpt_save_weights(const char *dir, const struct model *m);

/* the options a checkpoint was trained with: a new reference */
int ckpt_options(const char *dir, json_t **ret_options);
int ckpt_load_weights(const char *dir, const struct model *m);
/* opt NULL: weights only, as for sampling. After planning, which makes the quantizers. */
int ckpt_load(const char *dir, const struct model *m, struct te_adamw *opt, struct progress *ret_p);

#endif
