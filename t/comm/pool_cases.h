/* t/comm/pool_cases.h - symmetric memory with threads as ranks, on either backend. */
#ifndef POOL_CASES_H
#define POOL_CASES_H

#include "tt.h"

void pool_cases(Suite *s);

#endif
