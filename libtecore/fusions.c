/* fusions.c - the fusions that come with the library. */
#include "config.h"

#include "libtecore/plan_internal.h"

const struct te_fusion te__fusions[] = { { .size = sizeof(struct te_fusion) } };
const int te__nfusions = 0;
