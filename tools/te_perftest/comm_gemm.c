/* comm_gemm.c - te_perftest comm --gemm: BF16 GEMMs on a separate stream. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "call.h"
#include "comm.h"
#include "tools/lib/say.h"

#define GEMMS_MOST 1000

struct comm_gemm {
	struct bench b; /* with the stream */
	struct te_stream *stream;
	struct te_event *from, *to;
	struct call gemm;
	int n; /* GEMMs of a sample */
};

static int queue(struct comm_gemm *g)
{
	int r = te_event_record(g->from, g->stream);

	for (int i = 0; i < g->n && r >= 0; i++)
		r = call_work(&g->gemm);
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

int comm_gemm_open(struct bench *b, double us, struct comm_gemm **ret_g)
{
	struct comm_gemm *g = calloc(1, sizeof(*g));
	double one;
	int r;

	*ret_g = g;
	if (!g)
		return say_failed("--gemm: out of memory");
	g->b = *b;
	g->n = 1;
	r = te_stream_create(b->ctx, &g->stream);
	if (r >= 0)
		r = te_event_create(b->ctx, &g->from);
	if (r >= 0)
		r = te_event_create(b->ctx, &g->to);
	if (r < 0)
		return say_te(r, "--gemm");
	g->b.stream = g->stream;
	r = gemm_open(&g->gemm, &g->b, TE_DTYPE_BF16, bench_extent(b, 0, 128, 4096));
	if (!r)
		r = comm_gemm_alone(g, &one);
	if (!r)
		g->n = (int)fmax(1, fmin(GEMMS_MOST, ceil(us / one)));
	return r;
}

void comm_gemm_close(struct comm_gemm *g)
{
	if (!g)
		return;
	if (g->gemm.b)
		call_close(&g->gemm);
	te_event_unref(g->from);
	te_event_unref(g->to);
	te_stream_unref(g->stream);
	free(g);
}
