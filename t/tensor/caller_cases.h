/* t/tensor/caller_cases.h - see caller_cases.c. */
#ifndef CALLER_CASES_H
#define CALLER_CASES_H

#include "tt.h"

/* a CUstream of the program, always the same; NULL on host */
extern void *(*caller_native)(void);

#endif
