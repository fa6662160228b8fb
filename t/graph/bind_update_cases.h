/* t/graph/bind_update_cases.h - te_graph_bind(3) and te_graph_update(3) on either backend. */
#ifndef BIND_UPDATE_CASES_H
#define BIND_UPDATE_CASES_H

#include "tt.h"

Suite *bind_update_suite(const char *name, const char *backend);

#endif
