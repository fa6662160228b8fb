/*
 * cublaslt.c - GEMM on a GPU by cuBLASLt.
 *
 * cuBLASLt is opened by the first GEMM that needs it. A problem (shape, types, layout, epilogue) is
 * described once and kept with the algorithm chosen for it. Autotuning times the first
 * TE_GEMM_TUNE candidates of the heuristic on a private stream and in private memory, so
 * it affects neither results nor a capture in progress. The choice is written to a file
 * (TE_CACHE_DIR), so that later processes choose the same algorithm and compute the same bits.
 *
 * cuBLASLt is column-major: a row-major D [M,N] is its D^T [N,M], so its A is b and its B is a.
 */
#define TE_LOG_CATEGORY "core/cublaslt"
#include "config.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <te/dtype.h>

#include "libtecore/backend/cuda/cublaslt_api.h"
#include "libtecore/backend/cuda/cuda.h"
#include "libtecore/backend/cuda/gemm_cache.h"
#include "libtecore/base/grow.h"

#define MAX_TUNE 32
#define TIMED_RUNS 10
#define LT_BLOCK_SCALING 120900 /* the first version with block scaling by FP32 */
#define LT_MX 120800		/* with block scaling by E8M0 and E4M3 */
/* a GEMM in parts uses the workspace for sums and scales; the rest is cuBLASLt's */
#define SUMS_NBYTES ((size_t)28 << 20)
#define SCALES_NBYTES ((size_t)2 << 20)
#define PART_ROWS 128 /* a part has a multiple of so many rows, if they fit */
/* E2M1: alpha with the words of both copies, and beta, at the start of the workspace */
#define WORDS_NBYTES ((size_t)256)
/* MXFP8 and NVFP4: rows of codes and of D are multiples of 16 bytes */
#define MX_K 32
#define MX_N 16

/* a GEMM by itself, a part of one, or the product of the words of E2M1 */
enum use { WHOLE, PART, WORDS };

struct problem {
	struct te__gemm_key key;
	void *desc, *a, *b, *d; /* in cuBLASLt's order; C has D's layout */
	struct te__lt_algo algo;
	size_t workspace_nbytes;
	int none; /* MXFP8, NVFP4: cuBLASLt has no algorithm */
};

struct te__cublaslt {
	void *handle;
	struct te__lt_api api;
	size_t version;
	struct problem *problem;
	int nproblems;
	size_t cap;
	char cache[512]; /* path of the cache file, or empty */
};

static const char *const scaling_name[] = {
	[TE_K_SCALING_TENSOR] = "",
	[TE_K_SCALING_1X128] = " (1x128)",
	[TE_K_SCALING_128X128] = " (128x128)",
	[TE_K_SCALING_1X32] = " (1x32)",
	[TE_K_SCALING_1X16] = " (1x16)",
	[TE_K_SCALING_16X16] = " (16x16)",
};

static int lt_check(int status, const char *call, const struct te__gemm_key *key)
{
	if (!status)
		return 0;
	if (key)
		return te__fail(-TE_EBLAS,
				"%s: status %d for a GEMM of m %" PRId64 ", n %" PRId64
				", k %" PRId64 ", %s%s by %s%s to %s",
				call, status, key->m, key->n, key->k,
				te_dtype_name((enum te_dtype)key->adtype), scaling_name[key->asc],
				te_dtype_name((enum te_dtype)key->bdtype), scaling_name[key->bsc],
				te_dtype_name((enum te_dtype)key->ddtype));
	return te__fail(-TE_EBLAS, "%s: status %d", call, status);
}

#define LT(lt, key, fn, ...) lt_check((lt)->api.fn(__VA_ARGS__), #fn, key)

/* ---- opening ---- */

static const struct te__lt_api *faked; /* set by a test */

void te__cublaslt_fake(const struct te__lt_api *api)
{
	faked = api;
}

static struct te__lt_api real;
static const struct te__dl_sym sym[] = {
#define X(name, args) { #name, offsetof(struct te__lt_api, name) },
	TE__LT_SYMS(X)
#undef X
	{ "cublasLtGetVersion", offsetof(struct te__lt_api, cublasLtGetVersion) },
};
static struct te__dl dl = TE__DL(sym, &real, "libcublasLt.so.13", "libcublasLt.so.12",
				 "libcublasLt.so");

const char *te__cublaslt_missing(void)
{
	if (faked)
		return faked->cublasLtGetVersion ? NULL : "libcublasLt.so";
	return te__dl_open(&dl);
}

static int load(struct te__cublaslt *lt)
{
	const char *missing = te__cublaslt_missing();

	if (missing)
		return te__fail(-TE_EBLAS, "this GEMM needs cuBLASLt, and %s is not found: "
				"install libcublas or name its folder in LD_LIBRARY_PATH", missing);
	lt->api = faked ? *faked : real;
	lt->version = lt->api.cublasLtGetVersion();
	return LT(lt, NULL, cublasLtCreate, &lt->handle);
}

/* the cache file of this device, driver and library version: letters, digits, dashes */
static void name_cache(struct te__cublaslt *lt, const struct te__cuda_dev *d)
{
	const char *dir = te__param_cache_dir();
	char dev[sizeof(d->name)];
	int driver = 0;
	size_t n = 0;

	te__cu.cuDriverGetVersion(&driver);

	for (const char *p = d->name; *p && n + 1 < sizeof(dev); p++)
		dev[n++] = (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') ||
					   (*p >= 'a' && *p <= 'z') ?
				   *p :
				   '-';
	dev[n] = 0;
	if (!dir || snprintf(lt->cache, sizeof(lt->cache), "%s/gemm-%s-%d-%zu", dir, dev, driver,
			     lt->version) >= (int)sizeof(lt->cache))
		lt->cache[0] = 0;
}

static int opened(struct te__cuda_dev *d)
{
	struct te__cublaslt *lt;
	int r;

	if (d->lt)
		return 0;
	lt = te__calloc(1, sizeof(*lt));
	if (!lt)
		return te__no_memory("cuBLASLt");
	r = load(lt);
	d->lt = lt;
	if (r < 0) {
		te__cublaslt_close(d);
		return r;
	}
	name_cache(lt, d);
	return 0;
}

void te__cublaslt_close(struct te__cuda_dev *d)
{
	struct te__cublaslt *lt = d->lt;

	if (!lt)
		return;
	for (int i = 0; i < lt->nproblems; i++) {
		lt->api.cublasLtMatmulDescDestroy(lt->problem[i].desc);
		lt->api.cublasLtMatrixLayoutDestroy(lt->problem[i].a);
		lt->api.cublasLtMatrixLayoutDestroy(lt->problem[i].b);
		lt->api.cublasLtMatrixLayoutDestroy(lt->problem[i].d);
	}
	te__free(lt->problem);
	if (lt->handle)
		lt->api.cublasLtDestroy(lt->handle);
	te__free(lt);
	d->lt = NULL;
}

/* a problem whose algorithm is to be found */
struct search {
	const struct te__cublaslt *lt;
	struct problem *p;
};

/* limit of cuBLASLt's workspace */
static size_t most_workspace(const struct te__gemm_key *k)
{
	const size_t taken = k->part == PART		? SUMS_NBYTES + SCALES_NBYTES :
			     k->adtype == TE_DTYPE_E2M1 ? WORDS_NBYTES :
							  0;

	return TE__CUDA_WORKSPACE_NBYTES - taken;
}

/* 1: cuBLASLt accepts the algorithm for the problem, which is stored with its workspace size */
static int accept(void *arg, const struct te__lt_algo *algo)
{
	const struct te__cublaslt *lt = ((struct search *)arg)->lt;
	struct problem *p = ((struct search *)arg)->p;
	struct te__lt_heuristic h;

	memset(&h, 0, sizeof(h));
	if (lt->api.cublasLtMatmulAlgoCheck(lt->handle, p->desc, p->a, p->b, p->d, p->d, algo,
					    &h) ||
	    h.workspace_nbytes > most_workspace(&p->key))
		return 0;
	p->algo = *algo;
	p->workspace_nbytes = h.workspace_nbytes;
	return 1;
}

/* ---- problems ---- */

static int lt_type(int32_t dtype)
{
	switch (dtype) {
	case TE_DTYPE_FP32:
		return TE__LT_R_32F;
	case TE_DTYPE_BF16:
		return TE__LT_R_16BF;
	case TE_DTYPE_E4M3:
		return TE__LT_R_8F_E4M3;
	case TE_DTYPE_E2M1:
		return TE__LT_R_4F_E2M1;
	default:
		return TE__LT_R_8F_E5M2;
	}
}

static int32_t scale_mode(int32_t scaling)
{
	switch (scaling) {
	case TE_K_SCALING_1X128:
		return TE__LT_SCALE_VEC128_32F;
	case TE_K_SCALING_128X128:
		return TE__LT_SCALE_BLK128X128_32F;
	case TE_K_SCALING_1X32:
		return TE__LT_SCALE_VEC32_UE8M0;
	default: /* 16X16 repeats the scales of 16 rows */
		return TE__LT_SCALE_VEC16_UE4M3;
	}
}

/* earlier versions fail with a status only */
static int check_scaling(const struct te__cublaslt *lt, const struct te__gemm_key *k)
{
	if ((!k->asc && !k->bsc) || lt->version >= LT_BLOCK_SCALING)
		return 0;
	return te__fail(-TE_EBLAS, "te_gemm: block scaling on a GPU needs cuBLASLt 12.9 or later, "
			"found %zu.%zu", lt->version / 10000, lt->version / 100 % 100);
}

static int describe(struct te__cublaslt *lt, struct problem *p)
{
	const struct te__gemm_key *k = &p->key;
	const int32_t ta = k->b_t ? TE__LT_OP_N : TE__LT_OP_T;
	const int32_t tb = k->a_t ? TE__LT_OP_T : TE__LT_OP_N;
	const int32_t epilogue = TE__LT_EPILOGUE_BIAS, bias_type = lt_type(k->ddtype);
	const int fp8 = te__is_fp8(k->adtype);
	/* gradients, which alone are E5M2, are summed with full FP32 accumulation */
	const int8_t fast = k->adtype == TE_DTYPE_E4M3 && k->bdtype == TE_DTYPE_E4M3 && !k->asc;
	const int32_t a_mode = scale_mode(k->bsc), b_mode = scale_mode(k->asc);
	const int32_t pointers = TE__LT_POINTER_MODE_DEVICE;
	const int compute = k->tf32 ? TE__LT_COMPUTE_32F_FAST_TF32 : TE__LT_COMPUTE_32F;
	int r = LT(lt, k, cublasLtMatmulDescCreate, &p->desc, compute, TE__LT_R_32F);

#define SET(attr, v) LT(lt, k, cublasLtMatmulDescSetAttribute, p->desc, attr, &(v), sizeof(v))
	if (!r)
		r = SET(TE__LT_DESC_TRANSA, ta);
	if (!r)
		r = SET(TE__LT_DESC_TRANSB, tb);
	if (!r && fp8)
		r = SET(TE__LT_DESC_FAST_ACCUM, fast);
	if (!r && k->adtype == TE_DTYPE_E2M1)
		r = SET(TE__LT_DESC_POINTER_MODE, pointers);
	if (!r && k->asc)
		r = SET(TE__LT_DESC_A_SCALE_MODE, a_mode);
	if (!r && k->asc)
		r = SET(TE__LT_DESC_B_SCALE_MODE, b_mode);
	if (!r && k->bias)
		r = SET(TE__LT_DESC_EPILOGUE, epilogue);
	if (!r && k->bias)
		r = SET(TE__LT_DESC_BIAS_DATA_TYPE, bias_type);
#undef SET
	/* rows, columns and leading extents as column-major memory has them */
	if (!r)
		r = LT(lt, k, cublasLtMatrixLayoutCreate, &p->a, lt_type(k->bdtype),
		       (uint64_t)(k->b_t ? k->n : k->k), (uint64_t)(k->b_t ? k->k : k->n),
		       k->b_t ? k->n : k->k);
	if (!r)
		r = LT(lt, k, cublasLtMatrixLayoutCreate, &p->b, lt_type(k->adtype),
		       (uint64_t)(k->a_t ? k->m : k->k), (uint64_t)(k->a_t ? k->k : k->m),
		       k->a_t ? k->m : k->k);
	if (!r)
		r = LT(lt, k, cublasLtMatrixLayoutCreate, &p->d, lt_type(k->ddtype), (uint64_t)k->n,
		       (uint64_t)k->m, k->n);
	return r;
}

/* sets the pointers of this GEMM, which are not part of the problem */
static int point(struct te__cublaslt *lt, struct problem *p, const struct te_k_gemm *g)
{
	const struct te__gemm_key *k = &p->key;
	const char *sa = (const char *)g->sa, *sb = (const char *)g->sb;
	int r = 0;

	if (k->adtype == TE_DTYPE_E2M1) {
		sa += TE_K_NV_HEAD;
		sb += TE_K_NV_HEAD;
	}
	if (k->bias)
		r = LT(lt, k, cublasLtMatmulDescSetAttribute, p->desc, TE__LT_DESC_BIAS_POINTER,
		       &g->bias, sizeof(g->bias));
	if (!r && (k->scaled & 1))
		r = LT(lt, k, cublasLtMatmulDescSetAttribute, p->desc, TE__LT_DESC_B_SCALE_POINTER,
		       &sa, sizeof(sa));
	if (!r && (k->scaled & 2))
		r = LT(lt, k, cublasLtMatmulDescSetAttribute, p->desc, TE__LT_DESC_A_SCALE_POINTER,
		       &sb, sizeof(sb));
	return r;
}

/* words: alpha and beta; ws: nbytes of workspace, or NULL */
static int matmul(struct te__cublaslt *lt, const struct problem *p, const struct te_k_gemm *g,
		  const float *words, const struct te__lt_algo *algo, const void *c, void *d,
		  void *ws, size_t nbytes, void *stream)
{
	return lt->api.cublasLtMatmul(lt->handle, p->desc, words, g->b, p->a, g->a, p->b,
				      words + 1, c, p->d, d, p->d, algo, ws, ws ? nbytes : 0,
				      stream);
}

/* stream, events and memory to time candidates with */
struct trial {
	void *stream, *events[2];
	void *out, *ws;
	size_t out_nbytes;
};

static void trial_free(struct te__cuda_dev *d, struct trial *t)
{
	if (t->stream) {
		te__cu.cuStreamSynchronize(t->stream);
		te__cu.cuStreamDestroy(t->stream);
	}
	for (int i = 0; i < 2; i++)
		if (t->events[i])
			te__cu.cuEventDestroy(t->events[i]);
	if (t->ws)
		te__cuda_mem_put(d, t->ws, TE__CUDA_WORKSPACE_NBYTES, d->stream);
	if (t->out)
		te__cuda_mem_put(d, t->out, t->out_nbytes, d->stream);
	te__cu.cuStreamSynchronize(d->stream);
}

/* 1, or 0 if memory is insufficient */
static int trial_make(struct te__cuda_dev *d, const struct te_k_gemm *g, struct trial *t)
{
	t->out_nbytes = (size_t)(g->m * g->n) * te_dtype_nbytes((enum te_dtype)g->ddtype);
	return te__cuda_mem_try(d, t->out_nbytes, d->stream, &t->out) &&
	       te__cuda_mem_try(d, TE__CUDA_WORKSPACE_NBYTES, d->stream, &t->ws) &&
	       !te__cu.cuStreamSynchronize(d->stream) &&
	       !te__cu.cuStreamCreate(&t->stream, TE__CU_STREAM_NON_BLOCKING) &&
	       !te__cu.cuEventCreate(&t->events[0], TE__CU_EVENT_DEFAULT) &&
	       !te__cu.cuEventCreate(&t->events[1], TE__CU_EVENT_DEFAULT);
}

/* captured, so that device time is measured even if the GEMM is shorter than its launch */
static int trial_record(struct te__cublaslt *lt, struct problem *p, const struct te_k_gemm *g,
			const struct te__lt_algo *algo, const struct trial *t, void **ret_exec)
{
	const size_t nbytes = most_workspace(&p->key);
	const float host[2] = { g->alpha, g->beta };
	/* in device memory any values do */
	const float *const words = p->key.adtype == TE_DTYPE_E2M1 ?
					   (float *)(void *)((char *)t->ws + nbytes) :
					   host;
	void *out = t->out, *ws = t->ws, *graph = NULL;
	int r = te__cu.cuStreamBeginCapture(t->stream, TE__CU_CAPTURE_MODE_THREAD_LOCAL), end;

	if (r)
		return r;
	for (int i = 0; i < TIMED_RUNS && !r; i++)
		r = matmul(lt, p, g, words, algo, out, out, ws, nbytes, t->stream);
	end = te__cu.cuStreamEndCapture(t->stream, &graph);
	if (!r && !end)
		r = te__cu.cuGraphInstantiateWithFlags(ret_exec, graph, 0);
	if (!end)
		te__cu.cuGraphDestroy(graph);
	return r ? r : end;
}

/* milliseconds of all runs, or a negative number if the candidate fails */
static float trial_run(struct te__cublaslt *lt, struct problem *p, const struct te_k_gemm *g,
		       const struct te__lt_algo *algo, const struct trial *t)
{
	void *exec = NULL;
	float ms = -1;

	/* the first launch warms up */
	if (trial_record(lt, p, g, algo, t, &exec) || te__cu.cuGraphLaunch(exec, t->stream) ||
	    te__cu.cuEventRecord(t->events[0], t->stream) ||
	    te__cu.cuGraphLaunch(exec, t->stream) ||
	    te__cu.cuEventRecord(t->events[1], t->stream) ||
	    te__cu.cuEventSynchronize(t->events[1]) ||
	    te__cu.cuEventElapsedTime(&ms, t->events[0], t->events[1]))
		ms = -1;
	if (exec)
		te__cu.cuGraphExecDestroy(exec);
	return ms;
}

/* the fastest of n candidates; -1 if none runs, or there is no memory for trials */
static int fastest(struct te__cuda_dev *d, struct te__cublaslt *lt, struct problem *p,
		   const struct te_k_gemm *g, const struct te__lt_heuristic *h, int n)
{
	struct trial t = { 0 };
	float best_ms = -1;
	int best = -1;

	if (!trial_make(d, g, &t))
		n = 0;
	for (int i = 0; i < n; i++) {
		const float ms = trial_run(lt, p, g, &h[i].algo, &t);

		if (ms >= 0 && (best_ms < 0 || ms < best_ms)) {
			best_ms = ms;
			best = i;
		}
	}
	trial_free(d, &t);
	return best;
}

static int choose(struct te__cuda_dev *d, struct te__cublaslt *lt, struct problem *p,
		  const struct te_k_gemm *g)
{
	const size_t most = most_workspace(&p->key);
	const uint32_t align = (uint32_t)p->key.align;
	/* partial sums are added in FP32, not in D's type */
	const uint32_t reduction = TE__LT_REDUCTION_COMPUTE_TYPE;
	struct te__lt_heuristic h[MAX_TUNE];
	int64_t want = te__param_int(TE_PARAM_GEMM_TUNE);
	void *pref = NULL;
	struct search search = { lt, p };
	int n = 0, measured = 0, best, r, status;

	if (lt->cache[0] && te__gemm_cache_find(lt->cache, &p->key, accept, &search))
		return 0;
	want = want < 1 ? 1 : want > MAX_TUNE ? MAX_TUNE : want;
	r = LT(lt, &p->key, cublasLtMatmulPreferenceCreate, &pref);
	if (!r)
		r = LT(lt, &p->key, cublasLtMatmulPreferenceSetAttribute, pref,
		       TE__LT_PREF_MAX_WORKSPACE_BYTES, &most, sizeof(most));
	if (!r)
		r = LT(lt, &p->key, cublasLtMatmulPreferenceSetAttribute, pref,
		       TE__LT_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction));
	for (int at = TE__LT_PREF_MIN_ALIGNMENT_A_BYTES;
	     !r && at <= TE__LT_PREF_MIN_ALIGNMENT_D_BYTES; at++)
		r = LT(lt, &p->key, cublasLtMatmulPreferenceSetAttribute, pref, at, &align,
		       sizeof(align));
	if (!r) {
		status = lt->api.cublasLtMatmulAlgoGetHeuristic(lt->handle, p->desc, p->a, p->b,
								p->d, p->d, pref, (int)want, h, &n);
		if (!status && !n)
			status = TE__LT_NOT_SUPPORTED;
		p->none = status == TE__LT_NOT_SUPPORTED && p->key.asc >= TE_K_SCALING_1X32;
		if (!p->none)
			r = lt_check(status, "cublasLtMatmulAlgoGetHeuristic", &p->key);
	}
	if (pref)
		lt->api.cublasLtMatmulPreferenceDestroy(pref);
	if (r < 0 || p->none)
		return r;
	if (n > 1)
		measured = fastest(d, lt, p, g, h, n);
	best = measured < 0 ? 0 : measured;
	p->algo = h[best].algo;
	p->workspace_nbytes = h[best].workspace_nbytes;
	if (want > 1 && measured >= 0 && lt->cache[0])
		te__gemm_cache_add(lt->cache, &p->key, &p->algo);
	te__log_debug("GEMM m %" PRId64 " n %" PRId64 " k %" PRId64 ": candidate %d of %d", g->m,
		      g->n, g->k, best, n);
	return 0;
}

/* the lowest bit set in any pointer */
static int32_t align_of(const struct te_k_gemm *g)
{
	uintptr_t all = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | (uintptr_t)g->d |
			(uintptr_t)g->bias | 256;

	return (int32_t)(all & -all);
}

static int find(struct te__cuda_dev *d, const struct te_k_gemm *g, enum use use,
		struct problem **ret)
{
	struct te__cublaslt *lt = d->lt;
	struct problem *p = NULL;
	struct te__gemm_key key;
	int r;

	memset(&key, 0, sizeof(key));
	key.m = g->m;
	key.n = g->n;
	key.k = g->k;
	key.a_t = g->a_t != 0;
	key.b_t = g->b_t != 0;
	key.adtype = g->adtype;
	key.bdtype = g->bdtype;
	key.ddtype = g->ddtype;
	key.bias = g->bias != NULL;
	key.beta = g->beta != 0.0f;
	key.scaled = (g->sa != NULL) | (g->sb != NULL) << 1;
	key.align = align_of(g);
	key.asc = g->asc;
	key.bsc = g->bsc;
	key.part = (int32_t)use;
	key.tf32 = g->adtype == TE_DTYPE_FP32 && use != WORDS && te__param_bool(TE_PARAM_GEMM_TF32);
	for (int i = 0; i < lt->nproblems; i++)
		if (!memcmp(&lt->problem[i].key, &key, sizeof(key))) {
			*ret = &lt->problem[i];
			return point(lt, *ret, g);
		}
	if (TE__GROW(lt->problem, lt->cap, (size_t)lt->nproblems))
		return te__no_memory("cuBLASLt");
	p = &lt->problem[lt->nproblems];
	memset(p, 0, sizeof(*p));
	p->key = key;
	r = check_scaling(lt, &key);
	if (!r)
		r = describe(lt, p);
	if (!r)
		r = point(lt, p, g);
	if (!r)
		r = choose(d, lt, p, g);
	if (r < 0) {
		if (p->desc)
			lt->api.cublasLtMatmulDescDestroy(p->desc);
		if (p->a)
			lt->api.cublasLtMatrixLayoutDestroy(p->a);
		if (p->b)
			lt->api.cublasLtMatrixLayoutDestroy(p->b);
		if (p->d)
			lt->api.cublasLtMatrixLayoutDestroy(p->d);
		return r;
	}
	lt->nproblems++;
	*ret = p;
	return 0;
}

/* cuBLASLt may be opened and tuned while this thread captures on s; under lt_lock */
static int find_relaxed(struct te__cuda_stream *s, const struct te_k_gemm *g, enum use use,
			struct problem **ret)
{
	int mode = TE__CU_CAPTURE_MODE_RELAXED, r;

	te__cu.cuThreadExchangeStreamCaptureMode(&mode);
	r = opened(s->dev);
	if (!r)
		r = find(s->dev, g, use, ret);
	te__cu.cuThreadExchangeStreamCaptureMode(&mode);
	return r;
}

/* words: E2M1's, before its part of the workspace; else NULL */
static int gemm(struct te__cuda_stream *s, const struct te_k_gemm *g, enum use use,
		const float *words)
{
	const float host[2] = { g->alpha, g->beta };
	struct te__cuda_dev *d = s->dev;
	struct problem *p = NULL;
	struct te__gnode what = {
		.kind = TE_NODE_KERNEL,
		.id = TE_K_GEMM,
		.args = g,
		.nbytes = sizeof(*g),
		.fixed = 1,
	};
	void *ws = NULL, *before = NULL;
	int r;

	pthread_mutex_lock(&d->lt_lock);
	r = find_relaxed(s, g, use, &p);
	if (!r && p->workspace_nbytes)
		r = te__cuda_workspace(s, p->workspace_nbytes, &ws);
	if (!r && ws)
		what.scratch = (struct te__range){ (uintptr_t)ws, p->workspace_nbytes, TE__WRITE };
	if (!r && words)
		what.scratch = (struct te__range){ (uintptr_t)words,
						   WORDS_NBYTES + p->workspace_nbytes, TE__WRITE };
	if (!r)
		r = te__cuda_note_before(s, &before);
	if (!r && te__fault_point())
		r = te__fail(-TE_EBLAS, "cublasLtMatmul: injected fault");
	if (!r)
		r = lt_check(matmul(d->lt, p, g, words ? words : host, &p->algo,
				    g->c ? g->c : g->d, g->d, ws, p->workspace_nbytes, s->stream),
			     "cublasLtMatmul", &p->key);
	pthread_mutex_unlock(&d->lt_lock);
	return r < 0 ? r : te__cuda_note(s, &what, before);
}

/*
 * From FP8 to FP32 cuBLASLt accepts a bias in BF16 only. The bias of te_gemm() is FP32, so a kernel
 * adds it afterwards: the result is the same, because D is FP32 and not rounded before.
 */
static int whole(struct te__cuda_stream *s, const struct te_k_gemm *g, const float *words)
{
	const int apart = g->bias && g->ddtype == TE_DTYPE_FP32 && te__is_codes(g->adtype);
	struct te_k_bias_fwd add = { .dtype = g->ddtype };
	struct te_k_gemm plain = *g;
	int r;

	if (apart)
		plain.bias = NULL;
	r = TE__CUDA_IN(s->dev, gemm(s, &plain, WHOLE, words));
	if (r || !apart)
		return r;
	add.x = add.y = g->d;
	add.bias = g->bias;
	add.rows = g->m;
	add.cols = g->n;
	return te__cuda_launch_now(s, &(struct te__launch){ TE_K_BIAS_FWD, &add, sizeof(add) });
}

/*
 * cuBLASLt needs FP8 operands and D with extents n of multiples of 16, and derives the layout of
 * block scales from m and n. Where D has fewer columns than b has rows, or fewer rows than
 * block-scaled a, sums in FP32 with the operands' extents go to the workspace, some rows at a time,
 * and GEMM_FINISH makes D of them.
 */
static int is_in_parts(const struct te_k_gemm *g)
{
	return te__is_fp8(g->adtype) &&
	       (te_k_gemm_b_rows(g) != g->n || (g->asc && te_k_gemm_a_rows(g) != g->m));
}

/* blocks along k */
static int64_t nblocks(const struct te_k_gemm *g)
{
	return (g->k + TE_K_BLOCK - 1) / TE_K_BLOCK;
}

/* rows of a part; 0: the workspace is too small */
static int64_t part_rows(const struct te_k_gemm *g)
{
	const int64_t rows = te_k_gemm_a_rows(g);
	const int64_t unit = g->asc == TE_K_SCALING_128X128 ? TE_K_BLOCK : TE__FP8_EXTENT;
	int64_t fit = (int64_t)(SUMS_NBYTES / sizeof(float)) / te_k_gemm_b_rows(g);

	if (g->asc == TE_K_SCALING_1X128 &&
	    fit > (int64_t)(SCALES_NBYTES / sizeof(float)) / nblocks(g))
		fit = (int64_t)(SCALES_NBYTES / sizeof(float)) / nblocks(g);
	return fit >= rows	? rows :
	       fit >= PART_ROWS ? fit / PART_ROWS * PART_ROWS :
				  fit / unit * unit;
}

/*
 * Rows r to r + n - 1 of the operand a, and their scales. Those of 1x128 blocks are columns of the
 * array of scales: they are copied to scales.
 */
static int part_of(struct te__cuda_stream *s, const struct te_k_gemm *g, int64_t r, int64_t n,
		   float *scales, struct te_k_gemm *ret)
{
	const struct te_k_gemm_finish copy = {
		.sums = g->sa + r,
		.d = scales,
		.m = nblocks(g),
		.n = n,
		.ld = te_k_gemm_a_rows(g),
		.dtype = TE_DTYPE_FP32,
	};

	ret->a = (const char *)g->a + r * g->k;
	ret->m = ret->a_rows = n;
	if (g->asc == TE_K_SCALING_128X128)
		ret->sa = g->sa + te_k_scale_index(g->asc, te_k_gemm_a_rows(g), g->k, r, 0);
	if (g->asc != TE_K_SCALING_1X128 || n == te_k_gemm_a_rows(g))
		return 0;
	ret->sa = scales;
	return te__cuda_launch_now(s, &(struct te__launch){ TE_K_GEMM_FINISH, &copy,
							    sizeof(copy) });
}

static int parts(struct te__cuda_stream *s, const struct te_k_gemm *g)
{
	const int64_t rows = te_k_gemm_a_rows(g), step = part_rows(g);
	const size_t es = te_dtype_nbytes((enum te_dtype)g->ddtype);
	void *const given = s->given;
	const size_t given_at = s->given_at;
	struct te_k_gemm_finish f = {
		.bias = g->bias,
		.n = g->n,
		.ld = te_k_gemm_b_rows(g),
		.beta = g->beta,
		.dtype = g->ddtype,
	};
	struct te_k_gemm part = *g;
	void *ws;
	int r;

	if (step < 1)
		return te__fail(-TE_ESHAPE,
				"te_gemm: n is %" PRId64 ", k %" PRId64 ": too large on a GPU for "
				"FP8 with n, or block-scaled m, that is no multiple of %d", g->n,
				g->k, TE__FP8_EXTENT);
	r = te__cuda_workspace(s, TE__CUDA_WORKSPACE_NBYTES, &ws);
	part.n = f.ld;
	part.c = part.bias = NULL;
	part.d = ws;
	part.beta = 0.0f;
	part.cdtype = part.ddtype = TE_DTYPE_FP32;
	f.sums = ws;
	for (int64_t at = 0; at < g->m && !r; at += step) {
		r = part_of(s, g, at, step < rows - at ? step : rows - at,
			    (float *)(void *)((char *)ws + SUMS_NBYTES), &part);
		f.m = part.m < g->m - at ? part.m : g->m - at;
		f.d = (char *)g->d + (size_t)(at * g->n) * es;
		f.c = g->c ? (const char *)g->c + (size_t)(at * g->n) * es : f.d;
		s->given = ws;
		s->given_at = SUMS_NBYTES + SCALES_NBYTES;
		r = r ? r : TE__CUDA_IN(s->dev, gemm(s, &part, PART, NULL));
		s->given = given;
		s->given_at = given_at;
		if (!r)
			r = te__cuda_launch_now(
				s, &(struct te__launch){ TE_K_GEMM_FINISH, &f, sizeof(f) });
	}
	return r;
}

int te__cublaslt_gemm(struct te__cuda_stream *s, const struct te_k_gemm *g)
{
	return is_in_parts(g) ? parts(s, g) : whole(s, g, NULL);
}

/* ---- MXFP8 and NVFP4 ---- */

/* can a GPU of 10.x or 12.x be asked for it? */
static int is_mx_shape(const struct te_k_gemm *g)
{
	const uintptr_t all = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c |
			      (uintptr_t)g->d | (uintptr_t)g->bias | (uintptr_t)g->sa |
			      (uintptr_t)g->sb;

	return all % 16 == 0 && g->k % MX_K == 0 && g->n % MX_N == 0 &&
	       te_k_gemm_a_rows(g) == g->m && te_k_gemm_b_rows(g) == g->n;
}

/* 1: no, or no such cuBLASLt, or it has no algorithm */
static int lacks_mx(struct te__cuda_stream *s, const struct te_k_gemm *g)
{
	struct problem *p = NULL;
	int r;

	if (te__cublaslt_missing())
		return 1;
	pthread_mutex_lock(&s->dev->lt_lock);
	r = opened(s->dev);
	if (!r && s->dev->lt->version < LT_MX)
		r = 1;
	if (!r)
		r = find_relaxed(s, g, WHOLE, &p);
	if (!r && p->none)
		r = 1;
	pthread_mutex_unlock(&s->dev->lt_lock);
	return r;
}

/* words[0] = alpha * *sa * *sb, words[1] = beta */
static int put_words(struct te__cuda_stream *s, const struct te_k_gemm *g, float *words)
{
	struct te_k_fill beta = { .dst = words + 1, .n = 1, .elem = sizeof(float) };
	const struct te_k_gemm alpha = { .a = g->sa,
					 .b = g->sb,
					 .d = words,
					 .m = 1,
					 .n = 1,
					 .k = 1,
					 .alpha = g->alpha,
					 .adtype = TE_DTYPE_FP32,
					 .bdtype = TE_DTYPE_FP32,
					 .cdtype = TE_DTYPE_FP32,
					 .ddtype = TE_DTYPE_FP32 };
	int r;

	memcpy(&beta.value, &g->beta, sizeof(beta.value));
	r = te__cuda_launch_now(s, &(struct te__launch){ TE_K_FILL, &beta, sizeof(beta) });
	return r ? r : TE__CUDA_IN(s->dev, gemm(s, &alpha, WORDS, NULL));
}

int te__cublaslt_mx(struct te__cuda_stream *s, const struct te_k_gemm *g)
{
	void *const given = s->given;
	const size_t given_at = s->given_at;
	void *ws;
	int r = is_mx_shape(g) ? TE__CUDA_IN(s->dev, lacks_mx(s, g)) : 1;

	if (r || g->adtype != TE_DTYPE_E2M1)
		return r ? r : whole(s, g, NULL);
	r = te__cuda_workspace(s, TE__CUDA_WORKSPACE_NBYTES, &ws);
	if (r)
		return r;
	s->given = ws;
	s->given_at = WORDS_NBYTES;
	r = put_words(s, g, ws);
	s->given_at = WORDS_NBYTES;
	r = r ? r : whole(s, g, ws);
	s->given = given;
	s->given_at = given_at;
	return r;
}
