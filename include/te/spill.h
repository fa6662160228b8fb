/* te/spill.h - offload to files: check and measure a folder. */
#ifndef TE_SPILL_H
#define TE_SPILL_H

#include <stddef.h>
#include <stdint.h>
#include <te/ctx.h>
#include <te/export.h>

TE_BEGIN_DECLS

/* Description of offload to files, as te_info(1) prints it. */
struct te_spill_info {
	size_t size;	     /* set by the INIT macro; lets the struct grow */
	char engine[16];     /* engine that offload uses: "io_uring" or "threads" */
	char reason[256];    /* why io_uring is not used, or the failure; "" if there is none */
	int32_t usable;	     /* 1: a file was created, written and read */
	int32_t direct;	     /* 1: direct I/O, which bypasses the page cache */
	int32_t align_bytes; /* alignment of direct I/O */
	int32_t registered;  /* 1: memory is registered with io_uring */
	uint64_t free_nbytes; /* free bytes of the file system, for this user */
	uint64_t memlock_nbytes; /* limit of locked memory; UINT64_MAX: none */
};
#define TE_SPILL_INFO_INIT \
	{ sizeof(struct te_spill_info), { 0 }, { 0 }, 0, 0, 0, 0, 0, 0 }

/**
 * te_spill_info - try offload to files in a folder
 * @dir:      an existing folder, or the socket of ted(8); NULL: TE_OFFLOAD_DIR, and if that is
 *            empty the current folder
 * @ret_info: initialised by TE_SPILL_INFO_INIT
 *
 * Creates, writes, reads and closes a file of 1 MiB without a name. A step that fails is reported
 * in ret_info and is not an error.
 * Thread: any.  Since: 0.1  Errors: -EINVAL, -ENOMEM.
 */
TE_EXPORT int te_spill_info(const char *dir, struct te_spill_info *ret_info);

enum te_spill_verify { TE_SPILL_VERIFY_ALL, TE_SPILL_VERIFY_SAMPLE, TE_SPILL_VERIFY_OFF };

struct te_spill_opts {
	size_t size;	    /* set by the INIT macro; lets the struct grow */
	const char *dir;    /* an existing folder; NULL: as te_spill_info() */
	const char *engine; /* "io_uring", "threads"; NULL: TE_OFFLOAD_IO */
	uint64_t nbytes;    /* size of the file; 0: 256 MiB */
	uint64_t block_nbytes; /* bytes of an operation, a multiple of 4096; 0: 4 MiB */
	int32_t depth;	       /* operations in flight in each direction, up to 256; 0: 8 */
	int32_t verify; /* enum te_spill_verify: blocks whose CRC-32C is checked when read */
};
#define TE_SPILL_OPTS_INIT { sizeof(struct te_spill_opts), 0, 0, 0, 0, 0, 0 }

/* Rates of one kind of access to the file. */
struct te_spill_rate {
	double bytes_per_s;
	double cpu_s_per_gb; /* CPU time of the process, in kernel and user mode, for 1e9 bytes */
	double p50_us, p99_us, max_us; /* time from an operation's submission to its completion */
};

struct te_spill_rates {
	size_t size; /* set by the INIT macro; lets the struct grow */
	struct te_spill_rate write, read;
	struct te_spill_rate both; /* half of the file written while the other half is read */
	char engine[16];	   /* engine that was used */
	int32_t direct, registered; /* as in struct te_spill_info */
};
#define TE_SPILL_RATES_INIT                                                                   \
	{                                                                                     \
		sizeof(struct te_spill_rates), { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 },          \
			{ 0, 0, 0, 0, 0 }, { 0 }, 0, 0                                        \
	}

/**
 * te_spill_measure - measure how fast an offload file is written and read
 * @opts:      NULL for the defaults
 * @ret_rates: initialised by TE_SPILL_RATES_INIT
 *
 * The file is first written without a measurement, so that its blocks are allocated. Then it is
 * written, read, and half of it written while the other half is read. The call returns at the end;
 * other I/O on the drive makes it slower.
 * Thread: any.  Since: 0.1
 * Errors: -EINVAL, -ENOMEM, -ENOENT and other codes of open(2), -ENOSPC, -EOPNOTSUPP (the engine is
 * refused; the message gives the reason), -EIO and other codes of the drive.
 */
TE_EXPORT int te_spill_measure(const struct te_spill_opts *opts, struct te_spill_rates *ret_rates);

TE_END_DECLS

#endif
