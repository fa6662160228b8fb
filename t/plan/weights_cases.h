/* t/plan/weights_cases.h - what the sources of t/plan/weights share. */
#ifndef WEIGHTS_CASES_H
#define WEIGHTS_CASES_H

#include "tt.h"

void frozen_cases(Suite *s);
void bound_cases(Suite *s);
void grads_cases(Suite *s);

#endif
