/*
 * sm90.c - GEMM and attention by the kernels of kernels/gemm/sm90.cu, kernels/attn/sm90.cu and
 * kernels/attn/sm90_bwd.cu; launch.c asks for them as TE_GEMM_PROVIDER and TE_ATTENTION say.
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

/* a map of a plan, and where the kernel's arguments have it */
struct map {
	const struct te_sm90_map *from;
	struct te_tensor_map *to;
};

static int queue_attn(struct te__cuda_stream *s, const struct te__launch *l,
		      const struct te__geometry *k, const void *args, const struct map *map, int n)
{
	const struct te__gnode what = {
		.kind = TE_NODE_KERNEL,
		.id = (int32_t)l->id,
		.args = l->args,
		.nbytes = l->nbytes,
		.fixed = 1,
	};
	void *func;
	int r = te__cuda_func_named(s->dev, k->func, &func);

	for (int i = 0; i < n && !r; i++)
		r = encode(map[i].from, map[i].to);
	if (!r)
		r = te__cuda_launch_func(s, k, func, args);
	return r ? r : te__cuda_note(s, &what, NULL);
}

static int queue_fwd(struct te__cuda_stream *s, const struct te__launch *l,
		     struct te_attn_sm90_plan *p)
{
	const struct map map[] = { { &p->qkv, &p->args.qkv }, { &p->out, &p->args.out } };
	struct te__geometry k;

	te__geo_attn_sm90(p, &k);
	return queue_attn(s, l, &k, &p->args, map, 1 + p->args.has_out);
}

static int queue_bwd(struct te__cuda_stream *s, const struct te__launch *l,
		     struct te_attn_bwd_sm90_plan *p)
{
	const struct map map[] = { { &p->qkv, &p->args.qkv },
				   { &p->dout, &p->args.dout },
				   { &p->dqkv, &p->args.dqkv } };
	struct te__geometry k;

	te__geo_attn_bwd_sm90(p, &k);
	return queue_attn(s, l, &k, &p->args, map, 3);
}

int te__sm90_attn(struct te__cuda_stream *s, const struct te__launch *l)
{
	const int fwd = l->id == TE_K_ATTN_FWD;
	struct te_attn_bwd_sm90_plan bwd;
	struct te_attn_sm90_plan p;
	struct te__geometry k;
	const char *why;
	int nsms, r = te__geometry(fwd ? TE_K_ATTN_FWD : TE_K_ATTN_BWD_PRE, l->args, &k);

	if (r)
		return r;
	if (!k.grid[0])
		return 1; /* nothing to compute, or one mma kernel is the whole backward pass */
	r = get_nsms(s, &nsms);
	if (r)
		return r;
	why = fwd ? te__attn_sm90_plan(l->args, nsms, &p) :
		    te__attn_bwd_sm90_plan(l->args, nsms, &bwd);
	if (!why && l->id == TE_K_ATTN_BWD_DQ)
		return 0; /* dkv computed it */
	if (!why)
		return TE__CUDA_IN(s->dev, fwd ? queue_fwd(s, l, &p) : queue_bwd(s, l, &bwd));
	te__log_debug("attention is left to the mma kernels because %s", why);
	return 1;
}
