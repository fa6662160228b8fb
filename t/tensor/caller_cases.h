/* t/tensor/caller_cases.h - see caller_cases.c. */
#ifndef CALLER_CASES_H
#define CALLER_CASES_H

#include "tt.h"

Suite *caller_suite(const char *name, const char *on);

#endif
