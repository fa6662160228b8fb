/*
 * t/core/cublaslt.c - products of the cuda backend where calls of the driver or of cuBLASLt fail,
 * with both of them written here: no GPU is needed.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/dtype.h>
#include <te/errno.h>

#include "cuda_fake.h"
#include "libtecore/backend/cublaslt_api.h"
#include "libtecore/backend/cuda_internal.h"
#include "tt_ctx.h"

#define CANDIDATES 3

enum kind { STREAM, EVENT, GRAPH, EXEC, MEMORY, PREF, DESC, LAYOUT, HANDLE, NKINDS };

/* what all handles point at */
struct object {
	enum kind kind;
	int capturing;
	int algo; /* the latest product of a stream; that of a graph */
};

static struct {
	int live[NKINDS];
	int ncalls, fail_at; /* the call that fails, from 1; 0: none */
	const char *failed;  /* its name */
	int fail_all;	     /* calls of that name fail */
	int ran;	     /* candidate that ran last, from a graph or plainly */
	int nproducts;	     /* that were queued plainly */
	float ms[CANDIDATES];
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
	o = calloc(1, sizeof(*o));
	o->kind = kind;
	fake.live[kind]++;
	*ret = o;
	return 0;
}

/* what fails to go is gone all the same */
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
/* calls that only succeed, or fail */
#define PLAIN(X)                                                                               \
	X(cuCtxPushCurrent, (void *ctx))                                                       \
	X(cuCtxPopCurrent, (void **ret_ctx))                                                   \
	X(cuThreadExchangeStreamCaptureMode, (int *mode))                                      \
	X(cuDriverGetVersion, (int *ret_version))                                              \
	X(cuStreamSynchronize, (void *stream))                                                 \
	X(cuEventRecord, (void *event, void *stream))                                          \
	X(cuEventSynchronize, (void *event))                                                   \
	X(cublasLtMatmulDescSetAttribute, (void *desc, int attr, const void *value, size_t n)) \
	X(cublasLtMatmulPreferenceSetAttribute, (void *pref, int attr, const void *v, size_t n))
#define X(name, args)               \
	static int fake_##name args \
	{                           \
		return FAIL();      \
	}
PLAIN(X)
#undef X

/* calls that make an object, and such that take one away */
#define MAKE(X)                                                                 \
	X(cuStreamCreate, STREAM, (void **ret, unsigned flags))                 \
	X(cuEventCreate, EVENT, (void **ret, unsigned flags))                   \
	X(cublasLtCreate, HANDLE, (void **ret))                                 \
	X(cublasLtMatmulDescCreate, DESC, (void **ret, int compute, int scale)) \
	X(cublasLtMatrixLayoutCreate, LAYOUT,                                   \
	  (void **ret, int type, uint64_t rows, uint64_t cols, int64_t ld))     \
	X(cublasLtMatmulPreferenceCreate, PREF, (void **ret))
#define X(name, kind, args)                     \
	static int fake_##name args             \
	{                                       \
		return hold(kind, FAIL(), ret); \
	}
MAKE(X)
#undef X
#define TAKE(X)                                \
	X(cuStreamDestroy, STREAM)             \
	X(cuEventDestroy, EVENT)               \
	X(cuGraphDestroy, GRAPH)               \
	X(cuGraphExecDestroy, EXEC)            \
	X(cublasLtDestroy, HANDLE)             \
	X(cublasLtMatmulDescDestroy, DESC)     \
	X(cublasLtMatrixLayoutDestroy, LAYOUT) \
	X(cublasLtMatmulPreferenceDestroy, PREF)
#define X(name, kind)                              \
	static int fake_##name(void *object)       \
	{                                          \
		return drop(kind, FAIL(), object); \
	}
TAKE(X)
#undef X

static int fake_cuInit(unsigned flags)
{
	return 0;
}

static int fake_cuGetErrorName(int result, const char **ret_name)
{
	*ret_name = "CUDA_ERROR_FAKE";
	return 0;
}

static int fake_cuMemAllocFromPoolAsync(uint64_t *ret, size_t n, void *pool, void *stream)
{
	void *p;
	int r = hold(MEMORY, FAIL(), &p);

	if (!r)
		*ret = (uintptr_t)p;
	return r;
}

static int fake_cuMemFreeAsync(uint64_t ptr, void *stream)
{
	return drop(MEMORY, FAIL(), (void *)(uintptr_t)ptr);
}

static int fake_cuStreamIsCapturing(void *stream, int *ret_status)
{
	*ret_status = ((struct object *)stream)->capturing ? TE__CU_CAPTURE_STATUS_ACTIVE :
							     TE__CU_CAPTURE_STATUS_NONE;
	return FAIL();
}

static int fake_cuStreamGetCaptureInfo(void *stream, int *ret_status, uint64_t *ret_id,
				       void **ret_graph, void *const **ret_deps,
				       const struct te__cu_edge_data **ret_data, size_t *ret_ndeps)
{
	*ret_status = TE__CU_CAPTURE_STATUS_NONE;
	return FAIL();
}

static int fake_cuStreamBeginCapture(void *stream, int mode)
{
	int r = FAIL();

	ck_assert_int_eq(((struct object *)stream)->capturing, 0);
	((struct object *)stream)->capturing = !r;
	return r;
}

static int fake_cuStreamEndCapture(void *stream, void **ret_graph)
{
	struct object *s = stream;

	ck_assert_int_eq(s->capturing, 1);
	s->capturing = 0;
	if (hold(GRAPH, FAIL(), ret_graph))
		return FAKE_UNKNOWN;
	((struct object *)*ret_graph)->algo = s->algo;
	return 0;
}

static int fake_cuGraphInstantiateWithFlags(void **ret_exec, void *graph, unsigned long long flags)
{
	if (hold(EXEC, FAIL(), ret_exec))
		return FAKE_UNKNOWN;
	((struct object *)*ret_exec)->algo = ((struct object *)graph)->algo;
	return 0;
}

static int fake_cuGraphLaunch(void *exec, void *stream)
{
	fake.ran = ((struct object *)exec)->algo;
	return FAIL();
}

static int fake_cuEventElapsedTime(float *ret_ms, void *from, void *to)
{
	*ret_ms = fake.ms[fake.ran];
	return FAIL();
}

static size_t fake_cublasLtGetVersion(void)
{
	return 130000;
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
		fake.nproducts++;
	}
	return FAIL();
}
#pragma GCC diagnostic pop

/* ---- a device and a stream, without all that opening them needs ---- */

static char cache[] = "/tmp/te-cublaslt.XXXXXX";
static char choices[sizeof(cache) + 40];
static struct object own[2] = { { .kind = STREAM }, { .kind = STREAM } };
static struct te__cuda_dev dev;
static struct te__cuda_stream stream;
static int64_t live;

static void setup(void)
{
	struct te__cuda_driver d = fake_driver();
	static struct te__lt_api lt;

#define X(name, ...) lt.name = fake_##name;
	TE__LT_SYMS(X)
#undef X
	lt.cublasLtGetVersion = fake_cublasLtGetVersion;
#define HAVE(name) d.name = fake_##name
	HAVE(cuInit);
	HAVE(cuGetErrorName);
	HAVE(cuCtxPushCurrent);
	HAVE(cuCtxPopCurrent);
	HAVE(cuThreadExchangeStreamCaptureMode);
	HAVE(cuDriverGetVersion);
	HAVE(cuStreamCreate);
	HAVE(cuStreamDestroy);
	HAVE(cuStreamSynchronize);
	HAVE(cuStreamIsCapturing);
	HAVE(cuStreamGetCaptureInfo);
	HAVE(cuStreamBeginCapture);
	HAVE(cuStreamEndCapture);
	HAVE(cuEventCreate);
	HAVE(cuEventDestroy);
	HAVE(cuEventRecord);
	HAVE(cuEventSynchronize);
	HAVE(cuEventElapsedTime);
	HAVE(cuMemAllocFromPoolAsync);
	HAVE(cuMemFreeAsync);
	HAVE(cuGraphInstantiateWithFlags);
	HAVE(cuGraphDestroy);
	HAVE(cuGraphLaunch);
	HAVE(cuGraphExecDestroy);
#undef HAVE
	memset(&fake, 0, sizeof(fake));
	fake.ms[0] = 3;
	fake.ms[1] = 1;
	fake.ms[2] = 2;
	te__cuda_driver_fake(&d);
	te__cublaslt_fake(&lt);
	memset(&dev, 0, sizeof(dev));
	dev.ctx = &own[0];
	dev.stream = &own[0];
	pthread_mutex_init(&dev.lock, NULL);
	pthread_mutex_init(&dev.lt_lock, NULL);
	stream = (struct te__cuda_stream){ .dev = &dev, .stream = &own[1] };
	snprintf(choices, sizeof(choices), "%s/gemm--0-130000", cache);
	unlink(choices); /* of a test that failed */
	ck_assert(!mkdir(cache, 0700) || errno == EEXIST);
	live = te__alloc_live();
}

/* the product's stream keeps its workspace, the device what it knows: both go, and all is gone */
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

static int multiply(void)
{
	static float a[16], b[16], d[16], bias[4];
	const struct te_k_gemm g = { .a = a,
				     .b = b,
				     .d = d,
				     .bias = bias,
				     .m = 4,
				     .n = 4,
				     .k = 4,
				     .alpha = 1,
				     .adtype = TE_DTYPE_FP32,
				     .bdtype = TE_DTYPE_FP32,
				     .cdtype = TE_DTYPE_FP32,
				     .ddtype = TE_DTYPE_FP32 };

	return te__cublaslt_gemm(&stream, &g);
}

START_TEST(the_fastest_is_taken_and_kept)
{
	int ncalls;

	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
	ncalls = fake.ncalls;
	fake.ncalls = 0;
	DO(multiply());
	ck_assert_int_eq(fake.nproducts, 2);
	ck_assert_int_lt(fake.ncalls, ncalls / 4);
	close_all();
	/* by the next process, from the file */
	fake.ms[2] = 0.5f;
	DO(multiply());
	ck_assert_int_eq(fake.ran, 1);
}
END_TEST

/* what could not be measured is taken as the library ranks it, and is no choice to keep */
START_TEST(what_nobody_measured_is_not_kept)
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

/* with and without a file of choices: a code and a sentence, or all goes on without the call */
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
		fake.nproducts = 0;
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
			ck_assert_int_eq(fake.nproducts, 1);
			ck_assert_str_eq(te_error_detail(), "");
		}
		DO(multiply());
	}
	ck_assert_int_gt(nth, _i ? 15 : 80);
	ck_assert_int_gt(ncodes, 10);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("core/cublaslt");
	TCase *c = tt_case(s, "products", "host fast");

	/* only the name: each test makes the folder, and takes it away */
	if (!mkdtemp(cache) || rmdir(cache) || setenv("TE_CACHE_DIR", cache, 1))
		abort();
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, the_fastest_is_taken_and_kept);
	tcase_add_loop_test(c, what_nobody_measured_is_not_kept, 0, 6);
	tcase_add_loop_test(c, each_call_may_fail, 0, 2);
	return s;
}

TT_MAIN("core/cublaslt", TT_NEED_NOTHING, suite)
