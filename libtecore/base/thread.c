/* thread.c - the threads of the libraries: stack size, name and signal mask. */
#include "config.h"

#include <pthread.h>
#include <signal.h>

#include "libtecore/base/private.h"

/*
 * At least: the default is what ulimit -s sets, or 128 KiB with musl. Threads of streams call
 * functions of the program, which may expect more than the library's own 64 KiB.
 */
#define STACK_NBYTES ((size_t)2 << 20)

int te__thread_create(pthread_t *ret_thread, const char *name, void *(*work)(void *arg),
		      void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, old;
	size_t nbytes;
	int r = pthread_attr_init(&attr);

	if (r)
		return r;
	r = pthread_attr_getstacksize(&attr, &nbytes);
	if (!r && nbytes < STACK_NBYTES)
		r = pthread_attr_setstacksize(&attr, STACK_NBYTES);
	/* signals are delivered to the program's threads only */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (!r)
		r = pthread_create(&thread, &attr, work, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (r)
		return r;
	pthread_setname_np(thread, name);
	if (ret_thread)
		*ret_thread = thread;
	else
		pthread_detach(thread);
	return 0;
}
