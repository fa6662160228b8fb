/* stats.h - what a row of samples says. */
#ifndef STATS_H
#define STATS_H

#include <stddef.h>

struct stats {
	size_t n; /* samples counted; 0: the others are 0 too */
	double median, p5, p95, min, max;
	double mad; /* median absolute deviation from the median, not scaled */
};

/* of n samples, which are overwritten; those that are not finite are left out */
void stats_of(double *x, size_t n, struct stats *ret);

/*
 * The value below which a part p, 0 to 1, of n > 0 samples in order lies: between
 * two samples on the straight line that joins them (Hyndman and Fan 1996, type 7).
 */
double stats_quantile(const double *x, size_t n, double p);

#endif
