/*
 * run.h - te_run: job.c waits and sets the status, output.c writes lines, ranks.c has processes of
 * this host, hosts.c processes of other hosts, which agent.c starts there; the two exchange the
 * messages of frame.c.
 */
#ifndef RUN_H
#define RUN_H

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tools/lib/clock.h"
#include "tools/lib/say.h"

#define RANKS_MAX 1024
#define HOSTS_MAX 256

/* exit statuses that are not a rank's, as timeout(1) and shells use them */
#define STATUS_TIMEOUT 124
#define STATUS_NOT_EXECUTABLE 126
#define STATUS_NOT_FOUND 127

struct run_opts {
	int nranks; /* 0: the number of the hosts' slots */
	int prefix, per_node, grace_s, silence_s, no_kill;
	int respawn; /* ranks that fail are started again so often, in all */
	double timeout_s;
	char **cmd;
	const char *hosts, *ssh, *te_run; /* NULL: this host */
	const char *shared; /* folder of the ranks of all hosts, or NULL */
	const char **export;		  /* "NAME" or "NAME=VALUE" */
	int nexport;
};

/* ---- job.c ---- */

/* the processes of a job, on this host or others */
struct crew {
	size_t npoll; /* entries of poll() */
	/* fd -1: nothing to wait for. until (s): lowered to the time of the next action */
	void (*poll)(struct pollfd *p, double *until);
	void (*ready)(const struct pollfd *p); /* after each wait */
	void (*signal)(int sig);
	int (*busy)(void); /* 1: output may come after all ranks have ended */
	int (*again)(int rank); /* starts a rank that has ended */
	double drain_s;	   /* time to wait for that output */
};

/* a rank has ended: si_code and si_status of waitid(2); host: NULL for this one */
struct ended {
	int rank, pid, code, status;
	const char *host;
};

/* blocks the signals that are forwarded, and no others, even if some were blocked before */
int job_begin(const struct run_opts *o, const struct crew *crew);
/*
 * In a child: unblocks all signals; restores all handlers, except that terminal signals which were
 * ignored when te_run started stay ignored; makes the child end with its parent.
 */
void job_leave(void);
void job_started(int rank);
/* a rank has ended; an agent reports it, otherwise a failure fails the job */
void job_ended(const struct ended *e);
/* ends all ranks, or with --no-kill keeps the status of the first failure for the end */
void job_failed(int status);
/* ends all ranks, with this status if there is none yet, whether or not the output is read */
void job_end(int status);
int job_is_ending(void);
/* waits until all have ended, and returns the status */
int job_wait(void);

struct buf;

/* ---- output.c ---- */

/* which: 0 for standard output, 1 for standard error */
void out_put(int which, const void *p, size_t n);
/* whole lines, with the rank before each; n 0: the last one may lack its newline */
void out_lines(int rank, int which, const char *p, size_t n);
/* state for showing an untrusted stream; initially zero */
struct shown {
	char held[4]; /* first bytes of an incomplete character */
	int n;
};
/*
 * Appends bytes, with control characters except tab and newline, and bytes that are not UTF-8, as
 * \xNN, so that a terminal obeys none of them. n 0: the stream has ended.
 */
void out_show(struct shown *s, const char *p, size_t n, struct buf *to);
int out_full(int which);
void out_poll(int which, struct pollfd *p);
/* 0, or the errno of a write whose reader has gone */
int out_write(int which);
int out_waits(void);
/* from now on drop output if the queue is full, so that no one waits for its reader */
void out_hurry(void);
/* drop all output from now on */
void out_drop(void);
void out_free(void);

/* ---- ranks.c ---- */

/* output goes to `put` (n 0: the stream has ended); put NULL: ranks write to this process's
 * output */
struct ranks_opts {
	int first, n;
	int input; /* rank 0 has the standard input of this process */
	void (*put)(int rank, int which, const char *p, size_t n);
	void (*ended)(const struct ended *e);
};

extern const struct crew ranks_crew; /* npoll for struct ranks_opts.n ranks: ranks_npoll() */
size_t ranks_npoll(int n);
int ranks_start(const struct run_opts *o, const struct ranks_opts *r);
/* release all ranks; call it after job_wait() */
void ranks_free(void);

/* ---- frame.c ---- */

enum frame_type {
	FRAME_JOB = 1, /* to an agent: struct run_opts, its ranks, environment */
	FRAME_SIGNAL,  /* to an agent: a number */
	FRAME_BEAT,    /* both ways */
	FRAME_OUTPUT,  /* rank, which, bytes */
	FRAME_ENDED,   /* rank, pid, code, status */
	FRAME_ANSWER,  /* to an agent, with --respawn: a rank that has ended, 1: start it again */
	FRAME_ERROR,   /* status: the ranks cannot be started; the agent has printed why */
	FRAME_DONE,    /* all ranks have ended, all output was before */
};

#define FRAME_HEAD 12
#define FRAME_MOST (4u << 20)

struct buf {
	char *p;
	size_t at, n, cap; /* bytes from at to n */
	int failed;	   /* 1: no memory, or no more bytes to take */
};

void buf_put(struct buf *b, const void *p, size_t n);
void buf_put_int(struct buf *b, int v);
void buf_put_text(struct buf *b, const char *text);
int buf_take_int(struct buf *b);
/* in the buffer; "" on failure */
const char *buf_take_text(struct buf *b);
void buf_free(struct buf *b);

void frame_put(struct buf *to, enum frame_type type, const struct buf *body);
/*
 * 1: *ret_body is a view of the next frame of `from`, until more is read into it; 0: not complete;
 * -1: not a frame.
 */
int frame_take(struct buf *from, enum frame_type *ret_type, struct buf *ret_body);
/* reads available bytes: 1, 0 at the end, -1 if there are none yet */
int frame_read(int fd, struct buf *to);

/* the body of FRAME_JOB; texts point into it; lists end with NULL and are released by free() */
struct job {
	const char *version, *host, *folder;
	int nranks, first, n, per_node, grace_s, silence_s;
	int respawn; /* 1: each FRAME_ENDED gets a FRAME_ANSWER */
	char **env; /* "NAME=VALUE" */
	char **cmd; /* not empty */
};

/* 0, or -1: not a job, or no memory. Version, host and lists are set in both cases */
int job_take(struct buf *b, struct job *ret);

/* ---- hosts.c, agent.c ---- */

/* checks --hosts, --ranks and --export */
int hosts_parse(struct run_opts *o);
int hosts_run(const struct run_opts *o);
int agent_run(void);

#endif
