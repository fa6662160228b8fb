/*
 * host.h - commands, streams and recorded graphs of the host backend.
 *
 * command.c executes commands, team.c runs parts of kernels, stream.c queues commands. event.c,
 * replay.c (graphs with branches), graph.c (launches), order.c (edges), capture.c and work.c are
 * what is queued and recorded. Each file calls only those before it; stream.c and team.c reach the
 * others by functions in commands and in the pool.
 *
 * A command is a small struct with its arguments inside. Streams hold them in a
 * ring, graphs in an array; both are run by host_run() on a stream's worker or on a helper thread.
 */
#ifndef TE__BACKEND_HOST_H
#define TE__BACKEND_HOST_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "libtecore/backend/backend.h"
#include "libtecore/backend/devmem.h"
#include "libtecore/base/base.h"

enum host_kind {
	/* work: may be captured */
	HOST_COPY,
	HOST_FILL8,
	HOST_FILL32,
	HOST_CALL,
	HOST_KERNEL,
	HOST_WORD_SET,
	HOST_WORD_TAKE,
	/* never captured as such; HOST_RECORD also is the node of an external record */
	HOST_FREE,
	HOST_RECORD,
	HOST_CONTROL, /* a wait, or a launch of a graph */
};

struct host_cmd;
struct host_stream;
/* runs the queued command at position pos; 0, or the code that the stream fails with */
typedef int host_run_fn(struct host_stream *s, struct host_cmd *cmd, uint64_t pos, int failed);

struct host_op {
	enum host_kind kind;
	host_run_fn *run; /* function of a command that is no work; runs after a failure, too */
	uint32_t value; /* fill value, or kernel id */
	void *dst;
	const void *src;
	size_t nbytes; /* bytes to copy, fill or free, or of arguments */
	te_host_fn fn;
	void *obj;    /* the event, stream or graph; holds a reference */
	struct host_replay *replay; /* launch: state of a launch with branches, else NULL */
	uint64_t pos; /* wait: the position in stream obj; RECORD: the count of the record */
	/* wait for a record inside a graph: the event, referenced, and the count of the record */
	struct host_event *event;
	uint64_t count;
};

#define HOST_ARGS_NBYTES 704 /* holds every kernel's struct */

#define TE_K(ID, name, args, family, ...) \
	_Static_assert(sizeof(struct te_k_##args) <= HOST_ARGS_NBYTES, "fits a command");
#include "kernels/kernels.def"
#undef TE_K

struct host_cmd {
	struct host_op op;
	void *big; /* arguments that do not fit below */
	struct te__declared *declared; /* CALL or WORD_* in a graph: its accesses; or NULL */
	_Alignas(16) unsigned char args[HOST_ARGS_NBYTES];
};

/* scratch memory, from which te__k_take() takes */
struct host_scratch {
	uint8_t *mem; /* TE__K_SCRATCH bytes; pages exist once they are used */
	size_t used;
};

/*
 * Helper threads, which execute nodes of graphs with branches and parts of kernels, concurrently
 * with a stream's worker.
 */
#define HOST_THREADS_MAX 64
struct host_pool {
	pthread_mutex_t lock; /* protects all below, and the state of launches that run */
	pthread_cond_t work;  /* a node or a part is ready, or quit */
	struct host_replay *replays;
	struct host_job *jobs;
	/* nodes of replays: run ready ones (0: there are none), and wake n waiting workers */
	int (*help_nodes)(struct host_pool *pool);
	void (*wake_nodes)(struct host_pool *pool, uint32_t n);
	pthread_t helper[HOST_THREADS_MAX - 1];
	struct host_scratch scratch[HOST_THREADS_MAX - 1]; /* one allocation */
	uint32_t nscratch; /* scratches that helpers took */
	uint32_t nhelpers, nidle, nspinning; /* nidle excludes spinning helpers */
	_Atomic uint32_t nposted; /* number of times work was posted; written under lock */
	int quit;
	uint32_t ncores; /* cores to bind helpers to, except the first helper; 0: not bound */
	cpu_set_t core[HOST_THREADS_MAX];
};

struct host_dev {
	struct te__devmem mem;
	_Atomic uint32_t nstreams; /* created so far; numbers the streams in messages */
	int poison;
	uint64_t shuffle; /* a seed; 0: nodes run in the order of their numbers */
	uint32_t nthreads; /* threads that execute a command: the worker and helpers */
	struct host_pool pool;
};

#define HOST_RING 1024u /* commands; queueing more blocks */
#define HOST_BATCH 64u	/* commands that the worker runs per locking of the queue */

struct host_stream {
	_Atomic uint32_t refs; /* the creator, events and commands that wait for it */
	struct host_dev *dev;
	uint32_t number;
	_Atomic(struct host_member *) member; /* part in a capture, or NULL; any thread may read */
	pthread_t worker;
	struct host_cmd *ring;
	struct host_scratch scratch; /* for the thread that executes commands */
	pthread_mutex_t lock; /* protects all below */
	pthread_cond_t work;  /* queued > done, or quit */
	pthread_cond_t progress;
	uint64_t queued, done; /* commands since creation */
	uint32_t nwaiting;     /* threads that wait for progress */
	int busy; /* the worker, or a thread that waits, executes commands */
	int idle, looking, quit; /* the worker waits for work; waits at most LOOK_NS; must end */
	int nprompt;	/* consecutive waits for short commands only: see host.c */
	uint64_t left;	/* the last command that the worker left to a waiting thread */
	uint64_t rested; /* value of queued when the worker began to wait */
	int error;	    /* the first failure; sticky */
	uint64_t error_pos; /* number of commands up to and including the failed one */
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
	/* the last record that was reached, and its time */
	_Atomic uint64_t reached; /* written under lock */
	uint64_t time_ns;
	/* recorded in a capture: the nodes to wait for */
	struct host_capture *capture;
	struct host_ids ids;
	void (*forget)(struct host_event *e); /* drops both; NULL: there are none */
};

/*
 * Nodes are in the order of capture, which respects every edge, as run does. Node i depends on
 * dep.v[k] for first.v[i] <= k < first.v[i + 1]. A RECORD node records an external event; a launch
 * carries the count of each such record.
 */
struct host_graph {
	_Atomic uint32_t refs; /* the exec and queued launches; immutable while above 1 */
	struct host_cmd *node;
	uint64_t nnodes, cap;
	uint64_t nedges, nrecords;
	struct host_ids first, dep;
	uint32_t *run; /* order in which nodes run; NULL: by number */
	struct host_dev *dev;
	/* successors of node i: succ[k] for succ_first[i] <= k < succ_first[i + 1]; NULL: a
	 * chain */
	uint32_t *succ_first, *succ;
};

struct host_exec {
	struct host_graph *graph;
};

/* state of a worker or helper thread */
struct host_running {
	struct host_dev *dev; /* NULL on all other threads */
	struct host_scratch *scratch;
	int error; /* code from te__k_fail() for the running command or part */
};
extern _Thread_local struct host_running host_running;

/* the entries of the backend, by topic */
#define TE__ENTRY(name, args) int host_##name args;
#define TE__ENTRY_VOID(name, args) void host_##name args;
#define TE__ENTRY_OWN(type, name, args) type host_##name args;
#include "libtecore/backend/entries.def"
#undef TE__ENTRY_OWN
#undef TE__ENTRY_VOID
#undef TE__ENTRY

/* command.c */
int host_fault(const char *what);
int host_cmd_set(struct host_cmd *cmd, const struct host_op *op, const void *args, size_t nbytes);
void host_run(const struct host_cmd *cmd);

/* stream.c */
struct host_stream *host_stream_ref(struct host_stream *s);
void host_stream_unref(struct host_stream *s); /* takes NULL */
int host_push(struct host_stream *s, const struct host_op *op, const void *args, size_t nbytes,
	      uint64_t *ret_pos);
/* wait until the stream has finished pos or, with an event, until its record has run */
int host_stream_finish(struct host_stream *s, uint64_t pos, const struct host_event *e,
		       uint64_t count);
/* 1: it has; 0: not yet; or the code that the stream failed with before */
int host_stream_finished(struct host_stream *s, uint64_t pos, const struct host_event *e,
			 uint64_t count);
/* wait, without running commands on this thread */
int host_stream_await(struct host_stream *s, uint64_t pos, const struct host_event *e,
		      uint64_t count);
void host_stream_publish(struct host_stream *s, uint64_t pos); /* it has finished pos commands */
void host_stream_progress(struct host_stream *s); /* a record that is a node has run */
void host_stream_close(struct host_stream *s); /* runs all that is queued, and ends the worker */
int host_sticky(struct host_stream *s);
int host_not_capturing(const struct host_stream *s, const char *what);

/* event.c */
struct host_event *host_event_ref(struct host_event *e);
void host_event_unref(struct host_event *e);
/* take the count of a record before queueing it; release the count; set the record's position */
uint64_t host_event_count(struct host_event *e);
void host_event_uncount(struct host_event *e);
void host_event_place(struct host_event *e, struct host_stream *s, uint64_t pos, uint64_t count);
/* the record of that count has run */
void host_event_reach(struct host_event *e, uint64_t count);
/* 1: so has the record inside a graph, which s->progress signals */
static inline int host_event_reached(const struct host_event *e, uint64_t count)
{
	return e && atomic_load(&e->reached) >= count;
}

/* outside of captures: record the event in the stream, let the stream wait for it */
int host_event_mark(struct host_event *e, struct host_stream *s);
int host_event_await(struct host_event *e, struct host_stream *s);
int host_event_captured(struct host_event *e);

/* graph.c */
static inline int host_is_word(const struct host_op *op)
{
	return op->kind == HOST_WORD_SET || op->kind == HOST_WORD_TAKE;
}
int host_ids_reserve(struct host_ids *ids, uint32_t n);
void host_ids_free(struct host_ids *ids);
struct host_graph *host_graph_new(void);
int host_graph_reserve(struct host_graph *g); /* room for another node */
int host_declared_copy(struct host_cmd *cmd, const struct te__declared *d);

/* capture.c */
int host_capture_add(struct host_stream *s, const struct host_op *op, const void *args,
		     size_t nbytes);

/*
 * order.c: replace the edges by dependencies computed from memory accesses; a seed other than 0
 * makes g->run a random order that respects them
 */
int host_graph_order(struct host_graph *g, uint64_t seed);

/* replay.c */
/* run a node on a stream's worker or a helper; returns its code. count: counts of the records */
int host_run_node(struct host_stream *s, const struct host_graph *g, uint64_t number,
		  const uint64_t *count);
int host_graph_branches(struct host_graph *g);
int host_replay_new(struct host_graph *g, struct host_replay **ret_replay); /* NULL: none needed */
int host_replay_run(struct host_replay *r, struct host_stream *s, const uint64_t *count);
int host_replay_start(const struct host_graph *g); /* start helpers if the graph has branches */
int host_replay_help(struct host_pool *pool); /* with its lock; 0: no node was ready */
void host_replay_wake(struct host_pool *pool, uint32_t n); /* wake n waiting workers for parts */

/* topology.c */
/*
 * Finds the cores that have processors in the mask, HOST_THREADS_MAX at most, and the processors of
 * each; returns the number of cores. ret_core NULL: counts all cores. Without hwloc, or if it
 * fails, each processor is a core.
 */
uint32_t te__host_cores(const cpu_set_t *mask, cpu_set_t *ret_core);
/* cores that the process may use: by its mask and by the quotas of its control groups */
uint32_t host_ncores(void);
void host_pool_place(struct host_dev *dev); /* by TE_HOST_THREADS and TE_HOST_BIND */
void host_pool_bind(struct host_pool *pool, uint32_t i); /* helper i, just started */

/* team.c */
uint8_t *host_scratch_new(uint32_t n); /* for n threads */
int host_pool_init(struct host_dev *dev);
int host_pool_start(struct host_dev *dev); /* all helpers */
void host_pool_destroy(struct host_dev *dev);
/* with the pool's lock: wake n idle helpers, and spinning threads; returns n minus helpers woken */
uint32_t host_pool_wake(struct host_pool *pool, uint32_t n);
/* with the pool's lock: execute parts of a kernel; 0: there are none */
int host_pool_help(struct host_pool *pool);
/* with the pool's lock, which is released meanwhile: wait shortly for work; 0: there was none */
int host_pool_spin(struct host_pool *pool);

/* device.c */
/*
 * Bytes that the control groups leave, UINT64_MAX without a limit. root: their mount point;
 * membership: the process's file, as /proc/self/cgroup
 */
uint64_t te__cgroup_free(const char *root, const char *membership);
/* processors whose time the control groups allow, rounded up */
uint64_t te__cgroup_processors(const char *root, const char *membership);
#define CGROUP_ROOT "/sys/fs/cgroup"
#define CGROUP_MEMBERSHIP "/proc/self/cgroup"

#endif
