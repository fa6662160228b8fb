/*
 * job.c - the ranks of te_run on any host: forwards signals, ends all if one fails (unless
 * --no-kill is given) or time is over, and reports the reason.
 */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define SAME_S 0.5 /* timeout(1), and others, send a signal to a process and to its group */

static const struct run_opts *opt;
static const struct crew *crew;
static struct pollfd *polled;
static int signal_fd = -1;
static char running[RANKS_MAX];
static int nrunning;
static struct ended first; /* first of the ranks that failed in one check; rank -1: none */
static int status, ending, hurry; /* hurry: do not wait for readers of the output */
static int failed, nsucceeded; /* with --no-kill: the first status, ranks */
static int nrespawned;
static double kill_at = -1; /* s; when SIGTERM has not helped */
static double asked_at = -1; /* s; when a signal asked for the end */

/* ---- ending ---- */

static void end_by(int sig)
{
	if (!ending)
		kill_at = now_s() + opt->grace_s;
	ending = 1;
	crew->signal(sig);
	crew->signal(SIGCONT);
}

static void end_with(int with)
{
	if (!status)
		status = with;
	end_by(SIGTERM);
}

void job_end(int with)
{
	hurry = 1;
	end_with(with);
}

void job_failed(int with)
{
	if (!opt->no_kill)
		end_with(with);
	else if (!failed)
		failed = with;
}

int job_is_ending(void)
{
	return ending;
}

void job_started(int rank)
{
	running[rank] = 1;
	nrunning++;
}

static void tell(const struct ended *e)
{
	char who[512]; /* a host may have a long name */

	snprintf(who, sizeof(who), "rank %d (%s%s%spid %d)", e->rank, e->host ? "host " : "",
		 e->host ? e->host : "", e->host ? ", " : "", e->pid);
	if (e->code == CLD_EXITED)
		say_failed("%s exited with status %d", who, e->status);
	else
		say_failed("%s was killed by signal %d (%s)", who, e->status, strsignal(e->status));
}

static void respawn(int rank)
{
	nrespawned++;
	say_note("te_run: rank %d is started again, %d of at most %d times", rank, nrespawned,
		 opt->respawn);
	(void)crew->again(rank); /* an error has been printed */
}

void job_ended(const struct ended *e)
{
	if (!running[e->rank])
		return;
	running[e->rank] = 0;
	nrunning--;
	if (e->code == CLD_EXITED && !e->status) {
		nsucceeded += e->pid > 0; /* 0: its host is lost */
		return;
	}
	/* other ranks may have failed because of a rank that a signal killed */
	if (first.rank < 0 || (e->code != CLD_EXITED && first.code == CLD_EXITED))
		first = *e;
	if (!opt->no_kill || ending)
		return;
	tell(e);
	if (nrespawned < opt->respawn)
		respawn(e->rank);
}

static void judge(void)
{
	const struct ended e = first;

	first.rank = -1;
	if (e.rank < 0 || ending)
		return;
	if (!opt->no_kill)
		tell(&e);
	job_failed(e.code == CLD_EXITED ? e.status : 128 + e.status);
}

static void timed_out(void)
{
	char list[120] = "";
	size_t at = 0;

	for (int r = 0; r < opt->nranks; r++) {
		if (!running[r])
			continue;
		if (at > sizeof(list) - 16) {
			snprintf(list + at, sizeof(list) - at, ", ...");
			break;
		}
		at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%d", at ? ", " : "", r);
	}
	say_failed("not finished after %g s: %s %s of %d", opt->timeout_s,
		   nrunning == 1 ? "rank" : "ranks", list, opt->nranks);
	job_end(STATUS_TIMEOUT);
}

/* ---- waiting ---- */

/* signals to te_run go to its ranks */
static void pass_on(void)
{
	struct signalfd_siginfo s;

	while (read(signal_fd, &s, sizeof(s)) == sizeof(s)) {
		const int sig = (int)s.ssi_signo;

		if (sig == SIGCHLD)
			continue;
		if (sig == SIGTSTP) {
			crew->signal(SIGSTOP);
			raise(SIGSTOP);
			crew->signal(SIGCONT);
		} else if (sig == SIGUSR1 || sig == SIGUSR2 || sig == SIGWINCH) {
			crew->signal(sig);
		} else if (!ending) {
			status = 128 + sig;
			hurry = 1;
			asked_at = now_s();
			end_by(sig);
		} else if (asked_at < 0 || now_s() - asked_at > SAME_S) { /* asked for twice */
			crew->signal(SIGKILL);
			out_drop();
		}
	}
}

/* waits for signals, output, or the time until (s; below 0: none), once */
static void wait_once(double until)
{
	struct pollfd *p = polled;
	double left;

	p[0] = (struct pollfd){ .fd = signal_fd, .events = POLLIN };
	for (int i = 0; i < 2; i++)
		out_poll(i, &p[1 + i]);
	crew->poll(p + 3, &until);
	left = until - now_s();
	if (poll(p, 3 + (nfds_t)crew->npoll,
		 until < 0 ? -1 : left > 0 ? (int)(left * 1e3) + 1 : 0) < 0)
		return;
	if (p[0].revents)
		pass_on();
	for (int i = 0; i < 2; i++) {
		const int e = p[1 + i].revents ? out_write(i) : 0;

		/* the standard error may have the messages of this process alone */
		if (e && (!i || opt->prefix || opt->hosts))
			job_end(e == EPIPE ? 128 + SIGPIPE : STATUS_FAILED);
	}
	crew->ready(p + 3);
	judge();
}

static const int passed_on[] = { SIGCHLD, SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
				 SIGUSR1, SIGUSR2, SIGTSTP, SIGWINCH };
#define NPASSED (sizeof(passed_on) / sizeof(passed_on[0]))
static pthread_t main_thread;
static pid_t parent; /* parent of the children: this process */

/*
 * A library, such as a BLAS, may have started threads before main() that do not block the signals.
 * A signal that one of them takes goes on to the thread that reads signal_fd.
 */
static void redirect(int sig)
{
	pthread_kill(main_thread, sig);
}

/* a message of this process waits for its reader as the output of ranks does */
static void put_message(const char *line)
{
	out_put(1, line, strlen(line));
	out_put(1, "\n", 1);
}

/* as nohup(1) and shells ignore signals of a terminal, which is meant for the ranks too */
static int stays_ignored(int sig)
{
	struct sigaction act;

	return (sig == SIGHUP || sig == SIGINT || sig == SIGQUIT || sig == SIGTSTP ||
		sig == SIGTTIN || sig == SIGTTOU) &&
	       !sigaction(sig, NULL, &act) && act.sa_handler == SIG_IGN;
}

void job_leave(void)
{
	sigset_t none;

	say_by(NULL);
	for (int sig = 1; sig <= SIGRTMAX; sig++)
		if (!stays_ignored(sig))
			signal(sig, SIG_DFL); /* fails for SIGKILL and signals of the C library */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) /* it has ended before that */
		_exit(STATUS_FAILED);
}

int job_begin(const struct run_opts *o, const struct crew *c)
{
	const struct sigaction act = { .sa_handler = redirect, .sa_flags = SA_RESTART };
	sigset_t set;

	opt = o;
	crew = c;
	first.rank = -1;
	polled = calloc(3 + c->npoll, sizeof(*polled));
	if (!polled)
		return say_failed("not enough memory");
	/* while SIGCHLD is ignored, children leave no status; a signalfd has ignored signals too */
	sigemptyset(&set);
	for (size_t i = 0; i < NPASSED; i++)
		if (!stays_ignored(passed_on[i])) {
			signal(passed_on[i], SIG_DFL);
			sigaddset(&set, passed_on[i]);
		}
	sigprocmask(SIG_SETMASK, &set, NULL);
	main_thread = pthread_self();
	parent = getpid();
	for (size_t i = 0; i < NPASSED; i++)
		if (sigismember(&set, passed_on[i]))
			(void)sigaction(passed_on[i], &act, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signal_fd < 0)
		return say_failed("signalfd: %s", strerror(errno));
	say_by(put_message);
	return STATUS_OK;
}

int job_wait(void)
{
	const double end = opt->timeout_s > 0 ? now_s() + opt->timeout_s : -1;
	double drain;

	while (nrunning) {
		const double until = ending ? kill_at : end;

		wait_once(until);
		if (!nrunning || until < 0 || now_s() < until)
			continue;
		if (!ending) {
			timed_out();
		} else if (until == kill_at) {
			crew->signal(SIGKILL);
			kill_at = -1;
			if (hurry)
				out_hurry();
		}
	}
	/* processes that the ranks started and left */
	crew->signal(SIGKILL);
	drain = now_s() + crew->drain_s;
	while (now_s() < drain ? crew->busy() || out_waits() : !hurry && out_waits())
		wait_once(now_s() < drain ? drain : -1);
	say_by(NULL);
	free(polled);
	close(signal_fd);
	return status || nsucceeded ? status : failed;
}
