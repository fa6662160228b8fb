/* t/plan/weights_cases.h - what the sources of t/plan/weights share. */
#ifndef WEIGHTS_CASES_H
#define WEIGHTS_CASES_H

#include <te/seq.h>

#include "tt.h"

struct te_weight_info weight(const struct te_seq *s, int i);

#endif
