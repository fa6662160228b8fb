/*
 * t/backend/cuda_exec_lib.h - shared by the cases of the cuda backend's graphs: a device and two
 * streams of the fake driver in cuda_fake_graph.h, made without opening a GPU.
 */
#ifndef CUDA_EXEC_LIB_H
#define CUDA_EXEC_LIB_H

#include "cuda_fake_graph.h"
#include "libtecore/backend/cuda/graph.h"
#include "tt_ctx.h"

extern const struct te__backend_ops *const ops;
extern struct te__cuda_dev dev;
extern struct te__cuda_stream a, b;

/* memory for any work */
extern unsigned char x[64], y[64], z[64];

/* the fixture; after a test no object of the driver may exist */
void exec_setup(void);
void exec_teardown(void);
CASE(graphs, "host fast", .setup = exec_setup, .teardown = exec_teardown);

/* the backend's description of a node */
struct te__gnode node(void *graph, uint64_t index);
/* a host call */
void nothing(void *arg);
/* either may be NULL */
void give_back(void *graph, void *exec);

#endif
