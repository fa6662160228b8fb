/* stats.c - median and spread of samples. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "stats.h"

static int order(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double stats_quantile(const double *x, size_t n, double p)
{
	double at = p * (double)(n - 1);
	size_t i = (size_t)at;

	if (i + 1 >= n)
		return x[n - 1];
	return x[i] + (at - (double)i) * (x[i + 1] - x[i]);
}

void stats_of(double *x, size_t n, struct stats *ret)
{
	size_t kept = 0;

	memset(ret, 0, sizeof(*ret));
	for (size_t i = 0; i < n; i++) {
		if (isfinite(x[i]))
			x[kept++] = x[i];
	}
	if (!kept)
		return;
	qsort(x, kept, sizeof(*x), order);
	ret->n = kept;
	ret->median = stats_quantile(x, kept, 0.5);
	ret->p5 = stats_quantile(x, kept, 0.05);
	ret->p95 = stats_quantile(x, kept, 0.95);
	ret->p99 = stats_quantile(x, kept, 0.99);
	ret->min = x[0];
	ret->max = x[kept - 1];
	for (size_t i = 0; i < kept; i++)
		x[i] = fabs(x[i] - ret->median);
	qsort(x, kept, sizeof(*x), order);
	ret->mad = stats_quantile(x, kept, 0.5);
}
