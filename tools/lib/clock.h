/* clock.h - a clock that neither users nor time servers set, for intervals. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>
#include <time.h>

/* also for signal handlers */
static inline int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double now_s(void)
{
	return 1e-9 * (double)now_ns();
}

#endif
