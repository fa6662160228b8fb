/* t/graph/offload_lib.h - a model that trains with te_offload_*(3). */
#ifndef OFFLOAD_LIB_H
#define OFFLOAD_LIB_H

#include <te/offload.h>
#include <te/step.h>

#include "t/plan/plan_model.h"
#include "tt_ctx.h"

#define MICRO 2
#define STEPS 2 /* of same_steps() */
#define NTOKENS (2 * 16)

/* no tied weights: no two parts add to the same gradient */
extern const struct model_shape small;
extern const char *const cuts[];
#define NCUTS 2

/* a way to run a step */
struct way {
	uint32_t flags;
	int32_t ncuts;
	const char *order; /* NULL: the default */
};
#define WAYS 8
extern const struct way ways[WAYS];

/*
 * Rates that do not depend on the machine. Fast: copies end within a group or two. Slow: the link
 * has half of the time that it needs.
 */
enum speed { FAST, SLOW };
struct te_offload_opts rates(enum speed speed);
/* the same through a file; small slots, so that they are used again */
struct te_offload_opts through_file(enum speed speed);
struct te_offload *offload_of(const struct te_offload_opts *o);
struct te_offload_report report_of(struct te_offload *off);
struct te_mem_info mem_now(void);

struct run {
	struct te_seq *seq;
	struct te_adamw *opt;
	struct te_offload *off; /* or NULL */
	struct te_step *step;
};

extern int no_words; /* graphs call the host instead */
extern int costly; /* 1: new runs have TE_STEP_RECOMPUTE_COSTLY */
extern const char *states_dir; /* new runs have their moments in a file there; or NULL */
extern const char *recompute; /* values that new runs compute again, by a pattern, or NULL */
/* oo: NULL: nothing is offloaded */
struct run run_create(const struct model_shape *m, const struct way *w, const char *recipe,
		      const struct te_offload_opts *oo);
void run_destroy(struct run *r);
uint64_t pool_of(const struct run *r);
int start_step(struct run *r, int32_t t[MICRO][2][NTOKENS]);
void run_step(struct run *r, int32_t t[MICRO][2][NTOKENS], double *loss);
/* some steps with random tokens have the same bits */
void same_steps(struct run *a, struct run *b);

/* of the small model in BF16; off: or NULL */
struct te_plan *plan_of(struct te_seq *seq, struct te_offload *off, uint32_t flags);

#endif
