/* gemm_cache.h - the file that keeps cuBLASLt's fastest algorithm of each GEMM problem. */
#ifndef TE__GEMM_CACHE_H
#define TE__GEMM_CACHE_H

#include <stdint.h>

#include "libtecore/backend/cuda/cublaslt_api.h"

/* identifies a problem; has no padding, because it is compared as bytes */
struct te__gemm_key {
	int64_t m, n, k;
	int32_t a_t, b_t, adtype, bdtype, ddtype, bias, beta, scaled;
	int32_t align; /* alignment of all pointers, in bytes, at most 256 */
	int32_t tf32;
	int32_t asc, bsc; /* enum te_k_scaling */
	int32_t part, unused; /* part: of a GEMM in parts, with a smaller workspace */
};

/* does cuBLASLt accept the algorithm for the problem? */
typedef int te__gemm_accept_fn(void *arg, const struct te__lt_algo *algo);

/*
 * Calls accept() for each algorithm that the file at path has for the key, in the order of the
 * file: the last accepted one is the newest. Returns 1 if one was accepted. Logs damaged lines.
 */
int te__gemm_cache_find(const char *path, const struct te__gemm_key *key,
			te__gemm_accept_fn *accept, void *arg);
/* append an algorithm; a failure is logged, and the next process tunes again */
void te__gemm_cache_add(const char *path, const struct te__gemm_key *key,
			const struct te__lt_algo *algo);

#endif
