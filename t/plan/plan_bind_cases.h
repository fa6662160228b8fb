/* t/plan/plan_bind_cases.h - plans of parts of a sequence, on either backend. */
#ifndef PARTS_CASES_H
#define PARTS_CASES_H

#include "tt.h"

Suite *parts_suite(const char *name, const char *backend);

#endif
