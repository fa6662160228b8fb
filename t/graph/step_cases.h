/* t/graph/step_cases.h - te_step_*(3) on either backend. */
#ifndef STEP_CASES_H
#define STEP_CASES_H

#include "tt.h"

Suite *step_suite(const char *name, const char *backend);

#endif
