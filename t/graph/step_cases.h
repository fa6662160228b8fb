/* t/graph/step_cases.h - te_step_*(3) on either backend. */
#ifndef STEP_CASES_H
#define STEP_CASES_H

#include <te/step.h>

#include "t/plan/plan_model.h"
#include "tt.h"

#define STEPS 3
#define NMODES 3
extern const uint32_t modes[NMODES]; /* flags: eager, and the two kinds of graphs */
/* no tied weights: no two parts add to the same gradient */
extern const struct model_shape small;
#define NCUTS 2
extern const char *const cuts[NCUTS];
struct te_spec tokens(int64_t B, int64_t T);

#define ROWS 3
#define WIDTH 24
extern const struct te_spec ones_spec;
/* a bias of 0, half of all dropped, and with a loss */
struct te_seq *dropping(int with_loss);
void write_ones(struct te_tensor *t);
/* t is what dropout makes of ones at that offset, by its definition */
void has_mask(struct te_tensor *t, uint64_t offset);

#endif
