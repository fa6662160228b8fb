/*
 * agent.c - the te_run that te_run starts on another host: it starts ranks there, reports their
 * output and end, forwards signals to them, and starts them again when it is told to. It makes no
 * decisions, except that it ends its ranks if the other te_run has ended or is silent.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/version.h>

#include "run.h"

#define JOB_S 30 /* time limit for the first message, in seconds */

static struct buf control;
static int control_fd = STDIN_FILENO; /* -1: ended */
static int silence_s, stopped;
static char **env; /* environment of the job */
static double heard, beat_at;
static struct ranks_opts mine;
static int respawn; /* te_run answers each end of a rank */
static char unanswered[RANKS_MAX];

static void report(enum frame_type type, const int *v, int n, const char *p, size_t nbytes)
{
	struct buf body = { 0 }, frame = { 0 };

	for (int i = 0; i < n; i++)
		buf_put_int(&body, v[i]);
	buf_put(&body, p, nbytes);
	frame_put(&frame, type, &body);
	out_put(0, frame.p + frame.at, frame.n - frame.at);
	buf_free(&body);
	buf_free(&frame);
}

static void put(int rank, int which, const char *p, size_t n)
{
	report(FRAME_OUTPUT, (int[]){ rank, which }, 2, p, n);
}

static void forget(int rank)
{
	job_ended(&(struct ended){ rank, 0, CLD_EXITED, 0, NULL });
}

static void ended(const struct ended *e)
{
	report(FRAME_ENDED, (int[]){ e->rank, e->pid, e->code, e->status }, 4, NULL, 0);
	if (respawn)
		unanswered[e->rank] = 1; /* the job lasts until the answer */
	else
		forget(e->rank);
}

/* 0, or -1: no rank that has ended */
static int answered(int rank, int again)
{
	if (rank < mine.first || rank >= mine.first + mine.n || !unanswered[rank])
		return -1;
	unanswered[rank] = 0;
	/* a process that executes no program reports its end itself */
	if (again && ranks_crew.again(rank) == STATUS_FAILED)
		ended(&(struct ended){ rank, 0, CLD_EXITED, STATUS_FAILED, NULL });
	else if (!again)
		forget(rank);
	return 0;
}

/* ---- the job ---- */

/* memory of the message stays while this process runs */
static int read_job(struct buf *b, struct run_opts *o)
{
	static char name[300];
	const char *dir;
	char text[24];
	struct job job;
	const int e = job_take(b, &job);

	snprintf(name, sizeof(name), "te_run: host %s", job.host);
	say_as(name);
	o->cmd = job.cmd;
	env = job.env;
	if (strcmp(job.version, TE_VERSION))
		return say_failed("this is te_run %s, and the one that started it is %.40s",
				  TE_VERSION, job.version);
	if (e)
		return say_failed("the job that it got is none");
	o->nranks = job.nranks;
	mine.first = job.first;
	mine.n = job.n;
	o->per_node = job.per_node;
	o->grace_s = job.grace_s;
	silence_s = job.silence_s;
	o->respawn = respawn = job.respawn;
	unsetenv("TE_COMM_DIR");
	snprintf(text, sizeof(text), "te_run.%d", (int)getpid());
	setenv("TE_COMM_JOB", text, 1);
	for (char **v = env; *v; v++)
		if (putenv(*v))
			return say_failed("not enough memory");
	if (chdir(job.folder))
		return say_failed("%s: %s", job.folder, strerror(errno));
	dir = getenv("TE_COMM_DIR");
	if (respawn && !dir)
		return say_failed("the job that it got has no folder of the ranks");
	if (respawn && access(dir, W_OK))
		return say_failed("%s: %s: with --respawn all hosts share the current folder", dir,
				  strerror(errno));
	return STATUS_OK;
}

static int wait_for_job(struct buf *from, struct buf *ret_body)
{
	const double end = now_s() + JOB_S;
	enum frame_type type;
	int t = 0;

	while (!t && now_s() < end) {
		struct pollfd p = { .fd = control_fd, .events = POLLIN };

		if (poll(&p, 1, (int)((end - now_s()) * 1e3) + 1) > 0 &&
		    !frame_read(control_fd, from))
			break;
		t = frame_take(from, &type, ret_body);
	}
	return t == 1 && type == FRAME_JOB ? STATUS_OK :
	       say_bad("--agent: there is no job: te_run --hosts starts agents");
}

/* ---- waiting ---- */

/* the last descriptor is for messages */
static void agent_poll(struct pollfd *p, double *until)
{
	double t = beat_at;

	*p = (struct pollfd){ .fd = control_fd, .events = POLLIN };
	if (control_fd >= 0 && !stopped && heard + silence_s < t)
		t = heard + silence_s;
	if (*until < 0 || t < *until)
		*until = t;
	ranks_crew.poll(p + 1, until);
}

/* the ranks end when the te_run that started this agent has ended */
static void left_alone(void)
{
	control_fd = -1;
	respawn = 0;
	for (int i = mine.first; i < mine.first + mine.n; i++)
		if (unanswered[i])
			forget(i);
	ranks_crew.signal(SIGCONT);
	job_end(STATUS_FAILED);
}

/* handle messages that have been read; -1: not a message */
static int obey(void)
{
	enum frame_type type;
	struct buf body;
	int t;

	while ((t = frame_take(&control, &type, &body)) > 0) {
		const int sig = type == FRAME_SIGNAL ? buf_take_int(&body) : 0;

		if (type == FRAME_ANSWER) {
			const int rank = buf_take_int(&body), again = buf_take_int(&body);

			if (body.failed || answered(rank, again))
				return -1;
		}
		if (sig < 1 || sig > 31)
			continue;
		stopped = sig == SIGSTOP || (stopped && sig != SIGCONT);
		ranks_crew.signal(sig);
	}
	return t;
}

static void read_control(void)
{
	const int r = frame_read(control_fd, &control);

	if (r < 0)
		return;
	heard = now_s();
	if (obey() < 0 || !r)
		left_alone();
}

static void agent_ready(const struct pollfd *p)
{
	if (p->fd >= 0 && p->revents)
		read_control();
	ranks_crew.ready(p + 1);
	if (now_s() >= beat_at) {
		beat_at = now_s() + silence_s / 4.0;
		report(FRAME_BEAT, NULL, 0, NULL, 0);
	}
	if (control_fd >= 0 && !stopped && now_s() >= heard + silence_s)
		left_alone();
}

static void finish(void)
{
	const double end = now_s() + silence_s;

	report(FRAME_DONE, NULL, 0, NULL, 0);
	while (out_waits() && now_s() < end) {
		struct pollfd p;

		out_poll(0, &p);
		if (poll(&p, 1, 1000) > 0)
			out_write(0);
	}
}

int agent_run(void)
{
	struct crew crew = ranks_crew;
	struct run_opts o = { 0 };
	static struct buf job; /* has the environment */
	struct buf body;
	int e;

	mine = (struct ranks_opts){ .put = put, .ended = ended };
	crew.poll = agent_poll;
	crew.ready = agent_ready;
	e = wait_for_job(&control, &body);
	if (e)
		return e;
	/* a copy: later messages come into `control` */
	buf_put(&job, body.p, body.n);
	silence_s = 1;
	e = job.failed ? say_failed("not enough memory") : read_job(&job, &o);
	heard = beat_at = now_s();
	if (!e) {
		crew.npoll = 1 + ranks_npoll(mine.n);
		e = job_begin(&o, &crew);
	}
	if (e) {
		report(FRAME_ERROR, &e, 1, NULL, 0);
	} else {
		e = ranks_start(&o, &mine);
		if (e) {
			report(FRAME_ERROR, &e, 1, NULL, 0);
			job_end(e);
		}
		if (obey() < 0) /* messages that came with the job */
			left_alone();
		job_wait();
		ranks_free();
	}
	finish();
	out_free();
	buf_free(&control);
	free(o.cmd);
	free(env);
	return e;
}
