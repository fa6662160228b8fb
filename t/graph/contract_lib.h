/*
 * t/graph/contract_lib.h - shared by the cases of t/graph/contract: callables that copy their
 * inputs to their outputs, a pipeline of them that counts calls, and words in device memory.
 */
#ifndef CONTRACT_LIB_H
#define CONTRACT_LIB_H

#include <te/graph.h>

#include "tt_ctx.h"

/* another context */
struct te_ctx *new_ctx(void);
/* a word of the device, once all before on st has run, and the first one of a tensor */
uint32_t word_at(const void *device);
uint32_t value_of(const struct te_tensor *t);
void set_word(void *device, uint32_t v);

/* what all callables of a test share: which of their calls fails */
struct calls {
	int n, fail_at;
};

/* a callable that passes x on, 3 integers, and leaves the mark of the pass in a word: 0xf0f0 of
 * forward, 0xb0b0 of backward, 0xd0d0 of backward_dw, which a stage has only if dw says so */
struct stage {
	struct calls *calls;
	uint32_t *word; /* of the device; each pass writes it */
	int nforward, nbackward, ndw, released;
};

struct te_callable stage(struct stage *s, const char *name, int dw);
extern const struct te_arg stage_out[1];

#define NODES 4
#define PIPES 3

extern const struct pipe {
	const char *order;
	int32_t nchunks, nmicro; /* a layer each */
	int delayed;		 /* chunk 1 has weight gradients of its own */
} pipes[PIPES];

/* a chain of stages a, b, ... with hooks and with a first and a last function */
struct pipeline {
	const struct pipe *p;
	struct calls calls;
	struct stage stage[NODES];
	struct te_callable c[NODES];
	struct te_graph_opts o;
	struct te_graph *g;
	int n;
	char log[64 * 1024]; /* each hook as "hook:callable ", one that fails with a ! */
	int nhooks, hook_fails_at;
	uint32_t *hooked; /* written by each hook */
};

/* all but the graph; the word of stage i is 1000 + i */
void pipeline_create(struct pipeline *p, const struct pipe *of, uint32_t flags, int nwarmup);
void pipeline_destroy(struct pipeline *p);

/* a graph of one callable with three inputs of different kinds, x, mask and bias, and what they
 * become, y, seen and z, of which one has no gradient: dx is dz, dbias is dy */
struct some {
	struct te_tensor *in[3], *dy[3], *kept[2];
	struct te_graph *g;
};

extern const struct te_arg many_in[3];

/* inputs hold 10, 11 and 12, gradients 20, 21 and 22 */
void some_create(struct some *s);
void some_destroy(struct some *s);
/* the outputs are those of inputs that hold this number and the next ones */
void some_gave(const struct some *s, int inputs);

#endif
