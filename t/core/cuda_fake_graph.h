/*
 * t/core/cuda_fake_graph.h - a driver that is written here: it captures, lists nodes in no order,
 * and runs graphs on the CPU, where their launches are done when they return.
 *
 * It has copies and memsets, host calls, events, and one kernel, te_k_fill. What two nodes of a
 * graph do has an order only where an edge gives it: an executable draws one of those that the
 * edges allow. Parameters are set by the nodes of the graph that it was instantiated from, which
 * must be alive. Everything else of the driver fails.
 */
#ifndef CUDA_FAKE_GRAPH_H
#define CUDA_FAKE_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_DEPS 8

/* a node, to look at and to queue; a handle of one is its address */
struct fake_node {
	int type, ndeps, graph;
	struct fake_node *dep[FAKE_DEPS];
	int early[FAKE_DEPS]; /* by a programmatic edge */
	uint64_t dst, src;
	size_t n;
	unsigned value, elem;
	void (*fn)(void *arg);
	void *arg;
};

/* what a test may look at and set */
extern struct fake_asked {
	int graphs, execs, events; /* alive */
	int launches;		   /* of graphs */
	int pending;		   /* 1: recorded events are not reached, until one is waited for */
	int cannot_update;	   /* executables are to be made anew */
	int fail_set;		   /* the set of parameters that fails, from 1; 0: none */
	int next_early;		   /* the next node queued has a programmatic edge */
} fake;

/* a handle of what nobody looks into: contexts, and te_k_fill */
extern int fake_handle;

/* this is the driver from here on, and nothing was asked of it yet */
void fake_graph_setup(void);
/* 0 or 1 */
void *fake_stream(int number);
/* work that no entry queues: on a stream a node of its capture, or done now */
int fake_queue(void *stream, struct fake_node what);

#endif
