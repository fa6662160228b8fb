/* team.c - te__k_for() of kernels/team.h. */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include "kernels/team.h"
#include "libtecore/backend/host/host.h"

void te__k_for(int64_t n, int64_t grain, te__k_part_fn *fn, void *arg)
{
	(void)grain;
	if (n > 0)
		fn(arg, 0, n);
}
