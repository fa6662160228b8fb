/*
 * idle.c - a library, for LD_PRELOAD, that starts a thread before main(), as a BLAS does: the
 * thread blocks no signals. Built as libidle.so.
 */
#include <pthread.h>
#include <unistd.h>

static void *idle(void *arg)
{
	for (;;)
		pause();
	return arg;
}

__attribute__((constructor)) static void start(void)
{
	pthread_t thread;

	(void)pthread_create(&thread, NULL, idle, NULL);
}
