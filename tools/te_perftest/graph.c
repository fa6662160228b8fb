/*
 * graph.c - te_perftest graph: CPU and device time of recording and replaying independent small
 * nodes, compared with queueing the same work each time.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/capture.h>
#include <te/tensor.h>

#include "replay.h"
#include "tools/lib/say.h"

#define POISON 0xa5

static struct {
	struct option_list nodes;
	uint32_t kind; /* bit i: i of enum node_kind */
	uint32_t edges;
	int64_t nbytes, rebind;
} opt;

static const struct option_field options[] = {
	{ "nodes", OPTION_LIST, AT(nodes), "1,10,100,1000", 1, 100000, 0, "N,...",
	  "nodes of a graph" },
	{ "kind", OPTION_WORDS, AT(kind), "kernel,fill,copy", 0, 0, 0, "kernel|fill|copy",
	  "calls that the nodes record: te_cast, te_copy or te_fill_u32" },
	{ "bytes", OPTION_COUNT, AT(nbytes), "4K", 4, 1 << 30, 0, "N",
	  "bytes that a node reads or fills" },
	{ "rebind", OPTION_COUNT, AT(rebind), "8", 1, 100000, 0, "N",
	  "maximum nodes whose output is rebound" },
	EDGES_OPTION,
	{ 0 },
};

/* the choices of --kind, in their order */
enum node_kind { KERNEL, FILL, COPY, NKINDS };

/* node i reads slot i of src and writes slot i of dst */
struct graph {
	struct bench *b;
	enum node_kind kind;
	int64_t n;
	size_t nbytes, stride; /* bytes of a slot; distance of slots */
	uint8_t *host;	       /* n slots: what src holds */
	uint8_t *want;	       /* expected dst */
	uint8_t *src, *dst;    /* on the device */
	/* dst has nslots more than n: the first nslots nodes write to these after a rebind */
	int nslots, rebound;
	int32_t *slot;
	void **to;
	struct te_tensor **x, **y;
	struct replay replay;
};

static const char *const kind_names[NKINDS] = { "kernel", "fill", "copy" };

static uint32_t fill_word(int64_t i)
{
	return (uint32_t)i * 2654435761u + 1;
}

/* output of node i of the recording */
static size_t out_slot(const struct graph *g, int64_t i)
{
	return (size_t)(g->rebound && i < g->nslots ? g->n + i : i);
}

static size_t dst_nbytes(const struct graph *g)
{
	return (size_t)(g->n + g->nslots) * g->stride;
}

/* all nodes, as calls of the library */
static int queue_all(void *arg)
{
	struct graph *g = arg;
	struct te_stream *s = g->b->stream;
	int r = 0;

	for (int64_t i = 0; i < g->n && r >= 0; i++) {
		size_t at = (size_t)i * g->stride;

		switch (g->kind) {
		case KERNEL:
			r = te_cast(s, g->x[i], g->y[i]);
			break;
		case FILL:
			r = te_fill_u32(s, g->dst + at, fill_word(i), g->nbytes);
			break;
		default:
			r = te_copy(s, g->dst + at, g->src + at, g->nbytes);
		}
	}
	return r;
}

/* the reference: contents of dst after all nodes ran, over poison */
static void model(struct graph *g)
{
	memset(g->want, POISON, dst_nbytes(g));
	for (int64_t i = 0; i < g->n; i++) {
		const uint8_t *src = g->host + (size_t)i * g->stride;
		uint8_t *want = g->want + out_slot(g, i) * g->stride;
		const uint32_t word = fill_word(i);
		size_t k;

		for (k = 0; k < g->nbytes; k += 4) {
			uint16_t half;
			float x;

			memcpy(&x, src + k, 4);
			half = te_bf16_encode(x);
			if (g->kind == KERNEL)
				memcpy(want + k / 2, &half, 2);
			else
				memcpy(want + k, g->kind == FILL ? (const void *)&word : &x, 4);
		}
	}
}

/* finds the bindings of the slots in the recording */
static int find_slots(struct graph *g)
{
	int r = 0;

	g->rebound = 0;
	for (int i = 0; i < g->nslots && r >= 0; i++) {
		r = te_recording_binding(g->replay.rec, g->dst + (size_t)i * g->stride, g->stride,
				      NULL);
		g->slot[i] = r;
	}
	return r < 0 ? r : 0;
}

/* rebinds to the other memory */
static int rebind(struct graph *g)
{
	g->rebound = !g->rebound;
	for (int i = 0; i < g->nslots; i++)
		g->to[i] = g->dst + out_slot(g, i) * g->stride;
	return te_recording_rebind(g->replay.rec, g->nslots, g->slot, g->to);
}

static int rebind_us(void *arg, double *ret_us)
{
	struct graph *g = arg;
	double t[3];
	int r = te_stream_sync(g->b->stream);

	t[0] = now_s();
	if (r >= 0)
		r = rebind(g);
	t[1] = now_s();
	if (r >= 0)
		r = replay_launch(&g->replay);
	t[2] = now_s();
	for (int i = 0; i < 2; i++)
		ret_us[i] = (t[i + 1] - t[i]) * 1e6;
	return bench_idle(g->b, r);
}

static int verify(struct graph *g, const char *how, bench_work work, void *arg)
{
	size_t nbytes = dst_nbytes(g);
	uint8_t *got = malloc(nbytes);
	char what[64];
	int r = got ? te_fill(g->b->stream, g->dst, POISON, nbytes) : -ENOMEM;

	if (r >= 0)
		r = work(arg);
	if (r >= 0)
		r = te_copy(g->b->stream, got, g->dst, nbytes);
	/* the stream writes got until it is idle */
	r = bench_idle(g->b, r);
	if (r < 0) {
		r = say_te(r, "verify");
	} else {
		model(g);
		snprintf(what, sizeof(what), "%lld nodes of kind %s, %s", (long long)g->n,
			 kind_names[g->kind], how);
		r = bench_equal(what, got, g->want, nbytes);
	}
	free(got);
	return r;
}

static void graph_free(struct graph *g)
{
	te_stream_sync(g->b->stream);
	replay_free(&g->replay);
	for (int64_t i = 0; i < g->n; i++) {
		if (g->x)
			te_tensor_unref(g->x[i]);
		if (g->y)
			te_tensor_unref(g->y[i]);
	}
	free(g->slot);
	free(g->to);
	free(g->x);
	free(g->y);
	if (g->src)
		te_mem_free(g->b->stream, g->src);
	if (g->dst)
		te_mem_free(g->b->stream, g->dst);
	free(g->host);
	free(g->want);
}

static int graph_alloc(struct graph *g)
{
	struct bench *b = g->b;
	size_t n = (size_t)g->n;
	int64_t nelems = (int64_t)g->nbytes / 4;
	int r;

	g->nslots = (int)(opt.rebind < g->n ? opt.rebind : g->n);
	g->slot = calloc((size_t)g->nslots + 1, sizeof(*g->slot));
	g->to = calloc((size_t)g->nslots + 1, sizeof(*g->to));
	g->stride = (g->nbytes + 255) & ~(size_t)255;
	g->host = malloc(n * g->stride);
	g->want = malloc(dst_nbytes(g));
	g->x = calloc(n, sizeof(*g->x));
	g->y = calloc(n, sizeof(*g->y));
	if (!g->host || !g->want || !g->x || !g->y || !g->slot || !g->to)
		return say_bad("--nodes, --bytes: no memory for %zu times %zu bytes", n, g->stride);
	bench_normal(b, (float *)g->host, n * g->stride / 4);
	r = te_mem_alloc(b->stream, n * g->stride, (void **)&g->src);
	if (r >= 0)
		r = te_mem_alloc(b->stream, dst_nbytes(g), (void **)&g->dst);
	if (r >= 0)
		r = te_copy(b->stream, g->src, g->host, n * g->stride);
	for (size_t i = 0; i < n && r >= 0; i++) {
		r = te_tensor_wrap(b->ctx, TE_DTYPE_FP32, 1, &nelems, g->src + i * g->stride, NULL,
				   NULL, &g->x[i]);
		if (r >= 0)
			r = te_tensor_wrap(b->ctx, TE_DTYPE_BF16, 1, &nelems,
					   g->dst + i * g->stride, NULL, NULL, &g->y[i]);
	}
	if (r >= 0)
		r = te_stream_sync(b->stream);
	return r < 0 ? say_te(r, "graph") : STATUS_OK;
}

/* runs the work once in each way */
static int verify_all(struct graph *g)
{
	struct replay *p = &g->replay;
	int code, r = verify(g, "queued", queue_all, g);

	if (r)
		return r;
	code = replay_record(p);
	if (code >= 0)
		r = verify(g, "replayed", replay_launch, p);
	if (!r && code >= 0)
		code = find_slots(g);
	if (!r && code >= 0)
		code = rebind(g);
	if (!r && code >= 0)
		r = verify(g, "replayed and rebound", replay_launch, p);
	if (!r && code >= 0)
		code = rebind(g);
	if (!r && code >= 0)
		code = replay_update(p);
	if (!r && code >= 0)
		r = verify(g, "recorded again", replay_launch, p);
	return code < 0 ? say_te(code, "verify") : r;
}

static int measure(struct graph *g, int rows_left)
{
	struct replay *p = &g->replay;
	struct bench *b = g->b;
	struct stats us[2];
	int r, code;

	if (!bench_row(b, rows_left, REPLAY_SERIES + 1))
		return STATUS_OK;
	bench_text(b, "kind", kind_names[g->kind]);
	p->b = b;
	p->queue = queue_all;
	p->arg = g;
	replay_row(p);
	bench_int(b, "node_bytes", (int64_t)g->nbytes);
	r = graph_alloc(g);
	if (!r && b->o->verify)
		r = verify_all(g);
	if (!r)
		r = replay_measure(p);
	code = r ? 0 : find_slots(g);
	if (code < 0)
		r = say_te(code, "graph");
	if (!r)
		r = bench_series(b, rebind_us, g, 2, us);
	if (r)
		return r;
	bench_int(b, "rebound_slots", g->nslots);
	bench_stats(b, "rebind_us", &us[0]);
	bench_stats(b, "rebound_launch_us", &us[1]);
	return STATUS_OK;
}

static int run(struct bench *b)
{
	int rows = __builtin_popcount(opt.kind) * opt.nodes.n * __builtin_popcount(opt.edges);
	int r = STATUS_OK;

	if (opt.nbytes % 4)
		return say_bad("--bytes: %lld is no multiple of 4", (long long)opt.nbytes);
	for (int kind = 0; kind < NKINDS; kind++) {
		if (!(opt.kind & 1u << kind))
			continue;
		for (int i = 0; i < opt.nodes.n * REPLAY_EDGES && !r; i++) {
			struct graph g = { .b = b,
					   .kind = (enum node_kind)kind,
					   .n = opt.nodes.v[i / REPLAY_EDGES],
					   .nbytes = (size_t)opt.nbytes,
					   .replay.edges = (uint32_t)i % REPLAY_EDGES };

			if (!(opt.edges & 1u << g.replay.edges))
				continue;
			r = measure(&g, rows--);
			graph_free(&g);
		}
	}
	return r;
}

const struct test test_graph = {
	.name = "graph",
	.text = "capture and replay of small nodes, compared with queueing them",
	.options = options,
	.values = &opt,
	.columns = replay_columns,
	.run = run,
};
