/* t/graph/contract_cases.h - what graphs refuse, call and leave alone, on either backend. */
#ifndef CONTRACT_CASES_H
#define CONTRACT_CASES_H

#include "tt.h"

Suite *contract_suite(const char *name, const char *backend);

#endif
