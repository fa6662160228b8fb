/*
 * t/backend/cublaslt.c - GEMMs of the cuda backend with failing calls of the driver or of cuBLASLt.
 * This program fakes both: no GPU is needed.
 */
#include "config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <te/dtype.h>
#include <te/errno.h>

#include "cuda_fake.h"
#include "libtecore/backend/cuda/cublaslt_api.h"
#include "libtecore/backend/cuda/cuda.h"
#include "tt_ctx.h"

#define CANDIDATES 3
#define MAX_EVENTS 32

enum kind { STREAM, EVENT, GRAPH, EXEC, MEMORY, PREF, DESC, LAYOUT, HANDLE, NKINDS };

/* all handles point to it */
struct object {
	enum kind kind;
	int capturing;
	int algo; /* the latest GEMM of a stream, or that of a graph */
	uint64_t cols; /* a layout's */
};

/* what was queued eagerly: a GEMM of so many rows, in the order of te_gemm(), or a GEMM_FINISH */
struct event {
	int is_gemm;
	const void *a, *sa;
	char *d, *workspace;
	int64_t rows;
	struct te_k_gemm_finish f;
};

static struct {
	int live[NKINDS];
	int ncalls, fail_at; /* the call that fails, from 1; 0: none */
	const char *failed;  /* its name */
	int fail_all;	     /* calls of that name fail */
	int ran;	     /* the candidate that ran last, in a graph or eagerly */
	int ngemms;	     /* queued eagerly */
	float ms[CANDIDATES];
	size_t version;
	int compute; /* compute type of the latest descriptor */
	int32_t mode[2]; /* of the scales of A and B, as set last */
	const void *sa;	 /* te_gemm()'s, as set last */
	size_t limit;	 /* workspace limit of the latest search */
	struct event event[MAX_EVENTS];
	int nevents;
} fake;

static int fails_now(const char *fn)
{
	const char *name = fn + strlen("fake_");

	if (++fake.ncalls != fake.fail_at && !(fake.fail_all && !strcmp(name, fake.failed)))
		return 0;
	fake.failed = name;
	return FAKE_UNKNOWN;
}
#define FAIL() fails_now(__func__)

static int hold(enum kind kind, int failed, void **ret)
{
	struct object *o;

	if (failed)
		return failed;
	/* the alignment of memory is part of a choice's key */
	o = aligned_alloc(256, (sizeof(*o) + 255) / 256 * 256);
	ck_assert_ptr_nonnull(o);
	memset(o, 0, sizeof(*o));
	o->kind = kind;
	fake.live[kind]++;
	*ret = o;
	return 0;
}

/* a destruction that reports a failure has destroyed the object */
static int drop(enum kind kind, int failed, void *object)
{
	struct object *o = object;

	ck_assert_int_eq(o->kind, kind);
	fake.live[kind]--;
	free(o);
	return failed;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* calls without effect, which succeed or fail */
#define PLAIN(X)                                                                               \
	X(cuCtxPushCurrent, (void *ctx))                                                       \
	X(cuCtxPopCurrent, (void **ret_ctx))                                                   \
	X(cuThreadExchangeStreamCaptureMode, (int *mode))                                      \
	X(cuDriverGetVersion, (int *ret_version))                                              \
	X(cuStreamSynchronize, (void *stream))                                                 \
	X(cuEventRecord, (void *event, void *stream))                                          \
	X(cuEventSynchronize, (void *event))
#define X(name, args)          \
	int fake_##name args   \
	{                      \
		return FAIL(); \
	}
PLAIN(X)
#undef X

static int fake_cublasLtMatmulDescCreate(void **ret, int compute, int scale)
{
	fake.compute = compute;
	return hold(DESC, FAIL(), ret);
}

static int fake_cublasLtMatrixLayoutCreate(void **ret, int type, uint64_t rows, uint64_t cols,
					   int64_t ld)
{
	int r = hold(LAYOUT, FAIL(), ret);

	if (!r)
		((struct object *)*ret)->cols = cols;
	return r;
}

static int fake_cublasLtMatmulPreferenceSetAttribute(void *pref, int attr, const void *v, size_t n)
{
	if (attr == TE__LT_PREF_MAX_WORKSPACE_BYTES)
		memcpy(&fake.limit, v, n);
	return FAIL();
}

int fake_cuLaunchKernelEx(const struct te__cu_launch_config *config, void *func,
			  void **args, void **extra)
{
	struct event *e = &fake.event[fake.nevents++ % MAX_EVENTS];

	*e = (struct event){ .is_gemm = 0 };
	memcpy(&e->f, args[0], sizeof(e->f));
	return FAIL();
}

/* calls that create an object, and calls that destroy one; those of cuBLASLt are static */
#define MAKE(X)                                                                 \
	X(, cuStreamCreate, STREAM, (void **ret, unsigned flags))               \
	X(, cuEventCreate, EVENT, (void **ret, unsigned flags))                 \
	X(static, cublasLtCreate, HANDLE, (void **ret))                         \
	X(static, cublasLtMatmulPreferenceCreate, PREF, (void **ret))
#define X(linkage, name, kind, args)            \
	linkage int fake_##name args            \
	{                                       \
		return hold(kind, FAIL(), ret); \
	}
MAKE(X)
#undef X
#define TAKE(X)                                        \
	X(, cuStreamDestroy, STREAM)                   \
	X(, cuEventDestroy, EVENT)                     \
	X(, cuGraphDestroy, GRAPH)                     \
	X(, cuGraphExecDestroy, EXEC)                  \
	X(static, cublasLtDestroy, HANDLE)             \
	X(static, cublasLtMatmulDescDestroy, DESC)     \
	X(static, cublasLtMatrixLayoutDestroy, LAYOUT) \
	X(static, cublasLtMatmulPreferenceDestroy, PREF)
#define X(linkage, name, kind)                     \
	linkage int fake_##name(void *object)      \
	{                                          \
		return drop(kind, FAIL(), object); \
	}
TAKE(X)
#undef X

int fake_cuMemAllocFromPoolAsync(uint64_t *ret, size_t n, void *pool, void *stream)
{
	void *p;
	int r = hold(MEMORY, FAIL(), &p);

	if (!r)
		*ret = (uintptr_t)p;
	return r;
}

int fake_cuMemFreeAsync(uint64_t ptr, void *stream)
{
	return drop(MEMORY, FAIL(), (void *)(uintptr_t)ptr);
}

int fake_cuStreamIsCapturing(void *stream, int *ret_status)
{
	*ret_status = ((struct object *)stream)->capturing ? TE__CU_CAPTURE_STATUS_ACTIVE :
							     TE__CU_CAPTURE_STATUS_NONE;
	return FAIL();
}

int fake_cuStreamGetCaptureInfo(void *stream, int *ret_status, uint64_t *ret_id,
				void **ret_graph, void *const **ret_deps,
				const struct te__cu_edge_data **ret_data, size_t *ret_ndeps)
{
	*ret_status = TE__CU_CAPTURE_STATUS_NONE;
	return FAIL();
}

int fake_cuStreamBeginCapture(void *stream, int mode)
{
	int r = FAIL();

	ck_assert_int_eq(((struct object *)stream)->capturing, 0);
	((struct object *)stream)->capturing = !r;
	return r;
}

int fake_cuStreamEndCapture(void *stream, void **ret_graph)
{
	struct object *s = stream;

	ck_assert_int_eq(s->capturing, 1);
	s->capturing = 0;
	if (hold(GRAPH, FAIL(), ret_graph))
		return FAKE_UNKNOWN;
	((struct object *)*ret_graph)->algo = s->algo;
	return 0;
}

int fake_cuGraphInstantiateWithFlags(void **ret_exec, void *graph, unsigned long long flags)
{
	if (hold(EXEC, FAIL(), ret_exec))
		return FAKE_UNKNOWN;
	((struct object *)*ret_exec)->algo = ((struct object *)graph)->algo;
	return 0;
}

int fake_cuGraphLaunch(void *exec, void *stream)
{
	fake.ran = ((struct object *)exec)->algo;
	return FAIL();
}

int fake_cuEventElapsedTime(float *ret_ms, void *from, void *to)
{
	*ret_ms = fake.ms[fake.ran];
	return FAIL();
}

static size_t fake_cublasLtGetVersion(void)
{
	return fake.version;
}

static int fake_cublasLtMatmulDescSetAttribute(void *desc, int attr, const void *value, size_t n)
{
	if (attr == TE__LT_DESC_A_SCALE_MODE || attr == TE__LT_DESC_B_SCALE_MODE)
		memcpy(&fake.mode[attr == TE__LT_DESC_B_SCALE_MODE], value, n);
	if (attr == TE__LT_DESC_B_SCALE_POINTER)
		memcpy(&fake.sa, value, n);
	return FAIL();
}

static int fake_cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c,
					       void *d, void *pref, int want,
					       struct te__lt_heuristic *results, int *ret_n)
{
	ck_assert_int_ge(want, CANDIDATES);
	for (int i = 0; i < CANDIDATES; i++)
		results[i] = (struct te__lt_heuristic){ .algo = { { (uint64_t)i } },
							.workspace_nbytes = (size_t)i * 256 };
	*ret_n = CANDIDATES;
	return FAIL();
}

static int fake_cublasLtMatmulAlgoCheck(void *handle, void *desc, void *a, void *b, void *c,
					void *d, const struct te__lt_algo *algo,
					struct te__lt_heuristic *result)
{
	result->workspace_nbytes = (size_t)algo->data[0] * 256;
	return FAIL();
}

static int fake_cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a,
			       void *alayout, const void *b, void *blayout, const void *beta,
			       const void *c, void *clayout, void *d, void *dlayout,
			       const struct te__lt_algo *algo, void *workspace, size_t nbytes,
			       void *stream)
{
	struct object *s = stream;

	s->algo = (int)algo->data[0];
	ck_assert_uint_ge(nbytes, (size_t)s->algo * 256);
	if (!s->capturing) {
		fake.ran = s->algo;
		fake.ngemms++;
		fake.event[fake.nevents++ % MAX_EVENTS] = (struct event){
			.is_gemm = 1,
			.a = b,
			.sa = fake.sa,
			.d = d,
			.workspace = workspace,
			.rows = (int64_t)((struct object *)dlayout)->cols,
		};
	}
	return FAIL();
}
#pragma GCC diagnostic pop

/* ---- a device and a stream, made without opening a GPU ---- */

static char cache[64];
static char choices[sizeof(cache) + 40];
static struct object own[2] = { { .kind = STREAM }, { .kind = STREAM } };
static struct te__cuda_dev dev;
static struct te__cuda_stream stream;
static struct te__cuda_func funcs[] = { /* by name */
	{ "te_k_gemm_finish_bf16", NULL },
	{ "te_k_gemm_finish_fp32", NULL },
};
static int64_t live;

static void setup(void)
{
	const struct te__cuda_driver d = fake_driver();
	static struct te__lt_api lt;

#define X(name, ...) lt.name = fake_##name;
	TE__LT_SYMS(X)
#undef X
	lt.cublasLtGetVersion = fake_cublasLtGetVersion;
	memset(&fake, 0, sizeof(fake));
	fake.version = 130000;
	fake.ms[0] = 3;
	fake.ms[1] = 1;
	fake.ms[2] = 2;
	te__cuda_driver_fake(&d);
	te__cublaslt_fake(&lt);
	memset(&dev, 0, sizeof(dev));
	dev.ctx = &own[0];
	dev.stream = &own[0];
	dev.total_nbytes = (size_t)1 << 30;
	dev.target = te__target_of(90);
	dev.funcs = funcs;
	dev.nfuncs = TT_LEN(funcs);
	te__devmem_init(&dev.mem, 0, NULL);
	pthread_mutex_init(&dev.lock, NULL);
	pthread_mutex_init(&dev.lt_lock, NULL);
	stream = (struct te__cuda_stream){ .dev = &dev, .stream = &own[1] };
	snprintf(choices, sizeof(choices), "%s/gemm--0-130000", cache);
	unlink(choices); /* left by a test that failed */
	ck_assert(!mkdir(cache, 0700) || errno == EEXIST);
	live = te__alloc_live();
}

/* destroys stream, which has a workspace, and device, which has problems; nothing may remain */
static void close_all(void)
{
	fake.fail_at = fake.fail_all = 0;
	te__cublaslt_close(&dev);
	if (stream.workspace)
		te__cuda_workspace_free(&dev, stream.workspace, stream.stream);
	stream.workspace = NULL;
	for (int k = 0; k < NKINDS; k++)
		ck_assert_msg(!fake.live[k], "%d objects of kind %d are left", fake.live[k], k);
	ck_assert_int_eq(te__alloc_live(), live);
}

static void teardown(void)
{
	close_all();
	unlink(choices);
	ck_assert_int_eq(rmdir(cache), 0);
	pthread_mutex_destroy(&dev.lt_lock);
	pthread_mutex_destroy(&dev.lock);
}

static int multiply_from(int32_t in, int32_t asc, int32_t bsc)
{
	static float a[16], b[16], d[16], bias[4];
	const int fp8 = in == TE_DTYPE_E4M3;
	const int32_t out = fp8 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
	const struct te_k_gemm g = { .a = a,
				     .b = b,
				     .d = d,
				     .bias = bias,
				     .m = 4,
				     .n = 4,
				     .k = 4,
				     .alpha = 1,
				     .sa = fp8 ? a : NULL,
				     .sb = fp8 ? b : NULL,
				     .adtype = in,
				     .bdtype = in,
				     .cdtype = out,
				     .ddtype = out,
				     .asc = asc,
				     .bsc = bsc };

	return te__cublaslt_gemm(&stream, &g);
}

static int multiply(void)
{
	return multiply_from(TE_DTYPE_FP32, TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR);
}

static int multiply_scaled(int32_t asc, int32_t bsc)
{
	return multiply_from(TE_DTYPE_E4M3, asc, bsc);
}

START_TEST(the_fastest_is_chosen_and_kept)
{
	int ncalls;

	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	ncalls = fake.ncalls;
	fake.ncalls = 0;
	DO(multiply());
	ck_assert_int_eq(fake.ngemms, 2);
	ck_assert_int_lt(fake.ncalls, ncalls / 4);
	close_all();
	/* the next process reads it from the file */
	fake.ms[2] = 0.5f;
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
}
END_TEST

/* if candidates cannot be measured, the heuristic's first is used and not written to the file */
START_TEST(a_choice_without_measurement_is_not_kept)
{
	static const char *const call[] = {
		"cuMemAllocFromPoolAsync",     "cuStreamBeginCapture", "cuStreamEndCapture",
		"cuGraphInstantiateWithFlags", "cuGraphLaunch",	       "cuEventElapsedTime"
	};

	fake.failed = call[_i];
	fake.fail_all = 1;
	DO(multiply());
	ck_assert_int_eq(fake.ran, 0);
	ck_assert_int_ne(access(choices, F_OK), 0);
	close_all();
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	ck_assert_int_eq(access(choices, F_OK), 0);
}
END_TEST

/* the first candidate needs no workspace, the fastest does */
START_TEST(workspaces_are_within_the_limit)
{
	char text[40];

	te__devmem_init(&dev.mem, TE__CUDA_WORKSPACE_NBYTES, NULL);
	DO(multiply()); /* without memory to time candidates in */
	ck_assert_int_eq(fake.ran, 0);
	ck_assert_uint_eq(dev.mem.used_nbytes, 0);
	close_all();
	te__devmem_init(&dev.mem, 0, NULL);
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	close_all();
	te__devmem_init(&dev.mem, TE__CUDA_WORKSPACE_NBYTES - 1, NULL);
	ck_assert_int_eq(multiply(), -ENOMEM);
	snprintf(text, sizeof(text), "no %zu bytes", TE__CUDA_WORKSPACE_NBYTES);
	tt_said(text);
	snprintf(text, sizeof(text), "the context is %zu", TE__CUDA_WORKSPACE_NBYTES - 1);
	tt_said(text);
	te__devmem_init(&dev.mem, TE__CUDA_WORKSPACE_NBYTES, NULL);
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	ck_assert_uint_eq(dev.mem.used_nbytes, TE__CUDA_WORKSPACE_NBYTES);
	close_all();
	ck_assert_uint_eq(dev.mem.used_nbytes, 0);
}
END_TEST

START_TEST(tf32_is_for_fp32_alone)
{
	if (_i)
		setenv("TE_GEMM_TF32", "on", 1);
	DO(multiply());
	ck_assert_int_eq(fake.compute, _i ? TE__LT_COMPUTE_32F_FAST_TF32 : TE__LT_COMPUTE_32F);
	DO(multiply_scaled(TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR));
	ck_assert_int_eq(fake.compute, TE__LT_COMPUTE_32F);
}
END_TEST

/* kernels of sm90.cu, which could compute it, have not been measured */
START_TEST(the_provider_is_cublaslt)
{
	static uint16_t a[256], d[256];
	const struct te_k_gemm g = { .a = a, .b = a, .d = d, .m = 16, .n = 16, .k = 16, .alpha = 1,
				     .adtype = TE_DTYPE_BF16, .bdtype = TE_DTYPE_BF16,
				     .cdtype = TE_DTYPE_BF16, .ddtype = TE_DTYPE_BF16 };

	DO(te__cuda_launch(&stream, &(struct te__launch){ TE_K_GEMM, &g, sizeof(g) }));
	ck_assert_int_eq(fake.ngemms, 1);
}
END_TEST

/* cuBLASLt's A is the kernel's b */
START_TEST(blocks_choose_the_scale_modes)
{
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_128X128));
	ck_assert_int_eq(fake.mode[0], TE__LT_SCALE_BLK128X128_32F);
	ck_assert_int_eq(fake.mode[1], TE__LT_SCALE_VEC128_32F);
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_1X128));
	ck_assert_int_eq(fake.mode[0], TE__LT_SCALE_VEC128_32F);
}
END_TEST

START_TEST(blocks_need_a_new_library)
{
	fake.version = 120805;
	ck_assert_int_eq(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_128X128), -TE_EBLAS);
	tt_said("needs cuBLASLt 12.9 or later, found 12.8");
	ck_assert_int_eq(fake.ngemms, 0);
	close_all();
	fake.version = 120900;
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_128X128));
	snprintf(choices, sizeof(choices), "%s/gemm--0-120900", cache); /* for teardown */
}
END_TEST

/* the choice for a problem without blocks is not that for one with them, whose key begins alike */
START_TEST(blocks_have_choices_of_their_own)
{
	fake.ms[2] = 0.5f;
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_1X128));
	ck_assert_int_eq(fake.ran, 2);
	close_all();
	fake.ms[2] = 2;
	DO(multiply_scaled(TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR));
	ck_assert_int_eq(fake.ran, 1);
	close_all();
	fake.ms[1] = 4;
	DO(multiply_scaled(TE_K_SCALING_TENSOR, TE_K_SCALING_TENSOR));
	ck_assert_int_eq(fake.ran, 1);
	DO(multiply_scaled(TE_K_SCALING_1X128, TE_K_SCALING_1X128));
	ck_assert_int_eq(fake.ran, 2);
}
END_TEST

/* with and without a cache file: a failing call gives an error message or is not needed */
START_TEST(each_call_may_fail)
{
	int nth = 1, ncodes = 0, fired = 1;

	for (; fired; nth++) {
		int r;

		close_all();
		unlink(choices);
		if (_i) {
			DO(multiply());
			close_all();
		}
		te_error_clear();
		fake.ncalls = 0;
		fake.failed = "none";
		fake.fail_at = nth;
		fake.ngemms = 0;
		r = multiply();
		fired = fake.ncalls >= nth;
		fake.fail_at = 0;
		for (int k = STREAM; k <= EXEC; k++)
			ck_assert_msg(!fake.live[k], "%s: %d of kind %d", fake.failed, fake.live[k],
				      k);
		ck_assert_int_eq(fake.live[PREF], 0);
		ck_assert_int_eq(fake.live[MEMORY], stream.workspace != NULL);
		ck_assert_int_eq(own[1].capturing, 0);
		if (r) {
			ck_assert_msg(r == -TE_EBLAS || r == -TE_ECUDA, "%s: %d", fake.failed, r);
			tt_said(fake.failed);
			ncodes++;
		} else {
			ck_assert_int_eq(fake.ngemms, 1);
			ck_assert_str_eq(te_error_detail(), "");
		}
		DO(multiply());
	}
	ck_assert_int_gt(nth, _i ? 15 : 80);
	ck_assert_int_gt(ncodes, 10);
}
END_TEST

/* ---- GEMMs in parts ---- */

/* addresses, which nothing reads */
#define A ((char *)(uintptr_t)0x1000000000)
#define B ((char *)(uintptr_t)0x2000000000)
#define C ((char *)(uintptr_t)0x3000000000)
#define D ((char *)(uintptr_t)0x4000000000)
#define BIAS ((char *)(uintptr_t)0x5000000000)
#define SA ((float *)(uintptr_t)0x6000000000)

/* FP8 operands whose rows are padded to multiples of 16 */
static struct te_k_gemm padded(int64_t m, int64_t n, int64_t k, int32_t out)
{
	return (struct te_k_gemm){ .a = A,
				   .b = B,
				   .d = D,
				   .sa = SA,
				   .sb = SA,
				   .m = m,
				   .n = n,
				   .k = k,
				   .alpha = 2,
				   .adtype = TE_DTYPE_E5M2,
				   .bdtype = TE_DTYPE_E4M3,
				   .cdtype = out,
				   .ddtype = out,
				   .a_rows = (m + 15) / 16 * 16,
				   .b_rows = (n + 15) / 16 * 16 };
}

static int run(const struct te_k_gemm *g)
{
	fake.nevents = fake.ngemms = 0;
	return te__cublaslt_gemm(&stream, g);
}

/* events from i on: a GEMM of rows r to r + n - 1 to the workspace, and D of those that it has */
static void check_rows(int i, const struct te_k_gemm *g, int64_t r, int64_t n, const void *sa)
{
	const struct event *e = &fake.event[i], *f = e + 1;
	const int64_t at = r * g->n * (int64_t)te_dtype_nbytes((enum te_dtype)g->ddtype);
	char *const ws = stream.workspace;

	ck_assert_int_gt(fake.nevents, i + 1);
	ck_assert(e->is_gemm && !f->is_gemm);
	ck_assert_ptr_eq(e->a, A + r * g->k);
	ck_assert_ptr_eq(e->sa, sa);
	ck_assert_ptr_eq(e->d, ws);
	ck_assert_int_eq(e->rows, n);
	if (e->workspace)
		ck_assert_uint_ge((size_t)(e->workspace - ws), (size_t)(n * g->b_rows) * 4);
	ck_assert_ptr_eq(f->f.sums, ws);
	ck_assert_ptr_eq(f->f.d, D + at);
	ck_assert_ptr_eq(f->f.c, g->c ? (const char *)g->c + at : D + at);
	ck_assert_ptr_eq(f->f.bias, g->bias);
	ck_assert_int_eq(f->f.m, g->m - r < n ? g->m - r : n);
	ck_assert_int_eq(f->f.n, g->n);
	ck_assert_int_eq(f->f.ld, g->b_rows);
	ck_assert_int_eq(f->f.dtype, g->ddtype);
	ck_assert(f->f.beta == g->beta);
}

START_TEST(narrower_results_are_finished_from_sums)
{
	struct te_k_gemm g = padded(1003, 20, 64, TE_DTYPE_BF16);

	g.bias = BIAS;
	g.c = C;
	g.beta = 0.5f;
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 2);
	check_rows(0, &g, 0, 1008, SA);
	/* one row of sums takes 400,064 bytes */
	g = padded(150, 100001, 64, TE_DTYPE_FP32);
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 6);
	check_rows(0, &g, 0, 64, SA);
	check_rows(2, &g, 64, 64, SA);
	check_rows(4, &g, 128, 32, SA);
	g = padded(700, 20001, 64, TE_DTYPE_FP32);
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 6);
	check_rows(2, &g, 256, 256, SA);
	g = padded(16, 1 << 20, 64, TE_DTYPE_FP32);
	g.n--;
	ck_assert_int_eq(run(&g), -TE_ESHAPE);
	tt_said("n is 1048575, k 64: too large on a GPU");
	ck_assert_int_eq(fake.nevents, 0);
	ck_assert_ptr_null(stream.given);
}
END_TEST

/* only b's padding reaches D: cuBLASLt takes any number of rows of a, unless they have blocks */
START_TEST(whole_results_need_no_parts)
{
	struct te_k_gemm g = padded(150, 64, 64, TE_DTYPE_BF16);

	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 1);
	ck_assert_int_eq(fake.event[0].rows, 150);
	ck_assert_ptr_eq(fake.event[0].d, D);
	g.asc = g.bsc = TE_K_SCALING_1X128;
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 2);
	check_rows(0, &g, 0, 160, SA);
}
END_TEST

START_TEST(parts_of_blocks_have_scales_of_their_own)
{
	const int64_t k = 8192 * TE_K_BLOCK; /* scales of 64 rows fill their part */
	struct te_k_gemm g = padded(139, 203, k, TE_DTYPE_FP32);
	const struct te_k_gemm_finish *f = &fake.event[3].f;

	g.asc = g.bsc = TE_K_SCALING_1X128;
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 9);
	for (int i = 0; i < 3; i++)
		check_rows(3 * i + 1, &g, 64 * i, i < 2 ? 64 : 16, fake.event[0].f.d);
	ck_assert_ptr_eq(f->sums, SA + 64);
	ck_assert_int_eq(f->ld, 144);
	ck_assert_int_eq(f->n, 64);
	ck_assert_int_eq(f->m, 8192);
	ck_assert(!f->c && !f->bias && f->beta == 0.0f && f->dtype == TE_DTYPE_FP32);
	ck_assert_uint_ge((size_t)((char *)f->d - (char *)stream.workspace),
			  (size_t)(64 * g.b_rows) * 4);
	/* those of 128 x 128 are rows of the array of scales */
	g = padded(700, 20001, 256, TE_DTYPE_FP32);
	g.asc = TE_K_SCALING_128X128;
	g.bsc = TE_K_SCALING_1X128;
	DO(run(&g));
	ck_assert_int_eq(fake.nevents, 6);
	check_rows(0, &g, 0, 256, SA);
	check_rows(4, &g, 512, 192,
		   SA + te_k_scale_index(TE_K_SCALING_128X128, 704, 256, 512, 0));
}
END_TEST

/* a part has less workspace than the same GEMM alone, and an algorithm of its own */
START_TEST(parts_have_choices_of_their_own)
{
	struct te_k_gemm part = padded(64, 60, 64, TE_DTYPE_FP32);
	struct te_k_gemm alone = padded(64, 64, 64, TE_DTYPE_FP32);

	fake.ms[2] = 0.5f;
	DO(run(&part));
	ck_assert_int_eq(fake.ran, 2);
	ck_assert_uint_lt(fake.limit, TE__CUDA_WORKSPACE_NBYTES / 8);
	fake.ms[2] = 2;
	DO(run(&alone));
	ck_assert_int_eq(fake.ran, 1);
	ck_assert_uint_eq(fake.limit, TE__CUDA_WORKSPACE_NBYTES);
	close_all();
	/* read from the file */
	fake.ms[0] = 0;
	DO(run(&part));
	ck_assert_int_eq(fake.ran, 2);
	DO(run(&alone));
	ck_assert_int_eq(fake.ran, 1);
}
END_TEST

START_TEST(each_call_of_parts_may_fail)
{
	const struct te_k_gemm g = padded(150, 100001, 64, TE_DTYPE_FP32);
	int fired = 1, ncodes = 0;

	for (int nth = 1; fired; nth++) {
		int r;

		close_all();
		unlink(choices);
		te_error_clear();
		fake.ncalls = 0;
		fake.failed = "none";
		fake.fail_at = nth;
		r = run(&g);
		fired = fake.ncalls >= nth;
		fake.fail_at = 0;
		ck_assert_ptr_null(stream.given);
		if (r) {
			ck_assert_msg(r == -TE_EBLAS || r == -TE_ECUDA, "%s: %d", fake.failed, r);
			tt_said(!strcmp(fake.failed, "cuLaunchKernelEx") ?
					"launch of te_k_gemm_finish" :
					fake.failed);
			ncodes++;
		} else {
			ck_assert_int_eq(fake.nevents, 6);
		}
		DO(run(&g));
		ck_assert_int_eq(fake.nevents, 6);
	}
	ck_assert_int_gt(ncodes, 10);
}
END_TEST

TT_SUITE("backend/cublaslt", TT_NEED_NOTHING)
{
	TCase *c = tt_case(s, "gemm", "host fast");

	/* only the name: each test creates the folder and removes it */
	snprintf(cache, sizeof(cache), "%s/te-cublaslt.XXXXXX", tt_tmpdir());
	if (!mkdtemp(cache) || rmdir(cache) || setenv("TE_CACHE_DIR", cache, 1))
		abort();
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, the_fastest_is_chosen_and_kept);
	tcase_add_loop_test(c, a_choice_without_measurement_is_not_kept, 0, 6);
	tcase_add_test(c, workspaces_are_within_the_limit);
	tcase_add_loop_test(c, tf32_is_for_fp32_alone, 0, 2);
	tcase_add_test(c, the_provider_is_cublaslt);
	tcase_add_test(c, blocks_choose_the_scale_modes);
	tcase_add_test(c, blocks_need_a_new_library);
	tcase_add_test(c, blocks_have_choices_of_their_own);
	tcase_add_loop_test(c, each_call_may_fail, 0, 2);
	tcase_add_test(c, narrower_results_are_finished_from_sums);
	tcase_add_test(c, whole_results_need_no_parts);
	tcase_add_test(c, parts_of_blocks_have_scales_of_their_own);
	tcase_add_test(c, parts_have_choices_of_their_own);
	tcase_add_test(c, each_call_of_parts_may_fail);
}
