/*
 * backend.h - the table a backend fills, and what libtecore calls through it.
 *
 * Everything above this line of the library is the same on host and on a GPU.
 * impl pointers (dev, stream, event, graph, exec) are the backend's own.
 * Holes are filled with typed functions that return -EOPNOTSUPP when the table
 * is bound, so no caller tests for NULL. Every entry goes through
 * te__fault_point() first, so tests can fail the Nth call; but for those that
 * only give back (close, *_destroy, mem_free, pinned_free) or only tell
 * (capture_active, stream_native, stream_workspace, graph_node): destructors call them and
 * cannot fail.
 *
 * Callers see to sizes above 0 (alloc), arguments of the kernel's size (launch),
 * and no graph_launch on a stream that captures. The table itself refuses with -EBUSY
 * what a stream that captures cannot do (stream_sync, stream_query, mem_alloc,
 * mem_free, capture_begin) and to wait for an event recorded in a capture
 * (event_sync, event_query, event_elapsed_ms); with -TE_ESTATE a capture_end
 * without a begin or with a stream not joined again, and a captured stream's
 * event_wait for what is no part of the capture, which may spoil the capture.
 */
#ifndef TE__BACKEND_H
#define TE__BACKEND_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/recording.h>
#include <te/stream.h>
#include "kernels/te_k.h"

/* One kernel launch. args is copied by the backend before launch() returns. */
struct te__launch {
	enum te_k_id id;
	const void *args;
	size_t nbytes; /* sizeof the struct of this id */
	uint32_t call; /* above 0: those of the same, queued one behind the other, are one call */
};

/* te_k_ptr.def: reads may go on side by side, as may the parts of one pass */
enum te__access { TE__READ, TE__PART, TE__WRITE };
struct te__range {
	uintptr_t ptr;
	uint64_t nbytes;
	enum te__access access;
};
#define TE__RANGES_MAX 16
struct te__ranges {
	uint32_t n;
	struct te__range v[TE__RANGES_MAX];
};

/* One node of a graph, as far as its backend knows it. What it points at lives with the graph. */
struct te__gnode {
	enum te_node_kind kind;
	int32_t id;	  /* of kernels, enum te_k_id; -1: none of ours */
	const void *args; /* the struct of the id; NULL: not this node's */
	void *dst;	  /* COPY, FILL */
	const void *src;  /* COPY */
	uint32_t value;	  /* FILL */
	int32_t elem;	  /* FILL: bytes of value that repeat, 1 or 4 */
	uint64_t nbytes;  /* as in struct te_node_info */
	int32_t fixed;	  /* 1: its pointers cannot be changed */
	int32_t foreign;  /* 1: nobody knows which memory it uses */
	int32_t joined;	  /* 1: it goes on with the call of the node before, alone behind that */
	struct te__range scratch; /* memory that the call uses besides */
	uint32_t ndeps;
	const uint32_t *dep; /* ascending, and below the node's own number */
};

/* Other pointers for a node: from is what it has now, to differs in pointers only. */
struct te__patch {
	uint64_t index;
	const struct te__gnode *from;
	struct te__gnode to;
};

/* Device memory that one opened device holds, as the backend's allocator counts it. */
struct te__mem_held {
	uint64_t used_nbytes;
	uint64_t peak_nbytes;	   /* the most it ever was */
	uint64_t workspace_nbytes; /* of used: what the backend took for its own kernels */
};

struct te__backend_ops {
	const char *name; /* as in te_info(1), logs and TE_BACKEND */
	size_t workspace_nbytes; /* scratch that a product may need */

	/* enumeration: no device is opened */
	int (*probe)(struct te_backend_info *ret);
	int (*device_info)(int index, struct te_device_info *ret);

	/* a device */
	int (*open)(int index, void **ret_dev);
	void (*close)(void *dev);
	int (*dev_mem)(void *dev, uint64_t *ret_free, uint64_t *ret_total);
	int (*mem_held)(void *dev, struct te__mem_held *ret);

	/* memory: alloc and free are stream ordered */
	int (*mem_alloc)(void *stream, size_t nbytes, void **ret_ptr);
	int (*mem_free)(void *stream, void *ptr);
	int (*pinned_alloc)(void *dev, size_t nbytes, void **ret_ptr);
	int (*pinned_free)(void *dev, void *ptr);

	/* streams */
	int (*stream_create)(void *dev, void **ret_stream);
	void (*stream_destroy)(void *stream);
	int (*stream_sync)(void *stream);
	int (*stream_query)(void *stream); /* 1 idle, 0 busy */
	void *(*stream_native)(void *stream);
	/* products from now on use this scratch; NULL: the backend's own. Cannot fail */
	void (*stream_workspace)(void *stream, void *ptr);

	/* events */
	int (*event_create)(void *dev, void **ret_event);
	void (*event_destroy)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_record_external)(void *event, void *stream); /* while it captures */
	int (*event_wait)(void *event, void *stream);
	int (*event_sync)(void *event);
	int (*event_query)(void *event);
	int (*event_elapsed_ms)(void *from, void *to, double *ret_ms);

	/* work, in stream order */
	int (*copy)(void *stream, void *dst, const void *src, size_t nbytes);
	int (*fill8)(void *stream, void *dst, uint8_t value, size_t nbytes);
	int (*fill32)(void *stream, void *dst, uint32_t value, size_t nwords);
	int (*host_call)(void *stream, te_host_fn fn, const void *arg, size_t nbytes);
	int (*launch)(void *stream, const struct te__launch *l);

	/* graphs */
	int (*capture_begin)(void *stream);
	/* edges: TE_CAPTURE_*; -TE_ESTATE where none began on the stream */
	int (*capture_edges)(void *stream, uint32_t edges);
	int (*capture_end)(void *stream, void **ret_graph);
	int (*capture_active)(void *stream); /* 1 or 0 */
	int (*graph_info)(void *graph, struct te_recording_info *ret);
	/* node index of graph_info's nnodes, numbered in an order to run them in */
	void (*graph_node)(void *graph, uint64_t index, struct te__gnode *ret);
	int (*graph_instantiate)(void *graph, void **ret_exec);
	int (*graph_launch)(void *exec, void *stream);
	/*
	 * exec becomes what graph says, for later launches; enum te_update, or an error that
	 * changed nothing. same: kinds and edges of the nodes are those of now, so that the
	 * same executable may do.
	 */
	int (*exec_update)(void *exec, void *graph, int same);
	/* all or nothing, for later launches */
	int (*exec_patch)(void *exec, uint64_t n, const struct te__patch *patch);
	void (*graph_destroy)(void *graph);
	void (*exec_destroy)(void *exec);
};

extern const struct te__backend_ops te__backend_host;
extern const struct te__backend_ops te__backend_cuda;

/* the tables with their holes filled, in the order "auto" tries them: cuda, host */
int te__backend_count(void);
const struct te__backend_ops *te__backend_at(int index);
const struct te__backend_ops *te__backend_by_name(const char *name);
void te__backend_fill(struct te__backend_ops *ops);

/* queue kernel TE_K_<ID> with its struct on a stream: TE__LAUNCH(stream, QUANTIZE, &args) */
int te__launch_k(struct te_stream *stream, enum te_k_id id, const void *args, size_t nbytes);
#define TE__LAUNCH(stream, ID, argsp) te__launch_k((stream), TE_K_##ID, (argsp), sizeof(*(argsp)))

/* kernel id -> lower-case name and size of its struct */
const char *te__k_name(enum te_k_id id);
size_t te__k_nbytes(enum te_k_id id);
/* where the struct holds device pointers: how many, and their offsets (te_k_ptr.def) */
uint32_t te__k_ptrs(enum te_k_id id, const uint16_t **ret_offset);
/* the memory that a launch with this struct uses, as te_k_ptr.def says */
void te__k_ranges(enum te_k_id id, const void *args, struct te__ranges *ret);

/*
 * Called by a reference function, or a host call, that cannot do its work, on
 * the worker that runs it: the stream fails with this code and the thread's
 * last te__fail() sentence. Without effect on any other thread.
 */
void te__k_fail(int code);

/* the reference functions, libtecore/host */
#define TE_K(ID, name, module, host) void te__h_##host(const struct te_k_##name *a);
#include "kernels/te_k.def"
#undef TE_K

#endif
