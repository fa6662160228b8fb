/*
 * fold.h - the sums of comm.h on the host, for operations between nodes: the same bits, whether
 * the inputs of all ranks are added at once, or on one node after the other.
 */
#ifndef TE__COMM_FOLD_H
#define TE__COMM_FOLD_H

#include <stdint.h>

#include <te/export.h>

/*
 * Floating types: acc = x, or acc = acc op x, of n elements. In rank order; then
 * te__comm_fold_end() divides averages and rounds once.
 */
TE_EXPORT void te__comm_fold(int32_t dtype, int32_t op, int first, const void *x, int64_t n,
			     float *acc);
TE_EXPORT void te__comm_fold_end(int32_t dtype, int32_t op, int32_t nranks, const float *acc,
				 int64_t n, void *out);
/* any type: src[r] is of rank r; out is none of them */
TE_EXPORT void te__comm_reduce(int32_t dtype, int32_t op, int32_t nranks, const void *const *src,
			       int64_t n, void *out);

#endif
