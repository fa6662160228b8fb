/* t/graph/sweep_cases.h - every op and recipe, eager and as graphs, on either backend. */
#ifndef SWEEP_CASES_H
#define SWEEP_CASES_H

#include "tt.h"

Suite *sweep_suite(const char *name, const char *backend);

#endif
