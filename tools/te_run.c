/*
 * te_run - starts the ranks of a parallel program on this host, and ends all if one fails.
 *
 * The ranks meet in a folder (TE_COMM_DIR) that exists while te_run runs. They are in one process
 * group, whose leader, rank 0, is not reaped before the end: so the group's number stays theirs,
 * and what they have started ends with them.
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <te/version.h>

#include "tools/te_train/say.h"

#define RANKS_MAX 1024
#define LINE_MOST 65536	      /* longer lines are broken */
#define QUEUE_MOST (1u << 20) /* bytes of output that wait; then ranks are not read */
#define GRACE_S 5	      /* from SIGTERM to SIGKILL */
#define DRAIN_MS 1000	      /* for output of processes that left the group */

/* exit statuses besides those of the ranks, as timeout(1) and shells have them */
#define STATUS_TIMEOUT 124
#define STATUS_NOT_EXECUTABLE 126
#define STATUS_NOT_FOUND 127

/* output of a rank, for --prefix: one of its two streams */
struct stream {
	int fd; /* -1: ended */
	size_t n;
	char line[LINE_MOST];
};

struct rank {
	pid_t pid;
	int running;
	struct stream *out[2]; /* NULL without --prefix */
};

/* lines for standard output or standard error */
struct queue {
	char *p;
	size_t n, cap;
	int closed; /* whoever read it is gone */
};

static struct {
	int nranks, prefix, per_node, grace_s;
	double timeout_s;
	char **cmd;
} opt = { .grace_s = GRACE_S };

static struct rank *ranks;
static struct queue queue[2];
static pid_t group;
static int nrunning;
static int status;	    /* of te_run; that of the first rank that failed */
static int failed;	    /* one has failed, or all are being ended */
static double kill_at = -1; /* s; when SIGTERM has not helped */
static char dir[4096];

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- ending ---- */

static void signal_all(int sig)
{
	if (group)
		kill(-group, sig);
}

static void end_all(void)
{
	if (!failed)
		kill_at = now_s() + opt.grace_s;
	failed = 1;
	signal_all(SIGTERM);
	signal_all(SIGCONT);
}

static void remove_dir(void)
{
	DIR *d = dir[0] ? opendir(dir) : NULL;
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0); /* fails for . and .. */
	if (d)
		closedir(d);
	if (dir[0])
		rmdir(dir);
}

/* ---- starting ---- */

static int make_dir(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(dir, sizeof(dir), "%s/te_run.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (mkdtemp(dir))
		return STATUS_OK;
	dir[0] = 0;
	return say_failed("cannot create a folder in %s: %s", tmp && *tmp ? tmp : "/tmp",
			  strerror(errno));
}

static void set_int(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", value);
	setenv(name, text, 1);
}

static void set_environment(int rank)
{
	char job[64];

	snprintf(job, sizeof(job), "te_run.%d", (int)getppid());
	setenv("TE_COMM_DIR", dir, 1);
	setenv("TE_COMM_JOB", job, 1);
	setenv("TE_COMM_BOOTSTRAP", "dir", 1);
	set_int("TE_COMM_RANK", rank);
	set_int("TE_COMM_NRANKS", opt.nranks);
	if (opt.per_node)
		set_int("TE_COMM_NODE", rank / opt.per_node);
}

/* in the child; tells the parent by fd why it could not become the program */
static void become(int rank, int fd, const int out[2], const sigset_t *mask)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC), e;

	setpgid(0, group);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* input is rank 0's; from a terminal, only its foreground processes may read */
	if ((rank || isatty(STDIN_FILENO)) && null >= 0)
		dup2(null, STDIN_FILENO);
	if (opt.prefix) {
		dup2(out[0], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
	}
	set_environment(rank);
	signal(SIGPIPE, SIG_DFL);
	sigprocmask(SIG_SETMASK, mask, NULL);
	execvp(opt.cmd[0], opt.cmd);
	e = errno;
	if (write(fd, &e, sizeof(e)) != sizeof(e))
		_exit(STATUS_NOT_FOUND);
	_exit(e == ENOENT ? STATUS_NOT_FOUND : STATUS_NOT_EXECUTABLE);
}

static int open_streams(struct rank *k, int out[2])
{
	for (int i = 0; i < 2; i++) {
		int fd[2];

		k->out[i] = calloc(1, sizeof(*k->out[i]));
		if (!k->out[i] || pipe2(fd, O_CLOEXEC))
			return say_failed("cannot open a pipe: %s", strerror(errno));
		k->out[i]->fd = fd[0];
		out[i] = fd[1];
	}
	return STATUS_OK;
}

static int start(int rank, const sigset_t *mask)
{
	struct rank *k = &ranks[rank];
	int fd[2], out[2] = { -1, -1 }, e = 0, r;
	ssize_t n;

	r = opt.prefix ? open_streams(k, out) : STATUS_OK;
	if (r)
		return r;
	if (pipe2(fd, O_CLOEXEC))
		return say_failed("cannot open a pipe: %s", strerror(errno));
	k->pid = fork();
	if (!k->pid)
		become(rank, fd[1], out, mask);
	close(fd[1]);
	for (int i = 0; i < 2 && opt.prefix; i++)
		close(out[i]);
	if (k->pid < 0) {
		close(fd[0]);
		return say_failed("cannot start rank %d: %s", rank, strerror(errno));
	}
	if (!group)
		group = k->pid;
	setpgid(k->pid, group);
	k->running = 1;
	nrunning++;
	n = read(fd[0], &e, sizeof(e));
	close(fd[0]);
	if (n != sizeof(e))
		return STATUS_OK;
	say_failed("%s: %s", opt.cmd[0], strerror(e));
	return e == ENOENT ? STATUS_NOT_FOUND : STATUS_NOT_EXECUTABLE;
}

/* ---- output ---- */

static void enqueue(int which, const char *p, size_t n)
{
	struct queue *q = &queue[which];

	if (q->closed)
		return;
	if (q->n + n > q->cap) {
		size_t cap = 2 * (q->n + n);
		char *more = realloc(q->p, cap);

		if (!more)
			return;
		q->p = more;
		q->cap = cap;
	}
	memcpy(q->p + q->n, p, n);
	q->n += n;
}

static void put_line(int rank, int which, const char *p, size_t n)
{
	char head[24];

	enqueue(which, head, (size_t)snprintf(head, sizeof(head), "[%d] ", rank));
	enqueue(which, p, n);
	if (!n || p[n - 1] != '\n')
		enqueue(which, "\n", 1);
}

/* moves whole lines to the queue */
static void split(int rank, int which, int end)
{
	struct stream *s = ranks[rank].out[which];
	size_t at = 0;

	for (;;) {
		char *nl = memchr(s->line + at, '\n', s->n - at);

		if (!nl)
			break;
		put_line(rank, which, s->line + at, (size_t)(nl + 1 - (s->line + at)));
		at = (size_t)(nl + 1 - s->line);
	}
	memmove(s->line, s->line + at, s->n - at);
	s->n -= at;
	if (s->n == sizeof(s->line) || (end && s->n)) {
		put_line(rank, which, s->line, s->n);
		s->n = 0;
	}
}

static void read_stream(int rank, int which)
{
	struct stream *s = ranks[rank].out[which];
	ssize_t n = read(s->fd, s->line + s->n, sizeof(s->line) - s->n);

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n > 0)
		s->n += (size_t)n;
	split(rank, which, n <= 0);
	if (n > 0)
		return;
	close(s->fd);
	s->fd = -1;
}

/* as much as a pipe takes without blocking, when poll() says that it is ready */
static void write_queue(int which)
{
	struct queue *q = &queue[which];
	ssize_t n = write(which + 1, q->p, q->n < PIPE_BUF ? q->n : PIPE_BUF);

	if (n < 0 && errno != EINTR && errno != EAGAIN) {
		q->closed = 1;
		q->n = 0;
		if (!status)
			status = errno == EPIPE ? 128 + SIGPIPE : STATUS_FAILED;
		end_all();
	} else if (n > 0) {
		memmove(q->p, q->p + n, q->n - (size_t)n);
		q->n -= (size_t)n;
	}
}

/* ---- waiting ---- */

static void describe(int rank, const siginfo_t *i)
{
	if (i->si_code == CLD_EXITED)
		say_failed("rank %d (pid %d) exited with status %d", rank, (int)i->si_pid,
			   i->si_status);
	else
		say_failed("rank %d (pid %d) was killed by signal %d (%s)", rank, (int)i->si_pid,
			   i->si_status, strsignal(i->si_status));
}

/*
 * Ranks that have ended since. Of several that failed, one that a signal killed is the first: the
 * others may have failed because of it.
 */
static void collect(void)
{
	int first = -1, ended = 0;
	siginfo_t of = { 0 };

	for (int r = 0; r < opt.nranks; r++) {
		siginfo_t i = { 0 };

		if (!ranks[r].running ||
		    waitid(P_PID, (id_t)ranks[r].pid, &i, WEXITED | WNOHANG | WNOWAIT) || !i.si_pid)
			continue;
		ranks[r].running = 0;
		nrunning--;
		ended = 1;
		if (r) /* not the leader of the group */
			waitpid(ranks[r].pid, NULL, 0);
		if (i.si_code == CLD_EXITED && !i.si_status)
			continue;
		if (first < 0 || (i.si_code != CLD_EXITED && of.si_code == CLD_EXITED)) {
			first = r;
			of = i;
		}
	}
	if (!ended || first < 0 || failed)
		return;
	describe(first, &of);
	status = of.si_code == CLD_EXITED ? of.si_status : 128 + of.si_status;
	end_all();
}

static void timed_out(void)
{
	char list[120] = "";
	size_t at = 0;

	for (int r = 0; r < opt.nranks && at < sizeof(list) - 12; r++)
		if (ranks[r].running)
			at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%d", at ? ", " : "",
					       r);
	say_failed("not finished after %g s: %s %s of %d", opt.timeout_s,
		   nrunning == 1 ? "rank" : "ranks", list, opt.nranks);
	status = STATUS_TIMEOUT;
	end_all();
}

/* signals of te_run are those of its ranks */
static void forward(int fd)
{
	struct signalfd_siginfo s;

	while (read(fd, &s, sizeof(s)) == sizeof(s)) {
		const int sig = (int)s.ssi_signo;

		if (sig == SIGCHLD)
			continue;
		if (sig == SIGTSTP) {
			signal_all(SIGSTOP);
			raise(SIGSTOP);
			signal_all(SIGCONT);
		} else if (sig == SIGUSR1 || sig == SIGUSR2 || sig == SIGWINCH) {
			signal_all(sig);
		} else if (failed) { /* asked for twice */
			signal_all(SIGKILL);
		} else {
			status = 128 + sig;
			failed = 1;
			kill_at = now_s() + opt.grace_s;
			signal_all(sig);
			signal_all(SIGCONT);
		}
	}
}

static int open_outputs(void)
{
	int n = 0;

	for (int r = 0; r < opt.nranks && opt.prefix; r++)
		for (int i = 0; i < 2; i++)
			n += ranks[r].out[i] && ranks[r].out[i]->fd >= 0;
	return n;
}

/* waits for signals, output, or the time until (s; below 0: none), once */
static void wait_once(struct pollfd *p, int signal_fd, double until)
{
	const double left = until - now_s();
	int n = 0;

	p[n++] = (struct pollfd){ .fd = signal_fd, .events = POLLIN };
	for (int i = 0; i < 2; i++)
		p[n++] = (struct pollfd){ .fd = queue[i].n ? i + 1 : -1, .events = POLLOUT };
	for (int r = 0; r < opt.nranks && opt.prefix; r++)
		for (int i = 0; i < 2; i++)
			p[n++] = (struct pollfd){
				.fd = ranks[r].out[i] && queue[i].n < QUEUE_MOST ?
					      ranks[r].out[i]->fd :
					      -1,
				.events = POLLIN,
			};
	if (poll(p, (nfds_t)n, until < 0 ? -1 : left > 0 ? (int)(left * 1e3) + 1 : 0) < 0)
		return;
	if (p[0].revents)
		forward(signal_fd);
	for (int i = 0; i < 2; i++)
		if (p[1 + i].revents)
			write_queue(i);
	for (int r = 0; r < opt.nranks && opt.prefix; r++)
		for (int i = 0; i < 2; i++)
			if (p[3 + 2 * r + i].revents)
				read_stream(r, i);
}

static void supervise(struct pollfd *p, int signal_fd)
{
	double end = opt.timeout_s > 0 ? now_s() + opt.timeout_s : -1;

	while (nrunning) {
		double until = failed ? kill_at : end;

		wait_once(p, signal_fd, until);
		collect();
		if (!nrunning || until < 0 || now_s() < until)
			continue;
		if (until == kill_at && failed) {
			signal_all(SIGKILL);
			kill_at = -1;
		} else if (!failed) {
			timed_out();
		}
	}
}

static int run(void)
{
	static const int forwarded[] = { SIGCHLD, SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
					 SIGUSR1, SIGUSR2, SIGTSTP, SIGWINCH };
	struct pollfd *p = calloc(3 + 2 * (size_t)opt.nranks, sizeof(*p));
	sigset_t set, old;
	double drain;
	int fd, r = STATUS_OK;

	ranks = calloc((size_t)opt.nranks, sizeof(*ranks));
	if (!p || !ranks)
		return say_failed("not enough memory");
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
		sigaddset(&set, forwarded[i]);
	sigprocmask(SIG_BLOCK, &set, &old);
	signal(SIGPIPE, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return say_failed("signalfd: %s", strerror(errno));
	for (int i = 0; i < opt.nranks && !r; i++)
		r = start(i, &old);
	if (r) {
		status = r;
		end_all();
	}
	supervise(p, fd);
	/* what the ranks have started and left */
	signal_all(SIGKILL);
	drain = now_s() + DRAIN_MS * 1e-3;
	while ((open_outputs() && now_s() < drain) || queue[0].n || queue[1].n)
		wait_once(p, fd, open_outputs() ? drain : -1);
	if (group)
		waitpid(group, NULL, 0);
	for (int i = 0; i < opt.nranks; i++)
		for (int k = 0; k < 2; k++)
			free(ranks[i].out[k]);
	free(queue[0].p);
	free(queue[1].p);
	free(ranks);
	free(p);
	close(fd);
	return status;
}

/* ---- options ---- */

static void print_help(void)
{
	printf("usage: te_run -n N [options] COMMAND [ARGUMENT...]\n"
	       "Starts N ranks of a parallel program on this host.\n"
	       "  -n, --ranks N      how many, 1 to %d\n"
	       "  -p, --prefix       begin each line of output with the rank, as in [3]\n"
	       "  -t, --timeout S    end all ranks after S seconds, with status 124\n"
	       "  -g, --grace S      seconds from SIGTERM to SIGKILL, default %d\n"
	       "      --per-node N   let the ranks believe that N of them share a node\n"
	       "  -h, --help\n"
	       "      --version\n",
	       RANKS_MAX, GRACE_S);
}

static int parse_int(const char *name, const char *text, int lo, int hi, int *ret)
{
	char *end;
	long v;

	errno = 0;
	v = strtol(text, &end, 10);
	if (errno || end == text || *end || v < lo || v > hi)
		return say_bad("%s: \"%s\" is not a number from %d to %d", name, text, lo, hi);
	*ret = (int)v;
	return STATUS_OK;
}

static int parse_seconds(const char *name, const char *text, double *ret)
{
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || !(v > 0 && v < 1e6))
		return say_bad("%s: \"%s\" is not a number of seconds above 0", name, text);
	*ret = v;
	return STATUS_OK;
}

int main(int argc, char **argv)
{
	static const struct option longopts[] = {
		{ "ranks", required_argument, NULL, 'n' },
		{ "prefix", no_argument, NULL, 'p' },
		{ "timeout", required_argument, NULL, 't' },
		{ "grace", required_argument, NULL, 'g' },
		{ "per-node", required_argument, NULL, 'N' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	int c, r = STATUS_OK;

	say_as("te_run");
	/* +: what comes after the command is its own */
	while (!r && (c = getopt_long(argc, argv, "+n:pt:g:h", longopts, NULL)) != -1) {
		switch (c) {
		case 'n':
			r = parse_int("--ranks", optarg, 1, RANKS_MAX, &opt.nranks);
			break;
		case 'p':
			opt.prefix = 1;
			break;
		case 't':
			r = parse_seconds("--timeout", optarg, &opt.timeout_s);
			break;
		case 'g':
			r = parse_int("--grace", optarg, 0, 3600, &opt.grace_s);
			break;
		case 'N':
			r = parse_int("--per-node", optarg, 1, RANKS_MAX, &opt.per_node);
			break;
		case 'h':
			print_help();
			return 0;
		case 'V':
			printf("te_run %s\n", TE_VERSION);
			return 0;
		default:
			return STATUS_BAD; /* getopt has printed why */
		}
	}
	if (r)
		return r;
	if (!opt.nranks)
		return say_bad("-n N, the number of ranks, is needed");
	if (optind == argc)
		return say_bad("a command is needed");
	opt.cmd = argv + optind;
	unsetenv("TE_COMM_ID");
	r = make_dir();
	if (!r)
		r = run();
	remove_dir();
	return r;
}
