/*
 * sm90.c - GEMM and attention by the kernels of kernels/gemm/sm90.cu and kernels/attn/sm90.cu, if
 * TE_GEMM_PROVIDER and TE_ATTENTION are sm90.
 *
 * The tensor maps of a launch have addresses, so a node of a graph cannot be given others: as with
 * cuBLASLt, its memory is fixed. A GEMM whose tiles are cut is two nodes, the first of which clears
 * the counters.
 */
#define TE_LOG_CATEGORY "core/sm90"
#include "config.h"

#include <inttypes.h>

#include "kernels/attn/sm90.h"
#include "kernels/gemm/sm90.h"
#include "kernels/launch.h"
#include "libtecore/backend/cuda/cuda.h"

/* loads and stores are boxes with swizzled rows of 128 bytes */
static int encode(const struct te_sm90_map *m, struct te_tensor_map *ret)
{
	const int type = m->elem == 1 ? TE__CU_TENSOR_MAP_UINT8 :
			 m->elem == 2 ? TE__CU_TENSOR_MAP_BFLOAT16 :
					TE__CU_TENSOR_MAP_FLOAT32;
	const uint64_t extents[] = { (uint64_t)m->nx, (uint64_t)m->ny, (uint64_t)m->nz };
	const uint64_t row = (uint64_t)(m->nx * m->elem), strides[] = { row, row * extents[1] };
	const unsigned box[] = { (unsigned)m->box_x, (unsigned)m->box_y, 1 };
	const unsigned steps[] = { 1, 1, 1 };

	return TE__CU_CALL(cuTensorMapEncodeTiled, ret, type, m->nz ? 3 : 2,
			   (void *)(uintptr_t)m->p, extents, strides, box, steps, 0,
			   TE__CU_TENSOR_MAP_SWIZZLE_128B, TE__CU_TENSOR_MAP_L2_256B, 0);
}

/* memory of the counters, which it clears, and of the sums */
static int prepare(struct te__cuda_stream *s, struct te_sm90_plan *p, struct te__range *ret)
{
	const uint64_t nbytes = p->ready_nbytes + p->sums_nbytes;
	void *ws;
	int r;

	if (!nbytes)
		return 0;
	r = te__cuda_workspace(s, nbytes, &ws);
	if (r)
		return r;
	*ret = (struct te__range){ (uintptr_t)ws, nbytes, TE__WRITE };
	p->args.ready = ws;
	p->args.sums = (float *)((char *)ws + p->ready_nbytes);
	return 0;
}

static int queue(struct te__cuda_stream *s, struct te_sm90_plan *p, const struct te_k_gemm *g)
{
	struct te__gnode what = {
		.kind = TE_NODE_KERNEL,
		.id = TE_K_GEMM,
		.args = g,
		.nbytes = sizeof(*g),
		.fixed = 1,
	};
	struct te__geometry k;
	void *func, *before = NULL;
	int r;

	te__geo_sm90(p, &k);
	r = te__cuda_func_named(s->dev, k.func, &func);
	if (!r)
		r = encode(&p->a, &p->args.a);
	if (!r)
		r = encode(&p->b, &p->args.b);
	if (!r)
		r = encode(&p->c, &p->args.c);
	if (!r)
		r = encode(&p->d, &p->args.d);
	if (!r)
		r = prepare(s, p, &what.scratch);
	if (!r)
		r = te__cuda_note_before(s, &before);
	if (!r && p->ready_nbytes)
		r = TE__CU_CALL(cuMemsetD32Async, (uintptr_t)p->args.ready, 0,
				p->ready_nbytes / sizeof(*p->args.ready), s->stream);
	if (!r)
		r = te__cuda_launch_func(s, &k, func, &p->args);
	return r ? r : te__cuda_note(s, &what, before);
}

static int get_nsms(struct te__cuda_stream *s, int *ret)
{
	return TE__CUDA_IN(s->dev, TE__CU_CALL(cuDeviceGetAttribute, ret,
					       TE__CU_ATTR_MULTIPROCESSOR_COUNT, s->dev->dev));
}

int te__sm90_gemm(struct te__cuda_stream *s, const struct te_k_gemm *g)
{
	struct te_sm90_plan p;
	const char *why;
	int nsms, r = get_nsms(s, &nsms);

	if (r)
		return r;
	why = te__sm90_plan(g, nsms / SM90_CLUSTER, TE__CUDA_WORKSPACE_NBYTES, &p);
	if (!why)
		return TE__CUDA_IN(s->dev, queue(s, &p, g));
	te__log_debug("GEMM m %" PRId64 " n %" PRId64 " k %" PRId64
		      " is left to cuBLASLt because %s",
		      g->m, g->n, g->k, why);
	return 1;
}

static int queue_attn(struct te__cuda_stream *s, struct te_attn_sm90_plan *p,
		      const struct te_k_attn_fwd *a)
{
	const struct te__gnode what = {
		.kind = TE_NODE_KERNEL,
		.id = TE_K_ATTN_FWD,
		.args = a,
		.nbytes = sizeof(*a),
		.fixed = 1,
	};
	struct te__geometry k;
	void *func;
	int r;

	te__geo_attn_sm90(p, &k);
	r = te__cuda_func_named(s->dev, k.func, &func);
	if (!r)
		r = encode(&p->qkv, &p->args.qkv);
	if (!r)
		r = encode(&p->out, &p->args.out);
	if (!r)
		r = te__cuda_launch_func(s, &k, func, &p->args);
	return r ? r : te__cuda_note(s, &what, NULL);
}

int te__sm90_attn_fwd(struct te__cuda_stream *s, const struct te_k_attn_fwd *a)
{
	struct te_attn_sm90_plan p;
	struct te__geometry k;
	const char *why;
	int nsms, r = te__geometry(TE_K_ATTN_FWD, a, &k);

	if (r || !k.grid[0])
		return r;
	r = get_nsms(s, &nsms);
	if (r)
		return r;
	why = te__attn_sm90_plan(a, nsms, &p);
	if (!why)
		return TE__CUDA_IN(s->dev, queue_attn(s, &p, a));
	te__log_debug("attention is left to the mma kernels because %s", why);
	return 1;
}

static int queue_attn_bwd(struct te__cuda_stream *s, struct te_attn_bwd_sm90_plan *p,
			  const struct te_k_attn_bwd *a)
{
	const struct te__gnode what = {
		.kind = TE_NODE_KERNEL,
		.id = p->dkv ? TE_K_ATTN_BWD_DKV : TE_K_ATTN_BWD_DQ,
		.args = a,
		.nbytes = sizeof(*a),
		.fixed = 1,
	};
	struct te__geometry k;
	void *func;
	int r;

	te__geo_attn_bwd_sm90(p, &k);
	r = te__cuda_func_named(s->dev, k.func, &func);
	if (!r)
		r = encode(&p->qkv, &p->args.qkv);
	if (!r)
		r = encode(&p->dout, &p->args.dout);
	if (!r)
		r = encode(&p->dqkv, &p->args.dqkv);
	if (!r)
		r = te__cuda_launch_func(s, &k, func, &p->args);
	return r ? r : te__cuda_note(s, &what, NULL);
}

int te__sm90_attn_bwd(struct te__cuda_stream *s, int dkv, const struct te_k_attn_bwd *a)
{
	struct te_attn_bwd_sm90_plan p;
	struct te__geometry k;
	const char *why;
	int nsms, r = te__geometry(TE_K_ATTN_BWD_PRE, a, &k);

	if (r)
		return r;
	if (!k.grid[0])
		return 1; /* one kernel computes all, which needs no delta */
	r = get_nsms(s, &nsms);
	if (r)
		return r;
	why = te__attn_bwd_sm90_plan(a, dkv, nsms, &p);
	if (!why)
		return TE__CUDA_IN(s->dev, queue_attn_bwd(s, &p, a));
	te__log_debug("attention is left to the mma kernels because %s", why);
	return 1;
}
