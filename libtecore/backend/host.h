/*
 * host.h - the host backend's own: commands, streams and recorded graphs.
 *
 * A command is a small struct with its arguments inside. Streams hold them in a
 * ring, graphs in an array; both are run by host_run() on a stream's worker.
 */
#ifndef TE__BACKEND_HOST_H
#define TE__BACKEND_HOST_H

#include <pthread.h>
#include <stdatomic.h>

#include "libtecore/backend/backend.h"
#include "libtecore/internal.h"

enum host_kind {
	/* work: may be captured */
	HOST_COPY,
	HOST_FILL8,
	HOST_FILL32,
	HOST_CALL,
	HOST_KERNEL,
	/* upkeep */
	HOST_FREE,
	HOST_RECORD,
	HOST_WAIT,
	HOST_GRAPH,
};

struct host_op {
	enum host_kind kind;
	uint32_t value; /* to fill with, or a kernel id */
	void *dst;
	const void *src;
	size_t nbytes; /* to copy or fill; bytes of arguments */
	uint32_t call; /* of a launch */
	te_host_fn fn;
	void *obj;    /* the event, stream or graph; holds a reference */
	uint64_t pos; /* WAIT: the place in stream obj; RECORD: the event's count */
	/* WAIT for a record inside of a graph: which, and its count; holds a reference */
	struct host_event *event;
	uint64_t count;
};

#define HOST_ARGS_NBYTES 320 /* holds every kernel's struct */

struct host_cmd {
	struct host_op op;
	void *big; /* arguments that do not fit below */
	_Alignas(16) unsigned char args[HOST_ARGS_NBYTES];
};

struct host_dev {
	uint64_t limit_nbytes;
	_Atomic uint64_t used_nbytes, peak_nbytes;
	_Atomic uint32_t nstreams; /* ever made, to name them */
	int poison;
	uint64_t shuffle; /* a seed; 0: nodes run in the order of their numbers */
};

#define HOST_RING 1024u /* commands; whoever queues more waits */
#define HOST_BATCH 64u	/* commands run between two looks at the lock */

struct host_stream {
	_Atomic uint32_t refs; /* the creator, events and commands that wait for it */
	struct host_dev *dev;
	uint32_t number;
	struct host_member *member; /* in a capture, or NULL */
	pthread_t worker;
	struct host_cmd *ring;

	pthread_mutex_t lock; /* all below */
	pthread_cond_t work;  /* queued > done, or quit */
	pthread_cond_t progress;
	uint64_t queued, done; /* commands ever */
	uint32_t nwaiting;     /* threads that wait for progress */
	int idle, quit;
	int error;	    /* the first failure, for good */
	uint64_t error_pos; /* commands up to and with the failed one */
	char detail[512];
};

struct host_ids {
	uint32_t *v;
	uint32_t n, cap;
};

struct host_event {
	_Atomic uint32_t refs;
	pthread_mutex_t lock;
	/* the last record; count is 0 unless it is a node of the graph launched at pos */
	struct host_stream *stream;
	uint64_t pos;
	uint64_t count;
	uint64_t nrecords;
	/* the last record reached, and when */
	_Atomic uint64_t reached; /* written under lock */
	uint64_t time_ns;
	/* recorded in a capture: the nodes to wait for */
	struct host_capture *capture;
	struct host_ids ids;
};

/*
 * Nodes are in the order they were captured, which respects every edge, as run does. Node i
 * depends on dep.v[first.v[i]] up to that of i + 1. A RECORD among them is of an event that
 * outsiders wait for; a launch brings the counts of its records along.
 */
struct host_graph {
	_Atomic uint32_t refs; /* the exec and launches: more than one, and it must not change */
	struct host_cmd *node;
	uint64_t nnodes, cap;
	uint64_t nedges, nrecords;
	struct host_ids first, dep;
	uint32_t *run; /* the order to run them in; NULL: that of the numbers */
};

struct host_exec {
	struct host_graph *graph;
};

/* common to host.c and host_graph.c */
int host_fault(const char *what);
int host_push(struct host_stream *s, const struct host_op *op, const void *args, size_t nbytes,
	      uint64_t *ret_pos);
int host_cmd_set(struct host_cmd *cmd, const struct host_op *op, const void *args, size_t nbytes);
void host_run(const struct host_cmd *cmd);
int host_sticky(struct host_stream *s);
int host_not_capturing(const struct host_stream *s, const char *what);
struct host_graph *host_graph_ref(struct host_graph *g);
struct host_event *host_event_ref(struct host_event *e);
void host_event_unref(struct host_event *e);
/* a record is about to be queued: its count; and it was, as part of the command at pos */
uint64_t host_event_count(struct host_event *e);
void host_event_uncount(struct host_event *e);
void host_event_place(struct host_event *e, struct host_stream *s, uint64_t pos, uint64_t count);

/* work: queued, or recorded where the stream captures */
int host_work(struct host_stream *s, const struct host_op *op, const void *args, size_t nbytes);

/* host_graph.c */
int host_capture_add(struct host_stream *s, const struct host_op *op, const void *args,
		     size_t nbytes);
int host_capture_record(struct host_event *e, struct host_stream *s);
int host_capture_wait(struct host_event *e, struct host_stream *s);
void host_capture_forget(struct host_event *e); /* drop what the last record left */
int host_capture_begin(void *stream);
int host_capture_edges(void *stream, uint32_t edges);
int host_capture_end(void *stream, void **ret_graph);
int host_capture_active(void *stream);
void host_capture_leave(struct host_stream *s); /* the stream is about to go */
int host_graph_info(void *graph, struct te_recording_info *ret);
int host_event_record_external(void *event, void *stream);
void host_graph_node(void *graph, uint64_t index, struct te__gnode *ret);
int host_graph_instantiate(void *graph, void **ret_exec);
int host_exec_update(void *exec, void *graph, int same);
int host_exec_patch(void *exec, uint64_t n, const struct te__patch *patch);
void host_exec_destroy(void *exec);
int host_graph_launch(void *exec, void *stream);
void host_graph_destroy(void *graph);

/* host_order.c: edges by data; a seed other than 0 draws the order to run nodes in */
int host_graph_by_data(struct host_graph *g, uint64_t seed);

/* host_device.c */
int host_probe(struct te_backend_info *ret);
int host_device_info(int index, struct te_device_info *ret);
int host_open(int index, void **ret_dev);
void host_close(void *dev);
int host_dev_mem(void *dev, uint64_t *ret_free, uint64_t *ret_total);
int host_mem_held(void *dev, struct te__mem_held *ret);
int host_mem_alloc(void *stream, size_t nbytes, void **ret_ptr);
int host_mem_free(void *stream, void *ptr);
void host_mem_release(struct host_dev *dev, void *ptr); /* now */
int host_pinned_alloc(void *dev, size_t nbytes, void **ret_ptr);
int host_pinned_free(void *dev, void *ptr);

/* host_kernels.c: NULL where this build holds no such function */
typedef void (*host_kernel_fn)(const void *args);
host_kernel_fn host_kernel(enum te_k_id id);

#endif
