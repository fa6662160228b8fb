/*
 * graph.h - captures and captured graphs: capture.c notes what was queued, nodes.c orders the
 * nodes, edges.c chooses dependencies, graph.c makes the graph, and exec.c runs it.
 */
#ifndef TE__CUDA_GRAPH_H
#define TE__CUDA_GRAPH_H

#include "libtecore/backend/cuda/cuda.h"

/*
 * A mark: work queued through the library, and its last node; or, with what.declared, user-defined
 * work: the nodes after before, up to and including node.
 */
struct te__cuda_mark {
	struct te__cuda_mark *next;
	void *node;
	void *before; /* the stream's latest node before it, or NULL */
	struct te__gnode what;
	_Alignas(16) char args[];
};

/*
 * A node of user-defined work, and the launch of a kernel whose pointers can be replaced: its
 * parameters are copied into the memory after it.
 */
struct te__cuda_user {
	struct te__cuda_user *next;
	struct te__declared declared;
	struct te__cu_kernel_params launch;
	char *param;  /* all parameters, in the kernel's layout; NULL: they cannot be replaced */
	size_t nbytes;
};

/* One capture, and the objects that its nodes refer to. Its graph owns it. */
struct te__cuda_capture {
	struct te__cuda_capture *next;
	uint64_t id;
	int own; /* begun by te__cuda_capture_begin: queued work is noted in marks */
	/* under the device's lock */
	struct te__cuda_call *calls;
	struct te__cuda_work *works;
	struct te__cuda_kept *events;
	struct te__cuda_mark *marks, *last_mark; /* in the order in which they were queued */
	struct te__cuda_user *users;
};

/* capture.c; list, with the device's lock: in its captures, until unlist, which takes the lock */
struct te__cuda_capture *te__cuda_capture_new(void);
void te__cuda_capture_list(struct te__cuda_dev *d, struct te__cuda_capture *c);
void te__cuda_capture_unlist(struct te__cuda_dev *d, struct te__cuda_capture *c);
/* the context must be current */
void te__cuda_capture_free(struct te__cuda_dev *d, struct te__cuda_capture *c);

/*
 * The driver's graph and its nodes in the order of the recording. An executable is patched through
 * nodes of the graph that it was instantiated from, so that graph is kept.
 */
struct te__cuda_nodes {
	void *graph;
	size_t n;
	void **node;
};

struct te__cuda_graph {
	struct te__cuda_dev *dev;
	uint32_t edges; /* TE_CAPTURE_* */
	struct te__cuda_capture *capture;
	struct te__cuda_nodes *nodes; /* NULL: not ended, or taken by an update */
	struct te__gnode *info;	      /* [nodes->n]; pointers into dep and the capture's marks */
	uint32_t *dep;
};

/* user.c: the nodes of a mark with what.declared; info: describes its last node */
int te__cuda_user_declare(struct te__cuda_graph *g, const struct te__cuda_mark *m,
			  struct te__gnode *info);
/* a launch of a user-defined kernel with these pointers, for a node of n; returns a CUresult */
int te__cuda_user_set(void *exec, void *node, const struct te__gnode *n,
		      const struct te__declared *to);

/* Edges of the driver's graph. */
struct te__cuda_edges {
	size_t n;
	void **from, **to;
	struct te__cu_edge_data *data;
};

/* edges.c: sets the edges that the graph runs with, in g and in the driver's graph, which has
 * these. To list the edges of 340,000 nodes takes the driver 13 s */
int te__cuda_graph_arrange(struct te__cuda_graph *g, const struct te__cuda_edges *captured);
int te__cuda_edges_alloc(struct te__cuda_edges *e, size_t n);
void te__cuda_edges_free(struct te__cuda_edges *e);
/* the parameters of a kernel node for a launch; *ret_p points to arg, *arg to the arguments */
int te__cuda_kernel_params(struct te__cuda_dev *d, const struct te__launch *l, void **arg,
			   struct te__cu_kernel_params *ret_p);

/*
 * nodes.c: takes ownership of the driver's graph, also if it fails; free takes NULL; the context
 * must be current
 */
int te__cuda_graph_index(struct te__cuda_graph *g, void *graph);
void te__cuda_nodes_free(struct te__cuda_nodes *n);

/* graph.c; the context must be current */
int te__cuda_graph_free(struct te__cuda_graph *g);

#endif
