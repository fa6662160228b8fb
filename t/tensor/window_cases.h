/* t/tensor/window_cases.h - the cases of windows, for each backend. */
#ifndef WINDOW_CASES_H
#define WINDOW_CASES_H

#include "tt.h"

Suite *window_suite(const char *name, const char *on);

#endif
