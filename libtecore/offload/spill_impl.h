/*
 * spill_impl.h - shared by spill.c (calls), spill_request.c (requests and their results) and
 * spill_serve.c (the I/O thread).
 *
 * One lock protects all. The I/O thread holds it, except while it waits in reap() and while it
 * copies or checks the bytes of an active request, which only this thread completes.
 */
#ifndef TE__SPILL_IMPL_H
#define TE__SPILL_IMPL_H

#include <pthread.h>
#include <sys/types.h>
#include <time.h>

#include "libtecore/offload/spill_io.h"

/* A block of a group. */
struct te__spill_block {
	uint64_t offset; /* in the file */
	uint32_t crc;
	int has_crc; /* 1: crc is valid for the last write */
};

/* The requests of a group in one direction: at most one is active. */
struct te__spill_request {
	/* list of active requests in this direction, oldest first */
	struct te__spill_request *prev, *next;
	uint32_t group;
	enum te__spill_dir dir;
	int active;  /* from the request until its completion */
	int forward; /* a read that began while the group was being written */
	uint8_t *slot;
	size_t nbytes;
	_Atomic uint32_t *done;
	uint32_t value;
	uint64_t begin_ns;
	uint32_t nblocks, started, nflight;
	/* the first failure, or the result of the latest request */
	int code;
	uint32_t bad;

	/* te__spill_bind(): start is NULL if there is none */
	struct te__spill_request *next_bound;
	uint8_t *bound_slot;
	size_t bound_nbytes;
	_Atomic uint32_t *start, *bound_done;
};

struct te__spill_group {
	struct te__spill_request req[2]; /* by te__spill_dir */
	struct te__spill_block *block;	 /* NULL: not reserved */
	uint32_t nblocks;
	size_t nbytes; /* reserved */
	size_t stored; /* bytes of the latest write; 0: EMPTY */
	int lost;      /* the code of a failed write; 0: not LOST */
	uint32_t lost_block;
	uint32_t nzombies; /* blocks in flight of requests that have timed out */
	uint32_t nwrites;
};

/* A block in flight; the tag is its index. */
struct te__spill_flight {
	struct te__spill_request *req; /* NULL: free */
	uint32_t block;
	int zombie; /* 1: its request is complete: the outcome is ignored */
	int moved;
	uint32_t nretries;
	size_t nbytes; /* rounded up to TE__SPILL_ALIGN */
	size_t have;   /* bytes transferred */
	uint64_t begin_ns;
};

struct te__spill {
	struct te__pinned *arena;
	char *dir;
	uint64_t quota;
	size_t block_nbytes;
	uint32_t depth, ngroups, timeout_ms;
	enum te__spill_engine engine;
	enum te__spill_verify verify;
	const struct te__spill_ops *given; /* or NULL */
	pid_t pid;
	pthread_t thread, watch;
	int has_thread, has_watch;

	pthread_mutex_t lock;
	pthread_cond_t changed; /* a request is complete, the thread is ready, quit, or dead */
	const struct te__spill_ops *ops;
	void *impl;
	struct te__spill_file file;
	int ready, ready_code; /* 1: the thread has started; its result */
	char ready_message[512];
	char reason[256]; /* why AUTO is not io_uring */
	int quit, sleeping, armed;
	uint64_t nloops;      /* loops of the I/O thread, to see that it runs */
	pthread_cond_t ended; /* gone was set; the watch waits for it */
	int gone; /* the I/O thread has ended */
	int orphan; /* the spill was destroyed before the thread ended: the thread frees all */
	int dead;      /* the code with which the engine failed; 0: it works */
	uint64_t used; /* bytes of the file in extents */
	struct te__spill_group *group;
	struct te__spill_flight *flight; /* 2 * depth */
	struct te__spill_request *first[2], *last[2], *bound;
	uint32_t nflight[2];
	uint64_t busy_since_ns[2], progress_ns[2]; /* progress: the latest completion of a block */
	int stopped[2]; /* 1: a block timed out, and none was completed since it was submitted */
	int unlocked; /* 1: requests may have been made since the I/O thread last looked for them */
	struct te__spill_error error;
	struct te__spill_stats stats;
};

static inline struct te__spill_group *te__spill_group_of(struct te__spill *s,
							 const struct te__spill_request *q)
{
	return &s->group[q->group];
}

static inline size_t te__spill_rounded(size_t nbytes)
{
	return (nbytes + TE__SPILL_ALIGN - 1) / TE__SPILL_ALIGN * TE__SPILL_ALIGN;
}

/* for pthread_cond_timedwait on s->changed */
static inline struct timespec te__spill_in_ns(int64_t ns)
{
	const uint64_t t = te__now_ns() + (uint64_t)ns;

	return (struct timespec){ .tv_sec = (time_t)(t / 1000000000u),
				  .tv_nsec = (long)(t % 1000000000u) };
}

extern const char *const te__spill_verb[2]; /* by te__spill_dir */

/* all with the lock held */

/* returns code, with the message of a request that failed at a block */
int te__spill_failed(const struct te__spill *s, const struct te__spill_request *q, int code,
		     uint32_t block);
/* makes a request, or returns the error if the state does not allow it; spill.h has the rules */
int te__spill_request(struct te__spill *s, const char *fn, struct te__spill_group *g,
		      enum te__spill_dir dir, void *slot, size_t nbytes, _Atomic uint32_t *done,
		      uint32_t value);
/* records a request that was not made: its error, and the state of its group */
void te__spill_refused(struct te__spill *s, struct te__spill_request *q, int code);
/* writes the word, and wakes waiters */
void te__spill_release(struct te__spill *s, _Atomic uint32_t *done, uint32_t value);
/* completes a request with the result q->code; called on the I/O thread */
void te__spill_complete(struct te__spill *s, struct te__spill_request *q);
/* fails a request; wait: waits for its blocks in flight, which else become zombies; on the I/O
 * thread */
void te__spill_fail(struct te__spill *s, struct te__spill_request *q, int code, uint32_t block,
		    int wait);

/* the I/O thread; arg is the spill */
void *te__spill_run(void *arg);
/* fails requests and releases words after the engine failed, until the spill is destroyed */
void te__spill_serve_dead(struct te__spill *s);

/* 1: the caller is a forked child, which has neither threads nor locks; the file is the parent's */
int te__spill_forked(const struct te__spill *s);
/* release a spill whose threads have ended, except the calling one */
void te__spill_free(struct te__spill *s);

/* spill_watch.c: the thread that watches the I/O thread; arg is the spill */
void *te__spill_watch(void *arg);

#endif
