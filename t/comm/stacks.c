/*
 * t/comm/stacks.c - threads with small stacks, of the program and by default, as `ulimit -s` and
 * musl give them: training, its collectives, and calls of large kernels.
 */
#include "config.h"

#include <te/collective.h>
#include <te/gemm.h>
#include <te/reducer.h>
#include <te/step.h>

#include "t/plan/plan_model.h"
#include "threads.h"

#define TOKENS (2 * 16)
#define COLS 16384

#ifdef SANITIZED
#define STACK ((size_t)1 << 20) /* frames are larger */
#elif defined(HAVE_CBLAS)
#define STACK ((size_t)128 << 10) /* 60 KiB of it are thread-local variables of OpenBLAS */
#else
#define STACK ((size_t)64 << 10)
#endif

static const struct model_shape shape = { 49, 32, 2, 16, 4, 4, 2, 0.2f, 0 };
static const char *const recipes[] = { "fp8-block", "fp8-current", "bf16" };
static const char *recipe;

static int train(struct thread_rank *r)
{
	struct te_comm_reducer_opts ro = TE_COMM_REDUCER_OPTS_INIT;
	struct te_step_opts o = TE_STEP_OPTS_INIT;
	struct te_recipe rec = TE_RECIPE_INIT;
	struct te_stream *on = te_ctx_stream(r->ctx);
	struct te_seq *seq = model_create_unbound(r->ctx, &shape);
	struct te_comm_reducer *reducer;
	struct te_adamw *opt;
	struct te_step *step;
	int32_t t[TOKENS];

	STEP(te_seq_complete(seq));
	STEP(te_seq_init(seq, 5));
	STEP(te_adamw_create(seq, NULL, &opt));
	STEP(te_adamw_set_lr(opt, on, 1e-2f));
	STEP(te_recipe_from_name(recipe, &rec));
	STEP(te_comm_reducer_create(r->comm, seq, &ro, &reducer));
	o.recipe = &rec;
	o.total_micro_batches = threads_n;
	o.first_micro_batch = r->rank;
	o.x = (struct te_spec){ TE_DTYPE_INT32, 2, { shape.batch, shape.seqlen } };
	o.hook = te_comm_reducer_hook;
	o.hook_arg = reducer;
	o.hooks = TE_COMM_REDUCER_HOOKS;
	STEP(te_step_create(seq, opt, &o, &step));
	for (int k = 0; k < 2; k++) {
		for (int i = 0; i < TOKENS; i++)
			t[i] = (i * 7 + k) % (int32_t)shape.vocab;
		STEP(te_tensor_write(te_step_input(step, 0, 0, k ? "targets" : "x"), t, sizeof(t)));
	}
	STEP(te_step_run(step, 0, on));
	STEP(te_stream_sync(on));
	te_step_unref(step);
	te_comm_reducer_unref(reducer);
	te_adamw_unref(opt);
	te_seq_unref(seq);
	return te_comm_error(r->comm);
}

/* the widest row that one kernel takes, with codes in blocks */
static int normalize(struct thread_rank *r, enum te_comm_algorithm algorithm)
{
	struct te_comm_norm_opts o = TE_COMM_NORM_OPTS_INIT;
	struct te_stream *on = te_ctx_stream(r->ctx);
	const size_t nbytes = 2 * COLS * sizeof(float);
	float *x, *gamma, *inv;
	float y;

	STEP(te_mem_alloc(on, nbytes, (void **)&x));
	STEP(te_mem_alloc(on, nbytes, (void **)&gamma));
	STEP(te_mem_alloc(on, nbytes, (void **)&inv));
	STEP(te_mem_alloc(on, nbytes, &o.codes));
	STEP(te_fill_u32(on, x, 0x3f800000, nbytes));
	STEP(te_fill_u32(on, gamma, 0x3f800000, nbytes));
	o.algorithm = algorithm;
	o.gamma = gamma;
	o.y = x;
	o.eps = 0.0f;
	o.scaling = TE_COMM_SCALING_BLOCK;
	o.scale_inv = inv;
	STEP(te_comm_allreduce_norm(r->comm, on, x, 2, COLS, TE_DTYPE_FP32, &o));
	STEP(te_copy(on, &y, x + 2 * COLS - 1, sizeof(y)));
	STEP(te_stream_sync(on));
	HOLDS(y == 1.0f);
	STEP(te_mem_free(on, x));
	STEP(te_mem_free(on, gamma));
	STEP(te_mem_free(on, inv));
	STEP(te_mem_free(on, o.codes));
	return te_comm_error(r->comm);
}

static int reduce(struct thread_rank *r, enum te_comm_algorithm algorithm)
{
	struct te_comm_call_opts o = TE_COMM_CALL_OPTS_INIT;
	struct te_stream *on = te_ctx_stream(r->ctx);
	const int64_t n = 40000;
	float *x, y;

	o.algorithm = algorithm;
	STEP(te_mem_alloc(on, (size_t)n * sizeof(*x), (void **)&x));
	STEP(te_fill_u32(on, x, 0x3f800000, (size_t)n * sizeof(*x)));
	STEP(te_comm_allreduce(r->comm, on, x, x, n, TE_DTYPE_FP32, TE_COMM_SUM, &o));
	STEP(te_copy(on, &y, x + n - 1, sizeof(y)));
	STEP(te_stream_sync(on));
	HOLDS(y == (float)threads_n);
	return te_mem_free(on, x);
}

static int collectives(struct thread_rank *r)
{
	STEP(normalize(r, TE_COMM_ONE_SHOT));
	STEP(normalize(r, TE_COMM_TWO_SHOT));
	STEP(reduce(r, TE_COMM_LL));
	STEP(reduce(r, TE_COMM_ONE_SHOT));
	STEP(reduce(r, TE_COMM_TWO_SHOT));
	return reduce(r, TE_COMM_STAGED);
}

static size_t thread_stack(void)
{
	pthread_attr_t attr;
	size_t nbytes = 0;

	if (!pthread_getattr_np(pthread_self(), &attr)) {
		pthread_attr_getstacksize(&attr, &nbytes);
		pthread_attr_destroy(&attr);
	}
	return nbytes;
}

static void ask_stack(void *arg)
{
	memcpy(*(void **)arg, &(size_t){ thread_stack() }, sizeof(size_t));
}

/* the program's functions that streams call have room, whatever the default */
static int call_back(struct thread_rank *r)
{
	struct te_stream *on = te_ctx_stream(r->ctx);
	size_t nbytes = 0, *to = &nbytes;

	HOLDS(thread_stack() <= STACK);
	STEP(te_host_call(on, ask_stack, &to, sizeof(to)));
	while (!te_stream_query(on))
		;
	HOLDS(nbytes >= (size_t)1 << 20);
	return 0;
}

static void small_stacks(void)
{
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	ck_assert_int_eq(pthread_attr_setstacksize(&attr, STACK), 0);
	ck_assert_int_eq(pthread_setattr_default_np(&attr), 0);
	pthread_attr_destroy(&attr);
}

CASE(stacks, "host", .setup = small_stacks);

TEST_EACH(stacks, ranks_with_small_stacks_train, TT_LEN(recipes))
{
	recipe = recipes[_i];
	threads_run(2, train, 0, NULL);
}

TEST(stacks, collectives_fit_small_stacks)
{
	threads_run(2, collectives, 0, NULL);
}

TEST(stacks, functions_of_the_program_have_room)
{
	threads_run(1, call_back, 0, NULL);
}

TT_MAIN("comm/stacks", TT_NEED_NOTHING)
