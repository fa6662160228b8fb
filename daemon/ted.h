/*
 * ted.h - the node service ted(8).
 *
 * One thread serves everything: loop.c waits for events, client.c has the connections, request.c
 * the messages, job.c the jobs, spill.c files, share.c the limits of a user, metrics.c the
 * counters. Other threads close descriptors, which may block: close.c.
 * A client sends one request at a time, and gets one reply. Kinds of messages and their members:
 *
 *	HELLO	key			the job of the client; the reply's text is the instance of
 *					ted
 *	GRANT	nbytes			the reply has a file without a name, of that size
 *	HOLD	+fd			the client has the file from before a restart of ted
 *	WROTE	nbytes			the client has written nbytes more to its files
 *	STATUS				the reply has the metrics as its data
 *	JOBS	item			the reply has jobs (struct te__wire_job), newest first,
 *					whose number is below item, or any if that is 0
 *	REVOKE	item			the job with that number gets no more files
 *
 * A packet that is not a message ends its connection, after an error; so do replies that the client
 * does not read; only one of them may have a descriptor. Other mistakes get an error as reply: an
 * unknown kind, a descriptor that is missing or unexpected.
 */
#ifndef TED_H
#define TED_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <te/export.h>

#include "daemon/conf.h"
#include "libtecore/base/wire.h"

struct ted_job;
struct ted_closing;
struct statx;

struct ted_client {
	int fd; /* -1: the entry is free */
	uid_t uid;
	pid_t pid; /* for messages only: it may be another PID namespace's */
	struct ted_job *job;
	int64_t deadline_ns; /* for its HELLO; if lost, time of the next check; 0: none */
	int sent_fd; /* 1: a reply with a descriptor was sent, and may be unread */
	int lost;    /* 1: to be dropped by ted_client_reap() */
};

struct ted_job {
	struct ted_job *next;
	uint8_t key[TE__WIRE_KEY_NBYTES];
	uid_t uid;
	uint32_t id; /* a number for people: the key is secret */
	int nclients;
	int ngrants; /* files; the job lasts as long as one of them */
	int revoked; /* 1: it gets no more files */
};
/* bytes written today by a job or a user */
struct ted_written {
	uint32_t uid;
	uint64_t job; /* hash of the job's key; 0: all jobs of the user */
	int64_t nbytes;
};

struct ted_grant {
	int wd; /* the watch of its file */
	int64_t nbytes;
	struct ted_job *job;
};

enum ted_denied { TED_DENIED_OTHER, TED_DENIED_QUOTA, TED_DENIED_SPACE, TED_DENIED_UNAVAILABLE,
		  TED_DENIED_END };

struct ted_counts {
	uint64_t accepted, refused, dropped_slow, protocol_errors, fd_transfers;
	uint64_t granted, held, denied[TED_DENIED_END], reclaimed, written;
};

struct ted {
	struct ted_conf conf;
	uid_t overflow_uid; /* id of users that are not mapped here; (uid_t)-1: all are mapped */
	char instance[33]; /* random hex digits, new at each start */
	struct ted_client *client;
	int end; /* all entries from here on are free */
	int nlost;
	struct ted_job *jobs;
	uint32_t next_id;
	struct ted_closing *closing; /* descriptors */
	int64_t timer_ns; /* lower bound of the next deadline; INT64_MAX: none */
	struct ted_counts n;
	struct ted_grant *grants;
	int ngrants;
	char spill_why[160]; /* why there is no spill space; "": there is */
	int spill_dir;	 /* the folder; -1: no spill space */
	dev_t spill_dev; /* device of the file system */
	struct ted_written *written;
	int nwritten;
	int64_t day; /* day of the counts, since the epoch */
	int64_t save_ns, saved_ns; /* times of the next save (0: none) and the last */
	/* loop.c */
	int epoll, timer, signal, spare, inotify;
	struct ted_socket {
		int fd;
		char path[100]; /* removed at the end; "": the service manager owns it */
		int lock;
	} listen, metrics;
	int64_t started; /* since the epoch, in s */
	int64_t watchdog_ns, next_watchdog_ns;
};

/* exit statuses */
enum { TED_OK, TED_FAILED, TED_BAD };

/* sum of numbers from 0, limited to INT64_MAX, because clients may send any number */
static inline int64_t ted_sum(int64_t a, int64_t b)
{
	return a > INT64_MAX - b ? INT64_MAX : a + b;
}

/* reply.c */
int64_t ted_now_ns(void);
/* print a line on stderr; ted_say_client: at most 10 lines a second, about clients */
void ted_say(const char *fmt, ...) TE_PRINTF(1, 2);
void ted_say_client(const char *fmt, ...) TE_PRINTF(1, 2);
/* a reply; data may be NULL, fd -1 */
void ted_reply(struct ted *t, struct ted_client *c, int code, const char *text, uint64_t nbytes,
	       const void *data, size_t ndata, int fd);
void ted_error(struct ted *t, struct ted_client *c, int code, const char *fmt, ...)
	TE_PRINTF(4, 5);
/* mark a client for ted_client_reap(), so that callers may continue to use it */
void ted_client_lose(struct ted *t, struct ted_client *c);
/* returns 1 if a descriptor that was sent to the client may still be in its socket */
int ted_client_unread(const struct ted_client *c);

/* start.c: reads options and the configuration, and serves until a signal; an exit status */
int ted_main(int argc, char **argv);
/* the state without sockets; an exit status, with a message on stderr */
int ted_init(struct ted *t, const struct ted_conf *conf);
void ted_fini(struct ted *t);

/* client.c */
/* takes fd; a client that exceeds limits is refused with a reason */
struct ted_client *ted_client_add(struct ted *t, int fd);
/* ends connections of lost clients; the entry stays until the client has read its descriptor */
void ted_client_reap(struct ted *t);
/* handle the messages that have arrived */
void ted_client_read(struct ted *t, struct ted_client *c);
/* drops clients whose deadline has passed; sets timer_ns */
void ted_client_late(struct ted *t, int64_t now_ns);

/* close.c */
/* fstat() that never queries a file system which may not answer; 0, or -1 with errno */
int ted_stat(int fd, struct statx *st);
/* 1: a file in the file system of spill space */
int ted_in_spill(const struct ted *t, const struct statx *st);
/* closes a descriptor that a client of the user has sent; close() may not return */
void ted_close(struct ted *t, uid_t uid, int fd);
/* 1: refuse the next message that carries a descriptor, because too many of this user's are still
 * being closed */
int ted_close_refuses(struct ted *t, struct ted_client *c);
/* does not wait for descriptors that are still being closed */
void ted_close_end(struct ted *t);

/* request.c: fd: descriptor of the message, which the caller closes; or -1 */
void ted_request(struct ted *t, struct ted_client *c, const struct te__wire *m, int fd);

/* job.c */
/* the job of the user with that key, made if there is none; NULL, with an error reply */
struct ted_job *ted_job_join(struct ted *t, struct ted_client *c, const uint8_t *key);
/* the job ends with its last client and its last file */
void ted_job_leave(struct ted *t, struct ted_client *c);
void ted_job_release(struct ted *t, struct ted_job *j);

/* share.c */
enum ted_what { TED_CLIENTS, TED_FILES };
/* root, and the user of ted */
int ted_is_admin(uid_t uid);
/* number of clients or files of all users (any), or of this user */
int64_t ted_count(const struct ted *t, enum ted_what what, int any, uid_t uid);
/* 1: another one would exceed the limit of all, or of a user, which is half; why: which one */
int ted_over(const struct ted *t, uid_t uid, enum ted_what what, char *why, size_t nbytes);

/* spill.c */
/* -1 with a message if ted cannot serve; it can serve without spill space */
int ted_spill_open(struct ted *t);
void ted_spill_close(struct ted *t);
void ted_spill_grant(struct ted *t, struct ted_client *c, uint64_t nbytes);
/* counts a file that the client has from before a restart */
void ted_spill_hold(struct ted *t, struct ted_client *c, int fd);
/* handle events of files that were removed */
void ted_spill_read(struct ted *t);
/* bytes of all files (any), of a job's files or, with job NULL, of a user's files */
int64_t ted_spill_granted(const struct ted *t, const struct ted_job *job, int any, uid_t uid);

/* written.c */
/* read the counts of the day; ted_written_close: end; ted_written_late: save if due */
void ted_written_open(struct ted *t);
/* sets counts from the text of the file; 0, or -1 and no counts if ted did not write it so */
int ted_written_parse(struct ted *t, const char *text);
/* the checksum in the last line, over the n bytes of text before it */
uint64_t ted_written_sum(const char *text, size_t n);
void ted_written_close(struct ted *t);
void ted_written_late(struct ted *t, int64_t now_ns);
void ted_written_add(struct ted *t, const struct ted_client *c, int64_t nbytes);
/* bytes written today by the job or, with NULL, by the user */
int64_t ted_written(struct ted *t, uint32_t uid, const struct ted_job *j);
/* 1: a daily limit of the client's user or job is reached; why: which one */
int ted_written_over(struct ted *t, const struct ted_client *c, char *why, size_t nbytes);

/* metrics.c */
/* for free(), or NULL without memory */
char *ted_metrics_text(const struct ted *t, size_t *ret_nbytes);
/* takes fd, a connection to the second socket */
void ted_metrics_serve(struct ted *t, int fd);

/* loop.c: an exit status */
int ted_loop(struct ted *t);

/* socket.c */
/* 1: users other than root and ted's can write to the folder, or it is not a folder; why: reason */
int ted_folder_shared(int dir, char *why, size_t nbytes);
/* sockets of the service manager (LISTEN_FDS), or new ones; an exit status */
int ted_socket_open(struct ted *t);
void ted_socket_close(struct ted *t);
/* reports the state to the service manager, if there is one */
void ted_notify(const char *state);
/* watchdog interval of the service manager in ns; 0: none */
int64_t ted_watchdog_ns(void);

#endif
