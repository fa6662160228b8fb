/* rates.c - rates of copies and GEMMs that a device reaches, measured for te_plan_profile(3). */
#define TE_LOG_CATEGORY "core/plan"
#include <string.h>

#include <te/gemm.h>

#include "libtecore/base/private.h"

#include "libtecore/base/splitmix64.h"
#include "libtecore/plan/plan.h"
#include "libtecore/tensor/ctx.h"

#define NREPS 4 /* the fastest one counts */

/* Work that is measured. */
struct work {
	struct te_stream *stream;
	int (*run)(const struct work *w);
	void *dst, *src; /* a copy */
	size_t nbytes;
	struct te_tensor *t[3]; /* a GEMM */
};

static int is_host(const struct te_stream *stream)
{
	return !strcmp(te_ctx_backend(stream->ctx), "host");
}

/* seconds of the fastest run */
static int fastest(const struct work *w, double *ret_s)
{
	struct te_event *from = NULL, *to = NULL;
	double ms, least = 0;
	int r = te_event_create(w->stream->ctx, &from);

	if (!r)
		r = te_event_create(w->stream->ctx, &to);
	/* the first run is not measured: it may try several algorithms, or touch new memory */
	for (int i = 0; i <= NREPS && !r; i++) {
		r = te_event_record(from, w->stream);
		if (!r)
			r = w->run(w);
		if (!r)
			r = te_event_record(to, w->stream);
		if (!r)
			r = te_event_sync(to);
		if (!r)
			r = te_event_elapsed_ms(from, to, &ms);
		if (!r && i && (i == 1 || ms < least))
			least = ms;
	}
	te_event_unref(from);
	te_event_unref(to);
	if (r)
		return r;
	*ret_s = (least > 1e-6 ? least : 1e-6) * 1e-3;
	return 0;
}

static int run_copy(const struct work *w)
{
	return te_copy(w->stream, w->dst, w->src, w->nbytes);
}

int te__rate_copy(struct te_stream *stream, double *ret_rate)
{
	struct work w = { .stream = stream, .run = run_copy };
	void *memory = NULL;
	double s;
	int r;

	/* beyond L2: what a step reads has been evicted by earlier steps */
	w.nbytes = (size_t)(is_host(stream) ? 16 : 64) << 20;
	r = te__mem_get(stream->ctx, 2 * w.nbytes, &memory);
	if (r)
		return r;
	w.src = memory;
	w.dst = (char *)memory + w.nbytes;
	r = te_fill_u32(stream, w.src, 0x3f8ccccd, w.nbytes);
	if (!r)
		r = fastest(&w, &s);
	if (!r)
		*ret_rate = 2.0 * (double)w.nbytes / s;
	te__mem_put(stream->ctx, memory);
	return r;
}

static int run_gemm(const struct work *w)
{
	return te_gemm(w->stream, w->t[0], w->t[1], w->t[2], NULL);
}

/* random signs and fractions of one binade: neither overflow nor the low power of equal values */
static int randomise(struct te_tensor *t)
{
	const size_t nbytes = te_tensor_nbytes(t);
	const enum te_dtype dtype = te_tensor_dtype(t);
	const uint64_t keep = dtype == TE_DTYPE_FP32 ? UINT64_C(0x807fffff807fffff) :
			      dtype == TE_DTYPE_BF16 ? UINT64_C(0x807f807f807f807f) :
						       UINT64_C(0x8787878787878787);
	const uint64_t exponent = dtype == TE_DTYPE_FP32 ? UINT64_C(0x3f0000003f000000) :
				  dtype == TE_DTYPE_BF16 ? UINT64_C(0x3f003f003f003f00) :
							   UINT64_C(0x3838383838383838);
	uint64_t *x = te__malloc(nbytes), state = 1;
	int r;

	if (!x)
		return te__no_memory("te_plan_profile");
	for (size_t i = 0; i < nbytes / sizeof(*x); i++)
		x[i] = (te__splitmix64(&state) & keep) | exponent;
	r = te_tensor_write(t, x, nbytes);
	te__free(x);
	return r;
}

int te__rate_gemm(struct te_stream *stream, enum te_dtype dtype, double *ret_rate)
{
	const int64_t n = is_host(stream) ? 256 : 4096, shape[2] = { n, n };
	const enum te_dtype d = dtype == TE_DTYPE_FP32 ? TE_DTYPE_FP32 : TE_DTYPE_BF16;
	struct work w = { .stream = stream, .run = run_gemm };
	double s;
	int r = 0;

	for (int i = 0; i < 3 && !r; i++) {
		r = te_tensor_create(stream->ctx, i < 2 ? dtype : d, 2, shape, NULL, &w.t[i]);
		if (!r && i < 2)
			r = randomise(w.t[i]);
	}
	if (!r)
		r = fastest(&w, &s);
	if (!r)
		*ret_rate = 2.0 * (double)n * (double)n * (double)n / s;
	for (int i = 0; i < 3; i++)
		te_tensor_unref(w.t[i]);
	return r;
}
