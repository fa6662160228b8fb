/* comm_gemm.c - te_perftest comm --gemm: BF16 GEMMs on a separate stream. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <te/gemm.h>
#include <te/tensor.h>

#include "comm.h"
#include "tools/lib/say.h"

#define GEMMS_MOST 1000

struct comm_gemm {
	struct bench *b;
	struct te_stream *stream;
	struct te_event *from, *to;
	struct te_tensor *a, *w, *d;
	int n; /* GEMMs of a sample */
};

static int queue(struct comm_gemm *g)
{
	int r = te_event_record(g->from, g->stream);

	for (int i = 0; i < g->n && r >= 0; i++)
		r = te_gemm(g->stream, g->a, g->w, g->d, NULL);
	return r < 0 ? r : te_event_record(g->to, g->stream);
}

int comm_gemm_queue(struct comm_gemm *g, struct te_event *after)
{
	int r = te_event_wait(after, g->stream);

	return r < 0 ? r : queue(g);
}

int comm_gemm_us(struct comm_gemm *g, double *ret_us)
{
	double ms;
	int r = te_stream_sync(g->stream);

	if (r >= 0)
		r = te_event_elapsed_ms(g->from, g->to, &ms);
	if (r >= 0)
		*ret_us = ms * 1e3 / g->n;
	return r;
}

/* the fastest of some: others may have chosen or loaded the kernel */
int comm_gemm_alone(struct comm_gemm *g, double *ret_us)
{
	double us;
	int r = 0;

	*ret_us = INFINITY;
	for (int i = 0; i < 5 && r >= 0; i++) {
		r = queue(g);
		if (r >= 0)
			r = comm_gemm_us(g, &us);
		if (r >= 0)
			*ret_us = fmin(*ret_us, us);
	}
	return r < 0 ? say_te(r, "--gemm") : STATUS_OK;
}

static int create(struct comm_gemm *g, int64_t n)
{
	const int64_t shape[2] = { n, n };
	struct te_tensor **const t[] = { &g->a, &g->w, &g->d };
	int r = te_stream_create(g->b->ctx, &g->stream);

	if (r >= 0)
		r = te_event_create(g->b->ctx, &g->from);
	if (r >= 0)
		r = te_event_create(g->b->ctx, &g->to);
	for (int i = 0; i < 3 && r >= 0; i++) {
		r = te_tensor_create(g->b->ctx, TE_DTYPE_BF16, 2, shape, NULL, t[i]);
		if (r >= 0) /* 0x3c3c is 0.0115 */
			r = te_fill(g->b->stream, te_tensor_data(*t[i]), 0x3c,
				    (size_t)(2 * n * n));
	}
	return bench_idle(g->b, r);
}

int comm_gemm_open(struct bench *b, double us, struct comm_gemm **ret_g)
{
	struct comm_gemm *g = calloc(1, sizeof(*g));
	double one;
	int r;

	*ret_g = g;
	if (!g)
		return say_failed("--gemm: out of memory");
	g->b = b;
	g->n = 1;
	r = create(g, strcmp(te_ctx_backend(b->ctx), "host") ? 4096 : 128);
	if (r < 0)
		return say_te(r, "--gemm");
	r = comm_gemm_alone(g, &one);
	if (!r)
		g->n = (int)fmax(1, fmin(GEMMS_MOST, ceil(us / one)));
	return r;
}

void comm_gemm_close(struct comm_gemm *g)
{
	if (!g)
		return;
	te_tensor_unref(g->a);
	te_tensor_unref(g->w);
	te_tensor_unref(g->d);
	te_event_unref(g->from);
	te_event_unref(g->to);
	te_stream_unref(g->stream);
	free(g);
}
