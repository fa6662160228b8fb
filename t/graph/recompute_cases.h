/* t/graph/recompute_cases.h - te_op_recompute(3) on either backend. */
#ifndef RECOMPUTE_CASES_H
#define RECOMPUTE_CASES_H

#include "tt.h"

Suite *recompute_suite(const char *name, const char *backend);
/* recompute_ops.c */
void recompute_op_cases(Suite *s);

#endif
