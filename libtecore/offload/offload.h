/*
 * offload.h - the te_offload that plans share: its options, rates, pinned memory and file. It does
 * not look into plans; plan/moves.h has the values that they move.
 */
#ifndef TE__OFFLOAD_H
#define TE__OFFLOAD_H

#include <pthread.h>
#include <stdatomic.h>

#include <te/offload.h>

#include "libtecore/offload/limits.h"
#include "libtecore/offload/pinned.h"
#include "libtecore/offload/spill.h"

struct te_plan;

/* Seconds and bytes per second. */
struct te__offload_rates {
	double out, in;	  /* rates of the link, each way */
	double mem, flop; /* rates of kernels, for the time of a group */
	double write, read; /* rates of the file */
};

/* An extent of the file: it is never given back, so another plan uses it again. */
#define TE__OFFLOAD_FILES (TE__PINNED_NWORDS / 4)
struct te__offload_file {
	size_t nbytes;
	const char *name; /* name of the value that uses it, or NULL */
};

struct te_offload {
	atomic_int refs;
	struct te_ctx *ctx;
	struct te_offload_opts opts; /* patterns are copies */
	struct te__offload_rates rates;
	struct te_stream *out, *in; /* streams of eager copies, under lock */
	struct te__pinned *slots;   /* pinned memory of all plans, with a file; or NULL */
	struct te__spill *spill;
	pthread_mutex_t lock;	    /* protects all below, and queueing on the streams */
	struct te_plan *plans;	    /* plans that move values, in the order of their creation */
	uint64_t pinned_nbytes;	    /* pinned memory of these plans */
	uint64_t filed_nbytes;	    /* bytes of the file that these plans use */
	int words;		    /* 1: the device sets and takes words in stream order */
	int narmed;		    /* plans that were captured */
	uint32_t nfiles;	    /* values in the file */
	uint64_t measured_nbytes;   /* bytes of the file by which its rates were measured */
	struct te__offload_file *file; /* [TE__OFFLOAD_FILES] */
	/* bytes that plans may still move, and the waits allowed: set for a group of plans by
	 * te__offload_allow(). directed 0: each plan follows the options */
	int directed;
	enum te__waits waits;
	uint64_t left_nbytes;
	uint64_t nforwards, nbytes_out, nbytes_in, ncopies;
};

/* limits.c: bytes of pinned memory, or of the file, that the options leave */
uint64_t te__offload_room(struct te_offload *o);
/* extents.c: room in the file for a value; the name is used until the room is given back */
int te__offload_take_file(struct te_offload *o, size_t nbytes, const char *name,
			  uint32_t *ret_file);
void te__offload_give_file(struct te_offload *o, uint32_t file);

/* rates.c: rates that the options leave open are measured */
int te__offload_find_rates(struct te_offload *o);
int te__offload_find_file_rates(struct te_offload *o);

#endif
