/*
 * t/backend/cuda_fake_graph.h - a fake driver: it captures, lists nodes in no particular order,
 * and runs graphs on the CPU; a launch has finished when the call returns.
 *
 * It has copies, memsets, host calls, events, and one kernel, te_k_fill. Only edges order the
 * nodes of a graph: an executable draws a random order that the edges allow. Parameters are set
 * through nodes of the graph that the executable was instantiated from, which must exist. All other
 * functions of the driver fail.
 */
#ifndef CUDA_FAKE_GRAPH_H
#define CUDA_FAKE_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_DEPS 64

/* a node, to inspect and to queue; its handle is its address */
struct fake_node {
	int type, ndeps, graph;
	struct fake_node *dep[FAKE_DEPS];
	int pdl[FAKE_DEPS]; /* 1: a programmatic edge */
	uint64_t dst, src;
	size_t n;
	unsigned value, elem;
	/* of a kernel: blocks of a cluster that it needs, and is run with; 0: none */
	unsigned cluster, run_cluster;
	void (*fn)(void *arg);
	void *arg;
};

/* state that a test may inspect and set */
extern struct fake_asked {
	int graphs, execs, events; /* that exist */
	int memory;		   /* allocations that exist */
	int launches;		   /* of graphs */
	int syncs;		   /* waits for streams */
	int edge_lists;		   /* lists of a graph's edges */
	const void *pageable;	   /* memory that the driver does not know */
	int pending;		   /* 1: recorded events are not reached, until one is waited for */
	int no_words;		   /* 1: operations on words are refused */
	int cannot_update;	   /* 1: updates of executables fail */
	int fail_set;		   /* which call that sets parameters fails, from 1; 0: none */
	int next_pdl;		   /* 1: the next queued node has a programmatic edge */
	unsigned cluster;	   /* that te_k_fill needs from now on */
	int wrong_clusters;	   /* kernels that have run with clusters of another one */
} fake;

/* the handle of contexts and of te_k_fill */
extern int fake_handle;

/* installs the fake driver in its initial state */
void fake_graph_setup(void);
/* 0 or 1; both are streams of the context &fake_handle */
void *fake_stream(int number);
/* work that is not queued by the library: a node if the stream captures, else run at once */
int fake_queue(void *stream, struct fake_node what);

#endif
