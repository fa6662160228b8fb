/* t/graph/graph_cases.h - te_graph_*(3) on either backend. */
#ifndef GRAPH_CASES_H
#define GRAPH_CASES_H

#include "tt.h"

Suite *graph_suite(const char *name, const char *backend);

#endif
