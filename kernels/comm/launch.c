/* launch.c - device function and launch geometry of the collective kernels. */
#define TE_LOG_CATEGORY "core/cuda"
#include "config.h"

#include <errno.h>

#include <te/dtype.h>

#include "kernels/comm/geometry.h"
#include "kernels/launch.h"
#include "libtecore/base/private.h"

/* all: for any number of ranks */
#define ALL(name) { name, name, name }
/* for 2, 4 and 8, or any other number */
#define OF_RANKS(name) { name "_2", name "_4", name "_8" }
#define FUNCS(name)                                                                        \
	[TE_K_COMM_LL] = ALL("te_k_comm_" name "_ll"),                                     \
	[TE_K_COMM_ZERO_COPY] = ALL("te_k_comm_" name "_zerocopy"),                        \
	[TE_K_COMM_STAGED] = ALL("te_k_comm_" name "_staged")

static const char *const funcs[][TE_K_COMM_ALGORITHMS][3] = {
	[TE_K_COLL_ALLREDUCE] = {
		FUNCS("allreduce"),
		[TE_K_COMM_ONE_SHOT] = OF_RANKS("te_k_comm_allreduce_oneshot"),
		[TE_K_COMM_TWO_SHOT] = OF_RANKS("te_k_comm_allreduce_twoshot"),
		[TE_K_COMM_NVLS] = ALL("te_k_comm_allreduce_nvls"),
		[TE_K_COMM_NVLS_ONE_SHOT] = ALL("te_k_comm_allreduce_nvls_oneshot"),
	},
	[TE_K_COLL_REDUCE_SCATTER] = {
		FUNCS("reduce_scatter"),
		[TE_K_COMM_ONE_SHOT] = OF_RANKS("te_k_comm_reduce_scatter_oneshot"),
	},
	[TE_K_COLL_ALL_GATHER] = {
		FUNCS("all_gather"),
		[TE_K_COMM_ONE_SHOT] = OF_RANKS("te_k_comm_all_gather_oneshot"),
	},
	[TE_K_COLL_BROADCAST] = { FUNCS("broadcast") },
};

static int by_ranks(const struct te_k_comm *a)
{
	return a->nranks == 2 ? 0 : a->nranks == 4 ? 1 : 2;
}

static bool is_one_shot(const struct te_k_comm *a)
{
	return a->algorithm == TE_K_COMM_LL || a->algorithm == TE_K_COMM_ONE_SHOT ||
	       a->algorithm == TE_K_COMM_NVLS_ONE_SHOT;
}

/* depends only on values equal on all ranks: block i exchanges flags with block i of the others */
static int64_t nblocks(const struct te_k_comm *a, enum te_k_comm_collective what, int64_t nbytes)
{
	const int64_t n = te_k_comm_packets(nbytes);
	const int whole = is_one_shot(a) || what == TE_K_COLL_REDUCE_SCATTER ||
			  what == TE_K_COLL_ALL_GATHER;

	return clamp(ceil_div(whole ? n : te_k_comm_chunk(n, a->nranks), COMM_THREADS), 1,
		     a->max_blocks);
}

/* a packet for each, and the warp of headers after them */
static int64_t one_shot_threads(int64_t nbytes)
{
	const int64_t n = te_k_comm_packets(nbytes);

	return clamp(ceil_div(n, 32) * 32, 32, COMM_THREADS) + COMM_HEADER_THREADS;
}

static int root_fits(const struct te_k_comm *a, enum te_k_comm_collective what)
{
	if (what == TE_K_COLL_BROADCAST)
		return a->root >= 0 && a->root < a->nranks;
	return !a->root || (a->root == TE_K_COMM_BARRIER && what == TE_K_COLL_ALLREDUCE &&
			    a->op == TE_K_COMM_MAX);
}

static int geometry(const struct te_k_comm *a, enum te_k_comm_collective what,
		    struct te__geometry *k)
{
	const int64_t nbytes = a->count * (int64_t)te_dtype_nbytes((enum te_dtype)a->dtype);
	const int integers = a->dtype == TE_DTYPE_INT32 || a->dtype == TE_DTYPE_UINT8;
	const char *func = (unsigned)a->algorithm < TE_K_COMM_ALGORITHMS ?
				   funcs[what][a->algorithm][by_ranks(a)] :
				   NULL;

	if (!func || (unsigned)a->op >= TE_K_COMM_OPS)
		return te__fail(-EINVAL, "te_k_comm: no algorithm %d with operation %d",
				a->algorithm, a->op);
	if (a->nranks < 1 || a->nranks > TE_K_COMM_RANKS || a->rank < 0 || a->rank >= a->nranks ||
	    !root_fits(a, what))
		return te__fail(-EINVAL, "te_k_comm: rank %d of %d, root %d, at most %d ranks are "
				"supported", a->rank, a->nranks, a->root, TE_K_COMM_RANKS);
	if (a->max_blocks < 1 || a->max_blocks > TE_K_COMM_CTAS)
		return te__fail(-EINVAL, "te_k_comm: %d blocks, expected 1 to %d", a->max_blocks,
				TE_K_COMM_CTAS);
	if (a->algorithm >= TE_K_COMM_NVLS && !a->multicast)
		return te__fail(-EINVAL, "%s: there is no multicast memory", func);
	if (a->algorithm == TE_K_COMM_NVLS &&
	    (integers || te_dtype_nbytes((enum te_dtype)a->dtype) == 1 || a->op > TE_K_COMM_AVG ||
	     ((uintptr_t)a->in | (uintptr_t)a->out) % TE_K_COMM_PACKET))
		return te__fail(-EINVAL, "%s takes sums and averages of FP32, BF16 and FP16, "
				"aligned to %d bytes", func, TE_K_COMM_PACKET);
	if (integers && (a->algorithm == TE_K_COMM_ONE_SHOT || a->algorithm == TE_K_COMM_TWO_SHOT ||
			 a->algorithm == TE_K_COMM_NVLS_ONE_SHOT))
		return te__fail(-TE_EDTYPE, "%s: expected a floating type, not %s", func,
				te_dtype_name((enum te_dtype)a->dtype));
	if (a->buffer_nbytes < te_k_comm_buffer_nbytes(a->algorithm, a->nranks, nbytes))
		return te__fail(-TE_ESHAPE, "%s: %lld elements do not fit into packet memory of "
				"%lld bytes", func, (long long)a->count,
				(long long)a->buffer_nbytes);
	return te__geo_launch(k, func, a->count ? nblocks(a, what, nbytes) : 0,
			      is_one_shot(a) ? one_shot_threads(nbytes) : COMM_THREADS);
}

int te__geo_comm_allreduce(const void *args, struct te__geometry *k)
{
	return geometry(args, TE_K_COLL_ALLREDUCE, k);
}

int te__geo_comm_reduce_scatter(const void *args, struct te__geometry *k)
{
	return geometry(args, TE_K_COLL_REDUCE_SCATTER, k);
}

int te__geo_comm_all_gather(const void *args, struct te__geometry *k)
{
	return geometry(args, TE_K_COLL_ALL_GATHER, k);
}

int te__geo_comm_broadcast(const void *args, struct te__geometry *k)
{
	return geometry(args, TE_K_COLL_BROADCAST, k);
}

/* ---- parts of a reduction ---- */

int te__geo_comm_fold(const void *args, struct te__geometry *k)
{
	static const char *const func[] = {
		[TE_DTYPE_FP32] = "te_k_comm_fold_fp32", [TE_DTYPE_BF16] = "te_k_comm_fold_bf16",
		[TE_DTYPE_FP16] = "te_k_comm_fold_fp16", [TE_DTYPE_E4M3] = "te_k_comm_fold_e4m3",
		[TE_DTYPE_E5M2] = "te_k_comm_fold_e5m2",
	};
	const struct te_k_comm_fold *a = args;

	if ((unsigned)a->dtype >= sizeof(func) / sizeof(func[0]))
		return te__fail(-TE_EDTYPE, "te_k_comm_fold: expected a floating type, not %s",
				te_dtype_name((enum te_dtype)a->dtype));
	if ((unsigned)a->op >= TE_K_COMM_OPS || a->nin < 1 || a->nranks < a->nin)
		return te__fail(-EINVAL, "te_k_comm_fold: operation %d with %d of %d ranks", a->op,
				a->nin, a->nranks);
	if (!a->in || !(a->sums || a->out))
		return te__fail(-EINVAL, "te_k_comm_fold: no %s", a->in ? "output" : "input");
	return te__geo_launch(k, func[a->dtype],
			      clamp(ceil_div(a->n, COMM_FOLD_THREADS * 4), a->n ? 1 : 0,
				    COMM_FOLD_BLOCKS), COMM_FOLD_THREADS);
}

/* ---- messages ---- */

static int64_t nlanes_of(const struct te_k_comm_messages *a, int sends, int r, int64_t *ret_nbytes)
{
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)a->comm.dtype);
	const int64_t n = es * (sends ? a->in_count : a->out_count)[r];

	*ret_nbytes = n > *ret_nbytes ? n : *ret_nbytes;
	return te_k_comm_lanes(a, n);
}

/* the message of a rank to itself is one, and nothing to do if it stays where it is */
static int64_t messages_blocks(const struct te_k_comm_messages *a, int64_t *ret_nbytes)
{
	const int me = a->comm.rank;
	int64_t nlanes = 0, most = 0, n = 0;

	*ret_nbytes = 0;
	for (int r = 0; r < a->comm.nranks; r++) {
		for (int sends = 0; sends < 2; sends++)
			if ((sends ? a->sends : a->receives) >> r & 1 && (r != me || !sends)) {
				n++;
				nlanes = nlanes_of(a, sends, r, ret_nbytes);
				most = nlanes > most ? nlanes : most;
			}
	}
	return a->kind == TE_K_COMM_REDUCE ? most : n * most;
}

int te__geo_comm_messages(const void *args, struct te__geometry *k)
{
	const struct te_k_comm_messages *a = args;
	int64_t nbytes, nblocks;

	if ((unsigned)a->kind >= TE_K_COMM_KINDS || (unsigned)a->comm.op >= TE_K_COMM_OPS)
		return te__fail(-EINVAL, "te_k_comm_messages: no kind %d with operation %d",
				a->kind, a->comm.op);
	if (a->comm.nranks < 1 || a->comm.nranks > TE_K_COMM_RANKS || a->comm.rank < 0 ||
	    a->comm.rank >= a->comm.nranks || (a->sends | a->receives) >> a->comm.nranks)
		return te__fail(-EINVAL, "te_k_comm_messages: rank %d of %d, at most %d ranks are "
				"supported", a->comm.rank, a->comm.nranks, TE_K_COMM_RANKS);
	if (a->nlanes != TE_K_COMM_LANES)
		return te__fail(-EINVAL, "te_k_comm_messages: %d lanes, expected %d", a->nlanes,
				TE_K_COMM_LANES);
	nblocks = messages_blocks(a, &nbytes);
	if (nblocks > a->comm.max_blocks)
		return te__fail(-EOPNOTSUPP, "te_k_comm_messages: %lld messages need as many "
				"blocks at once, and there is room for %d", (long long)nblocks,
				a->comm.max_blocks);
	if (a->kind == TE_K_COMM_REDUCE && a->comm.nranks > 1 && a->receives)
		return te__geo_launch(k, "te_k_comm_messages_reduce", nblocks, COMM_THREADS);
	/* a packet for each thread of small messages, and the warp after these */
	return te__geo_launch(k, "te_k_comm_messages", nblocks,
			      (te_k_comm_is_small(a, nbytes) ?
				       clamp(ceil_div(te_k_comm_packets(nbytes), 32) * 32, 32,
					     COMM_THREADS) :
				       COMM_THREADS) + COMM_HEADER_THREADS);
}

/* 1: all ends are messages to or from other ranks, in lists that end */
static int ends_fit(const struct te_k_comm_group *a)
{
	for (int32_t i = 0; i < a->n; i++)
		if (a->ends[i].peer < 0 || a->ends[i].peer >= a->comm.nranks ||
		    a->ends[i].peer == a->comm.rank || a->ends[i].next >= a->n ||
		    (a->ends[i].next >= 0 && a->ends[i].next <= i))
			return 0;
	return 1;
}

int te__geo_comm_group(const void *args, struct te__geometry *k)
{
	const struct te_k_comm_group *a = args;
	struct te_k_comm_messages m = { .comm = a->comm, .nlanes = a->nlanes };
	uint32_t seen[2] = { 0, 0 };
	int64_t nchains, most = 1, room;

	if (a->n < 1 || a->n > TE_K_COMM_ENDS || a->nlanes != TE_K_COMM_LANES ||
	    a->comm.nranks < 2 || a->comm.nranks > TE_K_COMM_RANKS || !ends_fit(a))
		return te__fail(-EINVAL, "te_k_comm_group: %d ends and %d lanes on rank %d of %d, "
				"expected 1 to %d ends, %d lanes and at most %d ranks", a->n,
				a->nlanes, a->comm.rank, a->comm.nranks, TE_K_COMM_ENDS,
				TE_K_COMM_LANES, TE_K_COMM_RANKS);
	for (int32_t i = 0; i < a->n; i++) {
		te_k_comm_set_message(&m, a->ends[i].signature);
		most = te_k_comm_lanes(&m, a->ends[i].nbytes) > most ?
			       te_k_comm_lanes(&m, a->ends[i].nbytes) : most;
		seen[a->ends[i].sends] |= 1u << a->ends[i].peer;
	}
	nchains = __builtin_popcount(seen[0]) + __builtin_popcount(seen[1]);
	room = a->comm.max_blocks / nchains;
	if (!room)
		return te__fail(-EOPNOTSUPP, "te_k_comm_group: messages to or from %lld ranks need "
				"as many blocks at once, and there is room for %d",
				(long long)nchains, a->comm.max_blocks);
	return te__geo_launch(k, "te_k_comm_group", nchains * clamp(room, 1, most),
			      COMM_THREADS + COMM_HEADER_THREADS);
}

/* ---- with residual, norm and FP8 ---- */

#define NORM "te_k_comm_norm"

static int norm_check_comm(const struct te_k_comm_norm *a)
{
	const struct te_k_comm *c = &a->comm;
	int64_t need;

	if (c->nranks < 1 || c->nranks > TE_K_COMM_RANKS || c->rank < 0 || c->rank >= c->nranks)
		return te__fail(-EINVAL, NORM ": rank %d of %d, at most %d are supported", c->rank,
				c->nranks, TE_K_COMM_RANKS);
	if (c->max_blocks < 1 || c->max_blocks > TE_K_COMM_CTAS)
		return te__fail(-EINVAL, NORM ": %d blocks, expected 1 to %d", c->max_blocks,
				TE_K_COMM_CTAS);
	if ((c->algorithm != TE_K_COMM_ONE_SHOT && c->algorithm != TE_K_COMM_TWO_SHOT) ||
	    c->op != TE_K_COMM_SUM)
		return te__fail(-EINVAL, NORM ": no algorithm %d with operation %d, expected "
				"oneshot or twoshot, and SUM", c->algorithm, c->op);
	if (c->algorithm == TE_K_COMM_ONE_SHOT && (a->flags & TE_K_COMM_RESIDUAL_SHARDED))
		return te__fail(-EINVAL, NORM ": a sharded residual needs the two-shot algorithm");
	need = te_k_comm_norm_buffer_nbytes(a);
	if (c->buffer_nbytes < need)
		return te__fail(-TE_ESHAPE, NORM ": %lld x %lld elements need packet memory of "
				"%lld bytes, there are %lld", (long long)a->rows,
				(long long)a->cols, (long long)need, (long long)c->buffer_nbytes);
	return 0;
}

/* codes that no other rank sends are stored 8 or 4 at a time, and so may belong to later rows */
static uintptr_t codes_align(const struct te_k_comm_norm *a)
{
	return a->comm.nranks > 1 ? TE_K_COMM_PACKET : a->cols % 8 ? 4 : 8;
}

static int norm_check_arrays(const struct te_k_comm_norm *a)
{
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)a->comm.dtype);

	if (a->cols * es % TE_K_COMM_PACKET || a->cols < 1 || a->cols > TE_K_COMM_NORM_COLS)
		return te__fail(-TE_ESHAPE, NORM ": rows of %lld elements of %s, expected a "
				"multiple of %lld, at most %d", (long long)a->cols,
				te_dtype_name((enum te_dtype)a->comm.dtype),
				(long long)(TE_K_COMM_PACKET / es), TE_K_COMM_NORM_COLS);
	if (a->rows < 0 || a->rows >> 24)
		return te__fail(-TE_ESHAPE, NORM ": %lld rows, at most %d are supported",
				(long long)a->rows, (1 << 24) - 1);
	if (!a->gamma || (a->codes && !a->scale_inv) ||
	    (a->codes && !a->scale && a->scaling == TE_K_COMM_SCALING_TENSOR))
		return te__fail(-EINVAL, NORM ": gamma, or a scale of the codes, is missing");
	if (((uintptr_t)a->comm.in | (uintptr_t)a->comm.out | (uintptr_t)a->residual |
	     (uintptr_t)a->residual_out | (uintptr_t)a->y | (uintptr_t)a->gamma) %
		    TE_K_COMM_PACKET ||
	    (uintptr_t)a->codes % codes_align(a))
		return te__fail(-EINVAL, NORM ": arrays must be aligned to %d bytes",
				TE_K_COMM_PACKET);
	return 0;
}

/* gamma, a row and for the gradient of a norm its input */
static unsigned rows_smem(const struct te_k_comm_norm *a)
{
	const unsigned es = a->comm.dtype == TE_DTYPE_FP32 ? 4 : 2;

	return (unsigned)a->cols * (4 + es + (a->x ? es : 0));
}

uint32_t te__comm_norm_smem(const struct te_k_comm_norm *a)
{
	return rows_smem(a) + COMM_NORM_SHARED;
}

static int geo_norm(const struct te_k_comm_norm *a, const char *const func[2][3][3],
		    struct te__geometry *k)
{
	const int two_shot = a->comm.algorithm == TE_K_COMM_TWO_SHOT;
	int64_t rows;
	int r;

	if (a->comm.dtype != TE_DTYPE_FP32 && a->comm.dtype != TE_DTYPE_BF16 &&
	    a->comm.dtype != TE_DTYPE_FP16)
		return te__fail(-TE_EDTYPE, NORM " takes FP32, BF16 and FP16, not %s",
				te_dtype_name((enum te_dtype)a->comm.dtype));
	if ((unsigned)a->scaling >= TE_K_COMM_SCALINGS ||
	    (a->codes && a->qdtype != TE_DTYPE_E4M3 && a->qdtype != TE_DTYPE_E5M2))
		return te__fail(-EINVAL, NORM ": no codes %d with scaling %d", a->qdtype,
				a->scaling);
	if (!(r = norm_check_arrays(a)))
		r = norm_check_comm(a);
	if (r)
		return r;
	/* depends only on values equal on all ranks */
	rows = two_shot ? te_k_comm_norm_first(a, 1) : a->rows;
	k->smem = rows_smem(a);
	return te__geo_launch(k, func[two_shot][a->comm.dtype][by_ranks(&a->comm)],
			      a->rows ? clamp(rows, 1, a->comm.max_blocks) : 0,
			      threads_for(a->cols, TE_V, COMM_NORM_THREADS));
}

int te__geo_comm_norm(const void *args, struct te__geometry *k)
{
	static const char *const func[2][3][3] = {
		{ OF_RANKS(NORM "_oneshot_fp32"), OF_RANKS(NORM "_oneshot_bf16"),
		  OF_RANKS(NORM "_oneshot_fp16") },
		{ OF_RANKS(NORM "_twoshot_fp32"), OF_RANKS(NORM "_twoshot_bf16"),
		  OF_RANKS(NORM "_twoshot_fp16") },
	};
	const struct te_k_comm_norm *a = args;

	if (a->x)
		return te__fail(-EINVAL, NORM ": x is an argument of " NORM "_bwd only");
	return geo_norm(a, func, k);
}

int te__geo_comm_norm_bwd(const void *args, struct te__geometry *k)
{
	static const char *const func[2][3][3] = {
		{ OF_RANKS(NORM "_bwd_oneshot_fp32"), OF_RANKS(NORM "_bwd_oneshot_bf16"),
		  OF_RANKS(NORM "_bwd_oneshot_fp16") },
		{ OF_RANKS(NORM "_bwd_twoshot_fp32"), OF_RANKS(NORM "_bwd_twoshot_bf16"),
		  OF_RANKS(NORM "_bwd_twoshot_fp16") },
	};
	const struct te_k_comm_norm *a = args;

	if (!a->x || !a->x_rstd || (uintptr_t)a->x % TE_K_COMM_PACKET)
		return te__fail(-EINVAL, NORM "_bwd: x, aligned to %d bytes, and x_rstd are needed",
				TE_K_COMM_PACKET);
	if (a->rstd || a->codes || a->amax)
		return te__fail(-EINVAL, NORM "_bwd: there are no outputs but the sum and y");
	if (a->residual_out && a->comm.nranks > 1 && !(a->flags & TE_K_COMM_RESIDUAL_SHARDED))
		return te__fail(-EINVAL, NORM "_bwd: residual_out needs a sharded residual");
	return geo_norm(a, func, k);
}
