/* t/comm/broker_lib.h - clients of a broker in other processes, for t/comm/broker*.c. */
#ifndef BROKER_LIB_H
#define BROKER_LIB_H

#include <sys/types.h>

#include "libtecomm/reach/broker.h"
#include "libtecore/base/private.h"
#include "tt_ctx.h"

#define BK_MOST 8

extern uint8_t bk_key[TE__KEY_NBYTES];
extern struct te__node_info bk_info; /* 3 ranks, unless a test sets another number */

/* of each test: a new key */
void bk_setup(void);

int64_t bk_now_ms(void);
int64_t bk_in_ms(int ms); /* a deadline */
int bk_nfds(void);	  /* number of open descriptors */
/* a memfd of that size whose bytes are all value */
int bk_fd(size_t nbytes, int value);
int bk_fd_byte(int fd, size_t at);

/* processes: forked before this one has threads; each begins when it is told to */
void bk_spawn(int rank, void (*fn)(int rank));
void bk_let_go(int rank);
/* the next line that the process said; "" if it has ended */
const char *bk_heard(int rank);
void bk_expect(int rank, const char *want);
pid_t bk_pid(int rank);
/* waits for its end, with that status */
void bk_reap(int rank, int want);
void bk_kill(int rank);

/* in a process: one line for the parent */
void bk_say(const char *text);
/* in a process: until the parent lets it go on */
void bk_await_go(void);
/* in a process: the result of a call, which is said if it is not 0 */
int bk_result(const char *what, int r);
struct te__client *bk_open(int rank);

/* without te__client_open(): a connection; the next message, or 0 at its end; HELLO of a rank */
int bk_dial(void);
int bk_next(int s, struct te__wire *m);
struct te__wire bk_hello(int rank);

#endif
