/* t/graph/caster.h - a callable that casts: y = x, dx = dy. */
#ifndef CASTER_H
#define CASTER_H

#include <te/graph.h>

#define CASTER_WORDS 16

struct caster {
	int more;	 /* another node in each pass */
	int fail_at;	 /* the call that fails, counted down; 0: none */
	int count;	 /* of calls, in memory of the host */
	uint32_t *words; /* NULL, or CASTER_WORDS of the device, which each pass writes */
	int released;
	struct te_arg in, out;
};

/* n elements of FP32 to another type */
struct te_callable caster(struct caster *a, enum te_dtype to, int64_t n, int more);

int caster_forward(void *self, const struct te_graph_call *c);
/* the count and the words; a callable has none unless it is told */
int caster_regions(void *self, te_region_fn fn, void *arg);

/* a te_graph_opts.hook, so that there is one */
int no_hook(void *arg, enum te_hook hook, int32_t callable, struct te_stream *stream);

#endif
