/*
 * t/comm/messages.c - te_comm_send(3), te_comm_alltoall(3), te_comm_gather(3): ranks are threads,
 * or, on the host, processes, which TE_COMM_NODE puts on several nodes and of which one is killed.
 */
#include "config.h"

#include <limits.h>
#include <signal.h>

#include <te/capture.h>
#include <te/collective.h>
#include <te/errno.h>

#include "libtecomm/collective/comm.h"
#include "nodes_lib.h"
#include "threads.h"

#define POOL ((uint64_t)4 << 20)
#define MEM ((size_t)1 << 20) /* bytes of each array of a rank */
#define LARGE ((size_t)32 << 20)

static uint64_t seed;

static int on_host(void)
{
	return !strcmp(backend, "host");
}

/* ---- a random call, the same on all ranks ---- */

enum what { POINT, RING, ALLTOALL, ALLTOALLV, GATHER, SCATTER, REDUCE, GROUP, NWHATS };

struct op {
	enum what what;
	enum te_dtype dtype;
	enum te_comm_op op;
	size_t es, at; /* bytes of an element; of the arrays before their first one */
	int root, shift, in_place;
	/* elements that a rank sends to another one, -1: no message; and where they are */
	int64_t n[THREADS_MOST][THREADS_MOST];
	int64_t in_at[THREADS_MOST][THREADS_MOST], out_at[THREADS_MOST][THREADS_MOST];
	uint64_t key;
};

/* number of messages in op: of all pairs that the operation has */
static int sends(const struct op *o, int s, int d)
{
	switch (o->what) {
	case POINT:
		return s == o->root && d == (o->root + o->shift) % threads_n;
	case RING:
		return d == (s + o->shift) % threads_n;
	case GATHER:
	case REDUCE:
		return d == o->root;
	case SCATTER:
		return s == o->root;
	default:
		return 1;
	}
}

static int64_t size_of(uint64_t *s, size_t es)
{
	static const int64_t some[] = { 0, 1, 2, 3, 7, 1279, 1280, 1281 };

	switch (threads_draw(s, 4)) {
	case 0:
		return some[threads_draw(s, TT_LEN(some))];
	case 1:
		return (int64_t)(threads_draw(s, threads_draw(s, 4) ? 12000 : 90000) / es);
	default:
		return (int64_t)threads_draw(s, 300);
	}
}

static struct op op_draw(uint64_t *s)
{
	struct op o = { .what = (enum what)threads_draw(s, NWHATS) };
	const int equal = o.what != POINT && o.what != RING && o.what != ALLTOALLV &&
			  o.what != GROUP;
	int64_t count;

	o.dtype = (enum te_dtype)threads_draw(s, TE_DTYPE_E2M1);
	o.op = (enum te_comm_op)threads_draw(s, TE_COMM_MAX + 1);
	o.es = te_dtype_nbytes(o.dtype);
	o.at = o.es * threads_draw(s, 20);
	o.root = (int)threads_draw(s, (uint64_t)threads_n);
	o.shift = threads_n == 1 ? 0 : (int)(1 + threads_draw(s, (uint64_t)threads_n - 1));
	o.in_place = (int)threads_draw(s, 2);
	o.key = te__splitmix64(s);
	count = size_of(s, o.es);
	for (int i = 0; i < threads_n; i++)
		for (int k = 0; k < threads_n; k++)
			o.n[i][k] = !sends(&o, i, k) ||
				    (o.what == GROUP && !threads_draw(s, 4)) ? -1 :
				    equal ? count : size_of(s, o.es);
	for (int i = 0; i < threads_n; i++) {
		int64_t in = 0, out = 0;

		for (int k = 0; k < threads_n; k++) {
			const int64_t gap = o.what == ALLTOALLV ? (int64_t)threads_draw(s, 5) : 0;

			o.in_at[i][k] = in + gap;
			o.out_at[i][k] = o.what == REDUCE ? 0 : out + gap;
			in += o.n[i][k] < 0 ? 0 : o.n[i][k] + gap;
			out += o.n[k][i] < 0 ? 0 : o.n[k][i] + gap;
		}
	}
	return o;
}

static void data(const struct op *o, int s, int d, unsigned char *p)
{
	const size_t n = (size_t)o->n[s][d] * o->es;
	uint64_t x = o->key ^ (uint64_t)(s * 8 + d + 1);

	for (size_t i = 0; i < n; i += 8) {
		const uint64_t v = te__splitmix64(&x);

		memcpy(p + i, &v, n - i < 8 ? n - i : 8);
	}
}

struct arrays {
	void *in, *out;
	unsigned char *before, *want, *got; /* of out; before is also what in has */
};

/* part k of two messages with each rank that has one, in an order of this rank's own */
static int call_part(struct thread_rank *r, struct te_stream *q, const struct op *o, int k,
		     const char *in, char *out)
{
	uint64_t s = o->key + (uint64_t)r->rank;
	const int first = (int)threads_draw(&s, (uint64_t)threads_n);
	const int sends_first = (int)threads_draw(&s, 2);

	for (int i = 0; i < 2 * threads_n; i++) {
		const int p = (first + i / 2) % threads_n, out_now = i % 2 == sends_first;
		const int64_t all = out_now ? o->n[p][r->rank] : o->n[r->rank][p];
		const int64_t n = k ? all - all / 3 : all / 3, skip = k ? all / 3 : 0;

		if (all < 0)
			continue;
		if (out_now)
			STEP(te_comm_recv(r->comm, q,
					  out + (size_t)(o->out_at[r->rank][p] + skip) * o->es, n,
					  o->dtype, p, NULL));
		else
			STEP(te_comm_send(r->comm, q,
					  in + (size_t)(o->in_at[r->rank][p] + skip) * o->es, n,
					  o->dtype, p, NULL));
	}
	return 0;
}

static int call_group(struct thread_rank *r, struct te_stream *q, const struct op *o,
		      const char *in, char *out)
{
	STEP(te_comm_group_begin(r->comm));
	STEP(call_part(r, q, o, 0, in, out));
	STEP(call_part(r, q, o, 1, in, out));
	return te_comm_group_end(r->comm);
}

static int call(struct thread_rank *r, struct te_stream *q, const struct op *o, const char *in,
		char *out)
{
	const int me = r->rank, to = (me + o->shift) % threads_n;
	const int from = (me - o->shift + threads_n) % threads_n;
	const int64_t n = o->n[o->root][o->root];
	int64_t nin[THREADS_MOST], nout[THREADS_MOST];

	switch (o->what) {
	case POINT:
		if (threads_n == 1)
			return te_comm_sendrecv(r->comm, q, in, n, 0, out, n, 0, o->dtype, NULL);
		if (me == o->root)
			return te_comm_send(r->comm, q, in, o->n[me][to], o->dtype, to, NULL);
		if (from == o->root)
			return te_comm_recv(r->comm, q, out, o->n[from][me], o->dtype, from, NULL);
		return 0;
	case RING:
		return te_comm_sendrecv(r->comm, q, in, o->n[me][to], to, out, o->n[from][me],
					from, o->dtype, NULL);
	case ALLTOALL:
		return te_comm_alltoall(r->comm, q, in, out, n, o->dtype, NULL);
	case GROUP:
		return call_group(r, q, o, in, out);
	case GATHER:
		return te_comm_gather(r->comm, q, in, me == o->root ? out : NULL, n, o->dtype,
				      o->root, NULL);
	case SCATTER:
		return te_comm_scatter(r->comm, q, me == o->root ? in : NULL, out, n, o->dtype,
				       o->root, NULL);
	case REDUCE:
		return te_comm_reduce(r->comm, q, in, me == o->root ? out : NULL, n, o->dtype,
				      o->op, o->root, NULL);
	default:
		for (int k = 0; k < threads_n; k++) {
			nin[k] = o->n[me][k];
			nout[k] = o->n[k][me];
		}
		return te_comm_alltoallv(r->comm, q, in, nin, o->in_at[me], out, nout,
					 o->out_at[me], o->dtype, NULL);
	}
}

/* the operation in place: the array that has both in and out, or NULL */
static void *in_place(const struct op *o, int me, const struct arrays *a)
{
	if (!o->in_place || me != o->root)
		return NULL;
	return o->what == SCATTER ? a->in : o->what == GATHER || o->what == REDUCE ? a->out : NULL;
}

static int run_op(struct thread_rank *r, struct te_stream *q, const struct op *o,
		  const struct arrays *a)
{
	const int me = r->rank;
	const size_t own = o->at + (size_t)o->n[o->root][o->root] * o->es * (size_t)o->root;
	char *in = (char *)a->in + o->at, *out = (char *)a->out + o->at;
	const void *both = in_place(o, me, a);

	memset(a->before, 0xa5, MEM);
	for (int d = 0; d < threads_n; d++)
		if (o->n[me][d] >= 0)
			data(o, me, d, a->before + o->at + (size_t)o->in_at[me][d] * o->es);
	memset(a->want, 0x5a, MEM);
	if (both && o->what == SCATTER) {
		out = (char *)a->in + own;
		memcpy(a->want, a->before, MEM);
	} else if (both) {
		in = (char *)a->out + (o->what == GATHER ? own : o->at);
		data(o, me, me, a->want + (in - (char *)a->out));
	}
	STEP(te_copy(q, a->in, a->before, MEM));
	STEP(te_copy(q, a->out, a->want, MEM));
	STEP(te_stream_sync(q));
	if (o->what == REDUCE) { /* before it runs in place */
		STEP(te_comm_allreduce(r->comm, q, in, (char *)a->in + MEM / 2,
				       o->n[me][o->root], o->dtype, o->op, NULL));
		STEP(te_copy(q, a->got, (char *)a->in + MEM / 2, MEM / 2));
		STEP(te_stream_sync(q));
		if (me == o->root)
			memcpy(a->want + o->at, a->got, (size_t)o->n[me][me] * o->es);
	}
	STEP(call(r, q, o, in, out));
	for (int s = 0; s < threads_n && o->what != REDUCE; s++)
		if (o->n[s][me] >= 0 && !(both && o->what == SCATTER))
			data(o, s, me, a->want + o->at + (size_t)o->out_at[me][s] * o->es);
	STEP(te_copy(q, a->got, both && o->what == SCATTER ? a->in : a->out, MEM));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(r->comm));
	for (size_t i = 0; memcmp(a->got, a->want, MEM) && i < MEM; i++)
		if (a->got[i] != a->want[i])
			return te_fail(-EPROTO, "operation %d, %s: byte %zu of %zu differs",
				       (int)o->what, te_dtype_name(o->dtype), i - o->at,
				       (size_t)(o->n[o->root][me] + 1) * o->es);
	return 0;
}

static int arrays_get(struct thread_rank *r, struct arrays *a)
{
	struct te_stream *q = te_ctx_stream(r->ctx);

	a->before = malloc(3 * MEM);
	HOLDS(a->before);
	a->want = a->before + MEM;
	a->got = a->want + MEM;
	STEP(te_mem_alloc(q, MEM, &a->in));
	return te_mem_alloc(q, MEM, &a->out);
}

static int arrays_put(struct thread_rank *r, struct arrays *a)
{
	struct te_stream *q = te_ctx_stream(r->ctx);

	free(a->before);
	STEP(te_mem_free(q, a->in));
	STEP(te_mem_free(q, a->out));
	STEP(te_comm_barrier(r->comm, q));
	return te_stream_sync(q);
}

static int many(struct thread_rank *r)
{
	struct arrays a;
	uint64_t s = seed;

	STEP(arrays_get(r, &a));
	for (int i = 0; i < TT_FEWER(16); i++) {
		const struct op o = op_draw(&s);

		STEP(run_op(r, te_ctx_stream(r->ctx), &o, &a));
	}
	return arrays_put(r, &a);
}

CASE(messages, "comm", .setup = tt_setup, .teardown = tt_teardown);

/* a context takes half a second on a GPU */
TEST_EACH(messages, every_byte_arrives, on_host() ? THREADS_MOST + 1 : 5, .from = 1)
{
	seed = tt_rand_u64();
	threads_run(_i, many, 0, NULL);
}

/* ---- recordings ---- */

#define WORDS 3001

/* word i of x moves on by one rank; then all ranks add those of rank 0 */
static int turn(struct thread_rank *r, struct te_stream *q, int32_t *x, int32_t *y)
{
	const int n = threads_n, next = (r->rank + 1) % n, before = (r->rank + n - 1) % n;

	STEP(te_comm_sendrecv(r->comm, q, x, WORDS, next, y, WORDS, before, TE_DTYPE_INT32, NULL));
	STEP(te_comm_group_begin(r->comm));
	STEP(te_comm_alltoall(r->comm, q, y, x, WORDS / n, TE_DTYPE_INT32, NULL));
	STEP(te_comm_group_end(r->comm));
	STEP(te_comm_reduce(r->comm, q, x, r->rank ? NULL : y, WORDS, TE_DTYPE_INT32, TE_COMM_SUM,
			    0, NULL));
	if (!r->rank) {
		for (int k = 1; k < n; k++)
			STEP(te_comm_send(r->comm, q, y, WORDS, TE_DTYPE_INT32, k, NULL));
	} else {
		STEP(te_comm_recv(r->comm, q, y, WORDS, TE_DTYPE_INT32, 0, NULL));
	}
	return te_comm_allreduce(r->comm, q, y, x, WORDS, TE_DTYPE_INT32, TE_COMM_SUM, NULL);
}

static void turn_expected(int32_t x[][WORDS], int32_t y[][WORDS])
{
	const int n = threads_n, part = WORDS / n;

	for (int r = 0; r < n; r++)
		memcpy(y[(r + 1) % n], x[r], sizeof(x[r]));
	for (int r = 0; r < n; r++)
		for (int s = 0; s < n; s++)
			memcpy(x[r] + s * part, y[s] + r * part, (size_t)part * 4);
	for (int i = 0; i < WORDS; i++) {
		uint32_t sum = 0;

		for (int r = 0; r < n; r++)
			sum += (uint32_t)x[r][i];
		for (int r = 0; r < n; r++)
			x[r][i] = (int32_t)(sum * (uint32_t)n);
	}
}

static int replays(struct thread_rank *r)
{
	static int32_t x[THREADS_MOST][THREADS_MOST][WORDS], y[THREADS_MOST][THREADS_MOST][WORDS];
	int32_t got[WORDS], *a, *b;
	struct te_stream *q = te_ctx_stream(r->ctx);
	struct te_recording *rec;
	uint64_t s = seed;
	void *p;

	for (int k = 0; k < threads_n; k++)
		for (int i = 0; i < WORDS; i++)
			x[r->rank][k][i] = (int32_t)te__splitmix64(&s);
	STEP(te_mem_alloc(q, 2 * sizeof(got), &p));
	a = p;
	b = a + WORDS;
	STEP(te_copy(q, a, x[r->rank][r->rank], sizeof(got)));
	STEP(te_stream_sync(q));
	STEP(te_capture_begin(q));
	STEP(turn(r, q, a, b));
	STEP(te_capture_end(q, &rec));
	for (int i = 0; i < 6; i++) {
		STEP(threads_draw(&s, 2) ? te_recording_launch(rec, q) : turn(r, q, a, b));
		turn_expected(x[r->rank], y[r->rank]);
	}
	STEP(te_copy(q, got, a, sizeof(got)));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(r->comm));
	HOLDS(!memcmp(got, x[r->rank][r->rank], sizeof(got)));
	te_recording_unref(rec);
	STEP(te_mem_free(q, p));
	STEP(te_comm_barrier(r->comm, q));
	return te_stream_sync(q);
}

TEST_EACH(messages, recordings_have_messages, 5, .from = 1)
{
	seed = tt_rand_u64();
	threads_run(_i, replays, 0, NULL);
}

/* rank 0 exchanges arrays of many chunks by a call or group, rank 1 by two calls in any order */
static int orders(struct thread_rank *r)
{
	struct te_stream *q = te_ctx_stream(r->ctx);
	const int64_t n = (int64_t)MEM / 4;
	const int first = (int)(seed & 1) ^ !r->rank;
	unsigned char *got = malloc(MEM);
	void *in, *out;

	HOLDS(got);
	STEP(te_mem_alloc(q, MEM, &in));
	STEP(te_mem_alloc(q, MEM, &out));
	STEP(te_fill(q, in, 7 + r->rank, MEM));
	if (!r->rank && seed < 2)
		STEP(te_comm_sendrecv(r->comm, q, in, n, 1, out, n, 1, TE_DTYPE_FP32, NULL));
	if (!r->rank && seed >= 2)
		STEP(te_comm_group_begin(r->comm));
	for (int i = 0; (r->rank || seed >= 2) && i < 2; i++)
		STEP(i == first ? te_comm_send(r->comm, q, in, n, TE_DTYPE_FP32, !r->rank, NULL) :
				  te_comm_recv(r->comm, q, out, n, TE_DTYPE_FP32, !r->rank, NULL));
	if (!r->rank && seed >= 2)
		STEP(te_comm_group_end(r->comm));
	STEP(te_copy(q, got, out, MEM));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(r->comm));
	HOLDS(got[0] == 8 - r->rank && !memcmp(got, got + 1, MEM - 1));
	free(got);
	STEP(te_mem_free(q, in));
	STEP(te_mem_free(q, out));
	STEP(te_comm_barrier(r->comm, q));
	return te_stream_sync(q);
}

TEST(messages, an_exchange_does_not_wait_for_itself)
{
	for (seed = 0; seed < 4; seed++)
		threads_run(2, orders, 0, NULL);
}

/*
 * Two messages to rank 1, which sends to rank 2 after both; rank 0 receives from rank 2, which
 * sends after that. In any order in which rank 0 did one after the other, it would wait.
 */
static int circle(struct thread_rank *r)
{
	struct te_stream *q = te_ctx_stream(r->ctx);
	const int64_t n = (int64_t)MEM / 2;
	const enum te_dtype t = TE_DTYPE_UINT8;
	const int me = r->rank;
	unsigned char *got = malloc(MEM);
	uint8_t *a;
	void *p;

	HOLDS(got);
	STEP(te_mem_alloc(q, 2 * MEM, &p));
	a = p;
	STEP(te_fill(q, a, 3 + me, 2 * MEM));
	if (me == 0) {
		STEP(te_comm_group_begin(r->comm));
		STEP(te_comm_recv(r->comm, q, a + MEM, n, t, 2, NULL));
		STEP(te_comm_send(r->comm, q, a, n, t, 1, NULL));
		STEP(te_comm_send(r->comm, q, a + n, n, t, 1, NULL));
		STEP(te_comm_group_end(r->comm));
	} else {
		for (int k = 0; k < 3 - me; k++)
			STEP(te_comm_recv(r->comm, q, a + MEM + k * n, n, t, me - 1, NULL));
		STEP(te_comm_send(r->comm, q, a + MEM, n, t, (me + 1) % 3, NULL));
	}
	STEP(te_copy(q, got, a + MEM, MEM));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(r->comm));
	for (int64_t i = 0; i < n; i++)
		HOLDS(got[i] == 3);
	free(got);
	STEP(te_mem_free(q, p));
	STEP(te_comm_barrier(r->comm, q));
	return te_stream_sync(q);
}

TEST(messages, messages_of_a_group_do_not_wait_for_each_other)
{
	threads_run(3, circle, 0, NULL);
}

/* ---- failures ---- */

static const struct bad {
	const char *text;
	int code;
} bads[] = {
	{ "message 1 of rank 0 (", -TE_EMISMATCH },
	{ "is 10 fp32 from one rank to another, expected 12 fp32", -TE_EMISMATCH },
	{ "is 10 fp32 from one rank to another, expected 10 bf16", -TE_EMISMATCH },
	{ "is 0 fp32 from one rank to another, expected 1 fp32", -TE_EMISMATCH },
	{ "10 fp32 of an all-to-all, expected 10 fp32 of a gather", -TE_EMISMATCH },
	{ "10 fp32 of a minimum, expected 10 fp32 of a maximum", -TE_EMISMATCH },
	{ "is 3 fp32 of an all-to-all, expected 2 fp32 of an all-to-all", -TE_EMISMATCH },
	{ "rank 2", -ETIMEDOUT }, /* has sent to another one */
	{ "has not received message 0 of rank 0 (", -ETIMEDOUT },
	{ "rank 2", -ETIMEDOUT }, /* does not call */
	{ "stopped by a test", -TE_EABORT },
	{ "is 10 fp32 of a scatter, expected 12 fp32 of a scatter", -TE_EMISMATCH },
	{ "message 1 of rank 0 (", -TE_EMISMATCH }, /* the second one of a group */
	{ "with max_blocks 2, expected 10 fp32 from one rank to another with max_blocks 1",
	  -TE_EMISMATCH }, /* on GPUs only */
};

static int go_wrong(struct thread_rank *r)
{
	static const int64_t two[] = { 2, 2, 2 }, three[] = { 2, 3, 2 };
	struct te_stream *q = te_ctx_stream(r->ctx);
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_comm *c = r->comm;
	const enum te_dtype f = TE_DTYPE_FP32;
	const int me = r->rank, at = (int)seed;
	void *p, *out;

	STEP(te_mem_alloc(q, at == 8 ? LARGE : MEM, &p));
	STEP(te_mem_alloc(q, MEM, &out));
	STEP(te_comm_barrier(c, q));
	STEP(te_stream_sync(q));
	if (bads[at].code == -ETIMEDOUT) /* no rank has to do anything in time */
		c->coll.deadline_ns = 50000000;
	if (at == 0 && me == 0)
		STEP(te_comm_send(c, q, p, 5, f, 1, NULL));
	if (at == 0 && me == 1)
		STEP(te_comm_recv(c, q, out, 5, f, 0, NULL));
	if (at <= 3 && me == 0)
		STEP(te_comm_send(c, q, p, at == 3 ? 0 : 10, f, 1, NULL));
	if (at <= 3 && me == 1)
		STEP(te_comm_recv(c, q, out, at == 3 ? 1 : at == 2 ? 10 : 12,
				  at == 2 ? TE_DTYPE_BF16 : f, 0, NULL));
	if (at == 4)
		STEP(me ? te_comm_alltoall(c, q, p, out, 10, f, NULL) :
			  te_comm_gather(c, q, p, out, 10, f, 0, NULL));
	if (at == 5)
		STEP(te_comm_reduce(c, q, p, out, 10, f, me ? TE_COMM_MIN : TE_COMM_MAX, 0, NULL));
	if (at == 6)
		STEP(te_comm_alltoallv(c, q, p, me ? two : three, NULL, out, two, NULL, f, NULL));
	if (at == 7 && me == 2)
		STEP(te_comm_send(c, q, p, 10, f, 0, NULL));
	if (at == 7 && me == 1)
		STEP(te_comm_recv(c, q, out, 10, f, 2, NULL));
	if (at == 8 && me == 0) /* more than sockets take */
		STEP(te_comm_send(c, q, p, (int64_t)LARGE / 4, f, 1, NULL));
	if (at == 9 && me < 2)
		STEP(te_comm_reduce(c, q, p, out, 10, f, TE_COMM_SUM, 0, NULL));
	if (at == 9 && me == 1) /* which has not ended either */
		STEP(te_comm_recv(c, q, out, 10, f, 2, NULL));
	if (at == 10 && me < 2)
		STEP(te_comm_recv(c, q, out, 10, f, 1 - me, NULL));
	if (at == 10 && me == 2)
		te_comm_abort(c, "stopped by a test");
	if (at == 11)
		STEP(te_comm_scatter(c, q, p, out, me == 1 ? 12 : 10, f, 0, NULL));
	if (at == 12 && me < 2) {
		STEP(te_comm_group_begin(c));
		for (int i = 0; i < 2; i++)
			STEP(me ? te_comm_recv(c, q, (char *)out + 64 * i, 5 + i, f, 0, NULL) :
				  te_comm_send(c, q, p, 5, f, 1, NULL));
		STEP(te_comm_group_end(c));
	}
	o.max_blocks = me ? 1 : 2;
	if (at == 13 && me == 0)
		STEP(te_comm_send(c, q, p, 10, f, 1, &o));
	if (at == 13 && me == 1) {
		STEP(te_comm_group_begin(c));
		STEP(te_comm_recv(c, q, out, 10, f, 0, &o));
		STEP(te_comm_group_end(c));
	}
	STEP(te_stream_sync(q));
	/* ranks that wait for none learn of it too */
	for (int i = 0; i < 20000 && !te_comm_error(c); i++)
		usleep(1000);
	return te_comm_error(c);
}

TEST_EACH(messages, failures_are_named, TT_LEN(bads) - on_host())
{
	seed = (uint64_t)_i;
	threads_run(3, go_wrong, bads[_i].code, bads[_i].text);
}

#define REFUSED(call, code, text)                                   \
	do {                                                        \
		HOLDS((call) == (code));                            \
		HOLDS(strstr(te_error_detail(), (text)) != NULL);   \
	} while (0)

static int refusals(struct thread_rank *r)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *q = te_ctx_stream(r->ctx);
	const int me = r->rank, other = 1 - me;
	const int64_t n[] = { 3, 3 }, far[] = { 0, 2 }, minus[] = { 3, -1 };
	struct te_comm *c = r->comm;
	const enum te_dtype f = TE_DTYPE_FP32;
	float *p;
	void *v;

	STEP(te_mem_alloc(q, 4096, &v));
	p = v;
	REFUSED(te_comm_send(NULL, q, p, 1, f, 1, NULL), -EINVAL, "te_comm_send: comm is NULL");
	REFUSED(te_comm_send(c, q, p, 1, f, 2, NULL), -EINVAL, "to is 2, not one of 2 ranks");
	REFUSED(te_comm_send(c, q, p, 1, f, me, NULL), -EINVAL, "only one end of a message");
	REFUSED(te_comm_send(c, q, p, -1, f, other, NULL), -EINVAL, "-1 elements");
	REFUSED(te_comm_send(c, q, NULL, 1, f, other, NULL), -EINVAL, "in is NULL");
	REFUSED(te_comm_send(c, NULL, p, 1, f, other, NULL), -EINVAL, "stream");
	REFUSED(te_comm_send(c, q, p, 1, TE_DTYPE_COUNT, other, NULL), -TE_EDTYPE, "element type");
	REFUSED(te_comm_recv(c, q, (char *)v + 1, 1, f, other, NULL), -EINVAL, "not aligned");
	REFUSED(te_comm_recv(c, q, p, 1, f, -2, NULL), -EINVAL, "from is -2");
	o.algorithm = TE_COMM_LL;
	REFUSED(te_comm_recv(c, q, p, 1, f, other, &o), -EOPNOTSUPP, "expected TE_COMM_AUTO");
	o.algorithm = TE_COMM_AUTO;
	o.max_blocks = -1;
	REFUSED(te_comm_recv(c, q, p, 1, f, other, &o), -EINVAL, "max_blocks is -1");
	REFUSED(te_comm_sendrecv(c, q, p, 8, other, p + 7, 8, other, f, NULL), -EINVAL, "overlaps");
	REFUSED(te_comm_sendrecv(c, q, p, 8, me, p + 8, 7, me, f, NULL), -EINVAL, "to itself");
	REFUSED(te_comm_sendrecv(c, q, p, 8, me, p + 8, 8, other, f, NULL), -EINVAL, "one end");
	STEP(te_comm_sendrecv(c, q, NULL, 8, TE_COMM_NO_RANK, NULL, 8, TE_COMM_NO_RANK, f, NULL));
	REFUSED(te_comm_alltoall(c, q, p, p + 1, 2, f, NULL), -EINVAL, "overlaps");
	REFUSED(te_comm_alltoall(c, q, p, p, INT64_MAX, f, NULL), -EINVAL, "2^37 - 1");
	REFUSED(te_comm_alltoallv(c, q, p, NULL, NULL, p + 9, n, NULL, f, NULL), -EINVAL,
		"in_counts is NULL");
	REFUSED(te_comm_alltoallv(c, q, p, n, NULL, p + 9, n, far, f, NULL), -EINVAL,
		"out for rank 1 overlaps out for rank 0");
	REFUSED(te_comm_alltoallv(c, q, p, n, minus, p + 9, n, NULL, f, NULL), -EINVAL,
		"offset of -1 elements");
	REFUSED(te_comm_alltoallv(c, q, p, minus, NULL, p + 9, n, NULL, f, NULL), -EINVAL,
		"-1 elements");
	REFUSED(te_comm_gather(c, q, p, p + 100, 2, f, 2, NULL), -EINVAL, "root is 2");
	REFUSED(te_comm_scatter(c, q, p, p + 100, 2, f, -1, NULL), -EINVAL, "root is -1");
	REFUSED(te_comm_reduce(c, q, p, p, 2, f, TE_COMM_MAX + 1, 0, NULL), -EINVAL,
		"operation 4 is unknown");
	REFUSED(te_comm_reduce(c, q, p, p + 1, 2, f, TE_COMM_SUM, me, NULL), -EINVAL, "overlaps");
	STEP(te_comm_alltoall(c, q, NULL, NULL, 0, f, NULL));
	STEP(te_comm_gather(c, q, NULL, NULL, 0, f, 0, NULL));
	STEP(te_mem_free(q, v));
	STEP(te_comm_barrier(c, q));
	STEP(te_stream_sync(q));
	return te_comm_error(c);
}

#define MANY 40 /* small messages, and larger ones between them: more than slots */

/* rank 0 sends groups, of as many messages as GPUs take; rank 1 receives these one by one */
static int in_chains(struct thread_rank *r)
{
	struct te_stream *q = te_ctx_stream(r->ctx);
	const int most = TE_K_COMM_ENDS, other = !r->rank;
	int64_t at = 0;
	unsigned char *got = malloc(MEM), *want = malloc(MEM);
	uint8_t *a;
	void *p;

	HOLDS(got && want);
	STEP(te_mem_alloc(q, MEM, &p));
	a = p;
	memset(want, 100, MEM);
	STEP(te_fill(q, a, 100, MEM));
	for (int i = 0; i < MANY; i++) {
		const int64_t n = i % 7 == 3 ? 40000 + i : i;

		memset(want + at, i, (size_t)n);
		if (!r->rank && n)
			STEP(te_fill(q, a + at, i, (size_t)n));
		if (!r->rank && i % most == 0)
			STEP(te_comm_group_begin(r->comm));
		STEP(r->rank ? te_comm_recv(r->comm, q, a + at, n, TE_DTYPE_UINT8, other, NULL) :
			       te_comm_send(r->comm, q, a + at, n, TE_DTYPE_UINT8, other, NULL));
		if (!r->rank && (i % most == most - 1 || i == MANY - 1))
			STEP(te_comm_group_end(r->comm));
		at += n;
	}
	STEP(te_copy(q, got, p, MEM));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(r->comm));
	HOLDS(!memcmp(got, want, MEM));
	free(got);
	free(want);
	STEP(te_comm_group_begin(r->comm));
	for (int i = 0; i <= most; i++)
		STEP(r->rank ? te_comm_recv(r->comm, q, a + i, 1, TE_DTYPE_UINT8, other, NULL) :
			       te_comm_send(r->comm, q, a, 1, TE_DTYPE_UINT8, other, NULL));
	if (on_host())
		STEP(te_comm_group_end(r->comm));
	else
		REFUSED(te_comm_group_end(r->comm), -EOPNOTSUPP,
			"17 sends and receives in a group, at most 16 on");
	STEP(te_mem_free(q, p));
	STEP(te_comm_barrier(r->comm, q));
	return te_stream_sync(q);
}

TEST(messages, a_group_may_have_many_messages)
{
	threads_run(2, in_chains, 0, NULL);
}

static int group_ends(struct thread_rank *r, int code, const char *text)
{
	char why[200];

	snprintf(why, sizeof(why), "te_comm_group_end: %s", text);
	REFUSED(te_comm_group_end(r->comm), code, why);
	REFUSED(te_comm_group_end(r->comm), -EINVAL, "there is no group");
	return 0;
}

static int group_refusals(struct thread_rank *r)
{
	struct te_stream *q = te_ctx_stream(r->ctx), *s;
	const int me = r->rank, other = 1 - me;
	struct te_comm *c = r->comm;
	const enum te_dtype f = TE_DTYPE_FP32;
	float *p;
	void *v;

	STEP(te_mem_alloc(q, 4096, &v));
	STEP(te_stream_create(r->ctx, &s));
	p = v;
	REFUSED(te_comm_group_begin(NULL), -EINVAL, "te_comm_group_begin: comm is NULL");
	REFUSED(te_comm_group_end(NULL), -EINVAL, "te_comm_group_end: comm is NULL");
	REFUSED(te_comm_group_end(c), -EINVAL, "there is no group");
	STEP(te_comm_group_begin(c));
	REFUSED(te_comm_group_begin(c), -EBUSY, "a group of messages is open");
	REFUSED(te_comm_allreduce(c, q, p, p, 4, f, TE_COMM_SUM, NULL), -EBUSY, "is open");
	REFUSED(te_comm_gather(c, q, p, p + 100, 4, f, 0, NULL), -EBUSY, "is open");
	REFUSED(te_comm_barrier(c, q), -EBUSY, "te_comm_barrier: ");
	STEP(te_comm_group_end(c));
	STEP(te_comm_group_begin(c));
	STEP(te_comm_send(c, q, p, 4, f, other, NULL));
	REFUSED(te_comm_send(c, q, p, 4, f, 2, NULL), -EINVAL, "to is 2");
	REFUSED(te_comm_recv(c, q, p, 4, TE_DTYPE_COUNT, 1, NULL), -TE_EDTYPE, "element type");
	STEP(group_ends(r, -EINVAL, "te_comm_send: to is 2, not one of 2 ranks"));
	STEP(te_comm_group_begin(c));
	STEP(te_comm_send(c, q, p, 4, f, other, NULL));
	REFUSED(te_comm_recv(c, s, p + 4, 4, f, other, NULL), -EINVAL, "stream differs from");
	STEP(group_ends(r, -EINVAL, "te_comm_recv: stream differs from"));
	STEP(te_comm_group_begin(c));
	STEP(te_comm_send(c, q, p, 4, f, other, NULL));
	STEP(te_comm_recv(c, q, p + 3, 4, f, other, NULL));
	STEP(group_ends(r, -EINVAL, me ? "out for rank 0 overlaps in for rank 0" :
					 "out for rank 1 overlaps in for rank 1"));
	STEP(te_comm_group_begin(c));
	STEP(te_comm_send(c, q, p, 4, f, me, NULL));
	STEP(group_ends(r, -EINVAL, me ? "rank 1 has only one end" : "rank 0 has only one end"));
	STEP(te_comm_group_begin(c));
	STEP(te_comm_send(c, q, p, 4, f, me, NULL));
	STEP(te_comm_recv(c, q, p + 4, 4, TE_DTYPE_INT32, me, NULL));
	STEP(group_ends(r, -EINVAL, me ? "rank 1 sends 4 fp32 to itself and receives 4 int32" :
					 "rank 0 sends 4 fp32 to itself and receives 4 int32"));
	STEP(te_comm_group_begin(c));
	STEP(te_comm_alltoall(c, q, NULL, NULL, 0, f, NULL));
	STEP(te_comm_group_end(c));
	s = te_stream_unref(s);
	STEP(te_mem_free(q, v));
	STEP(te_comm_barrier(c, q));
	STEP(te_stream_sync(q));
	return te_comm_error(c);
}

TEST(messages, groups_are_checked)
{
	threads_run(2, group_refusals, 0, NULL);
}

TEST(messages, arguments_are_checked)
{
	threads_run(2, refusals, 0, NULL);
}

/* parts of n elements of three ranks, or a message to the next rank */
static int call_of_three(struct te_comm *c, struct te_stream *s, int rank, enum what what,
			 const void *in, void *out, int64_t n)
{
	const int64_t each[] = { n, n, n };
	const enum te_dtype t = TE_DTYPE_BF16;

	switch (what) {
	case POINT:
		if (rank > 0)
			STEP(te_comm_recv(c, s, out, n, t, rank - 1, NULL));
		return rank < 2 ? te_comm_send(c, s, in, n, t, rank + 1, NULL) : 0;
	case ALLTOALL:
		return te_comm_alltoall(c, s, in, out, n, t, NULL);
	case ALLTOALLV:
		return te_comm_alltoallv(c, s, in, each, NULL, out, each, NULL, t, NULL);
	case GATHER:
		return te_comm_gather(c, s, in, out, n, t, 2, NULL);
	case SCATTER:
		return te_comm_scatter(c, s, in, out, n, t, 1, NULL);
	case GROUP:
		STEP(te_comm_group_begin(c));
		STEP(te_comm_send(c, s, in, n, t, (rank + 1) % 3, NULL));
		STEP(te_comm_recv(c, s, out, n, t, (rank + 2) % 3, NULL));
		return te_comm_group_end(c);
	case REDUCE:
		return te_comm_reduce(c, s, in, out, n, t, TE_COMM_MAX, 0, NULL);
	default:
		return te_comm_sendrecv(c, s, in, n, (rank + 1) % 3, out, n,
					(rank + 2) % 3, t, NULL);
	}
}

/* rank 1, which all wait for, does not call */
static int wait_for_one(struct thread_rank *r)
{
	struct te_stream *q = te_ctx_stream(r->ctx);
	void *in, *out;

	STEP(te_mem_alloc(q, MEM, &in));
	STEP(te_mem_alloc(q, MEM, &out));
	STEP(te_comm_barrier(r->comm, q));
	STEP(te_stream_sync(q));
	r->comm->coll.deadline_ns = 50000000;
	if (r->rank != 1)
		STEP(call_of_three(r->comm, q, r->rank, (enum what)seed, in, out, 10));
	for (int i = 0; i < 20000 && !te_comm_error(r->comm); i++)
		usleep(1000);
	return te_comm_error(r->comm);
}

TEST_EACH(messages, a_rank_that_does_not_call_is_waited_for_briefly, NWHATS)
{
	seed = (uint64_t)_i;
	threads_run(3, wait_for_one, -ETIMEDOUT, "within 50 ms");
}

/* ---- processes ---- */

struct killing {
	const char *nodes; /* a letter for each rank */
	enum what what;
	int records, kills; /* 1: calls are a recording; rank 1 is killed in the middle */
};

static int many_calls(const struct joined *j, int rank, const struct killing *k, const void *in,
		      void *out)
{
	struct te_recording *rec = NULL;
	int r = 0;

	if (k->records) {
		STEP(te_capture_begin(j->s));
		STEP(call_of_three(j->comm, j->s, rank, k->what, in, out, 9999));
		STEP(te_capture_end(j->s, &rec));
	}
	for (int i = 0; i < 20 && !r; i++) {
		if (k->kills && i == 10 && rank == 1)
			raise(SIGKILL);
		r = rec ? te_recording_launch(rec, j->s) :
			  call_of_three(j->comm, j->s, rank, k->what, in, out, 1 + i * 999);
		if (!r)
			r = te_stream_sync(j->s);
		if (!r)
			r = te_comm_error(j->comm);
	}
	te_recording_unref(rec);
	if (!r)
		r = te_comm_barrier(j->comm, j->s);
	if (!r)
		r = te_stream_sync(j->s);
	return r ? r : te_comm_error(j->comm);
}

static int killed_rank(int rank, void *arg)
{
	struct joined j;
	void *p = NULL, *o = NULL;
	const struct killing *k = arg;
	int r = nodes_join(&j, rank, k->nodes[rank], 60000, 5000, 0, 1);

	if (!r)
		r = te_mem_alloc(j.s, MEM, &p);
	if (!r)
		r = te_mem_alloc(j.s, MEM, &o);
	if (!r)
		r = many_calls(&j, rank, k, p, o);
	(void)te_mem_free(j.s, p);
	(void)te_mem_free(j.s, o);
	return nodes_leave(&j, r);
}

/* forked without the threads of a context */
CASE(processes, "comm");

TEST_EACH(processes, a_rank_that_ends_is_named_at_once, ON_HOST ? 3 * NWHATS : 0)
{
	const int records = _i < 2 * NWHATS ? _i / NWHATS : _i & 1;
	struct killing k = { _i < 2 * NWHATS ? "aaa" : _i & 2 ? "aba" : "abc",
			     (enum what)(_i % NWHATS), records, 1 };
	struct ranks_result res[3];

	ranks_meet_run(MEET_ID, 3, killed_rank, &k, res);
	ck_assert_int_eq(res[1].signal, SIGKILL);
	ranks_failed(&res[0], -TE_EPEER, "rank 1 (", 30000);
	ranks_failed(&res[2], -TE_EPEER, "rank 1 (", 30000);
	if (_i % NWHATS && _i % NWHATS != GROUP)
		return;
	k.kills = 0;
	ranks_meet_run(MEET_ID, 3, killed_rank, &k, res);
	ranks_ok(3, res);
}

/* ---- ranks of several nodes ---- */

static struct apart {
	const char *nodes; /* a letter for each rank */
	int (*fn)(struct thread_rank *r);
	int timeout_ms;
} apart;

/* parameters that the process has read before do not change with the environment */
static int is_apart(const struct te_comm *c)
{
	struct te_comm_info info = TE_COMM_INFO_INIT;
	uint32_t letters = 0;

	for (const char *p = apart.nodes; *p; p++)
		letters |= 1u << (*p - 'a');
	STEP(te_comm_info(c, &info));
	HOLDS(info.nnodes == __builtin_popcount(letters));
	return 0;
}

static int apart_rank(int rank, void *arg)
{
	struct thread_rank t = { .rank = rank };
	struct joined j;
	int r = nodes_join(&j, rank, apart.nodes[rank], apart.timeout_ms, 5000, 0, 1);

	(void)arg;
	t.ctx = j.ctx;
	t.comm = j.comm;
	r = r ? r : is_apart(j.comm);
	return nodes_leave(&j, r ? r : apart.fn(&t));
}

/* as threads_run() */
static void apart_run(const char *nodes, int (*fn)(struct thread_rank *r), int timeout_ms, int code,
		      const char *text)
{
	struct ranks_result res[RANKS_MAX];

	threads_n = (int)strlen(nodes);
	apart = (struct apart){ nodes, fn, timeout_ms };
	seed = tt_rand_u64();
	ranks_meet_run(MEET_ID, threads_n, apart_rank, NULL, res);
	if (!code)
		ranks_ok(threads_n, res);
	for (int i = 0; code && i < threads_n; i++)
		ranks_failed(&res[i], code, text, 60000);
}

static int apart_at;
static const char *const layouts[] = { "ab", "aab", "abba", "abcde", "aaaabbbb", "abcdefgh" };

TEST_EACH(processes, every_byte_arrives_between_nodes, ON_HOST ? TT_LEN(layouts) : 0)
{
	apart_run(layouts[_i], many, 60000, 0, NULL);
}

TEST_EACH(processes, recordings_have_messages_between_nodes, ON_HOST ? TT_LEN(layouts) - 2 : 0)
{
	apart_run(layouts[_i], replays, 60000, 0, NULL);
}

static int both_orders(struct thread_rank *r)
{
	for (seed = 0; seed < 4; seed++)
		STEP(orders(r));
	STEP(group_refusals(r));
	return refusals(r);
}

TEST_IF(processes, calls_between_nodes_are_checked, ON_HOST)
{
	apart_run("ab", both_orders, 60000, 0, NULL);
	apart_run("aba", circle, 60000, 0, NULL);
}

static int go_wrong_apart(struct thread_rank *r)
{
	seed = (uint64_t)apart_at;
	return go_wrong(r);
}

/* reduces and scatters are operations of rails there, and a gather meets no all-to-all */
TEST_EACH(processes, failures_between_nodes_are_named, ON_HOST ? TT_LEN(bads) - 1 : 0)
{
	const char *rail = _i == 5 ? " for one rank of 10 fp32 by " :
			   _i == 11 ? " a scatter of 12 fp32 by " : NULL;

	if (_i == 4)
		return;
	apart_at = _i;
	apart_run(_i & 1 ? "aab" : "abc", go_wrong_apart,
		  bads[_i].code == -ETIMEDOUT ? TT_SLOWER(500) : 60000, bads[_i].code,
		  rail ? rail : bads[_i].text);
}

TT_PAIR_SUITE_OF("comm/messages", TT_NEED_NOTHING)
{
	threads_pool_nbytes = POOL;
	setenv("TE_COMM_PACKETS", "64k", 1);
}
