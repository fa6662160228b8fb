/* t/backend/cuda_exec_edges.c - concurrent and programmatic edges of captures, cuda backend. */
#include "config.h"

#include <stddef.h>

#include <te/capture.h>
#include <te/dtype.h>

#include "cuda_exec_lib.h"
#include "tt_ctx.h"

static _Alignas(16) unsigned char memory[1024];

/* a user-defined kernel */
static void queue_external(unsigned char *dst, unsigned value, size_t n, int pdl)
{
	fake.next_pdl = pdl;
	DO(fake_queue(a.stream, (struct fake_node){ .type = TE__CU_NODE_KERNEL,
						    .dst = (uintptr_t)dst,
						    .value = value,
						    .elem = 1,
						    .n = n }));
}

/* 16 bytes of d from a and b, by a memset of scratch and a kernel */
static int queue_gemm(unsigned char *d, const unsigned char *from, unsigned char *scratch,
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
	/* the result depends on all of its memory */
	if (!r)
		r = fake_queue(a.stream, (struct fake_node){ .type = TE__CU_NODE_KERNEL,
							     .dst = (uintptr_t)d,
							     .src = (uintptr_t)scratch,
							     .n = 8 });
	if (!r)
		r = fake_queue(a.stream, (struct fake_node){ .type = TE__CU_NODE_KERNEL,
							     .dst = (uintptr_t)d + 8,
							     .src = (uintptr_t)from,
							     .n = 8 });
	return r ? r : te__cuda_note(&a, &what, before);
}

/* a list of the edges takes the driver long, and is made at most once */
static void *captured_edges(uint32_t edges, void (*queue_all)(void))
{
	const int lists = fake.edge_lists;
	void *graph;

	DO(ops->capture_begin(&a));
	DO(ops->capture_edges(&a, edges));
	queue_all();
	DO(ops->capture_end(&a, &graph));
	ck_assert_int_le(fake.edge_lists, lists + 1);
	return graph;
}

static int is_kernel(const struct te__gnode *n)
{
	return n->kind == TE_NODE_KERNEL ||
	       (n->kind == TE_NODE_FILL && !n->opaque && n->id != TE_K_GEMM);
}

static int is_own_kernel(const struct te__gnode *n)
{
	return is_kernel(n) && !n->opaque && !n->declared && n->id != TE_K_GEMM;
}

/* the driver's edges equal those of the nodes, and are programmatic if possible */
static void check_edges(void *graph, uint32_t edges)
{
	const int has_pdl = (dev.target.features & TE_FEATURE_PDL) != 0;
	const struct te__cuda_graph *g = graph;

	for (size_t i = 0; i < g->nodes->n; i++) {
		const struct fake_node *have = g->nodes->node[i];
		const struct te__gnode *want = &g->info[i];

		ck_assert_int_eq(have->ndeps, (int)want->ndeps);
		for (uint32_t k = 0; k < want->ndeps; k++) {
			const struct te__gnode *from = &g->info[want->dep[k]];
			int at = 0;

			while (at < have->ndeps && have->dep[at] != g->nodes->node[want->dep[k]])
				at++;
			ck_assert_msg(at < have->ndeps, "node %zu: no edge from %u", i,
				      want->dep[k]);
			ck_assert_msg(have->pdl[at] == (edges & TE_CAPTURE_PDL && has_pdl &&
							  is_own_kernel(want) && is_kernel(from)),
				      "the edge from %u to %zu is %sprogrammatic", want->dep[k], i,
				      have->pdl[at] ? "" : "not ");
		}
	}
}

static int ntype(void *graph, int type)
{
	const struct te__cuda_graph *g = graph;
	int n = 0;

	for (size_t i = 0; i < g->nodes->n; i++)
		n += ((const struct fake_node *)g->nodes->node[i])->type == type;
	return n;
}

static void queue_chain(void)
{
	DO(ops->fill8(&a, x, 1, 64));
	DO(queue_gemm(y, x, z, 3));
	DO(ops->fill8(&a, z, 2, 64));
	DO(ops->copy(&a, z, y, 16));
	DO(ops->fill8(&a, x, 4, 64));
}

TEST_EACH(graphs, fills_and_memsets_of_gemms_are_kernels, 4)
{
	const uint32_t edges = (uint32_t)_i;
	void *graph = captured_edges(edges, queue_chain), *exec;

	ck_assert_int_eq(ntype(graph, TE__CU_NODE_MEMSET), 0);
	ck_assert_int_eq(ntype(graph, TE__CU_NODE_KERNEL), 6);
	ck_assert_int_eq(node(graph, 0).kind, TE_NODE_FILL);
	ck_assert_int_eq(node(graph, 1).kind, TE_NODE_KERNEL);
	ck_assert_int_eq(node(graph, 1).id, TE_K_GEMM);
	for (uint64_t i = 1; i < 7; i++)
		if (!(edges & TE_CAPTURE_CONCURRENT) || (i > 1 && i < 4)) {
			/* serial edges, and those within the GEMM */
			ck_assert_uint_eq(node(graph, i).ndeps, 1);
			ck_assert_uint_eq(node(graph, i).dep[0], i - 1);
		}
	check_edges(graph, edges);
	DO(ops->graph_instantiate(graph, &exec));
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

/* each node without dependencies makes a launch slower */
TEST(graphs, one_node_has_no_dependencies)
{
	void *graph = captured_edges(TE_CAPTURE_CONCURRENT, queue_three);

	ck_assert_uint_eq(((struct te__cuda_graph *)graph)->nodes->n, 4);
	ck_assert_uint_eq(node(graph, 0).ndeps, 0);
	ck_assert_uint_eq(node(graph, 0).nbytes, 0);
	for (uint64_t i = 1; i < 4; i++) {
		ck_assert_uint_eq(node(graph, i).ndeps, 1);
		ck_assert_uint_eq(node(graph, i).dep[0], 0);
	}
	check_edges(graph, TE_CAPTURE_CONCURRENT);
	ops->graph_destroy(graph);
	/* if there is just one already, none is added */
	graph = captured_edges(TE_CAPTURE_CONCURRENT, queue_after_one);
	ck_assert_uint_eq(((struct te__cuda_graph *)graph)->nodes->n, 4);
	for (uint64_t i = 1; i < 4; i++)
		ck_assert_uint_eq(node(graph, i).dep[0], 0);
	check_edges(graph, TE_CAPTURE_CONCURRENT);
	ops->graph_destroy(graph);
	graph = captured_edges(TE_CAPTURE_PDL, queue_three);
	ck_assert_uint_eq(((struct te__cuda_graph *)graph)->nodes->n, 3);
	ops->graph_destroy(graph);
}

/* a memset of the caller, and one of a GEMM that te_k_fill cannot do */
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
	DO(fake_queue(a.stream, (struct fake_node){ .type = TE__CU_NODE_MEMSET,
						    .dst = (uintptr_t)y,
						    .value = 0x304,
						    .elem = 2,
						    .n = 8 }));
	DO(fake_queue(a.stream, (struct fake_node){ .type = TE__CU_NODE_KERNEL }));
	DO(te__cuda_note(&a, &what, before));
	DO(ops->fill8(&a, y, 5, 1));
}

TEST_EACH(graphs, other_memsets_are_kept, 4)
{
	const uint32_t edges = (uint32_t)_i;
	void *graph = captured_edges(edges, queue_memsets), *exec;

	ck_assert_int_eq(ntype(graph, TE__CU_NODE_MEMSET), 2);
	ck_assert_int_eq(node(graph, 1).opaque, 1);
	ck_assert_int_eq(node(graph, 3).kind, TE_NODE_FILL);
	ck_assert_int_eq(node(graph, 3).id, TE_K_GEMM);
	check_edges(graph, edges);
	DO(ops->graph_instantiate(graph, &exec));
	DO(ops->graph_launch(exec, &a));
	ck_assert(x[0] == 1 && x[2] == 2 && x[3] == 1 && y[0] == 5 && y[1] == 3 && y[14] == 4);
	ops->exec_destroy(exec);
}

static int with_gemm;

static void queue_external_chain(void)
{
	DO(ops->fill8(&a, x, 1, 64));
	queue_external(x, 2, 32, 0);
	queue_external(x, 3, 16, 1); /* with a programmatic edge of the caller */
	DO(ops->fill8(&a, x, 4, 8));
	if (with_gemm)
		DO(queue_gemm(y, x, z, 3));
}

/* they are kept, or full if edges are added anew: a user-defined kernel may not wait by itself */
TEST(graphs, programmatic_edges_of_the_caller)
{
	for (with_gemm = 0; with_gemm < 2; with_gemm++)
		for (uint32_t edges = 0; edges < 4; edges++) {
			void *graph = captured_edges(edges, queue_external_chain), *exec;
			const struct te__cuda_graph *g = graph;
			const struct fake_node *n = g->nodes->node[2];

			ck_assert_int_eq(node(graph, 2).opaque, 1);
			ck_assert_int_eq(n->ndeps, 1);
			ck_assert_int_eq(n->pdl[0], !edges && !with_gemm);
			if (edges || with_gemm)
				check_edges(graph, edges);
			/* opaque nodes are barriers */
			for (uint64_t i = 1; i < 4; i++) {
				ck_assert_uint_eq(node(graph, i).ndeps, 1);
				ck_assert_uint_eq(node(graph, i).dep[0], i - 1);
			}
			DO(ops->graph_instantiate(graph, &exec));
			DO(ops->graph_launch(exec, &a));
			ck_assert(x[7] == 4 && x[8] == 3 && x[16] == 2 && x[32] == 1);
			ops->exec_destroy(exec);
		}
}

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
			queue_external(dst, todo[i].value, todo[i].n, todo[i].value & 1);
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
			DO(queue_gemm(dst, src, memory + 512, todo[i].value));
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

/* replay gives the results of eager execution, in every order that the edges allow */
TEST(graphs, any_work_with_any_edges)
{
	static unsigned char want[sizeof(memory)];

	for (int trial = 0; trial < 1000; trial++) {
		const uint32_t edges = (uint32_t)trial & 3;
		const int known = (int)tt_rand_int(0, 1); /* 0: also opaque nodes */
		void *graph, *exec;

		/* below 90 no edge is programmatic */
		dev.target = te__target_of(trial & 4 ? 89 : 90);
		ntodo = (int)tt_rand_int(1, TT_LEN(todo));
		for (int i = 0; i < ntodo; i++) {
			todo[i].what = (int)tt_rand_int(known ? 3 : 0, 9);
			todo[i].n = (size_t)tt_rand_int(1, 32);
			/* source and destination of copies and GEMMs do not overlap */
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
		memset(memory, 0, sizeof(memory));
		DO(ops->graph_launch(exec, &a));
		ops->exec_destroy(exec);
		ck_assert_mem_eq(memory, want, sizeof(want));
	}
}

/* ---- user-defined work with declared memory ---- */

static struct te__declared writes(const unsigned char *p, size_t nbytes, int32_t at)
{
	return (struct te__declared){
		.ranges = { 1, { { (uintptr_t)p, nbytes, TE__WRITE } } },
		.at = { at },
	};
}

/* a fill; two kernels with one declaration, another, a host call; a fill of what the first kernel
 * wrote. Node 0 is added before all that have no dependencies */
static void queue_declared(void)
{
	const struct te__declared kernels = writes(memory + 64, 32, -1);
	const struct te__declared one = writes(memory + 128, 16, offsetof(struct te_k_fill, dst));
	const struct te__declared call = writes(memory + 256, 8, -1);

	DO(ops->fill8(&a, memory, 1, 16));
	DO(ops->capture_access(&a, &kernels));
	queue_external(memory + 64, 2, 16, 0);
	queue_external(memory + 80, 3, 16, 0);
	DO(ops->capture_access(&a, NULL));
	DO(ops->capture_access(&a, &one));
	queue_external(memory + 128, 4, 16, 0);
	DO(ops->capture_access(&a, NULL));
	DO(ops->capture_access(&a, &call));
	DO(ops->host_call(&a, nothing, memory, 8));
	DO(ops->capture_access(&a, NULL));
	DO(ops->capture_access(&a, &one));
	DO(ops->capture_access(&a, NULL)); /* of nothing */
	DO(ops->fill8(&a, memory + 64, 5, 8));
}

static void check_memory(const unsigned char *fourth)
{
	ck_assert_int_eq(memory[15], 1);
	ck_assert_int_eq(memory[64], 5);
	ck_assert_int_eq(memory[72], 2);
	ck_assert_int_eq(memory[95], 3);
	ck_assert_int_eq(fourth[15], 4);
}

static void *recorded;

/* a fill, another, an event after the first, a third fill */
static void queue_event(void)
{
	struct te__declared first = writes(memory, 16, -1);

	first.ranges.v[0].access = TE__READ;
	DO(ops->fill8(&a, memory, 1, 16));
	DO(ops->fill8(&a, memory + 128, 1, 16));
	DO(ops->capture_access(&a, &first));
	DO(ops->event_record_external(recorded, &a));
	DO(ops->capture_access(&a, NULL));
	DO(ops->fill8(&a, memory + 256, 1, 16));
}

TEST(graphs, declared_events_have_their_edges)
{
	void *graph;

	DO(ops->event_create(&dev, &recorded));
	graph = captured_edges(TE_CAPTURE_CONCURRENT, queue_event);
	ck_assert_uint_eq(((struct te__cuda_graph *)graph)->nodes->n, 5);
	ck_assert_int_eq((int)node(graph, 3).kind, TE_NODE_EVENT);
	ck_assert_ptr_eq(node(graph, 3).event, recorded);
	ck_assert_int_eq((int)node(graph, 3).ndeps, 1);
	ck_assert_int_eq((int)node(graph, 3).dep[0], 1);
	ck_assert_int_eq((int)node(graph, 4).ndeps, 1);
	ck_assert_int_eq((int)node(graph, 4).dep[0], 0);
	check_edges(graph, TE_CAPTURE_CONCURRENT);
	ops->graph_destroy(graph);
	ops->event_destroy(recorded);
}

TEST_EACH(graphs, declared_kernels_have_their_edges_and_pointers, 2)
{
	/* the node that each depends on, and whether there is one */
	static const int dep[7][2] = { { 0 },	 { 0, 1 }, { 0, 1 }, { 2, 1 },
				       { 0, 1 }, { 0, 1 }, { 3, 1 } };
	const uint32_t edges = TE_CAPTURE_CONCURRENT | (_i ? TE_CAPTURE_PDL : 0);
	void *graph = captured_edges(edges, queue_declared), *exec;
	struct te__declared to;
	struct te__patch p;

	ck_assert_uint_eq(((struct te__cuda_graph *)graph)->nodes->n, 7);
	for (uint64_t i = 0; i < 7; i++) {
		ck_assert_int_eq((int)node(graph, i).ndeps, dep[i][1]);
		if (dep[i][1])
			ck_assert_int_eq((int)node(graph, i).dep[0], dep[i][0]);
		ck_assert(!node(graph, i).opaque);
		ck_assert_int_eq(node(graph, i).declared != NULL, i > 1 && i < 6);
		ck_assert_int_eq(node(graph, i).fixed, i > 1 && i < 6 && i != 4);
	}
	check_edges(graph, edges);
	DO(ops->graph_instantiate(graph, &exec));
	DO(ops->graph_launch(exec, &a));
	check_memory(memory + 128);
	/* patched, also after an update in place, whose nodes are those of the first graph */
	for (int k = 0; k < 2; k++) {
		const struct te__gnode n = node(ops->exec_graph(exec), 4);

		memset(memory, 0, sizeof(memory));
		to = *n.declared;
		to.ranges.v[0].ptr = (uintptr_t)memory + 512;
		p = (struct te__patch){ .index = 4, .from = n, .to = n };
		p.to.declared = &to;
		DO(ops->exec_patch(exec, 1, &p));
		ck_assert_uint_eq(node(ops->exec_graph(exec), 4).declared->ranges.v[0].ptr,
				  (uintptr_t)memory + 512);
		DO(ops->graph_launch(exec, &a));
		check_memory(memory + 512);
		ck_assert_int_eq(memory[128], 0);
		graph = captured_edges(edges, queue_declared);
		ck_assert_int_eq(ops->exec_update(exec, graph, 1), TE_UPDATE_IN_PLACE);
	}
	ops->exec_destroy(exec);
}

/* ---- words ---- */

/* a copy, a word that announces it, a copy elsewhere; the word is taken before the copy back */
static void queue_words(void)
{
	uint32_t *word = (uint32_t *)memory + 128;
	const struct te__declared slot = writes(memory + 64, 16, -1);

	DO(ops->copy(&a, memory + 64, memory, 16));
	DO(ops->capture_access(&a, &slot));
	DO(ops->word_set(&a, word, 1));
	DO(ops->capture_access(&a, NULL));
	DO(ops->copy(&a, memory + 192, memory, 16));
	DO(ops->capture_access(&a, &slot));
	DO(ops->word_take(&a, word));
	DO(ops->capture_access(&a, NULL));
	DO(ops->copy(&a, memory + 128, memory + 64, 16));
}

TEST(graphs, words_follow_the_memory_that_is_declared)
{
	static const int dep[6] = { -1, 0, 1, 0, 2, 4 }; /* node 0 is as above */
	void *graph = captured_edges(TE_CAPTURE_CONCURRENT, queue_words), *exec;
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	uint32_t word;

	DO(ops->graph_info(graph, &info));
	ck_assert_uint_eq(info.nnodes, 6);
	ck_assert_uint_eq(info.ncopies, 3);
	ck_assert_uint_eq(info.nhost, 0);
	for (uint64_t i = 0; i < 6; i++) {
		const struct te__gnode n = node(graph, i);
		const int word = i == 2 || i == 4;

		ck_assert_int_eq(n.kind == TE_NODE_OTHER, word);
		ck_assert(!n.opaque);
		ck_assert_int_eq(n.declared != NULL, word);
		ck_assert_int_eq(n.ndeps ? (int)n.dep[0] : -1, dep[i]);
	}
	DO(ops->graph_instantiate(graph, &exec));
	for (int k = 0; k < 2; k++) {
		tt_fill_bytes(memory, 16);
		DO(ops->graph_launch(exec, &a));
		ck_assert_mem_eq(memory + 128, memory, 16);
		memcpy(&word, memory + 512, 4);
		ck_assert_uint_eq(word, 0);
	}
	ops->exec_destroy(exec);
}

TEST(graphs, words_can_be_refused)
{
	fake.no_words = 1;
	fails(ops->word_set(&a, memory, 1), -EOPNOTSUPP, "in stream order");
	fails(ops->word_take(&a, memory), -EOPNOTSUPP, "in stream order");
}

/* the captured kernel has another pointer at that place */
TEST_EACH(graphs, a_wrong_place_in_parameters_is_found, 2)
{
	const struct te__declared d = writes(memory + (_i ? 128 : 144), 16, _i ? 400 : 0);
	void *graph = NULL;

	DO(ops->capture_begin(&a));
	DO(ops->capture_access(&a, &d));
	queue_external(memory + 128, 4, 16, 0);
	ck_assert_int_eq(ops->capture_end(&a, &graph), -EINVAL);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "te_capture_access: range 0: byte"));
	ck_assert_ptr_null(graph);
}

static uint32_t sweep_edges;

/* memsets that become kernels, an added first node, edges of both kinds */
static int sweep_of_edges(void)
{
	const struct te__declared declared = writes(memory + 512, 16, 0);
	void *graph = NULL, *exec = NULL;
	int r = ops->capture_begin(&a), end;

	if (r)
		return r;
	r = ops->capture_edges(&a, sweep_edges);
	for (int k = 0; !r && k < 3; k++)
		r = ops->fill8(&a, memory + 64 * k, 1, 16);
	if (!r)
		r = queue_gemm(memory + 64, memory + 128, memory + 256, 2);
	if (!r)
		r = ops->capture_access(&a, &declared);
	if (!r)
		queue_external(memory + 512, 1, 16, 0);
	if (!r)
		r = ops->capture_access(&a, NULL);
	if (!r)
		r = ops->fill8(&a, memory + 64, 1, 8);
	end = ops->capture_end(&a, &graph);
	if (!r && !end)
		r = ops->graph_instantiate(graph, &exec);
	give_back(exec ? NULL : graph, exec);
	return r ? r : end;
}

TEST_EACH(graphs, each_call_for_edges_fails_cleanly, 4)
{
	sweep_edges = (uint32_t)_i;
	ck_assert_int_gt(tt_fault_each(sweep_of_edges), 40);
}
