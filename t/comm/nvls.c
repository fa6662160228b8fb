/*
 * t/comm/nvls.c - the algorithms nvls and nvls-oneshot on the simulated multicast of the host
 * backend, and the switch that they need. Never on a GPU.
 */
#include "config.h"

#include <signal.h>
#include <unistd.h>

#include <te/capture.h>
#include <te/collective.h>
#include <te/log.h>

#include "ranks.h"
#include "threads.h"
#include "tt_num.h"

#define POOL ((uint64_t)2 << 20)
#define PACKETS "64k" /* so small that large arrays take several launches of nvls-oneshot */
#define GUARD 64

static uint64_t seed;

/* ---- results ---- */

struct array {
	unsigned char *ptr; /* of the device, after its guard */
	size_t nbytes;
};

/* random bits, NaN and infinities among them, alike on no two ranks; out is poisoned */
static int array_get(struct thread_rank *r, size_t nbytes, uint64_t bits, struct array *ret)
{
	struct te_stream *s = te_ctx_stream(r->ctx);
	unsigned char *host = malloc(nbytes + 2 * GUARD);
	void *p;

	STEP(te_comm_alloc(r->comm, nbytes + 2 * GUARD, &p));
	memset(host, 0x5a, nbytes + 2 * GUARD);
	for (size_t i = 0; i < nbytes && bits; i++)
		host[GUARD + i] = (unsigned char)threads_draw(&bits, 256);
	STEP(te_copy(s, p, host, nbytes + 2 * GUARD));
	STEP(te_stream_sync(s));
	free(host);
	*ret = (struct array){ (unsigned char *)p + GUARD, nbytes };
	return 0;
}

static int array_put(struct thread_rank *r, const struct array *a)
{
	return te_comm_free(r->comm, a->ptr - GUARD);
}

/* the average of nvls from the sum: it is rounded twice */
static void divide(enum te_dtype t, unsigned char *p, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		const float f = tt_get(t, p, i);

		if (f == f)
			tt_set(t, p, i, f / (float)threads_n);
	}
}

struct shape {
	enum te_dtype dtype;
	enum te_comm_op op;
	int64_t count;
	int in_place;
	struct te_comm_call_opts opts;
};

static struct shape shape_draw(uint64_t *state)
{
	struct shape s = { .opts = TE_COMM_CALL_OPTS_INIT };
	const int one_shot = (int)threads_draw(state, 2);

	s.opts.algorithm = one_shot ? TE_COMM_NVLS_ONE_SHOT : TE_COMM_NVLS;
	s.opts.max_blocks = (int32_t)threads_draw(state, 3);
	s.dtype = (enum te_dtype)threads_draw(state, one_shot ? TE_DTYPE_INT32 : TE_DTYPE_E4M3);
	s.op = (enum te_comm_op)threads_draw(state, one_shot ? TE_COMM_MAX + 1 : TE_COMM_AVG + 1);
	s.count = 1 + (int64_t)threads_draw(state, threads_draw(state, 4) ? 700 : 30000);
	s.in_place = (int)threads_draw(state, 2);
	return s;
}

/* the same by the staged algorithm, which t/comm/allreduce.c compares with a loop */
static int reference(struct thread_rank *r, const struct shape *s, const struct array *in,
		     const struct array *out, unsigned char *ret)
{
	const int twice = s->opts.algorithm == TE_COMM_NVLS && s->op == TE_COMM_AVG;
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *q = te_ctx_stream(r->ctx);

	o.algorithm = TE_COMM_STAGED;
	STEP(te_comm_allreduce(r->comm, q, in->ptr, out->ptr, s->count, s->dtype,
			       twice ? TE_COMM_SUM : s->op, &o));
	STEP(te_copy(q, ret, out->ptr, out->nbytes));
	STEP(te_stream_sync(q));
	if (twice)
		divide(s->dtype, ret, s->count);
	return te_comm_error(r->comm);
}

static int check(struct thread_rank *r, const struct shape *s, const struct array *out,
		 const unsigned char *want)
{
	struct te_stream *q = te_ctx_stream(r->ctx);
	unsigned char *got = malloc(out->nbytes + 2 * GUARD);

	STEP(te_copy(q, got, out->ptr - GUARD, out->nbytes + 2 * GUARD));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(r->comm));
	for (int i = 0; i < GUARD; i++)
		HOLDS(got[i] == 0x5a && got[GUARD + out->nbytes + (size_t)i] == 0x5a);
	for (size_t i = 0; i < out->nbytes; i++)
		if (got[GUARD + i] != want[i])
			return te_fail(-EPROTO, "byte %zu of %lld %s by %s, operation %d", i,
				       (long long)s->count, te_dtype_name(s->dtype),
				       te_comm_algorithm_name(s->opts.algorithm), (int)s->op);
	free(got);
	return 0;
}

static int reduce_one(struct thread_rank *r, uint64_t *state)
{
	struct te_stream *q = te_ctx_stream(r->ctx);
	struct shape s = shape_draw(state);
	const size_t nbytes = (size_t)s.count * te_dtype_nbytes(s.dtype);
	const uint64_t bits = threads_draw(state, UINT32_MAX) * 64 + (uint64_t)r->rank + 1;
	unsigned char *want = malloc(nbytes);
	struct array in, out, ref;

	STEP(array_get(r, nbytes, bits, &in));
	STEP(array_get(r, nbytes, 0, &out));
	STEP(array_get(r, nbytes, 0, &ref));
	STEP(reference(r, &s, &in, &ref, want));
	STEP(te_comm_allreduce(r->comm, q, in.ptr, s.in_place ? in.ptr : out.ptr, s.count, s.dtype,
			       s.op, &s.opts));
	STEP(te_comm_barrier(r->comm, q));
	STEP(check(r, &s, s.in_place ? &in : &out, want));
	STEP(array_put(r, &ref));
	STEP(array_put(r, &out));
	STEP(array_put(r, &in));
	free(want);
	return 0;
}

static int reduce_many(struct thread_rank *r)
{
	uint64_t state = seed;

	for (uint64_t k = 0; k < TT_FEWER(40); k++)
		STEP(reduce_one(r, &state));
	return 0;
}

static void switch_on(void);
CASE(results, "comm", .setup = switch_on, .teardown = tt_teardown);

TEST_EACH(results, results_are_sums_in_rank_order, THREADS_MOST + 1, .from = 2)
{
	seed = tt_rand_u64();
	threads_run(_i, reduce_many, 0, NULL);
}

/* ---- recordings, and other algorithms in between ---- */

#define WORDS 333
#define TURNS 30

static int mix(struct thread_rank *r)
{
	static const enum te_comm_algorithm by[] = { TE_COMM_NVLS, TE_COMM_NVLS_ONE_SHOT,
						     TE_COMM_LL, TE_COMM_ZERO_COPY };
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *q = te_ctx_stream(r->ctx);
	struct te_recording *rec;
	uint64_t state = seed;
	float x[WORDS], scale = 1;
	void *p;

	STEP(te_comm_alloc(r->comm, sizeof(x), &p));
	STEP(te_capture_begin(q));
	for (int i = 0; i < 4; i++) {
		o.algorithm = by[i];
		STEP(te_comm_allreduce(r->comm, q, p, p, WORDS, TE_DTYPE_FP32, TE_COMM_AVG, &o));
	}
	STEP(te_capture_end(q, &rec));
	for (int i = 0; i < WORDS; i++)
		x[i] = (float)(i * 8 + 1) * (float)threads_n * (float)(r->rank + 1);
	STEP(te_copy(q, p, x, sizeof(x)));
	for (int i = 0; i < TURNS; i++) {
		const uint64_t k = threads_draw(&state, 5);

		if (k == 4) {
			STEP(te_recording_launch(rec, q));
			continue;
		}
		o.algorithm = by[k];
		STEP(te_comm_allreduce(r->comm, q, p, p, WORDS, TE_DTYPE_FP32,
				       i == 7 ? TE_COMM_SUM : TE_COMM_AVG, &o));
		scale *= i == 7 ? (float)threads_n : 1;
	}
	STEP(te_copy(q, x, p, sizeof(x)));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(r->comm));
	/* the first average makes all ranks equal, and later ones do not change that */
	for (int i = 0; i < WORDS; i++)
		HOLDS(x[i] == (float)(i * 8 + 1) * (float)(threads_n * (threads_n + 1) / 2) *
				      (seed ? scale : 0));
	te_recording_unref(rec);
	return te_comm_free(r->comm, p);
}

TEST_EACH(results, recordings_and_algorithms_take_turns, 5, .from = 2)
{
	seed = tt_rand_u64() | 1;
	threads_run(_i, mix, 0, NULL);
}

/* ---- arguments ---- */

/* refused with the text */
static int refused(struct thread_rank *r, enum te_comm_algorithm k, const void *in, void *out,
		   enum te_dtype dtype, enum te_comm_op op, const char *text)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;

	o.algorithm = k;
	te_error_clear();
	HOLDS(te_comm_allreduce(r->comm, te_ctx_stream(r->ctx), in, out, 100, dtype, op, &o) ==
	      -EOPNOTSUPP);
	if (!strstr(te_error_detail(), text))
		return te_fail(-EPROTO, "\"%s\" has no \"%s\"", te_error_detail(), text);
	return 0;
}

static int bad(struct thread_rank *r)
{
	static const char takes[] = "takes sums and averages of FP32, BF16 and FP16";
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_comm_choice c = TE_COMM_CHOICE_INIT;
	struct te_stream *q = te_ctx_stream(r->ctx);
	void *p, *any;
	char *at;

	STEP(te_comm_alloc(r->comm, 8192, &p));
	STEP(te_mem_alloc(q, 8192, &any));
	at = p;
	STEP(refused(r, TE_COMM_NVLS, p, p, TE_DTYPE_E4M3, TE_COMM_SUM, takes));
	STEP(refused(r, TE_COMM_NVLS, p, p, TE_DTYPE_FP32, TE_COMM_MIN, takes));
	STEP(refused(r, TE_COMM_NVLS, at + 4104, p, TE_DTYPE_FP32, TE_COMM_SUM, takes));
	STEP(refused(r, TE_COMM_NVLS, p, at + 4104, TE_DTYPE_BF16, TE_COMM_SUM, takes));
	STEP(refused(r, TE_COMM_NVLS, p, any, TE_DTYPE_BF16, TE_COMM_SUM, "symmetric memory"));
	STEP(refused(r, TE_COMM_NVLS, p, p, TE_DTYPE_INT32, TE_COMM_SUM, "floating types"));
	STEP(refused(r, TE_COMM_NVLS_ONE_SHOT, p, p, TE_DTYPE_UINT8, TE_COMM_SUM, "floating"));
	o.algorithm = TE_COMM_NVLS;
	HOLDS(te_comm_broadcast(r->comm, q, p, 16, TE_DTYPE_FP32, 0, &o) == -EOPNOTSUPP);
	STEP(EXPLAIN(r->comm, &c, .in = p, .out = p, .count = 1001, .dtype = TE_DTYPE_BF16,
		     .opts = &o));
	HOLDS(c.algorithm == TE_COMM_NVLS && !strcmp(c.name, "nvls") && c.nlaunches == 1);
	HOLDS(c.nsent == 16 * (126 + 63) && c.nblocks == 1);
	o.algorithm = TE_COMM_NVLS_ONE_SHOT;
	STEP(EXPLAIN(r->comm, &c, .in = any, .out = any, .count = 1001, .dtype = TE_DTYPE_BF16,
		     .opts = &o));
	HOLDS(!strcmp(c.name, "nvls-oneshot") && c.nsent == 16 * 126);
	/* and the library does not choose them */
	for (int64_t n = 1; n <= 2048; n *= 2) {
		STEP(EXPLAIN(r->comm, &c, .in = p, .out = p, .count = n, .dtype = TE_DTYPE_FP32));
		HOLDS(c.algorithm < TE_COMM_NCCL);
	}
	STEP(te_mem_free(q, any));
	return te_comm_free(r->comm, p);
}

TEST(results, arguments_are_checked)
{
	threads_run(2, bad, 0, NULL);
}

/* ---- ranks that do not do the same ---- */

static int differ(struct thread_rank *r)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *q = te_ctx_stream(r->ctx);
	void *p;

	STEP(te_comm_alloc(r->comm, 4096, &p));
	o.algorithm = r->rank == 1 && seed ? TE_COMM_NVLS_ONE_SHOT : TE_COMM_NVLS;
	STEP(te_comm_allreduce(r->comm, q, p, p, r->rank == 1 && !seed ? 99 : 200, TE_DTYPE_BF16,
			       TE_COMM_SUM, &o));
	STEP(te_stream_sync(q));
	return te_comm_error(r->comm);
}

TEST(results, different_operations_are_named)
{
	seed = 0;
	threads_run(3, differ, -TE_EMISMATCH, "a sum of 99 bf16 by nvls");
	seed = 1;
	threads_run(3, differ, -TE_EMISMATCH, "a sum of 200 bf16 by nvls-oneshot");
}

static int skip(struct thread_rank *r)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *q = te_ctx_stream(r->ctx);
	void *p;

	STEP(te_comm_alloc(r->comm, 4096, &p));
	o.algorithm = TE_COMM_NVLS;
	while (r->rank == 1 && !te_comm_error(r->comm))
		;
	if (r->rank != 1)
		STEP(te_comm_allreduce(r->comm, q, p, p, 99, TE_DTYPE_FP32, TE_COMM_SUM, &o));
	STEP(te_stream_sync(q));
	return te_comm_error(r->comm);
}

TEST(results, a_rank_that_does_not_call_is_named)
{
	threads_timeout_ms = TT_SLOWER(700);
	threads_run(3, skip, -ETIMEDOUT, "rank 1 (");
	threads_timeout_ms = 0;
}

/* ---- the switch ---- */

/* an environment of each rank, "NAME=value NAME=value" */
struct plan {
	const char *env[3];
	const char *why; /* nvls is declined; NULL: it is there */
	int fault_rank, fault, timeout_ms;
	enum { PROMPT, LATE, KILLED, HELD } leave; /* how rank 1 releases the communicator */
	_Atomic int fired;
	_Atomic int nused; /* ranks whose operation has ended */
	_Atomic int waits; /* rank 0 for rank 1 */
	_Atomic int gone; /* bit k: rank k */
};

static struct plan *plan;

static void set_env(const char *text)
{
	char name[64], value[64];
	int n;

	for (; sscanf(text, " %63[^=]=%63s%n", name, value, &n) == 2; text += n)
		setenv(name, value, 1);
}

static int use(struct te_ctx *ctx, struct te_comm *comm)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *q = te_ctx_stream(ctx);
	float x = 1 + (float)te_comm_rank(comm);
	void *p;

	STEP(te_comm_alloc(comm, 4, &p));
	o.algorithm = TE_COMM_NVLS;
	if (plan->why) {
		te_error_clear();
		HOLDS(te_comm_allreduce(comm, q, p, p, 1, TE_DTYPE_FP32, TE_COMM_SUM, &o) ==
		      -EOPNOTSUPP);
		return strstr(te_error_detail(), plan->why) ?
			       0 :
			       te_fail(-EPROTO, "\"%s\" has no \"%s\"", te_error_detail(),
				       plan->why);
	}
	STEP(te_copy(q, p, &x, 4));
	STEP(te_comm_allreduce(comm, q, p, p, 1, TE_DTYPE_FP32, TE_COMM_SUM, &o));
	STEP(te_copy(q, &x, p, 4));
	STEP(te_stream_sync(q));
	STEP(te_comm_error(comm));
	HOLDS(x == 6);
	return 0;
}

static void on_log(void *arg, enum te_log_level level, const char *category, const char *text)
{
	if (strstr(text, " waits until rank 1 ("))
		plan->waits = 1;
}

/* before rank 1 releases the communicator, rank 0 has begun to, and all are done with theirs */
static int outstay(struct te_comm *comm)
{
	while (plan->nused < 3)
		usleep(1000);
	while (!plan->waits && !(plan->gone & 1))
		usleep(1000);
	HOLDS(!(plan->gone & 1));
	if (plan->leave == KILLED)
		raise(SIGKILL);
	/* each of the others has waited in vain */
	while (plan->leave == HELD && plan->gone != (1 | 1 << 2))
		usleep(1000);
	return te_comm_error(comm);
}

static int run_rank(int rank, void *arg)
{
	struct te_ctx_opts c = TE_CTX_OPTS_INIT;
	struct te_comm_opts o = ranks_opts(rank);
	struct te_comm *comm = NULL;
	struct te_ctx *ctx = NULL;
	char text[512];
	int r;

	set_env(plan->env[rank]);
	c.backend = "host";
	o.timeout_ms = plan->timeout_ms ? plan->timeout_ms : 20000;
	o.pool_nbytes = 1 << 20;
	STEP(te_ctx_create(&c, &ctx));
	if (rank == plan->fault_rank)
		te__fault_set((uint64_t)plan->fault);
	r = te_comm_create(ctx, &o, &comm);
	if (plan->fault && rank == plan->fault_rank) {
		plan->fired = te__fault_fired();
		te__fault_set(0);
	}
	if (!r)
		r = use(ctx, comm);
	plan->nused++;
	if (!r && plan->leave && rank == 0) {
		te_log_set(on_log, NULL);
		STEP(te_log_filter("off,comm=info"));
	}
	if (!r && plan->leave && rank == 1)
		r = outstay(comm);
	snprintf(text, sizeof(text), "%s", te_error_detail());
	te_comm_unref(comm);
	plan->gone |= 1 << rank;
	te_log_set(NULL, NULL);
	te_ctx_unref(ctx);
	te_error_clear();
	/* memory that rank 1 may still write to is not released */
	if (!ranks_nmaps() != !(plan->leave == HELD && rank != 1))
		return te_fail(-EPROTO, "%d mappings are left after: %s", ranks_nmaps(), text);
	return r ? te_fail(r, "%s", text) : 0;
}

static void run(struct ranks_result *res)
{
	ranks_meet_run(MEET_ID, 3, run_rank, NULL, res);
}

static void setup(void)
{
	plan = ranks_shared(sizeof(*plan));
	plan->fault_rank = -1;
	for (int i = 0; i < 3; i++)
		plan->env[i] = "TE_COMM_NVLS=on";
}

static const struct {
	const char *env, *why;
} settings[] = {
	{ "TE_COMM_NVLS=on", NULL },
	{ "TE_COMM_NVLS=on NCCL_NVLS_ENABLE=1 NVSHMEM_DISABLE_NVLS=0", NULL },
	{ "TE_COMM_NVLS=on NCCL_NVLS_ENABLE=2 TORCH_SYMM_MEM_DISABLE_MULTICAST=0", NULL },
	{ "TE_COMM_NVLS=off", "algorithm nvls: TE_COMM_NVLS is off" },
	{ "NCCL_NVLS_ENABLE=1", "algorithm nvls: TE_COMM_NVLS is off" },
	{ "TE_COMM_NVLS=on NCCL_NVLS_ENABLE=0",
	  "multicast is refused: NCCL_NVLS_ENABLE=0 is in the environment" },
	{ "TE_COMM_NVLS=on TORCH_SYMM_MEM_DISABLE_MULTICAST=1",
	  "TORCH_SYMM_MEM_DISABLE_MULTICAST=1 is in the environment" },
	{ "TE_COMM_NVLS=on NVSHMEM_DISABLE_NVLS=1", "NVSHMEM_DISABLE_NVLS=1 is in the" },
	{ "TE_COMM_NVLS=on NVSHMEM_DISABLE_NVLS=true", "NVSHMEM_DISABLE_NVLS=true is in the" },
	{ "TE_COMM_NVLS=on NCCL_NVLS_ENABLE=no", "NCCL_NVLS_ENABLE=no is in the environment" },
};

CASE(switch, "host", .setup = setup);

TEST_EACH(switch, it_is_off_unless_switched_on_and_not_refused, TT_LEN(settings))
{
	struct ranks_result res[RANKS_MAX];

	for (int i = 0; i < 3; i++)
		plan->env[i] = settings[_i].env;
	plan->why = settings[_i].why;
	run(res);
	ranks_ok(3, res);
}

TEST(switch, a_rank_that_refuses_is_named)
{
	struct ranks_result res[RANKS_MAX];

	plan->env[1] = "TE_COMM_NVLS=on NCCL_NVLS_ENABLE=0";
	plan->why = "algorithm nvls: rank 1 (";
	run(res);
	ranks_ok(3, res);
}

static const struct {
	const char *env, *why;
} mismatch[] = {
	{ "TE_COMM_NVLS=off", "TE_COMM_NVLS is off for rank 1 (" },
	{ "TE_COMM_NVLS=on TE_COMM_SUMS=host", "TE_COMM_SUMS is host for rank 1 (" },
	{ "TE_COMM_NVLS=on TE_COMM_PACKETS=3M", "a third of TE_COMM_PACKETS is 10" },
};

TEST_EACH(switch, a_rank_with_other_settings_is_named, TT_LEN(mismatch))
{
	struct ranks_result res[RANKS_MAX];

	plan->env[1] = mismatch[_i].env;
	run(res);
	for (int i = 0; i < 3; i++)
		ranks_failed(&res[i], -TE_EMISMATCH, mismatch[_i].why, 60000);
}

/* calls of one rank, from before the pool is created: t/comm/pool.c has those before */
TEST_EACH(switch, a_failing_call_of_one_rank_fails_on_all, 2)
{
	struct ranks_result res[RANKS_MAX];
	int n = 0, late = 0;

	plan->fault_rank = _i;
	/* the others wait that long for a rank that fails before it meets them */
	plan->timeout_ms = TT_SLOWER(300);
	for (plan->fault = (int)tt_rand_int(58, 60);; plan->fault += 3) {
		run(res);
		if (!plan->fired && !res[0].r && !res[1].r && !res[2].r)
			break;
		/* on a busy host a rank may be late before that call: once more */
		if (!plan->fired) {
			ck_assert_int_lt(++late, 20);
			plan->fault -= 3;
			continue;
		}
		n++;
		for (int i = 0; i < 3; i++) {
			ck_assert_msg(!res[i].signal && res[i].r != -EPROTO &&
				      !res[i].nleft_fd && !res[i].nleft_alloc,
				      "fault %d: rank %d: signal %d, %d descriptors and %d "
				      "allocations are left: %s", plan->fault, i, res[i].signal,
				      res[i].nleft_fd, res[i].nleft_alloc, res[i].text);
			/* the bootstrap tries some calls again; a probe that fails declines */
			ck_assert_msg(res[i].r < 0 || !res[i].r, "fault %d: %s", plan->fault,
				      res[i].text);
		}
	}
	ck_assert_int_gt(n, 5);
}

/* a rank unbinds its memory when no kernel of another one can write to it */
TEST_EACH(switch, multicast_memory_is_released_by_all, HELD + 1, .from = LATE)
{
	struct ranks_result res[RANKS_MAX];

	plan->leave = _i;
	plan->timeout_ms = _i == HELD ? TT_SLOWER(500) : 0;
	run(res);
	for (int i = 0; i < 3; i++) {
		if (i != 1 || _i == LATE)
			ck_assert_msg(!res[i].r && !res[i].signal &&
				      !res[i].nleft_fd == (_i != HELD) &&
				      !res[i].nleft_alloc == (_i != HELD) && res[i].ms < 60000,
				      "rank %d: %s, after %g ms", i, res[i].text, res[i].ms);
		else if (_i == KILLED)
			ck_assert_int_eq(res[i].signal, SIGKILL);
		else
			ranks_failed(&res[i], -ETIMEDOUT, ": rank 1 (", 60000);
	}
	if (_i == HELD)
		ck_assert_ptr_nonnull(strstr(res[1].text, "has not released multicast memory "
							  "within"));
}

/* of the thread's process, before a parameter is used */
static void switch_on(void)
{
	setenv("TE_COMM_NVLS", "on", 1);
	tt_setup();
}

TT_SUITE("comm/nvls", TT_NEED_NOTHING)
{
	threads_pool_nbytes = POOL;
	setenv("TE_COMM_PACKETS", PACKETS, 1);
	unsetenv("NCCL_NVLS_ENABLE");
	unsetenv("TORCH_SYMM_MEM_DISABLE_MULTICAST");
	unsetenv("NVSHMEM_DISABLE_NVLS");
}
