/*
 * recording.h - a recording: the nodes of a captured graph, its bindings and its executable.
 *
 * The backend keeps the nodes and their arguments. Listing nodes, finding uses of memory and
 * replacing pointers does not depend on the backend, which receives only the nodes to patch.
 */
#ifndef TE__RECORDING_H
#define TE__RECORDING_H

#include <stdatomic.h>

#include <te/capture.h>

#include "libtecore/capture/used.h"
#include "libtecore/tensor/ctx.h"

/* the arguments of any kernel, or the memory of user-defined work */
union te__any_args {
	struct te__declared declared;
#define TE_K(ID, name, args, family, ...) struct te_k_##args name;
#include "kernels/kernels.def"
#undef TE_K
};

/* position of a node's pointer: an offset in its arguments in bytes, the number of a declared
 * range, or one of these */
enum { TE__AT_DST = -1, TE__AT_SRC = -2 };

/* a pointer of a node into the memory of a binding */
struct te__use {
	uint32_t node;
	int32_t at;
	int32_t beyond; /* 1: the node also accesses memory outside the binding */
};

struct te__binding {
	uintptr_t ptr;
	uintptr_t old_ptr; /* during a rebind: ptr before it */
	size_t nbytes;
	struct te__use *use;
	uint32_t nuses;
	/* only with TE_CAPTURE_CONCURRENT */
	uintptr_t captured_ptr;
	uintptr_t begin, end; /* range of all accesses by the uses; equal: no accesses */
	int written;	      /* 1: a use writes */
};

/* a pointer of a node that accesses the bytes from ptr to end */
struct te__pointer {
	uintptr_t ptr, end;
	uintptr_t max_end; /* largest end of this pointer and all before it */
	uint32_t node;
	int32_t at;
};

struct te__nodes {
	uint32_t *patch; /* during a rebind: number of the node's patch, from 1; else 0 */
	int64_t opaque;	 /* the first opaque node, or -1 */
	/* non-NULL pointers, sorted by ptr; NULL until the first search after a rebind */
	struct te__pointer *pointer;
	uint64_t npointers;
};

/* reserved for a rebind of all bindings, so that a rebind does not allocate */
struct te__scratch {
	uint32_t cap;
	struct te__patch *patch;
	union te__any_args *args;
};

struct te_recording {
	_Atomic uint32_t refs;
	struct te_ctx *ctx;
	void *exec;
	struct te_recording_info info;
	struct te__nodes nodes;
	struct te__binding *binding;
	int32_t nbindings;
	uint64_t nuses; /* uses of all bindings */
	/* indices of bindings, sorted by address; valid until a rebind (rebound is 1): up to then
	 * bindings do not overlap */
	int32_t *order;
	int rebound;
	struct te__scratch scratch;
	int concurrent; /* dependencies hold for the captured addresses only */
	struct te__used used; /* with concurrent, from the first binding on */
};

/* nodes.c: records "FN: no memory for WHAT" and returns -ENOMEM */
int te__recording_no_memory(const char *fn, const char *what);

/* nodes.c: for the n nodes of a backend's graph; 0 or -ENOMEM naming fn */
int te__nodes_init(struct te__nodes *s, const struct te__backend_ops *ops, void *graph, uint64_t n,
		   const char *fn);
void te__nodes_free(struct te__nodes *s);
/* a node; the memory that it points to is valid until a rebind or an update */
struct te__gnode te__recording_gnode(const struct te_recording *rec, uint64_t index);
/* 1: the n nodes of the graph are of the recording's kinds and have its edges */
int te__nodes_same(const struct te_recording *rec, void *graph, uint64_t n);
/* the kernel's name, else the kind, for messages */
const char *te__gnode_label(const struct te__gnode *n);

/* the k-th pointer of a node: returns 1 and its position, or 0 if there are no more */
int te__gnode_pointer(const struct te__gnode *n, uint32_t k, int32_t *ret_at);
uintptr_t te__gnode_ptr_get(const struct te__gnode *n, int32_t at);
/* 1: a declared range without a declared offset in the arguments */
static inline int te__gnode_unplaced(const struct te__gnode *n, int32_t at)
{
	return n->declared && n->declared->at[at] < 0;
}

/* args: the memory of n->args or n->declared, writable */
void te__gnode_ptr_set(struct te__gnode *n, void *args, int32_t at, uintptr_t p);

/* bindings.c */
void te__bindings_free(struct te_recording *rec);

#endif
