/* thread.c - the threads of communicators, see thread.h. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libtecomm/meet/thread.h"
#include "libtecore/base/private.h"

int te__thread_start(pthread_t *thread, void *(*work)(void *arg), void *arg, const char *what)
{
	const int r = te__fault_point() ? EAGAIN : te__thread_create(thread, "te-comm", work, arg);

	return r ? te__fail(-r, "%s: no thread: %s", what, strerror(r)) : 0;
}

void te__thread_stop(pthread_t thread, int stop)
{
	const uint64_t one = 1;

	/* an eventfd is not interrupted, and its counter is far from full */
	while (write(stop, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	pthread_join(thread, NULL);
}

int te__pidfd(int pid)
{
#ifdef SYS_pidfd_open
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
#else
	(void)pid;
	return -1;
#endif
}
