/* t/backend/gemm_lib.c - the driver and the cuBLASLt of gemm_lib.h. */
#include "config.h"

#include <sys/stat.h>

#include "gemm_lib.h"

/* all handles point to it */
struct object {
	enum kind kind;
	int capturing;
	int algo; /* the latest GEMM of a stream, or that of a graph */
	uint64_t cols;	  /* columns of a layout */
	int type;
	int32_t pointers; /* pointer mode of a description */
};

struct fake fake;

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

	if (!r) {
		((struct object *)*ret)->cols = cols;
		((struct object *)*ret)->type = type;
	}
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

	*e = (struct event){ .is_gemm = 0, .func = func };
	if (!strcmp(func, "te_k_fill"))
		memcpy(&e->fill, args[0], sizeof(e->fill));
	else if (!strncmp(func, "te_k_gemm_finish", 16))
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
	if (attr == TE__LT_DESC_A_SCALE_POINTER)
		memcpy(&fake.sb, value, n);
	if (attr == TE__LT_DESC_POINTER_MODE)
		memcpy(&((struct object *)desc)->pointers, value, n);
	return FAIL();
}

static int fake_cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c,
					       void *d, void *pref, int want,
					       struct te__lt_heuristic *results, int *ret_n)
{
	ck_assert_int_ge(want, CANDIDATES);
	fake.nsearches++;
	*ret_n = 0;
	if (fake.none)
		return fake.none == 1 ? TE__LT_NOT_SUPPORTED : FAIL();
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
			.b = a,
			.sa = fake.sa,
			.sb = fake.sb,
			.adtype = ((struct object *)blayout)->type,
			.bdtype = ((struct object *)alayout)->type,
			.ddtype = ((struct object *)dlayout)->type,
			.pointers = ((struct object *)desc)->pointers,
			.words = alpha,
			.alpha = ((struct object *)desc)->pointers ? 0 : *(const float *)alpha,
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
char choices[sizeof(cache) + 40];
static struct object own[2] = { { .kind = STREAM }, { .kind = STREAM } };
struct te__cuda_dev dev;
struct te__cuda_stream stream;
const char lt_func[LT_FUNCS][32] = {
	"te_k_bias_fwd_fp32",	 "te_k_fill",	     "te_k_gemm_finish_bf16",
	"te_k_gemm_finish_fp32", "te_k_gemm_mxfp8", "te_k_gemm_nvfp4",
};
static struct te__cuda_func funcs[LT_FUNCS];
static int64_t live;

void lt_name_choices(const char *version)
{
	snprintf(choices, sizeof(choices), "%s/gemm--0-%s", cache, version);
}

void lt_setup(void)
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
	for (int i = 0; i < LT_FUNCS; i++)
		funcs[i] = (struct te__cuda_func){ .name = lt_func[i],
						   .func = (void *)(uintptr_t)lt_func[i] };
	dev.funcs = funcs;
	dev.nfuncs = TT_LEN(funcs);
	te__devmem_init(&dev.mem, 0, NULL);
	pthread_mutex_init(&dev.lock, NULL);
	pthread_mutex_init(&dev.lt_lock, NULL);
	stream = (struct te__cuda_stream){ .dev = &dev, .stream = &own[1] };
	lt_name_choices("130000");
	unlink(choices); /* left by a test that failed */
	ck_assert(!mkdir(cache, 0700) || errno == EEXIST);
	live = te__alloc_live();
}

void close_all(void)
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

void lt_teardown(void)
{
	close_all();
	unlink(choices);
	ck_assert_int_eq(rmdir(cache), 0);
	pthread_mutex_destroy(&dev.lt_lock);
	pthread_mutex_destroy(&dev.lock);
}

int lt_is_capturing(void)
{
	return own[1].capturing;
}

void lt_name_cache(void)
{
	/* only the name: each test creates the folder and removes it */
	snprintf(cache, sizeof(cache), "%s/te-cublaslt.XXXXXX", tt_tmpdir());
	if (!mkdtemp(cache) || rmdir(cache) || setenv("TE_CACHE_DIR", cache, 1))
		abort();
}

void lt_each_call_may_fail(int (*run)(const struct te_k_gemm *g), const struct te_k_gemm *g,
			   int nevents, const char *launch)
{
	int fired = 1, ncodes = 0;

	for (int nth = 1; fired; nth++) {
		int r;

		close_all();
		unlink(choices);
		te_error_clear();
		fake.ncalls = 0;
		fake.failed = "none";
		fake.fail_at = nth;
		r = run(g);
		fired = fake.ncalls >= nth;
		fake.fail_at = 0;
		ck_assert_ptr_null(stream.given);
		if (r) {
			ck_assert_msg(r == -TE_EBLAS || r == -TE_ECUDA, "%s: %d", fake.failed, r);
			tt_said(strcmp(fake.failed, "cuLaunchKernelEx") ? fake.failed : launch);
			ncodes++;
		} else {
			ck_assert_int_eq(fake.nevents, nevents);
		}
		DO(run(g));
		ck_assert_int_eq(fake.nevents, nevents);
	}
	ck_assert_int_gt(ncodes, 10);
}
