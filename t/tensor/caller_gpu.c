/*
 * t/tensor/caller_gpu.c - what a program brings along, on a GPU: the same cases, and streams,
 * captures and contexts that it makes by the driver API.
 */
#include "config.h"

#include <dlfcn.h>

#include <te/capture.h>
#include <te/ctx.h>
#include <te/errno.h>
#include <te/stream.h>

#include "caller_cases.h"
#include "libtecore/backend/cuda/driver.h"
#include "tt_ctx.h"

#define NWORDS 1024

static void *primary; /* retained */

/* a function of the driver that the library does not call */
static void *driver_fn(const char *name)
{
	void *fn = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);

	ck_assert_msg(fn != NULL, "libcuda has no %s", name);
	return fn;
}

static int create_ctx(void **ret, int dev)
{
	int (*fn)(void **, unsigned, int);

	*(void **)&fn = driver_fn("cuCtxCreate_v2");
	return fn(ret, 0, dev);
}

static int destroy_ctx(void *cu)
{
	int (*fn)(void *);

	*(void **)&fn = driver_fn("cuCtxDestroy_v2");
	return fn(cu);
}

static void *current(void)
{
	int (*fn)(void **);
	void *cu = NULL;

	*(void **)&fn = driver_fn("cuCtxGetCurrent");
	DO(fn(&cu));
	return cu;
}

static void *stream_in(void *cu)
{
	void *s;

	DO(te__cu.cuCtxPushCurrent(cu));
	DO(te__cu.cuStreamCreate(&s, TE__CU_STREAM_NON_BLOCKING));
	DO(te__cu.cuCtxPopCurrent(&cu));
	return s;
}

static void need_driver(void)
{
	const char *why;

	DO(te__cuda_driver_load(&why));
	if (!primary)
		DO(te__cu.cuDevicePrimaryCtxRetain(&primary, 0));
}

static void *native(void)
{
	static void *s;

	need_driver();
	if (!s)
		s = stream_in(primary);
	return s;
}

/* the program's own work, in the order of its stream */
static void own_fill(void *s, void *p, uint32_t value)
{
	DO(te__cu.cuCtxPushCurrent(primary));
	DO(te__cu.cuMemsetD32Async((uintptr_t)p, value, NWORDS, s));
	DO(te__cu.cuCtxPopCurrent(&(void *){ NULL }));
}

static uint32_t *words(void)
{
	void *p;

	DO(te_mem_alloc(st, 4 * NWORDS, &p));
	DO(te_stream_sync(st));
	return p;
}

static void check_words(struct te_stream *s, const void *p, uint32_t want)
{
	uint32_t got[NWORDS];

	DO(te_copy(s, got, p, sizeof(got)));
	DO(te_stream_sync(s));
	for (int i = 0; i < NWORDS; i++)
		ck_assert_uint_eq(got[i], want);
}

/* CU_STREAM_LEGACY as such and as NULL, and a stream of the program */
static void *which(int i)
{
	return i == 0 ? NULL : i == 1 ? (void *)1 : native();
}

CTX_CASE(driver, "gpu");

TEST_EACH(driver, work_is_ordered_with_the_programs, 3)
{
	uint32_t *p = words(), *q = words();
	void *s = which(_i);
	struct te_stream *w;

	need_driver();
	DO(te_stream_wrap(ctx, s, &w));
	ck_assert_ptr_eq(te_stream_native(w), s);
	for (uint32_t k = 0; k < 50; k++) {
		own_fill(s, p, 2 * k);
		DO(te_copy(w, q, p, 4 * NWORDS));
		DO(te_fill_u32(w, p, 2 * k + 1, 4 * NWORDS));
	}
	check_words(w, q, 98);
	check_words(w, p, 99);
	te_stream_unref(w);
	/* the stream is still the program's */
	own_fill(s, p, 7);
	DO(te__cu.cuCtxPushCurrent(primary));
	DO(te__cu.cuStreamSynchronize(s));
	DO(te__cu.cuCtxPopCurrent(&(void *){ NULL }));
	check_words(st, p, 7);
	DO(te_mem_free(st, p));
	DO(te_mem_free(st, q));
}

TEST_EACH(driver, the_legacy_stream_cannot_be_captured, 2)
{
	struct te_stream *w;

	DO(te_stream_wrap(ctx, which(_i), &w));
	fails(te_capture_begin(w), -EOPNOTSUPP, "legacy default stream");
	DO(te_stream_sync(w));
	te_stream_unref(w);
}

/* cuStreamBeginCapture by the program: work of the library becomes nodes of its graph */
TEST(driver, the_program_captures)
{
	uint32_t *p = words(), *q = words();
	void *s = native(), *graph, *exec, *m;
	struct te_recording *rec;
	struct te_stream *w;

	DO(te_stream_wrap(ctx, s, &w));
	own_fill(s, p, 1);
	DO(te_capture_begin(w));
	DO(te_fill_u32(w, q, 5, 4 * NWORDS));
	DO(te_fill_u32(w, q, 6, 4 * NWORDS));
	DO(te_capture_end(w, &rec));
	DO(te_stream_sync(w));
	DO(te__cu.cuCtxPushCurrent(primary));
	DO(te__cu.cuStreamBeginCapture(s, TE__CU_CAPTURE_MODE_THREAD_LOCAL));
	DO(te__cu.cuCtxPopCurrent(&(void *){ NULL }));
	own_fill(s, p, 3);
	DO(te_copy(w, q, p, 4 * NWORDS));
	DO(te_fill_u32(w, p, 4, 4 * NWORDS));
	/* what cannot be part of it is refused, and leaves it valid */
	fails(te_stream_sync(w), -EBUSY, "capturing");
	fails(te_stream_query(w), -EBUSY, "capturing");
	fails(te_ctx_sync(ctx), -EBUSY, "began without this library");
	fails(te_mem_alloc(w, 4, &m), -EBUSY, "capturing");
	fails(te_mem_free(w, p), -EBUSY, "capturing");
	fails(te_capture_begin(w), -EBUSY, "began without this library");
	fails(te_recording_launch(rec, w), -EBUSY, "began without this library");
	te_stream_unref(w);
	DO(te__cu.cuCtxPushCurrent(primary));
	DO(te__cu.cuStreamEndCapture(s, &graph));
	DO(te__cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
	DO(te__cu.cuGraphLaunch(exec, s));
	DO(te__cu.cuStreamSynchronize(s));
	DO(te__cu.cuGraphExecDestroy(exec));
	DO(te__cu.cuGraphDestroy(graph));
	DO(te__cu.cuCtxPopCurrent(&(void *){ NULL }));
	check_words(st, q, 3);
	check_words(st, p, 4);
	te_recording_unref(rec);
	DO(te_mem_free(st, p));
	DO(te_mem_free(st, q));
}

/* ---- contexts ---- */

static int create(void *cu, int device, struct te_ctx **ret)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;

	o.backend = "cuda";
	o.device = device;
	o.native = cu;
	return te_ctx_create(&o, ret);
}

static void use(struct te_ctx *c, void *cu)
{
	struct te_stream *s, *w;
	void *mine = stream_in(cu);
	uint32_t *p;

	DO(te_stream_create(c, &s));
	DO(te_mem_alloc(s, 4 * NWORDS, (void **)&p));
	DO(te_fill_u32(s, p, 9, 4 * NWORDS));
	check_words(s, p, 9);
	DO(te_stream_wrap(c, mine, &w));
	DO(te_fill_u32(w, p, 8, 4 * NWORDS));
	check_words(w, p, 8);
	DO(te_mem_free(s, p));
	te_stream_unref(w);
	te_stream_unref(s);
	DO(te__cu.cuCtxPushCurrent(cu));
	DO(te__cu.cuStreamDestroy(mine));
	DO(te__cu.cuCtxPopCurrent(&cu));
}

CASE(contexts, "gpu");

/* _i: the primary one, or another; nothing is current before, or the primary one is */
TEST_EACH(contexts, uses_a_cucontext_of_the_program, 4)
{
	void *cu, *before;
	struct te_stream *w;
	struct te_ctx *c;

	need_driver();
	cu = primary;
	if (_i & 1) {
		DO(create_ctx(&cu, 0));
		DO(te__cu.cuCtxPopCurrent(&(void *){ NULL }));
	}
	if (_i & 2)
		DO(te__cu.cuCtxPushCurrent(primary));
	before = current();
	for (int k = 0; k < 2; k++) {
		DO(create(cu, 0, &c));
		ck_assert_ptr_eq(current(), before);
		use(c, cu);
		ck_assert_ptr_eq(current(), before);
		if (cu != primary)
			fails(te_stream_wrap(c, native(), &w), -EINVAL, "of the CUcontext");
		te_ctx_unref(c);
		ck_assert_ptr_eq(current(), before);
	}
	if (_i & 2)
		DO(te__cu.cuCtxPopCurrent(&(void *){ NULL }));
	/* it is still there */
	DO(te__cu.cuCtxPushCurrent(cu));
	DO(te__cu.cuCtxPopCurrent(&(void *){ NULL }));
	if (_i & 1)
		DO(destroy_ctx(cu));
}

TT_SUITE("tensor/caller_gpu", TT_NEED_GPU)
{
	/* timed candidates may differ from run to run, and so may the bits */
	setenv("TE_GEMM_TUNE", "1", 1);
	caller_native = native;
	backend = "cuda";
}
