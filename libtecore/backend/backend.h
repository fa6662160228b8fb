/*
 * backend.h - the functions of a backend, through which libtecore reaches a device.
 *
 * The library above this table does not depend on the backend.
 * Pointers to dev, share, stream, event, graph and exec are private to the backend.
 * Entries that a backend leaves out are filled with functions of the same type, which return
 * -EOPNOTSUPP, so no caller tests for NULL. Every entry passes te__fault_point() first, so that
 * tests can make the nth call fail. Exceptions are entries that release (close, *_destroy,
 * mem_free, pinned_free, share_release, share_unmap, share_unreserve, page_unregister) or that only
 * query or set a field (capture_active, stream_native, stream_workspace, exec_graph, graph_node):
 * destructors call them and cannot fail.
 *
 * Callers guarantee sizes above 0 (alloc), arguments of the kernel's size (launch), and that
 * no stream of graph_launch is capturing. The backend returns -EBUSY for calls that a capturing
 * stream does not allow (stream_sync, stream_query, mem_alloc, mem_free, capture_begin) and for
 * waits for an event that was recorded in a capture (event_sync, event_query, event_elapsed_ms). It
 * returns -TE_ESTATE for a capture_end without a capture_begin or with a stream that did not join
 * again, and for an event_wait of a capturing stream on an event outside the capture, which may
 * make the capture invalid.
 */
#ifndef TE__BACKEND_H
#define TE__BACKEND_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/capture.h>
#include <te/stream.h>
#include "kernels/kernels.h"

/* How a device is opened. */
struct te__open {
	int device;
	uint64_t limit_nbytes; /* limit of device memory; 0: none */
	const struct te_alloc_ops *alloc; /* complete pairs; or NULL */
	void *native; /* the program's CUcontext, or NULL */
};

/* One kernel launch. args is copied by the backend before launch() returns. */
struct te__launch {
	enum te_k_id id;
	const void *args;
	size_t nbytes; /* sizeof the struct of this id */
};

/* Memory that te_capture_access() declared for a node, at the present addresses. */
struct te__declared {
	struct te__ranges ranges;
	int32_t at[TE_ACCESS_MAX]; /* offset of the pointer to a range in the arguments, or -1 */
};
_Static_assert(TE_ACCESS_MAX <= TE__RANGES_MAX, "ranges of a node");

/* One node of a graph, as far as its backend knows it. The graph owns what it points to. */
struct te__gnode {
	enum te_node_kind kind;
	int32_t id;	  /* enum te_k_id; -1: not a kernel of the library */
	const void *args; /* the argument struct of the id, or NULL */
	void *dst;	  /* COPY, FILL */
	const void *src;  /* COPY */
	uint32_t value;	  /* FILL */
	int32_t elem;	  /* FILL: size of the repeated value in bytes, 1 or 4 */
	uint64_t nbytes;  /* as in struct te_node_info */
	const void *event; /* EVENT: the backend's event that the node records */
	int32_t fixed;	  /* 1: its pointers cannot be changed */
	int32_t opaque;  /* 1: the memory it uses is unknown */
	int32_t cluster; /* cuda backend: blocks of a cluster; 0: no clusters */
	struct te__range scratch; /* memory that it uses in addition */
	/* not NULL: user-defined work, which uses this memory; args, dst and src are NULL */
	const struct te__declared *declared;
	uint32_t ndeps;
	const uint32_t *dep; /* ascending; below the number of this node */
};

/* New pointers for a node: from is the present node; to differs from it in pointers only. */
struct te__patch {
	uint64_t index;
	struct te__gnode from, to;
};

/* Device memory of one open device, as the backend's allocator counts it. */
struct te__mem_held {
	uint64_t used_nbytes;
	uint64_t peak_nbytes;	   /* maximum of used_nbytes so far */
	uint64_t workspace_nbytes; /* included in used: allocated by the backend for GEMMs */
};

struct te__fabric_domain;
struct te__fabric_handle;

/*
 * traits: nodes of a graph run concurrently and memory is plentiful, so small buffers of a plan
 * are laid out without overlap: two that share memory make their nodes depend on each other
 */
#define TE__BACKEND_SEPARATE_SMALL 1u

struct te__backend_ops {
	const char *name; /* as in te_info(1), logs and TE_BACKEND */
	uint32_t traits;  /* TE__BACKEND_* */
	size_t workspace_nbytes; /* size of the workspace that a GEMM may need */
#define TE__ENTRY(name, args) int(*name) args;
#define TE__ENTRY_VOID(name, args) void(*name) args;
#define TE__ENTRY_OWN(type, name, args) type(*name) args;
#include "libtecore/backend/entries.def"
#undef TE__ENTRY_OWN
#undef TE__ENTRY_VOID
#undef TE__ENTRY
};

extern const struct te__backend_ops te__backend_host;
extern const struct te__backend_ops te__backend_cuda;

/* the complete tables, in the order in which "auto" tries them: cuda, host */
int te__backend_count(void);
const struct te__backend_ops *te__backend_at(int index);
const struct te__backend_ops *te__backend_by_name(const char *name);
void te__backend_fill(struct te__backend_ops *ops);

#endif
