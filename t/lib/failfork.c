/*
 * failfork.c - a library for LD_PRELOAD that makes the nth fork() of te_run fail, once.
 *
 * FAILFORK_NTH is n, from 1. As what follows is under test, kill() of all processes of the user
 * only prints that it was called.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <te/export.h>

TE_EXPORT pid_t fork(void)
{
	const char *nth = getenv("FAILFORK_NTH");
	pid_t (*real)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
	static int n; /* not of the shell that is libtool's wrapper of te_run */

	if (nth && !strcmp(program_invocation_short_name, "te_run") && ++n == atoi(nth)) {
		errno = EAGAIN;
		return -1;
	}
	return real();
}

TE_EXPORT int kill(pid_t pid, int sig)
{
	if (pid == -1) {
		fprintf(stderr, "failfork: kill(-1, %d)\n", sig);
		return 0;
	}
	return (int)syscall(SYS_kill, pid, sig);
}
