/* t/comm/allreduce.c - te_comm_allreduce(3) with threads as ranks, on either backend. */
#include "config.h"

#include <unistd.h>

#include <te/capture.h>
#include <te/collective.h>

#include "libtecomm/collective/comm.h"
#include "threads.h"
#include "tt_gate.h"
#include "tt_num.h"

#define POOL ((uint64_t)8 << 20)
#define PACKETS "256k" /* so small that large arrays take several launches */
#define GUARD 64       /* bytes before and after an array, which must not change */

/* ---- arrays of small integers, whose sums every type holds ---- */

/* element i of a rank in case k: 0 or 1, but 8 times that for averages */
static int element(int rank, uint64_t k, int64_t i, int op)
{
	uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u ^ (k * 131 + (uint64_t)rank) *
			     0xbf58476d1ce4e5b9u;

	x ^= x >> 31;
	x *= 0x94d049bb133111ebu;
	x ^= x >> 29;
	return (int)(x & 1) * (op == TE_COMM_AVG ? 8 : 1);
}

/* the result on all ranks; threads_n divides sums of averages, or they are equal on all ranks */
static int expected(uint64_t k, int64_t i, int op)
{
	int s = op == TE_COMM_MIN, r, x;

	for (r = 0; r < threads_n; r++) {
		x = element(op == TE_COMM_AVG ? 0 : r, k, i, op);
		s = op == TE_COMM_SUM ? s + x : op == TE_COMM_MAX ? (x > s ? x : s) :
		    op == TE_COMM_MIN ? (x < s ? x : s) : x;
	}
	return s;
}

/* ---- one call ---- */

struct shape {
	uint64_t k; /* key of element() */
	enum te_dtype dtype;
	int op, symmetric, in_place;
	int64_t count;
	size_t in_at, out_at; /* bytes from the begin of their memory */
	struct te_comm_call_opts opts;
};

static struct shape shape_draw(uint64_t *d, uint64_t k)
{
	struct shape s = { .k = k, .opts = TE_COMM_CALL_OPTS_INIT };
	size_t es;

	s.dtype = (enum te_dtype)threads_draw(d, TE_DTYPE_E2M1);
	es = te_dtype_nbytes(s.dtype);
	s.op = (int)threads_draw(d, TE_COMM_MAX + 1);
	s.symmetric = (int)threads_draw(d, 2);
	s.in_place = (int)threads_draw(d, 2);
	s.count = 1 + (int64_t)threads_draw(d, threads_draw(d, 4) ? 3000 : 200000);
	s.in_at = GUARD + es * threads_draw(d, 5);
	s.out_at = GUARD + es * threads_draw(d, 5);
	s.opts.max_blocks = (int32_t)threads_draw(d, 3);
	s.opts.algorithm = (enum te_comm_algorithm)threads_draw(d, TE_COMM_STAGED + 1);
	return s;
}

/* an algorithm that takes the arguments; the other ones are refused */
static int settle(struct thread_rank *r, struct shape *s, const void *in, void *out)
{
	const int integers = s->dtype == TE_DTYPE_INT32 || s->dtype == TE_DTYPE_UINT8;
	const int floats = s->opts.algorithm == TE_COMM_ONE_SHOT ||
			   s->opts.algorithm == TE_COMM_TWO_SHOT;
	const int bad = threads_n > 1 &&
			((integers && floats) ||
			 (!s->symmetric && s->opts.algorithm == TE_COMM_ZERO_COPY));

	if (!bad)
		return 0;
	HOLDS(te_comm_allreduce(r->comm, te_ctx_stream(r->ctx), in, out, s->count, s->dtype,
				(enum te_comm_op)s->op, &s->opts) == -EOPNOTSUPP);
	HOLDS(strstr(te_error_detail(), te_comm_algorithm_name(s->opts.algorithm)));
	s->opts.algorithm = TE_COMM_AUTO;
	return 0;
}

/* device memory of one array with its guards */
static int array_get(struct thread_rank *r, const struct shape *s, size_t nbytes, void **ret)
{
	if (s->symmetric)
		return te_comm_alloc(r->comm, nbytes, ret);
	return te_mem_alloc(te_ctx_stream(r->ctx), nbytes, ret);
}

static int array_put(struct thread_rank *r, const struct shape *s, void *p)
{
	return s->symmetric ? te_comm_free(r->comm, p) : te_mem_free(te_ctx_stream(r->ctx), p);
}

static int compare(const struct shape *s, const unsigned char *before, const unsigned char *got,
		   size_t total, size_t at)
{
	const size_t es = te_dtype_nbytes(s->dtype), nbytes = (size_t)s->count * es;
	unsigned char want[4];

	for (int64_t i = 0; i < s->count; i++) {
		tt_set(s->dtype, want, 0, (float)expected(s->k, i, s->op));
		if (memcmp(want, got + at + (size_t)i * es, es))
			return te_fail(-EPROTO, "case %llu: element %lld of %lld %s, op %d, "
				       "algorithm %d, symmetric %d, in place %d",
				       (unsigned long long)s->k, (long long)i,
				       (long long)s->count, te_dtype_name(s->dtype), s->op,
				       (int)s->opts.algorithm, s->symmetric, s->in_place);
	}
	HOLDS(!memcmp(before, got, at));
	HOLDS(!memcmp(before + at + nbytes, got + at + nbytes, total - at - nbytes));
	return 0;
}

static int reduce_one(struct thread_rank *r, struct shape *s)
{
	const size_t es = te_dtype_nbytes(s->dtype), nbytes = (size_t)s->count * es;
	const size_t total = nbytes + 3 * GUARD, out_at = s->in_place ? s->in_at : s->out_at;
	unsigned char *host = malloc(total), *got = malloc(total);
	struct te_stream *q = te_ctx_stream(r->ctx);
	void *in, *out;
	int result;

	memset(host, 0xa5, total);
	for (int64_t i = 0; i < s->count; i++)
		tt_set(s->dtype, host + s->in_at, i,
		       (float)element(s->op == TE_COMM_AVG ? 0 : r->rank, s->k, i, s->op));
	STEP(array_get(r, s, total, &in));
	out = in;
	STEP(s->in_place ? 0 : array_get(r, s, total, &out));
	STEP(te_copy(q, in, host, total));
	if (!s->in_place) {
		memset(got, 0x5a, total);
		STEP(te_copy(q, out, got, total));
	}
	STEP(te_stream_sync(q));
	STEP(settle(r, s, (char *)in + s->in_at, (char *)out + out_at));
	STEP(te_comm_allreduce(r->comm, q, (char *)in + s->in_at, (char *)out + out_at, s->count,
			       s->dtype, (enum te_comm_op)s->op, &s->opts));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(r->comm));
	/* zero-copy: memory that peers access does not change until all have the result */
	STEP(te_comm_barrier(r->comm, q));
	if (s->in_place) {
		STEP(te_copy(q, got, in, total));
		STEP(te_stream_sync(q));
		result = compare(s, host, got, total, out_at);
	} else {
		memset(host, 0x5a, total);
		STEP(te_copy(q, got, out, total));
		STEP(te_stream_sync(q));
		result = compare(s, host, got, total, out_at);
		STEP(array_put(r, s, out));
	}
	STEP(array_put(r, s, in));
	STEP(te_stream_sync(q));
	free(host);
	free(got);
	return result;
}

static uint64_t seed;

static int reduce_many(struct thread_rank *r)
{
	uint64_t d = seed;

	for (uint64_t k = 0; k < TT_FEWER(60); k++) {
		struct shape s = shape_draw(&d, k);

		STEP(reduce_one(r, &s));
	}
	return 0;
}

CASE(allreduce, "comm", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(allreduce, results_are_those_of_a_loop, THREADS_MOST + 1, .from = 1)
{
	seed = tt_rand_u64();
	threads_run(_i, reduce_many, 0, NULL);
}

/* ---- reduce-scatter, all-gather and broadcast ---- */

struct parts {
	struct shape s; /* count: elements of a part */
	void *small, *large;
	unsigned char *host; /* host copy of the large array */
};

static int check_parts(struct parts *p, const unsigned char *got, int64_t n, int rank, int op,
		       int64_t first, const char *what)
{
	const size_t es = te_dtype_nbytes(p->s.dtype);
	unsigned char want[4];

	for (int64_t i = 0; i < n; i++) {
		tt_set(p->s.dtype, want, 0, (float)(op >= 0 ? expected(p->s.k, first + i, op) :
							      element(rank, p->s.k, first + i, 0)));
		if (memcmp(want, got + (size_t)i * es, es))
			return te_fail(-EPROTO, "case %llu: %s: element %lld of %lld %s by %s",
				       (unsigned long long)p->s.k, what, (long long)i,
				       (long long)n, te_dtype_name(p->s.dtype),
				       te_comm_algorithm_name(p->s.opts.algorithm));
	}
	return 0;
}

/* n elements of a rank, in device memory */
static int put_elements(struct thread_rank *r, struct parts *p, void *dst, int64_t n, int rank,
			int op)
{
	const size_t es = te_dtype_nbytes(p->s.dtype);
	struct te_stream *q = te_ctx_stream(r->ctx);

	for (int64_t i = 0; i < n; i++)
		tt_set(p->s.dtype, p->host, i,
		       (float)element(op == TE_COMM_AVG ? 0 : rank, p->s.k, i, op));
	STEP(te_copy(q, dst, p->host, (size_t)n * es));
	return te_stream_sync(q);
}

static int get_elements(struct thread_rank *r, struct parts *p, const void *src, int64_t n)
{
	const size_t es = te_dtype_nbytes(p->s.dtype);
	struct te_stream *q = te_ctx_stream(r->ctx);

	STEP(te_comm_barrier(r->comm, q)); /* no rank writes here any more */
	/* the copy from a GPU waits in the driver, where it may delay ranks that share the GPU */
	STEP(te_stream_sync(q));
	STEP(te_copy(q, p->host, src, (size_t)n * es));
	STEP(te_stream_sync(q));
	return te_comm_error(r->comm);
}

static int use_parts(struct thread_rank *r, struct parts *p, int root)
{
	const size_t es = te_dtype_nbytes(p->s.dtype), part = (size_t)p->s.count * es;
	const int64_t n = p->s.count, all = n * threads_n;
	struct te_stream *q = te_ctx_stream(r->ctx);
	char *own = (char *)p->large + (size_t)r->rank * part;
	void *small = p->s.in_place ? own : p->small;

	STEP(put_elements(r, p, p->large, all, r->rank, p->s.op));
	STEP(te_comm_barrier(r->comm, q));
	STEP(te_comm_reduce_scatter(r->comm, q, p->large, small, n, p->s.dtype,
				    (enum te_comm_op)p->s.op, &p->s.opts));
	STEP(get_elements(r, p, small, n));
	STEP(check_parts(p, p->host, n, 0, p->s.op, n * r->rank, "reduce-scatter"));
	/* and the parts together are the result of all-reduce */
	STEP(te_comm_all_gather(r->comm, q, small, p->large, n, p->s.dtype, &p->s.opts));
	STEP(get_elements(r, p, p->large, all));
	STEP(check_parts(p, p->host, all, 0, p->s.op, 0, "all-gather"));
	STEP(put_elements(r, p, p->large, all, r->rank, 0));
	STEP(te_comm_barrier(r->comm, q));
	STEP(te_comm_broadcast(r->comm, q, p->large, all, p->s.dtype, root, &p->s.opts));
	STEP(get_elements(r, p, p->large, all));
	return check_parts(p, p->host, all, root, -1, 0, "broadcast");
}

static int parts_many(struct thread_rank *r)
{
	static const enum te_comm_algorithm algorithms[] = { TE_COMM_AUTO, TE_COMM_LL,
							     TE_COMM_ZERO_COPY, TE_COMM_STAGED };
	struct te_stream *q = te_ctx_stream(r->ctx);
	uint64_t d = seed;

	for (uint64_t k = 0; k < TT_FEWER(40); k++) {
		struct parts p = { .s = shape_draw(&d, k) };
		const int root = (int)threads_draw(&d, (uint64_t)threads_n);
		size_t part;

		p.s.opts.algorithm = algorithms[threads_draw(&d, 4)];
		p.s.symmetric |= p.s.opts.algorithm == TE_COMM_ZERO_COPY;
		p.s.count %= p.s.opts.algorithm == TE_COMM_LL ? 500 : 30000;
		p.s.count++;
		part = (size_t)p.s.count * te_dtype_nbytes(p.s.dtype);
		p.host = malloc(part * (size_t)threads_n);
		STEP(array_get(r, &p.s, part, &p.small));
		STEP(array_get(r, &p.s, part * (size_t)threads_n, &p.large));
		STEP(use_parts(r, &p, root));
		STEP(array_put(r, &p.s, p.small));
		STEP(array_put(r, &p.s, p.large));
		STEP(te_stream_sync(q));
		free(p.host);
	}
	return 0;
}

TEST_EACH(allreduce, parts_are_reduced_gathered_and_broadcast, THREADS_MOST + 1, .from = 1)
{
	seed = tt_rand_u64();
	threads_run(_i, parts_many, 0, NULL);
}

static int bad_parts(struct thread_rank *r)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);
	char *p;
	void *v;

	STEP(te_comm_alloc(r->comm, 1 << 20, &v));
	p = v;
	/* in place is the part of this rank, and no other */
	HOLDS(te_comm_reduce_scatter(r->comm, s, p, p + (1 - r->rank) * 40, 10, TE_DTYPE_FP32,
				     TE_COMM_SUM, NULL) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "the part of this rank"));
	HOLDS(te_comm_all_gather(r->comm, s, p + 4, p, 10, TE_DTYPE_FP32, NULL) == -EINVAL);
	HOLDS(te_comm_broadcast(r->comm, s, p, 10, TE_DTYPE_FP32, 2, NULL) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "root 2 of 2 ranks"));
	o.algorithm = TE_COMM_ONE_SHOT;
	HOLDS(te_comm_broadcast(r->comm, s, p, 10, TE_DTYPE_FP32, 0, &o) == -EOPNOTSUPP);
	o.algorithm = TE_COMM_NCCL;
	HOLDS(te_comm_all_gather(r->comm, s, p, p + 4096, 10, TE_DTYPE_FP32, &o) == -EOPNOTSUPP);
	o.algorithm = TE_COMM_LL;
	HOLDS(te_comm_all_gather(r->comm, s, p, p + (256 << 10), 60000, TE_DTYPE_FP32, &o) ==
	      -EOPNOTSUPP);
	HOLDS(strstr(te_error_detail(), "do not fit into packet memory"));
	if (r->rank)
		STEP(te_comm_all_gather(r->comm, s, p, p + 4096, 10, TE_DTYPE_FP32, NULL));
	else
		STEP(te_comm_broadcast(r->comm, s, p, 10, TE_DTYPE_FP32, 0, NULL));
	STEP(te_stream_sync(s));
	return te_comm_error(r->comm);
}

static int roots_differ(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	void *p;

	STEP(te_comm_alloc(r->comm, 4096, &p));
	STEP(te_comm_broadcast(r->comm, s, p, 10, TE_DTYPE_FP32, r->rank, NULL));
	STEP(te_stream_sync(s));
	return te_comm_error(r->comm);
}

TEST(allreduce, arguments_of_parts_are_checked)
{
	threads_run(2, roots_differ, -TE_EMISMATCH, "broadcast of 10 fp32 by ll from rank 0");
	threads_run(2, roots_differ, -TE_EMISMATCH, "broadcast of 10 fp32 by ll from rank 1");

	threads_run(2, bad_parts, -TE_EMISMATCH, "an all-gather of 10 fp32 by ll");
	threads_run(2, bad_parts, -TE_EMISMATCH, "broadcast of 10 fp32 by ll");
}

/* ---- recordings, calls and streams take turns ---- */

#define WORDS 777
#define TURNS 24

/* the sum of all ranks, in place: every operation multiplies by their number, modulo 2^32 */
static int sum_words(struct thread_rank *r, struct te_stream *s, void *p)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;

	return te_comm_allreduce(r->comm, s, p, p, WORDS, TE_DTYPE_INT32, TE_COMM_SUM, &o);
}

static int mix(struct thread_rank *r)
{
	uint64_t d = seed;
	struct te_stream *a = te_ctx_stream(r->ctx), *b;
	struct te_recording *one, *two;
	struct te_event *e;
	uint32_t x[WORDS], want;
	uint32_t n = (uint32_t)threads_n, product = 1;
	void *p;

	STEP(te_stream_create(r->ctx, &b));
	STEP(te_event_create(r->ctx, &e));
	STEP(te_comm_alloc(r->comm, sizeof(x), &p));
	STEP(te_capture_begin(a));
	STEP(sum_words(r, a, p));
	STEP(te_capture_end(a, &one));
	/* a capture of two streams, which the communicator orders */
	STEP(te_capture_begin(a));
	STEP(sum_words(r, a, p));
	STEP(te_event_record(e, a));
	STEP(te_event_wait(e, b));
	STEP(sum_words(r, b, p));
	STEP(sum_words(r, a, p));
	STEP(te_event_record(e, b));
	STEP(te_event_wait(e, a));
	STEP(te_capture_end(a, &two));
	for (int i = 0; i < WORDS; i++)
		x[i] = (uint32_t)(i * 77 + r->rank * 1009);
	STEP(te_copy(a, p, x, sizeof(x)));
	/* ranks of one GPU meet: while a kernel of one waits, another might not end its capture */
	STEP(te_comm_reclaim(r->comm));
	STEP(sum_words(r, a, p));
	for (int i = 0; i < TURNS; i++) {
		const int k = (int)threads_draw(&d, 4);

		/* the caller orders recordings; calls order themselves */
		if (k == 3) {
			STEP(te_event_record(e, a));
			STEP(te_event_wait(e, b));
		}
		STEP(k == 0 ? te_recording_launch(one, a) :
		     k == 1 ? te_recording_launch(two, a) :
		     k == 2 ? sum_words(r, a, p) :
			      sum_words(r, b, p));
		if (k == 3) {
			STEP(te_event_record(e, b));
			STEP(te_event_wait(e, a));
		}
		product *= k == 1 ? n * n * n : n;
	}
	STEP(te_copy(a, x, p, sizeof(x)));
	STEP(te_stream_sync(a));
	STEP(te_comm_error(r->comm));
	for (int i = 0; i < WORDS; i++) {
		want = 0;
		for (int k = 0; k < threads_n; k++)
			want += (uint32_t)(i * 77 + k * 1009);
		HOLDS(x[i] == want * product);
	}
	te_recording_unref(one);
	te_recording_unref(two);
	te_event_unref(e);
	STEP(te_comm_free(r->comm, p));
	te_stream_unref(b);
	return 0;
}

TEST_EACH(allreduce, recordings_and_calls_take_turns, 5, .from = 1)
{
	seed = tt_rand_u64();
	threads_run(_i, mix, 0, NULL);
}

/* work between two operations of a communicator that are queued on different streams */
enum between {
	OTHER_CAPTURED,	   /* the first on c; one is captured on a; the second on b */
	SECOND_CAPTURED,   /* the same, but the second is on a */
	FIRST_IS_CAPTURING, /* the first on c, which begins a capture; the second on b */
	NBETWEEN
};

static int between;

static void wait_a_while(void *arg)
{
	usleep(300000);
}

/* operations of two streams run in the order in which they were queued, each with its own sum */
static int in_order(struct thread_rank *r)
{
	struct te_stream *c = te_ctx_stream(r->ctx), *a, *b, *second;
	struct te_recording *rec;
	uint32_t *x[3], y[2];
	void *p;

	STEP(te_stream_create(r->ctx, &a));
	STEP(te_stream_create(r->ctx, &b));
	for (int i = 0; i < 3; i++) {
		STEP(te_comm_alloc(r->comm, WORDS * sizeof(**x), &p));
		x[i] = p;
		STEP(te_fill_u32(c, p, (uint32_t)(1 + 9 * i), WORDS * sizeof(**x)));
	}
	STEP(te_comm_barrier(r->comm, c));
	STEP(te_stream_sync(c));
	if (!r->rank)
		STEP(te_host_call(c, wait_a_while, NULL, 0));
	STEP(sum_words(r, c, x[0]));
	second = between == SECOND_CAPTURED ? a : b;
	STEP(te_capture_begin(between == FIRST_IS_CAPTURING ? c : a));
	if (between != FIRST_IS_CAPTURING) {
		STEP(sum_words(r, a, x[1]));
		STEP(te_capture_end(a, &rec));
	}
	STEP(sum_words(r, second, x[2]));
	if (between == FIRST_IS_CAPTURING)
		STEP(te_capture_end(c, &rec));
	STEP(te_copy(second, &y[0], x[0], sizeof(y[0])));
	STEP(te_copy(second, &y[1], x[2], sizeof(y[1])));
	STEP(te_stream_sync(second));
	STEP(te_comm_error(r->comm));
	HOLDS(y[0] == (uint32_t)threads_n && y[1] == 19 * (uint32_t)threads_n);
	te_recording_unref(rec);
	STEP(te_stream_sync(c));
	te_stream_unref(a);
	te_stream_unref(b);
	return 0;
}

TEST_EACH(allreduce, streams_take_turns_whatever_is_captured, NBETWEEN)
{
	between = _i;
	threads_run(2, in_order, 0, NULL);
}

/* ---- ranks that do not do the same ---- */

static int differ(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	void *p;

	STEP(te_mem_alloc(s, 4096, &p));
	STEP(te_comm_allreduce(r->comm, s, p, p, r->rank == 1 ? 100 : 200, TE_DTYPE_FP32,
			       TE_COMM_SUM, NULL));
	STEP(te_stream_sync(s));
	HOLDS(te_comm_error(r->comm) == -TE_EMISMATCH);
	te_error_clear();
	HOLDS(te_comm_barrier(r->comm, s) == -TE_EMISMATCH);
	STEP(te_mem_free(s, p));
	return te_comm_error(r->comm);
}

TEST(allreduce, different_operations_are_named)
{
	threads_run(3, differ, -TE_EMISMATCH, "a sum of 100 fp32 by oneshot");
	threads_run(3, differ, -TE_EMISMATCH, "a sum of 200 fp32 by oneshot");
	/* all ranks read one text, whichever of them found it */
	threads_run(3, differ, -TE_EMISMATCH, " fp32 by oneshot, of rank ");
}

/* rank 1 waits for the others, which reduce a number as it does */
static int waits(struct thread_rank *r)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);
	void *p;

	o.algorithm = TE_COMM_LL;
	STEP(te_mem_alloc(s, 4096, &p));
	if (r->rank == 1)
		STEP(te_comm_barrier(r->comm, s));
	else
		STEP(te_comm_allreduce(r->comm, s, p, p, 1, TE_DTYPE_INT32, TE_COMM_MAX, &o));
	STEP(te_stream_sync(s));
	STEP(te_mem_free(s, p));
	return te_comm_error(r->comm);
}

TEST(allreduce, a_barrier_is_none_of_the_reductions)
{
	threads_run(3, waits, -TE_EMISMATCH, "a barrier");
	threads_run(3, waits, -TE_EMISMATCH, "a maximum of 1 int32 by ll");
}

/* the same operation of zero-copy, on rank 1 in other memory, which nothing is written to */
static int elsewhere(struct thread_rank *r)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);
	const size_t n = 100000;
	void *p[2];
	char *q;

	o.algorithm = TE_COMM_ZERO_COPY;
	for (int i = 0; i < 2; i++) {
		STEP(te_comm_alloc(r->comm, n, &p[i]));
		STEP(te_fill_u32(s, p[i], 0x5a5a5a5a, n));
	}
	/* one of both arrays, or both */
	STEP(te_comm_allreduce(r->comm, s, p[seed != 1 && r->rank == 1],
			       p[seed != 0 && r->rank == 1], (int64_t)n / 4, TE_DTYPE_FP32,
			       TE_COMM_SUM, &o));
	STEP(te_stream_sync(s));
	HOLDS(te_comm_error(r->comm) == -TE_EMISMATCH);
	q = malloc(2 * n);
	STEP(te_copy(s, q, p[0], n));
	STEP(te_copy(s, q + n, p[1], n));
	STEP(te_stream_sync(s));
	for (size_t i = 0; i < 2 * n; i++)
		HOLDS(q[i] == 0x5a);
	free(q);
	STEP(te_comm_free(r->comm, p[0]));
	STEP(te_comm_free(r->comm, p[1]));
	return te_comm_error(r->comm);
}

TEST(allreduce, different_offsets_are_a_mismatch)
{
	for (seed = 0; seed < 3; seed++)
		threads_run(3, elsewhere, -TE_EMISMATCH,
			    "has arrays at other offsets of symmetric memory than on");
}

/* rank 1 comes when the others have given up */
static int skip(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);

	while (r->rank == 1 && !te_comm_error(r->comm))
		;
	if (r->rank != 1) {
		STEP(te_comm_barrier(r->comm, s));
		STEP(te_stream_sync(s));
	}
	return te_comm_error(r->comm);
}

TEST(allreduce, a_rank_that_does_not_call_is_named)
{
	threads_timeout_ms = TT_SLOWER(700);
	threads_run(3, skip, -ETIMEDOUT, "rank 1 (");
	threads_run(2, skip, -ETIMEDOUT, "has not taken part in operation 1 of rank 0 (");
	threads_timeout_ms = 0;
}

static int give_up(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);

	if (r->rank == 0) {
		te_comm_abort(r->comm, "no more");
	} else {
		STEP(te_comm_barrier(r->comm, s));
		STEP(te_stream_sync(s));
	}
	return te_comm_error(r->comm);
}

TEST(allreduce, an_abort_ends_operations)
{
	threads_run(3, give_up, -TE_EABORT, "no more");
}

/* as a kernel describes that its blocks have not begun, which takes a kernel that is in its way */
static int without_processors(struct thread_rank *r)
{
	struct te_k_comm_status *s = r->comm->coll.status;

	if (r->rank == 0) {
		s->code = TE_K_COMM_TIMEOUT;
		s->peer = -1;
		s->epoch = 7;
		__atomic_store_n(&s->complete, 1, __ATOMIC_RELEASE);
		return te_comm_error(r->comm);
	}
	STEP(te_comm_barrier(r->comm, te_ctx_stream(r->ctx)));
	STEP(te_stream_sync(te_ctx_stream(r->ctx)));
	return te_comm_error(r->comm);
}

TEST(allreduce, a_rank_without_multiprocessors_is_named)
{
	threads_run(2, without_processors, -ETIMEDOUT,
		    "other kernels have kept multiprocessors from blocks of operation 7");
}

/* ---- arguments ---- */

static int wrong(struct thread_rank *r, int code, const char *text, const void *in, void *out,
		 int64_t count, int dtype, int op, const struct te_comm_call_opts *opts)
{
	te_error_clear();
	if (te_comm_allreduce(r->comm, te_ctx_stream(r->ctx), in, out, count, (enum te_dtype)dtype,
			      (enum te_comm_op)op, opts) != code ||
	    !strstr(te_error_detail(), text))
		return te_fail(-EPROTO, "expected \"%s\", not \"%s\"", text, te_error_detail());
	return 0;
}

static int bad(struct thread_rank *r)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_comm_choice c = TE_COMM_CHOICE_INIT;
	const int host = !strcmp(backend, "host");
	/* not accessed, as arrays that te_comm_explain() gets are not */
	void *far = (void *)((uintptr_t)&c + (16 << 20));
	char *p;
	void *v, *out;

	STEP(te_comm_alloc(r->comm, 4096, &v));
	STEP(te_comm_alloc(r->comm, 4096, &out));
	p = v;
	STEP(wrong(r, -EINVAL, "in is NULL", NULL, p, 1, TE_DTYPE_FP32, 0, NULL));
	STEP(wrong(r, -EINVAL, "out is NULL", p, NULL, 1, TE_DTYPE_FP32, 0, NULL));
	STEP(wrong(r, -EINVAL, "not aligned to an element of 4 bytes", p + 2, p, 1, TE_DTYPE_FP32,
		   0, NULL));
	STEP(wrong(r, -EINVAL, "out overlaps in", p, p + 8, 3, TE_DTYPE_FP32, 0, NULL));
	STEP(wrong(r, -EINVAL, "-1 elements", p, p, -1, TE_DTYPE_FP32, 0, NULL));
	STEP(wrong(r, -EINVAL, "elements, not 0 to", p, p, (int64_t)1 << 40, TE_DTYPE_UINT8, 0,
		   NULL));
	STEP(wrong(r, -TE_EDTYPE, "element type 99", p, p, 1, 99, 0, NULL));
	STEP(wrong(r, -EINVAL, "operation 4", p, p, 1, TE_DTYPE_FP32, 4, NULL));
	o.algorithm = (enum te_comm_algorithm)77;
	STEP(wrong(r, -EINVAL, "algorithm 77", p, p, 1, TE_DTYPE_FP32, 0, &o));
	o.algorithm = TE_COMM_AUTO;
	o.max_blocks = -1;
	STEP(wrong(r, -EINVAL, "max_blocks is -1", p, p, 1, TE_DTYPE_FP32, 0, &o));
	HOLDS(te_comm_allreduce(r->comm, NULL, p, p, 1, TE_DTYPE_FP32, TE_COMM_SUM, NULL) ==
	      -EINVAL);
	o = (struct te_comm_call_opts)TE_COMM_CALL_OPTS_INIT;
	o.algorithm = TE_COMM_NCCL;
	if (host)
		STEP(wrong(r, -EOPNOTSUPP, "rank 0", p, p, 1, TE_DTYPE_FP32, 0, &o));
	HOLDS(te_comm_allreduce(NULL, te_ctx_stream(r->ctx), p, p, 1, TE_DTYPE_FP32, TE_COMM_SUM,
				NULL) == -EINVAL);
	/* nothing to do, on one rank only: no operation */
	if (r->rank)
		STEP(te_comm_allreduce(r->comm, te_ctx_stream(r->ctx), NULL, NULL, 0, TE_DTYPE_FP32,
				       TE_COMM_SUM, NULL));
	STEP(te_comm_barrier(r->comm, te_ctx_stream(r->ctx)));
	STEP(te_stream_sync(te_ctx_stream(r->ctx)));
	STEP(te_comm_error(r->comm));

	STEP(EXPLAIN(r->comm, &c, .in = p, .out = p, .count = 1000, .dtype = TE_DTYPE_BF16));
	HOLDS(c.algorithm == TE_COMM_ONE_SHOT && !strcmp(c.name, "oneshot"));
	HOLDS(c.nsent == 2000 * (uint64_t)(threads_n - 1) && c.nlaunches == 1 && c.nblocks == 1);
	HOLDS(strstr(c.reason, host ? "at most 4096 bytes among 2 ranks" :
				      "at most 33554432 bytes among 2 ranks"));
	STEP(EXPLAIN(r->comm, &c, .in = &c, .out = &c, .count = 1000, .dtype = TE_DTYPE_BF16));
	HOLDS(c.algorithm == TE_COMM_ONE_SHOT);
	HOLDS(strstr(c.reason, host ? "at most 4096 bytes among 2 ranks" :
				      "any size among 2 ranks"));
	STEP(EXPLAIN(r->comm, &c, .in = &c, .out = &c, .count = 3000, .dtype = TE_DTYPE_BF16));
	HOLDS(c.algorithm == (host ? TE_COMM_STAGED : TE_COMM_ONE_SHOT));
	STEP(EXPLAIN(r->comm, &c, .in = p, .out = p, .count = 1000, .dtype = TE_DTYPE_INT32));
	HOLDS(c.algorithm == TE_COMM_LL && c.nsent == 8000 * (uint64_t)(threads_n - 1));
	STEP(EXPLAIN(r->comm, &c, .in = &c, .out = &c, .count = 1 << 20, .dtype = TE_DTYPE_INT32));
	HOLDS(c.algorithm == TE_COMM_STAGED && c.nlaunches == 1);
	/* more than packet memory holds at once */
	o = (struct te_comm_call_opts)TE_COMM_CALL_OPTS_INIT;
	o.algorithm = TE_COMM_LL;
	STEP(EXPLAIN(r->comm, &c, .in = &c, .out = &c, .count = 1 << 20, .dtype = TE_DTYPE_INT32,
		     .opts = &o));
	HOLDS(c.algorithm == TE_COMM_LL && c.nlaunches > 10);
	STEP(EXPLAIN(r->comm, &c, .in = p, .out = p, .dtype = TE_DTYPE_INT32));
	HOLDS(c.nlaunches == 0 && c.nsent == 0);
	/* its last element is outside of the pool */
	STEP(EXPLAIN(r->comm, &c, .in = p, .out = p, .count = (int64_t)POOL / 4 + 1,
		     .dtype = TE_DTYPE_INT32));
	HOLDS(c.algorithm == TE_COMM_STAGED);
	STEP(EXPLAIN(r->comm, &c, .in = p, .out = p, .count = (int64_t)POOL / 4,
		     .dtype = TE_DTYPE_INT32));
	HOLDS(c.algorithm == TE_COMM_ZERO_COPY && c.nlaunches == 1);
	HOLDS(c.nsent == POOL);
	STEP(EXPLAIN(r->comm, &c, .function = TE_COMM_CALL_BROADCAST, .out = p, .count = 1000,
		     .dtype = TE_DTYPE_BF16, .root = 1));
	HOLDS(c.algorithm == TE_COMM_LL && c.nsent == (r->rank == 1 ? 4000 : 0));
	STEP(EXPLAIN(r->comm, &c, .function = TE_COMM_CALL_ALL_GATHER, .in = out, .out = p,
		     .count = 100, .dtype = TE_DTYPE_BF16));
	HOLDS(c.algorithm == TE_COMM_LL && c.nsent == 2 * 208);
	/* more than 64 KiB, and parts that fit into packet memory or do not */
	STEP(EXPLAIN(r->comm, &c, .function = TE_COMM_CALL_ALL_GATHER, .in = &c, .out = far,
		     .count = 35000, .dtype = TE_DTYPE_BF16));
	HOLDS(c.algorithm == (host ? TE_COMM_STAGED : TE_COMM_ONE_SHOT));
	HOLDS(c.nsent == 70000 && c.nlaunches == 1);
	STEP(EXPLAIN(r->comm, &c, .function = TE_COMM_CALL_REDUCE_SCATTER, .in = &c, .out = far,
		     .count = 35000, .dtype = TE_DTYPE_BF16));
	HOLDS(c.algorithm == (host ? TE_COMM_STAGED : TE_COMM_ONE_SHOT));
	STEP(EXPLAIN(r->comm, &c, .function = TE_COMM_CALL_REDUCE_SCATTER, .in = &c, .out = far,
		     .count = 1 << 20, .dtype = TE_DTYPE_BF16));
	HOLDS(c.algorithm == TE_COMM_STAGED);
	STEP(EXPLAIN(r->comm, &c, .function = TE_COMM_CALL_ALL_GATHER, .in = &c, .out = far,
		     .count = 70000, .dtype = TE_DTYPE_UINT8));
	HOLDS(c.algorithm == TE_COMM_STAGED);
	HOLDS(EXPLAIN(r->comm, &c, .function = TE_COMM_CALL_REDUCE_SCATTER, .in = p, .out = out,
		      .count = 1, .op = (enum te_comm_op)9) == -EINVAL);
	HOLDS(strstr(te_error_detail(), "te_comm_explain: operation 9 is unknown"));
	HOLDS(EXPLAIN(r->comm, &c, .function = (enum te_comm_function)6) == -EINVAL);
	HOLDS(te_comm_explain(r->comm, NULL, &c) == -EINVAL);
	STEP(te_comm_free(r->comm, p));
	return te_comm_free(r->comm, out);
}

TEST(allreduce, arguments_are_checked)
{
	threads_run(2, bad, 0, NULL);
}

/* ---- threads that wait ---- */

static _Atomic int queued; /* the other rank may come */

static void *meet(void *arg)
{
	struct thread_rank *r = arg;
	int err = te_comm_barrier(r->comm, te_ctx_stream(r->ctx));

	if (!err)
		err = te_stream_sync(te_ctx_stream(r->ctx));
	return (void *)(intptr_t)(err ? err : te_comm_error(r->comm));
}

/* a thread of rank 0 is in an all-reduce when another one queues work without waiting for it */
static int queue_meanwhile(struct thread_rank *r)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	const size_t nbytes = sizeof(uint32_t);
	uint32_t *out; /* pinned: a GPU's copy to other memory waits for the stream */
	pthread_t thread;
	void *p, *result;

	STEP(te_pinned_alloc(r->ctx, 2 * nbytes, (void **)&out));
	out[0] = 0;
	out[1] = 7;
	/* a free is no short work, so that each of the next commands wakes the stream's worker */
	STEP(te_mem_alloc(s, nbytes, &p));
	STEP(te_mem_free(s, p));
	STEP(te_stream_sync(s));
	STEP(te_mem_alloc(s, nbytes, &p));
	while (r->rank && !atomic_load(&queued))
		tt_sleep_ms(1);
	if (!r->rank) {
		HOLDS(!pthread_create(&thread, NULL, meet, r));
		tt_sleep_ms(20);
		STEP(te_copy(s, p, &out[1], nbytes));
		STEP(te_copy(s, &out[0], p, nbytes));
		atomic_store(&queued, 1);
		while (!te_stream_query(s))
			tt_sleep_ms(1);
		HOLDS(out[0] == 7);
		pthread_join(thread, &result);
		STEP((int)(intptr_t)result);
	} else {
		STEP((int)(intptr_t)meet(r));
	}
	STEP(te_pinned_free(r->ctx, out));
	return te_mem_free(s, p);
}

TEST(allreduce, work_queued_while_a_thread_waits_runs)
{
	atomic_store(&queued, 0);
	threads_run(threads_apart(2), queue_meanwhile, 0, NULL);
}

/* ---- TE_COMM_ALGO ---- */

static const char *algo;

static int explained(struct thread_rank *r, const void *in, void *out, int64_t count,
		     enum te_dtype dtype, enum te_comm_algorithm want, const char *why)
{
	struct te_comm_choice c = TE_COMM_CHOICE_INIT;

	STEP(EXPLAIN(r->comm, &c, .in = in, .out = out, .count = count, .dtype = dtype));
	HOLDS(c.algorithm == want);
	return strstr(c.reason, why) ? 0 : te_fail(-EPROTO, "\"%s\" has no \"%s\"", c.reason, why);
}

/* it is used where it can be; the call's own option is an order */
static int by_environment(struct thread_rank *r)
{
	const int zero_copy = !strcmp(algo, "zerocopy");
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *s = te_ctx_stream(r->ctx);
	int32_t x[64], y[64 * THREADS_MOST];
	void *p, *q;

	STEP(te_comm_alloc(r->comm, sizeof(y), &p));
	STEP(te_mem_alloc(s, sizeof(y), &q));
	for (int i = 0; i < 64; i++)
		x[i] = i + 100 * r->rank;
	STEP(te_copy(s, q, x, sizeof(x)));
	STEP(te_copy(s, p, x, sizeof(x)));
	STEP(te_comm_allreduce(r->comm, s, q, q, 64, TE_DTYPE_INT32, TE_COMM_SUM, NULL));
	STEP(te_copy(s, y, q, sizeof(x)));
	STEP(te_stream_sync(s));
	STEP(te_comm_error(r->comm));
	for (int i = 0; i < 64; i++)
		HOLDS(y[i] == threads_n * i + 100 * (threads_n * (threads_n - 1) / 2));
	STEP(te_comm_all_gather(r->comm, s, p, q, 64, TE_DTYPE_INT32, NULL));
	STEP(te_copy(s, y, q, 64 * 4 * (size_t)threads_n));
	STEP(te_stream_sync(s));
	STEP(te_comm_error(r->comm));
	for (int i = 0; i < 64 * threads_n; i++)
		HOLDS(y[i] == i % 64 + 100 * (i / 64));
	STEP(explained(r, q, q, 64, TE_DTYPE_INT32, TE_COMM_LL,
		       zero_copy ? "TE_COMM_ALGO: algorithm zerocopy needs" :
				   "TE_COMM_ALGO: algorithm oneshot takes floating types only; "));
	STEP(explained(r, q, q, 64, TE_DTYPE_FP32, TE_COMM_ONE_SHOT,
		       zero_copy ? "TE_COMM_ALGO: algorithm zerocopy needs in and out in" :
				   "TE_COMM_ALGO"));
	STEP(explained(r, p, p, 64, TE_DTYPE_FP32,
		       zero_copy ? TE_COMM_ZERO_COPY : TE_COMM_ONE_SHOT, "TE_COMM_ALGO"));
	o.algorithm = zero_copy ? TE_COMM_ZERO_COPY : TE_COMM_ONE_SHOT;
	HOLDS(te_comm_allreduce(r->comm, s, q, q, 64, TE_DTYPE_INT32, TE_COMM_SUM, &o) ==
	      -EOPNOTSUPP);
	HOLDS(te_comm_all_gather(r->comm, s, p, q, 64, TE_DTYPE_INT32, &o) == -EOPNOTSUPP);
	HOLDS(te_comm_broadcast(r->comm, s, q, 64, TE_DTYPE_FP32, 0, &o) == -EOPNOTSUPP);
	HOLDS(zero_copy || strstr(te_error_detail(), "oneshot, only ll, zerocopy and staged"));
	STEP(te_mem_free(s, q));
	return te_comm_free(r->comm, p);
}

CASE(environment, "comm");

/* without a fixture that reads parameters, and a process for each test */
TEST_EACH(environment, the_environment_chooses_where_it_can, ON_HOST ? 2 : 0)
{
	algo = _i ? "zerocopy" : "oneshot";
	setenv("TE_COMM_ALGO", algo, 1);
	threads_run(3, by_environment, 0, NULL);
}

TT_PAIR_SUITE_OF("comm/allreduce", TT_NEED_NOTHING)
{
	threads_pool_nbytes = POOL;
	setenv("TE_COMM_PACKETS", PACKETS, 1);
}
