/* te/offload.h - values kept for backward leave device memory after forward, and return in time. */
#ifndef TE_OFFLOAD_H
#define TE_OFFLOAD_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/export.h>

TE_BEGIN_DECLS

struct te_offload; /* opaque, reference counted */

#define TE_OFFLOAD_VERIFY_ALL 0u
#define TE_OFFLOAD_VERIFY_SAMPLE 1u
#define TE_OFFLOAD_VERIFY_OFF 2u

struct te_offload_opts {
	size_t size; /* set by the INIT macro; lets the struct grow */
	/* the most memory, of a plan its arena, of a step its pool: the fewest bytes that reach it
	 * move. 0: none, as many move as move_nbytes allows */
	uint64_t target_nbytes;
	uint64_t move_nbytes; /* the most that move, of all plans of a step together; 0: no limit */
	uint64_t pinned_nbytes; /* the most pinned memory of all plans; 0: no limit */
	uint64_t min_nbytes;	/* smaller values stay; 0: 16384 */
	/* values are copied together up to this size; 0: 4 MiB, or 1/32 of what moves if that is
	 * less */
	uint64_t group_nbytes;
	double margin;	       /* share of the link that plans leave unused, 0 to 0.9 */
	/* patterns of fnmatch(3) for names as te_plan_saved() lists them, "h.*.norm.y". Values that
	 * match one of keep stay; nmove not 0: only those that match one of move do not. Each
	 * matches values of every step, and of every plan of a whole sequence, or creating these
	 * fails */
	int32_t nkeep, nmove;
	const char *const *keep;
	const char *const *move;
	/* per second: bytes copied out, copied in, accessed by kernels, and floating-point
	 * operations; 0: measured when the object is created */
	double out_rate, in_rate, mem_rate, flop_rate;
	/* a folder: values pass on from pinned memory, of pinned_nbytes, 0: 64 MiB, to a file
	 * without a name, of quota_nbytes. NULL: they stay in pinned memory */
	const char *dir;
	uint64_t quota_nbytes;
	double write_rate, read_rate; /* of the file, in bytes per second; 0: measured */
	uint32_t verify; /* TE_OFFLOAD_VERIFY_*: checksums of what is read from the file; 0: all */
	uint64_t endurance_nbytes; /* that the drive may still be written; 0: unknown */
	uint32_t timed; /* 1: measure how long passes wait for values that are copied back */
};
#define TE_OFFLOAD_OPTS_INIT \
	{ sizeof(struct te_offload_opts), 0, 0, 0, 0, 0, 0.2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
	  0, 0, 0, 0 }

/**
 * te_offload_create - what plans need to offload values: rates, copy streams, limits
 * @opts: copied; NULL: all values that can move without delaying the pass
 *
 * Give it to plans in te_plan_opts.offload, or to a step in te_step_opts.offload. Plans that train
 * then divide the lifetimes of values: the memory of a value is free from the end of its copy to
 * pinned host memory until the copy back begins. Each plan allocates pinned memory for what it
 * moves when it is created.
 * Stream: synchronous: it measures the rates that opts does not give.
 * Thread: any.  Errors: -EINVAL, -ENOMEM, -EBUSY, -TE_ECUDA.
 */
TE_EXPORT int te_offload_create(struct te_ctx *ctx, const struct te_offload_opts *opts,
				struct te_offload **ret_offload);
/* another target_nbytes for plans and steps that are created later; 0: none. Errors: -EINVAL */
TE_EXPORT int te_offload_set_target(struct te_offload *offload, uint64_t target_nbytes);
TE_EXPORT struct te_offload *te_offload_ref(struct te_offload *offload);
TE_EXPORT struct te_offload *te_offload_unref(struct te_offload *offload);

/* What plans will do, and what eager passes have done. */
struct te_offload_report {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nplans;	 /* that move values */
	int32_t ngroups; /* copies each way of one pass of each plan */
	uint64_t moved_nbytes;	/* one way, of one pass of each plan */
	uint64_t pinned_nbytes; /* allocated by these plans */
	uint64_t peak_nbytes;	/* arenas of these plans */
	uint64_t plain_nbytes;	/* the same if nothing moved */
	double copy_ms, stall_ms; /* predicted: of all copies, both ways; what passes wait */
	double hidden;		  /* predicted: 1 - stall_ms / copy_ms */
	double out_rate, in_rate, mem_rate, flop_rate; /* as plans use them */
	/* eager passes so far, and recorded ones, which count once */
	uint64_t nforwards, ncopies, out_nbytes, in_nbytes;
	double write_rate, read_rate; /* of the file, as plans use them; 0: none */
	uint64_t written_nbytes, read_nbytes; /* to and from the file so far, also by replays */
	double write_ms, read_ms; /* in which requests to it were open; predicted: by the rates */
	uint64_t nerrors;	  /* requests that failed */
	double pass_ms;	   /* predicted: forward and backward of each plan once, with waits */
	double drive_days; /* until endurance_nbytes are written by such passes; 0: unknown */
	/* of opts.timed: the latest backward pass of each plan; while no pass runs */
	double waited_ms;
};
#define TE_OFFLOAD_REPORT_INIT                                                                    \
	{                                                                                         \
		sizeof(struct te_offload_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
			0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                           \
	}

/* Errors: -EINVAL. */
TE_EXPORT int te_offload_report(struct te_offload *offload, struct te_offload_report *ret_report);
/**
 * te_offload_print - the schedule of all plans as a table
 * @ret_text: released with free(3)
 *
 * Of each group of values: bytes, the first value, the groups of the plan after which it leaves and
 * its memory is free, those before which it returns and is read, and the predicted hidden share.
 * Of each plan a picture: the memory in use while its groups run.
 * Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_offload_print(struct te_offload *offload, char **ret_text);

TE_END_DECLS

#endif
