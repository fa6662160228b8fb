/* launch.c - device function and launch geometry of the loss kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <te/dtype.h>

#include "kernels/launch.h"
#include "kernels/loss/geometry.h"

int te__geo_ce_fwd(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_fwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_ce_fwd", a->rows,
			threads_for(a->nclasses < a->cols ? a->nclasses : a->cols, TE_V,
				    CE_THREADS));
}

int te__geo_ce_join(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_join *a = args;

	return te__geo_launch(k, "te_k_ce_join", ceil_div(a->rows, CE_JOIN_THREADS),
			      CE_JOIN_THREADS);
}

int te__geo_ce_reduce(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_reduce *a = args;

	return te__geo_launch(k, "te_k_ce_reduce", 1,
			      threads_for(a->rows, CE_REDUCE_ROWS, CE_REDUCE_THREADS));
}

int te__geo_ce_count(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_reduce *a = args;

	return te__geo_launch(k, "te_k_ce_count", 1,
			      threads_for(a->rows, CE_REDUCE_ROWS, CE_REDUCE_THREADS));
}

/* the threads of te_k_ce_fwd, for the same order of additions */
int te__geo_ce_grad(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_grad *a = args;
	const int64_t n = a->nclasses < a->cols ? a->nclasses : a->cols;
	const unsigned nthreads = threads_for(n, TE_V, CE_THREADS);
	const int64_t nsteps = ceil_div(n, (int64_t)nthreads * TE_V);
	const int64_t step = (int64_t)nthreads * TE_V * (a->dtype == TE_DTYPE_BF16 ? 2 : 4);
	const int64_t nheld = CE_HELD_NBYTES(k->target.arch) / step; /* steps in shared memory */
	int r;

	if (!whole_vectors(a->cols, a->logits, a->dlogits, NULL, NULL) ||
	    (nsteps > nheld &&
	     (a->dtype != TE_DTYPE_BF16 || nsteps > nheld + CE_HELD_VECTORS)))
		return LAUNCH_T(k, a->dtype, "te_k_ce_grad_twice", a->rows, nthreads);
	if (nsteps > nheld)
		r = te__geo_launch(k, "te_k_ce_grad_long_bf16", a->rows, nthreads);
	else
		r = LAUNCH_T(k, a->dtype, "te_k_ce_grad", a->rows, nthreads);
	k->smem = (unsigned)((nsteps < nheld ? nsteps : nheld) * step);
	return r;
}

int te__geo_ce_bwd(const void *args, struct te__geometry *k)
{
	const struct te_k_ce_bwd *a = args;

	return LAUNCH_T(k, a->dtype, "te_k_ce_bwd", a->rows,
			threads_for(a->cols, TE_V, CE_THREADS));
}
