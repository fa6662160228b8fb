/* t/plan/weights_cases.h - frozen weights and weights without a master, on either backend. */
#ifndef WEIGHTS_CASES_H
#define WEIGHTS_CASES_H

#include "tt.h"

Suite *weights_suite(const char *name, const char *backend);
void frozen_cases(Suite *s);
void bound_cases(Suite *s);

#endif
