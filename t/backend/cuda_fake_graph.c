/* t/backend/cuda_fake_graph.c - see cuda_fake_graph.h. */
#include "config.h"

#include "cuda_fake.h"
#include "cuda_fake_graph.h"
#include "libtecore/backend/backend.h"
#include "tt.h"

#define FAKE_NODES 128 /* at most, those that were destroyed too */

struct graph {
	int number, n;
	struct fake_node *node[FAKE_NODES]; /* in capture order */
};

struct exec {
	const struct graph *from;
	int number, n;
	struct fake_node node[FAKE_NODES];
	int order[FAKE_NODES]; /* an order that the edges allow */
};

struct place {
	struct graph *graph; /* NULL: no capture */
	int ndeps;
	struct fake_node *dep[FAKE_DEPS];
};

struct event {
	struct place at;
	int recorded;
};

int fake_handle;
struct fake_asked fake;

static struct place place[2];
static int graphs_made; /* so far */
static int sets;	/* calls that set parameters, so far */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
int fake_cuStreamIsCapturing(void *stream, int *ret_status)
{
	*ret_status = ((struct place *)stream)->graph ? TE__CU_CAPTURE_STATUS_ACTIVE :
							TE__CU_CAPTURE_STATUS_NONE;
	return 0;
}

int fake_cuStreamGetCtx(void *stream, void **ret_ctx)
{
	if (stream != &place[0] && stream != &place[1])
		return FAKE_UNKNOWN;
	*ret_ctx = &fake_handle;
	return 0;
}

int fake_cuMemAllocFromPoolAsync(uint64_t *ret_ptr, size_t nbytes, void *pool, void *stream)
{
	*ret_ptr = (uintptr_t)malloc(1);
	fake.memory++;
	return 0;
}

int fake_cuMemFreeAsync(uint64_t ptr, void *stream)
{
	/* or it would be a node of a graph that did not allocate the memory */
	ck_assert(stream == &fake_handle || !((struct place *)stream)->graph);
	free((void *)(uintptr_t)ptr);
	fake.memory--;
	return 0;
}

int fake_cuStreamSynchronize(void *stream)
{
	fake.syncs++;
	return 0;
}

int fake_cuPointerGetAttribute(void *ret, int attr, uint64_t ptr)
{
	ck_assert_int_eq(attr, TE__CU_POINTER_MEMORY_TYPE);
	return ptr == (uintptr_t)fake.pageable ? TE__CU_ERROR_INVALID_VALUE : 0;
}

int fake_cuGraphCreate(void **ret_graph, unsigned flags)
{
	struct graph *g = calloc(1, sizeof(*g));

	g->number = ++graphs_made;
	fake.graphs++;
	*ret_graph = g;
	return 0;
}

int fake_cuStreamBeginCapture(void *stream, int mode)
{
	struct place *s = stream;
	void *graph;

	fake_cuGraphCreate(&graph, 0);
	s->graph = graph;
	s->ndeps = 0;
	return 0;
}

int fake_cuStreamEndCapture(void *stream, void **ret_graph)
{
	struct place *s = stream;

	*ret_graph = s->graph;
	s->graph = NULL;
	return 0;
}

int fake_cuStreamGetCaptureInfo(void *stream, int *ret_status, uint64_t *ret_id,
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

/* a write, or a wait and a write: the word has been set before */
static void run_word(const struct fake_node *n)
{
	uint32_t *word = (uint32_t *)(uintptr_t)n->dst;

	if (n->elem == 2)
		ck_assert_uint_ne(*word, 0);
	*word = n->value;
}

static void run(const struct fake_node *n)
{
	if (n->type == TE__CU_NODE_HOST)
		n->fn(n->arg);
	else if (n->type == TE__CU_NODE_MEM_OP)
		run_word(n);
	else if (n->src)
		memcpy((void *)(uintptr_t)n->dst, (void *)(uintptr_t)n->src, n->n);
	else if (n->type == TE__CU_NODE_MEMSET || n->type == TE__CU_NODE_KERNEL)
		for (size_t i = 0; i < n->n; i++)
			memcpy((char *)(uintptr_t)n->dst + i * n->elem, &n->value, n->elem);
	fake.wrong_clusters += n->cluster != n->run_cluster;
}

int fake_queue(void *stream, struct fake_node what)
{
	struct place *s = stream;
	struct fake_node *n;

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
		n->pdl[i] = fake.next_pdl;
	fake.next_pdl = 0;
	ck_assert_int_lt(s->graph->n, FAKE_NODES);
	s->graph->node[s->graph->n++] = n;
	s->ndeps = 1;
	s->dep[0] = n;
	return 0;
}

int fake_cuMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, void *stream)
{
	return fake_queue(
		stream, (struct fake_node){
				.type = TE__CU_NODE_MEMCPY, .dst = dst, .src = src, .n = nbytes });
}

int fake_cuMemsetD8Async(uint64_t dst, unsigned char value, size_t n, void *stream)
{
	return fake_queue(stream, (struct fake_node){ .type = TE__CU_NODE_MEMSET,
						      .dst = dst,
						      .value = value,
						      .elem = 1,
						      .n = n });
}

int fake_cuMemsetD32Async(uint64_t dst, unsigned value, size_t n, void *stream)
{
	return fake_queue(stream, (struct fake_node){ .type = TE__CU_NODE_MEMSET,
						      .dst = dst,
						      .value = value,
						      .elem = 4,
						      .n = n });
}

int fake_cuStreamBatchMemOp(void *stream, unsigned n, struct te__cu_mem_op *op,
			    unsigned flags)
{
	const struct te__cu_mem_op *last = &op[n - 1];

	ck_assert_uint_eq(flags, 0);
	ck_assert(n == 1 || (n == 2 && op[0].operation == TE__CU_MEM_OP_WAIT_32 &&
			     op[0].flags == TE__CU_WAIT_GEQ && op[0].value == 1 &&
			     op[0].address == last->address));
	ck_assert_int_eq(last->operation, TE__CU_MEM_OP_WRITE_32);
	if (fake.no_words)
		return TE__CU_ERROR_NOT_SUPPORTED;
	return fake_queue(stream, (struct fake_node){ .type = TE__CU_NODE_MEM_OP,
						      .dst = last->address,
						      .value = (unsigned)last->value,
						      .elem = n });
}

int fake_cuLaunchHostFunc(void *stream, void (*fn)(void *arg), void *arg)
{
	return fake_queue(stream,
			  (struct fake_node){ .type = TE__CU_NODE_HOST, .fn = fn, .arg = arg });
}

int fake_cuEventCreate(void **ret_event, unsigned flags)
{
	*ret_event = calloc(1, sizeof(struct event));
	fake.events++;
	return 0;
}

int fake_cuEventDestroy(void *event)
{
	free(event);
	fake.events--;
	return 0;
}

int fake_cuEventRecord(void *event, void *stream)
{
	((struct event *)event)->at = *(struct place *)stream;
	((struct event *)event)->recorded = 1;
	return 0;
}

int fake_cuEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
	ck_assert_uint_eq(flags, TE__CU_EVENT_RECORD_EXTERNAL);
	return fake_queue(stream, (struct fake_node){ .type = TE__CU_NODE_EVENT_RECORD });
}

int fake_cuEventQuery(void *event)
{
	return ((struct event *)event)->recorded && fake.pending ? TE__CU_ERROR_NOT_READY : 0;
}

int fake_cuEventSynchronize(void *event)
{
	fake.pending = 0;
	return 0;
}

int fake_cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	const struct place *from = &((struct event *)event)->at;
	struct place *s = stream;

	if (!s->graph)
		s->ndeps = 0;
	s->graph = from->graph;
	ck_assert_int_le(s->ndeps + from->ndeps, FAKE_DEPS);
	for (int i = 0; i < from->ndeps; i++)
		s->dep[s->ndeps++] = from->dep[i];
	return 0;
}

int fake_cuGraphGetNodes(void *graph, void **ret_nodes, size_t *inout_n)
{
	const struct graph *g = graph;

	/* in reverse: the driver guarantees no order */
	for (int i = 0; ret_nodes && i < g->n; i++)
		ret_nodes[g->n - 1 - i] = g->node[i];
	*inout_n = (size_t)g->n;
	return 0;
}

static struct te__cu_edge_data edge_data(int pdl)
{
	return pdl ? (struct te__cu_edge_data){ .from_port = TE__CU_PORT_PROGRAMMATIC,
						  .type = TE__CU_EDGE_PROGRAMMATIC } :
		       (struct te__cu_edge_data){ 0 };
}

int fake_cuGraphGetEdges(void *graph, void **ret_from, void **ret_to,
			 struct te__cu_edge_data *ret_data, size_t *inout_n)
{
	const struct graph *g = graph;
	size_t n = 0;

	fake.edge_lists += ret_from != NULL;
	for (int i = g->n; i-- > 0;)
		for (int k = g->node[i]->ndeps; k-- > 0; n++)
			if (ret_from) {
				ret_from[n] = g->node[i]->dep[k];
				ret_to[n] = g->node[i];
				if (ret_data)
					ret_data[n] = edge_data(g->node[i]->pdl[k]);
			}
	*inout_n = n;
	return 0;
}

int fake_cuGraphNodeGetType(void *node, int *ret_type)
{
	*ret_type = ((struct fake_node *)node)->type;
	return 0;
}

int fake_cuGraphDestroy(void *graph)
{
	struct graph *g = graph;

	for (int i = 0; i < g->n; i++)
		free(g->node[i]);
	free(g);
	fake.graphs--;
	return 0;
}

/* a random order in which each node comes after its dependencies */
static void order_draw(struct exec *e, const struct graph *g)
{
	int left[FAKE_NODES], nleft = g->n, done = 0;

	for (int i = 0; i < g->n; i++)
		left[i] = i;
	while (nleft) {
		int at = (int)tt_rand_int(0, nleft - 1), ready = 1;
		const struct fake_node *n = g->node[left[at]];

		for (int i = 0; i < nleft; i++)
			for (int k = 0; k < n->ndeps; k++)
				ready &= n->dep[k] != g->node[left[i]];
		if (!ready)
			continue;
		e->order[done++] = left[at];
		left[at] = left[--nleft];
	}
}

/* clusters of the node before remain where the new one has none, as in the driver */
static void exec_fill(struct exec *e, const struct graph *g)
{
	e->n = g->n;
	for (int i = 0; i < g->n; i++) {
		const unsigned before = e->node[i].run_cluster;

		e->node[i] = *g->node[i];
		if (!e->node[i].cluster)
			e->node[i].run_cluster = before;
	}
	order_draw(e, g);
}

int fake_cuGraphInstantiateWithFlags(void **ret_exec, void *graph, unsigned long long flags)
{
	struct exec *e = calloc(1, sizeof(*e));

	e->from = graph;
	e->number = e->from->number;
	exec_fill(e, graph);
	*ret_exec = e;
	fake.execs++;
	return 0;
}

int fake_cuGraphUpload(void *exec, void *stream)
{
	return 0;
}

int fake_cuGraphExecUpdate(void *exec, void *graph, struct te__cu_update_result *ret_result)
{
	if (fake.cannot_update)
		return TE__CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	exec_fill(exec, graph);
	return 0;
}

int fake_cuGraphLaunch(void *exec, void *stream)
{
	const struct exec *e = exec;

	fake.launches++;
	for (int i = 0; i < e->n; i++)
		run(&e->node[e->order[i]]);
	return 0;
}

int fake_cuGraphExecDestroy(void *exec)
{
	free(exec);
	fake.execs--;
	return 0;
}

/* finds the node in the graph that the executable was instantiated from, which must exist */
static struct fake_node *set(struct exec *e, const struct fake_node *n)
{
	if (++sets == fake.fail_set)
		return NULL;
	ck_assert_int_eq(n->graph, e->number);
	for (int i = 0; i < e->from->n; i++)
		if (e->from->node[i] == n)
			return &e->node[i];
	ck_abort_msg("a node of another graph");
	return NULL;
}

int fake_cuGraphMemcpyNodeGetParams(void *node, struct te__cu_memcpy_params *ret_params)
{
	const struct fake_node *n = node;

	/* the test writes to the host side */
	*ret_params = (struct te__cu_memcpy_params){
		.src = { .type = 2, .dev = n->src, .x = 0, .pitch = n->n },
		.dst = { .type = TE__CU_MEMORYTYPE_HOST, .host = (void *)(uintptr_t)n->dst },
		.width = n->n,
		.height = 1,
		.depth = 1,
	};
	return 0;
}

int fake_cuGraphExecMemcpyNodeSetParams(void *exec, void *node,
					const struct te__cu_memcpy_params *p, void *ctx)
{
	struct fake_node *n = set(exec, node);

	if (!n)
		return TE__CU_ERROR_INVALID_VALUE;
	ck_assert_uint_eq(p->height * p->depth, 1);
	n->src = p->src.dev;
	n->dst = (uintptr_t)p->dst.host;
	n->n = p->width;
	return 0;
}

int fake_cuGraphMemsetNodeGetParams(void *node, struct te__cu_memset_params *ret_params)
{
	const struct fake_node *n = node;

	*ret_params = (struct te__cu_memset_params){
		.dst = n->dst,
		.value = n->value,
		.elem = n->elem,
		.width = n->n,
		.height = 1,
	};
	return 0;
}

/* the only function: te_k_fill */
static struct fake_node fill_node(void **params)
{
	const struct te_k_fill *f = params[0];

	return (struct fake_node){ .type = TE__CU_NODE_KERNEL,
				   .dst = (uintptr_t)f->dst,
				   .value = f->value,
				   .elem = (unsigned)f->elem,
				   .n = (size_t)f->n,
				   .cluster = fake.cluster,
				   .run_cluster = fake.cluster };
}

int fake_cuLaunchKernelEx(const struct te__cu_launch_config *config, void *func, void **args,
			  void **extra)
{
	ck_assert_ptr_eq(func, &fake_handle);
	return fake_queue(config->stream, fill_node(args));
}

int fake_cuGraphExecKernelNodeSetParams(void *exec, void *node,
					const struct te__cu_kernel_params *p)
{
	struct fake_node *n = set(exec, node), to;

	if (!n)
		return TE__CU_ERROR_INVALID_VALUE;
	ck_assert_ptr_eq(p->func, &fake_handle);
	to = fill_node(p->params);
	n->dst = to.dst;
	n->value = to.value;
	n->elem = to.elem;
	n->n = to.n;
	return 0;
}

int fake_cuGraphKernelNodeGetAttribute(void *node, int attribute,
				       union te__cu_launch_value *ret_value)
{
	const unsigned n = ((struct fake_node *)node)->cluster;

	ck_assert_int_eq(attribute, TE__CU_LAUNCH_CLUSTER_DIMENSION);
	ret_value->cluster[0] = n;
	ret_value->cluster[1] = ret_value->cluster[2] = n ? 1 : 0;
	return 0;
}

/* a kernel that is no te_k_fill of the library's has the same parameter */
int fake_cuGraphKernelNodeGetParams(void *node, struct te__cu_kernel_params *ret_params)
{
	static struct te_k_fill fill;
	static void *param[] = { &fill };
	const struct fake_node *n = node;

	fill = (struct te_k_fill){ (void *)(uintptr_t)n->dst, (int64_t)n->n, n->value,
				   (int32_t)n->elem };
	*ret_params = (struct te__cu_kernel_params){
		.func = &fake_handle,
		.grid = { 1, 1, 1 },
		.block = { 1, 1, 1 },
		.params = param,
	};
	return 0;
}

int fake_cuFuncGetParamInfo(void *func, size_t index, size_t *ret_offset, size_t *ret_nbytes)
{
	ck_assert_ptr_eq(func, &fake_handle);
	*ret_offset = 0;
	*ret_nbytes = sizeof(struct te_k_fill);
	return index ? TE__CU_ERROR_INVALID_VALUE : 0;
}

static int graph_add(void *graph, struct fake_node what, void **ret_node)
{
	struct graph *g = graph;
	struct fake_node *n = malloc(sizeof(*n));

	*n = what;
	n->graph = g->number;
	ck_assert_int_lt(g->n, FAKE_NODES);
	g->node[g->n++] = n;
	*ret_node = n;
	return 0;
}

int fake_cuGraphAddKernelNode(void **ret_node, void *graph, void *const *deps, size_t ndeps,
			      const struct te__cu_kernel_params *p)
{
	struct fake_node n = fill_node(p->params);

	ck_assert_uint_le(ndeps, 1);
	ck_assert_uint_ge(p->grid[0], 1);
	n.ndeps = (int)ndeps;
	n.dep[0] = ndeps ? deps[0] : NULL;
	return graph_add(graph, n, ret_node);
}

int fake_cuGraphDestroyNode(void *node)
{
	struct fake_node *n = node;

	/* its edges have been removed; its memory is freed with the graph */
	ck_assert_int_eq(n->ndeps, 0);
	n->type = TE__CU_NODE_EMPTY;
	return 0;
}

/* like driver 580, applies the data of the first edge to all edges */
int fake_cuGraphAddDependencies(void *graph, void *const *from, void *const *to,
				const struct te__cu_edge_data *data, size_t n)
{
	const int pdl = data[0].type == TE__CU_EDGE_PROGRAMMATIC;
	const struct te__cu_edge_data want = edge_data(pdl);

	for (size_t i = 0; i < n; i++) {
		struct fake_node *node = to[i];

		ck_assert_mem_eq(&data[i], &want, sizeof(want));
		if (pdl && (node->type != TE__CU_NODE_KERNEL ||
			      ((struct fake_node *)from[i])->type != TE__CU_NODE_KERNEL))
			return TE__CU_ERROR_INVALID_VALUE;
		ck_assert_int_lt(node->ndeps, FAKE_DEPS);
		node->pdl[node->ndeps] = pdl;
		node->dep[node->ndeps++] = from[i];
	}
	return 0;
}

int fake_cuGraphRemoveDependencies(void *graph, void *const *from, void *const *to,
				   const struct te__cu_edge_data *data, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct fake_node *node = to[i];
		int k = 0;

		ck_assert_mem_eq(&data[i], &data[0], sizeof(*data));
		while (k < node->ndeps && node->dep[k] != from[i])
			k++;
		if (k == node->ndeps ||
		    node->pdl[k] != (data[0].type == TE__CU_EDGE_PROGRAMMATIC))
			return TE__CU_ERROR_INVALID_VALUE;
		node->dep[k] = node->dep[--node->ndeps];
		node->pdl[k] = node->pdl[node->ndeps];
	}
	return 0;
}
#pragma GCC diagnostic pop

void *fake_stream(int number)
{
	return &place[number];
}

void fake_graph_setup(void)
{
	const struct te__cuda_driver d = fake_driver();

	memset(&fake, 0, sizeof(fake));
	memset(place, 0, sizeof(place));
	graphs_made = 0;
	sets = 0;
	te__cuda_driver_fake(&d);
}
