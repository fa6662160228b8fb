/* t/graph/offload_cases.h - te_offload_*(3) on either backend. */
#ifndef OFFLOAD_CASES_H
#define OFFLOAD_CASES_H

#include "tt.h"

Suite *offload_suite(const char *name, const char *backend);

#endif
