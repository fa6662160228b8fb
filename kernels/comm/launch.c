/* launch.c - device function and launch geometry of the collective kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <errno.h>

#include <te/dtype.h>

#include "kernels/comm/geometry.h"
#include "kernels/launch.h"
#include "libtecore/base/private.h"

/* a function of what the ranks agree on only: block i exchanges flags with block i of the others */
static int64_t nblocks(const struct te_k_comm *a, int64_t nbytes)
{
	const int64_t n = te_k_comm_packets(nbytes);
	const int one_shot = a->algorithm == TE_K_COMM_L1 || a->algorithm == TE_K_COMM_P1;

	return clamp(ceil_div(one_shot ? n : te_k_comm_chunk(n, a->nranks), COMM_THREADS), 1,
		     a->max_blocks);
}

int te__geo_comm_allreduce(const void *args, struct te__geometry *k)
{
	static const char *const func[TE_K_COMM_ALGORITHMS] = {
		[TE_K_COMM_L1] = "te_k_comm_allreduce_l1",
		[TE_K_COMM_P1] = "te_k_comm_allreduce_p1",
		[TE_K_COMM_P2] = "te_k_comm_allreduce_p2",
		[TE_K_COMM_S] = "te_k_comm_allreduce_s",
	};
	const struct te_k_comm *a = args;
	const int64_t nbytes = a->count * (int64_t)te_dtype_nbytes((enum te_dtype)a->dtype);
	const int integers = a->dtype == TE_DTYPE_INT32 || a->dtype == TE_DTYPE_UINT8;

	if ((unsigned)a->algorithm >= TE_K_COMM_ALGORITHMS || (unsigned)a->op >= TE_K_COMM_OPS)
		return te__fail(-EINVAL, "te_k_comm: no algorithm %d with operation %d",
				a->algorithm, a->op);
	if (a->nranks < 1 || a->nranks > TE_K_COMM_RANKS || a->rank < 0 || a->rank >= a->nranks)
		return te__fail(-EINVAL, "te_k_comm: rank %d of %d, at most %d are supported",
				a->rank, a->nranks, TE_K_COMM_RANKS);
	if (a->max_blocks < 1 || a->max_blocks > TE_K_COMM_CTAS)
		return te__fail(-EINVAL, "te_k_comm: %d blocks, expected 1 to %d", a->max_blocks,
				TE_K_COMM_CTAS);
	if (integers && (a->algorithm == TE_K_COMM_P1 || a->algorithm == TE_K_COMM_P2))
		return te__fail(-TE_EDTYPE, "%s: expected a floating type, not %s",
				func[a->algorithm], te_dtype_name((enum te_dtype)a->dtype));
	if (a->half_nbytes < te_k_comm_half_nbytes(a->algorithm, a->nranks, nbytes))
		return te__fail(-TE_ESHAPE, "%s: %lld elements do not fit into packet memory of "
				"%lld bytes", func[a->algorithm], (long long)a->count,
				(long long)a->half_nbytes);
	return te__geo_launch(k, func[a->algorithm], a->count ? nblocks(a, nbytes) : 0,
			      COMM_THREADS);
}
