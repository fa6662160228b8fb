/* t/plan/weights_pair.h - a model twice, whose weights have different memory and the same bits. */
#ifndef WEIGHTS_PAIR_H
#define WEIGHTS_PAIR_H

#include "libtecore/plan/plan.h"
#include "plan_model.h"

/* s[0] has the usual memory */
struct pair {
	struct te_seq *s[2];
	struct te_plan *p[2];
	struct te_adamw *opt[2];
};

struct te_plan_opts pair_opts(const struct model_shape *m, const struct te_recipe *recipe,
			      uint32_t flags);
void pair_free(struct pair *q);
void pair_feed(const struct pair *q, const struct model_shape *m);
void pair_queue_pass(struct te_plan *p);
void pair_queue_step(const struct pair *q, int i);
/* losses, gradients and masters have the same bits */
void pair_same(const struct pair *q);
/* bytes of device memory in use, without the workspace */
uint64_t pair_measured(void);

#endif
