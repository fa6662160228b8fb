/*
 * ted.h - the node service ted(8): what its files share.
 *
 * One thread serves everything: loop.c waits for events, client.c has the connections, request.c
 * the messages, job.c the jobs, spill.c files, share.c what one user may have of all, metrics.c
 * what is counted. Others close descriptors that may block it: close.c.
 * A client sends one request at a time, and gets one reply. Kinds of messages and their members:
 *
 *	HELLO	key			the job of the client; the reply's text is the instance of
 *					ted
 *	GRANT	nbytes			the reply has a file without a name, of that size
 *	HOLD	+fd			the client has the file, of a ted before this one
 *	WROTE	nbytes			the client has written so much more to its files
 *	STATUS				the reply has the metrics as its data
 *	JOBS	item			the reply has jobs (struct te__wire_job), newest first,
 *					whose number is below item, or any if that is 0
 *	REVOKE	item			the job with that number gets no more files
 *
 * A packet that is no message ends its connection, after an error; so do replies that the client
 * does not read: of those with a descriptor, one is allowed at a time. All other mistakes are
 * answered by an error: a kind that is not known, a descriptor that is missing or unexpected.
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
	int64_t deadline_ns; /* of its HELLO, or when a lost one is looked at again; 0: none */
	int sent_fd; /* 1: a reply with a descriptor was sent; it may have read that */
	int lost;    /* 1: it is to be dropped */
};

struct ted_job {
	struct ted_job *next;
	uint8_t key[TE__WIRE_KEY_NBYTES];
	uid_t uid;
	uint32_t id; /* a number for people: the key is secret */
	int nclients;
	int ngrants; /* it lasts as long as one of its files */
	int revoked; /* 1: it gets no more */
};

/* what was written today */
struct ted_written {
	uint32_t uid;
	uint64_t job; /* a hash of its key; 0: all of the user */
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
	uid_t overflow_uid; /* as users appear who have no id here; (uid_t)-1: all have one */
	char instance[33]; /* random hex digits: another one after each start */
	struct ted_client *client;
	int end; /* all entries from here on are free */
	int nlost;
	struct ted_job *jobs;
	uint32_t next_id;
	struct ted_closing *closing; /* descriptors */
	int64_t timer_ns; /* the next deadline is not before; INT64_MAX: there is none */
	struct ted_counts n;
	struct ted_grant *grants;
	int ngrants;
	char spill_why[160]; /* why there is no spill space; "": there is */
	int spill_dir;	 /* the folder; -1: there is no spill space */
	dev_t spill_dev; /* of the file system */
	struct ted_written *written;
	int nwritten;
	int64_t day; /* of the counts, since the epoch */
	int64_t save_ns, saved_ns; /* when the counts are to be saved (0: never), and were */
	/* loop.c */
	int epoll, timer, signal, spare, inotify;
	struct ted_socket {
		int fd;
		char path[100]; /* removed at the end; "": it is the service manager's */
		int lock;
	} listen, metrics;
	int64_t started; /* since the epoch, in s */
	int64_t watchdog_ns, next_watchdog_ns;
};

/* exit statuses */
enum { TED_OK, TED_FAILED, TED_BAD };

int64_t ted_now_ns(void);
/* of numbers from 0; at most INT64_MAX: clients may give any */
static inline int64_t ted_sum(int64_t a, int64_t b)
{
	return a > INT64_MAX - b ? INT64_MAX : a + b;
}
/* one line on stderr; those of clients are at most 10 in a second */
void ted_say(const char *fmt, ...) TE_PRINTF(1, 2);
void ted_say_client(const char *fmt, ...) TE_PRINTF(1, 2);

/* start.c: reads options and the configuration, and serves until a signal; an exit status */
int ted_main(int argc, char **argv);
/* the state without sockets; an exit status, with a message on stderr */
int ted_init(struct ted *t, const struct ted_conf *conf);
void ted_fini(struct ted *t);
/* 0 if a client that ted itself is gets right answers; else it says what is wrong */
int ted_self_test(struct ted *t);

/* client.c */
/* takes fd; a client that exceeds limits is refused with a reason */
struct ted_client *ted_client_add(struct ted *t, int fd);
/* a reply; data may be NULL, fd -1 */
void ted_reply(struct ted *t, struct ted_client *c, int code, const char *text, uint64_t nbytes,
	       const void *data, size_t ndata, int fd);
void ted_error(struct ted *t, struct ted_client *c, int code, const char *fmt, ...)
	TE_PRINTF(4, 5);
/* it is dropped by ted_client_reap(), so that callers may go on with it */
void ted_client_lose(struct ted *t, struct ted_client *c);
/* ends their connections; a client that has not read a descriptor stays an entry until it has */
void ted_client_reap(struct ted *t);
/* the messages that have come */
void ted_client_read(struct ted *t, struct ted_client *c);
/* fails what is late; sets timer_ns */
void ted_client_late(struct ted *t, int64_t now_ns);

/* close.c */
/* as fstat(), but never asks a file system that may not answer; 0, or -1 with errno */
int ted_stat(int fd, struct statx *st);
/* 1: it is a file of the file system of spill space */
int ted_in_spill(const struct ted *t, const struct statx *st);
/* closes a descriptor that a client of the user has sent; close() may not return */
void ted_close(struct ted *t, uid_t uid, int fd);
/* 1: the next message of the client has a descriptor, and got an error for its answer: too many of
 * its user are not closed yet */
int ted_close_refuses(struct ted *t, struct ted_client *c);
/* does not wait for those that are not closed */
void ted_close_end(struct ted *t);

/* request.c: fd: that came with it, which the caller closes; or -1 */
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
/* how many clients or files any user has, or this one */
int64_t ted_count(const struct ted *t, enum ted_what what, int any, uid_t uid);
/* 1: more would exceed the limit of all, or half of it, which one user may have; why says which */
int ted_over(const struct ted *t, uid_t uid, enum ted_what what, int64_t more, char *why,
	     size_t nbytes);

/* spill.c */
/* -1 with a message if ted cannot serve; without spill space it can */
int ted_spill_open(struct ted *t);
void ted_spill_close(struct ted *t);
void ted_spill_grant(struct ted *t, struct ted_client *c, uint64_t nbytes);
/* counts a file that the client has from before a restart */
void ted_spill_hold(struct ted *t, struct ted_client *c, int fd);
/* files are gone */
void ted_spill_read(struct ted *t);
/* bytes of all files, or of a job's or, with NULL, of a user's */
int64_t ted_spill_granted(const struct ted *t, const struct ted_job *job, int any, uid_t uid);

/* written.c */
/* reads the counts of the day; ends; saves what is due */
void ted_written_open(struct ted *t);
/* counts from the text of the file; 0, or -1 and none: it is not as ted wrote it */
int ted_written_parse(struct ted *t, const char *text);
/* the sum in its last line, of n bytes of text before it */
uint64_t ted_written_sum(const char *text, size_t n);
void ted_written_close(struct ted *t);
void ted_written_late(struct ted *t, int64_t now_ns);
void ted_written_add(struct ted *t, const struct ted_client *c, int64_t nbytes);
/* bytes of today, of the job or, with NULL, of the user */
int64_t ted_written(struct ted *t, uint32_t uid, const struct ted_job *j);
/* 1: a daily limit of the client, its job or all is reached; why says which */
int ted_written_over(struct ted *t, const struct ted_client *c, char *why, size_t nbytes);

/* metrics.c */
/* for free(), or NULL without memory */
char *ted_metrics_text(const struct ted *t, size_t *ret_nbytes);
/* takes fd, a connection to the second socket */
void ted_metrics_serve(struct ted *t, int fd);

/* loop.c: an exit status */
int ted_loop(struct ted *t);

/* socket.c */
/* 1: other users than root and that of ted can write to the folder, or it is none; why says it */
int ted_folder_shared(int dir, char *why, size_t nbytes);
/* sockets that the service manager has opened (LISTEN_FDS), or the own; an exit status */
int ted_socket_open(struct ted *t);
void ted_socket_close(struct ted *t);
/* tells the service manager; without one, nothing */
void ted_notify(const char *state);
/* ns between signs of life that the service manager wants; 0: none */
int64_t ted_watchdog_ns(void);

#endif
