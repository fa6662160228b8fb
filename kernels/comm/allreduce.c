/* allreduce.c - all-reduce: the algorithms of comm.h. */
#include "config.h"

#include "kernels/comm/ref.h"

/* L1 and P1 */
static int one_shot(struct te__hc_op *o)
{
	const struct te_k_comm *a = o->a;

	for (int r = 0; r < a->nranks; r++)
		if (r != a->rank)
			te__hc_send_input(o, r, a->rank * o->npackets, 0, o->npackets);
	if (te__hc_headers(o))
		return -1;
	return te__hc_reduce_packets(o, o->npackets, 0, o->npackets, -1);
}

/* the packets of rank r's chunk */
static int64_t chunk_begin(const struct te__hc_op *o, int r)
{
	return te__h_min(r * o->chunk, o->npackets);
}

/* P2 */
static int two_shot(struct te__hc_op *o)
{
	const struct te_k_comm *a = o->a;
	const int n = a->nranks, me = a->rank;

	for (int r = 0; r < n; r++)
		if (r != me)
			te__hc_send_input(o, r, me * o->chunk, chunk_begin(o, r),
					  chunk_begin(o, r + 1));
	if (te__hc_headers(o) ||
	    te__hc_reduce_packets(o, o->chunk, chunk_begin(o, me), chunk_begin(o, me + 1),
				  (n + me) * o->chunk))
		return -1;
	for (int r = 0; r < n; r++) {
		const int64_t begin = chunk_begin(o, r), end = chunk_begin(o, r + 1);

		for (int64_t i = begin; i < end && r != me; i++) {
			uint8_t d[TE_K_COMM_PACKET];

			if (te__hc_receive(o, TE_K_COMM_RESULT, r, (n + r) * o->chunk + i - begin,
					   d))
				return -1;
			memcpy((uint8_t *)a->out + i * TE_K_COMM_PACKET, d,
			       (size_t)te__hc_bytes(o, i, 1));
		}
	}
	return 0;
}

/* S */
static int zero_copy(struct te__hc_op *o)
{
	const struct te_k_comm *a = o->a;
	const int64_t begin = chunk_begin(o, a->rank), end = chunk_begin(o, a->rank + 1);

	if (te__hc_headers(o) || te__hc_flags(o, TE_K_COMM_ENTRY))
		return -1;
	TE__HC_BLOCKS(i, n, begin, end) {
		const int64_t nbytes = te__hc_bytes(o, i, n), at = i * TE_K_COMM_PACKET;
		const uint8_t *src[TE_K_COMM_RANKS];
		_Alignas(16) uint8_t out[TE__HC_LANES];

		for (int r = 0; r < a->nranks; r++)
			src[r] = (const uint8_t *)a->in + (r - a->rank) * a->stride + at;
		te__hc_reduce(o, src, nbytes, out);
		for (int r = 0; r < a->nranks; r++)
			memcpy((uint8_t *)a->out + (r - a->rank) * a->stride + at, out,
			       (size_t)nbytes);
	}
	return te__hc_flags(o, TE_K_COMM_EXIT);
}

void te__h_comm_allreduce(const struct te_k_comm *a)
{
	static int (*const algorithm[TE_K_COMM_ALGORITHMS])(struct te__hc_op *) = {
		[TE_K_COMM_L1] = one_shot,
		[TE_K_COMM_P1] = one_shot,
		[TE_K_COMM_P2] = two_shot,
		[TE_K_COMM_S] = zero_copy,
	};
	struct te__hc_op o;

	if (te__hc_begin(&o, a, te_k_comm_signature(a)))
		return;
	if (!algorithm[a->algorithm](&o))
		te__hc_end(&o);
}
