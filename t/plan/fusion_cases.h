/* t/plan/fusion_cases.h - the tests of fusions, on either backend. */
#ifndef FUSION_CASES_H
#define FUSION_CASES_H

#include "tt.h"

Suite *fusion_suite(const char *name, const char *backend);

#endif
