/*
 * cuda_graph.h - between cuda_graph.c, which captures, and cuda_exec.c, which runs
 * what was captured.
 */
#ifndef TE__CUDA_GRAPH_H
#define TE__CUDA_GRAPH_H

#include "libtecore/backend/cuda_internal.h"

/* What was queued by us, and the node it became: the last one where it became several. */
struct te__cuda_mark {
	struct te__cuda_mark *next;
	void *node;
	void *before; /* the node that the stream was at before, or NULL */
	uint32_t call;
	struct te__gnode what;
	_Alignas(16) char args[];
};

/*
 * One capture, and what its nodes need to live: it lasts as long as its graph and every
 * executable made of it.
 */
struct te__cuda_capture {
	struct te__cuda_capture *next;
	uint64_t id;
	int own; /* began by te__cuda_capture_begin: notes of it are wanted */
	/* under the device's lock, like the lists */
	int refs;
	struct te__cuda_call *calls;
	struct te__cuda_work *works;
	struct te__cuda_kept *events;
	struct te__cuda_mark *marks, *last_mark; /* in the order of their calls */
};

struct te__cuda_capture *te__cuda_capture_ref(struct te__cuda_dev *d, struct te__cuda_capture *c);
/* NULL does nothing; the context is current */
void te__cuda_capture_unref(struct te__cuda_dev *d, struct te__cuda_capture *c);

/*
 * The driver's graph and its nodes in our order: an executable is patched by the nodes of
 * the graph that it was instantiated from, which therefore stays.
 */
struct te__cuda_nodes {
	int refs; /* under the device's lock */
	void *graph;
	size_t n;
	void **node;
};

struct te__cuda_graph {
	struct te__cuda_dev *dev;
	uint32_t edges; /* TE_CAPTURE_* */
	struct te__cuda_capture *capture;
	struct te__cuda_nodes *nodes; /* NULL until the capture ended */
	struct te__gnode *info;	      /* [nodes->n]; pointers into dep and the capture's marks */
	uint32_t *dep;
};

/* with the context current: takes the driver's graph over, also where it fails */
int te__cuda_graph_index(struct te__cuda_graph *g, void *graph);
/* what makes a kernel node of a launch: arg points at its arguments, and both stay with p */
int te__cuda_kernel_params(struct te__cuda_dev *d, const struct te__launch *l, void **arg,
			   struct te__cu_kernel_params *ret_p);
/* cuda_edges.c: the driver's graph and ours get the edges that they run with */
int te__cuda_graph_arrange(struct te__cuda_graph *g);

#endif
