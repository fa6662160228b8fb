/*
 * spill_uring.c - the engine "io_uring": one ring, used by the I/O thread only.
 *
 * No polling of completions (IORING_SETUP_IOPOLL fails or hangs on common devices) or of
 * submissions (SQPOLL takes a core), no linked operations.
 */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <string.h>

#include "libtecore/base/base.h"
#include "libtecore/offload/spill_io.h"

#ifdef HAVE_LIBURING
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* for liburing older than the kernel that runs */
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1u << 8)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1u << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1u << 13)
#endif

#define EVENT UINT32_MAX /* user data of the read of the event descriptor; others are tags */
/* the kernel registers up to 1 GiB a buffer, and 16384 buffers */
#define CHUNK ((size_t)1 << 30)
#define CHUNKS_MAX 16384u

struct uring {
	struct io_uring ring;
	int fd, fixed_file, fixed_mem;
	uint8_t *mem;
	size_t mem_nbytes;
	uint32_t timeout_ms;
	uint32_t nflight; /* blocks */
	int event;	  /* descriptor that wake() writes to */
	int reading;	  /* 1: a read of it is in flight */
	uint64_t count;	  /* value read from the eventfd */
};

static int set_up(struct io_uring *ring, uint32_t entries)
{
	/* newest kernel first: 6.1, 5.19, 5.18, older */
	static const uint32_t flags[] = {
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN,
		IORING_SETUP_SUBMIT_ALL,
		0,
	};
	int r = -EINVAL;

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && r == -EINVAL; i++)
		r = te__fault_point() ? -ENOMEM : io_uring_queue_init(entries, ring, flags[i]);
	return r;
}

/* charged to the limit of locked memory, which is often 8 MiB: then buffers are plain */
static int register_mem(struct uring *u, int *ret_fixed)
{
	const size_t n = (u->mem_nbytes + CHUNK - 1) / CHUNK;
	struct iovec *v = n > CHUNKS_MAX ? NULL : te__calloc(n, sizeof(*v));
	int r = -EFBIG;

	if (!v && n <= CHUNKS_MAX)
		return te__fail(-ENOMEM, "spill: no memory for %zu buffers of a ring", n);
	for (size_t i = 0; v && i < n; i++) {
		const size_t left = u->mem_nbytes - i * CHUNK;

		v[i].iov_base = u->mem + i * CHUNK;
		v[i].iov_len = left < CHUNK ? left : CHUNK;
	}
	if (v)
		r = io_uring_register_buffers(&u->ring, v, (unsigned int)n);
	te__free(v);
	*ret_fixed = !r;
	if (r)
		te__log_info("spill: %zu bytes are not registered with io_uring: %s: I/O works, "
			     "and takes more CPU time; see ulimit -l", u->mem_nbytes,
			     strerror(-r));
	return 0;
}

static int uring_open(const struct te__spill_io *io, void **ret_impl)
{
	struct uring *u = te__calloc(1, sizeof(*u));
	int r;

	if (!u)
		return te__fail(-ENOMEM, "spill: no memory for a ring");
	u->fd = io->fd;
	u->mem = io->mem;
	u->mem_nbytes = io->mem_nbytes;
	u->timeout_ms = io->timeout_ms;
	u->event = te__fault_point() ? (errno = EMFILE, -1) : eventfd(0, EFD_CLOEXEC);
	if (u->event < 0) {
		r = te__fail(-errno, "spill: cannot create an event descriptor: %s",
			     strerror(errno));
		te__free(u);
		return r;
	}
	/* blocks, the read of the event, and a time-out that liburing adds for old kernels */
	r = set_up(&u->ring, 2 * io->depth + 2);
	if (r) {
		close(u->event);
		te__free(u);
		return te__fail(-EOPNOTSUPP, "spill: io_uring is refused: %s", strerror(-r));
	}
	/* a child that is forked must not write to the rings */
	(void)io_uring_ring_dontfork(&u->ring);
	u->fixed_file = !io_uring_register_files(&u->ring, &u->fd, 1);
	r = register_mem(u, io->ret_fixed);
	if (r) {
		io_uring_queue_exit(&u->ring);
		close(u->event);
		te__free(u);
		return r;
	}
	u->fixed_mem = *io->ret_fixed;
	*ret_impl = u;
	return 0;
}

static struct io_uring_sqe *next_sqe(struct uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	/* there are enough entries, unless the kernel took none of the last ones */
	while (!sqe) {
		io_uring_submit(&u->ring);
		sqe = io_uring_get_sqe(&u->ring);
	}
	return sqe;
}

static void uring_submit(void *impl, const struct te__blk *b)
{
	struct uring *u = impl;
	struct io_uring_sqe *sqe = next_sqe(u);
	const size_t at = (size_t)((uint8_t *)b->mem - u->mem);
	const unsigned int n = (unsigned int)b->nbytes;
	const int chunk = (int)(at / CHUNK), fd = u->fixed_file ? 0 : u->fd;
	/* a block across the end of a chunk is a plain one */
	const int fixed = u->fixed_mem && (at + n - 1) / CHUNK == (size_t)chunk;

	if (b->dir == TE__SPILL_WRITE && fixed)
		io_uring_prep_write_fixed(sqe, fd, b->mem, n, b->offset, chunk);
	else if (b->dir == TE__SPILL_WRITE)
		io_uring_prep_write(sqe, fd, b->mem, n, b->offset);
	else if (fixed)
		io_uring_prep_read_fixed(sqe, fd, b->mem, n, b->offset, chunk);
	else
		io_uring_prep_read(sqe, fd, b->mem, n, b->offset);
	if (u->fixed_file)
		sqe->flags |= IOSQE_FIXED_FILE;
	sqe->user_data = b->tag;
	u->nflight++;
}

static void read_event(struct uring *u)
{
	struct io_uring_sqe *sqe = next_sqe(u);

	io_uring_prep_read(sqe, u->event, &u->count, sizeof(u->count), 0);
	sqe->user_data = EVENT;
	u->reading = 1;
}

/* submits, and waits: with DEFER_TASKRUN completions arrive in these calls only */
static int enter(struct uring *u, int64_t wait_ns)
{
	struct __kernel_timespec t = { .tv_sec = wait_ns / 1000000000,
				       .tv_nsec = wait_ns % 1000000000 };
	struct io_uring_cqe *cqe;
	int r;

	if (!wait_ns)
		r = io_uring_submit_and_get_events(&u->ring);
	else if (wait_ns < 0)
		r = io_uring_submit_and_wait(&u->ring, 1);
	else
		r = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &t, NULL);
	/* nothing yet, or the completion queue must be emptied first */
	if (r == -ETIME || r == -EINTR || r == -EAGAIN || r == -EBUSY)
		r = 0;
	return r < 0 ? te__fail(r, "spill: io_uring_enter: %s", strerror(-r)) : 0;
}

static int uring_reap(void *impl, struct te__blk_done *ret, uint32_t n, int64_t wait_ns)
{
	struct uring *u = impl;
	struct io_uring_cqe *cqe;
	unsigned int head, seen = 0;
	uint32_t got = 0;
	int r;

	if (!u->reading)
		read_event(u);
	/* completions that did not fit the last time */
	r = enter(u, io_uring_cq_ready(&u->ring) ? 0 : wait_ns);
	if (r)
		return r;
	io_uring_for_each_cqe(&u->ring, head, cqe) {
		if (cqe->user_data == EVENT) {
			u->reading = 0;
		} else if (cqe->user_data <= 2 * TE__SPILL_DEPTH_MAX) {
			if (got == n)
				break;
			ret[got++] = (struct te__blk_done){ (uint32_t)cqe->user_data, cqe->res };
		}
		seen++;
	}
	io_uring_cq_advance(&u->ring, seen);
	u->nflight -= got;
	return (int)got;
}

static void uring_wake(void *impl)
{
	struct uring *u = impl;
	const uint64_t one = 1;

	/* fails only if the counter is at its maximum, and wakes the reader then, too */
	if (write(u->event, &one, sizeof(one)) < 0)
		te__log_debug("spill: cannot wake the I/O thread: %s", strerror(errno));
}

static int uring_close(void *impl)
{
	struct uring *u = impl;
	const int64_t deadline = (int64_t)te__now_ns() + (int64_t)u->timeout_ms * 1000000;
	struct te__blk_done done;
	int64_t wait;
	int r = 0, left;

	while (u->nflight && r >= 0 && (wait = deadline - (int64_t)te__now_ns()) > 0)
		r = uring_reap(u, &done, 1, wait);
	left = u->nflight > 0;
	if (!left) {
		if (u->fixed_mem)
			(void)io_uring_unregister_buffers(&u->ring);
		if (u->fixed_file)
			(void)io_uring_unregister_files(&u->ring);
		/* ends the read of the event, whose target is freed below */
		uring_wake(u);
		while (u->reading && r >= 0)
			r = uring_reap(u, &done, 1, -1);
	}
	/* remaining I/O is canceled, or ends later: the kernel has pinned its memory */
	io_uring_queue_exit(&u->ring);
	close(u->event);
	te__free(u);
	return left ? -ETIMEDOUT : 0;
}

const struct te__spill_ops te__spill_uring = {
	.name = "io_uring",
	.open = uring_open,
	.close = uring_close,
	.submit = uring_submit,
	.reap = uring_reap,
	.wake = uring_wake,
};

#else

static int uring_open(const struct te__spill_io *io, void **ret_impl)
{
	(void)io;
	(void)ret_impl;
	return te__fail(-EOPNOTSUPP, "spill: io_uring is refused: built without liburing");
}

const struct te__spill_ops te__spill_uring = {
	.name = "io_uring",
	.open = uring_open,
};

#endif
