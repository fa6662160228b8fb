/* te/schedule.h - which pass of which part of a model runs when. */
#ifndef TE_SCHEDULE_H
#define TE_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_schedule; /* opaque, immutable, reference counted */

enum te_sched_kind {
	TE_SCHED_F = 0, /* forward */
	TE_SCHED_B = 1, /* backward */
	TE_SCHED_W = 2	/* weight gradients, where backward leaves them */
};

struct te_sched_entry {
	int32_t chunk; /* from 0 */
	enum te_sched_kind kind;
};

#define TE_SCHED_FORWARD_ONLY 1u /* the default order: no backward passes */
#define TE_SCHED_DELAY_W 2u	 /* the default order: a W behind each B */

struct te_schedule_opts {
	size_t size;	/* set by the INIT macro; lets the struct grow */
	uint32_t flags; /* TE_SCHED_*, without order only */
	int32_t nchunks;
	int32_t nmicro;		/* micro-batches; 0: as many as the order has */
	const int32_t *nlayers; /* [nchunks] callables in a chunk; NULL: one each */
	/* NULL: forwards of all micro-batches, then their backwards, chunks reversed */
	const struct te_sched_entry *order;
	int32_t norder;
};
#define TE_SCHEDULE_OPTS_INIT { sizeof(struct te_schedule_opts), 0, 1, 0, 0, 0, 0 }

/**
 * te_schedule_create - an order of passes that has been checked
 *
 * The k-th visit of a chunk is its k-th micro-batch; forward, backward and weight-gradient visits
 * count apart. Each chunk is visited nmicro times forward, in training as often backward, and
 * nmicro times or never for weight gradients. A forward comes behind that of the chunk before, a
 * backward behind its forward and the backward of the chunk behind, weight gradients behind their
 * backward. The first entry against a rule is named with its place.
 * Thread: any.
 * Errors: -EINVAL, -TE_EORDER, -EOVERFLOW (more than 2^31 steps), -ENOMEM.
 */
TE_EXPORT int te_schedule_create(const struct te_schedule_opts *opts,
				 struct te_schedule **ret_schedule);

/**
 * te_schedule_parse - a schedule from text
 * @text: a name, or entries as Megatron and Transformer Engine write them
 * @opts: nchunks, nmicro and nlayers; nchunks 0, without nlayers: as many as the entries name
 *
 * "1,2,-2,-1": chunks from 1, forward; negative, backward; "-1.5": weight gradients of chunk 1.
 * Names: "gpipe", the default order; "1f1b", which has at most nchunks micro-batches between
 * forward and backward; "zero-bubble", the same with weight gradients behind the next forward;
 * "interleaved", nchunks - 1 forward entries, then a forward and a backward entry in turn.
 * Source: of "interleaved", Megatron-LM's core/pipeline_parallel/schedules.py for a single stage.
 * Errors: -EINVAL (names the word), -TE_EORDER, -EOVERFLOW, -ENOMEM.
 */
TE_EXPORT int te_schedule_parse(const char *text, const struct te_schedule_opts *opts,
				struct te_schedule **ret_schedule);
/* the entries in that notation; *ret_text is released with free(3) */
TE_EXPORT int te_schedule_print(const struct te_schedule *schedule, char **ret_text);

TE_EXPORT struct te_schedule *te_schedule_ref(struct te_schedule *schedule);
TE_EXPORT struct te_schedule *te_schedule_unref(struct te_schedule *schedule);

struct te_schedule_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nchunks, nmicro, nentries, nsteps;
	/* chunks' layers times nmicro: one callable for each layer and micro-batch */
	int32_t ncallables;
	uint32_t kinds; /* bit te_sched_kind: the order has such entries */
};
#define TE_SCHEDULE_INFO_INIT { sizeof(struct te_schedule_info), 0, 0, 0, 0, 0, 0 }
TE_EXPORT int te_schedule_info(const struct te_schedule *schedule,
			       struct te_schedule_info *ret_info);

/* A pass of one callable: forward entries go through a chunk's layers upwards, others downwards. */
struct te_sched_step {
	int32_t entry;
	enum te_sched_kind kind;
	int32_t chunk, micro, layer;
	int32_t callable; /* callables are in the order of chunk, then micro-batch, then layer */
};
TE_EXPORT int te_schedule_step(const struct te_schedule *schedule, int32_t index,
			       struct te_sched_step *ret_step);

TE_END_DECLS

#endif
