/*
 * t/backend/cuda_exec.c - captured nodes, updates and patches of the cuda backend, with the driver
 * of cuda_fake_graph.h.
 */
#include "config.h"

#include <te/capture.h>
#include <te/errno.h>

#include "cuda_exec_lib.h"
#include "kernels/launch.h"

/* ---- nodes ---- */

TEST(graphs, numbers_nodes_as_they_were_captured)
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
		ck_assert_int_eq(n.opaque, 0);
		for (uint32_t d = 0; d < n.ndeps; d++)
			ck_assert_uint_eq(n.dep[d], want[k].dep[d]);
	}
	ck_assert_ptr_eq(node(graph, 1).dst, y);
	ck_assert_ptr_eq(node(graph, 1).src, x);
	ck_assert_uint_eq(node(graph, 4).value, 2);
	ck_assert_ptr_eq(node(graph, 3).event, out);
	ck_assert_ptr_null(node(graph, 4).event);
	ops->event_destroy(fork);
	ops->event_destroy(join);
	ops->event_destroy(out);
	ck_assert_int_eq(fake.events, 1); /* the graph records it */
	ops->graph_destroy(graph);
}

/* a GEMM of three nodes, in the second run after a node that the library did not queue */
TEST_EACH(graphs, a_gemm_is_a_chain_of_nodes, 2)
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
	memset(&args, 0xff, sizeof(args)); /* the arguments were copied */
	DO(ops->fill8(&a, x, 2, 9));
	DO(ops->capture_end(&a, &graph));
	if (_i) {
		ck_assert_int_eq(node(graph, 0).opaque, 1);
		ck_assert_int_eq(node(graph, 0).id, -1);
	}
	for (uint64_t k = 0; k < 3; k++) {
		struct te__gnode n = node(graph, k + (uint64_t)_i);

		ck_assert_int_eq(n.id, TE_K_GEMM);
		ck_assert_int_eq(n.opaque, 0);
		ck_assert_int_eq(n.fixed, 1);
		ck_assert_ptr_eq(((const struct te_k_gemm *)n.args)->b, y);
		ck_assert_uint_eq(n.nbytes, k == 2 ? sizeof(args) : 0);
	}
	ck_assert_int_eq(node(graph, 3 + (uint64_t)_i).id, -1);
	ops->graph_destroy(graph);
}

/* ---- updates and patches ---- */

static void *captured(unsigned char *dst, uint8_t value, int longer)
{
	void *graph;

	DO(ops->capture_begin(&a));
	DO(ops->fill8(&a, dst, value, 64));
	DO(ops->copy(&a, z, dst, 64));
	DO(ops->host_call(&a, nothing, "args", 5)); /* so that launches must be waited for */
	if (longer)
		DO(ops->fill8(&a, dst, 0, 1));
	DO(ops->capture_end(&a, &graph));
	return graph;
}

static void update(void *exec, void *graph, int same, int want)
{
	ck_assert_int_eq(ops->exec_update(exec, graph, same), want);
}

TEST(graphs, keeps_memory_that_a_queued_launch_uses)
{
	void *exec;

	DO(ops->graph_instantiate(captured(x, 1, 0), &exec));
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
	/* the driver cannot update in place: instantiated again; no event is pending any more */
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

/* patches name nodes of the graph that was instantiated, also after an update in place */
TEST(graphs, patches_all_or_nothing)
{
	static unsigned char x2[64], z2[64];
	void *exec;
	struct te__patch p[2];

	DO(ops->graph_instantiate(captured(x, 1, 0), &exec));
	update(exec, captured(x, 5, 0), 1, TE_UPDATE_IN_PLACE);
	for (uint64_t k = 0; k < 2; k++) {
		const struct te__gnode n = node(ops->exec_graph(exec), k);

		p[k] = (struct te__patch){ .index = k, .from = n, .to = n };
	}
	p[0].to.dst = x2;
	p[1].to.src = x2;
	p[1].to.dst = z2;
	fake.fail_set = 2;
	ck_assert_int_eq(ops->exec_patch(exec, 2, p), -EOPNOTSUPP);
	ck_assert_ptr_nonnull(strstr(te_error_detail(), "node 1 (copy of 64 bytes)"));
	te_error_clear();
	ck_assert_ptr_eq(node(ops->exec_graph(exec), 0).dst, x);
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
	ck_assert_ptr_eq(node(ops->exec_graph(exec), 0).dst, x2);
	ck_assert_ptr_eq(node(ops->exec_graph(exec), 1).dst, z2);
	ops->exec_destroy(exec);
}

static const struct te_k_fill *fill_args(void *exec)
{
	return node(ops->exec_graph(exec), 0).args;
}

/* the arguments of a kernel are those of its latest patch that succeeded */
TEST(graphs, a_patch_changes_the_arguments_of_a_kernel)
{
	struct te_k_fill args = { x, 64, 7, 1 };
	void *graph, *exec;
	struct te__patch p;

	DO(ops->capture_begin(&a));
	DO(ops->launch(&a, &(struct te__launch){ TE_K_FILL, &args, sizeof(args) }));
	DO(ops->capture_end(&a, &graph));
	p = (struct te__patch){ .from = node(graph, 0), .to = node(graph, 0) };
	DO(ops->graph_instantiate(graph, &exec));
	ck_assert_ptr_eq(fill_args(exec)->dst, x);
	args.dst = y;
	p.to.args = &args;
	fake.fail_set = 1;
	ck_assert_int_lt(ops->exec_patch(exec, 1, &p), 0);
	te_error_clear();
	ck_assert_ptr_eq(fill_args(exec)->dst, x);
	fake.fail_set = 0;
	DO(ops->exec_patch(exec, 1, &p));
	ck_assert_ptr_eq(fill_args(exec)->dst, y);
	ck_assert_ptr_ne(fill_args(exec), &args);
	memset(y, 0, sizeof(y));
	DO(ops->graph_launch(exec, &a));
	ck_assert_int_eq(y[63], 7);
	ops->exec_destroy(exec);
}

static void *kernel_captured(unsigned char *dst, unsigned cluster)
{
	const struct te_k_fill args = { dst, 64, cluster + 1, 1 };
	void *graph;

	fake.cluster = cluster;
	DO(ops->capture_begin(&a));
	DO(ops->launch(&a, &(struct te__launch){ TE_K_FILL, &args, sizeof(args) }));
	DO(ops->capture_end(&a, &graph));
	return graph;
}

/* the driver would run a kernel without clusters with those of the kernel before */
TEST(graphs, clusters_do_not_remain)
{
	static const struct {
		unsigned cluster;
		int how;
	} to[] = {
		{ 0, TE_UPDATE_IN_PLACE },     { 2, TE_UPDATE_IN_PLACE }, { 4, TE_UPDATE_IN_PLACE },
		{ 0, TE_UPDATE_INSTANTIATED }, { 0, TE_UPDATE_IN_PLACE },
	};
	void *exec;

	DO(ops->graph_instantiate(kernel_captured(x, 0), &exec));
	for (size_t i = 0; i < TT_LEN(to); i++) {
		update(exec, kernel_captured(x, to[i].cluster), 1, to[i].how);
		DO(ops->graph_launch(exec, &a));
		ck_assert_uint_eq(x[63], to[i].cluster + 1);
	}
	ck_assert_int_eq(fake.wrong_clusters, 0);
	ops->exec_destroy(exec);
}

static void *one_fill(unsigned char *dst, uint32_t value, size_t n)
{
	void *graph;

	DO(ops->capture_begin(&a));
	DO(value > 255 ? ops->fill32(&a, dst, value, n) : ops->fill8(&a, dst, (uint8_t)value, n));
	DO(ops->capture_end(&a, &graph));
	return graph;
}

/* how many of 64 bytes are value; the others must be 0 */
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

/* a graph of one fill is launched as a memset of the driver, also after patches and updates */
TEST(graphs, one_fill_needs_no_graph)
{
	void *graph = one_fill(x, 3, 64), *exec;
	struct te__patch p = { .index = 0, .from = node(graph, 0), .to = node(graph, 0) };

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
	update(exec, one_fill(x, 0x05050505, 8), 1, TE_UPDATE_IN_PLACE);
	launch_of_one(exec);
	ck_assert_int_eq(filled(x, 5), 32);
	ck_assert_int_eq(fake.launches, 0);
	/* more than one node needs a graph */
	update(exec, captured(x, 6, 0), 0, TE_UPDATE_INSTANTIATED);
	launch_of_one(exec);
	ck_assert_int_eq(filled(x, 6), 64);
	ck_assert_int_eq(fake.launches, 1);
	ops->exec_destroy(exec);
}

/* not in the driver's copy, in which no other thread can queue work of the context */
TEST(graphs, waits_before_a_copy_to_pageable_memory)
{
	void *graph;
	int n = fake.syncs;

	fake.pageable = y;
	DO(ops->copy(&a, z, x, 8));
	DO(ops->copy(&a, x, y, 8));
	ck_assert_int_eq(fake.syncs, n);
	DO(ops->copy(&a, y, x, 8));
	ck_assert_int_eq(fake.syncs, n + 1);
	DO(ops->capture_begin(&a));
	DO(ops->copy(&a, y, x, 8));
	DO(ops->capture_end(&a, &graph));
	ck_assert_int_eq(fake.syncs, n + 1);
	give_back(graph, NULL);
	fake.pageable = NULL;
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
	void *graph = NULL, *next = NULL, *exec = NULL;
	int r = capture(&graph);

	if (!r)
		r = ops->graph_instantiate(graph, &exec);
	if (!r)
		graph = NULL; /* the exec has it; so after an update */
	for (int same = 1; !r && same >= 0; same--) {
		r = capture(&next);
		if (!r)
			r = ops->exec_update(exec, next, same);
		if (r > 0) {
			next = NULL;
			r = ops->graph_launch(exec, &a);
		}
		give_back(next, NULL);
		next = NULL;
	}
	give_back(graph, exec);
	return r;
}

TEST(graphs, each_call_fails_cleanly)
{
	ck_assert_int_gt(tt_fault_each(sweep), 30);
}

/* ---- streams of the program ---- */

static int no_destroy(void *stream)
{
	ck_abort_msg("the stream %p of the program is destroyed", stream);
	return 0;
}

CASE(streams_of_the_program, "host fast", .name = "streams of the program", .setup = exec_setup,
     .teardown = exec_teardown);

TEST(streams_of_the_program, a_wrapped_stream_is_not_destroyed)
{
	void *s, *graph;

	te__cu.cuStreamDestroy = no_destroy;
	DO(ops->stream_wrap(&dev, fake_stream(0), &s));
	ck_assert_ptr_eq(ops->stream_native(s), fake_stream(0));
	DO(ops->fill8(s, x, 3, 5));
	ck_assert_int_eq(x[4], 3);
	DO(ops->capture_begin(s));
	DO(ops->fill8(s, x, 4, 5));
	DO(ops->capture_end(s, &graph));
	ck_assert_int_eq(x[4], 3);
	ops->graph_destroy(graph);
	/* a capture that the library began ends with it */
	DO(ops->capture_begin(s));
	ops->stream_destroy(s);
	ck_assert_int_eq(fake.graphs, 0);
}

TEST(streams_of_the_program, wraps_streams_of_its_context_only)
{
	void *s = &dev;

	fails(ops->stream_wrap(&dev, (void *)TE__CU_STREAM_PER_THREAD, &s), -EINVAL,
	      "another stream in each thread");
	fails(ops->stream_wrap(&dev, x, &s), -EINVAL, "is no CUstream that can be used");
	dev.ctx = y;
	fails(ops->stream_wrap(&dev, fake_stream(0), &s), -EINVAL, "of the CUcontext");
	ck_assert_ptr_eq(s, &dev);
}

TEST_EACH(streams_of_the_program, the_legacy_stream_is_wrapped_and_not_captured, 2)
{
	void *native = (void *)(uintptr_t)(_i ? TE__CU_STREAM_LEGACY : 0), *s;

	DO(ops->stream_wrap(&dev, native, &s));
	ck_assert_ptr_eq(ops->stream_native(s), native);
	fails(ops->capture_begin(s), -EOPNOTSUPP, "the legacy default stream cannot be captured");
	ops->stream_destroy(s);
}

static void set_z(void *arg)
{
	memcpy(z, arg, 3);
}

TEST(streams_of_the_program, the_program_captures_a_wrapped_stream)
{
	void *s, *graph, *exec, *own, *own_exec, *ws, *p;

	DO(ops->stream_wrap(&dev, fake_stream(0), &s));
	DO(ops->capture_begin(&b));
	DO(ops->copy(&b, y, x, 3));
	DO(ops->capture_end(&b, &own));
	DO(ops->graph_instantiate(own, &own_exec));
	DO(te__cuda_workspace(s, 256, &ws));
	memset(x, 1, sizeof(x));
	memset(y, 0, sizeof(y));
	DO(te__cu.cuStreamBeginCapture(fake_stream(0), TE__CU_CAPTURE_MODE_THREAD_LOCAL));
	DO(ops->fill8(s, x, 5, 3));
	DO(ops->copy(s, y, x, 4));
	DO(ops->host_call(s, set_z, "abc", 3));
	/* a recording of it has a workspace of its own */
	DO(te__cuda_workspace(s, 256, &p));
	ck_assert_ptr_ne(p, ws);
	fails(ops->stream_sync(s), -EBUSY, "capturing");
	fails(ops->mem_alloc(s, 8, &p), -EBUSY, "capturing");
	fails(ops->capture_begin(s), -EBUSY, "capturing");
	fails(ops->graph_launch(own_exec, s), -EBUSY, "began without this library");
	ck_assert_int_eq(fake.memory, 2);
	ops->stream_destroy(s);
	ck_assert_int_eq(fake.memory, 2);
	DO(te__cu.cuStreamEndCapture(fake_stream(0), &graph));
	ck_assert_int_eq(x[0], 1);
	DO(te__cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
	DO(te__cu.cuGraphLaunch(exec, fake_stream(0)));
	ck_assert(x[2] == 5 && x[3] == 1 && y[2] == 5 && y[3] == 1);
	ck_assert(!memcmp(z, "abc", 3));
	te__cu.cuGraphExecDestroy(exec);
	te__cu.cuGraphDestroy(graph);
	ops->exec_destroy(own_exec);
	te__cuda_captures_drop(&dev); /* as when the device is closed */
}

/* ---- GPUs other than Hopper ---- */

CASE(other_GPUs, "host fast", .name = "other GPUs", .setup = exec_setup, .teardown = exec_teardown);

TEST_EACH(other_GPUs, fp8_needs_fp8_tensor_cores, 2)
{
	struct te_k_gemm g = { .a = x, .b = y, .d = z, .m = 16, .n = 16, .k = 16,
			       .adtype = TE_DTYPE_E4M3, .bdtype = TE_DTYPE_E5M2,
			       .cdtype = TE_DTYPE_BF16, .ddtype = TE_DTYPE_BF16, .alpha = 1.0f };
	const struct te__launch l = { TE_K_GEMM, &g, sizeof(g) };

	dev.target = te__target_of(_i ? 86 : 80);
	strcpy(dev.name, "NVIDIA A100-SXM4-80GB");
	fails(ops->launch(&a, &l), -EOPNOTSUPP,
	      _i ? "FP8 GEMM: GPU 0, NVIDIA A100-SXM4-80GB, with kernels for compute capability "
		   "8.6, has no FP8 tensor cores; the recipe bf16 runs there" :
		   "with kernels for compute capability 8.0, has no FP8");
	/* plans ask this before any launch */
	fails(ops->fp8_gemm(&dev, 0), -EOPNOTSUPP, "FP8 GEMM: GPU 0, NVIDIA A100");
	/* codes with scales of bytes are decoded to BF16; this build has no device functions */
	DO(ops->fp8_gemm(&dev, TE_K_SCALING_1X32));
	DO(ops->fp8_gemm(&dev, TE_K_SCALING_1X16));
	g.asc = g.bsc = TE_K_SCALING_1X32;
	fails(ops->launch(&a, &l), -TE_EKERNEL, "no device function te_k_gemm_mxfp8");
	g.asc = g.bsc = TE_K_SCALING_TENSOR;
	dev.target = te__target_of(_i ? 90 : 89);
	dev.cc = dev.target.arch;
	strcpy(dev.name, "NVIDIA L40S");
	DO(ops->fp8_gemm(&dev, 0));
	for (int s = TE_K_SCALING_1X128; s <= TE_K_SCALING_16X16; s++)
		DO(ops->fp8_gemm(&dev, s));
	/* the one level, 9.0, at which cuBLASLt has them, has no such kernels */
	if (!_i) {
		g.asc = TE_K_SCALING_1X128;
		g.bsc = TE_K_SCALING_128X128;
		fails(ops->launch(&a, &l), -TE_EKERNEL,
		      "this build has no device function te_k_gemm_block_e4m3_e5m2");
	}
}

static const char *func(int arch, enum te_k_id id, const void *args)
{
	const struct te__target t = te__target_of(arch);
	static struct te__geometry k;

	DO(te__geometry_for(&t, id, args, &k));
	ck_assert_msg(k.smem <= t.smem_max, "%s, %d: %u bytes", k.func, arch, k.smem);
	return k.func;
}

static const int archs[] = { 80, 86, 89, 90 };

TEST(other_GPUs, a_launch_beyond_shared_memory_fails)
{
	static _Alignas(16) unsigned char m[16];
	struct te_k_attn_bwd t = { .qkv = m, .out = m, .dout = m, .dqkv = m, .lse = (float *)m,
				   .delta = (float *)m, .batch = 1, .seqlen = 64, .nheads = 1,
				   .nkv = 1, .head_dim = 128, .scale = 1, .dtype = TE_DTYPE_FP32 };
	const struct te__launch l = { TE_K_ATTN_BWD_DQ, &t, sizeof(t) };
	static struct te__cuda_func own = { .name = "te_k_attn_bwd_dq_fp32_d64",
					    .func = &fake_handle, .smem = 4096 };

	dev.target = te__target_of(89);
	fails(ops->launch(&a, &l), -TE_EKERNEL,
	      "te_k_attn_bwd_dq_fp32_d128 takes 163840 bytes of shared memory for these shapes, "
	      "and GPU 0, ");
	t.head_dim = 64;
	fails(ops->launch(&a, &l), -TE_EKERNEL,
	      "this build has no device function te_k_attn_bwd_dq_fp32_d64");
	/* 98304 bytes of the launch and those of the function */
	dev.funcs = &own;
	fails(ops->launch(&a, &l), -TE_EKERNEL,
	      "te_k_attn_bwd_dq_fp32_d64 takes 102400 bytes of shared memory for these shapes, ");
}

TEST_EACH(other_GPUs, attention_fits_into_shared_memory, TT_LEN(archs))
{
	static _Alignas(16) unsigned char m[16];
	struct te_k_attn_fwd f = { .qkv = m, .out = m, .lse = (float *)m, .batch = 8, .nheads = 8,
				   .nkv = 4, .scale = 1 };
	struct te_k_attn_bwd t = { .qkv = m, .out = m, .dout = m, .dqkv = m, .lse = (float *)m,
				   .delta = (float *)m, .batch = 8, .nheads = 8, .nkv = 4,
				   .scale = 1 };
	const int arch = archs[_i];

	for (int i = 0; i < 4 * 2 * 2 * 3; i++) {
		f.head_dim = t.head_dim = 32 * (i % 4 + 1);
		f.threshold = t.threshold = i / 4 % 2;
		f.softcap = t.softcap = (float)(i / 8 % 2);
		f.seqlen = t.seqlen = i / 16 == 0 ? 16 : i / 16 == 1 ? 64 : 2048;
		f.dtype = t.dtype = TE_DTYPE_BF16;
		func(arch, TE_K_ATTN_FWD, &f);
		func(arch, TE_K_ATTN_BWD_DKV, &t);
		func(arch, TE_K_ATTN_BWD_DQ, &t);
		if (te__target_of(arch).smem_max < 160 << 10 && f.head_dim > 64)
			continue;
		f.dtype = t.dtype = TE_DTYPE_FP32;
		func(arch, TE_K_ATTN_FWD, &f);
		func(arch, TE_K_ATTN_BWD_DKV, &t);
		func(arch, TE_K_ATTN_BWD_DQ, &t);
	}
}

TEST_EACH(other_GPUs, norms_fit_into_shared_memory, TT_LEN(archs))
{
	static _Alignas(16) unsigned char m[16];
	struct te_k_norm_both n = { .dy = m, .x = m, .gamma = (float *)m, .mean = (float *)m,
				    .rstd = (float *)m, .dres = m, .dx = m,
				    .part_gamma = (float *)m, .rows = 1 };
	const int arch = archs[_i];
	const struct te__target t = te__target_of(arch);
	struct te__geometry k;

	for (int bf16 = 0; bf16 < 2; bf16++)
		for (int v = 1; v <= 32; v++) {
			n.dtype = bf16 ? TE_DTYPE_BF16 : TE_DTYPE_FP32;
			n.cols = TE_K_NORM_BOTH_COLS(n.dtype) / 32 * v;
			func(arch, TE_K_NORM_BOTH, &n);
		}
	n.dtype = TE_DTYPE_BF16;
	n.cols = 8192;
	ck_assert_str_eq(func(arch, TE_K_NORM_BOTH, &n),
			 arch == 86 || arch == 89 ? "te_k_norm_both_odd1_bf16" :
						    "te_k_norm_once_8192_res");
	n.q.row = n.q.col = m;
	n.rows = 64;
	for (n.cols = 8; n.cols <= (arch == 90 ? 4096 : 768); n.cols += 8) {
		DO(te__geometry_for(&t, TE_K_NORM_BOTH, &n, &k));
		ck_assert_ptr_nonnull(strstr(k.func, "_cast_"));
		ck_assert_uint_le(k.smem, TE_K_NORM_BOTH_CAST_NBYTES);
	}
	n.rows = 8;
	ck_assert_int_eq(te__geometry_for(&t, TE_K_NORM_BOTH, &n, &k), -EOPNOTSUPP);
}

TEST(other_GPUs, clusters_need_hopper)
{
	static _Alignas(16) unsigned char m[16];
	struct te_k_norm_fwd f = { .x = m, .gamma = (float *)m, .rstd = (float *)m, .rows = 128,
				   .cols = 2048, .q = { .row = m, .col = m },
				   .dtype = TE_DTYPE_BF16 };
	struct te_k_norm_bwd b = { .dy = m, .x = m, .gamma = (float *)m, .rstd = (float *)m,
				   .dx = m, .rows = 1024, .cols = 2048, .q = { .row = m, .col = m },
				   .dtype = TE_DTYPE_BF16 };
	struct te_k_ce_grad c = { .logits = m, .dlogits = m, .rows = 1, .nclasses = 50304,
				  .cols = 50304, .dtype = TE_DTYPE_BF16 };

#define FUNC(arch, id, args, text) ck_assert_str_eq(func(arch, id, &args), text)
	f.rows = 1024;
	FUNC(90, TE_K_NORM_FWD, f, "te_k_norm_cast_8");
	FUNC(89, TE_K_NORM_FWD, f, "te_k_norm_cast_8");
	f.cols = 4096;
	FUNC(90, TE_K_NORM_FWD, f, "te_k_norm_cast_cluster4");
	FUNC(89, TE_K_NORM_FWD, f, "te_k_norm_fwd_col_bf16");
	f.cols = 8192;
	FUNC(90, TE_K_NORM_FWD, f, "te_k_norm_cast_cluster8");
	FUNC(89, TE_K_NORM_FWD, f, "te_k_norm_fwd_col_bf16");
	f.cols = 2048;
	f.rows = 1016;
	FUNC(90, TE_K_NORM_FWD, f, "te_k_norm_cast_cluster2");
	f.rows = 1024;
	f.q.scaling = TE_K_SCALING_1X128;
	FUNC(90, TE_K_NORM_FWD, f, "te_k_norm_fwd_block8_bf16");
	FUNC(80, TE_K_NORM_FWD, f, "te_k_norm_fwd_block1_bf16");
	FUNC(90, TE_K_NORM_BWD, b, "te_k_norm_bwd_col8x2_bf16");
	FUNC(86, TE_K_NORM_BWD, b, "te_k_norm_bwd_col_bf16");
	FUNC(90, TE_K_CE_GRAD, c, "te_k_ce_grad_bf16");
	FUNC(89, TE_K_CE_GRAD, c, "te_k_ce_grad_long_bf16");
#undef FUNC
}

TT_MAIN("backend/cuda_exec", TT_NEED_NOTHING)
