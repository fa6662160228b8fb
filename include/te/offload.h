/* te/offload.h - offload of saved values to host memory or files between forward and backward. */
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
	/* upper bound on the memory of a plan's arena or a step's pool, in bytes: only as many
	 * values are offloaded as it needs. 0: as many as move_nbytes allows */
	uint64_t target_nbytes;
	uint64_t move_nbytes; /* limit of offloaded bytes of all plans of a step; 0: none */
	uint64_t pinned_nbytes; /* limit of pinned memory, over all plans; 0: none */
	uint64_t min_nbytes;	/* smaller values stay; 0: 16384 */
	/* limit of bytes that are copied together; 0: 4 MiB, or 1/32 of all offloaded bytes if that
	 * is less */
	uint64_t group_nbytes;
	double margin;	       /* share of the link left unused, 0 to 0.9; 0.2 by default */
	/* patterns of fnmatch(3) for names as te_plan_saved() lists them, "h.*.norm.y". Values that
	 * match a pattern of keep stay; with nmove above 0, only values that match a pattern of
	 * move are offloaded. Creating a step, or a plan of a whole sequence, fails if a pattern
	 * matches none of its values */
	int32_t nkeep, nmove;
	const char *const *keep;
	const char *const *move;
	/* per second: bytes copied out, copied in, accessed by kernels, and floating-point
	 * operations; 0: measured when the object is created */
	double out_rate, in_rate, mem_rate, flop_rate;
	/* folder in which an unnamed file of quota_nbytes is created; values are copied to it
	 * through pinned memory of pinned_nbytes (0: 64 MiB). NULL: they stay in pinned memory */
	const char *dir;
	uint64_t quota_nbytes;
	double write_rate, read_rate; /* rates of the file, in bytes per second; 0: measured */
	uint32_t verify; /* TE_OFFLOAD_VERIFY_*: values whose checksum is verified */
	uint64_t endurance_nbytes; /* bytes that may still be written to the drive; 0: unknown */
	uint32_t timed; /* 1: measure how long passes wait for values that are copied back */
};
#define TE_OFFLOAD_OPTS_INIT \
	{ sizeof(struct te_offload_opts), 0, 0, 0, 0, 0, 0.2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
	  0, 0, 0, 0 }

/**
 * te_offload_create - create the rates, copy streams and limits by which plans offload values
 * @ctx:         the device; the offload keeps a reference
 * @opts:        copied; NULL: offload all values that can move without delaying the pass
 * @ret_offload: the offload, with one reference
 *
 * Give it to plans in te_plan_opts.offload, or to a step in te_step_opts.offload. Training plans
 * then divide the lifetimes of values: the memory of a value is free from the end of its copy to
 * pinned host memory until the copy back begins. A plan allocates pinned memory for its offloaded
 * values when it is created.
 * Stream: synchronous: measures the rates that opts does not give.
 * Thread: any.  Since: 0.1  Errors: -EINVAL, -ENOMEM, -EBUSY, -TE_ECUDA.
 */
TE_EXPORT int te_offload_create(struct te_ctx *ctx, const struct te_offload_opts *opts,
				struct te_offload **ret_offload);
/* set target_nbytes of plans and steps that are created later; 0: none. Errors: -EINVAL */
TE_EXPORT int te_offload_set_target(struct te_offload *offload, uint64_t target_nbytes);
TE_EXPORT struct te_offload *te_offload_ref(struct te_offload *offload);
TE_EXPORT struct te_offload *te_offload_unref(struct te_offload *offload);

/* Predictions for plans, and counts of eager passes. */
struct te_offload_report {
	size_t size; /* set by the INIT macro; lets the struct grow */
	int32_t nplans;	 /* plans that offload values */
	int32_t ngroups; /* copies in one direction, in one pass of each plan */
	uint64_t moved_nbytes;	/* bytes copied in one direction, in one pass of each plan */
	uint64_t pinned_nbytes; /* pinned memory that these plans allocated */
	uint64_t peak_nbytes;	/* arenas of these plans */
	uint64_t plain_nbytes;	/* arenas of these plans if nothing were offloaded */
	double copy_ms, stall_ms; /* predicted: time of all copies, both ways; time passes wait */
	double hidden;		  /* predicted: 1 - stall_ms / copy_ms */
	double out_rate, in_rate, mem_rate, flop_rate; /* rates that plans use */
	/* counts for eager passes so far; a recorded pass counts once */
	uint64_t nforwards, ncopies, out_nbytes, in_nbytes;
	double write_rate, read_rate; /* rates of the file that plans use; 0: no file */
	uint64_t written_nbytes, read_nbytes; /* to and from the file so far, also by replays */
	double write_ms, read_ms; /* time so far with open requests to the file, as measured */
	uint64_t nerrors;	  /* requests that failed */
	double pass_ms;	   /* predicted: forward and backward of each plan once, with waits */
	double drive_days; /* days until such passes have written endurance_nbytes; 0: unknown */
	/* with opts.timed: time that the latest backward pass of each plan waited for values; read
	 * it while no pass runs */
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
 * te_offload_print - print the schedule of all plans as a table
 * @offload:  the offload
 * @ret_text: released with free(3)
 *
 * A row for each group of values: bytes, the first value, the plan's groups after which it is
 * copied out and its memory is free, the groups before which it is copied back and read, and the
 * predicted hidden share. Each plan also gets a picture of the memory in use while its groups run.
 * Thread: one offload by one thread at a time.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_offload_print(struct te_offload *offload, char **ret_text);

TE_END_DECLS

#endif
