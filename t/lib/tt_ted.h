/* tt_ted.h - runs ted(8) in a child process, and sends it messages. */
#ifndef TT_TED_H
#define TT_TED_H

#include <stdint.h>
#include <sys/types.h>

#include "tt.h"
#include "libtecore/base/wire.h"

/* a ted and its folder */
struct ted_run {
	char dir[64];	 /* folder of the test */
	char space[96];	 /* empty folder for files without a name, in a file system in memory */
	char sock[96];	 /* socket for clients */
	char conf[96];	 /* the configuration file */
	char log[96];	 /* stderr */
	int notify;	 /* NOTIFY_SOCKET, a datagram socket of the test; -1 before the start */
	pid_t pid;	 /* 0: not running */
	int pass[4];	 /* sockets for LISTEN_FDS */
	int npass;
	int watchdog_us; /* 0: none */
	int nofile;	 /* RLIMIT_NOFILE; 0: as the test */
	const char *map; /* map of users in a new user namespace; NULL: the test's namespace */
};

/* the one that most tests need, and the key of its clients: run_init() draws another one */
extern struct ted_run run;
extern uint8_t key[TE__WIRE_KEY_NBYTES];

/* a folder, and a configuration: lines in addition to the socket; @ in them is r->space */
void run_init(struct ted_run *r, const char *conf);
/* more lines */
void run_conf(struct ted_run *r, const char *fmt, ...) TE_PRINTF(2, 3);
/* starts it; waits until it is ready, or returns its exit status */
int run_try(struct ted_run *r);
/* asserts that it is ready */
void run_start(struct ted_run *r);
/* run, from its folder to its start */
void run_begin(const char *conf);
/* run, at a socket that all may connect to, so that the user id alone decides; and its end */
void run_begin_open(const char *conf, const char *map);
void run_end_open(void);
/* minus the code of the HELLO of a process of the user, and of a namespace if map */
int hello_as(uid_t uid, const uint8_t *as_key, const char *map);
/* sends the signal, and returns the exit status, or minus the signal that ended it */
int run_stop(struct ted_run *r, int signal);
/* stops it with success, removes the folder */
void run_end(struct ted_run *r);
/* the next message to the service manager; waits for it */
const char *run_notified(struct ted_run *r);
/* the output of ted */
const char *run_log(const struct ted_run *r);
/* number of ted's open files */
int nfds_of(pid_t pid);
/* waits until ted has n open files: it detects the end of connections with a delay */
void ck_nfds(const struct ted_run *r, int n);

/* a connection */
int dial(const struct ted_run *r);
/* any key that is not zero */
void make_key(uint8_t *key);
/* a message of a kind */
struct te__wire message(uint32_t kind);
/* sends m with fd, and waits for the reply, which m and *ret_fd get; returns its code */
int call(int sock, struct te__wire *m, int fd, struct te__wire_data *ret, int *ret_fd);
/* waits for the next message: 1, or 0 at the end of the connection */
int next(int sock, struct te__wire *m, struct te__wire_data *ret, int *ret_fd);
/* sends HELLO; returns the code */
int hello(int sock, const uint8_t *key);
/* a connection that has sent HELLO */
int join(const struct ted_run *r, const uint8_t *key);

/* send requests; return the code. reply_text has the text of the reply */
extern char reply_text[sizeof(((struct te__wire *)0)->text)];
/* any: it is answered */
int ping(int sock);
int grant(int sock, uint64_t nbytes, int *ret_fd);
/* a descriptor of memory with that text */
int memory(const char *text);
/* sends without waiting for the reply */
void send_only(int sock, struct te__wire m);
/* text is part of reply_text */
#define ck_reply(part) \
	ck_assert_msg(strstr(reply_text, part) != NULL, "\"%s\" has no \"%s\"", reply_text, part)

#endif
