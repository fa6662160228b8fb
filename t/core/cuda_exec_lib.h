/*
 * t/core/cuda_exec_lib.h - what the cases of the cuda backend's graphs share: a device and two
 * streams of the driver in cuda_fake_graph.h, without all that opening one needs.
 */
#ifndef CUDA_EXEC_LIB_H
#define CUDA_EXEC_LIB_H

#include "cuda_fake_graph.h"
#include "libtecore/backend/cuda_graph.h"
#include "tt_ctx.h"

extern const struct te__backend_ops *const ops;
extern struct te__cuda_dev dev;
extern struct te__cuda_stream a, b;

/* for any work */
extern unsigned char x[64], y[64], z[64];

/* the fixture; the driver holds nothing of the test behind it */
void exec_setup(void);
void exec_teardown(void);

/* what the backend says of a node */
struct te__gnode node(void *graph, uint64_t index);
/* a host call */
void nothing(void *arg);
/* either may be NULL */
void give_back(void *graph, void *exec);

/* the cases of a file */
void exec_edge_cases(TCase *c);

#endif
