/*
 * t/core/cuda_exec.c - captured nodes, updates and patches of the cuda backend, with a driver
 * that is written here: it captures, lists nodes in no order, and runs graphs on the CPU.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <te/dtype.h>
#include <te/errno.h>

#include "cuda_fake.h"
#include "libtecore/backend/cuda_graph.h"
#include "tt_ctx.h"

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
	int order[MAX_NODES]; /* one that the edges allow */
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
	int next_early; /* the next node queued has a programmatic edge */
	int launches;	/* of graphs */
} fake;

static int handle;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
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
	if (n->type == TE__CU_NODE_HOST)
		n->fn(n->arg);
	else if (n->src)
		memcpy((void *)(uintptr_t)n->dst, (void *)(uintptr_t)n->src, n->n);
	else if (n->type == TE__CU_NODE_MEMSET || n->type == TE__CU_NODE_KERNEL)
		for (size_t i = 0; i < n->n; i++)
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
	for (int i = 0; i < n->ndeps; i++)
		n->early[i] = fake.next_early;
	fake.next_early = 0;
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

static int fake_cuMemsetD32Async(uint64_t dst, unsigned value, size_t n, void *stream)
{
	return queue(stream, (struct node){ .type = TE__CU_NODE_MEMSET,
					    .dst = dst,
					    .value = value,
					    .elem = 4,
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

static struct te__cu_edge_data edge_data(int early)
{
	return early ? (struct te__cu_edge_data){ .from_port = TE__CU_PORT_PROGRAMMATIC,
						  .type = TE__CU_EDGE_PROGRAMMATIC } :
		       (struct te__cu_edge_data){ 0 };
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
				if (ret_data)
					ret_data[n] = edge_data(g->node[i]->early[k]);
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

/* each once all that it depends on is done, else by chance */
static void order_draw(struct exec *e, const struct graph *g)
{
	int left[MAX_NODES], nleft = g->n, done = 0;

	for (int i = 0; i < g->n; i++)
		left[i] = i;
	while (nleft) {
		int at = (int)tt_rand_int(0, nleft - 1), ready = 1;
		const struct node *n = g->node[left[at]];

		for (int i = 0; i < nleft; i++)
			for (int k = 0; k < n->ndeps; k++)
				ready &= n->dep[k] != g->node[left[i]];
		if (!ready)
			continue;
		e->order[done++] = left[at];
		left[at] = left[--nleft];
	}
}

static void exec_fill(struct exec *e, const struct graph *g)
{
	e->n = g->n;
	for (int i = 0; i < g->n; i++)
		e->node[i] = *g->node[i];
	order_draw(e, g);
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

	fake.launches++;
	for (int i = 0; i < e->n; i++)
		run(&e->node[e->order[i]]);
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
	ck_assert_uint_ge(p->grid[0], 1);
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
	const int early = data[0].type == TE__CU_EDGE_PROGRAMMATIC;
	const struct te__cu_edge_data want = edge_data(early);

	for (size_t i = 0; i < n; i++) {
		struct node *node = to[i];

		ck_assert_mem_eq(&data[i], &want, sizeof(want));
		if (early && (node->type != TE__CU_NODE_KERNEL ||
			      ((struct node *)from[i])->type != TE__CU_NODE_KERNEL))
			return TE__CU_ERROR_INVALID_VALUE;
		ck_assert_int_lt(node->ndeps, MAX_DEPS);
		node->early[node->ndeps] = early;
		node->dep[node->ndeps++] = from[i];
	}
	return 0;
}

static int fake_cuGraphRemoveDependencies(void *graph, void *const *from, void *const *to,
					  const struct te__cu_edge_data *data, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct node *node = to[i];
		int k = 0;

		ck_assert_mem_eq(&data[i], &data[0], sizeof(*data));
		while (k < node->ndeps && node->dep[k] != from[i])
			k++;
		if (k == node->ndeps ||
		    node->early[k] != (data[0].type == TE__CU_EDGE_PROGRAMMATIC))
			return TE__CU_ERROR_INVALID_VALUE;
		node->dep[k] = node->dep[--node->ndeps];
		node->early[k] = node->early[node->ndeps];
	}
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
	struct te__cuda_driver d = fake_driver();

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
	HAVE(cuMemsetD32Async);
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
	DO(te__cuda_note(&a, &what, 0, before));
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

/* ---- edges ---- */

static unsigned char memory[1024];

/* a kernel that is not ours */
static void queue_foreign(unsigned char *dst, unsigned value, size_t n, int early)
{
	fake.next_early = early;
	DO(queue(a.stream, (struct node){ .type = TE__CU_NODE_KERNEL,
					  .dst = (uintptr_t)dst,
					  .value = value,
					  .elem = 1,
					  .n = n }));
}

/* 16 bytes of d from a and b, by a memset of scratch and a kernel */
static int queue_product(unsigned char *d, const unsigned char *from, unsigned char *scratch,
			 unsigned value)
{
	const struct te_k_gemm args = { .a = from,
					.b = from,
					.d = d,
					.m = 2,
					.n = 2,
					.k = 2,
					.adtype = TE_DTYPE_FP32,
					.bdtype = TE_DTYPE_FP32,
					.cdtype = TE_DTYPE_FP32,
					.ddtype = TE_DTYPE_FP32 };
	const struct te__gnode what = { .kind = TE_NODE_KERNEL,
					.id = TE_K_GEMM,
					.args = &args,
					.nbytes = sizeof(args),
					.fixed = 1,
					.scratch = { (uintptr_t)scratch, 8, TE__WRITE } };
	void *before;
	int r = te__cuda_note_before(&a, &before);

	if (!r)
		r = TE__CU_CALL(cuMemsetD8Async, (uintptr_t)scratch, (unsigned char)value, 8,
				a.stream);
	/* what it does depends on all of its memory */
	if (!r)
		r = queue(a.stream, (struct node){ .type = TE__CU_NODE_KERNEL,
						   .dst = (uintptr_t)d,
						   .src = (uintptr_t)scratch,
						   .n = 8 });
	if (!r)
		r = queue(a.stream, (struct node){ .type = TE__CU_NODE_KERNEL,
						   .dst = (uintptr_t)d + 8,
						   .src = (uintptr_t)from,
						   .n = 8 });
	return r ? r : te__cuda_note(&a, &what, 0, before);
}

static void *captured_edges(uint32_t edges, void (*queue_all)(void))
{
	void *graph;

	DO(ops->capture_begin(&a));
	DO(ops->capture_edges(&a, edges));
	queue_all();
	DO(ops->capture_end(&a, &graph));
	return graph;
}

static int is_kernel(const struct te__gnode *n)
{
	return n->kind == TE_NODE_KERNEL ||
	       (n->kind == TE_NODE_FILL && !n->foreign && n->id != TE_K_GEMM);
}

static int is_ours(const struct te__gnode *n)
{
	return is_kernel(n) && !n->foreign && n->id != TE_K_GEMM;
}

/* the driver's edges are those of the nodes, and early where they may be */
static void check_edges(void *graph, uint32_t edges)
{
	const struct te__cuda_graph *g = graph;

	for (size_t i = 0; i < g->nodes->n; i++) {
		const struct node *have = g->nodes->node[i];
		const struct te__gnode *want = &g->info[i];

		ck_assert_int_eq(have->ndeps, (int)want->ndeps);
		for (uint32_t k = 0; k < want->ndeps; k++) {
			const struct te__gnode *from = &g->info[want->dep[k]];
			int at = 0;

			while (at < have->ndeps && have->dep[at] != g->nodes->node[want->dep[k]])
				at++;
			ck_assert_msg(at < have->ndeps, "node %zu: no edge from %u", i,
				      want->dep[k]);
			ck_assert_msg(have->early[at] == (edges & TE_CAPTURE_EARLY &&
							  is_ours(want) && is_kernel(from)),
				      "the edge from %u to %zu is %searly", want->dep[k], i,
				      have->early[at] ? "" : "not ");
		}
	}
}

static int ntype(void *graph, int type)
{
	const struct te__cuda_graph *g = graph;
	int n = 0;

	for (size_t i = 0; i < g->nodes->n; i++)
		n += ((const struct node *)g->nodes->node[i])->type == type;
	return n;
}

static void queue_line(void)
{
	DO(ops->fill8(&a, x, 1, 64));
	DO(queue_product(y, x, z, 3));
	DO(ops->fill8(&a, z, 2, 64));
	DO(ops->copy(&a, z, y, 16));
	DO(ops->fill8(&a, x, 4, 64));
}

START_TEST(fills_and_memsets_of_products_are_kernels)
{
	const uint32_t edges = (uint32_t)_i;
	void *graph = captured_edges(edges, queue_line), *exec;

	ck_assert_int_eq(ntype(graph, TE__CU_NODE_MEMSET), 0);
	ck_assert_int_eq(ntype(graph, TE__CU_NODE_KERNEL), 6);
	ck_assert_int_eq(node(graph, 0).kind, TE_NODE_FILL);
	ck_assert_int_eq(node(graph, 1).kind, TE_NODE_KERNEL);
	ck_assert_int_eq(node(graph, 1).id, TE_K_GEMM);
	for (uint64_t i = 1; i < 7; i++)
		if (!(edges & TE_CAPTURE_BY_DATA) || (i > 1 && i < 4)) {
			/* the line, and the product's own */
			ck_assert_uint_eq(node(graph, i).ndeps, 1);
			ck_assert_uint_eq(node(graph, i).dep[0], i - 1);
		}
	check_edges(graph, edges);
	DO(ops->graph_instantiate(graph, &exec));
	ops->graph_destroy(graph);
	for (int k = 0; k < 20; k++) {
		memset(x, 0, sizeof(x));
		DO(ops->graph_launch(exec, &a));
		ck_assert_int_eq(x[63], 4);
		ck_assert_int_eq(y[0], 3);
		ck_assert_int_eq(y[15], 1);
		ck_assert_int_eq(z[0], 3);
		ck_assert_int_eq(z[8], 1);
		ck_assert_int_eq(z[16], 2);
	}
	ops->exec_destroy(exec);
}
END_TEST

static void queue_three(void)
{
	for (int k = 0; k < 3; k++)
		DO(ops->fill8(&a, memory + 16 * k, 1, 16));
}

static void queue_after_one(void)
{
	DO(ops->fill8(&a, memory, 1, 64));
	for (int k = 0; k < 3; k++)
		DO(ops->copy(&a, memory + 64 + 16 * k, memory + k, 16));
}

/* each that waits for nothing costs a launch its time */
START_TEST(one_node_waits_for_nothing)
{
	void *graph = captured_edges(TE_CAPTURE_BY_DATA, queue_three);

	ck_assert_uint_eq(((struct te__cuda_graph *)graph)->nodes->n, 4);
	ck_assert_uint_eq(node(graph, 0).ndeps, 0);
	ck_assert_uint_eq(node(graph, 0).nbytes, 0);
	for (uint64_t i = 1; i < 4; i++) {
		ck_assert_uint_eq(node(graph, i).ndeps, 1);
		ck_assert_uint_eq(node(graph, i).dep[0], 0);
	}
	check_edges(graph, TE_CAPTURE_BY_DATA);
	ops->graph_destroy(graph);
	/* where there is one anyway, none is added */
	graph = captured_edges(TE_CAPTURE_BY_DATA, queue_after_one);
	ck_assert_uint_eq(((struct te__cuda_graph *)graph)->nodes->n, 4);
	for (uint64_t i = 1; i < 4; i++)
		ck_assert_uint_eq(node(graph, i).dep[0], 0);
	check_edges(graph, TE_CAPTURE_BY_DATA);
	ops->graph_destroy(graph);
	graph = captured_edges(TE_CAPTURE_EARLY, queue_three);
	ck_assert_uint_eq(((struct te__cuda_graph *)graph)->nodes->n, 3);
	ops->graph_destroy(graph);
}
END_TEST

/* a memset of a caller, and one that te_k_fill cannot do, of a product */
static void queue_memsets(void)
{
	const struct te_k_gemm args = { .d = y, .m = 2, .n = 2, .ddtype = TE_DTYPE_FP32 };
	const struct te__gnode what = { .kind = TE_NODE_KERNEL,
					.id = TE_K_GEMM,
					.args = &args,
					.nbytes = sizeof(args),
					.fixed = 1 };
	void *before;

	DO(ops->fill8(&a, x, 1, 64));
	DO(te__cu.cuMemsetD8Async((uintptr_t)x, 2, 3, a.stream));
	DO(ops->fill8(&a, x, 1, 2));
	DO(te__cuda_note_before(&a, &before));
	DO(queue(a.stream, (struct node){ .type = TE__CU_NODE_MEMSET,
					  .dst = (uintptr_t)y,
					  .value = 0x304,
					  .elem = 2,
					  .n = 8 }));
	DO(queue(a.stream, (struct node){ .type = TE__CU_NODE_KERNEL }));
	DO(te__cuda_note(&a, &what, 0, before));
	DO(ops->fill8(&a, y, 5, 1));
}

START_TEST(other_memsets_stay)
{
	const uint32_t edges = (uint32_t)_i;
	void *graph = captured_edges(edges, queue_memsets), *exec;

	ck_assert_int_eq(ntype(graph, TE__CU_NODE_MEMSET), 2);
	ck_assert_int_eq(node(graph, 1).foreign, 1);
	ck_assert_int_eq(node(graph, 3).kind, TE_NODE_FILL);
	ck_assert_int_eq(node(graph, 3).id, TE_K_GEMM);
	check_edges(graph, edges);
	DO(ops->graph_instantiate(graph, &exec));
	DO(ops->graph_launch(exec, &a));
	ck_assert(x[0] == 1 && x[2] == 2 && x[3] == 1 && y[0] == 5 && y[1] == 3 && y[14] == 4);
	ops->exec_destroy(exec);
	ops->graph_destroy(graph);
}
END_TEST

static int with_product;

static void queue_foreign_line(void)
{
	DO(ops->fill8(&a, x, 1, 64));
	queue_foreign(x, 2, 32, 0);
	queue_foreign(x, 3, 16, 1); /* by a programmatic edge of the caller's */
	DO(ops->fill8(&a, x, 4, 8));
	if (with_product)
		DO(queue_product(y, x, z, 3));
}

/* as they are, or full where edges are put anew: a kernel of the caller's may not wait itself */
START_TEST(programmatic_edges_of_the_caller)
{
	for (with_product = 0; with_product < 2; with_product++)
		for (uint32_t edges = 0; edges < 4; edges++) {
			void *graph = captured_edges(edges, queue_foreign_line), *exec;
			const struct te__cuda_graph *g = graph;
			const struct node *n = g->nodes->node[2];

			ck_assert_int_eq(node(graph, 2).foreign, 1);
			ck_assert_int_eq(n->ndeps, 1);
			ck_assert_int_eq(n->early[0], !edges && !with_product);
			if (edges || with_product)
				check_edges(graph, edges);
			/* what nobody knows stays in its place */
			for (uint64_t i = 1; i < 4; i++) {
				ck_assert_uint_eq(node(graph, i).ndeps, 1);
				ck_assert_uint_eq(node(graph, i).dep[0], i - 1);
			}
			DO(ops->graph_instantiate(graph, &exec));
			DO(ops->graph_launch(exec, &a));
			ck_assert(x[7] == 4 && x[8] == 3 && x[16] == 2 && x[32] == 1);
			ops->exec_destroy(exec);
			ops->graph_destroy(graph);
		}
}
END_TEST

static struct {
	int what;
	size_t dst, src, n;
	unsigned value;
} todo[20];
static int ntodo;

static void queue_todo(void)
{
	for (int i = 0; i < ntodo; i++) {
		unsigned char *dst = memory + todo[i].dst, *src = memory + todo[i].src;

		switch (todo[i].what) {
		case 0:
			queue_foreign(dst, todo[i].value, todo[i].n, todo[i].value & 1);
			break;
		case 1:
			DO(te__cu.cuMemsetD8Async((uintptr_t)dst, (unsigned char)todo[i].value,
						  todo[i].n, a.stream));
			break;
		case 2:
			DO(ops->host_call(&a, nothing, "args", 5));
			break;
		case 3:
		case 4:
			DO(queue_product(dst, src, memory + 512, todo[i].value));
			break;
		case 5:
		case 6:
			DO(ops->copy(&a, dst, src, todo[i].n));
			break;
		default:
			DO(ops->fill8(&a, dst, (uint8_t)todo[i].value, todo[i].n));
		}
	}
}

/* what is captured gives what it gave call by call, in every order that edges leave */
START_TEST(any_work_with_any_edges)
{
	static unsigned char want[sizeof(memory)];

	for (int trial = 0; trial < 1000; trial++) {
		const uint32_t edges = (uint32_t)trial & 3;
		const int few = (int)tt_rand_int(0, 1); /* nodes that nobody knows */
		void *graph, *exec;

		ntodo = (int)tt_rand_int(1, TT_LEN(todo));
		for (int i = 0; i < ntodo; i++) {
			todo[i].what = (int)tt_rand_int(few ? 3 : 0, 9);
			todo[i].n = (size_t)tt_rand_int(1, 32);
			/* copies and products do not overlap themselves */
			todo[i].dst = (size_t)tt_rand_int(0, 200);
			todo[i].src = todo[i].dst + 32 + (size_t)tt_rand_int(0, 200);
			todo[i].value = (unsigned)tt_rand_int(1, 255);
		}
		memset(memory, 0, sizeof(memory));
		queue_todo();
		memcpy(want, memory, sizeof(want));
		graph = captured_edges(edges, queue_todo);
		if (edges)
			check_edges(graph, edges);
		DO(ops->graph_instantiate(graph, &exec));
		ops->graph_destroy(graph);
		memset(memory, 0, sizeof(memory));
		DO(ops->graph_launch(exec, &a));
		ops->exec_destroy(exec);
		ck_assert_mem_eq(memory, want, sizeof(want));
	}
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

static void *one_fill(unsigned char *dst, uint32_t value, size_t n)
{
	void *graph;

	DO(ops->capture_begin(&a));
	DO(value > 255 ? ops->fill32(&a, dst, value, n) : ops->fill8(&a, dst, (uint8_t)value, n));
	DO(ops->capture_end(&a, &graph));
	return graph;
}

/* how many of 64 bytes are value, and none behind the last of them */
static int filled(const unsigned char *p, unsigned char value)
{
	int n = 0;

	while (n < 64 && p[n] == value)
		n++;
	for (int i = n; i < 64; i++)
		ck_assert_int_eq(p[i], 0);
	return n;
}

static void launch_of_one(void *exec)
{
	memset(x, 0, sizeof(x));
	memset(y, 0, sizeof(y));
	DO(ops->graph_launch(exec, &a));
}

/* the driver's own memset, whatever becomes of it */
START_TEST(one_fill_needs_no_graph)
{
	void *graph = one_fill(x, 3, 64), *exec;
	struct te__gnode from = node(graph, 0);
	struct te__patch p = { .index = 0, .from = &from, .to = from };

	DO(ops->graph_instantiate(graph, &exec));
	launch_of_one(exec);
	ck_assert_int_eq(filled(x, 3), 64);
	p.to.dst = y;
	fake.fail_set = 1;
	ck_assert_int_lt(ops->exec_patch(exec, 1, &p), 0);
	te_error_clear();
	launch_of_one(exec);
	ck_assert_int_eq(filled(x, 3), 64);
	fake.fail_set = 0;
	DO(ops->exec_patch(exec, 1, &p));
	launch_of_one(exec);
	ck_assert_int_eq(filled(x, 3), 0);
	ck_assert_int_eq(filled(y, 3), 64);
	ops->graph_destroy(graph);
	update(exec, one_fill(x, 0x05050505, 8), 1, TE_UPDATE_IN_PLACE);
	launch_of_one(exec);
	ck_assert_int_eq(filled(x, 5), 32);
	ck_assert_int_eq(fake.launches, 0);
	/* and more than one does */
	update(exec, captured(x, 6, 0), 0, TE_UPDATE_INSTANTIATED);
	launch_of_one(exec);
	ck_assert_int_eq(filled(x, 6), 64);
	ck_assert_int_eq(fake.launches, 1);
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

static uint32_t sweep_edges;

/* memsets that become kernels, a node before all, edges of both kinds */
static int sweep_of_edges(void)
{
	void *graph = NULL, *exec = NULL;
	int r = ops->capture_begin(&a), end;

	if (r)
		return r;
	r = ops->capture_edges(&a, sweep_edges);
	for (int k = 0; !r && k < 3; k++)
		r = ops->fill8(&a, memory + 64 * k, 1, 16);
	if (!r)
		r = queue_product(memory + 64, memory + 128, memory + 256, 2);
	if (!r)
		r = ops->fill8(&a, memory + 64, 1, 8);
	end = ops->capture_end(&a, &graph);
	if (!r && !end)
		r = ops->graph_instantiate(graph, &exec);
	give_back(&graph, &exec);
	return r ? r : end;
}

START_TEST(each_call_for_edges_fails_cleanly)
{
	sweep_edges = (uint32_t)_i;
	ck_assert_int_gt(tt_fault_each(sweep_of_edges), 40);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("core/cuda_exec");
	TCase *c = tt_case(s, "graphs", "host fast");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, numbers_nodes_as_they_were_captured);
	tcase_add_loop_test(c, a_product_is_a_line_of_nodes, 0, 2);
	tcase_add_loop_test(c, fills_and_memsets_of_products_are_kernels, 0, 4);
	tcase_add_loop_test(c, other_memsets_stay, 0, 4);
	tcase_add_test(c, one_node_waits_for_nothing);
	tcase_add_test(c, programmatic_edges_of_the_caller);
	tcase_add_test(c, any_work_with_any_edges);
	tcase_add_test(c, keeps_what_a_queued_launch_uses);
	tcase_add_test(c, patches_all_or_nothing);
	tcase_add_test(c, one_fill_needs_no_graph);
	tcase_add_test(c, each_call_fails_cleanly);
	tcase_add_loop_test(c, each_call_for_edges_fails_cleanly, 0, 4);
	return s;
}

TT_MAIN("core/cuda_exec", TT_NEED_NOTHING, suite)
