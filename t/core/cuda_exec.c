/*
 * t/core/cuda_exec.c - captured nodes, updates and patches of the cuda backend, with a driver
 * that is written here: it captures, lists nodes in no order, and runs graphs on the CPU.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>

#include "libtecore/backend/cuda_graph.h"
#include "tt_ctx.h"

#define FAKE_UNKNOWN 999
#define MAX_DEPS 8
#define MAX_NODES 64

/* a node; a handle of one is its address */
struct node {
	int type, ndeps, graph;
	struct node *dep[MAX_DEPS];
	int early[MAX_DEPS]; /* by a programmatic edge */
	uint64_t dst, src;
	size_t n;
	unsigned value, elem;
	void (*fn)(void *arg);
	void *arg;
};

struct graph {
	int number, n;
	struct node *node[MAX_NODES]; /* as they were captured */
};

struct exec {
	const struct graph *from;
	int number, n;
	struct node node[MAX_NODES];
};

struct place {
	struct graph *graph; /* NULL: no capture */
	int ndeps;
	struct node *dep[MAX_DEPS];
};

struct event {
	struct place at;
	int recorded;
};

static struct {
	int graphs, execs, events; /* alive */
	int made;		   /* graphs ever */
	int pending;		   /* 1: recorded events are not reached */
	int cannot_update;
	int fail_set; /* the set of parameters that fails, from 1; 0: none */
	int nsets;
} fake;

static int handle;

/* an entry that no test reaches fails */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TE__CU(name, version, args)  \
	static int no_##name args    \
	{                            \
		return FAKE_UNKNOWN; \
	}
#include "libtecore/backend/cuda_syms.def"
#undef TE__CU

static int fake_cuInit(unsigned flags)
{
	return 0;
}

static int fake_cuGetErrorName(int result, const char **ret_name)
{
	*ret_name = "CUDA_ERROR_FAKE";
	return 0;
}

static int fake_cuCtxPushCurrent(void *ctx)
{
	return 0;
}

static int fake_cuCtxPopCurrent(void **ret_ctx)
{
	*ret_ctx = &handle;
	return 0;
}

static int fake_cuThreadExchangeStreamCaptureMode(int *mode)
{
	return 0;
}

static int fake_cuStreamIsCapturing(void *stream, int *ret_status)
{
	*ret_status = ((struct place *)stream)->graph ? TE__CU_CAPTURE_STATUS_ACTIVE :
							TE__CU_CAPTURE_STATUS_NONE;
	return 0;
}

static int fake_cuStreamBeginCapture(void *stream, int mode)
{
	struct place *s = stream;

	s->graph = calloc(1, sizeof(*s->graph));
	s->graph->number = ++fake.made;
	s->ndeps = 0;
	fake.graphs++;
	return 0;
}

static int fake_cuStreamEndCapture(void *stream, void **ret_graph)
{
	struct place *s = stream;

	*ret_graph = s->graph;
	s->graph = NULL;
	return 0;
}

static int fake_cuStreamGetCaptureInfo(void *stream, int *ret_status, uint64_t *ret_id,
				       void **ret_graph, void *const **ret_deps,
				       const struct te__cu_edge_data **ret_data, size_t *ret_ndeps)
{
	struct place *s = stream;

	fake_cuStreamIsCapturing(s, ret_status);
	if (!s->graph)
		return 0;
	*ret_id = (uint64_t)s->graph->number;
	if (ret_deps) {
		*ret_deps = (void *const *)s->dep;
		*ret_ndeps = (size_t)s->ndeps;
	}
	return 0;
}

static void run(const struct node *n)
{
	if (n->type == TE__CU_NODE_MEMCPY)
		memcpy((void *)(uintptr_t)n->dst, (void *)(uintptr_t)n->src, n->n);
	if (n->type == TE__CU_NODE_HOST)
		n->fn(n->arg);
	for (size_t i = 0;
	     (n->type == TE__CU_NODE_MEMSET || n->type == TE__CU_NODE_KERNEL) && i < n->n; i++)
		memcpy((char *)(uintptr_t)n->dst + i * n->elem, &n->value, n->elem);
}

/* on a stream: a node of its capture, or done now */
static int queue(void *stream, struct node what)
{
	struct place *s = stream;
	struct node *n;

	if (!s->graph) {
		run(&what);
		return 0;
	}
	n = malloc(sizeof(*n));
	*n = what;
	n->graph = s->graph->number;
	n->ndeps = s->ndeps;
	memcpy(n->dep, s->dep, sizeof(n->dep));
	s->graph->node[s->graph->n++] = n;
	s->ndeps = 1;
	s->dep[0] = n;
	return 0;
}

static int fake_cuMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, void *stream)
{
	return queue(
		stream,
		(struct node){ .type = TE__CU_NODE_MEMCPY, .dst = dst, .src = src, .n = nbytes });
}

static int fake_cuMemsetD8Async(uint64_t dst, unsigned char value, size_t n, void *stream)
{
	return queue(stream, (struct node){ .type = TE__CU_NODE_MEMSET,
					    .dst = dst,
					    .value = value,
					    .elem = 1,
					    .n = n });
}

static int fake_cuLaunchHostFunc(void *stream, void (*fn)(void *arg), void *arg)
{
	return queue(stream, (struct node){ .type = TE__CU_NODE_HOST, .fn = fn, .arg = arg });
}

static int fake_cuEventCreate(void **ret_event, unsigned flags)
{
	*ret_event = calloc(1, sizeof(struct event));
	fake.events++;
	return 0;
}

static int fake_cuEventDestroy(void *event)
{
	free(event);
	fake.events--;
	return 0;
}

static int fake_cuEventRecord(void *event, void *stream)
{
	((struct event *)event)->at = *(struct place *)stream;
	((struct event *)event)->recorded = 1;
	return 0;
}

static int fake_cuEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
	ck_assert_uint_eq(flags, TE__CU_EVENT_RECORD_EXTERNAL);
	return queue(stream, (struct node){ .type = TE__CU_NODE_EVENT_RECORD });
}

static int fake_cuEventQuery(void *event)
{
	return ((struct event *)event)->recorded && fake.pending ? TE__CU_ERROR_NOT_READY : 0;
}

static int fake_cuEventSynchronize(void *event)
{
	fake.pending = 0;
	return 0;
}

static int fake_cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	const struct place *from = &((struct event *)event)->at;
	struct place *s = stream;

	if (!s->graph)
		s->ndeps = 0;
	s->graph = from->graph;
	for (int i = 0; i < from->ndeps; i++)
		s->dep[s->ndeps++] = from->dep[i];
	return 0;
}

static int fake_cuGraphGetNodes(void *graph, void **ret_nodes, size_t *inout_n)
{
	const struct graph *g = graph;

	/* backwards: no order is promised */
	for (int i = 0; ret_nodes && i < g->n; i++)
		ret_nodes[g->n - 1 - i] = g->node[i];
	*inout_n = (size_t)g->n;
	return 0;
}

static int fake_cuGraphGetEdges(void *graph, void **ret_from, void **ret_to,
				struct te__cu_edge_data *ret_data, size_t *inout_n)
{
	const struct graph *g = graph;
	size_t n = 0;

	for (int i = g->n; i-- > 0;)
		for (int k = g->node[i]->ndeps; k-- > 0; n++)
			if (ret_from) {
				ret_from[n] = g->node[i]->dep[k];
				ret_to[n] = g->node[i];
			}
	*inout_n = n;
	return 0;
}

static int fake_cuGraphNodeGetType(void *node, int *ret_type)
{
	*ret_type = ((struct node *)node)->type;
	return 0;
}

static int fake_cuGraphDestroy(void *graph)
{
	struct graph *g = graph;

	for (int i = 0; i < g->n; i++)
		free(g->node[i]);
	free(g);
	fake.graphs--;
	return 0;
}

static void exec_fill(struct exec *e, const struct graph *g)
{
	e->n = g->n;
	for (int i = 0; i < g->n; i++)
		e->node[i] = *g->node[i];
}

static int fake_cuGraphInstantiateWithFlags(void **ret_exec, void *graph, unsigned long long flags)
{
	struct exec *e = calloc(1, sizeof(*e));

	e->from = graph;
	e->number = e->from->number;
	exec_fill(e, graph);
	*ret_exec = e;
	fake.execs++;
	return 0;
}

static int fake_cuGraphUpload(void *exec, void *stream)
{
	return 0;
}

static int fake_cuGraphExecUpdate(void *exec, void *graph, struct te__cu_update_result *ret_result)
{
	if (fake.cannot_update)
		return TE__CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	exec_fill(exec, graph);
	return 0;
}

static int fake_cuGraphLaunch(void *exec, void *stream)
{
	const struct exec *e = exec;

	for (int i = 0; i < e->n; i++)
		run(&e->node[i]);
	return 0;
}

static int fake_cuGraphExecDestroy(void *exec)
{
	free(exec);
	fake.execs--;
	return 0;
}

/* by the node of the graph that the executable was made from, which must be there */
static struct node *set(struct exec *e, const struct node *n)
{
	if (++fake.nsets == fake.fail_set)
		return NULL;
	ck_assert_int_eq(n->graph, e->number);
	for (int i = 0; i < e->from->n; i++)
		if (e->from->node[i] == n)
			return &e->node[i];
	ck_abort_msg("a node of another graph");
	return NULL;
}

static int fake_cuGraphMemcpyNodeGetParams(void *node, struct te__cu_memcpy_params *ret_params)
{
	const struct node *n = node;

	/* the host side is the one that a test writes to */
	*ret_params = (struct te__cu_memcpy_params){
		.src = { .type = 2, .dev = n->src, .x = 0, .pitch = n->n },
		.dst = { .type = TE__CU_MEMORYTYPE_HOST, .host = (void *)(uintptr_t)n->dst },
		.width = n->n,
		.height = 1,
		.depth = 1,
	};
	return 0;
}

static int fake_cuGraphExecMemcpyNodeSetParams(void *exec, void *node,
					       const struct te__cu_memcpy_params *p, void *ctx)
{
	struct node *n = set(exec, node);

	if (!n)
		return TE__CU_ERROR_INVALID_VALUE;
	ck_assert_uint_eq(p->height * p->depth, 1);
	n->src = p->src.dev;
	n->dst = (uintptr_t)p->dst.host;
	n->n = p->width;
	return 0;
}

static int fake_cuGraphMemsetNodeGetParams(void *node, struct te__cu_memset_params *ret_params)
{
	const struct node *n = node;

	*ret_params = (struct te__cu_memset_params){
		.dst = n->dst,
		.value = n->value,
		.elem = n->elem,
		.width = n->n,
		.height = 1,
	};
	return 0;
}

/* the only function there is: te_k_fill */
static struct node fill_node(void **params)
{
	const struct te_k_fill *f = params[0];

	return (struct node){ .type = TE__CU_NODE_KERNEL,
			      .dst = (uintptr_t)f->dst,
			      .value = f->value,
			      .elem = (unsigned)f->elem,
			      .n = (size_t)f->n };
}

static int fake_cuLaunchKernelEx(const struct te__cu_launch_config *config, void *func, void **args,
				 void **extra)
{
	ck_assert_ptr_eq(func, &handle);
	return queue(config->stream, fill_node(args));
}

static int fake_cuGraphExecKernelNodeSetParams(void *exec, void *node,
					       const struct te__cu_kernel_params *p)
{
	struct node *n = set(exec, node), to;

	if (!n)
		return TE__CU_ERROR_INVALID_VALUE;
	ck_assert_ptr_eq(p->func, &handle);
	to = fill_node(p->params);
	n->dst = to.dst;
	n->value = to.value;
	n->elem = to.elem;
	n->n = to.n;
	return 0;
}

static int graph_add(void *graph, struct node what, void **ret_node)
{
	struct graph *g = graph;
	struct node *n = malloc(sizeof(*n));

	*n = what;
	n->graph = g->number;
	g->node[g->n++] = n;
	*ret_node = n;
	return 0;
}

static int fake_cuGraphAddKernelNode(void **ret_node, void *graph, void *const *deps, size_t ndeps,
				     const struct te__cu_kernel_params *p)
{
	ck_assert_uint_eq(ndeps, 0);
	return graph_add(graph, fill_node(p->params), ret_node);
}

static int fake_cuGraphDestroyNode(void *node)
{
	struct node *n = node;

	/* its edges are gone by then; its memory goes with the graph */
	ck_assert_int_eq(n->ndeps, 0);
	n->type = TE__CU_NODE_EMPTY;
	return 0;
}

/* as driver 580 does it: the first edge's data are those of all */
static int fake_cuGraphAddDependencies(void *graph, void *const *from, void *const *to,
				       const struct te__cu_edge_data *data, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct node *node = to[i];

		ck_assert_int_eq(memcmp(&data[i], &data[0], sizeof(*data)), 0);
		node->early[node->ndeps] = data[0].type == TE__CU_EDGE_PROGRAMMATIC;
		node->dep[node->ndeps++] = from[i];
	}
	return 0;
}

static int fake_cuGraphRemoveDependencies(void *graph, void *const *from, void *const *to,
					  const struct te__cu_edge_data *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((struct node *)to[i])->ndeps = 0;
	return 0;
}
#pragma GCC diagnostic pop

/* ---- fixture: a device and two streams of it, without all that opening one needs ---- */

static const struct te__backend_ops *const ops = &te__backend_cuda;
static struct te__cuda_dev dev;
static struct te__cuda_func fill_func = { "te_k_fill", &handle };
static struct place place[2];
static struct te__cuda_stream a, b;
static int64_t live;

static void setup(void)
{
	struct te__cuda_driver d = {
#define TE__CU(name, version, args) .name = no_##name,
#include "libtecore/backend/cuda_syms.def"
#undef TE__CU
	};

#define HAVE(name) d.name = fake_##name
	HAVE(cuInit);
	HAVE(cuGetErrorName);
	HAVE(cuCtxPushCurrent);
	HAVE(cuCtxPopCurrent);
	HAVE(cuThreadExchangeStreamCaptureMode);
	HAVE(cuStreamIsCapturing);
	HAVE(cuStreamBeginCapture);
	HAVE(cuStreamEndCapture);
	HAVE(cuStreamGetCaptureInfo);
	HAVE(cuMemcpyAsync);
	HAVE(cuMemsetD8Async);
	HAVE(cuLaunchHostFunc);
	HAVE(cuEventCreate);
	HAVE(cuEventDestroy);
	HAVE(cuEventRecord);
	HAVE(cuEventRecordWithFlags);
	HAVE(cuEventQuery);
	HAVE(cuEventSynchronize);
	HAVE(cuStreamWaitEvent);
	HAVE(cuGraphGetNodes);
	HAVE(cuGraphGetEdges);
	HAVE(cuGraphNodeGetType);
	HAVE(cuGraphDestroy);
	HAVE(cuGraphInstantiateWithFlags);
	HAVE(cuGraphUpload);
	HAVE(cuGraphExecUpdate);
	HAVE(cuGraphLaunch);
	HAVE(cuGraphExecDestroy);
	HAVE(cuGraphMemcpyNodeGetParams);
	HAVE(cuGraphExecMemcpyNodeSetParams);
	HAVE(cuGraphMemsetNodeGetParams);
	HAVE(cuLaunchKernelEx);
	HAVE(cuGraphExecKernelNodeSetParams);
	HAVE(cuGraphAddKernelNode);
	HAVE(cuGraphDestroyNode);
	HAVE(cuGraphAddDependencies);
	HAVE(cuGraphRemoveDependencies);
#undef HAVE
	memset(&fake, 0, sizeof(fake));
	memset(&dev, 0, sizeof(dev));
	memset(place, 0, sizeof(place));
	te__cuda_driver_fake(&d);
	dev.ctx = &handle;
	dev.stream = &handle;
	dev.funcs = &fill_func;
	dev.nfuncs = 1;
	pthread_mutex_init(&dev.lock, NULL);
	pthread_mutex_init(&dev.lt_lock, NULL);
	a = (struct te__cuda_stream){ .dev = &dev, .stream = &place[0] };
	b = (struct te__cuda_stream){ .dev = &dev, .stream = &place[1] };
	te_error_clear();
	live = te__alloc_live();
}

static void teardown(void)
{
	ck_assert_int_eq(fake.graphs, 0);
	ck_assert_int_eq(fake.execs, 0);
	ck_assert_int_eq(fake.events, 0);
	ck_assert_uint_eq(dev.ncaptures, 0);
	ck_assert_int_eq(te__alloc_live(), live);
	pthread_mutex_destroy(&dev.lt_lock);
	pthread_mutex_destroy(&dev.lock);
}

static struct te__gnode node(void *graph, uint64_t index)
{
	struct te__gnode n;

	ops->graph_node(graph, index, &n);
	return n;
}

static unsigned char x[64], y[64], z[64];

static void nothing(void *arg)
{
	(void)arg;
}

/* ---- nodes ---- */

START_TEST(numbers_nodes_as_they_were_captured)
{
	static const struct {
		enum te_node_kind kind;
		uint64_t nbytes;
		uint32_t ndeps, dep[2];
	} want[] = {
		{ TE_NODE_FILL, 60, 0, { 0 } },	  { TE_NODE_COPY, 50, 1, { 0 } },
		{ TE_NODE_HOST, 5, 1, { 0 } },	  { TE_NODE_EVENT, 0, 1, { 2 } },
		{ TE_NODE_FILL, 9, 2, { 1, 3 } },
	};
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	void *graph, *fork, *join, *out;

	DO(ops->event_create(&dev, &fork));
	DO(ops->event_create(&dev, &join));
	DO(ops->event_create(&dev, &out));
	DO(ops->capture_begin(&a));
	DO(ops->fill8(&a, x, 1, 60));
	DO(ops->event_record(fork, &a));
	DO(ops->event_wait(fork, &b));
	DO(ops->copy(&a, y, x, 50));
	DO(ops->host_call(&b, nothing, "args", 5));
	DO(ops->event_record_external(out, &b));
	DO(ops->event_record(join, &b));
	DO(ops->event_wait(join, &a));
	DO(ops->fill8(&a, x, 2, 9));
	DO(ops->capture_end(&a, &graph));
	DO(ops->graph_info(graph, &i));
	ck_assert_uint_eq(i.nnodes, TT_LEN(want));
	ck_assert_uint_eq(i.nedges, 5);
	for (uint64_t k = 0; k < TT_LEN(want); k++) {
		struct te__gnode n = node(graph, k);

		ck_assert_int_eq(n.kind, want[k].kind);
		ck_assert_uint_eq(n.nbytes, want[k].nbytes);
		ck_assert_uint_eq(n.ndeps, want[k].ndeps);
		ck_assert_int_eq(n.foreign, 0);
		for (uint32_t d = 0; d < n.ndeps; d++)
			ck_assert_uint_eq(n.dep[d], want[k].dep[d]);
	}
	ck_assert_ptr_eq(node(graph, 1).dst, y);
	ck_assert_ptr_eq(node(graph, 1).src, x);
	ck_assert_uint_eq(node(graph, 4).value, 2);
	ops->event_destroy(fork);
	ops->event_destroy(join);
	ops->event_destroy(out);
	ck_assert_int_eq(fake.events, 1); /* the graph records it */
	ops->graph_destroy(graph);
}
END_TEST

/* a product that queues three nodes, behind one that we did not queue */
START_TEST(a_product_is_a_line_of_nodes)
{
	struct te_k_gemm args = { .a = x, .b = y, .d = z };
	const struct te__gnode what = { .kind = TE_NODE_KERNEL,
					.id = TE_K_GEMM,
					.args = &args,
					.nbytes = sizeof(args),
					.fixed = 1 };
	void *graph, *before;

	DO(ops->capture_begin(&a));
	if (_i)
		DO(te__cu.cuMemsetD8Async((uintptr_t)x, 1, 3, a.stream));
	DO(te__cuda_note_before(&a, &before));
	ck_assert_int_eq(before != NULL, _i);
	for (int k = 0; k < 3; k++)
		DO(te__cu.cuMemsetD8Async((uintptr_t)x, 1, 3, a.stream));
	DO(te__cuda_note(&a, &what, before));
	memset(&args, 0xff, sizeof(args)); /* it was copied */
	DO(ops->fill8(&a, x, 2, 9));
	DO(ops->capture_end(&a, &graph));
	if (_i) {
		ck_assert_int_eq(node(graph, 0).foreign, 1);
		ck_assert_int_eq(node(graph, 0).id, -1);
	}
	for (uint64_t k = 0; k < 3; k++) {
		struct te__gnode n = node(graph, k + (uint64_t)_i);

		ck_assert_int_eq(n.id, TE_K_GEMM);
		ck_assert_int_eq(n.foreign, 0);
		ck_assert_int_eq(n.fixed, 1);
		ck_assert_int_eq(n.args != NULL, k == 2);
		if (n.args)
			ck_assert_ptr_eq(((const struct te_k_gemm *)n.args)->b, y);
	}
	ck_assert_int_eq(node(graph, 3 + (uint64_t)_i).id, -1);
	ops->graph_destroy(graph);
}
END_TEST

/* ---- updates and patches ---- */

static void *captured(unsigned char *dst, uint8_t value, int longer)
{
	void *graph;

	DO(ops->capture_begin(&a));
	DO(ops->fill8(&a, dst, value, 64));
	DO(ops->copy(&a, z, dst, 64));
	DO(ops->host_call(&a, nothing, "args", 5)); /* so that a launch is waited for */
	if (longer)
		DO(ops->fill8(&a, dst, 0, 1));
	DO(ops->capture_end(&a, &graph));
	return graph;
}

static void update(void *exec, void *graph, int same, int want)
{
	ck_assert_int_eq(ops->exec_update(exec, graph, same), want);
	ops->graph_destroy(graph);
}

START_TEST(keeps_what_a_queued_launch_uses)
{
	void *graph = captured(x, 1, 0), *exec;

	DO(ops->graph_instantiate(graph, &exec));
	ops->graph_destroy(graph);
	DO(ops->graph_launch(exec, &a));
	ck_assert_int_eq(z[63], 1);
	fake.pending = 1;
	update(exec, captured(x, 2, 0), 1, TE_UPDATE_IN_PLACE);
	ck_assert_int_eq(fake.execs, 1);
	ck_assert_int_eq(fake.events, 2);
	DO(ops->graph_launch(exec, &a));
	ck_assert_int_eq(z[63], 2);
	/* another graph: the old executable may be running */
	update(exec, captured(x, 3, 1), 0, TE_UPDATE_INSTANTIATED);
	ck_assert_int_eq(fake.execs, 2);
	ck_assert_int_eq(fake.graphs, 2);
	DO(ops->graph_launch(exec, &a));
	ck_assert_int_eq(z[63], 3);
	/* the driver cannot: made anew; nothing is pending any more */
	fake.pending = 0;
	fake.cannot_update = 1;
	update(exec, captured(y, 4, 1), 1, TE_UPDATE_INSTANTIATED);
	ck_assert_int_eq(fake.execs, 1);
	ck_assert_int_eq(fake.graphs, 1);
	ck_assert_int_eq(fake.events, 1);
	DO(ops->graph_launch(exec, &a));
	ck_assert_int_eq(z[63], 4);
	fake.pending = 1;
	ops->exec_destroy(exec);
	ck_assert_int_eq(fake.pending, 0); /* it waited */
}
END_TEST

/* patches name nodes of the graph that was instantiated, also after an update in place */
START_TEST(patches_all_or_nothing)
{
	static unsigned char x2[64], z2[64];
	void *graph = captured(x, 1, 0), *exec, *now;
	struct te__gnode from[2];
	struct te__patch p[2];

	DO(ops->graph_instantiate(graph, &exec));
	ops->graph_destroy(graph);
	now = captured(x, 5, 0);
	ck_assert_int_eq(ops->exec_update(exec, now, 1), TE_UPDATE_IN_PLACE);
	for (uint64_t k = 0; k < 2; k++) {
		from[k] = node(now, k);
		p[k] = (struct te__patch){ .index = k, .from = &from[k], .to = from[k] };
	}
	p[0].to.dst = x2;
	p[1].to.src = x2;
	p[1].to.dst = z2;
	fake.fail_set = 2;
	ck_assert_int_eq(ops->exec_patch(exec, 2, p), -EOPNOTSUPP);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "node 1, copy of 64 bytes"));
	te_error_clear();
	DO(ops->graph_launch(exec, &a));
	ck_assert_int_eq(x[63], 5);
	ck_assert_int_eq(z[63], 5);
	ck_assert_int_eq(x2[63], 0);
	ck_assert_int_eq(z2[63], 0);
	memset(x, 0, sizeof(x));
	memset(z, 0, sizeof(z));
	fake.fail_set = 0;
	DO(ops->exec_patch(exec, 2, p));
	DO(ops->graph_launch(exec, &a));
	ck_assert_int_eq(x[63], 0);
	ck_assert_int_eq(z[63], 0);
	ck_assert_int_eq(x2[63], 5);
	ck_assert_int_eq(z2[63], 5);
	ops->graph_destroy(now);
	ops->exec_destroy(exec);
}
END_TEST

static void give_back(void **graph, void **exec)
{
	if (*graph)
		ops->graph_destroy(*graph);
	if (*exec)
		ops->exec_destroy(*exec);
}

static int capture(void **ret_graph)
{
	int r, end;

	r = ops->capture_begin(&a);
	if (r)
		return r;
	r = ops->fill8(&a, x, 1, 64);
	if (!r)
		r = ops->host_call(&a, nothing, "args", 5);
	end = ops->capture_end(&a, ret_graph);
	return r ? r : end;
}

static int sweep(void)
{
	void *graph = NULL, *next = NULL, *exec = NULL, *none = NULL;
	int r = capture(&graph);

	if (!r)
		r = ops->graph_instantiate(graph, &exec);
	for (int same = 1; !r && same >= 0; same--) {
		r = capture(&next);
		if (!r)
			r = ops->exec_update(exec, next, same);
		if (r > 0)
			r = ops->graph_launch(exec, &a);
		give_back(&next, &none);
		next = NULL;
	}
	give_back(&graph, &exec);
	return r;
}

START_TEST(each_call_fails_cleanly)
{
	ck_assert_int_gt(tt_fault_each(sweep), 30);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("core/cuda_exec");
	TCase *c = tt_case(s, "graphs", "host fast");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, numbers_nodes_as_they_were_captured);
	tcase_add_loop_test(c, a_product_is_a_line_of_nodes, 0, 2);
	tcase_add_test(c, keeps_what_a_queued_launch_uses);
	tcase_add_test(c, patches_all_or_nothing);
	tcase_add_test(c, each_call_fails_cleanly);
	return s;
}

TT_MAIN("core/cuda_exec", TT_NEED_NOTHING, suite)
