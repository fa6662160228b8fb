/*
 * spill_io.h - the layers under spill.c: the file, and the engines that read and write blocks.
 *
 * An engine is one file with a const table. All its functions except wake() run on the I/O thread,
 * which has all signals blocked, so that a file size limit is an error and no SIGXFSZ. An engine
 * reports the system's results, including short counts and EAGAIN; spill.c handles them. So a test
 * that replaces the table sees, and can change, every block and every completion.
 */
#ifndef TE__SPILL_IO_H
#define TE__SPILL_IO_H

#include <stddef.h>
#include <stdint.h>

#include "libtecore/offload/spill.h"

#define TE__SPILL_ALIGN 4096u /* alignment of slots, offsets and lengths of blocks */
#define TE__SPILL_DEPTH_MAX 256u

/* One I/O operation. */
struct te__blk {
	enum te__spill_dir dir;
	uint32_t tag; /* chosen by the caller; below 2 * depth */
	void *mem;
	size_t nbytes;
	uint64_t offset; /* in the file */
};

struct te__blk_done {
	uint32_t tag;
	int32_t res; /* bytes, or -errno */
};

/* file and memory of an engine, which outlive it */
struct te__spill_io {
	int fd;
	uint64_t nbytes; /* size of the file */
	void *mem;	 /* the slots, and the words after them */
	size_t mem_nbytes;
	uint32_t depth; /* blocks in flight in each direction */
	int *ret_fixed; /* set by the engine: 1 if mem is registered */
	/* limit of the time that close() waits for I/O in flight */
	uint32_t timeout_ms;
};

struct te__spill_ops {
	const char *name;
	/* the message of an error has the reason */
	int (*open)(const struct te__spill_io *io, void **ret_impl);
	/* 0; -ETIMEDOUT: I/O is still in flight and may still access the memory */
	int (*close)(void *impl);
	/* queues a block; I/O may begin with the next reap only. At most 2 * depth in flight. */
	void (*submit)(void *impl, const struct te__blk *blk);
	/*
	 * Gets up to n completions: waits until there is one, wake() is called, or wait_ns have
	 * passed; -1: no limit. Returns their number, or -errno if the engine failed.
	 */
	int (*reap)(void *impl, struct te__blk_done *ret, uint32_t n, int64_t wait_ns);
	/* ends the wait of the present reap, or of the next one; any thread */
	void (*wake)(void *impl);
};

extern const struct te__spill_ops te__spill_uring; /* -EOPNOTSUPP without liburing */
extern const struct te__spill_ops te__spill_threads;
extern const struct te__spill_ops te__spill_memory;

/* a connection to ted(8), which provides the file */
struct te__spill_ted;

/* The file of a spill. */
struct te__spill_file {
	int fd;
	int direct;	/* 1: O_DIRECT */
	uint32_t align; /* offsets at which short I/O can continue: a power of two, up to 4096 */
	uint64_t nbytes;
	struct te__spill_ted *ted; /* or NULL */
};

/*
 * Creates a file without a name in dir and reserves nbytes; called on the I/O thread. If dir is a
 * socket, ted(8) at that socket provides the file. Errors, with a message: codes of open; -ENOSPC,
 * -EDQUOT or -EFBIG if the file cannot have that size.
 */
int te__spill_file_open(const char *dir, uint64_t nbytes, struct te__spill_file *ret);
/* the caller closes *ret_fd, before or after the connection */
int te__spill_ted_open(const char *path, uint64_t nbytes, int *ret_fd,
		       struct te__spill_ted **ret_ted);
/* reports bytes written to ted; takes NULL */
void te__spill_ted_wrote(struct te__spill_ted *ted, uint64_t nbytes);
void te__spill_ted_close(struct te__spill_ted *ted);
void te__spill_file_close(struct te__spill_file *file);

#endif
