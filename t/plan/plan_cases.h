/* t/plan/plan_cases.h - cases of plans that hold on every backend. */
#ifndef PLAN_CASES_H
#define PLAN_CASES_H

#include "tt.h"

/* the suite on the named backend */
Suite *plan_suite(const char *name, const char *backend);
void plan_hook_cases(Suite *s); /* part of it */

#endif
