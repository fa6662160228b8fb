/* backend.c - the backends of this build, and what is common to their kernels. */
#define TE_LOG_CATEGORY "core/backend"
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <te/dtype.h>

#include "libtecore/backend/backend.h"
#include "libtecore/ctx_internal.h"
#include "libtecore/internal.h"

/* in the order that "auto" tries them */
static const struct te__backend_ops *const listed[] = {
	&te__backend_cuda,
	&te__backend_host,
};

#define NBACKENDS ((int)(sizeof(listed) / sizeof(listed[0])))

static struct te__backend_ops filled[NBACKENDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* what stands in a hole */

static int absent(const char *what)
{
	return te__fail(-EOPNOTSUPP, "the backend has no %s", what);
}

#define HOLE(entry, ...)                      \
	static int no_##entry(__VA_ARGS__)    \
	{                                     \
		return absent(#entry);        \
	}
#define HOLE_VOID(entry, ...)                 \
	static void no_##entry(__VA_ARGS__)   \
	{                                     \
	}

/* unnamed parameters are C23: the type alone names what it is */
#define U __attribute__((unused))
HOLE(probe, U struct te_backend_info *info)
HOLE(device_info, U int index, U struct te_device_info *info)
HOLE(open, U int index, U void **dev)
HOLE_VOID(close, U void *dev)
HOLE(dev_mem, U void *dev, U uint64_t *left, U uint64_t *total)
HOLE(mem_held, U void *dev, U struct te__mem_held *held)
HOLE(mem_alloc, U void *stream, U size_t nbytes, U void **ptr)
HOLE(mem_free, U void *stream, U void *ptr)
HOLE(pinned_alloc, U void *dev, U size_t nbytes, U void **ptr)
HOLE(pinned_free, U void *dev, U void *ptr)
HOLE(stream_create, U void *dev, U void **stream)
HOLE_VOID(stream_destroy, U void *stream)
HOLE(stream_sync, U void *stream)
HOLE(stream_query, U void *stream)
HOLE_VOID(stream_workspace, U void *stream, U void *ptr)
HOLE(event_create, U void *dev, U void **event)
HOLE_VOID(event_destroy, U void *event)
HOLE(event_record, U void *event, U void *stream)
HOLE(event_record_external, U void *event, U void *stream)
HOLE(event_wait, U void *event, U void *stream)
HOLE(event_sync, U void *event)
HOLE(event_query, U void *event)
HOLE(event_elapsed_ms, U void *from, U void *to, U double *ms)
HOLE(copy, U void *stream, U void *dst, U const void *src, U size_t nbytes)
HOLE(fill8, U void *stream, U void *dst, U uint8_t value, U size_t nbytes)
HOLE(fill32, U void *stream, U void *dst, U uint32_t value, U size_t nwords)
HOLE(host_call, U void *stream, U te_host_fn fn, U const void *arg, U size_t nbytes)
HOLE(launch, U void *stream, U const struct te__launch *l)
HOLE(capture_begin, U void *stream)
HOLE(capture_edges, U void *stream, U uint32_t edges)
HOLE(capture_end, U void *stream, U void **graph)
HOLE(graph_info, U void *graph, U struct te_recording_info *info)
HOLE(graph_instantiate, U void *graph, U void **exec)
HOLE(graph_launch, U void *exec, U void *stream)
HOLE(exec_update, U void *exec, U void *graph, U int same)
HOLE(exec_patch, U void *exec, U uint64_t n, U const struct te__patch *patch)
HOLE_VOID(graph_destroy, U void *graph)
HOLE_VOID(exec_destroy, U void *exec)

/* those that no backend can lack, for lack of a code to return */

static void *no_stream_native(U void *stream)
{
	return NULL;
}

static int no_capture_active(U void *stream)
{
	return 0;
}

static void no_graph_node(U void *graph, U uint64_t index, struct te__gnode *node)
{
	*node = (struct te__gnode){ .kind = TE_NODE_OTHER, .id = -1, .foreign = 1 };
}

void te__backend_fill(struct te__backend_ops *ops)
{
#define FILL(entry)                              \
	do {                                     \
		if (!ops->entry)                 \
			ops->entry = no_##entry; \
	} while (0)
	FILL(probe);
	FILL(device_info);
	FILL(open);
	FILL(close);
	FILL(dev_mem);
	FILL(mem_held);
	FILL(mem_alloc);
	FILL(mem_free);
	FILL(pinned_alloc);
	FILL(pinned_free);
	FILL(stream_create);
	FILL(stream_destroy);
	FILL(stream_sync);
	FILL(stream_query);
	FILL(stream_native);
	FILL(stream_workspace);
	FILL(event_create);
	FILL(event_destroy);
	FILL(event_record);
	FILL(event_record_external);
	FILL(event_wait);
	FILL(event_sync);
	FILL(event_query);
	FILL(event_elapsed_ms);
	FILL(copy);
	FILL(fill8);
	FILL(fill32);
	FILL(host_call);
	FILL(launch);
	FILL(capture_begin);
	FILL(capture_edges);
	FILL(capture_end);
	FILL(capture_active);
	FILL(graph_info);
	FILL(graph_node);
	FILL(graph_instantiate);
	FILL(graph_launch);
	FILL(exec_update);
	FILL(exec_patch);
	FILL(graph_destroy);
	FILL(exec_destroy);
#undef FILL
}

static void fill_all(void)
{
	for (int i = 0; i < NBACKENDS; i++) {
		filled[i] = *listed[i];
		te__backend_fill(&filled[i]);
	}
}

int te__backend_count(void)
{
	return NBACKENDS;
}

const struct te__backend_ops *te__backend_at(int index)
{
	pthread_once(&once, fill_all);
	return index >= 0 && index < NBACKENDS ? &filled[index] : NULL;
}

const struct te__backend_ops *te__backend_by_name(const char *name)
{
	for (int i = 0; i < NBACKENDS; i++)
		if (!strcmp(te__backend_at(i)->name, name))
			return te__backend_at(i);
	return NULL;
}

/* kernels */

#undef U

/* offsets of pointers, an array a kernel */
#define R(field, nbytes) offsetof(S, field)
#define W R
#define PART R
#define U(field) offsetof(S, field)
#define AT(field, begin, nbytes) offsetof(S, field)
#define Q(field, n)                                                                           \
	U(field.row), U(field.col), U(field.scale), U(field.scale_inv), U(field.amax),        \
		U(field.noop)
#define TE_K_PTRS(host, name, ...)                                                            \
	static uint32_t ptrs_##host(const uint16_t **ret)                                     \
	{                                                                                     \
		typedef struct te_k_##name S;                                                 \
		static const uint16_t offset[] = { __VA_ARGS__ };                             \
											      \
		*ret = offset;                                                                \
		return sizeof(offset) / sizeof(offset[0]);                                    \
	}
#include "kernels/te_k_ptr.def"
#undef TE_K_PTRS
#undef Q
#undef AT
#undef U
#undef PART
#undef W
#undef R

/* ranges of memory, a function a kernel */
static void range_add(struct te__ranges *r, const void *ptr, int64_t begin, int64_t nbytes,
		      enum te__access access)
{
	if (ptr && nbytes > 0)
		r->v[r->n++] = (struct te__range){ (uintptr_t)ptr + (uintptr_t)begin,
						   (uint64_t)nbytes, access };
}

#define ES(dtype) ((int64_t)te_dtype_nbytes((enum te_dtype)(dtype)))
#define R(field, nbytes) range_add(r, a->field, 0, nbytes, TE__READ)
#define W(field, nbytes) range_add(r, a->field, 0, nbytes, TE__WRITE)
#define PART(field, nbytes) range_add(r, a->field, 0, nbytes, TE__PART)
#define U(field) (void)a
#define AT(field, begin, nbytes) range_add(r, a->field, begin, nbytes, TE__WRITE)
#define Q(field, n)                                                                           \
	W(field.row, n), W(field.col, n), R(field.scale, 4), W(field.scale_inv, 4),           \
		W(field.amax, 4), R(field.noop, 4)
#define TE_K_PTRS(host, name, ...)                                                            \
	static void ranges_##host(const void *args, struct te__ranges *r)                     \
	{                                                                                     \
		const struct te_k_##name *a = args;                                           \
											      \
		__VA_ARGS__;                                                                  \
	}
#include "kernels/te_k_ptr.def"
#undef TE_K_PTRS
#undef Q
#undef AT
#undef U
#undef PART
#undef W
#undef R
#undef ES

static const struct {
	const char *name;
	size_t nbytes;
	uint32_t (*ptrs)(const uint16_t **ret);
	void (*ranges)(const void *args, struct te__ranges *r);
} kernel[TE_K_COUNT] = {
#define TE_K(ID, name, module, host)                                                          \
	{ #host, sizeof(struct te_k_##name), ptrs_##host, ranges_##host },
#include "kernels/te_k.def"
#undef TE_K
};

const char *te__k_name(enum te_k_id id)
{
	return (unsigned int)id < TE_K_COUNT ? kernel[id].name : "?";
}

size_t te__k_nbytes(enum te_k_id id)
{
	return (unsigned int)id < TE_K_COUNT ? kernel[id].nbytes : 0;
}

uint32_t te__k_ptrs(enum te_k_id id, const uint16_t **ret_offset)
{
	return (unsigned int)id < TE_K_COUNT ? kernel[id].ptrs(ret_offset) : 0;
}

void te__k_ranges(enum te_k_id id, const void *args, struct te__ranges *ret)
{
	ret->n = 0;
	kernel[id].ranges(args, ret);
}

int te__launch_k(struct te_stream *stream, enum te_k_id id, const void *args, size_t nbytes)
{
	struct te__launch l = { id, args, nbytes, 0 };
	int r;

	if (!stream)
		return te__fail(-EINVAL, "launch of %s: stream is NULL", te__k_name(id));
	l.call = stream->call;
	if (!args || !nbytes || nbytes != te__k_nbytes(id))
		r = te__fail(-EINVAL, "launch of kernel %d (%s): %zu bytes of arguments, not %zu",
			     (int)id, te__k_name(id), nbytes, te__k_nbytes(id));
	else
		r = stream->ctx->ops->launch(stream->impl, &l);
	return te__stream_queued(stream, r);
}
