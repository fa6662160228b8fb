/*
 * t/comm/pool_cases.c - symmetric memory with threads of one process as ranks, each with a context
 * of its own on one device, on either backend.
 */
#include "config.h"

#include <unistd.h>

#include <te/comm.h>
#include <te/capture.h>
#include <te/tensor.h>

#include "libtecore/base/private.h"
#include "../plan/plan_model.h"
#include "threads.h"
#include "tt_ctx.h"

#define POOL threads_pool_nbytes

/* bytes that depend on the rank, the block and the offset */
static void pattern(unsigned char *p, size_t n, int rank, int block)
{
	uint32_t x = 2654435761u * (uint32_t)(rank * 131 + block + 7);

	for (size_t i = 0; i < n; i++) {
		x = x * 1664525 + 1013904223;
		p[i] = (unsigned char)(x >> 24);
	}
}

static int put(struct te_ctx *c, void *dst, size_t n, int rank, int block)
{
	unsigned char *p = malloc(n);

	pattern(p, n, rank, block);
	STEP(te_copy(te_ctx_stream(c), dst, p, n));
	STEP(te_stream_sync(te_ctx_stream(c)));
	free(p);
	return 0;
}

static int is(struct te_ctx *c, const void *src, size_t n, int rank, int block)
{
	unsigned char *p = malloc(n), *q = malloc(n);
	int r;

	pattern(p, n, rank, block);
	memset(q, 0x5a, n);
	STEP(te_copy(te_ctx_stream(c), q, src, n));
	STEP(te_stream_sync(te_ctx_stream(c)));
	r = memcmp(p, q, n);
	free(p);
	free(q);
	return r ? te_fail(-EPROTO, "block %d of rank %d has other bytes", block, rank) : 0;
}

#define BLOCKS 5
static const size_t size[BLOCKS] = { 1, 513, 100003, (2 << 20) + 1, 4096 };

/* each writes its blocks; all read all; then each writes the blocks of the next rank */
static int read_and_write(struct thread_rank *r)
{
	const int next = (r->rank + 1) % threads_n;
	void *p[BLOCKS];

	for (int b = 0; b < BLOCKS; b++) {
		STEP(te_comm_alloc(r->comm, size[b], &p[b]));
		HOLDS((uintptr_t)p[b] % 512 == 0);
		HOLDS(te_comm_peer_ptr(r->comm, p[b], r->rank) == p[b]);
		STEP(put(r->ctx, p[b], size[b], r->rank, b));
	}
	STEP(te_comm_reclaim(r->comm)); /* all ranks have written */
	for (int i = 0; i < threads_n; i++)
		for (int b = 0; b < BLOCKS; b++) {
			void *q = te_comm_peer_ptr(r->comm, p[b], i);

			HOLDS(q != NULL);
			STEP(is(r->ctx, q, size[b], i, b));
			/* an address inside a block has its peers too */
			HOLDS(te_comm_peer_ptr(r->comm, (char *)p[b] + size[b] - 1, i) ==
			      (char *)q + size[b] - 1);
		}
	STEP(te_comm_reclaim(r->comm)); /* all have read */
	for (int b = 0; b < BLOCKS; b++)
		STEP(put(r->ctx, te_comm_peer_ptr(r->comm, p[b], next), size[b], 50 + r->rank, b));
	STEP(te_comm_reclaim(r->comm));
	for (int b = 0; b < BLOCKS; b++)
		STEP(is(r->ctx, p[b], size[b], 50 + (r->rank + threads_n - 1) % threads_n, b));
	HOLDS(te_comm_peer_ptr(r->comm, p[0], threads_n) == NULL);
	HOLDS(te_comm_peer_ptr(r->comm, p[0], -1) == NULL);
	HOLDS(te_comm_peer_ptr(r->comm, r, r->rank) == NULL);
	for (int b = 0; b < BLOCKS; b++)
		STEP(te_comm_free(r->comm, p[b]));
	return 0;
}

CASE(threads, "pool", .setup = tt_setup, .teardown = tt_teardown);

TEST_EACH(threads, ranks_read_and_write_each_other, 5, .from = 1)
{
	threads_run(_i, read_and_write, 0, NULL);
}

/* ---- what is freed is used again when all have freed it ---- */

static int free_and_use_again(struct thread_rank *r)
{
	struct te_comm_memory m = TE_COMM_MEMORY_INIT;
	void *p[4], *q = NULL, *s;

	STEP(te_comm_memory(r->comm, &m));
	HOLDS(m.pool_nbytes == POOL && m.used_nbytes == 0 && m.npeers == threads_n - 1);
	for (int i = 0; i < 4; i++)
		STEP(te_comm_alloc(r->comm, 1 << 20, &p[i]));
	HOLDS((char *)p[3] == (char *)p[0] + (3 << 20));
	HOLDS(m.base == p[0]);
	/* only rank 0 frees the first, and all the second, in any order */
	STEP(r->rank ? 0 : te_comm_free(r->comm, p[0]));
	STEP(te_comm_free(r->comm, p[1]));
	STEP(te_comm_alloc(r->comm, 4 << 20, &q));
	HOLDS((char *)q == (char *)p[0] + (4 << 20));
	/* the pool is full but for what was freed: it is reclaimed now */
	STEP(te_comm_alloc(r->comm, 1000, &s));
	HOLDS(s == p[1]);
	STEP(te_comm_memory(r->comm, &m));
	HOLDS(m.nreclaims == 1 && m.nblocks == 5 && m.nallocs == 6);
	HOLDS(m.used_nbytes == (7 << 20) + 1024 && m.peak_nbytes == 8 << 20);
	HOLDS(m.freed_nbytes == (r->rank ? 0 : 1 << 20));
	HOLDS(m.largest_nbytes == (1 << 20) - 1024);
	return te_comm_alloc(r->comm, 2 << 20, &q);
}

TEST(threads, memory_is_used_again_when_all_ranks_have_freed_it)
{
	threads_run(3, free_and_use_again, -ENOMEM,
	    "te_comm_alloc: no 2097152 bytes in the pool of 8388608 bytes (pool_nbytes, "
	    "TE_COMM_POOL): 1047552 are free, the largest block that fits has 1047552, and ");
}

static int free_wrongly(struct thread_rank *r)
{
	char *p;
	void *v;

	STEP(te_comm_alloc(r->comm, 1000, &v));
	p = v;
	HOLDS(te_comm_free(r->comm, p + 512) == -EINVAL);
	HOLDS(te_comm_free(r->comm, p + 4096) == -EINVAL);
	HOLDS(te_comm_free(r->comm, r) == -EINVAL);
	STEP(te_comm_free(r->comm, NULL));
	HOLDS(te_comm_alloc(r->comm, 0, &v) == -EINVAL && v == p);
	HOLDS(te_comm_alloc(NULL, 1, &v) == -EINVAL);
	STEP(te_comm_free(r->comm, p));
	return te_comm_free(r->comm, p);
}

TEST(threads, a_block_is_freed_once)
{
	threads_run(2, free_wrongly, -EINVAL,
		    "te_comm_free: no block of symmetric memory begins at");
}

/* ---- tensors ---- */

static int use_tensors(struct thread_rank *r)
{
	const int64_t shape[] = { 3, 70, 5 }, huge[] = { INT64_MAX / 2, 5 };
	struct te_comm_memory m = TE_COMM_MEMORY_INIT;
	struct te_tensor *t = NULL, *v, *last;
	float x[1050];

	STEP(te_comm_tensor_create(r->comm, TE_DTYPE_FP32, 3, shape, &t));
	for (int i = 0; i < 1050; i++)
		x[i] = (float)(i * (r->rank + 1));
	STEP(te_tensor_write(t, x, sizeof(x)));
	STEP(te_comm_reclaim(r->comm));
	for (int k = 0; k < threads_n; k++) {
		float y[1050];

		STEP(te_copy(te_ctx_stream(r->ctx), y,
			     te_comm_peer_ptr(r->comm, te_tensor_data(t), k), sizeof(y)));
		STEP(te_stream_sync(te_ctx_stream(r->ctx)));
		for (int i = 0; i < 1050; i++)
			HOLDS(y[i] == (float)(i * (k + 1)));
	}
	/* the memory is freed with the last reference, here that of a view */
	STEP(te_tensor_view(t, 100, 1, shape, &v));
	te_tensor_unref(t);
	STEP(te_comm_memory(r->comm, &m));
	HOLDS(m.freed_nbytes == 0);
	te_tensor_unref(v);
	STEP(te_comm_memory(r->comm, &m));
	HOLDS(m.freed_nbytes == 4608);
	HOLDS(te_comm_tensor_create(r->comm, TE_DTYPE_E4M3, 3, shape, &t) == -TE_EDTYPE);
	HOLDS(te_comm_tensor_create(r->comm, TE_DTYPE_BF16, 0, shape, &t) == -EINVAL);
	HOLDS(te_comm_tensor_create(r->comm, TE_DTYPE_BF16, 2, huge, &t) == -EINVAL);
	HOLDS(te_comm_tensor_create(r->comm, (enum te_dtype)99, 1, shape, &t) == -TE_EDTYPE);
	/* a tensor keeps the communicator */
	STEP(te_comm_tensor_create(r->comm, TE_DTYPE_BF16, 1, shape, &last));
	r->comm = te_comm_unref(r->comm);
	STEP(te_fill(te_ctx_stream(r->ctx), te_tensor_data(last), 1, 6));
	te_tensor_unref(last);
	return 0;
}

TEST(threads, tensors_are_on_symmetric_memory)
{
	threads_run(3, use_tensors, 0, NULL);
}

/* gradients of a model in symmetric memory: the same bits, and peers can read them */

static const struct model_shape gpt = {
	.vocab = 61, .width = 32, .batch = 1, .seqlen = 16, .nheads = 2, .nkv = 2, .nlayers = 1,
};

/* one pass over a batch; the gradients */
static int gradients(struct te_seq *s, struct te_stream *on, float *ret, size_t nbytes)
{
	static const char *const name[] = { "x", "targets" };
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_plan *p;
	int32_t tokens[16];

	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { 1, 16 } };
	STEP(te_plan_create(s, &o, &p));
	for (int k = 0; k < 2; k++) {
		for (int i = 0; i < 16; i++)
			tokens[i] = (int32_t)((i * 29 + 7 * k + 5) % gpt.vocab);
		STEP(te_tensor_write(te_plan_input(p, name[k]), tokens, sizeof(tokens)));
	}
	STEP(te_seq_zero_grads(s, on));
	STEP(te_plan_forward(p, on, 0));
	STEP(te_plan_backward(p, on));
	STEP(te_copy(on, ret, te_tensor_data(te_seq_grads(s)), nbytes));
	STEP(te_stream_sync(on));
	te_plan_unref(p);
	return 0;
}

static int bind_gradients(struct thread_rank *r)
{
	struct te_seq_binding b = TE_SEQ_BINDING_INIT;
	struct te_stream *on = te_ctx_stream(r->ctx);
	struct te_seq *own = model_create(r->ctx, &gpt, 5), *s;
	const int64_t n = te_seq_grad_nelems(own);
	const size_t nbytes = (size_t)n * sizeof(float);
	float *want = malloc(nbytes), *got = malloc(nbytes), *peer = malloc(nbytes);
	struct te_tensor *t;

	STEP(gradients(own, on, want, nbytes));
	STEP(te_comm_tensor_create(r->comm, TE_DTYPE_FP32, 1, &n, &t));
	b.grads = te_tensor_data(t);
	s = model_create_unbound(r->ctx, &gpt);
	STEP(te_seq_complete(s));
	STEP(te_seq_bind(s, &b));
	STEP(te_seq_init(s, 5));
	HOLDS(te_tensor_data(te_seq_grads(s)) == te_tensor_data(t));
	STEP(gradients(s, on, got, nbytes));
	HOLDS(!memcmp(got, want, nbytes));
	STEP(te_comm_reclaim(r->comm));
	STEP(te_copy(on, peer, te_comm_peer_ptr(r->comm, b.grads, (r->rank + 1) % threads_n),
		     nbytes));
	STEP(te_stream_sync(on));
	HOLDS(!memcmp(peer, want, nbytes));
	STEP(te_comm_reclaim(r->comm));
	te_seq_unref(s);
	te_seq_unref(own);
	te_tensor_unref(t);
	free(want);
	free(got);
	free(peer);
	return 0;
}

TEST(threads, gradients_are_bound_to_symmetric_memory)
{
	threads_run(2, bind_gradients, 0, NULL);
}

/* ---- failures ---- */

static int abort_one(struct thread_rank *r)
{
	void *p;
	int i = 0, code;

	if (r->rank == 1) {
		te_comm_abort(r->comm, NULL);
		return te_comm_alloc(r->comm, 100, &p);
	}
	/* seen without an exchange */
	do {
		code = te_comm_alloc(r->comm, 1, &p);
		usleep(1000);
	} while (!code && i++ < 5000);
	return code;
}

TEST(threads, an_abort_is_seen_by_all)
{
	threads_run(3, abort_one, -TE_EABORT, "te_comm_abort");
}

static int differ(struct thread_rank *r)
{
	void *p;

	STEP(te_comm_alloc(r->comm, r->rank == 1 ? 1000 : 1001, &p));
	return te_comm_reclaim(r->comm);
}

TEST(threads, different_allocations_are_found)
{
	threads_run(3, differ, -TE_EMISMATCH, "has made 1 allocations, rank 0 1, of other sizes");
}

static int capture(struct thread_rank *r)
{
	struct te_stream *on = te_ctx_stream(r->ctx);
	struct te_recording *rec;
	void *p[3];
	int code;

	STEP(te_comm_alloc(r->comm, POOL - 4096, &p[0]));
	STEP(te_comm_free(r->comm, p[0]));
	STEP(te_capture_begin(on));
	/* what fits is taken; what must be reclaimed first is not */
	STEP(te_comm_alloc(r->comm, 2048, &p[1]));
	code = te_comm_alloc(r->comm, 1 << 20, &p[2]);
	HOLDS(code == -EBUSY);
	STEP(te_fill(on, p[1], 7, 2048));
	STEP(te_capture_end(on, &rec));
	STEP(te_recording_launch(rec, on));
	STEP(te_comm_alloc(r->comm, 1 << 20, &p[2]));
	te_recording_unref(rec);
	return 0;
}

TEST(threads, memory_is_reclaimed_outside_captures)
{
	threads_run(2, capture, 0, NULL);
}

TEST(threads, transports_are_described)
{
	struct te_transport_info t = TE_TRANSPORT_INFO_INIT;

	const int n = te_transport_count();
	char text[80];

	ck_assert_int_ge(n, 4);
	DO(te_transport_info(ctx, 0, &t));
	ck_assert_str_eq(t.name, "fd");
	ck_assert_int_eq(t.available, 1);
	ck_assert_str_eq(t.reason, "");
	DO(te_transport_info(ctx, 1, &t));
	ck_assert_str_eq(t.name, "fabric");
	ck_assert_int_eq(t.available, !t.reason[0]);
	if (!strcmp(backend, "host"))
		ck_assert_str_eq(t.reason, "the host backend has no fabric handles: TE_HOST_FABRIC "
				 "is off");
	DO(te_transport_info(ctx, 2, &t));
	ck_assert_str_eq(t.name, "nvls");
	ck_assert_int_eq(t.available, 0);
	ck_assert_str_eq(t.reason, "multicast is off: TE_COMM_NVLS=on switches it on");
	DO(te_transport_info(ctx, 3, &t));
	ck_assert_str_eq(t.name, "gpudirect");
	ck_assert_int_eq(t.available, !t.reason[0]);
	if (!strcmp(backend, "host"))
		ck_assert_str_eq(t.reason, "the memory of the host backend is no GPU memory");
	DO(te_transport_info(ctx, n - 1, &t));
	ck_assert_str_eq(t.name, "tcp");
	ck_assert_int_eq(t.available, 1);
	ck_assert_str_eq(t.reason, "");
	snprintf(text, sizeof(text), "index %d of %d transports", n, n);
	fails(te_transport_info(ctx, n, &t), -EINVAL, text);
	snprintf(text, sizeof(text), "index -1 of %d transports", n);
	fails(te_transport_info(ctx, -1, &t), -EINVAL, text);
	fails(te_transport_info(NULL, 0, &t), -EINVAL, "ctx is NULL");
}

/* on both backends what serves a capture is not waited for, which is another error */
TEST(threads, a_reason_is_that_of_the_probe)
{
	struct te_transport_info t = TE_TRANSPORT_INFO_INIT;
	struct te_recording *rec;

	DO(te_capture_begin(te_ctx_stream(ctx)));
	DO(te_transport_info(ctx, 3, &t));
	DO(te_capture_end(te_ctx_stream(ctx), &rec));
	te_recording_unref(rec);
	ck_assert_str_eq(t.name, "gpudirect");
	if (!strcmp(backend, "host"))
		ck_assert_str_eq(t.reason, "the memory of the host backend is no GPU memory");
}
