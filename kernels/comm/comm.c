/*
 * comm.c - see ref.h: the protocol of comm.h for ranks that are threads or processes.
 *
 * Why this is right under C11: memory of other ranks is accessed by atomic operations on 8 bytes,
 * except for inputs and outputs of zerocopy and the staging memory, which are accessed between
 * flags. Half a packet is one such word, of which the upper part says whether it is full, so it
 * needs no order relative to the other half. Sending a header is a release, receiving it an
 * acquire: emptying the packets of epoch k happens before sending header k + 1, which happens
 * before a rank that received it sends data of epoch k + 3 into the same packets. Hence a packet is
 * never emptied after it was filled again.
 */
#include "config.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/comm/fold.h"
#include "kernels/comm/ref.h"

#define PATIENCE 256 /* attempts between reads of the clock */
/*
 * Attempts before a rank gives its processor to others: a rank that does so in each short wait
 * loses milliseconds to any other busy program, and waking takes 50 us. If the ranks are more than
 * the processors, a peer may wait for this one's: the rank sleeps much earlier. Otherwise it sleeps
 * after a time that most waits do not take: a peer computes, which other programs can do too.
 */
#define YIELD_AFTER (32 * PATIENCE)
#define SLEEP_AFTER PATIENCE
#define SPIN_NS 200000
#define FIRST_SLEEP_NS 50000
#define SLEEP_NS 10000000 /* between looks at *abort and the clock */

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

/* for reading; v has room for n */
static const float *view(int32_t dtype, const void *p, int64_t n, float *v)
{
	if (dtype == TE_DTYPE_FP32)
		return p;
	load(dtype, p, n, v);
	return v;
}

TE__SIMD_BODY void fold_values_body(int32_t op, const float *x, int64_t n, float *v)
{
	switch (op) {
	case TE_K_COMM_MIN:
		for (int64_t i = 0; i < n; i++)
			v[i] = te_min(v[i], x[i]);
		break;
	case TE_K_COMM_MAX:
		for (int64_t i = 0; i < n; i++)
			v[i] = -te_min(-v[i], -x[i]);
		break;
	default:
		for (int64_t i = 0; i < n; i++)
			v[i] += x[i];
	}
}
static TE__SIMD(void, fold_values, (int32_t op, const float *x, int64_t n, float *v),
		(op, x, n, v))

/* v = v op x; n is at most TE__HC_LANES, as below */
static void fold(int32_t dtype, int32_t op, const void *x, int64_t n, float *v)
{
	float w[TE__HC_LANES];

	fold_values(op, view(dtype, x, n, w), n, v);
}

TE__SIMD_BODY void finish_values_body(float divisor, int64_t n, float *v)
{
	for (int64_t i = 0; i < n; i++) {
		const float x = v[i] / divisor;

		v[i] = x == x ? x : te__f32_from_bits(TE_K_COMM_NAN);
	}
}
static TE__SIMD(void, finish_values, (float divisor, int64_t n, float *v), (divisor, n, v))

static void finish(int32_t dtype, int32_t op, int32_t nranks, float *v, int64_t n, void *dst)
{
	finish_values(op == TE_K_COMM_AVG ? (float)nranks : 1.0f, n, v);
	store(dtype, dst, n, v);
}

static void reduce_floats(const struct te_k_comm *a, const uint8_t *const *src, int64_t n,
			  uint8_t *dst)
{
	float v[TE__HC_LANES];

	load(a->dtype, src[0], n, v);
	for (int r = 1; r < a->nranks; r++)
		fold(a->dtype, a->op, src[r], n, v);
	finish(a->dtype, a->op, a->nranks, v, n, dst);
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

void te__hc_reduce(const struct te__hc_op *o, const uint8_t *const *src, int64_t nbytes,
		   uint8_t *dst)
{
	const struct te_k_comm *a = o->a;

	if (a->nranks == 1)
		memcpy(dst, src[0], (size_t)nbytes);
	else if (a->dtype == TE_DTYPE_INT32 || a->dtype == TE_DTYPE_UINT8)
		reduce_ints(a, src, nbytes / o->es, dst);
	else
		reduce_floats(a, src, nbytes / o->es, dst);
}

void te__hc_average(const struct te__hc_op *o, int64_t nbytes, uint8_t *dst)
{
	const int64_t n = nbytes / o->es;
	float v[TE__HC_LANES];

	load(o->a->dtype, dst, n, v);
	finish_values((float)o->a->nranks, n, v);
	store(o->a->dtype, dst, n, v);
}

/* ---- between nodes: see fold.h ---- */

/* for (i = 0; i < n; i += TE__HC_LANES) with len elements at i */
#define LANES(i, len, n)                                                              \
	for (int64_t i = 0, len; i < (n) && (len = te__h_min((n) - i, TE__HC_LANES), 1); \
	     i += TE__HC_LANES)

void te__h_comm_fold(const struct te_k_comm_fold *a)
{
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)a->dtype);
	float v[TE__HC_LANES];

	LANES(i, len, a->n) {
		const char *in = (const char *)a->in + i * es;
		int32_t r = 0;

		if (a->from)
			memcpy(v, a->from + i, (size_t)len * sizeof(*v));
		else
			load(a->dtype, in + a->stride * r++, len, v);
		for (; r < a->nin; r++)
			fold(a->dtype, a->op, in + a->stride * r, len, v);
		if (a->out)
			finish(a->dtype, a->op, a->nranks, v, len, (char *)a->out + i * es);
		else
			memcpy(a->sums + i, v, (size_t)len * sizeof(*v));
	}
}

void te__comm_reduce(int32_t dtype, int32_t op, int32_t nranks, const void *const *src, int64_t n,
		     void *out)
{
	const int64_t es = (int64_t)te_dtype_nbytes((enum te_dtype)dtype);
	const struct te_k_comm a = { .nranks = nranks, .dtype = dtype, .op = op };
	float v[TE__HC_LANES];

	if (dtype == TE_DTYPE_INT32 || dtype == TE_DTYPE_UINT8) {
		reduce_ints(&a, (const uint8_t *const *)src, n, out);
		return;
	}
	LANES(i, len, n) {
		load(dtype, (const char *)src[0] + i * es, len, v);
		for (int32_t r = 1; r < nranks; r++)
			fold(dtype, op, (const char *)src[r] + i * es, len, v);
		finish(dtype, op, nranks, v, len, (char *)out + i * es);
	}
}

/* ---- waiting ---- */

int te__hc_fail(const struct te__hc_op *o, enum te_k_comm_code code, enum te_k_comm_phase phase,
		int peer, uint32_t missing, uint64_t expected, uint64_t got)
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

/*
 * The bell of a rank: odd from when the rank is about to make its last attempt before it sleeps,
 * until another rank rings. A ring that reads it before that, although its data is not visible to
 * the last attempt yet, is missed, since stores and later loads may change places. Hence the first
 * sleep is short; data sent during a later one is followed by a ring that finds the bell odd.
 */
static _Atomic uint32_t *bell_of(const struct te__hc_op *o, int rank)
{
	return (_Atomic uint32_t *)(void *)(o->a->slots + rank * o->a->stride + TE_K_COMM_BELL_AT);
}

void te__hc_ring_one(const struct te__hc_op *o, int rank)
{
	_Atomic uint32_t *bell = bell_of(o, rank);
	uint32_t x = atomic_load_explicit(bell, memory_order_relaxed);

	if (x & 1 && atomic_compare_exchange_strong(bell, &x, x + 1))
		syscall(SYS_futex, bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void te__hc_ring(const struct te__hc_op *o)
{
	for (int r = 0; r < o->a->nranks; r++)
		if (r != o->a->rank)
			te__hc_ring_one(o, r);
}

static void sleep_for_ring(struct te__hc_op *o)
{
	_Atomic uint32_t *bell = bell_of(o, o->a->rank);
	const struct timespec most = { .tv_nsec = o->nsleeps ? SLEEP_NS : FIRST_SLEEP_NS };
	const uint32_t x = atomic_load(bell);

	if (x & 1) {
		o->nsleeps++;
		syscall(SYS_futex, bell, FUTEX_WAIT, x, &most, NULL, 0);
	} else {
		o->nsleeps = 0;
		atomic_store(bell, x + 1);
	}
}

_Atomic int te__hc_nprocessors;

/* not those that this process may use: a launcher gives each rank some */
static int nprocessors(void)
{
	if (!te__hc_nprocessors)
		te__hc_nprocessors = (int)sysconf(_SC_NPROCESSORS_ONLN);
	return te__hc_nprocessors;
}

int te__hc_again(struct te__hc_op *o, enum te_k_comm_phase phase, int peer, uint32_t missing,
		 uint64_t expected, uint64_t got)
{
	struct timespec t;
	uint64_t now;

	if (++o->attempts == SLEEP_AFTER)
		o->sleeps = o->a->nranks > nprocessors();
	if (o->attempts % PATIENCE && (o->attempts < SLEEP_AFTER || !o->sleeps))
		return 0;
	if (__atomic_load_n(o->a->abort, __ATOMIC_RELAXED))
		return te__hc_fail(o, TE_K_COMM_ABORTED, phase, peer, missing, expected, got);
	clock_gettime(CLOCK_MONOTONIC, &t);
	now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	if (!o->since)
		o->since = now;
	if (o->a->deadline_ns && now - o->since > te_k_comm_limit_ns(o->a->deadline_ns, phase))
		return te__hc_fail(o, TE_K_COMM_TIMEOUT, phase, peer, missing, expected, got);
	o->sleeps |= now - o->since > SPIN_NS;
	if (o->attempts < YIELD_AFTER && !o->sleeps)
		return 0;
	if (o->sleeps)
		sleep_for_ring(o);
	else
		sched_yield();
	return 0;
}

/* ---- packets, headers and flags ---- */

/* 8 bytes of the region of a rank */
static uint64_t *word(const struct te__hc_op *o, int rank, int64_t at)
{
	return (uint64_t *)(void *)(o->a->slots + rank * o->a->stride + at);
}

/* in the buffer of this epoch */
static int64_t header_at(const struct te__hc_op *o, int source)
{
	return te_k_comm_buffer(o->a, o->epoch) + source * TE_K_COMM_PACKET;
}

static int64_t packet_at(const struct te__hc_op *o, int64_t index)
{
	return te_k_comm_buffer(o->a, o->epoch) + te_k_comm_headers_nbytes(o->a->nranks) +
	       index * TE_K_COMM_PACKET;
}

uint8_t *te__hc_packet(const struct te__hc_op *o, int rank, int64_t index)
{
	return (uint8_t *)word(o, rank, packet_at(o, index));
}

static int64_t flag_at(enum te_k_comm_phase phase, int source)
{
	return (phase - TE_K_COMM_ENTRY) * TE_K_COMM_CTAS * 128 + source * 8;
}

uint64_t *te__hc_flag(const struct te__hc_op *o, enum te_k_comm_phase phase, int index)
{
	return word(o, o->a->rank, flag_at(phase, index));
}

static uint32_t upper(uint64_t x)
{
	return (uint32_t)(x >> 32);
}

uint64_t te__hc_full(uint64_t x)
{
	return upper(x) == TE_K_COMM_EMPTY ? (uint64_t)TE_K_COMM_NAN << 32 | (uint32_t)x : x;
}

static void put(uint64_t *p, uint64_t x)
{
	__atomic_store_n(p, te__hc_full(x), __ATOMIC_RELAXED);
}

static void make_empty(uint64_t *p)
{
	__atomic_store_n(p, UINT64_MAX, __ATOMIC_RELAXED);
}

/* ll: the upper word of each half: by epoch, different from an empty packet's */
static uint64_t tag_of(const struct te__hc_op *o)
{
	return (o->epoch & 0x7fffffff) << 32;
}

/* words of a packet: ll sends two for each half */
static int64_t words_of(const struct te__hc_op *o)
{
	return o->a->algorithm == TE_K_COMM_LL ? 4 : 2;
}

static uint64_t *packet(const struct te__hc_op *o, int rank, int64_t index)
{
	return word(o, rank, packet_at(o, index * words_of(o) / 2));
}

static void send_packets(const struct te__hc_op *o, uint64_t *p, const uint8_t *data, int64_t n)
{
	const uint64_t tag = tag_of(o);
	const int flags = words_of(o) == 4;
	uint64_t d;

	for (int64_t i = 0; i < 2 * n; i++) {
		memcpy(&d, data + 8 * i, sizeof(d));
		if (!flags) {
			put(p + i, d);
			continue;
		}
		put(p + 2 * i, tag | (uint32_t)d);
		put(p + 2 * i + 1, tag | d >> 32);
	}
}

void te__hc_send(const struct te__hc_op *o, int to, int64_t index, const void *data,
		 int64_t nbytes)
{
	const int64_t n = nbytes / TE_K_COMM_PACKET, tail = nbytes % TE_K_COMM_PACKET;
	uint8_t last[TE_K_COMM_PACKET] = { 0 };

	send_packets(o, packet(o, to, index), data, n);
	if (!tail)
		return;
	memcpy(last, (const uint8_t *)data + n * TE_K_COMM_PACKET, (size_t)tail);
	send_packets(o, packet(o, to, index + n), last, 1);
}

/* data of at most n words, 8 bytes each, that are empty afterwards: how many had arrived */
static int64_t take(uint64_t *p, int64_t n, uint8_t *data)
{
	for (int64_t i = 0; i < n; i++) {
		const uint64_t x = __atomic_load_n(p + i, __ATOMIC_RELAXED);

		if (upper(x) == TE_K_COMM_EMPTY)
			return i;
		make_empty(p + i);
		memcpy(data + 8 * i, &x, sizeof(x));
	}
	return n;
}

/* for words with a tag, each with 4 bytes of data */
static int64_t take_tagged(uint64_t *p, int64_t n, uint64_t tag, uint8_t *data)
{
	for (int64_t i = 0; i < n; i++) {
		const uint64_t x = __atomic_load_n(p + i, __ATOMIC_RELAXED);
		const uint32_t d = (uint32_t)x;

		if (upper(x) != upper(tag))
			return i;
		make_empty(p + i);
		memcpy(data + 4 * i, &d, sizeof(d));
	}
	return n;
}

static int receive_packets(struct te__hc_op *o, enum te_k_comm_phase phase, int from, uint64_t *p,
			   uint8_t *data, int64_t npackets)
{
	const int flags = words_of(o) == 4;
	const uint64_t tag = flags ? tag_of(o) : 0;
	const int64_t n = npackets * words_of(o);

	for (int64_t i = 0;;) {
		i += flags ? take_tagged(p + i, n - i, tag, data + 4 * i) :
			   take(p + i, n - i, data + 8 * i);
		if (i == n)
			return 0;
		if (te__hc_again(o, phase, from, 1u << from, tag,
				 __atomic_load_n(p + i, __ATOMIC_RELAXED)))
			return -1;
	}
}

int te__hc_receive(struct te__hc_op *o, enum te_k_comm_phase phase, int from, int64_t index,
		   void *data, int64_t nbytes)
{
	const int64_t n = nbytes / TE_K_COMM_PACKET, tail = nbytes % TE_K_COMM_PACKET;
	uint8_t last[TE_K_COMM_PACKET];

	if (receive_packets(o, phase, from, packet(o, o->a->rank, index), data, n))
		return -1;
	if (!tail)
		return 0;
	if (receive_packets(o, phase, from, packet(o, o->a->rank, index + n), last, 1))
		return -1;
	memcpy((uint8_t *)data + n * TE_K_COMM_PACKET, last, (size_t)tail);
	return 0;
}

static void headers_send(const struct te__hc_op *o)
{
	for (int r = 0; r < o->a->nranks; r++) {
		uint64_t *p = word(o, r, header_at(o, o->a->rank));

		if (r == o->a->rank)
			continue;
		__atomic_store_n(p, te_k_comm_head(o->a, o->epoch), __ATOMIC_RELEASE);
		__atomic_store_n(p + 1, o->signature, __ATOMIC_RELEASE);
	}
}

int te__hc_begin(struct te__hc_op *o, const struct te_k_comm *a, uint64_t signature)
{
	*o = (struct te__hc_op){ .a = a, .epoch = a->ctl->epoch, .signature = signature };
	if (!a->count || a->ctl->failed)
		return -1;
	o->es = (uint32_t)te_dtype_nbytes((enum te_dtype)a->dtype);
	o->nbytes = a->count * o->es;
	o->npackets = te_k_comm_packets(o->nbytes);
	o->chunk = te_k_comm_chunk(o->npackets, a->nranks);
	headers_send(o);
	return 0;
}

void te__hc_end(const struct te__hc_op *o)
{
	o->a->ctl->epoch = o->epoch + 1;
}

/* 1: the header of the rank has arrived; 0: not yet; -1: it is of another operation */
static int header_try(const struct te__hc_op *o, int from, uint64_t *got)
{
	static const enum te_k_comm_code code[2] = { TE_K_COMM_MISMATCH_AT, TE_K_COMM_MISMATCH };
	const uint64_t expected[2] = { te_k_comm_head(o->a, o->epoch), o->signature };
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
			return te__hc_fail(o, code[k], TE_K_COMM_HEADER, from, 0, expected[k],
					   got[k]);
	return 1;
}

int te__hc_headers(struct te__hc_op *o)
{
	uint32_t missing = ~(1u << o->a->rank) & UINT32_MAX >> (32 - o->a->nranks);
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
		if (missing && te__hc_again(o, TE_K_COMM_HEADER, first, missing, o->signature, 0))
			return -1;
	}
	return 0;
}

void te__hc_flags_set(const struct te__hc_op *o, enum te_k_comm_phase phase, int64_t step)
{
	const uint64_t flag = te_k_comm_flag(o->a, o->epoch, o->signature) + (uint64_t)step;

	for (int r = 0; r < o->a->nranks; r++)
		if (r != o->a->rank)
			__atomic_store_n(word(o, r, flag_at(phase, o->a->rank)), flag,
					 __ATOMIC_RELEASE);
	te__hc_ring(o);
}

int te__hc_flags_wait(struct te__hc_op *o, enum te_k_comm_phase phase, int64_t step)
{
	const uint64_t want = te_k_comm_flag(o->a, o->epoch, o->signature) + (uint64_t)step;
	uint64_t x;

	o->since = 0;
	o->attempts = 0;
	for (int r = 0; r < o->a->nranks; r++) {
		const uint64_t *p = te__hc_flag(o, phase, r);

		while (r != o->a->rank && (x = __atomic_load_n(p, __ATOMIC_ACQUIRE)) - want > 1)
			if (te__hc_again(o, phase, r, 1u << r, want, x))
				return -1;
	}
	return 0;
}
