/* work.c - copies, fills and words in stream order. */
#include "config.h"

#include <errno.h>

#define TE_LOG_CATEGORY "core/cuda"
#include "libtecore/backend/cuda/cuda.h"

static int copy(struct te__cuda_stream *s, void *dst, const void *src, size_t nbytes)
{
	const struct te__gnode what = {
		.kind = TE_NODE_COPY, .id = -1, .dst = dst, .src = src, .nbytes = nbytes,
	};
	int r = TE__CU_CALL(cuMemcpyAsync, (uintptr_t)dst, (uintptr_t)src, nbytes, s->stream);

	return r ? r : te__cuda_note(s, &what, NULL);
}

/* 1: host memory that the driver did not allocate, nor register */
static int is_pageable(const void *p)
{
	int type;

	return te__cu.cuPointerGetAttribute(&type, TE__CU_POINTER_MEMORY_TYPE, (uintptr_t)p) ==
	       TE__CU_ERROR_INVALID_VALUE;
}

/*
 * A copy to pageable memory ends before its call returns. In it, the driver waits for the stream
 * with a lock of the CUcontext (580): then no other thread could queue the kernel of another rank
 * on this GPU for which a kernel of this stream waits. So the wait comes before the call.
 */
static int wait_before_copy(struct te__cuda_stream *s, const void *dst)
{
	int r = is_pageable(dst) ? te__cuda_capturing(s) : 1;

	if (r)
		return r < 0 ? r : 0;
	return TE__CU_CALL(cuStreamSynchronize, s->stream);
}

int te__cuda_copy(void *stream, void *dst, const void *src, size_t nbytes)
{
	struct te__cuda_stream *s = stream;
	int r = nbytes ? TE__CUDA_IN_RELAXED(s->dev, wait_before_copy(s, dst)) : 1;

	if (r)
		return r < 0 ? r : 0;
	return TE__CUDA_IN(s->dev, copy(s, dst, src, nbytes));
}

int te__cuda_memset(void *native, void *dst, uint32_t value, int32_t elem, size_t n)
{
	return elem == 4 ?
		       TE__CU_CALL(cuMemsetD32Async, (uintptr_t)dst, value, n, native) :
		       TE__CU_CALL(cuMemsetD8Async, (uintptr_t)dst, (uint8_t)value, n, native);
}

/* repeats value, of elem bytes, n times */
static int fill_mem(struct te__cuda_stream *s, void *dst, uint32_t value, int32_t elem, size_t n)
{
	const struct te__gnode what = {
		.kind = TE_NODE_FILL, .id = -1, .dst = dst, .value = value,
		.elem = elem, .nbytes = n * (size_t)elem,
	};
	const struct te_k_fill args = { dst, (int64_t)n, value, elem };
	const struct te__launch l = { TE_K_FILL, &args, sizeof(args) };
	/* a memset node adds a microsecond of CPU time to each launch of a graph, a kernel none */
	int r = atomic_load(&s->dev->ncaptures) ? te__cuda_capturing(s) : 0;

	if (r)
		return r < 0 ? r : te__cuda_launch_as(s, &l, &what);
	return te__cuda_memset(s->stream, dst, value, elem, n);
}

int te__cuda_fill8(void *stream, void *dst, uint8_t value, size_t nbytes)
{
	struct te__cuda_stream *s = stream;

	return nbytes ? TE__CUDA_IN(s->dev, fill_mem(s, dst, value, 1, nbytes)) : 0;
}

int te__cuda_fill32(void *stream, void *dst, uint32_t value, size_t nwords)
{
	struct te__cuda_stream *s = stream;

	return nwords ? TE__CUDA_IN(s->dev, fill_mem(s, dst, value, 4, nwords)) : 0;
}

/* executed by the front end of the GPU, in this order; earlier work is visible before a write */
static int word_ops(struct te__cuda_stream *s, unsigned n, struct te__cu_mem_op *op)
{
	const int r = TE__CU_RAW(cuStreamBatchMemOp, s->stream, n, op, 0);

	if (r == TE__CU_ERROR_NOT_SUPPORTED)
		return te__fail(-EOPNOTSUPP, "the GPU does not access words in stream order");
	return te__cuda_check(r, "cuStreamBatchMemOp");
}

static struct te__cu_mem_op write_op(void *word, uint32_t value)
{
	return (struct te__cu_mem_op){ .operation = TE__CU_MEM_OP_WRITE_32,
				       .address = (uintptr_t)word,
				       .value = value };
}

int te__cuda_word_set(void *stream, void *word, uint32_t value)
{
	struct te__cuda_stream *s = stream;
	struct te__cu_mem_op op = write_op(word, value);

	return TE__CUDA_IN(s->dev, word_ops(s, 1, &op));
}

int te__cuda_word_take(void *stream, void *word)
{
	struct te__cuda_stream *s = stream;
	struct te__cu_mem_op op[] = { { .operation = TE__CU_MEM_OP_WAIT_32,
					.address = (uintptr_t)word,
					.value = 1,
					.flags = TE__CU_WAIT_GEQ },
				      write_op(word, 0) };

	return TE__CUDA_IN(s->dev, word_ops(s, 2, op));
}
