/* blas.c - rates on the host: for each core, and compared with the BLAS that was configured. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CBLAS
#include <cblas.h>
#endif

#include <te/param.h>

#include "blas.h"
#include "tools/lib/say.h"

static int is_host(const struct bench *b)
{
	return !strcmp(b->dev.backend, "host");
}

int blas_there(const struct bench *b)
{
#ifdef HAVE_CBLAS
	return is_host(b);
#else
	(void)b;
	return 0;
#endif
}

static float *normal(struct bench *b, int64_t n)
{
	float *p = malloc((size_t)n * sizeof(*p));

	if (p)
		bench_normal(b, p, (size_t)n);
	return p;
}

int blas_alloc(struct blas *s)
{
	const int64_t mk = s->m * s->k, nk = s->n * s->k, mn = s->m * s->n;

	if (!blas_there(s->b))
		return STATUS_OK;
	s->nsets = bench_nsets(s->b, sizeof(float) * (double)(mk + nk + mn));
	s->a = normal(s->b, s->nsets * mk);
	s->w = normal(s->b, s->nsets * nk);
	s->d = calloc((size_t)(s->nsets * mn), sizeof(*s->d));
	if (!s->a || !s->w || !s->d)
		return say_bad("no memory for matrices of a BLAS");
	return bench_batch(s->b, blas_work, s, 1000, 1, 16, &s->batch);
}

void blas_free(struct blas *s)
{
	te_stream_sync(s->b->stream);
	free(s->a);
	free(s->w);
	free(s->d);
}

/* in stream order */
static void multiply(void *arg)
{
#ifdef HAVE_CBLAS
	const struct blas *s = arg;
	const int m = (int)s->m, n = (int)s->n, k = (int)s->k;

	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1,
		    s->a + s->at * s->m * s->k, k, s->w + s->at * s->n * s->k, k, 0,
		    s->d + s->at * s->m * s->n, n);
#else
	(void)arg;
#endif
}

int blas_work(void *arg)
{
	struct blas *s = arg;
	int r = te_host_call(s->b->stream, multiply, s, sizeof(*s)); /* copies s */

	s->at = (s->at + 1) % s->nsets;
	return r;
}

/* cores that the threads of a kernel run on */
static double cores(const struct bench *b)
{
	struct te_param_info p = TE_PARAM_INFO_INIT;
	double n = 0;

	for (size_t i = 0; i < te_param_count(); i++)
		if (!te_param_info(i, &p) && !strcmp(p.name, "TE_HOST_THREADS"))
			n = strtod(p.value, NULL);
	/* 0: as many threads as cores, 64 at most */
	return fmin(n > 0 ? n : 64, b->dev.nprocs);
}

void rate_report(struct bench *b, double flop_per_s, double peak, const struct blas *s,
		 const struct stats *us)
{
	const double flop = 2 * (double)s->m * (double)s->n * (double)s->k;

	bench_num(b, "flop_per_s", flop_per_s);
	if (is_host(b))
		bench_num(b, "flop_per_s_per_core", flop_per_s / cores(b));
	if (blas_there(b)) {
		bench_stats(b, "blas_us", us);
		bench_num(b, "blas_ratio",
			  us->n ? flop_per_s / (flop / us->median * 1e6) : NAN);
	}
	bench_num(b, "peak_ratio", flop_per_s / (peak > 0 ? peak : NAN));
}
