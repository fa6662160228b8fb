/* t/graph/equivalence_cases.h - every op and recipe, eager and as graphs, on either backend. */
#ifndef EQUIVALENCE_CASES_H
#define EQUIVALENCE_CASES_H

#include "tt.h"

Suite *equivalence_suite(const char *name, const char *backend);

#endif
