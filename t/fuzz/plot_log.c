/* t/fuzz/plot_log.c - te_plot's readers of te_train's logs and values, of any bytes. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "fuzz.h"
#include "tools/plot_log.h"

static void check(const struct curve *c)
{
	for (size_t i = 0; i < c->n; i++)
		if (!isfinite(c->point[i].step) || !isfinite(c->point[i].y) ||
		    (i && c->point[i - 1].step >= c->point[i].step))
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	char why[PLOT_LOG_WHY];
	struct plot_numerics n;
	struct plot_log log;

	if (!plot_numerics_read(fuzz_file(data, nbytes), &n, why)) {
		for (size_t i = 0; i < n.n; i++)
			for (int k = 0; k < PLOT_NNUMERICS; k++)
				check(&n.value[i].curve[k]);
		plot_numerics_free(&n);
	}
	if (plot_log_read(fuzz_file(data, nbytes), &log, why))
		return 0;
	check(&log.train);
	check(&log.val);
	plot_log_free(&log);
	return 0;
}
