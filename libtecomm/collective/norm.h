/* norm.h - shared by the two files of te_comm_allreduce_norm(3). */
#ifndef TE__COMM_NORM_H
#define TE__COMM_NORM_H

#include "kernels/launch.h"
#include "libtecomm/collective/comm.h"

#define TE__COMM_NORM_ALIGN 256 /* alignment of ws and its parts, in bytes */

/* the arguments of a call; in k.comm: in, out (s), count, dtype and op */
struct te__comm_norm {
	const char *fn;
	struct te_comm *comm;
	struct te_k_comm_norm k; /* k.x: backward */
	struct te_comm_call_opts call;
	void *ws;
	size_t ws_nbytes;
	uint32_t unknown; /* flags */
};

struct te__comm_norm_how {
	int packets;		 /* 1: te_k_comm_norm supports the rows */
	int fused;		 /* 1: te_k_comm_norm also does the exchange */
	struct te_k_comm_norm k; /* arguments of that kernel */
	char reason[120];
};

static inline int te__comm_norm_is_backward(const struct te__comm_norm *a)
{
	return a->k.x != NULL;
}

static inline int te__comm_norm_nranks(const struct te__comm_norm *a)
{
	return te__boot_nranks(a->comm->boot);
}

/* has each rank only its own rows of the residual? */
static inline int te__comm_norm_is_sharded(const struct te__comm_norm *a)
{
	return a->k.flags & TE_K_COMM_RESIDUAL_SHARDED && te__comm_norm_nranks(a) > 1;
}

/* do 128 columns share a scale? */
static inline int te__comm_norm_is_block(const struct te__comm_norm *a)
{
	return a->k.codes && a->k.scaling == TE_K_COMM_SCALING_BLOCK;
}

static inline int64_t te__comm_norm_nbytes(const struct te__comm_norm *a)
{
	return a->k.comm.count * (int64_t)te_dtype_nbytes((enum te_dtype)a->k.comm.dtype);
}

/* the first row that the rank owns */
static inline int64_t te__comm_norm_first(const struct te__comm_norm *a, int32_t rank)
{
	const struct te_k_comm_norm k = { .rows = a->k.rows,
					  .comm = { .nranks = te__comm_norm_nranks(a) } };

	return te_k_comm_norm_first(&k, rank);
}

static inline uint64_t te__comm_norm_round_up(uint64_t n)
{
	return (n + TE__COMM_NORM_ALIGN - 1) / TE__COMM_NORM_ALIGN * TE__COMM_NORM_ALIGN;
}

/* the kernel of one rank alone, on in; s is not written */
struct te_k_comm_norm te__comm_norm_alone(const struct te__comm_norm *a, const void *in, void *out);
int te__comm_norm_launch(const struct te__comm_norm *a, const struct te_k_comm_norm *k,
			 struct te_stream *stream);
/*
 * The unfused call: an all-reduce or a reduce-scatter, and kernels. With a choice nothing is
 * queued: the choice describes the sum, with the launches and bytes of all operations.
 */
int te__comm_norm_apart(const struct te__comm_norm *a, const struct te__comm_norm_how *how,
			struct te_stream *stream, struct te_comm_choice *choice);

/* te_comm_explain() of a call with a norm */
int te__comm_norm_explain(struct te_comm *comm, const struct te_comm_call *call,
			  struct te_comm_choice *ret);

#endif
