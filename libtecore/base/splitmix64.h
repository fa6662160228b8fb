/*
 * te/splitmix64.h - the random numbers of libraries, tools and tests where any will do that a seed
 * repeats. Not installed.
 */
#ifndef TE_SPLITMIX64_H
#define TE_SPLITMIX64_H

#include <stdint.h>

#define TE__SPLITMIX64_STEP UINT64_C(0x9e3779b97f4a7c15) /* step of the state for each number */

/* the next number; any state is a seed (Steele, Lea, Flood, OOPSLA 2014) */
static inline uint64_t te__splitmix64(uint64_t *state)
{
	uint64_t z = *state += TE__SPLITMIX64_STEP;

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

#endif
