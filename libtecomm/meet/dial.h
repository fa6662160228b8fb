/* dial.h - connecting, without blocking, to a peer that may have several addresses. */
#ifndef TE__DIAL_H
#define TE__DIAL_H

#include <poll.h>
#include <sys/un.h>

#include "libtecomm/meet/conn.h"

struct te__dial {
	const struct te__addrs *tcp; /* borrowed; NULL: the path below */
	struct sockaddr_un path;
	socklen_t path_nbytes;
	struct te__conn *conn; /* opened when connected */
	struct te__ends ends;
	int fd;		       /* connecting socket, or -1 */
	int at;		       /* number of the present or next address */
	int last;	       /* errno of the latest failure, 0: none yet */
	int nrefused;	       /* consecutive addresses where nothing listens */
	int reached;	       /* 1: there was a connection before */
	int64_t next, until;   /* time of the next try; time to try the next address */
	int64_t pause;
};

void te__dial_init(struct te__dial *d, struct te__conn *conn, const struct te__addrs *tcp,
		   const struct te__ends *ends);
void te__dial_close(struct te__dial *d); /* leaves the connection */

/* try again after a pause, because the connection led to another rank */
void te__dial_again(struct te__dial *d, int64_t now, int last);

/* fills in p, whose fd may become -1; lowers *wake_ns to the time of the next te__dial_step() */
void te__dial_poll(const struct te__dial *d, struct pollfd *p, int64_t *wake_ns);
/* 1: connected, d->conn is open; 0: not yet; -ECONNREFUSED: nothing listens at any address */
int te__dial_step(struct te__dial *d, const struct pollfd *p, int64_t now);

#endif
