/*
 * hosts.c - ranks on other hosts. For each host te_run starts ssh, and by it a te_run there, the
 * agent, and exchanges messages with it over standard input and output of ssh. So the data of
 * ranks, such as the id of the job, is not visible in arguments; ranks end when their connection
 * ends.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <te/comm.h>
#include <te/errno.h>
#include <te/version.h>

#include "run.h"

#define DRAIN_S 10 /* time limit for the end of agents whose ranks have ended */
#define REAP_MS 2000
#define ARGS_MOST 64 /* maximum arguments of --ssh */

struct host {
	char *name; /* as ssh gets it */
	int slots, first, n;
	pid_t pid;    /* 0: not started */
	int to, from, err; /* -1: closed */
	struct buf out, in;
	struct shown shown; /* state for showing err */
	double heard, beat_at;
	int done;
	int again; /* the rank that has just ended is started again */
};

static struct host hosts[HOSTS_MAX];
static int nhosts;
static const struct run_opts *opt;
static pid_t group;

extern char **environ;

/* ---- the list ---- */

/* "host", "host:slots", "user@host:slots", "[address]:slots" */
static int parse_host(char *text, struct host *ret)
{
	char *colon = strrchr(text, ':'), *bracket = strrchr(text, ']'), *end;
	long slots = 1;

	if (colon && ((bracket && bracket > colon) || (!bracket && strchr(text, ':') != colon)))
		colon = NULL; /* part of an IPv6 address */
	if (colon) {
		errno = 0;
		slots = strtol(colon + 1, &end, 10);
		if (errno || end == colon + 1 || *end || slots < 1 || slots > RANKS_MAX)
			return say_bad("--hosts: \"%s\": \"%s\" is not a number of slots, 1 to %d",
				       text, colon + 1, RANKS_MAX);
		*colon = 0;
	}
	if (*text == '[' && bracket && !bracket[1]) {
		*bracket = 0;
		text++;
	}
	if (!*text || *text == '-')
		return say_bad("--hosts: \"%s\" is not the name of a host", text);
	*ret = (struct host){ .name = text, .slots = (int)slots, .to = -1, .from = -1,
			       .err = -1 };
	return STATUS_OK;
}

int hosts_parse(struct run_opts *o)
{
	static char text[65536];
	int sum = 0, left, r = STATUS_OK;

	if (strlen(o->hosts) >= sizeof(text))
		return say_bad("--hosts: a list of %zu bytes is too long", strlen(o->hosts));
	strcpy(text, o->hosts);
	for (char *s = text, *next; s && !r; s = next) {
		next = strchr(s, ',');
		if (next)
			*next++ = 0;
		if (nhosts == HOSTS_MAX)
			return say_bad("--hosts: there can be %d hosts", HOSTS_MAX);
		r = parse_host(s, &hosts[nhosts]);
		sum += r ? 0 : hosts[nhosts++].slots;
	}
	if (r)
		return r;
	if (!o->nranks)
		o->nranks = sum;
	if (o->nranks > sum || sum > RANKS_MAX)
		return say_bad("--hosts: %d ranks, but the hosts have %d slots%s", o->nranks, sum,
			       sum > RANKS_MAX ? ", and there can be 1024" : "");
	left = o->nranks;
	for (int i = 0; i < nhosts; i++) {
		hosts[i].first = o->nranks - left;
		hosts[i].n = left < hosts[i].slots ? left : hosts[i].slots;
		left -= hosts[i].n;
	}
	while (!hosts[nhosts - 1].n)
		nhosts--;
	for (int i = 0; i < o->nexport; i++)
		if (!o->export[i][0] || o->export[i][0] == '=')
			return say_bad("--export: \"%s\" is no name", o->export[i]);
	return STATUS_OK;
}

/* ---- starting ---- */

static int is_exported(const char *var)
{
	static const char *const own[] = { "TE_COMM_BOOTSTRAP=", "TE_COMM_DIR=",  "TE_COMM_ID=",
					   "TE_COMM_JOB=",	 "TE_COMM_RANK=", "TE_COMM_NRANKS=",
					   "TE_COMM_LOCAL_RANK=" };

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (!strncmp(var, own[i], strlen(own[i])))
			return 0;
	return !strncmp(var, "TE_", 3);
}

/* "NAME=VALUE" for each variable, and "" */
static void put_environment(struct buf *b, const char *id)
{
	for (char **v = environ; *v; v++)
		if (is_exported(*v))
			buf_put_text(b, *v);
	for (int i = 0; i < opt->nexport; i++) {
		const char *x = opt->export[i], *value = strchr(x, '=') ? NULL : getenv(x);

		if (value) {
			buf_put(b, x, strlen(x));
			buf_put(b, "=", 1);
		}
		if (value || strchr(x, '='))
			buf_put_text(b, value ? value : x);
	}
	buf_put_text(b, "TE_COMM_BOOTSTRAP=id");
	if (opt->shared) {
		buf_put(b, "TE_COMM_DIR=", 12);
		buf_put_text(b, opt->shared);
	}
	buf_put(b, "TE_COMM_ID=", 11);
	buf_put_text(b, id);
	buf_put_text(b, "");
}

static int put_job(struct host *h, const char *id, const char *folder)
{
	int argc = 0, r = STATUS_OK;
	struct buf b = { 0 };

	while (opt->cmd[argc])
		argc++;
	buf_put_text(&b, TE_VERSION);
	buf_put_text(&b, h->name);
	buf_put_text(&b, folder);
	buf_put_int(&b, opt->nranks);
	buf_put_int(&b, h->first);
	buf_put_int(&b, h->n);
	buf_put_int(&b, opt->per_node);
	buf_put_int(&b, opt->grace_s);
	buf_put_int(&b, opt->silence_s);
	buf_put_int(&b, opt->shared != NULL);
	put_environment(&b, id);
	buf_put_int(&b, argc);
	for (int i = 0; i < argc; i++)
		buf_put_text(&b, opt->cmd[i]);
	frame_put(&h->out, FRAME_JOB, &b);
	if (b.failed || h->out.failed)
		r = say_failed("not enough memory");
	else if (b.n > FRAME_MOST)
		r = say_failed("the command and the environment have %zu bytes, at most %u", b.n,
			       FRAME_MOST);
	buf_free(&b);
	return r;
}

/* in the child */
static void become_ssh(const struct host *h, const int to[2], const int from[2], const int err[2])
{
	static char command[4096];
	char *argv[ARGS_MOST + 4], *save = NULL;
	int n = 0;

	setpgid(0, group); /* a terminal's signals are for te_run, which passes them on */
	dup2(to[0], STDIN_FILENO);
	dup2(from[1], STDOUT_FILENO);
	dup2(err[1], STDERR_FILENO);
	job_leave();
	snprintf(command, sizeof(command), "%s", opt->ssh);
	for (char *s = strtok_r(command, " ", &save); s && n < ARGS_MOST;
	     s = strtok_r(NULL, " ", &save))
		argv[n++] = s;
	argv[n++] = h->name;
	argv[n++] = (char *)(uintptr_t)opt->te_run;
	argv[n++] = "--agent";
	argv[n] = NULL;
	execvp(argv[0], argv);
	say_failed("%s: %s", argv[0], strerror(errno));
	_exit(STATUS_NOT_FOUND);
}

static void close_to(struct host *h)
{
	if (h->to >= 0)
		close(h->to);
	h->to = -1;
}

static void hang_up(struct host *h)
{
	close_to(h);
	if (h->from >= 0)
		close(h->from);
	h->from = -1;
}

static void close_err(struct host *h)
{
	if (h->err >= 0)
		close(h->err);
	h->err = -1;
}

static int start_host(struct host *h)
{
	int to[2], from[2], err[2];

	if (pipe2(to, O_CLOEXEC))
		return say_failed("cannot open a pipe: %s", strerror(errno));
	h->to = to[1];
	if (pipe2(from, O_CLOEXEC)) {
		close(to[0]);
		return say_failed("cannot open a pipe: %s", strerror(errno));
	}
	h->from = from[0];
	if (pipe2(err, O_CLOEXEC)) {
		close(to[0]);
		close(from[1]);
		return say_failed("cannot open a pipe: %s", strerror(errno));
	}
	h->err = err[0];
	fcntl(h->to, F_SETFL, O_NONBLOCK);
	h->pid = fork();
	if (!h->pid)
		become_ssh(h, to, from, err);
	close(to[0]);
	close(from[1]);
	close(err[1]);
	if (h->pid < 0) {
		say_failed("host %s: cannot start ssh: %s", h->name, strerror(errno));
		h->pid = 0;
		hang_up(h);
		return STATUS_FAILED;
	}
	if (!group)
		group = h->pid;
	setpgid(h->pid, group);
	h->heard = h->beat_at = now_s();
	for (int i = 0; i < h->n; i++)
		job_started(h->first + i);
	return STATUS_OK;
}

/* ---- waiting ---- */

/* reading detects a broken connection */
static void flush(struct host *h)
{
	while (h->to >= 0 && h->out.n > h->out.at) {
		const ssize_t n = write(h->to, h->out.p + h->out.at, h->out.n - h->out.at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			close_to(h);
		if (n < 0)
			return;
		h->out.at += (size_t)n;
	}
}

static void hosts_signal(int sig)
{
	for (int i = 0; i < nhosts; i++) {
		struct buf b = { 0 };

		buf_put_int(&b, sig);
		frame_put(&hosts[i].out, FRAME_SIGNAL, &b);
		buf_free(&b);
		flush(&hosts[i]);
		if (sig == SIGCONT)
			hosts[i].heard = now_s(); /* te_run may have been stopped */
	}
}

static void forget_ranks(const struct host *h)
{
	for (int i = 0; i < h->n; i++)
		job_ended(&(struct ended){ h->first + i, 0, CLD_EXITED, 0, h->name });
}

static void lose(struct host *h, const char *why)
{
	if (!job_is_ending())
		say_failed("host %s: %s", h->name, why);
	hang_up(h);
	if (h->pid > 0)
		kill(h->pid, SIGTERM);
	forget_ranks(h);
	job_failed(STATUS_FAILED);
}

static int is_own(const struct host *h, int rank)
{
	return rank >= h->first && rank < h->first + h->n;
}

static int hosts_again(int rank)
{
	int i = 0;

	while (!is_own(&hosts[i], rank))
		i++;
	hosts[i].again = 1;
	job_started(rank);
	return STATUS_OK;
}

static void rank_ended(struct host *h, const struct ended *e)
{
	struct buf b = { 0 };

	h->again = 0;
	job_ended(e); /* may call hosts_again() */
	if (!opt->shared)
		return;
	buf_put_int(&b, e->rank);
	buf_put_int(&b, h->again);
	frame_put(&h->out, FRAME_ANSWER, &b);
	buf_free(&b);
	flush(h);
}

/* could waitid(2) have returned it? */
static int is_end(const struct ended *e)
{
	return e->code == CLD_EXITED ? e->status >= 0 && e->status <= 255 :
				       (e->code == CLD_KILLED || e->code == CLD_DUMPED) &&
					       e->status >= 1 && e->status <= SIGRTMAX;
}

/* output of another host, which must not control this host's terminal */
static void put_output(int rank, int which, const char *p, size_t n)
{
	static struct shown shown[RANKS_MAX][2];
	struct buf b = { 0 };

	out_show(&shown[rank][which], p, n, &b);
	if (opt->prefix && b.n)
		out_lines(rank, which, b.p, b.n);
	else if (b.n)
		out_put(which, b.p, b.n);
	if (opt->prefix && !n)
		out_lines(rank, which, NULL, 0);
	buf_free(&b);
}

/* messages of ssh, and through it of the agent; ssh may leave a process that keeps the pipe open */
static void read_err(struct host *h)
{
	static char bytes[65536];
	const ssize_t n = read(h->err, bytes, sizeof(bytes));
	struct buf b = { 0 };

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	out_show(&h->shown, bytes, n > 0 ? (size_t)n : 0, &b);
	out_put(1, b.p, b.n);
	buf_free(&b);
	if (n <= 0)
		close_err(h);
}

/* 0, or -1: not a valid message */
static int take(struct host *h, enum frame_type type, struct buf *b)
{
	struct ended e = { .host = h->name };
	int which;

	switch (type) {
	case FRAME_OUTPUT:
		e.rank = buf_take_int(b);
		which = buf_take_int(b);
		if (b->failed || !is_own(h, e.rank) || which < 0 || which > 1)
			return -1;
		put_output(e.rank, which, b->p + b->at, b->n - b->at);
		return 0;
	case FRAME_ENDED:
		e.rank = buf_take_int(b);
		e.pid = buf_take_int(b);
		e.code = buf_take_int(b);
		e.status = buf_take_int(b);
		if (b->failed || !is_own(h, e.rank) || !is_end(&e))
			return -1;
		rank_ended(h, &e);
		return 0;
	case FRAME_ERROR:
		e.status = buf_take_int(b);
		forget_ranks(h);
		job_end(b->failed || e.status < 1 || e.status > 255 ? STATUS_FAILED : e.status);
		return 0;
	case FRAME_DONE:
		h->done = 1;
		forget_ranks(h);
		return 0;
	default:
		return type == FRAME_BEAT ? 0 : -1;
	}
}

static void read_host(struct host *h)
{
	const int r = frame_read(h->from, &h->in);
	enum frame_type type;
	struct buf body;
	int t = 0;

	if (r < 0)
		return;
	h->heard = now_s();
	while (!h->done && (t = frame_take(&h->in, &type, &body)) > 0 && !take(h, type, &body))
		;
	if (h->done) {
		hang_up(h);
	} else if (t) {
		const size_t have = h->in.n - h->in.at;
		struct shown shown = { 0 };
		struct buf b = { 0 };
		char text[160];

		out_show(&shown, h->in.p + h->in.at, have < 12 ? have : 12, &b);
		snprintf(text, sizeof(text),
			 "te_run there sent \"%.*s\", which is no message: "
			 "does its shell print at the start?", (int)b.n, b.p ? b.p : "");
		buf_free(&b);
		lose(h, text);
	} else if (!r) {
		lose(h, "the connection has ended, or te_run could not be started there");
	}
}

static void check_time(struct host *h)
{
	const double now = now_s();
	char text[80];

	if (h->from < 0)
		return;
	if (now >= h->heard + opt->silence_s) {
		snprintf(text, sizeof(text), "nothing has come for %d s (--silence)",
			 opt->silence_s);
		lose(h, text);
	} else if (now >= h->beat_at) {
		h->beat_at = now + opt->silence_s / 4.0;
		frame_put(&h->out, FRAME_BEAT, NULL);
		flush(h);
	}
}

static void hosts_poll(struct pollfd *p, double *until)
{
	const int full = out_full(0) || out_full(1);

	for (int i = 0; i < nhosts; i++) {
		struct host *h = &hosts[i];
		double t = h->heard + opt->silence_s;

		*p++ = (struct pollfd){ .fd = h->out.n > h->out.at ? h->to : -1,
					.events = POLLOUT };
		*p++ = (struct pollfd){ .fd = full ? -1 : h->from, .events = POLLIN };
		*p++ = (struct pollfd){ .fd = full ? -1 : h->err, .events = POLLIN };
		if (h->from < 0)
			continue;
		if (full)
			h->heard = now_s();
		if (h->beat_at < t)
			t = h->beat_at;
		if (*until < 0 || t < *until)
			*until = t;
	}
}

static void hosts_ready(const struct pollfd *p)
{
	for (int i = 0; i < nhosts; i++, p += 3) {
		if (p[0].fd >= 0 && p[0].revents)
			flush(&hosts[i]);
		/* read before reporting the end of its ranks: it may have the reason */
		if (p[2].fd >= 0 && p[2].revents)
			read_err(&hosts[i]);
		if (p[1].fd >= 0 && p[1].revents)
			read_host(&hosts[i]);
		check_time(&hosts[i]);
	}
}

static int hosts_busy(void)
{
	for (int i = 0; i < nhosts; i++)
		if (hosts[i].from >= 0)
			return 1;
	return 0;
}

/* ssh ends by itself when its command has */
static void reap(void)
{
	const double end = now_s() + REAP_MS * 1e-3;

	for (int i = 0; i < nhosts; i++) {
		struct host *h = &hosts[i];

		hang_up(h);
		close_err(h);
		while (h->pid > 0 && !waitpid(h->pid, NULL, WNOHANG)) {
			if (now_s() >= end)
				kill(h->pid, SIGKILL);
			nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
		}
		buf_free(&h->out);
		buf_free(&h->in);
	}
}

static int start_all(const char *id)
{
	char folder[PATH_MAX];
	int r = STATUS_OK;

	if (!getcwd(folder, sizeof(folder)))
		return say_failed("getcwd: %s", strerror(errno));
	for (int i = 0; i < nhosts && !r; i++) {
		r = put_job(&hosts[i], id, folder);
		if (!r)
			r = start_host(&hosts[i]);
	}
	return r;
}

int hosts_run(const struct run_opts *o)
{
	const struct crew crew = {
		.npoll = 3 * (size_t)nhosts,
		.poll = hosts_poll,
		.ready = hosts_ready,
		.signal = hosts_signal,
		.busy = hosts_busy,
		.again = hosts_again,
		.drain_s = DRAIN_S,
	};
	char text[TE_COMM_ID_TEXT];
	struct te_comm_root *root;
	struct te_comm_id id;
	int r;

	opt = o;
	r = te_comm_id_create(&id, &root);
	if (r)
		return say_te(r, "address for the ranks");
	te_comm_id_format(&id, text, sizeof(text));
	r = job_begin(o, &crew);
	if (!r) {
		r = start_all(text);
		if (r)
			job_end(r);
		r = job_wait();
	}
	reap();
	out_free();
	te_comm_root_unref(root);
	return r;
}
