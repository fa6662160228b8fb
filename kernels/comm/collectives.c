/*
 * collectives.c - all-reduce, reduce-scatter, all-gather and broadcast: the algorithms of comm.h.
 *
 * Rank r reduces, or sends to all ranks, chunk r: packets of the array if an algorithm cuts it into
 * chunks, as twoshot, zerocopy and staged do in all-reduce and broadcast, or else the whole array,
 * or the part of rank r.
 */
#include "config.h"

#include "kernels/comm/ref.h"
#include "kernels/team.h"

struct coll {
	struct te__hc_op o;
	uint32_t from;		   /* bit r: rank r contributes to each chunk */
	int pick;		   /* this rank alone does, without sums; -1: all do */
	int gathers;		   /* 1: each rank contributes a part */
	int64_t chunk;		   /* packets */
	int64_t in_step, out_step; /* bytes from a chunk to the next rank's chunk */
	int64_t cut;		   /* bytes of the array before chunk 1 */
};

static const uint8_t *in_of(const struct coll *c, int r)
{
	return (const uint8_t *)c->o.a->in + r * c->in_step;
}

static uint8_t *out_of(const struct coll *c, int r)
{
	return (uint8_t *)c->o.a->out + r * c->out_step;
}

/* at most n packets from packet i of chunk r */
static int64_t nbytes_at(const struct coll *c, int r, int64_t i, int64_t n)
{
	const int64_t end = te__h_min(c->o.nbytes - r * c->cut, c->chunk * TE_K_COMM_PACKET);
	const int64_t left = end - i * TE_K_COMM_PACKET;

	return left < 0 ? 0 : te__h_min(left, n * TE_K_COMM_PACKET);
}

static int64_t npackets_of(const struct coll *c, int r)
{
	return te_k_comm_packets(nbytes_at(c, r, 0, c->chunk));
}

static int is_sender(const struct coll *c, int r)
{
	return c->from >> r & 1;
}

/* ---- packets: ll, oneshot and twoshot ---- */

static void send_inputs(const struct coll *c)
{
	const struct te_k_comm *a = c->o.a;

	for (int r = 0; r < a->nranks && is_sender(c, a->rank); r++)
		if (r != a->rank)
			te__hc_send(&c->o, r, te_k_comm_source(r, a->rank) * c->chunk,
				    in_of(c, r), nbytes_at(c, r, 0, c->chunk));
}

/* oneshot: this rank's own part gets the bits that the others receive */
static void fill_own(uint8_t *p, size_t nbytes)
{
	uint64_t x;

	for (; nbytes >= sizeof(x); p += sizeof(x), nbytes -= sizeof(x)) {
		memcpy(&x, p, sizeof(x));
		x = te__hc_full(x);
		memcpy(p, &x, sizeof(x));
	}
}

/* compute n packets at i of this rank's output from all ranks' packets; returns their address */
static uint8_t *combine(const struct coll *c, const uint8_t *const *src, int64_t i, int64_t n)
{
	const int me = c->o.a->rank;
	const size_t nbytes = (size_t)nbytes_at(c, me, i, n);
	uint8_t *out = out_of(c, me) + i * TE_K_COMM_PACKET;

	for (int r = 0; r < c->o.a->nranks && c->gathers; r++)
		memmove(out_of(c, r) + i * TE_K_COMM_PACKET, src[r], nbytes);
	if (c->gathers && c->o.a->algorithm == TE_K_COMM_ONE_SHOT && c->o.a->nranks > 1)
		fill_own(out, nbytes);
	if (c->pick >= 0)
		memmove(out, src[c->pick], nbytes);
	else if (!c->gathers)
		te__hc_reduce(&c->o, src, (int64_t)nbytes, out);
	return out;
}

/* a row for each rank: those on the stack, or if there are more ranks, memory of the thread */
static void *take_rows(const struct te_k_comm *a, uint8_t few[TE_K_COMM_RANKS][TE__HC_LANES])
{
	return a->nranks <= TE_K_COMM_RANKS ? (void *)few :
					      te__k_take((size_t)a->nranks * sizeof(few[0]));
}

static void give_rows(void *rows, const void *few)
{
	if (rows != few)
		te__k_give(rows);
}

/* to: also send the result to that index of source 0 at the other ranks; -1: do not */
static int receive_inputs(struct coll *c, int64_t to)
{
	const struct te_k_comm *a = c->o.a;
	_Alignas(16) uint8_t few[TE_K_COMM_RANKS][TE__HC_LANES];
	uint8_t(*const in)[TE__HC_LANES] = take_rows(a, few);
	const uint8_t *src[TE_K_COMM_HOST_RANKS], *out;

	TE__HC_BLOCKS(i, n, 0, npackets_of(c, a->rank)) {
		for (int r = 0; r < a->nranks; r++) {
			const int64_t at = te_k_comm_source(a->rank, r) * c->chunk + i;

			src[r] = r == a->rank ? in_of(c, r) + i * TE_K_COMM_PACKET : in[r];
			if (r != a->rank && is_sender(c, r) &&
			    te__hc_receive(&c->o, TE_K_COMM_DATA, r, at, in[r],
					   nbytes_at(c, a->rank, i, n))) {
				give_rows(in, few);
				return -1;
			}
		}
		out = combine(c, src, i, n);
		for (int r = 0; r < a->nranks && to >= 0; r++)
			if (r != a->rank)
				te__hc_send(&c->o, r,
					    to + te_k_comm_source(r, a->rank) * c->chunk + i, out,
					    nbytes_at(c, a->rank, i, n));
	}
	give_rows(in, few);
	return 0;
}

/* ll and oneshot */
static int one_shot(struct coll *c)
{
	send_inputs(c);
	te__hc_ring(&c->o);
	return te__hc_headers(&c->o) ? -1 : receive_inputs(c, -1);
}

/* twoshot */
static int two_shot(struct coll *c)
{
	const int n = c->o.a->nranks, me = c->o.a->rank;
	const int64_t inputs = (n - 1) * c->chunk;

	send_inputs(c);
	te__hc_ring(&c->o);
	if (te__hc_headers(&c->o) || receive_inputs(c, inputs))
		return -1;
	te__hc_ring(&c->o);
	for (int r = 0; r < n; r++)
		if (r != me &&
		    te__hc_receive(&c->o, TE_K_COMM_RESULT, r,
				   inputs + te_k_comm_source(me, r) * c->chunk, out_of(c, r),
				   nbytes_at(c, r, 0, c->chunk)))
			return -1;
	return 0;
}

/* ---- zerocopy ---- */

static int zero_copy(struct coll *c, int to_all)
{
	const struct te_k_comm *a = c->o.a;
	const int me = a->rank;

	te__hc_flags_set(&c->o, TE_K_COMM_ENTRY, 0);
	if (te__hc_headers(&c->o) || te__hc_flags_wait(&c->o, TE_K_COMM_ENTRY, 0))
		return -1;
	TE__HC_BLOCKS(i, n, 0, npackets_of(c, me)) {
		const int64_t nbytes = nbytes_at(c, me, i, n), at = i * TE_K_COMM_PACKET;
		const uint8_t *src[TE_K_COMM_HOST_RANKS];
		_Alignas(16) uint8_t out[TE__HC_LANES];

		for (int r = 0; r < a->nranks; r++)
			src[r] = in_of(c, me) + (r - me) * a->stride + at;
		if (c->pick >= 0 || c->gathers)
			memcpy(out, src[c->gathers ? me : c->pick], (size_t)nbytes);
		else
			te__hc_reduce(&c->o, src, nbytes, out);
		for (int r = 0; r < a->nranks; r++)
			if (to_all || r == me)
				memcpy(out_of(c, me) + (r - me) * a->stride + at, out,
				       (size_t)nbytes);
	}
	te__hc_flags_set(&c->o, TE_K_COMM_EXIT, 0);
	return te__hc_flags_wait(&c->o, TE_K_COMM_EXIT, 0);
}

/* ---- staged ---- */

/* the staging memory of a rank: in step t, of inputs (kind 0) or results (kind 1) of a source */
static uint8_t *stage(const struct coll *c, int64_t t, int rank, int kind, int source)
{
	const struct te_k_comm *a = c->o.a;
	const int kinds = c->cut ? 2 : 1;
	const int64_t step = te_k_comm_step(a->buffer_nbytes, a->nranks, kinds);

	return te__hc_packet(&c->o, rank, (((t & 1) * kinds + kind) * a->nranks + source) * step);
}

/* nbytes, empty afterwards */
static void unstage(uint8_t *dst, uint8_t *src, size_t nbytes)
{
	memcpy(dst, src, nbytes);
	memset(src, 0xff, nbytes);
}

static void stage_inputs(const struct coll *c, int64_t t, int64_t step)
{
	const int me = c->o.a->rank;

	for (int r = 0; r < c->o.a->nranks && is_sender(c, me); r++)
		if (r != me)
			memcpy(stage(c, t, r, 0, me), in_of(c, r) + t * step * TE_K_COMM_PACKET,
			       (size_t)nbytes_at(c, r, t * step, step));
	te__hc_flags_set(&c->o, TE_K_COMM_ENTRY, t);
}

static void stage_results(const struct coll *c, int64_t t, int64_t step)
{
	const int me = c->o.a->rank;
	_Alignas(16) uint8_t few[TE_K_COMM_RANKS][TE__HC_LANES];
	uint8_t(*const in)[TE__HC_LANES] = take_rows(c->o.a, few);
	const uint8_t *src[TE_K_COMM_HOST_RANKS], *out;

	TE__HC_BLOCKS(i, n, t * step, te__h_min((t + 1) * step, npackets_of(c, me))) {
		const int64_t at = (i - t * step) * TE_K_COMM_PACKET;
		const size_t nbytes = (size_t)nbytes_at(c, me, i, n);

		for (int r = 0; r < c->o.a->nranks; r++) {
			src[r] = r == me ? in_of(c, r) + i * TE_K_COMM_PACKET : in[r];
			if (r != me && is_sender(c, r))
				unstage(in[r], stage(c, t, me, 0, r) + at, nbytes);
		}
		out = combine(c, src, i, n);
		for (int r = 0; r < c->o.a->nranks && c->cut; r++)
			if (r != me)
				memcpy(stage(c, t, r, 1, me) + at, out, nbytes);
	}
	give_rows(in, few);
	te__hc_flags_set(&c->o, TE_K_COMM_EXIT, t);
}

static void unstage_results(const struct coll *c, int64_t t, int64_t step)
{
	const int me = c->o.a->rank;

	for (int r = 0; r < c->o.a->nranks && c->cut; r++)
		if (r != me)
			unstage(out_of(c, r) + t * step * TE_K_COMM_PACKET, stage(c, t, me, 1, r),
				(size_t)nbytes_at(c, r, t * step, step));
}

/* why two buffers are enough: algorithms.cuh */
static int staged(struct coll *c)
{
	const struct te_k_comm *a = c->o.a;
	const int64_t step = te_k_comm_step(a->buffer_nbytes, a->nranks, c->cut ? 2 : 1);

	stage_inputs(c, 0, step);
	if (te__hc_headers(&c->o))
		return -1;
	for (int64_t t = 0; t * step < c->chunk; t++) {
		if (te__hc_flags_wait(&c->o, TE_K_COMM_ENTRY, t))
			return -1;
		stage_results(c, t, step);
		if ((t + 1) * step < c->chunk)
			stage_inputs(c, t + 1, step);
		if (te__hc_flags_wait(&c->o, TE_K_COMM_EXIT, t))
			return -1;
		unstage_results(c, t, step);
	}
	return 0;
}

/* ---- operations ---- */

static void run(const struct te_k_comm *a, enum te_k_comm_collective what)
{
	const int cuts = (what == TE_K_COLL_ALLREDUCE || what == TE_K_COLL_BROADCAST) &&
			 a->algorithm >= TE_K_COMM_TWO_SHOT;
	const int scatters = what == TE_K_COLL_REDUCE_SCATTER;
	struct coll c = {
		.from = what == TE_K_COLL_BROADCAST ? 1u << a->root : ~0u,
		.pick = what == TE_K_COLL_BROADCAST ? a->root : -1,
		.gathers = what == TE_K_COLL_ALL_GATHER,
	};
	int r;

	if (te__hc_begin(&c.o, a, te_k_comm_signature(a) | (uint64_t)what << 60))
		return;
	c.chunk = cuts ? c.o.chunk : c.o.npackets;
	c.cut = cuts ? c.chunk * TE_K_COMM_PACKET : 0;
	c.in_step = scatters ? c.o.nbytes : c.cut;
	c.out_step = c.gathers ? c.o.nbytes : c.cut;
	switch (a->algorithm) {
	case TE_K_COMM_TWO_SHOT:
		r = two_shot(&c);
		break;
	case TE_K_COMM_ZERO_COPY:
		r = zero_copy(&c, !scatters);
		break;
	case TE_K_COMM_STAGED:
		r = staged(&c);
		break;
	case TE_K_COMM_NVLS:
		r = te__hc_nvls_two_shot(&c.o);
		break;
	case TE_K_COMM_NVLS_ONE_SHOT:
		r = te__hc_nvls_one_shot(&c.o);
		break;
	default:
		r = one_shot(&c);
	}
	if (!r)
		te__hc_end(&c.o);
}

void te__h_comm_allreduce(const struct te_k_comm *a)
{
	run(a, TE_K_COLL_ALLREDUCE);
}

void te__h_comm_reduce_scatter(const struct te_k_comm *a)
{
	run(a, TE_K_COLL_REDUCE_SCATTER);
}

void te__h_comm_all_gather(const struct te_k_comm *a)
{
	run(a, TE_K_COLL_ALL_GATHER);
}

void te__h_comm_broadcast(const struct te_k_comm *a)
{
	run(a, TE_K_COLL_BROADCAST);
}
