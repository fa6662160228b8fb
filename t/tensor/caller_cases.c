/*
 * t/tensor/caller_cases.c - what a program brings along: a limit of device memory, allocators and
 * streams. Training gives the same bits with them.
 */
#include "config.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <te/ctx.h>
#include <te/dtype.h>
#include <te/capture.h>
#include <te/errno.h>
#include <te/graph.h>
#include <te/plan.h>
#include <te/seq.h>
#include <te/stream.h>

#include "caller_cases.h"
#include "libtecore/base/private.h"
#include "tt_ctx.h"
#include "tt_gate.h"

static int is_host;
static struct te_ctx_opts opts; /* of contexts to come */
static struct te_alloc_ops mine;
void *(*caller_native)(void);

static void setup(void)
{
	is_host = !strcmp(backend, "host");
	opts = (struct te_ctx_opts)TE_CTX_OPTS_INIT;
	opts.backend = backend;
	te_error_clear();
}

static struct te_mem_info mem(struct te_ctx *c)
{
	struct te_mem_info m = TE_MEM_INFO_INIT;

	DO(te_ctx_sync(c));
	DO(te_ctx_mem_info(c, &m));
	return m;
}

/* ---- two linear operations, trained one step ---- */

#define ROWS 32
#define COLS 64

struct trained {
	struct te_mem_info mem; /* while the plan exists */
	uint16_t y[ROWS * COLS]; /* BF16 */
	float dw[2 * COLS * COLS];
};

static int append(struct te_seq *seq, const char *name)
{
	struct te_linear_attrs la = TE_ATTRS(linear, COLS, COLS, 0.08f, 0, NULL);
	struct te_op *op = NULL;
	int r = te_op_linear(&la, name, &op);

	if (!r)
		r = te_seq_append(seq, op);
	te_op_unref(op);
	return r;
}

static int passes(struct te_plan *p, struct te_seq *seq, struct te_stream *on, struct trained *ret)
{
	static uint16_t x[ROWS * COLS], dy[ROWS * COLS]; /* BF16 */
	struct te_ctx *c = te_stream_ctx(on);
	struct te_mem_info m = TE_MEM_INFO_INIT;
	void *dev = NULL, *pinned = NULL;
	int r;

	for (int i = 0; i < ROWS * COLS; i++) {
		x[i] = te_bf16_encode((float)(i * 7 % 31 - 15) / 16);
		dy[i] = te_bf16_encode((float)(i * 5 % 23 - 11) / 32);
	}
	r = te_mem_alloc(on, sizeof(x), &dev);
	if (!r)
		r = te_pinned_alloc(c, sizeof(x), &pinned);
	if (!r) {
		memcpy(pinned, x, sizeof(x));
		r = te_copy(on, dev, pinned, sizeof(x));
	}
	if (!r)
		r = te_copy(on, te_tensor_data(te_plan_input(p, "x")), dev, sizeof(x));
	if (!r)
		r = te_copy(on, te_tensor_data(te_plan_output_grad(p)), dy, sizeof(dy));
	if (!r)
		r = te_plan_forward(p, on, 0);
	if (!r)
		r = te_plan_backward(p, on);
	if (!r)
		r = te_copy(on, ret->y, te_tensor_data(te_plan_output(p)), sizeof(ret->y));
	if (!r)
		r = te_copy(on, ret->dw, te_tensor_data(te_seq_grads(seq)), sizeof(ret->dw));
	if (!r)
		r = te_ctx_mem_info(c, &m);
	ret->mem = m;
	/* also before the memory of a failed call is freed */
	if (te_stream_sync(on) < 0 && !r)
		r = -TE_ESTATE;
	te_mem_free(on, dev);
	te_pinned_free(c, pinned);
	return r;
}

/* 0, or the code of the call that failed: then too, all that was made is released */
static int train(struct te_stream *on, struct trained *ret)
{
	struct te_plan_opts o = TE_PLAN_OPTS_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_seq *seq = NULL;
	struct te_plan *p = NULL;
	int r = te_recipe_from_name("fp8-current", &rec);

	o.recipe = &rec;
	o.flags = TE_PLAN_TRAIN;
	o.x = (struct te_spec){ TE_DTYPE_BF16, 2, { ROWS, COLS } };
	if (!r)
		r = te_seq_create(te_stream_ctx(on), &seq);
	if (!r)
		r = append(seq, "a");
	if (!r)
		r = append(seq, "b");
	if (!r)
		r = te_seq_init(seq, 7);
	if (!r)
		r = te_plan_create(seq, &o, &p);
	if (!r)
		r = passes(p, seq, on, ret);
	tt_drop(p, seq);
	return r;
}

static void check_same(const struct trained *got, const struct trained *want)
{
	ck_assert(!memcmp(got->y, want->y, sizeof(want->y)));
	ck_assert(!memcmp(got->dw, want->dw, sizeof(want->dw)));
}

/* as by default: nothing of the caller's */
static const struct trained *by_default(void)
{
	static struct trained t;
	struct te_ctx *c;

	DO(tt_ctx_new(&c));
	DO(train(te_ctx_stream(c), &t));
	ck_assert_uint_gt(t.mem.peak_nbytes, 0);
	ck_assert_float_gt(t.dw[0] * t.dw[0], 0);
	te_ctx_unref(c);
	return &t;
}

/* ---- a limit ---- */

CASE(limit, "fast", .setup = setup);

TEST(limit, the_limit_holds_to_the_byte)
{
	const size_t limit = (1 << 20) + 3;
	struct te_ctx *c;
	char text[160];
	void *p, *q;

	opts.mem_limit_nbytes = limit;
	DO(te_ctx_create(&opts, &c));
	ck_assert_uint_eq(mem(c).device_total_nbytes, limit);
	ck_assert_uint_eq(mem(c).device_free_nbytes, limit);
	fails(te_mem_alloc(te_ctx_stream(c), limit + 1, &p), -ENOMEM, "");
	DO(te_mem_alloc(te_ctx_stream(c), 1000, &p));
	ck_assert_uint_eq(mem(c).device_free_nbytes, limit - 1000);
	snprintf(text, sizeof(text),
		 "no %zu bytes of device memory: 1000 bytes are in use, the limit of the context "
		 "is %zu", limit - 999, limit);
	fails(te_mem_alloc(te_ctx_stream(c), limit - 999, &q), -ENOMEM, text);
	DO(te_mem_alloc(te_ctx_stream(c), limit - 1000, &q));
	ck_assert_uint_eq(mem(c).device_free_nbytes, 0);
	ck_assert_uint_eq(mem(c).used_nbytes, limit);
	fails(te_mem_alloc(te_ctx_stream(c), 1, &p), -ENOMEM, "no 1 bytes");
	/* what is queued to be freed is free for work that is queued later */
	DO(te_mem_free(te_ctx_stream(c), q));
	DO(te_mem_free(te_ctx_stream(c), p));
	DO(te_mem_alloc(te_ctx_stream(c), limit, &p));
	DO(te_mem_free(te_ctx_stream(c), p));
	ck_assert_uint_eq(mem(c).device_free_nbytes, limit);
	te_ctx_unref(c);
}

/* pinned memory is no device memory */
TEST(limit, pinned_memory_has_no_limit)
{
	struct te_ctx *c;
	void *p;

	opts.mem_limit_nbytes = 1;
	DO(te_ctx_create(&opts, &c));
	DO(te_pinned_alloc(c, 4096, &p));
	DO(te_pinned_free(c, p));
	te_ctx_unref(c);
}

TEST(limit, training_fits_exactly)
{
	const struct trained *want = by_default();
	struct trained got;
	struct te_ctx *c;

	/* where GEMMs need a workspace, one that is timed needs another and a copy of D */
	opts.mem_limit_nbytes = want->mem.peak_nbytes +
				(want->mem.workspace_nbytes ? 3 * want->mem.workspace_nbytes : 0);
	DO(te_ctx_create(&opts, &c));
	DO(train(te_ctx_stream(c), &got));
	check_same(&got, want);
	ck_assert_uint_eq(mem(c).used_nbytes, 0);
	te_ctx_unref(c);
	opts.mem_limit_nbytes = want->mem.peak_nbytes - 1;
	DO(te_ctx_create(&opts, &c));
	fails(train(te_ctx_stream(c), &got), -ENOMEM, "");
	ck_assert_uint_eq(mem(c).used_nbytes, 0);
	te_ctx_unref(c);
}

/* ---- allocators: memory of another context, which is not used again ---- */

#define NBLOCKS 4096

static struct {
	pthread_mutex_t lock;
	struct te_ctx *ctx;
	char *base[2]; /* device, pinned */
	size_t size, at[2];
	int ncalls, fail_at; /* fail_at: the call that returns NULL, from 1; 0: none */
	int misalign;
	int nblocks, live;
	size_t live_nbytes, wrong;
	void *native; /* of the latest call */
	struct {
		char *ptr;
		size_t nbytes;
		int pinned, freed;
	} block[NBLOCKS];
} bank = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *take(int pinned, size_t nbytes, void *native)
{
	char *p = NULL;

	pthread_mutex_lock(&bank.lock);
	bank.native = native;
	if (++bank.ncalls != bank.fail_at && nbytes <= bank.size - bank.at[pinned] &&
	    bank.nblocks < NBLOCKS) {
		p = bank.base[pinned] + bank.at[pinned] + bank.misalign;
		bank.at[pinned] += (nbytes + bank.misalign + 255) & ~(size_t)255;
		bank.block[bank.nblocks].ptr = p;
		bank.block[bank.nblocks].nbytes = nbytes;
		bank.block[bank.nblocks].pinned = pinned;
		bank.block[bank.nblocks++].freed = 0;
		bank.live++;
		bank.live_nbytes += pinned ? 0 : nbytes;
	}
	pthread_mutex_unlock(&bank.lock);
	return p;
}

/* memory that was not taken, was freed already, or has another size is wrong */
static void drop(int pinned, void *ptr, size_t nbytes)
{
	int found = 0;

	pthread_mutex_lock(&bank.lock);
	for (int i = 0; i < bank.nblocks && !found; i++) {
		if (bank.block[i].ptr != ptr || bank.block[i].freed)
			continue;
		found = bank.block[i].nbytes == nbytes && bank.block[i].pinned == pinned;
		bank.block[i].freed = 1;
		bank.live--;
		bank.live_nbytes -= pinned ? 0 : nbytes;
	}
	bank.wrong += !found;
	pthread_mutex_unlock(&bank.lock);
	if (is_host && found)
		memset(ptr, 0xff, nbytes); /* whoever still uses it reads NaN */
}

static void *device_alloc(void *user, size_t nbytes, void *native)
{
	ck_assert_ptr_eq(user, &bank);
	return take(0, nbytes, native);
}

static void device_free(void *user, void *ptr, size_t nbytes, void *native)
{
	ck_assert_ptr_eq(user, &bank);
	drop(0, ptr, nbytes);
}

static void *pinned_alloc(void *user, size_t nbytes)
{
	ck_assert_ptr_eq(user, &bank);
	return take(1, nbytes, NULL);
}

static void pinned_free(void *user, void *ptr, size_t nbytes)
{
	ck_assert_ptr_eq(user, &bank);
	drop(1, ptr, nbytes);
}

static void bank_reset(void)
{
	bank.at[0] = bank.at[1] = 0;
	bank.ncalls = bank.fail_at = bank.misalign = bank.nblocks = 0;
}

static void setup_bank(void)
{
	setup();
	tt_gate_setup();
	bank.size = (size_t)(is_host ? 8 : 512) << 20;
	DO(tt_ctx_new(&bank.ctx));
	DO(te_mem_alloc(te_ctx_stream(bank.ctx), bank.size, (void **)&bank.base[0]));
	DO(te_pinned_alloc(bank.ctx, bank.size, (void **)&bank.base[1]));
	DO(te_ctx_sync(bank.ctx));
	bank_reset();
	mine = (struct te_alloc_ops)TE_ALLOC_OPS_INIT;
	mine.user = &bank;
	mine.device_alloc = device_alloc;
	mine.device_free = device_free;
	mine.pinned_alloc = pinned_alloc;
	mine.pinned_free = pinned_free;
	opts.alloc = &mine;
}

static void teardown_bank(void)
{
	tt_gate_open();
	DO(te_pinned_free(bank.ctx, bank.base[1]));
	DO(te_mem_free(te_ctx_stream(bank.ctx), bank.base[0]));
	te_ctx_unref(bank.ctx);
	tt_gate_teardown();
}

/* all that was taken was dropped, once and with its size */
static void check_balanced(void)
{
	ck_assert_int_eq(bank.live, 0);
	ck_assert_uint_eq(bank.wrong, 0);
}

CASE(allocators, "fast", .setup = setup_bank, .teardown = teardown_bank);

TEST(allocators, trains_in_memory_of_the_program)
{
	const struct trained *want = by_default();
	struct te_mem_info m;
	struct trained got;
	struct te_ctx *c;

	DO(te_ctx_create(&opts, &c));
	DO(train(te_ctx_stream(c), &got));
	check_same(&got, want);
	/* it is counted as the library's own is */
	ck_assert_uint_eq(got.mem.peak_nbytes, want->mem.peak_nbytes);
	ck_assert_uint_eq(got.mem.nallocs, want->mem.nallocs);
	ck_assert_uint_eq(got.mem.pinned_nbytes, want->mem.pinned_nbytes);
	ck_assert_uint_eq(got.mem.measured_nbytes,
			  got.mem.used_nbytes + got.mem.workspace_nbytes);
	ck_assert_int_ge((int)got.mem.nallocs, 8);
	ck_assert_int_ge(bank.nblocks, (int)got.mem.nallocs);
	m = mem(c);
	ck_assert_uint_eq(m.used_nbytes, 0);
	ck_assert_uint_eq(m.measured_nbytes, m.workspace_nbytes);
	ck_assert_uint_eq(bank.live_nbytes, m.workspace_nbytes);
	te_ctx_unref(c);
	check_balanced();
}

/* y = x */
static int copy_forward(void *self, const struct te_graph_call *call)
{
	return te_copy(call->stream, te_tensor_data(call->out[0]), te_tensor_data(call->in[0]), 16);
}

TEST(allocators, graphs_use_memory_of_the_program)
{
	const struct te_arg x = { "x", { TE_DTYPE_FP32, 1, { 4 } }, 0 };
	const struct te_arg y = { "y", { TE_DTYPE_FP32, 1, { 4 } }, 0 };
	const float v[4] = { 1, 2, 3, 4 };
	struct te_callable call = TE_CALLABLE_INIT;
	struct te_graph *g;
	struct te_ctx *c;
	float got[4];

	call.name = "copy";
	call.nin = call.nout = 1;
	call.in = &x;
	call.out = &y;
	call.forward = copy_forward;
	DO(te_ctx_create(&opts, &c));
	DO(te_graph_create(c, 1, &call, NULL, &g));
	ck_assert_int_gt(bank.live, 0);
	DO(te_tensor_write(te_graph_tensor(g, 0, "x"), v, sizeof(v)));
	DO(te_graph_run(g, te_ctx_stream(c)));
	DO(te_ctx_sync(c));
	DO(te_tensor_read(te_graph_tensor(g, 0, "y"), got, sizeof(got)));
	ck_assert(!memcmp(got, v, sizeof(v)));
	te_graph_unref(g);
	te_ctx_unref(c);
	check_balanced();
}

/* whichever call fails: an error with its size, and all other memory is freed */
TEST(allocators, each_allocation_of_the_program_may_fail)
{
	const struct trained *want = by_default();
	int n, reached = 1;

	for (n = 1; reached; n++) {
		const int64_t live = te__alloc_live();
		struct trained got;
		struct te_ctx *c;
		int r;

		bank_reset();
		bank.fail_at = n;
		te_error_clear();
		DO(te_ctx_create(&opts, &c));
		r = train(te_ctx_stream(c), &got);
		reached = bank.ncalls >= n;
		if (r) {
			ck_assert_int_eq(r, -ENOMEM);
			ck_assert(reached);
			tt_said("te_alloc_ops.");
			tt_said("_alloc returned NULL for ");
		} else {
			/* but for memory in which GEMMs would have been timed */
			ck_assert(!reached || !is_host);
		}
		if (!r && !reached)
			check_same(&got, want);
		ck_assert_uint_eq(mem(c).used_nbytes, 0);
		ck_assert_uint_eq(mem(c).pinned_nbytes, 0);
		te_ctx_unref(c);
		check_balanced();
		ck_assert_int_eq(te__alloc_live(), live);
	}
	ck_assert_int_ge(n, 8);
}

/* a context with 100 bytes of device memory and, if pinned is 1, of pinned memory */
static struct te_ctx *with_memory(int pinned)
{
	struct te_ctx *c;
	void *p;

	DO(te_ctx_create(&opts, &c));
	DO(te_mem_alloc(te_ctx_stream(c), 100, &p));
	if (pinned)
		DO(te_pinned_alloc(c, 100, &p));
	DO(te_ctx_sync(c));
	return c;
}

TEST(allocators, what_was_forgotten_is_freed_with_the_context)
{
	struct te_ctx *c = with_memory(1);

	ck_assert_int_eq(bank.live, 2);
	te_ctx_unref(c);
	check_balanced();
}

/* the memory is the parent's */
TEST_IF(allocators, a_child_frees_nothing, ON_HOST)
{
	struct te_ctx *c = with_memory(0);
	pid_t pid = fork();
	int status;

	if (!pid) {
		te_ctx_unref(c);
		_exit(bank.live != 1 || bank.ncalls != 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	te_ctx_unref(c);
	check_balanced();
}

TEST(allocators, memory_that_is_not_aligned_is_refused)
{
	struct te_ctx *c;
	void *p = &p;

	DO(te_ctx_create(&opts, &c));
	bank.misalign = 128;
	fails(te_mem_alloc(te_ctx_stream(c), 10, &p), -EINVAL, "aligned to 256");
	ck_assert_ptr_eq(p, &p);
	check_balanced();
	ck_assert_uint_eq(mem(c).measured_nbytes, 0);
	te_ctx_unref(c);
}

TEST(allocators, functions_come_in_pairs)
{
	struct te_ctx *c = (void *)&opts;

	mine.device_free = NULL;
	fails(te_ctx_create(&opts, &c), -EINVAL, "device_alloc and device_free");
	mine.device_alloc = NULL;
	mine.pinned_alloc = NULL;
	fails(te_ctx_create(&opts, &c), -EINVAL, "pinned_alloc and pinned_free");
	ck_assert_ptr_eq(c, (void *)&opts);
	/* neither: the library allocates */
	mine.pinned_free = NULL;
	te_ctx_unref(with_memory(0));
	ck_assert_int_eq(bank.ncalls, 0);
	/* a struct of an older header ends after the first pair */
	mine.device_alloc = device_alloc;
	mine.device_free = device_free;
	mine.pinned_alloc = pinned_alloc;
	mine.size = offsetof(struct te_alloc_ops, pinned_alloc);
	c = with_memory(1);
	ck_assert_int_eq(bank.ncalls, 1);
	te_ctx_unref(c);
	check_balanced();
}

TEST(allocators, the_limit_holds_for_the_program_too)
{
	struct te_ctx *c;
	void *p, *q;

	opts.mem_limit_nbytes = 1000;
	DO(te_ctx_create(&opts, &c));
	DO(te_mem_alloc(te_ctx_stream(c), 900, &p));
	fails(te_mem_alloc(te_ctx_stream(c), 101, &q), -ENOMEM, "900 bytes are in use");
	ck_assert_int_eq(bank.ncalls, 1);
	DO(te_mem_alloc(te_ctx_stream(c), 100, &q));
	DO(te_mem_free(te_ctx_stream(c), p));
	/* a call that fails does not count */
	bank.fail_at = bank.ncalls + 1;
	fails(te_mem_alloc(te_ctx_stream(c), 900, &p), -ENOMEM,
	      "NULL for 900 bytes, 100 bytes are");
	DO(te_mem_alloc(te_ctx_stream(c), 900, &p));
	te_ctx_unref(c);
	check_balanced();
}

/* on host the function has no stream to order the free by */
TEST(allocators, memory_is_freed_in_stream_order)
{
	struct te_ctx *c;
	void *p;

	DO(te_ctx_create(&opts, &c));
	DO(te_mem_alloc(te_ctx_stream(c), 100, &p));
	ck_assert_ptr_eq(bank.native, te_stream_native(te_ctx_stream(c)));
	tt_gate_close();
	DO(te_host_call(te_ctx_stream(c), tt_gate_wait, NULL, 0));
	DO(te_fill(te_ctx_stream(c), p, 1, 100));
	DO(te_mem_free(te_ctx_stream(c), p));
	ck_assert_int_eq(bank.live, is_host);
	tt_gate_open();
	DO(te_ctx_sync(c));
	check_balanced();
	te_ctx_unref(c);
}

/* ---- streams ---- */

CASE(streams, "fast", .setup = setup_bank, .teardown = teardown_bank);

TEST(streams, trains_on_a_stream_of_the_program)
{
	const struct trained *want = by_default();
	void *native = caller_native();
	struct te_stream *s;
	struct trained got;
	struct te_ctx *c;

	/* with everything else that is the program's */
	opts.mem_limit_nbytes = want->mem.peak_nbytes + 3 * want->mem.workspace_nbytes;
	DO(te_ctx_create(&opts, &c));
	for (int k = 0; k < 2; k++) {
		DO(te_stream_wrap(c, native, &s));
		ck_assert_ptr_eq(te_stream_native(s), native);
		ck_assert_ptr_eq(te_stream_ctx(s), c);
		DO(train(s, &got));
		check_same(&got, want);
		ck_assert_ptr_null(te_stream_unref(s));
	}
	/* the stream keeps its context */
	DO(te_stream_wrap(c, native, &s));
	te_ctx_unref(c);
	DO(te_stream_sync(s));
	te_stream_unref(s);
	check_balanced();
}

TEST(streams, captures_on_a_stream_of_the_program)
{
	struct te_recording *rec;
	uint32_t *p, got[4];
	struct te_stream *s;
	struct te_ctx *c;

	DO(te_ctx_create(&opts, &c));
	DO(te_stream_wrap(c, caller_native(), &s));
	DO(te_mem_alloc(s, sizeof(got), (void **)&p));
	DO(te_fill_u32(s, p, 1, sizeof(got)));
	DO(te_capture_begin(s));
	DO(te_fill_u32(s, p, 2, 8));
	fails(te_stream_sync(s), -EBUSY, "te_stream_sync");
	DO(te_capture_end(s, &rec));
	DO(te_copy(s, got, p, sizeof(got)));
	DO(te_stream_sync(s));
	ck_assert_uint_eq(got[0], 1);
	DO(te_recording_launch(rec, s));
	DO(te_copy(s, got, p, sizeof(got)));
	DO(te_stream_sync(s));
	ck_assert_uint_eq(got[1], 2);
	ck_assert_uint_eq(got[2], 1);
	te_recording_unref(rec);
	/* a capture that is not ended ends with the stream */
	DO(te_capture_begin(s));
	te_stream_unref(s);
	DO(te_mem_free(te_ctx_stream(c), p));
	te_ctx_unref(c);
}

TEST(streams, other_streams_are_refused)
{
	struct te_stream *s = (void *)&opts;
	struct te_ctx *c;

	DO(te_ctx_create(&opts, &c));
	fails(te_stream_wrap(NULL, NULL, &s), -EINVAL, "te_stream_wrap: ctx is NULL");
	fails(te_stream_wrap(c, NULL, NULL), -EINVAL, "te_stream_wrap: ret_stream is NULL");
	if (is_host) {
		fails(te_stream_wrap(c, &opts, &s), -EOPNOTSUPP, "no CUstream");
	} else {
		/* CU_STREAM_PER_THREAD */
		fails(te_stream_wrap(c, (void *)2, &s), -EINVAL, "CU_STREAM_PER_THREAD");
	}
	ck_assert_ptr_eq(s, (void *)&opts);
	te_ctx_unref(c);
}

static struct te_ctx *wrap_ctx;

static int wrap(void)
{
	struct te_stream *s = NULL;
	int r = te_stream_wrap(wrap_ctx, caller_native(), &s);

	ck_assert_int_eq(!s, r != 0);
	te_stream_unref(s);
	return r;
}

TEST(streams, wrapping_may_fail_at_any_call)
{
	(void)caller_native(); /* driver calls of the test itself */
	DO(te_ctx_create(&opts, &wrap_ctx));
	ck_assert_int_ge(tt_fault_each(wrap), 3);
	te_ctx_unref(wrap_ctx);
}
