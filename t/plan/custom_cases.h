/* t/plan/custom_cases.h - user-defined operations and joint fusions, for both backends. */
#ifndef CUSTOM_CASES_H
#define CUSTOM_CASES_H

#include "tt.h"

/* custom_block.c: a Llama block of such an operation and of such fusions */
void custom_block_cases(Suite *s);

#endif
