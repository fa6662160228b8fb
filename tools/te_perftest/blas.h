/* blas.h - rates on the host: for each core, and compared with the BLAS that was configured. */
#ifndef BLAS_H
#define BLAS_H

#include "bench.h"

/* nsets triples of FP32 matrices, d [m, n] = a [m, k] w [n, k]^T; each call takes the next */
struct blas {
	struct bench *b; /* the caller sets b, m, n and k; the rest is 0 */
	int64_t m, n, k;
	int nsets, at, batch;
	float *a, *w, *d; /* nsets of each */
};

/* returns 1 if the device is the host and there is a BLAS */
int blas_there(const struct bench *b);
/* returns an exit status; the caller frees s in any case */
int blas_alloc(struct blas *s);
void blas_free(struct blas *s);
/* queues one product; a bench_work */
int blas_work(void *arg);

/*
 * Adds flop_per_s and the fraction of the peak to the row; on the host also the rate per core, and
 * where there is a BLAS, its time us and the quotient of both rates.
 */
void rate_report(struct bench *b, double flop_per_s, double peak, const struct blas *s,
		 const struct stats *us);
/* columns of these figures, for a test's list */
#define RATE_COLUMNS                                                                          \
	{ "flop_per_s", "rate\nTFLOP/s", 1e-12, 0 },                                          \
		{ "flop_per_s_per_core", "a core\nGFLOP/s", 1e-9, 0 },                        \
		{ "blas_us", "BLAS\nus", 0, 1 }, { "blas_ratio", "of BLAS\n%", 100, 0 },      \
		{ "peak_ratio", "of peak\n%", 100, 0 }

#endif
