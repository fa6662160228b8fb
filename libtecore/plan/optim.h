/* optim.h - an optimizer, for the files that it consists of. */
#ifndef TE_LIBTECORE_PLAN_OPTIM_H
#define TE_LIBTECORE_PLAN_OPTIM_H

#include <stdatomic.h>

#include <te/capture.h>
#include <te/optim.h>

#include "libtecore/offload/pinned.h"
#include "libtecore/ops/kernel.h"

/* state of a group of te_adamw_opts, on the device */
struct te__adamw_group_state {
	struct te_k_adamw_state adamw;
	uint64_t version; /* not read */
};

/* group 0 has the weights of no group, with the optimizer's state; the others follow */
struct te__adamw_groups {
	struct te__adamw_group *group; /* [n + 1] */
	float *lr_scale;	       /* [n + 1] */
	struct te__adamw_range *range; /* NULL: n is 0 */
	struct te__adamw_group_state *state; /* device, [n]; or NULL */
	int32_t n;
};

struct te_adamw {
	atomic_int refs;
	struct te_seq *seq;
	struct te_ctx *ctx;
	struct te_adamw_opts opts;
	struct te_tensor *m, *v;
	struct te_adamw_shards shards;
	struct te__adamw_part own;	/* elements that have moments here */
	double *part;			/* device, [TE_K_SUMSQ_PARTS] of each shard */
	uint8_t *skip;			/* like decay: 1: not in the norm; or NULL */
	uint8_t *decay;			/* device, one a run of TE_K_ALIGN_WEIGHT weights */
	struct te_k_adamw_state *state; /* device */
	struct te__adamw_groups groups;
	/* TE_ADAMW_HOST: moments, their buffers, and the update of eager steps, from the first on:
	 * one launch, which fails before it changes anything */
	struct te__pinned *pinned;
	struct te__adamw_chunks chunks;
	struct te__adamw_casts casts; /* TE_ADAMW_CAST */
	struct te_recording *update;
	struct te__adamw_file *file; /* TE_ADAMW_FILE: pinned has its slots */
};

/* ---- optim_casts.c ---- */

/* bytes of both buffers with such chunks; te__adamw_casts_init(): buf is their memory */
uint64_t te__adamw_casts_nbytes(const struct te_seq *seq, int64_t chunk);
void te__adamw_casts_init(struct te_adamw *opt, char *buf);
/* find what is cast for the plans that the sequence has now */
int te__adamw_casts_find(struct te_adamw *opt);
void te__adamw_casts_free(struct te_adamw *opt);

/* ---- optim_file.c ---- */

/* bytes of the file, and of pinned memory, with chunks of that many elements */
uint64_t te__adamw_file_size(const struct te_seq *seq, const struct te_adamw_opts *o,
			     const struct te__adamw_part *own, int64_t chunk, uint64_t *ret_pinned);
/* for opt->opts and opt->chunks; sets opt->file and opt->pinned, also if it fails. Moments are
 * zeros */
int te__adamw_file_open(struct te_adamw *opt);
void te__adamw_file_close(struct te__adamw_file *f); /* before opt->pinned is destroyed */
/* te_adamw_step with the arguments *a; returns after the step */
int te__adamw_file_step(struct te__adamw_file *f, struct te_stream *stream, struct te__adamw *a);
/* a moment of this part between the file and host memory at `own`; set changes all of it or
 * nothing. The context is idle */
int te__adamw_file_get(struct te__adamw_file *f, const char *fn, int second, void *own);
int te__adamw_file_set(struct te__adamw_file *f, const char *fn, int second, const void *own);
struct te__spill *te__adamw_file_spill(const struct te_adamw *opt); /* for tests */

/* ---- optim_groups.c ---- */

int te__adamw_groups_check(const char *fn, const struct te_adamw_opts *opts);
/* the optimizer's own state exists; opts have the caller's groups */
int te__adamw_groups_make(struct te_adamw *opt, const struct te_adamw_opts *opts);
void te__adamw_groups_free(struct te_adamw *opt);
/* states of all groups, as after the steps of the optimizer's state s */
int te__adamw_groups_follow(struct te_adamw *opt, const struct te_k_adamw_state *s);

#endif
