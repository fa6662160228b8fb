/*
 * ranks.c - ranks as processes of this host. They are in one process group, whose leader ends the
 * group if te_run is killed. The leader is not reaped before the end, so that the group's number is
 * not reused.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

struct rank {
	pid_t pid;
	int running;
	int nstarts;
	int out[2]; /* -1: ended, or not read */
};

static struct ranks_opts mine;
static const struct run_opts *opt;
static struct rank *ranks;
static pid_t group;

static void ranks_signal(int sig)
{
	if (!group)
		return;
	kill(-group, sig);
	if (sig == SIGSTOP)
		kill(group, SIGCONT);
}

/* ---- starting ---- */

/* te_run, and a rank until it executes its program, have the other end of the pipe open */
static void lead(const int fd[2])
{
	sigset_t all;
	char c;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	setpgid(0, 0);
	prctl(PR_SET_NAME, "te_ranks"); /* so that killall(1) of te_run does not match it */
	close(fd[1]);
	while (read(fd[0], &c, 1) < 0 && errno == EINTR)
		;
	kill(-getpid(), SIGKILL); /* itself, too */
	_exit(STATUS_OK);
}

static int start_leader(void)
{
	int fd[2];
	pid_t pid;

	if (pipe2(fd, O_CLOEXEC))
		return say_failed("cannot open a pipe: %s", strerror(errno));
	pid = fork();
	if (!pid)
		lead(fd);
	close(fd[0]);
	if (pid < 0) {
		close(fd[1]);
		return say_failed("cannot start the leader of the ranks: %s", strerror(errno));
	}
	group = pid;
	setpgid(pid, pid);
	return STATUS_OK;
}

static void set_int(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", value);
	setenv(name, text, 1);
}

/* in the child; reports to the parent by fd why it could not become the program */
static void become(const struct run_opts *o, int i, int fd, const int out[2])
{
	const int null = open("/dev/null", O_RDONLY | O_CLOEXEC), rank = mine.first + i;
	int e;

	setpgid(0, group);
	/* from a terminal, only its foreground processes may read */
	if ((rank || !mine.input || isatty(STDIN_FILENO)) && null >= 0)
		dup2(null, STDIN_FILENO);
	if (mine.put) {
		dup2(out[0], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
	}
	set_int("TE_COMM_RANK", rank);
	set_int("TE_COMM_NRANKS", o->nranks);
	set_int("TE_COMM_LOCAL_RANK", i);
	if (o->per_node)
		set_int("TE_COMM_NODE", rank / o->per_node);
	if (o->respawn)
		set_int("TE_COMM_RESTARTS", ranks[i].nstarts);
	else
		unsetenv("TE_COMM_RESTARTS");
	job_leave();
	execvp(o->cmd[0], o->cmd);
	e = errno;
	if (write(fd, &e, sizeof(e)) != sizeof(e))
		_exit(STATUS_NOT_FOUND);
	_exit(e == ENOENT ? STATUS_NOT_FOUND : STATUS_NOT_EXECUTABLE);
}

static int open_streams(struct rank *k, int out[2])
{
	for (int i = 0; i < 2; i++) {
		int fd[2];

		if (pipe2(fd, O_CLOEXEC))
			return say_failed("cannot open a pipe: %s", strerror(errno));
		k->out[i] = fd[0];
		out[i] = fd[1];
	}
	return STATUS_OK;
}

static int start(const struct run_opts *o, int i)
{
	struct rank *k = &ranks[i];
	int fd[2], out[2] = { -1, -1 }, e = 0, r;
	ssize_t n;

	r = mine.put ? open_streams(k, out) : STATUS_OK;
	if (r)
		return r;
	if (pipe2(fd, O_CLOEXEC))
		return say_failed("cannot open a pipe: %s", strerror(errno));
	k->pid = fork();
	if (!k->pid)
		become(o, i, fd[1], out);
	close(fd[1]);
	for (int s = 0; s < 2 && mine.put; s++)
		close(out[s]);
	if (k->pid < 0) {
		close(fd[0]);
		return say_failed("cannot start rank %d: %s", mine.first + i, strerror(errno));
	}
	setpgid(k->pid, group);
	k->running = 1;
	k->nstarts++;
	job_started(mine.first + i);
	n = read(fd[0], &e, sizeof(e));
	close(fd[0]);
	if (n != sizeof(e))
		return STATUS_OK;
	say_failed("%s: %s", o->cmd[0], strerror(e));
	return e == ENOENT ? STATUS_NOT_FOUND : STATUS_NOT_EXECUTABLE;
}

size_t ranks_npoll(int n)
{
	return 2 * (size_t)n;
}

int ranks_start(const struct run_opts *o, const struct ranks_opts *r)
{
	int e;

	mine = *r;
	opt = o;
	ranks = calloc((size_t)mine.n, sizeof(*ranks));
	if (!ranks)
		return say_failed("not enough memory");
	for (int i = 0; i < mine.n; i++)
		ranks[i].out[0] = ranks[i].out[1] = -1;
	e = start_leader();
	for (int i = 0; i < mine.n && !e; i++)
		e = start(o, i);
	return e;
}

/* ---- waiting ---- */

static void ranks_poll(struct pollfd *p, double *until)
{
	(void)until; /* the end of a rank is a signal */
	for (int i = 0; i < mine.n; i++)
		for (int s = 0; s < 2; s++)
			*p++ = (struct pollfd){
				.fd = out_full(s) ? -1 : ranks[i].out[s],
				.events = POLLIN,
			};
}

static void end_stream(int i, int which)
{
	mine.put(mine.first + i, which, NULL, 0);
	close(ranks[i].out[which]);
	ranks[i].out[which] = -1;
}

/* 1: there may be more */
static int read_stream(int i, int which)
{
	static char bytes[65536];
	const ssize_t n = read(ranks[i].out[which], bytes, sizeof(bytes));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return errno == EINTR;
	if (n > 0)
		mine.put(mine.first + i, which, bytes, (size_t)n);
	else
		end_stream(i, which);
	return n > 0;
}

/* what the rank has written; a process that it left may write more, which is lost */
static void read_rest(int i, int which)
{
	fcntl(ranks[i].out[which], F_SETFL, O_NONBLOCK);
	while (read_stream(i, which))
		;
	if (ranks[i].out[which] >= 0)
		end_stream(i, which);
}

static int ranks_again(int rank)
{
	const int i = rank - mine.first;

	for (int s = 0; s < 2; s++)
		if (ranks[i].out[s] >= 0)
			read_rest(i, s);
	return start(opt, i);
}

static void collect(void)
{
	for (int i = 0; i < mine.n; i++) {
		struct rank *k = &ranks[i];
		siginfo_t s = { 0 };

		if (!k->running || waitid(P_PID, (id_t)k->pid, &s, WEXITED | WNOHANG) || !s.si_pid)
			continue;
		k->running = 0;
		mine.ended(&(struct ended){ mine.first + i, s.si_pid, s.si_code, s.si_status,
					    NULL });
	}
}

static void ranks_ready(const struct pollfd *p)
{
	for (int i = 0; i < mine.n; i++)
		for (int s = 0; s < 2; s++, p++)
			if (p->fd >= 0 && p->revents)
				(void)read_stream(i, s);
	collect();
}

static int ranks_busy(void)
{
	for (int i = 0; i < mine.n; i++)
		if (ranks[i].out[0] >= 0 || ranks[i].out[1] >= 0)
			return 1;
	return 0;
}

void ranks_free(void)
{
	if (group)
		waitpid(group, NULL, 0);
	free(ranks);
}

const struct crew ranks_crew = {
	.poll = ranks_poll,
	.ready = ranks_ready,
	.signal = ranks_signal,
	.busy = ranks_busy,
	.again = ranks_again,
	.drain_s = 1, /* time for output of processes that left the group */
};
