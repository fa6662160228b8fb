/*
 * spill.h - the file tier of offload: groups of bytes written from slots of an arena to a private
 * file, and read back.
 *
 * A spill has one I/O thread, one file and a fixed number of groups. A group has an extent of the
 * file, which is reused in every step. One write and one read of a group can be requested at a
 * time, by a call or by a word in memory which the I/O thread polls; requests of different groups
 * run concurrently, in blocks.
 *
 * States of a group: EMPTY -> WRITING -> STORED -> READING -> STORED ..., and LOST after a failed
 * write. A read of a group that is WRITING is served from the slot of the write: the bytes are
 * copied if the slots differ. A request that the state does not allow fails.
 *
 * Every request completes, with its data or with an error, after the time limit at the latest. A
 * second thread ensures this if the I/O thread does not return from a system call in time.
 * A read that fails fills its slot with 0xff bytes, which are NaN in every floating-point type, so
 * that no computation continues with old data unnoticed. The first error is kept.
 *
 * Nothing is allocated, opened, mapped or registered between te__spill_create() or
 * te__spill_reserve() and te__spill_destroy().
 */
#ifndef TE__SPILL_H
#define TE__SPILL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "libtecore/offload/pinned.h"

struct te__spill;
struct te__spill_ops; /* spill_io.h: submits blocks and reaps their completions */

enum te__spill_engine {
	TE__SPILL_AUTO, /* io_uring, or threads, with a log message, if io_uring is refused */
	TE__SPILL_URING,
	TE__SPILL_THREADS,
	TE__SPILL_MEMORY, /* no file: blocks are kept in host memory; for tests */
};

/* blocks whose CRC32C is compared, when they are read, with the one of their write */
enum te__spill_verify { TE__SPILL_VERIFY_ALL, TE__SPILL_VERIFY_SAMPLE, TE__SPILL_VERIFY_OFF };

enum te__spill_dir { TE__SPILL_WRITE, TE__SPILL_READ };

struct te__spill_opts {
	const char *dir;       /* an existing folder; the file has no name there */
	uint64_t quota_nbytes; /* size of the file, reserved by te__spill_create() */
	uint32_t ngroups;
	size_t block_nbytes; /* a multiple of 4096, up to 256 MiB; 0: 4 MiB */
	uint32_t depth;	     /* blocks in flight; 0: 8; at most 256 */
	enum te__spill_engine engine; /* AUTO: by TE_OFFLOAD_IO */
	enum te__spill_verify verify;
	/* limit for a block, and for a request without completions; 0: TE_OFFLOAD_TIMEOUT_MS */
	uint32_t timeout_ms;
	/* for tests: first engine that AUTO tries, or functions of the given engine; or NULL */
	const struct te__spill_ops *ops;
};

/* The first failure since te__spill_create() or te__spill_clear(). */
struct te__spill_error {
	int code; /* -errno or -TE_E*; 0: nothing failed */
	enum te__spill_dir dir;
	uint32_t group;
	uint64_t block;	 /* number in the group, from 0 */
	uint64_t offset; /* offset of the block in the file, in bytes */
	char message[256];
};

/* bins of block latencies: bin i begins at 2^(i / 4) us, bin 0 at 0 */
#define TE__SPILL_BINS 96

struct te__spill_stats {
	uint64_t nbytes[2];	/* completed, by te__spill_dir */
	uint64_t nrequests[2];	/* completed, with success or not */
	uint64_t nblocks[2];	/* I/O operations */
	uint64_t busy_ns[2];	/* time with at least one request in that direction */
	uint64_t latency_max_ns[2]; /* largest latency of a block */
	uint64_t latency_bin[2][TE__SPILL_BINS];
	uint64_t nforwarded;	/* reads served from the slot of a write */
	uint64_t nshort;	/* short I/O, continued */
	uint64_t nretries;	/* retries after EAGAIN, EINTR, ECANCELED */
	uint64_t nmoved;	/* blocks that moved elsewhere in the file after EIO */
	uint64_t nverified;	/* blocks whose CRC32C was compared */
	uint64_t nerrors;	/* requests that failed */
	uint64_t file_nbytes;	/* size of the file, reserved */
	uint64_t used_nbytes;	/* bytes in extents of groups */
	const char *engine;	/* "io_uring", "threads", "memory" */
	const char *reason;	/* why AUTO is not io_uring, or ""; valid as long as the spill */
	int direct;		/* 1: O_DIRECT */
	int fixed;		/* 1: the arena is registered with the ring */
	uint32_t align;		/* alignment of addresses, offsets and lengths, in bytes */
};

/*
 * The arena must outlive the spill. Opens and reserves the file and starts the thread.
 * Errors: -EINVAL, -ENOMEM, -ENOENT and other codes of open (the message names dir), -ENOSPC (the
 * message has the missing size), -EOPNOTSUPP (the given engine is refused, with the reason).
 */
int te__spill_create(struct te__pinned *arena, const struct te__spill_opts *opts,
		     struct te__spill **ret_spill);
/* takes NULL. Incomplete requests fail with -ECANCELED, which releases their words. */
struct te__spill *te__spill_destroy(struct te__spill *spill);

/*
 * Reserves the extent of a group, for requests of up to nbytes. Call it once for each group, before
 * its first request, from any thread. -ENOSPC, with the sizes, if the file has no room.
 */
int te__spill_reserve(struct te__spill *spill, uint32_t group, size_t nbytes);

/*
 * Request a write or a read, and return. slot: aligned to 4096, in the arena, with room for nbytes
 * rounded up to 4096, not used otherwise until completion. A read has the nbytes of the latest
 * write. At completion the I/O thread writes *done = value with release order, after the data,
 * also after a failure; done may be NULL.
 * Errors: -EINVAL, -TE_ESTATE (a read of an EMPTY group; after a fork), -EBUSY (the
 * group has an incomplete request in that direction, or a write meets an incomplete read), the
 * code of the lost group. Then *done is not written. Any thread.
 */
int te__spill_write(struct te__spill *spill, uint32_t group, const void *slot, size_t nbytes,
		    _Atomic uint32_t *done, uint32_t value);
int te__spill_read(struct te__spill *spill, uint32_t group, void *slot, size_t nbytes,
		   _Atomic uint32_t *done, uint32_t value);
/*
 * Records the code of a request that failed where the caller cannot return it: the error is kept,
 * and a group that should have been written is LOST, so that no read gets older data.
 */
void te__spill_refuse(struct te__spill *spill, enum te__spill_dir dir, uint32_t group, int code);
/*
 * Waits until the latest request of the group in that direction is complete, and returns its
 * result, with a message that names group, file and block; 0 if there was no request. -ETIMEDOUT
 * after timeout_ms; timeout_ms 0 does not wait, -1 waits as long as the request takes, which is
 * limited.
 */
int te__spill_wait(struct te__spill *spill, enum te__spill_dir dir, uint32_t group,
		   int timeout_ms);

/*
 * Binds words to a request for captured work, which cannot call: the I/O thread makes the request
 * whenever *start becomes 1. It writes *start = 0, runs the request, then writes *done = 1. An
 * error that a call would have returned completes the request as failed; a bound request waits only
 * for requests of the group that were made by calls. It fails with -TE_ESTATE if *done was not set
 * to 0 before its start. Replaces the group's earlier binding in that direction; slot NULL removes
 * it. The words are polled only while the spill is armed: every few microseconds at first, and less
 * often while nothing happens, down to once a millisecond. Calls and te__spill_kick() end a pause.
 * A new spill is not armed.
 */
int te__spill_bind(struct te__spill *spill, enum te__spill_dir dir, uint32_t group, void *slot,
		   size_t nbytes, _Atomic uint32_t *start, _Atomic uint32_t *done);
void te__spill_arm(struct te__spill *spill, int on);
void te__spill_kick(struct te__spill *spill);

/* the code of the first error, described in *ret unless that is NULL; 0: none */
int te__spill_error(struct te__spill *spill, struct te__spill_error *ret);
/* clears the first error; LOST groups become EMPTY */
void te__spill_clear(struct te__spill *spill);
void te__spill_stats(struct te__spill *spill, struct te__spill_stats *ret);
void te__spill_forget_max(struct te__spill *spill); /* latency_max_ns becomes 0 */

#endif
