/* t/plan/plan_cases.h - cases of plans that hold on every backend. */
#ifndef PLAN_CASES_H
#define PLAN_CASES_H

#include "plan_model.h"
#include "tt.h"

#define NRECIPES 5
extern const char *const recipes[NRECIPES];
extern const struct model_shape gpt;

#endif
