/* t/kernels/attn_cases.h - the attention kernels of either backend against FP64. */
#ifndef ATTN_CASES_H
#define ATTN_CASES_H

#include "tt.h"

void attn_cases(Suite *s, const char *on);

#endif
