/*
 * failfork.c - a library for LD_PRELOAD that makes the nth fork() of te_run fail, once, or ends
 * te_run before its child asks for a signal at its end.
 *
 * FAILFORK_NTH is n, from 1; FAILFORK_ORPHAN selects the other. As what follows is under test,
 * kill() of all processes of the user only prints that it was called.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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

TE_EXPORT int prctl(int option, ...)
{
	const pid_t parent = getppid();
	unsigned long arg;
	va_list ap;

	va_start(ap, option);
	arg = va_arg(ap, unsigned long);
	va_end(ap);
	if (option == PR_SET_PDEATHSIG && getenv("FAILFORK_ORPHAN")) {
		kill(parent, SIGKILL);
		while (getppid() == parent)
			usleep(1000);
	}
	return (int)syscall(SYS_prctl, option, arg, 0, 0, 0);
}

TE_EXPORT int kill(pid_t pid, int sig)
{
	if (pid == -1) {
		fprintf(stderr, "failfork: kill(-1, %d)\n", sig);
		return 0;
	}
	return (int)syscall(SYS_kill, pid, sig);
}
