/* te/spill.h - files of offload: what a folder and the system allow, and how fast they are. */
#ifndef TE_SPILL_H
#define TE_SPILL_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/export.h>

TE_BEGIN_DECLS

/* What te_info(1) prints about files of offload. */
struct te_spill_info {
	size_t size;	     /* set by the INIT macro; lets the struct grow */
	char engine[16];     /* what offload uses: "io_uring" or "threads" */
	char reason[256];    /* why it is not io_uring, or what fails; empty if nothing does */
	int32_t usable;	     /* 1: a file was created, written and read */
	int32_t direct;	     /* 1: direct I/O, which bypasses the page cache */
	int32_t align_bytes; /* of direct I/O */
	int32_t registered;  /* 1: memory is registered with io_uring */
	uint64_t free_nbytes; /* of the file system, for this user */
	uint64_t memlock_nbytes; /* the limit of locked memory; UINT64_MAX: none */
};
#define TE_SPILL_INFO_INIT \
	{ sizeof(struct te_spill_info), { 0 }, { 0 }, 0, 0, 0, 0, 0, 0 }

/**
 * te_spill_info - try offload to files in a folder
 * @dir: an existing folder, or the socket of ted(8); NULL: TE_OFFLOAD_DIR, and if that is empty the
 *       current folder
 *
 * A file of 1 MiB without a name is created, written, read, and gone. What does not work is in
 * ret_info, not an error.
 * Thread: any.  Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_spill_info(const char *dir, struct te_spill_info *ret_info);

enum te_spill_verify { TE_SPILL_VERIFY_ALL, TE_SPILL_VERIFY_SAMPLE, TE_SPILL_VERIFY_OFF };

struct te_spill_opts {
	size_t size;	    /* set by the INIT macro; lets the struct grow */
	const char *dir;    /* an existing folder; NULL: as te_spill_info() */
	const char *engine; /* "io_uring", "threads"; NULL: TE_OFFLOAD_IO */
	uint64_t nbytes;    /* of the file; 0: 256 MiB */
	uint64_t block_nbytes; /* of an operation, a multiple of 4096; 0: 4 MiB */
	int32_t depth;	       /* operations in flight in each direction, up to 256; 0: 8 */
	int32_t verify; /* enum te_spill_verify: blocks whose CRC-32C is compared when read */
};
#define TE_SPILL_OPTS_INIT { sizeof(struct te_spill_opts), 0, 0, 0, 0, 0, 0 }

/* One way of using the file. */
struct te_spill_rate {
	double bytes_per_s;
	double cpu_s_per_gb; /* CPU time of the process, in kernel and user mode, for 1e9 bytes */
	double p50_us, p99_us, max_us; /* of operations: from submission to completion */
};

struct te_spill_rates {
	size_t size; /* set by the INIT macro; lets the struct grow */
	struct te_spill_rate write, read;
	struct te_spill_rate both; /* half of the file written, the other half read, at once */
	char engine[16];	   /* that was used */
	int32_t direct, registered; /* as in struct te_spill_info */
};
#define TE_SPILL_RATES_INIT                                                                   \
	{                                                                                     \
		sizeof(struct te_spill_rates), { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 },          \
			{ 0, 0, 0, 0, 0 }, { 0 }, 0, 0                                        \
	}

/**
 * te_spill_measure - how fast a file of offload is written and read
 * @opts: NULL for the defaults
 *
 * The file is written once before, so that its blocks have their place, then written, read, and
 * both at once. Waits until all is done; other I/O on the drive makes it slower.
 * Thread: any.  Errors: -EINVAL, -ENOMEM, -ENOENT and others of open(2), -ENOSPC, -EOPNOTSUPP (the
 * engine is refused; the message says why), -EIO and others of the drive.
 */
TE_EXPORT int te_spill_measure(const struct te_spill_opts *opts, struct te_spill_rates *ret_rates);

TE_END_DECLS

#endif
