/* stats.h - statistics of samples. */
#ifndef STATS_H
#define STATS_H

#include <stddef.h>

struct stats {
	size_t n; /* samples counted; with 0 the other members are 0, too */
	double median, p5, p95, p99, min, max;
	double mad; /* median absolute deviation from the median, not scaled */
};

/* computes statistics of n samples and overwrites x; samples that are not finite do not count */
void stats_of(double *x, size_t n, struct stats *ret);

/*
 * The p-quantile, p in [0,1], of n > 0 sorted samples, interpolated linearly between
 * two samples (Hyndman and Fan 1996, type 7).
 */
double stats_quantile(const double *x, size_t n, double p);

#endif
