/*
 * comm.c - reference kernels of collective operations, for ranks that are threads or processes.
 *
 * Why this is right under C11: memory of other ranks is accessed by atomic operations on 8 bytes,
 * and inputs and outputs of algorithm S between flags. Half a packet is one such word, of which
 * the upper part says whether it is full, so it needs no order relative to the other half. Sending
 * is a release, receiving an acquire: emptying the packets of epoch k happens before sending in
 * epoch k + 1, which happens before what a rank that received it sends in epoch k + 2 into the same
 * packets. Hence a packet is never emptied after it was filled again.
 */
#include "config.h"

#include <sched.h>
#include <time.h>

#include "kernels/ref.h"

#define BLOCK 64       /* packets that are reduced together */
#define PATIENCE 256   /* attempts between looks at the clock */
#define LANES (BLOCK * TE_K_COMM_PACKET) /* at most so many elements, of a byte each */

_Static_assert(LANES <= TE__H_CHUNK, "a block is a chunk");

struct op {
	const struct te_k_comm *a;
	uint64_t epoch;
	uint64_t since; /* ns; 0: no wait took long yet */
	uint32_t attempts;
	uint32_t es; /* bytes of an element */
	int64_t nbytes, npackets;
	int64_t chunk; /* packets */
};

/* ---- arithmetic ---- */

static float te_min(float a, float b)
{
	if (a != a || b != b)
		return NAN;
	return a < b  ? a :
	       b < a ? b :
		       te__f32_from_bits(te__f32_bits(a) | te__f32_bits(b)); /* -0 and +0 */
}

static void load(int32_t dtype, const void *p, int64_t n, float *v)
{
	if (dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2)
		te__h_decode(dtype, p, 1.0f, n, v);
	else
		te__h_load(dtype, p, 0, n, v);
}

static void store(int32_t dtype, void *p, int64_t n, float *v)
{
	if (dtype == TE_DTYPE_E4M3 || dtype == TE_DTYPE_E5M2)
		te__h_encode(dtype, v, 1.0f, n, p);
	else
		te__h_store(dtype, p, 0, n, v);
}

static void reduce_floats(const struct te_k_comm *a, const uint8_t *const *src, int64_t n,
			  uint8_t *dst)
{
	float v[LANES], w[LANES];

	load(a->dtype, src[0], n, v);
	for (int r = 1; r < a->nranks; r++) {
		load(a->dtype, src[r], n, w);
		if (a->op == TE_K_COMM_SUM || a->op == TE_K_COMM_AVG)
			te__h_add_to(v, w, n);
		else
			for (int64_t i = 0; i < n; i++)
				v[i] = a->op == TE_K_COMM_MIN ? te_min(v[i], w[i]) :
								-te_min(-v[i], -w[i]);
	}
	for (int64_t i = 0; i < n; i++) {
		if (a->op == TE_K_COMM_AVG)
			v[i] /= (float)a->nranks;
		if (v[i] != v[i])
			v[i] = te__f32_from_bits(TE_K_COMM_NAN);
	}
	store(a->dtype, dst, n, v);
}

static int64_t get_int(int32_t dtype, const uint8_t *p, int64_t i)
{
	int32_t x;

	if (dtype == TE_DTYPE_UINT8)
		return p[i];
	memcpy(&x, p + 4 * i, sizeof(x));
	return x;
}

static void reduce_ints(const struct te_k_comm *a, const uint8_t *const *src, int64_t n,
			uint8_t *dst)
{
	for (int64_t i = 0; i < n; i++) {
		int64_t v = get_int(a->dtype, src[0], i);
		uint32_t u;

		for (int r = 1; r < a->nranks; r++) {
			const int64_t x = get_int(a->dtype, src[r], i);

			if (a->op == TE_K_COMM_SUM || a->op == TE_K_COMM_AVG)
				v += x;
			else
				v = (a->op == TE_K_COMM_MIN) == (x < v) ? x : v;
		}
		u = (uint32_t)(a->op == TE_K_COMM_AVG ? v / a->nranks : v);
		if (a->dtype == TE_DTYPE_UINT8)
			dst[i] = (uint8_t)u;
		else
			memcpy(dst + 4 * i, &u, sizeof(u));
	}
}

/* nbytes of the operands of all ranks, at most a block; dst is none of them */
static void reduce(const struct op *o, const uint8_t *const *src, int64_t nbytes, uint8_t *dst)
{
	const struct te_k_comm *a = o->a;

	if (a->nranks == 1)
		memcpy(dst, src[0], (size_t)nbytes);
	else if (a->dtype == TE_DTYPE_INT32 || a->dtype == TE_DTYPE_UINT8)
		reduce_ints(a, src, nbytes / o->es, dst);
	else
		reduce_floats(a, src, nbytes / o->es, dst);
}

/* ---- waiting ---- */

static int fail(const struct op *o, enum te_k_comm_code code, enum te_k_comm_phase phase, int peer,
		uint32_t missing, uint64_t expected, uint64_t got)
{
	struct te_k_comm_status *s = o->a->status;

	__atomic_store_n(&o->a->ctl->failed, (uint32_t)code, __ATOMIC_RELAXED);
	s->code = code;
	s->phase = phase;
	s->peer = peer;
	s->missing = missing;
	s->block = 0;
	s->epoch = o->epoch;
	s->expected = expected;
	s->got = got;
	__atomic_store_n(&s->complete, 1, __ATOMIC_RELEASE);
	return -1;
}

/* after an attempt without success: 0 to make another one, or -1 after fail() */
static int again(struct op *o, enum te_k_comm_phase phase, int peer, uint32_t missing,
		 uint64_t expected, uint64_t got)
{
	struct timespec t;
	uint64_t now;

	if (++o->attempts % PATIENCE)
		return 0;
	if (__atomic_load_n(o->a->abort, __ATOMIC_RELAXED))
		return fail(o, TE_K_COMM_ABORTED, phase, peer, missing, expected, got);
	clock_gettime(CLOCK_MONOTONIC, &t);
	now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	if (!o->since)
		o->since = now;
	if (o->a->deadline_ns && now - o->since > te_k_comm_limit_ns(o->a->deadline_ns, phase))
		return fail(o, TE_K_COMM_TIMEOUT, phase, peer, missing, expected, got);
	sched_yield(); /* the ranks may be more than the processors */
	return 0;
}

/* ---- messages ---- */

/* 8 bytes of the region of a rank */
static uint64_t *word(const struct op *o, int rank, int64_t at)
{
	return (uint64_t *)(void *)(o->a->slots + rank * o->a->stride + at);
}

/* in the half of this epoch */
static int64_t header_at(const struct op *o, int source)
{
	return TE_K_COMM_FLAGS_NBYTES + (int64_t)(o->epoch & 1) * o->a->half_nbytes +
	       source * TE_K_COMM_PACKET;
}

static int64_t packet_at(const struct op *o, int64_t index)
{
	return header_at(o, TE_K_COMM_RANKS) + index * TE_K_COMM_PACKET;
}

static int64_t flag_at(enum te_k_comm_phase phase, int source)
{
	return (phase - TE_K_COMM_ENTRY) * TE_K_COMM_CTAS * 128 + source * 8;
}

static uint32_t upper(uint64_t x)
{
	return (uint32_t)(x >> 32);
}

/* half a packet; the upper word may be that of an empty one */
static void put(uint64_t *p, uint64_t x)
{
	if (upper(x) == TE_K_COMM_EMPTY)
		x = (uint64_t)TE_K_COMM_NAN << 32 | (uint32_t)x;
	__atomic_store_n(p, x, __ATOMIC_RELEASE);
}

static void make_empty(uint64_t *p)
{
	__atomic_store_n(p, UINT64_MAX, __ATOMIC_RELAXED);
}

/* L1: the upper word of each half, of this epoch, and not that of an empty packet */
static uint64_t tag_of(const struct op *o)
{
	return (o->epoch & 0x7fffffff) << 32;
}

static void send(const struct op *o, int to, int64_t index, const uint8_t *data)
{
	uint64_t d[2], *p;

	memcpy(d, data, sizeof(d));
	if (o->a->algorithm == TE_K_COMM_L1) {
		p = word(o, to, packet_at(o, 2 * index));
		for (int k = 0; k < 4; k++)
			put(p + k, tag_of(o) | (uint32_t)(d[k / 2] >> k % 2 * 32));
		return;
	}
	p = word(o, to, packet_at(o, index));
	put(p, d[0]);
	put(p + 1, d[1]);
}

/* half a packet, which is empty afterwards */
static int get(struct op *o, enum te_k_comm_phase phase, int from, int64_t at, uint64_t *ret)
{
	const int flags = o->a->algorithm == TE_K_COMM_L1;
	uint64_t *p = word(o, o->a->rank, at), x;

	for (;;) {
		x = __atomic_load_n(p, __ATOMIC_ACQUIRE);
		if (flags ? upper(x) == upper(tag_of(o)) : upper(x) != TE_K_COMM_EMPTY)
			break;
		if (again(o, phase, from, 1u << from, flags ? tag_of(o) : 0, x))
			return -1;
	}
	make_empty(p);
	*ret = x;
	return 0;
}

static int receive(struct op *o, enum te_k_comm_phase phase, int from, int64_t index, uint8_t *data)
{
	const int flags = o->a->algorithm == TE_K_COMM_L1;
	uint64_t d[4];

	for (int k = 0; k < (flags ? 4 : 2); k++)
		if (get(o, phase, from, packet_at(o, flags ? 2 * index : index) + 8 * k, &d[k]))
			return -1;
	if (flags) {
		d[0] = (uint32_t)d[0] | d[1] << 32;
		d[1] = (uint32_t)d[2] | d[3] << 32;
	}
	memcpy(data, d, TE_K_COMM_PACKET);
	return 0;
}

static void headers_send(const struct op *o)
{
	for (int r = 0; r < o->a->nranks; r++) {
		uint64_t *p = word(o, r, header_at(o, o->a->rank));

		if (r == o->a->rank)
			continue;
		put(p, o->epoch);
		put(p + 1, te_k_comm_signature(o->a));
	}
}

/* 1: the header of the rank has arrived; 0: not yet; -1: it is of another operation */
static int header_try(const struct op *o, int from, uint64_t *got)
{
	const uint64_t expected[2] = { o->epoch, te_k_comm_signature(o->a) };
	uint64_t *p = word(o, o->a->rank, header_at(o, from));

	for (int k = 0; k < 2; k++) {
		got[k] = __atomic_load_n(p + k, __ATOMIC_ACQUIRE);
		if (upper(got[k]) == TE_K_COMM_EMPTY)
			return 0;
	}
	make_empty(p);
	make_empty(p + 1);
	for (int k = 1; k >= 0; k--)
		if (got[k] != expected[k])
			return fail(o, TE_K_COMM_MISMATCH, TE_K_COMM_HEADER, from, 0, expected[k],
				    got[k]);
	return 1;
}

static int headers_receive(struct op *o)
{
	uint32_t missing = (1u << o->a->nranks) - 1 - (1u << o->a->rank);
	uint64_t got[2];
	int first;

	while (missing) {
		for (int r = 0; r < o->a->nranks; r++) {
			const int t = missing >> r & 1 ? header_try(o, r, got) : 0;

			if (t < 0)
				return -1;
			missing &= ~((uint32_t)t << r);
		}
		first = missing ? __builtin_ctz(missing) : 0;
		if (missing && again(o, TE_K_COMM_HEADER, first, missing,
				     te_k_comm_signature(o->a), 0))
			return -1;
	}
	return 0;
}

static int flags_exchange(struct op *o, enum te_k_comm_phase phase)
{
	const struct te_k_comm *a = o->a;

	for (int r = 0; r < a->nranks; r++)
		if (r != a->rank)
			__atomic_store_n(word(o, r, flag_at(phase, a->rank)), o->epoch,
					 __ATOMIC_RELEASE);
	for (int r = 0; r < a->nranks; r++) {
		const uint64_t *p = word(o, a->rank, flag_at(phase, r));
		uint64_t x;

		while (r != a->rank &&
		       (x = __atomic_load_n(p, __ATOMIC_ACQUIRE)) != o->epoch)
			if (again(o, phase, r, 1u << r, o->epoch, x))
				return -1;
	}
	return 0;
}

/* ---- algorithms ---- */

/* for (i = begin; i < end; i += BLOCK) with n packets at i */
#define BLOCKS(i, n, begin, end)                                                           \
	for (int64_t i = (begin), n; i < (end) && (n = te__h_min((end) - i, BLOCK), 1);    \
	     i += BLOCK)

/* bytes of the n packets at i that belong to the array */
static int64_t bytes_of(const struct op *o, int64_t i, int64_t n)
{
	return te__h_min(o->nbytes - i * TE_K_COMM_PACKET, n * TE_K_COMM_PACKET);
}

/* the packets begin to end - 1 of the input, into the packets at index of a rank */
static void send_input(const struct op *o, int to, int64_t index, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++) {
		uint8_t d[TE_K_COMM_PACKET] = { 0 };

		memcpy(d, (const uint8_t *)o->a->in + i * TE_K_COMM_PACKET,
		       (size_t)bytes_of(o, i, 1));
		send(o, to, index + i - begin, d);
	}
}

/*
 * Reduce the packets begin to end - 1: those of rank r are at index r * each of this rank. to: also
 * send the result to that index of the other ranks; -1: do not.
 */
static int reduce_packets(struct op *o, int64_t each, int64_t begin, int64_t end, int64_t to)
{
	const struct te_k_comm *a = o->a;
	_Alignas(16) uint8_t in[TE_K_COMM_RANKS][LANES], out[LANES];
	const uint8_t *src[TE_K_COMM_RANKS];

	BLOCKS(i, n, begin, end) {
		const int64_t nbytes = bytes_of(o, i, n), at = i * TE_K_COMM_PACKET;

		for (int r = 0; r < a->nranks; r++) {
			src[r] = in[r];
			for (int64_t k = 0; k < n && r != a->rank; k++)
				if (receive(o, TE_K_COMM_DATA, r, r * each + i - begin + k,
					    in[r] + k * TE_K_COMM_PACKET))
					return -1;
		}
		memcpy(in[a->rank], (const uint8_t *)a->in + at, (size_t)nbytes);
		memset(out, 0, sizeof(out));
		reduce(o, src, nbytes, out);
		memcpy((uint8_t *)a->out + at, out, (size_t)nbytes);
		for (int r = 0; r < a->nranks && to >= 0; r++)
			for (int64_t k = 0; k < n && r != a->rank; k++)
				send(o, r, to + i - begin + k, out + k * TE_K_COMM_PACKET);
	}
	return 0;
}

/* L1 and P1 */
static int one_shot(struct op *o)
{
	const struct te_k_comm *a = o->a;

	for (int r = 0; r < a->nranks; r++)
		if (r != a->rank)
			send_input(o, r, a->rank * o->npackets, 0, o->npackets);
	if (headers_receive(o))
		return -1;
	return reduce_packets(o, o->npackets, 0, o->npackets, -1);
}

/* the packets of rank r's chunk */
static int64_t chunk_begin(const struct op *o, int r)
{
	return te__h_min(r * o->chunk, o->npackets);
}

/* P2 */
static int two_shot(struct op *o)
{
	const struct te_k_comm *a = o->a;
	const int n = a->nranks, me = a->rank;

	for (int r = 0; r < n; r++)
		if (r != me)
			send_input(o, r, me * o->chunk, chunk_begin(o, r), chunk_begin(o, r + 1));
	if (headers_receive(o) ||
	    reduce_packets(o, o->chunk, chunk_begin(o, me), chunk_begin(o, me + 1),
			   (n + me) * o->chunk))
		return -1;
	for (int r = 0; r < n; r++) {
		const int64_t begin = chunk_begin(o, r), end = chunk_begin(o, r + 1);

		for (int64_t i = begin; i < end && r != me; i++) {
			uint8_t d[TE_K_COMM_PACKET];

			if (receive(o, TE_K_COMM_RESULT, r, (n + r) * o->chunk + i - begin, d))
				return -1;
			memcpy((uint8_t *)a->out + i * TE_K_COMM_PACKET, d,
			       (size_t)bytes_of(o, i, 1));
		}
	}
	return 0;
}

/* S */
static int zero_copy(struct op *o)
{
	const struct te_k_comm *a = o->a;
	const int64_t begin = chunk_begin(o, a->rank), end = chunk_begin(o, a->rank + 1);

	if (headers_receive(o) || flags_exchange(o, TE_K_COMM_ENTRY))
		return -1;
	BLOCKS(i, n, begin, end) {
		const int64_t nbytes = bytes_of(o, i, n), at = i * TE_K_COMM_PACKET;
		const uint8_t *src[TE_K_COMM_RANKS];
		_Alignas(16) uint8_t out[LANES];

		for (int r = 0; r < a->nranks; r++)
			src[r] = (const uint8_t *)a->in + (r - a->rank) * a->stride + at;
		reduce(o, src, nbytes, out);
		for (int r = 0; r < a->nranks; r++)
			memcpy((uint8_t *)a->out + (r - a->rank) * a->stride + at, out,
			       (size_t)nbytes);
	}
	return flags_exchange(o, TE_K_COMM_EXIT);
}

void te__h_comm_allreduce(const struct te_k_comm *a)
{
	static int (*const algorithm[TE_K_COMM_ALGORITHMS])(struct op *) = {
		[TE_K_COMM_L1] = one_shot,
		[TE_K_COMM_P1] = one_shot,
		[TE_K_COMM_P2] = two_shot,
		[TE_K_COMM_S] = zero_copy,
	};
	struct op o = { .a = a, .epoch = a->ctl->epoch };

	if (!a->count || a->ctl->failed)
		return;
	o.es = (uint32_t)te_dtype_nbytes((enum te_dtype)a->dtype);
	o.nbytes = a->count * o.es;
	o.npackets = te_k_comm_packets(o.nbytes);
	o.chunk = te_k_comm_chunk(o.npackets, a->nranks);
	headers_send(&o);
	if (!algorithm[a->algorithm](&o))
		a->ctl->epoch = o.epoch + 1;
}
