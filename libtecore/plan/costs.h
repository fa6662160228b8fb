/* costs.h - bytes and FLOPs of the groups of a plan. */
#ifndef TE__COSTS_H
#define TE__COSTS_H

#include "libtecore/plan/plan.h"

enum te__work { TE__WORK_GEMM, TE__WORK_FP8_GEMM, TE__WORK_ATTENTION, TE__WORK_COUNT };

/* Work of a group, without accesses that registers or caches serve. */
struct te__cost {
	uint64_t nbytes;
	uint64_t between_nbytes; /* bytes of kernels between its GEMMs, not in nbytes */
	uint64_t host_nbytes; /* rows of a table in host memory, in nbytes too */
	double flops[TE__WORK_COUNT];
};

struct te__costs {
	const struct te_plan *plan;
	int *seen; /* [nvalues * TE__NFORMS][2] last group that reads, that writes the form; -1 */
};

/* each group is asked for once; the plan's steps, groups and buffers are known */
int te__costs_open(struct te__costs *c, const struct te_plan *p);
void te__costs_of(struct te__costs *c, int group, struct te__cost *ret);
void te__costs_close(struct te__costs *c);
/* FLOPs of a step in its pass */
double te__step_flops(const struct te_plan *p, const struct te__step *s);
int te__step_is_fp8(const struct te__step *s);

#endif
