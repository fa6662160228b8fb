/* t/backend/backend_cases.h - cases of a backend's table that hold on every backend. */
#ifndef BACKEND_CASES_H
#define BACKEND_CASES_H

#include "tt.h"

/* the suite on the named backend */
Suite *backend_suite(const char *name, const char *backend);

#endif
