/* t/graph/change_cases.h - te_graph_bind(3) and te_graph_update(3) on either backend. */
#ifndef CHANGE_CASES_H
#define CHANGE_CASES_H

#include "tt.h"

Suite *change_suite(const char *name, const char *backend);

#endif
