/* te/schedule.h - the order in which the passes of a pipeline's chunks run. */
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
	TE_SCHED_W = 2	/* weight gradients, if backward does not compute them */
};

struct te_sched_entry {
	int32_t chunk; /* from 0 */
	enum te_sched_kind kind;
};

#define TE_SCHED_FORWARD_ONLY 1u /* the default order: no backward passes */
#define TE_SCHED_DELAY_W 2u	 /* the default order: a W after each B */

struct te_schedule_opts {
	size_t size;	/* set by the INIT macro; lets the struct grow */
	uint32_t flags; /* TE_SCHED_*; 0 with order */
	int32_t nchunks;
	int32_t nmicro;		/* micro-batches; 0: as many as order has */
	const int32_t *nlayers; /* [nchunks] callables in a chunk; NULL: one each */
	/* [norder] NULL: forwards of all micro-batches, then backwards, chunks in reverse order */
	const struct te_sched_entry *order;
	int32_t norder;
};
#define TE_SCHEDULE_OPTS_INIT { sizeof(struct te_schedule_opts), 0, 1, 0, 0, 0, 0 }

/**
 * te_schedule_create - check an order of passes and expand it to steps
 * @opts:         not NULL
 * @ret_schedule: the schedule, with one reference
 *
 * The k-th forward entry of a chunk is its forward pass of micro-batch k; backward and
 * weight-gradient entries are counted separately. Each chunk has nmicro forward entries, as many
 * backward entries if there are any, and nmicro or no weight-gradient entries. For each
 * micro-batch, a forward must come after the forward of the previous chunk, a backward after its
 * forward and after the backward of the next chunk, and weight gradients after their backward. The
 * error message names the first entry that breaks a rule and its index.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL, -TE_EORDER, -EOVERFLOW (more than 2^31 steps), -ENOMEM.
 */
TE_EXPORT int te_schedule_create(const struct te_schedule_opts *opts,
				 struct te_schedule **ret_schedule);

/**
 * te_schedule_parse - create a schedule from text
 * @text:         a name, or entries in the notation of Megatron and Transformer Engine
 * @opts:         nchunks, nmicro, nlayers; nchunks 0, without nlayers: the highest chunk in the
 *                entries
 * @ret_schedule: the schedule, with one reference
 *
 * In "1,2,-2,-1", N is the forward of chunk N, counted from 1, and -N its backward. "-1.5" is the
 * weight gradients of chunk 1.
 * Names: "gpipe", the default order; "1f1b", with at most nchunks micro-batches between forward and
 * backward; "zero-bubble", the same with weight gradients after the next forward; "interleaved",
 * nchunks - 1 forward entries, then forward and backward entries alternate.
 * Source: Megatron-LM, core/pipeline_parallel/schedules.py for a single stage ("interleaved").
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL (names the invalid part of text), -TE_EORDER, -EOVERFLOW, -ENOMEM.
 */
TE_EXPORT int te_schedule_parse(const char *text, const struct te_schedule_opts *opts,
				struct te_schedule **ret_schedule);
/* the entries in the notation of te_schedule_parse; release *ret_text with free(3) */
TE_EXPORT int te_schedule_print(const struct te_schedule *schedule, char **ret_text);

TE_EXPORT struct te_schedule *te_schedule_ref(struct te_schedule *schedule);
TE_EXPORT struct te_schedule *te_schedule_unref(struct te_schedule *schedule);

struct te_schedule_info {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nchunks, nmicro, nentries, nsteps;
	/* one callable for each layer and micro-batch: layers of all chunks times nmicro */
	int32_t ncallables;
	uint32_t kinds; /* bit te_sched_kind: the order has such entries */
};
#define TE_SCHEDULE_INFO_INIT { sizeof(struct te_schedule_info), 0, 0, 0, 0, 0, 0 }
TE_EXPORT int te_schedule_info(const struct te_schedule *schedule,
			       struct te_schedule_info *ret_info);

/* A pass of one callable. A forward entry has a step for each layer of its chunk in ascending
 * order, the other entries in descending order. */
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
