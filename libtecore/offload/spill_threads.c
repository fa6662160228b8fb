/*
 * spill_threads.c - two engines that are a pool of threads: "threads" calls pread and pwrite, where
 * io_uring is refused; "memory" copies to host memory instead of a file, for tests.
 */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libtecore/base/base.h"
#include "libtecore/offload/spill_io.h"

#define POOL_THREADS 8u

struct pool {
	int fd;
	uint8_t *file; /* memory: the file's bytes; or NULL */
	uint32_t timeout_ms;

	pthread_mutex_t lock; /* all below */
	pthread_cond_t work;  /* a block was queued, or quit */
	pthread_cond_t event; /* a block is complete, or woken, or a thread has ended */
	uint32_t size;	      /* size of the rings: twice the depth */
	struct te__blk *queue;
	struct te__blk_done *done;
	uint32_t nqueue, queue_at, ndone, done_at; /* queue_at, done_at: of the first */
	int quit, woken;
	uint32_t users; /* threads, and the I/O thread until close; the last one frees the pool */
};

static int32_t transfer(const struct pool *p, const struct te__blk *b)
{
	ssize_t n;

	if (p->file) {
		uint8_t *at = p->file + b->offset;

		if (b->dir == TE__SPILL_WRITE)
			memcpy(at, b->mem, b->nbytes);
		else
			memcpy(b->mem, at, b->nbytes);
		return (int32_t)b->nbytes;
	}
	if (b->dir == TE__SPILL_WRITE)
		n = pwrite(p->fd, b->mem, b->nbytes, (off_t)b->offset);
	else
		n = pread(p->fd, b->mem, b->nbytes, (off_t)b->offset);
	return n < 0 ? -errno : (int32_t)n;
}

/* the lock is held, and released */
static void drop(struct pool *p)
{
	const int last = !--p->users;

	pthread_mutex_unlock(&p->lock);
	if (!last)
		return;
	pthread_cond_destroy(&p->event);
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	te__free(p->file);
	te__free(p->queue);
	te__free(p->done);
	te__free(p);
}

static void *run(void *arg)
{
	struct pool *p = arg;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		struct te__blk b;
		int32_t res;

		while (!p->nqueue && !p->quit)
			pthread_cond_wait(&p->work, &p->lock);
		if (p->quit)
			break;
		b = p->queue[p->queue_at];
		p->queue_at = (p->queue_at + 1) % p->size;
		p->nqueue--;
		pthread_mutex_unlock(&p->lock);
		res = transfer(p, &b);
		pthread_mutex_lock(&p->lock);
		p->done[(p->done_at + p->ndone++) % p->size] = (struct te__blk_done){ b.tag, res };
		pthread_cond_signal(&p->event);
	}
	pthread_cond_signal(&p->event);
	drop(p);
	return NULL;
}

/* wait until the deadline, if there is one; 0 or ETIMEDOUT */
static int wait_event(struct pool *p, uint64_t deadline_ns)
{
	const struct timespec t = { .tv_sec = (time_t)(deadline_ns / 1000000000u),
				    .tv_nsec = (long)(deadline_ns % 1000000000u) };

	if (deadline_ns == UINT64_MAX)
		return pthread_cond_wait(&p->event, &p->lock);
	return pthread_cond_timedwait(&p->event, &p->lock, &t);
}

/* the threads end after their present operation; a thread that hangs in a system call is left */
static int pool_close(void *impl)
{
	struct pool *p = impl;
	const uint64_t deadline = te__now_ns() + (uint64_t)p->timeout_ms * 1000000u;
	int r = 0;

	pthread_mutex_lock(&p->lock);
	p->quit = 1;
	pthread_cond_broadcast(&p->work);
	while (p->users > 1 && !r)
		r = wait_event(p, deadline);
	if (p->users > 1) {
		/* their copies of the file descriptor and of the slots' addresses stay in use */
		drop(p);
		return -ETIMEDOUT;
	}
	drop(p);
	return 0;
}

static struct pool *pool_new(const struct te__spill_io *io)
{
	struct pool *p = te__calloc(1, sizeof(*p));
	pthread_condattr_t attr;

	if (!p)
		return NULL;
	p->fd = io->fd;
	p->timeout_ms = io->timeout_ms;
	p->size = 2 * io->depth;
	p->users = 1;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->event, &attr);
	pthread_condattr_destroy(&attr);
	p->queue = te__calloc(p->size, sizeof(*p->queue));
	p->done = te__calloc(p->size, sizeof(*p->done));
	if (!p->queue || !p->done) {
		pool_close(p);
		return NULL;
	}
	return p;
}

/* detached: the pool counts them, and one that hangs cannot be joined */
static int start(struct pool *p, uint32_t nthreads)
{
	int r = 0;

	for (uint32_t i = 0; i < nthreads && !r; i++) {
		pthread_mutex_lock(&p->lock);
		p->users++;
		pthread_mutex_unlock(&p->lock);
		r = te__fault_point() ? EAGAIN : te__thread_create(NULL, "te-spill-io", run, p);
	}
	if (!r)
		return 0;
	pthread_mutex_lock(&p->lock);
	p->users--;
	pthread_mutex_unlock(&p->lock);
	return te__fail(-r, "spill: cannot start a thread for I/O: %s", strerror(r));
}

static int open_pool(const struct te__spill_io *io, uint32_t nthreads, int memory, void **ret_impl)
{
	struct pool *p = pool_new(io);
	int r = 0;

	if (!p)
		return te__fail(-ENOMEM, "spill: no memory for a pool of threads");
	if (memory) {
		p->file = te__calloc(1, io->nbytes);
		if (!p->file)
			r = te__fail(-ENOMEM, "spill: no %llu bytes of memory in place of a file",
				     (unsigned long long)io->nbytes);
	}
	if (!r)
		r = start(p, nthreads);
	if (r)
		pool_close(p);
	else
		*ret_impl = p;
	return r;
}

static int threads_open(const struct te__spill_io *io, void **ret_impl)
{
	return open_pool(io, 2 * io->depth < POOL_THREADS ? 2 * io->depth : POOL_THREADS, 0,
			 ret_impl);
}

static int memory_open(const struct te__spill_io *io, void **ret_impl)
{
	return open_pool(io, 1, 1, ret_impl);
}

static void pool_submit(void *impl, const struct te__blk *b)
{
	struct pool *p = impl;

	pthread_mutex_lock(&p->lock);
	p->queue[(p->queue_at + p->nqueue++) % p->size] = *b;
	pthread_cond_signal(&p->work);
	pthread_mutex_unlock(&p->lock);
}

static int pool_reap(void *impl, struct te__blk_done *ret, uint32_t n, int64_t wait_ns)
{
	struct pool *p = impl;
	uint64_t deadline = wait_ns > 0 ? te__now_ns() + (uint64_t)wait_ns : UINT64_MAX;
	int r = wait_ns ? 0 : ETIMEDOUT, got = 0;

	pthread_mutex_lock(&p->lock);
	while (!p->ndone && !p->woken && !r)
		r = wait_event(p, deadline);
	p->woken = 0;
	for (; p->ndone && (uint32_t)got < n; p->ndone--) {
		ret[got++] = p->done[p->done_at];
		p->done_at = (p->done_at + 1) % p->size;
	}
	pthread_mutex_unlock(&p->lock);
	return got;
}

static void pool_wake(void *impl)
{
	struct pool *p = impl;

	pthread_mutex_lock(&p->lock);
	p->woken = 1;
	pthread_cond_signal(&p->event);
	pthread_mutex_unlock(&p->lock);
}

const struct te__spill_ops te__spill_threads = {
	.name = "threads",
	.open = threads_open,
	.close = pool_close,
	.submit = pool_submit,
	.reap = pool_reap,
	.wake = pool_wake,
};

const struct te__spill_ops te__spill_memory = {
	.name = "memory",
	.open = memory_open,
	.close = pool_close,
	.submit = pool_submit,
	.reap = pool_reap,
	.wake = pool_wake,
};
