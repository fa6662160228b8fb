/* t/graph/rules_cases.h - what graphs refuse, call and leave alone, on either backend. */
#ifndef RULES_CASES_H
#define RULES_CASES_H

#include "tt.h"

Suite *rules_suite(const char *name, const char *backend);

#endif
