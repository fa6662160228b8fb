/*
 * t/graph/graph_lib.h - what the cases of te_graph_*(3) share: a small callable whose calls may
 * fail, and tensors that fit it.
 */
#ifndef GRAPH_LIB_H
#define GRAPH_LIB_H

#include <te/graph.h>

#include "tt_ctx.h"

/* y = x, [3,5] FP32; dx = x as forward saved it, whatever dy is. Words that are not NULL are
 * regions: w becomes the first element of x, dw that of dy */
struct axpy {
	float *w, *dw; /* one device word each */
	int fail_at;   /* the call that fails, counted down; 0: none */
	int silent;    /* without a sentence */
	int ncalls;
	int released;
};

struct te_callable axpy(struct axpy *a, const char *name);
extern const struct te_arg axpy_in[1];

/* a tensor of that shape that counts up from x */
struct te_tensor *filled(float x);
/* its first element, once all before on st has run */
float first_of(struct te_tensor *t);

#endif
