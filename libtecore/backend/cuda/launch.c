/*
 * launch.c - kernels; the kernels of one call of te/kernel.h are queued by one launch of a graph.
 *
 * The driver takes 3 us of CPU time for each kernel that it queues by itself, and 1.5 to 3.5 us for
 * two or three as a graph whose parameters are set before; on the GPU they take no longer (H200,
 * driver 580). Each stream keeps the graphs of its latest sequences of kernels, because launches of
 * one executable run serially, also on different streams.
 */
#include "config.h"

#include <errno.h>
#include <string.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"

#define KERNELS 8 /* maximum kernels of a graph */
#define ARGS_NBYTES 704
#define GRAPHS 16 /* maximum graphs of a stream */

struct kernel {
	struct te__geometry k;
	void *func;
	_Alignas(16) char args[ARGS_NBYTES];
};

struct made {
	uint64_t used; /* number of the batch that used it last */
	int n;
	void *func[KERNELS], *node[KERNELS];
	void *graph, *exec;
};

struct te__cuda_batch {
	int n;
	uint64_t number; /* batches so far */
	struct kernel kernel[KERNELS];
	struct made made[GRAPHS];
};

static void made_free(struct made *m)
{
	if (m->exec)
		te__cu.cuGraphExecDestroy(m->exec);
	if (m->graph)
		te__cu.cuGraphDestroy(m->graph);
	*m = (struct made){ 0 };
}

void te__cuda_batch_free(struct te__cuda_batch *b)
{
	for (int i = 0; b && i < GRAPHS; i++)
		made_free(&b->made[i]);
	te__free(b);
}

/* *arg receives what *ret points to */
static void params_of(struct kernel *l, void **arg, struct te__cu_kernel_params *ret)
{
	*arg = l->args;
	*ret = (struct te__cu_kernel_params){ .func = l->func, .smem = l->k.smem, .params = arg };
	memcpy(ret->grid, l->k.grid, sizeof(ret->grid));
	memcpy(ret->block, l->k.block, sizeof(ret->block));
}

static int make(struct te__cuda_batch *b, struct made *m)
{
	struct te__cu_kernel_params p;
	void *arg;
	int r = TE__CU_CALL(cuGraphCreate, &m->graph, 0);

	for (int i = 0; !r && i < b->n; i++) {
		params_of(&b->kernel[i], &arg, &p);
		m->func[i] = p.func;
		r = TE__CU_CALL(cuGraphAddKernelNode, &m->node[i], m->graph,
				i ? &m->node[i - 1] : NULL, i ? 1 : 0, &p);
	}
	if (!r)
		r = TE__CU_CALL(cuGraphInstantiateWithFlags, &m->exec, m->graph, 0);
	m->n = b->n;
	return r;
}

static int set(struct te__cuda_batch *b, const struct made *m)
{
	struct te__cu_kernel_params p;
	void *arg;
	int r = 0;

	for (int i = 0; !r && i < b->n; i++) {
		params_of(&b->kernel[i], &arg, &p);
		r = TE__CU_CALL(cuGraphExecKernelNodeSetParams, m->exec, m->node[i], &p);
	}
	return r;
}

/* queues the graph of these kernels with their arguments */
static int launch(struct te__cuda_batch *b, void *stream)
{
	struct made *m = b->made;
	int r, same = 0;

	for (int i = 0; i < GRAPHS && !same; i++) {
		struct made *x = &b->made[i];

		same = x->n == b->n;
		for (int k = 0; same && k < b->n; k++)
			same = x->func[k] == b->kernel[k].func;
		if (same || x->used < m->used)
			m = x;
	}
	if (!same)
		made_free(m);
	r = same ? set(b, m) : make(b, m);
	if (!r)
		r = TE__CU_CALL(cuGraphLaunch, m->exec, stream);
	m->used = ++b->number;
	if (r)
		made_free(m);
	return r;
}

static int submit(struct te__cuda_stream *s)
{
	struct te__cuda_batch *b = s->batch;
	int r = s->shown ? te__cuda_capturing(s) : 0;

	if (r < 0)
		return r;
	if (!r && b->n > 1)
		return launch(b, s->stream);
	r = 0; /* nodes of the program's capture, or one kernel */
	for (int i = 0; !r && i < b->n; i++)
		r = te__cuda_launch_func(s, &b->kernel[i].k, b->kernel[i].func, b->kernel[i].args);
	return r;
}

/* queues what is held; this kernel and the rest are queued separately */
static int end_hold(struct te__cuda_stream *s)
{
	const int any = s->holds && s->batch && s->batch->n;

	s->holds = 0;
	return any ? TE__CUDA_IN(s->dev, submit(s)) : 0;
}

/* 1: the launch waits for launch_held; 0: it is to be queued now */
static int batch_add(struct te__cuda_stream *s, const struct te__launch *l)
{
	struct te__cuda_batch *b = s->batch;
	struct kernel *to;
	int r;

	if (!s->holds)
		return 0;
	if (!b)
		b = s->batch = te__calloc(1, sizeof(*b));
	if (!b)
		return te__fail(-ENOMEM, "launch of %s: no memory", te__k_name(l->id));
	if (b->n == KERNELS || l->nbytes > ARGS_NBYTES)
		return end_hold(s);
	to = &b->kernel[b->n];
	r = te__cuda_func_find(s->dev, l, &to->k, &to->func);
	if (r || !to->k.grid[0])
		return r ? r : 1;
	memcpy(to->args, l->args, l->nbytes);
	b->n++;
	return 1;
}

void te__cuda_launch_hold(void *stream)
{
	struct te__cuda_stream *s = stream;

	if (s->batch)
		s->batch->n = 0;
	s->holds = 1;
}

int te__cuda_launch_held(void *stream, int r)
{
	struct te__cuda_stream *s = stream;
	int held;

	if (r < 0)
		s->holds = 0;
	held = end_hold(s);
	return held ? held : r;
}

/* a GEMM of a shape that gemm.cu has no kernel for; 1: of any.cu */
static int gemm(struct te__cuda_stream *s, const struct te_k_gemm *g)
{
	const int by = te__param_enum(TE_PARAM_GEMM_PROVIDER);
	const int sm90 = by == TE__GEMM_SM90 && s->dev->target.features & TE_FEATURE_WGMMA;
	int r = sm90 ? te__sm90_gemm(s, g) : 1;

	if (r <= 0 || (te__gemm_is_any(g) && (by == TE__GEMM_MMA || te__cublaslt_missing())))
		return r;
	return te__cublaslt_gemm(s, g);
}

/* 1: not by a kernel of sm90.cu or sm90_bwd.cu */
static int attn(struct te__cuda_stream *s, const struct te__launch *l)
{
	const int fwd = l->id == TE_K_ATTN_FWD;
	int how, r;

	if (!(s->dev->target.features & TE_FEATURE_WGMMA))
		return 1;
	if (!fwd && l->id != TE_K_ATTN_BWD_DKV && l->id != TE_K_ATTN_BWD_DQ)
		return 1;
	how = te__param_enum(TE_PARAM_ATTENTION);
	if (how == TE__ATTENTION_MMA ||
	    (fwd && how == TE__ATTENTION_AUTO && te__attn_fwd_is_small(l->args)))
		return 1;
	r = end_hold(s);
	return r ? r : te__sm90_attn(s, l);
}

/* 1: not by block-scaled modes of cuBLASLt */
static int mx(struct te__cuda_stream *s, const struct te_k_gemm *g)
{
	return te__gemm_is_mx(g) && te__cuda_mx_by_cublaslt(s->dev) ? te__cublaslt_mx(s, g) : 1;
}

/* a GEMM of gemm.cu, block.cu or mx.cu; of none, if its launch is to refuse it by name */
static int is_own(const struct te__cuda_stream *s, const struct te_k_gemm *g)
{
	return te__gemm_has_kernel(g) || g->asc >= TE_K_SCALING_1X32 ||
	       (te__cuda_blocks_by_mma(s->dev) && te__gemm_is_block(g));
}

int te__cuda_launch(void *stream, const struct te__launch *l)
{
	struct te__cuda_stream *s = stream;
	int r = attn(s, l);

	if (r <= 0)
		return r;
	if (l->id == TE_K_GEMM) {
		const struct te_k_gemm *g = l->args;

		r = te__is_codes(g->adtype) ? te__cuda_fp8_gemm(s->dev, g->asc) : 0;
		if (!r)
			r = mx(s, g);
		if (r > 0 && !is_own(s, g))
			r = gemm(s, g);
		if (r <= 0)
			return r;
	}
	r = batch_add(s, l);
	if (r)
		return r < 0 ? r : 0;
	return te__cuda_launch_now(s, l);
}
