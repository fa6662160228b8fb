/*
 * nvls.c - nvls and nvls-oneshot of comm.h, with the instructions on multicast memory simulated:
 * the memory of rank r that a multicast address stands for is computed from the regions' addresses.
 */
#include "config.h"

#include "kernels/comm/ref.h"

/* ---- instructions ---- */

/* multicast address of memory in this rank's region, or after it */
static uint8_t *multicast(const struct te_k_comm *a, const void *own)
{
	return a->multicast + ((const uint8_t *)own - (a->slots + a->rank * a->stride));
}

static void *memory(const struct te_k_comm *a, const uint8_t *p, int r)
{
	return a->slots + r * a->stride + (p - a->multicast);
}

static void multimem_st_b64(const struct te_k_comm *a, uint8_t *p, uint64_t x)
{
	for (int r = 0; r < a->nranks; r++)
		__atomic_store_n((uint64_t *)memory(a, p, r), x, __ATOMIC_RELEASE);
}

static void multimem_red_and_b64(const struct te_k_comm *a, uint8_t *p, uint64_t x)
{
	for (int r = 0; r < a->nranks; r++)
		__atomic_fetch_and((uint64_t *)memory(a, p, r), x, __ATOMIC_RELEASE);
}

static void multimem_st(const struct te_k_comm *a, uint8_t *p, const void *src, int64_t nbytes)
{
	for (int r = 0; r < a->nranks; r++)
		memcpy(memory(a, p, r), src, (size_t)nbytes);
}

static void multimem_ld_reduce_add(const struct te__hc_op *o, const uint8_t *p, int64_t nbytes,
				   uint8_t *dst)
{
	struct te_k_comm sum = *o->a;
	struct te__hc_op s = *o;
	const uint8_t *src[TE_K_COMM_RANKS];

	sum.op = TE_K_COMM_SUM;
	s.a = &sum;
	for (int r = 0; r < sum.nranks; r++)
		src[r] = memory(&sum, p, r);
	te__hc_reduce(&s, src, nbytes, dst);
}

/* ---- algorithms ---- */

/* set this rank's bit after all its accesses, and wait for the bits of all ranks */
static int exit_flags(struct te__hc_op *o)
{
	const struct te_k_comm *a = o->a;
	const uint64_t all = (1u << a->nranks) - 1;
	uint64_t *p = te__hc_flag(o, TE_K_COMM_EXIT, TE_K_COMM_ARRIVED), x;

	multimem_red_and_b64(a, multicast(a, p), ~(1ull << a->rank));
	te__hc_ring(o);
	o->since = 0;
	while ((x = __atomic_load_n(p, __ATOMIC_ACQUIRE)) & all)
		if (te__hc_again(o, TE_K_COMM_EXIT, __builtin_ctzll(x), (uint32_t)(x & all), 0, x))
			return -1;
	/* no rank clears a bit again before it has the entry flag of this rank's next operation */
	__atomic_store_n(p, UINT64_MAX, __ATOMIC_RELAXED);
	return 0;
}

int te__hc_nvls_two_shot(struct te__hc_op *o)
{
	const struct te_k_comm *a = o->a;
	const int64_t end = te__h_min((a->rank + 1) * o->chunk, o->npackets);

	multimem_st_b64(a, multicast(a, te__hc_flag(o, TE_K_COMM_ENTRY, a->rank)),
			te_k_comm_flag(a, o->epoch, o->signature));
	te__hc_ring(o);
	if (te__hc_headers(o) || te__hc_flags_wait(o, TE_K_COMM_ENTRY, 0))
		return -1;
	TE__HC_BLOCKS(i, n, a->rank * o->chunk, end) {
		const int64_t at = i * TE_K_COMM_PACKET;
		const int64_t nbytes = te__h_min(o->nbytes - at, n * TE_K_COMM_PACKET);
		_Alignas(16) uint8_t out[TE__HC_LANES];

		multimem_ld_reduce_add(o, multicast(a, a->in) + at, nbytes, out);
		if (a->op == TE_K_COMM_AVG)
			te__hc_average(o, nbytes, out);
		multimem_st(a, multicast(a, a->out) + at, out, nbytes);
	}
	return exit_flags(o);
}

int te__hc_nvls_one_shot(struct te__hc_op *o)
{
	const struct te_k_comm *a = o->a;
	_Alignas(16) uint8_t in[TE_K_COMM_RANKS][TE__HC_LANES], out[TE__HC_LANES];
	const uint8_t *src[TE_K_COMM_RANKS];

	for (int64_t i = 0; i < o->npackets; i++) {
		uint8_t *p = te__hc_packet(o, a->rank, a->rank * o->npackets + i);
		uint64_t d[2] = { 0, 0 };

		memcpy(d, (const uint8_t *)a->in + i * TE_K_COMM_PACKET,
		       (size_t)te__h_min(o->nbytes - i * TE_K_COMM_PACKET, TE_K_COMM_PACKET));
		for (int k = 0; k < 2; k++)
			multimem_st_b64(a, multicast(a, p + 8 * k), te__hc_full(d[k]));
	}
	te__hc_ring(o);
	if (te__hc_headers(o))
		return -1;
	/* a rank's own packets arrive, too */
	TE__HC_BLOCKS(i, n, 0, o->npackets) {
		const int64_t at = i * TE_K_COMM_PACKET;
		const int64_t nbytes = te__h_min(o->nbytes - at, n * TE_K_COMM_PACKET);

		for (int r = 0; r < a->nranks; r++) {
			src[r] = in[r];
			if (te__hc_receive(o, TE_K_COMM_DATA, r, r * o->npackets + i, in[r],
					   nbytes))
				return -1;
		}
		te__hc_reduce(o, src, nbytes, out);
		memcpy((uint8_t *)a->out + at, out, (size_t)nbytes);
	}
	return 0;
}
