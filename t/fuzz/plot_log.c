/* t/fuzz/plot_log.c - te_plot's reader of te_train's logs, of any bytes. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "fuzz.h"
#include "tools/plot_log.h"

static void check(const struct curve *c)
{
	for (size_t i = 0; i < c->n; i++)
		if (!isfinite(c->point[i].step) || !isfinite(c->point[i].loss) ||
		    (i && c->point[i - 1].step >= c->point[i].step))
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	char why[PLOT_LOG_WHY];
	struct plot_log log;

	if (plot_log_read(fuzz_file(data, nbytes), &log, why))
		return 0;
	check(&log.train);
	check(&log.val);
	plot_log_free(&log);
	return 0;
}
