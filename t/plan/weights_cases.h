/* t/plan/weights_cases.h - what the sources of t/plan/weights share. */
#ifndef WEIGHTS_CASES_H
#define WEIGHTS_CASES_H

#include <te/seq.h>

#include "tt.h"

struct te_weight_info weight(const struct te_seq *s, int i);

void frozen_cases(Suite *s);
void bound_cases(Suite *s);
void columns_cases(Suite *s);
void hosted_cases(Suite *s);
void grads_cases(Suite *s);
void parts_cases(Suite *s);
void divided_cases(Suite *s);

#endif
