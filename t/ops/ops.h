/* t/ops/ops.h - parts of the suite of t/ops/ops.c. */
#ifndef OPS_H
#define OPS_H

#include "tt.h"

void ops_linear_cases(Suite *s);
void ops_use_cases(Suite *s);

#endif
