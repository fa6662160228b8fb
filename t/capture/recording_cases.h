/* t/capture/recording_cases.h - cases of te/capture.h that hold on every backend. */
#ifndef RECORDING_CASES_H
#define RECORDING_CASES_H

#include "tt.h"

/* the suite on the named backend */
Suite *recording_suite(const char *name, const char *backend);

#endif
